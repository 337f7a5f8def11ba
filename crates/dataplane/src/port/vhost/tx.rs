//! Guest TX queues: frames taken from a guest.

use std::fmt;
use std::sync::Arc;

use guestmem::{GuestMemory, GuestSlice};
use packet::vnet::{VNET_HLEN, VNET_HLEN_LEGACY};
use packet::{Offloads, RawVirtioNetHdr, VirtioNetHdr};
use switch::{Cache, DropReason, PortId};
use sys::EventFd;
use virtqueue::{Chain, GuestFault, Next, Queue, Soon, Used};

use crate::frame::{Body, fill};
use crate::port::vhost::LINE;
use crate::port::{Kind, Port};
use crate::worker::forward::{BURST, Forward, Lookup, Sender};
use crate::worker::placement::TxId;

/// How many frames ahead of the one being taken the next are fetched from the guest's cache.
const AHEAD: u16 = Cache::AHEAD as u16;
/// So many of them together: more at once than the processor keeps waiting for would hold everything up.
const TOGETHER: u16 = Cache::TOGETHER as u16;

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
    /// [`Cache::turns`] after its last burst, if the frames of that were announced.
    pub(crate) turn: Option<usize>,
}

impl LiveTx {
    /// Which queue it is.
    pub(crate) fn id(&self) -> TxId {
        TxId { port: self.port.id, index: self.index }
    }

    /// Whether there is something to do.
    #[inline(always)]
    pub(crate) fn waiting(&self) -> bool {
        // Looking at a ring whose memory has vanished finds zeroes, and leaves the mark.
        !self.faulted && (self.queue.has_available() || self.mem.faulted())
    }

    /// Forwards up to [`BURST`] frames; returns how many were taken.
    pub(crate) fn burst(&mut self, forward: &mut Forward<'_>) -> usize {
        if !self.waiting() {
            return 0;
        }
        self.disarm();
        let asked = forward.lookup.asks(self.port.id);
        let taken = if asked { self.take::<true>(forward) } else { self.take::<false>(forward) };
        let vanished = self.mem.faulted();
        if (taken.is_err() || vanished)
            && let Kind::Vhost(vhost) = &self.port.kind
        {
            self.faulted = true;
            match &taken {
                Err(fault) => vhost.stop_for(vanished, fault),
                Ok(_) => vhost.memory_vanished(),
            }
        }
        taken.unwrap_or(0)
    }

