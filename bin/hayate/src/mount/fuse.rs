//! What the kernel asks, and what it is answered.

use super::files::{Entry, Files, ROOT};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Most bytes the kernel moves by one request: as many as one to the store.
const MOST: u32 = storeclient::MAX_DATA;
/// Requests the kernel has under way for nobody in particular: read ahead, asynchronous I/O.
const BACKGROUND: u16 = 64;
/// The kernel asks again: somebody may have made, removed or resized an image.
const TTL: Duration = Duration::ZERO;

/// The file system: one directory with a file for each image.
pub(super) struct Fuse {
    pub(super) files: Arc<Files>,
    /// The kernel may cache what it has read.
    pub(super) cache: bool,
    /// User and group of everything.
    pub(super) owner: (u32, u32),
    /// The time of everything: a store tells none.
    pub(super) since: SystemTime,
}

impl Fuse {
    fn attributes(&self, inode: u64, kind: FileType, size: u64, perm: u16) -> FileAttr {
        let ((uid, gid), time) = (self.owner, self.since);
        FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: 1 << 16,
            flags: 0,
        }
    }

    fn file(&self, entry: &Entry) -> FileAttr {
        let perm = if entry.writable { 0o600 } else { 0o400 };
        self.attributes(entry.inode, FileType::RegularFile, entry.size, perm)
    }

    fn any(&self, inode: u64) -> Result<FileAttr, Errno> {
        if inode == ROOT {
            return Ok(self.attributes(ROOT, FileType::Directory, 0, 0o500));
        }
        self.files.entry_of(inode).map(|entry| self.file(&entry))
    }
}

fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Fuse {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What the kernel cannot do is done without: nothing here depends on it.
        let _ = config.set_max_write(MOST);
        let _ = config.set_max_readahead(MOST).or_else(|most| config.set_max_readahead(most));
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = match name.to_str() {
            Some(name) if parent.0 == ROOT => self.files.find(name),
            _ => Err(Errno::ENOENT),
        };
        match found {
            Ok(entry) => reply.entry(&TTL, &self.file(&entry), Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.any(inode.0) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        let resized = size.map_or(Ok(()), |size| self.files.truncate(inode.0, size));
        match resized.and_then(|()| self.any(inode.0)) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if inode.0 != ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = match self.files.list() {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        // Whoever reads on begins behind the last one he got, whatever has come and gone meanwhile.
        let dots = [(1, ROOT, "."), (2, ROOT, "..")].into_iter();
        let dots = dots.map(|(at, inode, name)| (at, inode, FileType::Directory, name));
        let files = entries.iter().map(|entry| {
            (entry.inode + 1, entry.inode, FileType::RegularFile, entry.name.as_str())
        });
        for (at, inode, kind, name) in dots.chain(files).filter(|(at, ..)| *at > offset) {
            if reply.add(INodeNo(inode), at, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let how = if self.cache {
            // What was cached before is forgotten: others may have written meanwhile.
            FopenFlags::empty()
        } else {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        };
        match self.files.open(inode.0, write) {
            Ok(()) => reply.opened(FileHandle(0), how),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.files.read(inode.0, offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // O_SYNC has all bits of O_DSYNC.
        let stable = OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::DSYNC);
        match self.files.write(inode.0, offset, data, stable) {
            Ok(count) => reply.written(count),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, inode: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        done(self.files.flush(inode.0, false), reply);
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.files.flush(inode.0, true), reply);
    }

    fn release(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        done(self.files.release(inode.0), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // Holes read as zeroes, and so do zeroes. Space cannot be set aside.
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let kinds = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        let clears = mode.intersects(kinds) && mode.contains(FallocateFlags::KEEP_SIZE);
        if !clears || !(kinds | FallocateFlags::KEEP_SIZE).contains(mode) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        done(self.files.clear(inode.0, offset, length), reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::EOPNOTSUPP);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::EOPNOTSUPP);
    }

    // Images are made and removed by the host that has them.

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
