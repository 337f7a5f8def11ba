//! A qcow2 image that is open, through imago, and the way past it.
//!
//! **Two ways.** The slow way is imago's: calls that block, for a pool of threads. Each that ends
//! has handed its tables to the kernel, so that what was answered is there when the process dies;
//! [`Qcow2::flush`] makes it last when the host dies. The fast way is [`Qcow2::direct`]: where bytes
//! are, if they are in one piece and in a place that does not change, from [`map`].
//!
//! **Threads.** Any number at once. imago takes reads and writes of any ranges side by side, and
//! keeps its tables whole. It does not take those that give clusters away beside them, so discards,
//! zeroes and resizes exclude everything else here for as long as they take.
//!
//! **Tables.** imago writes refcounts before the tables that rely on them, but does not wait for the
//! disk in between. A process that dies leaves clusters that nothing refers to, at worst. A host that
//! dies may leave references without refcounts: the catalog checks an image that was open for
//! writing then, before it opens it again.

mod check;
mod header;
mod map;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use imago::format::PreallocateMode;
use imago::{FormatAccess, Mapping};
use parking_lot::RwLock;
use rustix::fs::{FallocateFlags, fallocate};

pub use check::Report;
pub(crate) use check::check;
pub(crate) use header::{Backing, Header, HeaderError};
use map::{Map, Place, clusters};

use crate::image::Hold;
use crate::{Alignment, StoreError};

/// What imago may write as a whole, past the page cache, in bytes: it asks for no less of memory.
const BLOCK: u64 = 4096;

/// imago's storage object for all files of a chain.
pub(crate) type Storage = imago::file::File;

/// Bytes of a disk in one piece of a file of its chain.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The file, locked. Requests to it are aligned as [`Qcow2::alignment`] says.
    pub file: Arc<File>,
    /// Where the bytes begin.
    pub offset: u64,
}

/// A qcow2 image that is open.
#[derive(Debug)]
pub struct Qcow2 {
    /// Shared: who reads and writes. Exclusive: who takes clusters away.
    access: RwLock<FormatAccess<Storage>>,
    /// The files of the chain, this image's own first.
    files: Vec<Arc<File>>,
    map: Map,
    /// Slow writes whose tables the kernel may not have yet.
    unsettled: AtomicUsize,
    cluster_bits: u32,
    size: AtomicU64,
    /// Bytes of the image behind this one; 0 if there is none.
    backing_size: u64,
    alignment: Alignment,
    /// `None` if this image is read-only.
    hold: Option<Hold>,
}

/// What [`Qcow2`] is made of.
pub(crate) struct Parts {
    pub(crate) access: FormatAccess<Storage>,
    pub(crate) files: Vec<Arc<File>>,
    pub(crate) cluster_bits: u32,
    pub(crate) backing_size: u64,
    pub(crate) alignment: Alignment,
    pub(crate) hold: Option<Hold>,
}

impl Qcow2 {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { access, files, cluster_bits, backing_size, alignment, hold } = parts;
        let size = access.size();
        let map = Map::new(cluster_bits, size);
        let (access, size) = (RwLock::new(access), AtomicU64::new(size));
        let unsettled = AtomicUsize::new(0);
        Self { access, files, map, unsettled, cluster_bits, size, backing_size, alignment, hold }
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Whether it was opened for reading only.
    pub fn read_only(&self) -> bool {
        self.hold.is_none()
    }

    /// What requests to the file of an [`Extent`] must be aligned to, and what requests here should.
    ///
    /// Two writers of one aligned block need an order from the caller: a disk that presents blocks of
    /// at least this size has none such.
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Where the `len` bytes at `offset` are, if all of them are in one piece of plain data.
    ///
    /// For `write` only what may be written in place, in this image's own file. An answer is right
    /// until the next [`discard`](Self::discard), [`write_zeroes`](Self::write_zeroes) or
    /// [`resize`](Self::resize) of the same bytes, and for reading also until the next
    /// [`write`](Self::write) to them: requests in flight at the same time have no order. **The caller
    /// sees to it that no direct write is in flight while one of the first three runs**; a direct read
    /// beside them may see other bytes of this disk.
    ///
    /// Never waits and does no I/O. `None` says only that the slow way must be taken, which teaches
    /// this one.
    pub fn direct(&self, offset: u64, len: u64, write: bool) -> Option<Extent> {
        let inside = offset.checked_add(len)? <= self.size();
        let place = inside.then(|| self.map.find(offset, len)).flatten()?;
        let file = self.files.get(place.layer)?;
        let allowed = !write || (place.writable && place.layer == 0 && self.hold.is_some());
        allowed.then(|| Extent { file: Arc::clone(file), offset: place.offset })
    }

