//! A connection over a fabric: frames are messages, and bytes of requests are moved between the store's
//! memory and the guest's by remote access.
//!
//! Each side may have so many requests under way that the other always has a receive for what it says.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fabric::{Depth, Endpoint, Fabric, Local, Registration, Remote, Rights, State};
use guestmem::{GuestMemory, RegionFile, RegionSpec, Segments};
use parking_lot::Mutex;
use remote::Buffer;
use remote::frame::{self, Item};

use super::wire::WireError;

/// Bytes of a message, at most: a request with all its buffers.
const SLOT: u32 = 4096;
/// Messages beside requests and their replies: pings.
const SPARE: u32 = 8;
/// Guest memories that are remembered: a front end that changes its memory has one or two.
const MEMORIES: usize = 4;

/// What an operation is for.
#[derive(Debug)]
enum Use {
    Send(u32),
    Receive(u32),
    Move(u64),
}

/// A connection, from the moment on at which requests may be sent.
pub(crate) struct Rma {
    endpoint: Endpoint<Use>,
    fabric: Fabric,
    /// Rooms for what is sent, then for what is received.
    messages: Registration,
    rooms: Vec<u32>,
    received: VecDeque<(u32, u64)>,
    moved: VecDeque<(u64, Result<(), fabric::Error>)>,
    scratch: Vec<u8>,
    heard: bool,
    /// The connection on which all this was agreed: its end is noticed.
    _lifeline: Option<std::net::TcpStream>,
}

/// How many operations there may be at once.
pub(crate) fn depth(requests: u16) -> Depth {
    let count = requests.saturating_add(SPARE as u16);
    Depth { transmits: count, receives: count }
}

impl Rma {
    /// On an endpoint of that fabric, made with the [`depth`] of so many requests.
    ///
    /// # Errors
    /// There is no memory for messages, or it cannot be registered.
    pub(crate) fn new(
        fabric: &Fabric,
        endpoint: impl FnOnce(Depth) -> Result<Fresh, fabric::Error>,
        requests: u16,
        lifeline: Option<std::net::TcpStream>,
    ) -> io::Result<Rma> {
        let each = u32::from(requests) + SPARE;
        let size = u64::from(2 * each * SLOT);
        let memory = memory(sys::memfd("hayate-messages", size, false)?, size)?;
        let messages = fabric.register(&memory, Rights::Local).map_err(io::Error::other)?;
        let Fresh(endpoint) = endpoint(depth(requests)).map_err(io::Error::other)?;
        let mut rma = Rma {
            endpoint,
            fabric: fabric.clone(),
            messages,
            rooms: (0..each).collect(),
            received: VecDeque::new(),
            moved: VecDeque::new(),
            scratch: Vec::new(),
            heard: true,
            _lifeline: lifeline,
        };
        for room in each..2 * each {
            rma.receive(room).map_err(io::Error::other)?;
        }
        Ok(rma)
    }

    /// The fabric that it is of.
    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Whether it is in use; what ended it.
    pub(crate) fn state(&self) -> &State {
        self.endpoint.state()
    }

