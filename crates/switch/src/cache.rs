//! A worker's memory of verdicts.
//!
//! Exact match on in-port, addresses and VLAN (module `pairs`). A frame like the one
//! before it in the same pass is not looked up at all ([`Cache::as_before`]).
//! Only verdicts that hinge on a known destination are kept, under the network's generation (the
//! crate's essay, 3), so that a change anywhere makes them miss; and each for some seconds at most,
//! after which the full look-up also refreshes the source's last-seen stamp.
//!
//! Where more addresses talk than there is room for, it wishes for more ([`Cache::wish`]). While remembering does not
//! pay even so (module `worth`), frames are worked out from the MAC table at once. Either may wait for
//! main memory: callers that know the next frames announce them ([`Cache::announce`]).
//!
//! One worker owns it (`&mut`). It cannot fail: what it does not know is worked out.

use packet::eth::{ETH_P_8021Q, Eth, is_tag_protocol};
use packet::route::{Packet, Usual};
use packet::tuple::Tuple;
use packet::{Checked, Mac, Tci, VlanEdit};

use crate::config::Snapshot;
use crate::fdb::{self, Held, REFRESH_MS, Watch};
use crate::memo::{Arrival, Memo};
use crate::pairs::{Kept, Pairs, Plan, Room, Spot};
use crate::vlan::VID_MAX;
use crate::way::Routed;
use crate::worth::Worth;
use crate::{DropReason, PortId, Verdict};

/// See the module.
#[derive(Debug)]
pub struct Cache {
    pairs: Pairs,
    worth: Worth,
    crowd: Crowd,
    held: Held,
    memo: Memo,
    last: Last,
    /// Frames of this pass that were looked up, and whether those of the last one were many.
    looked_up: u32,
    scattered: bool,
    /// Where the one before was looked up that was announced.
    before: usize,
}

/// Of this pass: the frame looked up last, as the next one often is of the same flow.
#[derive(Debug)]
struct Last {
    front: Front,
    /// Where it came in, and perhaps [`Last::ASIDE`]; [`NOBODY`]: there was none.
    in_port: u32,
    way: Packed,
}

impl Last {
    /// It has a tag, or more is to be done than to forward it as it is. Of others the first 16 bytes say all.
    const ASIDE: u32 = 1 << 16;
}

/// How many there are that talk.
#[derive(Debug, Default)]
struct Crowd {
    /// Verdicts that took the place of others that counted still, in about a second.
    number: usize,
    since_ms: u64,
    /// There is too little room.
    wants_room: bool,
    /// What room there should be has been said.
    is_told: bool,
    /// Verdicts that were worked out in some time, at least one for each pair that talks.
    all: usize,
    all_since_ms: u64,
}

/// Where frames of a port are looked up: as long as there is no other [room](Cache::furnish).
#[derive(Clone, Copy, Debug)]
pub struct Places {
    in_port: PortId,
    plan: Plan,
}

/// No port has this number.
pub(crate) const NOBODY: u32 = u32::MAX;

/// Destination and half of the source; the rest of the source, in-port and VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Key(u64, u64);

/// A port, or the number of a drop reason; and what to do (4 bits) with which VLAN id (12 bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Packed(u16, u16);

impl Cache {
    /// What [`Cache::default`] has room for: an eighth of a megabyte.
    pub const ENTRIES_DEFAULT: usize = Pairs::FEW;
    /// Look-ups in a pass from which on frames are announced.
    const SCATTERED: u32 = 8;

    /// A cache for `entries` verdicts: see [`Room::new`].
    pub fn new(entries: usize) -> Self {
        Self {
            pairs: Pairs::new(Room::new(entries)),
            worth: Worth::default(),
            crowd: Crowd::default(),
            held: Held::default(),
            memo: Memo::default(),
            last: Last { front: Front::default(), in_port: NOBODY, way: Packed::DEFAULT },
            looked_up: 0,
            scattered: false,
            before: usize::MAX,
        }
    }

    /// For how many verdicts there should be room, if that is other than it is: to be given by
    /// [`Cache::furnish`] whenever it is ready, and not said again before. To be asked now and then.
    pub fn wish(&mut self, now_ms: u64) -> Option<usize> {
        let Self { pairs, crowd, .. } = self;
        let (room, least) = (pairs.room(), Self::ENTRIES_DEFAULT);
        let wish = if crowd.is_told {
            None
        } else if crowd.wants_room && room < Room::MOST {
            Some((room * 8).min(Room::MOST))
        } else {
            (room > least && crowd.are_few(now_ms, least)).then_some(least)
        };
        crowd.is_told |= wish.is_some();
        wish
    }

