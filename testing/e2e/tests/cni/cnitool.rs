//! `cnitool`, of those who wrote the specification, runs the plugin: it reads lists of plugins, chooses their order, keeps
//! what ADD answered for CHECK and DEL, and takes stock before GC. Here it is not we who say what a runtime does.
//!
//! It says the text of an error and not its code. A script in front of the plugin keeps what that answered.

use std::collections::BTreeSet;
use std::time::Instant;

use e2e::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::lab::{LIMIT, Lab, VFS};

/// Networks are described here.
const NETWORKS: &str = "/etc/cni/net.d";
/// The plugins.
const PLUGINS: &str = "/opt/cni/bin";
/// The plugin, which keeps what it answered in `/tmp/said`.
const WITNESS: &str = "/tmp/witness";
/// The plugin, which is killed after `KILL_AFTER` microseconds.
const KILLER: &str = "/tmp/killer";
/// Where `cnitool` keeps what it knows of attachments.
const KNOWN: &str = "/var/lib/cni/results";

/// What `cnitool` said.
struct Said {
    status: i32,
    out: String,
    err: String,
}

/// A call of `cnitool` for a pod, with further variables of the environment.
fn call(verb: &str, network: &str, pod: &str, more: &str) -> String {
    format!(
        "NETCONFPATH={NETWORKS} CNI_IFNAME=net1 CNI_PATH={PLUGINS} {more} cnitool {verb} {network} /run/netns/{pod}"
    )
}

/// What a runtime that knows the pod's VF and addresses says besides.
fn device(vf: &str, number: usize) -> String {
    let wanted = json!({ "deviceID": vf, "ips": [format!("10.55.1.{number}/24")] });
    format!("CAP_ARGS='{wanted}'")
}

impl Lab {
    /// Describes the networks, and puts the scripts in front of the plugin.
    fn networks(&mut self) -> Result<()> {
        if self.guest.try_sh(&format!("test -x {KILLER}/hayate-cni"), LIMIT)?.0 == 0 {
            return Ok(());
        }
        let vf = |more: Value| {
            let mut plugin = json!({ "type": "hayate-cni", "pf": "eth0" });
            for (key, value) in more.as_object().into_iter().flatten() {
                plugin[key] = value.clone();
            }
            plugin
        };
        // That `host-local` and `tuning` are older than version 1.1.0.
        let addresses = vf(json!({"ipam": {
            "type": "host-local", "dataDir": "/run/host-local",
            "ranges": [[{"subnet": "10.55.0.0/24", "gateway": "10.55.0.1"}]], "routes": [{"dst": "10.66.0.0/16"}],
        }}));
        let tuning = json!({"type": "tuning", "sysctl": {"net.ipv4.conf.net1.arp_filter": "1"}});
        let plain = vf(json!({"capabilities": {"deviceID": true, "mac": true, "ips": true}}));
        let lists = [
            ("pods", "1.0.0", json!([addresses, tuning])),
            ("vfs", "1.1.0", json!([plain])),
            ("others", "1.1.0", json!([plain])),
            ("old", "0.2.0", json!([plain])),
            ("nothing", "1.1.0", json!([vf(json!({"min_tx_rate": 5}))])),
            ("nonsense", "1.1.0", json!([vf(json!({"mac": "x"}))])),
            ("nowhere", "1.1.0", json!([vf(json!({"pf": "eth99"}))])),
            ("host", "1.1.0", json!([vf(json!({"vlan": 5}))])),
        ];
        self.guest.sh(&format!("mkdir -p {NETWORKS} {WITNESS} {KILLER}"))?;
        for (name, version, plugins) in lists {
            let list = json!({"cniVersion": version, "name": name, "plugins": plugins});
            self.guest.sh(&format!("echo '{list}' >{NETWORKS}/{name}.conflist"))?;
        }
        let plugin = format!("{PLUGINS}/hayate-cni");
        let witness = format!(
            "#!/bin/sh\\nsaid=$({plugin} 2>/tmp/cni.err); status=$?\\necho \"$said\" | tee /tmp/said\\nexit $status\\n"
        );
        // What runs in the background has no input unless it is given one.
        let killer = format!(
            "#!/bin/sh\\nexec 3<&0\\n{plugin} <&3 & plugin=$!\\nusleep $KILL_AFTER\\nkill -9 $plugin\\nwait $plugin\\n"
        );
        for (dir, script) in [(WITNESS, witness), (KILLER, killer)] {
            let file = format!("{dir}/hayate-cni");
            self.guest.sh(&format!("printf '{script}' >{file} && chmod 755 {file}"))?;
        }
        Ok(())
    }

