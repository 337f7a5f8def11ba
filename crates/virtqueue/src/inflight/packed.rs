//! The region of a packed queue: `QueueRegionPacked`.
//!
//! ```text
//!  0  features (8)  version (2)  desc_num (2)  free_head (2)  old_free_head (2)
//! 16  used_idx (2)  old_used_idx (2)  used_wrap_counter (1)  old_used_wrap_counter (1)  padding
//! 32  for each descriptor: inflight (1)  padding (1)  next (2)  last (2)  num (2)  counter (8)
//!                          id (2)  flags (2)  len (4)  addr (8)
//! ```
//!
//! Entries are in the list of free ones or hold the descriptors of a request: those in the ring may
//! be written over by used ones before it is completed. The `old_` fields are what holds until a
//! completion has reached the ring.

use super::{Descriptor, FEATURES, HEADER, Shared, Ticket, VERSION, fields, get, set, word};
use crate::packed::PackedQueue;
use crate::{Chain, GuestFault};

const POSITION: usize = 16;
const DESCS: usize = 32;
const DESC: usize = 32;
/// Where positions have the wrap counter.
const WRAP: u16 = 1 << 15;

pub(super) fn bytes(size: u16) -> u32 {
    DESCS as u32 + DESC as u32 * u32::from(size)
}

pub(super) struct PackedRegion {
    shared: Shared,
    size: u16,
    /// The links between entries.
    next: Box<[u16]>,
    /// `size` or more: none is free.
    free_head: u16,
    free: u16,
    /// As in the ring.
    used: u16,
    counter: u64,
}

impl PackedRegion {
    /// Reads a predecessor's region, or begins a new one; puts `queue` behind what is in flight.
    pub(super) fn take_over(
        shared: Shared,
        queue: &mut PackedQueue,
    ) -> Result<(Self, Vec<Ticket>), GuestFault> {
        let (size, used) = (queue.size(), queue.used_after(0));
        let header = shared.header(size)?;
        let next = (1..=size).collect();
        let mut region = Self { shared, size, next, free_head: 0, free: size, used, counter: 0 };
        let Some([_, _, free_head, old_free_head]) = header else {
            region.begin();
            return Ok((region, Vec::new()));
        };
        let [used, old_used] = region.positions().ok_or(GuestFault::InflightRegion)?;
        // A completion was under way: it counts if the driver can see it.
        let seen = used != old_used && !queue.is_available(old_used);
        (region.free_head, region.used) =
            if seen { (free_head, used) } else { (old_free_head, old_used) };
        // Before the second of these the same is found once more.
        region.store_header(region.free_head);
        region.store_position(region.used);

        for entry in 0..size {
            let [_, next, _, _] = fields(region.shared.load(at(entry)));
            set(&mut region.next, entry, next);
        }
        let again = region.requests()?;
        let slots = size - region.free;
        queue.go_on(region.used, slots);
        Ok((region, again))
    }

    /// The version last: until then it is a new one.
    fn begin(&self) {
        self.shared.store(FEATURES, 0);
        for entry in 0..self.size {
            self.store_entry(entry, false, entry, 0);
        }
        self.store_position(self.used);
        self.store_header(self.free_head);
    }

    /// The requests in flight, oldest first; counts and unmarks the entries that are free. Every
    /// entry must be in one list, once.
    fn requests(&mut self) -> Result<Vec<Ticket>, GuestFault> {
        let mut seen = vec![false; self.size.into()];
        let mut see = |entry: u16| match seen.get_mut(usize::from(entry)) {
            Some(seen @ false) => {
                *seen = true;
                Ok(())
            }
            _ => Err(GuestFault::InflightRegion),
        };
        self.free = 0;
        let mut entry = self.free_head;
        while entry < self.size {
            see(entry)?;
            self.free += 1;
            self.store_entry(entry, false, entry, 0);
            entry = get(&self.next, entry);
        }
        let mut found = Vec::new();
        let mut slots = 0;
        for first in 0..self.size {
            let [inflight, _, last, num] = fields(self.shared.load(at(first)));
            if inflight as u8 == 0 {
                continue;
            }
            let mut entry = first;
            for count in 1..=num {
                see(entry)?;
                if count != num {
                    entry = get(&self.next, entry);
                }
            }
            if num == 0 || entry != last {
                return Err(GuestFault::InflightRegion);
            }
            slots += num;
            let counter = self.shared.load(at(first) + 8);
            found.push((counter, Ticket { id: 0, descs: num, first, last }));
        }
        if self.free + slots != self.size {
            return Err(GuestFault::InflightRegion);
        }
        found.sort_unstable_by_key(|(counter, ticket)| (*counter, ticket.first));
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(found.into_iter().map(|(_, ticket)| ticket).collect())
    }

