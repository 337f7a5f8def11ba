use api::Mac;
use api::channel::{Done, Interface, Limits, PlacedInterface, Version};
use serde::Serialize;
use serde_json::json;

use super::*;
use crate::state::{Change, ChangeKind, Link, Target};

const LIMITS: Limits = Limits { interfaces: 4, nexthops: 16, prefixes: 100, connections: 100 };

struct Talk {
    session: Session,
    plan: Plan,
    state: State,
    now: Instant,
}

impl Talk {
    fn new() -> Self {
        let (state, now) = (State::default(), Instant::now());
        let session = Session::new(Some(1000), Some("boot".to_owned()), 100, now);
        Self { session, plan: Plan::new(LIMITS, &state), state, now }
    }

    /// The method that is asked next, and its number.
    fn asks(&mut self) -> Option<(String, u64)> {
        let line = self.session.next(&mut self.plan, &self.state, self.now)?.unwrap();
        let request = Request::parse(&line).unwrap();
        Some((request.method.to_owned(), request.id))
    }

    fn hears(&mut self, line: &[u8]) -> Result<(), End> {
        self.session.answer(&mut self.plan, &self.state, line).map(drop)
    }

    fn answered(&mut self, id: u64, result: impl Serialize) -> Result<(), End> {
        let answer =
            Answer { jsonrpc: Version::V2, id: Some(id), outcome: Outcome::Result(result) };
        self.hears(&answer.line().unwrap())
    }

    fn refused(&mut self, id: u64, refusal: Refusal) -> Result<(), End> {
        let outcome: Outcome<Done> = Outcome::Error(Failed::new(refusal, "no"));
        let answer = Answer { jsonrpc: Version::V2, id: Some(id), outcome };
        self.hears(&answer.line().unwrap())
    }

    /// Tells what the plan has, to a daemon that agrees with all.
    fn tell_all(&mut self) {
        while let Some(call) = self.plan.next(&self.state) {
            if let Call::Interfaces(call) = call {
                let port = |one: &Interface| PlacedInterface {
                    id: one.id,
                    port: Some(one.name.parse().unwrap()),
                    refused: None,
                };
                self.plan.placed(Placed { interfaces: call.interfaces.iter().map(port).collect() });
            }
        }
    }

    fn welcomed(&mut self) {
        let (method, id) = self.asks().unwrap();
        assert_eq!(method, "hello");
        let (daemon, vm) = ("model".to_owned(), "edge".parse().unwrap());
        let (protocol, lease_ms, limits, ports) = (PROTOCOL, 1000, LIMITS, Vec::new());
        let welcome = Welcome { protocol, daemon, vm, lease_ms, limits, ports };
        self.answered(id, welcome).unwrap();
    }
}

#[test]
fn one_request_at_a_time_and_the_lease_is_renewed() {
    let mut talk = Talk::new();
    talk.welcomed();
    // Without interfaces nothing is told but why.
    let (method, id) = talk.asks().unwrap();
    assert_eq!(method, "router.status");
    assert_eq!(talk.asks(), None);
    talk.answered(id, Done {}).unwrap();
    assert_eq!(talk.asks(), None);
    talk.now += Duration::from_millis(250);
    let (method, id) = talk.asks().unwrap();
    assert_eq!(method, "router.renew");
    talk.answered(id, Lease { lease_ms: 1000, lost: true, placed: None }).unwrap();
    talk.welcomed();
}

#[test]
fn next_hops_are_counted_while_there_are_any() {
    let mut talk = Talk::new();
    talk.welcomed();
    talk.tell_all();
    talk.now += COUNT;
    assert_eq!(talk.asks().unwrap().0, "router.renew");
    let renewed = Lease { lease_ms: 1000, lost: false, placed: None };
    talk.answered(talk.session.id, renewed.clone()).unwrap();
    let renewal = talk.now + Duration::from_millis(250);
    assert_eq!(talk.session.deadline(&talk.plan, &talk.state), Some(renewal));

    for index in 1..=2 {
        talk.state.set_link(index.into(), Link::plain(index));
    }
    let target = Target::Link(2);
    let change = Change { metric: 0, tos: 0, target, kind: ChangeKind::Added };
    talk.state.change_route(false, "10.1.2.0/24".parse().unwrap(), &change);
    talk.state.set_neighbour(2, "10.1.2.5".parse().unwrap(), Some(Mac([2, 0, 0, 0, 0, 25])));
    talk.plan.update(&mut talk.state);
    talk.tell_all();
    assert!(talk.plan.has_nexthops());
    assert_eq!(talk.asks().unwrap().0, "router.counters");
    talk.answered(talk.session.id, Counted { nexthops: Vec::new(), more: false }).unwrap();
    assert_eq!(talk.asks(), None);
    talk.now += COUNT;
    assert_eq!(talk.asks().unwrap().0, "router.counters");
}

