//! ADD: a container gets a VF.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use serde_json::Value;

use crate::agent::Agent;
use crate::error::{Code, Error};
use crate::link::{Link, Links};
use crate::netns::Netns;
use crate::policy::apply::rules_for;
use crate::result::{Interface, Ip, Outcome, Route};
use crate::state::{Attachment, Key, Phase, exists};
use crate::vf::{Claim, Host, PATIENCE};
use crate::{Context, ipam, note};

/// The container's side.
struct Pod {
    netns: Netns,
    links: Links,
}

pub(crate) fn add(context: &Context<'_>) -> Result<Value, Error> {
    let call = context.call;
    let path = call.netns.clone().unwrap_or_default();
    let shown = path.display();
    let netns = Netns::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Error::new(Code::NoContainer, format!("CNI_NETNS={shown}: {error}"))
        }
        _ => Error::new(Code::Environment, format!("CNI_NETNS={shown}: {error}")),
    })?;
    // Before anything is done that it would have to undo.
    ipam::there(call, context.conf)?;
    let mut host = Host::new(context)?;
    let own = netns.is(&host.netns).map_err(|error| Error::io(&shown, &error))?;
    if own {
        let text = format!("CNI_NETNS={shown}: this is the namespace of the host");
        return Err(Error::new(Code::Environment, text));
    }
    let links = Links::of(&netns).map_err(|error| {
        Error::new(Code::Environment, format!("CNI_NETNS={shown}: no network namespace: {error}"))
    })?;
    let mut pod = Pod { netns, links };
    let key = context.key();
    recover(context, &mut host, &key)?;
    let there = pod.links.named(&call.ifname);
    if there.map_err(|error| Error::kernel(&call.ifname, &error))?.is_some() {
        let text = format!("CNI_IFNAME={}: the container has such an interface", call.ifname);
        return Err(Error::new(Code::Exists, text));
    }
    let wanted = Attachment {
        key,
        phase: Phase::Adding,
        vf: "0000:00:00.0".parse().map_err(|()| Error::new(Code::Config, "no VF"))?,
        token: 0,
        netns: path.clone(),
        pod: call.args.pod.clone(),
        uid: call.args.uid.clone(),
        ipam: false,
        ips: Vec::new(),
        routes: Vec::new(),
    };
    let mut claim = host.choose(context, &wanted)?;
    attach(context, &mut host, &mut pod, &mut claim).inspect_err(|_| {
        undo(context, &mut host, &claim.attachment, &claim);
    })
}

/// Ends what another call began for this attachment and did not end.
fn recover(context: &Context<'_>, host: &mut Host, key: &Key) -> Result<(), Error> {
    let Some(old) = host.state.attachment(key)? else { return Ok(()) };
    let lock = host.state.lock(old.vf, Instant::now() + PATIENCE)?;
    let Some(old) = host.state.attachment(key)?.filter(|now| now.vf == old.vf) else {
        return Ok(());
    };
    if old.phase == Phase::Added && host.state.vf(&lock)?.token == old.token {
        return Err(exists(key));
    }
    if old.ipam {
        ipam::ask(context.call, context.conf, "DEL")?;
    }
    host.release(&lock, &old, None)?;
    host.state.forget(&old)
}

