//! What a front end can do wrong with its socket, its memory and its descriptors.

use std::io::pipe;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guestmem::RegionSpec;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sys::EventFd;
use testkit::driver::RawDesc;
use testkit::frontend::request::*;
use testkit::frontend::{Frontend, Region, VERSION, feature, message};

use super::liar::{BIG, DATA, HOLE, Liar, N, Options, Ring, START};
use crate::common::frames::Mac;
use crate::common::{PATIENCE, Rng};

/// How the session ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The front end went away by itself, or was found out in one of several ways.
    Left,
    /// The front end's fault.
    Fault(&'static str),
    /// The guest's fault.
    Device(&'static str),
}

type Feed<'a> = &'a mut dyn FnMut();

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// Plays it to the end of the session.
    pub(crate) run: fn(&Path, Options, Mac, Feed<'_>) -> End,
}

/// An attack with bytes and descriptors on a fresh connection.
macro_rules! wire {
    ($name:literal, $end:expr, |$frontend:ident| $attack:expr) => {
        Attack {
            name: $name,
            run: |socket, _, _, _| {
                let mut $frontend = connect(socket);
                $attack;
                $frontend.wait_closed().unwrap();
                $end
            },
        }
    };
}

/// An attack by a VM whose queues run.
macro_rules! running {
    ($name:literal, |$liar:ident, $feed:ident| $attack:expr) => {
        Attack {
            name: $name,
            run: |socket, options, mac, $feed| {
                let mut $liar = Liar::connect(socket, options, mac);
                $liar.start().unwrap();
                $attack
            },
        }
    };
}

pub(crate) const ATTACKS: &[Attack] = &[
    wire!("half a header", End::Left, |f| {
        f.send(&[1, 0, 0, 0, 1, 0], &[]).unwrap();
        leave(&f);
    }),
    wire!("a header without its body", End::Left, |f| {
        f.send(&header(SET_FEATURES, VERSION, 8), &[]).unwrap();
        leave(&f);
    }),
    wire!("a wrong version", End::Fault("bad-version"), |f| {
        f.send(&message(GET_FEATURES, 2, &[]), &[]).unwrap();
    }),
    wire!("a reply instead of a request", End::Fault("bad-flags"), |f| {
        f.send(&message(GET_FEATURES, VERSION | 4, &[]), &[]).unwrap();
    }),
    wire!("a body of 4 GiB", End::Fault("body-size"), |f| {
        f.send(&header(SET_MEM_TABLE, VERSION, u32::MAX), &[]).unwrap();
    }),
    wire!("a body that is too long", End::Fault("body-size"), |f| {
        push(&mut f, &message(SET_OWNER, VERSION, &[0; 4096]));
    }),
    wire!("a body that is too short", End::Fault("body-size"), |f| {
        push(&mut f, &message(SET_FEATURES, VERSION, &[0; 4]));
    }),
    wire!("a request that is none", End::Fault("unknown-request"), |f| {
        push(&mut f, &message(0xdead, VERSION, &[]));
    }),
    wire!("features nobody offered", End::Fault("features-not-offered"), |f| {
        push(&mut f, &message(SET_FEATURES, VERSION, &[0xff; 8]));
    }),
    wire!("a ring that is not there", End::Fault("no-such-ring"), |f| {
        push(&mut f, &message(SET_VRING_NUM, VERSION, &pair(200, 256)));
    }),
    wire!("a ring of three", End::Fault("bad-ring-size"), |f| {
        f.negotiate(feature::VERSION_1, 0).unwrap();
        let region = region(&mut f);
        push(&mut f, &message(SET_VRING_NUM, VERSION, &pair(0, 3)));
        push(&mut f, &message(SET_VRING_ADDR, VERSION, &addresses(0, [region; 3])));
        kick(&mut f);
    }),
    wire!("a ring larger than any", End::Fault("bad-ring-size"), |f| {
        push(&mut f, &message(SET_VRING_NUM, VERSION, &pair(0, 65_536)));
    }),
    wire!("rings that are nowhere", End::Fault("ring-outside-memory"), |f| {
        f.negotiate(feature::VERSION_1, 0).unwrap();
        region(&mut f);
        push(&mut f, &message(SET_VRING_NUM, VERSION, &pair(0, 256)));
        push(&mut f, &message(SET_VRING_ADDR, VERSION, &addresses(0, [u64::MAX - 4095; 3])));
        kick(&mut f);
    }),
    wire!("rings at odd addresses", End::Fault("ring-misaligned"), |f| {
        f.negotiate(feature::VERSION_1, 0).unwrap();
        let at = region(&mut f);
        push(&mut f, &message(SET_VRING_NUM, VERSION, &pair(0, 256)));
        push(&mut f, &message(SET_VRING_ADDR, VERSION, &addresses(0, [at + 8, at, at])));
        kick(&mut f);
    }),
    wire!("descriptors where none belong", End::Fault("descriptor-count"), |f| {
        let event = EventFd::new().unwrap();
        let _ = f.send(&message(GET_FEATURES, VERSION, &[]), &[event.as_fd(); 3]);
    }),
    wire!("more descriptors than any message has", End::Fault("descriptor-count"), |f| {
        let event = EventFd::new().unwrap();
        let _ = f.send(&message(SET_VRING_KICK, VERSION, &[0; 8]), &[event.as_fd(); 30]);
    }),
    wire!("descriptors in the middle of a message", End::Fault("stray-descriptors"), |f| {
        let event = EventFd::new().unwrap();
        let bytes = message(SET_VRING_KICK, VERSION, &[0; 8]);
        f.send(&bytes[..15], &[]).unwrap();
        let _ = f.send(&bytes[15..], &[event.as_fd()]);
    }),
    wire!("a pipe as a kick", End::Fault("not-an-eventfd"), |f| {
        let (read, _write) = pipe().unwrap();
        let _ = f.send(&message(SET_VRING_KICK, VERSION, &[0; 8]), &[read.as_fd()]);
    }),
    wire!("its own socket as an interrupt", End::Fault("not-an-eventfd"), |f| {
        let socket = f.socket().try_clone().unwrap();
        let _ = f.send(&message(SET_VRING_CALL, VERSION, &[0; 8]), &[socket.as_fd()]);
    }),
    wire!("an event as memory", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(EventFd::new().unwrap(), 0, 4096, 0)]);
    }),
    wire!("a pipe as memory", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(pipe().unwrap().0, 0, 4096, 0)]);
    }),
    wire!("memory that is shorter than it says", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(memfd(4096), 0, 1 << 30, 0)]);
    }),
    wire!("memory behind the end of its file", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(memfd(8192), 0, 4096, u64::MAX - 4095)]);
    }),
    wire!("memory of no bytes", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(memfd(4096), 0, 0, 0)]);
    }),
    wire!("memory of all bytes", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(memfd(4096), 0, u64::MAX, 0)]);
    }),
    wire!("memory around the address space", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(memfd(8192), u64::MAX - 4095, 8192, 0)]);
    }),
    wire!("regions that overlap", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(memfd(8192), 0, 8192, 0), lie(memfd(8192), 4096, 8192, 0)]);
    }),
    wire!("regions too far apart", End::Fault("memory-not-mapped"), |f| {
        share(&mut f, &[lie(memfd(4096), 0, 4096, 0), lie(memfd(4096), 1 << 60, 4096, 0)]);
    }),
    wire!("a table without regions", End::Fault("region-count"), |f| {
        push(&mut f, &message(SET_MEM_TABLE, VERSION, &[0; 8]));
    }),
    Attack {
        name: "noise",
        run: |socket, options, _, _| {
            let mut rng = Rng::new(u64::from(options.packed));
            let mut f = connect(socket);
            let noise = rng.bytes(5000);
            push(&mut f, &noise);
            f.wait_closed().unwrap();
            End::Left
        },
    },
    Attack {
        name: "requests at random",
        run: |socket, options, _, _| {
            let mut f = connect(socket);
            random_requests(&mut f, &mut Rng::new(7 + u64::from(options.packed)));
            leave(&f);
            f.wait_closed().unwrap();
            End::Left
        },
    },
    Attack {
        name: "requests at random in a running session",
        run: |socket, options, mac, feed| {
            let mut liar = Liar::connect(socket, options, mac);
            liar.start().unwrap();
            feed();
            random_requests(&mut liar.frontend, &mut Rng::new(70 + u64::from(options.packed)));
            leave(&liar.frontend);
            liar.frontend.wait_closed().unwrap();
            End::Left
        },
    },
    running!("gone in the middle of a burst", |liar, feed| {
        flood(&mut liar, feed);
        End::Left
    }),
    running!("gone in the middle of a message and a burst", |liar, feed| {
        flood(&mut liar, feed);
        liar.frontend.send(&header(GET_VRING_BASE, VERSION, 8), &[]).unwrap();
        End::Left
    }),
    running!("reset in the middle of a burst", |liar, feed| {
        flood(&mut liar, feed);
        liar.frontend.set(RESET_DEVICE, &[], &[]).unwrap();
        feed();
        End::Left
    }),
    running!("another ring while it runs", |liar, feed| {
        flood(&mut liar, feed);
        let refused = liar.frontend.set_ring_addr(1, [user(START), user(START), user(START)]);
        assert!(refused.is_err());
        assert!(liar.frontend.set_ring_state(SET_VRING_NUM, 1, 2).is_err());
        End::Left
    }),
    running!("a table that no longer has the rings", |liar, feed| {
        flood(&mut liar, feed);
        let keep = &liar.memory.regions()[1];
        let table = [pair(1, 0).to_vec(), keep.body()].concat();
        let refused = liar.frontend.set(SET_MEM_TABLE, &table, &[keep.fd.as_fd()]);
        assert!(refused.is_err());
        feed();
        End::Left
    }),
    running!("the region with the rings taken away", |liar, feed| {
        flood(&mut liar, feed);
        liar.frontend.rem_mem_reg(&liar.memory.regions()[0]).unwrap();
        feed();
        End::Left
    }),
    running!("memory cut off under sent frames", |liar, feed| {
        cut(&liar, 0, DATA - START);
        flood(&mut liar, feed);
        vanished(&mut liar, feed)
    }),
    running!("memory cut off under RX buffers", |liar, feed| {
        cut(&liar, 1, 0);
        let [rx, _] = &liar.rings;
        rx.one(BIG + 4096, 2048, rx.write, 0);
        feed();
        vanished(&mut liar, feed)
    }),
    Attack {
        name: "memory cut off under RX buffers of a guest that sends nothing",
        run: |socket, options, mac, feed| {
            let mut liar = Liar::connect(socket, options, mac);
            let [rx, _] = &liar.rings;
            liar.frontend.start_queue_with(0, &liar.memory, &rx.queue, &rx.fds).unwrap();
            cut(&liar, 1, 0);
            rx.one(BIG + 4096, 2048, rx.write, 0);
            vanished(&mut liar, feed)
        },
    },
    running!("memory cut off under the rings", |liar, feed| {
        flood(&mut liar, feed);
        cut(&liar, 0, 0);
        liar.rings[1].kick();
        feed();
        vanished(&mut liar, feed)
    }),
    running!("memory cut off under an indirect table", |liar, feed| {
        cut(&liar, 1, 0);
        let [_, tx] = &liar.rings;
        tx.one(BIG, 4096, testkit::driver::flags::INDIRECT, 0);
        tx.kick();
        vanished(&mut liar, feed)
    }),
];

