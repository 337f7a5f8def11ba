//! A virtqueue whose guest writes whatever the input says, compared step by step with a plain
//! reading of the specification.

#![allow(clippy::expect_used, reason = "a fuzz target fails by panicking")]

mod reference;

use std::collections::VecDeque;
use std::sync::Arc;

use guestmem::{GuestMemory, GuestSlice};
use testkit::driver::{self, DriverQueue, RawDesc, RingSpec};
use virtqueue::{Chain, Next, Position, Queue, QueueConfig, Used};

use crate::bytes::Bytes;
use reference::{RefChain, Reference};

/// Two regions with a hole between them; the ring, tables and buffers are in the first.
const LOW: u64 = 0x1_0000;
const LOW_SIZE: u64 = 0x1_0000;
const HIGH: u64 = 0x3_0000;
const HIGH_SIZE: u64 = 0x2000;
const TABLES: u64 = LOW + 0x8000;

/// Most steps of one run: a longer input finds nothing new.
const STEPS: usize = 2000;

/// The target.
///
/// # Panics
/// When the queue and the reference disagree.
pub fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let Ok(mem) = driver::memory(&[(LOW, LOW_SIZE), (HIGH, HIGH_SIZE)]) else {
        return; // Out of memory or descriptors: nothing to be learnt.
    };
    let spec = spec(&mut input);
    let ring = DriverQueue::new(&mem, &spec).expect("the ring is inside");
    paint(&mem, LOW + spec.bytes(), LOW + LOW_SIZE);
    paint(&mem, HIGH, HIGH + HIGH_SIZE);
    let mut run = Run::new(&mem, ring);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
    }
    assert!(!mem.faulted());
}

fn spec(input: &mut Bytes<'_>) -> RingSpec {
    let (bits, size, start) = (input.u8(), input.u8(), input.u16());
    let packed = bits & 1 != 0;
    let size = if packed { 1 + u16::from(size) % 40 } else { 1 << (size % 6) };
    let start = if packed { ((start & 0x7fff) % size) | start & 0x8000 } else { start };
    RingSpec {
        event_idx: bits & 2 != 0,
        table_len: u16::from(bits & 4 != 0),
        in_order: bits & 8 != 0,
        start,
        ..RingSpec::new(packed, size, LOW)
    }
}

/// Fills memory with bytes that differ from place to place.
fn paint(mem: &GuestMemory, from: u64, to: u64) {
    let bytes: Vec<u8> = (from..to).map(|at| (at ^ at >> 8) as u8).collect();
    driver::write(mem, from, &bytes);
}

/// What the device has popped: the chain and the points before it, of both.
struct Popped {
    chain: RefChain,
    before: Position,
    reference: u64,
}

struct Run<'m> {
    mem: &'m Arc<GuestMemory>,
    ring: DriverQueue,
    cfg: QueueConfig,
    queue: Queue,
    reference: Reference<'m>,
    popped: VecDeque<Popped>,
}

