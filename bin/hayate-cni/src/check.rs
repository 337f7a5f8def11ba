//! CHECK: is a container's interface as it was made?

use std::io;

use crate::agent::Agent;
use crate::error::{Code, Error};
use crate::link::Links;
use crate::netns::Netns;
use crate::result::Outcome;
use crate::state::{Phase, State};
use crate::sysfs::Sysfs;
use crate::vf::find;
use crate::{Context, ipam};

pub(crate) fn check(context: &Context<'_>) -> Result<(), Error> {
    let Context { call, conf, machine } = context;
    let ifname = &call.ifname;
    let changed = |text: String| Error::new(Code::Changed, text);
    let Some(previous) = &conf.previous else {
        return Err(Error::new(Code::Config, "prevResult is missing"));
    };
    let expected = Outcome::read("ADD (prevResult)", previous)?;
    let key = context.key();
    let state = State::look(&conf.state);
    let attachment = state.as_ref().map(|state| state.attachment(&key)).transpose()?.flatten();
    let (Some(state), Some(attachment)) = (state, attachment) else {
        let text =
            format!("container {} has no attachment {ifname} to {}", key.container, key.network);
        return Err(Error::new(Code::NoContainer, text));
    };
    let vf = attachment.vf;
    let record = state.peek(vf)?;
    if attachment.phase != Phase::Added || record.token != attachment.token {
        return Err(changed(format!("VF {vf} is not, or no longer, this container's")));
    }
    let path = call.netns.clone().unwrap_or_default();
    let inside = Netns::open(&path).and_then(|netns| Links::of(&netns));
    let mut links = inside.map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NoContainer,
            _ => Code::Environment,
        };
        Error::new(code, format!("CNI_NETNS={}: {error}", path.display()))
    })?;
    let asked = |error: io::Error| Error::kernel(ifname, &error);
    let home = record.home.as_ref().ok_or_else(|| changed(format!("VF {vf} is at home")))?;
    let link = find(&mut links, home, ifname).map_err(asked)?;
    let link = link
        .filter(|link| link.name == *ifname)
        .ok_or_else(|| changed(format!("{ifname} with VF {vf} is not in the container")))?;
    if !link.up {
        return Err(changed(format!("{ifname} is down")));
    }
    // Of the interfaces in the result, this one: others' are theirs to look after.
    let at = expected.interfaces.iter().position(|one| {
        one.name == *ifname && one.sandbox.as_deref().is_some_and(|sandbox| !sandbox.is_empty())
    });
    let at = at.ok_or_else(|| changed(format!("prevResult has no interface {ifname}")))?;
    let mac = link.mac.map(|mac| mac.to_string());
    if let Some(said) = &expected.interfaces[at].mac
        && mac.as_ref().is_none_or(|mac| !mac.eq_ignore_ascii_case(said))
    {
        let mac = mac.unwrap_or_default();
        return Err(changed(format!("{ifname} has the address {mac} instead of {said}")));
    }
    if let Some(mtu) = conf.mtu.filter(|mtu| *mtu != link.mtu) {
        return Err(changed(format!("{ifname} has the MTU {} instead of {mtu}", link.mtu)));
    }
    let held = links.addresses(link.index).map_err(asked)?;
    for ip in expected.ips.iter().filter(|ip| ip.interface == Some(at as i64)) {
        match held.iter().find(|held| held.net == ip.address) {
            None => return Err(changed(format!("{ifname} has not the address {}", ip.address))),
            Some(held) if held.duplicate => {
                return Err(changed(format!("somebody else has the address {}", ip.address)));
            }
            Some(_) => {}
        }
    }
    let routes = links.routes(link.index).map_err(asked)?;
    for route in &attachment.routes {
        // A plugin behind this one may have taken it away; then it is not in the result.
        let listed = expected.routes.iter().any(|one| one.dst == route.dst);
        let (to, by) = (route.dst.trunc(), route.gw);
        if listed && !routes.contains(&(to, by)) {
            return Err(changed(format!("{ifname} has no route to {to}")));
        }
    }
    if conf.needs_agent() {
        let sysfs = Sysfs::new(&machine.sysfs);
        let (pf, number) = sysfs.pf_of(vf)?;
        let wanted = conf.settings_for(link.mac);
        let now = Agent::connect(&conf.agent)?.show(sysfs.mac(pf.address)?, number)?;
        if !wanted.hold_in(&now) {
            let text = format!("VF {vf} has the settings {now:?} instead of {wanted:?}");
            return Err(changed(text));
        }
    }
    ipam::ask(call, conf, "CHECK").map(drop)
}
