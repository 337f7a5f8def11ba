//! The plugin with interfaces and namespaces of the kernel; [`lab`] says what is not real.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod lab;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use hayate_cni::netns::Netns;
use hayate_cni::policy::apply::{Objects, apply};
use hayate_cni::{Machine, run};
use lab::{Lab, address, mac, sh};
use serde_json::{Value, json};

/// What [`Lab::spawn`] runs: no test of its own.
#[test]
fn child() {
    let Some(sysfs) = std::env::var_os("CHILD_SYSFS") else { return };
    let variables = std::env::vars().filter(|(name, _)| name.starts_with("CNI_")).collect();
    let mut input = Vec::new();
    std::io::stdin().lock().read_to_end(&mut input).unwrap();
    let host = Netns::open(Path::new(&std::env::var("CHILD_HOST").unwrap())).unwrap();
    let machine = Machine { sysfs: sysfs.into() };
    let answer = host.enter(|| Ok(run(&machine, &variables, &input))).unwrap();
    let answer = match answer {
        Ok(answer) => json!({ "ok": answer }),
        Err(error) => json!({ "error": error.answer(None) }),
    };
    fs::write(std::env::var("CHILD_ANSWER").unwrap(), answer.to_string()).unwrap();
}

fn gc(lab: &Lab, valid: &Value) {
    let ask = lab.ask("GC", 1).conf("cni.dev/valid-attachments", valid.clone());
    assert_eq!(lab.run(&ask).unwrap(), None);
}

