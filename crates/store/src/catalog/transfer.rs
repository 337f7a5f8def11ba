//! Images into the catalog and out of it.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, StorageOpenOptions};
use sha2::Digest as _;

use super::change::{format_qcow2, new_name};
use super::{Catalog, check_size, stack, step};
use crate::align::Cache;
use crate::copy::{Source, Target, copy, digest};
use crate::error::Context;
use crate::meta::{Meta, file_name, sync_dir};
use crate::progress::Reporter;
use crate::qcow2::{Header, HeaderError, Storage};
use crate::{Format, ImageName, Progress, SECTOR, StoreError, lock};

/// What is done about the SHA-256 of a file that is imported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Digest {
    /// Nothing.
    #[default]
    None,
    /// It is computed and kept.
    Compute,
    /// It is computed and kept, and must be this one, in hexadecimal.
    Expect(String),
}

/// How a file is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// What the file is. Its content is not asked.
    pub source: Format,
    /// What the image becomes.
    pub format: Format,
    /// What is done about its checksum.
    pub digest: Digest,
}

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Bytes of the disk.
    pub size: u64,
    /// SHA-256 of the file, in hexadecimal, if asked for.
    pub sha256: Option<String>,
}

/// How an image is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// What the file becomes.
    pub format: Format,
    /// Whether a file that is there is replaced.
    pub force: bool,
}

type Tell<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

impl Catalog {
    /// Makes `name` a copy of the disk in the file at `path`, without its zeroes.
    ///
    /// A disk that is no multiple of 512 bytes long gets zeroes at its end. `tell` hears how far it
    /// is; `Break` cancels.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] says what to do about a file that cannot be taken, among them
    /// qcow2 images with a backing file or an external data file; [`StoreError::Checksum`];
    /// [`StoreError::InUse`] if somebody writes the file; [`StoreError::Cancelled`];
    /// [`StoreError::Exists`], [`StoreError::BadSize`], [`StoreError::Io`].
    pub fn import(
        &self,
        path: &Path,
        name: &ImageName,
        how: &Import,
        tell: Tell<'_>,
    ) -> Result<Imported, StoreError> {
        new_name(name)?;
        let (file, len) = open_source(path)?;
        if !lock::reader(&file).on("lock", path)? {
            let what = "it is in use by a program that writes it".to_owned();
            return Err(StoreError::Unsupported { path: path.to_owned(), what });
        }
        let wanted = how.digest != Digest::None;
        let mut sum = None;
        let mut reporter;
        let (source, size) = match how.source {
            Format::Raw => {
                let size = len.next_multiple_of(SECTOR);
                check_size(size)?;
                reporter = Reporter::new(size, tell);
                sum = wanted.then(sha2::Sha256::new);
                (Source::Raw { file, len }, size)
            }
            Format::Qcow2 => {
                let header = standalone_header(path, &file)?;
                let size = header.size.next_multiple_of(SECTOR);
                check_size(size)?;
                let total = if wanted { len.saturating_add(size) } else { size };
                reporter = Reporter::new(total, tell);
                if wanted {
                    // Before anything in it is believed.
                    let found = digest(&file, len, &mut reporter)?;
                    compare(path, &how.digest, &hex(&found.clone().finalize()))?;
                    sum = Some(found);
                }
                (Source::Qcow2(open_qcow2(file, false).map_err(|error| odd(path, &error))?), size)
            }
        };

        let locked = self.lock()?;
        self.absent(name)?;
        let draft = self.draft(&locked)?;
        drop(locked);
        step(&self.dir);
        let mut meta = Meta::new(how.format, size, None);
        draft.fill(&meta, None)?;
        let image = draft.dir.path().join(file_name(how.format));
        // That of a raw file is computed on the way.
        let hashed = sum.as_mut().filter(|_| matches!(source, Source::Raw { .. }));
        write_disk(&image, how.format, &source, size, hashed, &mut reporter)?;
        step(&self.dir);
        if let Some(sum) = sum {
            let sum = hex(&sum.finalize());
            compare(path, &how.digest, &sum)?;
            meta.sha256 = Some(sum);
            meta.store(draft.dir.path())?;
        }
        let locked = self.lock()?;
        let sha256 = meta.sha256;
        self.publish(draft, name, &locked)?;
        Ok(Imported { size, sha256 })
    }

