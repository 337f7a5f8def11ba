//! What guests do with the bytes of their frames.

use std::hint::black_box;

use clap::ValueEnum;
use guestmem::GuestMemory;
use serde::{Deserialize, Serialize};

use super::buffers::HEADER;
use super::frames::{self, MAX_PLAIN, Writer};
use super::ring::Ring;

/// Bytes looked at of a sample.
const SAMPLE: usize = 128;

/// What the guests do with the bytes of frames.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    ValueEnum,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Touch {
    /// nothing: frames are written once and not read, but for samples
    None,
    /// each virtio-net header is written and read, as every driver does
    #[default]
    Headers,
    /// every byte is written and read
    All,
}

impl Touch {
    /// What is touched, in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Touch::None => "nothing",
            Touch::Headers => "virtio-net headers",
            Touch::All => "every byte",
        }
    }
}

/// A guest writes the next `count` frames.
#[inline(always)]
pub(super) fn write<R: Ring>(
    mem: &GuestMemory,
    ring: &R,
    count: u16,
    template: &[u8],
    writer: &mut Writer,
    touch: Touch,
) {
    let buffers = ring.buffers();
    let header = template.first_chunk::<{ HEADER as usize }>().copied().unwrap_or_default();
    for ahead in 0..count {
        let address = buffers.address(ring.upcoming(ahead).into());
        let Some(place) = mem.slice(address, buffers.len) else { continue };
        match touch {
            Touch::All => drop(place.copy_from(template)),
            Touch::Headers => drop(place.store(header)),
            Touch::None => {}
        }
        writer.write(place.skip(HEADER as usize));
    }
}

/// A guest reads a frame of `len` bytes with header; whether it is as it should be.
#[inline(always)]
pub(super) fn read(
    mem: &GuestMemory,
    address: u64,
    len: u32,
    scratch: &mut [u8],
    touch: Touch,
    sample: bool,
) -> bool {
    let Some(place) = mem.slice(address, len) else { return false };
    if touch == Touch::All {
        place.copy_to(scratch);
        black_box(&*scratch);
    } else if sample {
        place.take(SAMPLE).copy_to(scratch);
    }
    if sample {
        let frame = scratch.get(HEADER as usize..).unwrap_or_default();
        return frames::flow_of(frame, len - HEADER).is_some();
    }
    if touch == Touch::All {
        return true;
    }
    let header = place.load::<{ HEADER as usize }>().unwrap_or_default();
    // num_buffers, when there is one: 1.
    u16::from_le_bytes([header[10], header[11]]) == 1 || len > MAX_PLAIN
}
