//! A connection of an image, and what its requests came to.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use fabric::{Registration, Remote};
use guestmem::Segments;
use line::{INLINE, Rma, Wire, WireError};
use remote::control::Transport;
use remote::frame::{self, FromStore};
use remote::{Buffer, Client, Operation, Request, Status};
use rustix::event::{PollFd, PollFlags};

use crate::Error;
use crate::pool::Slot;
use crate::ring::Ring;

/// How often a store is asked for a sign; it is dead when nothing was heard for so long after that.
pub(crate) const CHECK: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

/// A request, and who waits for it.
#[derive(Debug)]
pub(crate) struct Job {
    /// Where what is read or written is; none for requests that move nothing.
    pub(crate) slot: Option<Slot>,
    /// Is told the end, with what was read. Dropped without a word: the image was closed.
    pub(crate) done: SyncSender<Result<Option<Slot>, Error>>,
}

/// How requests get to the store.
#[derive(Debug)]
pub(crate) enum Line {
    /// With their data.
    Wire(Box<Wire>),
    /// Without: the store reaches memory of this program over a fabric.
    Rma(Box<Moved>),
    /// The same, as it is on this machine.
    Ring(Box<Ring>),
}

/// A connection over a fabric.
#[derive(Debug)]
pub(crate) struct Moved {
    // Who reaches the memory goes first.
    pub(crate) rma: Rma,
    /// All memory for data.
    pub(crate) registration: Registration,
}

impl Line {
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Line::Wire(_) => Transport::Tcp,
            Line::Rma(_) => Transport::Libfabric,
            Line::Ring(_) => Transport::Shm,
        }
    }
}

/// A connection on which an image is open.
pub(crate) struct Link {
    line: Line,
    /// A reply whose data is arriving, and where to.
    arriving: Option<(u64, Segments)>,
    /// When the store was asked for a sign and was not heard since.
    asked: Option<Instant>,
    /// When it is to be asked next.
    pub(crate) check: Instant,
    /// For writing, too.
    write: bool,
}

impl Link {
    pub(crate) fn new(line: Line, write: bool) -> Link {
        Link { line, arriving: None, asked: None, check: Instant::now() + CHECK, write }
    }

    /// Whether the store reaches memory of this program.
    pub(crate) fn shows_memory(&self) -> bool {
        !matches!(self.line, Line::Wire(_))
    }

    /// Sends what may be sent, and takes what has arrived.
    pub(crate) fn pump(&mut self, client: &mut Client<Job>) -> Result<(), WireError> {
        loop {
            self.send(client)?;
            let answered = match &mut self.line {
                Line::Wire(wire) => {
                    let mut answered = false;
                    while arrive(wire, client, &mut self.arriving, &mut answered)? {}
                    answered
                }
                Line::Rma(moved) => hear(&mut moved.rma, client)?,
                Line::Ring(ring) => {
                    let mut answered = false;
                    ring.answers(|tag, status| {
                        answered = true;
                        end(client, tag, status);
                    });
                    answered
                }
            };
            let heard = match &mut self.line {
                Line::Wire(wire) => wire.heard(),
                Line::Rma(moved) => moved.rma.heard(),
                Line::Ring(ring) => ring.heard(),
            };
            if heard {
                self.asked = None;
            }
            // Answers make room for what waits.
            if !answered {
                return Ok(());
            }
        }
    }

    fn send(&mut self, client: &mut Client<Job>) -> Result<(), WireError> {
        let mut refused = Vec::new();
        while let Some((tag, handle, sent)) = client.send() {
            let mut request = Request { handle, ..sent.request.clone() };
            let (length, writes) = (request.length, request.operation == Operation::Write);
            let slot = sent.job.slot.as_ref();
            let data = |slot: &Slot| slot.fresh(length, writes);
            match &mut self.line {
                Line::Wire(wire) => {
                    wire.frame(|bytes| frame::request(bytes, tag, &request));
                    if let (true, Some(slot)) = (writes, slot) {
                        wire.push(tag, data(slot));
                    }
                }
                Line::Rma(moved) => {
                    let Moved { rma, registration } = &mut **moved;
                    let with = slot.filter(|_| writes && length <= INLINE).map(data);
                    if let Some(data) = with {
                        rma.frame_with(tag, &data, |bytes| frame::request(bytes, tag, &request))?;
                        continue;
                    }
                    if let Some(slot) = slot {
                        let buffers = registration.remote(&data(slot));
                        let one = |Remote { address, key, length }| Buffer { address, key, length };
                        let buffers = buffers.into_iter().flatten().map(one).collect();
                        request.buffers = buffers;
                    }
                    rma.frame(|bytes| frame::request(bytes, tag, &request))?;
                }
                // The device would say less.
                Line::Ring(_) if request.operation.changes() && !self.write => refused.push(tag),
                Line::Ring(ring) => ring.push(tag, &request, slot.map(data).as_ref())?,
            }
        }
        for tag in refused {
            end(client, tag, Status::ReadOnly);
        }
        match &mut self.line {
            // The slots are kept until the answers.
            Line::Wire(wire) => wire.flush(),
            Line::Rma(moved) => moved.rma.flush(),
            Line::Ring(ring) => ring.kick(),
        }
    }

