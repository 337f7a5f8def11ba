//! The rules of a port, in both directions.

use std::sync::Arc;

use super::{
    Actions, Connections, Limits, Rule, RuleError, RuleStats, RuleVerdict, Table, Timeouts,
};
use crate::PortId;

/// What is asked for: the rules of one port.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// For frames that come from the port.
    pub from: Vec<Rule>,
    /// What comes from it and matches no rule is dropped.
    pub from_refused: bool,
    /// For frames that are about to be delivered to it.
    pub to: Vec<Rule>,
    /// What is to be delivered to it and matches no rule is dropped.
    pub to_refused: bool,
    /// The ports that rules may forward and mirror to.
    pub own: Vec<PortId>,
    /// How much each direction may need.
    pub limits: Limits,
    /// Connections that are remembered at most, if a rule asks for their state.
    pub connections: usize,
}

/// Compiled.
#[derive(Debug)]
pub struct PortRules {
    /// For frames that come from the port.
    pub from: Table,
    /// For frames that are about to be delivered to it.
    pub to: Table,
    connections: Option<(usize, Arc<Connections>)>,
    /// As it was asked for.
    set: RuleSet,
}

impl PortRules {
    /// Compiles them. Rules that are the same in `before` go on counting; its connections stay, if
    /// there may be as many.
    ///
    /// # Errors
    /// The first rule that makes no sense or is too much.
    pub fn new(set: RuleSet, before: Option<&Self>) -> Result<Self, RuleError> {
        let RuleSet { from, to, own, limits, .. } = &set;
        let old = before.map(|one| &one.from);
        let from = Table::new(from.clone(), set.from_refused, own, *limits, old)?;
        let old = before.map(|one| &one.to);
        let to = Table::new(to.clone(), set.to_refused, own, *limits, old)?;
        let connections = set.connections;
        let known = before.and_then(|one| one.connections.clone());
        let connections = (from.asks_state() || to.asks_state()).then(|| {
            known.filter(|(most, _)| *most == connections).unwrap_or_else(|| {
                (connections, Arc::new(Connections::new(connections, Timeouts::default())))
            })
        });
        Ok(Self { from, to, connections, set })
    }

    /// The same without a port that is gone, whose number will be another's: what was to go there is
    /// dropped, or not mirrored. `None`: no rule could name it.
    pub(crate) fn without(&self, gone: PortId) -> Option<Self> {
        if !self.set.own.contains(&gone) {
            return None;
        }
        let mut set = self.set.clone();
        set.own.retain(|port| *port != gone);
        for rule in set.from.iter_mut().chain(&mut set.to) {
            if rule.actions.verdict == RuleVerdict::Forward(gone) {
                rule.actions =
                    Actions { mirror: rule.actions.mirror, ..Actions::only(RuleVerdict::Drop) };
            }
            rule.actions.mirror = rule.actions.mirror.filter(|port| *port != gone);
        }
        Self::new(set, Some(self)).ok()
    }

    /// The connections that are known, if any rule asks for them.
    pub fn connections(&self) -> Option<&Connections> {
        self.connections.as_ref().map(|(_, connections)| &**connections)
    }

    /// What each rule has done, of those for frames from the port and then of those to it.
    pub fn stats(&self) -> impl Iterator<Item = (&Rule, RuleStats)> {
        self.from.stats().chain(self.to.stats())
    }
}
