//! `hayate image` and `hayate disk`, as they are typed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use blkclient::{Client, Wait};
use common::{Daemon, until};
use serde_json::Value;
use std::fs;
use std::os::unix::net::UnixStream;
use testkit::block::{BlockDriver, Layout, Options, Request};

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

#[test]
fn images_are_made_in_every_way() {
    let daemon = Daemon::start(&[]);
    let file = daemon.run_dir.join("source.img");
    let content: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 12) as u8).collect();
    fs::write(&file, &content).unwrap();
    let file = file.display();

    daemon.ok("image create raw --size 1G --format raw");
    daemon.ok("image create q.2 --size 64M --format qcow2");
    daemon.ok("image create plain --size 1M");
    daemon.ok(&format!("image import {file} base --format raw --checksum"));
    daemon.ok(&format!("image import {file} base2 --format raw --to qcow2"));
    daemon.ok("image clone base web");
    daemon.ok("image snapshot web s1");
    daemon.ok("image clone web@s1 web2");
    let list = daemon.json("image list --json");
    let all = ["base", "base2", "plain", "q.2", "raw", "web", "web2", "web@s1"];
    assert_eq!(names(&list), all);
    let formats: Vec<&str> =
        list.as_array().unwrap().iter().map(|one| one["format"].as_str().unwrap()).collect();
    assert_eq!(formats, ["raw", "qcow2", "raw", "qcow2", "raw", "qcow2", "qcow2", "qcow2"]);
    let table = daemon.ok("image list");
    assert!(table.contains("STANDS ON") && table.lines().count() == 9, "{table}");

    let web2 = daemon.json("image show web2 --json");
    assert_eq!(web2["chain"].as_array().unwrap(), &["web@s1", "base"]);
    assert_eq!((web2["size"].as_u64(), &web2["used"]), (Some(3 << 20), &Value::Null));
    assert!(web2["allocated"].as_u64().unwrap() < 1 << 20, "a clone takes next to nothing");
    let base = daemon.json("image show base --json");
    assert_eq!(base["clones"].as_array().unwrap(), &["web@s1"]);
    assert_eq!(base["sha256"].as_str().unwrap().len(), 64);

    // What comes out is what went in, through two images.
    let out = daemon.run_dir.join("out.img");
    daemon.ok(&format!("image export web2 {}", out.display()));
    assert!(fs::read(&out).unwrap() == content);
    daemon.fails(&format!("image export web2 {}", out.display()), 5, &["exists already"]);
    daemon.ok(&format!("image export web2 {} --format qcow2 --force", out.display()));
    assert!(fs::read(&out).unwrap().starts_with(b"QFI\xfb"));

    for image in all {
        assert!(daemon.ok(&format!("image check {image}")).contains("is whole"));
    }
    assert_eq!(daemon.json("image check web --json")["sound"], true);
    daemon.ok("image resize plain 2M");
    assert_eq!(daemon.json("image show plain --json")["size"], 2 << 20);
    daemon.ok("image resize plain 1M --shrink");
    daemon.ok("image delete plain");
    daemon.ok("image del q.2");
    assert_eq!(names(&daemon.json("image list --json")).len(), 6);
}

