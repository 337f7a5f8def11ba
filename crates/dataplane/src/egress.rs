//! The way out: one burst's open destinations, and the work a receiver cannot do itself.
//!
//! A worker opens a destination (takes its lock) at the first frame for it in a burst and closes
//! it at the end: one lock and one decision about an interrupt per burst and destination. It never
//! waits for a lock while it holds another: if a destination is busy, everything open is closed
//! first. So two workers that send to each other's ports cannot stop each other.

use arrayvec::ArrayVec;
use packet::eth::ETH_HLEN;
use packet::segment::{Scratch, Segmenter};
use packet::{Checked, Head, Offloads, checksum, flow_hash};
use parking_lot::MutexGuard;
use switch::{DropReason, PortId};

use crate::clock::Clock;
use crate::counters::QueueCounters;
use crate::frame::{Body, FRAME_MAX, Frame, Plain, fill_local};
use crate::owed::Owed;
use crate::port::tap::TapPort;
use crate::port::vhost::VhostPort;
use crate::port::vhost::rx::{LiveRx, RxQueue};
use crate::port::{Kind, Port, PortMap, Sink};

/// Most destinations open at once; with more the oldest is closed.
const OPEN_MAX: usize = 8;

/// What a worker has of its own: room to finish a frame in (a whole frame in one piece, and its
/// headers), and the interrupts it owes.
#[derive(Debug)]
pub(crate) struct Workshop {
    linear: Box<[u8]>,
    head: Head,
    scratch: Scratch,
    /// Interrupts put off at the end of a burst.
    pub(crate) owed: Owed,
}

impl Workshop {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            linear: vec![0; FRAME_MAX].into_boxed_slice(),
            head: Head::new(),
            scratch: [0; size_of::<Scratch>()],
            owed: Owed::new(clock),
        }
    }
}

/// A destination opened in this burst.
struct Open<'a> {
    port: &'a Port,
    index: u16,
    vhost: &'a VhostPort,
    queue: &'a RxQueue,
    live: MutexGuard<'a, Option<Box<LiveRx>>>,
}

impl Open<'_> {
    fn close(mut self, owed: &mut Owed) {
        let Some(live) = self.live.as_mut() else { return };
        live.finish((self.port.id, self.index), &self.queue.counters, owed);
        self.queue.next.set(live.queue.entry());
        if live.mem.faulted() {
            *self.live = None;
            self.vhost.memory_vanished();
        }
    }
}

/// The destinations of one burst.
pub(crate) struct Egress<'a> {
    ports: &'a PortMap,
    open: ArrayVec<Open<'a>, OPEN_MAX>,
    /// Where the frame before went, and its place among the open ones: if all that goes there goes to one queue.
    again: Option<(PortId, usize)>,
    workshop: &'a mut Workshop,
}

impl<'a> Egress<'a> {
    pub(crate) fn new(ports: &'a PortMap, workshop: &'a mut Workshop) -> Self {
        Self { ports, open: ArrayVec::new(), again: None, workshop }
    }

    /// Opens port `to`, if all that goes there goes to one queue, while the first of the frames that will probably go there
    /// is being fetched: taking a lock waits for all that was loaded before.
    #[inline(always)]
    pub(crate) fn expect(&mut self, to: PortId) {
        self.place_of_all(to);
    }

