//! Network namespaces of sandboxes.
//!
//! Each sandbox has two: an *inner* one, which only holds `eth0` for the sentry's packet socket, at the same address
//! and MAC in all of them, so that a restored machine finds the network it was captured with; and an *outer* one with
//! the other end of the pair, in which the server opens its sockets. Neither has a way out to the world.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use remuda_types::Uid;
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::error::{EngineError, Result, Tried};

/// The guest's address in every sandbox.
pub const GUEST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 254, 254, 2);
/// The server's end of the pair.
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 254, 254, 1);
const PREFIX_LEN: u8 = 30;
/// Network out of which each machine gets an address of its own for the server to dial from (RFC 6598: shared address
/// space, which no guest talks to otherwise), and how many bits of an address it leaves free.
const DIAL_NETWORK: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
const DIAL_HOST_BITS: u32 = 22;
const GUEST_MAC: [u8; 6] = [0x02, 0x72, 0x65, 0x6d, 0x75, 0x02];
/// The host's end has a fixed MAC too: a restored guest still has it in its neighbour table.
const HOST_MAC: [u8; 6] = [0x02, 0x72, 0x65, 0x6d, 0x75, 0x01];
const MTU: u32 = 1500;
/// Number of the interface at either end. A fresh namespace has a few of its own on some kernels, from 1 on.
const INTERFACE_INDEX: u32 = 4096;
/// Buffer of the packet socket each way, in bytes; what runsc itself uses.
const PACKET_BUFFER_BYTES: libc::c_int = 4 << 20;
/// Largest segment the sentry may hand to the host in one piece.
const GSO_BYTES_MAX: u32 = 65_536;

/// The address that the server dials a machine from.
///
/// It differs from machine to machine: a captured guest still knows the ended connections of its source, and from the
/// same address and, by chance, the same port a new connection would be taken for one of those.
pub(crate) fn dial_address(uid: &Uid) -> Ipv4Addr {
    let digest = blake3::hash(uid.as_str().as_bytes());
    let [a, b, c, d, ..] = *digest.as_bytes();
    let host = u32::from_be_bytes([a, b, c, d]) >> (32 - DIAL_HOST_BITS);
    Ipv4Addr::from(u32::from(DIAL_NETWORK) | host.max(1))
}

/// A sandbox's two namespaces, still empty.
#[derive(Debug)]
pub struct Namespaces {
    inner: OwnedFd,
    /// The namespace that the server dials from.
    pub outer: OwnedFd,
}

impl Namespaces {
    /// The namespace that the sentry is started in.
    pub(crate) fn inner(&self) -> &OwnedFd {
        &self.inner
    }
}

enum Order {
    Make { pin_inner: PathBuf, pin_outer: PathBuf, done: oneshot::Sender<Result<Namespaces>> },
    Connect { namespaces: Namespaces, dial_from: Ipv4Addr, done: oneshot::Sender<Result<(OwnedFd, OwnedFd)>> },
}

/// The one thread that moves between namespaces to build networks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NetworkBuilder {
    orders: mpsc::Sender<Order>,
}

impl NetworkBuilder {
    /// Starts the thread; it ends when the last clone is dropped.
    pub fn start() -> Result<Self> {
        let (orders, inbox) = mpsc::channel::<Order>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.tried(|| "make a runtime for the network thread".into())?;
        std::thread::Builder::new()
            .name("remuda-network".into())
            .spawn(move || {
                for order in inbox {
                    // The one who asked may have gone away; then the namespaces go with the descriptors and pins.
                    match order {
                        Order::Make { pin_inner, pin_outer, done } => drop(done.send(make(&pin_inner, &pin_outer))),
                        Order::Connect { namespaces, dial_from, done } => {
                            drop(
                                done.send(
                                    runtime
                                        .block_on(connect(&namespaces, dial_from))
                                        .map(|socket| (namespaces.outer, socket)),
                                ),
                            );
                        }
                    }
                }
            })
            .tried(|| "start the network thread".into())?;
        Ok(NetworkBuilder { orders })
    }

    /// Makes both namespaces and pins them at the two paths, so that they outlive this process.
    pub async fn make(&self, pin_inner: PathBuf, pin_outer: PathBuf) -> Result<Namespaces> {
        self.send(|done| Order::Make { pin_inner, pin_outer, done }).await
    }

