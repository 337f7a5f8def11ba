//! What is written is read, whatever the layout, the ring, the file and the neighbours.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use dataplane::DiskImage;
use proptest::prelude::*;
use testkit::block::{BlockDriver, HEADER, Layout, Options, Request, SECTOR, pieces};
use testkit::driver::Shape;

use crate::common::plane::Plane;
use crate::images::Scatter;
use crate::rig::{Files, KINDS, Kind, add, connect, disk, ok};

/// Bytes of the disks here.
const SIZE: u64 = 4 << 20;

/// A request to be, with its place still free.
#[derive(Clone, Debug)]
struct Draft {
    queue: u8,
    what: What,
    /// First block, and blocks.
    place: (u16, u32),
    layout: Layout,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read,
    Write(u8),
    Zeroes(bool),
    Discard,
    Flush,
    GetId,
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        4 => Just(What::Read),
        4 => any::<u8>().prop_map(What::Write),
        1 => any::<bool>().prop_map(What::Zeroes),
        1 => Just(What::Discard),
        1 => Just(What::Flush),
        1 => Just(What::GetId),
    ]
}

fn layouts() -> impl Strategy<Value = Layout> {
    let shape = prop_oneof![
        2 => Just(Shape::Direct),
        2 => Just(Shape::Indirect),
        1 => (1usize..3).prop_map(Shape::Mixed),
    ];
    let at = prop_oneof![4 => Just(0u32), 2 => Just(512), 1 => Just(4), 1 => 0u32..4096];
    // Whole sectors after the header, or anything.
    let cut = prop_oneof![
        3 => (0u32..16).prop_map(|n| n * 512),
        1 => any::<u32>(),
    ];
    let cuts = || prop::collection::vec(cut.clone(), 0..5);
    let gap = prop::sample::select(vec![0u32, 0, 512, 4096, 4, 1]);
    (shape, at, cuts(), cuts(), gap).prop_map(|(shape, at, mut given, mut taken, gap)| {
        given.iter_mut().for_each(|cut| *cut = cut.wrapping_add(HEADER as u32));
        given.push(HEADER as u32);
        taken.push(u32::MAX);
        Layout { shape, cuts: [given, taken], at, gap }
    })
}

fn drafts() -> impl Strategy<Value = Vec<Vec<Draft>>> {
    let blocks = prop_oneof![6 => 1u32..9, 3 => 1u32..130, 1 => 1000u32..2600];
    let draft = (any::<u8>(), what(), (any::<u16>(), blocks), layouts())
        .prop_map(|(queue, what, place, layout)| Draft { queue, what, place, layout });
    prop::collection::vec(prop::collection::vec(draft, 1..24), 1..6)
}

fn options() -> impl Strategy<Value = Options> {
    let flags = || any::<bool>();
    (flags(), flags(), flags(), flags()).prop_map(|(packed, event_idx, indirect, four)| Options {
        event_idx,
        indirect,
        queues: if four { 4 } else { 1 },
        data: 3 << 19,
        ..Options::new(packed)
    })
}

/// A disk and what must be on it.
struct World {
    driver: BlockDriver,
    options: Options,
    model: Vec<u8>,
    /// Of sectors: blocks of the disk.
    block: u64,
    /// What guest memory must be aligned to.
    align: u64,
    bounced: u64,
    transfers: u64,
}

impl World {
    /// Requests that touch each other in no place, all in flight at once.
    fn batch(&mut self, drafts: &[Draft]) {
        let mut taken: Vec<(u64, u64, bool)> = Vec::new();
        let mut expected: Vec<(usize, u16, u32, Option<Vec<u8>>)> = Vec::new();
        for draft in drafts {
            let blocks = self.model.len() as u64 / self.block;
            let first = u64::from(draft.place.0) % blocks;
            let count = u64::from(draft.place.1).min(blocks - first);
            let count = count.min(u64::from(self.options.data) / self.block);
            let (start, end) = (first * self.block, (first + count) * self.block);
            let (sector, sectors) = (start / SECTOR, ((end - start) / SECTOR) as u32);
            let changes = !matches!(draft.what, What::Read | What::Flush | What::GetId);
            let placed = changes || matches!(draft.what, What::Read);
            let meets = |(s, e, c): &(u64, u64, bool)| start < *e && *s < end && (*c || changes);
            if placed && taken.iter().any(meets) {
                continue;
            }
            let range = start as usize..end as usize;
            let request = match draft.what {
                What::Read => Request::read(sector, (end - start) as u32),
                What::Write(seed) => {
                    let byte = |n: u64| (n ^ n >> 9).wrapping_mul(31) as u8 ^ seed;
                    Request::write(sector, &(start..end).map(byte).collect::<Vec<_>>())
                }
                What::Zeroes(unmap) => Request::write_zeroes(sector, sectors, unmap),
                What::Discard => Request::discard(sector, sectors),
                What::Flush => Request::flush(),
                What::GetId => Request::get_id(),
            };
            let mut layout = draft.layout.clone();
            layout.shape = match layout.shape {
                Shape::Indirect | Shape::Mixed(_) if !self.options.indirect => Shape::Direct,
                Shape::Mixed(_) if self.options.packed => Shape::Indirect,
                shape => shape,
            };
            let queue = usize::from(draft.queue) % self.driver.queues.len();
            let Some(token) = self.driver.submit(queue, &request, &layout) else { continue };
            taken.push((start, if placed { end } else { start }, changes));
            let read = match draft.what {
                What::Read => Some(self.model[range.clone()].to_vec()),
                What::GetId => Some(b"disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
                _ => None,
            };
            match draft.what {
                What::Write(_) => self.model[range].copy_from_slice(&request.readable[HEADER..]),
                What::Zeroes(_) | What::Discard => self.model[range].fill(0),
                _ => {}
            }
            if let What::Read | What::Write(_) = draft.what {
                self.transfers += 1;
                self.bounced += u64::from(!fits(&request, &layout, self.align));
            }
            expected.push((queue, token, request.writable, read));
        }
        for queue in 0..self.driver.queues.len() {
            self.driver.kick(queue);
        }
        let mut found = self.driver.drain().unwrap();
        assert_eq!(found.len(), expected.len());
        for (queue, token, writable, read) in expected {
            let which = found.iter().position(|(q, done)| (*q, done.token) == (queue, token));
            let (_, done) = found.swap_remove(which.expect("it comes back, once"));
            ok(&done);
            assert_eq!(done.used, writable);
            if let Some(read) = read {
                assert!(done.data == read, "other bytes than were written");
            }
        }
    }
}

/// Whether the data of a request can be moved without a copy.
fn fits(request: &Request, layout: &Layout, align: u64) -> bool {
    let given = request.readable.len() > HEADER;
    let at = u64::from(layout.at);
    let (start, len, cuts, data) = if given {
        let start = 4096 + at - HEADER as u64;
        let len = request.readable.len() as u32;
        (start, len, &layout.cuts[0], HEADER as u32..len)
    } else {
        (at, request.writable, &layout.cuts[1], 0..request.writable - 1)
    };
    let mut seen = 0;
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for buffer in pieces(start, len, cuts, layout.gap) {
        let (from, to) = (data.start.max(seen), data.end.min(seen + buffer.len));
        if from < to {
            let start = buffer.gpa + u64::from(from - seen);
            let end = start + u64::from(to - from);
            match joined.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => joined.push((start, end)),
            }
        }
        seen += buffer.len;
    }
    joined.iter().all(|(start, end)| start % align == 0 && end % align == 0)
}

