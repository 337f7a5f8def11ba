//! A virtio-blk driver over our own front end: requests of any kind, laid out in any way.
//!
//! **Purpose.** [`BlockDriver`] is a guest with a disk: memory, queues, and the region of requests in
//! flight that its VMM keeps, which all outlive the connection ([`BlockDriver::reconnect`]). What a
//! request is, as rows of bytes, and how it is cut into buffers are values of their own ([`Request`],
//! [`Layout`]), for tests without a socket too.
//!
//! **Owner and threads.** One thread. Requests are asynchronous: [`BlockDriver::submit`] as many as
//! the ring takes, then [`BlockDriver::poll`] or [`BlockDriver::wait`].
//!
//! **Failure.** [`BlockError`]; the driver is then of no more use, but for a reconnect after
//! [`BlockError::Frontend`].

mod layout;
mod request;
mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::EventFd;

use crate::driver::{Buffer, DriverError, DriverQueue, RingSpec, read, write};
use crate::frontend::{
    Frontend, FrontendError, Inflight, QueueFds, Region, SharedMemory, feature, protocol,
    request as message,
};

pub use layout::{Layout, pieces};
pub use request::{HEADER, Request, SECTOR, device, kind, range, status};
pub use writer::Writer;

/// Where the data of requests begins; rings are below.
const DATA: u64 = 1 << 32;
/// Room for an alignment and for gaps, in each direction of each request.
const SLACK: u64 = 0x1_0000;
/// What device-writable memory has until the device writes it, the status too.
pub const FILLER: u8 = 0xee;
/// How long [`BlockDriver::wait`] waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a disk is driven.
#[derive(Clone, Debug)]
pub struct Options {
    /// `VIRTIO_F_RING_PACKED`.
    pub packed: bool,
    /// `VIRTIO_F_EVENT_IDX`.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub indirect: bool,
    /// Device features to take if they are offered, as a mask.
    pub features: u64,
    /// Virtqueues.
    pub queues: u16,
    /// Entries of each.
    pub size: u16,
    /// Most bytes of data in a request.
    pub data: u32,
    /// Whether the front end keeps a region of requests in flight.
    pub inflight: bool,
    /// Whether there are kicks; without, the device has to poll.
    pub kick: bool,
    /// Whether there are interrupts.
    pub call: bool,
}

impl Options {
    /// One queue of 128 entries with everything that is offered, requests of up to 64 KiB.
    #[must_use]
    pub fn new(packed: bool) -> Options {
        Options {
            packed,
            event_idx: true,
            indirect: true,
            features: device::ALL,
            queues: 1,
            size: 128,
            data: 1 << 16,
            inflight: true,
            kick: true,
            call: true,
        }
    }

    fn wanted(&self) -> u64 {
        let when = |wanted: bool, feature: u64| if wanted { feature } else { 0 };
        self.features
            | feature::VERSION_1
            | when(self.packed, feature::RING_PACKED)
            | when(self.event_idx, feature::EVENT_IDX)
            | when(self.indirect, feature::INDIRECT_DESC)
    }

    /// Guest memory of one direction of a request.
    fn room(&self) -> u64 {
        (u64::from(self.data) + SLACK + 4096).next_multiple_of(4096)
    }

    fn ring(&self, index: u16) -> RingSpec {
        let table_len = if self.indirect { 256 } else { 0 };
        let ring = RingSpec { event_idx: self.event_idx, table_len, ..self.first_ring() };
        RingSpec { gpa: u64::from(index) * ring.bytes().next_multiple_of(4096), ..ring }
    }

    fn first_ring(&self) -> RingSpec {
        RingSpec::new(self.packed, self.size, 0)
    }
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The connection.
    #[error(transparent)]
    Frontend(#[from] FrontendError),
    /// The device broke a ring.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Nothing came back.
    #[error("no request ended in {PATIENCE:?}")]
    Silence,
}

impl From<io::Error> for BlockError {
    fn from(error: io::Error) -> Self {
        Self::Frontend(error.into())
    }
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What [`BlockDriver::submit`] returned for it.
    pub token: u16,
    /// The status; `None` if there was no room for one.
    pub status: Option<u8>,
    /// Bytes the device says it wrote.
    pub used: u32,
    /// The device-writable bytes before the status.
    pub data: Vec<u8>,
}

/// A queue of the disk.
pub struct BlockQueue {
    /// The ring, to lie with too.
    pub ring: DriverQueue,
    /// The VM's ends of its descriptors.
    pub fds: QueueFds,
    /// Numbers of the pieces of memory for requests that are free.
    free: Vec<u16>,
    /// What the device has: the piece of memory, and the device-writable buffers.
    pending: BTreeMap<u16, (u16, Vec<Buffer>)>,
    done: VecDeque<Done>,
    /// The position that the front end knows.
    base: u32,
}

/// A guest with a disk.
pub struct BlockDriver {
    options: Options,
    /// The connection.
    pub frontend: Frontend,
    /// The guest's memory.
    pub memory: SharedMemory,
    /// By number.
    pub queues: Vec<BlockQueue>,
    inflight: Option<Inflight>,
}

impl BlockDriver {
    /// A guest that boots: connects to a disk that listens, and starts all queues.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub fn connect(path: impl AsRef<Path>, options: &Options) -> Result<BlockDriver, BlockError> {
        BlockDriver::over(Frontend::connect(path)?, options)
    }

