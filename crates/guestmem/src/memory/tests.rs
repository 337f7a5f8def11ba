#![expect(unsafe_code)]
// UNSAFETY: places a slice over a hole on purpose, which no safe code can.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

const PAGE: u64 = 4096;

fn memfd(len: u64, flags: MemfdFlags) -> OwnedFd {
    let fd = memfd_create("guestmem-test", MemfdFlags::CLOEXEC | flags).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

/// A file whose bytes tell where they are, and another descriptor of it.
fn marked(len: u64) -> (RegionFile, File) {
    let file = File::from(memfd(len, MemfdFlags::empty()));
    let bytes: Vec<u8> = (0..len).map(mark).collect();
    file.write_all_at(&bytes, 0).unwrap();
    (RegionFile::from(OwnedFd::from(file.try_clone().unwrap())), file)
}

fn mark(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)) as u8
}

fn region(guest_addr: u64, size: u64, mmap_offset: u64) -> RegionSpec {
    RegionSpec { guest_addr, size, user_addr: guest_addr + 0x5500_0000_0000, mmap_offset }
}

fn bytes(slice: GuestSlice<'_>) -> Vec<u8> {
    let mut out = vec![0; slice.len()];
    assert_eq!(slice.copy_to(&mut out), out.len());
    out
}

#[test]
fn reads_and_writes_the_file() {
    let (file, other) = marked(16 * PAGE);
    let memory = GuestMemory::map(&[(region(0x10_0000, 8 * PAGE, 4 * PAGE), file)]).unwrap();
    let slice = memory.slice(0x10_0010, 100).unwrap();
    let expected: Vec<u8> = (0..100).map(|i| mark(4 * PAGE + 0x10 + i)).collect();
    assert_eq!(bytes(slice), expected);
    assert_eq!(slice.copy_from(b"hello"), 5);
    let mut seen = [0; 5];
    other.read_exact_at(&mut seen, 4 * PAGE + 0x10).unwrap();
    assert_eq!(&seen, b"hello");
    assert!(!memory.faulted());
    assert_eq!(memory.page_size(), 4096);
    assert_eq!(memory.regions().count(), 1);
}

#[test]
fn edges() {
    let (file, _) = marked(16 * PAGE);
    let table = [
        (region(0x10_0000, PAGE, 0), file.clone()),
        (region(0x10_1000, 4 * PAGE, 8 * PAGE), file.clone()),
        (region(0x20_0000, PAGE, 0), file),
    ];
    let memory = GuestMemory::map(&table).unwrap();
    let ok = |gpa, len| memory.slice(gpa, len).is_some();
    // Across the seam of two adjacent regions.
    assert!(ok(0x10_0fff, 2));
    assert!(ok(0x10_0000, 5 * 4096));
    assert!(!ok(0x10_0000, 5 * 4096 + 1));
    assert!(!ok(0x0f_ffff, 2) && !ok(0x0f_ffff, 1));
    assert!(ok(0x10_4fff, 1) && !ok(0x10_5000, 1) && !ok(0x10_4fff, 2));
    // Nothing at all, at either end and outside.
    assert!(ok(0x10_0000, 0) && ok(0x10_5000, 0) && !ok(0x10_5001, 0) && !ok(0x0f_ffff, 0));
    // The smaller window.
    assert!(ok(0x20_0000, 4096) && !ok(0x20_0000, 4097) && !ok(0x1f_ffff, 2) && ok(0x20_1000, 0));
    assert!(!ok(0x18_0000, 1));
    // The ends of the world.
    assert!(!ok(0, 1) && !ok(0, u32::MAX) && !ok(u64::MAX, 1) && !ok(u64::MAX, u32::MAX));
    assert!(!ok(u64::MAX - 5, 6) && !ok(1 << 63, 1) && !ok(0x10_0000, u32::MAX));
    // Bytes on both sides of the seam come from where they should.
    let seam = bytes(memory.slice(0x10_0fff, 2).unwrap());
    assert_eq!(seam, [mark(0xfff), mark(8 * PAGE)]);
}

