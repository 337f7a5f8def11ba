//! A worker's memory of verdicts.
//!
//! Exact match on in-port, addresses and VLAN; two places per hash value, the newer one first.
//! Only verdicts that hinge on a known destination are kept, under the network's generation (the
//! crate's essay, 3), so that a change anywhere makes them miss; and each for a second at most,
//! after which the full look-up also refreshes the source's last-seen stamp.
//!
//! Traffic among more addresses than it has room for finds nothing here: after a window of misses it
//! is bypassed for a while, and frames are worked out from the MAC table at once. Callers that know
//! the next frames announce them then ([`Cache::announce`]).
//!
//! One worker owns it (`&mut`). It cannot fail: what it does not know is worked out.

use packet::eth::{ETH_P_8021Q, is_tag_protocol, vlan_tag};
use packet::route::Packet;
use packet::{Mac, Tci, VlanEdit, flow_hash};

use crate::ahead::Ahead;
use crate::config::Snapshot;
use crate::fdb::{Held, REFRESH_MS};
use crate::router::{At, Routed};
use crate::table::Seed;
use crate::vlan::VID_MAX;
use crate::{DropReason, PortId, Verdict};

/// See the module.
#[derive(Debug)]
pub struct Cache {
    sets: Box<[Set]>,
    seed: Seed,
    hits: u64,
    misses: u64,
    /// `hits` when this window began, and the misses since then.
    window: (u64, u64),
    /// So many frames are still to be worked out without a look at `sets`.
    bypassed: u32,
    held: Held,
    ahead: Ahead,
}

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
pub(crate) struct Key(u64, u64);

/// A port, or the number of a drop reason; and what to do (4 bits) with which VLAN id (12 bits).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packed(u16, u16);

impl Cache {
    /// What [`Cache::default`] has room for: a quarter of a megabyte.
    pub const ENTRIES_DEFAULT: usize = 8192;
    /// How many frames before its turn a frame is announced.
    pub const AHEAD: usize = Ahead::FRAMES;
    /// Misses in a window. It is judged by the hits between them.
    const WINDOW: u64 = 32;
    /// With fewer hits than this for each miss, misses are what frames cost...
    const WORTHWHILE: u64 = 4;
    /// ...and so many frames pass before that is tried again.
    const BYPASSED: u32 = 2048;

