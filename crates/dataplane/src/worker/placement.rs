//! TX queues come to a worker, leave it, and move to another one while frames flow.
//!
//! Of every TX queue of a port, whether it runs or not, there is one **place**: one worker holds
//! it, or it is on its way from one mailbox to the next. Only the holder takes frames from the
//! queue. A move is three messages:
//!
//! ```text
//! control:  Expect -> new worker      (from now on control speaks to the new worker)
//! control:  HandOver -> old worker    (behind all that it was told before)
//! old:      Arrive -> new worker      (with the queue as it is, or without one: it does not run)
//! ```
//!
//! What control asks of the queue between the first and the last waits at the new worker, in order;
//! that may be to stop it, or to hand it over once more. So no order of events loses a command, and
//! whoever waits for a stopped queue waits for the old worker's burst at most.
//!
//! The old worker hands over between bursts: what it took is delivered, published and counted, so
//! frames of a flow keep their order. The new one looks at the ring before it sleeps, so that a kick
//! that was not heard meanwhile is not missed. The queue takes along whether kicks are asked for;
//! counters have one writer, as the mailbox orders what one wrote before what the other reads.

use std::sync::Arc;

use switch::PortId;
use sys::EventFd;
use tokio::sync::oneshot;

use super::Worker;
use super::sleep::Token;
use crate::mailbox::Mailbox;
use crate::port::Port;
use crate::port::tap::tx::TapTx;
use crate::port::vhost::tx::LiveTx;
use crate::worker::Command;

/// Which TX queue: its port, and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TxId {
    pub(crate) port: PortId,
    pub(crate) index: u16,
}

/// A TX queue that runs. Its worker owns it.
#[derive(Debug)]
pub(crate) enum TxQueue {
    Vhost(Box<LiveTx>),
    Tap(Box<TapTx>),
}

/// What is asked of the worker that holds a TX queue, or will.
#[derive(Debug)]
pub(crate) enum TxCommand {
    /// Take frames from it.
    Start(TxQueue),
    /// Stop it and hand it back, if it runs: it is quiet then.
    Stop(oneshot::Sender<Option<TxQueue>>),
    /// Interrupt the guest by this descriptor from now on.
    SetCall(Option<Arc<EventFd>>),
    /// SET_VRING_ENABLE.
    SetEnabled(bool),
    /// Forward this frame as if it had come in by the queue.
    Inject(Arc<Port>, Vec<u8>),
    /// Say that the queue is here, and all that was asked before is done.
    Settle(oneshot::Sender<()>),
    /// Another worker will hand the queue over: wait for it with all that follows.
    Expect,
    /// Hand the queue over to the worker that reads this mailbox; it has been told to expect it.
    HandOver(Mailbox),
    /// The queue that was expected, or word that it does not run.
    Arrive(Option<TxQueue>),
}

/// Queues that are on their way here, and what waits for them.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Vec<(TxId, Vec<TxCommand>)>);

impl Arrivals {
    fn expect(&mut self, id: TxId) {
        self.0.push((id, Vec::new()));
    }

    /// Gives the command back if it can be carried out now; keeps it if the queue is on its way.
    fn admit(&mut self, id: TxId, command: TxCommand) -> Option<TxCommand> {
        match self.0.iter_mut().find(|(expected, _)| *expected == id) {
            Some((_, waiting)) => {
                waiting.push(command);
                None
            }
            None => Some(command),
        }
    }

    /// What has waited for this queue, which is here now.
    fn arrived(&mut self, id: TxId) -> Vec<TxCommand> {
        let at = self.0.iter().position(|(expected, _)| *expected == id);
        at.map(|at| self.0.swap_remove(at).1).unwrap_or_default()
    }
}

impl Worker {
    /// Carries out a command for a TX queue, or keeps it until the queue is here.
    pub(super) fn obey_tx(&mut self, id: TxId, command: TxCommand) {
        let TxCommand::Arrive(queue) = command else {
            if let Some(command) = self.arrivals.admit(id, command) {
                self.do_tx(id, command);
            }
            return;
        };
        if let Some(queue) = queue {
            self.adopt(queue);
        }
        for command in self.arrivals.arrived(id) {
            // It may have to leave again, and be expected again.
            if let Some(command) = self.arrivals.admit(id, command) {
                self.do_tx(id, command);
            }
        }
    }

    fn do_tx(&mut self, id: TxId, command: TxCommand) {
        match command {
            TxCommand::Start(queue) => {
                if let TxQueue::Vhost(queue) = &queue {
                    // Whatever the guest waited for while nobody served the ring, it looks now.
                    queue.interrupt();
                }
                self.adopt(queue);
            }
            TxCommand::Stop(done) => {
                // Nobody waits any more if the port's session is being dropped.
                let _ = done.send(self.release(id));
            }
            TxCommand::SetCall(call) => {
                if let Some(queue) = self.tx_queue(id) {
                    queue.call = call;
                    // What was used while there was another descriptor, or none, may not have been
                    // noticed.
                    queue.interrupt();
                }
            }
            TxCommand::SetEnabled(on) => {
                if let Some(queue) = self.tx_queue(id) {
                    queue.enabled = on;
                }
            }
            TxCommand::Inject(port, frame) => self.inject(&port, &frame),
            TxCommand::Settle(done) => {
                let _ = done.send(());
            }
            TxCommand::Expect => self.arrivals.expect(id),
            TxCommand::HandOver(to) => {
                let queue = self.release(id);
                to.post(Command::Tx(id, TxCommand::Arrive(queue)));
            }
            TxCommand::Arrive(_) => {}
        }
    }

    fn tx_queue(&mut self, id: TxId) -> Option<&mut LiveTx> {
        self.tx.iter_mut().find(|queue| queue.id() == id)
    }

    /// Serves a queue from now on. It is looked at before the worker sleeps.
    fn adopt(&mut self, queue: TxQueue) {
        match queue {
            TxQueue::Vhost(queue) => {
                if let Some(kick) = queue.kick.as_deref() {
                    self.bed.add(kick, Token::Kick(queue.port.id, queue.index));
                }
                self.tx.push(*queue);
            }
            TxQueue::Tap(mut tap) => {
                self.bed.add(tap.queue(), Token::Tap(tap.port.id, tap.index));
                tap.ready = true;
                self.tapped = true;
                self.taps.push(*tap);
            }
        }
    }

    /// No longer serves a queue, if it does.
    fn release(&mut self, id: TxId) -> Option<TxQueue> {
        if let Some(at) = self.tx.iter().position(|queue| queue.id() == id) {
            let queue = self.tx.swap_remove(at);
            if let Some(kick) = queue.kick.as_deref() {
                self.bed.remove(kick);
            }
            return Some(TxQueue::Vhost(Box::new(queue)));
        }
        let at = self.taps.iter().position(|tap| tap.id() == id)?;
        let tap = self.taps.swap_remove(at);
        self.bed.remove(tap.queue());
        Some(TxQueue::Tap(Box::new(tap)))
    }
}

#[cfg(test)]
mod tests;
