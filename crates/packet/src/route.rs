//! What a router does to a packet that it forwards, and which packets only the router itself can
//! deal with: RFC 1812, 5.2 and 5.3; RFC 8200; as Linux does it (`ip_rcv`, `ip_forward`,
//! `ip6_forward`), byte for byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;
use crate::eth::{ETH_P_IP, ETH_P_IPV6, ETHERTYPE_OFFSET, Mac, VLAN_HLEN, is_tag_protocol};
use crate::ip::Version;
use crate::vnet::Checked;
use crate::{Head, be16};

const IPV4_HLEN: usize = 20;
const IPV6_HLEN: usize = 40;
const IPPROTO_HOPOPTS: u8 = 0;

/// A packet that a router forwards by its destination alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// IPv4 or IPv6.
    pub version: Version,
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// TTL or hop limit: so many routers less one forward it.
    pub hops: u8,
    /// Offset of the IP header in the frame.
    pub(crate) l3: usize,
    /// Length from there on, bytes, as the header says: what follows is padding, which a router
    /// does not pass on.
    length: usize,
    /// Length of the largest packet it is to be cut into; its own without segmentation offload.
    largest: usize,
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
    pub fn parse(head: &[u8], frame_len: usize, offload: &Checked) -> Result<Packet, Unroutable> {
        let mut l3 = ETHERTYPE_OFFSET + 2;
        let mut ethertype = be16(head, ETHERTYPE_OFFSET).ok_or(Unroutable::NotIp)?;
        if is_tag_protocol(ethertype) {
            l3 += VLAN_HLEN;
            ethertype = be16(head, l3 - 2).ok_or(Unroutable::NotIp)?;
        }
        let ip = head.get(l3..).ok_or(Unroutable::NotIp)?;
        let mut packet = match ethertype {
            ETH_P_IP => Self::parse_v4(ip)?,
            ETH_P_IPV6 => Self::parse_v6(ip)?,
            _ => return Err(Unroutable::NotIp),
        };
        packet.l3 = l3;
        if l3 + packet.length > frame_len {
            return Err(Unroutable::Malformed);
        }
        packet.largest = packet.length;
        if let Some(csum) = offload.csum {
            // What is still to be done must not lie in the padding.
            let field = usize::from(csum.start) + usize::from(csum.offset) + 2;
            if field > l3 + packet.length {
                return Err(Unroutable::Malformed);
            }
        }
        if let Some(gso) = offload.gso {
            if l3 + packet.length != frame_len {
                return Err(Unroutable::Malformed);
            }
            let one = usize::from(gso.header_len) - l3.min(gso.header_len.into());
            packet.largest = packet.length.min(one + usize::from(gso.size));
        }
        Ok(packet)
    }

    fn new(
        version: Version,
        source: IpAddr,
        destination: IpAddr,
        hops: u8,
        length: usize,
    ) -> Packet {
        Packet { version, source, destination, hops, l3: 0, length, largest: length }
    }

    fn parse_v4(ip: &[u8]) -> Result<Packet, Unroutable> {
        let header: &[u8; IPV4_HLEN] = ip.first_chunk().ok_or(Unroutable::Malformed)?;
        let [v, _, l0, l1, _, _, _, _, hops, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *header;
        match v {
            0x45 => {}
            0x46..=0x4f => return Err(Unroutable::Options),
            _ => return Err(Unroutable::Malformed),
        }
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        if length < IPV4_HLEN || Sum::ZERO.bytes(header).fold() != u16::MAX {
            return Err(Unroutable::Malformed);
        }
        let (source, destination) =
            (Ipv4Addr::from([s0, s1, s2, s3]), Ipv4Addr::from([d0, d1, d2, d3]));
        let never = |address: Ipv4Addr| {
            address.octets()[0] == 0
                || address.is_loopback()
                || address.is_multicast()
                || address.is_broadcast()
        };
        if never(source) || never(destination) {
            return Err(Unroutable::Address);
        }
        Ok(Self::new(Version::V4, source.into(), destination.into(), hops, length))
    }

    fn parse_v6(ip: &[u8]) -> Result<Packet, Unroutable> {
        let header: &[u8; IPV6_HLEN] = ip.first_chunk().ok_or(Unroutable::Malformed)?;
        let [first, addresses @ ..] = header.as_chunks::<8>().0 else {
            return Err(Unroutable::Malformed);
        };
        let [v, _, _, _, l0, l1, next, hops] = *first;
        if v >> 4 != 6 {
            return Err(Unroutable::Malformed);
        }
        if next == IPPROTO_HOPOPTS {
            return Err(Unroutable::Options);
        }
        let length = IPV6_HLEN + usize::from(u16::from_be_bytes([l0, l1]));
        let (addresses, _) = addresses.as_flattened().as_chunks::<16>();
        let [source, destination] = *addresses else { return Err(Unroutable::Malformed) };
        let (source, destination) = (Ipv6Addr::from(source), Ipv6Addr::from(destination));
        let never = |address: Ipv6Addr| {
            address.is_unspecified()
                || address.is_loopback()
                || address.is_multicast()
                || address.is_unicast_link_local()
        };
        if never(source) || never(destination) || source.to_ipv4_mapped().is_some() {
            return Err(Unroutable::Address);
        }
        Ok(Self::new(Version::V6, source.into(), destination.into(), hops, length))
    }

    /// Whether it passes a link with this MTU as it is, or as its segments.
    #[inline]
    #[must_use]
    pub fn fits(&self, mtu: usize) -> bool {
        self.largest <= mtu
    }

    /// Offset of what follows the IP header.
    #[inline]
    pub(crate) fn l4(&self) -> usize {
        let header = match self.version {
            Version::V4 => IPV4_HLEN,
            Version::V6 => IPV6_HLEN,
        };
        self.l3 + header
    }

    /// Length of the frame without padding, bytes: what routers pass on.
    #[inline]
    #[must_use]
    pub fn frame_len(&self) -> usize {
        self.l3 + self.length
    }

    /// Does to the frame what so many routers do: counts hops down, and addresses it from the last
    /// router to the next machine. The caller has seen to it that there are more [`Packet::hops`].
    pub fn forward(&self, head: &mut Head, routers: u8, source: Mac, destination: Mac) {
        let bytes = head.bytes_mut();
        if let Some(macs) = bytes.first_chunk_mut::<ETHERTYPE_OFFSET>() {
            let (to, from) = macs.split_at_mut(6);
            to.copy_from_slice(&destination.0);
            from.copy_from_slice(&source.0);
        }
        let Some(ip) = bytes.get_mut(self.l3..) else { return };
        match self.version {
            Version::V4 => {
                if let Some([_, _, _, _, _, _, _, _, ttl, _, c0, c1]) = ip.first_chunk_mut() {
                    *ttl = ttl.saturating_sub(routers);
                    let sum = count_down(u16::from_be_bytes([*c0, *c1]), routers);
                    [*c0, *c1] = sum.to_be_bytes();
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

/// The header checksum after the TTL was counted down so many times: RFC 1624, and of the two
/// zeros of one's complement the one that Linux (`ip_decrease_ttl`) writes.
fn count_down(checksum: u16, times: u8) -> u16 {
    if times == 0 {
        return checksum;
    }
    let sum = u32::from(checksum) + (u32::from(times) << 8);
    (sum % 0xffff) as u16
}

#[cfg(test)]
mod tests;
