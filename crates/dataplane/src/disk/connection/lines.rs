//! What requests of another host come by: a stream with their data, or messages beside which data is moved.
//!
//! A [`Connection`](super::Connection) has one of them, and asks it again until nothing more is there. Here is
//! what is under way on it. An error ends the connection; the memory goes with it.

use std::collections::BTreeMap;
use std::fs::File;

use fabric::{Registration, Remote};
use guestmem::Segments;
use line::{LARGE, Rma, Wire, WireError};
use remote::{Buffer, Operation};

use crate::disk::request::Frame;

/// What requests come by.
pub(super) enum Line {
    /// With their data.
    Wire(Streamed),
    /// Without: the client's memory is reached.
    Rma(Moved),
}

/// Requests with their data, in a stream.
pub(super) struct Streamed {
    pub(super) wire: Wire,
    /// A write whose data is arriving, and what of it is missing.
    pub(super) arriving: Option<(Box<Frame>, Segments)>,
    /// Reads whose data is being sent, by tag.
    pub(super) sending: BTreeMap<u64, Box<Frame>>,
}

/// Requests whose data is moved from and to the client's memory.
pub(super) struct Moved {
    pub(super) rma: Box<Rma>,
    /// The pool.
    memory: Registration,
    /// Writes whose data is on its way, and reads, by the number of the move. Tags are the client's, who
    /// may use one twice.
    pub(super) fetching: BTreeMap<u64, Box<Frame>>,
    pub(super) storing: BTreeMap<u64, Box<Frame>>,
    next: u64,
    /// The fabric was asked, and all that it had is being taken.
    pub(super) asked: bool,
}

impl Line {
    /// Whether it sends what a request reads from a file in memory, without a copy. What is short is found out
    /// before a reply begins.
    pub(super) fn sends(&self, file: &File, request: &remote::Request) -> bool {
        let Line::Wire(Streamed { wire, .. }) = self else { return false };
        let remote::Request { operation, offset, length, .. } = *request;
        let end = offset.saturating_add(length);
        operation == Operation::Read
            && length >= LARGE
            && wire.is_plain()
            && file.metadata().is_ok_and(|about| end <= about.len())
    }
}

impl Streamed {
    /// Nothing of a request has been taken from `wire` yet.
    pub(super) fn new(wire: Wire) -> Streamed {
        Streamed { wire, arriving: None, sending: BTreeMap::new() }
    }
}

impl Moved {
    /// Nothing was said on `rma` yet; `memory`: the pool, where data is moved from and to.
    pub(super) fn new(rma: Rma, memory: Registration) -> Moved {
        let (fetching, storing) = (BTreeMap::new(), BTreeMap::new());
        Moved { rma: Box::new(rma), memory, fetching, storing, next: 0, asked: false }
    }

    /// Asks the fabric what has happened: once for all that it then has.
    pub(super) fn ask(&mut self) -> Result<(), WireError> {
        self.rma.flush()?;
        // What came before the end is answered to nobody.
        self.rma.poll()?;
        if self.rma.told().is_some() {
            return Err(WireError::Unexpected("a number that nobody asked for"));
        }
        self.asked = true;
        Ok(())
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Fetches the data of a write.
    pub(super) fn fetch(&mut self, frame: Box<Frame>) -> Result<(), WireError> {
        let local = self.memory.local(frame.data.clone()).ok_or(ELSEWHERE)?;
        let number = self.number();
        self.rma.read(local, remotes(&frame), number)?;
        self.fetching.insert(number, frame);
        Ok(())
    }

    /// Brings the data of a read.
    pub(super) fn store(&mut self, frame: Box<Frame>) -> Result<(), WireError> {
        let local = self.memory.local(frame.data.clone()).ok_or(ELSEWHERE)?;
        let (number, told) = (self.number(), frame.tag as u32);
        if self.rma.fabric().delivers() {
            self.rma.deliver(local, remotes(&frame), told, number)?;
        } else {
            self.rma.write(local, remotes(&frame), number)?;
        }
        self.storing.insert(number, frame);
        Ok(())
    }
}

const ELSEWHERE: WireError = WireError::Unexpected("memory that is not the pool's");

fn remotes(frame: &Frame) -> Vec<Remote> {
    let one = |&Buffer { address, key, length }: &Buffer| Remote { address, key, length };
    frame.request.buffers.iter().map(one).collect()
}
