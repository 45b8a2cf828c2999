//! A connection with our words for its errors, and the transaction of one call. It must never hide an error.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;

use remuda_types::{Account, Generation, SandboxId, Slot};
use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Params, Row, ffi};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{JournalError, Refusal};

/// A connection and the place of its database, for errors.
#[derive(Clone, Copy)]
pub(crate) struct Db<'c> {
    conn: &'c Connection,
    path: &'c Path,
}

impl<'c> Db<'c> {
    pub(crate) fn new(conn: &'c Connection, path: &'c Path) -> Self {
        Db { conn, path }
    }

    /// Changes rows; tells how many.
    pub(crate) fn change(&self, sql: &str, values: impl Params) -> Result<usize, JournalError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(|e| self.failed(e))?;
        statement.execute(values).map_err(|e| self.failed(e))
    }

    /// Inserts a row; tells its number.
    pub(crate) fn insert(&self, sql: &str, values: impl Params) -> Result<i64, JournalError> {
        self.change(sql, values)?;
        Ok(self.conn.last_insert_rowid())
    }

    /// The first row, if there is one.
    pub(crate) fn one<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, JournalError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(|e| self.failed(e))?;
        statement.query_row(values, read).optional().map_err(|e| self.failed(e))
    }

    /// All rows. Statements bound their number themselves.
    pub(crate) fn many<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, JournalError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(|e| self.failed(e))?;
        let rows = statement.query_map(values, read).map_err(|e| self.failed(e))?;
        rows.collect::<rusqlite::Result<_>>().map_err(|e| self.failed(e))
    }

    pub(crate) fn failed(&self, e: rusqlite::Error) -> JournalError {
        failed(self.path, e)
    }
}

/// What an error of SQLite means to a caller, while nothing was committed.
pub(crate) fn failed(path: &Path, e: rusqlite::Error) -> JournalError {
    let path = path.to_owned();
    if is_full(&e) {
        return JournalError::Full { path };
    }
    match (&e, e.sqlite_error_code()) {
        (_, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => JournalError::Locked { path },
        (_, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        | (rusqlite::Error::FromSqlConversionFailure(..), _) => JournalError::Damaged { path, cause: e.to_string() },
        (
            _,
            Some(
                ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly,
            ),
        ) => JournalError::Read { path, cause: e.to_string() },
        _ => JournalError::internal(e),
    }
}

/// Whether a disk or the database's own limit is full; its shared index grows by a call that reports it otherwise.
pub(crate) fn is_full(e: &rusqlite::Error) -> bool {
    match e {
        rusqlite::Error::SqliteFailure(failure, _) => {
            failure.code == ErrorCode::DiskFull || failure.extended_code == ffi::SQLITE_IOERR_SHMSIZE
        }
        _ => false,
    }
}

/// The transaction of one call, within the one that is committed for many.
pub(crate) struct Tx<'c> {
    db: Db<'c>,
    announced: RefCell<Vec<(Account, u64)>>,
}

impl<'c> Tx<'c> {
    pub(crate) fn new(conn: &'c Connection, path: &'c Path) -> Self {
        Tx { db: Db::new(conn, path), announced: RefCell::default() }
    }

    /// To be told to subscribers once it is committed: the newest event of an account.
    pub(crate) fn announce(&self, account: &Account, sequence: u64) {
        self.announced.borrow_mut().push((account.clone(), sequence));
    }

    /// How many were announced; to be given to [`Tx::forget_announced`] when what follows is rolled back.
    pub(crate) fn announced_so_far(&self) -> usize {
        self.announced.borrow().len()
    }

    pub(crate) fn forget_announced(&self, back_to: usize) {
        self.announced.borrow_mut().truncate(back_to);
    }

    pub(crate) fn into_announced(self) -> Vec<(Account, u64)> {
        self.announced.into_inner()
    }
}

impl<'c> Deref for Tx<'c> {
    type Target = Db<'c>;
    fn deref(&self) -> &Db<'c> {
        &self.db
    }
}

/// A column's text as the type that it stands for.
pub(crate) fn parsed<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: FromStr<Err: Into<Box<dyn StdError + Send + Sync>>>,
{
    row.get_ref(column)?.as_str()?.parse().map_err(|e: T::Err| wrong(column, e))
}

/// The same of a column that may be null.
pub(crate) fn parsed_or_null<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>>
where
    T: FromStr<Err: Into<Box<dyn StdError + Send + Sync>>>,
{
    match row.get_ref(column)?.as_str_or_null()? {
        Some(text) => text.parse().map(Some).map_err(|e: T::Err| wrong(column, e)),
        None => Ok(None),
    }
}

/// A column's JSON.
pub(crate) fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|e| wrong(column, e))
}

/// A column's word of one of our states, which are written as serde has them.
pub(crate) fn word<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    T::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text))
        .map_err(|e| wrong(column, e))
}

/// A column's number as a generation.
pub(crate) fn generation(row: &Row<'_>, column: usize) -> rusqlite::Result<Generation> {
    let unix_ms = row.get(column)?;
    Generation::from_unix_ms(unix_ms).ok_or_else(|| wrong(column, format!("{unix_ms} is no generation")))
}

/// A slot and a generation, in two columns, as an id.
pub(crate) fn sandbox_id(row: &Row<'_>, slot: usize, at: usize) -> rusqlite::Result<SandboxId> {
    Ok(SandboxId { slot: parsed::<Slot>(row, slot)?, generation: generation(row, at)? })
}

fn wrong(column: usize, e: impl Into<Box<dyn StdError + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, e.into())
}

/// A value as JSON for a column, within a limit.
pub(crate) fn to_json(
    value: &impl Serialize,
    what: &'static str,
    name: &'static str,
    limit: usize,
) -> Result<String, JournalError> {
    let text = serde_json::to_string(value).map_err(JournalError::internal)?;
    if text.len() > limit {
        let (limit, bytes) = (limit as u64, text.len() as u64);
        return Err(Refusal::TooLarge { what, name, limit, bytes }.into());
    }
    Ok(text)
}

/// A record's document for a column.
pub(crate) fn document(value: &impl Serialize, what: &'static str) -> Result<String, JournalError> {
    to_json(value, what, "document_bytes_max", crate::limits::DOCUMENT_BYTES_MAX)
}

/// The same of what may be left as it is.
pub(crate) fn document_or_null<T: Serialize>(
    value: &Option<T>,
    what: &'static str,
) -> Result<Option<String>, JournalError> {
    value.as_ref().map(|value| document(value, what)).transpose()
}

/// An unsigned amount as SQLite has it; what doesn't fit is as good as without bound.
pub(crate) fn amount(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
