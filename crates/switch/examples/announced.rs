//! Cycles per look-up of frames among many machines, announced as a worker does it: of the time stamp
//! counter, the best and the middle of many bursts.
//!
//! `cargo run --release -p switch --example announced -- 2 1000 40000 1000000`. Nothing is sent, and all
//! frames are in the cache: only the look-up is measured. Compare with others of this machine.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;

use packet::Mac;
use switch::{Cache, NetworkConfig, PortConfig, PortId, Switch, Verdict, VlanMode};
use sys::clock::ticks;

const BURST: usize = 128;

/// From machine `number` of one side to the same of the other one.
fn front(number: u64, side: u64) -> [u8; 18] {
    let mac = |side: u64| Mac::from_u64(0x0200_0000_0000 | side << 24 | number).0;
    let mut front = [0; 18];
    front[..6].copy_from_slice(&mac(side ^ 1));
    front[6..12].copy_from_slice(&mac(side));
    front[12] = 8;
    front
}

/// One burst; frames that do not go where they should.
fn burst(
    switch: &Switch,
    cache: &mut Cache,
    [from, to]: [PortId; 2],
    fronts: &[[u8; 18]],
) -> usize {
    let (snapshot, mut wrong) = (switch.snapshot(), 0);
    let ahead = cache.wants_announcements();
    let some = |from: usize, n| fronts.iter().copied().skip(from).take(n).map(Some);
    if ahead {
        cache.announce(&snapshot, from, 0, some(0, Cache::AHEAD));
    }
    for (at, front) in fronts.iter().enumerate() {
        if ahead {
            if at.is_multiple_of(Cache::TOGETHER) {
                cache.expect(&snapshot, from, 2);
                let next = some(at + Cache::AHEAD, Cache::TOGETHER);
                cache.announce(&snapshot, from, Cache::AHEAD, next);
            }
            cache.turn();
        }
        let goes = match cache.as_before(from, front) {
            Some(port) => Some(port),
            None => match cache.destination(&snapshot, from, front, 2) {
                Ok(port) | Err(Verdict::Forward { port, .. }) => Some(port),
                Err(_) => None,
            },
        };
        wrong += usize::from(black_box(goes) != Some(to));
    }
    cache.release();
    wrong
}

fn measure(machines: u64) {
    let switch = Switch::new();
    let settings = NetworkConfig { mac_limit: 4 << 20, ..NetworkConfig::default() };
    let network = switch.add_network(settings).unwrap();
    let ports = [(); 2].map(|()| {
        let config = PortConfig { network, vlan: VlanMode::None, mac_limit: None };
        let port = switch.add_port(config).unwrap();
        switch.set_link(port, true).unwrap();
        port
    });
    let half = (machines / 2).max(1);
    for (port, side) in ports.iter().zip(0..) {
        for n in 0..half {
            switch.snapshot().lookup(*port, &front(n, side), 1);
        }
    }
    let mut cache = Cache::default();
    let mut numbers = (0..half).cycle();
    let mut all = Vec::new();
    for turn in 0..20_000 {
        let fronts: Vec<_> = numbers.by_ref().take(BURST).map(|n| front(n, 0)).collect();
        let start = ticks();
        let wrong = burst(&switch, &mut cache, ports, &fronts);
        let cycles = (ticks() - start) as f64 / BURST as f64;
        assert_eq!(wrong, 0);
        // The first ones find out that remembering does not pay.
        if turn > 500 {
            all.push(cycles);
        }
    }
    all.sort_by(f64::total_cmp);
    println!("{machines:>9} machines: {:.1}, half of them below {:.1}", all[0], all[all.len() / 2]);
}

fn main() {
    let machines = std::env::args().skip(1).map(|number| number.parse().unwrap());
    machines.for_each(measure);
}
