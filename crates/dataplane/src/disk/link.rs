//! A disk whose image is in a store: its requests, through any number of connections.
//!
//! The worker pushes requests and pumps; control makes connections and hands them over. While there
//! is none, requests wait. What ends a connection is told to control, which makes another one.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use disk::SECTOR;
use fabric::Registration;
use guestmem::{Access, Segments};
use line::{INLINE, Rma, Wire, WireError};
use remote::control::Opened;
use remote::frame::{self, FromStore};
use remote::{Buffers, Client, MAX_DATA, Operation, Request, Status};
use tokio::sync::mpsc;

use super::Disk;
use super::request::{Job, Work};

/// A connection is dead when nothing was heard for so long after it was asked, in nanoseconds.
const SILENCE: u64 = 3_000_000_000;

/// Most things taken from a connection before others have their turn.
const BURST: usize = 256;

/// A connection on which the image is open.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) line: Line,
    pub(crate) opened: Opened,
    /// Which start of the store's machine it is.
    pub(crate) boot: String,
}

/// How requests get to the store.
#[derive(Debug)]
pub(crate) enum Line {
    /// With their data.
    Wire(Box<Wire>),
    /// Without: the store reaches the guest's memory.
    Rma(Box<Rma>),
}

/// What a step of a request came to.
pub(super) type Stepped = (Box<Job>, io::Result<u64>);

/// The requests of a disk to its store.
#[derive(Debug)]
pub(crate) struct Link {
    client: Client<Asked>,
    line: Option<Line>,
    /// The reply whose data is arriving.
    arriving: Option<Arriving>,
    /// The disk, whose guest's memory it is.
    disk: Option<Arc<Disk>>,
    /// Something may have arrived.
    pub(super) readable: bool,
    /// When the store was asked for a sign, if nothing was heard since, in nanoseconds.
    asked: Option<u64>,
    /// The store was away for too long.
    failing: bool,
    /// Where control hears that a connection has ended, and why.
    ends: mpsc::UnboundedSender<String>,
}

/// What was asked for.
#[derive(Debug)]
struct Asked {
    job: Box<Job>,
    /// Keeps the memory registered that the store may reach.
    reached: Option<Registration>,
}

#[derive(Debug)]
struct Arriving {
    tag: u64,
    /// Where to; `Err`: so many bytes nowhere, as the guest's memory has vanished.
    to: Result<Segments, u64>,
}

/// What a request asks the store for next; `None`: nothing.
fn ask(job: &Job) -> Option<Request> {
    let request = |operation, offset, length| Request {
        operation,
        stable: false,
        unmap: false,
        handle: 0,
        offset,
        length,
        buffers: Buffers::new(),
    };
    match &job.request.work {
        Work::Transfer { access, offset, stable, .. } => {
            let length = job.segments.len().min(MAX_DATA.into());
            Some(match access {
                Access::Read => request(Operation::Read, *offset, length),
                Access::Write => {
                    Request { stable: *stable, ..request(Operation::Write, *offset, length) }
                }
            })
        }
        Work::Sync => Some(request(Operation::Flush, 0, 0)),
        Work::Clear { ranges, zero, stable } => {
            let range = ranges.front()?;
            let (offset, length) = (range.sector * SECTOR, u64::from(range.sectors) * SECTOR);
            Some(if *zero {
                let (stable, unmap) = (*stable, range.unmap);
                Request { stable, unmap, ..request(Operation::WriteZeroes, offset, length) }
            } else {
                request(Operation::Discard, offset, length)
            })
        }
        Work::Nothing => None,
    }
}

/// What the guest is told of it.
fn error(status: Status) -> io::Error {
    io::Error::other(match status {
        Status::Ok | Status::Failed => "the store failed",
        Status::OutOfRange => "the store says: out of range",
        Status::ReadOnly => "the store says: read-only",
        Status::Unsupported => "the store says: unsupported",
        Status::NoSpace => return io::ErrorKind::StorageFull.into(),
        Status::WrongHandle => "the store says: wrong handle",
        Status::Unreachable => "the store cannot reach the guest's memory",
    })
}

