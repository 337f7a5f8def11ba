//! Walks the tables of a qcow2 file and compares its refcounts with what is referenced, as
//! `qemu-img check` does. imago has no check.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::header::{Header, be64};

/// Offset bits of L1, L2 and refcount table entries.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// The entry's cluster has a refcount of exactly one.
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// Reads as zeroes, whether it has a cluster or not.
const ZERO: u64 = 1;
/// A compressed cluster's length is counted in these units.
const COMPRESSED_UNIT: u64 = 512;
/// Most clusters of a file that can be checked: 128 TiB of 64 KiB clusters, 8 GiB of memory.
const MAX_CLUSTERS: u64 = 1 << 31;
/// Most errors that are told in words.
const MAX_TOLD: usize = 16;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Bytes of the disk that have a place in this image's own file.
    pub allocated: u64,
    /// Clusters that take space and that nothing refers to. Harmless.
    pub leaks: u64,
    /// Things that are wrong: content may be lost when the image is written.
    pub errors: u64,
    /// The first errors in words.
    pub told: Vec<String>,
}

impl Report {
    /// Whether nothing is wrong. There may be leaks.
    pub fn is_sound(&self) -> bool {
        self.errors == 0
    }

    /// Counts one more thing that is wrong.
    pub(crate) fn error(&mut self, text: String) {
        self.errors += 1;
        if self.told.len() < MAX_TOLD {
            self.told.push(text);
        }
    }
}

struct Walk<'a> {
    file: &'a File,
    header: &'a Header,
    /// How often each cluster of the file is referred to.
    references: Vec<u32>,
    report: Report,
}

/// Checks `file`, whose header is `header`.
///
/// Takes 4 bytes of memory for each cluster of the file and reads its tables once.
pub(crate) fn check(file: &File, header: &Header) -> io::Result<Report> {
    let clusters = file.metadata()?.len().div_ceil(header.cluster());
    if clusters > MAX_CLUSTERS {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large to be checked"));
    }
    let references = vec![0; clusters as usize];
    let mut walk = Walk { file, header, references, report: Report::default() };
    walk.refer("header", 0, 1);
    walk.refer("L1 table", header.l1_offset, header.l1_entries * 8);
    walk.refer("refcount table", header.refcount_offset, header.refcount_len);
    let refcounts = Refcounts::load(&mut walk)?;
    walk.l1(&refcounts)?;
    walk.compare(&refcounts)?;
    Ok(walk.report)
}

