//! Functions of a card that a guest enables and disables: a front end is connected all the time, and
//! queues run only now and then.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::time::Duration;

use common::frames::{BROADCAST, eth, mac};
use common::plane::Plane;
use common::process::{Holdings, alone};
use common::vm::{Guest, Vm, fds};
use common::wait;
use dataplane::PortState;
use testkit::frontend::{Frontend, feature, protocol, request};

/// What QEMU 11.1 says at its start of a VF that its guest has not enabled: features are asked for and
/// not set, there is no memory and no ring.
fn disabled(plane: &Plane, name: &str) -> Frontend {
    let mut frontend = Frontend::connect(plane.socket(name)).unwrap();
    for _ in 0..2 {
        let offered = frontend.get_u64(request::GET_FEATURES).unwrap();
        assert_ne!(offered & feature::PROTOCOL_FEATURES, 0);
    }
    let offered = frontend.get_u64(request::GET_PROTOCOL_FEATURES).unwrap();
    frontend.set_u64(request::SET_PROTOCOL_FEATURES, offered & protocol::NET).unwrap();
    frontend.protocol = offered & protocol::NET;
    assert!(frontend.get_u64(request::GET_QUEUE_NUM).unwrap() > 0);
    frontend.set(request::SET_OWNER, &[], &[]).unwrap();
    let fds = fds();
    for queue in 0..2 {
        frontend.set_ring_fd(request::SET_VRING_CALL, queue, Some(&fds.call)).unwrap();
        frontend.set_ring_fd(request::SET_VRING_ERR, queue, Some(&fds.err)).unwrap();
        frontend.enable_queue(queue, true).unwrap();
    }
    frontend
}

/// The guest enables the function and its driver comes up, as QEMU tells it.
fn enable(vm: &mut Vm) {
    let features = vm.guest.features() | feature::PROTOCOL_FEATURES;
    vm.frontend.set_u64(request::SET_FEATURES, features).unwrap();
    vm.frontend.features = features;
    vm.frontend.set_u64(request::SET_STATUS, 0xf).unwrap();
    let mem = vm.memory.guest().clone();
    vm.rx[0].renew(&mem);
    vm.tx[0].renew(&mem);
    vm.inbox.clear();
    vm.start();
}

/// The guest disables the function, whatever is under way.
fn disable(vm: &mut Vm) {
    for queue in 0..2 {
        vm.frontend.stop_queue(queue).unwrap();
    }
    vm.frontend.set_u64(request::SET_STATUS, 0).unwrap();
    for queue in 0..2 {
        vm.frontend.enable_queue(queue, false).unwrap();
    }
}

/// Carrier comes with the driver and goes with it, addresses go with carrier, and nothing is left
/// behind of a hundred times.
#[test]
fn a_function_has_carrier_while_it_is_enabled() {
    let _alone = alone();
    for packed in [false, true] {
        let plane = Plane::new();
        let guest = Guest { packed, ..Guest::plain() };
        let (peer, mut b) = plane.vm("peer", &Guest::plain());
        let port = plane.port("vf");
        let mut vm = Vm::stopped(disabled(&plane, "vf"), &guest);
        assert_eq!(plane.status(port).state, PortState::Connected);
        let known = |address| {
            let known = plane.host.fdb(plane.network);
            known.iter().any(|entry| entry.mac == mac(address) && entry.port == port)
        };
        let mut start = None;
        for round in 0..100u32 {
            // Nobody is asked to carry it: it is for nobody, and counted as that.
            b.send(&eth(BROADCAST, mac(1), b"is anybody there?"));
            b.drain();
            assert_eq!(plane.status(port).state, PortState::Connected);
            enable(&mut vm);
            plane.barrier();
            assert_eq!(plane.status(port).state, PortState::Running);
            let there = eth(BROADCAST, mac(2), &round.to_be_bytes());
            vm.send(&there);
            b.hear(&there);
            wait(|| format!("{:?}", plane.host.fdb(plane.network)), || known(2));
            let back = eth(mac(2), mac(1), &round.to_be_bytes());
            b.send(&back);
            vm.hear(&back);
            if round % 2 == 0 {
                // It goes with frames on the way, in both directions.
                (0..50).for_each(|_| vm.send(&eth(mac(1), mac(2), b"last words")));
                (0..50).for_each(|_| b.send(&eth(mac(2), mac(1), b"too late")));
            }
            disable(&mut vm);
            assert_eq!(plane.status(port).state, PortState::Connected);
            assert!(!known(2), "round {round}");
            b.poll();
            b.inbox.clear();
            let start = start.get_or_insert_with(Holdings::now);
            let now = Holdings::now();
            assert_eq!((now.descriptors, now.threads), (start.descriptors, start.threads));
            assert!(now.mappings <= start.mappings + 4, "{start:?}, then {now:?}");
        }
        assert_eq!(plane.status(port).last_fault, None);
        assert_eq!(plane.status(port).sessions, 1);
        assert_eq!(plane.status(peer).last_fault, None);
        plane.end();
    }
}

/// All VFs of a card are connected and disabled: no worker looks at them, no memory is mapped, and a
/// frame between two others is neither sent to them nor waits for them.
#[test]
fn disabled_functions_cost_nothing() {
    let _alone = alone();
    let plane = Plane::with_workers(2);
    let [mut a, mut b] = ["a", "b"].map(|name| plane.vm(name, &Guest::plain()).1);
    let talk = |a: &mut Vm, b: &mut Vm| {
        a.send(&eth(BROADCAST, mac(0), b"flooded"));
        assert_eq!(b.take(1).len(), 1);
        a.drain();
    };
    talk(&mut a, &mut b);
    let before = Holdings::now();
    let names: Vec<String> = (0..255).map(|n| format!("vf{n}")).collect();
    let ports: Vec<_> = names.iter().map(|name| plane.port(name)).collect();
    let frontends: Vec<_> = names.iter().map(|name| disabled(&plane, name)).collect();
    for port in &ports {
        assert_eq!(plane.status(*port).state, PortState::Connected);
    }
    let mappings = Holdings::now().mappings;
    // Room for what the ports themselves need on the heap.
    assert!(mappings < before.mappings + 32, "{} mappings, then {mappings}", before.mappings);
    talk(&mut a, &mut b);
    let delivered = ports.iter().map(|port| plane.status(*port).to_port.frames).sum::<u64>();
    let dropped = ports.iter().map(|port| plane.status(*port).drops.len()).sum::<usize>();
    assert_eq!((delivered, dropped), (0, 0));
    plane.assert_idle(Duration::from_secs(2));
    drop(frontends);
    for port in ports {
        plane.run(plane.host.remove_port(port)).unwrap();
    }
    before.wait_for_same();
    plane.end();
}
