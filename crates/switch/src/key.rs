//! What a verdict is remembered by, and how it is kept: in few bytes.

use packet::eth::{ETH_P_8021Q, is_tag_protocol};
use packet::{Mac, Tci, VlanEdit};

use crate::vlan::VID_MAX;
use crate::{DropReason, PortId, Verdict, fdb};

/// The first 16 bytes, in words that begin where words do.
#[inline(always)]
pub(crate) fn words(head: &[u8]) -> Option<[u64; 2]> {
    let (words, _) = head.first_chunk::<16>()?.as_chunks::<8>();
    let &[first, second] = words else { return None };
    Some([u64::from_le_bytes(first), u64::from_le_bytes(second)])
}

/// A frame's first 18 bytes, in words that begin where words do: what its key follows from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Front(u64, u64, u16);

impl Front {
    #[inline(always)]
    pub(crate) fn of(head: &[u8; 18]) -> Self {
        match head.as_chunks::<8>() {
            (&[first, second], &[p, q]) => Self(
                u64::from_le_bytes(first),
                u64::from_le_bytes(second),
                u16::from_le_bytes([p, q]),
            ),
            // It has that many.
            _ => Self::default(),
        }
    }

    /// `None` for the frames that are always worked out: short ones, and those with a priority
    /// tag, a service tag or more than one tag.
    #[inline(always)]
    pub(crate) fn key(self, in_port: PortId) -> Option<Key> {
        let Self(first, second, inner) = self;
        let outer = ((second >> 32) as u16).swap_bytes();
        let vlan = if outer == ETH_P_8021Q {
            let vid = Tci(((second >> 48) as u16).swap_bytes()).vid();
            if is_tag_protocol(inner.swap_bytes()) || !(1..=VID_MAX).contains(&vid) {
                return None;
            }
            vid
        } else if is_tag_protocol(outer) {
            return None;
        } else {
            0
        };
        let lane = u64::from(in_port.0) << 32 | u64::from(vlan) << 48;
        Some(Key(first, second & 0xffff_ffff | lane))
    }

    /// Its first 16 bytes.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; 2] {
        [self.0, self.1]
    }

    /// The destination, as it is in keys of the MAC table: below it 16 bits, 0.
    #[inline(always)]
    pub(crate) fn dst_bits(self) -> u64 {
        self.0 << 16
    }

    /// The source in the same way.
    #[inline(always)]
    pub(crate) fn src_bits(self) -> u64 {
        (((u128::from(self.1) << 64 | u128::from(self.0)) >> 48) as u64) << 16
    }
}

/// Destination and half of the source; the rest of the source, in-port and VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Key(u64, u64);

impl Key {
    /// See [`Front::key`].
    #[inline(always)]
    pub(crate) fn of(in_port: PortId, head: &[u8]) -> Option<Self> {
        Front::of(head.first_chunk()?).key(in_port)
    }

    /// Of a frame without a tag that begins with these 16 bytes.
    #[inline]
    pub(crate) fn untagged(in_port: PortId, [first, second]: [u64; 2]) -> Self {
        Self(first, second & 0xffff_ffff | u64::from(in_port.0) << 32)
    }

    /// 0 if they are the same.
    #[inline]
    pub(crate) fn difference(self, other: Self) -> u64 {
        (self.0 ^ other.0) | (self.1 ^ other.1)
    }

    /// All of it, in half.
    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0 ^ self.1.rotate_left(24)
    }

    /// Both halves.
    #[inline]
    pub(crate) fn halves(self) -> (u64, u64) {
        (self.0, self.1)
    }

    /// The addresses, in three parts.
    #[inline]
    pub(crate) fn thirds(self) -> [u32; 3] {
        [self.0 as u32, (self.0 >> 32) as u32, self.1 as u32]
    }

    /// In-port and VLAN.
    #[inline]
    pub(crate) fn lane(self) -> u32 {
        (self.1 >> 32) as u32
    }

    pub(crate) fn dst(self) -> Mac {
        fdb::mac_of(self.front().dst_bits())
    }

    pub(crate) fn src(self) -> Mac {
        fdb::mac_of(self.front().src_bits())
    }

    /// A beginning with these addresses.
    fn front(self) -> Front {
        Front(self.0, self.1, 0)
    }

    /// The tag without its priority.
    pub(crate) fn tag(self) -> Option<Tci> {
        let vid = (self.1 >> 48) as u16;
        (vid != 0).then_some(Tci(vid))
    }
}

