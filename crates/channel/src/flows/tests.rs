use super::*;
use api::rule::FlowAction;
use proptest::prelude::*;

const LIMITS: FlowLimits = FlowLimits { rules: 6, rate: 10, meters: 2, connections: 0 };
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn pf() -> FlowPf {
    FlowPf { name: "web-pf0".parse().unwrap(), vfs: 2, limits: LIMITS }
}

fn port(text: &str) -> FlowPort {
    text.parse().unwrap()
}

fn rule(id: u64, on: &str) -> FlowRule {
    FlowRule::new(id, port(on), FlowDirection::From, FlowAction::Drop)
}

fn add(rules: impl IntoIterator<Item = FlowRule>) -> SetFlows {
    SetFlows { add: rules.into_iter().collect(), ..SetFlows::new(MAC) }
}

fn collect(set: SetFlows) -> Result<FlowChange, Refusal> {
    let whole = FlowChange::collect(&mut None, &pf(), set).map_err(|failed| failed.data)?;
    Ok(whole.unwrap())
}

fn apply(book: &FlowBook, set: SetFlows) -> Result<Changed, Refusal> {
    book.apply(&collect(set)?, None, &LIMITS).map_err(|failed| failed.data)
}

fn book(rules: impl IntoIterator<Item = FlowRule>) -> FlowBook {
    apply(&FlowBook::default(), add(rules)).unwrap().book
}

