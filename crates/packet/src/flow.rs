//! A hash that spreads flows over queues.

use crate::eth::ETHERTYPE_OFFSET;
use crate::ip::{IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP, Ip};

/// Hash of the flow a frame belongs to; both directions of a flow have the same.
///
/// TCP, UDP and SCTP by addresses and ports; other IP, and every fragment, by addresses, so that
/// the fragments of a datagram stay together; everything else by MAC addresses. Tags are skipped.
/// It is not keyed and protects nothing: it chooses a receive queue of the guest the frame is
/// for. Empty and damaged frames hash to something, too.
#[inline]
pub fn flow_hash(head: &[u8]) -> u32 {
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
        endpoint(source, u16::from_be_bytes([s0, s1])),
        endpoint(destination, u16::from_be_bytes([d0, d1])),
        ip.protocol,
    )
}

#[inline]
fn endpoint(address: &[u8], port: u16) -> u64 {
    // Addresses are four or sixteen bytes.
    let folded = address.as_chunks::<4>().0.iter().fold(0u64, |hash, word| {
        hash.rotate_left(23).wrapping_mul(0x9fb2_1c65_1e98_df25)
            ^ u64::from(u32::from_be_bytes(*word))
    });
    mix(folded ^ u64::from(port) << 40)
}

fn mac_hash(head: &[u8]) -> u32 {
    let Some(macs) = head.first_chunk::<ETHERTYPE_OFFSET>() else { return 0 };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *macs;
    combine(
        mix(u64::from_be_bytes([0, 0, d0, d1, d2, d3, d4, d5])),
        mix(u64::from_be_bytes([0, 0, s0, s1, s2, s3, s4, s5])),
        0,
    )
}

/// Addition makes it symmetric; unlike exclusive-or it does not cancel equal halves.
#[inline]
fn combine(a: u64, b: u64, protocol: u8) -> u32 {
    (mix(a.wrapping_add(b) ^ u64::from(protocol)) >> 32) as u32
}

/// Multiply and fold: every input bit reaches every output bit.
#[inline]
fn mix(value: u64) -> u64 {
    let wide = u128::from(value ^ 0x2d35_8dcc_aa6c_78a5) * 0x8bb8_4b93_962e_acc9;
    (wide as u64) ^ (wide >> 64) as u64
}

#[cfg(test)]
mod tests;
