//! Guest faults: the named ways in which a ring can lie.

use thiserror::Error;

/// A lie found in a virtqueue. It breaks the queue it was found in (and its port), nothing else.
///
/// After a fault the queue has not moved: the chain that lied is still the next one. The owner
/// stops the queue; asking it again is harmless and bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GuestFault {
    /// Queue size 0, above 32768, or (split) not a power of two. Virtio 1.3, 2.7 and 2.8.
    #[error("queue size {size} is not allowed (1..=32768, a power of two for a split ring)")]
    QueueSize {
        /// The size asked for.
        size: u16,
    },
    /// The descriptor area is misaligned or not wholly inside guest memory.
    #[error("descriptor area at {addr:#x} is misaligned or outside guest memory")]
    DescriptorArea {
        /// Guest physical address of the area.
        addr: u64,
    },
    /// The driver area (avail ring, driver event suppression) is misaligned or outside.
    #[error("driver area at {addr:#x} is misaligned or outside guest memory")]
    DriverArea {
        /// Guest physical address of the area.
        addr: u64,
    },
    /// The device area (used ring, device event suppression) is misaligned or outside.
    #[error("device area at {addr:#x} is misaligned or outside guest memory")]
    DeviceArea {
        /// Guest physical address of the area.
        addr: u64,
    },
    /// The position to resume from does not exist in this ring.
    #[error("base {base:#x} is not a position of a ring of {size}")]
    Base {
        /// The base as in `SET_VRING_BASE`.
        base: u32,
        /// The queue size.
        size: u16,
    },
    /// Split: the avail index says that more buffers are outstanding than the ring can hold.
    #[error("avail index {index} is more than the queue size ahead of used index {used}")]
    AvailIndex {
        /// The index read from the avail ring.
        index: u16,
        /// The used index of the device at that time.
        used: u16,
    },
    /// Packed: a descriptor was made available that the device has not used yet.
    #[error("descriptor {index} was made available while it was still in use")]
    RingOverrun {
        /// Position in the ring.
        index: u16,
    },
    /// Split: the avail ring names a descriptor outside the table.
    #[error("avail ring names descriptor {head}, the table has {size}")]
    HeadIndex {
        /// The head read from the avail ring.
        head: u16,
        /// The queue size.
        size: u16,
    },
    /// Split: the avail ring names a chain that the device has and has not used yet.
    #[error("descriptor {head} was made available while it was still in flight")]
    HeadInUse {
        /// The head read from the avail ring.
        head: u16,
    },
    /// What is written about requests in flight makes no sense, or is not of this ring.
    #[error("the in-flight region is not one of this ring")]
    InflightRegion,
    /// Split: a `next` field names a descriptor outside the table.
    #[error("descriptor chain goes on at {next}, the table has {size}")]
    NextIndex {
        /// The next field.
        next: u16,
        /// The queue size.
        size: u16,
    },
    /// More descriptors in one chain than the table or ring it is in has: a loop.
    #[error("descriptor chain is longer than the table it is in")]
    ChainTooLong,
    /// More buffers in one chain than this device takes ([`crate::MAX_SEGMENTS`]).
    #[error("descriptor chain has more than 1024 buffers")]
    TooManySegments,
    /// The buffers of one chain add up to 4 GiB or more.
    #[error("descriptor chain describes 4 GiB or more")]
    ChainTooLarge,
    /// Packed: a follower in a chain does not carry the available mark of its lap.
    #[error("descriptor {index} belongs to a chain but was not made available")]
    NotAvailable {
        /// Position in the ring.
        index: u16,
    },
    /// A buffer of no bytes. The specification has no use for one and no driver sends one.
    #[error("descriptor of zero length")]
    ZeroLength,
    /// A buffer that is not wholly inside guest memory.
    #[error("buffer {addr:#x}+{len:#x} is outside guest memory")]
    BufferOutside {
        /// Guest physical address of the buffer.
        addr: u64,
        /// Its length in bytes.
        len: u32,
    },
    /// A device-readable buffer after a device-writable one. Virtio 1.3, 2.7.4.2 and 2.8.19.
    #[error("device-readable buffer after a device-writable one")]
    ReadableAfterWritable,
    /// An indirect descriptor although `VIRTIO_F_INDIRECT_DESC` was not negotiated.
    #[error("indirect descriptor, but the feature was not negotiated")]
    IndirectNotNegotiated,
    /// An indirect descriptor that also has the next flag.
    #[error("indirect descriptor with the next flag")]
    IndirectWithNext,
    /// Split: an indirect descriptor inside an indirect table.
    #[error("indirect descriptor inside an indirect table")]
    IndirectNested,
    /// Packed: an indirect descriptor inside a chain of direct ones.
    #[error("indirect descriptor inside a chain of direct ones")]
    IndirectInChain,
    /// An indirect table whose length is zero or not a multiple of 16.
    #[error("indirect table of {len} bytes (must be a multiple of 16, not 0)")]
    IndirectLength {
        /// The length in bytes.
        len: u32,
    },
    /// An indirect table that is not wholly inside guest memory.
    #[error("indirect table {addr:#x}+{len:#x} is outside guest memory")]
    IndirectOutside {
        /// Guest physical address of the table.
        addr: u64,
        /// Its length in bytes.
        len: u32,
    },
    /// Split: a `next` field in an indirect table names an entry outside it.
    #[error("indirect table goes on at {next}, it has {entries} entries")]
    IndirectNextIndex {
        /// The next field.
        next: u16,
        /// Entries in the table.
        entries: u32,
    },
}

