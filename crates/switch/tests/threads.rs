//! Many workers at once: what happened before is seen after, and nobody is ever sent astray.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::Frame;
use packet::Mac;
use switch::{
    Cache, NetworkConfig, NetworkId, PortConfig, PortId, Snapshot, Switch, Verdict, VlanMode,
};

fn network(switch: &Switch, ports: usize) -> (NetworkId, Vec<PortId>) {
    let settings = NetworkConfig { mac_limit: 1 << 20, ..NetworkConfig::default() };
    let network = switch.add_network(settings).unwrap();
    let ports = (0..ports).map(|_| {
        let settings = PortConfig { network, vlan: VlanMode::None, mac_limit: None };
        let port = switch.add_port(settings).unwrap();
        switch.set_link(port, true).unwrap();
        port
    });
    (network, ports.collect())
}

fn station(n: u64) -> u64 {
    0x0200_0000_0000 + n
}

fn port_of(verdict: Verdict) -> Option<PortId> {
    match verdict {
        Verdict::Forward { port, .. } => Some(port),
        _ => None,
    }
}

/// Workers ask for an address all the time while it moves, ages and its port's link flaps; once
/// the change is over (a barrier says so), none may still go by what it remembered.
#[test]
fn no_worker_remembers_what_is_over() {
    const WORKERS: usize = 3;
    const ROUNDS: u64 = 3000;
    let switch = Switch::new();
    let (network, ports) = network(&switch, 2 + WORKERS);
    for n in [2, 3] {
        switch.add_static(Mac::from_u64(station(n)), None, ports[n as usize - 2]).unwrap();
    }
    let (before, after) = (Barrier::new(WORKERS + 1), Barrier::new(WORKERS + 1));
    let over = AtomicBool::new(false);
    // Counted, not asserted at once: a thread that panics would leave the others at a barrier.
    let wrong = AtomicU64::new(0);
    // The port the address is behind: an index, or 9 for none.
    let place = AtomicU64::new(9);
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (switch, ports, before, after) = (&switch, &ports, &before, &after);
            let (over, place, wrong) = (&over, &place, &wrong);
            scope.spawn(move || {
                // Two places for three destinations: hardly an answer is from memory, so that
                // changes happen while one is being worked out and about to be remembered.
                let mut cache = Cache::new(2);
                let heads =
                    [2, 3, 1].map(|n| Frame::new(station(n), station(100 + worker as u64)).head());
                let in_port = ports[2 + worker];
                let mut ask = |snapshot: &Snapshot, which: usize, now| {
                    port_of(cache.lookup(snapshot, in_port, heads[which].bytes(), now))
                };
                let check = |right: bool| {
                    wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
                };
                for round in 0..ROUNDS {
                    let now = 1 + round * 10;
                    // Bursts on one snapshot, as workers do, until the change is over.
                    while !over.load(Ordering::Relaxed) {
                        let snapshot = switch.snapshot();
                        for which in (0..3).cycle().take(24) {
                            let port = ask(&snapshot, which, now);
                            check(port.is_none_or(|port| ports[..2].contains(&port)));
                        }
                    }
                    before.wait();
                    let index = place.load(Ordering::Relaxed) as usize;
                    let expected = ports.get(index).filter(|_| index < 2).copied();
                    for _ in 0..2 {
                        check(ask(&switch.snapshot(), 2, now) == expected);
                    }
                    after.wait();
                }
            });
        }
        let head = Frame::new(station(9), station(1)).head();
        let mut cache = Cache::new(64);
        for round in 0..ROUNDS {
            let now = 1 + round * 10;
            let index = (round % 2) as usize;
            let known = match round % 7 {
                5 => {
                    switch.set_link(ports[0], false).unwrap();
                    switch.set_link(ports[0], true).unwrap();
                    place.load(Ordering::Relaxed) != 0
                }
                6 => {
                    switch.flush_network(network).unwrap();
                    false
                }
                _ => {
                    // Somebody else may hold the table: then the next frame learns.
                    let mut learned = false;
                    while !learned {
                        cache.lookup(&switch.snapshot(), ports[index], head.bytes(), now);
                        let listed = switch.fdb(network, now).unwrap();
                        learned = listed
                            .iter()
                            .any(|e| e.mac.to_u64() == station(1) && e.port == ports[index]);
                    }
                    place.store(index as u64, Ordering::Relaxed);
                    true
                }
            };
            if !known {
                place.store(9, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
            before.wait();
            over.store(false, Ordering::Relaxed);
            after.wait();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong.into_inner(), 0, "answers that were over");
}

/// A large table is looked through without keeping anybody from learning.
#[test]
fn addresses_are_learned_while_a_table_is_tidied() {
    const KNOWN: u64 = 100_000;
    const NEW: u64 = 1000;
    let switch = Switch::new();
    let (network, ports) = network(&switch, 1);
    let settings = NetworkConfig { mac_limit: 1 << 20, ..NetworkConfig::default() };
    switch.set_network(network, settings).unwrap();
    let says = |n: u64| {
        let head = Frame::new(station(1 << 30), station(n)).head();
        switch.snapshot().lookup(ports[0], head.bytes(), 1);
    };
    (0..KNOWN).for_each(says);
    // Room for more, so that there is nothing to do but to look.
    switch.maintain(1);
    let known = || switch.network_stats(network).unwrap().macs;
    assert_eq!(known(), KNOWN);
    let (begun, over) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            while !over.load(Ordering::Relaxed) {
                switch.maintain(1);
            }
        });
        begun.wait();
        // One frame of each: who is not learned now is not known for long.
        for n in 0..NEW {
            says(KNOWN + n);
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(known() > KNOWN + NEW / 2, "{} of {NEW}", known() - KNOWN);
}

