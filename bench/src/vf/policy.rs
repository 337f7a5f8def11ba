//! One policy for pods, as rules of the guest and as rules of the host.
//!
//! It is what a network policy of Kubernetes comes to: established connections pass, new ones to one UDP port from a
//! list of peers, new ones to a list of peers, and nothing else.
//!
//! In the guest it is written as kube-router writes it (a chain for each pod, found by its address; a chain for each
//! of its policies), beside what kube-proxy makes of some services. Packets of established connections meet those
//! rules only by which a pod's chain is found, so that it does not matter how long the lists are.

use std::fmt::Write;

use super::cell::PODS;

/// The port that pods serve.
pub const PORT: u16 = 7000;
/// A port that nobody may talk to.
pub const REFUSED: u16 = 9;
/// Peers that may be talked to: the one outside, and others that are not there.
const PEERS: u16 = 8;
/// Services of the cluster, each with two pods elsewhere. Only the first packet of a connection looks for one.
const SERVICES: u16 = 20;

/// A pod's address on the bridge.
#[must_use]
pub fn on_bridge(pod: u16) -> String {
    format!("10.77.0.{}", 10 + pod)
}

/// A pod's address with a VF.
#[must_use]
pub fn on_vf(pod: u16) -> String {
    format!("10.66.0.{}", 10 + pod)
}

/// Whom a pod may talk to; the last one is the outside.
fn peers() -> impl Iterator<Item = String> {
    let others = (1..PEERS).map(|peer| format!("10.66.{peer}.0/24"));
    others.chain(["10.66.0.1/32".to_owned()])
}

/// For `iptables-restore`: the rules of the node.
#[must_use]
pub fn iptables() -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = nat(&mut text);
    let _ = filter(&mut text);
    text
}

/// What kube-proxy makes, and the bridge plugin, which gives pods the node's address towards the outside.
fn nat(text: &mut String) -> std::fmt::Result {
    writeln!(text, "*nat")?;
    for chain in ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"] {
        writeln!(text, ":{chain} ACCEPT [0:0]")?;
    }
    for chain in ["SERVICES", "POSTROUTING", "MARK-MASQ", "NODEPORTS"] {
        writeln!(text, ":KUBE-{chain} - [0:0]")?;
    }
    for service in 0..SERVICES {
        writeln!(text, ":KUBE-SVC-{service} - [0:0]")?;
        writeln!(text, ":KUBE-SEP-{service}-0 - [0:0]\n:KUBE-SEP-{service}-1 - [0:0]")?;
    }
    text.push_str(
        "-A PREROUTING -j KUBE-SERVICES\n\
         -A OUTPUT -j KUBE-SERVICES\n\
         -A POSTROUTING -j KUBE-POSTROUTING\n\
         -A POSTROUTING -s 10.77.0.0/24 ! -d 10.77.0.0/24 -j MASQUERADE\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
         -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n\
         -A KUBE-POSTROUTING -j MASQUERADE\n",
    );
    for service in 0..SERVICES {
        let to = format!("-d 10.96.0.{}/32 -p udp -m udp --dport 53", 10 + service);
        let chain = format!("-A KUBE-SVC-{service}");
        writeln!(text, "-A KUBE-SERVICES {to} -j KUBE-SVC-{service}")?;
        writeln!(text, "{chain} ! -s 10.77.0.0/24 {to} -j KUBE-MARK-MASQ")?;
        writeln!(
            text,
            "{chain} -m statistic --mode random --probability 0.5 -j KUBE-SEP-{service}-0"
        )?;
        writeln!(text, "{chain} -j KUBE-SEP-{service}-1")?;
        for end in 0..2 {
            let (chain, pod) = (format!("-A KUBE-SEP-{service}-{end}"), 100 + end);
            writeln!(text, "{chain} -s 10.77.0.{pod}/32 -j KUBE-MARK-MASQ")?;
            writeln!(text, "{chain} -p udp -m udp -j DNAT --to-destination 10.77.0.{pod}:53")?;
        }
    }
    writeln!(text, "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT")
}

