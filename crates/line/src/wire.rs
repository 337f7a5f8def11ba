//! A connection between a disk and a store, without waiting: frames out, bytes in.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use guestmem::{Part, Segments};
use remote::frame::{self, Item};
use remote::{MAX_CONTROL, Malformed};

use crate::pipe::Pipe;

/// Room for what has arrived and was not taken: any frame without its data fits.
const INPUT: usize = MAX_CONTROL as usize + frame::HEADER;
/// What is read ahead of frames while much data comes, which belongs elsewhere.
const AHEAD: usize = 512;
/// That is much data for one frame.
const MUCH: u64 = 32 << 10;
/// Frames that are collected before memory for more is taken.
const OUTPUT: usize = 4096;
/// Most bytes of frames, without data, that wait for a peer to read: more than all it may have under way
/// comes to.
const UNREAD: usize = 64 << 10;
/// Memory is not there.
const FAULT: i32 = rustix::io::Errno::FAULT.raw_os_error();

/// A connection, from the moment on at which requests may be sent.
#[derive(Debug)]
pub struct Wire {
    pipe: Pipe,
    input: Box<[u8]>,
    /// What has arrived and was not taken.
    start: usize,
    end: usize,
    output: VecDeque<Out>,
    /// Bytes of frames in it.
    own: usize,
    /// Tags of data that was sent, until somebody asks.
    sent: VecDeque<u64>,
    /// Something has arrived since somebody asked.
    heard: bool,
    /// Bytes of the data that is being taken that went to their place at once.
    direct: u64,
    /// Much did.
    much: bool,
    /// What the socket said last.
    look: Look,
}

/// What is known of what has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The socket may have something.
    Unknown,
    /// It gave less than there was room for: whoever asks next is told that there is nothing, without asking the
    /// socket again. The peer may have ended all the same.
    Short,
    /// That was told.
    Skipped,
    /// It had nothing.
    Empty,
}

#[derive(Debug)]
enum Out {
    /// From there on.
    Own(Vec<u8>, usize),
    /// Of the request or reply with this tag.
    Data(u64, Segments),
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// By the peer.
    #[error("it was closed")]
    Closed,
    /// The socket says so.
    #[error("it failed: {0}")]
    Io(io::Error),
    /// What came is no frame.
    #[error("bytes came that are not of the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// A frame that may not come, or not now.
    #[error("the peer sent what it may not send: {0}")]
    Unexpected(&'static str),
    /// Too much waits for the peer.
    #[error("the peer does not read what it is sent")]
    Unread,
    /// The memory of what has this tag has vanished, and something else cannot be sent in its place.
    #[error("memory has vanished")]
    Vanished(u64),
    /// The fabric says so.
    #[error("the fabric: {0}")]
    Fabric(fabric::Error),
}

impl Wire {
    /// A connection on which these bytes have arrived already.
    pub fn new(pipe: Pipe, arrived: &[u8]) -> Wire {
        let mut input = vec![0; INPUT.max(arrived.len())].into_boxed_slice();
        let end = arrived.len();
        if let Some(room) = input.get_mut(..end) {
            room.copy_from_slice(arrived);
        }
        let (output, sent) = (VecDeque::new(), VecDeque::new());
        Wire {
            pipe,
            input,
            start: 0,
            end,
            output,
            own: 0,
            sent,
            heard: true,
            direct: 0,
            much: false,
            look: Look::Unknown,
        }
    }

    /// The descriptor, to wait for.
    pub fn socket(&self) -> Arc<TcpStream> {
        self.pipe.socket()
    }

