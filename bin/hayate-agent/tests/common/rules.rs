//! Flow rules of a PF, as a daemon in the small keeps them.

use std::collections::BTreeMap;

use api::channel::{CountedRule, FlowCount, FlowCursor, Flows, ListFlows, Refusal, SetFlows};
use api::rule::FlowRule;

#[derive(Default)]
pub(crate) struct Rules {
    pub(crate) rules: BTreeMap<u64, FlowRule>,
    parts: Vec<SetFlows>,
    /// Changes that were made.
    pub(crate) changes: usize,
    /// Requests of which they were made.
    pub(crate) requests: usize,
}

impl Rules {
    pub(crate) fn set(&mut self, mut set: SetFlows) -> Result<(), Refusal> {
        self.requests += 1;
        if let Some(part) = set.part {
            if part.number == 0 {
                self.parts.clear();
            }
            assert_eq!(part.number as usize, self.parts.len());
            assert!(self.parts.iter().all(|one| one.part.unwrap().batch == part.batch));
            self.parts.push(set);
            if !part.last {
                return Ok(());
            }
            set = SetFlows::new(self.parts[0].pf);
            for part in self.parts.drain(..) {
                set.del.extend(part.del);
                set.clear.extend(part.clear);
                set.add.extend(part.add);
            }
        }
        let mut rules = self.rules.clone();
        for id in set.del {
            rules.remove(&id).ok_or(Refusal::UnknownRule)?;
        }
        rules.retain(|_, rule| !set.clear.contains(&rule.on));
        for rule in set.add {
            if rules.insert(rule.id, rule).is_some() {
                return Err(Refusal::RuleExists);
            }
        }
        self.rules = rules;
        self.changes += 1;
        Ok(())
    }

    /// 300 at a time.
    pub(crate) fn list(&self, ListFlows { after, .. }: ListFlows) -> Flows {
        let rest = self.rules.iter().filter(|(id, _)| after < Some(FlowCursor::Rule(**id)));
        let count = FlowCount { packets: 3, bytes: 180, idle_ms: Some(5000) };
        let rules: Vec<CountedRule> =
            rest.take(300).map(|(_, rule)| CountedRule { rule: rule.clone(), count }).collect();
        let last = rules.last().map(|one| FlowCursor::Rule(one.rule.id));
        Flows { next: last.filter(|_| rules.len() == 300), rules, ..Flows::default() }
    }
}
