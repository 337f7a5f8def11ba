//! Front ends that mean harm.  Each attack ends in the fault that names it, costs nobody else anything, and leaves
//! nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs::{self, File};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::port::{Port, alone, open_descriptors, spec, wait};
use common::{addr, n, pair, region_spec, single, table};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;
use testkit::driver::{Buffer, DriverQueue, RingSpec, Shape};
use testkit::frontend::request::*;
use testkit::frontend::{
    Frontend, Inflight, Pages, REPLY, Region, SharedMemory, VERSION, feature, inflight_body,
    message, protocol,
};
use vhost_session::DeviceSpec;
use vhost_session::socket::Endpoint;

const MIB: u64 = 1 << 20;

struct Target {
    _dir: TempDir,
    path: PathBuf,
    port: Port,
    ended: usize,
}

impl Target {
    fn new() -> Target {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port.sock");
        // A device that offers everything there is.
        let spec = DeviceSpec { config_size: 10, inflight: true, ..spec() };
        let port = Port::serve_as(Endpoint::server(&path).unwrap(), spec, |_| {});
        Target { _dir: dir, path, port, ended: 0 }
    }

    fn connect(&self) -> Frontend {
        Frontend::connect_within(&self.path, common::port::PATIENCE).unwrap()
    }

    /// Waits for the end of the session at hand; what it was called.
    fn end(&mut self) -> String {
        self.ended += 1;
        let ends = || -> Vec<String> {
            let lines = self.port.log.lines();
            let end = |line: &String| line.strip_prefix("disconnected ").map(str::to_string);
            lines.iter().filter_map(end).collect()
        };
        wait(|| ends().len() >= self.ended, || "the session ends".into());
        ends().swap_remove(self.ended - 1)
    }

    /// Plays an attack; what the session ended with.  Afterwards an honest VM is served as if nothing had happened.
    fn attack(&mut self, attack: impl FnOnce(&mut Frontend)) -> String {
        let mut frontend = self.connect();
        attack(&mut frontend);
        // The back end hangs up; where an attack is to leave, it has shut its side down.
        frontend.wait_closed().unwrap();
        drop(frontend);
        let name = self.end();
        self.honest();
        name
    }

    fn honest(&mut self) {
        let mut frontend = self.connect();
        frontend.negotiate(feature::VERSION_1, protocol::NET).unwrap();
        let memory = SharedMemory::new(&[(0, MIB)], Pages::Small).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        let ring = RingSpec::new(false, 16, 0x1_0000);
        let mut queue = DriverQueue::new(memory.guest(), &ring).unwrap();
        frontend.start_queue(1, &memory, &queue).unwrap();
        queue.add(&[Buffer { gpa: 0, len: 64 }], &[], Shape::Direct).unwrap();
        queue.expose();
        wait(|| queue.has_used(), || "an honest guest is served".into());
        drop(frontend);
        assert_eq!(self.end(), "closed");
    }
}

/// Sends and does not care whether it is taken.
fn push(frontend: &mut Frontend, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let _ = frontend.send(bytes, fds);
}

fn leave(frontend: &Frontend) {
    frontend.socket().shutdown(std::net::Shutdown::Write).unwrap();
}

fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
    [request, flags, size].map(u32::to_ne_bytes).concat()
}

/// A region that claims what it likes of a file.
fn lie(fd: impl Into<OwnedFd>, guest: u64, size: u64, user: u64, offset: u64) -> Region {
    Region { spec: region_spec(guest, size, user, offset), fd: Arc::new(fd.into()) }
}

fn plain_memfd(size: u64) -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

fn read_only(size: u64) -> OwnedFd {
    use std::os::fd::AsRawFd;
    let fd = plain_memfd(size);
    File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().into()
}

fn share(frontend: &mut Frontend, regions: &[&Region]) {
    let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|region| region.fd.as_fd()).collect();
    push(frontend, &message(SET_MEM_TABLE, VERSION, &table(regions)), &fds);
}

