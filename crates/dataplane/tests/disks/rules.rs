//! What a disk promises: order, stability, its size, its errors.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use dataplane::{DiskImage, OperationKind};
use testkit::block::{FILLER, Layout, Options, Request, device, status};

use crate::common::plane::Plane;
use crate::images::{Call, Gate, SlowWrite, Stage};
use crate::rig::{
    Files, KINDS, Kind, add, add_with, connect, counted, disk, memory_disk, ok, wait_state,
};

const SIZE: u64 = 1 << 20;

/// What a guest without the wish to flush, and one that chose so, are promised.
fn writethrough() -> [(Options, bool); 4] {
    let never = |packed| Options { features: device::ALL & !device::FLUSH, ..Options::new(packed) };
    [
        (never(false), false),
        (never(true), false),
        (Options::new(false), true),
        (Options::new(true), true),
    ]
}

/// A flush is not over before the image has flushed, and covers what had ended before it came.
#[test]
fn a_flush_is_one_of_the_image_after_the_writes() {
    for packed in [false, true] {
        let plane = Plane::new();
        let stage = Stage::new(SIZE);
        add(&plane, "disk", DiskImage::Image(stage.clone()), SIZE);
        let mut driver = connect(&plane, "disk", &Options::new(packed));
        let gate = Gate::new();
        let passing = Arc::clone(&gate);
        stage.hook(move |call| {
            if call == Call::Flush {
                passing.pass();
            }
            Ok(())
        });
        for sector in 0..20 {
            ok(&driver.run(&Request::write(sector, &[1; 512])).unwrap());
        }
        let flush = Request::flush();
        let token = driver.submit(0, &flush, &Layout::usual(&flush)).unwrap();
        driver.kick(0);
        gate.wait_for(1);
        assert_eq!(driver.status_now(0, token), Some(FILLER), "it has not flushed yet");
        // Others are not held up.
        let read = Request::read(0, 512);
        driver.submit(0, &read, &Layout::usual(&read)).unwrap();
        driver.kick(0);
        assert_eq!(driver.wait(0).unwrap().data, [1; 512]);
        assert_eq!(driver.status_now(0, token), Some(FILLER), "it has not flushed yet");
        gate.open();
        ok(&driver.wait(0).unwrap());
        let mut expected: Vec<_> = (0..20).map(|sector| Call::Write(sector * 512, 512)).collect();
        expected.extend([Call::Read(0, 512), Call::Flush]);
        assert_eq!(stage.log(), expected);
        drop(driver);
        plane.end();
    }
}

/// In writethrough mode neither a write nor zeroes end before the image has flushed; a write past
/// the image neither.
#[test]
fn in_writethrough_mode_nothing_ends_before_it_is_stable() {
    for (options, chosen) in writethrough() {
        let plane = Plane::new();
        let stage = Stage::new(SIZE);
        let files = Files::new(Kind::Cached, 4096);
        stage.send(8192, true, &files.file);
        let id = add(&plane, "disk", DiskImage::Image(stage.clone()), SIZE);
        let mut driver = connect(&plane, "disk", &options);
        let writeback = driver.frontend.get_config(60).unwrap()[device::CONFIG_WRITEBACK as usize];
        assert_eq!(writeback, u8::from(chosen));
        if chosen {
            driver.frontend.set_config(device::CONFIG_WRITEBACK, &[0]).unwrap();
        }
        assert!(!disk(&plane.host, id).writeback);
        let gates = Arc::new(Mutex::new(Vec::<Arc<Gate>>::new()));
        let flushes = Arc::clone(&gates);
        stage.hook(move |call| {
            let gate = (call == Call::Flush).then(|| flushes.lock().unwrap().pop()).flatten();
            if let Some(gate) = gate {
                gate.pass();
            }
            Ok(())
        });
        for request in [
            Request::write(0, &[5; 4096]),
            Request::write(16, &[6; 4096]),
            Request::write_zeroes(64, 8, true),
        ] {
            let gate = Gate::new();
            gates.lock().unwrap().push(Arc::clone(&gate));
            let before = stage.log().len();
            let token = driver.submit(0, &request, &Layout::usual(&request)).unwrap();
            driver.kick(0);
            gate.wait_for(1);
            assert_eq!(driver.status_now(0, token), Some(FILLER), "it is not stable yet");
            gate.open();
            ok(&driver.wait(0).unwrap());
            assert_eq!(
                stage.log()[before..].iter().filter(|call| **call == Call::Flush).count(),
                1
            );
        }
        // Back to writeback, where the guest can: no flush of its own.
        if chosen {
            driver.frontend.set_config(device::CONFIG_WRITEBACK, &[1]).unwrap();
            ok(&driver.run(&Request::write(0, &[7; 512])).unwrap());
            assert_eq!(stage.log().last(), Some(&Call::Write(0, 512)));
        }
        let mut past = [0; 4096];
        files.plain.read_exact_at(&mut past, 0).unwrap();
        assert_eq!(past, [6; 4096]);
        drop(driver);
        plane.end();
    }
}

