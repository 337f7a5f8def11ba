//! `hayate show`.

use super::args::Output;
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, port_table, units};
use api::{Disk, Health, Network, Port, PortState, Version, Vm, Worker, WorkerState};
use serde::Serialize;
use std::fmt::Write;

/// Everything, as `hayate show --json` prints it.
#[derive(Serialize)]
struct Overview {
    version: Version,
    health: Health,
    networks: Vec<Network>,
    vms: Vec<Vm>,
    ports: Vec<Port>,
    disks: Vec<Disk>,
    workers: Vec<Worker>,
}

pub(super) fn overview(client: &Client, output: Output) -> Result<(), Failure> {
    let all = Overview {
        version: client.get("/v1/version")?,
        health: client.get("/v1/health")?,
        networks: client.get("/v1/networks")?,
        vms: client.get("/v1/vms")?,
        ports: client.get("/v1/ports")?,
        disks: client.get("/v1/disks")?,
        workers: client.get("/v1/workers")?,
    };
    if output.json { out::json(&all) } else { out::text(&text(&all)) }
}

fn text(all: &Overview) -> String {
    let (version, health) = (&all.version, &all.health);
    let mut text = format!(
        "hayate {} ({}), process {}, up {}, {}\n",
        version.version,
        health.status,
        health.pid,
        units::age(health.since.age()),
        health.run_dir
    );
    let asleep = all.workers.iter().filter(|w| w.state == WorkerState::Asleep).count();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        text,
        "{}, {}, {}, {}, {} ({asleep} asleep)",
        units::count(all.networks.len(), "network"),
        units::count(all.vms.len(), "VM"),
        units::count(all.ports.len(), "port"),
        units::count(all.disks.len(), "disk"),
        units::count(all.workers.len(), "worker"),
    );
    if !all.networks.is_empty() {
        let mut table = Table::new(["NETWORK", ">MACS", "PORTS"]);
        for network in &all.networks {
            let ports = units::names(&network.ports);
            table.row([network.name.to_string(), network.macs.to_string(), ports]);
        }
        let _ = write!(text, "\n{table}");
    }
    if !all.ports.is_empty() {
        let _ = write!(text, "\n{}", port_table(&all.ports));
    }
    if !all.disks.is_empty() {
        let _ = write!(text, "\n{}", super::disk::table(&all.disks));
    }
    let bad = |port: &&Port| matches!(port.state, PortState::Failed | PortState::Faulted);
    for port in all.ports.iter().filter(bad) {
        let why = port.failure.as_deref().unwrap_or("no reason known");
        let _ = write!(text, "\n{} {}: {why}", port.name, port.state.as_str());
    }
    let bad = |disk: &&Disk| matches!(disk.state, PortState::Failed | PortState::Faulted);
    for disk in all.disks.iter().filter(bad) {
        let why = disk.failure.as_deref().unwrap_or("no reason known");
        let _ = write!(text, "\n{} {}: {why}", disk.name, disk.state.as_str());
    }
    text
}
