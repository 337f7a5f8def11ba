//! Software segmentation: one frame with a segmentation offload becomes the frames it stands for.
//!
//! For receivers that did not negotiate the offload (TAP without TSO, a guest with it turned off).
//! Headers are built in scratch memory of the caller from the **checked** head copy; payload is
//! named by its range and never copied here. With [`ChecksumMode::Partial`] payload is not even
//! read, so a guest that takes partial checksums can be served straight from the sender's memory.
//!
//! What a segment's headers say follows Linux' `tcp_gso_segment`, `__udp_gso_segment` and
//! `inet_gso_segment`: sequence numbers advance, FIN and PSH are on the last segment only, CWR on
//! the first only (RFC 3168, 6.1.2), the IPv4 identification counts up, lengths and checksums are
//! each segment's own.

use std::ops::Range;

use crate::checksum::{Sum, checksum, nonzero, pseudo_header};
use crate::eth::VLAN_HLEN;
use crate::head::HEAD_MAX;
use crate::ip::{IPPROTO_TCP, IPPROTO_UDP};
use crate::vnet::{Checked, Csum, Gso, GsoKind, VirtioNetHdr};
use crate::{be16, put_be16};

/// Room for the headers of one segment: those of a full head and two pushed tags.
pub type Scratch = [u8; HEAD_MAX + 2 * VLAN_HLEN];

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;

/// How a segment's transport checksum is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumMode {
    /// Complete; the receiver's header carries no offload.
    Full,
    /// Pseudo header only, with `NEEDS_CSUM`, for receivers that negotiated `GUEST_CSUM`.
    Partial,
}

/// One segment: its headers are in the scratch memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many bytes of the scratch memory are headers.
    pub header_len: usize,
    /// Which bytes of the **original frame** (from its first byte, after the tag edit) follow.
    pub payload: Range<usize>,
    /// The checksum field, partial in the scratch memory.
    pub csum: Csum,
}

impl Cut {
    /// The receiver's header while the checksum is partial.
    pub fn partial_header(&self) -> VirtioNetHdr {
        Checked { csum: Some(self.csum), ..Checked::PLAIN }.header()
    }

    /// Completes the checksum in the scratch memory with the payload this segment names; the
    /// receiver's header is then that of [`Checked::PLAIN`].
    pub fn complete(&self, scratch: &mut Scratch, payload: &[u8]) {
        let start = usize::from(self.csum.start);
        let header = scratch.get(start..self.header_len).unwrap_or_default();
        // A transport header is a multiple of four long: the payload is at an even offset.
        let sum = Sum::ZERO.bytes(header).bytes(payload).finish();
        put_be16(scratch, start + usize::from(self.csum.offset), nonzero(sum));
    }
}

/// Cuts one frame.
#[derive(Clone, Debug)]
pub struct Segmenter<'h> {
    header: &'h [u8],
    gso: Gso,
    frame_len: usize,
    /// Where in the frame the next segment's payload begins.
    at: usize,
    index: u16,
}

impl<'h> Segmenter<'h> {
    /// `head`: the checked copy, tag edit done; `frame_len`: the length of the frame after that
    /// edit; `checked`: after [`Checked::follow`]. `None` if the frame has no segmentation offload
    /// or the arguments do not belong together.
    pub fn new(head: &'h [u8], frame_len: usize, checked: &Checked) -> Option<Self> {
        let gso = checked.gso.filter(|gso| gso.size > 0)?;
        let at = usize::from(gso.header_len);
        let header = head.get(..at).filter(|h| h.len() <= size_of::<Scratch>())?;
        let ordered = gso.l3 < gso.l4 && gso.l4 < gso.header_len && at < frame_len;
        ordered.then_some(Self { header, gso, frame_len, at, index: 0 })
    }

    /// How many segments are still to come.
    pub fn remaining(&self) -> usize {
        (self.frame_len - self.at).div_ceil(usize::from(self.gso.size))
    }

