//! A worker that has nothing to do does nothing, and is there when it is needed: sleeping, waking,
//! and notifications that are spared in both directions.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::thread;
use std::time::Duration;

use common::frames::{BROADCAST, eth, mac};
use common::pair::Pair;
use common::plane::Plane;
use common::vm::{Guest, Vm, sleep_on};
use common::{Rng, wait};
use dataplane::Direction;
use testkit::frontend::request;

/// Takes frames as a guest does that sleeps until it is interrupted. Returns how often it slept.
fn take_by_interrupt(vm: &mut Vm, count: usize) -> usize {
    let mut slept = 0;
    loop {
        vm.poll();
        if vm.inbox.len() >= count {
            return slept;
        }
        if !vm.rx[0].queue.enable_interrupts() {
            assert!(sleep_on(&vm.rx[0].fds.call), "an interrupt was lost");
            slept += 1;
        }
    }
}

/// After the traffic the workers sleep, and soon do not look up any more, for quick wake-ups either.
#[test]
fn an_idle_worker_does_nothing_at_all() {
    let [split, packed] = Guest::formats();
    let pair = Pair::on(Plane::with_workers(2), [&split, &packed]);
    let Pair { plane, mut a, mut b, .. } = pair;
    for n in 0..200u32 {
        a.send(&eth(BROADCAST, mac(0), &n.to_be_bytes()));
        assert_eq!(b.take(1).len(), 1);
    }
    a.drain();
    plane.assert_idle(Duration::from_millis(500));
    plane.end();
}

/// A worker that sleeps hears of its end, whatever it did before.
#[test]
fn a_sleeping_data_plane_shuts_down() {
    for round in 0..20 {
        let plane = Plane::with_workers(1 + round % 2);
        let (port, vm) = plane.vm("vm", &Guest::plain());
        if round % 4 < 2 {
            vm.leave();
            plane.wait_state(port, &dataplane::PortState::Waiting);
        }
        plane.wait_asleep();
        plane.end();
    }
}

