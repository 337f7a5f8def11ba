//! A data plane with disks, and files of every manner.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use dataplane::{
    DiskId, DiskImage, DiskLimits, DiskSpec, DiskStatus, Host, OperationKind, PortState, Rate,
    SocketMode,
};
use rustix::fs::{AtFlags, MemfdFlags, OFlags, StatxFlags, memfd_create, statx};
use testkit::block::{BlockDriver, Done, Options, status};

use crate::common::plane::Plane;
use crate::common::wait;

/// How a file is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In memory.
    Memory,
    /// On a real file system, through the page cache.
    Cached,
    /// The same past the page cache.
    Direct,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Memory, Kind::Cached, Kind::Direct];

/// A file of a manner, and the same through the page cache.
pub(crate) struct Files {
    pub(crate) file: Arc<File>,
    pub(crate) plain: File,
}

impl Files {
    /// A new file of so many bytes; it has no name.
    pub(crate) fn new(kind: Kind, size: u64) -> Files {
        let plain = match kind {
            Kind::Memory => File::from(memfd_create("disk", MemfdFlags::CLOEXEC).unwrap()),
            // The build folder, unlike the temporary one, is seldom in memory.
            _ => tempfile::tempfile_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap(),
        };
        plain.set_len(size).unwrap();
        let flags = if kind == Kind::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&plain));
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags.bits() as i32);
        Files { file: Arc::new(options.open(again).unwrap()), plain }
    }

    pub(crate) fn image(&self) -> DiskImage {
        DiskImage::File(Arc::clone(&self.file))
    }

    /// What memory has to be aligned to so that it is not copied, in bytes.
    pub(crate) fn memory_align(&self, kind: Kind) -> u64 {
        let stat = statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).unwrap();
        match kind {
            Kind::Direct if stat.stx_dio_mem_align != 0 => stat.stx_dio_mem_align.into(),
            Kind::Direct => 4096,
            _ => 1,
        }
    }
}

/// A disk with nothing special about it.
pub(crate) fn spec(plane: &Plane, name: &str, image: DiskImage, size: u64) -> DiskSpec {
    DiskSpec {
        name: name.into(),
        socket: plane.socket(name),
        mode: SocketMode::Server,
        queues: 4,
        image,
        size,
        read_only: false,
        writethrough: None,
        limits: DiskLimits::default(),
        features_off: 0,
        worker: Some(0),
    }
}

/// The same after a change.
pub(crate) fn add_with(
    plane: &Plane,
    name: &str,
    image: DiskImage,
    size: u64,
    change: impl FnOnce(&mut DiskSpec),
) -> DiskId {
    let mut spec = spec(plane, name, image, size);
    change(&mut spec);
    plane.run(plane.host.add_disk(&spec)).unwrap()
}

pub(crate) fn add(plane: &Plane, name: &str, image: DiskImage, size: u64) -> DiskId {
    add_with(plane, name, image, size, |_| {})
}

pub(crate) fn connect(plane: &Plane, name: &str, options: &Options) -> BlockDriver {
    BlockDriver::connect(plane.socket(name), options).unwrap()
}

/// A disk in memory of so many bytes, and a guest at it.
pub(crate) fn memory_disk(plane: &Plane, name: &str, size: u64) -> (DiskId, Files, BlockDriver) {
    let files = Files::new(Kind::Memory, size);
    let id = add(plane, name, files.image(), size);
    (id, files, connect(plane, name, &Options::new(false)))
}

pub(crate) fn disk(host: &Host, id: DiskId) -> DiskStatus {
    host.disk_status(id).unwrap()
}

/// Operations of a kind that ended, and how many of them failed.
pub(crate) fn counted(host: &Host, id: DiskId, kind: OperationKind) -> (u64, u64) {
    let of = disk(host, id).operations.kinds[kind as usize];
    (of.operations(), of.failed)
}

pub(crate) fn wait_state(host: &Host, id: DiskId, state: &PortState) {
    let what = || format!("{state:?} of {:#?}", disk(host, id));
    wait(what, || disk(host, id).state == *state);
}

/// Waits until a disk's session has been ended for a fault; its name.
pub(crate) fn wait_faulted(host: &Host, id: DiskId) -> String {
    let faulted = || matches!(disk(host, id).state, PortState::Faulted { .. });
    wait(|| format!("a fault of {:#?}", disk(host, id)), faulted);
    disk(host, id).last_fault.unwrap()
}

pub(crate) fn rate(per_second: u64, burst: u64) -> Option<Rate> {
    let some = |n: u64| n.try_into().unwrap();
    Some(Rate { per_second: some(per_second), burst: some(burst) })
}

/// It went well.
pub(crate) fn ok(done: &Done) {
    assert_eq!(done.status, Some(status::OK), "{} bytes used", done.used);
}
