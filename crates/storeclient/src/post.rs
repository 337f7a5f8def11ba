//! The connection to a store's Unix socket: messages, with a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use remote::control;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::IgnoredAny;
use sys::scm;

/// No limits are ever said.
pub(crate) type ToPlace = remote::near::ToPlace<()>;
/// How the disk is is nobody's business here: that something is said is.
pub(crate) type FromPlace = remote::near::FromPlace<IgnoredAny>;

/// How often somebody who waits looks whether it still has to, in nanoseconds.
const LOOK: i64 = 100_000_000;

/// A connection. Nothing waits but [`Post::hear`].
#[derive(Debug)]
pub(crate) struct Post {
    stream: UnixStream,
    arrived: Vec<u8>,
}

impl Post {
    /// Connects to who listens there, if that is root or this user: it will have this program's memory.
    pub(crate) fn connect(path: &Path) -> io::Result<Post> {
        let stream = UnixStream::connect(path)?;
        peer_is_trusted(&stream)?;
        Ok(Post { stream, arrived: Vec::new() })
    }

    /// Says something, with a descriptor. Messages are short: what does not fit is an error.
    pub(crate) fn say(
        &mut self,
        message: &ToPlace,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = control::framed(message);
        let (mut left, mut with) = (bytes.as_slice(), descriptor);
        while !left.is_empty() {
            let sent = scm::send(&self.stream, left, with.as_slice())?;
            (left, with) = (left.get(sent..).unwrap_or_default(), None);
        }
        Ok(())
    }

    /// The next message that has come, if there is one.
    ///
    /// # Errors
    /// Also if what has come is none, or nothing will come any more.
    pub(crate) fn next(&mut self) -> io::Result<Option<FromPlace>> {
        let strange = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        loop {
            if let Some(message) = control::take(&mut self.arrived).map_err(strange)? {
                return Ok(Some(message));
            }
            let mut some = [0; 4096];
            // A descriptor that comes is closed.
            match scm::recv(&self.stream, &mut some).map_err(io::Error::from) {
                Ok(received) if received.len == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(received) => {
                    self.arrived.extend_from_slice(some.get(..received.len).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for a message, unless `give_up` is set meanwhile.
    pub(crate) fn hear(
        &mut self,
        patience: Duration,
        give_up: &AtomicBool,
    ) -> io::Result<FromPlace> {
        let until = Instant::now() + patience;
        loop {
            if let Some(said) = self.next()? {
                return Ok(said);
            }
            if give_up.load(Relaxed) || Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let look = Timespec { tv_sec: 0, tv_nsec: LOOK };
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&look)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether root or this user listens there.
fn peer_is_trusted(stream: &UnixStream) -> io::Result<()> {
    let uid = rustix::net::sockopt::socket_peercred(stream)?.uid;
    if uid.is_root() || uid == rustix::process::getuid() {
        return Ok(());
    }
    let why = format!("user {} listens there, who is neither root nor this user", uid.as_raw());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

impl AsFd for Post {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
