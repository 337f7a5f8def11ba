//! Two guests, every kind of ring and network.

use std::time::Duration;

use e2e::guest::Nic;
use e2e::process::pause;
use e2e::suite::{Case, Suite, case};
use e2e::traffic::{Host, iperf, must_not_ping, must_ping, transfer};
use e2e::{Result, cpu, ensure};

use super::{Lab, Link, ip, ip6};

/// The links, by index.
const LINKS: [(&str, Link); 5] = [
    ("split", Link::new("", "")),
    ("packed", Link::new("packed=on", "packed=on")),
    ("split_to_packed_two_queues", Link { port: "", props: ["", "packed=on"], queues: 2 }),
    ("two_queues", Link { port: "", props: ["", ""], queues: 2 }),
    ("mtu_9000", Link { port: "--mtu 9000", props: ["host_mtu=9000", "host_mtu=9000"], queues: 1 }),
];
/// Devices after those of [`LINKS`], on network `vlans`: `a5` access 10, `b5` access 20, `b6`
/// access 10, `a6` trunk.
const VLAN: usize = LINKS.len();

fn boot() -> Result<Lab> {
    let links = LINKS.map(|(_, l)| l);
    let mut lab = Lab::boot(&links, &|hayate| {
        hayate.network("vlans")?;
        let nic = |name: &str, n: u8, options: &str| -> Result<Nic> {
            Ok(Nic::new(&hayate.vhost(name, "vlans", options)?, n))
        };
        let a = vec![nic("a5", 0xa5, "--vlan 10")?, nic("a6", 0xa6, "--trunk 10,20")?];
        let b = vec![nic("b5", 0xb5, "--vlan 20")?, nic("b6", 0xb6, "--vlan 10")?];
        Ok([a, b])
    })?;
    for (i, (_, link)) in LINKS.iter().enumerate().filter(|(_, (_, l))| l.queues > 1) {
        for g in [&mut lab.a, &mut lab.b] {
            g.sh(&format!("ethtool -L eth{i} combined {}", link.queues))?;
        }
    }
    Ok(lab)
}

/// Every frame of a network is accounted for; those dropped so far, by reason.
fn conserved(lab: &Lab, network: &str) -> Result<String> {
    lab.hayate.conserved(network)?;
    Ok(format!("drops so far: {}", lab.hayate.drops(network)?))
}

fn ping(lab: &mut Lab, i: usize) -> Result<String> {
    let v4 = must_ping(&mut lab.a, &ip(i, 2), 10, "")?;
    must_ping(&mut lab.b, &ip6(i, 1), 5, "")?;
    Ok(format!("round trip {:.2} ms", v4.rtt_ms[1]))
}

/// What both ends negotiated is what was asked for.
fn negotiated(lab: &mut Lab, i: usize) -> Result<String> {
    let link = &LINKS[i].1;
    for (side, guest) in ["a", "b"].iter().zip(link.props) {
        let port = lab.hayate.port(&format!("{side}{i}"))?;
        let has = |f: &str| port.features.iter().any(|n| n == f);
        ensure!(
            has("ring_packed") == guest.contains("packed=on"),
            "{side}{i}: {:?}",
            port.features
        );
        ensure!(has("mq") == (link.queues > 1), "{side}{i}: {:?}", port.features);
        for f in [
            "csum",
            "guest_csum",
            "host_tso4",
            "guest_tso4",
            "host_tso6",
            "guest_tso6",
            "mrg_rxbuf",
        ] {
            ensure!(has(f), "{side}{i}: {f} is not among {:?}", port.features);
        }
        let running = port.queues.iter().filter(|q| q.running && q.enabled).count();
        ensure!(running == usize::from(link.queues) * 2, "{side}{i}: queues {:?}", port.queues);
    }
    Ok(format!("{} queue pair(s)", link.queues))
}

