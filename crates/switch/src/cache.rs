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
//! main memory: callers that know the next frames have their places fetched ([`Cache::places`]).
//!
//! One worker owns it (`&mut`). It cannot fail: what it does not know is worked out.

use packet::eth::Eth;
use packet::route::{Packet, Usual};
use packet::tuple::Tuple;
use packet::{Checked, VlanEdit};

use crate::config::Snapshot;
use crate::fdb::{self, Held, REFRESH_MS, Watch};
use crate::key::{Front, Key, Packed, words};
use crate::memo::{Arrival, Memo};
use crate::pairs::{Kept, Pairs, Plan, Room, Spot, Under};
use crate::way::Routed;
use crate::worth::Worth;
use crate::{PortId, Verdict};

/// See the module.
#[derive(Debug)]
pub struct Cache {
    pairs: Pairs,
    worth: Worth,
    crowd: Crowd,
    held: Held,
    memo: Memo,
    last: Last,
    /// Frames of this pass that were looked up after others from the same port, and whether those of the last pass
    /// were many.
    looked_up: u32,
    scattered: bool,
    /// Where the frame came in that was looked up last; [`NOBODY`]: there was none.
    looking: u32,
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

/// What is remembered of announced frames: see [`Cache::known`].
pub struct Known<'a> {
    pairs: Under<'a>,
    memo: &'a Memo,
}

/// No port has this number.
pub(crate) const NOBODY: u32 = u32::MAX;

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
            looking: NOBODY,
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
        if let Some((spot, watch)) = announced
            && let Some(way) = self.pairs.get(spot, watch.generation(), now_ms)
        {
            self.worth.hit(1);
            return way.unpack();
        }
        let head = head();
        let Last { front: before, in_port: from, way } = self.last;
        let front = head.first_chunk().map(Front::of);
        if front == Some(before) && u32::from(in_port.0) | Last::ASIDE == from {
            self.worth.hit(1);
            return way.unpack();
        }
        self.last.in_port = NOBODY;
        self.looked_up += u32::from(self.looking == in_port.0.into());
        self.looking = in_port.0.into();
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

    /// To ask where announced frames of a port go, as far as it is remembered that they are only to be forwarded; how
    /// many of them did is to be said by [`Cache::found`].
    #[inline(always)]
    pub fn known(&self, watch: Watch<'_>, now_ms: u64) -> Known<'_> {
        Known { pairs: self.pairs.under(watch.generation(), now_ms), memo: &self.memo }
    }

    /// So many frames were [known](Known::port).
    #[inline]
    pub fn found(&mut self, times: usize) {
        self.worth.hit(times as u64);
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
        Some(way.port())
    }

    /// Whether frames should be announced: so many are looked up.
    #[inline]
    pub fn wants_announcements(&self) -> bool {
        self.scattered
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

    /// So many frames are announced, the first and the last of them at these places. Those of one flow are no reason to
    /// announce more.
    #[inline(always)]
    pub fn announced(&mut self, frames: usize, first: &Spot, last: &Spot) {
        if first.at() != last.at() {
            self.looked_up += frames as u32;
        }
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
        expects(&self.memo, spot)
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
        (self.last.in_port, self.looking) = (NOBODY, NOBODY);
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

impl Known<'_> {
    /// Where a frame goes; `None`: it is to be looked up.
    #[inline(always)]
    pub fn port(&self, spot: &Spot) -> Option<PortId> {
        let way = self.pairs.get(spot)?;
        (way.is_keep() && !expects(self.memo, spot)).then_some(way.port())
    }
}

/// As [`Cache::expects_route_at`].
#[inline(always)]
fn expects(memo: &Memo, spot: &Spot) -> bool {
    memo.expects(&spot.first().to_le_bytes())
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
    const WHILE_MS: u64 = 40_000;

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

#[cfg(test)]
mod tests;
