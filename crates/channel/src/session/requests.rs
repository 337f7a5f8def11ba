//! What an agent asks: each request, checked and carried out on the session.
//!
//! What the host has to do for it is in the step, or comes later ([`Later`]). A request is refused before
//! anything of it is done.

use std::time::{Duration, Instant};

use api::Mac;
use api::channel::{
    ChannelFunction, ChannelPort, ConnectionCounters, Connections, Counters, Done, Failed, Hello,
    Interfaces, LEASE_DEFAULT_MS, LEASE_MS, Lease, ListFlows, ListFunctions, Method, NextHops,
    PROTOCOL, Placed, PlacedInterface, Refusal, Renew, Request, Routes, SetFlows, SetFunction,
    ShowFunction, Status, Welcome, Withdraw,
};

use super::step::no_session;
use super::{Agent, Session, Step, clean};
use crate::pages::{counted, counted_connections, flow_pf, flows, functions};
use crate::{Action, Delegation, FlowChange, Later, World};

/// Longest name and version of an agent, bytes.
const AGENT_MAX: usize = 64;
/// Longest name of a boot, bytes.
const BOOT_MAX: usize = 64;
/// What a router may say about itself: texts, and bytes of each.
const REASONS_MAX: (usize, usize) = (32, 200);

impl<P: Copy + Eq + std::fmt::Debug> Session<P> {
    /// A line without its newline.
    pub fn line(&mut self, line: &[u8], now: Instant, world: &impl World<Port = P>) -> Step<P> {
        let request = match Request::parse(line) {
            Ok(request) => request,
            Err(error) => return self.refuse(None, Refusal::Malformed, &error.to_string()),
        };
        match request.method {
            Hello::NAME => {
                let step = self.call(&request, |session, params: Hello| {
                    let welcome = session.hello(params, now, world)?;
                    Ok((welcome, vec![Action::Clear]))
                });
                // A refused one has no actions.
                let said = self.agent.as_ref().filter(|_| !step.actions.is_empty());
                let boot = said.and_then(|agent| agent.boot.clone());
                Step { later: boot.map(Later::Booted), ..step }
            }
            Interfaces::NAME => self.renewing(&request, now, |session, params: Interfaces| {
                let (delegation, limits) = (&mut session.delegation, session.limits);
                let actions = delegation.set_interfaces(params, &limits, world)?;
                let placed = session.placed();
                let lost = placed.interfaces.iter().filter(|one| one.port.is_none()).count();
                session.note(Refusal::NotYourPort, lost as u64);
                Ok((placed, actions))
            }),
            NextHops::NAME => self.renewing(&request, now, |session, params: NextHops| {
                let (delegation, limits) = (&mut session.delegation, session.limits);
                Ok((Done {}, delegation.set_nexthops(params, &limits)?))
            }),
            Routes::NAME => self.renewing(&request, now, |session, params: Routes| {
                let (delegation, limits) = (&mut session.delegation, session.limits);
                Ok((Done {}, delegation.set_routes(&params, &limits)?))
            }),
            Status::NAME => self.renewing(&request, now, |session, params: Status| {
                session.set_status(params)?;
                Ok((Done {}, Vec::new()))
            }),
            Renew::NAME => self.call(&request, |session, _: Renew| session.renew(now, world)),
            Counters::NAME => self.renewing(&request, now, |_, params: Counters| {
                Ok((counted(params, world), Vec::new()))
            }),
            Connections::NAME => self.renewing(&request, now, |session, params: Connections| {
                let (delegation, limits) = (&mut session.delegation, session.limits);
                Ok((Done {}, delegation.set_connections(params, &limits)?))
            }),
            ConnectionCounters::NAME => {
                self.renewing(&request, now, |session, params: ConnectionCounters| {
                    Ok((counted_connections(&session.delegation, params, world), Vec::new()))
                })
            }
            ListFunctions::NAME => self.renewing(&request, now, |_, params: ListFunctions| {
                Ok((functions(&params, world), Vec::new()))
            }),
            ShowFunction::NAME => self.renewing(&request, now, |_, params: ShowFunction| {
                let found = function(params.pf, params.vf, world)?;
                Ok((found.settings, Vec::new()))
            }),
            SetFunction::NAME => {
                let mut later = None;
                let step = self.renewing(&request, now, |session, params: SetFunction| {
                    let found = function(params.pf, params.vf, world)?;
                    if params.change.is_default() {
                        return Err(Failed::new(Refusal::BadParams, "there is nothing to set"));
                    }
                    let boot = session.agent.as_ref().and_then(|agent| agent.boot.clone());
                    let (function, change) = (found.function, params.change);
                    later = Some(Later::Set { function, change, boot });
                    Ok((found.settings, Vec::new()))
                });
                step.after(later)
            }
            SetFlows::NAME => {
                let mut later = None;
                let step = self.renewing(&request, now, |session, params: SetFlows| {
                    later = session.set_flows(params, world)?;
                    Ok((Done {}, Vec::new()))
                });
                step.after(later)
            }
            ListFlows::NAME => self.renewing(&request, now, |_, params: ListFlows| {
                Ok((flows(&params, world)?, Vec::new()))
            }),
            Withdraw::NAME => self.renewing(&request, now, |session, _: Withdraw| {
                session.delegation = Delegation::default();
                Ok((Done {}, vec![Action::Clear]))
            }),
            other => {
                let message = format!("there is no method {other}");
                self.refuse(Some(request.id), Refusal::UnknownMethod, &message)
            }
        }
    }

