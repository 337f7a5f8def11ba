//! Driver-side virtqueues over guest memory: what a guest's driver does, and what it must not do.
//!
//! **Purpose.** A [`DriverQueue`] lays a ring out in guest memory and works it as a virtio driver
//! would: adds buffers, decides about kicks, collects what was used, asks for interrupts. It is
//! honest. To lie, write the fields through [`DriverQueue::raw`].
//!
//! **Owner and threads.** One thread owns a queue (`&mut`); the device is on another or on the
//! same. The memory may be this process's only ([`memory`]) or shared with a device process
//! through a vhost-user front end, which needs [`DriverQueue::addresses`] and
//! [`DriverQueue::base`].
//!
//! **Failure.** What the device did wrong is a [`DriverError`]; the queue is then of no more use.

mod memory;
mod packed;
mod raw;
mod split;

use std::sync::Arc;

use guestmem::GuestMemory;

pub use memory::{memory, read, write};
pub use packed::PackedDriver;
pub use raw::{Raw, RawDesc, flags};
pub use split::SplitDriver;

/// A ring to lay out.
#[derive(Clone, Debug)]
pub struct RingSpec {
    /// Entries.
    pub size: u16,
    /// `VIRTIO_F_RING_PACKED`.
    pub packed: bool,
    /// `VIRTIO_F_EVENT_IDX`.
    pub event_idx: bool,
    /// `VIRTIO_F_IN_ORDER`: descriptors are taken in ring order, and the device must use buffers
    /// in the order they were added.
    pub in_order: bool,
    /// Where the ring starts to turn, as in `SET_VRING_BASE`: 0 for a new split ring, 0x8000 for a
    /// new packed one; others to be near a wrap-around.
    pub start: u16,
    /// Guest physical address, a multiple of 4096, of [`RingSpec::bytes`] bytes for the ring and
    /// its indirect tables.
    pub gpa: u64,
    /// Entries in each indirect table; there is one per ring entry. 0: no indirect buffers.
    pub table_len: u16,
}

impl RingSpec {
    /// A fresh ring of one format without any feature.
    pub fn new(packed: bool, size: u16, gpa: u64) -> RingSpec {
        let start = if packed { 0x8000 } else { 0 };
        RingSpec { size, packed, event_idx: false, in_order: false, start, gpa, table_len: 0 }
    }

    /// Guest memory the ring occupies from its start, tables included.
    pub fn bytes(&self) -> u64 {
        self.tables() - self.gpa + u64::from(self.size) * u64::from(self.table_len) * 16
    }

    /// Where the parts are.
    pub fn addresses(&self) -> RingAddresses {
        let desc = self.gpa;
        let driver = desc + 16 * u64::from(self.size);
        // Both areas have the room a split ring needs, and the device area its own cache line.
        let device = (driver + 6 + 2 * u64::from(self.size)).next_multiple_of(64);
        RingAddresses { desc, driver, device }
    }

    /// Where the indirect tables are.
    fn tables(&self) -> u64 {
        (self.addresses().device + 6 + 8 * u64::from(self.size)).next_multiple_of(64)
    }

    /// Where the indirect table of ring entry or buffer `id` is.
    pub(crate) fn table(&self, id: u16) -> u64 {
        self.tables() + 16 * u64::from(id) * u64::from(self.table_len)
    }
}

/// Guest physical addresses of the three parts of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table, or packed ring.
    pub desc: u64,
    /// Avail ring, or driver event suppression.
    pub driver: u64,
    /// Used ring, or device event suppression.
    pub device: u64,
}

/// One piece of guest memory to put into a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u32,
}

/// How a chain is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One ring descriptor for each buffer.
    Direct,
    /// One ring descriptor, which refers to a table.
    Indirect,
    /// That many direct descriptors, then one that refers to a table with the rest. Split only.
    Mixed(usize),
}

/// A buffer the device has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// What [`DriverQueue::add`] returned for it.
    pub token: u16,
    /// Bytes the device says it wrote.
    pub len: u32,
}

/// What cannot be, or what the device did wrong.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DriverError {
    /// The ring is not in guest memory.
    #[error("the ring at {gpa:#x} does not lie in guest memory")]
    Outside {
        /// Where it was to be.
        gpa: u64,
    },
    /// The device used a buffer it did not have.
    #[error("the device used buffer {token}, which it did not have")]
    NotOutstanding {
        /// The id it gave.
        token: u32,
    },
    /// With `VIRTIO_F_IN_ORDER`: the device used another buffer than the oldest.
    #[error("the device used buffer {token} before buffer {oldest}, which is older")]
    OutOfOrder {
        /// The id it gave.
        token: u16,
        /// The oldest it has.
        oldest: u16,
    },
    /// The used index went further than there are buffers.
    #[error("the used index is {ahead} ahead with {outstanding} buffers outstanding")]
    UsedIndex {
        /// How far it is ahead of what was collected.
        ahead: u16,
        /// What the device has.
        outstanding: usize,
    },
}

