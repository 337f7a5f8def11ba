//! Requests beyond what a file's device takes at a time wait in their guest's rings.

use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dataplane::{DiskId, DiskImage};
use pace::Profile;
use testkit::block::{BlockDriver, Layout, Options, Request};
use testkit::driver::Shape;

use crate::common::plane::Plane;
use crate::common::wait;
use crate::rig::{add, connect, disk, ok};

const SIZE: u64 = 1 << 20;
const QUEUES: usize = 4;
/// Requests that a guest keeps in each queue.
const EACH: usize = 100;
/// What a file is given whose device does not say.
const DEPTH: usize = 256;

/// A disk of which more is asked than its device takes.
struct Behind {
    id: DiskId,
    /// The image is a pipe, and this is its other end: a read ends when something is written, and no sooner.
    device: PipeWriter,
    guest: BlockDriver,
}

impl Behind {
    fn of(plane: &Plane, packed: bool) -> Behind {
        let (image, device) = std::io::pipe().unwrap();
        let image = DiskImage::File(Arc::new(File::from(OwnedFd::from(image))));
        let id = add(plane, "disk", image, SIZE);
        let options = Options { queues: QUEUES as u16, ..Options::new(packed) };
        let mut guest = connect(plane, "disk", &options);
        (0..QUEUES).for_each(|queue| ask(&mut guest, queue, EACH));
        Behind { id, device, guest }
    }
}

/// So many more reads of 512 bytes.
fn ask(guest: &mut BlockDriver, queue: usize, count: usize) {
    let read = Request::read(0, 512);
    let layout = Layout { shape: Shape::Indirect, ..Layout::usual(&read) };
    for _ in 0..count {
        guest.submit(queue, &read, &layout).unwrap();
    }
    guest.kick(queue);
}

#[test]
fn a_disk_at_its_depth_rests_and_then_serves_all_queues() {
    for packed in [false, true] {
        let plane = Plane::with_workers(1);
        let Behind { id, mut device, mut guest } = Behind::of(&plane, packed);
        let in_flight = || disk(&plane.host, id).in_flight;
        wait(|| format!("{DEPTH} in flight: {}", in_flight()), || in_flight() >= DEPTH as u64);
        // Nothing ends; that requests wait is no reason to look at them.
        plane.assert_idle(Duration::from_millis(100));
        assert_eq!(in_flight(), DEPTH as u64);

        // Each that ends makes room for one, of any queue, however soon the others ask for more.
        let mut ended = [0; QUEUES];
        let rounds = 3 * QUEUES * EACH;
        for _ in 0..rounds {
            device.write_all(&[7; 512]).unwrap();
            let mut queue = None;
            wait(
                || format!("the end of one more than {ended:?}"),
                || {
                    queue =
                        (0..QUEUES).find_map(|queue| Some((queue, guest.poll(queue).unwrap()?)));
                    queue.is_some()
                },
            );
            let (queue, done) = queue.unwrap();
            ok(&done);
            assert_eq!(done.data, [7; 512]);
            ended[queue] += 1;
            ask(&mut guest, queue, 1);
        }
        // More than it had under way when the first ended: it was given room since. Which of those under way gets the bytes is
        // the kernel's choice, and not always an even one.
        assert!(ended.iter().all(|&ended| ended > EACH), "{ended:?}");

        // All there are go on without another kick.
        for _ in 0..QUEUES * EACH {
            device.write_all(&[8; 512]).unwrap();
        }
        assert_eq!(guest.drain().unwrap().len(), QUEUES * EACH);
        wait(|| format!("none in flight: {}", in_flight()), || in_flight() == 0);
        drop(guest);
        plane.end();
    }
}

/// Its device answers in lots, one after the other, and has nothing to do between two of them until the worker has
/// seen the first: it is awake when that comes.
#[test]
fn a_disk_that_is_behind_is_polled_for() {
    for (polling, polls) in [(Profile::Balanced, true), (Profile::Power, false)] {
        let plane = Plane::with(&dataplane::Options {
            polling,
            cpus: None,
            ..dataplane::Options::default()
        });
        let Behind { mut device, mut guest, .. } = Behind::of(&plane, false);
        let mut lot = || {
            const LOT: usize = 32;
            device.write_all(&[7; LOT * 512]).unwrap();
            for _ in 0..LOT {
                let mut queue = None;
                wait(
                    || "the end of a lot".into(),
                    || {
                        queue = (0..QUEUES).find(|&queue| guest.poll(queue).unwrap().is_some());
                        queue.is_some()
                    },
                );
                ask(&mut guest, queue.unwrap(), 1);
            }
            thread::sleep(Duration::from_micros(200));
        };
        let sleeps = || plane.host.workers().iter().map(|worker| worker.sleeps).sum::<u64>();
        // On a machine that has something else to do a lot may come late: then once more.
        wait(
            || format!("ten lots with one sleep or none: {polling}"),
            || {
                let before = sleeps();
                (0..10).for_each(|_| lot());
                (sleeps() - before <= 1) == polls
            },
        );
        for _ in 0..QUEUES * EACH {
            device.write_all(&[8; 512]).unwrap();
        }
        assert_eq!(guest.drain().unwrap().len(), QUEUES * EACH);
        drop(guest);
        plane.end();
    }
}
