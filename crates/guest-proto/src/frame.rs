//! The frame: a 16-byte header, a payload, and one byte that shows that it is whole.
//!
//! A side that dies leaves a half frame behind, and its successor can't know where it was cut. So the successor first
//! writes [`PADDING_BYTES`] zeros: they complete the half frame, whichever it is, and since no frame ends in a zero it
//! is recognised and dropped. What the cut left of a header only ever makes the frame shorter.

use std::io::{self, Read, Write};

use crate::PROTOCOL_VERSION;

/// Bytes of a header: magic (2), version (1), kind (1), channel (4, little endian), payload length (4, little endian),
/// zero (4).
pub const HEADER_BYTES: usize = 16;

/// Largest payload of a frame, in bytes. Data is cut into chunks of at most this size.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 2 << 20;

/// The last byte of every frame. It is not the byte that padding is made of.
pub const FRAME_END: u8 = 0xe7;

/// Zeros that complete any half frame.
pub const PADDING_BYTES: usize = HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX + 1;

/// Payload of a [`Kind::HostEnd`] that abandons a transfer, in either direction.
pub const HOST_END_ABANDONED: u8 = 1;

/// The first byte of every frame.
pub const FRAME_BEGIN: u8 = b'R';

const MAGIC: [u8; 2] = [FRAME_BEGIN, b'm'];

/// What a frame is. Values below 0x80 go from host to guest, the others back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A call; the channel is its number, the payload a JSON `Request`.
    Request = 0x01,
    /// Bytes for a channel: standard input of an execution, or a file on its way in.
    HostData = 0x02,
    /// No more bytes will come on the channel. With the one byte [`HOST_END_ABANDONED`] as payload: nobody waits for
    /// this transfer any more; what was written of it is thrown away.
    HostEnd = 0x03,
    /// Bytes of the guest's data consumed on the channel since it began, as eight bytes little endian.
    HostCredit = 0x04,
    /// Come to a frame boundary and fall silent; a payload of one byte 1 asks to flush the file system first.
    Quiesce = 0x05,
    /// Go on after a quiesce.
    Proceed = 0x06,
    /// The answer to the call of that number; the payload is a JSON `ReplyResult`.
    Reply = 0x81,
    /// Bytes of a channel: output of an execution (behind an `OutputChunk` prefix), or a file on its way out.
    GuestData = 0x82,
    /// No more bytes will come on the channel; an empty payload, or a JSON `AgentError` if it broke off.
    GuestEnd = 0x83,
    /// Bytes of the host's data consumed on the channel since it began, as eight bytes little endian.
    GuestCredit = 0x84,
    /// The agent is at a frame boundary and says nothing more until told to.
    Quiesced = 0x85,
    /// Something happened; the payload is a JSON `Event`.
    Event = 0x86,
    /// The first frame for a host that bound; the payload is the nonce of its `Bind`. What came before was for another.
    Synced = 0x87,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        const ALL: [Kind; 13] = [
            Kind::Request,
            Kind::HostData,
            Kind::HostEnd,
            Kind::HostCredit,
            Kind::Quiesce,
            Kind::Proceed,
            Kind::Reply,
            Kind::GuestData,
            Kind::GuestEnd,
            Kind::GuestCredit,
            Kind::Quiesced,
            Kind::Event,
            Kind::Synced,
        ];
        ALL.into_iter().find(|k| *k as u8 == byte)
    }

    /// Whether frames of this kind are written by the guest.
    pub fn is_from_guest(self) -> bool {
        self as u8 >= 0x80
    }
}

/// Why bytes are not a frame. After one of these nothing that follows on the channel can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The header does not begin with the magic bytes.
    #[error("the channel is out of step: a frame begins with {0:02x?}")]
    Magic([u8; 2]),
    /// The other side speaks another version.
    #[error("a frame of protocol version {0}, this side speaks {PROTOCOL_VERSION}")]
    Version(u8),
    /// No such kind.
    #[error("a frame of unknown kind 0x{0:02x}")]
    Kind(u8),
    /// The payload would be larger than a frame may be.
    #[error("a frame of {0} bytes, at most {FRAME_PAYLOAD_BYTES_MAX} are allowed")]
    Length(u32),
    /// The header's last four bytes are not zero.
    #[error("a frame header whose reserved bytes are not zero")]
    Reserved,
    /// The last byte is not [`FRAME_END`]: whoever wrote it died in the middle.
    #[error("a frame of kind {0:?} that broke off in the middle")]
    Cut(Kind),
    /// A payload that is not what its kind says.
    #[error("a frame of kind {kind:?} whose payload makes no sense: {why}")]
    Payload {
        /// The frame's kind.
        kind: Kind,
        /// What is wrong with it.
        why: String,
    },
    /// Reading or writing failed, or the channel ended in the middle of a frame.
    #[error("the channel failed")]
    Io(#[from] io::Error),
}

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Call or channel number; 0 where the kind needs none.
    pub channel: u32,
    /// Bytes of payload that follow.
    pub length: u32,
}

impl Header {
    /// Bytes that follow the header: the payload and the frame's last byte.
    pub fn rest_bytes(self) -> usize {
        self.length as usize + 1
    }

