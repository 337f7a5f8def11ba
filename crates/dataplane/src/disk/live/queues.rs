//! The queues of a disk: requests from their pop to their end.
//!
//! A queue is taken out of its place while something is done with it and the disk, and
//! [put back](LiveDisk::put_back). What is wrong with a ring ends the queue and its session; what is wrong
//! with a request ends that request only.

use std::io;

use disk::qos::Admission;
use sys::EventFd;

use super::{LiveDisk, Tools};
use crate::disk::image::DiskImage;
use crate::disk::queue::{Fault, Judge, LiveQueue, Popped};
use crate::disk::request::{Job, Request};

/// Most requests taken from a queue in one pass, and most bytes moved at once there.
const BURST: usize = 64;
const BURST_BYTES: u64 = 1 << 20;
/// The guest sees what has ended after so many requests at the latest.
const PUBLISH: usize = 16;

impl LiveDisk {
    /// One pass over its queues; returns how many requests were taken.
    pub(crate) fn pass(&mut self, tools: &mut Tools<'_>) -> usize {
        let mut taken = 0;
        let (first, count) = (self.first, self.queues.len());
        for turn in first..first + count {
            let index = if turn < count { turn } else { turn - count };
            let open = self.is_open();
            let place = self.queues.get_mut(index);
            let wanted = |queue: &mut Box<LiveQueue>| open && queue.ready() || queue.held.is_some();
            let Some(mut queue) = place.and_then(|place| place.take_if(wanted)) else { continue };
            taken += self.take(&mut queue, index, tools);
            self.put_back(queue, index);
            if open && !self.is_open() {
                // The next one has its turn at what becomes free.
                self.first = (index + 1) % count;
            }
        }
        taken + self.pump(tools)
    }

    /// Takes requests from a queue.
    fn take(&mut self, queue: &mut LiveQueue, index: usize, tools: &mut Tools<'_>) -> usize {
        let mut taken = 0;
        let mut left = BURST_BYTES;
        queue.disarm();
        if let Some((_, job)) = queue.held.take() {
            taken += usize::from(self.admit(queue, job, tools));
        }
        while taken < BURST && left > 0 && self.is_open() && queue.ready() {
            let Self { disk, rules, image, manners, limiter, .. } = self;
            let file = match image {
                DiskImage::File(file) if limiter.is_none() => Some((&*file, &*manners)),
                _ => None,
            };
            let now = tools.now;
            let job = match queue.pop(&Judge { disk, rules, queue: index, now, file }) {
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
            // Some of it may have been moved while it was popped.
            left = left.saturating_sub(job.request.bytes);
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
    pub(super) fn admit(
        &mut self,
        queue: &mut LiveQueue,
        job: Box<Job>,
        tools: &mut Tools<'_>,
    ) -> bool {
        if let Some(limiter) = &mut self.limiter
            && queue.stopping.is_none()
            && let Admission::At(until) = limiter.admit(tools.look_at_clock(), job.segments.len())
        {
            queue.held = Some((until, job));
            return false;
        }
        if let Some((job, result)) = self.go(job, tools) {
            self.finish(queue, job.request, &result, tools);
        }
        true
    }

    /// The ring has done a step.
    pub(crate) fn ring_ended(
        &mut self,
        job: Box<Job>,
        result: io::Result<u64>,
        tools: &mut Tools<'_>,
    ) {
        // Not of a disk that had this number before.
        self.in_ring = self.in_ring.saturating_sub(1);
        self.ended(job, result, tools);
    }

    /// Takes up a request of which a step was done elsewhere.
    pub(super) fn ended(&mut self, job: Box<Job>, result: io::Result<u64>, tools: &mut Tools<'_>) {
        let index = usize::from(job.request.queue);
        let ended = self.go_on(job, result, tools);
        let Some((job, result)) = ended else { return };
        let place = self.queues.get_mut(index);
        let Some(mut queue) = place.and_then(Option::take) else { return };
        self.finish(&mut queue, job.request, &result, tools);
        // Shown with all that has ended, in `close_all`; but the last one under way has nothing to wait for.
        if queue.in_flight == 0 {
            queue.publish();
        }
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
    pub(super) fn put_back(&mut self, mut queue: Box<LiveQueue>, index: usize) {
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

    pub(super) fn keep(&mut self, queue: Box<LiveQueue>, index: usize) {
        if let Some(place) = self.queues.get_mut(index) {
            *place = Some(queue);
        }
    }

    pub(super) fn interrupt(&self, call: &EventFd, index: usize) {
        if let Some(counters) = self.disk.counters.get(index) {
            counters.interrupts.add(1);
        }
        // Cannot fail on an eventfd, which it was checked to be.
        let _ = call.signal();
    }
}
