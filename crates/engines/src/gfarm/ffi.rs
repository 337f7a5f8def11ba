//! What shim.c declares, behind types that know what is open.
//!
//! **Threads.** Since 2.7.17 libgfarm says of itself (README.MT-safe) that files may be opened, read, written, synced
//! and closed by any number of threads, and that the rest may not be. So the rest is done by one thread at a time
//! here ([`META`]).

#![cfg_attr(has_gfarm, expect(unsafe_code))]
// UNSAFETY: declares and calls functions in C.

#[cfg(has_gfarm)]
use std::ffi::{CString, c_char, c_int, c_void};
#[cfg(has_gfarm)]
use std::path::Path;
#[cfg(has_gfarm)]
use std::ptr::{NonNull, null_mut};

#[cfg(has_gfarm)]
use parking_lot::Mutex;

use crate::Error;

pub(super) const ENGINE: &str = "Gfarm";
pub(super) const PACKAGES: &str = "libgfarm-dev";

#[cfg(has_gfarm)]
unsafe extern "C" {
    fn gfarm_why(text: *mut c_char, len: usize) -> c_int;
    fn gfarm_meaning(error: c_int, text: *mut c_char, len: usize) -> c_int;
    fn gfarm_start() -> c_int;
    fn gfarm_look(path: *const c_char, size: *mut u64, regular: *mut c_int) -> c_int;
    fn gfarm_names(path: *const c_char, names: *mut c_char, len: *mut usize) -> c_int;
    fn gfarm_open(path: *const c_char, write: c_int, file: *mut *mut c_void) -> c_int;
    fn gfarm_close(file: *mut c_void) -> c_int;
    fn gfarm_read(file: *mut c_void, offset: i64, to: *mut c_char, len: usize) -> c_int;
    fn gfarm_write(file: *mut c_void, offset: i64, from: *const c_char, len: usize) -> c_int;
    fn gfarm_flush(file: *mut c_void) -> c_int;
    fn gfarm_set(
        path: *const c_char,
        name: *const c_char,
        value: *const c_char,
        make: c_int,
        had: *mut c_int,
    ) -> c_int;
    fn gfarm_get(
        path: *const c_char,
        name: *const c_char,
        value: *mut c_char,
        len: usize,
        there: *mut c_int,
    ) -> c_int;
    fn gfarm_remove(path: *const c_char, name: *const c_char) -> c_int;
}

/// Whether the library can be used.
pub(super) fn there() -> Result<(), Error> {
    #[cfg(has_gfarm)]
    {
        let mut why = [0; TEXT];
        // SAFETY: at most as many bytes as there are are written, the last of them zero.
        if unsafe { gfarm_why(why.as_mut_ptr().cast(), why.len()) } == 0 {
            return Ok(());
        }
        Err(Error::NotLoaded { engine: ENGINE, why: crate::text(&why), packages: PACKAGES })
    }
    #[cfg(not(has_gfarm))]
    Err(Error::Missing { engine: ENGINE, packages: PACKAGES })
}

/// Texts of the engine, and values of attributes, are no longer than this.
#[cfg(has_gfarm)]
const TEXT: usize = 1024;

/// Held by who calls what is not safe to be called by many; whether the library was started.
#[cfg(has_gfarm)]
static META: Mutex<bool> = Mutex::new(false);

#[cfg(has_gfarm)]
pub(super) fn check(what: &'static str, error: c_int) -> Result<(), Error> {
    if error == 0 {
        return Ok(());
    }
    let mut text = [0; TEXT];
    // SAFETY: at most as many bytes as there are are written, the last of them zero.
    let errno = unsafe { gfarm_meaning(error, text.as_mut_ptr().cast(), text.len()) };
    let kind = std::io::Error::from_raw_os_error(errno).kind();
    Err(Error::Engine { what, text: crate::text(&text), kind })
}

#[cfg(has_gfarm)]
fn string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Unsuitable(format!("{text:?} has a zero in it")))
}

/// Connects to the metadata server, once in the life of a process; `conf`: its configuration, instead of where
/// Gfarm looks.
#[cfg(has_gfarm)]
pub(super) fn start(conf: Option<&Path>) -> Result<(), Error> {
    there()?;
    let mut started = META.lock();
    if *started {
        return Ok(());
    }
    if let Some(conf) = conf {
        // SAFETY: whoever starts a store has no other thread yet that reads the environment without std's lock.
        unsafe { std::env::set_var("GFARM_CONFIG_FILE", conf) };
    }
    // SAFETY: called once, by one thread.
    check("the metadata server", unsafe { gfarm_start() })?;
    *started = true;
    Ok(())
}

/// Size of a file, and whether it is a regular one.
#[cfg(has_gfarm)]
pub(super) fn look(path: &str) -> Result<(u64, bool), Error> {
    let (path, mut size, mut regular) = (string(path)?, 0, 0);
    let _meta = META.lock();
    // SAFETY: a zero-terminated text, and room for what is told.
    check("gfs_stat", unsafe { gfarm_look(path.as_ptr(), &raw mut size, &raw mut regular) })?;
    Ok((size, regular != 0))
}

