//! What rules look at in a frame, as eight words that masks can be laid on.

use packet::eth::{Eth, network_layer};
use packet::ip::{
    IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP, Ip, Version,
};

use super::connections::Flow;
use super::{Match, State, VlanMatch};
use crate::lpm::Prefix;

/// The words:
///
/// | word | bits |
/// |---|---|
/// | 0 | destination (0..48), VLAN id (48..60), tagged (60) |
/// | 1 | source (0..48), EtherType (48..64) |
/// | 2, 3 | source of the packet, first bit uppermost |
/// | 4, 5 | destination of the packet |
/// | 6 | source port, destination port, ICMP type (32), TCP flags (40), protocol (48) |
/// | 7 | version of IP (0..8), what of word 6 there is (8..12), later fragment (12), state (16..18) |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) [u64; 8]);

const TAGGED: u64 = 1 << 60;
const HAS_PORTS: u64 = 1 << 8;
const HAS_ICMP: u64 = 1 << 9;
const HAS_FLAGS: u64 = 1 << 10;
const HAS_PROTOCOL: u64 = 1 << 11;
const LATER: u64 = 1 << 12;
const STATE: u32 = 16;

/// Lengths of what is read of transport headers.
const PORTS: usize = 4;
const FLAGS_AT: usize = 13;
const ECHO: usize = 8;

/// A frame as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub(super) key: Key,
    /// Length of the frame, bytes.
    pub(super) len: usize,
    pub(super) flow: Option<Flow>,
}

impl Key {
    pub(super) fn masked(mut self, mask: &Self) -> Self {
        for (word, mask) in self.0.iter_mut().zip(mask.0) {
            *word &= mask;
        }
        self
    }

    pub(super) fn set_state(&mut self, state: Option<State>) {
        self.0[7] = self.0[7] & !(3 << STATE) | state_bits(state) << STATE;
    }

    pub(super) fn ports(&self) -> (u16, u16) {
        (self.0[6] as u16, (self.0[6] >> 16) as u16)
    }
}

fn state_bits(state: Option<State>) -> u64 {
    match state {
        None => 0,
        Some(State::New) => 1,
        Some(State::Established) => 2,
    }
}

