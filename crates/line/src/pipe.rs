//! What the bytes of a connection go through: the socket, or TLS on it. Nothing waits.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use guestmem::{Part, Segments};
use rustix::net::sockopt;
use rustls::Connection;

use crate::conduit::Conduit;

/// Guest memory is copied so much at a time to be encrypted.
const CHUNK: usize = 16 << 10;

/// The two ways.
#[derive(Debug)]
pub struct Pipe {
    socket: Arc<TcpStream>,
    tls: Option<Box<Connection>>,
    /// Guest memory on its way to the socket.
    lent: Option<Conduit>,
}

/// Memory is not there any more: what the kernel reports.
fn vanished() -> io::Error {
    rustix::io::Errno::FAULT.into()
}

impl Pipe {
    /// The socket must not block.
    pub fn new(socket: TcpStream, tls: Option<Connection>) -> Pipe {
        Pipe { socket: Arc::new(socket), tls: tls.map(Box::new), lent: None }
    }

    /// The descriptor, to wait for.
    pub fn socket(&self) -> Arc<TcpStream> {
        Arc::clone(&self.socket)
    }

    /// Whether guest memory goes to and from the socket without a copy.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Takes what has arrived; 0: the peer has ended.
    ///
    /// # Errors
    /// `WouldBlock`: nothing has.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return (&*self.socket).read(room) };
        loop {
            match tls.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a word of farewell, which is how most end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if tls.read_tls(&mut &*self.socket)? == 0 {
                return Ok(0);
            }
            let state = tls.process_new_packets();
            if tls.wants_write() {
                // An alert, or an answer: what the socket does not take is sent with what comes next.
                let _ = tls.write_tls(&mut &*self.socket);
            }
            state.map_err(io::Error::other)?;
        }
    }

    /// Fills guest memory with what has arrived, if it [is plain](Pipe::is_plain).
    pub fn receive(&self, to: &Segments) -> io::Result<usize> {
        guestmem::receive(self.socket.as_fd(), to)
    }

    /// Sends of these parts what is taken; at least a byte. `more` comes at once.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is. `EFAULT`: the memory of the first part has vanished.
    pub fn send<'a>(
        &mut self,
        parts: impl Iterator<Item = Part<'a>>,
        more: bool,
    ) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return guestmem::send(self.socket.as_fd(), parts, more);
        };
        let mut taken = 0;
        'parts: for part in parts {
            match part {
                Part::Own(bytes) => {
                    let some = tls.writer().write(bytes)?;
                    taken += some;
                    if some < bytes.len() {
                        break;
                    }
                }
                Part::Guest(segments) => {
                    let mut left = segments.clone();
                    let mut chunk = [0; CHUNK];
                    while !left.is_empty() {
                        let copied = left.copy_to(&mut chunk);
                        if segments.memory().faulted() {
                            return if taken > 0 { Ok(taken) } else { Err(vanished()) };
                        }
                        let some = tls.writer().write(chunk.get(..copied).unwrap_or_default())?;
                        taken += some;
                        left.advance(some as u64);
                        if some < copied {
                            break 'parts;
                        }
                    }
                }
            }
        }
        match self.push() {
            // It was taken, if not by the socket.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) if taken > 0 => Ok(taken),
            Ok(()) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Sends guest memory without a copy, if it [is plain](Pipe::is_plain): the socket refers to it until the peer has it.
    /// Returns how much was taken, at least a byte; what is sent next is the rest of these segments, if there is one.
    ///
    /// # Errors
    /// As [`Pipe::send`].
    pub fn lend(&mut self, segments: &Segments) -> io::Result<usize> {
        let lent = match &mut self.lent {
            Some(lent) => lent,
            None => match Conduit::new() {
                Ok(new) => self.lent.insert(new),
                Err(_) => return self.send(std::iter::once(Part::Guest(segments)), false),
            },
        };
        if lent.held() == 0 {
            lent.lend(segments)?;
        }
        lent.send(&*self.socket)
    }

    /// What was lent and is not sent yet is not sent any more: whoever lets go of the socket ends the connection without a
    /// farewell (`SO_LINGER` of no time).
    pub fn abandon(&self) {
        if self.lent.is_some() {
            // Of a socket, as this is, it cannot fail.
            let _ = sockopt::set_socket_linger(&*self.socket, Some(Duration::ZERO));
        }
    }

    /// Fails if the peer has reset the connection, even if not all that came before has been taken.
    pub fn check(&self) -> io::Result<()> {
        Ok(sockopt::socket_error(&*self.socket)??)
    }

    /// Has what has arrived put into a conduit without a copy, if it [is plain](Pipe::is_plain), at most so many bytes; 0: the
    /// peer has ended.
    ///
    /// # Errors
    /// `WouldBlock`: nothing has. `StorageFull`: there is no room for it.
    pub fn hold(&self, conduit: &mut Conduit, most: u64) -> io::Result<usize> {
        let mut known = false;
        loop {
            match conduit.receive(&*self.socket, most) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if known && !conduit.widen() {
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                    // Something may have come just now: only if it was there before, there is no room for it.
                    known = rustix::io::ioctl_fionread(&*self.socket)? > 0;
                    if !known {
                        return Err(error);
                    }
                }
                received => return received,
            }
        }
    }

    /// Sends what is in a file, if it [is plain](Pipe::is_plain): sendfile(2). What a file in memory holds is not
    /// copied, and looked at until the peer has it. 0: the file ends there.
    ///
    /// # Errors
    /// As [`Pipe::send`], and those of the file.
    pub fn send_file(&self, file: &File, mut at: u64, bytes: u64) -> io::Result<usize> {
        let count = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(rustix::fs::sendfile(&*self.socket, file, Some(&mut at), count)?)
    }

    /// Sends what was encrypted.
    ///
    /// # Errors
    /// `WouldBlock`: not all of it was taken.
    pub fn push(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            tls.write_tls(&mut &*self.socket)?;
        }
        Ok(())
    }

    /// Whether something was encrypted that the socket has not taken.
    pub fn is_behind(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
