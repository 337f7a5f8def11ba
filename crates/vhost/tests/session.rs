//! Each message of the specification, and what the session does with it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use common::*;
use guestmem::GuestMemory;
use testkit::frontend::request::*;
use testkit::frontend::{NEED_REPLY, REPLY, VERSION, message, protocol};
use vhost_session::{Action, DeviceSpec, Session, SessionFault};

const NOTHING: [&str; 0] = [];

#[test]
fn features_are_offered_and_acknowledged() {
    let mut host = Host::new();
    let offered = spec().features | 1 << 30;
    assert_eq!(host.plain(GET_FEATURES, &[], vec![]), [format!("send 1 {offered:#x}")]);
    let protocol = format!("send 15 {:#x}", protocol::NET);
    assert_eq!(host.plain(GET_PROTOCOL_FEATURES, &[], vec![]), [protocol]);
    assert_eq!(host.plain(SET_OWNER, &[], vec![]), NOTHING);
    // Bits of vhost-user's own are not the device's business.
    assert_eq!(host.plain(SET_FEATURES, &n(SPLIT), vec![]), ["features 0x100000000"]);
    assert_eq!(host.plain(GET_QUEUE_NUM, &[], vec![]), ["send 17 2"]);
}

#[test]
fn what_a_session_cannot_carry_out_is_not_offered() {
    let spec = DeviceSpec { features: u64::MAX, ..spec() };
    let mut host = Host::with(spec);
    let offered: u64 = !(1 << 33 | 1 << 26);
    assert_eq!(host.plain(GET_FEATURES, &[], vec![]), [format!("send 1 {offered:#x}")]);
    assert_eq!(host.plain(SET_FEATURES, &n(1 << 33), vec![]), ["close features-not-offered"]);
}

#[test]
fn features_beyond_the_offer_are_refused() {
    let mut host = Host::new();
    assert_eq!(
        host.plain(SET_PROTOCOL_FEATURES, &n(protocol::LOG_SHMFD), vec![]),
        ["close protocol-features-not-offered"]
    );
    assert!(host.closed && host.plain(GET_FEATURES, &[], vec![]).is_empty());

    let mut host = Host::new();
    host.negotiate(SPLIT);
    assert_eq!(
        host.acked(SET_FEATURES, &n(1 << 40), vec![]),
        ["send 2 1", "refused features-not-offered"]
    );
    // The device must not claim that the features are all right (virtio 1.3, 2.2.2).
    assert_eq!(host.acked(SET_STATUS, &n(0xb), vec![]), ["send 39 0"]);
    assert_eq!(host.plain(GET_STATUS, &[], vec![]), ["send 40 3"]);
    assert_eq!(host.acked(SET_FEATURES, &n(SPLIT), vec![])[1], "send 2 0");
    assert_eq!(host.acked(SET_STATUS, &n(0xb), vec![]), ["send 39 0"]);
    assert_eq!(host.plain(GET_STATUS, &[], vec![]), ["send 40 0xb"]);
}

#[test]
fn acknowledgements_are_for_those_who_negotiated_them() {
    let mut host = Host::new();
    assert_eq!(host.acked(SET_OWNER, &[], vec![]), NOTHING);
    // The request that negotiates them is the first to be acknowledged.
    assert_eq!(host.acked(SET_PROTOCOL_FEATURES, &n(protocol::REPLY_ACK), vec![]), ["send 16 0"]);
    assert_eq!(host.acked(SET_OWNER, &[], vec![]), ["send 3 0"]);
    assert_eq!(host.plain(SET_OWNER, &[], vec![]), NOTHING);
    // A request with an answer of its own has no other.
    assert_eq!(host.acked(GET_QUEUE_NUM, &[], vec![]), ["send 17 2"]);
    assert_eq!(host.acked(GET_VRING_BASE, &pair(0, 0), vec![]), ["send 11 0"]);
    // Refused: with a wish for an acknowledgement the session goes on, without it does not.
    assert_eq!(
        host.acked(SET_VRING_NUM, &pair(4, 16), vec![]),
        ["send 8 1", "refused no-such-ring"]
    );
    assert_eq!(host.plain(SET_VRING_NUM, &pair(4, 16), vec![]), ["close no-such-ring"]);
}

