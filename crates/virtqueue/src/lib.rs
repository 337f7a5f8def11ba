//! Virtqueues, device side: split and packed rings, validated chains, event-idx.
//!
//! A [`Queue`] turns the bytes a driver put into guest memory into [`Chain`]s whose every buffer
//! was checked, and gives them back. It knows nothing of what the buffers mean.
//!
//! **Trust.** Each ring field is read once, into a local, and checked there; what the device
//! itself wrote into shared memory is never read back to be believed (but for the used index of a
//! split ring, once, at the start). A lie is a [`GuestFault`]: it names itself, and it is the whole
//! damage. A pop does the work of one chain, and a chain has at most [`MAX_SEGMENTS`] buffers.
//!
//! **Owner and threads.** A queue belongs to one worker (`&mut`), which alone touches the device
//! side of the rings; the driver is the other party, on other CPUs, ordered by acquire and
//! release on what it publishes and by a full barrier before each notification decision.
//! Nothing here blocks, allocates or logs after [`Queue::new`].
//!
//! **Order.** Chains are completed in the order they were popped, which satisfies drivers with and
//! without `VIRTIO_F_IN_ORDER` alike. A device that completes them in another order, as a disk does, has
//! a [`TrackedQueue`]; it must not offer `VIRTIO_F_IN_ORDER`.

mod chain;
mod count;
mod desc;
mod fault;
mod indirect;
mod inflight;
mod journal;
mod packed;
mod split;

use std::sync::Arc;

use guestmem::{GuestMemory, GuestSlice};

pub use chain::{Chain, MAX_SEGMENTS, Used};
pub use fault::GuestFault;
pub use inflight::{RegionArea, Ticket, TrackedQueue, region_bytes};
pub use journal::{Journal, MAX_TOGETHER};
pub use packed::PackedQueue;
pub use split::SplitQueue;

/// The largest queue size of either format (virtio 1.3, 2.7 and 2.8).
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// What a queue is made of, as negotiated and set up by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Entries: a power of two for a split ring, anything up to 32768 for a packed one.
    pub size: u16,
    /// `VIRTIO_F_RING_PACKED`.
    pub packed: bool,
    /// `VIRTIO_F_EVENT_IDX`.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub indirect: bool,
    /// `VIRTIO_F_IN_ORDER`. The device always completes in order; a driver that counts on it is shown one used descriptor
    /// for many buffers of a packed ring that it only has read.
    pub in_order: bool,
    /// Guest physical address of the descriptor area: table or packed ring.
    pub desc: u64,
    /// Guest physical address of the driver area: avail ring or driver event suppression.
    pub avail: u64,
    /// Guest physical address of the device area: used ring or device event suppression.
    pub used: u64,
    /// Where to go on, as in vhost-user `SET_VRING_BASE` (see [`Queue::base`]).
    ///
    /// A split queue goes on at the used index found in guest memory instead, as every other
    /// implementation does: it is what the driver knows, and the base may be of an earlier time.
    pub base: u32,
}

/// What [`Queue::next`] found.
#[derive(Clone, Copy, Debug)]
pub enum Next<'m> {
    /// Nothing is available.
    Empty,
    /// A chain of one buffer. It was taken; its [`Used`] has `descs` 1.
    One {
        /// The buffer.
        buffer: GuestSlice<'m>,
        /// What the driver knows it by.
        id: u16,
        /// Device-writable, not device-readable.
        writable: bool,
    },
    /// A chain of another form, for [`Queue::pop`].
    Chain,
}

/// What is popped soon, as [`Queue::peek`] shows it: nothing about it has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soon {
    /// Guest physical address of its first buffer, or of its indirect table.
    pub addr: u64,
    /// Length of that in bytes.
    pub len: u32,
    /// It is a table.
    pub indirect: bool,
}

/// A point in the sequence of pops, to go back to. Meaningful for the queue it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(u32);

/// The device side of one virtqueue.
pub enum Queue {
    /// Virtio 1.3, section 2.7.
    Split(SplitQueue),
    /// Virtio 1.3, section 2.8.
    Packed(PackedQueue),
}

