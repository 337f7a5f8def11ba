//! The device side of a virtqueue as plainly as the specification says it, without a thought of
//! speed or of a guest that writes meanwhile: what [`virtqueue::Queue`] is compared with.

use guestmem::GuestMemory;
use testkit::driver::{flags, read};
use virtqueue::{MAX_SEGMENTS, QueueConfig};

use flags::{AVAIL, INDIRECT, NEXT, USED, WRITE};

/// A chain: what it is called, ring descriptors it takes, and its buffers (address, length).
#[derive(Default, Debug)]
pub(super) struct RefChain {
    pub(super) id: u16,
    pub(super) descs: u16,
    pub(super) readable: Vec<(u64, u32)>,
    pub(super) writable: Vec<(u64, u32)>,
}

/// Where the reference is. Positions count descriptors (packed) or chains (split) from the start
/// and never wrap.
pub(super) struct Reference<'m> {
    mem: &'m GuestMemory,
    cfg: QueueConfig,
    pub(super) avail: u64,
    pub(super) used: u64,
    /// Split: the avail index as last looked at.
    seen: u64,
    /// Units used since the last notification decision; none before the first.
    done: Option<u64>,
}

struct Desc {
    addr: u64,
    len: u32,
    flags: u16,
    tag: u16,
}

type Fault = &'static str;