/// Every request that this device does not take, whatever was negotiated.
#[test]
fn requests_of_features_never_offered_are_refused_by_name() {
    let refused = |request: u32, body: &[u8], fds: Vec<OwnedFd>, expect: &[&str]| {
        let mut host = Host::new();
        host.negotiate(SPLIT);
        assert_eq!(host.acked(request, body, fds), expect, "request {request}");
    };
    let ack = |request| vec![format!("send {request} 1"), "refused not-negotiated".into()];
    let ack: &dyn Fn(u32) -> Vec<String> = &ack;
    for (request, size, with_fd) in [
        (SET_LOG_BASE, 16, true),
        (SET_LOG_FD, 0, true),
        (SET_BACKEND_REQ_FD, 0, true),
        (SET_VRING_ENDIAN, 8, false),
        (SET_CONFIG, 16, false),
        (CLOSE_CRYPTO_SESSION, 8, false),
        (POSTCOPY_LISTEN, 0, false),
        (SET_INFLIGHT_FD, 24, true),
        (GPU_SET_SOCKET, 0, true),
        (VRING_KICK, 8, false),
    ] {
        let expect = ack(request);
        let expect: Vec<&str> = expect.iter().map(String::as_str).collect();
        refused(request, &vec![0; size], if with_fd { event() } else { vec![] }, &expect);
    }
    let result = |request| [format!("send {request} 0x101"), "refused not-negotiated".into()];
    for (request, size, with_fd) in [
        (IOTLB_MSG, 32, false),
        (POSTCOPY_END, 0, false),
        (SET_DEVICE_STATE_FD, 8, true),
        (CHECK_DEVICE_STATE, 0, false),
    ] {
        let fds = if with_fd { event() } else { vec![] };
        let mut host = Host::new();
        assert_eq!(host.plain(request, &vec![0; size], fds), result(request));
    }
    for (request, size, with_fd) in [
        (CREATE_CRYPTO_SESSION, 100, false),
        (POSTCOPY_ADVISE, 0, false),
        (GET_INFLIGHT_FD, 24, false),
        (GET_SHARED_OBJECT, 16, false),
        (GET_SHMEM_CONFIG, 0, false),
    ] {
        let fds = if with_fd { event() } else { vec![] };
        refused(request, &vec![0; size], fds, &["close not-negotiated"]);
    }
    refused(GET_CONFIG, &[0; 16], vec![], &["send 24 []", "refused not-negotiated"]);
    refused(45, &[], vec![], &["send 45 1", "refused unknown-request"]);
    refused(0, &[], event(), &["send 0 1", "refused unknown-request"]);
    assert_eq!(Host::new().plain(4711, &[1, 2, 3], vec![]), ["close unknown-request"]);
}

#[test]
fn requests_of_features_not_negotiated_are_refused() {
    let mut host = Host::new();
    host.plain(SET_PROTOCOL_FEATURES, &n(protocol::REPLY_ACK), vec![]);
    for (request, body, fd) in [
        (ADD_MEM_REG, vec![0; 40], true),
        (REM_MEM_REG, vec![0; 40], false),
        (SET_STATUS, vec![0; 8], false),
    ] {
        let fds = if fd { event() } else { vec![] };
        let expect = [format!("send {request} 1"), "refused not-negotiated".into()];
        assert_eq!(host.acked(request, &body, fds), expect);
    }
    assert_eq!(host.plain(GET_MAX_MEM_SLOTS, &[], vec![]), ["close not-negotiated"]);
    let mut host = Host::new();
    assert_eq!(host.plain(GET_STATUS, &[], vec![]), ["close not-negotiated"]);
    // A device that is not a network device has neither MTU nor RARP.
    let mut host = Host::with(DeviceSpec { net: false, ..spec() });
    assert_eq!(host.plain(NET_SET_MTU, &n(1500), vec![]), ["close not-negotiated"]);
}

#[test]
fn framing_is_checked_before_anything_else() {
    let cases: &[(u32, u32, usize, &str)] = &[
        (GET_FEATURES, 0, 0, "bad-version"),
        (GET_FEATURES, 2, 0, "bad-version"),
        (GET_FEATURES, VERSION | REPLY, 0, "bad-flags"),
        (GET_FEATURES, VERSION | 0x10, 0, "bad-flags"),
        (GET_FEATURES, VERSION | 0x8000_0000, 0, "bad-flags"),
        (GET_FEATURES, VERSION, 8, "body-size"),
        (SET_FEATURES, VERSION, 4, "body-size"),
        (SET_FEATURES, VERSION | NEED_REPLY, 9, "body-size"),
        (SET_VRING_ADDR, VERSION, 48, "body-size"),
        (SET_MEM_TABLE, VERSION, 0, "body-size"),
        (SET_MEM_TABLE, VERSION, 8 + 33 * 32, "body-size"),
        (GET_CONFIG, VERSION, 11, "body-size"),
        (GET_CONFIG, VERSION, 12 + 257, "body-size"),
        (4711, VERSION, 4097, "body-size"),
        (4711, VERSION, 0xffff_ffff, "body-size"),
    ];
    for &(request, flags, size, fault) in cases {
        let mut host = Host::new();
        host.negotiate(SPLIT);
        let header = [request, flags, size as u32].map(u32::to_ne_bytes).concat();
        // The header alone decides: no memory is spent on a body that will not be taken.
        assert_eq!(host.give(&header, vec![]), [format!("close {fault}")], "{request} {size}");
        assert_eq!(host.session.wanted(), 0);
    }
}

