//! Trials of the whole platform on a host that stands in for gVisor: every operation is failed and cut off at every
//! effect and every write of the journal, and a model goes through random histories. What must hold afterwards is in
//! [`audit`].

mod audit;
mod calls;
mod faults;
mod model;
mod world;
