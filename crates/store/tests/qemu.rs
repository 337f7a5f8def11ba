//! Images that qemu-img made come in, ours are understood by it, and nobody's header opens a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use common::{Place, go_on, name, pattern, qemu_img, read, write};
use store::{Access, Cache, Digest, Export, Format, Image, Import, StoreError};

const SIZE: u64 = 8 << 20;

/// A raw file with data and holes.
fn sparse(path: &Path, size: u64) {
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    for at in [0, 70_000, 1 << 20, 3 << 20, size - 5000] {
        file.write_all_at(&pattern(at, 5000), at).unwrap();
    }
}

fn same(place: &Place, image: &str, format: Format, other: &Path, kind: &str) {
    let file = place.file(image, format);
    let (file, other) = (file.to_str().unwrap(), other.to_str().unwrap());
    qemu_img(&["compare", "-f", format.as_str(), "-F", kind, file, other]);
    if format == Format::Qcow2 {
        qemu_img(&["check", "-f", "qcow2", file]);
    }
    assert!(place.catalog.check(&name(image)).unwrap().is_sound());
}

#[test]
fn images_made_by_qemu_img_are_imported() {
    let place = Place::new();
    let plain = place.path("plain");
    sparse(&plain, SIZE);
    let raw = plain.to_str().unwrap();
    let kinds = [
        "cluster_size=512",
        "cluster_size=4096",
        "cluster_size=65536",
        "cluster_size=2M",
        "compat=0.10",
        "compat=0.10,cluster_size=512",
        "refcount_bits=1",
        "refcount_bits=64",
        "lazy_refcounts=on",
        "preallocation=metadata",
    ];
    for (index, options) in kinds.iter().enumerate() {
        for compressed in [false, true] {
            if compressed && options.contains("preallocation") {
                continue;
            }
            let source = place.path(&format!("source{index}{compressed}"));
            let mut args = vec!["convert", "-f", "raw", "-O", "qcow2", "-o", options];
            args.extend(compressed.then_some("-c"));
            args.extend([raw, source.to_str().unwrap()]);
            qemu_img(&args);
            for format in [Format::Qcow2, Format::Raw] {
                let image = format!("i{index}-{compressed}-{format}");
                let imported = place.import(&source, &image, Format::Qcow2, format).unwrap();
                assert_eq!(imported.size, SIZE);
                same(&place, &image, format, &plain, "raw");
            }
        }
    }
}

#[test]
fn images_go_out_and_in_without_their_holes() {
    let place = Place::new();
    let plain = place.path("plain");
    sparse(&plain, 1 << 30);
    for format in [Format::Raw, Format::Qcow2] {
        let image = format.as_str();
        place.import(&plain, image, Format::Raw, format).unwrap();
        same(&place, image, format, &plain, "raw");
        let allocated = place.catalog.show(&name(image)).unwrap().summary.allocated;
        assert!(allocated < 2 << 20, "{image} takes {allocated} bytes");
        for to in [Format::Raw, Format::Qcow2] {
            let out = place.export(image, &format!("{image}-{to}"), to).unwrap();
            assert!(out.metadata().unwrap().blocks() * 512 < 2 << 20, "{image} to {to}");
            same(&place, image, format, &out, to.as_str());
        }
    }
}

