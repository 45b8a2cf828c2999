//! Tables of packet filters (nftables), spoken to the kernel directly: as many as sandboxes are built, and a program for
//! each would take longer than all the rest of a network. Knows messages and expressions (`linux/netfilter/nf_tables.h`),
//! and decides nothing about what is let through.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    /// First address.
    pub address: Ipv4Addr,
    /// Bits that all have in common.
    pub bits: u8,
}

impl Subnet {
    /// The addresses that share the first `bits` of `address`.
    pub const fn new(address: Ipv4Addr, bits: u8) -> Subnet {
        Subnet { address: Ipv4Addr::from_bits(address.to_bits() & Subnet::mask(bits)), bits }
    }

    const fn mask(bits: u8) -> u32 {
        match bits {
            0 => 0,
            bits => u32::MAX << (32 - bits as u32),
        }
    }

    /// Whether an address is among them.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address.to_bits() & Subnet::mask(self.bits) == self.address.to_bits()
    }
}

impl std::str::FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Subnet, String> {
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let why = || format!("{text:?} is no IPv4 network such as 192.0.2.0/24");
        let bits = bits.parse().ok().filter(|bits| *bits <= 32).ok_or_else(why)?;
        Ok(Subnet::new(address.parse().map_err(|_| why())?, bits))
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// What a packet must be for a rule to count; all of a rule's must hold.
#[derive(Debug, Clone, Copy)]
pub enum Match<'a> {
    /// It came in by the interface of this number.
    In(u32),
    /// It came in by an interface whose name begins so.
    InNamed(&'a str),
    /// It goes out by an interface whose name begins so.
    OutNamed(&'a str),
    /// It goes out by an interface whose name begins otherwise.
    OutNotNamed(&'a str),
    /// Where it comes from.
    From(Subnet),
    /// Where it goes.
    To(Subnet),
    /// Its protocol, by number.
    Protocol(u8),
    /// The port that it goes to, of TCP or UDP.
    ToPort(u16),
    /// It belongs to a connection that was let through, or tells of one.
    Established,
    /// It belongs to no connection that could be.
    Invalid,
}

/// What is done with a packet.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It ends here, and nobody hears of it.
    Drop,
    /// It ends here, and its sender hears that this is forbidden.
    Reject,
    /// It gets the address of the interface that it goes out by.
    Masquerade,
    /// It goes to this address instead.
    Redirect(Ipv4Addr),
}

/// One rule: a packet that is all of this is dealt with so.
pub type Rule<'a> = (Vec<Match<'a>>, Verdict);

/// Where in a packet's way a chain stands.
#[derive(Debug, Clone, Copy)]
pub enum Hook {
    /// Before it is known where it goes; addresses may be changed.
    Prerouting,
    /// On its way to a program of this machine.
    Input,
    /// On its way through.
    Forward,
    /// On its way out; addresses may be changed.
    Postrouting,
}

/// A chain of a table, with its rules.
#[derive(Debug)]
pub struct Chain<'a> {
    /// Its place, which also names it.
    pub hook: Hook,
    /// What becomes of packets of which no rule says anything: accept, else drop.
    pub accepts: bool,
    /// Looked through in this order.
    pub rules: Vec<Rule<'a>>,
}

// linux/netfilter/nfnetlink.h and nf_tables.h.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const VERDICT_REGISTER: u32 = 0;
const REGISTER: u32 = 1;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
/// Headers that bytes of a packet are counted from, and where in them addresses and port are.
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;
const DESTINATION_PORT: u32 = 2;
/// What is known about a packet beside its bytes: `enum nft_meta_keys`.
const IIF: u32 = 4;
const IIFNAME: u32 = 6;
const OIFNAME: u32 = 7;
const L4PROTO: u32 = 16;
/// States of nf_conntrack_common.h, as bits: invalid; established and related.
const INVALID: u32 = 1;
const ESTABLISHED: u32 = 0b110;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACK: u16 = libc::NLM_F_ACK as u16;
const CREATE: u16 = libc::NLM_F_CREATE as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;
/// Longest answer to one batch: an acknowledgement for each message in it, or an error that repeats one.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Makes the table `name`, as the only thing of that name, in the network namespace of the calling thread: at once, or not
/// at all.
pub fn replace_table(name: &str, chains: &[Chain<'_>]) -> io::Result<()> {
    let mut batch = Batch::begin();
    let table = |m: &mut Message| m.text(1, name);
    // Made first, so that there is one to delete.
    batch.message(NEW_TABLE, CREATE, table);
    batch.message(DELETE_TABLE, 0, table);
    batch.message(NEW_TABLE, CREATE, table);
    for chain in chains {
        batch.message(NEW_CHAIN, CREATE, |m| chain.describe(m, name));
        for rule in &chain.rules {
            batch.message(NEW_RULE, CREATE | APPEND, |m| {
                m.text(1, name);
                m.text(2, chain.hook.name());
                m.nested(4, |m| expressions(m, rule, chain.hook));
            });
        }
    }
    batch.send()
}

/// Removes a table, if there is one.
pub fn remove_table(name: &str) -> io::Result<()> {
    let mut batch = Batch::begin();
    batch.message(DELETE_TABLE, 0, |m| m.text(1, name));
    match batch.send() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        sent => sent,
    }
}

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Postrouting => "postrouting",
        }
    }

    /// Kind of chain, number of the hook, and priority: the places of address translation and of filters.
    fn place(self) -> (&'static str, u32, i32) {
        match self {
            Hook::Prerouting => ("nat", 0, -100),
            Hook::Input => ("filter", 1, 0),
            Hook::Forward => ("filter", 2, 0),
            Hook::Postrouting => ("nat", 4, 100),
        }
    }
}