/// The same call on either format.
macro_rules! on {
    ($queue:expr, $q:ident => $call:expr) => {
        match $queue {
            Queue::Split($q) => $call,
            Queue::Packed($q) => $call,
        }
    };
}

impl Queue {
    /// Takes over the device side of a ring, with kicks armed.
    ///
    /// # Errors
    /// A size, an address or a base that the format does not allow or that is not in `mem`.
    pub fn new(mem: &Arc<GuestMemory>, cfg: &QueueConfig) -> Result<Queue, GuestFault> {
        if cfg.packed {
            Self::resume(mem, cfg, Journal::private(), cfg.base)
        } else {
            SplitQueue::new(mem, cfg).map(Queue::Split)
        }
    }

    /// The same with a journal, which says where a device that died was.
    ///
    /// `known_base` is what the front end holds for the position, from vhost-user `SET_VRING_BASE`
    /// or an answer to `GET_VRING_BASE`. While that is also the base in `cfg`, a packed queue goes
    /// on where the journal says, if it is of this ring; otherwise the base in `cfg` is right and
    /// the journal begins anew. A split queue needs no journal.
    ///
    /// # Errors
    /// As [`Queue::new`].
    pub fn resume(
        mem: &Arc<GuestMemory>,
        cfg: &QueueConfig,
        journal: Journal,
        known_base: u32,
    ) -> Result<Queue, GuestFault> {
        if cfg.packed {
            PackedQueue::new(mem, cfg, journal, known_base).map(Queue::Packed)
        } else {
            SplitQueue::new(mem, cfg).map(Queue::Split)
        }
    }