/// A port, or the number of a drop reason; and what to do (4 bits) with which VLAN id (12 bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Packed(u16, u16);

impl Packed {
    pub(crate) const DEFAULT: Self = Self(0, 0);
    const KEEP: u16 = 0;
    const PUSH: u16 = 1;
    const POP: u16 = 2;
    const DROP: u16 = 3;
    /// With one of the first three: to a router.
    const ROUTER: u16 = 4;
    /// Push with a priority, which is in the upper bits of the port.
    const PUSH_PRIORITY: u16 = 8;

    /// `None` for what a remembered frame never gets: a flood, or a priority tag rewritten.
    #[inline]
    pub(crate) fn pack(verdict: Verdict) -> Option<Self> {
        match verdict {
            Verdict::Forward { port, edit: VlanEdit::Keep } => Some(Self(port.0, Self::KEEP << 12)),
            Verdict::Forward { port, edit: VlanEdit::Pop } => Some(Self(port.0, Self::POP << 12)),
            Verdict::Forward { port, edit: VlanEdit::Push(tci) } if tci.0 == tci.vid() => {
                Some(Self(port.0, Self::PUSH << 12 | tci.vid()))
            }
            Verdict::Forward { port, edit: VlanEdit::Push(tci) } => {
                let priority = tci.0 & 0xf000;
                (port.0 & 0xf000 == 0)
                    .then_some(Self(port.0 | priority, Self::PUSH_PRIORITY << 12 | tci.vid()))
            }
            Verdict::Drop(reason) => Some(Self(reason as u16, Self::DROP << 12)),
            Verdict::Router { port, edit } => {
                let Self(port, what) = Self::pack(Verdict::Forward { port, edit })?;
                Some(Self(port, what | Self::ROUTER << 12))
            }
            Verdict::Forward { .. } | Verdict::Flood(_) => None,
        }
    }

    /// Where it goes, if it is only to be forwarded.
    #[inline(always)]
    pub(crate) fn port(self) -> PortId {
        PortId(self.0)
    }

    /// To be forwarded as it is.
    #[inline(always)]
    pub(crate) fn is_keep(self) -> bool {
        self.1 == Self::KEEP << 12
    }

    /// As [`Cache::destination`](crate::Cache::destination).
    #[inline(always)]
    pub(crate) fn unpack(self) -> Result<PortId, Verdict> {
        if self.is_keep() { Ok(self.port()) } else { Err(self.unpack_other()) }
    }

    #[inline(never)]
    fn unpack_other(self) -> Verdict {
        let kind = self.1 >> 12;
        let edit = match kind & !Self::ROUTER {
            Self::KEEP => VlanEdit::Keep,
            Self::PUSH => VlanEdit::Push(Tci(self.1 & 0xfff)),
            Self::POP => VlanEdit::Pop,
            Self::PUSH_PRIORITY => return self.unpack_priority(),
            _ => {
                let reason = DropReason::ALL.get(usize::from(self.0));
                return Verdict::Drop(*reason.unwrap_or(&DropReason::Internal));
            }
        };
        let port = PortId(self.0);
        if kind & Self::ROUTER == 0 {
            Verdict::Forward { port, edit }
        } else {
            Verdict::Router { port, edit }
        }
    }

    #[cold]
    fn unpack_priority(self) -> Verdict {
        let edit = VlanEdit::Push(Tci(self.0 & 0xf000 | self.1 & 0xfff));
        let port = PortId(self.0 & 0xfff);
        if self.1 >> 12 & Self::ROUTER == 0 {
            Verdict::Forward { port, edit }
        } else {
            Verdict::Router { port, edit }
        }
    }
}

#[cfg(test)]
mod tests;
