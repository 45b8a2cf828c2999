//! Opens the database: lock, checks, then and only then the first write. A database that is damaged, foreign or newer
//! than this build must be left byte for byte as it was.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rusqlite_migration::{M, Migrations};

use crate::error::OpenError;
use crate::limits::{BUSY_MS_MAX, CHECKED_WHOLE_BYTES_MAX, DATABASE_BYTES_MAX};
use crate::store::db::is_full;

/// Ours in the header of the file: "RMDI".
const APPLICATION_ID: i64 = 0x524d_4449;
/// The layouts, oldest first; a released one is never changed.
const LAYOUTS: &[M<'static>] =
    &[M::up(include_str!("layout_1.sql")), M::up(include_str!("layout_2.sql")), M::up(include_str!("layout_3.sql"))];
/// What every SQLite database begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Statements that a connection keeps prepared.
const STATEMENTS_KEPT: usize = 256;

/// A journal that is ours alone and of this build's layout.
pub(crate) struct Opened {
    /// The database.
    pub(crate) path: PathBuf,
    /// The connection that writes.
    pub(crate) writer: Connection,
    /// Held as long as the journal is open.
    pub(crate) lock: File,
}

/// Opens or makes `journal.db` in a directory, which is made when it is absent.
pub(crate) fn open(directory: &Path) -> Result<Opened, OpenError> {
    let is_new = !directory.exists();
    make_directory(directory)?;
    let lock = lock(&directory.join("journal.lock"))?;
    let path = directory.join("journal.db");
    check(&path)?;
    let failed = |e: rusqlite::Error| from_sqlite(&path, &e);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut writer = Connection::open_with_flags(&path, flags).map_err(failed)?;
    // There are secrets of webhooks in it: a copy of the file is its owner's alone, too. SQLite gives its mode to the files
    // beside it.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(|e| from_io(&path, &e))?;
    configure(&writer).map_err(failed)?;
    let mode: String = writer.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
    if mode != "wal" {
        let cause = format!("the file system can't keep a write-ahead log: the journal mode stays {mode}");
        return Err(OpenError::Io { path, cause, full: false, read_only: false });
    }
    // Each commit is on the disk before anybody hears of it. Checkpoints are made by the writer, between commits.
    writer.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    writer.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
    writer.pragma_update(None, "journal_size_limit", 64 << 20).map_err(failed)?;
    // Nothing reaches the log before the commit, so that a full disk shows there and nowhere else.
    writer.pragma_update(None, "cache_spill", false).map_err(failed)?;
    writer.pragma_update(None, "foreign_keys", true).map_err(failed)?;
    set_bytes_max(&writer, DATABASE_BYTES_MAX).map_err(failed)?;
    Migrations::from_slice(LAYOUTS).to_latest(&mut writer).map_err(|e| match e {
        rusqlite_migration::Error::RusqliteError { err, .. } => from_sqlite(&path, &err),
        e => OpenError::Damaged { path: path.clone(), cause: e.to_string() },
    })?;
    // A crash of the machine must not take away the directory in which everything is.
    let above = directory.parent().filter(|above| is_new && !above.as_os_str().is_empty());
    for place in [Some(directory), above].into_iter().flatten() {
        File::open(place).and_then(|place| place.sync_all()).map_err(|e| from_io(place, &e))?;
    }
    // The file's own header then says whose it is and of which layout, and an earlier server's log begins anew. Where
    // the disk is too full for that, it all stays in the log.
    match writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
        Err(e) if !is_full(&e) => Err(from_sqlite(&path, &e)),
        _ => Ok(Opened { path, writer, lock }),
    }
}

/// A connection that can't write.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let failed = |e: rusqlite::Error| from_sqlite(path, &e);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let reader = Connection::open_with_flags(path, flags).map_err(failed)?;
    configure(&reader).map_err(failed)?;
    Ok(reader)
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_millis(BUSY_MS_MAX))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // Checks each page's cells as it is read: a damaged page is an error and no nonsense.
    connection.pragma_update(None, "cell_size_check", true)?;
    // In KiB, as a negative number.
    connection.pragma_update(None, "cache_size", -16_384)
}

/// Limits the size of the database; below what it has already the limit is that.
pub(crate) fn set_bytes_max(connection: &Connection, bytes: u64) -> rusqlite::Result<()> {
    let page: u32 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    let pages = (bytes / u64::from(page.max(512))).min(u64::from(u32::MAX - 1));
    connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
}

fn make_directory(directory: &Path) -> Result<(), OpenError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|e| from_io(directory, &e))
}

/// One server at a time. The lock goes with the process, however it ends.
fn lock(path: &Path) -> Result<File, OpenError> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let mut file = file.map_err(|e| from_io(path, &e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // Whose it is only helps the message.
            let _ = file.take(16).read_to_string(&mut text);
            return Err(OpenError::InUse { path: path.to_owned(), holder: text.trim().parse().ok() });
        }
        Err(TryLockError::Error(e)) => return Err(from_io(path, &e)),
    }
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    match written {
        // The pid only helps a message; a full disk must not keep a server from its outcomes.
        Err(e) if e.kind() != io::ErrorKind::StorageFull => Err(from_io(path, &e)),
        _ => Ok(file),
    }
}

