//! A worker that remembers, a worker that does not, and the model must agree on every frame,
//! whatever happened in between (the class of CVE-2023-1668: a cached verdict that is too wide or
//! too old).
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Entry, Frame, Model, Network, Outcome, Port, Tag, outcome};
use packet::{Mac, VlanEdit};
use proptest::collection::vec;
use proptest::prelude::*;
use switch::{
    Cache, LinkState, NetworkConfig, NetworkId, Policy, PortConfig, PortId, Spot, Switch, Verdict,
    VlanMode,
};

#[derive(Clone, Debug)]
enum Op {
    Frame { worker: usize, port: usize, frame: Frame, announced: bool },
    Advance(u64),
    Maintain,
    Link(usize, bool),
    Vlan(usize, VlanMode),
    PortLimit(usize, Option<usize>),
    Network(usize, usize),
    FlushPort(usize),
    FlushNetwork(usize),
    Pin(usize, u64, Option<u16>),
    Unpin(usize, u64, Option<u16>),
    Remove(usize),
    Add(usize, VlanMode),
    Policy(usize, Policy),
}

const PORTS: usize = 7;
const AGE_MS: u64 = 5000;

fn mac() -> impl Strategy<Value = u64> {
    prop_oneof![
        20 => 0x0200_0000_0001u64..=0x0200_0000_0005,
        2 => Just(Mac::BROADCAST.to_u64()),
        1 => Just(0x0180_c200_000eu64),
        1 => Just(0x0180_c200_0010u64),
        1 => Just(0u64),
    ]
}

fn tci() -> impl Strategy<Value = u16> {
    (0u16..16, prop_oneof![6 => 0u16..=3, 1 => Just(4095u16)])
        .prop_map(|(high, vid)| high << 12 | vid)
}

fn tags() -> impl Strategy<Value = Vec<Tag>> {
    let tag = || (prop_oneof![9 => Just(0x8100u16), 1 => Just(0x88a8)], tci());
    prop_oneof![4 => Just(vec![]), 4 => vec(tag(), 1), 1 => vec(tag(), 2)]
}

