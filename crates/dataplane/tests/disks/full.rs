//! Images on a file system in memory that is full.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dataplane::DiskImage;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use testkit::block::{Options, Request, SECTOR, status};

use crate::common::plane::Plane;
use crate::rig::{add, connect, ok};

/// Bytes of the image, of which an eighth fits, and of what is written at once.
const SIZE: u64 = 8 << 20;
const PIECE: u64 = 128 << 10;

/// A file system in memory of so many bytes, which is nowhere mounted and goes with the descriptor.
fn tmpfs(size: u64) -> OwnedFd {
    let made = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    fsconfig_set_string(&made, "size", size.to_string()).unwrap();
    fsconfig_create(&made).unwrap();
    fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap()
}

#[test]
fn what_does_not_fit_fails_and_nothing_else() {
    let place = tmpfs(SIZE / 8);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(openat(&place, "image", flags, Mode::RUSR | Mode::WUSR).unwrap());
    file.set_len(SIZE).unwrap();
    let plane = Plane::new();
    add(&plane, "disk", DiskImage::File(Arc::new(file)), SIZE);
    let options = Options { data: PIECE as u32, ..Options::new(false) };
    let mut guest = connect(&plane, "disk", &options);
    let data = |piece: u64, round: u8| vec![piece as u8 ^ round; PIECE as usize];
    let sector = |piece: u64| piece * PIECE / SECTOR;

    let mut fitted = 0;
    let refused = loop {
        let done = guest.run(&Request::write(sector(fitted), &data(fitted, 1))).unwrap();
        if done.status != Some(status::OK) {
            break done.status;
        }
        fitted += 1;
    };
    assert_eq!(refused, Some(status::IOERR));
    assert!((1..=8).contains(&fitted), "{fitted}");
    for round in 2..5 {
        // What has its pages can be written and read, and there is nothing where there are none.
        for piece in 0..fitted {
            ok(&guest.run(&Request::write(sector(piece), &data(piece, round))).unwrap());
            ok(&guest.run(&Request::write(sector(piece), &[round; 4096])).unwrap());
            let done = guest.run(&Request::read(sector(piece), PIECE as u32)).unwrap();
            assert!(done.data[..4096] == [round; 4096]);
            assert!(done.data[4096..] == data(piece, round)[4096..]);
        }
        let far = guest.run(&Request::read(sector(SIZE / PIECE - 1), PIECE as u32)).unwrap();
        assert!(far.data == vec![0; PIECE as usize]);
        let done = guest.run(&Request::write(sector(20 + u64::from(round)), &data(1, 1))).unwrap();
        assert_eq!(done.status, Some(status::IOERR));
    }
    // What is discarded makes room for others, at places that were known to be there as well.
    ok(&guest.run(&Request::discard(sector(0), 2 * PIECE as u32 / SECTOR as u32)).unwrap());
    ok(&guest.run(&Request::write(sector(40), &data(40, 1))).unwrap());
    let gone = guest.run(&Request::read(sector(0), PIECE as u32)).unwrap();
    assert!(gone.data == vec![0; PIECE as usize]);
    let there = guest.run(&Request::read(sector(40), PIECE as u32)).unwrap();
    assert!(there.data == data(40, 1));
}
