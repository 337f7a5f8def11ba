//! A request of a guest while it is carried out.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

use disk::counters::Kind;
use disk::request::{Completion, Range};
use disk::{Command, Operation, SECTOR};
use guestmem::{Access, GuestMemory, Segments};
use remote::Status;
use virtqueue::Ticket;

use super::DiskId;
use super::pool::Loan;

/// A request, and the guest memory it has left to move: in a box from its pop to its end, as it changes hands often.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) segments: Segments,
    pub(crate) request: Request,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) disk: DiskId,
    /// The virtqueue.
    pub(super) queue: u16,
    pub(super) origin: Origin,
    pub(super) kind: Kind,
    /// Bytes it is about, for the counters.
    pub(super) bytes: u64,
    /// When its chain was popped, in nanoseconds.
    pub(super) started: u64,
    pub(super) work: Work,
    /// Where it is written past the image: to be waited for before the image is changed.
    pub(super) past_image: bool,
}

/// Where a request came from, and its answer goes.
#[derive(Debug)]
pub(super) enum Origin {
    /// A chain of a virtqueue.
    Chain(Ticket, Completion),
    /// A frame of a connection.
    Frame(Box<Frame>),
}

/// A request of another host.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(super) tag: u64,
    pub(super) request: remote::Request,
    /// Where its data is: nowhere for a read that goes another way, or before it is fetched.
    pub(super) loan: Loan,
    pub(super) data: Segments,
    pub(super) way: Way,
    /// It is not carried out, but answered with this.
    pub(super) refused: Option<Status>,
}

/// How the data of a request of another host goes between its line and the image.
#[derive(Debug)]
pub(super) enum Way {
    /// By memory of the pool.
    Pool,
    /// Between a stream and this file by itself.
    Stream(Arc<File>),
    /// It is sent from here, the image that is mapped; none: it has been.
    Image(Option<Segments>),
}

/// What is left to do.
#[derive(Debug)]
pub(super) enum Work {
    /// Move what the segments of the job have left.
    Transfer {
        access: Access,
        /// Position on the disk, in bytes.
        offset: u64,
        /// To be on stable storage at the end.
        stable: bool,
        /// It was tried at once.
        tried: bool,
    },
    /// Make everything stable.
    Sync,
    /// Clear these ranges, the first one first.
    Clear { ranges: VecDeque<Range>, zero: bool, stable: bool },
    /// Nothing: it has been done.
    Nothing,
}

impl Work {
    /// What a command asks for, and the guest memory that it is about. `None`: the memory is not
    /// what the queue was made with.
    pub(super) fn of<'m>(
        operation: &Operation<'_, 'm>,
        memory: &'m Arc<GuestMemory>,
        name: &[u8; disk::request::ID_BYTES],
    ) -> Option<(Work, Segments)> {
        let none = || Segments::new(memory);
        let transfer = |access, sector: u64, stable| Work::Transfer {
            access,
            offset: sector * SECTOR,
            stable,
            tried: false,
        };
        Some(match &operation.command {
            Command::Read { sector, data } => {
                let segments = Segments::of(memory, data.segments())?;
                (transfer(Access::Read, *sector, false), segments)
            }
            Command::Write { sector, data, stable } => {
                let segments = Segments::of(memory, data.segments())?;
                (transfer(Access::Write, *sector, *stable), segments)
            }
            Command::Flush => (Work::Sync, none()),
            Command::Discard { ranges } => {
                let ranges = ranges.iter().copied().collect();
                (Work::Clear { ranges, zero: false, stable: false }, none())
            }
            Command::WriteZeroes { ranges, stable } => {
                let ranges = ranges.iter().copied().collect();
                (Work::Clear { ranges, zero: true, stable: *stable }, none())
            }
            Command::GetId { data } => {
                data.write(name);
                (Work::Nothing, none())
            }
        })
    }

    /// Notes how much was done; what is left is in it and in the segments.
    ///
    /// # Errors
    /// Nothing more can be done of it.
    pub(super) fn progress(&mut self, segments: &mut Segments, done: u64) -> io::Result<()> {
        match self {
            // A file that is shorter than the disk, or on a file system that is full.
            Work::Transfer { access: Access::Read, .. } if done == 0 => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Work::Transfer { access: Access::Write, .. } if done == 0 => {
                Err(io::ErrorKind::WriteZero.into())
            }
            Work::Transfer { offset, .. } => {
                segments.advance(done);
                *offset += done;
                Ok(())
            }
            Work::Sync => {
                *self = Work::Nothing;
                Ok(())
            }
            Work::Clear { ranges, .. } => {
                ranges.pop_front();
                Ok(())
            }
            Work::Nothing => Ok(()),
        }
    }
}
