//! Netlink sockets: requests with their answers, and events.
//!
//! **Purpose.** What a program that asks the kernel by netlink needs besides the numbers of the family it
//! asks: framing, sequence numbers, dumps that are repeated when something changed underneath.
//!
//! **Owner and threads.** A socket belongs to one thread, and to the network namespace it was made in.
//!
//! **Failure.** What the kernel refuses is the error number it says; what cannot be read is
//! [`malformed`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{NetlinkBuffer, NlasIterator};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};

// netlink.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;

/// What the kernel puts into one answer at most (`NLMSG_GOODSIZE` and what a dump asks for).
const BUFFER: usize = 64 * 1024;
/// How much may wait in a socket of events, bytes.
const EVENTS: usize = 16 << 20;
/// The kernel answers at once; a socket that does not is broken.
const PATIENCE: Duration = Duration::from_secs(10);
/// So often a dump is repeated in which something changed.
pub const REPEATS: usize = 4;
const HEADER: usize = 16;

/// A netlink socket and its buffer.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

/// A message.
#[derive(Debug)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// Behind the netlink header.
    pub body: &'a [u8],
}

/// What came of reading events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// All were read.
    Read,
    /// Some were lost: everything has to be read anew.
    Lost,
}

impl Socket {
    /// A socket for requests.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn requests(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = Self::open(protocol, SocketFlags::CLOEXEC, 0)?;
        set_socket_timeout(&socket.fd, Timeout::Recv, Some(PATIENCE))?;
        Ok(socket)
    }

    /// A socket for the events of these groups (bits), which never blocks.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn events(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let socket = Self::open(protocol, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, groups)?;
        // Without the right to exceed the limit, as much as it allows.
        set_socket_recv_buffer_size_force(&socket.fd, EVENTS)
            .or_else(|_| set_socket_recv_buffer_size(&socket.fd, EVENTS))?;
        Ok(socket)
    }

    fn open(protocol: Option<Protocol>, flags: SocketFlags, groups: u32) -> io::Result<Self> {
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd, buffer: vec![0; BUFFER], sequence: 0 })
    }

    /// What to wait on for events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Asks for all of something; `take` gets each message. Returns whether they are of one moment.
    ///
    /// # Errors
    /// What the kernel refuses, and what `take` does.
    pub fn dump(
        &mut self,
        kind: u16,
        body: &[u8],
        mut take: impl FnMut(&Message<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        self.ask(kind, NLM_F_DUMP, body)?;
        self.answers(|message| take(message))
    }

    /// The same into a collection, repeated while the kernel says that it changed underneath.
    ///
    /// # Errors
    /// As [`Socket::dump`].
    pub fn dump_into<T: Default>(
        &mut self,
        kind: u16,
        body: &[u8],
        mut take: impl FnMut(&mut T, &Message<'_>) -> io::Result<()>,
    ) -> io::Result<T> {
        let mut found = T::default();
        for _ in 0..REPEATS {
            found = T::default();
            if self.dump(kind, body, |message| take(&mut found, message))? {
                break;
            }
        }
        // If it never rested: the events say what changed meanwhile.
        Ok(found)
    }

    /// Asks for one thing; `take` gets the answers before the acknowledgement.
    ///
    /// # Errors
    /// As [`Socket::dump`].
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        take: impl FnMut(&Message<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.ask(kind, flags | NLM_F_ACK, body)?;
        self.answers(take).map(drop)
    }

    fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes());
        message.extend(body);
        send(&self.fd, &message, SendFlags::empty())?;
        Ok(())
    }

    /// Reads answers up to the last one; returns whether they are of one moment.
    fn answers(
        &mut self,
        mut take: impl FnMut(&Message<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let (mut whole, mut failed) = (true, None);
        loop {
            let (len, _) = recv(&self.fd, &mut self.buffer[..], RecvFlags::empty())?;
            for message in messages(self.buffer.get(..len).unwrap_or_default()) {
                let (message, sequence) = message?;
                if sequence != self.sequence {
                    // Of a request that was given up.
                    continue;
                }
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => {
                        let error = number(message.body, 0).unwrap_or(0) as i32;
                        return match (failed, error) {
                            (Some(failed), _) => Err(failed),
                            (None, 0) => Ok(whole),
                            (None, error) => Err(io::Error::from_raw_os_error(-error)),
                        };
                    }
                    _ => {
                        if failed.is_none() {
                            failed = take(&message).err();
                        }
                    }
                }
            }
        }
    }

    /// Reads all events there are.
    ///
    /// # Errors
    /// When the socket is broken, and what `take` does.
    pub fn read(
        &mut self,
        mut take: impl FnMut(&Message<'_>) -> io::Result<()>,
    ) -> io::Result<Events> {
        let mut events = Events::Read;
        loop {
            let len = match recv(&self.fd, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => len,
                Err(Errno::AGAIN) => return Ok(events),
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => {
                    events = Events::Lost;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for message in messages(self.buffer.get(..len).unwrap_or_default()) {
                take(&message?.0)?;
            }
        }
    }
}

/// The messages in what was received, with their sequence numbers.
fn messages(bytes: &[u8]) -> impl Iterator<Item = io::Result<(Message<'_>, u32)>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut rest);
        let Ok(message) = NetlinkBuffer::new_checked(bytes) else { return Some(Err(malformed())) };
        rest = bytes.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags) = (message.message_type(), message.flags());
        Some(Ok((Message { kind, flags, body: message.payload() }, message.sequence_number())))
    })
}

/// The attributes of a message behind its own header of `skip` bytes, or of a nested one (0).
///
/// # Errors
/// [`malformed`], for one that reaches past the end.
pub fn attributes(bytes: &[u8], skip: usize) -> impl Iterator<Item = io::Result<(u16, &[u8])>> {
    NlasIterator::new(bytes.get(skip..).unwrap_or_default()).map(|attribute| {
        let attribute = attribute.map_err(|_| malformed())?;
        let (kind, length) = (attribute.kind(), attribute.value_length());
        let value = attribute.into_inner().get(4..4 + length).ok_or_else(malformed)?;
        Ok((kind, value))
    })
}

/// A number of 32 bits of this machine, if there is one at that place.
pub fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The same, of 16 bits.
pub fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// A number of the network's order.
pub fn be32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// A text, which ends with a zero byte.
pub fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// An attribute of a request.
pub fn attribute(request: &mut Vec<u8>, kind: u16, value: &[u8]) {
    request.extend((4 + value.len() as u16).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(value);
    request.resize(request.len().next_multiple_of(4), 0);
}

/// The kernel sent what is no message.
pub fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's message cannot be read")
}
