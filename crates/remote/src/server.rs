//! What a store checks of the requests of a connection.

use super::control::Opened;
use super::frame::{Request, Status};

/// More than the client was told it may have under way: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Requests.
    #[error("more than {0} requests under way")]
    Requests(u16),
    /// Bytes of reads and writes.
    #[error("more than {0} bytes of requests under way")]
    Bytes(u32),
}

/// One image, open on one connection.
#[derive(Debug)]
pub struct Server {
    opened: Opened,
    write: bool,
    requests: u16,
    bytes: u64,
}

impl Server {
    /// An image that the client was told so much of; `write`: it may be written to.
    #[must_use]
    pub fn new(opened: Opened, write: bool) -> Server {
        Server { opened, write, requests: 0, bytes: 0 }
    }

    /// A request has come, and counts as under way until it has [ended](Server::ended). `Err` of a
    /// status: it is to be answered with that, and nothing else is to be done.
    ///
    /// # Errors
    /// The client does not keep to what it was told.
    pub fn begins(&mut self, request: &Request) -> Result<Result<(), Status>, Excess> {
        let Opened { handle, size, requests, bytes, discard, .. } = self.opened;
        let moves = if request.operation.moves() { request.length } else { 0 };
        if self.requests >= requests {
            return Err(Excess::Requests(requests));
        }
        // One alone may be as long as any.
        if self.bytes > 0 && self.bytes + moves > u64::from(bytes) {
            return Err(Excess::Bytes(bytes));
        }
        self.requests += 1;
        self.bytes += moves;
        let end = request.offset.checked_add(request.length);
        Ok(if request.handle != handle {
            Err(Status::WrongHandle)
        } else if end.is_none_or(|end| end > size) {
            Err(Status::OutOfRange)
        } else if request.operation.changes() && !self.write {
            Err(Status::ReadOnly)
        } else if request.operation == super::Operation::Discard && !discard {
            Err(Status::Unsupported)
        } else {
            Ok(())
        })
    }

    /// A request is answered.
    pub fn ended(&mut self, request: &Request) {
        let moves = if request.operation.moves() { request.length } else { 0 };
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(moves);
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> u16 {
        self.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffers;
    use crate::Operation;

    fn server(write: bool) -> Server {
        let opened = Opened {
            handle: 5,
            epoch: 1,
            size: 1 << 20,
            block_size: 512,
            requests: 2,
            bytes: 8192,
            discard: false,
            durable: false,
            place: None,
            fabric: None,
        };
        Server::new(opened, write)
    }

    fn ask(operation: Operation, offset: u64, length: u64) -> Request {
        Request {
            operation,
            stable: false,
            unmap: false,
            handle: 5,
            offset,
            length,
            buffers: Buffers::new(),
        }
    }

    #[test]
    fn what_makes_no_sense_is_answered() {
        use Operation::{Discard, Flush, Read, Write};
        let write = |offset, length| ask(Write, offset, length);
        for (request, wanted) in [
            (write(0, 4096), Ok(())),
            (write((1 << 20) - 512, 512), Ok(())),
            (write((1 << 20) - 512, 1024), Err(Status::OutOfRange)),
            (write(u64::MAX - 511, 512), Err(Status::OutOfRange)),
            (Request { handle: 4, ..write(0, 512) }, Err(Status::WrongHandle)),
            (ask(Discard, 0, 512), Err(Status::Unsupported)),
            (ask(Flush, 0, 0), Ok(())),
        ] {
            assert_eq!(server(true).begins(&request), Ok(wanted), "{request:?}");
        }
        assert_eq!(server(false).begins(&write(0, 512)), Ok(Err(Status::ReadOnly)));
        assert_eq!(server(false).begins(&ask(Read, 0, 512)), Ok(Ok(())));
    }

    #[test]
    fn nobody_has_more_under_way_than_he_was_told() {
        let mut server = server(true);
        let large = ask(Operation::Read, 0, 1 << 19);
        // One alone may be long.
        assert_eq!(server.begins(&large), Ok(Ok(())));
        assert_eq!(server.begins(&ask(Operation::Read, 0, 512)), Err(Excess::Bytes(8192)));
        server.ended(&large);
        let small = ask(Operation::Read, 0, 4096);
        assert_eq!(server.begins(&small), Ok(Ok(())));
        assert_eq!(server.begins(&small), Ok(Ok(())));
        assert_eq!(server.begins(&ask(Operation::Flush, 0, 0)), Err(Excess::Requests(2)));
        server.ended(&small);
        assert_eq!(server.begins(&ask(Operation::Flush, 0, 0)), Ok(Ok(())));
        assert_eq!(server.under_way(), 2);
    }
}
