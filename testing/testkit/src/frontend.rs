//! A vhost-user front end, as a VMM is one: connects, negotiates, shares memory, starts and stops queues.
//!
//! **Purpose.** Plays the VM's side against a back end under test, honestly through [`Frontend`]'s methods and dishonestly
//! through [`Frontend::send`], which puts any bytes and descriptors on the socket.  It shares no code with the back end:
//! numbers and layouts were written down a second time, from QEMU's `docs/interop/vhost-user.rst`.
//!
//! ```no_run
//! # use testkit::{driver::{DriverQueue, RingSpec}, frontend::*};
//! # fn main() -> Result<(), FrontendError> {
//! let mut vm = Frontend::connect("/run/port.sock")?;
//! vm.negotiate(feature::VERSION_1, protocol::REPLY_ACK)?;
//! let memory = SharedMemory::new(&[(0, 16 << 20)], Pages::Small)?;
//! vm.set_mem_table(&memory)?;
//! let mut tx = DriverQueue::new(memory.guest(), &RingSpec::new(false, 256, 0x10_0000)).unwrap();
//! let fds = vm.start_queue(1, &memory, &tx)?;
//! // ... tx.add(..), tx.expose(), fds.kick.signal() ...
//! let base = vm.stop_queue(1)?;
//! # Ok(()) }
//! ```
//!
//! **Owner and threads.** One thread; every call blocks until the back end has done its part, but for no longer than
//! [`Frontend::set_timeout`] says.  **Failure.** [`FrontendError`]; a front end that met one is of no more use, except
//! after [`FrontendError::Refused`].

mod block;
mod memory;
mod wire;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sys::EventFd;
use sys::scm;

pub use block::{BackendRequests, Inflight, inflight_body};
pub use memory::{Pages, Region, SharedMemory};
pub use wire::{
    NEED_REPLY, NO_FD, REPLY, VERSION, backend_request, feature, message, protocol, request,
};

use crate::driver::DriverQueue;

/// How long a front end waits for an answer unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(20);

/// What went wrong between the two ends.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// The socket failed, or nothing came in time (`WouldBlock`).
    #[error("the socket: {0}")]
    Io(#[from] io::Error),
    /// The back end closed the connection.
    #[error("the back end closed the connection")]
    Closed,
    /// The back end acknowledged with a failure.
    #[error("request {request} was refused with {code:#x}")]
    Refused {
        /// Request number.
        request: u32,
        /// Its answer.
        code: u64,
    },
    /// What came back is not the reply to what was asked.
    #[error("request {request} was answered with {got:?}")]
    WrongReply {
        /// Request number.
        request: u32,
        /// What came.
        got: Reply,
    },
}

/// A reply of the back end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Number of the request it answers.
    pub request: u32,
    /// Flags: version and [`REPLY`].
    pub flags: u32,
    /// Body.
    pub body: Vec<u8>,
}

/// The descriptors of a queue, the VM's ends.
#[derive(Debug)]
pub struct QueueFds {
    /// Signalled by the driver.
    pub kick: EventFd,
    /// Signalled by the device: an interrupt.
    pub call: EventFd,
    /// Signalled by the device: the ring is broken.
    pub err: EventFd,
}

/// One end of a vhost-user connection: the VMM's.
#[derive(Debug)]
pub struct Frontend {
    socket: UnixStream,
    /// Virtio features in force.
    pub features: u64,
    /// Protocol features in force.
    pub protocol: u64,
}