/// The driver side of one virtqueue.
pub enum DriverQueue {
    /// Virtio 1.3, section 2.7.
    Split(SplitDriver),
    /// Virtio 1.3, section 2.8.
    Packed(PackedDriver),
}

/// The same call on either format.
macro_rules! on {
    ($queue:expr, $q:ident => $call:expr) => {
        match $queue {
            DriverQueue::Split($q) => $call,
            DriverQueue::Packed($q) => $call,
        }
    };
}

impl DriverQueue {
    /// Lays a ring out and initialises it, interrupts wanted.
    ///
    /// # Errors
    /// [`DriverError::Outside`].
    pub fn new(mem: &Arc<GuestMemory>, spec: &RingSpec) -> Result<DriverQueue, DriverError> {
        if spec.packed {
            PackedDriver::new(mem, spec).map(DriverQueue::Packed)
        } else {
            SplitDriver::new(mem, spec).map(DriverQueue::Split)
        }
    }

    /// What it was made of.
    pub fn spec(&self) -> &RingSpec {
        on!(self, q => &q.spec)
    }

    /// Where the parts are.
    pub fn addresses(&self) -> RingAddresses {
        self.spec().addresses()
    }

    /// What a front end tells a device that starts on a ring with nothing outstanding.
    pub fn base(&self) -> u32 {
        on!(self, q => q.base())
    }

    /// Adds one chain; the device sees it with the next [`DriverQueue::expose`]. Returns the token
    /// it will come back with, or nothing if there is no room for this shape.
    pub fn add(&mut self, readable: &[Buffer], writable: &[Buffer], shape: Shape) -> Option<u16> {
        on!(self, q => q.add(readable, writable, shape))
    }

    /// Makes what was added available to the device.
    pub fn expose(&mut self) {
        on!(self, q => q.expose());
    }

    /// Whether the device asked for a kick for what was exposed since the last call.
    pub fn kick_needed(&mut self) -> bool {
        on!(self, q => q.kick_needed())
    }

    /// The next buffer the device has used, if any.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn collect(&mut self) -> Result<Option<Completed>, DriverError> {
        on!(self, q => q.collect())
    }

    /// Whether [`DriverQueue::collect`] has something to look at.
    pub fn has_used(&self) -> bool {
        on!(self, q => q.has_used())
    }

    /// Ring descriptors free for [`DriverQueue::add`].
    pub fn free(&self) -> u16 {
        on!(self, q => q.free())
    }

    /// Buffers added and not collected.
    pub fn outstanding(&self) -> usize {
        on!(self, q => q.outstanding())
    }

    /// Asks for an interrupt with the next used buffer; true if there is one already.
    pub fn enable_interrupts(&mut self) -> bool {
        self.enable_interrupts_after(0)
    }

    /// Asks for an interrupt once `skip` more buffers (split) or ring descriptors (packed) and one
    /// were used, fewer than the queue size; true if there is something used already. Without
    /// event-idx there is no such wish: the next one interrupts.
    pub fn enable_interrupts_after(&mut self, skip: u16) -> bool {
        on!(self, q => q.enable_interrupts_after(skip))
    }

    /// Asks for no interrupts.
    pub fn disable_interrupts(&mut self) {
        on!(self, q => q.disable_interrupts());
    }

    /// Every field of the ring, to read and to write at will.
    pub fn raw(&self) -> &Raw {
        on!(self, q => &q.raw)
    }
}

/// Writes an indirect table and returns what refers to it.
fn write_table(mem: &GuestMemory, spec: &RingSpec, id: u16, descs: &[RawDesc]) -> Buffer {
    let gpa = spec.table(id);
    for (at, desc) in (gpa..).step_by(16).zip(descs) {
        let halves = if spec.packed { desc.packed() } else { desc.split() };
        write(mem, at, &halves.map(u64::to_le_bytes).concat());
    }
    Buffer { gpa, len: 16 * descs.len() as u32 }
}

/// The descriptors of a chain, without what links them.
fn descs(readable: &[Buffer], writable: &[Buffer]) -> Vec<RawDesc> {
    let one = |flags| move |b: &Buffer| RawDesc { addr: b.gpa, len: b.len, flags, tag: 0 };
    readable.iter().map(one(0)).chain(writable.iter().map(one(flags::WRITE))).collect()
}
