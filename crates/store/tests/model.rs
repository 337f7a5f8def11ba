//! Images against a vector of bytes, and against qemu-img.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Place, name, pattern, qemu_img, read, write};
use proptest::prelude::*;
use store::{Access, Cache, Format, Image};

/// Largest disk of these tests: several pages of L2 tables would take too long, clusters do not.
const MAX: u64 = 2 << 20;
const SECTOR: u64 = 512;

#[derive(Clone, Debug)]
enum Op {
    Read { offset: u64, len: u64, direct: bool },
    Write { offset: u64, len: u64, seed: u64, direct: bool },
    Discard { offset: u64, len: u64 },
    Zeroes { offset: u64, len: u64, unmap: bool },
    Resize { size: u64 },
    Flush,
    Reopen,
}

/// How the image under test came to be.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Raw,
    Qcow2,
    OnRaw,
    OnQcow2,
    OnSnapshots,
}

fn sectors() -> impl Strategy<Value = u64> {
    (0..MAX / SECTOR).prop_map(|n| n * SECTOR)
}

fn lens() -> impl Strategy<Value = u64> {
    // Small ones, whole clusters, and many clusters.
    prop_oneof![
        (1..17_u64).prop_map(|n| n * SECTOR),
        (1..5_u64).prop_map(|n| n << 16),
        (1..1024_u64).prop_map(|n| n * SECTOR)
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let range = || (prop_oneof![sectors(), (0..32_u64).prop_map(|n| n << 16)], lens());
    let op = prop_oneof![
        4 => (range(), any::<bool>())
            .prop_map(|((offset, len), direct)| Op::Read { offset, len, direct }),
        6 => (range(), any::<u64>(), any::<bool>())
            .prop_map(|((offset, len), seed, direct)| Op::Write { offset, len, seed, direct }),
        2 => range().prop_map(|(offset, len)| Op::Discard { offset, len }),
        2 => (range(), any::<bool>())
            .prop_map(|((offset, len), unmap)| Op::Zeroes { offset, len, unmap }),
        1 => (1..=MAX / SECTOR).prop_map(|n| Op::Resize { size: n * SECTOR }),
        1 => Just(Op::Flush),
        1 => Just(Op::Reopen),
    ];
    prop::collection::vec(op, 1..60)
}

fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Raw),
        Just(Shape::Qcow2),
        Just(Shape::OnRaw),
        Just(Shape::OnQcow2),
        Just(Shape::OnSnapshots)
    ]
}

/// Makes the image `disk` of `size` bytes; returns its content. What a base has at every second
/// spot is not zero.
fn make(place: &Place, shape: Shape, size: u64) -> Vec<u8> {
    let mut model = vec![0; size as usize];
    let mut fill = |image: &str, seed: u64, step: usize| {
        let open = place.open(image, Access::Write).unwrap();
        for at in (seed as usize * 40_000..size as usize).step_by(step) {
            let at = at / 512 * 512;
            let len = 50_000.min(size as usize - at) / 512 * 512;
            let data = pattern(seed + at as u64, len);
            write(&open, at as u64, &data, false);
            model[at..at + len].copy_from_slice(&data);
        }
    };
    let (catalog, disk, base) = (&place.catalog, name("disk"), name("base"));
    match shape {
        Shape::Raw => catalog.create(&disk, size, Format::Raw).unwrap(),
        Shape::Qcow2 => catalog.create(&disk, size, Format::Qcow2).unwrap(),
        Shape::OnRaw | Shape::OnQcow2 => {
            let format = if matches!(shape, Shape::OnRaw) { Format::Raw } else { Format::Qcow2 };
            catalog.create(&base, size, format).unwrap();
            fill("base", 1, 130_000);
            catalog.clone_image(&base, &disk).unwrap();
        }
        Shape::OnSnapshots => {
            catalog.create(&disk, size, Format::Raw).unwrap();
            fill("disk", 1, 300_000);
            catalog.snapshot(&disk, "one").unwrap();
            fill("disk", 2, 400_000);
            catalog.snapshot(&disk, "two").unwrap();
        }
    }
    model
}

/// Shortens a range to the disk; `None` if nothing is left.
fn clip(offset: u64, len: u64, model: &[u8]) -> Option<(u64, std::ops::Range<usize>)> {
    let size = model.len() as u64;
    let len = len.min(size.checked_sub(offset)?);
    (len > 0).then(|| (len, offset as usize..(offset + len) as usize))
}

