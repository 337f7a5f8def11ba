use super::*;
use crate::PortPolicy;
use proptest::prelude::*;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

const VF: &str = "pfvf1";
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 7]);

/// What the operator set: `policy` on the VF, `limits` for the guest.
fn pf(policy: PortPolicy, may: &[GuestRight]) -> PfConfig {
    let mut pf = PfConfig::new(name("web"), name("lan"), 2);
    pf.policies.insert(name(VF), policy);
    pf.guest.may = may.iter().copied().collect();
    pf
}

fn ask(pf: &PfConfig, change: GuestSettings) -> Result<FunctionSettings, NotSet> {
    ask_after(pf, &GuestSettings::default(), change).map(|after| pf.settings(&name(VF), &after))
}

fn ask_after(
    pf: &PfConfig,
    before: &GuestSettings,
    change: GuestSettings,
) -> Result<GuestSettings, NotSet> {
    pf.ask(&name(VF), before, &change)
}

fn change() -> GuestSettings {
    GuestSettings::default()
}

#[test]
fn without_limits_it_may_all_but_keep_anothers_address() {
    let pf = pf(PortPolicy::default(), &[]);
    let before = pf.settings(&name(VF), &GuestSettings::default());
    let card = Mac::of_port("web", VF);
    let nothing = FunctionSettings {
        mac: card,
        vlan: 0,
        qos: None,
        spoofchk: false,
        trust: true,
        rate: 0,
        state: LinkState::Auto,
    };
    assert_eq!(before, nothing);
    let all = GuestSettings {
        mac: Some(OTHER),
        vlan: Some(10),
        qos: Some(3),
        spoofchk: Some(true),
        trust: None,
        rate: Some(1000),
        state: Some(LinkState::Enable),
    };
    let guest = ask_after(&pf, &GuestSettings::default(), all).unwrap();
    let after = pf.settings(&name(VF), &guest);
    let expected = FunctionSettings {
        mac: OTHER,
        vlan: 10,
        qos: Some(3),
        spoofchk: true,
        trust: true,
        rate: 1000,
        state: LinkState::Enable,
    };
    assert_eq!(after, expected);
    let port = pf.port_with(&name(VF), &guest);
    assert_eq!((port.vlan, port.card(&name(VF))), (Some(10), Some(OTHER)));
    assert!(port.check().is_ok());
    // All of it back, and nothing is left.
    let back = GuestSettings {
        mac: Some(Mac([0; 6])),
        vlan: Some(0),
        qos: None,
        spoofchk: Some(false),
        trust: None,
        rate: Some(0),
        state: Some(LinkState::Auto),
    };
    assert_eq!(ask_after(&pf, &guest, back), Ok(GuestSettings::default()));
    // Its own address alone may be kept from others.
    assert!(ask(&pf, GuestSettings { trust: Some(false), ..change() }).is_ok());
    let both = GuestSettings { trust: Some(false), mac: Some(OTHER), ..change() };
    assert!(matches!(ask(&pf, both), Err(NotSet::NotAllowed(why)) if why.contains("trust")));
    assert!(ask(&PfConfig { guest: limits(&[GuestRight::Mac]), ..pf }, both).is_ok());
}

fn limits(may: &[GuestRight]) -> GuestLimits {
    GuestLimits { may: may.iter().copied().collect(), max_rate: None }
}

