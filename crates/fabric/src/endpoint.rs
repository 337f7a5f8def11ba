//! One connection, and the operations on it.

#![expect(unsafe_code)]
// UNSAFETY: hands a library addresses that it uses after the call has returned.

mod progress;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::forget;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::address;
use crate::cut::{Cursor, Limits, Part};
use crate::error::Error;
use crate::fabric::{Domain, Info};
use crate::ffi::{self, Completion, CompletionsId, Context, EndpointId, Handle};
use crate::listener::Events;
use crate::memory::{Kept, Local, Remote, Remotes};
use crate::work::{Ended, Operation, Work};

/// Most completions taken from the library at once.
const BATCH: usize = 32;
/// Most batches before others have their turn: a peer may tell without end.
const BATCHES: usize = 16;
/// So many polls that find nothing have a look at the connection, too.
const LOOK: u32 = 32;
/// After so many polls that found something, the library's descriptors tell nobody until somebody wants to sleep:
/// each thing that comes would go through several epolls of the kernel for nothing.
const AWAKE: u32 = 64;

/// How many operations the provider is given at once; more wait in the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Sends, and parts of reads and writes: 1 to 4096, at most what the provider takes.
    pub transmits: u16,
    /// Receives, the same.
    pub receives: u16,
}

impl Default for Depth {
    fn default() -> Depth {
        Depth { transmits: 128, receives: 128 }
    }
}

/// How a connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Being made. What is asked for meanwhile begins afterwards.
    Connecting,
    /// In use.
    Connected,
    /// The peer has gone, or is not there; nothing moves any more.
    Ended(Error),
}

/// One direction: which contexts are free, and which operations wait for one.
struct Lane {
    free: Vec<u32>,
    waiting: VecDeque<u32>,
}

/// A connection to one peer, with a completion queue of its own.
///
/// It belongs to one thread at a time, which calls [`Endpoint::poll`] again and again: nothing moves
/// otherwise, over `tcp` not even what the peer does with registered memory. Nothing waits. A thread that
/// wants to sleep asks [`Endpoint::may_sleep`] and then waits for the descriptor ([`AsFd`]).
///
/// A network that is cut is not always noticed: whoever expects an answer has a clock, and drops the
/// endpoint.
///
/// Every operation has an owner, any value, which [`Endpoint::ended`] gives back with the result.
pub struct Endpoint<T> {
    /// `None` when closed. The rest is in the order in which it has to be closed.
    handle: Option<Handle<EndpointId>>,
    completions: Handle<CompletionsId>,
    events: Events,
    readiness: OwnedFd,
    /// What it is of, while it is ([`AWAKE`]).
    told_of: [c_int; 2],
    telling: bool,
    /// Polls that found something since somebody wanted to sleep.
    found: u32,
    state: State,
    /// One for each operation that the provider may have at once, those of transmits first. Never moved.
    contexts: Vec<Context>,
    /// The operation of each.
    users: Vec<u32>,
    transmits: Lane,
    receives: Lane,
    works: Vec<Option<Work<T>>>,
    free: Vec<u32>,
    /// Works that have ended, to be given back.
    ended: VecDeque<u32>,
    /// Numbers that came.
    told: VecDeque<u32>,
    /// Polls since something was found.
    idle: u32,
    /// Room for completions.
    batch: Box<[Completion; BATCH]>,
    limits: Limits,
    part: Part,
    kept: Arc<Kept>,
    domain: Arc<Domain>,
}

// SAFETY: what is open any thread may use; the pointers of `part` are those of operations, which may be sent
// too; contexts are only the library's.
unsafe impl<T: Send> Send for Endpoint<T> {}

