//! An image that is open, whatever its format.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::catalog::{check_size, step};
use crate::error::Context;
use crate::meta::Meta;
use crate::{Format, ImageName, Owner, Qcow2, Raw, StoreError};

/// An image that is open, and locked until it and everything it gave out is dropped.
///
/// Dropping one that is open for writing waits until what was written lasts.
#[derive(Debug)]
pub enum Image {
    /// A file that has the bytes of the disk as they are.
    Raw(Raw),
    /// Clusters behind tables.
    Qcow2(Box<Qcow2>),
}

impl Image {
    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        match self {
            Self::Raw(raw) => raw.size(),
            Self::Qcow2(qcow2) => qcow2.size(),
        }
    }

    /// How its bytes are laid out.
    pub fn format(&self) -> Format {
        match self {
            Self::Raw(_) => Format::Raw,
            Self::Qcow2(_) => Format::Qcow2,
        }
    }

    /// Whether it was opened for reading only.
    pub fn read_only(&self) -> bool {
        match self {
            Self::Raw(raw) => raw.read_only(),
            Self::Qcow2(qcow2) => qcow2.read_only(),
        }
    }

    /// Makes the disk `new` bytes long; see [`Raw::resize`] and [`Qcow2::resize`].
    ///
    /// # Errors
    /// As there.
    pub fn resize(&self, new: u64) -> Result<(), StoreError> {
        match self {
            Self::Raw(raw) => raw.resize(new),
            Self::Qcow2(qcow2) => qcow2.resize(new),
        }
    }
}

/// An image's directory, while it is open for writing.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) name: ImageName,
    pub(crate) dir: PathBuf,
    pub(crate) file: Arc<File>,
}

impl Hold {
    /// Resizes by `change` and records the new size, in the order that a crash does no harm: the
    /// file is never shorter than `meta.json` says, and a longer one is taken as it is.
    pub(crate) fn resize(
        &self,
        old: u64,
        new: u64,
        change: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), StoreError> {
        check_size(new)?;
        if new < old {
            self.record_size(new)?;
        }
        let catalog = self.dir.parent().unwrap_or(&self.dir);
        step(catalog);
        change().on("resize", &self.dir)?;
        step(catalog);
        if new > old {
            self.record_size(new)?;
        }
        Ok(())
    }

    pub(crate) fn record_size(&self, size: u64) -> Result<(), StoreError> {
        let mut meta = Meta::load(&self.dir, &self.name)?;
        if meta.size != size {
            meta.size = size;
            meta.store(&self.dir)?;
        }
        Ok(())
    }

    /// Says that nobody has it open any more, if all that was written lasts. Until the lock is gone
    /// nobody can open it.
    pub(crate) fn release(&self, flushed: io::Result<()>) {
        match flushed.and_then(|()| self.file.sync_all()) {
            Ok(()) => Owner::remove(&self.dir),
            Err(error) => tracing::error!("image {}: cannot flush: {error}", self.name),
        }
    }
}
