//! Images of virtual disks in a directory: catalog, formats, locks, import and export.
//!
//! **Purpose.** A [`Catalog`] is a directory with one directory per image: its file (`image.raw` or
//! `image.qcow2`) and `meta.json`, which says what it is. [`Catalog::open_image`] gives an [`Image`],
//! through which a disk does its I/O: [`Raw`] is a file for the engine's own requests, [`Qcow2`] has
//! blocking calls for a pool of threads and a map of what may be read and written without them.
//!
//! **Formats are configuration.** The format of an image, and of the image behind it, is what
//! `meta.json` says. Content is never looked at to find it out: a guest may write a qcow2 header into
//! a raw image, and it stays raw. What a qcow2 header says about a backing file is compared with the
//! catalog and never followed. An import copies what the guest would see into a fresh image, so no
//! table made by a stranger is ever written to.
//!
//! **THE rule of locks.** An image open for writing holds an exclusive lock of its open file
//! description ([`sys::ofd`]), and all I/O goes through that same description. The kernel releases
//! the lock when the last reference is gone, and a request of a killed process that is still in
//! flight is a reference: so whoever gets the lock next cannot be overtaken by late writes of the
//! dead. There is no process id to look up, no time limit, and nothing to take over. `owner.json`
//! beside the image says who it is, for people; it is believed only while the lock is held. The locks
//! are on bytes that QEMU understands, so that it and qemu-img refuse and are refused as well. (A child
//! process that is being started is a reference, too, until it runs its program.)
//!
//! **Owner and threads.** Nothing here starts a thread. All calls block on files, but
//! [`Qcow2::direct`]. A catalog may be used by any number of threads and processes at once: changes
//! are serialised by a lock on `.lock`, which is held for moments only, and long copies are made in
//! a `.new-` directory that is renamed when it is whole.
//!
//! **Failure.** A [`StoreError`] is a sentence a person can act on. An operation that fails, is
//! cancelled or is killed changes nothing; what it leaves is removed when the catalog is opened next.
//! A damaged image is refused under a name and costs no memory that its own size does not explain.

mod align;
mod catalog;
mod copy;
mod error;
mod image;
mod lock;
mod meta;
mod progress;
mod qcow2;
mod raw;

pub use align::{Alignment, Cache};
pub use api::{ImageFormat as Format, ImageName};
pub use catalog::{
    Access, Catalog, Details, Digest, Export, Import, Imported, MAX_CHAIN, MAX_SIZE, Summary, Usage,
};
pub use error::StoreError;
pub use image::Image;
pub use meta::Owner;
pub use progress::Progress;
pub use qcow2::{Extent, Qcow2, Report};
pub use raw::Raw;

/// The unit of the size of an image, in bytes: a sector of virtio-blk.
pub const SECTOR: u64 = 512;
