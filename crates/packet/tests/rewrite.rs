//! A rewritten packet is the packet that would have been sent like that in the first place.
#![allow(clippy::unwrap_used)]

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use common::{Spec, spec};
use packet::rewrite::{Rewrite, Unable};
use packet::{Checked, HEAD_MAX, Mac, Offloads, checksum};
use proptest::collection::vec;
use proptest::prelude::*;

/// Which of its fields are changed: MACs, addresses, ports.
type Which = [bool; 6];

fn rewrite(to: &Spec, macs: [Mac; 2], which: Which) -> Rewrite {
    let address = |n: usize| -> IpAddr {
        if to.v6 {
            let octets: [u8; 16] = to.addresses[16 * n..][..16].try_into().unwrap();
            Ipv6Addr::from(octets).into()
        } else {
            let octets: [u8; 4] = to.addresses[4 * n..][..4].try_into().unwrap();
            Ipv4Addr::from(octets).into()
        }
    };
    let port = |n: usize| u16::from_be_bytes([to.ports[2 * n], to.ports[2 * n + 1]]);
    let [dst, src, source, destination, source_port, destination_port] = which;
    Rewrite {
        dst: dst.then_some(macs[0]),
        src: src.then_some(macs[1]),
        source: source.then(|| address(0)),
        destination: destination.then(|| address(1)),
        source_port: source_port.then(|| port(0)),
        destination_port: destination_port.then(|| port(1)),
    }
}

/// The packet with these fields of the other.
fn changed(from: &Spec, to: &Spec, which: Which) -> Spec {
    let mut changed = from.clone();
    let len = if from.v6 { 16 } else { 4 };
    for (n, which) in [(0, which[2]), (1, which[3])] {
        if which {
            changed.addresses[len * n..][..len].copy_from_slice(&to.addresses[len * n..][..len]);
        }
    }
    for (n, which) in [(0, which[4]), (1, which[5])] {
        if which {
            changed.ports[2 * n..][..2].copy_from_slice(&to.ports[2 * n..][..2]);
        }
    }
    changed
}

proptest! {
    #[test]
    fn it_is_as_if_it_had_been_sent_like_that(
        from in spec(0..200),
        to in spec(0..1),
        which in any::<Which>(),
        macs in any::<[[u8; 6]; 2]>(),
        partial in any::<bool>(),
    ) {
        let macs = macs.map(Mac);
        let rewrite = rewrite(&Spec { v6: from.v6, ..to.clone() }, macs, which);
        let changed = changed(&from, &to, which);
        let mut frame = from.frame();
        let (start, offset) = (from.l4() as u16, from.csum_offset() as u16);
        let offload = if partial {
            let head = &frame[..frame.len().min(HEAD_MAX)];
            from.vnet(0).validate(frame.len(), head, Offloads::ALL).unwrap()
        } else {
            prop_assert!(checksum::complete(&mut frame, start, offset));
            Checked::PLAIN
        };
        let head = frame.len().min(HEAD_MAX);
        prop_assert_eq!(rewrite.apply(&mut frame[..head], &offload), Ok(()));
        if partial {
            prop_assert!(checksum::complete(&mut frame, start, offset));
        }
        changed.assert_valid(&frame);
        // And nothing else is different, checksums left aside.
        let mut expected = changed.frame();
        for (at, mac, which) in [(0, macs[0], which[0]), (6, macs[1], which[1])] {
            if which {
                expected[at..at + 6].copy_from_slice(&mac.0);
            }
        }
        for bytes in [&mut frame, &mut expected] {
            bytes[from.l4() + from.csum_offset()..][..2].fill(0);
            if !from.v6 {
                bytes[from.l3() + 10..][..2].fill(0);
            }
        }
        prop_assert_eq!(frame, expected);
    }

    /// What cannot be done leaves the frame as it was.
    #[test]
    fn all_or_nothing(
        bytes in vec(any::<u8>(), 0..140),
        from in spec(0..50),
        to in spec(0..1),
        which in any::<Which>(),
        damage in (0usize..100, any::<u8>()),
        cut in 0usize..200,
    ) {
        let rewrite = rewrite(&to, [Mac::BROADCAST; 2], which);
        let mut frame = from.frame();
        if let Some(byte) = frame.get_mut(damage.0) {
            *byte = damage.1;
        }
        frame.truncate(cut.min(HEAD_MAX));
        for mut head in [bytes, frame] {
            let before = head.clone();
            if rewrite.apply(&mut head, &Checked::PLAIN).is_err() {
                prop_assert_eq!(head, before);
            }
        }
    }
}

/// An IPv4 packet of a protocol, a part of it if `fragment` says so.
fn v4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let [f0, f1] = fragment.to_be_bytes();
    let head = [0x45, 0, 0, 20 + rest.len() as u8, 0, 0, f0, f1, 64, protocol, 0, 0];
    let mut packet = [&head[..], &[10, 0, 0, 1], &[10, 0, 0, 2], rest].concat();
    let sum = checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[2; 12][..], &[8, 0], &packet].concat()
}

#[test]
fn what_would_leave_a_checksum_wrong_is_not_done() {
    let address = Rewrite { source: Some(Ipv4Addr::new(10, 9, 9, 9).into()), ..Rewrite::default() };
    let port = Rewrite { source_port: Some(5), ..Rewrite::default() };
    let v6 = Rewrite { source: Some(Ipv6Addr::LOCALHOST.into()), ..Rewrite::default() };
    let udp = [0, 1, 0, 2, 0, 20, 0, 0, 1, 2];
    for (frame, rewrite, may) in [
        // A fragment that is not the first has no ports and no checksum.
        (v4(17, 0, &udp), &address, true),
        (v4(17, 0x2000, &udp), &port, true),
        (v4(17, 0x0001, &udp), &address, true),
        (v4(17, 0x0001, &udp), &port, false),
        (v4(17, 0, &udp[..7]), &address, false),
        (v4(1, 0, &[8, 0, 0, 0]), &address, true),
        (v4(1, 0, &[8, 0, 0, 0]), &port, false),
        // Its checksum covers the ports, by another sum.
        (v4(132, 0, &udp), &port, false),
        (v4(132, 0, &udp), &address, true),
        // Nobody knows.
        (v4(136, 0, &udp), &address, false),
        (v4(17, 0, &udp), &v6, false),
        ([&[2; 12][..], &[8, 6], &[0; 28]].concat(), &address, false),
    ] {
        let mut changed = frame.clone();
        let done = rewrite.apply(&mut changed, &Checked::PLAIN);
        assert_eq!(done, if may { Ok(()) } else { Err(Unable) }, "{frame:x?} {rewrite:?}");
        assert_eq!(changed != frame, may);
        if may {
            assert_eq!(checksum::checksum(&changed[14..34]), 0);
        }
    }
    // UDP that has no checksum gets none.
    let mut frame = v4(17, 0, &udp);
    address.apply(&mut frame, &Checked::PLAIN).unwrap();
    assert_eq!(frame[40..42], [0, 0]);
}
