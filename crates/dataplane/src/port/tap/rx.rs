//! TAP RX queues: frames given to the host.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use packet::vnet::VNET_HLEN;
use packet::{Offloads, VirtioNetHdr};
use parking_lot::Mutex;
use rustix::io::Errno;
use switch::DropReason;
use sys::tap::TapQueue;

use crate::counters::QueueCounters;
use crate::frame::{Body, Frame};
use crate::port::Sink;

/// One RX queue of a TAP port.
#[derive(Debug)]
pub(crate) struct RxQueue {
    /// The interface's queue, for one worker at a time.
    pub(crate) live: Mutex<TapRx>,
    /// Written only with the lock held.
    pub(crate) counters: QueueCounters,
}

/// The writing end of an interface's queue.
#[derive(Debug)]
pub(crate) struct TapRx {
    queue: Arc<TapQueue>,
    offloads: Offloads,
}

impl TapRx {
    pub(crate) fn new(queue: Arc<TapQueue>, offloads: Offloads) -> Self {
        Self { queue, offloads }
    }
}

impl Sink for TapRx {
    #[inline]
    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn put(&mut self, frame: &mut Frame<'_, '_>) -> Result<(), DropReason> {
        let header = VirtioNetHdr { num_buffers: 0, ..frame.offload.header() };
        let front = frame.head.with_vnet(header, VNET_HLEN);
        let fd = self.queue.as_fd();
        let written = match frame.body {
            Body::Local(rest) => guestmem::write_vectored(fd, &[front, rest], &[]),
            Body::One(rest) => guestmem::write_vectored(fd, &[front], &[rest]),
            Body::Guest { slices, mut skip } => {
                let mut parts = crate::frame::Buffers::new();
                for slice in slices {
                    let part = slice.skip(skip);
                    skip = skip.saturating_sub(slice.len());
                    if !part.is_empty() && parts.try_push(part).is_err() {
                        return Err(DropReason::FrameTooBig);
                    }
                }
                guestmem::write_vectored(fd, &[front], &parts)
            }
        };
        written.map(|_| ()).map_err(|error| reason(&error))
    }
}

/// The drop reason for a failed write: the kernel's queue is full, or the interface is down.
fn reason(error: &io::Error) -> DropReason {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN | Errno::NOBUFS) => DropReason::TapFull,
        Some(Errno::IO) => DropReason::PortDown,
        _ => DropReason::TapError,
    }
}
