//! The only place that knows the data plane's types: translates between them and [`api`].
//!
//! Called by the registry on the daemon's control thread. Handles are not checked here: whoever
//! holds one has not given it back yet.

pub(crate) mod disk;
mod flow;
mod router;
mod rules;

pub(crate) use dataplane::rules::RuleSet;
pub(crate) use disk::{DiskHandle, DiskPlace, Source, bytes as image_bytes};
pub(crate) use flow::{Bypassed, Seen};
pub(crate) use router::{Gone, PlaneRouter};
pub(crate) use rules::{RulesDone, RulesError, rule_set};

use api::{Mac, PortState, Timestamp};
use dataplane::{
    DropReason, Host, NetworkSpec, Options, Policy, PortSpec, Prefix, TapSpec, VhostSpec, VlanMode,
};
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

/// An open network.
pub(crate) type NetworkHandle = dataplane::NetworkId;

/// An open port.
pub(crate) type PortHandle = dataplane::PortId;

/// A router.
pub(crate) type RouterHandle = dataplane::RouterId;

/// The host refused; the text says what and why.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct PlaneError {
    text: String,
    /// What to do about it, where that is known.
    pub(crate) hint: Option<&'static str>,
}

impl From<dataplane::HostError> for PlaneError {
    fn from(error: dataplane::HostError) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Some errors repeat their cause in their own text.
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self { text, hint: hint(&error) }
    }
}

fn hint(error: &dataplane::HostError) -> Option<&'static str> {
    use std::io::ErrorKind;
    let dataplane::HostError::Tap { source, .. } = error else { return None };
    match source.kind() {
        ErrorKind::PermissionDenied => Some("the daemon must run as root, or with CAP_NET_ADMIN"),
        ErrorKind::NotFound if source.to_string().contains("/dev/net/tun") => {
            Some("`modprobe tun` loads the driver")
        }
        ErrorKind::AlreadyExists => Some("choose another name with --ifname"),
        _ => None,
    }
}

/// What an open port is doing.
pub(crate) struct Live {
    pub(crate) state: PortState,
    pub(crate) since: Timestamp,
    pub(crate) failure: Option<String>,
    pub(crate) last_fault: Option<String>,
    pub(crate) sessions: u64,
    pub(crate) features: u64,
    pub(crate) mtu: Option<u16>,
    pub(crate) mac: Option<Mac>,
    pub(crate) page_size: Option<usize>,
    pub(crate) from_port: api::Traffic,
    pub(crate) to_port: api::Traffic,
    pub(crate) flood_copies: u64,
    pub(crate) interrupts: u64,
    pub(crate) deferred: u64,
    pub(crate) drops: Vec<(&'static str, u64)>,
    pub(crate) queues: Vec<api::Queue>,
}

/// A learned address and the port it is behind.
pub(crate) struct Learned {
    pub(crate) mac: Mac,
    pub(crate) vlan: Option<u16>,
    pub(crate) port: PortHandle,
    pub(crate) age: Duration,
    pub(crate) fixed: bool,
}

/// The data plane of this daemon.
#[derive(Clone)]
pub(crate) struct Plane {
    host: Host,
}

impl Plane {
    /// Starts the workers; sessions run on the calling runtime.
    pub(crate) fn start(
        cpus: Option<Vec<usize>>,
        polling: pace::Profile,
        balance: bool,
    ) -> Result<Self, PlaneError> {
        let options = Options { cpus, polling, balance, ..Options::default() };
        Ok(Self { host: Host::start(&options, tokio::runtime::Handle::current())? })
    }

    pub(crate) fn add_network(
        &self,
        name: &api::Name,
        config: &api::NetworkConfig,
    ) -> Result<NetworkHandle, PlaneError> {
        Ok(self.host.add_network(&NetworkSpec {
            name: name.to_string(),
            mac_limit: config.mac_limit as usize,
            mac_age: Duration::from_secs(config.mac_age.into()),
        })?)
    }

    pub(crate) fn remove_network(&self, network: NetworkHandle) -> Result<(), PlaneError> {
        Ok(self.host.remove_network(network)?)
    }

