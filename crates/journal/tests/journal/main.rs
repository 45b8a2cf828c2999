//! Tests of the journal through its public interface, on real disks. Nothing in here may know a table.

mod admission;
mod world;
