//! The worker's own copy of the beginning of a frame.
//!
//! Guest memory is read once: what was checked in this copy is what is sent. A `Head` is made once
//! per worker (or per place in a burst) and filled again and again; nothing is cleared in between,
//! and nothing of an earlier frame can be seen because every view ends at the current length.

use crate::eth::{ETH_P_8021Q, ETHERTYPE_OFFSET, Tci, VLAN_HLEN, VlanEdit, vlan_tag};
use crate::put_be16;
use crate::vnet::{VNET_HLEN, VirtioNetHdr};

/// How many bytes of a frame are copied for inspection at most.
pub const HEAD_MAX: usize = 128;
/// Room in front of the copy for pushed tags, bytes: two tags.
pub const HEADROOM: usize = 2 * VLAN_HLEN;

/// Where a frame begins: behind room for a virtio-net header and for tags, on a cache line.
const ROOM: usize = 64;
const _: () = assert!(ROOM >= VNET_HLEN + HEADROOM);

/// The first at most [`HEAD_MAX`] bytes of a frame, with room in front for VLAN tags and for the
/// receiver's virtio-net header, so that all of it leaves in one copy.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Head {
    buf: [u8; ROOM + HEAD_MAX],
    start: u16,
    len: u16,
}

impl Default for Head {
    fn default() -> Self {
        Self::new()
    }
}

impl Head {
    /// An empty head.
    pub const fn new() -> Self {
        Self { buf: [0; ROOM + HEAD_MAX], start: ROOM as u16, len: 0 }
    }

    /// Empties the head and gives the place to copy a frame's beginning to; [`Head::set_len`]
    /// follows.
    #[inline]
    pub fn spare(&mut self) -> &mut [u8] {
        self.spare_with_vnet(0)
    }

    /// The same with room for a virtio-net header of `vnet` bytes (at most [`VNET_HLEN`]) in front,
    /// for sources that keep both together.
    #[inline]
    pub fn spare_with_vnet(&mut self, vnet: usize) -> &mut [u8] {
        self.start = ROOM as u16;
        self.len = 0;
        self.buf.get_mut(ROOM - vnet.min(VNET_HLEN)..).unwrap_or_default()
    }

    /// The virtio-net header of `vnet` bytes that was written in front of the frame. Meaningful
    /// until the tag is edited or another header is put there.
    #[inline]
    pub fn vnet(&self, vnet: usize) -> &[u8] {
        self.buf.get(ROOM - vnet.min(VNET_HLEN)..ROOM).unwrap_or_default()
    }

    /// Writes `header` in front of the frame's first bytes and returns both, to be copied out
    /// together. `vnet` is the length the receiver expects: [`VNET_HLEN`] or
    /// [`VNET_HLEN_LEGACY`](crate::vnet::VNET_HLEN_LEGACY).
    #[inline]
    pub fn with_vnet(&mut self, header: VirtioNetHdr, vnet: usize) -> &[u8] {
        let (start, vnet) = (usize::from(self.start), vnet.min(VNET_HLEN));
        let begin = start - vnet;
        if vnet == VNET_HLEN
            && let Some(room) = self.buf.get_mut(begin..).and_then(<[u8]>::first_chunk_mut)
        {
            header.write(room);
        } else if let Some(room) = self.buf.get_mut(begin..start) {
            for (to, from) in room.iter_mut().zip(header.to_bytes()) {
                *to = from;
            }
        }
        self.buf.get(begin..start + usize::from(self.len)).unwrap_or_default()
    }

    /// The place of a frame's beginning as a block of two cache lines: to be filled whole, and
    /// [`Head::set_len`] follows; or to change what [`Head::block`] showed.
    #[inline(always)]
    pub fn block_mut(&mut self) -> Option<&mut [u8; HEAD_MAX]> {
        self.buf.get_mut(ROOM..).and_then(<[u8]>::first_chunk_mut)
    }

