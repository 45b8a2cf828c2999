//! Every limit of the journal has a name, a value and a unit in its name. Settings may change some; see
//! [`Settings`](crate::Settings).

/// How long an operation's key answers with the whole record, in milliseconds since its admission: 24 hours.
pub const KEY_RETENTION_MS: i64 = 24 * HOUR_MS;
/// How long a tombstone then still answers for the key, in milliseconds: 24 hours. Never set lower.
pub const TOMBSTONE_MS_MIN: i64 = 24 * HOUR_MS;
/// How long events are kept, in milliseconds: 7 days.
pub const EVENTS_RETENTION_MS: i64 = 7 * 24 * HOUR_MS;
/// How long the records of ended sandboxes, deleted snapshots, and dead previews and access keys are kept, in
/// milliseconds: 30 days.
pub const ENDED_RETENTION_MS: i64 = 30 * 24 * HOUR_MS;
/// How long receipts are kept, in milliseconds: 400 days.
pub const RECEIPTS_RETENTION_MS: i64 = 400 * 24 * HOUR_MS;

/// Longest canonical request that can be journaled, in bytes.
pub const REQUEST_BYTES_MAX: usize = remuda_types::limits::REQUEST_BODY_BYTES_MAX;
/// Longest outcome of an operation, in bytes of JSON.
pub const OUTCOME_BYTES_MAX: usize = 1 << 20;
/// Longest outcome that a tombstone keeps whole, in bytes of JSON; of a longer one it keeps only how it ended.
pub const TOMBSTONE_OUTCOME_BYTES_MAX: usize = 4 << 10;
/// Longest data of one step, in bytes of JSON.
pub const STEP_BYTES_MAX: usize = 256 << 10;
/// Longest name of a step, kind or quota, in bytes.
pub const WORD_BYTES_MAX: usize = 64;
/// Steps of one operation.
pub const STEPS_MAX: usize = 512;
/// Longest document of one record, in bytes of JSON.
pub const DOCUMENT_BYTES_MAX: usize = 4 << 20;
/// Longest document of one event, in bytes of JSON.
pub const EVENT_BYTES_MAX: usize = 64 << 10;
/// Changes that one call may carry.
pub const CHANGES_MAX: usize = 4_096;
/// Holds and counts of one reservation.
pub const QUOTAS_MAX: usize = 32;
/// Different slot names that one account may ever have used: each keeps its newest generation for good.
pub const SLOT_NAMES_MAX: u64 = 100_000;
/// Keys of one account that may be cancelled ahead of their admission at any time.
pub const FORBIDDEN_KEYS_MAX: u64 = 10_000;

/// Records that one page holds at most.
pub const PAGE_MAX: usize = 1_000;
/// Rows of each kind that one round of eviction removes at most; short, since admissions wait meanwhile.
pub const EVICTION_ROWS_MAX: usize = 500;

/// Calls that change something and wait for the writer, at most; the next ones wait for their turn to wait.
pub const WRITES_QUEUED_MAX: usize = 2_048;
/// Calls that one commit takes at most.
pub const COMMIT_CALLS_MAX: usize = 256;
/// Calls that read and wait for a reader, at most.
pub const READS_QUEUED_MAX: usize = 2_048;
/// Connections, each with its thread, that only read.
pub const READERS: usize = 4;
/// How long a change that nobody waits for may stay unwritten, in milliseconds.
pub const UNSYNCED_MS_MAX: u64 = 50;
/// How long a lock of a foreign program (a backup, a shell) on the database is waited for, in milliseconds.
pub const BUSY_MS_MAX: u64 = 5_000;
/// Space kept back so that outcomes can still be written when the disk is full, in bytes.
pub const RESERVE_BYTES: u64 = 8 << 20;
/// Largest database, in bytes; the reserve comes on top.
pub const DATABASE_BYTES_MAX: u64 = 64 << 30;
/// Largest database that is checked whole at opening, in bytes; of a larger one only its structure is.
pub const CHECKED_WHOLE_BYTES_MAX: u64 = 64 << 20;

const HOUR_MS: i64 = 3_600_000;