    /// Other room for verdicts; those that are remembered are forgotten. Returns the room there was.
    pub fn furnish(&mut self, room: Room) -> Room {
        self.crowd = Crowd::default();
        self.worth.begin_again();
        self.pairs.furnish(room)
    }

    /// The verdict on a frame that came in at `in_port`, of which `head` is the beginning (18
    /// bytes are enough) and `now_ms` the time. Learns its source.
    pub fn lookup(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        head: &[u8],
        now_ms: u64,
    ) -> Verdict {
        let keep = |port| Verdict::Forward { port, edit: VlanEdit::Keep };
        self.destination(snapshot, in_port, || head, None, now_ms).map_or_else(|other| other, keep)
    }

    /// As [`Cache::lookup`]: the port to which the frame goes as it is, or else the verdict. In two
    /// registers, where a verdict is written to memory and read back.
    ///
    /// `announced`: where it is looked up ([`Places::spot`]), and of the port ([`Snapshot::watch`]), if the frame was
    /// announced. `head` is asked for if it takes more than to look there.
    #[inline(always)]
    pub fn destination<'h>(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        head: impl FnOnce() -> &'h [u8],
        announced: Option<(&Spot, Watch<'_>)>,
        now_ms: u64,
    ) -> Result<PortId, Verdict> {
        if let Some((spot, watch)) = announced {
            let before = std::mem::replace(&mut self.before, spot.at());
            self.looked_up += u32::from(before != spot.at());
            if let Some(way) = self.pairs.get(spot, watch.generation(), now_ms) {
                self.worth.hit(1);
                return way.unpack();
            }
        }
        let head = head();
        let Last { front: before, in_port: from, way } = self.last;
        let front = head.first_chunk().map(Front::of);
        if front == Some(before) && u32::from(in_port.0) | Last::ASIDE == from {
            self.worth.hit(1);
            return way.unpack();
        }
        self.last.in_port = NOBODY;
        self.looked_up += 1;
        if self.worth.passes_by() {
            return Err(snapshot.decide(in_port, head, now_ms, &mut self.held).verdict);
        }
        let key = front.and_then(|front| Some((front, front.key(in_port)?)));
        let (Some((front, key)), Some(port)) = (key, snapshot.port(in_port)) else {
            self.worth.missed();
            return Err(snapshot.decide(in_port, head, now_ms, &mut self.held).verdict);
        };
        let (generation, spot) = (port.fdb.generation(), self.pairs.plan().spot(key));
        if let Some(way) = self.pairs.get(&spot, generation, now_ms) {
            self.worth.hit(1);
            let aside = if way.is_keep() && key.tag().is_none() { 0 } else { Last::ASIDE };
            self.last = Last { front, in_port: u32::from(in_port.0) | aside, way };
            return way.unpack();
        }
        Err(decide(self, spot, generation, snapshot, in_port, head, now_ms))
    }

    /// Where the frame goes if it has the beginning of the one looked up before it in this pass, and that was
    /// only to be forwarded. `None`: it is to be looked up.
    #[inline(always)]
    pub fn as_before(&mut self, in_port: PortId, head: &[u8]) -> Option<PortId> {
        let Last { front, in_port: from, way } = self.last;
        if words(head)? != front.words() || u32::from(in_port.0) != from {
            return None;
        }
        self.worth.hit(1);
        Some(PortId(way.0))
    }

    /// Whether frames should be announced: so many are looked up, and what is known is more than the processor's
    /// nearer caches hold.
    #[inline]
    pub fn wants_announcements(&self) -> bool {
        self.scattered && (self.pairs.room() > Self::ENTRIES_DEFAULT || self.worth.is_bypassed())
    }

    /// Whether verdicts are not remembered for now.
    #[inline]
    pub fn is_bypassed(&self) -> bool {
        self.worth.is_bypassed()
    }

    /// To announce frames of a port, which come soon, after some others. `None` while verdicts are not remembered:
    /// [`Cache::fetch_addresses`] instead.
    #[inline(always)]
    pub fn places(&self, in_port: PortId) -> Option<Places> {
        let plan = self.pairs.plan();
        (!self.worth.is_bypassed()).then_some(Places { in_port, plan })
    }

    /// Has what is known about an announced frame fetched. Only a hint.
    #[inline(always)]
    pub fn fetch(&self, spot: &Spot) {
        self.pairs.fetch(spot);
    }

