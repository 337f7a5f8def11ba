//! `hayate port`.

use super::args::{Output, PortAdd, PortSet};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::plane::drop_help;
use crate::render::{Table, facts, port_table, units};
use api::{LinkState, Name, Port, PortConfig, PortKind, PortPolicy, Wrong};

pub(super) fn add(client: &Client, args: PortAdd) -> Result<(), Failure> {
    // The daemon may run in another directory.
    let socket = args.socket.map(std::path::absolute).transpose();
    let socket = socket.map_err(|error| Failure::usage(format!("--socket: {error}")))?;
    let config = PortConfig {
        network: args.network,
        kind: args.kind,
        vm: args.vm,
        socket,
        mode: args.mode,
        ifname: args.ifname,
        netns: args.netns,
        queues: args.traffic.queues,
        vlan: args.traffic.vlan,
        trunk: args.traffic.trunk,
        native: args.traffic.native,
        mtu: args.traffic.mtu,
        worker: args.worker,
        moderation: args.traffic.moderation,
        mac_limit: args.traffic.mac_limit,
        no_offload: args.traffic.no_offload,
        policy: args.policy.over(PortPolicy::default()),
    };
    config.check().map_err(|wrong| usage(&wrong))?;
    let port: Port = client.put(&format!("/v1/ports/{}", args.name), &config)?;
    if args.output.json { out::json(&port) } else { Ok(()) }
}

fn usage(wrong: &Wrong) -> Failure {
    Failure::usage(format!("--{}: {}", wrong.field.replace('_', "-"), wrong.message))
}

pub(super) fn set(client: &Client, args: PortSet) -> Result<(), Failure> {
    let path = format!("/v1/ports/{}", args.name);
    let port: Port = client.get(&path)?;
    let policy = args.policy.over(port.config.policy.clone());
    let config = PortConfig { policy, ..port.config };
    config.check().map_err(|wrong| usage(&wrong))?;
    let port: Port = client.put(&format!("{path}/policy"), &config.policy)?;
    if args.output.json { out::json(&port) } else { Ok(()) }
}

pub(super) fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let ports: Vec<Port> = client.get("/v1/ports")?;
    if output.json { out::json(&ports) } else { out::text(&port_table(&ports)) }
}

pub(super) fn show(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let port: Port = client.get(&format!("/v1/ports/{name}"))?;
    if output.json {
        return out::json(&port);
    }
    let mut text = facts(&summary(&port));
    text.push('\n');
    text.push_str(&traffic(&port));
    if !port.drops.is_empty() {
        let mut table = Table::new(["DROPPED BECAUSE", ">FRAMES", "MEANING"]);
        for (reason, count) in &port.drops {
            let meaning = drop_help(reason).unwrap_or_default();
            table.row([reason.clone(), count.to_string(), meaning.to_owned()]);
        }
        text.push('\n');
        text.push_str(&table.to_string());
    }
    if !port.queues.is_empty() {
        text.push('\n');
        text.push_str(&queues(&port));
    }
    out::text(&text)
}

fn summary(port: &Port) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("port", format!("{} ({})", port.name, port.kind.as_str())),
        ("network", format!("{}{}", port.network, units::vlans(port))),
        ("state", format!("{} for {}", port.state.as_str(), units::age(port.since.age()))),
    ];
    let optional = [
        ("because", port.failure.clone()),
        ("last fault", port.last_fault.clone()),
        ("VM", port.vm.as_ref().map(Name::to_string)),
        ("function", port.function.as_ref().map(units::function)),
        ("socket", port.socket.as_ref().map(|path| path.display().to_string())),
        ("mode", port.mode.map(|mode| mode.as_str().to_owned())),
        ("interface", port.ifname.clone()),
        ("namespace", port.netns.clone()),
        ("MAC", port.mac.map(|mac| mac.to_string())),
        ("MTU", port.mtu.map(|mtu| mtu.to_string())),
        ("worker", port.worker.map(|worker| worker.to_string())),
        ("moderation", port.moderation.map(|moderation| moderation.to_string())),
        ("guest pages", port.page_size.map(|size| units::bytes(size as u64))),
    ];
    lines.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    lines.push(("queue pairs", port.queue_pairs.to_string()));
    if port.kind == PortKind::Vhost {
        lines.push(("sessions", port.sessions.to_string()));
        let features =
            if port.features.is_empty() { "none yet".to_owned() } else { port.features.join(" ") };
        lines.push(("features", format!("{features} ({})", port.features_hex)));
    }
    if !port.config.no_offload.is_empty() {
        let names: Vec<&str> =
            port.config.no_offload.iter().map(|offload| offload.as_str()).collect();
        lines.push(("not offered", names.join(" ")));
    }
    lines.extend(policy(&port.policy));
    lines.push(("declared", units::origin(port.origin).to_owned()));
    lines
}

fn policy(policy: &PortPolicy) -> Vec<(&'static str, String)> {
    let list: Vec<String> = policy.addresses.iter().map(ToString::to_string).collect();
    let lines = [
        ("card", policy.mac.map(|mac| mac.to_string())),
        ("spoofchk", policy.spoofchk.then(|| "on".to_owned())),
        ("addresses", (!list.is_empty()).then(|| list.join(" "))),
        ("trust", (!policy.trust).then(|| "off".to_owned())),
        ("qos", policy.qos.map(|qos| qos.to_string())),
        ("at most", policy.max_tx_rate.map(|rate| format!("{rate} Mbit/s from the port"))),
        ("link", (policy.link != LinkState::Auto).then(|| policy.link.as_str().to_owned())),
    ];
    lines.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn traffic(port: &Port) -> String {
    let mut table = Table::new(["TRAFFIC", ">FROM PORT", ">TO PORT"]);
    let (from, to) = (&port.from_port, &port.to_port);
    for (name, from, to) in [
        ("frames", from.frames, to.frames),
        ("bytes", from.bytes, to.bytes),
        ("passed unsegmented", from.gso_frames, to.gso_frames),
        ("checksums completed", from.csum_completed, to.csum_completed),
        ("segmented here", from.segmented, to.segmented),
        ("segments made", from.segments, to.segments),
    ] {
        table.row([name.to_owned(), from.to_string(), to.to_string()]);
    }
    table.row(["flood copies".to_owned(), port.flood_copies.to_string(), String::new()]);
    table.row(["dropped".to_owned(), port.dropped().to_string(), String::new()]);
    table.to_string()
}

fn queues(port: &Port) -> String {
    let mut table = Table::new([
        "QUEUE",
        ">SIZE",
        "RING",
        "STATE",
        ">WORKER",
        ">FRAMES",
        ">KICKS",
        ">INTERRUPTS",
        ">PUT OFF",
    ]);
    for queue in &port.queues {
        // An interface has none.
        let ring = queue.size > 0;
        let state = match (queue.running, queue.enabled) {
            (true, true) => "running",
            (true, false) => "disabled",
            (false, _) => "stopped",
        };
        table.row([
            format!("{}{}", queue.dir, queue.index),
            units::maybe(ring.then_some(queue.size)),
            units::maybe(ring.then_some(if queue.packed { "packed" } else { "split" })),
            state.to_owned(),
            units::maybe(queue.worker),
            queue.frames.to_string(),
            queue.kicks.to_string(),
            queue.interrupts.to_string(),
            queue.deferred.to_string(),
        ]);
    }
    table.to_string()
}
