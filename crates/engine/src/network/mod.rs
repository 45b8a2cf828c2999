//! Network namespaces of sandboxes.
//!
//! Each sandbox has two: an *inner* one, which only holds `eth0` for the sentry's packet socket, at the same address
//! and MAC in all of them, so that a restored machine finds the network it was captured with; and an *outer* one with
//! the other end of the pair, in which the server opens its sockets, and from which there is a way out ([`egress`]).

pub(crate) mod egress;
pub(crate) mod nft;

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use remuda_types::Uid;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::error::{EngineError, Result, Tried};
use egress::{Egress, Own};

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
    Connect { namespaces: Namespaces, wanted: Wanted, done: oneshot::Sender<Result<(OwnedFd, OwnedFd)>> },
    Open { outer: OwnedFd, done: oneshot::Sender<Result<()>> },
    Part { uid: Uid, done: oneshot::Sender<Result<()>> },
}

/// How a sandbox is connected.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Whose network it is.
    pub uid: Uid,
    /// Whether it gets a way out, which is closed at first.
    pub egress: bool,
}

/// The one thread that moves between namespaces to build networks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NetworkBuilder {
    orders: mpsc::Sender<Order>,
}

impl NetworkBuilder {
    /// Starts the thread; it ends when the last clone is dropped. With `egress` sandboxes can have ways out; the host is
    /// set up for them ([`egress::HostSide`]).
    pub(crate) fn start(egress: Option<Egress>, own: Own) -> Result<NetworkBuilder> {
        let (orders, inbox) = mpsc::channel::<Order>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.tried(|| "make a runtime for the network thread".into())?;
        // Opened here, where the thread is before it goes anywhere: this one stays in the host's namespace.
        let host = {
            let _inside = runtime.enter();
            let (connection, handle, _) = rtnetlink::new_connection().tried(|| "open netlink".into())?;
            runtime.spawn(connection);
            handle
        };
        let builder = Builder { host, own, egress };
        std::thread::Builder::new()
            .name("remuda-network".into())
            .spawn(move || {
                for order in inbox {
                    // The one who asked may have gone away; then the namespaces go with the descriptors and pins.
                    match order {
                        Order::Make { pin_inner, pin_outer, done } => drop(done.send(make(&pin_inner, &pin_outer))),
                        Order::Connect { namespaces, wanted, done } => {
                            let connected = runtime.block_on(builder.connect(&namespaces, &wanted));
                            drop(done.send(connected.map(|socket| (namespaces.outer, socket))));
                        }
                        Order::Open { outer, done } => drop(done.send(runtime.block_on(builder.open(&outer)))),
                        Order::Part { uid, done } => drop(done.send(runtime.block_on(builder.part(&uid)))),
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

    /// Joins the two by a pair of interfaces, and the outer one to the host if that is wanted. Returns the outer
    /// namespace, and the packet socket on the inner `eth0` that the sentry will speak through.
    pub async fn connect(&self, namespaces: Namespaces, wanted: Wanted) -> Result<(OwnedFd, OwnedFd)> {
        self.send(|done| Order::Connect { namespaces, wanted, done }).await
    }

    /// Opens the way out of a sandbox that was given one, by its outer namespace. May be repeated.
    pub async fn open(&self, outer: OwnedFd) -> Result<()> {
        self.send(|done| Order::Open { outer, done }).await
    }

    /// Takes a sandbox's way out away, if it has one.
    pub async fn part(&self, uid: Uid) -> Result<()> {
        self.send(|done| Order::Part { uid, done }).await
    }

    async fn send<T>(&self, order: impl FnOnce(oneshot::Sender<Result<T>>) -> Order) -> Result<T> {
        let ended = || EngineError::NotReady { what: "the network thread has ended; restart the server".into() };
        let (done, answer) = oneshot::channel();
        self.orders.send(order(done)).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

/// What the network thread has.
struct Builder {
    /// Netlink of the host's own namespace.
    host: Handle,
    own: Own,
    egress: Option<Egress>,
}

impl Builder {
    /// Runs on the network thread, which moves from namespace to namespace and stays in the last one.
    ///
    /// One call makes both interfaces where they belong. To make them in one place and move one takes the kernel 15 ms,
    /// in which it waits for all readers, and in which nobody on the machine gets a network namespace or an interface.
    async fn connect(&self, namespaces: &Namespaces, wanted: &Wanted) -> Result<OwnedFd> {
        let Namespaces { inner, outer } = namespaces;
        let egress = self.egress.as_ref().filter(|_| wanted.egress);
        let own = match egress {
            Some(_) => {
                let joined = egress::join(&self.host, outer, &self.own, wanted.uid.as_str()).await;
                Some(joined.map_err(std::io::Error::other).tried(|| "join a sandbox's network to the host".into())?)
            }
            None => None,
        };
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
            let failed = std::io::Error::other;
            netlink.link().add(pair).execute().await.map_err(failed)?;
            netlink.address().add(INTERFACE_INDEX, HOST_ADDRESS.into(), PREFIX_LEN).execute().await.map_err(failed)?;
            let dial_from = dial_address(&wanted.uid);
            netlink.address().add(INTERFACE_INDEX, dial_from.into(), 32).execute().await.map_err(failed)?;
            match egress.zip(own) {
                Some((egress, own)) => egress::fence(&netlink, own, egress).await,
                None => Ok(()),
            }
        })
        .await
        .tried(|| "set up the outer end of a sandbox's network".into())?;
        enter(inner)?;
        // While it is made it has no other end yet, without which it can't be up.
        let up = LinkUnspec::new_with_index(INTERFACE_INDEX).up().build();
        with_netlink(async |netlink| netlink.link().set(up).execute().await.map_err(std::io::Error::other))
            .await
            .tried(|| "set up the inner end of a sandbox's network".into())?;
        packet_socket(INTERFACE_INDEX).tried(|| "open a packet socket on a sandbox's eth0".into())
    }

    async fn part(&self, uid: &Uid) -> Result<()> {
        let parted = egress::part(&self.host, &self.own, uid.as_str()).await;
        parted.map_err(std::io::Error::other).tried(|| format!("take away the way out of {uid}"))
    }

    async fn open(&self, outer: &OwnedFd) -> Result<()> {
        enter(outer)?;
        with_netlink(async |netlink| egress::open(&netlink).await.map_err(std::io::Error::other))
            .await
            .tried(|| "open a sandbox's way out".into())
    }
}

fn make(pin_inner: &Path, pin_outer: &Path) -> Result<Namespaces> {
    Ok(Namespaces { inner: fresh_namespace(pin_inner)?, outer: fresh_namespace(pin_outer)? })
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
async fn with_netlink<T>(work: impl AsyncFnOnce(Handle) -> std::io::Result<T>) -> std::io::Result<T> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let pump = tokio::spawn(connection);
    let result = work(handle).await;
    pump.abort();
    result
}

async fn index(netlink: &Handle, name: &str) -> std::result::Result<u32, rtnetlink::Error> {
    use futures_util::TryStreamExt;
    let mut links = netlink.link().get().match_name(name.to_owned()).execute();
    let link: Option<LinkMessage> = links.try_next().await?;
    Ok(link.map_or(0, |l| l.header.index))
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
///
/// The routes are what the guest knows of the world: with `egress` all of it, else the addresses that it is dialled from,
/// so that everything else is unreachable at once and not after a time-out.
pub(crate) fn links(egress: bool) -> Value {
    let route = |ip: &str, mask: &[u8], gateway: &str| json!({ "Destination": { "IP": ip, "Mask": base64(mask) }, "Gateway": gateway });
    let none = json!({ "Route": { "Destination": { "IP": "", "Mask": null }, "Gateway": "" }, "Name": "" });
    let guest = GUEST_ADDRESS.to_string();
    let network = Ipv4Addr::from(u32::from(GUEST_ADDRESS) & (u32::MAX << (32 - PREFIX_LEN)));
    let mask = |bits: u8| (u32::MAX << (32 - bits)).to_be_bytes();
    let mut routes = vec![route(&network.to_string(), &mask(PREFIX_LEN), "")];
    if !egress {
        let bits = (32 - DIAL_HOST_BITS) as u8;
        routes.push(route(&DIAL_NETWORK.to_string(), &mask(bits), &HOST_ADDRESS.to_string()));
    }
    let gateway = json!({ "Route": route("0.0.0.0", &[0, 0, 0, 0], &HOST_ADDRESS.to_string()), "Name": "eth0" });
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
            "Routes": routes,
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
        "Defaultv4Gateway": if egress { gateway } else { none.clone() },
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
        let links = links(true);
        let route = &links["FDBasedLinks"][0]["Routes"][0]["Destination"];
        assert_eq!(route["IP"], "10.254.254.0");
        assert_eq!(route["Mask"], base64(&[255, 255, 255, 252]));
        assert_eq!(links["Defaultv4Gateway"]["Route"]["Gateway"], "10.254.254.1");
    }

    #[test]
    fn without_a_way_out_they_know_nothing_but_who_dials_them() {
        let links = super::links(false);
        assert_eq!(links["Defaultv4Gateway"]["Name"], "");
        let routes = links["FDBasedLinks"][0]["Routes"].as_array().unwrap();
        assert_eq!(routes.len(), 2);
        assert_eq!(routes[1]["Destination"]["IP"], "100.64.0.0");
        assert_eq!(routes[1]["Destination"]["Mask"], base64(&[255, 192, 0, 0]));
    }
}
