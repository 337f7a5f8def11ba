//! A disk on its worker: requests popped, carried out, and given back.
//!
//! ```text
//! pop -> parse -> limits -> go --+-- at once (files in memory, cached reads)
//!                           ^    +-- ring (Worker::ring) --------.
//!                           |    `-- slow (other threads) --.    |
//!                           `------ ended <-- mailbox <-----'<---'
//! ```
//!
//! Here: queues, and requests from their pop to their end. How one is carried out, the right half
//! of the picture, is in [`super::steps`]. A queue is taken out of its place while something is done
//! with it and the disk, and [put back](LiveDisk::put_back).
//!
//! All queues of a disk are on one worker, so nothing here is locked. A queue that is stopped pops
//! no more and is given back when the last request of it has ended.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use disk::config::Rules;
use disk::qos::{Admission, Limiter};
use guestmem::Transfer;
use sys::EventFd;
use sys::uring::Ring;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::file::{Manner, Manners};
use super::image::DiskImage;
use super::link::{Connected, Link, Stepped};
use super::queue::{Fault, Judge, LiveQueue, Popped, Source, Waker};
use super::request::{Job, Request};
use super::{Disk, DiskId};
use crate::mailbox::Mailbox;

/// Most requests taken from a queue in one pass, and most bytes moved at once there.
const BURST: usize = 64;
const BURST_BYTES: u64 = 1 << 20;
/// The guest sees what has ended after so many requests at the latest.
const PUBLISH: usize = 16;

/// What a disk needs of its worker.
pub(crate) struct Tools<'w> {
    /// `None`: the kernel refuses rings, other threads do everything.
    pub(crate) ring: Option<&'w mut Ring<Transfer<Request>>>,
    pub(crate) runtime: &'w Handle,
    pub(crate) mailbox: &'w Mailbox,
    pub(crate) epoch: Instant,
    /// Nanoseconds since then, lately.
    pub(crate) now: u64,
}

impl Tools<'_> {
    fn look_at_clock(&mut self) -> u64 {
        self.now = self.epoch.elapsed().as_nanos() as u64;
        self.now
    }
}

/// A disk that is served.
pub(crate) struct LiveDisk {
    pub(crate) disk: Arc<Disk>,
    pub(super) image: DiskImage,
    /// Nothing is popped: control has taken the image away, or waits (`Some`) until it can.
    paused: bool,
    pausing: Option<oneshot::Sender<()>>,
    pub(super) manners: Manners,
    rules: Rules,
    limiter: Option<Limiter>,
    queues: Box<[Option<Box<LiveQueue>>]>,
    /// To the store that has the image.
    pub(super) link: Option<Link>,
    /// Steps that wait for a thread, and how many have one.
    pub(super) slow: (VecDeque<Job>, usize),
    /// Something has come from another host.
    heard: bool,
    /// Requests that write past the image.
    pub(super) past_image: usize,
    /// Clearings that wait until there are none of those, and how many are under way.
    pub(super) clearings: (VecDeque<Job>, usize),
}