    fn try_cnitool(&mut self, verb: &str, network: &str, pod: &str, more: &str) -> Result<Said> {
        let line = format!("{} 2>/tmp/cnitool.err", call(verb, network, pod, more));
        let (status, out) = self.guest.try_sh(&line, LIMIT)?;
        Ok(Said { status, out, err: self.guest.sh("cat /tmp/cnitool.err")? })
    }

    fn cnitool(&mut self, verb: &str, network: &str, pod: &str, more: &str) -> Result<Value> {
        let Said { status, out, err } = self.try_cnitool(verb, network, pod, more)?;
        ensure!(status == 0, "cnitool {verb} {network} {pod}: {status}\n{out}\n{err}");
        Ok(if out.trim().is_empty() { Value::Null } else { serde_json::from_str(&out)? })
    }

    /// The plugin has to refuse that, with this code, and `cnitool` to say why.
    fn cnitool_refused(&mut self, verb: &str, network: &str, pod: &str, code: u32) -> Result<()> {
        let what = format!("cnitool {verb} {network} {pod}");
        let witness = format!("CNI_PATH={WITNESS}:{PLUGINS}");
        self.guest.sh("rm -f /tmp/said")?;
        let Said { status, out, err } = self.try_cnitool(verb, network, pod, &witness)?;
        let answer = self.guest.sh("cat /tmp/said")?;
        let answer: Value = serde_json::from_str(&answer)?;
        ensure!(answer["code"] == code, "{what}: not {code}: {answer:#}");
        let text = answer["msg"].as_str().unwrap_or_default();
        ensure!(status == 1 && !text.is_empty() && err.contains(text), "{what}: {out}\n{err}");
        Ok(())
    }