/// What kube-router makes of the policy, and what kube-proxy lets pass.
fn filter(text: &mut String) -> std::fmt::Result {
    writeln!(text, "*filter")?;
    for chain in ["INPUT", "FORWARD", "OUTPUT"] {
        writeln!(text, ":{chain} ACCEPT [0:0]")?;
    }
    writeln!(text, ":KUBE-FORWARD - [0:0]\n:KUBE-ROUTER-FORWARD - [0:0]")?;
    for pod in 0..PODS {
        for chain in ["POD-FW", "NWPLCY-IN", "NWPLCY-OUT"] {
            writeln!(text, ":KUBE-{chain}-{pod} - [0:0]")?;
        }
    }
    writeln!(text, "-A FORWARD -j KUBE-ROUTER-FORWARD\n-A FORWARD -j KUBE-FORWARD")?;
    for pod in 0..PODS {
        let own = format!("{}/32", on_bridge(pod));
        let find =
            format!("-m comment --comment \"to the chain of pod {pod}\" -j KUBE-POD-FW-{pod}");
        for side in ["-d", "-s"] {
            writeln!(text, "-A KUBE-ROUTER-FORWARD {side} {own} {find}")?;
            let bridged = "-m physdev --physdev-is-bridged";
            writeln!(text, "-A KUBE-ROUTER-FORWARD {side} {own} {bridged} {find}")?;
        }
        for rule in [
            "-m conntrack --ctstate INVALID -j DROP".to_owned(),
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned(),
            format!("-d {own} -m addrtype --src-type LOCAL -j ACCEPT"),
            format!("-d {own} -j KUBE-NWPLCY-IN-{pod}"),
            format!("-s {own} -j KUBE-NWPLCY-OUT-{pod}"),
            "-m mark ! --mark 0x10000/0x10000 -j DROP".to_owned(),
            "-j MARK --set-xmark 0x0/0x10000".to_owned(),
            "-j MARK --set-xmark 0x20000/0x20000".to_owned(),
        ] {
            writeln!(text, "-A KUBE-POD-FW-{pod} {rule}")?;
        }
        for peer in peers() {
            let marked = "-m mark --mark 0x10000/0x10000 -j RETURN";
            let rules = [
                format!("IN-{pod} -s {peer} -p udp -m udp --dport {PORT}"),
                format!("OUT-{pod} -d {peer} -p udp"),
            ];
            for rule in rules {
                writeln!(text, "-A KUBE-NWPLCY-{rule} -j MARK --set-xmark 0x10000/0x10000")?;
                writeln!(text, "-A KUBE-NWPLCY-{rule} {marked}")?;
            }
        }
    }
    text.push_str(
        "-A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT\n\
         -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n\
         -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n\
         -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
         COMMIT\n",
    );
    Ok(())
}

/// For `hayate-agent flow`: the rules of all VFs, one a line.
#[must_use]
pub fn flows() -> Vec<String> {
    (0..PODS).flat_map(flows_of).collect()
}

fn flows_of(pod: u16) -> Vec<String> {
    let vf = format!("vf{pod}");
    let mut lines = Vec::new();
    for (direction, default) in ["to", "from"].map(|it| (it, format!("default {vf} {it} drop"))) {
        let rule = |what: &str| format!("{vf} {direction} {what} accept");
        lines.extend([default, rule("priority 200 state established"), rule("ethertype arp")]);
        for peer in peers() {
            lines.push(match direction {
                "to" => rule(&format!("priority 100 proto udp src {peer} dst-port {PORT}")),
                _ => rule(&format!("priority 100 proto udp dst {peer}")),
            });
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pod_has_its_rules() {
        let text = iptables();
        let rules =
            |with: &str| text.lines().filter(|l| l.starts_with("-A") && l.contains(with)).count();
        for pod in 0..PODS {
            assert_eq!(rules(&format!("-A KUBE-NWPLCY-IN-{pod} ")), 2 * usize::from(PEERS));
            assert_eq!(rules(&format!("-j KUBE-POD-FW-{pod}")), 4);
        }
        assert_eq!(rules("--ctstate RELATED,ESTABLISHED"), usize::from(PODS) + 1);
        // Chains are there before they are jumped to.
        for line in text.lines().filter(|line| line.starts_with("-A")) {
            let chain = line.split_whitespace().nth(1).unwrap();
            assert!(text.contains(&format!("\n:{chain} ")), "{line}");
        }
        assert_eq!(text.lines().filter(|line| *line == "COMMIT").count(), 2);
    }

    #[test]
    fn every_vf_drops_what_is_not_allowed() {
        let lines = flows();
        assert_eq!(lines.len(), usize::from(PODS) * 2 * (3 + usize::from(PEERS)));
        assert!(lines.contains(&"default vf3 from drop".to_owned()));
        let outside = "vf0 to priority 100 proto udp src 10.66.0.1/32 dst-port 7000 accept";
        assert!(lines.contains(&outside.to_owned()), "{lines:?}");
    }
}
