//! A routing table.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::channel::Prefix;

use super::{Family, Target, TargetId, Targets};

/// One of the routes of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The lowest wins.
    pub(crate) metric: u32,
    /// Only for packets with this type of service; 0 for all.
    pub(crate) tos: u8,
    pub(crate) target: TargetId,
}

/// Routes of a prefix: almost always one. In the kernel's order among the same metric.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entries {
    One(Entry),
    Many(Vec<Entry>),
}

/// A table, by prefix.
#[derive(Debug)]
pub(crate) struct Table {
    routes: BTreeMap<Prefix, Entries>,
    /// How many prefixes have a length: IPv4 and IPv6.
    lengths: [[usize; 129]; 2],
}

/// What a message says of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) metric: u32,
    pub(crate) tos: u8,
    pub(crate) target: Target,
    pub(crate) kind: ChangeKind,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// It is there now, before others of the same metric.
    Added,
    /// It is there now, behind others of the same metric.
    Appended,
    /// It took the place of another one.
    Replaced,
    /// It is gone.
    Removed,
}

/// What a change did to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It was so already.
    Nothing,
    /// It was carried out.
    Changed,
    /// It cannot be told; the route leads to the router now.
    Unclear,
    /// It cannot be told; where the prefix leads stays the same.
    Unread,
}

impl Default for Table {
    fn default() -> Self {
        Self { routes: BTreeMap::new(), lengths: [[0; 129]; 2] }
    }
}

impl Entries {
    fn as_slice(&self) -> &[Entry] {
        match self {
            Self::One(entry) => std::slice::from_ref(entry),
            Self::Many(entries) => entries,
        }
    }

    fn into_vec(self) -> Vec<Entry> {
        match self {
            Self::One(entry) => vec![entry],
            Self::Many(entries) => entries,
        }
    }

    fn from_vec(entries: Vec<Entry>) -> Option<Self> {
        match entries.as_slice() {
            [] => None,
            [one] => Some(Self::One(*one)),
            _ => Some(Self::Many(entries)),
        }
    }
}

impl Table {
    /// Number of prefixes.
    pub(crate) fn len(&self) -> usize {
        self.routes.len()
    }

    /// The routes of a prefix; none if it has none.
    pub(crate) fn entries(&self, prefix: Prefix) -> &[Entry] {
        self.routes.get(&prefix).map_or(&[], Entries::as_slice)
    }

