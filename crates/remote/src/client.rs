//! What a disk remembers of its requests to a store, through any number of connections.

use std::collections::VecDeque;

use super::control::Opened;
use super::frame::{Operation, Request, Status};

/// A request that has not been answered, and what it is for.
#[derive(Debug)]
pub struct Unanswered<J> {
    /// What is asked for, as it was given: without handle and buffers.
    pub request: Request,
    /// Whatever its owner wants back with the answer.
    pub job: J,
    /// Writes that had ended when it was sent, for a flush.
    covers: u64,
}

impl<J> Unanswered<J> {
    fn moves(&self) -> u64 {
        if self.request.operation.moves() { self.request.length } else { 0 }
    }

    fn overlaps(&self, other: &Request) -> bool {
        let end = |request: &Request| request.offset.saturating_add(request.length);
        let mine = &self.request;
        mine.operation.changes() && mine.offset < end(other) && other.offset < end(mine)
    }
}

/// The requests of one disk.
///
/// They are [pushed](Client::push) at any time, and [sent](Client::send) while there is a connection,
/// in the order they were pushed. One that changes bytes which one under way changes waits for it,
/// and all behind it too. What was not answered when a connection ended is sent again on the next.
#[derive(Debug)]
pub struct Client<J> {
    waiting: VecDeque<Unanswered<J>>,
    /// With their tags, in the order they were sent.
    sent: VecDeque<(u64, Unanswered<J>)>,
    /// Tags are never used again: a late answer is not taken for another one.
    next_tag: u64,
    limits: Option<Limits>,
    /// Of the reads and writes that were sent.
    bytes: u64,
    /// What changed the image and was answered; and how much of it is on stable storage.
    changes: u64,
    stable: u64,
    /// Which start of the store's machine was spoken to last.
    boot: Option<String>,
    /// That machine started anew with changes that were not on stable storage: they may be gone.
    lost: bool,
}

/// What a connection allows.
#[derive(Debug)]
struct Limits {
    handle: u32,
    requests: usize,
    bytes: u64,
}

impl<J> Default for Client<J> {
    fn default() -> Self {
        Client {
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            next_tag: 0,
            limits: None,
            bytes: 0,
            changes: 0,
            stable: 0,
            boot: None,
            lost: false,
        }
    }
}

impl<J> Client<J> {
    /// The image is open on a new connection, in this start of the store's machine.
    pub fn connected(&mut self, opened: &Opened, boot: &str) {
        let other = self.boot.as_deref().is_some_and(|before| before != boot);
        self.lost |= other && !opened.durable && self.changes > self.stable;
        self.boot = Some(boot.to_owned());
        self.limits = Some(Limits {
            handle: opened.handle,
            requests: usize::from(opened.requests).max(1),
            bytes: opened.bytes.into(),
        });
    }

    /// The connection has ended: everything that was sent and not answered is sent again.
    pub fn disconnected(&mut self) {
        self.limits = None;
        self.bytes = 0;
        while let Some((_, request)) = self.sent.pop_back() {
            self.waiting.push_front(request);
        }
    }

    /// Whether requests wait to be sent.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What those are for that wait to be sent.
    pub fn waiting(&mut self) -> impl Iterator<Item = &mut J> {
        self.waiting.iter_mut().map(|one| &mut one.job)
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.limits.is_some()
    }

    /// Takes a request.
    pub fn push(&mut self, request: Request, job: J) {
        self.waiting.push_back(Unanswered { request, job, covers: 0 });
    }

    /// The next request to be sent now, if there is one: its tag, the handle for it, and the request,
    /// which counts as sent.
    pub fn send(&mut self) -> Option<(u64, u32, &mut Unanswered<J>)> {
        let limits = self.limits.as_ref()?;
        let first = self.waiting.front()?;
        let moves = first.moves();
        if self.sent.len() >= limits.requests
            || (self.bytes > 0 && self.bytes + moves > limits.bytes)
            || (first.request.operation.changes()
                && self.sent.iter().any(|(_, sent)| sent.overlaps(&first.request)))
        {
            return None;
        }
        let handle = limits.handle;
        let mut first = self.waiting.pop_front()?;
        first.covers = self.changes;
        self.bytes += moves;
        let tag = self.next_tag;
        self.next_tag += 1;
        self.sent.push_back((tag, first));
        self.sent.back_mut().map(|(tag, sent)| (*tag, handle, sent))
    }

    /// A reply has come to the request with this tag, and so many bytes of data follow it. Returns the
    /// request.
    ///
    /// # Errors
    /// It is none that a store may send: the connection ends.
    pub fn reply(
        &self,
        tag: u64,
        status: Status,
        data: u32,
    ) -> Result<&Unanswered<J>, &'static str> {
        let place = self.place(tag).ok_or("a reply to no request")?;
        let (_, sent) = self.sent.get(place).ok_or("a reply to no request")?;
        let read = sent.request.operation == Operation::Read && status == Status::Ok;
        let wanted = if read { sent.request.length } else { 0 };
        if u64::from(data) != wanted {
            return Err("a reply with another number of bytes");
        }
        Ok(sent)
    }

    /// The tag of the read under way whose lower half this is, for a store that tells only that when all the
    /// bytes are there.
    ///
    /// # Errors
    /// There is none: the connection ends.
    pub fn delivered(&self, half: u32) -> Result<u64, &'static str> {
        const WHOLE: u64 = 1 << 32;
        let none = "bytes that were not asked for";
        let last = self.next_tag.checked_sub(1).ok_or(none)?;
        // Far fewer than that are under way.
        let tag = last - last % WHOLE + u64::from(half);
        let tag = if tag > last { tag.checked_sub(WHOLE).ok_or(none)? } else { tag };
        let sent = self.place(tag).and_then(|place| self.sent.get(place));
        let read = sent.is_some_and(|(_, sent)| sent.request.operation == Operation::Read);
        if read { Ok(tag) } else { Err(none) }
    }

    /// Where the request with this tag is: mostly it is the first that was sent.
    fn place(&self, tag: u64) -> Option<usize> {
        if self.sent.front().is_some_and(|(first, _)| *first == tag) {
            return Some(0);
        }
        self.sent.binary_search_by_key(&tag, |(tag, _)| *tag).ok()
    }

    /// The request with this tag was answered. Returns it, and how it ended: a flush fails if what it
    /// was to make stable may be gone. `None`: nothing like it is under way.
    pub fn answered(&mut self, tag: u64, status: Status) -> Option<(Unanswered<J>, Status)> {
        let (_, request) = self.sent.remove(self.place(tag)?)?;
        self.bytes = self.bytes.saturating_sub(request.moves());
        if status != Status::Ok {
            return Some((request, status));
        }
        match request.request.operation {
            Operation::Flush if std::mem::take(&mut self.lost) => {
                self.stable = self.changes;
                return Some((request, Status::Failed));
            }
            Operation::Flush => self.stable = self.stable.max(request.covers),
            operation if operation.changes() && !request.request.stable => self.changes += 1,
            _ => {}
        }
        Some((request, status))
    }

    /// Takes back the requests that are wanted among those that are not under way: all of them while
    /// there is no connection. They are in the order they were pushed.
    pub fn take_back(&mut self, mut wanted: impl FnMut(&J) -> bool) -> Vec<Unanswered<J>> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| wanted(&one.job));
        self.waiting = left.into();
        taken
    }

    /// Requests that were sent and not answered.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.sent.len()
    }

    /// Whether nothing waits to be sent or answered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests;
