//! What a session serves: the device a front end sees, and the data plane behind it.

use std::future::Future;
use std::io;
use std::sync::Arc;

use guestmem::GuestMemory;
use sys::EventFd;
use thiserror::Error;
use tokio::sync::Notify;
use virtqueue::{QueueConfig, RegionArea};

use crate::SessionFault;

/// What is offered to front ends; the same for every session of a port.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// Virtio feature bits offered.  `VHOST_USER_F_PROTOCOL_FEATURES` is added by the session; features a session cannot
    /// carry out (`VIRTIO_F_ACCESS_PLATFORM`, `VHOST_F_LOG_ALL`) are taken out.
    pub features: u64,
    /// Number of virtqueues: 1 to 256.  Ring indices from here on are refused.
    pub rings: u16,
    /// Answer to GET_QUEUE_NUM.  QEMU and DPDK mean queue *pairs* for a network device, virtqueues for any other.
    pub queue_num: u16,
    /// Whether this is a network device: offers the protocol features NET_MTU and RARP.
    pub net: bool,
    /// Largest MTU a front end may set, 68 to 65535.
    pub max_mtu: u16,
    /// Bytes of the virtio configuration space that the device keeps, at most 256; 0: it keeps none, as QEMU keeps a
    /// network device's own.  Otherwise the protocol features CONFIG and BACKEND_REQ are offered.
    pub config_size: u16,
    /// Whether the device completes requests in any order and writes down which are in flight: offers the protocol
    /// feature INFLIGHT_SHMFD.
    pub inflight: bool,
}

impl DeviceSpec {
    /// A network device of `pairs` queue pairs (1 to 128) with these virtio features.
    #[must_use]
    pub fn net(features: u64, pairs: u16) -> DeviceSpec {
        let pairs = pairs.clamp(1, 128);
        DeviceSpec {
            features,
            rings: pairs * 2,
            queue_num: pairs,
            net: true,
            max_mtu: u16::MAX,
            config_size: 0,
            inflight: false,
        }
    }

    /// A disk of `queues` virtqueues (1 to 256) with these virtio features and a configuration space of so many bytes.
    /// Its requests are completed in any order: `VIRTIO_F_IN_ORDER` is not for it.
    #[must_use]
    pub fn block(features: u64, queues: u16, config_size: u16) -> DeviceSpec {
        let queues = queues.clamp(1, 256);
        DeviceSpec {
            features,
            rings: queues,
            queue_num: queues,
            net: false,
            max_mtu: u16::MAX,
            config_size,
            inflight: true,
        }
    }
}

/// Everything a started virtqueue needs.
#[derive(Debug)]
pub struct QueueSetup {
    /// Ring index: for a network device 2k is an RX queue, 2k+1 a TX queue.
    pub index: u16,
    /// The memory table its addresses were checked against.  Drop it when the queue is stopped.
    pub mem: Arc<GuestMemory>,
    /// Layout, size, addresses and position.
    pub config: QueueConfig,
    /// The position the front end holds for right: that of its SET_VRING_BASE, or of the last answer to GET_VRING_BASE.
    /// Differs from that in `config` after a stop of which it does not know.
    pub known_base: u32,
    /// Negotiated virtio features, without the bits that belong to vhost-user.
    pub features: u64,
    /// What the guest signals when it has added buffers; `None`: it does not, the ring has to be polled.
    pub kick: Option<Arc<EventFd>>,
    /// What to signal when buffers have been used; `None`: the guest polls.
    pub call: Option<Arc<EventFd>>,
    /// A disabled queue is processed without effect: an RX queue gets nothing, what a TX queue sends is dropped.
    pub enabled: bool,
    /// Where the queue's requests in flight are written down, for a
    /// [`TrackedQueue`](virtqueue::TrackedQueue); `None`: the front end keeps no memory for them.  The memory is one of
    /// its own, which the area keeps mapped: `inflight.memory().faulted()` says whether it has vanished.
    pub inflight: Option<RegionArea>,
}

/// Why a device cannot go on with a session: a ring lied, or memory vanished.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{reason}")]
pub struct DeviceFault {
    /// The ring, if it was one ring: its error eventfd is signalled.
    pub queue: Option<u16>,
    /// One sentence.
    pub reason: String,
}

/// Why a write to the configuration space was not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("a write to the configuration space was refused: {reason}")]
pub struct ConfigRefused {
    /// One sentence.
    pub reason: String,
}

