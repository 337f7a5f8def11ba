//! The header of a qcow2 file, checked before anything else looks at the file.
//!
//! Every size and offset in it is compared with the file's own length and with QEMU's limits, so
//! that what reads the tables afterwards allocates no more than the file explains. Layout:
//! QEMU's `docs/interop/qcow2.txt`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// `QFI\xfb`.
const MAGIC: u32 = 0x5146_49fb;
/// Bytes of a version 2 header, and of the shortest version 3 header.
const V2_LEN: u64 = 72;
const V3_LEN: u64 = 104;
/// QEMU's limits: of a cluster, of the L1 table and of the refcount table, in bytes.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
const MAX_L1: u64 = 32 << 20;
const MAX_REFCOUNT_TABLE: u64 = 8 << 20;
/// Longest name of a backing file in bytes.
const MAX_BACKING: u32 = 1023;
/// Header extensions: end, and the format of the backing file.
const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
/// Incompatible features that mean something to people.
const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// What is told to convert an image that has what we do not take.
const CONVERT: &str = "`qemu-img convert -O qcow2` makes a copy without";

/// What a sound header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Size of a cluster is two to this power, in bytes.
    pub(crate) cluster_bits: u32,
    /// Of the disk in bytes.
    pub(crate) size: u64,
    pub(crate) l1_offset: u64,
    pub(crate) l1_entries: u64,
    pub(crate) refcount_offset: u64,
    /// Of the refcount table, in bytes.
    pub(crate) refcount_len: u64,
    /// A refcount has two to this power bits.
    pub(crate) refcount_order: u32,
    pub(crate) backing: Option<Backing>,
}

/// What a header says about the image behind it. It is compared, never followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    pub(crate) file: String,
    pub(crate) format: Option<String>,
}

/// Why a header cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeaderError {
    /// A sentence for people, without the name of the file.
    #[error("{0}")]
    Flaw(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn flaw<T>(text: impl Into<String>) -> Result<T, HeaderError> {
    Err(HeaderError::Flaw(text.into()))
}

impl Header {
    /// Reads and checks the header of `file`.
    pub(crate) fn read(file: &File) -> Result<Self, HeaderError> {
        let file_len = file.metadata()?.len();
        let mut bytes = [0; V3_LEN as usize];
        let short = "it is too short for a qcow2 image";
        if file_len < V2_LEN {
            return flaw(short);
        }
        let there = file_len.min(V3_LEN) as usize;
        file.read_exact_at(&mut bytes[..there], 0)?;
        let u32_at = |at: usize| be32(&bytes, at);
        let u64_at = |at: usize| be64(&bytes, at);

        if u32_at(0) != MAGIC {
            return flaw("it is not a qcow2 image; say `raw` if its content is a disk's");
        }
        let version = u32_at(4);
        let (incompatible, refcount_order, header_len) = match version {
            2 => (0, 4, V2_LEN),
            3 if file_len < V3_LEN => return flaw(short),
            3 => (u64_at(72), u32_at(96), u64::from(u32_at(100))),
            _ => return flaw(format!("qcow2 version {version} is unknown")),
        };
        features(incompatible)?;
        let cluster_bits = u32_at(20);
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return flaw(format!("its clusters of 2^{cluster_bits} bytes are not allowed"));
        }
        let cluster = 1 << cluster_bits;
        if header_len > cluster || (version == 3 && (header_len < V3_LEN || header_len % 8 != 0)) {
            return flaw(format!("a header of {header_len} bytes is not allowed"));
        }
        if refcount_order > 6 {
            return flaw(format!("refcounts of 2^{refcount_order} bits are not allowed"));
        }
        if u32_at(32) != 0 {
            return flaw(format!("it is encrypted; {CONVERT} encryption"));
        }
        if u32_at(60) != 0 {
            return flaw(format!("it has internal snapshots; {CONVERT} them"));
        }

        let size = u64_at(24);
        let l1_entries = u64::from(u32_at(36));
        let l1_offset = u64_at(40);
        // A cluster of an L2 table has an eighth as many entries as bytes.
        let l2_span = 1_u64 << (2 * cluster_bits - 3);
        if l1_entries * 8 > MAX_L1 || l1_entries < size.div_ceil(l2_span) {
            return flaw(format!("{l1_entries} L1 entries do not fit its size of {size} bytes"));
        }
        let table = |name, offset: u64, len: u64| {
            let aligned = offset.is_multiple_of(cluster) && (offset >= cluster || len == 0);
            let end = offset.checked_add(len);
            let end_of_file = file_len.div_ceil(cluster).saturating_mul(cluster);
            match end {
                Some(end) if aligned && end <= end_of_file => Ok(()),
                _ => flaw(format!("its {name} at {offset} of {len} bytes is not inside the file")),
            }
        };
        table("L1 table", l1_offset, l1_entries * 8)?;
        let refcount_offset = u64_at(48);
        let refcount_len = u64::from(u32_at(56)) << cluster_bits;
        if refcount_len == 0 || refcount_len > MAX_REFCOUNT_TABLE {
            return flaw(format!("a refcount table of {refcount_len} bytes is not allowed"));
        }
        table("refcount table", refcount_offset, refcount_len)?;

        let mut first = vec![0; cluster.min(file_len) as usize];
        file.read_exact_at(&mut first, 0)?;
        let backing = backing_file(&first, u64_at(8), u32_at(16))?;
        // The extensions end where the name of the backing file begins, at the latest.
        let end = if backing.is_some() { u64_at(8) as usize } else { first.len() };
        let format = backing_format(&first[..end], header_len)?;
        Ok(Self {
            cluster_bits,
            size,
            l1_offset,
            l1_entries,
            refcount_offset,
            refcount_len,
            refcount_order,
            backing: backing.map(|file| Backing { file, format }),
        })
    }

    /// Bytes of a cluster.
    pub(crate) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }
}