fn connect(socket: &Path) -> Frontend {
    let frontend = Frontend::connect_within(socket, PATIENCE).unwrap();
    frontend.set_timeout(PATIENCE).unwrap();
    frontend
}

/// Sends and does not care whether it is taken.
fn push(frontend: &mut Frontend, bytes: &[u8]) {
    let _ = frontend.send(bytes, &[]);
}

fn leave(frontend: &Frontend) {
    let _ = frontend.socket().shutdown(Shutdown::Write);
}

fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
    [request, flags, size].map(u32::to_ne_bytes).concat()
}

fn pair(first: u32, second: u32) -> [u8; 8] {
    (u64::from(second) << 32 | u64::from(first)).to_le_bytes()
}

fn addresses(index: u32, [desc, used, avail]: [u64; 3]) -> Vec<u8> {
    [pair(index, 0), desc.to_ne_bytes(), used.to_ne_bytes(), avail.to_ne_bytes(), [0; 8]].concat()
}

fn kick(frontend: &mut Frontend) {
    let event = EventFd::new().unwrap();
    let _ = frontend.send(&message(SET_VRING_KICK, VERSION, &[0; 8]), &[event.as_fd()]);
}

fn memfd(size: u64) -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

/// A region that claims what it likes of a file.
fn lie(fd: impl Into<OwnedFd>, guest_addr: u64, size: u64, mmap_offset: u64) -> Region {
    let user_addr = guest_addr;
    let spec = RegionSpec { guest_addr, size, user_addr, mmap_offset };
    Region { spec, fd: Arc::new(fd.into()) }
}

