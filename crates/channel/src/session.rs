//! One VM's channel: lines in; actions, then an answer, out.

use std::ops::Bound;
use std::time::{Duration, Instant};

use api::channel::{
    Answer, ChannelFunction, ChannelPort, ConnectionCount, ConnectionCounters, Connections,
    CountedConnections, Counters, Done, Failed, Hello, Interfaces, LEASE_DEFAULT_MS, LEASE_MS,
    LINE_MAX, Lease, Limits, ListFlows, ListFunctions, Method, NextHops, Outcome, PROTOCOL, Placed,
    PlacedInterface, Refusal, Renew, Request, Routes, SetFlows, SetFunction, ShowFunction, Status,
    Version, Welcome, Withdraw,
};
use api::{FunctionSettings, Mac, Name};

use crate::flows::Staged;
use crate::pages::{ENVELOPE, counted, flow_pf, flows, functions, takes};
use crate::{Action, Delegation, FlowChange, Later, World};

/// Longest name and version of an agent, bytes.
const AGENT_MAX: usize = 64;
/// Longest name of a boot, bytes.
const BOOT_MAX: usize = 64;
/// What a router may say about itself: texts, and bytes of each.
const REASONS_MAX: (usize, usize) = (32, 200);
/// Longest message of a refusal, characters: some of them quote the request.
const MESSAGE_MAX: usize = 200;

/// What follows from a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<P> {
    /// Number of the request, if it could be read: for [`Session::failed`].
    pub id: Option<u64>,
    /// What the host does now.
    pub actions: Vec<Action<P>>,
    /// The answer waits until no frame takes the way of before.
    pub settle: bool,
    /// What is to be done before the answer, after the actions.
    pub later: Option<Later>,
    /// The answer, with its newline; at most [`LINE_MAX`]. Empty if it follows from what is done later.
    pub answer: Vec<u8>,
}

impl<P> Step<P> {
    /// Nothing follows: the line is not whole yet.
    pub fn nothing() -> Self {
        Self { id: None, actions: Vec::new(), settle: false, later: None, answer: Vec::new() }
    }
}

/// The channel of a VM, for as long as it has one.
#[derive(Debug)]
pub struct Session<P> {
    vm: Name,
    daemon: String,
    limits: Limits,
    refusals: [u64; Refusal::ALL.len()],
    agent: Option<Agent>,
    delegation: Delegation<P>,
    /// Parts of a change of flow rules.
    staged: Option<Staged>,
}

/// Whoever said hello.
#[derive(Debug)]
struct Agent {
    name: String,
    boot: Option<String>,
    lease: Duration,
    /// End of the lease; `None` once it has ended or was broken: then the agent is told.
    until: Option<Instant>,
    status: Status,
}

impl Agent {
    fn renew(&mut self, now: Instant) {
        self.until = Some(now + self.lease);
    }
}

impl<P: Copy + Eq + std::fmt::Debug> Session<P> {
    /// Nobody has said hello yet. `daemon` is name and version of this program.
    pub fn new(vm: Name, daemon: String, limits: Limits) -> Self {
        let refusals = [0; Refusal::ALL.len()];
        let delegation = Delegation::default();
        Self { vm, daemon, limits, refusals, agent: None, delegation, staged: None }
    }

    /// What is delegated.
    pub fn delegation(&self) -> &Delegation<P> {
        &self.delegation
    }

    /// What may be delegated.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Who said hello.
    pub fn agent(&self) -> Option<&str> {
        self.agent.as_ref().map(|agent| agent.name.as_str())
    }

    /// What the agent says of itself.
    pub fn status(&self) -> Option<&Status> {
        self.agent.as_ref().map(|agent| &agent.status)
    }

    /// When the lease ends, while there is one.
    pub fn deadline(&self) -> Option<Instant> {
        self.agent.as_ref()?.until
    }