#[test]
fn what_cannot_be_done_with_an_image_is_said() {
    let daemon = Daemon::start(&[]);
    let file = daemon.run_dir.join("source.img");
    fs::write(&file, [7; 4096]).unwrap();
    let file = file.display();
    daemon.ok("image create a --size 1M --format qcow2");
    daemon.ok("image snapshot a s");
    for (words, status, parts) in [
        ("image create a --size 1M", 5, &["an image a already"][..]),
        ("image create b --size 1", 2, &["is not a size"]),
        ("image create b --size 1M --format vmdk", 2, &["raw", "qcow2"]),
        ("image create a@x --size 1M", 2, &["snapshot"]),
        ("image create ../a --size 1M", 2, &["is not the name of an image"]),
        ("image clone none b", 4, &["there is no image none", "hayate image list"]),
        ("image clone a a", 5, &["already"]),
        ("image del a@s", 5, &["is the base of a"]),
        ("image resize a@s 2M", 2, &["snapshot"]),
        ("image resize a 512K", 2, &["cut off"]),
        ("image snapshot a s", 5, &["already"]),
        ("image show none", 4, &["there is no image none"]),
        ("image import /nonexistent b --format raw", 1, &["/nonexistent"]),
        ("image export a /nonexistent/x", 1, &["/nonexistent"]),
    ] {
        daemon.fails(words, status, parts);
    }
    // A format is said, never guessed.
    daemon.fails(&format!("image import {file} b"), 2, &["--format"]);
    daemon.fails(&format!("image import {file} b --format qcow2"), 2, &["source.img"]);
    let wrong = "0".repeat(64);
    daemon.fails(
        &format!("image import {file} b --format raw --sha256 {wrong}"),
        2,
        &["source.img"],
    );
    assert_eq!(names(&daemon.json("image list --json")), ["a", "a@s"]);
}

#[test]
fn disks_come_and_go() {
    let daemon = Daemon::start(&[]);
    daemon.ok("image create web --size 64M --format raw");
    daemon.ok("vm add vm --vcpus 4");
    let socket = daemon.run_dir.join("web.sock");
    daemon.ok(&format!("disk add web --image web --socket {} --queues 2", socket.display()));
    daemon.ok("image create other --size 1M");
    daemon.ok("image clone other clone");
    daemon.ok("image create data --size 1G --format qcow2");
    daemon.ok("disk add data --image data --vm vm --iops 100 --bandwidth 10M --cache host");
    UnixStream::connect(&socket).unwrap();
    UnixStream::connect(daemon.run_dir.join("disks/data.sock")).unwrap();
    let disks = daemon.json("disk list --json");
    assert_eq!(names(&disks), ["data", "web"]);
    assert_eq!((&disks[1]["size"], &disks[1]["state"]), (&(64 << 20).into(), &"waiting".into()));
    assert_eq!(disks[0]["config"]["limits"]["iops"], 100);
    assert!(daemon.ok("disk list").contains("data"));
    let shown = daemon.ok("disk show data");
    assert!(shown.contains("100 operations/s (burst 100), 10M/s (burst 10M)"), "{shown}");
    assert!(daemon.ok("show").contains("2 disks"));

    // The image says who has it.
    let used = daemon.json("image show data --json")["used"].as_str().unwrap().to_owned();
    assert!(used.contains("disk data") && used.contains(&daemon.pid().to_string()), "{used}");
    for (words, status, parts) in [
        ("disk add other --image data", 5, &["image data is in use", "disk data"][..]),
        ("image del data", 5, &["disk data", "disk del data"]),
        ("image check data", 5, &["in use"]),
        ("disk add other --image none", 4, &["there is no image none"]),
        ("disk add data --image clone", 5, &["made differently"]),
        ("disk add other --image clone --vm none", 4, &["no vm named none"]),
        ("disk add other --image clone --queues 65", 2, &["--queues", "1 to 64"]),
        ("disk add other --image clone --worker 9", 2, &["no worker 9"]),
        ("disk add other --image clone --iops-burst 9", 2, &["--iops"]),
        ("disk del none", 4, &["no disk named none", "hayate disk list"]),
        ("vm del vm", 5, &["still has disk data"]),
    ] {
        daemon.fails(words, status, parts);
    }
    let taken = format!("disk add other --image clone --socket {}", socket.display());
    daemon.fails(&taken, 5, &["disk web"]);

    // Asked for again it is the same.
    daemon.ok("disk add data --image data --vm vm --iops 100 --bandwidth 10M --cache host");
    daemon.ok("disk limit data --iops 50");
    let limits = &daemon.json("disk show data --json")["config"]["limits"];
    assert_eq!(limits, &serde_json::json!({ "iops": 50 }));
    daemon.ok("image resize data 2G");
    assert_eq!(daemon.json("disk show data --json")["size"], 2_u64 << 30);
    daemon.fails("image resize data 1G --shrink", 5, &["cannot shrink"]);

    let arguments = daemon.ok("disk qemu data --qemu-version 10.0");
    assert!(arguments.contains("vhost-user-blk-pci,chardev=disk-data,id=data,num-queues=4"));
    assert!(arguments.contains("reconnect-ms="), "{arguments}");
    let all = daemon.ok("vm qemu vm --qemu-version 10.0");
    assert!(all.contains("memory-backend-memfd") && all.contains(arguments.trim()), "{all}");
    let xml = daemon.ok("disk libvirt data");
    assert!(xml.contains("<disk type='vhostuser'") && xml.contains("data.sock"), "{xml}");
    assert!(daemon.ok("vm libvirt vm").contains(xml.trim()));
    let metrics = daemon.http("GET", "/v1/metrics", "").1;
    for line in
        ["hayate_disk_size_bytes{disk=\"data\"} 2147483648", "hayate_disk_state{disk=\"web\""]
    {
        assert!(metrics.contains(line), "{line}");
    }

    daemon.ok("disk del web");
    daemon.ok("disk del data");
    assert!(!socket.exists());
    assert_eq!(daemon.json("image show data --json")["used"], Value::Null);
    daemon.ok("image del data");
}

