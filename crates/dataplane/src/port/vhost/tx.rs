//! Guest TX queues: frames taken from a guest.

use std::fmt;
use std::sync::Arc;

use guestmem::{GuestMemory, GuestSlice};
use packet::vnet::{VNET_HLEN, VNET_HLEN_LEGACY};
use packet::{Head, Offloads, RawVirtioNetHdr, VirtioNetHdr};
use switch::{DropReason, Spot};
use sys::EventFd;
use virtqueue::{Chain, GuestFault, Next, Queue, Soon, Used};

use crate::egress::Egress;
use crate::frame::{Body, fill};
use crate::port::vhost::LINE;
use crate::port::{Kind, Port};
use crate::worker::forward::{BURST, Forward, Lookup, Sender, TOGETHER};
use crate::worker::placement::TxId;

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
        let Self { port, index, queue, mem, vnet_len, offloads, enabled, .. } = self;
        let Some(counters) = port.incoming.get(usize::from(*index)) else { return Ok(0) };
        let sender = Sender::new(port, counters, *offloads, &forward.lookup, &forward.egress);
        queue.look_ahead((BURST + 2 * TOGETHER) as u16);
        let scattered = forward.lookup.cache.wants_announcements();
        let (vnet_len, enabled) = (*vnet_len, *enabled);
        let mut burst = Burst { sender, mem, vnet_len, enabled, frames: 0, bytes: 0 };
        let result = if scattered {
            burst.take_in_hands::<CHECKED>(queue, forward)
        } else {
            burst.take_singly::<CHECKED>(queue, forward)
        };
        let Burst { frames, bytes, .. } = burst;
        counters.frames.add(frames as u64);
        counters.bytes.add(bytes);
        // The receivers wait for their frames, the sender for nothing.
        forward.egress.close();
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

/// What is known about the addresses of so many frames is fetched in a row. One and eight were slower: see
/// docs/performance.md.
const AT_ONCE: usize = 4;
const _: () = assert!(TOGETHER.is_multiple_of(AT_ONCE));

/// Frames being taken from a queue.
struct Burst<'a> {
    sender: Sender<'a>,
    mem: &'a GuestMemory,
    vnet_len: usize,
    enabled: bool,
    /// How many so far, and their bytes.
    frames: usize,
    bytes: u64,
}

/// A frame in one buffer.
#[derive(Clone, Copy)]
struct Single<'m> {
    buffer: GuestSlice<'m>,
    /// The number under which that is given back.
    id: u16,
    /// Where it is looked up, if it was announced.
    spot: Spot,
}

impl Single<'_> {
    const NONE: Self = Self { buffer: GuestSlice::EMPTY, id: 0, spot: Spot::NONE };
}

impl<'a> Burst<'a> {
    /// One after the other: nearly every frame is like the one before it.
    #[inline(always)]
    fn take_singly<const CHECKED: bool>(
        &mut self,
        queue: &mut Queue,
        forward: &mut Forward<'_>,
    ) -> Result<(), GuestFault> {
        while self.frames < BURST {
            if self.frames.is_multiple_of(TOGETHER) {
                queue.peek(TOGETHER as u16, TOGETHER as u16, |_, soon| self.fetch(soon));
            }
            match queue.next(self.mem)? {
                Next::Empty => break,
                Next::One { buffer, id, writable } => {
                    let buffer = buffer.take(if writable { 0 } else { usize::MAX });
                    let Forward { lookup, heads: [[head, ..], _], egress } = forward;
                    begin(head, buffer, self.vnet_len);
                    let frame = Single { buffer, id, spot: Spot::NONE };
                    self.deal_with::<CHECKED>(queue, &frame, head, lookup, egress);
                    self.frames += 1;
                }
                Next::Chain if self.deal_with_chain::<CHECKED>(queue, forward)? => {}
                Next::Chain => break,
            }
        }
        Ok(())
    }