    /// A descriptor to wait for, of its own.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.endpoint.as_fd().try_clone_to_owned()
    }

    fn room(&self, room: u32, len: u32) -> Result<Local, WireError> {
        let at = u64::from(room) * u64::from(SLOT);
        self.messages.at(at, len).ok_or(WireError::Unexpected("a message without room"))
    }

    fn receive(&mut self, room: u32) -> Result<(), WireError> {
        let local = self.room(room, SLOT)?;
        let begun = self.endpoint.receive(local, Use::Receive(room));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// Has a frame sent.
    ///
    /// # Errors
    /// Much is not taken, or the connection cannot go on.
    pub(crate) fn frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), WireError> {
        self.scratch.clear();
        write(&mut self.scratch);
        let room = self.rooms.pop().ok_or(WireError::Unread)?;
        let local = self.room(room, self.scratch.len() as u32)?;
        local.segments().copy_from(&self.scratch);
        let begun = self.endpoint.send(local, Use::Send(room));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// Lets the fabric go on, and takes what has happened.
    ///
    /// # Errors
    /// The connection has ended; what came before it did is still there.
    pub(crate) fn poll(&mut self) -> Result<(), WireError> {
        self.endpoint.poll();
        let mut failed = None;
        while let Some(ended) = self.endpoint.ended() {
            match (ended.owner, ended.result) {
                (Use::Send(room), Ok(_)) => self.rooms.push(room),
                (Use::Receive(room), Ok(len)) => self.received.push_back((room, len)),
                (Use::Move(number), result) => self.moved.push_back((number, result.map(|_| ()))),
                (Use::Send(_) | Use::Receive(_), Err(error)) => failed = Some(error),
            }
        }
        match (failed, self.endpoint.state()) {
            (_, State::Ended(error)) => Err(WireError::Fabric(error.clone())),
            (Some(error), _) => Err(WireError::Fabric(error)),
            (None, _) => Ok(()),
        }
    }

    /// The next message that has come.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn item<T>(
        &mut self,
        take: impl FnOnce(Item<'_>) -> T,
    ) -> Result<Option<T>, WireError> {
        let Some((room, len)) = self.received.pop_front() else { return Ok(None) };
        let local = self.room(room, len as u32)?;
        self.scratch.resize(len as usize, 0);
        local.segments().copy_to(&mut self.scratch);
        // It was copied: the room is for another one.
        self.receive(room)?;
        self.heard = true;
        let bytes = self.scratch.as_slice();
        match frame::parse(bytes)? {
            Some((item, used)) if used == bytes.len() => Ok(Some(take(item))),
            _ => Err(WireError::Unexpected("a message that is no frame")),
        }
    }

    /// Whether something has come since this was asked.
    pub(crate) fn heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Moves the peer's memory into this; [`Rma::moved`] tells when it has.
    pub(crate) fn read(
        &mut self,
        local: Local,
        from: Vec<Remote>,
        n: u64,
    ) -> Result<(), WireError> {
        let begun = self.endpoint.read(local, from, Use::Move(n));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// Moves this into the peer's memory; [`Rma::moved`] tells when it is there.
    pub(crate) fn write(&mut self, local: Local, to: Vec<Remote>, n: u64) -> Result<(), WireError> {
        let begun = self.endpoint.write(local, to, Use::Move(n));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// The next move that has ended.
    pub(crate) fn moved(&mut self) -> Option<(u64, Result<(), fabric::Error>)> {
        self.moved.pop_front()
    }

    /// Whether there is nothing to do before the descriptor becomes readable.
    pub(crate) fn may_sleep(&mut self) -> bool {
        self.received.is_empty() && self.moved.is_empty() && self.endpoint.may_sleep()
    }
}

/// An endpoint that nothing was asked of.
pub(crate) struct Fresh(Endpoint<Use>);

/// Takes a connection that somebody wants.
pub(crate) fn accept(request: fabric::Request, depth: Depth) -> Result<Fresh, fabric::Error> {
    request.accept(depth).map(Fresh)
}

/// Begins to connect.
pub(crate) fn connect(
    fabric: &Fabric,
    peer: std::net::SocketAddr,
    greeting: &[u8],
    depth: Depth,
) -> Result<Fresh, fabric::Error> {
    fabric.connect(peer, greeting, depth).map(Fresh)
}

impl AsFd for Rma {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.as_fd()
    }
}

impl fmt::Debug for Rma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rma").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// This program's memory of a file, as if it were a guest's.
fn memory(file: OwnedFd, size: u64) -> io::Result<Arc<GuestMemory>> {
    let spec = RegionSpec { guest_addr: 0, size, user_addr: 0, mmap_offset: 0 };
    let memory = GuestMemory::map(&[(spec, RegionFile::from(file))]);
    Ok(Arc::new(memory.map_err(io::Error::other)?))
}

/// A guest's memory, registered for the store of its disk: by control when it comes, so that no worker
/// waits for it.
#[derive(Debug, Default)]
pub(crate) struct Reach(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    fabric: Option<Fabric>,
    memories: Vec<Arc<GuestMemory>>,
    registered: Vec<Registration>,
}

impl Known {
    fn registration(&mut self, memory: &Arc<GuestMemory>) -> Result<Registration, fabric::Error> {
        let fabric = self.fabric.as_ref().ok_or(fabric::Error::Ended)?;
        let of = |one: &&Registration| Arc::ptr_eq(one.memory(), memory);
        if let Some(there) = self.registered.iter().find(of) {
            return Ok(there.clone());
        }
        let registration = fabric.register(memory, Rights::RemoteReadWrite)?;
        if self.registered.len() >= MEMORIES {
            self.registered.remove(0);
        }
        self.registered.push(registration.clone());
        Ok(registration)
    }
}

impl Reach {
    /// A front end has brought this memory.
    pub(crate) fn add(&self, memory: &Arc<GuestMemory>) -> Result<(), fabric::Error> {
        let mut known = self.0.lock();
        if !known.memories.iter().any(|one| Arc::ptr_eq(one, memory)) {
            if known.memories.len() >= MEMORIES {
                known.memories.remove(0);
            }
            known.memories.push(Arc::clone(memory));
        }
        if known.fabric.is_some() { known.registration(memory).map(|_| ()) } else { Ok(()) }
    }

    /// The front end is gone. Whether memory of it was registered.
    pub(crate) fn clear(&self) -> bool {
        let mut known = self.0.lock();
        known.memories.clear();
        let registered = std::mem::take(&mut known.registered);
        !registered.is_empty()
    }

    /// From now on the store is reached by this fabric; none: by none.
    pub(crate) fn set(&self, fabric: Option<&Fabric>) -> Result<(), fabric::Error> {
        let mut known = self.0.lock();
        (known.registered, known.fabric) = (Vec::new(), fabric.cloned());
        if fabric.is_some() {
            for memory in known.memories.clone() {
                known.registration(&memory)?;
            }
        }
        Ok(())
    }

    /// By what a store reaches these segments, as long as the registration is kept.
    pub(crate) fn of(&self, segments: &Segments) -> Option<(Registration, Vec<Buffer>)> {
        let registration = self.0.lock().registration(segments.memory()).ok()?;
        let one = |Remote { address, key, length }| Buffer { address, key, length };
        let buffers = registration.remote(segments)?.into_iter().map(one).collect();
        Some((registration, buffers))
    }
}
