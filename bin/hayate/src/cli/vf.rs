//! `hayate vf`.

use super::args::{Output, VfCommand, VfCreate, VfSet};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, facts, units};
use api::channel::{FlowCursor, FlowRest, Flows};
use api::rule::{FlowDefault, FlowDirection, FlowLine};
use api::{GuestLimits, Name, Network, Pf, PfConfig, PfFunction, Wrong};

pub(super) fn command(client: &Client, command: VfCommand) -> Result<(), Failure> {
    match command {
        VfCommand::Create(args) => create(client, *args),
        VfCommand::Delete { name } => client.delete(&format!("/v1/pfs/{name}")),
        VfCommand::Set(args) => set(client, args),
        VfCommand::List(output) => list(client, output),
        VfCommand::Show { name, output } => show(client, &name, output),
        VfCommand::Rules { name, clear: true, .. } => {
            client.delete(&format!("/v1/pfs/{name}/rules"))
        }
        VfCommand::Rules { name, clear: false, output } => rules(client, &name, output),
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
        queues: args.traffic.queues,
        vlan: args.traffic.vlan,
        trunk: args.traffic.trunk,
        native: args.traffic.native,
        mtu: args.traffic.mtu,
        moderation: args.traffic.moderation,
        mac_limit: args.traffic.mac_limit,
        no_offload: args.traffic.no_offload,
        guest: args.guest.over(GuestLimits::default()),
        ..PfConfig::new(args.vm, network, args.vfs)
    };
    let config = PfConfig {
        rules_max: args.rules_max.unwrap_or(config.rules_max),
        rule_rate: args.rule_rate.unwrap_or(config.rule_rate),
        meters_max: args.meters_max.unwrap_or(config.meters_max),
        connections_max: args.connections_max.unwrap_or(config.connections_max),
        ..config
    };
    let checked = config.check().and_then(|()| config.functions(&name).map(drop));
    checked.map_err(|wrong| usage(&wrong))?;
    let pf: Pf = client.put(&format!("/v1/pfs/{name}"), &config)?;
    if args.output.json { out::json(&pf) } else { Ok(()) }
}

fn usage(wrong: &Wrong) -> Failure {
    let field = match wrong.field {
        "max_rate" => "guest-max-rate".to_owned(),
        other => other.replace('_', "-"),
    };
    Failure::usage(format!("--{field}: {}", wrong.message))
}

fn set(client: &Client, args: VfSet) -> Result<(), Failure> {
    let path = format!("/v1/pfs/{}", args.name);
    let pf: Pf = client.get(&path)?;
    let limits = args.guest.over(pf.config.guest);
    limits.check().map_err(|wrong| usage(&wrong))?;
    let pf: Pf = client.put(&format!("{path}/guest"), &limits)?;
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
        ("flow rules", format!("{} of {}", pf.rules, pf.config.rules_max)),
        ("the guest may", may(&pf.config.guest)),
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
            function.settings.mac.to_string(),
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
    text.push('\n');
    text.push_str(&settings(&pf.functions));
    out::text(&text)
}

fn may(limits: &GuestLimits) -> String {
    let mut words: Vec<&str> = limits.may.iter().map(|right| right.as_str()).collect();
    if words.is_empty() {
        words.push("take away from what is set here");
    }
    let most = limits.max_rate.map(|rate| format!(", at most {rate} Mbit/s"));
    format!("{}{}", words.join(" "), most.unwrap_or_default())
}

/// What holds for each function, and which of that its guest has set.
fn settings(functions: &[PfFunction]) -> String {
    let mut table = Table::new([
        ">VF",
        ">VLAN",
        ">QOS",
        "SPOOFCHK",
        "TRUST",
        ">MBIT/S",
        "LINK",
        "SET BY THE GUEST",
    ]);
    let on = |on: bool| if on { "on" } else { "off" }.to_owned();
    for PfFunction { vf, settings, guest, .. } in functions {
        let set = [
            ("mac", guest.mac.is_some()),
            ("vlan", guest.vlan.is_some()),
            ("qos", guest.qos.is_some()),
            ("spoofchk", guest.spoofchk.is_some()),
            ("trust", guest.trust.is_some()),
            ("rate", guest.rate.is_some()),
            ("state", guest.state.is_some()),
        ];
        let set: Vec<&str> =
            set.into_iter().filter_map(|(name, set)| set.then_some(name)).collect();
        table.row([
            vf.map_or("PF".to_owned(), |vf| vf.to_string()),
            units::maybe(Some(settings.vlan).filter(|vlan| *vlan != 0)),
            units::maybe(settings.qos),
            on(settings.spoofchk),
            on(settings.trust),
            units::maybe(Some(settings.rate).filter(|rate| *rate != 0)),
            settings.state.as_str().to_owned(),
            if set.is_empty() { "-".to_owned() } else { set.join(" ") },
        ]);
    }
    table.to_string()
}

/// All flow rules of a PF, in the words with which its guest makes them.
fn rules(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let mut all: Flows = client.get(&format!("/v1/pfs/{name}/rules"))?;
    while let Some(FlowCursor::Rule(after)) = all.next {
        let more: Flows = client.get(&format!("/v1/pfs/{name}/rules?after={after}"))?;
        all.rules.extend(more.rules);
        all.next = more.next;
    }
    if output.json {
        return out::json(&all);
    }
    let mut table = Table::new([">PACKETS", ">BYTES", ">USED", "RULE"]);
    let ago = |idle: Option<u64>| {
        idle.map_or("-".to_owned(), |ms| units::age(std::time::Duration::from_millis(ms)))
    };
    for one in &all.rules {
        let count = one.count;
        table.row([
            units::number(count.packets),
            units::bytes(count.bytes),
            ago(count.idle_ms),
            one.rule.words(),
        ]);
    }
    for one in &all.functions {
        let both = [(FlowDirection::From, one.from), (FlowDirection::To, one.to)];
        for (direction, FlowRest { action, count }) in both {
            table.row([
                units::number(count.packets),
                units::bytes(count.bytes),
                ago(count.idle_ms),
                FlowLine::Default(FlowDefault { on: one.on, direction, action }).to_string(),
            ]);
        }
    }
    out::text(&table.to_string())
}
