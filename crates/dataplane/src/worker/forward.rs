//! One frame from where it came in to where it goes: check, look up, edit, send.

use packet::eth::{ETH_HLEN, Eth};
use packet::route::{Packet, Usual};
use packet::tuple::Tuple;
use packet::{Checked, Head, Mac, Offloads, RawVirtioNetHdr, VlanEdit};
use switch::rules::PortRules;
use switch::{Cache, DropReason, Flood, Guard, PortId, Routed, Snapshot, Spot, Verdict, Watch};

use crate::counters::QueueCounters;
use crate::egress::Egress;
use crate::frame::{Body, FRAME_MAX, Frame};
use crate::port::Port;

/// Most frames taken from one queue before the next queue gets its turn.
pub(crate) const BURST: usize = 96;

/// So many frames are taken from a guest, one after another, before the first of them is dealt with: what is to be read
/// of them, and then what is known about their addresses, is fetched for all of them at once.
pub(crate) const TOGETHER: usize = 16;

/// What forwarding a burst needs: lent to a queue by the worker.
pub(crate) struct Forward<'a> {
    pub(crate) lookup: Lookup<'a>,
    /// For the frames in hand: those that are dealt with, and those that come after.
    pub(crate) heads: &'a mut [[Head; TOGETHER]; 2],
    pub(crate) egress: Egress<'a>,
}

/// Who sent a frame.
pub(crate) struct Sender<'a> {
    pub(crate) port: &'a Port,
    pub(crate) counters: &'a QueueCounters,
    /// What it may leave unfinished.
    pub(crate) offloads: Offloads,
    /// What its frames have to pass first.
    pub(super) guard: Option<&'a Guard>,
    /// The rules of the port.
    pub(super) rules: Option<&'a PortRules>,
    /// What verdicts on its frames hinge on.
    pub(crate) watch: Option<Watch<'a>>,
    /// There is one or the other.
    special: bool,
    /// The time of the burst, if that matters to the guard: nanoseconds since the data plane started.
    pub(super) now_ns: u64,
}

impl<'a> Sender<'a> {
    /// The sender of a burst.
    #[inline]
    pub(crate) fn new(
        port: &'a Port,
        counters: &'a QueueCounters,
        offloads: Offloads,
        lookup: &Lookup<'a>,
        egress: &Egress<'_>,
    ) -> Self {
        let (guard, rules, watch) = lookup.switch.sender(port.id);
        let now_ns = if guard.is_some_and(Guard::is_metered) { egress.now() } else { 0 };
        let special = guard.is_some() || rules.is_some();
        Self { port, counters, offloads, guard, rules, watch, special, now_ns }
    }
}

/// The deciding part.
pub(crate) struct Lookup<'a> {
    pub(crate) switch: &'a Snapshot,
    pub(crate) cache: &'a mut Cache,
    pub(crate) now_ms: u64,
    /// Room for one frame in one piece, for frames that go to several ports.
    pub(crate) flood: &'a mut [u8],
    /// The same for frames that rules mirror.
    pub(crate) spare: &'a mut [u8],
}

