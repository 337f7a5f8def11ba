//! The guest with its PF and VFs, and how its programs are run.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::guest::{Config, Guest};
use e2e::hayate::Hayate;
use e2e::process::{pause, wait_for};
use e2e::{Result, argv, assets, ensure};
use serde_json::{Value, json};

/// VFs of the PF.
pub(crate) const VFS: usize = 16;
/// Longest time anything may take that has no limit of its own.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const NAP: Duration = Duration::from_millis(100);
/// How the plugin is run; its answer is behind what the guest's programs say.
const RUN: &str = "CNI_PATH=/opt/cni/bin /opt/cni/bin/hayate-cni 2>/tmp/cni.err";

pub(crate) struct Lab {
    pub(crate) guest: Guest,
    pub(crate) hayate: Hayate,
    /// Interfaces of the VFs with their addresses, as they were before anything was done.
    pub(crate) home: BTreeMap<String, String>,
    /// The PF's address on the bus.
    pf: String,
    _dir: tempfile::TempDir,
}

/// A configuration of network `pods`.
pub(crate) fn conf(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "pods", "type": "hayate-cni", "pf": "eth0" })
}

/// The same with addresses of `host-local`.
pub(crate) fn with_addresses() -> Value {
    let mut conf = conf("1.0.0");
    conf["ipam"] = json!({
        "type": "host-local", "dataDir": "/run/host-local",
        "ranges": [[{"subnet": "10.55.0.0/24", "gateway": "10.55.0.1"}]], "routes": [{"dst": "10.66.0.0/16"}],
    });
    conf
}

pub(crate) fn boot() -> Result<Lab> {
    let assets = assets::get()?;
    let initrd = assets::with_cni(assets)?;
    let hayate = Hayate::start(&[])?;
    hayate.network("pods")?;
    let dir = tempfile::Builder::new().prefix("hayate-e2e-").tempdir()?;
    let mut config = Config::new("pods");
    config.initrd = Some(initrd);
    config.more = argv!["-device", "pcie-root-port,id=rp0,bus=pcie.0,chassis=1,slot=1"];
    // VFs first; the PF is the lowest function.
    for number in (0..=VFS).rev() {
        let name = if number == 0 { "pf".to_owned() } else { format!("vf{number}") };
        let socket = hayate.vhost(&name, "pods", "")?;
        let function = format!("addr={:#x}.{:#x}", number / 8, number % 8);
        let role = if number == 0 { "id=pf0" } else { "sriov-pf=pf0" };
        config.more.extend(argv![
            "-chardev",
            format!("socket,id=c{name},path={},reconnect-ms=200", socket.display()),
            "-netdev",
            format!("vhost-user,id=n{name},chardev=c{name}"),
            "-device",
            format!("virtio-net-pci,bus=rp0,{function},netdev=n{name},{role},mac=52:54:00:00:03:{number:02x}")
        ]);
    }
    let mut guest = Guest::start(assets, dir.path(), config)?;
    guest.wait_ready()?;
    let pf = guest.sh("basename $(realpath /sys/class/net/eth0/device/..)")?.trim().to_owned();
    let mut lab = Lab { guest, hayate, home: BTreeMap::new(), pf, _dir: dir };
    lab.enable(VFS)?;
    lab.home = lab.interfaces()?;
    Ok(lab)
}

impl Lab {
    /// So many VFs, and waits for their interfaces.
    pub(crate) fn enable(&mut self, vfs: usize) -> Result<()> {
        self.guest.sh(&format!("echo {vfs} >/sys/bus/pci/devices/{}/sriov_numvfs", self.pf))?;
        wait_for("the interfaces of the VFs", LIMIT, || {
            pause(NAP)?;
            Ok((self.interfaces()?.len() == vfs).then_some(()))
        })
    }

    /// The VFs' interfaces that the host of the containers has.
    pub(crate) fn interfaces(&mut self) -> Result<BTreeMap<String, String>> {
        let text = self.guest.sh("ip -j link show")?;
        let links: Vec<Value> = serde_json::from_str(&text)?;
        let text = |link: &Value, key: &str| link[key].as_str().unwrap_or_default().to_owned();
        let of = links
            .iter()
            .filter(|link| !["lo", "eth0"].contains(&link["ifname"].as_str().unwrap_or("")));
        Ok(of.map(|link| (text(link, "ifname"), text(link, "address"))).collect())
    }

