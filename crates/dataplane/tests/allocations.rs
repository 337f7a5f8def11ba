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
use common::wheel::{self, Wheel};
use common::{PATIENCE, wait};
use dataplane::{DropReason, PortId};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use testkit::frontend::Frontend;

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Frames of each kind of traffic.
const FRAMES: u64 = 120_000;
/// Frames on the way at once.
const BURST: u16 = 64;

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
        let able = Guest { packed, offloads: ALL_OFFLOADS, ..Guest::plain() };
        let unable = Guest { offloads: 0, ..able.clone() };
        let guests = [&able, &unable, &unable].into_iter().enumerate();
        let (ports, vms): (Vec<_>, Vec<_>) =
            guests.map(|(n, guest)| wheel::vm(&plane, &format!("vm{n}"), guest)).unzip();
        let (tx, rx) = (Wheel::tx(&vms[0]), vms.iter().map(Wheel::rx).collect());
        plane.barrier();
        Scene { plane, ports, vms, tx, rx }
    }

    /// The frame to be sent from now on.
    fn load(&mut self, header: &Vnet, frame: &[u8]) {
        self.tx.load(&self.vms[0], header, frame);
    }

    /// Sends a burst and waits until it is forwarded and its `pieces` for each receiver are there.
    fn burst(&mut self, burst: u16, pieces: u16, receivers: [bool; 2]) {
        let Scene { vms, tx, rx, .. } = self;
        for (n, wheel) in rx.iter_mut().enumerate() {
            if n == 0 || receivers[n - 1] {
                wheel.fill(&vms[n]);
            }
        }
        tx.give(&vms[0], burst);
        let mut missing = [0; 2];
        for (missing, takes) in missing.iter_mut().zip(receivers) {
            *missing = i64::from(pieces) * i64::from(takes);
        }
        let mut back = burst;
        let start = std::time::Instant::now();
        while back > 0 || missing.iter().any(|missing| *missing > 0) {
            back -= tx.look(&vms[0]);
            for (n, missing) in missing.iter_mut().enumerate().filter(|(n, _)| receivers[*n]) {
                *missing -= i64::from(rx[n + 1].look(&vms[n + 1]));
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
        rx[vm].look(&vms[vm]);
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
