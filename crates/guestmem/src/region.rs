//! The memory table as the front end describes it, and the arithmetic that decides whether and
//! where it can be mapped.
//!
//! Pure: numbers in, a [`Plan`] or a [`MapError`] out. The mapping itself is done in `memory.rs`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most regions a table may have: what QEMU and the kernel's vhost call `VHOST_MEMORY_MAX_NREGIONS`
/// at its largest.
pub(crate) const MAX_REGIONS: usize = 509;

/// Largest distance from the first to the last byte of a table, in bytes (16 TiB).
pub(crate) const MAX_SPAN: u64 = 16 << 40;

/// Unit of every mapping, and the least alignment between a GPA and its place in the file.
pub(crate) const BASE_PAGE: u64 = 4096;

/// One region of guest memory, with the fields of the vhost-user memory region description.
///
/// All four are in bytes and come from the front end unchecked;
/// [`GuestMemory::map`](crate::GuestMemory::map) checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Guest physical address of the first byte.
    pub guest_addr: u64,
    /// Length of the region.
    pub size: u64,
    /// Address of the first byte in the front end's own address space; ring addresses are given in
    /// it.
    pub user_addr: u64,
    /// Offset of the first byte in the region's file.
    pub mmap_offset: u64,
}

/// The file behind a region. Cheap to clone, so that a table can be mapped anew with a region more
/// or less.
#[derive(Clone, Debug)]
pub struct RegionFile(Arc<OwnedFd>);

impl From<OwnedFd> for RegionFile {
    fn from(fd: OwnedFd) -> RegionFile {
        RegionFile(Arc::new(fd))
    }
}

impl AsFd for RegionFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Why a memory table was refused. Regions are counted from 0, in the order given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The table is empty.
    #[error("the memory table has no regions")]
    NoRegions,
    /// More regions than anyone may send.
    #[error("the memory table has {count} regions, at most {MAX_REGIONS} are allowed")]
    TooManyRegions {
        /// Regions in the table.
        count: usize,
    },
    /// A region of no bytes.
    #[error("memory region {region} has size zero")]
    EmptyRegion {
        /// Index in the table.
        region: usize,
    },
    /// Guest address, user address or file offset plus size passes the end of its range.
    #[error("memory region {region}: {field} plus size overflows")]
    Overflow {
        /// Index in the table.
        region: usize,
        /// Which of the fields.
        field: &'static str,
    },
    /// Two regions claim the same guest or user addresses.
    #[error("memory regions {first} and {second} overlap in their {field}es")]
    Overlap {
        /// Index of one region.
        first: usize,
        /// Index of the other.
        second: usize,
        /// `guest address` or `user address`.
        field: &'static str,
    },
    /// The first and the last byte of the table are too far apart for one reservation.
    #[error("the memory table spans {span} bytes, at most {MAX_SPAN} are supported")]
    SpanTooLarge {
        /// Bytes from first to last.
        span: u64,
    },
    /// The file cannot be guest memory.
    #[error(
        "memory region {region} is backed by {found}; guest memory must be a shared memfd, or a \
         file on tmpfs, hugetlbfs or a local disk file system"
    )]
    WrongFile {
        /// Index in the table.
        region: usize,
        /// What the descriptor is.
        found: &'static str,
    },
    /// The file ends before the region does.
    #[error("memory region {region} ends at byte {needed} of its file, which has only {len}")]
    FileTooShort {
        /// Index in the table.
        region: usize,
        /// File length the region needs.
        needed: u64,
        /// File length there is.
        len: u64,
    },
    /// The guest address and the file offset differ in a way the page size does not allow.
    #[error(
        "memory region {region} cannot be mapped: its guest address and file offset do not fit its \
         {page}-byte pages and the other regions"
    )]
    Misaligned {
        /// Index in the table.
        region: usize,
        /// Page size of the file.
        page: u64,
    },
    /// Two regions need different things in the same (huge) page of the guest's address space.
    #[error(
        "memory regions {first} and {second} fall into the same {page}-byte page but do not share \
         it in a file"
    )]
    SharedPage {
        /// Index of one region.
        first: usize,
        /// Index of the other.
        second: usize,
        /// The larger page size of the two.
        page: u64,
    },
    /// As many guests are mapped as this process can look after.
    #[error("{limit} memory tables are mapped already")]
    TooManyTables {
        /// The limit.
        limit: usize,
    },
    /// The kernel refused to describe the file.
    #[error("memory region {region}: the file cannot be examined")]
    Stat {
        /// Index in the table.
        region: usize,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel refused to map the file.
    #[error("memory region {region} cannot be mapped")]
    Mmap {
        /// Index in the table.
        region: usize,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// No stretch of address space of this size could be reserved.
    #[error("{span} bytes of address space cannot be reserved")]
    Reserve {
        /// Bytes asked for.
        span: u64,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

/// What the kernel says of a region's file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backing {
    /// Device and inode: two descriptors of one file have the same.
    pub(crate) id: (u64, u64),
    /// Page size, a power of two of at least [`BASE_PAGE`].
    pub(crate) page: u64,
    /// File length in bytes.
    pub(crate) len: u64,
}

/// A stretch of guest addresses without a hole: adjacent regions count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// One mapping to make: whole pages of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Index of the region in the table.
    pub(crate) region: usize,
    /// Distance from the first byte of the reservation.
    pub(crate) at: u64,
    /// Bytes, whole pages.
    pub(crate) len: u64,
    /// Offset in the file, whole pages.
    pub(crate) file_offset: u64,
}

/// Where everything goes.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The reservation's length without guards.
    pub(crate) span: u64,
    /// The reservation must begin at an address that is `remainder` modulo `align`.
    pub(crate) align: u64,
    pub(crate) remainder: u64,
    /// GPA that the reservation's first byte stands for. Below zero when the first region begins
    /// inside a huge page.
    pub(crate) origin: i128,
    pub(crate) placements: Vec<Placement>,
    /// Sorted by address.
    pub(crate) windows: Vec<Window>,
    /// Smallest page size.
    pub(crate) page: u64,
}

