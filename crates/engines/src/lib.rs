//! Images that a storage engine of many machines keeps.
//!
//! **Purpose.** An [`Engine`] is a place with images: a pool of a Ceph cluster ([`ceph`]) or a directory of a
//! Gfarm file system ([`gfarm`]). A [`Volume`] is one of them, open. Both are reached by the C libraries of their
//! makers, which are loaded when they are first used: programs that do without need nothing of them.
//!
//! **Owner.** A volume is closed by [`Volume::close`], or when it is dropped; both wait for what is under way.
//!
//! **Threads.** Everything may be called by any number of threads, and everything may wait: for as long as the
//! engine is away.
//!
//! **One writer.** Each engine says how it keeps a second writer out, and what is guaranteed when one has died:
//! [`ceph::Pool`], [`gfarm::Directory`]. This crate does not look at who has images open in the same process.
//!
//! **Failure.** [`Error`], in the engine's words. Of an engine that was not there when this was built, or is not
//! installed now, [`Error::Missing`].

pub mod ceph;
mod error;
pub mod gfarm;
mod owner;

pub use error::Error;
pub use owner::Owner;

/// A place with images.
pub trait Engine: Send + Sync {
    /// Opens an image, or a snapshot of one; `write`: for writing too.
    ///
    /// # Errors
    /// It cannot be opened, or not now.
    fn open(
        &self,
        image: &str,
        snapshot: Option<&str>,
        write: bool,
    ) -> Result<Box<dyn Volume>, Error>;

    /// All images there are, by name: `NAME`, or `NAME@SNAPSHOT`.
    ///
    /// # Errors
    /// They cannot be looked at.
    fn list(&self) -> Result<Vec<Entry>, Error>;
}

/// An image there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// An open image. Offsets and lengths are in bytes, inside of it.
pub trait Volume: Send + Sync {
    /// Bytes.
    fn size(&self) -> u64;

    /// One more with each time it was opened for writing; kept with the image.
    fn epoch(&self) -> u64;

    /// What the engine can do with it.
    fn abilities(&self) -> Abilities;

    /// Reads `to.len()` bytes.
    ///
    /// # Errors
    /// The engine's.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error>;

    /// Writes `from.len()` bytes. They are not lost by the end of this process when this returns.
    ///
    /// # Errors
    /// The engine's.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error>;

    /// Makes what was written stable.
    ///
    /// # Errors
    /// The engine's.
    fn flush(&self) -> Result<(), Error>;

    /// Nobody needs what is there any more.
    ///
    /// # Errors
    /// The engine's, or it cannot ([`Abilities::discard`]).
    fn discard(&self, offset: u64, len: u64) -> Result<(), Error>;

    /// Has a range read as zeroes; with `unmap`, its space may be given back.
    ///
    /// # Errors
    /// The engine's.
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error>;

    /// Waits for what is under way, and closes it; nothing can be done with it any more.
    fn close(&self);
}

/// What an engine can do with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Space can be given back.
    pub discard: bool,
    /// Requests that are worth having under way at a time.
    pub depth: usize,
    /// What was written is not lost when this machine starts anew, flushed or not.
    pub durable: bool,
}

/// The value of the first zero-terminated text in a buffer.
#[cfg(any(has_ceph, has_gfarm))]
pub(crate) fn text(buffer: &[u8]) -> String {
    let text = std::ffi::CStr::from_bytes_until_nul(buffer).unwrap_or_default();
    text.to_string_lossy().into_owned()
}