    /// [`TOGETHER`] at once, so that their look-ups wait for memory together: while one hand of frames is dealt
    /// with, what the next one needs is on its way.
    ///
    /// Compiled by itself: within its caller it takes registers from [`Self::take_singly`].
    #[inline(never)]
    fn take_in_hands<const CHECKED: bool>(
        &mut self,
        queue: &mut Queue,
        forward: &mut Forward<'_>,
    ) -> Result<(), GuestFault> {
        queue.peek(0, TOGETHER as u16, |_, soon| self.fetch(soon));
        let mut hands = [[Single::NONE; TOGETHER]; 2];
        let (mut in_hand, mut turn) = (0, false);
        loop {
            let Forward { lookup, heads: [heads, other_heads], egress } = &mut *forward;
            let [hand, other] = &mut hands;
            let (now, soon) = if turn {
                ((other_heads, other), (heads, hand))
            } else {
                ((heads, hand), (other_heads, other))
            };
            let (mut next, mut taken) = (Ok(Next::Empty), 0);
            if self.frames < BURST {
                let mut places = soon.1.iter_mut();
                next = queue.next_few(self.mem, TOGETHER, |buffer, id, writable| {
                    if let Some(place) = places.next() {
                        let buffer = buffer.take(if writable { 0 } else { usize::MAX });
                        (place.buffer, place.id) = (buffer, id);
                    }
                });
                taken = TOGETHER - places.len();
                let (port, Lookup { switch, cache, .. }) = (self.sender.port.id, &mut *lookup);
                let places = cache.places(port);
                for (head, frame) in soon.0.iter_mut().zip(&mut *soon.1).take(taken) {
                    begin(head, frame.buffer, self.vnet_len);
                    frame.spot = if let Some(places) = &places {
                        places.spot(head.bytes())
                    } else {
                        cache.fetch_addresses(switch, port, head.bytes());
                        Spot::NONE
                    };
                }
                if let Some([first, .., last]) = soon.1.get(..taken) {
                    cache.announced(taken, &first.spot, &last.spot);
                }
                queue.peek(0, TOGETHER as u16, |_, soon| self.fetch(soon));
            }
            // What the last hands of a burst have left from earlier ones is fetched in vain.
            let (soon, _) = soon.1.as_chunks::<AT_ONCE>();
            let now = now.0.chunks_mut(AT_ONCE).zip(now.1.chunks(AT_ONCE));
            for (soon, (heads, frames)) in soon.iter().zip(now) {
                soon.iter().for_each(|frame| lookup.cache.fetch(&frame.spot));
                let part = in_hand.min(AT_ONCE);
                in_hand -= part;
                for (head, frame) in heads.iter_mut().zip(frames).take(part) {
                    self.deal_with::<CHECKED>(queue, frame, head, lookup, egress);
                }
            }
            self.frames += taken;
            (in_hand, turn) = (taken, !turn);
            if taken == 0 {
                match next? {
                    Next::Chain if self.deal_with_chain::<CHECKED>(queue, forward)? => {}
                    _ => return Ok(()),
                }
            }
        }
    }

    /// Forwards a frame, of which `head` holds the beginning.
    #[inline(always)]
    fn deal_with<const CHECKED: bool>(
        &mut self,
        queue: &mut Queue,
        Single { buffer, id, spot }: &Single<'_>,
        head: &mut Head,
        lookup: &mut Lookup<'_>,
        egress: &mut Egress<'_>,
    ) {
        let Self { sender, vnet_len, .. } = self;
        let (buffer, len) = (*buffer, buffer.len().saturating_sub(*vnet_len));
        if !self.enabled {
            sender.counters.drop(DropReason::QueueDisabled, 1);
        } else if let Some(header) = load_header(buffer, *vnet_len, sender.offloads) {
            let body = Body::One(buffer.skip(*vnet_len + head.len()));
            lookup.forward::<CHECKED>(sender, header, (head, spot), body, len, egress);
        } else {
            sender.counters.drop(DropReason::Runt, 1);
        }
        queue.complete(&[Used { id: *id, descs: 1, len: 0 }]);
        self.bytes += len as u64;
    }

    /// Takes a frame in several buffers and forwards it; false if there is none.
    #[inline(never)]
    fn deal_with_chain<const CHECKED: bool>(
        &mut self,
        queue: &mut Queue,
        forward: &mut Forward<'_>,
    ) -> Result<bool, GuestFault> {
        let Self { sender, vnet_len, .. } = self;
        let Forward { lookup, heads: [[head, ..], _], egress } = forward;
        let mut chain = Chain::new();
        if !queue.pop(self.mem, &mut chain)? {
            return Ok(false);
        }
        let slices = chain.readable();
        let len = (chain.readable_len() as usize).saturating_sub(*vnet_len);
        if self.enabled {
            let skip = fill(head, slices, *vnet_len);
            let header = match sender.offloads {
                Offloads::NONE => VirtioNetHdr::default(),
                _ => VirtioNetHdr::parse(head.vnet(*vnet_len)).unwrap_or_default(),
            };
            let body = Body::Guest { slices, skip };
            lookup.forward::<CHECKED>(
                sender,
                header.into(),
                (head, &Spot::NONE),
                body,
                len,
                egress,
            );
        } else {
            sender.counters.drop(DropReason::QueueDisabled, 1);
        }
        queue.complete(&[chain.used(0)]);
        self.bytes += len as u64;
        self.frames += 1;
        Ok(true)
    }

    /// Has what is read of a frame first fetched from the guest's cache.
    #[inline(always)]
    fn fetch(&self, soon: Soon) {
        if self.sender.offloads != Offloads::NONE {
            self.mem.prefetch_read(soon.addr);
        }
        let frame = soon.addr.wrapping_add(self.vnet_len as u64);
        self.mem.prefetch_read(frame);
        if soon.len as usize > self.vnet_len + LINE {
            self.mem.prefetch_read(frame.wrapping_add(LINE as u64));
        }
    }
}

/// Copies the beginning of a frame, which comes after `vnet_len` bytes of header.
#[inline(always)]
fn begin(head: &mut Head, buffer: GuestSlice<'_>, vnet_len: usize) {
    if let Some(block) = head.block_mut() {
        let begun = buffer.skip(vnet_len).copy_to_block(block);
        head.set_len(begun);
    }
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
