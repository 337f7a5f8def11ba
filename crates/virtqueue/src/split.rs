//! The split ring (virtio 1.3, section 2.7), device side.
//!
//! The guest owns the descriptor table and the avail ring, the device the used ring. Positions
//! are free-running 16-bit counts of chains; the slot in a ring is the count modulo the (power of
//! two) size.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use guestmem::{GuestMemory, GuestSlice, RingEntries};

use crate::chain::buffer;
use crate::count::Count;
use crate::desc::{DESC_SIZE, Descriptor, INDIRECT, NEXT, WRITE, table_entry};
use crate::indirect::table;
use crate::{Chain, GuestFault, MAX_QUEUE_SIZE, Next, Position, QueueConfig, Soon, Used};

/// `avail.idx` and `used.idx`.
const IDX: usize = 2;
/// First entry of both rings.
const RING: usize = 4;
/// How far before a used entry is written its cache line is fetched: a line.
const USED_AHEAD: u16 = 8;
/// `avail.flags`: the driver wants no interrupts (without event-idx only).
const NO_INTERRUPT: u16 = 1;
/// `used.flags`: the device wants no kicks (without event-idx only).
const NO_NOTIFY: u16 = 1;

/// The device side of a split virtqueue.
pub struct SplitQueue {
    desc: RingEntries<0, DESC_SIZE, 16>,
    avail: RingEntries<RING, 2, 2>,
    used: RingEntries<RING, 8, 4>,
    /// Queue size minus one.
    mask: u16,
    event_idx: bool,
    indirect: bool,
    /// The next avail entry to pop.
    next_avail: Count,
    /// The avail index as last read: entries before it need no further look at it.
    seen_avail: Count,
    /// The next used entry to write.
    next_used: Count,
    /// Chains completed since the last notification decision.
    pub(crate) unsignalled: u64,
}

impl SplitQueue {
    pub(crate) fn new(mem: &Arc<GuestMemory>, cfg: &QueueConfig) -> Result<Self, GuestFault> {
        let size = cfg.size;
        if !size.is_power_of_two() || size > MAX_QUEUE_SIZE {
            return Err(GuestFault::QueueSize { size });
        }
        let event = if cfg.event_idx { 2 } else { 0 };
        let mem = || Arc::clone(mem);
        let desc = RingEntries::new(mem(), cfg.desc, size, 0)
            .ok_or(GuestFault::DescriptorArea { addr: cfg.desc })?;
        let avail = RingEntries::new(mem(), cfg.avail, size, event)
            .ok_or(GuestFault::DriverArea { addr: cfg.avail })?;
        let used = RingEntries::new(mem(), cfg.used, size, event)
            .ok_or(GuestFault::DeviceArea { addr: cfg.used })?;
        // Where to go on is what the driver last saw of us, the used index. The base says the
        // same, unless a predecessor died with chains popped and not completed: those are then
        // done again rather than lost. Read once, here; from now on the count is our own.
        let position = used.area().load_u16(IDX);
        let mut queue = Self {
            desc,
            avail,
            used,
            mask: size - 1,
            event_idx: cfg.event_idx,
            indirect: cfg.indirect,
            next_avail: Count::new(position),
            seen_avail: Count::new(position),
            next_used: Count::new(position),
            unsignalled: FORCE,
        };
        queue.enable_kicks();
        Ok(queue)
    }

