//! Other addresses and ports for a packet, with its checksums mended (RFC 1624; RFC 3022).
//!
//! All or nothing: a frame in which not everything that depends on a change can be changed with it
//! stays as it is. That is so for ports behind what hides them, for addresses that a checksum
//! behind the end of the head covers, and for protocols of which it is not known here whether they
//! cover the addresses.

use std::net::IpAddr;

use crate::be16;
use crate::checksum::Sum;
use crate::eth::Mac;
use crate::ip::{
    IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP, Ip, Version,
};
use crate::put_be16;
use crate::tuple::change;
use crate::vnet::Checked;

/// What is to be different; `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Destination of the frame.
    pub dst: Option<Mac>,
    /// Source of the frame.
    pub src: Option<Mac>,
    /// Where the packet is from.
    pub source: Option<IpAddr>,
    /// Where it goes.
    pub destination: Option<IpAddr>,
    /// TCP and UDP.
    pub source_port: Option<u16>,
    /// TCP and UDP.
    pub destination_port: Option<u16>,
}

/// The frame cannot be changed like that; it is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unable;

/// Protocols whose checksum, if there is one, does not cover the addresses: besides ICMP and SCTP
/// these are GRE and ESP.
const WITHOUT_ADDRESSES: [u8; 4] = [IPPROTO_ICMP, IPPROTO_SCTP, 47, 50];

/// A packet, and what is to be changed in it.
struct Plan {
    ip: Ip,
    from: [IpAddr; 2],
    to: [IpAddr; 2],
    /// Where the checksum of the transport header is, if that has one that is concerned.
    checksum: Option<usize>,
    /// Ports as they are and as they are to be.
    ports: Option<[(u16, u16); 2]>,
}

impl Rewrite {
    /// Whether nothing is to be different.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Changes the frame that begins with `head`. Its length and the place of everything in it stay.
    ///
    /// # Errors
    /// It cannot be; then nothing was changed.
    pub fn apply(&self, head: &mut [u8], offload: &Checked) -> Result<(), Unable> {
        let plan = self.plan(head)?;
        for (at, mac) in [(0, self.dst), (6, self.src)] {
            let place = head.get_mut(at..at + 6).ok_or(Unable)?;
            if let Some(mac) = mac {
                place.copy_from_slice(&mac.0);
            }
        }
        if let Some(plan) = plan {
            plan.carry_out(head, offload);
        }
        Ok(())
    }

    fn plan(&self, head: &[u8]) -> Result<Option<Plan>, Unable> {
        if head.len() < 12 {
            return Err(Unable);
        }
        let addresses = self.source.is_some() || self.destination.is_some();
        let ports = self.source_port.is_some() || self.destination_port.is_some();
        if !addresses && !ports {
            return Ok(None);
        }
        let ip = Ip::parse(head).filter(|ip| ip.complete && !ip.routed).ok_or(Unable)?;
        let from = read(&ip, head).ok_or(Unable)?;
        let [source, destination] = from;
        let to = [self.source.unwrap_or(source), self.destination.unwrap_or(destination)];
        if to.iter().any(|address| address.is_ipv4() != (ip.version == Version::V4)) {
            return Err(Unable);
        }
        let offset = match ip.protocol {
            _ if ip.later => None,
            IPPROTO_TCP => Some(16),
            IPPROTO_UDP => Some(6),
            IPPROTO_ICMPV6 if ip.version == Version::V6 => Some(2),
            other if WITHOUT_ADDRESSES.contains(&other) => None,
            _ => return Err(Unable),
        };
        let checksum = offset.map(|offset| ip.l4 + offset);
        if checksum.is_some_and(|at| be16(head, at).is_none()) {
            return Err(Unable);
        }
        let ports = match ports {
            true if matches!(ip.protocol, IPPROTO_TCP | IPPROTO_UDP) && !ip.later => {
                let source = be16(head, ip.l4).ok_or(Unable)?;
                let destination = be16(head, ip.l4 + 2).ok_or(Unable)?;
                Some([
                    (source, self.source_port.unwrap_or(source)),
                    (destination, self.destination_port.unwrap_or(destination)),
                ])
            }
            true => return Err(Unable),
            false => None,
        };
        Ok(Some(Plan { ip, from, to, checksum, ports }))
    }
}

impl Plan {
    fn carry_out(&self, head: &mut [u8], offload: &Checked) {
        let Self { ip, from, to, checksum, ports } = self;
        let pairs = from.iter().zip(to);
        let addresses = pairs.fold(Sum::ZERO, |sum, (old, new)| change(*old, *new, sum));
        let numbers = ports.iter().flatten();
        let numbers = numbers.fold(Sum::ZERO, |sum, (old, new)| sum.word(!old).word(*new));
        if let Some(at) = *checksum
            && let Some(old) = be16(head, at)
        {
            let partial = offload
                .csum
                .is_some_and(|csum| usize::from(csum.start) + usize::from(csum.offset) == at);
            let udp = ip.protocol == IPPROTO_UDP;
            let new = if partial {
                // What is left to do is the sum over ports and payload; here is that of the rest.
                addresses.word(old).fold()
            } else if udp && old == 0 {
                0
            } else {
                match !addresses.word(numbers.fold()).word(!old).fold() {
                    0 if udp => 0xffff,
                    new => new,
                }
            };
            put_be16(head, at, new);
        }
        for ((_, port), at) in ports.iter().flatten().zip([ip.l4, ip.l4 + 2]) {
            put_be16(head, at, *port);
        }
        let (first, len) = match ip.version {
            Version::V4 => {
                let at = ip.l3 + 10;
                if let Some(old) = be16(head, at) {
                    put_be16(head, at, !addresses.word(!old).fold());
                }
                (ip.l3 + 12, 4)
            }
            Version::V6 => (ip.l3 + 8, 16),
        };
        for (address, at) in to.iter().zip([first, first + len]) {
            let Some(place) = head.get_mut(at..at + len) else { continue };
            match address {
                IpAddr::V4(address) if len == 4 => place.copy_from_slice(&address.octets()),
                IpAddr::V6(address) if len == 16 => place.copy_from_slice(&address.octets()),
                _ => {}
            }
        }
    }
}

/// The addresses of a packet.
fn read(ip: &Ip, head: &[u8]) -> Option<[IpAddr; 2]> {
    let bytes = ip.addresses(head);
    match ip.version {
        Version::V4 => {
            let (source, destination) = bytes.first_chunk::<8>()?.split_at(4);
            let address = |bytes: &[u8]| Some(IpAddr::from(*bytes.first_chunk::<4>()?));
            Some([address(source)?, address(destination)?])
        }
        Version::V6 => {
            let (source, destination) = bytes.first_chunk::<32>()?.split_at(16);
            let address = |bytes: &[u8]| Some(IpAddr::from(*bytes.first_chunk::<16>()?));
            Some([address(source)?, address(destination)?])
        }
    }
}
