use super::*;
use crate::DropReason;

/// Ethertype 0x88b5, for experiments.
const HEAD: [u8; 18] = [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0x88, 0xb5, 0, 0, 0, 0];
const SAME: Verdict = Verdict::Drop(DropReason::SamePort);

/// One port, and a look-up of a frame from address `n` to itself: known and remembered once learned.
fn own(cache: &mut Cache, switch: &crate::Switch, port: PortId, n: u8) -> Verdict {
    let mut frame = HEAD;
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, n, 2, 0, 0, 0, 0, n]);
    cache.lookup(&switch.snapshot(), port, &frame, 1)
}

fn switch_with_a_port() -> (crate::Switch, PortId) {
    let (switch, _, port) = switch_with_a_network();
    (switch, port)
}

fn switch_with_a_network() -> (crate::Switch, crate::NetworkId, PortId) {
    let switch = crate::Switch::new();
    let network = switch.add_network(crate::NetworkConfig::default()).unwrap();
    let vlan = crate::VlanMode::None;
    let port = switch.add_port(crate::PortConfig { network, vlan, mac_limit: None }).unwrap();
    switch.set_link(port, true).unwrap();
    (switch, network, port)
}

#[test]
fn misses_without_hits_put_it_aside_for_a_while() {
    let (switch, port) = switch_with_a_port();
    // Each is worked out once, in a place that is free.
    let mut cache = Cache::new(1024);
    for n in 0..=255 {
        for _ in 0..5 {
            assert_eq!(own(&mut cache, &switch, port, n), SAME);
            cache.release();
        }
        assert!(!cache.is_bypassed());
    }
    assert_eq!(cache.hits_and_misses(), (256 * 4, 256));

    // What a change made it forget is looked up once and found again. With places for all.
    let mut cache = Cache::new(1 << 20);
    let all =
        |cache: &mut Cache| (0..=255).for_each(|n| assert_eq!(own(cache, &switch, port, n), SAME));
    for _ in 0..10 {
        switch.flush_port(port).unwrap();
        all(&mut cache);
        let (hits, misses) = cache.hits_and_misses();
        all(&mut cache);
        assert_eq!(cache.hits_and_misses(), (hits + 256, misses));
        assert!(!cache.is_bypassed());
    }
    assert_eq!(cache.wish(1), None);

    // Too many for it.
    let mut cache = Cache::new(1);
    let mut frames = (0..=255).cycle();
    let mut next = |cache: &mut Cache| own(cache, &switch, port, frames.next().unwrap());
    while !cache.is_bypassed() {
        assert_eq!(next(&mut cache), SAME);
    }
    assert_eq!(cache.hits_and_misses(), (0, 4 + Worth::WINDOW));
    let mut aside = 0;
    while cache.is_bypassed() {
        assert_eq!(next(&mut cache), SAME);
        aside += 1;
    }
    assert_eq!(aside, Worth::BYPASSED);
}

#[test]
fn what_finds_no_room_is_given_some_once_it_was_wished_for() {
    let (switch, port) = switch_with_a_port();
    let mut cache = Cache::new(4);
    let all =
        |cache: &mut Cache| (0..=255).for_each(|n| assert_eq!(own(cache, &switch, port, n), SAME));
    all(&mut cache);
    let mut rooms = Vec::new();
    for _ in 0..20 {
        if let Some(verdicts) = cache.wish(1) {
            all(&mut cache);
            assert_eq!(cache.wish(1), None, "said once");
            rooms.push(verdicts);
            cache.furnish(Room::new(verdicts));
            assert!(!cache.is_bypassed());
        }
        all(&mut cache);
    }
    // 256 fill an eighth of the last. By bad luck five of them meet where there is room for four.
    assert!(rooms.starts_with(&[32, 256, 2048]), "{rooms:?}");
    let hits = cache.hits_and_misses().0;
    all(&mut cache);
    assert!(cache.hits_and_misses().0 > hits + 200);

    let mut full = Cache::new(Room::MOST);
    full.crowd.wants_room = true;
    assert_eq!(full.wish(1), None, "there is no more");
}

#[test]
fn room_that_few_need_is_given_back() {
    let (switch, port) = switch_with_a_port();
    let mut cache = Cache::new(Room::MOST);
    let talk = |cache: &mut Cache, pairs: u16, now: u64| {
        for n in 0..pairs {
            let mut frame = HEAD;
            let [high, low] = n.to_be_bytes();
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 1, high, low]);
            cache.lookup(&switch.snapshot(), port, &frame, now);
        }
        cache.wish(now)
    };
    // The destination is known.
    own(&mut cache, &switch, port, 1);
    let most = Cache::ENTRIES_DEFAULT as u16 - 1000;
    for now in (1..100_000).step_by(500) {
        assert_eq!(talk(&mut cache, most, now), None, "all of them talk");
    }
    let wishes: Vec<_> =
        (100_000..200_000).step_by(500).filter_map(|now| talk(&mut cache, 100, now)).collect();
    assert_eq!(wishes, [Cache::ENTRIES_DEFAULT], "said once");
    cache.furnish(Room::new(Cache::ENTRIES_DEFAULT));
    for now in (200_000..300_000).step_by(500) {
        assert_eq!(talk(&mut cache, 100, now), None, "it is as it was at first");
    }
}

#[test]
fn frames_are_announced_while_many_are_looked_up() {
    let (switch, port) = switch_with_a_port();
    let mut cache = Cache::default();
    for n in 0..=Cache::SCATTERED as u8 {
        assert!(!cache.wants_announcements());
        own(&mut cache, &switch, port, n);
    }
    cache.release();
    assert!(cache.wants_announcements());
    // Of one flow only the first is looked up.
    (0..100).for_each(|_| assert_eq!(own(&mut cache, &switch, port, 1), SAME));
    cache.release();
    assert!(!cache.wants_announcements());
}