/// Sends more descriptors at once than a well-behaved library would.
fn flood(frontend: &Frontend, bytes: &[u8], count: usize) {
    let file = File::open("/dev/null").unwrap();
    let fds = vec![file.as_fd(); count];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let socket = frontend.socket();
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

#[test]
fn broken_framing() {
    let _alone = alone();
    let mut target = Target::new();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (header(GET_FEATURES, 0, 0), "bad-version"),
        (header(GET_FEATURES, VERSION | REPLY, 0), "bad-flags"),
        (header(SET_FEATURES, VERSION, 0xffff_ffff), "body-size"),
        (header(SET_MEM_TABLE, VERSION, 4096), "body-size"),
        (header(99, VERSION, 0x1001), "body-size"),
        (message(99, VERSION, &[0; 0x1000]), "unknown-request"),
        (vec![0xff; 4000], "bad-version"),
        (vec![0; 12], "bad-version"),
        (b"GET / HTTP/1.1\r\nHost: hayate\r\n\r\n".to_vec(), "bad-version"),
    ];
    for (bytes, name) in cases {
        assert_eq!(target.attack(|frontend| push(frontend, &bytes, &[])), name);
    }
    for cut in [1, 11, 12, 15, 19] {
        let bytes = message(SET_FEATURES, VERSION, &n(1 << 32));
        let cut_short = target.attack(|frontend| {
            push(frontend, &bytes[..cut], &[]);
            leave(frontend);
        });
        assert_eq!(cut_short, "connection-lost");
    }
    assert_eq!(target.attack(|frontend| leave(frontend)), "closed");
}

#[test]
fn requests_out_of_order_and_out_of_range() {
    let _alone = alone();
    let mut target = Target::new();
    let cases: Vec<(u32, Vec<u8>, &str)> = vec![
        (SET_FEATURES, n(u64::MAX).to_vec(), "features-not-offered"),
        (SET_PROTOCOL_FEATURES, n(u64::MAX).to_vec(), "protocol-features-not-offered"),
        (SET_VRING_NUM, pair(0, u32::MAX).to_vec(), "bad-ring-size"),
        (SET_VRING_NUM, pair(u32::MAX, 16).to_vec(), "no-such-ring"),
        (SET_VRING_BASE, pair(0x1_0000, 0).to_vec(), "no-such-ring"),
        (GET_VRING_BASE, pair(4, 0).to_vec(), "no-such-ring"),
        (SET_VRING_ADDR, addr(0xffff_fff0, 0, 0, 0, 0), "no-such-ring"),
        (SET_VRING_KICK, n(0).to_vec(), "bad-ring-descriptor"),
        (SET_VRING_KICK, n(0x1ff).to_vec(), "no-such-ring"),
        (REM_MEM_REG, vec![0; 40], "not-negotiated"),
        (SET_STATUS, n(1).to_vec(), "not-negotiated"),
        (NET_SET_MTU, n(1).to_vec(), "bad-mtu"),
        (GET_INFLIGHT_FD, vec![0xff; 24], "not-negotiated"),
        (SET_LOG_BASE, vec![0xff; 16], "not-negotiated"),
        (CREATE_CRYPTO_SESSION, vec![0xff; 4096], "not-negotiated"),
    ];
    for (request, body, name) in cases {
        let bytes = message(request, VERSION, &body);
        assert_eq!(target.attack(|frontend| push(frontend, &bytes, &[])), name);
    }
}

#[test]
fn wrong_descriptors() {
    let _alone = alone();
    let mut target = Target::new();
    let (pipe, _other) = std::io::pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    let directory = File::open("/").unwrap();
    let (timer, _unix) = std::os::unix::net::UnixStream::pair().unwrap();
    for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        let bytes = message(request, VERSION, &n(0));
        for fd in [pipe.as_fd(), null.as_fd(), directory.as_fd(), timer.as_fd()] {
            let name = target.attack(|frontend| push(frontend, &bytes, &[fd]));
            assert_eq!(name, "not-an-eventfd");
        }
        let two = target.attack(|frontend| push(frontend, &bytes, &[null.as_fd(), null.as_fd()]));
        assert_eq!(two, "descriptor-count");
    }
    for count in [1, 8, 32] {
        let bytes = message(GET_FEATURES, VERSION, &[]);
        let name = target.attack(|frontend| push(frontend, &bytes, &vec![null.as_fd(); count]));
        assert_eq!(name, "descriptor-count");
    }
    // More than any message may have: the kernel cannot deliver them.
    for count in [33, 64, 253] {
        let bytes = message(SET_VRING_CALL, VERSION, &n(0));
        let name = target.attack(|frontend| flood(frontend, &bytes, count));
        assert_eq!(name, "descriptors-lost");
    }
    // In the middle of a message.  (Within a header the kernel may hand over both pieces as one.)
    let bytes = message(SET_VRING_CALL, VERSION, &n(0));
    for cut in [12, 13, 19] {
        let name = target.attack(|frontend| {
            push(frontend, &bytes[..cut], &[]);
            push(frontend, &bytes[cut..], &[null.as_fd()]);
        });
        assert_eq!(name, "stray-descriptors");
    }
    // With a message that is never finished: closed with the session.
    for _ in 0..20 {
        let name = target.attack(|frontend| {
            push(frontend, &bytes[..5], &[null.as_fd(); 32]);
            leave(frontend);
        });
        assert_eq!(name, "connection-lost");
    }
}