    /// Has the places of a frame's addresses in the MAC table fetched. Only a hint.
    #[inline(never)]
    pub fn fetch_addresses(&mut self, snapshot: &Snapshot, in_port: PortId, head: &[u8]) {
        if let Some(key) = Key::of(in_port, head)
            && let Some(port) = snapshot.port(in_port)
            && let (dst, src, tag) = (key.dst(), key.src(), key.tag())
            && let Some(class) = port.classify(&Eth { dst, src, tag, ethertype: 0 })
        {
            let table = self.held.table(&port.fdb);
            [src, dst].iter().for_each(|mac| table.fetch(fdb::key(class.fid, *mac)));
        }
    }

    /// The way past routers of a packet in a frame from `in_port` that is to go to a router's port
    /// with this edit, as [`Cache::lookup`] said ([`Verdict::Router`]), and the addresses and ports
    /// that it gets, if they are translated; `head` is the frame's beginning. `None`: it goes to that
    /// port as it is. Counts what takes the way.
    #[inline(always)]
    pub fn route(
        &mut self,
        snapshot: &Snapshot,
        (in_port, port, edit): (PortId, PortId, VlanEdit),
        head: &[u8],
        (packet, offload): (Packet, &Checked),
        now_ms: u64,
    ) -> Option<(&Routed, Option<&Tuple>)> {
        let domain = snapshot.domain(in_port)?;
        let (generation, tells) = (domain.generation(), domain.tells());
        let key = Key::of(in_port, head);
        let arrival = Arrival { to: (port, edit), head, packet, offload, key, generation, tells };
        self.memo.way(snapshot, &arrival, now_ms, &mut self.held)
    }

    #[cfg(test)]
    pub(crate) fn forgets_ways(&self) -> bool {
        self.memo.is_bypassed()
    }

    /// Whether a frame is to the same router as the last one that bypassed one: worth a look at
    /// [`Cache::route_again`] instead of [`Cache::lookup`].
    #[inline(always)]
    pub fn expects_route(&self, head: &[u8]) -> bool {
        self.memo.expects(head)
    }

    /// The same of a frame that was announced.
    #[inline(always)]
    pub fn expects_route_at(&self, spot: &Spot) -> bool {
        self.memo.expects(&spot.first().to_le_bytes())
    }

    /// As [`Cache::route`], and without a verdict on the frame, if all about it is remembered: that the packet's
    /// addresses are such as are forwarded was seen when it was worked out.
    #[inline(always)]
    pub fn route_again(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        packet: &Usual,
        now_ms: u64,
    ) -> Option<&Routed> {
        let domain = snapshot.domain(in_port)?;
        self.memo.again(domain, in_port, packet, now_ms)
    }

    /// Gives routers the counts of what went past them, as far as that was not done yet. For about
    /// once a second, and before a worker rests.
    #[inline]
    pub fn settle(&mut self, snapshot: &Snapshot) {
        if !self.memo.is_settled() {
            self.memo.settle(snapshot);
        }
    }

    /// Lets go of the MAC table it used last, and of the last verdict and way. For the end of each pass: see the crate's
    /// essay, 2.
    #[inline]
    pub fn release(&mut self) {
        self.last.in_port = NOBODY;
        self.scattered = std::mem::take(&mut self.looked_up) >= Self::SCATTERED;
        self.memo.release();
        if self.held.is_some() {
            self.held.release();
        }
    }

    /// Look-ups answered from memory, and those worked out, since the cache was made.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        self.worth.hits_and_misses()
    }
}

impl Places {
    /// The place of a frame, of which `head` is the beginning: for [`Cache::fetch`] and [`Cache::destination`].
    #[inline(always)]
    pub fn spot(&self, head: &[u8]) -> Spot {
        let key = Key::of(self.in_port, head);
        key.map_or(Spot::NONE, |key| self.plan.spot(key))
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self::new(Self::ENTRIES_DEFAULT)
    }
}

/// Works a verdict out and remembers it.
#[inline(never)]
fn decide(
    cache: &mut Cache,
    spot: Spot,
    generation: u64,
    snapshot: &Snapshot,
    in_port: PortId,
    head: &[u8],
    now_ms: u64,
) -> Verdict {
    cache.last.in_port = NOBODY;
    let decision = snapshot.decide(in_port, head, now_ms, &mut cache.held);
    let (Some(stamp), Some(way)) = (decision.remember, Packed::pack(decision.verdict)) else {
        cache.worth.missed();
        return decision.verdict;
    };
    // Where addresses are forgotten soon, they are looked up the more often.
    let age_ms = snapshot.port(in_port).map_or(0, |port| port.fdb.age_ms());
    let short = cache.pairs.stay_ms().saturating_sub(REFRESH_MS.max(age_ms / 4));
    let stamp_ms = u64::from(stamp).wrapping_sub(short);
    cache.crowd.all += 1;
    match cache.pairs.remember(spot, generation, way, (stamp_ms, now_ms)) {
        Kept::Again | Kept::Room => cache.worth.renewed(),
        Kept::Instead => {
            let doubted = cache.worth.missed();
            cache.crowd.count(now_ms, cache.pairs.room(), doubted);
        }
    }
    decision.verdict
}

