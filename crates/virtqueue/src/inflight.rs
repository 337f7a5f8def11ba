//! Requests in flight, for devices that complete them in any order: written down in memory shared
//! with the front end, so that a successor of a device that died submits them again.
//!
//! The layout is that of vhost-user, "Inflight I/O tracking": one region for each queue, in a file
//! that `VHOST_USER_GET_INFLIGHT_FD` hands out and `VHOST_USER_SET_INFLIGHT_FD` brings back. A
//! region lies in a [`GuestMemory`](guestmem::GuestMemory) of its own, mapped from that file, so
//! that a front end which cuts the file off ends its own session only.
//!
//! **Order.** A request is in the region before it is submitted, and leaves it after the driver can
//! see it used. Every step is one store of a word, and the comments say what a successor does if it
//! was the last one. So no request is lost; one that was carried out may be carried out again, but
//! only if the driver was not told, and in the order in which the driver made them available.
//!
//! **Trust.** What this device stores it knows by itself. It reads a region once, when it starts;
//! what makes no sense then is [`GuestFault::InflightRegion`](crate::GuestFault::InflightRegion).

mod packed;
mod split;

use std::collections::VecDeque;
use std::sync::Arc;

use guestmem::{GuestMemory, RingArea};

use crate::desc::Descriptor;
use crate::{Chain, GuestFault, Queue, QueueConfig, Used};
use packed::PackedRegion;
use split::SplitRegion;

/// The version of both layouts.
const VERSION: u16 = 1;
/// Regions begin at multiples of this, in bytes, as in other implementations.
const ALIGN: u32 = 64;
/// Words in the header that both layouts have.
const FEATURES: usize = 0;
const HEADER: usize = 8;

/// Bytes of the region of one queue of `size` entries: a multiple of 64. Region `n` of a buffer
/// begins at `n` times that.
#[must_use]
pub fn region_bytes(packed: bool, size: u16) -> u32 {
    let bytes = if packed { packed::bytes(size) } else { split::bytes(size) };
    bytes.next_multiple_of(ALIGN)
}

/// A request that was popped: to be completed once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request that is not completed keeps its guest waiting"]
pub struct Ticket {
    id: u16,
    descs: u16,
    /// Packed: the entries of the region.
    first: u16,
    last: u16,
}

/// A queue whose chains may be completed in any order, and whose requests in flight outlive the
/// device if it has a region.
///
/// For notifications and positions see [`TrackedQueue::queue`]. A queue that is stopped in order
/// has nothing in flight: [`TrackedQueue::in_flight`].
pub struct TrackedQueue {
    queue: Queue,
    region: Region,
    /// Requests of the predecessor, in the order in which they were popped.
    again: VecDeque<Ticket>,
    in_flight: u16,
}

enum Region {
    Split(SplitRegion),
    Packed(PackedRegion),
}

/// The region of a queue, in words of 8 bytes.
pub type RegionArea = RingArea<8>;

impl TrackedQueue {
    /// Takes over the device side of a ring, and what a predecessor had in flight.
    ///
    /// `region` is that of this queue, at least [`region_bytes`] long and aligned to 8, all zero if
    /// it is new: a new ring comes with a new region. `None`: nobody will come after this device.
    ///
    /// # Errors
    /// As [`Queue::new`]; [`GuestFault::InflightRegion`].
    pub fn new(
        mem: &Arc<GuestMemory>,
        cfg: &QueueConfig,
        region: Option<RegionArea>,
    ) -> Result<TrackedQueue, GuestFault> {
        let mut queue = Queue::new(mem, cfg)?;
        let needed = region_bytes(cfg.packed, cfg.size) as usize;
        if region.as_ref().is_some_and(|area| area.len() < needed) {
            return Err(GuestFault::InflightRegion);
        }
        let shared = Shared(region);
        let (region, again) = match &mut queue {
            Queue::Split(queue) => {
                let (region, again) = SplitRegion::take_over(shared, queue)?;
                (Region::Split(region), again)
            }
            Queue::Packed(queue) => {
                let (region, again) = PackedRegion::take_over(shared, queue)?;
                (Region::Packed(region), again)
            }
        };
        queue.enable_kicks();
        let in_flight = again.len() as u16;
        Ok(TrackedQueue { queue, region, again: again.into(), in_flight })
    }

