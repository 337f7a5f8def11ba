//! An open image: what threads call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use remote::control::{ImageName, Transport};
use remote::{Buffers, MAX_CLEAR, MAX_DATA, Operation, Request, SECTOR, Status};

use crate::engine::{Engine, Shared};
use crate::link::Job;
use crate::pool::Slot;
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

/// Requests of one caller that move data and are under way, at most: as much as a store moves at once.
const WINDOW: usize = 4;

/// The end of a request that is under way.
type Ending = Receiver<Result<Option<Slot>, Error>>;

fn wait(ending: &Ending) -> Result<Option<Slot>, Error> {
    // Nobody is there to answer when the image was closed.
    ending.recv().unwrap_or(Err(Error::Closed))
}

fn request(operation: Operation, offset: u64, length: u64) -> Request {
    let (stable, handle, buffers) = (false, 0, Buffers::new());
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

    /// How it is reached at the moment, or was at last.
    pub fn transport(&self) -> Transport {
        *self.shared.transport.lock()
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
        let buffer = buffer.get_mut(..length).unwrap_or_default();
        self.moved(
            Operation::Read,
            (from, to),
            |_, _| {},
            |(at, length), slot| {
                // Bytes of the piece before those that are wanted, and where these go.
                let skip = offset.saturating_sub(at);
                let place = usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
                let mut data = slot.segments(length);
                data.advance(skip);
                data.copy_to(buffer.get_mut(place..).unwrap_or_default());
            },
        )?;
        Ok(length)
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
            let mut endings = Vec::new();
            for (at, length) in pieces(from, to, MAX_CLEAR) {
                endings.push(self.begin(request(Operation::WriteZeroes, at, length), None)?);
            }
            // The first error is that of all.
            return endings.iter().map(|one| wait(one).map(drop)).fold(Ok(()), Result::and);
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
        wait(&self.begin(request(Operation::Flush, 0, 0), None)?).map(drop)
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
        let fill = |(at, length): (u64, u64), slot: &Slot| {
            let part = data.get((at - offset) as usize..).unwrap_or_default();
            slot.segments(length).copy_from(part);
        };
        self.moved(Operation::Write, (offset, offset + data.len() as u64), fill, |_, _| {})
    }

    /// Moves the bytes of a range, some pieces at once: each is filled before, and looked at when it has
    /// been read. The first error is that of all, and what was begun has ended then.
    fn moved(
        &self,
        operation: Operation,
        (from, to): (u64, u64),
        fill: impl Fn((u64, u64), &Slot),
        mut look: impl FnMut((u64, u64), &Slot),
    ) -> Result<(), Error> {
        let mut under_way: VecDeque<((u64, u64), Ending)> = VecDeque::new();
        let mut done = Ok(());
        let mut first = |under_way: &mut VecDeque<((u64, u64), Ending)>,
                         done: &mut Result<(), Error>| {
            let Some((piece, ending)) = under_way.pop_front() else { return };
            match wait(&ending) {
                Ok(Some(slot)) => look(piece, &slot),
                Ok(None) => {}
                Err(error) if done.is_ok() => *done = Err(error),
                Err(_) => {}
            }
        };
        for piece in pieces(from, to, u64::from(MAX_DATA)) {
            if under_way.len() >= WINDOW {
                first(&mut under_way, &mut done);
            }
            let slot = loop {
                match self.shared.pool.take(under_way.is_empty()) {
                    Some(slot) => break slot,
                    // Who waits for memory keeps none.
                    None => first(&mut under_way, &mut done),
                }
            };
            if done.is_err() {
                break;
            }
            fill(piece, &slot);
            match self.begin(request(operation, piece.0, piece.1), Some(slot)) {
                Ok(ending) => under_way.push_back((piece, ending)),
                Err(error) => {
                    done = done.and(Err(error));
                    break;
                }
            }
        }
        while !under_way.is_empty() {
            first(&mut under_way, &mut done);
        }
        done
    }

    /// Asks for this, with the memory of its data.
    fn begin(&self, request: Request, slot: Option<Slot>) -> Result<Ending, Error> {
        let (done, ending) = sync_channel(1);
        self.shared.push(std::iter::once((request, Job { slot, done })))?;
        Ok(ending)
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
