//! Machines whose server is killed, with a real runsc: what the next server finds, takes over, or removes.

mod captures;
mod ends;
mod server;
mod taking_over;