#[test]
fn added_checked_and_deleted() {
    let lab = Lab::new(2, 1);
    let dressed = |command: &str| {
        lab.ask(command, 1)
            .conf("mtu", json!(1400))
            .conf("runtimeConfig", json!({"mac": "02:00:00:00:09:09", "ips": ["10.1.0.2/24", "fd00:1::2/64"]}))
            .conf("routes", json!([{"dst": "10.2.0.0/16", "gw": "10.1.0.1"}, {"dst": "10.3.0.0/16", "gw": "10.9.9.9"},
                {"dst": "fd00:2::/48", "gw": "fd00:1::1", "priority": 77}]))
    };
    let add = dressed("ADD");
    let result = lab.run(&add).unwrap().unwrap();
    assert_eq!(result["cniVersion"], "1.1.0");
    let interface = &result["interfaces"][0];
    assert_eq!(interface["mac"], "02:00:00:00:09:09");
    assert_eq!((&interface["mtu"], &interface["pciID"]), (&json!(1400), &json!(address(1))));
    assert_eq!(interface["sandbox"], lab.netns("p1"));
    let shown = lab.ip("p1", "addr show dev net1; true");
    for part in
        ["UP", "mtu 1400", "02:00:00:00:09:09", "10.1.0.2/24 brd 10.1.0.255", "fd00:1::2/64"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let routes = lab.ip("p1", "route") + &lab.ip("p1", "-6 route");
    for part in
        ["10.2.0.0/16 via 10.1.0.1", "10.3.0.0/16 via 10.9.9.9 dev net1 onlink", "metric 77"]
    {
        assert!(routes.contains(part), "{part}: {routes}");
    }
    assert_eq!(lab.vfs(), &lab.all(2)[1..]);

    let check = dressed("CHECK").conf("prevResult", result.clone());
    assert_eq!(lab.run(&check).unwrap(), None);
    assert_eq!(lab.refused(&dressed("CHECK")), 7);
    for (spoil, mend) in [
        ("addr del 10.1.0.2/24 dev net1", "addr add 10.1.0.2/24 brd + dev net1"),
        ("route del 10.2.0.0/16", "route add 10.2.0.0/16 via 10.1.0.1"),
        ("link set net1 mtu 1300", "link set net1 mtu 1400"),
        ("link set net1 address 02:00:00:00:09:0a", "link set net1 address 02:00:00:00:09:09"),
        ("link set net1 down name net2", "link set net2 name net1 up"),
    ] {
        lab.ip("p1", spoil);
        assert_eq!(lab.refused(&check), 103, "{spoil}");
        lab.ip("p1", mend);
        // Routes go with the address, and with the interface.
        for route in ["10.2.0.0/16 via 10.1.0.1", "10.3.0.0/16 via 10.9.9.9 dev net1 onlink"] {
            lab.ip("p1", &format!("route replace {route}"));
        }
        lab.ip("p1", "addr replace fd00:1::2/64 dev net1");
        lab.ip("p1", "-6 route replace fd00:2::/48 via fd00:1::1 metric 77");
        assert_eq!(lab.run(&check).unwrap(), None, "{mend}");
    }

    let del = dressed("DEL").conf("prevResult", result);
    lab.ip("p1", "link set net1 promisc on");
    assert_eq!(lab.run(&del).unwrap(), None);
    assert_eq!(lab.vfs(), lab.all(2));
    assert!(!lab.ip("host", "link show hvf1").contains("PROMISC"));
    assert_eq!(lab.attachments(), 0);
    assert_eq!(lab.run(&del).unwrap(), None);
    assert_eq!(lab.run(&lab.ask("DEL", 1).var("NETNS", "")).unwrap(), None);
    assert_eq!(lab.refused(&check), 3);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let lab = Lab::new(1, 2);
    let add = lab.ask("ADD", 1);
    let agent = lab.path("agent.sock");
    lab.ip("p2", "link add net9 type veth peer name net8");
    fs::write(lab.path("file"), "").unwrap();
    for (ask, code) in [
        (add.clone().var("NETNS", "/run/netns/hcni-none"), 3),
        (add.clone().var("NETNS", &lab.netns("host")), 4),
        (add.clone().var("NETNS", &lab.path("file").to_string_lossy()), 4),
        (add.clone().var("IFNAME", "lo"), 102),
        (lab.ask("ADD", 2).var("IFNAME", "net9"), 102),
        (add.clone().conf("pf", json!("hpf9")), 101),
        (add.clone().conf("pf", json!(address(1))), 101),
        (add.clone().conf("pf", json!("0000:09:00.0")), 101),
        (add.clone().conf("pf", Value::Null), 7),
        (add.clone().conf("deviceID", json!("0000:09:00.1")), 101),
        (add.clone().conf("deviceID", json!(PF_ADDRESS)), 101),
        (add.clone().conf("cniVersion", json!("0.2.0")), 1),
        (add.clone().conf("vlan", json!(7)).conf("agent", json!(agent)), 104),
        (add.clone().conf("ipam", json!({"type": "nobody"})), 7),
        (add.clone().conf("prevResult", json!({"ips": 3})), 6),
        (add.clone().var("COMMAND", "TRY"), 4),
        (lab.ask("GC", 1).conf("cni.dev/valid-attachments", json!([{"ifname": "net1"}])), 6),
        (lab.ask("GC", 1).conf("cniVersion", json!("1.0.0")), 1),
    ] {
        assert_eq!(lab.refused(&ask), code, "{ask:?}");
        assert_eq!(lab.vfs(), lab.all(1), "{ask:?}");
        assert_eq!(lab.attachments(), 0, "{ask:?}");
    }
    // The PF by its address, and by its interface's.
    for pf in [PF_ADDRESS.to_owned(), mac(0)] {
        let ask = |command| lab.ask(command, 1).conf("pf", json!(pf));
        lab.run(&ask("ADD")).unwrap().unwrap();
        assert_eq!(lab.refused(&ask("ADD")), 102);
        assert_eq!(lab.refused(&lab.ask("ADD", 2)), 11);
        lab.run(&ask("DEL")).unwrap();
    }
    assert_eq!(lab.vfs(), lab.all(1));
}

const PF_ADDRESS: &str = lab::PF;

/// A pod's namespace has ended, so its VF came back by itself; the device plugin gives it to another pod before
/// the first one is deleted.
#[test]
fn a_late_del_leaves_the_next_container_alone() {
    let lab = Lab::new(1, 2);
    let device = json!({"deviceID": address(1), "mac": "02:00:00:00:09:09"});
    let ask = |command, pod| lab.ask(command, pod).conf("runtimeConfig", device.clone());
    lab.run(&ask("ADD", 1)).unwrap().unwrap();
    // While the first one has it, it is not to be had.
    assert_eq!(lab.refused(&ask("ADD", 2)), 11);
    lab.ip("p1", &format!("link set net1 netns {} name net1", lab.netns("host")));
    // The tree does not follow names, as sysfs would.
    lab.ip("host", "link set net1 name hvf1");
    let result = lab.run(&ask("ADD", 2)).unwrap().unwrap();
    for del in [
        ask("DEL", 1),
        ask("DEL", 1).var("NETNS", ""),
        ask("DEL", 1).var("NETNS", &lab.netns("p2")),
    ] {
        assert_eq!(lab.run(&del).unwrap(), None);
        assert_eq!(lab.run(&ask("CHECK", 2).conf("prevResult", result.clone())).unwrap(), None);
    }
    assert_eq!(lab.attachments(), 1);
    lab.run(&ask("DEL", 2)).unwrap();
    // Not the address that the first one had.
    assert_eq!(lab.vfs(), lab.all(1));
    assert_eq!(lab.attachments(), 0);
}

#[test]
fn gc_takes_back_what_is_not_listed() {
    let lab = Lab::new(3, 3);
    lab.ipam(r#"{"ips": [{"address": "10.0.0.2/24"}]}"#, 0);
    let ipam = json!({"type": "addresses"});
    let ask = |command, pod| lab.ask(command, pod).conf("ipam", ipam.clone());
    for pod in 1..=3 {
        lab.run(&ask("ADD", pod)).unwrap().unwrap();
    }
    let other = json!([{"containerID": "container2", "ifname": "net1"}]);
    // Another network's are not concerned.
    gc(
        &lab,
        &json!([{"containerID": "container1", "ifname": "net1"}, {"containerID": "container2", "ifname": "net1"},
        {"containerID": "container3", "ifname": "net1"}]),
    );
    let elsewhere =
        lab.ask("GC", 1).conf("name", json!("else")).conf("cni.dev/valid-attachments", json!([]));
    lab.run(&elsewhere).unwrap();
    assert_eq!((lab.attachments(), lab.vfs().len()), (3, 0));
    lab.run(&ask("GC", 1).conf("cni.dev/valid-attachments", other)).unwrap();
    assert_eq!((lab.attachments(), lab.vfs().len()), (1, 2));
    let log = lab.ipam_log();
    for line in ["DEL container1 net1", "DEL container3 net1"] {
        assert!(log.contains(&line.to_owned()), "{log:?}");
    }
    assert!(!log.contains(&"DEL container2 net1".to_owned()), "{log:?}");
    assert!(log.last().unwrap().starts_with("GC"), "{log:?}");
    // It gets the whole configuration.
    let conf: Value = serde_json::from_slice(&fs::read(lab.path("ipam.conf")).unwrap()).unwrap();
    assert_eq!(conf["cni.dev/valid-attachments"][0]["containerID"], "container2");
    // No list at all, which is how cnitool asks: everything is stale.
    lab.run(&ask("GC", 1)).unwrap();
    assert_eq!(lab.vfs(), lab.all(3));
    assert_eq!(lab.attachments(), 0);
}

#[test]
fn addresses_of_a_plugin_and_its_failure() {
    let lab = Lab::new(1, 1);
    let ask = |command| lab.ask(command, 1).conf("ipam", json!({"type": "addresses"}));
    lab.ipam(
        r#"{"cniVersion": "1.1.0", "code": 11, "msg": "full", "details": "no address left"}"#,
        1,
    );
    let error = lab.run(&ask("ADD")).unwrap_err();
    assert_eq!((error.code.number(), error.message.as_str()), (11, "full"));
    assert!(error.details.contains("no address left"), "{error}");
    assert_eq!(lab.ipam_log(), ["ADD container1 net1", "DEL container1 net1"]);
    assert_eq!((lab.attachments(), lab.vfs()), (0, lab.all(1)));

    // A route that cannot be undoes it all.
    lab.ipam(r#"{"ips": [{"address": "10.0.0.2/24"}], "routes": [{"dst": "10.7.0.0/16", "gw": "fd00::1"}]}"#, 0);
    assert_eq!(lab.refused(&ask("ADD")), 7);
    assert_eq!((lab.attachments(), lab.vfs()), (0, lab.all(1)));

    lab.ipam(
        r#"{"ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}], "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {"nameservers": ["10.0.0.1"]}}"#,
        0,
    );
    let chained = json!({"interfaces": [{"name": "eth0", "sandbox": "/x"}], "ips": [], "dns": {}});
    let add = ask("ADD").conf("prevResult", chained).conf("cniVersion", json!("0.4.0"));
    let result = lab.run(&add).unwrap().unwrap();
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 2);
    let ip =
        json!({"version": "4", "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1});
    assert_eq!(result["ips"], json!([ip]));
    assert_eq!(result["dns"]["nameservers"][0], "10.0.0.1");
    assert!(lab.ip("p1", "route").contains("default via 10.0.0.1 dev net1"));
    let check = ask("CHECK").conf("cniVersion", json!("0.4.0")).conf("prevResult", result);
    lab.run(&check).unwrap();
    assert_eq!(lab.ipam_log().last().unwrap(), "CHECK container1 net1");
    lab.run(&ask("DEL")).unwrap();
    assert_eq!((lab.attachments(), lab.vfs()), (0, lab.all(1)));
    lab.run(&ask("STATUS")).unwrap();
    assert!(lab.ipam_log().last().unwrap().starts_with("STATUS"));
}

#[test]
fn status_says_whether_pods_can_be_added() {
    let lab = Lab::new(1, 1);
    lab.run(&lab.ask("STATUS", 1)).unwrap();
    assert_eq!(lab.refused(&lab.ask("STATUS", 1).conf("agent", json!(lab.path("no.sock")))), 50);
    assert_eq!(lab.refused(&lab.ask("STATUS", 1).conf("pf", json!("hpf9"))), 50);
    assert_eq!(lab.refused(&lab.ask("STATUS", 1).conf("cniVersion", json!("1.0.0"))), 1);
    lab.run(&lab.ask("ADD", 1)).unwrap();
    assert_eq!(lab.refused(&lab.ask("STATUS", 1)), 50);
    // The PF's VFs are taken away under a pod.
    fs::remove_file(lab.path("sys/devices/pci0000:00").join(PF_ADDRESS).join("virtfn0")).unwrap();
    assert_eq!(lab.refused(&lab.ask("STATUS", 1)), 51);
}

/// Sixteen at once on sixteen VFs: each gets its own, the seventeenth none; then all leave at once.
#[test]
fn many_at_once() {
    const MANY: u32 = 16;
    let lab = Lab::new(MANY, MANY + 1);
    let all = |command: &str| -> Vec<Value> {
        let children: Vec<_> = (1..=MANY)
            .map(|pod| {
                let answer = lab.path(&format!("answer{pod}"));
                (lab.spawn(&lab.ask(command, pod), &answer, &[]), answer)
            })
            .collect();
        let read = |(mut child, answer): (std::process::Child, _)| {
            assert!(child.wait().unwrap().success());
            serde_json::from_slice(&fs::read(answer).unwrap()).unwrap()
        };
        children.into_iter().map(read).collect()
    };
    for _ in 0..3 {
        let answers = all("ADD");
        let vfs: BTreeSet<_> =
            answers.iter().filter_map(|one| one["ok"]["interfaces"][0]["pciID"].as_str()).collect();
        assert_eq!(vfs.len(), MANY as usize, "{answers:?}");
        assert_eq!(lab.vfs(), []);
        assert_eq!(lab.refused(&lab.ask("ADD", MANY + 1)), 11);
        assert!(all("DEL").iter().all(|one| one["error"].is_null()));
        assert_eq!((lab.attachments(), lab.vfs()), (0, lab.all(MANY)));
    }
}

/// ADD and DEL killed at each system call that changes something, and what follows.
#[test]
fn killed_at_every_step() {
    const CALLS: [&str; 8] =
        ["sendto", "fsync", "rename", "renameat", "renameat2", "linkat", "unlink", "unlinkat"];
    let lab = Lab::new(2, 1);
    lab.ipam(r#"{"ips": [{"address": "10.0.0.2/24"}]}"#, 0);
    let ask = |command: &str| {
        lab.ask(command, 1)
            .conf("ipam", json!({"type": "addresses"}))
            .conf("runtimeConfig", json!({"mac": "02:00:00:00:09:09"}))
            .conf("cni.dev/valid-attachments", json!([]))
    };
    for (victim, rescues) in [("ADD", ["GC", "DEL", "ADD"]), ("DEL", ["GC", "DEL", "GC"])] {
        let mut killed = 0;
        for (call, step) in CALLS.iter().flat_map(|call| (1..100).map(move |step| (call, step))) {
            if step > 1 && !killed_last(&lab) {
                continue;
            }
            if victim == "DEL" {
                lab.run(&ask("ADD")).unwrap().unwrap();
            }
            let inject = format!("inject={call}:signal=KILL:when={step}");
            let (answer, trace) = (lab.path("answer"), lab.path("trace"));
            let strace = ["strace", "-f", "-qq", "-o", trace.to_str().unwrap(), "-e", &inject];
            let _ = fs::remove_file(&answer);
            lab.spawn(&ask(victim), &answer, &strace).wait().unwrap();
            let rescue = rescues[killed % rescues.len()];
            let what = format!("{victim} killed at {call} {step}, then {rescue}");
            if killed_last(&lab) {
                killed += 1;
                println!("{what}");
                // Another container gets the other VF, or the same.
                let other = ask("ADD").var("CONTAINERID", "other").var("IFNAME", "net2");
                lab.run(&other).unwrap_or_else(|error| panic!("{what}: {error}"));
                lab.run(&other.var("COMMAND", "DEL")).unwrap();
                let done = lab.run(&ask(rescue));
                done.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            if !killed_last(&lab) && victim == "ADD" || rescue == "ADD" {
                lab.run(&ask("DEL")).unwrap();
            }
            assert_eq!((lab.attachments(), lab.vfs()), (0, lab.all(2)), "{what}");
        }
        assert!(killed > 12, "{victim} was killed {killed} times");
    }
}

/// It did not come to an answer.
fn killed_last(lab: &Lab) -> bool {
    !lab.path("answer").exists()
}

/// What the host has is set through the agent, and set back. The agent here is the test.
#[test]
fn settings_of_the_host_come_and_go() {
    let lab = Lab::new(1, 1);
    let path = lab.path("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let mut held =
            json!({"vlan": 0, "spoofchk": false, "mac": "02:00:00:00:01:01", "rate": 100});
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut line = String::new();
            // One question a connection, as the agent has it; or none.
            if stream.read_line(&mut line).is_ok_and(|length| length > 0) {
                let request: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(request["ask"], "daemon");
                let parameters = request["params"].clone();
                let result = if request["method"] == "vf.show" {
                    held.clone()
                } else {
                    for (key, value) in parameters.as_object().unwrap() {
                        held[key] = value.clone();
                    }
                    Value::Null
                };
                sender.send((request["method"].clone(), parameters)).unwrap();
                write!(stream.get_mut(), "{}", json!({ "result": result })).unwrap();
            }
        }
    });
    let ask = |command| {
        lab.ask(command, 1)
            .conf("agent", json!(path))
            .conf("vlan", json!(42))
            .conf("vlanQoS", json!(5))
            .conf("spoofchk", json!("on"))
            .var("ARGS", "MAC=02:00:00:00:09:09")
    };
    let result = lab.run(&ask("ADD")).unwrap().unwrap();
    let check =
        |vlan: u32| ask("CHECK").conf("vlan", json!(vlan)).conf("prevResult", result.clone());
    lab.run(&check(42)).unwrap();
    assert_eq!(lab.refused(&check(43)), 103);
    lab.run(&ask("DEL")).unwrap();
    assert_eq!((lab.attachments(), lab.vfs()), (0, lab.all(1)));
    let at = json!({"pf": mac(0), "vf": 0});
    let with = |more: Value| {
        let mut all = at.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let sets: Vec<Value> =
        asked.try_iter().filter(|(method, _)| method == "vf.set").map(|(_, what)| what).collect();
    assert_eq!(
        sets,
        [
            with(json!({"vlan": 42, "qos": 5, "spoofchk": true, "mac": "02:00:00:00:09:09"})),
            with(json!({"vlan": 0, "spoofchk": false, "mac": "02:00:00:00:01:01"})),
        ]
    );
    lab.run(&ask("STATUS")).unwrap();
}

/// A VF has the rules of its pod's policies before the container has it, and no longer than the container. The agent
/// here is the test, and says whether the VF was still at home when it was asked.
#[test]
fn policies_come_before_the_container() {
    let lab = Lab::new(3, 3);
    let path = lab.path("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, asked) = mpsc::channel();
    let fail = Arc::new(AtomicBool::new(false));
    let (refuses, host) = (fail.clone(), lab.netns("host"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut line = String::new();
            if stream.read_line(&mut line).is_ok_and(|length| length > 0) {
                let request: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(request["method"], "flow.set");
                let said = if refuses.load(Ordering::Relaxed) {
                    json!({ "error": "no room" })
                } else {
                    let link = format!(
                        "nsenter --net={host} ip link show hvf1 >/dev/null 2>&1 && echo here; true"
                    );
                    let at_home = sh(&link).trim() == "here";
                    sender.send((request["params"].clone(), at_home)).unwrap();
                    json!({ "result": {} })
                };
                write!(stream.get_mut(), "{said}").unwrap();
            }
        }
    });
    let ask = |command: &str, container: u32, pod: &str| {
        lab.ask(command, container)
            .conf("agent", json!(path))
            .conf("runtimeConfig", json!({ "ips": [format!("10.7.0.{container}/24")] }))
            .var("ARGS", &format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_UID=u-{pod}"))
    };
    let mut objects = Objects::default();
    let pod = |name: &str| {
        json!({
            "kind": "Pod",
            "metadata": { "name": name, "namespace": "shop", "uid": format!("u-{name}"), "labels": { "app": name } },
            "status": { "phase": "Pending" },
        })
    };
    let policy = json!({
        "kind": "NetworkPolicy", "metadata": { "name": "web", "namespace": "shop" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "web" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "client" } } }], "ports": [{ "port": 80 }] }],
        },
    });
    objects.add(json!({ "items": [policy, pod("web"), pod("client")] })).unwrap();
    let machine = Machine { sysfs: lab.path("sys") };
    let apply = |objects: &Objects| apply(&machine, &lab.path("state"), &path, objects);
    assert_eq!(apply(&objects).unwrap(), []);
    // Known, and selected by the policy.
    lab.run(&ask("ADD", 1, "web")).unwrap();
    let (set, at_home) = asked.try_recv().unwrap();
    assert!(at_home, "the container had it already");
    assert_eq!((&set["pf"], &set["clear"]), (&json!(mac(0)), &json!(["vf0"])));
    let default = |set: &Value, way: &str| {
        let all = set["defaults"].as_array().unwrap().iter();
        all.clone().find(|one| one["direction"] == way).unwrap()["action"].clone()
    };
    assert_eq!((default(&set, "to"), default(&set, "from")), (json!("drop"), json!("accept")));
    let from_80 = |set: &Value| -> Vec<Value> {
        let all = set["add"].as_array().unwrap().iter().map(|rule| rule["match"].clone());
        all.filter(|wanted| wanted["dst_port"] == "80-80").collect()
    };
    assert!(from_80(&set).is_empty(), "nobody knows the client's address yet");
    // Known, and selected by none: nobody is asked.
    lab.run(&ask("ADD", 2, "client")).unwrap();
    assert!(asked.try_recv().is_err());
    // Not known: closed, as far as policies of its namespace go.
    lab.run(&ask("ADD", 3, "new")).unwrap();
    let (set, _) = asked.try_recv().unwrap();
    assert_eq!((&set["clear"], default(&set, "to")), (&json!(["vf2"]), json!("drop")));
    // The client's address is that of its attachment.
    objects.add(pod("new")).unwrap();
    let done = apply(&objects).unwrap();
    let mut sets: Vec<Value> = asked.try_iter().map(|(set, _)| set).collect();
    sets.sort_by_key(|set| set["clear"].to_string());
    assert_eq!((done.len(), sets.len()), (3, 2), "{done:?}");
    let wanted =
        json!({ "protocol": "tcp", "dst_port": "80-80", "state": "new", "src": "10.7.0.2/32" });
    assert_eq!((from_80(&sets[0]), &sets[0]["clear"]), (vec![wanted], &json!(["vf0"])));
    assert_eq!((&sets[1]["clear"], &sets[1]["add"]), (&json!(["vf2"]), &json!([])));
    // A pod of that name that is another one.
    lab.run(&ask("DEL", 1, "web")).unwrap();
    let (set, _) = asked.try_recv().unwrap();
    assert_eq!(
        (&set["clear"], &set["add"], &set["defaults"]),
        (&json!(["vf0"]), &json!([]), &json!([]))
    );
    let other = ask("ADD", 1, "client")
        .var("ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=client;K8S_POD_UID=u-2");
    lab.run(&other).unwrap();
    assert_eq!(default(&asked.try_recv().unwrap().0, "to"), "drop");
    lab.run(&ask("DEL", 1, "client")).unwrap();
    assert_eq!(asked.try_recv().unwrap().0["add"], json!([]));
    // Without its rules no container gets a VF.
    fail.store(true, Ordering::Relaxed);
    assert_eq!(lab.refused(&ask("ADD", 1, "web")), 104);
    fail.store(false, Ordering::Relaxed);
    assert_eq!(lab.attachments(), 2);
    // What cannot be compiled changes nothing.
    let mut sctp = objects.clone();
    sctp.add(json!({
        "kind": "NetworkPolicy", "metadata": { "name": "sctp", "namespace": "shop" },
        "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "protocol": "SCTP" }] }] },
    }))
    .unwrap();
    assert!(apply(&sctp).unwrap_err().to_string().contains("shop/sctp"));
    assert!(asked.try_recv().is_err());
    // More rules than one line has.
    let many: Vec<Value> = (0..1000)
        .map(|n| json!({ "ipBlock": { "cidr": format!("10.9.{}.{}/32", n / 250, n % 250) } }))
        .collect();
    let mut long = objects.clone();
    long.add(json!({
        "kind": "NetworkPolicy", "metadata": { "name": "many", "namespace": "shop" },
        "spec": { "podSelector": { "matchLabels": { "app": "client" } }, "ingress": [{ "from": many }] },
    }))
    .unwrap();
    apply(&long).unwrap();
    let parts: Vec<Value> = asked.try_iter().map(|(set, _)| set).collect();
    assert!(parts.len() > 2);
    let rules: usize = parts.iter().map(|part| part["add"].as_array().unwrap().len()).sum();
    assert!(rules > 1000);
    for (number, part) in parts.iter().enumerate() {
        assert_eq!(part["part"]["number"], number);
        assert_eq!(part["part"]["batch"], parts[0]["part"]["batch"]);
        let last = number + 1 == parts.len();
        assert_eq!(
            (part["part"]["last"].as_bool(), part["defaults"].is_array()),
            (Some(last), last)
        );
        assert_eq!(part["clear"].is_array(), number == 0);
        assert!(part.to_string().len() < 32 << 10);
    }
    // None at all: what had rules has none.
    apply(&Objects::default()).unwrap();
    assert_eq!(
        asked.try_iter().map(|(set, _)| set["clear"].clone()).collect::<Vec<_>>(),
        [json!(["vf1"])]
    );
    for (container, pod) in [(2, "client"), (3, "new")] {
        lab.run(&ask("DEL", container, pod)).unwrap();
    }
    assert!(asked.try_recv().is_err());
    assert_eq!((lab.attachments(), lab.vfs()), (0, lab.all(3)));
}

