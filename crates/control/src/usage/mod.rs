//! Quotas and usage: what is reserved before an effect, what is given back after a confirmed end, and the four figures
//! that tell it.

mod disk;
mod quotas;
mod report;

pub use quotas::{Quotas, Share, Size, ended, month, refused};
