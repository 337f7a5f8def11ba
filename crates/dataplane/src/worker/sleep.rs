//! What a worker sleeps on: its mailbox, the kicks of its TX queues, its TAP queues, the kicks of
//! its disks and the ring for their files.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{Timespec, epoll};
use switch::PortId;
use sys::EventFd;

use crate::disk::DiskId;

/// Events fetched at once; more wait for the next call.
const EVENTS: usize = 64;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    /// A command was posted.
    Mailbox,
    /// The guest kicked a TX queue: port and queue pair.
    Kick(PortId, u16),
    /// A TAP queue is readable: port and queue.
    Tap(PortId, u16),
    /// The guest kicked a queue of a disk, or something happened on a connection that is one.
    DiskKick(DiskId, u16),
    /// The ring has completions.
    Ring,
    /// Something has arrived on a disk's connection to its store, or there is room.
    Link(DiskId),
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, port, index) = match self {
            Self::Mailbox => (0u64, 0, 0),
            Self::Kick(port, index) => (1, port.0, index),
            Self::Tap(port, index) => (2, port.0, index),
            Self::DiskKick(disk, index) => (3, disk.0, index),
            Self::Ring => (4, 0, 0),
            Self::Link(disk) => (5, disk.0, 0),
        };
        kind << 32 | u64::from(port) << 16 | u64::from(index)
    }

    fn decode(data: u64) -> Self {
        let (port, index) = (PortId((data >> 16) as u16), data as u16);
        match data >> 32 {
            1 => Self::Kick(port, index),
            2 => Self::Tap(port, index),
            3 => Self::DiskKick(DiskId(port.0), index),
            4 => Self::Ring,
            5 => Self::Link(DiskId(port.0)),
            _ => Self::Mailbox,
        }
    }
}

/// An epoll instance and room for its events.
#[derive(Debug)]
pub(super) struct Bed {
    epoll: OwnedFd,
    tokens: ArrayVec<Token, EVENTS>,
}

impl Bed {
    pub(super) fn new(mailbox: &EventFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, mailbox, epoll::EventData::new_u64(Token::Mailbox.encode()), flags)?;
        Ok(Self { epoll, tokens: ArrayVec::new() })
    }

    /// Wakes up for `fd` from now on.
    ///
    /// Edge-triggered: a kick is one event however often the eventfd was written, and costs no
    /// read to clear. Its counter is never read, so it never blocks the guest either.
    pub(super) fn add(&self, fd: &impl AsFd, token: Token) {
        self.add_for(fd, token, epoll::EventFlags::IN);
    }

    /// Wakes up for what arrives at a stream and for room there, from now on.
    pub(super) fn add_stream(&self, fd: &impl AsFd, token: Token) {
        self.add_for(fd, token, epoll::EventFlags::IN | epoll::EventFlags::OUT);
    }

    fn add_for(&self, fd: &impl AsFd, token: Token, what: epoll::EventFlags) {
        let flags = what | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(token.encode());
        if let Err(error) = epoll::add(&self.epoll, fd, data, flags) {
            tracing::error!(?token, %error, "cannot wait for a descriptor");
        }
    }

    /// No longer wakes up for `fd`.
    pub(super) fn remove(&self, fd: &impl AsFd) {
        if let Err(error) = epoll::delete(&self.epoll, fd) {
            tracing::debug!(%error, "a descriptor was not waited for");
        }
    }

    /// Waits until something happens, at most `limit` (`None`: as long as it takes).
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> impl Iterator<Item = Token> + '_ {
        self.tokens.clear();
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        match epoll::wait(&self.epoll, &mut room, limit.as_ref()) {
            Ok((events, _)) => {
                self.tokens.extend(events.iter().map(|event| Token::decode(event.data.u64())));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "cannot wait for descriptors"),
        }
        self.tokens.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Mailbox,
            Token::Kick(PortId(0), 0),
            Token::Kick(PortId(u16::MAX), 31),
            Token::Tap(PortId(7), u16::MAX),
            Token::DiskKick(DiskId(u16::MAX), 63),
            Token::Ring,
            Token::Link(DiskId(u16::MAX)),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
