//! How a request is cut into buffers. Where the borders are means nothing to the device.

use super::{HEADER, Request};
use crate::driver::{Buffer, Shape};

/// Where the buffers of a request are, and how the ring refers to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Descriptors in the ring or in a table.
    pub shape: Shape,
    /// After which bytes a new buffer begins, of the device-readable and the device-writable ones.
    pub cuts: [Vec<u32>; 2],
    /// Where in its page the data begins, 0 to 4095.
    pub at: u32,
    /// Bytes between two buffers.
    pub gap: u32,
}

impl Layout {
    /// As drivers do: the header, the data at the start of a page, the status.
    #[must_use]
    pub fn usual(request: &Request) -> Layout {
        let cuts = [vec![HEADER as u32], vec![request.writable.saturating_sub(1)]];
        Layout { shape: Shape::Direct, cuts, at: 0, gap: 0 }
    }

    /// The buffers of both directions, in rooms that begin at these guest physical addresses,
    /// multiples of 4096.
    pub(super) fn buffers(
        &self,
        [readable, writable]: [u64; 2],
        request: &Request,
    ) -> [Vec<Buffer>; 2] {
        let at = u64::from(self.at % 4096);
        // The header is before the data, in the page before.
        let readable = readable + 4096 + at - HEADER as u64;
        let len = request.readable.len() as u32;
        [
            pieces(readable, len, &self.cuts[0], self.gap),
            pieces(writable + at, request.writable, &self.cuts[1], self.gap),
        ]
    }
}

/// `len` bytes from `gpa` on as buffers: cut after these bytes (beyond the end they begin anew),
/// with `gap` bytes left out at each cut.
#[must_use]
pub fn pieces(gpa: u64, len: u32, cuts: &[u32], gap: u32) -> Vec<Buffer> {
    let mut at: Vec<u32> = cuts.iter().map(|cut| cut % (len + 1)).chain([0, len]).collect();
    at.sort_unstable();
    at.dedup();
    let buffer = |(n, pair): (u64, &[u32])| Buffer {
        gpa: gpa + u64::from(pair[0]) + n * u64::from(gap),
        len: pair[1] - pair[0],
    };
    (0..).zip(at.windows(2)).map(buffer).collect()
}