    fn take<const CHECKED: bool>(
        &mut self,
        forward: &mut Forward<'_>,
    ) -> Result<usize, GuestFault> {
        let Self { port, index, queue, mem, vnet_len, offloads, enabled, turn, .. } = self;
        let Some(counters) = port.incoming.get(usize::from(*index)) else { return Ok(0) };
        let Forward { lookup, head, egress } = forward;
        let sender = Sender::new(port, counters, *offloads, lookup, egress);
        let scattered = lookup.cache.wants_announcements();
        queue.look_ahead(BURST as u16 + 2 * AHEAD);
        let fetch = |_, soon| fetch(mem, soon, *vnet_len, *offloads);
        // The burst before announced the first frames of this one, unless another queue's was in between.
        if scattered && !turn.is_some_and(|turn| lookup.cache.has_announced(turn)) {
            queue.peek(AHEAD, AHEAD, fetch);
            announce(queue, mem, *vnet_len, 0, lookup, port.id);
            announce(queue, mem, *vnet_len, TOGETHER, lookup, port.id);
        }
        let (mut frames, mut bytes) = (0_usize, 0);
        let result = loop {
            if scattered {
                if frames.is_multiple_of(TOGETHER.into()) {
                    queue.peek(2 * AHEAD, TOGETHER, fetch);
                    lookup.cache.expect(lookup.switch, port.id, lookup.now_ms);
                    announce(queue, mem, *vnet_len, AHEAD, lookup, port.id);
                }
                lookup.cache.turn();
            } else if frames.is_multiple_of(AHEAD.into()) {
                queue.peek(AHEAD, AHEAD, fetch);
            }
            let (used, len) = match queue.next(mem) {
                Ok(Next::Empty) => break Ok(()),
                Ok(Next::One { buffer, id, writable }) => {
                    let buffer = buffer.take(if writable { 0 } else { usize::MAX });
                    let len = buffer.len().saturating_sub(*vnet_len);
                    if !*enabled {
                        counters.drop(DropReason::QueueDisabled, 1);
                    } else if let Some(header) = load_header(buffer, *vnet_len, *offloads) {
                        let frame = buffer.skip(*vnet_len);
                        let begun = head.block_mut().map_or(0, |block| frame.copy_to_block(block));
                        head.set_len(begun);
                        let body = Body::One(frame.skip(begun));
                        lookup.forward::<CHECKED>(&sender, header, head, body, len, egress);
                    } else {
                        counters.drop(DropReason::Runt, 1);
                    }
                    (Used { id, descs: 1, len: 0 }, len)
                }
                Ok(Next::Chain) => {
                    let mut chain = Chain::new();
                    match queue.pop(mem, &mut chain) {
                        Ok(true) => {}
                        Ok(false) => break Ok(()),
                        Err(fault) => break Err(fault),
                    }
                    let slices = chain.readable();
                    let len = (chain.readable_len() as usize).saturating_sub(*vnet_len);
                    if *enabled {
                        let skip = fill(head, slices, *vnet_len);
                        let header = match *offloads {
                            Offloads::NONE => VirtioNetHdr::default(),
                            _ => VirtioNetHdr::parse(head.vnet(*vnet_len)).unwrap_or_default(),
                        };
                        let body = Body::Guest { slices, skip };
                        lookup.forward::<CHECKED>(&sender, header.into(), head, body, len, egress);
                    } else {
                        counters.drop(DropReason::QueueDisabled, 1);
                    }
                    (chain.used(0), len)
                }
                Err(fault) => break Err(fault),
            };
            queue.complete(&[used]);
            bytes += len as u64;
            frames += 1;
            if frames == BURST {
                break Ok(());
            }
        };
        *turn = scattered.then(|| lookup.cache.turns());
        counters.frames.add(frames as u64);
        counters.bytes.add(bytes);
        // The receivers wait for their frames, the sender for nothing.
        egress.close();
        queue.publish();
        if queue.should_notify() {
            self.interrupt();
        }
        result.map(|()| frames)
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

    /// Has what the next frame to the same guest needs fetched.
    pub(crate) fn warm(&self) {
        if let Kind::Vhost(vhost) = &self.port.kind
            && let Some(rx) = vhost.rx.get(usize::from(self.index))
        {
            rx.next.fetch();
        }
    }

    /// Tells the guest that it need not kick.
    pub(crate) fn disarm(&mut self) {
        if self.armed && !self.faulted {
            self.queue.disable_kicks();
            self.armed = false;
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

/// Has what is read of a frame first fetched from the guest's cache.
#[inline(always)]
fn fetch(mem: &GuestMemory, soon: Soon, vnet_len: usize, offloads: Offloads) {
    if offloads != Offloads::NONE {
        mem.prefetch_read(soon.addr);
    }
    let frame = soon.addr.wrapping_add(vnet_len as u64);
    mem.prefetch_read(frame);
    if soon.len as usize > vnet_len + LINE {
        mem.prefetch_read(frame.wrapping_add(LINE as u64));
    }
}

/// Announces [`TOGETHER`] frames that come after so many.
#[inline(never)]
fn announce(
    queue: &Queue,
    mem: &GuestMemory,
    vnet_len: usize,
    after: u16,
    lookup: &mut Lookup<'_>,
    in_port: PortId,
) {
    let mut frames = [None; Cache::TOGETHER];
    queue.peek(after, TOGETHER, |n, soon| {
        if !soon.indirect
            && let Some(place) = frames.get_mut(usize::from(n))
        {
            *place = mem.slice(soon.addr, soon.len);
        }
    });
    // What is read here is read again when it is its turn.
    let front = |buffer: &Option<GuestSlice<'_>>| buffer.and_then(|b| b.skip(vnet_len).load());
    lookup.cache.announce(lookup.switch, in_port, after.into(), frames.iter().map(front));
}

/// The virtio-net header at the front of a buffer, in registers.
///
/// A guest without offloads has nothing to say in it: what it must be is taken for granted (virtio
/// 1.3, 5.1.6.2.1), which saves fetching its cache line.
#[inline(always)]
fn load_header(
    buffer: GuestSlice<'_>,
    vnet_len: usize,
    offloads: Offloads,
) -> Option<RawVirtioNetHdr> {
    if offloads == Offloads::NONE {
        return (buffer.len() >= vnet_len).then(RawVirtioNetHdr::default);
    }
    let word = if vnet_len == VNET_HLEN {
        buffer.load_word::<VNET_HLEN>()?
    } else {
        buffer.load_word::<VNET_HLEN_LEGACY>()?
    };
    Some(RawVirtioNetHdr::from_word(word))
}

impl fmt::Debug for LiveTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveTx").field("index", &self.index).finish_non_exhaustive()
    }
}
