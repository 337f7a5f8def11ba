//! Checksums and segmentation from every kind of sender to every kind of receiver.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use common::frames::*;
use common::plane::Plane;
use common::vm::{ALL_OFFLOADS, Guest, Received, Vm};
use common::{Rng, wait};
use dataplane::{DropReason, PortId, PortState, Traffic};

const GUEST_CSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
const GUEST_USO4: u64 = 1 << 54;
const GUEST_USO6: u64 = 1 << 55;

/// What a sender leaves to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Nothing,
    Checksum { v6: bool, udp: bool },
    Segments { v6: bool, udp: bool, ecn: bool },
}

const WORK: [Work; 11] = [
    Work::Nothing,
    Work::Checksum { v6: false, udp: false },
    Work::Checksum { v6: true, udp: true },
    Work::Checksum { v6: true, udp: false },
    Work::Checksum { v6: false, udp: true },
    Work::Segments { v6: false, udp: false, ecn: false },
    Work::Segments { v6: true, udp: false, ecn: false },
    Work::Segments { v6: false, udp: false, ecn: true },
    Work::Segments { v6: true, udp: false, ecn: true },
    Work::Segments { v6: false, udp: true, ecn: false },
    Work::Segments { v6: true, udp: true, ecn: false },
];

impl Work {
    /// The features of a receiver that takes it as it is.
    fn needs(self) -> u64 {
        match self {
            Work::Nothing => 0,
            Work::Checksum { .. } => GUEST_CSUM,
            Work::Segments { v6, udp, ecn } => {
                let kind = match (v6, udp) {
                    (false, false) => GUEST_TSO4,
                    (true, false) => GUEST_TSO6,
                    (false, true) => GUEST_USO4,
                    (true, true) => GUEST_USO6,
                };
                GUEST_CSUM | kind | if ecn { GUEST_ECN } else { 0 }
            }
        }
    }

    /// A packet of random size and contents, and how it leaves the sender.
    fn make(self, rng: &mut Rng) -> (Packet, Vnet, Vec<u8>) {
        let (v6, udp, ecn) = match self {
            Work::Nothing => (rng.one_in(2), rng.one_in(2), false),
            Work::Checksum { v6, udp } => (v6, udp, false),
            Work::Segments { v6, udp, ecn } => (v6, udp, ecn),
        };
        let segments = matches!(self, Work::Segments { .. });
        let size = rng.pick(&[216, 1000, 1208, 1400]);
        let len = match segments {
            false => rng.range(0, 1400),
            // The most there can be, the least, exact multiples, and anything.
            true => match rng.below(6) {
                0 => 65_535,
                1 => usize::from(size) + 1,
                2 => usize::from(size) * rng.range(2, 40),
                _ => rng.range(usize::from(size) + 1, 65_000),
            },
        };
        let mut packet = Packet::new(v6, udp, mac(1), mac(0), rng.bytes(len));
        packet.id = rng.next() as u16;
        packet.seq = rng.next() as u32;
        if !udp {
            packet.flags = ACK | rng.pick(&[0, FIN, PSH, FIN | PSH]) | if ecn { CWR } else { 0 };
            let options = rng.pick(&[0, 4, 12, 20]);
            packet.options = rng.bytes(options);
        }
        // No packet is longer than 65535 bytes (virtio 1.3, 5.1.6.3.1, allows one more).
        let headers = packet.offsets().2;
        packet.payload.truncate(65_549 - headers);
        match self {
            Work::Nothing => (packet.clone(), Vnet::default(), packet.full()),
            Work::Checksum { .. } => (packet.clone(), packet.needs_csum(), packet.partial()),
            Work::Segments { .. } => (packet.clone(), packet.needs_gso(size), packet.partial()),
        }
    }
}

/// Every set of features a receiver can have: segmentation needs the checksum, ECN needs TSO
/// (virtio 1.3, 5.1.3.1).
fn receivers() -> Vec<u64> {
    let all = [GUEST_TSO4, GUEST_TSO6, GUEST_USO4, GUEST_USO6, GUEST_ECN];
    let mut sets = vec![0];
    for bits in 0..32u32 {
        let on = (0..5).filter(|bit| bits >> bit & 1 == 1).fold(0, |set, bit| set | all[bit]);
        if on & GUEST_ECN == 0 || on & (GUEST_TSO4 | GUEST_TSO6) != 0 {
            sets.push(GUEST_CSUM | on);
        }
    }
    sets
}