    /// The header as it travels.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = PROTOCOL_VERSION;
        bytes[3] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.channel.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Reads a header, believing nothing.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let [m0, m1, version, kind, c0, c1, c2, c3, l0, l1, l2, l3, reserved @ ..] = *bytes;
        if [m0, m1] != MAGIC {
            return Err(FrameError::Magic([m0, m1]));
        }
        if version != PROTOCOL_VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = Kind::from_byte(kind).ok_or(FrameError::Kind(kind))?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if length as usize > FRAME_PAYLOAD_BYTES_MAX {
            return Err(FrameError::Length(length));
        }
        if reserved != [0; 4] {
            return Err(FrameError::Reserved);
        }
        Ok(Header { kind, channel: u32::from_le_bytes([c0, c1, c2, c3]), length })
    }
}

/// A whole frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Call or channel number; 0 where the kind needs none.
    pub channel: u32,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame with a payload.
    pub fn new(kind: Kind, channel: u32, payload: Vec<u8>) -> Frame {
        Frame { kind, channel, payload }
    }

    /// The header that goes before the payload. The payload must not be larger than [`FRAME_PAYLOAD_BYTES_MAX`].
    pub fn header(&self) -> Header {
        debug_assert!(self.payload.len() <= FRAME_PAYLOAD_BYTES_MAX);
        Header { kind: self.kind, channel: self.channel, length: self.payload.len() as u32 }
    }

    /// The whole frame in one buffer, for a single write.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.payload.len() + 1);
        bytes.extend_from_slice(&self.header().encode());
        bytes.extend_from_slice(&self.payload);
        bytes.push(FRAME_END);
        bytes
    }

    /// The frame of this header, from the payload and last byte that came behind it.
    pub fn decode(header: Header, mut rest: Vec<u8>) -> Result<Frame, FrameError> {
        if rest.pop() != Some(FRAME_END) || rest.len() != header.length as usize {
            return Err(FrameError::Cut(header.kind));
        }
        Ok(Frame { kind: header.kind, channel: header.channel, payload: rest })
    }
}

/// Reads one frame; `Ok(None)` when the channel ended at a frame boundary.
pub fn read_frame(reader: &mut impl Read) -> Result<Option<Frame>, FrameError> {
    let mut bytes = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < HEADER_BYTES {
        match reader.read(&mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    let header = Header::decode(&bytes)?;
    let mut rest = vec![0; header.rest_bytes()];
    reader.read_exact(&mut rest)?;
    Frame::decode(header, rest).map(Some)
}

/// Writes one frame whole.
pub fn write_frame(writer: &mut impl Write, frame: &Frame) -> Result<(), FrameError> {
    Ok(writer.write_all(&frame.encode())?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_kind() -> impl Strategy<Value = Kind> {
        any::<u8>().prop_filter_map("a kind", Kind::from_byte)
    }

    proptest! {
        #[test]
        fn a_frame_survives_the_round_trip(kind in any_kind(), channel: u32, payload in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let frame = Frame { kind, channel, payload };
            let bytes = frame.encode();
            prop_assert_eq!(read_frame(&mut bytes.as_slice()).unwrap(), Some(frame));
        }

        #[test]
        fn nonsense_never_panics_nor_allocates_without_bound(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_frame(&mut bytes.as_slice());
        }

        #[test]
        fn a_cut_frame_is_an_error(channel: u32, payload in proptest::collection::vec(any::<u8>(), 1..100), cut in 1usize..16) {
            let bytes = Frame::new(Kind::Reply, channel, payload).encode();
            let cut = bytes.len() - cut.min(bytes.len() - 1);
            prop_assert!(matches!(read_frame(&mut &bytes[..cut]), Err(FrameError::Io(_))));
        }
    }

    proptest! {
        #[test]
        fn a_cut_frame_completed_by_padding_is_never_taken(
            kind in any_kind(),
            channel: u32,
            payload in proptest::collection::vec(any::<u8>(), 0..2000),
            cut: prop::sample::Index,
        ) {
            let bytes = Frame { kind, channel, payload }.encode();
            let cut = cut.index(bytes.len());
            let mut stream = bytes[..cut].to_vec();
            stream.resize(cut + PADDING_BYTES, 0);
            let mut stream = stream.as_slice();
            prop_assert!(matches!(
                read_frame(&mut stream),
                Err(FrameError::Magic(_) | FrameError::Version(_) | FrameError::Kind(_) | FrameError::Cut(_))
            ));
        }
    }

    #[test]
    fn padding_completes_the_longest_frame() {
        let bytes = Frame::new(Kind::HostData, 1, vec![1; FRAME_PAYLOAD_BYTES_MAX]).encode();
        assert_eq!(bytes.len(), PADDING_BYTES);
        for cut in [1, HEADER_BYTES, bytes.len() / 2, bytes.len() - 1] {
            let mut stream = bytes[..cut].to_vec();
            stream.resize(cut + PADDING_BYTES, 0);
            let mut rest = stream.as_slice();
            assert!(matches!(read_frame(&mut rest), Err(FrameError::Magic(_) | FrameError::Cut(_))), "{cut}");
        }
    }

    #[test]
    fn every_broken_header_is_named() {
        let good = Header { kind: Kind::Reply, channel: 7, length: 3 }.encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Header::decode(&bytes)
        };
        assert!(matches!(with(0, 0), Err(FrameError::Magic(_))));
        assert!(matches!(with(2, 9), Err(FrameError::Version(9))));
        assert!(matches!(with(3, 0x7f), Err(FrameError::Kind(0x7f))));
        assert!(matches!(with(11, 0xff), Err(FrameError::Length(_))));
        assert!(matches!(with(15, 1), Err(FrameError::Reserved)));
    }
}
