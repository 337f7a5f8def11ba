//! Rules compiled: see the module above for how they are looked up.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::connections::Connections;
use super::key::{Frame, Key, compile};
use super::{Limits, Rule, RuleError, RuleId, RuleVerdict, State};
use crate::table::Seed;
use crate::{Meter, PortId};

/// The rules of a port for one direction.
#[derive(Debug)]
pub struct Table {
    /// The best first.
    rules: Box<[Compiled]>,
    groups: Box<[Group]>,
    /// What no rule matches is dropped.
    refuses: bool,
    asks_state: bool,
    mirrors: bool,
    /// What no rule matched.
    rest: Arc<Counters>,
}

#[derive(Debug)]
struct Compiled {
    rule: Rule,
    counters: Arc<Counters>,
    meter: Option<Arc<Meter>>,
}

/// Rules with the same mask, by what is left of them under it.
#[derive(Debug)]
struct Group {
    mask: Key,
    /// Place of the best of them.
    first: u32,
    /// Their places, ascending.
    places: HashMap<Key, Vec<u32>, Folding>,
}

#[derive(Debug, Default)]
struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    last_ms: AtomicU64,
}

/// What a rule has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleStats {
    /// Frames it decided on.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the last of them came, milliseconds; 0: none has.
    pub last_ms: u64,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling<'t> {
    /// The port it goes to instead of where it was to go, if one was said; or why it goes nowhere.
    pub to: Result<Option<PortId>, Denied>,
    /// The rule that says so, and what is done to the frame besides; `None`: none matched.
    pub rule: Option<&'t Rule>,
}

/// Why a frame goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// A rule says so, or that what matches no rule is dropped.
    ByRule,
    /// It is over the rate of its rule.
    ByMeter,
    /// There are too many connections.
    Connections,
}

impl Table {
    /// Compiles rules. `refuses`: what none matches is dropped. They may name the ports of `own`.
    /// A rule that is the same in `before` goes on counting, and its meter goes on.
    ///
    /// # Errors
    /// The first rule that makes no sense or is too much.
    pub fn new(
        mut rules: Vec<Rule>,
        refuses: bool,
        own: &[PortId],
        limits: Limits,
        before: Option<&Self>,
    ) -> Result<Self, RuleError> {
        if rules.len() > limits.rules {
            return Err(RuleError::TooMany(limits.rules));
        }
        let mut ids = BTreeSet::new();
        for rule in &rules {
            rule.check(own)?;
            if !ids.insert(rule.id) {
                return Err(RuleError::Twice(rule.id));
            }
        }
        rules.sort_by_key(|rule| (std::cmp::Reverse(rule.priority), rule.id));
        let hashing = Folding(Seed::random());
        let mut groups: Vec<Group> = Vec::new();
        let mut shapes: BTreeMap<[u64; 8], usize> = BTreeMap::new();
        for (place, rule) in (0u32..).zip(&rules) {
            let (value, mask) = compile(&rule.matches);
            let next = groups.len();
            let group = *shapes.entry(mask.0).or_insert(next);
            if group == next {
                if next == limits.shapes {
                    return Err(RuleError::TooManyShapes { id: rule.id, most: limits.shapes });
                }
                // In the order of their best rules, as they come.
                let places = HashMap::with_hasher(hashing);
                groups.push(Group { mask, first: place, places });
            }
            if let Some(group) = groups.get_mut(group) {
                group.places.entry(value).or_default().push(place);
            }
        }
        let known: BTreeMap<RuleId, &Compiled> = before
            .into_iter()
            .flat_map(|table| table.rules.iter().map(|one| (one.rule.id, one)))
            .collect();
        let asks_state = rules.iter().any(|rule| rule.matches.state.is_some());
        let mirrors = rules.iter().any(|rule| rule.actions.mirror.is_some());
        let compiled = rules.into_iter().map(|rule| match known.get(&rule.id) {
            Some(one) if one.rule == rule => {
                Compiled { rule, counters: Arc::clone(&one.counters), meter: one.meter.clone() }
            }
            _ => {
                let meter = rule.actions.meter.map(|rate| Arc::new(Meter::new(rate)));
                Compiled { rule, counters: Arc::default(), meter }
            }
        });
        Ok(Self {
            rules: compiled.collect(),
            groups: groups.into(),
            refuses,
            asks_state,
            mirrors,
            rest: before.map(|table| Arc::clone(&table.rest)).unwrap_or_default(),
        })
    }

