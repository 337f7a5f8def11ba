//! Virtual functions: made, shown, kept and removed as a whole.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, until};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use testkit::frontend::{Frontend, protocol, request};

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn sockets(daemon: &Daemon) -> Vec<String> {
    entries(&daemon.run_dir.join("ports"))
}

fn set_up(daemon: &Daemon) {
    daemon.ok("network add lan");
    daemon.ok("vm add web --vcpus 2");
}

#[test]
fn a_pf_and_its_vfs_come_and_go_together() {
    let daemon = Daemon::start(&[]);
    set_up(&daemon);
    daemon.ok("vf create --vm web --vfs 3 --mtu 9000");
    let names = ["web-pf0", "web-pf0vf0", "web-pf0vf1", "web-pf0vf2"];
    assert_eq!(sockets(&daemon), names.map(|name| format!("{name}.sock")));
    let ports = daemon.json("port list --json");
    for (n, name) in names.into_iter().enumerate() {
        let port = &ports[n];
        assert_eq!((&port["name"], &port["vm"]), (&Value::from(name), &Value::from("web")));
        assert_eq!((&port["network"], &port["mtu"]), (&Value::from("lan"), &Value::from(9000)));
        assert_eq!(port["function"]["pf"], "web-pf0");
        assert_eq!(port["function"]["vf"].as_u64(), (n as u64).checked_sub(1));
    }
    let pf = daemon.json("vf show web-pf0 --json");
    assert_eq!(daemon.json("vf list --json"), Value::from(vec![pf.clone()]));
    assert_eq!((&pf["vfs"], &pf["running"]), (&3.into(), &0.into()));
    let arguments = daemon.ok("vm qemu web --qemu-version 10.1");
    for (n, name) in names.into_iter().enumerate() {
        let function = &pf["functions"][n];
        assert_eq!((&function["port"], &function["carrier"]), (&name.into(), &false.into()));
        let card = format!("netdev=net-{name},mac={},", function["mac"].as_str().unwrap());
        assert!(arguments.contains(&card), "{card} is not in {arguments}");
    }
    assert!(daemon.ok("vm list").contains("web-pf0 web-pf0vf0..2"));
    assert!(daemon.ok("vf list").contains("web-pf0"));
    assert!(daemon.ok("vf show web-pf0").contains("0 of 3 running"));
    assert!(daemon.ok("port show web-pf0vf1").contains("VF 1 of web-pf0"));
    // The same again is no mistake.
    daemon.ok("vf create --vm web --vfs 3 --mtu 9000 --network lan");
    daemon.fails("vf create --vm web --vfs 4", 5, &["exists already", "vf show web-pf0"]);
    // One alone cannot go, change, or be replaced.
    daemon.fails("port del web-pf0vf1", 5, &["function of web-pf0"]);
    daemon.fails("port del web-pf0", 5, &["function of web-pf0"]);
    daemon.fails("port add web-pf0vf1 --network lan --kind vhost", 5, &["function of web-pf0"]);
    daemon.fails("vm del web", 5, &["hayate vf delete web-pf0"]);
    daemon.fails("network del lan", 5, &["hayate vf delete web-pf0"]);
    daemon.ok("vf create --vm web --vfs 1 --name second");
    daemon.ok("vf delete web-pf0");
    assert_eq!(sockets(&daemon), ["second.sock", "secondvf0.sock"]);
    assert_eq!(entries(&daemon.run_dir.join("rings")), ["second", "secondvf0"]);
    daemon.fails("vf delete web-pf0", 4, &["no vf named web-pf0", "hayate vf list"]);
    daemon.ok("vf del second");
    daemon.ok("vm del web");
    daemon.ok("network del lan");
    assert!(sockets(&daemon).is_empty());
    daemon.stop();
}

