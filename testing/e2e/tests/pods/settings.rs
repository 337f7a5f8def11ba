//! What a guest sets on its VFs holds at the host.

use std::fs;

use api::LinkState;
use e2e::netns::Netns;
use e2e::process::wait_for;
use e2e::{Context, Result, ensure};
use serde_json::json;

use crate::lab::{LIMIT, Lab, ip};

/// An address that no VF has by itself.
const ANOTHER: &str = "02:00:00:00:66:01";

/// `hayate-agent vf set`, for the VFs of pods that have no settings of their own.
pub(crate) fn by_hand(lab: &mut Lab) -> Result<String> {
    let none = json!({});
    let confs = [lab.add("a", 0, &none)?, lab.add("b", 1, &none)?];
    let (a, b) = (&ip(0), &ip(1));
    lab.pings("a", b, true)?;

    lab.set(0, "vlan 10")?;
    lab.pings("a", b, false)?;
    lab.set(1, "vlan 10 qos 3")?;
    lab.pings("a", b, true)?;
    ensure!(lab.vf(1)?.settings.qos == Some(3), "{:?}", lab.vf(1)?);
    lab.set(0, "vlan 0")?;
    lab.set(1, "vlan 0")?;
    lab.pings("b", a, true)?;

    // The pod takes another address by itself; held to its own it cannot.
    lab.set(0, "spoofchk on")?;
    lab.guest.sh(&format!("ip -n a link set net1 address {ANOTHER}; ip -n b neigh flush all"))?;
    let before = lab.dropped(0, "spoofed-mac")?;
    lab.pings("a", b, false)?;
    let spoofed = lab.dropped(0, "spoofed-mac")? - before;
    ensure!(spoofed > 0, "nothing was dropped as spoofed");
    lab.set(0, &format!("mac {ANOTHER}"))?;
    lab.pings("a", b, true)?;
    let held = lab.vf(0)?;
    ensure!(held.settings.mac.to_string() == ANOTHER && held.settings.spoofchk, "{held:?}");
    lab.set(0, "mac 00:00:00:00:00:00 spoofchk off")?;

    lab.set(0, "state disable")?;
    lab.pings("a", b, false)?;
    lab.set(0, "state auto")?;
    lab.pings("a", b, true)?;

    // A datagram that is longer than what comes at once.
    lab.set(0, "rate 1")?;
    let long = format!("ip netns exec a ping -c 1 -W 1 -s 20000 {b}");
    let (status, said) = lab.guest.try_sh(&long, std::time::Duration::from_secs(30))?;
    ensure!(status != 0, "{said}");
    ensure!(lab.dropped(0, "rate-exceeded")? > 0, "nothing was over the rate");
    lab.set(0, "rate 0")?;
    lab.guest.sh(&long)?;

    // What the operator set is his to lift.
    lab.hayate.cli("port set node-pf0vf0 --max-tx-rate 100 --spoofchk on")?;
    for what in ["rate 101", "rate 0", "spoofchk off", "rate 50 spoofchk off"] {
        let set = format!("hayate-agent vf set eth0 0 {what} 2>&1");
        let (status, said) = lab.guest.try_sh(&set, std::time::Duration::from_secs(30))?;
        ensure!(status == 1 && said.contains("operator"), "{what}: {status}, {said}");
    }
    ensure!(lab.vf(0)?.settings.rate == 100, "{:?}", lab.vf(0)?);
    lab.hayate.cli("port set node-pf0vf0 --max-tx-rate off --spoofchk off")?;
    for (pod, conf) in ["a", "b"].into_iter().zip(&confs) {
        lab.del(pod, conf)?;
    }
    ensure!(lab.vf(0)?.guest.is_default() && lab.vf(1)?.guest.is_default(), "{:?}", lab.pf()?);
    Ok(format!("VLAN, address, check, link, rate; {spoofed} frames were spoofed"))
}

