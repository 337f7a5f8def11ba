//! A connection between a disk and a store, without waiting: frames out, bytes in.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use guestmem::{Part, Segments};
use remote::frame::{self, Item};
use remote::{MAX_CONTROL, Malformed};

use crate::conduit::Conduit;
use crate::pipe::Pipe;

/// Room for what has arrived and was not taken: any frame without its data fits.
const INPUT: usize = MAX_CONTROL as usize + frame::HEADER;
/// What is read ahead of frames while much data comes, which belongs elsewhere.
const AHEAD: usize = 512;
/// That is much data for one frame.
const MUCH: u64 = 32 << 10;
/// Data of a file from so many bytes on is worth a system call of its own.
pub const LARGE: u64 = 64 << 10;
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
    /// Tags of data that the last flush has sent.
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
    /// The same, which stays as it is until the peer has answered.
    Lent(u64, Segments),
    /// Of the reply with this tag: a part of a file.
    File(u64, FilePart),
}

#[derive(Debug)]
struct FilePart {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Out {
    fn left(&self) -> u64 {
        match self {
            Out::Own(bytes, from) => (bytes.len() - *from) as u64,
            Out::Data(_, segments) | Out::Lent(_, segments) => segments.len(),
            Out::File(_, part) => part.left,
        }
    }

    fn advance(&mut self, count: u64) {
        match self {
            Out::Own(_, from) => *from += count as usize,
            Out::Data(_, segments) | Out::Lent(_, segments) => segments.advance(count),
            Out::File(_, part) => {
                part.at += count;
                part.left -= count;
            }
        }
    }
}

/// What became of data that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// All of it is.
    All,
    /// More has to arrive.
    Missing,
    /// There is no room for more.
    Full,
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

    /// The same, but so many bytes of data are put into an empty conduit, without a copy; only if it [is
    /// plain](Wire::is_plain).
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn hold(&mut self, conduit: &mut Conduit, bytes: u64) -> Result<Held, WireError> {
        loop {
            let left = bytes.saturating_sub(conduit.held());
            if left == 0 {
                self.much = std::mem::take(&mut self.direct) > MUCH;
                return Ok(Held::All);
            }
            let arrived = self.input.get(self.start..self.end).unwrap_or_default();
            let held = if arrived.is_empty() {
                if self.skips() {
                    return Ok(Held::Missing);
                }
                self.pipe.hold(conduit, left)
            } else {
                let some = arrived.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                match conduit.copy(arrived.get(..some).unwrap_or_default()) {
                    Ok(copied) => {
                        self.start += copied;
                        continue;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if conduit.widen() {
                            continue;
                        }
                        Err(io::ErrorKind::StorageFull.into())
                    }
                    Err(error) => Err(error),
                }
            };
            match held.map_err(|error| (error.kind(), error)) {
                Ok(0) => return Err(WireError::Closed),
                Ok(count) => {
                    self.heard = true;
                    self.direct += count as u64;
                    if (count as u64) < left {
                        self.look = Look::Short;
                    }
                }
                Err((io::ErrorKind::WouldBlock, _)) => {
                    self.look = Look::Empty;
                    return Ok(Held::Missing);
                }
                Err((io::ErrorKind::StorageFull, _)) => return Ok(Held::Full),
                Err((io::ErrorKind::Interrupted, _)) => {}
                Err((_, error)) => return Err(WireError::Io(error)),
            }
        }
    }

    /// Whether data goes to the socket as it is.
    pub fn is_plain(&self) -> bool {
        self.pipe.is_plain()
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

    /// Has data sent behind all that is to be sent; [`Wire::sent_data`] tells when nobody looks at it any more.
    pub fn push(&mut self, tag: u64, data: Segments) {
        self.output.push_back(Out::Data(tag, data));
    }

    /// The same of a request's data, which stays where it is until the peer has answered: much of it is not copied, and
    /// looked at until then.
    pub fn lend(&mut self, tag: u64, data: Segments) {
        let large = data.len() >= LARGE && self.pipe.is_plain();
        self.output.push_back(if large { Out::Lent(tag, data) } else { Out::Data(tag, data) });
    }

    /// The same of a part of a file.
    pub fn push_file(&mut self, tag: u64, file: Arc<File>, at: u64, left: u64) {
        self.output.push_back(Out::File(tag, FilePart { file, at, left }));
    }

    /// Before a connection is let go of that has not answered everything: memory that was lent is another thing's by then,
    /// and is not sent any more.
    pub fn abandon(&self) {
        self.pipe.abandon();
    }

    /// Fails if the peer has given the connection up. What a peer on this machine lent is not a copy even when it has
    /// arrived: as long as this does not fail, it is still what it was when it was sent.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn check(&self) -> Result<(), WireError> {
        self.pipe.check().map_err(WireError::Io)
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// Much is not taken ([`WireError::Unread`]), or the connection cannot go on.
    pub fn flush(&mut self) -> Result<(), WireError> {
        self.sent.clear();
        loop {
            let sent = self.pipe.push().and_then(|()| self.send());
            match sent {
                Ok(None) => return Ok(()),
                Ok(Some(sent)) => self.take_off(sent as u64),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return if self.own > UNREAD { Err(WireError::Unread) } else { Ok(()) };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(FAULT) => {
                    return Err(match self.output.front() {
                        Some(Out::Data(tag, _) | Out::Lent(tag, _)) => WireError::Vanished(*tag),
                        _ => WireError::Io(error),
                    });
                }
                Err(error) => return Err(WireError::Io(error)),
            }
        }
    }

    /// Has the pipe take what is to be sent first; how much, if there is anything.
    fn send(&mut self) -> io::Result<Option<usize>> {
        let is_apart = |out: &Out| matches!(out, Out::File(..) | Out::Lent(..));
        Ok(Some(match self.output.front() {
            None => return Ok(None),
            Some(Out::File(_, part)) => {
                match self.pipe.send_file(&part.file, part.at, part.left)? {
                    // It was longer when the reply began.
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    sent => sent,
                }
            }
            Some(Out::Lent(_, segments)) => self.pipe.lend(segments)?,
            Some(_) => {
                let more = self.output.iter().any(is_apart);
                let parts = self.output.iter().map_while(|out| match out {
                    Out::Own(bytes, from) => {
                        Some(Part::Own(bytes.get(*from..).unwrap_or_default()))
                    }
                    Out::Data(_, segments) => Some(Part::Guest(segments)),
                    Out::Lent(..) | Out::File(..) => None,
                });
                self.pipe.send(parts, more)?
            }
        }))
    }

    /// Takes off what was sent.
    fn take_off(&mut self, mut count: u64) {
        while let Some(first) = self.output.front_mut() {
            let left = first.left();
            if left > count {
                first.advance(count);
                return;
            }
            count -= left;
            match self.output.pop_front() {
                Some(Out::Data(tag, _) | Out::File(tag, _)) => self.sent.push_back(tag),
                Some(Out::Lent(..)) => {}
                Some(Out::Own(bytes, _)) => self.own -= bytes.len(),
                None => {}
            }
        }
    }

    /// Whether anything has arrived since this was asked.
    pub fn heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// The tag of data that the last [flush](Wire::flush) has sent to its end, each once; nobody looks at its memory any
    /// more.
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
