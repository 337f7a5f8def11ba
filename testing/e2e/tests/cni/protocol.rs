//! The plugin as a runtime runs it, without a runtime: variables, a configuration, an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use e2e::process::{pause, wait_for};
use e2e::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::lab::{LIMIT, Lab, NAP, VFS, after, conf, device, line, with_addresses};

/// An address that no VF has by itself.
const ANOTHER: &str = "02:00:00:00:55:01";

pub(crate) fn two_pods(lab: &mut Lab) -> Result<String> {
    let conf = with_addresses();
    let mut results = Vec::new();
    for pod in ["a", "b"] {
        lab.pod(pod)?;
        let result = lab.cni("ADD", pod, &conf)?;
        ensure!(result["cniVersion"] == "1.0.0", "{result:#}");
        ensure!(
            result["interfaces"][0]["name"] == "net1" && result["ips"][0]["interface"] == 0,
            "{result:#}"
        );
        lab.cni("CHECK", pod, &after(&conf, &result))?;
        results.push(result);
    }
    let there = results[1]["ips"][0]["address"].as_str().unwrap_or_default();
    let there = there.split('/').next().unwrap_or_default().to_owned();
    lab.ping("a", &there)?;
    ensure!(
        lab.guest.sh("ip -n a route")?.contains("10.66.0.0/16 via 10.55.0.1 dev net1"),
        "no route"
    );
    ensure!(lab.interfaces()?.len() == VFS - 2, "they are still at home");
    lab.refused("ADD", "a", &conf, 102)?;
    // What is broken in a container is seen.
    lab.guest.sh("ip -n a addr flush dev net1")?;
    lab.refused("CHECK", "a", &after(&conf, &results[0]), 103)?;
    // A container may call it what it likes.
    lab.guest.sh("ip -n b link set net1 down && ip -n b link set net1 name mine")?;
    for (pod, result) in ["a", "b"].iter().zip(&results) {
        lab.cni("DEL", pod, &after(&conf, result))?;
        lab.cni("DEL", pod, &conf)?;
        lab.end_pod(pod)?;
    }
    lab.at_home()?;
    let leases = lab.guest.sh("ls /run/host-local/pods | grep -c '^10' || true")?;
    ensure!(leases.trim() == "0", "{leases} addresses are still taken");
    Ok(format!("they talk by {there}"))
}

pub(crate) fn errors(lab: &mut Lab) -> Result<String> {
    lab.refused("ADD", "nobody", &conf("1.1.0"), 3)?;
    lab.pod("a")?;
    for (key, value, code) in [
        ("cniVersion", json!("0.2.0"), 1),
        ("min_tx_rate", json!(3), 2),
        ("vlanQoS", json!(3), 7),
        ("mac", json!("x"), 7),
        ("mtu", json!([]), 6),
        ("pf", json!("eth99"), 101),
        ("vlan", json!(5), 104),
    ] {
        let mut conf = conf("1.1.0");
        conf[key] = value;
        lab.refused("ADD", "a", &conf, code)?;
    }
    lab.refused("GC", "a", &conf("1.0.0"), 1)?;
    lab.cni("STATUS", "a", &conf("1.1.0"))?;
    let mut none = conf("1.1.0");
    none["pf"] = json!("eth99");
    lab.refused("STATUS", "a", &none, 50)?;
    lab.end_pod("a")?;
    lab.at_home()?;
    Ok(String::new())
}

/// A namespace ends with a VF in it, whose interface is called as the PF's: the kernel brings it back under
/// another name.
pub(crate) fn namespace_ends(lab: &mut Lab) -> Result<String> {
    let vf = lab.vf(3)?;
    let mut conf = device(&vf, 2);
    conf["mac"] = json!(ANOTHER);
    conf["mtu"] = json!(1300);
    lab.pod("a")?;
    let eth0 = |command| line(command, "a", &conf).replace("CNI_IFNAME=net1", "CNI_IFNAME=eth0");
    let result: Value = serde_json::from_str(&lab.guest.sh(&eth0("ADD"))?)?;
    ensure!(result["interfaces"][0]["pciID"] == vf.as_str(), "{result:#}");
    ensure!(result["interfaces"][0]["mac"] == ANOTHER, "{result:#}");
    lab.end_pod("a")?;
    let back = wait_for("the VF to come back", LIMIT, || {
        pause(NAP)?;
        let now = lab.interfaces()?;
        Ok((now.len() == VFS).then_some(now))
    })?;
    ensure!(back != lab.home, "it came back as if nothing had been");
    let name = back.keys().find(|name| !lab.home.contains_key(*name)).cloned();
    lab.guest.sh(&eth0("DEL"))?;
    lab.at_home()?;
    Ok(format!("it came back as {}", name.unwrap_or_else(|| "itself".into())))
}