    /// All prefixes, in order.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = Prefix> {
        self.routes.keys().copied()
    }

    /// The longest prefix that contains an address and is at most so long.
    pub(crate) fn covering(&self, address: IpAddr, longest: u8) -> Option<Prefix> {
        let lengths = self.lengths_of(Family::of(address));
        (0..=longest)
            .rev()
            .filter(|length| lengths.get(usize::from(*length)).is_some_and(|count| *count > 0))
            .filter_map(|length| Prefix::new(address, length))
            .find(|prefix| self.routes.contains_key(prefix))
    }

    /// A route of a dump: behind those of the same metric that came before.
    pub(crate) fn push(&mut self, targets: &mut Targets, prefix: Prefix, route: &Change) {
        let target = targets.acquire(&route.target);
        let mut entries = self.take(prefix);
        entries.push(Entry { metric: route.metric, tos: route.tos, target });
        self.put(prefix, entries);
    }

    /// Gives up what its routes use.
    pub(crate) fn release(self, targets: &mut Targets) {
        for entry in self.routes.values().flat_map(Entries::as_slice) {
            targets.release(entry.target);
        }
    }

    /// Carries out a change.
    pub(super) fn change(
        &mut self,
        targets: &mut Targets,
        prefix: Prefix,
        change: &Change,
    ) -> Done {
        let target = targets.acquire(&change.target);
        let same = |entry: &Entry| entry.metric == change.metric && entry.tos == change.tos;
        let mut entries = self.take(prefix);
        let alike = entries.iter().filter(|entry| same(entry)).count();
        let known = entries.iter().position(|entry| same(entry) && entry.target == target);
        let new = Entry { metric: change.metric, tos: change.tos, target };
        let v6 = prefix.address().is_ipv6();
        let first = entries.iter().position(same);
        let vague = matches!(change.target, Target::Own | Target::Router);
        let done = match (change.kind, known, first) {
            (ChangeKind::Removed, Some(place), _) => {
                targets.release(entries.remove(place).target);
                Done::Changed
            }
            (ChangeKind::Removed, None, None) => Done::Nothing,
            // Two routes that are one to us: the kernel knows how many there are.
            (ChangeKind::Added | ChangeKind::Appended, Some(_), _) if vague => Done::Unread,
            (_, Some(_), _) if alike == 1 => Done::Nothing,
            (ChangeKind::Added | ChangeKind::Appended | ChangeKind::Replaced, None, None) => {
                targets.share(target);
                entries.push(new);
                Done::Changed
            }
            (ChangeKind::Replaced, None, Some(place)) if alike == 1 => {
                targets.share(target);
                if let Some(entry) = entries.get_mut(place) {
                    targets.release(entry.target);
                    *entry = new;
                }
                Done::Changed
            }
            (ChangeKind::Appended, None, Some(place)) if !v6 => {
                targets.share(target);
                entries.insert(place + alike, new);
                Done::Changed
            }
            (ChangeKind::Added, None, Some(place)) if !v6 => {
                targets.share(target);
                entries.insert(place, new);
                Done::Changed
            }
            // One of several ways, or one of several routes: only the kernel knows what is left.
            _ => {
                for entry in entries.iter_mut().filter(|entry| same(entry)) {
                    targets.release(entry.target);
                    entry.target = targets.acquire(&Target::Router);
                }
                Done::Unclear
            }
        };
        targets.release(target);
        self.put(prefix, entries);
        done
    }

    /// Puts what another table has of one version of IP in place of what is here; returns the
    /// prefixes that differ.
    pub(super) fn replace(
        &mut self,
        targets: &mut Targets,
        family: Family,
        new: Table,
    ) -> Vec<Prefix> {
        let (old, kept) = std::mem::take(&mut self.routes)
            .into_iter()
            .partition(|(prefix, _)| Family::of(prefix.address()) == family);
        let old: BTreeMap<Prefix, Entries> = old;
        let differs = |(prefix, entries): &(&Prefix, &Entries)| old.get(prefix) != Some(*entries);
        let mut differing: Vec<Prefix> =
            new.routes.iter().filter(differs).map(|(prefix, _)| *prefix).collect();
        differing.extend(old.keys().filter(|prefix| !new.routes.contains_key(prefix)));
        for entry in old.values().flat_map(Entries::as_slice) {
            targets.release(entry.target);
        }
        *self.lengths_of_mut(family) = *new.lengths_of(family);
        self.routes = kept;
        self.routes.extend(new.routes);
        differing
    }

    fn take(&mut self, prefix: Prefix) -> Vec<Entry> {
        let entries = self.routes.remove(&prefix);
        if entries.is_some() {
            self.count(prefix, |count| count.saturating_sub(1));
        }
        entries.map(Entries::into_vec).unwrap_or_default()
    }

    fn put(&mut self, prefix: Prefix, entries: Vec<Entry>) {
        if let Some(entries) = Entries::from_vec(entries) {
            self.routes.insert(prefix, entries);
            self.count(prefix, |count| count + 1);
        }
    }

    fn count(&mut self, prefix: Prefix, change: impl Fn(usize) -> usize) {
        let lengths = self.lengths_of_mut(Family::of(prefix.address()));
        if let Some(count) = lengths.get_mut(usize::from(prefix.length())) {
            *count = change(*count);
        }
    }

    fn lengths_of(&self, family: Family) -> &[usize; 129] {
        let [v4, v6] = &self.lengths;
        if family == Family::V4 { v4 } else { v6 }
    }

    fn lengths_of_mut(&mut self, family: Family) -> &mut [usize; 129] {
        let [v4, v6] = &mut self.lengths;
        if family == Family::V4 { v4 } else { v6 }
    }
}