impl Chain<'_> {
    fn describe(&self, m: &mut Message, table: &str) {
        let (kind, hook, priority) = self.hook.place();
        m.text(1, table);
        m.text(3, self.hook.name());
        m.nested(4, |m| {
            m.number(1, hook);
            m.number(2, priority as u32);
        });
        m.number(5, if self.accepts { NF_ACCEPT } else { NF_DROP });
        m.text(7, kind);
    }
}

fn expressions(m: &mut Message, (matches, verdict): &Rule<'_>, hook: Hook) {
    for what in matches {
        what.describe(m);
    }
    match verdict {
        Verdict::Accept => m.verdict(NF_ACCEPT),
        Verdict::Drop => m.verdict(NF_DROP),
        // An ICMP message: administratively prohibited.
        Verdict::Reject => m.expression("reject", |m| {
            m.number(1, 0);
            m.bytes(2, &[13]);
        }),
        Verdict::Masquerade => m.expression("masq", |_| ()),
        Verdict::Redirect(address) => {
            debug_assert!(matches!(hook, Hook::Prerouting));
            m.expression("immediate", |m| {
                m.number(1, REGISTER);
                m.nested(2, |m| m.bytes(1, &address.octets()));
            });
            m.expression("nat", |m| {
                m.number(1, 1);
                m.number(2, libc::AF_INET as u32);
                m.number(3, REGISTER);
            });
        }
    }
}

impl Match<'_> {
    fn describe(&self, m: &mut Message) {
        match self {
            Match::In(index) => m.meta(IIF, true, &index.to_ne_bytes()),
            Match::InNamed(prefix) => m.meta(IIFNAME, true, prefix.as_bytes()),
            Match::OutNamed(prefix) => m.meta(OIFNAME, true, prefix.as_bytes()),
            Match::OutNotNamed(prefix) => m.meta(OIFNAME, false, prefix.as_bytes()),
            Match::Protocol(number) => m.meta(L4PROTO, true, &[*number]),
            Match::From(subnet) => m.address(NETWORK_HEADER, SOURCE, *subnet),
            Match::To(subnet) => m.address(NETWORK_HEADER, DESTINATION, *subnet),
            Match::ToPort(port) => {
                m.payload(TRANSPORT_HEADER, DESTINATION_PORT, 2);
                m.compare(true, &port.to_be_bytes());
            }
            Match::Established => m.state(ESTABLISHED),
            Match::Invalid => m.state(INVALID),
        }
    }
}

/// Messages that count all together or not at all.
struct Batch {
    bytes: Vec<u8>,
    count: u32,
}

impl Batch {
    fn begin() -> Batch {
        let mut batch = Batch { bytes: Vec::with_capacity(8 << 10), count: 0 };
        batch.put(BATCH_BEGIN, 0, 0, SUBSYSTEM, |_| ());
        batch
    }

    fn message(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Message)) {
        self.count += 1;
        self.put(kind, flags | ACK, libc::AF_INET as u8, 0, fill);
    }

    fn put(&mut self, kind: u16, flags: u16, family: u8, resource: u16, fill: impl FnOnce(&mut Message)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.count.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        fill(&mut Message { bytes: &mut self.bytes });
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn send(mut self) -> io::Result<()> {
        self.put(BATCH_END, 0, 0, SUBSYSTEM, |_| ());
        let count = self.count;
        // SAFETY: plain system calls; the descriptor is owned from the moment it exists, and each buffer is as long as is
        // said.
        unsafe {
            let raw = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER);
            if raw < 0 {
                return Err(io::Error::last_os_error());
            }
            let socket = OwnedFd::from_raw_fd(raw);
            if libc::send(socket.as_raw_fd(), self.bytes.as_ptr().cast(), self.bytes.len(), 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut answered = 0;
            let mut answer = vec![0u8; ANSWER_BYTES_MAX];
            // The kernel has answered before the send returned: an empty socket means that it has nothing more to say.
            while answered < count {
                let got = libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT);
                if got < 0 {
                    return Err(io::Error::last_os_error());
                }
                answered += acknowledged(&answer[..got as usize])?;
            }
        }
        Ok(())
    }
}

