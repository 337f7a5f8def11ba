//! NetworkPolicy objects, put in force by `hayate-cni policy apply`, and what then passes between pods.
//!
//! Each case is a set of objects and a list of who reaches whom: `+client>web:tcp80` has to come through, with its
//! answer, and `-` must not. All that a case drops is dropped by rules of the VFs in the host's switch, and what passes is
//! counted there; nothing in the guest filters.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use e2e::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cases::cases;
use crate::lab::{Lab, ip, ip6};

/// Namespace and name of the pods, by the number of their VF.
pub(crate) const PODS: [&str; 4] = ["shop/web", "shop/client", "ops/other", "ops/db"];
/// Where each of them listens, by TCP and UDP.
const PORTS: &str = "53 80 81 443 8080 8081 8090";
const LIMIT: Duration = Duration::from_secs(60);

/// What is in force, and who reaches whom then.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) policies: Vec<Value>,
    pub(crate) reach: &'static str,
}

/// Counters of the host.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Frames of the pods that rules dropped.
    dropped: u64,
    /// Frames that rules let begin a connection, or that are of one.
    matched: u64,
}

/// Pods and namespaces as the API has them.
fn world() -> Vec<Value> {
    let namespace = |name: &str, team: &str| json!({ "kind": "Namespace", "metadata": { "name": name, "labels": { "team": team } } });
    let labels = [
        json!({ "app": "web", "tier": "front" }),
        json!({ "app": "client", "env": "prod" }),
        json!({ "app": "client", "env": "test" }),
        json!({ "app": "db", "tier": "back" }),
    ];
    let port = |name: &str, number: u16, protocol: &str| json!({ "name": name, "containerPort": number, "protocol": protocol });
    let ports = [
        vec![port("http", 8080, "TCP"), port("dns", 53, "UDP")],
        vec![port("http", 80, "TCP")],
        vec![],
        vec![port("http", 8081, "TCP"), port("sql", 8090, "TCP")],
    ];
    let pods = PODS.iter().zip(labels).zip(ports).zip(0..);
    let pods = pods.map(|(((full, labels), ports), vf)| {
        let (namespace, name) = full.split_once('/').unwrap_or(("", full));
        json!({
            "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": { "containers": [{ "name": "all", "ports": ports }] },
            "status": { "phase": "Running", "podIPs": [{ "ip": ip(vf) }, { "ip": ip6(vf) }] },
        })
    });
    pods.chain([namespace("shop", "red"), namespace("ops", "blue")]).collect()
}

fn name(vf: u16) -> &'static str {
    let full = PODS[usize::from(vf)];
    full.split_once('/').map_or(full, |(_, name)| name)
}

fn vf(name: &str) -> Result<u16> {
    (0..4).find(|vf| self::name(*vf) == name).context(|| format!("no pod {name}"))
}

impl Lab {
    /// Puts policies in force, with these pods and namespaces; what the program says.
    fn apply(&mut self, policies: &[Value]) -> Result<(i32, String)> {
        let mut items = world();
        items.extend_from_slice(policies);
        let objects = json!({ "kind": "List", "items": items });
        // A command is one line, and JSON has no quote of the shell's.
        let line = format!("echo '{objects}' | /opt/cni/bin/hayate-cni policy apply - 2>&1");
        self.guest.try_sh(&line, LIMIT)
    }

    fn must_apply(&mut self, policies: &[Value]) -> Result<()> {
        let (status, said) = self.apply(policies)?;
        ensure!(status == 0, "policy apply: {said}\n{}", self.guest.sh("tail -5 /tmp/agent.log")?);
        Ok(())
    }

