//! The way out: guests reach public addresses and one name server, and nothing of this machine or its neighbourhood.
//!
//! ```text
//!  guest ── eth0 ═ host0 ─[ outer namespace: filter, own address ]─ up0 ═ rmd… ─[ host: its address ]─ the internet
//! ```
//!
//! What a guest may reach is decided in its outer namespace, by a table that it has no way to touch. There its packets
//! get an address that no other sandbox has; the host gives them its own. The guest asks `10.254.254.1` for names, on
//! every machine: that leads to the machine's name server. The pair to the host needs no addresses and asks nobody for
//! any, since both ends have one MAC. Its outer end is down, without a route, until [`open`]: a copy says nothing to the
//! world before it knows who it is.
//!
//! On the host there is one table, and forwarding must be on. The last server to go, when no sandbox is left, takes both
//! back; a file says how forwarding was.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::packet_route::route::RouteScope;
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use rustix::fs::{FlockOperation, flock};

use super::nft::{Chain, Hook, Match, Subnet, Verdict, remove_table, replace_table};
use super::{HOST_ADDRESS, INTERFACE_INDEX};
use crate::error::{EngineError, Result, Tried};

/// Name of a sandbox's table. A server's table on the host has its instance behind it.
const TABLE: &str = "remuda";
/// How the host's ends of the ways out are named: this, the server's instance, the sandbox's uid, cut to 15 characters
/// in all, which is what Linux allows.
const PREFIX: &str = "rmd";
const INSTANCE_CHARS: usize = 4;
const UID_CHARS: usize = 8;
/// The other end, in the outer namespace.
const UPLINK: &str = "up0";
/// Both ends have this one: what is sent needs no resolving, and arrives.
const UPLINK_MAC: [u8; 6] = [0x02, 0x72, 0x65, 0x6d, 0x75, 0x03];
/// Addresses of ways out, known on this machine alone (RFC 2544: networks under test, which nobody routes). Each
/// takes the one at its interface's number.
const UPLINKS: Subnet = Subnet::new(Ipv4Addr::new(198, 18, 0, 0), 15);
const DNS_PORT: u16 = 53;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What no guest reaches: everything that is special by the IANA's registry of IPv4 addresses and may be somebody in
/// this machine's neighbourhood. Networks for documentation are nobody's.
const DENIED: [Subnet; 11] = [
    Subnet::new(Ipv4Addr::new(0, 0, 0, 0), 8),
    Subnet::new(Ipv4Addr::new(10, 0, 0, 0), 8),
    Subnet::new(Ipv4Addr::new(100, 64, 0, 0), 10),
    Subnet::new(Ipv4Addr::new(127, 0, 0, 0), 8),
    Subnet::new(Ipv4Addr::new(169, 254, 0, 0), 16),
    Subnet::new(Ipv4Addr::new(172, 16, 0, 0), 12),
    Subnet::new(Ipv4Addr::new(192, 0, 0, 0), 24),
    Subnet::new(Ipv4Addr::new(192, 168, 0, 0), 16),
    UPLINKS,
    Subnet::new(Ipv4Addr::new(224, 0, 0, 0), 4),
    Subnet::new(Ipv4Addr::new(240, 0, 0, 0), 4),
];

const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// Held by every server on this machine that opens ways out.
const LOCK: &str = "/run/lock/remuda-egress.lock";
/// There while forwarding is on because of us.
const WAS_OFF: &str = "/run/remuda-egress.forwarding-was-off";

/// What guests may reach.
#[derive(Debug, Clone)]
pub struct Egress {
    /// Where questions for names go.
    pub resolver: Ipv4Addr,
    /// Networks that are let through although they are private: a mirror of packages in the house, for example.
    pub allowed: Vec<Subnet>,
}

impl Egress {
    /// With the name server that this machine uses, as `resolv.conf` has it.
    ///
    /// # Errors
    /// It has none that can be reached from elsewhere than this machine's own loopback.
    pub fn of_this_machine() -> Result<Egress> {
        // systemd's stub listens on loopback alone; its own servers are in the second file.
        let files = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];
        let found = files.iter().find_map(|path| name_server(&fs::read_to_string(path).ok()?));
        let resolver = found.ok_or_else(|| EngineError::NotReady {
            what:
                "/etc/resolv.conf names no IPv4 name server that guests could ask; name one with `--resolver ADDRESS`"
                    .into(),
        })?;
        Ok(Egress { resolver, allowed: Vec::new() })
    }
}

/// The first name server that is not on loopback.
fn name_server(text: &str) -> Option<Ipv4Addr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then_some(words.next()?)?.parse::<Ipv4Addr>().ok()
    });
    servers.into_iter().find(|address| !address.is_loopback() && !address.is_unspecified())
}

/// The host's part, as long as this server has ways out.
#[derive(Debug)]
pub(crate) struct HostSide {
    lock: File,
    own: Own,
}

/// What is one server's on the host.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    /// How its links begin.
    prefix: String,
    table: String,
}

