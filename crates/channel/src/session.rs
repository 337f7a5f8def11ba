//! One VM's channel: lines in; actions, then an answer, out.
//!
//! Here: who is there, until when, and what ends that. What is asked is in [`requests`]; how a request becomes
//! a [`Step`], in [`step`].

mod requests;
mod step;

use std::time::{Duration, Instant};

use api::channel::{Done, Failed, LINE_MAX, Limits, Outcome, Refusal, Status};
use api::{FunctionSettings, Name};

pub use step::Step;

use crate::flows::Staged;
use crate::{Action, Delegation};

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

    /// What came of [`Later::Set`](crate::Later::Set): the answer to the request.
    pub fn set(&mut self, id: Option<u64>, done: Result<FunctionSettings, Failed>) -> Vec<u8> {
        let step = match done {
            Ok(settings) => self.step(id, Vec::new(), false, Outcome::Result(settings)),
            Err(failed) => self.refuse(id, failed.data, &failed.message),
        };
        step.answer
    }

    /// What came of [`Later::Flows`](crate::Later::Flows): the answer to the request.
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
}

/// What is shown to people must not move their cursor.
pub(crate) fn clean(text: &str) -> String {
    text.replace(char::is_control, "?")
}
