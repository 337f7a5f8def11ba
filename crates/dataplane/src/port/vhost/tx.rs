//! Guest TX queues: frames taken from a guest.

use std::fmt;
use std::sync::Arc;

use guestmem::{GuestMemory, GuestSlice};
use packet::vnet::{VNET_HLEN, VNET_HLEN_LEGACY};
use packet::{Checked, Head, Offloads, RawVirtioNetHdr, VirtioNetHdr};
use switch::{DropReason, PortId, Spot};
use sys::EventFd;
use virtqueue::{Chain, GuestFault, Next, Queue, Soon, Used};

use crate::egress::Egress;
use crate::frame::{Body, Frame, Plain, fill};
use crate::port::vhost::{LINE, LINES};
use crate::port::{Kind, Port};
use crate::worker::forward::{BURST, Forward, Lookup, Sender, TOGETHER, is_plain};
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
    /// Where all frames of the last burst went, if that was one queue: the next ones probably go there, too.
    pub(crate) toward: Option<PortId>,
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
        let Self { port, index, queue, mem, vnet_len, offloads, enabled, toward, .. } = self;
        let Some(counters) = port.incoming.get(usize::from(*index)) else { return Ok(0) };
        let sender = Sender::new(port, counters, *offloads, &forward.lookup, &forward.egress);
        queue.look_ahead((BURST + 2 * TOGETHER) as u16);
        let scattered = forward.lookup.cache.wants_announcements();
        let (vnet_len, enabled) = (*vnet_len, *enabled);
        let mut burst = Burst { sender, mem, vnet_len, enabled, frames: 0, bytes: 0 };
        let result = if scattered {
            burst.take_in_hands::<CHECKED>(queue, forward)
        } else {
            if let Some(soon) = queue.first() {
                burst.fetch_all(soon);
            }
            if let Some(to) = *toward {
                forward.egress.expect(to);
            }
            burst.take_singly::<CHECKED>(queue, forward)
        };
        let Burst { frames, bytes, .. } = burst;
        counters.frames.add(frames as u64);
        counters.bytes.add(bytes);
        *toward = forward.egress.only();
        // The receivers wait for their frames, the sender for nothing. Whoever is asked whether it wants an interrupt has to
        // see first what it was shown: that is waited for once.
        forward.egress.publish();
        queue.publish();
        forward.egress.close();
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

/// Of frames that are taken singly, so many are fetched at once, and so many ahead.
const AHEAD: usize = 8;

/// What is known about the addresses of so many frames is fetched in a row. Fewer were slower: see docs/performance.md.
const AT_ONCE: usize = 8;
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
    /// Where it goes as it is, if that is known.
    to: Option<PortId>,
}

impl<'m> Single<'m> {
    const NONE: Self = Self { buffer: GuestSlice::EMPTY, id: 0, spot: Spot::NONE, to: None };

