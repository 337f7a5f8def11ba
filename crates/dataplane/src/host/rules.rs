//! Flow rules of ports.

use std::sync::Arc;
use std::time::Duration;

use switch::PortId;
use switch::rules::{PortRules, RuleError, RuleSet, RuleStats};

use super::Host;
use crate::error::HostError;
use crate::status::{RuleCount, RulesStatus};

/// Compiles what is asked for; what is the same in `before` goes on.
pub(super) fn compile(
    rules: Option<RuleSet>,
    before: Option<&PortRules>,
) -> Result<Option<Arc<PortRules>>, RuleError> {
    Ok(rules.map(|rules| PortRules::new(rules, before)).transpose()?.map(Arc::new))
}

impl Host {
    /// The flow rules of these ports, all at once or nothing; `None`: a port has none. All rules of a port
    /// are replaced, and those that stay go on counting. Returns when they hold for every frame.
    ///
    /// # Errors
    ///
    /// One of the ports does not exist, or a rule makes no sense or is too much.
    pub async fn set_all_rules(
        &self,
        all: Vec<(PortId, Option<RuleSet>)>,
    ) -> Result<(), HostError> {
        let switch = &self.0.switch;
        let compiled = {
            let snapshot = switch.snapshot();
            let one = |(id, rules)| Ok((id, compile(rules, snapshot.rules(id))?));
            all.into_iter().map(one).collect::<Result<Vec<_>, RuleError>>()?
        };
        switch.set_all_rules(compiled)?;
        self.settle().await
    }

    /// What the flow rules of a port have done, and what no rule matched. `None`: it has none.
    pub fn rules_status(&self, id: PortId) -> Option<RulesStatus> {
        let snapshot = self.0.switch.snapshot();
        let rules = snapshot.rules(id)?;
        let now_ms = self.0.now_ms();
        let count = |stats: RuleStats| RuleCount {
            packets: stats.packets,
            bytes: stats.bytes,
            idle: (stats.packets > 0)
                .then(|| Duration::from_millis(now_ms.saturating_sub(stats.last_ms))),
        };
        Some(RulesStatus {
            rules: rules.stats().map(|(rule, stats)| (rule.id, count(stats))).collect(),
            from_rest: count(rules.from.rest()),
            to_rest: count(rules.to.rest()),
        })
    }
}
