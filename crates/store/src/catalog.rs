//! The catalog: a directory of images.
//!
//! ```text
//! DIR/.lock                 held while the catalog changes or is read, for moments
//! DIR/NAME/image.raw        or image.qcow2, as meta.json says
//! DIR/NAME/meta.json        format, size, the image behind it
//! DIR/NAME/owner.json       who has it open for writing
//! DIR/NAME/epoch            how often other hosts opened it for writing
//! DIR/NAME/clones/CLONE     a hint: CLONE may be a clone of NAME; its own meta.json decides
//! DIR/NAME@SNAP/…           the same: a snapshot is an image that is never written
//! DIR/.new-…, DIR/.old-…    being made, being deleted; locked by who does it
//! ```
//!
//! Every change has one rename that makes it true. What comes before it is removed by the next
//! [`Catalog::open`] if it was not reached, because nobody holds the lock of the directory then.

mod change;
mod show;
mod transfer;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, StorageOpenOptions};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use sys::ofd::{self, Kind, Range};
use tempfile::TempDir;

pub use show::{Details, Summary, Usage};
pub use transfer::{Digest, Export, Import, Imported};

use crate::align::{Alignment, Cache, open};
use crate::error::Context;
use crate::image::{Hold, Image};
use crate::lock::{self, Holder};
use crate::meta::{Meta, file_name, sync_dir};
use crate::qcow2::{Backing, Header, HeaderError, Parts, Qcow2, Storage, check};
use crate::{Format, ImageName, Owner, Raw, SECTOR, StoreError};

/// Largest size of an image in bytes: 64 TiB.
pub const MAX_SIZE: u64 = 64 << 40;
/// Most images that stand on each other, the top one included.
pub const MAX_CHAIN: usize = 16;

const LOCK: &str = ".lock";
const NEW: &str = ".new-";
const OLD: &str = ".old-";
const CLONES: &str = "clones";
const EPOCH: &str = "epoch";

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By any number of readers; nobody may write it meanwhile.
    Read,
    /// By one writer alone.
    Write,
}

/// A directory of images. It holds nothing open and may be used by any number of threads.
#[derive(Clone, Debug)]
pub struct Catalog {
    dir: PathBuf,
}

/// Keeps the catalog as it is until dropped.
#[must_use]
struct Locked {
    _file: File,
}

/// An image that is being made, in a directory of its own that nobody takes for a leftover.
struct Draft {
    dir: TempDir,
    /// Of the directory.
    _lock: File,
}

/// One image of a chain, open and locked.
struct Link {
    name: ImageName,
    meta: Meta,
    file: Arc<File>,
    alignment: Alignment,
    /// Of qcow2 images.
    header: Option<Header>,
}

