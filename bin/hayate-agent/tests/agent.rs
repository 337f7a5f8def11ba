//! The whole agent in a namespace that routes, and a daemon in the small at the other end of its
//! channel.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use api::channel::{
    Answer, ChannelFunction, ConnectionCounters, Connections, Counted, CountedConnections,
    Counters, Done, Failed, Functions, Hello, Hop, HopCount, Interfaces, LINE_MAX, Lease, Limits,
    ListFlows, ListFunctions, Method, NextHops, Outcome, PROTOCOL, Policy, Refusal, Renew, Request,
    Routes, SetFlows, SetFunction, Status, To, Version, Welcome, Withdraw,
};
use api::{Function, FunctionSettings, GuestSettings, LinkState, Mac};
use serde_json::Value;

#[path = "common/model.rs"]
mod model;
#[path = "common/netns.rs"]
mod netns;
#[path = "common/rules.rs"]
mod rules;
use model::Model;
use netns::Netns;
use rules::Rules;

const LIMITS: Limits =
    Limits { interfaces: 16, nexthops: 1000, prefixes: 10_000, connections: 100 };

/// What the daemon knows.
struct Tables {
    model: Model,
    rules: Rules,
    status: Option<Status>,
    hellos: usize,
    withdrawals: usize,
    /// What `router.counters` answers.
    counted: Counted,
    /// The next `router.renew` says that all is lost.
    lose: bool,
    /// The next change of prefixes is refused.
    refuse: Option<Refusal>,
    failure: Option<String>,
}

