//! Byte-range locks of open file descriptions (`F_OFD_SETLK`, fcntl(2)).
//!
//! Such a lock belongs to the open file description, not to the process: a duplicated descriptor
//! shares it, a second `open` does not, and the kernel releases it when the last reference to the
//! description is gone, be it a descriptor, a mapping or a request in flight. It is advisory, and it
//! conflicts with the locks of other descriptions, whoever holds them.

#![expect(unsafe_code)]
// UNSAFETY: fcntl(2) takes a pointer to the lock.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// What a lock allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Others may hold shared locks; needs a descriptor open for reading.
    Shared,
    /// Nobody else may hold a lock; needs a descriptor open for writing.
    Exclusive,
}

/// Bytes of a file that a lock covers, whether they exist or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    start: libc::off_t,
    len: libc::off_t,
}

impl Range {
    /// All bytes, to the largest possible offset.
    pub const ALL: Self = Self { start: 0, len: 0 };

    /// The byte at `offset`, which is less than `i64::MAX`; a lock on one behind is an error.
    pub const fn byte(offset: u64) -> Self {
        Self { start: offset as libc::off_t, len: 1 }
    }
}

/// Takes a lock, if nobody holds one that conflicts. Never waits.
///
/// `Ok(false)` means that somebody does.
///
/// # Errors
/// What fcntl(2) says: a descriptor that is not open the right way, no memory for a lock, or a
/// file system without locks.
pub fn try_lock(file: impl AsFd, kind: Kind, range: Range) -> io::Result<bool> {
    match control(&file, libc::F_OFD_SETLK, &mut lock_of(kind, range)) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Takes a lock and waits for it as long as it takes.
///
/// # Errors
/// As [`try_lock`].
pub fn lock(file: impl AsFd, kind: Kind, range: Range) -> io::Result<()> {
    loop {
        match control(&file, libc::F_OFD_SETLKW, &mut lock_of(kind, range)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// The kind of one lock that keeps this description from taking a lock of `kind`, or `None` if
/// nothing does.
///
/// It only asks, so the descriptor may be open in any way. The answer may be old when it arrives.
///
/// # Errors
/// As [`try_lock`].
pub fn holder(file: impl AsFd, kind: Kind, range: Range) -> io::Result<Option<Kind>> {
    let mut lock = lock_of(kind, range);
    control(&file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(match libc::c_int::from(lock.l_type) {
        libc::F_UNLCK => None,
        libc::F_RDLCK => Some(Kind::Shared),
        _ => Some(Kind::Exclusive),
    })
}

fn lock_of(kind: Kind, range: Range) -> libc::flock {
    let kind = match kind {
        Kind::Shared => libc::F_RDLCK,
        Kind::Exclusive => libc::F_WRLCK,
    };
    // The process of an OFD lock must be 0: fcntl(2).
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start,
        l_len: range.len,
        l_pid: 0,
    }
}

fn control(file: &impl AsFd, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as it is borrowed, and the lock lives through the call.
    let done = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut *lock) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
