//! Numbers that outlive the process: 64-bit words in a file that is mapped, stored to without a
//! system call.

#![expect(unsafe_code)]
// UNSAFETY: mmap and munmap have no safe form; the pointer into the mapping is read and written as
// atomics, each checked for its place first.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::OFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A row of 64-bit atomics, in memory of this process or in a file. Cheap to clone: clones and
/// parts are the same words.
///
/// What is stored to a file's words is there for whoever opens the file next, whichever way this
/// process ends; it need not survive the host. The file's bytes are somebody else's: expect
/// anything in them.
#[derive(Clone, Debug)]
pub struct Words {
    first: NonNull<AtomicU64>,
    len: usize,
    _owner: Owner,
}

/// What the words lie in.
#[derive(Clone, Debug)]
enum Owner {
    Heap { _words: Arc<[AtomicU64]> },
    File { _map: Arc<Map> },
}

// SAFETY: the words are atomics, and `_owner` keeps them where they are.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// `len` words of this process, all zero.
    #[must_use]
    pub fn private(len: usize) -> Words {
        let words: Arc<[AtomicU64]> = (0..len).map(|_| AtomicU64::new(0)).collect();
        let first = NonNull::from(&*words).cast();
        Words { first, len, _owner: Owner::Heap { _words: words } }
    }

    /// The `len` words of the file at `path`; `None` if there is no file.
    ///
    /// # Errors
    /// `InvalidData` if it is not a regular file of this user with that many words and one name;
    /// what open(2) and mmap(2) report. A symbolic link is not followed.
    pub fn open(path: &Path, len: usize) -> io::Result<Option<Words>> {
        let file = match options().open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = file.metadata()?;
        let own = found.uid() == rustix::process::geteuid().as_raw() && found.nlink() == 1;
        if !found.is_file() || !own || found.len() != bytes(len)? as u64 {
            let what = format!("not a file of this user with {len} words");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Words::of(&file, len).map(Some)
    }

    /// The same of a new file, mode 0600, all zero.
    ///
    /// # Errors
    /// `AlreadyExists`; what open(2), write(2) and mmap(2) report.
    pub fn create(path: &Path, len: usize) -> io::Result<Words> {
        let mut file = options().create_new(true).mode(0o600).open(path)?;
        // Written and not only sized: a page the file system has no room for would be a SIGBUS.
        file.write_all(&vec![0; bytes(len)?])?;
        Words::of(&file, len)
    }

    fn of(file: &File, len: usize) -> io::Result<Words> {
        let map = Arc::new(Map::new(file, bytes(len)?)?);
        Ok(Words { first: map.start.cast(), len, _owner: Owner::File { _map: map } })
    }

    /// The `len` words from word `start` on, if there are as many.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Option<Words> {
        let end = start.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: start <= end <= self.len.
        let first = unsafe { self.first.add(start) };
        Some(Words { first, len, _owner: self._owner.clone() })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Word `index`, if there is one.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.len {
            return None;
        }
        // SAFETY: index < self.len, and `_owner` keeps the words as long as `self` lives.
        Some(unsafe { self.first.add(index).as_ref() })
    }
}

fn options() -> OpenOptions {
    let mut options = File::options();
    // NONBLOCK: opening a FIFO that lies there must not wait for its other end.
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    options
}

fn bytes(len: usize) -> io::Result<usize> {
    let bytes = len.checked_mul(size_of::<u64>()).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// A file mapped whole and shared.
#[derive(Debug)]
struct Map {
    /// Aligned to a page.
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Map {}
// SAFETY: as above; nothing is read or written through it but atomics.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: &File, len: usize) -> io::Result<Map> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes; nothing else knows of it.
        let start = unsafe { mmap(null_mut(), len, prot, flags | MapFlags::POPULATE, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Map { start, len })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and no words are left that lie in it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests;
