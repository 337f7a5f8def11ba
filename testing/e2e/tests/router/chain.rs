//! Three routers in a row between two hosts, all namespaces with tap ports: what stock programs on
//! the hosts see of the way, and that all three are bypassed at once.

use e2e::hayate::Hayate;
use e2e::suite::{Case, Suite, case};
use e2e::traffic::{Host, Place, iperf, must_ping, ping, transfer};
use e2e::{Result, ensure};

use crate::lab::{Kind, Router, ip};

/// Link n is network `ln`: 10.n.0.0/24 and fd00:n::/64, left end 1, right end 2.
const LINKS: [&str; 4] = ["l0", "l1", "l2", "l3"];
/// The one that is smaller, and how large it is.
const SMALL: (usize, u32) = (2, 1400);

/// What a host learned of paths.
const FORGET: &str = "ip route flush cache && ip -6 route flush cache";

struct Chain {
    hosts: [Place; 2],
    routers: Vec<Router>,
    hayate: Hayate,
}

pub fn group(suite: &mut Suite) {
    let cases: Vec<Case<Chain>> = vec![
        case("ping", pings),
        case("traceroute", traceroute),
        case("tcp", tcp),
        case("path_mtu", path_mtu),
    ];
    suite.group("chain", set_up, cases, |chain| {
        let Chain { hosts, routers, hayate } = chain;
        drop((hosts, routers));
        hayate.stop()?;
        Ok("ended by SIGTERM with status 0, no panic in its log".into())
    });
}

/// Makes an end of a link.
fn end(interface: &str, link: usize, side: usize) -> String {
    let mtu = if link == SMALL.0 { SMALL.1 } else { 1500 };
    format!(
        "link set {interface} mtu {mtu} up
         addr add 10.{link}.0.{side}/24 dev {interface}
         addr add fd00:{link}::{side}/64 dev {interface} nodad\n"
    )
}

/// Routes to other links by way of the other end of this one.
fn by(link: usize, side: usize, links: impl Iterator<Item = usize>) -> String {
    let to = |other| {
        format!(
            "route add 10.{other}.0.0/24 via 10.{link}.0.{side}
             route add fd00:{other}::/64 via fd00:{link}::{side}\n"
        )
    };
    links.map(to).collect()
}

fn set_up() -> Result<Chain> {
    let hayate = Hayate::start(&[])?;
    for link in LINKS {
        hayate.network(link)?;
    }
    let hosts = [Place::new()?, Place::new()?];
    let last = LINKS.len() - 1;
    for (host, link, side) in [(0, 0, 1), (1, last, 2)] {
        let (netns, port) = (&hosts[host].netns, format!("h{host}"));
        hayate.tap(&port, LINKS[link], netns.name(), "")?;
        let others = (0..=last).filter(|other| *other != link);
        netns.sh(&lines(&(end(&port, link, side) + &by(link, 3 - side, others))))?;
    }
    let mut routers = Vec::new();
    for (n, links) in LINKS.windows(2).enumerate() {
        let name = format!("r{}", ["a", "b", "c"][n]);
        let mut router = Router::new(&hayate, Kind::Namespace, &name, links)?;
        let ends = end(&format!("{name}0"), n, 2) + &end(&format!("{name}1"), n + 1, 1);
        let routes = by(n, 1, 0..n) + &by(n + 1, 2, n + 2..=last);
        // What happens to each probe is looked at, not how many are answered a second.
        let settings = "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
                        net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0";
        router.lines(&format!("{settings}\n{}", ip(&(ends + &routes))))?;
        router.start_agent(&hayate, "")?;
        routers.push(router);
    }
    let mut chain = Chain { hosts, routers, hayate };
    // By then they know their neighbours.
    for to in chain.far() {
        must_ping(&mut chain.hosts[0], &to, 1, "")?;
    }
    for router in &mut chain.routers {
        router.wait(&chain.hayate, "its neighbours", |shown| {
            let nexthops = shown["nexthops"].as_array();
            let hops = nexthops.into_iter().flatten().filter_map(|one| one["hops"].as_array());
            hops.flatten().count() >= 4
        })?;
    }
    Ok(chain)
}

/// Lines of `ip` as one of a shell.
fn lines(text: &str) -> String {
    ip(text).trim().replace('\n', " && ")
}

impl Chain {
    /// Addresses of the host on the right.
    fn far(&self) -> [String; 2] {
        let last = LINKS.len() - 1;
        [format!("10.{last}.0.2"), format!("fd00:{last}::2")]
    }

    /// Packets that went past each router while something was done.
    fn bypassed<T>(&mut self, done: impl FnOnce(&mut Self) -> Result<T>) -> Result<(T, Vec<u64>)> {
        let count = |chain: &Self| -> Result<Vec<u64>> {
            // Its counters are a tenth of a second old at most.
            e2e::process::pause(std::time::Duration::from_millis(300))?;
            chain.routers.iter().map(|router| router.bypassed(&chain.hayate)).collect()
        };
        let before = count(self)?;
        let result = done(self)?;
        let after = count(self)?;
        Ok((result, after.iter().zip(&before).map(|(after, before)| after - before).collect()))
    }
}