impl Own {
    /// That of the server of this instance.
    pub(crate) fn of(instance: &str) -> Own {
        let prefix = PREFIX.chars().chain(instance.chars().take(INSTANCE_CHARS)).collect();
        Own { prefix, table: format!("{TABLE}-{instance}") }
    }

    fn link(&self, uid: &str) -> String {
        self.prefix.chars().chain(uid.chars().take(UID_CHARS)).collect()
    }
}

impl HostSide {
    /// Sets up what the host needs. Servers that do the same at the same time are not in each other's way.
    pub(crate) fn set_up(egress: &Egress, own: Own) -> Result<HostSide> {
        let trying = || "open a way out for guests".to_owned();
        fs::create_dir_all("/run/lock").tried(trying)?;
        let lock = File::options().create(true).append(true).open(LOCK).tried(trying)?;
        flock(&lock, FlockOperation::LockShared).tried(trying)?;
        replace_table(&own.table, &of_host(egress, &own.prefix)).map_err(|e| match e.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EINVAL | libc::ENOENT) => EngineError::NotReady {
                what: format!("this kernel has no packet filter for it (nf_tables with NAT): {e}"),
            },
            _ => EngineError::Io { what: trying(), source: e },
        })?;
        if fs::read_to_string(FORWARDING).tried(trying)?.trim() == "0" {
            File::create(WAS_OFF).and_then(|mut file| file.write_all(b"0\n")).tried(trying)?;
            fs::write(FORWARDING, "1").tried(trying)?;
        }
        Ok(HostSide { lock, own })
    }

    /// Takes it back if none of this server's sandboxes has a way out any more, and what it shares with other servers if
    /// none of theirs has one either.
    pub(crate) fn take_back(self) -> Result<()> {
        let trying = || "take back what guests needed of this machine to get out".to_owned();
        let mut links = Vec::new();
        for link in fs::read_dir("/sys/class/net").tried(trying)? {
            links.push(link.tried(trying)?.file_name());
        }
        let any = |prefix: &str| links.iter().any(|link| link.as_encoded_bytes().starts_with(prefix.as_bytes()));
        if any(&self.own.prefix) {
            return Ok(());
        }
        remove_table(&self.own.table).tried(trying)?;
        match flock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
            locked => locked.tried(trying)?,
        }
        if !any(PREFIX) && Path::new(WAS_OFF).exists() {
            fs::write(FORWARDING, "0").tried(trying)?;
            fs::remove_file(WAS_OFF).tried(trying)?;
        }
        Ok(())
    }
}

/// A server's table on the host: its guests' packets leave with the host's address, and reach nothing on it but its name
/// server.
fn of_host<'a>(egress: &Egress, own: &'a str) -> [Chain<'a>; 3] {
    let names = |protocol| {
        let to = Match::To(Subnet::new(egress.resolver, 32));
        (vec![Match::InNamed(own), to, Match::Protocol(protocol), Match::ToPort(DNS_PORT)], Verdict::Accept)
    };
    let mut input = vec![(vec![Match::InNamed(own), Match::Established], Verdict::Accept), names(UDP), names(TCP)];
    input.extend(egress.allowed.iter().map(|to| (vec![Match::InNamed(own), Match::To(*to)], Verdict::Accept)));
    input.push((vec![Match::InNamed(own)], Verdict::Reject));
    [
        Chain { hook: Hook::Input, accepts: true, rules: input },
        Chain {
            hook: Hook::Forward,
            accepts: true,
            rules: vec![
                // From one sandbox to another, whoever's they are.
                (vec![Match::InNamed(own), Match::OutNamed(PREFIX)], Verdict::Drop),
                // Nobody speaks to a guest unasked.
                (vec![Match::OutNamed(own), Match::Established], Verdict::Accept),
                (vec![Match::OutNamed(own)], Verdict::Drop),
            ],
        },
        Chain {
            hook: Hook::Postrouting,
            accepts: true,
            rules: vec![(
                vec![Match::InNamed(own), Match::From(UPLINKS), Match::OutNotNamed(PREFIX)],
                Verdict::Masquerade,
            )],
        },
    ]
}

/// A sandbox's table: what it may reach.
fn of_sandbox(egress: &Egress) -> [Chain<'static>; 3] {
    let from_guest = Match::In(INTERFACE_INDEX);
    let names = |to: Ipv4Addr, protocol, verdict| {
        let to = Match::To(Subnet::new(to, 32));
        (vec![from_guest, to, Match::Protocol(protocol), Match::ToPort(DNS_PORT)], verdict)
    };
    let redirected = [UDP, TCP].map(|protocol| names(HOST_ADDRESS, protocol, Verdict::Redirect(egress.resolver)));
    let mut forward = vec![
        (vec![Match::Invalid], Verdict::Drop),
        (vec![Match::Established], Verdict::Accept),
        names(egress.resolver, UDP, Verdict::Accept),
        names(egress.resolver, TCP, Verdict::Accept),
    ];
    let to = |verdict| move |subnet: &Subnet| (vec![from_guest, Match::To(*subnet)], verdict);
    forward.extend(egress.allowed.iter().map(to(Verdict::Accept)));
    forward.extend(DENIED.iter().map(to(Verdict::Reject)));
    forward.push((vec![from_guest, Match::OutNamed(UPLINK)], Verdict::Accept));
    [
        Chain { hook: Hook::Prerouting, accepts: true, rules: redirected.into() },
        Chain { hook: Hook::Forward, accepts: false, rules: forward },
        Chain {
            hook: Hook::Postrouting,
            accepts: true,
            rules: vec![(vec![Match::OutNamed(UPLINK)], Verdict::Masquerade)],
        },
    ]
}