    /// See [`crate::Queue::next`].
    #[inline(always)]
    pub fn next<'m>(&mut self, mem: &'m GuestMemory) -> Result<Next<'m>, GuestFault> {
        if self.next_avail.get() == self.seen_avail.get() && !self.look()? {
            return Ok(Next::Empty);
        }
        let next = self.at(mem, self.next_avail.get());
        if let Ok(Next::One { .. }) = next {
            self.next_avail.step();
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
        if self.next_avail.get() == self.seen_avail.get() && !self.look()? {
            return Ok(Next::Empty);
        }
        let mut at = self.next_avail.get();
        let mut left = self.seen_avail.get().wrapping_sub(at).min(count);
        let end = loop {
            if left == 0 {
                break Ok(Next::Empty);
            }
            match self.at(mem, at) {
                Ok(Next::One { buffer, id, writable }) if each(buffer, id, writable) => {}
                other => break other,
            }
            (at, left) = (at.wrapping_add(1), left - 1);
        };
        self.next_avail = Count::new(at);
        end
    }

    /// The chain of an avail entry.
    #[inline(always)]
    fn at<'m>(&self, mem: &'m GuestMemory, entry: u16) -> Result<Next<'m>, GuestFault> {
        let head = self.avail.load_u16(entry);
        if head > self.mask {
            return Err(GuestFault::HeadIndex { head, size: self.size() });
        }
        let desc = self.load(head);
        if desc.has(NEXT | INDIRECT) {
            return Ok(Next::Chain);
        }
        let buffer = buffer(mem, &desc)?;
        Ok(Next::One { buffer, id: head, writable: desc.has(WRITE) })
    }

    /// See [`crate::Queue::peek`].
    #[inline(always)]
    pub fn peek(&self, ahead: u16, count: u16, mut each: impl FnMut(u16, Soon)) {
        let first = self.next_avail.get();
        let known = self.seen_avail.get().wrapping_sub(first);
        for n in 0..count.min(known.saturating_sub(ahead)) {
            let head = self.avail.load_u16(first.wrapping_add(ahead).wrapping_add(n));
            each(n, self.load(head).soon());
        }
    }

    /// See [`crate::Queue::first`].
    #[inline(always)]
    pub fn first(&self) -> Option<Soon> {
        let (next, seen) = (self.next_avail.get(), self.seen_avail.get());
        (next != seen).then(|| self.load(self.avail.load_u16(next)).soon())
    }

    /// See [`crate::Queue::look_ahead`].
    #[inline]
    pub fn look_ahead(&mut self, pops: u16) {
        let known = self.seen_avail.get().wrapping_sub(self.next_avail.get());
        if known < pops.min(self.size() / 2) {
            // A driver that lies is found out by the pop.
            let _ = self.look();
        }
    }

    /// See [`crate::Queue::entry`].
    #[inline]
    pub fn entry(&self) -> GuestSlice<'_> {
        self.avail.area().slice(RING + 2 * usize::from(self.next_avail.get() & self.mask))
    }

    /// Takes the chain of several descriptors that [`Self::next`] found.
    pub(crate) fn pop_chain<'m>(
        &mut self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
    ) -> Result<(), GuestFault> {
        let head = self.avail.load_u16(self.next_avail.get());
        if head > self.mask {
            return Err(GuestFault::HeadIndex { head, size: self.size() });
        }
        self.walk(mem, chain, head, self.load(head))?;
        self.next_avail.step();
        Ok(())
    }

    /// Takes the chain that begins at `head`, which a predecessor popped.
    pub(crate) fn chain_at<'m>(
        &self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
        head: u16,
    ) -> Result<(), GuestFault> {
        if head > self.mask {
            return Err(GuestFault::HeadIndex { head, size: self.size() });
        }
        self.walk(mem, chain, head, self.load(head))
    }

    /// Goes on behind `count` chains that a predecessor popped; false if there are not as many.
    pub(crate) fn skip_in_flight(&mut self, count: u16) -> bool {
        let index = self.avail.area().load_u16_acquire(IDX);
        if index.wrapping_sub(self.next_used.get()) < count {
            return false;
        }
        self.next_avail = Count::new(self.next_used.get().wrapping_add(count));
        self.seen_avail = self.next_avail;
        true
    }

    /// The used index, as far as this device counts.
    pub(crate) fn used_idx(&self) -> u16 {
        self.next_used.get()
    }

    /// Reads the avail index anew; whether it shows anything to pop.
    #[inline]
    fn look(&mut self) -> Result<bool, GuestFault> {
        let index = self.avail.area().load_u16_acquire(IDX);
        if index == self.next_avail.get() {
            return Ok(false);
        }
        // Counted from the used index: the chains in our hands occupy the ring too.
        if index.wrapping_sub(self.next_used.get()) > self.size() {
            return Err(GuestFault::AvailIndex { index, used: self.next_used.get() });
        }
        self.seen_avail = Count::new(index);
        Ok(true)
    }

    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.mask + 1
    }

    #[inline]
    fn load(&self, index: u16) -> Descriptor {
        Descriptor::split(self.desc.load_desc(index))
    }

    /// Follows a chain of several descriptors; at most as many as the queue has.
    #[inline(never)]
    fn walk<'m>(
        &self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
        head: u16,
        first: Descriptor,
    ) -> Result<(), GuestFault> {
        chain.clear();
        chain.id = head;
        let mut desc = first;
        for count in 1..=self.size() {
            chain.descs = count;
            if desc.has(INDIRECT) {
                return self.walk_table(mem, chain, &desc);
            }
            chain.push(mem, &desc)?;
            if !desc.has(NEXT) {
                return Ok(());
            }
            if desc.tag > self.mask {
                return Err(GuestFault::NextIndex { next: desc.tag, size: self.size() });
            }
            desc = self.load(desc.tag);
        }
        Err(GuestFault::ChainTooLong)
    }

    /// Follows the chain in an indirect table, which may come after direct descriptors (2.7.5.3).
    ///
    /// Its length is bounded by the table and [`crate::MAX_SEGMENTS`], not by the queue size as
    /// the specification has it: Linux puts any number of buffers into a table of a small queue.
    fn walk_table<'m>(
        &self,
        mem: &'m GuestMemory,
        chain: &mut Chain<'m>,
        parent: &Descriptor,
    ) -> Result<(), GuestFault> {
        let (table, entries) = table(mem, parent, self.indirect)?;
        let mut index = 0;
        for _ in 0..entries {
            let desc = Descriptor::split(table_entry(&table, index));
            if desc.has(INDIRECT) {
                return Err(GuestFault::IndirectNested);
            }
            chain.push(mem, &desc)?;
            if !desc.has(NEXT) {
                return Ok(());
            }
            index = u32::from(desc.tag);
            if index >= entries {
                return Err(GuestFault::IndirectNextIndex { next: desc.tag, entries });
            }
        }
        Err(GuestFault::ChainTooLong)
    }

    /// See [`crate::Queue::put_back`].
    #[inline]
    pub fn put_back(&mut self) {
        self.next_avail = Count::new(self.next_avail.get().wrapping_sub(1));
    }

    /// See [`crate::Queue::position`].
    #[inline]
    pub fn position(&self) -> Position {
        Position(self.next_avail.get().into())
    }

    /// See [`crate::Queue::rewind`].
    #[inline]
    pub fn rewind(&mut self, position: Position) {
        self.next_avail = Count::new(position.0 as u16);
    }

    /// See [`crate::Queue::complete`].
    #[inline]
    pub fn complete(&mut self, used: &[Used]) {
        for one in used {
            #[cfg(test)]
            if crate::journal::fuse::blown() {
                return;
            }
            // Two stores: the ring is only 4-aligned, and nothing is visible before publish.
            let entry = self.next_used.get();
            // A store to a line that the guest's CPU has would keep those behind it waiting.
            self.used.prefetch_write(entry.wrapping_add(USED_AHEAD));
            self.used.store_u32s(entry, u32::from(one.id), one.len);
            self.next_used.step();
        }
        self.unsignalled += used.len() as u64;
    }

    /// See [`crate::Queue::complete_each`].
    #[inline(always)]
    pub fn complete_each(&mut self, frames: impl ExactSizeIterator<Item = (u16, u32)>) {
        #[cfg(test)]
        if crate::journal::fuse::blown() {
            return;
        }
        self.unsignalled += frames.len() as u64;
        let mut entry = self.next_used.get();
        for (id, len) in frames {
            self.used.store_u32s(entry, u32::from(id), len);
            entry = entry.wrapping_add(1);
        }
        self.next_used = Count::new(entry);
        self.used.prefetch_write(entry.wrapping_add(USED_AHEAD));
    }

    /// See [`crate::Queue::publish`].
    #[inline]
    pub fn publish(&mut self) {
        #[cfg(test)]
        if crate::journal::fuse::blown() {
            return;
        }
        self.used.area().store_u16_release(IDX, self.next_used.get());
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
        // The used index must be visible before the driver's wish is read (2.7.7.2).
        fence(Ordering::SeqCst);
        if !self.event_idx {
            return self.avail.area().load_u16(0) & NO_INTERRUPT == 0;
        }
        let event = self.avail.area().load_u16(RING + 2 * usize::from(self.mask) + 2);
        // Did the index pass `event` with the last `done` chains? More than a whole turn always
        // did, and so the value that stands for "just started".
        let past = self.next_used.get().wrapping_sub(event).wrapping_sub(1);
        u64::from(past) < done
    }

    /// See [`crate::Queue::has_available`].
    #[inline]
    pub fn has_available(&self) -> bool {
        self.next_avail.get() != self.seen_avail.get()
            || self.avail.area().load_u16(IDX) != self.next_avail.get()
    }

    /// See [`crate::Queue::enable_kicks`].
    pub fn enable_kicks(&mut self) -> bool {
        // With event-idx the flags are always to be 0 (2.7.10.1); a predecessor may have differed.
        self.used.area().store_u16(0, 0);
        if self.event_idx {
            self.store_avail_event(self.next_avail.get());
        }
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// See [`crate::Queue::disable_kicks`].
    pub fn disable_kicks(&mut self) {
        if self.event_idx {
            // There is no "never": an entry so far behind that the driver, even if it is late with
            // its decision, is past it.
            self.store_avail_event(self.next_avail.get().wrapping_sub(self.size()).wrapping_sub(1));
        } else {
            self.used.area().store_u16(0, NO_NOTIFY);
        }
    }

    fn store_avail_event(&self, event: u16) {
        self.used.area().store_u16(RING + 8 * usize::from(self.size()), event);
    }

    /// See [`crate::Queue::base`].
    pub fn base(&self) -> u32 {
        u32::from(self.next_avail.get())
    }
}

/// `unsignalled` at the start: an interrupt of a predecessor may be missing, so the first decision
/// takes the driver's event index for passed.
const FORCE: u64 = 1 << 16;