#[test]
fn pieces_of_slices() {
    let (file, _) = marked(PAGE);
    let memory = GuestMemory::map(&[(region(0, PAGE, 0), file)]).unwrap();
    let slice = memory.slice(100, 10).unwrap();
    let (a, b) = slice.split_at(4);
    assert_eq!((bytes(a), bytes(b)), (bytes(slice.take(4)), bytes(slice.skip(4))));
    assert_eq!(bytes(b), (104..110).map(mark).collect::<Vec<_>>());
    let (all, none) = slice.split_at(usize::MAX);
    assert!(all.len() == 10 && none.is_empty() && none.skip(7).is_empty());
    // The shorter side decides.
    let mut small = [0; 3];
    assert_eq!(slice.copy_to(&mut small), 3);
    assert_eq!(slice.copy_from(&[1; 20]), 10);
    assert_eq!(bytes(memory.slice(110, 1).unwrap()), [mark(110)]);
    assert_eq!(slice.copy_to_guest(memory.slice(200, 4).unwrap()), 4);
    assert_eq!(bytes(memory.slice(200, 5).unwrap()), [1, 1, 1, 1, mark(204)]);
    // To itself, overlapping.
    assert_eq!(memory.slice(0, 3000).unwrap().copy_to_guest(memory.slice(7, 3000).unwrap()), 3000);
}

#[test]
fn addresses_of_the_front_end() {
    let (file, _) = marked(16 * PAGE);
    let at = |guest_addr, user_addr, size, mmap_offset| RegionSpec {
        guest_addr,
        size,
        user_addr,
        mmap_offset,
    };
    let table = [
        (at(0x1000, 0xa000, PAGE, 0), file.clone()),
        (at(0x2000, 0xb000, PAGE, PAGE), file.clone()),
        (at(0x8000, 0xc000, PAGE, 2 * PAGE), file.clone()),
        (at(0x3000, 0xffff_ffff_ffff_0000, PAGE, 3 * PAGE), file),
    ];
    let memory = GuestMemory::map(&table).unwrap();
    assert_eq!(memory.user_to_guest(0xa010, 16), Some(0x1010));
    assert_eq!(memory.user_to_guest(0xaff0, 0x20), Some(0x1ff0));
    assert_eq!(memory.user_to_guest(0xa000, 0x2000), Some(0x1000));
    // Adjacent for the front end, but not for the guest.
    assert_eq!(memory.user_to_guest(0xbff0, 0x20), None);
    assert_eq!(memory.user_to_guest(0xa000, 0x2001), None);
    // Adjacent for the guest only.
    assert_eq!(memory.user_to_guest(0xbff0, 0x10), Some(0x2ff0));
    assert_eq!(memory.user_to_guest(0x9fff, 2), None);
    assert_eq!(memory.user_to_guest(0xd000, 1), None);
    assert_eq!(memory.user_to_guest(0xffff_ffff_ffff_0ff0, 0x11), None);
    assert_eq!(memory.user_to_guest(0xffff_ffff_ffff_0ff0, u64::MAX), None);
    assert_eq!(memory.user_to_guest(u64::MAX, u64::MAX), None);
    assert_eq!(memory.user_to_guest(0xcfff, 0), Some(0x8fff));
}

/// DPDK's virtio-user has no guest: the addresses are those of its process.
#[test]
fn process_addresses_as_guest_addresses() {
    let (file, _) = marked(4 * PAGE);
    for base in [0x1_0020_0000, 0x7fff_f7a0_0000, u64::MAX - 64 * PAGE + 1] {
        let spec = RegionSpec { guest_addr: base, size: 4 * PAGE, user_addr: base, mmap_offset: 0 };
        let memory = GuestMemory::map(&[(spec, file.clone())]).unwrap();
        assert_eq!(bytes(memory.slice(base + 0x1234, 1).unwrap()), [mark(0x1234)]);
        assert_eq!(memory.user_to_guest(base + 5, 1), Some(base + 5));
        assert!(memory.slice(0, 1).is_none());
        assert!(memory.slice(base.wrapping_sub(1), 1).is_none());
    }
}

#[test]
fn wrong_files_are_named() {
    let map = |fd: OwnedFd, size| {
        GuestMemory::map(&[(region(0, size, 0), RegionFile::from(fd))]).map(|_| ()).unwrap_err()
    };
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(matches!(map(reader.into(), PAGE), MapError::WrongFile { region: 0, .. }));
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    assert!(matches!(map(null.into(), PAGE), MapError::WrongFile { .. }));
    let directory = File::open("/tmp").unwrap();
    assert!(matches!(map(directory.into(), PAGE), MapError::WrongFile { .. }));
    // A regular file that a kernel interface serves.
    let proc = File::open("/proc/self/maps").unwrap();
    assert!(matches!(map(proc.into(), PAGE), MapError::WrongFile { .. }));
    let short = memfd(PAGE, MemfdFlags::empty());
    assert!(matches!(map(short, PAGE + 1), MapError::FileTooShort { len: 4096, .. }));
    // Not open for writing.
    let whole = memfd(PAGE, MemfdFlags::empty());
    let path = format!("/proc/self/fd/{}", whole.as_raw_fd());
    let read_only = File::open(path).unwrap();
    let error = map(read_only.into(), PAGE);
    assert!(matches!(error, MapError::Mmap { region: 0, .. }), "{error}");
}

