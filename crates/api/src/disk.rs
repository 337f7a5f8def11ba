//! Disks: virtio-blk devices of VMs.

use crate::port::config::{check_socket, in_range};
use crate::{ImageSource, MemorySize, Name, Origin, PortState, SocketMode, Timestamp, Wrong};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Queues a disk offers when nothing was said; the guest uses as many as it has CPUs.
pub const DEFAULT_DISK_QUEUES: u16 = 8;

/// Most queues of a disk.
pub const MAX_DISK_QUEUES: u16 = 64;

/// Whether the host caches what a disk reads and writes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum DiskCache {
    /// Past the host's page cache (`O_DIRECT`), where the file system can: guests cache themselves.
    #[default]
    Direct,
    /// Through the host's page cache: good for what many guests read.
    Host,
}

impl DiskCache {
    /// Its name, as written in requests and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Host => "host",
        }
    }
}

/// How bytes come from a store and go there.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Transport {
    /// The best there is.
    #[default]
    Auto,
    /// By a store of the same host, which has the guest's memory itself.
    Shm,
    /// By a store that reaches the guest's memory over a fabric, with libfabric.
    Libfabric,
    /// With the requests, over TCP.
    Tcp,
}

impl Transport {
    /// Its name, as written in requests and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Libfabric => "libfabric",
            Self::Tcp => "tcp",
        }
    }
}

/// How much a disk may do.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct DiskLimits {
    /// Operations a second. Default: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    #[schemars(range(min = 1))]
    pub iops: Option<u64>,
    /// Operations at once after a pause. Default: those of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    #[schemars(range(min = 1))]
    pub iops_burst: Option<u64>,
    /// Bytes read and written a second. Default: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<MemorySize>,
    /// Bytes at once after a pause. Default: those of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_burst: Option<MemorySize>,
}

impl DiskLimits {
    /// Checks ranges, and that a burst has its rate.
    ///
    /// # Errors
    /// The first field that is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), Wrong> {
        in_range("iops", self.iops, 1, u64::MAX, "operations a second")?;
        in_range("iops_burst", self.iops_burst, 1, u64::MAX, "operations")?;
        for (burst, rate, field, needs) in [
            (self.iops_burst.is_some(), self.iops.is_some(), "iops_burst", "iops"),
            (
                self.bandwidth_burst.is_some(),
                self.bandwidth.is_some(),
                "bandwidth_burst",
                "bandwidth",
            ),
        ] {
            if burst && !rate {
                return Err(Wrong::new(field, format!("goes with {needs}")));
            }
        }
        Ok(())
    }

    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What a disk is made with.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// The image its bytes are in: that of this host, or `store://HOST:PORT/IMAGE`. Several
    /// addresses with commas between are stores with the same images.
    pub image: ImageSource,
    /// The VM it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<Name>,
    /// Absolute path of the vhost-user socket, at most 107 bytes. Default: `disks/NAME.sock` below
    /// the run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub socket: Option<PathBuf>,
    /// Who listens on the socket: `server` (the daemon, default) or `client` (QEMU does).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SocketMode>,
    /// Most queues that the guest may use, 1 to 64. Default: 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 64)]
    #[schemars(range(min = 1, max = 64))]
    pub queues: Option<u16>,
    /// The guest can read only; any number of such disks may have one image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub readonly: bool,
    /// `direct` (default), past the host's page cache, or `host`, through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<DiskCache>,
    /// Worker that serves it. Default: the one with the most room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u16>,
    /// How bytes come from and go to a store: `shm` (it is on this host, and has the guest's memory itself),
    /// `libfabric` (it reaches that memory over a fabric: InfiniBand, RoCE, or TCP), `tcp`, or
    /// `auto` (default), the best there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Seconds a guest waits for a store that is away before its requests fail. Default: it waits
    /// until the store is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    #[schemars(range(min = 1))]
    pub store_timeout: Option<u64>,
    /// How much it may do. Default: as much as it can.
    #[serde(default, skip_serializing_if = "DiskLimits::is_none")]
    pub limits: DiskLimits,
}

impl DiskConfig {
    /// A disk from this image with nothing else said.
    pub fn new(image: ImageSource) -> Self {
        Self {
            image,
            vm: None,
            socket: None,
            mode: None,
            queues: None,
            readonly: false,
            cache: None,
            worker: None,
            transport: None,
            store_timeout: None,
            limits: DiskLimits::default(),
        }
    }

    /// Checks what a type cannot say.
    ///
    /// # Errors
    /// The first field that is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), Wrong> {
        self.socket.as_deref().map_or(Ok(()), |socket| check_socket("socket", socket))?;
        in_range("queues", self.queues, 1, MAX_DISK_QUEUES, "queues")?;
        in_range("store_timeout", self.store_timeout, 1, u64::MAX, "seconds")?;
        if self.image.local().is_some() {
            let only = |field| Err(Wrong::new(field, "only an image in a store has one"));
            if self.transport.is_some() {
                return only("transport");
            }
            if self.store_timeout.is_some() {
                return only("store_timeout");
            }
        } else if self.cache.is_some() {
            return Err(Wrong::new("cache", "the store has one: `hayate store serve --cache`"));
        }
        if self.image.name().is_snapshot() && !self.readonly {
            let message = "a snapshot cannot be written: say readonly, or make a clone of it";
            return Err(Wrong::new("image", message));
        }
        self.limits.check()
    }

    /// Queues, with the default.
    pub fn queues(&self) -> u16 {
        self.queues.unwrap_or(DEFAULT_DISK_QUEUES)
    }
}

