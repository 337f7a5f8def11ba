use packet::eth::{ETH_P_8021AD, ETH_P_8021Q};

use super::*;

fn head(first: u16, tci: u16, inner: u16) -> [u8; 18] {
    let mut head = [7; 18];
    head[12..14].copy_from_slice(&first.to_be_bytes());
    head[14..16].copy_from_slice(&tci.to_be_bytes());
    head[16..18].copy_from_slice(&inner.to_be_bytes());
    head
}

#[test]
fn verdicts_survive_packing() {
    let tci = |tci| VlanEdit::Push(Tci(tci));
    let keep = |port| Verdict::Forward { port, edit: VlanEdit::Keep };
    let survives = |verdict| {
        let packed = Packed::pack(verdict).unwrap();
        assert_eq!(packed.unpack().map_or_else(|other| other, keep), verdict);
    };
    for edit in [VlanEdit::Keep, VlanEdit::Pop, tci(4094), tci(0xe000 | 4094), tci(0x2001)] {
        let port = PortId(4095);
        survives(Verdict::Forward { port, edit });
        survives(Verdict::Router { port, edit });
    }
    DropReason::ALL.iter().for_each(|reason| survives(Verdict::Drop(*reason)));
    let rewritten = Verdict::Forward { port: PortId(1), edit: VlanEdit::Set(Tci(5)) };
    assert!(Packed::pack(rewritten).is_none());
}

#[test]
fn keys_tell_apart_what_the_verdict_depends_on() {
    let of = |head: &[u8]| Key::of(PortId(3), head);
    let plain = head(0x0800, 1, 2);
    assert_eq!(of(&plain), of(&head(0x86dd, 3, 4)), "payload does not count");
    assert_ne!(of(&plain), Key::of(PortId(4), &plain));
    for byte in 0..12 {
        let mut other = plain;
        other[byte] ^= 1;
        assert_ne!(of(&plain), of(&other), "byte {byte}");
    }
    let tagged = |tci| of(&head(ETH_P_8021Q, tci, 0x0800));
    assert_ne!(tagged(5), of(&plain));
    assert_ne!(tagged(5), tagged(6));
    assert_eq!(tagged(5), tagged(0xe005), "priority does not count");
}

#[test]
fn odd_frames_are_always_worked_out() {
    let of = |head: &[u8]| Key::of(PortId(3), head);
    for (first, tci, inner) in [
        (ETH_P_8021Q, 0xe000, 0x0800),
        (ETH_P_8021Q, 4095, 0x0800),
        (ETH_P_8021Q, 5, ETH_P_8021Q),
        (ETH_P_8021Q, 5, ETH_P_8021AD),
        (ETH_P_8021AD, 5, 0x0800),
    ] {
        assert_eq!(of(&head(first, tci, inner)), None);
    }
    assert_eq!(of(&head(0x0800, 0, 0)[..17]), None);
}

#[test]
fn an_entry_is_half_a_cache_line() {
    assert_eq!((size_of::<Entry>(), size_of::<Set>()), (32, 64));
    assert!(size_of::<Verdict>() <= 16);
}

#[test]
fn the_newer_entry_is_first_and_the_same_key_is_not_twice() {
    let entry = |n| Entry { key: Key(n, 0), generation: n, ..Entry::default() };
    let mut set = [Entry::default(); 2];
    for n in [1, 2, 3, 3] {
        remember(&mut set, entry(n));
    }
    assert_eq!(set.map(|entry| entry.key.0), [3, 2]);
}

const SAME: Verdict = Verdict::Drop(DropReason::SamePort);

/// One port, and a look-up of a frame from address `n` to itself: known and remembered once learned.
fn own(cache: &mut Cache, switch: &crate::Switch, port: PortId, n: u8) -> Verdict {
    let mut frame = head(0x88b5, 0, 0);
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, n, 2, 0, 0, 0, 0, n]);
    cache.lookup(&switch.snapshot(), port, &frame, 1)
}

#[test]
fn misses_without_hits_put_it_aside_for_a_while() {
    let switch = crate::Switch::new();
    let network = switch.add_network(crate::NetworkConfig::default()).unwrap();
    let vlan = crate::VlanMode::None;
    let port = switch.add_port(crate::PortConfig { network, vlan, mac_limit: None }).unwrap();
    switch.set_link(port, true).unwrap();

    // Few addresses: the misses that make them known are far apart.
    let mut cache = Cache::new(1024);
    for n in 0..=255 {
        for _ in 0..Worth::WORTHWHILE + 2 {
            assert_eq!(own(&mut cache, &switch, port, n), SAME);
        }
        assert!(!cache.is_bypassed());
    }
    assert_eq!(cache.hits_and_misses(), (256 * (Worth::WORTHWHILE + 1), 256));

    // What a change made it forget is looked up once and found again. With places for all.
    let mut cache = Cache::new(1 << 20);
    let all =
        |cache: &mut Cache| (0..=255).for_each(|n| assert_eq!(own(cache, &switch, port, n), SAME));
    (0..Worth::BYPASSED / 256 * 10).for_each(|_| all(&mut cache));
    for _ in 0..10 {
        switch.flush_port(port).unwrap();
        all(&mut cache);
        assert!(!cache.is_bypassed());
    }

    // Too many for it.
    let mut cache = Cache::new(1);
    let mut frames = (0..=255).cycle();
    let mut next = |cache: &mut Cache| own(cache, &switch, port, frames.next().unwrap());
    for _ in 0..Worth::WINDOW {
        assert!(!cache.is_bypassed());
        next(&mut cache);
    }
    let mut aside = 0;
    while cache.is_bypassed() {
        assert_eq!(next(&mut cache), SAME);
        aside += 1;
    }
    assert_eq!(aside, Worth::BYPASSED);
    // Then it is tried again, and frames are announced until that has paid.
    own(&mut cache, &switch, port, 1);
    for _ in 0..Worth::WINDOW * Worth::WORTHWHILE {
        assert!(cache.wants_announcements());
        own(&mut cache, &switch, port, 1);
        assert!(!cache.is_bypassed());
    }
    assert!(!cache.wants_announcements());
}
