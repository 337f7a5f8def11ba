//! Memory that vanishes while it is in use: nothing breaks, the right session is marked, and faults
//! that have nothing to do with guest memory end the process as they always did.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail like tests")]
#![expect(unsafe_code)]
// UNSAFETY: the foreign faults of the second half are made on purpose; the first half is safe code.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guestmem::{GuestMemory, GuestSlice, RegionFile, RegionSpec, RingArea};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const LEN: u64 = 256 * 1024;

fn file(byte: u8) -> RegionFile {
    let fd: OwnedFd = memfd_create("guestmem-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, LEN).unwrap();
    let mut at = 0;
    while at < LEN {
        at += rustix::io::pwrite(&fd, &[byte; 4096], at).unwrap() as u64;
    }
    RegionFile::from(fd)
}

fn map(file: &RegionFile) -> GuestMemory {
    let spec = RegionSpec { guest_addr: 0x10_0000, size: LEN, user_addr: 0, mmap_offset: 0 };
    GuestMemory::map(&[(spec, file.clone())]).unwrap()
}

fn all(memory: &GuestMemory) -> GuestSlice<'_> {
    memory.slice(0x10_0000, LEN as u32).unwrap()
}

fn vanish(file: &RegionFile) {
    ftruncate(file.as_fd(), 0).unwrap();
}

#[test]
fn reading_gives_zeroes_and_a_mark() {
    // Every kind of copy: tiny, short, long.
    for len in [1, 3, 5, 12, 20, 50, 64, 100, 128, 129, 300, 1518, 65_536] {
        let file = file(0xab);
        let memory = map(&file);
        let mut out = vec![0xcd; len];
        assert_eq!(all(&memory).skip(4000).copy_to(&mut out), len);
        assert!(out.iter().all(|&b| b == 0xab) && !memory.faulted());
        vanish(&file);
        assert_eq!(all(&memory).skip(4000).copy_to(&mut out), len);
        assert!(out.iter().all(|&b| b == 0), "{len}");
        assert!(memory.faulted());
    }
}

#[test]
fn writing_goes_nowhere() {
    for len in [1, 3, 12, 64, 128, 129, 1518, 65_536] {
        let file = file(0);
        let memory = map(&file);
        vanish(&file);
        assert_eq!(all(&memory).copy_from(&vec![1; len]), len);
        assert!(memory.faulted());
        assert_eq!(rustix::fs::fstat(file.as_fd()).unwrap().st_size, 0);
    }
}

/// One guest's lie is not another's trouble, on either side of a copy.
#[test]
fn only_the_guilty_is_marked() {
    for len in [64_u32, 1518, 65_536] {
        let (file_a, file_b, file_c) = (file(1), file(2), file(3));
        let (a, b, c) = (map(&file_a), map(&file_b), map(&file_c));
        vanish(&file_b);
        let (from, to) = (a.slice(0x10_0fff, len).unwrap(), b.slice(0x10_0ff0, len).unwrap());
        assert_eq!(from.copy_to_guest(to), len as usize);
        assert!(!a.faulted() && b.faulted() && !c.faulted());
        // And now from the one whose memory is gone: what was put there is still there.
        let back = c.slice(0x10_0001, len).unwrap();
        assert_eq!(to.copy_to_guest(back), len as usize);
        let mut out = vec![9; len as usize];
        back.copy_to(&mut out);
        assert!(out.iter().all(|&byte| byte == 1));
        assert!(!a.faulted() && !c.faulted());
    }
}

#[test]
fn half_a_file() {
    let file = file(7);
    let memory = map(&file);
    ftruncate(file.as_fd(), LEN / 2).unwrap();
    let mut out = vec![1; LEN as usize];
    all(&memory).copy_to(&mut out);
    let (kept, gone) = out.split_at(LEN as usize / 2);
    assert!(kept.iter().all(|&b| b == 7) && gone.iter().all(|&b| b == 0));
    assert!(memory.faulted());
}

#[test]
fn rings_read_zero() {
    let file = file(0xff);
    let memory = Arc::new(map(&file));
    let area = |at: u64| RingArea::<16>::new(Arc::clone(&memory), 0x10_0000 + at, 4096).unwrap();
    let (read, write) = (area(0), area(8192));
    assert_eq!(read.load_desc(16), [u64::MAX; 2]);
    vanish(&file);
    assert_eq!(read.load_u16_acquire(2), 0);
    assert_eq!(read.load_desc(16), [0; 2]);
    assert!(memory.faulted());
    write.store_u16_release(2, 5);
    write.store_u64(8, 6);
    assert_eq!((write.load_u16(2), write.load_u64(8)), (5, 6));
}

