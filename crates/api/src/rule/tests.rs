use super::*;
use proptest::prelude::*;
use serde_json::json;

fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(Mac)
}

fn port() -> impl Strategy<Value = FlowPort> {
    prop_oneof![Just(FlowPort::PF), (0..MAX_VFS).prop_map(|number| FlowPort::vf(number).unwrap())]
}

fn range() -> impl Strategy<Value = PortRange> {
    any::<(u16, u16)>().prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap())
}

fn prefix() -> impl Strategy<Value = Prefix> {
    (any::<IpAddr>(), 0..=128u8).prop_map(|(address, length)| {
        Prefix::new(address, if address.is_ipv4() { length % 33 } else { length }).unwrap()
    })
}

prop_compose! {
    fn matching()(
        macs in any::<(Option<[u8; 6]>, Option<([u8; 6], [u8; 6])>)>(),
        vlan in prop::option::of(0..=4094u16),
        ethertype in any::<Option<u16>>(),
        prefixes in (prop::option::of(prefix()), prop::option::of(prefix())),
        protocol in any::<Option<u8>>(),
        ports in (prop::option::of(range()), prop::option::of(range())),
        icmp_type in any::<Option<u8>>(),
        flags in any::<Option<(u8, u8)>>(),
        later_fragment in any::<Option<bool>>(),
        state in any::<Option<bool>>(),
    ) -> FlowMatch {
        FlowMatch {
            src_mac: macs.0.map(|mac| MacMask::new(Mac(mac), Mac([0xff; 6]))),
            dst_mac: macs.1.map(|(mac, mask)| MacMask::new(Mac(mac), Mac(mask))),
            vlan: vlan.map(|id| if id == 0 { FlowVlan::Untagged } else { FlowVlan::Id(id) }),
            ethertype: ethertype.map(EtherType),
            src: prefixes.0,
            dst: prefixes.1,
            protocol: protocol.map(Protocol),
            src_port: ports.0,
            dst_port: ports.1,
            icmp_type,
            tcp_flags: flags.and_then(|(set, mask)| TcpFlags::new(set & mask, mask)),
            later_fragment,
            state: state.map(|new| if new { FlowState::New } else { FlowState::Established }),
        }
    }
}

prop_compose! {
    fn rule()(
        (id, on, from, priority) in (any::<u64>(), port(), any::<bool>(), any::<u32>()),
        matches in matching(),
        action in prop_oneof![
            Just(FlowAction::Accept),
            Just(FlowAction::Drop),
            port().prop_map(FlowAction::Forward)
        ],
        macs in (prop::option::of(mac()), prop::option::of(mac())),
        addresses in any::<(Option<IpAddr>, Option<IpAddr>)>(),
        ports in any::<(Option<u16>, Option<u16>)>(),
        tag in prop::option::of(
            prop_oneof![Just(FlowTag::Pop), (1..=4094u16).prop_map(FlowTag::Push)]),
        (meter, mirror) in (prop::option::of(1..=METER_MAX), prop::option::of(port())),
    ) -> FlowRule {
        let direction = if from { FlowDirection::From } else { FlowDirection::To };
        let rewrite = FlowRewrite {
            src_mac: macs.0,
            dst_mac: macs.1,
            src: addresses.0,
            dst: addresses.1,
            src_port: ports.0,
            dst_port: ports.1,
        };
        FlowRule {
            id, on, direction, priority, matches, action, rewrite, tag, meter, mirror,
        }
    }
}

