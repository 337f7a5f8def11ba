//! Real sockets, real memory, real rings: a front end against a port.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use common::port::{PATIENCE, Port, alone, open_descriptors, wait};
use tempfile::TempDir;
use testkit::driver::{Buffer, DriverQueue, RingSpec, Shape};
use testkit::frontend::request::*;
use testkit::frontend::{
    Frontend, FrontendError, Pages, QueueFds, SharedMemory, VERSION, feature, message, protocol,
};
use vhost_session::DeviceFault;
use vhost_session::socket::{Endpoint, SocketError};

const PACKED: u64 = feature::VERSION_1 | feature::RING_PACKED;

fn socket() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("port.sock");
    (dir, path)
}

/// A VM with one queue running.
struct Vm {
    frontend: Frontend,
    memory: SharedMemory,
    queue: DriverQueue,
    fds: QueueFds,
}

impl Vm {
    fn start(mut frontend: Frontend, features: u64, index: u16) -> Vm {
        frontend.negotiate(features, protocol::NET).unwrap();
        let memory = SharedMemory::new(&[(0, 1 << 20), (1 << 30, 1 << 20)], Pages::Small).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        let packed = frontend.features & feature::RING_PACKED != 0;
        let ring = RingSpec::new(packed, 64, (1 << 30) + 0x1_0000);
        let queue = DriverQueue::new(memory.guest(), &ring).unwrap();
        let fds = frontend.start_queue(index, &memory, &queue).unwrap();
        Vm { frontend, memory, queue, fds }
    }

    /// Sends buffers round the ring until `count` have come back.
    fn exchange(&mut self, count: usize) {
        let mut back = 0;
        while back < count {
            while self.queue.add(&[Buffer { gpa: 0x1000, len: 64 }], &[], Shape::Direct).is_some() {
            }
            self.queue.expose();
            self.fds.kick.signal().unwrap();
            wait(|| self.queue.has_used(), || "a buffer comes back".into());
            while let Some(done) = self.queue.collect().unwrap() {
                assert_eq!(done.len, 0);
                back += 1;
            }
        }
        self.settle();
    }

    /// Collects everything.
    fn settle(&mut self) {
        while self.queue.outstanding() > 0 {
            wait(|| self.queue.has_used(), || "the last buffers come back".into());
            while self.queue.collect().unwrap().is_some() {}
        }
    }
}

#[test]
fn rings_of_both_formats_start_work_and_stop() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    for features in [feature::VERSION_1, PACKED, PACKED | feature::EVENT_IDX] {
        let mut vm = Vm::start(Frontend::connect(&path).unwrap(), features, 1);
        vm.exchange(1000);
        wait(|| vm.fds.call.drain(), || "an interrupt".into());
        let base = vm.frontend.stop_queue(1).unwrap();
        assert_eq!(base, vm.queue.base(), "device and driver agree where the ring stands");
        // And on from there.
        vm.frontend.set_ring_state(SET_VRING_BASE, 1, base).unwrap();
        vm.frontend.set_ring_fd(SET_VRING_KICK, 1, Some(&vm.fds.kick)).unwrap();
        vm.exchange(100);
    }
    port.log.wait_for("disconnected closed", 3);
    assert_eq!(port.log.count("start 1"), 6);
    assert_eq!(port.log.count("stop 1"), 6);
    port.close();
    assert!(!path.exists(), "the socket is taken away with the port");
}

#[test]
fn memory_is_exchanged_under_traffic() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    let mut vm = Vm::start(Frontend::connect(&path).unwrap(), PACKED, 0);
    for round in 0..50u64 {
        let more = testkit::frontend::Region::new(2 << 30, 1 << 20, Pages::Small).unwrap();
        vm.frontend.add_mem_reg(&more).unwrap();
        vm.exchange(10);
        vm.frontend.rem_mem_reg(&more).unwrap();
        vm.exchange(10);
        if round % 10 == 0 {
            vm.frontend.set_mem_table(&vm.memory).unwrap();
            vm.exchange(10);
        }
    }
    // Buffers on their way while the table changes are neither lost nor doubled.
    for _ in 0..50 {
        while vm.queue.add(&[Buffer { gpa: 0x1000, len: 64 }], &[], Shape::Direct).is_some() {}
        vm.queue.expose();
        vm.frontend.set_mem_table(&vm.memory).unwrap();
        vm.settle();
    }
    vm.frontend.stop_queue(0).unwrap();
    assert_eq!(port.log.count("start 0"), port.log.count("stop 0"));
}

