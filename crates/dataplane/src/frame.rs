//! A frame on its way through a worker: the checked header copy, and where the rest still lies.
//!
//! Header first: the virtio-net header and the first [`HEAD_MAX`] bytes of a frame are copied to
//! worker-local memory once. Everything is decided on that copy and the receiver gets these very
//! bytes, so a guest that changes its buffer meanwhile changes nothing that was checked. The rest
//! stays in guest memory until it is copied, once, to where it goes.

use arrayvec::ArrayVec;
use guestmem::GuestSlice;
use packet::HEAD_MAX;
use packet::{Checked, Tci, VirtioNetHdr, VlanEdit};

/// Length of the virtio-net header with `num_buffers` (virtio 1.3, 5.1.6).
pub(crate) const VNET_LEN: usize = 12;
/// Length of the legacy virtio-net header, without `num_buffers` (virtio 1.3, 5.1.6.1).
pub(crate) const VNET_LEN_LEGACY: usize = 10;
/// Largest frame: a 64 KiB packet behind Ethernet header and two VLAN tags.
pub(crate) const FRAME_MAX: usize = 65535 + 14 + 8;
/// Most buffers one frame may take on the receiving side. 64 KiB in buffers of 256 bytes.
pub(crate) const BUFFERS_MAX: usize = 260;

/// Where the frame starts in [`Head`]: behind room for a virtio-net header and one VLAN tag more.
const ROOM: usize = 32;
/// Length of a VLAN tag.
const TAG: usize = 4;

/// Worker-local copy of the first bytes of a frame, with room in front for the receiver's
/// virtio-net header and for a VLAN tag, so that all of it leaves in one copy.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    buf: [u8; ROOM + HEAD_MAX],
    start: usize,
    len: usize,
}

impl Head {
    pub(crate) fn new() -> Self {
        Self { buf: [0; ROOM + HEAD_MAX], start: ROOM, len: 0 }
    }

    /// Copies the virtio-net header (`vnet` bytes) and up to [`HEAD_MAX`] bytes of the frame from
    /// the front of `source`. Returns the bytes taken; fewer than `vnet` means there is no frame.
    #[inline]
    pub(crate) fn fill(&mut self, source: &[GuestSlice<'_>], vnet: usize) -> usize {
        let begin = ROOM - vnet;
        let mut at = begin;
        for slice in source {
            at += slice.copy_to(&mut self.buf[at..]);
            if at == self.buf.len() {
                break;
            }
        }
        self.start = ROOM;
        self.len = at.saturating_sub(ROOM);
        at - begin
    }

    /// The same from local memory holding a whole frame, without a virtio-net header.
    /// Returns the bytes taken.
    #[inline]
    pub(crate) fn fill_local(&mut self, frame: &[u8]) -> usize {
        let n = frame.len().min(HEAD_MAX);
        self.buf[ROOM..ROOM + n].copy_from_slice(&frame[..n]);
        self.start = ROOM;
        self.len = n;
        n
    }

    /// The same with the virtio-net header that came with the frame.
    #[inline]
    pub(crate) fn fill_local_with_vnet(&mut self, vnet: &[u8; VNET_LEN], frame: &[u8]) -> usize {
        self.buf[ROOM - VNET_LEN..ROOM].copy_from_slice(vnet);
        self.fill_local(frame)
    }

    /// The virtio-net header as the guest wrote it, `vnet` bytes.
    #[inline]
    pub(crate) fn vnet(&self, vnet: usize) -> &[u8] {
        &self.buf[ROOM - vnet..ROOM]
    }

    /// The frame's first bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.start + self.len]
    }

    /// Writes `header` in front of the frame's first bytes and returns both, to be copied out
    /// together. `vnet` is the receiver's header length, 10 or 12.
    #[inline]
    pub(crate) fn with_vnet(&mut self, header: &VirtioNetHdr, vnet: usize) -> &[u8] {
        let begin = self.start - VNET_LEN;
        if let Some(room) = self.buf[begin..].first_chunk_mut::<VNET_LEN>() {
            header.write(room);
        }
        if vnet == VNET_LEN_LEGACY {
            self.buf.copy_within(begin..begin + VNET_LEN_LEGACY, self.start - VNET_LEN_LEGACY);
        }
        &self.buf[self.start - vnet..self.start + self.len]
    }

    /// Changes the tag as the switch asked.
    #[inline]
    pub(crate) fn edit(&mut self, edit: VlanEdit) {
        match edit {
            VlanEdit::Keep => {}
            VlanEdit::Push(tci) => self.push_vlan(tci),
            VlanEdit::Pop => self.pop_vlan(),
            VlanEdit::Set(tci) => self.set_vlan(tci),
        }
    }

    /// Inserts an 802.1Q tag behind the MAC addresses.
    fn push_vlan(&mut self, tci: Tci) {
        if self.len < 12 || self.start < VNET_LEN + TAG {
            return;
        }
        self.buf.copy_within(self.start..self.start + 12, self.start - TAG);
        self.start -= TAG;
        self.len += TAG;
        let tag = self.start + 12;
        self.buf[tag..tag + 2].copy_from_slice(&[0x81, 0x00]);
        self.buf[tag + 2..tag + 4].copy_from_slice(&tci.0.to_be_bytes());
    }

    /// Removes the tag behind the MAC addresses.
    fn pop_vlan(&mut self) {
        if self.len < 12 + TAG {
            return;
        }
        self.buf.copy_within(self.start..self.start + 12, self.start + TAG);
        self.start += TAG;
        self.len -= TAG;
    }

    /// Overwrites that tag's TCI.
    fn set_vlan(&mut self, tci: Tci) {
        let at = self.start + 14;
        if self.len >= 12 + TAG {
            self.buf[at..at + 2].copy_from_slice(&tci.0.to_be_bytes());
        }
    }
}

/// Where the bytes behind the header copy lie.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Body<'a, 'm> {
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
