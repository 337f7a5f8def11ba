//! Disks that nobody uses cost nothing, and those that are used wake up whom they should.

use std::thread;
use std::time::Duration;

use dataplane::WorkerState;
use pace::Vigil;
use testkit::block::{BlockDriver, Layout, Options, Request};
use testkit::frontend::request::SET_VRING_CALL;

use crate::common::plane::Plane;
use crate::common::{Rng, wait};
use crate::rig::{Files, KINDS, Kind, add, connect, disk, memory_disk, ok};

const SIZE: u64 = 1 << 20;

fn kinds() -> impl Iterator<Item = Options> {
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(packed, event_idx)| Options { event_idx, ..Options::new(packed) })
}

#[test]
fn a_hundred_idle_disks_cost_nothing() {
    let plane = Plane::with_workers(1);
    let mut guests: Vec<(Files, BlockDriver)> = (0..100)
        .map(|n| {
            let kind = if n % 2 == 0 { Kind::Memory } else { Kind::Cached };
            let files = Files::new(kind, SIZE);
            let name = format!("disk{n}");
            add(&plane, &name, files.image(), SIZE);
            (files, connect(&plane, &name, &Options::new(n % 3 == 0)))
        })
        .collect();
    for (_, guest) in &mut guests {
        for sector in 0..10 {
            ok(&guest.run(&Request::write(sector, &[1; 512])).unwrap());
            ok(&guest.run(&Request::read(sector, 512)).unwrap());
        }
    }
    plane.wait_asleep();
    let seen = || {
        let workers = plane.host.workers();
        workers.iter().map(|worker| (worker.polls, worker.sleeps)).collect::<Vec<_>>()
    };
    wait(
        || format!("the end of sleeping: {:?}", seen()),
        || {
            let before = seen();
            thread::sleep(Duration::from_nanos(2 * Vigil::REST_MAX));
            before == seen()
        },
    );
    let before = seen();
    // Not a limit for anything: what the idle have done by then is nothing.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(seen(), before);
    assert!(plane.host.workers().iter().all(|worker| worker.state == WorkerState::Asleep));
    // And every one of them is there when it is needed.
    for (_, guest) in &mut guests {
        assert_eq!(guest.run(&Request::read(3, 512)).unwrap().data, [1; 512]);
    }
    drop(guests);
    plane.end();
}

/// However many requests end at once, the guest that sleeps is interrupted.
#[test]
fn a_burst_of_any_size_interrupts() {
    for options in kinds() {
        let plane = Plane::new();
        let files = Files::new(Kind::Memory, SIZE);
        add(&plane, "disk", files.image(), SIZE);
        let mut guest = connect(&plane, "disk", &options);
        let read = Request::read(0, 512);
        // Of those that fill no ring: header, data and status each.
        for count in 1..=40 {
            plane.wait_asleep();
            guest.queues[0].fds.call.drain();
            assert!(!guest.queues[0].ring.enable_interrupts());
            for _ in 0..count {
                guest.submit(0, &read, &Layout::usual(&read)).unwrap();
            }
            assert!(guest.kick(0), "the worker sleeps");
            assert!(guest.wait_interrupt(0).unwrap(), "no interrupt for {count}: {options:?}");
            assert_eq!(guest.drain().unwrap().len(), count);
        }
        // The same of requests that are refused.
        let refused = Request::read(SIZE, 512);
        for count in 1..=40 {
            plane.wait_asleep();
            guest.queues[0].fds.call.drain();
            assert!(!guest.queues[0].ring.enable_interrupts());
            for _ in 0..count {
                guest.submit(0, &refused, &Layout::usual(&refused)).unwrap();
            }
            assert!(guest.kick(0), "the worker sleeps");
            assert!(guest.wait_interrupt(0).unwrap(), "no interrupt for {count}: {options:?}");
            assert_eq!(guest.drain().unwrap().len(), count);
        }
        drop(guest);
        plane.end();
    }
}

