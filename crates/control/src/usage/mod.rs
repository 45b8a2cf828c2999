//! Quotas and usage: what is reserved before an effect, what is given back after a confirmed end, and the four figures
//! that tell it.

mod disk;
mod limit;
mod month;
mod quotas;
mod report;
pub(crate) mod watch;

pub use month::MonthSoFar;
pub use quotas::{Quotas, Share, Size, ended, month, refused};
