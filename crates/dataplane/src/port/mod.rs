//! Ports: where frames enter and leave the switch.
//!
//! A [`Port`] is what every worker may see of a port: its way out and its counters. What only one
//! worker touches (the queues frames come in by) belongs to that worker. Each kind has the same
//! four files: `mod.rs` (what it is), `config.rs` (made from its specification), `rx.rs` and
//! `tx.rs` (the queues, named from the guest's side as virtio does).

pub(crate) mod tap;
pub(crate) mod vhost;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use packet::Offloads;
use switch::{DropReason, PortId};

use crate::counters::QueueCounters;
use crate::frame::Frame;
use crate::homes::Homes;

/// A port, shared by all workers and control.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) id: PortId,
    pub(crate) name: String,
    /// The workers of its TX queues.
    pub(crate) homes: Homes,
    /// The worker that starts and stops its RX queues; every worker delivers to them.
    pub(crate) rx_worker: u16,
    /// Largest layer-3 packet that leaves here, in bytes; 0: any.
    mtu: AtomicU32,
    /// Counters of the queues by which frames enter, one writer each.
    pub(crate) incoming: Box<[QueueCounters]>,
    pub(crate) kind: Kind,
}

/// The kind of a port, with its way out.
#[derive(Debug)]
pub(crate) enum Kind {
    Vhost(vhost::VhostPort),
    Tap(tap::TapPort),
}

impl Port {
    pub(crate) fn new(id: PortId, name: String, homes: Homes, queues: usize, kind: Kind) -> Self {
        let incoming = (0..queues).map(|_| QueueCounters::default()).collect();
        let rx_worker = homes.get(0).map_or(0, |home| home.worker);
        Self { id, name, homes, rx_worker, mtu: AtomicU32::new(0), incoming, kind }
    }

    /// Largest layer-3 packet that leaves here, in bytes; 0: any.
    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu.load(Relaxed)
    }

    pub(crate) fn set_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Relaxed);
    }

    /// Counters of the queues by which frames leave.
    pub(crate) fn outgoing(&self) -> Box<dyn Iterator<Item = &QueueCounters> + '_> {
        match &self.kind {
            Kind::Vhost(vhost) => Box::new(vhost.rx.iter().map(|queue| &queue.counters)),
            Kind::Tap(tap) => Box::new(tap.rx.iter().map(|queue| &queue.counters)),
        }
    }
}

/// What takes frames that leave by a port: one queue of it.
pub(crate) trait Sink {
    /// What the receiver takes unfinished.
    fn offloads(&self) -> Offloads;

    /// Delivers a frame that needs no more than [`Self::offloads`].
    ///
    /// # Errors
    /// Why it is dropped. [`DropReason::GuestFault`]: the ring lied, and the queue must stop.
    fn put(&mut self, frame: &mut Frame<'_, '_>) -> Result<(), DropReason>;
}

/// All ports by their id: a snapshot, replaced as a whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct PortMap(Vec<Option<Arc<Port>>>);

impl PortMap {
    /// The port with this id.
    #[inline]
    pub(crate) fn get(&self, id: PortId) -> Option<&Port> {
        self.0.get(usize::from(id.0))?.as_deref()
    }

    /// The same, to keep.
    pub(crate) fn get_arc(&self, id: PortId) -> Option<&Arc<Port>> {
        self.0.get(usize::from(id.0))?.as_ref()
    }

    pub(crate) fn insert(&mut self, port: Arc<Port>) {
        let at = usize::from(port.id.0);
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(port);
    }

    pub(crate) fn remove(&mut self, id: PortId) -> Option<Arc<Port>> {
        self.0.get_mut(usize::from(id.0))?.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.0.iter().flatten()
    }
}
