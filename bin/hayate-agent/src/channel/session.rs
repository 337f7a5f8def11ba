//! What is said on a connection: one request at a time, and its answer.
//!
//! No I/O: times and lines go in, lines come out. A session begins with `hello` on a new connection
//! or when the daemon says that all is lost; then everything is told anew. What the daemon refuses
//! in a way that the plan did not foresee ends the session: what was told is withdrawn first.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use api::Name;
use api::channel::{
    Answer, ConnectionCounters, Counted, CountedConnections, Counters, Failed, Flow, Hello, Lease,
    Method, Outcome, PROTOCOL, Placed, Refusal, Renew, Request, Welcome, Withdraw,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::desk::{PassOn, Said};
use crate::plan::{Call, Plan};
use crate::state::{Ifindex, State};

/// Counters of next hops are asked for so often, if there are any.
const COUNT: Duration = Duration::from_secs(1);
/// The daemon answers within this time, or within the lease if that is longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many lines before the answer to `hello` may be of a session before.
const STRAY_LINES: usize = 64;

/// What was asked and is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Hello,
    /// Part of the plan.
    Plan,
    /// Part of the plan too; the answer says where interfaces are.
    Interfaces,
    /// Part of the plan too: connections.
    Begin,
    Renew,
    Counters,
    Connections,
    /// Somebody else's question, by its number.
    Other(u64),
    /// All is given up, and nothing comes after it.
    Last,
}

/// What packets passed the router by, as an answer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Neighbours that they went to.
    pub(crate) neighbours: Vec<(Ifindex, IpAddr)>,
    /// Connections whose packets do from now on.
    pub(crate) begun: BTreeSet<Flow>,
    /// Connections that they were of.
    pub(crate) connections: BTreeSet<Flow>,
    /// With these, all connections that were used were told.
    pub(crate) all_connections: bool,
}

/// Whom we talk to.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) daemon: String,
    pub(crate) vm: Name,
    pub(crate) lease: Duration,
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Something went wrong: another one may begin.
    Failed(String),
    /// It was to end.
    Stopped,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    agent: String,
    lease_ms: Option<u32>,
    /// What the kernel calls this boot of the machine, if it does.
    boot: Option<String>,
    id: u64,
    asked: Option<(Asked, Instant)>,
    peer: Option<Peer>,
    /// When something was asked last that renews the lease.
    renewed: Instant,
    counted: Instant,
    /// There are more counters, of numbers above this one.
    more: Option<u32>,
    /// When connections were counted, and that there are more, behind this one.
    counted_connections: Instant,
    more_connections: Option<Flow>,
    stray: usize,
    /// What others ask the daemon by us, and what it says to them.
    questions: VecDeque<PassOn>,
    said: Vec<(u64, Said)>,
    /// Nothing more is to be told; why, if it is a failure.
    ending: Option<End>,
}

impl Session {
    /// A session on a new connection. `first_id` should not be that of an earlier session, whose
    /// answers may still arrive.
    pub(crate) fn new(
        lease_ms: Option<u32>,
        boot: Option<String>,
        first_id: u64,
        now: Instant,
    ) -> Self {
        Self {
            agent: concat!("hayate-agent ", env!("CARGO_PKG_VERSION")).to_owned(),
            lease_ms,
            boot,
            id: first_id,
            asked: None,
            peer: None,
            renewed: now,
            counted: now,
            more: None,
            counted_connections: now,
            more_connections: None,
            stray: 0,
            questions: VecDeque::new(),
            said: Vec::new(),
            ending: None,
        }
    }

    /// Whom we talk to, once the daemon has answered.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Passes a question on, as soon as nothing else is being asked.
    pub(crate) fn pass_on(&mut self, question: PassOn) {
        self.questions.push_back(question);
    }

    /// Answers to what was passed on.
    pub(crate) fn said(&mut self) -> Vec<(u64, Said)> {
        std::mem::take(&mut self.said)
    }

    /// Everything is withdrawn next; the answer ends the session.
    pub(crate) fn stop(&mut self) {
        self.ending.get_or_insert(End::Stopped);
    }

