//! Ids of the dialect and ours, one to one. A container's id is its slot, where that is one of the names that the dialect
//! has; our tagged ids hold a hundred bits, which a UUID has room for beside a mark of their kind. Must keep no table.

use remuda_types::Slot;
use remuda_types::ids::UID_LEN;

/// Letters of a tagged id, each for five bits.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Bits of a tagged id.
const BITS: u32 = 5 * UID_LEN as u32;
/// What stands before the bits of a preview's id: 28 bits.
const PREVIEW_MARK: u128 = 0x0a1_1f0d;

/// Of what kind an id in the form of a UUID is, so that one of another kind is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Execution = 0x15,
    Snapshot = 0x2a,
    Event = 0x33,
}

/// The slot that a container's id means: `small`, or `c1` to `c999`.
pub(super) fn slot(id: &str) -> Option<Slot> {
    let numbered = id.strip_prefix('c').is_some_and(|digits| {
        (1..=3).contains(&digits.len()) && !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    (id == "small" || numbered).then(|| id.parse().ok()).flatten()
}

/// Whether a slot has a name in this dialect.
pub(super) fn is_container(named: &Slot) -> bool {
    slot(named.as_str()).is_some()
}

fn packed(letters: &str) -> Option<u128> {
    if letters.len() != UID_LEN {
        return None;
    }
    letters.bytes().try_fold(0_u128, |bits, letter| {
        let place = ALPHABET.iter().position(|known| *known == letter)?;
        Some(bits << 5 | place as u128)
    })
}

fn letters(bits: u128) -> String {
    let place = |number: u32| (bits >> (5 * (UID_LEN as u32 - 1 - number))) as usize & 31;
    (0..UID_LEN as u32).map(|number| char::from(ALPHABET[place(number)])).collect()
}

/// The UUID of an id that has this prefix.
pub(super) fn uuid(kind: Kind, prefix: &str, id: &str) -> Option<String> {
    Some(uuid_of(kind, packed(id.strip_prefix(prefix)?)?))
}

/// The id with this prefix that a UUID stands for.
pub(super) fn tagged(kind: Kind, prefix: &str, uuid: &str) -> Option<String> {
    Some(format!("{prefix}{}", letters(bits_of(kind, uuid)?)))
}

/// The UUID of a number.
pub(super) fn uuid_of(kind: Kind, bits: u128) -> String {
    // 122 bits are free beside version and variant: the mark above, what is told below.
    let free = (kind as u128) << 116 | bits;
    let (high, middle, low) = (free >> 74, free >> 62 & 0xfff, free & ((1 << 62) - 1));
    let value = high << 80 | 0x4 << 76 | middle << 64 | 0b10 << 62 | low;
    let hex = format!("{value:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn bits_of(kind: Kind, uuid: &str) -> Option<u128> {
    let hex: String = uuid.chars().filter(|c| *c != '-').collect();
    let value = u128::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == 32)?;
    let free = (value >> 80) << 74 | (value >> 64 & 0xfff) << 62 | value & ((1 << 62) - 1);
    let bits = free & ((1 << BITS) - 1);
    // Only the one spelling of it.
    (uuid_of(kind, bits) == uuid).then_some(bits)
}

/// The id of a preview in this dialect: 32 hex digits.
pub(super) fn preview_hex(prefix: &str, id: &str) -> Option<String> {
    let bits = packed(id.strip_prefix(prefix)?)?;
    Some(format!("{:032x}", PREVIEW_MARK << BITS | bits))
}

/// The preview's id that these digits stand for.
pub(super) fn preview_id(prefix: &str, hex: &str) -> Option<String> {
    let value = u128::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 32)?;
    let id = format!("{prefix}{}", letters(value & ((1 << BITS) - 1)));
    (preview_hex(prefix, &id).as_deref() == Some(hex)).then_some(id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remuda_types::{ExecutionId, PreviewId, SnapshotId};

    use super::*;

    #[test]
    fn a_slot_is_a_container_where_the_dialect_has_its_name() {
        for good in ["small", "c1", "c42", "c999"] {
            assert_eq!(slot(good).unwrap().as_str(), good);
        }
        for wrong in ["", "c", "c0", "c01", "c1000", "C1", "c-1", "web", "small ", "c1a"] {
            assert!(slot(wrong).is_none(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn ids_survive_the_way_there_and_back(entropy: [u8; UID_LEN]) {
            let execution = ExecutionId::from_entropy(entropy);
            let told = uuid(Kind::Execution, ExecutionId::PREFIX, execution.as_str()).unwrap();
            prop_assert_eq!(told.len(), 36);
            prop_assert_eq!(&told[14..15], "4");
            prop_assert!("89ab".contains(&told[19..20]));
            let back = tagged(Kind::Execution, ExecutionId::PREFIX, &told);
            prop_assert_eq!(back.as_deref(), Some(execution.as_str()));
            // Another kind's, and another spelling, are none.
            prop_assert_eq!(tagged(Kind::Snapshot, SnapshotId::PREFIX, &told), None);
            prop_assert_eq!(tagged(Kind::Execution, ExecutionId::PREFIX, &told.replace('-', "")), None);
            let preview = PreviewId::from_entropy(entropy);
            let told = preview_hex(PreviewId::PREFIX, preview.as_str()).unwrap();
            prop_assert_eq!(told.len(), 32);
            let back = preview_id(PreviewId::PREFIX, &told);
            prop_assert_eq!(back.as_deref(), Some(preview.as_str()));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,60}") {
            let _ = (tagged(Kind::Execution, "exec-", &text), preview_id("prev-", &text), slot(&text));
            let _ = uuid(Kind::Execution, "exec-", &text);
        }
    }
}