#[test]
fn what_the_operator_took_needs_a_right() {
    use GuestRight::{Mac as M, Rate, Spoofchk, State, Trust, Vlan};
    let policy = PortPolicy {
        spoofchk: true,
        trust: false,
        max_tx_rate: Some(100),
        link: LinkState::Disable,
        ..PortPolicy::default()
    };
    for (right, wanted) in [
        (M, GuestSettings { mac: Some(OTHER), ..change() }),
        (Vlan, GuestSettings { vlan: Some(30), ..change() }),
        (Vlan, GuestSettings { vlan: Some(0), ..change() }),
        (Vlan, GuestSettings { qos: Some(7), ..change() }),
        (Spoofchk, GuestSettings { spoofchk: Some(false), ..change() }),
        (Trust, GuestSettings { trust: Some(true), ..change() }),
        (Rate, GuestSettings { rate: Some(101), ..change() }),
        (Rate, GuestSettings { rate: Some(0), ..change() }),
        (State, GuestSettings { state: Some(LinkState::Auto), ..change() }),
    ] {
        let others: Vec<GuestRight> =
            GuestRight::ALL.iter().copied().filter(|other| *other != right).collect();
        let with = |may: &[GuestRight]| PfConfig { vlan: Some(10), ..pf(policy.clone(), may) };
        let Err(NotSet::NotAllowed(why)) = ask(&with(&others), wanted) else {
            panic!("{wanted:?} without {right:?}")
        };
        assert!(why.starts_with(right.as_str()), "{why}");
        let allowed = with(&[right]);
        let guest = ask_after(&allowed, &GuestSettings::default(), wanted).unwrap();
        assert!(!guest.is_default());
        assert!(allowed.port_with(&name(VF), &guest).check().is_ok());
        // Without the right it no longer counts.
        let given = with(&[]).port(&name(VF));
        assert_eq!(with(&[]).port_with(&name(VF), &guest), given);
    }
    // As it is anyway, it may be said.
    let same = GuestSettings {
        mac: Some(Mac::of_port("web", VF)),
        vlan: Some(0),
        qos: None,
        spoofchk: Some(true),
        trust: Some(false),
        rate: Some(100),
        state: Some(LinkState::Disable),
    };
    let none = GuestSettings::default();
    assert_eq!(ask_after(&pf(policy.clone(), &[]), &none, same), Ok(none));
    assert!(ask(&pf(policy, &[]), GuestSettings { rate: Some(99), ..change() }).is_ok());
}

#[test]
fn a_trunk_is_where_it_may_choose() {
    let trunk = |may: &[GuestRight]| PfConfig {
        trunk: Some("10,20-30".parse().unwrap()),
        native: Some(5),
        ..pf(PortPolicy::default(), may)
    };
    for (vlan, allowed) in [(10, true), (25, true), (5, true), (31, false), (0, true)] {
        let asked = GuestSettings { vlan: Some(vlan), ..change() };
        assert_eq!(ask(&trunk(&[]), asked).is_ok(), allowed, "{vlan}");
        assert!(ask(&trunk(&[GuestRight::Vlan]), asked).is_ok());
    }
    let none = GuestSettings::default();
    let guest =
        ask_after(&trunk(&[]), &none, GuestSettings { vlan: Some(25), ..change() }).unwrap();
    let port = trunk(&[]).port_with(&name(VF), &guest);
    assert_eq!((port.vlan, port.trunk, port.native), (Some(25), None, None));
    assert_eq!(trunk(&[]).port_with(&name(VF), &none).native, Some(5));
}

#[test]
fn a_rate_has_a_highest() {
    let mut pf = pf(PortPolicy::default(), &[GuestRight::Rate]);
    pf.guest.max_rate = Some(2000);
    assert!(pf.check().is_ok());
    for (rate, allowed) in [(1, true), (2000, true), (2001, false), (1_000_000, false)] {
        let asked = GuestSettings { rate: Some(rate), ..change() };
        assert_eq!(ask(&pf, asked).is_ok(), allowed, "{rate}");
    }
    pf.guest.may.clear();
    assert!(pf.check().unwrap_err().to_string().contains("max_rate"));
    let bad = GuestLimits { max_rate: Some(0), ..limits(&[GuestRight::Rate]) };
    assert!(bad.check().is_err());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let pf = pf(PortPolicy::default(), GuestRight::ALL);
    for wrong in [
        GuestSettings { vlan: Some(4095), ..change() },
        GuestSettings { vlan: Some(1), qos: Some(8), ..change() },
        GuestSettings { qos: Some(1), ..change() },
        GuestSettings { vlan: Some(0), qos: Some(1), ..change() },
        GuestSettings { rate: Some(1_000_001), ..change() },
    ] {
        assert!(matches!(ask(&pf, wrong), Err(NotSet::Wrong(_))), "{wrong:?}");
    }
    let group = GuestSettings { mac: Some(Mac([1, 0, 0, 0, 0, 1])), ..change() };
    assert_eq!(ask(&pf, group), Err(NotSet::NotUnicast));
}

