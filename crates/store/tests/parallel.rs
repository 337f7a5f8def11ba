//! Many threads on one qcow2 image, and the way past its tables.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::os::unix::fs::MetadataExt;
use std::sync::RwLock;

use common::{Place, name, pattern, qemu_img, read, write};
use store::{Access, Format, Image};

const SIZE: u64 = 16 << 20;
const SECTOR: u64 = 512;
const THREADS: u64 = 4;

/// A clone of a raw image with a pattern, open for writing.
fn clone(place: &Place) -> Image {
    place.catalog.create(&name("base"), SIZE, Format::Raw).unwrap();
    let base = place.open("base", Access::Write).unwrap();
    write(&base, 0, &pattern(1, SIZE as usize), false);
    drop(base);
    place.catalog.clone_image(&name("base"), &name("disk")).unwrap();
    place.open("disk", Access::Write).unwrap()
}

fn qemu_img_finds(place: &Place, model: &[u8]) {
    let (file, plain) = (place.file("disk", Format::Qcow2), place.path("plain"));
    std::fs::write(&plain, model).unwrap();
    let file = file.to_str().unwrap();
    qemu_img(&["check", "-f", "qcow2", file]);
    qemu_img(&["compare", "-f", "qcow2", "-F", "raw", file, plain.to_str().unwrap()]);
}

#[test]
fn the_slow_way_teaches_the_direct_one() {
    let place = Place::new();
    let image = clone(&place);
    let Image::Qcow2(disk) = &image else { unreachable!() };
    let mut model = pattern(1, SIZE as usize);
    assert!(disk.direct(0, 4096, false).is_none(), "nothing is known");
    assert!(!read(&image, 0, 4096, true).1);
    // One slow read taught all around it: the base is one piece.
    assert!(read(&image, 0, SIZE as usize, true).1);
    assert!(read(&image, 0, SIZE as usize, true).0 == model);
    assert!(disk.direct(0, 4096, true).is_none(), "a base is not written");
    assert!(
        disk.direct(SIZE - 512, 1024, false).is_none() && disk.direct(SIZE, 1, false).is_none()
    );

    for round in 0..2 {
        let data = pattern(round + 5, 200_000);
        let direct = write(&image, 65536, &data, true);
        assert_eq!(direct, round == 1, "the first write makes the place of the second");
        model[65536..65536 + data.len()].copy_from_slice(&data);
    }
    assert!(disk.direct(0, 65537, false).is_none(), "two files");
    for direct in [true, false] {
        for at in (0..SIZE).step_by(1 << 16) {
            let (data, _) = read(&image, at, 1 << 16, direct);
            assert!(data == model[at as usize..at as usize + (1 << 16)], "{at}");
        }
    }

    disk.write_zeroes(65536, 65536, false).unwrap();
    assert!(disk.direct(65536, 512, false).is_none() && disk.direct(65536, 512, true).is_none());
    model[65536..131_072].fill(0);
    disk.discard(131_072, 65536).unwrap();
    assert!(disk.direct(131_072, 512, true).is_none());
    model[131_072..196_608].copy_from_slice(&read(&image, 131_072, 65536, false).0);
    disk.resize(SIZE).unwrap();
    assert!(disk.direct(0, 512, false).is_none());
    drop(image);
    qemu_img_finds(&place, &model);
}

#[test]
fn what_is_not_needed_takes_no_space_on_the_host() {
    let place = Place::new();
    let image = clone(&place);
    let Image::Qcow2(disk) = &image else { unreachable!() };
    let mut model = pattern(1, SIZE as usize);
    let allocated = || std::fs::metadata(place.file("disk", Format::Qcow2)).unwrap().blocks() * 512;
    write(&image, 0, &pattern(2, 8 << 20), false);
    model[..8 << 20].copy_from_slice(&pattern(2, 8 << 20));
    let full = allocated();
    assert!(full > 8 << 20, "{full}");
    // Cut in the middle of clusters: of those, the rest is still there.
    let (begin, end) = ((1 << 20) + 4096, (5 << 20) + 512);
    disk.discard(begin as u64, (end - begin) as u64).unwrap();
    model[begin..end].copy_from_slice(&read(&image, begin as u64, end - begin, false).0);
    let after = allocated();
    assert!(after + (3 << 20) + (7 << 17) <= full, "{after} of {full}");
    disk.write_zeroes(6 << 20, 1 << 20, true).unwrap();
    model[6 << 20..7 << 20].fill(0);
    assert!(allocated() + (1 << 20) <= after, "{} of {after}", allocated());
    // The clusters are used again, with nothing else in the way.
    let data = pattern(3, 2 << 20);
    write(&image, 2 << 20, &data, false);
    model[2 << 20..4 << 20].copy_from_slice(&data);
    // What is kept ready is not given back.
    let kept = allocated();
    disk.write_zeroes(2 << 20, 1 << 20, false).unwrap();
    model[2 << 20..3 << 20].fill(0);
    assert_eq!(allocated(), kept);
    drop(image);
    qemu_img_finds(&place, &model);
}

