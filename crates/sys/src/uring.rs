//! io_uring: operations on files that go on while the thread does.
//!
//! A [`Ring`] takes [`Job`]s, each of which owns the memory and the file of one operation, keeps
//! them until the kernel is done with it, and gives them back with the result. So memory that the
//! kernel may still write to can be neither freed nor borrowed.
//!
//! **Owner and threads.** A ring belongs to the thread that made it (`IORING_SETUP_SINGLE_ISSUER`,
//! `IORING_SETUP_DEFER_TASKRUN`): completions are worked off when that thread asks for them and
//! never interrupt it. [`Ring::ready`] says without a system call whether there are some; a thread
//! that sleeps waits for [`Ring::wake_fd`]. (The ring's own descriptor does not wake a poller before
//! completions have been worked off, which is what the sleeper would do.)
//!
//! **Files.** A job that has ended may have been carried out by a thread of the kernel, which lets go of it
//! a moment later; then the kernel keeps the file, with its locks, until the next [`Ring::submit`].
//! [`Ring::ready`] and [`Ring::wake_fd`] tell of that too.
//!
//! **Failure.** What the kernel refuses is the result of the operation. A ring that is dropped
//! cancels what it can and waits for the rest.

#![expect(unsafe_code)]
// UNSAFETY: the kernel is handed addresses that it uses after the call has returned.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::cqueue;
use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, Fd, FsyncFlags};
use io_uring::{IoUring, opcode};

use crate::EventFd;

/// `IORING_ENTER_GETEVENTS`: also work off what has completed.
const GETEVENTS: u32 = 1;

/// A piece of memory, as in `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoVec {
    /// The first byte.
    pub base: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// What an operation works on, and whatever its owner wants back with the result.
///
/// # Safety
///
/// Until the value is dropped, every piece in [`Job::pieces`] must be memory that is mapped, that
/// any thread may read and write at any moment, and to which there is no Rust reference. Neither the
/// pieces nor, if there are several, the place where they are listed may change while nobody has `&mut`
/// to the value, also if it is moved.
pub unsafe trait Job {
    /// Memory that is read or written, in order; at most 1024 pieces.
    fn pieces(&self) -> &[IoVec];

    /// The file.
    fn file(&self) -> BorrowedFd<'_>;
}

/// What is done with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the pieces from this offset on: preadv(2). The result is a number of bytes.
    Read {
        /// In bytes.
        offset: u64,
    },
    /// Write the pieces from this offset on: pwritev2(2). The result is a number of bytes.
    Write {
        /// In bytes.
        offset: u64,
        /// On stable storage when it completes: `RWF_DSYNC`.
        stable: bool,
    },
    /// fdatasync(2).
    Sync,
}

/// A ring, and the jobs it works on.
pub struct Ring<J: Job> {
    ring: IoUring,
    wake: EventFd,
    /// By the number that the kernel knows the operation by.
    jobs: Vec<Option<J>>,
    free: Vec<u32>,
    /// Pushed since the last submit.
    unsubmitted: u32,
}

