//! The forms of the command that scripts rely on, word for word.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, until};
use std::process::Command;

#[test]
fn networks_come_and_go() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    daemon.ok("network add lab --mac-limit 16 --mac-age 60");
    let networks = daemon.json("network list --json");
    assert_eq!(networks[0]["name"], "lab");
    assert_eq!((&networks[0]["mac_limit"], &networks[0]["mac_age"]), (&16.into(), &60.into()));
    assert_eq!(networks[1]["name"], "lan");
    assert!(daemon.ok("network show lan").contains("4096"));
    daemon.ok("network del lab");
    assert_eq!(daemon.json("network list --json").as_array().unwrap().len(), 1);
}

#[test]
fn what_is_enforced_on_a_port_can_be_changed_and_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_in(&dir.path().join("run"), &[]);
    daemon.ok("network add lan");
    daemon.ok("vm add web");
    let add = "port add a --network lan --kind vhost --vm web --vlan 5 --spoofchk on";
    daemon.ok(add);
    // What is not said stays.
    daemon.ok("port set a --trust off --qos 3 --addresses 10.0.0.5/32,fd00::/64");
    daemon.ok("port set a --mac 02:00:00:00:00:07 --max-tx-rate 100 --link enable");
    let policy = |daemon: &Daemon| daemon.json("port show a --json")["config"]["policy"].clone();
    let all = serde_json::json!({
        "mac": "02:00:00:00:00:07", "spoofchk": true, "addresses": ["10.0.0.5/32", "fd00::/64"],
        "trust": false, "qos": 3, "max_tx_rate": 100, "link": "enable",
    });
    assert_eq!(policy(&daemon), all);
    let shown = daemon.ok("port show a");
    for part in ["02:00:00:00:00:07", "10.0.0.5/32 fd00::/64", "100 Mbit/s", "enable"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(daemon.ok("vm qemu web --qemu-version 10.0").contains("mac=02:00:00:00:00:07"));
    for (words, parts) in [
        ("port set a --qos 8", &["--qos", "0 to 7"][..]),
        ("port set a --max-tx-rate 0", &["--max-tx-rate", "1 to 1000000"]),
        ("port set a --addresses 10.0.0.5", &["10.0.0.5", "is not a prefix"]),
        ("port set a --mac 01:00:00:00:00:07", &["--mac", "not of a group"]),
        ("port add b --network lan --kind vhost --trust off", &["--mac", "no VM"]),
        ("port add b --network lan --kind vhost --qos 1", &["--qos", "vlan"]),
    ] {
        daemon.fails(words, 2, parts);
    }
    let (status, answer) = daemon.http("PUT", "/v1/ports/a/policy", r#"{"qos": 9}"#);
    assert!(status == 400 && answer.contains("qos"), "{status} {answer}");
    assert_eq!(daemon.http("PUT", "/v1/ports/none/policy", "{}").0, 404);
    assert_eq!(policy(&daemon), all);
    daemon.stop();
    let daemon = Daemon::start_in(&dir.path().join("run"), &[]);
    assert_eq!(policy(&daemon), all);
    daemon.ok(
        "port set a --mac off --addresses off --trust on --qos off --max-tx-rate off --link auto",
    );
    daemon.ok(add);
    assert_eq!(policy(&daemon), serde_json::json!({ "spoofchk": true }));
}

#[test]
fn a_vhost_port_has_its_socket() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    let socket = daemon.run_dir.join("own.sock");
    let shown = socket.display();
    daemon.ok(&format!("port add a --network lan --kind vhost --socket {shown}"));
    assert!(socket.exists());
    // Without a path it gets one below the run directory.
    daemon.ok("port add b --network lan --kind vhost --mode server --queues 4");
    let default = daemon.run_dir.join("ports/b.sock");
    assert!(default.exists());
    let ports = daemon.json("port list --json");
    assert_eq!(ports[0]["socket"], shown.to_string());
    assert_eq!(ports[1]["socket"], default.display().to_string());
    assert_eq!((&ports[1]["mode"], &ports[1]["queue_pairs"]), (&"server".into(), &4.into()));
    // QEMU listens: nothing is made here.
    let theirs = daemon.run_dir.join("qemu.sock");
    let words = format!(
        "port add c --network lan --kind vhost --socket {} --mode client",
        theirs.display()
    );
    daemon.ok(&words);
    assert!(!theirs.exists());
    daemon.ok("port del a");
    assert!(!socket.exists());
    daemon.stop();
    assert!(!default.exists());
}

