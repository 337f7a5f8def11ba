//! Disks: images of the store as the data plane uses them.

use super::{Plane, PlaneError};
use api::PortState;
use dataplane::{
    DiskImage, DiskSpec, DiskStatus, Extent, OperationKind, Rate, Refusal, StoreTarget,
};
use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use store::Image;

/// An open disk.
pub(crate) type DiskHandle = dataplane::DiskId;

/// An image of a format, for the data plane.
#[derive(Debug)]
struct Formatted(Arc<Image>);

impl Formatted {
    /// Whose bytes are behind tables: the others are files.
    fn image(&self) -> io::Result<&store::Qcow2> {
        match &*self.0 {
            Image::Qcow2(image) => Ok(image),
            Image::Raw(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl dataplane::Image for Formatted {
    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.image()?.read(offset, to)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.image()?.write(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.image()?.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.image()?.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.image()?.write_zeroes(offset, len, unmap)
    }

    fn direct(&self, offset: u64, len: u64, write: bool) -> Option<Extent> {
        let store::Extent { file, offset } = self.image().ok()?.direct(offset, len, write)?;
        Some(Extent { file, offset })
    }
}

/// Where the bytes of a disk are.
pub(crate) enum Source {
    /// In an image of this host, which is open.
    Local(Arc<Image>),
    /// In a store.
    Store(Arc<StoreTarget>),
}

impl Source {
    /// The image of this host.
    pub(crate) fn local(&self) -> Option<&Arc<Image>> {
        match self {
            Self::Local(image) => Some(image),
            Self::Store(_) => None,
        }
    }
}

/// Where a disk's socket is, and what is kept for it.
pub(crate) struct DiskPlace {
    pub(crate) socket: PathBuf,
    pub(crate) writethrough: PathBuf,
}

impl Plane {
    /// Makes a disk from an image that is open; it is used until the disk is closed.
    pub(crate) async fn open_disk(
        &self,
        name: &api::Name,
        config: &api::DiskConfig,
        image: &Source,
        place: DiskPlace,
    ) -> Result<DiskHandle, PlaneError> {
        let spec = DiskSpec {
            name: name.to_string(),
            socket: place.socket,
            mode: super::socket_mode(config.mode),
            queues: config.queues(),
            image: match image {
                Source::Local(image) => bytes(image),
                Source::Store(target) => DiskImage::Store(Arc::clone(target)),
            },
            size: image.local().map_or(0, |image| image.size()),
            read_only: config.readonly,
            limits: limits(&config.limits),
            features_off: 0,
            writethrough: Some(place.writethrough),
            worker: config.worker,
        };
        Ok(self.host.add_disk(&spec).await?)
    }

    /// Closes a disk: its image is not used any more then.
    pub(crate) async fn close_disk(&self, disk: DiskHandle) -> Result<(), PlaneError> {
        Ok(self.host.remove_disk(disk).await?)
    }

    /// Keeps a disk to these limits from now on.
    pub(crate) fn limit_disk(
        &self,
        disk: DiskHandle,
        wanted: &api::DiskLimits,
    ) -> Result<(), PlaneError> {
        Ok(self.host.limit_disk(disk, &limits(wanted))?)
    }

    /// Has a disk begin nothing more: its image is not used any more then, and its guest waits.
    pub(crate) async fn pause_disk(&self, disk: DiskHandle) -> Result<(), PlaneError> {
        Ok(self.host.pause_disk(disk).await?)
    }

    /// Has a disk that was paused go on, with this image.
    pub(crate) fn resume_disk(
        &self,
        disk: DiskHandle,
        image: &Arc<Image>,
    ) -> Result<(), PlaneError> {
        Ok(self.host.resume_disk(disk, bytes(image))?)
    }

    /// Tells a disk's guest that its image has this size by now, in bytes.
    pub(crate) fn resize_disk(&self, disk: DiskHandle, size: u64) -> Result<(), PlaneError> {
        Ok(self.host.resize_disk(disk, size)?)
    }

    /// Has stores that serve guests themselves say how those are, for [`Plane::disk`].
    pub(crate) async fn ask_stores(&self) {
        self.host.ask_stores().await;
    }

    /// What a disk is doing; `None` once it is closed.
    pub(crate) fn disk(&self, disk: DiskHandle) -> Option<DiskStatus> {
        self.host.disk_status(disk)
    }
}

/// An image that is open, as the data plane uses it.
pub(crate) fn bytes(image: &Arc<Image>) -> DiskImage {
    match &**image {
        Image::Raw(raw) => DiskImage::File(Arc::clone(raw.file())),
        Image::Qcow2(_) => DiskImage::Image(Arc::new(Formatted(Arc::clone(image)))),
    }
}

fn limits(wanted: &api::DiskLimits) -> dataplane::DiskLimits {
    let rate = |per_second: Option<u64>, burst: Option<u64>| {
        let per_second = NonZeroU64::new(per_second?)?;
        Some(Rate { per_second, burst: burst.and_then(NonZeroU64::new).unwrap_or(per_second) })
    };
    let bytes = |size: Option<api::MemorySize>| size.map(api::MemorySize::bytes);
    dataplane::DiskLimits {
        operations: rate(wanted.iops, wanted.iops_burst),
        bytes: rate(bytes(wanted.bandwidth), bytes(wanted.bandwidth_burst)),
    }
}

/// State, and why it is that.
pub(crate) fn state(state: &dataplane::PortState) -> (PortState, Option<String>) {
    match state {
        dataplane::PortState::Waiting => (PortState::Waiting, None),
        dataplane::PortState::Connected => (PortState::Connected, None),
        dataplane::PortState::Running => (PortState::Running, None),
        dataplane::PortState::Faulted { reason } => (PortState::Faulted, Some(reason.clone())),
    }
}

/// Operations by kind, those that happened.
pub(crate) fn operations(status: &DiskStatus) -> BTreeMap<String, api::DiskOperations> {
    let kinds = OperationKind::ALL.iter().zip(&status.operations.kinds);
    let happened = kinds.filter(|(_, totals)| totals.operations() > 0);
    happened
        .map(|(kind, totals)| {
            let latency = dataplane::LATENCY_BOUNDS_US.iter().zip(&totals.latency);
            let operations = api::DiskOperations {
                count: totals.operations(),
                bytes: totals.bytes,
                failed: totals.failed,
                latency_us: totals.latency_ns / 1000,
                latency: latency.map(|(bound, count)| (*bound, *count)).collect(),
            };
            (kind.name().to_owned(), operations)
        })
        .collect()
}

/// Requests that made no sense by reason, those that happened.
pub(crate) fn refused(status: &DiskStatus) -> BTreeMap<String, u64> {
    let reasons = Refusal::ALL.iter().zip(status.operations.refused);
    let happened = reasons.filter(|(_, count)| *count > 0);
    happened.map(|(reason, count)| (reason.name().to_owned(), count)).collect()
}
