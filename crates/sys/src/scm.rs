//! Bytes together with file descriptors over a Unix stream socket (`SCM_RIGHTS`), as vhost-user
//! needs it.
//!
//! Both directions never block and never raise a signal, whether the socket is non-blocking or not.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors in one message, either way. vhost-user sends at most 8 with one of its
/// messages.
pub const MAX_FDS: usize = 32;

/// What one [`recv`] brought.
#[derive(Debug)]
pub struct Received {
    /// Bytes written to the buffer; 0 means that the other side has closed (or that the buffer was
    /// empty).
    pub len: usize,
    /// Descriptors that came with these bytes, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Why nothing could be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// More than [`MAX_FDS`] descriptors in one message, or more than this process may still open.
    /// All of them are closed and the bytes are lost, so the connection is of no further use.
    #[error("the peer sent more file descriptors than can be taken")]
    TooManyDescriptors,
    /// The socket reports an error; `WouldBlock` when there is nothing to receive.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> io::Error {
        match error {
            RecvError::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// Receives what is there, up to the length of `buf`, with the descriptors sent along.
///
/// # Errors
/// See [`RecvError`].
pub fn recv(socket: impl AsFd, buf: &mut [u8]) -> Result<Received, RecvError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let result =
        retry_on_intr(|| recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buf)], &mut control, flags));
    let message = result.map_err(io::Error::from)?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    // Padding leaves room for one more.
    if message.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
        return Err(RecvError::TooManyDescriptors);
    }
    Ok(Received { len: message.bytes, fds })
}

/// Sends as many of `bytes` as fit at once, with `fds` attached to the first of them. Returns their
/// number, at least 1; the rest is to be sent without the descriptors. There must be a byte for
/// descriptors to travel with.
///
/// # Errors
/// `InvalidInput` for more than [`MAX_FDS`] descriptors, or descriptors without a byte;
/// `WouldBlock` when nothing can be sent now; `BrokenPipe` when the other side has closed; what
/// else sendmsg(2) reports.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > MAX_FDS || (bytes.is_empty() && !fds.is_empty()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent =
        retry_on_intr(|| sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(sent)
}

#[cfg(test)]
mod tests;
