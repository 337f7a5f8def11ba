use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;
use crate::Head;
use crate::checksum::pseudo_header;
use crate::vnet::Csum;

/// A frame with this tuple; `partial`: with its checksum left to do.
fn frame(tuple: &Tuple, flags: u8, payload: &[u8], partial: bool) -> (Vec<u8>, Checked) {
    let mut l4 = [tuple.source_port, tuple.destination_port].map(u16::to_be_bytes).concat();
    let field = if tuple.protocol == IPPROTO_TCP {
        l4.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0]);
        TCP_CHECKSUM
    } else {
        l4.extend(((8 + payload.len()) as u16).to_be_bytes());
        l4.extend([0, 0]);
        UDP_CHECKSUM
    };
    l4.extend(payload);
    let addresses = match (tuple.source, tuple.destination) {
        (IpAddr::V4(a), IpAddr::V4(b)) => [a.octets(), b.octets()].concat(),
        (IpAddr::V6(a), IpAddr::V6(b)) => [a.octets(), b.octets()].concat(),
        _ => panic!("two versions"),
    };
    let pseudo = pseudo_header(&addresses, tuple.protocol, l4.len() as u32);
    let sum = if partial {
        pseudo.fold()
    } else {
        let sum = pseudo.bytes(&l4).finish();
        if tuple.protocol == IPPROTO_UDP && sum == 0 { 0xffff } else { sum }
    };
    l4[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if tuple.source.is_ipv4() {
        let mut ip = vec![0x45, 0];
        ip.extend(((20 + l4.len()) as u16).to_be_bytes());
        ip.extend([0, 1, 0x40, 0, 64, tuple.protocol, 0, 0]);
        ip.extend(&addresses);
        let sum = Sum::ZERO.bytes(&ip).finish();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend([8, 0]);
        frame.extend(ip);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((l4.len() as u16).to_be_bytes());
        frame.extend([tuple.protocol, 64]);
        frame.extend(&addresses);
    }
    let start = frame.len() as u16;
    frame.extend(l4);
    let csum = partial.then_some(Csum { start, offset: field as u16 });
    (frame, Checked { csum, ..Checked::PLAIN })
}

fn tuples() -> impl Strategy<Value = [Tuple; 2]> {
    let ports = || any::<[u16; 4]>();
    let protocol = prop_oneof![Just(IPPROTO_TCP), Just(IPPROTO_UDP)];
    let v4 = any::<[[u8; 3]; 4]>().prop_map(|all| all.map(|[a, b, c]| IpAddr::from([10, a, b, c])));
    let v6 = any::<[u64; 4]>().prop_map(|all| {
        all.map(|low| IpAddr::from(Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(low))))
    });
    (prop_oneof![v4, v6], ports(), protocol).prop_map(|([a, b, c, d], [e, f, g, h], protocol)| {
        [(a, e, b, f), (c, g, d, h)].map(|(source, source_port, destination, destination_port)| {
            Tuple { protocol, source, source_port, destination, destination_port }
        })
    })
}

fn parse(frame: &[u8], offload: &Checked) -> (Head, Packet) {
    let mut head = Head::new();
    head.copy_from(frame);
    let packet = Packet::parse(head.bytes(), frame.len(), offload).unwrap();
    (head, packet)
}

proptest! {
    /// What comes out is what would have been made with the other tuple at once.
    #[test]
    fn translated_is_as_if_made_so(
        [from, to] in tuples(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        partial: bool,
        no_checksum: bool,
    ) {
        let (mut old, offload) = frame(&from, 0x10, &payload, partial);
        let (mut new, _) = frame(&to, 0x10, &payload, partial);
        if no_checksum && from.protocol == IPPROTO_UDP && !partial {
            let field = if from.source.is_ipv4() { 40 } else { 60 };
            old[field..field + 2].fill(0);
            new[field..field + 2].fill(0);
        }
        let (mut head, packet) = parse(&old, &offload);
        prop_assert_eq!(packet.tuple(head.bytes(), &offload), Some(from));
        packet.translate(head.bytes_mut(), &offload, &from, &to);
        let known = head.len();
        prop_assert_eq!(head.bytes(), &new[..known]);
    }
}

fn some() -> Tuple {
    let (source, destination) = ([10, 0, 0, 1].into(), [10, 9, 0, 1].into());
    Tuple { protocol: IPPROTO_TCP, source, source_port: 1000, destination, destination_port: 80 }
}

#[test]
fn the_router_sees_how_connections_begin_and_end() {
    for (flags, seen) in
        [(0x10, true), (0x18, true), (0x02, false), (0x12, false), (0x11, false), (0x04, false)]
    {
        let (frame, offload) = frame(&some(), flags, b"data", false);
        let (head, packet) = parse(&frame, &offload);
        assert_eq!(packet.tuple(head.bytes(), &offload).is_some(), seen, "{flags:x}");
    }
}

#[test]
fn what_is_no_packet_of_a_connection() {
    let (whole, offload) = frame(&some(), 0x10, b"data", false);
    let with = |at: usize, byte: u8| {
        let mut frame = whole.clone();
        frame[at] = byte;
        frame[24..26].fill(0);
        let sum = Sum::ZERO.bytes(&frame[14..34]).finish();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        let (head, packet) = parse(&frame, &offload);
        packet.tuple(head.bytes(), &offload)
    };
    assert_eq!(with(20, 0x40), Some(some()));
    assert_eq!(with(20, 0x20), None, "a first fragment");
    assert_eq!(with(21, 1), None, "another fragment");
    assert_eq!(with(23, 1), None, "ICMP");
    assert_eq!(with(17, 39), None, "half a header");
    let odd = Checked { csum: Some(Csum { start: 34, offset: 6 }), ..Checked::PLAIN };
    let (head, packet) = parse(&whole, &odd);
    assert_eq!(packet.tuple(head.bytes(), &odd), None, "another checksum to be done");
}