impl Frontend {
    /// Connects to a back end that listens.
    ///
    /// # Errors
    /// What connect(2) reports: nobody may be there yet, see [`Frontend::connect_within`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Frontend, FrontendError> {
        Frontend::over(UnixStream::connect(path)?)
    }

    /// Connects to a back end that will listen soon.
    ///
    /// # Errors
    /// It does not.
    pub fn connect_within(
        path: impl AsRef<Path>,
        patience: Duration,
    ) -> Result<Frontend, FrontendError> {
        let start = Instant::now();
        loop {
            match UnixStream::connect(&path) {
                Ok(socket) => return Frontend::over(socket),
                Err(err) if start.elapsed() > patience => return Err(err.into()),
                Err(_) => sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Waits for a back end that connects.
    ///
    /// # Errors
    /// What accept(2) reports.
    pub fn accept(listener: &UnixListener) -> Result<Frontend, FrontendError> {
        Frontend::over(listener.accept()?.0)
    }

    /// A front end at this end of a connection.
    ///
    /// # Errors
    /// The socket refuses its time-outs.
    pub fn over(socket: UnixStream) -> Result<Frontend, FrontendError> {
        let frontend = Frontend { socket, features: 0, protocol: 0 };
        frontend.set_timeout(PATIENCE)?;
        Ok(frontend)
    }

    /// How long to wait for an answer.
    ///
    /// # Errors
    /// Zero is no time-out.
    pub fn set_timeout(&self, patience: Duration) -> Result<(), FrontendError> {
        self.socket.set_read_timeout(Some(patience))?;
        Ok(self.socket.set_write_timeout(Some(patience))?)
    }

    /// GET_FEATURES, SET_OWNER and the protocol features, then SET_FEATURES: takes of what is wanted all that is
    /// offered.  With [`protocol::REPLY_ACK`] every later request asks for its acknowledgement and checks it.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn negotiate(&mut self, features: u64, protocol: u64) -> Result<(), FrontendError> {
        let offered = self.get_u64(request::GET_FEATURES)?;
        let wanted = features | feature::PROTOCOL_FEATURES;
        if offered & feature::PROTOCOL_FEATURES != 0 {
            let protocol = protocol & self.get_u64(request::GET_PROTOCOL_FEATURES)?;
            self.set_u64(request::SET_PROTOCOL_FEATURES, protocol)?;
            self.protocol = protocol;
        }
        self.set(request::SET_OWNER, &[], &[])?;
        self.set_u64(request::SET_FEATURES, offered & wanted)?;
        self.features = offered & wanted;
        Ok(())
    }

    /// SET_MEM_TABLE: this memory and no other, at most 8 regions.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn set_mem_table(&mut self, memory: &SharedMemory) -> Result<(), FrontendError> {
        let regions = memory.regions();
        let mut body = pair(regions.len() as u32, 0).to_vec();
        let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|region| region.fd.as_fd()).collect();
        for region in regions {
            body.extend_from_slice(&region.body());
        }
        self.set(request::SET_MEM_TABLE, &body, &fds)
    }

    /// ADD_MEM_REG; needs [`protocol::CONFIGURE_MEM_SLOTS`].
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn add_mem_reg(&mut self, region: &Region) -> Result<(), FrontendError> {
        let body = [&[0; 8], region.body().as_slice()].concat();
        self.set(request::ADD_MEM_REG, &body, &[region.fd.as_fd()])
    }

    /// REM_MEM_REG; needs [`protocol::CONFIGURE_MEM_SLOTS`].
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn rem_mem_reg(&mut self, region: &Region) -> Result<(), FrontendError> {
        let body = [&[0; 8], region.body().as_slice()].concat();
        self.set(request::REM_MEM_REG, &body, &[])
    }

    /// Tells the back end everything about a queue whose ring lies in `memory`, in the order QEMU does, starts it and
    /// enables it.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn start_queue(
        &mut self,
        index: u16,
        memory: &SharedMemory,
        queue: &DriverQueue,
    ) -> Result<QueueFds, FrontendError> {
        let fds = QueueFds { kick: EventFd::new()?, call: EventFd::new()?, err: EventFd::new()? };
        self.start_queue_with(index, memory, queue, &fds)?;
        Ok(fds)
    }

    /// [`Frontend::start_queue`] with descriptors there are already.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn start_queue_with(
        &mut self,
        index: u16,
        memory: &SharedMemory,
        queue: &DriverQueue,
        fds: &QueueFds,
    ) -> Result<(), FrontendError> {
        self.start_queue_at(index, memory, queue, fds, queue.base())
    }

    /// [`Frontend::start_queue_with`] at a position of the caller's.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn start_queue_at(
        &mut self,
        index: u16,
        memory: &SharedMemory,
        queue: &DriverQueue,
        fds: &QueueFds,
        base: u32,
    ) -> Result<(), FrontendError> {
        let areas = queue.addresses();
        let user = |gpa| memory.user_addr(gpa).unwrap_or(gpa);
        self.set_ring_state(request::SET_VRING_NUM, index, queue.spec().size.into())?;
        self.set_ring_state(request::SET_VRING_BASE, index, base)?;
        let addresses = [user(areas.desc), user(areas.device), user(areas.driver)];
        self.set_ring_addr(index, addresses)?;
        self.set_ring_fd(request::SET_VRING_ERR, index, Some(&fds.err))?;
        self.set_ring_fd(request::SET_VRING_KICK, index, Some(&fds.kick))?;
        self.set_ring_fd(request::SET_VRING_CALL, index, Some(&fds.call))?;
        if self.features & feature::PROTOCOL_FEATURES != 0 {
            self.enable_queue(index, true)?;
        }
        Ok(())
    }

    /// SET_VRING_ADDR with the user addresses of descriptor, used and available ring (packed: descriptor ring, device
    /// area, driver area).
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn set_ring_addr(&mut self, index: u16, areas: [u64; 3]) -> Result<(), FrontendError> {
        let mut body = pair(index.into(), 0).to_vec();
        for area in areas {
            body.extend_from_slice(&area.to_ne_bytes());
        }
        body.extend_from_slice(&[0; 8]);
        self.set(request::SET_VRING_ADDR, &body, &[])
    }

    /// SET_VRING_KICK, SET_VRING_CALL or SET_VRING_ERR; `None`: there is none.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn set_ring_fd(
        &mut self,
        number: u32,
        index: u16,
        fd: Option<&EventFd>,
    ) -> Result<(), FrontendError> {
        let body = u64::from(index) | if fd.is_none() { NO_FD } else { 0 };
        let fds: Vec<BorrowedFd<'_>> = fd.map(AsFd::as_fd).into_iter().collect();
        self.set(number, &body.to_ne_bytes(), &fds)
    }

    /// SET_VRING_ENABLE.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn enable_queue(&mut self, index: u16, on: bool) -> Result<(), FrontendError> {
        self.set_ring_state(request::SET_VRING_ENABLE, index, on.into())
    }

    /// GET_VRING_BASE: stops a queue; where it stands.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn stop_queue(&mut self, index: u16) -> Result<u32, FrontendError> {
        let number = request::GET_VRING_BASE;
        let reply = self.ask(number, &pair(index.into(), 0))?;
        match reply.body.split_first_chunk::<4>() {
            Some((got, base)) if u32::from_ne_bytes(*got) == index.into() && base.len() == 4 => {
                let mut raw = [0; 4];
                raw.copy_from_slice(base);
                Ok(u32::from_ne_bytes(raw))
            }
            _ => Err(FrontendError::WrongReply { request: number, got: reply }),
        }
    }

    /// A request of a ring index and a number.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn set_ring_state(
        &mut self,
        number: u32,
        index: u16,
        value: u32,
    ) -> Result<(), FrontendError> {
        self.set(number, &pair(index.into(), value), &[])
    }

    /// A request of one number.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn set_u64(&mut self, number: u32, value: u64) -> Result<(), FrontendError> {
        self.set(number, &value.to_ne_bytes(), &[])
    }

    /// A request without a body that is answered with a number.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn get_u64(&mut self, number: u32) -> Result<u64, FrontendError> {
        let reply = self.ask(number, &[])?;
        match <[u8; 8]>::try_from(reply.body.as_slice()) {
            Ok(raw) => Ok(u64::from_ne_bytes(raw)),
            Err(_) => Err(FrontendError::WrongReply { request: number, got: reply }),
        }
    }

    /// A request that has no answer of its own: with REPLY_ACK its acknowledgement is awaited.
    ///
    /// # Errors
    /// [`FrontendError::Refused`], or see there.
    pub fn set(
        &mut self,
        number: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrontendError> {
        let acknowledged = self.protocol & protocol::REPLY_ACK != 0;
        let flags = VERSION | if acknowledged { NEED_REPLY } else { 0 };
        self.send(&message(number, flags, body), fds)?;
        if !acknowledged {
            return Ok(());
        }
        let reply = self.receive()?;
        match <[u8; 8]>::try_from(reply.body.as_slice()).map(u64::from_ne_bytes) {
            Ok(0) if reply.request == number => Ok(()),
            Ok(code) if reply.request == number => {
                Err(FrontendError::Refused { request: number, code })
            }
            _ => Err(FrontendError::WrongReply { request: number, got: reply }),
        }
    }

    /// A request and its reply.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn ask(&mut self, number: u32, body: &[u8]) -> Result<Reply, FrontendError> {
        self.send(&message(number, VERSION, body), &[])?;
        let reply = self.receive()?;
        if reply.request != number || reply.flags != VERSION | REPLY {
            return Err(FrontendError::WrongReply { request: number, got: reply });
        }
        Ok(reply)
    }

    /// Puts bytes on the socket, with descriptors attached to the first of them (at most 32).
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontendError> {
        let mut rest = bytes;
        if !fds.is_empty() {
            rest = &bytes[scm::send(&self.socket, bytes, fds).map_err(closed)?..];
        }
        self.socket.write_all(rest).map_err(closed)
    }

    /// The next reply.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn receive(&mut self) -> Result<Reply, FrontendError> {
        self.receive_after(&[])
    }

    /// The next reply, whose first bytes (not all of its header) have been read.
    fn receive_after(&mut self, first: &[u8]) -> Result<Reply, FrontendError> {
        let mut header = [0; 12];
        let (begun, rest) = header.split_at_mut(first.len());
        begun.copy_from_slice(first);
        self.socket.read_exact(rest).map_err(closed)?;
        let [request, flags, size] = [0, 4, 8].map(|at| {
            let mut raw = [0; 4];
            raw.copy_from_slice(&header[at..at + 4]);
            u32::from_ne_bytes(raw)
        });
        let mut body = vec![0; size as usize];
        self.socket.read_exact(&mut body).map_err(closed)?;
        Ok(Reply { request, flags, body })
    }

    /// Waits until the back end closes the connection; what it still sends is thrown away.
    ///
    /// # Errors
    /// It does not.
    pub fn wait_closed(&mut self) -> Result<(), FrontendError> {
        let mut sink = [0; 4096];
        loop {
            match self.socket.read(&mut sink) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // With a time-out a read is not restarted by itself after the process was stopped.
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => match closed(err) {
                    FrontendError::Closed => return Ok(()),
                    err => return Err(err),
                },
            }
        }
    }

    /// The socket itself.
    #[must_use]
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }
}

/// A connection that is gone has one name, however it shows.
fn closed(err: io::Error) -> FrontendError {
    match err.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => FrontendError::Closed,
        _ => FrontendError::Io(err),
    }
}

/// Two 32-bit fields.
fn pair(first: u32, second: u32) -> [u8; 8] {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&first.to_ne_bytes());
    body[4..].copy_from_slice(&second.to_ne_bytes());
    body
}

#[cfg(test)]
mod tests;
