//! Event counters: how the two sides of a virtqueue wake each other.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, ReadWriteFlags, fcntl_setfd, preadv2, retry_on_intr, write};

/// An eventfd(2), non-blocking and close-on-exec.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new one with a count of zero.
    ///
    /// # Errors
    /// What eventfd(2) reports: no descriptors or memory left.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Takes over a descriptor that another process sent, after a look at what it is.
    ///
    /// Anything but an eventfd is refused: signalling a pipe or a terminal could block, and a file
    /// would grow. The descriptor is made non-blocking and close-on-exec. Non-blocking is a
    /// property that the sender shares and can take back; see [`EventFd::signal`].
    ///
    /// # Errors
    /// `InvalidInput` when it is not an eventfd; what fcntl(2) reports.
    pub fn from_fd(fd: OwnedFd) -> io::Result<EventFd> {
        let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
        // No path of the file system can look like this one: those begin with a slash.
        if link.as_bytes() != b"anon_inode:[eventfd]" {
            let what = format!("expected an eventfd, got {}", link.to_string_lossy());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        let flags = fcntl_getfl(&fd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        }
        Ok(EventFd(fd))
    }

    /// Adds one to the count and wakes whoever waits. A count that is full already is as good as
    /// one more.
    ///
    /// Can only block when the other side fills the count **and** makes its eventfd blocking again,
    /// after [`EventFd::from_fd`]. No guest can do that, only the process that runs it.
    ///
    /// # Errors
    /// What write(2) reports; none is to be expected of an eventfd.
    pub fn signal(&self) -> io::Result<()> {
        match retry_on_intr(|| write(&self.0, &1_u64.to_ne_bytes())) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sets the count to zero. Returns whether it was something else. Never blocks, whatever the
    /// other side does.
    pub fn drain(&self) -> bool {
        let mut count = [0; 8];
        let read = retry_on_intr(|| {
            let mut into = [io::IoSliceMut::new(&mut count)];
            // Position -1: a stream. NOWAIT holds even when the descriptor was made blocking again.
            preadv2(&self.0, &mut into, u64::MAX, ReadWriteFlags::NOWAIT)
        });
        read == Ok(count.len())
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> OwnedFd {
        event.0
    }
}

#[cfg(test)]
mod tests;