    /// The beginning as that block and how many bytes of it count; `None` after an edit that
    /// moved it.
    #[inline(always)]
    pub fn block(&self) -> Option<(&[u8; HEAD_MAX], usize)> {
        if usize::from(self.start) != ROOM {
            return None;
        }
        Some((self.buf.get(ROOM..)?.first_chunk()?, usize::from(self.len)))
    }

    /// Says how many bytes of [`Head::spare`] were written (at most [`HEAD_MAX`] count).
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        self.start = ROOM as u16;
        self.len = len.min(HEAD_MAX) as u16;
    }

    /// Keeps the first `len` bytes, edits included.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len.min(usize::from(u16::MAX)) as u16);
    }

    /// Fills the head by a function that writes to its argument and returns how many bytes it
    /// wrote.
    #[inline]
    pub fn fill(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let len = write(self.spare());
        self.set_len(len);
    }

    /// Fills the head from the beginning of a frame in ordinary memory.
    #[inline]
    pub fn copy_from(&mut self, frame: &[u8]) {
        self.fill(|spare| {
            let len = frame.len().min(spare.len());
            if let (Some(to), Some(from)) = (spare.get_mut(..len), frame.get(..len)) {
                to.copy_from_slice(from);
            }
            len
        });
    }

    /// The bytes, edits included: at most [`HEAD_MAX`] + [`HEADROOM`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let start = usize::from(self.start);
        self.buf.get(start..start + usize::from(self.len)).unwrap_or_else(|| no_bytes())
    }

    /// The bytes, for rewriting in place.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = usize::from(self.start);
        self.buf.get_mut(start..start + usize::from(self.len)).unwrap_or_default()
    }

    /// How many bytes there are.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Nothing was filled in.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a tag (0x8100) in front of the EtherType. False, and nothing done, when there is no
    /// Ethernet header or no headroom left.
    pub fn push_vlan(&mut self, tci: Tci) -> bool {
        let start = usize::from(self.start);
        if self.len() < ETHERTYPE_OFFSET + 2 || start < ROOM - HEADROOM + VLAN_HLEN {
            return false;
        }
        self.buf.copy_within(start..start + ETHERTYPE_OFFSET, start - VLAN_HLEN);
        self.start -= VLAN_HLEN as u16;
        self.len += VLAN_HLEN as u16;
        put_be16(self.bytes_mut(), ETHERTYPE_OFFSET, ETH_P_8021Q);
        put_be16(self.bytes_mut(), ETHERTYPE_OFFSET + 2, tci.0);
        true
    }

    /// Removes the outermost tag (0x8100) and returns it; `None`, and nothing done, without one.
    pub fn pop_vlan(&mut self) -> Option<Tci> {
        let tci = vlan_tag(self.bytes())?;
        if self.len() < ETHERTYPE_OFFSET + VLAN_HLEN + 2 {
            return None;
        }
        let start = usize::from(self.start);
        self.buf.copy_within(start..start + ETHERTYPE_OFFSET, start + VLAN_HLEN);
        self.start += VLAN_HLEN as u16;
        self.len -= VLAN_HLEN as u16;
        Some(tci)
    }

    /// Overwrites the outermost tag's TCI; false without a tag.
    pub fn set_vlan(&mut self, tci: Tci) -> bool {
        let tagged = vlan_tag(self.bytes()).is_some();
        if tagged {
            put_be16(self.bytes_mut(), ETHERTYPE_OFFSET + 2, tci.0);
        }
        tagged
    }

    /// Does what the switch asked for; false when the frame does not allow it.
    #[inline]
    pub fn edit(&mut self, edit: VlanEdit) -> bool {
        match edit {
            VlanEdit::Keep => true,
            VlanEdit::Push(tci) => self.push_vlan(tci),
            VlanEdit::Pop => self.pop_vlan().is_some(),
            VlanEdit::Set(tci) => self.set_vlan(tci),
        }
    }
}

/// What never happens is a call, so that what happens is no choice between two.
#[cold]
#[inline(never)]
fn no_bytes() -> &'static [u8] {
    &[]
}

#[cfg(test)]
mod tests;
