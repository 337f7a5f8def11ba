//! The daemon, a node with a PF, and its pods.

use std::time::Duration;

use api::Pf;
use e2e::guest::{Config, Guest};
use e2e::hayate::Hayate;
use e2e::netns::Netns;
use e2e::process::{pause, wait_for};
use e2e::{Context, Result, assets, ensure};
use serde_json::{Value, json};

/// VFs of the PF.
pub(crate) const VFS: u16 = 6;
/// Longest time anything may take that has no limit of its own.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(100);
const RUN: &str = "CNI_PATH=/opt/cni/bin /opt/cni/bin/hayate-cni 2>/tmp/cni.err";

/// See the module's description. The guest first: its sockets are in the daemon's folder.
pub(crate) struct Lab {
    pub(crate) guest: Guest,
    pub(crate) hayate: Hayate,
    /// Another host of the network, if a test wanted one. Its port has counters, so it stays to the end.
    pub(crate) outside: Option<Netns>,
}

impl Lab {
    /// Boots the node, with the agent running and all VFs enabled.
    pub(crate) fn boot() -> Result<Self> {
        let assets = assets::get()?;
        let initrd = assets::with_cni(assets)?;
        let hayate = Hayate::start(&[])?;
        hayate.network("pods")?;
        let channel = hayate.dir().join("node.channel");
        hayate
            .cli(&format!("vm add node --memory 512M --vcpus 1 --channel {}", channel.display()))?;
        hayate.cli(&format!("vf create --vm node --vfs {VFS} --queues 1"))?;
        let version: Vec<&str> = assets.qemu_version.split('.').take(2).collect();
        let printed = hayate.cli(&format!("vm qemu node --qemu-version {}", version.join(".")))?;
        let mut config = Config::new("node");
        config.initrd = Some(initrd);
        config.more = printed.split_whitespace().map(String::from).collect();
        let guest = Guest::start(assets, hayate.dir(), config)?;
        let mut lab = Self { guest, hayate, outside: None };
        lab.guest.wait_ready()?;
        lab.start()?;
        Ok(lab)
    }

    /// The agent, and the VFs, after each boot.
    pub(crate) fn start(&mut self) -> Result<()> {
        // The name of the port is a link to it where there is a udev.
        self.guest.sh(
            "mkdir -p /dev/virtio-ports; for d in /sys/class/virtio-ports/*; do \
             [ \"$(cat $d/name)\" != org.hayate.0 ] || ln -sf /dev/${d##*/} /dev/virtio-ports/org.hayate.0; done; \
             (hayate-agent run --channel /dev/virtio-ports/org.hayate.0 >>/tmp/agent.log 2>&1 </dev/null &)",
        )?;
        self.guest.sh(&format!("echo {VFS} >/sys/class/net/eth0/device/../sriov_numvfs"))?;
        wait_for("the VFs and the agent", LIMIT, || {
            pause(NAP)?;
            let running = self.pf()?.running == usize::from(VFS);
            let (status, _) = self.guest.try_sh("hayate-agent vf show eth0", LIMIT)?;
            let links = self.guest.sh("ls /sys/class/net")?;
            let all = links.split_whitespace().count() == usize::from(VFS) + 2;
            Ok((running && all && status == 0).then_some(()))
        })
        .context(|| self.guest.sh("cat /tmp/agent.log").unwrap_or_default())
    }

    /// Waits until all VFs have carrier again, and the agent its daemon.
    pub(crate) fn wait_running(&mut self) -> Result<()> {
        wait_for("the VFs and the agent", LIMIT, || {
            pause(NAP)?;
            let (status, _) = self.guest.try_sh("hayate-agent vf show eth0", LIMIT)?;
            Ok((status == 0 && self.pf()?.running == usize::from(VFS)).then_some(()))
        })
    }

    /// All is in order when the daemon ends.
    pub(crate) fn finish(lab: Self) -> Result<String> {
        let Self { guest, hayate, outside: _outside } = lab;
        let balance = hayate.conserved("pods")?;
        drop(guest);
        hayate.stop()?;
        Ok(format!("every frame is accounted for: {balance:?}"))
    }

