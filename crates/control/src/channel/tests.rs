//! Channels that are taken over, with real FIFOs and a guest's side that follows a script.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use remuda_engine::OomAlarm;
use remuda_guest_proto::{HEADER_BYTES, PADDING_BYTES, read_frame, write_frame};
use tokio::net::unix::pipe;

use super::*;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A pair of FIFOs, which keep what is in them as long as the guest's ends are open.
struct Fifos {
    dir: tempfile::TempDir,
    into: File,
    out: File,
}

fn both_ways(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

impl Fifos {
    fn make() -> Fifos {
        let dir = tempfile::tempdir().unwrap();
        for name in ["in", "out"] {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join(name), mode).unwrap();
        }
        let (into, out) = (both_ways(&dir.path().join("in")), both_ways(&dir.path().join("out")));
        Fifos { dir, into, out }
    }

    /// A server's ends, by path.
    fn open(&self) -> Channel {
        let options = || {
            let mut options = pipe::OpenOptions::new();
            options.read_write(true);
            options
        };
        Channel::start(ChannelEnds {
            to_guest: options().open_sender(self.dir.path().join("in")).unwrap(),
            from_guest: options().open_receiver(self.dir.path().join("out")).unwrap(),
            oom: OomAlarm::default(),
        })
    }
}

/// Reads up to a whole bind and answers it, as an agent does that was in the middle of a frame.
fn answer_a_bind(into: &mut File, out: &mut File) {
    let mut heard = Vec::new();
    let mut byte = [0; 4096];
    loop {
        let got = into.read(&mut byte).unwrap();
        // Padding is zeros, and a frame begins with none.
        let begin = if heard.is_empty() { byte[..got].iter().position(|b| *b != 0).unwrap_or(got) } else { 0 };
        heard.extend_from_slice(&byte[begin..got]);
        let Ok(Some(frame)) = read_frame(&mut heard.as_slice()) else { continue };
        let Ok(Request::Bind { nonce, .. }) = serde_json::from_slice(&frame.payload) else { panic!("{frame:?}") };
        let bound =
            Reply::Bound(Bound { agent: "test".into(), executions: Vec::new(), calls: remuda_guest_proto::CALLS });
        write_frame(out, &Frame::new(Kind::Synced, 0, nonce.to_vec())).unwrap();
        reply(out, frame.channel, bound);
        return;
    }
}

fn reply(out: &mut File, call: u32, reply: Reply) {
    let payload = serde_json::to_vec(&ReplyResult::Ok(reply)).unwrap();
    write_frame(out, &Frame::new(Kind::Reply, call, payload)).unwrap();
}

/// Answers one call that is asked in step.
fn answer_a_ping(into: &mut File, out: &mut File) {
    let frame = read_frame(into).unwrap().unwrap();
    assert_eq!(serde_json::from_slice::<Request>(&frame.payload).unwrap(), Request::Ping);
    reply(out, frame.channel, Reply::Done);
}

/// The next call, whatever is told in between.
fn next_request(into: &mut File) -> Frame {
    loop {
        let frame = read_frame(into).unwrap().unwrap();
        if frame.kind == Kind::Request {
            return frame;
        }
    }
}

fn identity() -> Bind {
    Bind {
        sandbox: "c1@2026-10-08T12:00:00.000Z".into(),
        uid: "u".into(),
        hostname: "c1".into(),
        machine_id: "0".repeat(32),
        snapshot: None,
        now_unix_ms: 0,
        executions: Vec::new(),
        processes_max: 1,
    }
}