#[test]
fn descriptors_belong_to_the_message_they_came_with() {
    let cases: &[(u32, usize, usize, &str)] = &[
        (GET_FEATURES, 0, 1, "close descriptor-count"),
        (SET_FEATURES, 8, 1, "close descriptor-count"),
        (SET_VRING_KICK, 8, 2, "close descriptor-count"),
        (ADD_MEM_REG, 40, 0, "close descriptor-count"),
        (ADD_MEM_REG, 40, 2, "close descriptor-count"),
        (REM_MEM_REG, 40, 2, "close descriptor-count"),
        (SET_MEM_TABLE, 8, 1, "close descriptor-count"),
        (SET_BACKEND_REQ_FD, 0, 0, "close descriptor-count"),
    ];
    for &(request, size, count, expect) in cases {
        let mut host = Host::new();
        host.negotiate(SPLIT);
        let fds = (0..count).flat_map(|_| event()).collect();
        assert_eq!(host.acked(request, &vec![0; size], fds), [expect], "request {request}");
    }

    let mut host = Host::new();
    let bytes = message(SET_VRING_KICK, VERSION, &n(0));
    assert!(host.give(&bytes[..5], vec![]).is_empty());
    assert_eq!(host.session.wanted(), 7);
    assert_eq!(host.give(&bytes[5..], event()), ["close stray-descriptors"]);

    // Two messages in one piece: what came with the piece is the first one's.
    let mut host = Host::new();
    let call = message(SET_VRING_CALL, VERSION, &n(0));
    let both = [call, message(GET_QUEUE_NUM, VERSION, &[])].concat();
    assert_eq!(host.give(&both, event()), ["send 17 2"]);

    // Three messages before any is looked at: each has its own.
    let mut host = Host::new();
    host.session.input(&message(GET_QUEUE_NUM, VERSION, &[]), vec![]);
    host.session.input(&message(SET_VRING_ERR, VERSION, &n(1)), event());
    host.session.input(&message(SET_VRING_ERR, VERSION, &n(0)), event());
    assert_eq!(host.run(), ["send 17 2"]);
    assert!(host.session.error_fd(0).is_some() && host.session.error_fd(1).is_some());

    let mut host = Host::new();
    host.session.descriptors_lost();
    assert_eq!(host.run(), ["close descriptors-lost"]);
}

#[test]
fn what_follows_waits_for_the_answer() {
    let mut host = Host::started(SPLIT);
    let region = region(BASE, SIZE);
    let both =
        [message(SET_MEM_TABLE, VERSION, &table(&[&region])), message(GET_QUEUE_NUM, VERSION, &[])];
    let session = &mut host.session;
    session.input(&both.concat(), fds(&[&region]));
    let Some(Action::Map(regions)) = session.poll() else { panic!("a table to map") };
    assert!(session.poll().is_none() && session.wanted() == 0);
    // The answer to another question is none.
    session.stopped(0, 1);
    assert!(session.poll().is_none());
    session.mapped(GuestMemory::map(&regions).map(Arc::new));
    assert!(matches!(session.poll(), Some(Action::Stop { queue: 0 })));
    assert!(session.poll().is_none() && session.wanted() == 0);
    session.mapped(GuestMemory::map(&regions).map(Arc::new));
    session.stopped(1, 1);
    assert!(session.poll().is_none());
    session.stopped(0, 1);
    assert!(matches!(session.poll(), Some(Action::Start(_))));
    assert!(matches!(session.poll(), Some(Action::Send(..))));
    assert!(session.poll().is_none() && session.wanted() == 12);
}

#[test]
fn input_is_bounded() {
    let mut host = Host::new();
    let bytes = message(GET_QUEUE_NUM, VERSION, &[]).repeat(10_000);
    host.session.input(&bytes, vec![]);
    assert_eq!(host.run(), ["close input-overflow"]);

    let mut host = Host::new();
    for _ in 0..600 {
        host.session.input(&message(SET_VRING_CALL, VERSION, &n(0)), event());
    }
    assert_eq!(host.run(), ["close input-overflow"]);
}

#[test]
fn byte_by_byte_is_all_the_same() {
    let mut host = Host::new();
    let bytes = [message(SET_FEATURES, VERSION, &n(SPLIT)), message(GET_QUEUE_NUM, VERSION, &[])];
    let mut log = Vec::new();
    for byte in bytes.concat() {
        assert!(host.session.wanted() > 0);
        log.extend(host.give(&[byte], vec![]));
    }
    assert_eq!(log, ["features 0x100000000", "send 17 2"]);
}