impl Catalog {
    /// Opens the catalog in `dir`, which is made if it is not there, readable by its owner only.
    ///
    /// Removes what creators and deleters left that are dead.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let dir = dir.into();
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).on("make", &dir)?;
        // Whoever goes on working with it may change its directory.
        let dir = dir.canonicalize().on("open", &dir)?;
        let catalog = Self { dir };
        catalog.clean()?;
        Ok(catalog)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens an image for the I/O of a disk.
    ///
    /// `owner` is shown to who wants it next, if it is opened for writing.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if it is open in a way that excludes this, here or in QEMU;
    /// [`StoreError::HasClones`] and [`StoreError::Snapshot`] if it must not be written;
    /// [`StoreError::Damaged`]; [`StoreError::NotFound`]; [`StoreError::Io`].
    pub fn open_image(
        &self,
        name: &ImageName,
        access: Access,
        owner: &Owner,
        cache: Cache,
    ) -> Result<Image, StoreError> {
        let write = access == Access::Write;
        let locked = self.lock()?;
        if write {
            self.may_change(name)?;
        }
        let chain = self.chain(name, write, cache)?;
        drop(locked);
        let (top, dir) = (&chain[0], self.dir_of(name));
        let hold = write.then(|| {
            let file = Arc::clone(&top.file);
            Hold { name: name.clone(), dir: dir.clone(), file }
        });
        if write {
            if let Some(header) = &top.header {
                check_after_crash(name, &dir, header)?;
            }
            owner.store(&dir)?;
        }
        let image = match top.meta.format {
            Format::Raw => {
                let file = Arc::clone(&top.file);
                Image::Raw(Raw::new(file, top.meta.size, top.alignment, hold))
            }
            Format::Qcow2 => {
                let opened = stack(&chain, write).on("open", &dir);
                let access = opened.inspect_err(|_| {
                    if write {
                        Owner::remove(&dir);
                    }
                })?;
                Image::Qcow2(Box::new(Qcow2::new(parts(chain, access, hold))))
            }
        };
        Ok(image)
    }

    /// How often an image was opened for writing by other hosts; with `opened`, once more now, by who
    /// has it open.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn epoch(&self, name: &ImageName, opened: bool) -> Result<u64, StoreError> {
        let path = self.dir_of(name).join(EPOCH);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.on("read", &path)?,
        };
        let before: u64 = text.trim().parse().unwrap_or(0);
        if !opened {
            return Ok(before);
        }
        let (epoch, new) = (before + 1, path.with_extension("new"));
        let write = || {
            let mut file = File::create(&new)?;
            writeln!(file, "{epoch}")?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().on("write", &path)?;
        Ok(epoch)
    }

    /// Waits until nobody else changes or reads the catalog.
    fn lock(&self) -> Result<Locked, StoreError> {
        let path = self.dir.join(LOCK);
        let open = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let file = open.on("open", &path)?;
        ofd::lock(&file, Kind::Exclusive, Range::ALL).on("lock", &path)?;
        Ok(Locked { _file: file })
    }

    fn dir_of(&self, name: &ImageName) -> PathBuf {
        self.dir.join(name.as_str())
    }

    fn file_of(&self, name: &ImageName, meta: &Meta) -> PathBuf {
        self.dir_of(name).join(file_name(meta.format))
    }

    fn meta(&self, name: &ImageName) -> Result<Meta, StoreError> {
        let dir = self.dir_of(name);
        if dir.is_dir() { Meta::load(&dir, name) } else { Err(StoreError::NotFound(name.clone())) }
    }

    /// All images, sorted.
    fn names(&self) -> Result<Vec<ImageName>, StoreError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).on("read", &self.dir)? {
            let entry = entry.on("read", &self.dir)?;
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let name = entry.file_name().to_str().and_then(|name| name.parse().ok());
            names.extend(name.filter(|_| is_dir));
        }
        names.sort();
        Ok(names)
    }

    /// The images whose backing file is `name`.
    fn clones(&self, name: &ImageName) -> Result<impl Iterator<Item = ImageName>, StoreError> {
        let dir = self.dir_of(name).join(CLONES);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => Some(entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).on("read", &dir),
        };
        let hints = entries.into_iter().flatten().flatten();
        let named = hints.filter_map(|hint| hint.file_name().to_str()?.parse::<ImageName>().ok());
        Ok(named.filter(move |clone| {
            self.meta(clone).is_ok_and(|meta| meta.backing.as_ref() == Some(name))
        }))
    }

    /// Lets [`Self::clones`] find `clone`, before it is there.
    fn hint(&self, base: &Path, clone: &ImageName) -> Result<(), StoreError> {
        let dir = base.join(CLONES);
        let write = || -> io::Result<()> {
            match fs::create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            File::create(dir.join(clone.as_str()))?;
            sync_dir(&dir)?;
            sync_dir(base)
        };
        write().on("write", &dir)
    }

    /// Refuses an image that must stay as it is for the sake of others.
    fn may_change(&self, name: &ImageName) -> Result<(), StoreError> {
        self.meta(name)?;
        if name.is_snapshot() {
            return Err(StoreError::Snapshot(name.clone()));
        }
        self.no_clones(name)
    }

    fn no_clones(&self, name: &ImageName) -> Result<(), StoreError> {
        let mut found = self.clones(name)?.peekable();
        if found.peek().is_none() {
            return Ok(());
        }
        // Enough to say so; there may be thousands.
        let mut clones: Vec<_> = found.take(64).collect();
        clones.sort();
        Err(StoreError::HasClones { name: name.clone(), clones })
    }

    /// Opens and locks an image and all behind it; the top one first.
    fn chain(&self, name: &ImageName, write: bool, cache: Cache) -> Result<Vec<Link>, StoreError> {
        let mut chain: Vec<Link> = Vec::new();
        let mut next = Some(name.clone());
        while let Some(name) = next {
            if chain.len() == MAX_CHAIN {
                let what = format!("more than {MAX_CHAIN} images stand on each other");
                return Err(StoreError::Damaged { name, what });
            }
            // What is behind an image is read by many: one copy of it in the page cache serves all.
            let top = chain.is_empty();
            let cache = if top { cache } else { Cache::PageCache };
            let link = self.link(name, write && top, cache)?;
            next = link.meta.backing.clone();
            chain.push(link);
        }
        for pair in chain.windows(2) {
            let [top, below] = pair else { continue };
            same_backing(top, Some(below))?;
        }
        if let Some(last) = chain.last() {
            same_backing(last, None)?;
        }
        Ok(chain)
    }

    fn link(&self, name: ImageName, write: bool, cache: Cache) -> Result<Link, StoreError> {
        let mut meta = self.meta(&name)?;
        let path = self.file_of(&name, &meta);
        let (file, alignment) = open(&path, write, cache).on("open", &path)?;
        let lock = if write { lock::writer } else { lock::reader };
        if !lock(&file).on("lock", &path)? {
            return Err(self.in_use(name, &file));
        }
        // A second description, because the first may be for aligned requests only.
        let plain = File::open(&path).on("open", &path)?;
        let damaged = |what| StoreError::Damaged { name: name.clone(), what };
        let header = match meta.format {
            Format::Raw => None,
            Format::Qcow2 => Some(Header::read(&plain).map_err(|error| match error {
                HeaderError::Flaw(what) => damaged(what),
                HeaderError::Io(source) => {
                    StoreError::Io { what: format!("cannot read {}", path.display()), source }
                }
            })?),
        };
        let size = match &header {
            None => plain.metadata().on("read", &path)?.len() & !(SECTOR - 1),
            Some(header) => header.size,
        };
        if size < meta.size {
            let what = format!("it has {size} bytes of the {} it should have", meta.size);
            return Err(damaged(what));
        }
        if size > meta.size {
            // A resize was cut short: growing writes meta.json last, shrinking first.
            check_size(size)?;
            meta.size = size;
            meta.store(&self.dir_of(&name))?;
        }
        Ok(Link { name, meta, file: Arc::new(file), alignment, header })
    }

    fn in_use(&self, name: ImageName, file: &File) -> StoreError {
        let owner = match lock::holder(file) {
            Ok(Holder::Writer) => Owner::load(&self.dir_of(&name)).map(Box::new),
            _ => None,
        };
        StoreError::InUse { name, owner }
    }

    /// A directory for an image that is being made.
    fn draft(&self, _locked: &Locked) -> Result<Draft, StoreError> {
        let dir = tempfile::Builder::new().prefix(NEW).tempdir_in(&self.dir);
        let dir = dir.on("make a directory in", &self.dir)?;
        let lock = File::open(dir.path()).on("open", dir.path())?;
        ofd::lock(&lock, Kind::Shared, Range::ALL).on("lock", dir.path())?;
        Ok(Draft { dir, _lock: lock })
    }

    /// Makes a draft the image `name`.
    fn publish(&self, draft: Draft, name: &ImageName, _locked: &Locked) -> Result<(), StoreError> {
        let (from, to) = (draft.dir.path(), self.dir_of(name));
        sync_dir(from).on("flush", from)?;
        step(&self.dir);
        match renameat_with(CWD, from, CWD, &to, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(StoreError::Exists(name.clone())),
            Err(error) => return Err(error).on("make", &to),
        }
        // Nothing of this name is there any more.
        let _ = draft.dir.keep();
        step(&self.dir);
        sync_dir(&self.dir).on("flush", &self.dir)
    }

    fn absent(&self, name: &ImageName) -> Result<(), StoreError> {
        match self.dir_of(name).symlink_metadata() {
            Ok(_) => Err(StoreError::Exists(name.clone())),
            Err(_) => Ok(()),
        }
    }

    /// Removes what the dead left.
    fn clean(&self) -> Result<(), StoreError> {
        let _locked = self.lock()?;
        for entry in fs::read_dir(&self.dir).on("read", &self.dir)? {
            let path = entry.on("read", &self.dir)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let leftover = if name.starts_with(NEW) || name.starts_with(OLD) {
                match File::open(&path) {
                    // Who made it gave up just now.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    dir => {
                        let dir = dir.on("open", &path)?;
                        let holder = ofd::holder(&dir, Kind::Exclusive, Range::ALL);
                        holder.on("look at", &path)?.is_none()
                    }
                }
            } else {
                // The first half of a snapshot: see `Catalog::snapshot`.
                let name = name.parse::<ImageName>().ok().filter(ImageName::is_snapshot);
                name.is_some_and(|name| {
                    self.meta(&name).is_ok_and(|meta| meta.backing == Some(name))
                })
            };
            if leftover {
                match fs::remove_dir_all(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    done => done.on("remove", &path)?,
                }
            }
        }
        Ok(())
    }
}