/// A receiver with buffers as the specification asks of it (5.1.6.3.1): no larger than needed.
fn receiver(offloads: u64, mergeable: bool, packed: bool) -> Guest {
    let large = offloads & !GUEST_CSUM != 0;
    let len = match (mergeable, large) {
        (true, _) => 1500,
        (false, false) => 1526,
        (false, true) => 65_562,
    };
    let rx_buffer = (len, len);
    Guest { offloads, mergeable, packed, ring: 512, rx_buffer, rx_buffers: 320, ..Guest::plain() }
}

fn sender() -> Guest {
    Guest {
        offloads: ALL_OFFLOADS,
        indirect: true,
        tx_max: 65_600,
        tx_buffers: 32,
        layouts: Some(5),
        ..Guest::plain()
    }
}

/// What the receiver of `packet` must see, and how its port counts it.
fn judge(work: Work, taken: u64, packet: &Packet, header: Vnet, got: &[Received]) -> Traffic {
    let segmented = matches!(work, Work::Segments { .. });
    let mut count = Traffic { frames: got.len() as u64, ..Traffic::default() };
    count.bytes = got.iter().map(|one| one.frame.len() as u64).sum();
    if taken & work.needs() == work.needs() {
        let frame = if work == Work::Nothing { packet.full() } else { packet.partial() };
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].header, header, "passed as it was");
        assert!(got[0].frame == frame);
        count.gso_frames = u64::from(segmented);
        return count;
    }
    let partial = segmented && taken & GUEST_CSUM != 0;
    let size = if segmented { usize::from(header.gso_size) } else { usize::MAX };
    let parts: Vec<Packet> = got.iter().map(|one| Packet::read(&one.frame, partial)).collect();
    let whole: Vec<u8> = parts.iter().flat_map(|part| part.payload.clone()).collect();
    assert!(whole == packet.payload, "the payload as it was sent");
    for (n, (part, one)) in parts.iter().zip(got).enumerate() {
        let last = n + 1 == parts.len();
        let expected = if partial { packet.needs_csum() } else { Vnet::default() };
        assert_eq!(one.header, expected);
        assert!(part.payload.len() == size || last && part.payload.len() <= size);
        let done = (n as u32).wrapping_mul(size as u32);
        let mut flags = packet.flags;
        if !last {
            flags &= !(FIN | PSH);
        }
        if n > 0 {
            flags &= !CWR;
        }
        let same = Packet {
            payload: part.payload.clone(),
            id: if packet.v6 { 0 } else { packet.id.wrapping_add(n as u16) },
            seq: if packet.udp { 0 } else { packet.seq.wrapping_add(done) },
            flags: if packet.udp { 0 } else { flags },
            ..packet.clone()
        };
        assert_eq!(format!("{part:?}"), format!("{same:?}"), "segment {n}");
    }
    if segmented {
        (count.segmented, count.segments) = (1, got.len() as u64);
    } else {
        count.csum_completed = 1;
    }
    count
}

/// Sends one packet of each kind of work; every one arrives as the receiver can take it, and is
/// counted so.
fn play(plane: &Plane, ports: [PortId; 2], a: &mut Vm, b: &mut Vm, rng: &mut Rng) {
    let taken = b.guest.offloads;
    for work in WORK {
        let (packet, header, frame) = work.make(rng);
        let before = ports.map(|port| plane.status(port));
        a.send_on(0, &header, &frame);
        let passes = taken & work.needs() == work.needs();
        let pieces = match work {
            Work::Segments { .. } if !passes => {
                packet.payload.len().div_ceil(header.gso_size.into())
            }
            _ => 1,
        };
        let got = b.take(pieces);
        let expected = judge(work, taken, &packet, header, &got);
        a.drain();
        let sent = Traffic {
            frames: 1,
            bytes: frame.len() as u64,
            gso_frames: u64::from(header.gso_type != 0),
            ..Traffic::default()
        };
        let counted = || {
            let from = difference(&plane.status(ports[0]).from_port, &before[0].from_port);
            let to = difference(&plane.status(ports[1]).to_port, &before[1].to_port);
            (from, to)
        };
        let what =
            || format!("{work:?} to {taken:#x}: {:#?}, not {:#?}", counted(), (sent, expected));
        wait(what, || counted() == (sent, expected));
    }
}

