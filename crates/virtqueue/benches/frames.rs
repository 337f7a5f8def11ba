//! What the device side of two rings costs per frame: pop on both, complete on both, one publish
//! and one notification decision per burst. Driver and device take turns in one thread, so all
//! ring memory is in this core's cache: what is measured is instructions, not cache misses.
//!
//! `cargo bench -p virtqueue`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for a person to look at")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guestmem::GuestMemory;
use testkit::driver::{self, Buffer, DriverQueue, RingSpec, Shape};
use virtqueue::{Chain, Queue, QueueConfig};

const START: u64 = 0x10_0000;
const RING: u16 = 256;
const BURST: u16 = 64;

struct End {
    mem: Arc<GuestMemory>,
    driver: DriverQueue,
    device: Queue,
}

fn end(packed: bool, event_idx: bool) -> End {
    let mem = driver::memory(&[(START, 4 << 20)]).unwrap();
    let spec = RingSpec { event_idx, table_len: 4, ..RingSpec::new(packed, RING, START) };
    let driver = DriverQueue::new(&mem, &spec).unwrap();
    let at = driver.addresses();
    let cfg = QueueConfig {
        size: RING,
        packed,
        event_idx,
        indirect: true,
        in_order: false,
        desc: at.desc,
        avail: at.driver,
        used: at.device,
        base: driver.base(),
    };
    let device = Queue::new(&mem, &cfg).unwrap();
    End { mem, driver, device }
}

fn buffers(n: u16, count: u64) -> Vec<Buffer> {
    let gpa = START + (1 << 20) + u64::from(n) * 4096;
    (0..count).map(|i| Buffer { gpa: gpa + i * 512, len: 512 }).collect()
}

/// The device's burst; returns how many frames went through.
#[inline(never)]
fn burst(src: &mut End, dst: &mut End, copy: usize) -> u32 {
    let (mut tx, mut rx) = (Chain::new(), Chain::new());
    let mut frames = 0;
    while frames < u32::from(BURST) {
        if !src.device.pop(&src.mem, &mut tx).unwrap()
            || !dst.device.pop(&dst.mem, &mut rx).unwrap()
        {
            break;
        }
        if copy != 0
            && let (Some(from), Some(to)) = (tx.readable().first(), rx.writable().first())
        {
            from.take(copy).copy_to_guest(*to);
        }
        dst.device.complete(&[rx.used(64)]);
        src.device.complete(&[tx.used(0)]);
        frames += 1;
    }
    src.device.publish();
    dst.device.publish();
    black_box(src.device.should_notify());
    black_box(dst.device.should_notify());
    frames
}

fn measure(packed: bool, event_idx: bool, segments: u64, shape: Shape, copy: usize) -> f64 {
    let (mut src, mut dst) = (end(packed, event_idx), end(packed, event_idx));
    let per_chain = if shape == Shape::Direct { segments as u16 } else { 1 };
    let round = RING / per_chain;
    let mut best = Duration::MAX;
    // The best of many short rounds: what is left is what the code costs.
    for _ in 0..4000 {
        for n in 0..round {
            src.driver.add(&buffers(n, segments), &[], shape).unwrap();
            dst.driver.add(&[], &buffers(n, 1), Shape::Direct).unwrap();
        }
        src.driver.expose();
        dst.driver.expose();
        let started = Instant::now();
        let mut frames = 0;
        while frames < u32::from(round) {
            frames += burst(&mut src, &mut dst, copy);
        }
        best = best.min(started.elapsed());
        while src.driver.collect().unwrap().is_some() {}
        while dst.driver.collect().unwrap().is_some() {}
    }
    best.as_nanos() as f64 / f64::from(round)
}

fn main() {
    println!("ns per frame, both rings, burst {BURST}");
    println!("{:24} {:>8} {:>8}", "", "split", "packed");
    let row = |name: &str, event_idx, segments, shape, copy| {
        let [split, packed] =
            [false, true].map(|packed| measure(packed, event_idx, segments, shape, copy));
        println!("{name:24} {split:8.2} {packed:8.2}");
    };
    row("direct", false, 1, Shape::Direct, 0);
    row("direct, event-idx", true, 1, Shape::Direct, 0);
    row("direct, copy 64 B", false, 1, Shape::Direct, 64);
    row("chain of 2", false, 2, Shape::Direct, 0);
    row("table of 2", false, 2, Shape::Indirect, 0);
    row("table of 4", false, 4, Shape::Indirect, 0);
}