#[test]
fn a_relative_socket_is_relative_to_the_command() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    let elsewhere = tempfile::tempdir().unwrap();
    let run_dir = daemon.run_dir.display().to_string();
    let words =
        format!("--run-dir {run_dir} port add a --network lan --kind vhost --socket a.sock");
    let mut command = Command::new(common::HAYATE);
    let status = command.args(words.split(' ')).current_dir(elsewhere.path()).status().unwrap();
    assert!(status.success());
    assert!(elsewhere.path().join("a.sock").exists());
}

#[test]
fn a_tap_port_has_its_interface() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    daemon.ok("port add host --network lan --kind tap --ifname hayate0 --mtu 9000");
    let link = daemon.inside("ip link show hayate0");
    assert!(link.contains("mtu 9000") && link.contains("LOWER_UP"), "{link}");
    let port = &daemon.json("port list --json")[0];
    assert_eq!((&port["ifname"], &port["state"]), (&"hayate0".into(), &"running".into()));
    daemon.ok("port del host");
    let links = daemon.inside("ip -o link");
    assert!(!links.contains("hayate0"), "{links}");
}

#[test]
fn a_tap_port_in_a_namespace() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    // A namespace by path: that of a process, as a container's is found.
    let other = daemon.namespace();
    let netns = other.path();
    daemon.ok(&format!("port add blue --network lan --kind tap --ifname eth0 --netns {netns}"));
    assert!(other.inside("ip -o link").contains("eth0"));
    assert!(!daemon.inside("ip -o link").contains("eth0"));
    assert_eq!(daemon.json("port show blue --json")["netns"], netns);
}

#[test]
fn a_list_of_ports_has_what_scripts_need() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    daemon.ok("vm add web");
    daemon.ok("port add web0 --network lan --kind vhost --vm web");
    daemon.ok("port add t --network lan --kind tap --ifname t0");
    let ports = daemon.json("port list --json");
    let [t, web0] = ports.as_array().unwrap().as_slice() else { panic!("{ports}") };
    for port in [t, web0] {
        for key in ["name", "kind", "network", "state", "since"] {
            assert!(port[key].is_string(), "{key}: {port}");
        }
        for direction in ["from_port", "to_port"] {
            for key in ["frames", "bytes"] {
                assert!(port[direction][key].is_u64(), "{key}: {port}");
            }
        }
        assert!(port["features"].is_array() && port["drops"].is_object(), "{port}");
        assert!(port["queues"].is_array() && port["features_hex"].is_string(), "{port}");
        for key in ["vm", "last_fault", "failure"] {
            assert!(port.get(key).is_some(), "{key}: {port}");
        }
    }
    assert_eq!((&web0["vm"], &web0["state"]), (&"web".into(), &"waiting".into()));
    assert_eq!((&t["vm"], &t["kind"]), (&serde_json::Value::Null, &"tap".into()));
    // What was made can be made again from what is shown.
    assert_eq!(daemon.http("PUT", "/v1/ports/web0", &web0["config"].to_string()).0, 200);
    let table = daemon.ok("port list");
    assert!(table.starts_with("PORT ") && table.lines().count() == 3, "{table}");
}

#[test]
fn vlans_queues_and_offloads_are_kept() {
    let daemon = Daemon::start(&["--cpus", "0"]);
    daemon.ok("network add lan");
    daemon.ok("port add a --network lan --kind vhost --vlan 10 --mtu 9000 --worker 0");
    daemon.ok("port add r --network lan --kind vhost --trunk 10,20-30 --native 5 --mac-limit 16");
    daemon.ok("port add p --network lan --kind vhost --no-offload csum,tso4,mrg-rxbuf");
    let ports = daemon.json("port list --json");
    assert_eq!((&ports[0]["vlan"], &ports[0]["mtu"]), (&10.into(), &9000.into()));
    assert_eq!(ports[0]["worker"], 0);
    assert_eq!(ports[1]["config"]["no_offload"], serde_json::json!(["csum", "tso4", "mrg-rxbuf"]));
    assert_eq!((&ports[2]["trunk"], &ports[2]["native"]), (&"10,20-30".into(), &5.into()));
    assert!(daemon.ok("port show r").contains("trunk 10,20-30, native 5"));
}

