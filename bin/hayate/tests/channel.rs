//! Guest channels of a real daemon, from the other end: an agent that behaves, and others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, Namespace, repository, until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Far longer than any answer takes; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whoever is at the other end of a channel.
struct Agent {
    stream: BufReader<UnixStream>,
    number: u64,
}

impl Agent {
    fn connect(daemon: &Daemon) -> Self {
        let stream = UnixStream::connect(channel(daemon)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream), number: 0 }
    }

    /// One that has said hello.
    fn hello(daemon: &Daemon) -> Self {
        let mut agent = Self::connect(daemon);
        agent.ok("hello", &json!({"protocol": 1, "agent": "test 1", "lease_ms": 60_000}));
        agent
    }

    fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let line = json!({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params});
        self.send(&format!("{line}\n"));
        let answer = self.answer();
        assert_eq!(answer["id"], self.number, "{answer}");
        answer
    }

    #[track_caller]
    fn ok(&mut self, method: &str, params: &Value) -> Value {
        let mut answer = self.ask(method, params);
        assert!(answer.get("error").is_none(), "{method} {params}: {answer}");
        answer["result"].take()
    }

    #[track_caller]
    fn refused(&mut self, method: &str, params: &Value, reason: &str) {
        let answer = self.ask(method, params);
        assert_eq!(answer["error"]["data"], reason, "{method} {params}: {answer}");
    }

    /// Delegates 10.1.0.0/16 by a neighbour behind its only interface.
    fn delegate(&mut self, mac: &str) {
        let interface = json!({"id": 2, "name": "eth0", "mac": mac, "mtu": 1500});
        let placed = self.ok("router.interfaces", &json!({"interfaces": [interface]}));
        assert_eq!(placed["interfaces"][0]["port"], "edge0", "{placed}");
        let hop = json!({"id": 7, "to": {"via": [{"interface": 2, "mac": "02:00:00:00:00:09"}]}});
        self.ok("router.nexthops", &json!({"set": [hop]}));
        self.ok("router.routes", &json!({"set": [{"nexthop": 7, "prefixes": ["10.1.0.0/16"]}]}));
    }

    /// Whether the daemon has hung up.
    fn ended(mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

fn channel(daemon: &Daemon) -> PathBuf {
    daemon.run_dir.join("edge.sock")
}

/// A daemon with a router of two ports, and another VM.
fn set_up(args: &[&str]) -> Daemon {
    let daemon = Daemon::start(args);
    daemon.ok("network add lan");
    daemon.ok("network add wan");
    daemon.ok(&format!("vm add edge --channel {}", channel(&daemon).display()));
    daemon.ok("port add edge0 --network lan --kind vhost --vm edge");
    daemon.ok("port add edge1 --network wan --kind tap --ifname e1 --vm edge");
    daemon.ok("vm add web");
    daemon.ok("port add web0 --network lan --kind vhost --vm web");
    daemon
}

fn mac(port: &str) -> String {
    api::Mac::of_port("edge", port).to_string()
}

fn router(daemon: &Daemon) -> Value {
    daemon.json("router show edge --json")
}

#[test]
fn an_agent_that_behaves() {
    let daemon = set_up(&[]);
    let mut agent = Agent::connect(&daemon);
    let welcome = agent.ok("hello", &json!({"protocol": 1, "agent": "test 1"}));
    assert_eq!((&welcome["vm"], &welcome["lease_ms"]), (&json!("edge"), &json!(3000)), "{welcome}");
    assert_eq!(welcome["limits"]["prefixes"], 131_072);
    let tap = daemon.json("port show edge1 --json")["mac"].clone();
    let ports = json!([
        {"name": "edge0", "network": "lan", "mac": mac("edge0")},
        {"name": "edge1", "network": "wan", "mac": tap},
    ]);
    assert_eq!(welcome["ports"], ports);
    let interfaces = json!({"interfaces": [
        {"id": 2, "name": "eth0", "mac": mac("edge0"), "mtu": 1500},
        {"id": 5, "name": "eth1.10", "mac": "02:00:00:00:00:05", "card": tap, "vlan": 10, "mtu": 9000,
         "source_check": "strict"},
    ]});
    let placed = agent.ok("router.interfaces", &interfaces);
    let behind = json!([{"id": 2, "port": "edge0"}, {"id": 5, "port": "edge1"}]);
    assert_eq!(placed["interfaces"], behind);
    let nexthops = json!({"set": [
        {"id": 0, "to": "own"},
        {"id": 7, "to": {"via": [{"interface": 2, "mac": "02:00:00:00:00:09"}]}},
        {"id": 8, "to": {"via": []}},
    ]});
    assert_eq!(agent.ok("router.nexthops", &nexthops), json!({}));
    let routes = json!({"set": [
        {"nexthop": 0, "prefixes": ["10.1.0.1/32", "fe80::/10"]},
        {"nexthop": 7, "prefixes": ["10.1.0.0/16", "2001:db8::/32"]},
    ]});
    assert_eq!(agent.ok("router.routes", &routes), json!({}));
    agent.ok("router.status", &json!({"policy": "plain", "reasons": ["because \u{1b}[31m"]}));
    assert_eq!(agent.ok("router.counters", &json!({})), json!({"nexthops": []}));

    let shown = router(&daemon);
    assert_eq!(shown["router"]["agent"], "test 1");
    assert_eq!(shown["router"]["policy"], "plain");
    assert_eq!(
        (&shown["router"]["prefixes"], &shown["router"]["nexthops"]),
        (&4.into(), &3.into())
    );
    assert_eq!(shown["reasons"], json!(["because ?[31m"]), "nothing that moves a cursor");
    assert_eq!(shown["interfaces"][1]["port"], "edge1");
    assert_eq!(shown["nexthops"][1]["prefixes"], 2);
    for words in ["router list", "router show edge"] {
        let text = daemon.ok(words);
        assert!(text.contains("plain") && text.contains("edge"), "{text}");
    }
    let routes = daemon.ok("router show edge --routes");
    let lines: Vec<Vec<&str>> =
        routes.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[1..],
        [["10.1.0.0/16", "7"], ["10.1.0.1/32", "0"], ["2001:db8::/32", "7"], ["fe80::/10", "0"],]
    );

    agent.ok("router.routes", &json!({"del": ["10.1.0.0/16"]}));
    agent.refused("router.nexthops", &json!({"del": [7]}), "next-hop-in-use");
    agent.ok("router.routes", &json!({"del": ["2001:db8::/32"]}));
    agent.ok("router.nexthops", &json!({"del": [7, 8]}));
    assert_eq!(router(&daemon)["router"]["prefixes"], 2);
    agent.ok("router.withdraw", &json!({}));
    let shown = router(&daemon);
    assert_eq!((&shown["interfaces"], &shown["nexthops"]), (&json!([]), &json!([])));
    drop(agent);
    until("it is gone", || router(&daemon)["router"]["connected"] == false);
    daemon.stop();
}

