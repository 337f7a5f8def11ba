//! Guest memory straight to and from sockets and pipes.

#![expect(unsafe_code)]
// UNSAFETY: hands addresses of guest memory to the kernel.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::segments::Segments;

/// Most pieces of memory the kernel takes at once: `UIO_MAXIOV`.
const PIECES: usize = 1024;

/// Bytes to be sent.
#[derive(Debug)]
pub enum Part<'a> {
    /// Of this program.
    Own(&'a [u8]),
    /// Of a guest.
    Guest(&'a Segments),
}

/// Sends of these parts, in order, what a stream socket takes without waiting: sendmsg(2). The kernel
/// reads guest memory itself. `more`: there is more to come at once (`MSG_MORE`). Returns how many bytes
/// were taken.
///
/// # Errors
/// What the kernel reports: `EAGAIN` if it takes none, `EFAULT` if guest memory has vanished where the
/// first byte is to be read.
pub fn send<'a>(
    socket: BorrowedFd<'_>,
    parts: impl Iterator<Item = Part<'a>>,
    more: bool,
) -> io::Result<usize> {
    let mut list: Vec<libc::iovec> = Vec::new();
    for part in parts {
        if list.len() >= PIECES {
            break;
        }
        match part {
            Part::Own(bytes) => {
                let iov_base = bytes.as_ptr().cast_mut().cast();
                list.push(libc::iovec { iov_base, iov_len: bytes.len() });
            }
            Part::Guest(segments) => list.extend(segments.iovecs()),
        }
    }
    list.truncate(PIECES);
    let mut message = message();
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = list.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the list names bytes that are borrowed for 'a, or guest memory that is mapped as long as
    // its segments live, which are borrowed for 'a as well. The kernel only reads it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Has a pipe refer to segments, from their beginning on, as far as it has room: vmsplice(2). Nothing is copied: what is
/// read from the pipe, or from where that is moved to, is what the memory holds then. The memory exists until
/// nobody refers to it, even if it is unmapped. Returns how many bytes that was.
///
/// # Errors
/// What the kernel reports: `EAGAIN` if there is no room, `EFAULT` if guest memory has vanished where the first byte
/// is to be.
pub fn lend(pipe: BorrowedFd<'_>, segments: &Segments) -> io::Result<usize> {
    let list: Vec<libc::iovec> = segments.iovecs().take(PIECES).collect();
    // SAFETY: the list names guest memory that is mapped as long as the segments live. The kernel takes references
    // to its pages, and only reads them.
    let lent = unsafe {
        libc::vmsplice(pipe.as_raw_fd(), list.as_ptr(), list.len(), libc::SPLICE_F_NONBLOCK)
    };
    usize::try_from(lent).map_err(|_| io::Error::last_os_error())
}

/// Fills segments from their beginning with what has arrived at a stream socket, without waiting:
/// recvmsg(2). Returns how many bytes that was; 0 is the end of the stream.
///
/// # Errors
/// What the kernel reports: `EAGAIN` if there is nothing, `EFAULT` if guest memory has vanished.
pub fn receive(socket: BorrowedFd<'_>, segments: &Segments) -> io::Result<usize> {
    let mut list: Vec<libc::iovec> = segments.iovecs().take(PIECES).collect();
    let mut message = message();
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = list.len() as _;
    // SAFETY: the list names guest memory that is mapped as long as the segments live, which anybody
    // may change.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Fills segments from their beginning with what is in a pipe: readv(2). Returns how many bytes that was; 0 is the end.
///
/// # Errors
/// What the kernel reports: `EAGAIN` if there is nothing in a pipe that does not wait, `EFAULT` if guest memory has
/// vanished.
pub fn take(pipe: BorrowedFd<'_>, segments: &Segments) -> io::Result<usize> {
    let list: Vec<libc::iovec> = segments.iovecs().take(PIECES).collect();
    // SAFETY: the list names guest memory that is mapped as long as the segments live, which anybody
    // may change.
    let got = unsafe { libc::readv(pipe.as_raw_fd(), list.as_ptr(), list.len() as _) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

fn message() -> libc::msghdr {
    // SAFETY: an all-zero msghdr names nothing.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::{GuestMemory, RegionFile, RegionSpec};

    fn memory(size: u64) -> Arc<GuestMemory> {
        let fd = memfd_create("socket", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        let spec = RegionSpec { guest_addr: 0, size, user_addr: 0, mmap_offset: 0 };
        Arc::new(GuestMemory::map(&[(spec, RegionFile::from(fd))]).unwrap())
    }

    fn segments(memory: &Arc<GuestMemory>, places: &[(u64, u32)]) -> Segments {
        let slices = places.iter().map(|(gpa, len)| memory.slice(*gpa, *len).unwrap());
        Segments::of(memory, slices).unwrap()
    }

    #[test]
    fn what_is_sent_arrives_in_order() {
        let memory = memory(1 << 20);
        let (one, other) = UnixStream::pair().unwrap();
        let from = segments(&memory, &[(100, 3), (5000, 4)]);
        from.copy_from(b"guestly");
        let parts = [Part::Own(b"head"), Part::Guest(&from), Part::Own(b"tail")];
        assert_eq!(send(one.as_fd(), parts.into_iter(), false).unwrap(), 15);
        let to = segments(&memory, &[(9000, 6), (20, 9)]);
        assert_eq!(receive(other.as_fd(), &to).unwrap(), 15);
        let mut bytes = [0; 15];
        to.copy_to(&mut bytes);
        assert_eq!(&bytes, b"headguestlytail");
        let kind = receive(other.as_fd(), &to).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::WouldBlock);
        drop(one);
        assert_eq!(receive(other.as_fd(), &to).unwrap(), 0);
        let none: [Part<'_>; 1] = [Part::Own(b"x")];
        assert_eq!(
            send(other.as_fd(), none.into_iter(), false).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }

    /// Pieces one after the other; what is read is what is there when it is read, and as long as that.
    #[test]
    fn what_is_lent_is_referred_to() {
        let memory = memory(1 << 20);
        let (from, to) = rustix::pipe::pipe().unwrap();
        let lent = segments(&memory, &[(100, 3), (5000, 4)]);
        lent.copy_from(b"changed");
        assert_eq!(lend(to.as_fd(), &lent).unwrap(), 7);
        lent.copy_from(b"guestly");
        drop((lent, memory));
        let got = self::memory(1 << 20);
        let got = segments(&got, &[(4000, 2), (9, 100)]);
        assert_eq!(take(from.as_fd(), &got).unwrap(), 7);
        let mut bytes = [0; 7];
        got.copy_to(&mut bytes);
        assert_eq!(&bytes, b"guestly");
        // As much as there is room for.
        let memory = self::memory(1 << 20);
        let all = segments(&memory, &[(0, 1 << 20)]);
        let some = lend(to.as_fd(), &all).unwrap();
        assert!((1..1 << 20).contains(&some), "{some}");
        assert_eq!(lend(to.as_fd(), &all).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