impl GuestFault {
    /// Every [`GuestFault::name`].
    pub const NAMES: [&'static str; 25] = [
        "queue-size",
        "descriptor-area",
        "driver-area",
        "device-area",
        "base",
        "avail-index",
        "ring-overrun",
        "head-index",
        "head-in-use",
        "inflight-region",
        "next-index",
        "chain-too-long",
        "too-many-segments",
        "chain-too-large",
        "not-available",
        "zero-length",
        "buffer-outside",
        "readable-after-writable",
        "indirect-not-negotiated",
        "indirect-with-next",
        "indirect-nested",
        "indirect-in-chain",
        "indirect-length",
        "indirect-outside",
        "indirect-next-index",
    ];

    /// The stable, kebab-case name under which this fault is reported and counted.
    pub fn name(&self) -> &'static str {
        match self {
            Self::QueueSize { .. } => "queue-size",
            Self::DescriptorArea { .. } => "descriptor-area",
            Self::DriverArea { .. } => "driver-area",
            Self::DeviceArea { .. } => "device-area",
            Self::Base { .. } => "base",
            Self::AvailIndex { .. } => "avail-index",
            Self::RingOverrun { .. } => "ring-overrun",
            Self::HeadIndex { .. } => "head-index",
            Self::HeadInUse { .. } => "head-in-use",
            Self::InflightRegion => "inflight-region",
            Self::NextIndex { .. } => "next-index",
            Self::ChainTooLong => "chain-too-long",
            Self::TooManySegments => "too-many-segments",
            Self::ChainTooLarge => "chain-too-large",
            Self::NotAvailable { .. } => "not-available",
            Self::ZeroLength => "zero-length",
            Self::BufferOutside { .. } => "buffer-outside",
            Self::ReadableAfterWritable => "readable-after-writable",
            Self::IndirectNotNegotiated => "indirect-not-negotiated",
            Self::IndirectWithNext => "indirect-with-next",
            Self::IndirectNested => "indirect-nested",
            Self::IndirectInChain => "indirect-in-chain",
            Self::IndirectLength { .. } => "indirect-length",
            Self::IndirectOutside { .. } => "indirect-outside",
            Self::IndirectNextIndex { .. } => "indirect-next-index",
        }
    }
}
