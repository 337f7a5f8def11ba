//! A hash that spreads flows over queues.

use crate::eth::{ETH_P_IP, ETHERTYPE_OFFSET};
use crate::ip::{IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP, Ip};

/// Hash of the flow a frame belongs to; both directions of a flow have the same.
///
/// TCP, UDP and SCTP by addresses and ports; other IP, and every fragment, by addresses, so that
/// the fragments of a datagram stay together; everything else by MAC addresses. Tags are skipped.
/// It is not keyed and protects nothing: it chooses a receive queue of the guest the frame is
/// for. Empty and damaged frames hash to something, too.
#[inline]
pub fn flow_hash(head: &[u8]) -> u32 {
    match usual(head) {
        Some(hash) => hash,
        None => any(head),
    }
}

/// The same for nearly all frames in a few instructions: TCP or UDP in a whole IPv4 packet without
/// options or tags. `None` for the others.
#[inline(always)]
fn usual(head: &[u8]) -> Option<u32> {
    let [
        ..,
        t0,
        t1,
        v,
        _,
        _,
        _,
        _,
        _,
        f0,
        f1,
        _,
        protocol,
        _,
        _,
        a0,
        a1,
        a2,
        a3,
        b0,
        b1,
        b2,
        b3,
        c0,
        c1,
        d0,
        d1,
    ] = *head.first_chunk::<38>()?;
    // EtherType, version and header length, protocol, more-fragments flag and offset: one branch.
    let plain = u16::from_be_bytes([t0, t1]) == ETH_P_IP
        && v == 0x45
        && u16::from_be_bytes([f0, f1]) & 0x3fff == 0
        && (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP);
    let (a, b) = (u32::from_be_bytes([a0, a1, a2, a3]), u32::from_be_bytes([b0, b1, b2, b3]));
    let (c, d) = (u16::from_be_bytes([c0, c1]), u16::from_be_bytes([d0, d1]));
    plain.then(|| combine(endpoint(a.into(), c), endpoint(b.into(), d), protocol))
}

#[inline(never)]
fn any(head: &[u8]) -> u32 {
    let Some(ip) = Ip::parse(head) else { return mac_hash(head) };
    let addresses = ip.addresses(head);
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let ports = match ip.protocol {
        IPPROTO_TCP | IPPROTO_UDP | IPPROTO_SCTP if !ip.fragment => {
            head.get(ip.l4..).and_then(<[u8]>::first_chunk::<4>)
        }
        _ => None,
    };
    let [s0, s1, d0, d1] = *ports.unwrap_or(&[0; 4]);
    combine(
        endpoint(fold(source), u16::from_be_bytes([s0, s1])),
        endpoint(fold(destination), u16::from_be_bytes([d0, d1])),
        ip.protocol,
    )
}

/// An address in 64 bits: an IPv4 address as it is.
#[inline]
fn fold(address: &[u8]) -> u64 {
    // Addresses are four or sixteen bytes.
    address.as_chunks::<4>().0.iter().fold(0u64, |hash, word| {
        hash.rotate_left(23).wrapping_mul(0x9fb2_1c65_1e98_df25)
            ^ u64::from(u32::from_be_bytes(*word))
    })
}

#[inline]
fn endpoint(address: u64, port: u16) -> u64 {
    address ^ u64::from(port) << 40
}

fn mac_hash(head: &[u8]) -> u32 {
    let Some(macs) = head.first_chunk::<ETHERTYPE_OFFSET>() else { return 0 };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *macs;
    combine(
        u64::from_be_bytes([0, 0, d0, d1, d2, d3, d4, d5]),
        u64::from_be_bytes([0, 0, s0, s1, s2, s3, s4, s5]),
        0,
    )
}

/// The smaller end and the larger one, which makes it symmetric, each times a constant of its own:
/// unlike a sum that does not make neighbours' flows alike. Then multiply and fold, in which every
/// bit of the input reaches every bit of the output.
#[inline]
fn combine(a: u64, b: u64, protocol: u8) -> u32 {
    let (low, high) = (a.min(b), a.max(b));
    let both = low
        .wrapping_mul(0x9fb2_1c65_1e98_df25)
        .wrapping_add(high.rotate_left(32).wrapping_mul(0x8bb8_4b93_962e_acc9))
        ^ u64::from(protocol);
    let wide = u128::from(both ^ 0x2d35_8dcc_aa6c_78a5) * 0x8bb8_4b93_962e_acc9;
    ((wide as u64) ^ (wide >> 64) as u64) as u32
}

#[cfg(test)]
mod tests;