#[test]
fn clones_and_snapshots_are_understood_by_qemu_img() {
    let place = Place::new();
    let plain = place.path("plain");
    sparse(&plain, SIZE);
    place.import(&plain, "base", Format::Raw, Format::Raw).unwrap();
    place.catalog.clone_image(&name("base"), &name("a")).unwrap();
    same(&place, "a", Format::Qcow2, &plain, "raw");
    let cost = place.catalog.show(&name("a")).unwrap().summary.allocated;
    assert!(cost <= 300 << 10, "a clone costs {cost} bytes");

    let image = place.open("a", Access::Write).unwrap();
    write(&image, 0, &pattern(9, 100_000), false);
    drop(image);
    let before = place.export("a", "before", Format::Raw).unwrap();
    let snapshot = place.catalog.snapshot(&name("a"), "s").unwrap();
    let image = place.open("a", Access::Write).unwrap();
    write(&image, 1 << 20, &pattern(10, 100_000), false);
    drop(image);
    same(&place, "a@s", Format::Qcow2, &before, "raw");
    let after = place.export("a", "after", Format::Raw).unwrap();
    same(&place, "a", Format::Qcow2, &after, "raw");
    assert_ne!(fs::read(&before).unwrap(), fs::read(&after).unwrap());

    let chain = place.catalog.show(&name("a")).unwrap().chain;
    let expected = [(snapshot, Format::Qcow2), (name("base"), Format::Raw)];
    assert_eq!(chain, expected);
    let file = place.file("a", Format::Qcow2);
    let info = qemu_img(&["info", "--backing-chain", "-f", "qcow2", file.to_str().unwrap()]);
    assert_eq!(info.matches("backing file format:").count(), 2, "{info}");
}

