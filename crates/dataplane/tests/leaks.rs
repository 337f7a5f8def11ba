//! Sessions that come and go leave nothing behind: no descriptor, no thread, no mapping.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use common::duo::Duo;
use common::frames::{BROADCAST, Vnet, eth, mac};
use common::pair::Pair;
use common::plane::Plane;
use common::process::{Holdings, alone};
use common::vm::Guest;
use dataplane::{DropReason, PortState, VlanMode};

/// A VM that comes and goes a hundred times, politely and not, next to two that go on.
#[test]
fn a_hundred_reconnects_leave_nothing_behind() {
    let _alone = alone();
    let [split, packed] = Guest::formats();
    let Pair { plane, a, b, .. } = Pair::on(Plane::new(), [&split, &packed]);
    let (_, mut d) = plane.vm("d", &Guest::plain());
    let port = plane.port("c");
    let duo = Duo::start(a, b, [mac(10), mac(11)]);
    duo.wait_for_more(50);
    let start = Holdings::now();
    for round in 0..100u64 {
        let pairs = 1 + (round % 3) as u16;
        let guest = Guest { packed: round % 2 == 0, pairs, ..Guest::random(round) };
        let mut c = plane.connect("c", &guest);
        assert_eq!(plane.status(port).sessions, round + 1);
        let there = eth(mac(13), mac(12), &round.to_be_bytes());
        c.send(&there);
        d.hear(&there);
        let back = eth(mac(12), mac(13), &round.to_be_bytes());
        d.send(&back);
        c.hear(&back);
        match round % 4 {
            0 => {}
            1 => {
                for queue in 0..2 * pairs {
                    c.frontend.stop_queue(queue).unwrap();
                }
            }
            // With frames on the way.
            2 => (0..20).for_each(|_| c.send(&there)),
            // In the middle of a message.
            _ => c.frontend.send(&[3, 0, 0], &[]).unwrap(),
        }
        c.leave();
        plane.wait_state(port, &PortState::Waiting);
        d.poll();
        d.inbox.clear();
    }
    start.wait_for_same();
    duo.wait_for_more(50);
    duo.finish();
    plane.end();
}

/// A port whose front end hangs up with frames in all queues: the frames are accounted for, and
/// the descriptors and mappings are gone.
#[test]
fn what_a_lost_session_held_is_given_back() {
    let _alone = alone();
    let plane = Plane::new();
    let (to, mut b) = plane.vm("b", &Guest { rx_buffers: 64, ..Guest::plain() });
    let from = plane.port("a");
    let start = Holdings::now();
    for round in 0..30u64 {
        let guest = Guest { packed: round % 2 == 1, pairs: 4, ..Guest::plain() };
        let mut a = plane.connect("a", &guest);
        for pair in 0..4 {
            for n in 0..200u32 {
                assert!(a.add(pair, &Vnet::default(), &eth(mac(1), mac(0), &n.to_be_bytes())));
            }
            a.flush(pair);
        }
        drop(a);
        plane.wait_state(from, &PortState::Waiting);
        b.poll();
        b.inbox.clear();
        let taken = plane.status(from).from_port.frames;
        plane.settle(&[from, to], taken);
    }
    let named = [DropReason::RxRingEmpty, DropReason::NoDestination];
    let drops = [from, to].map(|port| plane.status(port).drops).concat();
    assert!(drops.iter().all(|(reason, _)| named.contains(reason)), "{drops:?}");
    let now = Holdings::now();
    assert_eq!(now.descriptors, start.descriptors);
    assert!(now.mappings <= start.mappings + 4, "{start:?}, then {now:?}");
    plane.end();
}

/// Ports that are made and removed while workers send to them: nobody waits, nothing is left, and
/// the others miss nothing.
#[test]
fn ports_come_and_go_under_traffic() {
    let _alone = alone();
    let plane = Plane::with_workers(2);
    let on = |name: &str, worker, vlan| {
        plane.port_with(name, |spec, _| {
            spec.worker = Some(worker);
            spec.vlan = VlanMode::Access(vlan);
        })
    };
    let vm = |name: &str, worker, vlan| {
        on(name, worker, vlan);
        plane.connect(name, &Guest::plain())
    };
    let duo = Duo::start(vm("a", 0, 10), vm("b", 1, 10), [mac(0), mac(1)]);
    let mut talkers = [vm("c", 0, 20), vm("d", 1, 20)];
    duo.wait_for_more(50);
    let start = Holdings::now();
    for round in 0..60u64 {
        let port = on("guest", (round % 2) as u16, 20);
        let guest = Guest { packed: round % 4 < 2, ..Guest::plain() };
        let mut vm = plane.connect("guest", &guest);
        for n in 0..300u32 {
            for (from, talker) in talkers.iter_mut().enumerate() {
                talker.send(&eth(BROADCAST, mac(20 + from as u32), &n.to_be_bytes()));
                talker.poll();
                talker.inbox.clear();
            }
            if round % 3 == 0 && n == 150 {
                // Its session ends first.
                vm.frontend.send(&[0xff; 12], &[]).unwrap();
            }
        }
        plane.run(plane.host.remove_port(port)).unwrap();
        vm.frontend.wait_closed().unwrap();
        assert!(plane.host.port_status(port).is_none());
    }
    start.wait_for_same();
    duo.wait_for_more(50);
    duo.finish();
    drop(talkers);
    plane.end();
}
