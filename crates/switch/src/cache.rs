//! A worker's memory of verdicts.
//!
//! Exact match on in-port, addresses and VLAN; two places per hash value, the newer one first. A frame like the one
//! before it in the same pass is not looked up at all ([`Cache::as_before`]).
//! Only verdicts that hinge on a known destination are kept, under the network's generation (the
//! crate's essay, 3), so that a change anywhere makes them miss; and each for a second at most,
//! after which the full look-up also refreshes the source's last-seen stamp.
//!
//! While that does not pay (module `worth`), frames are worked out from the MAC table at once. Callers
//! that know the next frames announce them then ([`Cache::announce`]), and have the verdicts on all of them
//! worked out together ([`Cache::expect`]).
//!
//! One worker owns it (`&mut`). It cannot fail: what it does not know is worked out.

use packet::eth::{ETH_P_8021Q, is_tag_protocol};
use packet::route::{Packet, Usual};
use packet::tuple::Tuple;
use packet::{Checked, Mac, Tci, VlanEdit};

use crate::ahead::{Ahead, Known};
use crate::config::Snapshot;
use crate::fdb::{self, Held, REFRESH_MS};
use crate::memo::{Arrival, Memo};
use crate::table::Seed;
use crate::vlan::VID_MAX;
use crate::way::Routed;
use crate::worth::Worth;
use crate::{DropReason, PortId, Verdict};

/// See the module.
#[derive(Debug)]
pub struct Cache {
    sets: Box<[Set]>,
    seed: Seed,
    worth: Worth,
    held: Held,
    ahead: Ahead,
    memo: Memo,
    /// Of this pass: that looked up last, as the next one often is of the same flow, or the next one as it was
    /// announced.
    last: Known,
    /// Verdicts on the next frames have been worked out in this pass and not been forgotten, the last under this
    /// generation.
    expected_under: Option<u64>,
}

/// No port has this number.
pub(crate) const NOBODY: u32 = u32::MAX;

/// One cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set([Entry; 2]);

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: Key,
    /// 0 never is a generation.
    generation: u64,
    verdict: Packed,
    /// The source's stamp, low half.
    stamp: u32,
}

/// Destination and half of the source; the rest of the source, in-port and VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Key(u64, u64);

/// A port, or the number of a drop reason; and what to do (4 bits) with which VLAN id (12 bits).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packed(u16, u16);

impl Cache {
    /// What [`Cache::default`] has room for: a quarter of a megabyte.
    pub const ENTRIES_DEFAULT: usize = 8192;
    /// How many frames before its turn a frame is announced.
    pub const AHEAD: usize = Ahead::FRAMES;
    /// How many verdicts are worked out together.
    pub const TOGETHER: usize = Ahead::TOGETHER;

