//! Frames between the server and the agent that is PID 1 in a sandbox.
//!
//! The channel is a pair of FIFOs: one frame after another, each with a fixed header. It is versioned, since an old
//! agent lives as long as the snapshots that hold it. Frames from a guest are hostile input: a reader never trusts a
//! length, a kind or a channel. This crate does no I/O beyond `Read` and `Write` and knows no thread or runtime.
//!
//! # The order of things
//!
//! - After every start and every restore the host's first frame is a [`Request::Bind`]. Until it is answered the agent
//!   writes nothing, so that nothing an earlier incarnation had to say reaches a new host.
//! - A host that takes over from one that died first writes [`PADDING_BYTES`] zeros, which complete whatever half frame
//!   that left; the agent drops that and everything else up to the `Bind`. The host drops everything up to the
//!   [`Kind::Synced`] with its nonce: the agent's frames to the dead one, the first of which it may find half read. It
//!   reads while it writes, since both ways may be full. Executions and effects go on; transfers are broken off.
//! - [`Kind::Quiesce`] asks the agent for a frame boundary: it answers [`Kind::Quiesced`] and writes nothing more until
//!   [`Kind::Proceed`] (the source goes on) or `Bind` (a copy woke up). The host writes nothing between `Quiesce` and
//!   one of those two either. What is captured in between holds no half frame and no unread one.
//! - Data flows on channels in windows: a sender stays at most [`WINDOW_BYTES`] ahead of the receiver's last
//!   credit, which carries the bytes consumed since the channel began. The agent never drops output: at its
//!   window it stops reading the program's pipe.

mod batch;
mod files;
mod frame;
mod input;
mod message;
mod search;
mod watch;

pub use batch::{Batch, CHANGES_MAX, Change, Changed};
pub use files::{ByteRange, Conditions, Contents};
pub use frame::{
    FRAME_BEGIN, FRAME_END, FRAME_PAYLOAD_BYTES_MAX, Frame, FrameError, HEADER_BYTES, HOST_END_ABANDONED, Header, Kind,
    PADDING_BYTES, read_frame, write_frame,
};
pub use input::{INPUT_PIECE_BYTES_MAX, INPUT_WRITER_BYTES_MAX, Input, PtySize};
pub use message::{
    AgentError, AgentErrorKind, Bind, Bound, Entry, EntryKind, Event, ExecutionReport, Nonce, OUTPUT_PREFIX_BYTES,
    OutputChunk, Program, Reply, ReplyResult, Request, ResumeAt, Spawn, Stream, decode_credit, encode_credit,
};

pub use search::{FINDS_MAX, Glob, Grep, LineMatch, MATCH_TEXT_BYTES_MAX, PATTERN_BYTES_MAX, PLACE_BYTES_MAX};
pub use watch::{Watch, WatchEvent, WatchKind};

/// Version of frames and messages. An agent with another one is refused by the host with a sentence.
///
/// 1 had no [`FRAME_END`] and no nonce. It was never released, so that no snapshot holds an agent that speaks it, and
/// this side reads 2 alone.
pub const PROTOCOL_VERSION: u8 = 2;

/// Which calls an agent of this build knows, as it says when it is bound. Frames and the meaning of calls stay as they
/// are: a newer agent knows all that an older one did. The host asks an agent for nothing that it does not know
/// ([`Request::needs`]), since agents live as long as the snapshots they are in.
///
/// 0: executions and plain files. 1: parts, digests and conditions of files; moving; permission bits and owners; effects
/// of making and removing paths. 2: trees as archives. 3: terminals, their size, and standard input in pieces. 4: looking
/// through files, watching them, and several changes of files in one call. 5: what a capture of files leaves out. 6: connections to loopback.
pub const CALLS: u32 = 6;

/// The [`CALLS`] that take terminals and standard input in pieces.
pub const CALLS_WITH_INPUT: u32 = 3;

/// The [`CALLS`] that tell what a capture of files leaves out.
pub const CALLS_WITH_LEFT_OUT: u32 = 5;

/// The [`CALLS`] that connect to programs on the guest's own loopback address.
pub const CALLS_WITH_CONNECT: u32 = 6;

/// How far a sender of data may be ahead of the receiver's last credit, in bytes for each channel.
pub const WINDOW_BYTES: u64 = 1 << 20;
