//! Routes, neighbours, links, ports, agents and daemons that change while packets go past a router.

use e2e::hayate::Hayate;
use e2e::suite::{Case, Suite, case};
use e2e::{Context, Result, ensure};
use rustix::process::Signal;

use crate::finish;
use crate::lab::{A, B, B_TOO, C, Kind, Lab, Router, ip, text};
use crate::traffic::{SECOND, Traffic, Way};

/// Where frames go, and where they may be filtered.
const FAR: [u8; 4] = [192, 168, 0, 1];
const FILTERED: [u8; 4] = [192, 168, 9, 9];

const BY_B: Way = (1, B);
const BY_B_TOO: Way = (1, B_TOO);
const BY_C: Way = (2, C);

pub fn group(suite: &mut Suite) {
    let cases: Vec<Case<Lab>> = vec![
        case("route", route),
        case("neighbour", neighbour),
        case("link_down", link_down),
        case("carrier", carrier),
        case("ecmp", ecmp),
        case("filter", filter),
        case("policy_rule", policy_rule),
        case("switched_off", switched_off),
        case("agent_killed", agent_killed),
        case("agent_stopped", agent_stopped),
        case("ports_removed", ports_removed),
        case("daemon_killed", daemon_killed),
    ];
    suite.group("events", set_up, cases, finish);
}

/// Three interfaces; what is far away is reached by way of B, or of C when that fails.
fn script() -> String {
    let [a, b, b_too, c] = [A, B, B_TOO, C].map(text);
    let lines = format!(
        "link set r0 up
         link set r1 up
         link set r2 up
         addr replace 10.1.0.1/24 dev r0
         addr replace 10.2.0.1/24 dev r1
         addr replace 10.3.0.1/24 dev r2
         neigh replace 10.1.0.2 lladdr {a} dev r0 nud permanent
         neigh replace 10.2.0.2 lladdr {b} dev r1 nud permanent
         neigh replace 10.2.0.3 lladdr {b_too} dev r1 nud permanent
         neigh replace 10.3.0.2 lladdr {c} dev r2 nud permanent
         route replace 192.168.0.0/16 via 10.2.0.2
         route replace 192.168.0.0/16 via 10.3.0.2 metric 100"
    );
    ip(&lines) + "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.fib_multipath_hash_policy=0"
}

fn set_up() -> Result<Lab> {
    Lab::new(Kind::Namespace, 3, &script(), "--lease 1s")
}

/// Frames all the time, which go past the router by way of B at first.
fn traffic<T>(
    lab: &mut Lab,
    to: &[[u8; 4]],
    event: impl FnOnce(&mut Router, &mut Hayate, &Traffic) -> Result<T>,
) -> Result<T> {
    lab.with_traffic(to, |r, hayate, t| {
        t.until("frames by B", |_, way| way == Some(BY_B))?;
        t.bypasses(r, hayate)?;
        event(r, hayate, t)
    })
}

/// Another next hop: another neighbour, then another interface.
fn route(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |r, hayate, t| {
        let steps =
            [("10.2.0.3", BY_B, BY_B_TOO), ("10.3.0.2", BY_B_TOO, BY_C), ("10.2.0.2", BY_C, BY_B)];
        let mut took = Vec::new();
        for (via, old, new) in steps {
            let begun = t.now();
            r.sh(&format!("ip route replace 192.168.0.0/16 via {via}"))?;
            took.push(t.moved(begun, old, new)?);
            t.bypasses(r, hayate)?;
        }
        Ok(format!("the old way is taken for {} from the command on", took.join(", ")))
    })
}

/// The neighbour has another address.
fn neighbour(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |r, hayate, t| {
        let mut took = Vec::new();
        for (mac, old, new) in [(B_TOO, BY_B, BY_B_TOO), (B, BY_B_TOO, BY_B)] {
            let begun = t.now();
            r.sh(&format!("ip neigh replace 10.2.0.2 lladdr {} dev r1 nud permanent", text(mac)))?;
            took.push(t.moved(begun, old, new)?);
            t.bypasses(r, hayate)?;
        }
        Ok(format!("the old address is used for {} from the command on", took.join(", ")))
    })
}