    /// A cache for `entries` verdicts, rounded up to a power of two.
    pub fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(2).clamp(1, 1 << 24).next_power_of_two();
        Self {
            sets: vec![Set::default(); sets].into(),
            seed: Seed::random(),
            worth: Worth::default(),
            held: Held::default(),
            ahead: Ahead::default(),
            memo: Memo::default(),
            last: Known::NOTHING,
            expected_under: None,
        }
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
        self.destination(snapshot, in_port, head, now_ms).map_or_else(|other| other, keep)
    }

    /// As [`Cache::lookup`]: the port to which the frame goes as it is, or else the verdict. In two
    /// registers, where a verdict is written to memory and read back.
    #[inline(always)]
    pub fn destination(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        head: &[u8],
        now_ms: u64,
    ) -> Result<PortId, Verdict> {
        let known = std::mem::replace(&mut self.last.in_port, NOBODY);
        if self.worth.is_bypassed() {
            if known == u32::from(in_port.0) | Known::ASIDE
                && let Some(front) = head.first_chunk().map(Front::of)
                && front == Front::new(self.last.front, self.last.inner)
            {
                return self.last.way.unpack();
            }
            self.worth.passed_by(1);
            return Err(decide_afresh(self, snapshot, in_port, head, now_ms));
        }
        let (Some(key), Some(port)) = (Key::of(in_port, head), snapshot.port(in_port)) else {
            self.worth.missed();
            return Err(snapshot.decide(in_port, head, now_ms, &mut self.held).verdict);
        };
        let generation = port.fdb.generation();
        let place = self.seed.hash(key.0, key.1) & (self.sets.len() - 1);
        let Some(Set(entries)) = self.sets.get(place) else {
            return Err(Verdict::Drop(DropReason::Internal));
        };
        for entry in entries {
            if entry.key == key
                && entry.generation == generation
                && (now_ms as u32).wrapping_sub(entry.stamp) < REFRESH_MS as u32
            {
                self.worth.hit(1);
                let way = entry.verdict;
                let verdict = way.unpack();
                if verdict.is_ok()
                    && let (None, Some(front)) = (key.tag(), words(head))
                {
                    let in_port = in_port.0.into();
                    self.last = Known { front, in_port, way, inner: 0, hits: 1 };
                }
                return verdict;
            }
        }
        Err(decide(self, place, key, generation, snapshot, in_port, head, now_ms))
    }

    /// Where the frame goes if it has the beginning of the one looked up before it in this pass, or of the one that is
    /// [expected](Cache::expect), and that is only to be forwarded. `None`: it is to be looked up.
    #[inline(always)]
    pub fn as_before(&mut self, in_port: PortId, head: &[u8]) -> Option<PortId> {
        let Known { front, in_port: from, way, hits, .. } = self.last;
        if words(head)? != front || u32::from(in_port.0) != from {
            return None;
        }
        self.worth.hit(hits.into());
        Some(PortId(way.0))
    }

    /// Whether there are so many addresses that frames should be announced.
    #[inline]
    pub fn wants_announcements(&self) -> bool {
        self.worth.is_in_doubt()
    }

    /// Whether verdicts are not remembered for now.
    #[inline]
    pub fn is_bypassed(&self) -> bool {
        self.worth.is_bypassed()
    }

    /// Announces frames from a port that come after so many others: `fronts` are their beginnings, as far as
    /// they are to be seen, at most up to twice [`Cache::AHEAD`] frames from now. Only a hint: the frames that
    /// then come may be others.
    #[inline(always)]
    pub fn announce(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        after: usize,
        fronts: impl Iterator<Item = Option<[u8; 18]>>,
    ) {
        self.ahead.announce(snapshot, in_port, (after, fronts), &mut self.held);
    }

    /// It is the turn of the next [`Cache::TOGETHER`] frames: works out the verdicts on those that were announced, as
    /// far as memory is not to be asked. Learns nothing; sources that are known were heard of.
    #[inline(never)]
    pub fn expect(&mut self, snapshot: &Snapshot, in_port: PortId, now_ms: u64) {
        let Self { ahead, held, worth, .. } = self;
        let Some(port) = snapshot.port(in_port).filter(|_| worth.is_bypassed()) else { return };
        self.expected_under = Some(port.fdb.generation());
        worth.passed_by(ahead.expect(snapshot, in_port, now_ms, held));
    }

    /// How often it was the turn of an announced frame.
    #[inline]
    pub fn turns(&self) -> usize {
        self.ahead.turns()
    }

    /// Whether the next [`Cache::AHEAD`] frames were announced when there had been so many turns.
    #[inline]
    pub fn has_announced(&self, turns: usize) -> bool {
        self.ahead.has_announced(turns)
    }

    /// The next frame is probably the next that was announced.
    #[inline(always)]
    pub fn turn(&mut self) {
        self.last = self.ahead.next();
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
        if self.expected_under.take().is_some() {
            self.ahead.forget();
        }
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

impl Default for Cache {
    fn default() -> Self {
        Self::new(Self::ENTRIES_DEFAULT)
    }
}

/// Works a verdict out and remembers it.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "what a look-up has at hand, in registers")]
fn decide(
    cache: &mut Cache,
    place: usize,
    key: Key,
    generation: u64,
    snapshot: &Snapshot,
    in_port: PortId,
    head: &[u8],
    now_ms: u64,
) -> Verdict {
    let set = cache.sets.get(place);
    if set.is_some_and(|Set(entries)| entries.iter().any(|entry| entry.key == key)) {
        cache.worth.renewed();
    } else {
        cache.worth.missed();
    }
    let decision = snapshot.decide(in_port, head, now_ms, &mut cache.held);
    if let (Some(stamp), Some(verdict)) = (decision.remember, Packed::pack(decision.verdict))
        && let Some(Set(entries)) = cache.sets.get_mut(place)
    {
        remember(entries, Entry { key, generation, verdict, stamp });
    }
    decision.verdict
}

/// The same key's place first, or else the older of the two.
#[inline]
fn remember(entries: &mut [Entry; 2], new: Entry) {
    let [first, second] = entries;
    if first.key != new.key {
        *second = *first;
    }
    *first = new;
}

/// Works a verdict out that is not to be remembered.
#[inline(never)]
fn decide_afresh(
    cache: &mut Cache,
    snapshot: &Snapshot,
    in_port: PortId,
    head: &[u8],
    now_ms: u64,
) -> Verdict {
    let decision = snapshot.decide(in_port, head, now_ms, &mut cache.held);
    // If it moved an address, what was expected of the frames after it may be wrong.
    let generation = snapshot.port(in_port).map(|port| port.fdb.generation());
    if cache.expected_under.take_if(|under| generation != Some(*under)).is_some() {
        cache.ahead.forget();
    }
    decision.verdict
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

    /// From its parts: see [`Front::words`] and [`Front::inner`].
    #[inline(always)]
    pub(crate) fn new([first, second]: [u64; 2], inner: u16) -> Self {
        Self(first, second, inner)
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

    /// Its EtherType, if that is none of a tag: where it stands, and nothing beside it.
    #[inline(always)]
    pub(crate) fn plain(self) -> u64 {
        self.1 & 0xffff << 32
    }

    /// Its first 16 bytes.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; 2] {
        [self.0, self.1]
    }

    /// Its last two bytes.
    #[inline(always)]
    pub(crate) fn inner(self) -> u16 {
        self.2
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
    #[inline]
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
