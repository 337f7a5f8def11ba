//! Which ports are accepted, and what the refusals say.

use super::*;

fn vhost() -> PortConfig {
    PortConfig::new("lan".parse().unwrap(), PortKind::Vhost)
}

fn tap(ifname: &str) -> PortConfig {
    PortConfig {
        ifname: Some(ifname.to_owned()),
        ..PortConfig::new("lan".parse().unwrap(), PortKind::Tap)
    }
}

#[track_caller]
fn refused(config: &PortConfig, field: &str) {
    let wrong = config.check().unwrap_err();
    assert_eq!(wrong.field, field, "{wrong}");
}

#[test]
fn plain_ports_are_accepted() {
    vhost().check().unwrap();
    tap("tap0").check().unwrap();
    PortConfig { netns: Some("/proc/1/ns/net".into()), ..tap("eth0") }.check().unwrap();
    PortConfig { trunk: Some("10,20-30".parse().unwrap()), native: Some(5), ..vhost() }
        .check()
        .unwrap();
    PortConfig { vm: Some("router".parse().unwrap()), ..tap("r0") }.check().unwrap();
    PortConfig { queues: Some(32), mtu: Some(9000), vlan: Some(4094), ..vhost() }.check().unwrap();
}

#[test]
fn fields_of_the_other_kind_are_refused() {
    refused(&PortConfig { ifname: Some("tap0".into()), ..vhost() }, "ifname");
    refused(&PortConfig { netns: Some("blue".into()), ..vhost() }, "netns");
    refused(&PortConfig { socket: Some("/run/a".into()), ..tap("tap0") }, "socket");
    refused(&PortConfig { mode: Some(SocketMode::Client), ..tap("tap0") }, "mode");
    refused(&PortConfig { moderation: Some(Moderation::Off), ..tap("tap0") }, "moderation");
    refused(&PortConfig { no_offload: vec![Offload::Csum], ..tap("tap0") }, "no_offload");
    refused(&PortConfig { ifname: None, ..tap("") }, "ifname");
}

#[test]
fn values_out_of_range_are_refused() {
    for queues in [0, 33] {
        refused(&PortConfig { queues: Some(queues), ..vhost() }, "queues");
    }
    refused(&PortConfig { mtu: Some(67), ..vhost() }, "mtu");
    refused(&PortConfig { mtu: Some(65_522), ..tap("t") }, "mtu");
    refused(&PortConfig { mac_limit: Some(0), ..vhost() }, "mac_limit");
    for vlan in [0, 4095, u16::MAX] {
        refused(&PortConfig { vlan: Some(vlan), ..vhost() }, "vlan");
    }
    refused(&PortConfig { native: Some(5), ..vhost() }, "native");
    let both = PortConfig { vlan: Some(5), trunk: Some("6".parse().unwrap()), ..vhost() };
    refused(&both, "vlan");
}

#[test]
fn what_is_enforced_must_make_sense() {
    let with = |policy: PortPolicy| PortConfig { policy, ..vhost() };
    let mac = || Some("02:00:00:00:00:01".parse().unwrap());
    let strict = PortPolicy { spoofchk: true, trust: false, ..PortPolicy::default() };
    refused(&with(strict.clone()), "mac");
    refused(&PortConfig { policy: strict.clone(), ..tap("t") }, "mac");
    with(PortPolicy { mac: mac(), ..strict.clone() }).check().unwrap();
    let of_vm = PortConfig { vm: Some("web".parse().unwrap()), ..with(strict.clone()) };
    of_vm.check().unwrap();
    refused(&PortConfig { kind: PortKind::Tap, ifname: Some("t".into()), ..of_vm }, "mac");
    for group in ["01:00:5e:00:00:01", "00:00:00:00:00:00"] {
        refused(&with(PortPolicy { mac: group.parse().ok(), ..PortPolicy::default() }), "mac");
    }
    let many = vec!["10.0.0.0/8".parse().unwrap(); 65];
    refused(&with(PortPolicy { addresses: many, ..PortPolicy::default() }), "addresses");
    let qos = |qos| PortPolicy { qos: Some(qos), ..PortPolicy::default() };
    refused(&with(qos(3)), "qos");
    PortConfig { vlan: Some(5), ..with(qos(7)) }.check().unwrap();
    refused(&PortConfig { vlan: Some(5), ..with(qos(8)) }, "qos");
    for rate in [0, 1_000_001] {
        let policy = PortPolicy { max_tx_rate: Some(rate), ..PortPolicy::default() };
        refused(&with(policy), "max_tx_rate");
    }
}

#[test]
fn a_policy_is_written_as_what_differs() {
    let text = r#"{"spoofchk":true,"addresses":["10.0.0.0/8"],"trust":false,"link":"disable"}"#;
    let policy: PortPolicy = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&policy).unwrap(), text);
    assert!(!policy.is_default());
    assert!(serde_json::from_str::<PortPolicy>("{}").unwrap().is_default());
}

#[test]
fn paths_and_interface_names_are_checked() {
    for socket in ["relative.sock", "", "/dir/", &format!("/{}", "x".repeat(107))] {
        refused(&PortConfig { socket: Some(socket.into()), ..vhost() }, "socket");
    }
    PortConfig { socket: Some(format!("/{}", "x".repeat(106)).into()), ..vhost() }.check().unwrap();
    for ifname in ["", "a b", "a/b", "sixteen-letters-", ".", "tap%d", "eth0:1", "é"] {
        refused(&tap(ifname), "ifname");
    }
    for netns in ["", "a/b", "..", "a b"] {
        refused(&PortConfig { netns: Some(netns.into()), ..tap("tap0") }, "netns");
    }
}

#[test]
fn what_depends_on_an_offload_goes_with_it() {
    let off = Offload::features_off;
    assert_eq!(off(&[]), 0);
    // VIRTIO_NET_F_CSUM carries HOST_TSO4, HOST_TSO6, HOST_ECN and HOST_USO with it, and only these.
    assert_eq!(off(&[Offload::TxCsum]), 1 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 56);
    assert_eq!(off(&[Offload::RxTso4]), 1 << 7);
    assert_eq!(off(&[Offload::RxTso4, Offload::RxTso6]), 1 << 7 | 1 << 8 | 1 << 9);
    assert_eq!(off(&[Offload::Packed]), 1 << 34);
}

#[test]
fn names_of_offloads_are_the_same_everywhere() {
    for offload in Offload::ALL {
        assert_eq!(offload.as_str().parse::<Offload>().unwrap(), offload);
        assert_eq!(serde_json::to_value(offload).unwrap(), offload.as_str());
    }
    assert!("tso".parse::<Offload>().unwrap_err().contains("tso4"));
}

#[test]
fn unknown_fields_and_defaults() {
    let text = r#"{"network":"lan","kind":"vhost"}"#;
    let config: PortConfig = serde_json::from_str(text).unwrap();
    assert_eq!(config, vhost());
    assert_eq!(serde_json::to_string(&config).unwrap(), text);
    assert_eq!((config.queue_pairs(), tap("t").queue_pairs()), (8, 1));
    let wrong = r#"{"network":"lan","kind":"vhost","sock":"/a"}"#;
    let error = serde_json::from_str::<PortConfig>(wrong).unwrap_err().to_string();
    assert!(error.contains("unknown field `sock`") && error.contains("`socket`"), "{error}");
}
