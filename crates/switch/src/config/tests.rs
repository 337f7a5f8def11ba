use packet::{VlanEdit, arp};

use super::*;
use crate::{Cache, VlanSet};

/// A switch with one network and these ports, all up.
struct Fixture {
    switch: Switch,
    network: NetworkId,
    ports: Vec<PortId>,
}

fn station(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn frame(dst: Mac, src: Mac) -> Vec<u8> {
    let mut frame = [dst.0, src.0].concat();
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    frame
}

impl Fixture {
    fn new(modes: impl IntoIterator<Item = VlanMode>) -> Self {
        Self::with(NetworkConfig::default(), modes)
    }

    fn with(settings: NetworkConfig, modes: impl IntoIterator<Item = VlanMode>) -> Self {
        let switch = Switch::new();
        let network = switch.add_network(settings).unwrap();
        let ports = modes.into_iter().map(|vlan| {
            let port = switch.add_port(PortConfig { network, vlan, mac_limit: None }).unwrap();
            switch.set_link(port, true).unwrap();
            port
        });
        let ports = ports.collect();
        Self { switch, network, ports }
    }

    fn send(&self, port: usize, dst: Mac, src: Mac, now_ms: u64) -> Verdict {
        self.switch.snapshot().lookup(self.ports[port], &frame(dst, src), now_ms)
    }

    fn to(&self, port: usize) -> Verdict {
        Verdict::Forward { port: self.ports[port], edit: VlanEdit::Keep }
    }

    fn stats(&self) -> NetworkStats {
        self.switch.network_stats(self.network).unwrap()
    }
}

fn flooded(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Flood(_))
}

fn transparent(ports: usize) -> Fixture {
    Fixture::new(vec![VlanMode::None; ports])
}

#[test]
fn a_conversation_is_learned() {
    let f = transparent(3);
    assert!(flooded(f.send(0, station(2), station(1), 1)));
    assert_eq!(f.send(1, station(1), station(2), 2), f.to(0));
    assert_eq!(f.send(0, station(2), station(1), 3), f.to(1));
    assert_eq!(f.send(0, station(1), station(1), 3), Verdict::Drop(DropReason::SamePort));
    assert!(flooded(f.send(0, Mac::BROADCAST, station(1), 4)));
    let listed = f.switch.fdb(f.network, 1002).unwrap();
    let entry = |n, port: usize, age| FdbEntry {
        mac: station(n),
        vlan: None,
        port: f.ports[port],
        age: Duration::from_millis(age),
        fixed: false,
    };
    assert_eq!(listed, [entry(1, 0, 1001), entry(2, 1, 1000)]);
}

#[test]
fn refused_frames_have_their_reasons_and_are_not_learned() {
    let f = Fixture::new([VlanMode::Access(5), VlanMode::Access(5)]);
    let send = |bytes: &[u8]| f.switch.snapshot().lookup(f.ports[0], bytes, 1);
    let mut tagged = frame(station(2), station(1));
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    for (bytes, reason) in [
        (frame(station(2), station(1))[..13].to_vec(), DropReason::Runt),
        (tagged[..17].to_vec(), DropReason::Runt),
        (frame(station(2), Mac::ZERO), DropReason::SrcMacInvalid),
        (frame(station(2), Mac::BROADCAST), DropReason::SrcMacInvalid),
        (frame(Mac([1, 0x80, 0xc2, 0, 0, 3]), station(1)), DropReason::ReservedMulticast),
        (
            {
                tagged[15] = 5;
                tagged
            },
            DropReason::VlanNotAllowed,
        ),
    ] {
        assert_eq!(send(&bytes), Verdict::Drop(reason));
    }
    assert_eq!(f.stats().learned, 0);
    f.switch.set_link(f.ports[1], false).unwrap();
    let alone = f.send(0, station(2), station(1), 1);
    assert_eq!(alone, Verdict::Drop(DropReason::NoDestination));
    assert_eq!(f.send(1, station(1), station(2), 1), Verdict::Drop(DropReason::PortDown));
    let nobody = f.switch.snapshot().lookup(PortId(999), &frame(station(2), station(1)), 1);
    assert_eq!(nobody, Verdict::Drop(DropReason::PortDown));
}

