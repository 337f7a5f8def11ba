//! What a socket has not taken yet.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use sys::scm;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Messages to be sent, in order.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<Outgoing>);

/// What is left of a message, and the descriptor that goes with its first byte.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Outbox {
    /// Adds a message of at least one byte.
    pub(super) fn put(&mut self, bytes: Vec<u8>, fd: Option<OwnedFd>) {
        self.0.push_back(Outgoing { bytes, fd });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends what there is room for, once there is any.  Nothing is lost if this future is dropped.
    pub(super) async fn flush(&mut self, stream: &UnixStream) -> io::Result<()> {
        stream.writable().await?;
        match stream.try_io(Interest::WRITABLE, || self.send(stream)) {
            Err(err) if err.kind() != io::ErrorKind::WouldBlock => Err(err),
            _ => Ok(()),
        }
    }

    /// Sends what there is room for now.
    pub(super) fn send(&mut self, socket: impl AsFd) -> io::Result<()> {
        while let Some(message) = self.0.front_mut() {
            let fds: Vec<_> = message.fd.iter().map(AsFd::as_fd).collect();
            let sent = scm::send(&socket, &message.bytes, &fds)?;
            message.fd = None;
            message.bytes.drain(..sent);
            if message.bytes.is_empty() {
                self.0.pop_front();
            }
        }
        Ok(())
    }
}
