//! Images made for tests: one that scatters its bytes, one that is told what to do.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use dataplane::{Extent, Image};

use crate::common::wait;
use crate::rig::{Files, Kind};

/// Bytes that an image keeps together.
pub(crate) const CLUSTER: u64 = 4096;

/// An image whose clusters get a place when they are first written, and lose it when they are
/// cleared: then another may get it at once.
pub(crate) struct Scatter {
    files: Files,
    map: Mutex<Map>,
    asked: AtomicU64,
    /// Transfers that went past the image, and those that did not.
    pub(crate) past: AtomicU64,
    pub(crate) through: AtomicU64,
}

struct Map {
    places: Vec<Option<u64>>,
    free: VecDeque<u64>,
}

impl Scatter {
    pub(crate) fn new(kind: Kind, size: u64) -> Scatter {
        let clusters = size.div_ceil(CLUSTER);
        // Some neighbours stay neighbours.
        let mut free: Vec<u64> = (0..clusters).collect();
        free.chunks_mut(3).for_each(<[u64]>::reverse);
        free.rotate_left(clusters as usize / 3);
        free.chunks_mut(24).for_each(<[u64]>::reverse);
        Scatter {
            files: Files::new(kind, clusters * CLUSTER),
            map: Mutex::new(Map { places: vec![None; clusters as usize], free: free.into() }),
            asked: AtomicU64::new(0),
            past: AtomicU64::new(0),
            through: AtomicU64::new(0),
        }
    }

    fn clear(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let mut map = self.map.lock().unwrap();
        for (cluster, skip, range) in parts(offset, len as usize) {
            let Some(place) = map.places[cluster] else { continue };
            if unmap && range.len() as u64 == CLUSTER {
                // Whoever still reads or writes there is found out.
                self.files.plain.write_all_at(&[0xdd; CLUSTER as usize], place * CLUSTER)?;
                map.places[cluster] = None;
                map.free.push_front(place);
            } else {
                self.files.plain.write_all_at(&vec![0; range.len()], place * CLUSTER + skip)?;
            }
        }
        Ok(())
    }
}

/// What a range has of each cluster: its number, where in it, and which bytes of the range.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, u64, std::ops::Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let position = offset + at as u64;
        let skip = position % CLUSTER;
        let count = (len - at).min((CLUSTER - skip) as usize);
        let range = at..at + count;
        at += count;
        (count > 0).then_some(((position / CLUSTER) as usize, skip, range))
    })
}

impl Image for Scatter {
    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.through.fetch_add(1, SeqCst);
        let map = self.map.lock().unwrap();
        for (cluster, skip, range) in parts(offset, to.len()) {
            match map.places[cluster] {
                Some(place) => {
                    self.files.plain.read_exact_at(&mut to[range], place * CLUSTER + skip)?;
                }
                None => to[range].fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.through.fetch_add(1, SeqCst);
        let mut map = self.map.lock().unwrap();
        for (cluster, skip, range) in parts(offset, from.len()) {
            let place = match map.places[cluster] {
                Some(place) => place,
                None => {
                    let place = map.free.pop_front().expect("as many places as clusters");
                    self.files.plain.write_all_at(&[0; CLUSTER as usize], place * CLUSTER)?;
                    place
                }
            };
            self.files.plain.write_all_at(&from[range], place * CLUSTER + skip)?;
            map.places[cluster] = Some(place);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.files.plain.sync_data()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.clear(offset, len, true)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.clear(offset, len, unmap)
    }

    fn direct(&self, offset: u64, len: u64, _write: bool) -> Option<Extent> {
        // Now and then it does not know.
        if self.asked.fetch_add(1, SeqCst) % 5 == 4 {
            return None;
        }
        let map = self.map.lock().unwrap();
        let mut start = None;
        for (n, (cluster, skip, _)) in (0..).zip(parts(offset, len as usize)) {
            let place = map.places[cluster]?;
            let (first, _) = *start.get_or_insert((place, skip));
            if place != first + n {
                return None;
            }
        }
        let (place, skip) = start?;
        self.past.fetch_add(1, SeqCst);
        Some(Extent { file: Arc::clone(&self.files.file), offset: place * CLUSTER + skip })
    }
}

impl fmt::Debug for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scatter")
    }
}

/// What an image was asked to do: position and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Read(u64, u64),
    Write(u64, u64),
    Flush,
    Discard(u64, u64),
    WriteZeroes(u64, u64, bool),
}

/// What happens when it is, before it is done.
type Hook = Box<dyn Fn(Call) -> io::Result<()> + Send + Sync>;