#[test]
fn what_cannot_be_made_leaves_nothing_behind() {
    let daemon = Daemon::start(&[]);
    daemon.fails("vf create --vm web --vfs 1", 2, &["hayate network add"]);
    set_up(&daemon);
    daemon.fails("vf create --vm none --vfs 1", 4, &["hayate vm add none"]);
    daemon.fails("vf create --vm web --vfs 0", 2, &["--vfs", "1 to 255"]);
    daemon.fails("vf create --vm web --vfs 256", 2, &["--vfs", "1 to 255"]);
    let long = "x".repeat(60);
    daemon.fails(&format!("vf create --vm web --vfs 200 --name {long}"), 2, &["58 bytes"]);
    daemon.ok("port add web-pf0vf7 --network lan --kind vhost");
    daemon.fails("vf create --vm web --vfs 9", 5, &["web-pf0vf7 exists already", "--name"]);
    assert_eq!(sockets(&daemon), ["web-pf0vf7.sock"]);
    assert_eq!(entries(&daemon.run_dir.join("rings")), ["web-pf0vf7"]);
    assert_eq!(daemon.json("vf list --json"), Value::from(Vec::<Value>::new()));
    daemon.ok("vf create --vm web --vfs 7");
    daemon.ok("network add dmz");
    daemon.fails("vf create --vm web --vfs 1 --name more", 2, &["several", "--network"]);
    daemon.ok("vf create --vm web --vfs 1 --name more --network dmz");
    let notes = daemon.cli("vm qemu web --qemu-version 10.0");
    assert!(notes.err.contains("has no virtual functions") && notes.err.contains("10.1"));
    assert!(daemon.cli("vm libvirt web").err.contains("10.1"));
    daemon.stop();
}

#[test]
fn a_restart_keeps_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start_in(directory.path(), &[]);
    set_up(&daemon);
    daemon.ok("vf create --vm web --vfs 5 --queues 1 --no-offload uso --moderation off");
    let lasting = |daemon: &Daemon| {
        let ports = daemon.json("port list --json");
        let ports = ports.as_array().unwrap().iter();
        let ports: Vec<_> =
            ports.map(|port| (port["config"].clone(), port["function"].clone())).collect();
        (daemon.json("vf show web-pf0 --json")["config"].clone(), ports)
    };
    daemon.ok("port set web-pf0vf1 --spoofchk on --trust off --max-tx-rate 100");
    daemon.ok("port set web-pf0vf2 --spoofchk on");
    daemon.ok("port set web-pf0vf2 --spoofchk off");
    let before = lasting(&daemon);
    assert_eq!(before.1.len(), 6);
    let policies = json!({"web-pf0vf1": {"spoofchk": true, "trust": false, "max_tx_rate": 100}});
    assert_eq!(before.0["policies"], policies);
    // The same once more changes nothing.
    daemon.ok("vf create --vm web --vfs 5 --queues 1 --no-offload uso --moderation off");
    for signal in ["TERM", "KILL"] {
        daemon.signal(signal);
        daemon.wait();
        drop(daemon);
        daemon = Daemon::start_in(directory.path(), &[]);
        assert_eq!(lasting(&daemon), before);
    }
    daemon.ok("vf delete web-pf0");
    daemon.stop();
    let daemon = Daemon::start_in(directory.path(), &[]);
    assert_eq!(daemon.json("port list --json"), Value::from(Vec::<Value>::new()));
    daemon.stop();
}

#[test]
fn those_of_the_configuration_file_stay() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("h.toml");
    let text = "[networks.lan]\n[vms.web]\n[pfs.p]\nvm = \"web\"\nnetwork = \"lan\"\nvfs = 2\n";
    fs::write(&file, text).unwrap();
    let run_dir = directory.path().join("run");
    let config = ["--config", file.to_str().unwrap()];
    let daemon = Daemon::start_in(&run_dir, &config);
    assert_eq!(daemon.json("vf show p --json")["origin"], "config");
    daemon.fails("vf delete p", 5, &["h.toml"]);
    daemon.fails("port del pvf0", 5, &["function of p"]);
    daemon.ok("vf create --vm web --vfs 1 --name mine");
    daemon.stop();
    // The file has another one now: the saved one of that name gives way.
    fs::write(&file, text.replace("pfs.p", "pfs.mine")).unwrap();
    let daemon = Daemon::start_in(&run_dir, &config);
    assert_eq!(daemon.json("vf list --json").as_array().unwrap().len(), 1);
    assert_eq!(daemon.json("vf show mine --json")["vfs"], 2);
    daemon.stop();
}

