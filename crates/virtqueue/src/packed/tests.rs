//! Devices that are killed between any two of their stores, and their successors.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use guestmem::GuestMemory;
use proptest::prelude::*;
use sys::Words;
use testkit::driver::{self, Buffer, DriverQueue, RingSpec, Shape};

use crate::journal::fuse;
use crate::{Chain, Journal, Queue, QueueConfig, Used};

const RING: u64 = 0x10_0000;
const DATA: u64 = RING + (1 << 20);
const SIZE: u64 = 4 << 20;
/// Position of a new ring, in both halves.
const NEW: u32 = 0x8000_8000;

#[derive(Clone, Debug)]
enum Op {
    /// Driver: a chain of so many descriptors.
    Add(u8),
    Expose,
    Collect(u16),
    /// Device: takes chains and completes them as frames of so many, publishing after each group.
    Serve(Vec<(u16, bool)>),
    /// The device's end comes after so many stores of this; then the driver goes on, and a
    /// successor starts.
    Kill(Vec<(u16, bool)>, u16, Vec<Op>),
    /// The session ends in order, or its memory is mapped anew.
    Restart {
        exact: bool,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let frames = || prop::collection::vec((1u16..6, any::<bool>()), 0..50);
    let driver = || {
        prop_oneof![
            4 => (1u8..4).prop_map(Op::Add),
            3 => Just(Op::Expose),
            2 => (1u16..50).prop_map(Op::Collect),
        ]
    };
    let after = prop::collection::vec(driver(), 0..60);
    let op = prop_oneof![
        30 => driver(),
        4 => frames().prop_map(Op::Serve),
        3 => (frames(), 0u16..300, after).prop_map(|(frames, n, then)| Op::Kill(frames, n, then)),
        1 => any::<bool>().prop_map(|exact| Op::Restart { exact }),
    ];
    prop::collection::vec(op, 1..200)
}

fn spec(size: u16, start: u16) -> RingSpec {
    let start = (start & 0x8000) | ((start & 0x7fff) % size);
    RingSpec { start, ..RingSpec::new(true, size, RING) }
}

struct Run {
    mem: Arc<GuestMemory>,
    words: Words,
    driver: DriverQueue,
    device: Queue,
    /// What the front end believes.
    known: u32,
    /// Chains the device has, in ring order; frame and length of those completed.
    order: VecDeque<u16>,
    completed: HashMap<u16, (u32, u32)>,
    /// Chains of each frame.
    frames: HashMap<u32, usize>,
    serial: u32,
}

fn config(driver: &DriverQueue, base: u32) -> QueueConfig {
    let (spec, at) = (driver.spec(), driver.addresses());
    QueueConfig {
        size: spec.size,
        packed: true,
        event_idx: false,
        indirect: false,
        in_order: spec.in_order,
        desc: at.desc,
        avail: at.driver,
        used: at.device,
        base,
    }
}

/// A device; with in-order one that only reads.
fn device(mem: &Arc<GuestMemory>, cfg: &QueueConfig, journal: Journal, known: u32) -> Queue {
    let queue = Queue::resume(mem, cfg, journal, known).unwrap();
    if cfg.in_order { queue.read_only() } else { queue }
}

impl Run {
    fn new(spec: &RingSpec) -> Run {
        let mem = driver::memory(&[(RING, SIZE)]).unwrap();
        let driver = DriverQueue::new(&mem, spec).unwrap();
        let words = Words::private(Journal::WORDS);
        let known = driver.base();
        let journal = Journal::new(&words).unwrap();
        let device = device(&mem, &config(&driver, known), journal, known);
        let (order, completed, frames) = Default::default();
        Run { mem, words, driver, device, known, order, completed, frames, serial: 0 }
    }

    /// A device that takes over, told this base.
    fn succeed(&mut self, base: u32) {
        let journal = Journal::new(&self.words).unwrap();
        let cfg = config(&self.driver, base);
        self.device = device(&self.mem, &cfg, journal, self.known);
    }

    fn add(&mut self, descs: u8) {
        self.serial += 1;
        let gpa = DATA + u64::from(self.serial % 1000) * 64;
        let buffers: Vec<_> = (0..descs).map(|_| Buffer { gpa, len: 64 }).collect();
        if let Some(token) = self.driver.add(&[], &buffers, Shape::Direct) {
            self.order.push_back(token);
        }
    }

    /// Everything collected is the oldest there is, with the length it was completed with, and
    /// comes with the rest of its frame.
    fn collect(&mut self, count: u16) {
        let mut rest = 0;
        for _ in 0..count {
            while let Some(done) = self.driver.collect().expect("a buffer the device had") {
                assert_eq!(Some(done.token), self.order.pop_front(), "not the oldest");
                let (frame, len) = self.completed.remove(&done.token).expect("a completed one");
                assert_eq!(done.len, len);
                if rest == 0 {
                    rest = self.frames[&frame];
                }
                rest -= 1;
                if rest == 0 {
                    break;
                }
            }
            assert_eq!(rest, 0, "a part of a frame");
        }
    }