/// Two networks, the same addresses in both, learned by several workers while the tables grow:
/// a learned address is found from then on, and only ever in its own network.
#[test]
fn tables_grow_under_readers() {
    const MACS: u64 = 20_000;
    let switch = Switch::new();
    let sides = [network(&switch, 4), network(&switch, 4)];
    let learned = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for (side, (_, ports)) in sides.iter().enumerate() {
            let (switch, learned) = (&switch, &learned[side]);
            // One learns; each address alternates between two ports by its number.
            scope.spawn(move || {
                for n in 0..MACS {
                    let head = Frame::new(station(1 << 30), station(n)).head();
                    // The table may be held for a moment by the one who tidies it.
                    for _ in 0..1_000_000 {
                        let snapshot = switch.snapshot();
                        snapshot.lookup(ports[n as usize % 2], head.bytes(), 1);
                        let back = Frame::new(station(n), station(n)).head();
                        let known = snapshot.lookup(ports[n as usize % 2], back.bytes(), 1);
                        if known == Verdict::Drop(switch::DropReason::SamePort) {
                            break;
                        }
                        std::thread::yield_now();
                    }
                    learned.store(n + 1, Ordering::Release);
                    if n % 1000 == 0 {
                        switch.maintain(1);
                        switch.set_link(ports[3], n % 2000 == 0).unwrap();
                    }
                }
            });
            // One asks for what was learned.
            scope.spawn(move || {
                let mut cache = Cache::new(256);
                let mut probe = 7u64;
                loop {
                    let known = learned.load(Ordering::Acquire);
                    let snapshot = switch.snapshot();
                    for _ in 0..32 {
                        probe = probe.wrapping_mul(6364136223846793005).wrapping_add(1);
                        let Some(n) = (probe >> 33).checked_rem(known) else { continue };
                        let head = Frame::new(station(n), station(1 << 31)).head();
                        let verdict = cache.lookup(&snapshot, ports[2], head.bytes(), 1);
                        assert_eq!(port_of(verdict), Some(ports[n as usize % 2]), "address {n}");
                    }
                    if known == MACS {
                        break;
                    }
                }
            });
        }
    });
    for (network, ports) in &sides {
        let listed = switch.fdb(*network, 1).unwrap();
        // The one who asked is behind port 2.
        let learned = listed.iter().filter(|entry| entry.port != ports[2]);
        let right = |n: u64| ports[n as usize % 2];
        let expected = (0..MACS).map(|n| (station(n), right(n)));
        assert!(learned.map(|entry| (entry.mac.to_u64(), entry.port)).eq(expected));
    }
}
