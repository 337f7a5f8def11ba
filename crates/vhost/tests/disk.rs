//! A disk's port: what a crash leaves to the next daemon, and a configuration space that changes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use common::port::{Port, alone, open_descriptors, wait};
use tempfile::TempDir;
use testkit::driver::{Buffer, DriverQueue, RingSpec, Shape};
use testkit::frontend::request::*;
use testkit::frontend::{
    BackendRequests, Frontend, FrontendError, Inflight, Pages, QueueFds, SharedMemory, feature,
    protocol,
};

const PACKED: u64 = feature::VERSION_1 | feature::RING_PACKED;

fn socket() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.sock");
    (dir, path)
}

fn connect(path: &PathBuf, features: u64) -> Frontend {
    let mut frontend = Frontend::connect(path).unwrap();
    frontend.negotiate(features, protocol::BLOCK).unwrap();
    frontend
}

/// A guest with the first of its queues running.
struct Guest {
    _memory: SharedMemory,
    _queue: DriverQueue,
    _fds: QueueFds,
}

impl Guest {
    fn start(frontend: &mut Frontend) -> Guest {
        let memory = SharedMemory::new(&[(0, 1 << 20)], Pages::Small).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        let ring = RingSpec::new(false, 64, 0x1_0000);
        let queue = DriverQueue::new(memory.guest(), &ring).unwrap();
        let fds = frontend.start_queue(0, &memory, &queue).unwrap();
        Guest { _memory: memory, _queue: queue, _fds: fds }
    }
}

/// Nothing has been told.
fn silent(requests: &mut BackendRequests) {
    requests.socket().set_nonblocking(true).unwrap();
    let nothing = requests.wait_config_change().unwrap_err();
    assert!(matches!(&nothing, FrontendError::Io(err) if err.kind() == ErrorKind::WouldBlock));
    requests.socket().set_nonblocking(false).unwrap();
}

/// The memory of `Inflight`, as somebody else with the file sees it.
struct Regions {
    file: File,
    len: usize,
    /// Where the entries of a region begin, and the bytes of each, from the specification.
    entries: usize,
    entry: usize,
}

impl Regions {
    fn new(inflight: &Inflight, features: u64) -> Regions {
        let file = File::from(inflight.fd.try_clone().unwrap());
        let (entries, entry) = if features == PACKED { (32, 32) } else { (16, 16) };
        Regions { file, len: inflight.mmap_size as usize, entries, entry }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Requests that are marked as in flight in the second of two queues of 64.
    fn in_flight(&self) -> usize {
        let bytes = self.bytes();
        let region = &bytes[self.len / 2..];
        (0..64).filter(|entry| region[self.entries + self.entry * entry] == 1).count()
    }
}

/// Three devices in a row: one dies with requests in flight, the next one in the same way, the last one answers them all.
#[test]
fn requests_in_flight_reach_the_next_daemon() {
    let _alone = alone();
    for features in [feature::VERSION_1, PACKED] {
        let (_dir, path) = socket();
        let memory = SharedMemory::new(&[(0, 1 << 20)], Pages::Small).unwrap();
        let ring = RingSpec::new(features == PACKED, 64, 0x1_0000);
        let mut queue = DriverQueue::new(memory.guest(), &ring).unwrap();

        let port = Port::disk(&path, |device| device.hold = true);
        let mut frontend = connect(&path, features);
        let inflight = frontend.get_inflight(2, 64).unwrap();
        assert_eq!((inflight.mmap_offset, inflight.queues, inflight.queue_size), (0, 2, 64));
        let regions = Regions::new(&inflight, features);
        assert_eq!(regions.bytes(), vec![0; regions.len]);
        frontend.set_inflight(&inflight).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        let fds = frontend.start_queue(1, &memory, &queue).unwrap();
        for _ in 0..10 {
            queue.add(&[Buffer { gpa: 0x1000, len: 64 }], &[], Shape::Direct).unwrap();
        }
        queue.expose();
        fds.kick.signal().unwrap();
        wait(|| regions.in_flight() == 10, || "ten requests are in flight".into());
        port.close();
        frontend.wait_closed().unwrap();

        let left = regions.bytes();
        let port = Port::disk(&path, |device| device.hold = true);
        let mut frontend = connect(&path, features);
        frontend.set_inflight(&inflight).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        assert_eq!(regions.bytes(), left, "it is there as it was left");
        frontend.start_queue_with(1, &memory, &queue, &fds).unwrap();
        for _ in 0..5 {
            queue.add(&[Buffer { gpa: 0x1000, len: 64 }], &[], Shape::Direct).unwrap();
        }
        queue.expose();
        fds.kick.signal().unwrap();
        wait(|| regions.in_flight() == 15, || "five more requests are in flight".into());
        assert!(!queue.has_used());
        port.close();

        let _port = Port::disk(&path, |_| {});
        let mut frontend = connect(&path, features);
        frontend.set_inflight(&inflight).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        frontend.start_queue_with(1, &memory, &queue, &fds).unwrap();
        while queue.outstanding() > 0 {
            wait(|| queue.has_used(), || "a request comes back".into());
            while queue.collect().unwrap().is_some() {}
        }
        wait(|| regions.in_flight() == 0, || "nothing is in flight".into());
        frontend.stop_queue(1).unwrap();
    }
}

#[test]
fn the_configuration_space_is_the_devices() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::disk(&path, |_| {});
    let mut frontend = connect(&path, feature::VERSION_1);
    assert_eq!(frontend.get_config(12).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0]);
    frontend.set_config(0, &[99]).unwrap();
    assert_eq!(frontend.get_config(2).unwrap(), [99, 2]);
    for (offset, bytes) in [(1, &[7][..]), (0, &[7, 7]), (10, &[7]), (u32::MAX, &[7])] {
        let err = frontend.set_config(offset, bytes).unwrap_err();
        let refused = FrontendError::Refused { request: SET_CONFIG, code: 1 };
        assert_eq!(err.to_string(), refused.to_string());
        // Nor does a front end that does not ask lose its disk.
        let acked = std::mem::replace(&mut frontend.protocol, 0);
        frontend.set_config(offset, bytes).unwrap();
        frontend.protocol = acked;
    }
    assert_eq!(frontend.get_config(2).unwrap(), [99, 2]);
    drop(frontend);
    port.log.wait_for("disconnected closed", 1);
    assert_eq!(port.log.count("write config 1 [7]"), 2);
}

