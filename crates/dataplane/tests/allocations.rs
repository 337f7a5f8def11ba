//! The data path allocates nothing. Alone in its process: the counter is that of all threads.
//!
//! The driver's side here allocates nothing either, and the control thread stands still, so
//! whatever is counted was the worker.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::alloc::System;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::frames::{BROADCAST, Packet, Vnet, eth, mac};
use common::plane::Plane;
use common::vm::{ALL_OFFLOADS, Guest, Vm};
use common::{PATIENCE, wait};
use dataplane::{DropReason, PortId};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use testkit::driver::flags::{AVAIL, USED, WRITE};
use testkit::driver::{self, RawDesc};
use testkit::frontend::Frontend;

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Frames of each kind of traffic.
const FRAMES: u64 = 120_000;
/// Entries of each ring.
const RING: u16 = 256;
/// Frames on the way at once.
const BURST: u16 = 64;

/// A queue whose descriptors all stay as they were laid out: what is used is made available again.
struct Wheel {
    vm: usize,
    rx: bool,
    /// Where the buffer of the first descriptor is, and of each next one.
    gpa: u64,
    step: u64,
    len: u32,
    /// Made available, and seen used, since the start.
    given: u64,
    seen: u64,
}

impl Wheel {
    /// Makes `count` more buffers available, not more than the ring has room for.
    fn give(&mut self, vms: &[Vm], count: u16) {
        let side = if self.rx { &vms[self.vm].rx[0] } else { &vms[self.vm].tx[0] };
        let (raw, packed) = (side.queue.raw(), side.queue.spec().packed);
        let write = if self.rx { WRITE } else { 0 };
        for _ in 0..count {
            let slot = (self.given % u64::from(RING)) as u16;
            let odd = self.given / u64::from(RING) % 2 == 1;
            let mark = match (packed, odd) {
                (false, _) => 0,
                (true, false) => AVAIL,
                (true, true) => USED,
            };
            let addr = self.gpa + self.step * u64::from(slot);
            // A packed ring must not show a descriptor before it is whole: flags go last.
            raw.set_desc(slot, &RawDesc { addr, len: self.len, flags: write | mark, tag: slot });
            if !packed {
                raw.set_avail_entry(slot, slot);
            }
            self.given += 1;
        }
        if !packed {
            raw.set_avail_idx(self.given as u16);
        }
        if !self.rx {
            side.fds.kick.signal().unwrap();
        }
    }

    /// Looks how many more were used.
    fn look(&mut self, vms: &[Vm]) -> u16 {
        let side = if self.rx { &vms[self.vm].rx[0] } else { &vms[self.vm].tx[0] };
        let raw = side.queue.raw();
        let before = self.seen;
        if side.queue.spec().packed {
            while self.seen < self.given {
                let odd = self.seen / u64::from(RING) % 2 == 1;
                let flags = raw.desc_flags((self.seen % u64::from(RING)) as u16);
                if flags & (AVAIL | USED) != if odd { 0 } else { AVAIL | USED } {
                    break;
                }
                self.seen += 1;
            }
        } else {
            self.seen += u64::from(raw.used_idx().wrapping_sub(self.seen as u16));
        }
        (self.seen - before) as u16
    }
}

/// Three VMs: a sender, and two receivers that take everything or nothing.
struct Scene {
    plane: Plane,
    ports: Vec<PortId>,
    vms: Vec<Vm>,
    tx: Wheel,
    rx: Vec<Wheel>,
}

impl Scene {
    fn new(packed: bool) -> Scene {
        let plane = Plane::new();
        let able = Guest {
            packed,
            offloads: ALL_OFFLOADS,
            rx_buffer: (2048, 2048),
            rx_buffers: 512,
            ..Guest::plain()
        };
        let unable = Guest { offloads: 0, ..able.clone() };
        let (mut ports, mut vms, mut rx) = (Vec::new(), Vec::new(), Vec::new());
        let mut buffers = Vec::new();
        for (n, guest) in [&able, &unable, &unable].into_iter().enumerate() {
            let name = format!("vm{n}");
            ports.push(plane.port(&name));
            let frontend = Frontend::connect_within(plane.socket(&name), PATIENCE).unwrap();
            let mut vm = Vm::stopped(frontend, guest);
            vm.negotiate();
            vm.refilling = false;
            let far = vm.memory.regions()[2].spec;
            buffers.push(far.guest_addr);
            vm.frontend.set_mem_table(&vm.memory).unwrap();
            (0..2).for_each(|queue| vm.start_queue(queue));
            vms.push(vm);
            let (gpa, step, len) = (far.guest_addr, 2048, 2048);
            rx.push(Wheel { vm: n, rx: true, gpa, step, len, given: 0, seen: 0 });
        }
        // The sender's frame lies behind its RX buffers, one for all descriptors.
        let gpa = buffers[0] + u64::from(RING) * 2048;
        let tx = Wheel { vm: 0, rx: false, gpa, step: 0, len: 0, given: 0, seen: 0 };
        plane.barrier();
        Scene { plane, ports, vms, tx, rx }
    }

    /// The frame to be sent from now on.
    fn load(&mut self, header: &Vnet, frame: &[u8]) {
        let bytes = [header.to_bytes().as_slice(), frame].concat();
        assert!(driver::write(self.vms[0].memory.guest(), self.tx.gpa, &bytes));
        self.tx.len = bytes.len() as u32;
    }

