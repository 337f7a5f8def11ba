//! What shim.c declares, behind types that know what is open.

#![cfg_attr(has_ceph, expect(unsafe_code))]
// UNSAFETY: declares and calls functions in C.

#[cfg(has_ceph)]
use std::ffi::{CString, c_char, c_int, c_void};
#[cfg(has_ceph)]
use std::ptr::{NonNull, null, null_mut};
#[cfg(has_ceph)]
use std::sync::Arc;

use crate::Error;

pub(super) const ENGINE: &str = "Ceph";
pub(super) const PACKAGES: &str = "librbd-dev librados-dev";

#[cfg(has_ceph)]
unsafe extern "C" {
    fn ceph_why(text: *mut c_char, len: usize) -> c_int;
    fn ceph_connect(
        conf: *const c_char,
        user: *const c_char,
        settings: *const *const c_char,
        pool: *const c_char,
        cluster: *mut *mut c_void,
        io: *mut *mut c_void,
    ) -> c_int;
    fn ceph_disconnect(cluster: *mut c_void, io: *mut c_void) -> c_int;
    fn ceph_instance(cluster: *mut c_void, id: *mut u64) -> c_int;
    fn ceph_images(io: *mut c_void, names: *mut c_char, len: *mut usize) -> c_int;
    fn ceph_snapshots(image: *mut c_void, names: *mut c_char, len: *mut usize) -> c_int;
    fn ceph_open(
        io: *mut c_void,
        name: *const c_char,
        snapshot: *const c_char,
        write: c_int,
        image: *mut *mut c_void,
    ) -> c_int;
    fn ceph_close(image: *mut c_void) -> c_int;
    fn ceph_size(image: *mut c_void, size: *mut u64) -> c_int;
    fn ceph_read(image: *mut c_void, offset: u64, to: *mut c_void, len: usize) -> c_int;
    fn ceph_write(image: *mut c_void, offset: u64, from: *const c_void, len: usize) -> c_int;
    fn ceph_flush(image: *mut c_void) -> c_int;
    fn ceph_discard(image: *mut c_void, offset: u64, len: u64) -> c_int;
    fn ceph_write_zeroes(image: *mut c_void, offset: u64, len: u64, thick: c_int) -> c_int;
    fn ceph_lock(image: *mut c_void) -> c_int;
    fn ceph_unlock(image: *mut c_void) -> c_int;
    fn ceph_owner(image: *mut c_void, owner: *mut c_char, len: usize) -> c_int;
    fn ceph_break(image: *mut c_void, owner: *const c_char) -> c_int;
    fn ceph_watchers(image: *mut c_void, ids: *mut u64, room: usize) -> c_int;
    fn ceph_get(image: *mut c_void, key: *const c_char, value: *mut c_char, len: usize) -> c_int;
    fn ceph_set(image: *mut c_void, key: *const c_char, value: *const c_char) -> c_int;
}

/// Texts of the engine are no longer than this.
#[cfg(has_ceph)]
const TEXT: usize = 1024;

/// Whether the libraries can be used.
pub(super) fn there() -> Result<(), Error> {
    #[cfg(has_ceph)]
    {
        let mut why = [0; TEXT];
        // SAFETY: at most as many bytes as there are are written, the last of them zero.
        if unsafe { ceph_why(why.as_mut_ptr().cast(), why.len()) } == 0 {
            return Ok(());
        }
        Err(Error::NotLoaded { engine: ENGINE, why: crate::text(&why), packages: PACKAGES })
    }
    #[cfg(not(has_ceph))]
    Err(Error::Missing { engine: ENGINE, packages: PACKAGES })
}

#[cfg(has_ceph)]
mod open {
    use super::*;

    fn check(what: &'static str, result: c_int) -> Result<c_int, Error> {
        if result < 0 { Err(super::super::error(what, -result)) } else { Ok(result) }
    }

    fn string(text: &str) -> Result<CString, Error> {
        CString::new(text).map_err(|_| Error::Unsuitable(format!("{text:?} has a zero in it")))
    }

    /// All names that `list` lists, however many they are by now.
    fn names(
        what: &'static str,
        list: impl Fn(*mut c_char, *mut usize) -> c_int,
    ) -> Result<Vec<String>, Error> {
        let mut names = vec![0u8; 4096];
        loop {
            let mut len = names.len();
            check(what, list(names.as_mut_ptr().cast(), &raw mut len))?;
            if len <= names.len() {
                names.truncate(len);
                let parts = names.split(|byte| *byte == 0).filter(|part| !part.is_empty());
                return Ok(parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect());
            }
            names = vec![0; len * 2];
        }
    }

