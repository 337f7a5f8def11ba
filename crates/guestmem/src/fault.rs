//! What happens when guest memory vanishes under an access.
//!
//! A front end can shorten the file behind a guest's memory at any time; huge pages and memory
//! limits can run out; a memory module can fail. The access that finds out gets SIGBUS (or SIGSEGV,
//! in a hole of a reservation). The handler here marks the reservation, maps zero pages over the
//! page in question and returns, and the access is repeated and succeeds. Copies therefore cost
//! nothing for being safe: no recovery table, no check per copy, and the one copy routine serves
//! all.
//!
//! **Threads.** The handler runs on whatever thread faulted, in the middle of anything, so it only
//! loads atomics, stores one and makes system calls. It reads a fixed table of reservations that
//! others change meanwhile; each entry has a sequence number (odd while it changes), and an entry
//! caught changing is passed over. That is never the entry the fault is about: whoever is using a
//! reservation holds a `GuestMemory`, so it was entered before and is removed after.
//!
//! **Failure.** A fault at any other address is handed to the handler that was installed before
//! (Rust's own, which tells stack overflows), or ends the process as if there were no handler.

#![expect(unsafe_code)]
// UNSAFETY: signal handling and mapping pages in a handler are system calls without a safe form.

use std::ffi::c_void;
use std::mem::{transmute, zeroed};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::region::{BASE_PAGE, MapError};

/// Most reservations at a time. A session has one, and two for a moment when its table changes; an image
/// in memory has one.
const SLOTS: usize = 8192;

/// One reservation, or none when `end` is 0.
struct Slot {
    /// Odd while `start` and `end` change.
    sequence: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    faulted: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        sequence: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        faulted: AtomicBool::new(false),
    }
}; SLOTS];

/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Held by those who change the table; the handler never takes it.
static WRITERS: Mutex<()> = Mutex::new(());

impl Slot {
    /// Changes the range. Only under `WRITERS`.
    fn set(&self, start: usize, end: usize) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// The range, unless it is changing right now.
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.sequence.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(range)
    }
}

/// An entry of the table, removed when dropped.
pub(crate) struct Registration(&'static Slot);

impl Registration {
    /// Enters the reservation of `len` bytes at `start`.
    pub(crate) fn new(start: usize, len: usize) -> Result<Registration, MapError> {
        let _writer = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = TABLE.iter().position(|slot| slot.end.load(Ordering::Relaxed) == 0);
        let Some((index, slot)) = free.and_then(|index| Some((index, TABLE.get(index)?))) else {
            return Err(MapError::TooManyTables { limit: SLOTS });
        };
        slot.faulted.store(false, Ordering::Relaxed);
        slot.set(start, start + len);
        USED.fetch_max(index + 1, Ordering::Release);
        Ok(Registration(slot))
    }

    /// Whether the handler had to act on it.
    #[inline(always)]
    pub(crate) fn faulted(&self) -> bool {
        self.0.faulted.load(Ordering::Relaxed)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _writer = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.set(0, 0);
    }
}

/// The default action and an empty mask.
// SAFETY: an all-zero sigaction is valid, and is just that.
const NO_ACTION: libc::sigaction = unsafe { zeroed() };

static PREVIOUS_BUS: OnceLock<libc::sigaction> = OnceLock::new();
static PREVIOUS_SEGV: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler for SIGBUS and SIGSEGV, once per process;
/// [`GuestMemory::map`](crate::GuestMemory::map) does it.
///
/// Call it early if another part of the program installs handlers for these signals too: the last
/// one installed is asked first, and this one passes on what is not about guest memory. Threads
/// that touch guest memory must not block the two signals.
pub fn install_fault_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (signal, previous) in [(libc::SIGBUS, &PREVIOUS_BUS), (libc::SIGSEGV, &PREVIOUS_SEGV)] {
            let mut old = NO_ACTION;
            // SAFETY: asks for the present action only. With these arguments it cannot fail.
            unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut old) };
            // Known before the new handler can run.
            let _ = previous.set(old);
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
            let new = libc::sigaction {
                sa_sigaction: handler as usize,
                // On the alternate stack, where Rust's handler needs to be to report a stack
                // overflow. Not SA_NODEFER: a fault inside the handler is a mistake that should end
                // the process, not recurse.
                sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK,
                ..NO_ACTION
            };
            // SAFETY: on_fault has the signature SA_SIGINFO asks for and only does what a handler
            // may do.
            unsafe { libc::sigaction(signal, &raw const new, std::ptr::null_mut()) };
        }
    });
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let code = unsafe { (*info).si_code };
    // Codes above zero are the kernel's own faults, where the address is one; others were sent by a
    // process.
    if code > 0 {
        // SAFETY: as above.
        let addr = unsafe { (*info).si_addr() }.addr();
        if recover(addr) {
            return;
        }
    }
    pass_on(signal, code, info, context);
}

/// Puts zero pages at `addr` if it is in a reservation.
fn recover(addr: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    for slot in TABLE.iter().take(used) {
        let Some((start, end)) = slot.range() else { continue };
        if (start..end).contains(&addr) {
            // Before: whoever meets the zeroes finds the mark.
            slot.faulted.store(true, Ordering::SeqCst);
            return put_zero_pages(addr, start, end);
        }
    }
    false
}

/// Maps zeroes over the page of `addr`, within `start..end`.
///
/// The kernel refuses to replace part of a huge page (EINVAL, and nothing has changed), so ever
/// larger pieces are tried.
fn put_zero_pages(addr: usize, start: usize, end: usize) -> bool {
    // The largest page any Linux has.
    const LARGEST: usize = 16 << 30;
    // SAFETY: the address of this thread's errno, which the code that was interrupted may be about
    // to read.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let mut page = BASE_PAGE as usize;
    let mut done = false;
    while !done && page <= LARGEST {
        let at = addr & !(page - 1);
        if at < start || end - at < page {
            break;
        }
        // SAFETY: at..at + page is inside a reservation of ours whose user is the code that was
        // interrupted.
        let result = unsafe {
            libc::mmap(
                std::ptr::with_exposed_provenance_mut(at),
                page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        done = result != libc::MAP_FAILED;
        page <<= 1;
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
    done
}

/// Does what would have happened without this handler.
fn pass_on(
    signal: libc::c_int,
    code: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let previous = if signal == libc::SIGBUS { PREVIOUS_BUS.get() } else { PREVIOUS_SEGV.get() };
    match previous.map(|action| (action.sa_sigaction, action.sa_flags & libc::SA_SIGINFO != 0)) {
        // Ignoring works for a signal that was sent, not for a fault.
        Some((libc::SIG_IGN, _)) if code <= 0 => return,
        None | Some((libc::SIG_DFL | libc::SIG_IGN, _)) => {
            let default = NO_ACTION;
            // SAFETY: sets the default action. Returning repeats the access, and that ends the
            // process.
            unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
        }
        Some((handler, true)) => {
            // SAFETY: installed as a handler of this signature.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { transmute(handler) };
            handler(signal, info, context);
        }
        Some((handler, false)) => {
            // SAFETY: installed as a handler of this signature.
            let handler: extern "C" fn(libc::c_int) = unsafe { transmute(handler) };
            handler(signal);
        }
    }
    // A handler that goes back to the default action (as Rust's does) relies on the fault to happen
    // again. A signal that was sent does not; without this it would be lost, and this handler with
    // it.
    let mut now = NO_ACTION;
    // SAFETY: asks for the present action, and sends a signal to this thread.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), &raw mut now);
        if code <= 0 && now.sa_sigaction == libc::SIG_DFL {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests;
