//! Proves that TAP ports carry real TCP/IP between network namespaces: IPv4, IPv6, VLANs, several
//! queues, jumbo frames, offloads switched off one by one, hashes of what arrived; that networks
//! are isolated; that what was set up survives the daemon's death; and that a quiet daemon uses
//! next to no CPU. No guests: it takes a minute.

use std::process::ExitCode;
use std::time::Duration;

use api::PortState;
use e2e::hayate::{Balance, Hayate};
use e2e::process::pause;
use e2e::suite::{Case, case, main as run};
use e2e::traffic::{Host, Place, datagrams, iperf, must_not_ping, must_ping, transfer};
use e2e::{Result, cpu, ensure};

/// The daemon, and how many names were used.
struct Lab {
    hayate: Hayate,
    next: u32,
}

/// Two namespaces on one network.
struct Pair {
    network: String,
    a: Place,
    b: Place,
    /// Interfaces and ports.
    names: [String; 2],
}

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const A6: &str = "fd00::1";
const B6: &str = "fd00::2";

impl Lab {
    fn new() -> Result<Self> {
        Ok(Self { hayate: Hayate::start(&[])?, next: 0 })
    }

    fn name(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next)
    }

    fn network(&mut self) -> Result<String> {
        let name = self.name("net");
        self.hayate.network(&name)?;
        Ok(name)
    }

    /// A namespace with a TAP port; its address ends with `n`.
    fn place(&mut self, network: &str, n: u8, options: &str) -> Result<(Place, String)> {
        let place = Place::new()?;
        let name = self.name("tap");
        self.hayate.tap(&name, network, place.netns.name(), options)?;
        up(&place, &name, n)?;
        Ok((place, name))
    }

    fn pair(&mut self, options: &str) -> Result<Pair> {
        let network = self.network()?;
        let (a, na) = self.place(&network, 1, options)?;
        let (b, nb) = self.place(&network, 2, options)?;
        Ok(Pair { network, a, b, names: [na, nb] })
    }

    /// Checks that no frame got lost without a reason, then takes the pair down by command.
    fn close(&self, p: &Pair) -> Result<Balance> {
        let balance = self.hayate.conserved(&p.network)?;
        self.remove(p)?;
        Ok(balance)
    }

    fn remove(&self, p: &Pair) -> Result<()> {
        for name in &p.names {
            self.hayate.cli(&format!("port del {name}"))?;
        }
        for (place, name) in [(&p.a, &p.names[0]), (&p.b, &p.names[1])] {
            let left = place.netns.ip("-br link")?;
            ensure!(!left.contains(name.as_str()), "port del {name} left its interface: {left}");
        }
        self.hayate.cli(&format!("network del {}", p.network)).map(drop)
    }
}

fn up(place: &Place, ifname: &str, n: u8) -> Result<()> {
    place.netns.ip(&format!("addr add 10.0.0.{n}/24 dev {ifname}"))?;
    place.netns.ip(&format!("addr add fd00::{n}/64 dev {ifname} nodad"))?;
    place.netns.ip(&format!("link set {ifname} up")).map(drop)
}

fn shown(b: &Balance) -> String {
    format!("in {} + copies {} = out {} + drops {}", b.entered, b.copies, b.left, b.dropped)
}

fn mbit(bits: f64) -> String {
    format!("{:.0} Mbit/s", bits / 1e6)
}

fn ping(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    let v4 = must_ping(&mut p.a, B, 10, "")?;
    let v6 = must_ping(&mut p.b, A6, 10, "")?;
    let ports = lab.hayate.ports()?;
    for name in &p.names {
        let port = ports.iter().find(|x| x.name.as_str() == name);
        ensure!(port.is_some_and(|x| x.state == PortState::Running), "{name}: not running");
    }
    let b = lab.close(&p)?;
    Ok(format!("{:.3} ms IPv4, {:.3} ms IPv6; {}", v4.rtt_ms[1], v6.rtt_ms[1], shown(&b)))
}