/// Whether a database that is there may be written to. Reads only.
fn check(path: &Path) -> Result<(), OpenError> {
    let bytes = match std::fs::metadata(path) {
        Ok(m) if m.is_file() => m.len(),
        Ok(_) => return Err(foreign(path, "it is no regular file")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(from_io(path, &e)),
    };
    if bytes == 0 {
        // A server ended between making the file and writing to it.
        return Ok(());
    }
    check_header(path)?;
    let beside = ["-shm", "-wal"].map(|suffix| with_suffix(path, suffix));
    let made: Vec<_> = beside.into_iter().filter(|file| !file.exists()).collect();
    let checked = check_contents(path, bytes);
    if checked.is_err() {
        // Whoever reads such a database makes an empty log and an index of it where there are none.
        for file in made {
            let _ = std::fs::remove_file(file);
        }
    }
    checked
}

/// The first look, without SQLite, at what even an unreadable database tells.
fn check_header(path: &Path) -> Result<(), OpenError> {
    let mut header = [0; 100];
    let mut file = File::open(path).map_err(|e| from_io(path, &e))?;
    match file.read_exact(&mut header) {
        Ok(()) if header.starts_with(MAGIC) => {}
        Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => return Err(from_io(path, &e)),
        _ => return Err(foreign(path, "it doesn't begin as an SQLite database does")),
    }
    let number =
        |at: usize| i64::from(i32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
    check_identity(path, number(68), number(60))
}

fn check_identity(path: &Path, application: i64, layout: i64) -> Result<(), OpenError> {
    if application != APPLICATION_ID && (application, layout) != (0, 0) {
        return Err(foreign(path, "it is a database of another program"));
    }
    let known = LAYOUTS.len() as i64;
    if layout > known {
        return Err(OpenError::Newer { path: path.to_owned(), found: layout, known });
    }
    Ok(())
}

/// The second look, with the log taken into account: the header in the file may be older than the database.
fn check_contents(path: &Path, bytes: u64) -> Result<(), OpenError> {
    let failed = |e: rusqlite::Error| from_sqlite(path, &e);
    let db = open_reader(path)?;
    let number = |pragma: &str| db.query_row(pragma, [], |row| row.get::<_, i64>(0)).map_err(failed);
    let (application, layout) = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
    check_identity(path, application, layout)?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    if layout == 0 && tables > 0 {
        return Err(foreign(path, "it is a database of another program"));
    }
    if bytes <= CHECKED_WHOLE_BYTES_MAX {
        let found: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
        if found != "ok" {
            return Err(OpenError::Damaged { path: path.to_owned(), cause: found });
        }
    }
    Ok(())
}

fn foreign(path: &Path, cause: &str) -> OpenError {
    OpenError::Foreign { path: path.to_owned(), cause: cause.to_owned() }
}

fn from_io(path: &Path, e: &io::Error) -> OpenError {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull};
    OpenError::Io {
        path: path.to_owned(),
        cause: e.to_string(),
        full: e.kind() == StorageFull,
        read_only: matches!(e.kind(), ReadOnlyFilesystem | PermissionDenied),
    }
}

fn from_sqlite(path: &Path, e: &rusqlite::Error) -> OpenError {
    use rusqlite::ErrorCode;
    let (path, cause) = (path.to_owned(), e.to_string());
    match e.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged { path, cause },
        Some(ErrorCode::NotADatabase) => OpenError::Foreign { path, cause },
        code => {
            let read_only = matches!(code, Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied));
            OpenError::Io { path, cause, full: is_full(e), read_only }
        }
    }
}

/// The path with something behind its name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_of_the_first_layout_is_carried_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut old = Connection::open(directory.path().join("journal.db")).unwrap();
        Migrations::from_slice(&LAYOUTS[..1]).to_latest(&mut old).unwrap();
        old.execute("INSERT INTO accounts (account, newest_event) VALUES ('main', 7)", []).unwrap();
        drop(old);
        let opened = open(directory.path()).unwrap();
        let row = opened.writer.query_row("SELECT newest_event, created_at, doc FROM accounts", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?, row.get::<_, String>(2)?))
        });
        assert_eq!(row.unwrap(), (7, None, "null".to_owned()));
    }

    #[test]
    fn each_commit_is_synced_and_the_layouts_are_sound() {
        let directory = tempfile::tempdir().unwrap();
        let opened = open(directory.path()).unwrap();
        let number = |pragma: &str| opened.writer.query_row(pragma, [], |row| row.get::<_, i64>(0)).unwrap();
        // 2 is FULL.
        assert_eq!(number("PRAGMA synchronous"), 2);
        assert_eq!(number("PRAGMA user_version"), LAYOUTS.len() as i64);
        assert_eq!(number("PRAGMA application_id"), APPLICATION_ID);
        assert_eq!(number("PRAGMA foreign_keys"), 1);
        let mode: String = opened.writer.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        Migrations::from_slice(LAYOUTS).validate().unwrap();
        let reader = open_reader(&opened.path).unwrap();
        assert!(reader.execute("DELETE FROM accounts", []).is_err(), "readers can't write");
    }
}
