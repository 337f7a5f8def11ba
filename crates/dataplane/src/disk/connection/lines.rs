//! What requests of another host come by: a stream with their data, or messages beside which data is moved.
//!
//! A [`Connection`](super::Connection) has one of them, and asks it again until nothing more is there. Here is
//! what is under way on it. An error ends the connection; the memory goes with it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::Arc;

use fabric::{Registration, Remote, Remotes, Rights};
use guestmem::{Access, Segments};
use line::{Conduit, Held, LARGE, Rma, Wire, WireError};
use remote::{Buffer, Operation};

use crate::disk::mapped::Mapped;
use crate::disk::queue::{Judge, Straight};
use crate::disk::request::{Frame, Way};

/// Bytes fetched at once within one host by a fabric that copies them, unless one request has more: what is on
/// its way then stays in the caches that both sides share (measured in docs/performance.md). Over a network,
/// nothing would be on its way from the end of one fetch to the beginning of the next.
const NEAR: u64 = 1 << 20;

/// What requests come by.
pub(super) enum Line {
    /// With their data.
    Wire(Box<Streamed>),
    /// Without: the client's memory is reached.
    Rma(Moved),
}

/// Requests with their data, in a stream.
pub(super) struct Streamed {
    pub(super) wire: Wire,
    /// A write whose data is arriving.
    arriving: Option<Arriving>,
    /// Where the data of large writes is kept until all of it is there.
    conduit: Option<Conduit>,
    /// Writes of more bytes than that it has no room for.
    most: u64,
    /// Reads whose data is being sent, by tag.
    pub(super) sending: BTreeMap<u64, Box<Frame>>,
}

/// A write of which not all has arrived.
struct Arriving {
    frame: Box<Frame>,
    /// What of its memory is not filled.
    missing: Segments,
    /// It is kept in the conduit instead.
    held: bool,
}

/// Requests whose data is moved from and to the client's memory.
pub(super) struct Moved {
    pub(super) rma: Box<Rma<Box<Frame>>>,
    /// The pool.
    memory: Registration,
    /// An image that is mapped, from which reads are sent.
    image: Option<Registration>,
    /// Writes whose data is to be fetched, the next first.
    pub(super) waiting: VecDeque<Box<Frame>>,
    /// Bytes that are being fetched, and how many may be at once.
    coming: u64,
    most: u64,
    /// Reads whose data is on its way.
    storing: usize,
    /// The fabric was asked, and all that it had is being taken.
    pub(super) asked: bool,
}

impl Line {
    /// How what a request reads or writes goes. What is short of a large read is found out before a reply begins.
    pub(super) fn way(&mut self, judge: &Judge<'_>, request: &remote::Request) -> Way {
        let remote::Request { operation, offset, length, .. } = *request;
        let large = length >= LARGE;
        if !large && !matches!((&*self, operation), (Line::Rma(_), Operation::Read)) {
            return Way::Pool;
        }
        let Some(Straight { file, mapped }) = judge.straight() else { return Way::Pool };
        let reaches = || reaches(file, offset.saturating_add(length));
        match (self, operation) {
            (Line::Wire(line), Operation::Read) if line.wire.is_plain() && reaches() => {
                Way::Stream(Arc::clone(file))
            }
            (Line::Wire(line), Operation::Write) if line.wire.is_plain() && length <= line.most => {
                Way::Stream(Arc::clone(file))
            }
            // With few bytes asking how long the file is takes too long: its pages are there.
            (Line::Rma(line), Operation::Read)
                if !line.rma.fabric().pins() && (!large || reaches()) =>
            {
                let lent = mapped.and_then(|mapped| line.lent(mapped, offset, length));
                lent.map_or(Way::Pool, |part| Way::Image(Some(part)))
            }
            _ => Way::Pool,
        }
    }
}

/// Whether a file has so many bytes.
fn reaches(file: &File, end: u64) -> bool {
    file.metadata().is_ok_and(|about| end <= about.len())
}

impl Streamed {
    /// Nothing of a request has been taken from `wire` yet.
    pub(super) fn new(wire: Wire) -> Streamed {
        let (arriving, conduit, sending) = (None, None, BTreeMap::new());
        Streamed { wire, arriving, conduit, most: u64::MAX, sending }
    }

    /// The data of a write comes next.
    pub(super) fn begin(&mut self, frame: Box<Frame>) {
        let alone = matches!(frame.way, Way::Stream(_));
        if alone && self.conduit.is_none() {
            self.conduit = Conduit::new().ok();
        }
        let held = alone && self.conduit.is_some();
        self.arriving = Some(Arriving { missing: frame.data.clone(), frame, held });
    }

    /// Whether the data of a write has to come before anything else.
    pub(super) fn expects(&self) -> bool {
        self.arriving.is_some()
    }