impl<'m> Reference<'m> {
    pub(super) fn new(mem: &'m GuestMemory, cfg: &QueueConfig) -> Reference<'m> {
        let size = u64::from(cfg.size);
        let start = if cfg.packed {
            let half = if cfg.base >> 16 == 0 { cfg.base } else { cfg.base >> 16 };
            // Two laps before the start, so that the lap of counter 1 is the even one.
            let (slot, wrap) = (u64::from(half & 0x7fff), half & 0x8000 != 0);
            if wrap { slot } else { slot + size }
        } else {
            u64::from(u16_at(mem, cfg.used + 2))
        };
        Reference { mem, cfg: cfg.clone(), avail: start, used: start, seen: start, done: None }
    }

    fn size(&self) -> u64 {
        self.cfg.size.into()
    }

    /// The wrap counter of a position.
    fn wrap(&self, position: u64) -> bool {
        (position / self.size()).is_multiple_of(2)
    }

    fn desc_at(&self, gpa: u64, packed: bool) -> Desc {
        let raw = read(self.mem, gpa, 16).unwrap_or_else(|| vec![0; 16]);
        let u16_of = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
        let addr = (0..4).map(|i| u64::from(u16_of(2 * i)) << (16 * i)).sum();
        let len = u32::from(u16_of(8)) | u32::from(u16_of(10)) << 16;
        let (flags, tag) = if packed { (14, 12) } else { (12, 14) };
        Desc { addr, len, flags: u16_of(flags), tag: u16_of(tag) }
    }

    fn ring_desc(&self, index: u64) -> Desc {
        self.desc_at(self.cfg.desc + 16 * index, self.cfg.packed)
    }

    fn is_available(&self, position: u64, flags: u16) -> bool {
        let wrap = self.wrap(position);
        (flags & AVAIL != 0) == wrap && (flags & USED != 0) != wrap
    }

    pub(super) fn has_available(&self) -> bool {
        if self.cfg.packed {
            self.is_available(self.avail, self.ring_desc(self.avail % self.size()).flags)
        } else {
            self.avail != self.seen || u16_at(self.mem, self.cfg.avail + 2) != self.avail as u16
        }
    }

    pub(super) fn pop(&mut self) -> Result<Option<RefChain>, Fault> {
        let found = if self.cfg.packed { self.pop_packed()? } else { self.pop_split()? };
        if let Some(chain) = &found {
            self.avail += if self.cfg.packed { chain.descs.into() } else { 1 };
        }
        Ok(found)
    }

    pub(super) fn look_ahead(&mut self, pops: u16) {
        let known = self.seen.wrapping_sub(self.avail) as u16;
        if !self.cfg.packed && known < pops.min(self.cfg.size / 2) {
            let _ = self.look();
        }
    }

    /// Whether the avail index, read anew, shows anything to pop.
    fn look(&mut self) -> Result<bool, Fault> {
        let index = u16_at(self.mem, self.cfg.avail + 2);
        if index == self.avail as u16 {
            return Ok(false);
        }
        let outstanding = index.wrapping_sub(self.used as u16);
        if u64::from(outstanding) > self.size() {
            return Err("avail-index");
        }
        self.seen = self.used + u64::from(outstanding);
        Ok(true)
    }

    fn pop_split(&mut self) -> Result<Option<RefChain>, Fault> {
        if self.avail == self.seen && !self.look()? {
            return Ok(None);
        }
        let slot = self.avail % self.size();
        let head = u16_at(self.mem, self.cfg.avail + 4 + 2 * slot);
        if head >= self.cfg.size {
            return Err("head-index");
        }
        let mut chain = RefChain { id: head, ..RefChain::default() };
        let mut index = head;
        loop {
            if chain.descs == self.cfg.size {
                return Err("chain-too-long");
            }
            chain.descs += 1;
            let desc = self.ring_desc(index.into());
            if desc.flags & INDIRECT != 0 {
                self.split_table(&desc, &mut chain)?;
                return Ok(Some(chain));
            }
            self.push(&mut chain, &desc)?;
            if desc.flags & NEXT == 0 {
                return Ok(Some(chain));
            }
            if desc.tag >= self.cfg.size {
                return Err("next-index");
            }
            index = desc.tag;
        }
    }

    fn split_table(&self, parent: &Desc, chain: &mut RefChain) -> Result<(), Fault> {
        let entries = self.table(parent)?;
        let (mut index, mut visited) = (0, 0);
        loop {
            if visited == entries {
                return Err("chain-too-long");
            }
            visited += 1;
            let desc = self.desc_at(parent.addr + 16 * u64::from(index), false);
            if desc.flags & INDIRECT != 0 {
                return Err("indirect-nested");
            }
            self.push(chain, &desc)?;
            if desc.flags & NEXT == 0 {
                return Ok(());
            }
            index = desc.tag;
            if u32::from(index) >= entries {
                return Err("indirect-next-index");
            }
        }
    }

    fn pop_packed(&mut self) -> Result<Option<RefChain>, Fault> {
        if !self.has_available() {
            return Ok(None);
        }
        let mut chain = RefChain::default();
        let mut at = self.avail;
        loop {
            if at == self.used + self.size() {
                let first = chain.descs == 0;
                return Err(if first { "ring-overrun" } else { "chain-too-long" });
            }
            let desc = self.ring_desc(at % self.size());
            if !self.is_available(at, desc.flags) {
                return Err("not-available");
            }
            chain.id = desc.tag;
            if desc.flags & INDIRECT != 0 {
                if chain.descs != 0 {
                    return Err("indirect-in-chain");
                }
                chain.descs = 1;
                for index in 0..self.table(&desc)? {
                    let mut entry = self.desc_at(desc.addr + 16 * u64::from(index), true);
                    entry.flags &= WRITE;
                    self.push(&mut chain, &entry)?;
                }
                return Ok(Some(chain));
            }
            self.push(&mut chain, &desc)?;
            chain.descs += 1;
            at += 1;
            if desc.flags & NEXT == 0 {
                return Ok(Some(chain));
            }
        }
    }

    /// Entries of the table `parent` refers to.
    fn table(&self, parent: &Desc) -> Result<u32, Fault> {
        if !self.cfg.indirect {
            Err("indirect-not-negotiated")
        } else if parent.flags & NEXT != 0 {
            Err("indirect-with-next")
        } else if parent.len == 0 || !parent.len.is_multiple_of(16) {
            Err("indirect-length")
        } else if self.mem.slice(parent.addr, parent.len).is_none() {
            Err("indirect-outside")
        } else {
            Ok(parent.len / 16)
        }
    }

    fn push(&self, chain: &mut RefChain, desc: &Desc) -> Result<(), Fault> {
        if desc.len == 0 {
            return Err("zero-length");
        }
        if self.mem.slice(desc.addr, desc.len).is_none() {
            return Err("buffer-outside");
        }
        if desc.flags & WRITE != 0 {
            chain.writable.push((desc.addr, desc.len));
        } else if !chain.writable.is_empty() {
            return Err("readable-after-writable");
        } else {
            chain.readable.push((desc.addr, desc.len));
        }
        if chain.readable.len() + chain.writable.len() > MAX_SEGMENTS {
            return Err("too-many-segments");
        }
        Ok(())
    }

    pub(super) fn complete(&mut self, chain: &RefChain) {
        let units = if self.cfg.packed { chain.descs.into() } else { 1 };
        self.used += units;
        self.done = self.done.map(|done| done + units);
    }

    /// Whether the driver's wish, as it is in memory now, asks for an interrupt; `None`: it asks for
    /// one at a place that the ring does not have, and may get it at any.
    pub(super) fn should_notify(&mut self) -> Option<bool> {
        let (start, done) = (self.done.is_none(), self.done.replace(0).unwrap_or(1));
        if done == 0 {
            return Some(false);
        }
        let by_event = |event: &dyn Fn(u64) -> bool, lap: u64| {
            start || done >= lap || (self.used - done..self.used).any(event)
        };
        let wanted = if self.cfg.packed {
            let position = u16_at(self.mem, self.cfg.avail);
            let hit = |at: u64| {
                let bits = (at % self.size()) as u16 | u16::from(self.wrap(at)) << 15;
                bits == position
            };
            let nowhere = u64::from(position & 0x7fff) >= self.size();
            match u16_at(self.mem, self.cfg.avail + 2) & 3 {
                1 => false,
                2 if self.cfg.event_idx && nowhere => return None,
                2 if self.cfg.event_idx => by_event(&hit, 2 * self.size()),
                _ => true,
            }
        } else if self.cfg.event_idx {
            let event = u16_at(self.mem, self.cfg.avail + 4 + 2 * self.size());
            by_event(&|at| at as u16 == event, 65536)
        } else {
            u16_at(self.mem, self.cfg.avail) & 1 == 0
        };
        Some(wanted)
    }
}

fn u16_at(mem: &GuestMemory, gpa: u64) -> u16 {
    let raw = read(mem, gpa, 2).unwrap_or_else(|| vec![0; 2]);
    u16::from_le_bytes([raw[0], raw[1]])
}