#[test]
fn what_is_wrong_is_refused_by_name_and_counted() {
    let daemon = set_up(&[]);
    let mut agent = Agent::connect(&daemon);
    agent.refused("router.renew", &json!({}), "no-session");
    agent.refused("hello", &json!({"protocol": 2, "agent": ""}), "protocol");
    agent.refused("hello", &json!({"protocol": 1, "agent": "", "lease_ms": 299}), "bad-params");
    agent.refused("hello", &json!({"protocol": 1, "agent": "x".repeat(65)}), "bad-params");
    agent.refused("goodbye", &json!({}), "unknown-method");
    for garbage in ["{}\n", "\u{0}\u{1}\n", "[[[[\n", "{\"jsonrpc\":\"2.0\",\"id\":1}\n"] {
        agent.send(garbage);
        let answer = agent.answer();
        assert_eq!((&answer["id"], &answer["error"]["data"]), (&Value::Null, &json!("malformed")));
    }
    agent.ok("hello", &json!({"protocol": 1, "agent": "x".repeat(64), "lease_ms": 60_000}));
    // The card of another VM, and one of nobody.
    let other = api::Mac::of_port("web", "web0").to_string();
    let foreign = |mac: &str| json!({"id": 1, "name": "x", "mac": mac, "mtu": 1500});
    for mac in [&other, "02:00:00:00:00:01"] {
        let placed = agent.ok("router.interfaces", &json!({"interfaces": [foreign(mac)]}));
        assert_eq!(placed["interfaces"], json!([{"id": 1, "refused": "not-your-port"}]));
    }
    agent.refused(
        "router.interfaces",
        &json!({"interfaces": [foreign("01:00:00:00:00:01")]}),
        "not-unicast",
    );
    agent.delegate(&mac("edge0"));
    let hop = |id: u32, interface: u32, mac: &str| json!({"set": [{"id": id, "to": {"via": [{"interface": interface, "mac": mac}]}}]});
    agent.refused("router.nexthops", &hop(9, 3, "02:00:00:00:00:09"), "unknown-interface");
    agent.refused("router.nexthops", &hop(9, 2, "ff:ff:ff:ff:ff:ff"), "not-unicast");
    agent.refused("router.nexthops", &hop(4096, 2, "02:00:00:00:00:09"), "too-many-next-hops");
    agent.refused("router.nexthops", &json!({"del": [9]}), "unknown-next-hop");
    let via =
        |nexthop: u32, prefix: &str| json!({"set": [{"nexthop": nexthop, "prefixes": [prefix]}]});
    agent.refused("router.routes", &via(9, "10.2.0.0/16"), "unknown-next-hop");
    agent.refused("router.routes", &via(7, "10.2.0.1/16"), "bad-params");
    // Nothing of these was done.
    let shown = router(&daemon);
    assert_eq!(
        (&shown["router"]["prefixes"], &shown["router"]["nexthops"]),
        (&1.into(), &1.into())
    );
    let refusals = &shown["router"]["refusals"];
    assert_eq!((&refusals["malformed"], &refusals["not-your-port"]), (&4.into(), &2.into()));
    assert_eq!((&refusals["not-unicast"], &refusals["bad-params"]), (&2.into(), &3.into()));
    assert!(daemon.ok("router show edge").contains("unknown-method"));
}