#[test]
fn a_base_is_read_by_many_and_written_by_none() {
    let daemon = Daemon::start(&[]);
    daemon.ok("image create base --size 1M");
    daemon.ok("disk add before --image base");
    daemon.ok("disk del before");
    daemon.ok("image clone base web");
    daemon.fails("disk add base --image base", 5, &["is the base of web"]);
    daemon.fails("image del base", 5, &["is the base of web"]);
    daemon.fails("image resize base 2M", 5, &["is the base of web"]);
    for name in ["r1", "r2", "r3"] {
        daemon.ok(&format!("disk add {name} --image base --readonly"));
    }
    daemon.ok("disk add web --image web");
    daemon.fails("image snapshot base s", 5, &["is the base of web"]);
    daemon.ok("disk del web");
    daemon.ok("image snapshot web s");
    daemon.fails("disk add s --image web@s", 2, &["--image", "snapshot"]);
    daemon.ok("disk add s --image web@s --readonly");
}

/// Has the guest write one block of this at the beginning of each MiB, deep enough that some are
/// under way at any time, while `meanwhile` goes on.
fn writing(guest: &mut BlockDriver, fill: u8, meanwhile: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let working = scope.spawn(meanwhile);
        let mut at = 0;
        // Each of the 32 places once at least.
        while at < 32 || !working.is_finished() {
            let request = Request::write(at % 32 * 2048, &[fill; 4096]);
            let layout = Layout::usual(&request);
            while guest.submit(0, &request, &layout).is_none() {
                let done = guest.wait(0).unwrap();
                assert_eq!(done.status, Some(0));
            }
            guest.kick(0);
            at += 1;
        }
        for (_, done) in guest.drain().unwrap() {
            assert_eq!(done.status, Some(0));
        }
        working.join().unwrap();
    });
}