#[test]
fn a_hundred_front_ends_one_after_the_other() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    let mut flat = 0;
    for round in 0..100 {
        let features = if round % 2 == 0 { feature::VERSION_1 } else { PACKED };
        let mut vm = Vm::start(Frontend::connect(&path).unwrap(), features, round % 4);
        vm.exchange(20);
        if round % 3 == 0 {
            vm.frontend.stop_queue(round % 4).unwrap();
        }
        if round % 5 == 0 {
            // Killed in the middle of a message, with a reply unread.
            let half = message(GET_FEATURES, VERSION, &[]);
            vm.frontend.send(&[half.as_slice(), &half[..7]].concat(), &[]).unwrap();
        }
        drop(vm);
        let ended = port.log.clone();
        wait(
            || {
                let over = |line: &&String| line.starts_with("disconnected");
                ended.lines().iter().filter(over).count() > usize::from(round)
            },
            || "the session ends".into(),
        );
        if round == 10 {
            flat = open_descriptors();
        }
    }
    wait(|| open_descriptors() <= flat, || format!("{} > {flat}", open_descriptors()));
    assert_eq!(port.log.count("connected"), 100);
    assert_eq!(port.log.count("disconnected connection-lost"), 20);
    assert_eq!(port.log.count("disconnected closed"), 80);
}

#[test]
fn client_mode_finds_front_ends_that_come_and_go() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::client(&path);
    for round in 0..5 {
        thread::sleep(Duration::from_millis(30 * round));
        let listener = UnixListener::bind(&path).unwrap();
        // Twice in a row on the same listener, as a VMM that only resets its device.
        for _ in 0..2 {
            let mut vm = Vm::start(Frontend::accept(&listener).unwrap(), PACKED, 1);
            vm.exchange(10);
        }
        drop(listener);
        fs::remove_file(&path).unwrap();
        port.log.wait_for("stop 1", 2 * (round as usize + 1));
    }
    let lines = port.close();
    assert_eq!(lines.iter().filter(|line| *line == "start 1").count(), 10);
}

#[test]
fn bytes_may_come_one_by_one_and_late() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    let mut frontend = Frontend::connect(&path).unwrap();
    for piece in message(GET_FEATURES, VERSION, &[]).chunks(5) {
        frontend.send(piece, &[]).unwrap();
        thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(frontend.receive().unwrap().request, GET_FEATURES);
    // A whole session in single bytes: descriptors travel with the first byte of their message.
    let memory = SharedMemory::new(&[(0, 1 << 20)], Pages::Small).unwrap();
    let region = &memory.regions()[0];
    let body = [1u32.to_ne_bytes().to_vec(), vec![0; 4], region.body()].concat();
    let number = |number: u64| number.to_ne_bytes().to_vec();
    let bytes = [
        (SET_FEATURES, number(feature::VERSION_1), false),
        (SET_MEM_TABLE, body, true),
        (GET_QUEUE_NUM, vec![], false),
    ];
    for (request, body, with_fd) in bytes {
        let bytes = message(request, VERSION, &body);
        let fds: Vec<BorrowedFd<'_>> = with_fd.then(|| region.fd.as_fd()).into_iter().collect();
        frontend.send(&bytes[..1], &fds).unwrap();
        for byte in &bytes[1..] {
            frontend.send(&[*byte], &[]).unwrap();
        }
    }
    assert_eq!(frontend.receive().unwrap().body, number(2));
    drop(frontend);
    port.log.wait_for("disconnected closed", 1);
}

#[test]
fn a_front_end_that_does_not_read_is_waited_for() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    let mut frontend = Frontend::connect(&path).unwrap();
    const COUNT: usize = 100_000;
    let writer = frontend.socket().try_clone().unwrap();
    let asking = thread::spawn(move || {
        use std::io::Write;
        let one = message(GET_QUEUE_NUM, VERSION, &[]);
        (&writer).write_all(&one.repeat(COUNT)).unwrap();
    });
    thread::sleep(Duration::from_millis(100));
    for _ in 0..COUNT {
        assert_eq!(frontend.receive().unwrap().request, GET_QUEUE_NUM);
    }
    asking.join().unwrap();
    drop(frontend);
    port.log.wait_for("disconnected closed", 1);
}

