//! Stops, resets, changes of memory, and front ends that vanish, with requests in flight.

use std::net::Shutdown;
use std::sync::Arc;
use std::thread;

use dataplane::{DiskId, DiskImage, PortState};
use rustix::fs::ftruncate;
use testkit::block::{BlockDriver, FILLER, Layout, Options, Request};
use testkit::frontend::request::{RESET_DEVICE, SET_STATUS};
use testkit::frontend::{Frontend, protocol};

use crate::common::plane::Plane;
use crate::common::wait;
use crate::images::{Call, Gate, SlowRead, Stage};
use crate::rig::{add, connect, disk, memory_disk, ok, wait_faulted, wait_state};

const SIZE: u64 = 1 << 20;

/// A disk with requests in flight: two reads with the kernel, one with a thread that waits, and
/// one behind them that has ended.
struct Flight {
    plane: Plane,
    id: DiskId,
    slow: SlowRead,
    gate: Arc<Gate>,
    stage: Arc<Stage>,
    guest: BlockDriver,
    tokens: Vec<u16>,
}

impl Flight {
    fn new(options: &Options) -> Flight {
        let plane = Plane::new();
        let stage = Stage::new(SIZE);
        let slow = SlowRead::new();
        stage.send(0, false, &slow.file);
        let gate = Gate::new();
        let passing = Arc::clone(&gate);
        stage.hook(move |call| {
            if matches!(call, Call::Write(8192, _)) {
                passing.pass();
            }
            Ok(())
        });
        let id = add(&plane, "disk", DiskImage::Image(stage.clone()), SIZE);
        let guest = connect(&plane, "disk", options);
        let mut flight = Flight { plane, id, slow, gate, stage, guest, tokens: Vec::new() };
        flight.take_off();
        flight
    }

    fn take_off(&mut self) {
        let quick = Request::read(64, 512);
        for request in
            [Request::read(0, 2048), Request::read(0, 2048), Request::write(16, &[5; 512]), quick]
        {
            let token = self.guest.submit(0, &request, &Layout::usual(&request)).unwrap();
            self.tokens.push(token);
        }
        self.guest.kick(0);
        self.gate.wait_for(1);
        let quick = self.tokens.pop().unwrap();
        let ended = self.guest.wait(0).unwrap();
        assert_eq!(ended.token, quick);
        wait(|| "three in flight".into(), || disk(&self.plane.host, self.id).in_flight == 3);
    }

    /// None has ended, and another disk of the worker is served.
    fn still_flying(&self) {
        let name = format!("other{}", Arc::strong_count(&self.gate));
        let (other, _files, mut guest) = memory_disk(&self.plane, &name, SIZE);
        for sector in 0..50 {
            ok(&guest.run(&Request::write(sector, &[1; 512])).unwrap());
        }
        drop(guest);
        self.plane.run(self.plane.host.remove_disk(other)).unwrap();
        for token in &self.tokens {
            assert_eq!(self.guest.status_now(0, *token), Some(FILLER));
        }
    }

    /// The front end vanishes, and the worker has noticed: it takes no kick any more, nor says whether it wants some.
    fn abandoned(&self) {
        self.guest.frontend.socket().shutdown(Shutdown::Both).unwrap();
        let kick = &self.guest.queues[0].fds.kick;
        wait(
            || "a kick that nobody takes".into(),
            || {
                kick.signal().unwrap();
                self.plane.barrier();
                self.plane.wait_asleep();
                kick.drain()
            },
        );
    }

    fn land(&mut self) {
        self.slow.feed(&[7; 2048]);
        self.slow.feed(&[7; 2048]);
        self.gate.open();
    }

    /// All have ended, and well, with what they were to have.
    fn landed(&mut self) {
        let ended = self.guest.drain().unwrap();
        assert_eq!(ended.len(), 3);
        for (_, done) in ended {
            ok(&done);
            assert!(done.data.is_empty() || done.data == [7; 2048]);
        }
        assert!(self.stage.log().contains(&Call::Write(8192, 512)));
    }

    fn go_on(&mut self) {
        ok(&self.guest.run(&Request::write(100, &[6; 4096])).unwrap());
        assert_eq!(self.guest.run(&Request::read(100, 4096)).unwrap().data, [6; 4096]);
    }

