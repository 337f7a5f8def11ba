//! Network namespaces.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::fstat;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace, which stays while this value does.
#[derive(Debug)]
pub struct Netns {
    file: File,
}

impl Netns {
    /// The one this thread is in.
    ///
    /// # Errors
    /// When there is no `/proc`.
    pub fn here() -> io::Result<Self> {
        File::open("/proc/thread-self/ns/net").map(|file| Self { file })
    }

    /// The one at a path. That it is one shows when it is entered.
    ///
    /// # Errors
    /// When nothing is there.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A pipe somebody put there must not hold this process up.
        let flags = rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
        Ok(Self { file: file.into() })
    }

    /// Are both the same?
    ///
    /// # Errors
    /// When the kernel cannot say.
    pub fn is(&self, other: &Self) -> io::Result<bool> {
        let (one, other) = (fstat(&self.file)?, fstat(&other.file)?);
        Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
    }

    /// Does something in it, and comes back. Sockets made there stay there.
    ///
    /// # Errors
    /// When it is no network namespace or cannot be entered, and what `act` says.
    pub fn enter<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let back = Back(Self::here()?);
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
        let done = act();
        drop(back);
        done
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns to a namespace, come what may.
struct Back(Netns);

impl Drop for Back {
    fn drop(&mut self) {
        let kind = Some(LinkNameSpaceType::Network);
        if move_into_link_name_space(self.0.fd(), kind).is_err() {
            // Whatever came next would be done to the wrong namespace.
            std::process::abort();
        }
    }
}