#[test]
fn networks_do_not_see_each_other() {
    let f = transparent(2);
    let other = f.switch.add_network(NetworkConfig::default()).unwrap();
    let settings = PortConfig { network: other, vlan: VlanMode::None, mac_limit: None };
    let port = f.switch.add_port(settings).unwrap();
    f.switch.set_link(port, true).unwrap();
    f.send(0, station(2), station(1), 1);
    let verdict = f.switch.snapshot().lookup(port, &frame(station(1), station(3)), 1);
    assert_eq!(verdict, Verdict::Drop(DropReason::NoDestination));
    assert!(flooded(f.send(0, station(3), station(1), 1)));
    assert_eq!(f.switch.fdb(other, 1).unwrap().len(), 1);
}

#[test]
fn a_trunk_talks_to_access_ports_and_a_second_tag_is_never_uncovered() {
    let allowed: VlanSet = "10,20".parse().unwrap();
    let f = Fixture::new([
        VlanMode::Trunk { allowed, native: Some(10) },
        VlanMode::Access(10),
        VlanMode::Access(20),
        VlanMode::Trunk { allowed: "20".parse().unwrap(), native: None },
    ]);
    let snapshot = f.switch.snapshot();
    let members = |tags: &[u8]| {
        let mut bytes = frame(Mac::BROADCAST, station(1));
        bytes.splice(12..12, tags.iter().copied());
        match snapshot.lookup(f.ports[0], &bytes, 1) {
            Verdict::Flood(flood) => {
                let members = snapshot.flood(flood, Mac::BROADCAST);
                let members = members.map(|m| (m.port.index(), m.edit));
                let mut members: Vec<_> = members.collect();
                members.sort_by_key(|member| member.0);
                Ok(members)
            }
            Verdict::Drop(reason) => Err(reason),
            Verdict::Forward { .. } | Verdict::Router { .. } => Ok(vec![]),
        }
    };
    assert_eq!(members(&[]), Ok(vec![(1, VlanEdit::Keep)]));
    assert_eq!(members(&[0x81, 0, 0, 10]), Ok(vec![(1, VlanEdit::Pop)]));
    assert_eq!(members(&[0x81, 0, 0xe0, 0]), Ok(vec![(1, VlanEdit::Pop)]));
    assert_eq!(members(&[0x81, 0, 0, 20]), Ok(vec![(2, VlanEdit::Pop), (3, VlanEdit::Keep)]));
    assert_eq!(members(&[0x81, 0, 0, 30]), Err(DropReason::VlanNotAllowed));
    assert_eq!(members(&[0x88, 0xa8, 0, 20]), Err(DropReason::VlanNotAllowed));
    // Two tags: only to where the outer one stays.
    let stacked = members(&[0x81, 0, 0, 20, 0x81, 0, 0, 10]);
    assert_eq!(stacked, Ok(vec![(3, VlanEdit::Keep)]));
    let hopping = members(&[0x81, 0, 0, 10, 0x81, 0, 0, 20]);
    assert_eq!(hopping, Err(DropReason::NoDestination));
    let hidden = members(&[0x81, 0, 0, 0, 0x81, 0, 0, 20]);
    assert_eq!(hidden, Err(DropReason::VlanNotAllowed));
}

#[test]
fn tags_appear_on_the_way_from_access_to_trunk() {
    let f = Fixture::new([
        VlanMode::Access(20),
        VlanMode::Trunk { allowed: VlanSet::all(), native: None },
        VlanMode::None,
    ]);
    let snapshot = f.switch.snapshot();
    let edits = |bytes: &[u8]| match snapshot.lookup(f.ports[0], bytes, 1) {
        Verdict::Flood(flood) => snapshot.flood(flood, Mac::BROADCAST).map(|m| m.edit).collect(),
        _ => vec![],
    };
    let push = VlanEdit::Push(packet::Tci(20));
    assert_eq!(edits(&frame(Mac::BROADCAST, station(1))), [push, push]);
    let mut priority = frame(Mac::BROADCAST, station(1));
    priority.splice(12..12, [0x81, 0, 0xa0, 0]);
    let set = VlanEdit::Set(packet::Tci(0xa014));
    assert_eq!(edits(&priority), [set, set]);
}