/// An image in memory that notes what it is asked to do, and in which a test has its say.
pub(crate) struct Stage {
    bytes: Mutex<Vec<u8>>,
    log: Mutex<Vec<Call>>,
    hook: Mutex<Arc<Hook>>,
    /// Where these bytes are said to be: of reads and of writes.
    extents: Mutex<Vec<(u64, bool, Extent)>>,
}

impl Stage {
    pub(crate) fn new(size: u64) -> Arc<Stage> {
        let nothing: Hook = Box::new(|_| Ok(()));
        Arc::new(Stage {
            bytes: Mutex::new(vec![0; size as usize]),
            log: Mutex::default(),
            hook: Mutex::new(Arc::new(nothing)),
            extents: Mutex::default(),
        })
    }

    /// Calls this at every call from now on.
    pub(crate) fn hook(&self, hook: impl Fn(Call) -> io::Result<()> + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Arc::new(Box::new(hook));
    }

    /// Has what begins at `offset` read from, or written to, this file, past the image.
    pub(crate) fn send(&self, offset: u64, write: bool, file: &Arc<File>) {
        let extent = Extent { file: Arc::clone(file), offset: 0 };
        self.extents.lock().unwrap().push((offset, write, extent));
    }

    /// What has been done.
    pub(crate) fn log(&self) -> Vec<Call> {
        self.log.lock().unwrap().clone()
    }

    fn call(&self, call: Call, act: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let hook = Arc::clone(&self.hook.lock().unwrap());
        hook(call)?;
        act(&mut self.bytes.lock().unwrap());
        self.log.lock().unwrap().push(call);
        Ok(())
    }
}

fn range(offset: u64, len: u64) -> std::ops::Range<usize> {
    offset as usize..(offset + len) as usize
}

impl Image for Stage {
    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let len = to.len() as u64;
        self.call(Call::Read(offset, len), |all| to.copy_from_slice(&all[range(offset, len)]))
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let len = from.len() as u64;
        self.call(Call::Write(offset, len), |all| all[range(offset, len)].copy_from_slice(from))
    }

    fn flush(&self) -> io::Result<()> {
        self.call(Call::Flush, |_| {})
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call(Call::Discard(offset, len), |all| all[range(offset, len)].fill(0))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let call = Call::WriteZeroes(offset, len, unmap);
        self.call(call, |all| all[range(offset, len)].fill(0))
    }

    fn direct(&self, offset: u64, _len: u64, write: bool) -> Option<Extent> {
        let extents = self.extents.lock().unwrap();
        let found = extents.iter().find(|(at, of, _)| (*at, *of) == (offset, write));
        found.map(|(_, _, extent)| extent.clone())
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stage")
    }
}

/// Where threads wait until a test lets them go on.
#[derive(Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    arrived: AtomicUsize,
}

impl Gate {
    pub(crate) fn new() -> Arc<Gate> {
        Arc::default()
    }

    pub(crate) fn pass(&self) {
        self.arrived.fetch_add(1, SeqCst);
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }

    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Waits until so many have come.
    pub(crate) fn wait_for(&self, count: usize) {
        let arrived = || self.arrived.load(SeqCst);
        wait(|| format!("{count} at the gate, {} are", arrived()), || arrived() >= count);
    }
}

/// A file from which a read, by the ring, takes as long as a test wants.
pub(crate) struct SlowRead {
    pub(crate) file: Arc<File>,
    feed: File,
}

impl SlowRead {
    pub(crate) fn new() -> SlowRead {
        let (read, write) = std::io::pipe().unwrap();
        let file = |fd: std::os::fd::OwnedFd| File::from(fd);
        SlowRead { file: Arc::new(file(read.into())), feed: file(write.into()) }
    }

    /// Lets reads have these bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.feed.write_all(bytes).unwrap();
    }
}

/// A file to which a write, by the ring, takes as long as a test wants.
pub(crate) struct SlowWrite {
    pub(crate) file: Arc<File>,
    drain: File,
    full: usize,
}

impl SlowWrite {
    pub(crate) fn new() -> SlowWrite {
        let (read, write) = std::io::pipe().unwrap();
        let full = rustix::pipe::fcntl_getpipe_size(&write).unwrap();
        let mut file = File::from(std::os::fd::OwnedFd::from(write));
        file.write_all(&vec![0; full]).unwrap();
        let drain = File::from(std::os::fd::OwnedFd::from(read));
        SlowWrite { file: Arc::new(file), drain, full }
    }

    /// Lets writes go on; the next so many bytes of them.
    pub(crate) fn drain(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; self.full + bytes];
        io::Read::read_exact(&mut self.drain, &mut all).unwrap();
        all.split_off(self.full)
    }
}
