//! The packed ring (virtio 1.3, section 2.8), device side.
//!
//! One ring of descriptors that both sides write. Whose turn a slot is shows in two flag bits
//! compared with a wrap counter, which flips with every lap. Two cursors go round: `avail`, the
//! next descriptor to pop, and `used`, where the next used descriptor is written; the slots
//! between them are in the device's hands.

mod cursor;
mod resume;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use guestmem::{GuestMemory, GuestSlice, RingArea};

use crate::chain::buffer;
use crate::desc::{AVAIL, DESC_SIZE, Descriptor, INDIRECT, NEXT, USED, WRITE, table_entry};
use crate::indirect::table;
use crate::journal::{Journal, MAX_TOGETHER, Note, Step};
use crate::{Chain, GuestFault, MAX_QUEUE_SIZE, Next, Position, QueueConfig, Soon, Used};

use cursor::Cursor;

/// Offset of the flags in a descriptor.
const FLAGS: usize = 14;
/// Offset of length, id and flags, which are one word.
const WORD: usize = 8;
/// The two flags that say whose turn a slot is.
const MARKS: u16 = AVAIL | USED;
/// Event suppression (2.8.14): notify always, never, or at one descriptor (event-idx only).
const EVENT_ENABLE: u32 = 0;
const EVENT_DISABLE: u32 = 1;
const EVENT_DESC: u32 = 2;

/// The device side of a packed virtqueue.
pub struct PackedQueue {
    ring: RingArea<16>,
    driver: RingArea<4>,
    device: RingArea<4>,
    size: u16,
    event_idx: bool,
    indirect: bool,
    in_order: bool,
    /// See [`crate::Queue::read_only`].
    pub(crate) read_only: bool,
    /// The next descriptor to pop.
    avail: Cursor,
    /// The next descriptor to mark used.
    used: Cursor,
    /// Descriptors used since the last notification decision.
    pub(crate) unsignalled: u64,
    /// Used descriptors not shown yet, and the position for a successor.
    journal: Journal,
    /// How many are not shown yet.
    pending: usize,
    /// The descriptor in the place of the first of them.
    first: [u64; 2],
}

impl PackedQueue {
    pub(crate) fn new(
        mem: &Arc<GuestMemory>,
        cfg: &QueueConfig,
        journal: Journal,
        known_base: u32,
    ) -> Result<Self, GuestFault> {
        let size = cfg.size;
        if size == 0 || size > MAX_QUEUE_SIZE {
            return Err(GuestFault::QueueSize { size });
        }
        let mem = || Arc::clone(mem);
        let ring = RingArea::new(mem(), cfg.desc, u32::from(size) * DESC_SIZE as u32)
            .ok_or(GuestFault::DescriptorArea { addr: cfg.desc })?;
        let driver =
            RingArea::new(mem(), cfg.avail, 4).ok_or(GuestFault::DriverArea { addr: cfg.avail })?;
        let device =
            RingArea::new(mem(), cfg.used, 4).ok_or(GuestFault::DeviceArea { addr: cfg.used })?;
        let base = last_used(cfg.base);
        if base.index() >= size {
            return Err(GuestFault::Base { base: cfg.base, size });
        }
        let mut queue = Self {
            ring,
            driver,
            device,
            size,
            event_idx: cfg.event_idx,
            indirect: cfg.indirect,
            in_order: cfg.in_order,
            read_only: false,
            avail: base,
            used: base,
            unsignalled: FORCE,
            journal,
            pending: 0,
            first: [0; 2],
        };
        queue.start(cfg, known_base, base);
        queue.enable_kicks();
        Ok(queue)
    }

