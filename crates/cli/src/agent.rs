//! The guest agent that this binary carries. Must hold nothing else: it goes into every sandbox.

/// The agent's bytes, a static executable.
pub const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/remuda-agent"));

#[cfg(test)]
mod tests {
    #[test]
    fn the_agent_is_a_static_executable() {
        let elf = super::BYTES;
        assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "64 bits, little-endian");
        assert_eq!(u16::from_le_bytes([elf[16], elf[17]]), 2, "ET_EXEC: not relocated when it starts");
        let number =
            |at: usize, length: usize| elf[at..at + length].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let (offset, size, count) = (number(32, 8), number(54, 2), number(56, 2));
        const PT_INTERP: u64 = 3;
        for index in 0..count {
            let header = usize::try_from(offset + index * size).unwrap();
            assert_ne!(number(header, 4), PT_INTERP, "a base image need not have our libc");
        }
    }
}