impl Link {
    /// The disk, whose guest's memory a store may reach.
    pub(super) fn of(&mut self, disk: &Arc<Disk>) {
        self.disk = Some(Arc::clone(disk));
    }

    pub(crate) fn new(ends: mpsc::UnboundedSender<String>) -> Link {
        Link {
            client: Client::default(),
            line: None,
            arriving: None,
            disk: None,
            readable: false,
            asked: None,
            failing: false,
            ends,
        }
    }

    /// Has the next step of a request done by the store. The request comes back if the store was away
    /// for too long.
    pub(super) fn push(&mut self, job: Box<Job>) -> Option<Box<Job>> {
        match ask(&job) {
            Some(request) if !self.failing => {
                self.client.push(request, Asked { job, reached: None });
            }
            _ => return Some(job),
        }
        None
    }

    /// Goes on with this connection.
    pub(super) fn connected(&mut self, connected: Connected) {
        self.disconnect();
        self.client.connected(&connected.opened, &connected.boot);
        self.line = Some(connected.line);
        (self.asked, self.readable) = (None, true);
        self.failing = false;
    }

    /// Everything that waits for the store fails, and what comes too, until there is a connection.
    pub(super) fn fail(&mut self, _: u64, done: &mut Vec<Stepped>) {
        if self.line.is_none() {
            self.failing = true;
            let away = |job| (job, Err(io::Error::from(io::ErrorKind::TimedOut)));
            done.extend(self.client.take_back(|_| true).into_iter().map(|back| away(back.job.job)));
        }
    }