fn share(frontend: &mut Frontend, regions: &[Region]) {
    let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|region| region.fd.as_fd()).collect();
    let mut body = pair(regions.len() as u32, 0).to_vec();
    regions.iter().for_each(|region| body.extend(region.body()));
    let _ = frontend.send(&message(SET_MEM_TABLE, VERSION, &body), &fds);
}

/// Shares an honest region; its user address.
fn region(frontend: &mut Frontend) -> u64 {
    share(frontend, &[lie(memfd(1 << 20), 0, 1 << 20, 0)]);
    0
}

/// A hundred requests of every kind, with random bodies and sometimes a descriptor.
fn random_requests(frontend: &mut Frontend, rng: &mut Rng) {
    let event = EventFd::new().unwrap();
    for _ in 0..100 {
        let request = rng.range(1, 45) as u32;
        let len = rng.pick(&[0, 8, 8, 8, 40, 40, 32, 12, 20]);
        let mut body = rng.bytes(len);
        if rng.one_in(2) {
            // Small numbers are more often taken seriously.
            body.iter_mut().enumerate().for_each(|(at, byte)| *byte &= u8::from(at % 4 == 0) * 3);
        }
        let flags = VERSION | if rng.one_in(2) { 8 } else { 0 };
        let fds = [event.as_fd()];
        let count = usize::from(rng.one_in(4));
        if frontend.send(&message(request, flags, &body), &fds[..count]).is_err() {
            return;
        }
    }
}