fn play(shape: Shape, size: u64, ops: &[Op], cache: Cache) -> Result<(), TestCaseError> {
    let place = Place::new();
    let mut model = make(&place, shape, size);
    let open = || place.open_with("disk", Access::Write, cache).unwrap();
    let mut image = Some(open());
    // Direct requests past the page cache need aligned buffers: the engine has them.
    let cached = cache == Cache::PageCache;
    for op in ops {
        let disk = image.as_ref().unwrap();
        match *op {
            Op::Read { offset, len, direct } => {
                if let Some((len, range)) = clip(offset, len, &model) {
                    let (data, _) = read(disk, offset, len as usize, direct && cached);
                    prop_assert!(data == model[range], "{op:?}");
                }
            }
            Op::Write { offset, len, seed, direct } => {
                if let Some((len, range)) = clip(offset, len, &model) {
                    let data = pattern(seed, len as usize);
                    write(disk, offset, &data, direct && cached);
                    model[range].copy_from_slice(&data);
                }
            }
            Op::Discard { offset, len } => {
                if let (Some((len, range)), Image::Qcow2(qcow2)) = (clip(offset, len, &model), disk)
                {
                    qcow2.discard(offset, len).unwrap();
                    // What was discarded is one thing or the other, and stays that.
                    let (data, _) = read(disk, offset, len as usize, false);
                    model[range].copy_from_slice(&data);
                }
            }
            Op::Zeroes { offset, len, unmap } => {
                if let (Some((len, range)), Image::Qcow2(qcow2)) = (clip(offset, len, &model), disk)
                {
                    qcow2.write_zeroes(offset, len, unmap).unwrap();
                    model[range].fill(0);
                }
            }
            Op::Resize { size } => {
                disk.resize(size).unwrap();
                model.resize(size as usize, 0);
                prop_assert_eq!(disk.size(), size);
            }
            Op::Flush => {
                if let Image::Qcow2(qcow2) = disk {
                    qcow2.flush().unwrap();
                }
            }
            Op::Reopen => {
                drop(image.take());
                image = Some(open());
            }
        }
    }
    for direct in [true, false] {
        let (data, _) = read(image.as_ref().unwrap(), 0, model.len(), direct && cached);
        prop_assert!(data == model, "in the end, direct: {direct}");
    }
    drop(image);
    let report = place.catalog.check(&name("disk")).unwrap();
    prop_assert_eq!((report.errors, report.leaks), (0, 0), "{:?}", report);
    agree_with_qemu_img(&place, &model);
    Ok(())
}

/// qemu-img finds the image sound and the same as the model.
fn agree_with_qemu_img(place: &Place, model: &[u8]) {
    let shown = place.catalog.show(&name("disk")).unwrap().summary;
    assert_eq!(shown.size, model.len() as u64);
    let file = place.file("disk", shown.format);
    let (file, format) = (file.to_str().unwrap(), shown.format.as_str());
    if shown.format == Format::Qcow2 {
        qemu_img(&["check", "-f", format, file]);
    }
    let plain = place.path("model");
    std::fs::write(&plain, model).unwrap();
    qemu_img(&["compare", "-f", format, "-F", "raw", file, plain.to_str().unwrap()]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        max_shrink_iters: 300,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn an_image_is_a_vector_of_bytes(
        shape in shapes(),
        size in (1..=MAX / SECTOR).prop_map(|n| n * SECTOR),
        ops in ops(),
    ) {
        play(shape, size, &ops, Cache::PageCache)?;
    }

    #[test]
    fn so_it_is_past_the_page_cache(
        shape in shapes().prop_filter("its engine does that", |s| !matches!(s, Shape::Raw)),
        size in (1..=MAX / SECTOR).prop_map(|n| n * SECTOR),
        ops in ops(),
    ) {
        play(shape, size, &ops, Cache::Direct)?;
    }
}

/// There is no whole cluster of it, and most of its only one has to stay.
#[test]
fn a_part_of_an_image_smaller_than_a_cluster_is_zeroed() {
    for shape in [Shape::OnRaw, Shape::Qcow2] {
        for (offset, unmap) in [(0, false), (0, true), (1024, false), (3072, true)] {
            let ops = [
                Op::Write { offset: 0, len: 3584, seed: 7, direct: false },
                Op::Zeroes { offset, len: 512, unmap },
                Op::Read { offset: 0, len: 3584, direct: false },
            ];
            for cache in [Cache::PageCache, Cache::Direct] {
                play(shape, 3584, &ops, cache).unwrap();
            }
        }
    }
}
