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
pub(crate) mod connection;
mod file;
pub(crate) mod image;
pub(crate) mod link;
pub(crate) mod live;
mod mapped;
mod pool;
pub(crate) mod queue;
pub(crate) mod reach;
pub(crate) mod request;
mod ring;
mod slow;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use disk::SECTOR;
use disk::config::{Config, Rules, SpecError};
use disk::counters::{Counters, Kind};
use disk::qos::Limiter;
use parking_lot::Mutex;
use remote::control::Transport;
use sys::EventFd;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::counters::Counter;
use crate::homes::Workers;
use crate::session::Info;
use crate::status::{DiskStatus, StoreStatus};
use crate::worker::Command;
pub use image::{DiskImage, Extent, Image, StoreTarget};
use link::Connected;
use live::LiveDisk;
use queue::LiveQueue;
use reach::Reach;
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
    /// Judge requests by these rules from now on, and then say so.
    SetRules(Rules, Told),
    /// Keep to these limits from now on.
    SetLimits(Option<Limiter>),
    /// Begin nothing more, and say when the image is not used any more.
    Pause(oneshot::Sender<()>),
    /// Go on, with this image.
    Resume(DiskImage),
    /// Go on with this connection to its store.
    Connected(Box<Connected>),
    /// See whether the store is still there.
    CheckLink,
    /// The guest is gone, and its memory is to be no longer reached.
    LeaveMemory,
    /// The store was away for too long: what waits for it has failed, and what comes too, until
    /// there is a connection.
    FailLink,
    /// Another thread has done a step of a request.
    Slow(Box<Job>, io::Result<u64>),
}

/// Who is told that requests are judged by new rules, once they are.
#[derive(Debug)]
pub(crate) enum Told {
    Nobody,
    /// Who looks at the disk's configuration again, and acts on it.
    Guest,
    /// Who waits for it.
    Asker(oneshot::Sender<()>),
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
    /// Of a disk whose image is in a store.
    pub(crate) store: Mutex<Option<StoreStatus>>,
    /// What the store said of it last, while its guest is served there.
    pub(crate) report: Mutex<Option<Box<DiskStatus>>>,
    /// Its guest's memory, for a store that reaches it.
    pub(crate) reach: Reach,
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

    /// Posts a command to the worker that serves the disk.
    pub(crate) fn command(&self, workers: &Workers, command: DiskCommand) {
        workers.post(self.worker, Command::Disk(self.id, command));
    }

    /// Tells whoever judges the guest's requests, and then the guest, that the image has so many bytes by now.
    pub(crate) fn resize(&self, workers: &Workers, size: u64) -> Result<(), SpecError> {
        // Locked until the worker's mailbox has them: rules must arrive in the order they were made.
        let mut config = self.config.lock();
        if config.resize(size / SECTOR)? {
            self.command(workers, DiskCommand::SetRules(config.rules(), Told::Guest));
        }
        Ok(())
    }

    /// Notes that a store has been reached at an address, and how bytes come and go, or why not.
    pub(crate) fn store_state(
        &self,
        state: Result<(String, Transport, Option<fabric::Kind>), String>,
    ) {
        let mut store = self.store.lock();
        let since = SystemTime::now();
        let before = store.take();
        let connections = before.as_ref().map_or(0, |store| store.connections);
        *store = Some(match (state, before) {
            (Ok((address, transport, kind)), _) => StoreStatus {
                address: Some(address),
                away: None,
                since,
                connections: connections + 1,
                transport,
                provider: kind.map(|kind| kind.name().to_owned()),
            },
            (Err(why), Some(before)) => StoreStatus { away: Some(why), since, ..before },
            (Err(why), None) => StoreStatus {
                address: None,
                away: Some(why),
                since,
                connections,
                transport: Transport::Auto,
                provider: None,
            },
        });
    }
}