fn user(gpa: u64) -> u64 {
    0x7f00_0000_0000 + gpa
}

/// Fills the TX ring with frames and kicks, and has something sent to it.
fn flood(liar: &mut Liar, feed: Feed<'_>) {
    let [rx, tx] = &liar.rings;
    let one = |ring: &Ring, id: u16| RawDesc { addr: DATA, len: 128, flags: ring.write, tag: id };
    for ring in [rx, tx] {
        ring.place(&(0..N).map(|id| one(ring, id)).collect::<Vec<_>>());
        if !ring.packed {
            (0..N).for_each(|slot| ring.raw().set_avail_entry(slot, slot));
            ring.raw().set_avail_idx(N);
        }
    }
    tx.kick();
    feed();
}

/// Truncates the file of a region.
fn cut(liar: &Liar, region: usize, len: u64) {
    debug_assert!(START + len <= HOLE);
    ftruncate(&liar.memory.regions()[region].fd, len).unwrap();
}

/// Waits for the end of a session whose memory has vanished; it is found out with the next frame.
fn vanished(liar: &mut Liar, feed: Feed<'_>) -> End {
    liar.frontend.set_timeout(Duration::from_millis(5)).unwrap();
    let start = Instant::now();
    while liar.frontend.wait_closed().is_err() {
        assert!(start.elapsed() < PATIENCE, "memory has vanished and nobody minds");
        feed();
    }
    End::Device("memory-vanished")
}
