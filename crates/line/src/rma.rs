//! A connection over a fabric: frames are messages, and bytes of requests are moved between the store's
//! memory and the guest's by remote access.
//!
//! Frames that are said in one pass go in one message. Each side may have so many requests under way that
//! the other always has a receive for what it says; but where messages may wait for one, there are only a
//! few, which stay in the processor's caches.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabric::{Depth, Endpoint, Fabric, Kind, Local, Registration, Remote, Rights, State};
use guestmem::Segments;
use remote::control::{At, Transport};
use remote::frame::{self, Item};

use crate::wire::WireError;

/// Bytes of a message, at most: any frame without data, and a few with [`INLINE`] bytes of it.
const SLOT: u32 = 16 << 10;
/// Bytes of a write that go with the request, at most: that is less work for both sides than to have them
/// fetched.
pub const INLINE: u64 = 8 << 10;
/// Messages beside requests and their replies: pings.
const SPARE: u32 = 8;
/// Receives, at most, where [messages wait](Fabric::holds_back): measured in docs/performance.md.
const RECEIVES: u32 = 8;

/// What an operation is for.
#[derive(Debug)]
enum Use {
    Send(u32),
    Receive(u32),
    Move(u64),
}

/// A connection, from the moment on at which requests may be sent.
pub struct Rma {
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
    _lifeline: Option<TcpStream>,
}

/// How many operations there may be at once.
pub fn depth(requests: u16) -> Depth {
    let count = requests.saturating_add(SPARE as u16);
    Depth { transmits: count, receives: count }
}

impl Rma {
    /// On an endpoint of that fabric, made with the [`depth`] of so many requests.
    ///
    /// # Errors
    /// There is no memory for messages, or it cannot be registered.
    pub fn new(
        fabric: &Fabric,
        endpoint: impl FnOnce(Depth) -> Result<Fresh, fabric::Error>,
        requests: u16,
        lifeline: Option<TcpStream>,
    ) -> io::Result<Rma> {
        let each = u32::from(requests) + SPARE;
        let receives = if fabric.holds_back() { each.min(RECEIVES) } else { each };
        let size = u64::from(each + receives) * u64::from(SLOT);
        let (_, memory) = crate::memory("hayate-messages", size)?;
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
        for room in each..each + receives {
            rma.receive(room).map_err(io::Error::other)?;
        }
        Ok(rma)
    }

    /// The fabric that it is of.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Whether it is in use; what ended it.
    pub fn state(&self) -> &State {
        self.endpoint.state()
    }

    /// A descriptor to wait for, of its own.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
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
    pub fn frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), WireError> {
        let before = self.output.len();
        write(&mut self.output);
        self.cut(before)
    }

    /// The same with data behind it, at most [`INLINE`] bytes.
    ///
    /// # Errors
    /// As there, and [`WireError::Vanished`] with this tag.
    pub fn frame_with(
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
    pub fn flush(&mut self) -> Result<(), WireError> {
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
    pub fn poll(&mut self) -> Result<(), WireError> {
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
    pub fn item<T>(&mut self, take: impl FnOnce(Item<'_>) -> T) -> Result<Option<T>, WireError> {
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
    pub fn data(&mut self, to: &Segments) -> Result<(), WireError> {
        let end = self.taken.saturating_add(to.len() as usize);
        let data = self.input.get(self.taken..end);
        to.copy_from(data.ok_or(WireError::Unexpected("a message that ends within data"))?);
        self.taken = end;
        Ok(())
    }

    /// The next number that came with what the peer has [delivered](Rma::deliver).
    pub fn told(&mut self) -> Option<u32> {
        let told = self.endpoint.told();
        self.heard |= told.is_some();
        told
    }

    /// Whether something has come since this was asked.
    pub fn heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Moves the peer's memory into this; [`Rma::moved`] tells when it has.
    pub fn read(&mut self, local: Local, from: Vec<Remote>, n: u64) -> Result<(), WireError> {
        let begun = self.endpoint.read(local, from, Use::Move(n));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// Moves this into the peer's memory; [`Rma::moved`] tells when it is there.
    pub fn write(&mut self, local: Local, to: Vec<Remote>, n: u64) -> Result<(), WireError> {
        let begun = self.endpoint.write(local, to, Use::Move(n));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// Moves this into the peer's memory, and has it [told](Rma::told) this number then, if the fabric
    /// [does that](Fabric::delivers). [`Rma::moved`] tells when it was sent.
    pub fn deliver(
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
    pub fn moved(&mut self) -> Option<(u64, Result<(), fabric::Error>)> {
        self.moved.pop_front()
    }

    /// Whether there is nothing to do before the descriptor becomes readable.
    pub fn may_sleep(&mut self) -> bool {
        let done = self.taken >= self.input.len() && self.output.is_empty();
        done && self.received.is_empty() && self.moved.is_empty() && self.endpoint.may_sleep()
    }
}

/// An endpoint that nothing was asked of.
pub struct Fresh(Endpoint<Use>);

/// Takes a connection that somebody wants.
pub fn accept(request: fabric::Request, depth: Depth) -> Result<Fresh, fabric::Error> {
    request.accept(depth).map(Fresh)
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

/// The providers by which a store may reach memory of this host, the best first. What goes over a fabric is
/// not encrypted, and TCP is there anyway: they are used where a network card moves the bytes, or where
/// somebody says so.
#[must_use]
pub fn providers(transport: Transport, encrypted: bool) -> &'static [Kind] {
    match transport {
        Transport::Libfabric => &[Kind::Verbs, Kind::Tcp],
        Transport::Auto if !encrypted && has_card() => &[Kind::Verbs],
        Transport::Auto | Transport::Shm | Transport::Tcp => &[],
    }
}

/// Whether the kernel knows a network card for it: libfabric is not even loaded otherwise.
fn has_card() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some())
}

/// Those of these providers that can be used at this address, in their order. May take a while.
///
/// # Errors
/// None of them can: why, for people.
pub fn open(kinds: &[Kind], local: IpAddr) -> Result<Vec<Fabric>, String> {
    let (mut open, mut why) = (Vec::new(), Vec::new());
    for &kind in kinds {
        match Fabric::open(kind, local) {
            Ok(fabric) => open.push(fabric),
            Err(error) => why.push(format!("{kind} at {local}: {error}")),
        }
    }
    if open.is_empty() { Err(why.join("; ")) } else { Ok(open) }
}

/// Begins to connect to a store that said where, by one of these fabrics; [`Rma::state`] says when it is.
/// `lifeline` is the connection on which that was said.
///
/// # Errors
/// It chose a provider that it was not offered, or what that says.
pub fn dial(fabrics: &[Fabric], at: &At, requests: u16, lifeline: TcpStream) -> io::Result<Rma> {
    let of = |fabric: &&Fabric| fabric.kind().name() == at.provider;
    let none =
        || io::Error::other(format!("it chose a provider that was not offered: {}", at.provider));
    let fabric = fabrics.iter().find(of).ok_or_else(none)?;
    let greeting = at.place.0.to_be_bytes();
    let connect = |depth| fabric.connect(at.address, &greeting, depth).map(Fresh);
    Rma::new(fabric, connect, requests, Some(lifeline))
}
