//! The MAC table of one network: learning, moving, ageing, limits.
//!
//! See the crate's essay for who may do what. Here: [`Fdb::observe`] and [`lookup`] are the
//! workers'; all else is control's. Whatever changes or removes an entry ends in [`Fdb::bump`].

mod entry;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use packet::Mac;
use parking_lot::{Mutex, MutexGuard};

use crate::PortId;
use crate::domain::{Domain, Tells};
use crate::table::{Slot, Table};

use entry::{Value, fid_of, refresh};
pub(crate) use entry::{key, mac_of};

/// A source's last-seen stamp is written at most this often, milliseconds: about once a second.
pub(crate) const REFRESH_MS: u64 = 1024;
/// Addresses that may change ports per second in one network; each one makes all workers forget
/// what they remember of that network. Frames beyond it are forwarded all the same.
const MOVES_PER_SECOND: u32 = 1024;
/// Static entries per network.
const STATIC_MAX: usize = 4096;

/// One learned or pinned address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdbEntry {
    /// The address.
    pub mac: Mac,
    /// Its VLAN; `None` for untagged traffic of transparent ports.
    pub vlan: Option<u16>,
    /// The port it is behind.
    pub port: PortId,
    /// Since its last frame, to the second, or to half a minute where a worker has many pairs of addresses to
    /// remember ([`Cache`](crate::Cache)); zero for a static entry.
    pub age: Duration,
    /// Static: set by the operator, neither moved nor aged.
    pub fixed: bool,
}

/// What happened to a network's MAC table so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct NetworkStats {
    /// Learned addresses in the table now.
    pub macs: u64,
    /// Static addresses in the table now.
    pub fixed: u64,
    /// Addresses learned.
    pub learned: u64,
    /// Addresses that changed ports.
    pub moved: u64,
    /// Looks at a source that had changed ports too often in this second to be moved.
    pub moves_held: u64,
    /// Looks at a source that was not learned because of a limit. (Its frames were forwarded.)
    pub limited: u64,
    /// Addresses that were not heard from for too long.
    pub aged: u64,
    /// Addresses removed because their port went down, changed its VLANs or was flushed.
    pub flushed: u64,
}

/// What a port's snapshot and the table share: replaced whenever the port is flushed, so that a
/// worker with an old snapshot cannot learn for it any more.
#[derive(Debug, Default)]
pub(crate) struct PortShared {
    /// Addresses learned behind it. Written under the table's mutex.
    macs: AtomicU32,
}

/// A port as the learner sees it.
pub(crate) struct Source<'a> {
    pub(crate) port: PortId,
    pub(crate) mac_limit: u32,
    pub(crate) shared: &'a Arc<PortShared>,
}

/// What became of a frame's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// In the table behind this port; last stamped then (milliseconds, the low half).
    Known(u32),
    /// Not in the table, or behind another port, and it stays so until something is removed.
    Refused,
    /// Try again with the next frame: nothing about this frame may be remembered.
    Again,
}

/// A worker's hold on the table of the network it had a frame of last, and that table's number. To
/// take a table anew for each frame takes locked instructions, which wait for all stores before
/// them: those to the guests' memory.
#[derive(Debug, Default)]
pub(crate) struct Held {
    table: Option<(u64, Arc<Table>)>,
    /// No source is noted: somebody asks what would become of a frame.
    pub(crate) only_asks: bool,
}

impl Held {
    pub(crate) fn to_ask() -> Self {
        Self { only_asks: true, ..Self::default() }
    }

    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.table.is_some()
    }

    /// The table now, for one frame's look-ups. Asked for after [`Fdb::generation`].
    #[inline]
    pub(crate) fn table(&mut self, fdb: &Fdb) -> &Table {
        // The number first: a table that is replaced in between is taken again with the next frame.
        let number = fdb.numbers.table.load(Ordering::Acquire);
        if self.table.as_ref().is_some_and(|(held, _)| *held != number) {
            self.release();
        }
        &self.table.get_or_insert_with(|| (number, fdb.take_table())).1
    }

    /// Lets go of it: at the end of a burst at the latest, as it may be of the past by then.
    #[cold]
    pub(crate) fn release(&mut self) {
        self.table = None;
    }
}

/// Numbers drawn from the switch's one counter, so that none is ever used twice. On a cache line of
/// their own: workers read them for every frame.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Numbers {
    /// See the crate's essay, 3.
    generation: AtomicU64,
    /// Of the table, another one as soon as that is replaced.
    table: AtomicU64,
}

