//! The link of a disk to the store that has its image, if one has: pumped, connected, given up.
//!
//! While there is no connection, requests wait in the [`Link`]; when the store was away for too long, they
//! fail.

use super::{LiveDisk, Tools};
use crate::disk::link::{Connected, Link, Stepped};

impl LiveDisk {
    /// Sends to the store what may be sent, and takes its answers; returns how many that were.
    pub(super) fn pump(&mut self, tools: &mut Tools<'_>) -> usize {
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
        let (mut ended, mut done) = (0, std::mem::take(&mut self.done));
        while let Some(link) = &mut self.link {
            work(link, tools.now, &mut done);
            if done.is_empty() {
                break;
            }
            ended += done.len();
            for (job, result) in done.drain(..) {
                self.ended(job, result, tools);
            }
            // Most requests have one step.
            if self.link.as_ref().is_none_or(|link| !link.has_more()) {
                break;
            }
        }
        self.done = done;
        if ended > 0 {
            self.close_all();
        }
        self.abandon();
        ended
    }

    /// What queues that stop wait for will not come while there is no store: whoever serves them next
    /// finds it in the region of requests in flight.
    pub(super) fn abandon(&mut self) {
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
}
