//! `hayate vf`.

use super::args::{Output, VfCommand, VfCreate};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, facts, units};
use api::{Name, Network, Pf, PfConfig};

pub(super) fn command(client: &Client, command: VfCommand) -> Result<(), Failure> {
    match command {
        VfCommand::Create(args) => create(client, *args),
        VfCommand::Delete { name } => client.delete(&format!("/v1/pfs/{name}")),
        VfCommand::List(output) => list(client, output),
        VfCommand::Show { name, output } => show(client, &name, output),
    }
}

fn create(client: &Client, args: VfCreate) -> Result<(), Failure> {
    let name = match args.name {
        Some(name) => name,
        None => format!("{}-pf0", args.vm).parse().map_err(|_| {
            Failure::usage("--name: say one, that of the VM is too long".to_owned())
        })?,
    };
    let network = match args.network {
        Some(network) => network,
        None => only_network(client)?,
    };
    let config = PfConfig {
        queues: args.queues,
        mtu: args.mtu,
        moderation: args.moderation,
        mac_limit: args.mac_limit,
        no_offload: args.no_offload,
        ..PfConfig::new(args.vm, network, args.vfs)
    };
    let checked = config.check().and_then(|()| config.functions(&name).map(drop));
    checked.map_err(|wrong| {
        Failure::usage(format!("--{}: {}", wrong.field.replace('_', "-"), wrong.message))
    })?;
    let pf: Pf = client.put(&format!("/v1/pfs/{name}"), &config)?;
    if args.output.json { out::json(&pf) } else { Ok(()) }
}

/// The network there is, if it is clear which.
fn only_network(client: &Client) -> Result<Name, Failure> {
    let mut networks: Vec<Network> = client.get("/v1/networks")?;
    match (networks.pop(), networks.is_empty()) {
        (Some(network), true) => Ok(network.name),
        (None, _) => Err(Failure::usage(
            "--network: there is none yet, `hayate network add NAME` makes one".to_owned(),
        )),
        (Some(_), false) => Err(Failure::usage(
            "--network: there are several, say which; `hayate network list` shows them".to_owned(),
        )),
    }
}

fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let pfs: Vec<Pf> = client.get("/v1/pfs")?;
    if output.json {
        return out::json(&pfs);
    }
    let mut table = Table::new(["PF", "VM", "NETWORK", "STATE", ">VFS", ">RUNNING"]);
    for pf in &pfs {
        let state = pf.functions.first().map(|function| function.state.as_str());
        table.row([
            pf.name.to_string(),
            pf.vm.to_string(),
            pf.network.to_string(),
            units::maybe(state),
            pf.vfs.to_string(),
            pf.running.to_string(),
        ]);
    }
    out::text(&table.to_string())
}

fn show(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let pf: Pf = client.get(&format!("/v1/pfs/{name}"))?;
    if output.json {
        return out::json(&pf);
    }
    let mut text = facts(&[
        ("PF", pf.name.to_string()),
        ("VM", pf.vm.to_string()),
        ("network", pf.network.to_string()),
        ("VFs", format!("{} of {} running", pf.running, pf.vfs)),
        ("queue pairs", pf.config.queues.map_or("one for each CPU".to_owned(), |n| n.to_string())),
        ("MTU", units::maybe(pf.config.mtu)),
        ("declared", units::origin(pf.origin).to_owned()),
    ]);
    let mut table = Table::new([
        ">VF",
        "PORT",
        "MAC",
        "CARRIER",
        "STATE",
        ">SINCE",
        ">FROM PORT",
        ">BYTES",
        ">TO PORT",
        ">BYTES",
        ">DROPS",
    ]);
    for function in &pf.functions {
        table.row([
            function.vf.map_or("PF".to_owned(), |vf| vf.to_string()),
            function.port.to_string(),
            function.mac.to_string(),
            if function.carrier { "yes" } else { "no" }.to_owned(),
            function.state.as_str().to_owned(),
            units::age(function.since.age()),
            units::number(function.from_port.frames),
            units::bytes(function.from_port.bytes),
            units::number(function.to_port.frames),
            units::bytes(function.to_port.bytes),
            units::number(function.dropped),
        ]);
    }
    text.push('\n');
    text.push_str(&table.to_string());
    out::text(&text)
}