impl<T> Endpoint<T> {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        info: &Info,
        depth: Depth,
    ) -> Result<Endpoint<T>, Error> {
        let traits = info.traits();
        let transmits = usize::from(depth.transmits.max(1)).min(traits.transmits);
        let receives = usize::from(depth.receives.max(1)).min(traits.receives);
        let slots = transmits + receives;
        // Before any transfer of the peer can begin.
        let kept = domain.keeper();
        let events = Events::new(domain)?;
        let mut fd = -1;
        // SAFETY: what is opened is taken over; the number is stored.
        let completions = Handle::open("fi_cq_open", |out| unsafe {
            ffi::shim_cq(domain.handle.get(), slots + BATCH, out, &raw mut fd)
        })?;
        // SAFETY: everything that is handed over is open, and outlives what is opened.
        let handle = Handle::open("fi_endpoint", |out| unsafe {
            let (events, completions) = (events.handle.get(), completions.get());
            ffi::shim_endpoint(domain.handle.get(), info.raw(), events, completions, out)
        })?;
        let lane = |range: std::ops::Range<usize>| Lane {
            free: range.rev().map(|slot| slot as u32).collect(),
            waiting: VecDeque::new(),
        };
        Ok(Endpoint {
            handle: Some(handle),
            readiness: readiness(&[events.fd, fd])?,
            told_of: [events.fd, fd],
            telling: true,
            found: 0,
            completions,
            events,
            state: State::Connecting,
            contexts: (0..slots).map(|_| Context::new()).collect(),
            users: vec![0; slots],
            transmits: lane(0..transmits),
            receives: lane(transmits..slots),
            works: Vec::new(),
            free: Vec::new(),
            ended: VecDeque::new(),
            told: VecDeque::new(),
            idle: 0,
            batch: Box::new([Completion::NONE; BATCH]),
            limits: Limits {
                local: traits.pieces,
                remote: traits.remote_pieces,
                bytes: traits.most,
                inject: traits.inject,
            },
            part: Part::default(),
            kept,
            domain: Arc::clone(domain),
        })
    }

    pub(crate) fn connect(&mut self, peer: SocketAddr, greeting: &[u8]) -> Result<(), Error> {
        let Some(handle) = &self.handle else { return Err(Error::Ended) };
        let bytes = address::to_bytes(peer);
        // SAFETY: both are copied before the call returns.
        let connecting = unsafe {
            ffi::shim_connect(handle.get(), bytes.as_ptr(), greeting.as_ptr(), greeting.len())
        };
        Error::check("fi_connect", connecting).map(|_| ())
    }

    pub(crate) fn accept(&mut self) -> Result<(), Error> {
        let Some(handle) = &self.handle else { return Err(Error::Ended) };
        // SAFETY: the endpoint is open.
        Error::check("fi_accept", unsafe { ffi::shim_accept(handle.get()) }).map(|_| ())
    }

    /// How the connection is, as of the last [`Endpoint::poll`].
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Operations that have not been given back.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.works.len() - self.free.len()
    }

    /// Sends a message, for which the peer must have a receive that is as large. It has ended when the
    /// memory is no longer needed: whether the peer got it only an answer says.
    ///
    /// # Errors
    /// Longer or in more pieces than the provider takes, or empty; memory of another fabric.
    pub fn send(&mut self, local: Local, owner: T) -> Result<(), (Error, T)> {
        let bytes = local.len();
        self.send_first(local, bytes, owner)
    }

    /// The same for the first bytes of this memory, all of which is given back.
    ///
    /// # Errors
    /// As there; it has not as many.
    pub fn send_first(&mut self, local: Local, bytes: u64, owner: T) -> Result<(), (Error, T)> {
        self.begin(Operation::Send, local, bytes, Remotes::new(), owner)
    }

    /// The same if the provider copies so few bytes, and takes them now: there is nothing to wait for then. Whether it
    /// did.
    ///
    /// # Errors
    /// As there, and those of the provider.
    pub fn send_at_once(&mut self, local: &Local, bytes: u64) -> Result<bool, Error> {
        self.check(Operation::Send, local, bytes, &[])?;
        self.inject(local, bytes)
    }

    /// Receives a message into this memory; its result is the length. Messages come in the order in which
    /// they were sent, into memory in the order of these calls. A result of 0: a [number](Endpoint::told) has
    /// used it up.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn receive(&mut self, local: Local, owner: T) -> Result<(), (Error, T)> {
        let bytes = local.len();
        self.begin(Operation::Receive, local, bytes, Remotes::new(), owner)
    }

    /// Writes local memory to the peer's. It has ended when the bytes are there (`FI_DELIVERY_COMPLETE`).
    /// Operations may overtake each other.
    ///
    /// # Errors
    /// The two have not as many bytes, or none; memory of another fabric.
    pub fn write(&mut self, local: Local, remote: Remotes, owner: T) -> Result<(), (Error, T)> {
        let bytes = local.len();
        self.begin(Operation::Write, local, bytes, remote, owner)
    }

    /// Writes local memory to the peer's, and has it [told](Endpoint::told) this number when the bytes are
    /// there. It has ended when the memory is no longer needed: whether it arrived only an answer says. The
    /// peer must have a receive for each.
    ///
    /// # Errors
    /// As [`Endpoint::write`]; the provider [cannot](crate::Fabric::delivers).
    pub fn deliver(
        &mut self,
        local: Local,
        remote: Remotes,
        number: u32,
        owner: T,
    ) -> Result<(), (Error, T)> {
        let bytes = local.len();
        self.begin(Operation::Deliver(number), local, bytes, remote, owner)
    }

    /// The next number that came with what the peer [delivered](Endpoint::deliver), or with nothing: it is
    /// the peer's word, like any message.
    pub fn told(&mut self) -> Option<u32> {
        self.told.pop_front()
    }

    /// Reads the peer's memory into local memory. Operations may overtake each other.
    ///
    /// # Errors
    /// As [`Endpoint::write`].
    pub fn read(&mut self, local: Local, remote: Remotes, owner: T) -> Result<(), (Error, T)> {
        let bytes = local.len();
        self.begin(Operation::Read, local, bytes, remote, owner)
    }

    fn begin(
        &mut self,
        operation: Operation,
        local: Local,
        bytes: u64,
        remote: Remotes,
        owner: T,
    ) -> Result<(), (Error, T)> {
        if let Err(error) = self.check(operation, &local, bytes, &remote) {
            return Err((error, owner));
        }
        let (cursor, begun, parts, error) = (Cursor::default(), false, 0, None);
        let work = Work { operation, local, remote, bytes, owner, cursor, begun, parts, error };
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.works.push(None);
                self.works.len() as u32 - 1
            }
        };
        if let Some(place) = self.works.get_mut(number as usize) {
            *place = Some(work);
        }
        match operation {
            Operation::Receive => self.receives.waiting.push_back(number),
            _ => self.transmits.waiting.push_back(number),
        }
        self.post();
        Ok(())
    }

    fn check(
        &self,
        operation: Operation,
        local: &Local,
        bytes: u64,
        remote: &[Remote],
    ) -> Result<(), Error> {
        if matches!(self.state, State::Ended(_)) {
            return Err(Error::Ended);
        }
        if !local.is_of(&self.domain) {
            return Err(Error::Argument("memory that is not registered with this fabric"));
        }
        if bytes == 0 {
            return Err(Error::Argument("an operation on no bytes"));
        }
        if bytes > local.len() {
            return Err(Error::Argument("an operation on more bytes than there are"));
        }
        match operation {
            Operation::Send | Operation::Receive => {
                if local.pieces().len() > self.limits.local || bytes > self.limits.bytes {
                    return Err(Error::Argument(
                        "a message that is too long, or in too many pieces",
                    ));
                }
            }
            Operation::Write | Operation::Deliver(_) | Operation::Read => {
                if matches!(operation, Operation::Deliver(_)) && !self.domain.traits.numbers {
                    return Err(Error::Argument("a number, which this provider cannot send"));
                }
                let total = remote.iter().try_fold(0u64, |sum, one| sum.checked_add(one.length));
                if total != Some(bytes) || remote.iter().any(|one| one.length == 0) {
                    return Err(Error::Argument("memory of different lengths on the two sides"));
                }
            }
        }
        Ok(())
    }

    /// Lets the provider go on, and takes from it what has happened. Nothing is waited for.
    pub fn poll(&mut self) {
        // A peer that goes away is seen when nothing else is for a while.
        if self.complete() {
            self.idle = 0;
            self.found = self.found.saturating_add(1);
            if self.telling && self.found >= AWAKE {
                self.telling = false;
                remove_all(&self.readiness, &self.told_of);
            }
        } else {
            self.idle += 1;
        }
        if self.state == State::Connecting || self.idle >= LOOK {
            self.idle = 0;
            self.look_around();
        }
        self.post();
    }

    /// The next operation that has ended.
    pub fn ended(&mut self) -> Option<Ended<T>> {
        let number = self.ended.pop_front()?;
        let work = self.works.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(work.into_ended())
    }

    /// Whether there is nothing to do before the descriptor ([`AsFd`]) becomes readable: also for who is woken up
    /// only when it becomes so, not while it is.
    pub fn may_sleep(&mut self) -> bool {
        self.found = 0;
        if !self.telling {
            if let Err(error) = add_all(&self.readiness, &self.told_of) {
                self.end(error);
            }
            self.telling = true;
        }
        self.look_around();
        if !self.ended.is_empty() || !self.told.is_empty() || matches!(self.state, State::Ended(_))
        {
            return false;
        }
        let (events, completions) = (self.events.handle.get(), self.completions.get());
        // SAFETY: all three are open.
        let may = unsafe { ffi::shim_trywait(self.domain.fabric.get(), events, completions) == 0 };
        // The provider `tcp` takes one message from its socket at a time, leaves the next one there, and says that
        // it has none: the edge that told of both is gone.
        may && !self.is_readable()
    }

    fn is_readable(&self) -> bool {
        let mut fds = [PollFd::new(&self.readiness, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Tells the peer that this is the end, closes, and gives back every operation: what had not ended is
    /// [`Error::Ended`], and any part of it may have been done.
    #[must_use = "they are the owners of operations"]
    pub fn close(mut self) -> Vec<Ended<T>> {
        self.shut();
        std::iter::from_fn(|| self.ended()).collect()
    }

    /// Closes; every operation has ended then.
    fn shut(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        self.complete();
        // SAFETY: the endpoint is open. One that is not connected any more refuses.
        unsafe { ffi::shim_shutdown(handle.get()) };
        let under_way = (0..)
            .zip(&mut self.works)
            .filter(|(number, work)| work.is_some() && !self.ended.contains(number));
        if handle.close().is_err() {
            // Memory the fabric may still use is never given back.
            under_way.for_each(|(_, work)| forget(work.take()));
            forget(std::mem::take(&mut self.contexts));
            forget(Arc::clone(&self.kept));
            return;
        }
        // Nothing is under way any more.
        let cut_off: Vec<u32> = under_way
            .filter_map(|(number, work)| {
                work.as_mut()?.fail(Error::Ended);
                Some(number)
            })
            .collect();
        self.ended.extend(cut_off);
    }
}

impl<T> AsFd for Endpoint<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }
}

impl<T> Drop for Endpoint<T> {
    fn drop(&mut self) {
        self.shut();
    }
}

impl<T> std::fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("state", &self.state)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// One descriptor for several of the library: an epoll(7) that is readable when one of them is. They are in
/// it as long as they are open.
pub(crate) fn readiness(all: &[c_int]) -> Result<OwnedFd, Error> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
    let epoll = epoll.map_err(|error| Error::kernel("epoll", error))?;
    add_all(&epoll, all)?;
    Ok(epoll)
}

fn add_all(epoll: &OwnedFd, all: &[c_int]) -> Result<(), Error> {
    for &fd in all {
        if fd < 0 {
            return Err(Error::Unsuitable("has no descriptor to wait for"));
        }
        // SAFETY: the library's, which closes it with the queue it belongs to: not before the call returns.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let data = epoll::EventData::new_u64(0);
        match epoll::add(epoll, fd, data, epoll::EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::kernel("epoll", error)),
        }
    }
    Ok(())
}

fn remove_all(epoll: &OwnedFd, all: &[c_int]) {
    for &fd in all {
        // SAFETY: as above.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // One that stays tells more than it has to.
        let _ = epoll::delete(epoll, fd);
    }
}