impl Lookup<'_> {
    /// Whether anything is asked of frames from this port, or of frames to some port.
    pub(crate) fn asks(&self, port: PortId) -> bool {
        self.switch.has_rules() || self.switch.guard(port).is_some()
    }

    /// Forwards one frame of `len` bytes that came with `header`: `head` holds its beginning,
    /// `body` the rest. What is not sent is counted at the sender or the receiver.
    ///
    /// `CHECKED`: something may be [asked](Lookup::asks) of it. What is asked of none is no code for any.
    #[inline(always)]
    pub(crate) fn forward<const CHECKED: bool>(
        &mut self,
        sender: &Sender<'_>,
        header: RawVirtioNetHdr,
        (head, spot): (&mut Head, &Spot),
        body: Body<'_, '_>,
        len: usize,
        egress: &mut Egress<'_>,
    ) {
        let mut frame = Frame { head, offload: Checked::PLAIN, body, len };
        let reason = match accept(&mut frame, header, sender) {
            Ok(()) if CHECKED && sender.special => return self.examine(sender, &mut frame, egress),
            Ok(()) => match self.route::<CHECKED>(sender, &mut frame, spot, egress) {
                Ok(()) => return,
                Err(reason) => reason,
            },
            Err(reason) => reason,
        };
        sender.counters.drop(reason, 1);
    }

    /// Looks a frame up, at its `spot` if it was announced ([`Spot::NONE`]: it was not), and sends it where it goes.
    ///
    /// # Errors
    /// Under which name it is dropped, if that was not counted.
    #[inline(always)]
    pub(super) fn route<const CHECKED: bool>(
        &mut self,
        sender: &Sender<'_>,
        frame: &mut Frame<'_, '_>,
        spot: &Spot,
        egress: &mut Egress<'_>,
    ) -> Result<(), DropReason> {
        let id = sender.port.id;
        let to = match self.at_once(id, frame, spot) {
            Some(to) => to,
            None => {
                let Lookup { switch, cache, now_ms, .. } = self;
                let announced = sender.watch.filter(|_| spot.is_some()).map(|watch| (spot, watch));
                match cache.destination(switch, id, || frame.head.bytes(), announced, *now_ms) {
                    Ok(port) => port,
                    Err(Verdict::Forward { port, edit }) => {
                        apply(edit, frame);
                        port
                    }
                    Err(Verdict::Router { port, edit }) => self.bypass(id, (port, edit), frame),
                    Err(Verdict::Flood(members)) => {
                        self.flood(members, sender, frame, egress);
                        return Ok(());
                    }
                    Err(Verdict::Drop(reason)) => return Err(reason),
                }
            }
        };
        if CHECKED && self.switch.has_rules() {
            self.deliver(to, sender, frame, egress);
        } else {
            egress.send(to, frame, sender.counters);
        }
        Ok(())
    }

    /// Where a frame goes that is like the one before it, and was not announced, or like the one that went past a
    /// router before it. The latter is changed already.
    #[inline(always)]
    fn at_once(&mut self, from: PortId, frame: &mut Frame<'_, '_>, spot: &Spot) -> Option<PortId> {
        let expects_route = if spot.is_some() {
            self.cache.expects_route_at(spot)
        } else {
            let head = frame.head.bytes();
            if let Some(to) = self.cache.as_before(from, head) {
                return Some(to);
            }
            self.cache.expects_route(head)
        };
        if expects_route { self.again(from, frame) } else { None }
    }

    /// Does to a frame for a router's port what the router, and others after it, would do, as far as
    /// they delegated that; returns where it goes then.
    #[inline(never)]
    fn bypass(
        &mut self,
        from: PortId,
        (router, edit): (PortId, VlanEdit),
        frame: &mut Frame<'_, '_>,
    ) -> PortId {
        let Lookup { switch, cache, now_ms, .. } = self;
        let head = frame.head.bytes();
        if let Ok(packet) = Packet::parse(head, frame.len, &frame.offload)
            && has_only_padding(packet, frame)
            && let of = (packet, &frame.offload)
            && let Some(way) = cache.route(switch, (from, router, edit), head, of, *now_ms)
        {
            return rewrite(packet, way, frame);
        }
        apply(edit, frame);
        router
    }

    /// The same for a frame like one that did so just now; `None`: it has to be looked at as any
    /// other.
    #[inline(always)]
    fn again(&mut self, from: PortId, frame: &mut Frame<'_, '_>) -> Option<PortId> {
        let Lookup { switch, cache, now_ms, .. } = self;
        let (block, len) = frame.head.block()?;
        let packet = Usual::read(block, len, frame.len)?;
        // Padding, or something that is left to do.
        if packet.packet().frame_len() != frame.len || frame.offload != Checked::PLAIN {
            return None;
        }
        let way = cache.route_again(switch, from, &packet, *now_ms)?;
        packet.forward(frame.head.block_mut()?, way.routers, way.macs);
        let (port, edit) = (way.port, way.edit);
        if edit != VlanEdit::Keep {
            retag(edit, frame);
        }
        Some(port)
    }

    /// Sends copies to every member. The rest of the frame is fetched from the guest once, so that
    /// all receivers get the same bytes.
    #[cold]
    fn flood(
        &mut self,
        flood: Flood,
        sender: &Sender<'_>,
        frame: &Frame<'_, '_>,
        egress: &mut Egress<'_>,
    ) {
        let (switch, room) = (self.switch, std::mem::take(&mut self.flood));
        let n = frame.body.copy_to(room);
        let body = Body::Local(room.get(..n).unwrap_or_default());
        let mut copies = 0u64;
        // What is flooded has a header.
        let dst = Eth::parse(frame.head.bytes()).map_or(Mac::BROADCAST, |eth| eth.dst);
        for member in switch.flood(flood, dst) {
            let mut head = frame.head.clone();
            let (offload, len) = (frame.offload, frame.len);
            let mut copy = Frame { head: &mut head, offload, body, len };
            apply(member.edit, &mut copy);
            self.deliver(member.port, sender, &mut copy, egress);
            copies += 1;
        }
        match copies {
            0 => sender.counters.drop(DropReason::NoDestination, 1),
            n => sender.counters.flood_copies.add(n - 1),
        }
        self.flood = room;
    }
}

