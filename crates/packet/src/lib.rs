//! Frames as bytes: header views, checksum, segmentation, VLAN tags, offload headers.
//!
//! *Purpose.* Everything the data path must know about the inside of a frame. *Owner*: whoever
//! calls; nothing here has state beyond its arguments. *Threads*: none. *Failure*: every function
//! is total. Bytes come from guests, so no input makes one panic; a frame that cannot be parsed is
//! an `Option::None` or a [`vnet::BadOffload`] with a name.
//!
//! The first [`HEAD_MAX`] bytes of a frame are looked at in a worker-local copy, the [`Head`].

pub mod arp;
pub mod checksum;
pub mod claim;
pub mod eth;
pub mod flow;
mod head;
pub mod ip;
pub mod rewrite;
pub mod route;
pub mod segment;
pub mod tuple;
pub mod vnet;

pub use eth::{Mac, Tci, VlanEdit};
pub use flow::flow_hash;
pub use head::{HEAD_MAX, HEADROOM, Head};
pub use vnet::{BadOffload, Checked, Offloads, RawVirtioNetHdr, VirtioNetHdr};

/// Big-endian `u16` at `at`, if the bytes are there.
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Writes a big-endian `u16` at `at`; nothing happens when it does not fit.
fn put_be16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *field = value.to_be_bytes();
    }
}
