//! The connection to the daemon: a character device in a guest, a Unix socket on the host.
//!
//! A port of virtio-serial is there always; whether somebody listens on the host shows in that it
//! hangs up (`POLLHUP`, and reads of nothing) if not. So both kinds are used alike: whatever looks
//! like an end is one, and the connection is opened anew after a while, from [`WAIT_MIN`] to
//! [`WAIT_MAX`]. Nothing here blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::channel::LINE_MAX;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Times between two attempts.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A connection that is opened again whenever it ends.
#[derive(Debug)]
pub(crate) struct Connection {
    path: PathBuf,
    fd: Option<OwnedFd>,
    received: Vec<u8>,
    to_send: Vec<u8>,
    wait: Duration,
    next: Instant,
    /// Why there is none.
    why: String,
}

impl Connection {
    /// Nothing is opened yet.
    pub(crate) fn new(path: PathBuf, now: Instant) -> Self {
        let why = "not tried yet".to_owned();
        let (received, to_send) = (Vec::new(), Vec::new());
        Self { path, fd: None, received, to_send, wait: WAIT_MIN, next: now, why }
    }

    /// Opens it if it is not open and its time has come; returns whether it was opened just now.
    pub(crate) fn open(&mut self, now: Instant) -> bool {
        if self.fd.is_some() || now < self.next {
            return false;
        }
        match open(&self.path) {
            Ok(fd) => {
                self.fd = Some(fd);
                self.received.clear();
                self.to_send.clear();
                true
            }
            Err(error) => {
                let why = format!("{}: {error}", self.path.display());
                self.close(now, why);
                false
            }
        }
    }

    /// Ends it; it will be opened again later.
    pub(crate) fn close(&mut self, now: Instant, why: String) {
        if why != self.why {
            tracing::info!("no connection to the daemon: {why}");
        }
        self.fd = None;
        self.why = why;
        self.next = now + self.wait;
        self.wait = (self.wait * 2).min(WAIT_MAX);
    }

    /// The daemon welcomed us: the next attempt need not wait long.
    pub(crate) fn welcomed(&mut self) {
        self.wait = WAIT_MIN;
        self.why.clear();
    }

    /// Why there is no connection; none if there is one.
    pub(crate) fn why(&self) -> Option<&str> {
        (!self.why.is_empty()).then_some(&self.why)
    }

    /// What to wait for.
    pub(crate) fn poll(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let out = if self.to_send.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        self.fd.as_ref().map(|fd| (fd.as_fd(), PollFlags::IN | out))
    }

    /// When it is opened again; none if it is open.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.fd.is_none().then_some(self.next)
    }

    /// Sends a line, as soon as possible.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn send(&mut self, line: &[u8]) -> io::Result<()> {
        self.to_send.extend_from_slice(line);
        self.flush()
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(fd) = &self.fd else { return Ok(()) };
        while !self.to_send.is_empty() {
            match rustix::io::write(fd, &self.to_send) {
                Ok(sent) => drop(self.to_send.drain(..sent)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what has arrived; returns the first whole line, without its newline.
    ///
    /// # Errors
    /// The connection has ended, or a line is longer than it may be.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                return Ok(Some(line));
            }
            if self.received.len() >= LINE_MAX {
                return Err(io::Error::other("the daemon's answer is longer than it may be"));
            }
            let Some(fd) = &self.fd else { return Ok(None) };
            let mut buffer = [0; 16 * 1024];
            match rustix::io::read(fd, &mut buffer) {
                Ok(0) => return Err(io::Error::other("nobody is at the other end")),
                Ok(len) => self.received.extend(buffer.iter().take(len)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    if std::fs::metadata(path)?.file_type().is_socket() {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        return Ok(stream.into());
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests;
