//! Both ends at once, on two threads: nothing lost, nothing seen by halves, and nothing that a
//! guest writes at full speed gets past the checks.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use common::{RING, World, buffer, config};
use testkit::driver::{DriverQueue, RingSpec, Shape};
use virtqueue::{Chain, Queue, QueueConfig, Used};

/// What an eventfd does: remembers that it was rung until someone waits for it.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// What one side does with the two bells, kicks and interrupts.
type Side = Box<dyn FnOnce(&Bell, &Bell) + Send>;

const FRAMES: u32 = 3_000;

/// Frames of one to three buffers; each buffer's length says which it is and of how many.
fn device_side(world: &mut World, kick: &Bell, irq: &Bell) {
    let World { mem, device, .. } = world;
    let mut chain = Chain::new();
    let mut frame = 0;
    while frame < FRAMES {
        let mut progress = false;
        while frame < FRAMES {
            let before = device.position();
            let total = 1 + frame % 3;
            let mut used = Vec::new();
            while used.len() < total as usize && device.pop(mem, &mut chain).unwrap() {
                used.push(chain.used(total * 16 + used.len() as u32));
            }
            if used.len() < total as usize {
                device.rewind(before);
                break;
            }
            device.complete(&used);
            frame += 1;
            progress = true;
        }
        device.publish();
        if device.should_notify() {
            irq.ring();
        }
        if !progress && !device.enable_kicks() {
            kick.wait();
        } else if progress && frame % 2 == 0 {
            device.disable_kicks();
        }
        // A rest of a frame does not ring again.
        thread::yield_now();
    }
}

fn driver_side(driver: &mut DriverQueue, kick: &Bell, irq: &Bell) {
    let mut frame = 0;
    while frame < FRAMES {
        while driver.add(&[], &[buffer(0, 64)], Shape::Direct).is_some() {}
        driver.expose();
        if driver.kick_needed() {
            kick.ring();
        }
        let mut progress = false;
        while let Some(first) = driver.collect().unwrap() {
            progress = true;
            let total = 1 + frame % 3;
            assert_eq!(first.len, total * 16);
            for part in 1..total {
                let next = driver.collect().unwrap().expect("a frame is seen whole");
                assert_eq!(next.len, total * 16 + part);
            }
            frame += 1;
        }
        if frame < FRAMES && !progress && !driver.enable_interrupts() {
            irq.wait();
        } else if frame % 5 == 0 {
            driver.disable_interrupts();
        }
    }
}

/// Each side sleeps whenever it has nothing to do and the other was asked to wake it. A lost
/// notification leaves both asleep.
#[test]
fn no_wake_up_is_lost() {
    for (packed, size) in [(false, 4), (true, 5), (false, 64), (true, 64)] {
        for event_idx in [false, true] {
            let spec = RingSpec { event_idx, ..RingSpec::new(packed, size, RING) };
            let mut world = World::new(&spec);
            let mem = Arc::clone(&world.mem);
            let cfg = config(&world.driver);
            let mut driver = DriverQueue::new(&mem, &spec).unwrap();
            world.device = Queue::new(&mem, &cfg).unwrap();
            let (kick, irq) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
            let (done, end) = channel();
            let spawn = |work: Side| {
                let (kick, irq, done) = (Arc::clone(&kick), Arc::clone(&irq), done.clone());
                thread::spawn(move || {
                    work(&kick, &irq);
                    done.send(()).unwrap();
                })
            };
            let threads = [
                spawn(Box::new(move |kick, irq| device_side(&mut world, kick, irq))),
                spawn(Box::new(move |kick, irq| driver_side(&mut driver, kick, irq))),
            ];
            drop(done);
            for _ in &threads {
                // A watchdog, not a measurement: it only ends a test that would never end.
                if let Err(why) = end.recv_timeout(Duration::from_secs(120)) {
                    panic!("stuck ({why}): {spec:?}");
                }
            }
            for thread in threads {
                thread.join().unwrap();
            }
        }
    }
}

/// Both threads are here; neither goes on before the other came.
struct Meeting(AtomicU32);

impl Meeting {
    fn meet(&self, round: u32) {
        self.0.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0;
        while self.0.load(Ordering::SeqCst) < 2 * round {
            spins += 1;
            // On a busy machine the other may not be running.
            if spins % 1000 == 0 {
                thread::yield_now();
            }
        }
    }
}

