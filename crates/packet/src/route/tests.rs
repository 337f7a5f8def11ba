use proptest::prelude::*;

use super::*;
use crate::checksum::Sum;
use crate::vnet::{Csum, Gso, GsoKind};

/// `ip_decrease_ttl` of Linux, once.
fn decrease(checksum: u16) -> u16 {
    let sum = u32::from(checksum) + 0x0100;
    (sum + u32::from(sum >= 0xffff)) as u16
}

fn v4(ttl: u8, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let length = (20 + payload) as u16;
    let mut header =
        [0x45, 0xb8, 0, 0, 0x12, 0x34, 0x40, 0, ttl, 17, 0, 0, 10, 0, 0, 1, 10, 1, 0, 1];
    header[2..4].copy_from_slice(&length.to_be_bytes());
    let sum = !Sum::ZERO.bytes(&header).fold();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend((0..payload).map(|n| n as u8));
    frame
}

fn v6(limit: u8, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x6f, 0x01, 2, 3];
    frame.extend((payload as u16).to_be_bytes());
    frame.extend([17, limit]);
    frame.extend("fd00::1".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend("fd01::1".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend((0..payload).map(|n| n as u8));
    frame
}

fn parse(frame: &[u8]) -> Result<Packet, Unroutable> {
    Packet::parse(&frame[..frame.len().min(128)], frame.len(), &Checked::PLAIN)
}

/// Changes bytes of the IP header and sets its checksum anew.
fn edited(mut frame: Vec<u8>, edit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    edit(&mut frame[14..]);
    if frame[12..14] == [8, 0] {
        frame[24..26].fill(0);
        let sum = !Sum::ZERO.bytes(&frame[14..34]).fold();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn what_is_forwarded() {
    let packet = parse(&v4(64, 100)).unwrap();
    assert_eq!((packet.hops(), packet.frame_len()), (64, 134));
    assert_eq!(packet.destination(&v4(64, 100)), IpAddr::from([10, 1, 0, 1]));
    assert_eq!(packet.source(&v4(64, 100)), IpAddr::from([10, 0, 0, 1]));
    assert!(packet.fits(120) && !packet.fits(119));
    let packet = parse(&v6(64, 100)).unwrap();
    assert_eq!((packet.hops(), packet.frame_len()), (64, 154));
    assert!(packet.fits(140) && !packet.fits(139));
    // An IPv6 packet may be a header only.
    assert_eq!(parse(&v6(1, 0)).unwrap().frame_len(), 54);
    // Padding goes.
    let mut padded = v4(3, 4);
    padded.resize(60, 0xaa);
    assert_eq!(parse(&padded).unwrap().frame_len(), 38);
    // One tag.
    let mut tagged = v4(9, 10);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    assert_eq!(parse(&tagged).unwrap().frame_len(), 14 + 4 + 30);
}

#[test]
fn what_the_router_has_to_see() {
    use Unroutable::{Address, Malformed, NotIp, Options};
    let cases: [(Vec<u8>, Unroutable); 20] = [
        (vec![0; 13], NotIp),
        (vec![0; 60], NotIp),
        ([v4(9, 9), vec![]].concat()[..33].to_vec(), Malformed),
        (edited(v4(9, 9), |ip| ip[0] = 0x46), Options),
        (edited(v4(9, 9), |ip| ip[0] = 0x44), Malformed),
        (edited(v4(9, 9), |ip| ip[0] = 0x65), Malformed),
        (edited(v4(9, 9), |ip| ip[3] = 19), Malformed),
        (edited(v4(9, 9), |ip| ip[3] = 30), Malformed),
        (edited(v4(9, 9), |ip| ip[16] = 224), Address),
        (edited(v4(9, 9), |ip| ip[16..20].fill(255)), Address),
        (edited(v4(9, 9), |ip| ip[16] = 127), Address),
        (edited(v4(9, 9), |ip| ip[12] = 0), Address),
        (edited(v4(9, 9), |ip| ip[12] = 239), Address),
        (edited(v6(9, 9), |ip| ip[6] = 0), Options),
        (edited(v6(9, 9), |ip| ip[0] = 0x45), Malformed),
        (edited(v6(9, 9), |ip| ip[5] = 10), Malformed),
        (edited(v6(9, 9), |ip| ip[24..26].copy_from_slice(&[0xfe, 0x80])), Address),
        (edited(v6(9, 9), |ip| ip[8..10].copy_from_slice(&[0xfe, 0x80])), Address),
        (edited(v6(9, 9), |ip| ip[24] = 0xff), Address),
        (edited(v6(9, 9), |ip| ip[8..24].fill(0)), Address),
    ];
    for (n, (frame, why)) in cases.into_iter().enumerate() {
        assert_eq!(parse(&frame), Err(why), "case {n}");
    }
    let mut wrong = v4(9, 9);
    wrong[24] ^= 1;
    assert_eq!(parse(&wrong), Err(Malformed));
    let mut stacked = v4(9, 10);
    stacked.splice(12..12, [0x81, 0, 0, 5, 0x81, 0, 0, 6]);
    assert_eq!(parse(&stacked), Err(NotIp));
}

#[test]
fn offloads() {
    let frame = v4(9, 3000);
    let gso = Gso { kind: GsoKind::Udp4, ecn: false, size: 1000, l3: 14, l4: 34, header_len: 42 };
    let csum = Csum { start: 34, offset: 6 };
    let offload = Checked { csum: Some(csum), gso: Some(gso) };
    let packet = Packet::parse(&frame[..128], frame.len(), &offload).unwrap();
    assert!(packet.fits(1028) && !packet.fits(1027));
    assert_eq!(packet.frame_len(), frame.len());
    // A checksum in the padding.
    let mut frame = v4(9, 4);
    frame.resize(60, 0);
    let offload = Checked { csum: Some(Csum { start: 34, offset: 6 }), gso: None };
    assert_eq!(Packet::parse(&frame, 60, &offload), Err(Unroutable::Malformed));
}

proptest! {
    #[test]
    fn checksums_are_those_of_linux(checksum in any::<u16>(), times in 1u8..=16) {
        let expected = (0..times).fold(checksum, |sum, _| decrease(sum));
        prop_assert_eq!(count_down(checksum.swap_bytes(), times).swap_bytes(), expected);
    }

    /// What is read in words is what is read byte by byte, whatever the bytes.
    #[test]
    fn the_usual_is_read_alike(
        payload in 0usize..100,
        cut in 0usize..128,
        padding in 0usize..8,
        wrong in prop::collection::vec((12usize..36, any::<u8>()), 0..3),
        mend in any::<bool>(),
    ) {
        let mut frame = v4(64, payload);
        frame.extend(vec![0; padding]);
        for (at, value) in wrong {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        if mend {
            frame = edited(frame, |_| ());
        }
        let head = &frame[..frame.len().min(HEAD_MAX).min(cut)];
        // What is behind the end may be anything.
        let mut block = [0xa5; HEAD_MAX];
        block[..frame.len().min(HEAD_MAX)].copy_from_slice(&frame[..frame.len().min(HEAD_MAX)]);
        let usual = Usual::read(&block, head.len(), frame.len())
            .map(|usual| (usual.packet(), usual.addresses()));
        let expected = (head.get(12..14) == Some(&[8, 0]))
            .then(|| Packet::read(head, frame.len(), &Checked::PLAIN))
            .flatten()
            .map(|packet| (packet, packet.address_words(head)[0]));
        prop_assert_eq!(usual, expected);
    }

    #[test]
    fn a_forwarded_packet_is_one(
        ttl in 17u8..,
        routers in 1u8..=16,
        payload in 0usize..200,
        six in any::<bool>(),
    ) {
        let frame = if six { v6(ttl, payload) } else { v4(ttl, payload) };
        let before = parse(&frame).unwrap();
        let mut head = Head::new();
        head.copy_from(&frame);
        let (source, destination) = (Mac([2, 9, 9, 9, 9, 1]), Mac([2, 9, 9, 9, 9, 2]));
        let macs = Macs::new(source, destination);
        prop_assert_eq!((macs.source(), macs.destination()), (source, destination));
        before.forward(&mut head, routers, macs);
        let after = head.bytes().to_vec();
        if !six {
            let mut block = [0; HEAD_MAX];
            block[..frame.len().min(HEAD_MAX)].copy_from_slice(&frame[..frame.len().min(HEAD_MAX)]);
            let usual = Usual::read(&block, head.len(), frame.len()).unwrap();
            usual.forward(&mut block, routers, macs);
            prop_assert_eq!(&after[..], &block[..after.len()]);
        }
        let whole = [&after[..], &frame[after.len()..]].concat();
        prop_assert_eq!(&whole[..12], &[2, 9, 9, 9, 9, 2, 2, 9, 9, 9, 9, 1][..]);
        // Also a valid checksum.
        let after = parse(&whole).unwrap();
        prop_assert_eq!(after.hops(), ttl - routers);
        prop_assert_eq!(after.frame_len(), before.frame_len());
        // Nothing else changed.
        let field = if six { 21..22 } else { 22..26 };
        for at in (12..whole.len()).filter(|at| !field.contains(at) || *at == 23) {
            prop_assert_eq!(whole[at], frame[at], "byte {}", at);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        frame in prop::collection::vec(any::<u8>(), 0..128),
        len in 0usize..3000,
        routers in any::<u8>(),
    ) {
        if let Ok(packet) = Packet::parse(&frame, len, &Checked::PLAIN) {
            prop_assert!(packet.frame_len() <= len);
            let mut head = Head::new();
            head.copy_from(&frame);
            packet.forward(&mut head, routers, Macs::default());
        }
    }
}
