//! `hayate router`.

use super::args::{Output, Switch};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, facts, units};
use api::channel::{Policy, SourceCheck, Transport};
use api::{
    Bypass, Name, Router, RouterConnections, RouterDetail, RouterHop, RouterNextHop, RouterPrefixes,
};

pub(super) fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let routers: Vec<Router> = client.get("/v1/routers")?;
    if output.json {
        return out::json(&routers);
    }
    let mut table = Table::new([
        "VM",
        "AGENT",
        "POLICY",
        "BYPASS",
        ">LEASE",
        ">INTERFACES",
        ">NEXT HOPS",
        ">PREFIXES",
        ">CONNECTIONS",
        ">PACKETS",
        ">BYTES",
    ]);
    for router in &routers {
        table.row([
            router.vm.to_string(),
            agent(router),
            policy(router.policy).to_owned(),
            on_off(router.bypass).to_owned(),
            units::maybe(router.lease_ms.map(|left| format!("{left} ms"))),
            router.interfaces.to_string(),
            router.nexthops.to_string(),
            router.prefixes.to_string(),
            router.connections.to_string(),
            units::number(router.packets),
            units::bytes(router.bytes),
        ]);
    }
    out::text(&table.to_string())
}

pub(super) fn show(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let detail: RouterDetail = client.get(&format!("/v1/routers/{name}"))?;
    if output.json {
        return out::json(&detail);
    }
    let mut text = facts(&summary(&detail));
    for reason in &detail.reasons {
        text.push_str(&format!("\nagent: {reason}"));
    }
    if !detail.reasons.is_empty() {
        text.push('\n');
    }
    if !detail.interfaces.is_empty() {
        text.push('\n');
        text.push_str(&interfaces(&detail));
    }
    if !detail.nexthops.is_empty() {
        text.push('\n');
        text.push_str(&nexthops(&detail.nexthops));
    }
    if !detail.router.refusals.is_empty() {
        let mut table = Table::new(["REFUSED", ">TIMES"]);
        for (reason, times) in &detail.router.refusals {
            table.row([reason.clone(), times.to_string()]);
        }
        text.push('\n');
        text.push_str(&table.to_string());
    }
    out::text(&text)
}

fn summary(detail: &RouterDetail) -> Vec<(&'static str, String)> {
    let router = &detail.router;
    let limits = router.limits;
    let mut lines = vec![
        ("router", router.vm.to_string()),
        ("channel", router.socket.display().to_string()),
        ("agent", agent(router)),
        ("policy", policy(router.policy).to_owned()),
        ("bypass", on_off(router.bypass).to_owned()),
        ("lease", units::maybe(router.lease_ms.map(|left| format!("{left} ms left")))),
        ("interfaces", format!("{}, {} of them behind a port", router.interfaces, router.placed)),
        ("next hops", format!("{} of at most {}", router.nexthops, limits.nexthops)),
        ("prefixes", format!("{} of at most {}", router.prefixes, limits.prefixes)),
        ("connections", format!("{} of at most {}", router.connections, limits.connections)),
        ("bypassed", format!("{} packets, {}", router.packets, units::bytes(router.bytes))),
    ];
    lines.extend(router.failure.clone().map(|failure| ("because", failure)));
    lines
}

fn interfaces(detail: &RouterDetail) -> String {
    let names = ["INTERFACE", "NAME", "MAC", "VLAN", ">MTU", "SOURCE CHECK", "PORT"];
    let mut table = Table::new(names);
    for one in &detail.interfaces {
        let refused = one.refused.map(|reason| format!("refused: {}", reason.name()));
        let [v4, v6] = [one.source_check, one.source_check_v6].map(check);
        table.row([
            one.id.to_string(),
            one.name.clone(),
            one.mac.to_string(),
            units::maybe(one.vlan),
            one.mtu.to_string(),
            format!("{v4} / {v6}"),
            units::maybe(one.port.as_ref().map(Name::to_string).or(refused)),
        ]);
    }
    table.to_string()
}

fn check(check: SourceCheck) -> &'static str {
    match check {
        SourceCheck::Off => "off",
        SourceCheck::Loose => "loose",
        SourceCheck::Strict => "strict",
        SourceCheck::Closed => "closed",
    }
}