    /// The PF as the daemon has it.
    pub(crate) fn pf(&self) -> Result<Pf> {
        let text = self.hayate.cli("vf show node-pf0 --json")?;
        serde_json::from_str(&text).context(|| format!("vf show --json printed {text}"))
    }

    /// What the daemon has of a VF.
    pub(crate) fn vf(&self, vf: u16) -> Result<api::PfFunction> {
        let pf = self.pf()?;
        pf.functions.into_iter().find(|one| one.vf == Some(vf)).context(|| format!("no VF {vf}"))
    }

    /// Frames of a VF that were dropped for this reason.
    pub(crate) fn dropped(&self, vf: u16, reason: &str) -> Result<u64> {
        Ok(self.hayate.port(&format!("node-pf0vf{vf}"))?.drops.get(reason).copied().unwrap_or(0))
    }

    /// Has the agent set something on a VF.
    pub(crate) fn set(&mut self, vf: u16, what: &str) -> Result<()> {
        self.guest.sh(&format!("hayate-agent vf set eth0 {vf} {what}")).map(drop)
    }

    /// A namespace for a pod.
    pub(crate) fn pod(&mut self, name: &str) -> Result<()> {
        self.guest.sh(&format!("ip netns add {name} && ip -n {name} link set lo up")).map(drop)
    }

    pub(crate) fn end_pod(&mut self, name: &str) -> Result<()> {
        self.guest.sh(&format!("ip netns del {name}")).map(drop)
    }

    /// The network for this VF, whose addresses in the pod end with its number and one.
    pub(crate) fn conf(&mut self, vf: u16, more: &Value) -> Result<Value> {
        let device = format!("basename $(readlink /sys/class/net/eth0/device/../virtfn{vf})");
        let device = self.guest.sh(&device)?.trim().to_owned();
        let ips = [format!("{}/24", ip(vf)), format!("{}/64", ip6(vf))];
        let mut conf = json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "hayate-cni",
            "runtimeConfig": { "deviceID": device, "ips": ips },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            conf[key] = value.clone();
        }
        Ok(conf)
    }

    /// Runs the plugin for a pod, `NAMESPACE/NAME` or one of the namespace `default`; its answer.
    pub(crate) fn try_cni(
        &mut self,
        command: &str,
        pod: &str,
        conf: &Value,
    ) -> Result<(i32, Value)> {
        let (namespace, pod) = pod.split_once('/').unwrap_or(("default", pod));
        let line = format!(
            "echo '{conf}' | CNI_COMMAND={command} CNI_CONTAINERID={pod} CNI_NETNS=/run/netns/{pod} CNI_IFNAME=net1 \
             CNI_ARGS='IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod}' {RUN}"
        );
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

    /// A pod with this VF, and its network, with what ADD answered.
    pub(crate) fn add(&mut self, pod: &str, vf: u16, more: &Value) -> Result<Value> {
        self.pod(pod.rsplit('/').next().unwrap_or(pod))?;
        let mut conf = self.conf(vf, more)?;
        conf["prevResult"] = self.cni("ADD", pod, &conf)?;
        self.cni("CHECK", pod, &conf)?;
        Ok(conf)
    }

    pub(crate) fn del(&mut self, pod: &str, conf: &Value) -> Result<()> {
        self.cni("DEL", pod, conf)?;
        self.end_pod(pod.rsplit('/').next().unwrap_or(pod))
    }

    /// Whether an echo comes back; waits for it if it is expected to.
    pub(crate) fn pings(&mut self, from: &str, to: &str, expected: bool) -> Result<()> {
        let patience = if expected { "-c 1 -w 20" } else { "-c 2 -i 0.2 -W 1" };
        let (status, said) =
            self.guest.try_sh(&format!("ip netns exec {from} ping {patience} {to}"), LIMIT)?;
        ensure!((status == 0) == expected, "{from} to {to}, should be {expected}: {said}");
        Ok(())
    }
}

/// Address in a pod with this VF.
pub(crate) fn ip(vf: u16) -> String {
    format!("10.66.0.{}", vf + 1)
}

/// The same of IPv6.
pub(crate) fn ip6(vf: u16) -> String {
    format!("fd66::{}", vf + 1)
}
