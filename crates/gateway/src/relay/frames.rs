//! Watches the frames of a WebSocket go by: how long each is, and whether one has just ended. Must look at nothing that is
//! in them, and change nothing.

/// Longest head of a frame: two bytes, eight of length, four of a mask.
const HEAD_BYTES_MAX: usize = 14;

/// Where one direction of a WebSocket stands.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Longest frame that goes by, in bytes.
    bytes_max: u64,
    head: [u8; HEAD_BYTES_MAX],
    /// Bytes of the head that were seen; none between frames.
    seen: usize,
    /// Bytes of the frame that are still to come after its head.
    left: u64,
}

/// A frame is longer than it may be. What came before it may go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong {
    /// Bytes before the frame's head ended.
    pub(crate) at: usize,
}

impl Frames {
    pub(crate) fn new(bytes_max: u64) -> Frames {
        Frames { bytes_max, head: [0; HEAD_BYTES_MAX], seen: 0, left: 0 }
    }

    /// Whether the last frame is over and the next has not begun.
    pub(crate) fn between(&self) -> bool {
        self.seen == 0 && self.left == 0
    }

    /// Sees these bytes go by.
    pub(crate) fn see(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                let here = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - at);
                self.left -= here as u64;
                at += here;
                continue;
            }
            self.head[self.seen] = bytes[at];
            self.seen += 1;
            at += 1;
            if let Some(length) = self.length() {
                if length > self.bytes_max {
                    return Err(TooLong { at });
                }
                (self.seen, self.left) = (0, length);
            }
        }
        Ok(())
    }

    /// How long the frame is whose head is complete.
    fn length(&self) -> Option<u64> {
        let second = *self.head[..self.seen].get(1)?;
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if self.seen < 2 + extended + mask {
            return None;
        }
        let number = self.head[2..2 + extended].iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
        Some(if extended == 0 { u64::from(second & 0x7f) } else { number })
    }
}

/// A frame that closes a WebSocket, as a server sends it.
pub(crate) fn close(code: u16, reason: &str) -> Vec<u8> {
    // A control frame has 125 bytes at most.
    let reason = &reason.as_bytes()[..reason.len().min(123)];
    let mut frame = vec![0x88, u8::try_from(2 + reason.len()).unwrap_or(125)];
    frame.extend(code.to_be_bytes());
    frame.extend(reason);
    frame
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut bytes = vec![0x82];
        match length {
            0..=125 => bytes.push(mask | length as u8),
            126..=0xffff => {
                bytes.push(mask | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(vec![0xff; if masked { 4 } else { 0 }]);
        bytes.extend(vec![0xfe; length]);
        bytes
    }

    proptest! {
        #[test]
        fn frames_are_followed_however_they_are_cut(
            lengths in prop::collection::vec((0_usize..70_000, any::<bool>()), 1..4),
            cut in 1_usize..5_000,
        ) {
            let all: Vec<u8> = lengths.iter().flat_map(|(length, masked)| frame(*length, *masked)).collect();
            let mut frames = Frames::new(70_000);
            for piece in all.chunks(cut) {
                prop_assert_eq!(frames.see(piece), Ok(()));
            }
            prop_assert!(frames.between());
            prop_assert_eq!(frames.see(&all[..1]), Ok(()));
            prop_assert!(!frames.between());
        }

        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1_usize..20) {
            let mut frames = Frames::new(1 << 20);
            for piece in bytes.chunks(cut) {
                if frames.see(piece).is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_told_at_its_head() {
        let mut frames = Frames::new(200);
        assert_eq!(frames.see(&frame(200, true)), Ok(()));
        assert_eq!(frames.see(&frame(201, false)), Err(TooLong { at: 4 }));
        let mut frames = Frames::new(200);
        let huge = [0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        assert_eq!(frames.see(&huge), Err(TooLong { at: 14 }));
    }

    #[test]
    fn a_closing_frame_is_whole() {
        let bytes = close(1008, &"x".repeat(200));
        assert_eq!((bytes.len(), bytes[1]), (127, 125));
        let mut frames = Frames::new(200);
        frames.see(&bytes).unwrap();
        assert!(frames.between());
    }
}