    fn serve(&mut self, frames: &[(u16, bool)]) {
        for &(chains, publish) in frames {
            let mut used = Vec::new();
            let before = self.device.position();
            let mut chain = Chain::new();
            while used.len() < usize::from(chains) {
                if !self.device.pop(&self.mem, &mut chain).expect("the driver is honest") {
                    break;
                }
                let len = u32::try_from(used.len()).unwrap() * 3 % 64;
                used.push(chain.used(if self.driver.spec().in_order { 0 } else { len }));
            }
            if used.len() < usize::from(chains) {
                self.device.rewind(before);
            } else {
                self.complete(&used);
            }
            if publish {
                self.device.publish();
            }
        }
        self.device.publish();
    }

    fn complete(&mut self, used: &[Used]) {
        self.serial += 1;
        self.frames.insert(self.serial, used.len());
        for one in used {
            self.completed.insert(one.id, (self.serial, one.len));
        }
        self.device.complete(used);
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Add(descs) => self.add(*descs),
            Op::Expose => self.driver.expose(),
            Op::Collect(count) => self.collect(*count),
            Op::Serve(frames) => self.serve(frames),
            Op::Kill(frames, stores, then) => {
                fuse::set(Some((*stores).into()));
                self.serve(frames);
                fuse::set(None);
                then.iter().for_each(|op| self.run(op));
                // Drivers show what they add at once, one chain after the other.
                self.driver.expose();
                self.succeed(self.known);
            }
            Op::Restart { exact } => {
                self.device.publish();
                self.driver.expose();
                self.succeed(if *exact { self.device.base() } else { self.known });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// However often the device is killed, every chain comes back, once, in order, with the length
    /// it was completed with and together with its frame.
    #[test]
    fn no_chain_is_lost_or_returned_twice(
        size in 1u16..70,
        start in any::<u16>(),
        in_order in any::<bool>(),
        ops in ops(),
    ) {
        let mut run = Run::new(&RingSpec { in_order, ..spec(size, start) });
        ops.iter().for_each(|op| run.run(op));
        run.driver.expose();
        run.serve(&vec![(1, false); usize::from(size) + 1]);
        run.collect(u16::MAX);
        prop_assert_eq!(run.driver.outstanding(), 0);
        prop_assert_eq!(run.driver.free(), size);
        // Driver and device agree about where they are.
        prop_assert_eq!(run.device.base(), run.driver.base());
    }

    /// A guest that lays out a new ring in the place of the old one while nobody serves it starts
    /// at its beginning.
    #[test]
    fn a_new_ring_is_told_from_the_old_one(
        size in 2u16..70,
        in_order in any::<bool>(),
        ops in ops(),
        filled in 0u8..90,
        descs in 1u8..4,
    ) {
        let spec = RingSpec { in_order, ..spec(size, 0x8000) };
        let mut run = Run::new(&spec);
        ops.iter().for_each(|op| run.run(op));
        let blank = vec![0; usize::from(size) * 16];
        prop_assert!(driver::write(&run.mem, RING, &blank));
        run.driver = DriverQueue::new(&run.mem, &spec).unwrap();
        (run.order, run.completed) = Default::default();
        // Other buffers than the old ring has had.
        run.serial = 100_000 + run.serial.next_multiple_of(1000) + 500;
        for _ in 0..filled {
            run.add(descs);
        }
        run.driver.expose();
        run.succeed(NEW);
        prop_assert_eq!(run.device.base(), NEW);
        run.serve(&vec![(1, true); usize::from(size) + 1]);
        run.collect(u16::MAX);
        prop_assert_eq!(run.driver.outstanding(), 0);
    }

    /// Whatever a journal and a ring hold, a queue starts inside its ring and nothing panics.
    #[test]
    fn a_journal_of_lies_does_no_harm(
        size in 1u16..40,
        lies in prop::collection::vec((0usize..Journal::WORDS, any::<u64>()), 0..60),
        ring in prop::collection::vec(any::<u8>(), 16 * 40),
        notes in 0u64..4096,
    ) {
        let mut run = Run::new(&spec(size, 0x8000));
        let set = |at: usize, word: u64| {
            run.words.get(at).unwrap().store(word, std::sync::atomic::Ordering::Relaxed);
        };
        for (at, word) in lies {
            // The ring is the right one, or nothing is read at all.
            if at > 4 {
                set(at, word);
            }
        }
        // A step to be finished, whose head is in the ring.
        let head = |at: usize| u64::from_le_bytes(*ring[at..].first_chunk().unwrap());
        set(8, 2 << 60 | notes << 48 | 0x8000_8000_8000);
        set(16, 1 << 60);
        set(9, head(0));
        set(10, head(8));
        set(24, 0x8000 << 48);
        prop_assert!(driver::write(&run.mem, RING, &ring[..16 * usize::from(size)]));
        run.succeed(NEW);
        prop_assert!(run.device.base() & 0x7fff < size.into());
        let mut chain = Chain::new();
        while let Ok(true) = run.device.pop(&run.mem, &mut chain) {
            run.device.complete(&[chain.used(1)]);
        }
        run.device.publish();
    }
}

/// A ring of 8 in which a device has used five chains, one of them collected.
fn five_used() -> Run {
    let mut run = Run::new(&spec(8, 0x8000));
    (0..6).for_each(|_| run.add(1));
    run.driver.expose();
    run.serve(&[(1, false); 5]);
    run.collect(1);
    run
}

#[test]
fn a_successor_with_an_old_base_goes_on() {
    let mut run = five_used();
    run.succeed(NEW);
    assert_eq!(run.device.base(), 0x8005_8005);
}

#[test]
fn without_a_journal_the_old_base_is_all_there_is() {
    let mut run = five_used();
    run.words = Words::private(Journal::WORDS);
    run.succeed(NEW);
    assert_eq!(run.device.base(), NEW);
}

#[test]
fn a_base_of_this_process_is_exact() {
    let mut run = five_used();
    let old = run.words.clone();
    run.words = Words::private(Journal::WORDS);
    run.succeed(0x8005_8005);
    assert_eq!(run.device.base(), 0x8005_8005);
    // The new journal goes on from there, for a front end that knows the old base only.
    run.succeed(NEW);
    assert_eq!(run.device.base(), 0x8005_8005);
    run.serve(&[(1, false)]);
    // What the old one says does not count.
    run.words = old;
    run.succeed(0x8006_8006);
    assert_eq!(run.device.base(), 0x8006_8006);
    run.succeed(NEW);
    assert_eq!(run.device.base(), 0x8006_8006);
    // Not even if the ring agrees with it.
    run.succeed(0x8003_8003);
    assert_eq!(run.device.base(), 0x8003_8003);
}

/// The same guest booted again may have the same buffers in the same slots.
#[test]
fn what_was_shown_is_not_shown_to_a_new_ring() {
    let mut run = five_used();
    assert!(driver::write(&run.mem, RING, &[0; 8 * 16]));
    run.driver = DriverQueue::new(&run.mem, &spec(8, 0x8000)).unwrap();
    run.serial = 0;
    (0..6).for_each(|_| run.add(1));
    run.driver.expose();
    run.succeed(NEW);
    assert!(!run.driver.has_used());
    assert_eq!(run.device.base(), NEW);
}

#[test]
fn a_journal_that_was_made_void_is_not_used() {
    let mut run = five_used();
    Journal::new(&run.words).unwrap().forget();
    run.succeed(NEW);
    assert_eq!(run.device.base(), NEW);
}

#[test]
fn a_ring_that_went_on_without_the_journal_is_not_taken_for_the_old_one() {
    let mut run = five_used();
    // Another device served the ring meanwhile, and kept no journal.
    let kept = run.words.clone();
    run.words = Words::private(Journal::WORDS);
    run.succeed(0x8005_8005);
    run.serve(&[(1, false)]);
    run.words = kept;
    run.succeed(NEW);
    assert_eq!(run.device.base(), NEW);
}

/// A driver that counts on the order finds one used descriptor, in the first slot: the others are as it left them.
#[test]
fn in_order_one_descriptor_stands_for_all() {
    let mut run = Run::new(&RingSpec { in_order: true, ..spec(8, 0x8000) });
    (0..6).for_each(|_| run.add(1));
    run.driver.expose();
    let before = ring(&run);
    run.serve(&[(1, false); 5]);
    let after = ring(&run);
    assert_ne!(before[..16], after[..16]);
    assert_eq!(before[16..], after[16..]);
    run.collect(u16::MAX);
    assert_eq!((run.driver.outstanding(), run.device.base()), (1, 0x8005_8005));
}

fn ring(run: &Run) -> Vec<u8> {
    let mut bytes = vec![0; 8 * 16];
    run.mem.slice(RING, 8 * 16).unwrap().copy_to(&mut bytes);
    bytes
}

/// A frame that does not fit beside what is pending is whole all the same.
#[test]
fn a_large_frame_is_seen_whole_or_not_at_all() {
    for stores in (0..1100).step_by(11) {
        let mut run = Run::new(&spec(600, 0x8000));
        (0..500).for_each(|_| run.add(1));
        run.driver.expose();
        fuse::set(Some(stores));
        run.serve(&[vec![(1, false); 20], vec![(480, false)]].concat());
        fuse::set(None);
        run.collect(u16::MAX);
        run.succeed(NEW);
        run.collect(u16::MAX);
        run.serve(&[(1, false); 500]);
        run.collect(u16::MAX);
        assert_eq!(run.driver.outstanding(), 0);
    }
}

/// More chains than fit into a journal are shown all the same.
#[test]
fn a_frame_of_any_number_of_chains_is_completed() {
    let mut run = Run::new(&spec(1000, 0x8000));
    (0..1000).for_each(|_| run.add(1));
    run.driver.expose();
    let mut used = Vec::new();
    let mut chain = Chain::new();
    while run.device.pop(&run.mem, &mut chain).unwrap() {
        used.push(chain.used(1));
    }
    run.complete(&used);
    run.device.publish();
    run.collect(1);
    assert_eq!(run.driver.outstanding(), 0);
}