#[test]
fn limits_forward_without_learning() {
    let f = Fixture::with(
        NetworkConfig { mac_limit: 3, ..NetworkConfig::default() },
        vec![VlanMode::None; 3],
    );
    f.switch.set_mac_limit(f.ports[0], Some(2)).unwrap();
    for n in 1..=3 {
        assert!(flooded(f.send(0, station(100), station(n), 1)));
    }
    assert_eq!((f.stats().macs, f.stats().limited), (2, 1), "the port's limit");
    f.send(1, station(100), station(4), 1);
    f.send(1, station(100), station(5), 1);
    assert_eq!((f.stats().macs, f.stats().limited), (3, 2), "the network's limit");
    assert_eq!(f.send(2, station(1), station(9), 1), f.to(0));
    assert!(flooded(f.send(2, station(3), station(9), 1)));
    // A port at its limit cannot take an address from another either.
    f.send(0, station(100), station(4), 1);
    assert_eq!(f.send(2, station(4), station(9), 1), f.to(1));
    // Room again: what was refused is learned.
    f.switch.flush_port(f.ports[0]).unwrap();
    f.send(0, station(100), station(3), 1);
    assert_eq!(f.send(2, station(3), station(9), 1), f.to(0));
}

#[test]
fn an_address_moves_but_not_without_end() {
    let f = transparent(3);
    f.send(0, station(9), station(1), 1);
    let mut cache = Cache::default();
    let bytes = frame(station(1), station(2));
    let mut ask = |now| cache.lookup(&f.switch.snapshot(), f.ports[2], &bytes, now);
    assert_eq!(ask(1), f.to(0));
    f.send(1, station(9), station(1), 1);
    assert_eq!(ask(1), f.to(1));
    for flap in 0..3000 {
        f.send(flap % 2, station(9), station(1), 1);
    }
    assert_eq!(f.stats().moved, 1024);
    // From then on every other frame is from where the address is.
    assert_eq!(f.stats().moves_held, (3000u64 - 1023).div_ceil(2));
    let before = ask(1);
    f.send(if before == f.to(0) { 1 } else { 0 }, station(9), station(1), 1001);
    assert_ne!(ask(1001), before, "a second later it moves again");
}

#[test]
fn a_frame_like_the_one_before_goes_where_that_went() {
    let f = transparent(3);
    let mut cache = Cache::default();
    assert_eq!(cache.as_before(PortId(0), &[0; 60]), None);
    f.send(0, station(9), station(1), 1);
    let look =
        |cache: &mut Cache, bytes: &[u8]| cache.lookup(&f.switch.snapshot(), f.ports[1], bytes, 1);
    let (bytes, other) = (frame(station(1), station(2)), frame(station(1), station(3)));
    // The first time it is not remembered yet.
    for found in [None, Some(f.ports[0]), Some(f.ports[0])] {
        assert_eq!(look(&mut cache, &bytes), f.to(0));
        assert_eq!(cache.as_before(f.ports[1], &bytes), found);
    }
    let hits = cache.hits_and_misses();
    assert_eq!(cache.as_before(f.ports[2], &bytes), None);
    assert_eq!(cache.as_before(f.ports[1], &other), None);
    assert_eq!(cache.as_before(f.ports[1], &bytes[..15]), None);
    assert_eq!(cache.hits_and_misses(), hits, "only what is found counts");
    assert_eq!(cache.as_before(f.ports[1], &bytes), Some(f.ports[0]));
    assert_eq!(cache.hits_and_misses().0, hits.0 + 1);
    // The one before it may have moved the destination.
    look(&mut cache, &frame(station(9), station(1)));
    assert_eq!(cache.as_before(f.ports[1], &bytes), None);
    assert_ne!(look(&mut cache, &bytes), f.to(0));
    assert_eq!(cache.as_before(f.ports[1], &bytes), None, "a drop is looked up");
    // Nor does it outlast a pass.
    f.send(0, station(9), station(1), 1);
    look(&mut cache, &bytes);
    look(&mut cache, &bytes);
    assert_eq!(cache.as_before(f.ports[1], &bytes), Some(f.ports[0]));
    cache.release();
    assert_eq!(cache.as_before(f.ports[1], &bytes), None);
}