#[test]
fn last_page_of_an_odd_file() {
    let fd = memfd(PAGE + 100, MemfdFlags::empty());
    let memory = GuestMemory::map(&[(region(0, 2 * PAGE, 0), fd.into())]).unwrap();
    let end = memory.slice(2 * PAGE - 1, 1).unwrap();
    end.copy_from(&[7]);
    assert_eq!(bytes(end), [7]);
    assert!(!memory.faulted());
}

/// The reservation's holes and guards give zeroes and a mark, like vanished memory.
#[test]
fn holes_do_not_kill() {
    let (file, _) = marked(2 * PAGE);
    let table = [(region(0, PAGE, 0), file.clone()), (region(0x10_0000, PAGE, PAGE), file)];
    let memory = GuestMemory::map(&table).unwrap();
    let inside = memory.slice(0, 1).unwrap();
    for (distance, expected) in [(0, mark(0)), (0x5000, 0), (-1, 0)] {
        // SAFETY: still inside the reservation with its guards.
        let ptr = unsafe { inside.ptr.offset(distance) };
        let slice = GuestSlice { ptr, len: 1, memory: PhantomData };
        assert_eq!(bytes(slice), [expected]);
        assert_eq!(memory.faulted(), distance != 0);
    }
}

#[test]
fn address_space_is_given_back() {
    let (file, _) = marked(2 * PAGE);
    let mapped = || std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = |statm: &str| statm.split(' ').next().unwrap().parse::<u64>().unwrap();
    let table = [(region(0, PAGE, 0), file.clone()), (region(1 << 43, PAGE, PAGE), file)];
    let held = GuestMemory::map(&table).unwrap();
    assert!(pages(&mapped()) > 1 << 31);
    drop(held);
    // Nearly all of the 128 TiB there are: only possible when each is unmapped.
    for _ in 0..100 {
        GuestMemory::map(&table).unwrap();
    }
}

mod huge_pages {
    use super::*;

    const HUGE: u64 = 2 << 20;

