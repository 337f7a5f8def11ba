//! How a disk's requests are carried out.
//!
//! [`LiveDisk::go`] does the next step of a request until it has ended or somebody else is at it:
//! the ring, another thread, or the store on another host. [`LiveDisk::go_on`] takes up what comes back. A
//! transfer that moved less than it should goes on with the rest; a step that fails ends its request.
//!
//! Writes go past an image to where it says its bytes are; while any does, nothing is cleared, and
//! while anything is cleared or waits for that, none does.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use disk::SECTOR;
use disk::request::Range;
use guestmem::{Access, Transfer};
use sys::uring::Operation;

use super::{Ended, LiveDisk, Tools};
use crate::disk::file::Manner;
use crate::disk::image::DiskImage;
use crate::disk::request::{Job, Request, Work};
use crate::disk::{DiskCommand, slow};
use crate::worker::Command;

/// What became of a step.
enum Step {
    /// There is more to do, or to note that there is not.
    Again(Box<Job>),
    /// Others are at it.
    Elsewhere,
    Failed(Box<Job>, io::Error),
}

/// A job of which so much was done.
fn advanced(mut job: Box<Job>, done: u64) -> Step {
    let Job { segments, request } = &mut *job;
    match request.work.progress(segments, done) {
        Ok(()) => Step::Again(job),
        Err(error) => Step::Failed(job, error),
    }
}

impl LiveDisk {
    /// Does what is left of a request until it has ended or others are at it.
    pub(super) fn go(&mut self, mut job: Box<Job>, tools: &mut Tools<'_>) -> Option<Ended> {
        loop {
            let Job { segments, request } = &mut *job;
            match &mut request.work {
                Work::Nothing => return Some((job, Ok(()))),
                Work::Transfer { access, stable, .. } if segments.is_empty() => {
                    // A file was told with each write; of an image more than the bytes counts.
                    let sync = *stable
                        && *access == Access::Write
                        && matches!(self.image, DiskImage::Image(_));
                    request.work = if sync { Work::Sync } else { Work::Nothing };
                    self.has_written(request);
                }
                Work::Clear { ranges, stable, .. } if ranges.is_empty() => {
                    request.work = if *stable { Work::Sync } else { Work::Nothing };
                }
                Work::Transfer { .. } => match self.transfer(job, tools) {
                    Step::Again(back) => job = back,
                    Step::Failed(job, error) => return Some((job, Err(error))),
                    Step::Elsewhere => return None,
                },
                // What is in memory only is as stable as it can be.
                Work::Sync if self.is_in_memory() => request.work = Work::Nothing,
                Work::Sync | Work::Clear { .. } if self.link.is_some() => match self.send(job) {
                    Step::Again(back) => job = back,
                    Step::Failed(job, error) => return Some((job, Err(error))),
                    Step::Elsewhere => return None,
                },
                Work::Sync => {
                    self.sync(job, tools);
                    return None;
                }
                Work::Clear { .. } => {
                    self.clear(job, tools);
                    return None;
                }
            }
        }
    }