fn address(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

impl Frame {
    /// Reads a frame of `len` bytes that begins with `head`. `None`: it is shorter than its header.
    pub fn read(head: &[u8], len: usize) -> Option<Self> {
        let eth = Eth::parse(head)?;
        let (ethertype, _) = network_layer(head)?;
        let mut key = Key::default();
        let vid = eth.tag.map_or(0, packet::Tci::vid);
        let tag = if vid == 0 { 0 } else { TAGGED | u64::from(vid) << 48 };
        key.0[0] = eth.dst.to_u64() | tag;
        key.0[1] = eth.src.to_u64() | u64::from(ethertype) << 48;
        let flow = Ip::parse(head).and_then(|ip| key.read_ip(&ip, head, len));
        Some(Self { key, len, flow })
    }
}

impl Key {
    /// Notes what an IP packet says; returns its connection, if it can be of one.
    fn read_ip(&mut self, ip: &Ip, head: &[u8], len: usize) -> Option<Flow> {
        let bytes = ip.addresses(head);
        let (version, source, destination) = match ip.version {
            Version::V4 => {
                let (source, rest) = bytes.split_first_chunk::<4>()?;
                let wide = |bytes: [u8; 4]| u128::from(u32::from_be_bytes(bytes)) << 96;
                (4, wide(*source), wide(*rest.first_chunk()?))
            }
            Version::V6 => {
                let (source, rest) = bytes.split_first_chunk::<16>()?;
                (6, u128::from_be_bytes(*source), u128::from_be_bytes(*rest.first_chunk()?))
            }
        };
        [self.0[2], self.0[3]] = address(source);
        [self.0[4], self.0[5]] = address(destination);
        self.0[7] |= version | if ip.later { LATER } else { 0 };
        if !ip.complete {
            return None;
        }
        self.0[6] |= u64::from(ip.protocol) << 48;
        self.0[7] |= HAS_PROTOCOL;
        if ip.later {
            return None;
        }
        // Padding behind the packet is not its header. A length of 0 is that of a packet that ends with
        // its IP header, or of one too long to be said there, which nobody sends here.
        let end = (ip.l3 + ip.length).min(len);
        let transport = head.get(ip.l4..end.min(head.len())).unwrap_or_default();
        let numbers = self.read_transport(ip, transport)?;
        let flags = (ip.protocol == IPPROTO_TCP).then(|| transport.get(FLAGS_AT).copied());
        let kind = match flags {
            // Without its flags nobody knows what it does to a connection.
            Some(None) => return None,
            Some(Some(flags)) => super::connections::Kind::Tcp(flags),
            None if matches!(ip.protocol, IPPROTO_ICMP | IPPROTO_ICMPV6) => {
                super::connections::Kind::Echo { asks: is_request(ip.version, transport) }
            }
            None => super::connections::Kind::Datagram,
        };
        Some(Flow::new(ip.protocol, (source, numbers.0), (destination, numbers.1), kind))
    }

    /// Notes what the transport header says; returns what tells connections apart.
    fn read_transport(&mut self, ip: &Ip, transport: &[u8]) -> Option<(u16, u16)> {
        let word = |at: usize| Some(u16::from_be_bytes(*transport.get(at..)?.first_chunk()?));
        match (ip.protocol, ip.version) {
            (IPPROTO_TCP | IPPROTO_UDP | IPPROTO_SCTP, _) if transport.len() >= PORTS => {
                let (source, destination) = (word(0)?, word(2)?);
                self.0[6] |= u64::from(source) | u64::from(destination) << 16;
                self.0[7] |= HAS_PORTS;
                if ip.protocol == IPPROTO_TCP
                    && let Some(flags) = transport.get(FLAGS_AT)
                {
                    self.0[6] |= u64::from(*flags) << 40;
                    self.0[7] |= HAS_FLAGS;
                }
                Some((source, destination))
            }
            (IPPROTO_ICMP, Version::V4) | (IPPROTO_ICMPV6, Version::V6) => {
                let kind = *transport.first()?;
                self.0[6] |= u64::from(kind) << 32;
                self.0[7] |= HAS_ICMP;
                let echo = match ip.version {
                    Version::V4 => matches!(kind, 0 | 8),
                    Version::V6 => matches!(kind, 128 | 129),
                };
                // Both directions have the same number.
                let id = word(4).filter(|_| echo && transport.len() >= ECHO)?;
                Some((id, id))
            }
            _ => None,
        }
    }
}

fn is_request(version: Version, transport: &[u8]) -> bool {
    let request = if version == Version::V4 { 8 } else { 128 };
    transport.first() == Some(&request)
}

/// A rule's value, the mask of it, and whether ports have to be looked at besides.
pub(super) fn compile(matches: &Match) -> (Key, Key) {
    let (mut value, mut mask) = (Key::default(), Key::default());
    let mut set = |word: usize, bits: u64, which: u64| {
        if let (Some(value), Some(mask)) = (value.0.get_mut(word), mask.0.get_mut(word)) {
            *value |= bits & which;
            *mask |= which;
        }
    };
    for (word, mac) in [(0, matches.dst), (1, matches.src)] {
        if let Some((mac, mask)) = mac {
            set(word, mac.to_u64(), mask.to_u64());
        }
    }
    match matches.vlan {
        None => {}
        Some(VlanMatch::Untagged) => set(0, 0, TAGGED),
        Some(VlanMatch::Id(id)) => set(0, TAGGED | u64::from(id) << 48, TAGGED | 0xfff << 48),
    }
    if let Some(ethertype) = matches.ethertype {
        set(1, u64::from(ethertype) << 48, 0xffff << 48);
    }
    for (word, prefix) in [(2, matches.source), (4, matches.destination)] {
        if let Some(prefix) = prefix {
            let (bits, which) = prefix_bits(prefix);
            set(word, bits[0], which[0]);
            set(word + 1, bits[1], which[1]);
            set(7, if prefix.is_ipv4() { 4 } else { 6 }, 0xff);
        }
    }
    if let Some(protocol) = matches.protocol {
        set(6, u64::from(protocol) << 48, 0xff << 48);
        set(7, HAS_PROTOCOL, HAS_PROTOCOL);
    }
    for (shift, ports) in [(0, &matches.source_port), (16, &matches.destination_port)] {
        if let Some(ports) = ports {
            set(7, HAS_PORTS, HAS_PORTS);
            if ports.start() == ports.end() {
                set(6, u64::from(*ports.start()) << shift, 0xffff << shift);
            }
        }
    }
    if let Some(kind) = matches.icmp_type {
        set(6, u64::from(kind) << 32, 0xff << 32);
        set(7, HAS_ICMP, HAS_ICMP);
    }
    if let Some((flags, which)) = matches.tcp_flags {
        set(6, u64::from(flags) << 40, u64::from(which) << 40);
        set(7, HAS_FLAGS, HAS_FLAGS);
    }
    if let Some(later) = matches.later_fragment {
        set(7, if later { LATER } else { 0 } | HAS_PROTOCOL, LATER | HAS_PROTOCOL);
    }
    if matches.state.is_some() {
        set(7, state_bits(matches.state) << STATE, 3 << STATE);
    }
    (value, mask)
}

fn prefix_bits(prefix: Prefix) -> ([u64; 2], [u64; 2]) {
    let bits = match prefix.address() {
        std::net::IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        std::net::IpAddr::V6(address) => address.to_bits(),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.bits())).unwrap_or(0);
    (address(bits), address(mask))
}
