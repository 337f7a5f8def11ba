//! What a worker does not do itself: it may wait, or has to copy. Other threads do it, with memory
//! of their own between the image and the guest, and give the job back to the worker.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use disk::SECTOR;
use disk::request::Range;
use guestmem::{Access, Segments};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};

use super::file::Manner;
use super::image::{DiskImage, Image};
use super::request::{Job, Work};

/// Most bytes moved at once.
const CHUNK: usize = 1 << 20;
/// Alignment of the memory between: enough for any file.
const ALIGN: usize = 4096;

/// Does the next step of a job; returns bytes moved, or anything.
pub(super) fn step(job: &Job, image: &DiskImage) -> io::Result<u64> {
    let segments = &job.segments;
    match (&job.request.work, image) {
        // Not done here.
        (_, DiskImage::Store(_)) => Err(io::ErrorKind::Unsupported.into()),
        (Work::Transfer { access, offset, stable, .. }, DiskImage::File(file)) => {
            transfer_file(*access, file, *offset, segments, *stable)
        }
        (Work::Transfer { access, offset, .. }, DiskImage::Image(image)) => {
            transfer_image(*access, image.as_ref(), *offset, segments)
        }
        (Work::Sync, DiskImage::File(file)) => Ok(fdatasync(file).map(|()| 0)?),
        (Work::Sync, DiskImage::Image(image)) => image.flush().map(|()| 0),
        (Work::Clear { ranges, zero, .. }, image) => match ranges.front() {
            Some(range) => clear(image, *range, *zero).map(|()| 0),
            None => Ok(0),
        },
        (Work::Nothing, _) => Ok(0),
    }
}

/// Memory of our own, aligned.
struct Between {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Between {
    fn new(len: u64) -> Between {
        let len = usize::try_from(len).unwrap_or(CHUNK).min(CHUNK);
        let memory = vec![0; len + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Between { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }
}

fn transfer_file(
    access: Access,
    file: &File,
    offset: u64,
    segments: &Segments,
    stable: bool,
) -> io::Result<u64> {
    let mut between = Between::new(segments.len());
    let bytes = between.bytes();
    match access {
        Access::Read => {
            let read = file.read_at(bytes, offset)?;
            Ok(segments.copy_from(bytes.get(..read).unwrap_or_default()) as u64)
        }
        Access::Write => {
            segments.copy_to(bytes);
            let written = file.write_at(bytes, offset)?;
            if stable {
                fdatasync(file)?;
            }
            Ok(written as u64)
        }
    }
}

fn transfer_image(
    access: Access,
    image: &dyn Image,
    offset: u64,
    segments: &Segments,
) -> io::Result<u64> {
    let mut between = Between::new(segments.len());
    let bytes = between.bytes();
    match access {
        Access::Read => {
            image.read(offset, bytes)?;
            segments.copy_from(bytes);
        }
        Access::Write => {
            segments.copy_to(bytes);
            image.write(offset, bytes)?;
        }
    }
    Ok(bytes.len() as u64)
}

fn clear(image: &DiskImage, range: Range, zero: bool) -> io::Result<()> {
    let (offset, len) = (range.sector * SECTOR, u64::from(range.sectors) * SECTOR);
    match (image, zero) {
        (DiskImage::Store(_), _) => Err(io::ErrorKind::Unsupported.into()),
        (DiskImage::Image(image), false) => image.discard(offset, len),
        (DiskImage::Image(image), true) => image.write_zeroes(offset, len, range.unmap),
        (DiskImage::File(file), false) => match punch(file, offset, len) {
            // Nobody has to do anything about it.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            result => result,
        },
        (DiskImage::File(file), true) => clear_file(file, offset, len, range.unmap),
    }
}

/// What fallocate(2) is asked so that a range is cleared.
fn clear_mode(zero: bool, unmap: bool) -> FallocateFlags {
    let how = if zero && !unmap { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
    how | FallocateFlags::KEEP_SIZE
}

fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    Ok(fallocate(file, clear_mode(false, true), offset, len)?)
}

fn clear_file(file: &File, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
    let done = fallocate(file, clear_mode(true, unmap), offset, len).map_err(io::Error::from);
    match done {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
        done => return done,
    }
    // A file system that cannot: byte by byte.
    let mut between = Between::new(len);
    let zeroes = between.bytes();
    let mut done = 0;
    while done < len {
        let part = (len - done).min(zeroes.len() as u64) as usize;
        done += file.write_at(zeroes.get(..part).unwrap_or_default(), offset + done)? as u64;
    }
    Ok(())
}

/// Whether a transfer can be made straight from or to guest memory.
pub(super) fn fits(manner: Manner, offset: u64, segments: &Segments) -> bool {
    match manner {
        Manner::Inline | Manner::Cached => true,
        Manner::Direct { memory, offset: align } => {
            // Pieces in the middle of a transfer must have whole blocks.
            segments.is_aligned(memory)
                && offset.is_multiple_of(align)
                && segments.len().is_multiple_of(align)
        }
    }
}
