//! Cycles per look-up of frames among many machines, announced as a worker does it: of the time stamp
//! counter, the best and the middle of many bursts.
//!
//! `cargo run --release -p switch --example announced -- 2 1000 40000 1000000`. Nothing is sent, and all
//! frames are in the cache: only the look-up is measured. Compare with others of this machine.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;

use packet::Mac;
use switch::{Cache, NetworkConfig, PortConfig, PortId, Room, Spot, Switch, Verdict, VlanMode};
use sys::clock::ticks;

/// As many as are announced before the first of them is looked up.
const BURST: usize = 16;

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
    let mut spots = [Spot::NONE; BURST];
    if ahead && let Some(places) = cache.places(from) {
        for (front, spot) in fronts.iter().zip(&mut spots) {
            *spot = places.spot(front);
        }
        spots.iter().for_each(|spot| cache.fetch(spot));
    }
    let watch = snapshot.watch(from).unwrap();
    for (front, spot) in fronts.iter().zip(&spots) {
        let at = spot.is_some().then_some((spot, watch));
        let before = if at.is_none() { cache.as_before(from, front) } else { None };
        let goes = match before {
            Some(port) => Some(port),
            None => match cache.destination(&snapshot, from, || front, at, 2) {
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
    let (mut all, mut worked_out) = (Vec::new(), 0);
    for turn in 0..400_000 {
        let fronts: Vec<_> = numbers.by_ref().take(BURST).map(|n| front(n, 0)).collect();
        let start = ticks();
        let wrong = burst(&switch, &mut cache, ports, &fronts);
        let cycles = (ticks() - start) as f64 / BURST as f64;
        assert_eq!(wrong, 0);
        if let Some(verdicts) = cache.wish(2) {
            cache.furnish(Room::new(verdicts));
        }
        // The first ones find out how much there is to remember.
        if turn == 200_000 {
            worked_out = cache.hits_and_misses().1;
        } else if turn > 200_000 {
            all.push(cycles);
        }
    }
    worked_out = cache.hits_and_misses().1 - worked_out;
    all.sort_by(f64::total_cmp);
    let frames = (all.len() * BURST) as f64;
    println!(
        "{machines:>9} machines: {:.1}, half of them below {:.1}; {:.1} % worked out",
        all[0],
        all[all.len() / 2],
        100.0 * worked_out as f64 / frames,
    );
}

fn main() {
    let machines = std::env::args().skip(1).map(|number| number.parse().unwrap());
    machines.for_each(measure);
}
