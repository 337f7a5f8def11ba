//! Flow rules of a PF: what a guest asks for, collected until it is whole, and what there is then.
//!
//! A change is checked against what the guest may have before anything of it is done; it is done as
//! a whole or not at all. Nothing here holds more than the PF's quota.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use api::channel::{Failed, FlowLimits, FlowPart, Refusal, SetFlows};
use api::rule::{FlowDefault, FlowDirection, FlowPort, FlowRule, FlowVerdict};
use api::{MAX_VFS, Mac, Name};
use serde::{Deserialize, Serialize};

/// A PF of the VM, as a change of its rules sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPf {
    /// Its name.
    pub name: Name,
    /// How many VFs it has.
    pub vfs: u16,
    /// What it may have.
    pub limits: FlowLimits,
}

/// A change of the rules of one PF. In this order: rules are deleted, functions cleared, rules added,
/// defaults set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowChange {
    /// Numbers of rules.
    pub del: BTreeSet<u64>,
    /// Functions.
    pub clear: BTreeSet<FlowPort>,
    /// Rules, by number.
    pub add: BTreeMap<u64, FlowRule>,
    /// What becomes of what no rule matches.
    pub defaults: BTreeMap<(FlowPort, FlowDirection), FlowVerdict>,
}

/// Parts of a change that is not whole yet.
#[derive(Debug)]
pub(crate) struct Staged {
    pf: Mac,
    batch: u64,
    next: u32,
    change: FlowChange,
}

/// The rules of a PF and its VFs, as they are saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowBook {
    /// The boot of the guest that they are of, if it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    #[serde(with = "as_list")]
    rules: BTreeMap<u64, FlowRule>,
    #[serde(with = "as_defaults")]
    defaults: BTreeMap<(FlowPort, FlowDirection), FlowVerdict>,
}

/// A book after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The book.
    pub book: FlowBook,
    /// Functions that something was changed of.
    pub touched: BTreeSet<FlowPort>,
    /// How many rules and defaults are gone, or new; one that is another now is both.
    pub updates: u32,
}

/// How fast the rules of a PF may change: a bucket of updates.
#[derive(Debug)]
pub struct FlowPace {
    owed: Duration,
    at: Instant,
}

fn refuse<T>(reason: Refusal, message: impl Into<String>) -> Result<T, Failed> {
    Err(Failed::new(reason, message))
}

fn owned(pf: &FlowPf, port: FlowPort) -> Result<(), Failed> {
    if port.number().is_none_or(|number| number < pf.vfs) {
        return Ok(());
    }
    let message = format!("{port}: {} has {} VFs, from vf0", pf.name, pf.vfs);
    refuse(Refusal::UnknownFunction, message)
}

impl FlowChange {
    /// Takes a request in.
    fn extend(&mut self, pf: &FlowPf, set: SetFlows) -> Result<(), Failed> {
        let most = pf.limits.rules as usize;
        let too_many = || {
            let message = format!("{} may have {most} flow rules at most", pf.name);
            refuse(Refusal::TooManyRules, message)
        };
        if self.add.len() + set.add.len() > most || self.del.len() + set.del.len() > most {
            return too_many();
        }
        if set.clear.len() > usize::from(MAX_VFS) + 1 {
            return refuse(Refusal::BadParams, "clear: each function once");
        }
        self.del.extend(set.del);
        for port in set.clear {
            owned(pf, port)?;
            self.clear.insert(port);
        }
        for rule in set.add {
            rule.ports().try_for_each(|port| owned(pf, port))?;
            let id = rule.id;
            if let Err(why) = rule.check() {
                return refuse(Refusal::BadParams, format!("rule {id}: {why}"));
            }
            if self.add.insert(id, rule).is_some() {
                return refuse(Refusal::RuleExists, format!("rule {id} is there twice"));
            }
        }
        for FlowDefault { on, direction, action } in set.defaults {
            owned(pf, on)?;
            self.defaults.insert((on, direction), action);
        }
        Ok(())
    }

    /// Takes a request in, and those before it that it is a part of with. `None`: there are parts to
    /// come. What was staged is gone when it is refused.
    pub(crate) fn collect(
        staged: &mut Option<Staged>,
        pf: &FlowPf,
        set: SetFlows,
    ) -> Result<Option<Self>, Failed> {
        let Some(FlowPart { batch, number, last }) = set.part else {
            let mut change = Self::default();
            change.extend(pf, set)?;
            return Ok(Some(change));
        };
        let mac = set.pf;
        let mut change = match staged.take() {
            _ if number == 0 => Self::default(),
            Some(before) if (before.pf, before.batch, before.next) == (mac, batch, number) => {
                before.change
            }
            _ => {
                let message = "the parts before this one are not here (any more): begin again";
                return refuse(Refusal::UnknownBatch, message);
            }
        };
        change.extend(pf, set)?;
        if last {
            return Ok(Some(change));
        }
        let next = number.saturating_add(1);
        *staged = Some(Staged { pf: mac, batch, next, change });
        Ok(None)
    }
}

impl FlowBook {
    /// The rules, by number.
    pub fn rules(&self) -> &BTreeMap<u64, FlowRule> {
        &self.rules
    }

    /// What becomes of what no rule matches.
    pub fn default_of(&self, on: FlowPort, direction: FlowDirection) -> FlowVerdict {
        self.defaults.get(&(on, direction)).copied().unwrap_or_default()
    }

    /// Functions that have a rule or a default.
    pub fn functions(&self) -> BTreeSet<FlowPort> {
        let rules = self.rules.values().map(|rule| rule.on);
        rules.chain(self.defaults.keys().map(|(on, _)| *on)).collect()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.defaults.is_empty()
    }