/// A guest that asked for writethrough does not flush; its front end does not say it again to a
/// daemon that starts anew.
#[test]
fn writethrough_is_kept_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("writethrough");
    let mut guest: Option<testkit::block::BlockDriver> = None;
    for (asked, flushes) in [(None, 0), (Some(0), 1), (None, 1), (Some(1), 0), (None, 0)] {
        let plane = Plane::new();
        let stage = Stage::new(SIZE);
        let image = DiskImage::Image(stage.clone());
        add_with(&plane, "disk", image, SIZE, |spec| spec.writethrough = Some(kept.clone()));
        let mut driver = match guest.take() {
            None => connect(&plane, "disk", &Options::new(false)),
            Some(mut driver) => {
                driver.reconnect(plane.socket("disk")).unwrap();
                driver
            }
        };
        if let Some(mode) = asked {
            driver.frontend.set_config(device::CONFIG_WRITEBACK, &[mode]).unwrap();
        }
        ok(&driver.run(&Request::write(0, &[1; 512])).unwrap());
        assert_eq!(stage.log().iter().filter(|call| **call == Call::Flush).count(), flushes);
        plane.end();
        guest = Some(driver);
    }
}

/// Clearing waits until nothing is written past the image, and what comes meanwhile goes through it.
#[test]
fn clearing_waits_for_writes_past_the_image() {
    for clear in [Request::write_zeroes(128, 8, true), Request::discard(128, 8)] {
        let plane = Plane::new();
        let stage = Stage::new(SIZE);
        let mut slow = SlowWrite::new();
        stage.send(0, true, &slow.file);
        let other = Files::new(Kind::Memory, 4096);
        stage.send(4096, true, &other.file);
        let id = add(&plane, "disk", DiskImage::Image(stage.clone()), SIZE);
        let mut driver = connect(&plane, "disk", &Options::new(false));
        let send = |driver: &mut testkit::block::BlockDriver, request: &Request| {
            let token = driver.submit(0, request, &Layout::usual(request)).unwrap();
            driver.kick(0);
            token
        };
        let past = send(&mut driver, &Request::write(0, &[9; 4096]));
        crate::common::wait(|| "the write".into(), || disk(&plane.host, id).in_flight == 1);
        let cleared = send(&mut driver, &clear);
        // Many others, among them one that would have gone past the image.
        let through = send(&mut driver, &Request::write(8, &[8; 4096]));
        assert_eq!(driver.wait(0).unwrap().token, through);
        for _ in 0..50 {
            let read = send(&mut driver, &Request::read(64, 512));
            assert_eq!(driver.wait(0).unwrap().token, read);
        }
        assert!(stage.log().contains(&Call::Write(4096, 4096)), "it went past a clearing");
        for token in [past, cleared] {
            assert_eq!(driver.status_now(0, token), Some(FILLER));
        }
        let clears = |call: &Call| matches!(call, Call::Discard(..) | Call::WriteZeroes(..));
        assert!(!stage.log().iter().any(clears), "cleared while it was written past the image");
        assert_eq!(slow.drain(4096), [9; 4096]);
        let ended = driver.drain().unwrap();
        assert_eq!(ended.len(), 2);
        ended.iter().for_each(|(_, done)| ok(done));
        assert!(stage.log().iter().any(clears));
        // And then writes may go past it again.
        ok(&driver.run(&Request::write(8, &[7; 4096])).unwrap());
        let mut found = [0; 4096];
        other.plain.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [7; 4096]);
        drop(driver);
        plane.end();
    }
}