    /// Sends a burst and waits until it is forwarded and its `pieces` for each receiver are there.
    fn burst(&mut self, burst: u16, pieces: u16, receivers: [bool; 2]) {
        let Scene { vms, tx, rx, .. } = self;
        for (n, wheel) in rx.iter_mut().enumerate() {
            let room = u64::from(RING) - (wheel.given - wheel.seen);
            if n == 0 || receivers[n - 1] {
                wheel.give(vms, room as u16);
            }
        }
        tx.give(vms, burst);
        let mut missing = [0; 2];
        for (missing, takes) in missing.iter_mut().zip(receivers) {
            *missing = i64::from(pieces) * i64::from(takes);
        }
        let mut back = burst;
        let start = std::time::Instant::now();
        while back > 0 || missing.iter().any(|missing| *missing > 0) {
            back -= tx.look(vms);
            for (n, missing) in missing.iter_mut().enumerate().filter(|(n, _)| receivers[*n]) {
                *missing -= i64::from(rx[n + 1].look(vms));
            }
            std::thread::yield_now();
            assert!(start.elapsed() < PATIENCE, "{back} to go, {missing:?} to come");
        }
        assert_eq!(missing, [0; 2]);
    }

    /// Keeps the control thread in its place until the return is set.
    fn hold_control(&self) -> Arc<AtomicBool> {
        let flags = [false; 2].map(|flag| Arc::new(AtomicBool::new(flag)));
        let [here, go] = flags.clone();
        self.plane.spawn(async move {
            here.store(true, Ordering::Relaxed);
            // Blocks the only thread of the runtime, on purpose and without allocating.
            while !go.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let [here, go] = flags;
        wait(|| "the control thread".into(), || here.load(Ordering::Relaxed));
        go
    }

    /// Sends more than a hundred thousand frames; nothing is allocated meanwhile.
    fn measure(&mut self, what: &str, burst: u16, pieces: u16, receivers: [bool; 2]) {
        // What is made once is made with the first frames: nothing, as it is.
        self.burst(burst, pieces, receivers);
        let held = self.hold_control();
        let region = Region::new(COUNTED);
        let mut frames = 0;
        while frames < FRAMES {
            self.burst(burst, pieces, receivers);
            frames += u64::from(pieces.max(burst));
        }
        let change = region.change();
        held.store(true, Ordering::Relaxed);
        let counts = (change.allocations, change.reallocations, change.deallocations);
        assert_eq!(counts, (0, 0, 0), "{what}: {change:?}");
    }
}

fn every_path(packed: bool) {
    let mut scene = Scene::new(packed);
    // Everybody says where they are, by the one who can.
    for n in [1, 2] {
        let (vm, port) = (&scene.vms[n], scene.ports[n]);
        let mut body = [0; 8];
        body[..6].copy_from_slice(&mac(n as u32));
        let mut frontend = Frontend::over(vm.frontend.socket().try_clone().unwrap()).unwrap();
        frontend.protocol = vm.frontend.protocol;
        frontend.set(testkit::frontend::request::SEND_RARP, &body, &[]).unwrap();
        let known = || {
            let fdb = scene.plane.host.fdb(scene.plane.network);
            fdb.iter().any(|entry| entry.mac == mac(n as u32) && entry.port == port)
        };
        wait(|| "its address to be known".into(), known);
    }
    let plain = Vnet::default();
    for len in [46, 1486] {
        scene.load(&plain, &eth(mac(1), mac(0), &vec![1; len]));
        scene.measure("unicast", BURST, BURST, [true, false]);
        scene.load(&plain, &eth(BROADCAST, mac(0), &vec![2; len]));
        scene.measure("flood", BURST, BURST, [true, true]);
    }
    // One frame into three buffers.
    scene.load(&plain, &eth(mac(1), mac(0), &[8; 6000]));
    scene.measure("several buffers", 32, 96, [true, false]);
    let packet = Packet::new(false, false, mac(1), mac(0), vec![3; 1400]);
    scene.load(&packet.needs_csum(), &packet.partial());
    scene.measure("checksums", BURST, BURST, [true, false]);
    for (v6, udp) in [(false, false), (true, true)] {
        let packet = Packet::new(v6, udp, mac(1), mac(0), vec![4; 60 * 1024]);
        scene.load(&packet.needs_gso(1024), &packet.partial());
        scene.measure("segmentation", 2, 120, [true, false]);
    }
    let packet = Packet::new(false, false, BROADCAST, mac(0), vec![5; 60 * 1024]);
    scene.load(&packet.needs_gso(1024), &packet.partial());
    scene.measure("segmentation of a flood", 2, 120, [true, true]);
    // What cannot be delivered: no buffers, no such frame.
    scene.load(&plain, &eth(mac(2), mac(0), &[6; 46]));
    scene.drain_buffers(2);
    scene.measure("no buffers", BURST, 0, [false, false]);
    scene.load(&Vnet { flags: 1, csum_start: 9999, ..plain }, &eth(mac(1), mac(0), &[7; 46]));
    scene.measure("bad offloads", BURST, 0, [false, false]);
    let dropped = |port: usize, reason| scene.plane.dropped(scene.ports[port], reason);
    assert!(dropped(2, DropReason::RxRingEmpty) >= FRAMES);
    assert!(dropped(0, DropReason::BadOffload) >= FRAMES);
    scene.plane.end();
}

impl Scene {
    /// Has the receiver's last buffers used, and gives it no new ones.
    fn drain_buffers(&mut self, vm: usize) {
        let dropped = |scene: &Scene| scene.plane.dropped(scene.ports[vm], DropReason::RxRingEmpty);
        let before = dropped(self);
        while dropped(self) == before {
            self.burst(1, 0, [false, false]);
        }
        let Scene { vms, rx, .. } = self;
        rx[vm].look(vms);
    }
}

#[test]
fn the_data_path_allocates_nothing() {
    // The counter counts.
    let region = Region::new(COUNTED);
    drop(black_box(Box::new(7)));
    let change = region.change();
    assert!(change.allocations >= 1 && change.deallocations >= 1);

    every_path(false);
    every_path(true);
}
