//! A vhost-user front end that sends whatever the input says, with whatever descriptors.

#![expect(clippy::expect_used, reason = "a fuzz target reports by panicking")]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use guestmem::GuestMemory;
use sys::EventFd;
use testkit::frontend::{REPLY, VERSION, message};
use vhost_session::{Action, ConfigRefused, DeviceSpec, Session};
use virtqueue::region_bytes;

use crate::bytes::Bytes;

/// Size of the file that guest memory may be in.
const MEMORY: u64 = 1 << 20;
/// One past the last request number tried; the specification ends at 44.
const REQUESTS: u8 = 47;

/// The target.
///
/// # Panics
/// When the session breaks a rule its host relies on.
pub fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let features = 1 << 28 | 1 << 29 | 1 << 32 | 1 << 34;
    let spec = DeviceSpec { config_size: 24, inflight: true, ..DeviceSpec::net(features, 2) };
    let mut host = Host { session: Session::new(spec), running: Vec::new(), closed: false };
    while !input.is_empty() {
        let fds = descriptors(&mut input);
        let kind = input.u8();
        let bytes = if kind & 0x80 == 0 {
            let flags =
                if kind & 0x40 == 0 { VERSION | kind as u32 & 8 } else { kind as u32 & 0x3f };
            let (request, size) = (input.u8() % REQUESTS, input.u8());
            message(request.into(), flags, &take(&mut input, size.into()))
        } else {
            take(&mut input, (kind & 0x7f).into())
        };
        host.session.input(&bytes, fds);
        host.carry_out(&mut input);
    }
}

struct Host {
    session: Session,
    running: Vec<u16>,
    closed: bool,
}

impl Host {
    fn carry_out(&mut self, input: &mut Bytes<'_>) {
        while let Some(action) = self.session.poll() {
            assert!(!self.closed, "{action:?} after the end");
            match action {
                Action::Send(bytes, _) => check_reply(&bytes),
                Action::Map(regions) => {
                    self.expect_silence();
                    self.session.mapped(GuestMemory::map(&regions).map(Arc::new));
                }
                Action::Start(setup) => {
                    assert!(!self.running.contains(&setup.index), "started twice");
                    self.running.push(setup.index);
                    // What a session says is in memory is there.
                    let queue = virtqueue::Queue::new(&setup.mem, &setup.config);
                    assert!(queue.is_ok(), "{:?}: {:?}", setup.config, queue.err());
                    let needed = region_bytes(setup.config.packed, setup.config.size);
                    assert!(setup.inflight.is_none_or(|area| area.len() >= needed as usize));
                }
                Action::MakeInflight { size } => {
                    self.expect_silence();
                    let none = || io::Error::from(io::ErrorKind::OutOfMemory);
                    let made = input.u8() & 1 == 0;
                    let made = if made { sys::memfd("fuzz", size, false) } else { Err(none()) };
                    self.session.inflight_made(made);
                }
                Action::ReadConfig => {
                    self.expect_silence();
                    self.session.config_read(&[1; 20]);
                }
                Action::WriteConfig { offset, bytes } => {
                    self.expect_silence();
                    assert!(!bytes.is_empty() && offset as usize + bytes.len() <= 24);
                    let refused = || ConfigRefused { reason: "this one is not written".into() };
                    let written = (input.u8() & 1 == 0).then_some(()).ok_or_else(refused);
                    self.session.config_written(written);
                }
                Action::Stop { queue } => {
                    let at = self.running.iter().position(|other| *other == queue);
                    self.running.swap_remove(at.expect("a queue that runs"));
                    self.expect_silence();
                    self.session.stopped(queue, input.u8().into());
                }
                Action::SetCall { queue, .. } | Action::SetEnabled { queue, .. } => {
                    assert!(self.running.contains(&queue));
                }
                Action::Close(_) => self.closed = true,
                _ => {}
            }
        }
        self.running.sort_unstable();
        assert!(self.session.running().eq(self.running.iter().copied()));
        assert_eq!(self.session.wanted() == 0, self.closed);
    }

    /// One answer at a time, and nothing else meanwhile.
    fn expect_silence(&mut self) {
        assert!(self.session.poll().is_none());
        assert_eq!(self.session.wanted(), 0);
    }
}

fn check_reply(bytes: &[u8]) {
    let field = |at: usize, number: u32| bytes.get(at..at + 4) == Some(&number.to_ne_bytes()[..]);
    assert!(field(4, VERSION | REPLY), "flags of {bytes:x?}");
    assert!(field(8, bytes.len() as u32 - 12), "length of {bytes:x?}");
}

fn take(input: &mut Bytes<'_>, count: usize) -> Vec<u8> {
    (0..count).map(|_| input.u8()).collect()
}

/// Up to three descriptors: eventfds, memory, something else, sockets.
fn descriptors(input: &mut Bytes<'_>) -> Vec<OwnedFd> {
    static FILES: OnceLock<[OwnedFd; 4]> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let memory = sys::memfd("fuzz", MEMORY, false).expect("a memfd");
        let null = File::open("/dev/null").expect("/dev/null");
        let (socket, _) = UnixStream::pair().expect("a socket");
        [EventFd::new().expect("an eventfd").into(), memory, null.into(), socket.into()]
    });
    let choice = input.u8();
    (0..(choice & 3))
        .filter_map(|which| {
            let file = files.get(usize::from(choice >> (2 + 2 * which) & 3))?;
            file.try_clone().ok()
        })
        .collect()
}
