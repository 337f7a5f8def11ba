//! The virtio-net header (virtio 1.3, 5.1.6) and the check of everything it claims.
//!
//! The header comes from a guest. Nothing in it is believed: [`VirtioNetHdr::validate`] compares
//! it with the frame and returns a [`Checked`], which is what the rest of the data path works
//! with. `hdr_len` is a hint by the specification and is not looked at; lengths of headers are
//! taken from the frame.

use crate::eth::{VlanEdit, network_layer};
use crate::head::HEAD_MAX;
use crate::ip::{IPPROTO_TCP, IPPROTO_UDP, Ip, Version};

/// Length of the header with `num_buffers` (`VIRTIO_F_VERSION_1` or `VIRTIO_NET_F_MRG_RXBUF`).
pub const VNET_HLEN: usize = 12;
/// Length of the legacy header without `num_buffers`.
pub const VNET_HLEN_LEGACY: usize = 10;

/// Flag: the checksum from `csum_start` on is the receiver's to complete.
pub const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
/// Flag: the checksum was verified.
pub const VIRTIO_NET_HDR_F_DATA_VALID: u8 = 2;
/// Flag: the checksum fields carry receive-coalescing numbers.
pub const VIRTIO_NET_HDR_F_RSC_INFO: u8 = 4;

/// Not a segmentation-offload frame.
pub const VIRTIO_NET_HDR_GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub const VIRTIO_NET_HDR_GSO_TCPV4: u8 = 1;
/// UDP fragmentation (legacy): refused.
pub const VIRTIO_NET_HDR_GSO_UDP: u8 = 3;
/// TCP over IPv6.
pub const VIRTIO_NET_HDR_GSO_TCPV6: u8 = 4;
/// UDP segmentation, IPv4 or IPv6.
pub const VIRTIO_NET_HDR_GSO_UDP_L4: u8 = 5;
/// Bit on top of a TCP type: the CWR flag is set and belongs on the first segment only.
pub const VIRTIO_NET_HDR_GSO_ECN: u8 = 0x80;

/// One frame may ask for this many segments at most, so that 64 KiB from a guest cannot become
/// sixty thousand frames of work: at 64 KiB it allows any `gso_size` from 64 on.
pub const SEGMENTS_MAX: usize = 1024;

/// A set of offloads: what a receiver can take, or what a frame needs.
///
/// UDP fragmentation (`GUEST_UFO` 10, `HOST_UFO` 14) is not among them: the kernel gave it up, and
/// frames that ask for it are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offloads(u8);

impl Offloads {
    /// None.
    pub const NONE: Self = Self(0);
    /// Partial checksums.
    pub const CSUM: Self = Self(1);
    /// TCP segmentation over IPv4.
    pub const TSO4: Self = Self(2);
    /// TCP segmentation over IPv6.
    pub const TSO6: Self = Self(4);
    /// TCP segmentation of frames with CWR set.
    pub const ECN: Self = Self(8);
    /// UDP segmentation over IPv4.
    pub const USO4: Self = Self(16);
    /// UDP segmentation over IPv6.
    pub const USO6: Self = Self(32);
    /// All of the above.
    pub const ALL: Self = Self(63);

    /// What a guest can **receive**, from the negotiated virtio features: `GUEST_CSUM` (1),
    /// `GUEST_TSO4` (7), `GUEST_TSO6` (8), `GUEST_ECN` (9), `GUEST_USO4` (54), `GUEST_USO6` (55).
    pub const fn from_guest_features(features: u64) -> Self {
        let set = bit(features, 1, Self::CSUM)
            | bit(features, 7, Self::TSO4)
            | bit(features, 8, Self::TSO6)
            | bit(features, 9, Self::ECN)
            | bit(features, 54, Self::USO4)
            | bit(features, 55, Self::USO6);
        Self(set).with_dependencies()
    }

