//! Opening image files with or without the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};

/// Whether I/O goes through the host's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Past it (`O_DIRECT`), if the file system can do that for single sectors and the file's length
    /// is a whole number of them. Only an image's own file is meant: those behind it are shared by many and
    /// always read through the page cache.
    Direct,
    /// Through it.
    PageCache,
}

/// What the requests to a file must be multiples of, in bytes. Both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Addresses of buffers.
    pub memory: u32,
    /// Offsets and lengths.
    pub offset: u32,
}

/// What guests read and write, in bytes.
const SECTOR: u32 = 512;

impl Alignment {
    /// Anything goes.
    pub const NONE: Self = Self { memory: 1, offset: 1 };
    /// What every file system takes that the kernel does not ask about it.
    const SAFE: Self = Self { memory: 4096, offset: 4096 };
}

/// Opens a file for reading, and for writing if `write`; says what its requests must be aligned to.
///
/// A file system that has no direct I/O gives a file that goes through the page cache. So does one
/// whose blocks are larger than a sector: two sectors of a block that are written side by side would
/// undo each other. So does a file whose end is not aligned: its last block could not be read, nor
/// written without growing it.
pub(crate) fn open(path: &Path, write: bool, cache: Cache) -> io::Result<(File, Alignment)> {
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    if cache == Cache::Direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        match options.open(path) {
            Ok(file) => {
                let alignment = alignment(&file);
                let whole = file.metadata()?.len().is_multiple_of(u64::from(alignment.offset));
                if whole && alignment.memory.max(alignment.offset) <= SECTOR {
                    return Ok((file, alignment));
                }
            }
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            }
            Err(error) => return Err(error),
        }
        options.custom_flags(0);
    }
    Ok((options.open(path)?, Alignment::NONE))
}

/// What the kernel says (Linux 6.1), or what is safe anywhere.
fn alignment(file: &File) -> Alignment {
    match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(s)
            if s.stx_dio_mem_align.is_power_of_two()
                && s.stx_dio_offset_align.is_power_of_two() =>
        {
            Alignment { memory: s.stx_dio_mem_align, offset: s.stx_dio_offset_align }
        }
        _ => Alignment::SAFE,
    }
}
