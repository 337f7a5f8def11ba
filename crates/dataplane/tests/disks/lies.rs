//! Requests as no driver makes them: each is refused, or its queue is stopped under a name; the
//! next session works, and a neighbour on the same worker is not disturbed and not seen.

use dataplane::{DiskId, DiskImage};
use testkit::block::{BlockDriver, HEADER, Layout, Options, Request, kind, range, status};
use testkit::driver::{Buffer, DriverQueue, RawDesc, Shape, flags, write};

use crate::common::plane::{Plane, panics};
use crate::images::Stage;
use crate::rig::{Files, Kind, add, add_with, connect, disk, memory_disk, ok, wait_faulted};

const SIZE: u64 = 1 << 20;
/// What the neighbour's disk is full of.
const SECRET: u8 = 0x5c;
/// Guest memory in which lies are laid out, in the data of requests nobody makes.
const SPACE: u64 = (1 << 32) + (16 << 20);

/// A liar and its neighbour, on the same worker.
struct Street {
    plane: Plane,
    liar: DiskId,
    options: Options,
    neighbour: BlockDriver,
    neighbours: DiskId,
    _files: [Files; 2],
}

impl Street {
    fn new(options: Options, read_only: bool) -> Street {
        let plane = Plane::with_workers(1);
        let files = Files::new(Kind::Memory, SIZE);
        let liar = add_with(&plane, "liar", files.image(), SIZE, |spec| spec.read_only = read_only);
        let (neighbours, theirs, mut neighbour) = memory_disk(&plane, "neighbour", SIZE);
        for sector in (0..SIZE / 512).step_by(128) {
            ok(&neighbour.run(&Request::write(sector, &[SECRET; 64 << 10])).unwrap());
        }
        let _files = [files, theirs];
        Street { plane, liar, options, neighbour, neighbours, _files }
    }

    fn connect(&self) -> BlockDriver {
        connect(&self.plane, "liar", &self.options)
    }

    /// The neighbour notices nothing.
    fn all_is_well(&mut self) {
        for sector in [0, 100, 2047] {
            let done = self.neighbour.run(&Request::read(sector, 512)).unwrap();
            assert_eq!(done.data, [SECRET; 512]);
        }
        let seen = disk(&self.plane.host, self.neighbours);
        assert_eq!((seen.sessions, seen.last_fault, seen.last_error), (1, None, None));
        assert_eq!(panics(), 0);
    }

    fn end(self) {
        drop(self.neighbour);
        self.plane.end();
    }
}

fn formats() -> [Options; 4] {
    [(false, false), (false, true), (true, false), (true, true)]
        .map(|(packed, event_idx)| Options { event_idx, data: 1 << 18, ..Options::new(packed) })
}

const MANY: u32 = 1 << 16;