/// How many messages an answer acknowledges; the error if it tells of one.
fn acknowledged(mut answer: &[u8]) -> io::Result<u32> {
    const HEADER_BYTES: usize = 16;
    let mut count = 0;
    while let Some(header) = answer.get(..HEADER_BYTES + 4) {
        let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let length = u32::from_ne_bytes(word(0)) as usize;
        if u16::from_ne_bytes([header[4], header[5]]) == libc::NLMSG_ERROR as u16 {
            match i32::from_ne_bytes(word(HEADER_BYTES)) {
                0 => count += 1,
                errno => return Err(io::Error::from_raw_os_error(-errno)),
            }
        }
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(count)
}

/// Writes the attributes of a message.
struct Message<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Message<'_> {
    fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = 4 + value.len() as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, value: &str) {
        let terminated = [value.as_bytes(), &[0]].concat();
        self.bytes(kind, &terminated);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend((kind | libc::NLA_F_NESTED as u16).to_ne_bytes());
        fill(&mut Message { bytes: self.bytes });
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Message)) {
        self.nested(1, |m| {
            m.text(1, name);
            m.nested(2, fill);
        });
    }

    fn verdict(&mut self, code: u32) {
        self.expression("immediate", |m| {
            m.number(1, VERDICT_REGISTER);
            m.nested(2, |m| m.nested(2, |m| m.number(1, code)));
        });
    }

    /// Goes on if what is in the register is this (or not), as far as this goes.
    fn compare(&mut self, equal: bool, value: &[u8]) {
        self.expression("cmp", |m| {
            m.number(1, REGISTER);
            m.number(2, u32::from(!equal));
            m.nested(3, |m| m.bytes(1, value));
        });
    }

    fn meta(&mut self, key: u32, equal: bool, value: &[u8]) {
        self.expression("meta", |m| {
            m.number(1, REGISTER);
            m.number(2, key);
        });
        self.compare(equal, value);
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32) {
        self.expression("payload", |m| {
            m.number(1, REGISTER);
            m.number(2, base);
            m.number(3, offset);
            m.number(4, length);
        });
    }

    fn masked(&mut self, mask: &[u8]) {
        self.expression("bitwise", |m| {
            m.number(1, REGISTER);
            m.number(2, REGISTER);
            m.number(3, mask.len() as u32);
            m.nested(4, |m| m.bytes(1, mask));
            m.nested(5, |m| m.bytes(1, &vec![0; mask.len()]));
        });
    }

    fn address(&mut self, base: u32, offset: u32, subnet: Subnet) {
        self.payload(base, offset, 4);
        self.masked(&Subnet::mask(subnet.bits).to_be_bytes());
        self.compare(true, &subnet.address.octets());
    }

    fn state(&mut self, bits: u32) {
        self.expression("ct", |m| {
            m.number(1, REGISTER);
            m.number(2, 0);
        });
        self.masked(&bits.to_ne_bytes());
        self.compare(false, &0u32.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_what_its_first_bits_say() {
        let subnet: Subnet = "10.1.2.3/8".parse().unwrap();
        assert_eq!(subnet.to_string(), "10.0.0.0/8");
        assert!(subnet.contains(Ipv4Addr::new(10, 255, 0, 1)) && !subnet.contains(Ipv4Addr::new(11, 0, 0, 0)));
        assert!("0.0.0.0/0".parse::<Subnet>().unwrap().contains(Ipv4Addr::BROADCAST));
        assert_eq!("192.0.2.7".parse::<Subnet>().unwrap().bits, 32);
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::1/8", "a/8", "10.0.0.0/"] {
            assert!(text.parse::<Subnet>().unwrap_err().contains("192.0.2.0/24"), "{text}");
        }
    }

    #[test]
    fn an_error_among_acknowledgements_is_told() {
        let answer = |errno: i32| {
            let mut bytes = 20u32.to_ne_bytes().to_vec();
            bytes.extend((libc::NLMSG_ERROR as u16).to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(errno.to_ne_bytes());
            bytes
        };
        assert_eq!(acknowledged(&[answer(0), answer(0)].concat()).unwrap(), 2);
        let refused = acknowledged(&[answer(0), answer(-libc::ENOENT)].concat()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOENT));
        assert_eq!(acknowledged(&[1, 2, 3]).unwrap(), 0);
    }
}
