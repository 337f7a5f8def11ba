use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::ofd;

/// Memory of its own, never borrowed while it is a job.
struct Owned {
    file: Arc<File>,
    pieces: Vec<IoVec>,
    name: u32,
}

impl Owned {
    fn new(file: &Arc<File>, pieces: &[usize], fill: u8, name: u32) -> Owned {
        let make = |len: &usize| {
            let memory = vec![fill; *len].into_boxed_slice();
            IoVec { base: Box::into_raw(memory).cast::<u8>(), len: *len }
        };
        Owned { file: Arc::clone(file), pieces: pieces.iter().map(make).collect(), name }
    }

    fn bytes(&self) -> Vec<u8> {
        let of = |piece: &IoVec| {
            // SAFETY: the kernel is done with it, and it is `len` bytes long.
            unsafe { std::slice::from_raw_parts(piece.base, piece.len) }
        };
        self.pieces.iter().flat_map(of).copied().collect()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        for piece in &self.pieces {
            let memory = std::ptr::slice_from_raw_parts_mut(piece.base, piece.len);
            // SAFETY: made by Box::into_raw, dropped once.
            drop(unsafe { Box::from_raw(memory) });
        }
    }
}

// SAFETY: the memory is this value's own, and listed on the heap.
unsafe impl Job for Owned {
    fn pieces(&self) -> &[IoVec] {
        &self.pieces
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn wait(ring: &mut Ring<Owned>) -> (Owned, io::Result<u32>) {
    ring.submit().unwrap();
    loop {
        if let Some(done) = ring.ended() {
            return done;
        }
        ring.enter(1).unwrap();
    }
}

fn file(bytes: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}

#[test]
fn reads_fill_the_pieces_in_order() {
    let content: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
    let file = file(&content);
    let mut ring = Ring::new(8).unwrap();
    for pieces in [&[512][..], &[100, 1, 411], &[1; 1000]] {
        let len = pieces.iter().sum::<usize>();
        assert!(ring.push(Operation::Read { offset: 77 }, Owned::new(&file, pieces, 0, 1)).is_ok());
        let (job, result) = wait(&mut ring);
        assert_eq!(result.unwrap() as usize, len);
        assert_eq!(job.bytes(), content[77..77 + len]);
    }
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn a_job_begins_at_once_when_nothing_is_under_way() {
    let file = file(&[5; 4096]);
    let mut ring = Ring::new(8).unwrap();
    assert!(ring.push(Operation::Read { offset: 0 }, Owned::new(&file, &[512], 0, 1)).is_ok());
    // The kernel has the bytes in memory: begun is ended.
    let (job, result) = ring.ended().unwrap();
    assert_eq!((result.unwrap(), job.bytes()), (512, vec![5; 512]));
}

#[test]
fn never_do_more_jobs_wait_than_are_under_way() {
    let file = file(&[5; 4096]);
    let mut ring = Ring::new(64).unwrap();
    for pushed in 1..=200 {
        assert!(ring.push(Operation::Read { offset: 0 }, Owned::new(&file, &[64], 0, 1)).is_ok());
        assert_eq!(ring.in_flight(), pushed);
        assert!(ring.unsubmitted as usize <= pushed / 2, "{} of {pushed}", ring.unsubmitted);
    }
    assert!(ring.unsubmitted > 0, "a system call for each");
}

#[test]
fn writes_reach_the_file_stable_or_not() {
    let mut file = file(&[0; 4096]);
    let mut ring = Ring::new(8).unwrap();
    for (stable, fill) in [(false, 7), (true, 9)] {
        let job = Owned::new(&file, &[10, 20], fill, 0);
        assert!(ring.push(Operation::Write { offset: 5, stable }, job).is_ok());
        assert_eq!(wait(&mut ring).1.unwrap(), 30);
        let mut back = Vec::new();
        let file = Arc::get_mut(&mut file).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut back).unwrap();
        assert_eq!(back[..36], [vec![0; 5], vec![fill; 30], vec![0]].concat());
    }
}

#[test]
fn a_file_is_made_stable() {
    let file = file(&[3; 8192]);
    let mut ring = Ring::new(8).unwrap();
    assert!(ring.push(Operation::Sync, Owned::new(&file, &[], 0, 0)).is_ok());
    assert_eq!(wait(&mut ring).1.unwrap(), 0);
}

#[test]
fn errors_are_the_results_of_their_operations() {
    let read_only = Arc::new(File::open("/proc/self/cmdline").unwrap());
    let mut ring = Ring::new(8).unwrap();
    let write = Operation::Write { offset: 0, stable: false };
    assert!(ring.push(write, Owned::new(&read_only, &[512], 0, 5)).is_ok());
    let (job, result) = wait(&mut ring);
    assert_eq!(job.name, 5);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn more_jobs_than_entries_are_taken_and_all_come_back() {
    let file = file(&[1; 1 << 16]);
    let mut ring = Ring::new(4).unwrap();
    for name in 0..500 {
        let offset = u64::from(name) * 64;
        assert!(ring.push(Operation::Read { offset }, Owned::new(&file, &[64], 0, name)).is_ok());
    }
    assert_eq!(ring.in_flight(), 500);
    let mut names: Vec<u32> = (0..500)
        .map(|_| {
            let (job, result) = wait(&mut ring);
            assert_eq!((result.unwrap(), job.bytes()), (64, vec![1; 64]));
            job.name
        })
        .collect();
    names.sort_unstable();
    assert_eq!(names, (0..500).collect::<Vec<_>>());
    assert!(!ring.ready());
}

#[test]
fn a_ring_that_is_dropped_lets_go_of_what_never_ends() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let reader = Arc::new(File::from(reader));
    let mut ring = Ring::new(8).unwrap();
    // Nothing is ever written to the pipe.
    let read = Operation::Read { offset: u64::MAX };
    assert!(ring.push(read, Owned::new(&reader, &[16], 0, 0)).is_ok());
    assert!(ring.ended().is_none());
    drop(ring);
    assert_eq!(Arc::strong_count(&reader), 1, "its job was given back, not leaked");
    drop(writer);
}

#[test]
fn a_sleeper_is_told_by_the_descriptor() {
    use rustix::event::epoll;
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let reader = Arc::new(File::from(reader));
    let mut ring = Ring::new(8).unwrap();
    let read = Operation::Read { offset: u64::MAX };
    assert!(ring.push(read, Owned::new(&reader, &[4], 0, 0)).is_ok());
    assert!(!ring.ready(), "it has begun, and not ended");
    // While it waits, most likely: that must wake it, and so must what came before.
    let waker = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        rustix::io::write(&writer, b"data").unwrap();
    });
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, ring.wake_fd(), epoll::EventData::new_u64(1), flags).unwrap();
    let mut events = [epoll::Event { flags, data: epoll::EventData::new_u64(0) }; 4];
    assert_eq!(epoll::wait(&epoll, &mut events[..], None).unwrap(), 1);
    waker.join().unwrap();
    assert!(ring.ready());
    assert_eq!(wait(&mut ring).0.bytes(), b"data");
}