#[test]
fn a_tagged_frame_is_looked_up_each_time() {
    let f = transparent(2);
    let mut cache = Cache::default();
    let tagged = |dst, src| {
        let mut frame = frame(station(dst), station(src));
        frame.splice(12..12, [0x81, 0, 0, 7]);
        frame
    };
    f.switch.snapshot().lookup(f.ports[0], &tagged(9, 1), 1);
    let bytes = tagged(1, 2);
    for _ in 0..3 {
        assert_eq!(cache.lookup(&f.switch.snapshot(), f.ports[1], &bytes, 1), f.to(0));
        // What is behind the tag decides, too, and is not compared.
        assert_eq!(cache.as_before(f.ports[1], &bytes), None);
    }
}

#[test]
fn ages_by_the_last_frame_even_if_it_was_remembered() {
    let f = transparent(2);
    let mut cache = Cache::default();
    f.send(1, station(9), station(2), 0);
    let bytes = frame(station(2), station(1));
    for now in (0..400_000).step_by(100) {
        cache.lookup(&f.switch.snapshot(), f.ports[0], &bytes, now);
        f.switch.maintain(now);
    }
    // The one that kept quiet went after 300 s, the other is still there.
    let listed = f.switch.fdb(f.network, 400_000).unwrap();
    assert_eq!(listed.iter().map(|e| e.mac).collect::<Vec<_>>(), [station(1)]);
    assert!(listed[0].age <= Duration::from_millis(1100));
    assert_eq!(f.stats().aged, 1);
    let (hits, misses) = cache.hits_and_misses();
    assert_eq!(hits + misses, 4000);
    assert!(hits > 2600, "{hits} hits");
}

/// Stamps are the low half of the clock, which comes round after 49 days.
#[test]
fn ages_are_right_when_stamps_come_round() {
    let f = transparent(2);
    let round = 1 << 32;
    f.send(0, Mac::BROADCAST, station(1), round - 200_000);
    f.send(0, Mac::BROADCAST, station(2), round - 1000);
    f.send(0, Mac::BROADCAST, station(3), round + 5000);
    // Of a worker whose clock is behind.
    f.send(0, Mac::BROADCAST, station(3), round - 5000);
    let ages = |now| {
        let known = f.switch.fdb(f.network, now).unwrap();
        known.iter().map(|entry| entry.age.as_millis()).collect::<Vec<_>>()
    };
    assert_eq!(ages(round + 4000), [204_000, 5000, 0]);
    f.switch.maintain(round + 99_999);
    assert_eq!(ages(round + 99_999), [299_999, 100_999, 94_999]);
    f.switch.maintain(round + 100_000);
    assert_eq!(ages(round + 100_000), [101_000, 95_000]);
}

#[test]
fn a_refreshed_address_of_a_flooding_station_does_not_age() {
    let f = transparent(2);
    for now in (0..400_000).step_by(50_000) {
        f.send(0, Mac::BROADCAST, station(1), now);
        f.switch.maintain(now);
    }
    assert_eq!(f.stats().macs, 1);
}

#[test]
fn a_port_that_goes_down_is_forgotten() {
    let f = transparent(3);
    f.send(0, station(9), station(1), 1);
    f.switch.set_link(f.ports[0], false).unwrap();
    let verdict = f.send(1, station(1), station(2), 1);
    let Verdict::Flood(flood) = verdict else { panic!("{verdict:?}") };
    let snapshot = f.switch.snapshot();
    assert!(snapshot.flood(flood, station(1)).map(|m| m.port).eq([f.ports[2]]));
    assert_eq!(f.stats().flushed, 1);
}

