//! Which worker serves each TX queue of a port: what control knows, and how it speaks to a queue.
//!
//! **Owner.** Each port has one [`Homes`]; the workers do not look at it. **Threads.** Control: the
//! port's session, the balancer, calls of the host. One lock makes "who serves it, and tell them"
//! one step, so that a command never goes to a worker that was told to hand the queue over
//! ([`crate::worker::placement`] says how it goes on). Under the lock only mailboxes are locked.
//! **Failure.** A closed port moves no more.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::balance::{self, Candidate};
use crate::worker::placement::{TxCommand, TxId, TxQueue};
use crate::worker::{Command, Shared};

/// All workers, by number.
#[derive(Debug)]
pub(crate) struct Workers(Vec<Arc<Shared>>);

impl Workers {
    pub(crate) fn new(workers: Vec<Arc<Shared>>) -> Self {
        Self(workers)
    }

    pub(crate) fn get(&self, worker: u16) -> Option<&Arc<Shared>> {
        self.0.get(usize::from(worker))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Shared>> {
        self.0.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Posts a command to a worker that exists.
    pub(crate) fn post(&self, worker: u16, command: Command) {
        if let Some(worker) = self.get(worker) {
            worker.mailbox.post(command);
        }
    }

    /// The best worker for a queue whose memory is on `node` and which is at `home` now.
    pub(crate) fn choose(&self, node: Option<u16>, home: Option<&Home>) -> u16 {
        let candidate = |worker: &Arc<Shared>| {
            let here = home.is_some_and(|home| home.worker == worker.id);
            let own = u32::from(here && home.is_some_and(|home| home.running));
            Candidate {
                load: worker.load.load(Relaxed),
                queues: worker.assigned.load(Relaxed).saturating_sub(own),
                remote: balance::is_remote(node, worker.node),
                here,
            }
        };
        let candidates: Vec<_> = self.iter().map(candidate).collect();
        balance::place(&candidates).and_then(|at| u16::try_from(at).ok()).unwrap_or(0)
    }
}

/// The place of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    /// The worker that serves it, or will.
    pub(crate) worker: u16,
    /// The operator chose it: nothing else moves the queue.
    pub(crate) pinned: bool,
    /// The queue runs.
    pub(crate) running: bool,
    /// NUMA node of its memory, if that is known.
    pub(crate) node: Option<u16>,
}

/// The places of all TX queues of a port.
#[derive(Debug)]
pub(crate) struct Homes(Mutex<Table>);

#[derive(Debug)]
struct Table {
    homes: Box<[Home]>,
    closed: bool,
}

impl Homes {
    /// `queues` queues, none of which runs: all on the worker asked for, or spread.
    pub(crate) fn new(workers: &Workers, queues: usize, wanted: Option<u16>) -> Self {
        let worker = wanted.unwrap_or_else(|| workers.choose(None, None));
        let home = Home { worker, pinned: wanted.is_some(), running: false, node: None };
        Self(Mutex::new(Table { homes: vec![home; queues].into(), closed: false }))
    }

    /// The place of a queue.
    pub(crate) fn get(&self, index: u16) -> Option<Home> {
        self.0.lock().homes.get(usize::from(index)).copied()
    }

    /// Starts a queue whose memory is on `node`, on the worker that is the best for it now.
    pub(crate) fn start(&self, workers: &Workers, id: TxId, queue: TxQueue, node: Option<u16>) {
        let mut table = self.0.lock();
        let Some(home) = table.homes.get_mut(usize::from(id.index)) else { return };
        home.node = node;
        if !home.pinned {
            let best = workers.choose(node, Some(home));
            move_home(workers, id, home, best);
        }
        set_running(workers, home, true);
        workers.post(home.worker, Command::Tx(id, TxCommand::Start(queue)));
    }

    /// Stops a queue; the receiver gets it, if it ran, once it is quiet.
    pub(crate) fn stop(&self, workers: &Workers, id: TxId) -> oneshot::Receiver<Option<TxQueue>> {
        let (done, stopped) = oneshot::channel();
        if let Some(home) = self.0.lock().homes.get_mut(usize::from(id.index)) {
            set_running(workers, home, false);
            workers.post(home.worker, Command::Tx(id, TxCommand::Stop(done)));
        }
        stopped
    }

    /// Posts a command to the worker that holds the queue or will.
    pub(crate) fn post(&self, workers: &Workers, id: TxId, command: TxCommand) {
        if let Some(home) = self.0.lock().homes.get(usize::from(id.index)) {
            workers.post(home.worker, Command::Tx(id, command));
        }
    }

    /// Moves a queue to `worker`; false if it is there, there is no such queue or worker, or the
    /// port is closed.
    pub(crate) fn move_to(&self, workers: &Workers, id: TxId, worker: u16) -> bool {
        let mut table = self.0.lock();
        let Table { homes, closed } = &mut *table;
        match homes.get_mut(usize::from(id.index)) {
            Some(home) if !*closed => move_home(workers, id, home, worker),
            _ => false,
        }
    }

    /// The operator's choice: this worker and no other, or whichever is best. The receiver is told
    /// once the worker serves the queue, if it runs.
    pub(crate) fn pin(
        &self,
        workers: &Workers,
        id: TxId,
        worker: Option<u16>,
    ) -> oneshot::Receiver<()> {
        let (done, settled) = oneshot::channel();
        let mut table = self.0.lock();
        let Table { homes, closed } = &mut *table;
        if let Some(home) = homes.get_mut(usize::from(id.index)).filter(|_| !*closed) {
            home.pinned = worker.is_some();
            if let Some(worker) = worker {
                move_home(workers, id, home, worker);
            }
            workers.post(home.worker, Command::Tx(id, TxCommand::Settle(done)));
        }
        settled
    }

    /// The port is being removed: no queue moves any more.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
    }
}

/// Has a queue handed over, and speaks to the new worker from now on.
fn move_home(workers: &Workers, id: TxId, home: &mut Home, to: u16) -> bool {
    let (Some(new), Some(old)) = (workers.get(to), workers.get(home.worker)) else { return false };
    if to == home.worker {
        return false;
    }
    // In this order: it is expected before it can arrive.
    new.mailbox.post(Command::Tx(id, TxCommand::Expect));
    old.mailbox.post(Command::Tx(id, TxCommand::HandOver(new.mailbox.clone())));
    if home.running {
        old.assigned.fetch_sub(1, Relaxed);
        new.assigned.fetch_add(1, Relaxed);
    }
    home.worker = to;
    true
}

fn set_running(workers: &Workers, home: &mut Home, on: bool) {
    if home.running != on
        && let Some(worker) = workers.get(home.worker)
    {
        home.running = on;
        if on {
            worker.assigned.fetch_add(1, Relaxed)
        } else {
            worker.assigned.fetch_sub(1, Relaxed)
        };
    }
}