    /// How often what was refused.
    pub fn refusals(&self) -> impl Iterator<Item = (Refusal, u64)> {
        Refusal::ALL.into_iter().zip(self.refusals).filter(|(_, count)| *count > 0)
    }

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
                    Ok((session.counted_connections(params, world), Vec::new()))
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
                match later {
                    Some(later) => Step { later: Some(later), answer: Vec::new(), ..step },
                    None => step,
                }
            }
            SetFlows::NAME => {
                let mut later = None;
                let step = self.renewing(&request, now, |session, params: SetFlows| {
                    later = session.set_flows(params, world)?;
                    Ok((Done {}, Vec::new()))
                });
                match later {
                    Some(later) => Step { later: Some(later), answer: Vec::new(), ..step },
                    None => step,
                }
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

    /// A line that is longer than it may be.
    pub fn too_long(&mut self) -> Step<P> {
        let message = format!("a line has at most {LINE_MAX} bytes");
        self.refuse(None, Refusal::TooLong, &message)
    }

    /// The host could not do what a step asked of it: all that was delegated is given up, and the
    /// answer to the request is this one instead.
    pub fn failed(&mut self, id: Option<u64>, why: &str) -> Step<P> {
        self.lose();
        let refused = self.refuse(id, Refusal::Host, why);
        Step { actions: vec![Action::Clear], settle: true, ..refused }
    }

    /// What came of [`Later::Set`]: the answer to the request.
    pub fn set(&mut self, id: Option<u64>, done: Result<FunctionSettings, Failed>) -> Vec<u8> {
        let step = match done {
            Ok(settings) => self.step(id, Vec::new(), false, Outcome::Result(settings)),
            Err(failed) => self.refuse(id, failed.data, &failed.message),
        };
        step.answer
    }

    /// What came of [`Later::Flows`]: the answer to the request.
    pub fn done(&mut self, id: Option<u64>, done: Result<(), Failed>) -> Vec<u8> {
        let step = match done {
            Ok(()) => self.step(id, Vec::new(), false, Outcome::Result(Done {})),
            Err(failed) => self.refuse(id, failed.data, &failed.message),
        };
        step.answer
    }

    /// Ends the lease if it is time: then the router has to be cleared.
    #[must_use]
    pub fn expire(&mut self, now: Instant) -> bool {
        let ended = self.deadline().is_some_and(|until| until <= now);
        if ended {
            self.lose();
        }
        ended
    }

    /// The connection ended; the router has to be cleared.
    pub fn disconnected(&mut self) {
        self.agent = None;
        self.staged = None;
        self.delegation = Delegation::default();
    }

    fn lose(&mut self) {
        self.staged = None;
        self.delegation = Delegation::default();
        if let Some(agent) = &mut self.agent {
            agent.until = None;
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

    /// As many connections as fit a line.
    fn counted_connections(
        &self,
        ConnectionCounters { after }: ConnectionCounters,
        world: &impl World<Port = P>,
    ) -> CountedConnections {
        let mut counted = CountedConnections::default();
        let mut room = LINE_MAX - ENVELOPE;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for flow in self.delegation.connections().range((from, Bound::Unbounded)).map(|(f, _)| f) {
            let one = ConnectionCount { flow: *flow, count: world.connection_count(flow) };
            if one.count.packets == 0 {
                continue;
            }
            if !takes(&mut room, &one) {
                counted.more = true;
                break;
            }
            counted.connections.push(one);
        }
        counted
    }

    fn placed(&self) -> Placed {
        let interfaces = self.delegation.interfaces().iter().map(|known| {
            let port = known.port.as_ref().map(|(_, name)| name.clone());
            let refused = port.is_none().then_some(Refusal::NotYourPort);
            PlacedInterface { id: known.interface.id, port, refused }
        });
        Placed { interfaces: interfaces.collect() }
    }

    /// A request that needs a lease, and renews it.
    fn renewing<M: Method>(
        &mut self,
        request: &Request<'_>,
        now: Instant,
        carry_out: impl FnOnce(&mut Self, M) -> Result<(M::Result, Vec<Action<P>>), Failed>,
    ) -> Step<P> {
        self.call(request, |session, params| {
            let agent = session.agent.as_ref().ok_or_else(no_session)?;
            if agent.until.is_none() {
                let message = "nothing is delegated any more; begin with router.renew or hello";
                return Err(Failed::new(Refusal::Lost, message));
            }
            let done = carry_out(session, params)?;
            if let Some(agent) = &mut session.agent {
                agent.renew(now);
            }
            Ok(done)
        })
    }

    fn call<M: Method>(
        &mut self,
        request: &Request<'_>,
        carry_out: impl FnOnce(&mut Self, M) -> Result<(M::Result, Vec<Action<P>>), Failed>,
    ) -> Step<P> {
        let id = Some(request.id);
        let params = match request.params::<M>() {
            Ok(params) => params,
            Err(error) => return self.refuse(id, Refusal::BadParams, &error.to_string()),
        };
        // When nothing is forwarded, nothing can take another way.
        let in_force = self.delegation.in_force();
        match carry_out(self, params) {
            Ok((result, actions)) => {
                let changes = actions.iter().any(|action| *action != Action::Confirm);
                let settle = in_force && changes;
                self.step(id, actions, settle, Outcome::Result(result))
            }
            Err(failed) => self.refuse(id, failed.data, &failed.message),
        }
    }

    fn refuse(&mut self, id: Option<u64>, reason: Refusal, message: &str) -> Step<P> {
        self.note(reason, 1);
        let message: String = clean(message).chars().take(MESSAGE_MAX).collect();
        let outcome: Outcome<Done> = Outcome::Error(Failed::new(reason, message));
        self.step(id, Vec::new(), false, outcome)
    }

    fn note(&mut self, reason: Refusal, times: u64) {
        if let Some(count) = self.refusals.get_mut(reason as usize) {
            *count = count.saturating_add(times);
        }
    }

    fn step<R: serde::Serialize>(
        &self,
        id: Option<u64>,
        actions: Vec<Action<P>>,
        settle: bool,
        outcome: Outcome<R>,
    ) -> Step<P> {
        let answer = Answer { jsonrpc: Version::V2, id, outcome };
        // None of the results can fail to be written.
        Step { id, actions, settle, later: None, answer: answer.line().unwrap_or_default() }
    }
}

fn no_session() -> Failed {
    Failed::new(Refusal::NoSession, "say hello first")
}

/// What is shown to people must not move their cursor.
pub(crate) fn clean(text: &str) -> String {
    text.replace(char::is_control, "?")
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
