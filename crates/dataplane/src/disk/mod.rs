//! Disks: virtio-blk devices of VMs, over vhost-user, served from images.
//!
//! ```text
//! guest's virtqueues --> LiveDisk, owned by one worker --> file, by io_uring or at once
//!                                                     `--> Image, by threads that may wait
//! ```
//!
//! The vhost-user session runs on the control runtime ([`config`]); it starts and stops queues by
//! commands to the worker. What a request means is the `disk` crate's; how it is carried out is
//! here: [`live`] on the worker, [`slow`] on other threads.
//!
//! **What is stable when.** A flush covers every write whose completion the guest saw before. In
//! writethrough mode a write is stable before it ends.
//!
//! **After a crash** the requests in flight are carried out again, from the region that the front
//! end keeps; those that the guest has seen end are not among them.

pub(crate) mod config;
mod file;
mod image;
pub(crate) mod live;
pub(crate) mod queue;
pub(crate) mod request;
mod slow;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use disk::config::{Config, Rules};
use disk::counters::{Counters, Kind};
use disk::qos::Limiter;
use parking_lot::Mutex;
use sys::EventFd;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::counters::Counter;
use crate::port::vhost::Info;
pub use image::{DiskImage, Extent, Image};
use live::LiveDisk;
use queue::LiveQueue;
use request::Job;

/// Most virtqueues of a disk.
pub(crate) const MAX_QUEUES: u16 = 64;
/// Errors of an image are logged at most so often, in nanoseconds.
const LOG_EVERY: u64 = 1_000_000_000;

/// A disk of a data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(pub(crate) u16);

/// What control asks of the worker that serves a disk.
#[derive(Debug)]
pub(crate) enum DiskCommand {
    /// Serve it.
    Add(Box<LiveDisk>),
    /// No longer serve it; its queues have stopped.
    Remove(oneshot::Sender<()>),
    /// Serve a queue of it.
    Start(u16, Box<LiveQueue>),
    /// Stop a queue, and tell its position once nothing of it is in flight.
    Stop(u16, oneshot::Sender<u32>),
    /// Interrupt the guest by this descriptor from now on.
    SetCall(u16, Option<Arc<EventFd>>),
    /// SET_VRING_ENABLE.
    SetEnabled(u16, bool),
    /// Judge requests by these rules from now on.
    SetRules(Rules),
    /// Keep to these limits from now on.
    SetLimits(Option<Limiter>),
    /// Begin nothing more, and say when the image is not used any more.
    Pause(oneshot::Sender<()>),
    /// Go on, with this image.
    Resume(DiskImage),
    /// Another thread has done a step of a request.
    Slow(Box<Job>, io::Result<u64>),
}

/// Counters of one queue of a disk. The worker writes them.
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    pub(crate) operations: Counters,
    pub(crate) kicks: Counter,
    pub(crate) interrupts: Counter,
    /// Requests popped and not given back, after the last pass.
    pub(crate) in_flight: Counter,
    /// Requests copied because a file wanted another alignment.
    pub(crate) bounced: Counter,
}

/// What control and the worker both know of a disk.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) id: DiskId,
    pub(crate) name: String,
    /// What the guest is told as the disk's name.
    pub(crate) id_bytes: [u8; disk::request::ID_BYTES],
    pub(crate) worker: u16,
    /// One for each queue it may have.
    pub(crate) counters: Box<[QueueCounters]>,
    /// How it looks, and what its guest negotiated.
    pub(crate) config: Mutex<Config>,
    /// Notified when that changes, other than by its guest.
    pub(crate) changed: Arc<Notify>,
    pub(crate) info: Mutex<Info>,
    /// What the image reported last.
    pub(crate) last_error: Mutex<Option<String>>,
    logged: AtomicU64,
    /// Where the worker reports a ring that lied or memory that vanished.
    faults: mpsc::UnboundedSender<(u16, String)>,
}

impl Disk {
    /// Has the session ended because a ring of it lied, or because the ring was in memory that
    /// vanished, whose zeroes then looked like a lie.
    #[cold]
    fn fault(&self, queue: u16, vanished: bool, reason: String) {
        let reason = match vanished {
            true => "memory-vanished: guest memory was truncated under the running session".into(),
            false => reason,
        };
        // Nobody listens only while the disk is being removed.
        let _ = self.faults.send((queue, reason));
    }

    /// Notes that the image could not carry out an operation.
    #[cold]
    fn failed(&self, kind: Kind, error: &io::Error, now: u64) {
        let text = format!("{}: {error}", kind.name());
        let before = self.logged.load(Relaxed);
        if before == 0 || now.saturating_sub(before) >= LOG_EVERY {
            self.logged.store(now.max(1), Relaxed);
            tracing::error!(disk = %self.name, operation = kind.name(), %error, "an operation failed");
        }
        *self.last_error.lock() = Some(text);
    }
}