#[test]
fn vms_and_what_qemu_gets() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    daemon.ok("vm add web --memory 2G --vcpus 4");
    daemon.ok("vm add plain");
    let plain = daemon.cli("vm qemu plain");
    assert!(plain.out.starts_with("-m 1G\n") && plain.err.contains("note: VM plain has no ports"));
    daemon.ok("port add web0 --network lan --kind vhost --vm web");
    let vms = daemon.json("vm list --json");
    assert_eq!((&vms[0]["memory"], &vms[0]["vcpus"]), (&"1G".into(), &1.into()));
    assert_eq!(daemon.json("vm show web --json")["ports"], serde_json::json!(["web0"]));
    let words = daemon.ok("vm qemu web --qemu-version 9.2");
    for part in ["-m 2G\n", "share=on\n", "web0.sock,reconnect-ms=", "queues=4\n", "mac=02:"] {
        assert!(words.contains(part), "{part:?} is not in {words}");
    }
    assert_eq!(words, daemon.ok("vm qemu web --qemu-version 9.2"), "it is the same every time");
    assert!(daemon.ok("vm qemu web --qemu-version 7.2").contains(",reconnect=1\n"));
    let array = daemon.json("vm qemu web --json --qemu-version 9.2");
    let joined: Vec<&str> = array.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert_eq!(joined, words.split_whitespace().collect::<Vec<_>>());
    assert!(daemon.ok("vm libvirt web").contains("<interface type='vhostuser'>"));
    daemon.fails("vm del web", 5, &["web0", "hint"]);
    daemon.ok("port del web0");
    daemon.ok("vm del web");
}

#[test]
fn everything_is_shown() {
    let daemon = Daemon::start(&["--cpus", "0"]);
    daemon.ok("network add lan");
    daemon.ok("port add a --network lan --kind vhost");
    let text = daemon.ok("show");
    assert!(text.contains("1 network, 0 VMs, 1 port, 0 disks, 1 worker"), "{text}");
    let all = daemon.json("show --json");
    for key in ["version", "health", "networks", "vms", "ports", "disks", "workers"] {
        assert!(all.get(key).is_some(), "{key}");
    }
    assert_eq!(daemon.json("worker list --json")[0]["cpu"], 0);
    assert!(daemon.ok("stats").contains("waiting"));
    assert!(daemon.json("stats --json")["uptime_us"].as_u64().unwrap() > 0);
    let watched = daemon.ok("stats --watch --count 2 --json");
    let times = watched.lines().map(|line| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()["uptime_us"].as_u64().unwrap()
    });
    let times: Vec<u64> = times.collect();
    assert!(times.len() == 2 && times[0] < times[1], "{times:?}");
    assert_eq!(daemon.json("fdb lan --json"), serde_json::json!([]));
}

#[test]
fn the_host_and_a_namespace_reach_each_other_and_are_counted() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    daemon.ok("port add host --network lan --kind tap --ifname hayate0");
    let other = daemon.namespace();
    let netns = other.path();
    daemon.ok(&format!("port add blue --network lan --kind tap --ifname eth0 --netns {netns}"));
    daemon.inside("ip address add 192.0.2.1/24 dev hayate0");
    other.inside("ip address add 192.0.2.2/24 dev eth0");
    daemon.inside("ping -c 3 -i 0.2 -w 30 192.0.2.2");
    let fdb = daemon.json("fdb lan --json");
    let ports = daemon.json("port list --json");
    let known: Vec<&str> =
        fdb.as_array().unwrap().iter().map(|entry| entry["port"].as_str().unwrap()).collect();
    assert!(known.contains(&"host") && known.contains(&"blue"), "{fdb}");
    for port in ports.as_array().unwrap() {
        assert!(port["from_port"]["frames"].as_u64().unwrap() >= 3, "{port}");
        assert!(port["to_port"]["bytes"].as_u64().unwrap() >= 3 * 98, "{port}");
    }
}