    /// A file of huge pages, or nothing on a machine that has none to give.
    pub(super) fn huge_file(pages: u64) -> Option<OwnedFd> {
        let path = "/proc/sys/vm/nr_hugepages";
        let have: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        if have < 16 {
            std::fs::write(path, "16").ok()?;
        }
        let fd = memfd(pages * HUGE, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
        // An ordinary mapping reserves the pages: it fails when there are too few.
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped at once.
        let probe = unsafe {
            let len = (pages * HUGE) as usize;
            let at = libc::mmap(std::ptr::null_mut(), len, 3, libc::MAP_SHARED, fd.as_raw_fd(), 0);
            if at != libc::MAP_FAILED {
                libc::munmap(at, len);
            }
            at
        };
        (probe != libc::MAP_FAILED).then_some(fd)
    }

    #[test]
    fn map_share_and_vanish() {
        let Some(fd) = huge_file(4) else {
            println!("no huge pages to be had: not tested");
            return;
        };
        let file = RegionFile::from(fd);
        // As on a PC: two regions in one huge page, and memory above at another distance.
        let table = [
            (region(0, 0xa_0000, 0), file.clone()),
            (region(0xc_0000, HUGE, 0xc_0000), file.clone()),
            (region(0x1_0020_0000, HUGE, 3 * HUGE), file.clone()),
        ];
        let memory = GuestMemory::map(&table).unwrap();
        assert_eq!(memory.page_size(), HUGE as usize);
        for gpa in [0, 0x9_ffff, 0xc_0000, 0xc_0000 + HUGE - 1, 0x1_0020_0000, 0x1_003f_ffff] {
            let slice = memory.slice(gpa, 1).unwrap();
            slice.copy_from(&[gpa as u8 ^ 0x5a]);
            assert_eq!(bytes(slice), [gpa as u8 ^ 0x5a], "{gpa:#x}");
        }
        assert!(memory.slice(0xb_0000, 1).is_none());
        assert!(!memory.faulted());

        ftruncate(file.as_fd(), 3 * HUGE).unwrap();
        let gone = memory.slice(0x1_0020_0000, HUGE as u32).unwrap();
        assert_eq!(bytes(gone), vec![0; HUGE as usize]);
        assert!(memory.faulted());
        // The rest is untouched.
        assert_eq!(bytes(memory.slice(0xc_0000, 1).unwrap()), [0x5a]);
    }
}

/// A table of up to four regions in a small address space, some of them adjacent, sizes not always
/// whole pages.
fn tables() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    // (gap before in pages, size in bytes, page of the file)
    let one = (0_u64..3, 1..4 * PAGE, 0_u64..12);
    prop::collection::vec(one, 1..5).prop_map(|parts| {
        let mut next = 0x4_0000;
        let mut table = Vec::new();
        for (gap, mut size, file_page) in parts {
            let start = next + gap * PAGE;
            // Half of the regions end with a page, so that the next can be adjacent.
            if size % 2 == 0 {
                size = size.next_multiple_of(PAGE);
            }
            table.push((start, size, file_page * PAGE));
            next = (start + size).next_multiple_of(PAGE);
        }
        table
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Against a table of bytes: which addresses exist, and which byte of the file is there.
    #[test]
    fn slices_agree_with_a_plain_model(
        parts in tables(),
        shuffle in any::<prop::sample::Index>(),
        probes in prop::collection::vec((0_u64..24 * PAGE, 0_u32..9 * 4096), 64),
    ) {
        let (file, _) = marked(16 * PAGE);
        let mut table: Vec<_> =
            parts.iter().map(|&(gpa, size, at)| (region(gpa, size, at), file.clone())).collect();
        let turn = shuffle.index(table.len());
        table.rotate_left(turn);
        let memory = GuestMemory::map(&table).unwrap();
        let other = GuestMemory::map(&table).unwrap();

        let first = 0x4_0000 - PAGE;
        let mut model: Vec<Option<u8>> = vec![None; 40 * 4096];
        for &(gpa, size, offset) in &parts {
            for i in 0..size {
                model[(gpa + i - first) as usize] = Some(mark(offset + i));
            }
        }
        let mut checked: Vec<(u64, u32)> =
            probes.iter().map(|&(at, len)| (first + at, len)).collect();
        // The interesting places: around both ends of each region.
        for &(gpa, size, _) in &parts {
            for edge in [gpa, gpa + size] {
                for at in edge - 2..edge + 3 {
                    checked.extend([1, 2, 3, size as u32, size as u32 + 1].map(|len| (at, len)));
                }
            }
        }
        for (gpa, len) in checked.into_iter().filter(|&(_, len)| len > 0) {
            let start = (gpa - first) as usize;
            let expected: Option<Vec<u8>> =
                (start..start + len as usize).map(|i| model.get(i).copied().flatten()).collect();
            let found = memory.slice(gpa, len);
            prop_assert_eq!(found.map(bytes), expected, "{:#x} + {}", gpa, len);
            if let Some(slice) = found {
                prop_assert_eq!(memory.address(slice), Some(gpa));
                prop_assert_eq!(other.address(slice), None);
            }
        }
        prop_assert!(!memory.faulted());
    }
}

/// Where the kernel says at all, it says it of what is there and of nothing else.
#[test]
fn memory_is_on_a_node() {
    let (file, other) = marked(4 * PAGE);
    let memory = GuestMemory::map(&[(region(0x10_0000, 4 * PAGE, 0), file)]).unwrap();
    assert_eq!(memory.node(0), None, "outside the table");
    assert_eq!(memory.node(0x10_0000 + 4 * PAGE), None);
    let nodes = std::fs::read_dir("/sys/devices/system/node");
    let count = nodes.map_or(0, |nodes| {
        let names = nodes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.trim_start_matches("node").parse::<u16>().is_ok()).count()
    });
    if let Some(node) = memory.node(0x10_0000) {
        assert!(count > 1 || node == 0, "node {node} of {count}");
    }
    // Gone under our feet: an error to the kernel, and no fault here.
    ftruncate(&other, PAGE).unwrap();
    assert_eq!(memory.node(0x10_0000 + 2 * PAGE), None);
    assert!(!memory.faulted());
}

#[test]
fn a_hint_needs_no_memory() {
    let (file, truncated) = marked(4 * PAGE);
    let memory = GuestMemory::map(&[(region(2 * PAGE, 4 * PAGE, 0), file)]).unwrap();
    let hint = |gpa| {
        memory.prefetch_write(gpa);
        memory.prefetch_read(gpa);
    };
    hint(2 * PAGE);
    truncated.set_len(0).unwrap();
    [0, 2 * PAGE, 6 * PAGE, 1 << 63, u64::MAX].into_iter().for_each(hint);
    assert!(!memory.faulted(), "a hint touches nothing");
}
