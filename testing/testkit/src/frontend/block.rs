//! What the front end of a disk does besides: memory for requests in flight, the configuration space.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::scm;

use super::wire::{REPLY, VERSION, backend_request, message, request};
use super::{Frontend, FrontendError, Reply, closed};

/// Memory in which a back end writes down its requests in flight.  The front end keeps it and brings it to the next one.
#[derive(Debug)]
pub struct Inflight {
    /// Length and offset in the file, in bytes.
    pub mmap_size: u64,
    /// See there.
    pub mmap_offset: u64,
    /// How many virtqueues have a region.
    pub queues: u16,
    /// Size of each.
    pub queue_size: u16,
    /// The file.
    pub fd: OwnedFd,
}

impl Inflight {
    /// The area as messages describe it.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        inflight_body(self.mmap_size, self.mmap_offset, self.queues, self.queue_size)
    }
}

/// Body of GET_INFLIGHT_FD and SET_INFLIGHT_FD, with the padding that QEMU sends.
#[must_use]
pub fn inflight_body(mmap_size: u64, mmap_offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let mut body = [mmap_size, mmap_offset].map(u64::to_ne_bytes).concat();
    body.extend([queues, queue_size, 0, 0].map(u16::to_ne_bytes).concat());
    body
}

/// The front end's end of the socket on which a back end makes requests.
#[derive(Debug)]
pub struct BackendRequests(UnixStream);

impl BackendRequests {
    /// Waits until the back end says that the configuration space has changed, and expects nothing else.
    ///
    /// # Errors
    /// The socket failed, or something else came.
    pub fn wait_config_change(&mut self) -> Result<(), FrontendError> {
        let mut header = [0; 12];
        self.0.read_exact(&mut header).map_err(closed)?;
        if header == *message(backend_request::CONFIG_CHANGE_MSG, VERSION, &[]) {
            return Ok(());
        }
        Err(FrontendError::Io(io::Error::other(format!("{header:x?} is no config change"))))
    }

    /// The socket itself.
    #[must_use]
    pub fn socket(&self) -> &UnixStream {
        &self.0
    }
}

impl Frontend {
    /// GET_INFLIGHT_FD: new memory for requests in flight; needs [`protocol::INFLIGHT_SHMFD`](super::protocol::INFLIGHT_SHMFD).
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn get_inflight(&mut self, queues: u16, size: u16) -> Result<Inflight, FrontendError> {
        let number = request::GET_INFLIGHT_FD;
        self.send(&message(number, VERSION, &inflight_body(0, 0, queues, size)), &[])?;
        let (got, fd) = self.receive_with_fd()?;
        let expected = got.request == number && got.flags == VERSION | REPLY;
        match (got.body.as_chunks::<8>(), fd) {
            (([mmap_size, mmap_offset, rest], []), Some(fd)) if expected => {
                let [mmap_size, mmap_offset] =
                    [mmap_size, mmap_offset].map(|n| u64::from_ne_bytes(*n));
                let [q0, q1, s0, s1, ..] = *rest;
                let queues = u16::from_ne_bytes([q0, q1]);
                let queue_size = u16::from_ne_bytes([s0, s1]);
                Ok(Inflight { mmap_size, mmap_offset, queues, queue_size, fd })
            }
            _ => Err(FrontendError::WrongReply { request: number, got }),
        }
    }

    /// SET_INFLIGHT_FD: before any queue is started.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn set_inflight(&mut self, inflight: &Inflight) -> Result<(), FrontendError> {
        self.set(request::SET_INFLIGHT_FD, &inflight.body(), &[inflight.fd.as_fd()])
    }

    /// GET_CONFIG: so many bytes from the start of the configuration space; needs [`protocol::CONFIG`](super::protocol::CONFIG).
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn get_config(&mut self, size: u32) -> Result<Vec<u8>, FrontendError> {
        let mut body = [0, size, 0].map(u32::to_ne_bytes).concat();
        body.resize(body.len() + size as usize, 0);
        let reply = self.ask(request::GET_CONFIG, &body)?;
        match reply.body.split_at_checked(12) {
            Some((_, config)) if reply.body.len() == body.len() => Ok(config.to_vec()),
            _ => Err(FrontendError::WrongReply { request: request::GET_CONFIG, got: reply }),
        }
    }

    /// SET_CONFIG, as when the guest writes these bytes.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), FrontendError> {
        let mut body = [offset, bytes.len() as u32, 0].map(u32::to_ne_bytes).concat();
        body.extend_from_slice(bytes);
        self.set(request::SET_CONFIG, &body, &[])
    }

    /// SET_BACKEND_REQ_FD: a socket for requests of the back end; needs [`protocol::BACKEND_REQ`](super::protocol::BACKEND_REQ).
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn set_backend_req_fd(&mut self) -> Result<BackendRequests, FrontendError> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(self.socket.read_timeout()?)?;
        self.set(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        Ok(BackendRequests(ours))
    }

    /// The next reply, and the descriptor that came with it.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn receive_with_fd(&mut self) -> Result<(Reply, Option<OwnedFd>), FrontendError> {
        let patience = self.socket.read_timeout()?.map(Timespec::try_from);
        let patience = patience.transpose().map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], patience.as_ref()) == Ok(0) {
            return Err(FrontendError::Io(io::ErrorKind::WouldBlock.into()));
        }
        // Descriptors come with the first byte.
        let mut first = [0; 1];
        let received = scm::recv(&self.socket, &mut first).map_err(|err| closed(err.into()))?;
        if received.len == 0 {
            return Err(FrontendError::Closed);
        }
        let reply = self.receive_after(&first)?;
        Ok((reply, received.fds.into_iter().next()))
    }
}