/// What is in a directory.
#[cfg(has_gfarm)]
pub(super) fn names(path: &str) -> Result<Vec<String>, Error> {
    let (path, mut names) = (string(path)?, vec![0u8; 4096]);
    let _meta = META.lock();
    loop {
        let mut len = names.len();
        // SAFETY: at most as many bytes are written as there is room.
        let error = unsafe { gfarm_names(path.as_ptr(), names.as_mut_ptr().cast(), &raw mut len) };
        check("gfs_readdir", error)?;
        if len <= names.len() {
            names.truncate(len);
            let parts = names.split(|byte| *byte == 0).filter(|part| !part.is_empty());
            return Ok(parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect());
        }
        names = vec![0; len * 2];
    }
}

/// Sets an attribute of a file.
#[cfg(has_gfarm)]
pub(super) fn set(path: &str, name: &str, value: &str) -> Result<(), Error> {
    attribute(path, name, value, false).map(|_| ())
}

/// Sets it if there is none yet: whether it did. The metadata server lets only one of many do it.
#[cfg(has_gfarm)]
pub(super) fn make(path: &str, name: &str, value: &str) -> Result<bool, Error> {
    attribute(path, name, value, true)
}

#[cfg(has_gfarm)]
fn attribute(path: &str, name: &str, value: &str, make: bool) -> Result<bool, Error> {
    let (path, name, value, mut had) = (string(path)?, string(name)?, string(value)?, 0);
    let _meta = META.lock();
    let (path, name, value) = (path.as_ptr(), name.as_ptr(), value.as_ptr());
    // SAFETY: zero-terminated texts, and room for what is told.
    check("gfs_setxattr", unsafe { gfarm_set(path, name, value, make.into(), &raw mut had) })?;
    Ok(had == 0)
}

/// An attribute, if there is one.
#[cfg(has_gfarm)]
pub(super) fn get(path: &str, name: &str) -> Result<Option<String>, Error> {
    let (path, name, mut value, mut there) = (string(path)?, string(name)?, [0u8; TEXT], 0);
    let _meta = META.lock();
    let room = value.as_mut_ptr().cast();
    // SAFETY: zero-terminated texts; at most as many bytes are written as there is room, with a zero at the end.
    let error =
        unsafe { gfarm_get(path.as_ptr(), name.as_ptr(), room, value.len(), &raw mut there) };
    check("gfs_getxattr", error)?;
    Ok((there != 0).then(|| crate::text(&value)))
}

/// Removes an attribute.
#[cfg(has_gfarm)]
pub(super) fn remove(path: &str, name: &str) -> Result<(), Error> {
    let (path, name) = (string(path)?, string(name)?);
    let _meta = META.lock();
    // SAFETY: zero-terminated texts.
    check("gfs_removexattr", unsafe { gfarm_remove(path.as_ptr(), name.as_ptr()) })
}

/// An open file. One call at a time is carried out; more wait for it.
#[cfg(has_gfarm)]
#[derive(Debug)]
pub(super) struct File(NonNull<c_void>);

// SAFETY: files may be used by any thread, see above.
#[cfg(has_gfarm)]
unsafe impl Send for File {}
// SAFETY: as above.
#[cfg(has_gfarm)]
unsafe impl Sync for File {}

#[cfg(has_gfarm)]
impl File {
    /// Opens it, and connects to its node, which otherwise the first read or write would do.
    pub(super) fn open(path: &str, write: bool) -> Result<File, Error> {
        let (path, mut file) = (string(path)?, null_mut());
        let _meta = META.lock();
        // SAFETY: a zero-terminated text, and room for what is told.
        check("gfs_pio_open", unsafe { gfarm_open(path.as_ptr(), write.into(), &raw mut file) })?;
        let file = NonNull::new(file).map(File).ok_or(Error::Closed)?;
        file.read(0, &mut [0; 512])?;
        Ok(file)
    }

    pub(super) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let at = position(offset, to.len())?;
        // SAFETY: as many bytes are written as there are, before this returns.
        let error = unsafe { gfarm_read(self.0.as_ptr(), at, to.as_mut_ptr().cast(), to.len()) };
        check("gfs_pio_pread", error)
    }

    pub(super) fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let at = position(offset, from.len())?;
        // SAFETY: as many bytes are read as there are, before this returns.
        let error = unsafe { gfarm_write(self.0.as_ptr(), at, from.as_ptr().cast(), from.len()) };
        check("gfs_pio_pwrite", error)
    }

    pub(super) fn flush(&self) -> Result<(), Error> {
        // SAFETY: the file is open.
        check("gfs_pio_datasync", unsafe { gfarm_flush(self.0.as_ptr()) })
    }

    /// Closes it: whether all that was written is there.
    pub(super) fn close(self) -> Result<(), Error> {
        let file = std::mem::ManuallyDrop::new(self);
        // SAFETY: opened once, not used any more after this.
        check("gfs_pio_close", unsafe { gfarm_close(file.0.as_ptr()) })
    }
}

/// Lengths are `int` there, and positions have a sign.
#[cfg(has_gfarm)]
fn position(offset: u64, len: usize) -> Result<i64, Error> {
    let wrong = || Error::Unsuitable(format!("{len} bytes at {offset}"));
    c_int::try_from(len).map_err(|_| wrong())?;
    i64::try_from(offset).map_err(|_| wrong())
}

#[cfg(has_gfarm)]
impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: as in `close`.
        unsafe { gfarm_close(self.0.as_ptr()) };
    }
}