    /// The frame, of which `head` holds the beginning.
    #[inline(always)]
    fn plain<'a>(&self, head: &'a Head, vnet_len: usize) -> Plain<'a, 'm> {
        let rest = self.buffer.skip(vnet_len + head.len());
        Plain { head, rest, len: self.buffer.len().saturating_sub(vnet_len) }
    }
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
            if self.frames.is_multiple_of(AHEAD) {
                queue.peek(AHEAD as u16, AHEAD as u16, |_, soon| self.fetch(soon));
            }
            let Forward { lookup, heads: [[head, ..], _], egress } = &mut *forward;
            match queue.next(self.mem)? {
                Next::Empty => break,
                Next::One { buffer, id, writable } => {
                    let buffer = buffer.take(if writable { 0 } else { usize::MAX });
                    begin(head, buffer, self.vnet_len);
                    let frame = Single { buffer, id, ..Single::NONE };
                    let len = self.deal_with::<CHECKED>(&frame, head, lookup, egress);
                    queue.complete(&[Used { id, descs: 1, len: 0 }]);
                    self.frames += 1;
                    self.bytes += len as u64;
                }
                Next::Chain if self.deal_with_chain::<CHECKED>(queue, lookup, head, egress)? => {}
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
        let Forward { lookup, heads: [heads, other_heads], egress } = forward;
        let (mut hand, mut other_hand) = ([Single::NONE; TOGETHER], [Single::NONE; TOGETHER]);
        let mut now = (heads, &mut hand);
        let mut soon = (other_heads, &mut other_hand);
        let mut in_hand = 0;
        loop {
            let (mut next, mut taken) = (Ok(Next::Empty), 0);
            if self.frames < BURST {
                next = queue.next_few(self.mem, TOGETHER as u16, |buffer, id, writable| {
                    let Some(place) = soon.1.get_mut(taken) else { return false };
                    let buffer = buffer.take(if writable { 0 } else { usize::MAX });
                    (place.buffer, place.id) = (buffer, id);
                    taken += 1;
                    true
                });
                let (port, Lookup { switch, cache, .. }) = (self.sender.port.id, &mut *lookup);
                let places = cache.places(port);
                for (head, frame) in soon.0.iter_mut().zip(&mut *soon.1).take(taken) {
                    begin(head, frame.buffer, self.vnet_len);
                    self.bytes += frame.buffer.len().saturating_sub(self.vnet_len) as u64;
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
            let (first, rest) = soon.1.split_at(AT_ONCE);
            first.iter().for_each(|frame| lookup.cache.fetch(&frame.spot));
            let hand = (now.0.get_mut(..in_hand), now.1.get_mut(..in_hand));
            let (Some(heads), Some(frames)) = hand else { return Ok(()) };
            if !CHECKED && self.enabled {
                self.look_up(frames, lookup);
            }
            rest.iter().for_each(|frame| lookup.cache.fetch(&frame.spot));
            self.deal_with_all::<CHECKED>(heads, frames, lookup, egress);
            queue.complete_each(frames.iter().map(|frame| (frame.id, 0)));
            self.frames += taken;
            in_hand = taken;
            std::mem::swap(&mut now, &mut soon);
            if taken == 0 {
                let [head, ..] = &mut *now.0;
                match next? {
                    Next::Chain
                        if self.deal_with_chain::<CHECKED>(queue, lookup, head, egress)? => {}
                    _ => return Ok(()),
                }
            }
        }
    }

    /// Finds out where frames go, as far as it is remembered that they are only to be forwarded.
    #[inline(always)]
    fn look_up(&self, frames: &mut [Single<'_>], lookup: &mut Lookup<'_>) {
        let Self { sender: Sender { watch, offloads, .. }, vnet_len, .. } = self;
        let Some(watch) = *watch else { return };
        let known = lookup.cache.known(watch, lookup.now_ms);
        let mut found = 0;
        for frame in frames {
            let len = frame.buffer.len().saturating_sub(*vnet_len);
            let header = load_header(frame.buffer, *vnet_len, *offloads);
            let plain = header.is_some_and(|header| is_plain(header, len));
            frame.to = if plain { known.port(&frame.spot) } else { None };
            found += usize::from(frame.to.is_some());
        }
        lookup.cache.found(found);
    }

    /// Forwards frames, of which `heads` hold the beginnings: several at once where they go the same way.
    #[inline(always)]
    fn deal_with_all<const CHECKED: bool>(
        &self,
        heads: &mut [Head],
        frames: &[Single<'_>],
        lookup: &mut Lookup<'_>,
        egress: &mut Egress<'_>,
    ) {
        let (vnet_len, counters) = (self.vnet_len, self.sender.counters);
        let mut heads = heads.iter_mut();
        for row in frames.chunk_by(|one, next| one.to == next.to) {
            let sent = if let [Single { to: Some(to), .. }, _, ..] = row {
                let plain = row.iter().zip(heads.as_slice());
                egress.send_few(*to, plain.map(|(frame, head)| frame.plain(head, vnet_len)))
            } else {
                0
            };
            for (frame, head) in row.iter().zip(&mut heads).skip(sent) {
                if let Some(to) = frame.to {
                    let Plain { rest, len, .. } = frame.plain(head, vnet_len);
                    let offload = Checked::PLAIN;
                    let mut frame = Frame { head, offload, body: Body::One(rest), len };
                    egress.send_aside(to, &mut frame, counters);
                } else {
                    self.deal_with::<CHECKED>(frame, head, lookup, egress);
                }
            }
        }
    }

    /// Forwards a frame, of which `head` holds the beginning; returns its length, bytes.
    #[inline(always)]
    fn deal_with<const CHECKED: bool>(
        &self,
        Single { buffer, spot, .. }: &Single<'_>,
        head: &mut Head,
        lookup: &mut Lookup<'_>,
        egress: &mut Egress<'_>,
    ) -> usize {
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
        len
    }

    /// Takes a frame in several buffers and forwards it; false if there is none.
    #[inline(never)]
    fn deal_with_chain<const CHECKED: bool>(
        &mut self,
        queue: &mut Queue,
        lookup: &mut Lookup<'_>,
        head: &mut Head,
        egress: &mut Egress<'_>,
    ) -> Result<bool, GuestFault> {
        let Self { sender, vnet_len, .. } = self;
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

    /// All of a frame, as far as it is no longer than most.
    #[inline(always)]
    fn fetch_all(&self, soon: Soon) {
        self.fetch(soon);
        for line in 2..(soon.len as usize).div_ceil(LINE).min(LINES) {
            self.mem.prefetch_read(soon.addr.wrapping_add((line * LINE) as u64));
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
