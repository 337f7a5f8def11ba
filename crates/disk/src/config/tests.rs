use super::*;

fn spec() -> DiskSpec {
    DiskSpec {
        capacity: 0x0102_0304_0506,
        block_size: 4096,
        topology: Topology {
            physical_block_exp: 3,
            alignment_offset: 7,
            min_io_size: 0x1112,
            opt_io_size: 0x2122_2324,
        },
        queues: 4,
        read_only: false,
        size_max: 0x10_0200,
        seg_max: 126,
        discard: Some(DiscardLimits { max_sectors: 0x3132_3334, max_ranges: 33, alignment: 8 }),
        write_zeroes: Some(ZeroLimits {
            max_sectors: 0x4142_4344,
            max_ranges: 44,
            may_unmap: true,
        }),
    }
}

/// Field by field of the structure in 5.2.4.
#[test]
fn bytes_are_the_structure_of_the_specification() {
    #[rustfmt::skip]
    let golden = [
        0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0, 0, // 0: capacity
        0x00, 0x02, 0x10, 0x00,                   // 8: size_max
        126, 0, 0, 0,                             // 12: seg_max
        0, 0, 0, 0,                               // 16: geometry
        0x00, 0x10, 0, 0,                         // 20: blk_size
        3, 7, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21, // 24: topology
        1, 0,                                     // 32: writeback, unused0
        4, 0,                                     // 34: num_queues
        0x34, 0x33, 0x32, 0x31,                   // 36: max_discard_sectors
        33, 0, 0, 0,                              // 40: max_discard_seg
        8, 0, 0, 0,                               // 44: discard_sector_alignment
        0x44, 0x43, 0x42, 0x41,                   // 48: max_write_zeroes_sectors
        44, 0, 0, 0,                              // 52: max_write_zeroes_seg
        1, 0, 0, 0,                               // 56: write_zeroes_may_unmap, unused1
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,       // 60: secure erase
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,       // 72: zoned
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(Config::new(spec()).unwrap().bytes(), golden);
}

#[test]
fn what_is_not_offered_is_zero() {
    let plain = DiskSpec {
        queues: 1,
        size_max: 0,
        seg_max: 0,
        discard: None,
        write_zeroes: None,
        ..spec()
    };
    let config = Config::new(plain).unwrap();
    assert_eq!(config.features(), BLK_SIZE | TOPOLOGY | FLUSH | CONFIG_WCE);
    let bytes = config.bytes();
    assert_eq!(bytes[8..20], [0; 12]);
    assert_eq!(bytes[34..], [0; 62]);
}

#[test]
fn features_are_the_bits_of_the_specification() {
    let all = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14;
    assert_eq!(Config::new(spec()).unwrap().features(), all);
    let read_only = Config::new(DiskSpec { read_only: true, ..spec() }).unwrap();
    assert_eq!(read_only.features(), all & !(1 << 13 | 1 << 14) | 1 << 5);
    assert_eq!(read_only.rules().discard, None);
}

/// 5.2.5.2 and 5.2.6.2.
#[test]
fn the_cache_mode_is_that_of_what_was_negotiated() {
    let mut config = Config::new(spec()).unwrap();
    for (driver, writeback) in
        [(0, false), (FLUSH, true), (FLUSH | CONFIG_WCE, true), (CONFIG_WCE, false)]
    {
        config.negotiate(driver);
        assert_eq!(config.rules().writeback, writeback, "{driver:#x}");
        assert_eq!(config.bytes()[WRITEBACK_OFFSET as usize], u8::from(writeback));
    }
}

#[test]
fn a_driver_writes_the_cache_mode_and_nothing_else() {
    let mut config = Config::new(spec()).unwrap();
    config.negotiate(FLUSH);
    assert_eq!(config.write(WRITEBACK_OFFSET, &[0]), Err(BadWrite), "CONFIG_WCE not negotiated");
    config.negotiate(FLUSH | CONFIG_WCE);
    let before = config.bytes();
    let bad: [(u32, &[u8]); 7] = [
        (0, &[0; 8]),
        (31, &[0]),
        (33, &[0]),
        (32, &[2]),
        (32, &[]),
        (32, &[0, 0]),
        (u32::MAX, &[0]),
    ];
    for (offset, bytes) in bad {
        assert_eq!(config.write(offset, bytes), Err(BadWrite), "{offset} {bytes:?}");
        assert_eq!(config.bytes(), before);
    }
    for mode in [0, 1, 0] {
        config.write(WRITEBACK_OFFSET, &[mode]).unwrap();
        assert_eq!(config.bytes()[32], mode);
        assert_eq!(config.rules().writeback, mode == 1);
    }
}

#[test]
fn a_resize_shows_in_the_bytes_and_the_rules() {
    let mut config = Config::new(spec()).unwrap();
    assert_eq!(config.resize(spec().capacity), Ok(false));
    assert_eq!(config.resize(2048), Ok(true));
    assert_eq!(config.bytes()[..8], 2048u64.to_le_bytes());
    assert_eq!(config.rules().capacity, 2048);
    assert_eq!(config.resize(1 << 55), Err(SpecError::Capacity(1 << 55)));
    assert_eq!(config.rules().capacity, 2048);
}

#[test]
fn impossible_disks_are_refused() {
    let new = |spec| Config::new(spec).err();
    let discard = DiscardLimits { max_sectors: 1, max_ranges: 1, alignment: 1 };
    let zeroes = ZeroLimits { max_sectors: 1, max_ranges: 1, may_unmap: false };
    let ranges = |ranges, sectors| Some(SpecError::Ranges { ranges, sectors });
    assert_eq!(new(spec()), None);
    assert_eq!(new(DiskSpec { capacity: 1 << 54, ..spec() }), Some(SpecError::Capacity(1 << 54)));
    for size in [0, 1, 256, 513, 131_072] {
        let bad = Some(SpecError::BlockSize(size));
        assert_eq!(new(DiskSpec { block_size: size, ..spec() }), bad);
    }
    assert_eq!(new(DiskSpec { queues: 0, ..spec() }), Some(SpecError::Queues(0)));
    assert_eq!(new(DiskSpec { queues: 257, ..spec() }), Some(SpecError::Queues(257)));
    assert_eq!(new(DiskSpec { size_max: 100, ..spec() }), Some(SpecError::SizeMax(100)));
    let bad = Some(DiscardLimits { max_ranges: 65, ..discard });
    assert_eq!(new(DiskSpec { discard: bad, ..spec() }), ranges(65, 1));
    let bad = Some(DiscardLimits { alignment: 0, ..discard });
    assert_eq!(new(DiskSpec { discard: bad, ..spec() }), Some(SpecError::Alignment));
    let bad = Some(ZeroLimits { max_sectors: 0, ..zeroes });
    assert_eq!(new(DiskSpec { write_zeroes: bad, ..spec() }), ranges(1, 0));
}

#[test]
fn a_guest_that_asked_for_writethrough_keeps_it() {
    let mut config = Config::new(spec()).unwrap();
    let driver = config.features();
    config.negotiate(driver);
    assert!(config.rules().writeback && !config.asked_writethrough());
    config.write(WRITEBACK_OFFSET, &[0]).unwrap();
    assert!(config.asked_writethrough());
    // It comes back, to this device or to its successor.
    config.negotiate(driver);
    assert!(!config.rules().writeback);
    let mut successor = Config::new(spec()).unwrap();
    successor.keep_writethrough();
    successor.negotiate(driver);
    assert!(!successor.rules().writeback);
    successor.write(WRITEBACK_OFFSET, &[1]).unwrap();
    assert!(successor.rules().writeback && !successor.asked_writethrough());
}
