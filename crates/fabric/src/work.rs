//! Operations, and how they are handed to the provider.

#![expect(unsafe_code)]
// UNSAFETY: hands a library addresses that it uses after the call has returned.

use std::ffi::c_int;

use crate::cut::{Cursor, Limits, Part};
use crate::error::Error;
use crate::ffi::{self, Context, EndpointId, Handle};
use crate::memory::{Local, Remote};

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

/// An operation that has not ended.
pub(crate) struct Work<T> {
    pub(crate) operation: Operation,
    pub(crate) local: Local,
    pub(crate) remote: Vec<Remote>,
    pub(crate) owner: T,
    pub(crate) cursor: Cursor,
    /// Everything was handed to the provider, or what was not never will be.
    pub(crate) begun: bool,
    /// Parts that the provider has.
    pub(crate) parts: u32,
    pub(crate) result: Result<u64, Error>,
}

impl<T> Work<T> {
    /// It ends with this, when the provider is done with it.
    pub(crate) fn fail(&mut self, error: Error) {
        self.begun = true;
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }

    pub(crate) fn into_ended(self) -> Ended<T> {
        let whole = self.local.len();
        let result = match self.operation {
            Operation::Receive => self.result,
            _ => self.result.map(|_| whole),
        };
        Ended { owner: self.owner, local: self.local, result }
    }
}

/// Has the provider copy and send a message, if it is small enough for that; whether it could now.
pub(crate) fn inject<T>(
    handle: &Handle<EndpointId>,
    work: &Work<T>,
    limits: Limits,
) -> Option<Result<bool, Error>> {
    let [whole] = work.local.pieces() else { return None };
    if work.operation != Operation::Send || whole.len as u64 > limits.inject {
        return None;
    }
    // SAFETY: the piece is mapped as long as the work lives, and copied before the call returns.
    let posted = unsafe { ffi::shim_inject(handle.get(), whole) };
    Some(match posted {
        posted if posted == -ffi::EAGAIN => Ok(false),
        posted => Error::check("send", posted).map(|_| true),
    })
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
    let whole = pieces.len();
    match work.operation {
        Operation::Send | Operation::Receive => {
            let (pieces, descs) = (pieces.as_ptr(), descs.as_ptr().cast_mut());
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
            let (local, descs) = (part.local.as_ptr(), descs.as_ptr().cast_mut());
            let (remote, count, remotes) =
                (part.remote.as_ptr(), part.local.len(), part.remote.len());
            let next = (!next.is_behind(pieces)).then_some(next);
            // SAFETY: as above; `local` are parts of the pieces, as many as there are descriptors at least.
            let posted = unsafe {
                match work.operation {
                    Operation::Deliver(number) => {
                        let (last, number) = (next.is_none().into(), number.into());
                        ffi::shim_rma_deliver(
                            ep, local, descs, count, remote, remotes, context, last, number,
                        )
                    }
                    Operation::Write => {
                        ffi::shim_rma_write(ep, local, descs, count, remote, remotes, context)
                    }
                    _ => ffi::shim_rma_read(ep, local, descs, count, remote, remotes, context),
                }
            };
            (posted, next)
        }
    }
}
