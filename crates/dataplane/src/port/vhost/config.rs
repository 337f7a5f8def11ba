//! A vhost port made from its specification, and the device its sessions serve.

use std::io;
use std::path::Path;
use std::sync::Arc;

use pace::{Moderation, Moderator};
use packet::vnet::{VNET_HLEN, VNET_HLEN_LEGACY};
use packet::{Mac, Offloads};
use switch::{PortId, Switch};
use sys::{EventFd, Words};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use vhost_session::socket::{Endpoint, SocketError};
use vhost_session::{Device, DeviceFault, DeviceSpec, QueueSetup, SessionEnd};
use virtio_bindings::virtio_config::{
    VIRTIO_F_ANY_LAYOUT, VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_net as net;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtqueue::{Journal, Queue};

use crate::homes::{Homes, Workers};
use crate::port::vhost::VhostPort;
use crate::port::vhost::rx::LiveRx;
use crate::port::vhost::tx::LiveTx;
use crate::port::{Kind, Port};
use crate::session::{self, Info, QueueInfo, SessionTask};
use crate::spec::{PortSpec, VhostSpec};
use crate::status::PortState;
use crate::worker::Command;
use crate::worker::placement::{TxCommand, TxId, TxQueue};

/// Most queue pairs of a port.
pub(crate) const MAX_PAIRS: u16 = 32;

/// VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_USO (virtio 1.3, 5.1.3).
const USO: [u32; 3] = [54, 55, 56];

/// The virtio features offered to guests, before a port's `features_off` is taken out.
pub(crate) fn offered() -> u64 {
    [
        VIRTIO_F_VERSION_1,
        VIRTIO_F_ANY_LAYOUT,
        VIRTIO_F_RING_PACKED,
        VIRTIO_F_IN_ORDER,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_RING_F_EVENT_IDX,
        net::VIRTIO_NET_F_CSUM,
        net::VIRTIO_NET_F_GUEST_CSUM,
        net::VIRTIO_NET_F_GUEST_TSO4,
        net::VIRTIO_NET_F_GUEST_TSO6,
        net::VIRTIO_NET_F_GUEST_ECN,
        net::VIRTIO_NET_F_HOST_TSO4,
        net::VIRTIO_NET_F_HOST_TSO6,
        net::VIRTIO_NET_F_HOST_ECN,
        net::VIRTIO_NET_F_MRG_RXBUF,
        net::VIRTIO_NET_F_STATUS,
        net::VIRTIO_NET_F_CTRL_VQ,
        net::VIRTIO_NET_F_CTRL_RX,
        net::VIRTIO_NET_F_CTRL_VLAN,
        net::VIRTIO_NET_F_GUEST_ANNOUNCE,
        net::VIRTIO_NET_F_MQ,
        net::VIRTIO_NET_F_MTU,
        USO[0],
        USO[1],
        USO[2],
    ]
    .into_iter()
    .fold(0, |bits, feature| bits | 1 << feature)
}

/// A port made, its socket open, its session task not started yet.
pub(crate) struct Made {
    endpoint: Endpoint,
    spec: DeviceSpec,
    faults: mpsc::UnboundedReceiver<String>,
    rings: Option<Words>,
}

/// What the session task reaches the data plane by.
pub(crate) struct Wiring {
    pub(crate) switch: Arc<Switch>,
    pub(crate) workers: Arc<Workers>,
    /// Workers are on NUMA nodes, so it matters where a ring is.
    pub(crate) numa: bool,
}

/// Opens the socket and makes the port.
///
/// # Errors
///
/// The path cannot be bound, or another process listens there.
pub(crate) fn create(
    id: PortId,
    spec: &PortSpec,
    config: &VhostSpec,
    homes: Homes,
) -> Result<(Arc<Port>, Made), SocketError> {
    let endpoint = session::endpoint(&config.socket, config.mode)?;
    let device = DeviceSpec::net(offered() & !config.features_off, config.queues);
    let (report, faults) = mpsc::unbounded_channel();
    let kind = Kind::Vhost(VhostPort::new(config.queues, config.moderation, report));
    let port = Port::new(id, spec.name.clone(), homes, config.queues.into(), kind);
    port.set_mtu(spec.mtu.unwrap_or(0).into());
    let rings = config.rings.as_deref().and_then(|path| {
        let opened = open_rings(path, usize::from(config.queues) * 2 * Journal::WORDS);
        let lost = "guests with packed rings will not survive a restart";
        let warn =
            |error| tracing::warn!(port = %spec.name, %error, "cannot keep positions: {lost}");
        opened.map_err(warn).ok()
    });
    Ok((Arc::new(port), Made { endpoint, spec: device, faults, rings }))
}

/// The file with the journals of a port's queues, as a predecessor left it or new.
fn open_rings(path: &Path, words: usize) -> io::Result<Words> {
    match Words::open(path, words) {
        Ok(Some(rings)) => return Ok(rings),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "replaced a file of ring positions");
            std::fs::remove_file(path)?;
        }
    }
    Words::create(path, words)
}

