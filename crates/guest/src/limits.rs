//! Every limit of the agent, by name. Nothing else belongs here.

/// Executions kept at once, running or ended and not forgotten.
pub const EXECUTIONS_MAX: usize = 4096;

/// Executions whose program runs or whose pipes somebody still holds: each has a thread.
pub const EXECUTIONS_LIVE_MAX: usize = 1024;

/// File calls at work at once. A server asks for half as many: the rest is for those of a dead one, until they are over.
pub const FILE_CALLS_MAX: usize = 128;

/// Outcomes of effects that are remembered; the oldest goes first.
pub const EFFECTS_MAX: usize = 4096;

/// Calls that may wait for the outcome of one effect.
pub const EFFECT_WAITERS_MAX: usize = 16;

/// Length of an execution's id, in bytes.
pub const EXECUTION_ID_BYTES_MAX: usize = 128;

/// Stretches of one stream in an execution's unacknowledged output. Reached only by a program that changes between its
/// two outputs every few bytes; its pipes are then left alone as at the window's end.
pub const OUTPUT_RUNS_MAX: usize = 16 << 10;

/// Bytes of data in one frame of the agent.
pub const CHUNK_BYTES: usize = 256 << 10;

/// Size asked for the pipes of an execution, in bytes.
pub const PIPE_BYTES: usize = 1 << 20;

/// First size of a pump's buffer, in bytes; it grows to [`CHUNK_BYTES`] when a read fills it.
pub const PUMP_BUFFER_BYTES: usize = 16 << 10;

/// File data queued for the channel, in bytes, for all transfers together.
pub const OUTBOX_DATA_BYTES_MAX: usize = 2 << 20;

/// Frames queued for the channel at which the agent stops taking calls until the host reads.
pub const OUTBOX_FRAMES_MAX: usize = 4096;

/// Data consumed after which a credit is sent although more is waiting, in bytes.
pub const CREDIT_STEP_BYTES: u64 = 256 << 10;

/// Signals kept for a program that is being started.
pub const EARLY_SIGNALS_MAX: usize = 16;

/// Writers of one execution's standard input whose bytes are counted; the one that was heard last the longest ago goes
/// first, and begins anew.
pub const INPUT_WRITERS_MAX: usize = 256;

/// Longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;

/// Links followed at the end of a path that is written.
pub const LINKS_MAX: usize = 40;

/// Entries of a listing.
pub const ENTRIES_MAX: usize = 10_000;

/// JSON of a listing, in bytes; a frame holds a little more.
pub const LISTING_BYTES_MAX: usize = 1 << 20;

/// Depth of directories below one that is removed.
pub const REMOVE_DEPTH_MAX: usize = 512;

/// How often a tree that is removed may be found filled again.
pub const REMOVE_ROUNDS_MAX: usize = 1000;

/// Searches at work at once: each may hold a few MiB.
pub const SEARCHES_MAX: usize = 8;

/// Paths that one search looks at; the rest is for another call.
pub const WALK_VISITS_MAX: u64 = 200_000;

/// Names of one directory that a search holds at once.
pub const WALK_NAMES_MAX: usize = 10_000;

/// Depth of directories that a search goes into.
pub const WALK_DEPTH_MAX: usize = 256;

/// Bytes of files that one search reads; the rest is for another call.
pub const SEARCH_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a line that are held at once: a longer one is looked through in pieces of this length.
pub const SEARCH_LINE_BYTES_MAX: usize = 1 << 20;

/// Bytes of a file that are read at once while it is looked through.
pub const SEARCH_PIECE_BYTES: usize = 128 << 10;

/// Size of a compiled pattern, in bytes, and of what is kept while it is matched.
pub const PATTERN_COMPILED_BYTES_MAX: usize = 2 << 20;

/// Watches at once. A server asks for half as many.
pub const WATCHES_MAX: usize = 32;

/// Directories that one watch watches.
pub const WATCH_DIRECTORIES_MAX: usize = 8192;

/// Events of one watch that are looked at together.
pub const WATCH_BATCH_MAX: usize = 1024;

/// Connections to the guest's own loopback address at once: each has two threads.
pub const RELAYS_MAX: usize = 256;

/// How long a program, and then the host, may take to come into one of them, in milliseconds.
pub const RELAY_WAIT_MS_MAX: u64 = 10_000;

/// Bytes of each direction of one that are under way.
pub const RELAY_BUFFER_BYTES: usize = 64 << 10;

/// Contents of all files of one batch, in bytes.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// Sentences about deleted open files, and about what a search left out.
pub const SENTENCES_MAX: usize = 64;

/// Entries that are looked at to name what a capture of files leaves out.
pub const LEFT_OUT_ENTRIES_MAX: usize = 200_000;

/// How long that may take, in milliseconds.
pub const LEFT_OUT_MS_MAX: u64 = 2_000;

/// Size of a file of `/etc` that the agent reads, in bytes.
pub const CONFIGURATION_BYTES_MAX: u64 = 4 << 20;

/// Supplementary groups of a user.
pub const GROUPS_MAX: usize = 1024;

/// Idle threads kept for the next call.
pub const IDLE_THREADS_MAX: usize = 2;

/// Stack of a thread, in bytes of address space.
pub const THREAD_STACK_BYTES: usize = 256 << 10;

/// Stack of a child between its making and its exec, in bytes.
pub const CHILD_STACK_BYTES: usize = 32 << 10;

/// Open files the agent allows itself if the hard limit permits.
pub const OPEN_FILES_MAX: u64 = 65_536;

/// Diagnostics after which the agent is silent on stderr.
pub const DIAGNOSTICS_MAX: usize = 10_000;
