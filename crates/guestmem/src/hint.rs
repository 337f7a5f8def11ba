//! Places in guest memory that are worth fetching early.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use sys::prefetch;

use crate::slice::GuestSlice;

/// A cache line that will be needed, remembered apart from the memory it is in.
///
/// It may outlive that memory, and be used by a thread that does not own it: fetching touches
/// nothing and cannot fail, whatever is or is not at the address by then.
#[derive(Debug)]
pub struct Hint(AtomicPtr<u8>);

impl Default for Hint {
    fn default() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
}

impl Hint {
    /// Remembers the line of the first byte.
    #[inline(always)]
    pub fn set(&self, place: GuestSlice<'_>) {
        self.0.store(place.ptr.as_ptr(), Relaxed);
    }

    /// Has the line fetched, to be read.
    #[inline(always)]
    pub fn fetch(&self) {
        prefetch::read(self.0.load(Relaxed));
    }
}