/// A write past the image that fails is over, too.
#[test]
fn clearing_does_not_wait_for_writes_that_failed() {
    let plane = Plane::new();
    let stage = Stage::new(SIZE);
    let (reader, broken) = io::pipe().unwrap();
    drop(reader);
    stage.send(4096, true, &Arc::new(std::os::fd::OwnedFd::from(broken).into()));
    add(&plane, "disk", DiskImage::Image(stage.clone()), SIZE);
    let mut driver = connect(&plane, "disk", &Options::new(true));
    let done = driver.run(&Request::write(8, &[8; 4096])).unwrap();
    assert_eq!(done.status, Some(status::IOERR));
    for unmap in [false, true] {
        ok(&driver.run(&Request::write_zeroes(16, 8, unmap)).unwrap());
        assert_eq!(stage.log().last(), Some(&Call::WriteZeroes(8192, 4096, unmap)));
    }
    ok(&driver.run(&Request::discard(24, 8)).unwrap());
    assert_eq!(stage.log().last(), Some(&Call::Discard(12288, 4096)));
    drop(driver);
    plane.end();
}

/// A write past the image that begins while clearing runs would land in what is being given away.
#[test]
fn nothing_is_written_past_the_image_while_it_is_cleared() {
    let plane = Plane::new();
    let stage = Stage::new(SIZE);
    let other = Files::new(Kind::Memory, 4096);
    stage.send(4096, true, &other.file);
    add(&plane, "disk", DiskImage::Image(stage.clone()), SIZE);
    let mut driver = connect(&plane, "disk", &Options::new(true));
    let gate = Gate::new();
    let passing = Arc::clone(&gate);
    stage.hook(move |call| {
        if matches!(call, Call::Discard(..)) {
            passing.pass();
        }
        Ok(())
    });
    let discard = Request::discard(128, 8);
    driver.submit(0, &discard, &Layout::usual(&discard)).unwrap();
    driver.kick(0);
    gate.wait_for(1);
    let write = Request::write(8, &[8; 4096]);
    driver.submit(0, &write, &Layout::usual(&write)).unwrap();
    driver.kick(0);
    ok(&driver.wait(0).unwrap());
    assert_eq!(stage.log(), [Call::Write(4096, 4096)]);
    gate.open();
    ok(&driver.wait(0).unwrap());
    drop(driver);
    plane.end();
}

/// What the image cannot do is an error of that request, and of no other.
#[test]
fn errors_of_an_image_are_the_requests() {
    for packed in [false, true] {
        let plane = Plane::new();
        let stage = Stage::new(SIZE);
        let id = add(&plane, "disk", DiskImage::Image(stage.clone()), SIZE);
        let mut driver = connect(&plane, "disk", &Options::new(packed));
        let failing = Arc::new(AtomicU8::new(1));
        let fails = Arc::clone(&failing);
        stage.hook(move |_| match fails.load(SeqCst) {
            1 => Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())),
            _ => Ok(()),
        });
        let all = [
            (OperationKind::Read, Request::read(0, 4096)),
            (OperationKind::Write, Request::write(0, &[1; 4096])),
            (OperationKind::Flush, Request::flush()),
            (OperationKind::Discard, Request::discard(0, 8)),
            (OperationKind::WriteZeroes, Request::write_zeroes(0, 8, false)),
        ];
        for (kind, request) in &all {
            let done = driver.run(request).unwrap();
            assert_eq!((done.status, done.used), (Some(status::IOERR), request.writable));
            assert_eq!(counted(&plane.host, id, *kind), (1, 1));
            let text = disk(&plane.host, id).last_error.unwrap();
            assert!(text.starts_with(&format!("{}: ", kind.name())), "{text}");
        }
        failing.store(0, SeqCst);
        for (kind, request) in &all {
            ok(&driver.run(request).unwrap());
            assert_eq!(counted(&plane.host, id, *kind), (2, 1));
        }
        assert_eq!(disk(&plane.host, id).in_flight, 0);
        drop(driver);
        plane.end();
    }
}