/// An agent at the other end of a channel.
struct Guest(BufReader<UnixStream>);

impl Guest {
    fn connect(channel: &Path, boot: &str) -> Self {
        let mut guest = Self(BufReader::new(UnixStream::connect(channel).unwrap()));
        let hello = json!({"protocol": 1, "agent": "test", "lease_ms": 60_000, "boot": boot});
        assert!(guest.ask("hello", &hello)["result"].is_object());
        guest
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    /// Sets what `change` names on a VF; what holds then.
    fn set(&mut self, pf: &Value, vf: u16, change: &Value) -> Value {
        let answer = self.ask("vf.set", &parameters(pf, vf, change));
        assert!(answer["result"].is_object(), "{change}: {answer}");
        assert_eq!(answer["result"], self.show(pf, vf));
        answer["result"].clone()
    }

    fn show(&mut self, pf: &Value, vf: u16) -> Value {
        self.ask("vf.show", &json!({"pf": pf, "vf": vf}))["result"].take()
    }

    /// Is refused, by that name and with these words, and nothing is changed.
    fn refused(&mut self, pf: &Value, vf: u16, change: &Value, name: &str, words: &str) {
        let before = self.show(pf, vf);
        let answer = self.ask("vf.set", &parameters(pf, vf, change));
        assert_eq!(answer["error"]["data"], name, "{change}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        assert_eq!(self.show(pf, vf), before);
    }
}

fn parameters(pf: &Value, vf: u16, change: &Value) -> Value {
    let mut all = change.clone();
    all["pf"] = pf.clone();
    all["vf"] = vf.into();
    all
}

/// A VM with a channel and a PF of three VFs; the channel, and the address of the PF.
fn with_channel(daemon: &Daemon, name: &str) -> (std::path::PathBuf, Value) {
    let channel = daemon.run_dir.join(format!("{name}.channel"));
    daemon.ok(&format!("vm add {name} --channel {}", channel.display()));
    daemon.ok(&format!("vf create --vm {name} --vfs 3"));
    let pf = daemon.json(&format!("vf show {name}-pf0 --json"));
    (channel, pf["functions"][0]["mac"].clone())
}

#[test]
fn a_guest_sets_up_its_vfs_and_a_restart_keeps_that() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start_in(directory.path(), &[]);
    daemon.ok("network add lan");
    let (channel, pf) = with_channel(&daemon, "web");
    let (_, others) = with_channel(&daemon, "other");
    let mut guest = Guest::connect(&channel, "first");
    let card = daemon.json("port show web-pf0vf1 --json");
    let fresh = guest.show(&pf, 1);
    assert_eq!(
        fresh,
        json!({"mac": daemon.json("vf show web-pf0 --json")["functions"][2]["mac"], "vlan": 0,
            "spoofchk": false, "trust": true, "rate": 0, "state": "auto"})
    );
    let all = json!({"mac": "02:00:00:00:00:77", "vlan": 10, "qos": 3, "spoofchk": true, "rate": 50,
        "state": "enable"});
    let now = guest.set(&pf, 1, &all);
    assert_eq!((&now["mac"], &now["vlan"], &now["qos"]), (&all["mac"], &10.into(), &3.into()));
    // The operator sees it, as what it is.
    let shown = |daemon: &Daemon| {
        let shown = daemon.json("vf show web-pf0 --json");
        (shown["functions"][2]["settings"].clone(), shown["functions"][2]["guest"].clone())
    };
    assert_eq!(shown(&daemon), (now.clone(), all.clone()));
    let port = daemon.json("port show web-pf0vf1 --json");
    assert_eq!((&port["vlan"], &port["config"]), (&10.into(), &card["config"]));
    assert_eq!((&port["policy"]["mac"], &port["policy"]["spoofchk"]), (&all["mac"], &true.into()));
    assert!(daemon.ok("vf show web-pf0").contains("mac vlan qos spoofchk rate state"));
    // At its next boot the card is what it was.
    assert!(!daemon.ok("vm qemu web --qemu-version 10.1").contains("mac=02:00:00:00:00:77"));
    // What the operator sets on the port is his, and both hold.
    daemon.ok("port set web-pf0vf1 --addresses 10.0.0.0/8");
    let port = daemon.json("port show web-pf0vf1 --json");
    let policy = json!({"addresses": ["10.0.0.0/8"]});
    assert_eq!((&port["config"]["policy"], &port["policy"]["spoofchk"]), (&policy, &true.into()));
    for signal in ["TERM", "KILL"] {
        daemon.signal(signal);
        daemon.wait();
        drop((guest, daemon));
        daemon = Daemon::start_in(directory.path(), &[]);
        assert_eq!(shown(&daemon), (now.clone(), all.clone()), "before its guest says anything");
        guest = Guest::connect(&channel, "first");
        assert_eq!(guest.show(&pf, 1), now);
    }
    // Whose it is not, what is not there, what makes no sense.
    let vlan = json!({"vlan": 9});
    let no = json!(null);
    for (pf, vf) in [(&others, 0), (&pf, 3), (&fresh["mac"], 0)] {
        let answer = guest.ask("vf.set", &parameters(pf, vf, &vlan));
        assert_eq!(
            (&answer["error"]["data"], &answer["result"]),
            (&"unknown-function".into(), &no)
        );
    }
    guest.refused(&pf, 1, &json!({"vlan": 4095, "rate": 1}), "bad-params", "4094");
    guest.refused(&pf, 1, &json!({"mac": "01:00:00:00:00:01"}), "not-unicast", "mac");
    guest.refused(&pf, 0, &json!({"mac": others, "rate": 1}), "not-allowed", "another card");
    guest.refused(&pf, 0, &json!({"mac": pf, "rate": 1}), "not-allowed", "another card");
    guest.refused(&pf, 0, &json!({"mac": "02:00:00:00:00:77"}), "not-allowed", "another card");
    guest.refused(&pf, 0, &json!({"mac": fresh["mac"]}), "not-allowed", "another card");
    // VLAN 0 and no address give back what it had.
    guest.set(
        &pf,
        1,
        &json!({"mac": "00:00:00:00:00:00", "vlan": 0, "spoofchk": false, "rate": 0}),
    );
    assert_eq!(guest.set(&pf, 1, &json!({"state": "auto"})), fresh);
    assert_eq!(shown(&daemon).1, no);
    // Another boot of the machine is another guest.
    guest.set(&pf, 1, &json!({"vlan": 10}));
    guest.set(&pf, 2, &json!({"vlan": 20}));
    drop(guest);
    let mut guest = Guest::connect(&channel, "first");
    assert_eq!(guest.show(&pf, 2)["vlan"], 20);
    drop(guest);
    let mut guest = Guest::connect(&channel, "second");
    assert_eq!((guest.show(&pf, 1), &guest.show(&pf, 2)["vlan"]), (fresh, &0.into()));
    guest.set(&pf, 1, &json!({"vlan": 10}));
    daemon.ok("vf delete web-pf0");
    let answer = guest.ask("vf.set", &parameters(&pf, 1, &vlan));
    assert_eq!(answer["error"]["data"], "unknown-function");
    // A new one knows nothing of it.
    daemon.ok("vf create --vm web --vfs 3");
    assert_eq!(shown(&daemon).1, no);
    daemon.stop();
}

#[test]
fn the_operator_says_how_far_a_guest_may_go() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start_in(directory.path(), &[]);
    daemon.ok("network add lan");
    let (channel, pf) = with_channel(&daemon, "web");
    daemon.ok("port set web-pf0vf1 --spoofchk on --trust off --max-tx-rate 100 --link disable");
    let mut guest = Guest::connect(&channel, "first");
    let loose = [
        (json!({"mac": "02:00:00:00:00:77"}), "mac"),
        (json!({"spoofchk": false}), "spoofchk"),
        (json!({"trust": true}), "trust"),
        (json!({"rate": 101}), "rate"),
        (json!({"rate": 0}), "rate"),
        (json!({"state": "auto"}), "state"),
    ];
    for (change, right) in &loose {
        guest.refused(&pf, 1, change, "not-allowed", right);
    }
    // One that is not allowed: nothing of it is done.
    guest.refused(&pf, 1, &json!({"rate": 50, "spoofchk": false}), "not-allowed", "spoofchk");
    guest.set(&pf, 1, &json!({"rate": 50}));
    guest.set(&pf, 1, &json!({"rate": 100}));
    daemon.ok("vf set web-pf0 --guest-may mac,vlan,spoofchk,trust,rate,state");
    for (change, _) in &loose {
        guest.set(&pf, 1, change);
    }
    daemon.ok("vf set web-pf0 --guest-max-rate 200");
    assert_eq!(guest.show(&pf, 1)["rate"], 100, "no limit is more than the most");
    guest.set(&pf, 1, &json!({"rate": 200}));
    guest.refused(&pf, 1, &json!({"rate": 201}), "not-allowed", "at most 200");
    assert!(
        daemon.ok("vf show web-pf0").contains("mac vlan spoofchk trust rate state, at most 200")
    );
    // What it may no longer does not count, over restarts too, and does again when it may.
    let all = guest.show(&pf, 1);
    daemon.ok("vf set web-pf0 --guest-may mac");
    daemon.signal("KILL");
    daemon.wait();
    drop((guest, daemon));
    daemon = Daemon::start_in(directory.path(), &[]);
    let mut guest = Guest::connect(&channel, "first");
    let now = guest.show(&pf, 1);
    assert_eq!((&now["mac"], &now["rate"]), (&all["mac"], &100.into()));
    assert_eq!(
        (&now["spoofchk"], &now["trust"], &now["state"]),
        (&true.into(), &false.into(), &"disable".into())
    );
    daemon.ok("vf set web-pf0 --guest-may off");
    assert_eq!(
        guest.show(&pf, 1)["mac"],
        daemon.json("vf show web-pf0 --json")["functions"][2]["mac"]
    );
    daemon.fails("vf set web-pf0 --guest-may colour", 2, &["colour", "spoofchk"]);
    daemon.fails("vf set web-pf0 --guest-max-rate 5", 2, &["--guest-max-rate", "rate"]);
    daemon.fails("vf set none --guest-may off", 4, &["none"]);
    // The same again is no mistake, whatever its guest may since.
    daemon.ok("vf create --vm web --vfs 3");
    // A trunk is where it may choose a VLAN.
    daemon.ok("vf create --vm web --vfs 1 --name more --trunk 10,20-30 --guest-may rate --guest-max-rate 9");
    let more = daemon.json("vf show more --json");
    assert_eq!(more["config"]["guest"], json!({"may": ["rate"], "max_rate": 9}));
    let more = &more["functions"][0]["mac"];
    guest.set(more, 0, &json!({"vlan": 25}));
    guest.refused(more, 0, &json!({"vlan": 31}), "not-allowed", "10,20-30");
    daemon.stop();
}

