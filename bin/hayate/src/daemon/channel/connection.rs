//! One connection of an agent: what was read and not yet looked at, and the answer that is being
//! written. Nothing more is read meanwhile, so a guest that does not read its answers waits.

use super::until;
use channel::Lines;
use std::io::ErrorKind;
use std::time::Instant;
use tokio::net::UnixStream;

/// Bytes read at once.
const CHUNK: usize = 16 * 1024;

pub(super) struct Connection {
    stream: UnixStream,
    lines: Lines,
    input: Box<[u8]>,
    /// What of `input` was read and not looked at.
    unread: std::ops::Range<usize>,
    answer: Vec<u8>,
    written: usize,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            lines: Lines::default(),
            input: vec![0; CHUNK].into(),
            unread: 0..0,
            answer: Vec::new(),
            written: 0,
        }
    }

    /// Waits until there is input, and the time for it has come. `false`: the other side is gone.
    /// Nothing is lost when this future is dropped.
    pub(super) async fn next(&mut self, ready: Instant) -> bool {
        if !self.flush().await {
            return false;
        }
        until(Some(ready)).await;
        while self.unread.is_empty() {
            if self.stream.readable().await.is_err() {
                return false;
            }
            match self.stream.try_read(&mut self.input) {
                Ok(0) => return false,
                Ok(count) => self.unread = 0..count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
        true
    }

    async fn flush(&mut self) -> bool {
        while let Some(rest) = self.answer.get(self.written..).filter(|rest| !rest.is_empty()) {
            if self.stream.writable().await.is_err() {
                return false;
            }
            match self.stream.try_write(rest) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// What was read, and the line that was begun before.
    pub(super) fn input(&mut self) -> (&mut Lines, &[u8]) {
        (&mut self.lines, self.input.get(self.unread.clone()).unwrap_or_default())
    }

    /// `taken` bytes of the input were looked at, and this is the answer.
    pub(super) fn answer(&mut self, taken: usize, answer: Vec<u8>) {
        self.unread.start += taken;
        self.answer = answer;
        self.written = 0;
    }
}