#[test]
fn what_is_left_of_a_session_before_is_passed_over() {
    let mut talk = Talk::new();
    let (_, id) = talk.asks().unwrap();
    talk.hears(b"\"half a line").unwrap();
    talk.answered(id - 50, json!({})).unwrap();
    talk.refused(3, Refusal::Lost).unwrap();
    assert!(talk.session.peer().is_none());
    // But not without end.
    let stray = (0..100).map(|_| talk.hears(b"{}")).find(Result::is_err);
    assert!(stray.is_some());
}

#[test]
fn answers_that_are_none_end_the_session() {
    for bad in [
        &b""[..],
        b"{}",
        b"[[[[[[[[",
        b"\xff\xff",
        br#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        br#"{"jsonrpc":"2.0","id":103,"result":7}"#,
        br#"{"jsonrpc":"2.0","id":103}"#,
    ] {
        let mut talk = Talk::new();
        talk.welcomed();
        let (method, id) = talk.asks().unwrap();
        assert_eq!((method.as_str(), id), ("router.status", 102));
        talk.answered(id, Done {}).unwrap();
        talk.now += Duration::from_millis(250);
        let (method, id) = talk.asks().unwrap();
        assert_eq!((method.as_str(), id), ("router.renew", 103));
        assert!(matches!(talk.hears(bad), Err(End::Failed(_))), "{bad:?}");
    }
}

#[test]
fn a_refusal_withdraws_what_was_told() {
    let mut talk = Talk::new();
    talk.welcomed();
    let (_, id) = talk.asks().unwrap();
    talk.refused(id, Refusal::Host).unwrap();
    let (method, id) = talk.asks().unwrap();
    assert_eq!(method, "router.withdraw");
    let End::Failed(why) = talk.answered(id, Done {}).unwrap_err() else { panic!("failed") };
    assert!(why.contains("host"), "{why}");

    // To be stopped is no failure.
    let mut talk = Talk::new();
    talk.welcomed();
    talk.session.stop();
    let (method, id) = talk.asks().unwrap();
    assert_eq!(
        (method.as_str(), talk.answered(id, Done {})),
        ("router.withdraw", Err(End::Stopped))
    );
}

#[test]
fn questions_of_others_are_asked_in_between() {
    let mut talk = Talk::new();
    talk.welcomed();
    let ask = |talk: &mut Talk, token| {
        let (method, params) = ("vf.list".to_owned(), json!({"pf": "02:00:00:00:00:01"}));
        talk.session.pass_on(PassOn { token, method, params });
    };
    let (method, first) = talk.asks().unwrap();
    assert_eq!(method, "router.status");
    ask(&mut talk, 7);
    ask(&mut talk, 8);
    assert_eq!(talk.asks(), None, "an answer is awaited");
    talk.answered(first, Done {}).unwrap();
    let (method, id) = talk.asks().unwrap();
    assert_eq!(method, "vf.list");
    talk.answered(id, json!({"functions": []})).unwrap();
    let (method, id) = talk.asks().unwrap();
    assert_eq!(method, "vf.list");
    // A refusal is for whoever asked, and no end.
    talk.refused(id, Refusal::BadParams).unwrap();
    let said = [(7, Said::Result(json!({"functions": []}))), (8, Said::Error("no".to_owned()))];
    assert_eq!(talk.session.said(), said);
    assert_eq!(talk.session.said(), []);
    assert_eq!(talk.asks(), None);
    // They do not renew the lease.
    talk.now += Duration::from_millis(250);
    ask(&mut talk, 9);
    let (_, id) = talk.asks().unwrap();
    talk.answered(id, json!({})).unwrap();
    assert_eq!(talk.asks().unwrap().0, "router.renew");
    // What is asked when all is lost is not asked of the next session.
    ask(&mut talk, 10);
    let lost = Lease { lease_ms: 1000, lost: true, placed: None };
    talk.answered(id + 1, lost).unwrap();
    talk.welcomed();
    assert_eq!(talk.asks().unwrap().0, "router.status");
}

#[test]
fn a_daemon_that_is_silent_is_overdue() {
    let mut talk = Talk::new();
    talk.asks().unwrap();
    assert!(!talk.session.overdue(talk.now));
    assert_eq!(talk.session.deadline(&talk.plan, &talk.state), Some(talk.now + PATIENCE));
    assert!(talk.session.overdue(talk.now + PATIENCE));
}