/// A step that was interrupted is done again.
#[test]
fn what_was_interrupted_is_done_again() {
    let plane = Plane::new();
    let stage = Stage::new(SIZE);
    add(&plane, "disk", DiskImage::Image(stage.clone()), SIZE);
    let mut driver = connect(&plane, "disk", &Options::new(false));
    let times = AtomicU8::new(0);
    stage.hook(move |_| match times.fetch_add(1, SeqCst) % 3 {
        2 => Ok(()),
        _ => Err(io::ErrorKind::Interrupted.into()),
    });
    ok(&driver.run(&Request::write(0, &[1; 512])).unwrap());
    ok(&driver.run(&Request::discard(8, 8)).unwrap());
    ok(&driver.run(&Request::flush()).unwrap());
    // Clearing was counted right: what comes after it is not held up.
    ok(&driver.run(&Request::write_zeroes(8, 8, true)).unwrap());
    assert_eq!(driver.run(&Request::read(0, 512)).unwrap().data, [1; 512]);
    assert_eq!(stage.log().len(), 5);
    drop(driver);
    plane.end();
}

/// A file that is shorter than the disk: what is missing cannot be read, and can be written.
#[test]
fn a_short_file_is_an_error_where_it_ends() {
    for kind in KINDS {
        let plane = Plane::new();
        let files = Files::new(kind, 64 << 10);
        let id = add(&plane, "disk", files.image(), SIZE);
        let mut driver = connect(&plane, "disk", &Options::new(false));
        assert_eq!(driver.run(&Request::read(0, 32 << 10)).unwrap().data, vec![0; 32 << 10]);
        for sector in [64, 128, 1024] {
            let done = driver.run(&Request::read(sector, 64 << 10)).unwrap();
            assert_eq!(done.status, Some(status::IOERR), "{kind:?} at {sector}");
        }
        assert_eq!(counted(&plane.host, id, OperationKind::Read), (4, 3));
        ok(&driver.run(&Request::write(1024, &[3; 4096])).unwrap());
        assert_eq!(driver.run(&Request::read(1024, 4096)).unwrap().data, [3; 4096]);
        assert_eq!(driver.run(&Request::read(128, 4096)).unwrap().data, [0; 4096]);
        drop(driver);
        plane.end();
    }
}

/// No room on the file system, no blocks beyond the largest file: the host's errors reach the guest.
#[test]
fn errors_of_a_file_are_the_requests() {
    let plane = Plane::new();
    let full = std::fs::File::options().read(true).write(true).open("/dev/full").unwrap();
    let id = add(&plane, "disk", DiskImage::File(Arc::new(full)), SIZE);
    let mut driver = connect(&plane, "disk", &Options::new(false));
    assert_eq!(driver.run(&Request::write(0, &[1; 512])).unwrap().status, Some(status::IOERR));
    assert_eq!(driver.run(&Request::read(0, 512)).unwrap().data, [0; 512]);
    assert_eq!(counted(&plane.host, id, OperationKind::Write), (1, 1));
    drop(driver);
    plane.end();
}

/// A disk that grows: its guest is told, and uses what is new; before, that is beyond the end.
#[test]
fn a_disk_grows_and_shrinks_under_its_guest() {
    for packed in [false, true] {
        let plane = Plane::new();
        let (large, files, mut driver) = memory_disk(&plane, "disk", SIZE);
        files.plain.set_len(2 * SIZE).unwrap();
        let options = Options::new(packed);
        if packed {
            drop(driver);
            driver = connect(&plane, "disk", &options);
        }
        let mut told = driver.frontend.set_backend_req_fd().unwrap();
        // Once for what it may have had from another daemon.
        told.wait_config_change().unwrap();
        let capacity = |driver: &mut testkit::block::BlockDriver| {
            let config = driver.frontend.get_config(60).unwrap();
            u64::from_le_bytes(config[..8].try_into().unwrap())
        };
        let end = SIZE / 512;
        assert_eq!(capacity(&mut driver), end);
        let beyond = Request::write(end, &[4; 4096]);
        let across = Request::read(end - 1, 1024);
        for request in [&beyond, &across, &Request::discard(end - 1, 2)] {
            assert_eq!(driver.run(request).unwrap().status, Some(status::IOERR));
        }
        plane.host.resize_disk(large, 2 * SIZE).unwrap();
        told.wait_config_change().unwrap();
        assert_eq!(capacity(&mut driver), 2 * end);
        ok(&driver.run(&beyond).unwrap());
        assert_eq!(driver.run(&across).unwrap().data[512..], [4; 512]);
        // To the same size is no change; to another one that is smaller is.
        plane.host.resize_disk(large, 2 * SIZE).unwrap();
        plane.host.resize_disk(large, SIZE).unwrap();
        told.wait_config_change().unwrap();
        assert_eq!(capacity(&mut driver), end);
        assert_eq!(driver.run(&beyond).unwrap().status, Some(status::IOERR));
        assert_eq!(disk(&plane.host, large).size, SIZE);
        told.socket().set_nonblocking(true).unwrap();
        assert!(told.wait_config_change().is_err(), "it was told of nothing");
        assert!(plane.host.resize_disk(large, u64::MAX).is_err());
        drop(driver);
        plane.end();
    }
}

