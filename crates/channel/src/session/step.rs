//! How a request becomes a [`Step`]: its form is checked, its lease renewed, its answer written.
//!
//! A request that is refused is counted, and does nothing; its answer says why.

use std::time::Instant;

use api::channel::{Answer, Done, Failed, Method, Outcome, Refusal, Request, Version};

use super::{Session, clean};
use crate::{Action, Later};

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
    /// The answer, with its newline; at most [`LINE_MAX`](api::channel::LINE_MAX). Empty if it follows
    /// from what is done later.
    pub answer: Vec<u8>,
}

impl<P> Step<P> {
    /// Nothing follows: the line is not whole yet.
    pub fn nothing() -> Self {
        Self { id: None, actions: Vec::new(), settle: false, later: None, answer: Vec::new() }
    }

    /// Its answer is made of what comes of this, if something is to be done before it.
    pub(super) fn after(self, later: Option<Later>) -> Self {
        match later {
            Some(_) => Self { later, answer: Vec::new(), ..self },
            None => self,
        }
    }
}

impl<P: Copy + Eq + std::fmt::Debug> Session<P> {
    /// A request that needs a lease, and renews it.
    pub(super) fn renewing<M: Method>(
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

    pub(super) fn call<M: Method>(
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

    pub(super) fn refuse(&mut self, id: Option<u64>, reason: Refusal, message: &str) -> Step<P> {
        self.note(reason, 1);
        let message: String = clean(message).chars().take(MESSAGE_MAX).collect();
        let outcome: Outcome<Done> = Outcome::Error(Failed::new(reason, message));
        self.step(id, Vec::new(), false, outcome)
    }

    pub(super) fn note(&mut self, reason: Refusal, times: u64) {
        if let Some(count) = self.refusals.get_mut(reason as usize) {
            *count = count.saturating_add(times);
        }
    }

    pub(super) fn step<R: serde::Serialize>(
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

pub(super) fn no_session() -> Failed {
    Failed::new(Refusal::NoSession, "say hello first")
}
