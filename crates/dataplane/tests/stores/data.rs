//! What is written is read, and is what the store's file has.

use std::net::SocketAddr;
use std::os::unix::fs::FileExt;

use dataplane::StoreTarget;
use dataplane::store_control::Transport;
use testkit::block::{BlockDriver, Options, Request, SECTOR, Writer, status};

use crate::common::plane::Plane;
use crate::rig::{SIZE, Store, add, connect, target};

/// How a disk has its image.
pub(crate) type Way = fn(SocketAddr, u128) -> StoreTarget;

#[test]
fn a_store_keeps_what_it_is_given() {
    keeps(target);
}

/// Everything a guest can ask for, in small and in pieces longer than one request to the store.
pub(crate) fn keeps(way: Way) {
    for direct in [false, true] {
        let (store, plane) = (Store::new(direct), Plane::new());
        let wanted = way(store.address, 1);
        let transport = wanted.transport;
        let id = add(&plane, "disk", wanted).unwrap();
        let seen = plane.host.disk_status(id).unwrap();
        let way = seen.store.unwrap();
        assert_eq!((seen.size, way.transport), (SIZE, transport));
        let provider = (transport == Transport::Libfabric).then_some("tcp");
        assert_eq!(way.provider.as_deref(), provider);
        let options = Options { size: 8, data: 3 << 20, ..Options::new(direct) };
        let mut guest = BlockDriver::connect(plane.socket("disk"), &options).unwrap();
        let mut run = |request: &Request| {
            let done = guest.run(request).unwrap();
            assert_eq!(done.status, Some(status::OK));
            done.data
        };
        let long: Vec<u8> = (0..(5 << 20) / 2).map(|at: u32| (at / 512) as u8 | 1).collect();
        run(&Request::write(16, &long));
        assert_eq!(run(&Request::read(16, long.len() as u32)), long);
        run(&Request::flush());
        let mut there = vec![0; long.len()];
        store.shelf.file.read_exact_at(&mut there, 16 * SECTOR).unwrap();
        assert_eq!(there, long);
        run(&Request::write_zeroes(24, 8, true));
        run(&Request::discard(32, 8));
        assert_eq!(run(&Request::read(24, 8 * SECTOR as u32)), vec![0; 4096]);
        run(&Request::write(24, &[7; 512]));
        assert_eq!(run(&Request::read(23, 1536))[..512], long[7 * 512..8 * 512]);
        assert_eq!(run(&Request::read(24, 512)), [7; 512]);
        drop(guest);
        plane.run(plane.host.remove_disk(id)).unwrap();
    }
}

#[test]
fn a_busy_guest_finds_what_it_wrote() {
    finds(target);
}

/// Many requests at once, checked by who wrote them.
pub(crate) fn finds(way: Way) {
    for packed in [false, true] {
        let (store, plane) = (Store::new(!packed), Plane::new());
        let id = add(&plane, "disk", way(store.address, 1)).unwrap();
        let guest = connect(&plane, "disk", packed);
        let mut writer = Writer::new(guest, 2048, 32, 7).unwrap();
        while writer.ended()[0] < 5000 {
            writer.step().unwrap();
        }
        writer.settle().unwrap();
        drop(writer);
        plane.run(plane.host.remove_disk(id)).unwrap();
        crate::common::wait(|| "nobody has it open".into(), || store.shelf.writers() == 0);
    }
}