    /// Where all frames went, if all that goes there goes to one queue.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<PortId> {
        match (self.again, &*self.open) {
            (Some((to, _)), [_]) => Some(to),
            _ => None,
        }
    }

    /// Nanoseconds since the data plane started.
    pub(crate) fn now(&self) -> u64 {
        self.workshop.owed.now()
    }

    /// Sends `frame` out by port `to`, or counts why not. A frame to a port that is gone counts
    /// at `sender`.
    #[inline(always)]
    pub(crate) fn send(&mut self, to: PortId, frame: &mut Frame<'_, '_>, sender: &QueueCounters) {
        let at = match self.again {
            Some((again, at)) if again == to => at,
            _ => match self.place(to, frame, sender) {
                Some(at) => at,
                None => return,
            },
        };
        let Self { open, workshop, .. } = self;
        let Some(Open { port, vhost, live, queue, .. }) = open.get_mut(at) else { return };
        let counters = &queue.counters;
        let sent = match live.as_deref_mut() {
            Some(rx) => transmit(rx, port.mtu(), frame, workshop, counters),
            None => Err(DropReason::PortDown),
        };
        if let Err(reason) = sent {
            counters.drop(reason, 1);
            if reason == DropReason::GuestFault
                && let Some(rx) = live.take()
                && let Some(fault) = &rx.fault
            {
                vhost.stop_for(rx.mem.faulted(), fault);
            }
        }
    }

    /// Sends frames out by port `to` that nothing is to be done to, if it has one queue for all of them; returns how many
    /// it took. The next one, if there is one, is to be sent by itself.
    #[inline(always)]
    pub(crate) fn send_few<'f>(
        &mut self,
        to: PortId,
        frames: impl ExactSizeIterator<Item = Plain<'f, 'f>>,
    ) -> usize {
        let at = match self.again {
            Some((again, at)) if again == to => Some(at),
            _ => self.place_of_all(to),
        };
        let open = at.and_then(|at| self.open.get_mut(at));
        let Some(Open { port, live, queue, .. }) = open else { return 0 };
        let Some(rx) = live.as_deref_mut() else { return 0 };
        // Of a frame no longer than that the packet is no longer than the MTU, whatever it is.
        let longest = match port.mtu() {
            0 => FRAME_MAX,
            mtu => mtu as usize + ETH_HLEN,
        };
        let (sent, bytes) = rx.put_few(frames, longest);
        queue.counters.frames.add(sent as u64);
        queue.counters.bytes.add(bytes);
        sent
    }

    /// The place among the open destinations of a port's only queue.
    #[inline(never)]
    fn place_of_all(&mut self, to: PortId) -> Option<usize> {
        let port = self.ports.get(to)?;
        let Kind::Vhost(vhost) = &port.kind else { return None };
        let at = self.find(port, vhost, vhost.only()?)?;
        self.again = Some((to, at));
        Some(at)
    }

    /// The place among the open destinations of the queue for which a frame is; `None`: there is no such port, or it
    /// was a TAP interface, which has the frame.
    #[inline(always)]
    fn place(
        &mut self,
        to: PortId,
        frame: &mut Frame<'_, '_>,
        sender: &QueueCounters,
    ) -> Option<usize> {
        let Some(port) = self.ports.get(to) else {
            sender.drop(DropReason::PortDown, 1);
            return None;
        };
        match &port.kind {
            Kind::Vhost(vhost) => {
                let index = vhost.choose(|| flow_hash(frame.head.bytes()));
                let at = self.find(port, vhost, index)?;
                self.again = vhost.only().map(|_| (to, at));
                Some(at)
            }
            Kind::Tap(tap) => {
                self.send_tap(port, tap, frame);
                None
            }
        }
    }

    /// The same, where it is not the usual way of a frame: no other copy of so much code.
    #[inline(never)]
    pub(crate) fn send_aside(
        &mut self,
        to: PortId,
        frame: &mut Frame<'_, '_>,
        sender: &QueueCounters,
    ) {
        self.send(to, frame, sender);
    }

    /// Counts at port `to` that a frame for it is not sent. A frame to a port that is gone counts at
    /// `sender`.
    pub(crate) fn refuse(
        &mut self,
        to: PortId,
        frame: &Frame<'_, '_>,
        reason: DropReason,
        sender: &QueueCounters,
    ) {
        let Some(port) = self.ports.get(to) else {
            sender.drop(DropReason::PortDown, 1);
            return;
        };
        match &port.kind {
            Kind::Vhost(vhost) => {
                let index = vhost.choose(|| flow_hash(frame.head.bytes()));
                let at = self.find(port, vhost, index);
                if let Some(open) = at.and_then(|at| self.open.get(at)) {
                    open.queue.counters.drop(reason, 1);
                }
            }
            Kind::Tap(tap) => {
                let Some(queue) = tap.rx.get(tap.choose(|| flow_hash(frame.head.bytes()))) else {
                    return;
                };
                self.close();
                let _live = queue.live.lock();
                queue.counters.drop(reason, 1);
            }
        }
    }

    /// The place of this destination among the open ones, opening it if need be.
    #[inline(always)]
    fn find(&mut self, port: &'a Port, vhost: &'a VhostPort, index: u16) -> Option<usize> {
        let is = |open: &Open<'_>| open.port.id == port.id && open.index == index;
        if let Some(at) = self.open.iter().position(is) {
            return Some(at);
        }
        let queue = vhost.rx.get(usize::from(index))?;
        // Taking a lock waits for all that was loaded before: this goes on meanwhile.
        queue.next.fetch();
        self.again = None;
        if self.open.is_full() {
            self.open.remove(0).close(&mut self.workshop.owed);
        }
        let live = match queue.live.try_lock() {
            Some(live) => live,
            None => {
                self.close();
                queue.live.lock()
            }
        };
        self.open.push(Open { port, index, vhost, queue, live });
        Some(self.open.len() - 1)
    }

    fn send_tap(&mut self, port: &'a Port, tap: &'a TapPort, frame: &mut Frame<'_, '_>) {
        let chosen = tap.choose(|| flow_hash(frame.head.bytes()));
        let Some(queue) = tap.rx.get(chosen) else { return };
        let mut live = match queue.live.try_lock() {
            Some(live) => live,
            None => {
                self.close();
                queue.live.lock()
            }
        };
        let counters = &queue.counters;
        if let Err(reason) = transmit(&mut *live, port.mtu(), frame, self.workshop, counters) {
            counters.drop(reason, 1);
        }
    }

    /// Shows every open destination what it got.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        for live in self.open.iter_mut().filter_map(|open| open.live.as_mut()) {
            live.queue.publish();
        }
    }

    /// End of the burst: every open destination is shown what it got, and interrupted if it asked,
    /// now or later.
    pub(crate) fn close(&mut self) {
        self.again = None;
        for open in self.open.drain(..) {
            open.close(&mut self.workshop.owed);
        }
    }
}

