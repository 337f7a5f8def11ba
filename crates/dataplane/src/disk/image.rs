//! What the data plane asks of images that are more than a file.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use remote::control::{ImageName, Transport};
use rustls::ClientConfig;

/// Most steps of one disk that other threads do at a time, where the image does not say.
const SLOW_MAX: usize = 8;

/// Where the bytes of a disk are.
#[derive(Clone, Debug)]
pub enum DiskImage {
    /// In this file, at the same offset. Opened with `O_DIRECT`, it is read and written past the
    /// page cache.
    File(Arc<File>),
    /// Wherever the image says.
    Image(Arc<dyn Image>),
    /// On another host.
    Store(Arc<StoreTarget>),
}

/// An image in a store on another host.
#[derive(Clone, Debug)]
pub struct StoreTarget {
    /// Where the store is: host and port; the first that answers. All of them have the same image.
    pub addresses: Vec<String>,
    /// Its name there.
    pub image: ImageName,
    /// The disk, through all its connections and restarts of this program: known to nobody else.
    pub session: u128,
    /// Who asks, for people.
    pub client: String,
    /// Whether it is to be written, too.
    pub write: bool,
    /// How long the guest waits for a store that is away before it is told that its requests have
    /// failed. `None`: for ever.
    pub patience: Option<Duration>,
    /// How bytes come and go.
    pub transport: Transport,
    /// How to know the store, and to be known by it. `None`: neither is, and nothing is encrypted.
    pub tls: Option<Arc<ClientConfig>>,
}

impl DiskImage {
    /// Whether space of an image that is here can be given back.
    pub(crate) fn can_discard(&self) -> bool {
        match self {
            DiskImage::Image(image) => image.can_discard(),
            DiskImage::File(_) | DiskImage::Store(_) => true,
        }
    }

    /// Whether what was written is still there when this machine starts anew.
    pub(crate) fn outlives_this_machine(&self) -> bool {
        matches!(self, DiskImage::Image(image) if image.outlives_this_machine())
    }

    /// Steps that other threads do at a time.
    pub(super) fn depth(&self) -> usize {
        match self {
            DiskImage::Image(image) => image.depth(),
            DiskImage::File(_) | DiskImage::Store(_) => SLOW_MAX,
        }
    }

    /// What a disk has while its image is taken away: nothing is asked of it.
    pub(super) fn absent() -> DiskImage {
        DiskImage::Image(Arc::new(Absent))
    }
}

#[derive(Debug)]
struct Absent;

impl Absent {
    fn error() -> io::Error {
        io::ErrorKind::NotConnected.into()
    }
}

impl Image for Absent {
    fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(Self::error())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(Self::error())
    }

    fn flush(&self) -> io::Result<()> {
        Err(Self::error())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(Self::error())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> io::Result<()> {
        Err(Self::error())
    }

    fn direct(&self, _: u64, _: u64, _: bool) -> Option<Extent> {
        None
    }
}

/// An image in a format: where its bytes are has to be looked up, and made.
///
/// **Threads.** [`Image::direct`] is called by a worker and never waits. All others are called by
/// threads that may wait, any number at once, on any ranges, while others are read and written where
/// `direct` told: sectors beside those that are written must not be written back. While `discard` or `write_zeroes` runs
/// no write is under way to a place that `direct` told.
///
/// Positions and lengths are in bytes, multiples of 512, inside the image.
pub trait Image: Send + Sync + fmt::Debug {
    /// Reads `to.len()` bytes.
    ///
    /// # Errors
    /// The host's: the guest gets an I/O error.
    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()>;

    /// Writes `from.len()` bytes.
    ///
    /// # Errors
    /// As [`Image::read`].
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Makes every write that has ended stable, those to places that `direct` told too.
    ///
    /// # Errors
    /// As [`Image::read`].
    fn flush(&self) -> io::Result<()>;

    /// Nobody needs what is there any more.
    ///
    /// # Errors
    /// As [`Image::read`].
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Has a range read as zeroes; with `unmap`, its space may be given back.
    ///
    /// # Errors
    /// As [`Image::read`].
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()>;

    /// Where these bytes are, if that is known, they are in one piece of one file, and they can be
    /// read or (`write`) written there with nothing else to be done.
    fn direct(&self, offset: u64, len: u64, write: bool) -> Option<Extent>;

    /// Whether space can be given back: without, no disk offers it.
    fn can_discard(&self) -> bool {
        true
    }

    /// Whether what was written is still there when this machine starts anew, flushed or not.
    fn outlives_this_machine(&self) -> bool {
        false
    }

    /// Calls that are worth having under way at a time.
    fn depth(&self) -> usize {
        SLOW_MAX
    }
}

/// A place in a file.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The file.
    pub file: Arc<File>,
    /// In bytes.
    pub offset: u64,
}
