//! Configurations as they are written, and as they should not be.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn read(more: Value) -> Result<Conf, Error> {
    let mut conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "hayate-cni"});
    let Value::Object(more) = more else { panic!("no object") };
    for (key, value) in more {
        conf[key] = value;
    }
    Conf::read(&serde_json::to_vec(&conf).unwrap())
}

#[test]
fn versions() {
    for version in VERSIONS {
        assert_eq!(read(json!({"cniVersion": version})).unwrap().version, version);
    }
    for version in ["0.2.0", "1.1.1", "9", "1.1.0/.."] {
        let error = read(json!({"cniVersion": version})).unwrap_err();
        assert_eq!(error.code.number(), 1, "{version}");
    }
    assert_eq!(Conf::read(b"{}").unwrap_err().code.number(), 1);
    assert_eq!(Conf::read(b"{").unwrap_err().code.number(), 6);
    assert_eq!(Conf::read(b"[1]").unwrap_err().code.number(), 1);
    let old = read(json!({"cniVersion": "1.0.0"})).unwrap();
    assert_eq!(old.allows(Command::Gc).unwrap_err().code.number(), 1);
    old.allows(Command::Check).unwrap();
    let oldest = read(json!({"cniVersion": "0.3.1"})).unwrap();
    assert_eq!(oldest.allows(Command::Check).unwrap_err().code.number(), 1);
}

#[test]
fn what_a_runtime_says_wins() {
    let conf = read(json!({
        "deviceID": "0000:01:00.1", "mac": "02:00:00:00:00:01",
        "runtimeConfig": {"deviceID": "0000:01:00.2", "mac": "02:00:00:00:00:02", "ips": ["10.0.0.2/24"]},
    }))
    .unwrap();
    assert_eq!(conf.device.unwrap().to_string(), "0000:01:00.2");
    assert_eq!(conf.mac, Some(Mac([2, 0, 0, 0, 0, 2])));
    assert_eq!(conf.ips, ["10.0.0.2/24".parse::<IpNet>().unwrap()]);
    assert!(!conf.needs_agent());
}

#[test]
fn a_priority_is_that_of_a_vlan() {
    let of = |conf| {
        let settings = read(conf).unwrap().settings;
        (settings.vlan, settings.qos)
    };
    assert_eq!(of(json!({"vlan": 9, "vlanQoS": 7})), (Some(9), Some(7)));
    assert_eq!(of(json!({"vlan": 9, "vlanQoS": 0})), (Some(9), Some(0)));
    assert_eq!(of(json!({"vlan": 9})), (Some(9), None));
    // As tools write it that write all keys.
    assert_eq!(of(json!({"vlan": 0, "vlanQoS": 0, "vlanProto": "802.1q"})), (Some(0), None));
    assert!(!read(json!({"vlanQoS": 0})).unwrap().needs_agent());

    let wanted = Settings { vlan: Some(9), qos: Some(7), ..Settings::default() };
    let held = |vlan, qos| Settings { vlan, qos, ..Settings::default() };
    assert!(wanted.hold_in(&held(Some(9), Some(7))));
    assert!(!wanted.hold_in(&held(Some(9), None)) && !wanted.hold_in(&held(Some(9), Some(6))));
    // What undoes it: the VLAN of before with its priority; none has none.
    for (vlan, qos) in [(Some(0), None), (Some(8), None), (Some(8), Some(3)), (Some(9), Some(0))] {
        assert_eq!(wanted.undone_by(&held(vlan, qos)), held(vlan, qos));
    }
    assert_eq!(wanted.undone_by(&held(Some(0), Some(3))), held(Some(0), None));
    assert_eq!(Settings::default().undone_by(&held(Some(8), Some(3))), Settings::default());
}

#[test]
fn what_is_not_stale() {
    let one = json!([{"containerID": "c", "ifname": "net1"}]);
    let other = json!([{"containerID": "d", "ifname": "net1"}]);
    let valid = |conf| read(conf).unwrap().valid.into_iter().map(|one| one.container);
    let valid = |conf| valid(conf).collect::<Vec<_>>();
    assert_eq!(
        valid(json!({"cni.dev/valid-attachments": one, "cni.dev/attachments": other})),
        ["c"]
    );
    assert_eq!(valid(json!({"cni.dev/attachments": other})), ["d"]);
    // An empty list counts, whatever the other says.
    assert!(
        valid(json!({"cni.dev/valid-attachments": [], "cni.dev/attachments": other})).is_empty()
    );
    assert!(valid(json!({"cni.dev/valid-attachments": null})).is_empty());
    assert!(valid(json!({})).is_empty());
    for wrong in [json!("x"), json!({}), json!([{"ifname": "net1"}])] {
        let error = read(json!({"cni.dev/valid-attachments": wrong})).unwrap_err();
        assert_eq!(error.code.number(), 6);
    }
}

#[test]
fn what_cannot_be_honoured_is_named() {
    for (conf, code, said) in [
        (json!({"vlanQoS": 3}), 7, "vlanQoS: \"3\": goes with vlan"),
        (json!({"vlan": 0, "vlanQoS": 3}), 7, "vlanQoS"),
        (json!({"vlan": 9, "vlanQoS": 8}), 7, "vlanQoS: \"8\": at most 7"),
        (json!({"vlan": 9, "vlanQoS": -1}), 6, ""),
        (json!({"vlanProto": "802.1ad"}), 2, "vlanProto"),
        (json!({"min_tx_rate": 5}), 2, "min_tx_rate"),
        (json!({"vlan": 4095}), 7, "vlan"),
        (json!({"trust": "yes"}), 7, "trust"),
        (json!({"mtu": 20}), 7, "mtu"),
        (json!({"mac": "ff:ff:ff:ff:ff:ff"}), 7, "mac"),
        (json!({"deviceID": "../../x"}), 7, "deviceID"),
        (json!({"pf": "a/b"}), 7, "pf"),
        (json!({"name": "../x"}), 7, "name"),
        (json!({"stateDir": "x"}), 7, "stateDir"),
        (json!({"ipam": {"type": "../sh"}}), 7, "ipam.type"),
        (json!({"mtu": "x"}), 6, ""),
    ] {
        let error = read(conf.clone()).unwrap_err();
        assert_eq!(error.code.number(), code, "{conf}");
        assert!(error.details.contains(said), "{conf}: {}", error.details);
    }
    let conf =
        read(json!({"vlan": 7, "spoofchk": "on", "vlanQoS": 0, "link_state": "auto"})).unwrap();
    assert!(conf.needs_agent());
    let settings = conf.settings_for(Some(Mac([2, 0, 0, 0, 0, 9])));
    assert_eq!(settings.mac.as_deref(), Some("02:00:00:00:00:09"));
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(key in "name|pf|deviceID|mac|stateDir|agent|vlanProto|trust", value in "\\PC*") {
        let _ = read(json!({ key: value }));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = Conf::read(&bytes);
    }
}
