//! The generator of `hayate bench` against a real daemon: a few thousand frames, no figures.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use bench::generator::{CardSpec, Flows, Packed, Paths, Ring, Split, Touch, Traffic, TrafficSpec};
use bench::sut::install::libfabric;
use common::Daemon;
use testkit::frontend::{Pages, SharedMemory};

const PORTS: usize = 4;

fn spec(packed: bool) -> TrafficSpec {
    TrafficSpec {
        card: CardSpec {
            packed,
            in_order: packed,
            entries: 64,
            queues: 1,
            offloads: false,
            listen: false,
        },
        size: 128,
        paths: Paths::OneWay,
        flows: 100,
        routers: 0,
        vary: Flows::Ports,
        touch: Touch::Headers,
        deliver: true,
    }
}

/// A daemon with ports, and where they listen.
fn daemon() -> (Daemon, Vec<std::path::PathBuf>) {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add n");
    let mut sockets = Vec::new();
    for port in 0..PORTS {
        let socket = daemon.run_dir.join(format!("{port}.sock"));
        let path = socket.display();
        daemon.ok(&format!("port add p{port} --network n --kind vhost --socket {path}"));
        sockets.push(socket);
    }
    (daemon, sockets)
}

fn frames_travel<R: Ring>(packed: bool) {
    let (_daemon, sockets) = daemon();
    let memory = SharedMemory::new(&[(1 << 30, 32 << 20)], Pages::Small).unwrap();
    for (paths, touch) in [
        (Paths::OneWay, Touch::None),
        (Paths::BothWays, Touch::All),
        (Paths::Forwarded, Touch::Headers),
        (Paths::Routed(1), Touch::Headers),
    ] {
        let spec = TrafficSpec { paths, touch, ..spec(packed) };
        let mut traffic = Traffic::<R>::connect(&sockets, &spec, &memory).unwrap();
        // Every method checks what arrives.
        while traffic.counters().received < 5_000 {
            traffic.flood(Duration::from_millis(2)).unwrap();
        }
        traffic.drain(Duration::from_millis(20));
        let counters = traffic.counters();
        assert!(counters.received <= counters.sent, "{paths:?}: {counters:?}");
        assert_eq!(counters.bad, 0, "{paths:?}");
        if paths == Paths::OneWay {
            for _ in 0..200 {
                let trip = traffic.round_trip().unwrap().expect("no frame is lost alone");
                assert!(trip.there <= trip.total);
            }
        }
        traffic.disconnect().unwrap();
    }
}

#[test]
fn frames_travel_on_split_rings() {
    frames_travel::<Split>(false);
}

#[test]
fn frames_travel_on_packed_rings() {
    frames_travel::<Packed>(true);
}

/// Slower than the receiver looks, every frame arrives.
#[test]
fn at_a_low_rate_nothing_is_lost() {
    let (_daemon, sockets) = daemon();
    let memory = SharedMemory::new(&[(1 << 30, 32 << 20)], Pages::Small).unwrap();
    let spec = spec(false);
    let mut traffic = Traffic::<Split>::connect(&sockets[..2], &spec, &memory).unwrap();
    let sent = traffic.counters().sent;
    for _ in 0..20 {
        // Fewer frames than the receiving ring has entries: however long either side is stopped,
        // none is dropped for want of one.
        traffic.pace(Duration::from_millis(5), 10_000.0).unwrap();
        common::until("all frames arrived", || {
            traffic.drain(Duration::from_millis(1));
            traffic.counters().received == traffic.counters().sent
        });
    }
    assert!(traffic.counters().sent > sent);
    traffic.disconnect().unwrap();
}

/// What nobody has room for is taken all the same: what sending costs can be told from the rest.
#[test]
fn frames_are_taken_that_cannot_be_delivered() {
    let (_daemon, sockets) = daemon();
    let memory = SharedMemory::new(&[(1 << 30, 32 << 20)], Pages::Small).unwrap();
    let spec = TrafficSpec { deliver: false, ..spec(true) };
    let mut traffic = Traffic::<Packed>::connect(&sockets[..2], &spec, &memory).unwrap();
    let before = traffic.counters();
    common::until("many frames were taken", || {
        traffic.pace(Duration::from_millis(5), 100_000.0).unwrap();
        traffic.counters().since(&before).taken > 2_000
    });
    traffic.drain(Duration::from_millis(20));
    let counters = traffic.counters().since(&before);
    assert!(counters.received <= 64, "no more than the receiver had buffers: {counters:?}");
    assert!(counters.taken <= counters.sent, "{counters:?}");
    traffic.disconnect().unwrap();
}

/// Every machine is known after the introduction, so no frame is flooded to others.
#[test]
fn machines_are_introduced_in_bursts() {
    let (daemon, sockets) = daemon();
    let memory = SharedMemory::new(&[(1 << 30, 32 << 20)], Pages::Small).unwrap();
    let spec = TrafficSpec { flows: 500, vary: Flows::Macs, ..spec(false) };
    let traffic = Traffic::<Split>::connect(&sockets[..2], &spec, &memory).unwrap();
    let known = daemon.ok("fdb n --json").matches("\"mac\"").count();
    assert!(known >= 1_000, "{known} addresses are known");
    traffic.disconnect().unwrap();
}

/// A report names the libfabric that was loaded, whatever is installed.
#[test]
fn the_libfabric_that_is_loaded_is_known() {
    let said = common::hayate(["fabric", "list"]).out;
    let mut words = said.lines().next().unwrap().split(' ');
    let expected = (words.next() == Some("libfabric")).then(|| words.next().unwrap().to_owned());
    assert_eq!(libfabric(common::HAYATE), expected);
    assert_eq!(libfabric("/bin/true"), None);
    assert_eq!(libfabric("/nothing"), None);
}

#[test]
fn a_wrong_option_says_what_is_right() {
    let said = common::hayate(["bench", "--sizes", "32"]);
    assert_eq!(said.status, 2);
    assert!(said.err.contains("64..=1518"), "{}", said.err);
    let said = common::hayate(["bench", "--cpus", "0"]);
    assert_eq!(said.status, 2);
    assert!(said.err.contains("two different CPU numbers"), "{}", said.err);
}

#[test]
fn nothing_to_measure_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("report");
    for nothing in ["--cells disk --disk-only nothing", "--cells throughput --systems hayate-power"]
    {
        let words = ["bench", "--out", out.to_str().unwrap()];
        let said = common::hayate(words.into_iter().chain(nothing.split(' ')));
        assert_ne!(said.status, 0);
        assert!(said.err.contains("nothing to measure"), "{}", said.err);
        assert!(!out.exists(), "there is no report");
    }
}
