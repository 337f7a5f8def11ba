//! What there is to see: ports, workers and addresses, with their counters.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use switch::{DropReason, NetworkId, PortId};

use super::Host;
use crate::balance::ONE;
use crate::counters::QueueCounters;
use crate::port::{Kind, Port};
use crate::session::QueueInfo;
use crate::status::{
    Direction, FdbEntry, PortState, PortStatus, QueueStatus, Traffic, WorkerQueue, WorkerStatus,
};
use crate::worker::Shared;
use crate::worker::placement::TxId;

impl Host {
    /// State and counters of a port.
    pub fn port_status(&self, id: PortId) -> Option<PortStatus> {
        let port = self.0.tables.lock().ports.get_arc(id)?.clone();
        let mut status = status_of(&port);
        for counters in &port.incoming {
            counters.add_to(&mut status.from_port);
            status.flood_copies += counters.flood_copies.get();
        }
        for counters in port.outgoing() {
            counters.add_to(&mut status.to_port);
            status.interrupts += counters.interrupts.get();
            status.deferred += counters.deferred.get();
        }
        let dropped = |reason: DropReason| {
            let all = port.incoming.iter().chain(port.outgoing());
            (reason, all.map(|counters| counters.dropped(reason)).sum::<u64>())
        };
        status.drops =
            DropReason::ALL.iter().map(|r| dropped(*r)).filter(|(_, n)| *n > 0).collect();
        Some(status)
    }

    /// All workers.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        let ports = self.0.tables.lock().ports.clone();
        let gauges = self.0.gauges.lock();
        let queue = |id: &TxId| {
            let port = ports.get(id.port)?;
            let (home, rate) = (port.homes.get(id.index)?, gauges.queue(*id));
            Some(WorkerQueue {
                port: port.name.clone(),
                index: id.index,
                pinned: home.pinned,
                node: home.node,
                load: f64::from(rate.load) / f64::from(ONE),
                frames_per_second: rate.frames,
            })
        };
        let status = |worker: &Arc<Shared>| WorkerStatus {
            id: worker.id,
            cpu: worker.cpu,
            node: worker.node,
            state: worker.state(),
            queues: worker.queues.lock().iter().filter_map(queue).collect(),
            load: f64::from(worker.load.load(Relaxed)) / f64::from(ONE),
            frames_per_second: gauges.worker(worker.id),
            polls: worker.polls.get(),
            busy_polls: worker.busy_polls.get(),
            busy: Duration::from_nanos(worker.busy_ns.get()),
            naps: worker.naps.get(),
            sleeps: worker.sleeps.get(),
            frames: worker.frames.get(),
        };
        self.0.workers.iter().map(status).collect()
    }

    /// The MAC addresses known in a network.
    pub fn fdb(&self, network: NetworkId) -> Vec<FdbEntry> {
        let entry = |entry: switch::FdbEntry| FdbEntry {
            mac: entry.mac.0,
            vlan: entry.vlan,
            port: entry.port,
            age: entry.age,
            fixed: entry.fixed,
        };
        let known = self.0.switch.fdb(network, self.0.now_ms()).unwrap_or_default();
        known.into_iter().map(entry).collect()
    }
}

/// What the kind of a port has to say; counters are still zero.
fn status_of(port: &Port) -> PortStatus {
    let mtu = u16::try_from(port.mtu()).ok().filter(|mtu| *mtu != 0);
    let empty = PortStatus {
        state: PortState::Running,
        since: SystemTime::UNIX_EPOCH,
        sessions: 0,
        last_fault: None,
        features: 0,
        mtu,
        mac: None,
        page_size: None,
        from_port: Traffic::default(),
        to_port: Traffic::default(),
        flood_copies: 0,
        interrupts: 0,
        deferred: 0,
        drops: Vec::new(),
        queues: Vec::new(),
    };
    match &port.kind {
        Kind::Vhost(vhost) => {
            let info = vhost.info.lock();
            let queue = |(virtqueue, info): (usize, &Option<QueueInfo>)| {
                let (index, is_tx) = (virtqueue / 2, virtqueue % 2 == 1);
                let counters = if is_tx {
                    port.incoming.get(index)
                } else {
                    vhost.rx.get(index).map(|queue| &queue.counters)
                };
                let info = info.as_ref()?;
                let dir = if is_tx { Direction::Tx } else { Direction::Rx };
                Some(queue_status(port, index, dir, info, counters?))
            };
            PortStatus {
                state: info.state.clone(),
                since: info.since,
                sessions: info.sessions,
                last_fault: info.last_fault.clone(),
                features: info.features,
                page_size: info.page_size,
                queues: info.queues.iter().enumerate().filter_map(queue).collect(),
                ..empty
            }
        }
        Kind::Tap(tap) => {
            let info = QueueInfo { size: 0, packed: false, enabled: true };
            let tx = port.incoming.iter().enumerate();
            let rx = port.outgoing().enumerate();
            let tx = tx.map(|(i, c)| queue_status(port, i, Direction::Tx, &info, c));
            let rx = rx.map(|(i, c)| queue_status(port, i, Direction::Rx, &info, c));
            PortStatus { since: tap.since, mac: tap.mac(), queues: tx.chain(rx).collect(), ..empty }
        }
    }
}

fn queue_status(
    port: &Port,
    index: usize,
    dir: Direction,
    info: &QueueInfo,
    counters: &QueueCounters,
) -> QueueStatus {
    let index = index as u16;
    // Every worker delivers to an RX queue.
    let home = if dir == Direction::Tx { port.homes.get(index) } else { None };
    QueueStatus {
        index,
        dir,
        running: true,
        enabled: info.enabled,
        size: info.size,
        packed: info.packed,
        worker: home.map(|home| home.worker),
        pinned: home.is_some_and(|home| home.pinned),
        node: home.and_then(|home| home.node),
        frames: counters.frames.get(),
        kicks: counters.kicks.get(),
        interrupts: counters.interrupts.get(),
        deferred: counters.deferred.get(),
    }
}