/// A pinned address has no age, so nothing about it depends on how long the switch is up: half of the time after
/// which stamps come round is the worst.
#[test]
fn what_a_pinned_address_sends_is_remembered_at_any_time() {
    for now_ms in [1, 1 << 31, (1 << 31) + 500, (1 << 32) - 1, 1 << 40] {
        let f = transparent(2);
        f.switch.add_static(station(1), None, f.ports[0]).unwrap();
        f.send(1, station(1), station(2), now_ms);
        let mut cache = Cache::default();
        let bytes = frame(station(2), station(1));
        let found = (0..3).map(|_| {
            let verdict = cache.lookup(&f.switch.snapshot(), f.ports[0], &bytes, now_ms);
            assert_eq!(verdict, f.to(1));
            cache.hits_and_misses().0
        });
        assert_eq!(found.collect::<Vec<_>>(), [0, 1, 2], "after {now_ms} ms");
    }
}

#[test]
fn a_pinned_address_stays() {
    let f = transparent(3);
    f.send(1, station(9), station(1), 1);
    f.switch.add_static(station(1), None, f.ports[0]).unwrap();
    f.send(1, station(9), station(1), 1);
    f.switch.flush_network(f.network).unwrap();
    f.switch.maintain(u64::MAX >> 24);
    assert_eq!(f.send(2, station(1), station(2), 1), f.to(0));
    f.switch.set_link(f.ports[0], false).unwrap();
    assert_eq!(f.send(2, station(1), station(2), 1), Verdict::Drop(DropReason::PortDown));
    f.switch.remove_static(f.network, station(1), None).unwrap();
    assert!(flooded(f.send(2, station(1), station(2), 1)));
    let again = f.switch.remove_static(f.network, station(1), None);
    assert_eq!(again, Err(SwitchError::NotStatic(station(1))));
    for bad in [Mac::BROADCAST, Mac::ZERO] {
        let refused = f.switch.add_static(bad, None, f.ports[0]);
        assert_eq!(refused, Err(SwitchError::NotUnicast(bad)));
    }
}

/// The race of a configuration change with a worker in mid-burst, step by step.
#[test]
fn nothing_worked_out_with_an_old_snapshot_is_remembered() {
    let f = Fixture::new([VlanMode::Access(1), VlanMode::Access(1), VlanMode::Access(1)]);
    f.send(1, station(9), station(2), 1);
    let mut cache = Cache::default();
    let old = f.switch.snapshot();
    let trunk = VlanMode::Trunk { allowed: VlanSet::all(), native: None };
    f.switch.set_vlan(f.ports[1], trunk).unwrap();
    let mut tagged = frame(station(9), station(2));
    tagged.splice(12..12, [0x81, 0, 0, 1]);
    f.switch.snapshot().lookup(f.ports[1], &tagged, 1);
    // In the old snapshot port 1 is still an access port: no tag. The new number has been read.
    let bytes = frame(station(2), station(1));
    assert_eq!(cache.lookup(&old, f.ports[0], &bytes, 1), f.to(1));
    let push = VlanEdit::Push(packet::Tci(1));
    let now = cache.lookup(&f.switch.snapshot(), f.ports[0], &bytes, 1);
    assert_eq!(now, Verdict::Forward { port: f.ports[1], edit: push });
}

#[test]
fn an_old_snapshot_does_not_learn_for_a_port_that_changed() {
    let f = transparent(3);
    let old = f.switch.snapshot();
    f.switch.set_link(f.ports[0], false).unwrap();
    f.switch.set_link(f.ports[0], true).unwrap();
    old.lookup(f.ports[0], &frame(station(9), station(1)), 1);
    f.switch.remove_port(f.ports[1]).unwrap();
    old.lookup(f.ports[1], &frame(station(9), station(2)), 1);
    assert_eq!(f.stats().learned, 0);
    old.lookup(f.ports[2], &frame(station(9), station(3)), 1);
    assert_eq!(f.stats().learned, 1, "a port that did not change");
}

/// Adds and removes ports until this number comes again, which it must not before all others did.
fn reuse(switch: &Switch, settings: &PortConfig, number: PortId) -> PortId {
    for count in 2.. {
        let port = switch.add_port(settings.clone()).unwrap();
        if port == number {
            assert!(count > Switch::PORTS_MAX - 3, "after {count}");
            break;
        }
        switch.remove_port(port).unwrap();
    }
    number
}

