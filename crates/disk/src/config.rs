//! The configuration space and the features of a disk (virtio 1.3, 5.2.3 to 5.2.5).
//!
//! A [`DiskSpec`] is what the operator wants; a [`Config`] is that, checked, and what one guest
//! negotiated. The control thread owns it, hands its bytes to the front end, and gives each worker
//! a copy of its [`Rules`], by which requests are judged.

use thiserror::Error;
use virtio_bindings::virtio_blk as blk;

use crate::SECTOR;
use crate::request::MAX_RANGES;

/// Bytes of `struct virtio_blk_config`.
pub const CONFIG_SIZE: usize = 96;
/// Where `writeback` is in it: the only field a driver may write.
pub const WRITEBACK_OFFSET: u32 = 32;

/// Largest block size, in bytes: no image format and no guest has larger ones.
const BLOCK_SIZE_MAX: u32 = 65536;

/// A feature bit of section 5.2.3, as a mask.
const fn feature(bit: u32) -> u64 {
    1 << bit
}

/// `VIRTIO_BLK_F_SIZE_MAX`.
pub const SIZE_MAX: u64 = feature(blk::VIRTIO_BLK_F_SIZE_MAX);
/// `VIRTIO_BLK_F_SEG_MAX`.
pub const SEG_MAX: u64 = feature(blk::VIRTIO_BLK_F_SEG_MAX);
/// `VIRTIO_BLK_F_RO`.
pub const RO: u64 = feature(blk::VIRTIO_BLK_F_RO);
/// `VIRTIO_BLK_F_BLK_SIZE`.
pub const BLK_SIZE: u64 = feature(blk::VIRTIO_BLK_F_BLK_SIZE);
/// `VIRTIO_BLK_F_FLUSH`.
pub const FLUSH: u64 = feature(blk::VIRTIO_BLK_F_FLUSH);
/// `VIRTIO_BLK_F_TOPOLOGY`.
pub const TOPOLOGY: u64 = feature(blk::VIRTIO_BLK_F_TOPOLOGY);
/// `VIRTIO_BLK_F_CONFIG_WCE`.
pub const CONFIG_WCE: u64 = feature(blk::VIRTIO_BLK_F_CONFIG_WCE);
/// `VIRTIO_BLK_F_MQ`.
pub const MQ: u64 = feature(blk::VIRTIO_BLK_F_MQ);
/// `VIRTIO_BLK_F_DISCARD`.
pub const DISCARD: u64 = feature(blk::VIRTIO_BLK_F_DISCARD);
/// `VIRTIO_BLK_F_WRITE_ZEROES`.
pub const WRITE_ZEROES: u64 = feature(blk::VIRTIO_BLK_F_WRITE_ZEROES);

/// How a disk is to look to its guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// Size, in sectors of 512 bytes.
    pub capacity: u64,
    /// Logical block size, in bytes: a power of two, 512 to 65536. The guest's requests are in
    /// sectors all the same.
    pub block_size: u32,
    /// How blocks lie on what is below.
    pub topology: Topology,
    /// Virtqueues, 1 to 256.
    pub queues: u16,
    /// Writes are refused.
    pub read_only: bool,
    /// Most bytes of one data segment, a multiple of 512; 0: any.
    pub size_max: u32,
    /// Most data segments of one request; 0: as many as a chain may have.
    pub seg_max: u32,
    /// DISCARD is offered, within these limits. Not of a read-only disk.
    pub discard: Option<DiscardLimits>,
    /// WRITE_ZEROES is offered, within these limits. Not of a read-only disk.
    pub write_zeroes: Option<ZeroLimits>,
}

/// `struct virtio_blk_topology`: hints for the guest's own alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Logical blocks of a physical one, as a power of two.
    pub physical_block_exp: u8,
    /// The first aligned logical block.
    pub alignment_offset: u8,
    /// Smallest advisable transfer, in logical blocks.
    pub min_io_size: u16,
    /// Best transfer, in logical blocks; 0: none is better.
    pub opt_io_size: u32,
}

/// What one DISCARD may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Most sectors of a range, at least 1.
    pub max_sectors: u32,
    /// Most ranges of a request, 1 to [`MAX_RANGES`].
    pub max_ranges: u32,
    /// Sectors by which the guest should align ranges, at least 1.
    pub alignment: u32,
}

/// What one WRITE_ZEROES may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroLimits {
    /// Most sectors of a range, at least 1.
    pub max_sectors: u32,
    /// Most ranges of a request, 1 to [`MAX_RANGES`].
    pub max_ranges: u32,
    /// Whether a request with the `unmap` flag may give space back.
    pub may_unmap: bool,
}