#[test]
fn memory_tables_that_cannot_be() {
    let _alone = alone();
    let mut target = Target::new();
    let user = 0x7f00_0000_0000;
    let good = || lie(plain_memfd(MIB), 0, MIB, user, 0);
    let (pipe, _writer) = std::io::pipe().unwrap();
    let zero = || File::options().read(true).write(true).open("/dev/zero").unwrap();
    let one = |region: Region| vec![region];
    let cases: Vec<(&str, Vec<Region>)> = vec![
        ("a file that is too short", one(lie(plain_memfd(MIB / 2), 0, MIB, user, 0))),
        ("an empty file", one(lie(plain_memfd(0), 0, MIB, user, 0))),
        ("a pipe", one(lie(pipe, 0, MIB, user, 0))),
        ("/dev/zero", one(lie(zero(), 0, MIB, user, 0))),
        ("/dev/null", one(lie(File::open("/dev/null").unwrap(), 0, MIB, user, 0))),
        ("a directory", one(lie(File::open("/tmp").unwrap(), 0, MIB, user, 0))),
        ("procfs", one(lie(File::open("/proc/self/status").unwrap(), 0, MIB, user, 0))),
        ("an eventfd", one(lie(sys::EventFd::new().unwrap(), 0, MIB, user, 0))),
        ("a read-only file", one(lie(read_only(MIB), 0, MIB, user, 0))),
        ("no bytes", one(lie(plain_memfd(MIB), 0, 0, user, 0))),
        ("an offset past the end", one(lie(plain_memfd(MIB), 0, MIB, user, MIB))),
        ("an offset that overflows", one(lie(plain_memfd(MIB), 0, MIB, user, u64::MAX - 4095))),
        (
            "a guest address that overflows",
            one(lie(plain_memfd(MIB), u64::MAX - 4095, MIB, user, 0)),
        ),
        ("a user address that overflows", one(lie(plain_memfd(MIB), 0, MIB, u64::MAX - 4095, 0))),
        ("all of the address space", one(lie(plain_memfd(MIB), 0, u64::MAX, 0, 0))),
        ("half of it", one(lie(plain_memfd(1 << 62), 0, 1 << 62, user, 0))),
        ("an odd guest address", one(lie(plain_memfd(MIB), 0x123, MIB / 2, user, 0))),
        ("the same twice", vec![good(), good()]),
        ("guest addresses overlap", vec![good(), lie(plain_memfd(MIB), MIB / 2, MIB, 1 << 40, 0)]),
        ("user addresses overlap", vec![good(), lie(plain_memfd(MIB), MIB, MIB, user + 4096, 0)]),
        ("too far apart", vec![good(), lie(plain_memfd(MIB), 1 << 60, MIB, 1 << 40, 0)]),
    ];
    for (what, regions) in &cases {
        let regions: Vec<&Region> = regions.iter().collect();
        let name = target.attack(|frontend| share(frontend, &regions));
        assert_eq!(name, "memory-not-mapped", "{what}");
        // The same, told one by one and with a way to be refused: the session survives it.
        let mut frontend = target.connect();
        frontend.negotiate(feature::VERSION_1, protocol::NET).unwrap();
        let results: Vec<bool> =
            regions.iter().map(|region| frontend.add_mem_reg(region).is_ok()).collect();
        assert_eq!(results.last(), Some(&false), "{what}");
        assert_eq!(frontend.get_u64(GET_QUEUE_NUM).unwrap(), 2);
        drop(frontend);
        assert_eq!(target.end(), "closed");
    }

    let (first, second) = (good(), good());
    let fds = |count: usize| vec![first.fd.as_fd(); count];
    for (regions, count, name) in [
        (vec![], 0, "region-count"),
        (vec![&first], 0, "descriptor-count"),
        (vec![&first], 2, "descriptor-count"),
        (vec![&first, &second], 1, "descriptor-count"),
        (vec![], 1, "descriptor-count"),
    ] {
        let bytes = message(SET_MEM_TABLE, VERSION, &table(&regions));
        assert_eq!(target.attack(|frontend| push(frontend, &bytes, &fds(count))), name);
    }
    // A count that is not that of the regions.
    for count in [0u8, 2, 255] {
        let mut body = table(&[&first]);
        body[0] = count;
        let bytes = message(SET_MEM_TABLE, VERSION, &body);
        assert_eq!(target.attack(|frontend| push(frontend, &bytes, &fds(1))), "body-size");
    }
    let bytes = message(ADD_MEM_REG, VERSION, &single(&first));
    assert_eq!(target.attack(|frontend| push(frontend, &bytes, &fds(1))), "not-negotiated");
}