#[test]
fn a_front_end_that_never_reads_costs_little() {
    let _alone = alone();
    let (_dir, path) = socket();
    let _port = Port::server(&path);
    let mut frontend = Frontend::connect(&path).unwrap();
    frontend.set_timeout(Duration::from_secs(1)).unwrap();
    let requests = message(GET_QUEUE_NUM, VERSION, &[]).repeat(1000);
    let mut taken = 0;
    // Sooner or later the port stops taking requests whose answers nobody takes.
    while frontend.send(&requests, &[]).is_ok() {
        taken += requests.len();
        assert!(taken < 64 << 20, "the port keeps answers for ever");
    }
}

#[test]
fn the_answer_to_a_stop_waits_for_the_device() {
    let _alone = alone();
    let (_dir, path) = socket();
    let slow = |device: &mut common::port::Echo| device.slow = Duration::from_millis(50);
    let port = Port::serve(Endpoint::server(&path).unwrap(), slow);
    let mut vm = Vm::start(Frontend::connect(&path).unwrap(), PACKED, 1);
    assert_eq!(port.log.count("stop 1"), 0);
    vm.frontend.stop_queue(1).unwrap();
    assert_eq!(port.log.count("stop 1"), 1);
}

#[test]
fn a_second_front_end_is_turned_away_while_the_first_lives() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    let mut vm = Vm::start(Frontend::connect(&path).unwrap(), PACKED, 1);
    for _ in 0..10 {
        let mut second = Frontend::connect(&path).unwrap();
        second.wait_closed().unwrap();
        vm.exchange(10);
    }
    assert_eq!(port.log.count("connected"), 1);
}

#[test]
fn the_successor_of_a_dead_front_end_is_served_at_once() {
    let _alone = alone();
    let (_dir, path) = socket();
    let slow = |device: &mut common::port::Echo| device.slow = Duration::from_millis(20);
    let port = Port::serve(Endpoint::server(&path).unwrap(), slow);
    for round in 0..20 {
        let mut vm = Vm::start(Frontend::connect(&path).unwrap(), PACKED, 1);
        vm.exchange(10);
        if round % 2 == 0 {
            // Something is still to be read when it dies, so the port learns of its death late.
            vm.frontend.send(&message(GET_VRING_BASE, VERSION, &[0; 8]).repeat(100), &[]).unwrap();
        }
        // The next connection is there before the port has noticed anything.
        drop(vm);
    }
    port.log.wait_for("stop 1", 20);
    let lines = port.close();
    assert_eq!(lines.iter().filter(|line| *line == "start 1").count(), 20);
}

#[test]
fn a_device_that_cannot_go_on_ends_the_session_only() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    for round in 0..5 {
        let mut vm = Vm::start(Frontend::connect(&path).unwrap(), PACKED, 1);
        vm.exchange(10);
        port.faults.send(DeviceFault { queue: Some(1), reason: "the ring lied".into() }).unwrap();
        vm.frontend.wait_closed().unwrap();
        wait(|| vm.fds.err.drain(), || "the error eventfd is signalled".into());
        port.log.wait_for("disconnected device-fault", round + 1);
        assert_eq!(port.log.count("stop 1"), round + 1);
    }
}

#[test]
fn a_queue_that_cannot_be_started_ends_the_session_only() {
    let _alone = alone();
    let (_dir, path) = socket();
    let broken = |device: &mut common::port::Echo| device.broken = Some(1);
    let port = Port::serve(Endpoint::server(&path).unwrap(), broken);
    let mut vm = Vm::start(Frontend::connect(&path).unwrap(), PACKED, 0);
    let err = vm.frontend.start_queue(1, &vm.memory, &vm.queue).unwrap_err();
    assert!(matches!(err, FrontendError::Closed), "{err}");
    port.log.wait_for("disconnected device-fault", 1);
    assert_eq!(port.log.count("stop 0"), 1);
    assert_eq!(port.log.count("stop 1"), 0);
    Vm::start(Frontend::connect(&path).unwrap(), PACKED, 0).exchange(10);
}

