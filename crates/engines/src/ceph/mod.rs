//! Images of a pool of a Ceph cluster: RBD.
//!
//! **One writer.** Who writes an image has its exclusive lock, with a connection to the cluster of its own, and gives
//! it to nobody who asks. An image that anybody else has open for writing is refused. The lock of somebody who is
//! dead is broken, and he is shut out of the cluster (blocklisted) first, so that nothing he left on the way is
//! written any more. Who is dead is known in two ways: a process of this machine that has ended ([`Owner`],
//! kept with the image), at once; anybody else when the cluster has not heard of him for 30 seconds. A writer that
//! was shut out itself gets an error for everything from then on; only that image is concerned.
//!
//! Readers are not known to the cluster. That nobody writes while others read is looked at when an image is opened
//! for reading; afterwards only snapshots are sure not to change.
//!
//! **What is stable.** librbd's cache of writes is off: a write that has ended is on all replicas, and is not lost
//! with this process.
//!
//! [`Owner`]: crate::Owner

mod ffi;
#[cfg(has_ceph)]
mod image;
#[cfg(has_ceph)]
mod record;

use std::fmt;
use std::path::PathBuf;

#[cfg(has_ceph)]
use std::io;
#[cfg(has_ceph)]
use std::sync::Arc;

use crate::{Engine, Entry, Error, Volume};

/// How to reach a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Its name.
    pub pool: String,
    /// The cluster's configuration. `None`: where Ceph looks always, `/etc/ceph/ceph.conf` first.
    pub conf: Option<PathBuf>,
    /// Who this is, without `client.` before it.
    pub user: String,
    /// Keeps what was read in memory, 32 MiB for each image.
    pub cache: bool,
}

/// A pool, connected.
pub struct Pool {
    options: Options,
    /// For everything but writing.
    #[cfg(has_ceph)]
    shared: Arc<ffi::Connection>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

/// Whether the libraries are there.
///
/// # Errors
/// They are not: why.
pub fn available() -> Result<(), Error> {
    ffi::there()
}

#[cfg(not(has_ceph))]
impl Pool {
    /// Connects to the cluster.
    ///
    /// # Errors
    /// Always: this was built without Ceph.
    pub fn connect(options: Options) -> Result<Pool, Error> {
        available().map(|()| Pool { options })
    }

    fn missing<T>(&self) -> Result<T, Error> {
        Err(Error::Missing { engine: ffi::ENGINE, packages: ffi::PACKAGES })
    }
}

#[cfg(not(has_ceph))]
impl Engine for Pool {
    fn open(&self, _: &str, _: Option<&str>, _: bool) -> Result<Box<dyn Volume>, Error> {
        self.missing()
    }

    fn list(&self) -> Result<Vec<Entry>, Error> {
        self.missing()
    }
}

#[cfg(has_ceph)]
impl Pool {
    /// Connects to the cluster; waits for it no longer than half a minute.
    ///
    /// # Errors
    /// It does not answer, refuses, or has no such pool; or the libraries are not there.
    pub fn connect(options: Options) -> Result<Pool, Error> {
        let shared = Arc::new(connection(&options)?);
        Ok(Pool { options, shared })
    }

    fn entries(&self, image: &str) -> Result<Vec<Entry>, Error> {
        let handle = ffi::Handle::open(Arc::clone(&self.shared), image, None, false)?;
        let mut entries =
            vec![Entry { name: image.to_owned(), size: image::sectors(handle.size()?) }];
        entries.extend(handle.snapshots()?.into_iter().map(|(snapshot, size)| Entry {
            name: format!("{image}@{snapshot}"),
            size: image::sectors(size),
        }));
        Ok(entries)
    }
}

#[cfg(has_ceph)]
impl Engine for Pool {
    fn open(
        &self,
        image: &str,
        snapshot: Option<&str>,
        write: bool,
    ) -> Result<Box<dyn Volume>, Error> {
        let opened = match (snapshot, write) {
            (Some(snapshot), true) => Err(Error::Unsuitable(format!(
                "{image}@{snapshot} is a snapshot: it can be read only"
            ))),
            (_, true) => image::Image::writer(Arc::new(connection(&self.options)?), image),
            (_, false) => image::Image::reader(Arc::clone(&self.shared), image, snapshot),
        };
        let name = snapshot.map_or_else(|| image.to_owned(), |snap| format!("{image}@{snap}"));
        match opened {
            // That is how librbd says that it is not there.
            Err(Error::Engine { kind: io::ErrorKind::NotFound, .. }) => Err(Error::NotFound(name)),
            opened => Ok(Box::new(opened?)),
        }
    }

    fn list(&self) -> Result<Vec<Entry>, Error> {
        let mut all = Vec::new();
        for image in self.shared.images()? {
            match self.entries(&image) {
                Ok(entries) => all.extend(entries),
                // It may just have been removed.
                Err(error) => tracing::debug!("image {image} cannot be looked at: {error}"),
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }
}

#[cfg(has_ceph)]
fn connection(options: &Options) -> Result<ffi::Connection, Error> {
    let conf = options.conf.as_ref().map(|path| path.to_string_lossy());
    let settings = [
        // A write has ended when it is on all replicas: nothing is lost with this process.
        ("rbd_cache", if options.cache { "true" } else { "false" }),
        ("rbd_cache_policy", "writethrough"),
        // Who breaks a lock shuts its owner out.
        ("rbd_blocklist_on_break_lock", "true"),
        // Writes go on while this says nothing; only who is to be let in is not waited for so long.
        ("client_mount_timeout", "30"),
    ];
    ffi::Connection::new(conf.as_deref(), &options.user, &settings, &options.pool)
}

/// What a number of librados and librbd means.
#[cfg(has_ceph)]
fn error(what: &'static str, code: i32) -> Error {
    const ENOSPC: i32 = 28;
    const EROFS: i32 = 30;
    const ESHUTDOWN: i32 = 108;
    const EDQUOT: i32 = 122;
    let system = io::Error::from_raw_os_error(code);
    let text = match code {
        ESHUTDOWN => {
            "this store was shut out of the cluster: somebody has broken its lock of the image \
                      (blocklisted)"
                .to_owned()
        }
        EROFS => "the lock of the image is somebody else's".to_owned(),
        _ => system.to_string(),
    };
    let kind = match code {
        ENOSPC | EDQUOT => io::ErrorKind::StorageFull,
        // Not that the image was opened for reading.
        EROFS => io::ErrorKind::Other,
        _ => system.kind(),
    };
    Error::Engine { what, text, kind }
}