/// The program itself, as a runtime runs it.
#[test]
fn the_program() {
    let program = env!("CARGO_BIN_EXE_hayate-cni");
    let version: Value = serde_json::from_str(&sh(&format!(
        "echo '{{\"cniVersion\":\"1.0.0\"}}' | CNI_COMMAND=VERSION {program}"
    )))
    .unwrap();
    assert_eq!(version["cniVersion"], "1.0.0");
    assert_eq!(version["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
    sh(&format!("CNI_COMMAND=VERSION {program} </dev/null"));
    let error = |line: &str| -> Value {
        let text = sh(&format!("if {line} 2>/dev/null; then exit 1; fi"));
        serde_json::from_str(&text).unwrap()
    };
    let forgotten = error(&format!("{program} </dev/null"));
    assert_eq!((&forgotten["code"], &forgotten["cniVersion"]), (&json!(4), &json!("1.1.0")));
    let broken = error(&format!("echo '{{' | CNI_COMMAND=ADD {program}"));
    assert_eq!(broken["code"], 6);
    let conf = r#"{"cniVersion":"0.4.0","name":"n","type":"hayate-cni"}"#;
    let bare = error(&format!("echo '{conf}' | CNI_COMMAND=DEL {program}"));
    assert_eq!((&bare["code"], &bare["cniVersion"]), (&json!(4), &json!("0.4.0")));
    assert_eq!(bare["details"], "required env variables [CNI_CONTAINERID,CNI_IFNAME] missing");
    assert!(sh(&format!("{program} --help")).contains("CNI_CONTAINERID"));
    let objects = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/objects.json");
    let rules: Value =
        serde_json::from_str(&sh(&format!("{program} policy - <{objects}"))).unwrap();
    let web = rules.as_array().unwrap().iter().find(|rules| rules["name"] == "web-0").unwrap();
    let allow = json!([{"peers": ["10.55.0.3/32"], "ports": [{"protocol": "TCP", "first": 8080, "last": 8080}]}]);
    assert_eq!(web["ingress"], json!({"isolated": true, "allow": allow}));
    assert_eq!(web["egress"], json!({"isolated": false, "allow": []}));
    let dir = tempfile::tempdir().unwrap();
    sh(&format!("{program} man {}", dir.path().display()));
    assert!(dir.path().join("hayate-cni.1").is_file());
}
