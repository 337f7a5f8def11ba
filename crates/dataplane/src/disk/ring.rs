//! A guest's virtqueue.

use std::io;
use std::sync::Arc;

use disk::request::Ranges;
use disk::{Parsed, Status, parse};
use guestmem::GuestMemory;
use sys::EventFd;
use virtqueue::{Chain, GuestFault, TrackedQueue};

use super::queue::{Fault, Judge, Popped};
use super::request::{Job, Origin, Request, Work};

/// A running virtqueue.
pub(crate) struct Ring {
    queue: TrackedQueue,
    mem: Arc<GuestMemory>,
    /// That of the region of requests in flight.
    region: Option<Arc<GuestMemory>>,
    pub(super) kick: Option<Arc<EventFd>>,
    pub(super) call: Option<Arc<EventFd>>,
    /// The guest was asked to kick.
    armed: bool,
}

impl Ring {
    /// A queue that has just been made, with kicks asked for.
    pub(crate) fn new(
        queue: TrackedQueue,
        mem: Arc<GuestMemory>,
        region: Option<Arc<GuestMemory>>,
        kick: Option<Arc<EventFd>>,
        call: Option<Arc<EventFd>>,
    ) -> Ring {
        Ring { queue, mem, region, kick, call, armed: true }
    }

    pub(super) fn ready(&self) -> bool {
        self.queue.has_available() || self.vanished()
    }

    pub(super) fn vanished(&self) -> bool {
        self.mem.faulted() || self.region.as_ref().is_some_and(|region| region.faulted())
    }

    /// Asks the guest to kick.
    pub(super) fn arm(&mut self) -> bool {
        if !self.armed {
            self.armed = true;
            return self.queue.queue().enable_kicks();
        }
        true
    }

    pub(super) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.queue.queue().disable_kicks();
        }
    }

    pub(super) fn pop(&mut self, judge: &Judge<'_>) -> Result<Popped, Fault> {
        let vanished = self.vanished();
        let fault =
            |fault: GuestFault| Fault { vanished, reason: format!("{}: {fault}", fault.name()) };
        let Ring { queue, mem, .. } = self;
        let (mut chain, mut ranges) = (Chain::new(), Ranges::new());
        let Some(ticket) = queue.pop(mem, &mut chain).map_err(fault)? else {
            return Ok(Popped::Nothing);
        };
        let operation = match parse(mem, &chain, judge.rules, &mut ranges) {
            Parsed::Operation(operation) => operation,
            Parsed::Refused(why, completion) => {
                if let Some(counters) = judge.disk.counters.get(judge.queue) {
                    counters.operations.refused(why);
                }
                let len = completion.finish(mem, why.status());
                queue.complete(ticket, len);
                return Ok(Popped::Answered);
            }
        };
        let (kind, bytes) = (operation.command.kind(), operation.command.bytes());
        let work = Work::of(&operation, mem, &judge.disk.id_bytes);
        let completion = operation.completion;
        let Some((work, segments)) = work else {
            // Not of the memory it was popped from: cannot be.
            queue.complete(ticket, completion.finish(mem, Status::IoError));
            return Ok(Popped::Answered);
        };
        let request = Request {
            disk: judge.disk.id,
            queue: judge.queue as u16,
            origin: Origin::Chain(ticket, completion),
            kind,
            bytes,
            started: judge.now,
            work,
            past_image: false,
        };
        Ok(Popped::Job(Box::new(Job { segments, request })))
    }

    pub(super) fn complete(&mut self, request: Request, result: &io::Result<()>) {
        let status = if result.is_ok() { Status::Ok } else { Status::IoError };
        if let Origin::Chain(ticket, completion) = request.origin {
            let len = completion.finish(&self.mem, status);
            self.queue.complete(ticket, len);
        }
    }

    pub(super) fn publish(&mut self) {
        self.queue.publish();
    }

    /// Shows the guest what has ended. Returns how to interrupt it, if it wants that.
    pub(super) fn tell(&mut self) -> Option<&EventFd> {
        self.queue.publish();
        if self.queue.queue().should_notify() { self.call.as_deref() } else { None }
    }

    pub(super) fn position(&mut self) -> u32 {
        self.queue.queue().base()
    }
}