fn world(plane: &Plane, options: &Options, size: u64) -> World {
    let driver = connect(plane, "disk", options);
    let (options, model) = (options.clone(), vec![0; size as usize]);
    World { driver, options, model, block: SECTOR, align: 1, bounced: 0, transfers: 0 }
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { cases: count, max_shrink_iters: 200, ..ProptestConfig::default() }
}

/// A file of one manner, compared with a row of bytes.
fn file(kind: Kind, options: &Options, batches: &[Vec<Draft>]) {
    let plane = Plane::new();
    let files = Files::new(kind, SIZE);
    let id = add(&plane, "disk", files.image(), SIZE);
    let mut world = world(&plane, options, SIZE);
    world.block = disk(&plane.host, id).block_size.into();
    world.align = files.memory_align(kind);
    for batch in batches {
        world.batch(batch);
    }
    let mut found = vec![0; SIZE as usize];
    files.plain.read_exact_at(&mut found, 0).unwrap();
    assert!(found == world.model, "the file has other bytes");
    assert_eq!(disk(&plane.host, id).bounced, world.bounced, "of {} transfers", world.transfers);
    drop(world);
    plane.end();
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn a_file_in_memory(options in options(), batches in drafts()) {
        file(Kind::Memory, &options, &batches);
    }

    #[test]
    fn a_file_through_the_cache(options in options(), batches in drafts()) {
        file(Kind::Cached, &options, &batches);
    }

    #[test]
    fn a_file_past_the_cache(options in options(), batches in drafts()) {
        file(Kind::Direct, &options, &batches);
    }

    #[test]
    fn a_scattered_image(
        kind in prop::sample::select(KINDS.to_vec()),
        options in options(),
        batches in drafts(),
    ) {
        let plane = Plane::new();
        let image = Arc::new(Scatter::new(kind, SIZE));
        let id = add(&plane, "disk", DiskImage::Image(image.clone()), SIZE);
        let mut world = world(&plane, &options, SIZE);
        for batch in &batches {
            world.batch(batch);
        }
        for start in (0..SIZE).step_by(1 << 20) {
            let done = world.driver.run(&Request::read(start / SECTOR, 1 << 20)).unwrap();
            ok(&done);
            let model = &world.model[start as usize..][..1 << 20];
            assert!(done.data == model, "the image has other bytes");
        }
        assert!(disk(&plane.host, id).last_error.is_none());
        drop(world);
        plane.end();
    }
}

/// Both ways of an image are gone, or the test of it says little.
#[test]
fn an_image_is_reached_both_ways() {
    for kind in KINDS {
        let plane = Plane::new();
        let image = Arc::new(Scatter::new(kind, SIZE));
        add(&plane, "disk", DiskImage::Image(image.clone()), SIZE);
        let mut driver = connect(&plane, "disk", &Options::new(true));
        for round in 0..3u8 {
            for sector in (0..512).step_by(8) {
                ok(&driver.run(&Request::write(sector, &[round + 1; 4096])).unwrap());
            }
        }
        for sector in 0..512 {
            assert_eq!(driver.run(&Request::read(sector, 512)).unwrap().data, [3; 512]);
        }
        let (past, through) = (image.past.load(SeqCst), image.through.load(SeqCst));
        assert!(past > 300 && through > 100, "{past} past the image, {through} through it");
        drop(driver);
        plane.end();
    }
}