/// What was done of one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DiskOperations {
    /// How many ended, failed ones too.
    pub count: u64,
    /// Bytes moved, discarded or cleared by those that succeeded.
    pub bytes: u64,
    /// How many the image could not carry out.
    pub failed: u64,
    /// From the guest's request to its end, all together.
    pub latency_us: u64,
    /// How many took at most so many microseconds, and more than those of the entry before.
    /// Without those that took more than the last entry.
    pub latency: BTreeMap<u64, u64>,
}

/// One queue of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DiskQueue {
    /// Its index, from 0.
    pub index: u16,
    /// Descriptors in its ring.
    pub size: u16,
    /// Packed ring; otherwise split.
    pub packed: bool,
    /// The front end lets it carry requests.
    pub enabled: bool,
}

/// The connection of a disk to its store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DiskStore {
    /// Where it was reached last.
    pub address: Option<String>,
    /// Whether it is reached now. If not, the guest waits.
    pub connected: bool,
    /// Why it is not.
    pub away: Option<String>,
    /// Since when that is so.
    pub since: Timestamp,
    /// Connections so far.
    pub connections: u64,
    /// How bytes come and go: `shm`, `libfabric` or `tcp`.
    pub transport: Transport,
    /// By `libfabric`: the provider that moves them, `verbs` or `tcp`.
    pub provider: Option<String>,
}

/// A disk as the daemon shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Disk {
    /// Its name; its first 20 bytes are its serial number in the guest.
    pub name: Name,
    /// The image its bytes are in.
    pub image: ImageSource,
    /// The VM it belongs to.
    pub vm: Option<Name>,
    /// What it is doing.
    pub state: PortState,
    /// Since when.
    pub since: Timestamp,
    /// Why it is faulted or failed.
    pub failure: Option<String>,
    /// The last fault of a guest, also of one that is gone.
    pub last_fault: Option<String>,
    /// What the image reported last.
    pub last_error: Option<String>,
    /// The vhost-user socket.
    #[schema(value_type = String)]
    pub socket: PathBuf,
    /// Who listens on it.
    pub mode: SocketMode,
    /// Bytes of the disk.
    pub size: u64,
    /// What the guest has to align to, in bytes.
    pub block_size: u32,
    /// The guest can read only.
    pub readonly: bool,
    /// Writes are cached until the guest flushes; otherwise each is stable when it ends.
    pub writeback: bool,
    /// The worker that serves it.
    pub worker: Option<u16>,
    /// Front ends that connected so far.
    pub sessions: u64,
    /// Negotiated virtio features, by name.
    pub features: Vec<String>,
    /// Requests being carried out.
    pub in_flight: u64,
    /// Operations by kind: `read`, `write`, `flush`, `discard`, `write-zeroes`, `get-id`.
    pub operations: BTreeMap<String, DiskOperations>,
    /// Requests that made no sense, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Notifications from the guest.
    pub kicks: u64,
    /// Notifications to the guest.
    pub interrupts: u64,
    /// Requests copied because the file wanted another alignment than the guest's memory had.
    pub bounced: u64,
    /// The store that has its image, if one has.
    pub store: Option<DiskStore>,
    /// Running queues.
    pub queues: Vec<DiskQueue>,
    /// What it was made with.
    pub config: DiskConfig,
    /// Where it was declared.
    pub origin: Origin,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_go_together_is_refused() {
        let good = DiskConfig::new("web".parse().unwrap());
        assert_eq!(good.check(), Ok(()));
        let with = |change: fn(&mut DiskConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.check().map_err(|wrong| wrong.field)
        };
        assert_eq!(with(|c| c.queues = Some(0)), Err("queues"));
        assert_eq!(with(|c| c.queues = Some(65)), Err("queues"));
        assert_eq!(with(|c| c.socket = Some("relative".into())), Err("socket"));
        assert_eq!(with(|c| c.image = "web@a".parse().unwrap()), Err("image"));
        assert_eq!(with(|c| c.transport = Some(Transport::Tcp)), Err("transport"));
        assert_eq!(with(|c| c.store_timeout = Some(5)), Err("store_timeout"));
        let far = |change: fn(&mut DiskConfig)| {
            let mut config = DiskConfig::new("store://a:1/web".parse().unwrap());
            change(&mut config);
            config.check().map_err(|wrong| wrong.field)
        };
        assert_eq!(far(|c| c.transport = Some(Transport::Tcp)), Ok(()));
        assert_eq!(far(|c| c.store_timeout = Some(0)), Err("store_timeout"));
        assert_eq!(far(|c| c.cache = Some(DiskCache::Host)), Err("cache"));
        assert_eq!(far(|c| c.image = "store://a:1/web@a".parse().unwrap()), Err("image"));
        assert_eq!(with(|c| c.limits.iops = Some(0)), Err("iops"));
        assert_eq!(with(|c| c.limits.iops_burst = Some(9)), Err("iops_burst"));
        assert_eq!(
            with(|c| c.limits.bandwidth_burst = Some(MemorySize::DEFAULT)),
            Err("bandwidth_burst")
        );
        let read_only = |c: &mut DiskConfig| {
            c.image = "web@a".parse().unwrap();
            c.readonly = true;
        };
        assert_eq!(with(read_only), Ok(()));
    }

    #[test]
    fn defaults_are_not_written() {
        let config = DiskConfig::new("web".parse().unwrap());
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(text, r#"{"image":"web"}"#);
        assert_eq!(serde_json::from_str::<DiskConfig>(&text).unwrap(), config);
    }
}