/// Makes the pair between host and outer namespace; the calling thread may be in any namespace. Returns the address that
/// the sandbox has on the host.
pub(super) async fn join(
    host: &Handle,
    outer: &OwnedFd,
    own: &Own,
    uid: &str,
) -> std::result::Result<Ipv4Addr, rtnetlink::Error> {
    const ATTEMPTS_MAX: u32 = 8;
    let name = own.link(uid);
    let mut attempt = 1;
    loop {
        match join_once(host, outer, &name).await {
            // After many thousand others an old sandbox may have the address that belongs to this number; the next has
            // another number.
            Err(e) if attempt < ATTEMPTS_MAX && is_taken(&e) => {
                attempt += 1;
                let index = super::index(host, &name).await?;
                host.link().del(index).execute().await?;
            }
            joined => return joined,
        }
    }
}

/// Takes a sandbox's way out away, if it has one. Its namespaces would do so too when they go, but some time later.
pub(super) async fn part(host: &Handle, own: &Own, uid: &str) -> std::result::Result<(), rtnetlink::Error> {
    let index = match super::index(host, &own.link(uid)).await {
        Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == -libc::ENODEV => return Ok(()),
        index => index?,
    };
    host.link().del(index).execute().await
}

fn is_taken(e: &rtnetlink::Error) -> bool {
    matches!(e, rtnetlink::Error::NetlinkError(e) if e.raw_code() == -libc::EEXIST)
}

async fn join_once(host: &Handle, outer: &OwnedFd, name: &str) -> std::result::Result<Ipv4Addr, rtnetlink::Error> {
    let far_end = LinkMessageBuilder::<LinkUnspec>::new()
        .name(UPLINK)
        .address(UPLINK_MAC.to_vec())
        .arp(false)
        .setns_by_fd(outer.as_raw_fd())
        .build();
    let pair = LinkMessageBuilder::<LinkVeth>::new(name, UPLINK)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(far_end)))
        .address(UPLINK_MAC.to_vec())
        .arp(false)
        .up()
        .build();
    host.link().add(pair).execute().await?;
    let index = super::index(host, name).await?;
    let own = Ipv4Addr::from_bits(UPLINKS.address.to_bits() | index & (u32::MAX >> UPLINKS.bits));
    let route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(own, 32);
    host.route().add(route.output_interface(index).scope(RouteScope::Link).build()).execute().await?;
    Ok(own)
}

/// Gives the outer namespace, in which the calling thread is, its address and its filter.
pub(super) async fn fence(outer: &Handle, own: Ipv4Addr, egress: &Egress) -> io::Result<()> {
    let uplink = super::index(outer, UPLINK).await.map_err(io::Error::other)?;
    outer.address().add(uplink, own.into(), 32).execute().await.map_err(io::Error::other)?;
    replace_table(TABLE, &of_sandbox(egress))?;
    fs::write(FORWARDING, "1")
}

/// Lets packets out of the outer namespace whose netlink this is. May be repeated.
pub(super) async fn open(outer: &Handle) -> std::result::Result<(), rtnetlink::Error> {
    let uplink = super::index(outer, UPLINK).await?;
    outer.link().set(LinkUnspec::new_with_index(uplink).up().build()).execute().await?;
    let anywhere = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(uplink).scope(RouteScope::Link).build();
    outer.route().add(anywhere).replace().execute().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_server_on_loopback_is_none() {
        let stub = "# systemd\nnameserver 127.0.0.53\noptions edns0\n";
        assert_eq!(name_server(stub), None);
        assert_eq!(
            name_server(&format!("{stub}nameserver ::1\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n")),
            Some(Ipv4Addr::new(192, 0, 2, 1))
        );
        assert_eq!(name_server("nameserver\nsearch 192.0.2.1"), None);
    }

    #[test]
    fn what_is_in_the_neighbourhood_is_denied_and_the_world_is_not() {
        let denied = |address: [u8; 4]| DENIED.iter().any(|subnet| subnet.contains(address.into()));
        for address in [
            [10, 254, 254, 1],
            [127, 0, 0, 1],
            [169, 254, 169, 254],
            [172, 31, 0, 1],
            [192, 168, 1, 1],
            [100, 100, 100, 100],
            [198, 19, 3, 4],
            [224, 0, 0, 1],
            [255, 255, 255, 255],
            [0, 0, 0, 0],
        ] {
            assert!(denied(address), "{address:?}");
        }
        for address in [[1, 1, 1, 1], [8, 8, 8, 8], [172, 32, 0, 1], [192, 0, 66, 1], [198, 20, 0, 1], [100, 63, 0, 1]]
        {
            assert!(!denied(address), "{address:?}");
        }
    }
}
