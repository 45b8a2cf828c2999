//! Terminals, and standard input that comes in pieces while its program runs.

use serde::{Deserialize, Serialize};

/// Size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// A piece of standard input. The agent takes what it has room for and does not have yet, so that a piece may be sent
/// as often as wanted: each byte of a writer reaches the program once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// The execution's channel.
    pub channel: u32,
    /// Who writes. Each writer counts its own bytes, so that two of them can't be taken for one that repeats itself.
    pub writer: String,
    /// Where the first byte stands among all bytes of this writer.
    pub offset: u64,
    /// The bytes; on the wire a text whose characters have their numbers, since JSON has no bytes.
    #[serde(with = "byte_text")]
    pub bytes: Vec<u8>,
    /// Whether nothing comes behind them, from whomever.
    pub end: bool,
}

/// Most bytes of one [`Input`]. Zeros, of which JSON makes six characters each, fit into a frame as well.
pub const INPUT_PIECE_BYTES_MAX: usize = 256 << 10;

/// Longest name of a writer, in bytes.
pub const INPUT_WRITER_BYTES_MAX: usize = 64;

mod byte_text {
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&bytes.iter().map(|byte| char::from(*byte)).collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text of characters up to U+00FF")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Vec<u8>, E> {
                text.chars().map(|c| u8::try_from(c).map_err(|_| E::custom("a character beyond U+00FF"))).collect()
            }
        }
        from.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FRAME_PAYLOAD_BYTES_MAX;
    use crate::Request;

    #[test]
    fn every_byte_travels_and_the_longest_piece_fits_into_a_frame() {
        let input = |bytes: Vec<u8>| {
            Request::Input(Input {
                channel: u32::MAX,
                writer: "w".repeat(INPUT_WRITER_BYTES_MAX),
                offset: u64::MAX,
                bytes,
                end: false,
            })
        };
        let all = input((0..=255).collect());
        assert_eq!(serde_json::from_slice::<Request>(&serde_json::to_vec(&all).unwrap()).unwrap(), all);
        for byte in [0, b'"', 255] {
            let longest = serde_json::to_vec(&input(vec![byte; INPUT_PIECE_BYTES_MAX])).unwrap();
            assert!(longest.len() <= FRAME_PAYLOAD_BYTES_MAX, "{}", longest.len());
        }
        assert!(serde_json::from_str::<Request>(&serde_json::to_string(&all).unwrap().replace('ÿ', "€")).is_err());
    }
}
