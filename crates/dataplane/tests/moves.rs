//! Queues move between workers, while frames flow and sessions come and go: no frame is lost, none
//! comes twice, and a flow keeps its order.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::HashMap;
use std::fs;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::frames::{BROADCAST, Vnet, eth, mac};
use common::plane::{Plane, network};
use common::vm::{Guest, Side, Vm, fds};
use common::{PATIENCE, Rng, wait};
use dataplane::{Direction, HostError, Options, PortId};
use testkit::frontend::{Frontend, request};

const WORKERS: u16 = 3;
const PAIRS: usize = 2;

/// A frame of a flow: who sent it, by which queue, the how manyth.
fn frame(from: u32, to: u32, pair: usize, number: u32) -> Vec<u8> {
    let len = 46 + number as usize * 7 % 900;
    let mut body = vec![number as u8; len];
    body[..4].copy_from_slice(&number.to_be_bytes());
    body[4] = pair as u8;
    eth(mac(to), mac(from), &body)
}

/// Two guests that talk to each other.
struct Duo {
    names: [String; 2],
    ports: [PortId; 2],
    vms: [Vm; 2],
    /// Their numbers, from which their addresses are made.
    ids: [u32; 2],
    /// The number of the next frame by sender and queue.
    next: [[u32; PAIRS]; 2],
    rng: Rng,
}

impl Duo {
    fn new(plane: &Plane, first: u32, guest: &Guest) -> Duo {
        let ids = [first, first + 1];
        let names = ids.map(|id| format!("vm{id}"));
        let network = plane.host.add_network(&network(&names[0])).unwrap();
        let ports = names.each_ref().map(|name| {
            plane.port_with(name, |spec, _| {
                spec.worker = None;
                spec.network = network;
            })
        });
        let vms = names.each_ref().map(|name| plane.connect(name, guest));
        Duo { names, ports, vms, ids, next: [[0; PAIRS]; 2], rng: Rng::new(first.into()) }
    }

    /// Sends up to 60 frames one way by both queues without waiting for them.
    fn send(&mut self, from: usize) -> usize {
        let to = self.ids[1 - from];
        let count = self.rng.range(1, 60);
        for _ in 0..count {
            let pair = self.rng.below(PAIRS as u64) as usize;
            let number = &mut self.next[from][pair];
            let bytes = frame(self.ids[from], to, pair, *number);
            *number += 1;
            self.vms[from].send_on(pair, &Vnet::default(), &bytes);
            if self.rng.one_in(20) {
                thread::yield_now();
            }
        }
        count
    }

    /// Takes what was sent: all of it, whole, each flow in order.
    fn take(&mut self, from: usize, count: usize) {
        let mut expected: HashMap<usize, u32> = HashMap::new();
        let received = self.vms[1 - from].take(count);
        for pair in 0..PAIRS {
            let mine = received.iter().filter(|one| usize::from(one.frame[18]) == pair).count();
            expected.insert(pair, self.next[from][pair] - mine as u32);
        }
        for one in &received {
            let pair = usize::from(one.frame[18]);
            let number = expected.get_mut(&pair).unwrap();
            let whole = frame(self.ids[from], self.ids[1 - from], pair, *number);
            assert!(one.frame == whole, "frame {number} of queue {pair}: {:x?}", one.frame);
            *number += 1;
        }
        assert!(self.vms[1 - from].inbox.is_empty(), "a frame came twice");
    }

