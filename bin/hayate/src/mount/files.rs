//! The images of a store as files: which there are, and which are open.

use fuser::Errno;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use storeclient::{Error, ImageName, RemoteImage, Session, Status, Why};
use tracing::warn;

/// The inode of the directory, and of the first file.
pub(super) const ROOT: u64 = 1;
const FIRST: u64 = 2;
/// How old what is known of images that are not open may be.
const FRESH: Duration = Duration::from_secs(1);

/// The images of a store. Calls may come from any number of threads, and wait for the store.
pub(super) struct Files {
    session: Session,
    readonly: bool,
    /// What the store said last, and when. Held while it is asked.
    listed: Mutex<Option<(Instant, BTreeMap<u64, u64>)>>,
    table: RwLock<Table>,
}

/// Every image that was ever listed has an inode, which no other one gets.
#[derive(Default)]
struct Table {
    files: Vec<Arc<File>>,
    inodes: HashMap<ImageName, u64>,
}

struct File {
    name: ImageName,
    open: Mutex<Open>,
    /// Something was written that no flush has covered.
    dirty: AtomicBool,
}

#[derive(Default)]
struct Open {
    image: Option<Arc<RemoteImage>>,
    /// How often it was opened and not released.
    handles: u64,
}

/// What can be seen of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) inode: u64,
    pub(super) name: ImageName,
    /// Bytes.
    pub(super) size: u64,
    pub(super) writable: bool,
}

/// What a program is told of an error.
fn errno(name: &ImageName, error: &Error) -> Errno {
    let known = match error {
        Error::Refused { source, .. } => match source.why {
            Why::InUse => Errno::EBUSY,
            Why::NoSuchImage => Errno::ENOENT,
            Why::Forbidden => Errno::EACCES,
            Why::Later => Errno::EAGAIN,
            Why::Version | Why::BadMessage | Why::Failed => Errno::EIO,
        },
        Error::Failed(Status::NoSpace | Status::OutOfRange) => Errno::ENOSPC,
        Error::Failed(Status::ReadOnly) => Errno::EROFS,
        Error::Failed(Status::Unsupported) => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    };
    if known == Errno::EIO {
        warn!(image = %name, "{error}");
    }
    known
}

impl Files {
    pub(super) fn new(session: Session, readonly: bool) -> Self {
        Self { session, readonly, listed: Mutex::default(), table: RwLock::default() }
    }

    /// All images, in the order of their inodes.
    pub(super) fn list(&self) -> Result<Vec<Entry>, Errno> {
        let mut listed = self.listed.lock();
        let sizes = match &*listed {
            Some((at, sizes)) if at.elapsed() < FRESH => sizes,
            _ => {
                let images = self.session.list().map_err(|error| {
                    warn!("the images cannot be listed: {error}");
                    Errno::EIO
                })?;
                let mut table = self.table.write();
                let sizes = images.into_iter().map(|(name, size)| (table.inode(name), size));
                &listed.insert((Instant::now(), sizes.collect())).1
            }
        };
        let entry = |(inode, size): (&u64, &u64)| {
            Some(self.entry(*inode, &*self.file(*inode).ok()?, *size))
        };
        Ok(sizes.iter().filter_map(entry).collect())
    }

    /// The image of this name.
    pub(super) fn find(&self, name: &str) -> Result<Entry, Errno> {
        let name: ImageName = name.parse().map_err(|_| Errno::ENOENT)?;
        // What is open is there, whatever the store says now.
        let inode = self.table.read().inodes.get(&name).copied();
        if let Some(entry) = inode.and_then(|inode| self.open_entry(inode)) {
            return Ok(entry);
        }
        self.list()?.into_iter().find(|entry| entry.name == name).ok_or(Errno::ENOENT)
    }

    /// The image with this inode.
    pub(super) fn entry_of(&self, inode: u64) -> Result<Entry, Errno> {
        if let Some(entry) = self.open_entry(inode) {
            return Ok(entry);
        }
        self.list()?.into_iter().find(|entry| entry.inode == inode).ok_or(Errno::ENOENT)
    }

    fn open_entry(&self, inode: u64) -> Option<Entry> {
        let file = self.file(inode).ok()?;
        let size = file.open.lock().image.as_ref().map(|image| image.size())?;
        Some(self.entry(inode, &file, size))
    }

    fn entry(&self, inode: u64, file: &File, listed: u64) -> Entry {
        let size = file.open.lock().image.as_ref().map_or(listed, |image| image.size());
        Entry { inode, name: file.name.clone(), size, writable: self.may_write(&file.name) }
    }

    /// Nobody writes to a snapshot.
    fn may_write(&self, name: &ImageName) -> bool {
        !self.readonly && !name.as_str().contains('@')
    }

    fn file(&self, inode: u64) -> Result<Arc<File>, Errno> {
        let index = inode.checked_sub(FIRST).and_then(|index| usize::try_from(index).ok());
        let table = self.table.read();
        index.and_then(|index| table.files.get(index)).cloned().ok_or(Errno::ENOENT)
    }

