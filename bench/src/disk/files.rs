//! Requests to a file of a mounted file system, as many at once as a cell says, each by a thread that
//! waits for it.
//!
//! Those at random are made with O_DIRECT: each is one of the file system's. Those one after the other are
//! made as dd makes them: the kernel reads ahead, and what it has cached is forgotten before each window.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, OFlags, fadvise};
use sys::clock::{ticks, ticks_per_second};

use super::cell::Job;
use super::load::{Latencies, LoadError, Random};
use super::window::{LENGTH, SETTLE};
use crate::window::RoundTrips;

/// What O_DIRECT asks of buffers.
const ALIGN: usize = 4096;

/// How long a server may take to give a file its name.
const RENAMED: Duration = Duration::from_secs(10);

/// What threads are to do.
const SETTLING: u8 = 0;
const COUNTED: u8 = 1;
const OVER: u8 = 2;

/// A file that is read or written.
pub struct FileLoad<'a> {
    path: &'a Path,
    job: Job,
    blocks: u64,
    /// Where it goes on, if it is one after the other.
    next: AtomicU64,
}

/// What a window came to.
pub(super) struct Done {
    pub(super) requests: u64,
    pub(super) seconds: f64,
    pub(super) latency: Option<RoundTrips>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> LoadError {
    move |source| LoadError::Io { what, source }
}

impl<'a> FileLoad<'a> {
    /// Requests of a job to the first `size` bytes of a file, none of them counted yet.
    ///
    /// # Errors
    /// It is smaller than one request, or cannot be read.
    pub fn new(path: &'a Path, job: Job, size: u64) -> Result<FileLoad<'a>, LoadError> {
        let blocks = size / u64::from(job.block.max(1));
        if blocks == 0 {
            return Err(LoadError::Size(size));
        }
        let load = FileLoad { path, job, blocks, next: AtomicU64::new(0) };
        // Whatever serves it may start a process for that: from now on it is known.
        let file = File::open(path).map_err(failed("the file"))?;
        file.read_exact_at(&mut [0], 0).map_err(failed("a read of the file"))?;
        Ok(load)
    }

    /// Makes requests for a window; `begin` and `end` are called when those begin and end that count.
    pub(super) fn window<T>(
        &self,
        begin: impl FnOnce() -> T,
        end: impl FnOnce(T),
    ) -> Result<Done, LoadError> {
        let state = AtomicU8::new(SETTLING);
        let file = self.open()?;
        let (latencies, seconds) = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.job.depth.max(1))
                .map(|number| {
                    let (file, state) = (&file, &state);
                    scope.spawn(move || self.work(file, number, state))
                })
                .collect();
            thread::sleep(SETTLE);
            let (start, before) = (Instant::now(), begin());
            state.store(COUNTED, Relaxed);
            thread::sleep(LENGTH);
            state.store(OVER, Relaxed);
            let seconds = start.elapsed().as_secs_f64();
            end(before);
            let mut all = Latencies::new()?;
            for thread in threads {
                match thread.join() {
                    Ok(found) => all.add(&found?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok::<_, LoadError>((all, seconds))
        })?;
        let latency = latencies.summary();
        let requests = latency.map_or(0, |found| found.n as u64);
        Ok(Done { requests, seconds, latency })
    }

    fn open(&self) -> Result<File, LoadError> {
        let mut how = File::options();
        how.read(true).write(self.job.access.writes());
        if self.job.access.random() {
            how.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        let file = how.open(self.path).map_err(failed("the file"))?;
        if !self.job.access.random() {
            let forgotten = fadvise(&file, 0, None, Advice::DontNeed);
            forgotten.map_err(|error| failed("what is cached of the file")(error.into()))?;
        }
        Ok(file)
    }

    /// What a thread does; how long each request took that counts.
    fn work(&self, file: &File, number: u16, state: &AtomicU8) -> Result<Latencies, LoadError> {
        let nanos = 1e9 / ticks_per_second();
        let mut latencies = Latencies::new()?;
        let mut random = Random::new(u64::from(number) ^ self.next.load(Relaxed));
        let length = self.job.block as usize;
        let mut memory = vec![0; length + ALIGN];
        let skip = memory.as_ptr().align_offset(ALIGN);
        let buffer = memory.get_mut(skip..skip + length).unwrap_or_default();
        random.fill(buffer);
        loop {
            let block = match self.job.access.random() {
                true => random.number() % self.blocks,
                false => self.next.fetch_add(1, Relaxed) % self.blocks,
            };
            let offset = block * u64::from(self.job.block);
            let begun = ticks();
            if self.job.access.writes() {
                file.write_all_at(buffer, offset).map_err(failed("a write to the file"))?;
            } else {
                file.read_exact_at(buffer, offset).map_err(failed("a read of the file"))?;
            }
            match state.load(Relaxed) {
                SETTLING => {}
                COUNTED => latencies.record(((ticks() - begun) as f64 * nanos) as u64),
                _ => return Ok(latencies),
            }
        }
    }
}

/// Writes to the beginning of a file of a mount, and compares with the file behind it, which nobody but its
/// server touches.
///
/// # Errors
/// What is there is not what was written.
pub(super) fn check(
    path: &Path,
    behind: impl Fn() -> Option<PathBuf>,
    size: u64,
) -> Result<(), LoadError> {
    let mut data = vec![0; size as usize];
    Random::new(size).fill(&mut data);
    let file = File::options().read(true).write(true).open(path).map_err(failed("the file"))?;
    file.write_all_at(&data, 0).map_err(failed("a write to the file"))?;
    file.sync_all().map_err(failed("the file"))?;
    drop(file);
    let mut read = vec![0; data.len()];
    let mounted = File::open(path).map_err(failed("the file"))?;
    for (what, file) in [("mounted file", mounted), ("file", open_behind(behind)?)] {
        file.read_exact_at(&mut read, 0).map_err(failed("the file"))?;
        if let Some(at) = data.iter().zip(&read).position(|(wrote, there)| wrote != there) {
            return Err(LoadError::Data { what, offset: at as u64 });
        }
    }
    Ok(())
}

/// Opens the file behind a mount or disk, which its server may be giving another name.
fn open_behind(behind: impl Fn() -> Option<PathBuf>) -> Result<File, LoadError> {
    let begin = Instant::now();
    loop {
        let none = || io::Error::from(io::ErrorKind::NotFound);
        match behind().ok_or_else(none).and_then(File::open) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && begin.elapsed() < RENAMED => {
                thread::sleep(Duration::from_millis(100));
            }
            opened => return opened.map_err(failed("the file behind")),
        }
    }
}

/// Has the page cache forget a file: what reads it next waits for the device.
///
/// # Errors
/// It cannot be opened, or written back.
pub(super) fn forget(behind: impl Fn() -> Option<PathBuf>) -> Result<(), LoadError> {
    let file = open_behind(behind)?;
    file.sync_all().map_err(failed("the image"))?;
    let forgotten = fadvise(&file, 0, None, Advice::DontNeed);
    forgotten.map_err(|error| failed("the image's page cache")(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Access;

    #[test]
    fn every_thread_makes_progress_and_the_file_is_found() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        check(&path, || Some(path.clone()), 4096).unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, vec![0; 1 << 20]).unwrap();
        let wrong = check(&path, || Some(other.clone()), 4096).unwrap_err();
        assert!(matches!(wrong, LoadError::Data { what: "file", .. }), "{wrong}");
        for access in [Access::Read, Access::Write] {
            let job = Job { access, block: 4096, depth: 4, jobs: 1 };
            let load = FileLoad::new(&path, job, 1 << 20).unwrap();
            let done = load.window(|| 7, |begun| assert_eq!(begun, 7)).unwrap();
            assert!(done.requests > 100 && done.seconds >= LENGTH.as_secs_f64());
            assert!(done.latency.unwrap().p50 > 0.0);
        }
        forget(|| Some(path.clone())).unwrap();
        let none = Job { access: Access::Read, block: 4096, depth: 1, jobs: 1 };
        assert!(FileLoad::new(&path, none, 100).is_err());
    }
}
