//! Interrupts a worker owes to guests: put off so that more frames gather.
//!
//! The worker that puts an interrupt off notes it here, in its own list, and looks at the list
//! whenever it looks at the clock, and before it rests. That the guest is owed something is written
//! in its queue ([`LiveRx::waiting`]), behind the queue's lock: whoever ends the wait first, this
//! worker or another that delivers frames, makes the decision, and a note of a wait that has ended
//! is dropped.
//!
//! [`LiveRx::waiting`]: crate::port::vhost::rx::LiveRx::waiting

use arrayvec::ArrayVec;
use pace::{End, Wait};
use switch::PortId;

use crate::clock::Clock;
use crate::port::vhost::rx::RxQueue;
use crate::port::{Kind, PortMap};

/// Most queues that may be owed an interrupt by one worker; to others it is given at once.
const OWED_MAX: usize = 32;

/// A guest's RX queue: its port and the index of its queue pair.
pub(crate) type Place = (PortId, u16);

/// What one worker owes.
#[derive(Debug)]
pub(crate) struct Owed {
    clock: Clock,
    notes: ArrayVec<Note, OWED_MAX>,
}

/// One interrupt that was put off.
#[derive(Debug)]
struct Note {
    place: Place,
    wait: Wait,
    /// Frames the queue had delivered when it was last looked at, and when the last of them came.
    frames: u64,
    came: u64,
}

impl Note {
    /// When the wait ends if no frame comes, and how.
    fn due(&self) -> (u64, End) {
        match self.wait.patience.map(|patience| self.came + patience) {
            Some(quiet) if quiet < self.wait.until => (quiet, End::Quiet),
            _ => (self.wait.until, End::Due),
        }
    }
}

impl Owed {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, notes: ArrayVec::new() }
    }

    /// Nanoseconds since the data plane started.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// Notes a wait that began at `now` with `frames` delivered, in place of an earlier one of the
    /// same queue. Returns false if there is no room.
    pub(crate) fn note(&mut self, place: Place, wait: Wait, frames: u64, now: u64) -> bool {
        self.notes.retain(|note| note.place != place);
        self.notes.try_push(Note { place, wait, frames, came: now }).is_ok()
    }

    /// Ends the waits that are over at `now`.
    pub(crate) fn settle(&mut self, ports: &PortMap, now: u64) {
        self.notes.retain(|note| note.look(ports, now) && !note.settle_if(ports, now, now));
    }

    /// Before a rest from `now` to `end`: ends the waits that are over, and those that would end
    /// meanwhile for want of frames, which nobody would see coming. Returns when the rest must end
    /// for the others.
    pub(crate) fn settle_for_rest(&mut self, ports: &PortMap, now: u64, end: u64) -> u64 {
        self.notes.retain(|note| {
            let by = if note.wait.patience.is_some() { end } else { now };
            note.look(ports, now) && !note.settle_if(ports, now, by)
        });
        self.notes.iter().map(|note| note.due().0).fold(end, u64::min)
    }
}

impl Note {
    /// Looks whether frames came. Returns false if the queue is gone.
    fn look(&mut self, ports: &PortMap, now: u64) -> bool {
        let Some(queue) = queue(ports, self.place) else { return false };
        let frames = queue.counters.frames.get();
        if frames != self.frames {
            (self.frames, self.came) = (frames, now);
        }
        true
    }

    /// Ends the wait if it is over at `by`, unless somebody else has done so. Returns whether it is
    /// over.
    fn settle_if(&self, ports: &PortMap, now: u64, by: u64) -> bool {
        let (due, end) = self.due();
        if due > by {
            return false;
        }
        if let Some(queue) = queue(ports, self.place)
            && let Some(live) = queue.live.lock().as_mut()
            && live.waiting == Some(self.wait)
        {
            let end = if due > now { End::Rest } else { end };
            live.settle(end, &queue.counters, now);
        }
        true
    }
}

fn queue(ports: &PortMap, (port, index): Place) -> Option<&RxQueue> {
    match &ports.get(port)?.kind {
        Kind::Vhost(vhost) => vhost.rx.get(usize::from(index)),
        Kind::Tap(_) => None,
    }
}
