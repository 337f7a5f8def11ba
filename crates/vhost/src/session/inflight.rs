//! Where requests in flight are written down: made for the front end, and brought back by it.

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use guestmem::{GuestMemory, MapError, RegionFile, RegionSpec};
use vhost::vhost_user::message::{FrontendReq, VhostUserProtocolFeatures as Protocol};
use virtio_bindings::virtio_config::VIRTIO_F_RING_PACKED;
use virtqueue::{MAX_QUEUE_SIZE, QueueConfig, RegionArea, region_bytes};

use super::handle::Handled;
use super::ring::has;
use super::{Action, Pending, Session, Work};
use crate::SessionFault;
use crate::message::{InflightArea, reply};

/// Regions consist of words of so many bytes.
const ALIGN: u32 = 8;

/// The regions of all queues.
#[derive(Debug)]
pub(crate) struct Inflight {
    area: InflightArea,
    /// Guest addresses are offsets in the file.
    mem: Arc<GuestMemory>,
}

impl Inflight {
    /// The region of a queue that is to be started.
    pub(super) fn region(
        &self,
        queue: u16,
        config: &QueueConfig,
    ) -> Result<RegionArea, SessionFault> {
        let InflightArea { mmap_offset, queues, queue_size, .. } = self.area;
        let bytes = region_bytes(config.packed, queue_size);
        let at = mmap_offset.saturating_add(u64::from(queue) * u64::from(bytes));
        let has_room = queue < queues && config.size <= queue_size;
        let region = if has_room {
            // Mapped before the layout was known, it may be too short for this one.
            RegionArea::new(Arc::clone(&self.mem), at, bytes)
        } else {
            None
        };
        region.ok_or(SessionFault::RingOutsideInflight { queue, size: config.size })
    }
}

impl Session {
    /// GET_INFLIGHT_FD: memory that a successor will be brought.
    pub(super) fn get_inflight(
        &mut self,
        pending: Pending,
        asked: InflightArea,
        padding: usize,
    ) -> Handled {
        self.need(pending.request, Protocol::INFLIGHT_SHMFD)?;
        let (_, size) = self.inflight_size(asked)?;
        let area = InflightArea { mmap_size: size, mmap_offset: 0, ..asked };
        self.out.push_back(Action::MakeInflight { size });
        self.work = Work::MakingInflight { pending, area, padding };
        Ok(())
    }

    /// Answers [`Action::MakeInflight`].  Ignored if none is outstanding.
    pub fn inflight_made(&mut self, result: io::Result<OwnedFd>) {
        match mem::take(&mut self.work) {
            Work::MakingInflight { pending, area, padding } => {
                let request = pending.request.into();
                match result {
                    Ok(fd) => {
                        let answer = reply(request, &area.bytes(padding));
                        self.out.push_back(Action::Send(answer, Some(fd)));
                    }
                    // A length of zero: the front end goes on without.
                    Err(err) => {
                        let nothing = InflightArea { mmap_size: 0, ..area };
                        self.send(reply(request, &nothing.bytes(padding)));
                        let fault = SessionFault::InflightNotMade(err);
                        self.out.push_back(Action::Refused(fault));
                    }
                }
            }
            other => self.work = other,
        }
    }

    /// SET_INFLIGHT_FD: the memory of rings that are to be started.
    pub(super) fn set_inflight(
        &mut self,
        pending: Pending,
        area: InflightArea,
        fd: OwnedFd,
    ) -> Handled {
        self.need(pending.request, Protocol::INFLIGHT_SHMFD)?;
        if let Some(queue) = self.running().next() {
            return Err(SessionFault::RingRunning { request: FrontendReq::SET_INFLIGHT_FD, queue });
        }
        let (least, most) = self.inflight_size(area)?;
        let InflightArea { mmap_size, mmap_offset, .. } = area;
        if mmap_size < least || !mmap_offset.is_multiple_of(ALIGN.into()) {
            return Err(bad(area));
        }
        let spec = RegionSpec {
            guest_addr: mmap_offset,
            // What is longer than any layout needs is not looked at.
            size: mmap_size.min(most),
            user_addr: 0,
            mmap_offset,
        };
        self.out.push_back(Action::Map(vec![(spec, RegionFile::from(fd))]));
        self.work = Work::MappingInflight { pending, area };
        Ok(())
    }

    /// The area of SET_INFLIGHT_FD has been mapped, or not.
    pub(super) fn use_inflight(
        &mut self,
        pending: Pending,
        area: InflightArea,
        result: Result<Arc<GuestMemory>, MapError>,
    ) {
        let used = result.map(|mem| self.inflight = Some(Inflight { area, mem }));
        self.conclude(pending, used.map_err(SessionFault::Inflight));
    }

    /// Least and most bytes that the regions asked for have: one and the same once features are negotiated.
    fn inflight_size(&self, area: InflightArea) -> Result<(u64, u64), SessionFault> {
        let InflightArea { queues, queue_size, .. } = area;
        if !(1..=self.spec.rings).contains(&queues) || !(1..=MAX_QUEUE_SIZE).contains(&queue_size) {
            return Err(bad(area));
        }
        let bytes = |packed| u64::from(queues) * u64::from(region_bytes(packed, queue_size));
        let (split, packed) = (bytes(false), bytes(true));
        Ok(match self.features {
            Some(features) if has(features, VIRTIO_F_RING_PACKED) => (packed, packed),
            Some(_) => (split, split),
            None => (split.min(packed), split.max(packed)),
        })
    }
}

fn bad(area: InflightArea) -> SessionFault {
    let InflightArea { mmap_size, mmap_offset, queues, queue_size } = area;
    SessionFault::BadInflight { mmap_size, mmap_offset, queues, queue_size }
}