/// A front end that takes its memory back while the device uses it hurts itself alone.
#[test]
fn memory_that_vanishes() {
    let _alone = alone();
    let mut target = Target::new();
    for _ in 0..10 {
        let file = plain_memfd(MIB);
        let kept = file.try_clone().unwrap();
        let region = lie(file, 0, MIB, 0x7f00_0000_0000, 0);
        let memory = SharedMemory::of(vec![region]).unwrap();
        let mut frontend = target.connect();
        frontend.negotiate(feature::VERSION_1, protocol::NET).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        let ring = RingSpec::new(false, 16, 0x1_0000);
        let queue = DriverQueue::new(memory.guest(), &ring).unwrap();
        frontend.start_queue(1, &memory, &queue).unwrap();
        ftruncate(&kept, 0).unwrap();
        frontend.stop_queue(1).unwrap();
        drop(frontend);
        assert_eq!(target.end(), "closed");
        target.honest();
    }
}

/// Memory for requests in flight that is no memory, or is taken back while the device writes to it.
#[test]
fn memory_for_requests_in_flight_that_lies() {
    let _alone = alone();
    let mut target = Target::new();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
    let (short, locked) = (plain_memfd(100), read_only(MIB));
    let body = inflight_body(MIB, 0, 2, 16);
    for (body, fd, name) in [
        (&body, pipe.as_fd(), "inflight-not-mapped"),
        (&body, zero.as_fd(), "inflight-not-mapped"),
        (&body, locked.as_fd(), "inflight-not-mapped"),
        (&inflight_body(MIB, MIB, 2, 16), locked.as_fd(), "inflight-not-mapped"),
        (&inflight_body(1 << 62, 1 << 62, 2, 16), short.as_fd(), "inflight-not-mapped"),
        (&inflight_body(u64::MAX, !7, 4, 32768), short.as_fd(), "inflight-not-mapped"),
        (&inflight_body(u64::MAX, u64::MAX, 4, 32768), short.as_fd(), "bad-inflight"),
        (&inflight_body(MIB, 0, u16::MAX, u16::MAX), short.as_fd(), "bad-inflight"),
        (&inflight_body(MIB, 0, 0, 0), short.as_fd(), "bad-inflight"),
    ] {
        let ended = target.attack(|frontend| {
            let offer = n(protocol::INFLIGHT_SHMFD);
            push(frontend, &message(SET_PROTOCOL_FEATURES, VERSION, &offer), &[]);
            push(frontend, &message(SET_INFLIGHT_FD, VERSION, body), &[fd]);
        });
        assert_eq!(ended, name, "{body:x?}");
    }

    for _ in 0..10 {
        let file = plain_memfd(MIB);
        let fd = file.try_clone().unwrap();
        let mut frontend = target.connect();
        frontend.negotiate(feature::VERSION_1, protocol::BLOCK).unwrap();
        let inflight = Inflight { mmap_size: MIB, mmap_offset: 0, queues: 2, queue_size: 16, fd };
        frontend.set_inflight(&inflight).unwrap();
        let memory = SharedMemory::new(&[(0, MIB)], Pages::Small).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        let ring = RingSpec::new(false, 16, 0x1_0000);
        let mut queue = DriverQueue::new(memory.guest(), &ring).unwrap();
        frontend.start_queue(1, &memory, &queue).unwrap();
        for round in 0..10 {
            if round == 5 {
                ftruncate(&file, 0).unwrap();
            }
            queue.add(&[Buffer { gpa: 0, len: 64 }], &[], Shape::Direct).unwrap();
            queue.expose();
            wait(|| queue.has_used(), || "the device goes on".into());
            while queue.collect().unwrap().is_some() {}
        }
        frontend.stop_queue(1).unwrap();
        drop(frontend);
        assert_eq!(target.end(), "closed");
        target.honest();
    }
}

