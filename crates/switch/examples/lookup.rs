//! Nanoseconds per look-up: remembered, worked out, flooded, with few and with many addresses.
//!
//! `cargo run --release -p switch --example lookup`. Numbers are of this machine at this moment:
//! compare with others of the same run.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use packet::{Head, Mac};
use switch::{
    Cache, NetworkConfig, PortConfig, PortId, Snapshot, Switch, Verdict, VlanMode, VlanSet,
};

const BURST: usize = 64;
const PORTS: usize = 8;

fn head(dst: u64, src: u64) -> Head {
    let mut bytes = [Mac::from_u64(dst).0, Mac::from_u64(src).0].concat();
    bytes.extend([0x08, 0x00, 0x45]);
    bytes.resize(64, 0);
    let mut head = Head::new();
    head.copy_from(&bytes);
    head
}

fn station(n: u64) -> u64 {
    0x5254_0000_0000 + n * 2
}

/// Nanoseconds per frame, the best of many short runs: what else the machine does only adds.
/// Frames come in bursts with one snapshot each.
fn measure(
    switch: &Switch,
    frames: &[(PortId, Head)],
    mut look: impl FnMut(&Snapshot, &(PortId, Head)),
) -> f64 {
    let rounds = (100_000 / frames.len()).max(1);
    let runs = (0..60).map(|_| {
        let start = Instant::now();
        for _ in 0..rounds {
            for burst in frames.chunks(BURST) {
                let snapshot = switch.snapshot();
                for frame in burst {
                    look(&snapshot, frame);
                }
            }
        }
        start.elapsed().as_nanos() as f64 / (rounds * frames.len()) as f64
    });
    runs.fold(f64::INFINITY, f64::min)
}

fn main() {
    println!(
        "{:>8} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "MACs", "remembered", "hit rate", "worked out", "unknown", "broadcast"
    );
    for macs in [1u64, 1000, 100_000] {
        let switch = Switch::new();
        let settings = NetworkConfig { mac_limit: 1 << 20, ..NetworkConfig::default() };
        let network = switch.add_network(settings).unwrap();
        let ports: Vec<PortId> = (0..PORTS)
            .map(|index| {
                let vlan = match index {
                    0 => VlanMode::Trunk { allowed: VlanSet::all(), native: Some(5) },
                    _ => VlanMode::Access(5),
                };
                let port = switch.add_port(PortConfig { network, vlan, mac_limit: None }).unwrap();
                switch.set_link(port, true).unwrap();
                port
            })
            .collect();
        let port = |n: u64| ports[n as usize % PORTS];
        for n in 0..macs + 1 {
            switch.snapshot().lookup(port(n), head(0, station(n)).bytes(), 1);
        }
        // Every address talks to the next one; burst after burst in another order than learned.
        let order = |n: u64| n * 7919 % macs;
        let frames = |dst: &dyn Fn(u64) -> u64| -> Vec<(PortId, Head)> {
            (0..macs.max(64)).map(order).map(|n| (port(n), head(dst(n), station(n)))).collect()
        };
        let known = frames(&|n| station(n + 1));
        let unknown = frames(&|n| station(n) + 1);
        let broadcast = frames(&|_| Mac::BROADCAST.to_u64());

        let mut cache = Cache::default();
        let remembered = measure(&switch, &known, |snapshot, (port, head)| {
            black_box(cache.lookup(snapshot, *port, head.bytes(), 1));
        });
        let (hits, misses) = cache.hits_and_misses();
        let plain = measure(&switch, &known, |snapshot, (port, head)| {
            black_box(snapshot.lookup(*port, head.bytes(), 1));
        });
        let mut flood = |frames: &[(PortId, Head)]| {
            measure(&switch, frames, |snapshot, (port, head)| {
                match cache.lookup(snapshot, *port, head.bytes(), 1) {
                    Verdict::Flood(flood) => {
                        black_box(
                            snapshot
                                .flood(flood, Mac::BROADCAST)
                                .map(|m| m.port.index())
                                .sum::<usize>(),
                        );
                    }
                    other => {
                        black_box(other);
                    }
                }
            })
        };
        let (unknown, broadcast) = (flood(&unknown), flood(&broadcast));
        println!(
            "{macs:>8} {remembered:>10.1} {:>9.0}% {plain:>10.1} {unknown:>10.1} {broadcast:>10.1}",
            100.0 * hits as f64 / (hits + misses) as f64
        );
    }
    println!("unknown and broadcast: with the walk over the {} other ports", PORTS - 1);
}