    /// Tries all of it at once, each from its pod; what is not as it should be.
    fn reach(&mut self, reach: &str) -> Result<()> {
        let mut of: BTreeMap<u16, (String, String)> = BTreeMap::new();
        for one in reach.split_whitespace() {
            let parsed = || {
                let (sign, rest) = one.split_at_checked(1)?;
                let (from, rest) = rest.split_once('>')?;
                let (to, what) = rest.split_once(':')?;
                Some((sign, from, to, what))
            };
            let (sign, from, to, what) = parsed().context(|| format!("{one}: not understood"))?;
            let (peer, pings) = of.entry(vf(from)?).or_default();
            let (what, six) = what.strip_prefix("6").map_or((what, false), |what| (what, true));
            let to = if six { ip6(vf(to)?) } else { ip(vf(to)?) };
            if what == "ping" {
                let (wait, not) = if sign == "+" { ("-w 20", "") } else { ("-W 1", "! ") };
                let _ =
                    write!(pings, "{not}ping -q -c 1 {wait} {to} >/dev/null || echo \"{one}\"; ");
            } else {
                let digits = what.trim_start_matches(|c: char| c.is_ascii_alphabetic());
                let protocol = what.trim_end_matches(digits);
                let _ = write!(peer, " {sign}{protocol}/{to}/{digits}");
            }
        }
        let mut line = String::new();
        for (vf, (peer, pings)) in of {
            let pod = name(vf);
            let peer =
                if peer.is_empty() { "true".to_owned() } else { format!("peer probe{peer}") };
            let _ = write!(
                line,
                "ip netns exec {pod} sh -c '({peer}) & {pings}wait' | sed s/^/{pod}:/ & "
            );
        }
        let said = self.guest.sh(&format!("{line}wait"))?;
        ensure!(said.trim().is_empty(), "not as it should be: {}", said.trim().replace('\n', ", "));
        Ok(())
    }

