//! Locks of image files: one writer, or readers. The rule is in the documentation of the crate.
//!
//! QEMU (`block/file-posix.c`) holds a shared lock on byte 100 + P for each permission P that it
//! uses, and on byte 200 + P for each that it does not share; then it looks whether anybody holds
//! the other byte of the pair. A writer of ours holds everything, so QEMU's first step fails and
//! ours fails if QEMU holds anything. Readers of ours hold what a QEMU that shares neither writing
//! nor resizing holds, and look as it does.

use std::fs::File;
use std::io;

use sys::ofd::{self, Kind, Range};

/// Permissions of QEMU's block layer that a base must not give to others.
const WRITE: u64 = 1;
const RESIZE: u64 = 3;
const USED: u64 = 100;
const NOT_SHARED: u64 = 200;
/// A byte that QEMU knows nothing of: readers of ours hold it.
const READER: Range = Range::byte(1 << 62);

/// Who has an image file open, as its locks tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Nobody that locks.
    Nobody,
    /// Readers, ours or QEMU's.
    Readers,
    /// A writer of ours.
    Writer,
    /// A QEMU that writes.
    Qemu,
}

/// Locks `file` for writing. `Ok(false)`: it is in use.
pub(crate) fn writer(file: &File) -> io::Result<bool> {
    ofd::try_lock(file, Kind::Exclusive, Range::ALL)
}

/// Locks `file` for reading, so that nobody may write it. `Ok(false)`: somebody does.
pub(crate) fn reader(file: &File) -> io::Result<bool> {
    let held = [Range::byte(NOT_SHARED + WRITE), Range::byte(NOT_SHARED + RESIZE), READER];
    for range in held {
        if !ofd::try_lock(file, Kind::Shared, range)? {
            return Ok(false);
        }
    }
    for permission in [WRITE, RESIZE] {
        if ofd::holder(file, Kind::Exclusive, Range::byte(USED + permission))?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Who holds locks on the file, seen through a description that holds none.
pub(crate) fn holder(file: &File) -> io::Result<Holder> {
    Ok(match ofd::holder(file, Kind::Shared, READER)? {
        Some(_) => Holder::Writer,
        None if ofd::holder(file, Kind::Exclusive, Range::byte(USED + WRITE))?.is_some() => {
            Holder::Qemu
        }
        None if ofd::holder(file, Kind::Exclusive, Range::ALL)?.is_some() => Holder::Readers,
        None => Holder::Nobody,
    })
}