#[test]
fn a_file_is_let_go_of_though_nothing_is_under_way_any_more() {
    let place = tempfile::NamedTempFile::new().unwrap();
    let open = || File::options().read(true).write(true).open(place.path()).unwrap();
    let locks = |file: &File| ofd::try_lock(file, ofd::Kind::Exclusive, ofd::Range::ALL).unwrap();
    let mut ring = Ring::new(8).unwrap();
    for turn in 0..2000 {
        let file = Arc::new(open());
        assert!(locks(&file));
        assert!(ring.push(Operation::Sync, Owned::new(&file, &[], 0, turn)).is_ok());
        drop(file);
        // As soon as a thread of the kernel says that it has ended, which may have it for a moment longer.
        let (job, result) = loop {
            if ring.ready() {
                ring.submit().unwrap();
            }
            if let Some(ended) = ring.ended() {
                break ended;
            }
        };
        assert_eq!((job.name, result.unwrap()), (turn, 0));
        drop(job);
        let (other, mut looks) = (open(), 0);
        while !locks(&other) {
            looks += 1;
            assert!(looks < 5000, "the kernel has the file of turn {turn} still");
            // As a worker does, which sleeps until it is woken up.
            let mut woken = [PollFd::new(ring.wake_fd(), PollFlags::IN)];
            poll(&mut woken, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).unwrap();
            ring.wake_fd().drain();
            if ring.ready() {
                ring.submit().unwrap();
            }
        }
    }
}