/// What the guest is told of its functions over its channel, and of nobody else's.
#[test]
fn a_guest_is_told_of_its_own() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    let channel = daemon.run_dir.join("web.channel");
    daemon.ok(&format!("vm add web --channel {}", channel.display()));
    daemon.ok("vm add other");
    daemon.ok("vf create --vm web --vfs 3");
    daemon.ok("vf create --vm web --vfs 1 --name second");
    daemon.ok("vf create --vm other --vfs 1");
    let mut guest = Guest::connect(&channel, "boot");
    let mut ask = |method: &str, params: Value| guest.ask(method, &params)["result"].take();
    let all = ask("vf.list", json!({}));
    let shown = daemon.json("vf list --json");
    let shown = shown.as_array().unwrap().iter().filter(|pf| pf["vm"] == "web");
    let shown = shown.flat_map(|pf| pf["functions"].as_array().unwrap().clone());
    let of = |one: &Value| (one["vf"].clone(), one["mac"].clone(), one["carrier"].clone());
    let told = all["functions"].as_array().unwrap();
    assert_eq!(
        told.iter().map(of).collect::<Vec<_>>(),
        shown.map(|one| of(&one)).collect::<Vec<_>>()
    );
    assert_eq!(told.len(), 6);
    assert_eq!((&told[0]["pf"], &told[2]["pf"]), (&"second".into(), &"web-pf0".into()));
    let of_pf = ask("vf.list", json!({"pf": told[2]["mac"], "after": {"pf": "web-pf0", "vf": 0}}));
    assert_eq!(of_pf["functions"].as_array().unwrap()[..], told[4..]);
    daemon.stop();
}

