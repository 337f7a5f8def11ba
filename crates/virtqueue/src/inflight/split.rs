//! The region of a split queue: `QueueRegionSplit`.
//!
//! ```text
//!  0  features (8)  version (2)  desc_num (2)  last_batch_head (2)  used_idx (2)
//! 16  for each descriptor: inflight (1)  padding (5)  next (2)  counter (8)
//! ```

use super::{FEATURES, HEADER, Shared, Ticket, VERSION, fields, get, set, word};
use crate::split::SplitQueue;
use crate::{Chain, GuestFault};

const DESCS: usize = 16;
const DESC: usize = 16;

pub(super) fn bytes(size: u16) -> u32 {
    DESCS as u32 + DESC as u32 * u32::from(size)
}

pub(super) struct SplitRegion {
    shared: Shared,
    size: u16,
    /// Which heads the device has.
    busy: Box<[bool]>,
    /// Heads completed since the last publication, each with the one that was head of the list.
    batch: Vec<(u16, u16)>,
    last_batch_head: u16,
    used_idx: u16,
    counter: u64,
}

impl SplitRegion {
    /// Reads a predecessor's region, or begins a new one; puts `queue` behind what is in flight.
    pub(super) fn take_over(
        shared: Shared,
        queue: &mut SplitQueue,
    ) -> Result<(Self, Vec<Ticket>), GuestFault> {
        let size = queue.size();
        let used_idx = queue.used_idx();
        let header = shared.header(size)?;
        let mut region = Self {
            shared,
            size,
            busy: vec![false; size.into()].into(),
            batch: Vec::with_capacity(size.into()),
            last_batch_head: header.map_or(0, |[_, _, head, _]| head),
            used_idx,
            counter: 0,
        };
        let Some([_, _, head, before]) = header else {
            region.begin();
            return Ok((region, Vec::new()));
        };
        region.end_batch(head, used_idx.wrapping_sub(before))?;
        // Before this, a successor ends the same batch once more.
        region.store_header();

        let mut found = Vec::new();
        for head in 0..size {
            if region.shared.load(at(head)) as u8 != 0 {
                found.push((region.shared.load(at(head) + 8), head));
                set(&mut region.busy, head, true);
            }
        }
        found.sort_unstable();
        region.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        if !queue.skip_in_flight(found.len() as u16) {
            return Err(GuestFault::InflightRegion);
        }
        Ok((region, found.into_iter().map(|(_, head)| ticket(head)).collect()))
    }

    /// The version last: until then it is a new one.
    fn begin(&self) {
        self.shared.store(FEATURES, 0);
        for head in 0..self.size {
            self.shared.store(at(head), 0);
        }
        self.store_header();
    }

    /// The driver saw a batch of so many used, which may still be marked: unmarks them.
    fn end_batch(&self, head: u16, count: u16) -> Result<(), GuestFault> {
        if count > self.size {
            // A ring that was started anew: of no matter if nothing was in flight.
            let idle = (0..self.size).all(|head| self.shared.load(at(head)) as u8 == 0);
            return if idle { Ok(()) } else { Err(GuestFault::InflightRegion) };
        }
        let mut head = head;
        for _ in 0..count {
            if head >= self.size {
                return Err(GuestFault::InflightRegion);
            }
            let [_, _, _, next] = fields(self.shared.load(at(head)));
            self.mark(head, false, next);
            head = next;
        }
        Ok(())
    }

    /// Before a chain that was popped is submitted.
    pub(super) fn take(&mut self, chain: &Chain<'_>) -> Result<Ticket, GuestFault> {
        let head = chain.id;
        if get(&self.busy, head) {
            return Err(GuestFault::HeadInUse { head });
        }
        set(&mut self.busy, head, true);
        // The mark last: without it the chain is popped again.
        self.shared.store(at(head) + 8, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.mark(head, true, 0);
        Ok(ticket(head))
    }

    /// Adds to the batch that is published next. Until it is published, all of it is in flight.
    pub(super) fn complete(&mut self, ticket: &Ticket) {
        let head = ticket.id;
        let next = self.last_batch_head;
        self.mark(head, true, next);
        self.last_batch_head = head;
        self.store_header();
        self.batch.push((head, next));
    }

    pub(super) fn has_completed(&self) -> bool {
        !self.batch.is_empty()
    }

    /// The driver can see the batch. Until the index is stored, a successor unmarks it once more.
    pub(super) fn published(&mut self) {
        self.used_idx = self.used_idx.wrapping_add(self.batch.len() as u16);
        for &(head, next) in &self.batch {
            self.mark(head, false, next);
            set(&mut self.busy, head, false);
        }
        self.store_header();
        self.batch.clear();
    }

    fn mark(&self, head: u16, inflight: bool, next: u16) {
        self.shared.store(at(head), word([inflight.into(), 0, 0, next]));
    }

    fn store_header(&self) {
        let header = [VERSION, self.size, self.last_batch_head, self.used_idx];
        self.shared.store(HEADER, word(header));
    }
}

fn at(head: u16) -> usize {
    DESCS + DESC * usize::from(head)
}

fn ticket(head: u16) -> Ticket {
    Ticket { id: head, descs: 1, first: head, last: head }
}
