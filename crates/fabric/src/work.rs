//! Operations, and how they are handed to the provider.

#![expect(unsafe_code)]
// UNSAFETY: hands a library addresses that it uses after the call has returned.

use std::ffi::c_int;

use sys::uring::IoVec;

use crate::cut::{Cursor, Limits, Part};
use crate::error::Error;
use crate::ffi::{self, Context, EndpointId, Handle};
use crate::memory::{Local, Remotes};

/// An operation that has ended.
#[derive(Debug)]
pub struct Ended<T> {
    /// Whose it was.
    pub owner: T,
    /// The memory it was about.
    pub local: Local,
    /// How many bytes were moved. After an error any part of them may have been.
    pub result: Result<u64, Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Receive,
    Write,
    /// The peer is told this number when it is there.
    Deliver(u32),
    Read,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Send => "send",
            Operation::Receive => "receive",
            Operation::Write | Operation::Deliver(_) => "remote write",
            Operation::Read => "remote read",
        }
    }
}

/// An operation that has not been given back.
pub(crate) struct Work<T> {
    pub(crate) operation: Operation,
    pub(crate) local: Local,
    pub(crate) remote: Remotes,
    /// Bytes to be moved, from the first of the memory on; of one received, then those that came.
    pub(crate) bytes: u64,
    pub(crate) owner: T,
    pub(crate) cursor: Cursor,
    /// Everything was handed to the provider, or what was not never will be.
    pub(crate) begun: bool,
    /// Parts that the provider has.
    pub(crate) parts: u32,
    pub(crate) error: Option<Box<Error>>,
}

impl<T> Work<T> {
    /// It ends with this, when the provider is done with it.
    pub(crate) fn fail(&mut self, error: Error) {
        self.begun = true;
        self.error.get_or_insert_with(|| Box::new(error));
    }

    pub(crate) fn into_ended(self) -> Ended<T> {
        let result = self.error.map_or(Ok(self.bytes), |error| Err(*error));
        Ended { owner: self.owner, local: self.local, result }
    }
}

/// Has the provider copy and send the first bytes of this memory, of which it has as many; whether it could now.
pub(crate) fn inject(
    handle: &Handle<EndpointId>,
    local: &Local,
    bytes: u64,
) -> Result<bool, Error> {
    let &[IoVec { base, len }] = local.pieces() else { return Ok(false) };
    let message = IoVec { base, len: len.min(bytes as usize) };
    // SAFETY: the piece is mapped as long as `local` lives, and copied before the call returns.
    let posted = unsafe { ffi::shim_inject(handle.get(), &raw const message) };
    if posted == -ffi::EAGAIN {
        return Ok(false);
    }
    Error::check("send", posted).map(|_| true)
}

/// Hands the provider the next part of an operation. What it returned, and where that part ends; `None`:
/// it is the last.
pub(crate) fn post<T>(
    handle: &Handle<EndpointId>,
    work: &Work<T>,
    context: &Context,
    limits: Limits,
    part: &mut Part,
) -> (c_int, Option<Cursor>) {
    let (ep, context) = (handle.get(), context.address());
    let (pieces, descs) = (work.local.pieces(), work.local.descs());
    match work.operation {
        Operation::Send | Operation::Receive => {
            part.take(pieces, work.bytes);
            let (whole, pieces) = (part.local.len(), part.local.as_ptr());
            let descs = descs.as_ptr().cast_mut();
            // SAFETY: the pieces are mapped and registered as long as the work lives, which is until the
            // provider has given the context back or the endpoint has been closed; the lists are only read,
            // before the call returns. The context is in nobody else's use, and freed after the queue.
            let posted = unsafe {
                match work.operation {
                    Operation::Send => ffi::shim_send(ep, pieces, descs, whole, context),
                    _ => ffi::shim_recv(ep, pieces, descs, whole, context),
                }
            };
            (posted, None)
        }
        Operation::Write | Operation::Deliver(_) | Operation::Read => {
            let Some(next) = work.cursor.next(pieces, &work.remote, limits, part) else {
                return (-ffi::EIO, None);
            };
            let Some(descs) = descs.get(part.first..) else { return (-ffi::EIO, None) };
            let (here, descs) = (part.local.as_ptr(), descs.as_ptr().cast_mut());
            let (remote, count, remotes) =
                (part.remote.as_ptr(), part.local.len(), part.remote.len());
            let next = (!next.is_behind(pieces)).then_some(next);
            // SAFETY: as above; `here` are parts of the pieces, as many as there are descriptors at least.
            let posted = unsafe {
                match work.operation {
                    Operation::Deliver(number) => {
                        let (last, number) = (next.is_none().into(), number.into());
                        ffi::shim_rma_deliver(
                            ep, here, descs, count, remote, remotes, context, last, number,
                        )
                    }
                    Operation::Write => {
                        ffi::shim_rma_write(ep, here, descs, count, remote, remotes, context)
                    }
                    _ => ffi::shim_rma_read(ep, here, descs, count, remote, remotes, context),
                }
            };
            (posted, next)
        }
    }
}
