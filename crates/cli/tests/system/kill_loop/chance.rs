//! Choices that come again with the same seed.

/// SplitMix64: a small generator is all that is needed, and this one has no bad seeds.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    pub fn of(seed: u64) -> Chance {
        Chance(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Another one, whose choices are its own.
    pub fn split(&mut self) -> Chance {
        Chance(self.next())
    }

    /// From 0 on, and below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
