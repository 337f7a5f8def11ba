//! The mapping: one reservation of address space with a guest's regions in it.

#![expect(unsafe_code)]
// UNSAFETY: mmap, munmap and madvise have no safe form, and pointers into the mapping are handed
// out from here, the only place that knows which of them are good.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use rustix::fs::{FileType, fstat, fstatfs};
use sys::uring::IoVec;

use crate::fault::{self, Registration};
use crate::region::{self, BASE_PAGE, Backing, MapError, Plan, RegionFile, RegionSpec, Window};
use crate::slice::GuestSlice;

/// Kept unmapped on either side of the guest's memory, so that nothing else of the process is near
/// it.
const GUARD: usize = 2 << 20;

/// The memory of one guest. Immutable once mapped; used behind an `Arc`; unmapped when dropped.
pub struct GuestMemory {
    /// The largest window of the table and its first byte's place: what [`GuestMemory::slice`]
    /// tries first.
    main: Window,
    main_ptr: NonNull<u8>,
    windows: Box<[Window]>,
    /// Where the guest address `origin` is, or would be.
    start: NonNull<u8>,
    origin: i128,
    regions: Box<[RegionSpec]>,
    page_size: usize,
    /// Declared before the reservation: the fault handler forgets the addresses before they are
    /// given back.
    registration: Registration,
    _reservation: Reservation,
}

