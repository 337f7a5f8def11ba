//! What control has a disk do: queues that start and stop, another image, other rules and limits.
//!
//! Nothing here waits. Who asks for something that takes until requests have ended hears of it by a channel;
//! if nobody listens there any more, it is done all the same.

use std::sync::Arc;

use disk::config::Rules;
use disk::qos::Limiter;
use sys::EventFd;
use tokio::sync::oneshot;

use super::{LiveDisk, Tools};
use crate::disk::Told;
use crate::disk::file::Manners;
use crate::disk::image::DiskImage;
use crate::disk::queue::{LiveQueue, Source, Waker};

impl LiveDisk {
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
    pub(super) fn let_go(&mut self) {
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

    /// Judges requests by these rules from now on, and says so.
    pub(crate) fn set_rules(&mut self, rules: Rules, told: Told) {
        self.rules = rules;
        match told {
            Told::Nobody => {}
            Told::Guest => self.disk.changed.notify_one(),
            // Nobody waits any more if the session is being dropped.
            Told::Asker(waits) => drop(waits.send(())),
        }
    }

    /// Keeps to these limits from now on: what waits for others asks again.
    pub(crate) fn set_limits(&mut self, limiter: Option<Limiter>, tools: &mut Tools<'_>) {
        self.limiter = limiter;
        if !self.paused {
            self.pass(tools);
        }
    }
}
