//! A disk on its worker: requests popped, carried out, and given back.
//!
//! ```text
//! pop -> parse -> limits -> go --+-- at once (files in memory, cached reads)
//!                           ^    +-- ring (Worker::ring) --------.
//!                           |    `-- slow (other threads) --.    |
//!                           `------ ended <-- mailbox <-----'<---'
//! ```
//!
//! [`LiveDisk::go`] does the next step of a request until it has ended or somebody else is at it;
//! [`LiveDisk::ended`] takes up what comes back. A transfer that moved less than it should goes on
//! with the rest.
//!
//! All queues of a disk are on one worker, so nothing here is locked. A queue that is stopped pops
//! no more and is given back when the last request of it has ended.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use disk::config::Rules;
use disk::qos::{Admission, Limiter};
use disk::request::Ranges;
use disk::{Parsed, Status, parse};
use guestmem::{Access, Transfer};
use sys::EventFd;
use sys::uring::{Operation, Ring};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use virtqueue::{Chain, GuestFault};

use super::file::{Manner, Manners};
use super::image::DiskImage;
use super::queue::LiveQueue;
use super::request::{Job, Request, Work};
use super::slow;
use super::{Disk, DiskCommand, DiskId};
use crate::mailbox::Mailbox;
use crate::worker::Command;

/// Most requests taken from a queue in one pass, and most bytes moved at once there.
const BURST: usize = 64;
const BURST_BYTES: u64 = 1 << 20;
/// The guest sees what has ended after so many requests at the latest.
const PUBLISH: usize = 16;
/// Most steps of one disk that other threads do at a time.
const SLOW_MAX: usize = 8;

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
    image: DiskImage,
    /// Nothing is popped: control has taken the image away, or waits (`Some`) until it can.
    paused: bool,
    pausing: Option<oneshot::Sender<()>>,
    manners: Manners,
    rules: Rules,
    limiter: Option<Limiter>,
    queues: Box<[Option<Box<LiveQueue>>]>,
    /// Steps that wait for a thread, and how many have one.
    slow: (VecDeque<Job>, usize),
    /// Requests that write past the image.
    past_image: usize,
    /// Clearings that wait until there are none of those, and how many are under way.
    clearings: (VecDeque<Job>, usize),
}

/// A request that has ended, and how.
type Ended = (Request, io::Result<()>);

impl LiveDisk {
    pub(crate) fn new(
        disk: Arc<Disk>,
        image: DiskImage,
        rules: Rules,
        limiter: Option<Limiter>,
    ) -> LiveDisk {
        LiveDisk {
            image,
            paused: false,
            pausing: None,
            queues: disk.counters.iter().map(|_| None).collect(),
            disk,
            manners: Manners::default(),
            rules,
            limiter,
            slow: Default::default(),
            past_image: 0,
            clearings: Default::default(),
        }
    }

    /// Whether there is something to pop.
    pub(crate) fn waiting(&self) -> bool {
        !self.paused && self.queues.iter().flatten().any(|queue| queue.ready())
    }

    /// When the first request that waits for the disk's limits may go on, in nanoseconds.
    pub(crate) fn deadline(&self) -> Option<u64> {
        if self.paused {
            return None;
        }
        let held = self.queues.iter().flatten().filter_map(|queue| queue.held.as_ref());
        held.map(|(until, _)| *until).min()
    }

    /// Whether a queue of it runs whose guest cannot kick.
    pub(crate) fn is_silent(&self) -> bool {
        self.queues.iter().flatten().any(|queue| queue.kick.is_none())
    }

    /// Asks the guest to kick; returns whether there is something to pop already.
    pub(crate) fn arm(&mut self) -> bool {
        let mut waiting = false;
        for queue in self.queues.iter_mut().flatten() {
            waiting |= queue.arm();
        }
        waiting && !self.paused
    }