    /// Joins the two by a pair of interfaces; the outer end gets `dial_from` too. Returns the outer namespace, and the packet socket on the inner `eth0`
    /// that the sentry will speak through.
    pub async fn connect(&self, namespaces: Namespaces, dial_from: Ipv4Addr) -> Result<(OwnedFd, OwnedFd)> {
        self.send(|done| Order::Connect { namespaces, dial_from, done }).await
    }

    async fn send<T>(&self, order: impl FnOnce(oneshot::Sender<Result<T>>) -> Order) -> Result<T> {
        let ended = || EngineError::NotReady { what: "the network thread has ended; restart the server".into() };
        let (done, answer) = oneshot::channel();
        self.orders.send(order(done)).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

fn make(pin_inner: &Path, pin_outer: &Path) -> Result<Namespaces> {
    Ok(Namespaces { inner: fresh_namespace(pin_inner)?, outer: fresh_namespace(pin_outer)? })
}

/// Runs on the network thread, which moves from namespace to namespace and stays in the last one.
///
/// One call makes both interfaces where they belong. To make them in one place and move one takes the kernel 15 ms, in
/// which it waits for all readers, and in which nobody on the machine gets a network namespace or an interface.
async fn connect(namespaces: &Namespaces, dial_from: Ipv4Addr) -> Result<OwnedFd> {
    let Namespaces { inner, outer } = namespaces;
    enter(outer)?;
    with_netlink(async |netlink| {
        let guest_end = LinkMessageBuilder::<LinkUnspec>::new()
            .name("eth0")
            .index(INTERFACE_INDEX)
            .address(GUEST_MAC.to_vec())
            .setns_by_fd(inner.as_raw_fd())
            .build();
        let pair = LinkMessageBuilder::<LinkVeth>::new("host0", "eth0")
            .set_info_data(InfoData::Veth(InfoVeth::Peer(guest_end)))
            .index(INTERFACE_INDEX)
            .address(HOST_MAC.to_vec())
            .up()
            .build();
        netlink.link().add(pair).execute().await?;
        netlink.address().add(INTERFACE_INDEX, HOST_ADDRESS.into(), PREFIX_LEN).execute().await?;
        netlink.address().add(INTERFACE_INDEX, dial_from.into(), 32).execute().await
    })
    .await
    .tried(|| "set up the outer end of a sandbox's network".into())?;
    enter(inner)?;
    // While it is made it has no other end yet, without which it can't be up.
    let up = LinkUnspec::new_with_index(INTERFACE_INDEX).up().build();
    with_netlink(async |netlink| netlink.link().set(up).execute().await)
        .await
        .tried(|| "set up the inner end of a sandbox's network".into())?;
    packet_socket(INTERFACE_INDEX).tried(|| "open a packet socket on a sandbox's eth0".into())
}

fn enter(namespace: &OwnedFd) -> Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .tried(|| "enter a sandbox's network namespace".into())
}

/// Moves this thread into a namespace of its own and pins that by a bind mount.
fn fresh_namespace(pin: &Path) -> Result<OwnedFd> {
    // SAFETY: a network namespace is taken, nothing that other threads share with this one in memory or descriptors.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.tried(|| "make a network namespace".into())?;
    let namespace = File::open("/proc/thread-self/ns/net").tried(|| "open a new network namespace".into())?;
    File::create(pin).tried(|| format!("make {}", pin.display()))?;
    let link = format!("/proc/self/fd/{}", namespace.as_raw_fd());
    rustix::mount::mount_bind(link, pin).tried(|| format!("pin a network namespace at {}", pin.display()))?;
    Ok(namespace.into())
}

/// A netlink connection belongs to the namespace in which it is opened.
async fn with_netlink<T>(
    work: impl AsyncFnOnce(Handle) -> std::result::Result<T, rtnetlink::Error>,
) -> std::io::Result<T> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let pump = tokio::spawn(connection);
    let result = work(handle).await.map_err(std::io::Error::other);
    pump.abort();
    result
}

