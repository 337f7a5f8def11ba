//! A connection over a fabric: frames are messages, and bytes of requests are moved between the store's
//! memory and the guest's by remote access.
//!
//! Frames that are said in one pass go in one message. Each side may have so many requests under way that
//! the other always has a receive for what it says; but where messages may wait for one, there are only a
//! few, which stay in the processor's caches.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabric::{Depth, Endpoint, Fabric, Kind, Local, Registration, Remotes, Rights, State};
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

/// Bytes of a message that are looked at first for a frame: most have fewer.
const HEAD: u64 = 128;

/// What an operation is for.
#[derive(Debug)]
enum Use<M> {
    Send,
    Receive,
    Move(M),
}

/// A connection, from the moment on at which requests may be sent. Every move has an owner, which comes back
/// when it has ended.
pub struct Rma<M = Infallible> {
    endpoint: Endpoint<Use<M>>,
    fabric: Fabric,
    /// Rooms for what is sent.
    rooms: Vec<Local>,
    /// Messages, and their lengths.
    received: VecDeque<(Local, u64)>,
    /// Rooms of messages that were taken, and how many of them are given to the fabric again together: one after
    /// the other takes less time than each between other things.
    emptied: Vec<Local>,
    lot: usize,
    moved: VecDeque<(M, Result<(), fabric::Error>)>,
    /// The next message, and how much of it there is.
    next: Option<(Local, u64)>,
    /// The message that is being taken, its length, and how much of it has been taken.
    taking: Option<(Local, u64, u64)>,
    /// A frame without data.
    head: Vec<u8>,
    heard: bool,
    /// The connection on which all this was agreed: its end is noticed.
    _lifeline: Option<TcpStream>,
}

/// How many operations there may be at once.
pub fn depth(requests: u16) -> Depth {
    let count = requests.saturating_add(SPARE as u16);
    Depth { transmits: count, receives: count }
}