#[test]
fn a_ring_starts_with_its_kick_and_stops_with_its_position() {
    for (features, base) in [(SPLIT, 0), (PACKED, 0)] {
        let mut host = Host::started(features);
        let setup = host.last_start.take().unwrap();
        assert_eq!((setup.index, setup.enabled, setup.config.size), (0, false, 16));
        assert_eq!(setup.features, features & !(1 << 30));
        assert_eq!(setup.config.packed, features == PACKED);
        assert_eq!(
            (setup.config.desc, setup.config.used, setup.config.avail),
            (BASE, BASE + 0x1000, BASE + 0x2000)
        );
        assert_eq!(setup.config.base, base);
        assert!(setup.kick.is_some() && setup.call.is_none());

        assert_eq!(host.plain(SET_VRING_CALL, &n(0), event()), ["call 0 true"]);
        assert_eq!(host.plain(SET_VRING_CALL, &no_fd(0), vec![]), ["call 0 false"]);
        assert_eq!(host.plain(SET_VRING_ENABLE, &pair(0, 1), vec![]), ["enabled 0 true"]);
        assert_eq!(host.plain(SET_VRING_ENABLE, &pair(0, 1), vec![]), NOTHING);
        assert_eq!(host.plain(SET_VRING_ENABLE, &pair(0, 0), vec![]), ["enabled 0 false"]);
        // Position 7 of ring 0, as the device left it.
        let stopped = ["stop 0", "send 11 0x700000000"];
        assert_eq!(host.plain(GET_VRING_BASE, &pair(0, 0), vec![]), stopped);
        // Again: it stands where it stood.
        assert_eq!(host.plain(GET_VRING_BASE, &pair(0, 0), vec![]), ["send 11 0x700000000"]);
        // And goes on there, without being described anew.
        assert_eq!(host.plain(SET_VRING_KICK, &n(0), event()), ["start 0"]);
        let setup = host.last_start.take().unwrap();
        assert_eq!(setup.config.base, if features == PACKED { 0x7_0007 } else { 7 });
        assert_eq!(setup.known_base, setup.config.base);
        assert_eq!(host.forgotten, [0, 0]);
    }
}

#[test]
fn a_ring_that_never_ran_has_a_position() {
    let mut host = Host::new();
    host.negotiate(SPLIT);
    assert_eq!(host.plain(GET_VRING_BASE, &pair(1, 0), vec![]), ["send 11 1"]);
    assert_eq!(host.acked(SET_VRING_BASE, &pair(1, 5), vec![]), ["send 10 0"]);
    assert_eq!(host.plain(GET_VRING_BASE, &pair(1, 0), vec![]), ["send 11 0x500000001"]);
    let mut host = Host::new();
    host.negotiate(PACKED);
    let start = ["send 11 0x8000800000000001"];
    assert_eq!(host.plain(GET_VRING_BASE, &pair(1, 0), vec![]), start);
    assert_eq!(host.plain(GET_VRING_BASE, &pair(4, 0), vec![]), ["close no-such-ring"]);
}

#[test]
fn the_order_of_description_does_not_matter() {
    let region = region(BASE, SIZE);
    let parts: Vec<(u32, Vec<u8>, bool)> = vec![
        (SET_VRING_NUM, pair(0, 16).to_vec(), false),
        (SET_VRING_ADDR, addr(0, 0, user(0), user(0x1000), user(0x2000)), false),
        (SET_VRING_KICK, n(0).to_vec(), true),
        (SET_MEM_TABLE, table(&[&region]), false),
    ];
    for first in 0..parts.len() {
        for second in (0..parts.len()).filter(|second| *second != first) {
            let mut order = vec![first, second];
            order.extend((0..parts.len()).filter(|part| ![first, second].contains(part)));
            let mut host = Host::new();
            host.negotiate(SPLIT);
            let mut log = Vec::new();
            for part in &order {
                let (request, body, with_event) = &parts[*part];
                let descriptors = match (*request, with_event) {
                    (SET_MEM_TABLE, _) => fds(&[&region]),
                    (_, true) => event(),
                    (_, false) => vec![],
                };
                log.extend(host.plain(*request, body, descriptors));
            }
            assert_eq!(log.iter().filter(|line| *line == "start 0").count(), 1, "{order:?}");
        }
    }
}

#[test]
fn a_ring_of_size_zero_is_none() {
    // DPDK's virtio-user tells and kicks rings its driver has not made.
    let mut host = Host::started(SPLIT);
    assert_eq!(host.acked(SET_VRING_NUM, &pair(1, 0), vec![]), ["send 8 0"]);
    assert_eq!(host.acked(SET_VRING_ADDR, &addr(1, 0, 0, 0, 0), vec![]), ["send 9 0"]);
    assert_eq!(host.acked(SET_VRING_KICK, &n(1), event()), ["send 12 0"]);
    assert_eq!(host.plain(GET_VRING_BASE, &pair(1, 0), vec![]), ["send 11 1"]);
    let refused = ["send 8 1", "refused ring-running"];
    assert_eq!(host.acked(SET_VRING_NUM, &pair(0, 0), vec![]), refused);
}