/// A read-only disk says so, and is not written to by those who do not listen.
#[test]
fn a_read_only_disk_stays_as_it_is() {
    for kind in KINDS {
        let plane = Plane::new();
        let files = Files::new(kind, SIZE);
        files.plain.write_all_at(&[7; 4096], 0).unwrap();
        add_with(&plane, "disk", files.image(), SIZE, |spec| spec.read_only = true);
        let mut driver = connect(&plane, "disk", &Options::new(false));
        let features = driver.features();
        assert!(features & device::RO != 0);
        assert_eq!(features & (device::DISCARD | device::WRITE_ZEROES), 0);
        for request in [
            Request::write(0, &[1; 4096]),
            Request::discard(0, 8),
            Request::write_zeroes(0, 8, true),
        ] {
            assert_eq!(driver.run(&request).unwrap().status, Some(status::IOERR));
        }
        assert_eq!(driver.run(&Request::read(0, 4096)).unwrap().data, [7; 4096]);
        ok(&driver.run(&Request::flush()).unwrap());
        let mut found = [0; 4096];
        files.plain.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [7; 4096]);
        drop(driver);
        plane.end();
    }
}

/// The guest is told the name, the first 20 bytes of it.
#[test]
fn a_disk_has_a_name() {
    let plane = Plane::new();
    for (name, id) in [("a", "a\0"), ("twenty-bytes-and-more-than-that", "twenty-bytes-and-mor")] {
        let (_, _files, mut driver) = memory_disk(&plane, name, SIZE);
        let done = driver.run(&Request::get_id()).unwrap();
        assert!(done.data.starts_with(id.as_bytes()) && done.data.len() == 20, "{done:?}");
    }
    plane.end();
}

/// Everything about a disk is counted, and its state is that of its guest.
#[test]
fn what_a_guest_does_is_seen() {
    let plane = Plane::new();
    let (id, _files, mut driver) = memory_disk(&plane, "disk", SIZE);
    wait_state(&plane.host, id, &dataplane::PortState::Running);
    for _ in 0..3 {
        ok(&driver.run(&Request::write(0, &[1; 1024])).unwrap());
        ok(&driver.run(&Request::read(0, 512)).unwrap());
        ok(&driver.run(&Request::discard(0, 4)).unwrap());
    }
    driver.run(&Request::read(SIZE, 512)).unwrap();
    let seen = disk(&plane.host, id);
    let bytes = |kind: OperationKind| seen.operations.kinds[kind as usize].bytes;
    assert_eq!(bytes(OperationKind::Write), 3 * 1024);
    assert_eq!(bytes(OperationKind::Read), 3 * 512);
    assert_eq!(bytes(OperationKind::Discard), 3 * 2048);
    assert_eq!(seen.operations.refused.iter().sum::<u64>(), 1);
    assert_eq!((seen.sessions, seen.in_flight, seen.size), (1, 0, SIZE));
    assert!(seen.kicks > 0 && seen.interrupts > 0 && seen.bounced == 0);
    drop(driver);
    wait_state(&plane.host, id, &dataplane::PortState::Waiting);
    plane.run(plane.host.remove_disk(id)).unwrap();
    assert!(plane.host.disk_status(id).is_none());
    plane.end();
}
