//! Requests (virtio 1.3, 5.2.6): from the buffers of a chain to an operation on an image.
//!
//! A request is a header of 16 bytes, data, and a status byte that the device writes. Where the
//! driver puts the borders between descriptors means nothing (2.7.4): the header is the first 16
//! device-readable bytes, the status the last device-writable one, the data what is between.
//!
//! Header and ranges are read once, into locals, and judged there. The data is not read at all: an
//! operation names it ([`Data`]), and the engine moves it. It takes the pieces of memory out of the
//! operation when it submits it, and keeps the [`Completion`] until the image has answered. The
//! memory of the session stays mapped until the last one: a queue is stopped only then.

mod completion;
mod data;
mod ranges;

use guestmem::{GuestMemory, GuestSlice};
use thiserror::Error;
use virtio_bindings::virtio_blk as blk;
use virtqueue::Chain;

pub use completion::{Completion, Status};
pub use data::Data;
pub use ranges::{MAX_RANGES, Range, Ranges};

use crate::SECTOR;
use crate::config::Rules;

/// Bytes of the header of a request.
pub const HEADER: usize = 16;
/// Bytes of a device ID.
pub const ID_BYTES: usize = blk::VIRTIO_BLK_ID_BYTES as usize;

/// What a chain turned out to be.
#[derive(Debug)]
pub enum Parsed<'c, 'm> {
    /// A request, to be carried out.
    Operation(Operation<'c, 'm>),
    /// Nothing to carry out: to be completed at once, with [`Refusal::status`], and counted.
    Refused(Refusal, Completion),
}

/// A request, checked.
#[derive(Debug)]
pub struct Operation<'c, 'm> {
    /// What to do.
    pub command: Command<'c, 'm>,
    /// What to do then.
    pub completion: Completion,
}

/// What a guest asks for. Positions are in sectors of 512 bytes, inside the disk.
#[derive(Debug)]
pub enum Command<'c, 'm> {
    /// Read the disk into `data`.
    Read {
        /// The first sector.
        sector: u64,
        /// Where the sectors go: a whole number of them, at least one.
        data: Data<'c, 'm>,
    },
    /// Write `data` to the disk.
    Write {
        /// The first sector.
        sector: u64,
        /// What goes there: a whole number of sectors, at least one.
        data: Data<'c, 'm>,
        /// To be on stable storage before it is completed: the cache is writethrough.
        stable: bool,
    },
    /// Make every write that was completed before stable.
    Flush,
    /// Nobody needs the contents of these ranges any more.
    Discard {
        /// At least one.
        ranges: &'c [Range],
    },
    /// These ranges are to read as zeroes.
    WriteZeroes {
        /// At least one. [`Range::unmap`]: space may be given back.
        ranges: &'c [Range],
        /// As of a write.
        stable: bool,
    },
    /// Fill `data` with the disk's name, padded with zeroes.
    GetId {
        /// 20 bytes.
        data: Data<'c, 'm>,
    },
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No device-writable byte for the status: the chain goes back with length 0.
    #[error("there is no room for the status")]
    NoStatus,
    /// Fewer than 16 device-readable bytes.
    #[error("the header is cut off")]
    NoHeader,
    /// A type that is unknown, or was not offered.
    #[error("requests of this type are not supported")]
    UnknownType,
    /// Data to be written in device-writable memory, or data to be read in device-readable.
    #[error("data in memory of the wrong direction")]
    Direction,
    /// No data, not whole sectors, not whole ranges, or not the size of an ID.
    #[error("the data has a length that a request of this type cannot have")]
    Length,
    /// More data segments than `seg_max`, or more ranges than a request may have.
    #[error("more segments than the disk takes")]
    SegmentCount,
    /// A data segment larger than `size_max`, or a range larger than ranges may be.
    #[error("a segment is larger than the disk takes")]
    SegmentSize,
    /// Not wholly inside the disk.
    #[error("sectors beyond the end of the disk")]
    BeyondEnd,
    /// A write to a read-only disk.
    #[error("the disk is read-only")]
    ReadOnly,
    /// A flag of a range that is reserved, or `unmap` with a discard.
    #[error("a range has a flag that is not known")]
    UnknownFlag,
}

impl Refusal {
    /// Every refusal, in the order of their numbers.
    pub const ALL: [Refusal; 10] = [
        Self::NoStatus,
        Self::NoHeader,
        Self::UnknownType,
        Self::Direction,
        Self::Length,
        Self::SegmentCount,
        Self::SegmentSize,
        Self::BeyondEnd,
        Self::ReadOnly,
        Self::UnknownFlag,
    ];

