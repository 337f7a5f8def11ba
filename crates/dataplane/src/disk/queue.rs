//! A virtqueue of a disk on its worker.

use std::fmt;
use std::sync::Arc;

use disk::Status;
use guestmem::GuestMemory;
use sys::EventFd;
use tokio::sync::oneshot;
use virtqueue::TrackedQueue;

use super::request::{Job, Request};

/// A running virtqueue of a disk.
pub(crate) struct LiveQueue {
    pub(crate) queue: TrackedQueue,
    pub(crate) mem: Arc<GuestMemory>,
    /// That of the region of requests in flight.
    pub(crate) region: Option<Arc<GuestMemory>>,
    pub(crate) kick: Option<Arc<EventFd>>,
    pub(crate) call: Option<Arc<EventFd>>,
    pub(crate) enabled: bool,
    /// The guest was asked to kick.
    pub(crate) armed: bool,
    /// The ring lied; it is not looked at any more.
    pub(super) faulted: bool,
    /// Popped, and not ended.
    pub(super) in_flight: usize,
    /// Waits until this time for the disk's limits; nothing is popped before.
    pub(super) held: Option<(u64, Job)>,
    /// Ended since it was last decided whether to interrupt the guest.
    pub(super) untold: usize,
    /// Who waits for it to be quiet.
    pub(super) stopping: Option<oneshot::Sender<u32>>,
}

impl LiveQueue {
    /// A queue that has just been made, with kicks asked for.
    pub(crate) fn new(
        queue: TrackedQueue,
        mem: Arc<GuestMemory>,
        region: Option<Arc<GuestMemory>>,
        kick: Option<Arc<EventFd>>,
        call: Option<Arc<EventFd>>,
        enabled: bool,
    ) -> LiveQueue {
        LiveQueue {
            queue,
            mem,
            region,
            kick,
            call,
            enabled,
            armed: true,
            faulted: false,
            in_flight: 0,
            held: None,
            untold: 0,
            stopping: None,
        }
    }

    /// Whether a pop would find something that may be taken.
    pub(super) fn ready(&self) -> bool {
        self.enabled
            && !self.faulted
            && self.held.is_none()
            && self.stopping.is_none()
            && (self.queue.has_available() || self.vanished())
    }

    pub(super) fn vanished(&self) -> bool {
        self.mem.faulted() || self.region.as_ref().is_some_and(|region| region.faulted())
    }

    /// Asks the guest to kick. Returns whether requests are waiting already.
    pub(super) fn arm(&mut self) -> bool {
        if self.faulted || self.stopping.is_some() {
            return false;
        }
        if !self.armed {
            self.armed = true;
            return self.queue.queue().enable_kicks() && self.ready();
        }
        self.ready()
    }

    pub(super) fn disarm(&mut self) {
        if self.armed && !self.faulted {
            self.armed = false;
            self.queue.queue().disable_kicks();
        }
    }

    pub(super) fn complete(&mut self, request: Request, status: Status) {
        let len = request.completion.finish(&self.mem, status);
        self.queue.complete(request.ticket, len);
        self.in_flight = self.in_flight.saturating_sub(1);
        self.untold += 1;
    }
}

impl fmt::Debug for LiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveQueue").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}