impl Drop for Egress<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Delivers `frame` to `sink`, finished first if the sink cannot take it unfinished, and counts it.
#[inline(always)]
fn transmit(
    sink: &mut impl Sink,
    mtu: u32,
    frame: &mut Frame<'_, '_>,
    workshop: &mut Workshop,
    counters: &QueueCounters,
) -> Result<(), DropReason> {
    if mtu != 0 && over_mtu(frame, mtu) {
        return Err(DropReason::MtuExceeded);
    }
    if !sink.offloads().contains(frame.offload.needs()) {
        return finish(sink, frame, workshop, counters);
    }
    put(sink, frame, counters)
}

#[inline(always)]
fn put(
    sink: &mut impl Sink,
    frame: &mut Frame<'_, '_>,
    counters: &QueueCounters,
) -> Result<(), DropReason> {
    sink.put(frame)?;
    counters.frames.add(1);
    counters.bytes.add(frame.len as u64);
    counters.gso_frames.add(u64::from(frame.offload.gso.is_some()));
    Ok(())
}

/// Completes the checksum, or segments, in worker-local memory; then delivers.
///
/// Of a segmented frame every segment is delivered or counted as dropped on its own.
#[cold]
fn finish(
    sink: &mut impl Sink,
    frame: &mut Frame<'_, '_>,
    workshop: &mut Workshop,
    counters: &QueueCounters,
) -> Result<(), DropReason> {
    let Workshop { linear, head, scratch, .. } = workshop;
    let whole = gather(linear, frame).ok_or(DropReason::FrameTooBig)?;
    if frame.offload.gso.is_none() {
        let Some(csum) = frame.offload.csum else { return put(sink, frame, counters) };
        if !checksum::complete(whole, csum.start, csum.offset) {
            return Err(DropReason::BadOffload);
        }
        counters.csum_completed.add(1);
        let rest = fill_local(head, whole, 0);
        let body = Body::Local(whole.get(rest..).unwrap_or_default());
        let offload = Checked::PLAIN;
        return put(sink, &mut Frame { head, offload, body, len: frame.len }, counters);
    }
    let partial = sink.offloads().contains(Offloads::CSUM);
    let Some(mut segmenter) = Segmenter::new(whole, whole.len(), &frame.offload) else {
        return Err(DropReason::BadOffload);
    };
    counters.segmented.add(1);
    let mut fault = Ok(());
    while let Some(cut) = segmenter.cut(scratch) {
        counters.segments.add(1);
        if fault.is_err() {
            counters.drop(DropReason::GuestFault, 1);
            continue;
        }
        let payload = whole.get(cut.payload.clone()).unwrap_or_default();
        let offload = if partial {
            Checked { csum: Some(cut.csum), ..Checked::PLAIN }
        } else {
            cut.complete(scratch, payload);
            Checked::PLAIN
        };
        fill_local(head, scratch.get(..cut.header_len).unwrap_or_default(), 0);
        let (body, len) = (Body::Local(payload), cut.header_len + payload.len());
        match put(sink, &mut Frame { head, offload, body, len }, counters) {
            Ok(()) => {}
            // The caller counts the one that met the fault.
            Err(DropReason::GuestFault) => fault = Err(DropReason::GuestFault),
            Err(reason) => counters.drop(reason, 1),
        }
    }
    fault
}

/// Copies the whole frame into one piece.
fn gather<'l>(linear: &'l mut [u8], frame: &Frame<'_, '_>) -> Option<&'l mut [u8]> {
    let whole = linear.get_mut(..frame.len)?;
    let head = frame.head.bytes();
    let (front, rest) = whole.split_at_mut_checked(head.len())?;
    front.copy_from_slice(head);
    frame.body.copy_to(rest);
    Some(whole)
}

/// Whether the layer-3 packet in `frame`, or one segment of it, is larger than `mtu` bytes.
fn over_mtu(frame: &Frame<'_, '_>, mtu: u32) -> bool {
    let (start, end) = match frame.offload.gso {
        Some(gso) => {
            let segment = usize::from(gso.header_len) + usize::from(gso.size);
            (usize::from(gso.l3), segment.min(frame.len))
        }
        None => {
            let l3 = packet::eth::network_layer(frame.head.bytes()).map_or(0, |(_, at)| at);
            (l3, frame.len)
        }
    };
    end.saturating_sub(start) > mtu as usize
}