/// Single requests to a worker that sleeps, and to one that is about to, of every kind of file.
#[test]
fn no_wake_up_is_lost() {
    for kind in KINDS {
        for options in kinds() {
            let plane = Plane::new();
            let files = Files::new(kind, SIZE);
            let id = add(&plane, "disk", files.image(), SIZE);
            let mut guest = connect(&plane, "disk", &options);
            let mut rng = Rng::new(5);
            for n in 0..200u32 {
                if n % 2 == 0 {
                    plane.wait_asleep();
                } else {
                    // Around the time at which it arms its kicks and sleeps.
                    let until = std::time::Instant::now() + Duration::from_micros(rng.below(120));
                    while std::time::Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                let sector = u64::from(n % 8) * 8;
                ok(&guest.run(&Request::write(sector, &[n as u8; 4096])).unwrap());
                assert_eq!(guest.run(&Request::read(sector, 4096)).unwrap().data, [n as u8; 4096]);
            }
            assert!(disk(&plane.host, id).kicks >= 100, "it slept when it was kicked");
            drop(guest);
            plane.end();
        }
    }
}

/// A guest that polls is not interrupted, and one that cannot kick is looked at all the same.
#[test]
fn guests_may_do_without_kicks_and_interrupts() {
    for (kick, call) in [(false, true), (true, false), (false, false)] {
        for options in kinds().map(|options| Options { kick, call, ..options }) {
            let plane = Plane::new();
            let files = Files::new(Kind::Cached, SIZE);
            let id = add(&plane, "disk", files.image(), SIZE);
            let mut guest = connect(&plane, "disk", &options);
            for n in 0..100 {
                ok(&guest.run(&Request::write(n, &[n as u8; 512])).unwrap());
                assert_eq!(guest.run(&Request::read(n, 512)).unwrap().data, [n as u8; 512]);
                if n % 50 == 0 {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            let seen = disk(&plane.host, id);
            assert!(kick || seen.kicks == 0);
            drop(guest);
            plane.end();
        }
    }
}

/// Interrupts that nobody wants are not sent.
#[test]
fn unwanted_interrupts_are_not_sent() {
    for options in kinds() {
        let plane = Plane::new();
        let files = Files::new(Kind::Memory, SIZE);
        let id = add(&plane, "disk", files.image(), SIZE);
        let mut guest = connect(&plane, "disk", &Options { call: true, ..options });
        ok(&guest.run(&Request::read(0, 512)).unwrap());
        plane.wait_asleep();
        let before = disk(&plane.host, id).interrupts;
        let read = Request::read(0, 512);
        for _ in 0..200 {
            guest.queues[0].ring.disable_interrupts();
            guest.submit(0, &read, &Layout::usual(&read)).unwrap();
            guest.kick(0);
            let mut done = None;
            wait(
                || "the end".into(),
                || {
                    done = guest.poll(0).unwrap();
                    done.is_some()
                },
            );
        }
        plane.wait_asleep();
        assert_eq!(disk(&plane.host, id).interrupts, before);
        drop(guest);
        plane.end();
    }
}

/// A guest whose interrupt is set up late hears of what happened before.
#[test]
fn a_late_interrupt_descriptor_is_told_what_it_missed() {
    for packed in [false, true] {
        let plane = Plane::new();
        let (_, _files, guest) = memory_disk(&plane, "disk", SIZE);
        drop(guest);
        let mut guest = connect(&plane, "disk", &Options::new(packed));
        guest.frontend.set_ring_fd(SET_VRING_CALL, 0, None).unwrap();
        plane.barrier();
        guest.queues[0].fds.call.drain();
        let read = Request::read(0, 512);
        guest.submit(0, &read, &Layout::usual(&read)).unwrap();
        guest.kick(0);
        wait(|| "the end".into(), || guest.queues[0].ring.has_used());
        plane.wait_asleep();
        assert!(!guest.queues[0].fds.call.drain());
        guest.frontend.set_ring_fd(SET_VRING_CALL, 0, Some(&guest.queues[0].fds.call)).unwrap();
        assert!(guest.wait_interrupt(0).unwrap());
        ok(&guest.wait(0).unwrap());
        drop(guest);
        plane.end();
    }
}