    /// Opens a port with flow rules, if it has any; `socket`, and `rings`, the file for the positions of its
    /// packed rings, are used for vhost only.
    pub(crate) async fn open_port(
        &self,
        name: &api::Name,
        config: &api::PortConfig,
        network: NetworkHandle,
        (socket, rings): (PathBuf, PathBuf),
        rules: Option<RuleSet>,
    ) -> Result<PortHandle, PlaneError> {
        let spec = PortSpec {
            name: name.to_string(),
            network,
            vlan: vlan_mode(config),
            mac_limit: config.mac_limit.map(|limit| limit as usize),
            policy: policy(name, config),
            mtu: config.mtu,
            worker: config.worker,
            kind: kind(config, socket, rings),
        };
        Ok(self.host.add_port_with(spec, rules).await?)
    }

    pub(crate) async fn close_port(&self, port: PortHandle) -> Result<(), PlaneError> {
        Ok(self.host.remove_port(port).await?)
    }

    /// What the port is doing; `None` once it is closed.
    pub(crate) fn live(&self, port: PortHandle) -> Option<Live> {
        let status = self.host.port_status(port)?;
        let (state, failure) = disk::state(&status.state);
        Some(Live {
            state,
            since: status.since.into(),
            failure,
            last_fault: status.last_fault,
            sessions: status.sessions,
            features: status.features,
            mtu: status.mtu,
            mac: status.mac.map(Mac),
            page_size: status.page_size,
            from_port: traffic(status.from_port),
            to_port: traffic(status.to_port),
            flood_copies: status.flood_copies,
            interrupts: status.interrupts,
            deferred: status.deferred,
            drops: status.drops.into_iter().map(|(reason, n)| (reason.name(), n)).collect(),
            queues: status.queues.iter().map(queue).collect(),
        })
    }

    /// Enforces on a port what its configuration says now: its VLANs and its policy.
    pub(crate) async fn configure(
        &self,
        port: PortHandle,
        name: &api::Name,
        before: &api::PortConfig,
        after: &api::PortConfig,
    ) -> Result<(), PlaneError> {
        if vlan_mode(before) != vlan_mode(after) {
            self.host.set_vlan(port, vlan_mode(after)).await?;
        }
        Ok(self.host.set_policy(port, &policy(name, after)).await?)
    }

    /// Has a worker serve a port's queue, or all; `None`: whichever is best.
    pub(crate) async fn move_port(
        &self,
        port: PortHandle,
        placement: &api::Placement,
    ) -> Result<(), PlaneError> {
        Ok(self.host.move_port(port, placement.queue, placement.worker).await?)
    }

    pub(crate) fn workers(&self) -> Vec<api::Worker> {
        self.host.workers().into_iter().map(worker).collect()
    }

    pub(crate) fn learned(&self, network: NetworkHandle) -> Vec<Learned> {
        let entries = self.host.fdb(network).into_iter();
        entries
            .map(|entry| Learned {
                mac: Mac(entry.mac),
                vlan: entry.vlan,
                port: entry.port,
                age: entry.age,
                fixed: entry.fixed,
            })
            .collect()
    }

    /// Closes all ports and joins the workers.
    pub(crate) async fn shutdown(&self) {
        self.host.shutdown().await;
    }
}

/// What a drop reason means, by its name.
pub(crate) fn drop_help(name: &str) -> Option<&'static str> {
    let reason = DropReason::ALL.iter().find(|reason| reason.name() == name)?;
    Some(reason.help())
}

fn vlan_mode(config: &api::PortConfig) -> VlanMode {
    match (&config.trunk, config.vlan) {
        (Some(set), _) => VlanMode::Trunk { allowed: set.ids().collect(), native: config.native },
        (None, Some(vlan)) => VlanMode::Access(vlan),
        (None, None) => VlanMode::None,
    }
}

fn policy(name: &api::Name, config: &api::PortConfig) -> Policy {
    let api::PortPolicy { mac: _, spoofchk, addresses, trust, qos, max_tx_rate, link } =
        &config.policy;
    let prefix = |prefix: &api::channel::Prefix| Prefix::new(prefix.address(), prefix.length());
    Policy {
        mac: config.card(name).map(|mac| dataplane::Mac(mac.0)),
        spoofchk: *spoofchk,
        addresses: addresses.iter().filter_map(prefix).collect(),
        trust: *trust,
        qos: *qos,
        max_tx_rate: *max_tx_rate,
        link: match link {
            api::LinkState::Auto => dataplane::LinkState::Auto,
            api::LinkState::Enable => dataplane::LinkState::Enable,
            api::LinkState::Disable => dataplane::LinkState::Disable,
        },
    }
}

