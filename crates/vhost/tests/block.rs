//! What a disk's session does besides: memory for requests in flight, the configuration space, and telling its changes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use common::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketType, socket};
use testkit::frontend::request::*;
use testkit::frontend::{inflight_body, protocol};
use vhost_session::DeviceSpec;
use virtqueue::{TrackedQueue, region_bytes};

const NOTHING: [&str; 0] = [];

/// A disk's session with everything negotiated.
fn host(features: u64) -> Host {
    let mut host = Host::with(disk());
    host.negotiate_with(features, protocol::BLOCK);
    host
}

/// An unsealed memfd.
fn file(size: u64) -> OwnedFd {
    let fd = memfd_create("inflight", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

/// What SET_INFLIGHT_FD comes to.
fn set(host: &mut Host, body: &[u8], fd: impl Into<OwnedFd>) -> Vec<String> {
    host.acked(SET_INFLIGHT_FD, body, vec![fd.into()])
}

/// Describes a ring at a place of its own, and kicks it.
fn start(host: &mut Host, queue: u32) -> Vec<String> {
    host.describe_at(queue, user(0x8000 * u64::from(queue)));
    host.acked(SET_VRING_KICK, &n(queue.into()), event())
}

fn started(queue: u32) -> Vec<String> {
    vec![format!("start {queue}"), "send 12 0".into()]
}

fn refused(request: u32, fault: &str) -> Vec<String> {
    vec![format!("send {request} 1"), format!("refused {fault}")]
}

#[test]
fn a_disk_offers_what_belongs_to_it() {
    let mut host = Host::with(disk());
    let offered = format!("send 15 {:#x}", protocol::BLOCK);
    assert_eq!(host.plain(GET_PROTOCOL_FEATURES, &[], vec![]), [offered]);
    assert_eq!(host.plain(GET_QUEUE_NUM, &[], vec![]), ["send 17 4"]);
    for (spec, without) in [
        (DeviceSpec { inflight: false, ..disk() }, protocol::INFLIGHT_SHMFD),
        (DeviceSpec { config_size: 0, ..disk() }, protocol::CONFIG | protocol::BACKEND_REQ),
    ] {
        let offered = format!("send 15 {:#x}", protocol::BLOCK & !without);
        assert_eq!(Host::with(spec).plain(GET_PROTOCOL_FEATURES, &[], vec![]), [offered]);
    }
    let spec = DeviceSpec::block(0, u16::MAX, 0);
    assert_eq!((spec.rings, spec.queue_num), (256, 256));
}

/// The layout of the answer, byte by byte: QEMU accepts no other length than that of its own message.
#[test]
fn memory_for_requests_in_flight_is_handed_out() {
    let split = [0x80, 0x10, 0, 0, 0, 0, 0, 0];
    let packed = [0x80, 0x20, 0, 0, 0, 0, 0, 0];
    let tail = [0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 128, 0];
    for (features, bytes, size) in [(SPLIT, split, 0x1080), (PACKED, packed, 0x2080)] {
        assert_eq!(size, 2 * u64::from(region_bytes(features == PACKED, 128)));
        for padding in [4, 0] {
            let mut host = host(features);
            let body = &inflight_body(7, 9, 2, 128)[..20 + padding];
            let reply = [bytes.as_slice(), &tail, &vec![0; padding]].concat();
            assert_eq!(
                host.plain(GET_INFLIGHT_FD, body, vec![]),
                [format!("make {size}"), format!("send 31 {reply:x?} with a descriptor")]
            );
            let file = File::from(host.sent.pop().unwrap());
            let mut bytes = Vec::new();
            (&file).read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, vec![0; size as usize]);
            for other in [0, size - 1, size + 1] {
                assert!(ftruncate(&file, other).is_err(), "its size is for ever");
            }
        }
    }
    // Before the format is known there is room for either.
    let mut host = Host::with(disk());
    host.plain(SET_PROTOCOL_FEATURES, &n(protocol::BLOCK), vec![]);
    let made = host.plain(GET_INFLIGHT_FD, &inflight_body(0, 0, 1, 128), vec![]);
    assert_eq!(made[0], format!("make {}", 0x2080 / 2));
}

#[test]
fn without_memory_to_hand_out_the_front_end_goes_on_without() {
    let mut host = host(SPLIT);
    host.poor = true;
    let reply = inflight_body(0, 0, 2, 128);
    assert_eq!(
        host.plain(GET_INFLIGHT_FD, &inflight_body(0, 0, 2, 128), vec![]),
        ["make 4224".into(), format!("send 31 {reply:x?}"), "refused inflight-not-made".into()]
    );
    host.share();
    assert_eq!(start(&mut host, 0), started(0));
}

#[test]
fn each_queue_that_starts_has_its_region() {
    for features in [SPLIT, PACKED] {
        let bytes = u64::from(region_bytes(features == PACKED, 16));
        for offset in [0, 4096, 64, 8] {
            let mut host = host(features);
            host.share();
            // Memory that was only asked for is not used.
            host.plain(GET_INFLIGHT_FD, &inflight_body(0, 0, 4, 16), vec![]);
            assert_eq!(start(&mut host, 3), started(3));
            assert!(host.last_start.take().unwrap().inflight.is_none());
            let body = inflight_body(4 * bytes, offset, 4, 16);
            let memory = File::from(file(offset + 4 * bytes));
            let again = || OwnedFd::from(memory.try_clone().unwrap());
            assert_eq!(set(&mut host, &body, again()), refused(32, "ring-running"));
            assert_eq!(host.plain(GET_VRING_BASE, &pair(3, 0), vec![])[0], "stop 3");
            // Twice: the last one counts.
            assert_eq!(set(&mut host, &body, file(offset + 4 * bytes)), ["map 1", "send 32 0"]);
            assert_eq!(set(&mut host, &body, again()), ["map 1", "send 32 0"]);
            for queue in 0..4 {
                assert_eq!(start(&mut host, queue), started(queue));
                let setup = host.last_start.take().unwrap();
                let region = setup.inflight.as_ref().unwrap();
                assert_eq!(region.len() as u64, bytes);
                region.store_u16(14, 0x1230 + queue as u16);
                region.store_u64(bytes as usize - 8, u64::from(queue));
                let word = |at: u64| {
                    let mut word = [0; 2];
                    memory
                        .read_exact_at(&mut word, offset + u64::from(queue) * bytes + at)
                        .unwrap();
                    u16::from_le_bytes(word)
                };
                assert_eq!((word(14), word(bytes - 8)), (0x1230 + queue as u16, queue as u16));
            }
        }
    }
}

#[test]
fn memory_for_requests_in_flight_that_cannot_be() {
    for features in [SPLIT, PACKED] {
        let bytes = u64::from(region_bytes(features == PACKED, 128));
        let body = |size, offset| inflight_body(size, offset, 2, 128);
        let bad: [(u64, u64, u16, u16); 11] = [
            (2 * bytes, 0, 0, 128),
            (2 * bytes, 0, 5, 128),
            (2 * bytes, 0, u16::MAX, 128),
            (2 * bytes, 0, 2, 0),
            (2 * bytes, 0, 2, 32769),
            (2 * bytes, 0, 2, u16::MAX),
            (2 * bytes - 1, 0, 2, 128),
            (0, 0, 2, 128),
            (u64::MAX, 0, u16::MAX, u16::MAX),
            (2 * bytes, 4, 2, 128),
            (2 * bytes, u64::MAX, 2, 128),
        ];
        let mut one = host(features);
        for (size, offset, queues, queue_size) in bad {
            let body = inflight_body(size, offset, queues, queue_size);
            let expect = refused(32, "bad-inflight");
            assert_eq!(set(&mut one, &body, file(1 << 20)), expect, "{body:?}");
        }
        // Nor is there any to be had for such rings; that message has no other answer.
        for (_, _, queues, queue_size) in &bad[..6] {
            let mut host = host(features);
            let body = inflight_body(0, 0, *queues, *queue_size);
            assert_eq!(host.acked(GET_INFLIGHT_FD, &body, vec![]), ["close bad-inflight"]);
        }
        let not_mapped = ["map 1", "send 32 1", "refused inflight-not-mapped"];
        for (size, offset) in [
            (2 * bytes, 1 << 20),
            (2 * bytes, u64::MAX - 7),
            (2 * bytes, i64::MAX as u64 - 7),
            (u64::MAX, !4095),
            (u64::MAX, 1 << 40),
        ] {
            assert_eq!(set(&mut one, &body(size, offset), file(1 << 20)), not_mapped);
        }
        let open = |path| File::options().read(true).write(true).open(path).unwrap();
        let read_only = |fd: OwnedFd| File::open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let files: [(&str, OwnedFd); 7] = [
            ("a pipe", std::io::pipe().unwrap().0.into()),
            ("/dev/zero", open("/dev/zero").into()),
            ("a directory", File::open("/tmp").unwrap().into()),
            ("an eventfd", sys::EventFd::new().unwrap().into()),
            ("a socket", UnixStream::pair().unwrap().0.into()),
            ("a read-only memfd", read_only(file(1 << 20)).unwrap().into()),
            ("an empty file", file(0)),
        ];
        for (what, fd) in files {
            assert_eq!(set(&mut one, &body(2 * bytes, 0), fd), not_mapped, "{what}");
        }
        // None of these was taken, and the session goes on.
        one.share();
        assert_eq!(start(&mut one, 0), started(0));
        assert!(one.last_start.take().unwrap().inflight.is_none());
        // What is longer than the rings need is nobody's business, however long it says it is.
        let mut host = host(features);
        assert_eq!(set(&mut host, &body(u64::MAX, 0), file(2 * bytes)), ["map 1", "send 32 0"]);
    }
    for (count, expect) in [(0, "descriptor-count"), (2, "descriptor-count")] {
        let fds = (0..count).map(|_| file(1 << 20)).collect();
        let lines = host(SPLIT).acked(SET_INFLIGHT_FD, &inflight_body(8192, 0, 2, 128), fds);
        assert_eq!(lines, [format!("close {expect}")]);
    }
    let lines = host(SPLIT).acked(GET_INFLIGHT_FD, &inflight_body(0, 0, 2, 128), pipe());
    assert_eq!(lines, ["close descriptor-count"]);
    for size in [19, 25] {
        for request in [GET_INFLIGHT_FD, SET_INFLIGHT_FD] {
            assert_eq!(host(SPLIT).plain(request, &vec![0; size], vec![]), ["close body-size"]);
        }
    }
}

/// Firmware makes smaller rings than the front end allowed for, so that is no mistake; the others are.
#[test]
fn a_ring_must_have_room_in_its_region() {
    let bytes = |packed, size| u64::from(region_bytes(packed, size));
    let cases: [(u64, u16, u16, u32, bool); 6] = [
        (SPLIT, 2, 16, 1, true),
        (SPLIT, 2, 16, 2, false),
        (SPLIT, 4, 256, 3, true),
        (SPLIT, 4, 15, 0, false),
        (PACKED, 4, 17, 3, true),
        (PACKED, 1, 16, 1, false),
    ];
    for (features, queues, size, queue, room) in cases {
        let length = u64::from(queues) * bytes(features == PACKED, size);
        let mut host = host(features);
        host.share();
        let body = inflight_body(length, 0, queues, size);
        assert_eq!(set(&mut host, &body, file(length)), ["map 1", "send 32 0"]);
        if room {
            assert_eq!(start(&mut host, queue), started(queue));
            let setup = host.last_start.take().unwrap();
            let region = setup.inflight.unwrap();
            assert_eq!(region.len() as u64, bytes(features == PACKED, size));
            TrackedQueue::new(&setup.mem, &setup.config, Some(region)).map(drop).unwrap();
        } else {
            assert_eq!(start(&mut host, queue), refused(12, "ring-outside-inflight"));
            assert_eq!(host.plain(GET_VRING_BASE, &pair(queue, 0), vec![]).len(), 1);
        }
    }
    // Brought before the format was known, and too small for the one that was chosen: all but the last have room.
    let mut host = Host::with(disk());
    host.plain(SET_PROTOCOL_FEATURES, &n(protocol::BLOCK), vec![]);
    let length = 4 * bytes(false, 16);
    let body = inflight_body(length, 0, 4, 16);
    assert_eq!(set(&mut host, &body, file(length)), ["map 1", "send 32 0"]);
    host.plain(SET_FEATURES, &n(PACKED), vec![]);
    host.share();
    let fitting = length / bytes(true, 16);
    assert_eq!(fitting, 2);
    for queue in 0..4 {
        let fits = u64::from(queue) < fitting;
        let expect = if fits { started(queue) } else { refused(12, "ring-outside-inflight") };
        assert_eq!(start(&mut host, queue), expect);
    }
}

#[test]
fn rings_after_a_reset_need_new_regions() {
    for (request, body) in [(RESET_DEVICE, vec![]), (SET_STATUS, n(0).to_vec())] {
        let mut host = host(SPLIT);
        host.share();
        let area = inflight_body(8192, 0, 4, 16);
        assert_eq!(set(&mut host, &area, file(8192)), ["map 1", "send 32 0"]);
        assert_eq!(start(&mut host, 0), started(0));
        // Not after another kick, or another memory table.
        assert_eq!(host.plain(SET_VRING_KICK, &n(0), event()), ["stop 0", "start 0"]);
        assert!(host.last_start.take().unwrap().inflight.is_some());
        let region = region(BASE, SIZE);
        host.plain(SET_MEM_TABLE, &table(&[&region]), fds(&[&region]));
        assert!(host.last_start.take().unwrap().inflight.is_some());
        assert_eq!(host.plain(request, &body, vec![]), ["stop 0"]);
        assert_eq!(start(&mut host, 0), started(0));
        assert!(host.last_start.take().unwrap().inflight.is_none());
    }
}

/// A front end that takes the memory back costs its own session at most.
#[test]
fn memory_for_requests_in_flight_that_vanishes() {
    for left in [0, 4096] {
        let mut host = host(SPLIT);
        host.share();
        let memory = File::from(file(8192));
        let body = inflight_body(8192, 0, 4, 16);
        assert_eq!(set(&mut host, &body, memory.try_clone().unwrap()), ["map 1", "send 32 0"]);
        assert_eq!(start(&mut host, 0), started(0));
        let setup = host.last_start.take().unwrap();
        let region = setup.inflight.unwrap();
        region.store_u64(0, 7);
        assert!(!region.memory().faulted());
        memory.set_len(left).unwrap();
        let whole = region.load_u64(0) == 7;
        assert_eq!((whole, region.memory().faulted()), (left > 0, left == 0));
        assert!(!setup.mem.faulted(), "guest memory is another");
        assert_eq!(host.plain(GET_VRING_BASE, &pair(0, 0), vec![])[0], "stop 0");
    }
}

#[test]
fn what_was_not_negotiated_is_refused() {
    for (request, body, fd, expect) in [
        (GET_INFLIGHT_FD, inflight_body(0, 0, 1, 16), false, vec!["close not-negotiated"]),
        (
            SET_INFLIGHT_FD,
            inflight_body(4096, 0, 1, 16),
            true,
            vec!["send 32 1", "refused not-negotiated"],
        ),
        (SET_BACKEND_REQ_FD, vec![], true, vec!["send 21 1", "refused not-negotiated"]),
        (SET_CONFIG, vec![0; 13], false, vec!["send 25 1", "refused not-negotiated"]),
        (GET_CONFIG, vec![0; 13], false, vec!["send 24 []", "refused not-negotiated"]),
    ] {
        let mut host = Host::with(disk());
        host.negotiate_with(SPLIT, protocol::REPLY_ACK);
        let fds = if fd { vec![file(4096)] } else { vec![] };
        assert_eq!(host.acked(request, &body, fds), expect);
    }
}

/// Offset, length, flags and bytes as in GET_CONFIG and SET_CONFIG.
fn config(offset: u32, size: u32, flags: u32, bytes: &[u8]) -> Vec<u8> {
    [[offset, size, flags].map(u32::to_ne_bytes).concat(), bytes.to_vec()].concat()
}

#[test]
fn the_configuration_space_is_read_from_the_device() {
    let mut host = host(SPLIT);
    let ask = |offset, size| config(offset, size, 0, &vec![0; size.min(200) as usize]);
    let read = |body: Vec<u8>| ["read config".into(), format!("send 24 {body:x?}")];
    let expect = read(config(2, 3, 0, &[3, 4, 5]));
    assert_eq!(host.plain(GET_CONFIG, &ask(2, 3), vec![]), expect);
    host.config[3] = 99;
    let expect = read(config(2, 3, 0, &[3, 99, 5]));
    assert_eq!(host.plain(GET_CONFIG, &ask(2, 3), vec![]), expect);
    // Behind the end there are zeroes, whatever the device says, and if it says less.
    let expect = read(config(9, 3, 0, &[10, 0, 0]));
    host.config.extend([11, 12]);
    assert_eq!(host.plain(GET_CONFIG, &ask(9, 3), vec![]), expect);
    host.config.truncate(1);
    let expect = read(config(0, 3, 0, &[1, 0, 0]));
    assert_eq!(host.plain(GET_CONFIG, &ask(0, 3), vec![]), expect);
    let whole = host.plain(GET_CONFIG, &config(0, 256, 0, &[0; 256]), vec![]);
    assert_eq!(whole.len(), 2);
    for (offset, size) in [(0, 0), (0, 257), (200, 57), (u32::MAX, 1), (1, u32::MAX)] {
        let expect = ["send 24 []", "refused bad-config"];
        assert_eq!(host.plain(GET_CONFIG, &ask(offset, size), vec![]), expect);
    }
}

/// The guest writes, the front end passes it on: none of it may cost the guest its disk.
#[test]
fn the_configuration_space_is_written_to_the_device() {
    let mut host = host(SPLIT);
    for (flags, value) in [(0, 42), (1, 43)] {
        let body = config(0, 1, flags, &[value]);
        let written = format!("write config 0 [{value}]");
        assert_eq!(host.plain(SET_CONFIG, &body, vec![]), std::slice::from_ref(&written));
        assert_eq!(host.acked(SET_CONFIG, &body, vec![]), [written, "send 25 0".into()]);
        assert_eq!(host.config[0], value);
    }
    let write = "write config 8 [1, 2]";
    let body = config(8, 2, 0, &[1, 2]);
    assert_eq!(host.plain(SET_CONFIG, &body, vec![]), [write, "refused config-refused"]);
    let answered = [write, "send 25 1", "refused config-refused"];
    assert_eq!(host.acked(SET_CONFIG, &body, vec![]), answered);
    for (body, fault) in [
        (config(0, 0, 0, &[]), "bad-config"),
        (config(0, 2, 0, &[1]), "bad-config"),
        (config(0, 1, 0, &[1, 2]), "bad-config"),
        (config(9, 2, 0, &[1, 2]), "bad-config"),
        (config(10, 1, 0, &[1]), "bad-config"),
        (config(u32::MAX, 1, 0, &[1]), "bad-config"),
        (config(2, u32::MAX, 0, &[1]), "bad-config"),
        (config(0, 1, 2, &[1]), "bad-config-flags"),
        (config(0, 1, u32::MAX, &[1]), "bad-config-flags"),
    ] {
        assert_eq!(host.plain(SET_CONFIG, &body, vec![]), [format!("refused {fault}")]);
        assert_eq!(host.acked(SET_CONFIG, &body, vec![]), refused(25, fault));
    }
    for size in [11, 12 + 257] {
        let mut host = self::host(SPLIT);
        assert_eq!(host.plain(SET_CONFIG, &vec![0; size], vec![]), ["close body-size"]);
    }
}

#[test]
fn changes_are_told_on_a_stream_socket() {
    let mut host = host(SPLIT);
    for _ in 0..2 {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let lines = host.acked(SET_BACKEND_REQ_FD, &[], vec![theirs.into()]);
        assert_eq!(lines, ["backend", "send 21 0"]);
    }
    assert_eq!(host.backends.len(), 2);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("listener");
    let unconnected = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let (tcp, seq) = (AddressFamily::INET, SocketType::SEQPACKET);
    let wrong: [(&str, OwnedFd); 7] = [
        ("a pipe", std::io::pipe().unwrap().1.into()),
        ("a file", file(4096)),
        ("a datagram socket", UnixDatagram::pair().unwrap().0.into()),
        ("a listener", UnixListener::bind(path).unwrap().into()),
        ("an unconnected socket", unconnected),
        ("a socket of packets", socket(AddressFamily::UNIX, seq, None).unwrap()),
        ("a TCP socket", socket(tcp, SocketType::STREAM, None).unwrap()),
    ];
    for (what, fd) in wrong {
        let lines = host.acked(SET_BACKEND_REQ_FD, &[], vec![fd]);
        assert_eq!(lines, refused(21, "not-a-socket"), "{what}");
    }
    assert_eq!(host.plain(SET_BACKEND_REQ_FD, &[], pipe()), ["close not-a-socket"]);
    // Only to those who want to know, and only while their device runs.
    for (without, wanted) in [(0, true), (protocol::CONFIG, false), (protocol::BACKEND_REQ, false)]
    {
        let mut host = self::host(SPLIT);
        host.plain(SET_PROTOCOL_FEATURES, &n(protocol::BLOCK & !without), vec![]);
        host.share();
        assert!(!host.session.tells_changes());
        assert_eq!(start(&mut host, 0), started(0));
        assert_eq!(host.session.tells_changes(), wanted);
        host.plain(GET_VRING_BASE, &pair(0, 0), vec![]);
        assert!(!host.session.tells_changes());
    }
}

/// An answer counts for its own question only.
#[test]
fn answers_to_other_questions_are_none() {
    let mut host = host(SPLIT);
    let session = &mut host.session;
    session.inflight_made(Ok(file(1)));
    session.config_read(&[1]);
    session.config_written(Ok(()));
    assert!(session.poll().is_none());
    assert_eq!(host.run(), NOTHING);
    assert_eq!(host.acked(GET_QUEUE_NUM, &[], vec![]), ["send 17 4"]);
}
