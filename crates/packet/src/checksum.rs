//! The internet checksum (RFC 1071), its incremental update (RFC 1624) and the completion of a
//! partial one (virtio 1.3, 5.1.6.2: `VIRTIO_NET_HDR_F_NEEDS_CSUM`).

use crate::be16;
use crate::put_be16;

/// A one's complement sum being built up.
///
/// Sixteen-bit words are added in the machine's byte order and swapped once at the end: the sum
/// does not care (RFC 1071, 2.B). Sixty-four bits hold the sum of 2^32 words, so carries are
/// folded once, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Nothing added yet.
    pub const ZERO: Self = Self(0);

    /// Adds bytes; they must stand at an even offset in what the checksum covers. A last odd byte
    /// counts as if a zero followed.
    #[inline]
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        // Four independent additions per step: the compiler turns them into vector code.
        let mut lanes = [0u64; 8];
        let (blocks, rest) = bytes.as_chunks::<32>();
        for block in blocks {
            for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
                *lane += u64::from(u32::from_ne_bytes(*word));
            }
        }
        let (words, tail) = rest.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(tail) {
            *to = *from;
        }
        self.0 += u64::from(u32::from_ne_bytes(last));
        for lane in lanes {
            self.0 += lane;
        }
        self
    }

    /// Adds one number, as it would stand in the frame in network order.
    #[inline]
    #[must_use]
    pub const fn word(mut self, word: u16) -> Self {
        self.0 += word.to_be() as u64;
        self
    }

    /// The sum folded to sixteen bits, not complemented: what stands in the checksum field of a
    /// partially checksummed segment if this is its pseudo header.
    #[inline]
    pub const fn fold(self) -> u16 {
        let mut sum = self.0;
        sum = (sum >> 32) + (sum & 0xffff_ffff);
        sum = (sum >> 32) + (sum & 0xffff_ffff);
        sum = (sum >> 16) + (sum & 0xffff);
        sum = (sum >> 16) + (sum & 0xffff);
        sum = (sum >> 16) + (sum & 0xffff);
        u16::from_be(sum as u16)
    }

    /// The checksum: the complement of the folded sum.
    #[inline]
    pub const fn finish(self) -> u16 {
        !self.fold()
    }
}

/// Internet checksum over `bytes`.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::ZERO.bytes(bytes).finish()
}

/// The checksum after one 16-bit field it covers changed from `old` to `new` (RFC 1624, eqn. 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.word(!checksum).word(!old).word(new).finish()
}

/// Pseudo header of TCP and UDP: the two addresses (4 or 16 bytes each, as one slice or two),
/// protocol number and the length of the L4 header with its payload (RFC 9293 3.1, RFC 8200 8.1).
#[inline]
pub fn pseudo_header(addresses: &[u8], protocol: u8, length: u32) -> Sum {
    Sum::ZERO
        .bytes(addresses)
        .word(protocol as u16)
        .word((length >> 16) as u16)
        .word((length & 0xffff) as u16)
}

/// Completes a partial checksum: sums `frame` from `csum_start` to its end, field included (it
/// holds the pseudo header's sum), and writes the complement to `csum_start + csum_offset`.
///
/// A result of zero is written as 0xffff, as UDP demands (RFC 768) and every other protocol
/// allows. False, and nothing written, when the field is outside the frame.
pub fn complete(frame: &mut [u8], csum_start: u16, csum_offset: u16) -> bool {
    let (start, field) =
        (usize::from(csum_start), usize::from(csum_start) + usize::from(csum_offset));
    if be16(frame, field).is_none() {
        return false;
    }
    let sum = Sum::ZERO.bytes(frame.get(start..).unwrap_or_default()).finish();
    put_be16(frame, field, nonzero(sum));
    true
}

/// Zero as its other form in one's complement arithmetic.
pub(crate) const fn nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

#[cfg(test)]
mod tests;
