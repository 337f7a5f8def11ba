//! What the tests share.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "not every test uses all; one that cannot go on has failed"
)]

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::{
    Access, Alignment, Cache, Catalog, Digest, Export, Format, Image, ImageName, Import, Imported,
    Owner, Progress, StoreError,
};

/// A catalog in a directory that is removed.
///
/// Only one at a time: a process that is being started has all descriptors, locks with them, until
/// it runs its program, so no test may start one while another looks at locks.
pub(crate) struct Place {
    _alone: MutexGuard<'static, ()>,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) catalog: Catalog,
}

impl Place {
    pub(crate) fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path().join("images")).unwrap();
        Self { _alone, dir, catalog }
    }

    /// A path beside the catalog.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// The file of an image.
    pub(crate) fn file(&self, image: &str, format: Format) -> PathBuf {
        self.catalog.dir().join(image).join(format!("image.{format}"))
    }

    pub(crate) fn open(&self, image: &str, access: Access) -> Result<Image, StoreError> {
        self.open_with(image, access, Cache::PageCache)
    }

    pub(crate) fn open_with(
        &self,
        image: &str,
        access: Access,
        cache: Cache,
    ) -> Result<Image, StoreError> {
        self.catalog.open_image(&name(image), access, &owner(), cache)
    }

    pub(crate) fn import(
        &self,
        file: &Path,
        image: &str,
        source: Format,
        format: Format,
    ) -> Result<Imported, StoreError> {
        let how = Import { source, format, digest: Digest::None };
        self.catalog.import(file, &name(image), &how, &mut go_on)
    }

    pub(crate) fn export(
        &self,
        image: &str,
        file: &str,
        format: Format,
    ) -> Result<PathBuf, StoreError> {
        let path = self.path(file);
        let how = Export { format, force: false };
        self.catalog.export(&name(image), &path, how, &mut go_on)?;
        Ok(path)
    }
}

pub(crate) fn name(text: &str) -> ImageName {
    text.parse().unwrap()
}

pub(crate) fn owner() -> Owner {
    Owner::new("/run/test", "disk0")
}

pub(crate) fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Runs qemu-img, which is a part of what is tested against.
pub(crate) fn qemu_img_output(args: &[&str]) -> Output {
    Command::new("qemu-img").args(args).output().unwrap_or_else(|error| {
        panic!("cannot run qemu-img ({error}); it is in Debian's package qemu-utils")
    })
}

/// Runs qemu-img, which must succeed; returns what it printed.
pub(crate) fn qemu_img(args: &[&str]) -> String {
    let output = qemu_img_output(args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {args:?}: {text} {errors}");
    text
}

/// Runs qemu-img, which must fail; returns what it complained about.
pub(crate) fn qemu_img_fails(args: &[&str]) -> String {
    let output = qemu_img_output(args);
    assert!(!output.status.success(), "qemu-img {args:?} should fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Reads the slow way or, if `direct` and that is possible, the direct one. Says whether it was.
pub(crate) fn read(image: &Image, offset: u64, len: usize, direct: bool) -> (Vec<u8>, bool) {
    let mut data = vec![0xee; len];
    match image {
        Image::Raw(raw) => {
            assert_eq!(raw.alignment(), Alignment::NONE);
            raw.file().read_exact_at(&mut data, offset).unwrap();
            (data, false)
        }
        Image::Qcow2(qcow2) => {
            let extent = direct.then(|| qcow2.direct(offset, len as u64, false)).flatten();
            match &extent {
                Some(extent) => extent.file.read_exact_at(&mut data, extent.offset).unwrap(),
                None => qcow2.read(offset, &mut data).unwrap(),
            }
            (data, extent.is_some())
        }
    }
}

/// Writes; as [`read`].
pub(crate) fn write(image: &Image, offset: u64, data: &[u8], direct: bool) -> bool {
    match image {
        Image::Raw(raw) => {
            raw.file().write_all_at(data, offset).unwrap();
            false
        }
        Image::Qcow2(qcow2) => {
            let extent = direct.then(|| qcow2.direct(offset, data.len() as u64, true)).flatten();
            match &extent {
                Some(extent) => extent.file.write_all_at(data, extent.offset).unwrap(),
                None => qcow2.write(offset, data).unwrap(),
            }
            extent.is_some()
        }
    }
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}
