//! Tests of the journal through its public interface, on real disks. Nothing in here may know a table.

mod admission;
mod crash;
mod eviction;
mod fullness;
mod model;
mod opening;
mod records;
mod world;
