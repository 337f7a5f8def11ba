//! Guest RX queues: frames delivered into a guest's buffers.
//!
//! A queue may be reached by several workers, so it sits behind a lock that a worker takes once
//! per burst. The port's `rx_worker` puts the running queue in and takes it out between bursts.

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;
use guestmem::{GuestMemory, GuestSlice, Hint};
use pace::{End, Moderator, Wait};
use packet::vnet::{VNET_HLEN, VNET_HLEN_LEGACY};
use packet::{Checked, Head, Offloads, VirtioNetHdr};
use parking_lot::Mutex;
use switch::DropReason;
use sys::EventFd;
use virtqueue::{Chain, GuestFault, MAX_TOGETHER, Next, Queue, Used};

use crate::counters::QueueCounters;
use crate::frame::{BUFFERS_MAX, Body, Buffers, Frame, Plain, Scatter};
use crate::owed::{Owed, Place};
use crate::port::Sink;
use crate::port::vhost::{LINE, LINES, SHORT};
use crate::worker::forward::{BURST, TOGETHER as HAND};

// The buffers of a frame are shown together.
const _: () = assert!(BUFFERS_MAX <= MAX_TOGETHER);

/// How many buffers ahead of the one being filled the next is fetched from the guest's cache.
const AHEAD: u16 = 16;
/// So many of them together.
const TOGETHER: u16 = 4;
/// Cache lines of a buffer that are fetched for a short frame at most.
const LINES_SHORT: usize = 4;

/// One RX queue of a vhost port.
#[derive(Debug, Default)]
pub(crate) struct RxQueue {
    /// The running queue, if there is one.
    pub(crate) live: Mutex<Option<Box<LiveRx>>>,
    /// What the next frame needs first: for who waits for the lock.
    pub(crate) next: Hint,
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
    /// Frames that have been put in since the end of the last burst. A whole word: compilers load 16 bits
    /// as 32, and what was just stored in a smaller piece is loaded only after all stores before it.
    pub(crate) filled: u32,
    /// Bytes of the frame that was last put by itself, with its header.
    pub(crate) last: u32,
    pub(crate) moderator: Moderator,
    /// The guest is owed an interrupt, or a look whether it still wants one.
    pub(crate) waiting: Option<Wait>,
    /// Most buffers that may be full without the guest knowing.
    pub(crate) room: u64,
    /// What the ring lied about: kept whenever `put` says [`DropReason::GuestFault`].
    pub(crate) fault: Option<GuestFault>,
}

impl Sink for LiveRx {
    #[inline]
    fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Into one buffer if it fits, into several with mergeable buffers. On refusal the ring is as
    /// before.
    #[inline(always)]
    fn put(&mut self, frame: &mut Frame<'_, '_>) -> Result<(), DropReason> {
        if !self.enabled {
            return Err(DropReason::QueueDisabled);
        }
        let Self { queue, mem, vnet_len, filled, last, fault, .. } = self;
        let need = *vnet_len + frame.len;
        // A few frames are not to wait for what others would need.
        if *filled % u32::from(TOGETHER) == u32::from(TOGETHER) - 1 {
            queue.peek(AHEAD, TOGETHER, |_, soon| {
                prefetch_room(mem, soon.addr.wrapping_add(*vnet_len as u64), frame.len);
            });
        }
        let (buffer, id) = match queue.next(mem).map_err(|lie| keep(lie, fault))? {
            Next::One { buffer, id, writable: true } if buffer.len() >= need => (buffer, id),
            Next::Empty => return Err(DropReason::RxRingEmpty),
            Next::One { .. } => {
                queue.put_back();
                return self.put_spread(frame, need);
            }
            Next::Chain => return self.put_spread(frame, need),
        };
        let room = begin(buffer, *vnet_len, frame.offload.header_word());
        let begun = copy_head(frame.head, room);
        match frame.body {
            Body::One(rest) if rest.is_empty() => {}
            Body::One(rest) => {
                rest.copy_to_guest(room.skip(begun));
            }
            body => Scatter::new(&[room.skip(begun)]).write_body(body),
        }
        queue.complete(&[Used { id, descs: 1, len: need as u32 }]);
        *filled = filled.wrapping_add(1);
        *last = need as u32;
        Ok(())
    }
}

