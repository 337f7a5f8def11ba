//! The split ring (virtio 1.3, section 2.7), driver side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use guestmem::GuestMemory;

use super::raw::flags::{INDIRECT, NEXT};
use super::{Buffer, Completed, DriverError, Raw, RawDesc, RingSpec, Shape, descs, write_table};

/// The driver side of a split virtqueue.
pub struct SplitDriver {
    pub(super) spec: RingSpec,
    pub(super) raw: Raw,
    mem: Arc<GuestMemory>,
    /// Free descriptors: taken at the front, given back at the front (like Linux) or, in order, at
    /// the back.
    free: VecDeque<u16>,
    /// The descriptors of each outstanding chain, by head.
    chains: Vec<Vec<u16>>,
    /// Heads in the order added; kept with in-order only.
    order: VecDeque<u16>,
    outstanding: usize,
    /// Where the next chain goes in the avail ring.
    next_avail: u16,
    /// The avail index as the device sees it.
    exposed: u16,
    /// That index at the last kick decision.
    decided: u16,
    /// The next used entry to look at.
    next_used: u16,
}

impl SplitDriver {
    pub(super) fn new(mem: &Arc<GuestMemory>, spec: &RingSpec) -> Result<Self, DriverError> {
        let raw = Raw::new(mem, spec)?;
        let start = spec.start;
        raw.set_avail_flags(0);
        raw.device.store_u16(0, 0);
        raw.set_used_idx(start);
        raw.set_used_event(start);
        raw.set_avail_idx(start);
        Ok(Self {
            free: (0..spec.size).collect(),
            chains: vec![Vec::new(); usize::from(spec.size)],
            order: VecDeque::new(),
            outstanding: 0,
            next_avail: start,
            exposed: start,
            decided: start,
            next_used: start,
            spec: spec.clone(),
            raw,
            mem: Arc::clone(mem),
        })
    }

    pub(super) fn base(&self) -> u32 {
        u32::from(self.next_used)
    }

    pub(super) fn add(
        &mut self,
        readable: &[Buffer],
        writable: &[Buffer],
        shape: Shape,
    ) -> Option<u16> {
        let mut list = descs(readable, writable);
        let direct = match shape {
            Shape::Direct => list.len(),
            Shape::Indirect => 0,
            Shape::Mixed(direct) => direct,
        };
        let table = list.split_off(direct.min(list.len()));
        let needed = list.len() + usize::from(!table.is_empty());
        if needed == 0 || needed > self.free.len() || table.len() > usize::from(self.spec.table_len)
        {
            return None;
        }
        let slots: Vec<u16> = self.free.drain(..needed).collect();
        let head = *slots.first()?;
        if !table.is_empty() {
            list.push(self.table(head, table));
        }
        for (index, desc) in list.iter_mut().enumerate() {
            if let Some(&next) = slots.get(index + 1) {
                desc.flags |= NEXT;
                desc.tag = next;
            }
            self.raw.set_desc(slots[index], desc);
        }
        self.raw.set_avail_entry(self.next_avail % self.spec.size, head);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.chains[usize::from(head)] = slots;
        self.outstanding += 1;
        if self.spec.in_order {
            self.order.push_back(head);
        }
        Some(head)
    }

    /// Writes the table of chain `head`, linked in order; the descriptor that refers to it.
    fn table(&self, head: u16, mut table: Vec<RawDesc>) -> RawDesc {
        let last = table.len() - 1;
        for (index, desc) in table.iter_mut().enumerate().take(last) {
            desc.flags |= NEXT;
            desc.tag = index as u16 + 1;
        }
        let buffer = write_table(&self.mem, &self.spec, head, &table);
        RawDesc { addr: buffer.gpa, len: buffer.len, flags: INDIRECT, tag: 0 }
    }

    pub(super) fn expose(&mut self) {
        self.exposed = self.next_avail;
        self.raw.set_avail_idx(self.exposed);
    }

    pub(super) fn kick_needed(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let (old, new) = (self.decided, self.exposed);
        self.decided = new;
        if self.spec.event_idx {
            // Linux's vring_need_event().
            let event = self.raw.avail_event();
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            new != old && self.raw.used_flags() & 1 == 0
        }
    }

    pub(super) fn has_used(&self) -> bool {
        self.raw.used_idx() != self.next_used
    }

    pub(super) fn collect(&mut self) -> Result<Option<Completed>, DriverError> {
        let ahead = self.raw.used_idx().wrapping_sub(self.next_used);
        if ahead == 0 {
            return Ok(None);
        }
        if usize::from(ahead) > self.outstanding {
            return Err(DriverError::UsedIndex { ahead, outstanding: self.outstanding });
        }
        let (id, len) = self.raw.used_entry(self.next_used % self.spec.size);
        let none = DriverError::NotOutstanding { token: id };
        let token = match u16::try_from(id) {
            Ok(token) if token < self.spec.size => token,
            _ => return Err(none),
        };
        let slots = std::mem::take(&mut self.chains[usize::from(token)]);
        if slots.is_empty() {
            return Err(none);
        }
        if let Some(oldest) = self.order.pop_front() {
            if oldest != token {
                return Err(DriverError::OutOfOrder { token, oldest });
            }
            self.free.extend(slots);
        } else {
            slots.into_iter().rev().for_each(|slot| self.free.push_front(slot));
        }
        self.outstanding -= 1;
        self.next_used = self.next_used.wrapping_add(1);
        Ok(Some(Completed { token, len }))
    }

    pub(super) fn free(&self) -> u16 {
        self.free.len() as u16
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(super) fn enable_interrupts_after(&mut self, skip: u16) -> bool {
        if self.spec.event_idx {
            self.raw.set_used_event(self.next_used.wrapping_add(skip));
        }
        self.raw.set_avail_flags(0);
        fence(Ordering::SeqCst);
        self.has_used()
    }

    pub(super) fn disable_interrupts(&mut self) {
        if self.spec.event_idx {
            // No "never" with event-idx: an entry far behind, which the device is past for sure.
            let behind = self.next_used.wrapping_sub(self.spec.size).wrapping_sub(1);
            self.raw.set_used_event(behind);
        } else {
            self.raw.set_avail_flags(1);
        }
    }
}