/// Refuses every incompatible feature: those known say what to do.
fn features(bits: u64) -> Result<(), HeaderError> {
    let text = match bits {
        0 => return Ok(()),
        _ if bits & DIRTY != 0 => {
            "it was not closed properly; `qemu-img check -r all` repairs it".to_owned()
        }
        _ if bits & CORRUPT != 0 => {
            "it is marked as corrupt; see what `qemu-img check` says".to_owned()
        }
        _ if bits & EXTERNAL_DATA != 0 => {
            format!("its data are in another file; {CONVERT} that")
        }
        _ if bits & COMPRESSION != 0 => {
            format!("its compression is not zlib; {CONVERT} compression")
        }
        _ if bits & EXTENDED_L2 != 0 => format!("it has subclusters; {CONVERT} them"),
        _ => format!("it needs features that are unknown here ({bits:#x})"),
    };
    flaw(text)
}

/// The format of the backing file among the header's extensions, which follow its `header_len` bytes
/// in version 2, too.
fn backing_format(first: &[u8], header_len: u64) -> Result<Option<String>, HeaderError> {
    let mut at = header_len as usize;
    let mut format = None;
    while let Some(head) = first.get(at..at + 8) {
        let (kind, len) = (be32(head, 0), be32(head, 4) as usize);
        if kind == EXTENSION_END {
            return Ok(format);
        }
        let Some(data) = first.get(at + 8..(at + 8).saturating_add(len)) else {
            return flaw("a header extension is longer than its cluster");
        };
        if kind == EXTENSION_BACKING_FORMAT {
            format = Some(text(data)?);
        }
        at += 8 + len.next_multiple_of(8);
    }
    Ok(format)
}

fn backing_file(first: &[u8], offset: u64, len: u32) -> Result<Option<String>, HeaderError> {
    if offset == 0 {
        return Ok(None);
    }
    let end = offset.saturating_add(u64::from(len));
    let name = (len <= MAX_BACKING && end <= first.len() as u64)
        .then(|| first.get(offset as usize..end as usize));
    match name.flatten() {
        Some(name) => text(name).map(Some),
        None => flaw("the name of its backing file is not inside its first cluster"),
    }
}

fn text(bytes: &[u8]) -> Result<String, HeaderError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => flaw("the name or format of its backing file is not UTF-8"),
    }
}

/// The big-endian number at `at`; 0 where `bytes` ends.
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// The big-endian number at `at`; 0 where `bytes` ends.
pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
mod tests;
