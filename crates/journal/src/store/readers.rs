//! Threads that read, each on its own connection. What they see is committed and on the disk. They must never write.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use crate::error::JournalError;
use crate::store::Db;
use crate::store::db::failed;

/// A call that reads; it answers by itself.
pub(crate) type Look = Box<dyn FnOnce(Result<Db<'_>, JournalError>) + Send>;

/// Serves calls until nobody can make any more.
pub(crate) fn serve(conn: &Connection, path: &Path, calls: &Mutex<Receiver<Look>>) {
    loop {
        let next = calls.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(look) = next else { return };
        // A fault in one call's code must not take the reader away from the next ones; its caller finds the reply gone.
        if catch_unwind(AssertUnwindSafe(|| look_once(conn, path, look))).is_err() {
            tracing::error!("a call that reads {} panicked", path.display());
        }
    }
}

/// In one transaction, so that what is read together belongs together.
fn look_once(conn: &Connection, path: &Path, look: Look) {
    match conn.unchecked_transaction() {
        Ok(transaction) => {
            look(Ok(Db::new(&transaction, path)));
            // Nothing was changed: how it ends makes no difference.
            drop(transaction);
        }
        Err(e) => look(Err(failed(path, e))),
    }
}
