//! One virtqueue as the front end has described it so far.

use std::sync::Arc;

use guestmem::GuestMemory;
use sys::EventFd;
use virtio_bindings::virtio_config::{VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtqueue::QueueConfig;

use crate::SessionFault;
use crate::message::RingAddr;

/// Position of a packed ring that has never run: index 0 with wrap counter 1, for both halves.
const PACKED_START: u32 = 0x8000_8000;
/// Bits of a packed ring's position that are an index; the bit above is its wrap counter.
const PACKED_INDEX: u32 = 0x7fff;

/// What SET_VRING_KICK said.
#[derive(Clone, Debug, Default)]
pub(crate) enum Kick {
    /// Nothing: the ring is stopped.
    #[default]
    Unset,
    /// There will be no kicks: poll.
    Polled,
    /// Kicks come on this.
    Fd(Arc<EventFd>),
}

/// One ring.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// Size in descriptors; 0: not told, or no ring.
    pub(crate) size: u16,
    pub(crate) addr: Option<RingAddr>,
    /// Position told by the front end, or left by the last stop.
    pub(crate) base: Option<u32>,
    /// Position told by or to the front end.
    pub(crate) known_base: Option<u32>,
    /// Set: the ring runs, or will as soon as it is described in full.
    pub(crate) kick: Kick,
    pub(crate) call: Option<Arc<EventFd>>,
    pub(crate) err: Option<Arc<EventFd>>,
    pub(crate) enabled: bool,
    /// The device has been told to start it.
    pub(crate) running: bool,
}

impl Ring {
    /// Back to the state of a new session, but for the descriptors that the front end does not send again.
    pub(crate) fn reset(&mut self) {
        let (call, err) = (self.call.take(), self.err.take());
        *self = Ring { call, err, ..Ring::default() };
    }

    /// Where the ring goes on, or would: the body of the answer to GET_VRING_BASE.
    pub(crate) fn position(&self, features: u64) -> u32 {
        self.base.unwrap_or(start(features))
    }

    /// Where the front end believes the ring to go on, in the form of the position that is started with.
    pub(crate) fn known_position(&self, features: u64) -> u32 {
        whole(self.known_base, features)
    }

    /// The configuration to start with, or why it cannot be started; `None` if something has not been told yet.
    pub(crate) fn config(
        &self,
        queue: u16,
        features: u64,
        mem: &GuestMemory,
    ) -> Result<Option<QueueConfig>, SessionFault> {
        let (Some(addr), 1..) = (self.addr, self.size) else { return Ok(None) };
        let packed = has(features, VIRTIO_F_RING_PACKED);
        let event_idx = has(features, VIRTIO_RING_F_EVENT_IDX);
        let size = u64::from(self.size);
        if !packed && !self.size.is_power_of_two() {
            return Err(SessionFault::BadRingSize { queue, size: self.size.into() });
        }
        // Virtio 1.3, 2.7 (split) and 2.8 (packed): length and alignment of each area.
        let event = if event_idx { 2 } else { 0 };
        let (avail, used) = if packed {
            ((4, 4), (4, 4))
        } else {
            ((4 + 2 * size + event, 2), (4 + 8 * size + event, 4))
        };
        let place = |area, addr: u64, (len, align): (u64, u64)| {
            if !addr.is_multiple_of(align) {
                return Err(SessionFault::RingMisaligned { queue, area, addr });
            }
            let gpa = mem.user_to_guest(addr, len);
            // Adjacent user addresses may be guest addresses of another alignment.
            gpa.filter(|gpa| gpa.is_multiple_of(align)).ok_or(SessionFault::RingOutsideMemory {
                queue,
                area,
                addr,
            })
        };
        Ok(Some(QueueConfig {
            size: self.size,
            packed,
            event_idx,
            indirect: has(features, VIRTIO_RING_F_INDIRECT_DESC),
            in_order: has(features, VIRTIO_F_IN_ORDER),
            desc: place("descriptor area", addr.desc, (16 * size, 16))?,
            avail: place("driver area", addr.avail, avail)?,
            used: place("device area", addr.used, used)?,
            base: self.start_position(queue, features)?,
        }))
    }

    /// Checks the position, which could not be done before features and size were known.
    fn start_position(&self, queue: u16, features: u64) -> Result<u32, SessionFault> {
        let base = whole(self.base, features);
        let size = u32::from(self.size);
        let in_ring = if has(features, VIRTIO_F_RING_PACKED) {
            base & PACKED_INDEX < size && base >> 16 & PACKED_INDEX < size
        } else {
            base <= u32::from(u16::MAX)
        };
        if in_ring { Ok(base) } else { Err(SessionFault::BadRingBase { queue, base }) }
    }
}

/// Position of a ring that has never run.
fn start(features: u64) -> u32 {
    if has(features, VIRTIO_F_RING_PACKED) { PACKED_START } else { 0 }
}

/// A position with both its halves.
fn whole(base: Option<u32>, features: u64) -> u32 {
    let base = base.unwrap_or(start(features));
    // DPDK sends only the driver's half.  Nothing is in flight in a stopped ring, so the device's is the same.
    let half = has(features, VIRTIO_F_RING_PACKED) && base >> 16 == 0;
    if half { base | base << 16 } else { base }
}

/// Whether feature bit number `bit` is set.
pub(crate) fn has(features: u64, bit: u32) -> bool {
    features >> bit & 1 != 0
}
