//! A connection over a fabric: frames are messages, and bytes of requests are moved between the store's
//! memory and the guest's by remote access.
//!
//! Frames that are said in one pass go in one message. Each side may have so many requests under way that
//! the other always has a receive for what it says.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fabric::{Depth, Endpoint, Fabric, Local, Registration, Remote, Rights, State};
use guestmem::{GuestMemory, RegionFile, RegionSpec, Segments};
use remote::frame::{self, Item};

use super::wire::WireError;

/// Bytes of a message, at most: any frame without data, and a few with [`INLINE`] bytes of it.
const SLOT: u32 = 16 << 10;
/// Bytes of a write that go with the request, at most: that is less work for both sides than to have them
/// fetched.
pub(crate) const INLINE: u64 = 8 << 10;
/// Messages beside requests and their replies: pings.
const SPARE: u32 = 8;

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
    /// Frames for the next message.
    output: Vec<u8>,
    /// The message that is being taken, and how much of it has been.
    input: Vec<u8>,
    taken: usize,
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
            output: Vec::new(),
            input: Vec::new(),
            taken: 0,
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

    /// Has a frame sent, at the next [`Rma::flush`] at the latest.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), WireError> {
        let before = self.output.len();
        write(&mut self.output);
        self.cut(before)
    }

    /// The same with data behind it, at most [`INLINE`] bytes.
    ///
    /// # Errors
    /// As there, and [`WireError::Vanished`] with this tag.
    pub(crate) fn frame_with(
        &mut self,
        tag: u64,
        data: &Segments,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), WireError> {
        let before = self.output.len();
        write(&mut self.output);
        let start = self.output.len();
        self.output.resize(start + data.len() as usize, 0);
        data.copy_to(self.output.get_mut(start..).unwrap_or_default());
        if data.memory().faulted() {
            self.output.truncate(before);
            return Err(WireError::Vanished(tag));
        }
        self.cut(before)
    }

    /// Sends what was collected before the last frame, if that does not go into one message with it.
    fn cut(&mut self, before: usize) -> Result<(), WireError> {
        if self.output.len() <= SLOT as usize {
            return Ok(());
        }
        let last = self.output.split_off(before);
        self.flush()?;
        self.output.extend(last);
        Ok(())
    }

    /// Sends the frames that were collected.
    ///
    /// # Errors
    /// Much is not taken, or the connection cannot go on.
    pub(crate) fn flush(&mut self) -> Result<(), WireError> {
        if self.output.is_empty() {
            return Ok(());
        }
        let room = self.rooms.pop().ok_or(WireError::Unread)?;
        let local = self.room(room, self.output.len() as u32)?;
        local.segments().copy_from(&self.output);
        self.output.clear();
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

    /// The next frame that has come. Data that belongs to it is to be taken next, with [`Rma::data`].
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn item<T>(
        &mut self,
        take: impl FnOnce(Item<'_>) -> T,
    ) -> Result<Option<T>, WireError> {
        while self.taken >= self.input.len() {
            let Some((room, len)) = self.received.pop_front() else { return Ok(None) };
            let local = self.room(room, len as u32)?;
            self.input.resize(len as usize, 0);
            local.segments().copy_to(&mut self.input);
            self.taken = 0;
            // It was copied: the room is for another one.
            self.receive(room)?;
            self.heard = true;
        }
        let left = self.input.get(self.taken..).unwrap_or_default();
        let Some((item, used)) = frame::parse(left)? else {
            return Err(WireError::Unexpected("a message that ends within a frame"));
        };
        self.taken += used;
        Ok(Some(take(item)))
    }

    /// Takes the data behind a frame.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn data(&mut self, to: &Segments) -> Result<(), WireError> {
        let end = self.taken.saturating_add(to.len() as usize);
        let data = self.input.get(self.taken..end);
        to.copy_from(data.ok_or(WireError::Unexpected("a message that ends within data"))?);
        self.taken = end;
        Ok(())
    }

    /// The next number that came with what the peer has [delivered](Rma::deliver).
    pub(crate) fn told(&mut self) -> Option<u32> {
        let told = self.endpoint.told();
        self.heard |= told.is_some();
        told
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

    /// Moves this into the peer's memory, and has it [told](Rma::told) this number then, if the fabric
    /// [does that](Fabric::delivers). [`Rma::moved`] tells when it was sent.
    pub(crate) fn deliver(
        &mut self,
        local: Local,
        to: Vec<Remote>,
        told: u32,
        n: u64,
    ) -> Result<(), WireError> {
        let begun = self.endpoint.deliver(local, to, told, Use::Move(n));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// The next move that has ended.
    pub(crate) fn moved(&mut self) -> Option<(u64, Result<(), fabric::Error>)> {
        self.moved.pop_front()
    }

    /// Whether there is nothing to do before the descriptor becomes readable.
    pub(crate) fn may_sleep(&mut self) -> bool {
        let done = self.taken >= self.input.len() && self.output.is_empty();
        done && self.received.is_empty() && self.moved.is_empty() && self.endpoint.may_sleep()
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
