//! Adapters to providers of sandboxes, one file each.

mod remuda;

pub use remuda::Remuda;