#[test]
fn without_protocol_features_rings_start_enabled() {
    let mut host = Host::new();
    assert_eq!(host.plain(SET_FEATURES, &n(1 << 32), vec![]), ["features 0x100000000"]);
    let region = region(BASE, SIZE);
    assert_eq!(host.plain(SET_MEM_TABLE, &table(&[&region]), fds(&[&region])), ["map 1"]);
    for (request, body) in [
        (SET_VRING_NUM, pair(1, 256).to_vec()),
        (SET_VRING_ADDR, addr(1, 0, user(0), user(0x2000), user(0x4000))),
    ] {
        assert_eq!(host.plain(request, &body, vec![]), NOTHING);
    }
    assert_eq!(host.plain(SET_VRING_KICK, &no_fd(1), vec![]), ["start 1"]);
    let setup = host.last_start.take().unwrap();
    assert!(setup.enabled && setup.kick.is_none(), "enabled, and polled");
    // Nor can such a front end enable them again after a reset.
    assert_eq!(host.plain(RESET_DEVICE, &[], vec![]), ["stop 1"]);
    for (request, body) in [
        (SET_VRING_NUM, pair(1, 256).to_vec()),
        (SET_VRING_ADDR, addr(1, 0, user(0), user(0x2000), user(0x4000))),
    ] {
        assert_eq!(host.plain(request, &body, vec![]), NOTHING);
    }
    assert_eq!(host.plain(SET_VRING_KICK, &n(1), event()), ["start 1"]);
    assert!(host.last_start.take().unwrap().enabled);
}

#[test]
fn losing_protocol_features_enables_all_rings() {
    let mut host = Host::new();
    host.negotiate(SPLIT);
    assert_eq!(host.plain(SET_FEATURES, &n(1 << 32), vec![]), ["features 0x100000000"]);
    let region = region(BASE, SIZE);
    host.plain(SET_MEM_TABLE, &table(&[&region]), fds(&[&region]));
    host.describe(0);
    host.plain(SET_VRING_KICK, &n(0), event());
    assert!(host.last_start.take().unwrap().enabled);
}

#[test]
fn rings_can_be_enabled_before_features_are_set() {
    // QEMU does so for a virtual function that is not enabled yet.
    let mut host = Host::new();
    host.plain(SET_PROTOCOL_FEATURES, &n(protocol::NET), vec![]);
    for queue in 0..2 {
        assert_eq!(host.plain(SET_VRING_CALL, &n(queue), event()), NOTHING);
        assert_eq!(host.plain(SET_VRING_ERR, &n(queue), event()), NOTHING);
        let enable = host.acked(SET_VRING_ENABLE, &pair(queue as u32, 1), vec![]);
        assert_eq!(enable, ["send 18 0"]);
        assert!(host.session.error_fd(queue as u16).is_some());
    }
    host.plain(SET_FEATURES, &n(SPLIT), vec![]);
    let region = region(BASE, SIZE);
    host.plain(SET_MEM_TABLE, &table(&[&region]), fds(&[&region]));
    host.describe(1);
    host.plain(SET_VRING_KICK, &n(1), event());
    let setup = host.last_start.take().unwrap();
    assert!(setup.enabled && setup.call.is_some());
}

#[test]
fn a_running_ring_takes_only_what_changes_nothing() {
    let refused: &[(u32, Vec<u8>)] = &[
        (SET_VRING_NUM, pair(0, 32).to_vec()),
        (SET_VRING_BASE, pair(0, 0).to_vec()),
        (SET_VRING_ADDR, addr(0, 0, user(0x100), user(0x1000), user(0x2000))),
        (SET_FEATURES, n(PACKED).to_vec()),
    ];
    let mut host = Host::started(SPLIT);
    for (request, body) in refused {
        let expect = [format!("send {request} 1"), "refused ring-running".to_string()];
        assert_eq!(host.acked(*request, body, vec![]), expect);
    }
    assert_eq!(host.acked(SET_VRING_NUM, &pair(0, 16), vec![]), ["send 8 0"]);
    let same = addr(0, 0, user(0), user(0x1000), user(0x2000));
    assert_eq!(host.acked(SET_VRING_ADDR, &same, vec![]), ["send 9 0"]);
    let same = ["features 0x100000000", "send 2 0"];
    assert_eq!(host.acked(SET_FEATURES, &n(SPLIT), vec![]), same);
    // Another kick: the ring goes on with it where it stood.
    let swapped = ["stop 0", "start 0", "send 12 0"];
    assert_eq!(host.acked(SET_VRING_KICK, &n(0), event()), swapped);
    let setup = host.last_start.take().unwrap();
    // The front end has not heard of that stop.
    assert_eq!((setup.config.base, setup.known_base), (STOPPED_AT, 0));
    assert!(host.forgotten.is_empty());
}