/// Each port's first frame is looked up, however many ports there are.
#[test]
fn flows_of_many_ports_are_no_reason_to_announce() {
    let (switch, network, port) = switch_with_a_network();
    let vlan = crate::VlanMode::None;
    let other = switch.add_port(crate::PortConfig { network, vlan, mac_limit: None }).unwrap();
    switch.set_link(other, true).unwrap();
    let mut cache = Cache::default();
    for _ in 0..2 * Cache::SCATTERED {
        own(&mut cache, &switch, port, 1);
        own(&mut cache, &switch, other, 2);
    }
    cache.release();
    assert!(!cache.wants_announcements());
}

/// One address moves by an announced frame: what the frame before that got counts no more.
#[test]
fn what_moves_by_an_announced_frame_is_looked_up_anew() {
    let (switch, network, first) = switch_with_a_network();
    let config = || crate::PortConfig { network, vlan: crate::VlanMode::None, mac_limit: None };
    let [second, third] = [(); 2].map(|()| {
        let port = switch.add_port(config()).unwrap();
        switch.set_link(port, true).unwrap();
        port
    });
    let snapshot = switch.snapshot();
    let frame = |dst: u8, src: u8| {
        let mut frame = HEAD;
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, src]);
        frame
    };
    let mut cache = Cache::default();
    cache.lookup(&snapshot, second, &frame(1, 2), 1);
    let (asked, moves) = (frame(2, 1), frame(1, 2));
    // To learn the source, to remember, and to be the frame before.
    (0..3).for_each(|_| assert_eq!(cache.lookup(&snapshot, first, &asked, 1), keep(second)));
    assert_eq!(cache.as_before(first, &asked), Some(second));
    let mut announced = |port, frame: &[u8]| {
        let verdict = announced(&mut cache, &snapshot, port, frame);
        (verdict.map_or_else(|other| other, keep), cache.as_before(first, &asked))
    };
    assert_eq!(announced(third, &moves), (keep(first), None));
    (0..3).for_each(|_| assert_eq!(announced(first, &asked), (keep(third), None)));
}

/// What happens to an announced frame.
fn announced(
    cache: &mut Cache,
    snapshot: &Snapshot,
    port: PortId,
    frame: &[u8],
) -> Result<PortId, Verdict> {
    let spot = cache.places(port).unwrap().spot(frame);
    assert!(spot.is_some());
    let watch = snapshot.watch(port).unwrap();
    cache.destination(snapshot, port, || frame, Some((&spot, watch)), 1)
}

fn keep(port: PortId) -> Verdict {
    Verdict::Forward { port, edit: VlanEdit::Keep }
}

/// Announced frames are looked up each, but those of one flow are not many.
#[test]
fn one_flow_is_no_reason_to_announce() {
    let (switch, port) = switch_with_a_port();
    let mut cache = Cache::default();
    let mut talk = |flows: u8| {
        for hand in 0..8 {
            let frames: [_; 8] = std::array::from_fn(|n| {
                let (mut frame, mac) = (HEAD, (8 * hand + n as u8) % flows);
                frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, mac, 2, 0, 0, 0, 0, mac]);
                frame
            });
            let places = cache.places(port).unwrap();
            cache.announced(8, &places.spot(&frames[0]), &places.spot(&frames[7]));
            for frame in frames {
                let verdict = announced(&mut cache, &switch.snapshot(), port, &frame);
                assert_eq!(verdict, Err(SAME));
            }
        }
        cache.release();
        cache.wants_announcements()
    };
    assert_eq!([1, 2, 64, 1].map(&mut talk), [false, true, true, false]);
}

/// Where addresses are forgotten soon, what is remembered does not keep one that talks from being heard of.
#[test]
fn who_talks_is_not_forgotten_however_much_room_there_is() {
    let (switch, network, port) = switch_with_a_network();
    for age in [3, 10, 300] {
        let mac_age = std::time::Duration::from_secs(age);
        switch
            .set_network(network, crate::NetworkConfig { mac_age, ..Default::default() })
            .unwrap();
        let (mut cache, mut now) = (Cache::new(Room::MOST), 1);
        for _ in 0..100 {
            now += 300;
            let mut frame = HEAD;
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 7]);
            assert_eq!(cache.lookup(&switch.snapshot(), port, &frame, now), SAME);
            cache.release();
            switch.maintain(now);
            assert_eq!(switch.fdb(network, now).unwrap().len(), 1);
        }
    }
}

/// One that talks all the time is looked up anew about once a second, or twice in a minute, and its source is stamped then.
#[test]
fn who_talks_is_looked_up_now_and_then() {
    for (entries, seconds) in [(Cache::ENTRIES_DEFAULT, 1), (2 * Cache::ENTRIES_DEFAULT, 33)] {
        let (switch, network, port) = switch_with_a_network();
        let mut cache = Cache::new(entries);
        for now in (250..100_000).step_by(10) {
            let mut frame = HEAD;
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 7]);
            assert_eq!(cache.lookup(&switch.snapshot(), port, &frame, now), SAME);
            cache.release();
            let age = switch.fdb(network, now).unwrap().first().unwrap().age;
            assert!(age.as_secs() <= seconds, "{age:?}");
        }
        let worked_out = cache.hits_and_misses().1;
        assert!(worked_out <= 1 + 100 / seconds, "{worked_out} in 100 s");
    }
}