    /// What the guest is told.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::UnknownType | Self::UnknownFlag => Status::Unsupported,
            _ => Status::IoError,
        }
    }

    /// The stable, kebab-case name under which it is counted.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoStatus => "no-status",
            Self::NoHeader => "no-header",
            Self::UnknownType => "unknown-type",
            Self::Direction => "direction",
            Self::Length => "length",
            Self::SegmentCount => "segment-count",
            Self::SegmentSize => "segment-size",
            Self::BeyondEnd => "beyond-end",
            Self::ReadOnly => "read-only",
            Self::UnknownFlag => "unknown-flag",
        }
    }
}

/// Judges the request in a chain that was popped.
///
/// `mem` is the memory it was popped from. `scratch` is room for ranges, to be used again and again as the chain is. Nothing is written to
/// guest memory.
pub fn parse<'c, 'm>(
    mem: &'m GuestMemory,
    chain: &'c Chain<'m>,
    rules: &Rules,
    scratch: &'c mut Ranges,
) -> Parsed<'c, 'm> {
    let completion = Completion::of(mem, chain);
    match command(chain, rules, scratch) {
        Ok(command) => Parsed::Operation(Operation { command, completion }),
        Err(refusal) => Parsed::Refused(refusal, completion),
    }
}

fn command<'c, 'm>(
    chain: &'c Chain<'m>,
    rules: &Rules,
    scratch: &'c mut Ranges,
) -> Result<Command<'c, 'm>, Refusal> {
    let Some(room) = chain.writable_len().checked_sub(1) else { return Err(Refusal::NoStatus) };
    let (kind, sector) = header(chain.readable()).ok_or(Refusal::NoHeader)?;
    let given = Data::new(chain.readable(), HEADER, chain.readable_len() - HEADER as u32);
    let taken = Data::new(chain.writable(), 0, room);
    let stable = !rules.writeback;
    match kind {
        blk::VIRTIO_BLK_T_IN => {
            let data = only(taken, &given)?;
            transfer(&data, sector, rules)?;
            Ok(Command::Read { sector, data })
        }
        blk::VIRTIO_BLK_T_OUT => {
            writable(rules)?;
            let data = only(given, &taken)?;
            transfer(&data, sector, rules)?;
            Ok(Command::Write { sector, data, stable })
        }
        // Data that a driver "SHOULD NOT include" means nothing.
        blk::VIRTIO_BLK_T_FLUSH => Ok(Command::Flush),
        blk::VIRTIO_BLK_T_GET_ID => {
            let data = only(taken, &given)?;
            if data.len() != ID_BYTES as u64 {
                return Err(Refusal::Length);
            }
            Ok(Command::GetId { data })
        }
        // A read-only disk offers neither, and says so of a write: "MUST be IOERR".
        blk::VIRTIO_BLK_T_DISCARD => {
            writable(rules)?;
            let limits = rules.discard.ok_or(Refusal::UnknownType)?;
            let data = only(given, &taken)?;
            let ranges = scratch.read(&data, limits, false, rules.capacity)?;
            Ok(Command::Discard { ranges })
        }
        blk::VIRTIO_BLK_T_WRITE_ZEROES => {
            writable(rules)?;
            let limits = rules.write_zeroes.ok_or(Refusal::UnknownType)?;
            let data = only(given, &taken)?;
            let ranges = scratch.read(&data, limits, true, rules.capacity)?;
            Ok(Command::WriteZeroes { ranges, stable })
        }
        _ => Err(Refusal::UnknownType),
    }
}

/// Type and sector, if the header is whole.
fn header(readable: &[GuestSlice<'_>]) -> Option<(u32, u64)> {
    let mut raw = [0; HEADER];
    if Data::new(readable, 0, HEADER as u32).read(&mut raw) < HEADER {
        return None;
    }
    let raw = u128::from_le_bytes(raw);
    Some((raw as u32, (raw >> 64) as u64))
}

/// The data, if there is none in the other direction.
fn only<'c, 'm>(data: Data<'c, 'm>, other: &Data<'c, 'm>) -> Result<Data<'c, 'm>, Refusal> {
    if other.is_empty() { Ok(data) } else { Err(Refusal::Direction) }
}

fn writable(rules: &Rules) -> Result<(), Refusal> {
    if rules.read_only { Err(Refusal::ReadOnly) } else { Ok(()) }
}

/// Whether so much data can be read from or written to there.
fn transfer(data: &Data<'_, '_>, sector: u64, rules: &Rules) -> Result<(), Refusal> {
    if data.is_empty() || !data.len().is_multiple_of(SECTOR) {
        return Err(Refusal::Length);
    }
    inside(sector, data.len() / SECTOR, rules.capacity)?;
    let mut count = 0;
    for segment in data.segments() {
        count += 1;
        if segment.len() > rules.size_max as usize {
            return Err(Refusal::SegmentSize);
        }
    }
    if count > rules.seg_max { Err(Refusal::SegmentCount) } else { Ok(()) }
}

/// Whether sectors are inside a disk of so many.
fn inside(sector: u64, count: u64, capacity: u64) -> Result<(), Refusal> {
    match sector.checked_add(count) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(Refusal::BeyondEnd),
    }
}