fn difference(now: &Traffic, before: &Traffic) -> Traffic {
    Traffic {
        frames: now.frames - before.frames,
        bytes: now.bytes - before.bytes,
        gso_frames: now.gso_frames - before.gso_frames,
        csum_completed: now.csum_completed - before.csum_completed,
        segmented: now.segmented - before.segmented,
        segments: now.segments - before.segments,
    }
}

/// The sender with its receivers one after the other: both know each other all the time.
fn every_receiver(mergeable: bool) {
    let plane = Plane::new();
    let mut rng = Rng::new(u64::from(mergeable));
    let (from, mut a) = plane.vm("sender", &sender());
    let to = plane.port("receiver");
    for (n, offloads) in receivers().into_iter().enumerate() {
        let guest = receiver(offloads, mergeable, n % 2 == 1);
        let mut b = plane.connect("receiver", &guest);
        b.send(&eth(mac(0), mac(1), b"here I am"));
        assert_eq!(a.take(1).len(), 1);
        play(&plane, [from, to], &mut a, &mut b, &mut rng);
        b.leave();
        plane.wait_state(to, &PortState::Waiting);
    }
    let drops = [from, to].map(|port| plane.status(port).drops);
    assert_eq!(drops, [[], []]);
    plane.end();
}

#[test]
fn all_offloads_reach_receivers_with_mergeable_buffers() {
    every_receiver(true);
}

#[test]
fn all_offloads_reach_receivers_with_single_buffers() {
    every_receiver(false);
}

/// One flooded frame to receivers that can take it, that can take half of it, and that cannot.
#[test]
fn a_flooded_frame_is_finished_for_each_receiver() {
    let plane = Plane::new();
    let (from, mut a) = plane.vm("sender", &sender());
    let (mut ports, mut vms) = (vec![from], Vec::new());
    let kinds = [GUEST_CSUM | GUEST_TSO4 | GUEST_ECN, GUEST_CSUM, 0, GUEST_CSUM | GUEST_USO4];
    for (n, offloads) in kinds.into_iter().enumerate() {
        let (port, vm) = plane.vm(&format!("r{n}"), &receiver(offloads, n % 2 == 0, n == 2));
        ports.push(port);
        vms.push(vm);
    }
    let mut rng = Rng::new(6);
    for _ in 0..5 {
        for work in WORK {
            let (mut packet, header, _) = work.make(&mut rng);
            packet.dst = BROADCAST;
            let frame = if work == Work::Nothing { packet.full() } else { packet.partial() };
            a.send_on(0, &header, &frame);
            for vm in &mut vms {
                let passes = vm.guest.offloads & work.needs() == work.needs();
                let pieces = match work {
                    Work::Segments { .. } if !passes => {
                        packet.payload.len().div_ceil(header.gso_size.into())
                    }
                    _ => 1,
                };
                let got = vm.take(pieces);
                judge(work, vm.guest.offloads, &packet, header, &got);
            }
        }
    }
    a.drain();
    let balance = plane.settle(&ports, a.sent);
    assert_eq!(balance.drops, []);
    plane.end();
}

/// Segments that do not fit are dropped one by one, and the account still holds.
#[test]
fn segments_without_a_buffer_are_counted() {
    let plane = Plane::new();
    let (from, mut a) = plane.vm("sender", &sender());
    let guest = Guest { rx_buffers: 10, ..receiver(0, true, false) };
    let (to, mut b) = plane.vm("receiver", &guest);
    b.refilling = false;
    let packet = Packet::new(false, false, mac(1), mac(0), vec![1; 25_000]);
    a.send_on(0, &packet.needs_gso(1000), &packet.partial());
    let mut whole = Vec::new();
    for one in b.take(10) {
        whole.extend(Packet::read(&one.frame, false).payload);
    }
    assert!(whole == packet.payload[..10_000]);
    a.drain();
    let balance = plane.settle(&[from, to], 1);
    assert_eq!(balance.drops, [(DropReason::RxRingEmpty, 15)]);
    assert_eq!((balance.to.segmented, balance.to.segments, balance.to.frames), (1, 25, 10));
    plane.end();
}