    /// The calls of `cnitool` for the pods `p1` to `p16` at once; seconds.
    fn all(&mut self, verb: &str) -> Result<f64> {
        let begun = Instant::now();
        let one = call(verb, "pods", "p$i", "");
        let script = format!(
            "for i in $(seq {VFS}); do ({one} >/tmp/out$i 2>/tmp/err$i; echo $? >/tmp/rc$i) & done; wait; cat /tmp/rc* | sort | uniq -c"
        );
        let said = self.guest.sh(&script)?;
        if said.trim() != format!("{VFS} 0") {
            bail!("{verb}: {said}\n{}", self.guest.sh("cat /tmp/out* /tmp/err*")?);
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    /// `cnitool` knows of no attachment, no address is taken, and no VF.
    fn nothing_left(&mut self) -> Result<()> {
        self.at_home()?;
        let known = self.guest.sh(&format!("ls {KNOWN} 2>/dev/null | wc -l"))?;
        let leases =
            self.guest.sh("ls /run/host-local/pods 2>/dev/null | grep -c '^10' || true")?;
        let left = (known.trim(), leases.trim());
        ensure!(left == ("0", "0"), "attachments cnitool knows, addresses: {left:?}");
        Ok(())
    }
}

/// The first address of a result, without its prefix.
fn address(result: &Value) -> String {
    let text = result["ips"][0]["address"].as_str().unwrap_or_default();
    text.split('/').next().unwrap_or_default().to_owned()
}

/// Two plugins in a row, the first of them with addresses of a third.
pub(crate) fn two_pods(lab: &mut Lab) -> Result<String> {
    lab.networks()?;
    let mut there = String::new();
    for pod in ["a", "b"] {
        lab.pod(pod)?;
        let result = lab.cnitool("add", "pods", pod, "")?;
        let interface = &result["interfaces"][0];
        let named =
            interface["name"] == "net1" && interface["sandbox"] == format!("/run/netns/{pod}");
        ensure!(named && result["cniVersion"] == "1.0.0", "{result:#}");
        lab.cnitool("check", "pods", pod, "")?;
        there = address(&result);
    }
    lab.ping("a", &there)?;
    let long =
        format!("ip netns exec b iperf3 -s -1 -D && ip netns exec a iperf3 -J -n 1M -c {there}");
    let sent: Value = serde_json::from_str(&lab.guest.sh(&long)?)?;
    ensure!(sent["end"]["sum_received"]["bytes"].as_u64() >= Some(1 << 20), "{sent:#}");
    let tuned = lab.guest.sh("ip netns exec a cat /proc/sys/net/ipv4/conf/net1/arp_filter")?;
    ensure!(tuned.trim() == "1", "the second plugin set nothing");
    lab.cnitool_refused("add", "pods", "a", 102)?;
    // Whoever is behind it in the list is asked, too.
    lab.guest.sh("ip netns exec b sh -c 'echo 0 >/proc/sys/net/ipv4/conf/net1/arp_filter'")?;
    let said = lab.try_cnitool("check", "pods", "b", "")?;
    ensure!(said.status == 1 && said.err.contains("arp_filter"), "{}", said.err);
    lab.guest.sh("ip -n a addr flush dev net1")?;
    lab.cnitool_refused("check", "pods", "a", 103)?;
    for pod in ["a", "b"] {
        lab.cnitool("del", "pods", pod, "")?;
        lab.cnitool("del", "pods", pod, "")?;
    }
    let said = lab.try_cnitool("check", "pods", "a", "")?;
    ensure!(said.status == 1, "CHECK of what is gone: {}", said.out);
    for pod in ["a", "b"] {
        lab.end_pod(pod)?;
        lab.cnitool("del", "pods", pod, "")?;
    }
    lab.nothing_left()?;
    Ok(format!("they talk by {there}"))
}

pub(crate) fn errors(lab: &mut Lab) -> Result<String> {
    lab.networks()?;
    lab.pod("a")?;
    for (network, code) in
        [("old", 1), ("nothing", 2), ("nonsense", 7), ("nowhere", 101), ("host", 104)]
    {
        lab.cnitool_refused("add", network, "a", code)?;
        // What was never made can be deleted, unless the configuration makes no sense.
        if matches!(network, "nowhere" | "host") {
            lab.cnitool("del", network, "a", "")?;
        }
    }
    lab.cnitool_refused("add", "vfs", "nobody", 3)?;
    lab.cnitool("del", "vfs", "nobody", "")?;
    lab.cnitool("status", "vfs", "a", "")?;
    for network in ["nowhere", "host"] {
        lab.cnitool_refused("status", network, "a", 50)?;
    }
    lab.end_pod("a")?;
    lab.nothing_left()?;
    Ok(String::new())
}

/// A pod's DEL comes when its VF and its address are another's.
pub(crate) fn late_del(lab: &mut Lab) -> Result<String> {
    lab.networks()?;
    let (vf, other) = (lab.vf(1)?, lab.vf(2)?);
    let (wanted, witness) = (device(&vf, 2), device(&other, 3));
    for pod in ["a", "b", "c"] {
        lab.pod(pod)?;
    }
    lab.cnitool("add", "vfs", "c", &witness)?;
    let result = lab.cnitool("add", "vfs", "a", &wanted)?;
    let right = result["interfaces"][0]["pciID"] == vf.as_str() && address(&result) == "10.55.1.2";
    ensure!(right, "{result:#}");
    lab.ping("c", "10.55.1.2")?;
    lab.end_pod("a")?;
    lab.cnitool("add", "vfs", "b", &wanted)?;
    lab.cnitool("del", "vfs", "a", &wanted)?;
    lab.cnitool("del", "vfs", "a", &wanted)?;
    lab.cnitool("check", "vfs", "b", &wanted)?;
    lab.ping("c", "10.55.1.2")?;
    for (pod, wanted) in [("b", &wanted), ("c", &witness)] {
        lab.cnitool("del", "vfs", pod, wanted)?;
        lab.end_pod(pod)?;
    }
    lab.nothing_left()?;
    Ok(format!("VF {vf} stayed with the second pod"))
}

/// `cnitool gc` names no valid attachment: all of the network are stale. Of those that it knows it has each deleted
/// first; what it has forgotten is left to the plugin.
pub(crate) fn stale(lab: &mut Lab) -> Result<String> {
    lab.networks()?;
    for pod in ["a", "b", "c", "d"] {
        lab.pod(pod)?;
        let network = if pod == "d" { "others" } else { "vfs" };
        lab.cnitool("add", network, pod, "")?;
    }
    lab.end_pod("a")?;
    let forget = |pod: &str| format!("rm $(grep -l /run/netns/{pod} {KNOWN}/*)");
    lab.guest.sh(&forget("a"))?;
    lab.guest.sh(&forget("b"))?;
    lab.cnitool("gc", "vfs", "none", "")?;
    ensure!(lab.interfaces()?.len() == VFS - 1, "not all that are stale came back");
    lab.cnitool("check", "others", "d", "")?;
    lab.cnitool("gc", "vfs", "none", "")?;
    lab.cnitool("gc", "others", "none", "")?;
    for pod in ["b", "c", "d"] {
        lab.end_pod(pod)?;
    }
    lab.nothing_left()?;
    Ok("one pod's namespace had ended, and two of three were forgotten".into())
}

/// The plugin is killed while `cnitool add` waits for it; GC has all put right.
pub(crate) fn killed(lab: &mut Lab) -> Result<String> {
    const TIMES: u128 = 8;
    lab.networks()?;
    lab.pod("a")?;
    let begun = Instant::now();
    lab.cnitool("add", "vfs", "a", "")?;
    // What cnitool does by itself is about as much as the plugin.
    let takes = begun.elapsed().as_micros() / 2;
    lab.cnitool("del", "vfs", "a", "")?;
    let mut halfway = 0;
    for number in 0..TIMES {
        let after = takes * number / TIMES;
        let kill = format!("KILL_AFTER={after} CNI_PATH={KILLER}");
        // It may have been done before.
        let said = lab.try_cnitool("add", "vfs", "a", &kill)?;
        let left = lab.guest.sh("find /run/hayate-cni/attachments -name '*.json' | wc -l")?;
        halfway += u32::from(left.trim() != "0" && said.status != 0);
        lab.cnitool("gc", "vfs", "a", "")?;
        lab.nothing_left()?;
    }
    lab.end_pod("a")?;
    Ok(format!("{TIMES} times, {halfway} of them halfway"))
}

/// All VFs are asked for at once, with addresses, and given back.
pub(crate) fn sixteen_at_once(lab: &mut Lab) -> Result<String> {
    lab.networks()?;
    for number in 0..=VFS {
        lab.pod(&format!("p{number}"))?;
    }
    let added = lab.all("add")?;
    ensure!(lab.interfaces()?.is_empty(), "some are still at home");
    let mut addresses = BTreeSet::new();
    for number in 1..=VFS {
        let result: Value = serde_json::from_str(&lab.guest.sh(&format!("cat /tmp/out{number}"))?)?;
        addresses.insert(address(&result));
    }
    ensure!(addresses.len() == VFS, "{addresses:?}");
    let them: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let ping = format!(
        "for to in {}; do ip netns exec p1 ping -c 1 -w 20 $to || exit 1; done",
        them.join(" ")
    );
    lab.guest.sh(&ping)?;
    lab.cnitool_refused("add", "pods", "p0", 11)?;
    lab.cnitool_refused("status", "vfs", "p0", 50)?;
    let checked = lab.all("check")?;
    let deleted = lab.all("del")?;
    lab.nothing_left()?;
    lab.guest.sh(&format!("for i in $(seq 0 {VFS}); do ip netns del p$i; done"))?;
    Ok(format!("added in {added:.1} s, checked in {checked:.1} s, deleted in {deleted:.1} s"))
}