fn attach(
    context: &Context<'_>,
    host: &mut Host,
    pod: &mut Pod,
    claim: &mut Claim,
) -> Result<Value, Error> {
    let Context { call, conf, .. } = context;
    let mac = conf.mac_for(&call.args);
    settings(context, host, claim)?;
    rules(context, host, claim)?;
    let (from, ifname) = (&claim.link, call.ifname.as_str());
    let refused = |what: &'static str| {
        move |error: io::Error| Error::kernel(format!("{what} of {ifname}"), &error)
    };
    host.links.calm(from.index).map_err(refused("state"))?;
    host.links.send(from.index, &pod.netns, ifname).map_err(|error| {
        let text = format!("{} of VF {} to the container as {ifname}", from.name, claim.lock.vf);
        Error::kernel(text, &error)
    })?;
    let link = interface(pod, ifname)?;
    if let Some(mac) = mac.filter(|mac| link.mac != Some(*mac)) {
        pod.links.set_mac(link.index, mac).map_err(refused("address"))?;
    }
    if let Some(mtu) = conf.mtu.filter(|mtu| link.mtu != *mtu) {
        pod.links.set_mtu(link.index, mtu).map_err(refused("MTU"))?;
    }
    let outcome = addresses(context, host, claim)?;
    let outcome = configure(pod, &link, ifname, outcome)?;

    let link = interface(pod, ifname)?;
    let outcome = Outcome {
        interfaces: vec![Interface {
            name: ifname.into(),
            mac: link.mac.map(|mac| mac.to_string()),
            mtu: Some(link.mtu),
            sandbox: call.variables.get("CNI_NETNS").cloned(),
            pci: Some(claim.lock.vf.to_string()),
        }],
        ..outcome
    };
    let answer = outcome.answer(&conf.version, conf.previous.as_ref())?;
    let gateways = outcome.routes.iter().map(|route| through(route, &outcome.ips));
    claim.attachment.routes = gateways.collect();
    claim.attachment.ips = outcome.ips;
    claim.attachment.phase = Phase::Added;
    host.state.save(&claim.attachment)?;
    Ok(answer)
}

/// What the agent sets, and what undoes it, which is written down first.
fn settings(context: &Context<'_>, host: &Host, claim: &mut Claim) -> Result<(), Error> {
    let conf = context.conf;
    if !conf.needs_agent() {
        return Ok(());
    }
    let mac = conf.mac_for(&context.call.args).or(claim.link.mac);
    let settings = conf.settings_for(mac);
    let agent = Agent::connect(&conf.agent)?;
    let pf = host.sysfs.mac(claim.pf)?;
    let before = agent.show(pf, claim.number)?;
    if let Some(home) = &mut claim.record.home {
        home.settings = Some((conf.agent.clone(), settings.undone_by(&before)));
    }
    host.state.save_vf(&claim.lock, &claim.record)?;
    agent.set(pf, claim.number, &settings)
}

/// Who may talk to the pod, and it to whom, before it can; that it has to be undone is written down first.
fn rules(context: &Context<'_>, host: &Host, claim: &mut Claim) -> Result<(), Error> {
    let conf = context.conf;
    let Some(rules) = rules_for(&conf.state, &claim.attachment, claim.number)? else {
        return Ok(());
    };
    if let Some(home) = &mut claim.record.home {
        home.rules = Some(conf.agent.clone());
    }
    host.state.save_vf(&claim.lock, &claim.record)?;
    Agent::connect(&conf.agent)?.set_rules(host.sysfs.mac(claim.pf)?, &rules)
}

/// Addresses by the plugin that manages them, or as they were given.
fn addresses(context: &Context<'_>, host: &Host, claim: &mut Claim) -> Result<Outcome, Error> {
    let Context { call, conf, .. } = context;
    let mut outcome = if conf.ipam.is_some() {
        claim.attachment.ipam = true;
        host.state.save(&claim.attachment)?;
        let outcome = ipam::ask(call, conf, "ADD")?.unwrap_or_default();
        if outcome.ips.is_empty() {
            let text = "the IPAM plugin gave no address";
            return Err(Error::new(Code::Config, text));
        }
        outcome
    } else {
        let given = conf.ips.iter();
        let ips = given.map(|net| Ip { address: *net, gateway: None, interface: None }).collect();
        Outcome { ips, routes: conf.routes.clone(), ..Outcome::default() }
    };
    outcome.interfaces.clear();
    for ip in &mut outcome.ips {
        ip.interface = Some(0);
    }
    if outcome.dns == Default::default() {
        outcome.dns = conf.dns.clone();
    }
    Ok(outcome)
}

