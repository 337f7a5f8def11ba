//! Where the clusters of a disk are, for those who must not wait: one atomic word for each.
//!
//! A word is unknown, "only by the slow way", or a place in one of the chain's files. Words are set
//! by the slow calls:
//!
//! * A slow **read** finds out where clusters are and sets words that are *unknown* and no others.
//! * A slow **write** sets the words of the clusters it wrote, whatever they were, before it is
//!   answered; to "slow" if the place is not one to write directly.
//! * What takes places away (discard, zeroes, resize) makes words unknown, while nobody reads or
//!   writes slowly.
//!
//! So a reader that found the old place of a cluster cannot hide the new one: either its word comes
//! first and is replaced, or it finds a word that is not unknown.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

/// Clusters in a page: 256 MiB of a disk with clusters of 64 KiB.
const PAGE_BITS: u32 = 12;
const PAGE: u64 = 1 << PAGE_BITS;
/// Most pages of a map. A disk with more is reached by the slow way only.
const MAX_PAGES: u64 = 1 << 20;

/// The word of a cluster that nothing is known of.
const UNKNOWN: u64 = 0;
const KNOWN: u64 = 1 << 0;
const DIRECT: u64 = 1 << 1;
const WRITABLE: u64 = 1 << 2;
const LAYER_SHIFT: u32 = 3;
const LAYER_MASK: u64 = 0x1f;
/// Places are multiples of this; the bits below hold the rest of a word.
const PLACE_ALIGN: u64 = 512;

/// Where a run of bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Which file of the chain.
    pub(super) layer: usize,
    /// Offset there in bytes.
    pub(super) offset: u64,
    /// Whether it may be written in place.
    pub(super) writable: bool,
}

struct Page {
    words: Box<[AtomicU64]>,
    surveyed: AtomicBool,
}

/// The map of one disk. All methods may be called by any thread.
pub(super) struct Map {
    cluster_bits: u32,
    pages: RwLock<Vec<OnceLock<Page>>>,
}

impl Map {
    pub(super) fn new(cluster_bits: u32, size: u64) -> Self {
        let map = Self { cluster_bits, pages: RwLock::default() };
        map.resize(size);
        map
    }

    /// Where `len` bytes at `offset` are, if they are known to be in one run. Never waits.
    pub(super) fn find(&self, offset: u64, len: u64) -> Option<Place> {
        let pages = self.pages.try_read()?;
        let last = offset.checked_add(len.checked_sub(1)?)? >> self.cluster_bits;
        let first = offset >> self.cluster_bits;
        let start = place(word(&pages, first)?)?;
        for (ahead, cluster) in (first + 1..=last).enumerate() {
            let next = place(word(&pages, cluster)?)?;
            let expected = start.offset + ((ahead as u64 + 1) << self.cluster_bits);
            if next != (Place { offset: expected, ..start }) {
                return None;
            }
        }
        let inside = offset & ((1 << self.cluster_bits) - 1);
        Some(Place { offset: start.offset + inside, ..start })
    }

    /// A reader found `cluster` at `found`: sets its word unless something is known.
    pub(super) fn learn(&self, cluster: u64, found: Option<Place>) {
        let Some(found) = found.and_then(encode) else { return };
        self.with(cluster, |word| {
            // A word that is known already is at least as new.
            let _ = word.compare_exchange(UNKNOWN, found, Ordering::AcqRel, Ordering::Relaxed);
        });
    }

    /// A writer put `cluster` at `now`: sets its word. `None`: only by the slow way.
    pub(super) fn put(&self, cluster: u64, now: Option<Place>) {
        let now = now.and_then(encode).unwrap_or(KNOWN);
        self.with(cluster, |word| word.store(now, Ordering::Release));
    }

    /// Forgets the clusters that `len` bytes at `offset` touch.
    pub(super) fn forget(&self, offset: u64, len: u64) {
        let pages = self.pages.read();
        for cluster in clusters(offset, len, self.cluster_bits) {
            if let Some(word) = word(&pages, cluster) {
                word.store(UNKNOWN, Ordering::Release);
            }
        }
    }

    /// Forgets everything; the disk has `size` bytes now.
    pub(super) fn resize(&self, size: u64) {
        let pages = size.div_ceil(PAGE << self.cluster_bits);
        let pages = if pages > MAX_PAGES { 0 } else { pages };
        let mut all = self.pages.write();
        all.clear();
        all.resize_with(pages as usize, OnceLock::new);
    }

