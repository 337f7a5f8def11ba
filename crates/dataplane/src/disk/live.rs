//! A disk on its worker: requests popped, carried out, and given back.
//!
//! ```text
//! pop -> parse -> limits -> go --+-- at once (files in memory, cached reads)
//!                           ^    +-- ring (Worker::ring) --------.
//!                           |    `-- slow (other threads) --.    |
//!                           `------ ended <-- mailbox <-----'<---'
//! ```
//!
//! Here: what a disk is, and what its worker asks it. Requests from their pop to their end are in
//! [`queues`]; how one is carried out, the right half of the picture, is in [`steps`]. What control has a
//! disk do is in [`control`], and its link to a store in [`link`].
//!
//! All queues of a disk are on one worker, so nothing here is locked. A queue that is stopped pops
//! no more and is given back when the last request of it has ended.

mod control;
mod link;
mod queues;
mod steps;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use disk::config::Rules;
use disk::qos::Limiter;
use guestmem::Transfer;
use sys::uring::Ring;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::file::Manners;
use super::image::DiskImage;
use super::link::{Link, Stepped};
use super::queue::LiveQueue;
use super::request::{Job, Request};
use super::{Disk, DiskId};
use crate::clock::Clock;
use crate::mailbox::Mailbox;

/// What a disk needs of its worker.
pub(crate) struct Tools<'w> {
    /// `None`: the kernel refuses rings, other threads do everything.
    pub(crate) ring: Option<&'w mut Ring<Transfer<Request>>>,
    pub(crate) runtime: &'w Handle,
    pub(crate) mailbox: &'w Mailbox,
    pub(crate) clock: Clock,
    /// What it said lately.
    pub(crate) now: u64,
}

impl Tools<'_> {
    fn look_at_clock(&mut self) -> u64 {
        self.now = self.clock.now();
        self.now
    }
}

/// A disk that is served.
pub(crate) struct LiveDisk {
    pub(crate) disk: Arc<Disk>,
    image: DiskImage,
    /// Nothing is popped: control has taken the image away, or waits (`Some`) until it can.
    paused: bool,
    pausing: Option<oneshot::Sender<()>>,
    manners: Manners,
    rules: Rules,
    limiter: Option<Limiter>,
    queues: Box<[Option<Box<LiveQueue>>]>,
    /// The queue that a pass begins with.
    first: usize,
    /// Requests of which the ring does a step.
    in_ring: usize,
    /// To the store that has the image.
    link: Option<Link>,
    /// Room for what it has done.
    done: Vec<Stepped>,
    /// Steps that wait for a thread, and how many have one.
    slow: (VecDeque<Box<Job>>, usize),
    /// Something has come from another host.
    heard: bool,
    /// Requests that write past the image.
    past_image: usize,
    /// Clearings that wait until there are none of those, and how many are under way.
    clearings: (VecDeque<Box<Job>>, usize),
}

/// A request that has ended, and how.
type Ended = (Box<Job>, io::Result<()>);

impl LiveDisk {
    pub(crate) fn new(
        disk: Arc<Disk>,
        image: DiskImage,
        rules: Rules,
        limiter: Option<Limiter>,
        mut link: Option<Link>,
    ) -> LiveDisk {
        if let Some(link) = &mut link {
            link.of(&disk);
        }
        LiveDisk {
            image,
            link,
            done: Vec::new(),
            paused: false,
            pausing: None,
            queues: disk.counters.iter().map(|_| None).collect(),
            first: 0,
            in_ring: 0,
            disk,
            manners: Manners::default(),
            rules,
            limiter,
            slow: Default::default(),
            heard: false,
            past_image: 0,
            clearings: Default::default(),
        }
    }

    /// Whether anything may be begun.
    fn is_open(&self) -> bool {
        !self.paused && !self.is_full()
    }

    /// Whether the files' devices have as much as they take at a time.
    fn is_full(&self) -> bool {
        self.in_ring >= self.manners.depth()
    }

    /// Whether requests wait for others to end.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_full() && self.queues.iter().flatten().any(|queue| queue.ready())
    }

    /// Whether there is something to pop, or an answer of the store may have come.
    pub(crate) fn waiting(&self) -> bool {
        (self.is_open() && self.queues.iter().flatten().any(|queue| queue.ready()))
            || self.link.as_ref().is_some_and(Link::is_busy)
    }

    /// When the first request that waits for the disk's limits may go on, in nanoseconds.
    pub(crate) fn deadline(&self) -> Option<u64> {
        if self.paused || self.limiter.is_none() {
            return None;
        }
        let held = self.queues.iter().flatten().filter_map(|queue| queue.held.as_ref());
        held.map(|(until, _)| *until).min()
    }

    /// Whether an answer of its store, or a request of another host, is waited for.
    pub(crate) fn is_far(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_busy)
            || self.queues.iter().flatten().any(|queue| queue.is_far())
    }

    /// Whether something has come from another host since this was asked.
    pub(crate) fn heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Whether a guest of this machine has asked for something.
    pub(crate) fn is_near(&self) -> bool {
        self.is_open() && self.queues.iter().flatten().any(|queue| !queue.is_far() && queue.ready())
    }

    /// Whether a queue of it runs whose guest cannot kick.
    pub(crate) fn is_silent(&self) -> bool {
        self.queues.iter().flatten().any(|queue| queue.is_silent())
    }

    /// Something has happened at a queue.
    pub(crate) fn kicked(&mut self, index: u16) {
        if let Some(counters) = self.disk.counters.get(usize::from(index)) {
            counters.kicks.add(1);
        }
        if let Some(Some(queue)) = self.queues.get_mut(usize::from(index)) {
            queue.kicked();
        }
    }

    /// Asks to be woken up; returns whether there is something to pop already. As long as no more may be
    /// begun, the end of what was is what wakes the worker up for it.
    pub(crate) fn arm(&mut self) -> bool {
        let mut waiting = false;
        for queue in self.queues.iter_mut().flatten() {
            waiting |= queue.arm();
        }
        (waiting && self.is_open()) || self.link.as_mut().is_some_and(Link::arm)
    }

    /// Which disk it is.
    pub(crate) fn id(&self) -> DiskId {
        self.disk.id
    }
}

impl fmt::Debug for LiveDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveDisk").field("disk", &self.disk.name).finish_non_exhaustive()
    }
}
