//! The ranges of DISCARD and WRITE_ZEROES: `struct virtio_blk_discard_write_zeroes`.

use arrayvec::ArrayVec;
use virtio_bindings::virtio_blk as blk;

use super::{Data, Refusal, inside};

/// Most ranges of one request, whatever is configured.
pub const MAX_RANGES: usize = 64;

/// Bytes of one range in guest memory.
const SIZE: usize = 16;

/// Some sectors, inside the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub sector: u64,
    /// How many, at least one.
    pub sectors: u32,
    /// WRITE_ZEROES only: space may be given back.
    pub unmap: bool,
}

/// Room for the ranges of one request: allocates and clears nothing.
#[derive(Debug, Default)]
pub struct Ranges(ArrayVec<Range, MAX_RANGES>);

impl Ranges {
    /// No ranges.
    #[must_use]
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// The ranges in `data`, read once.
    ///
    /// `limits` are the most ranges and the most sectors of each; `may_unmap` says whether the
    /// `unmap` flag is known. A flag that is not known counts before anything else: it MUST be told
    /// as unsupported.
    pub(super) fn read(
        &mut self,
        data: &Data<'_, '_>,
        limits: (u32, u32),
        may_unmap: bool,
        capacity: u64,
    ) -> Result<&[Range], Refusal> {
        let (max_ranges, max_sectors) = limits;
        let count = data.len() / SIZE as u64;
        if count == 0 || !data.len().is_multiple_of(SIZE as u64) {
            return Err(Refusal::Length);
        }
        if count > u64::from(max_ranges).min(MAX_RANGES as u64) {
            return Err(Refusal::SegmentCount);
        }
        let mut raw = [0; SIZE * MAX_RANGES];
        let read = data.read(&mut raw);
        let known = if may_unmap { blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
        self.0.clear();
        let mut refusal = None;
        for range in raw.get(..read).unwrap_or_default().as_chunks::<SIZE>().0 {
            let range = u128::from_le_bytes(*range);
            let (sector, sectors) = (range as u64, (range >> 64) as u32);
            let flags = (range >> 96) as u32;
            if flags & !known != 0 {
                return Err(Refusal::UnknownFlag);
            }
            refusal = refusal.or(check(sector, sectors, max_sectors, capacity).err());
            // There is room: no more than MAX_RANGES were read.
            let _ = self.0.try_push(Range { sector, sectors, unmap: flags != 0 });
        }
        refusal.map_or(Ok(self.0.as_slice()), Err)
    }
}

fn check(sector: u64, sectors: u32, max: u32, capacity: u64) -> Result<(), Refusal> {
    if sectors == 0 {
        return Err(Refusal::Length);
    }
    if sectors > max {
        return Err(Refusal::SegmentSize);
    }
    inside(sector, sectors.into(), capacity)
}