/// Requests that are wrong, and what is said of them.
fn requests() -> Vec<(&'static str, Request, u8)> {
    let end = SIZE / 512;
    let new = Request::new;
    let sector = [1; 512];
    let mut all = vec![
        ("a type that is not known", new(99, 0, &[], 512), status::UNSUPP),
        ("the largest type", new(u32::MAX, 0, &[], 0), status::UNSUPP),
        ("the first sector past the end", Request::read(end, 512), status::IOERR),
        ("across the end", Request::read(end - 1, 1024), status::IOERR),
        ("a sector that overflows in bytes", Request::read(1 << 55, 512), status::IOERR),
        ("the last sector there can be", Request::read(u64::MAX, 512), status::IOERR),
        ("a write across the end", Request::write(end - 1, &[1; 1024]), status::IOERR),
        ("a write that overflows", Request::write(u64::MAX, &sector), status::IOERR),
        ("no data to read", Request::read(0, 0), status::IOERR),
        ("no data to write", Request::write(0, &[]), status::IOERR),
        ("half a sector to read", Request::read(0, 511), status::IOERR),
        ("half a sector to write", Request::write(0, &[1; 513]), status::IOERR),
        ("a read with data", new(kind::IN, 0, &sector, 512), status::IOERR),
        ("a write into writable memory", new(kind::OUT, 0, &[], 512), status::IOERR),
        ("a write both ways", new(kind::OUT, 0, &sector, 512), status::IOERR),
        ("a name that is too short", new(kind::GET_ID, 0, &[], 19), status::IOERR),
        ("a name that is too long", new(kind::GET_ID, 0, &[], 21), status::IOERR),
        ("no header", Request { readable: vec![], writable: 513 }, status::IOERR),
        ("a header that is cut", Request { readable: vec![0; 15], writable: 513 }, status::IOERR),
        ("no range", new(kind::DISCARD, 0, &[], 0), status::IOERR),
        ("half a range", new(kind::DISCARD, 0, &[0; 8], 0), status::IOERR),
        ("no sectors", Request::discard(0, 0), status::IOERR),
        ("a range past the end", Request::discard(end, 1), status::IOERR),
        ("a range that overflows", Request::discard(u64::MAX, u32::MAX), status::IOERR),
        ("zeroes past the end", Request::write_zeroes(end - 1, 2, true), status::IOERR),
        ("too many zeroes", Request::write_zeroes(0, u32::MAX, false), status::IOERR),
        ("an unknown flag", new(kind::DISCARD, 0, &range(0, 1, 1), 0), status::UNSUPP),
        ("reserved flags", new(kind::WRITE_ZEROES, 0, &range(0, 1, !1), 0), status::UNSUPP),
        (
            "a thousand ranges",
            new(kind::DISCARD, 0, &range(0, 1, 0).repeat(1000), 0),
            status::IOERR,
        ),
        ("secure erase", new(14, 0, &range(0, 1, 0), 0), status::UNSUPP),
        ("zones", new(18, 0, &[], 4096), status::UNSUPP),
    ];
    // One good range does not make up for a bad one.
    let mixed = [range(0, 1, 0), range(end, 1, 0)].concat();
    all.push(("a good range and a bad one", new(kind::DISCARD, 0, &mixed, 0), status::IOERR));
    all
}

#[test]
fn malformed_requests_are_refused() {
    for options in formats() {
        let mut street = Street::new(options, false);
        let mut liar = street.connect();
        ok(&liar.run(&Request::write(0, &[1; 4096])).unwrap());
        for (what, request, expected) in requests() {
            for shape in [Shape::Direct, Shape::Indirect] {
                let layout = Layout { shape, ..Layout::usual(&request) };
                let done = liar.run_as(0, &request, &layout).unwrap();
                assert_eq!(done.status, Some(expected), "{what}");
                assert_eq!(done.used, request.writable, "{what}");
                assert!(!done.data.contains(&SECRET), "{what}");
            }
        }
        // Without room for the status there is nothing to say.
        for kind in [kind::IN, kind::OUT, kind::FLUSH, 99] {
            let request = Request { writable: 0, ..Request::new(kind, 0, &[1; 512], 0) };
            let done = liar.run(&request).unwrap();
            assert_eq!((done.status, done.used), (None, 0));
        }
        street.all_is_well();
        assert_eq!(liar.run(&Request::read(0, 4096)).unwrap().data, [1; 4096], "it was changed");
        let seen = disk(&street.plane.host, street.liar);
        assert_eq!((seen.sessions, seen.last_fault), (1, None));
        assert_eq!(seen.operations.refused.iter().sum::<u64>() as usize, 2 * requests().len() + 4);
        drop(liar);
        street.end();
    }
}

#[test]
fn a_read_only_disk_refuses_to_be_changed() {
    for options in formats() {
        let mut street = Street::new(options, true);
        let mut liar = street.connect();
        for request in [
            Request::write(0, &[1; 512]),
            Request::write(u64::MAX, &[1; 512]),
            Request::discard(0, 1),
            Request::write_zeroes(0, 1, true),
            Request::new(kind::WRITE_ZEROES, 0, &range(0, 1, 8), 0),
        ] {
            assert_eq!(liar.run(&request).unwrap().status, Some(status::IOERR));
        }
        assert_eq!(liar.run(&Request::read(0, 512)).unwrap().data, [0; 512]);
        street.all_is_well();
        drop(liar);
        street.end();
    }
}