#[test]
fn ring_parameters_are_checked() {
    let cases: Vec<(u32, Vec<u8>, &str)> = vec![
        (SET_VRING_NUM, pair(0, 32769).to_vec(), "bad-ring-size"),
        (SET_VRING_NUM, pair(0, 0x1_0000).to_vec(), "bad-ring-size"),
        (SET_VRING_NUM, pair(0x1_0000, 16).to_vec(), "no-such-ring"),
        (SET_VRING_ADDR, addr(0, 1, user(0), 0, 0), "bad-ring-flags"),
        (SET_VRING_ADDR, addr(4, 0, user(0), 0, 0), "no-such-ring"),
        (SET_VRING_BASE, pair(4, 0).to_vec(), "no-such-ring"),
        (SET_VRING_ENABLE, pair(0, 2).to_vec(), "bad-enable"),
        (SET_VRING_ENABLE, pair(4, 1).to_vec(), "no-such-ring"),
        (SET_VRING_KICK, n(4 | 0x100).to_vec(), "no-such-ring"),
        (SET_VRING_KICK, n(0).to_vec(), "bad-ring-descriptor"),
        (SET_VRING_CALL, n(0x200 | 0x100).to_vec(), "bad-ring-descriptor"),
        (SET_VRING_ERR, n(u64::MAX).to_vec(), "bad-ring-descriptor"),
    ];
    for (request, body, fault) in cases {
        let mut host = Host::new();
        host.negotiate(SPLIT);
        let expect = [format!("send {request} 1"), format!("refused {fault}")];
        assert_eq!(host.acked(request, &body, vec![]), expect);
    }
    for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        let mut host = Host::new();
        host.negotiate(SPLIT);
        let expect = |fault| [format!("send {request} 1"), format!("refused {fault}")];
        assert_eq!(host.acked(request, &n(0), pipe()), expect("not-an-eventfd"));
        assert_eq!(host.acked(request, &no_fd(0), event()), expect("bad-ring-descriptor"));
    }
}

/// What can only be judged when the ring is started.
#[test]
fn a_ring_that_cannot_run_is_not_started() {
    let cases: &[(u64, u32, u32, [u64; 3], &str)] = &[
        (SPLIT, 24, 0, [0, 0x1000, 0x2000], "bad-ring-size"),
        (SPLIT, 16, 0x1_0000, [0, 0x1000, 0x2000], "bad-ring-base"),
        (PACKED, 16, 0x8010, [0, 0x1000, 0x2000], "bad-ring-base"),
        (PACKED, 16, 0x8010_8000, [0, 0x1000, 0x2000], "bad-ring-base"),
        (SPLIT, 16, 0, [8, 0x1000, 0x2000], "ring-misaligned"),
        (SPLIT, 16, 0, [0, 0x1002, 0x2000], "ring-misaligned"),
        (SPLIT, 16, 0, [0, 0x1000, 0x2001], "ring-misaligned"),
        (PACKED, 16, 0, [0, 0x1000, 0x2002], "ring-misaligned"),
        // The last byte of each area is one too far.
        (SPLIT, 16, 0, [SIZE - 240, 0x1000, 0x2000], "ring-outside-memory"),
        (SPLIT, 16, 0, [0, SIZE - 128, 0x2000], "ring-outside-memory"),
        (SPLIT, 16, 0, [0, 0x1000, SIZE - 34], "ring-outside-memory"),
        (PACKED, 16, 0, [0, 0x1000, SIZE], "ring-outside-memory"),
        (SPLIT, 16, 0, [0, 0x1000, 0u64.wrapping_sub(user(2))], "ring-outside-memory"),
        // One fits the ring but not its event index.
        (SPLIT | 1 << 29, 16, 0, [0, 0x1000, SIZE - 36], "ring-outside-memory"),
    ];
    for &(features, size, base, [desc, used, avail], fault) in cases {
        let mut host = Host::new();
        host.negotiate(features);
        let region = region(BASE, SIZE);
        host.plain(SET_MEM_TABLE, &table(&[&region]), fds(&[&region]));
        host.plain(SET_VRING_NUM, &pair(0, size), vec![]);
        host.plain(SET_VRING_BASE, &pair(0, base), vec![]);
        let [desc, used, avail] = [desc, used, avail].map(|at| user(0).wrapping_add(at));
        host.plain(SET_VRING_ADDR, &addr(0, 0, desc, used, avail), vec![]);
        let expect = ["send 12 1".to_string(), format!("refused {fault}")];
        assert_eq!(host.acked(SET_VRING_KICK, &n(0), event()), expect);
        // It was not kicked: putting it right does not start it.
        host.describe(0);
        assert_eq!(host.plain(SET_VRING_KICK, &n(0), event()), ["start 0"]);
    }
    // The same sizes and places that just fit.
    for (features, size, [desc, used, avail]) in [
        (SPLIT, 16, [SIZE - 256, 0x1000, 0x2000]),
        (SPLIT, 16, [0, SIZE - 132, 0x2000]),
        (SPLIT, 16, [0, 0x1000, SIZE - 36]),
        (SPLIT | 1 << 29, 16, [0, 0x1000, SIZE - 38]),
        (PACKED, 17, [SIZE - 272, 0x1000, 0x2000]),
        (PACKED, 17, [0, SIZE - 4, 0x2000]),
        (SPLIT, 32768, [0, 0x8_0000, 0xf_0000 - 0x1_0000]),
    ] {
        let mut host = Host::new();
        host.negotiate(features);
        let region = region(BASE, SIZE);
        host.plain(SET_MEM_TABLE, &table(&[&region]), fds(&[&region]));
        host.plain(SET_VRING_NUM, &pair(0, size), vec![]);
        let areas = addr(0, 0, user(desc), user(used), user(avail));
        host.plain(SET_VRING_ADDR, &areas, vec![]);
        assert_eq!(host.plain(SET_VRING_KICK, &n(0), event()), ["start 0"]);
    }
}