proptest! {
    #[test]
    fn a_rule_is_the_same_in_json_and_in_words(rule in rule()) {
        let text = serde_json::to_string(&rule).unwrap();
        prop_assert_eq!(&serde_json::from_str::<FlowRule>(&text).unwrap(), &rule, "{}", text);
        let words = rule.words();
        match (words.parse::<FlowLine>(), rule.check()) {
            (Ok(FlowLine::Rule { rule: read, numbered: true }), Ok(())) => {
                prop_assert_eq!(*read, rule);
            }
            (Err(why), Err(wrong)) => prop_assert_eq!(why.to_string(), wrong),
            (read, checked) => prop_assert!(false, "{words}: {read:?}, {checked:?}"),
        }
    }

    #[test]
    fn no_text_is_a_fault(text in "\\PC{0,80}", words in prop::collection::vec(
        prop_oneof![
            Just("vf0"), Just("from"), Just("accept"), Just("id"), Just("7"), Just("dst-port"),
            Just("80-"), Just("tcp-flags"), Just("/"), Just("src"), Just("::/0"), Just("default"),
        ], 0..70)) {
        let _ = text.parse::<FlowLine>();
        let _ = words.join(" ").parse::<FlowLine>();
    }
}

#[test]
fn values_have_one_form() {
    fn check<T: FromStr<Err: fmt::Debug> + fmt::Display>(good: &[(&str, &str)], wrong: &[&str]) {
        for (text, shown) in good {
            assert_eq!(text.parse::<T>().unwrap().to_string(), *shown);
        }
        for text in wrong {
            assert!(text.parse::<T>().is_err(), "{text}");
        }
    }
    check::<PortRange>(
        &[("80", "80"), ("0-65535", "0-65535"), ("7-7", "7")],
        &["", "-", "80-", "81-80", "65536", "+1", "1-2-3", " 1", "01"],
    );
    check::<Protocol>(
        &[("tcp", "tcp"), ("6", "tcp"), ("0", "0"), ("255", "255")],
        &["", "TCP", "256", "-1", "06"],
    );
    check::<EtherType>(
        &[("ipv4", "ipv4"), ("0x0800", "ipv4"), ("0x88CC", "0x88cc"), ("arp", "arp")],
        &["", "2048", "0x800", "0x+800", "0x08000", "ip"],
    );
    check::<FlowVlan>(&[("1", "1"), ("4094", "4094"), ("untagged", "untagged")], &["0", "4095"]);
    check::<TcpFlags>(
        &[("syn", "syn"), ("syn/ack,syn", "syn/syn,ack"), ("none/rst", "none/rst")],
        &["", "none", "syn/ack", "syn,", "0x2", "SYN"],
    );
    check::<MacMask>(
        &[
            ("02:00:00:00:00:01", "02:00:00:00:00:01"),
            ("01:00:00:00:00:00/01:00:00:00:00:00", "01:00:00:00:00:00/01:00:00:00:00:00"),
        ],
        &["", "02:00:00:00:00:01/00:00:00:00:00:00", "02:00:00:00:00:01/", "/"],
    );
    check::<FlowPort>(
        &[("pf", "pf"), ("vf0", "vf0"), ("vf254", "vf254")],
        &["", "vf", "vf255", "vf00", "vf-1", "PF", "vf0 "],
    );
    assert_eq!(FlowPort::vf(254).and_then(FlowPort::number), Some(254));
    assert_eq!((FlowPort::vf(255), FlowPort::PF.number()), (None, None));
}