    /// A connection to a cluster, and a pool of it.
    #[derive(Debug)]
    pub(in super::super) struct Connection {
        cluster: NonNull<c_void>,
        io: NonNull<c_void>,
    }

    // SAFETY: librados and librbd may be called by any number of threads.
    unsafe impl Send for Connection {}
    // SAFETY: as above.
    unsafe impl Sync for Connection {}

    impl Connection {
        pub(in super::super) fn new(
            conf: Option<&str>,
            user: &str,
            settings: &[(&str, &str)],
            pool: &str,
        ) -> Result<Connection, Error> {
            there()?;
            let conf = conf.map(string).transpose()?;
            let (user, pool) = (string(user)?, string(pool)?);
            let words = settings.iter().flat_map(|(name, value)| [*name, *value]);
            let words = words.map(string).collect::<Result<Vec<_>, _>>()?;
            let mut list: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
            list.push(null());
            let (mut cluster, mut io) = (null_mut(), null_mut());
            // SAFETY: zero-terminated texts, or none, and a list that ends with a null pointer.
            let result = unsafe {
                ceph_connect(
                    conf.as_ref().map_or(null(), |conf| conf.as_ptr()),
                    user.as_ptr(),
                    list.as_ptr(),
                    pool.as_ptr(),
                    &raw mut cluster,
                    &raw mut io,
                )
            };
            check("the cluster", result)?;
            let both = NonNull::new(cluster).zip(NonNull::new(io));
            let (cluster, io) = both.ok_or(Error::Closed)?;
            Ok(Connection { cluster, io })
        }

        /// Which client of the cluster it is.
        pub(in super::super) fn instance(&self) -> Result<u64, Error> {
            let mut id = 0;
            // SAFETY: the cluster is connected.
            let result = unsafe { ceph_instance(self.cluster.as_ptr(), &raw mut id) };
            check("rados_get_instance_id", result).map(|_| id)
        }

        pub(in super::super) fn images(&self) -> Result<Vec<String>, Error> {
            // SAFETY: the pool is open, and at most as many bytes are written as there is room.
            names("rbd_list", |names, len| unsafe { ceph_images(self.io.as_ptr(), names, len) })
        }
    }

    impl Drop for Connection {
        fn drop(&mut self) {
            // SAFETY: connected once; images have ended before, as each keeps its connection.
            unsafe { ceph_disconnect(self.cluster.as_ptr(), self.io.as_ptr()) };
        }
    }

    /// An open image; it is closed before its connection is.
    #[derive(Debug)]
    pub(in super::super) struct Handle {
        image: NonNull<c_void>,
        connection: Arc<Connection>,
    }

    // SAFETY: librbd may be called by any number of threads.
    unsafe impl Send for Handle {}
    // SAFETY: as above.
    unsafe impl Sync for Handle {}

    impl Handle {
        pub(in super::super) fn open(
            connection: Arc<Connection>,
            image: &str,
            snapshot: Option<&str>,
            write: bool,
        ) -> Result<Handle, Error> {
            let (name, snap) = (string(image)?, snapshot.map(string).transpose()?);
            let snap = snap.as_ref().map_or(null(), |snap| snap.as_ptr());
            let (io, mut out) = (connection.io.as_ptr(), null_mut());
            // SAFETY: zero-terminated texts, and a pool that is open.
            let result = unsafe { ceph_open(io, name.as_ptr(), snap, write.into(), &raw mut out) };
            check("rbd_open", result)?;
            let image = NonNull::new(out).ok_or(Error::Closed)?;
            Ok(Handle { image, connection })
        }

        pub(in super::super) fn connection(&self) -> &Connection {
            &self.connection
        }

        pub(in super::super) fn size(&self) -> Result<u64, Error> {
            let mut size = 0;
            // SAFETY: the image is open.
            let result = unsafe { ceph_size(self.image.as_ptr(), &raw mut size) };
            check("rbd_get_size", result).map(|_| size)
        }

        /// Names and sizes of its snapshots.
        pub(in super::super) fn snapshots(&self) -> Result<Vec<(String, u64)>, Error> {
            let words = names("rbd_snap_list", |names, len| {
                // SAFETY: the image is open, and at most as many bytes are written as there is room.
                unsafe { ceph_snapshots(self.image.as_ptr(), names, len) }
            })?;
            let pairs = words.chunks_exact(2);
            Ok(pairs.map(|pair| (pair[0].clone(), pair[1].parse().unwrap_or_default())).collect())
        }

