//! Requests beyond what a file's device takes at a time wait in their guest's rings.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use dataplane::DiskImage;
use testkit::block::{Layout, Options, Request};
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

/// The image is a pipe: a read of it ends when something is written to it, and no sooner.
#[test]
fn a_disk_at_its_depth_rests_and_then_serves_all_queues() {
    for packed in [false, true] {
        let plane = Plane::with_workers(1);
        let (image, mut device) = std::io::pipe().unwrap();
        let image = DiskImage::File(Arc::new(File::from(std::os::fd::OwnedFd::from(image))));
        let id = add(&plane, "disk", image, SIZE);
        let options = Options { queues: QUEUES as u16, ..Options::new(packed) };
        let mut guest = connect(&plane, "disk", &options);
        let read = Request::read(0, 512);
        let layout = Layout { shape: Shape::Indirect, ..Layout::usual(&read) };
        for queue in 0..QUEUES {
            for _ in 0..EACH {
                guest.submit(queue, &read, &layout).unwrap();
            }
            guest.kick(queue);
        }
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
            guest.submit(queue, &read, &layout).unwrap();
            guest.kick(queue);
        }
        assert!(ended.iter().all(|&ended| ended > rounds / QUEUES / 2), "{ended:?}");

        // All there are go on without another kick.
        for _ in 0..QUEUES * EACH {
            device.write_all(&[8; 512]).unwrap();
        }
        assert_eq!(guest.drain().unwrap().len(), QUEUES * EACH);
        assert_eq!(in_flight(), 0);
        drop(guest);
        plane.end();
    }
}