    /// Before a chain that was popped is submitted. `descs` are its descriptors in the ring, for a
    /// successor to check as it would those in the ring.
    pub(super) fn take(
        &mut self,
        chain: &Chain<'_>,
        descs: impl Iterator<Item = Descriptor>,
    ) -> Result<Ticket, GuestFault> {
        // Never so: entries are as many as slots, and both are given back together.
        if chain.descs > self.free {
            return Err(GuestFault::InflightRegion);
        }
        let first = self.free_head;
        let (mut last, mut free) = (first, first);
        for desc in descs {
            let rest = word([desc.tag, desc.flags, desc.len as u16, (desc.len >> 16) as u16]);
            self.shared.store(at(free) + 16, rest);
            self.shared.store(at(free) + 24, desc.addr);
            (last, free) = (free, get(&self.next, free));
        }
        self.shared.store(at(first) + 8, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store_entry(first, true, last, chain.descs);
        // The list last: an entry that is in it is not in flight.
        self.free_head = free;
        self.store_header(free);
        self.free -= chain.descs;
        Ok(Ticket { id: chain.id, descs: chain.descs, first, last })
    }

    /// The descriptors of a request, as they were in the ring.
    pub(super) fn saved(&self, ticket: &Ticket) -> impl Iterator<Item = Descriptor> {
        let mut entry = ticket.first;
        (0..ticket.descs).map(move |_| {
            let [tag, flags, low, high] = fields(self.shared.load(at(entry) + 16));
            let addr = self.shared.load(at(entry) + 24);
            entry = get(&self.next, entry);
            Descriptor { addr, len: u32::from(low) | u32::from(high) << 16, flags, tag }
        })
    }

    /// Before the used descriptor is stored into the ring, after which the position is `used`.
    pub(super) fn complete(&mut self, ticket: &Ticket, used: u16) {
        let (old_free_head, old_used) = (self.free_head, self.used);
        set(&mut self.next, ticket.last, old_free_head);
        if ticket.last == ticket.first {
            self.store_entry(ticket.first, true, ticket.last, ticket.descs);
        } else {
            self.store_entry(ticket.last, false, ticket.last, 0);
        }
        self.free_head = ticket.first;
        self.free += ticket.descs;
        self.used = used;
        let header = [VERSION, self.size, self.free_head, old_free_head];
        self.shared.store(HEADER, word(header));
        // From here on the ring decides.
        self.shared.store(POSITION, position(used, old_used));
    }

    /// The driver can see it. Until the position is stored, a successor sees that too.
    pub(super) fn completed(&mut self, ticket: &Ticket) {
        self.store_entry(ticket.first, false, ticket.last, 0);
        self.store_header(self.free_head);
        self.store_position(self.used);
    }

    fn store_entry(&self, entry: u16, inflight: bool, last: u16, num: u16) {
        let next = get(&self.next, entry);
        self.shared.store(at(entry), word([inflight.into(), next, last, num]));
    }

    fn store_header(&self, free_head: u16) {
        self.shared.store(HEADER, word([VERSION, self.size, free_head, free_head]));
    }

    fn store_position(&self, used: u16) {
        self.shared.store(POSITION, position(used, used));
    }

    /// The used position and the old one, with the wrap counter in bit 15, if they are in the ring.
    fn positions(&self) -> Option<[u16; 2]> {
        let [used, old, wraps, _] = fields(self.shared.load(POSITION));
        let [wrap, old_wrap] = wraps.to_le_bytes();
        let place = |index: u16, wrap: u8| {
            (index < self.size).then_some(if wrap == 0 { index } else { index | WRAP })
        };
        Some([place(used, wrap)?, place(old, old_wrap)?])
    }
}

fn position(used: u16, old: u16) -> u64 {
    let wraps = u16::from_le_bytes([used, old].map(|position| (position >> 15) as u8));
    word([used & !WRAP, old & !WRAP, wraps, 0])
}

fn at(entry: u16) -> usize {
    DESCS + DESC * usize::from(entry)
}