    /// The same over a connection there is.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub fn over(frontend: Frontend, options: &Options) -> Result<BlockDriver, BlockError> {
        let rings = options.ring(options.queues).gpa.next_multiple_of(4096);
        let slots = u64::from(options.queues) * u64::from(options.size);
        let regions = [(0, rings), (DATA, slots * 2 * options.room())];
        let regions: io::Result<_> =
            regions.iter().map(|&(gpa, size)| Region::unsealed(gpa, size)).collect();
        let memory = SharedMemory::of(regions?)?;
        let mut queues = Vec::new();
        for index in 0..options.queues {
            let ring = DriverQueue::new(memory.guest(), &options.ring(index))?;
            let (kick, call, err) = (EventFd::new()?, EventFd::new()?, EventFd::new()?);
            queues.push(BlockQueue {
                base: ring.base(),
                ring,
                fds: QueueFds { kick, call, err },
                free: (0..options.size).collect(),
                pending: BTreeMap::new(),
                done: VecDeque::new(),
            });
        }
        let options = options.clone();
        let mut driver = BlockDriver { options, frontend, memory, queues, inflight: None };
        driver.start()?;
        Ok(driver)
    }

    /// The same guest at a new connection, as when a back end has died: what was in flight is so
    /// still, and its region is brought along. What had ended is collected first.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub fn reconnect(&mut self, path: impl AsRef<Path>) -> Result<(), BlockError> {
        self.reconnect_over(Frontend::connect(path)?)
    }

    /// The same over a connection there is.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub fn reconnect_over(&mut self, frontend: Frontend) -> Result<(), BlockError> {
        let packed = self.options.packed;
        for queue in &mut self.queues {
            queue.collect(&self.memory)?;
            // A VMM finds the position of a split ring in guest memory. That of a packed one it
            // knows from when it last asked.
            if !packed {
                queue.base = queue.ring.base();
            }
        }
        self.frontend = frontend;
        self.start()
    }

    /// Everything a VMM says before I/O is possible, in the order QEMU does.
    fn start(&mut self) -> Result<(), BlockError> {
        self.frontend.negotiate(self.options.wanted(), protocol::BLOCK)?;
        let Options { queues, size, .. } = self.options;
        if self.options.inflight && self.frontend.protocol & protocol::INFLIGHT_SHMFD != 0 {
            if self.inflight.is_none() {
                self.inflight = Some(self.frontend.get_inflight(queues, size)?);
            }
            if let Some(inflight) = &self.inflight {
                self.frontend.set_inflight(inflight)?;
            }
        }
        self.frontend.set_mem_table(&self.memory)?;
        for index in 0..queues {
            self.start_queue(index)?;
        }
        Ok(())
    }

    /// Starts a queue where it stands.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub fn start_queue(&mut self, index: u16) -> Result<(), BlockError> {
        let Self { frontend, memory, queues, options, .. } = self;
        let queue = &queues[usize::from(index)];
        frontend.start_queue_at(index, memory, &queue.ring, &queue.fds, queue.base)?;
        if !options.kick {
            frontend.set_ring_fd(message::SET_VRING_KICK, index, None)?;
        }
        if !options.call {
            frontend.set_ring_fd(message::SET_VRING_CALL, index, None)?;
        }
        Ok(())
    }

    /// Stops a queue: the device has nothing of it then.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub fn stop_queue(&mut self, index: u16) -> Result<u32, BlockError> {
        let base = self.frontend.stop_queue(index)?;
        self.queues[usize::from(index)].base = base;
        Ok(base)
    }

    /// Virtio features in force.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.frontend.features
    }

    /// Puts a request into a queue; the device sees it with the next [`BlockDriver::kick`]. `None`:
    /// there is no room. The token may be one that was given out before: of a request that
    /// [`BlockDriver::poll`] has returned, or will.
    pub fn submit(&mut self, queue: usize, request: &Request, layout: &Layout) -> Option<u16> {
        let room = self.options.room();
        let first = queue as u64 * u64::from(self.options.size);
        let queue = self.queues.get_mut(queue)?;
        let slot = *queue.free.last()?;
        let gpa = DATA + (first + u64::from(slot)) * 2 * room;
        let [readable, writable] = layout.buffers([gpa, gpa + room], request);
        let token = queue.ring.add(&readable, &writable, layout.shape)?;
        let mem = self.memory.guest();
        let mut rest = request.readable.as_slice();
        for buffer in &readable {
            let (bytes, more) = rest.split_at(buffer.len as usize);
            write(mem, buffer.gpa, bytes);
            rest = more;
        }
        for buffer in &writable {
            write(mem, buffer.gpa, &vec![FILLER; buffer.len as usize]);
        }
        queue.free.pop();
        queue.pending.insert(token, (slot, writable));
        Some(token)
    }

    /// Shows the device what was submitted, and kicks it if it wants that. Returns whether it did.
    pub fn kick(&mut self, queue: usize) -> bool {
        let BlockQueue { ring, fds, .. } = &mut self.queues[queue];
        ring.expose();
        let kicks = self.options.kick && ring.kick_needed();
        if kicks {
            // Cannot fail on an eventfd that nobody has filled.
            let _ = fds.kick.signal();
        }
        kicks
    }

    /// The status of a request as it is in guest memory now: [`FILLER`] before it is written.
    #[must_use]
    pub fn status_now(&self, queue: usize, token: u16) -> Option<u8> {
        let (_, writable) = self.queues.get(queue)?.pending.get(&token)?;
        let last = writable.last()?;
        read(self.memory.guest(), last.gpa + u64::from(last.len) - 1, 1)?.first().copied()
    }

    /// Requests of a queue that have not been returned.
    #[must_use]
    pub fn outstanding(&self, queue: usize) -> usize {
        self.queues[queue].pending.len() + self.queues[queue].done.len()
    }

    /// The next request that has ended, if one has.
    ///
    /// # Errors
    /// The device broke the ring.
    pub fn poll(&mut self, queue: usize) -> Result<Option<Done>, BlockError> {
        let queue = &mut self.queues[queue];
        queue.collect(&self.memory)?;
        Ok(queue.done.pop_front())
    }

    /// The next request that ends: waits for the interrupt, or looks again and again where there is
    /// none.
    ///
    /// # Errors
    /// [`BlockError::Silence`], or the device broke the ring.
    pub fn wait(&mut self, queue: usize) -> Result<Done, BlockError> {
        let start = Instant::now();
        loop {
            if let Some(done) = self.poll(queue)? {
                return Ok(done);
            }
            let BlockQueue { ring, fds, .. } = &mut self.queues[queue];
            if start.elapsed() > PATIENCE {
                return Err(BlockError::Silence);
            }
            if !self.options.call {
                std::thread::yield_now();
            } else if !ring.enable_interrupts() && !sleep_on(&fds.call, PATIENCE)? {
                return Err(BlockError::Silence);
            }
        }
    }

    /// Sleeps until the device interrupts, without a look at the ring; whether it did.
    ///
    /// # Errors
    /// What poll(2) reports.
    pub fn wait_interrupt(&mut self, queue: usize) -> Result<bool, BlockError> {
        Ok(sleep_on(&self.queues[queue].fds.call, PATIENCE)?)
    }

    /// One request from beginning to end, while nothing else is in flight in the queue.
    ///
    /// # Errors
    /// See [`BlockError`].
    ///
    /// # Panics
    /// Something is in flight, or the layout does not fit into the ring.
    pub fn run_as(
        &mut self,
        queue: usize,
        request: &Request,
        layout: &Layout,
    ) -> Result<Done, BlockError> {
        assert_eq!(self.outstanding(queue), 0);
        let token = self.submit(queue, request, layout);
        self.kick(queue);
        let done = self.wait(queue)?;
        assert_eq!(Some(done.token), token);
        Ok(done)
    }

    /// The same in the first queue, laid out as drivers do.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub fn run(&mut self, request: &Request) -> Result<Done, BlockError> {
        self.run_as(0, request, &Layout::usual(request))
    }

    /// Waits until nothing is in flight in any queue; everything that has ended since the last look.
    ///
    /// # Errors
    /// See [`BlockError`].
    pub fn drain(&mut self) -> Result<Vec<(usize, Done)>, BlockError> {
        let mut all = Vec::new();
        for queue in 0..self.queues.len() {
            while self.outstanding(queue) > 0 {
                all.push((queue, self.wait(queue)?));
            }
        }
        Ok(all)
    }
}

impl BlockQueue {
    /// Takes everything from the ring that is used.
    fn collect(&mut self, memory: &SharedMemory) -> Result<(), DriverError> {
        while let Some(used) = self.ring.collect()? {
            let Some((slot, writable)) = self.pending.remove(&used.token) else { continue };
            self.free.push(slot);
            let bytes = |b: &Buffer| read(memory.guest(), b.gpa, b.len).unwrap_or_default();
            let mut data: Vec<u8> = writable.iter().flat_map(bytes).collect();
            let status = data.pop();
            self.done.push_back(Done { token: used.token, status, used: used.len, data });
        }
        Ok(())
    }
}

/// Sleeps until the event is signalled; whether it was.
fn sleep_on(event: &EventFd, patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
    loop {
        match poll(&mut fds, Some(&patience)) {
            Ok(ready) => return Ok(ready == 1 && event.drain()),
            // The process was stopped meanwhile.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
