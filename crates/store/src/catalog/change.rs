//! Making, changing and deleting images.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use imago::StorageOpenOptions;
use imago::format::builder::FormatCreateBuilder;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sys::ofd::{self, Kind, Range};

use super::{Access, CLONES, Catalog, Draft, Link, MAX_CHAIN, OLD, check_size, step};
use crate::align::Cache;
use crate::error::Context;
use crate::lock;
use crate::meta::{Meta, file_name, sync_dir};
use crate::qcow2::Storage;
use crate::{Format, ImageName, Owner, StoreError};

impl Catalog {
    /// Makes an image of `size` bytes that reads as zeroes and takes hardly any space.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::BadSize`], [`StoreError::Snapshot`] for the name of a
    /// snapshot, [`StoreError::Io`].
    pub fn create(&self, name: &ImageName, size: u64, format: Format) -> Result<(), StoreError> {
        check_size(size)?;
        new_name(name)?;
        let locked = self.lock()?;
        self.absent(name)?;
        let draft = self.draft(&locked)?;
        step(&self.dir);
        draft.fill(&Meta::new(format, size, None), None)?;
        self.publish(draft, name, &locked)
    }

    /// Makes `name` a writable image with the content of `base`, which is shared with it: only what
    /// is written to the clone takes space. From now on `base` is not written any more.
    ///
    /// # Errors
    /// As [`Self::create`]; [`StoreError::InUse`] if `base` is open for writing;
    /// [`StoreError::TooDeep`].
    pub fn clone_image(&self, base: &ImageName, name: &ImageName) -> Result<(), StoreError> {
        new_name(name)?;
        let locked = self.lock()?;
        self.absent(name)?;
        let chain = self.chain(base, false, Cache::PageCache)?;
        let below = bottom_of(&chain, base)?;
        let draft = self.draft(&locked)?;
        step(&self.dir);
        let meta = Meta::new(Format::Qcow2, below.meta.size, Some(base.clone()));
        draft.fill(&meta, Some(below.meta.format))?;
        self.hint(&self.dir_of(base), name)?;
        step(&self.dir);
        self.publish(draft, name, &locked)
    }

    /// Keeps the content of `name` as the read-only image `name@snapshot`; returns that name.
    ///
    /// The file becomes the snapshot's, and `name` a new qcow2 image on it, whatever its format was.
    /// In this order: the new image is made as `name@snapshot`, with itself behind it; then the two
    /// directories are exchanged, which is one step of the kernel. An image that stands on itself is
    /// the first half of this and is removed by [`Self::open`].
    ///
    /// # Errors
    /// [`StoreError::InUse`] if it is open at all, [`StoreError::HasClones`],
    /// [`StoreError::Snapshot`], [`StoreError::TooDeep`], [`StoreError::Exists`],
    /// [`StoreError::Io`], also where the file system cannot exchange directories.
    pub fn snapshot(&self, name: &ImageName, snapshot: &str) -> Result<ImageName, StoreError> {
        let locked = self.lock()?;
        self.may_change(name)?;
        let snapshot = name.snapshot(snapshot)?;
        self.absent(&snapshot)?;
        // The lock is on the file, which stays open until all is done.
        let chain = self.chain(name, true, Cache::PageCache)?;
        let below = bottom_of(&chain, name)?;
        let (dir, snapshot_dir) = (self.dir_of(name), self.dir_of(&snapshot));
        if let Some(base) = &below.meta.backing {
            self.hint(&self.dir_of(base), &snapshot)?;
        }
        self.hint(&dir, name)?;
        step(&self.dir);
        let draft = self.draft(&locked)?;
        let meta = Meta::new(Format::Qcow2, below.meta.size, Some(snapshot.clone()));
        draft.fill(&meta, Some(below.meta.format))?;
        self.publish(draft, &snapshot, &locked)?;
        if let Err(error) = renameat_with(CWD, &dir, CWD, &snapshot_dir, RenameFlags::EXCHANGE) {
            fs::remove_dir_all(&snapshot_dir).on("remove", &snapshot_dir)?;
            return Err(error).on("exchange directories in", &self.dir);
        }
        step(&self.dir);
        sync_dir(&self.dir).on("flush", &self.dir)?;
        if let Some(base) = &below.meta.backing {
            self.unhint(base, name);
        }
        step(&self.dir);
        Ok(snapshot)
    }