/// Has the buffer of a frame to come fetched, that is taken to be as long as this one: of a short frame
/// the first lines, of a long one the first, as the processor sees by itself how it goes on.
#[inline(always)]
fn prefetch_room(mem: &GuestMemory, room: u64, len: usize) {
    mem.prefetch_write(room);
    if len <= LINE || len > SHORT {
        return;
    }
    // Known when the program is compiled: no loop.
    for line in 1..LINES_SHORT {
        if len <= line * LINE {
            break;
        }
        mem.prefetch_write(room.wrapping_add((line * LINE) as u64));
    }
}

/// Keeps what a ring lied about, for who stops it.
#[cold]
fn keep(lie: GuestFault, fault: &mut Option<GuestFault>) -> DropReason {
    *fault = Some(lie);
    DropReason::GuestFault
}

/// Stores a header of `vnet_len` bytes at the front of `buffer`; returns the room behind it.
#[inline(always)]
fn begin(buffer: GuestSlice<'_>, vnet_len: usize, header: u128) -> GuestSlice<'_> {
    let room = buffer.skip(vnet_len);
    if vnet_len == VNET_HLEN {
        store_header::<VNET_HLEN>(buffer, header, room);
    } else {
        store_header::<VNET_HLEN_LEGACY>(buffer, header, room);
    }
    room
}

/// Copies the first bytes of a frame to the front of `room`; returns how many.
#[inline(always)]
fn copy_head(head: &Head, room: GuestSlice<'_>) -> usize {
    match head.block() {
        Some((block, n)) => room.copy_from_block(block, n),
        None => room.copy_from(head.bytes()),
    }
}

/// Stores the header in front of `room`. If the frame does not share a cache line with it, as with
/// DPDK's driver, most frames find the header they need there already, from the buffer's last use.
#[inline(always)]
fn store_header<const N: usize>(buffer: GuestSlice<'_>, header: u128, room: GuestSlice<'_>) {
    if room.begins_line() {
        buffer.store_changed::<N>(header);
    } else {
        buffer.store_word::<N>(header);
    }
}

impl LiveRx {
    /// Puts plain frames, of no more than `longest` bytes, into one buffer each, as long as there are such buffers.
    /// Returns how many, and their bytes. The ring's lies and lacks are met again by whoever puts the next one
    /// ([`Sink::put`]).
    #[inline(always)]
    pub(crate) fn put_few<'f>(
        &mut self,
        frames: impl ExactSizeIterator<Item = Plain<'f, 'f>>,
        longest: usize,
    ) -> (usize, u64) {
        let Self { queue, mem, vnet_len, filled, .. } = self;
        if !self.enabled {
            return (0, 0);
        }
        let (vnet_len, count) = (*vnet_len, frames.len() as u16);
        let mut taken = ArrayVec::<(GuestSlice<'_>, u16), HAND>::new();
        // A lie: see above.
        let _ = queue.next_few(mem, count, |buffer, id, writable| {
            writable && taken.try_push((buffer, id)).is_ok()
        });
        let mut used = ArrayVec::<(u16, u32), HAND>::new();
        let (mut bytes, mut last) = (0, 0);
        for (&(buffer, id), Plain { head, rest, len }) in taken.iter().zip(frames) {
            let need = vnet_len + len;
            if buffer.len() < need || len > longest {
                break;
            }
            let room = begin(buffer, vnet_len, Checked::PLAIN.header_word());
            let begun = copy_head(head, room);
            if !rest.is_empty() {
                rest.copy_to_guest(room.skip(begun));
            }
            used.push((id, need as u32));
            (bytes, last) = (bytes + len as u64, len);
        }
        for _ in used.len()..taken.len() {
            queue.put_back();
        }
        let put = used.len() as u16;
        queue.complete_each(used.into_iter());
        queue.peek(AHEAD.saturating_sub(put), put, |_, soon| {
            prefetch_room(mem, soon.addr.wrapping_add(vnet_len as u64), last);
        });
        *filled = filled.wrapping_add(put.into());
        (usize::from(put), bytes)
    }

    /// Puts a frame into several parts or several buffers.
    #[cold]
    fn put_spread(&mut self, frame: &mut Frame<'_, '_>, need: usize) -> Result<(), DropReason> {
        let before = self.queue.position();
        let put = self.try_spread(frame, need);
        if put.is_err() {
            self.queue.rewind(before);
        }
        put
    }

    fn try_spread(&mut self, frame: &mut Frame<'_, '_>, need: usize) -> Result<(), DropReason> {
        let too_small = || DropReason::RxBufferTooSmall;
        let Self { queue, mem, vnet_len, mergeable, fault, .. } = self;
        let mut buffers = Buffers::new();
        let mut used = ArrayVec::<Used, BUFFERS_MAX>::new();
        let mut chain = Chain::new();
        let mut capacity = 0;
        while capacity < need {
            if !used.is_empty() && !*mergeable {
                return Err(too_small());
            }
            if !queue.pop(mem, &mut chain).map_err(|lie| keep(lie, fault))? {
                return Err(DropReason::RxRingEmpty);
            }
            let want = need - capacity;
            capacity +=
                take_buffers(&chain, want, &mut buffers, &mut used).ok_or_else(too_small)?;
        }
        let header = VirtioNetHdr { num_buffers: used.len() as u16, ..frame.offload.header() };
        let mut out = Scatter::new(&buffers);
        out.write(frame.head.with_vnet(header, *vnet_len));
        out.write_body(frame.body);
        queue.complete(&used);
        Ok(())
    }

    /// End of a burst: shows the guest what was delivered, and interrupts it if it asked for that,
    /// at once or, noted in `owed`, later.
    ///
    /// While the guest is owed an interrupt its wish is not looked at, and nothing is forgotten
    /// about it: what is decided in the end is about all the frames since.
    pub(crate) fn finish(&mut self, place: Place, counters: &QueueCounters, owed: &mut Owed) {
        self.queue.publish();
        // For the next burst.
        self.queue.look_ahead(BURST as u16 + AHEAD);
        if self.filled < u32::from(TOGETHER) {
            self.prepare();
        }
        self.filled = 0;
        let frames = counters.frames.get();
        if let Some(wait) = self.waiting {
            if frames >= wait.frames || self.is_full() {
                self.settle(End::Gathered, counters, owed.now());
            }
        } else if self.queue.wants_notification() {
            let now = owed.now();
            if !self.is_full() {
                self.waiting = self.moderator.ask(frames, self.queue.undecided(), now);
            }
            match self.waiting {
                Some(wait) if owed.note(place, wait, frames, now) => counters.deferred.add(1),
                _ => self.decide(counters, now),
            }
        }
    }

    /// Has the next buffer fetched, for a frame as long as the last one, while nobody waits.
    #[inline(never)]
    fn prepare(&self) {
        let Some(soon) = self.queue.first() else { return };
        for line in 0..(self.last as usize).div_ceil(LINE).min(LINES) {
            self.mem.prefetch_write(soon.addr.wrapping_add((line * LINE) as u64));
        }
    }

    /// Whether as many buffers are full as may be without the guest knowing.
    fn is_full(&self) -> bool {
        self.queue.undecided() >= self.room || !self.queue.has_available()
    }

    /// Ends the wait, if there is one: interrupts the guest if it still asks for that.
    pub(crate) fn settle(&mut self, end: End, counters: &QueueCounters, now: u64) {
        if self.waiting.is_some() {
            self.moderator.ended(end, counters.frames.get(), now);
            self.decide(counters, now);
        }
    }

    /// Interrupts the guest if it asked for that, whatever may still gather.
    fn decide(&mut self, counters: &QueueCounters, now: u64) {
        self.waiting = None;
        if self.queue.should_notify() {
            self.moderator.interrupted(now);
            self.interrupt(counters);
        }
    }

    /// Shows the guest all there is; it is not owed anything afterwards.
    pub(crate) fn stop(&mut self, counters: &QueueCounters) {
        self.queue.publish();
        self.waiting = None;
        if self.queue.should_notify() {
            self.interrupt(counters);
        }
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

impl fmt::Debug for LiveRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveRx").field("enabled", &self.enabled).finish_non_exhaustive()
    }
}