fn tcp(lab: &mut Lab, i: usize) -> Result<String> {
    let parallel = if LINKS[i].1.queues > 1 { "-P 4" } else { "" };
    let there = iperf(&mut lab.a, &mut lab.b, &ip(i, 2), 2, parallel)?;
    let back = iperf(&mut lab.b, &mut lab.a, &ip(i, 1), 2, parallel)?;
    transfer(&mut lab.a, &mut lab.b, &ip(i, 2), 8)?;
    transfer(&mut lab.b, &mut lab.a, &ip6(i, 1), 8)?;
    if LINKS[i].1.queues > 1 {
        let port = lab.hayate.port(&format!("a{i}"))?;
        let used = port.queues.iter().filter(|q| q.frames > 0 && q.dir == "tx").count();
        ensure!(used == 2, "four connections did not use both queues: {:?}", port.queues);
    }
    let drops = conserved(lab, &format!("n{i}"))?;
    let (there, back) = (there.received / 1e6, back.received / 1e6);
    Ok(format!("{there:.0} and {back:.0} Mbit/s, hashes agree; {drops}"))
}

/// Between ends that both can, a TCP frame of up to 64 KiB passes as it is.
fn unsegmented(lab: &mut Lab, i: usize) -> Result<String> {
    let name = format!("b{i}");
    let before = lab.hayate.port(&name)?.to_port;
    iperf(&mut lab.a, &mut lab.b, &ip(i, 2), 1, "")?;
    let after = lab.hayate.port(&name)?.to_port;
    let (gso, frames) = (after.gso_frames - before.gso_frames, after.frames - before.frames);
    let bytes = after.bytes - before.bytes;
    ensure!(gso > 0, "no GSO frame arrived among {frames}");
    ensure!(after.segmented == 0, "{} GSO frames were segmented", after.segmented);
    ensure!(after.csum_completed == 0, "{} checksums were completed", after.csum_completed);
    Ok(format!("{gso} GSO frames of {frames}, {} bytes each on average", bytes / frames.max(1)))
}

fn udp(lab: &mut Lab, i: usize) -> Result<String> {
    let there = iperf(&mut lab.a, &mut lab.b, &ip(i, 2), 2, "-u -b 60M -l 1400")?;
    let back = iperf(&mut lab.b, &mut lab.a, &ip(i, 1), 2, "-u -b 60M -l 1400")?;
    let drops = conserved(lab, &format!("n{i}"))?;
    Ok(format!(
        "{:.0} Mbit/s ({:.1} % lost) and {:.0} ({:.1} %); {drops}",
        there.received / 1e6,
        there.lost_percent,
        back.received / 1e6,
        back.lost_percent,
    ))
}

fn mtu(lab: &mut Lab) -> Result<String> {
    let i = LINKS.iter().position(|(n, _)| *n == "mtu_9000").unwrap_or(0);
    let link = lab.a.sh(&format!("ip link show eth{i}"))?;
    ensure!(link.contains("mtu 9000"), "the guest did not take the MTU: {link}");
    must_ping(&mut lab.a, &ip(i, 2), 5, "-s 8972 -M do")?;
    must_ping(&mut lab.b, &ip6(i, 1), 5, "-s 8952 -M do")?;
    transfer(&mut lab.a, &mut lab.b, &ip(i, 2), 8)?;
    Ok("ping of 8972 bytes unfragmented".into())
}

fn vlans(lab: &mut Lab) -> Result<String> {
    let (access, second) = (VLAN, VLAN + 1);
    for (g, cmd) in [
        (
            &mut lab.a,
            format!("ip addr add 10.9.0.1/24 dev eth{access}; ip link set eth{access} up"),
        ),
        (
            &mut lab.b,
            format!("ip addr add 10.9.0.3/24 dev eth{second}; ip link set eth{second} up"),
        ),
    ] {
        g.sh(&cmd)?;
    }
    // Same VLAN.
    must_ping(&mut lab.a, "10.9.0.3", 3, "")?;
    // Only eth5 of b in that subnet, VLAN 20: silence, both ways.
    lab.b.sh(&format!(
        "ip addr del 10.9.0.3/24 dev eth{second}; ip addr add 10.9.0.2/24 dev eth{access}; ip link set eth{access} up"
    ))?;
    must_not_ping(&mut lab.a, "10.9.0.2")?;
    must_not_ping(&mut lab.b, "10.9.0.1")?;
    let drops = conserved(lab, "vlans")?;
    Ok(format!("10 and 20 apart, 10 and 10 together; {drops}"))
}

