//! The packed ring (virtio 1.3, section 2.8), driver side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use guestmem::GuestMemory;

use super::raw::flags::{AVAIL, INDIRECT, NEXT, USED};
use super::{Buffer, Completed, DriverError, Raw, RawDesc, RingSpec, Shape, descs, write_table};

/// Where a position has its wrap counter.
const WRAP: u16 = 1 << 15;
/// Event suppression flags.
const DISABLE: u16 = 1;
const DESC: u16 = 2;

/// The driver side of a packed virtqueue.
pub struct PackedDriver {
    pub(super) spec: RingSpec,
    pub(super) raw: Raw,
    mem: Arc<GuestMemory>,
    free: u16,
    /// Free buffer ids.
    ids: VecDeque<u16>,
    /// Ring descriptors of each outstanding chain, by buffer id; 0: not outstanding.
    chains: Vec<u16>,
    /// Ids in the order added; kept with in-order only.
    order: VecDeque<u16>,
    /// The last id of those that a used descriptor stands for and that were not all collected; with in-order only.
    shown: Option<u16>,
    outstanding: usize,
    /// The next slot to fill, and to look at for a used descriptor; bit 15 is the wrap counter.
    next_avail: u16,
    next_used: u16,
    /// Chains added and not exposed: slot of the first descriptor, its flags, descriptors.
    hidden: Vec<(u16, u16, u16)>,
    /// `next_avail` at the last [`super::DriverQueue::expose`].
    exposed: u16,
    /// Descriptors exposed since the last kick decision.
    undecided: u32,
}

impl PackedDriver {
    pub(super) fn new(mem: &Arc<GuestMemory>, spec: &RingSpec) -> Result<Self, DriverError> {
        let raw = Raw::new(mem, spec)?;
        let start = spec.start;
        for slot in 0..spec.size {
            // Slots before the start were used in this lap, the others in the one before.
            let wrap = (slot < start & !WRAP) == (start & WRAP != 0);
            raw.set_desc_flags(slot, if wrap { AVAIL | USED } else { 0 });
        }
        raw.set_driver_event(0, 0);
        raw.device.store_u32(0, 0);
        Ok(Self {
            free: spec.size,
            ids: (0..spec.size).collect(),
            chains: vec![0; usize::from(spec.size)],
            order: VecDeque::new(),
            shown: None,
            outstanding: 0,
            next_avail: start,
            next_used: start,
            hidden: Vec::new(),
            exposed: start,
            undecided: 0,
            spec: spec.clone(),
            raw,
            mem: Arc::clone(mem),
        })
    }

    pub(super) fn base(&self) -> u32 {
        u32::from(self.next_used) << 16 | u32::from(self.next_used)
    }

    /// `count` slots on, at most one lap.
    fn advance(&self, at: u16, count: u16) -> u16 {
        let slot = (at & !WRAP) + count;
        if slot >= self.spec.size {
            (slot - self.spec.size) | (!at & WRAP)
        } else {
            slot | at & WRAP
        }
    }