    /// What a front end may do; frames of guest `at` may be on their way, none to it.
    fn disturb(&mut self, plane: &Plane, at: usize) {
        let pair = self.rng.below(PAIRS as u64) as u16;
        let (tx, vm) = (2 * pair + 1, &mut self.vms[at]);
        match self.rng.below(12) {
            // Stops and starts all queues.
            0 => vm.frontend.set_mem_table(&vm.memory).unwrap(),
            // Stops one queue wherever it is, and goes on with it.
            1..5 => {
                let base = vm.frontend.stop_queue(tx).unwrap();
                vm.frontend.set_ring_state(request::SET_VRING_BASE, tx, base).unwrap();
                let kick = &vm.tx[usize::from(pair)].fds.kick;
                vm.frontend.set_ring_fd(request::SET_VRING_KICK, tx, Some(kick)).unwrap();
            }
            // Another interrupt.
            5..8 => {
                let call = fds().call;
                vm.frontend.set_ring_fd(request::SET_VRING_CALL, tx, Some(&call)).unwrap();
                vm.tx[usize::from(pair)].fds.call = call;
            }
            // Off and on, when there is nothing to be dropped.
            8..10 => {
                vm.drain();
                vm.frontend.enable_queue(tx, false).unwrap();
                vm.frontend.enable_queue(tx, true).unwrap();
            }
            // Another session, which goes on with the rings.
            _ => {
                let queues = 0..2 * self.vms[at].guest.pairs;
                let vm = &mut self.vms[at];
                let bases: Vec<u32> =
                    queues.map(|queue| vm.frontend.stop_queue(queue).unwrap()).collect();
                // The port serves one front end at a time.
                vm.frontend.socket().shutdown(Shutdown::Both).unwrap();
                let socket = plane.socket(&self.names[at]);
                vm.frontend = Frontend::connect_within(socket, PATIENCE).unwrap();
                resume(vm, &bases);
            }
        }
    }
}

/// Tells a new session about rings that stand at these positions.
fn resume(vm: &mut Vm, bases: &[u32]) {
    vm.negotiate();
    vm.frontend.set_mem_table(&vm.memory).unwrap();
    let Vm { frontend, memory, rx, tx, .. } = vm;
    let both = rx.iter().zip(tx.iter()).flat_map(|(rx, tx)| [rx, tx]);
    for ((index, Side { queue, fds, .. }), base) in (0..).zip(both).zip(bases) {
        let (at, size) = (queue.addresses(), queue.spec().size.into());
        let user = [at.desc, at.device, at.driver].map(|gpa| memory.user_addr(gpa).unwrap());
        frontend.set_ring_state(request::SET_VRING_NUM, index, size).unwrap();
        frontend.set_ring_state(request::SET_VRING_BASE, index, *base).unwrap();
        frontend.set_ring_addr(index, user).unwrap();
        frontend.enable_queue(index, true).unwrap();
        frontend.set_ring_fd(request::SET_VRING_KICK, index, Some(&fds.kick)).unwrap();
        frontend.set_ring_fd(request::SET_VRING_CALL, index, Some(&fds.call)).unwrap();
    }
}

/// Moves a queue, or all of a port; returns once it is there.
fn shift(plane: &Plane, port: PortId, queue: Option<u16>, worker: Option<u16>) {
    plane.run(plane.host.move_port(port, queue, worker)).unwrap();
}

/// Moves queues without a pause until told to end; how often.
fn shuffle(plane: &Plane, ports: &[PortId], end: &AtomicBool, seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let mut moves = 0;
    while !end.load(Ordering::Relaxed) {
        let queue = rng.below(PAIRS as u64 + 1) as u16;
        let queue = (usize::from(queue) < PAIRS).then_some(queue);
        let worker = (!rng.one_in(5)).then(|| rng.below(WORKERS.into()) as u16);
        shift(plane, rng.pick(ports), queue, worker);
        moves += 1;
        match rng.below(20) {
            // Long enough for workers to fall asleep.
            0 => thread::sleep(Duration::from_micros(300)),
            1..4 => {}
            _ => thread::yield_now(),
        }
    }
    moves
}

#[test]
fn queues_move_while_frames_flow() {
    const ROUNDS: usize = 1500;
    let plane = Plane::with_workers(WORKERS.into());
    let plain = Guest { pairs: PAIRS as u16, ..Guest::plain() };
    let packed = Guest { packed: true, event_idx: true, ..plain.clone() };
    let mut duos = [Duo::new(&plane, 0, &plain), Duo::new(&plane, 2, &packed)];
    let ports: Vec<PortId> = duos.iter().flat_map(|duo| duo.ports).collect();
    assert_eq!(ports.len(), 4);
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        // Two, so that moves meet.
        let movers = [7, 8].map(|seed| {
            let (plane, ports, end) = (&plane, &ports, &end);
            scope.spawn(move || shuffle(plane, ports, end, seed))
        });
        let talks: Vec<_> = duos
            .iter_mut()
            .map(|duo| {
                let plane = &plane;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let from = round % 2;
                        let count = duo.send(from);
                        let disturbed = duo.rng.one_in(4);
                        if disturbed {
                            duo.disturb(plane, from);
                        }
                        duo.take(from, count);
                        if disturbed {
                            // Its RX queues may have been told to start only.
                            plane.barrier();
                        }
                        if duo.rng.one_in(16) {
                            thread::sleep(Duration::from_micros(duo.rng.below(2000)));
                        }
                    }
                })
            })
            .collect();
        // A failure is shown by what has failed, after the movers have ended.
        let ended: Vec<_> = talks.into_iter().map(thread::ScopedJoinHandle::join).collect();
        end.store(true, Ordering::Relaxed);
        let moves: usize = movers.into_iter().map(|mover| mover.join().unwrap()).sum();
        ended.into_iter().for_each(|talk| talk.unwrap());
        assert!(moves > 0, "{moves} moves");
    });
    // All workers had their part, as shown.
    for worker in plane.host.workers() {
        assert!(worker.frames > 0 && worker.busy > Duration::ZERO, "{worker:?}");
    }
    let frames: u64 = duos.iter().flat_map(|duo| &duo.vms).map(|vm| vm.sent).sum();
    let balance = plane.settle(&ports, frames);
    assert_eq!(balance.dropped(), 0, "{balance:?}");
    plane.end();
}