/// More segments than the disk said it takes: in a table, whose length only the device bounds.
#[test]
fn too_many_segments_are_refused() {
    for options in formats() {
        let mut street = Street::new(options, false);
        let mut liar = street.connect();
        for (segments, expected) in [(126, status::OK), (127, status::IOERR)] {
            let request = Request::write(0, &vec![1; 512 * 200]);
            let cuts: Vec<u32> = (0..segments).map(|n| HEADER as u32 + n * 512).collect();
            let layout =
                Layout { shape: Shape::Indirect, cuts: [cuts, vec![]], ..Layout::usual(&request) };
            let done = liar.run_as(0, &request, &layout).unwrap();
            assert_eq!(done.status, Some(expected), "{segments} segments");
        }
        street.all_is_well();
        drop(liar);
        street.end();
    }
}

/// A chain put into the ring by hand: descriptors in the ring, those of a table, and its address.
type Lie = fn(&mut Chain<'_>);

struct Chain<'a> {
    ring: &'a mut DriverQueue,
    memory: &'a guestmem::GuestMemory,
    packed: bool,
}

impl Chain<'_> {
    /// Lays descriptors into the ring from slot 0 on, as they are, and shows them.
    fn show(&mut self, descs: &[RawDesc]) {
        let raw = self.ring.raw();
        let available = if self.packed { flags::AVAIL } else { 0 };
        for (slot, desc) in (0..descs.len() as u16).zip(descs).rev() {
            raw.set_desc(slot, &RawDesc { flags: desc.flags | available, ..*desc });
        }
        if !self.packed {
            raw.set_avail_entry(0, 0);
            raw.set_avail_idx(1);
        }
    }

    /// A table of so many descriptors, each made from its number, and the descriptor for it.
    fn table(&self, count: u32, of: impl Fn(u32) -> RawDesc) -> RawDesc {
        let mut bytes = Vec::new();
        for n in 0..count {
            let halves = if self.packed { of(n).packed() } else { of(n).split() };
            bytes.extend(halves.map(u64::to_le_bytes).concat());
        }
        assert!(write(self.memory, SPACE, &bytes));
        RawDesc { addr: SPACE, len: bytes.len() as u32, flags: flags::INDIRECT, tag: 0 }
    }
}

fn desc(addr: u64, len: u32, flags: u16, tag: u16) -> RawDesc {
    RawDesc { addr, len, flags, tag }
}

const NEXT: u16 = flags::NEXT;
const WRITE: u16 = flags::WRITE;