#[test]
fn lines_come_in_any_pieces() {
    let daemon = set_up(&[]);
    let mut agent = Agent::connect(&daemon);
    let hello = "\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\",\"params\":{\"protocol\":1,\"agent\":\"slow\"}}\n";
    for byte in hello.as_bytes().chunks(1) {
        agent.stream.get_mut().write_all(byte).unwrap();
    }
    assert_eq!(agent.answer()["result"]["vm"], "edge");
    // Several at once are answered in order.
    let renew =
        |id: u32| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"router.renew\"}}\n");
    agent.send(&(0..100).map(renew).collect::<String>());
    for id in 0..100 {
        assert_eq!(agent.answer()["id"], id);
    }
    // A line that is too long is refused and skipped.
    agent.send(&"x".repeat(200_000));
    agent.send(&format!("\n{}", renew(5)));
    assert_eq!(agent.answer()["error"]["data"], "too-long");
    assert_eq!(agent.answer()["id"], 5);
    // What an agent that died left behind is no more than a refusal for the next one.
    agent.send("{\"jsonrpc\":");
    agent.send(&format!("\n{}", renew(6)));
    assert_eq!(agent.answer()["error"]["data"], "malformed");
    assert_eq!(agent.answer()["id"], 6);
}

#[test]
fn what_is_delegated_ends_with_the_lease_the_connection_and_the_vm() {
    let daemon = set_up(&[]);
    let mut agent = Agent::connect(&daemon);
    agent.ok("hello", &json!({"protocol": 1, "agent": "", "lease_ms": 300}));
    agent.delegate(&mac("edge0"));
    until("the lease ends", || router(&daemon)["router"]["prefixes"] == 0);
    let routes = json!({"set": [{"nexthop": 7, "prefixes": ["10.1.0.0/16"]}]});
    agent.refused("router.routes", &routes, "lost");
    let lease = agent.ok("router.renew", &json!({}));
    assert_eq!((&lease["lost"], &lease["lease_ms"]), (&true.into(), &300.into()));
    drop(agent);

    let mut agent = Agent::hello(&daemon);
    agent.delegate(&mac("edge0"));
    assert_eq!(agent.ok("router.renew", &json!({}))["lost"], false);
    // Another one takes over: QEMU connects again.
    let mut second = Agent::hello(&daemon);
    assert!(agent.ended());
    assert_eq!(router(&daemon)["router"]["prefixes"], 0);
    second.delegate(&mac("edge0"));
    assert_eq!(router(&daemon)["router"]["prefixes"], 1);
    drop(second);
    until("it is withdrawn", || router(&daemon)["router"]["prefixes"] == 0);

    // A new session begins without what the one before delegated.
    let mut agent = Agent::hello(&daemon);
    agent.delegate(&mac("edge0"));
    agent.ok("hello", &json!({"protocol": 1, "agent": "again"}));
    assert_eq!(router(&daemon)["router"]["prefixes"], 0);
    agent.delegate(&mac("edge0"));
    daemon.ok("port del edge0");
    let lease = agent.ok("router.renew", &json!({}));
    assert_eq!(lease["placed"]["interfaces"][0]["refused"], "not-your-port", "{lease}");
    daemon.ok("port add edge0 --network lan --kind vhost --vm edge");
    let lease = agent.ok("router.renew", &json!({}));
    assert_eq!(lease["placed"]["interfaces"][0]["port"], "edge0", "{lease}");
    assert!(agent.ok("router.renew", &json!({})).get("placed").is_none());
    daemon.ok("port del edge0");
    daemon.ok("port del edge1");
    daemon.ok("vm del edge");
    assert!(agent.ended());
    assert!(!channel(&daemon).exists());
    assert_eq!(daemon.json("router list --json"), json!([]));
}