/// The narrow place: one side shows something and asks whether to notify in the same moment in
/// which the other asks to be notified and looks once more. One of them has to notice.
#[test]
fn one_of_the_two_sides_notices() {
    const ROUNDS: u32 = 20_000;
    for packed in [false, true] {
        for event_idx in [false, true] {
            let spec = RingSpec { event_idx, ..RingSpec::new(packed, 4, RING) };
            let World { mem, mut driver, mut device } = World::new(&spec);
            device.should_notify();
            let meeting = Meeting(AtomicU32::new(0));
            let noticed = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut chain = Chain::new();
                    for round in 0..ROUNDS {
                        device.disable_kicks();
                        meeting.meet(5 * round + 1);
                        // With the lines in both caches, loads are quick and stores are slow.
                        std::hint::black_box(device.has_available());
                        meeting.meet(5 * round + 2);
                        let available = device.enable_kicks();
                        noticed.fetch_or(available, Ordering::SeqCst);
                        meeting.meet(5 * round + 3);
                        assert!(device.pop(&mem, &mut chain).unwrap());
                        let used = chain.used(0);
                        meeting.meet(5 * round + 4);
                        device.complete(&[used]);
                        device.publish();
                        noticed.fetch_or(device.should_notify(), Ordering::SeqCst);
                        meeting.meet(5 * round + 5);
                    }
                });
                for round in 0..ROUNDS {
                    driver.add(&[buffer(0, 9)], &[], Shape::Direct).unwrap();
                    meeting.meet(5 * round + 1);
                    std::hint::black_box(driver.raw().device.load_u32(0));
                    meeting.meet(5 * round + 2);
                    driver.expose();
                    let kick = driver.kick_needed();
                    meeting.meet(5 * round + 3);
                    let noticed_by_device = noticed.swap(false, Ordering::SeqCst);
                    assert!(kick || noticed_by_device, "a kick is lost in round {round}");
                    driver.disable_interrupts();
                    meeting.meet(5 * round + 4);
                    let used = driver.enable_interrupts();
                    meeting.meet(5 * round + 5);
                    let irq = noticed.swap(false, Ordering::SeqCst);
                    assert!(used || irq, "an interrupt is lost in round {round}");
                    driver.collect().unwrap().unwrap();
                }
            });
        }
    }
}

/// A small generator of numbers; quality does not matter, speed does.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Writes ring fields at full speed: some nonsense, more that is nearly right.
fn flip(driver: &DriverQueue, stop: &AtomicBool) {
    let raw = driver.raw();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    while !stop.load(Ordering::Relaxed) {
        let n = numbers.next();
        let at = (n >> 8) as usize;
        match n % 8 {
            0 => raw.desc.store_u16((at % raw.desc.len()) & !1, (n >> 32) as u16),
            1 => raw.driver.store_u16((at % raw.driver.len()) & !1, (n >> 32) as u16),
            2 => raw.device.store_u16((at % raw.device.len()) & !1, (n >> 32) as u16),
            3 => raw.desc.store_u64((at % raw.desc.len()) & !7, n),
            // Plausible descriptors, so that chains get long before they end or lie.
            4 | 5 => {
                let desc = (at % raw.desc.len()) & !15;
                raw.desc.store_u64(desc, common::DATA + (n >> 42));
                let indirect = if n & 0x300 == 0 { 4 } else { 0 };
                let flags = (n >> 20) & 0x8083 | indirect;
                let tag = (n >> 24) & 15;
                let (low, high) = if driver.spec().packed { (tag, flags) } else { (flags, tag) };
                raw.desc.store_u64(desc + 8, (1 + (n >> 56)) | (low << 32) | high << 48);
            }
            // Plausible indices.
            6 if !driver.spec().packed => {
                raw.set_avail_entry(at as u16 % 16, (n >> 32) as u16 % 16);
                raw.set_avail_idx(raw.used_idx().wrapping_add((n >> 48) as u16 % 17));
            }
            _ => raw.set_desc_flags(at as u16 % 16, (n >> 32) as u16 & 0x8087),
        }
    }
}

/// Chains and faults to have met before it counts.
const ENOUGH: u32 = 5_000;

#[test]
fn a_guest_that_rewrites_its_ring_all_the_time_gets_faults_and_nothing_else() {
    for packed in [false, true] {
        let spec = RingSpec { table_len: 16, event_idx: true, ..RingSpec::new(packed, 16, RING) };
        let world = World::new(&spec);
        let World { mem, driver, mut device } = world;
        let cfg = config(&driver);
        let stop = AtomicBool::new(false);
        let (mut chains, mut faults) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| flip(&driver, &stop));
            let mut room = vec![0; 4096];
            for turn in 0..u32::MAX {
                if chains >= ENOUGH && faults >= ENOUGH {
                    break;
                }
                let mut chain = Chain::new();
                match device.pop(&mem, &mut chain) {
                    // Where both share a CPU it is the other's turn.
                    Ok(false) => thread::yield_now(),
                    Ok(true) => {
                        chains += 1;
                        assert!(usize::from(chain.descs) <= 16 && chain.descs > 0);
                        let parts = chain.readable().iter().chain(chain.writable());
                        let total: usize = parts.clone().map(guestmem::GuestSlice::len).sum();
                        let known = chain.readable_len() + chain.writable_len();
                        assert_eq!(total, known as usize);
                        for part in parts {
                            part.copy_to(&mut room);
                        }
                        for part in chain.writable() {
                            part.copy_from(&room);
                        }
                        device.complete(&[Used { len: 1, ..chain.used(0) }]);
                    }
                    Err(fault) => {
                        assert!(virtqueue::GuestFault::NAMES.contains(&fault.name()));
                        faults += 1;
                        // The port would stop; here the next session comes at once.
                        let base = device.base();
                        device = Queue::new(&mem, &QueueConfig { base, ..cfg.clone() }).unwrap();
                        thread::yield_now();
                    }
                }
                if turn % 16 == 0 {
                    device.publish();
                    device.should_notify();
                }
                match turn % 512 {
                    0 => drop(device.enable_kicks()),
                    256 => device.disable_kicks(),
                    _ => {}
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!mem.faulted());
        assert!(chains >= ENOUGH && faults >= ENOUGH, "{chains} chains, {faults} faults");
    }
}