/// A request that has ended, and how.
pub(super) type Ended = (Request, io::Result<()>);

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
            paused: false,
            pausing: None,
            queues: disk.counters.iter().map(|_| None).collect(),
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

    /// Whether there is something to pop, or an answer of the store may have come.
    pub(crate) fn waiting(&self) -> bool {
        (!self.paused && self.queues.iter().flatten().any(|queue| queue.ready()))
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
        !self.paused && self.queues.iter().flatten().any(|queue| !queue.is_far() && queue.ready())
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

    /// Asks to be woken up; returns whether there is something to pop already.
    pub(crate) fn arm(&mut self) -> bool {
        let mut waiting = false;
        for queue in self.queues.iter_mut().flatten() {
            waiting |= queue.arm();
        }
        (waiting && !self.paused) || self.link.as_mut().is_some_and(Link::arm)
    }

    /// One pass over its queues; returns how many requests were taken.
    pub(crate) fn pass(&mut self, tools: &mut Tools<'_>) -> usize {
        let mut taken = 0;
        for index in 0..self.queues.len() {
            let place = self.queues.get_mut(index);
            let wanted = |queue: &mut Box<LiveQueue>| queue.ready() || queue.held.is_some();
            let Some(mut queue) = place.and_then(|place| place.take_if(wanted)) else { continue };
            taken += self.take(&mut queue, index, tools);
            self.put_back(queue, index);
        }
        taken + self.pump(tools)
    }

    /// Sends to the store what may be sent, and takes its answers; returns how many that were.
    fn pump(&mut self, tools: &mut Tools<'_>) -> usize {
        let answers = self.with_link(tools, Link::pump);
        self.heard |= answers > 0;
        answers
    }

    /// Asks the store for a sign if it has been silent.
    pub(crate) fn check_link(&mut self, tools: &mut Tools<'_>) {
        self.with_link(tools, Link::check);
        self.pump(tools);
    }

    /// The store was away for too long.
    pub(crate) fn fail_link(&mut self, tools: &mut Tools<'_>) {
        self.with_link(tools, Link::fail);
    }

    /// The guest is gone: a store reaches its memory no more.
    pub(crate) fn leave_memory(&mut self) {
        if let Some(link) = &mut self.link {
            link.leave_memory();
        }
    }

    /// The store may have answered.
    pub(crate) fn link_ready(&mut self) {
        if let Some(link) = &mut self.link {
            link.readable = true;
        }
    }

    /// Has its connections over fabrics looked at in the next pass: their descriptors tell only who is
    /// about to sleep. Whether there are others.
    pub(crate) fn look_around(&mut self) -> bool {
        let mut streams = self.link.as_mut().is_some_and(Link::look_around);
        for queue in self.queues.iter_mut().flatten() {
            streams |= queue.look_around();
        }
        streams
    }

    /// Goes on with this connection to the store.
    pub(crate) fn connected(&mut self, connected: Connected, tools: &mut Tools<'_>) {
        if let Some(link) = &mut self.link {
            link.connected(connected);
        }
        self.pump(tools);
    }

    /// Does something with the link, and goes on with all steps that have ended.
    fn with_link(
        &mut self,
        tools: &mut Tools<'_>,
        mut work: impl FnMut(&mut Link, u64, &mut Vec<Stepped>),
    ) -> usize {
        let (mut ended, mut done) = (0, Vec::new());
        while let Some(link) = &mut self.link {
            work(link, tools.now, &mut done);
            if done.is_empty() {
                break;
            }
            ended += done.len();
            for (job, result) in done.drain(..) {
                self.ended(job, result, tools);
            }
        }
        if ended > 0 {
            self.close_all();
        }
        self.abandon();
        ended
    }

    /// What queues that stop wait for will not come while there is no store: whoever serves them next
    /// finds it in the region of requests in flight.
    fn abandon(&mut self) {
        let Some(link) = self.link.as_mut().filter(|link| !link.is_connected()) else { return };
        let mut quiet = false;
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if let Some(queue) = queue
                && queue.stopping.is_some()
            {
                queue.in_flight -= link.take_back(index as u16).min(queue.in_flight);
                quiet |= queue.in_flight == 0;
            }
        }
        if quiet {
            self.close_all();
        }
    }

    /// Takes requests from a queue.
    fn take(&mut self, queue: &mut LiveQueue, index: usize, tools: &mut Tools<'_>) -> usize {
        let mut taken = 0;
        let mut left = BURST_BYTES;
        queue.disarm();
        if let Some((_, job)) = queue.held.take() {
            taken += usize::from(self.admit(queue, job, tools));
        }
        while taken < BURST && left > 0 && queue.ready() {
            let Self { disk, rules, image, manners, limiter, .. } = self;
            let straight = match image {
                DiskImage::File(file) if limiter.is_none() => {
                    Some(&*file).filter(|file| manners.of(file) == Manner::Inline)
                }
                _ => None,
            };
            let now = tools.now;
            let job = match queue.pop(&Judge { disk, rules, queue: index, now, straight }) {
                Ok(Popped::Job(job)) => job,
                Ok(Popped::Answered) => {
                    taken += 1;
                    continue;
                }
                Ok(Popped::Nothing) => break,
                Err(fault) => {
                    self.fault(queue, index, fault);
                    break;
                }
            };
            left = left.saturating_sub(job.segments.len());
            if !self.admit(queue, job, tools) {
                break;
            }
            taken += 1;
            if queue.untold.is_multiple_of(PUBLISH) {
                queue.publish();
            }
        }
        self.heard |= taken > 0 && queue.is_far();
        if queue.vanished() && !queue.faulted {
            self.fault(queue, index, Fault { vanished: true, reason: String::new() });
        }
        taken
    }

    /// Looks at a queue no more, and has its session end.
    fn fault(&self, queue: &mut LiveQueue, index: usize, fault: Fault) {
        queue.faulted = true;
        self.disk.fault(index as u16, fault.vanished, fault.reason);
    }

    /// Begins with a request if the limits allow it, and ends it if that was all. Otherwise it
    /// waits, and the queue with it: false.
    fn admit(&mut self, queue: &mut LiveQueue, job: Job, tools: &mut Tools<'_>) -> bool {
        if let Some(limiter) = &mut self.limiter
            && queue.stopping.is_none()
            && let Admission::At(until) = limiter.admit(tools.look_at_clock(), job.segments.len())
        {
            queue.held = Some((until, job));
            return false;
        }
        if let Some((request, result)) = self.go(job, tools) {
            self.finish(queue, request, &result, tools);
        }
        true
    }

    /// Takes up a request of which a step was done by the ring or another thread.
    pub(crate) fn ended(&mut self, job: Job, result: io::Result<u64>, tools: &mut Tools<'_>) {
        let index = usize::from(job.request.queue);
        let ended = self.go_on(job, result, tools);
        let Some((request, result)) = ended else { return };
        let place = self.queues.get_mut(index);
        let Some(mut queue) = place.and_then(Option::take) else { return };
        self.finish(&mut queue, request, &result, tools);
        // Shown with all that has ended: `close_all`.
        self.keep(queue, index);
    }

    /// Gives a request back to the guest.
    fn finish(
        &mut self,
        queue: &mut LiveQueue,
        mut request: Request,
        result: &io::Result<()>,
        tools: &mut Tools<'_>,
    ) {
        self.has_written(&mut request);
        self.clear_waiting(tools);
        let took = tools.look_at_clock().saturating_sub(request.started);
        if let Some(counters) = self.disk.counters.get(usize::from(request.queue)) {
            counters.operations.done(request.kind, request.bytes, took, result.is_ok());
        }
        if let Err(error) = result {
            self.disk.failed(request.kind, error, tools.now);
        }
        queue.complete(request, result);
    }

    /// Shows the guest what has ended in every queue, answers who waits for a quiet one, and lets go
    /// of the image if that is wanted.
    pub(crate) fn close_all(&mut self) {
        for index in 0..self.queues.len() {
            let unfinished = |queue: &mut Box<LiveQueue>| {
                queue.untold > 0 || (queue.stopping.is_some() && queue.in_flight == 0)
            };
            let place = self.queues.get_mut(index);
            if let Some(queue) = place.and_then(|place| place.take_if(unfinished)) {
                self.put_back(queue, index);
            }
        }
        self.let_go();
    }

    /// Shows the guest what has ended in a queue, and gives it to who waits until it is quiet, or
    /// goes on with it.
    fn put_back(&mut self, mut queue: Box<LiveQueue>, index: usize) {
        if let Some(counters) = self.disk.counters.get(index) {
            counters.in_flight.set(queue.in_flight as u64);
        }
        if queue.untold > 0 {
            match queue.tell() {
                Ok(None) => {}
                Ok(Some(call)) => self.interrupt(call, index),
                Err(fault) => self.fault(&mut queue, index, fault),
            }
        }
        match queue.stopping.take_if(|_| queue.in_flight == 0) {
            // Nobody waits any more if the session is being dropped.
            Some(done) => drop(done.send(queue.position())),
            None => self.keep(queue, index),
        }
    }

    fn keep(&mut self, queue: Box<LiveQueue>, index: usize) {
        if let Some(place) = self.queues.get_mut(index) {
            *place = Some(queue);
        }
    }

    fn interrupt(&self, call: &EventFd, index: usize) {
        if let Some(counters) = self.disk.counters.get(index) {
            counters.interrupts.add(1);
        }
        // Cannot fail on an eventfd, which it was checked to be.
        let _ = call.signal();
    }

    /// Serves a queue from now on.
    pub(crate) fn start(&mut self, index: u16, queue: Box<LiveQueue>) {
        // Whatever the guest waited for while nobody served the ring, it looks now.
        if let Some(call) = queue.call() {
            self.interrupt(call, index.into());
        }
        self.keep(queue, index.into());
    }

    /// Stops a queue: its position is told when it is quiet. Returns what woke the worker up for it,
    /// which nobody waits for any more.
    pub(crate) fn stop(
        &mut self,
        index: u16,
        done: oneshot::Sender<u32>,
        tools: &mut Tools<'_>,
    ) -> Option<Waker> {
        let index = usize::from(index);
        let mut queue = self.queues.get_mut(index)?.take()?;
        queue.stopping = Some(done);
        let waker = queue.waker();
        match queue.held.take() {
            // There may never be an image again. It stays in the region of requests in flight, for
            // whoever serves the queue next.
            Some(_) if self.paused => queue.in_flight -= 1,
            Some((_, job)) => _ = self.admit(&mut queue, job, tools),
            None => {}
        }
        self.put_back(queue, index);
        self.abandon();
        self.let_go();
        waker
    }

    /// Begins nothing more until there is another image, and says so when what was begun has ended
    /// and the image is not used any more.
    pub(crate) fn pause(&mut self, done: oneshot::Sender<()>) {
        (self.paused, self.pausing) = (true, Some(done));
        self.let_go();
    }

    /// Lets go of the image once nothing is under way.
    fn let_go(&mut self) {
        let under_way = |queue: &LiveQueue| queue.in_flight > usize::from(queue.held.is_some());
        if self.pausing.is_none() || self.queues.iter().flatten().any(|queue| under_way(queue)) {
            return;
        }
        self.image = DiskImage::absent();
        self.manners = Manners::default();
        if let Some(done) = self.pausing.take() {
            // Nobody waits any more if the disk is being removed.
            let _ = done.send(());
        }
    }

    /// Goes on, with this image.
    pub(crate) fn resume(&mut self, image: DiskImage, tools: &mut Tools<'_>) {
        (self.image, self.paused) = (image, false);
        self.pass(tools);
    }

    /// Interrupts the guest by this descriptor from now on.
    pub(crate) fn set_call(&mut self, index: u16, call: Option<Arc<EventFd>>) {
        let index = usize::from(index);
        let Some(mut queue) = self.queues.get_mut(index).and_then(Option::take) else { return };
        if let Source::Ring(ring) = &mut queue.source {
            ring.call = call;
        }
        // What ended while there was another descriptor, or none, may not have been noticed.
        if let Some(call) = queue.call() {
            self.interrupt(call, index);
        }
        self.keep(queue, index);
    }

    /// SET_VRING_ENABLE.
    pub(crate) fn set_enabled(&mut self, index: u16, on: bool) {
        if let Some(Some(queue)) = self.queues.get_mut(usize::from(index)) {
            queue.enabled = on;
        }
    }

    /// Judges requests by these rules from now on.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Keeps to these limits from now on: what waits for others asks again.
    pub(crate) fn set_limits(&mut self, limiter: Option<Limiter>, tools: &mut Tools<'_>) {
        self.limiter = limiter;
        if !self.paused {
            self.pass(tools);
        }
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