    /// Goes on with a request of which a step was done by the ring or another thread.
    pub(super) fn go_on(
        &mut self,
        job: Box<Job>,
        result: io::Result<u64>,
        tools: &mut Tools<'_>,
    ) -> Option<Ended> {
        let step = match result {
            Ok(done) => advanced(job, done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Again(job),
            Err(error) => Step::Failed(job, error),
        };
        match step {
            Step::Again(job) => self.go(job, tools),
            Step::Failed(job, error) => Some((job, Err(error))),
            Step::Elsewhere => None,
        }
    }

    /// Moves bytes at once, or has them moved.
    fn transfer(&mut self, mut job: Box<Job>, tools: &mut Tools<'_>) -> Step {
        let Work::Transfer { access, offset, stable, tried } = &mut job.request.work else {
            return Step::Again(job);
        };
        let write = *access == Access::Write;
        let (file, at) = match &self.image {
            DiskImage::Store(_) => return self.send(job),
            DiskImage::File(file) => (Arc::clone(file), *offset),
            DiskImage::Image(image) => {
                let cleared = !self.clearings.0.is_empty() || self.clearings.1 > 0;
                let extent = image.direct(*offset, job.segments.len(), write);
                match extent.filter(|_| !cleared) {
                    Some(extent) => (extent.file, extent.offset),
                    None => return self.slow(job, tools),
                }
            }
        };
        let manner = self.manners.of(&file);
        if !slow::fits(manner, at, &job.segments) {
            let counters = self.disk.counters.get(usize::from(job.request.queue));
            // Once for a request, however many steps it takes.
            if let Some(counters) = counters.filter(|_| job.segments.len() == job.request.bytes) {
                counters.bounced.add(1);
            }
            return self.slow(job, tools);
        }
        let at_once = match manner {
            Manner::Inline => true,
            Manner::Cached => !write && !std::mem::replace(tried, true),
            Manner::Direct { .. } => false,
        };
        if at_once {
            let nowait = manner != Manner::Inline;
            let mapped = self.manners.mapped(&file);
            match mapped.and_then(|mapped| mapped.transfer(*access, at, &job.segments)) {
                Some(Ok(moved)) => return advanced(job, moved),
                Some(Err(error)) => return Step::Failed(job, error),
                None => {}
            }
            match job.segments.transfer(*access, file.as_fd(), at, nowait) {
                Ok(moved) => {
                    if let Some(mapped) = mapped {
                        mapped.learn(*access, at, moved);
                    }
                    return advanced(job, moved);
                }
                // It would have to be waited for, or cannot be asked like this.
                Err(_) if nowait => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Step::Failed(job, error),
            }
        }
        let operation = match write {
            true => Operation::Write { offset: at, stable: *stable },
            false => Operation::Read { offset: at },
        };
        let Some(ring) = &mut tools.ring else { return self.slow(job, tools) };
        if write && matches!(self.image, DiskImage::Image(_)) && !job.request.past_image {
            job.request.past_image = true;
            self.past_image += 1;
        }
        let Job { segments, request } = *job;
        match ring.push(operation, Transfer { segments, file, owner: request }) {
            Ok(()) => {
                self.in_ring += 1;
                Step::Elsewhere
            }
            Err(Transfer { segments, owner, .. }) => {
                self.slow(Box::new(Job { segments, request: owner }), tools)
            }
        }
    }

    fn is_in_memory(&mut self) -> bool {
        match &self.image {
            DiskImage::File(file) => self.manners.of(file) == Manner::Inline,
            DiskImage::Image(_) | DiskImage::Store(_) => false,
        }
    }

    /// Has the store do the next step.
    fn send(&mut self, job: Box<Job>) -> Step {
        let back = match &mut self.link {
            Some(link) => link.push(job),
            None => Some(job),
        };
        match back {
            None => Step::Elsewhere,
            Some(job) => Step::Failed(job, io::ErrorKind::NotConnected.into()),
        }
    }

    /// Has everything made stable.
    fn sync(&mut self, job: Box<Job>, tools: &mut Tools<'_>) {
        let (Some(ring), DiskImage::File(file)) = (&mut tools.ring, &self.image) else {
            self.slow(job, tools);
            return;
        };
        let Job { segments, request } = *job;
        let transfer = Transfer { segments, file: Arc::clone(file), owner: request };
        match ring.push(Operation::Sync, transfer) {
            Ok(()) => self.in_ring += 1,
            Err(Transfer { segments, owner, .. }) => {
                self.slow(Box::new(Job { segments, request: owner }), tools);
            }
        }
    }

    /// Has a range cleared; of an image only when nothing is written past it.
    fn clear(&mut self, job: Box<Job>, tools: &mut Tools<'_>) {
        if matches!(self.image, DiskImage::Image(_)) {
            self.clearings.0.push_back(job);
            self.clear_waiting(tools);
        } else {
            self.slow(job, tools);
        }
    }

    pub(super) fn clear_waiting(&mut self, tools: &mut Tools<'_>) {
        while self.past_image == 0
            && let Some(job) = self.clearings.0.pop_front()
        {
            self.clearings.1 += 1;
            self.slow(job, tools);
        }
    }

    /// Has another thread do the next step.
    fn slow(&mut self, job: Box<Job>, tools: &mut Tools<'_>) -> Step {
        if self.slow.1 >= self.image.depth() {
            self.slow.0.push_back(job);
            return Step::Elsewhere;
        }
        self.slow.1 += 1;
        let (disk, mailbox) = (Arc::clone(&self.disk), tools.mailbox.clone());
        let image = self.image.clone();
        tools.runtime.spawn_blocking(move || {
            let result = slow::step(&job, &image);
            // Who waits until nobody uses the image does not wait for this thread to end.
            drop(image);
            let done = DiskCommand::Slow(job, result);
            mailbox.post(Command::Disk(disk.id, done));
        });
        Step::Elsewhere
    }

    /// Another thread has done a step.
    pub(crate) fn slow_ended(
        &mut self,
        job: Box<Job>,
        result: io::Result<u64>,
        tools: &mut Tools<'_>,
    ) {
        self.slow.1 -= 1;
        if let Work::Clear { ranges, .. } = &job.request.work {
            match (&self.image, ranges.front()) {
                (DiskImage::File(file), Some(Range { sector, sectors, .. })) => {
                    let start = sector * SECTOR;
                    let bytes = start..start + u64::from(*sectors) * SECTOR;
                    self.manners.cleared(Some(file), bytes);
                }
                (DiskImage::Image(_), _) => {
                    self.manners.cleared(None, 0..u64::MAX);
                    self.clearings.1 -= 1;
                }
                _ => {}
            }
        }
        if let Some(waiting) = self.slow.0.pop_front() {
            self.slow(waiting, tools);
        }
        self.ended(job, result, tools);
    }

    /// Notes that a request writes past the image no longer.
    pub(super) fn has_written(&mut self, request: &mut Request) {
        if std::mem::take(&mut request.past_image) {
            self.past_image -= 1;
        }
    }
}