/// Pings, all of them past all routers, there and back.
fn pings(chain: &mut Chain) -> Result<String> {
    const PINGS: u32 = 20;
    let mut said = Vec::new();
    for to in chain.far() {
        let (pinged, bypassed) =
            chain.bypassed(|chain| must_ping(&mut chain.hosts[0], &to, PINGS, ""))?;
        let all = u64::from(2 * PINGS);
        ensure!(bypassed.iter().all(|n| *n >= all), "of {all} {bypassed:?} went past the routers");
        said.push(format!("{to}: {} of {PINGS} in {} ms", pinged.received, pinged.rtt_ms[1]));
    }
    Ok(said.join(", "))
}

/// Every router is on the way, as ever.
fn traceroute(chain: &mut Chain) -> Result<String> {
    let [v4, v6] = chain.far();
    let hop = |v6: bool, link| {
        if v6 { format!("fd00:{link}::2") } else { format!("10.{link}.0.2") }
    };
    for (to, is_v6, kind) in [
        (&v4, false, "-4"),
        (&v6, true, "-6"),
        (&v4, false, "-4 -I"),
        (&v6, true, "-6 -I"),
        (&v4, false, "-4 -T"),
        (&v6, true, "-6 -T"),
    ] {
        let text = chain.hosts[0].sh(&format!("traceroute {kind} -n -q 1 -w 3 -m 8 {to}"))?;
        let seen: Vec<String> = text
            .lines()
            .skip(1)
            .map(|line| {
                line.split_whitespace().nth(1).unwrap_or_default().parse::<std::net::IpAddr>()
            })
            .map(|address| address.map(|one| one.to_string()).unwrap_or_else(|_| "?".into()))
            .collect();
        let want: Vec<String> = (0..LINKS.len())
            .map(|link| hop(is_v6, link).parse::<std::net::IpAddr>().map(|one| one.to_string()))
            .collect::<std::result::Result<_, _>>()?;
        ensure!(seen == want, "traceroute {kind} {to} saw {seen:?}\n{text}");
    }
    Ok("UDP, ICMP and TCP probes of both versions of IP see all three routers".into())
}

/// TCP in both directions, most of it past all routers.
fn tcp(chain: &mut Chain) -> Result<String> {
    let [v4, v6] = chain.far();
    let mut said = Vec::new();
    for (to, options) in [(&v4, ""), (&v6, ""), (&v4, "-R"), (&v6, "-R")] {
        let (rate, bypassed) = chain.bypassed(|chain| {
            let [near, far] = &mut chain.hosts;
            iperf(near, far, to, 1, options)
        })?;
        ensure!(bypassed.iter().all(|n| *n > 1000), "{bypassed:?} went past the routers");
        said.push(format!("{:.1}", rate.received / 1e9));
    }
    Ok(format!("{} Gbit/s (IPv4, IPv6, and the other way)", said.join(", ")))
}

/// The small link is found, by connections and by pings; its router says so.
fn path_mtu(chain: &mut Chain) -> Result<String> {
    let [v4, v6] = chain.far();
    let (link, mtu) = SMALL;
    for (n, back) in [(0, false), (1, true)] {
        let addresses =
            if back { ["10.0.0.1".into(), "fd00:0::1".into()] } else { [v4.clone(), v6.clone()] };
        for to in addresses {
            for host in &mut chain.hosts {
                host.sh(FORGET)?;
            }
            let [left, right] = &mut chain.hosts;
            let (from, at) = if back { (right, left) } else { (left, right) };
            transfer(from, at, &to, 16)?;
            let route = from.sh(&format!("ip route get {to}"))?;
            ensure!(route.contains(&format!("mtu {mtu}")), "after a transfer to {to}: {route}");
        }
        let from = &mut chain.hosts[n];
        from.sh(FORGET)?;
        // The router before the small link, by the address of the link it was sent on.
        let routers = if back {
            [format!("10.{}.0.1", link + 1), format!("fd00:{}::1", link + 1)]
        } else {
            [format!("10.{}.0.2", link - 1), format!("fd00:{}::2", link - 1)]
        };
        let targets = if back { ["10.0.0.1", "fd00:0::1"] } else { [v4.as_str(), v6.as_str()] };
        let sizes = [1472, 1452];
        for ((router, to), size) in routers.iter().zip(targets).zip(sizes) {
            let command = format!("ping -M do -s {size} -c 1 -W 2 {to}");
            let (_, text) = from.try_sh(&command, std::time::Duration::from_secs(20))?;
            let said = text.to_lowercase();
            let says = said.contains(&format!("from {router}"))
                && (said.contains(&format!("mtu = {mtu}")) || said.contains(&format!("mtu={mtu}")));
            ensure!(says, "{command}: {text}");
            let whole = ping(from, to, 1, &format!("-M do -s {}", size - (1500 - mtu)))?;
            ensure!(whole.received == 1, "a packet that is as large as the path was lost");
        }
    }
    Ok(format!("{mtu} bytes, told by the router before that link, both ways and versions of IP"))
}