fn tcp_both_ways(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    let there = iperf(&mut p.a, &mut p.b, B, 2, "")?;
    let back = iperf(&mut p.a, &mut p.b, B, 2, "-R")?;
    // Both ends can take a frame of 64 KiB: nothing may be cut on the way.
    let ports = lab.hayate.ports()?;
    let of = |n: &String| ports.iter().find(|x| x.name.as_str() == n);
    for port in p.names.iter().filter_map(of) {
        ensure!(port.to_port.gso_frames > 0, "{}: no GSO frame passed", port.name);
        ensure!(port.to_port.segmented == 0, "{}: GSO frames were segmented", port.name);
    }
    let b = lab.close(&p)?;
    Ok(format!("{} and {} back; {}", mbit(there.received), mbit(back.received), shown(&b)))
}

fn udp_both_ways(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    let there = iperf(&mut p.a, &mut p.b, B, 2, "-u -b 200M -l 1400")?;
    let back = iperf(&mut p.a, &mut p.b, B, 2, "-u -b 200M -l 1400 -R")?;
    let b = lab.close(&p)?;
    Ok(format!(
        "{} ({:.1} % lost) and {} back ({:.1} % lost); {}",
        mbit(there.received),
        there.lost_percent,
        mbit(back.received),
        back.lost_percent,
        shown(&b)
    ))
}

fn file_200_mb(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    transfer(&mut p.a, &mut p.b, B, 200)?;
    transfer(&mut p.b, &mut p.a, A6, 200)?;
    let b = lab.close(&p)?;
    Ok(format!("SHA-256 agrees over IPv4 and back over IPv6; {}", shown(&b)))
}

fn datagrams_intact(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    for (size, segment) in [(18, 0), (1472, 0), (8000, 0), (0, 1000), (0, 1472)] {
        datagrams(&mut p.a, &mut p.b, B, 256, size, segment)?;
        // 48 bytes of IPv6 and UDP header leave 1452.
        datagrams(&mut p.b, &mut p.a, A6, 256, size.min(8000), segment.min(1452))?;
    }
    let b = lab.close(&p)?;
    Ok(format!("18 to 8000 bytes, whole, in fragments and with UDP segmentation; {}", shown(&b)))
}

/// What an end can no longer do, the switch must do for it or pass on finished.
fn offloads_off(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    let mut done = Vec::new();
    for off in
        ["tso off", "tx off", "gso off", "gro off", "rx off", "tx off rx off gso off gro off"]
    {
        for end in 0..2 {
            let name = p.names[end].clone();
            let place = if end == 0 { &mut p.a } else { &mut p.b };
            // Not every kernel lets every one of them be switched.
            let (status, _) =
                place.try_sh(&format!("ethtool -K {name} {off}"), Duration::from_secs(5))?;
            transfer(&mut p.a, &mut p.b, B, 8)?;
            transfer(&mut p.b, &mut p.a, A6, 8)?;
            datagrams(&mut p.a, &mut p.b, B, 64, 0, 1000)?;
            if status == 0 && end == 0 {
                done.push(off);
            }
            let place = if end == 0 { &mut p.a } else { &mut p.b };
            place
                .sh(&format!("ethtool -K {name} tx on rx on tso on gso on gro on 2>&1 || true"))?;
        }
    }
    ensure!(done.len() >= 4, "only {done:?} could be switched off");
    let b = lab.close(&p)?;
    Ok(format!("{}, on either side; {}", done.join(", "), shown(&b)))
}

