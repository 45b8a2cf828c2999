//! Finds the stretches of zeros that a sparse file need not hold, in bytes on their way to one.

/// Zeros of this length on the way become a hole, in bytes: what is sparse stays so.
pub const HOLE_BYTES_MIN: usize = 32 << 10;

/// Stretches of zeros are looked for in blocks of this size, in bytes.
const BLOCK_BYTES: usize = 4 << 10;

/// How many zeros to leave out, and how many bytes behind them to write.
pub fn next_stretch(bytes: &[u8]) -> (usize, usize) {
    static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    let is_zero = |block: &&[u8]| **block == ZEROS[..block.len()];
    let zeros = |bytes: &[u8]| bytes.chunks(BLOCK_BYTES).take_while(is_zero).map(<[u8]>::len).sum::<usize>();
    let leading = match zeros(bytes) {
        few if few < HOLE_BYTES_MIN => 0,
        many => many,
    };
    let mut end = leading;
    while let Some(rest) = bytes.get(end..).filter(|rest| !rest.is_empty()) {
        match zeros(rest) {
            0 => end += rest.len().min(BLOCK_BYTES),
            many if many >= HOLE_BYTES_MIN => break,
            few => end += few,
        }
    }
    (leading, end - leading)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stretches_come_to_all_of_it_and_leave_out_nothing_but_zeros(
            parts in proptest::collection::vec((prop::sample::select(vec![0u8, 0, 7]), 0usize..70_000), 0..6)
        ) {
            let bytes: Vec<u8> = parts.iter().flat_map(|(byte, length)| std::iter::repeat_n(*byte, *length)).collect();
            let (mut rest, mut back) = (bytes.as_slice(), Vec::new());
            while !rest.is_empty() {
                let (zeros, data) = next_stretch(rest);
                prop_assert!(zeros + data > 0 && (zeros == 0 || zeros >= HOLE_BYTES_MIN));
                back.resize(back.len() + zeros, 0);
                back.extend_from_slice(&rest[zeros..zeros + data]);
                rest = &rest[zeros + data..];
            }
            prop_assert_eq!(back, bytes);
        }
    }
}
