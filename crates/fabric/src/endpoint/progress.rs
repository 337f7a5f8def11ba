//! What happens to an endpoint's operations: they are handed to the provider, and end.

#![expect(unsafe_code)]
// UNSAFETY: calls functions in C, which fill in what they are given.

use std::ffi::c_void;

use super::{BATCH, BATCHES, Endpoint, State};
use crate::error::{Error, string};
use crate::fabric::Info;
use crate::ffi::{self, Completion, Context};
use crate::memory::Local;
use crate::work::{Operation, Work, inject, post};

impl<T> Endpoint<T> {
    /// Takes completions; whether there were some.
    pub(super) fn complete(&mut self) -> bool {
        let mut any = false;
        for _ in 0..BATCHES {
            let batch = &mut self.batch;
            // SAFETY: as many are stored as there is room for.
            let got =
                unsafe { ffi::shim_read(self.completions.get(), batch.as_mut_ptr(), batch.len()) };
            if got == -ffi::EAVAIL {
                if !self.fail() {
                    return any;
                }
                any = true;
                continue;
            }
            if got < 0 {
                self.end(Error::of("fi_cq_read", got));
                return any;
            }
            for place in 0..got as usize {
                let Some(completion) = self.batch.get(place).copied() else { break };
                any = true;
                self.succeed(&completion);
            }
            if (got as usize) < BATCH {
                return any;
            }
        }
        any
    }

    fn succeed(&mut self, completion: &Completion) {
        // One that comes with a message is of no use.
        let told = completion.flags & (ffi::FLAG_NUMBER | ffi::FLAG_RECV) == ffi::FLAG_NUMBER;
        if told {
            self.told.push_back(completion.data as u32);
            // The context is nobody's.
            if !self.domain.traits.numbers_use_receives {
                return;
            }
        }
        let Some(number) = self.give_back(completion.context) else { return };
        if let Some(work) = self.work(number)
            && work.operation == Operation::Receive
        {
            let count = completion.len as u64;
            // Anything else that uses up a receive was not agreed on.
            let received = completion.flags & ffi::FLAG_RECV != 0;
            let message = received && (1..=work.bytes).contains(&count);
            if told || message {
                work.bytes = if told { 0 } else { count };
            } else {
                work.fail(Error::of("receive", ffi::EIO));
            }
        }
        self.settle(number);
    }

    /// Takes a failed operation from the library; whether there was one.
    fn fail(&mut self) -> bool {
        let mut failure =
            ffi::Failure { context: std::ptr::null_mut(), error: 0, detail: 0, text: [0; 128] };
        // SAFETY: the queue is open, the failure is filled in.
        let got = unsafe { ffi::shim_failure(self.completions.get(), &raw mut failure) };
        if got <= 0 {
            return false;
        }
        let Some(number) = self.give_back(failure.context) else { return true };
        let detail = string(&failure.text);
        if let Some(work) = self.work(number) {
            let mut error = Error::of(work.operation.name(), failure.error);
            if let Error::Provider { text, .. } = &mut error
                && !detail.is_empty()
                && detail != *text
            {
                text.push_str(": ");
                text.push_str(&detail);
            }
            work.fail(error);
            self.transmits.waiting.retain(|waiting| *waiting != number);
        }
        self.settle(number);
        true
    }

    /// Takes back a context that the provider is done with; the operation that it was for.
    fn give_back(&mut self, context: *mut c_void) -> Option<u32> {
        let offset = context.addr().checked_sub(self.contexts.as_ptr().addr())?;
        let slot = offset / size_of::<Context>();
        let number = *self.users.get(slot)?;
        let work = self.works.get_mut(number as usize)?.as_mut()?;
        work.parts = work.parts.checked_sub(1)?;
        let lane = match work.operation {
            Operation::Receive => &mut self.receives,
            _ => &mut self.transmits,
        };
        lane.free.push(slot as u32);
        Some(number)
    }

    fn work(&mut self, number: u32) -> Option<&mut Work<T>> {
        self.works.get_mut(number as usize)?.as_mut()
    }

    /// Moves an operation to those that have ended, if it has.
    fn settle(&mut self, number: u32) {
        if self.work(number).is_some_and(|work| work.begun && work.parts == 0) {
            self.ended.push_back(number);
        }
    }

    /// Looks what has become of the connection.
    pub(super) fn look_around(&mut self) {
        loop {
            match self.events.next() {
                Ok(None) => return,
                Err(error) => return self.end(error),
                Ok(Some(event)) => {
                    // Only a listener is asked for connections.
                    drop(Info::of(event.info));
                    match event.kind {
                        ffi::EVENT_CONNECTED if self.state == State::Connecting => {
                            self.state = State::Connected;
                        }
                        ffi::EVENT_SHUTDOWN => self.end(Error::Ended),
                        ffi::EVENT_ERROR => self.end(Error::of("connection", event.error)),
                        _ => {}
                    }
                }
            }
        }
    }

    /// From now on nothing is begun.
    pub(super) fn end(&mut self, error: Error) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        self.state = State::Ended(error);
        let waiting: Vec<u32> =
            self.transmits.waiting.drain(..).chain(self.receives.waiting.drain(..)).collect();
        for number in waiting {
            if let Some(work) = self.work(number) {
                work.fail(Error::Ended);
            }
            self.settle(number);
        }
    }

    /// Hands the provider what it takes of what waits.
    pub(super) fn post(&mut self) {
        if self.state == State::Connected {
            while !self.transmits.waiting.is_empty() && self.post_next(false) {}
        }
        if !matches!(self.state, State::Ended(_)) {
            while !self.receives.waiting.is_empty() && self.post_next(true) {}
        }
    }

    /// Has the provider copy and send so few bytes, which needs no context; whether it could now.
    pub(super) fn inject(&mut self, local: &Local, bytes: u64) -> Result<bool, Error> {
        let first = self.state == State::Connected && self.transmits.waiting.is_empty();
        match &self.handle {
            Some(handle) if first && bytes <= self.limits.inject => inject(handle, local, bytes),
            _ => Ok(false),
        }
    }

    /// Hands the provider the next part of the first operation that waits; whether it could be that there
    /// is more to do.
    fn post_next(&mut self, receive: bool) -> bool {
        let Some(handle) = &self.handle else { return false };
        let lane = if receive { &mut self.receives } else { &mut self.transmits };
        let Some(&number) = lane.waiting.front() else { return false };
        let Some(&slot) = lane.free.last() else { return false };
        let work = self.works.get_mut(number as usize).and_then(Option::as_mut);
        let (Some(work), Some(context)) = (work, self.contexts.get(slot as usize)) else {
            lane.waiting.pop_front();
            return true;
        };
        let (posted, next) = post(handle, work, context, self.limits, &mut self.part);
        if posted == -ffi::EAGAIN {
            return false;
        }
        let mut error = None;
        if posted < 0 {
            error = Some(Error::of(work.operation.name(), posted));
        } else {
            lane.free.pop();
            if let Some(user) = self.users.get_mut(slot as usize) {
                *user = number;
            }
            work.parts += 1;
            match next {
                Some(next) => work.cursor = next,
                None => work.begun = true,
            }
        }
        if let Some(error) = error {
            work.fail(error);
        }
        if work.begun {
            lane.waiting.pop_front();
            self.settle(number);
        }
        true
    }
}