#[test]
fn the_drivers_half_of_a_packed_position_is_enough() {
    for (told, started) in [(0x8003, 0x8003_8003), (0x0003, 0x3_0003), (0x8002_8003, 0x8002_8003)] {
        let mut host = Host::new();
        host.negotiate(PACKED);
        let region = region(BASE, SIZE);
        host.plain(SET_MEM_TABLE, &table(&[&region]), fds(&[&region]));
        host.describe(0);
        host.plain(SET_VRING_BASE, &pair(0, told), vec![]);
        host.plain(SET_VRING_KICK, &n(0), event());
        assert_eq!(host.last_start.take().unwrap().config.base, started);
    }
}

#[test]
fn a_new_memory_table_is_mapped_before_rings_are_disturbed() {
    let mut host = Host::started(SPLIT);
    host.describe_at(1, user(0x8000));
    host.plain(SET_VRING_KICK, &n(1), event());
    let (low, high) = (region(BASE, SIZE), region(BASE + 2 * SIZE, SIZE));
    let both = [&low, &high];
    assert_eq!(
        host.acked(SET_MEM_TABLE, &table(&both), fds(&both)),
        ["map 2", "stop 0", "stop 1", "start 0", "start 1", "send 5 0"]
    );
    // Refused: the rings never notice.
    let mut wrong = region(BASE, SIZE);
    wrong.spec.size *= 2;
    assert_eq!(
        host.acked(SET_MEM_TABLE, &table(&[&wrong]), fds(&[&wrong])),
        ["map 1", "send 5 1", "refused memory-not-mapped"]
    );
    assert_eq!(
        host.acked(SET_MEM_TABLE, &table(&[&high]), fds(&[&high])),
        ["map 1", "send 5 1", "refused ring-outside-memory"]
    );
    assert_eq!(
        host.acked(SET_MEM_TABLE, &table(&[]), vec![]),
        ["send 5 1", "refused region-count"]
    );
    assert_eq!(host.session.running().collect::<Vec<_>>(), [0, 1]);
    // More regions announced than described, and the other way round.
    let mut body = table(&both);
    body[0] = 1;
    assert_eq!(host.plain(SET_MEM_TABLE, &body, fds(&[&low])), ["close body-size"]);
    let mut host = Host::started(SPLIT);
    let short = fds(&[&low]);
    assert_eq!(host.plain(SET_MEM_TABLE, &table(&both), short), ["close descriptor-count"]);
}

#[test]
fn regions_come_and_go_one_by_one() {
    let mut host = Host::new();
    host.negotiate(SPLIT);
    assert_eq!(host.plain(GET_MAX_MEM_SLOTS, &[], vec![]), ["send 36 0x1fd"]);
    let (low, high) = (region(BASE, SIZE), region(BASE + 2 * SIZE, SIZE));
    let add = |host: &mut Host, region| host.acked(ADD_MEM_REG, &single(region), fds(&[region]));
    assert_eq!(add(&mut host, &low), ["map 1", "send 37 0"]);
    host.describe(0);
    assert_eq!(host.plain(SET_VRING_KICK, &n(0), event()), ["start 0"]);
    assert_eq!(add(&mut host, &high), ["map 2", "stop 0", "start 0", "send 37 0"]);
    assert_eq!(add(&mut host, &high), ["map 3", "send 37 1", "refused memory-not-mapped"]);

    // Taking the ring's region away parks the ring; bringing it back starts it.
    let gone = host.acked(REM_MEM_REG, &single(&low), vec![]);
    assert_eq!(gone, ["map 1", "stop 0", "send 38 0"]);
    assert_eq!(add(&mut host, &low), ["map 2", "start 0", "send 37 0"]);
    let setup = host.last_start.as_ref().unwrap();
    assert_eq!((setup.config.base, setup.known_base), (STOPPED_AT, 0));
    assert!(host.forgotten.is_empty());

    let unknown = ["send 38 1", "refused no-such-region"];
    let other = region(BASE + 4 * SIZE, SIZE);
    assert_eq!(host.acked(REM_MEM_REG, &single(&other), vec![]), unknown);
    // The offset does not identify a region, and a superfluous descriptor does no harm.
    let mut shifted = region(high.spec.guest_addr, SIZE);
    shifted.spec.mmap_offset = 4096;
    let gone = host.acked(REM_MEM_REG, &single(&shifted), event());
    assert_eq!(gone, ["map 1", "stop 0", "start 0", "send 38 0"]);
    // The last one: nothing is left to map.
    assert_eq!(host.acked(REM_MEM_REG, &single(&low), vec![]), ["stop 0", "send 38 0"]);
    assert_eq!(add(&mut host, &low), ["map 1", "start 0", "send 37 0"]);
}