/// What is wrong with a [`DiskSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// Larger than a byte offset can say.
    #[error("a disk of {0} sectors is larger than 2^63 bytes")]
    Capacity(u64),
    /// Not a power of two from 512 to 65536.
    #[error("a block size of {0} bytes is not a power of two from 512 to 65536")]
    BlockSize(u32),
    /// None, or more than vhost-user can name.
    #[error("{0} queues: a disk has 1 to 256")]
    Queues(u16),
    /// Not a multiple of 512.
    #[error("segments of at most {0} bytes: must be a multiple of 512")]
    SizeMax(u32),
    /// No range would be allowed, or more than are taken.
    #[error(
        "{ranges} ranges of {sectors} sectors: 1 to 64 ranges of at least 1 sector are possible"
    )]
    Ranges {
        /// Most ranges of a request.
        ranges: u32,
        /// Most sectors of a range.
        sectors: u32,
    },
    /// An alignment of no sectors.
    #[error("ranges to discard cannot be aligned to 0 sectors")]
    Alignment,
}

/// A write to the configuration space that the specification does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the driver may write 0 or 1 to `writeback` if it negotiated CONFIG_WCE, nothing else")]
pub struct BadWrite;

/// By what requests are judged: small, for each worker to have its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Size, in sectors.
    pub capacity: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Writes may be kept in a cache until the next flush. Otherwise each is stable before it
    /// is completed.
    pub writeback: bool,
    /// Most bytes of one data segment.
    pub size_max: u32,
    /// Most data segments of one request.
    pub seg_max: u32,
    /// Most (ranges, sectors of each) of a DISCARD; `None`: unsupported.
    pub discard: Option<(u32, u32)>,
    /// The same of a WRITE_ZEROES.
    pub write_zeroes: Option<(u32, u32)>,
}

/// The configuration of one disk, as its guest sees and sets it.
#[derive(Clone, Debug)]
pub struct Config {
    spec: DiskSpec,
    negotiated: u64,
    writeback: bool,
    /// The guest asked for writethrough, and not for writeback since.
    writethrough: bool,
}

impl Config {
    /// A disk with no guest yet.
    ///
    /// # Errors
    /// What is wrong with the spec.
    pub fn new(mut spec: DiskSpec) -> Result<Config, SpecError> {
        if spec.capacity > i64::MAX.unsigned_abs() / SECTOR {
            return Err(SpecError::Capacity(spec.capacity));
        }
        let sizes = SECTOR as u32..=BLOCK_SIZE_MAX;
        if !spec.block_size.is_power_of_two() || !sizes.contains(&spec.block_size) {
            return Err(SpecError::BlockSize(spec.block_size));
        }
        if !(1..=256).contains(&spec.queues) {
            return Err(SpecError::Queues(spec.queues));
        }
        if !spec.size_max.is_multiple_of(SECTOR as u32) {
            return Err(SpecError::SizeMax(spec.size_max));
        }
        if spec.read_only {
            (spec.discard, spec.write_zeroes) = (None, None);
        }
        let discard = spec.discard.map(|one| (one.max_ranges, one.max_sectors));
        let zeroes = spec.write_zeroes.map(|one| (one.max_ranges, one.max_sectors));
        for (ranges, sectors) in discard.into_iter().chain(zeroes) {
            if !(1..=MAX_RANGES as u32).contains(&ranges) || sectors == 0 {
                return Err(SpecError::Ranges { ranges, sectors });
            }
        }
        if spec.discard.is_some_and(|discard| discard.alignment == 0) {
            return Err(SpecError::Alignment);
        }
        Ok(Config { spec, negotiated: 0, writeback: true, writethrough: false })
    }

    /// The device's features to offer: section 5.2.3. Those of rings and of vhost-user are others'.
    #[must_use]
    pub fn features(&self) -> u64 {
        let spec = &self.spec;
        let when = |offered: bool, feature: u64| if offered { feature } else { 0 };
        // FLUSH of a read-only disk too: "devices SHOULD always offer" it.
        BLK_SIZE
            | TOPOLOGY
            | FLUSH
            | CONFIG_WCE
            | when(spec.size_max != 0, SIZE_MAX)
            | when(spec.seg_max != 0, SEG_MAX)
            | when(spec.queues > 1, MQ)
            | when(spec.read_only, RO)
            | when(spec.discard.is_some(), DISCARD)
            | when(spec.write_zeroes.is_some(), WRITE_ZEROES)
    }

