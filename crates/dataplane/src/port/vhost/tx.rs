//! Guest TX queues: frames taken from a guest.

use std::fmt;
use std::sync::Arc;

use guestmem::GuestMemory;
use packet::Offloads;
use switch::DropReason;
use sys::EventFd;
use virtqueue::{Chain, GuestFault, Queue};

use crate::frame::Body;
use crate::port::{Kind, Port};
use crate::worker::forward::{BURST, Forward, Sender};

/// Frames whose buffers are prefetched together.
pub(crate) const WARM: u16 = 32;
/// Bytes prefetched of each buffer: header and first lines; hardware follows from there.
pub(crate) const LINES: usize = 192;

/// A running TX queue. Its worker owns it.
pub(crate) struct LiveTx {
    pub(crate) port: Arc<Port>,
    /// Index of its queue pair.
    pub(crate) index: u16,
    pub(crate) queue: Queue,
    pub(crate) mem: Arc<GuestMemory>,
    /// Length of the virtio-net header this guest writes, in bytes.
    pub(crate) vnet_len: usize,
    /// What the guest may leave unfinished.
    pub(crate) offloads: Offloads,
    pub(crate) kick: Option<Arc<EventFd>>,
    pub(crate) call: Option<Arc<EventFd>>,
    pub(crate) enabled: bool,
    /// The guest was asked to kick.
    pub(crate) armed: bool,
    /// The ring lied; it is not looked at any more.
    pub(crate) faulted: bool,
}

impl LiveTx {
    /// Forwards up to [`BURST`] frames; returns how many were taken.
    pub(crate) fn burst(&mut self, forward: &mut Forward<'_>) -> usize {
        if self.faulted || !self.queue.has_available() {
            return 0;
        }
        if self.armed {
            self.queue.disable_kicks();
            self.armed = false;
        }
        let taken = match self.take(forward) {
            Ok(taken) => taken,
            Err(fault) => {
                self.fail(fault.name(), &fault.to_string());
                0
            }
        };
        if self.mem.faulted() && !self.faulted {
            self.fail("memory-vanished", "guest memory was truncated under the running session");
        }
        taken
    }

    fn take(&mut self, forward: &mut Forward<'_>) -> Result<usize, GuestFault> {
        let Self { port, index, queue, mem, vnet_len, offloads, enabled, .. } = self;
        let Some(counters) = port.incoming.get(usize::from(*index)) else { return Ok(0) };
        let Forward { lookup, head, egress } = forward;
        let mut chain = Chain::new();
        let mut warm = 0;
        let (mut frames, mut bytes) = (0, 0);
        let result = loop {
            if warm == 0 {
                warm = queue.warm(mem, WARM, |buffer| buffer.prefetch_read(LINES));
                egress.expect(warm);
            }
            warm = warm.saturating_sub(1);
            match queue.pop(mem, &mut chain) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(fault) => break Err(fault),
            }
            frames += 1;
            let slices = chain.readable();
            let skip = head.fill(slices, *vnet_len);
            let len = (chain.readable_len() as usize).saturating_sub(*vnet_len);
            bytes += len as u64;
            if !*enabled {
                counters.drop(DropReason::QueueDisabled, 1);
            } else {
                let body = Body::Guest { slices, skip };
                let sender = Sender { port, counters, offloads: *offloads };
                lookup.forward(&sender, *vnet_len, head, body, len, egress);
            }
            queue.complete(&[chain.used(0)]);
            if frames == BURST {
                break Ok(());
            }
        };
        counters.frames.add(frames as u64);
        counters.bytes.add(bytes);
        queue.publish();
        if queue.should_notify() {
            self.interrupt();
        }
        result.map(|()| frames)
    }

    /// Stops looking at the ring and has the session ended for it.
    fn fail(&mut self, name: &str, sentence: &str) {
        self.faulted = true;
        if let Kind::Vhost(vhost) = &self.port.kind {
            vhost.report(name, sentence);
        }
    }

    /// Interrupts the guest.
    pub(crate) fn interrupt(&self) {
        let Some(counters) = self.port.incoming.get(usize::from(self.index)) else { return };
        if let Some(call) = &self.call {
            counters.interrupts.add(1);
            // Cannot fail on an eventfd, which it was checked to be.
            let _ = call.signal();
        }
    }

    /// Asks the guest to kick. Returns whether frames are waiting already.
    pub(crate) fn arm(&mut self) -> bool {
        if self.faulted {
            return false;
        }
        self.armed = true;
        self.queue.enable_kicks()
    }
}

impl fmt::Debug for LiveTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveTx").field("index", &self.index).finish_non_exhaustive()
    }
}