impl Made {
    /// Starts serving front ends.
    pub(crate) fn spawn(self, port: Arc<Port>, wiring: Wiring, runtime: &Handle) -> SessionTask {
        let port_name = port.name.clone();
        let mtu = port.mtu();
        let Self { endpoint, spec, faults, rings } = self;
        let device = NetDevice { port, mtu, wiring, faults, rings, running: Vec::new() };
        SessionTask::spawn(port_name, endpoint, spec, device, runtime)
    }
}

/// The device a session drives: it turns starts and stops into commands to workers.
struct NetDevice {
    port: Arc<Port>,
    wiring: Wiring,
    faults: mpsc::UnboundedReceiver<String>,
    /// The MTU of the specification, 0 without one.
    mtu: u32,
    /// Journals of its queues, one after the other.
    rings: Option<Words>,
    /// Virtqueues that run.
    running: Vec<u16>,
}

impl NetDevice {
    fn vhost(&self) -> Option<&VhostPort> {
        match &self.port.kind {
            Kind::Vhost(vhost) => Some(vhost),
            Kind::Tap(_) => None,
        }
    }

    fn info(&self, change: impl FnOnce(&mut Info)) {
        if let Some(vhost) = self.vhost() {
            change(&mut vhost.info.lock());
        }
    }

    /// The TX queue that is this virtqueue.
    fn tx(&self, virtqueue: u16) -> TxId {
        TxId { port: self.port.id, index: virtqueue / 2 }
    }

    fn tx_command(&self, id: TxId, command: TxCommand) {
        self.port.homes.post(&self.wiring.workers, id, command);
    }

    fn rx_command(&self, command: Command) {
        self.wiring.workers.post(self.port.rx_worker, command);
    }

    /// The journal of a queue, if there is a file for it.
    fn journal(&self, virtqueue: u16) -> Option<Journal> {
        let start = usize::from(virtqueue) * Journal::WORDS;
        Journal::new(&self.rings.as_ref()?.part(start, Journal::WORDS)?)
    }

    /// Says whether frames can be delivered to the port.
    fn link(&self, up: bool) {
        if let Err(error) = self.wiring.switch.set_link(self.port.id, up) {
            tracing::error!(port = %self.port.name, %error, "cannot set the link");
        }
    }

    /// Notes which queues run: the link is up while any does. While only its TX queues run, what
    /// is sent to the port is dropped there, and what it sends passes.
    fn running(&mut self, queue: u16, info: Option<QueueInfo>) {
        self.running.retain(|running| *running != queue);
        if info.is_some() {
            self.running.push(queue);
        }
        let state = if self.running.is_empty() { PortState::Connected } else { PortState::Running };
        self.info(|all| {
            if let Some(slot) = all.queues.get_mut(usize::from(queue)) {
                *slot = info;
            }
            all.enter(state);
        });
        self.link(!self.running.is_empty());
    }
}

impl Device for NetDevice {
    fn connected(&mut self) {
        while self.faults.try_recv().is_ok() {}
        self.info(Info::connected);
    }

    fn features(&mut self, negotiated: u64) {
        self.info(|info| info.features = negotiated);
    }