    /// Whether the page of `cluster` was surveyed already; it counts as surveyed from now on.
    pub(super) fn survey(&self, cluster: u64) -> bool {
        let pages = self.pages.read();
        let Some(page) = pages.get((cluster >> PAGE_BITS) as usize) else { return true };
        page.get_or_init(Page::new).surveyed.swap(true, Ordering::Relaxed)
    }

    /// The bytes of the disk that the page of `cluster` is for: offset and length.
    pub(super) fn page_of(&self, cluster: u64) -> (u64, u64) {
        let first = cluster & !(PAGE - 1);
        (first << self.cluster_bits, PAGE << self.cluster_bits)
    }

    fn with(&self, cluster: u64, change: impl FnOnce(&AtomicU64)) {
        let pages = self.pages.read();
        let Some(page) = pages.get((cluster >> PAGE_BITS) as usize) else { return };
        if let Some(word) = page.get_or_init(Page::new).words.get((cluster & (PAGE - 1)) as usize) {
            change(word);
        }
    }
}

impl Page {
    fn new() -> Self {
        let words = (0..PAGE).map(|_| AtomicU64::new(UNKNOWN)).collect();
        Self { words, surveyed: AtomicBool::new(false) }
    }
}

/// The clusters that `len` bytes at `offset` touch.
pub(super) fn clusters(offset: u64, len: u64, cluster_bits: u32) -> std::ops::Range<u64> {
    let end = offset.saturating_add(len);
    offset >> cluster_bits..end.div_ceil(1 << cluster_bits)
}

fn word(pages: &[OnceLock<Page>], cluster: u64) -> Option<&AtomicU64> {
    let page = pages.get((cluster >> PAGE_BITS) as usize)?.get()?;
    page.words.get((cluster & (PAGE - 1)) as usize)
}

fn encode(place: Place) -> Option<u64> {
    let Place { layer, offset, writable } = place;
    let fits = offset.is_multiple_of(PLACE_ALIGN) && layer as u64 <= LAYER_MASK;
    let flags = KNOWN | DIRECT | if writable { WRITABLE } else { 0 };
    fits.then_some(offset | (layer as u64) << LAYER_SHIFT | flags)
}

fn place(word: &AtomicU64) -> Option<Place> {
    let word = word.load(Ordering::Acquire);
    (word & DIRECT != 0).then_some(Place {
        layer: (word >> LAYER_SHIFT & LAYER_MASK) as usize,
        offset: word & !(PLACE_ALIGN - 1),
        writable: word & WRITABLE != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64) -> Option<Place> {
        Some(Place { layer: 3, offset, writable: true })
    }

    #[test]
    fn finds_runs_and_only_runs() {
        let map = Map::new(16, 1 << 30);
        assert_eq!(map.find(0, 1), None);
        map.put(0, at(0x50000));
        map.put(1, at(0x60000));
        map.put(2, at(0x90000));
        assert_eq!(map.find(512, 0x1f000), at(0x50200));
        assert_eq!(map.find(0x10000, 0x10000), at(0x60000));
        assert_eq!(map.find(0x10000, 0x10001), None, "another run");
        assert_eq!(map.find(0x20000, 0x10001), None, "unknown");
        assert_eq!(map.find(0, 0), None);
        assert_eq!(map.find(u64::MAX, 2), None);
        assert_eq!(map.find(1 << 40, 1), None);
    }

    #[test]
    fn a_reader_never_hides_what_a_writer_said() {
        let map = Map::new(16, 1 << 30);
        map.learn(0, at(0x10000));
        assert_eq!(map.find(0, 1), at(0x10000));
        map.put(0, at(0x20000));
        map.learn(0, at(0x10000));
        assert_eq!(map.find(0, 1), at(0x20000));
        map.put(0, None);
        map.learn(0, at(0x10000));
        assert_eq!(map.find(0, 1), None);
        map.forget(0, 1);
        map.learn(0, at(0x10000));
        assert_eq!(map.find(0, 1), at(0x10000));
        map.resize(1 << 20);
        assert_eq!(map.find(0, 1), None);
    }

    #[test]
    fn what_cannot_be_written_down_is_slow() {
        let map = Map::new(9, 1 << 20);
        map.put(0, at(513));
        map.put(1, Some(Place { layer: 32, offset: 0, writable: false }));
        assert_eq!((map.find(0, 1), map.find(512, 1)), (None, None));
        let huge = Map::new(9, 64 << 40);
        huge.put(0, at(512));
        assert_eq!(huge.find(0, 1), None, "no memory for a map of this size");
    }
}