    /// Changes the size of an image that nobody has open. What is added reads as zeroes.
    ///
    /// # Errors
    /// [`StoreError::Shrink`] if it would become smaller and `shrink` does not say that its end may
    /// be lost; [`StoreError::BadSize`]; as [`Self::open_image`] for writing.
    pub fn resize(&self, name: &ImageName, size: u64, shrink: bool) -> Result<(), StoreError> {
        check_size(size)?;
        let owner = Owner::new(&self.dir, "resize");
        let image = self.open_image(name, Access::Write, &owner, Cache::PageCache)?;
        let from = image.size();
        if size < from && !shrink {
            return Err(StoreError::Shrink { name: name.clone(), from, to: size });
        }
        step(&self.dir);
        image.resize(size)?;
        step(&self.dir);
        Ok(())
    }

    /// Deletes an image or a snapshot.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::HasClones`], [`StoreError::NotFound`],
    /// [`StoreError::Io`]. An image that is damaged can be deleted.
    pub fn delete(&self, name: &ImageName) -> Result<(), StoreError> {
        let _locked = self.lock()?;
        let dir = self.dir_of(name);
        if !dir.is_dir() {
            return Err(StoreError::NotFound(name.clone()));
        }
        self.no_clones(name)?;
        let meta = Meta::load(&dir, name).ok();
        // Whatever meta.json says: nobody has a file of an image open that is locked here.
        let mut files = Vec::new();
        for format in [Format::Raw, Format::Qcow2] {
            let path = dir.join(file_name(format));
            let file = match File::options().read(true).write(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.on("open", &path)?,
            };
            if !lock::writer(&file).on("lock", &path)? {
                return Err(self.in_use(name.clone(), &file));
            }
            files.push(file);
        }
        let lock = File::open(&dir).on("open", &dir)?;
        ofd::lock(&lock, Kind::Shared, Range::ALL).on("lock", &dir)?;
        let old = tempfile::Builder::new().prefix(OLD).tempdir_in(&self.dir);
        let old = old.on("make a directory in", &self.dir)?;
        step(&self.dir);
        // An empty directory gives way to another.
        fs::rename(&dir, old.path()).on("delete", &dir)?;
        step(&self.dir);
        sync_dir(&self.dir).on("flush", &self.dir)?;
        old.close().on("delete", &dir)?;
        step(&self.dir);
        if let Some(base) = meta.and_then(|meta| meta.backing) {
            self.unhint(&base, name);
        }
        Ok(())
    }

    /// `clone` is not one of `base` any more. A hint that stays is looked at and not believed.
    fn unhint(&self, base: &ImageName, clone: &ImageName) {
        let _ = fs::remove_file(self.dir_of(base).join(CLONES).join(clone.as_str()));
    }
}

impl Draft {
    /// Makes the image's file and `meta.json`, lasting. `backing` is the format of the image behind
    /// it, if there is one.
    pub(super) fn fill(&self, meta: &Meta, backing: Option<Format>) -> Result<(), StoreError> {
        let path = self.dir.path().join(file_name(meta.format));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.on("make", &path)?;
        match meta.format {
            Format::Raw => file.set_len(meta.size).on("resize", &path)?,
            Format::Qcow2 => {
                let backing = meta.backing.as_ref().zip(backing);
                let backing = backing.map(|(name, format)| {
                    (Meta::backing_path(name, format), format.as_str().to_owned())
                });
                format_qcow2(file.try_clone().on("open", &path)?, meta.size, backing)
                    .on("format", &path)?;
            }
        }
        file.sync_all().on("flush", &path)?;
        step(parent(self.dir.path()));
        meta.store(self.dir.path())?;
        step(parent(self.dir.path()));
        Ok(())
    }
}

/// Makes `file`, which is empty, a qcow2 image of `size` bytes. `backing` is a path as qcow2 has it,
/// and its format.
pub(super) fn format_qcow2(
    file: File,
    size: u64,
    backing: Option<(String, String)>,
) -> io::Result<()> {
    let storage = Storage::from_open_file(file, StorageOpenOptions::new().write(true))?;
    let mut builder = imago::qcow2::Qcow2::<Storage>::create_builder(storage).size(size);
    if let Some((file, format)) = backing {
        builder = builder.backing(file, format);
    }
    builder.create()
}

/// Only [`Catalog::snapshot`] makes snapshots.
pub(super) fn new_name(name: &ImageName) -> Result<(), StoreError> {
    if name.is_snapshot() { Err(StoreError::Snapshot(name.clone())) } else { Ok(()) }
}

/// The image on which another is to stand, the first of its chain.
fn bottom_of<'a>(chain: &'a [Link], name: &ImageName) -> Result<&'a Link, StoreError> {
    match chain {
        [first, ..] if chain.len() < MAX_CHAIN => Ok(first),
        _ => Err(StoreError::TooDeep(name.clone())),
    }
}

fn parent(dir: &Path) -> &Path {
    dir.parent().unwrap_or(dir)
}