    /// One pass over its queues; returns how many requests were taken.
    pub(crate) fn pass(&mut self, tools: &mut Tools<'_>) -> usize {
        let mut taken = 0;
        for index in 0..self.queues.len() {
            let place = self.queues.get_mut(index);
            let wanted = |queue: &mut Box<LiveQueue>| queue.ready() || queue.held.is_some();
            let Some(mut queue) = place.and_then(|place| place.take_if(wanted)) else { continue };
            taken += self.take(&mut queue, index, tools);
            self.close(&mut queue, index);
            if let Some(place) = self.queues.get_mut(index) {
                *place = Some(queue);
            }
        }
        taken
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
            let job = match self.pop(queue, index, tools.now) {
                Ok(Popped::Job(job)) => job,
                Ok(Popped::Refused) => {
                    taken += 1;
                    continue;
                }
                Ok(Popped::Nothing) => break,
                Err(fault) => {
                    queue.faulted = true;
                    let reason = format!("{}: {fault}", fault.name());
                    self.disk.fault(index as u16, queue.vanished(), reason);
                    break;
                }
            };
            left = left.saturating_sub(job.segments.len());
            if !self.admit(queue, job, tools) {
                break;
            }
            taken += 1;
            if queue.untold.is_multiple_of(PUBLISH) {
                queue.queue.publish();
            }
        }
        if queue.vanished() && !queue.faulted {
            queue.faulted = true;
            self.disk.fault(index as u16, true, String::new());
        }
        taken
    }

    fn pop(&mut self, queue: &mut LiveQueue, index: usize, now: u64) -> Result<Popped, GuestFault> {
        let LiveQueue { queue: ring, mem, in_flight, untold, .. } = queue;
        let (mut chain, mut ranges) = (Chain::new(), Ranges::new());
        let Some(ticket) = ring.pop(mem, &mut chain)? else { return Ok(Popped::Nothing) };
        let operation = match parse(mem, &chain, &self.rules, &mut ranges) {
            Parsed::Operation(operation) => operation,
            Parsed::Refused(why, completion) => {
                if let Some(counters) = self.disk.counters.get(index) {
                    counters.operations.refused(why);
                }
                let len = completion.finish(mem, why.status());
                ring.complete(ticket, len);
                *untold += 1;
                return Ok(Popped::Refused);
            }
        };
        let (kind, bytes) = (operation.command.kind(), operation.command.bytes());
        let work = Work::of(&operation, mem, &self.disk.id_bytes);
        let completion = operation.completion;
        let Some((work, segments)) = work else {
            // Not of the memory it was popped from: cannot be.
            ring.complete(ticket, completion.finish(mem, Status::IoError));
            *untold += 1;
            return Ok(Popped::Refused);
        };
        let request = Request {
            disk: self.disk.id,
            queue: index as u16,
            ticket,
            completion,
            kind,
            bytes,
            started: now,
            work,
            past_image: false,
        };
        *in_flight += 1;
        Ok(Popped::Job(Job { segments, request }))
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
            self.finish(queue, request, result, tools);
        }
        true
    }

    /// Does what is left of a request until it has ended or others are at it.
    fn go(&mut self, mut job: Job, tools: &mut Tools<'_>) -> Option<Ended> {
        loop {
            let Job { segments, request } = &mut job;
            match &mut request.work {
                Work::Nothing => return Some((job.request, Ok(()))),
                Work::Transfer { access, stable, .. } if segments.is_empty() => {
                    // A file was told with each write; of an image more than the bytes counts.
                    let sync = *stable
                        && *access == Access::Write
                        && matches!(self.image, DiskImage::Image(_));
                    request.work = if sync { Work::Sync } else { Work::Nothing };
                    self.has_written(request);
                }
                Work::Clear { ranges, stable, .. } if ranges.is_empty() => {
                    request.work = if *stable { Work::Sync } else { Work::Nothing };
                }
                Work::Transfer { .. } => match self.transfer(job, tools) {
                    Step::Again(back) => job = back,
                    Step::Failed(request, error) => return Some((request, Err(error))),
                    Step::Elsewhere => return None,
                },
                // What is in memory only is as stable as it can be.
                Work::Sync if self.is_in_memory() => request.work = Work::Nothing,
                Work::Sync => {
                    self.sync(job, tools);
                    return None;
                }
                Work::Clear { .. } => {
                    self.clear(job, tools);
                    return None;
                }
            }
        }
    }

    /// Moves bytes at once, or has them moved.
    fn transfer(&mut self, mut job: Job, tools: &mut Tools<'_>) -> Step {
        let Work::Transfer { access, offset, stable, tried } = &mut job.request.work else {
            return Step::Again(job);
        };
        let write = *access == Access::Write;
        let (file, at) = match &self.image {
            DiskImage::File(file) => (Arc::clone(file), *offset),
            DiskImage::Image(image) => {
                let cleared = !self.clearings.0.is_empty() || self.clearings.1 > 0;
                let extent = image.direct(*offset, job.segments.len(), write);
                match extent.filter(|_| !cleared) {
                    Some(extent) => (extent.file, extent.offset),
                    None => return self.slow(job, tools),
                }
            }
        };
        let manner = self.manners.of(&file);
        if !slow::fits(manner, at, &job.segments) {
            let counters = self.disk.counters.get(usize::from(job.request.queue));
            // Once for a request, however many steps it takes.
            if let Some(counters) = counters.filter(|_| job.segments.len() == job.request.bytes) {
                counters.bounced.add(1);
            }
            return self.slow(job, tools);
        }
        let at_once = match manner {
            Manner::Inline => true,
            Manner::Cached => !write && !std::mem::replace(tried, true),
            Manner::Direct { .. } => false,
        };
        if at_once {
            let nowait = manner != Manner::Inline;
            match job.segments.transfer(*access, file.as_fd(), at, nowait) {
                Ok(moved) => return advanced(job, moved),
                // It would have to be waited for, or cannot be asked like this.
                Err(_) if nowait => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Step::Failed(job.request, error),
            }
        }
        let operation = match write {
            true => Operation::Write { offset: at, stable: *stable },
            false => Operation::Read { offset: at },
        };
        let Some(ring) = &mut tools.ring else { return self.slow(job, tools) };
        if write && matches!(self.image, DiskImage::Image(_)) && !job.request.past_image {
            job.request.past_image = true;
            self.past_image += 1;
        }
        let Job { segments, request } = job;
        match ring.push(operation, Transfer { segments, file, owner: request }) {
            Ok(()) => Step::Elsewhere,
            Err(Transfer { segments, owner, .. }) => {
                self.slow(Job { segments, request: owner }, tools)
            }
        }
    }

    fn is_in_memory(&mut self) -> bool {
        match &self.image {
            DiskImage::File(file) => self.manners.of(file) == Manner::Inline,
            DiskImage::Image(_) => false,
        }
    }

    /// Has everything made stable.
    fn sync(&mut self, job: Job, tools: &mut Tools<'_>) {
        let (Some(ring), DiskImage::File(file)) = (&mut tools.ring, &self.image) else {
            self.slow(job, tools);
            return;
        };
        let Job { segments, request } = job;
        let transfer = Transfer { segments, file: Arc::clone(file), owner: request };
        if let Err(Transfer { segments, owner, .. }) = ring.push(Operation::Sync, transfer) {
            self.slow(Job { segments, request: owner }, tools);
        }
    }

    /// Has a range cleared; of an image only when nothing is written past it.
    fn clear(&mut self, job: Job, tools: &mut Tools<'_>) {
        if matches!(self.image, DiskImage::Image(_)) {
            self.clearings.0.push_back(job);
            self.clear_waiting(tools);
        } else {
            self.slow(job, tools);
        }
    }

    fn clear_waiting(&mut self, tools: &mut Tools<'_>) {
        while self.past_image == 0
            && let Some(job) = self.clearings.0.pop_front()
        {
            self.clearings.1 += 1;
            self.slow(job, tools);
        }
    }

    /// Has another thread do the next step.
    fn slow(&mut self, job: Job, tools: &mut Tools<'_>) -> Step {
        if self.slow.1 >= SLOW_MAX {
            self.slow.0.push_back(job);
            return Step::Elsewhere;
        }
        self.slow.1 += 1;
        let (disk, mailbox) = (Arc::clone(&self.disk), tools.mailbox.clone());
        let image = self.image.clone();
        tools.runtime.spawn_blocking(move || {
            let result = slow::step(&job, &image);
            // Who waits until nobody uses the image does not wait for this thread to end.
            drop(image);
            let done = DiskCommand::Slow(Box::new(job), result);
            mailbox.post(Command::Disk(disk.id, done));
        });
        Step::Elsewhere
    }

    /// Another thread has done a step.
    pub(crate) fn slow_ended(&mut self, job: Job, result: io::Result<u64>, tools: &mut Tools<'_>) {
        self.slow.1 -= 1;
        if matches!(job.request.work, Work::Clear { .. })
            && matches!(self.image, DiskImage::Image(_))
        {
            self.clearings.1 -= 1;
        }
        if let Some(waiting) = self.slow.0.pop_front() {
            self.slow(waiting, tools);
        }
        self.ended(job, result, tools);
    }

    /// Takes up a request of which a step was done by the ring or another thread.
    pub(crate) fn ended(&mut self, job: Job, result: io::Result<u64>, tools: &mut Tools<'_>) {
        let index = usize::from(job.request.queue);
        let step = match result {
            Ok(done) => advanced(job, done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Again(job),
            Err(error) => Step::Failed(job.request, error),
        };
        let ended = match step {
            Step::Again(job) => self.go(job, tools),
            Step::Failed(request, error) => Some((request, Err(error))),
            Step::Elsewhere => None,
        };
        let Some((request, result)) = ended else { return };
        let place = self.queues.get_mut(index);
        let Some(mut queue) = place.and_then(Option::take) else { return };
        self.finish(&mut queue, request, result, tools);
        if let Some(place) = self.queues.get_mut(index) {
            *place = Some(queue);
        }
    }

    /// Notes that a request writes past the image no longer.
    fn has_written(&mut self, request: &mut Request) {
        if std::mem::take(&mut request.past_image) {
            self.past_image -= 1;
        }
    }

    /// Gives a request back to the guest.
    fn finish(
        &mut self,
        queue: &mut LiveQueue,
        mut request: Request,
        result: io::Result<()>,
        tools: &mut Tools<'_>,
    ) {
        self.has_written(&mut request);
        self.clear_waiting(tools);
        let took = tools.look_at_clock().saturating_sub(request.started);
        if let Some(counters) = self.disk.counters.get(usize::from(request.queue)) {
            counters.operations.done(request.kind, request.bytes, took, result.is_ok());
        }
        let status = match result {
            Ok(()) => Status::Ok,
            Err(error) => {
                self.disk.failed(request.kind, &error, tools.now);
                Status::IoError
            }
        };
        queue.complete(request, status);
    }

    /// Shows the guest what has ended in every queue, and answers who waits for a quiet one.
    pub(crate) fn close_all(&mut self) {
        for index in 0..self.queues.len() {
            let unfinished = |queue: &mut Box<LiveQueue>| {
                queue.untold > 0 || (queue.stopping.is_some() && queue.in_flight == 0)
            };
            let place = self.queues.get_mut(index);
            let Some(mut queue) = place.and_then(|place| place.take_if(unfinished)) else {
                continue;
            };
            self.close(&mut queue, index);
            if let Some(done) = queue.stopping.take_if(|_| queue.in_flight == 0) {
                // Nobody waits any more if the session is being dropped.
                let _ = done.send(queue.queue.queue().base());
            } else if let Some(place) = self.queues.get_mut(index) {
                *place = Some(queue);
            }
        }
        self.let_go();
    }

    fn close(&mut self, queue: &mut LiveQueue, index: usize) {
        if let Some(counters) = self.disk.counters.get(index) {
            counters.in_flight.set(queue.in_flight as u64);
        }
        if queue.untold == 0 {
            return;
        }
        queue.untold = 0;
        queue.queue.publish();
        if queue.queue.queue().should_notify() {
            self.interrupt(queue, index);
        }
    }

    fn interrupt(&self, queue: &LiveQueue, index: usize) {
        if let (Some(call), Some(counters)) = (&queue.call, self.disk.counters.get(index)) {
            counters.interrupts.add(1);
            // Cannot fail on an eventfd, which it was checked to be.
            let _ = call.signal();
        }
    }

    /// Serves a queue from now on.
    pub(crate) fn start(&mut self, index: u16, queue: Box<LiveQueue>) {
        // Whatever the guest waited for while nobody served the ring, it looks now.
        self.interrupt(&queue, index.into());
        if let Some(place) = self.queues.get_mut(usize::from(index)) {
            *place = Some(queue);
        }
    }

    /// Stops a queue: its position is told when it is quiet. Returns its kick, for which nobody
    /// waits any more.
    pub(crate) fn stop(
        &mut self,
        index: u16,
        done: oneshot::Sender<u32>,
        tools: &mut Tools<'_>,
    ) -> Option<Arc<EventFd>> {
        let index = usize::from(index);
        let mut queue = self.queues.get_mut(index)?.take()?;
        queue.stopping = Some(done);
        let kick = queue.kick.take();
        // While there is no image it waits for the next one.
        if let Some((_, job)) = queue.held.take_if(|_| !self.paused) {
            self.admit(&mut queue, job, tools);
        }
        if let Some(place) = self.queues.get_mut(index) {
            *place = Some(queue);
        }
        self.close_all();
        kick
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
    pub(crate) fn resume(&mut self, image: DiskImage) {
        (self.image, self.paused) = (image, false);
    }

    /// A running queue.
    fn queue(&mut self, index: u16) -> Option<&mut LiveQueue> {
        self.queues.get_mut(usize::from(index))?.as_deref_mut()
    }

    /// Interrupts the guest by this descriptor from now on.
    pub(crate) fn set_call(&mut self, index: u16, call: Option<Arc<EventFd>>) {
        let Some(place) = self.queues.get_mut(usize::from(index)) else { return };
        let Some(mut queue) = place.take() else { return };
        queue.call = call;
        // What ended while there was another descriptor, or none, may not have been noticed.
        self.interrupt(&queue, index.into());
        if let Some(place) = self.queues.get_mut(usize::from(index)) {
            *place = Some(queue);
        }
    }

    /// SET_VRING_ENABLE.
    pub(crate) fn set_enabled(&mut self, index: u16, on: bool) {
        if let Some(queue) = self.queue(index) {
            queue.enabled = on;
        }
    }

    /// Judges requests by these rules from now on.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Keeps to these limits from now on: what waits for others is to ask again.
    pub(crate) fn set_limits(&mut self, limiter: Option<Limiter>) {
        self.limiter = limiter;
        for (until, _) in self.queues.iter_mut().flatten().filter_map(|queue| queue.held.as_mut()) {
            *until = 0;
        }
    }

    /// Which disk it is.
    pub(crate) fn id(&self) -> DiskId {
        self.disk.id
    }
}

/// What a pop gave.
enum Popped {
    Nothing,
    /// A request that was refused and has ended.
    Refused,
    Job(Job),
}

/// What became of a step.
enum Step {
    /// There is more to do, or to note that there is not.
    Again(Job),
    /// Others are at it.
    Elsewhere,
    Failed(Request, io::Error),
}

/// A job of which so much was done.
fn advanced(mut job: Job, done: u64) -> Step {
    match job.request.work.progress(&mut job.segments, done) {
        Ok(()) => Step::Again(job),
        Err(error) => Step::Failed(job.request, error),
    }
}

impl fmt::Debug for LiveDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveDisk").field("disk", &self.disk.name).finish_non_exhaustive()
    }
}