    /// Says that the device only reads from this queue, as from a network device's TX queue.
    ///
    /// Entries of a packed ring's indirect tables are then taken for readable whatever their flags
    /// say: DPDK's driver leaves WRITE set on the first entry of its TX tables.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        if let Self::Packed(queue) = &mut self {
            queue.read_only = true;
        }
        self
    }

    /// Takes the next available chain into `chain`; false if there is none.
    ///
    /// `mem` is the memory the queue was made with. On `false` and on a fault nothing was taken
    /// and the contents of `chain` mean nothing.
    ///
    /// # Errors
    /// The lie that was found; see [`GuestFault`].
    #[inline(always)]
    pub fn pop<'m>(
        &mut self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
    ) -> Result<bool, GuestFault> {
        match self.next(mem)? {
            Next::Empty => return Ok(false),
            Next::One { buffer, id, writable } => chain.set_one(buffer, id, writable)?,
            Next::Chain => on!(self, q => q.pop_chain(mem, chain))?,
        }
        Ok(true)
    }

    /// Takes the next chain if it is one direct descriptor, which nearly every frame is: the
    /// quick form of [`Queue::pop`], whose result stays in registers.
    ///
    /// `mem` is the memory the queue was made with. Whatever comes back but [`Next::One`],
    /// nothing was taken.
    ///
    /// # Errors
    /// The lie that was found; see [`GuestFault`].
    #[inline(always)]
    pub fn next<'m>(&mut self, mem: &'m GuestMemory) -> Result<Next<'m>, GuestFault> {
        on!(self, q => q.next(mem))
    }

    /// Takes chains as [`Queue::next`] does as long as they are one direct descriptor each and `each` says so, which is
    /// called with buffer, id, and whether it is writable; at most `count`. Returns what ended that, of which nothing
    /// was taken: [`Next::Empty`] also after the last of so many, and, if there were any, when it would take a look at
    /// the driver's index to know of more.
    ///
    /// # Errors
    /// The lie that was found after those, if there were any; see [`GuestFault`].
    #[inline(always)]
    pub fn next_few<'m>(
        &mut self,
        mem: &'m GuestMemory,
        count: u16,
        each: impl FnMut(GuestSlice<'m>, u16, bool) -> bool,
    ) -> Result<Next<'m>, GuestFault> {
        on!(self, q => q.next_few(mem, count, each))
    }

    /// Gives back the chain that [`Queue::next`] took as [`Next::One`] just now: it will be taken again.
    #[inline]
    pub fn put_back(&mut self) {
        on!(self, q => q.put_back());
    }

    /// The point just before the next chain.
    #[inline]
    pub fn position(&self) -> Position {
        on!(self, q => q.position())
    }

    /// Gives back every chain popped since `position` was taken; none of them may have been
    /// completed. They will be popped again.
    #[inline]
    pub fn rewind(&mut self, position: Position) {
        on!(self, q => q.rewind(position));
    }

    /// Gives chains back to the driver, in the order they were popped.
    ///
    /// The chains of one call, at most [`MAX_TOGETHER`], are one frame: the driver sees all of them
    /// or none. They are shown with the next [`Queue::publish`] at the latest, by a packed ring
    /// perhaps earlier.
    #[inline]
    pub fn complete(&mut self, used: &[Used]) {
        on!(self, q => q.complete(used));
    }

    /// [`Queue::complete`] of frames that are one descriptor each: the ids, and the bytes written.
    #[inline(always)]
    pub fn complete_each(&mut self, frames: impl ExactSizeIterator<Item = (u16, u32)>) {
        on!(self, q => q.complete_each(frames));
    }

    /// Shows the driver everything that was completed: once per burst, before the notification
    /// decision.
    #[inline]
    pub fn publish(&mut self) {
        on!(self, q => q.publish());
    }

    /// Whether the driver wants an interrupt for what was published since the last call.
    ///
    /// Asks the driver's suppression fields behind a full barrier, so that a driver that arms
    /// itself and looks once more never sleeps over a published chain. The first call after the
    /// start answers true unless the driver switched interrupts off altogether.
    #[inline]
    pub fn should_notify(&mut self) -> bool {
        on!(self, q => q.should_notify())
    }

    /// The same look, after which a yes is not forgotten: [`Queue::should_notify`] decides later
    /// about everything published until then. A no is a decision.
    #[inline]
    pub fn wants_notification(&mut self) -> bool {
        on!(self, q => q.wants_notification())
    }

    /// Used buffers (split) or descriptors (packed) the driver was not notified of, and that
    /// nothing was decided about. After the start it is more than any queue has.
    #[inline]
    pub fn undecided(&self) -> u64 {
        on!(self, q => q.unsignalled)
    }

    /// Shows what is popped `ahead` pops from now and after that, `count` as far as they are there, to
    /// have their cache lines fetched early: calls `each` with the number of each among them. Only a
    /// hint: what this reads is read again by the pop, and checked only then.
    ///
    /// Several at once cost much less than each by itself.
    #[inline(always)]
    pub fn peek(&self, ahead: u16, count: u16, each: impl FnMut(u16, Soon)) {
        on!(self, q => q.peek(ahead, count, each));
    }

    /// Has [`Queue::peek`] know of that many pops to come, or half the queue if that is less, as far as the
    /// driver has got. Without this a split queue looks at the driver's index only when it has popped all
    /// that was there the last time, and the last of these cannot be fetched early.
    #[inline]
    pub fn look_ahead(&mut self, pops: u16) {
        on!(self, q => q.look_ahead(pops));
    }

    /// What is popped next, as far as it is there, in the same way.
    #[inline(always)]
    pub fn first(&self) -> Option<Soon> {
        on!(self, q => q.first())
    }

    /// The place in the ring that the next pop reads first, to have it fetched early.
    #[inline]
    pub fn entry(&self) -> GuestSlice<'_> {
        on!(self, q => q.entry())
    }

    /// Whether a pop would find something: one load, nothing checked.
    #[inline]
    pub fn has_available(&self) -> bool {
        on!(self, q => q.has_available())
    }

    /// Asks the driver for a kick with the next chain; true if one is available already, for
    /// which no kick may come.
    pub fn enable_kicks(&mut self) -> bool {
        on!(self, q => q.enable_kicks())
    }

    /// Tells the driver that kicks are not needed. Some may come all the same.
    pub fn disable_kicks(&mut self) {
        on!(self, q => q.disable_kicks());
    }

    /// Where a successor goes on, for vhost-user `GET_VRING_BASE`.
    ///
    /// Split: the next avail index. Packed: bits 0-14 the next slot to pop and bit 15 its wrap
    /// counter, bits 16-30 the next slot to use and bit 31 its wrap counter. Complete or rewind
    /// what was popped, and publish, before asking.
    pub fn base(&self) -> u32 {
        on!(self, q => q.base())
    }
}