    /// Reads `data.len()` bytes at `offset`.
    ///
    /// # Errors
    /// `InvalidInput` if they are not inside the disk; what the host says.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let len = data.len() as u64;
        self.inside(offset, len)?;
        let access = self.access.read();
        access.read(data, offset)?;
        // What cannot be found out now is no error of this read.
        let _ = self.learn(&access, offset, len);
        Ok(())
    }

    /// Writes `data` at `offset`. Afterwards the death of this process does not undo it.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes are not inside the disk, `ReadOnlyFilesystem` if it is read-only;
    /// what the host says. The bytes may be written in part then.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = data.len() as u64;
        self.writable()?;
        self.inside(offset, len)?;
        if self.alignment == Alignment::NONE || (offset | len).is_multiple_of(BLOCK) {
            return self.write_blocks(&self.access.read(), offset, data);
        }
        // Past the page cache imago writes whole blocks: it reads what is around these bytes, and
        // writes it back. A direct write beside them would be undone. So clusters that may be
        // written directly are written here in the same way, and others alone: nobody can put them
        // into the map meanwhile.
        let access = self.access.read();
        if self.write_known(offset, data)? {
            return Ok(());
        }
        drop(access);
        let access = self.access.write();
        let clusters = clusters(offset, len, self.cluster_bits);
        let (mut at, mut rest) = (offset, data);
        for cluster in clusters {
            let end = ((cluster + 1) << self.cluster_bits).min(offset + len);
            let (part, more) = rest.split_at((end - at) as usize);
            if !self.write_known(at, part)? {
                self.map.forget(at, part.len() as u64);
                self.write_blocks(&access, at, part)?;
            }
            (at, rest) = (end, more);
        }
        Ok(())
    }

    /// Writes where a direct write would go. `false`: nothing is written, for that is not known, or
    /// the bytes are not aligned.
    fn write_known(&self, offset: u64, data: &[u8]) -> io::Result<bool> {
        let len = data.len() as u64;
        let Alignment { memory, offset: align } = self.alignment;
        let aligned = (offset | len).is_multiple_of(align.into())
            && data.as_ptr().addr().is_multiple_of(memory as usize);
        match self.direct(offset, len, true).filter(|_| aligned) {
            Some(Extent { file, offset }) => file.write_all_at(data, offset).map(|()| true),
            None => Ok(false),
        }
    }

    fn write_blocks(
        &self,
        access: &FormatAccess<Storage>,
        offset: u64,
        data: &[u8],
    ) -> io::Result<()> {
        let len = data.len() as u64;
        let in_place = self.map.find(offset, len).is_some_and(|place| place.writable);
        if in_place {
            return access.write(data, offset);
        }
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let done = access.write(data, offset).and_then(|()| access.flush());
        let own = |place: Option<Place>| place.filter(|p| p.writable && done.is_ok());
        let found = self.locate(access, offset, len, |cluster, place| {
            self.map.put(cluster, own(place));
        });
        if found.is_err() {
            clusters(offset, len, self.cluster_bits).for_each(|c| self.map.put(c, None));
        }
        self.unsettled.fetch_sub(1, Ordering::Release);
        done
    }

    /// Everything answered before, direct writes included, lasts from now on.
    ///
    /// # Errors
    /// What the host says. Then nothing is known about what was written since the last flush.
    pub fn flush(&self) -> io::Result<()> {
        if self.read_only() {
            return Ok(());
        }
        self.access.read().flush()?;
        self.own_file()?.sync_data()
    }

    /// The `len` bytes at `offset` are not needed any more; what they read as is not said.
    ///
    /// Gives the space of whole clusters back. Waits for all other slow calls.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.take_away(offset, len, |access, run, own, offset, len| match run {
            // What this image does not hold takes no space in it.
            Run::Data if own => access.discard_to_any(offset, len).map(|()| true),
            _ => Ok(false),
        })
    }

    /// The `len` bytes at `offset` read as zeroes from now on; their space is given back if
    /// `may_unmap`, that of whole clusters.
    ///
    /// Waits for all other slow calls.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()> {
        self.take_away(offset, len, |access, run, _, offset, len| match run {
            Run::Zero => Ok(false),
            // imago 0.2.6 takes a cluster off what is less than one, and would zero everything.
            Run::Data if access.size() < 1 << self.cluster_bits => {
                access.write(vec![0; len as usize].as_slice(), offset).map(|()| false)
            }
            Run::Data if may_unmap => access.discard_to_zero(offset, len).map(|()| true),
            Run::Data => access.write_zeroes(offset, len).map(|()| false),
        })
    }

    /// Makes the disk `new` bytes long. What is added reads as zeroes.
    ///
    /// Waits for all other slow calls.
    ///
    /// # Errors
    /// [`StoreError::BadSize`], [`StoreError::Io`]; the size is then what [`size`](Self::size) says.
    pub fn resize(&self, new: u64) -> Result<(), StoreError> {
        let Some(hold) = &self.hold else {
            let source = io::ErrorKind::ReadOnlyFilesystem.into();
            return Err(StoreError::Io { what: "cannot resize".into(), source });
        };
        let mut access = self.access.write();
        hold.resize(self.size(), new, || {
            self.map.resize(0);
            let done = self.change_size(&mut access, new);
            self.size.store(access.size(), Ordering::Release);
            self.map.resize(access.size());
            done
        })
    }

    fn change_size(&self, access: &mut FormatAccess<Storage>, new: u64) -> io::Result<()> {
        let old = access.size();
        if new < old {
            // What a later growth brings back must be zero, and only whole clusters are given up.
            let cluster_end = new.next_multiple_of(1 << self.cluster_bits).min(old);
            access.write_zeroes(new, cluster_end - new)?;
            access.flush()?;
            access.resize_shrink(new)?;
        } else {
            // So must what the image behind this one has there.
            let covered = new.min(self.backing_size);
            if covered > old {
                access.resize_grow(covered, PreallocateMode::Zero)?;
            }
            access.resize_grow(new, PreallocateMode::None)?;
        }
        access.flush()?;
        self.own_file()?.sync_data()
    }

    /// Calls `each` for every run of the range that is data or zeroes as a whole, alone. It says
    /// whether the run is not needed any more.
    fn take_away(
        &self,
        mut offset: u64,
        len: u64,
        each: impl Fn(&mut FormatAccess<Storage>, Run, bool, u64, u64) -> io::Result<bool>,
    ) -> io::Result<()> {
        self.writable()?;
        self.inside(offset, len)?;
        let mut access = self.access.write();
        self.map.forget(offset, len);
        let end = offset + len;
        while offset < end {
            let (run, own, len) = run(&access, offset, end - offset)?;
            let place = if own { place(&access, offset)? } else { None };
            if each(&mut access, run, own, offset, len)?
                && let Some(place) = place
            {
                self.punch(&access, offset, len, place)?;
            }
            offset += len;
        }
        access.flush()
    }

    /// Gives the host the space of the whole clusters among `len` bytes at `offset`, which were at
    /// `place` of this image's own file and are zeroes now. imago only notes that they are free.
    ///
    /// Nobody gets these clusters before: that takes the lock of the caller. If the host dies before
    /// the tables are on the disk, they lead to zeroes still.
    fn punch(
        &self,
        access: &FormatAccess<Storage>,
        offset: u64,
        len: u64,
        place: u64,
    ) -> io::Result<()> {
        let begin = offset.next_multiple_of(1 << self.cluster_bits);
        let end = (offset + len) >> self.cluster_bits << self.cluster_bits;
        if begin >= end
            || !matches!(run(access, begin, end - begin)?, (Run::Zero, _, n) if n == end - begin)
        {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(self.own_file()?, flags, place + (begin - offset), end - begin) {
            // A file system without holes: the clusters are used again.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Lets the map know where the bytes are; the first time that of all around them.
    fn learn(&self, access: &FormatAccess<Storage>, offset: u64, len: u64) -> io::Result<()> {
        let first = offset >> self.cluster_bits;
        let (offset, len) =
            if self.map.survey(first) { (offset, len) } else { self.map.page_of(first) };
        self.locate(access, offset, len, |cluster, place| {
            // A place that a write has just made must not be written directly before the kernel has
            // the tables that lead to it: that write would be lost with this process.
            fence(Ordering::Acquire);
            let settled = self.unsettled.load(Ordering::Acquire) == 0;
            self.map.learn(cluster, place.filter(|place| settled || !place.writable));
        })
    }

    /// Tells `tell` of each cluster that `len` bytes at `offset` touch where it is, or `None` if it
    /// is not one piece of plain data that a file has already.
    ///
    /// A direct write must not make a file longer: imago remembers how long it is.
    fn locate(
        &self,
        access: &FormatAccess<Storage>,
        offset: u64,
        len: u64,
        mut tell: impl FnMut(u64, Option<Place>),
    ) -> io::Result<()> {
        let size = access.size();
        let storages = access.inner().collect_storage_dependencies();
        let mut file_lens = Vec::with_capacity(self.files.len());
        for file in &self.files {
            file_lens.push(file.metadata()?.len());
        }
        let all = clusters(offset, len.min(size.saturating_sub(offset)), self.cluster_bits);
        let mut cluster = all.start;
        while cluster < all.end {
            let at = cluster << self.cluster_bits;
            let end = (all.end << self.cluster_bits).min(size);
            let (mapping, run) = access.get_mapping(at, end - at)?;
            let base = match mapping {
                Mapping::Raw { storage, offset, writable, .. } => {
                    // imago names this image's own storage last.
                    let layer = storages.iter().rev().position(|s| std::ptr::eq(*s, storage));
                    layer.map(|layer| Place { layer, offset, writable })
                }
                _ => None,
            };
            // At least one, so that this ends.
            let last = ((at + run) >> self.cluster_bits).max(cluster + 1);
            let last = if at + run == size { all.end } else { last };
            for cluster in cluster..last {
                let begin = cluster << self.cluster_bits;
                let stop = (begin + (1 << self.cluster_bits)).min(size);
                let place = base.filter(|place| {
                    let file_len = file_lens.get(place.layer).copied().unwrap_or_default();
                    stop <= at + run && place.offset + (stop - at) <= file_len
                });
                let moved = |place: Place| Place { offset: place.offset + (begin - at), ..place };
                tell(cluster, place.map(moved));
            }
            cluster = last;
        }
        Ok(())
    }

    fn own_file(&self) -> io::Result<&File> {
        self.files.first().map(Arc::as_ref).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn inside(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not inside the disk")),
        }
    }

    fn writable(&self) -> io::Result<()> {
        if self.read_only() { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }
}

impl Drop for Qcow2 {
    /// Waits until what was written lasts.
    fn drop(&mut self) {
        let Some(hold) = &self.hold else { return };
        let flushed = self.access.get_mut().flush();
        hold.release(flushed);
    }
}

/// What a run of a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// It has bytes somewhere, plain or compressed.
    Data,
    /// It reads as zeroes without having bytes.
    Zero,
}

/// Where in its file the byte at `offset` is, if it is plain data.
fn place(access: &FormatAccess<Storage>, offset: u64) -> io::Result<Option<u64>> {
    Ok(match access.get_mapping(offset, 1)?.0 {
        Mapping::Raw { offset, .. } => Some(offset),
        _ => None,
    })
}

/// What the bytes at `offset` are, whether in the top image of the chain, and how many of at most
/// `len` are alike. Never 0 of them inside the disk.
pub(crate) fn run(
    access: &FormatAccess<Storage>,
    offset: u64,
    len: u64,
) -> io::Result<(Run, bool, u64)> {
    let (mapping, found) = access.get_mapping(offset, len)?;
    let (run, own) = match mapping {
        Mapping::Raw { storage, .. } => {
            let storages = access.inner().collect_storage_dependencies();
            (Run::Data, storages.last().is_some_and(|own| std::ptr::eq(*own, storage)))
        }
        Mapping::Special { layer, .. } => (Run::Data, std::ptr::eq(layer, access)),
        _ => (Run::Zero, true),
    };
    match found {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        found => Ok((run, own, found)),
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map").finish_non_exhaustive()
    }
}
