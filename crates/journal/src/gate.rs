//! Asked at each commit, so that trials can count commits, fail one, or end a server at exactly that place. A server in
//! service has none.

/// What becomes of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It takes place.
    Open,
    /// Nothing of it is written, as on a full disk. Told of a commit that took place, this is the same as `Open`.
    Full,
    /// As if the process was killed here: nothing more is ever written, and nobody is ever answered.
    Dead,
}

/// Stands before and behind each commit.
pub trait Gate: Send + Sync {
    /// Before a commit of so many calls.
    fn before(&self, calls: usize) -> Passage;
    /// It is on the disk, and nobody has been told.
    fn after(&self) -> Passage;
}