/// Sessions come and go on other threads while memory vanishes on this one.
#[test]
fn while_others_map_and_unmap() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                let file = file(seed);
                while !stop.load(Ordering::Relaxed) {
                    let memory = map(&file);
                    let mut out = [0xee; 200];
                    all(&memory).skip(3000).copy_to(&mut out);
                    assert_eq!(out, [seed; 200]);
                    assert!(!memory.faulted());
                }
            });
        }
        for _ in 0..500 {
            let file = file(5);
            let memory = map(&file);
            vanish(&file);
            let mut out = [0xee; 9000];
            all(&memory).copy_to(&mut out);
            assert_eq!(out, [0; 9000]);
            assert!(memory.faulted());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Several workers can find out at once.
#[test]
fn many_threads_one_page() {
    for _ in 0..50 {
        let file = file(5);
        let memory = map(&file);
        vanish(&file);
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    let mut out = [0xee; 5000];
                    all(&memory).copy_to(&mut out);
                    assert_eq!(out, [0; 5000]);
                });
            }
        });
        assert!(memory.faulted());
    }
}

const CHILD: &str = "GUESTMEM_TEST_CHILD";

/// Runs one of the tests below in a process of its own, where it does what its name says.
fn child(name: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    command.output().unwrap()
}

/// True in the child, after a table was mapped and memory has vanished once, so that everything is
/// in place.
fn in_child() -> bool {
    if std::env::var_os(CHILD).is_none() {
        return false;
    }
    // No core files.
    rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit { current: Some(0), maximum: Some(0) },
    )
    .unwrap();
    let file = file(1);
    let memory = map(&file);
    vanish(&file);
    all(&memory).copy_from(&[1; 100]);
    assert!(memory.faulted());
    true
}

#[test]
fn child_null_pointer() {
    if in_child() {
        // SAFETY: none: it has to fault.
        unsafe { std::ptr::without_provenance_mut::<u8>(16).write_volatile(1) };
    }
}

#[test]
fn child_foreign_bus_error() {
    if in_child() {
        let foreign = file(1);
        // SAFETY: a new mapping; the access behind the end of the file has to fault.
        unsafe {
            let at = rustix::mm::mmap(
                std::ptr::null_mut(),
                LEN as usize,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::SHARED,
                foreign.as_fd(),
                0,
            )
            .unwrap();
            vanish(&foreign);
            at.cast::<u8>().read_volatile();
        }
    }
}

#[test]
fn child_unmapped_session() {
    if in_child() {
        let memory = map(&file(1));
        let mut byte = [0];
        all(&memory).copy_to(&mut byte);
        drop(memory);
        // What a dangling pointer would find: nothing is put in place of memory that was given
        // back.
        let freed = Arc::new(map(&file(2)));
        let address = format!("{:?}", all(&freed));
        let address = address.split("0x").nth(1).unwrap().split(',').next().unwrap();
        let address = usize::from_str_radix(address, 16).unwrap();
        drop(freed);
        // SAFETY: none: it has to fault.
        unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
    }
}

#[test]
fn child_sent_segv() {
    if in_child() {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
    }
}

#[test]
fn child_sent_bus() {
    if in_child() {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

#[test]
fn child_stack_overflow() {
    fn deeper(depth: u64) -> u64 {
        let here = std::hint::black_box([depth; 64]);
        if depth == u64::MAX { 0 } else { deeper(depth + 1) + here[3] }
    }
    if in_child() {
        println!("{}", deeper(0));
    }
}

/// An earlier handler of the program's own, which prints and leaves.
#[test]
fn child_own_handler() {
    extern "C" fn leave(signal: libc::c_int) {
        let text = b"own handler\n";
        // SAFETY: writes those bytes and ends the process without further ado.
        unsafe {
            libc::write(1, text.as_ptr().cast(), text.len());
            libc::_exit(40 + signal)
        };
    }
    if std::env::var_os(CHILD).is_some() {
        let handler: extern "C" fn(libc::c_int) = leave;
        // SAFETY: installs a handler that only does what a handler may do.
        unsafe { libc::signal(libc::SIGSEGV, handler as usize) };
        assert!(in_child());
        // SAFETY: none: it has to fault.
        unsafe { std::ptr::without_provenance_mut::<u8>(16).write_volatile(1) };
    }
}

#[test]
fn foreign_faults_still_kill() {
    let cases = [
        ("child_null_pointer", libc::SIGSEGV),
        ("child_foreign_bus_error", libc::SIGBUS),
        ("child_unmapped_session", libc::SIGSEGV),
        ("child_sent_segv", libc::SIGSEGV),
        ("child_sent_bus", libc::SIGBUS),
    ];
    for (name, signal) in cases {
        let output = child(name);
        assert_eq!(output.status.signal(), Some(signal), "{name}: {output:?}");
    }
}

#[test]
fn stack_overflow_is_still_told() {
    let output = child("child_stack_overflow");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("overflowed its stack"), "{output:?}");
}

#[test]
fn an_earlier_handler_is_asked() {
    let output = child("child_own_handler");
    assert_eq!(output.status.code(), Some(40 + libc::SIGSEGV), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("own handler"));
}
