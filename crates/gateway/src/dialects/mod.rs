//! Foreign dialects: clients that were made for another service speak to this one in its words. A dialect turns them into
//! calls of the platform and says the outcome in its words; it holds no state and decides nothing.

pub(crate) mod mainbrella;

/// Which foreign dialects a listener speaks beside the native API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialects {
    /// That of Mainbrella, at the listener's root.
    pub mainbrella: bool,
}

impl Dialects {
    /// The native API alone.
    pub const NONE: Dialects = Dialects { mainbrella: false };
    /// All that there are.
    pub const ALL: Dialects = Dialects { mainbrella: true };
}