/// Sockets for the back end's requests on which nobody listens, or the wrong one does.
#[test]
fn sockets_that_lead_nowhere() {
    let _alone = alone();
    let mut target = Target::new();
    let (pipe, _reader) = std::io::pipe().unwrap();
    let not_a_socket = target.attack(|frontend| {
        push(frontend, &message(SET_PROTOCOL_FEATURES, VERSION, &n(protocol::BACKEND_REQ)), &[]);
        push(frontend, &message(SET_BACKEND_REQ_FD, VERSION, &[]), &[pipe.as_fd()]);
    });
    assert_eq!(not_a_socket, "not-a-socket");

    // Its own end of the connection: what the port says there, the port hears.
    let mut frontend = target.connect();
    frontend.negotiate(feature::VERSION_1, protocol::BLOCK).unwrap();
    let memory = SharedMemory::new(&[(0, MIB)], Pages::Small).unwrap();
    frontend.set_mem_table(&memory).unwrap();
    let queue = DriverQueue::new(memory.guest(), &RingSpec::new(false, 16, 0x1_0000)).unwrap();
    frontend.start_queue(1, &memory, &queue).unwrap();
    let own = frontend.socket().try_clone().unwrap();
    frontend.set(SET_BACKEND_REQ_FD, &[], &[own.as_fd()]).unwrap();
    target.port.changes.notify_one();
    assert_eq!(target.end(), "body-size");
    drop((frontend, own));
    target.honest();
}

/// Thousands of sessions of noise, some of it shaped like messages.
#[test]
fn noise_leaves_nothing_behind() {
    let _alone = alone();
    let mut target = Target::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let dir = tempfile::tempdir().unwrap();
    let files = odd_files(dir.path());
    let eventfd = sys::EventFd::new().unwrap();
    let memory = plain_memfd(MIB);
    let (socket, _peer) = UnixStream::pair().unwrap();
    let mut flat = (0, 0);
    const ROUNDS: u64 = 400;
    for round in 0..ROUNDS {
        let mut frontend = target.connect();
        for _ in 0..random.below(40) {
            let request = random.below(48) as u32;
            let size = [0, 0, 8, 8, 40, 16, 12, 72, random.below(300)][random.below(9) as usize];
            let mut body: Vec<u8> = (0..size).map(|_| random.byte()).collect();
            let flags = [VERSION, VERSION | 8, random.below(16) as u32][random.below(3) as usize];
            if request == SET_PROTOCOL_FEATURES && body.len() == 8 {
                body = n(protocol::NET | protocol::BLOCK).to_vec();
            }
            if round % 10 == 0 {
                target.port.changes.notify_one();
            }
            let fd = match random.below(5) {
                0 => eventfd.as_fd(),
                2 => socket.as_fd(),
                1 => memory.as_fd(),
                _ => files[random.below(files.len() as u64) as usize].as_fd(),
            };
            let count = [0, 0, 1, 1, 2, 8][random.below(6) as usize];
            let mut bytes = message(request, flags, &body);
            if random.below(20) == 0 {
                bytes.truncate(random.below(12) as usize + 1);
            }
            if frontend.send(&bytes, &vec![fd; count]).is_err() {
                break;
            }
        }
        drop(frontend);
        target.end();
        if round == ROUNDS / 4 {
            wait_idle();
            flat = (open_descriptors(), mappings());
        }
    }
    wait(|| open_descriptors() <= flat.0, || format!("{} descriptors", open_descriptors()));
    // Allocator and threads may map a little; a leaked table would show four hundred times.
    wait(|| mappings() <= flat.1 + 20, || format!("{} mappings", mappings()));
    target.honest();
}

/// The last session's descriptors are closed a moment after its end is told.
fn wait_idle() {
    let mut last = usize::MAX;
    wait(
        || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let now = open_descriptors();
            std::mem::replace(&mut last, now) == now
        },
        || "the descriptors settle".into(),
    );
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn odd_files(dir: &Path) -> Vec<File> {
    let mut short = File::create(dir.join("short")).unwrap();
    short.write_all(b"short").unwrap();
    let open = |path: &str| File::open(path).unwrap();
    vec![short, open("/dev/null"), open("/dev/zero"), open("/"), open("/proc/self/maps")]
}

/// A xorshift generator: the same noise every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn byte(&mut self) -> u8 {
        // Small numbers are the interesting ones.
        match self.below(4) {
            0 => self.below(256) as u8,
            1 => self.below(4) as u8,
            _ => 0,
        }
    }
}