    /// A cache for `entries` verdicts, rounded up to a power of two.
    pub fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(2).clamp(1, 1 << 24).next_power_of_two();
        Self {
            sets: vec![Set::default(); sets].into(),
            seed: Seed::random(),
            hits: 0,
            misses: 0,
            window: (0, 0),
            bypassed: 0,
            held: Held::default(),
            ahead: Ahead::default(),
        }
    }

    /// The verdict on a frame that came in at `in_port`, of which `head` is the beginning (18
    /// bytes are enough) and `now_ms` the time. Learns its source.
    #[inline(always)]
    pub fn lookup(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        head: &[u8],
        now_ms: u64,
    ) -> Verdict {
        let (Some(key), Some(port)) = (Key::of(in_port, head), snapshot.port(in_port)) else {
            self.missed();
            return snapshot.decide(in_port, head, now_ms, &mut self.held).verdict;
        };
        if self.bypassed != 0 {
            self.bypassed -= 1;
            self.misses += 1;
            let Self { ahead, held, .. } = self;
            return match ahead.verdict(snapshot, in_port, port, key, now_ms, held) {
                Some(verdict) => verdict.unpack(),
                None => snapshot.decide(in_port, head, now_ms, held).verdict,
            };
        }
        let generation = port.fdb.generation();
        let place = self.seed.hash(key.0, key.1) & (self.sets.len() - 1);
        let Some(Set(entries)) = self.sets.get(place) else {
            return Verdict::Drop(DropReason::Internal);
        };
        for entry in entries {
            if entry.key == key
                && entry.generation == generation
                && (now_ms as u32).wrapping_sub(entry.stamp) < REFRESH_MS as u32
            {
                self.hits += 1;
                return entry.verdict.unpack();
            }
        }
        decide(self, place, key, generation, snapshot, in_port, head, now_ms)
    }

    /// Counts a miss, and judges at the end of a window.
    #[inline]
    fn missed(&mut self) {
        self.misses += 1;
        self.window.1 += 1;
        if self.window.1 == Self::WINDOW {
            if self.hits - self.window.0 < Self::WINDOW * Self::WORTHWHILE {
                self.bypassed = Self::BYPASSED;
            }
            self.window = (self.hits, 0);
        }
    }

    /// Whether there are so many addresses that frames should be announced.
    #[inline]
    pub fn is_bypassed(&self) -> bool {
        self.bypassed != 0
    }

    /// Announces the frame that will be looked up [`Cache::AHEAD`] frames after the next: `front`
    /// is its beginning. Only a hint: the frame that then comes may be another one.
    #[inline]
    pub fn announce(&mut self, snapshot: &Snapshot, in_port: PortId, front: &[u8; 18]) {
        self.ahead.announce(snapshot, in_port, front, &mut self.held);
    }

    /// The way through routers of a packet in a frame that is to be forwarded to `port` with this
    /// edit, as [`Cache::lookup`] said; `head` is the frame's beginning. `None`: it ends at that
    /// port. With a way, it ends there all the same if it has no more [`Packet::hops`] than
    /// [`Routed::routers`], or does not fit [`Routed::mtu`]: the router then does what is to be done.
    pub fn route(
        &mut self,
        snapshot: &Snapshot,
        (port, edit): (PortId, VlanEdit),
        head: &[u8],
        packet: &Packet,
        now_ms: u64,
    ) -> Option<Routed> {
        let mac = Mac(*head.first_chunk()?);
        let came = vlan_tag(head).map(Tci::vid);
        let tag = match edit {
            VlanEdit::Keep => came,
            VlanEdit::Push(tci) | VlanEdit::Set(tci) => Some(tci.vid()),
            VlanEdit::Pop => None,
        };
        let at = At { port, tag, mac };
        let hash = flow_hash(head);
        snapshot.route(at, came.is_some(), packet, hash, now_ms, &mut self.held)
    }

    /// Lets go of the MAC table it used last. For the end of each pass: see the crate's essay, 2.
    #[inline]
    pub fn release(&mut self) {
        if self.held.is_some() {
            self.held.release();
        }
    }

    /// Look-ups answered from memory, and those worked out, since the cache was made.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
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
    cache.missed();
    let decision = snapshot.decide(in_port, head, now_ms, &mut cache.held);
    if let (Some(stamp), Some(verdict)) = (decision.remember, Packed::pack(decision.verdict))
        && let Some(Set(entries)) = cache.sets.get_mut(place)
    {
        remember(entries, Entry { key, generation, verdict, stamp: stamp as u32 });
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

impl Key {
    /// `None` for the frames that are always worked out: short ones, and those with a priority
    /// tag, a service tag or more than one tag.
    #[inline]
    pub(crate) fn of(in_port: PortId, head: &[u8]) -> Option<Self> {
        let [addresses @ .., p0, p1, t0, t1, i0, i1] = head.first_chunk::<18>()?;
        let (first, rest) = addresses.split_first_chunk::<8>()?;
        let rest = rest.first_chunk::<4>()?;
        let outer = u16::from_be_bytes([*p0, *p1]);
        let vlan = if outer == ETH_P_8021Q {
            let vid = Tci(u16::from_be_bytes([*t0, *t1])).vid();
            let stacked = is_tag_protocol(u16::from_be_bytes([*i0, *i1]));
            if stacked || !(1..=VID_MAX).contains(&vid) {
                return None;
            }
            vid
        } else if is_tag_protocol(outer) {
            return None;
        } else {
            0
        };
        let low = u64::from(u32::from_le_bytes(*rest));
        Some(Self(
            u64::from_le_bytes(*first),
            low | u64::from(in_port.0) << 32 | u64::from(vlan) << 48,
        ))
    }
}

impl Key {
    pub(crate) fn dst(self) -> Mac {
        Mac::from_u64(self.0.swap_bytes() >> 16)
    }

    pub(crate) fn src(self) -> Mac {
        Mac::from_u64((self.0 >> 48 | (self.1 & 0xffff_ffff) << 16).swap_bytes() >> 16)
    }

    /// The tag without its priority.
    pub(crate) fn tag(self) -> Option<Tci> {
        let vid = (self.1 >> 48) as u16;
        (vid != 0).then_some(Tci(vid))
    }
}

impl Packed {
    const KEEP: u16 = 0;
    const PUSH: u16 = 1;
    const POP: u16 = 2;
    const DROP: u16 = 3;

    /// `None` for what a remembered frame never gets: a flood, or a priority tag rewritten.
    #[inline]
    pub(crate) fn pack(verdict: Verdict) -> Option<Self> {
        match verdict {
            Verdict::Forward { port, edit: VlanEdit::Keep } => Some(Self(port.0, Self::KEEP << 12)),
            Verdict::Forward { port, edit: VlanEdit::Pop } => Some(Self(port.0, Self::POP << 12)),
            Verdict::Forward { port, edit: VlanEdit::Push(tci) } if tci.0 == tci.vid() => {
                Some(Self(port.0, Self::PUSH << 12 | tci.vid()))
            }
            Verdict::Drop(reason) => Some(Self(reason as u16, Self::DROP << 12)),
            Verdict::Forward { .. } | Verdict::Flood(_) => None,
        }
    }

    #[inline]
    fn unpack(self) -> Verdict {
        let edit = match self.1 >> 12 {
            Self::KEEP => VlanEdit::Keep,
            Self::PUSH => VlanEdit::Push(Tci(self.1 & 0xfff)),
            Self::POP => VlanEdit::Pop,
            _ => {
                let reason = DropReason::ALL.get(usize::from(self.0));
                return Verdict::Drop(*reason.unwrap_or(&DropReason::Internal));
            }
        };
        Verdict::Forward { port: PortId(self.0), edit }
    }
}

#[cfg(test)]
mod tests;