#[test]
fn a_source_that_points_elsewhere_is_refused_and_says_what_to_do() {
    let place = Place::new();
    let (source, data) = (place.path("source"), place.path("data"));
    let file = source.to_str().unwrap();
    let external = format!("data_file={}", data.display());
    for args in [
        &["create", "-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw", file, "1M"][..],
        &["create", "-f", "qcow2", "-o", &external, file, "1M"],
    ] {
        qemu_img(args);
        match place.import(&source, "a", Format::Qcow2, Format::Qcow2).unwrap_err() {
            StoreError::Unsupported { what, .. } => {
                assert!(what.contains("qemu-img convert"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
    qemu_img(&["create", "-f", "qcow2", file, "1M"]);
    qemu_img(&["snapshot", "-c", "inside", file]);
    let error = place.import(&source, "a", Format::Qcow2, Format::Qcow2).unwrap_err().to_string();
    assert!(error.contains("internal snapshots"), "{error}");
    assert!(place.catalog.list().unwrap().is_empty());
}

/// The header of a qcow2 image with /etc/passwd behind it.
fn trap(place: &Place) -> Vec<u8> {
    let path = place.path("trap");
    let file = path.to_str().unwrap();
    qemu_img(&["create", "-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw", file, "1M"]);
    fs::read(path).unwrap()
}

#[test]
fn a_raw_image_stays_raw_whatever_its_guest_writes() {
    let place = Place::new();
    let trap = trap(&place);
    let (catalog, a) = (&place.catalog, name("a"));
    catalog.create(&a, SIZE, Format::Raw).unwrap();
    let image = place.open("a", Access::Write).unwrap();
    write(&image, 0, &trap, false);
    drop(image);
    let mut content = trap.clone();
    content.resize(SIZE as usize, 0);
    let plain = place.path("plain");
    fs::write(&plain, &content).unwrap();

    let reads_as_raw = |image: &str| {
        let open = place.open(image, Access::Read).unwrap();
        assert_eq!(open.size(), SIZE, "{image}");
        assert!(read(&open, 0, SIZE as usize, false).0 == content, "{image}");
    };
    reads_as_raw("a");
    let shown = catalog.show(&a).unwrap();
    assert_eq!((shown.summary.format, shown.summary.size), (Format::Raw, SIZE));
    assert!(shown.chain.is_empty() && shown.summary.backing.is_none());
    assert!(catalog.check(&a).unwrap().is_sound());
    let out = place.export("a", "out", Format::Raw).unwrap();
    assert!(fs::read(&out).unwrap() == content);
    let out = place.export("a", "out.qcow2", Format::Qcow2).unwrap();
    qemu_img(&[
        "compare",
        "-f",
        "qcow2",
        "-F",
        "raw",
        out.to_str().unwrap(),
        plain.to_str().unwrap(),
    ]);
    for format in [Format::Raw, Format::Qcow2] {
        let image = format!("imported-{format}");
        place.import(&plain, &image, Format::Raw, format).unwrap();
        reads_as_raw(&image);
    }
    catalog.clone_image(&a, &name("clone")).unwrap();
    reads_as_raw("clone");
    same(&place, "clone", Format::Qcow2, &plain, "raw");
    catalog.delete(&name("clone")).unwrap();
    catalog.snapshot(&a, "s").unwrap();
    reads_as_raw("a");
    reads_as_raw("a@s");
    same(&place, "a", Format::Qcow2, &plain, "raw");
}

#[test]
fn a_header_that_names_another_backing_file_is_not_followed() {
    let place = Place::new();
    let catalog = &place.catalog;
    catalog.create(&name("base"), SIZE, Format::Raw).unwrap();
    for (image, backing, kind) in [
        ("other", "/etc/passwd", "raw"),
        ("format", "../base/image.raw", "qcow2"),
        ("none", "", "raw"),
    ] {
        catalog.clone_image(&name("base"), &name(image)).unwrap();
        let file = place.file(image, Format::Qcow2);
        qemu_img(&[
            "rebase",
            "-u",
            "-f",
            "qcow2",
            "-F",
            kind,
            "-b",
            backing,
            file.to_str().unwrap(),
        ]);
        match place.open(image, Access::Write) {
            Err(StoreError::Damaged { what, .. }) => assert!(what.contains("backing"), "{what}"),
            other => panic!("{image}: {other:?}"),
        }
    }
    // One that should have none.
    catalog.create(&name("alone"), SIZE, Format::Qcow2).unwrap();
    let file = place.file("alone", Format::Qcow2);
    let file = file.to_str().unwrap();
    qemu_img(&["rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", "/etc/passwd", file]);
    assert!(matches!(place.open("alone", Access::Read), Err(StoreError::Damaged { .. })));
}

#[test]
fn check_sees_what_qemu_img_sees() {
    let place = Place::new();
    let (catalog, a) = (&place.catalog, name("a"));
    catalog.create(&a, SIZE, Format::Qcow2).unwrap();
    let image = place.open("a", Access::Write).unwrap();
    write(&image, 0, &pattern(1, 1 << 20), false);
    drop(image);
    let report = catalog.check(&a).unwrap();
    assert_eq!((report.allocated, report.leaks, report.errors), (1 << 20, 0, 0));

    // The refcount of the last cluster; then that of one that nothing refers to.
    let path = place.file("a", Format::Qcow2);
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let clusters = file.metadata().unwrap().len().div_ceil(1 << 16);
    let block = 2 << 16;
    let refcount = |cluster: u64, count: u16| {
        file.write_all_at(&count.to_be_bytes(), block + cluster * 2).unwrap();
    };
    refcount(clusters - 1, 0);
    let report = catalog.check(&a).unwrap();
    assert_eq!((report.leaks, report.errors), (0, 2), "{report:?}");
    let text = common::qemu_img_output(&["check", "-f", "qcow2", path.to_str().unwrap()]);
    assert_eq!(text.status.code(), Some(2));

    refcount(clusters - 1, 1);
    file.set_len((clusters + 1) << 16).unwrap();
    refcount(clusters, 1);
    let report = catalog.check(&a).unwrap();
    assert_eq!((report.leaks, report.errors), (1, 0), "{report:?}");
    let text = common::qemu_img_output(&["check", "-f", "qcow2", path.to_str().unwrap()]);
    assert_eq!(text.status.code(), Some(3), "only leaks");
}

#[test]
fn a_host_that_went_down_in_the_middle_is_noticed() {
    let place = Place::new();
    let (catalog, a) = (&place.catalog, name("a"));
    catalog.create(&a, SIZE, Format::Qcow2).unwrap();
    let image = place.open("a", Access::Write).unwrap();
    write(&image, 0, &pattern(1, 65536), false);
    let owner = catalog.dir().join("a/owner.json");
    let mut left: serde_json::Value = serde_json::from_slice(&fs::read(&owner).unwrap()).unwrap();
    drop(image);
    assert!(!owner.exists());

    left["boot"] = "another".into();
    let leave = || fs::write(&owner, left.to_string()).unwrap();
    leave();
    drop(place.open("a", Access::Write).unwrap());
    assert!(!owner.exists(), "it was sound");
    // The refcount of the data did not get to the disk, the table did.
    let file = fs::File::options().write(true).open(place.file("a", Format::Qcow2)).unwrap();
    let clusters = file.metadata().unwrap().len().div_ceil(1 << 16);
    file.write_all_at(&[0, 0], (2 << 16) + (clusters - 1) * 2).unwrap();
    leave();
    let error = place.open("a", Access::Write).unwrap_err().to_string();
    assert!(error.contains("host went down") && error.contains("qemu-img check"), "{error}");
    assert!(owner.exists(), "until it is repaired");
    let file = place.file("a", Format::Qcow2);
    let repaired =
        common::qemu_img_output(&["check", "-r", "all", "-f", "qcow2", file.to_str().unwrap()]);
    assert_eq!(repaired.status.code(), Some(0), "{repaired:?}");
    drop(place.open("a", Access::Write).unwrap());
}

#[test]
fn checksums_are_of_the_file() {
    let place = Place::new();
    let plain = place.path("plain");
    fs::write(&plain, b"abc").unwrap();
    // FIPS 180-2, appendix B.1.
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let import = |image: &str, source, file: &Path, digest| {
        let how = Import { source, format: Format::Raw, digest };
        place.catalog.import(file, &name(image), &how, &mut go_on)
    };
    let imported = import("a", Format::Raw, &plain, Digest::Compute).unwrap();
    assert_eq!((imported.size, imported.sha256.as_deref()), (512, Some(abc)));
    let shown = place.catalog.show(&name("a")).unwrap().summary;
    assert_eq!(shown.sha256.as_deref(), Some(abc));
    import("b", Format::Raw, &plain, Digest::Expect(abc.to_uppercase())).unwrap();

    let qcow2 = place.path("qcow2");
    qemu_img(&["create", "-f", "qcow2", qcow2.to_str().unwrap(), "1M"]);
    for (source, file) in [(Format::Raw, &plain), (Format::Qcow2, &qcow2)] {
        let wrong = Digest::Expect(abc.replace('b', "c"));
        let error = import("c", source, file, wrong).unwrap_err();
        assert!(matches!(error, StoreError::Checksum { .. }), "{error}");
    }
    let sum = import("c", Format::Qcow2, &qcow2, Digest::Compute).unwrap().sha256.unwrap();
    import("d", Format::Qcow2, &qcow2, Digest::Expect(sum)).unwrap();
    assert_eq!(place.catalog.list().unwrap().len(), 4);
}

#[test]
fn cancelling_leaves_nothing_behind() {
    let place = Place::new();
    let plain = place.path("plain");
    fs::write(&plain, pattern(1, 6 << 20)).unwrap();
    let entries = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    place.import(&plain, "a", Format::Raw, Format::Raw).unwrap();
    let (inside, beside) = (entries(place.catalog.dir()), entries(place.dir.path()));
    for stop_at in [1, 3, 6] {
        let mut calls = 0;
        let mut last = 0;
        let mut stop = |progress: store::Progress| {
            assert!(progress.done >= last && progress.done <= progress.total);
            last = progress.done;
            calls += 1;
            if calls == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let how = Import { source: Format::Raw, format: Format::Qcow2, digest: Digest::Compute };
        let error = place.catalog.import(&plain, &name("b"), &how, &mut stop).unwrap_err();
        assert!(matches!(error, StoreError::Cancelled), "{error}");
        (calls, last) = (0, 0);
        let mut stop = |progress: store::Progress| {
            assert!(progress.done >= last);
            calls += 1;
            if calls == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let how = Export { format: Format::Raw, force: false };
        let out = place.path("out");
        let error = place.catalog.export(&name("a"), &out, how, &mut stop).unwrap_err();
        assert!(matches!(error, StoreError::Cancelled), "{error}");
    }
    assert_eq!(entries(place.catalog.dir()), inside);
    assert_eq!(entries(place.dir.path()), beside);
}

#[test]
fn an_export_replaces_only_what_it_may() {
    let place = Place::new();
    place.catalog.create(&name("a"), SIZE, Format::Raw).unwrap();
    let out = place.export("a", "out", Format::Raw).unwrap();
    fs::write(&out, "precious").unwrap();
    let error = place.export("a", "out", Format::Raw).unwrap_err();
    assert!(matches!(error, StoreError::FileExists(_)), "{error}");
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    let forced = Export { format: Format::Raw, force: true };
    place.catalog.export(&name("a"), &out, forced, &mut go_on).unwrap();
    assert_eq!(out.metadata().unwrap().len(), SIZE);
    // Not a file of the catalog, whatever is said.
    let own = place.file("a", Format::Raw);
    assert!(place.catalog.export(&name("a"), &own, forced, &mut go_on).is_err());
}

/// Tables of a stranger, each word of them in turn, are an error or zeroes and never a panic.
#[test]
fn damaged_tables_do_no_harm_on_import() {
    let place = Place::new();
    let (plain, source) = (place.path("plain"), place.path("source"));
    sparse(&plain, 1 << 20);
    let (from, to) = (plain.to_str().unwrap(), source.to_str().unwrap());
    let options = ["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=512", from, to];
    qemu_img(&options);
    let sound = fs::read(&source).unwrap();
    let word = |at: usize| u64::from_be_bytes(sound[at..at + 8].try_into().unwrap());
    let l1 = word(40) as usize;
    let l2 = (word(l1) & 0x00ff_ffff_ffff_fe00) as usize;
    let values =
        [0, 1, u64::MAX, 1 << 62, 1 << 63, 1 << 62 | 1, (1 << 56) - 512, u64::MAX >> 1, 513];
    let mut refused = 0;
    for (index, at) in (l1..l1 + 64).chain(l2..l2 + 64).step_by(8).enumerate() {
        for (number, value) in values.iter().enumerate() {
            let mut bytes = sound.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
            fs::write(&source, &bytes).unwrap();
            let image = format!("i{index}-{number}");
            match place.import(&source, &image, Format::Qcow2, Format::Raw) {
                Ok(_) => place.catalog.delete(&name(&image)).unwrap(),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn direct_io_is_the_same() {
    let place = Place::new();
    let plain = place.path("plain");
    sparse(&plain, SIZE);
    place.import(&plain, "base", Format::Raw, Format::Raw).unwrap();
    place.catalog.clone_image(&name("base"), &name("a")).unwrap();
    let expected = fs::read(&plain).unwrap();
    let image = place.open_with("a", Access::Write, Cache::Direct).unwrap();
    let Image::Qcow2(qcow2) = &image else { unreachable!() };
    let mut data = vec![0; SIZE as usize];
    qcow2.read(0, &mut data).unwrap();
    assert!(data == expected);
    let align = qcow2.alignment();
    assert!(align.offset.is_power_of_two() && align.memory.is_power_of_two());
    // Not aligned to anything, and beside each other.
    for at in [512_u64, 1024, 70_656, 1 << 20] {
        qcow2.write(at, &pattern(at, 512)).unwrap();
    }
    qcow2.flush().unwrap();
    drop(image);
    let mut expected = expected;
    for at in [512_usize, 1024, 70_656, 1 << 20] {
        expected[at..at + 512].copy_from_slice(&pattern(at as u64, 512));
    }
    fs::write(&plain, &expected).unwrap();
    same(&place, "a", Format::Qcow2, &plain, "raw");
}