/// A single frame after silence, a thousand times for each kind of ring: from a worker that
/// sleeps, and from one that is about to.
#[test]
fn no_wake_up_is_lost() {
    for guest in Guest::kinds() {
        let Pair { plane, mut a, mut b, .. } = Pair::new(&guest);
        let mut rng = Rng::new(3);
        let mut slept = 0;
        for n in 0..1000u32 {
            if n % 2 == 0 {
                plane.wait_asleep();
            } else {
                // Around the time at which it arms its kicks and sleeps.
                let until = std::time::Instant::now() + Duration::from_micros(rng.below(120));
                while std::time::Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            let frame = eth(BROADCAST, mac(0), &n.to_be_bytes());
            a.send(&frame);
            slept += take_by_interrupt(&mut b, 1);
            assert!(b.inbox.pop_front().unwrap().frame == frame);
        }
        assert!(slept > 0, "nobody was ever interrupted");
        a.drain();
        plane.end();
    }
}

/// Two guests that play one frame back and forth, both asleep until they are interrupted, on two
/// workers.
#[test]
fn a_ball_between_two_sleepers_is_never_dropped() {
    for guest in Guest::kinds() {
        let plane = Plane::with_workers(2);
        let ports =
            [0, 1].map(|n| plane.port_with(&format!("vm{n}"), |spec, _| spec.worker = Some(n)));
        let [mut a, mut b] = [0, 1].map(|n| plane.connect(&format!("vm{n}"), &guest));
        let player = thread::spawn(move || {
            for _ in 0..500 {
                take_by_interrupt(&mut b, 1);
                let frame = b.inbox.pop_front().unwrap().frame;
                b.send(&eth(mac(0), mac(1), &frame[14..]));
            }
            b
        });
        for n in 0..500u32 {
            a.send(&eth(mac(1), mac(0), &n.to_be_bytes()));
            take_by_interrupt(&mut a, 1);
            assert!(a.inbox.pop_front().unwrap().frame == eth(mac(0), mac(1), &n.to_be_bytes()));
        }
        let b = player.join().unwrap();
        assert_eq!(plane.settle(&ports, a.sent + b.sent).drops, []);
        plane.end();
    }
}

/// While a worker polls it asks for no kicks, and takes the frames without them.
#[test]
fn a_polling_worker_needs_no_kicks() {
    for guest in Guest::kinds() {
        let Pair { plane, mut a, mut b, .. } = Pair::on(Plane::polling(), [&guest, &guest]);
        for n in 0..500u32 {
            a.send(&eth(BROADCAST, mac(0), &n.to_be_bytes()));
            assert_eq!(b.take(1).len(), 1);
        }
        let kicks = a.tx[0].kicks;
        assert!(
            kicks <= 2,
            "{kicks} kicks for 500 frames, packed: {}, event index: {}",
            guest.packed,
            guest.event_idx
        );
        plane.end();
    }
}

/// RX buffers are never waited for: a guest that adds some need not tell.
#[test]
fn rx_buffers_need_no_kicks() {
    for guest in Guest::kinds() {
        let Pair { plane, mut a, mut b, .. } = Pair::new(&guest);
        let before = b.rx[0].kicks;
        for n in 0..1000u32 {
            a.send(&eth(BROADCAST, mac(0), &n.to_be_bytes()));
            assert_eq!(b.take(1).len(), 1);
        }
        let kicks = b.rx[0].kicks - before;
        assert!(kicks <= 2, "{kicks} kicks for 1000 buffers: {guest:?}");
        assert!(b.rx[0].spared > 100, "buffers are given back");
        plane.end();
    }
}

/// A guest that wants no interrupts gets none, for sent and for received frames.
#[test]
fn unwanted_interrupts_are_not_sent() {
    for guest in Guest::kinds() {
        let Pair { plane, mut a, mut b, from, to } = Pair::new(&guest);
        let ball = |a: &mut Vm, b: &mut Vm, n: u32| {
            a.send(&eth(BROADCAST, mac(0), &n.to_be_bytes()));
            b.take(1);
            a.drain();
        };
        ball(&mut a, &mut b, 0);
        a.tx[0].queue.disable_interrupts();
        b.rx[0].queue.disable_interrupts();
        // What was on its way has arrived when the worker sleeps.
        plane.wait_asleep();
        a.tx[0].fds.call.drain();
        b.rx[0].fds.call.drain();
        let counts =
            || (plane.interrupts(from, Direction::Tx), plane.interrupts(to, Direction::Rx));
        let before = counts();
        for n in 0..300 {
            ball(&mut a, &mut b, n);
            if guest.event_idx && !guest.packed {
                // The index it never reaches moves along.
                a.tx[0].queue.disable_interrupts();
                b.rx[0].queue.disable_interrupts();
            }
        }
        plane.wait_asleep();
        assert_eq!(counts(), before, "packed: {}, event: {}", guest.packed, guest.event_idx);
        assert!(!a.tx[0].fds.call.drain() && !b.rx[0].fds.call.drain());
        plane.end();
    }
}

/// With the event index a guest is interrupted when so many buffers are used as it said, and once.
#[test]
fn an_interrupt_comes_when_it_was_asked_for() {
    for guest in Guest::formats().map(|guest| Guest { event_idx: true, ..guest }) {
        let Pair { plane, mut a, mut b, to, .. } = Pair::new(&guest);
        a.send(&eth(BROADCAST, mac(0), b"first"));
        b.take(1);
        let mut rng = Rng::new(9);
        for _ in 0..100 {
            plane.wait_asleep();
            b.rx[0].fds.call.drain();
            let skip = rng.below(20);
            assert!(!b.rx[0].queue.enable_interrupts_after(skip as u16));
            let before = plane.interrupts(to, Direction::Rx);
            for n in 0..=skip {
                assert_eq!(plane.interrupts(to, Direction::Rx), before, "{n} of {skip}");
                a.send(&eth(BROADCAST, mac(0), &n.to_be_bytes()));
                let frames = n as usize + 1;
                b.refilling = false;
                wait(
                    || "a frame".into(),
                    || {
                        b.poll();
                        b.inbox.len() == frames
                    },
                );
                // The decision about an interrupt is made by then.
                plane.wait_asleep();
            }
            assert_eq!(plane.interrupts(to, Direction::Rx), before + 1, "after {skip}");
            assert!(b.rx[0].fds.call.drain());
            b.inbox.clear();
            b.refilling = true;
            b.refill();
        }
        plane.end();
    }
}

/// A guest whose interrupt is set up late hears of what happened before.
#[test]
fn a_late_interrupt_descriptor_is_told_what_it_missed() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, .. } = Pair::new(&guest);
        for (index, vm) in [(0u16, &mut b), (1, &mut a)] {
            vm.frontend.set_ring_fd(request::SET_VRING_CALL, index, None).unwrap();
        }
        plane.barrier();
        let (sent, got) = (a.tx[0].completed, b.rx[0].completed);
        a.send(&eth(BROADCAST, mac(0), b"missed"));
        wait(|| "the frame".into(), || a.tx[0].queue.has_used() && b.rx[0].queue.has_used());
        plane.wait_asleep();
        assert_eq!((a.tx[0].completed, b.rx[0].completed), (sent, got));
        for (index, vm) in [(0u16, &mut b), (1, &mut a)] {
            let side = if index == 0 { &vm.rx[0] } else { &vm.tx[0] };
            side.fds.call.drain();
            let call = &side.fds.call;
            vm.frontend.set_ring_fd(request::SET_VRING_CALL, index, Some(call)).unwrap();
        }
        plane.barrier();
        let told = |vm: &Vm, rx: bool| {
            let side = if rx { &vm.rx[0] } else { &vm.tx[0] };
            side.fds.call.drain()
        };
        plane.wait_asleep();
        assert!(told(&b, true), "the receiver sleeps for ever, packed: {}", guest.packed);
        assert!(told(&a, false), "the sender sleeps for ever, packed: {}", guest.packed);
        plane.end();
    }
}

/// A guest without a kick descriptor is looked at all the same.
#[test]
fn a_guest_that_cannot_kick_is_polled() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, .. } = Pair::new(&guest);
        a.frontend.set_ring_fd(request::SET_VRING_KICK, 1, None).unwrap();
        for n in 0..200u32 {
            // Its kicks go nowhere.
            a.send(&eth(BROADCAST, mac(0), &n.to_be_bytes()));
            assert!(b.take(1)[0].frame == eth(BROADCAST, mac(0), &n.to_be_bytes()));
            if n % 50 == 0 {
                thread::sleep(Duration::from_millis(5));
            }
        }
        plane.end();
    }
}
