//! A connection from another host, on which an image is open: a queue of requests like a guest's.
//!
//! It belongs to a [`LiveQueue`](super::queue::LiveQueue), on whose worker all of this runs. What the client
//! says is judged here, and its data kept in a [`Pool`]; what makes no sense is a [`Fault`], which ends the
//! connection.

mod lines;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use disk::SECTOR;
use disk::counters::Kind;
use disk::request::Range;
use fabric::{Depth, Fabric, Rights};
use guestmem::{Access, Segments};
use line::rma::Fresh;
use line::{LARGE, Rma, Wire, WireError};
use remote::control::Opened;
use remote::frame::{self, Item};
use remote::{MAX_DATA, Operation, Server, Status};

use self::lines::{Line, Moved, Streamed};
use super::pool::Pool;
use super::queue::{Fault, Judge, Popped, Waker};
use super::request::{Frame, Job, Origin, Request, Way, Work};

/// Looks that found nothing before the socket has to say that there is something.
const LOOKS: u32 = 64;
/// What a request takes of the pool beside its bytes, at most.
const PAGE: u64 = 4096;

/// An image that is open on a connection.
pub(crate) struct Connection {
    line: Line,
    server: Server,
    pool: Pool,
    /// Looks since something was found.
    looks: u32,
}

impl Connection {
    /// The client was told so much of the image; `write`: it may write.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new(wire: Wire, opened: Opened, write: bool) -> io::Result<Connection> {
        let line = Line::Wire(Box::new(Streamed::new(wire)));
        Ok(Connection { line, pool: pool(&opened)?, server: Server::new(opened, write), looks: 0 })
    }

    /// The same over a fabric, on an endpoint that is made last: who waits for it is refused if there is no
    /// memory. `near`: the client is on this host.
    ///
    /// # Errors
    /// There is no memory for it, or the fabric does not take it; that of the endpoint.
    pub(crate) fn rma(
        fabric: &Fabric,
        endpoint: impl FnOnce(Depth) -> Result<Fresh<Box<Frame>>, fabric::Error>,
        opened: Opened,
        write: bool,
        near: bool,
    ) -> io::Result<Connection> {
        let pool = pool(&opened)?;
        let memory = fabric.register(pool.memory(), Rights::Local).map_err(io::Error::other)?;
        let rma = Rma::new(fabric, endpoint, opened.requests, None)?;
        let line = Line::Rma(Moved::new(rma, memory, near));
        Ok(Connection { line, pool, server: Server::new(opened, write), looks: 0 })
    }

    /// What wakes its worker up; none: it cannot be waited for.
    pub(super) fn waker(&self) -> Option<Waker> {
        match &self.line {
            Line::Wire(line) => Some(Waker::Stream(line.wire.socket())),
            Line::Rma(Moved { rma, .. }) => rma.descriptor().ok().map(Waker::Fabric),
        }
    }

    /// Whether a look may find something: one was found lately, or the socket said so.
    pub(super) fn ready(&self) -> bool {
        self.looks < LOOKS
    }

    /// The socket has something, or room.
    pub(super) fn kicked(&mut self) {
        self.looks = 0;
    }

    /// Has a fabric looked at once; whether it is a stream, whose socket tells.
    pub(super) fn look_around(&mut self) -> bool {
        let rma = matches!(self.line, Line::Rma(_));
        if rma {
            self.looks = self.looks.min(LOOKS - 1);
        }
        !rma
    }

    /// The socket tells about everything that comes after the last look.
    pub(super) fn arm(&mut self) -> bool {
        let sleeps = match &mut self.line {
            Line::Wire(line) => line.wire.may_sleep(),
            Line::Rma(line) => line.rma.may_sleep(),
        };
        self.looks = if sleeps { LOOKS } else { 0 };
        self.ready()
    }

    pub(super) fn pop(&mut self, judge: &Judge<'_>) -> Result<Popped, Fault> {
        self.looks += 1;
        match &mut self.line {
            Line::Wire(line) if line.wire.is_behind() => self.flush()?,
            Line::Wire(_) => {}
            Line::Rma(line) if line.asked => {}
            Line::Rma(line) => line.ask()?,
        }
        loop {
            let next = match &mut self.line {
                Line::Wire(line) => {
                    if line.expects() {
                        return Ok(match line.arrived(judge)? {
                            None => Popped::Nothing,
                            Some((frame, stored)) => self.popped(frame, stored, judge),
                        });
                    }
                    line.wire.item(said)?
                }
                Line::Rma(line) => {
                    if let Some((frame, reached)) = line.moved() {
                        return self.moved(frame, reached, judge);
                    }
                    let item = line.rma.item(said)?;
                    line.asked &= item.is_some();
                    item
                }
            };
            let (tag, request) = match next {
                None => return Ok(Popped::Nothing),
                Some(Said::Request(tag, request)) => (tag, request),
                Some(Said::Ping(tag)) => {
                    self.looks = 0;
                    self.say(|bytes| frame::pong(bytes, tag))?;
                    return Ok(Popped::Answered);
                }
                Some(Said::Nonsense) => {
                    return Err(WireError::Unexpected("neither request nor ping").into());
                }
            };
            self.look_at(&request)?;
            let excess = |excess: remote::Excess| Fault {
                vanished: false,
                reason: format!("too-much: {excess}"),
            };
            let may = self.server.begins(&request).map_err(excess)?;
            let write = request.operation == Operation::Write;
            let bytes = if request.operation.moves() { request.length } else { 0 };
            let fetched = write && !request.buffers.is_empty();
            if let Line::Rma(line) = &mut self.line
                && write
                && !fetched
            {
                let data = line.rma.data(bytes)?;
                return self.came_with(&data, tag, request, may.err(), judge);
            }
            let way = match may {
                Ok(()) => self.line.way(judge, &request),
                Err(_) => Way::Pool,
            };
            let bytes = match way {
                Way::Stream(_) | Way::Image(_) if !write => 0,
                // It is lent when it is fetched.
                Way::Pool if fetched => 0,
                // A write may have to go by the pool after all.
                _ => bytes,
            };
            let (loan, data) = self.pool.take(bytes).ok_or_else(no_memory)?;
            let (length, refused) = (request.length, may.err());
            let frame = Box::new(Frame { tag, request, loan, data, way, refused });
            match &mut self.line {
                // There is nothing to be done first, and it is too short to be counted in a pass's bytes.
                Line::Rma(line) if matches!(frame.way, Way::Image(_)) && length < LARGE => {
                    self.looks = 0;
                    if let Some(counters) = judge.disk.counters.get(judge.queue) {
                        counters.operations.done(Kind::Read, length, 0, true);
                    }
                    line.store(frame)?;
                    return Ok(Popped::Answered);
                }
                Line::Wire(line) if write => line.begin(frame),
                Line::Rma(line) if fetched && frame.refused.is_none() => {
                    line.waiting.push_back(frame);
                    self.fetch()?;
                    self.looks = 0;
                }
                _ => return Ok(self.popped(frame, 0, judge)),
            }
        }
    }

    /// A write whose data is in its message: mostly it goes from there to the image at once.
    fn came_with(
        &mut self,
        data: &Segments,
        tag: u64,
        request: remote::Request,
        refused: Option<Status>,
        judge: &Judge<'_>,
    ) -> Result<Popped, Fault> {
        let image = judge.straight().filter(|_| refused.is_none()).and_then(|image| image.mapped);
        let moved = image.and_then(|image| image.transfer(Access::Write, request.offset, data));
        let stored = moved.and_then(Result::ok).filter(|moved| *moved == data.len()).unwrap_or(0);
        let (loan, rest) = self.pool.take(data.len() - stored).ok_or_else(no_memory)?;
        data.copy_across(&rest, 0);
        let frame = Box::new(Frame { tag, request, loan, data: rest, way: Way::Pool, refused });
        Ok(self.popped(frame, stored, judge))
    }

    /// Whether data is where it has to be on this line.
    fn look_at(&self, request: &remote::Request) -> Result<(), WireError> {
        let inline = request.operation == Operation::Write && request.buffers.is_empty();
        let wanted = if request.operation.moves() && !inline { request.length } else { 0 };
        let total = request.buffers.iter().try_fold(0u64, |sum, one| sum.checked_add(one.length));
        match &self.line {
            Line::Wire(_) if !request.buffers.is_empty() => {
                Err(WireError::Unexpected("memory where data was expected"))
            }
            Line::Rma(_) if total != Some(wanted) => {
                Err(WireError::Unexpected("a request for more or less memory than it names"))
            }
            _ => Ok(()),
        }
    }

    /// Has the data of writes fetched, of as many as may be at once.
    fn fetch(&mut self) -> Result<(), Fault> {
        while let Line::Rma(line) = &mut self.line
            && let Some(mut frame) = line.next()
        {
            (frame.loan, frame.data) =
                self.pool.take(frame.request.length).ok_or_else(no_memory)?;
            line.fetch(frame)?;
        }
        Ok(())
    }

    /// A move has ended.
    fn moved(
        &mut self,
        frame: Box<Frame>,
        reached: bool,
        judge: &Judge<'_>,
    ) -> Result<Popped, Fault> {
        self.looks = 0;
        if frame.request.operation == Operation::Write {
            self.fetch()?;
            if reached {
                return Ok(self.popped(frame, 0, judge));
            }
            self.answer(frame, Status::Unreachable);
            return Ok(Popped::Answered);
        }
        if !reached && matches!(frame.way, Way::Image(_)) {
            // A part may have been sent, and what comes behind it would be taken for the rest.
            return Err(WireError::Unexpected("an image that cannot be sent").into());
        }
        let tag = frame.tag;
        self.ended(*frame);
        let told = matches!(&self.line, Line::Rma(line) if line.rma.fabric().delivers());
        if !reached || !told {
            let status = if reached { Status::Ok } else { Status::Unreachable };
            self.say(|to| frame::reply(to, tag, status, 0))?;
        }
        Ok(Popped::Answered)
    }

    fn say(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), WireError> {
        match &mut self.line {
            Line::Wire(line) => {
                line.wire.frame(write);
                Ok(())
            }
            Line::Rma(line) => line.rma.frame(write),
        }
    }

    /// A request that is there with its data, of which so many bytes are written already.
    fn popped(&mut self, frame: Box<Frame>, stored: u64, judge: &Judge<'_>) -> Popped {
        self.looks = 0;
        if let Some(status) = frame.refused {
            self.answer(frame, status);
            return Popped::Answered;
        }
        let remote::Request { operation, stable, unmap, offset, length, .. } = frame.request;
        let transfer =
            |access| Work::Transfer { access, offset: offset + stored, stable, tried: false };
        let clear = |zero| {
            let sectors = (length / SECTOR) as u32;
            let range = Range { sector: offset / SECTOR, sectors, unmap };
            Work::Clear { ranges: VecDeque::from([range]), zero, stable }
        };
        let (kind, work) = match operation {
            Operation::Read => match frame.way {
                Way::Pool => (Kind::Read, transfer(Access::Read)),
                Way::Stream(_) | Way::Image(_) => (Kind::Read, Work::Nothing),
            },
            Operation::Write => (Kind::Write, transfer(Access::Write)),
            Operation::Flush => (Kind::Flush, Work::Sync),
            Operation::Discard => (Kind::Discard, clear(false)),
            Operation::WriteZeroes => (Kind::WriteZeroes, clear(true)),
        };
        let mut segments = frame.data.clone();
        segments.advance(stored);
        let request = Request {
            disk: judge.disk.id,
            queue: judge.queue as u16,
            origin: Origin::Frame(frame),
            kind,
            bytes: length,
            started: judge.now,
            work,
            past_image: false,
        };
        Popped::Job(Box::new(Job { segments, request }))
    }

    pub(super) fn complete(&mut self, request: Request, result: &io::Result<()>) {
        let status = match result {
            Ok(()) => Status::Ok,
            Err(error) => match error.kind() {
                io::ErrorKind::StorageFull => Status::NoSpace,
                io::ErrorKind::Unsupported => Status::Unsupported,
                io::ErrorKind::ReadOnlyFilesystem => Status::ReadOnly,
                _ => Status::Failed,
            },
        };
        if let Origin::Frame(frame) = request.origin {
            self.answer(frame, status);
        }
    }

    fn answer(&mut self, frame: Box<Frame>, status: Status) {
        let tag = frame.tag;
        let read = frame.request.operation == Operation::Read && status == Status::Ok;
        match &mut self.line {
            Line::Wire(line) if read => {
                let Streamed { wire, sending, .. } = &mut **line;
                let bytes = frame.request.length as u32;
                wire.frame(|to| frame::reply(to, tag, status, bytes));
                match &frame.way {
                    Way::Stream(file) => {
                        let file = Arc::clone(file);
                        wire.push_file(tag, file, frame.request.offset, frame.request.length);
                    }
                    Way::Pool | Way::Image(_) => wire.push(tag, frame.data.clone()),
                }
                sending.insert(tag, frame);
            }
            // A line that does not take it has ended, which the next look finds.
            Line::Rma(line) if read => _ = line.store(frame),
            _ => {
                self.ended(*frame);
                let _ = self.say(|to| frame::reply(to, tag, status, 0));
            }
        }
    }

    fn ended(&mut self, frame: Frame) {
        self.server.ended(&frame.request);
        self.pool.give_back(frame.loan);
    }

    /// Sends answers, as many as the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Fault> {
        match &mut self.line {
            Line::Wire(line) => line.wire.flush()?,
            Line::Rma(line) => return Ok(line.rma.flush()?),
        }
        while let Line::Wire(line) = &mut self.line
            && let Some(tag) = line.wire.sent_data()
        {
            if let Some(frame) = line.sending.remove(&tag) {
                self.ended(*frame);
            }
        }
        Ok(())
    }
}

/// What a client may say.
enum Said {
    Request(u64, remote::Request),
    Ping(u64),
    Nonsense,
}

fn said(item: Item<'_>) -> Said {
    match item {
        Item::Request { tag, request, .. } => Said::Request(tag, request),
        Item::Ping(tag) => Said::Ping(tag),
        _ => Said::Nonsense,
    }
}

/// There is memory for all that the server lets begin.
fn no_memory() -> Fault {
    Fault { vanished: false, reason: "no memory".to_owned() }
}

/// Memory for all that a client may have under way.
fn pool(opened: &Opened) -> io::Result<Pool> {
    let bytes = u64::from(opened.bytes.max(MAX_DATA));
    Pool::new(bytes + u64::from(opened.requests) * PAGE)
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Fault {
        Fault { vanished: false, reason: error.to_string() }
    }
}