#[test]
fn a_change_is_done_in_order_and_as_a_whole() {
    let before = book([rule(1, "vf0"), rule(2, "vf0"), rule(3, "vf1")]);
    let default = |on, action| FlowDefault { on: port(on), direction: FlowDirection::To, action };
    let set = SetFlows {
        del: vec![3],
        clear: vec![port("vf0")],
        add: vec![rule(3, "pf"), rule(1, "vf0")],
        defaults: vec![default("vf0", FlowVerdict::Drop)],
        ..SetFlows::new(MAC)
    };
    let Changed { book: after, touched, updates } = apply(&before, set.clone()).unwrap();
    assert_eq!(after.rules().keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(after.default_of(port("vf0"), FlowDirection::To), FlowVerdict::Drop);
    assert_eq!(after.default_of(port("vf0"), FlowDirection::From), FlowVerdict::Accept);
    assert_eq!(touched, ["pf", "vf0", "vf1"].map(port).into());
    // 2 went, 3 is another, the default is new; 1 is the same.
    assert_eq!(updates, 4);
    let same = apply(&after, SetFlows { del: vec![3, 1], clear: vec![], ..set }).unwrap();
    assert_eq!((same.updates, same.touched.len(), &same.book), (0, 0, &after));
    let accept = SetFlows { defaults: vec![default("vf0", FlowVerdict::Accept)], ..add([]) };
    let without = apply(&after, accept).unwrap();
    assert_eq!((without.updates, without.touched), (1, [port("vf0")].into()));
    assert!(!without.book.functions().is_empty() && !without.book.is_empty());
    let all = SetFlows { clear: vec![port("pf"), port("vf0")], ..SetFlows::new(MAC) };
    assert!(apply(&after, all).unwrap().book.is_empty());
}

#[test]
fn what_cannot_be_is_refused() {
    let before = book([rule(1, "vf0")]);
    let forward = |to: &str| FlowRule { action: FlowAction::Forward(port(to)), ..rule(9, "vf0") };
    let metered = |id| FlowRule { meter: Some(1), action: FlowAction::Accept, ..rule(id, "vf0") };
    for (set, reason) in [
        (add([rule(1, "vf1")]), Refusal::RuleExists),
        (add([rule(2, "vf1"), rule(2, "vf1")]), Refusal::RuleExists),
        (SetFlows { del: vec![2], ..add([]) }, Refusal::UnknownRule),
        (add([rule(2, "vf2")]), Refusal::UnknownFunction),
        (add([forward("vf254")]), Refusal::UnknownFunction),
        (add([FlowRule { mirror: Some(port("vf2")), ..rule(2, "pf") }]), Refusal::UnknownFunction),
        (SetFlows { clear: vec![port("vf2")], ..add([]) }, Refusal::UnknownFunction),
        (add([FlowRule { meter: Some(0), ..rule(2, "pf") }]), Refusal::BadParams),
        (add((2..8).map(|id| rule(id, "pf"))), Refusal::TooManyRules),
        (add((2..9).map(|id| rule(id, "pf"))), Refusal::TooManyRules),
        (SetFlows { del: (0..7).collect(), ..add([]) }, Refusal::TooManyRules),
        (add((2..5).map(metered)), Refusal::TooManyMeters),
        (SetFlows { clear: vec![port("pf"); 257], ..add([]) }, Refusal::BadParams),
    ] {
        assert_eq!(apply(&before, set).unwrap_err(), reason);
    }
    assert!(apply(&before, add([forward("vf1"), metered(2), metered(3)])).is_ok());
    let default =
        FlowDefault { on: port("vf3"), direction: FlowDirection::To, action: FlowVerdict::Drop };
    let set = SetFlows { defaults: vec![default], ..add([]) };
    assert_eq!(apply(&before, set).unwrap_err(), Refusal::UnknownFunction);
}

#[test]
fn parts_are_one_change() {
    let part = |batch, number, last, set: SetFlows| SetFlows {
        part: Some(FlowPart { batch, number, last }),
        ..set
    };
    let mut staged = None;
    let mut take = |set| {
        let whole = FlowChange::collect(&mut staged, &pf(), set).map_err(|failed| failed.data);
        (whole, staged.is_some())
    };
    assert_eq!(take(part(7, 0, false, add([rule(1, "vf0")]))), (Ok(None), true));
    assert_eq!(take(part(7, 1, false, SetFlows { del: vec![4], ..add([]) })), (Ok(None), true));
    // One that is no part goes by.
    let (alone, kept) = take(add([rule(9, "pf")]));
    assert!(alone.unwrap().unwrap().add.contains_key(&9) && kept);
    let (whole, kept) = take(part(7, 2, true, add([rule(2, "vf1")])));
    let whole = whole.unwrap().unwrap();
    assert_eq!((whole.add.len(), whole.del.len(), kept), (2, 1, false));
    // Without a beginning, of another, again, or refused: gone.
    let lost = (Err(Refusal::UnknownBatch), false);
    assert_eq!(take(part(7, 1, true, add([]))), lost);
    for wrong in [part(8, 1, false, add([])), part(7, 2, false, add([]))] {
        assert_eq!(take(part(7, 0, false, add([]))), (Ok(None), true));
        assert_eq!(take(wrong), lost);
    }
    assert_eq!(take(part(7, 0, false, add([rule(1, "pf")]))), (Ok(None), true));
    assert_eq!(take(part(7, 1, false, add([rule(1, "pf")]))), (Err(Refusal::RuleExists), false));
    // However many parts, it stays within the quota.
    assert_eq!(take(part(7, 0, false, add((0..6).map(|id| rule(id, "pf"))))), (Ok(None), true));
    assert_eq!(take(part(7, 1, false, add([rule(6, "pf")]))), (Err(Refusal::TooManyRules), false));
    // A beginning takes the place of one before; another PF is another change.
    assert_eq!(take(part(7, 0, false, add([rule(1, "vf0")]))), (Ok(None), true));
    assert_eq!(take(part(8, 0, false, add([rule(2, "vf0")]))), (Ok(None), true));
    let other = SetFlows { pf: Mac([9; 6]), ..part(8, 1, true, add([])) };
    assert_eq!(take(other), lost);
    assert_eq!(take(part(8, 0, false, add([rule(2, "vf0")]))), (Ok(None), true));
    let (whole, _) = take(part(8, 1, true, add([])));
    assert_eq!(whole.unwrap().unwrap().add.into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn another_boot_ends_rules_and_an_unknown_one_does_not() {
    let change = collect(add([rule(1, "vf0")])).unwrap();
    let said = FlowBook::default().apply(&change, Some("a"), &LIMITS).unwrap().book;
    assert!(!said.booted("a") && said.booted("b"));
    // Who does not say it any more is still of that one.
    let more = collect(add([rule(2, "vf0")])).unwrap();
    assert!(said.apply(&more, None, &LIMITS).unwrap().book.booted("b"));
    let silent = FlowBook::default().apply(&change, None, &LIMITS).unwrap().book;
    assert!(!silent.booted("a"));
    assert!(!FlowBook::default().booted("a"));
}

#[test]
fn rules_of_functions_that_are_gone_go() {
    let mut book = book([rule(1, "vf0"), rule(2, "vf1"), rule(3, "pf")]);
    assert_eq!(book.cut(1), 1);
    assert_eq!(book.rules().keys().copied().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_book_is_saved_as_it_is() {
    let set = SetFlows {
        defaults: vec![FlowDefault {
            on: port("vf1"),
            direction: FlowDirection::To,
            action: FlowVerdict::Drop,
        }],
        ..add([rule(1, "vf0"), rule(u64::MAX, "pf")])
    };
    let change = collect(set).unwrap();
    let book = FlowBook::default().apply(&change, Some("a"), &LIMITS).unwrap().book;
    let text = serde_json::to_string(&book).unwrap();
    assert_eq!(serde_json::from_str::<FlowBook>(&text).unwrap(), book);
}

proptest! {
    /// As a bucket of twice the quota, that fills at the rate.
    #[test]
    fn updates_come_at_the_rate(steps in prop::collection::vec((0..300u64, 0..=12u32), 1..200)) {
        let start = Instant::now();
        let mut pace = FlowPace::new(start);
        let (mut now, mut taken) = (start, 0u64);
        for (wait, updates) in steps {
            now += Duration::from_millis(wait);
            match pace.take(updates, &LIMITS, now) {
                Ok(()) => {
                    taken += u64::from(updates);
                    let most = 12.0 + 10.0 * (now - start).as_secs_f64();
                    prop_assert!(taken as f64 <= most + 1e-6, "{taken} of {most}");
                }
                Err(wait) => {
                    prop_assert!(wait <= Duration::from_millis(2400));
                    now += wait + Duration::from_micros(1);
                    prop_assert!(pace.take(updates, &LIMITS, now).is_ok(), "after what it said");
                    taken += u64::from(updates);
                }
            }
        }
    }
}