fn kind(config: &api::PortConfig, socket: PathBuf, rings: PathBuf) -> dataplane::PortKind {
    let queues = config.queue_pairs();
    match config.kind {
        api::PortKind::Vhost => dataplane::PortKind::Vhost(VhostSpec {
            socket,
            mode: socket_mode(config.mode),
            queues,
            moderation: match config.moderation.unwrap_or_default() {
                api::Moderation::Off => dataplane::Moderation::Off,
                api::Moderation::Adaptive => dataplane::Moderation::Adaptive,
                api::Moderation::Fixed { frames, micros } => dataplane::Moderation::Fixed {
                    frames,
                    time: Duration::from_micros(micros.into()),
                },
            },
            features_off: api::Offload::features_off(&config.no_offload),
            rings: Some(rings),
        }),
        api::PortKind::Tap => dataplane::PortKind::Tap(TapSpec {
            ifname: config.ifname.clone().unwrap_or_default(),
            netns: config.netns.clone(),
            queues,
        }),
    }
}

fn socket_mode(mode: Option<api::SocketMode>) -> dataplane::SocketMode {
    match mode.unwrap_or_default() {
        api::SocketMode::Server => dataplane::SocketMode::Server,
        api::SocketMode::Client => dataplane::SocketMode::Client,
    }
}

fn traffic(traffic: dataplane::Traffic) -> api::Traffic {
    api::Traffic {
        frames: traffic.frames,
        bytes: traffic.bytes,
        gso_frames: traffic.gso_frames,
        csum_completed: traffic.csum_completed,
        segmented: traffic.segmented,
        segments: traffic.segments,
    }
}

fn queue(queue: &dataplane::QueueStatus) -> api::Queue {
    api::Queue {
        index: queue.index,
        dir: queue.dir.to_string(),
        size: queue.size,
        packed: queue.packed,
        running: queue.running,
        enabled: queue.enabled,
        worker: queue.worker,
        pinned: queue.pinned,
        node: queue.node,
        frames: queue.frames,
        kicks: queue.kicks,
        interrupts: queue.interrupts,
        deferred: queue.deferred,
    }
}

fn worker(worker: dataplane::WorkerStatus) -> api::Worker {
    // Ports get their names from the registry, so each one parses; one that did not would only
    // be missing from this list.
    let queues = worker.queues.into_iter().filter_map(|queue| {
        Some(api::WorkerQueue {
            port: queue.port.parse().ok()?,
            queue: queue.index,
            pinned: queue.pinned,
            node: queue.node,
            load_percent: percent(queue.load),
            frames_per_second: queue.frames_per_second,
        })
    });
    api::Worker {
        id: worker.id,
        cpu: worker.cpu,
        node: worker.node,
        load_percent: percent(worker.load),
        frames_per_second: worker.frames_per_second,
        state: match worker.state {
            dataplane::WorkerState::Polling => api::WorkerState::Polling,
            dataplane::WorkerState::Napping => api::WorkerState::Napping,
            dataplane::WorkerState::Asleep => api::WorkerState::Asleep,
        },
        queues: queues.collect(),
        polls: worker.polls,
        busy_polls: worker.busy_polls,
        busy_us: worker.busy.as_micros() as u64,
        naps: worker.naps,
        sleeps: worker.sleeps,
        frames: worker.frames,
    }
}

fn percent(share: f64) -> u8 {
    (share.clamp(0.0, 1.0) * 100.0).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_explain_every_drop_reason() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/networks.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        for reason in DropReason::ALL {
            let line = format!("| `{}` | {} |\n", reason.name(), reason.help());
            assert!(docs.contains(&line), "docs/networks.md lacks: {line}");
            assert_eq!(drop_help(reason.name()), Some(reason.help()));
        }
        assert_eq!(drop_help("no-such-reason"), None);
    }
}