fn configure(pod: &mut Pod, link: &Link, ifname: &str, outcome: Outcome) -> Result<Outcome, Error> {
    let four: Vec<&Ip> = outcome.ips.iter().filter(|ip| ip.address.addr().is_ipv4()).collect();
    let six: Vec<&Ip> = outcome.ips.iter().filter(|ip| ip.address.addr().is_ipv6()).collect();
    let prepared = pod.netns.enter(|| {
        // Neighbours that know another address of this one hear of it.
        knob("ipv4", ifname, "arp_notify", "1");
        knob("ipv6", ifname, "ndisc_notify", "1");
        if !six.is_empty() {
            knob("ipv6", ifname, "disable_ipv6", "0");
            // Usable at once, while the kernel finds out whether somebody else has it.
            knob("ipv6", ifname, "optimistic_dad", "1");
            knob("ipv6", ifname, "use_optimistic", "1");
        }
        Ok(())
    });
    prepared.map_err(|error| Error::kernel("the container's namespace", &error))?;
    let mut give = |ip: &Ip| {
        let given = pod.links.add_address(link.index, ip.address);
        given.map_err(|error| Error::kernel(format!("address {} on {ifname}", ip.address), &error))
    };
    // These are announced when it comes up, so they have to be there.
    four.into_iter().try_for_each(&mut give)?;
    let up = pod.links.set_up(link.index);
    up.map_err(|error| Error::kernel(format!("{ifname} up"), &error))?;
    let mut give = |ip: &Ip| {
        let given = pod.links.add_address(link.index, ip.address);
        given.map_err(|error| Error::kernel(format!("address {} on {ifname}", ip.address), &error))
    };
    six.into_iter().try_for_each(&mut give)?;
    for route in &outcome.routes {
        let route = through(route, &outcome.ips);
        if route.gw.is_some_and(|gateway| gateway.is_ipv4() != route.dst.addr().is_ipv4()) {
            let text = format!("route to {}: its gateway is of the other IP version", route.dst);
            return Err(Error::new(Code::Config, text));
        }
        let near = |gateway: IpAddr| outcome.ips.iter().any(|ip| ip.address.contains(&gateway));
        let far = |gateway: IpAddr| {
            // Of IPv6, neighbours are always reached by their link-local address.
            let local = matches!(gateway, IpAddr::V6(address) if address.is_unicast_link_local());
            !local && !near(gateway)
        };
        let onlink = route.gw.is_some_and(far);
        let added = pod.links.add_route(link.index, &route, onlink);
        added.map_err(|error| {
            Error::kernel(format!("route to {} by {ifname}", route.dst), &error)
        })?;
    }
    Ok(outcome)
}

/// A route with the router it goes by, if there is one.
fn through(route: &Route, ips: &[Ip]) -> Route {
    let same = |ip: &&Ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4();
    let gateway = ips.iter().filter(same).find_map(|ip| ip.gateway);
    Route { gw: route.gw.or(gateway), ..route.clone() }
}

fn knob(family: &str, ifname: &str, name: &str, value: &str) {
    let path = format!("/proc/sys/net/{family}/conf/{ifname}/{name}");
    match fs::write(&path, value) {
        // A kernel without IPv6, or without this.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            note(format_args!("{path}: {error}"));
        }
        _ => {}
    }
}

fn interface(pod: &mut Pod, ifname: &str) -> Result<Link, Error> {
    let found = pod.links.named(ifname).map_err(|error| Error::kernel(ifname, &error))?;
    found.ok_or_else(|| Error::new(Code::Kernel, format!("{ifname} has left the container")))
}

/// Undoes what was done. What fails is left for the DEL that follows.
fn undo(context: &Context<'_>, host: &mut Host, attachment: &Attachment, claim: &Claim) {
    let asked = if attachment.ipam {
        ipam::ask(context.call, context.conf, "DEL").map(drop)
    } else {
        Ok(())
    };
    let released = host.release(&claim.lock, attachment, None);
    for error in [&asked, &released].into_iter().filter_map(|done| done.as_ref().err()) {
        note(format_args!("undoing ADD: {error}"));
    }
    if asked.is_ok()
        && let Err(error) = host.state.forget(attachment)
    {
        note(format_args!("undoing ADD: {error}"));
    }
}