/// Lies by either ring, those of split and those of packed ones, with the names they go by.
fn lies(packed: bool) -> Vec<(&'static str, &'static str, Lie)> {
    let mut all: Vec<(&str, &str, Lie)> = vec![
        ("a header of no bytes", "zero-length", |chain| {
            chain.show(&[desc(SPACE, 0, NEXT, 1), desc(SPACE, 513, WRITE, 0)]);
        }),
        ("a status of no bytes", "zero-length", |chain| {
            chain.show(&[desc(SPACE, 16, NEXT, 1), desc(SPACE, 0, WRITE, 0)]);
        }),
        ("data as large as can be", "buffer-outside", |chain| {
            chain.show(&[desc(SPACE, 16, NEXT, 1), desc(SPACE, u32::MAX, WRITE, 0)]);
        }),
        ("data outside guest memory", "buffer-outside", |chain| {
            chain.show(&[desc(SPACE, 16, NEXT, 1), desc(1 << 60, 513, WRITE, 0)]);
        }),
        ("data at the end of all addresses", "buffer-outside", |chain| {
            chain.show(&[desc(SPACE, 16, NEXT, 1), desc(u64::MAX - 100, 513, WRITE, 0)]);
        }),
        ("a status before the header", "readable-after-writable", |chain| {
            chain.show(&[desc(SPACE, 513, WRITE | NEXT, 1), desc(SPACE, 16, 0, 0)]);
        }),
        ("a table of no entries", "indirect-length", |chain| {
            chain.show(&[desc(SPACE, 0, flags::INDIRECT, 0)]);
        }),
        ("a table that is cut", "indirect-length", |chain| {
            chain.show(&[desc(SPACE, 17, flags::INDIRECT, 0)]);
        }),
        ("a table outside guest memory", "indirect-outside", |chain| {
            chain.show(&[desc(1 << 60, 32, flags::INDIRECT, 0)]);
        }),
        ("65,536 buffers", "too-many-segments", |chain| {
            let table = chain.table(MANY, |n| {
                let write = if n == 0 { 0 } else { WRITE };
                desc(SPACE, 1, write | NEXT, n.wrapping_add(1) as u16)
            });
            chain.show(&[table]);
        }),
        ("four GiB and more", "chain-too-large", |chain| {
            let large = desc(SPACE, 16 << 20, WRITE | NEXT, 0);
            let table = chain.table(400, |n| match n {
                0 => desc(SPACE, 16, NEXT, 1),
                n => RawDesc {
                    tag: n as u16 + 1,
                    flags: if n == 399 { WRITE } else { large.flags },
                    ..large
                },
            });
            chain.show(&[table]);
        }),
    ];
    if packed {
        let mut more: Vec<(&str, &str, Lie)> = vec![
            ("a table in a chain", "indirect-in-chain", |chain| {
                let table = chain.table(1, |_| desc(SPACE, 513, WRITE, 0));
                chain.show(&[desc(SPACE, 16, NEXT, 0), table]);
            }),
            ("a chain that goes on where nothing is", "not-available", |chain| {
                chain.show(&[desc(SPACE, 16, NEXT, 0)]);
            }),
            ("a chain round the whole ring", "chain-too-long", |chain| {
                chain.show(&[desc(SPACE, 16, NEXT, 0); 128]);
            }),
        ];
        all.append(&mut more);
    } else {
        let mut more: Vec<(&str, &str, Lie)> = vec![
            ("a loop of one", "chain-too-long", |chain| {
                chain.show(&[desc(SPACE, 16, NEXT, 0)]);
            }),
            ("a loop of two", "chain-too-long", |chain| {
                chain.show(&[desc(SPACE, 16, NEXT, 1), desc(SPACE, 16, NEXT, 0)]);
            }),
            ("a loop in a table", "chain-too-long", |chain| {
                let table = chain.table(4, |n| desc(SPACE, 16, NEXT, (n as u16 + 1) % 4));
                chain.show(&[table]);
            }),
            ("a table in a table", "indirect-nested", |chain| {
                let table = chain.table(1, |_| desc(SPACE, 16, flags::INDIRECT, 0));
                chain.show(&[table]);
            }),
            ("a chain that leaves the table", "next-index", |chain| {
                chain.show(&[desc(SPACE, 16, NEXT, 128)]);
            }),
            ("a table that goes on elsewhere", "indirect-next-index", |chain| {
                let table = chain.table(2, |_| desc(SPACE, 16, NEXT, 2));
                chain.show(&[table]);
            }),
            ("more requests than the ring has", "avail-index", |chain| {
                chain.ring.raw().set_avail_idx(129);
            }),
            ("a request that is not in the ring", "head-index", |chain| {
                chain.ring.raw().set_avail_entry(0, 128);
                chain.ring.raw().set_avail_idx(1);
            }),
            ("the same request twice", "head-in-use", |chain| {
                let raw = chain.ring.raw();
                // A write that the image has not ended with yet: its queue waits for it.
                raw.set_desc(0, &desc(SPACE, 16, NEXT, 1));
                raw.set_desc(1, &desc(SPACE + 4096, 512, NEXT, 2));
                raw.set_desc(2, &desc(SPACE + 8192, 1, WRITE, 0));
                write(chain.memory, SPACE, &Request::write(0, &[]).readable);
                raw.set_avail_entry(0, 0);
                raw.set_avail_entry(1, 0);
                raw.set_avail_idx(2);
            }),
        ];
        all.append(&mut more);
    }
    all
}

