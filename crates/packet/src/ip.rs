//! Where the transport header of an IP packet is: a bounded walk over IPv4 and IPv6 headers.

use crate::be16;
use crate::eth::{ETH_P_IP, ETH_P_IPV6, network_layer};

/// Protocol number of TCP.
pub const IPPROTO_TCP: u8 = 6;
/// Protocol number of ICMP.
pub const IPPROTO_ICMP: u8 = 1;
/// Protocol number of ICMPv6.
pub const IPPROTO_ICMPV6: u8 = 58;
/// Protocol number of UDP.
pub const IPPROTO_UDP: u8 = 17;
/// Protocol number of SCTP.
pub const IPPROTO_SCTP: u8 = 132;

const IPPROTO_HOPOPTS: u8 = 0;
const IPPROTO_ROUTING: u8 = 43;
const IPPROTO_FRAGMENT: u8 = 44;
const IPPROTO_AH: u8 = 51;
const IPPROTO_DSTOPTS: u8 = 60;
const IPPROTO_MOBILITY: u8 = 135;
const IPPROTO_HIP: u8 = 139;
const IPPROTO_SHIM6: u8 = 140;

/// More extension headers than this are not followed. RFC 8200 knows six different ones.
const EXTENSIONS_MAX: usize = 8;

/// IP version of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IPv4, RFC 791.
    V4,
    /// IPv6, RFC 8200.
    V6,
}

/// What the IP headers of a frame say, as far as the head goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// IPv4 or IPv6.
    pub version: Version,
    /// Offset of the IP header in the frame.
    pub l3: usize,
    /// Offset of what follows the IP header and all extension headers; for a fragment that is not
    /// the first this is payload.
    pub l4: usize,
    /// Protocol of what stands at `l4`.
    pub protocol: u8,
    /// The packet is a fragment (the first one included).
    pub fragment: bool,
    /// It is a fragment and not the first: no transport header stands at `l4`.
    pub later: bool,
    /// The walk reached a transport header; otherwise `protocol` is an extension header the head
    /// ends in, or one too many.
    pub complete: bool,
    /// An IPv6 routing header has segments left: the address the transport checksum covers is not
    /// the one in the IPv6 header (RFC 8200, 8.1).
    pub routed: bool,
    /// Length of the packet from `l3` on as its header says, bytes; 0 if the field is 0.
    pub length: usize,
}

impl Ip {
    /// Finds the IP headers of a frame behind at most two tags. `None` if it does not carry IP or
    /// its fixed header is not within `head`.
    #[inline]
    pub fn parse(head: &[u8]) -> Option<Self> {
        let (ethertype, l3) = network_layer(head)?;
        match ethertype {
            ETH_P_IP => Self::parse_v4(head, l3),
            ETH_P_IPV6 => Self::parse_v6(head, l3),
            _ => None,
        }
    }

    fn parse_v4(head: &[u8], l3: usize) -> Option<Self> {
        let header: &[u8; 20] = head.get(l3..)?.first_chunk()?;
        let header_len = usize::from(header[0] & 0xf) * 4;
        if header[0] >> 4 != 4 || header_len < 20 {
            return None;
        }
        Some(Self {
            version: Version::V4,
            l3,
            l4: l3 + header_len,
            protocol: header[9],
            // More-fragments flag or an offset; don't-fragment and the reserved bit do not count.
            fragment: u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0,
            later: u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0,
            complete: true,
            routed: false,
            length: usize::from(u16::from_be_bytes([header[2], header[3]])),
        })
    }

    fn parse_v6(head: &[u8], l3: usize) -> Option<Self> {
        let header: &[u8; 40] = head.get(l3..)?.first_chunk()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let mut ip = Self {
            version: Version::V6,
            l3,
            l4: l3 + 40,
            protocol: header[6],
            fragment: false,
            later: false,
            complete: false,
            routed: false,
            length: if payload == 0 { 0 } else { payload + 40 },
        };
        for _ in 0..EXTENSIONS_MAX {
            if !ip.step_v6(head) {
                ip.complete = true;
                break;
            }
        }
        Some(ip)
    }

    /// Steps over one extension header. False at the transport header, or where nothing can be
    /// known of what follows.
    fn step_v6(&mut self, head: &[u8]) -> bool {
        let unit = match self.protocol {
            IPPROTO_HOPOPTS | IPPROTO_ROUTING | IPPROTO_DSTOPTS | IPPROTO_MOBILITY
            | IPPROTO_HIP | IPPROTO_SHIM6 => 8,
            IPPROTO_FRAGMENT => 0,
            IPPROTO_AH => 4,
            _ => return false,
        };
        // The head ends inside the extension headers: known so far is all that is known.
        let Some([next, len, _, segments_left]) =
            head.get(self.l4..).and_then(<[u8]>::first_chunk::<4>).copied()
        else {
            return true;
        };
        if self.protocol == IPPROTO_FRAGMENT {
            // An "atomic" fragment (offset 0, no more) is still one: nobody segments it.
            self.fragment = true;
            // Behind the header of a later fragment stands payload, not another header.
            if be16(head, self.l4 + 2).is_none_or(|field| field & 0xfff8 != 0) {
                self.protocol = next;
                self.l4 += 8;
                self.later = true;
                return false;
            }
        }
        self.routed |= self.protocol == IPPROTO_ROUTING && segments_left != 0;
        self.l4 += match self.protocol {
            IPPROTO_AH => (usize::from(len) + 2) * unit,
            _ => 8 + usize::from(len) * unit,
        };
        self.protocol = next;
        true
    }

    /// The two addresses, source first, as they stand in the header: 8 or 32 bytes.
    #[inline]
    pub fn addresses<'h>(&self, head: &'h [u8]) -> &'h [u8] {
        let (from, len) = match self.version {
            Version::V4 => (self.l3 + 12, 8),
            Version::V6 => (self.l3 + 8, 32),
        };
        head.get(from..from + len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