    fn start(&mut self, setup: QueueSetup) -> Result<(), DeviceFault> {
        let QueueSetup { index: virtqueue, mem, config, features, .. } = setup;
        let QueueSetup { known_base, kick, call, enabled, .. } = setup;
        let has = |feature: u32| features & 1 << feature != 0;
        let journal = self.journal(virtqueue).unwrap_or_else(Journal::private);
        let queue = Queue::resume(&mem, &config, journal, known_base).map_err(|fault| {
            DeviceFault { queue: Some(virtqueue), reason: format!("{}: {fault}", fault.name()) }
        })?;
        let mergeable = has(net::VIRTIO_NET_F_MRG_RXBUF);
        let with_buffers = mergeable || has(VIRTIO_F_VERSION_1);
        let vnet_len = if with_buffers { VNET_HLEN } else { VNET_HLEN_LEGACY };
        let info = QueueInfo { size: config.size, packed: config.packed, enabled };
        let (base, page_size) = (queue.base(), mem.page_size());
        self.info(|info| info.page_size = Some(page_size));
        let (port, index) = (Arc::clone(&self.port), virtqueue / 2);
        if virtqueue % 2 == 1 {
            // A queue starts with kicks asked for.
            let armed = true;
            let faulted = false;
            let offloads = Offloads::from_host_features(features);
            let queue = queue.read_only();
            let node = if self.wiring.numa { mem.node(config.desc) } else { None };
            let live = LiveTx {
                port,
                index,
                queue,
                mem,
                vnet_len,
                offloads,
                kick,
                call,
                enabled,
                armed,
                faulted,
                toward: None,
            };
            let (id, live) = (live.id(), TxQueue::Vhost(Box::new(live)));
            self.port.homes.start(&self.wiring.workers, id, live, node);
        } else {
            let offloads = Offloads::from_guest_features(features);
            let moderation = self.vhost().map_or(Moderation::Off, |vhost| vhost.moderation);
            let live = LiveRx {
                queue,
                mem,
                vnet_len,
                mergeable,
                offloads,
                call,
                enabled,
                filled: 0,
                last: 0,
                fault: None,
                moderator: Moderator::new(moderation, config.size),
                waiting: None,
                room: Moderator::room(config.size),
            };
            self.rx_command(Command::StartRx(port, index, Box::new(live)));
        }
        tracing::debug!(port = %self.port.name, virtqueue, size = info.size, base, "queue started");
        self.running(virtqueue, Some(info));
        Ok(())
    }

    async fn stop(&mut self, virtqueue: u16) -> u32 {
        let index = virtqueue / 2;
        let base = if virtqueue % 2 == 1 {
            let stopped = self.port.homes.stop(&self.wiring.workers, self.tx(virtqueue));
            match stopped.await.ok().flatten() {
                Some(TxQueue::Vhost(live)) => Some(live.queue.base()),
                _ => None,
            }
        } else {
            let (done, stopped) = oneshot::channel();
            self.rx_command(Command::StopRx(Arc::clone(&self.port), index, done));
            stopped.await.ok().flatten().map(|live| live.queue.base())
        };
        tracing::debug!(port = %self.port.name, virtqueue, base, "queue stopped");
        self.running(virtqueue, None);
        base.unwrap_or(0)
    }

    fn forget(&mut self, virtqueue: u16) {
        if let Some(journal) = self.journal(virtqueue) {
            journal.forget();
        }
    }

    fn set_call(&mut self, virtqueue: u16, call: Option<Arc<EventFd>>) {
        if virtqueue % 2 == 1 {
            self.tx_command(self.tx(virtqueue), TxCommand::SetCall(call));
        } else {
            self.rx_command(Command::SetCall(Arc::clone(&self.port), virtqueue / 2, call));
        }
    }

    fn set_enabled(&mut self, virtqueue: u16, enabled: bool) {
        if virtqueue % 2 == 1 {
            self.tx_command(self.tx(virtqueue), TxCommand::SetEnabled(enabled));
        } else {
            self.rx_command(Command::SetEnabled(Arc::clone(&self.port), virtqueue / 2, enabled));
        }
        self.info(|info| info.set_enabled(virtqueue, enabled));
    }

    fn set_mtu(&mut self, mtu: u16) {
        tracing::info!(port = %self.port.name, mtu, "the guest was told its MTU");
        // The operator's limit stands, whatever the front end says.
        let limit = if self.mtu == 0 { u32::from(mtu) } else { self.mtu.min(mtu.into()) };
        self.port.set_mtu(limit);
    }

    fn rarp(&mut self, mac: [u8; 6]) {
        let frame = packet::arp::announcement(Mac(mac)).to_vec();
        self.tx_command(self.tx(1), TxCommand::Inject(Arc::clone(&self.port), frame));
    }

    async fn fault(&mut self) -> DeviceFault {
        match self.faults.recv().await {
            Some(reason) => DeviceFault { queue: None, reason },
            None => std::future::pending().await,
        }
    }

    fn disconnected(&mut self, why: &SessionEnd) {
        self.link(false);
        self.port.set_mtu(self.mtu);
        self.info(|info| info.disconnected(why));
    }
}
