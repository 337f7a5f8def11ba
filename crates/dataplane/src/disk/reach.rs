//! A guest's memory, as a store reaches it over a fabric.

use std::sync::Arc;

use fabric::{Fabric, Registration, Remote, Rights};
use guestmem::{GuestMemory, Segments};
use parking_lot::Mutex;
use remote::{Buffer, Buffers};

/// Guest memories that are remembered: a front end that changes its memory has one or two.
const MEMORIES: usize = 4;

/// A guest's memory, registered for the store of its disk: by control when it comes, so that no worker
/// waits for it.
#[derive(Debug)]
pub(crate) struct Reach {
    known: Mutex<Known>,
    /// Without that the store is reached as well.
    optional: bool,
}

#[derive(Debug, Default)]
struct Known {
    fabric: Option<Fabric>,
    /// The fabric did not take memory of this guest.
    refused: bool,
    memories: Vec<Arc<GuestMemory>>,
    registered: Vec<Registration>,
}

impl Known {
    fn registration(&mut self, memory: &Arc<GuestMemory>) -> Result<Registration, fabric::Error> {
        let fabric = self.fabric.as_ref().ok_or(fabric::Error::Ended)?;
        let of = |one: &&Registration| Arc::ptr_eq(one.memory(), memory);
        if let Some(there) = self.registered.iter().find(of) {
            return Ok(there.clone());
        }
        let registered = fabric.register(memory, Rights::RemoteReadWrite);
        self.refused |= registered.is_err();
        let registration = registered?;
        if self.registered.len() >= MEMORIES {
            self.registered.remove(0);
        }
        self.registered.push(registration.clone());
        Ok(registration)
    }
}

impl Reach {
    /// `optional`: the disk goes on by TCP if memory is refused.
    pub(crate) fn new(optional: bool) -> Reach {
        Reach { known: Mutex::default(), optional }
    }

    /// Whether the disk has to go on without a fabric.
    pub(crate) fn gave_up(&self) -> bool {
        self.optional && self.known.lock().refused
    }

    /// A front end has brought this memory.
    pub(crate) fn add(&self, memory: &Arc<GuestMemory>) -> Result<(), fabric::Error> {
        let mut known = self.known.lock();
        if !known.memories.iter().any(|one| Arc::ptr_eq(one, memory)) {
            if known.memories.len() >= MEMORIES {
                known.memories.remove(0);
            }
            known.memories.push(Arc::clone(memory));
        }
        if known.fabric.is_some() { known.registration(memory).map(|_| ()) } else { Ok(()) }
    }

    /// The front end is gone. Whether memory of it was registered.
    pub(crate) fn clear(&self) -> bool {
        let mut known = self.known.lock();
        known.memories.clear();
        // The next one's may be taken.
        known.refused = false;
        let registered = std::mem::take(&mut known.registered);
        !registered.is_empty()
    }

    /// From now on the store is reached by this fabric; none: by none.
    pub(crate) fn set(&self, fabric: Option<&Fabric>) -> Result<(), fabric::Error> {
        let mut known = self.known.lock();
        (known.registered, known.fabric) = (Vec::new(), fabric.cloned());
        if fabric.is_some() {
            for memory in known.memories.clone() {
                known.registration(&memory)?;
            }
        }
        Ok(())
    }

    /// By what a store reaches these segments, as long as the registration is kept.
    pub(crate) fn of(&self, segments: &Segments) -> Option<(Registration, Buffers)> {
        let registration = self.known.lock().registration(segments.memory()).ok()?;
        let one = |Remote { address, key, length }| Buffer { address, key, length };
        let buffers = registration.remote(segments)?.into_iter().map(one).collect();
        Some((registration, buffers))
    }
}