#[test]
fn numbers_come_back_late_and_never_in_the_wrong_network() {
    let f = transparent(2);
    f.send(0, station(9), station(1), 1);
    let mut cache = Cache::default();
    let bytes = frame(station(1), station(2));
    assert_eq!(cache.lookup(&f.switch.snapshot(), f.ports[1], &bytes, 1), f.to(0));
    f.switch.remove_port(f.ports[0]).unwrap();
    let other = f.switch.add_network(NetworkConfig::default()).unwrap();
    let settings = PortConfig { network: other, vlan: VlanMode::None, mac_limit: None };
    let last = reuse(&f.switch, &settings, f.ports[0]);
    f.switch.set_link(last, true).unwrap();
    let verdict = cache.lookup(&f.switch.snapshot(), f.ports[1], &bytes, 1);
    assert_eq!(verdict, Verdict::Drop(DropReason::NoDestination));
}

#[test]
fn an_old_snapshot_does_not_send_into_another_network() {
    let f = transparent(2);
    let other = f.switch.add_network(NetworkConfig::default()).unwrap();
    let settings = |network| PortConfig { network, vlan: VlanMode::None, mac_limit: None };
    let number = f.switch.add_port(settings(other)).unwrap();
    f.switch.set_link(number, true).unwrap();
    let old = f.switch.snapshot();
    f.switch.remove_port(number).unwrap();
    reuse(&f.switch, &settings(f.network), number);
    f.switch.set_link(number, true).unwrap();
    f.switch.snapshot().lookup(number, &frame(station(9), station(3)), 1);
    let bytes = frame(station(3), station(1));
    let now = f.switch.snapshot().lookup(f.ports[0], &bytes, 1);
    assert_eq!(now, Verdict::Forward { port: number, edit: VlanEdit::Keep });
    // To the old snapshot the number is still the other network's.
    assert!(flooded(old.lookup(f.ports[0], &bytes, 1)));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let f = transparent(1);
    let (network, port) = (NetworkId(77), PortId(77));
    let settings = |network, vlan| PortConfig { network, vlan, mac_limit: None };
    let s = &f.switch;
    let gone = SwitchError::NoSuchNetwork(network);
    assert_eq!(s.add_port(settings(network, VlanMode::None)), Err(gone.clone()));
    assert_eq!(s.remove_network(network), Err(gone.clone()));
    assert_eq!(s.fdb(network, 0), Err(gone));
    let bad = s.add_port(settings(f.network, VlanMode::Access(4095)));
    assert_eq!(bad, Err(SwitchError::BadVlan(4095)));
    assert_eq!(s.set_link(port, true), Err(SwitchError::NoSuchPort(port)));
    assert_eq!(s.remove_port(port), Err(SwitchError::NoSuchPort(port)));
    assert_eq!(s.remove_network(f.network), Err(SwitchError::NetworkInUse(f.network)));
    s.remove_port(f.ports[0]).unwrap();
    assert_eq!(s.remove_network(f.network), Ok(()));
}

#[test]
fn every_number_can_be_used_at_once() {
    let switch = Switch::new();
    let network = switch.add_network(NetworkConfig::default()).unwrap();
    let settings = PortConfig { network, vlan: VlanMode::None, mac_limit: None };
    for _ in 0..Switch::PORTS_MAX {
        switch.add_port(settings.clone()).unwrap();
    }
    assert_eq!(switch.add_port(settings.clone()), Err(SwitchError::TooManyPorts));
    switch.remove_port(PortId(1234)).unwrap();
    assert_eq!(switch.add_port(settings), Ok(PortId(1234)));
}

#[test]
fn an_announcement_moves_a_guest() {
    let f = transparent(3);
    f.send(0, station(9), station(1), 1);
    let rarp = arp::announcement(station(1));
    assert!(flooded(f.switch.snapshot().lookup(f.ports[1], &rarp, 2)));
    assert_eq!(f.send(2, station(1), station(2), 3), f.to(1));
}
