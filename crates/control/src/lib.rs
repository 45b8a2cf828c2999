//! What the platform does: one file per operation, one driver per sandbox. It knows no HTTP, and no caller.

pub mod access;
mod boot;
mod caller;
mod channel;
mod clock;
mod deadlines;
mod dial;
mod driver;
mod errors;
mod events;
mod executions;
mod hands;
mod heir;
mod keeping;
mod ledger;
mod operation;
mod operations;
mod output;
mod pages;
mod platform;
mod previews;
mod reconcile;
mod records;
mod recovery;
mod registry;
mod scrubber;
mod staging;
mod stream;
#[cfg(test)]
mod trials;
mod turns;
pub mod usage;
mod watches;
mod webhooks;

pub use caller::{ACCOUNT_DEFAULT, Caller};
pub use operation::{Answered, Call};
pub use platform::{Config, ExportedSnapshot, Ground, OutputFollower, Platform, SnapshotsWanted};
pub use previews::{IssuedPreview, PreviewCredential, PreviewPass, PreviewToken, TokenError};
pub use remuda_engine::{Fingerprint, Parts};
pub use remuda_guest_proto::{ByteRange, Conditions, Contents};
pub use remuda_journal::{Gate, Passage};
pub use stream::{
    Attributes, ByteStream, ExecutionInput, FileAt, FileContents, FileRead, FindFiles, FindText, GuestStream, MoveFile,
    OutputQuery, OutputSlice, ReadOptions, WriteOptions,
};
pub use watches::{FileWatcher, Told as WatchTold, WatchPlace};
pub use webhooks::{Courier, Parcel, Refused};