/// An interface is shut down; its routes and neighbours go with it.
fn link_down(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |r, hayate, t| {
        let begun = t.now();
        r.sh("ip link set r1 down")?;
        let took = t.moved(begun, BY_B, BY_C)?;
        t.bypasses(r, hayate)?;
        let begun = t.now();
        r.lines(&script())?;
        let back = t.moved(begun, BY_C, BY_B)?;
        t.bypasses(r, hayate)?;
        Ok(format!("the old way is taken for {took} from the command on, the way round for {back}"))
    })
}

/// An interface loses its carrier. It keeps its routes: what is sent there is lost.
fn carrier(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |r, hayate, t| {
        let begun = t.now();
        r.sh("ip link set r1 carrier off")?;
        let took = t.gone(begun, SECOND, BY_B)?;
        t.by_the_router(r, hayate)?;
        r.sh("ip link set r1 carrier on")?;
        t.until("frames by B", |_, way| way == Some(BY_B))?;
        t.bypasses(r, hayate)?;
        Ok(format!("the way is taken for {took} from the command on"))
    })
}

/// A route with two next hops: each flow keeps to one.
fn ecmp(lab: &mut Lab) -> Result<String> {
    const FLOWS: u8 = 200;
    let to: Vec<[u8; 4]> = (0..FLOWS).map(|n| [192, 168, n, 1]).collect();
    traffic(lab, &to, |r, hayate, t| {
        r.sh("ip route replace 192.168.0.0/16 nexthop via 10.2.0.2 nexthop via 10.3.0.2")?;
        let event = t.now();
        t.wait(event + SECOND)?;
        t.bypasses(r, hayate)?;
        let (first, flows) = (t.now(), u32::from(FLOWS));
        t.wait(first + 12 * flows)?;
        let mut by_c = 0;
        for flow in first..first + flows {
            let ways: Vec<_> = (0..10).map(|round| t.way(flow + round * flows)).collect();
            let way = ways[0].context(|| format!("frame {flow} did not arrive"))?;
            ensure!([BY_B, BY_C].contains(&way), "a frame by {way:02x?}");
            ensure!(ways.iter().all(|one| *one == Some(way)), "a flow took {ways:02x?}");
            by_c += u32::from(way == BY_C);
        }
        ensure!((1..flows).contains(&by_c), "{by_c} of {flows} flows by C");
        r.sh("ip route replace 192.168.0.0/16 via 10.2.0.2")?;
        t.moved(t.now(), BY_C, BY_B)?;
        Ok(format!("{flows} flows, {} by B and {by_c} by C", flows - by_c))
    })
}

/// A rule of nf_tables: the router filters again, as it says.
fn filter(lab: &mut Lab) -> Result<String> {
    let rule = "nft add table ip f && \
                nft add chain ip f forward '{ type filter hook forward priority 0; }' && \
                nft add rule ip f forward ip daddr 192.168.9.9 drop";
    withdrawn(lab, rule, "nft delete table ip f", "nf_tables")
}

/// A policy rule likewise.
fn policy_rule(lab: &mut Lab) -> Result<String> {
    let rule = "ip rule add to 192.168.9.9 blackhole priority 100";
    withdrawn(lab, rule, "ip rule del priority 100", "policy rule 100")
}