    pub(super) fn add(
        &mut self,
        readable: &[Buffer],
        writable: &[Buffer],
        shape: Shape,
    ) -> Option<u16> {
        let mut list = descs(readable, writable);
        let indirect = match shape {
            Shape::Direct => false,
            Shape::Indirect => true,
            Shape::Mixed(_) => return None,
        };
        let needed = if indirect { 1 } else { list.len() };
        let tables = usize::from(self.spec.table_len);
        if list.is_empty() || needed > usize::from(self.free) || indirect && list.len() > tables {
            return None;
        }
        let id = self.ids.pop_front()?;
        if indirect {
            let table = write_table(&self.mem, &self.spec, id, &list);
            list = vec![RawDesc { addr: table.gpa, len: table.len, flags: INDIRECT, tag: 0 }];
        }
        let head = self.next_avail & !WRAP;
        let mut head_flags = 0;
        let last = list.len() - 1;
        for (index, desc) in list.iter().enumerate() {
            let slot = self.next_avail & !WRAP;
            let mark = if self.next_avail & WRAP != 0 { AVAIL } else { USED };
            let flags = desc.flags | mark | if index < last { NEXT } else { 0 };
            // The first one keeps its old marks until it is exposed.
            let shown = if index == 0 { self.raw.desc_flags(slot) } else { flags };
            if index == 0 {
                head_flags = flags;
            }
            self.raw.set_desc(slot, &RawDesc { flags: shown, tag: id, ..*desc });
            self.next_avail = self.advance(self.next_avail, 1);
        }
        self.hidden.push((head, head_flags, list.len() as u16));
        self.chains[usize::from(id)] = list.len() as u16;
        self.free -= list.len() as u16;
        self.outstanding += 1;
        if self.spec.in_order {
            self.order.push_back(id);
        }
        Some(id)
    }

    pub(super) fn expose(&mut self) {
        self.exposed = self.next_avail;
        // Last first: once the device sees the first of them it may see all.
        while let Some((slot, flags, descs)) = self.hidden.pop() {
            self.undecided = self.undecided.saturating_add(descs.into());
            self.raw.set_desc_flags(slot, flags);
        }
    }

    pub(super) fn kick_needed(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let since = std::mem::take(&mut self.undecided);
        let (event, flags) = self.raw.device_event();
        if since == 0 || flags & 3 == DISABLE {
            return false;
        }
        if flags & 3 != DESC || since >= self.spec.size.into() {
            return true;
        }
        // As Linux does it: positions as distances, the event a lap back if its counter differs.
        let new = self.exposed & !WRAP;
        let back = if (event ^ self.exposed) & WRAP != 0 { self.spec.size } else { 0 };
        let event = (event & !WRAP).wrapping_sub(back);
        u32::from(new.wrapping_sub(event).wrapping_sub(1)) < since
    }

    pub(super) fn has_used(&self) -> bool {
        if self.shown.is_some() {
            return true;
        }
        let flags = self.raw.desc_flags(self.next_used & !WRAP);
        flags & (AVAIL | USED) == if self.next_used & WRAP != 0 { AVAIL | USED } else { 0 }
    }

    pub(super) fn collect(&mut self) -> Result<Option<Completed>, DriverError> {
        if self.outstanding == 0 || !self.has_used() {
            return Ok(None);
        }
        let (mut len, mut token) = match self.shown {
            Some(last) => (0, last),
            None => {
                let RawDesc { len, tag, .. } = self.raw.desc(self.next_used & !WRAP);
                (len, tag)
            }
        };
        if self.chains.get(usize::from(token)).is_none_or(|descs| *descs == 0) {
            return Err(DriverError::NotOutstanding { token: token.into() });
        }
        if let Some(oldest) = self.order.pop_front() {
            // It stands for all that were added before it, too; their lengths are not told.
            self.shown = (oldest != token).then_some(token);
            if oldest != token {
                (len, token) = (0, oldest);
            }
            self.ids.push_back(token);
        } else {
            self.ids.push_front(token);
        }
        let descs = std::mem::take(&mut self.chains[usize::from(token)]);
        self.next_used = self.advance(self.next_used, descs);
        self.free += descs;
        self.outstanding -= 1;
        Ok(Some(Completed { token, len }))
    }

    pub(super) fn free(&self) -> u16 {
        self.free
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(super) fn enable_interrupts_after(&mut self, skip: u16) -> bool {
        if self.spec.event_idx {
            self.raw.set_driver_event(self.advance(self.next_used, skip), DESC);
        } else {
            self.raw.set_driver_event(0, 0);
        }
        fence(Ordering::SeqCst);
        self.has_used()
    }

    pub(super) fn disable_interrupts(&mut self) {
        self.raw.set_driver_event(0, DISABLE);
    }
}