#[test]
fn json_for_people() {
    let text = json!({
        "id": 7, "on": "vf0", "direction": "from", "priority": 100,
        "match": {"protocol": "tcp", "dst_port": 80, "src": "10.0.0.0/8", "state": "new"},
        "action": {"forward": "vf1"}, "rewrite": {"dst_mac": "02:00:5e:10:00:01"},
        "tag": {"push": 10}, "meter": 100, "mirror": "pf",
    });
    let rule: FlowRule = serde_json::from_value(text.clone()).unwrap();
    assert_eq!(serde_json::to_value(&rule).unwrap(), text);
    assert_eq!(
        rule.words(),
        "vf0 from id 7 priority 100 src 10.0.0.0/8 proto tcp dst-port 80 state new \
         set-dst-mac 02:00:5e:10:00:01 push-vlan 10 meter 100 mirror pf forward vf1"
    );
    let short = json!({"id": 1, "on": "pf", "direction": "to", "priority": 0, "action": "drop"});
    let rule = FlowRule::new(1, FlowPort::PF, FlowDirection::To, FlowAction::Drop);
    assert_eq!(serde_json::to_value(&rule).unwrap(), short);
    let read = |part: serde_json::Value| {
        let mut text = short.clone();
        text.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        serde_json::from_value::<FlowRule>(text).map_err(|error| error.to_string())
    };
    for (good, same) in [
        (json!({"match": {"protocol": 6}}), json!({"match": {"protocol": "tcp"}})),
        (json!({"match": {"dst_port": "80"}}), json!({"match": {"dst_port": 80}})),
        (json!({"match": {"vlan": "10"}}), json!({"match": {"vlan": 10}})),
    ] {
        assert_eq!(read(good).unwrap(), read(same).unwrap());
    }
    for (wrong, part) in [
        (json!({"prio": 1}), "unknown field"),
        (json!({"match": {"proto": "tcp"}}), "unknown field"),
        (json!({"match": {"protocol": "xtp"}}), "a protocol"),
        (json!({"match": {"protocol": 256}}), "a protocol"),
        (json!({"match": {"dst_port": -1}}), "a port"),
        (json!({"match": {"dst_port": [80]}}), "a range of ports"),
        (json!({"match": {"vlan": 0}}), "1 to 4094"),
        (json!({"action": "reject"}), "unknown variant"),
        (json!({"action": {"forward": "eth0"}}), "no function"),
        (json!({"on": "vf255"}), "no function"),
        (json!({"id": -1}), "invalid value"),
    ] {
        let error = read(wrong.clone()).unwrap_err();
        assert!(error.contains(part), "{wrong}: {error}");
    }
}

#[test]
fn words_that_are_no_rule_are_told_what_is_missing() {
    let numbered = |text: &str| match text.parse() {
        Ok(FlowLine::Rule { rule, numbered }) => (rule.id, numbered),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(numbered("vf0 from accept"), (0, false));
    assert_eq!(numbered("vf0  from\taccept id 9"), (9, true));
    let default =
        FlowDefault { on: FlowPort::PF, direction: FlowDirection::To, action: FlowVerdict::Drop };
    let line = FlowLine::Default(default);
    assert_eq!("default pf to drop".parse::<FlowLine>().unwrap(), line);
    assert_eq!(line.to_string(), "default pf to drop");
    for (text, part) in [
        ("", "function"),
        ("vf0", "direction"),
        ("eth0 from accept", "no function"),
        ("vf0 in accept", "`from` or `to`"),
        ("vf0 from", "accept, drop or forward"),
        ("vf0 from accept drop", "there is one already"),
        ("vf0 from src 10.0.0.1 src 10.0.0.2 drop", "there is one already"),
        ("vf0 from dst-port", "value is missing"),
        ("vf0 from port 80 drop", "no word of a rule"),
        ("vf0 from proto icmp dst-port 80 drop", "icmp has no ports"),
        ("vf0 from icmp-type 8 tcp-flags syn drop", "neither ports"),
        ("vf0 from later-fragment yes dst-port 1 drop", "later_fragment"),
        ("vf0 from later-fragment maybe drop", "`yes` or `no`"),
        ("vf0 from state old drop", "`new` or `established`"),
        ("vf0 from src 10.0.0.1 dst ::/0 drop", "two versions"),
        ("vf0 from src 10.0.0.1 ethertype ipv6 drop", "no such addresses"),
        ("vf0 from src 10.0.0.1/8 drop", "not a prefix"),
        ("vf0 from set-dst-port 1 drop", "cannot be changed"),
        ("vf0 from push-vlan 4095 accept", "1 to 4094"),
        ("vf0 from push-vlan 1 pop-vlan accept", "not both"),
        ("vf0 from meter 0 accept", "1 to 1000000"),
        ("vf0 from set-src-mac 01:00:00:00:00:00 accept", "one station"),
        ("vf0 from set-src 10.0.0.1 set-dst ::1 accept", "two versions"),
        ("vf0 from forward vf9999 ", "no function"),
        ("default vf0 from", "accept"),
        ("default vf0 from forward vf1", "accept"),
    ] {
        let error = text.parse::<FlowLine>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