fn mode() -> impl Strategy<Value = VlanMode> {
    let vid = 1u16..=3;
    prop_oneof![
        2 => Just(VlanMode::None),
        2 => vid.clone().prop_map(VlanMode::Access),
        2 => (vec(vid.clone(), 0..4), prop::option::of(vid)).prop_map(|(allowed, native)| {
            VlanMode::Trunk { allowed: allowed.into_iter().collect(), native }
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let port = || 0..PORTS;
    let station = || 0x0200_0000_0001u64..=0x0200_0000_0005;
    let vlan = || prop::option::of(1u16..=3);
    prop_oneof![
        60 => (0usize..2, port(), mac(), mac(), tags(), any::<bool>()).prop_map(
            |(worker, port, dst, src, tags, announced)| {
                let frame = Frame::new(dst, src).tagged(&tags);
                Op::Frame { worker, port, frame, announced }
            },
        ),
        // In the units in which memory counts, so that it stamps sources when the plain switch does.
        6 => prop_oneof![0u64..2, 0u64..12].prop_map(|units| Op::Advance(256 * units)),
        3 => Just(Op::Maintain),
        2 => (port(), any::<bool>()).prop_map(|(port, up)| Op::Link(port, up)),
        2 => (port(), mode()).prop_map(|(port, mode)| Op::Vlan(port, mode)),
        1 => (port(), prop::option::of(0usize..3)).prop_map(|(port, n)| Op::PortLimit(port, n)),
        1 => (0usize..2, 0usize..6).prop_map(|(network, n)| Op::Network(network, n)),
        1 => port().prop_map(Op::FlushPort),
        1 => (0usize..2).prop_map(Op::FlushNetwork),
        1 => (port(), station(), vlan()).prop_map(|(port, mac, vlan)| Op::Pin(port, mac, vlan)),
        1 => (0usize..2, station(), vlan()).prop_map(|(n, mac, vlan)| Op::Unpin(n, mac, vlan)),
        1 => port().prop_map(Op::Remove),
        1 => (0usize..2, mode()).prop_map(|(network, mode)| Op::Add(network, mode)),
        2 => (port(), policy()).prop_map(|(port, policy)| Op::Policy(port, policy)),
    ]
}

/// What is enforced by look-ups.
fn policy() -> impl Strategy<Value = Policy> {
    let link = prop_oneof![
        4 => Just(LinkState::Auto),
        1 => Just(LinkState::Enable),
        1 => Just(LinkState::Disable),
    ];
    let station = prop::option::of(0x0200_0000_0001u64..=0x0200_0000_0005);
    (link, station, prop::option::of(0u8..8)).prop_map(|(link, station, qos)| Policy {
        mac: station.map(Mac::from_u64),
        trust: station.is_none(),
        qos,
        link,
        ..Policy::default()
    })
}

/// The same without tags, with one mode for every port.
fn without_vlans(op: Op) -> Op {
    match op {
        Op::Frame { worker, port, mut frame, announced } => {
            frame.tags.clear();
            Op::Frame { worker, port, frame, announced }
        }
        Op::Vlan(..) => Op::Maintain,
        Op::Add(network, _) => Op::Add(network, VlanMode::Access(2)),
        Op::Pin(port, mac, _) => Op::Pin(port, mac, Some(2)),
        Op::Unpin(network, mac, _) => Op::Unpin(network, mac, Some(2)),
        other => other,
    }
}

/// The two switches and the model, and the numbers of what they have in common.
struct Bench {
    cached: Switch,
    plain: Switch,
    model: Model,
    networks: Vec<NetworkId>,
    ports: Vec<PortId>,
    now: u64,
    /// Who looked up a frame just now, and the last frame of each.
    just: Option<usize>,
    last: [Option<(PortId, Frame)>; 2],
}

impl Bench {
    fn new(modes: &[VlanMode]) -> Self {
        let mut bench = Self {
            cached: Switch::new(),
            plain: Switch::new(),
            model: Model::default(),
            networks: Vec::new(),
            ports: Vec::new(),
            now: 256,
            just: None,
            last: [None, None],
        };
        for _ in 0..2 {
            let settings = NetworkConfig { mac_limit: 100, mac_age: Duration::from_millis(AGE_MS) };
            let id = bench.both(|switch| switch.add_network(settings)).unwrap();
            let network = Network { limit: 100, age_ms: AGE_MS, ..Network::default() };
            bench.model.networks.insert(id, network);
            bench.networks.push(id);
        }
        for (index, mode) in modes.iter().enumerate() {
            // Most ports in one network, so that they meet.
            bench.add(usize::from(index % 4 == 3), mode.clone());
            bench.link(index, true);
        }
        bench
    }

    fn both<T: PartialEq + std::fmt::Debug>(&self, change: impl Fn(&Switch) -> T) -> T {
        let result = change(&self.cached);
        assert_eq!(change(&self.plain), result);
        result
    }

    fn add(&mut self, network: usize, vlan: VlanMode) {
        let network = self.networks[network];
        let settings = PortConfig { network, vlan: vlan.clone(), mac_limit: None };
        let id = self.both(|switch| switch.add_port(settings.clone())).unwrap();
        let port = Port {
            network,
            vlan,
            up: false,
            running: false,
            link: LinkState::Auto,
            limit: None,
            only: None,
            qos: None,
        };
        self.model.ports.insert(id, port);
        self.ports.push(id);
    }

    fn link(&mut self, index: usize, up: bool) {
        let id = self.ports[index];
        self.both(|switch| switch.set_link(id, up)).unwrap();
        self.change(id, |port| {
            port.running = up;
            port.set_up()
        });
    }

    fn change(&mut self, id: PortId, change: impl FnOnce(&mut Port) -> bool) {
        if change(self.model.ports.get_mut(&id).unwrap()) {
            self.model.forget(id, false);
        }
    }

    /// What became of a frame is what becomes of it without memory, and in the model.
    fn agree(&mut self, in_port: PortId, frame: &Frame, cached: &Outcome) {
        let snapshot = self.plain.snapshot();
        let verdict = snapshot.lookup(in_port, frame.head().bytes(), self.now);
        let plain = outcome(&snapshot, verdict, frame);
        let expected = self.model.frame(in_port, frame, self.now);
        assert_eq!(plain, expected, "without memory: {frame:?} from {in_port}");
        assert_eq!(*cached, expected, "from memory: {frame:?} from {in_port}");
    }

    fn apply(&mut self, op: Op, caches: &mut [Cache; 2]) {
        let port = |index: usize| self.ports[index % self.ports.len()];
        let just = self.just.take();
        match op {
            Op::Frame { worker, port: index, frame, announced } => {
                let (in_port, head) = (port(index), frame.head());
                let snapshot = self.cached.snapshot();
                let cache = &mut caches[worker];
                // Frames alike that follow each other in a pass are one look-up: not if something happens in between.
                let last = self.last[worker].replace((in_port, frame.clone()));
                if just != Some(worker) && last == self.last[worker] {
                    cache.release();
                }
                let keep = |port| Verdict::Forward { port, edit: VlanEdit::Keep };
                let bytes = head.bytes();
                let places = cache.places(in_port).filter(|_| announced);
                let spot = places.map_or(Spot::NONE, |places| places.spot(bytes));
                let watch = snapshot.watch(in_port).filter(|_| spot.is_some());
                let before = if watch.is_none() { cache.as_before(in_port, bytes) } else { None };
                let at = watch.map(|watch| (&spot, watch));
                let verdict = before
                    .map_or_else(
                        || cache.destination(&snapshot, in_port, || bytes, at, self.now),
                        Ok,
                    )
                    .map_or_else(|other| other, keep);
                self.just = Some(worker);
                let cached = outcome(&snapshot, verdict, &frame);
                // As between frames of a burst, and between bursts.
                if self.now.is_multiple_of(3) {
                    caches[worker].release();
                }
                self.agree(in_port, &frame, &cached);
            }
            Op::Advance(ms) => self.now += ms,
            Op::Maintain => {
                let now = self.now;
                self.both(|switch| switch.maintain(now));
                self.model.maintain(now);
            }
            Op::Link(index, up) => self.link(index % self.ports.len(), up),
            Op::Vlan(index, vlan) => {
                let id = port(index);
                self.both(|switch| switch.set_vlan(id, vlan.clone())).unwrap();
                self.change(id, |port| std::mem::replace(&mut port.vlan, vlan.clone()) != vlan);
            }
            Op::Policy(index, policy) => {
                let id = port(index);
                self.both(|switch| switch.set_policy(id, &policy)).unwrap();
                self.change(id, |port| {
                    let before = std::mem::replace(&mut port.only, policy.mac);
                    (port.link, port.qos) = (policy.link, policy.qos);
                    port.set_up() || before != policy.mac
                });
            }
            Op::PortLimit(index, limit) => {
                let id = port(index);
                self.both(|switch| switch.set_mac_limit(id, limit)).unwrap();
                self.change(id, |port| std::mem::replace(&mut port.limit, limit) != limit);
            }
            Op::Network(index, limit) => {
                let id = self.networks[index];
                let settings =
                    NetworkConfig { mac_limit: limit, mac_age: Duration::from_millis(AGE_MS) };
                self.both(|switch| switch.set_network(id, settings)).unwrap();
                self.model.networks.get_mut(&id).unwrap().limit = limit;
            }
            Op::FlushPort(index) => {
                let id = port(index);
                self.both(|switch| switch.flush_port(id)).unwrap();
                self.model.forget(id, false);
            }
            Op::FlushNetwork(index) => {
                let id = self.networks[index];
                self.both(|switch| switch.flush_network(id)).unwrap();
                self.model.networks.get_mut(&id).unwrap().entries.retain(|_, e| e.fixed);
            }
            Op::Pin(index, mac, vlan) => {
                let (id, mac) = (port(index), Mac::from_u64(mac));
                self.both(|switch| switch.add_static(mac, vlan, id)).unwrap();
                let network = self.model.ports[&id].network;
                let entry = Entry { port: id, stamp: 0, fixed: true };
                let entries = &mut self.model.networks.get_mut(&network).unwrap().entries;
                entries.insert((vlan.unwrap_or(0), mac), entry);
            }
            Op::Unpin(index, mac, vlan) => {
                let (id, mac) = (self.networks[index], Mac::from_u64(mac));
                let released = self.both(|switch| switch.remove_static(id, mac, vlan)).is_ok();
                let entries = &mut self.model.networks.get_mut(&id).unwrap().entries;
                let key = (vlan.unwrap_or(0), mac);
                assert_eq!(released, entries.get(&key).is_some_and(|entry| entry.fixed));
                if released {
                    entries.remove(&key);
                }
            }
            Op::Remove(index) if self.ports.len() > 2 => {
                let id = self.ports.remove(index % self.ports.len());
                self.both(|switch| switch.remove_port(id)).unwrap();
                self.model.ports.remove(&id);
                self.model.forget(id, true);
            }
            Op::Add(network, mode) if self.ports.len() < PORTS => {
                self.add(network, mode);
                self.link(self.ports.len() - 1, true);
            }
            Op::Remove(_) | Op::Add(..) => {}
        }
    }

    /// The tables, stamps included, are the same.
    fn compare_tables(&self) {
        for id in &self.networks {
            let listed = self.both(|switch| switch.fdb(*id, self.now).unwrap());
            let expected = self.model.networks[id].entries.iter().map(|((fid, mac), entry)| {
                let age = if entry.fixed { 0 } else { self.now - entry.stamp };
                (*mac, (*fid != 0).then_some(*fid), entry.port, age, entry.fixed)
            });
            let listed =
                listed.iter().map(|e| (e.mac, e.vlan, e.port, e.age.as_millis() as u64, e.fixed));
            assert_eq!(listed.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            let stats = self.cached.network_stats(*id).unwrap();
            let learned = self.model.networks[id].entries.values().filter(|e| !e.fixed).count();
            assert_eq!(stats.macs, learned as u64);
            assert_eq!(stats.macs + stats.fixed, self.model.networks[id].entries.len() as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn remembered_worked_out_and_modelled_verdicts_agree(
        modes in vec(mode(), PORTS),
        ops in vec(op(), 1..150),
        entries in prop_oneof![Just(1usize), Just(1024)],
    ) {
        let mut bench = Bench::new(&modes);
        // A cache of one set as well: collisions must not matter.
        let mut caches = [Cache::new(entries), Cache::new(entries)];
        for op in ops {
            bench.apply(op, &mut caches);
        }
        bench.compare_tables();
    }

    /// A worker that has so many addresses that it remembers nothing, to which frames are announced.
    #[test]
    fn verdicts_past_the_memory_agree(
        (modes, ops) in prop_oneof![
            (vec(mode(), PORTS), vec(op(), 1..200)),
            (
                prop_oneof![Just(VlanMode::Access(2)), Just(VlanMode::None)]
                    .prop_map(|mode| vec![mode; PORTS]),
                vec(op().prop_map(without_vlans), 1..200),
            ),
        ],
        ahead in 0..4usize,
    ) {
        let mut bench = Bench::new(&modes);
        let mut caches = [Cache::new(64), Cache::new(64)];
        let snapshot = bench.cached.snapshot();
        for cache in &mut caches {
            // Too short to be remembered.
            while !cache.is_bypassed() {
                cache.lookup(&snapshot, bench.ports[0], &[], bench.now);
            }
        }
        for (n, op) in ops.iter().enumerate() {
            if let Some(Op::Frame { worker, port, frame, .. }) = ops.get(n + ahead) {
                let in_port = bench.ports[port % bench.ports.len()];
                let (snapshot, head) = (bench.cached.snapshot(), frame.head());
                caches[*worker].fetch_addresses(&snapshot, in_port, head.bytes());
            }
            bench.apply(op.clone(), &mut caches);
        }
        prop_assert!(caches.iter().all(Cache::is_bypassed));
        bench.compare_tables();
    }

    /// One VLAN mode for all, so that most frames are unicast to a known address: the remembered
    /// verdicts are what is tested.
    #[test]
    fn the_same_where_everybody_can_talk(
        ops in vec(op().prop_map(without_vlans), 1..200),
    ) {
        let mut bench = Bench::new(&vec![VlanMode::Access(2); PORTS]);
        let mut caches = [Cache::new(64), Cache::new(64)];
        for op in ops {
            bench.apply(op, &mut caches);
        }
        bench.compare_tables();
    }
}