    /// A file that is open, and its image.
    fn image(&self, inode: u64) -> Result<(Arc<File>, Arc<RemoteImage>), Errno> {
        let file = self.file(inode)?;
        let image = file.open.lock().image.clone().ok_or(Errno::EBADF)?;
        Ok((file, image))
    }

    /// Opens it. The image is opened with the first, for writing with the first that wants to.
    pub(super) fn open(&self, inode: u64, write: bool) -> Result<(), Errno> {
        let file = self.file(inode)?;
        if write && !self.may_write(&file.name) {
            return Err(Errno::EROFS);
        }
        let mut open = file.open.lock();
        let done = match &open.image {
            Some(image) if write => image.make_writable(),
            Some(_) => Ok(()),
            None => {
                self.session.open(&file.name, write).map(|image| open.image = Some(Arc::new(image)))
            }
        };
        done.map_err(|error| errno(&file.name, &error))?;
        open.handles += 1;
        Ok(())
    }

    /// The end of an [`Files::open`]. With the last the image is closed, so that others can have it.
    pub(super) fn release(&self, inode: u64) -> Result<(), Errno> {
        let file = self.file(inode)?;
        let mut open = file.open.lock();
        open.handles = open.handles.saturating_sub(1);
        if open.handles == 0 {
            open.image = None;
        }
        Ok(())
    }

    pub(super) fn read(&self, inode: u64, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
        let (file, image) = self.image(inode)?;
        let mut data = vec![0; length as usize];
        let count = image.read_at(&mut data, offset).map_err(|error| errno(&file.name, &error))?;
        data.truncate(count);
        Ok(data)
    }

    /// Writes what there is room for; `stable`: it is on stable storage then. Returns how many bytes
    /// that was.
    pub(super) fn write(
        &self,
        inode: u64,
        offset: u64,
        data: &[u8],
        stable: bool,
    ) -> Result<u32, Errno> {
        let (file, image) = self.image(inode)?;
        let room = image.size().saturating_sub(offset);
        let fits = data.get(..usize::try_from(room).unwrap_or(usize::MAX)).unwrap_or(data);
        if fits.is_empty() && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        file.change(|| image.write_at(fits, offset))?;
        if stable {
            file.flush(&image)?;
        }
        Ok(fits.len() as u32)
    }

    /// Has bytes read as zeroes, as far as there are any.
    pub(super) fn clear(&self, inode: u64, offset: u64, length: u64) -> Result<(), Errno> {
        let (file, image) = self.image(inode)?;
        let length = length.min(image.size().saturating_sub(offset));
        if length == 0 { Ok(()) } else { file.change(|| image.clear(offset, length)) }
    }

    /// A size that a program wants. An image keeps the one it has; with none it becomes empty, as a
    /// file would: all of it reads as zeroes.
    pub(super) fn truncate(&self, inode: u64, size: u64) -> Result<(), Errno> {
        match size {
            0 => {
                self.open(inode, true)?;
                let done = self.clear(inode, 0, u64::MAX);
                self.release(inode)?;
                done
            }
            size if size == self.entry_of(inode)?.size => Ok(()),
            _ => Err(Errno::EPERM),
        }
    }

    /// Brings what was written to stable storage; `all`: even if nobody is known to have written.
    pub(super) fn flush(&self, inode: u64, all: bool) -> Result<(), Errno> {
        let (file, image) = self.image(inode)?;
        if image.is_writable() && (all || file.dirty.load(SeqCst)) {
            file.flush(&image)?;
        }
        Ok(())
    }

    /// Flushes all images, as well as it can.
    pub(super) fn flush_all(&self) {
        let files = self.table.read().files.clone();
        for (inode, file) in (FIRST..).zip(&files) {
            if file.dirty.load(SeqCst)
                && let Err(error) = self.flush(inode, false)
            {
                warn!(image = %file.name, "what was written last may be lost: {error:?}");
            }
        }
    }

    /// How many images are open.
    pub(super) fn in_use(&self) -> usize {
        let files = self.table.read().files.clone();
        files.iter().filter(|file| file.open.lock().image.is_some()).count()
    }

    /// Whoever waits for the store is told that it failed, now and from now on.
    pub(super) fn give_up(&self) {
        let files = self.table.read().files.clone();
        for file in files {
            if let Some(image) = &file.open.lock().image {
                image.close();
            }
        }
    }
}

impl File {
    fn change(&self, change: impl FnOnce() -> Result<(), Error>) -> Result<(), Errno> {
        let done = change();
        // Only now: a flush that was begun before does not cover it.
        self.dirty.store(true, SeqCst);
        done.map_err(|error| errno(&self.name, &error))
    }

    fn flush(&self, image: &RemoteImage) -> Result<(), Errno> {
        self.dirty.store(false, SeqCst);
        image.flush().map_err(|error| {
            self.dirty.store(true, SeqCst);
            errno(&self.name, &error)
        })
    }
}

impl Table {
    fn inode(&mut self, name: ImageName) -> u64 {
        *self.inodes.entry(name).or_insert_with_key(|name| {
            let (open, dirty) = (Mutex::default(), AtomicBool::new(false));
            self.files.push(Arc::new(File { name: name.clone(), open, dirty }));
            FIRST + self.files.len() as u64 - 1
        })
    }
}
