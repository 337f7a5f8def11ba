//! Guest memory that is shared with a back end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use guestmem::{GuestMemory, RegionFile, RegionSpec};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sys::memfd;

/// User addresses are guest addresses plus this, so that one taken for the other is noticed.
const USER: u64 = 0x7f00_0000_0000;

/// Which pages guest memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Of 4 KiB.
    Small,
    /// Of 2 MiB, which the machine must have reserved.
    Huge,
}

/// A region and its file.
#[derive(Debug)]
pub struct Region {
    /// As it is told to the back end; change it to lie.
    pub spec: RegionSpec,
    /// The file that goes with it.
    pub fd: Arc<OwnedFd>,
}

impl Region {
    /// A region of a new memfd at this guest address.
    ///
    /// # Errors
    /// What creating the memfd reports.
    pub fn new(guest_addr: u64, size: u64, pages: Pages) -> io::Result<Region> {
        let fd = Arc::new(memfd("guest memory", size, pages == Pages::Huge)?);
        let spec = RegionSpec { guest_addr, size, user_addr: USER + guest_addr, mmap_offset: 0 };
        Ok(Region { spec, fd })
    }

    /// The same of small pages in a file that can be truncated, as that of QEMU can.
    ///
    /// # Errors
    /// What creating the memfd reports.
    pub fn unsealed(guest_addr: u64, size: u64) -> io::Result<Region> {
        let fd = memfd_create("guest memory", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, size)?;
        let spec = RegionSpec { guest_addr, size, user_addr: USER + guest_addr, mmap_offset: 0 };
        Ok(Region { spec, fd: Arc::new(fd) })
    }

    /// The region as messages describe it.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let RegionSpec { guest_addr, size, user_addr, mmap_offset } = self.spec;
        [guest_addr, size, user_addr, mmap_offset].map(u64::to_ne_bytes).concat()
    }
}

/// Memory of a guest: mapped here for the driver's side, with the files for the back end.
#[derive(Debug)]
pub struct SharedMemory {
    regions: Vec<Region>,
    guest: Arc<GuestMemory>,
}

impl SharedMemory {
    /// Regions of (guest physical address, bytes), zeroed, each in a memfd of its own.
    ///
    /// # Errors
    /// What creating or mapping the memfds reports.
    pub fn new(regions: &[(u64, u64)], pages: Pages) -> io::Result<SharedMemory> {
        let regions: io::Result<Vec<Region>> =
            regions.iter().map(|&(gpa, size)| Region::new(gpa, size, pages)).collect();
        SharedMemory::of(regions?)
    }

    /// Memory of these regions.
    ///
    /// # Errors
    /// What mapping them reports.
    pub fn of(regions: Vec<Region>) -> io::Result<SharedMemory> {
        let mut table = Vec::with_capacity(regions.len());
        for region in &regions {
            table.push((region.spec, RegionFile::from(region.fd.try_clone()?)));
        }
        let guest = GuestMemory::map(&table).map(Arc::new).map_err(io::Error::other)?;
        Ok(SharedMemory { regions, guest })
    }

    /// The memory as the guest's driver reaches it.
    #[must_use]
    pub fn guest(&self) -> &Arc<GuestMemory> {
        &self.guest
    }

    /// The regions, as they are shared.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// What the VMM calls a guest physical address.
    #[must_use]
    pub fn user_addr(&self, gpa: u64) -> Option<u64> {
        let hit = |region: &Region| {
            let offset = gpa.checked_sub(region.spec.guest_addr)?;
            (offset < region.spec.size).then(|| region.spec.user_addr + offset)
        };
        self.regions.iter().find_map(hit)
    }
}
