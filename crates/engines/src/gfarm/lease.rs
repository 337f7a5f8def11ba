//! The right to write an image.

use std::thread::sleep;
use std::time::Duration;

use super::ffi;
use crate::{Error, Owner};

/// Who has it.
const WRITER: &str = "user.hayate.writer";
/// Who takes it over from somebody who is dead.
const HEIR: &str = "user.hayate.heir";
/// How many times it was given.
const EPOCH: &str = "user.hayate.epoch";
/// Requests of a dead process that had reached a node have been carried out after so long.
const ECHO: Duration = Duration::from_secs(1);

/// Held by who writes; given back when dropped.
#[derive(Debug)]
pub(super) struct Lease {
    path: String,
    /// Openings for writing, with this one.
    pub(super) epoch: u64,
}

impl Lease {
    /// Takes it, if nobody has it or who has is known to be dead.
    pub(super) fn take(path: &str, image: &str) -> Result<Lease, Error> {
        let unknown = || Error::Unsuitable("this kernel does not say what it runs".to_owned());
        let this = Owner::this().ok_or_else(unknown)?.to_string();
        if !ffi::make(path, WRITER, &this)? {
            inherit(path, image, &this)?;
        }
        let mut lease = Lease { path: path.to_owned(), epoch: 0 };
        lease.epoch = epoch(path)? + 1;
        ffi::set(path, EPOCH, &lease.epoch.to_string())?;
        Ok(lease)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Err(error) = ffi::remove(&self.path, WRITER) {
            tracing::warn!("the right to write {} cannot be given back: {error}", self.path);
        }
    }
}

/// How many times an image was opened for writing.
pub(super) fn epoch(path: &str) -> Result<u64, Error> {
    Ok(ffi::get(path, EPOCH)?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Whether somebody writes it who is not known to be dead.
pub(super) fn is_free(path: &str, image: &str) -> Result<(), Error> {
    match ffi::get(path, WRITER)? {
        Some(text) => is_dead(path, image, &text),
        None => Ok(()),
    }
}

/// Whether this is somebody who is dead.
fn is_dead(path: &str, image: &str, text: &str) -> Result<(), Error> {
    let owner: Option<Owner> = text.parse().ok();
    if owner.as_ref().is_some_and(Owner::is_dead) {
        return Ok(());
    }
    let owner = match owner {
        Some(Owner { host, pid, .. }) => format!("a store on {host} (process {pid})"),
        None => "somebody unknown".to_owned(),
    };
    let owner = format!("{owner}; if that is gone for good: gfxattr -r {path} {WRITER}");
    Err(Error::InUse { image: image.to_owned(), owner })
}

/// Takes the lease over from somebody who is dead. Only one does that at a time.
fn inherit(path: &str, image: &str, this: &str) -> Result<(), Error> {
    let Some(before) = ffi::get(path, WRITER)? else {
        return Err(Error::InUse {
            image: image.to_owned(),
            owner: "somebody who is just gone".to_owned(),
        });
    };
    is_dead(path, image, &before)?;
    if !ffi::make(path, HEIR, this)? {
        let owner = format!("somebody who takes it over; if nobody does: gfxattr -r {path} {HEIR}");
        return Err(Error::InUse { image: image.to_owned(), owner });
    }
    let taken = replace(path, image, &before, this);
    ffi::remove(path, HEIR)?;
    taken?;
    tracing::info!(image, "its last writer is dead: {before}");
    sleep(ECHO);
    Ok(())
}

fn replace(path: &str, image: &str, before: &str, this: &str) -> Result<(), Error> {
    // Another heir may have been faster.
    match ffi::get(path, WRITER)? {
        Some(now) if now == before => ffi::set(path, WRITER, this),
        _ => Err(Error::InUse { image: image.to_owned(), owner: "its heir".to_owned() }),
    }
}
