//! Why a control call fails.

use std::io;

use switch::PortId;

use crate::disk;
use crate::port::vhost;
use crate::store::StoreError;

/// Why a control call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A worker's thread or descriptors could not be made.
    #[error("cannot start worker {worker}")]
    StartWorker {
        /// Number of the worker.
        worker: u16,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The switch refused the change.
    #[error(transparent)]
    Switch(#[from] switch::SwitchError),
    /// A flow rule that makes no sense, or is too much.
    #[error(transparent)]
    Rule(#[from] switch::rules::RuleError),
    /// The TAP interface could not be created.
    #[error("cannot create TAP interface {ifname}")]
    Tap {
        /// The interface.
        ifname: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The vhost-user socket could not be opened.
    #[error(transparent)]
    Socket(#[from] vhost_session::socket::SocketError),
    /// The specification names a worker that does not exist.
    #[error("there is no worker {worker}: this daemon has {workers}, numbered from 0")]
    NoSuchWorker {
        /// The number asked for.
        worker: u16,
        /// How many there are.
        workers: usize,
    },
    /// The port has no such queue.
    #[error("the port has no queue {queue}: it has {queues}, numbered from 0")]
    NoSuchQueue {
        /// The index asked for.
        queue: u16,
        /// How many queue pairs there are.
        queues: usize,
    },
    /// The number of queues is out of range.
    #[error("a port has 1 to {max} queues, not {queues}", max = vhost::config::MAX_PAIRS)]
    Queues {
        /// The number asked for.
        queues: u16,
    },
    /// The number of queues of a disk is out of range.
    #[error("a disk has 1 to {max} queues, not {queues}", max = disk::MAX_QUEUES)]
    DiskQueues {
        /// The number asked for.
        queues: u16,
    },
    /// The file of an image cannot be used.
    #[error("the image of disk {disk} cannot be used")]
    DiskImage {
        /// The disk.
        disk: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No guest can be shown such a disk.
    #[error("disk {disk} is not possible")]
    DiskLook {
        /// The disk.
        disk: String,
        /// The cause.
        #[source]
        source: ::disk::config::SpecError,
    },
    /// No store opens the image of a disk.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// More disks than there are numbers.
    #[error("there are too many disks")]
    TooManyDisks,
    /// No disk with this id.
    #[error("there is no such disk")]
    NoSuchDisk,
    /// No port with this id.
    #[error("there is no port {0:?}")]
    NoSuchPort(PortId),
    /// The data plane is shutting down.
    #[error("the data plane is shutting down")]
    ShuttingDown,
}