/// Ports are removed while their queues are on their way, and others take their numbers.
#[test]
fn ports_go_while_their_queues_move() {
    let plane = Plane::with_workers(WORKERS.into());
    let guest = Guest { pairs: PAIRS as u16, ..Guest::plain() };
    let stays = plane.port_with("stays", |spec, _| spec.worker = None);
    let mut receiver = plane.connect("stays", &guest);
    let mut rng = Rng::new(3);
    for round in 0..60u32 {
        let port = plane.port_with("goes", |spec, _| spec.worker = None);
        let mut vm = plane.connect("goes", &guest);
        for number in 0..5 {
            for _ in 0..3 {
                let to = Some(rng.below(WORKERS.into()) as u16);
                shift(&plane, port, None, to);
                shift(&plane, stays, None, to);
            }
            let bytes = frame(round + 10, 9999, 1, number);
            vm.send_on(1, &Vnet::default(), &bytes);
            assert!(receiver.take(1)[0].frame == bytes);
        }
        shift(&plane, port, None, Some(0));
        plane.run(plane.host.remove_port(port)).unwrap();
        let gone = plane.run(plane.host.move_port(port, None, Some(1)));
        assert!(matches!(gone, Err(HostError::NoSuchPort(_))), "{gone:?}");
        vm.frontend.wait_closed().unwrap();
    }
    plane.end();
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let plane = Plane::with_workers(2);
    let port = plane.port_with("port", |_, vhost| vhost.queues = 2);
    let refused = |queue, worker| {
        plane.run(plane.host.move_port(port, queue, worker)).unwrap_err().to_string()
    };
    assert_eq!(refused(None, Some(2)), "there is no worker 2: this daemon has 2, numbered from 0");
    assert_eq!(refused(Some(2), None), "the port has no queue 2: it has 2, numbered from 0");
    plane.end();
}

/// Where TX queue `index` of a port is, and whether the operator chose that.
fn place(plane: &Plane, port: PortId, index: u16) -> (Option<u16>, bool) {
    let status = plane.status(port);
    let queue =
        status.queues.iter().find(|queue| queue.dir == Direction::Tx && queue.index == index);
    queue.map(|queue| (queue.worker, queue.pinned)).unwrap()
}

/// What is shown of a queue: each has a place of its own, that the operator may choose.
#[test]
fn each_queue_has_its_place() {
    let plane = Plane::with_workers(2);
    let port = plane.port_with("port", |spec, _| spec.worker = None);
    let guest = Guest { pairs: 4, ..Guest::plain() };
    let _vm = plane.connect("port", &guest);
    let on = |worker| (0..4).filter(|index| place(&plane, port, *index).0 == Some(worker)).count();
    assert_eq!((on(0), on(1)), (2, 2), "spread");
    let rx = |queue: &&dataplane::QueueStatus| queue.dir == Direction::Rx;
    assert!(plane.status(port).queues.iter().filter(rx).all(|queue| queue.worker.is_none()));

    shift(&plane, port, None, Some(1));
    assert!((0..4).all(|index| place(&plane, port, index) == (Some(1), true)));
    let shown = || plane.host.workers()[1].queues.iter().filter(|queue| queue.pinned).count();
    wait(|| format!("{:?}", plane.host.workers()), || shown() == 4);
    shift(&plane, port, Some(2), Some(0));
    assert_eq!(place(&plane, port, 2), (Some(0), true));
    shift(&plane, port, None, None);
    assert_eq!(place(&plane, port, 2), (Some(0), false), "it stays until there is a reason");
    plane.end();
}

