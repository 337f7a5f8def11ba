//! Connections: what a router that filters or translates tells them apart by, and how it translates
//! their packets (RFC 3022; RFC 1624 for checksums), byte for byte as Linux does (`nf_nat`).

use std::net::IpAddr;

use crate::be16;
use crate::checksum::Sum;
use crate::ip::{IPPROTO_TCP, IPPROTO_UDP, Version};
use crate::put_be16;
use crate::route::Packet;
use crate::vnet::Checked;

/// Addresses and ports of a packet of a TCP or UDP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// [`IPPROTO_TCP`] or [`IPPROTO_UDP`].
    pub protocol: u8,
    /// Where the packet comes from.
    pub source: IpAddr,
    /// Its port there.
    pub source_port: u16,
    /// Where it goes. Of the same version as the source.
    pub destination: IpAddr,
    /// Its port there.
    pub destination_port: u16,
}

/// Offsets in a TCP and a UDP header.
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// Lengths of the headers.
const TCP_HLEN: usize = 20;
const UDP_HLEN: usize = 8;
/// FIN, SYN and RST.
const BEGIN_OR_END: u8 = 0b111;
/// More fragments, and where this one begins.
const FRAGMENT: u16 = 0x3fff;

impl Packet {
    /// What connection it is of: `None` if it is of none, or begins or ends one (SYN, FIN, RST), or
    /// is a fragment, or its frame leaves something to do to it that is no TCP or UDP checksum.
    /// `head` is the beginning of the frame it was read from.
    pub fn tuple(self, head: &[u8], offload: &Checked) -> Option<Tuple> {
        let ip = head.get(self.l3()..)?;
        let protocol = match self.version() {
            Version::V4 if be16(ip, 6)? & FRAGMENT != 0 => return None,
            Version::V4 => *ip.get(9)?,
            Version::V6 => *ip.get(6)?,
        };
        let (header, checksum) = match protocol {
            IPPROTO_TCP => (TCP_HLEN, TCP_CHECKSUM),
            IPPROTO_UDP => (UDP_HLEN, UDP_CHECKSUM),
            _ => return None,
        };
        let l4 = self.l4();
        let transport = head.get(l4..self.frame_len().min(head.len()))?;
        if transport.len() < header
            || protocol == IPPROTO_TCP && transport.get(TCP_FLAGS)? & BEGIN_OR_END != 0
        {
            return None;
        }
        if let Some(csum) = offload.csum
            && (usize::from(csum.start), usize::from(csum.offset)) != (l4, checksum)
        {
            return None;
        }
        Some(Tuple {
            protocol,
            source: self.source(head),
            source_port: be16(transport, 0)?,
            destination: self.destination(head),
            destination_port: be16(transport, 2)?,
        })
    }

    /// Gives it the addresses and ports of `to` in place of those of `from`, its own
    /// ([`Packet::tuple`]), and mends its checksums. Both are of one protocol and version.
    pub fn translate(self, head: &mut [u8], offload: &Checked, from: &Tuple, to: &Tuple) {
        let addresses =
            change(from.source, to.source, change(from.destination, to.destination, Sum::ZERO));
        let ports =
            [(from.source_port, to.source_port), (from.destination_port, to.destination_port)];
        let ports = ports.into_iter().fold(Sum::ZERO, |sum, (old, new)| sum.word(!old).word(new));
        let l4 = self.l4();
        let field = l4 + if from.protocol == IPPROTO_TCP { TCP_CHECKSUM } else { UDP_CHECKSUM };
        if let Some(old) = be16(head, field) {
            // What is left to do is the sum over ports and payload; the field holds that of the rest.
            let new = if offload.csum.is_some() {
                addresses.word(old).fold()
            } else if from.protocol == IPPROTO_UDP && old == 0 {
                0
            } else {
                match !addresses.word(ports.fold()).word(!old).fold() {
                    0 if from.protocol == IPPROTO_UDP => 0xffff,
                    new => new,
                }
            };
            put_be16(head, field, new);
        }
        put_be16(head, l4, to.source_port);
        put_be16(head, l4 + 2, to.destination_port);
        let (at, len) = match self.version() {
            Version::V4 => {
                let field = self.l3() + 10;
                if let Some(old) = be16(head, field) {
                    put_be16(head, field, !addresses.word(!old).fold());
                }
                (self.l3() + 12, 4)
            }
            Version::V6 => (self.l3() + 8, 16),
        };
        for (at, address) in [(at, to.source), (at + len, to.destination)] {
            if let Some(room) = head.get_mut(at..at + len) {
                match address {
                    IpAddr::V4(address) if len == 4 => room.copy_from_slice(&address.octets()),
                    IpAddr::V6(address) if len == 16 => room.copy_from_slice(&address.octets()),
                    _ => {}
                }
            }
        }
    }
}

/// What a change of addresses adds to a sum over them.
pub(crate) fn change(old: IpAddr, new: IpAddr, sum: Sum) -> Sum {
    if old == new {
        return sum;
    }
    let add = |sum: Sum, address: IpAddr, mask: u8| match address {
        IpAddr::V4(address) => sum.bytes(&address.octets().map(|byte| byte ^ mask)),
        IpAddr::V6(address) => sum.bytes(&address.octets().map(|byte| byte ^ mask)),
    };
    add(add(sum, old, 0xff), new, 0)
}

#[cfg(test)]
mod tests;
