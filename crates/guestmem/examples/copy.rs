//! Measures the copy routines against each other and against the C library's memcpy.
//!
//! `cargo run --release -p guestmem --example copy`, on an otherwise idle machine with two CPUs or
//! more; takes seconds.
//!
//! Nanoseconds per copy, medians, in two situations. *Warm*: source and destination were last used
//! by this CPU. *Guests*: another CPU has just written the source and read the destination, as
//! guests do; here the cost is in getting the destination's cache lines back. Source and
//! destination are not aligned alike, as with a 12-byte header in front. *Block* is the way of a frame's
//! beginning: into a block of the worker, and out of it.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program for people to run")]
#![expect(unsafe_code)]
// UNSAFETY: maps memory and calls routines that take raw pointers.

use std::hint::{black_box, spin_loop};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use guestmem::{CopyRoutine, GuestMemory, RegionFile, RegionSpec};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const SIZES: [usize; 15] =
    [12, 60, 64, 76, 96, 128, 140, 192, 256, 512, 1024, 1518, 4096, 9018, 65_536];
/// Bytes of a block.
const BLOCK: usize = 128;
/// Source and destination lie in different halves.
const HALF: usize = 2 << 20;
const SRC_SHIFT: usize = 0;
const DST_SHIFT: usize = 12;

/// A program's view of the memory, like that of a guest.
#[derive(Clone, Copy)]
struct View(*mut u8);

// SAFETY: shared memory that stays mapped until the process ends; all accesses are raw.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

/// How many buffers of a size, and how far apart: as in a ring, but no more than fits into half a
/// cache.
fn layout(size: usize) -> (usize, usize) {
    if size <= 2048 { (256, 2304) } else { (16, 65_536 + 256) }
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

/// What the other CPU is asked to do: a number that changes, and the size in the low bits.
static ASKED: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);

/// Writes every byte of the sources, reads a byte of every line of the destinations.
fn guests(view: View, cpu: usize) {
    pin(cpu);
    let mut seen = 0;
    loop {
        let asked = ASKED.load(Ordering::Acquire);
        if asked == seen {
            spin_loop();
            continue;
        }
        seen = asked;
        let size = asked & 0xf_ffff;
        let (count, stride) = layout(size);
        for i in 0..count {
            // SAFETY: the layouts stay inside the two halves.
            unsafe {
                view.0.add(i * stride + SRC_SHIFT).write_bytes(asked as u8, size);
                for line in (0..size).step_by(64) {
                    let at = view.0.add(HALF + i * stride + DST_SHIFT + line);
                    black_box(AtomicU8::from_ptr(at).load(Ordering::Relaxed));
                }
            }
        }
        DONE.store(asked, Ordering::Release);
    }
}

/// # Safety
/// As for memcpy.
unsafe fn memcpy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as promised by the caller.
    unsafe { libc::memcpy(dst.cast(), src.cast(), len) };
}

enum Way {
    /// The product's: two slices.
    Slices,
    /// The product's for what is looked at on the way.
    Block,
    Raw(CopyRoutine),
}

fn run(way: &Way, memory: &GuestMemory, view: View, size: usize) -> f64 {
    let (count, stride) = layout(size);
    let mut block = [0; BLOCK];
    let start = Instant::now();
    for i in 0..count {
        let (src, dst) = (i * stride + SRC_SHIFT, HALF + i * stride + DST_SHIFT);
        match way {
            Way::Slices => {
                let len = black_box(size) as u32;
                let slice = |at: usize| memory.slice(at as u64, len).unwrap();
                slice(src).copy_to_guest(slice(dst));
            }
            Way::Block => {
                let len = black_box(size) as u32;
                let slice = |at: usize| memory.slice(at as u64, len).unwrap();
                let n = slice(src).copy_to_block(&mut block);
                slice(dst).copy_from_block(black_box(&block), n);
            }
            // SAFETY: the layouts stay inside the two halves.
            Way::Raw(routine) => unsafe {
                routine(view.0.add(dst), view.0.add(src), black_box(size));
            },
        }
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

fn main() {
    let fd: OwnedFd = memfd_create("copy", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 2 * HALF as u64).unwrap();
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let view = unsafe { mmap(std::ptr::null_mut(), 2 * HALF, prot, flags, fd.as_fd(), 0) };
    let view = View(view.unwrap().cast());
    let spec = RegionSpec { guest_addr: 0, size: 2 * HALF as u64, user_addr: 0, mmap_offset: 0 };
    let memory = GuestMemory::map(&[(spec, RegionFile::from(fd))]).unwrap();

    let mut ways = vec![("slices".to_owned(), Way::Slices), ("memcpy".into(), Way::Raw(memcpy))];
    ways.push(("block".into(), Way::Block));
    for (name, routine) in guestmem::copy_routines() {
        ways.push((name.to_owned(), Way::Raw(routine)));
    }
    let cpus = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)).collect();
    pin(cpus[0]);
    if let Some(&other) = cpus.get(1) {
        std::thread::spawn(move || guests(view, other));
    }
    let mut turn = 0_usize;
    for shared in [false, true] {
        if shared && cpus.len() < 2 {
            break;
        }
        print!("\n{:8}", if shared { "guests" } else { "warm" });
        SIZES.iter().for_each(|size| print!("{size:>8}"));
        let mut table = vec![Vec::new(); ways.len()];
        for size in SIZES {
            let mut samples = vec![Vec::new(); ways.len()];
            // The ways take turns, so that a change of the machine's mood hits all alike.
            for _ in 0..400 {
                for ((name, way), samples) in ways.iter().zip(&mut samples) {
                    if long_only(name) && size <= BLOCK || matches!(way, Way::Block) && size > BLOCK
                    {
                        continue;
                    }
                    if shared {
                        turn += 1;
                        let ask = turn << 20 | size;
                        ASKED.store(ask, Ordering::Release);
                        while DONE.load(Ordering::Acquire) != ask {
                            spin_loop();
                        }
                    }
                    samples.push(run(way, &memory, view, size));
                }
            }
            for (samples, row) in samples.iter_mut().zip(&mut table) {
                samples.sort_by(f64::total_cmp);
                row.push(samples.get(samples.len() / 2).copied());
            }
        }
        for ((name, _), row) in ways.iter().zip(table) {
            print!("\n{name:8}");
            for median in row {
                match median {
                    Some(ns) => print!("{ns:8.1}"),
                    None => print!("{:>8}", "-"),
                }
            }
        }
        println!();
    }
}

/// The routines themselves are only for what is too long for the caller's code.
fn long_only(name: &str) -> bool {
    !["slices", "memcpy", "block"].contains(&name)
}
