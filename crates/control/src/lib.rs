//! What the platform does: one file per operation, one driver per sandbox. Knows nothing of HTTP.

mod platform;
mod stream;

pub use platform::{Config, Platform};
pub use stream::{ByteStream, OutputQuery, OutputSlice, WriteOptions};