/// What drops frames to `FILTERED`: they are dropped within a second, others arrive. The agent says
/// why it withdrew; and all goes past the router again when it is removed.
fn withdrawn(lab: &mut Lab, add: &str, remove: &str, why: &str) -> Result<String> {
    traffic(lab, &[FAR, FILTERED], |r, hayate, t| {
        let filtered = |n: u32| n % 2 == 1;
        let begun = t.now();
        r.sh(add)?;
        let event = t.now();
        t.wait(event + SECOND)?;
        t.by_the_router(r, hayate)?;
        let only = |n, way: Option<Way>| way == (!filtered(n)).then_some(BY_B);
        t.until("only what is not filtered", only)?;
        let last = t.last(begun, |n, _| filtered(n)).map_or(begun, |n| n + 1);
        let late = last.saturating_sub(event);
        ensure!(late <= SECOND, "a frame that is filtered came {late} frames later");
        let reason = |shown: &serde_json::Value| {
            let reasons = shown["reasons"].as_array();
            reasons
                .and_then(|all| {
                    all.iter().filter_map(|one| one.as_str()).find(|one| one.contains(why))
                })
                .map(str::to_owned)
        };
        let shown = r.wait(hayate, "the reason", |shown| reason(shown).is_some())?;
        r.sh(remove)?;
        t.until("frames by B", |_, way| way == Some(BY_B))?;
        t.bypasses(r, hayate)?;
        Ok(format!(
            "filtered {} ms after the command: {}",
            last - begun,
            reason(&shown).unwrap_or_default()
        ))
    })
}

/// `router bypass off` is carried out when it says so.
fn switched_off(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |r, hayate, t| {
        r.bypass(hayate, false)?;
        t.by_the_router(r, hayate)?;
        t.until("frames by B", |_, way| way == Some(BY_B))?;
        r.bypass(hayate, true)?;
        t.bypasses(r, hayate)?;
        Ok("all by the router, then past it again".into())
    })
}

/// An agent that is killed loses its connection.
fn agent_killed(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |r, hayate, t| {
        r.kill_agent()?;
        let event = t.now();
        t.by_the_router(r, hayate)?;
        r.start_agent(hayate, "--lease 1s")?;
        t.bypasses(r, hayate)?;
        let lost = (event..t.now() - SECOND / 10).filter(|n| t.way(*n) != Some(BY_B)).count();
        ensure!(lost == 0, "{lost} frames lost");
        Ok("all by the router, then past it again, no frame lost".into())
    })
}

/// One that does nothing any more loses what it delegated when its lease ends.
fn agent_stopped(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |r, hayate, t| {
        r.signal_agent(Signal::STOP)?;
        let event = t.now();
        t.wait(event + SECOND)?;
        t.by_the_router(r, hayate)?;
        r.signal_agent(Signal::CONT)?;
        t.bypasses(r, hayate)?;
        let lost = (event..t.now() - SECOND / 10).filter(|n| t.way(*n) != Some(BY_B)).count();
        ensure!(lost == 0, "{lost} frames lost");
        Ok("all by the router after its lease, then past it again, no frame lost".into())
    })
}

/// The port of the way out is removed, then that of the way in.
fn ports_removed(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |r, hayate, t| {
        hayate.cli("port del r1")?;
        t.gone(t.now(), 0, BY_B)?;
        t.until("frames by C", |_, way| way == Some(BY_C))?;
        t.bypasses(r, hayate)?;
        hayate.cli("port del r0")?;
        t.gone(t.now(), 0, BY_C)?;
        t.until("no frames", |_, way| way.is_none())?;
        for (n, network) in [(0, "n0"), (1, "n1")] {
            r.add_tap(hayate, n, network)?;
            r.set_mac(n)?;
        }
        r.lines(&script())?;
        t.until("frames by B", |_, way| way == Some(BY_B))?;
        t.bypasses(r, hayate)?;
        Ok("none by a port that is gone; past the router again when they are back".into())
    })
}

/// A daemon that is killed, and the next one: nothing goes past the router before its agent says so,
/// which it does by itself.
fn daemon_killed(lab: &mut Lab) -> Result<String> {
    traffic(lab, &[FAR], |_, _, _| Ok(()))?;
    lab.hayate.kill9();
    lab.router.signal_agent(Signal::STOP)?;
    lab.hayate.launch()?;
    for n in 0..lab.router.macs.len() {
        lab.router.set_mac(n)?;
    }
    lab.router.lines(&script())?;
    lab.connect_hosts()?;
    lab.with_traffic(&[FAR], |r, hayate, t| {
        t.until("frames by B", |_, way| way == Some(BY_B))?;
        t.by_the_router(r, hayate)?;
        r.signal_agent(Signal::CONT)?;
        t.bypasses(r, hayate)?;
        Ok("all by the router, then past it".into())
    })
}