impl Walk<'_> {
    /// Counts a reference to each cluster of `len` bytes at `offset`.
    fn refer(&mut self, what: &str, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let first = offset >> self.header.cluster_bits;
        let last = offset.saturating_add(len - 1) >> self.header.cluster_bits;
        match self.references.get_mut(first as usize..=last as usize) {
            Some(range) => range.iter_mut().for_each(|count| *count = count.saturating_add(1)),
            None => {
                self.report.error(format!("{what} at {offset:#x} is behind the end of the file"));
            }
        }
    }

    /// The entries of the table at `offset`; what is behind the end of the file is 0.
    fn table(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    fn is_cluster(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.header.cluster())
            && (offset >> self.header.cluster_bits) < self.references.len() as u64
    }

    fn l1(&mut self, refcounts: &Refcounts) -> io::Result<()> {
        let table = self.table(self.header.l1_offset, self.header.l1_entries * 8)?;
        for index in 0..self.header.l1_entries {
            let entry = be64(&table, index as usize * 8);
            let offset = entry & OFFSET;
            if offset == 0 {
                continue;
            }
            if !self.is_cluster(offset) {
                self.report.error(format!("L1 entry {index} is {entry:#x}"));
                continue;
            }
            self.refer("L2 table", offset, self.header.cluster());
            self.copied(&format!("L1 entry {index}"), entry, refcounts);
            self.l2(index, offset, refcounts)?;
        }
        Ok(())
    }

    fn l2(&mut self, l1_index: u64, offset: u64, refcounts: &Refcounts) -> io::Result<()> {
        let table = self.table(offset, self.header.cluster())?;
        for index in 0..self.header.cluster() / 8 {
            let entry = be64(&table, index as usize * 8);
            if entry & COMPRESSED != 0 {
                let (at, len) = compressed(entry, self.header.cluster_bits);
                self.refer("compressed cluster", at, len);
                self.report.allocated += self.header.cluster();
                continue;
            }
            let data = entry & OFFSET;
            if data == 0 {
                continue;
            }
            let what = format!("L2 entry {index} of table {l1_index}");
            if !self.is_cluster(data) {
                self.report.error(format!("{what} is {entry:#x}"));
                continue;
            }
            self.refer("cluster", data, self.header.cluster());
            self.copied(&what, entry, refcounts);
            if entry & ZERO == 0 {
                self.report.allocated += self.header.cluster();
            }
        }
        Ok(())
    }

    /// An entry says that its cluster has one reference; so must the refcount.
    fn copied(&mut self, what: &str, entry: u64, refcounts: &Refcounts) {
        let cluster = (entry & OFFSET) >> self.header.cluster_bits;
        let refcount = refcounts.get(cluster);
        if (entry & COPIED != 0) != (refcount == 1) {
            self.report.error(format!("{what} is {entry:#x}, and the refcount is {refcount}"));
        }
    }

    fn compare(&mut self, refcounts: &Refcounts) -> io::Result<()> {
        for (cluster, &references) in self.references.iter().enumerate() {
            let refcount = refcounts.get(cluster as u64);
            if refcount > u64::from(references) {
                self.report.leaks += 1;
            } else if refcount < u64::from(references) {
                let text =
                    format!("cluster {cluster} has {references} references, refcount {refcount}");
                self.report.error(text);
            }
        }
        Ok(())
    }
}

/// Where the data of a compressed cluster are, and how many bytes at most.
fn compressed(entry: u64, cluster_bits: u32) -> (u64, u64) {
    let offset_bits = 62 - (cluster_bits - 8);
    let offset = entry & ((1 << offset_bits) - 1);
    let units = (entry & (COMPRESSED - 1)) >> offset_bits;
    (offset, (units + 1) * COMPRESSED_UNIT - offset % COMPRESSED_UNIT)
}

/// The refcount blocks of a file, those that exist.
struct Refcounts {
    blocks: Vec<Option<Vec<u8>>>,
    order: u32,
    /// Refcounts in a block: two to this power.
    block_bits: u32,
}

impl Refcounts {
    fn load(walk: &mut Walk<'_>) -> io::Result<Self> {
        let header = walk.header;
        let order = header.refcount_order;
        let block_bits = header.cluster_bits + 3 - order;
        let table = walk.table(header.refcount_offset, header.refcount_len)?;
        // Blocks for clusters behind the end of the file are looked at only as references.
        let wanted = (walk.references.len() as u64).div_ceil(1 << block_bits);
        let mut blocks = Vec::new();
        for index in 0..header.refcount_len / 8 {
            let entry = be64(&table, index as usize * 8);
            if entry == 0 {
                blocks.push(None);
                continue;
            }
            let sound = entry & !OFFSET == 0 && walk.is_cluster(entry);
            if sound {
                walk.refer("refcount block", entry, header.cluster());
            } else {
                walk.report.error(format!("refcount table entry {index} is {entry:#x}"));
            }
            let block = sound && index < wanted;
            blocks.push(block.then(|| walk.table(entry, header.cluster())).transpose()?);
        }
        Ok(Self { blocks, order, block_bits })
    }

    fn get(&self, cluster: u64) -> u64 {
        let block = self.blocks.get((cluster >> self.block_bits) as usize);
        let Some(Some(block)) = block else { return 0 };
        let index = (cluster & ((1 << self.block_bits) - 1)) as usize;
        let bits = 1_usize << self.order;
        if bits < 8 {
            let byte = block.get(index * bits / 8).copied().unwrap_or_default();
            return u64::from(byte >> (index * bits % 8)) & ((1 << bits) - 1);
        }
        let len = bits / 8;
        let bytes = block.get(index * len..(index + 1) * len).unwrap_or_default();
        bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }
}