fn trunk(lab: &mut Lab) -> Result<String> {
    let (access, second) = (VLAN, VLAN + 1);
    // The guest behind the trunk has an interface in each VLAN; b is 20 on one and 10 on the other.
    lab.a.sh(&format!(
        "ip link set eth{second} up; for v in 10 20; do ip link add link eth{second} name v$v type vlan id $v; \
         ip addr add 10.9.$v.1/24 dev v$v; ip link set v$v up; done"
    ))?;
    lab.b.sh(&format!(
        "ip addr add 10.9.20.2/24 dev eth{access}; ip addr add 10.9.10.2/24 dev eth{second}; \
         ip link set eth{access} up; ip link set eth{second} up"
    ))?;
    let log = "/tmp/trunk.log";
    lab.a.background(
        &format!("timeout 20 tcpdump -Z root -i eth{second} -l -e -nn icmp or vlan"),
        log,
    )?;
    must_ping(&mut lab.a, "10.9.10.2", 3, "")?;
    must_ping(&mut lab.b, "10.9.20.1", 3, "")?;
    transfer(&mut lab.a, &mut lab.b, "10.9.20.2", 4)?;
    transfer(&mut lab.b, &mut lab.a, "10.9.10.1", 4)?;
    pause(Duration::from_millis(500))?;
    let seen = lab.a.sh(&format!("grep -o 'vlan [0-9]*' {log} | sort | uniq -c"))?;
    ensure!(seen.contains("vlan 10") && seen.contains("vlan 20"), "tags on the trunk: {seen}");
    lab.hayate.conserved("vlans")?;
    Ok("tagged both ways".into())
}

fn quiet(lab: &mut Lab) -> Result<String> {
    pause(Duration::from_secs(2))?;
    let percent = cpu::percent_over(lab.hayate.pid()?, Duration::from_secs(5))?;
    ensure!(percent < 3.0, "{percent:.2} % of a core over 5 s while the guests were quiet");
    Ok(format!("{percent:.2} % of a core over 5 s"))
}

pub(crate) fn group(suite: &mut Suite) {
    let mut cases: Vec<Case<Lab>> = Vec::new();
    for (i, (name, _)) in LINKS.iter().enumerate() {
        cases.push(case(format!("{name}::negotiated"), move |l: &mut Lab| negotiated(l, i)));
        cases.push(case(format!("{name}::ping"), move |l: &mut Lab| ping(l, i)));
        cases.push(case(format!("{name}::tcp_both_ways"), move |l: &mut Lab| tcp(l, i)));
        cases.push(case(format!("{name}::udp_both_ways"), move |l: &mut Lab| udp(l, i)));
        cases.push(case(format!("{name}::tso_unsegmented"), move |l: &mut Lab| unsegmented(l, i)));
    }
    cases.push(case("mtu_9000::jumbo_ping", mtu));
    cases.push(case("vlan_isolation", vlans));
    cases.push(case("vlan_trunk", trunk));
    cases.push(case("quiet_daemon_sleeps", quiet));
    suite.group("pair", boot, cases, |lab| {
        for i in 0..LINKS.len() {
            lab.hayate.conserved(&format!("n{i}"))?;
        }
        let Lab { a, b, hayate } = lab;
        drop((a, b));
        hayate.stop()?;
        Ok("every frame accounted for, no panic".into())
    });
}