/// Refuses what is not the size of a disk.
pub(crate) fn check_size(size: u64) -> Result<(), StoreError> {
    let good = (SECTOR..=MAX_SIZE).contains(&size) && size.is_multiple_of(SECTOR);
    if good { Ok(()) } else { Err(StoreError::BadSize(size)) }
}

/// The header of `top` must name `below`, and nothing if that is `None`.
fn same_backing(top: &Link, below: Option<&Link>) -> Result<(), StoreError> {
    let expected = below.map(|below| Backing {
        file: Meta::backing_path(&below.name, below.meta.format),
        format: Some(below.meta.format.as_str().to_owned()),
    });
    let found = top.header.as_ref().and_then(|header| header.backing.clone());
    if found == expected {
        return Ok(());
    }
    let text = |backing: Option<Backing>| match backing {
        None => "none".to_owned(),
        Some(Backing { file, format }) => {
            format!("{file:?} ({})", format.unwrap_or_else(|| "no format".into()))
        }
    };
    let what = format!("its backing file is {}, not {}", text(found), text(expected));
    Err(StoreError::Damaged { name: top.name.clone(), what })
}

/// A host that went down while an image was written may have kept tables without their refcounts.
fn check_after_crash(name: &ImageName, dir: &Path, header: &Header) -> Result<(), StoreError> {
    if !Owner::load(dir).is_some_and(|owner| owner.is_of_another_boot()) {
        return Ok(());
    }
    let path = dir.join(file_name(Format::Qcow2));
    let file = File::open(&path).on("open", &path)?;
    let report = check(&file, header).on("check", &path)?;
    if report.is_sound() {
        return Ok(());
    }
    let what = format!(
        "the host went down while it was written, and its tables do not agree ({}); \
         `qemu-img check -r all` repairs them",
        report.told.join("; ")
    );
    Err(StoreError::Damaged { name: name.clone(), what })
}

