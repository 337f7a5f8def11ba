//! A queue of a disk on its worker: requests of a guest's virtqueue, or of a connection from
//! another host.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use disk::config::Rules;
use sys::EventFd;
use tokio::sync::oneshot;

use super::Disk;
use super::connection::Connection;
use super::file::Manners;
use super::mapped::Mapped;
use super::request::{Job, Request};
use super::ring::Ring;

/// A running queue of a disk.
pub(crate) struct LiveQueue {
    pub(super) source: Source,
    pub(crate) enabled: bool,
    /// Its source lied; it is not looked at any more.
    pub(super) faulted: bool,
    /// Popped, and not ended.
    pub(super) in_flight: usize,
    /// Waits until this time for the disk's limits; nothing is popped before.
    pub(super) held: Option<(u64, Box<Job>)>,
    /// Ended since who asked was told last.
    pub(super) untold: usize,
    /// Who waits for it to be quiet.
    pub(super) stopping: Option<oneshot::Sender<u32>>,
}

/// Where requests come from, and answers go.
pub(super) enum Source {
    /// A guest.
    Ring(Box<Ring>),
    /// Another host.
    Connection(Box<Connection>),
}

/// What a pop gave.
pub(super) enum Popped {
    Nothing,
    /// Something that was answered at once: a request that makes no sense, or a question.
    Answered,
    Job(Box<Job>),
}

/// A source that cannot be gone on with.
pub(super) struct Fault {
    /// Its memory has vanished.
    pub(super) vanished: bool,
    pub(super) reason: String,
}

/// What a request is judged by.
pub(super) struct Judge<'d> {
    pub(super) disk: &'d Disk,
    pub(super) rules: &'d Rules,
    pub(super) queue: usize,
    pub(super) now: u64,
    /// The image is this file, of which all may be used at once.
    pub(super) file: Option<(&'d Arc<File>, &'d Manners)>,
}

impl<'d> Judge<'d> {
    /// The image, if it is a file that is known to be in memory.
    pub(super) fn straight(&self) -> Option<Straight<'d>> {
        let (file, manners) = self.file?;
        manners.in_memory(file).map(|mapped| Straight { file, mapped })
    }
}

/// A file in memory, of which much is sent without a copy.
#[derive(Clone, Copy)]
pub(super) struct Straight<'d> {
    pub(super) file: &'d Arc<File>,
    pub(super) mapped: Option<&'d Mapped>,
}

impl LiveQueue {
    fn new(source: Source, enabled: bool) -> LiveQueue {
        LiveQueue {
            source,
            enabled,
            faulted: false,
            in_flight: 0,
            held: None,
            untold: 0,
            stopping: None,
        }
    }

    /// A virtqueue that has just been made.
    pub(crate) fn ring(ring: Ring, enabled: bool) -> LiveQueue {
        LiveQueue::new(Source::Ring(Box::new(ring)), enabled)
    }

    /// A connection on which an image has just been opened.
    pub(crate) fn connection(connection: Connection) -> LiveQueue {
        LiveQueue::new(Source::Connection(Box::new(connection)), true)
    }

    /// Whether a pop may find something that may be taken.
    pub(super) fn ready(&self) -> bool {
        self.enabled
            && !self.faulted
            && self.held.is_none()
            && self.stopping.is_none()
            && match &self.source {
                Source::Ring(ring) => ring.ready(),
                Source::Connection(connection) => connection.ready(),
            }
    }

    /// Whether memory of it has vanished.
    pub(super) fn vanished(&self) -> bool {
        match &self.source {
            Source::Ring(ring) => ring.vanished(),
            Source::Connection(_) => false,
        }
    }

    /// The next request.
    pub(super) fn pop(&mut self, judge: &Judge<'_>) -> Result<Popped, Fault> {
        let popped = match &mut self.source {
            Source::Ring(ring) => ring.pop(judge),
            Source::Connection(connection) => connection.pop(judge),
        };
        match popped {
            Ok(Popped::Job(_)) => self.in_flight += 1,
            Ok(Popped::Answered) => self.untold += 1,
            Ok(Popped::Nothing) | Err(_) => {}
        }
        popped
    }

    /// Wants to be woken up for more. Returns whether requests are waiting already.
    pub(super) fn arm(&mut self) -> bool {
        if self.faulted || self.stopping.is_some() {
            return false;
        }
        let waiting = match &mut self.source {
            Source::Ring(ring) => ring.arm(),
            Source::Connection(connection) => connection.arm(),
        };
        waiting && self.ready()
    }

    /// No longer wants to be woken up.
    pub(super) fn disarm(&mut self) {
        if let Source::Ring(ring) = &mut self.source
            && !self.faulted
        {
            ring.disarm();
        }
    }

    /// Gives an answer, which is seen after a [`LiveQueue::publish`] at the latest.
    pub(super) fn complete(&mut self, request: Request, result: &io::Result<()>) {
        match &mut self.source {
            Source::Ring(ring) => ring.complete(request, result),
            Source::Connection(connection) => connection.complete(request, result),
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        self.untold += 1;
    }

    /// Shows answers that were given.
    pub(super) fn publish(&mut self) {
        if let Source::Ring(ring) = &mut self.source {
            ring.publish();
        }
    }

    /// Tells who asked that there are answers; by which interrupt, if one is wanted.
    pub(super) fn tell(&mut self) -> Result<Option<&EventFd>, Fault> {
        self.untold = 0;
        match &mut self.source {
            Source::Ring(ring) => Ok(ring.tell()),
            Source::Connection(connection) => connection.flush().map(|()| None),
        }
    }

    /// Where the next one would begin, once it has stopped.
    pub(super) fn position(&mut self) -> u32 {
        match &mut self.source {
            Source::Ring(ring) => ring.position(),
            Source::Connection(_) => 0,
        }
    }

    /// By what it interrupts.
    pub(super) fn call(&self) -> Option<&EventFd> {
        match &self.source {
            Source::Ring(ring) => ring.call.as_deref(),
            Source::Connection(_) => None,
        }
    }

    /// Whether another host was heard lately, and may be heard again soon.
    pub(super) fn is_far(&self) -> bool {
        matches!(&self.source, Source::Connection(connection) if connection.ready())
    }

    /// Whether nothing wakes its worker up.
    pub(super) fn is_silent(&self) -> bool {
        match &self.source {
            Source::Ring(ring) => ring.kick.is_none(),
            Source::Connection(_) => false,
        }
    }

    /// See [`Connection::look_around`]; a ring tells itself.
    pub(super) fn look_around(&mut self) -> bool {
        match &mut self.source {
            Source::Ring(_) => false,
            Source::Connection(connection) => connection.look_around(),
        }
    }

    /// Something has happened there.
    pub(super) fn kicked(&mut self) {
        if let Source::Connection(connection) = &mut self.source {
            connection.kicked();
        }
    }

    /// What wakes its worker up.
    pub(crate) fn waker(&self) -> Option<Waker> {
        match &self.source {
            Source::Ring(ring) => ring.kick.clone().map(Waker::Kick),
            Source::Connection(connection) => connection.waker(),
        }
    }
}

/// What wakes a worker up.
#[derive(Debug)]
pub(crate) enum Waker {
    /// A guest's kicks.
    Kick(Arc<EventFd>),
    /// What arrives at a socket, and room for what is to be sent.
    Stream(Arc<std::net::TcpStream>),
    /// What happens on a fabric.
    Fabric(OwnedFd),
}

impl fmt::Debug for LiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveQueue").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}