/// The same settings in the network's configuration.
pub(crate) fn by_the_plugin(lab: &mut Lab) -> Result<String> {
    let vlan = json!({ "pf": "eth0", "vlan": 20, "vlanQoS": 5, "spoofchk": "on", "max_tx_rate": 100, "hostMac": true });
    let confs = [
        lab.add("a", 0, &{
            let mut own = vlan.clone();
            own["mac"] = json!(ANOTHER);
            own
        })?,
        lab.add("b", 1, &vlan)?,
        lab.add("c", 2, &json!({}))?,
    ];
    lab.pings("a", &ip(1), true)?;
    lab.pings("a", &ip(2), false)?;
    lab.pings("c", &ip(1), false)?;
    let a = lab.vf(0)?.settings;
    let holds = a.mac.to_string() == ANOTHER && a.vlan == 20 && a.spoofchk && a.rate == 100;
    ensure!(holds && a.qos == Some(5) && a.state == LinkState::Auto, "{a:?}");
    tagged(lab, "a", "vlan 20, p 5,")?;
    // Somebody else changes it: CHECK says so.
    for another in ["vlan 20 qos 4", "vlan 20", "vlan 21 qos 5"] {
        lab.set(0, another)?;
        let (status, said) = lab.try_cni("CHECK", "a", &confs[0])?;
        let settings = said["details"].as_str().is_some_and(|text| text.contains("settings"));
        ensure!(status == 1 && said["code"] == 103 && settings, "{another}: {said:#}");
    }
    // An operator who does not allow it.
    lab.hayate.cli("port set node-pf0vf3 --max-tx-rate 10")?;
    lab.pod("d")?;
    let refused = lab.conf(3, &vlan)?;
    let (status, said) = lab.try_cni("ADD", "d", &refused)?;
    ensure!(status == 1 && said["code"] == 104, "{said:#}");
    ensure!(lab.vf(3)?.guest.is_default(), "{:?}", lab.vf(3)?);
    lab.hayate.cli("port set node-pf0vf3 --max-tx-rate off")?;
    lab.end_pod("d")?;
    for (pod, conf) in ["a", "b", "c"].into_iter().zip(&confs) {
        lab.del(pod, conf)?;
    }
    let left = lab.pf()?.functions.into_iter().find(|one| !one.guest.is_default());
    ensure!(left.is_none(), "{left:?}");
    Ok("in its VLAN, with its address; DEL sets it back".into())
}

/// Frames of a pod leave the switch with this tag, where they have one.
fn tagged(lab: &mut Lab, pod: &str, tag: &str) -> Result<()> {
    let outside = Netns::new()?;
    lab.hayate.tap("outside", "pods", outside.name(), "--trunk 20")?;
    outside.ip("link set outside up")?;
    let log = lab.hayate.dir().join("outside.log");
    let capture = outside.start("tcpdump -Z root -i outside -U -l -e -nn arp", &log)?;
    let said = |what: &str| Ok(fs::read_to_string(&log)?.contains(what).then_some(()));
    wait_for("tcpdump", LIMIT, || said("listening"))?;
    // Nobody has that address: the question goes to all.
    lab.pings(pod, &ip(99), false)?;
    wait_for(tag, LIMIT, || said(tag)).context(|| fs::read_to_string(&log).unwrap_or_default())?;
    drop(capture);
    lab.outside = Some(outside);
    Ok(())
}

/// A restart of the daemon or the agent keeps what is set, a boot of the node ends it.
pub(crate) fn another_boot(lab: &mut Lab) -> Result<String> {
    lab.set(4, "vlan 30 spoofchk on")?;
    let before = lab.vf(4)?.guest;
    lab.hayate.kill9();
    lab.hayate.launch()?;
    ensure!(lab.vf(4)?.guest == before, "{:?}", lab.vf(4)?);
    lab.guest.reboot()?;
    lab.start()?;
    ensure!(lab.vf(4)?.guest.is_default(), "{:?}", lab.vf(4)?);
    Ok(String::new())
}