/// imago's view of a chain of which all are open. Nothing else is opened.
fn stack(chain: &[Link], write: bool) -> io::Result<FormatAccess<Storage>> {
    let mut below: Option<FormatAccess<Storage>> = None;
    for (depth, link) in chain.iter().enumerate().rev() {
        let write = write && depth == 0;
        let direct = link.alignment != Alignment::NONE;
        let options = StorageOpenOptions::new().write(write).direct(direct);
        let storage = Storage::from_open_file(link.file.try_clone()?, options)?;
        let access = match link.meta.format {
            Format::Raw => FormatAccess::new(imago::raw::Raw::open_image(storage, write)?),
            Format::Qcow2 => {
                let builder = imago::qcow2::Qcow2::builder(storage).write(write);
                let builder = builder.backing(below.take()).data_file(None);
                FormatAccess::new(builder.open(DenyImplicitOpenGate::default())?)
            }
        };
        below = Some(access);
    }
    below.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn parts(chain: Vec<Link>, access: FormatAccess<Storage>, hold: Option<Hold>) -> Parts {
    let alignment = chain.iter().fold(Alignment::NONE, |all, link| Alignment {
        memory: all.memory.max(link.alignment.memory),
        offset: all.offset.max(link.alignment.offset),
    });
    let cluster_bits = chain.first().and_then(|top| top.header.as_ref()).map(|h| h.cluster_bits);
    Parts {
        access,
        cluster_bits: cluster_bits.unwrap_or(16),
        backing_size: chain.get(1).map_or(0, |below| below.meta.size),
        files: chain.into_iter().map(|link| link.file).collect(),
        alignment,
        hold,
    }
}

/// A moment at which the process may die: tests look at what is in the directory then.
#[cfg(not(test))]
pub(crate) fn step(_dir: &Path) {}

#[cfg(test)]
pub(crate) use tests::step;

#[cfg(test)]
mod tests;
