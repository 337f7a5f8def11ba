//! Data from a socket to a file, without a copy on its way: splice(2).
//!
//! The kernel moves pages through a pipe, which is empty before and after.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Room in the pipe: as much as anybody may have. Where there is less, it takes more turns.
const ROOM: usize = 1 << 20;

/// The pipe.
#[derive(Debug)]
pub(crate) struct Splice {
    read: OwnedFd,
    write: OwnedFd,
}

impl Splice {
    pub(crate) fn new() -> io::Result<Splice> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // What is refused is not needed.
        let _ = fcntl_setpipe_size(&write, ROOM);
        Ok(Splice { read, write })
    }

    /// Takes what has arrived at the socket, so many bytes at most; how many.
    pub(crate) fn take(&self, socket: BorrowedFd<'_>, bytes: u64) -> io::Result<usize> {
        let count = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(splice(socket, None, &self.write, None, count, SpliceFlags::NONBLOCK)?)
    }

    /// Writes what was taken to a file.
    pub(crate) fn store(&self, file: &File, mut at: u64, mut count: usize) -> io::Result<()> {
        while count > 0 {
            match splice(&self.read, None, file, Some(&mut at), count, SpliceFlags::empty()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(stored) => count = count.saturating_sub(stored),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