impl<'m> Run<'m> {
    fn new(mem: &'m Arc<GuestMemory>, ring: DriverQueue) -> Run<'m> {
        let (spec, at) = (ring.spec(), ring.addresses());
        let cfg = QueueConfig {
            size: spec.size,
            packed: spec.packed,
            event_idx: spec.event_idx,
            indirect: spec.table_len != 0,
            in_order: spec.in_order,
            desc: at.desc,
            avail: at.driver,
            used: at.device,
            base: ring.base(),
        };
        let reference = Reference::new(mem, &cfg);
        let queue = Queue::new(mem, &cfg).expect("a sound set-up");
        Run { mem, ring, cfg, queue, reference, popped: VecDeque::new() }
    }

    fn step(&mut self, input: &mut Bytes<'_>) {
        let size = self.cfg.size;
        let raw = self.ring.raw();
        match input.u8() % 18 {
            0 | 1 => raw.set_desc(u16::from(input.u8()) % size, &desc(input, self.cfg.packed)),
            2 => {
                let gpa = TABLES + 16 * u64::from(input.u8());
                let desc = desc(input, self.cfg.packed);
                let halves = if self.cfg.packed { desc.packed() } else { desc.split() };
                driver::write(self.mem, gpa, &halves.map(u64::to_le_bytes).concat());
            }
            3 if !self.cfg.packed => {
                raw.set_avail_entry(u16::from(input.u8()) % size, input.u8().into());
            }
            4 if !self.cfg.packed => {
                let ahead = u16::from(input.u8()) % (size + 2);
                raw.set_avail_idx((self.reference.used as u16).wrapping_add(ahead));
            }
            3 | 4 => raw.set_desc_flags(u16::from(input.u8()) % size, input.u16()),
            5 => {
                let at = (usize::from(input.u8()) % raw.driver.len()) & !1;
                raw.driver.store_u16(at, input.u16());
            }
            6 => {
                let at = (usize::from(input.u8()) % raw.device.len()) & !1;
                raw.device.store_u16(at, input.u16());
            }
            7 => {
                let at = 8 * usize::from(input.u8()) % raw.desc.len();
                raw.desc.store_u64(at, input.u64());
            }
            8..=10 => self.pop(),
            11 => self.next(),
            12 | 13 => self.complete(input.u8()),
            14 => {
                self.queue.look_ahead(5);
                self.reference.look_ahead(5);
                let should = self.queue.should_notify();
                assert_eq!(should, self.reference.should_notify().unwrap_or(should));
            }
            15 => self.rewind(input.u8()),
            16 => {
                if input.u8().is_multiple_of(2) {
                    self.queue.disable_kicks();
                } else {
                    assert_eq!(self.queue.enable_kicks(), self.reference.has_available());
                }
            }
            _ => self.restart(),
        }
        assert_eq!(self.queue.has_available(), self.reference.has_available());
        // Hints, with whatever stands in the ring.
        for ahead in [0, 5] {
            self.queue.peek(ahead, 4, |n, soon| {
                assert!(n < 4);
                self.mem.prefetch_read(soon.addr);
                self.mem.prefetch_write(soon.addr);
            });
        }
    }

    fn pop(&mut self) {
        let (before, reference) = (self.queue.position(), self.reference.avail);
        let mut chain = Chain::new();
        let got = self.queue.pop(self.mem, &mut chain);
        match (got, self.reference.pop()) {
            (Ok(false), Ok(None)) => {}
            (Ok(true), Ok(Some(expected))) => {
                assert_eq!((chain.id, chain.descs), (expected.id, expected.descs));
                self.same(chain.readable(), chain.readable_len(), &expected.readable);
                self.same(chain.writable(), chain.writable_len(), &expected.writable);
                self.popped.push_back(Popped { chain: expected, before, reference });
            }
            (Err(fault), Err(name)) => {
                assert_eq!(fault.name(), name);
                assert_eq!(self.queue.position(), before);
            }
            (got, expected) => panic!("{got:?}, but the reference says {expected:?}"),
        }
    }

    /// The quick form, and the other one for the chains it leaves.
    fn next(&mut self) {
        let (before, reference) = (self.queue.position(), self.reference.avail);
        match self.queue.next(self.mem) {
            Ok(Next::One { buffer, id, writable }) => {
                let expected = self.reference.pop().ok().flatten().expect("a chain of one");
                assert_eq!((id, 1), (expected.id, expected.descs));
                let part = if writable { &expected.writable } else { &expected.readable };
                self.same(&[buffer], buffer.len() as u32, part);
                assert_eq!(expected.readable.len() + expected.writable.len(), 1);
                self.popped.push_back(Popped { chain: expected, before, reference });
            }
            // Nothing was taken: the same again.
            Ok(Next::Empty | Next::Chain) | Err(_) => {
                assert_eq!(self.queue.position(), before);
                self.pop();
            }
        }
    }

    /// The slices are these pieces of guest memory.
    fn same(&self, slices: &[GuestSlice<'_>], len: u32, expected: &[(u64, u32)]) {
        assert_eq!(slices.len(), expected.len());
        assert_eq!(len, expected.iter().map(|&(_, len)| len).sum::<u32>());
        for (slice, &(gpa, len)) in slices.iter().zip(expected) {
            assert_eq!(slice.len(), len as usize);
            let mut bytes = vec![0; len as usize];
            slice.copy_to(&mut bytes);
            assert_eq!(Some(bytes), driver::read(self.mem, gpa, len));
        }
    }

    /// Completes some chains as one frame and looks at what the driver will see.
    fn complete(&mut self, how: u8) {
        let count = usize::from(how % 4).min(self.popped.len());
        let mut used = Vec::new();
        let start = self.reference.used;
        for Popped { chain, .. } in self.popped.drain(..count) {
            used.push(Used { id: chain.id, descs: chain.descs, len: (how >> 4).into() });
            self.reference.complete(&chain);
        }
        self.queue.complete(&used);
        self.queue.publish();
        let raw = self.ring.raw();
        if !self.cfg.packed {
            assert_eq!(raw.used_idx(), self.reference.used as u16);
        }
        let (size, mut at) = (u64::from(self.cfg.size), start);
        // Entries of a frame longer than the ring overwrite each other; only a lie gets there.
        if self.reference.used - start > size {
            return;
        }
        for one in &used {
            let slot = (at % size) as u16;
            if self.cfg.packed {
                let desc = raw.desc(slot);
                let mark = if at / size % 2 == 0 { 0x8080 } else { 0 };
                let wrote = if one.len != 0 { 2 } else { 0 };
                assert_eq!((desc.tag, desc.len, desc.flags), (one.id, one.len, mark | wrote));
                at += u64::from(one.descs);
            } else {
                assert_eq!(raw.used_entry(slot), (one.id.into(), one.len));
                at += 1;
            }
        }
    }

    fn rewind(&mut self, how: u8) {
        let keep = self.popped.len().saturating_sub(how.into());
        if let Some(first) = self.popped.get(keep) {
            self.queue.rewind(first.before);
            self.reference.avail = first.reference;
        }
        self.popped.truncate(keep);
    }

    /// A new device takes over.
    fn restart(&mut self) {
        self.rewind(u8::MAX);
        let cfg = QueueConfig { base: self.queue.base(), ..self.cfg.clone() };
        self.reference = Reference::new(self.mem, &cfg);
        self.queue = Queue::new(self.mem, &cfg).expect("a sound set-up");
    }
}

/// A descriptor: usually sound in most respects.
fn desc(input: &mut Bytes<'_>, packed: bool) -> RawDesc {
    let kind = input.u8();
    let place = u64::from(input.u8());
    let addr = match kind & 7 {
        0..=2 => LOW + 0x4000 + 16 * place,
        3 | 4 => TABLES + 16 * place,
        5 => HIGH + HIGH_SIZE - place,
        6 => LOW + LOW_SIZE - place,
        _ => input.u64(),
    };
    let len = match kind >> 3 & 7 {
        0..=3 => 16 * u32::from(input.u8() % 8),
        4..=6 => u32::from(input.u8()),
        _ => input.u64() as u32,
    };
    let bits = input.u8();
    let (flags, tag) = if packed {
        (u16::from(bits & 7) | u16::from(bits & 8) << 4 | u16::from(bits & 16) << 11, bits >> 5)
    } else {
        (u16::from(bits & 7), bits >> 3)
    };
    RawDesc { addr, len, flags, tag: tag.into() }
}
