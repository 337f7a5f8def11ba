//! Which worker a queue belongs on: decisions only, from numbers that come in.
//!
//! Two questions are answered. **Where does a queue that starts go** ([`place`]): to the worker
//! that has least to do, by the load it has had, then by the number of its queues; one on the NUMA
//! node of the queue's memory is worth a detour. **Does a queue have to move** ([`Balancer`]): if a
//! worker has been overloaded for a while and another has room.
//!
//! A move disturbs caches for a moment, so moving is the exception: nothing moves while every
//! worker is below [`HIGH`]; a move must leave the busier of the two workers better off by
//! [`GAIN`], which is why queues do not go back and forth; after a move the figures settle before
//! the next; and a queue that moved stays for a while. A queue that is a worker's only load stays,
//! as elsewhere it would be no better off.
//!
//! **Owner and threads.** No clock, no I/O, no threads: called once per look at the workers, which
//! the host takes every second. Loads are in parts of [`ONE`], the time of one worker.

use std::collections::HashMap;

use crate::worker::placement::TxId;

/// A worker that is busy all the time has this load.
pub(crate) const ONE: u32 = 1000;
/// A worker with less load than this has enough time for what it serves.
pub(crate) const HIGH: u32 = 700;
/// By how much a move must lower the load of the busier of the two workers.
pub(crate) const GAIN: u32 = 100;
/// Looks at which a worker must have been overloaded before a queue moves.
const PATIENCE: u32 = 3;
/// Looks after a move at which no other is made: loads are means over some looks.
const HOLD: u64 = 5;
/// Looks for which a queue that moved stays.
const STAY: u64 = 30;
/// Loads that differ by less are the same to a queue that starts.
const STEP: u32 = ONE / 8;
/// A worker on another node counts as having this much more load.
const DETOUR: u32 = ONE / 2;
/// What a queue costs on another node than that of its memory, and what it costs there.
const REMOTE: (u32, u32) = (4, 3);

/// Whether memory on one node is far from a worker on the other. What is not known is near.
pub(crate) fn is_remote(memory: Option<u16>, worker: Option<u16>) -> bool {
    matches!((memory, worker), (Some(memory), Some(worker)) if memory != worker)
}

/// A worker that a queue could start on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Its load.
    pub(crate) load: u32,
    /// The running queues it has, without the one in question.
    pub(crate) queues: u32,
    /// It is on another node than the queue's memory.
    pub(crate) remote: bool,
    /// The queue is there already.
    pub(crate) here: bool,
}

/// The best of these workers for a queue that starts; `None` if there are none.
pub(crate) fn place(candidates: &[Candidate]) -> Option<usize> {
    let rank = |(_, worker): &(usize, &Candidate)| {
        let load = worker.load + if worker.remote { DETOUR } else { 0 };
        (load / STEP, worker.queues, !worker.here)
    };
    candidates.iter().enumerate().min_by_key(rank).map(|(at, _)| at)
}

/// What a worker has had to do lately.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerLoad {
    /// Its load.
    pub(crate) load: u32,
    /// Its NUMA node, if that is known.
    pub(crate) node: Option<u16>,
    /// The queues it serves.
    pub(crate) queues: Vec<QueueLoad>,
}

/// What a queue has cost lately.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueLoad {
    pub(crate) id: TxId,
    /// Cost, in any unit that is the same for all queues of the worker.
    pub(crate) cost: u64,
    /// NUMA node of its memory, if that is known.
    pub(crate) node: Option<u16>,
    /// It must stay.
    pub(crate) pinned: bool,
}

impl WorkerLoad {
    /// The part of this worker's load that a queue makes.
    pub(crate) fn share(&self, queue: &QueueLoad) -> u32 {
        let all: u64 = self.queues.iter().map(|queue| queue.cost).sum();
        let part = u64::from(self.load) * queue.cost;
        part.checked_div(all).and_then(|part| u32::try_from(part).ok()).unwrap_or(0)
    }
}

/// A queue is to go from one worker to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) id: TxId,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Decides about moves, one look after the other.
#[derive(Debug, Default)]
pub(crate) struct Balancer {
    /// Looks so far.
    looks: u64,
    /// Looks at which each worker has been overloaded, without a break.
    overloaded: Vec<u32>,
    /// No move before this look.
    hold: u64,
    /// The look at which a queue moved; only those that have to stay.
    moved: HashMap<TxId, u64>,
}

impl Balancer {
    /// One look at all workers; at most one queue moves.
    pub(crate) fn look(&mut self, workers: &[WorkerLoad]) -> Option<Move> {
        self.looks += 1;
        let now = self.looks;
        self.moved.retain(|_, at| now - *at < STAY);
        self.overloaded.resize(workers.len(), 0);
        for (looks, worker) in self.overloaded.iter_mut().zip(workers) {
            *looks = if worker.load >= HIGH { *looks + 1 } else { 0 };
        }
        if now < self.hold {
            return None;
        }
        let mut hot: Vec<_> = (0..).zip(&self.overloaded).zip(workers).collect();
        hot.retain(|((_, looks), _)| **looks >= PATIENCE);
        hot.sort_by_key(|(_, worker)| std::cmp::Reverse(worker.load));
        let best = hot.iter().find_map(|((from, _), _)| self.relief(workers, *from))?;
        self.hold = now + HOLD;
        self.moved.insert(best.id, now);
        Some(best)
    }

    /// The move that helps worker `from` the most, if one helps enough.
    fn relief(&self, workers: &[WorkerLoad], from: usize) -> Option<Move> {
        let hot = workers.get(from)?;
        let mut best: Option<(u32, u32, Move)> = None;
        for queue in &hot.queues {
            let share = hot.share(queue);
            if queue.pinned || share == 0 || self.moved.contains_key(&queue.id) {
                continue;
            }
            for (to, worker) in workers.iter().enumerate().filter(|(to, _)| *to != from) {
                let there = worker.load + cost_there(share, queue.node, hot.node, worker.node);
                let busier = there.max(hot.load - share);
                // Of moves that help as much, that of the smaller queue.
                let better = best.is_none_or(|(load, size, _)| (busier, share) < (load, size));
                if busier + GAIN <= hot.load && better {
                    best = Some((busier, share, Move { id: queue.id, from, to }));
                }
            }
        }
        best.map(|(_, _, best)| best)
    }
}

/// The load that a queue with this share makes on a worker of another node.
fn cost_there(share: u32, memory: Option<u16>, here: Option<u16>, there: Option<u16>) -> u32 {
    let (far, near) = REMOTE;
    match (is_remote(memory, here), is_remote(memory, there)) {
        (false, true) => share * far / near,
        (true, false) => share * near / far,
        _ => share,
    }
}

#[cfg(test)]
mod tests;