fn vlans(lab: &mut Lab) -> Result<String> {
    let net = lab.network()?;
    let (mut a10, na) = lab.place(&net, 1, "--vlan 10")?;
    let (mut b10, nb) = lab.place(&net, 2, "--vlan 10")?;
    let (mut c20, nc) = lab.place(&net, 3, "--vlan 20")?;
    let (mut trunk, nt) = lab.place(&net, 4, "--trunk 10,20")?;
    let (mut other, no) = lab.place(&net, 5, "--trunk 30")?;
    // The capture sees what leaves the trunk port: broadcast ARP requests of both VLANs, tagged.
    let capture = |place: &mut Place, name: &str| -> Result<_> {
        let log = place.scratch().join("capture").display().to_string();
        // Unbuffered, or it would be written at the end only.
        let c = format!("tcpdump -Z root -i {name} -U -l -e -nn arp");
        let p = place.background(&c, &log)?;
        place.sh(&format!(
            "for i in $(seq 100); do grep -q listening {log} && exit 0; sleep 0.05; done; cat {log}; exit 1"
        ))?;
        Ok((p, log))
    };
    let (on_trunk, trunk_log) = capture(&mut trunk, &nt)?;
    let (on_other, other_log) = capture(&mut other, &no)?;
    must_ping(&mut a10, B, 3, "")?;
    must_not_ping(&mut a10, "10.0.0.3")?;
    must_not_ping(&mut c20, B)?;
    must_not_ping(&mut a10, "10.0.0.4")?;
    must_ping(&mut b10, A, 3, "")?;
    pause(Duration::from_millis(300))?;
    let seen = trunk.sh(&format!("cat {trunk_log}"))?;
    ensure!(seen.contains("vlan 10,"), "no tag of VLAN 10 on the trunk:\n{seen}");
    ensure!(seen.contains("vlan 20,"), "no tag of VLAN 20 on the trunk:\n{seen}");
    let untagged = seen.lines().any(|l| l.contains("ARP") && !l.contains("vlan "));
    ensure!(!untagged, "untagged frames on the trunk:\n{seen}");
    let seen = other.sh(&format!("cat {other_log}"))?;
    ensure!(!seen.contains("ARP"), "a trunk of VLAN 30 got frames of others:\n{seen}");
    drop((on_trunk, on_other));
    let b = lab.hayate.conserved(&net)?;
    for n in [na, nb, nc, nt, no] {
        lab.hayate.cli(&format!("port del {n}"))?;
    }
    Ok(format!("10 and 20 apart, trunk tagged, other trunk silent; {}", shown(&b)))
}

fn several_queues(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("--queues 4")?;
    let there = iperf(&mut p.a, &mut p.b, B, 2, "-P 8")?;
    transfer(&mut p.a, &mut p.b, B6, 50)?;
    let port = lab.hayate.port(&p.names[0])?;
    let used = port.queues.iter().filter(|q| q.dir == "tx" && q.frames > 0).count();
    ensure!(used > 1, "8 connections used {used} queue(s) of 4: {:?}", port.queues);
    let b = lab.close(&p)?;
    Ok(format!("{} over {used} queues; {}", mbit(there.received), shown(&b)))
}

fn mtu_9000(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("--mtu 9000")?;
    let link = p.a.netns.ip(&format!("link show {}", p.names[0]))?;
    ensure!(link.contains("mtu 9000"), "--mtu 9000 did not reach the interface: {link}");
    must_ping(&mut p.a, B, 5, "-s 8972 -M do")?;
    must_ping(&mut p.b, A6, 5, "-s 8952 -M do")?;
    transfer(&mut p.a, &mut p.b, B, 20)?;
    datagrams(&mut p.a, &mut p.b, B, 64, 8972, 0)?;
    let b = lab.close(&p)?;
    Ok(shown(&b))
}

fn networks_are_isolated(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    // Same addresses, another network: an answer could only come from across.
    let other = lab.network()?;
    let (mut c, nc) = lab.place(&other, 3, "")?;
    let log = c.scratch().join("capture").display().to_string();
    let capture = c.background(&format!("tcpdump -Z root -i {nc} -U -l -nn arp or icmp"), &log)?;
    must_ping(&mut p.a, B, 3, "")?;
    must_not_ping(&mut p.a, "10.0.0.3")?;
    must_not_ping(&mut c, A)?;
    let seen = c.sh(&format!("cat {log}"))?;
    drop(capture);
    let foreign =
        seen.lines().any(|l| l.contains(&format!("tell {A}")) || l.contains(&format!("tell {B}")));
    ensure!(!foreign, "frames crossed from one network to another:\n{seen}");
    lab.hayate.conserved(&other)?;
    lab.hayate.cli(&format!("port del {nc}"))?;
    let b = lab.close(&p)?;
    Ok(shown(&b))
}