/// DEL follows at once, while the kernel is still bringing the interface back.
pub(crate) fn del_before_the_kernel(lab: &mut Lab) -> Result<String> {
    for _ in 0..5 {
        lab.pod("a")?;
        lab.cni("ADD", "a", &conf("1.1.0"))?;
        lab.guest.sh(&format!("ip netns del a; {}", line("DEL", "a", &conf("1.1.0"))))?;
        lab.at_home()?;
    }
    Ok(String::new())
}

pub(crate) fn late_del(lab: &mut Lab) -> Result<String> {
    let (vf, other) = (lab.vf(1)?, lab.vf(2)?);
    let (conf, witness) = (device(&vf, 2), device(&other, 3));
    for pod in ["a", "b", "c"] {
        lab.pod(pod)?;
    }
    lab.cni("ADD", "c", &witness)?;
    lab.cni("ADD", "a", &conf)?;
    lab.ping("c", "10.55.1.2")?;
    lab.end_pod("a")?;
    // Its DEL has not come yet; the device plugin gives the VF to the next pod, which has the same IP address and
    // another one of Ethernet. Who knew the old one is told.
    let mut conf = conf;
    conf["mac"] = json!(ANOTHER);
    let result = lab.cni("ADD", "b", &conf)?;
    let added = Instant::now();
    wait_for("the announcement", LIMIT, || {
        let known = lab.guest.sh("ip -n c neigh show 10.55.1.2")?;
        Ok(known.contains(ANOTHER).then_some(()))
    })?;
    let told = added.elapsed().as_millis();
    lab.ping("c", "fd55::2")?;
    lab.cni("DEL", "a", &conf)?;
    lab.cni("DEL", "a", &conf)?;
    lab.cni("CHECK", "b", &after(&conf, &result))?;
    lab.ping("c", "10.55.1.2")?;
    // Nor does GC take what is another's by now.
    lab.gc(&["b", "c"])?;
    lab.cni("CHECK", "b", &after(&conf, &result))?;
    for (pod, conf) in [("b", &conf), ("c", &witness)] {
        lab.cni("DEL", pod, conf)?;
        lab.end_pod(pod)?;
    }
    lab.at_home()?;
    Ok(format!("VF {vf} stayed with the second pod, announced {told} ms after ADD"))
}

pub(crate) fn stale(lab: &mut Lab) -> Result<String> {
    for pod in ["a", "b", "c"] {
        lab.pod(pod)?;
        lab.cni("ADD", pod, &conf("1.1.0"))?;
    }
    lab.end_pod("a")?;
    lab.gc(&["b"])?;
    ensure!(lab.interfaces()?.len() == VFS - 1, "not all that are stale came back");
    ensure!(lab.guest.sh("ip -n b link show net1").is_ok(), "b lost its VF");
    lab.gc(&[])?;
    lab.at_home()?;
    for pod in ["b", "c"] {
        lab.end_pod(pod)?;
    }
    Ok(String::new())
}

