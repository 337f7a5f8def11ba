//! What a router does to a packet that it forwards, and which packets only the router itself can
//! deal with: RFC 1812, 5.2 and 5.3; RFC 8200; as Linux does it (`ip_rcv`, `ip_forward`,
//! `ip6_forward`), byte for byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::eth::{
    ETH_P_IP, ETH_P_IPV6, ETHERTYPE_OFFSET, Mac, VLAN_HLEN, is_tag_protocol, network_layer,
};
use crate::ip::Version;
use crate::vnet::Checked;
use crate::{HEAD_MAX, Head, be16};

/// Where the packet begins in a frame without a tag.
const UNTAGGED: usize = ETHERTYPE_OFFSET + 2;
const IPV4_HLEN: usize = 20;
const IPV6_HLEN: usize = 40;
const IPPROTO_HOPOPTS: u8 = 0;

/// A packet that a router forwards by its destination alone: what is needed of its headers, which stay
/// in the beginning of the frame that it was read from.
///
/// One word, so that it is handed on in a register: as a struct of small fields it was written to
/// memory piece by piece and read back as a whole, for which a processor has to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Packet(u64);

/// Where a field of [`Packet`] begins, and its bits.
type Field = (u32, u32);
/// Offset of the IP header in the frame.
const L3: Field = (0, 8);
const HOPS: Field = (8, 8);
/// Length from there on, bytes, as the header says: what follows is padding, which a router does not
/// pass on.
const LENGTH: Field = (16, 17);
/// Length of the largest packet it is to be cut into; its own without segmentation offload.
const LARGEST: Field = (33, 17);
const IS_V6: Field = (50, 1);

const fn field(value: u64, (from, _): Field) -> u64 {
    value << from
}

/// Why a packet is the router's own business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unroutable {
    /// Not IP, or behind two tags.
    NotIp,
    /// Lengths, version or header checksum are wrong: a router drops it.
    Malformed,
    /// IPv4 options or an IPv6 hop-by-hop header: a router has to look at them.
    Options,
    /// From or to addresses that are never forwarded: multicast, broadcast, loopback, link-local,
    /// unspecified, "this network".
    Address,
}

