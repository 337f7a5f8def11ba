//! A host for a session without a socket: answers what needs an answer and writes down what happens.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod port;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use guestmem::{GuestMemory, RegionSpec};
use sys::EventFd;
use testkit::frontend::{NEED_REPLY, NO_FD, Pages, Region, VERSION, message, request};
use vhost_session::{Action, ConfigRefused, DeviceSpec, Session};

/// Where the tests' guest memory is, and how much of it there is.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const SIZE: u64 = 0x10_0000;
/// What a stopped ring answers.
pub(crate) const STOPPED_AT: u32 = 7;

/// Features with protocol features acknowledged, split rings.
pub(crate) const SPLIT: u64 = 1 << 32 | 1 << 30;
pub(crate) const PACKED: u64 = SPLIT | 1 << 34;

pub(crate) fn spec() -> DeviceSpec {
    // CSUM, MTU, event-idx, indirect, version 1, packed, in-order.
    let features = 1 | 1 << 3 | 1 << 28 | 1 << 29 | 1 << 32 | 1 << 34 | 1 << 35;
    DeviceSpec { max_mtu: 9000, ..DeviceSpec::net(features, 2) }
}

/// A disk of four rings with ten bytes of configuration space.
pub(crate) fn disk() -> DeviceSpec {
    DeviceSpec::block(1 << 28 | 1 << 29 | 1 << 32 | 1 << 34, 4, 10)
}

