use std::time::Duration;

use packet::VlanEdit;

use crate::{Cache, NetworkConfig, NetworkId, PortConfig, PortId, Switch, Verdict, VlanMode};

/// A switch with ports, and a worker that has found remembering not worth it.
struct Bench {
    switch: Switch,
    network: NetworkId,
    ports: Vec<PortId>,
    cache: Cache,
    now_ms: u64,
}

impl Bench {
    fn new() -> Self {
        let switch = Switch::new();
        let network = switch.add_network(NetworkConfig::default()).unwrap();
        let port = || {
            let port = PortConfig { network, vlan: VlanMode::None, mac_limit: None };
            let port = switch.add_port(port).unwrap();
            switch.set_link(port, true).unwrap();
            port
        };
        let ports = (0..3).map(|_| port()).collect();
        let mut bench = Self { switch, network, ports, cache: Cache::new(1), now_ms: 1 };
        for n in 0..64 {
            bench.send(2, n, 200);
        }
        for n in 0..64 {
            bench.send(2, n, n ^ 1);
        }
        assert!(bench.cache.is_bypassed());
        bench
    }

    /// From machine `src`, behind port number `from`, to machine `dst`: announced, then looked up.
    fn send(&mut self, from: usize, src: u8, dst: u8) -> Verdict {
        let frame = frame([0, 0, 0, dst], [0, 0, 0, src]);
        let (port, snapshot) = (self.ports[from], self.switch.snapshot());
        self.expect(port, &[frame]);
        self.cache.turn();
        match self.cache.as_before(port, &frame) {
            Some(port) => Verdict::Forward { port, edit: VlanEdit::Keep },
            None => self.cache.lookup(&snapshot, port, &frame, self.now_ms),
        }
    }

    /// Announces the next frames from a port, whose turn it is.
    fn expect(&mut self, port: PortId, frames: &[[u8; 18]]) {
        let snapshot = self.switch.snapshot();
        self.cache.announce(&snapshot, port, 0, frames.iter().copied().map(Some));
        self.cache.expect(&snapshot, port, self.now_ms);
    }

    fn to(&self, port: usize) -> Verdict {
        Verdict::Forward { port: self.ports[port], edit: VlanEdit::Keep }
    }
}

/// The beginning of a frame between machines with these numbers.
fn frame(dst: [u8; 4], src: [u8; 4]) -> [u8; 18] {
    let mut frame = [0; 18];
    frame[..2].copy_from_slice(&[2, 0]);
    frame[2..6].copy_from_slice(&dst);
    frame[6..8].copy_from_slice(&[2, 0]);
    frame[8..12].copy_from_slice(&src);
    frame
}

/// Machine 100 is behind port 0, until it moves, or its port is flushed or down.
#[test]
fn changes_count_for_frames_that_were_announced() {
    let mut bench = Bench::new();
    let hear = |bench: &mut Bench| {
        for _ in 0..4 {
            assert_eq!(bench.send(0, 100, 5), bench.to(2));
        }
        assert_eq!(bench.send(2, 5, 100), bench.to(0));
    };
    hear(&mut bench);

    // It moves to port 1 and back.
    assert_eq!(bench.send(1, 100, 5), bench.to(2));
    assert_eq!(bench.send(2, 5, 100), bench.to(1));
    hear(&mut bench);

    let flooded = |verdict| matches!(verdict, Verdict::Flood(_));
    bench.switch.flush_port(bench.ports[0]).unwrap();
    assert!(flooded(bench.send(2, 5, 100)));
    hear(&mut bench);

    bench.switch.set_link(bench.ports[0], false).unwrap();
    bench.switch.set_link(bench.ports[0], true).unwrap();
    assert!(flooded(bench.send(2, 5, 100)));
    hear(&mut bench);
    assert!(bench.cache.is_bypassed());
}

