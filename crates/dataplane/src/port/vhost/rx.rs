//! Guest RX queues: frames delivered into a guest's buffers.
//!
//! A queue may be reached by several workers, so it sits behind a lock that a worker takes once
//! per burst. Its home worker puts the running queue in and takes it out between bursts.

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;
use guestmem::GuestMemory;
use packet::{Offloads, VirtioNetHdr};
use parking_lot::Mutex;
use switch::DropReason;
use sys::EventFd;
use virtqueue::{Chain, Queue, Used};

use crate::counters::QueueCounters;
use crate::port::{Refused, Sink};
use crate::frame::{BUFFERS_MAX, Body, Buffers, Frame, Scatter};

/// One RX queue of a vhost port.
#[derive(Debug, Default)]
pub(crate) struct RxQueue {
    /// The running queue, if there is one.
    pub(crate) live: Mutex<Option<Box<LiveRx>>>,
    /// Written only with the lock held.
    pub(crate) counters: QueueCounters,
}

/// A running RX queue.
pub(crate) struct LiveRx {
    pub(crate) queue: Queue,
    pub(crate) mem: Arc<GuestMemory>,
    /// Length of the virtio-net header this guest expects, in bytes.
    pub(crate) vnet_len: usize,
    /// VIRTIO_NET_F_MRG_RXBUF: a frame may fill several buffers.
    pub(crate) mergeable: bool,
    /// What the guest takes unfinished.
    pub(crate) offloads: Offloads,
    pub(crate) call: Option<Arc<EventFd>>,
    pub(crate) enabled: bool,
}

impl Sink for LiveRx {
    #[inline]
    fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Into one buffer if it fits, into several with mergeable buffers. On refusal the ring is as
    /// before.
    #[inline]
    fn put(&mut self, frame: &mut Frame<'_, '_>) -> Result<(), Refused> {
        let need = self.vnet_len + frame.len;
        let Self { queue, mem, vnet_len, mergeable, .. } = self;
        let before = queue.position();
        let mut chain = Chain::new();
        if !self.enabled {
            return Err(Refused::Drop(DropReason::QueueDisabled));
        }
        if !queue.pop(mem, &mut chain)? {
            return Err(Refused::Drop(DropReason::RxRingEmpty));
        }
        if let [buffer] = chain.writable()
            && buffer.len() >= need
        {
            let front = frame.head.with_vnet(&frame.offload.header(), *vnet_len);
            buffer.copy_from(front);
            let rest = buffer.skip(front.len());
            match frame.body {
                Body::Guest { slices: [only], skip } => {
                    only.skip(skip).copy_to_guest(rest);
                }
                body => Scatter::new(&[rest]).write_body(body),
            }
            let used = chain.used(need as u32);
            queue.complete(&[used]);
            return Ok(());
        }
        let put = put_spread(queue, mem, &chain, frame, need, *vnet_len, *mergeable);
        if put.is_err() {
            queue.rewind(before);
        }
        put
    }
}

impl LiveRx {
    /// End of a burst: shows the guest what was delivered and interrupts it if it asked for that.
    pub(crate) fn finish(&mut self, counters: &QueueCounters) {
        self.queue.publish();
        if self.queue.should_notify() {
            self.interrupt(counters);
        }
    }

    /// Prefetches the buffers of the next `n` frames.
    pub(crate) fn warm(&self, n: u16) {
        self.queue.warm(&self.mem, n, |buffer| buffer.prefetch_write(128));
    }

    /// Interrupts the guest.
    pub(crate) fn interrupt(&self, counters: &QueueCounters) {
        if let Some(call) = &self.call {
            counters.interrupts.add(1);
            // Cannot fail on an eventfd, which it was checked to be.
            let _ = call.signal();
        }
    }
}

/// Notes up to `want` writable bytes of `chain` and what will be used of it. `None`: too many parts.
fn take_buffers<'m>(
    chain: &Chain<'m>,
    want: usize,
    buffers: &mut Buffers<'m>,
    used: &mut ArrayVec<Used, BUFFERS_MAX>,
) -> Option<usize> {
    let mut taken = 0;
    for slice in chain.writable() {
        if taken == want {
            break;
        }
        let part = slice.take(want - taken);
        buffers.try_push(part).ok()?;
        taken += part.len();
    }
    used.try_push(chain.used(taken as u32)).ok()?;
    Some(taken)
}

/// The rest of putting a frame: the first buffer is a chain of several parts, or too small.
#[cold]
fn put_spread<'m>(
    queue: &mut Queue,
    mem: &'m GuestMemory,
    first: &Chain<'m>,
    frame: &mut Frame<'_, '_>,
    need: usize,
    vnet_len: usize,
    mergeable: bool,
) -> Result<(), Refused> {
    const TOO_SMALL: Refused = Refused::Drop(DropReason::RxBufferTooSmall);
    let mut buffers = Buffers::new();
    let mut used = ArrayVec::<Used, BUFFERS_MAX>::new();
    let mut capacity = take_buffers(first, need, &mut buffers, &mut used).ok_or(TOO_SMALL)?;
    while capacity < need {
        if !mergeable {
            return Err(TOO_SMALL);
        }
        let mut chain = Chain::new();
        if !queue.pop(mem, &mut chain)? {
            return Err(Refused::Drop(DropReason::RxRingEmpty));
        }
        let want = need - capacity;
        capacity += take_buffers(&chain, want, &mut buffers, &mut used).ok_or(TOO_SMALL)?;
    }
    let header = VirtioNetHdr { num_buffers: used.len() as u16, ..frame.offload.header() };
    let mut out = Scatter::new(&buffers);
    out.write(frame.head.with_vnet(&header, vnet_len));
    out.write_body(frame.body);
    queue.complete(&used);
    Ok(())
}

impl fmt::Debug for LiveRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveRx").field("enabled", &self.enabled).finish_non_exhaustive()
    }
}