    /// Writes the disk of `name` to a file at `path` that stands alone, without its zeroes.
    ///
    /// The file is there when it is whole. `tell` hears how far it is; `Break` cancels.
    ///
    /// # Errors
    /// [`StoreError::FileExists`] unless `force`; [`StoreError::InUse`] if it is open for writing;
    /// [`StoreError::Cancelled`]; as [`Self::open_image`] for reading.
    pub fn export(
        &self,
        name: &ImageName,
        path: &Path,
        how: Export,
        tell: Tell<'_>,
    ) -> Result<(), StoreError> {
        let taken = || StoreError::FileExists(path.to_owned());
        match path.symlink_metadata() {
            Ok(there) if !how.force || !there.is_file() => return Err(taken()),
            _ => {}
        }
        let locked = self.lock()?;
        let mut chain = self.chain(name, false, Cache::PageCache)?;
        drop(locked);
        let size = chain[0].meta.size;
        let source = match chain[0].meta.format {
            Format::Qcow2 => Source::Qcow2(stack(&chain, false).on("open", &self.dir_of(name))?),
            Format::Raw => {
                let link = chain.swap_remove(0);
                let file = link.file.try_clone().on("open", &self.dir_of(name))?;
                Source::Raw { file, len: size }
            }
        };
        let dir = match path.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        if dir.canonicalize().on("open", dir)?.starts_with(&self.dir) {
            let what = "files inside the catalog are not exported to".to_owned();
            return Err(StoreError::Unsupported { path: path.to_owned(), what });
        }
        let part = tempfile::Builder::new()
            .prefix(".hayate-export-")
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(dir)
            .on("make a file in", dir)?;
        let file = part.as_file();
        match how.format {
            Format::Raw => file.set_len(size).on("resize", path)?,
            Format::Qcow2 => {
                let file = file.try_clone().on("open", path)?;
                format_qcow2(file, size, None).on("format", path)?;
            }
        }
        let mut reporter = Reporter::new(size, tell);
        write_disk(part.path(), how.format, &source, size, None, &mut reporter)?;
        let kept = if how.force { part.persist(path) } else { part.persist_noclobber(path) };
        match kept {
            Ok(_) => sync_dir(dir).on("flush", dir),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(taken()),
            Err(error) => Err(error.error).on("make", path),
        }
    }
}

/// Writes `source` into the empty image at `path`, lasting.
fn write_disk(
    path: &Path,
    format: Format,
    source: &Source,
    size: u64,
    sum: Option<&mut sha2::Sha256>,
    reporter: &mut Reporter<'_>,
) -> Result<(), StoreError> {
    let file = File::options().read(true).write(true).open(path).on("open", path)?;
    let same = file.try_clone().on("open", path)?;
    let target = match format {
        Format::Raw => Target::Raw(same),
        Format::Qcow2 => Target::Qcow2(open_qcow2(same, true).on("open", path)?),
    };
    copy(source, &target, size, sum, reporter)?;
    if let Target::Qcow2(access) = &target {
        access.flush().on("flush", path)?;
    }
    file.sync_all().on("flush", path)
}

/// A qcow2 image that stands alone. Nothing else is opened.
fn open_qcow2(file: File, write: bool) -> io::Result<FormatAccess<Storage>> {
    let options = StorageOpenOptions::new().write(write);
    let storage = Storage::from_open_file(file, options)?;
    let builder = imago::qcow2::Qcow2::<Storage>::builder(storage).write(write);
    let builder = builder.backing(None).data_file(None);
    Ok(FormatAccess::new(builder.open(DenyImplicitOpenGate::default())?))
}

/// A file or block device to import, and its length.
fn open_source(path: &Path) -> Result<(File, u64), StoreError> {
    let about = path.metadata().on("open", path)?;
    let kind = about.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let what = "only a file or a block device can be imported".to_owned();
        return Err(StoreError::Unsupported { path: path.to_owned(), what });
    }
    let mut file = File::open(path).on("open", path)?;
    let len = file.seek(SeekFrom::End(0)).on("read", path)?;
    Ok((file, len))
}

fn standalone_header(path: &Path, file: &File) -> Result<Header, StoreError> {
    let unsupported = |what| StoreError::Unsupported { path: path.to_owned(), what };
    let header = Header::read(file).map_err(|error| match error {
        HeaderError::Flaw(what) => unsupported(what),
        HeaderError::Io(source) => {
            StoreError::Io { what: format!("cannot read {}", path.display()), source }
        }
    })?;
    match &header.backing {
        None => Ok(header),
        Some(backing) => Err(unsupported(format!(
            "it has the backing file {:?}; `qemu-img convert -O qcow2` makes a copy that stands alone",
            backing.file
        ))),
    }
}

/// imago refuses what it was given: that is about the file unless the kernel said it.
fn odd(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Unsupported { path: path.to_owned(), what: error.to_string() }
}

fn compare(path: &Path, digest: &Digest, found: &str) -> Result<(), StoreError> {
    match digest {
        Digest::Expect(expected) if !expected.eq_ignore_ascii_case(found) => {
            Err(StoreError::Checksum {
                path: path.to_owned(),
                expected: expected.clone(),
                found: found.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