    /// The next line to send; none while an answer is awaited or nothing is to be said.
    pub(crate) fn next(
        &mut self,
        plan: &mut Plan,
        state: &State,
        now: Instant,
    ) -> Option<Result<Vec<u8>, End>> {
        if self.asked.is_some() {
            return None;
        }
        let Some(peer) = &self.peer else {
            if let Some(end) = self.ending.clone() {
                return Some(Err(end));
            }
            let (agent, lease_ms) = (self.agent.clone(), self.lease_ms);
            let hello = Hello { protocol: PROTOCOL, agent, lease_ms, boot: self.boot.clone() };
            return Some(self.ask(Asked::Hello, &hello, now));
        };
        if self.ending.is_some() {
            return Some(self.ask(Asked::Last, &Withdraw {}, now));
        }
        if let Some(PassOn { token, method, params }) = self.questions.pop_front() {
            return Some(self.ask_by_name(Asked::Other(token), &method, &params, now));
        }
        let renew = now >= self.renewed + peer.lease / 4;
        if self.more.is_some() || self.count_due(plan).is_some_and(|at| now >= at) {
            self.counted = now;
            let after = self.more.take();
            return Some(self.ask(Asked::Counters, &Counters { after }, now));
        }
        if self.more_connections.is_some()
            || self.connections_due(state).is_some_and(|at| now >= at)
        {
            self.counted_connections = now;
            let after = self.more_connections.take();
            return Some(self.ask(Asked::Connections, &ConnectionCounters { after }, now));
        }
        Some(match plan.next(state) {
            Some(Call::Interfaces(call)) => self.ask(Asked::Interfaces, &call, now),
            Some(Call::NextHops(call)) => self.ask(Asked::Plan, &call, now),
            Some(Call::Routes(call)) => self.ask(Asked::Plan, &call, now),
            Some(Call::Connections(call)) => self.ask(Asked::Begin, &call, now),
            Some(Call::Status(call)) => self.ask(Asked::Plan, &call, now),
            Some(Call::Withdraw) => self.ask(Asked::Plan, &Withdraw {}, now),
            None if renew => self.ask(Asked::Renew, &Renew {}, now),
            None => return None,
        })
    }

    /// When [`Session::next`] has something to say at the latest, or the answer is overdue.
    pub(crate) fn deadline(&self, plan: &Plan, state: &State) -> Option<Instant> {
        match (&self.asked, &self.peer) {
            (Some((_, since)), _) => Some(*since + self.patience()),
            (None, Some(peer)) => {
                let counts = [self.count_due(plan), self.connections_due(state)];
                let next = self.renewed + peer.lease / 4;
                Some(counts.into_iter().flatten().fold(next, Instant::min))
            }
            (None, None) => None,
        }
    }

    /// When next hops are to be counted, if any were told.
    fn count_due(&self, plan: &Plan) -> Option<Instant> {
        plan.has_nexthops().then_some(self.counted + COUNT)
    }

    /// When connections are to be counted, if the router has any to count.
    fn connections_due(&self, state: &State) -> Option<Instant> {
        let due = self.counted_connections + state.connection_interval;
        state.filters().any().then_some(due)
    }

    /// Whether the answer is overdue.
    pub(crate) fn overdue(&self, now: Instant) -> bool {
        self.asked.is_some_and(|(_, since)| now >= since + self.patience())
    }

    fn patience(&self) -> Duration {
        self.peer.as_ref().map_or(PATIENCE, |peer| peer.lease.max(PATIENCE))
    }