/// Whether a frame of so many bytes is such as need nothing done to them.
#[inline(always)]
pub(crate) fn is_plain(header: RawVirtioNetHdr, len: usize) -> bool {
    header.is_plain() && (ETH_HLEN..=FRAME_MAX).contains(&len)
}

/// Routers send on what they received without the padding behind it. More than that they deal with
/// themselves.
#[inline(always)]
fn has_only_padding(packet: Packet, frame: &Frame<'_, '_>) -> bool {
    packet.frame_len() == frame.len || frame.len == frame.head.len()
}

/// Does what the routers on the way do; returns where the frame goes.
#[inline(always)]
fn rewrite(
    packet: Packet,
    (way, translated): (&Routed, Option<&Tuple>),
    frame: &mut Frame<'_, '_>,
) -> PortId {
    if packet.frame_len() < frame.len {
        frame.len = packet.frame_len();
        frame.head.truncate(frame.len);
    }
    if let Some(to) = translated
        && let Some(tuple) = packet.tuple(frame.head.bytes(), &frame.offload)
    {
        packet.translate(frame.head.bytes_mut(), &frame.offload, &tuple, to);
    }
    packet.forward(frame.head, way.routers, way.macs);
    apply(way.edit, frame);
    way.port
}

/// Checks the length of a frame, and what its header claims.
#[inline(always)]
fn accept(
    frame: &mut Frame<'_, '_>,
    header: RawVirtioNetHdr,
    sender: &Sender<'_>,
) -> Result<(), DropReason> {
    if frame.len < ETH_HLEN {
        return Err(DropReason::Runt);
    }
    if frame.len > FRAME_MAX {
        return Err(DropReason::FrameTooBig);
    }
    if header.is_plain() { Ok(()) } else { accept_unfinished(frame, header, sender) }
}

/// A frame that the sender left something to do with. By itself, so that a header which asks for nothing is not taken apart.
#[inline(never)]
fn accept_unfinished(
    frame: &mut Frame<'_, '_>,
    header: RawVirtioNetHdr,
    sender: &Sender<'_>,
) -> Result<(), DropReason> {
    let checked = header.parse().validate(frame.len, frame.head.bytes(), sender.offloads);
    frame.offload = checked.map_err(|_| DropReason::BadOffload)?;
    sender.counters.gso_frames.add(u64::from(frame.offload.gso.is_some()));
    Ok(())
}

/// [`apply`], where that is seldom needed.
#[inline(never)]
fn retag(edit: VlanEdit, frame: &mut Frame<'_, '_>) {
    apply(edit, frame);
}

/// Changes the frame's VLAN tag as the verdict says.
#[inline]
fn apply(edit: VlanEdit, frame: &mut Frame<'_, '_>) {
    if edit != VlanEdit::Keep {
        frame.head.edit(edit);
        frame.offload.follow(edit);
        frame.len = frame.len.saturating_add_signed(edit.growth().into());
    }
}
