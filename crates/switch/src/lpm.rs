//! Longest-prefix match: which route an address takes.
//!
//! A table of all first halves of an IPv4 address, and behind it blocks of 256 entries for each
//! byte more, as far as there are prefixes that long ("DIR-16-8-8", after DIR-24-8 of Gupta, Lin and
//! McKeown, 1998, that needs 64 MiB at once). A block that would hold one prefix only is a leaf
//! instead, with the whole prefix in it, so that long IPv6 prefixes are not chains of blocks.
//!
//! Any number of readers without locks, one writer at a time. Entries are single words. A block or
//! leaf is written before the entry that leads to it, and never used again: what removals leave
//! behind goes when the owner builds a new table ([`Lpm::is_wasteful`]). A leaf keeps its prefix; its
//! two routes are entries, and change like the others. So a reader finds for each address what was
//! true at some time during its look-up.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use parking_lot::Mutex;

/// An address, or the beginning of one: first bit first, IPv4 in the upper 32 bits.
type Bits = u128;

/// A range of addresses of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    v4: bool,
    span: Span,
}

impl Prefix {
    /// The addresses that agree with this one in the first `len` bits. `None` if it has fewer.
    #[must_use]
    pub fn new(address: IpAddr, len: u8) -> Option<Prefix> {
        let v4 = address.is_ipv4();
        let span = Span { bits: bits(address) & mask(len), len };
        (len <= if v4 { 32 } else { 128 }).then_some(Prefix { v4, span })
    }

    /// Whether they are IPv4 addresses.
    #[must_use]
    pub fn is_ipv4(self) -> bool {
        self.v4
    }

    /// The first of them.
    #[must_use]
    pub fn address(self) -> IpAddr {
        if self.v4 {
            Ipv4Addr::from_bits((self.span.bits >> 96) as u32).into()
        } else {
            Ipv6Addr::from_bits(self.span.bits).into()
        }
    }

    /// How many bits they agree in.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.span.len
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.v4 && self.span.contains(bits(address))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.bits())
    }
}

/// The same, whatever the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Span {
    bits: Bits,
    len: u8,
}

impl Span {
    fn contains(self, address: Bits) -> bool {
        address & mask(self.len) == self.bits
    }
}