    fn hello(
        &mut self,
        Hello { protocol, agent, lease_ms, boot }: Hello,
        now: Instant,
        world: &impl World<Port = P>,
    ) -> Result<Welcome, Failed> {
        if protocol != PROTOCOL {
            let message = format!("this is version {PROTOCOL} of the protocol, not {protocol}");
            return Err(Failed::new(Refusal::Protocol, message));
        }
        if agent.len() > AGENT_MAX {
            let message = format!("agent: at most {AGENT_MAX} bytes are allowed");
            return Err(Failed::new(Refusal::BadParams, message));
        }
        if boot.as_ref().is_some_and(|boot| boot.len() > BOOT_MAX) {
            let message = format!("boot: at most {BOOT_MAX} bytes are allowed");
            return Err(Failed::new(Refusal::BadParams, message));
        }
        let lease_ms = lease_ms.unwrap_or(LEASE_DEFAULT_MS);
        if !LEASE_MS.contains(&lease_ms) {
            let (low, high) = (LEASE_MS.start(), LEASE_MS.end());
            let message = format!("lease_ms: {low} to {high} is allowed, not {lease_ms}");
            return Err(Failed::new(Refusal::BadParams, message));
        }
        let lease = Duration::from_millis(lease_ms.into());
        let status = Status::default();
        self.staged = None;
        self.delegation = Delegation::default();
        let (name, boot) = (clean(&agent), boot.as_deref().map(clean));
        self.agent = Some(Agent { name, boot, lease, until: Some(now + lease), status });
        let ports = world.ports().into_iter().take(self.limits.interfaces as usize);
        let port = |port: crate::Port<P>| ChannelPort {
            name: port.name,
            network: port.network,
            mac: port.mac,
        };
        Ok(Welcome {
            protocol: PROTOCOL,
            daemon: self.daemon.clone(),
            vm: self.vm.clone(),
            lease_ms,
            limits: self.limits,
            ports: ports.map(port).collect(),
        })
    }

    fn renew(
        &mut self,
        now: Instant,
        world: &impl World<Port = P>,
    ) -> Result<(Lease, Vec<Action<P>>), Failed> {
        let agent = self.agent.as_mut().ok_or_else(no_session)?;
        let lost = agent.until.is_none();
        agent.renew(now);
        let lease_ms = u32::try_from(agent.lease.as_millis()).unwrap_or(u32::MAX);
        let before = self.placed();
        let mut actions = self.delegation.look_again(world);
        actions.push(Action::Confirm);
        let placed = Some(self.placed()).filter(|placed| *placed != before);
        Ok((Lease { lease_ms, lost, placed }, actions))
    }

    fn set_status(&mut self, mut status: Status) -> Result<(), Failed> {
        let (texts, bytes) = REASONS_MAX;
        if status.reasons.len() > texts || status.reasons.iter().any(|text| text.len() > bytes) {
            let message = format!("reasons: {texts} of {bytes} bytes each are allowed");
            return Err(Failed::new(Refusal::BadParams, message));
        }
        status.reasons.iter_mut().for_each(|text| *text = clean(text));
        if let Some(agent) = &mut self.agent {
            agent.status = status;
        }
        Ok(())
    }

    /// What is to be done, if this is all of it.
    fn set_flows(
        &mut self,
        params: SetFlows,
        world: &impl World<Port = P>,
    ) -> Result<Option<Later>, Failed> {
        let pf = flow_pf(params.pf, world)?;
        let change = FlowChange::collect(&mut self.staged, &pf, params)?;
        let boot = self.agent.as_ref().and_then(|agent| agent.boot.clone());
        Ok(change.map(|change| Later::Flows { pf: pf.name, change, boot }))
    }

    fn placed(&self) -> Placed {
        let interfaces = self.delegation.interfaces().iter().map(|known| {
            let port = known.port.as_ref().map(|(_, name)| name.clone());
            let refused = port.is_none().then_some(Refusal::NotYourPort);
            PlacedInterface { id: known.interface.id, port, refused }
        });
        Placed { interfaces: interfaces.collect() }
    }
}

/// The VF of this number, of the PF with this address.
fn function(pf: Mac, vf: u16, world: &impl World) -> Result<ChannelFunction, Failed> {
    let none = |message: String| Failed::new(Refusal::UnknownFunction, message);
    let all = world.functions();
    let is_pf = |one: &&ChannelFunction| one.function.vf.is_none() && one.mac == pf;
    let Some(found) = all.iter().find(is_pf) else {
        return Err(none(format!("this VM has no PF with the address {pf}")));
    };
    let pf = &found.function.pf;
    let own = |one: &&ChannelFunction| one.function.pf == *pf && one.function.vf == Some(vf);
    all.iter().find(own).cloned().ok_or_else(|| none(format!("{pf} has no VF {vf}")))
}
