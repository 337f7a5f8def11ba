//! One writer: between ourselves, and between us and QEMU's tools, in both directions.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common::{Place, go_on, name, owner, qemu_img, qemu_img_fails, qemu_img_output};
use store::{Access, Cache, Catalog, Export, Format, Image, StoreError, Usage};

const SIZE: u64 = 1 << 20;

fn in_use<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(error @ StoreError::InUse { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_writer_is_told_who_the_first_one_is() {
    for format in [Format::Raw, Format::Qcow2] {
        let place = Place::new();
        place.catalog.create(&name("a"), SIZE, format).unwrap();
        let first = place.open("a", Access::Write).unwrap();
        for access in [Access::Write, Access::Read] {
            let text = in_use(place.open("a", access));
            assert!(text.contains("disk0 of /run/test"), "{text}");
            assert!(text.contains(&std::process::id().to_string()), "{text}");
        }
        let catalog = &place.catalog;
        in_use(catalog.resize(&name("a"), 2 * SIZE, false));
        in_use(catalog.snapshot(&name("a"), "s"));
        in_use(catalog.clone_image(&name("a"), &name("b")));
        in_use(catalog.check(&name("a")));
        in_use(catalog.delete(&name("a")));
        let how = Export { format, force: false };
        in_use(catalog.export(&name("a"), &place.path("out"), how, &mut go_on));
        match catalog.show(&name("a")).unwrap().usage {
            Usage::Writer(Some(found)) => assert_eq!(found.disk, "disk0"),
            other => panic!("{other:?}"),
        }

        drop(first);
        assert_eq!(catalog.show(&name("a")).unwrap().usage, Usage::Free);
        place.open("a", Access::Write).unwrap();
    }
}

#[test]
fn the_lock_lasts_as_long_as_what_was_given_out() {
    let place = Place::new();
    place.catalog.create(&name("raw"), SIZE, Format::Raw).unwrap();
    place.catalog.create(&name("qcow2"), SIZE, Format::Qcow2).unwrap();
    let Image::Raw(raw) = place.open("raw", Access::Write).unwrap() else { unreachable!() };
    let file = Arc::clone(raw.file());
    drop(raw);
    in_use(place.open("raw", Access::Write));
    drop(file);
    place.open("raw", Access::Write).unwrap();

    let Image::Qcow2(qcow2) = place.open("qcow2", Access::Write).unwrap() else { unreachable!() };
    qcow2.write(0, &[1; 65536]).unwrap();
    let extent = qcow2.direct(0, 4096, true).unwrap();
    drop(qcow2);
    in_use(place.open("qcow2", Access::Write));
    drop(extent);
    place.open("qcow2", Access::Write).unwrap();
}

#[test]
fn readers_share_and_keep_writers_out() {
    let place = Place::new();
    for format in [Format::Raw, Format::Qcow2] {
        let image = name(format.as_str());
        place.catalog.create(&image, SIZE, format).unwrap();
        let first = place.open(image.as_str(), Access::Read).unwrap();
        let second = place.open(image.as_str(), Access::Read).unwrap();
        assert!(first.read_only() && second.read_only());
        assert!(first.resize(SIZE).is_err());
        assert_eq!(place.catalog.show(&image).unwrap().usage, Usage::Readers);
        in_use(place.open(image.as_str(), Access::Write));
        in_use(place.catalog.delete(&image));
        place.catalog.check(&image).unwrap();
    }
}

#[test]
fn clones_open_at_once_hold_their_base() {
    let place = Place::new();
    place.catalog.create(&name("base"), SIZE, Format::Raw).unwrap();
    for clone in ["a", "b"] {
        place.catalog.clone_image(&name("base"), &name(clone)).unwrap();
    }
    let (a, b) = (place.open("a", Access::Write).unwrap(), place.open("b", Access::Write).unwrap());
    assert_eq!(place.catalog.show(&name("base")).unwrap().usage, Usage::Readers);
    let base = place.file("base", Format::Raw);
    let base = base.to_str().unwrap();
    let errors = qemu_img_fails(&["resize", "-f", "raw", base, "2M"]);
    assert!(errors.contains("lock"), "{errors}");
    // Who only reads may.
    qemu_img(&["info", "-f", "raw", base]);
    drop((a, b));
    qemu_img(&["resize", "-f", "raw", base, "2M"]);
}

#[test]
fn qemu_img_is_refused_while_we_write() {
    let place = Place::new();
    for format in [Format::Raw, Format::Qcow2] {
        place.catalog.create(&name(format.as_str()), SIZE, format).unwrap();
        let file = place.file(format.as_str(), format);
        let (file, kind) = (file.to_str().unwrap(), format.as_str());
        let image = place.open(format.as_str(), Access::Write).unwrap();
        for args in [
            &["resize", "-f", kind, file, "2M"][..],
            &["convert", "-f", kind, "-O", "raw", file, "/dev/null"],
        ] {
            let errors = qemu_img_fails(args);
            assert!(errors.contains("lock"), "{args:?}: {errors}");
        }
        drop(image);
        qemu_img(&["info", "-f", kind, file]);
    }
}

/// A QEMU that has an image open, until dropped.
struct Holder(Child);

impl Holder {
    /// `read_only`: what else QEMU would open for writing.
    fn new(file: &str, format: Format, read_only: bool) -> Self {
        // qemu-img and qemu-nbd are of one package; the latter stays.
        let (socket, ready) = (format!("{file}.sock"), format!("{file}.pid"));
        let mut command = Command::new("qemu-nbd");
        command.args(["--persistent", "--format", format.as_str()]);
        command.args(["--socket", &socket, "--pid-file", &ready]);
        if read_only {
            command.arg("--read-only");
        }
        let child = command.arg(file).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| {
            panic!("cannot run qemu-nbd ({error}); it is in Debian's package qemu-utils")
        });
        // Written when it has opened the image.
        while !Path::new(&ready).exists() {
            if child.try_wait().unwrap().is_some() {
                let lines = BufReader::new(child.stderr.take().unwrap()).lines();
                panic!("qemu-nbd ended: {:?}", lines.collect::<Vec<_>>());
            }
            std::thread::yield_now();
        }
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn we_are_refused_while_qemu_writes() {
    let place = Place::new();
    for format in [Format::Raw, Format::Qcow2] {
        let image = name(format.as_str());
        place.catalog.create(&image, SIZE, format).unwrap();
        let file = place.file(format.as_str(), format);
        let holder = Holder::new(file.to_str().unwrap(), format, false);
        for access in [Access::Write, Access::Read] {
            in_use(place.open(image.as_str(), access));
        }
        in_use(place.catalog.delete(&image));
        assert_eq!(place.catalog.show(&image).unwrap().usage, Usage::Qemu);
        drop(holder);
        place.open(image.as_str(), Access::Write).unwrap();
    }
}

#[test]
fn we_read_beside_a_qemu_that_reads_and_do_not_write() {
    let place = Place::new();
    place.catalog.create(&name("a"), SIZE, Format::Raw).unwrap();
    let file = place.file("a", Format::Raw);
    let _holder = Holder::new(file.to_str().unwrap(), Format::Raw, true);
    place.open("a", Access::Read).unwrap();
    in_use(place.open("a", Access::Write));
    assert_eq!(place.catalog.show(&name("a")).unwrap().usage, Usage::Readers);
}

#[test]
fn a_file_that_qemu_writes_is_not_imported() {
    let place = Place::new();
    let path = place.path("source");
    std::fs::write(&path, [1; 4096]).unwrap();
    let holder = Holder::new(path.to_str().unwrap(), Format::Raw, false);
    let error = place.import(&path, "a", Format::Raw, Format::Raw).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    drop(holder);
    place.import(&path, "a", Format::Raw, Format::Raw).unwrap();
}

/// What [`a_killed_writer_leaves_nothing_to_take_over`] runs in another process.
#[test]
#[ignore = "it is the other process of another test"]
fn writer_that_waits() {
    let catalog = Catalog::open(std::env::var("STORE_TEST_DIR").unwrap()).unwrap();
    let image = catalog.open_image(&name("a"), Access::Write, &owner(), Cache::PageCache).unwrap();
    let Image::Qcow2(qcow2) = &image else { unreachable!() };
    for at in 0..SIZE >> 16 {
        qcow2.write(at << 16, &[at as u8 + 1; 4096]).unwrap();
    }
    println!("written");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_writer_leaves_nothing_to_take_over() {
    let place = Place::new();
    place.catalog.create(&name("base"), SIZE, Format::Raw).unwrap();
    place.catalog.clone_image(&name("base"), &name("a")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer_that_waits", "--ignored", "--nocapture"])
        .env("STORE_TEST_DIR", place.catalog.dir())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("written")));
    let text = in_use(place.open("a", Access::Write));
    assert!(text.contains(&child.id().to_string()), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();

    // owner.json is still there and nobody believes it.
    assert!(place.catalog.dir().join("a/owner.json").exists());
    assert_eq!(place.catalog.show(&name("a")).unwrap().usage, Usage::Free);
    let image = place.open("a", Access::Write).unwrap();
    // What was answered is there, though it was never flushed.
    for at in 0..SIZE >> 16 {
        let (data, _) = common::read(&image, at << 16, 4096, false);
        assert!(data.iter().all(|&byte| byte == at as u8 + 1), "cluster {at}");
    }
    drop(image);
    let report = place.catalog.check(&name("a")).unwrap();
    assert!(report.is_sound(), "{report:?}");
    let file = place.file("a", Format::Qcow2);
    let check = qemu_img_output(&["check", "-f", "qcow2", file.to_str().unwrap()]);
    // 3: nothing but leaks.
    assert!(matches!(check.status.code(), Some(0 | 3)), "{check:?}");
}