#[test]
fn broken_rings_are_stopped_by_name() {
    for options in formats() {
        let mut street = Street::new(options.clone(), false);
        let lies = lies(options.packed);
        for (n, (what, name, lie)) in lies.into_iter().enumerate() {
            // Each disk takes only so many sessions a second.
            let plane = &street.plane;
            let socket = format!("liar{n}");
            let stage = Stage::new(SIZE);
            let gate = crate::images::Gate::new();
            let passing = std::sync::Arc::clone(&gate);
            stage.hook(move |_| {
                passing.pass();
                Ok(())
            });
            let id = add(plane, &socket, DiskImage::Image(stage), SIZE);
            let mut liar = connect(plane, &socket, &options);
            plane.wait_asleep();
            let queue = &mut liar.queues[0];
            let memory = liar.memory.guest();
            lie(&mut Chain { ring: &mut queue.ring, memory, packed: options.packed });
            queue.fds.kick.signal().unwrap();
            if name == "head-in-use" {
                gate.wait_for(1);
            }
            gate.open();
            let fault = wait_faulted(&plane.host, id);
            assert!(fault.contains(&format!(": {name}: ")), "{what}: {fault}");
            liar.frontend.wait_closed().unwrap();
            assert!(liar.queues[0].fds.err.drain(), "{what}: nobody was told");
            // The next session works.
            drop(liar);
            let mut liar = connect(plane, &socket, &options);
            ok(&liar.run(&Request::write(0, &[1; 512])).unwrap());
            assert_eq!(liar.run(&Request::read(0, 512)).unwrap().data, [1; 512]);
            drop(liar);
            plane.run(plane.host.remove_disk(id)).unwrap();
            street.all_is_well();
        }
        street.end();
    }
}

/// A table that must not be there.
#[test]
fn tables_are_for_those_who_asked_for_them() {
    for packed in [false, true] {
        let options = Options { indirect: false, ..Options::new(packed) };
        let mut street = Street::new(options.clone(), false);
        let mut liar = street.connect();
        let queue = &mut liar.queues[0];
        let memory = liar.memory.guest();
        let mut chain = Chain { ring: &mut queue.ring, memory, packed };
        chain.show(&[desc(SPACE, 32, flags::INDIRECT, 0)]);
        queue.fds.kick.signal().unwrap();
        let fault = wait_faulted(&street.plane.host, street.liar);
        assert!(fault.contains("indirect-not-negotiated"), "{fault}");
        drop(liar);
        ok(&street.connect().run(&Request::write(0, &[1; 512])).unwrap());
        street.all_is_well();
        street.end();
    }
}

/// Buffers that overlap, of one request and of many: the guest's own loss, and nobody else's.
#[test]
fn buffers_may_overlap() {
    for packed in [false, true] {
        let options = Options::new(packed);
        let mut street = Street::new(options.clone(), false);
        let mut liar = street.connect();
        ok(&liar.run(&Request::write(0, &[1; 8192])).unwrap());
        let memory = std::sync::Arc::clone(liar.memory.guest());
        write(&memory, SPACE, &Request::read(0, 0).readable);
        let ring = &mut liar.queues[0].ring;
        let header = Buffer { gpa: SPACE, len: 16 };
        // The data is where the header is, twice, and the status in the middle of it.
        let data = Buffer { gpa: SPACE, len: 4096 };
        let status = Buffer { gpa: SPACE + 100, len: 1 };
        for _ in 0..10 {
            ring.add(&[header], &[data, data, status], Shape::Direct).unwrap();
        }
        ring.expose();
        ring.kick_needed();
        liar.queues[0].fds.kick.signal().unwrap();
        let mut ended = 0;
        crate::common::wait(
            || "ten".into(),
            || {
                while liar.queues[0].ring.collect().unwrap().is_some() {
                    ended += 1;
                }
                ended == 10
            },
        );
        ok(&liar.run(&Request::flush()).unwrap());
        assert_eq!(liar.run(&Request::read(0, 8192)).unwrap().data, [1; 8192]);
        street.all_is_well();
        drop(liar);
        street.end();
    }
}
