//! An open image: what threads call.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use remote::control::ImageName;
use remote::{MAX_CLEAR, MAX_DATA, Operation, Request, SECTOR, Status};

use crate::engine::{Engine, Job, Shared};
use crate::ranges::Ranges;
use crate::{Error, Known};

/// An image of a store, open on a connection of its own. It is closed when this is dropped, and then
/// others can open it.
#[derive(Debug)]
pub struct RemoteImage {
    name: ImageName,
    known: Arc<Known>,
    shared: Arc<Shared>,
    ranges: Ranges,
    /// One at a time asks to write.
    upgrading: Mutex<()>,
    thread: Option<JoinHandle<()>>,
}

/// The end of a request that is under way.
type Ending = Receiver<Result<Vec<u8>, Error>>;

fn wait(ending: &Ending) -> Result<Vec<u8>, Error> {
    // Nobody is there to answer when the image was closed.
    ending.recv().unwrap_or(Err(Error::Closed))
}

/// Waits for all, in their order. The first error is that of all.
fn wait_all(endings: &[Ending]) -> Result<(), Error> {
    endings.iter().map(|ending| wait(ending).map(drop)).fold(Ok(()), Result::and)
}

fn request(operation: Operation, offset: u64, length: u64) -> Request {
    let (stable, handle, buffers) = (false, 0, Vec::new());
    let unmap = operation == Operation::WriteZeroes;
    Request { operation, stable, unmap, handle, offset, length, buffers }
}

/// A range in pieces of at most so many bytes: where each begins, and its length.
fn pieces(from: u64, to: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = std::iter::successors(Some(from), move |at| at.checked_add(most));
    starts.take_while(move |at| *at < to).map(move |at| (at, most.min(to - at)))
}

/// The whole sectors around some bytes; `None`: there are no such bytes.
fn around(offset: u64, length: usize) -> Option<(u64, u64)> {
    let end = offset.checked_add(length as u64)?.checked_next_multiple_of(SECTOR)?;
    Some((offset - offset % SECTOR, end))
}

impl RemoteImage {
    pub(crate) fn open(
        known: &Arc<Known>,
        name: &ImageName,
        write: bool,
    ) -> Result<RemoteImage, Error> {
        let shared = Arc::new(Shared::new()?);
        let (once, own) = (Arc::clone(known), Arc::clone(&shared));
        if !known.open.lock().insert(name.clone()) {
            return Err(Error::Open(name.clone()));
        }
        // From here on its end lets others open it.
        let mut image = RemoteImage {
            name: name.clone(),
            known: Arc::clone(known),
            shared,
            ranges: Ranges::default(),
            upgrading: Mutex::default(),
            thread: None,
        };
        let mut engine = Engine::new(own, once, name.clone(), write);
        engine.open()?;
        let thread = thread::Builder::new().name(format!("store {name}"));
        image.thread = Some(thread.spawn(move || engine.run()).map_err(Error::System)?);
        Ok(image)
    }

    /// Its name in the store.
    pub fn name(&self) -> &ImageName {
        &self.name
    }

    /// Bytes, a multiple of 512. It can change while the image is open.
    pub fn size(&self) -> u64 {
        self.shared.size.load(Relaxed)
    }

    /// Whether it is open for writing.
    pub fn is_writable(&self) -> bool {
        self.shared.writable.load(Relaxed)
    }

