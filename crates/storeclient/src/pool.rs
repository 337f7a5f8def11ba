//! Memory of an open image, through which the data of its requests goes: the socket's, or that which a
//! store reaches.
//!
//! **THE rule of fresh memory.** What a store was shown over a connection that has ended is never used
//! again, as nobody knows when it stops reaching there: there is other memory from that moment on
//! ([`Pool::renew`]), and data that is to be sent again is copied ([`Slot::fresh`]).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guestmem::{GuestMemory, Segments};
use parking_lot::{Condvar, Mutex};
use remote::MAX_DATA;

use crate::Error;

/// Bytes of a slot: those of a request.
const SLOT: u32 = MAX_DATA;
/// How many there are. Requests move 4 MiB at once as stores are; small ones may be as many as these.
const SLOTS: u32 = 32;

/// The memory, and what of it is free.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    memory: Arc<GuestMemory>,
    /// The last one freed is the next one taken: it is warm, and memory that nobody needs is never touched.
    free: Vec<u32>,
}

/// Memory for the data of one request, given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    pool: Arc<Pool>,
    index: u32,
    memory: Mutex<Arc<GuestMemory>>,
}

/// Memory that others can map.
pub(crate) struct Shown {
    pub(crate) file: OwnedFd,
    pub(crate) memory: Arc<GuestMemory>,
}

fn fresh() -> Result<Shown, Error> {
    let made = line::memory("hayate-image", u64::from(SLOT) * u64::from(SLOTS));
    let (file, memory) = made.map_err(Error::System)?;
    Ok(Shown { file, memory })
}

impl Pool {
    pub(crate) fn new() -> Result<Pool, Error> {
        let free = (0..SLOTS).rev().collect();
        let state = Mutex::new(State { memory: fresh()?.memory, free });
        Ok(Pool { state, freed: Condvar::new() })
    }

    /// Takes a slot. `wait`: until there is one. Who waits must have none that it still has to look at.
    pub(crate) fn take(self: &Arc<Pool>, wait: bool) -> Option<Slot> {
        let mut state = self.state.lock();
        loop {
            if let Some(index) = state.free.pop() {
                let memory = Mutex::new(Arc::clone(&state.memory));
                return Some(Slot { pool: Arc::clone(self), index, memory });
            }
            if !wait {
                return None;
            }
            self.freed.wait(&mut state);
        }
    }

    /// Other memory from now on.
    pub(crate) fn renew(&self) -> Result<Shown, Error> {
        let shown = fresh()?;
        self.state.lock().memory = Arc::clone(&shown.memory);
        Ok(shown)
    }
}

impl Slot {
    /// The first bytes of it, to be kept as long as somebody uses them.
    pub(crate) fn segments(&self, length: u64) -> Segments {
        segments(&self.memory.lock(), self.index).first(length)
    }

    /// The same, in memory that no connection but this one was shown; with what is in them, if it is `data`.
    pub(crate) fn fresh(&self, length: u64, data: bool) -> Segments {
        let current = Arc::clone(&self.pool.state.lock().memory);
        let mut memory = self.memory.lock();
        if !Arc::ptr_eq(&memory, &current) {
            if data {
                let mut bytes = vec![0; length as usize];
                segments(&memory, self.index).copy_to(&mut bytes);
                segments(&current, self.index).copy_from(&bytes);
            }
            *memory = current;
        }
        segments(&memory, self.index).first(length)
    }
}

/// All of a slot.
fn segments(memory: &Arc<GuestMemory>, index: u32) -> Segments {
    let slice = memory.slice(u64::from(index) * u64::from(SLOT), SLOT);
    // All slots are in it.
    Segments::of(memory, slice.into_iter()).unwrap_or_else(|| Segments::new(memory))
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.state.lock().free.push(self.index);
        self.pool.freed.notify_one();
    }
}

impl AsFd for Shown {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_moves_to_fresh_memory_and_what_was_shown_is_left() {
        let pool = Arc::new(Pool::new().unwrap());
        let slot = pool.take(false).unwrap();
        let old = slot.segments(5);
        old.copy_from(b"hello");
        pool.renew().unwrap();
        let new = slot.fresh(5, true);
        old.copy_from(b"other");
        let mut bytes = [0; 5];
        new.copy_to(&mut bytes);
        assert_eq!(&bytes, b"hello");
        slot.segments(5).copy_to(&mut bytes);
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    fn who_waits_gets_what_is_given_back() {
        let pool = Arc::new(Pool::new().unwrap());
        let mut all: Vec<Slot> = std::iter::from_fn(|| pool.take(false)).collect();
        assert_eq!(all.len(), SLOTS as usize);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pool.take(true).unwrap().index);
            let last = all.pop().unwrap();
            let index = last.index;
            drop(last);
            assert_eq!(waits.join().unwrap(), index);
        });
        drop(all);
        let again: Vec<Slot> = std::iter::from_fn(|| pool.take(false)).collect();
        assert_eq!(again.len(), SLOTS as usize);
    }
}