/// A change that makes a good header one that must be refused.
type Lie = (&'static str, fn(&mut Packet, &mut Vnet, &mut Vec<u8>));

/// Lies about a frame to be segmented, which was right before.
const LIES: &[Lie] = &[
    ("segments of no size", |_, h, _| h.gso_size = 0),
    ("segments of one byte", |_, h, _| h.gso_size = 1),
    ("more segments than allowed", |_, h, _| h.gso_size = 7),
    ("segmentation without a checksum", |_, h, _| h.flags = 0),
    ("only an unknown flag", |_, h, _| h.flags = 0x80),
    ("TCP over IPv6 that is IPv4", |_, h, _| h.gso_type = GSO_TCPV6),
    ("UDP that is TCP", |_, h, _| h.gso_type = GSO_UDP_L4),
    ("UDP fragmentation", |_, h, _| h.gso_type = GSO_UDP),
    ("an unknown type", |_, h, _| h.gso_type = 2),
    ("every type", |_, h, _| h.gso_type = 0x7f),
    ("ECN of nothing", |_, h, _| h.gso_type = GSO_ECN),
    ("the checksum starts outside", |_, h, _| h.csum_start = 60_000),
    ("the checksum starts at the very end", |_, h, _| h.csum_start = u16::MAX),
    ("the checksum is far behind", |_, h, _| h.csum_offset = u16::MAX),
    ("start and offset wrap around", |_, h, _| {
        (h.csum_start, h.csum_offset) = (u16::MAX, u16::MAX);
    }),
    ("the checksum starts in the Ethernet header", |_, h, _| h.csum_start = 0),
    ("the checksum starts in the IP header", |_, h, _| h.csum_start = 20),
    ("the checksum is not the transport's", |_, h, _| h.csum_offset = 4),
    ("the checksum is one byte off", |_, h, _| h.csum_start += 1),
    ("the EtherType is not IP", |_, _, f| f[12] = 0x99),
    ("the IP version is another", |_, _, f| f[14] = 0x65),
    ("an IP header of four words", |_, _, f| f[14] = 0x44),
    ("an IP header as long as the copy", |_, _, f| f[14] = 0x4f),
    ("an IP length too short", |_, _, f| f[17] = f[17].wrapping_sub(1)),
    ("an IP length too long", |_, _, f| f[16] = 0xff),
    ("another protocol", |_, _, f| f[23] = 50),
    ("a fragment", |_, _, f| f[20] = 0x20),
    ("a later fragment", |_, _, f| f[21] = 1),
    ("a TCP header of no words", |_, _, f| f[46] = 0),
    ("a TCP header of four words", |_, _, f| f[46] = 0x40),
    ("a TCP header beyond the frame", |_, h, f| {
        f[46] = 0xf0;
        f.truncate(70);
        f[16..18].copy_from_slice(&56_u16.to_be_bytes());
        h.gso_size = 1;
    }),
    ("nothing to segment", |p, h, f| {
        p.payload.clear();
        *f = p.partial();
        h.gso_size = 100;
    }),
    ("a frame that ends in its IP header", |_, _, f| f.truncate(30)),
    ("a frame that ends behind its IP header", |_, _, f| f.truncate(34)),
    ("a frame of one Ethernet header", |_, _, f| f.truncate(14)),
    ("a frame that ends behind a tag", |_, _, f| {
        f[12..14].copy_from_slice(&[0x81, 0]);
        f.truncate(18);
    }),
];

/// Each lie costs its own frame, under its name, and the port lives on.
#[test]
fn lies_about_offloads_cost_their_frame() {
    let able = Guest {
        rx_buffer: (65_600, 65_600),
        rx_buffers: 16,
        ..receiver(ALL_OFFLOADS, true, false)
    };
    for to in [receiver(0, true, false), able] {
        let plane = Plane::new();
        let (from, mut a) = plane.vm("sender", &sender());
        let (port, mut b) = plane.vm("receiver", &to);
        let mut told = 0;
        for (what, tell) in LIES {
            let mut packet = Packet::new(false, false, mac(1), mac(0), Rng::new(8).bytes(9000));
            packet.seq = told as u32;
            let (mut header, mut frame) = (packet.needs_gso(1400), packet.partial());
            tell(&mut packet, &mut header, &mut frame);
            a.send_on(0, &header, &frame);
            told += 1;
            // What comes behind it arrives.
            let good = eth(mac(1), mac(0), what.as_bytes());
            a.send(&good);
            let next = b.take(1).remove(0);
            assert!(next.frame == good, "{what}: delivered as {:?}", next.header);
            let dropped = || plane.dropped(from, DropReason::BadOffload) == told;
            wait(|| format!("{what}: {:#?}", plane.status(from).drops), dropped);
        }
        a.drain();
        let balance = plane.settle(&[from, port], a.sent);
        assert_eq!(balance.drops, [(DropReason::BadOffload, told)]);
        assert_eq!(plane.status(from).state, PortState::Running);
        plane.end();
    }
}

/// Hints and marks that mean nothing to a switch are ignored and not passed on.
#[test]
fn what_a_guest_may_not_say_is_not_repeated() {
    let plane = Plane::new();
    let (_, mut a) = plane.vm("sender", &sender());
    let (_, mut b) = plane.vm("receiver", &receiver(ALL_OFFLOADS, false, false));
    let packet = Packet::new(false, false, mac(1), mac(0), vec![1; 3000]);
    for hdr_len in [0, 1, 54, 1000, u16::MAX] {
        let header = Vnet { hdr_len, num_buffers: 9, ..packet.needs_gso(1000) };
        a.send_on(0, &header, &packet.partial());
        let got = b.take(1).remove(0);
        assert_eq!(got.header, packet.needs_gso(1000), "the true length of the headers");
        assert!(got.frame == packet.partial());
    }
    let plain = eth(mac(1), mac(0), &[1; 100]);
    for flags in [DATA_VALID, RSC_INFO, DATA_VALID | RSC_INFO, 0xf8] {
        let header = Vnet { flags, csum_start: 7, csum_offset: 9, gso_size: 5, ..Vnet::default() };
        a.send_on(0, &header, &plain);
        let got = b.take(1).remove(0);
        assert_eq!(got.header, Vnet::default(), "flags {flags:#x}");
        assert!(got.frame == plain);
    }
    plane.end();
}

/// A guest that did not negotiate an offload cannot use it; without any, what its headers say is not
/// looked at.
#[test]
fn an_offload_must_have_been_negotiated() {
    const CSUM: u64 = 1;
    const HOST_TSO4: u64 = 1 << 11;
    const HOST_TSO6: u64 = 1 << 12;
    const HOST_ECN: u64 = 1 << 13;
    const HOST_USO: u64 = 1 << 56;
    let plane = Plane::new();
    let able = Guest {
        rx_buffer: (65_600, 65_600),
        rx_buffers: 16,
        ..receiver(ALL_OFFLOADS, true, false)
    };
    let (_, mut b) = plane.vm("receiver", &able);
    let port = plane.port("sender");
    let mut rng = Rng::new(12);
    let kinds =
        [0, CSUM, CSUM | HOST_TSO4, CSUM | HOST_TSO6 | HOST_ECN, CSUM | HOST_USO, HOST_TSO4];
    for offloads in kinds {
        let mut a = plane.connect("sender", &Guest { offloads, ..sender() });
        for work in WORK {
            let allowed = match work {
                Work::Nothing => true,
                Work::Checksum { .. } => offloads & CSUM != 0,
                Work::Segments { v6, udp, ecn } => {
                    let kind = match (v6, udp) {
                        (_, true) => HOST_USO,
                        (false, _) => HOST_TSO4,
                        (true, _) => HOST_TSO6,
                    };
                    let needs = CSUM | kind | if ecn { HOST_ECN } else { 0 };
                    offloads & needs == needs
                }
            };
            let (_, header, frame) = work.make(&mut rng);
            let heard = offloads & CSUM != 0;
            let before = plane.dropped(port, DropReason::BadOffload);
            a.send_on(0, &header, &frame);
            if allowed || !heard {
                let got = b.take(1).remove(0);
                let expected = if heard { header } else { Vnet::default() };
                assert!(got.frame == frame && got.header == expected, "{work:?} of {offloads:#x}");
            } else {
                let dropped = || plane.dropped(port, DropReason::BadOffload) == before + 1;
                wait(|| format!("{work:?} of {offloads:#x} is refused"), dropped);
            }
        }
        a.drain();
        a.leave();
        plane.wait_state(port, &PortState::Waiting);
    }
    b.poll();
    assert!(b.inbox.is_empty());
    plane.end();
}