impl Packet {
    /// Reads the headers of a frame of `frame_len` bytes whose beginning is `head`; `offload` is
    /// what the frame leaves to do.
    ///
    /// # Errors
    /// See [`Unroutable`].
    #[inline]
    pub fn parse(head: &[u8], frame_len: usize, offload: &Checked) -> Result<Packet, Unroutable> {
        let packet = Self::read(head, frame_len, offload).ok_or_else(|| why_not(head))?;
        let never = match packet.addresses(head) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                never_v4(source) || never_v4(destination)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mapped = source.to_ipv4_mapped().is_some();
                never_v6(source) || never_v6(destination) || mapped
            }
            _ => true,
        };
        if never { Err(Unroutable::Address) } else { Ok(packet) }
    }

    /// The same for a packet of which nothing but its addresses may be wrong: for those that have
    /// been looked at in another packet. `None` for all that [`Packet::parse`] refuses, and some
    /// that it does not.
    #[inline(always)]
    pub fn read(head: &[u8], frame_len: usize, offload: &Checked) -> Option<Packet> {
        // Each by itself: for the usual ones nearly all is known when the program is compiled.
        match be16(head, ETHERTYPE_OFFSET)? {
            ETH_P_IP => Self::read_at(head, UNTAGGED, Version::V4, frame_len, offload),
            ETH_P_IPV6 => Self::read_at(head, UNTAGGED, Version::V6, frame_len, offload),
            tag if is_tag_protocol(tag) => {
                let version = match be16(head, ETHERTYPE_OFFSET + VLAN_HLEN)? {
                    ETH_P_IP => Version::V4,
                    ETH_P_IPV6 => Version::V6,
                    _ => return None,
                };
                Self::read_at(head, UNTAGGED + VLAN_HLEN, version, frame_len, offload)
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn read_at(
        head: &[u8],
        l3: usize,
        version: Version,
        frame_len: usize,
        offload: &Checked,
    ) -> Option<Packet> {
        let ip = head.get(l3..)?;
        let (hops, length) = match version {
            Version::V4 => read_v4(ip)?,
            Version::V6 => read_v6(ip)?,
        };
        let length = u64::from(length);
        let packet = Packet(
            field(l3 as u64, L3)
                | field(hops.into(), HOPS)
                | field(length, LENGTH)
                | field(length, LARGEST)
                | field((version == Version::V6).into(), IS_V6),
        );
        if packet.frame_len() > frame_len {
            return None;
        }
        if *offload == Checked::PLAIN {
            Some(packet)
        } else {
            packet.unfinished(frame_len, offload)
        }
    }

    /// Of a frame that leaves something to do.
    #[cold]
    #[inline(never)]
    fn unfinished(self, frame_len: usize, offload: &Checked) -> Option<Packet> {
        let mut largest = self.get(LENGTH);
        if let Some(csum) = offload.csum {
            // What is still to be done must not lie in the padding.
            let field = usize::from(csum.start) + usize::from(csum.offset) + 2;
            if field > self.frame_len() {
                return None;
            }
        }
        if let Some(gso) = offload.gso {
            if self.frame_len() != frame_len {
                return None;
            }
            let one = usize::from(gso.header_len).saturating_sub(self.l3());
            largest = largest.min(one + usize::from(gso.size));
        }
        let rest = self.0 & !field((1 << LARGEST.1) - 1, LARGEST);
        Some(Packet(rest | field(largest as u64, LARGEST)))
    }

    #[inline(always)]
    fn get(self, (from, bits): Field) -> usize {
        (self.0 >> from & ((1 << bits) - 1)) as usize
    }

    /// IPv4 or IPv6.
    #[inline(always)]
    #[must_use]
    pub fn version(self) -> Version {
        if self.get(IS_V6) == 0 { Version::V4 } else { Version::V6 }
    }

    /// TTL or hop limit: so many routers less one forward it.
    #[inline(always)]
    #[must_use]
    pub fn hops(self) -> u8 {
        self.get(HOPS) as u8
    }

    /// Where it comes from; `head` is the beginning of its frame.
    #[must_use]
    pub fn source(self, head: &[u8]) -> IpAddr {
        self.addresses(head).0
    }

    /// Where it goes; `head` is the beginning of its frame.
    #[must_use]
    pub fn destination(self, head: &[u8]) -> IpAddr {
        self.addresses(head).1
    }

    fn addresses(self, head: &[u8]) -> (IpAddr, IpAddr) {
        let ip = head.get(self.l3()..).unwrap_or_default();
        match self.version() {
            Version::V4 => {
                let of = |at| ip.get(at..).and_then(<[u8]>::first_chunk::<4>).copied();
                let [source, destination] = [12, 16].map(|at| of(at).unwrap_or_default().into());
                (source, destination)
            }
            Version::V6 => {
                let of = |at| ip.get(at..).and_then(<[u8]>::first_chunk::<16>).copied();
                let [source, destination] = [8, 24].map(|at| of(at).unwrap_or_default().into());
                (source, destination)
            }
        }
    }

    /// Both addresses as numbers that no other pair of them has.
    #[inline(always)]
    #[must_use]
    pub fn address_words(self, head: &[u8]) -> [u64; 4] {
        let l3 = self.l3();
        match self.version() {
            Version::V4 => {
                let both = head.get(l3 + 12..).and_then(<[u8]>::first_chunk::<8>);
                // No IPv6 packet that is forwarded goes to `::`.
                [both.map_or(0, |both| u64::from_le_bytes(*both)), 0, 0, 0]
            }
            Version::V6 => {
                let both = head.get(l3 + 8..).and_then(<[u8]>::first_chunk::<32>);
                let (words, _) = both.map_or(&[][..], |both| both).as_chunks::<8>();
                let mut all = [0; 4];
                for (to, from) in all.iter_mut().zip(words) {
                    *to = u64::from_le_bytes(*from);
                }
                all
            }
        }
    }

    /// Whether it passes a link with this MTU as it is, or as its segments.
    #[inline]
    #[must_use]
    pub fn fits(self, mtu: usize) -> bool {
        self.get(LARGEST) <= mtu
    }

    /// Offset of what follows the IP header.
    #[inline]
    pub(crate) fn l4(self) -> usize {
        let header = match self.version() {
            Version::V4 => IPV4_HLEN,
            Version::V6 => IPV6_HLEN,
        };
        self.l3() + header
    }

    /// Length of the frame without padding, bytes: what routers pass on.
    #[inline]
    #[must_use]
    pub fn frame_len(self) -> usize {
        self.l3() + self.get(LENGTH)
    }

    /// Offset of the IP header.
    #[inline]
    pub(crate) fn l3(self) -> usize {
        self.get(L3)
    }

    /// Does to the frame what so many routers do: counts hops down, and addresses it from the last
    /// router to the next machine. The caller has seen to it that there are more [`Packet::hops`].
    #[inline(always)]
    pub fn forward(self, head: &mut Head, routers: u8, macs: Macs) {
        let bytes = head.bytes_mut();
        if let Some(addresses) = bytes.first_chunk_mut::<ETHERTYPE_OFFSET>() {
            let (to, from) = addresses.split_at_mut(6);
            to.copy_from_slice(&macs.destination().0);
            from.copy_from_slice(&macs.source().0);
        }
        let Some(ip) = bytes.get_mut(self.l3()..) else { return };
        match self.version() {
            Version::V4 => {
                if let Some([_, _, _, _, _, _, _, _, ttl, _, c0, c1]) = ip.first_chunk_mut() {
                    *ttl = ttl.saturating_sub(routers);
                    let sum = count_down(u16::from_le_bytes([*c0, *c1]), routers);
                    [*c0, *c1] = sum.to_le_bytes();
                }
            }
            Version::V6 => {
                if let Some([_, _, _, _, _, _, _, limit]) = ip.first_chunk_mut() {
                    *limit = limit.saturating_sub(routers);
                }
            }
        }
    }
}

/// A packet of IPv4 without a tag and with nothing left to do, and the words that its frame begins with.
///
/// It reads whole words, each where one begins: what was written to the block just now can be read
/// in this way before it is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usual {
    packet: Packet,
    words: [u64; 5],
}

impl Usual {
    /// Version, header length and EtherType, as they lie in the second word.
    const BEGIN: u64 = 0x45 << 16 | (ETH_P_IP.swap_bytes() as u64);

    /// [`Packet::read`] for such a packet, of a frame of which `block` holds the first `len` bytes.
    #[inline(always)]
    #[must_use]
    pub fn read(block: &[u8; HEAD_MAX], len: usize, frame_len: usize) -> Option<Self> {
        let (words, _) = block.as_chunks::<8>();
        let word = |n: usize| words.get(n).map_or(0, |word| u64::from_le_bytes(*word));
        let words @ [_, b, c, d, e] = [word(0), word(1), word(2), word(3), word(4)];
        let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
        let sum = (b >> 48) + halves(c) + halves(d) + (e & 0xffff);
        let (length, hops) = (u64::from((c as u16).swap_bytes()), c >> 48 & 0xff);
        let packet = Packet(
            field(UNTAGGED as u64, L3)
                | field(hops, HOPS)
                | field(length, LENGTH)
                | field(length, LARGEST),
        );
        let fits = UNTAGGED + IPV4_HLEN <= len
            && IPV4_HLEN as u64 <= length
            && packet.frame_len() <= frame_len;
        (b >> 32 & 0xff_ffff == Self::BEGIN && fits && is_whole(sum))
            .then_some(Self { packet, words })
    }

    /// The packet.
    #[inline(always)]
    #[must_use]
    pub fn packet(&self) -> Packet {
        self.packet
    }

    /// Both of its addresses: the first of [`Packet::address_words`].
    #[inline(always)]
    #[must_use]
    pub fn addresses(&self) -> u64 {
        let [_, _, _, d, e] = self.words;
        d >> 16 | e << 48
    }

    /// The first 16 bytes of its frame: of a flow, all have the same.
    #[inline(always)]
    #[must_use]
    pub fn front(&self) -> [u64; 2] {
        let [a, b, ..] = self.words;
        [a, b]
    }

    /// [`Packet::forward`] for the block that it was read from.
    #[inline(always)]
    pub fn forward(&self, block: &mut [u8; HEAD_MAX], routers: u8, Macs([first, second]): Macs) {
        let [_, b, c, d, _] = self.words;
        let hops = u64::from(routers.min(self.packet.hops())) << 48;
        let sum = count_down(d as u16, routers);
        let words = [first, second | b >> 32 << 32, c - hops, d >> 16 << 16 | u64::from(sum)];
        for (to, word) in block.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
    }
}

/// Both addresses of a frame, in words as they lie in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Macs([u64; 2]);

impl Macs {
    /// From `source` to `destination`.
    #[must_use]
    pub fn new(source: Mac, destination: Mac) -> Self {
        let (Mac([a, b, c, d, e, f]), Mac([g, h, i, j, k, l])) = (destination, source);
        let words = [[a, b, c, d, e, f, g, h], [i, j, k, l, 0, 0, 0, 0]];
        Self(words.map(u64::from_le_bytes))
    }

    /// Of whom it goes to.
    #[must_use]
    pub fn destination(self) -> Mac {
        let [[a, b, c, d, e, f, ..], _] = self.0.map(u64::to_le_bytes);
        Mac([a, b, c, d, e, f])
    }

    /// Of whom it comes from.
    #[must_use]
    pub fn source(self) -> Mac {
        let [[.., g, h], [i, j, k, l, ..]] = self.0.map(u64::to_le_bytes);
        Mac([g, h, i, j, k, l])
    }
}

/// Hops and length of an IPv4 packet.
#[inline(always)]
fn read_v4(ip: &[u8]) -> Option<(u8, u32)> {
    let header: &[u8; IPV4_HLEN] = ip.first_chunk()?;
    let [v, _, l0, l1, _, _, _, _, hops, ..] = *header;
    let length = u32::from(u16::from_be_bytes([l0, l1]));
    let (words, _) = header.as_chunks::<4>();
    let sum = words.iter().fold(0u64, |sum, word| sum + u64::from(u32::from_ne_bytes(*word)));
    (v == 0x45 && length >= IPV4_HLEN as u32 && is_whole(sum)).then_some((hops, length))
}

/// Whether a header with this sum of its 16 or 32 bit words is as it was sent: folded it is all ones,
/// in the machine's byte order as well as in the network's.
#[inline(always)]
fn is_whole(sum: u64) -> bool {
    sum.is_multiple_of(0xffff)
}

/// Hops and length of an IPv6 packet.
#[inline(always)]
fn read_v6(ip: &[u8]) -> Option<(u8, u32)> {
    let header: &[u8; IPV6_HLEN] = ip.first_chunk()?;
    let [v, _, _, _, l0, l1, next, hops, ..] = *header;
    let length = IPV6_HLEN as u32 + u32::from(u16::from_be_bytes([l0, l1]));
    (v >> 4 == 6 && next != IPPROTO_HOPOPTS).then_some((hops, length))
}

/// Why a frame could not be read.
#[cold]
fn why_not(head: &[u8]) -> Unroutable {
    match network_layer(head) {
        Some((ETH_P_IP, at)) if matches!(head.get(at), Some(0x46..=0x4f)) => Unroutable::Options,
        Some((ETH_P_IPV6, at))
            if head.get(at).is_some_and(|v| v >> 4 == 6)
                && head.get(at + 6) == Some(&IPPROTO_HOPOPTS) =>
        {
            Unroutable::Options
        }
        Some((ETH_P_IP | ETH_P_IPV6, at)) if at <= UNTAGGED + VLAN_HLEN => Unroutable::Malformed,
        _ => Unroutable::NotIp,
    }
}

/// Never forwarded: "this network", loopback, multicast, broadcast.
fn never_v4(address: Ipv4Addr) -> bool {
    address.octets()[0] == 0
        || address.is_loopback()
        || address.is_multicast()
        || address.is_broadcast()
}

fn never_v6(address: Ipv6Addr) -> bool {
    address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_unicast_link_local()
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet")
            .field("version", &self.version())
            .field("hops", &self.hops())
            .field("l3", &self.l3())
            .field("length", &self.get(LENGTH))
            .field("largest", &self.get(LARGEST))
            .finish()
    }
}

/// The header checksum, lowest byte first, after the TTL was counted down so many times: RFC 1624 (whose
/// sums are the same in any order of bytes), and of the two zeros of one's complement the one that Linux
/// (`ip_decrease_ttl`) writes.
fn count_down(checksum: u16, times: u8) -> u16 {
    if times == 0 {
        return checksum;
    }
    let sum = u32::from(checksum) + u32::from(times);
    (sum % 0xffff) as u16
}

#[cfg(test)]
mod tests;