// SAFETY: the pointers name shared memory owned by this value and are only used for accesses that
// may race.
unsafe impl Send for GuestMemory {}
// SAFETY: as above; `&GuestMemory` gives no way to change the value itself.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Validates a memory table and maps it.
    ///
    /// Each file must be a memfd, or a regular file on tmpfs, hugetlbfs or a local disk file
    /// system, open for reading and writing, and long enough. Mapping does not read or allocate
    /// guest memory. The files may be closed afterwards.
    ///
    /// # Errors
    /// One [`MapError`] per way in which a table can be wrong; nothing stays mapped.
    pub fn map(table: &[(RegionSpec, RegionFile)]) -> Result<GuestMemory, MapError> {
        fault::install_fault_handler();
        crate::copy::block::prepare();
        let specs: Box<[RegionSpec]> = table.iter().map(|(spec, _)| *spec).collect();
        region::check_specs(&specs)?;
        let mut backed = Vec::with_capacity(table.len());
        for (region, (spec, file)) in table.iter().enumerate() {
            backed.push((*spec, examine(region, file)?));
        }
        let plan = region::plan(&backed)?;

        let reservation = Reservation::new(&plan)?;
        for place in &plan.placements {
            let Some((_, file)) = table.get(place.region) else { continue };
            reservation
                .map_file(place.at as usize, place.len as usize, file, place.file_offset)
                .map_err(|source| MapError::Mmap { region: place.region, source })?;
        }
        reservation.advise();
        let registration = Registration::new(reservation.map.addr().get(), reservation.map_len)?;

        let Some(&main) = plan.windows.iter().max_by_key(|window| window.len) else {
            return Err(MapError::NoRegions);
        };
        let start = reservation.start;
        Ok(GuestMemory {
            main,
            main_ptr: offset_from(start, plan.origin, main.start),
            windows: plan.windows.into_boxed_slice(),
            start,
            origin: plan.origin,
            regions: specs,
            page_size: plan.page as usize,
            registration,
            _reservation: reservation,
        })
    }

    /// The table as it was given.
    pub fn regions(&self) -> impl Iterator<Item = &RegionSpec> {
        self.regions.iter()
    }

    /// The stretches without holes that it consists of, for whoever keeps the value as long as it uses
    /// them.
    pub fn windows(&self) -> impl Iterator<Item = IoVec> + '_ {
        self.windows.iter().map(|window| IoVec {
            base: offset_from(self.start, self.origin, window.start).as_ptr(),
            len: window.len as usize,
        })
    }

    /// Translates `len` bytes at an address of the front end's own address space, as in
    /// `VHOST_USER_SET_VRING_ADDR`.
    ///
    /// The whole range must lie in the table, in regions that are adjacent in both address spaces.
    #[must_use]
    pub fn user_to_guest(&self, user_addr: u64, len: u64) -> Option<u64> {
        let find = |addr: u64| {
            let hit = |spec: &&RegionSpec| {
                addr.checked_sub(spec.user_addr).is_some_and(|offset| offset < spec.size)
            };
            let spec = self.regions.iter().find(hit)?;
            let offset = addr - spec.user_addr;
            Some((spec.guest_addr + offset, spec.size - offset))
        };
        let (guest_addr, mut covered) = find(user_addr)?;
        user_addr.checked_add(len)?;
        while covered < len {
            let (next, more) = find(user_addr + covered)?;
            if next != guest_addr.checked_add(covered)? {
                return None;
            }
            covered = covered.saturating_add(more);
        }
        Some(guest_addr)
    }

    /// The check every address from a guest goes through: `len` bytes at `gpa`, if all of them are
    /// in the table.
    ///
    /// Adjacent regions count as one. A length of zero is allowed from the first byte of a region
    /// to just behind its last, as for any other range that stays inside. (Rings refuse descriptors
    /// of length zero themselves.)
    #[inline(always)]
    #[must_use]
    pub fn slice(&self, gpa: u64, len: u32) -> Option<GuestSlice<'_>> {
        let offset = gpa.wrapping_sub(self.main.start);
        if offset <= self.main.len && u64::from(len) <= self.main.len - offset {
            // SAFETY: offset and offset + len are inside the main window, all of which is mapped at
            // `main_ptr`.
            let ptr = unsafe { self.main_ptr.add(offset as usize) };
            return Some(GuestSlice { ptr, len, memory: PhantomData });
        }
        self.slice_elsewhere(gpa, len)
    }

    /// [`GuestMemory::slice`] outside the main window.
    #[cold]
    #[inline(never)]
    fn slice_elsewhere(&self, gpa: u64, len: u32) -> Option<GuestSlice<'_>> {
        let after = self.windows.partition_point(|window| window.start <= gpa);
        let window = self.windows.get(after.checked_sub(1)?)?;
        let offset = gpa - window.start;
        if offset.checked_add(u64::from(len))? > window.len {
            return None;
        }
        let ptr = offset_from(self.start, self.origin, gpa);
        Some(GuestSlice { ptr, len, memory: PhantomData })
    }

    /// Has the cache line of a guest address fetched, to be read soon. Only a hint: it waits for nothing
    /// and cannot fail, so it may be any address, and whatever is or is not there.
    #[inline(always)]
    pub fn prefetch_read(&self, gpa: u64) {
        sys::prefetch::read(self.perhaps(gpa));
    }

    /// The same, to be written.
    #[inline(always)]
    pub fn prefetch_write(&self, gpa: u64) {
        sys::prefetch::write(self.perhaps(gpa));
    }

    /// Where a guest address is, if it is anywhere: nothing else to be done with it.
    #[inline(always)]
    fn perhaps(&self, gpa: u64) -> *const u8 {
        // All windows lie as the guest's addresses do.
        self.main_ptr.as_ptr().wrapping_add(gpa.wrapping_sub(self.main.start) as usize)
    }

    /// The guest physical address of a slice of this memory: to name it for longer than it may be
    /// borrowed. `None` if it is of another memory.
    #[must_use]
    pub fn address(&self, slice: GuestSlice<'_>) -> Option<u64> {
        let offset = slice.ptr.addr().get() as i128 - self.start.addr().get() as i128;
        let gpa = u64::try_from(offset + self.origin).ok()?;
        let same = self.slice(gpa, slice.len).is_some_and(|found| found.ptr == slice.ptr);
        same.then_some(gpa)
    }

    /// Whether memory vanished under an access and zeroes were put in its place. Never reset: what
    /// the guest sees and what this process sees are no longer the same, so the session has to end.
    #[inline]
    #[must_use]
    pub fn faulted(&self) -> bool {
        self.registration.faulted()
    }

    /// The NUMA node that the page at `gpa` is on. A page nobody has touched is allocated by this, as
    /// by a read. `None`: outside the table, or the kernel does not say (a sandbox may forbid to ask).
    #[must_use]
    pub fn node(&self, gpa: u64) -> Option<u16> {
        /// `MPOL_F_NODE` and `MPOL_F_ADDR`: which node this address is on.
        const NODE_OF_ADDR: libc::c_ulong = 1 | 2;
        let slice = self.slice(gpa, 1)?;
        let mut node: libc::c_int = -1;
        // SAFETY: get_mempolicy(2) writes one int to `node`, and no mask, as there is none. Of the
        // address it uses where the page is; memory that has vanished is an error to it.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                std::ptr::null_mut::<libc::c_ulong>(),
                0 as libc::c_ulong,
                slice.ptr.as_ptr(),
                NODE_OF_ADDR,
            )
        };
        if result == 0 { u16::try_from(node).ok() } else { None }
    }

    /// Smallest page size among the files, in bytes: 4096, 2 MiB or 1 GiB.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.page_size
    }
}