impl Crowd {
    const SECOND_MS: u64 = 1000;
    /// Longer than a verdict is not looked up anew.
    const WHILE_MS: u64 = 16_000;

    /// Whether in the last while an eighth of so much room would have been enough for all. In a half of it some would
    /// push each other out, and ask for more again.
    fn are_few(&mut self, now_ms: u64, room: usize) -> bool {
        if now_ms.saturating_sub(self.all_since_ms) < Self::WHILE_MS {
            return false;
        }
        let few = self.all < room / 8 && self.all_since_ms != 0;
        (self.all, self.all_since_ms) = (0, now_ms);
        few
    }

    /// Counts one. More room is needed if they are many, in a second, for so much as there is; or if little is found.
    fn count(&mut self, now_ms: u64, room: usize, little: bool) {
        if now_ms.saturating_sub(self.since_ms) >= Self::SECOND_MS {
            (self.since_ms, self.number) = (now_ms, 0);
        }
        self.number += 1;
        self.wants_room |= little || self.number > room / 16;
    }
}

/// The first 16 bytes, in words that begin where words do.
#[inline(always)]
fn words(head: &[u8]) -> Option<[u64; 2]> {
    let (words, _) = head.first_chunk::<16>()?.as_chunks::<8>();
    let &[first, second] = words else { return None };
    Some([u64::from_le_bytes(first), u64::from_le_bytes(second)])
}

/// A frame's first 18 bytes, in words that begin where words do: what its key follows from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Front(u64, u64, u16);

impl Front {
    #[inline(always)]
    pub(crate) fn of(head: &[u8; 18]) -> Self {
        match head.as_chunks::<8>() {
            (&[first, second], &[p, q]) => Self(
                u64::from_le_bytes(first),
                u64::from_le_bytes(second),
                u16::from_le_bytes([p, q]),
            ),
            // It has that many.
            _ => Self::default(),
        }
    }

    /// `None` for the frames that are always worked out: short ones, and those with a priority
    /// tag, a service tag or more than one tag.
    #[inline(always)]
    pub(crate) fn key(self, in_port: PortId) -> Option<Key> {
        let Self(first, second, inner) = self;
        let outer = ((second >> 32) as u16).swap_bytes();
        let vlan = if outer == ETH_P_8021Q {
            let vid = Tci(((second >> 48) as u16).swap_bytes()).vid();
            if is_tag_protocol(inner.swap_bytes()) || !(1..=VID_MAX).contains(&vid) {
                return None;
            }
            vid
        } else if is_tag_protocol(outer) {
            return None;
        } else {
            0
        };
        let lane = u64::from(in_port.0) << 32 | u64::from(vlan) << 48;
        Some(Key(first, second & 0xffff_ffff | lane))
    }

    /// Its first 16 bytes.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; 2] {
        [self.0, self.1]
    }

    /// The destination, as it is in keys of the MAC table: below it 16 bits, 0.
    #[inline(always)]
    pub(crate) fn dst_bits(self) -> u64 {
        self.0 << 16
    }

    /// The source in the same way.
    #[inline(always)]
    pub(crate) fn src_bits(self) -> u64 {
        (((u128::from(self.1) << 64 | u128::from(self.0)) >> 48) as u64) << 16
    }
}

impl Key {
    /// See [`Front::key`].
    #[inline(always)]
    pub(crate) fn of(in_port: PortId, head: &[u8]) -> Option<Self> {
        Front::of(head.first_chunk()?).key(in_port)
    }
}

impl Key {
    /// Of a frame without a tag that begins with these 16 bytes.
    #[inline]
    pub(crate) fn untagged(in_port: PortId, [first, second]: [u64; 2]) -> Self {
        Self(first, second & 0xffff_ffff | u64::from(in_port.0) << 32)
    }

    /// 0 if they are the same.
    #[inline]
    pub(crate) fn difference(self, other: Self) -> u64 {
        (self.0 ^ other.0) | (self.1 ^ other.1)
    }