#[test]
fn a_reader_of_a_snapshot_goes_through_all_layers_directly() {
    let place = Place::new();
    drop(clone(&place));
    let mut model = pattern(1, SIZE as usize);
    for layer in 0..4 {
        let image = place.open("disk", Access::Write).unwrap();
        let at = layer as usize * (1 << 20);
        let data = pattern(layer + 50, 3 << 19);
        write(&image, at as u64, &data, false);
        model[at..at + data.len()].copy_from_slice(&data);
        drop(image);
        place.catalog.snapshot(&name("disk"), &format!("s{layer}")).unwrap();
    }
    let image = place.open("disk", Access::Read).unwrap();
    let mut direct = 0;
    for round in 0..2 {
        for at in (0..SIZE).step_by(1 << 16) {
            let (data, was) = read(&image, at, 1 << 16, round == 1);
            assert!(data == model[at as usize..at as usize + (1 << 16)], "{at}");
            direct += u64::from(was);
        }
    }
    assert_eq!(direct, SIZE >> 16, "all of them");
}

#[test]
fn threads_that_share_clusters_lose_nothing() {
    let place = Place::new();
    let image = clone(&place);
    let model = RwLock::new(pattern(1, SIZE as usize));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (image, model) = (&image, &model);
            scope.spawn(move || {
                let mut own = Vec::new();
                for round in 0..1500_u64 {
                    // Every fourth sector is this thread's, so all share all clusters.
                    let pick = round.wrapping_mul(2_654_435_761) % (SIZE / SECTOR / THREADS);
                    let at = (pick * THREADS + thread) * SECTOR;
                    let data = pattern(round * THREADS + thread, SECTOR as usize);
                    write(image, at, &data, round % 3 > 0);
                    assert!(read(image, at, SECTOR as usize, round % 2 > 0).0 == data, "at {at}");
                    own.push((at as usize, data));
                    if round % 100 == 0 {
                        let Image::Qcow2(disk) = image else { unreachable!() };
                        disk.flush().unwrap();
                    }
                }
                let mut model = model.write().unwrap();
                for (at, data) in own {
                    model[at..at + data.len()].copy_from_slice(&data);
                }
            });
        }
    });
    let model = model.into_inner().unwrap();
    assert!(read(&image, 0, SIZE as usize, false).0 == model);
    drop(image);
    qemu_img_finds(&place, &model);
}

#[test]
fn threads_that_discard_beside_others_that_write_harm_nobody() {
    let place = Place::new();
    let image = clone(&place);
    let Image::Qcow2(disk) = &image else { unreachable!() };
    let part = SIZE / THREADS;
    let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let first = thread * part;
                    let mut model =
                        pattern(1, SIZE as usize)[first as usize..(first + part) as usize].to_vec();
                    for round in 0..400_u64 {
                        let spot = round.wrapping_mul(2_654_435_761) % (part / 4096) * 4096;
                        let len = (4096 << (round % 7)).min(part - spot);
                        let range = spot as usize..(spot + len) as usize;
                        match round % 5 {
                            0 => {
                                disk.discard(first + spot, len).unwrap();
                                disk.read(first + spot, &mut model[range]).unwrap();
                            }
                            1 => {
                                disk.write_zeroes(first + spot, len, round % 2 == 0).unwrap();
                                model[range].fill(0);
                            }
                            _ => {
                                let data = pattern(round, len as usize);
                                disk.write(first + spot, &data).unwrap();
                                model[range].copy_from_slice(&data);
                            }
                        }
                        let mut data = vec![0; len as usize];
                        disk.read(first + spot, &mut data).unwrap();
                        assert!(data == model[spot as usize..(spot + len) as usize]);
                    }
                    model
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let model = parts.concat();
    drop(image);
    qemu_img_finds(&place, &model);
}