/// Broadcasts to several ports: copies and drops still add up.
fn floods_add_up(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    let (mut c, nc) = lab.place(&p.network.clone(), 3, "")?;
    let (d, nd) = lab.place(&p.network.clone(), 4, "")?;
    for place in [&p.a, &p.b, &c, &d] {
        place.netns.sh("sysctl -qw net.ipv4.icmp_echo_ignore_broadcasts=0")?;
    }
    must_ping(&mut p.a, B, 2, "")?;
    p.a.sh("ping -b -c 20 -i 0.05 -W 1 10.0.0.255 >/dev/null 2>&1 || true")?;
    // Nobody has this address: its request goes to everyone, again and again.
    must_not_ping(&mut c, "10.0.0.77")?;
    let b = lab.hayate.conserved(&p.network)?;
    ensure!(b.copies >= 40, "20 broadcasts to three others made {} further copies", b.copies);
    lab.hayate.cli(&format!("port del {nc}"))?;
    lab.hayate.cli(&format!("port del {nd}"))?;
    lab.remove(&p)?;
    Ok(shown(&b))
}

fn port_removed_under_load(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    let (mut c, nc) = lab.place(&p.network.clone(), 3, "")?;
    let log = c.scratch().join("load").display().to_string();
    must_ping(&mut c, A, 1, "")?;
    // Its TCP goes on until it finds the interface gone.
    let server = p.a.background("iperf3 -s -1", &log)?;
    e2e::traffic::wait_listening(&mut p.a, 5201)?;
    let client = c.background("iperf3 -c 10.0.0.1 -t 20", &log)?;
    pause(Duration::from_millis(700))?;
    lab.hayate.cli(&format!("port del {nc}"))?;
    transfer(&mut p.b, &mut p.a, A, 50)?;
    must_ping(&mut p.a, B, 5, "")?;
    drop((client, server));
    lab.hayate.check()?;
    lab.remove(&p)?;
    Ok("the other two went on".into())
}

fn daemon_killed_and_restarted(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("")?;
    must_ping(&mut p.a, B, 2, "")?;
    lab.hayate.kill9();
    lab.hayate.launch()?;
    for (place, name, n) in [(&p.a, &p.names[0], 1), (&p.b, &p.names[1], 2)] {
        lab.hayate.wait_state(name, PortState::Running)?;
        // The interface went away with the daemon and is a new one without addresses.
        up(place, name, n)?;
    }
    must_ping(&mut p.a, B, 5, "")?;
    transfer(&mut p.a, &mut p.b, B, 20)?;
    let b = lab.close(&p)?;
    Ok(format!("networks and ports came back; {}", shown(&b)))
}

fn quiet_daemon_sleeps(lab: &mut Lab) -> Result<String> {
    let mut p = lab.pair("--queues 2")?;
    must_ping(&mut p.a, B, 2, "")?;
    pause(Duration::from_secs(1))?;
    let percent = cpu::percent_over(lab.hayate.pid()?, Duration::from_secs(3))?;
    ensure!(percent < 3.0, "a quiet daemon used {percent:.2} % of a core over 3 s");
    lab.close(&p)?;
    Ok(format!("{percent:.2} % of a core over 3 s"))
}

fn main() -> ExitCode {
    run(|suite| {
        let cases: Vec<Case<Lab>> = vec![
            case("ping", ping),
            case("tcp_both_ways_unsegmented", tcp_both_ways),
            case("udp_both_ways", udp_both_ways),
            case("file_of_200_mb", file_200_mb),
            case("datagrams_intact", datagrams_intact),
            case("offloads_switched_off", offloads_off),
            case("vlans", vlans),
            case("several_queues", several_queues),
            case("mtu_9000", mtu_9000),
            case("networks_are_isolated", networks_are_isolated),
            case("floods_add_up", floods_add_up),
            case("port_removed_under_load", port_removed_under_load),
            case("daemon_killed_and_restarted", daemon_killed_and_restarted),
            case("quiet_daemon_sleeps", quiet_daemon_sleeps),
        ];
        suite.group("tap", Lab::new, cases, |lab| {
            lab.hayate.stop()?;
            Ok("ended by SIGTERM with status 0, no panic in its log".into())
        });
    })
}
