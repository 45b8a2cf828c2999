//! Connections to programs that listen on loopback alone: both ways, with their ends, for the host and nobody else, and
//! closed when the host is another one.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use remuda_guest_proto::*;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::host::*;

/// Where the host of these tests connects from.
const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);

fn asked(host: &mut Host, port: u16) -> Result<u16, AgentError> {
    let call = host.next_call();
    host.request(call, &Request::Connect { port, from: FROM });
    match host.reply(call)? {
        Reply::Listening { port } => Ok(port),
        other => panic!("{other:?}"),
    }
}

/// A connection to the agent from an address of this machine's.
fn from(address: Ipv4Addr, port: u16) -> std::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((address, 0)))?;
    connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn program() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn accepted(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn bytes_go_both_ways_and_each_end_is_told() {
    let mut host = Host::bound();
    let (listener, port) = program();
    let at = asked(&mut host, port).unwrap();
    let mut program = accepted(&listener);
    let mut outside = from(FROM, at).unwrap();
    let sent: Vec<u8> = (0..1 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    let writing = {
        let (mut outside, sent) = (outside.try_clone().unwrap(), sent.clone());
        std::thread::spawn(move || {
            outside.write_all(&sent).unwrap();
            outside.shutdown(std::net::Shutdown::Write).unwrap();
        })
    };
    let mut came = Vec::new();
    program.read_to_end(&mut came).unwrap();
    assert!(came == sent, "{} bytes came", came.len());
    writing.join().unwrap();
    // The other way is still open.
    program.write_all(b"answer").unwrap();
    drop(program);
    let mut answer = String::new();
    outside.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    assert!(from(FROM, at).is_err(), "it listened for one connection");
}

#[test]
fn where_nothing_listens_that_is_told() {
    let mut host = Host::bound();
    let (listener, port) = program();
    drop(listener);
    assert_eq!(asked(&mut host, port).unwrap_err().kind, AgentErrorKind::NotFound);
    assert_eq!(asked(&mut host, 0).unwrap_err().kind, AgentErrorKind::Invalid);
}

#[test]
fn nobody_but_the_host_is_let_through() {
    let mut host = Host::bound();
    let (listener, port) = program();
    let at = asked(&mut host, port).unwrap();
    let mut program = accepted(&listener);
    let mut stranger = from(Ipv4Addr::new(127, 0, 0, 8), at).unwrap();
    // Turned away: cut or reset.
    assert!(matches!(stranger.read(&mut [0]), Ok(0) | Err(_)));
    let mut outside = from(FROM, at).unwrap();
    outside.write_all(b"host").unwrap();
    let mut word = [0; 4];
    program.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"host");
}

#[test]
fn with_another_host_what_was_open_is_closed() {
    let mut host = Host::bound();
    let (listener, port) = program();
    let at = asked(&mut host, port).unwrap();
    let mut program = accepted(&listener);
    let mut outside = from(FROM, at).unwrap();
    // Both sides are held by the agent once something went through.
    outside.write_all(b"x").unwrap();
    program.read_exact(&mut [0]).unwrap();
    host.bind(&[]);
    assert!(matches!(program.read(&mut [0]), Ok(0) | Err(_)));
    assert!(matches!(outside.read(&mut [0]), Ok(0) | Err(_)));
    let at = asked(&mut host, port).unwrap();
    let mut again = accepted(&listener);
    from(FROM, at).unwrap().write_all(b"y").unwrap();
    again.read_exact(&mut [0]).unwrap();
}
