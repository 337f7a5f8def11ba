//! Images of a directory of a Gfarm file system: files of it, with as many replicas as Gfarm is told to keep.
//!
//! **One writer.** Gfarm has no lock. Who writes an image has a *lease*: an extended attribute of the file
//! (`user.hayate.writer`), which the metadata server makes for one only. It does not expire. The lease of a process of
//! this machine that has ended is taken over; that of another machine only an operator can take away, who knows
//! that nobody there writes any more (`gfxattr -r FILE user.hayate.writer`). The nodes with the bytes know nothing of
//! leases: who has lost one this way goes on writing, and programs that do not ask for one always may. Requests of a
//! dead process that had reached its node may be carried out a moment after its end, which is waited for.
//!
//! **What is stable.** A write that has ended is in the file of its node, and not lost with this process. A flush is
//! that of the node. Only one node has what was written until the image is closed; then Gfarm makes the replicas.
//!
//! **Threads.** An image has several handles of Gfarm's, as each does one thing at a time.

mod ffi;
#[cfg(has_gfarm)]
mod image;
#[cfg(has_gfarm)]
mod lease;

use std::path::PathBuf;

use crate::{Engine, Entry, Error, Volume};

/// How to reach a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Its path in Gfarm.
    pub dir: String,
    /// The configuration. `None`: where Gfarm looks always, `~/.gfarm2rc` and `/etc/gfarm2.conf`.
    pub conf: Option<PathBuf>,
}

/// A directory of images.
#[derive(Debug)]
pub struct Directory {
    #[cfg_attr(not(has_gfarm), expect(dead_code, reason = "there is none"))]
    dir: String,
}

/// Whether the library is there.
///
/// # Errors
/// It is not: why.
pub fn available() -> Result<(), Error> {
    ffi::there()
}

#[cfg(not(has_gfarm))]
impl Directory {
    /// Connects to the metadata server.
    ///
    /// # Errors
    /// Always: this was built without Gfarm.
    pub fn connect(options: &Options) -> Result<Directory, Error> {
        available().map(|()| Directory { dir: options.dir.clone() })
    }

    fn missing<T>(&self) -> Result<T, Error> {
        Err(Error::Missing { engine: ffi::ENGINE, packages: ffi::PACKAGES })
    }
}

#[cfg(not(has_gfarm))]
impl Engine for Directory {
    fn open(&self, _: &str, _: Option<&str>, _: bool) -> Result<Box<dyn Volume>, Error> {
        self.missing()
    }

    fn list(&self) -> Result<Vec<Entry>, Error> {
        self.missing()
    }
}

#[cfg(has_gfarm)]
impl Directory {
    /// Connects to the metadata server: before this process has other threads, and for one configuration in its
    /// life.
    ///
    /// # Errors
    /// It does not answer, refuses, or has no such directory; or the library is not there.
    pub fn connect(options: &Options) -> Result<Directory, Error> {
        ffi::start(options.conf.as_deref())?;
        if ffi::look(&options.dir)?.1 {
            return Err(Error::Unsuitable(format!("{} is not a directory", options.dir)));
        }
        let dir = options.dir.trim_end_matches('/').to_owned();
        Ok(Directory { dir })
    }

    fn path(&self, image: &str) -> String {
        format!("{}/{image}", self.dir)
    }

    fn size(&self, image: &str) -> Result<u64, Error> {
        let none = || Error::NotFound(image.to_owned());
        // It would be another file.
        if image.contains('/') || image.starts_with('.') {
            return Err(none());
        }
        match ffi::look(&self.path(image)) {
            Ok((size, true)) => Ok(size / 512 * 512),
            Ok((_, false)) => Err(none()),
            Err(Error::Engine { kind: std::io::ErrorKind::NotFound, .. }) => Err(none()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(has_gfarm)]
impl Engine for Directory {
    fn open(
        &self,
        image: &str,
        snapshot: Option<&str>,
        write: bool,
    ) -> Result<Box<dyn Volume>, Error> {
        if let Some(snapshot) = snapshot {
            return Err(Error::NotFound(format!("{image}@{snapshot}")));
        }
        let size = self.size(image)?;
        Ok(Box::new(image::Image::open(&self.path(image), image, size, write)?))
    }

    fn list(&self) -> Result<Vec<Entry>, Error> {
        let mut names = ffi::names(if self.dir.is_empty() { "/" } else { &self.dir })?;
        names.sort();
        // What is no image, or has just been removed, is not one.
        let entry = |name: String| Some(Entry { size: self.size(&name).ok()?, name });
        Ok(names.into_iter().filter_map(entry).collect())
    }
}
