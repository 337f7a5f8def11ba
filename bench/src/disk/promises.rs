//! What hayate promises of disks.

use super::cell::{Access, Cell, Job, Medium};
use super::report::{CPU, Disks, P50, RATE, Row, Value};
use super::sut::System;
use crate::report::promises::{self, Bound, Found, Measured, over};

/// A promise about some cells.
struct Promise {
    text: &'static str,
    cells: fn(&Cell, &Job) -> bool,
    /// The figure of the first divided by that of the other.
    own: System,
    other: System,
    value: Value,
    bound: Bound,
}

/// What is promised of images in a store: 4 KiB at random, and 1 MiB, of what is in memory there.
fn asked(cell: &Cell, job: &Job) -> bool {
    (job.access.random() || job.block == 1 << 20) && !cell.cold
}

/// Those about requests.
const PROMISES: [Promise; 10] = [
    Promise {
        text: "4 KiB random read, QD 32: IOPS, of qemu-storage-daemon's",
        cells: |cell, job| {
            let (access, block, jobs) = (Access::RandomRead, 4096, 1);
            cell.medium == Medium::Tmpfs && *job == Job { access, block, depth: 32, jobs }
        },
        own: System::Hayate,
        other: System::Qsd,
        value: RATE,
        bound: Bound::AtLeast(1.5),
    },
    Promise {
        text: "IOPS, of qemu-storage-daemon's",
        cells: |_, _| true,
        own: System::Hayate,
        other: System::Qsd,
        value: RATE,
        bound: Bound::NoLower,
    },
    Promise {
        text: "QD 32: IOPS, of fio's on the bare file",
        cells: |_, job| job.depth == 32,
        own: System::Hayate,
        other: System::Fio,
        value: RATE,
        bound: Bound::AtLeast(0.85),
    },
    Promise {
        text: "QD 1: p50, of qemu-storage-daemon's",
        cells: |_, job| job.depth == 1,
        own: System::Hayate,
        other: System::Qsd,
        value: P50,
        bound: Bound::AtMost(1.0),
    },
    Promise {
        text: "store by shm: IOPS, of qemu-storage-daemon's with nbdkit",
        cells: asked,
        own: System::StoreShm,
        other: System::QsdNbd,
        value: RATE,
        bound: Bound::AtLeast(2.5),
    },
    Promise {
        text: "store by libfabric: IOPS, of qemu-storage-daemon's with nbdkit",
        cells: asked,
        own: System::StoreLibfabric,
        other: System::QsdNbd,
        value: RATE,
        bound: Bound::AtLeast(1.5),
    },
    Promise {
        text: "store by tcp: IOPS, of qemu-storage-daemon's with nbdkit",
        cells: asked,
        own: System::StoreTcp,
        other: System::QsdNbd,
        value: RATE,
        bound: Bound::AtLeast(1.5),
    },
    Promise {
        text: "4 KiB reads of a disk, store by shm: of those of a mount by tcp",
        cells: |cell, job| !job.access.writes() && job.block == 4096 && !cell.cold,
        own: System::StoreShm,
        other: System::FuseTcp,
        value: RATE,
        bound: Bound::AtLeast(1.37),
    },
    Promise {
        text: "4 KiB writes of a disk, store by shm: of those of a mount by tcp",
        cells: |_, job| job.access.writes() && job.block == 4096,
        own: System::StoreShm,
        other: System::FuseTcp,
        value: RATE,
        bound: Bound::AtLeast(2.3),
    },
    Promise {
        text: "requests to a disk, store by shm: of those of gfarm2fs",
        cells: |_, _| true,
        own: System::StoreShm,
        other: System::Gfarm,
        value: RATE,
        bound: Bound::AtLeast(1.0),
    },
];

/// Most of one CPU that idle disks may use, in per cent.
const IDLE_CPU: f64 = 1.0;

/// The lines of the table of promises.
pub(crate) fn promises(text: &mut String, disks: &Disks) -> std::fmt::Result {
    let rows = disks.rows();
    for promise in &PROMISES {
        for medium in [Medium::Tmpfs, Medium::Disk] {
            let mine = |row: &&Row<'_>| {
                let remote = promise.own.is_remote();
                // What an emulated guest makes of it is no promise.
                let fits = row.cell.medium == medium && row.cell.remote == remote;
                let fits = fits && !row.cell.guest;
                let job = row.cell.job.filter(|_| fits);
                job.is_some_and(|job| (promise.cells)(&row.cell, &job))
            };
            let found = |row: &Row<'_>| {
                let systems = (row.of(promise.own), row.of(promise.other));
                let measured = over(systems.0, systems.1, promise.value);
                Found { label: row.cell.label(), measured }
            };
            let found: Vec<Found> = rows.iter().filter(mine).map(found).collect();
            if !found.is_empty() {
                let place = ("Disks", medium.as_str());
                promises::line(text, place, promise.text, Some(&found), promise.bound)?;
            }
        }
    }
    for row in rows.iter().filter(|row| row.cell.job.is_none()) {
        let measured = row.figure(System::Hayate, CPU).map(Measured::from);
        let found = [Found { label: row.cell.label(), measured }];
        let place = ("Disks", row.cell.medium.as_str());
        promises::line(text, place, "CPU, %", Some(&found), Bound::AtMost(IDLE_CPU))?;
    }
    Ok(())
}
