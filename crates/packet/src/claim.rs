//! Whom a frame claims to be from, beyond its source address: what an owner of addresses checks.
//!
//! Besides the source of an IP packet these are the sender of an ARP packet (RFC 826), and of IPv6
//! neighbour discovery (RFC 4861) the target that is announced or asked for as one's own, and the
//! link-layer addresses in its options. Whoever may send only what can be checked sends nothing else:
//! a frame in which nothing is claimed that could be read is [`Unclear`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::be16;
use crate::eth::{ETH_P_ARP, ETH_P_IP, ETH_P_IPV6, ETH_P_RARP, Mac, network_layer};
use crate::ip::{IPPROTO_ICMPV6, IPPROTO_UDP, Ip, Version};

/// What a frame claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// It is from this address. `None`: from none yet (DHCP, probes, duplicate address detection).
    pub source: Option<IpAddr>,
    /// This address is the sender's, or is to become so.
    pub target: Option<IpAddr>,
    /// The sender's link-layer address, as written behind the Ethernet header.
    pub station: Option<Mac>,
}

/// It cannot be read who the frame is from: neither IP nor ARP, or hidden by what is in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unclear;

/// Lengths and offsets of ARP over Ethernet and IPv4.
const ARP_LEN: usize = 28;
const ARP_REQUEST: u16 = 1;
/// First and last type of neighbour discovery: router solicitation to redirect.
const ND: std::ops::RangeInclusive<u8> = ROUTER_SOLICITATION..=137;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// Multicast listener reports and "done" (RFC 2710, RFC 3810; without an address: RFC 3590).
const LISTENER: [u8; 3] = [131, 132, 143];
/// Options with the sender's, or the target's, link-layer address.
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;

impl Claims {
    /// What the frame that begins with `head` claims.
    ///
    /// # Errors
    /// It is not to be known: tags beyond two, another protocol than IP and ARP, malformed headers,
    /// extension headers behind the end of `head`, neighbour discovery in fragments (RFC 6980).
    pub fn read(head: &[u8]) -> Result<Self, Unclear> {
        let (ethertype, at) = network_layer(head).ok_or(Unclear)?;
        match ethertype {
            ETH_P_IP => v4(head),
            ETH_P_IPV6 => v6(head),
            ETH_P_ARP => arp(head.get(at..).unwrap_or_default(), false),
            ETH_P_RARP => arp(head.get(at..).unwrap_or_default(), true),
            _ => Err(Unclear),
        }
    }
}

fn arp(packet: &[u8], reverse: bool) -> Result<Claims, Unclear> {
    let packet: &[u8; ARP_LEN] = packet.first_chunk().ok_or(Unclear)?;
    let [0, 1, 8, 0, 6, 4, o0, o1, h0, h1, h2, h3, h4, h5, a, b, c, d, ..] = *packet else {
        return Err(Unclear);
    };
    let station = Some(Mac([h0, h1, h2, h3, h4, h5]));
    let (operation, sender) = (u16::from_be_bytes([o0, o1]), Ipv4Addr::new(a, b, c, d));
    match sender.is_unspecified() {
        // A probe (RFC 5227), or whoever asks for its own address.
        true if reverse || operation == ARP_REQUEST => Ok(Claims { station, ..Claims::default() }),
        true => Err(Unclear),
        false => Ok(Claims { source: Some(sender.into()), target: None, station }),
    }
}

fn v4(head: &[u8]) -> Result<Claims, Unclear> {
    let ip = Ip::parse(head).ok_or(Unclear)?;
    let [a, b, c, d, to @ ..] = *ip.addresses(head).first_chunk::<8>().ok_or(Unclear)?;
    let source = Ipv4Addr::new(a, b, c, d);
    if !source.is_unspecified() {
        return Ok(Claims { source: Some(source.into()), ..Claims::default() });
    }
    let ports = (be16(head, ip.l4), be16(head, ip.l4 + 2));
    let asks = to == [0xff; 4]
        && ip.protocol == IPPROTO_UDP
        && !ip.fragment
        && ports == (Some(DHCP_CLIENT), Some(DHCP_SERVER));
    if asks { Ok(Claims::default()) } else { Err(Unclear) }
}

fn v6(head: &[u8]) -> Result<Claims, Unclear> {
    let ip = Ip::parse(head).filter(|ip| ip.version == Version::V6).ok_or(Unclear)?;
    let source = address(ip.addresses(head)).ok_or(Unclear)?;
    // Behind what cannot be followed there may be neighbour discovery.
    if !ip.complete {
        return Err(Unclear);
    }
    let nobody = source.is_unspecified();
    let from = |target, station| {
        Ok(Claims { source: (!nobody).then_some(source.into()), target, station })
    };
    let message = head.get(ip.l4..).unwrap_or_default();
    if ip.protocol != IPPROTO_ICMPV6 || ip.later {
        return if nobody { Err(Unclear) } else { from(None, None) };
    }
    let kind = *message.first().ok_or(Unclear)?;
    if !ND.contains(&kind) {
        let may = !nobody || LISTENER.contains(&kind) && !ip.fragment;
        return if may { from(None, None) } else { Err(Unclear) };
    }
    if ip.fragment {
        return Err(Unclear);
    }
    let target = || address(message.get(8..).unwrap_or_default()).ok_or(Unclear);
    match kind {
        ROUTER_SOLICITATION => from(None, station(message, 8, SOURCE_LINK_LAYER)),
        ROUTER_ADVERTISEMENT if !nobody => from(None, station(message, 16, SOURCE_LINK_LAYER)),
        // Duplicate address detection (RFC 4862): who has it gives it up.
        NEIGHBOR_SOLICITATION if nobody => from(Some(target()?.into()), None),
        NEIGHBOR_SOLICITATION => from(None, station(message, 24, SOURCE_LINK_LAYER)),
        NEIGHBOR_ADVERTISEMENT if !nobody => {
            from(Some(target()?.into()), station(message, 24, TARGET_LINK_LAYER))
        }
        _ if !nobody => from(None, None),
        _ => Err(Unclear),
    }
}

fn address(bytes: &[u8]) -> Option<Ipv6Addr> {
    bytes.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
}

/// The link-layer address in the first option of that kind, of those from `at` on that are there.
fn station(message: &[u8], at: usize, wanted: u8) -> Option<Mac> {
    let mut options = message.get(at..)?;
    while let [kind, units, rest @ ..] = options {
        if *kind == wanted {
            return rest.first_chunk().map(|bytes| Mac(*bytes));
        }
        // One of no length would never end: whoever gets it discards the message.
        options = options.get(usize::from(*units).max(1) * 8..)?;
    }
    None
}

#[cfg(test)]
mod tests;