    fn end(self) {
        drop(self.guest);
        self.plane.end();
    }
}

fn kinds() -> [Options; 3] {
    let plain = Options { inflight: false, ..Options::new(false) };
    [Options::new(false), Options::new(true), plain]
}

/// Something is asked for on another thread, and answered only when the requests have ended.
fn answered_at_the_end(
    mut flight: Flight,
    ask: impl FnOnce(&mut Frontend) + Send + 'static,
) -> Flight {
    let socket = flight.guest.frontend.socket().try_clone().unwrap();
    let mut frontend = Frontend::over(socket).unwrap();
    frontend.protocol = flight.guest.frontend.protocol;
    let asking = thread::spawn(move || ask(&mut frontend));
    flight.still_flying();
    assert!(!asking.is_finished(), "answered with requests in flight");
    flight.land();
    asking.join().unwrap();
    flight
}

#[test]
fn a_stop_waits_for_what_is_in_flight() {
    for options in kinds() {
        let flight = Flight::new(&options);
        let mut flight = answered_at_the_end(flight, |frontend| {
            frontend.stop_queue(0).unwrap();
        });
        // By then the ring says it: nobody touches it any more.
        for _ in 0..3 {
            ok(&flight.guest.poll(0).unwrap().expect("it has ended"));
        }
        // Where it stopped is known to the guest, as nothing is in flight.
        let base = flight.guest.queues[0].ring.base();
        let queue = &flight.guest.queues[0];
        let (memory, ring, fds) = (&flight.guest.memory, &queue.ring, &queue.fds);
        flight.guest.frontend.start_queue_at(0, memory, ring, fds, base).unwrap();
        flight.go_on();
        flight.end();
    }
}

#[test]
fn a_reset_waits_for_what_is_in_flight() {
    for by_status in [false, true] {
        for options in kinds() {
            let flight = Flight::new(&options);
            assert!(flight.guest.frontend.protocol & protocol::RESET_DEVICE != 0);
            let mut flight = answered_at_the_end(flight, move |frontend| {
                if by_status {
                    frontend.set_u64(SET_STATUS, 0).unwrap();
                } else {
                    frontend.set(RESET_DEVICE, &[], &[]).unwrap();
                }
            });
            for _ in 0..3 {
                ok(&flight.guest.poll(0).unwrap().expect("it has ended"));
            }
            assert!(disk(&flight.plane.host, flight.id).queues.is_empty());
            // A guest that boots anew, over the same connection.
            let socket = flight.guest.frontend.socket().try_clone().unwrap();
            flight.guest = BlockDriver::over(Frontend::over(socket).unwrap(), &options).unwrap();
            flight.go_on();
            flight.end();
        }
    }
}

#[test]
fn a_change_of_memory_waits_for_what_is_in_flight() {
    for options in kinds() {
        let mut flight = Flight::new(&options);
        // More that wait behind it, for the queue that is started again.
        let memory = flight.guest.memory.regions();
        let regions = memory.iter().map(|region| testkit::frontend::Region {
            spec: region.spec,
            fd: Arc::clone(&region.fd),
        });
        let memory = testkit::frontend::SharedMemory::of(regions.collect()).unwrap();
        flight = answered_at_the_end(flight, move |frontend| {
            frontend.set_mem_table(&memory).unwrap();
        });
        flight.landed();
        flight.go_on();
        flight.end();
    }
}

/// A guest whose front end vanishes and comes back finds what was in flight ended, once.
#[test]
fn a_front_end_may_vanish_in_mid_io() {
    for options in kinds() {
        let mut flight = Flight::new(&options);
        flight.guest.frontend.socket().shutdown(Shutdown::Both).unwrap();
        flight.still_flying();
        assert_eq!(disk(&flight.plane.host, flight.id).state, PortState::Running);
        flight.land();
        wait_state(&flight.plane.host, flight.id, &PortState::Waiting);
        flight.guest.reconnect(flight.plane.socket("disk")).unwrap();
        flight.landed();
        flight.go_on();
        assert_eq!(disk(&flight.plane.host, flight.id).sessions, 2);
        let writes = flight.stage.log();
        assert_eq!(writes.iter().filter(|call| **call == Call::Write(8192, 512)).count(), 1);
        flight.end();
    }
}