/// Its descriptors without those of commands: it closes a command's connection after that has ended.
fn descriptors(daemon: &Daemon) -> usize {
    let socket = daemon.run_dir.join("api.sock");
    // Both ends of a connection are in the network namespace of who connected: ours.
    let is_connected = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() == 8 && fields[5] == "03" && Path::new(fields[7]) == socket
    };
    until("no command is connected", || {
        !fs::read_to_string("/proc/net/unix").unwrap().lines().any(is_connected)
    });
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

fn mappings(daemon: &Daemon) -> usize {
    fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap().lines().count()
}

/// As many as there can be, all with a front end as QEMU is one at its start.
#[test]
fn two_hundred_and_fifty_five_vfs() {
    let daemon = Daemon::start(&[]);
    set_up(&daemon);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let limit: Vec<&str> = limit.split_whitespace().collect();
    assert_eq!(limit[3], limit[4], "the daemon may have all descriptors it is allowed");
    let start = (descriptors(&daemon), mappings(&daemon));
    daemon.ok("vf create --vm web --vfs 255 --queues 2");
    let pf = daemon.json("vf show web-pf0 --json");
    let functions = pf["functions"].as_array().unwrap();
    assert_eq!(functions.len(), 256);
    let made = (descriptors(&daemon), mappings(&daemon));
    let call = sys::EventFd::new().unwrap();
    let mut frontends = Vec::new();
    for function in functions {
        let name = function["port"].as_str().unwrap();
        let socket = daemon.run_dir.join(format!("ports/{name}.sock"));
        let mut frontend = Frontend::connect(&socket).unwrap();
        frontend.get_u64(request::GET_FEATURES).unwrap();
        frontend.get_u64(request::GET_PROTOCOL_FEATURES).unwrap();
        frontend.set_u64(request::SET_PROTOCOL_FEATURES, protocol::NET).unwrap();
        frontend.protocol = protocol::NET;
        frontend.set(request::SET_OWNER, &[], &[]).unwrap();
        for queue in 0..4 {
            frontend.set_ring_fd(request::SET_VRING_CALL, queue, Some(&call)).unwrap();
            frontend.enable_queue(queue, true).unwrap();
        }
        frontends.push(frontend);
    }
    let connected = |daemon: &Daemon| {
        let pf = daemon.json("vf show web-pf0 --json");
        let functions = pf["functions"].as_array().unwrap();
        let is = |state: &str| functions.iter().filter(|one| one["state"] == state).count();
        (is("connected"), is("waiting"))
    };
    assert_eq!(connected(&daemon), (256, 0));
    let each = (descriptors(&daemon) - made.0) / 256;
    assert!(each <= 6, "{each} descriptors for one of two queue pairs");
    assert!(mappings(&daemon) <= made.1 + 16, "nobody's memory is mapped");
    drop(frontends);
    until("all of them are gone", || connected(&daemon) == (0, 256));
    until("their descriptors are closed", || descriptors(&daemon) == made.0);
    daemon.ok("vf delete web-pf0");
    until("nothing of them is left", || descriptors(&daemon) == start.0);
    assert!(mappings(&daemon) <= start.1 + 32, "{} mappings at first", start.1);
    daemon.stop();
}
