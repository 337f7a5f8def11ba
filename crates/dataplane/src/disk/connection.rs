//! A connection from another host, on which an image is open.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use disk::SECTOR;
use disk::counters::Kind;
use disk::request::Range;
use guestmem::{Access, Segments};
use remote::control::Opened;
use remote::frame::{self, Item};
use remote::{MAX_DATA, Operation, Server, Status};

use super::pool::Pool;
use super::queue::{Fault, Judge, Popped};
use super::request::{Frame, Job, Origin, Request, Work};
use super::wire::{Wire, WireError};

/// Looks that found nothing before the socket has to say that there is something.
const LOOKS: u32 = 64;
/// What a request takes of the pool beside its bytes, at most.
const PAGE: u64 = 4096;

/// An image that is open on a connection.
pub(crate) struct Connection {
    wire: Wire,
    server: Server,
    pool: Pool,
    /// A write whose data is arriving, and what of it is missing.
    arriving: Option<(Box<Frame>, Segments)>,
    /// Reads whose data is being sent, by tag.
    sending: BTreeMap<u64, Box<Frame>>,
    /// Looks since something was found.
    looks: u32,
}

impl Connection {
    /// The client was told so much of the image; `write`: it may write.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new(wire: Wire, opened: Opened, write: bool) -> io::Result<Connection> {
        let bytes = u64::from(opened.bytes.max(MAX_DATA));
        let pool = Pool::new(bytes + u64::from(opened.requests) * PAGE)?;
        Ok(Connection {
            wire,
            server: Server::new(opened, write),
            pool,
            arriving: None,
            sending: BTreeMap::new(),
            looks: 0,
        })
    }

    pub(super) fn socket(&self) -> Arc<TcpStream> {
        self.wire.socket()
    }

    /// Whether a look may find something: one was found lately, or the socket said so.
    pub(super) fn ready(&self) -> bool {
        self.looks < LOOKS
    }

    /// The socket has something, or room.
    pub(super) fn kicked(&mut self) {
        self.looks = 0;
    }

    /// The socket tells about everything that comes after the last look.
    pub(super) fn arm(&mut self) -> bool {
        self.looks = LOOKS;
        false
    }

    pub(super) fn pop(&mut self, judge: &Judge<'_>) -> Result<Popped, Fault> {
        self.looks += 1;
        if self.wire.is_behind() {
            self.flush()?;
        }
        loop {
            if let Some((_, missing)) = &mut self.arriving {
                if !self.wire.data(missing)? {
                    return Ok(Popped::Nothing);
                }
                if let Some((frame, _)) = self.arriving.take() {
                    return Ok(self.popped(frame, judge));
                }
            }
            let next = self.wire.item(|item| match item {
                Item::Request { tag, request, .. } => Some(Ok((tag, request))),
                Item::Ping(tag) => Some(Err(tag)),
                _ => None,
            });
            let (tag, request) = match next? {
                None => return Ok(Popped::Nothing),
                Some(Some(Ok(request))) => request,
                Some(Some(Err(tag))) => {
                    self.looks = 0;
                    self.wire.frame(|bytes| frame::pong(bytes, tag));
                    return Ok(Popped::Answered);
                }
                Some(None) => return Err(WireError::Unexpected("neither request nor ping").into()),
            };
            let excess = |excess: remote::Excess| Fault {
                vanished: false,
                reason: format!("too-much: {excess}"),
            };
            let may = self.server.begins(&request).map_err(excess)?;
            let data = request.operation == Operation::Write;
            let bytes = if request.operation.moves() { request.length } else { 0 };
            let Some((loan, segments)) = self.pool.take(bytes) else {
                // There is memory for all that the server lets begin.
                return Err(Fault { vanished: false, reason: "no memory".to_owned() });
            };
            let frame = Box::new(Frame { tag, request, loan, data: segments, refused: may.err() });
            if data {
                let missing = frame.data.clone();
                self.arriving = Some((frame, missing));
            } else {
                return Ok(self.popped(frame, judge));
            }
        }
    }

    /// A request that is there with its data.
    fn popped(&mut self, frame: Box<Frame>, judge: &Judge<'_>) -> Popped {
        self.looks = 0;
        if let Some(status) = frame.refused {
            self.answer(frame, status);
            return Popped::Answered;
        }
        let remote::Request { operation, stable, unmap, offset, length, .. } = frame.request;
        let transfer = |access| Work::Transfer { access, offset, stable, tried: false };
        let clear = |zero| {
            let sectors = (length / SECTOR) as u32;
            let range = Range { sector: offset / SECTOR, sectors, unmap };
            Work::Clear { ranges: VecDeque::from([range]), zero, stable }
        };
        let (kind, work) = match operation {
            Operation::Read => (Kind::Read, transfer(Access::Read)),
            Operation::Write => (Kind::Write, transfer(Access::Write)),
            Operation::Flush => (Kind::Flush, Work::Sync),
            Operation::Discard => (Kind::Discard, clear(false)),
            Operation::WriteZeroes => (Kind::WriteZeroes, clear(true)),
        };
        let segments = frame.data.clone();
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
        Popped::Job(Job { segments, request })
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
        let bytes = if read { frame.request.length as u32 } else { 0 };
        self.wire.frame(|to| frame::reply(to, tag, status, bytes));
        if read {
            self.wire.push(tag, frame.data.clone());
            self.sending.insert(tag, frame);
        } else {
            self.ended(*frame);
        }
    }

    fn ended(&mut self, frame: Frame) {
        self.server.ended(&frame.request);
        self.pool.give_back(frame.loan);
    }

    /// Sends answers, as many as the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Fault> {
        self.wire.flush()?;
        while let Some(tag) = self.wire.sent_data() {
            if let Some(frame) = self.sending.remove(&tag) {
                self.ended(*frame);
            }
        }
        Ok(())
    }
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Fault {
        Fault { vanished: false, reason: error.to_string() }
    }
}