/// On a machine with two nodes a queue starts at a worker that is near its memory, and the operator
/// may say otherwise.
#[test]
fn a_queue_starts_near_its_memory() {
    let guest = Guest::plain();
    let real = {
        let plane = Plane::new();
        let (_, vm) = plane.vm("where", &guest);
        vm.memory.guest().node(0)
    };
    // A sandbox may forbid to ask.
    let Some(near) = real else { return };
    let cpus = sys::affinity::allowed_cpus().unwrap()[..2].to_vec();
    for good in 0..2 {
        let tree = tempfile::tempdir().unwrap();
        let nodes = if good == 0 { [near, near + 1] } else { [near + 1, near] };
        for (node, cpu) in nodes.iter().zip(&cpus) {
            let node = tree.path().join(format!("node{node}"));
            fs::create_dir(&node).unwrap();
            fs::write(node.join("cpulist"), format!("{cpu}\n")).unwrap();
        }
        let (cpus, topology) = (Some(cpus.clone()), tree.path().into());
        let plane = Plane::with(&Options { cpus, topology, ..Options::default() });
        let workers = plane.host.workers();
        assert!(workers.iter().zip(nodes).all(|(worker, node)| worker.node == Some(node)));
        // However many there are.
        for n in 0..5 {
            let name = format!("vm{n}");
            let port = plane.port_with(&name, |spec, _| spec.worker = None);
            let _vm = plane.connect(&name, &guest);
            assert_eq!(place(&plane, port, 0), (Some(good), false));
            let queues = plane.status(port).queues;
            let tx = queues.iter().find(|queue| queue.dir == Direction::Tx).unwrap();
            assert_eq!(tx.node, Some(near));
        }
        let far = plane.port_with("far", |spec, _| spec.worker = Some(1 - good));
        let _vm = plane.connect("far", &guest);
        assert_eq!(place(&plane, far, 0), (Some(1 - good), true));
        plane.end();
    }
}

/// Two queues that fill a worker are parted, and left alone if that is not wanted.
#[test]
fn an_overloaded_worker_is_relieved() {
    for balance in [false, true] {
        let cpus = sys::affinity::allowed_cpus().unwrap().into_iter().cycle().take(2).collect();
        let plane = Plane::with(&Options { cpus: Some(cpus), balance, ..Options::default() });
        // Many have no room for what is sent to all, which is work enough.
        let deaf = Guest { rx_buffers: 1, ..Guest::plain() };
        let _deaf: Vec<Vm> = (0..24).map(|n| plane.vm(&format!("deaf{n}"), &deaf).1).collect();
        let names = ["one", "two"];
        let ports = names.map(|name| plane.port_with(name, |spec, _| spec.worker = None));
        // Rings long enough that the worker has something to do while the guests wait for a CPU.
        let loud = Guest { ring: 4096, tx_buffers: 4000, ..deaf };
        let mut vms = names.map(|name| plane.connect(name, &loud));
        // Both at one worker, where they may stay or not.
        for port in ports {
            shift(&plane, port, None, Some(0));
            shift(&plane, port, None, None);
        }
        let places = || ports.map(|port| place(&plane, port, 0).0);
        let mut send = || {
            for (id, vm) in (0..).zip(&mut vms) {
                let bytes = eth(BROADCAST, mac(id), &[0; 46]);
                while vm.add(0, &Vnet::default(), &bytes) {}
                vm.flush(0);
                vm.poll();
            }
        };
        let workers = || format!("{:#?}", plane.host.workers());
        let start = Instant::now();
        // Without balance: for longer than it takes.
        let seconds = if balance { PATIENCE } else { Duration::from_secs(8) };
        while places() == [Some(0), Some(0)] && start.elapsed() < seconds {
            send();
        }
        assert_eq!(places()[0] != places()[1], balance, "{}", workers());
        assert!(balance || plane.host.workers()[0].load > 0.7, "it was busy: {}", workers());
        let idle = || plane.host.workers().iter().all(|worker| worker.load < 0.1);
        wait(workers, idle);
        plane.end();
    }
}
