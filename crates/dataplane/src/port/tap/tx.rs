//! TAP TX queues: frames the host sends.

use std::sync::Arc;

use packet::vnet::VNET_HLEN;
use packet::{Offloads, VirtioNetHdr};
use switch::Spot;
use sys::tap::TapQueue;

use crate::frame::{Body, FRAME_MAX, fill_local};
use crate::port::Port;
use crate::worker::forward::{BURST, Forward, Sender};
use crate::worker::placement::TxId;

/// The reading end of an interface's queue. Its worker owns it.
#[derive(Debug)]
pub(crate) struct TapTx {
    pub(crate) port: Arc<Port>,
    pub(crate) index: u16,
    queue: Arc<TapQueue>,
    buffer: Box<[u8]>,
    /// The descriptor was readable when last asked: worth a read.
    pub(crate) ready: bool,
}

impl TapTx {
    pub(crate) fn new(port: Arc<Port>, index: u16, queue: Arc<TapQueue>) -> Self {
        let buffer = vec![0; VNET_HLEN + FRAME_MAX].into_boxed_slice();
        Self { port, index, queue, buffer, ready: true }
    }

    /// Which queue it is.
    pub(crate) fn id(&self) -> TxId {
        TxId { port: self.port.id, index: self.index }
    }

    pub(crate) fn queue(&self) -> &TapQueue {
        &self.queue
    }

    /// Forwards up to [`BURST`] frames; returns how many were taken.
    ///
    /// A read costs a system call even if there is nothing, so this is for a queue that is `ready`: whose
    /// descriptor is known to be readable. The worker asks the kernel about that now and then.
    pub(crate) fn burst(&mut self, forward: &mut Forward<'_>) -> usize {
        let Some(counters) = self.port.incoming.get(usize::from(self.index)) else { return 0 };
        let Forward { lookup, heads, egress } = forward;
        let [[head, ..], _] = &mut **heads;
        let sender = Sender::new(&self.port, counters, Offloads::ALL, lookup, egress);
        let (mut frames, mut bytes) = (0, 0);
        while frames < BURST {
            let Ok(n) = self.queue.read(&mut self.buffer) else {
                self.ready = false;
                break;
            };
            let Some(len) = n.checked_sub(VNET_HLEN) else { continue };
            let read = self.buffer.get(..n).unwrap_or_default();
            frames += 1;
            bytes += len as u64;
            let skip = fill_local(head, read, VNET_HLEN);
            let body = Body::Local(read.get(skip..).unwrap_or_default());
            let header = VirtioNetHdr::parse(head.vnet(VNET_HLEN)).unwrap_or_default();
            lookup.forward::<true>(&sender, header.into(), (head, &Spot::NONE), body, len, egress);
        }
        counters.frames.add(frames as u64);
        counters.bytes.add(bytes);
        frames
    }
}