/// A daemon that listens.
struct Daemon {
    tables: Arc<Mutex<Tables>>,
    path: PathBuf,
    connection: Arc<Mutex<Option<UnixStream>>>,
    stop: Arc<Mutex<bool>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Daemon {
    fn new(path: &Path) -> Self {
        let tables = Tables {
            model: Model::new(LIMITS),
            rules: Rules::default(),
            status: None,
            hellos: 0,
            withdrawals: 0,
            counted: Counted::default(),
            lose: false,
            refuse: None,
            failure: None,
        };
        let tables = Arc::new(Mutex::new(tables));
        let (connection, stop) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(false)));
        let listener = UnixListener::bind(path).unwrap();
        let (tables2, connection2, stop2) = (tables.clone(), connection.clone(), stop.clone());
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if *stop2.lock().unwrap() {
                    return;
                }
                let stream = stream.unwrap();
                *connection2.lock().unwrap() = Some(stream.try_clone().unwrap());
                serve(&tables2, stream);
            }
        });
        let path = path.to_owned();
        Self { tables, path, connection, stop, thread: Some(thread) }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap()
    }

    /// Where a packet goes: `None` to the router, as far as it was told or not.
    fn way(&self, address: &str) -> Option<To> {
        let address: IpAddr = address.parse().unwrap();
        self.tables().model.look_up(address).cloned()
    }

    /// Waits until something is so.
    fn until(&self, what: &str, so: impl Fn(&Tables) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let tables = self.tables();
            let failure = tables.failure.clone();
            if failure.is_none() && so(&tables) {
                return;
            }
            let now = format!("{:?} {:?}", tables.status, tables.model);
            drop(tables);
            assert_eq!(failure, None);
            assert!(Instant::now() < end, "{what}: {now}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn until_way(&self, address: &str, way: &To) {
        let to: IpAddr = address.parse().unwrap();
        self.until(&format!("{address} to {way:?}"), |tables| {
            tables.model.look_up(to) == Some(way)
        });
    }

    /// Until there is a policy, with a reason that has this in it.
    fn until_status(&self, policy: Policy, reason: &str) {
        self.until(&format!("{policy:?} because of {reason}"), |tables| {
            let fits = |status: &Status| {
                let reasons = &status.reasons;
                status.policy == policy
                    && (reason.is_empty() || reasons.iter().any(|one| one.contains(reason)))
            };
            tables.status.as_ref().is_some_and(fits)
        });
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        *self.stop.lock().unwrap() = true;
        if let Some(stream) = self.connection.lock().unwrap().take() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let _ = UnixStream::connect(&self.path);
        let _ = self.thread.take().unwrap().join();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers the requests of one connection.
fn serve(tables: &Mutex<Tables>, stream: UnixStream) {
    let mut to = stream.try_clone().unwrap();
    let mut from = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut tables = tables.lock().unwrap();
        if line.len() > LINE_MAX || line.last() != Some(&b'\n') {
            tables.failure = Some("a line is not one".to_owned());
            return;
        }
        let request = match Request::parse(&line) {
            Ok(request) => request,
            Err(error) => {
                tables.failure = Some(error.to_string());
                return;
            }
        };
        let outcome = match answer(&mut tables, &request) {
            Ok(result) => Outcome::Result(result),
            Err(refusal) => Outcome::Error(Failed::new(refusal, request.method)),
        };
        let answer = Answer { jsonrpc: Version::V2, id: Some(request.id), outcome };
        drop(tables);
        if to.write_all(&answer.line().unwrap()).is_err() {
            return;
        }
    }
}

fn answer(tables: &mut Tables, request: &Request<'_>) -> Result<Value, Refusal> {
    fn params<M: Method>(request: &Request<'_>) -> Result<M, Refusal> {
        request.params::<M>().map_err(|_| Refusal::BadParams)
    }
    fn value<R: serde::Serialize>(result: R) -> Result<Value, Refusal> {
        Ok(serde_json::to_value(result).unwrap())
    }
    if tables.hellos == 0 && request.method != Hello::NAME {
        return Err(Refusal::NoSession);
    }
    match request.method {
        Hello::NAME => {
            let hello: Hello = params(request)?;
            assert_eq!(hello.protocol, PROTOCOL);
            tables.hellos += 1;
            tables.model.withdraw();
            tables.status = None;
            value(Welcome {
                protocol: PROTOCOL,
                daemon: "model 1".to_owned(),
                vm: "edge".parse().unwrap(),
                lease_ms: hello.lease_ms.unwrap_or(3000),
                limits: tables.model.limits,
                ports: Vec::new(),
            })
        }
        Interfaces::NAME => value(tables.model.interfaces(params(request)?)?),
        NextHops::NAME => {
            tables.model.next_hops(params(request)?)?;
            value(Done {})
        }
        Routes::NAME => {
            if let Some(refusal) = tables.refuse.take() {
                return Err(refusal);
            }
            tables.model.routes(params(request)?)?;
            value(Done {})
        }
        Connections::NAME => {
            tables.model.connections(params(request)?)?;
            value(Done {})
        }
        ConnectionCounters::NAME => value(CountedConnections::default()),
        Status::NAME => {
            tables.status = Some(params(request)?);
            value(Done {})
        }
        Renew::NAME => {
            let lost = std::mem::take(&mut tables.lose);
            if lost {
                tables.model.withdraw();
            }
            let placed = Some(tables.model.placed());
            value(Lease { lease_ms: 3000, lost, placed })
        }
        Counters::NAME => value(tables.counted.clone()),
        // Two at a time.
        ListFunctions::NAME => {
            let ListFunctions { pf, after } = params(request)?;
            if pf.is_some_and(|mac| mac != function(0).mac) {
                return value(Functions::default());
            }
            let from = after.map_or(0, |last| last.vf.map_or(1, |vf| vf + 2));
            let functions = (from..5).take(2).map(function).collect();
            value(Functions { functions, more: from < 3 })
        }
        // VF 0 alone can be set up.
        SetFunction::NAME => {
            let SetFunction { pf, vf, change } = params(request)?;
            assert_eq!(pf, function(0).mac);
            let GuestSettings { vlan: Some(vlan), rate: Some(rate), mac: Some(mac), .. } = change
            else {
                return Err(Refusal::NotAllowed);
            };
            let qos = change.qos;
            let settings = FunctionSettings { vlan, rate, mac, qos, ..function(1).settings };
            if vf == 0 { value(settings) } else { Err(Refusal::UnknownFunction) }
        }
        SetFlows::NAME => {
            let set: SetFlows = params(request)?;
            assert_eq!(set.pf, function(0).mac);
            tables.rules.set(set)?;
            value(Done {})
        }
        ListFlows::NAME => value(tables.rules.list(params(request)?)),
        Withdraw::NAME => {
            tables.model.withdraw();
            tables.withdrawals += 1;
            value(Done {})
        }
        _ => Err(Refusal::UnknownMethod),
    }
}

/// A function of the VM: the PF, then four VFs.
fn function(n: u16) -> ChannelFunction {
    ChannelFunction {
        function: Function { pf: "edge-pf0".parse().unwrap(), vf: n.checked_sub(1) },
        network: "lan".parse().unwrap(),
        mac: Mac([2, 0, 0, 0, 9, n as u8]),
        carrier: n < 2,
        settings: FunctionSettings {
            mac: Mac([2, 0, 0, 0, 9, n as u8]),
            vlan: 0,
            qos: None,
            spoofchk: true,
            trust: false,
            rate: 0,
            state: LinkState::Auto,
        },
        sent: HopCount { packets: 3, bytes: 300 },
        received: HopCount::default(),
        dropped: 0,
    }
}

/// The agent, which is killed with this value.
struct Agent {
    child: Child,
    status: PathBuf,
}

impl Agent {
    fn new(router: &Netns, directory: &Path, channel: &Path) -> Self {
        let status = directory.join("status.sock");
        let child = Command::new("ip")
            .args(["netns", "exec", &router.name, env!("CARGO_BIN_EXE_hayate-agent"), "run"])
            .args(["--lease", "1s", "--log", "info", "--channel"])
            .arg(channel)
            .arg("--status-socket")
            .arg(&status)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, status }
    }

    fn status(&self, more: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_hayate-agent"))
            .args(["status", "--status-socket"])
            .arg(&self.status)
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// SIGTERM, and its exit status.
    fn terminate(&mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ifindex(router: &Netns, link: &str) -> u32 {
    let output = router.sh(&format!("cat /sys/class/net/{link}/ifindex"));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn via(interface: u32, last: u8) -> To {
    To::Via(vec![Hop { interface, mac: Mac([2, 0, 0, 0, 0, last]) }])
}

/// What a test needs: a router, the other ends of its links, a daemon, an agent.
struct Lab {
    agent: Agent,
    daemon: Daemon,
    router: Netns,
    far: Netns,
    directory: tempfile::TempDir,
    eth1: u32,
    eth2: u32,
}

impl Lab {
    fn new() -> Self {
        let far = Netns::new();
        let router = Netns::router(&far);
        let directory = tempfile::tempdir().unwrap();
        let channel = directory.path().join("channel.sock");
        let daemon = Daemon::new(&channel);
        let agent = Agent::new(&router, directory.path(), &channel);
        let (eth1, eth2) = (ifindex(&router, "eth1"), ifindex(&router, "eth2"));
        Self { agent, daemon, router, far, directory, eth1, eth2 }
    }

    fn neighbour(&self, link: &str, address: &str, last: u8) {
        let lladdr = format!("02:00:00:00:00:{last:02x}");
        self.router
            .ip(&format!("neigh replace {address} dev {link} lladdr {lladdr} nud permanent"));
    }
}

#[test]
fn what_the_kernel_routes_is_delegated_as_it_changes() {
    let lab = Lab::new();
    let Lab { agent, daemon, router, far, eth1, eth2, .. } = &lab;
    lab.neighbour("eth1", "10.1.1.5", 0x15);
    lab.neighbour("eth2", "2001:db8:2::5", 0x25);
    daemon.until_way("10.1.1.5", &via(*eth1, 0x15));
    daemon.until_way("2001:db8:2::5", &via(*eth2, 0x25));
    daemon.until_way("10.1.1.1", &To::Own);
    daemon.until_way("10.1.1.255", &To::Own);
    daemon.until_way("10.1.1.77", &To::Via(Vec::new()));
    daemon.until_way("2001:db8:1::1", &To::Own);
    assert_eq!(daemon.way("192.0.2.1"), None);
    daemon.until_status(Policy::Plain, "");

    // Routes: one gateway, several, another one.
    router.ip("route add 192.0.2.0/24 via 10.1.1.5");
    daemon.until_way("192.0.2.1", &via(*eth1, 0x15));
    router.ip("route add 198.51.100.0/24 nexthop via 10.1.1.5 nexthop via inet6 2001:db8:2::5 dev eth2 weight 2");
    let hop = |interface, last| Hop { interface, mac: Mac([2, 0, 0, 0, 0, last]) };
    let several = vec![hop(*eth1, 0x15), hop(*eth2, 0x25), hop(*eth2, 0x25)];
    daemon.until_way("198.51.100.1", &To::Via(several));
    router.ip("-4 route add 0.0.0.0/0 via inet6 2001:db8:2::5 dev eth2");
    daemon.until_way("203.0.113.1", &via(*eth2, 0x25));
    router.ip("route add blackhole 203.0.113.0/24");
    daemon.until_way("203.0.113.1", &To::Own);
    router.ip("-6 route add default via 2001:db8:2::5");
    daemon.until_way("2001:db8:ffff::1", &via(*eth2, 0x25));

    // A better metric, and back.
    lab.neighbour("eth2", "10.1.2.5", 0x26);
    router.ip("route add 192.0.2.0/25 via 10.1.1.5 metric 20");
    router.ip("route add 192.0.2.0/25 via 10.1.2.5 metric 10");
    daemon.until_way("192.0.2.1", &via(*eth2, 0x26));
    router.ip("route del 192.0.2.0/25 metric 10");
    daemon.until_way("192.0.2.1", &via(*eth1, 0x15));

    // A neighbour's new address changes next hops alone.
    lab.neighbour("eth1", "10.1.1.5", 0x16);
    daemon.until_way("192.0.2.1", &via(*eth1, 0x16));
    router.ip("neigh del 10.1.1.5 dev eth1");
    daemon.until_way("192.0.2.1", &To::Via(Vec::new()));
    daemon.until_way("10.1.1.5", &To::Via(Vec::new()));
    lab.neighbour("eth1", "10.1.1.5", 0x15);

    // Nexthop objects.
    router.ip("nexthop add id 7 via 10.1.1.5 dev eth1");
    router.ip("route add 198.18.0.0/15 nhid 7");
    daemon.until_way("198.18.0.1", &via(*eth1, 0x15));
    router.ip("nexthop replace id 7 via 10.1.2.5 dev eth2");
    daemon.until_way("198.18.0.1", &via(*eth2, 0x26));
    router.ip("nexthop del id 7");
    daemon.until_way("198.18.0.1", &via(*eth2, 0x25));

    // A link goes down with its routes, of which the kernel says nothing.
    router.ip("link set eth1 down");
    daemon.until_way("192.0.2.1", &via(*eth2, 0x25));
    daemon.until("eth1 gone", |tables| tables.model.interfaces.len() == 1);
    router.ip("link set eth1 up");
    daemon.until("eth1 back", |tables| tables.model.interfaces.len() == 2);
    // And when the other end loses the carrier.
    far.ip("link set eth2 down");
    daemon.until("eth2 gone", |tables| tables.model.interfaces.len() == 1);
    far.ip("link set eth2 up");
    daemon.until("eth2 back", |tables| tables.model.interfaces.len() == 2);

    let status = agent.status(&[]);
    for part in ["to model 1, as edge, lease 1000 ms", "plain", "eth1  port p"] {
        assert!(status.contains(part), "{status}");
    }
    let json: Value = serde_json::from_str(&agent.status(&["--json"])).unwrap();
    assert_eq!(json["policy"], "plain");
}

/// Gives `nft` a file.
fn nft(router: &Netns, rules: &str) {
    let mut nft = Command::new("ip")
        .args(["netns", "exec", &router.name, "nft", "-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // It wants a new line behind a block.
    let lines = rules.replace("} }", "}\n}").replace("} chain", "}\nchain");
    writeln!(nft.stdin.take().unwrap(), "{lines}").unwrap();
    assert!(nft.wait().unwrap().success(), "{rules}");
}

/// Rules that filter and translate by connection, as people write them, and what makes of them such
/// that each packet matters.
#[test]
fn rules_that_let_established_connections_pass_are_told_from_others() {
    let lab = Lab::new();
    let Lab { daemon, router, .. } = &lab;
    let filter = |rules: &str| {
        format!("table inet f {{ chain c {{ type filter hook forward priority 0; {rules}\n }} }}")
    };
    let accept = "ct state established,related accept;";
    let more = "counter packets 0 bytes 0 accept; policy drop;";
    let docs = include_str!("../../../docs/guest-channel.md");
    let shown = docs.split("```text\n").find(|block| block.starts_with("table ")).unwrap();
    let pass = [
        shown.split("```").next().unwrap().to_owned(),
        filter(&format!("policy drop; {accept} tcp dport 22 counter accept")),
        filter(&format!("ct state invalid drop; {accept} {more}")),
        filter(&format!("ct state new tcp dport 80 counter accept; {accept} {more}")),
        filter(&format!("tcp flags syn tcp option maxseg size set rt mtu; {accept} {more}")),
        filter(&format!("tcp flags & (fin|syn) == syn counter; {accept} {more}")),
        filter(&format!(
            "meta l4proto icmp counter; icmp type echo-request counter; {accept} {more}"
        )),
        filter(&format!("ip saddr 10.0.0.0/8 accept; iifname \"eth1\" accept; {accept} {more}")),
        filter("ct state invalid,new counter drop"),
        filter(&format!("ct state {{ established, related }} accept; {more}")),
        filter(&format!(
            "ct state != {{ established, related }} counter drop; {accept} policy drop;"
        )),
        filter("policy drop; ct state vmap { established : accept, related : accept, new : drop }"),
        filter("ct state vmap { invalid : drop, untracked : drop }"),
        "table inet f { chain c { type filter hook forward priority 0; policy drop; jump d; }
         chain d { ct state established goto e; tcp dport 1 drop; } chain e { accept; } }"
            .to_owned(),
        "table ip n { chain p { type nat hook postrouting priority 100; oifname \"eth2\" \
         counter masquerade; } }"
            .to_owned(),
        "table ip n { chain p { type nat hook prerouting priority -100; tcp dport 80 \
         dnat to 10.1.1.5; } }"
            .to_owned(),
    ];
    for rules in &pass {
        nft(router, rules);
        daemon.until_status(Policy::Stateful, "nf_tables");
        nft(router, "flush ruleset");
        daemon.until_status(Policy::Plain, "");
    }
    let refused = [
        (filter("tcp dport 80 drop"), "has rules"),
        (filter("accept"), "conntrack is not in use"),
        (filter("policy drop; ct state new accept"), "by policy"),
        (filter("policy drop; ct state { new, related } accept"), "by policy"),
        (filter("ct state vmap { new : accept, established : drop }"), "drop (rule 1 of c)"),
        (filter(&format!("tcp dport vmap {{ 80 : drop }}; {accept}")), "lookup (rule 1 of c)"),
        (filter(&format!("tcp dport {{ 80, 81 }} drop; {accept}")), "drop (rule 1 of c)"),
        (filter(&format!("counter; {accept}")), "counter (rule 1 of c)"),
        (filter(&format!("meta length > 1400 drop; {accept}")), "drop (rule 1 of c)"),
        (filter(&format!("ip saddr 10.1.1.5 drop; {accept}")), "drop (rule 1 of c)"),
        (filter(&format!("meta mark set 1; {accept}")), "meta (rule 1 of c)"),
        (filter(&format!("limit rate 1/second accept; {accept}")), "limit (rule 1 of c)"),
        (filter(&format!("tcp flags ack drop; {accept}")), "drop (rule 1 of c)"),
        // For UDP it is something else.
        (filter(&format!("@th,104,8 & 0x2 != 0 drop; {accept}")), "drop (rule 1 of c)"),
        (
            filter("meta l4proto udp ct state established accept; counter; ct state new drop"),
            "counter",
        ),
        (filter("ct state established log accept"), "log (rule 1 of c)"),
        (filter("ct state established reject"), "reject"),
        (filter(&format!("ct state new ct event set new; {accept}")), "events of connections"),
        (
            // Before conntrack has looked, nothing is established.
            "table ip r { chain p { type filter hook prerouting priority -300; \
             ct state established accept; tcp dport 80 notrack; } }"
                .to_owned(),
            "notrack (rule 2 of p)",
        ),
        (
            "table inet f { chain c { type filter hook postrouting priority 0; jump d; } \
             chain d { ct state established ip ttl set 64; } }"
                .to_owned(),
            "payload (rule 1 of d)",
        ),
        (
            "table ip f { flags dormant; chain c { type filter hook forward priority 0; \
             ct state established accept; } }"
                .to_owned(),
            "dormant",
        ),
    ];
    for (rules, said) in &refused {
        nft(router, rules);
        daemon.until_status(Policy::Nothing, said);
        nft(router, "flush ruleset");
        daemon.until_status(Policy::Plain, "");
    }
}

#[test]
fn what_is_not_plain_is_not_delegated() {
    let lab = Lab::new();
    let Lab { agent, daemon, router, .. } = &lab;
    // What is done, what is said of it, what undoes it.
    router.sh("nft add table ip t");
    let chain = "nft add chain ip t f \"{ type filter hook forward priority 0; }\"";
    router.sh(chain);
    daemon.until_status(Policy::Plain, "");
    let cases = [
        (
            "nft add rule ip t f counter",
            "nf_tables chain ip t f has rules",
            "nft flush chain ip t f",
        ),
        (
            "nft add chain ip t f \"{ policy drop; }\"",
            "nf_tables chain ip t f drops by policy",
            "nft delete table ip t",
        ),
        (
            "nft add table netdev n; \
             nft add chain netdev n i \"{ type filter hook ingress device eth1 priority 0; }\"; \
             nft add rule netdev n i accept",
            "nf_tables chain netdev n i",
            "nft delete table netdev n",
        ),
        ("ip rule add fwmark 1 table 100", "policy rule 32765 of IPv4", "ip rule del fwmark 1"),
        (
            "ip -6 rule del table main",
            "of IPv6 for table main",
            "ip -6 rule add table main pref 32766",
        ),
        (
            "ip -6 route add 2001:db8:9::/64 from 2001:db8:8::/64 dev eth1",
            "certain sources",
            "ip -6 route del 2001:db8:9::/64 from 2001:db8:8::/64 dev eth1",
        ),
        (
            "ip route add 192.0.2.0/24 via 10.1.1.5 table default",
            "table default",
            "ip route flush table default",
        ),
        (
            "tc qdisc add dev eth1 root tbf rate 1mbit burst 10k latency 50ms",
            "qdisc tbf",
            "tc qdisc del dev eth1 root",
        ),
        (
            "tc qdisc add dev eth1 clsact; tc filter add dev eth1 ingress u32 match u32 0 0",
            "tc on eth1: filters",
            "tc qdisc del dev eth1 clsact",
        ),
        (
            "ip xfrm policy add src 10.9.0.0/16 dst 10.8.0.0/16 dir fwd",
            "IPsec",
            "ip xfrm policy flush",
        ),
        (
            "sysctl -qw net.ipv4.ip_forward_use_pmtu=1",
            "pmtu",
            "sysctl -qw net.ipv4.ip_forward_use_pmtu=0",
        ),
    ];
    for (done, said, undone) in cases {
        router.sh(done);
        daemon.until_status(Policy::Nothing, said);
        assert!(daemon.tables().model.prefixes.is_empty(), "{done}");
        router.sh(undone);
        daemon.until_status(Policy::Plain, "");
        daemon.until_way("10.1.1.1", &To::Own);
    }
    // Forwarding, for each version of IP.
    router.sh("sysctl -qw net.ipv4.ip_forward=0");
    daemon.until("no IPv4", |tables| {
        !tables.model.prefixes.is_empty()
            && tables.model.prefixes.keys().all(|prefix| prefix.address().is_ipv6())
    });
    router.sh("sysctl -qw net.ipv6.conf.all.forwarding=0");
    daemon.until_status(Policy::Nothing, "forwarding is off");
    assert!(agent.status(&[]).contains("forwarding is off"));
    router.sh("sysctl -qw net.ipv4.ip_forward=1");
    daemon.until_status(Policy::Plain, "");
    // An interface that is taken by a bridge.
    daemon.until("two interfaces", |tables| tables.model.interfaces.len() == 2);
    router.ip("link add br0 type bridge");
    router.ip("link set eth2 master br0");
    daemon.until("eth2 in a bridge", |tables| tables.model.interfaces.len() == 1);
    assert!(agent.status(&[]).contains("belongs to a bridge"));
    // The older iptables; its tables stay.
    router.sh("iptables-legacy -A FORWARD -j ACCEPT");
    daemon.until_status(Policy::Nothing, "iptables-legacy has a table filter");
}

#[test]
fn connections_end_and_begin_again() {
    let mut lab = Lab::new();
    lab.neighbour("eth1", "10.1.1.5", 0x15);
    let way = via(lab.eth1, 0x15);
    lab.daemon.until_way("10.1.1.5", &way);

    // The daemon has lost everything.
    lab.daemon.tables().lose = true;
    lab.daemon.until("a second session", |tables| tables.hellos == 2);
    lab.daemon.until_way("10.1.1.5", &way);

    // It refuses what the plan did not foresee: all is withdrawn, and told again.
    lab.daemon.tables().refuse = Some(Refusal::Host);
    lab.router.ip("route add 192.0.2.0/24 via 10.1.1.5");
    lab.daemon.until("a third session", |tables| tables.hellos == 3 && tables.withdrawals == 1);
    lab.daemon.until_way("192.0.2.1", &way);

    // It has no port for an interface, and then it has.
    lab.daemon.tables().model.refused.insert(lab.eth1);
    lab.daemon.until_way("192.0.2.1", &To::Via(Vec::new()));
    assert!(lab.agent.status(&[]).contains("refused: not-your-port"));
    lab.daemon.tables().model.refused.clear();
    lab.daemon.until_way("192.0.2.1", &way);

    // It is restarted.
    let channel = lab.directory.path().join("channel.sock");
    let gone = Daemon::new(&lab.directory.path().join("other.sock"));
    drop(std::mem::replace(&mut lab.daemon, gone));
    lab.router.ip("route del 192.0.2.0/24");
    let why = || lab.agent.status(&[]);
    let end = Instant::now() + Duration::from_secs(60);
    while !why().contains("no: ") {
        assert!(Instant::now() < end, "{}", why());
        thread::sleep(Duration::from_millis(20));
    }
    lab.daemon = Daemon::new(&channel);
    lab.daemon.until_way("10.1.1.5", &way);
    assert_eq!(lab.daemon.way("192.0.2.1"), None);

    // The agent ends, and takes everything back first.
    assert!(lab.agent.terminate().success());
    assert_eq!(lab.daemon.tables().withdrawals, 1);
    assert!(lab.daemon.tables().model.prefixes.is_empty());
    assert!(!lab.agent.status.exists());
}

#[test]
fn neighbours_that_are_used_are_asked_for() {
    let lab = Lab::new();
    let Lab { daemon, router, far, eth1, .. } = &lab;
    // A neighbour that answers: the other end of the link.
    far.ip("address add 10.1.1.9/24 dev eth1");
    let lladdr = far.sh("cat /sys/class/net/eth1/address").stdout;
    let lladdr = String::from_utf8(lladdr).unwrap().trim().to_owned();
    router.sh("sysctl -qw net.ipv4.neigh.eth1.delay_first_probe_time=1");
    router.ip(&format!("neigh replace 10.1.1.9 dev eth1 lladdr {lladdr} nud stale"));
    let way = To::Via(vec![Hop { interface: *eth1, mac: lladdr.parse().unwrap() }]);
    daemon.until_way("10.1.1.9", &way);
    let shown = || {
        let output = router.sh("ip neigh show 10.1.1.9 dev eth1");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(shown().contains("STALE"), "{}", shown());

    let address: IpAddr = "10.1.1.9".parse().unwrap();
    let prefix = api::channel::Prefix::new(address, 32).unwrap();
    let id = daemon.tables().model.prefixes[&prefix];
    let hops = |packets| vec![api::channel::HopCount { packets, bytes: 64 * packets }];
    let nexthops = vec![api::channel::CountedNextHop { id, hops: hops(1) }];
    daemon.tables().counted = Counted { nexthops, more: false };
    let end = Instant::now() + Duration::from_secs(60);
    while !shown().contains("REACHABLE") {
        assert!(Instant::now() < end, "{}", shown());
        thread::sleep(Duration::from_millis(50));
    }

    // One that was set for good stays so, however much it is used; another one shows that it was seen.
    router.ip(&format!("neigh replace 10.1.1.9 dev eth1 lladdr {lladdr} nud permanent"));
    far.ip("address add 10.1.1.8/24 dev eth1");
    router.ip(&format!("neigh replace 10.1.1.8 dev eth1 lladdr {lladdr} nud stale"));
    daemon.until_way("10.1.1.8", &way);
    let other = || String::from_utf8(router.sh("ip neigh show 10.1.1.8").stdout).unwrap();
    let prefix = api::channel::Prefix::new("10.1.1.8".parse().unwrap(), 32).unwrap();
    let second = daemon.tables().model.prefixes[&prefix];
    let both = BTreeSet::from([id, second]).into_iter();
    let nexthops = both.map(|id| api::channel::CountedNextHop { id, hops: hops(2) }).collect();
    daemon.tables().counted = Counted { nexthops, more: false };
    while !other().contains("REACHABLE") {
        assert!(Instant::now() < end, "{}", other());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(shown().contains("PERMANENT"), "{}", shown());
}

#[test]
fn functions_are_asked_of_the_daemon() {
    let router = Netns::new();
    let directory = tempfile::tempdir().unwrap();
    let channel = directory.path().join("channel.sock");
    router.ip("link add pf0 address 02:00:00:00:09:00 type veth peer name other");
    let agent = Agent::new(&router, directory.path(), &channel);
    let run = |what: &str, words: &[&str]| {
        let output = Command::new("ip")
            .args(["netns", "exec", &router.name, env!("CARGO_BIN_EXE_hayate-agent"), "vf", what])
            .args(words)
            .arg("--status-socket")
            .arg(&agent.status)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let vf = |words: &[&str]| run("show", words);
    let end = Instant::now() + Duration::from_secs(60);
    while !agent.status.exists() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(5));
    }
    let (status, text) = vf(&[]);
    assert_eq!(status, 1);
    assert!(text.contains("not connected to a daemon"), "{text}");
    let daemon = Daemon::new(&channel);
    daemon.until("hello", |tables| tables.hellos > 0 && tables.status.is_some());
    for words in [&["--json"][..], &["pf0", "--json"]] {
        let (status, text) = vf(words);
        assert_eq!(status, 0, "{text}");
        let told: Vec<ChannelFunction> = serde_json::from_str(&text).unwrap();
        assert_eq!(told, (0..5).map(function).collect::<Vec<_>>());
    }
    let (status, text) = vf(&["pf0"]);
    assert_eq!((status, text.lines().count()), (0, 6));
    assert!(text.lines().nth(1).unwrap().starts_with("edge-pf0  -   pf0 "), "{text}");
    let set = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        run("set", &words)
    };
    let (status, text) = set("pf0 0 vlan 10 qos 3 mac 02:00:00:00:00:77 max_tx_rate 1000 --json");
    let told: FunctionSettings = serde_json::from_str(&text).unwrap();
    assert_eq!((status, told.vlan, told.qos, told.rate), (0, 10, Some(3), 1000));
    assert_eq!(told.mac, Mac([2, 0, 0, 0, 0, 0x77]));
    assert_eq!(set("pf0 0 vlan 0 mac 02:00:00:00:00:77 rate 0"), (0, String::new()));
    let (status, text) = set("pf0 1 vlan 0 mac 02:00:00:00:00:77 rate 0");
    assert_eq!(status, 1, "{text}");
    let (status, text) = set("pf0 0 spoofchk off trust on state auto");
    assert_eq!(status, 1, "{text}");
    assert!(set("none 0 vlan 1").1.contains("no interface"));
    for (words, why) in [
        ("pf0 0 vlan", "2 values"),
        ("pf0 0 vlan 1 qos", "to what"),
        ("pf0 0", "WHAT"),
        ("pf0 0 vlan 4095", "4095"),
        ("pf0 0 qos 8", "\"8\""),
        ("pf0 0 vlan 1 vlan 2", "only once"),
        ("pf0 0 spoofchk yes", "yes"),
        ("pf0 0 mac 02:00", "02:00"),
        ("pf0 0 min_tx_rate 5", "least rate"),
        ("pf0 0 colour red", "colour"),
        ("pf0 x vlan 1", "'x'"),
    ] {
        let (status, text) = set(words);
        assert_eq!(status, 2, "{words}: {text}");
        assert!(text.contains(why), "{words}: {text}");
    }
    let (status, text) = vf(&["other"]);
    assert_eq!(status, 1);
    assert!(text.contains("other is no PF"), "{text}");
    assert!(vf(&["none"]).1.contains("no interface"));
}

#[test]
fn flow_rules_are_set_by_the_agent() {
    let router = Netns::new();
    let directory = tempfile::tempdir().unwrap();
    let channel = directory.path().join("channel.sock");
    router.ip("link add pf0 address 02:00:00:00:09:00 type veth peer name other");
    let agent = Agent::new(&router, directory.path(), &channel);
    let daemon = Daemon::new(&channel);
    daemon.until("hello", |tables| tables.hellos > 0 && tables.status.is_some());
    let file = directory.path().join("rules");
    let flow = |words: &str| {
        let output = Command::new("ip")
            .args(["netns", "exec", &router.name, env!("CARGO_BIN_EXE_hayate-agent"), "flow"])
            .args(words.split(' '))
            .arg("--status-socket")
            .arg(&agent.status)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let ids = |daemon: &Daemon| daemon.tables().rules.rules.keys().copied().collect::<Vec<_>>();
    assert_eq!(flow("add pf0 vf0 to proto tcp dst-port 80 accept"), (0, "1\n".into()));
    assert_eq!(flow("add pf0 vf0 to id 9 drop"), (0, "9\n".into()));
    assert_eq!(flow("add pf0 vf1 from mirror pf drop"), (0, "10\n".into()));
    let (status, text) = flow("list pf0");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!((status, lines.len()), (0, 4), "{text}");
    assert_eq!(lines[1], "3    180    5s  vf0 to id 1 priority 0 proto tcp dst-port 80 accept");
    assert_eq!(flow("del pf0 1 9"), (0, String::new()));
    assert_eq!(ids(&daemon), [10]);
    // Many of them are one change, and a list of many pages.
    let many: String =
        (1..1000).map(|port| format!("vf0 to proto tcp dst-port {port} drop\n")).collect();
    std::fs::write(&file, many).unwrap();
    let before = daemon.tables().rules.changes;
    let (status, text) = flow(&format!("add pf0 -f {}", file.display()));
    assert_eq!((status, text.lines().count(), text.lines().next()), (0, 999, Some("11")));
    let (changes, requests) = {
        let rules = &daemon.tables().rules;
        (rules.changes - before, rules.requests)
    };
    assert!(changes == 1 && requests > 6, "{changes} of {requests}");
    let listed: Value = serde_json::from_str(&flow("list pf0 --json").1).unwrap();
    assert_eq!(listed["rules"].as_array().unwrap().len(), 1000);
    std::fs::write(
        &file,
        "[{\"id\": 5, \"on\": \"vf0\", \"direction\": \"to\", \"action\": \"drop\"}]",
    )
    .unwrap();
    assert_eq!(flow(&format!("replace pf0 {} --on vf1", file.display())), (0, String::new()));
    assert_eq!(ids(&daemon), [5]);
    for (words, status, why) in [
        ("add pf0 vf0 to", 2, "accept, drop or forward"),
        ("add pf0 vf0 to port 80 drop", 2, "\"port\""),
        ("add pf0 vf0 to id 5 drop", 1, "flow.set"),
        ("default pf0 vf0 to pass", 2, "accept"),
        ("del pf0", 2, "ID"),
        ("del pf0 77", 1, "flow.set"),
        ("del pf0 --on eth0", 2, "no function"),
        ("add none vf0 to drop", 1, "no interface"),
        ("add pf0 -f /nonexistent", 1, "No such file"),
    ] {
        let (code, text) = flow(words);
        assert_eq!(code, status, "{words}: {text}");
        assert!(text.contains(why), "{words}: {text}");
    }
    assert_eq!(ids(&daemon), [5]);
}

#[test]
fn an_agent_that_cannot_begin_says_why() {
    let far = Netns::new();
    let directory = tempfile::tempdir().unwrap();
    let channel = directory.path().join("channel.sock");
    let first = Agent::new(&far, directory.path(), &channel);
    let end = Instant::now() + Duration::from_secs(60);
    while !first.status.exists() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(5));
    }
    let mut second = Agent::new(&far, directory.path(), &channel);
    assert_eq!(second.child.wait().unwrap().code(), Some(1));
    assert!(first.status(&[]).contains("No such file"), "{}", first.status(&[]));
    drop(first);
    let output = Command::new(env!("CARGO_BIN_EXE_hayate-agent"))
        .args(["status", "--status-socket", "/nonexistent"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
}