#[test]
fn a_snapshot_is_taken_under_a_guest_that_writes() {
    let daemon = Daemon::start(&[]);
    for format in ["raw", "qcow2"] {
        daemon.ok(&format!("image create {format} --size 32M --format {format}"));
        daemon.ok(&format!("disk add {format} --image {format}"));
        let socket = daemon.run_dir.join(format!("disks/{format}.sock"));
        let mut guest = BlockDriver::connect(&socket, &Options::new(false)).unwrap();
        for (fill, snapshot) in [(1, "s1"), (2, "s2"), (3, "s3")] {
            // Everything there is, then more while the snapshot is taken.
            writing(&mut guest, fill, || {});
            guest.run(&Request::flush()).unwrap();
            writing(&mut guest, fill, || {
                daemon.ok(&format!("image snapshot {format} {snapshot}"));
            });
        }
        let show = daemon.json(&format!("disk show {format} --json"));
        assert_eq!((&show["state"], &show["last_error"]), (&"running".into(), &Value::Null));
        assert_eq!(show["operations"]["write"]["failed"], 0);
        let image = daemon.json(&format!("image show {format} --json"));
        let names = ["s3", "s2", "s1"].map(|snapshot| Value::from(format!("{format}@{snapshot}")));
        assert_eq!(image["chain"].as_array().unwrap(), &names);
        // Each has what was there when it was taken, and the image what came last.
        for (name, fill) in [("@s1", 1), ("@s2", 2), ("@s3", 3), ("", 3)] {
            if name.is_empty() {
                daemon.ok(&format!("disk del {format}"));
            }
            let out = daemon.run_dir.join("out");
            daemon.ok(&format!("image export {format}{name} {} --force", out.display()));
            let out = fs::read(out).unwrap();
            for at in (0..32).map(|mib| mib << 20) {
                assert!(out[at..at + 4096].iter().all(|byte| *byte == fill), "{format}{name} {at}");
            }
            daemon.ok(&format!("image check {format}{name}"));
        }
    }
}

#[test]
fn a_front_end_by_others_finds_what_it_wrote() {
    let daemon = Daemon::start(&[]);
    daemon.ok("image create web --size 8M --format qcow2");
    daemon.ok("disk add web --image web --queues 4");
    let shape = blkclient::Shape { queues: 4, slots: 8, buffer: 1 << 16, wait: Wait::Event };
    let socket = daemon.run_dir.join("disks/web.sock");
    let mut client = Client::connect(&socket, shape).unwrap();
    assert_eq!(client.capacity(), 8 << 20);
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 9) as u8).collect();
    for (at, piece) in (0..).step_by(1 << 16).zip(data.chunks(1 << 16)) {
        client.write(at, piece).unwrap();
    }
    client.flush().unwrap();
    let mut back = vec![0; 1 << 16];
    for (at, piece) in (0..).step_by(1 << 16).zip(data.chunks(1 << 16)) {
        client.read(at, &mut back).unwrap();
        assert!(back == piece, "{at}");
    }
}

#[test]
fn disks_are_there_after_every_end() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("hayate.toml");
    fs::write(&config, "[disks.fixed]\nimage = \"fixed\"\n").unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let run_dir = directory.path().join("run");
    let daemon = Daemon::start_in(&run_dir, &arguments);
    // Its image is made later.
    assert_eq!(daemon.json("disk show fixed --json")["state"], "failed");
    daemon.ok("image create fixed --size 1M");
    until("the disk is tried again", || {
        daemon.json("disk show fixed --json")["state"] == "waiting"
    });
    daemon.fails("disk del fixed", 5, &["hayate.toml"]);
    daemon.ok("image create web --size 1M --format qcow2");
    daemon.ok("disk add web --image web --queues 3");
    let configs = |daemon: &Daemon| {
        let disks = daemon.json("disk list --json");
        disks.as_array().unwrap().iter().map(|disk| disk["config"].clone()).collect::<Vec<_>>()
    };
    let before = configs(&daemon);
    daemon.stop();
    let daemon = Daemon::start_in(&run_dir, &arguments);
    assert_eq!(configs(&daemon), before);
    // Dropped, it is killed.
    drop(daemon);
    let daemon = Daemon::start_in(&run_dir, &arguments);
    assert_eq!(configs(&daemon), before);
    for disk in daemon.json("disk list --json").as_array().unwrap() {
        assert_eq!(disk["state"], "waiting");
    }
    daemon.stop();
}