/// A region with its file's facts and the bounds of its page-rounded mapping, in GPA space.
struct Item {
    region: usize,
    spec: RegionSpec,
    backing: Backing,
    lo: i128,
    hi: i128,
}

impl Item {
    fn new(region: usize, spec: RegionSpec, backing: Backing) -> Item {
        let page = i128::from(backing.page);
        let (gpa, offset) = (i128::from(spec.guest_addr), i128::from(spec.mmap_offset));
        let end = offset + i128::from(spec.size);
        let lo = gpa - offset.rem_euclid(page);
        let hi = gpa + i128::from(spec.size) + (-end).rem_euclid(page);
        Item { region, spec, backing, lo, hi }
    }

    /// Same for all regions that a single mapping of the file could show.
    fn delta(&self) -> i128 {
        i128::from(self.spec.guest_addr) - i128::from(self.spec.mmap_offset)
    }
}

/// The checks that need no file: count, sizes, overflows, overlaps.
pub(crate) fn check_specs(specs: &[RegionSpec]) -> Result<(), MapError> {
    if specs.is_empty() {
        return Err(MapError::NoRegions);
    }
    if specs.len() > MAX_REGIONS {
        return Err(MapError::TooManyRegions { count: specs.len() });
    }
    for (region, spec) in specs.iter().enumerate() {
        if spec.size == 0 {
            return Err(MapError::EmptyRegion { region });
        }
        let fields = [
            ("guest address", spec.guest_addr, u64::MAX),
            ("user address", spec.user_addr, u64::MAX),
            // Offsets are signed in the kernel; a page is kept for rounding up.
            ("file offset", spec.mmap_offset, i64::MAX as u64),
        ];
        for (field, start, max) in fields {
            if start.checked_add(spec.size).is_none_or(|end| end > max) {
                return Err(MapError::Overflow { region, field });
            }
        }
    }
    check_overlap(specs, "guest address", |s| s.guest_addr)?;
    check_overlap(specs, "user address", |s| s.user_addr)
}

fn check_overlap(
    specs: &[RegionSpec],
    field: &'static str,
    start: impl Fn(&RegionSpec) -> u64,
) -> Result<(), MapError> {
    let mut ranges: Vec<(u64, u64, usize)> =
        specs.iter().enumerate().map(|(i, s)| (start(s), start(s) + s.size, i)).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if let [(_, end, first), (begin, _, second)] = *pair
            && begin < end
        {
            return Err(MapError::Overlap { first, second, field });
        }
    }
    Ok(())
}

