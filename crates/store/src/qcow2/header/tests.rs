use std::io::Write;

use super::*;

/// A version 3 header of a disk of 1 MiB as imago and qemu-img write it, in a file of 4 clusters.
fn sound() -> Vec<u8> {
    let mut bytes = vec![0; 4 << 16];
    for (at, value) in [(0, MAGIC), (4, 3), (20, 16), (36, 1), (56, 1), (96, 4), (100, 104)] {
        set32(&mut bytes, at, value);
    }
    for (at, value) in [(24, 1 << 20), (40, 3 << 16), (48, 1 << 16)] {
        set64(&mut bytes, at, value);
    }
    bytes
}

fn set32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn set64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

fn read(bytes: &[u8]) -> Result<Header, HeaderError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Header::read(&file)
}

#[test]
fn a_sound_header_is_read() {
    let header = read(&sound()).unwrap();
    let expected = Header {
        cluster_bits: 16,
        size: 1 << 20,
        l1_offset: 3 << 16,
        l1_entries: 1,
        refcount_offset: 1 << 16,
        refcount_len: 1 << 16,
        refcount_order: 4,
        backing: None,
    };
    assert_eq!(header, expected);
}

#[test]
fn damaged_headers_are_refused_with_a_reason() {
    type Damage = fn(&mut Vec<u8>);
    let table: &[(&str, Damage, &str)] = &[
        ("magic", |b| b[0] = 0, "not a qcow2"),
        ("empty", Vec::clear, "too short"),
        ("cut in version 2", |b| b.truncate(71), "too short"),
        ("cut in version 3", |b| b.truncate(100), "too short"),
        ("version 1", |b| set32(b, 4, 1), "version 1"),
        ("version 4", |b| set32(b, 4, 4), "version 4"),
        ("cluster bits 8", |b| set32(b, 20, 8), "clusters"),
        ("cluster bits 63", |b| set32(b, 20, 63), "clusters"),
        ("cluster bits all", |b| set32(b, 20, u32::MAX), "clusters"),
        ("encrypted", |b| set32(b, 32, 1), "encrypted"),
        ("LUKS", |b| set32(b, 32, 2), "encrypted"),
        ("snapshots", |b| set32(b, 60, 1), "snapshots"),
        ("huge L1", |b| set32(b, 36, u32::MAX), "L1"),
        ("small L1", |b| set32(b, 36, 0), "L1"),
        ("L1 behind the end", |b| set64(b, 40, 1 << 40), "L1 table"),
        ("L1 wraps", |b| set64(b, 40, u64::MAX << 16), "L1 table"),
        ("L1 in the header", |b| set64(b, 40, 0), "L1 table"),
        ("L1 not aligned", |b| set64(b, 40, 3 << 16 | 512), "L1 table"),
        ("size too large for L1", |b| set64(b, 24, u64::MAX), "L1"),
        ("no refcounts", |b| set32(b, 56, 0), "refcount table"),
        ("huge refcount table", |b| set32(b, 56, u32::MAX), "refcount table"),
        ("refcounts behind the end", |b| set64(b, 48, 1 << 50), "refcount table"),
        ("refcounts in the header", |b| set64(b, 48, 0), "refcount table"),
        ("refcounts of 128 bits", |b| set32(b, 96, 7), "refcounts"),
        ("refcounts of 2^4G bits", |b| set32(b, 96, u32::MAX), "refcounts"),
        ("dirty", |b| set64(b, 72, 1), "not closed"),
        ("corrupt", |b| set64(b, 72, 2), "corrupt"),
        ("external data", |b| set64(b, 72, 4), "another file"),
        ("zstd", |b| set64(b, 72, 8), "zlib"),
        ("subclusters", |b| set64(b, 72, 16), "subclusters"),
        ("unknown feature", |b| set64(b, 72, 1 << 40), "unknown"),
        ("short header", |b| set32(b, 100, 96), "header of"),
        ("odd header", |b| set32(b, 100, 105), "header of"),
        ("long header", |b| set32(b, 100, u32::MAX), "header of"),
        ("long backing name", |b| (set64(b, 8, 512), set32(b, 16, 1024)).0, "backing"),
        ("backing behind", |b| (set64(b, 8, u64::MAX), set32(b, 16, 1)).0, "backing"),
        ("backing over the end", |b| (set64(b, 8, 0xffff), set32(b, 16, 2)).0, "backing"),
        (
            "backing not text",
            |b| {
                set64(b, 8, 512);
                set32(b, 16, 1);
                b[512] = 0xff;
            },
            "UTF-8",
        ),
        ("long extension", |b| (set32(b, 104, 7), set32(b, 108, u32::MAX)).0, "extension"),
    ];
    for (name, damage, reason) in table {
        let mut bytes = sound();
        damage(&mut bytes);
        match read(&bytes) {
            Err(HeaderError::Flaw(text)) => assert!(text.contains(reason), "{name}: {text}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn the_backing_file_is_read_in_both_versions() {
    for version in [2, 3] {
        let mut bytes = sound();
        set32(&mut bytes, 4, version);
        let at = if version == 2 { 72 } else { 104 };
        set32(&mut bytes, at, EXTENSION_BACKING_FORMAT);
        set32(&mut bytes, at + 4, 3);
        bytes[at + 8..at + 11].copy_from_slice(b"raw");
        set64(&mut bytes, 8, 512);
        set32(&mut bytes, 16, 11);
        bytes[512..523].copy_from_slice(b"/etc/passwd");
        if version == 2 {
            bytes[88..512].fill(0);
        }
        let backing = read(&bytes).unwrap().backing.unwrap();
        assert_eq!(
            (backing.file.as_str(), backing.format.as_deref()),
            ("/etc/passwd", Some("raw"))
        );
    }
}

proptest::proptest! {
    #[test]
    fn no_header_makes_it_panic(at in 0..160_usize, value: u64, version in 2..4_u32) {
        let mut bytes = sound();
        set32(&mut bytes, 4, version);
        set64(&mut bytes, at, value);
        if let Ok(header) = read(&bytes) {
            proptest::prop_assert!(header.l1_entries * 8 <= MAX_L1);
            proptest::prop_assert!(header.refcount_len <= MAX_REFCOUNT_TABLE);
        }
    }
}