    /// Whether there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.line.is_some()
    }

    /// Whether a look at the connection may find something.
    pub(super) fn is_busy(&self) -> bool {
        self.line.is_some() && (self.readable || self.client.under_way() > 0)
    }

    /// Whether requests wait to be sent.
    pub(super) fn has_more(&self) -> bool {
        self.client.has_more()
    }

    /// Takes back what a queue waits for, if there is no connection: whoever serves the queue next
    /// finds it in the region of requests in flight. Returns how many that were.
    pub(super) fn take_back(&mut self, queue: u16) -> usize {
        if self.line.is_some() {
            return 0;
        }
        self.client.take_back(|asked| asked.job.request.queue == queue).len()
    }

    fn disconnect(&mut self) -> bool {
        if let Some(Line::Wire(wire)) = &self.line
            && self.client.under_way() > 0
        {
            wire.abandon();
        }
        self.client.disconnected();
        self.arriving = None;
        let was = self.line.take().is_some();
        // Nobody reaches it any more.
        self.client.waiting().for_each(|asked| asked.reached = None);
        was
    }

    /// The guest is gone. A fabric may hold on to memory that was registered until the endpoint is closed, so
    /// the next guest gets another one.
    pub(super) fn leave_memory(&mut self) {
        if matches!(self.line, Some(Line::Rma(_))) && self.disconnect() {
            // Nobody listens any more if the disk is being removed.
            let _ = self.ends.send("its guest has gone, and its memory with it".to_owned());
        }
    }

    /// Has a fabric looked at; whether it is a stream, whose socket tells.
    pub(super) fn look_around(&mut self) -> bool {
        self.readable |= matches!(self.line, Some(Line::Rma(_)));
        matches!(self.line, Some(Line::Wire(_)))
    }

    /// Wants to be woken up for what comes. Returns whether there is something already.
    pub(super) fn arm(&mut self) -> bool {
        self.readable |= match &mut self.line {
            None => return false,
            Some(Line::Wire(wire)) => !wire.may_sleep(),
            Some(Line::Rma(rma)) => !rma.may_sleep(),
        };
        self.readable
    }

    /// Sends what may be sent, and takes what has arrived: steps that have ended are added to `done`.
    pub(super) fn pump(&mut self, _: u64, done: &mut Vec<Stepped>) {
        if let Err(error) = self.try_pump(done) {
            self.lost(&error, done);
        }
    }

    fn lost(&mut self, error: &WireError, done: &mut Vec<Stepped>) {
        if let WireError::Vanished(tag) = error
            && let Some((gone, _)) = self.client.answered(*tag, Status::Failed)
        {
            // It is not sent again. The session of that memory ends by itself.
            done.push((gone.job.job, Err(io::Error::other("the guest's memory has vanished"))));
        }
        if self.disconnect() {
            // Nobody listens any more if the disk is being removed.
            let _ = self.ends.send(error.to_string());
        }
    }

    fn try_pump(&mut self, done: &mut Vec<Stepped>) -> Result<(), WireError> {
        let wire = match &mut self.line {
            None => return Ok(()),
            Some(Line::Wire(wire)) => wire,
            Some(Line::Rma(_)) => return self.try_pump_rma(done),
        };
        // What is sent now is not answered yet.
        let nothing = self.client.under_way() == 0 && !self.readable;
        let mut left = BURST;
        loop {
            while let Some((tag, handle, sent)) = self.client.send() {
                let request = Request { handle, buffers: Buffers::new(), ..sent.request };
                wire.frame(|bytes| frame::request(bytes, tag, &request));
                if request.operation == Operation::Write {
                    wire.lend(tag, sent.job.job.segments.first(request.length));
                }
            }
            wire.flush()?;
            if nothing || (self.client.under_way() == 0 && !self.readable) {
                return Ok(());
            }
            self.readable = false;
            let before = done.len();
            while arrive(wire, &mut self.client, &mut self.arriving, done)? {
                left -= 1;
                if left == 0 {
                    // Others have their turn first.
                    self.readable = true;
                    break;
                }
            }
            if wire.heard() {
                self.asked = None;
            }
            // Answers make room for what waits.
            if done.len() == before || left == 0 {
                return wire.flush();
            }
        }
    }

    fn try_pump_rma(&mut self, done: &mut Vec<Stepped>) -> Result<(), WireError> {
        let Self { line: Some(Line::Rma(rma)), client, disk: Some(disk), .. } = self else {
            return Ok(());
        };
        // What is sent now is not answered yet.
        let nothing = client.under_way() == 0 && !self.readable;
        let mut left = BURST;
        loop {
            while let Some((tag, handle, sent)) = client.send() {
                let mut request = Request { handle, buffers: Buffers::new(), ..sent.request };
                if request.operation == Operation::Write && request.length <= INLINE {
                    let data = first(&sent.job.job.segments, request.length);
                    rma.frame_with(tag, &data, |bytes| frame::request(bytes, tag, &request))?;
                    continue;
                }
                if request.operation.moves() {
                    let segments = first(&sent.job.job.segments, request.length);
                    let Some((registration, buffers)) = disk.reach.of(&segments) else {
                        // It is asked for again on the next connection, which is by TCP.
                        if disk.reach.gave_up() {
                            return Err(WireError::Unexpected("memory that the fabric refuses"));
                        }
                        return Err(WireError::Vanished(tag));
                    };
                    request.buffers = buffers;
                    sent.job.reached = Some(registration);
                }
                rma.frame(|bytes| frame::request(bytes, tag, &request))?;
            }
            rma.flush()?;
            if nothing || (client.under_way() == 0 && !self.readable) {
                return Ok(());
            }
            self.readable = false;
            let polled = rma.poll();
            let before = done.len();
            while let Some(half) = rma.told() {
                let tag = client.delivered(half).map_err(WireError::Unexpected)?;
                if let Some((answered, _)) = client.answered(tag, Status::Ok) {
                    let moved = answered.request.length;
                    done.push((answered.job.job, Ok(moved)));
                }
            }
            while let Some(next) = rma.item(|item| FromStore::of(&item))? {
                match next.ok_or(WireError::Unexpected("neither reply nor ping"))? {
                    FromStore::Pong => {}
                    FromStore::Ping(tag) => rma.frame(|bytes| frame::pong(bytes, tag))?,
                    FromStore::Reply { tag, status, data } => {
                        if data > 0 {
                            return Err(WireError::Unexpected("data that was to be in memory"));
                        }
                        let answered = client.answered(tag, status);
                        let (answered, status) =
                            answered.ok_or(WireError::Unexpected("a reply to no request"))?;
                        let moved = answered.request.length;
                        let ok = status == Status::Ok;
                        done.push((
                            answered.job.job,
                            if ok { Ok(moved) } else { Err(error(status)) },
                        ));
                    }
                }
                left -= 1;
                if left == 0 {
                    // Others have their turn first.
                    self.readable = true;
                    break;
                }
            }
            if rma.heard() {
                self.asked = None;
            }
            polled?;
            if done.len() == before || left == 0 {
                return rma.flush();
            }
        }
    }

    /// Asks the store for a sign if it was silent for a while, and gives the connection up if it was
    /// asked long ago.
    pub(super) fn check(&mut self, now: u64, done: &mut Vec<Stepped>) {
        let Some(line) = &mut self.line else { return };
        match self.asked {
            Some(at) if now.saturating_sub(at) >= SILENCE => {
                self.lost(&WireError::Io(io::ErrorKind::TimedOut.into()), done);
            }
            Some(_) => {}
            None => {
                self.asked = Some(now);
                let asked = match line {
                    Line::Wire(wire) => {
                        wire.frame(|bytes| frame::ping(bytes, 0));
                        wire.flush()
                    }
                    Line::Rma(rma) => {
                        rma.frame(|bytes| frame::ping(bytes, 0)).and_then(|()| rma.flush())
                    }
                };
                if let Err(error) = asked {
                    self.lost(&error, done);
                }
            }
        }
    }
}

