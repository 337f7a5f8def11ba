//! A frame as it was described: Ethernet, IP, and TCP or UDP with right checksums.

use api::{Flow, Mac};
use packet::checksum::{checksum, complete, pseudo_header};
use packet::eth::{ETH_P_8021Q, ETH_P_IP, ETH_P_IPV6};
use std::net::IpAddr;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Header lengths, bytes.
const IPV4_HLEN: usize = 20;
const IPV6_HLEN: usize = 40;
const TCP_HLEN: usize = 20;
const UDP_HLEN: usize = 8;
/// ACK, with a header of five words and a window: a packet of a connection that is established.
const TCP_ACK: [u8; 8] = [0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];

/// The frame; both its addresses are known by now.
pub(super) fn build(flow: &Flow, smac: Mac, dmac: Mac) -> Vec<u8> {
    let mut frame = [dmac.0, smac.0].concat();
    if let Some(vlan) = flow.vlan {
        frame.extend(ETH_P_8021Q.to_be_bytes());
        frame.extend(vlan.to_be_bytes());
    }
    let proto = flow.proto.unwrap_or(TCP);
    let ttl = flow.ttl.unwrap_or(64);
    let ip = if flow.src.is_ipv4() { IPV4_HLEN } else { IPV6_HLEN };
    let payload = payload(flow, proto, ip);
    // The largest packet that can be asked for has 65535 bytes.
    let length = payload.len() as u16;
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.extend(ETH_P_IP.to_be_bytes());
            let total = (length + IPV4_HLEN as u16).to_be_bytes();
            let mut header =
                [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, ttl, proto, 0, 0].to_vec();
            header.extend(src.octets());
            header.extend(dst.octets());
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            frame.extend(header);
        }
        (src, dst) => {
            frame.extend(ETH_P_IPV6.to_be_bytes());
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([proto, ttl]);
            frame.extend(octets(src));
            frame.extend(octets(dst));
        }
    }
    frame.extend(payload);
    frame
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// What is behind the IP header of `ip` bytes.
fn payload(flow: &Flow, proto: u8, ip: usize) -> Vec<u8> {
    let ports = [flow.sport.unwrap_or(0), flow.dport.unwrap_or(0)].map(u16::to_be_bytes).concat();
    let (header, field) = match proto {
        TCP => (TCP_HLEN, 16),
        UDP => (UDP_HLEN, 6),
        _ => (0, 0),
    };
    let length = flow.size.map_or(header, |size| (size as usize).saturating_sub(ip));
    let mut payload = match proto {
        TCP => [&ports[..], &[0; 8], &TCP_ACK].concat(),
        UDP => [&ports[..], &(length as u16).to_be_bytes(), &[0; 2]].concat(),
        _ => Vec::new(),
    };
    payload.resize(length, 0);
    let addresses = [octets(flow.src), octets(flow.dst)].concat();
    let seed = !pseudo_header(&addresses, proto, length as u32).finish();
    if let Some(place) = payload.get_mut(field..field + 2).filter(|_| header > 0) {
        place.copy_from_slice(&seed.to_be_bytes());
        // One that is cut off has no checksum to be right.
        complete(&mut payload, 0, field as u16);
    }
    payload
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::Checked;
    use packet::route::Packet;

    fn flow(src: &str, dst: &str) -> Flow {
        Flow {
            from: "a".parse().unwrap(),
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            proto: None,
            sport: Some(1000),
            dport: Some(80),
            ttl: Some(9),
            size: None,
            vlan: None,
            smac: None,
            dmac: None,
        }
    }

    #[test]
    fn what_is_built_is_a_packet_that_routers_forward() {
        let macs = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        for (src, dst, ip) in [("10.0.0.1", "10.0.9.9", 20), ("2001:db8::1", "2001:db8:9::9", 40)] {
            for (proto, header) in [(TCP, TCP_HLEN), (UDP, UDP_HLEN), (1, 0), (200, 0)] {
                for (vlan, tag) in [(None, 0), (Some(7), 4)] {
                    for size in [None, Some(1400), Some(65_535), Some(25)] {
                        let flow = Flow { proto: Some(proto), vlan, size, ..flow(src, dst) };
                        let frame = build(&flow, macs.0, macs.1);
                        let length = size.map_or(ip + header, |size| ip.max(size as usize));
                        assert_eq!(frame.len(), 14 + tag + length);
                        let packet = Packet::parse(&frame, frame.len(), &Checked::PLAIN).unwrap();
                        let ends = (packet.source(&frame), packet.destination(&frame));
                        assert_eq!(ends, (flow.src, flow.dst));
                        assert_eq!(packet.hops(), 9);
                        if header > 0 && length >= ip + header {
                            let addresses = [octets(flow.src), octets(flow.dst)].concat();
                            let payload = &frame[14 + tag + ip..];
                            let pseudo = pseudo_header(&addresses, proto, payload.len() as u32);
                            assert_eq!(pseudo.bytes(payload).finish(), 0, "{flow:?}");
                        }
                    }
                }
            }
        }
    }
}