    /// The write whose data was expected, if all of it is there, and how many of its bytes are in the file already; the others
    /// are in its memory.
    ///
    /// Nothing of a write is in the file before all of it has come, nor if the client has given the connection up by then: memory
    /// that a client on this machine lent may hold something else after that.
    pub(super) fn arrived(
        &mut self,
        judge: &Judge<'_>,
    ) -> Result<Option<(Box<Frame>, u64)>, WireError> {
        let Some(Arriving { frame, missing, held }) = &mut self.arriving else { return Ok(None) };
        let mut stored = 0;
        if let Some(conduit) = self.conduit.as_mut().filter(|_| *held) {
            let (offset, length) = (frame.request.offset, frame.request.length);
            match self.wire.hold(conduit, length)? {
                Held::Missing => return Ok(None),
                Held::All => {
                    self.wire.check()?;
                    if let Way::Stream(file) = &frame.way {
                        // It may be another image by now.
                        let image = judge.straight().filter(|image| Arc::ptr_eq(image.file, file));
                        stored = store(conduit, file, image.and_then(|image| image.mapped), offset);
                    }
                    missing.advance(stored);
                }
                Held::Full => self.most = conduit.held(),
            }
            *held = false;
            conduit.take(missing).map_err(WireError::Io)?;
        }
        if !missing.is_empty() && !self.wire.data(missing)? {
            return Ok(None);
        }
        if frame.request.length >= LARGE {
            // It was copied from what the client lent.
            self.wire.check()?;
        }
        Ok(self.arriving.take().map(|arriving| (arriving.frame, stored)))
    }
}

/// Writes what a conduit holds to a file; how much of it that took. What it does not take is for the others who write
/// to it to find out why.
fn store(conduit: &mut Conduit, file: &File, mapped: Option<&Mapped>, offset: u64) -> u64 {
    let length = conduit.held();
    if let Some(mut to) = mapped.and_then(|mapped| mapped.segments(offset, length)) {
        // What cannot be had of the mapping is still held.
        let _ = conduit.take(&mut to);
    }
    while conduit.held() > 0
        && let Ok(_) = conduit.store(file, offset + length - conduit.held())
    {}
    let stored = length - conduit.held();
    if let Some(mapped) = mapped {
        mapped.learn(Access::Write, offset, stored);
    }
    stored
}

impl Moved {
    /// Nothing was said on `rma` yet; `memory`: the pool, where data is moved from and to; `near`: the client is on
    /// this host.
    pub(super) fn new(rma: Rma<Box<Frame>>, memory: Registration, near: bool) -> Moved {
        let most = if near && !rma.fabric().pins() { NEAR } else { u64::MAX };
        Moved {
            rma: Box::new(rma),
            memory,
            image: None,
            waiting: VecDeque::new(),
            coming: 0,
            most,
            storing: 0,
            asked: false,
        }
    }

    /// Asks the fabric what has happened: once for all that it then has.
    pub(super) fn ask(&mut self) -> Result<(), WireError> {
        if self.image.take_if(|image| image.memory().faulted()).is_some() && self.storing > 0 {
            // Zeroes may be where some of them is sent from.
            return Err(WireError::Unexpected("an image that is shorter than it was"));
        }
        self.rma.flush()?;
        // What came before the end is answered to nobody.
        self.rma.poll()?;
        if self.rma.told().is_some() {
            return Err(WireError::Unexpected("a number that nobody asked for"));
        }
        self.asked = true;
        Ok(())
    }

    /// The next write whose data is to be fetched now.
    pub(super) fn next(&mut self) -> Option<Box<Frame>> {
        self.waiting.pop_front_if(|frame| {
            self.coming == 0 || self.coming.saturating_add(frame.request.length) <= self.most
        })
    }

    /// A write whose data has come, or a read whose data is there; or will not: false.
    pub(super) fn moved(&mut self) -> Option<(Box<Frame>, bool)> {
        let (frame, result) = self.rma.moved()?;
        match frame.request.operation {
            Operation::Write => self.coming = self.coming.saturating_sub(frame.request.length),
            _ => self.storing = self.storing.saturating_sub(1),
        }
        Some((frame, result.is_ok()))
    }

    /// Fetches the data of a write.
    pub(super) fn fetch(&mut self, frame: Box<Frame>) -> Result<(), WireError> {
        let local = self.memory.local(frame.data.clone()).ok_or(ELSEWHERE)?;
        self.coming += frame.request.length;
        self.rma.read(local, remotes(&frame), frame)
    }

    /// A part of an image, to be sent from there without a copy.
    fn lent(&mut self, image: &Mapped, offset: u64, length: u64) -> Option<Segments> {
        let segments = image.segments(offset, length)?;
        let memory = segments.memory();
        if self.image.as_ref().is_none_or(|image| !Arc::ptr_eq(image.memory(), memory)) {
            self.image = Some(self.rma.fabric().register(memory, Rights::Local).ok()?);
        }
        Some(segments)
    }

    /// Brings the data of a read.
    pub(super) fn store(&mut self, mut frame: Box<Frame>) -> Result<(), WireError> {
        let (memory, data) = match &mut frame.way {
            Way::Image(part) => (self.image.as_ref(), part.take()),
            Way::Pool | Way::Stream(_) => (Some(&self.memory), Some(frame.data.clone())),
        };
        let local = memory.zip(data).and_then(|(memory, data)| memory.local(data));
        let local = local.ok_or(ELSEWHERE)?;
        self.storing += 1;
        if self.rma.fabric().delivers() {
            self.rma.deliver(local, remotes(&frame), frame.tag as u32, frame)
        } else {
            self.rma.write(local, remotes(&frame), frame)
        }
    }
}

const ELSEWHERE: WireError = WireError::Unexpected("memory that is not registered");

fn remotes(frame: &Frame) -> Remotes {
    let one = |&Buffer { address, key, length }: &Buffer| Remote { address, key, length };
    let mut remotes = Remotes::new();
    for buffer in &frame.request.buffers {
        remotes.push(one(buffer));
    }
    remotes
}