#[test]
fn there_are_509_memory_slots() {
    let mut host = Host::new();
    host.negotiate(SPLIT);
    for slot in 0..509 {
        let region = region(BASE + slot * 0x10000, 4096);
        let lines = host.acked(ADD_MEM_REG, &single(&region), fds(&[&region]));
        assert_eq!(lines, [format!("map {}", slot + 1), "send 37 0".into()]);
    }
    let region = region(BASE + 509 * 0x10000, 4096);
    let refused = ["send 37 1", "refused region-count"];
    assert_eq!(host.acked(ADD_MEM_REG, &single(&region), fds(&[&region])), refused);
}

#[test]
fn resets_stop_rings_and_keep_memory() {
    for (request, body) in [(RESET_DEVICE, vec![]), (SET_STATUS, n(0).to_vec())] {
        let mut host = Host::started(SPLIT);
        host.plain(SET_VRING_CALL, &n(0), event());
        host.plain(SET_VRING_ENABLE, &pair(0, 1), vec![]);
        host.plain(SET_STATUS, &n(0xf), vec![]);
        let ack = format!("send {request} 0");
        assert_eq!(host.acked(request, &body, vec![]), ["stop 0".to_string(), ack]);
        assert_eq!(host.forgotten, [0, 1, 2, 3]);
        assert_eq!(host.plain(GET_STATUS, &[], vec![]), ["send 40 0"]);
        assert_eq!(host.plain(GET_VRING_BASE, &pair(0, 0), vec![]), ["send 11 0"]);
        // A kick alone does not start what has been forgotten ...
        assert_eq!(host.acked(SET_VRING_KICK, &n(0), event()), ["send 12 0"]);
        host.plain(SET_VRING_NUM, &pair(0, 16), vec![]);
        // ... but the memory table is still there, and so is the call descriptor.
        let areas = addr(0, 0, user(0), user(0x1000), user(0x2000));
        assert_eq!(host.plain(SET_VRING_ADDR, &areas, vec![]), ["start 0"]);
        let setup = host.last_start.take().unwrap();
        assert!(setup.call.is_some() && !setup.enabled);
    }
    let mut host = Host::started(SPLIT);
    let refused = ["send 39 1", "refused bad-status"];
    assert_eq!(host.acked(SET_STATUS, &n(0x100), vec![]), refused);
}

#[test]
fn reset_owner_disables_rings() {
    let mut host = Host::started(SPLIT);
    host.plain(SET_VRING_ENABLE, &pair(0, 1), vec![]);
    assert_eq!(host.acked(RESET_OWNER, &[], vec![]), ["enabled 0 false", "send 4 0"]);
}

#[test]
fn network_requests_reach_the_device() {
    let mut host = Host::new();
    host.negotiate(SPLIT);
    assert_eq!(host.acked(NET_SET_MTU, &n(1500), vec![]), ["mtu 1500", "send 20 0"]);
    for mtu in [0, 67, 9001, 0x1_0000, u64::MAX] {
        let refused = ["send 20 1", "refused bad-mtu"];
        assert_eq!(host.acked(NET_SET_MTU, &n(mtu), vec![]), refused);
    }
    let mac = [0x52, 0x54, 0, 1, 2, 3, 0, 0];
    let rarp = ["rarp [52, 54, 0, 1, 2, 3]", "send 19 0"];
    assert_eq!(host.acked(SEND_RARP, &mac, vec![]), rarp);
}

#[test]
fn a_queue_the_device_could_not_start_ends_the_session() {
    let mut host = Host::started(SPLIT);
    host.describe_at(1, user(0x8000));
    host.plain(SET_VRING_KICK, &n(1), event());
    let region = region(BASE, SIZE);
    host.session.input(&message(SET_MEM_TABLE, VERSION, &table(&[&region])), fds(&[&region]));
    // Both are stopped and the first cannot be started again: the second never is.
    let mut session = host.session;
    let failed = loop {
        match session.poll().unwrap() {
            Action::Map(regions) => session.mapped(GuestMemory::map(&regions).map(Arc::new)),
            Action::Stop { queue } => session.stopped(queue, 0),
            Action::Start(setup) => break setup.index,
            other => panic!("{other:?}"),
        }
    };
    session.not_started(failed);
    assert!(session.poll().is_none());
    assert_eq!((session.running().count(), session.wanted()), (0, 0));
}

#[test]
fn a_session_is_small_until_it_is_used() {
    let session = Session::new(DeviceSpec::net(0, 128));
    assert_eq!(session.running().count(), 0);
    assert_eq!(session.wanted(), 12);
    assert!(!session.is_mid_message());
}

#[test]
fn faults_speak_plainly() {
    let fault = SessionFault::BodySize { request: SET_MEM_TABLE, size: 4096 };
    assert_eq!(fault.to_string(), "a body of 4096 bytes is not that of SET_MEM_TABLE");
    let fault = SessionFault::DescriptorCount { request: 99, count: 3 };
    assert_eq!(fault.to_string(), "request 99 came with 3 descriptors");
}