    /// What a guest may **send**, from the negotiated virtio features: `CSUM` (0), `HOST_TSO4`
    /// (11), `HOST_TSO6` (12), `HOST_ECN` (13), `HOST_USO` (56, both IP versions).
    pub const fn from_host_features(features: u64) -> Self {
        let set = bit(features, 0, Self::CSUM)
            | bit(features, 11, Self::TSO4)
            | bit(features, 12, Self::TSO6)
            | bit(features, 13, Self::ECN)
            | bit(features, 56, Self::USO4)
            | bit(features, 56, Self::USO6);
        Self(set).with_dependencies()
    }

    /// Drops what virtio 1.3, 5.1.3.1 makes depend on something that is not there: segmentation
    /// needs the checksum, ECN needs TSO.
    const fn with_dependencies(self) -> Self {
        if !self.contains(Self::CSUM) {
            Self::NONE
        } else if self.0 & (Self::TSO4.0 | Self::TSO6.0) == 0 {
            Self(self.0 & !Self::ECN.0)
        } else {
            self
        }
    }

    /// Is everything of `other` in this set?
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl std::ops::BitOr for Offloads {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

const fn bit(features: u64, number: u32, offload: Offloads) -> u8 {
    if features >> number & 1 == 1 { offload.0 } else { 0 }
}

/// A header as it came. Most ask for nothing, and are never taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawVirtioNetHdr(u128);

impl RawVirtioNetHdr {
    /// Of its 12 bytes, or the 10 of a legacy one, as a little-endian number.
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u128) -> Self {
        Self(word)
    }

    /// See [`VirtioNetHdr::is_plain`].
    #[inline(always)]
    #[must_use]
    pub const fn is_plain(self) -> bool {
        let [flags, gso_type, ..] = self.0.to_le_bytes();
        let asked = flags & VIRTIO_NET_HDR_F_NEEDS_CSUM | gso_type;
        asked == 0
    }

    /// Its fields.
    #[must_use]
    pub fn parse(self) -> VirtioNetHdr {
        VirtioNetHdr::parse(&self.0.to_le_bytes()).unwrap_or_default()
    }
}

impl From<VirtioNetHdr> for RawVirtioNetHdr {
    fn from(header: VirtioNetHdr) -> Self {
        let word = |word, byte: u8| word << 8 | u128::from(byte);
        Self(header.to_bytes().into_iter().rev().fold(0, word))
    }
}

/// `struct virtio_net_hdr`, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioNetHdr {
    /// `VIRTIO_NET_HDR_F_*`
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`
    pub gso_type: u8,
    /// Length of the headers to copy into every segment: a hint.
    pub hdr_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Where the checksummed part begins, from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum is, from `csum_start`.
    pub csum_offset: u16,
    /// Buffers the frame takes (device to driver).
    pub num_buffers: u16,
}

impl VirtioNetHdr {
    /// Reads a header of 12 bytes, or a legacy one of 10 (then `num_buffers` is 0); `None` from
    /// less. All fields are little endian (virtio 1.3; legacy guests on this machine are, too).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; VNET_HLEN_LEGACY] = bytes.first_chunk()?;
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = *header;
        let num_buffers = match bytes.get(VNET_HLEN_LEGACY..).and_then(<[u8]>::first_chunk) {
            Some(number) => u16::from_le_bytes(*number),
            None => 0,
        };
        Some(Self {
            flags,
            gso_type,
            hdr_len: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            csum_start: u16::from_le_bytes([s0, s1]),
            csum_offset: u16::from_le_bytes([o0, o1]),
            num_buffers,
        })
    }

    /// The header as bytes; the legacy form is the first 10 of them.
    #[inline]
    pub const fn to_bytes(self) -> [u8; VNET_HLEN] {
        let [h0, h1] = self.hdr_len.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.csum_start.to_le_bytes();
        let [o0, o1] = self.csum_offset.to_le_bytes();
        let [n0, n1] = self.num_buffers.to_le_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1]
    }

    /// Writes the header.
    #[inline]
    pub const fn write(self, to: &mut [u8; VNET_HLEN]) {
        *to = self.to_bytes();
    }

    /// The header asks for nothing: the frame is complete, and there is nothing to validate.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 && self.gso_type == VIRTIO_NET_HDR_GSO_NONE
    }

    /// Compares what the header claims with the frame: `frame_len` bytes without this header, of
    /// which `head` is the worker's copy of the beginning (all of it, or its first
    /// [`HEAD_MAX`] bytes).
    ///
    /// `allowed` is what the sender negotiated ([`Offloads::from_host_features`]).
    pub fn validate(
        &self,
        frame_len: usize,
        head: &[u8],
        allowed: Offloads,
    ) -> Result<Checked, BadOffload> {
        if self.is_plain() {
            return Ok(Checked::PLAIN);
        }
        if self.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 {
            return Err(BadOffload::GsoWithoutChecksum);
        }
        let ip = Ip::parse(head);
        let csum = self.check_checksum(frame_len, head, ip.as_ref())?;
        let gso = match self.gso_type {
            VIRTIO_NET_HDR_GSO_NONE => None,
            _ => Some(self.check_gso(frame_len, head, ip.as_ref())?),
        };
        let checked = Checked { csum: Some(csum), gso };
        if !allowed.contains(checked.needs()) {
            return Err(BadOffload::NotNegotiated);
        }
        Ok(checked)
    }

    /// The checksum range is inside the frame, and its field is not part of a header the switch
    /// looked at.
    fn check_checksum(
        &self,
        frame_len: usize,
        head: &[u8],
        ip: Option<&Ip>,
    ) -> Result<Csum, BadOffload> {
        let start = usize::from(self.csum_start);
        let field = start + usize::from(self.csum_offset);
        if field + 2 > frame_len {
            return Err(BadOffload::ChecksumOutside);
        }
        let (_, l3) = network_layer(head).ok_or(BadOffload::ChecksumInHeader)?;
        let first = ip.map_or(l3, |ip| ip.l4);
        if start < first {
            return Err(BadOffload::ChecksumInHeader);
        }
        // A TCP or UDP header is completed at its own checksum field, or is not touched at all
        // (an encapsulated packet behind it may be what the sender means).
        if let Some((own, header)) = ip.and_then(transport_layout)
            && (start != first || self.csum_offset != own)
            && field < first + header
        {
            return Err(BadOffload::ChecksumInHeader);
        }
        Ok(Csum { start: self.csum_start, offset: self.csum_offset })
    }

    fn check_gso(&self, frame_len: usize, head: &[u8], ip: Option<&Ip>) -> Result<Gso, BadOffload> {
        let ecn = self.gso_type & VIRTIO_NET_HDR_GSO_ECN != 0;
        let ip = ip.filter(|ip| ip.complete).ok_or(BadOffload::GsoHeaders)?;
        let kind = match (self.gso_type & !VIRTIO_NET_HDR_GSO_ECN, ip.version, ip.protocol) {
            (VIRTIO_NET_HDR_GSO_TCPV4, Version::V4, IPPROTO_TCP) => GsoKind::Tcp4,
            (VIRTIO_NET_HDR_GSO_TCPV6, Version::V6, IPPROTO_TCP) => GsoKind::Tcp6,
            (VIRTIO_NET_HDR_GSO_UDP_L4, Version::V4, IPPROTO_UDP) if !ecn => GsoKind::Udp4,
            (VIRTIO_NET_HDR_GSO_UDP_L4, Version::V6, IPPROTO_UDP) if !ecn => GsoKind::Udp6,
            (
                VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_TCPV6 | VIRTIO_NET_HDR_GSO_UDP_L4,
                ..,
            ) => return Err(BadOffload::GsoProtocol),
            _ => return Err(BadOffload::GsoType),
        };
        if ip.fragment || ip.routed {
            return Err(BadOffload::GsoProtocol);
        }
        let transport_len = match kind {
            GsoKind::Udp4 | GsoKind::Udp6 => 8,
            GsoKind::Tcp4 | GsoKind::Tcp6 => {
                let words = head.get(ip.l4 + 12).map_or(0, |byte| byte >> 4);
                usize::from(words) * 4
            }
        };
        let header_len = ip.l4 + transport_len;
        if (kind.is_tcp() && transport_len < 20) || header_len > head.len().min(HEAD_MAX) {
            return Err(BadOffload::GsoHeaders);
        }
        if usize::from(self.csum_start) != ip.l4 || self.csum_offset != kind.csum_offset() {
            return Err(BadOffload::GsoChecksumPlace);
        }
        let payload = frame_len.checked_sub(header_len).filter(|&len| len > 0);
        let payload = payload.ok_or(BadOffload::GsoNoPayload)?;
        // A length of 0 is what some stacks leave to the offload engine. An IPv6 payload length
        // does not count its own header; `Ip::length` does.
        let length = frame_len - ip.l3;
        let fixed = if ip.version == Version::V6 { 40 } else { 0 };
        if length - fixed > usize::from(u16::MAX) || (ip.length != 0 && ip.length != length) {
            return Err(BadOffload::GsoLength);
        }
        if self.gso_size == 0 || payload.div_ceil(usize::from(self.gso_size)) > SEGMENTS_MAX {
            return Err(BadOffload::GsoSize);
        }
        Ok(Gso {
            kind,
            ecn,
            size: self.gso_size,
            l3: ip.l3 as u16,
            l4: ip.l4 as u16,
            header_len: header_len as u16,
        })
    }
}

/// Checksum offset and least header length of the transport protocols with offloads.
fn transport_layout(ip: &Ip) -> Option<(u16, usize)> {
    match ip.protocol {
        _ if ip.fragment => None,
        IPPROTO_TCP => Some((16, 20)),
        IPPROTO_UDP => Some((6, 8)),
        _ => None,
    }
}

/// Which protocols a segmentation-offload frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp4,
    /// UDP over IPv6.
    Udp6,
}

impl GsoKind {
    /// TCP, not UDP.
    pub const fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Tcp6)
    }

    /// Offset of the checksum in the transport header.
    pub const fn csum_offset(self) -> u16 {
        if self.is_tcp() { 16 } else { 6 }
    }

    const fn gso_type(self) -> u8 {
        match self {
            Self::Tcp4 => VIRTIO_NET_HDR_GSO_TCPV4,
            Self::Tcp6 => VIRTIO_NET_HDR_GSO_TCPV6,
            Self::Udp4 | Self::Udp6 => VIRTIO_NET_HDR_GSO_UDP_L4,
        }
    }

    const fn offload(self) -> Offloads {
        match self {
            Self::Tcp4 => Offloads::TSO4,
            Self::Tcp6 => Offloads::TSO6,
            Self::Udp4 => Offloads::USO4,
            Self::Udp6 => Offloads::USO6,
        }
    }
}

/// A partial checksum, inside its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Csum {
    /// Where the checksummed part begins, from the start of the frame.
    pub start: u16,
    /// Where the checksum is, from `start`.
    pub offset: u16,
}

/// A segmentation offload whose headers were read and agree with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Protocols.
    pub kind: GsoKind,
    /// The sender set `VIRTIO_NET_HDR_GSO_ECN`.
    pub ecn: bool,
    /// Payload bytes per segment, at least 1.
    pub size: u16,
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the TCP or UDP header.
    pub l4: u16,
    /// Length of all headers, bytes: at most [`HEAD_MAX`] before a tag is pushed.
    pub header_len: u16,
}

/// The offloads of one frame, checked against it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// A checksum that is still to be completed.
    pub csum: Option<Csum>,
    /// The frame is to be segmented; then `csum` is that of its transport header.
    pub gso: Option<Gso>,
}

impl Checked {
    /// A frame without offloads.
    pub const PLAIN: Self = Self { csum: None, gso: None };

    /// Nothing is left to be done to the frame.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.csum.is_none() && self.gso.is_none()
    }

    /// What a receiver must be able to take for the frame to go to it as it is.
    #[inline]
    pub const fn needs(&self) -> Offloads {
        let mut set = Offloads::NONE;
        if self.csum.is_some() {
            set = set.union(Offloads::CSUM);
        }
        if let Some(gso) = self.gso {
            set = set.union(gso.kind.offload());
            if gso.ecn {
                set = set.union(Offloads::ECN);
            }
        }
        set
    }

    /// Follows an edit of the frame's tag: every offset moves by its growth.
    #[inline]
    pub fn follow(&mut self, edit: VlanEdit) {
        let by = edit.growth();
        if by == 0 {
            return;
        }
        if let Some(csum) = &mut self.csum {
            csum.start = csum.start.saturating_add_signed(by);
        }
        if let Some(gso) = &mut self.gso {
            gso.l3 = gso.l3.saturating_add_signed(by);
            gso.l4 = gso.l4.saturating_add_signed(by);
            gso.header_len = gso.header_len.saturating_add_signed(by);
        }
    }

    /// The bytes of [`Self::header`] as a little-endian number. That of a plain frame is a constant, so that
    /// nothing is written to memory field by field and read back in words, which stalls (see the data plane).
    #[inline(always)]
    pub fn header_word(&self) -> u128 {
        if self.is_plain() { 1 << (8 * VNET_HLEN_LEGACY) } else { self.other_header_word() }
    }

    #[cold]
    #[inline(never)]
    fn other_header_word(&self) -> u128 {
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().zip(self.header().to_bytes()) {
            *to = from;
        }
        u128::from_le_bytes(bytes)
    }

    /// The header for a receiver that takes the frame as it is; `num_buffers` is 1.
    #[inline]
    pub fn header(&self) -> VirtioNetHdr {
        let mut header = VirtioNetHdr { num_buffers: 1, ..VirtioNetHdr::default() };
        if let Some(csum) = self.csum {
            header.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
            header.csum_start = csum.start;
            header.csum_offset = csum.offset;
        }
        if let Some(gso) = self.gso {
            header.gso_type =
                gso.kind.gso_type() | if gso.ecn { VIRTIO_NET_HDR_GSO_ECN } else { 0 };
            header.gso_size = gso.size;
            header.hdr_len = gso.header_len;
        }
        header
    }
}

/// Why an offload header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOffload {
    /// See the message; likewise below.
    #[error("the frame uses an offload that was not negotiated")]
    NotNegotiated,
    /// `csum_start`/`csum_offset`
    #[error("the checksum field is outside the frame")]
    ChecksumOutside,
    /// `csum_start`/`csum_offset`
    #[error("the checksum field is inside a header it does not belong to")]
    ChecksumInHeader,
    /// `flags`
    #[error("segmentation is asked for without a partial checksum")]
    GsoWithoutChecksum,
    /// `gso_type`
    #[error("the segmentation type is unknown or not supported")]
    GsoType,
    /// `gso_type`
    #[error("the frame is not of the protocol its segmentation type names, or is a fragment")]
    GsoProtocol,
    /// The frame
    #[error("the headers of the frame to segment are damaged or too long")]
    GsoHeaders,
    /// `csum_start`/`csum_offset`
    #[error("the checksum to complete is not that of the transport header to segment")]
    GsoChecksumPlace,
    /// The frame
    #[error("the frame to segment has no payload")]
    GsoNoPayload,
    /// The frame
    #[error("the frame to segment is not as long as its IP header says, or longer than IP allows")]
    GsoLength,
    /// `gso_size`
    #[error("the segment size is zero or asks for too many segments")]
    GsoSize,
}

impl BadOffload {
    /// Stable kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotNegotiated => "not-negotiated",
            Self::ChecksumOutside => "checksum-outside",
            Self::ChecksumInHeader => "checksum-in-header",
            Self::GsoWithoutChecksum => "gso-without-checksum",
            Self::GsoType => "gso-type",
            Self::GsoProtocol => "gso-protocol",
            Self::GsoHeaders => "gso-headers",
            Self::GsoChecksumPlace => "gso-checksum-place",
            Self::GsoNoPayload => "gso-no-payload",
            Self::GsoLength => "gso-length",
            Self::GsoSize => "gso-size",
        }
    }
}

#[cfg(test)]
mod tests;