    /// A line from the daemon. Returns what passed the router by, if it says so.
    ///
    /// # Errors
    /// The session is over.
    pub(crate) fn answer(
        &mut self,
        plan: &mut Plan,
        state: &State,
        line: &[u8],
    ) -> Result<Used, End> {
        let answer = serde_json::from_slice::<Answer<Value>>(line);
        let outcome = match (answer, self.asked) {
            (Ok(Answer { id: Some(id), outcome, .. }), Some(_)) if id == self.id => outcome,
            // An answer to somebody before us, or to what was left of his last line.
            (_, None | Some((Asked::Hello, _))) if self.stray < STRAY_LINES => {
                self.stray += 1;
                return Ok(Used::default());
            }
            (Ok(Answer { outcome: Outcome::Error(failed), .. }), _) => Outcome::Error(failed),
            _ => return Err(End::Failed("the daemon's answer cannot be read".to_owned())),
        };
        let Some((asked, _)) = self.asked.take() else { return Ok(Used::default()) };
        let result = match outcome {
            Outcome::Result(result) => result,
            Outcome::Error(failed) => {
                return self.refused(asked, &failed).map(|()| Used::default());
            }
        };
        match asked {
            Asked::Hello => {
                let welcome: Welcome = read(result)?;
                tracing::info!("{} knows us as {}", welcome.daemon, welcome.vm);
                let lease = Duration::from_millis(welcome.lease_ms.max(1).into());
                self.peer = Some(Peer { daemon: welcome.daemon, vm: welcome.vm, lease });
                *plan = Plan::new(welcome.limits, state);
            }
            Asked::Plan => {}
            Asked::Begin => {
                return Ok(Used { begun: plan.begun_connections(), ..Used::default() });
            }
            Asked::Interfaces => plan.placed(read::<Placed>(result)?),
            Asked::Renew => {
                let lease: Lease = read(result)?;
                if lease.lost {
                    tracing::info!("the daemon has lost what was delegated; all is told again");
                    self.peer = None;
                    self.questions.clear();
                } else if let Some(placed) = lease.placed {
                    plan.placed(placed);
                }
            }
            Asked::Counters => {
                let counted: Counted = read(result)?;
                self.more = counted.nexthops.last().map(|one| one.id).filter(|_| counted.more);
                return Ok(Used { neighbours: plan.counted(&counted), ..Used::default() });
            }
            Asked::Connections => {
                let counted: CountedConnections = read(result)?;
                let last = counted.connections.last().map(|one| one.flow);
                self.more_connections = last.filter(|_| counted.more);
                return Ok(Used {
                    connections: plan.counted_connections(&counted),
                    all_connections: self.more_connections.is_none(),
                    ..Used::default()
                });
            }
            Asked::Other(token) => self.said.push((token, Said::Result(result))),
            Asked::Last => {
                return Err(self.ending.clone().unwrap_or(End::Stopped));
            }
        }
        Ok(Used::default())
    }

    fn refused(&mut self, asked: Asked, failed: &Failed) -> Result<(), End> {
        if matches!(failed.data, Refusal::Lost | Refusal::NoSession) && asked != Asked::Hello {
            tracing::info!("the daemon has lost what was delegated; all is told again");
            self.peer = None;
            self.questions.clear();
            return match self.ending.clone() {
                Some(end) => Err(end),
                None => Ok(()),
            };
        }
        let why = format!("the daemon refused: {} ({})", failed.message, failed.data.name());
        if let Asked::Other(token) = asked {
            // That is between the two of them.
            self.said.push((token, Said::Error(failed.message.clone())));
            return Ok(());
        }
        if matches!(asked, Asked::Hello | Asked::Last) {
            return Err(End::Failed(why));
        }
        tracing::warn!("{why}");
        self.ending.get_or_insert(End::Failed(why));
        Ok(())
    }

    fn ask_by_name(
        &mut self,
        asked: Asked,
        method: &str,
        params: &Value,
        now: Instant,
    ) -> Result<Vec<u8>, End> {
        self.id += 1;
        let line = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        // It may be refused, and then it does not renew the lease.
        self.asked = Some((asked, now));
        Ok(format!("{line}\n").into_bytes())
    }

    fn ask<M: Method>(&mut self, asked: Asked, params: &M, now: Instant) -> Result<Vec<u8>, End> {
        self.id += 1;
        let line = Request::line(self.id, params)
            .map_err(|error| End::Failed(format!("{}: {error}", M::NAME)))?;
        tracing::debug!("asks {}, {} bytes", M::NAME, line.len());
        self.asked = Some((asked, now));
        self.renewed = now;
        Ok(line)
    }
}

fn read<R: DeserializeOwned>(result: Value) -> Result<R, End> {
    serde_json::from_value(result)
        .map_err(|error| End::Failed(format!("the daemon's answer cannot be read: {error}")))
}

#[cfg(test)]
mod tests;