/// An address as [`Bits`].
#[inline]
fn bits(address: IpAddr) -> Bits {
    match address {
        IpAddr::V4(address) => Bits::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(len: u8) -> Bits {
    Bits::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

/// Where a route number ends: [`Lpm::ROUTES_MAX`].
const VALUE_BITS: u32 = 22;

/// An entry: the number of a block or leaf; or a route and the length of the prefix it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Route { len: u8, route: u32 },
    Block(u32),
    Leaf(u32),
}

impl Entry {
    /// No prefix.
    const NONE: Entry = Entry::Route { len: 0, route: 0 };

    fn pack(self) -> u32 {
        match self {
            Entry::Route { len, route } => u32::from(len) << VALUE_BITS | route,
            Entry::Block(number) => 1 << 30 | number,
            Entry::Leaf(number) => 2 << 30 | number,
        }
    }

    #[inline]
    fn unpack(word: u32) -> Entry {
        let number = word & ((1 << 30) - 1);
        match word >> 30 {
            1 => Entry::Block(number),
            2 => Entry::Leaf(number),
            _ => {
                let route = word & ((1 << VALUE_BITS) - 1);
                Entry::Route { len: (number >> VALUE_BITS) as u8, route }
            }
        }
    }

    #[inline]
    fn load(word: &AtomicU32) -> Entry {
        Self::unpack(word.load(Acquire))
    }

    fn store(self, word: &AtomicU32) {
        word.store(self.pack(), Release);
    }

    /// Whether it is the route of a prefix this long.
    fn is_of(self, length: u8) -> bool {
        matches!(self, Entry::Route { len, route } if len == length && route != 0)
    }
}

/// All addresses that go on from the same bytes, by their next byte.
#[derive(Debug)]
#[repr(align(64))]
struct Block([AtomicU32; 256]);

impl Default for Block {
    fn default() -> Self {
        Block([const { AtomicU32::new(0) }; 256])
    }
}

/// One prefix, and what holds for the addresses beside it.
#[derive(Debug, Default)]
struct Leaf {
    high: AtomicU64,
    low: AtomicU64,
    /// Entries of kind [`Entry::Route`].
    inside: AtomicU32,
    beside: AtomicU32,
}

impl Leaf {
    #[inline]
    fn look_up(&self, address: Bits) -> u32 {
        let inside = Entry::unpack(self.inside.load(Relaxed));
        let prefix = self.prefix();
        match inside {
            Entry::Route { route, .. } if prefix.contains(address) => route,
            _ => match Entry::unpack(self.beside.load(Relaxed)) {
                Entry::Route { route, .. } => route,
                _ => 0,
            },
        }
    }

    #[inline]
    fn prefix(&self) -> Span {
        let bits = Bits::from(self.high.load(Relaxed)) << 64 | Bits::from(self.low.load(Relaxed));
        let len = match Entry::unpack(self.inside.load(Relaxed)) {
            Entry::Route { len, .. } => len,
            _ => 0,
        };
        Span { bits, len }
    }
}

/// Grows without moving what is in it.
#[derive(Debug)]
struct Pool<T> {
    /// The first has room for [`Pool::FIRST`], each other one for as many as all before it.
    parts: [OnceLock<Box<[T]>>; 24],
}

impl<T: Default> Pool<T> {
    const FIRST: u32 = 64;

    fn new() -> Self {
        Pool { parts: [const { OnceLock::new() }; 24] }
    }

    /// Part and place in it.
    #[inline]
    fn place(number: u32) -> (usize, usize) {
        let part = (number / Self::FIRST + 1).ilog2();
        let before = ((1 << part) - 1) * Self::FIRST;
        (part as usize, (number - before) as usize)
    }

    #[inline]
    fn get(&self, number: u32) -> Option<&T> {
        let (part, place) = Self::place(number);
        self.parts.get(part)?.get()?.get(place)
    }

    /// The same, and there is one.
    fn make(&self, number: u32) -> Option<&T> {
        let (part, place) = Self::place(number);
        let room = || {
            let len = (Self::FIRST as usize) << part;
            let mut items = Vec::with_capacity(len);
            sys::prefer_huge_pages(items.spare_capacity_mut());
            items.resize_with(len, T::default);
            items.into()
        };
        self.parts.get(part)?.get_or_init(room).get(place)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Lpm {
    /// By the first 16 bits.
    root: Box<[AtomicU32]>,
    blocks: Pool<Block>,
    leaves: Pool<Leaf>,
    writer: Mutex<Writer>,
}

/// What only the writer needs.
#[derive(Debug, Default)]
struct Writer {
    routes: BTreeMap<Span, u32>,
    /// Prefixes of each length.
    lengths: BTreeMap<u8, usize>,
    /// How often prefixes changed.
    changes: u64,
    /// Blocks and leaves so far, and leaves that nobody finds any more.
    blocks: u32,
    leaves: u32,
    lost: u32,
}

/// The table has no room for another block or leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the routing table is full")]
pub struct Full;

impl Default for Lpm {
    fn default() -> Self {
        Lpm {
            root: (0..1 << 16).map(|_| AtomicU32::new(0)).collect(),
            blocks: Pool::new(),
            leaves: Pool::new(),
            writer: Mutex::default(),
        }
    }
}

impl Lpm {
    /// Route numbers are below this, and not 0.
    pub const ROUTES_MAX: u32 = 1 << VALUE_BITS;

    /// The route of the longest prefix that an address is in; 0 if it is in none.
    #[inline]
    #[must_use]
    pub fn look_up(&self, address: IpAddr) -> u32 {
        let address = bits(address);
        let Some(mut word) = self.root.get((address >> 112) as usize) else { return 0 };
        let mut rest = address << 16;
        loop {
            match Entry::load(word) {
                Entry::Route { route, .. } => return route,
                Entry::Leaf(number) => {
                    return self.leaves.get(number).map_or(0, |leaf| leaf.look_up(address));
                }
                Entry::Block(number) => {
                    let Some(Block(entries)) = self.blocks.get(number) else { return 0 };
                    let Some(next) = entries.get((rest >> 120) as usize) else { return 0 };
                    word = next;
                    rest <<= 8;
                }
            }
        }
    }

    /// The longest prefix that an address is in, and its route. For people to see: slow.
    #[must_use]
    pub fn find(&self, address: IpAddr) -> Option<(Prefix, u32)> {
        let bits = bits(address);
        let writer = self.writer.lock();
        writer.lengths.keys().rev().find_map(|&len| {
            let span = Span { bits: bits & mask(len), len };
            writer.routes.get(&span).map(|&route| (Prefix { span, v4: address.is_ipv4() }, route))
        })
    }

    /// How often prefixes were set or removed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.writer.lock().changes
    }

    /// How many prefixes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writer.lock().routes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that readers use.
    #[must_use]
    pub fn memory(&self) -> usize {
        let of = |parts: usize, first: u32| (((1 << parts) - 1) * first) as usize;
        let blocks = self.blocks.parts.iter().filter(|part| part.get().is_some()).count();
        let leaves = self.leaves.parts.iter().filter(|part| part.get().is_some()).count();
        size_of_val(&*self.root)
            + of(blocks, Pool::<Block>::FIRST) * size_of::<Block>()
            + of(leaves, Pool::<Leaf>::FIRST) * size_of::<Leaf>()
    }

    /// Most of it is what removals left behind: a new table with the same prefixes is smaller.
    #[must_use]
    pub fn is_wasteful(&self) -> bool {
        let writer = self.writer.lock();
        writer.lost as usize > writer.routes.len() + 4096
            || writer.blocks as usize > 64 + 8 * writer.routes.len()
    }

    /// A new table with the same prefixes.
    ///
    /// # Errors
    /// [`Full`]: not for the prefixes of another table.
    pub fn rebuilt(&self) -> Result<Lpm, Full> {
        let lpm = Lpm::default();
        for (prefix, route) in &self.writer.lock().routes {
            lpm.set(*prefix, *route)?;
        }
        Ok(lpm)
    }

    /// Sets the route (1 to [`Lpm::ROUTES_MAX`]-1) of a prefix; returns the one it had.
    ///
    /// # Errors
    /// [`Full`], and nothing changed.
    pub fn insert(&self, prefix: Prefix, route: u32) -> Result<Option<u32>, Full> {
        self.set(prefix.span, route)
    }

    fn set(&self, prefix: Span, route: u32) -> Result<Option<u32>, Full> {
        let mut writer = self.writer.lock();
        if route == 0 || route >= Self::ROUTES_MAX {
            return Err(Full);
        }
        let new = Entry::Route { len: prefix.len, route };
        self.put(&mut writer, &self.root, 0, 16, prefix, new)?;
        writer.changes += 1;
        let old = writer.routes.insert(prefix, route);
        if old.is_none() {
            *writer.lengths.entry(prefix.len).or_default() += 1;
        }
        Ok(old)
    }

    /// Removes a prefix; returns the route it had.
    pub fn remove(&self, prefix: Prefix) -> Option<u32> {
        let prefix = prefix.span;
        let mut writer = self.writer.lock();
        let old = writer.routes.remove(&prefix)?;
        writer.changes += 1;
        if let Some(count) = writer.lengths.get_mut(&prefix.len) {
            *count -= 1;
            if *count == 0 {
                writer.lengths.remove(&prefix.len);
            }
        }
        let cover = writer.lengths.range(..prefix.len).rev().find_map(|(&len, _)| {
            let shorter = Span { bits: prefix.bits & mask(len), len };
            writer.routes.get(&shorter).map(|&route| Entry::Route { len, route })
        });
        let cover = cover.unwrap_or(Entry::NONE);
        self.take(&mut writer, &self.root, 0, 16, prefix, cover);
        Some(old)
    }

    /// Puts a prefix below these entries, which stand for bits `from` to `to` of addresses.
    fn put(
        &self,
        writer: &mut Writer,
        entries: &[AtomicU32],
        from: u8,
        to: u8,
        prefix: Span,
        new: Entry,
    ) -> Result<(), Full> {
        let Some(range) = entries.get(range(from, to, prefix)) else { return Err(Full) };
        for word in range {
            match Entry::load(word) {
                Entry::Block(number) => {
                    let Some(Block(below)) = self.blocks.get(number) else { return Err(Full) };
                    self.put(writer, below, to, to + 8, prefix, new)?;
                }
                Entry::Leaf(number) => {
                    let Some(leaf) = self.leaves.get(number) else { return Err(Full) };
                    self.put_beside(writer, word, leaf, to, prefix, new)?;
                }
                Entry::Route { len, .. } if prefix.len <= to => {
                    if len <= prefix.len {
                        new.store(word);
                    }
                }
                beside => self.leaf(writer, prefix, new, beside)?.store(word),
            }
        }
        Ok(())
    }

    /// Puts a prefix where a leaf is.
    fn put_beside(
        &self,
        writer: &mut Writer,
        word: &AtomicU32,
        leaf: &Leaf,
        to: u8,
        prefix: Span,
        new: Entry,
    ) -> Result<(), Full> {
        let (inside, beside) =
            (Entry::unpack(leaf.inside.load(Relaxed)), Entry::unpack(leaf.beside.load(Relaxed)));
        let old = leaf.prefix();
        if prefix.len <= to {
            // It covers the leaf.
            if let Entry::Route { len, .. } = beside
                && len <= prefix.len
            {
                new.store(&leaf.beside);
            }
            return Ok(());
        }
        if old == prefix {
            new.store(&leaf.inside);
            return Ok(());
        }
        // Two prefixes: a block for them, found when both are in it.
        let number = writer.blocks;
        let Some(Block(below)) = self.blocks.make(number).filter(|_| number < 1 << 30) else {
            return Err(Full);
        };
        writer.blocks += 1;
        below.iter().for_each(|word| beside.store(word));
        self.put(writer, below, to, to + 8, old, inside)?;
        self.put(writer, below, to, to + 8, prefix, new)?;
        Entry::Block(number).store(word);
        writer.lost += 1;
        Ok(())
    }

    /// A new leaf.
    fn leaf(
        &self,
        writer: &mut Writer,
        prefix: Span,
        inside: Entry,
        beside: Entry,
    ) -> Result<Entry, Full> {
        let number = writer.leaves;
        let Some(leaf) = self.leaves.make(number).filter(|_| number < 1 << 30) else {
            return Err(Full);
        };
        writer.leaves += 1;
        leaf.high.store((prefix.bits >> 64) as u64, Relaxed);
        leaf.low.store(prefix.bits as u64, Relaxed);
        leaf.inside.store(inside.pack(), Relaxed);
        leaf.beside.store(beside.pack(), Relaxed);
        Ok(Entry::Leaf(number))
    }

    /// Takes a prefix away below these entries: `cover` is what holds then.
    fn take(
        &self,
        writer: &mut Writer,
        entries: &[AtomicU32],
        from: u8,
        to: u8,
        prefix: Span,
        cover: Entry,
    ) {
        for word in entries.get(range(from, to, prefix)).unwrap_or_default() {
            match Entry::load(word) {
                Entry::Block(number) => {
                    let Some(Block(below)) = self.blocks.get(number) else { continue };
                    self.take(writer, below, to, to + 8, prefix, cover);
                }
                Entry::Leaf(number) => {
                    let Some(leaf) = self.leaves.get(number) else { continue };
                    let beside = Entry::unpack(leaf.beside.load(Relaxed));
                    if leaf.prefix() == prefix {
                        beside.store(word);
                        writer.lost += 1;
                    } else if beside.is_of(prefix.len) {
                        cover.store(&leaf.beside);
                    }
                }
                route if route.is_of(prefix.len) => cover.store(word),
                Entry::Route { .. } => {}
            }
        }
    }
}

/// Which of the entries for bits `from` to `to` a prefix covers, or leads through.
fn range(from: u8, to: u8, prefix: Span) -> std::ops::Range<usize> {
    let width = to - from;
    let first = ((prefix.bits << from) >> (128 - u32::from(width))) as usize;
    if prefix.len >= to {
        return first..first + 1;
    }
    let covered = prefix.len.max(from);
    first..first + (1 << (to - covered))
}

#[cfg(test)]
mod tests;