    /// See [`crate::Queue::next`].
    #[inline(always)]
    pub fn next<'m>(&mut self, mem: &'m GuestMemory) -> Result<Next<'m>, GuestFault> {
        let next = self.at(mem, self.avail);
        if let Ok(Next::One { .. }) = next {
            self.avail = self.avail.advanced(1, self.size);
        }
        next
    }

    /// See [`crate::Queue::next_few`].
    #[inline(always)]
    pub fn next_few<'m>(
        &mut self,
        mem: &'m GuestMemory,
        count: u16,
        mut each: impl FnMut(GuestSlice<'m>, u16, bool) -> bool,
    ) -> Result<Next<'m>, GuestFault> {
        let (mut at, mut left) = (self.avail, count);
        let end = loop {
            if left == 0 {
                break Ok(Next::Empty);
            }
            match self.at(mem, at) {
                Ok(Next::One { buffer, id, writable }) if each(buffer, id, writable) => {}
                other => break other,
            }
            (at, left) = (at.advanced(1, self.size), left - 1);
        };
        self.avail = at;
        end
    }

    /// The chain that begins at a slot.
    #[inline(always)]
    fn at<'m>(&self, mem: &'m GuestMemory, slot: Cursor) -> Result<Next<'m>, GuestFault> {
        // The flags come with length and id, and before the address.
        let desc = Descriptor::packed(self.ring.load_desc_acquire(slot.offset()));
        if !slot.is_available(desc.flags) {
            return Ok(Next::Empty);
        }
        // Every slot is in the device's hands: the cursors are one lap apart.
        if slot == self.used.next_lap() {
            return Err(GuestFault::RingOverrun { index: slot.index() });
        }
        if desc.has(NEXT | INDIRECT) {
            return Ok(Next::Chain);
        }
        let buffer = buffer(mem, &desc)?;
        Ok(Next::One { buffer, id: desc.tag, writable: desc.has(WRITE) })
    }

    /// See [`crate::Queue::peek`].
    #[inline(always)]
    pub fn peek(&self, ahead: u16, count: u16, mut each: impl FnMut(u16, Soon)) {
        let end = ahead.saturating_add(count).min(self.size);
        let (mut next, mut at) = (ahead, self.avail.advanced(ahead.min(self.size), self.size));
        // Rows: to the end of the ring, and from its beginning.
        while next < end {
            let row = (end - next).min(self.size - at.index());
            for (n, desc) in (next..).zip(self.ring.load_descs(at.offset(), row.into())) {
                let desc = Descriptor::packed(desc);
                if !at.is_available(desc.flags) {
                    return;
                }
                each(n - ahead, desc.soon());
            }
            next += row;
            at = at.advanced(row, self.size);
        }
    }

    /// See [`crate::Queue::first`].
    #[inline(always)]
    pub fn first(&self) -> Option<Soon> {
        let desc = self.load(self.avail);
        self.avail.is_available(desc.flags).then(|| desc.soon())
    }

    /// See [`crate::Queue::look_ahead`]: each descriptor says itself whether it is there.
    #[inline]
    pub fn look_ahead(&mut self, _pops: u16) {}

    /// See [`crate::Queue::entry`].
    #[inline]
    pub fn entry(&self) -> GuestSlice<'_> {
        self.ring.slice(self.avail.offset())
    }

    /// Takes the chain of several descriptors that [`Self::next`] found.
    pub(crate) fn pop_chain<'m>(
        &mut self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
    ) -> Result<(), GuestFault> {
        let desc = self.load(self.avail);
        if !self.avail.is_available(desc.flags) {
            return Err(GuestFault::NotAvailable { index: self.avail.index() });
        }
        let mut at = self.avail;
        let follow = || {
            at = at.advanced(1, self.size);
            if at.index() == self.used.index() {
                return Err(GuestFault::ChainTooLong);
            }
            let desc = self.load(at);
            let there = at.is_available(desc.flags);
            if there { Ok(desc) } else { Err(GuestFault::NotAvailable { index: at.index() }) }
        };
        self.walk(mem, chain, desc, follow)?;
        self.avail = self.avail.advanced(chain.descs, self.size);
        Ok(())
    }

    /// Takes the chain of descriptors that were popped by a predecessor.
    pub(crate) fn chain_of<'m>(
        &self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
        mut saved: impl Iterator<Item = Descriptor>,
    ) -> Result<(), GuestFault> {
        let mut follow = || saved.next().ok_or(GuestFault::InflightRegion);
        let first = follow()?;
        self.walk(mem, chain, first, &mut follow)?;
        if follow().is_ok() { Err(GuestFault::InflightRegion) } else { Ok(()) }
    }

    /// The descriptors popped since `position`, as they are in the ring.
    pub(crate) fn since(&self, position: Position) -> impl Iterator<Item = Descriptor> {
        let mut at = Cursor(position.0);
        std::iter::from_fn(move || {
            let desc = (at != self.avail).then(|| self.load(at))?;
            at = at.advanced(1, self.size);
            Some(desc)
        })
    }

    /// Goes on at a used position, with so many slots behind it popped already.
    pub(crate) fn go_on(&mut self, used: u16, popped: u16) {
        self.used = Cursor::from_bits(used);
        self.avail = self.used.advanced(popped, self.size);
    }

    /// Where used descriptors are written after so many more slots, with the wrap counter in bit 15.
    pub(crate) fn used_after(&self, descs: u16) -> u16 {
        self.used.advanced(descs, self.size).bits()
    }

    /// Whether the slot at a position is as the driver made it available in that lap.
    pub(crate) fn is_available(&self, position: u16) -> bool {
        let at = Cursor::from_bits(position);
        at.is_available(self.ring.load_u16_acquire(at.offset() + FLAGS))
    }

    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn load(&self, at: Cursor) -> Descriptor {
        Descriptor::packed(self.ring.load_desc(at.offset()))
    }

    /// Follows a chain of several descriptors; at most as many as `follow` gives.
    #[inline(never)]
    fn walk<'m>(
        &self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
        first: Descriptor,
        mut follow: impl FnMut() -> Result<Descriptor, GuestFault>,
    ) -> Result<(), GuestFault> {
        chain.clear();
        let mut desc = first;
        if desc.has(INDIRECT) {
            chain.id = desc.tag;
            chain.descs = 1;
            return self.walk_table(mem, chain, &desc);
        }
        loop {
            chain.push(mem, &desc)?;
            chain.descs += 1;
            if !desc.has(NEXT) {
                // The id of a list is in its last descriptor (2.8.6).
                chain.id = desc.tag;
                return Ok(());
            }
            desc = follow()?;
            if desc.has(INDIRECT) {
                return Err(GuestFault::IndirectInChain);
            }
        }
    }

    /// Takes all entries of an indirect table; of their flags only WRITE counts (2.8.7). As with a
    /// split ring, [`crate::MAX_SEGMENTS`] is the bound and not the queue size.
    fn walk_table<'m>(
        &self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
        parent: &Descriptor,
    ) -> Result<(), GuestFault> {
        let (table, entries) = table(mem, parent, self.indirect)?;
        let valid = if self.read_only { 0 } else { WRITE };
        for index in 0..entries {
            let entry = Descriptor::packed(table_entry(&table, index));
            chain.push(mem, &Descriptor { flags: entry.flags & valid, ..entry })?;
        }
        Ok(())
    }

    /// See [`crate::Queue::put_back`].
    #[inline]
    pub fn put_back(&mut self) {
        self.avail = self.avail.preceding(self.size);
    }

    /// See [`crate::Queue::position`].
    #[inline]
    pub fn position(&self) -> Position {
        Position(self.avail.0)
    }

    /// See [`crate::Queue::rewind`].
    #[inline]
    pub fn rewind(&mut self, position: Position) {
        self.avail = Cursor(position.0);
    }

    /// See [`crate::Queue::complete`].
    #[inline(always)]
    pub fn complete(&mut self, used: &[Used]) {
        if let [one] = used {
            self.note(one);
        } else {
            self.note_all(used);
        }
        if self.pending >= PENDING {
            self.flush();
        }
    }

    /// See [`crate::Queue::complete_each`].
    #[inline(always)]
    pub fn complete_each(&mut self, frames: impl ExactSizeIterator<Item = (u16, u32)>) {
        for (id, len) in frames {
            self.note(&Used { id, descs: 1, len });
            if self.pending >= PENDING {
                self.flush();
            }
        }
    }

    #[inline(always)]
    fn note(&mut self, one: &Used) {
        if self.pending == 0 {
            // It was just taken: at the end of a batch it would be waited for again.
            self.first = self.ring.load_desc(self.used.offset());
        }
        let note = Note { position: self.used.bits(), id: one.id, len: one.len };
        self.journal.note(self.pending, note);
        self.pending += 1;
        self.used = self.used.advanced(one.descs, self.size);
        self.unsignalled += u64::from(one.descs);
    }

    /// The chains of a frame, if they fit, in one step.
    #[inline(never)]
    fn note_all(&mut self, used: &[Used]) {
        if self.pending + used.len() > MAX_TOGETHER {
            self.flush();
        }
        for one in used {
            if self.pending == MAX_TOGETHER {
                self.flush();
            }
            self.note(one);
        }
    }

    /// Shows the pending used descriptors: all of them or none. The journal has them before the
    /// ring, so that a successor can finish.
    #[inline(never)]
    fn flush(&mut self) {
        let count = self.gather();
        if count == 0 {
            return;
        }
        self.pending = 0;
        let (first, last) = (self.journal.noted(0), self.journal.noted(count - 1));
        let mut witness = Cursor::from_bits(last.position);
        let mut word = used_word(&last);
        if witness.mark() != self.used.mark() && self.used.index() != 0 {
            // A chain that goes over the end of the ring is known by its last slot: the first one
            // is of another lap than the position.
            witness = self.used.preceding(self.size);
            word = self.ring.load_u64(witness.offset() + WORD);
        }
        let step = Step {
            before: first.position,
            after: self.used.bits(),
            witness: witness.bits(),
            count: count as u16,
            head: self.first,
            tail: [self.ring.load_u64(witness.offset()), word],
        };
        self.journal.commit(&step);
        self.show(count);
        self.journal.done(&step);
    }

    /// How many descriptors say all that is pending: one, with the id of the last chain in the place of the first, if the
    /// driver takes that for all between them (`VIRTIO_F_IN_ORDER`, 2.8.8) and needs no lengths. So the other slots stay
    /// in its cache as it has written them.
    ///
    /// Not for what goes over the end of the ring: the slot by which a successor knows the ring would be of another lap
    /// than the position.
    #[inline]
    fn gather(&self) -> usize {
        let Some(last) = self.pending.checked_sub(1) else { return 0 };
        if last == 0 || !self.in_order || !self.read_only {
            return self.pending;
        }
        let first = self.journal.noted(0).position;
        if self.used.index() != 0 && Cursor::from_bits(first).mark() != self.used.mark() {
            return self.pending;
        }
        self.journal.note(0, Note { position: first, ..self.journal.noted(last) });
        1
    }

    /// Marks the first `count` noted descriptors used, the first one last: the driver, which looks
    /// at them in order, sees all of them or none (2.8.10).
    #[inline]
    fn show(&self, count: usize) {
        for index in (0..count).rev() {
            let note = self.journal.noted(index);
            #[cfg(test)]
            if crate::journal::fuse::blown() {
                return;
            }
            // One store for length, id and flags: the driver sees all of it or nothing.
            let at = Cursor::from_bits(note.position);
            self.ring.store_u64_release(at.offset() + WORD, used_word(&note));
        }
    }

    /// See [`crate::Queue::publish`].
    #[inline]
    pub fn publish(&mut self) {
        self.flush();
    }

    /// See [`crate::Queue::should_notify`].
    #[inline]
    pub fn should_notify(&mut self) -> bool {
        let wanted = self.wanted();
        self.unsignalled = 0;
        wanted
    }

    /// See [`crate::Queue::wants_notification`].
    #[inline]
    pub fn wants_notification(&mut self) -> bool {
        let wanted = self.wanted();
        if !wanted {
            self.unsignalled = 0;
        }
        wanted
    }

    /// Whether the driver wants an interrupt for what it was not signalled.
    #[inline]
    fn wanted(&self) -> bool {
        let done = self.unsignalled;
        if done == 0 {
            return false;
        }
        // The used descriptors must be visible before the driver's wish is read.
        fence(Ordering::SeqCst);
        let event = self.driver.load_u32(0);
        match event >> 16 & 3 {
            EVENT_DISABLE => false,
            EVENT_DESC if self.event_idx => self.passed(event as u16, done),
            // Enabled, or a value that means nothing: an interrupt too many does no harm.
            _ => true,
        }
    }

    /// Whether the last `done` used descriptors went over the one the driver waits for. If that is not
    /// in the ring, either.
    fn passed(&self, event: u16, done: u64) -> bool {
        let size = u64::from(self.size);
        let event = Cursor::from_bits(event);
        // Positions on a circle of two laps, which is how long a wrap counter tells them apart; the
        // event is 1 to 2 * size of them behind. A count beyond that went over everything.
        let line = |c: Cursor| u64::from(c.index()) + if c.wrap() { size } else { 0 };
        let behind = (line(self.used) + 2 * size - 1).wrapping_sub(line(event)) % (2 * size) + 1;
        behind <= done
    }

    /// See [`crate::Queue::has_available`].
    #[inline]
    pub fn has_available(&self) -> bool {
        self.avail.is_available(self.ring.load_u16(self.avail.offset() + FLAGS))
    }

    /// See [`crate::Queue::enable_kicks`].
    pub fn enable_kicks(&mut self) -> bool {
        let wish = if self.event_idx {
            EVENT_DESC << 16 | u32::from(self.avail.bits())
        } else {
            EVENT_ENABLE << 16
        };
        // One store: place and flags are never seen half changed.
        self.device.store_u32(0, wish);
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// See [`crate::Queue::disable_kicks`].
    pub fn disable_kicks(&mut self) {
        self.device.store_u32(0, EVENT_DISABLE << 16);
    }

    /// See [`crate::Queue::base`].
    pub fn base(&self) -> u32 {
        u32::from(self.used.bits()) << 16 | u32::from(self.avail.bits())
    }
}

/// Length, id and flags of a used descriptor, as they lie in the ring.
#[inline]
fn used_word(note: &Note) -> u64 {
    let wrote = if note.len != 0 { WRITE } else { 0 };
    // MARKS if the wrap counter, bit 15, is 1.
    let marks = (note.position.cast_signed() >> 15).cast_unsigned() & MARKS;
    u64::from(marks | wrote) << 48 | u64::from(note.id) << 32 | u64::from(note.len)
}

/// Used descriptors kept back, but for those of one frame.
const PENDING: usize = 32;

/// Where to go on: the used position, so that chains a predecessor popped and never completed
/// are done again rather than lost. A front end that knows one position only (DPDK) leaves the
/// upper half zero and means both.
fn last_used(base: u32) -> Cursor {
    let used = (base >> 16) as u16;
    Cursor::from_bits(if used == 0 { base as u16 } else { used })
}

/// `unsignalled` at the start: an interrupt of a predecessor may be missing, so the first decision
/// takes the driver's event descriptor for passed.
const FORCE: u64 = 1 << 16;

#[cfg(test)]
mod tests;