/// The socket through which the sentry sends and receives whole Ethernet frames. Made with protocol 0 and given its
/// protocol by `bind`, so that it never sees another interface's packets.
fn packet_socket(interface: u32) -> std::io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: plain system calls; every pointer is to a local of the size that is named, and the descriptor is owned
    // from the moment it exists.
    unsafe {
        let raw = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if raw < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(raw);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = interface as i32;
        let length = size_of::<libc::sockaddr_ll>() as u32;
        if libc::bind(raw, (&raw const address).cast(), length) < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let set = |level: i32, name: i32, value: libc::c_int| {
            let size = size_of::<libc::c_int>() as u32;
            match libc::setsockopt(raw, level, name, (&raw const value).cast(), size) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // linux/if_packet.h; the libc crate lacks it on some targets.
        const PACKET_VNET_HDR: i32 = 15;
        set(libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, PACKET_BUFFER_BYTES)?;
        set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, PACKET_BUFFER_BYTES)?;
        Ok(socket)
    }
}

/// The argument of `Network.CreateLinksAndRoutes`, as runsc's 20240729 builds read it: Go's JSON of its structs, in
/// which masks and MACs are base64.
pub(crate) fn links() -> Value {
    let route = |ip: &str, mask: &[u8], gateway: &str| json!({ "Destination": { "IP": ip, "Mask": base64(mask) }, "Gateway": gateway });
    let none = json!({ "Route": { "Destination": { "IP": "", "Mask": null }, "Gateway": "" }, "Name": "" });
    let guest = GUEST_ADDRESS.to_string();
    let network = Ipv4Addr::from(u32::from(GUEST_ADDRESS) & (u32::MAX << (32 - PREFIX_LEN)));
    json!({
        "LoopbackLinks": [{
            "Name": "lo",
            "Addresses": [{ "Address": "127.0.0.1", "PrefixLen": 8 }],
            "Routes": [route("127.0.0.0", &[255, 0, 0, 0], "")],
            "GVisorGRO": false,
        }],
        "FDBasedLinks": [{
            "Name": "eth0",
            "InterfaceIndex": 0,
            "MTU": MTU,
            "Addresses": [{ "Address": guest, "PrefixLen": PREFIX_LEN }],
            "Routes": [route(&network.to_string(), &(u32::MAX << (32 - PREFIX_LEN)).to_be_bytes(), "")],
            "GSOMaxSize": GSO_BYTES_MAX,
            "GVisorGSOEnabled": false,
            "GVisorGRO": false,
            "TXChecksumOffload": false,
            "RXChecksumOffload": true,
            "LinkAddress": base64(&GUEST_MAC),
            "QDisc": 1,
            "Neighbors": null,
            "NumChannels": 1,
            "ProcessorsPerChannel": 0,
        }],
        "XDPLinks": null,
        "Defaultv4Gateway": { "Route": route("0.0.0.0", &[0, 0, 0, 0], &HOST_ADDRESS.to_string()), "Name": "eth0" },
        "Defaultv6Gateway": none,
        "PCAP": false,
        "LogPackets": false,
        "NATBlob": false,
        // A checkpoint resets connections to the outside instead of refusing. The flag --net-disconnect-ok is the same
        // for runsc's own command line; it is read there, not by the sentry.
        "DisconnectOk": true,
    })
}

/// Standard base64 of the few bytes above.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().enumerate().fold(0u32, |w, (i, b)| w | u32::from(*b) << (16 - 8 * i));
        for i in 0..4 {
            if i <= chunk.len() {
                text.push(ALPHABET[(word >> (18 - 6 * i) & 63) as usize] as char);
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn machines_are_dialled_from_addresses_of_their_own() {
        let address = |n: u8| dial_address(&Uid::from_entropy([n; 20]));
        assert_ne!(address(1), address(2));
        for n in 0..32 {
            assert_eq!(u32::from(address(n)) >> DIAL_HOST_BITS, u32::from(DIAL_NETWORK) >> DIAL_HOST_BITS);
        }
    }

    #[test]
    fn guests_live_in_a_network_of_four_addresses() {
        let links = links();
        let route = &links["FDBasedLinks"][0]["Routes"][0]["Destination"];
        assert_eq!(route["IP"], "10.254.254.0");
        assert_eq!(route["Mask"], base64(&[255, 255, 255, 252]));
    }
}