/// Shows under which number verdicts on frames of a port are remembered: see the crate's essay, 3.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'f>(&'f AtomicU64);

impl Watch<'_> {
    /// As [`Fdb::generation`].
    #[inline(always)]
    pub(crate) fn generation(self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
pub(crate) struct Fdb {
    numbers: Numbers,
    /// Version of the latest configuration of the network.
    config: AtomicU64,
    generations: Arc<AtomicU64>,
    /// The networks that routers connect with this one.
    domain: ArcSwap<Domain>,
    table: ArcSwap<Table>,
    mac_limit: AtomicUsize,
    age_ms: AtomicU64,
    macs: AtomicUsize,
    limited: AtomicU64,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    /// The ports that may learn.
    ports: BTreeMap<PortId, Arc<PortShared>>,
    /// The second in which `moves` addresses moved.
    moves_since: u64,
    moves: u32,
    /// The table before this one: workers may hold it for a burst, and are not to be those who give
    /// its memory back.
    retired: Option<Arc<Table>>,
    stats: NetworkStats,
}

impl Fdb {
    pub(crate) fn new(generations: &Arc<AtomicU64>, mac_limit: usize, age_ms: u64) -> Self {
        let fdb = Self {
            numbers: Numbers::default(),
            config: AtomicU64::new(0),
            generations: Arc::clone(generations),
            domain: ArcSwap::from_pointee(Domain::new(0, Tells::default())),
            table: ArcSwap::from_pointee(Table::with_room_for(0)),
            mac_limit: AtomicUsize::new(mac_limit),
            age_ms: AtomicU64::new(age_ms),
            macs: AtomicUsize::new(0),
            limited: AtomicU64::new(0),
            writer: Mutex::default(),
        };
        fdb.bump();
        fdb.numbers.table.store(fdb.number(), Ordering::Release);
        fdb
    }

    // ---- workers ----

    /// The number a verdict is remembered under; read before the verdict is computed.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.watch().generation()
    }

    /// Shows that number, whatever it is.
    #[inline]
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch(&self.numbers.generation)
    }

    /// After how long an address is forgotten, milliseconds.
    pub(crate) fn age_ms(&self) -> u64 {
        self.age_ms.load(Ordering::Relaxed)
    }

    /// Its domain now.
    pub(crate) fn domain(&self) -> Arc<Domain> {
        self.domain.load_full()
    }

    /// Control's: the network is part of another domain from now on.
    pub(crate) fn set_domain(&self, domain: &Arc<Domain>) {
        self.domain.store(Arc::clone(domain));
    }

    /// Is this the latest configuration? Asked after the verdict is computed.
    #[inline]
    pub(crate) fn is_latest(&self, config: u64) -> bool {
        self.config.load(Ordering::Acquire) == config
    }

    #[cold]
    fn take_table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Notes a frame's source: refreshes, learns or moves it. What it learns may go to a newer
    /// table.
    #[inline]
    pub(crate) fn observe(
        &self,
        table: &Table,
        key: u64,
        source: &Source<'_>,
        now_ms: u64,
    ) -> Observed {
        if let Some(slot) = table.get(key) {
            let value = Value::of(slot);
            if value.is_behind(source.port) {
                return Observed::Known(refresh(slot, value, now_ms));
            }
        }
        self.learn(key, source, now_ms)
    }

    #[cold]
    fn learn(&self, key: u64, source: &Source<'_>, now_ms: u64) -> Observed {
        // Without the lock first: a guest over its limit must not keep others from learning.
        let full = self.is_full(source);
        if full && lookup(&self.table.load(), key).is_none() {
            self.limited.fetch_add(1, Ordering::Relaxed);
            return Observed::Refused;
        }
        let Some(mut writer) = self.writer.try_lock() else { return Observed::Again };
        if !writer.ports.get(&source.port).is_some_and(|port| Arc::ptr_eq(port, source.shared)) {
            return Observed::Again;
        }
        let table = self.table.load();
        let slot = table.get(key);
        let old = slot.and_then(|slot| Value::of(slot).live());
        match old {
            Some(old) if old.port() == source.port => Observed::Known(old.stamp),
            Some(old) if old.fixed() => Observed::Refused,
            Some(_) if source.is_full() => {
                self.limited.fetch_add(1, Ordering::Relaxed);
                Observed::Refused
            }
            Some(old) => {
                if !writer.may_move(now_ms) {
                    return Observed::Again;
                }
                writer.leave(old.port());
                let new = Value::new(source.port, false, now_ms);
                if let Some(slot) = slot {
                    slot.store(new.word, new.stamp);
                }
                source.shared.macs.fetch_add(1, Ordering::Relaxed);
                self.bump();
                Observed::Known(new.stamp)
            }
            None if self.is_full(source) => {
                self.limited.fetch_add(1, Ordering::Relaxed);
                Observed::Refused
            }
            None => {
                drop(table);
                let new = Value::new(source.port, false, now_ms);
                if !self.store(&mut writer, key, new) {
                    return Observed::Again;
                }
                writer.stats.learned += 1;
                source.shared.macs.fetch_add(1, Ordering::Relaxed);
                self.macs.fetch_add(1, Ordering::Relaxed);
                Observed::Known(new.stamp)
            }
        }
    }

    fn is_full(&self, source: &Source<'_>) -> bool {
        source.is_full()
            || self.macs.load(Ordering::Relaxed) >= self.mac_limit.load(Ordering::Relaxed)
    }

    // ---- under the writer's mutex ----

    /// What was remembered about this network counts no more. Last step of every change.
    fn bump(&self) {
        let number = self.number();
        self.numbers.generation.store(number, Ordering::Release);
        self.domain.load().renew(number);
    }

    /// One that is not in use.
    fn number(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn store(&self, writer: &mut Writer, key: u64, value: Value) -> bool {
        let table = self.table.load();
        let has_room = !table.is_crowded() || table.get(key).is_some();
        if has_room && table.insert(key, value.word, value.stamp) {
            return true;
        }
        drop(table);
        self.rebuild(writer);
        self.table.load().insert(key, value.word, value.stamp)
    }

    /// Replaces the table by one with room for as many entries again. A stamp a worker refreshes
    /// in the old one meanwhile is lost: the next refresh, a second later, is not.
    fn rebuild(&self, writer: &mut Writer) {
        let old = self.table.load_full();
        let new = Table::with_room_for(old.iter().count().max(16));
        for (key, slot) in old.iter() {
            let Value { word, stamp } = Value::of(slot);
            new.insert(key, word, stamp);
        }
        self.table.store(Arc::new(new));
        self.numbers.table.store(self.number(), Ordering::Release);
        writer.retired = Some(old);
    }

    /// Removes the entries `condemned` says; returns how many were learned ones.
    fn remove(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        mut condemned: impl FnMut(u64, Value) -> bool,
    ) -> u64 {
        let mut removed = 0;
        for (key, slot) in self.table.load().iter() {
            let value = Value::of(slot);
            if condemned(key, value) {
                removed += self.discard(writer, slot);
            }
        }
        removed
    }

    /// Removes an entry; returns 1 if it was a learned one.
    fn discard(&self, writer: &mut Writer, slot: Slot<'_>) -> u64 {
        let value = Value::of(slot);
        slot.value.store(Value::REMOVED, Ordering::Release);
        if value.fixed() {
            writer.stats.fixed -= 1;
            return 0;
        }
        writer.leave_count(value.port(), &self.macs);
        1
    }

    // ---- control ----

    pub(crate) fn set_limits(&self, mac_limit: usize, age_ms: u64) {
        self.mac_limit.store(mac_limit, Ordering::Relaxed);
        self.age_ms.store(age_ms, Ordering::Relaxed);
        let _writer = self.writer.lock();
        self.bump();
    }

    /// Says that a configuration is in force; `port` may learn as `shared` (or not at all) from
    /// now on, and what was learned behind it before is gone.
    pub(crate) fn configured(&self, config: u64, port: PortId, shared: Option<&Arc<PortShared>>) {
        let mut writer = self.writer.lock();
        let gone = self.remove(&mut writer, |_, value| {
            value.port() == port && (!value.fixed() || shared.is_none())
        });
        writer.stats.flushed += gone;
        match shared {
            Some(shared) => writer.ports.insert(port, Arc::clone(shared)),
            None => writer.ports.remove(&port),
        };
        self.config.store(config, Ordering::Release);
        self.bump();
    }

    /// Says that a configuration is in force in which no port may learn otherwise than before.
    pub(crate) fn reconfigured(&self, config: u64) {
        let _writer = self.writer.lock();
        self.config.store(config, Ordering::Release);
        self.bump();
    }

    /// Forgets what was learned behind a port, or everything that was learned.
    pub(crate) fn flush(&self, port: Option<PortId>) -> u64 {
        let mut writer = self.writer.lock();
        let gone = self.remove(&mut writer, |_, value| {
            !value.fixed() && port.is_none_or(|port| value.port() == port)
        });
        writer.stats.flushed += gone;
        self.bump();
        gone
    }

    /// Removes what is too old; tidies the table. Returns how many addresses were removed.
    ///
    /// Nothing is learned while the mutex is held, so a large table is looked through without it.
    pub(crate) fn maintain(&self, now_ms: u64) -> u64 {
        let age_ms = self.age_ms();
        let is_old = |slot: Slot<'_>| {
            let value = Value::of(slot);
            value.live().is_some() && !value.fixed() && value.age(now_ms) >= age_ms
        };
        let table = self.table.load_full();
        let old: Vec<_> =
            table.iter().filter_map(|(key, slot)| is_old(slot).then_some(key)).collect();
        drop(table);
        let mut gone = 0;
        for keys in old.chunks(1024) {
            let mut writer = self.writer.lock();
            let table = self.table.load();
            let mut removed = 0;
            for key in keys {
                // It may have been heard from since.
                if let Some(slot) = table.get(*key).filter(|slot| is_old(*slot)) {
                    removed += self.discard(&mut writer, slot);
                }
            }
            // Before they are learned anew, perhaps elsewhere: that alone makes nobody forget.
            if removed > 0 {
                writer.stats.aged += removed;
                self.bump();
            }
            gone += removed;
        }
        let mut writer = self.writer.lock();
        writer.retired = None;
        let entries = self.macs.load(Ordering::Relaxed) + writer.stats.fixed as usize;
        if self.table.load().wants_rebuild(entries) {
            self.rebuild(&mut writer);
        }
        gone
    }

    /// Pins an address; false if there are too many.
    pub(crate) fn pin(&self, key: u64, port: PortId) -> bool {
        let mut writer = self.writer.lock();
        let old = self.remove(&mut writer, |found, _| found == key);
        writer.stats.flushed += old;
        let room = writer.stats.fixed < STATIC_MAX as u64;
        let stored = room && self.store(&mut writer, key, Value::new(port, true, 0));
        writer.stats.fixed += u64::from(stored);
        self.bump();
        stored
    }

    /// Releases a pinned address; false if it was not pinned.
    pub(crate) fn unpin(&self, key: u64) -> bool {
        let mut writer = self.writer.lock();
        let before = writer.stats.fixed;
        self.remove(&mut writer, |found, value| found == key && value.fixed());
        self.bump();
        writer.stats.fixed != before
    }

    pub(crate) fn entries(&self, now_ms: u64) -> Vec<FdbEntry> {
        let table = self.table.load();
        let mut entries: Vec<_> = table
            .iter()
            .filter_map(|(key, slot)| {
                let value = Value::of(slot).live()?;
                let fid = fid_of(key);
                let age = if value.fixed() { 0 } else { value.age(now_ms) };
                Some(FdbEntry {
                    mac: mac_of(key),
                    vlan: (fid != 0).then_some(fid),
                    port: value.port(),
                    age: Duration::from_millis(age),
                    fixed: value.fixed(),
                })
            })
            .collect();
        entries.sort_unstable_by_key(|entry| (entry.vlan, entry.mac));
        entries
    }

    pub(crate) fn stats(&self) -> NetworkStats {
        NetworkStats {
            macs: self.macs.load(Ordering::Relaxed) as u64,
            limited: self.limited.load(Ordering::Relaxed),
            ..self.writer.lock().stats
        }
    }
}

impl Source<'_> {
    fn is_full(&self) -> bool {
        self.shared.macs.load(Ordering::Relaxed) >= self.mac_limit
    }
}

impl Writer {
    /// One address fewer behind a port.
    fn leave(&mut self, port: PortId) {
        if let Some(port) = self.ports.get(&port) {
            port.macs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One address fewer behind a port and in the table.
    fn leave_count(&mut self, port: PortId, macs: &AtomicUsize) {
        self.leave(port);
        macs.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a move, unless there were too many in this second.
    fn may_move(&mut self, now_ms: u64) -> bool {
        if now_ms.saturating_sub(self.moves_since) >= 1000 {
            self.moves_since = now_ms;
            self.moves = 0;
        }
        let may = self.moves < MOVES_PER_SECOND;
        self.moves += u32::from(may);
        self.stats.moved += u64::from(may);
        self.stats.moves_held += u64::from(!may);
        may
    }
}

/// The port an address is behind.
#[inline]
pub(crate) fn lookup(table: &Table, key: u64) -> Option<PortId> {
    Some(Value::of(table.get(key)?).live()?.port())
}
