//! Bytes and descriptors as they arrive, cut into messages.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;

use crate::SessionFault;
use crate::message::{HEADER, Header, MAX_BODY, MAX_FDS};

/// Most bytes kept while the session waits for an answer.
const MAX_BYTES: usize = 16 * (HEADER + MAX_BODY);
/// Most descriptors kept.
const MAX_KEPT_FDS: usize = 16 * MAX_FDS;

/// A whole message: header, body, descriptors.
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// What has arrived and has not been handled.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: VecDeque<u8>,
    /// Header of the message at the front, once its twelve bytes are there.
    header: Option<Header>,
    /// Descriptors, with the number of bytes in front of the one they arrived with.
    fds: VecDeque<(usize, Vec<OwnedFd>)>,
    overflow: bool,
}

impl Inbox {
    /// Takes bytes, and the descriptors that arrived with the first of them.
    pub(crate) fn put(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) {
        let kept: usize = self.fds.iter().map(|(_, fds)| fds.len()).sum();
        if self.bytes.len() + bytes.len() > MAX_BYTES || kept + fds.len() > MAX_KEPT_FDS {
            self.overflow = true;
            return;
        }
        if !fds.is_empty() {
            self.fds.push_back((self.bytes.len(), fds));
        }
        self.bytes.extend(bytes);
    }

    /// How many bytes complete the header or the message at the front; 0 if it is complete.
    pub(crate) fn missing(&self) -> usize {
        let whole = HEADER + self.header.map_or(0, |header| header.size);
        match self.header {
            None => HEADER.saturating_sub(self.bytes.len()),
            Some(_) => whole.saturating_sub(self.bytes.len()),
        }
    }

    /// Whether part of a message is there.
    pub(crate) fn is_partial(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The message at the front, if all of it is there.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, SessionFault> {
        if self.overflow {
            return Err(SessionFault::InputOverflow);
        }
        let header = match self.header {
            Some(header) => header,
            None if self.bytes.len() < HEADER => return Ok(None),
            None => {
                let mut raw = [0; HEADER];
                raw.iter_mut().zip(&self.bytes).for_each(|(to, from)| *to = *from);
                *self.header.insert(Header::parse(raw)?)
            }
        };
        let whole = HEADER + header.size;
        if self.bytes.len() < whole {
            return Ok(None);
        }
        let fds = self.fds_of(whole)?;
        let body = self.bytes.drain(..whole).skip(HEADER).collect();
        self.header = None;
        Ok(Some(Frame { header, body, fds }))
    }

    /// The descriptors of the message in the first `whole` bytes.
    fn fds_of(&mut self, whole: usize) -> Result<Vec<OwnedFd>, SessionFault> {
        let mut own = Vec::new();
        for (at, fds) in mem::take(&mut self.fds) {
            match at {
                0 => own = fds,
                at if at < whole => {
                    return Err(SessionFault::StrayDescriptors { count: fds.len() });
                }
                at => self.fds.push_back((at - whole, fds)),
            }
        }
        Ok(own)
    }
}
