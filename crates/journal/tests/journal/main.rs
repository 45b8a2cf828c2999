//! Tests of the journal through its public interface, on real disks. Nothing in here may know a table.

mod admission;
mod eviction;
mod opening;
mod records;
mod world;