#[test]
fn changes_of_the_configuration_space_are_told() {
    let _alone = alone();
    let (_dir, path) = socket();
    let port = Port::disk(&path, |_| {});
    let change = |byte: u8| {
        port.config.lock().unwrap()[9] = byte;
        port.changes.notify_one();
    };
    // What nobody was there to hear of is told to the first who comes, once its device runs.
    change(20);
    let mut frontend = connect(&path, feature::VERSION_1);
    let mut requests = frontend.set_backend_req_fd().unwrap();
    assert_eq!(frontend.get_config(10).unwrap()[9], 20);
    silent(&mut requests);
    let _guest = Guest::start(&mut frontend);
    requests.wait_config_change().unwrap();
    for byte in 30..40 {
        change(byte);
        requests.wait_config_change().unwrap();
        assert_eq!(frontend.get_config(10).unwrap()[9], byte);
    }
    // A front end that takes no notice, but for its requests.
    const COUNT: usize = 3000;
    for _ in 0..COUNT {
        change(50);
        assert_eq!(frontend.get_config(10).unwrap()[9], 50);
    }
    requests.socket().set_nonblocking(true).unwrap();
    let mut told = Vec::new();
    let full = requests.socket().read_to_end(&mut told).unwrap_err();
    assert_eq!((full.kind(), told.len() % 12), (ErrorKind::WouldBlock, 0));
    assert!((1..COUNT).contains(&(told.len() / 12)), "{} bytes", told.len());
    requests.socket().set_nonblocking(false).unwrap();
    change(51);
    requests.wait_config_change().unwrap();

    // One that has closed the socket is told on the next, in this session or another one.
    drop(requests);
    change(60);
    assert_eq!(frontend.get_config(10).unwrap()[9], 60);
    frontend.set_backend_req_fd().unwrap().wait_config_change().unwrap();
    change(61);
    drop(frontend);
    port.log.wait_for("disconnected closed", 1);
    let mut frontend = connect(&path, feature::VERSION_1);
    let mut requests = frontend.set_backend_req_fd().unwrap();
    let _guest = Guest::start(&mut frontend);
    requests.wait_config_change().unwrap();

    // And one that does not want to know is told nothing.
    let deaf = protocol::BLOCK & !protocol::CONFIG;
    frontend.set_u64(SET_PROTOCOL_FEATURES, deaf).unwrap();
    change(70);
    assert_eq!(frontend.get_u64(GET_QUEUE_NUM).unwrap(), 2);
    silent(&mut requests);
}

/// A front end that asks for memory again and again, and gives sockets again and again, costs nothing.
#[test]
fn what_is_handed_over_is_not_kept() {
    let _alone = alone();
    let (_dir, path) = socket();
    let _port = Port::disk(&path, |_| {});
    let mut frontend = connect(&path, feature::VERSION_1);
    let mut flat = 0;
    for round in 0..50 {
        let inflight = frontend.get_inflight(2, 32768).unwrap();
        frontend.set_inflight(&inflight).unwrap();
        drop(inflight);
        drop(frontend.set_backend_req_fd().unwrap());
        frontend.get_u64(GET_QUEUE_NUM).unwrap();
        if round == 10 {
            flat = open_descriptors();
        }
    }
    assert!(open_descriptors() <= flat, "{} > {flat}", open_descriptors());
}