    /// Takes the next request: those of the predecessor first, then new ones. `None`: there is no
    /// other.
    ///
    /// `mem` is the memory the queue was made with.
    ///
    /// # Errors
    /// The lie that was found; nothing was taken.
    pub fn pop<'m>(
        &mut self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
    ) -> Result<Option<Ticket>, GuestFault> {
        if let Some(ticket) = self.again.front() {
            match (&mut self.queue, &self.region) {
                (Queue::Split(queue), _) => queue.chain_at(mem, chain, ticket.id)?,
                (Queue::Packed(queue), Region::Packed(region)) => {
                    queue.chain_of(mem, chain, region.saved(ticket))?;
                }
                (Queue::Packed(_), Region::Split(_)) => return Err(GuestFault::InflightRegion),
            }
            return Ok(self.again.pop_front().map(|ticket| Ticket { id: chain.id, ..ticket }));
        }
        let before = self.queue.position();
        if !self.queue.pop(mem, chain)? {
            return Ok(None);
        }
        let taken = match (&self.queue, &mut self.region) {
            (Queue::Packed(queue), Region::Packed(region)) => {
                region.take(chain, queue.since(before))
            }
            (_, Region::Split(region)) => region.take(chain),
            (Queue::Split(_), Region::Packed(_)) => Err(GuestFault::InflightRegion),
        };
        match taken {
            Ok(ticket) => {
                self.in_flight += 1;
                Ok(Some(ticket))
            }
            Err(fault) => {
                self.queue.rewind(before);
                Err(fault)
            }
        }
    }

    /// Gives a request back to the driver, with `len` bytes written into it. It is shown with the
    /// next [`TrackedQueue::publish`] at the latest.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is good for once")]
    pub fn complete(&mut self, ticket: Ticket, len: u32) {
        let used = Used { id: ticket.id, descs: ticket.descs, len };
        self.in_flight = self.in_flight.saturating_sub(1);
        match &mut self.region {
            Region::Split(region) => {
                region.complete(&ticket);
                self.queue.complete(&[used]);
            }
            // One by one: what a predecessor showed of a batch before it died could not be told
            // from what its successor shows.
            Region::Packed(region) => {
                let Queue::Packed(queue) = &mut self.queue else { return };
                region.complete(&ticket, queue.used_after(ticket.descs));
                queue.complete(&[used]);
                queue.publish();
                region.completed(&ticket);
            }
        }
    }

    /// Shows the driver everything that was completed: once per burst, before the notification
    /// decision.
    pub fn publish(&mut self) {
        if let Region::Split(region) = &mut self.region
            && region.has_completed()
        {
            self.queue.publish();
            region.published();
        }
    }

    /// Requests popped and not completed, or still to be popped again.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Whether a pop would find something: one load, nothing checked.
    #[must_use]
    pub fn has_available(&self) -> bool {
        !self.again.is_empty() || self.queue.has_available()
    }

    /// The ring, for kicks, notifications and positions. What was popped here is not to be rewound
    /// or completed there.
    pub fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }
}

/// The words of a region; without one, stores go nowhere.
struct Shared(Option<RegionArea>);

impl Shared {
    /// Seen by a successor in the order of the program.
    fn store(&self, offset: usize, word: u64) {
        #[cfg(test)]
        if crate::journal::fuse::blown() {
            return;
        }
        if let Some(area) = &self.0 {
            area.store_u64_release(offset, word);
        }
    }

    fn load(&self, offset: usize) -> u64 {
        self.0.as_ref().map_or(0, |area| area.load_u64(offset))
    }

    /// The header of a region in use by a queue of this size; `None` if it is new.
    fn header(&self, size: u16) -> Result<Option<[u16; 4]>, GuestFault> {
        let header = fields(self.load(HEADER));
        match header {
            [0, ..] => Ok(None),
            [VERSION, desc_num, ..] if desc_num == size && self.load(FEATURES) == 0 => {
                Ok(Some(header))
            }
            _ => Err(GuestFault::InflightRegion),
        }
    }
}

/// Four 16-bit fields of a word, the first one first in memory.
fn fields(word: u64) -> [u16; 4] {
    [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16]
}

fn word(fields: [u16; 4]) -> u64 {
    fields.iter().rev().fold(0, |word, field| word << 16 | u64::from(*field))
}

/// Sets a field of a row that is indexed by what was checked.
fn set<T>(row: &mut [T], index: u16, value: T) {
    if let Some(place) = row.get_mut(usize::from(index)) {
        *place = value;
    }
}

fn get<T: Copy + Default>(row: &[T], index: u16) -> T {
    row.get(usize::from(index)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