    /// A driver chose these features; bits that were not offered count for nothing.
    ///
    /// The cache is writeback with a driver that can flush it, and writethrough with another one
    /// (5.2.5.2). It stays writethrough if a guest asked for that: a front end that comes back does
    /// not say again what its guest wrote, and that guest does not flush.
    pub fn negotiate(&mut self, driver: u64) {
        self.negotiated = driver & self.features();
        self.writeback = self.negotiated & FLUSH != 0 && !self.writethrough;
    }

    /// Whether a guest asked for writethrough: for who keeps it over a restart.
    #[must_use]
    pub fn asked_writethrough(&self) -> bool {
        self.writethrough
    }

    /// A guest asked an earlier device for writethrough.
    pub fn keep_writethrough(&mut self) {
        (self.writethrough, self.writeback) = (true, false);
    }

    /// Takes a write of the driver to the configuration space, `offset` in bytes. The cache mode
    /// may have changed: [`Config::rules`].
    ///
    /// # Errors
    /// [`BadWrite`]; nothing changed.
    pub fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), BadWrite> {
        match (offset, bytes) {
            (WRITEBACK_OFFSET, &[mode @ (0 | 1)]) if self.negotiated & CONFIG_WCE != 0 => {
                self.writeback = mode == 1;
                self.writethrough = mode == 0;
                Ok(())
            }
            _ => Err(BadWrite),
        }
    }

    /// Changes the size, in sectors; true if it did, of which the driver is to be notified (a
    /// configuration change).
    ///
    /// # Errors
    /// [`SpecError::Capacity`]; nothing changed.
    pub fn resize(&mut self, capacity: u64) -> Result<bool, SpecError> {
        if capacity > i64::MAX.unsigned_abs() / SECTOR {
            return Err(SpecError::Capacity(capacity));
        }
        let changed = capacity != self.spec.capacity;
        self.spec.capacity = capacity;
        Ok(changed)
    }

    /// How the disk looks, as far as it was possible.
    #[must_use]
    pub fn spec(&self) -> &DiskSpec {
        &self.spec
    }

    /// By what requests are judged from now on.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let spec = &self.spec;
        let or_any = |limit: u32| if limit == 0 { u32::MAX } else { limit };
        Rules {
            capacity: spec.capacity,
            read_only: spec.read_only,
            writeback: self.writeback,
            size_max: or_any(spec.size_max),
            seg_max: or_any(spec.seg_max),
            discard: spec.discard.map(|one| (one.max_ranges, one.max_sectors)),
            write_zeroes: spec.write_zeroes.map(|one| (one.max_ranges, one.max_sectors)),
        }
    }

    /// `struct virtio_blk_config`, little endian. Fields of features that are not offered are zero.
    #[must_use]
    pub fn bytes(&self) -> [u8; CONFIG_SIZE] {
        let spec = &self.spec;
        let topology = &spec.topology;
        let mut space = Space { bytes: [0; CONFIG_SIZE], at: 0 };
        space.put(&spec.capacity.to_le_bytes());
        space.put(&spec.size_max.to_le_bytes());
        space.put(&spec.seg_max.to_le_bytes());
        space.skip(4); // geometry
        space.put(&spec.block_size.to_le_bytes());
        space.put(&[topology.physical_block_exp, topology.alignment_offset]);
        space.put(&topology.min_io_size.to_le_bytes());
        space.put(&topology.opt_io_size.to_le_bytes());
        space.put(&[self.writeback.into()]);
        space.skip(1);
        space.put(&if spec.queues > 1 { spec.queues } else { 0 }.to_le_bytes());
        if let Some(discard) = spec.discard {
            space.put(&discard.max_sectors.to_le_bytes());
            space.put(&discard.max_ranges.to_le_bytes());
            space.put(&discard.alignment.to_le_bytes());
        } else {
            space.skip(12);
        }
        if let Some(zeroes) = spec.write_zeroes {
            space.put(&zeroes.max_sectors.to_le_bytes());
            space.put(&zeroes.max_ranges.to_le_bytes());
            space.put(&[zeroes.may_unmap.into()]);
        }
        // Then padding, and secure erase and zones, which are not offered.
        space.bytes
    }
}

/// The configuration space, written from the front.
struct Space {
    bytes: [u8; CONFIG_SIZE],
    at: usize,
}

impl Space {
    fn put(&mut self, field: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.at).zip(field) {
            *to = *from;
        }
        self.skip(field.len());
    }

    fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

#[cfg(test)]
mod tests;