/// Why a session ended.
#[derive(Debug, Error)]
pub enum SessionEnd {
    /// The front end closed the connection between two messages, as it does when the VM ends.
    #[error("the front end disconnected")]
    Closed,
    /// The front end was gone in the middle of a message, or the socket failed.
    #[error("the connection was lost: {0}")]
    Lost(#[source] io::Error),
    /// The port is being closed.
    #[error("the port is closed")]
    Stopped,
    /// The front end broke the protocol.
    #[error(transparent)]
    Fault(#[from] SessionFault),
    /// The device could not go on.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

impl SessionEnd {
    /// A stable kebab-case name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Lost(_) => "connection-lost",
            Self::Stopped => "port-closed",
            Self::Fault(fault) => fault.name(),
            Self::Device(_) => "device-fault",
        }
    }

    /// Whether the front end or the guest did something wrong, as opposed to going away.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Fault(_) | Self::Device(_))
    }
}

/// The data plane's side of a port.
///
/// **Threads.** All methods are called by the port's task, one at a time, on the control runtime; none may block.  What
/// they have to tell a worker goes into its mailbox.  **Order.** `connected`, then any of the others, then `disconnected`,
/// then the next session.  A queue is started at most once before it is stopped; `set_call` and `set_enabled` come for
/// started queues only, `forget` for stopped ones.  Every started queue is stopped before `disconnected`, whatever ends the session.  After a
/// change of the memory table queues are stopped and started again with the new one.
pub trait Device: Send + 'static {
    /// A front end is there.  Nothing is negotiated, no queue runs.
    fn connected(&mut self) {}

    /// The front end (the guest's driver) chose these features; bits of vhost-user's own are not among them.
    fn features(&mut self, negotiated: u64);

    /// Starts a queue.
    ///
    /// # Errors
    /// The ring cannot be run as it is.  The queue counts as not started and the session ends with this fault.
    fn start(&mut self, queue: QueueSetup) -> Result<(), DeviceFault>;

    /// Stops a queue: resolves to its position (as in `VHOST_USER_GET_VRING_BASE`) once nobody touches its ring, its
    /// buffers and its descriptors any more, which must not take long: the front end, and so the guest, waits.
    fn stop(&mut self, queue: u16) -> impl Future<Output = u32> + Send;

    /// Nobody needs to remember this queue's position any more: the front end has been told, or its ring is gone.  A
    /// queue that was merely stopped goes on one day, perhaps in a later session whose front end knows an old position.
    fn forget(&mut self, _queue: u16) {}

    /// Replaces what a started queue signals.
    fn set_call(&mut self, queue: u16, call: Option<Arc<EventFd>>);

    /// Enables or disables a started queue.
    fn set_enabled(&mut self, queue: u16, enabled: bool);

    /// The MTU the guest was told.
    fn set_mtu(&mut self, _mtu: u16) {}

    /// Asks for a gratuitous RARP from this address: the guest has been migrated here and cannot announce itself.
    fn rarp(&mut self, _mac: [u8; 6]) {}

    /// The configuration space as it is now.  Bytes behind the end of what is returned read as zero.
    fn config(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes a write of the guest to the configuration space, inside [`DeviceSpec::config_size`] and not empty: resolves
    /// once it holds for whatever the guest asks next, which must not take long, as for [`Device::stop`].
    ///
    /// # Errors
    /// The bytes cannot be written, and nothing changed.  The session goes on: it is the guest's mistake.
    fn write_config(
        &mut self,
        _offset: u32,
        _bytes: &[u8],
    ) -> impl Future<Output = Result<(), ConfigRefused>> + Send {
        std::future::ready(Err(ConfigRefused { reason: "it is read-only".into() }))
    }

    /// What is notified ([`Notify::notify_one`], from any thread) when the configuration space has changed other than by
    /// a write of the guest.  Asked for when a front end connects; `None`: it never changes.
    ///
    /// The front end is told once a queue runs and its socket has room.  Many changes may be told as one, and a change
    /// while nobody is connected is told to the next front end, which may still know what its last session had.
    fn changes(&self) -> Option<Arc<Notify>> {
        None
    }

    /// Resolves when the device cannot go on with this session.  Dropped and called again many times during a session,
    /// so nothing may be lost when it is dropped; what belongs to an earlier session must not be reported to a later one.
    fn fault(&mut self) -> impl Future<Output = DeviceFault> + Send;

    /// The session is over; all queues have been stopped.
    fn disconnected(&mut self, _why: &SessionEnd) {}
}
