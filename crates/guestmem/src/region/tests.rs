use super::*;

const PAGE: u64 = BASE_PAGE;
const HUGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

fn spec(guest_addr: u64, size: u64, mmap_offset: u64) -> RegionSpec {
    // User addresses far from each other, whatever the guest addresses are.
    RegionSpec {
        guest_addr,
        size,
        user_addr: 0x7000_0000_0000 + guest_addr % (1 << 45),
        mmap_offset,
    }
}

fn file(id: u64, page: u64) -> Backing {
    Backing { id: (1, id), page, len: 1 << 50 }
}

/// What both checks say of a table, as text that names the variant.
fn verdict(table: &[(RegionSpec, Backing)]) -> String {
    let specs: Vec<RegionSpec> = table.iter().map(|(spec, _)| *spec).collect();
    match check_specs(&specs).and_then(|()| plan(table)) {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

#[test]
fn counts_and_sizes() {
    assert_eq!(verdict(&[]), "NoRegions");
    let many: Vec<_> = (0..510).map(|i| (spec(i * PAGE, PAGE, i * PAGE), file(1, PAGE))).collect();
    assert_eq!(verdict(&many), "TooManyRegions { count: 510 }");
    assert_eq!(verdict(&many[..509]), "ok");
    assert_eq!(verdict(&[(spec(0, 0, 0), file(1, PAGE))]), "EmptyRegion { region: 0 }");
}

#[test]
fn overflows() {
    let f = file(1, PAGE);
    let top = u64::MAX - PAGE + 1;
    let guest = RegionSpec { guest_addr: top, size: PAGE, user_addr: 0, mmap_offset: 0 };
    assert!(verdict(&[(guest, f)]).contains("guest address"));
    let user = RegionSpec { guest_addr: 0, size: PAGE, user_addr: top, mmap_offset: 0 };
    assert!(verdict(&[(user, f)]).contains("user address"));
    for mmap_offset in [top, i64::MAX as u64, (i64::MAX as u64) - PAGE + 1] {
        let offset = RegionSpec { guest_addr: 0, size: PAGE, user_addr: 0, mmap_offset };
        assert!(verdict(&[(offset, f)]).contains("file offset"), "{mmap_offset:#x}");
    }
    let size = RegionSpec { guest_addr: 1, size: u64::MAX, user_addr: 0, mmap_offset: 0 };
    assert!(verdict(&[(size, f)]).starts_with("Overflow"));
}

#[test]
fn overlaps_in_either_address_space() {
    let f = file(1, PAGE);
    let a = RegionSpec { guest_addr: 0, size: 2 * PAGE, user_addr: 0x10_0000, mmap_offset: 0 };
    let b = RegionSpec { guest_addr: PAGE, user_addr: 0x20_0000, ..a };
    assert!(verdict(&[(a, f), (b, f)]).contains("Overlap { first: 0, second: 1, field: \"guest"));
    let c = RegionSpec { guest_addr: 2 * PAGE, user_addr: 0x10_1000, mmap_offset: 2 * PAGE, ..a };
    assert!(verdict(&[(a, f), (c, f)]).contains("field: \"user"));
    // One inside the other, given first or last.
    let d = RegionSpec { guest_addr: 0, size: 8 * PAGE, user_addr: 0x40_0000, mmap_offset: 0 };
    assert!(verdict(&[(b, f), (d, f)]).contains("Overlap"));
    assert!(verdict(&[(d, f), (b, f)]).contains("Overlap"));
}

#[test]
fn span_is_limited() {
    let f = file(1, PAGE);
    let far = |at: u64| [(spec(0, PAGE, 0), f), (spec(at, PAGE, 0x8000), f)];
    assert_eq!(verdict(&far(MAX_SPAN - PAGE)), "ok");
    assert!(verdict(&far(MAX_SPAN)).contains("SpanTooLarge"));
    assert!(verdict(&far(u64::MAX - 2 * PAGE + 1)).contains("SpanTooLarge"));
}

#[test]
fn file_must_reach_the_last_page() {
    let short = |len, page| Backing { len, ..file(1, page) };
    let table = |size, backing| [(spec(0, size, HUGE), backing)];
    assert_eq!(verdict(&table(PAGE, short(HUGE + PAGE, PAGE))), "ok");
    // The last page may be partly behind the end of the file: it is there all the same.
    assert_eq!(verdict(&table(PAGE, short(HUGE + 1, PAGE))), "ok");
    assert!(verdict(&table(PAGE, short(HUGE, PAGE))).contains("FileTooShort"));
    assert!(verdict(&table(PAGE + 1, short(HUGE + PAGE, PAGE))).contains("FileTooShort"));
    assert!(verdict(&table(PAGE, short(0, PAGE))).contains("FileTooShort"));
    assert!(verdict(&table(HUGE + 1, short(2 * HUGE, HUGE))).contains("FileTooShort"));
}

#[test]
fn small_pages_need_matching_offsets_in_the_page() {
    assert!(verdict(&[(spec(0, PAGE, 1), file(1, PAGE))]).contains("Misaligned"));
    assert!(verdict(&[(spec(512, PAGE, 0), file(1, PAGE))]).contains("Misaligned"));
    assert_eq!(verdict(&[(spec(512, PAGE, 512), file(1, PAGE))]), "ok");
    assert_eq!(verdict(&[(spec(7 * PAGE, PAGE, 3 * PAGE), file(1, PAGE))]), "ok");
}

#[test]
fn one_huge_page_two_regions() {
    let shared = |second: RegionSpec, id| {
        // A PC: conventional memory below the VGA hole, the rest above it, all in the same huge
        // page.
        verdict(&[(spec(0, 0xa_0000, 0), file(1, HUGE)), (second, file(id, HUGE))])
    };
    assert_eq!(shared(spec(0xc_0000, HUGE, 0xc_0000), 1), "ok");
    assert!(shared(spec(0xc_0000, HUGE, 0xc_0000), 2).contains("SharedPage"));
    assert!(shared(spec(0xc_0000, HUGE, HUGE + 0xc_0000), 1).contains("SharedPage"));
    assert!(shared(spec(0xc_0000, HUGE, 0xb_0000), 1).contains("Misaligned"));
    // A small-page region whose neighbour's huge page reaches over it, though the regions do not
    // meet.
    let small = (spec(HUGE + PAGE, PAGE, 0), file(2, PAGE));
    let half = (spec(0, HUGE + PAGE, 0), file(1, HUGE));
    assert!(verdict(&[half, small]).contains("SharedPage"));
    assert!(verdict(&[small, half]).contains("SharedPage"));
    // The same with a third region, which begins in the same huge page and ends earlier.
    let (first, large) = (spec(0, PAGE, 0), spec(HUGE / 2, 2 * HUGE, HUGE / 2));
    let (first, large) = ((first, file(1, HUGE)), (large, file(1, HUGE)));
    let small = (spec(5 * HUGE / 2, PAGE, 0), file(2, PAGE));
    assert_eq!(verdict(&[first, large]), "ok");
    assert!(verdict(&[first, large, small]).contains("SharedPage"));
    assert!(verdict(&[large, first, small]).contains("SharedPage"));
}

#[test]
fn big_virtual_machine_in_gigabyte_pages() {
    let f = file(1, GIB);
    let low = spec(0, 3 * GIB, 0);
    let high = spec(4 * GIB, 61 * GIB, 3 * GIB);
    let table = [(low, f), (high, f)];
    let plan = plan(&table).unwrap();
    assert_eq!((plan.span, plan.align, plan.page), (65 * GIB, GIB, GIB));
    assert_eq!(plan.windows.len(), 2);
    let at: Vec<_> = plan.placements.iter().map(|p| (p.at, p.len, p.file_offset)).collect();
    assert_eq!(at, [(0, 3 * GIB, 0), (4 * GIB, 61 * GIB, 3 * GIB)]);
    let odd = spec(4 * GIB + HUGE, GIB, 3 * GIB);
    assert!(verdict(&[(low, f), (odd, f)]).contains("Misaligned { region: 1"));
}

/// Every mapping is at a multiple of its page size, whatever the reservation's address.
#[test]
fn placements_are_aligned() {
    let table = [
        (spec(0x1_0020_0000, 3 * HUGE, 0), file(1, HUGE)),
        (spec(0x1_0100_0000, 5 * PAGE, 3 * PAGE), file(2, PAGE)),
        (spec(0x2_4030_0000, HUGE, HUGE + 0x10_0000), file(3, HUGE)),
        (spec(0x7_0000_0000, GIB, GIB), file(4, GIB)),
    ];
    let plan = plan(&table).unwrap();
    assert_eq!((plan.align, plan.page), (GIB, PAGE));
    for place in &plan.placements {
        let (spec, backing) = table[place.region];
        assert_eq!((plan.remainder + place.at) % backing.page, 0);
        assert_eq!(place.len % backing.page, 0);
        assert_eq!(place.file_offset % backing.page, 0);
        // The region's first byte is where the pointer arithmetic says.
        let byte = i128::from(spec.guest_addr) - plan.origin;
        assert_eq!(byte, i128::from(place.at + spec.mmap_offset - place.file_offset));
    }
}

#[test]
fn adjacent_regions_make_one_window() {
    let f = file(1, PAGE);
    let table = [
        (spec(0x3000, 0x1000, 0x5000), f),
        (spec(0x1000, 0x2000, 0x8000), f),
        (spec(0x5000, 0x1000, 0), f),
    ];
    let plan = plan(&table).unwrap();
    let expected = [Window { start: 0x1000, len: 0x3000 }, Window { start: 0x5000, len: 0x1000 }];
    assert_eq!(plan.windows, expected);
}
