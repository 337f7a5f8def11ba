//! An open image.

use parking_lot::{Condvar, Mutex};

use super::ffi::File;
use super::lease::{self, Lease};
use crate::{Abilities, Error, Volume};

/// Handles of an image. Those of one node share a connection, which does one thing at a time: more are of use
/// only where the node is this machine.
const HANDLES: usize = 4;
/// Zeroes written at once.
const ZEROES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Image {
    path: String,
    size: u64,
    epoch: u64,
    write: bool,
    state: Mutex<State>,
    /// A handle is free, or will not be.
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<File>,
    /// Handles that may still be opened: those that are open had been, too.
    closed: usize,
    /// Nothing is to be done any more.
    ended: bool,
    /// Something was written since the last flush that went well.
    dirty: bool,
    /// A handle failed while that was so: what it wrote may be lost, and the next flush says so.
    lost: bool,
    /// Given back after the last handle.
    lease: Option<Lease>,
}

impl Image {
    pub(super) fn open(path: &str, image: &str, size: u64, write: bool) -> Result<Image, Error> {
        let (lease, epoch) = if write {
            let lease = Lease::take(path, image)?;
            let epoch = lease.epoch;
            (Some(lease), epoch)
        } else {
            lease::is_free(path, image)?;
            (None, lease::epoch(path)?)
        };
        if size == 0 {
            return Err(Error::Unsuitable(format!(
                "{image} is empty: it has to be as large as the disk"
            )));
        }
        // Whether it can be opened at all shows at once.
        let first = File::open(path, write)?;
        let state = State {
            idle: vec![first],
            closed: HANDLES - 1,
            ended: false,
            dirty: false,
            lost: false,
            lease,
        };
        let (state, freed) = (Mutex::new(state), Condvar::new());
        Ok(Image { path: path.to_owned(), size, epoch, write, state, freed })
    }

    /// A handle that nobody uses.
    fn take(&self) -> Result<File, Error> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return Err(Error::Closed);
            }
            if let Some(file) = state.idle.pop() {
                return Ok(file);
            }
            if state.closed > 0 {
                state.closed -= 1;
                break;
            }
            self.freed.wait(&mut state);
        }
        drop(state);
        File::open(&self.path, self.write).inspect_err(|_| self.gone())
    }

    /// A handle is no more: another one may be opened.
    fn gone(&self) {
        self.state.lock().closed += 1;
        self.freed.notify_all();
    }

    fn with(&self, work: impl FnOnce(&File) -> Result<(), Error>) -> Result<(), Error> {
        let file = self.take()?;
        let done = work(&file);
        if done.is_ok() {
            self.state.lock().idle.push(file);
            self.freed.notify_all();
            return done;
        }
        // Its connection may be gone: the next request has another one.
        drop(file);
        {
            let mut state = self.state.lock();
            state.lost |= state.dirty;
        }
        self.gone();
        done
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
        Abilities { discard: false, depth: HANDLES, durable: false }
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.with(|file| file.read(offset, to))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.state.lock().dirty = true;
        let done = self.with(|file| file.write(offset, from));
        // A flush that ended meanwhile was not about it.
        self.state.lock().dirty = true;
        done
    }

    fn flush(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        if !state.dirty && !state.lost {
            return Ok(());
        }
        // What is written from now on is for the next one.
        let (dirty, lost) = (state.dirty, std::mem::take(&mut state.lost));
        state.dirty = false;
        drop(state);
        let done = self.with(File::flush);
        if done.is_err() {
            self.state.lock().dirty |= dirty;
        }
        done?;
        if lost {
            let what = "gfs_pio_datasync";
            let text =
                "what was written to a node before its connection was lost may be lost".to_owned();
            return Err(Error::Engine { what, text, kind: std::io::ErrorKind::Other });
        }
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Error> {
        Err(Error::Unsuitable("space of a file in Gfarm cannot be given back".to_owned()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: bool) -> Result<(), Error> {
        let zeroes = vec![0; ZEROES.min(usize::try_from(len).unwrap_or(ZEROES))];
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let part = usize::try_from(end - at).unwrap_or(ZEROES).min(zeroes.len());
            self.write(at, zeroes.get(..part).unwrap_or_default())?;
            at += part as u64;
        }
        Ok(())
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        self.freed.notify_all();
        while state.idle.len() + state.closed < HANDLES {
            self.freed.wait(&mut state);
        }
        for file in state.idle.drain(..).collect::<Vec<_>>() {
            state.closed += 1;
            if let Err(error) = file.close() {
                tracing::error!("{} was not closed in order: {error}", self.path);
            }
        }
        // Only now may others write it.
        drop(state.lease.take());
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.close();
    }
}