/// The first of these bytes: mostly all, of which no copy is made.
fn first(segments: &Segments, bytes: u64) -> Cow<'_, Segments> {
    let all = bytes >= segments.len();
    if all { Cow::Borrowed(segments) } else { Cow::Owned(segments.first(bytes)) }
}

/// Takes the next thing that has arrived; whether there was one.
fn arrive(
    wire: &mut Wire,
    client: &mut Client<Asked>,
    arriving: &mut Option<Arriving>,
    done: &mut Vec<Stepped>,
) -> Result<bool, WireError> {
    if let Some(Arriving { tag, to }) = arriving {
        let whole = match to {
            Ok(segments) => match wire.data(segments) {
                Err(WireError::Vanished(_)) => {
                    let left = segments.len();
                    *to = Err(left);
                    return Ok(true);
                }
                whole => whole?,
            },
            Err(left) => wire.skip(left)?,
        };
        if !whole {
            return Ok(false);
        }
        let vanished = to.is_err();
        if let Some((answered, status)) = client.answered(*tag, Status::Ok) {
            let result = match (status, vanished) {
                (Status::Ok, false) => Ok(answered.request.length),
                (Status::Ok, true) => Err(io::Error::other("the guest's memory has vanished")),
                (status, _) => Err(error(status)),
            };
            done.push((answered.job.job, result));
        }
        *arriving = None;
        return Ok(true);
    }
    let Some(next) = wire.item(|item| FromStore::of(&item))? else { return Ok(false) };
    match next.ok_or(WireError::Unexpected("neither reply nor ping"))? {
        FromStore::Pong => {}
        FromStore::Ping(tag) => wire.frame(|bytes| frame::pong(bytes, tag)),
        FromStore::Reply { tag, status, data } => {
            let sent = client.reply(tag, status, data).map_err(WireError::Unexpected)?;
            if data > 0 {
                *arriving =
                    Some(Arriving { tag, to: Ok(sent.job.job.segments.first(data.into())) });
            } else if let Some((answered, status)) = client.answered(tag, status) {
                let moved = answered.request.length;
                let result = if status == Status::Ok { Ok(moved) } else { Err(error(status)) };
                done.push((answered.job.job, result));
            }
        }
    }
    Ok(true)
}
