//! Every limit has a name, a value and a unit in its name. `GET /v1/capabilities` tells them.

/// Largest JSON request body, in bytes.
pub const REQUEST_BODY_BYTES_MAX: usize = 4 << 20;
/// Largest command text or argument vector of one execution, in bytes.
pub const COMMAND_BYTES_MAX: usize = 1 << 20;
/// Input that one call may give to an execution, in bytes. Encoded, it fits into a request with the longest command.
pub const STDIN_BYTES_MAX: usize = 2 << 20;
/// How long a guest may take to answer to a piece of input or another size of a terminal, in milliseconds.
pub const INPUT_ANSWER_MS_MAX: u64 = 20_000;
/// How long a piece of input waits for a program to read, unless the call says otherwise, in milliseconds.
pub const INPUT_WAIT_MS_DEFAULT: u64 = 10_000;
/// Most environment variables that one call may set.
pub const ENV_VARS_MAX: usize = 1024;
/// Bytes of output kept from the start of an execution.
pub const OUTPUT_HEAD_BYTES: usize = 8 << 20;
/// Bytes of output kept from the end of an execution, rolling.
pub const OUTPUT_TAIL_BYTES: usize = 8 << 20;
/// Output that one read answers at most, in bytes.
pub const OUTPUT_PAGE_BYTES_MAX: usize = 1 << 20;
/// Output that one piece of a stream of events brings at most, in bytes.
pub const FOLLOW_PIECE_BYTES_MAX: usize = 64 << 10;
/// How far an execution's output runs ahead of the slowest who follows it, in bytes: then its program waits.
pub const FOLLOW_AHEAD_BYTES_MAX: u64 = 4 << 20;
/// How long a program waits for a follower who takes nothing, in milliseconds.
pub const FOLLOW_STALL_MS_MAX: u64 = 5_000;
/// Largest message to a terminal, in bytes.
pub const TERMINAL_MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Executions that a sandbox keeps on record.
pub const EXECUTIONS_RETAINED_MAX: usize = 1024;
/// Output that all executions of one sandbox keep together, in bytes. Beyond it the oldest ended ones lose theirs.
pub const EXECUTION_OUTPUT_SANDBOX_BYTES_MAX: u64 = 64 << 20;
/// How long an execution keeps its output after its end, in milliseconds. Its record stays as long again.
pub const EXECUTION_RETENTION_MS: i64 = 86_400_000;
/// Records of executions without their output that a sandbox keeps.
pub const EXECUTION_TOMBSTONES_MAX: usize = 4096;
/// Executions that may run in one sandbox at once.
pub const EXECUTIONS_CONCURRENT_MAX: usize = 128;
/// Longest wait of one call for an execution's end, in milliseconds.
pub const WAIT_MS_MAX: u64 = 3_600_000;
/// Longest time limit of an execution, in milliseconds.
pub const EXECUTION_TIMEOUT_MS_MAX: u64 = 86_400_000;
/// How long a guest may take to confirm the end of an execution that was killed, in milliseconds of running time.
pub const KILL_CONFIRM_MS_MAX: u64 = 10_000;
/// How long a sandbox lives unless it is told otherwise, in milliseconds.
pub const TIMEOUT_MS_DEFAULT: u64 = 3_600_000;
/// How long a sandbox may live at most unless the server is set otherwise, in milliseconds.
pub const TIMEOUT_MS_MAX_DEFAULT: u64 = 86_400_000;
/// Shortest life and shortest idle limit of a sandbox, in milliseconds.
pub const TIMEOUT_MS_MIN: u64 = 1_000;
/// How long before a sandbox's deadline that is told, in milliseconds; of a shorter life, half of it.
pub const DEADLINE_SOON_MS: u64 = 60_000;
/// Branches that one fork may have.
pub const FORK_COUNT_MAX: u32 = 100;
/// Sandboxes of one server.
pub const SANDBOXES_MAX: usize = 200;
/// Labels of one sandbox or snapshot.
pub const LABELS_MAX: usize = 32;
/// Longest label key or value, in bytes.
pub const LABEL_BYTES_MAX: usize = 256;
/// Longest snapshot name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest path in a guest, in bytes (Linux `PATH_MAX`).
pub const PATH_BYTES_MAX: usize = 4096;
/// Entries that one directory listing answers at most.
pub const DIRECTORY_ENTRIES_MAX: usize = 10_000;
/// Largest file whose digest a read tells without a condition that asks for it, in bytes.
pub const FILE_DIGEST_BYTES_MAX: u64 = 16 << 20;
/// Changes of files that one batch makes at most.
pub const BATCH_CHANGES_MAX: usize = 256;
/// Contents of all files that one batch writes, in bytes.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Watches of files of one sandbox at once.
pub const WATCHES_MAX: usize = 16;
/// Changes that a watch keeps for a reader that comes back; of more, the oldest go and are told as missed.
pub const WATCH_EVENTS_MAX: usize = 10_000;
/// How long a watch goes on without a reader, in milliseconds.
pub const WATCH_LINGER_MS: u64 = 60_000;
/// Finds of one page of a search, unless it says otherwise.
pub const SEARCH_FINDS_DEFAULT: u32 = 1_000;
/// Finds that one page of a search answers at most.
pub const SEARCH_FINDS_MAX: u32 = 10_000;
/// Longest pattern of a search, in bytes.
pub const SEARCH_PATTERN_BYTES_MAX: usize = 4096;
/// Text of a matching line that is told, in bytes.
pub const SEARCH_TEXT_BYTES_MAX: usize = 1024;
/// Memory of a sandbox by default, in MiB.
pub const MEMORY_MIB_DEFAULT: u32 = 2048;
/// Least memory a sandbox may ask for, in MiB: below it the sentry itself does not fit.
pub const MEMORY_MIB_MIN: u32 = 128;
/// Most memory a sandbox may ask for, in MiB.
pub const MEMORY_MIB_MAX: u32 = 65_536;
/// Private files that a sandbox may hold by default, in bytes: it is paused where it holds more.
pub const DISK_BYTES_DEFAULT: u64 = 8 << 30;
/// Least limit of private files that a sandbox may ask for, in MiB.
pub const DISK_MIB_MIN: u32 = 16;
/// Greatest limit of private files that a sandbox may ask for, in MiB.
pub const DISK_MIB_MAX: u32 = 1 << 20;
/// Access keys that one account may have on record, also revoked and expired ones.
pub const ACCESS_KEYS_MAX: usize = 2_000;
/// Longest life of an access key that expires, in milliseconds: ten years.
pub const ACCESS_KEY_LIFE_MS_MAX: u64 = 10 * 365 * 86_400_000;
/// Accounts of one server.
pub const ACCOUNTS_MAX: usize = 10_000;
/// Processors of a sandbox by default.
pub const CPUS_DEFAULT: u32 = 2;
/// Guest processes of a sandbox by default (`RLIMIT_NPROC` of its non-root users).
pub const PROCESSES_DEFAULT: u32 = 512;
/// Changed files of one sandbox that a capture copies at most, in bytes as stored.
pub const FREEZE_COPY_BYTES_MAX: u64 = 4 << 30;
/// Longest logical size of one file that a capture copies, in bytes; sparse files count whole.
pub const FREEZE_FILE_BYTES_MAX: u64 = 1 << 40;
/// Captures that one machine's receipt lists at most; of older ones only their number is kept.
pub const RECEIPT_CAPTURES_MAX: usize = 1_000;
/// Events or receipts that one page answers at most.
pub const RECORDS_PAGE_MAX: usize = 1_000;
/// Webhooks of one account.
pub const WEBHOOKS_MAX: usize = 20;
/// Longest URL of a webhook, in bytes.
pub const WEBHOOK_URL_BYTES_MAX: usize = 2_048;
/// Kinds of events that one webhook may name.
pub const WEBHOOK_EVENTS_MAX: usize = 32;
/// Attempts at one delivery before it is given up.
pub const WEBHOOK_ATTEMPTS_MAX: u32 = 12;
/// How long one attempt may take, from the look-up of the name to the answer's head, in milliseconds.
pub const WEBHOOK_TIMEOUT_MS: u64 = 10_000;
/// Wait after the first attempt that failed, in milliseconds; doubled with each.
pub const WEBHOOK_RETRY_MS_FIRST: u64 = 5_000;
/// Longest wait between two attempts, in milliseconds.
pub const WEBHOOK_RETRY_MS_MAX: u64 = 3_600_000;
/// Deliveries of one webhook that are listed; older ones are forgotten.
pub const WEBHOOK_DELIVERIES_MAX: usize = 100;
/// Attempts at deliveries that are under way at once, of all accounts together.
pub const WEBHOOK_CONCURRENT_MAX: usize = 32;
/// How long an event stream is silent at most before it says that it is still there, in milliseconds.
pub const EVENTS_HEARTBEAT_MS: u64 = 15_000;
/// Frozen layers below one sandbox's files: what stands on more can't be captured and gone on from.
pub const LAYERS_MAX: usize = 120;
/// Paths that one comparison of snapshots tells at most.
pub const DIFF_CHANGES_MAX: usize = 10_000;
/// Largest file of which a comparison of snapshots tells a patch, in bytes.
pub const DIFF_FILE_BYTES_MAX: u64 = 256 << 10;
/// Contents of files that one comparison of snapshots makes patches of, in bytes, both sides together.
pub const DIFF_TEXTS_BYTES_MAX: u64 = 8 << 20;
/// Largest file of an exported snapshot that is taken in, in bytes.
pub const IMPORT_BYTES_MAX: u64 = 256 << 30;
/// Files of exported snapshots that are on their way in for one account.
pub const IMPORTS_MAX: usize = 16;
/// How long one of them is kept after its last piece, in milliseconds.
pub const IMPORT_KEPT_MS: u64 = 86_400_000;
/// How often all kept bytes of snapshots are read and held against their digests unless the server is set otherwise, in
/// milliseconds.
pub const SCRUB_EVERY_MS_DEFAULT: u64 = 86_400_000;
/// Bytes that are read for that in a second at most, on average.
pub const SCRUB_BYTES_PER_SECOND_MAX: u64 = 64 << 20;
/// Free disk space below which captures are refused, in bytes.
pub const DISK_LOW_WATER_BYTES: u64 = 512 << 20;
/// How often records, memory and machine are compared unless the server is set otherwise, in milliseconds.
pub const RECONCILE_EVERY_MS_DEFAULT: u64 = 600_000;
/// How long an operation and its key are kept unless the server is set otherwise, in milliseconds.
pub const KEYS_LIVE_MS_DEFAULT: u64 = 86_400_000;
/// Previews of one sandbox that let somebody in.
pub const PREVIEWS_ACTIVE_MAX: usize = 64;
/// Previews of one sandbox on record, also revoked and expired ones.
pub const PREVIEWS_MAX: usize = 1_000;
/// How often one preview's credential may be exchanged for another.
pub const PREVIEW_ROTATIONS_MAX: u32 = 1_000;
/// How long a preview lives unless it is told otherwise, in milliseconds.
pub const PREVIEW_TTL_MS_DEFAULT: u64 = 3_600_000;
/// Shortest life of a preview, in milliseconds.
pub const PREVIEW_TTL_MS_MIN: u64 = 1_000;
/// Longest life of a preview without being renewed, in milliseconds: 30 days.
pub const PREVIEW_TTL_MS_MAX: u64 = 30 * 86_400_000;
/// Requests and sockets that may be under way through one preview at once.
pub const PREVIEW_CONNECTIONS_MAX: usize = 2_000;
/// The same through all previews of a server together.
pub const PREVIEW_CONNECTIONS_ALL_MAX: usize = 3_072;
