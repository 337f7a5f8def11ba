//! What the flow rules of a PF did, all together, also those that are gone.
//!
//! The data plane counts for each rule, and forgets a rule's count with the rule. So that sums do not become less, what
//! changes of the rules take away from them is carried along.

use super::RulesDone;
use api::Name;
use api::channel::{FlowLimits, Refusal};
use api::rule::{FlowAction, FlowDirection, FlowPort, FlowVerdict};
use channel::FlowBook;
use std::collections::BTreeMap;

/// Frames that rules and defaults decided on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decided {
    /// They were to go on, or elsewhere.
    passed: u64,
    /// They were to be dropped.
    dropped: u64,
}

/// What is counted of a PF's rules.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// What was decided by rules as they were, less what those of now had counted already. It wraps.
    carried: Decided,
    updates: u64,
    refused: BTreeMap<Refusal, u64>,
}

/// Counters of the rules of a PF, since the daemon started or the PF was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleTotals {
    /// The PF.
    pub(crate) pf: Name,
    /// Rules there are.
    pub(crate) rules: usize,
    /// What it may have.
    pub(crate) limits: FlowLimits,
    /// Frames that rules or defaults had go on, or elsewhere.
    pub(crate) passed: u64,
    /// Frames that they had dropped.
    pub(crate) dropped: u64,
    /// Rules and defaults that the guest added or deleted.
    pub(crate) updates: u64,
    /// Changes that were refused.
    pub(crate) refused: BTreeMap<Refusal, u64>,
}

impl Decided {
    /// By the rules of this book on these functions, and by their defaults.
    pub(super) fn by(book: &FlowBook, done: &BTreeMap<FlowPort, RulesDone>) -> Self {
        let mut all = Self::default();
        for rule in book.rules().values() {
            let Some(done) = done.get(&rule.on) else { continue };
            let packets = done.rules.get(&rule.id).map_or(0, |count| count.packets);
            all.add(rule.action == FlowAction::Drop, packets);
        }
        for (on, done) in done {
            for (direction, count) in
                [(FlowDirection::From, done.from), (FlowDirection::To, done.to)]
            {
                all.add(book.default_of(*on, direction) == FlowVerdict::Drop, count.packets);
            }
        }
        all
    }

    fn add(&mut self, drop: bool, packets: u64) {
        let sum = if drop { &mut self.dropped } else { &mut self.passed };
        *sum = sum.wrapping_add(packets);
    }
}

impl Tally {
    /// So many rules and defaults were changed; what they had decided before, and what those of now have.
    pub(super) fn changed(&mut self, updates: u32, before: Decided, now: Decided) {
        let carry = |sum: &mut u64, before: u64, now: u64| {
            *sum = sum.wrapping_add(before).wrapping_sub(now);
        };
        carry(&mut self.carried.passed, before.passed, now.passed);
        carry(&mut self.carried.dropped, before.dropped, now.dropped);
        self.updates = self.updates.saturating_add(updates.into());
    }

    /// A change was refused.
    pub(super) fn refused(&mut self, why: Refusal) {
        let count = self.refused.entry(why).or_default();
        *count = count.saturating_add(1);
    }

    /// All of it, with what the rules of now have decided.
    pub(super) fn totals(
        &self,
        pf: &Name,
        book: &FlowBook,
        limits: FlowLimits,
        now: Decided,
    ) -> RuleTotals {
        RuleTotals {
            pf: pf.clone(),
            rules: book.rules().len(),
            limits,
            passed: self.carried.passed.wrapping_add(now.passed),
            dropped: self.carried.dropped.wrapping_add(now.dropped),
            updates: self.updates,
            refused: self.refused.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::channel::FlowCount;
    use api::rule::FlowRule;
    use channel::FlowChange;

    const VF: FlowPort = FlowPort::PF;

    fn book(actions: &[(u64, FlowAction)], verdict: FlowVerdict) -> FlowBook {
        let rule = |(id, action): &(u64, FlowAction)| {
            (*id, FlowRule::new(*id, VF, FlowDirection::From, *action))
        };
        let change = FlowChange {
            add: actions.iter().map(rule).collect(),
            defaults: [((VF, FlowDirection::From), verdict)].into(),
            ..FlowChange::default()
        };
        let limits = FlowLimits { rules: 9, ..FlowLimits::default() };
        FlowBook::default().apply(&change, None, &limits).unwrap().book
    }

    fn done(rules: &[(u64, u64)], from: u64) -> BTreeMap<FlowPort, RulesDone> {
        let count = |packets| FlowCount { packets, ..FlowCount::default() };
        let rules = rules.iter().map(|(id, packets)| (*id, count(*packets))).collect();
        [(VF, RulesDone { rules, from: count(from), to: count(1000) })].into()
    }

    #[test]
    fn sums_outlive_rules() {
        let pf: Name = "web".parse().unwrap();
        let limits = FlowLimits::default();
        let mut tally = Tally::default();
        let two = book(&[(1, FlowAction::Accept), (2, FlowAction::Drop)], FlowVerdict::Drop);
        let now = Decided::by(&two, &done(&[(1, 10), (2, 20)], 5));
        assert_eq!(now, Decided { passed: 1010, dropped: 25 });
        let totals = tally.totals(&pf, &two, limits, now);
        assert_eq!((totals.rules, totals.passed, totals.dropped), (2, 1010, 25));

        // One goes, the other goes on counting, and what no rule matches passes now.
        let one = book(&[(2, FlowAction::Drop)], FlowVerdict::Accept);
        let then = Decided::by(&one, &done(&[(2, 20)], 5));
        tally.changed(2, now, then);
        let totals = tally.totals(&pf, &one, limits, then);
        assert_eq!((totals.rules, totals.passed, totals.dropped, totals.updates), (1, 1010, 25, 2));
        let later = Decided::by(&one, &done(&[(2, 21)], 7));
        let totals = tally.totals(&pf, &one, limits, later);
        assert_eq!((totals.passed, totals.dropped), (1012, 26));

        // Nothing is left of them.
        tally.changed(1, later, Decided::default());
        let totals = tally.totals(&pf, &FlowBook::default(), limits, Decided::default());
        assert_eq!((totals.rules, totals.passed, totals.dropped, totals.updates), (0, 1012, 26, 3));
        tally.refused(Refusal::TooManyRules);
        tally.refused(Refusal::TooManyRules);
        let totals = tally.totals(&pf, &FlowBook::default(), limits, Decided::default());
        assert_eq!(totals.refused, [(Refusal::TooManyRules, 2)].into());
    }
}
