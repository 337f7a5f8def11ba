//! Interrupts that are put off: none is lost, and there are as few as was asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::thread;
use std::time::Duration;

use common::frames::{BROADCAST, eth, mac};
use common::plane::Plane;
use common::vm::{Guest, Vm, sleep_on};
use common::{Rng, wait};
use dataplane::{Direction, Moderation, Options, PortId, PortStatus, Profile};

const LONGEST: Moderation = Moderation::Fixed { frames: u16::MAX, time: Duration::from_millis(10) };

/// What only frames can end: no test would see the end of the time.
fn endless(frames: u16) -> Moderation {
    Moderation::Fixed { frames, time: Duration::from_secs(24 * 3600) }
}

fn fixed(frames: u16, micros: u64) -> Moderation {
    Moderation::Fixed { frames, time: Duration::from_micros(micros) }
}

/// A VM whose interrupts are moderated, on a worker.
fn moderated(plane: &Plane, name: &str, guest: &Guest, setting: Moderation) -> (PortId, Vm) {
    let port = plane.port_with(name, |_, vhost| vhost.moderation = setting);
    (port, plane.connect(name, guest))
}

fn put_off(status: &PortStatus) -> u64 {
    let rx = status.queues.iter().filter(|queue| queue.dir == Direction::Rx);
    rx.map(|queue| queue.deferred).sum()
}

fn send(vm: &mut Vm, frames: u64) {
    for n in 0..frames {
        vm.send(&eth(BROADCAST, mac(0), &n.to_be_bytes()));
    }
}

/// Takes frames as a guest does that sleeps until it is interrupted.
fn take_by_interrupt(vm: &mut Vm, count: usize) {
    loop {
        vm.poll();
        if vm.inbox.len() >= count {
            vm.inbox.clear();
            return;
        }
        if !vm.rx[0].queue.enable_interrupts() {
            assert!(sleep_on(&vm.rx[0].fds.call), "an interrupt was lost");
        }
    }
}

/// However interrupts are moderated and workers poll, a guest that sleeps gets every frame.
#[test]
fn no_interrupt_is_lost() {
    for polling in Profile::ALL {
        for setting in [Moderation::Adaptive, fixed(32, 50), fixed(4, 1_000), LONGEST] {
            for guest in Guest::kinds() {
                let plane = Plane::with(&Options { polling, ..Options::default() });
                let (_, mut a) = plane.vm("a", &guest);
                let (_, mut b) = moderated(&plane, "b", &guest, setting);
                let mut rng = Rng::new(5);
                for _ in 0..60 {
                    let most = rng.pick(&[2, 20, 120]);
                    let frames = rng.below(most) + 1;
                    send(&mut a, frames);
                    take_by_interrupt(&mut b, frames as usize);
                    a.drain();
                    if rng.one_in(4) {
                        thread::sleep(Duration::from_micros(rng.below(300)));
                    }
                }
                plane.end();
            }
        }
    }
}

/// Several workers deliver to one queue: whoever ends a wait, the guest hears of every frame.
#[test]
fn no_interrupt_is_lost_between_workers() {
    for setting in [Moderation::Adaptive, fixed(32, 50), LONGEST] {
        for guest in Guest::kinds() {
            let plane = Plane::with_workers(2);
            let mut senders = [0, 1].map(|n| {
                let name = format!("a{n}");
                plane.port_with(&name, |spec, _| spec.worker = Some(n));
                plane.connect(&name, &guest)
            });
            let (_, mut b) = moderated(&plane, "b", &guest, setting);
            let mut rng = Rng::new(7);
            for _ in 0..60 {
                let counts = [rng.below(40), rng.below(40)];
                for (vm, frames) in senders.iter_mut().zip(counts) {
                    send(vm, frames);
                }
                take_by_interrupt(&mut b, (counts[0] + counts[1]) as usize);
                // What each broadcasts reaches the other.
                senders[0].take(counts[1] as usize);
                senders[1].take(counts[0] as usize);
                senders.iter_mut().for_each(Vm::drain);
            }
            plane.end();
        }
    }
}

/// A guest that always wants interrupts gets one for so many frames.
#[test]
fn a_fixed_setting_gathers_frames() {
    const FRAMES: u64 = 3_200;
    for guest in Guest::formats() {
        for (setting, each) in [(Moderation::Off, 1), (endless(32), 32), (endless(8192), 64)] {
            let plane = Plane::new();
            let (_, mut a) = plane.vm("a", &guest);
            let (to, mut b) = moderated(&plane, "b", &guest, setting);
            // The first one, which does not wait.
            send(&mut a, 1);
            b.take(1);
            plane.wait_asleep();
            let before = plane.interrupts(to, Direction::Rx);
            for _ in 0..FRAMES {
                send(&mut a, 1);
                b.take(1);
            }
            a.drain();
            let interrupts = || plane.interrupts(to, Direction::Rx) - before;
            wait(|| format!("{} interrupts", interrupts()), || interrupts() >= FRAMES / each);
            plane.barrier();
            assert_eq!(interrupts(), FRAMES / each, "{setting:?}");
            let waits = if setting == Moderation::Off { 0 } else { FRAMES / each };
            assert_eq!(put_off(&plane.status(to)), waits, "{setting:?}");
            plane.end();
        }
    }
}

/// A frame that comes later than the setting's time after the last interrupt is not put off.
#[test]
fn the_first_frame_after_silence_is_not_put_off() {
    for setting in [Moderation::Adaptive, fixed(64, 1_000)] {
        for guest in Guest::formats() {
            let plane = Plane::new();
            let (_, mut a) = plane.vm("a", &guest);
            let (to, mut b) = moderated(&plane, "b", &guest, setting);
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(2));
                send(&mut a, 1);
                b.take(1);
            }
            a.drain();
            plane.wait_asleep();
            assert_eq!(put_off(&plane.status(to)), 0);
            plane.end();
        }
    }
}

/// A guest that is owed an interrupt gets it when its queue is stopped.
#[test]
fn a_stopped_queue_owes_nothing() {
    for guest in Guest::formats() {
        let plane = Plane::new();
        let (_, mut a) = plane.vm("a", &guest);
        let (to, mut b) = moderated(&plane, "b", &guest, endless(32));
        send(&mut a, 1);
        b.take(1);
        plane.wait_asleep();
        b.rx[0].fds.call.drain();
        send(&mut a, 1);
        b.take(1);
        plane.wait_asleep();
        assert_eq!(put_off(&plane.status(to)), 1);
        assert!(!b.rx[0].fds.call.drain(), "it was not put off");
        b.frontend.stop_queue(0).unwrap();
        assert!(b.rx[0].fds.call.drain(), "the guest was not told of a frame");
        plane.end();
    }
}

/// Frames that leave no room for others do not wait for them.
#[test]
fn a_guest_without_buffers_is_interrupted() {
    for guest in Guest::formats().map(|guest| Guest { rx_buffers: 16, ..guest }) {
        let plane = Plane::new();
        let (_, mut a) = plane.vm("a", &guest);
        let (_, mut b) = moderated(&plane, "b", &guest, endless(64));
        send(&mut a, 1);
        b.take(1);
        for _ in 0..20 {
            plane.wait_asleep();
            b.rx[0].fds.call.drain();
            send(&mut a, 16);
            assert!(
                sleep_on(&b.rx[0].fds.call),
                "the guest does not know that its buffers are full"
            );
            b.take(16);
            a.drain();
        }
        plane.end();
    }
}