    /// The next item, if it has arrived. Data that belongs to it is to be taken next, with
    /// [`Wire::data`].
    pub fn item<T>(&mut self, take: impl FnOnce(Item<'_>) -> T) -> Result<Option<T>, WireError> {
        loop {
            let arrived = self.input.get(self.start..self.end).unwrap_or_default();
            if let Some((item, used)) = frame::parse(arrived)? {
                let taken = take(item);
                self.start += used;
                return Ok(Some(taken));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Moves data that has arrived to the first of these bytes, which are taken off; whether that was
    /// all of them.
    ///
    /// # Errors
    /// [`WireError::Vanished`] with tag 0: the memory is not there any more.
    pub fn data(&mut self, to: &mut Segments) -> Result<bool, WireError> {
        while !to.is_empty() {
            let arrived = self.input.get(self.start..self.end).unwrap_or_default();
            if !arrived.is_empty() {
                let copied = to.copy_from(arrived);
                to.advance(copied as u64);
                self.start += copied;
                continue;
            }
            if !self.pipe.is_plain() {
                if !self.fill()? {
                    return Ok(false);
                }
                continue;
            }
            if self.skips() {
                return Ok(false);
            }
            match self.pipe.receive(to) {
                Ok(0) => return Err(WireError::Closed),
                Ok(count) => {
                    self.heard = true;
                    to.advance(count as u64);
                    self.direct += count as u64;
                    if !to.is_empty() {
                        self.look = Look::Short;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.look = Look::Empty;
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(FAULT) => {
                    return Err(WireError::Vanished(0));
                }
                Err(error) => return Err(WireError::Io(error)),
            }
        }
        self.much = std::mem::take(&mut self.direct) > MUCH;
        Ok(true)
    }

    /// Throws away so many bytes of data that arrive, which are taken off; whether that was all.
    pub fn skip(&mut self, left: &mut u64) -> Result<bool, WireError> {
        while *left > 0 {
            let some = (*left).min((self.end - self.start) as u64);
            self.start += some as usize;
            *left -= some;
            if *left > 0 && !self.fill()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the socket need not be asked now; it is, the next time.
    fn skips(&mut self) -> bool {
        let skips = self.look == Look::Short;
        self.look = if skips { Look::Skipped } else { Look::Unknown };
        skips
    }

    /// Whether the socket has said that there is nothing, so that whatever comes now wakes up who waits for a
    /// change of its descriptor.
    pub fn may_sleep(&self) -> bool {
        self.look == Look::Empty
    }

    /// Takes what has arrived, as much as there is room for; whether that was anything.
    fn fill(&mut self) -> Result<bool, WireError> {
        if self.skips() {
            return Ok(false);
        }
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        loop {
            let end = if self.much { self.end + AHEAD } else { INPUT }.min(self.input.len());
            let room = self.input.get_mut(self.end..end).unwrap_or_default();
            // Records of TLS end where they like.
            let whole = self.pipe.is_plain().then_some(room.len());
            match self.pipe.read(room) {
                Ok(0) => return Err(WireError::Closed),
                Ok(count) => {
                    self.end += count;
                    self.heard = true;
                    if whole.is_some_and(|room| count < room) {
                        self.look = Look::Short;
                    }
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.look = Look::Empty;
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(WireError::Io(error)),
            }
        }
    }

    /// Has frames sent behind all that is to be sent.
    pub fn frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(Out::Own(bytes, _)) = self.output.back_mut() {
            let before = bytes.len();
            write(bytes);
            self.own += bytes.len() - before;
        } else {
            let mut bytes = Vec::with_capacity(OUTPUT);
            write(&mut bytes);
            self.own += bytes.len();
            self.output.push_back(Out::Own(bytes, 0));
        }
    }

    /// Has data sent behind all that is to be sent.
    pub fn push(&mut self, tag: u64, data: Segments) {
        self.output.push_back(Out::Data(tag, data));
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// Much is not taken ([`WireError::Unread`]), or the connection cannot go on.
    pub fn flush(&mut self) -> Result<(), WireError> {
        loop {
            let Some(first) = self.output.front() else {
                return match self.pipe.push() {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                        Err(WireError::Io(error))
                    }
                    _ => Ok(()),
                };
            };
            let vanishes = match first {
                Out::Data(tag, _) => Some(*tag),
                Out::Own(..) => None,
            };
            let parts = self.output.iter().map(|out| match out {
                Out::Own(bytes, from) => Part::Own(bytes.get(*from..).unwrap_or_default()),
                Out::Data(_, segments) => Part::Guest(segments),
            });
            match self.pipe.send(parts) {
                Ok(sent) => self.take_off(sent as u64),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return if self.own > UNREAD { Err(WireError::Unread) } else { Ok(()) };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(FAULT) => {
                    return Err(vanishes.map_or(WireError::Io(error), WireError::Vanished));
                }
                Err(error) => return Err(WireError::Io(error)),
            }
        }
    }

    /// Takes off what was sent.
    fn take_off(&mut self, mut count: u64) {
        while let Some(first) = self.output.front_mut() {
            let left = match first {
                Out::Own(bytes, from) => (bytes.len() - *from) as u64,
                Out::Data(_, segments) => segments.len(),
            };
            if left > count {
                match first {
                    Out::Own(_, from) => *from += count as usize,
                    Out::Data(_, segments) => segments.advance(count),
                }
                return;
            }
            count -= left;
            match self.output.pop_front() {
                Some(Out::Data(tag, _)) => self.sent.push_back(tag),
                Some(Out::Own(bytes, _)) => self.own -= bytes.len(),
                None => {}
            }
        }
    }

    /// Whether anything has arrived since this was asked.
    pub fn heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// The tag of data that was sent since this was asked; nobody looks at its memory any more.
    pub fn sent_data(&mut self) -> Option<u64> {
        self.sent.pop_front()
    }

    /// Whether something waits until the socket takes it.
    pub fn is_behind(&self) -> bool {
        !self.output.is_empty() || self.pipe.is_behind()
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