pub(crate) fn sixteen_at_once(lab: &mut Lab) -> Result<String> {
    for number in 0..=VFS {
        lab.pod(&format!("p{number}"))?;
    }
    let all = |lab: &mut Lab, command: &str| -> Result<f64> {
        let begun = Instant::now();
        let one = line(command, "p$i", &conf("1.1.0")).replace("/tmp/cni.err", "/tmp/err$i");
        let script = format!(
            "for i in $(seq {VFS}); do ({one} >/tmp/out$i; echo $? >/tmp/rc$i) & done; wait; cat /tmp/rc* | sort | uniq -c"
        );
        let said = lab.guest.sh(&script)?;
        let all_fine = format!("{VFS} 0");
        if said.trim() != all_fine {
            e2e::bail!("{command}: {said}\n{}", lab.guest.sh("cat /tmp/out* /tmp/err*")?);
        }
        Ok(begun.elapsed().as_secs_f64())
    };
    let added = all(lab, "ADD")?;
    let said = lab.guest.sh("cat /tmp/out*")?;
    let vfs: BTreeSet<&str> = said.lines().filter(|line| line.contains("pciID")).collect();
    ensure!(vfs.len() == VFS, "{vfs:?}");
    ensure!(lab.interfaces()?.is_empty(), "some are still at home");
    lab.refused("ADD", "p0", &conf("1.1.0"), 11)?;
    lab.refused("STATUS", "p0", &conf("1.1.0"), 50)?;
    let deleted = all(lab, "DEL")?;
    lab.at_home()?;
    lab.guest.sh(&format!("for i in $(seq 0 {VFS}); do ip netns del p$i; done"))?;
    Ok(format!("added in {added:.1} s, deleted in {deleted:.1} s"))
}

/// ADD and DEL are killed at points of time spread over what they take, then GC has it all put right.
pub(crate) fn killed(lab: &mut Lab) -> Result<String> {
    const TIMES: u32 = 24;
    let conf = with_addresses();
    lab.pod("a")?;
    let begun = Instant::now();
    lab.cni("ADD", "a", &conf)?;
    let takes = begun.elapsed().as_micros() as u32;
    lab.cni("DEL", "a", &conf)?;
    let mut halfway = 0;
    for number in 0..TIMES {
        let victim = if number % 3 == 2 { "DEL" } else { "ADD" };
        if victim == "DEL" {
            lab.cni("ADD", "a", &conf)?;
        }
        // By its own process id, so no pipe.
        let one = format!(
            "echo '{conf}' >/tmp/conf; CNI_COMMAND={victim} CNI_CONTAINERID=a CNI_NETNS=/run/netns/a CNI_IFNAME=net1 \
             CNI_PATH=/opt/cni/bin /opt/cni/bin/hayate-cni </tmp/conf >/tmp/out 2>&1 & p=$!; usleep {}; kill -9 $p; wait $p; true",
            takes / TIMES * number
        );
        lab.guest.sh(&one)?;
        let left = lab.guest.sh("find /run/hayate-cni/attachments -name '*.json' | wc -l")?;
        halfway += usize::from(left.trim() != "0");
        // A plugin that manages addresses outlives the one who asked it.
        lab.guest.sh("while pidof host-local ld.so >/dev/null; do usleep 10000; done")?;
        if number % 2 == 0 {
            lab.gc(&[])?;
            // `host-local` of that version knows no GC; what it gave is given back by DEL.
            lab.cni("DEL", "a", &conf)?;
        } else {
            lab.cni("DEL", "a", &conf)?;
        }
        lab.at_home()
            .context(|| format!("{victim} was killed after {number}/{TIMES} of its time"))?;
    }
    lab.end_pod("a")?;
    Ok(format!("{TIMES} times, {halfway} of them halfway"))
}

/// The PF's VFs are taken away while a container has one.
pub(crate) fn functions_go_away(lab: &mut Lab) -> Result<String> {
    lab.pod("a")?;
    lab.cni("ADD", "a", &conf("1.1.0"))?;
    lab.enable(0)?;
    lab.refused("STATUS", "a", &conf("1.1.0"), 51)?;
    lab.refused("ADD", "b", &conf("1.1.0"), 3)?;
    lab.cni("DEL", "a", &conf("1.1.0"))?;
    lab.refused("STATUS", "a", &conf("1.1.0"), 50)?;
    lab.refused("ADD", "a", &conf("1.1.0"), 101)?;
    lab.enable(VFS)?;
    // They may have other names now; their addresses are the same.
    let macs = |all: &BTreeMap<String, String>| all.values().cloned().collect::<BTreeSet<_>>();
    let now = lab.interfaces()?;
    ensure!(macs(&now) == macs(&lab.home), "{now:?}");
    lab.home = now;
    lab.cni("ADD", "a", &conf("1.1.0"))?;
    lab.cni("DEL", "a", &conf("1.1.0"))?;
    lab.end_pod("a")?;
    lab.at_home()?;
    Ok(String::new())
}