impl<J: Job> Ring<J> {
    /// A ring for this thread, which takes up to `entries` jobs (a power of two) between two
    /// submits, and any number at once.
    ///
    /// # Errors
    /// What io_uring_setup(2) reports: the kernel is older than 6.1, or forbids it
    /// (`kernel.io_uring_disabled`).
    pub fn new(entries: u32) -> io::Result<Ring<J>> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(entries.saturating_mul(4))
            .build(entries)?;
        keep_threads_here(&ring);
        let wake = EventFd::new()?;
        ring.submitter().register_eventfd(wake.as_fd().as_raw_fd())?;
        Ok(Ring { ring, wake, jobs: Vec::new(), free: Vec::new(), unsubmitted: 0 })
    }

    /// Takes a job: it begins with the next [`Ring::submit`] at the latest, and at once when more wait for that than are
    /// under way: of many together the first, then two, four and so on. So a device that has nothing to do is given the first job while others are still being made, and one
    /// that is busy as many at a time as it takes to stay so.
    ///
    /// # Errors
    /// The job, if there is no room for it even after a submit.
    pub fn push(&mut self, operation: Operation, job: J) -> Result<(), J> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.jobs.push(None);
                self.jobs.len() as u32 - 1
            }
        };
        let entry = entry(operation, &job).user_data(number.into());
        // SAFETY: the entry names memory and lists of it that are valid until the job is dropped,
        // which is after the kernel has completed it, or that the ring leaks.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            let _ = self.submit();
            // SAFETY: as above.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.free.push(number);
                return Err(job);
            }
        }
        if let Some(place) = self.jobs.get_mut(number as usize) {
            *place = Some(job);
        }
        self.unsubmitted += 1;
        if 2 * self.unsubmitted as usize > self.in_flight() {
            // What cannot begin now does with the next submit.
            let _ = self.submit();
        }
        Ok(())
    }

    /// Has the kernel begin what was pushed, and work off what has completed: one system call, or
    /// none if there is neither.
    ///
    /// # Errors
    /// What io_uring_enter(2) reports; what was not begun stays to be.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.unsubmitted == 0 && !self.ring.submission().taskrun() {
            return Ok(());
        }
        self.enter(0)
    }

    fn enter(&mut self, wait: u32) -> io::Result<()> {
        // SAFETY: no argument is a pointer; entries are valid as said in `push`.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(self.unsubmitted, wait, GETEVENTS, None)
        };
        match entered {
            Ok(begun) => {
                self.unsubmitted = self.unsubmitted.saturating_sub(begun as u32);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a submit would begin something or let go of something, or [`Ring::ended`] have something
    /// after it: also when nothing is in flight. No system call.
    #[inline]
    pub fn ready(&mut self) -> bool {
        self.ring.submission().taskrun()
            || self.in_flight() > 0 && (self.unsubmitted > 0 || !self.ring.completion().is_empty())
    }

    /// The next job that has ended, and its result.
    pub fn ended(&mut self) -> Option<(J, io::Result<u32>)> {
        let done: cqueue::Entry = self.ring.completion().next()?;
        let number = done.user_data() as u32;
        let job = self.jobs.get_mut(number as usize)?.take()?;
        self.free.push(number);
        let result = match u32::try_from(done.result()) {
            Ok(result) => Ok(result),
            Err(_) => Err(io::Error::from_raw_os_error(done.result().wrapping_neg())),
        };
        Some((job, result))
    }

    /// Signalled when there is something to work off after there was nothing.
    #[must_use]
    pub fn wake_fd(&self) -> &EventFd {
        &self.wake
    }

    /// Jobs that have not been given back.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.jobs.len() - self.free.len()
    }
}

impl<J: Job> Drop for Ring<J> {
    fn drop(&mut self) {
        // What was never begun is begun here and cancelled; what cannot be is waited for.
        let mut patience = 3;
        while self.in_flight() > 0 && patience > 0 {
            while self.ended().is_some() {}
            if self.in_flight() == 0 {
                break;
            }
            let _ = self.submit();
            let _ = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
            if self.enter(1).is_err() {
                patience -= 1;
            }
        }
        // Memory the kernel may still use is never given back.
        self.jobs.drain(..).for_each(std::mem::forget);
    }
}

/// Has threads that the kernel makes for the ring run where this thread may: elsewhere they would
/// wait for whoever polls there. A kernel that refuses lets them run anywhere.
fn keep_threads_here(ring: &IoUring) {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as long as is said; 0 is the calling thread.
    let known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if known == 0 {
        let _ = ring.submitter().register_iowq_aff(&set);
    }
}

fn entry<J: Job>(operation: Operation, job: &J) -> Entry {
    let file = Fd(job.file().as_raw_fd());
    let pieces = job.pieces();
    let list = pieces.as_ptr().cast::<libc::iovec>();
    // One piece needs no list, which might be moved with the job. The kernel moves less than 2 GiB at once anyway.
    let one = match pieces {
        [piece] => Some((piece.base, u32::try_from(piece.len).unwrap_or(u32::MAX))),
        _ => None,
    };
    let count = pieces.len() as u32;
    match (operation, one) {
        (Operation::Read { offset }, Some((base, len))) => {
            opcode::Read::new(file, base, len).offset(offset).build()
        }
        (Operation::Read { offset }, None) => {
            opcode::Readv::new(file, list, count).offset(offset).build()
        }
        (Operation::Write { offset, stable }, Some((base, len))) => {
            opcode::Write::new(file, base, len).offset(offset).rw_flags(flags(stable)).build()
        }
        (Operation::Write { offset, stable }, None) => {
            opcode::Writev::new(file, list, count).offset(offset).rw_flags(flags(stable)).build()
        }
        (Operation::Sync, _) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
    }
}

fn flags(stable: bool) -> i32 {
    if stable { libc::RWF_DSYNC } else { 0 }
}

#[cfg(test)]
mod tests;