async fn take_over(fifos: &Fifos) {
    let channel = fifos.open();
    tokio::time::timeout(PATIENCE, channel.rebind(identity())).await.expect("it never came into step").unwrap();
    let pong = tokio::time::timeout(PATIENCE, channel.call(Request::Ping)).await.expect("no answer").unwrap();
    assert_eq!(pong, Reply::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_comes_into_step_wherever_the_guests_last_frame_was_cut() {
    let old = [
        Frame::new(Kind::GuestData, 4, b"\x00\x00\x00\x00\x00\x00\x00\x00\x01output".to_vec()).encode(),
        Frame::new(Kind::Synced, 0, vec![3; 16]).encode(),
        // An answer to a call of the dead server's, under a number that the new one uses too.
        Frame::new(Kind::Reply, 2, br#"{"Err":{"kind":"failed","message":"old"}}"#.to_vec()).encode(),
    ]
    .concat();
    for cut in 0..=old.len() {
        let mut fifos = Fifos::make();
        fifos.out.write_all(&old[cut..]).unwrap();
        let (mut into, mut out) = (fifos.into.try_clone().unwrap(), fifos.out.try_clone().unwrap());
        let guest = std::thread::spawn(move || {
            answer_a_bind(&mut into, &mut out);
            answer_a_ping(&mut into, &mut out);
        });
        take_over(&fifos).await;
        guest.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_reads_while_it_writes() {
    let mut fifos = Fifos::make();
    // Half a frame, as much as fits, that its server could not write to the end.
    let half = Frame::new(Kind::HostData, 9, vec![1; 1 << 20]).encode();
    rustix::fs::fcntl_setfl(&fifos.into, rustix::fs::OFlags::NONBLOCK).unwrap();
    let filled = fifos.into.write(&half).unwrap();
    assert!((HEADER_BYTES..half.len()).contains(&filled));
    rustix::fs::fcntl_setfl(&fifos.into, rustix::fs::OFlags::empty()).unwrap();
    let (mut into, mut out) = (fifos.into.try_clone().unwrap(), fifos.out.try_clone().unwrap());
    let guest = std::thread::spawn(move || {
        // It says more than fits before it hears anything again.
        let output = Frame::new(Kind::GuestData, 4, vec![7; 300_000]).encode();
        for _ in 0..10 {
            out.write_all(&output).unwrap();
        }
        // Padding completes the half frame, and that shows.
        let mut rest = vec![0; half.len()];
        into.read_exact(&mut rest).unwrap();
        assert_eq!(rest.last(), Some(&0));
        let mut padding = vec![1; PADDING_BYTES - (half.len() - filled)];
        into.read_exact(&mut padding).unwrap();
        assert!(padding.iter().all(|byte| *byte == 0));
        answer_a_bind(&mut into, &mut out);
        answer_a_ping(&mut into, &mut out);
    });
    take_over(&fifos).await;
    guest.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_is_cut_behind_the_beginning_breaks_the_channel() {
    let fifos = Fifos::make();
    let (mut into, mut out) = (fifos.into.try_clone().unwrap(), fifos.out.try_clone().unwrap());
    let guest = std::thread::spawn(move || {
        answer_a_bind(&mut into, &mut out);
        let whole = Frame::new(Kind::GuestEnd, 4, Vec::new()).encode();
        out.write_all(&whole[..whole.len() - 1]).unwrap();
        out.write_all(&whole).unwrap();
    });
    let channel = fifos.open();
    channel.rebind(identity()).await.unwrap();
    tokio::time::timeout(PATIENCE, channel.broken()).await.expect("it was taken for a frame");
    assert!(channel.why_broken().unwrap().contains("broke off"), "{:?}", channel.why_broken());
    guest.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_files_that_was_given_up_keeps_its_place_until_the_agents_last_word() {
    let fifos = Fifos::make();
    let (mut into, mut out) = (fifos.into.try_clone().unwrap(), fifos.out.try_clone().unwrap());
    let (filled, has_filled) = tokio::sync::oneshot::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let guest = std::thread::spawn(move || {
        answer_a_bind(&mut into, &mut out);
        let calls: Vec<Frame> = (0..places::FILE_CALLS_MAX).map(|_| read_frame(&mut into).unwrap().unwrap()).collect();
        filled.send(()).unwrap();
        // Other calls need no place.
        let ping = next_request(&mut into);
        reply(&mut out, ping.channel, Reply::Done);
        goes_on.recv().unwrap();
        // A download's answer is not its last word, but a refusal is, and so is its end.
        let refusal = AgentError { kind: remuda_guest_proto::AgentErrorKind::Denied, message: String::new() };
        let payload = serde_json::to_vec(&ReplyResult::Err(refusal)).unwrap();
        write_frame(&mut out, &Frame::new(Kind::Reply, calls[0].channel, payload)).unwrap();
        reply(&mut out, calls[1].channel, Reply::Done);
        write_frame(&mut out, &Frame::new(Kind::GuestEnd, calls[1].channel, Vec::new())).unwrap();
        for _ in 0..2 {
            let next = next_request(&mut into);
            reply(&mut out, next.channel, Reply::Done);
        }
    });
    let channel = fifos.open();
    channel.rebind(identity()).await.unwrap();
    let read = || Request::ReadFile { path: "/f".into(), user: "user".into() };
    let stat = || Request::Stat { path: "/f".into(), user: "user".into(), digest: false };
    let mut given_up: Vec<_> = (0..places::FILE_CALLS_MAX)
        .map(|_| {
            let (channel, request) = (channel.clone(), read());
            tokio::spawn(async move { Download::start(&channel, request).await.map(drop) })
        })
        .collect();
    has_filled.await.unwrap();
    for call in given_up.drain(..) {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    // Nobody waits for them any more, and still there is no room.
    let late = [channel.clone(), channel.clone()].map(|channel| {
        let request = stat();
        tokio::spawn(async move { channel.call(request).await })
    });
    let pong = tokio::time::timeout(PATIENCE, channel.call(Request::Ping)).await.unwrap().unwrap();
    assert_eq!(pong, Reply::Done);
    assert!(late.iter().all(|call| !call.is_finished()));
    go_on.send(()).unwrap();
    for call in late {
        assert_eq!(tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap().unwrap(), Reply::Done);
    }
    guest.join().unwrap();
}

/// A call that an old agent does not know, or whose conditions it would not see, is not sent to it.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_agent_is_asked_for_nothing_that_it_does_not_know() {
    let fifos = Fifos::make();
    let channel = fifos.open();
    let (mut into, mut out) = (fifos.into.try_clone().unwrap(), fifos.out.try_clone().unwrap());
    let guest = std::thread::spawn(move || {
        let frame = read_frame(&mut into).unwrap().unwrap();
        let Ok(Request::Bind { nonce, .. }) = serde_json::from_slice(&frame.payload) else { panic!("{frame:?}") };
        write_frame(&mut out, &Frame::new(Kind::Synced, 0, nonce.to_vec())).unwrap();
        // As the first agents answered.
        let bound = br#"{"Ok":{"reply":"bound","agent":"0.1.0","executions":[]}}"#.to_vec();
        write_frame(&mut out, &Frame::new(Kind::Reply, frame.channel, bound)).unwrap();
        // The next call that comes is the one that it knows.
        answer_a_ping(&mut into, &mut out);
    });
    channel.bind(identity()).await.unwrap();
    let (path, user) = (String::from("/f"), String::from("user"));
    let new = remuda_guest_proto::Contents::Any;
    let conditions = remuda_guest_proto::Conditions { matches: None, matches_not: Some(new) };
    for request in [
        Request::Move { from: path.clone(), to: path.clone(), user: user.clone(), overwrite: true, effect: 1 },
        Request::Stat { path: path.clone(), user: user.clone(), digest: true },
        Request::WriteFile { path, user, mode: None, parents: false, conditions, effect: 2 },
    ] {
        assert!(matches!(channel.call(request).await, Err(ChannelError::Outdated)));
    }
    assert_eq!(channel.call(Request::Ping).await.unwrap(), Reply::Done);
    guest.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_upload_brings_never_comes_before_its_call() {
    let fifos = Fifos::make();
    let (mut into, mut out) = (fifos.into.try_clone().unwrap(), fifos.out.try_clone().unwrap());
    let (filled, has_filled) = tokio::sync::oneshot::channel();
    let guest = std::thread::spawn(move || {
        answer_a_bind(&mut into, &mut out);
        let calls: Vec<Frame> = (0..places::FILE_CALLS_MAX).map(|_| read_frame(&mut into).unwrap().unwrap()).collect();
        filled.send(()).unwrap();
        // By the time that this is heard, whatever was sent too early would have been.
        let ping = read_frame(&mut into).unwrap().unwrap();
        assert_eq!(ping.kind, Kind::Request, "{ping:?}");
        reply(&mut out, ping.channel, Reply::Done);
        reply(&mut out, calls[0].channel, Reply::Done);
        let frames = [(); 3].map(|()| read_frame(&mut into).unwrap().unwrap());
        assert_eq!(frames.each_ref().map(|frame| frame.kind), [Kind::Request, Kind::HostData, Kind::HostEnd]);
        reply(&mut out, frames[0].channel, Reply::Done);
        for call in &calls[1..] {
            reply(&mut out, call.channel, Reply::Done);
        }
    });
    let channel = fifos.open();
    channel.rebind(identity()).await.unwrap();
    let stat = || Request::Stat { path: "/f".into(), user: "user".into(), digest: false };
    for _ in 0..places::FILE_CALLS_MAX {
        let (channel, request) = (channel.clone(), stat());
        tokio::spawn(async move { channel.call(request).await });
    }
    has_filled.await.unwrap();
    let (path, user) = (String::from("/f"), String::from("user"));
    let conditions = remuda_guest_proto::Conditions::default();
    let write = Request::WriteFile { path, user, mode: None, parents: false, conditions, effect: 1 };
    let body: crate::stream::ByteStream = Box::pin(futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"x"))]));
    // Polled first, so that whatever it sends without a place is ahead of the other call.
    let both = async { tokio::join!(biased; Upload::run(&channel, write, body), channel.call(Request::Ping)) };
    let (written, pong) = tokio::time::timeout(PATIENCE, both).await.expect("no answer");
    assert_eq!((written.unwrap(), pong.unwrap()), (Reply::Done, Reply::Done));
    guest.join().unwrap();
}