fn nexthops(all: &[RouterNextHop]) -> String {
    let names = ["NEXT HOP", "TO", "INTERFACE", ">PREFIXES", ">CONNECTIONS", ">PACKETS", ">BYTES"];
    let mut table = Table::new(names);
    for one in all {
        let id = one.id.to_string();
        let mut users = [one.prefixes, one.connections].map(|users| users.to_string());
        if one.hops.is_empty() {
            let to = if one.own { "the router itself" } else { "the router" };
            let ([prefixes, connections], none) = (users.clone(), String::new);
            table.row([id.clone(), to.to_owned(), none(), prefixes, connections, none(), none()]);
        }
        for RouterHop { interface, mac, packets, bytes } in &one.hops {
            let [prefixes, connections] = std::mem::take(&mut users);
            table.row([
                id.clone(),
                mac.to_string(),
                interface.to_string(),
                prefixes,
                connections,
                units::number(*packets),
                units::bytes(*bytes),
            ]);
        }
    }
    table.to_string()
}

/// The prefixes, all of them, page by page.
pub(super) fn routes(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let mut path = format!("/v1/routers/{name}/prefixes");
    loop {
        let page: RouterPrefixes = client.get(&path)?;
        if output.json {
            for one in &page.prefixes {
                out::json_line(one)?;
            }
        } else if !page.prefixes.is_empty() {
            let mut table = Table::new(["PREFIX", ">NEXT HOP"]);
            for one in &page.prefixes {
                table.row([one.prefix.to_string(), one.nexthop.to_string()]);
            }
            out::text(&table.to_string())?;
        }
        match page.prefixes.last() {
            Some(last) if page.more => {
                let last = last.prefix.to_string().replace(' ', "%20");
                path = format!("/v1/routers/{name}/prefixes?after={last}");
            }
            _ => return Ok(()),
        }
    }
}

/// The connections, all of them, page by page.
pub(super) fn connections(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let mut path = format!("/v1/routers/{name}/connections");
    loop {
        let page: RouterConnections = client.get(&path)?;
        if output.json {
            for one in &page.connections {
                out::json_line(one)?;
            }
        } else if !page.connections.is_empty() {
            let names = [
                "PROTOCOL",
                "SOURCE",
                "DESTINATION",
                "INTERFACE",
                "NEW SOURCE",
                "NEW DESTINATION",
                ">NEXT HOP",
                ">PACKETS",
                ">BYTES",
            ];
            let mut table = Table::new(names);
            for one in &page.connections {
                table.row([
                    transport(one.flow.protocol).to_owned(),
                    one.flow.source.to_string(),
                    one.flow.destination.to_string(),
                    one.interface.to_string(),
                    one.to.source.to_string(),
                    one.to.destination.to_string(),
                    one.nexthop.to_string(),
                    units::number(one.count.packets),
                    units::bytes(one.count.bytes),
                ]);
            }
            out::text(&table.to_string())?;
        }
        match page.connections.last() {
            Some(last) if page.more => {
                let (protocol, flow) = (transport(last.flow.protocol), last.flow);
                path = format!(
                    "/v1/routers/{name}/connections?protocol={protocol}&source={}&destination={}",
                    flow.source, flow.destination
                );
            }
            _ => return Ok(()),
        }
    }
}

pub(super) fn bypass(
    client: &Client,
    name: &Name,
    to: Switch,
    output: Output,
) -> Result<(), Failure> {
    let bypass = Bypass { bypass: to == Switch::On };
    let router: Router = client.put(&format!("/v1/routers/{name}/bypass"), &bypass)?;
    if output.json { out::json(&router) } else { Ok(()) }
}

fn agent(router: &Router) -> String {
    match (&router.agent, router.connected, &router.failure) {
        (Some(agent), ..) => agent.clone(),
        (None, true, _) => "connected, silent".to_owned(),
        (None, false, Some(_)) => "no socket".to_owned(),
        (None, false, None) => "none".to_owned(),
    }
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Plain => "plain",
        Policy::Stateful => "stateful",
        Policy::Nothing => "nothing",
    }
}

fn transport(protocol: Transport) -> &'static str {
    match protocol {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    }
}

fn on_off(bypass: bool) -> &'static str {
    if bypass { "on" } else { "off" }
}
