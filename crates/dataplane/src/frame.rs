//! A frame on its way through a worker: the checked header copy, and where the rest still lies.
//!
//! Header first: the virtio-net header and the first [`packet::HEAD_MAX`] bytes of a frame are copied to
//! worker-local memory once. Everything is decided on that copy and the receiver gets these very
//! bytes, so a guest that changes its buffer meanwhile changes nothing that was checked. The rest
//! stays in guest memory until it is copied, once, to where it goes.

use arrayvec::ArrayVec;
use guestmem::GuestSlice;
use packet::{Checked, Head};

/// Largest frame: a 64 KiB packet behind Ethernet header and two VLAN tags.
pub(crate) const FRAME_MAX: usize = 65535 + 14 + 8;
/// Most buffers one frame may take on the receiving side. 64 KiB in buffers of 256 bytes.
pub(crate) const BUFFERS_MAX: usize = 260;

/// Copies the virtio-net header (`vnet` bytes) and the beginning of the frame from the front of
/// `source` into `head`. Returns the bytes taken.
#[inline]
pub(crate) fn fill(head: &mut Head, source: &[GuestSlice<'_>], vnet: usize) -> usize {
    let spare = head.spare_with_vnet(vnet);
    let mut taken = 0;
    for slice in source {
        let Some(room) = spare.get_mut(taken..).filter(|room| !room.is_empty()) else { break };
        taken += slice.copy_to(room);
    }
    head.set_len(taken.saturating_sub(vnet));
    taken
}

/// The same from local memory; `source` holds both in one piece.
#[inline]
pub(crate) fn fill_local(head: &mut Head, source: &[u8], vnet: usize) -> usize {
    let spare = head.spare_with_vnet(vnet);
    let taken = source.len().min(spare.len());
    if let (Some(to), Some(from)) = (spare.get_mut(..taken), source.get(..taken)) {
        to.copy_from_slice(from);
    }
    head.set_len(taken.saturating_sub(vnet));
    taken
}

/// Where the bytes behind the header copy lie.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Body<'a, 'm> {
    /// In one buffer of the sender.
    One(GuestSlice<'m>),
    /// In the sender's buffers: all but the first `skip` bytes of them.
    Guest { slices: &'a [GuestSlice<'m>], skip: usize },
    /// In worker-local memory.
    Local(&'a [u8]),
}

impl Body<'_, '_> {
    /// Copies the whole body to the front of `to`; returns the bytes copied.
    pub(crate) fn copy_to(&self, to: &mut [u8]) -> usize {
        match *self {
            Self::Local(bytes) => {
                let n = bytes.len().min(to.len());
                to[..n].copy_from_slice(&bytes[..n]);
                n
            }
            Self::One(slice) => slice.copy_to(to),
            Self::Guest { slices, mut skip } => {
                let mut at = 0;
                for slice in slices {
                    let part = slice.skip(skip);
                    skip = skip.saturating_sub(slice.len());
                    at += part.copy_to(&mut to[at..]);
                }
                at
            }
        }
    }
}

/// Writes one after another into a receiver's buffers.
pub(crate) struct Scatter<'b, 'm> {
    buffers: &'b [GuestSlice<'m>],
    at: usize,
}

impl<'b, 'm> Scatter<'b, 'm> {
    pub(crate) fn new(buffers: &'b [GuestSlice<'m>]) -> Self {
        Self { buffers, at: 0 }
    }

    /// The unwritten rest of the current buffer, after stepping over full ones.
    #[inline]
    fn room(&mut self) -> Option<GuestSlice<'m>> {
        while let Some(first) = self.buffers.first() {
            if self.at < first.len() {
                return Some(first.skip(self.at));
            }
            self.buffers = &self.buffers[1..];
            self.at = 0;
        }
        None
    }

    /// Copies `bytes`.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(room) = self.room() else { return };
            let n = room.copy_from(bytes);
            self.at += n;
            bytes = &bytes[n..];
        }
    }

    /// Copies a guest's `slice`: the one copy.
    #[inline]
    pub(crate) fn write_guest(&mut self, mut slice: GuestSlice<'_>) {
        while !slice.is_empty() {
            let Some(room) = self.room() else { return };
            let n = slice.copy_to_guest(room);
            self.at += n;
            slice = slice.skip(n);
        }
    }

    /// Copies `body`.
    #[inline]
    pub(crate) fn write_body(&mut self, body: Body<'_, '_>) {
        match body {
            Body::Local(bytes) => self.write(bytes),
            Body::One(slice) => self.write_guest(slice),
            Body::Guest { slices, mut skip } => {
                for slice in slices {
                    self.write_guest(slice.skip(skip));
                    skip = skip.saturating_sub(slice.len());
                }
            }
        }
    }
}

/// The buffers collected for one frame, in order.
pub(crate) type Buffers<'m> = ArrayVec<GuestSlice<'m>, BUFFERS_MAX>;

/// A frame to be delivered.
pub(crate) struct Frame<'a, 'm> {
    /// Its first bytes.
    pub(crate) head: &'a mut Head,
    /// Its checked offloads, in terms of the frame as it is now.
    pub(crate) offload: Checked,
    /// The rest of it.
    pub(crate) body: Body<'a, 'm>,
    /// Length of all of it, in bytes.
    pub(crate) len: usize,
}

/// A frame that goes to one receiver as it is.
pub(crate) struct Plain<'a, 'm> {
    /// Its first bytes.
    pub(crate) head: &'a Head,
    /// The rest of it.
    pub(crate) rest: GuestSlice<'m>,
    /// Length of all of it, in bytes.
    pub(crate) len: usize,
}