#[test]
fn the_operator_has_the_last_word() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_in(directory.path(), &[]);
    daemon.ok("network add lan");
    daemon.ok(&format!("vm add edge --channel {}", channel(&daemon).display()));
    daemon.ok("port add edge0 --network lan --kind vhost --vm edge");
    let mut agent = Agent::hello(&daemon);
    agent.delegate(&mac("edge0"));
    daemon.ok("router bypass edge off");
    let shown = router(&daemon);
    assert_eq!(
        (&shown["router"]["bypass"], &shown["router"]["prefixes"]),
        (&false.into(), &1.into())
    );
    daemon.fails("router bypass web off", 4, &["no vm named web"]);
    daemon.fails("router bypass edge maybe", 2, &["on, off"]);
    drop(agent);
    daemon.stop();
    let daemon = Daemon::start_in(directory.path(), &[]);
    assert_eq!(router(&daemon)["router"]["bypass"], false, "it holds over a restart");
    let mut agent = Agent::hello(&daemon);
    agent.delegate(&mac("edge0"));
    daemon.ok("router bypass edge on");
    assert_eq!(router(&daemon)["router"]["bypass"], true);
    daemon.stop();
    assert!(!directory.path().join("edge.sock").exists());
}

#[test]
fn sockets_are_checked() {
    let daemon = set_up(&[]);
    let path = channel(&daemon);
    let path = path.display();
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(channel(&daemon)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    daemon.fails(&format!("vm add b --channel {path}"), 5, &["vm edge has the socket"]);
    daemon.fails(
        &format!("port add b --network lan --kind vhost --socket {path}"),
        5,
        &["vm edge has the socket"],
    );
    let port = daemon.run_dir.join("ports/web0.sock");
    daemon.fails(&format!("vm add b --channel {}", port.display()), 5, &["port web0 has"]);
    let long = format!("vm add b --channel /{}", "x".repeat(107));
    daemon.fails(&long, 2, &["--channel", "107"]);
    daemon.fails("vm add b --channel /nonexistent/b", 1, &["channel: cannot bind /nonexistent/b"]);
    daemon.fails("vm add b --prefixes-max 0", 2, &["--prefixes-max", "1048576"]);
    daemon.fails("router show web", 4, &["no guest channel", "--channel PATH"]);
    daemon.ok(&format!("vm add edge --channel {path}"));
    daemon.fails("vm add edge", 5, &["exists already"]);
    // What a killed daemon leaves is replaced.
    let stale = daemon.run_dir.join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    daemon.ok(&format!("vm add stale --channel {}", stale.display()));
    UnixStream::connect(stale).unwrap();
}

/// A router in a namespace between two others. It forwards nothing itself: what gets through went
/// past it.
struct Topology {
    daemon: Daemon,
    client: Namespace,
    server: Namespace,
    _router: Namespace,
    macs: [String; 4],
}

impl Topology {
    fn new() -> Self {
        let daemon = Daemon::start(&[]);
        let [client, router, server] = [(); 3].map(|()| daemon.namespace());
        daemon.ok("network add lan");
        daemon.ok("network add wan");
        daemon.ok(&format!("vm add edge --channel {}", channel(&daemon).display()));
        let mut macs = Vec::new();
        for (port, network, namespace, address, vm) in [
            ("c0", "lan", &client, "10.1.0.2/24", ""),
            ("edge0", "lan", &router, "10.1.0.1/24", "--vm edge"),
            ("edge1", "wan", &router, "10.2.0.1/24", "--vm edge"),
            ("s0", "wan", &server, "10.2.0.2/24", ""),
        ] {
            let netns = namespace.path();
            daemon.ok(&format!(
                "port add {port} --network {network} --kind tap --ifname {port} --netns {netns} {vm}"
            ));
            namespace.inside(&format!("ip address add {address} dev {port}"));
            let mac = daemon.json(&format!("port show {port} --json"))["mac"].clone();
            macs.push(mac.as_str().unwrap().to_owned());
        }
        client.inside("ip route add default via 10.1.0.1");
        server.inside("ip route add default via 10.2.0.1");
        let macs = macs.try_into().unwrap();
        Self { daemon, client, server, _router: router, macs }
    }

    /// What an agent in the router would say.
    fn delegate(&self) -> Agent {
        let [client, edge0, edge1, server] = &self.macs;
        let mut agent = Agent::hello(&self.daemon);
        let interface = |id: u32, mac: &str| json!({"id": id, "name": format!("e{id}"), "mac": mac, "mtu": 1500});
        let interfaces = json!({"interfaces": [interface(0, edge0), interface(1, edge1)]});
        agent.ok("router.interfaces", &interfaces);
        let hop =
            |id: u32, mac: &str| json!({"id": id, "to": {"via": [{"interface": id, "mac": mac}]}});
        agent.ok("router.nexthops", &json!({"set": [hop(0, client), hop(1, server)]}));
        let via = |id: u32, prefix: &str| json!({"nexthop": id, "prefixes": [prefix]});
        agent.ok("router.routes", &json!({"set": [via(0, "10.1.0.2/32"), via(1, "10.2.0.2/32")]}));
        agent
    }

    /// Both resolve the router's address: then the switch knows all four.
    fn meet(&self) {
        for (namespace, gateway) in [(&self.client, "10.1.0.1"), (&self.server, "10.2.0.1")] {
            namespace.inside(&format!("ping -c 1 -w 10 {gateway}"));
        }
    }

    /// Whether a ping is answered within so many seconds.
    fn pings(&self, patience: u32) -> bool {
        let said = self.client.run(&format!("ping -c 1 -W {patience} 10.2.0.2"));
        said.out.contains("1 received")
    }

    #[track_caller]
    fn passes(&self) {
        assert!(self.pings(30), "{}", router(&self.daemon));
    }

    #[track_caller]
    fn is_lost(&self) {
        assert!(!self.pings(1), "{}", router(&self.daemon));
    }
}

#[test]
fn packets_go_past_a_router_while_it_delegates_and_not_a_moment_longer() {
    let topology = Topology::new();
    let daemon = &topology.daemon;
    topology.meet();
    topology.is_lost();
    let mut agent = topology.delegate();
    topology.passes();
    until("packets are counted", || router(daemon)["router"]["packets"] == 2);
    let counted = agent.ok("router.counters", &json!({}));
    let counts = &counted["nexthops"];
    assert_eq!(
        (&counts[0]["hops"][0]["packets"], &counts[1]["hops"][0]["packets"]),
        (&1.into(), &1.into())
    );
    assert_eq!(counts[0]["hops"][0]["bytes"], 98);
    assert_eq!(agent.ok("router.counters", &json!({"after": 0}))["nexthops"][0]["id"], 1);

    daemon.ok("router bypass edge off");
    topology.is_lost();
    daemon.ok("router bypass edge on");
    topology.passes();
    agent.ok("router.routes", &json!({"del": ["10.2.0.2/32"]}));
    topology.is_lost();
    agent.ok("router.routes", &json!({"set": [{"nexthop": 1, "prefixes": ["10.2.0.0/24"]}]}));
    topology.passes();
    // Interfaces change their places; the next hops follow them.
    let [_, edge0, edge1, _] = &topology.macs;
    let interface =
        |id: u32, mac: &str| json!({"id": id, "name": format!("e{id}"), "mac": mac, "mtu": 1500});
    let turned = json!({"interfaces": [interface(1, edge1), interface(0, edge0)]});
    agent.ok("router.interfaces", &turned);
    topology.passes();
    agent.ok("router.interfaces", &json!({"interfaces": [interface(0, edge0)]}));
    topology.is_lost();
    agent.ok("router.interfaces", &turned);
    topology.passes();
    agent.ok("router.withdraw", &json!({}));
    topology.is_lost();
    // What was counted stays counted: five pings, both ways; and what was lost on the way back.
    let packets = router(daemon)["router"]["packets"].as_u64().unwrap();
    assert!(packets >= 10, "{packets}");

    drop(agent);
    let agent = topology.delegate();
    topology.passes();
    drop(agent);
    until("it is withdrawn", || router(daemon)["router"]["prefixes"] == 0);
    topology.is_lost();
}

#[test]
fn flow_why_follows_a_packet() {
    let topology = Topology::new();
    let daemon = &topology.daemon;
    topology.meet();
    let why = |words: &str| daemon.ok(&format!("flow why --from c0 {words}"));
    // Without a router in the network nobody knows for whom the frame is.
    daemon.fails(
        "flow why --from c0 src=10.1.0.2 dst=10.2.0.2",
        2,
        &["lan has 0 interfaces", "dmac="],
    );
    let mut agent = topology.delegate();
    let [client, edge0, edge1, server] = &topology.macs;
    let text = why("src=10.1.0.2 dst=10.2.0.2");
    assert_eq!(
        text,
        format!(
            "frame {client} > {edge0}\n\
         comes in by port c0 of network lan\n\
         bypasses router edge: in by e0, 10.2.0.2/32 takes next hop 1, out by e1\n  \
         rewritten: frame {edge1} > {server}, one hop less; that is behind port s0\n\
         leaves by port s0\n"
        )
    );
    let json = daemon.json("flow why --json --from c0 10.1.0.2:1 > 10.2.0.2:80 udp");
    assert_eq!(json["flow"]["proto"], 17);
    let steps: Vec<&Value> = json["steps"].as_array().unwrap().iter().map(|s| &s["step"]).collect();
    assert_eq!(steps, ["arrived", "bypassed", "forward"]);
    for (words, part) in [
        ("src=10.1.0.2 dst=10.9.0.1", "goes to router edge: it has not delegated the destination"),
        ("src=10.1.0.2 dst=10.2.0.2 ttl=1", "may not pass that many routers"),
        ("src=10.1.0.2 dst=10.2.0.2 size=1501", "longer than an MTU"),
        ("src=10.1.0.2 dst=224.0.0.1", "goes to router edge"),
        (&format!("src=10.1.0.2 dst=10.1.0.1 dmac={client}"), "is dropped: same-port"),
        ("src=10.1.0.2 dst=10.2.0.2 dmac=02:00:00:00:99:99", "leaves by edge0"),
    ] {
        let text = why(words);
        assert!(text.contains(part), "{words}: {text}");
    }
    // For one machine and one address, which no prefix covers.
    let exact = format!("10.9.0.1/32 from {client}");
    let routes = json!({"set": [{"nexthop": 1, "prefixes": [exact]}]});
    agent.ok("router.routes", &routes);
    assert!(
        why("src=10.1.0.2 dst=10.9.0.1").contains(&format!("in by e0, {exact} takes next hop 1"))
    );
    let other = why("src=10.1.0.2 dst=10.9.0.1 smac=02:00:00:00:99:99");
    assert!(other.contains("has not delegated the destination"), "{other}");
    assert!(daemon.ok("router show edge --routes").contains(&exact));
    daemon.ok("router bypass edge off");
    assert!(why("src=10.1.0.2 dst=10.2.0.2").contains("bypass is switched off"));
    daemon.fails("flow why --from x src=10.1.0.2 dst=10.2.0.2", 4, &["no port named x"]);
    daemon.fails("flow why --from c0 src=10.1.0.2 dst=::1", 2, &["two versions"]);
    daemon.fails("flow why --from c0 src=10.1.0.2 dst=10.2.0.2 size=9", 2, &["20 to 65535"]);
}

/// What a process has in memory, KiB.
fn resident(daemon: &Daemon) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// CPU time of the daemon's control thread.
fn control_time(daemon: &Daemon) -> Duration {
    let pid = daemon.pid();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Requests to delegate many prefixes, and to withdraw them: each as long as a line may be.
fn long_lines() -> [String; 2] {
    let prefixes: Vec<String> =
        (0..3500).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect();
    let set = json!({"set": [{"nexthop": 7, "prefixes": prefixes}]});
    [set, json!({"del": prefixes})].map(|params| {
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": "router.routes", "params": params});
        let line = format!("{line}\n");
        assert!((50_000..65_536).contains(&line.len()), "{}", line.len());
        line
    })
}

#[test]
fn whoever_does_not_read_waits_and_takes_no_memory() {
    let daemon = set_up(&[]);
    let mut before = 0;
    for round in 0..40 {
        let mut agent = Agent::hello(&daemon);
        agent.delegate(&mac("edge0"));
        let mut stream = agent.stream.into_inner();
        stream.set_nonblocking(true).unwrap();
        let text = match round % 4 {
            0 => "x".repeat(1 << 20),
            1 => "\n{}\n".repeat(1 << 18),
            2 => "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"router.counters\"}\n".repeat(1 << 14),
            _ => long_lines().concat().repeat(8),
        };
        // As much as the socket takes; what is too much stays with us.
        let (mut rest, mut full) = (text.as_bytes(), 0);
        while full < 20 && !rest.is_empty() {
            match stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(_) => {
                    full += 1;
                    assert_eq!(daemon.http("GET", "/v1/routers", "").0, 200);
                }
            }
        }
        if round == 4 {
            before = resident(&daemon);
        }
    }
    let more = resident(&daemon) - before;
    assert!(more < 16 * 1024, "{more} KiB more than before");
    let mut agent = Agent::hello(&daemon);
    agent.delegate(&mac("edge0"));
}

#[test]
fn a_flood_of_requests_takes_a_quarter_of_the_control_thread() {
    let daemon = set_up(&[]);
    let mut agent = Agent::hello(&daemon);
    agent.delegate(&mac("edge0"));
    let flood = agent.stream.get_ref().try_clone().unwrap();
    let (asked, begun) = (control_time(&daemon), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Read as a whole, then refused: nothing but work for the control thread.
            let [line, _] = long_lines().map(|line| line.replace("\"nexthop\":7", "\"nexthop\":9"));
            let mut to = &flood;
            // Until the connection is shut down.
            while to.write_all(line.as_bytes()).is_ok() {}
        });
        scope.spawn(|| {
            let mut line = String::new();
            while agent.stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                assert!(line.contains("unknown-next-hop"), "{line}");
                line.clear();
            }
        });
        // Meanwhile others are served.
        while begun.elapsed() < Duration::from_secs(12) {
            assert_eq!(daemon.http("GET", "/v1/routers/edge", "").0, 200);
            std::thread::sleep(Duration::from_millis(100));
        }
        flood.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let (used, passed) = (control_time(&daemon) - asked, begun.elapsed());
    // A quarter and two seconds are for the requests; the rest for all around them.
    let most = passed / 2 + Duration::from_secs(2);
    assert!(used < most, "{used:?} of CPU in {passed:?}");
}