/// Decides where each region of a table that passed [`check_specs`] is mapped.
pub(crate) fn plan(table: &[(RegionSpec, Backing)]) -> Result<Plan, MapError> {
    let mut items = Vec::with_capacity(table.len());
    for (region, &(spec, backing)) in table.iter().enumerate() {
        // What lies behind the end of the file but in its last page can be read and written: only
        // whole pages count.
        let needed = spec.mmap_offset + spec.size;
        if needed > backing.len.checked_next_multiple_of(backing.page).unwrap_or(u64::MAX) {
            return Err(MapError::FileTooShort { region, needed, len: backing.len });
        }
        items.push(Item::new(region, spec, backing));
    }
    items.sort_unstable_by_key(|item| item.lo);

    let lo = items.iter().map(|item| item.lo).min().unwrap_or(0);
    let hi = items.iter().map(|item| item.hi).max().unwrap_or(0);
    let span = u64::try_from(hi - lo).unwrap_or(u64::MAX);
    if span > MAX_SPAN {
        return Err(MapError::SpanTooLarge { span });
    }
    let (align, remainder) = alignment(&items, lo)?;
    check_shared_pages(&items)?;

    let placements = items
        .iter()
        .map(|item| Placement {
            region: item.region,
            at: (item.lo - lo) as u64,
            len: (item.hi - item.lo) as u64,
            file_offset: item.spec.mmap_offset & !(item.backing.page - 1),
        })
        .collect();
    let page = items.iter().map(|item| item.backing.page).min().unwrap_or(BASE_PAGE);
    Ok(Plan { span, align, remainder, origin: lo, placements, windows: windows(&items), page })
}

/// The address (modulo an alignment) at which the reservation must begin so that every file page
/// falls on a page.
fn alignment(items: &[Item], lo: i128) -> Result<(u64, u64), MapError> {
    // Even memory of small pages is laid out for 2 MiB ones, which transparent huge pages need.
    const AT_LEAST: u64 = 2 << 20;
    let wanted = |item: &Item, align: u64| (lo - item.delta()).rem_euclid(i128::from(align)) as u64;
    let Some(leader) = items.iter().max_by_key(|item| (item.backing.page, item.spec.size)) else {
        return Err(MapError::NoRegions);
    };
    let align = leader.backing.page.max(AT_LEAST);
    let remainder = wanted(leader, align);
    for item in items {
        let page = item.backing.page;
        let base_aligned = item.delta().rem_euclid(i128::from(BASE_PAGE)) == 0;
        if !base_aligned || wanted(item, page) != remainder % page {
            return Err(MapError::Misaligned { region: item.region, page });
        }
    }
    Ok((align, remainder))
}

/// Regions whose page-rounded mappings meet must be pieces of one file at one distance: then it is
/// the same page.
fn check_shared_pages(sorted: &[Item]) -> Result<(), MapError> {
    let mut items = sorted.iter();
    let Some(mut last) = items.next() else { return Ok(()) };
    for item in items {
        if item.lo < last.hi
            && (item.backing.id != last.backing.id
                || item.backing.page != last.backing.page
                || item.delta() != last.delta())
        {
            let page = item.backing.page.max(last.backing.page);
            return Err(MapError::SharedPage { first: last.region, second: item.region, page });
        }
        if item.hi > last.hi {
            last = item;
        }
    }
    Ok(())
}

/// Guest addresses in use, adjacent regions merged, by address.
fn windows(items: &[Item]) -> Vec<Window> {
    let mut specs: Vec<RegionSpec> = items.iter().map(|item| item.spec).collect();
    specs.sort_unstable_by_key(|spec| spec.guest_addr);
    let mut windows: Vec<Window> = Vec::with_capacity(specs.len());
    for spec in specs {
        match windows.last_mut() {
            Some(last) if last.start + last.len == spec.guest_addr => last.len += spec.size,
            _ => windows.push(Window { start: spec.guest_addr, len: spec.size }),
        }
    }
    windows
}

#[cfg(test)]
mod tests;