    /// What rules had pass and dropped, as the daemon's metrics have it.
    fn rule_frames(&self) -> Result<[u64; 2]> {
        let metrics = self.hayate.cli("stats --prometheus")?;
        let value = |verdict: &str| -> Result<u64> {
            let name =
                format!(r#"hayate_pf_rule_frames_total{{pf="node-pf0",verdict="{verdict}"}} "#);
            let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
            Ok(value.context(|| format!("no {name}"))?.parse()?)
        };
        Ok([value("pass")?, value("drop")?])
    }

    /// What rules of the pods' VFs did so far.
    fn counts(&mut self) -> Result<Counts> {
        let mut counts = Counts::default();
        for vf in 0..4 {
            counts.dropped += self.dropped(vf, "rule-drop")?;
        }
        let flows: Value =
            serde_json::from_str(&self.guest.sh("hayate-agent flow list eth0 --json")?)?;
        for rule in flows["rules"].as_array().into_iter().flatten() {
            counts.matched += rule["packets"].as_u64().unwrap_or(0);
        }
        Ok(counts)
    }
}

/// The pods, with VFs that they keep.
pub(crate) fn set_up(lab: &mut Lab) -> Result<Vec<Value>> {
    let mut confs = Vec::new();
    for (pod, vf) in PODS.iter().zip(0..) {
        confs.push(lab.add(pod, vf, &json!({}))?);
        let name = name(vf);
        lab.guest.sh(&format!(
            "(ip netns exec {name} peer serve {PORTS} >/tmp/serve.{name} 2>&1 </dev/null &)"
        ))?;
    }
    // Everybody has heard of everybody, so that nothing is lost at first.
    let all = |a: &str, b: &str| {
        format!("+{a}>{b}:tcp80 +{a}>{b}:6udp80 +{a}>{b}:udp53 +{a}>{b}:6tcp53 ")
    };
    let mut reach = String::new();
    for a in 0..4 {
        for b in (0..4).filter(|b| *b != a) {
            reach += &all(name(a), name(b));
        }
    }
    lab.reach(&reach)?;
    Ok(confs)
}

/// All cases, one after the other.
pub(crate) fn all(lab: &mut Lab) -> Result<String> {
    let confs = set_up(lab)?;
    let begun = Instant::now();
    let (mut failed, mut total, mut probes) = (Vec::new(), Counts::default(), 0);
    let cases = cases();
    let mut sums = lab.rule_frames()?;
    for Case { name, policies, reach } in &cases {
        probes += reach.split_whitespace().count();
        let mut one = |lab: &mut Lab| -> Result<()> {
            lab.must_apply(policies)?;
            let before = lab.counts()?;
            lab.reach(reach)?;
            let after = lab.counts()?;
            let dropped = after.dropped - before.dropped;
            let matched = after.matched.saturating_sub(before.matched);
            let stops = reach.split_whitespace().any(|one| one.starts_with('-'));
            ensure!(!stops || dropped > 0, "the host dropped nothing");
            ensure!(!stops || matched > 0 || !reach.contains('+'), "no rule of the host matched");
            total.dropped += dropped;
            total.matched += matched;
            // Rules come and go with each case, their sums stay.
            let now = lab.rule_frames()?;
            let more = now[0] >= sums[0] && now[1] >= sums[1] + dropped;
            ensure!(more, "pass and drop, {sums:?}: {now:?} with {dropped} more");
            sums = now;
            Ok(())
        };
        if let Err(error) = one(lab) {
            failed.push(format!("{name}: {error}"));
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    if !failed.is_empty() {
        bail!("{} of {} cases failed:\n{}", failed.len(), cases.len(), failed.join("\n"));
    }
    lives(lab)?;
    lab.must_apply(&[])?;
    for ((pod, vf), conf) in PODS.iter().zip(0..).zip(&confs) {
        lab.guest.sh(&format!("kill $(ip netns pids {}) 2>/dev/null; true", name(vf)))?;
        lab.del(pod, conf)?;
    }
    Ok(format!(
        "{} cases with {probes} probes in {seconds:.0} s; rules of the host dropped {} frames and let {} pass",
        cases.len(),
        total.dropped,
        total.matched
    ))
}

/// What lasts, and what comes later.
fn lives(lab: &mut Lab) -> Result<()> {
    let deny = crate::cases::deny("shop", "deny", &["Ingress", "Egress"]);
    // Objects that cannot be compiled change nothing, and the policy is named.
    lab.must_apply(std::slice::from_ref(&deny))?;
    let sctp = crate::cases::policy(
        "shop",
        "sctp",
        &json!({
            "podSelector": {}, "ingress": [{ "ports": [{ "protocol": "SCTP", "port": 80 }] }],
        }),
    );
    let (status, said) = lab.apply(&[sctp])?;
    ensure!(status == 1 && said.contains("shop/sctp") && said.contains("SCTP"), "{status}: {said}");
    lab.reach("-client>web:tcp80 -web>db:tcp80 +other>db:tcp80")?;
    // A connection goes on over other policies that allow it, and over a restart of the daemon rules are there.
    lab.hayate.kill9();
    lab.hayate.launch()?;
    lab.wait_running()?;
    lab.reach("-client>web:tcp80 -web>db:tcp80 -other>web:tcp80 +other>db:tcp80")?;
    // A pod that comes while policies are in force is under them from the beginning: known, or not.
    let conf = lab.add("shop/late", 4, &json!({}))?;
    lab.guest.sh("(ip netns exec late peer serve 80 >/tmp/serve.late 2>&1 </dev/null &)")?;
    let probe = format!("-tcp/{}/80 -udp/{}/80", ip(4), ip(4));
    let said = lab.guest.sh(&format!("ip netns exec other peer probe {probe}"))?;
    ensure!(said.trim().is_empty(), "a pod of shop that nobody knows is open: {said}");
    lab.guest.sh("kill $(ip netns pids late)")?;
    lab.del("shop/late", &conf)?;
    // Whoever has its VF then has none of its rules.
    let conf = lab.add("else/next", 4, &json!({}))?;
    lab.guest.sh("(ip netns exec next peer serve 80 >/tmp/serve.next 2>&1 </dev/null &)")?;
    let said = lab.guest.sh(&format!("ip netns exec other peer probe +tcp/{}/80", ip(4)))?;
    ensure!(said.trim().is_empty(), "{said}");
    lab.guest.sh("kill $(ip netns pids next)")?;
    lab.del("else/next", &conf)
}