/// Each makes workers forget ways, also those of others who share a network with the router.
#[test]
fn changes_are_no_more_than_workers_bear() {
    let daemon = set_up(&[]);
    let mut agent = Agent::hello(&daemon);
    agent.delegate(&mac("edge0"));
    let begun = Instant::now();
    for n in 0..600 {
        let hop = json!({"interface": 2, "mac": format!("02:00:00:00:00:0{}", n % 2)});
        agent.ok("router.nexthops", &json!({"set": [{"id": 7, "to": {"via": [hop]}}]}));
    }
    // 400 are taken at once, then 50 a second: the others take 4 seconds, less what was before.
    let passed = begun.elapsed();
    assert!(passed > Duration::from_secs(3), "{passed:?}");
    // As many requests that change nothing.
    for _ in 0..600 {
        agent.ok("router.renew", &json!({}));
    }
}

/// The blocks of `docs/guest-channel.md` of one kind.
fn shown(kind: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository().join("docs/guest-channel.md")).unwrap();
    let fence = format!("\n```{kind}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|rest| rest.split("\n```\n").next().unwrap().to_owned()).collect()
}

#[test]
fn the_session_in_the_docs_is_as_it_is_shown() {
    let daemon = Daemon::start(&[]);
    let socket = channel(&daemon);
    for line in shown("sh")[0].lines().filter(|line| !line.ends_with("daemon &")) {
        let words = line.replace("/run/edge.sock", socket.to_str().unwrap());
        daemon.ok(words.strip_prefix("hayate ").unwrap());
    }
    let mut agent = Agent::connect(&daemon);
    let session = &shown("text")[0];
    assert!(session.lines().count() > 20);
    for line in session.lines() {
        match line.split_at(3) {
            ("-> ", request) => agent.send(&format!("{request}\n")),
            ("<- ", answer) => {
                let mut expected: Value = serde_json::from_str(answer).unwrap();
                if let Some(version) = expected.pointer_mut("/result/daemon") {
                    *version = concat!("hayate ", env!("CARGO_PKG_VERSION")).into();
                }
                assert_eq!(agent.answer(), expected, "{line}");
            }
            _ => panic!("{line:?}"),
        }
    }
}

#[test]
fn the_docs_explain_every_refusal() {
    let docs = std::fs::read_to_string(repository().join("docs/guest-channel.md")).unwrap();
    for refusal in api::channel::Refusal::ALL {
        let code = match refusal {
            api::channel::Refusal::NotYourPort => String::new(),
            other => format!("{} ", other.code()),
        };
        let line = format!("| `{}` | {code}| ", refusal.name());
        assert!(docs.contains(&line), "{line}");
    }
}