#[test]
fn another_vlan_has_no_priority_of_before() {
    let pf = pf(PortPolicy::default(), &[]);
    let none = GuestSettings::default();
    let asked = GuestSettings { vlan: Some(10), qos: Some(3), ..change() };
    let guest = ask_after(&pf, &none, asked).unwrap();
    let other = ask_after(&pf, &guest, GuestSettings { qos: Some(4), ..change() }).unwrap();
    assert_eq!((other.vlan, other.qos), (Some(10), Some(4)));
    let moved = ask_after(&pf, &guest, GuestSettings { vlan: Some(11), ..change() }).unwrap();
    assert_eq!((moved.vlan, moved.qos), (Some(11), None));
    let gone = ask_after(&pf, &guest, GuestSettings { vlan: Some(0), ..change() }).unwrap();
    assert!(gone.is_default());
}

fn link() -> impl Strategy<Value = LinkState> {
    prop_oneof![Just(LinkState::Auto), Just(LinkState::Enable), Just(LinkState::Disable)]
}

fn changes() -> impl Strategy<Value = GuestSettings> {
    use proptest::option::of;
    let mac = of((0..3_u8).prop_map(|n| Mac([2, 0, 0, 0, 0, n])));
    let (vlan, qos, rate) = (of(0..4_u16), of(0..8_u8), of(0..4_u32));
    (mac, vlan, qos, of(any::<bool>()), of(any::<bool>()), rate, of(link())).prop_map(
        |(mac, vlan, qos, spoofchk, trust, rate, state)| GuestSettings {
            mac,
            vlan,
            qos,
            spoofchk,
            trust,
            rate,
            state,
        },
    )
}

fn pfs() -> impl Strategy<Value = PfConfig> {
    let policy = (any::<bool>(), any::<bool>(), proptest::option::of(1..3_u32), link()).prop_map(
        |(spoofchk, trust, max_tx_rate, link)| PortPolicy {
            spoofchk,
            trust,
            max_tx_rate,
            link,
            ..PortPolicy::default()
        },
    );
    let may = proptest::sample::subsequence(GuestRight::ALL, 0..=6);
    let vlan = proptest::option::of(1..4_u16);
    (policy, may, vlan, any::<bool>()).prop_map(|(policy, may, vlan, trunk)| {
        let of = |set: bool| vlan.filter(|_| set).map(|vlan| vlan.to_string().parse().unwrap());
        PfConfig { vlan: vlan.filter(|_| !trunk), trunk: of(trunk), ..pf(policy, &may) }
    })
}

proptest! {
    /// All that is asked for holds, or nothing does; a guest without rights never has more than it was given.
    #[test]
    fn what_is_granted_holds_and_is_no_more_than_is_allowed(
        pf in pfs(), asked in proptest::collection::vec(changes(), 1..5),
    ) {
        let port = name(VF);
        let mut guest = GuestSettings::default();
        for change in asked {
            let Ok(after) = pf.ask(&port, &guest, &change) else { continue };
            let now = pf.settings(&port, &after);
            prop_assert!(pf.port_with(&port, &after).check().is_ok());
            let card = pf.port(&port).card(&port).unwrap();
            let mac = change.mac.map(|mac| if mac.0 == [0; 6] { card } else { mac });
            prop_assert!(mac.is_none_or(|mac| mac == now.mac));
            prop_assert!(change.vlan.is_none_or(|vlan| vlan == now.vlan));
            prop_assert!(change.qos.is_none_or(|qos| Some(qos) == now.qos));
            prop_assert!(change.spoofchk.is_none_or(|on| on == now.spoofchk));
            prop_assert!(change.trust.is_none_or(|on| on == now.trust));
            prop_assert!(change.rate.is_none_or(|rate| rate == now.rate));
            prop_assert!(change.state.is_none_or(|state| state == now.state));
            guest = after;
            let given = pf.settings(&port, &GuestSettings::default());
            let may = |right| pf.guest.may.contains(&right);
            prop_assert!(now.spoofchk || !given.spoofchk || may(GuestRight::Spoofchk));
            prop_assert!(!now.trust || given.trust || may(GuestRight::Trust));
            let held = given.spoofchk || !given.trust || !now.trust;
            prop_assert!(now.mac == given.mac || !held || may(GuestRight::Mac));
            let same = now.vlan == given.vlan && now.qos == given.qos;
            prop_assert!(same || given.vlan == 0 || may(GuestRight::Vlan));
            let more = now.rate == 0 || now.rate > given.rate;
            prop_assert!(given.rate == 0 || !more || may(GuestRight::Rate));
            let linked = now.state != LinkState::Disable;
            prop_assert!(!linked || given.state != LinkState::Disable || may(GuestRight::State));
        }
    }
}