    /// Connections so far: one, and one more each time one was lost.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Relaxed)
    }

    /// Opens it for writing too, if it is not. Reads that are under way go on.
    ///
    /// # Errors
    /// As for opening an image. It goes on being open for reading, unless somebody else takes it for
    /// writing in that moment: then reads wait for him.
    pub fn make_writable(&self) -> Result<(), Error> {
        let _alone = self.upgrading.lock();
        if self.is_writable() {
            return Ok(());
        }
        let (done, ending) = sync_channel(1);
        self.shared.upgrade(done)?;
        ending.recv().unwrap_or(Err(Error::Closed))
    }

    /// Reads what is at `offset` in bytes. Returns how many bytes that was: fewer than were asked for
    /// at the end of the image only.
    ///
    /// # Errors
    /// The store could not, or is away for too long; the image was closed.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Error> {
        let left = self.size().saturating_sub(offset);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let (Some((from, to)), 1..) = (around(offset, length), length) else { return Ok(0) };
        let most = u64::from(MAX_DATA);
        let requests = pieces(from, to, most)
            .map(|(at, length)| (request(Operation::Read, at, length), None))
            .collect();
        let endings = self.begin(requests)?;
        let mut filled = 0;
        for (ending, (at, _)) in endings.iter().zip(pieces(from, to, most)) {
            let data = wait(ending)?;
            let skip = usize::try_from(offset.saturating_sub(at)).unwrap_or(usize::MAX);
            let data = data.get(skip..).unwrap_or_default();
            let room = buffer.get_mut(filled..length).unwrap_or_default();
            for (to, from) in room.iter_mut().zip(data) {
                *to = *from;
            }
            filled += room.len().min(data.len());
        }
        Ok(filled)
    }

    /// Writes all these bytes to `offset` in bytes. They are on stable storage after a
    /// [flush](RemoteImage::flush).
    ///
    /// # Errors
    /// It would be written behind its end, or is open for reading only; the store could not, has no
    /// space, or is away for too long; the image was closed. What was written then is unknown.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Error> {
        let Some((from, to)) = self.writable(offset, data.len() as u64)? else { return Ok(()) };
        let _held = self.ranges.hold(from..to);
        let end = offset + data.len() as u64;
        if (from, to) == (offset, end) {
            return self.write_sectors(data, from);
        }
        let mut whole = vec![0; usize::try_from(to - from).map_err(|_| out_of_range())?];
        let last = to - SECTOR;
        // Of the sectors in which something stays, the first is the last one too in a short write.
        let edges = [(from < offset, from), (end < to && (last > from || from == offset), last)];
        for (_, at) in edges.into_iter().filter(|(stays, _)| *stays) {
            let sector = whole.get_mut((at - from) as usize..).unwrap_or_default();
            let sector = sector.get_mut(..SECTOR as usize).unwrap_or_default();
            if self.read_at(sector, at)? != sector.len() {
                return Err(out_of_range());
            }
        }
        let middle = whole.get_mut((offset - from) as usize..).unwrap_or_default();
        middle.get_mut(..data.len()).unwrap_or_default().copy_from_slice(data);
        self.write_sectors(&whole, from)
    }

    /// Has `length` bytes from `offset` on read as zeroes, and gives their space back if the store
    /// can.
    ///
    /// # Errors
    /// As for [writing](RemoteImage::write_at).
    pub fn clear(&self, offset: u64, length: u64) -> Result<(), Error> {
        let Some((from, to)) = self.writable(offset, length)? else { return Ok(()) };
        let end = offset + length;
        let (inner, outer) = (offset.next_multiple_of(SECTOR), end - end % SECTOR);
        if (from, to) == (offset, end) {
            let _held = self.ranges.hold(from..to);
            let requests = pieces(from, to, MAX_CLEAR)
                .map(|(at, length)| (request(Operation::WriteZeroes, at, length), None))
                .collect();
            return wait_all(&self.begin(requests)?);
        }
        let zeroes = [0; SECTOR as usize];
        let zero = |from: u64, to: u64| {
            self.write_at(zeroes.get(..(to - from) as usize).unwrap_or_default(), from)
        };
        if inner > outer {
            // All of it is in one sector.
            return zero(offset, end);
        }
        zero(offset, inner)?;
        self.clear(inner, outer - inner)?;
        zero(outer, end)
    }

    /// Brings everything that was written before to stable storage.
    ///
    /// # Errors
    /// It is not there: the store could not, or its machine has started anew since; it is away for
    /// too long; the image was closed.
    pub fn flush(&self) -> Result<(), Error> {
        wait_all(&self.begin(vec![(request(Operation::Flush, 0, 0), None)])?)
    }

    /// Ends everything that is under way with [`Error::Closed`], and what comes later too.
    pub fn close(&self) {
        self.shared.close();
    }

    /// The sectors that a change touches; `None`: none.
    fn writable(&self, offset: u64, length: u64) -> Result<Option<(u64, u64)>, Error> {
        if offset.checked_add(length).is_none_or(|end| end > self.size()) {
            return Err(out_of_range());
        }
        if length == 0 {
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(|_| out_of_range())?;
        around(offset, length).map(Some).ok_or_else(out_of_range)
    }

    fn write_sectors(&self, data: &[u8], offset: u64) -> Result<(), Error> {
        let parts = data.chunks(MAX_DATA as usize).zip((offset..).step_by(MAX_DATA as usize));
        let requests = parts.map(|(part, at)| {
            (request(Operation::Write, at, part.len() as u64), Some(Arc::from(part)))
        });
        wait_all(&self.begin(requests.collect())?)
    }

    /// Asks for all of these, with the bytes of writes.
    fn begin(&self, requests: Vec<(Request, Option<Arc<[u8]>>)>) -> Result<Vec<Ending>, Error> {
        let mut endings = Vec::with_capacity(requests.len());
        let jobs = requests.into_iter().map(|(request, data)| {
            let (done, ending) = sync_channel(1);
            endings.push(ending);
            (request, Job { data, done })
        });
        self.shared.push(jobs)?;
        Ok(endings)
    }
}

fn out_of_range() -> Error {
    Error::Failed(Status::OutOfRange)
}

impl Drop for RemoteImage {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(image = %self.name, "the thread of its connection failed");
        }
        self.known.open.lock().remove(&self.name);
    }
}