    /// Nobody has a VF, and they are as they were.
    pub(crate) fn at_home(&mut self) -> Result<()> {
        let now = self.interfaces()?;
        let err = self.guest.sh("cat /tmp/cni.err; ls /run/hayate-cni/attachments")?;
        ensure!(now == self.home, "{now:?} instead of {:?}\n{err}", self.home);
        let left = self.guest.sh("find /run/hayate-cni/attachments -name '*.json' | wc -l")?;
        ensure!(left.trim() == "0", "{left} records are left");
        Ok(())
    }

    pub(crate) fn pod(&mut self, name: &str) -> Result<()> {
        self.guest.sh(&format!("ip netns add {name} && ip -n {name} link set lo up")).map(drop)
    }

    pub(crate) fn end_pod(&mut self, name: &str) -> Result<()> {
        self.guest.sh(&format!("ip netns del {name}")).map(drop)
    }

    /// The address of a VF on the bus.
    pub(crate) fn vf(&mut self, number: usize) -> Result<String> {
        let link = format!("/sys/bus/pci/devices/{}/virtfn{}", self.pf, number - 1);
        Ok(self.guest.sh(&format!("basename $(readlink {link})"))?.trim().to_owned())
    }

    /// Runs the plugin for a container; its answer.
    pub(crate) fn try_cni(
        &mut self,
        command: &str,
        pod: &str,
        conf: &Value,
    ) -> Result<(i32, Value)> {
        let line = line(command, pod, conf);
        let (status, said) = self.guest.try_sh(&line, LIMIT)?;
        let answer =
            if said.trim().is_empty() { Value::Null } else { serde_json::from_str(&said)? };
        Ok((status, answer))
    }

    pub(crate) fn cni(&mut self, command: &str, pod: &str, conf: &Value) -> Result<Value> {
        let (status, answer) = self.try_cni(command, pod, conf)?;
        let err = if status == 0 { String::new() } else { self.guest.sh("cat /tmp/cni.err")? };
        ensure!(status == 0, "{command} {pod}: {answer:#}\n{err}");
        Ok(answer)
    }

    /// The plugin has to refuse that, with this code.
    pub(crate) fn refused(
        &mut self,
        command: &str,
        pod: &str,
        conf: &Value,
        code: u32,
    ) -> Result<()> {
        let (status, answer) = self.try_cni(command, pod, conf)?;
        ensure!(status == 1 && answer["code"] == code, "{command} {pod}: not {code}: {answer:#}");
        ensure!(answer["msg"].is_string() && answer["details"].is_string(), "{answer:#}");
        Ok(())
    }

    pub(crate) fn gc(&mut self, valid: &[&str]) -> Result<()> {
        let valid: Vec<Value> =
            valid.iter().map(|pod| json!({ "containerID": pod, "ifname": "net1" })).collect();
        let mut conf = conf("1.1.0");
        conf["cni.dev/valid-attachments"] = json!(valid);
        self.cni("GC", "none", &conf).map(drop)
    }

    pub(crate) fn ping(&mut self, from: &str, to: &str) -> Result<()> {
        self.guest.sh(&format!("ip netns exec {from} ping -c 2 -i 0.2 -w 20 {to}")).map(drop)
    }
}

pub(crate) fn line(command: &str, pod: &str, conf: &Value) -> String {
    format!(
        "echo '{conf}' | CNI_COMMAND={command} CNI_CONTAINERID={pod} CNI_NETNS=/run/netns/{pod} CNI_IFNAME=net1 {RUN}"
    )
}

/// The configuration with what ADD answered.
pub(crate) fn after(conf: &Value, result: &Value) -> Value {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    conf
}

/// The configuration for this VF, with addresses that end with this number.
pub(crate) fn device(vf: &str, number: u8) -> Value {
    let mut conf = conf("1.1.0");
    let ips = [format!("10.55.1.{number}/24"), format!("fd55::{number}/64")];
    conf["runtimeConfig"] = json!({ "deviceID": vf, "ips": ips });
    conf
}