/// Machine 100 moves while this worker holds the table before.
#[test]
fn a_table_that_is_replaced_counts_from_the_next_pass_on() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(0, 100, 5), bench.to(2));
    for turn in 0..4 {
        // Other workers learn more than it has room for.
        for n in 0..=u8::MAX {
            let frame = frame([0, 7, turn, n], [0, 0, 0, 200]);
            bench.switch.snapshot().lookup(bench.ports[2], &frame, 1);
        }
        let to = usize::from(turn % 2);
        bench.switch.snapshot().lookup(bench.ports[to], &frame([0, 0, 0, 5], [0, 0, 0, 100]), 1);
        bench.cache.release();
        for _ in 0..4 {
            assert_eq!(bench.send(2, 5, 100), bench.to(to));
        }
    }
    assert!(bench.cache.is_bypassed());
}

/// However long it goes on, the table says when an address was heard of, to some seconds.
#[test]
fn what_is_announced_is_stamped() {
    let mut bench = Bench::new();
    for _ in 0..500 {
        bench.now_ms += 700;
        bench.send(0, 100, 5);
        assert_eq!(bench.send(2, 5, 100), bench.to(0));
        let known = bench.switch.fdb(bench.network, bench.now_ms).unwrap();
        let new = known.iter().filter(|entry| entry.age < Duration::from_secs(3));
        assert!(new.count() >= 2, "{known:?}");
    }
    assert!(bench.cache.is_bypassed());
}

/// All of a group are known before the first of them is dealt with.
#[test]
fn an_address_that_moves_within_a_group_is_where_it_moved_to() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(0, 100, 5), bench.to(2));
    let (snapshot, port) = (bench.switch.snapshot(), bench.ports[2]);
    let to_100 = frame([0, 0, 0, 100], [0, 0, 0, 5]);
    let from_100 = frame([0, 0, 0, 5], [0, 0, 0, 100]);
    let group = [to_100, from_100, to_100];
    bench.expect(port, &group);
    bench.cache.turn();
    assert_eq!(bench.cache.as_before(port, &to_100), Some(bench.ports[0]));
    bench.cache.turn();
    assert_eq!(bench.cache.as_before(port, &from_100), None);
    bench.cache.lookup(&snapshot, port, &from_100, bench.now_ms);
    bench.cache.turn();
    assert_eq!(bench.cache.as_before(port, &to_100), None);
    let verdict = bench.cache.lookup(&snapshot, port, &to_100, bench.now_ms);
    assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
}

/// What is expected counts for frames with that beginning, from that port, in their place.
#[test]
fn another_frame_than_was_announced_is_looked_up() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(0, 100, 5), bench.to(2));
    let port = bench.ports[2];
    let frames = [frame([0, 0, 0, 100], [0, 0, 0, 5]), frame([0, 0, 0, 100], [0, 0, 0, 6])];
    bench.expect(port, &frames);
    let misses = bench.cache.hits_and_misses().1;
    for is in [[true, false], [false, true], [false, false]] {
        bench.cache.turn();
        for (frame, is) in frames.iter().zip(is) {
            let to = is.then_some(bench.ports[0]);
            assert_eq!(bench.cache.as_before(port, frame), to);
            assert_eq!(bench.cache.as_before(bench.ports[1], frame), None);
        }
    }
    assert_eq!(bench.cache.hits_and_misses().1, misses, "they were counted before");
    bench.expect(port, &frames);
    bench.cache.turn();
    bench.cache.release();
    assert_eq!(bench.cache.as_before(port, &frames[0]), None, "nothing outlasts a pass");
    bench.cache.turn();
    assert_eq!(bench.cache.as_before(port, &frames[1]), None, "nothing outlasts a pass");
}

/// A frame that was expected does not come, and another is announced in its place.
#[test]
fn what_was_expected_counts_for_no_other_frame() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(0, 100, 5), bench.to(2));
    let (snapshot, port) = (bench.switch.snapshot(), bench.ports[2]);
    let known = frame([0, 0, 0, 100], [0, 0, 0, 5]);
    let unknown = frame([0, 0, 9, 9], [0, 0, 0, 5]);
    for other in [known, unknown] {
        bench.expect(port, &[other]);
    }
    bench.cache.turn();
    assert_eq!(bench.cache.as_before(port, &unknown), None);

    // Or the same is expected once more, when its destination is gone.
    bench.expect(port, &[known]);
    bench.switch.flush_port(bench.ports[0]).unwrap();
    bench.cache.expect(&snapshot, port, bench.now_ms);
    bench.cache.turn();
    assert_eq!(bench.cache.as_before(port, &known), None);
}
