//! An open image.

use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::ffi::{Connection, Handle};
use super::record::{EPOCH, KEY, Writer};
use crate::{Abilities, Error, Owner, Volume};

/// Who opens an image for a moment only, as `rbd resize` does, is waited for.
const MOMENT: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// A cluster works on many things at once.
const DEPTH: usize = 32;

/// What is there in whole sectors.
pub(super) fn sectors(size: u64) -> u64 {
    size / 512 * 512
}

#[derive(Debug)]
pub(super) struct Image {
    /// `None`: closed.
    handle: RwLock<Option<Handle>>,
    size: u64,
    epoch: u64,
    write: bool,
}

impl Image {
    /// Opens one for reading. Nobody may be writing it.
    pub(super) fn reader(
        connection: Arc<Connection>,
        image: &str,
        snapshot: Option<&str>,
    ) -> Result<Image, Error> {
        let handle = Handle::open(connection, image, snapshot, false)?;
        if snapshot.is_none() {
            let last = last_writer(&handle);
            let dead = last.as_ref().filter(|last| last.process.is_dead());
            alone(&handle, image, dead, last.as_ref())?;
        }
        let epoch = epoch(&handle)?;
        Image::new(handle, epoch, false)
    }

    /// Opens one for writing, on a connection of its own, with its lock.
    pub(super) fn writer(connection: Arc<Connection>, image: &str) -> Result<Image, Error> {
        let handle = Handle::open(connection, image, None, true)?;
        let last = last_writer(&handle);
        let dead = last.as_ref().filter(|last| last.process.is_dead());
        alone(&handle, image, dead, last.as_ref())?;
        // Of nobody else who is there: if it is not that of the dead one of this machine, the cluster has not heard of
        // its owner for a while, and librbd breaks it.
        let owner = handle.owner().map_err(|error| refusal(error, image))?;
        if let (Some(owner), Some(dead)) = (owner, dead)
            && owner == dead.address
        {
            handle.shut_out(&owner)?;
            tracing::info!(image, "its last writer is dead: {owner} was shut out of the cluster");
        }
        handle.lock().map_err(|error| refusal(error, image))?;
        let address = handle.owner()?.unwrap_or_default();
        let (client, epoch) = (handle.connection().instance()?, epoch(&handle)? + 1);
        handle.set(EPOCH, &epoch.to_string())?;
        if let Some(process) = Owner::this() {
            handle.set(KEY, &Writer { client, address, process }.to_string())?;
        }
        Image::new(handle, epoch, true)
    }

    fn new(handle: Handle, epoch: u64, write: bool) -> Result<Image, Error> {
        let size = sectors(handle.size()?);
        Ok(Image { handle: RwLock::new(Some(handle)), size, epoch, write })
    }

    fn with<T>(&self, work: impl FnOnce(&Handle) -> Result<T, Error>) -> Result<T, Error> {
        // Others who read do not wait for one that is to be closed: they come before it.
        self.handle.read_recursive().as_ref().map_or(Err(Error::Closed), work)
    }
}

fn last_writer(handle: &Handle) -> Option<Writer> {
    // What makes no sense is nobody's.
    handle.get(KEY).ok().flatten()?.parse().ok()
}

fn epoch(handle: &Handle) -> Result<u64, Error> {
    Ok(handle.get(EPOCH)?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Waits a moment until nobody else has the image open for writing.
fn alone(
    handle: &Handle,
    image: &str,
    dead: Option<&Writer>,
    last: Option<&Writer>,
) -> Result<(), Error> {
    let this = handle.connection().instance()?;
    let begin = Instant::now();
    loop {
        let others = handle.watchers()?;
        let is_other = |id: &&u64| **id != this && dead.is_none_or(|dead| dead.client != **id);
        let Some(other) = others.iter().find(is_other).copied() else { return Ok(()) };
        if begin.elapsed() > MOMENT {
            let owner = match last {
                Some(last) if last.client == other => {
                    format!("a store on {} (client.{other} of the cluster)", last.process.host)
                }
                _ => format!("client.{other} of the cluster"),
            };
            return Err(Error::InUse { image: image.to_owned(), owner });
        }
        sleep(PAUSE);
    }
}

/// Why the lock was not to be had.
fn refusal(error: Error, image: &str) -> Error {
    match error {
        Error::Engine { kind: io::ErrorKind::InvalidInput, .. } => Error::Unsuitable(format!(
            "image {image} has no exclusive lock: `rbd feature enable POOL/{image} exclusive-lock` gives it one"
        )),
        Error::Engine { kind: io::ErrorKind::Other, .. } => {
            Error::InUse { image: image.to_owned(), owner: "somebody who has its lock".to_owned() }
        }
        error => error,
    }
}

impl Volume for Image {
    fn size(&self) -> u64 {
        self.size
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn abilities(&self) -> Abilities {
        Abilities { discard: true, depth: DEPTH, durable: true }
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.with(|handle| handle.read(offset, to))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.with(|handle| handle.write(offset, from))
    }

    fn flush(&self) -> Result<(), Error> {
        // A reader has nothing to make stable.
        if self.write { self.with(Handle::flush) } else { Ok(()) }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.with(|handle| handle.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.with(|handle| handle.write_zeroes(offset, len, !unmap))
    }

    fn close(&self) {
        let Some(handle) = self.handle.write().take() else { return };
        if self.write {
            handle.unlock();
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.close();
    }
}
