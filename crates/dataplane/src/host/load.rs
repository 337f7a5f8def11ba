//! What workers and queues have had to do since the last look.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::balance::{ONE, QueueLoad, WorkerLoad};
use crate::homes::{Home, Workers};
use crate::port::{Kind, PortMap};
use crate::worker::placement::TxId;

/// A look sooner than this after the last one says too little.
const SOON: Duration = Duration::from_millis(100);
/// As many bytes cost about as much as one frame more: copying them does.
const BYTES_PER_COST: u64 = 512;
/// A frame read from a TAP queue costs a system call: as much as so many frames of a guest.
const TAP_COST: u64 = 8;

/// The figures of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueRate {
    /// Its part of its worker's load, in parts of [`ONE`].
    pub(super) load: u32,
    /// Frames a second.
    pub(super) frames: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct QueueGauge {
    /// Counters at the last look.
    frames: u64,
    bytes: u64,
    /// Cost a second, as a mean over some looks.
    cost: u64,
    rate: QueueRate,
}

#[derive(Debug, Clone, Copy, Default)]
struct WorkerGauge {
    /// Counters at the last look.
    busy_ns: u64,
    frames: u64,
    /// Frames a second.
    rate: u64,
}

/// Counters as they were, and what has become of them.
#[derive(Debug)]
pub(super) struct Gauges {
    at: Instant,
    workers: Vec<WorkerGauge>,
    queues: HashMap<TxId, QueueGauge>,
}

impl Gauges {
    pub(super) fn new(now: Instant) -> Self {
        Self { at: now, workers: Vec::new(), queues: HashMap::new() }
    }

    /// Frames a second that a worker took, lately.
    pub(super) fn worker(&self, id: u16) -> u64 {
        self.workers.get(usize::from(id)).map_or(0, |gauge| gauge.rate)
    }

    /// The figures of a queue.
    pub(super) fn queue(&self, id: TxId) -> QueueRate {
        self.queues.get(&id).map(|gauge| gauge.rate).unwrap_or_default()
    }

    /// Reads all counters; notes each worker's load in the worker. Loads are means in which each
    /// look counts half of the one after it. `None`: the last look was a moment ago.
    pub(super) fn look(
        &mut self,
        now: Instant,
        workers: &Workers,
        ports: &PortMap,
    ) -> Option<Vec<WorkerLoad>> {
        let passed = now.duration_since(self.at);
        if passed < SOON {
            return None;
        }
        self.at = now;
        self.workers.resize(workers.len(), WorkerGauge::default());
        let mut loads: Vec<WorkerLoad> = Vec::with_capacity(workers.len());
        for (worker, gauge) in workers.iter().zip(&mut self.workers) {
            let (busy_ns, frames) = (worker.busy_ns.get(), worker.frames.get());
            let busy = u128::from(busy_ns.wrapping_sub(gauge.busy_ns)) * u128::from(ONE);
            let load = (busy / passed.as_nanos().max(1)).min(ONE.into()) as u32;
            let load = (worker.load.load(Relaxed) + load).div_ceil(2);
            worker.load.store(load, Relaxed);
            let rate = per_second(frames.wrapping_sub(gauge.frames), passed);
            *gauge = WorkerGauge { busy_ns, frames, rate };
            loads.push(WorkerLoad { load, node: worker.node, queues: Vec::new() });
        }
        self.look_at_queues(passed, ports, &mut loads);
        Some(loads)
    }

    fn look_at_queues(&mut self, passed: Duration, ports: &PortMap, loads: &mut [WorkerLoad]) {
        let mut queues = HashMap::with_capacity(self.queues.len());
        for port in ports.iter() {
            let per_frame = if matches!(port.kind, Kind::Tap(_)) { TAP_COST } else { 1 };
            for (index, counters) in (0u16..).zip(&port.incoming) {
                let Some(home) = port.homes.get(index).filter(|home| home.running) else {
                    continue;
                };
                let Some(worker) = loads.get_mut(usize::from(home.worker)) else { continue };
                let id = TxId { port: port.id, index };
                let (frames, bytes) = (counters.frames.get(), counters.bytes.get());
                let before = self.queues.get(&id).copied();
                // What came before the first look is not of this second.
                let before =
                    before.unwrap_or(QueueGauge { frames, bytes, ..QueueGauge::default() });
                let new_frames = frames.wrapping_sub(before.frames);
                let new_bytes = bytes.wrapping_sub(before.bytes);
                let cost = new_frames.saturating_mul(per_frame) + new_bytes / BYTES_PER_COST;
                let cost = u64::midpoint(before.cost, per_second(cost, passed));
                let rate = QueueRate { load: 0, frames: per_second(new_frames, passed) };
                queues.insert(id, QueueGauge { frames, bytes, cost, rate });
                let Home { pinned, node, .. } = home;
                worker.queues.push(QueueLoad { id, cost, node, pinned });
            }
        }
        for worker in loads {
            for queue in &worker.queues {
                if let Some(gauge) = queues.get_mut(&queue.id) {
                    gauge.rate.load = worker.share(queue);
                }
            }
        }
        self.queues = queues;
    }
}

fn per_second(count: u64, passed: Duration) -> u64 {
    let nanos = passed.as_nanos().max(1);
    u64::try_from(u128::from(count) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}