#[test]
fn queues_are_placed_and_workers_shown() {
    let daemon = Daemon::start(&["--cpus", "0-1"]);
    daemon.ok("network add lan");
    daemon.ok("port add host --network lan --kind tap --ifname hayate0 --queues 2");
    let served = |worker: usize| -> Vec<(u64, bool)> {
        let workers = daemon.json("worker list --json");
        let queues = workers[worker]["queues"].as_array().unwrap();
        let mut queues: Vec<_> = queues
            .iter()
            .map(|queue| {
                assert_eq!(queue["port"], "host");
                (queue["queue"].as_u64().unwrap(), queue["pinned"].as_bool().unwrap())
            })
            .collect();
        queues.sort_unstable();
        queues
    };
    until("one queue each", || served(0).len() == 1 && served(1).len() == 1);
    daemon.ok("worker move host 1");
    until("all at worker 1", || served(0).is_empty() && served(1) == [(0, true), (1, true)]);
    let port = daemon.ok("worker move host:0 0 --json");
    let port: serde_json::Value = serde_json::from_str(&port).unwrap();
    let queue = &port["queues"].as_array().unwrap()[0];
    assert_eq!((&queue["dir"], &queue["worker"]), (&"tx".into(), &0.into()));
    until("one queue each again", || served(0) == [(0, true)] && served(1) == [(1, true)]);
    daemon.ok("worker move host auto");
    until("nothing is pinned", || served(0) == [(0, false)] && served(1) == [(1, false)]);

    let text = daemon.ok("worker list");
    assert!(text.contains("LOAD") && text.contains("host:0"), "{text}");
    let text = daemon.ok("worker show 1");
    assert!(text.contains("host:1") && text.contains("load"), "{text}");
    let worker = daemon.json("worker show 1 --json");
    assert!(worker["load_percent"].as_u64().unwrap() <= 100, "{worker}");
    let metrics = daemon.ok("stats --prometheus");
    assert!(metrics.contains("hayate_worker_queues{worker=\"1\"} 1"), "{metrics}");
    assert!(metrics.contains("hayate_worker_busy_microseconds_total{worker=\"0\"}"), "{metrics}");

    daemon.fails("worker show 2", 4, &["there is no worker 2", "`hayate worker list`"]);
    daemon.fails("worker move host 2", 2, &["no worker 2, allowed is 0 to 1"]);
    daemon.fails("worker move host:2 0", 2, &["no queue 2", "0 to 1", "`hayate port show host`"]);
    daemon.fails("worker move none 0", 4, &["no port named none"]);
    daemon.fails("worker move host:x 0", 2, &["`x` is not the number of a queue", "host:0"]);
    daemon.fails("worker move host fast", 2, &["`auto`"]);
    assert!(daemon.ok("worker move --help").contains("hayate worker move web0:2 0"));
}

#[test]
fn the_host_does_not_notice_that_its_queues_move() {
    let daemon = Daemon::start(&["--cpus", "0-1"]);
    daemon.ok("network add lan");
    daemon.ok("port add host --network lan --kind tap --ifname hayate0 --queues 2");
    let other = daemon.namespace();
    let netns = other.path();
    daemon.ok(&format!("port add blue --network lan --kind tap --ifname eth0 --netns {netns}"));
    daemon.inside("ip address add 192.0.2.1/24 dev hayate0");
    other.inside("ip address add 192.0.2.2/24 dev eth0");
    daemon.inside("ping -c 1 -w 30 192.0.2.2");
    std::thread::scope(|scope| {
        let ping = scope.spawn(|| daemon.inside("ping -q -c 300 -i 0.002 -W 30 192.0.2.2"));
        let mut moves = 0;
        while !ping.is_finished() {
            for port in ["host", "blue", "host:0", "host:1"] {
                daemon.ok(&format!("worker move {port} {}", moves % 2));
                moves += 1;
            }
        }
        let said = ping.join().unwrap();
        assert!(said.contains("300 packets transmitted, 300 received"), "{said}");
        assert!(moves > 0);
    });
}

/// Whatever is asked of the daemon, a worker has its CPU.
#[test]
fn other_threads_keep_off_a_workers_cpu() {
    let daemon = Daemon::start(&["--cpus", "0"]);
    let others: Vec<usize> = sys::affinity::allowed_cpus().unwrap().split_off(1);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let cpus = sys::affinity::parse_cpu_list(field("Cpus_allowed_list:")).unwrap();
        let is_worker = field("Name:").starts_with("worker-");
        let expected = if is_worker || others.is_empty() { &[0][..] } else { &others };
        assert_eq!(cpus, expected, "{status}");
    }
}