        pub(in super::super) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
            // SAFETY: as many bytes are written as there are, before this returns.
            let result =
                unsafe { ceph_read(self.image.as_ptr(), offset, to.as_mut_ptr().cast(), to.len()) };
            check("rbd_read", result).map(|_| ())
        }

        pub(in super::super) fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
            // SAFETY: as many bytes are read as there are, before this returns.
            let result = unsafe {
                ceph_write(self.image.as_ptr(), offset, from.as_ptr().cast(), from.len())
            };
            check("rbd_write", result).map(|_| ())
        }

        pub(in super::super) fn flush(&self) -> Result<(), Error> {
            // SAFETY: the image is open.
            check("rbd_flush", unsafe { ceph_flush(self.image.as_ptr()) }).map(|_| ())
        }

        pub(in super::super) fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
            // SAFETY: the image is open.
            let result = unsafe { ceph_discard(self.image.as_ptr(), offset, len) };
            check("rbd_discard", result).map(|_| ())
        }

        pub(in super::super) fn write_zeroes(
            &self,
            offset: u64,
            len: u64,
            thick: bool,
        ) -> Result<(), Error> {
            // SAFETY: the image is open.
            let result =
                unsafe { ceph_write_zeroes(self.image.as_ptr(), offset, len, thick.into()) };
            check("rbd_write_zeroes", result).map(|_| ())
        }

        pub(in super::super) fn lock(&self) -> Result<(), Error> {
            // SAFETY: the image is open.
            check("rbd_lock_acquire", unsafe { ceph_lock(self.image.as_ptr()) }).map(|_| ())
        }

        /// Who has the lock, by address.
        pub(in super::super) fn owner(&self) -> Result<Option<String>, Error> {
            let mut owner = [0u8; TEXT];
            // SAFETY: at most as many bytes as there are are written, the last of them zero.
            let result =
                unsafe { ceph_owner(self.image.as_ptr(), owner.as_mut_ptr().cast(), owner.len()) };
            let there = check("rbd_lock_get_owners", result)? > 0;
            Ok(there.then(|| crate::text(&owner)))
        }

        /// Takes the lock from its owner, and shuts that out of the cluster.
        pub(in super::super) fn shut_out(&self, owner: &str) -> Result<(), Error> {
            let owner = string(owner)?;
            // SAFETY: a zero-terminated text.
            let result = unsafe { ceph_break(self.image.as_ptr(), owner.as_ptr()) };
            check("rbd_lock_break", result).map(|_| ())
        }

        /// The clients that have it open for writing.
        pub(in super::super) fn watchers(&self) -> Result<Vec<u64>, Error> {
            let mut ids = [0; 64];
            // SAFETY: at most as many numbers are written as there is room.
            let result = unsafe { ceph_watchers(self.image.as_ptr(), ids.as_mut_ptr(), ids.len()) };
            let count = check("rbd_watchers_list", result)? as usize;
            Ok(ids.iter().take(count).copied().collect())
        }

        /// What is kept with the image.
        pub(in super::super) fn get(&self, key: &str) -> Result<Option<String>, Error> {
            let (key, mut value) = (string(key)?, [0u8; TEXT]);
            // SAFETY: a zero-terminated text; at most as many bytes are written as there is room, with a
            // zero at the end.
            let result = unsafe {
                let room = value.as_mut_ptr().cast();
                ceph_get(self.image.as_ptr(), key.as_ptr(), room, value.len())
            };
            let there = check("rbd_metadata_get", result)? > 0;
            Ok(there.then(|| crate::text(&value)))
        }

        pub(in super::super) fn set(&self, key: &str, value: &str) -> Result<(), Error> {
            let (key, value) = (string(key)?, string(value)?);
            // SAFETY: zero-terminated texts.
            let result = unsafe { ceph_set(self.image.as_ptr(), key.as_ptr(), value.as_ptr()) };
            check("rbd_metadata_set", result).map(|_| ())
        }

        pub(in super::super) fn unlock(&self) {
            // SAFETY: the image is open. It is let go of when it is closed, too.
            let _ = unsafe { ceph_unlock(self.image.as_ptr()) };
        }
    }

    impl Drop for Handle {
        fn drop(&mut self) {
            // SAFETY: opened once, not used any more after this.
            unsafe { ceph_close(self.image.as_ptr()) };
        }
    }
}

#[cfg(has_ceph)]
pub(super) use open::{Connection, Handle};
