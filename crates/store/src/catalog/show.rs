//! What there is, who uses it, and whether it is whole.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use api::Timestamp;

use super::{Catalog, MAX_CHAIN};
use crate::error::Context;
use crate::lock::{self, Holder};
use crate::meta::file_name;
use crate::qcow2::{Header, HeaderError, Report, check};
use crate::{Format, ImageName, Owner, StoreError};

/// An image in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its name.
    pub name: ImageName,
    /// How its bytes are laid out.
    pub format: Format,
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes that its own file takes on the host.
    pub allocated: u64,
    /// The image that holds what was not written to this one.
    pub backing: Option<ImageName>,
    /// When it was made.
    pub created: Timestamp,
    /// SHA-256 of the file that was imported, in hexadecimal, if that was asked for.
    pub sha256: Option<String>,
}

/// Who has an image open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Nobody.
    Free,
    /// Readers: clones of it are open, or it is.
    Readers,
    /// One of ours that writes, if it says who it is.
    Writer(Option<Owner>),
    /// A QEMU or qemu-img that writes.
    Qemu,
}

/// All about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// What a list says.
    pub summary: Summary,
    /// The images behind it, nearest first, and their formats.
    pub chain: Vec<(ImageName, Format)>,
    /// The images whose backing file it is, sorted.
    pub clones: Vec<ImageName>,
    /// Who has it open.
    pub usage: Usage,
}

impl Catalog {
    /// All images and snapshots, sorted by name. No image is opened. One that cannot be told of
    /// does not hide the others.
    ///
    /// # Errors
    /// [`StoreError::Io`]; of a single image also [`StoreError::Damaged`].
    #[expect(clippy::type_complexity, reason = "a name and what is known of it")]
    pub fn list(&self) -> Result<Vec<(ImageName, Result<Summary, StoreError>)>, StoreError> {
        let _locked = self.lock()?;
        let names = self.names()?.into_iter();
        Ok(names.map(|name| (name.clone(), self.summary(name))).collect())
    }

    /// All about one image. Its content is not looked at.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn show(&self, name: &ImageName) -> Result<Details, StoreError> {
        let _locked = self.lock()?;
        let summary = self.summary(name.clone())?;
        let mut chain = Vec::new();
        let mut next = summary.backing.clone();
        while let Some(name) = next.filter(|_| chain.len() < MAX_CHAIN) {
            let meta = self.meta(&name)?;
            next = meta.backing;
            chain.push((name, meta.format));
        }
        let mut clones: Vec<_> = self.clones(name)?.collect();
        clones.sort();
        let path = self.dir_of(name).join(file_name(summary.format));
        let file = File::open(&path).on("open", &path)?;
        let usage = match lock::holder(&file).on("look at", &path)? {
            Holder::Nobody => Usage::Free,
            Holder::Readers => Usage::Readers,
            Holder::Writer => Usage::Writer(Owner::load(&self.dir_of(name))),
            Holder::Qemu => Usage::Qemu,
        };
        Ok(Details { summary, chain, clones, usage })
    }

    /// Looks whether an image is whole: the tables and refcounts of qcow2, the size of raw. Those
    /// behind it are not looked at.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if it is open for writing; [`StoreError::NotFound`];
    /// [`StoreError::Io`]. Damage is no error but what the report says.
    pub fn check(&self, name: &ImageName) -> Result<Report, StoreError> {
        let locked = self.lock()?;
        let meta = self.meta(name)?;
        let path = self.file_of(name, &meta);
        let file = File::open(&path).on("open", &path)?;
        if !lock::reader(&file).on("lock", &path)? {
            return Err(self.in_use(name.clone(), &file));
        }
        drop(locked);
        let about = file.metadata().on("read", &path)?;
        let mut report = Report::default();
        let size = match meta.format {
            Format::Raw => {
                report.allocated = about.blocks() * 512;
                about.len()
            }
            Format::Qcow2 => match Header::read(&file) {
                Ok(header) => {
                    report = check(&file, &header).on("check", &path)?;
                    header.size
                }
                Err(HeaderError::Io(error)) => return Err(error).on("read", &path),
                Err(HeaderError::Flaw(what)) => {
                    report.error(what);
                    return Ok(report);
                }
            },
        };
        if size != meta.size {
            report.error(format!("it has {size} bytes and should have {}", meta.size));
        }
        Ok(report)
    }

    fn summary(&self, name: ImageName) -> Result<Summary, StoreError> {
        let meta = self.meta(&name)?;
        let path = self.file_of(&name, &meta);
        let allocated = path.metadata().on("read", &path)?.blocks() * 512;
        let crate::meta::Meta { format, size, backing, created, sha256, .. } = meta;
        Ok(Summary { name, format, size, allocated, backing, created, sha256 })
    }
}