impl fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestMemory")
            .field("regions", &self.regions)
            .field("page_size", &self.page_size)
            .field("faulted", &self.faulted())
            .finish_non_exhaustive()
    }
}

/// The place of a GPA that is known to be inside the reservation.
fn offset_from(start: NonNull<u8>, origin: i128, gpa: u64) -> NonNull<u8> {
    let offset = (i128::from(gpa) - origin) as usize;
    // SAFETY: callers pass addresses of windows of the plan, which all lie inside the reservation
    // that begins at `start`.
    unsafe { start.add(offset) }
}

/// What file a region is in, and whether it can be guest memory.
///
/// Files that another process or another machine serves are refused: touching them could block a
/// worker for as long as their server likes.
fn examine(region: usize, file: &RegionFile) -> Result<Backing, MapError> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    const HUGETLBFS: u64 = 0x9584_58f6;
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const F2FS: u64 = 0xf2f5_2010;
    const ZFS: u64 = 0x2fc1_2fc1;

    let fail = |errno: rustix::io::Errno| MapError::Stat { region, source: errno.into() };
    let stat = fstat(file.as_fd()).map_err(fail)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(MapError::WrongFile { region, found: "something that is not a regular file" });
    }
    let fs = fstatfs(file.as_fd()).map_err(fail)?;
    // The magic numbers are 32 bits wide, whatever the width of the field.
    let page = match fs.f_type as u64 & 0xffff_ffff {
        HUGETLBFS => fs.f_bsize as u64,
        TMPFS | RAMFS | EXT4 | XFS | BTRFS | F2FS | ZFS => BASE_PAGE,
        _ => {
            return Err(MapError::WrongFile {
                region,
                found: "a file on another kind of file system",
            });
        }
    };
    if !page.is_power_of_two() || page < BASE_PAGE {
        return Err(MapError::WrongFile { region, found: "a file with pages of an odd size" });
    }
    Ok(Backing { id: (stat.st_dev, stat.st_ino), page, len: stat.st_size.try_into().unwrap_or(0) })
}

/// Reserved address space; everything in it is unmapped with it.
struct Reservation {
    map: NonNull<u8>,
    map_len: usize,
    /// The first byte behind the leading guard, aligned as the plan asks.
    start: NonNull<u8>,
}

impl Reservation {
    fn new(plan: &Plan) -> Result<Reservation, MapError> {
        // MAX_SPAN and page sizes keep this far below the end of a 64-bit address space.
        let map_len = plan.span as usize + plan.align as usize + 2 * GUARD;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let map = match NonNull::new(map.cast::<u8>()) {
            Some(map) if map.as_ptr().cast() != libc::MAP_FAILED => map,
            _ => {
                let source = io::Error::last_os_error();
                return Err(MapError::Reserve { span: map_len as u64, source });
            }
        };
        let after_guard = (map.addr().get() + GUARD) as u64;
        let skip = plan.remainder.wrapping_sub(after_guard) & (plan.align - 1);
        // SAFETY: GUARD + skip < GUARD + align, inside the mapping.
        let start = unsafe { map.add(GUARD + skip as usize) };
        Ok(Reservation { map, map_len, start })
    }

    /// Maps part of a file over `len` bytes at `at`, both from the plan.
    fn map_file(&self, at: usize, len: usize, file: &RegionFile, offset: u64) -> io::Result<()> {
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the plan keeps at + len within the span, so MAP_FIXED replaces pages of this
        // reservation only.
        let result = unsafe {
            libc::mmap(
                self.start.add(at).as_ptr().cast(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                // Huge pages are the front end's to reserve: with virtio-mem it deliberately has
                // fewer than it shows.
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
                file.as_fd().as_raw_fd(),
                offset,
            )
        };
        if result == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Guest memory belongs neither into core dumps nor into child processes. Both are courtesies:
    /// a kernel that refuses them changes nothing here.
    fn advise(&self) {
        for advice in [libc::MADV_DONTDUMP, libc::MADV_DONTFORK] {
            // SAFETY: the range is this reservation; neither advice changes its contents for this
            // process.
            unsafe { libc::madvise(self.map.as_ptr().cast(), self.map_len, advice) };
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` and not given back since; pointers into it live no longer than
        // the GuestMemory.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

#[cfg(test)]
mod tests;
