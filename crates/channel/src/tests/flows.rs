//! Flow rules over a session.

use api::channel::{
    CountedRule, FlowCount, FlowCursor, FlowFunction, FlowLimits, FlowPart, FlowRest, Flows,
    ListFlows, SetFlows,
};
use api::rule::{FlowAction, FlowDirection, FlowPort, FlowRule, FlowVerdict};

use super::*;

const PF: Mac = Mac([2, 0, 0, 0, 0, 0x77]);
const QUOTA: FlowLimits = FlowLimits { rules: 2000, rate: 1, meters: 1, connections: 1 };

/// A VM with a PF of 255 VFs that has rules whose numbers are as long as they may be.
struct Card {
    rules: u64,
}

impl World for Card {
    type Port = u8;
    fn ports(&self) -> Vec<Port<u8>> {
        Vec::new()
    }
    fn functions(&self) -> Vec<ChannelFunction> {
        Vec::new()
    }
    fn learned(&self, _: &BTreeSet<Mac>) -> Vec<(Mac, u8)> {
        Vec::new()
    }
    fn counts(&self) -> BTreeMap<u32, Vec<HopCount>> {
        BTreeMap::new()
    }
    fn connection_count(&self, _: &Flow) -> HopCount {
        HopCount::default()
    }
    fn flow_pf(&self, mac: Mac) -> Option<FlowPf> {
        let name = "web-pf0".parse().unwrap();
        (mac == PF).then_some(FlowPf { name, vfs: 255, limits: QUOTA })
    }
    fn flows(&self, pf: &Name, after: Option<FlowCursor>) -> Flows {
        assert_eq!(pf.as_str(), "web-pf0");
        let count = FlowCount { packets: u64::MAX, bytes: u64::MAX, idle_ms: Some(u64::MAX) };
        let rest = FlowRest { action: FlowVerdict::Drop, count };
        let functions = (0..255).filter_map(FlowPort::vf);
        let functions = functions.map(|on| FlowFunction { on, from: rest, to: rest });
        let rules = (0..self.rules).map(|id| CountedRule { rule: rule(u64::MAX - id), count });
        let behind = |cursor| after.is_none_or(|after| cursor > after);
        let mut rules: Vec<CountedRule> = rules.collect();
        rules.reverse();
        Flows {
            limits: QUOTA,
            functions: functions.filter(|one| behind(FlowCursor::Function(one.on))).collect(),
            rules: rules.into_iter().filter(|one| behind(FlowCursor::Rule(one.rule.id))).collect(),
            next: None,
        }
    }
}

fn rule(id: u64) -> FlowRule {
    FlowRule::new(id, FlowPort::PF, FlowDirection::From, FlowAction::Drop)
}

fn ask<M: Method>(session: &mut Session<u8>, params: &M) -> Step<u8> {
    let line = Request::line(1, params).unwrap();
    session.line(line.trim_ascii(), Instant::now(), &Card { rules: 1000 })
}

fn begun(boot: Option<&str>) -> Session<u8> {
    let mut session = session();
    let boot = boot.map(str::to_owned);
    let lease_ms = Some(60_000);
    let hello = Hello { protocol: 1, agent: String::new(), lease_ms, boot };
    assert!(refused(&ask(&mut session, &hello).answer, 1).is_none());
    session
}

fn part(number: u32, last: bool, rules: impl Iterator<Item = u64>) -> SetFlows {
    let part = Some(FlowPart { batch: 1, number, last });
    SetFlows { add: rules.map(rule).collect(), part, ..SetFlows::new(PF) }
}

#[test]
fn a_change_is_the_hosts_to_make() {
    let mut session = begun(Some("b1"));
    let set = SetFlows { add: vec![rule(7)], ..SetFlows::new(PF) };
    let step = ask(&mut session, &set);
    assert!(step.answer.is_empty() && step.actions.is_empty());
    let Some(Later::Flows { pf, change, boot }) = step.later else { panic!("nothing follows") };
    assert_eq!((pf.as_str(), boot.as_deref(), change.add.len()), ("web-pf0", Some("b1"), 1));
    let answer = session.done(step.id, Ok(()));
    assert_eq!(answer, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
    let why = api::channel::Failed::new(Refusal::TooManyUpdates, "wait");
    assert_eq!(refused(&session.done(step.id, Err(why)), 1), Some(Refusal::TooManyUpdates));
    assert_eq!(session.refusals().collect::<Vec<_>>(), [(Refusal::TooManyUpdates, 1)]);
}

#[test]
fn who_is_wrong_asks_the_host_for_nothing() {
    let mut early = session();
    assert_eq!(refused(&ask(&mut early, &SetFlows::new(PF)).answer, 1), Some(Refusal::NoSession));
    let mut session = begun(None);
    let other = Mac([2, 0, 0, 0, 0, 0x78]);
    let own = SetFlows::new(PF);
    for (set, reason) in [
        (SetFlows::new(other), Refusal::UnknownFunction),
        (SetFlows { add: (0..2001).map(rule).collect(), ..own.clone() }, Refusal::TooManyRules),
        (part(1, true, 0..1), Refusal::UnknownBatch),
    ] {
        let step = ask(&mut session, &set);
        assert!(step.later.is_none());
        assert_eq!(refused(&step.answer, 1), Some(reason));
    }
    let list = ListFlows { pf: other, after: None };
    assert_eq!(refused(&ask(&mut session, &list).answer, 1), Some(Refusal::UnknownFunction));
}

#[test]
fn parts_end_with_the_session() {
    let mut session = begun(None);
    let step = ask(&mut session, &part(0, false, 0..500));
    assert!(step.later.is_none() && refused(&step.answer, 1).is_none());
    let step = ask(&mut session, &part(1, true, 500..1000));
    let Some(Later::Flows { change, .. }) = step.later else { panic!("nothing follows") };
    assert_eq!(change.add.len(), 1000);
    ask(&mut session, &part(0, false, 0..5));
    let hello = Hello { protocol: 1, agent: String::new(), lease_ms: None, boot: None };
    ask(&mut session, &hello);
    let step = ask(&mut session, &part(1, true, 5..6));
    assert_eq!(refused(&step.answer, 1), Some(Refusal::UnknownBatch));
    // And with the lease.
    ask(&mut session, &part(0, false, 0..5));
    assert!(session.expire(Instant::now() + Duration::from_secs(90)));
    assert!(refused(&ask(&mut session, &Renew {}).answer, 1).is_none());
    let step = ask(&mut session, &part(1, true, 5..6));
    assert_eq!(refused(&step.answer, 1), Some(Refusal::UnknownBatch));
}

#[test]
fn rules_come_in_lines() {
    let mut session = begun(None);
    let mut all = Flows::default();
    let mut lines = 0;
    loop {
        let step = ask(&mut session, &ListFlows { pf: PF, after: all.next });
        assert!(step.answer.len() <= LINE_MAX);
        let answer: Answer<Flows> = serde_json::from_slice(&step.answer).unwrap();
        let Outcome::Result(some) = answer.outcome else { panic!("refused") };
        assert_eq!(some.limits, QUOTA);
        all.functions.extend(some.functions);
        all.rules.extend(some.rules);
        all.next = some.next;
        lines += 1;
        if all.next.is_none() {
            break;
        }
    }
    assert!(lines > 2);
    let ids: Vec<u64> = all.rules.iter().map(|one| one.rule.id).collect();
    assert_eq!(ids, (u64::MAX - 999..=u64::MAX).collect::<Vec<_>>());
    assert_eq!(all.functions.len(), 255);
}