#[test]
fn closing_a_port_stops_its_queues_and_hangs_up() {
    let _alone = alone();
    let (_dir, path) = socket();
    let before = open_descriptors();
    for busy in [false, true] {
        let port = Port::server(&path);
        let mut vm = busy.then(|| Vm::start(Frontend::connect(&path).unwrap(), PACKED, 1));
        let lines = port.close();
        if let Some(vm) = &mut vm {
            assert_eq!(lines[lines.len() - 2..], ["stop 1", "disconnected port-closed"]);
            vm.frontend.wait_closed().unwrap();
        }
        assert!(!path.exists());
    }
    assert_eq!(open_descriptors(), before);
}

#[test]
fn a_storm_of_connections_ends_in_service() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    for round in 0..200 {
        // The backlog may be full while the port takes its time.
        let mut frontend = Frontend::connect_within(&path, PATIENCE).unwrap();
        if round % 2 == 0 {
            frontend.send(&[0xff; 12], &[]).unwrap();
        }
    }
    Vm::start(Frontend::connect_within(&path, PATIENCE).unwrap(), PACKED, 1).exchange(10);
    port.log.wait_for("stop 1", 1);
}

#[test]
fn the_socket_file_is_for_owner_and_group() {
    let _alone = alone();
    let (_dir, path) = socket();
    let endpoint = Endpoint::server(&path).unwrap();
    let meta = fs::symlink_metadata(&path).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o7777, 0o660);
    assert_eq!(endpoint.path(), path);
    drop(endpoint);
    assert!(!path.exists());
}

#[test]
fn a_path_in_use_is_left_alone_and_a_stale_one_is_replaced() {
    let _alone = alone();
    let (dir, path) = socket();
    let first = Port::server(&path);
    let err = Endpoint::server(&path).unwrap_err();
    assert!(matches!(err, SocketError::InUse { .. }), "{err}");
    assert!(path.exists());
    Vm::start(Frontend::connect(&path).unwrap(), PACKED, 1).exchange(10);
    first.close();

    // Left behind by a process that was killed.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let port = Port::server(&path);
    Vm::start(Frontend::connect(&path).unwrap(), PACKED, 1).exchange(10);

    // Taken over by somebody else: theirs stays.
    fs::remove_file(&path).unwrap();
    let theirs = UnixListener::bind(&path).unwrap();
    port.close();
    assert!(path.exists());
    drop(theirs);

    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let err = Endpoint::server(&file).unwrap_err();
    assert!(matches!(err, SocketError::NotASocket { .. }), "{err}");
    assert_eq!(fs::read(&file).unwrap(), b"precious");

    let missing = dir.path().join("missing/port.sock");
    assert!(matches!(Endpoint::server(missing).unwrap_err(), SocketError::Io { .. }));
    let long = dir.path().join("x".repeat(120));
    for result in [Endpoint::server(&long), Endpoint::client(&long)] {
        assert!(matches!(result.unwrap_err(), SocketError::PathTooLong { .. }));
    }
}

#[test]
fn refusals_are_told_and_the_session_goes_on() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::server(&path);
    let mut vm = Vm::start(Frontend::connect(&path).unwrap(), PACKED, 1);
    for _ in 0..100 {
        let refused = vm.frontend.set_ring_state(SET_VRING_NUM, 9, 64);
        assert!(matches!(refused, Err(FrontendError::Refused { request: SET_VRING_NUM, code: 1 })));
    }
    vm.exchange(10);
    assert_eq!(port.log.count("connected"), 1);
}

#[test]
fn hugepages_are_shared_where_the_machine_has_some() {
    let _alone = alone();
    let Ok(memory) = SharedMemory::new(&[(0, 2 << 20)], Pages::Huge) else {
        // No huge pages reserved here: nothing to share.
        return;
    };
    let (_dir, path) = socket();
    let port = Port::server(&path);
    let mut frontend = Frontend::connect(&path).unwrap();
    frontend.negotiate(PACKED, protocol::NET).unwrap();
    frontend.set_mem_table(&memory).unwrap();
    assert_eq!(memory.guest().page_size(), 2 << 20);
    drop(frontend);
    port.log.wait_for("disconnected closed", 1);
}

#[test]
fn a_listener_nobody_serves_keeps_connections_waiting() {
    let _alone = alone();
    let (_dir, path) = socket();
    let endpoint = Endpoint::server(&path).unwrap();
    let early = UnixStream::connect(&path).unwrap();
    let port = Port::serve(endpoint, |_| {});
    Vm::start(Frontend::over(early).unwrap(), PACKED, 1).exchange(10);
    port.log.wait_for("stop 1", 1);
}