impl<M> Rma<M> {
    /// On an endpoint of that fabric, made with the [`depth`] of so many requests.
    ///
    /// # Errors
    /// There is no memory for messages, or it cannot be registered.
    pub fn new(
        fabric: &Fabric,
        endpoint: impl FnOnce(Depth) -> Result<Fresh<M>, fabric::Error>,
        requests: u16,
        lifeline: Option<TcpStream>,
    ) -> io::Result<Rma<M>> {
        let each = u32::from(requests) + SPARE;
        let receives = if fabric.holds_back() { each.min(RECEIVES) } else { each };
        let size = u64::from(each + receives) * u64::from(SLOT);
        let (_, memory) = crate::memory("hayate-messages", size)?;
        let messages = fabric.register(&memory, Rights::Local).map_err(io::Error::other)?;
        let Fresh(endpoint) = endpoint(depth(requests)).map_err(io::Error::other)?;
        let mut rma = Rma {
            endpoint,
            fabric: fabric.clone(),
            rooms: Vec::new(),
            received: VecDeque::new(),
            emptied: Vec::new(),
            lot: if fabric.holds_back() { receives as usize / 2 } else { 1 },
            moved: VecDeque::new(),
            next: None,
            taking: None,
            head: Vec::new(),
            heard: true,
            _lifeline: lifeline,
        };
        for number in 0..each {
            rma.rooms.push(room(&messages, number).map_err(io::Error::other)?);
        }
        for number in each..each + receives {
            let room = room(&messages, number).map_err(io::Error::other)?;
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

    fn receive(&mut self, room: Local) -> Result<(), WireError> {
        let begun = self.endpoint.receive(room, Use::Receive);
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// Has a frame sent, at the next [`Rma::flush`] at the latest.
    ///
    /// # Errors
    /// As there.
    pub fn frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), WireError> {
        self.frame_of(None, write)
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
        self.frame_of(Some((tag, data)), write)
    }

    /// Puts a frame into the next message, or into another one if that has not as much room.
    fn frame_of(
        &mut self,
        data: Option<(u64, &Segments)>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), WireError> {
        self.head.clear();
        write(&mut self.head);
        let head = self.head.len() as u64;
        let len = head + data.map_or(0, |(_, data)| data.len());
        if len > u64::from(SLOT) {
            return Err(WireError::Unexpected("a frame that is longer than any message"));
        }
        if self.next.as_ref().is_some_and(|(_, used)| used + len > u64::from(SLOT)) {
            self.flush()?;
        }
        let (room, used) = match &mut self.next {
            Some(next) => next,
            next => next.insert((self.rooms.pop().ok_or(WireError::Unread)?, 0)),
        };
        let room = room.segments();
        room.write_at(&self.head, *used);
        if let Some((tag, data)) = data {
            data.copy_across(room, *used + head);
            if data.memory().faulted() {
                return Err(WireError::Vanished(tag));
            }
        }
        *used += len;
        Ok(())
    }

    /// Sends the frames that were collected.
    ///
    /// # Errors
    /// Much is not taken, or the connection cannot go on.
    pub fn flush(&mut self) -> Result<(), WireError> {
        let Some((room, used)) = self.next.take_if(|(_, used)| *used > 0) else { return Ok(()) };
        if self.endpoint.send_at_once(&room, used).map_err(WireError::Fabric)? {
            self.next = Some((room, 0));
            return Ok(());
        }
        let begun = self.endpoint.send_first(room, used, Use::Send);
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
                (Use::Send, Ok(_)) => self.rooms.push(ended.local),
                (Use::Receive, Ok(len)) => self.received.push_back((ended.local, len)),
                (Use::Move(owner), result) => self.moved.push_back((owner, result.map(|_| ()))),
                (Use::Send | Use::Receive, Err(error)) => failed = Some(error),
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
        // A number may come in a room of its own, which is empty.
        while self.taking.as_ref().is_none_or(|(_, len, taken)| taken >= len) {
            if let Some((room, ..)) = self.taking.take() {
                self.emptied.push(room);
                if self.emptied.len() >= self.lot {
                    while let Some(room) = self.emptied.pop() {
                        self.receive(room)?;
                    }
                }
            }
            let Some((room, len)) = self.received.pop_front() else { return Ok(None) };
            self.taking = Some((room, len, 0));
            self.heard = true;
        }
        let Some((room, len, taken)) = &mut self.taking else { return Ok(None) };
        // Taken once, so that it stays as it was looked at; mostly it is short.
        for most in [HEAD, u64::from(SLOT)] {
            let there = (*len - *taken).min(most);
            self.head.resize(there as usize, 0);
            room.segments().read_at(&mut self.head, *taken);
            if let Some((item, used)) = frame::parse(&self.head)? {
                *taken += used as u64;
                return Ok(Some(take(item)));
            }
        }
        Err(WireError::Unexpected("a message that ends within a frame"))
    }

    /// Takes the data behind a frame: where it is, until the next frame is taken.
    ///
    /// # Errors
    /// It is not there.
    pub fn data(&mut self, len: u64) -> Result<Segments, WireError> {
        let part = self.taking.as_mut().and_then(|(room, end, taken)| {
            let fits = len <= *end - *taken;
            let part = fits.then(|| room.segments().part(*taken, len))?;
            *taken += len;
            Some(part)
        });
        part.ok_or(WireError::Unexpected("a message that ends within data"))
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
    pub fn read(&mut self, local: Local, from: Remotes, owner: M) -> Result<(), WireError> {
        let begun = self.endpoint.read(local, from, Use::Move(owner));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// Moves this into the peer's memory; [`Rma::moved`] tells when it is there.
    pub fn write(&mut self, local: Local, to: Remotes, owner: M) -> Result<(), WireError> {
        let begun = self.endpoint.write(local, to, Use::Move(owner));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// Moves this into the peer's memory, and has it [told](Rma::told) this number then, if the fabric
    /// [does that](Fabric::delivers). [`Rma::moved`] tells when it was sent.
    pub fn deliver(
        &mut self,
        local: Local,
        to: Remotes,
        told: u32,
        owner: M,
    ) -> Result<(), WireError> {
        let begun = self.endpoint.deliver(local, to, told, Use::Move(owner));
        begun.map_err(|(error, _)| WireError::Fabric(error))
    }

    /// The next move that has ended.
    pub fn moved(&mut self) -> Option<(M, Result<(), fabric::Error>)> {
        self.moved.pop_front()
    }

    /// Whether there is nothing to do before the descriptor becomes readable.
    pub fn may_sleep(&mut self) -> bool {
        let taken = self.taking.as_ref().is_none_or(|(_, len, taken)| taken >= len);
        let sent = self.next.as_ref().is_none_or(|(_, used)| *used == 0);
        taken
            && sent
            && self.received.is_empty()
            && self.moved.is_empty()
            && self.endpoint.may_sleep()
    }
}

/// Room for a message.
fn room(messages: &Registration, number: u32) -> Result<Local, WireError> {
    let local = messages.at(u64::from(number) * u64::from(SLOT), SLOT);
    local.ok_or(WireError::Unexpected("a message without room"))
}

/// An endpoint that nothing was asked of.
pub struct Fresh<M>(Endpoint<Use<M>>);

/// Takes a connection that somebody wants.
pub fn accept<M>(request: fabric::Request, depth: Depth) -> Result<Fresh<M>, fabric::Error> {
    request.accept(depth).map(Fresh)
}

impl<M> AsFd for Rma<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.as_fd()
    }
}

impl<M> fmt::Debug for Rma<M> {
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