    /// Asks the store for a sign if it was silent for a while, and gives the connection up if it was
    /// asked long ago.
    pub(crate) fn check(&mut self, now: Instant) -> Result<(), WireError> {
        self.check = now + CHECK;
        match self.asked {
            Some(at) if now.saturating_duration_since(at) >= SILENCE => {
                Err(WireError::Io(std::io::ErrorKind::TimedOut.into()))
            }
            Some(_) => Ok(()),
            None => {
                self.asked = Some(now);
                match &mut self.line {
                    Line::Wire(wire) => {
                        wire.frame(|bytes| frame::ping(bytes, 0));
                        wire.flush()
                    }
                    Line::Rma(moved) => {
                        moved.rma.frame(|bytes| frame::ping(bytes, 0))?;
                        moved.rma.flush()
                    }
                    Line::Ring(ring) => ring.ping(),
                }
            }
        }
    }

    /// Whether there is nothing to do before a descriptor is ready.
    pub(crate) fn may_sleep(&mut self) -> bool {
        match &mut self.line {
            Line::Rma(moved) => moved.rma.may_sleep(),
            Line::Wire(_) | Line::Ring(_) => true,
        }
    }

    /// What to wait for.
    pub(crate) fn descriptors(&self) -> Descriptors<'_> {
        match &self.line {
            Line::Wire(wire) => {
                let out = if wire.is_behind() { PollFlags::OUT } else { PollFlags::empty() };
                Descriptors { main: wire.as_fd(), flags: PollFlags::IN | out, second: None }
            }
            Line::Rma(moved) => {
                Descriptors { main: moved.rma.as_fd(), flags: PollFlags::IN, second: None }
            }
            Line::Ring(ring) => {
                let second = Some(ring.post());
                Descriptors { main: ring.call(), flags: PollFlags::IN, second }
            }
        }
    }

    /// Takes note of what was waited for: whether the first descriptor, and the second, is ready.
    pub(crate) fn woken(&mut self, first: bool, second: bool) -> Result<(), WireError> {
        match &mut self.line {
            Line::Ring(ring) if first || second => ring.woken(first),
            _ => Ok(()),
        }
    }
}

/// What a connection waits for.
pub(crate) struct Descriptors<'a> {
    main: BorrowedFd<'a>,
    flags: PollFlags,
    second: Option<BorrowedFd<'a>>,
}

impl<'a> Descriptors<'a> {
    pub(crate) fn polled(self) -> impl Iterator<Item = PollFd<'a>> {
        let second = self.second.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        std::iter::once(PollFd::from_borrowed_fd(self.main, self.flags)).chain(second)
    }
}

/// Takes the next thing that has arrived in a stream; whether there was one.
fn arrive(
    wire: &mut Wire,
    client: &mut Client<Job>,
    arriving: &mut Option<(u64, Segments)>,
    answered: &mut bool,
) -> Result<bool, WireError> {
    if let Some((tag, to)) = arriving {
        if !wire.data(to)? {
            return Ok(false);
        }
        *answered = true;
        end(client, *tag, Status::Ok);
        *arriving = None;
        return Ok(true);
    }
    let Some(next) = wire.item(|item| FromStore::of(&item))? else { return Ok(false) };
    match next.ok_or(WireError::Unexpected("neither reply nor ping"))? {
        FromStore::Pong => {}
        FromStore::Ping(tag) => wire.frame(|bytes| frame::pong(bytes, tag)),
        FromStore::Reply { tag, status, data } => {
            let sent = client.reply(tag, status, data).map_err(WireError::Unexpected)?;
            match &sent.job.slot {
                Some(slot) if data > 0 => {
                    *arriving = Some((tag, slot.fresh(data.into(), false)));
                }
                _ => {
                    *answered = true;
                    end(client, tag, status);
                }
            }
        }
    }
    Ok(true)
}

/// Takes what has come over a fabric; whether there were answers.
fn hear(rma: &mut Rma, client: &mut Client<Job>) -> Result<bool, WireError> {
    let polled = rma.poll();
    let mut answered = false;
    while let Some(half) = rma.told() {
        let tag = client.delivered(half).map_err(WireError::Unexpected)?;
        answered |= end(client, tag, Status::Ok);
    }
    while let Some(next) = rma.item(|item| FromStore::of(&item))? {
        match next.ok_or(WireError::Unexpected("neither reply nor ping"))? {
            FromStore::Pong => {}
            FromStore::Ping(tag) => rma.frame(|bytes| frame::pong(bytes, tag))?,
            FromStore::Reply { data: 1.., .. } => {
                return Err(WireError::Unexpected("data that was to be in memory"));
            }
            FromStore::Reply { tag, status, .. } => {
                answered = true;
                if !end(client, tag, status) {
                    return Err(WireError::Unexpected("a reply to no request"));
                }
            }
        }
    }
    rma.flush()?;
    polled.map(|()| answered)
}

/// Tells whoever waits for a request how it ended; whether there was one.
fn end(client: &mut Client<Job>, tag: u64, status: Status) -> bool {
    let Some((answered, status)) = client.answered(tag, status) else { return false };
    let Job { slot, done } = answered.job;
    let read = answered.request.operation == Operation::Read;
    let result = match status {
        // Of what was written nobody wants anything any more.
        Status::Ok => Ok(slot.filter(|_| read)),
        status => Err(Error::Failed(status)),
    };
    // Who does not wait any more does not want to know.
    let _ = done.send(result);
    true
}
