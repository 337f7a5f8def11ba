//! Messages and descriptors over a Unix socket: a guest handed over to the store of its image, on one
//! machine.
//!
//! What is said is in [`remote::near`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

pub(crate) use remote::near::Guest;
use remote::{control, near};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sys::scm;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::talk::Silence;
use crate::spec::{DiskLimits, DiskSpec};
use crate::status::DiskStatus;

/// How long the other side may take to read what is said.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes read at once.
const CHUNK: usize = 4096;
/// Descriptors that have come and belong to no message yet.
const LOOSE: usize = 2;

/// From who has the guest.
pub(super) type ToPlace = near::ToPlace<DiskLimits>;
/// From the store.
pub(super) type FromPlace = near::FromPlace<DiskStatus>;

/// A disk as its guest sees it, but for its image.
pub(crate) fn guest_of(spec: &DiskSpec) -> Guest {
    Guest {
        disk: spec.name.clone(),
        queues: spec.queues,
        features_off: spec.features_off,
        writethrough: false,
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Post {
    stream: UnixStream,
    arrived: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Post {
    pub(super) fn new(stream: UnixStream) -> Post {
        Post { stream, arrived: Vec::new(), descriptors: VecDeque::new() }
    }

    /// Connects to who listens there, if that is root or this user: it will have a guest's memory.
    pub(super) async fn connect(path: &Path) -> io::Result<Post> {
        let stream = UnixStream::connect(path).await?;
        let (uid, own) = (stream.peer_cred()?.uid(), rustix::process::getuid().as_raw());
        if uid != 0 && uid != own {
            let why = format!("user {uid} listens there, who is neither root nor this user");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Post::new(stream))
    }

    /// Says something, with a descriptor.
    pub(super) async fn say(
        &mut self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = control::framed(message);
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(PATIENCE, self.send(&bytes, descriptor)).await.map_err(late)?
    }

    async fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let (mut left, mut with) = (bytes, descriptor);
        while !left.is_empty() {
            self.stream.writable().await?;
            let send = || scm::send(&self.stream, left, with.as_slice());
            match self.stream.try_io(Interest::WRITABLE, send) {
                Ok(sent) => (left, with) = (left.get(sent..).unwrap_or_default(), None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for a message. Nothing is lost if this future is dropped.
    pub(super) async fn hear<M: DeserializeOwned>(&mut self) -> Result<M, Silence> {
        loop {
            match control::take(&mut self.arrived).map_err(Silence::Strange)? {
                Some(message) => return Ok(message),
                None => self.receive().await?,
            }
        }
    }

    async fn receive(&mut self) -> Result<(), Silence> {
        self.stream.readable().await?;
        let mut chunk = [0; CHUNK];
        let receive = || Ok(scm::recv(&self.stream, &mut chunk)?);
        let received = match self.stream.try_io(Interest::READABLE, receive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            received => received?,
        };
        if received.len == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.arrived.extend_from_slice(chunk.get(..received.len).unwrap_or_default());
        self.descriptors.extend(received.fds);
        if self.descriptors.len() > LOOSE {
            return Err(Silence::Strange("descriptors that nothing is said of".to_owned()));
        }
        Ok(())
    }

    /// The descriptor that came with the last message.
    pub(super) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Says nothing more, and waits until the other side has closed, or for as long as it is waited for.
    pub(super) async fn close(mut self) {
        let shut = rustix::net::shutdown(self.stream.as_fd(), rustix::net::Shutdown::Write);
        let closed =
            async { while shut.is_ok() && self.hear::<serde::de::IgnoredAny>().await.is_ok() {} };
        if timeout(PATIENCE, closed).await.is_err() {
            tracing::warn!("a store does not let go of a guest of this host");
        }
    }
}
