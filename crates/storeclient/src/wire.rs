//! A connection to a store, without waiting: frames out, bytes in.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use remote::frame::{self, Item};
use remote::{MAX_CONTROL, Malformed};

/// Room for what has arrived and was not taken: any frame without its data fits.
const INPUT: usize = MAX_CONTROL as usize + frame::HEADER;
/// Pieces that are sent by one call.
const PIECES: usize = 64;

/// A connection, from the moment on at which requests may be sent.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: TcpStream,
    input: Box<[u8]>,
    /// What has arrived and was not taken.
    start: usize,
    end: usize,
    output: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    sent: usize,
}

#[derive(Debug)]
enum Piece {
    Frames(Vec<u8>),
    Data(Arc<[u8]>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Frames(bytes) => bytes,
            Piece::Data(bytes) => bytes,
        }
    }
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("it was closed")]
    Closed,
    #[error("it failed: {0}")]
    Io(#[from] io::Error),
    #[error("bytes came that are not of the protocol: {0}")]
    Malformed(#[from] Malformed),
    #[error("the store sent what it may not send: {0}")]
    Unexpected(&'static str),
}

/// What reading or writing a socket that does not block came to; `None`: not now.
fn now(result: io::Result<usize>) -> Result<Option<usize>, WireError> {
    match result {
        Ok(0) => Err(WireError::Closed),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Calls again if a signal came.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl Wire {
    /// A connection on which these bytes have arrived already. The socket must not block.
    pub(crate) fn new(socket: TcpStream, arrived: &[u8]) -> Wire {
        let mut input = vec![0; INPUT.max(arrived.len())].into_boxed_slice();
        let end = arrived.len();
        if let Some(room) = input.get_mut(..end) {
            room.copy_from_slice(arrived);
        }
        Wire { socket, input, start: 0, end, output: VecDeque::new(), sent: 0 }
    }

    /// The next item, if it has arrived. Data that belongs to it is to be taken next, with
    /// [`Wire::data`].
    pub(crate) fn item<T>(
        &mut self,
        take: impl FnOnce(Item<'_>) -> T,
    ) -> Result<Option<T>, WireError> {
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

    /// Moves data that has arrived to where it belongs; `filled`: bytes of it that are there, before
    /// and after. Whether that is all.
    pub(crate) fn data(&mut self, to: &mut [u8], filled: &mut usize) -> Result<bool, WireError> {
        while let Some(room) = to.get_mut(*filled..).filter(|room| !room.is_empty()) {
            let arrived = self.input.get(self.start..self.end).unwrap_or_default();
            if arrived.is_empty() {
                let Some(count) = now(again(|| (&self.socket).read(room)))? else {
                    return Ok(false);
                };
                *filled += count;
            } else {
                let count = arrived.len().min(room.len());
                for (to, from) in room.iter_mut().zip(arrived) {
                    *to = *from;
                }
                self.start += count;
                *filled += count;
            }
        }
        Ok(true)
    }

    /// Takes what has arrived, as much as there is room for; whether that was anything.
    fn fill(&mut self) -> Result<bool, WireError> {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.input.get_mut(self.end..).unwrap_or_default();
        let count = now(again(|| (&self.socket).read(room)))?;
        self.end += count.unwrap_or(0);
        Ok(count.is_some())
    }

    /// Has frames sent behind all that is to be sent.
    pub(crate) fn frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(Piece::Frames(bytes)) = self.output.back_mut() {
            write(bytes);
        } else {
            let mut bytes = Vec::new();
            write(&mut bytes);
            self.output.push_back(Piece::Frames(bytes));
        }
    }

    /// Has data sent behind all that is to be sent.
    pub(crate) fn push(&mut self, data: Arc<[u8]>) {
        self.output.push_back(Piece::Data(data));
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), WireError> {
        while !self.output.is_empty() {
            let mut skip = self.sent;
            let pieces: Vec<IoSlice<'_>> = self
                .output
                .iter()
                .take(PIECES)
                .map(|piece| {
                    let from = std::mem::take(&mut skip);
                    IoSlice::new(piece.bytes().get(from..).unwrap_or_default())
                })
                .collect();
            let Some(count) = now(again(|| (&self.socket).write_vectored(&pieces)))? else {
                return Ok(());
            };
            self.sent += count;
            while let Some(first) = self.output.front().map(|piece| piece.bytes().len())
                && first <= self.sent
            {
                self.output.pop_front();
                self.sent -= first;
            }
        }
        Ok(())
    }

    /// Whether something waits until the socket takes it.
    pub(crate) fn is_behind(&self) -> bool {
        !self.output.is_empty()
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