    /// All of it, in half.
    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0 ^ self.1.rotate_left(24)
    }

    /// Both halves.
    #[inline]
    pub(crate) fn halves(self) -> (u64, u64) {
        (self.0, self.1)
    }

    /// The addresses, in three parts.
    #[inline]
    pub(crate) fn thirds(self) -> [u32; 3] {
        [self.0 as u32, (self.0 >> 32) as u32, self.1 as u32]
    }

    /// In-port and VLAN.
    #[inline]
    pub(crate) fn lane(self) -> u32 {
        (self.1 >> 32) as u32
    }

    pub(crate) fn dst(self) -> Mac {
        fdb::mac_of(self.front().dst_bits())
    }

    pub(crate) fn src(self) -> Mac {
        fdb::mac_of(self.front().src_bits())
    }

    /// A beginning with these addresses.
    fn front(self) -> Front {
        Front(self.0, self.1, 0)
    }

    /// The tag without its priority.
    pub(crate) fn tag(self) -> Option<Tci> {
        let vid = (self.1 >> 48) as u16;
        (vid != 0).then_some(Tci(vid))
    }
}

impl Packed {
    pub(crate) const DEFAULT: Self = Self(0, 0);
    const KEEP: u16 = 0;
    const PUSH: u16 = 1;
    const POP: u16 = 2;
    const DROP: u16 = 3;
    /// With one of the first three: to a router.
    const ROUTER: u16 = 4;
    /// Push with a priority, which is in the upper bits of the port.
    const PUSH_PRIORITY: u16 = 8;

    /// `None` for what a remembered frame never gets: a flood, or a priority tag rewritten.
    #[inline]
    pub(crate) fn pack(verdict: Verdict) -> Option<Self> {
        match verdict {
            Verdict::Forward { port, edit: VlanEdit::Keep } => Some(Self(port.0, Self::KEEP << 12)),
            Verdict::Forward { port, edit: VlanEdit::Pop } => Some(Self(port.0, Self::POP << 12)),
            Verdict::Forward { port, edit: VlanEdit::Push(tci) } if tci.0 == tci.vid() => {
                Some(Self(port.0, Self::PUSH << 12 | tci.vid()))
            }
            Verdict::Forward { port, edit: VlanEdit::Push(tci) } => {
                let priority = tci.0 & 0xf000;
                (port.0 & 0xf000 == 0)
                    .then_some(Self(port.0 | priority, Self::PUSH_PRIORITY << 12 | tci.vid()))
            }
            Verdict::Drop(reason) => Some(Self(reason as u16, Self::DROP << 12)),
            Verdict::Router { port, edit } => {
                let Self(port, what) = Self::pack(Verdict::Forward { port, edit })?;
                Some(Self(port, what | Self::ROUTER << 12))
            }
            Verdict::Forward { .. } | Verdict::Flood(_) => None,
        }
    }

    /// To be forwarded as it is.
    #[inline(always)]
    pub(crate) fn is_keep(self) -> bool {
        self.1 == Self::KEEP << 12
    }

    /// As [`Cache::destination`].
    #[inline(always)]
    fn unpack(self) -> Result<PortId, Verdict> {
        if self.is_keep() { Ok(PortId(self.0)) } else { Err(self.unpack_other()) }
    }

    #[inline(never)]
    fn unpack_other(self) -> Verdict {
        let kind = self.1 >> 12;
        let edit = match kind & !Self::ROUTER {
            Self::KEEP => VlanEdit::Keep,
            Self::PUSH => VlanEdit::Push(Tci(self.1 & 0xfff)),
            Self::POP => VlanEdit::Pop,
            Self::PUSH_PRIORITY => return self.unpack_priority(),
            _ => {
                let reason = DropReason::ALL.get(usize::from(self.0));
                return Verdict::Drop(*reason.unwrap_or(&DropReason::Internal));
            }
        };
        let port = PortId(self.0);
        if kind & Self::ROUTER == 0 {
            Verdict::Forward { port, edit }
        } else {
            Verdict::Router { port, edit }
        }
    }

    #[cold]
    fn unpack_priority(self) -> Verdict {
        let edit = VlanEdit::Push(Tci(self.0 & 0xf000 | self.1 & 0xfff));
        let port = PortId(self.0 & 0xfff);
        if self.1 >> 12 & Self::ROUTER == 0 {
            Verdict::Forward { port, edit }
        } else {
            Verdict::Router { port, edit }
        }
    }
}

#[cfg(test)]
mod tests;