/// A session and its log.
pub(crate) struct Host {
    pub(crate) session: Session,
    /// What happened, one line each.
    pub(crate) log: Vec<String>,
    pub(crate) memory: Option<Arc<GuestMemory>>,
    pub(crate) closed: bool,
    /// Features the last started queue was given, and its configuration.
    pub(crate) last_start: Option<vhost_session::QueueSetup>,
    /// Queues whose position is of no more use, in the order told.
    pub(crate) forgotten: Vec<u16>,
    /// The configuration space; only its first byte may be written.
    pub(crate) config: Vec<u8>,
    /// Descriptors sent, and sockets taken.
    pub(crate) sent: Vec<OwnedFd>,
    pub(crate) backends: Vec<UnixStream>,
    /// There is no memory to share.
    pub(crate) poor: bool,
    running: Vec<u16>,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host::with(spec())
    }

    pub(crate) fn with(spec: DeviceSpec) -> Host {
        Host {
            session: Session::new(spec),
            log: Vec::new(),
            memory: None,
            closed: false,
            last_start: None,
            forgotten: Vec::new(),
            config: (1..=10).collect(),
            sent: Vec::new(),
            backends: Vec::new(),
            poor: false,
            running: Vec::new(),
        }
    }

    /// Gives a message to the session; what came of it.
    pub(crate) fn give(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> Vec<String> {
        self.session.input(bytes, fds);
        self.run()
    }

    /// A message of `request` without a wish for an acknowledgement.
    pub(crate) fn plain(&mut self, request: u32, body: &[u8], fds: Vec<OwnedFd>) -> Vec<String> {
        self.give(&message(request, VERSION, body), fds)
    }

    /// The same with it.
    pub(crate) fn acked(&mut self, request: u32, body: &[u8], fds: Vec<OwnedFd>) -> Vec<String> {
        self.give(&message(request, VERSION | NEED_REPLY, body), fds)
    }

    /// Carries out everything there is to do, and checks the rules every host relies on.
    pub(crate) fn run(&mut self) -> Vec<String> {
        let from = self.log.len();
        while let Some(action) = self.session.poll() {
            assert!(!self.closed, "{action:?} after the end");
            if let Action::Forget { queue } = action {
                assert!(!self.running.contains(&queue), "forgotten and running");
                self.forgotten.push(queue);
                continue;
            }
            let line = self.carry_out(action);
            self.log.push(line);
        }
        let mut running: Vec<u16> = self.session.running().collect();
        running.sort_unstable();
        self.running.sort_unstable();
        assert_eq!(running, self.running);
        self.log[from..].to_vec()
    }

    fn carry_out(&mut self, action: Action) -> String {
        match action {
            Action::Send(bytes, None) => sent(&bytes),
            Action::Send(bytes, Some(fd)) => {
                self.sent.push(fd);
                format!("{} with a descriptor", sent(&bytes))
            }
            Action::Map(regions) => {
                self.expect_silence();
                let result = GuestMemory::map(&regions).map(Arc::new);
                self.session.mapped(result);
                format!("map {}", regions.len())
            }
            Action::MakeInflight { size } => {
                self.expect_silence();
                let memory = sys::memfd("inflight", size, false);
                let none = || io::Error::from(io::ErrorKind::OutOfMemory);
                self.session.inflight_made(if self.poor { Err(none()) } else { memory });
                format!("make {size}")
            }
            Action::ReadConfig => {
                self.expect_silence();
                self.session.config_read(&self.config);
                "read config".into()
            }
            Action::WriteConfig { offset, bytes } => {
                self.expect_silence();
                let refused = || ConfigRefused { reason: "only the first byte".into() };
                let first = offset == 0 && bytes.len() == 1;
                if first {
                    self.config[0] = bytes[0];
                }
                self.session.config_written(first.then_some(()).ok_or_else(refused));
                format!("write config {offset} {bytes:?}")
            }
            Action::Backend(socket) => {
                self.backends.push(socket);
                "backend".into()
            }
            Action::Start(setup) => {
                assert!(!self.running.contains(&setup.index), "started twice");
                self.running.push(setup.index);
                let line = format!("start {}", setup.index);
                self.last_start = Some(setup);
                line
            }
            Action::Stop { queue } => {
                assert!(self.running.contains(&queue), "stopped and not running");
                self.running.retain(|other| *other != queue);
                self.expect_silence();
                self.session.stopped(queue, STOPPED_AT);
                format!("stop {queue}")
            }
            Action::SetCall { queue, call } => {
                assert!(self.running.contains(&queue));
                format!("call {queue} {}", call.is_some())
            }
            Action::SetEnabled { queue, on } => {
                assert!(self.running.contains(&queue));
                format!("enabled {queue} {on}")
            }
            Action::Forget { .. } => unreachable!("noted before"),
            Action::Features(features) => format!("features {features:#x}"),
            Action::Mtu(mtu) => format!("mtu {mtu}"),
            Action::Rarp(mac) => format!("rarp {mac:x?}"),
            Action::Refused(fault) => format!("refused {}", fault.name()),
            Action::Close(fault) => {
                self.closed = true;
                format!("close {}", fault.name())
            }
        }
    }

    /// While an answer is outstanding nothing else happens, and answers to other questions are ignored.
    fn expect_silence(&mut self) {
        assert!(self.session.poll().is_none(), "an action while an answer is outstanding");
        assert_eq!(self.session.wanted(), 0, "input wanted while an answer is outstanding");
        self.session.stopped(999, 0);
        assert!(self.session.poll().is_none());
    }

    /// Negotiates these features, with REPLY_ACK and memory slots.
    pub(crate) fn negotiate(&mut self, features: u64) {
        self.negotiate_with(features, testkit::frontend::protocol::NET);
    }

    pub(crate) fn negotiate_with(&mut self, features: u64, protocol: u64) {
        assert!(self.plain(request::SET_PROTOCOL_FEATURES, &n(protocol), vec![]).is_empty());
        let line = format!("features {:#x}", features & !(1 << 30));
        assert_eq!(self.plain(request::SET_FEATURES, &n(features), vec![]), [line]);
    }

    /// Describes ring 0..4 in full, all but the kick.
    pub(crate) fn describe(&mut self, queue: u32) {
        self.describe_at(queue, user(0));
    }

    pub(crate) fn describe_at(&mut self, queue: u32, desc: u64) {
        for (request, body) in [
            (request::SET_VRING_NUM, pair(queue, 16).to_vec()),
            (request::SET_VRING_BASE, pair(queue, 0).to_vec()),
            (request::SET_VRING_ADDR, addr(queue, 0, desc, desc + 0x1000, desc + 0x2000)),
        ] {
            assert_eq!(self.acked(request, &body, vec![]), [format!("send {request} 0")]);
        }
    }

    /// A running ring 0 in one region of memory.
    pub(crate) fn started(features: u64) -> Host {
        let mut host = Host::new();
        host.negotiate(features);
        host.share();
        host.describe(0);
        assert_eq!(host.acked(request::SET_VRING_KICK, &n(0), event()), ["start 0", "send 12 0"]);
        host
    }

    /// A memory table of one region.
    pub(crate) fn share(&mut self) {
        let region = region(BASE, SIZE);
        let expect = ["map 1", "send 5 0"];
        assert_eq!(self.acked(request::SET_MEM_TABLE, &table(&[&region]), fds(&[&region])), expect);
    }
}