    /// Whether any rule asks for the state of a connection: then [`Table::judge`] needs to know the
    /// connections, in both directions.
    pub fn asks_state(&self) -> bool {
        self.asks_state
    }

    /// Whether any rule mirrors.
    pub fn mirrors(&self) -> bool {
        self.mirrors
    }

    /// What becomes of a frame, at that time in milliseconds and nanoseconds. With `connections`,
    /// one that is let through is remembered.
    pub fn judge(
        &self,
        frame: &Frame,
        connections: Option<&Connections>,
        (now_ms, now_ns): (u64, u64),
    ) -> Ruling<'_> {
        let tracked = connections.zip(frame.flow.as_ref());
        let state = tracked.map(|(connections, flow)| connections.look(flow, now_ms));
        let mut key = frame.key;
        key.set_state(state);
        let found = self.find(&key);
        let counters = found.map_or(&*self.rest, |one| &*one.counters);
        counters.count(frame.len, now_ms);
        let rule = found.map(|one| &one.rule);
        let to = match rule.map(|rule| rule.actions.verdict) {
            Some(RuleVerdict::Drop) => Err(Denied::ByRule),
            None if self.refuses => Err(Denied::ByRule),
            Some(RuleVerdict::Forward(port)) => Ok(Some(port)),
            Some(RuleVerdict::Accept) | None => Ok(None),
        };
        let to = to.and_then(|to| {
            let meter = found.and_then(|one| one.meter.as_deref());
            if meter.is_some_and(|meter| !meter.take(frame.len, now_ns)) {
                return Err(Denied::ByMeter);
            }
            match tracked {
                Some((connections, flow)) if state == Some(State::New) => {
                    connections.open(flow, now_ms).map_err(|_| Denied::Connections)?;
                }
                _ => {}
            }
            Ok(to)
        });
        Ruling { to, rule }
    }

    /// The best rule that matches.
    fn find(&self, key: &Key) -> Option<&Compiled> {
        let mut best: Option<u32> = None;
        for group in &self.groups {
            if best.is_some_and(|best| best < group.first) {
                break;
            }
            let Some(places) = group.places.get(&key.masked(&group.mask)) else { continue };
            let better = places.iter().take_while(|place| best.is_none_or(|best| **place < best));
            best = better.copied().find(|place| self.ports_match(*place, key)).or(best);
        }
        self.rules.get(best? as usize)
    }

    fn ports_match(&self, place: u32, key: &Key) -> bool {
        let Some(one) = self.rules.get(place as usize) else { return false };
        let (source, destination) = key.ports();
        let matches = &one.rule.matches;
        let within = |range: &Option<std::ops::RangeInclusive<u16>>, port| {
            range.as_ref().is_none_or(|range| range.contains(&port))
        };
        within(&matches.source_port, source) && within(&matches.destination_port, destination)
    }

    /// The rules, the best first, and what each has done.
    pub fn stats(&self) -> impl Iterator<Item = (&Rule, RuleStats)> {
        self.rules.iter().map(|one| (&one.rule, one.counters.read()))
    }

    /// What became of frames that no rule matched.
    pub fn rest(&self) -> RuleStats {
        self.rest.read()
    }
}

impl Counters {
    fn count(&self, len: usize, now_ms: u64) {
        self.packets.fetch_add(1, Relaxed);
        self.bytes.fetch_add(len as u64, Relaxed);
        self.last_ms.store(now_ms, Relaxed);
    }

    fn read(&self) -> RuleStats {
        RuleStats {
            packets: self.packets.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            last_ms: self.last_ms.load(Relaxed),
        }
    }
}

/// Hashes words: keyed, so that nobody can choose rules or frames that all fall into one place.
#[derive(Clone, Copy, Debug)]
struct Folding(Seed);

impl BuildHasher for Folding {
    type Hasher = Fold;

    fn build_hasher(&self) -> Fold {
        Fold { seed: self.0, state: 0 }
    }
}

struct Fold {
    seed: Seed,
    state: u64,
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.state = self.seed.hash_once(self.state, word) as u64;
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.seed.hash(self.state, 0) as u64
    }
}