    /// Builds the next segment's headers, with a partial checksum; `None` when all are done.
    pub fn cut(&mut self, scratch: &mut Scratch) -> Option<Cut> {
        if self.at >= self.frame_len {
            return None;
        }
        let header_len = self.header.len();
        let header = scratch.get_mut(..header_len)?;
        header.copy_from_slice(self.header);
        let payload =
            self.at..self.frame_len.min(self.at.saturating_add(usize::from(self.gso.size)));
        let transport = header_len - usize::from(self.gso.l4) + payload.len();

        let pseudo = self.network(header, transport);
        if self.gso.kind.is_tcp() {
            self.tcp(header, payload.end == self.frame_len);
        } else {
            put_be16(header, usize::from(self.gso.l4) + 4, transport as u16);
        }
        let csum = Csum { start: self.gso.l4, offset: self.gso.kind.csum_offset() };
        put_be16(header, usize::from(csum.start) + usize::from(csum.offset), pseudo.fold());

        self.at = payload.end;
        self.index = self.index.wrapping_add(1);
        Some(Cut { header_len, payload, csum })
    }

    /// IP header of a packet with `transport` bytes behind it (extension headers not counted);
    /// returns the sum over the pseudo header.
    fn network(&self, header: &mut [u8], transport: usize) -> Sum {
        let (l3, l4) = (usize::from(self.gso.l3), usize::from(self.gso.l4));
        let length = l4 - l3 + transport;
        let addresses = match self.gso.kind {
            GsoKind::Tcp4 | GsoKind::Udp4 => {
                put_be16(header, l3 + 2, length as u16);
                let id = be16(header, l3 + 4).unwrap_or(0);
                put_be16(header, l3 + 4, id.wrapping_add(self.index));
                put_be16(header, l3 + 10, 0);
                let sum = checksum(header.get(l3..l4).unwrap_or_default());
                put_be16(header, l3 + 10, sum);
                l3 + 12..l3 + 20
            }
            GsoKind::Tcp6 | GsoKind::Udp6 => {
                put_be16(header, l3 + 4, length.saturating_sub(40) as u16);
                l3 + 8..l3 + 40
            }
        };
        let protocol = if self.gso.kind.is_tcp() { IPPROTO_TCP } else { IPPROTO_UDP };
        pseudo_header(header.get(addresses).unwrap_or_default(), protocol, transport as u32)
    }

    fn tcp(&self, header: &mut [u8], last: bool) {
        let Some(tcp) = header.get_mut(usize::from(self.gso.l4)..) else { return };
        let done = self.at - self.header.len();
        let Some(sequence) = tcp.get_mut(4..).and_then(<[u8]>::first_chunk_mut) else { return };
        *sequence = u32::from_be_bytes(*sequence).wrapping_add(done as u32).to_be_bytes();
        // The urgent pointer counts from the segment's own sequence number (RFC 9293, 3.1).
        let urgent = usize::from(be16(tcp, 18).unwrap_or(0)).saturating_sub(done);
        let Some(flags) = tcp.get_mut(13) else { return };
        if !last {
            *flags &= !(FIN | PSH);
        }
        if self.index > 0 {
            *flags &= !CWR;
        }
        if *flags & URG != 0 && done > 0 {
            if urgent == 0 {
                *flags &= !URG;
            }
            put_be16(tcp, 18, urgent as u16);
        }
    }
}

/// Cuts a frame that lies in one piece and hands every segment to `emit` as header bytes, payload
/// bytes and the receiver's header. Returns how many there were; 0 if `frame` and `checked` do
/// not belong together.
///
/// `frame` starts with the checked (and edited) head copy; nothing here reads a header again to
/// decide where it ends.
pub fn segment(
    frame: &[u8],
    checked: &Checked,
    mode: ChecksumMode,
    scratch: &mut Scratch,
    mut emit: impl FnMut(&[u8], &[u8], VirtioNetHdr),
) -> usize {
    let Some(mut segmenter) = Segmenter::new(frame, frame.len(), checked) else { return 0 };
    let mut count = 0;
    while let Some(cut) = segmenter.cut(scratch) {
        let payload = frame.get(cut.payload.clone()).unwrap_or_default();
        let vnet = match mode {
            ChecksumMode::Partial => cut.partial_header(),
            ChecksumMode::Full => {
                cut.complete(scratch, payload);
                Checked::PLAIN.header()
            }
        };
        emit(scratch.get(..cut.header_len).unwrap_or_default(), payload, vnet);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests;