/// A reply as a line: request number, and the body as a number or in hex.
fn sent(bytes: &[u8]) -> String {
    let field = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(field(4), 5, "flags of a reply");
    assert_eq!(field(8) as usize, bytes.len() - 12, "length of a reply");
    match <[u8; 8]>::try_from(&bytes[12..]).map(u64::from_ne_bytes) {
        Ok(small @ ..10) => format!("send {} {small}", field(0)),
        Ok(number) => format!("send {} {number:#x}", field(0)),
        Err(_) => format!("send {} {:x?}", field(0), &bytes[12..]),
    }
}

pub(crate) fn n(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}

pub(crate) fn pair(first: u32, second: u32) -> [u8; 8] {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&first.to_ne_bytes());
    body[4..].copy_from_slice(&second.to_ne_bytes());
    body
}

/// Body of SET_VRING_ADDR.
pub(crate) fn addr(queue: u32, flags: u32, desc: u64, used: u64, avail: u64) -> Vec<u8> {
    [pair(queue, flags), n(desc), n(used), n(avail), n(0)].concat()
}

/// User address of an offset in the tests' memory.
pub(crate) fn user(offset: u64) -> u64 {
    0x7f00_0000_0000 + BASE + offset
}

pub(crate) fn region(gpa: u64, size: u64) -> Region {
    Region::new(gpa, size, Pages::Small).unwrap()
}

/// Body of SET_MEM_TABLE.
pub(crate) fn table(regions: &[&Region]) -> Vec<u8> {
    let mut body = pair(regions.len() as u32, 0).to_vec();
    for region in regions {
        body.extend(region.body());
    }
    body
}

/// Body of ADD_MEM_REG and REM_MEM_REG.
pub(crate) fn single(region: &Region) -> Vec<u8> {
    [n(0).to_vec(), region.body()].concat()
}

pub(crate) fn fds(regions: &[&Region]) -> Vec<OwnedFd> {
    regions.iter().map(|region| region.fd.try_clone().unwrap()).collect()
}

/// One eventfd.
pub(crate) fn event() -> Vec<OwnedFd> {
    vec![EventFd::new().unwrap().into()]
}

/// One end of a pipe: not an eventfd.
pub(crate) fn pipe() -> Vec<OwnedFd> {
    vec![std::io::pipe().unwrap().0.into()]
}

pub(crate) fn no_fd(queue: u64) -> [u8; 8] {
    n(queue | NO_FD)
}

pub(crate) fn dup(fd: &impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

pub(crate) fn region_spec(
    guest_addr: u64,
    size: u64,
    user_addr: u64,
    mmap_offset: u64,
) -> RegionSpec {
    RegionSpec { guest_addr, size, user_addr, mmap_offset }
}