    /// The same for a PF with so many VFs: rules of others are gone. Returns how many.
    pub fn cut(&mut self, vfs: u16) -> usize {
        let there = |port: &FlowPort| port.number().is_none_or(|number| number < vfs);
        let before = self.rules.len();
        self.rules.retain(|_, rule| there(&rule.on));
        self.defaults.retain(|(on, _), _| there(on));
        before - self.rules.len()
    }

    /// The guest says which boot it is. Whether it is another one than that of the rules, which end then.
    pub fn booted(&self, boot: &str) -> bool {
        !self.is_empty() && self.boot.as_ref().is_some_and(|known| known != boot)
    }

    /// What there is after a change.
    ///
    /// # Errors
    /// The first thing that cannot be.
    pub fn apply(
        &self,
        change: &FlowChange,
        boot: Option<&str>,
        limits: &FlowLimits,
    ) -> Result<Changed, Failed> {
        let mut book = self.clone();
        for id in &change.del {
            if book.rules.remove(id).is_none() {
                return refuse(Refusal::UnknownRule, format!("there is no flow rule {id}"));
            }
        }
        book.rules.retain(|_, rule| !change.clear.contains(&rule.on));
        book.defaults.retain(|(on, _), _| !change.clear.contains(on));
        for (id, rule) in &change.add {
            if book.rules.insert(*id, rule.clone()).is_some() {
                let message = format!("there is a flow rule {id}: delete it in the same request");
                return refuse(Refusal::RuleExists, message);
            }
        }
        for (place, verdict) in &change.defaults {
            match verdict {
                FlowVerdict::Accept => drop(book.defaults.remove(place)),
                FlowVerdict::Drop => drop(book.defaults.insert(*place, *verdict)),
            }
        }
        let (rules, most) = (book.rules.len(), limits.rules);
        if rules > most as usize {
            let message = format!("{most} flow rules are allowed at most, these are {rules}");
            return refuse(Refusal::TooManyRules, message);
        }
        let meters = book.rules.values().filter(|rule| rule.meter.is_some()).count();
        if meters > limits.meters as usize {
            let most = limits.meters;
            let message = format!("{most} rules with a meter are allowed at most, not {meters}");
            return refuse(Refusal::TooManyMeters, message);
        }
        if boot.is_some() {
            book.boot = boot.map(str::to_owned);
        }
        let (touched, updates) = self.differences(&book);
        Ok(Changed { book, touched, updates })
    }

    /// Functions with something else in `other`, and how many rules and defaults that is.
    fn differences(&self, other: &Self) -> (BTreeSet<FlowPort>, u32) {
        let mut touched = BTreeSet::new();
        let mut updates = 0;
        let mut note = |on: FlowPort| {
            touched.insert(on);
            updates += 1;
        };
        for (one, two) in [(self, other), (other, self)] {
            let rules = one.rules.iter().filter(|(id, rule)| two.rules.get(id) != Some(rule));
            rules.for_each(|(_, rule)| note(rule.on));
            let defaults = one.defaults.keys().filter(|at| !two.defaults.contains_key(at));
            defaults.for_each(|(on, _)| note(*on));
        }
        (touched, updates)
    }
}

impl FlowPace {
    /// Nothing was changed yet.
    pub fn new(now: Instant) -> Self {
        Self { owed: Duration::ZERO, at: now }
    }

    /// Whether so many updates may be made now, which is noted then: `rate` of them in a second, and
    /// twice as many as there may be rules ahead, so that all of them can be exchanged at once.
    ///
    /// # Errors
    /// How long to wait.
    pub fn take(
        &mut self,
        updates: u32,
        limits: &FlowLimits,
        now: Instant,
    ) -> Result<(), Duration> {
        let time = |updates: u64| Duration::from_secs(updates) / limits.rate.max(1);
        let passed = now.saturating_duration_since(self.at);
        let owed = self.owed.saturating_sub(passed);
        // Whoever owes nothing may always: nothing that is allowed is more than the burst.
        let over = (owed + time(updates.into())).saturating_sub(time(u64::from(limits.rules) * 2));
        if over > Duration::ZERO && owed > Duration::ZERO {
            return Err(over.min(owed));
        }
        (self.owed, self.at) = (owed + time(updates.into()), self.at.max(now));
        Ok(())
    }
}

/// Rules are saved as a list: their numbers are in them.
mod as_list {
    use super::{BTreeMap, FlowRule};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        rules: &BTreeMap<u64, FlowRule>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(rules.values())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<u64, FlowRule>, D::Error> {
        let mut rules = BTreeMap::new();
        for rule in Vec::<FlowRule>::deserialize(from)? {
            let id = rule.id;
            rule.check().map_err(|why| D::Error::custom(format!("rule {id}: {why}")))?;
            if rules.insert(id, rule).is_some() {
                return Err(D::Error::custom(format!("rule {id} is there twice")));
            }
        }
        Ok(rules)
    }
}

mod as_defaults {
    use super::{BTreeMap, FlowDefault, FlowDirection, FlowPort, FlowVerdict};
    use serde::{Deserialize, Deserializer, Serializer};

    type Defaults = BTreeMap<(FlowPort, FlowDirection), FlowVerdict>;

    pub(super) fn serialize<S: Serializer>(all: &Defaults, to: S) -> Result<S::Ok, S::Error> {
        let one = |((on, direction), action): (&(FlowPort, FlowDirection), &FlowVerdict)| {
            FlowDefault { on: *on, direction: *direction, action: *action }
        };
        to.collect_seq(all.iter().map(one))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Defaults, D::Error> {
        let all = Vec::<FlowDefault>::deserialize(from)?.into_iter();
        Ok(all.map(|one| ((one.on, one.direction), one.action)).collect())
    }
}

#[cfg(test)]
mod tests;