/// A disk that is removed in mid-I/O is gone when its requests have ended, and its image is free.
#[test]
fn a_disk_may_be_removed_in_mid_io() {
    for options in kinds() {
        let mut flight = Flight::new(&options);
        let (host, id) = (flight.plane.host.clone(), flight.id);
        let (tell, told) = std::sync::mpsc::channel();
        flight.plane.spawn(async move {
            host.remove_disk(id).await.unwrap();
            tell.send(()).unwrap();
        });
        flight.still_flying();
        assert!(told.try_recv().is_err(), "removed with requests in flight");
        flight.land();
        told.recv().unwrap();
        for _ in 0..3 {
            ok(&flight.guest.poll(0).unwrap().expect("it has ended"));
        }
        flight.guest.frontend.wait_closed().unwrap();
        wait(|| "the image".into(), || Arc::strong_count(&flight.stage) == 1);
        assert!(!flight.plane.socket("disk").exists());
        flight.end();
    }
}

/// Memory that vanishes under requests in flight ends the session by name; the next one works.
#[test]
fn memory_may_vanish_in_mid_io() {
    for region in [0, 1] {
        for options in kinds() {
            let mut flight = Flight::new(&options);
            let (_, _files, mut other) = memory_disk(&flight.plane, "neighbour", SIZE);
            ftruncate(&flight.guest.memory.regions()[region].fd, 0).unwrap();
            flight.land();
            for sector in 0..100 {
                ok(&other.run(&Request::write(sector, &[3; 512])).unwrap());
            }
            let fault = wait_faulted(&flight.plane.host, flight.id);
            assert!(fault.contains("memory-vanished"), "{fault}");
            flight.guest = connect(&flight.plane, "disk", &options);
            flight.go_on();
            assert_eq!(other.run(&Request::read(99, 512)).unwrap().data, [3; 512]);
            drop(other);
            flight.end();
        }
    }
}

/// A disabled queue waits, and says so to nobody; enabled again it goes on without a kick.
#[test]
fn a_disabled_queue_waits() {
    for packed in [false, true] {
        let plane = Plane::new();
        let (id, _files, guest) = memory_disk(&plane, "disk", SIZE);
        drop(guest);
        let mut guest = connect(&plane, "disk", &Options::new(packed));
        guest.frontend.enable_queue(0, false).unwrap();
        plane.barrier();
        let write = Request::write(0, &[1; 512]);
        guest.submit(0, &write, &Layout::usual(&write)).unwrap();
        guest.kick(0);
        plane.wait_asleep();
        assert!(guest.poll(0).unwrap().is_none() && !disk(&plane.host, id).queues[0].enabled);
        guest.frontend.enable_queue(0, true).unwrap();
        ok(&guest.wait(0).unwrap());
        drop(guest);
        plane.end();
    }
}

/// Requests that a dead daemon left are carried out before new ones, also if the queue is stopped
/// before it has begun with them.
#[test]
fn what_a_predecessor_left_survives_a_stop_at_once() {
    for packed in [false, true] {
        let options = Options::new(packed);
        let mut flight = Flight::new(&options);
        flight.abandoned();
        // The successor, while the predecessor still has them: as if that had been killed.
        let plane = Plane::new();
        let stage = Stage::new(SIZE);
        add(&plane, "next", DiskImage::Image(stage.clone()), SIZE);
        let name = plane.socket("next");
        flight.guest.reconnect(&name).unwrap();
        flight.guest.stop_queue(0).unwrap();
        flight.guest.start_queue(0).unwrap();
        let ended = flight.guest.drain().unwrap();
        assert_eq!(ended.len(), 3);
        ended.iter().for_each(|(_, done)| ok(done));
        let served = stage.log();
        assert_eq!(served.iter().filter(|call| matches!(call, Call::Read(0, 2048))).count(), 2);
        assert_eq!(served.iter().filter(|call| **call == Call::Write(8192, 512)).count(), 1);
        flight.go_on();
        plane.end();
        flight.slow.feed(&[7; 4096]);
        flight.gate.open();
    }
}
