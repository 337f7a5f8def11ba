//! A client of vhost-user-blk devices, without a virtual machine.
//!
//! **Purpose.** Measurements and tests of hayate's disks, and of other back ends beside them, through
//! a front end that is not ours: the crate `virtio-driver`. A [`Client`] has queues, and for each of
//! them slots: a slot is a buffer and at most one request in flight. Rings are split ones with event
//! index; the driver spends three descriptors on a request.
//!
//! **Owner and threads.** The client owns its connection, rings and buffers. It has no thread: who
//! calls it also waits for answers, by polling or asleep on the queues' call descriptors ([`Wait`]).
//!
//! **Failure.** A [`ClientError`] says what was tried. Requests that the device refused are no
//! errors but [`Answer`]s. A device that is silent for [`PATIENCE`] is an error, not a hang.

#![expect(unsafe_code)]
// UNSAFETY: `virtio-driver` takes buffers as raw pointers. What it is given here is an address in the
// shared memory, which it writes into descriptors and never follows.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use testkit::frontend::{Pages, SharedMemory};
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags as Blk,
    VirtioBlkQueue, VirtioBlkReqBuf, VirtioBlkTransport, VirtioFeatureFlags as Virtio,
};

/// How long a device may be silent while it has requests.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How far below the process's mappings the buffers are in the guest's memory, and how their place is
/// rounded. The rings are among those mappings; a device may reserve address space for all of it.
const BELOW: u64 = 64 << 30;
const ROUND: u64 = 1 << 30;
/// An allocation that is a mapping of its own, for a moment.
const MAPPING: usize = 64 << 20;
/// Alignment of each buffer, bytes: what direct I/O asks for.
const ALIGN: u32 = 4096;
/// Descriptors of a request: header, data, status.
const DESCRIPTORS: u16 = 3;
/// Most slots of a queue: their descriptors fit into 1024 entries.
pub const MAX_SLOTS: u16 = 1024 / DESCRIPTORS;
/// Bytes of a sector, in which capacity is counted.
const SECTOR: u64 = 512;

/// How a client waits for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Looks at the used rings all the time; the device is told not to notify.
    Poll,
    /// Sleeps until the device notifies.
    Event,
}

/// What a client is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Queues, from 1; no more than the device has.
    pub queues: u16,
    /// Slots of each, 1 to [`MAX_SLOTS`].
    pub slots: u16,
    /// Bytes of a slot's buffer, at least 1.
    pub buffer: u32,
    /// How it waits.
    pub wait: Wait,
}

/// A request; its data is in the slot's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads `len` bytes at `offset`.
    Read {
        /// Bytes from the beginning of the disk, whole sectors.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Writes `len` bytes at `offset`.
    Write {
        /// Bytes from the beginning of the disk, whole sectors.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Makes what was written stable.
    Flush,
}

/// What the device answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `VIRTIO_BLK_S_OK`.
    Done,
    /// `VIRTIO_BLK_S_IOERR`.
    IoError,
    /// `VIRTIO_BLK_S_UNSUPP`.
    Unsupported,
    /// A status that is none.
    Unknown,
}

/// Why a client cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection, or something of the system.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// There is no such queue, slot, or so much room in a buffer; or the slot's last request is in
    /// flight.
    #[error("queue {queue}, slot {slot}: no such place, or one with a request in flight")]
    Place {
        /// The queue.
        queue: u16,
        /// The slot.
        slot: u16,
    },
    /// The device was silent for [`PATIENCE`].
    #[error("the device has not answered for {} s", PATIENCE.as_secs())]
    Silent,
    /// A request of [`Client::read`], [`Client::write`] or [`Client::flush`].
    #[error("the device answered {request:?} with {answer:?}")]
    Refused {
        /// The request.
        request: Request,
        /// The answer.
        answer: Answer,
    },
}

impl ClientError {
    fn io(what: &'static str) -> impl FnOnce(io::Error) -> ClientError {
        move |source| ClientError::Io { what, source }
    }
}

/// A queue and what is in flight there.
struct Queue {
    ring: VirtioBlkQueue<'static, u16>,
    kick: Box<dyn QueueNotifier>,
    call: Arc<EventFd>,
    /// Which slots have a request in flight.
    busy: Vec<bool>,
}

/// A connection to a device.
pub struct Client {
    // The rings are in memory of the transport: they go first.
    queues: Vec<Queue>,
    _transport: Box<VirtioBlkTransport>,
    memory: SharedMemory,
    /// Of the buffers, in the guest's memory.
    start: u64,
    shape: Shape,
    capacity: u64,
    features: u64,
}

impl Client {
    /// Connects to the device at a socket and starts its queues.
    ///
    /// # Errors
    /// Nobody listens there, the device lacks something (vhost-user with `CONFIG`, `REPLY_ACK` and
    /// `CONFIGURE_MEM_SLOTS`; so many queues), or the shape is none.
    pub fn connect(socket: &Path, shape: Shape) -> Result<Client, ClientError> {
        let Shape { queues, slots, buffer, wait } = shape;
        if queues == 0 || slots == 0 || slots > MAX_SLOTS || buffer == 0 {
            return Err(ClientError::Place { queue: queues, slot: slots });
        }
        let path = socket.to_str().ok_or_else(|| io::ErrorKind::InvalidInput.into());
        let path = path.map_err(ClientError::io("the socket's path"))?;
        let features = (Virtio::VERSION_1 | Virtio::RING_EVENT_IDX).bits()
            | (Blk::MQ | Blk::FLUSH | Blk::BLK_SIZE | Blk::SEG_MAX).bits();
        let transport = VhostUser::<VirtioBlkConfig, VirtioBlkReqBuf>::new(path, features);
        let mut transport: Box<VirtioBlkTransport> =
            Box::new(transport.map_err(ClientError::io("connecting"))?);
        let config = transport.get_config().map_err(ClientError::io("the configuration space"))?;
        let capacity = u64::from(config.capacity).saturating_mul(SECTOR);

        let bytes = u64::from(queues) * u64::from(slots) * u64::from(room(buffer));
        let start = place_of_buffers();
        let memory = SharedMemory::new(&[(start, bytes)], Pages::Small)
            .map_err(ClientError::io("memory for buffers"))?;
        let region = memory.regions().first().ok_or_else(|| io::ErrorKind::NotFound.into());
        let region = region.map_err(ClientError::io("memory for buffers"))?;
        transport
            .map_mem_region(start as usize, bytes as usize, region.fd.as_raw_fd(), 0)
            .map_err(ClientError::io("showing the device its buffers"))?;

        let entries = (slots * DESCRIPTORS).next_power_of_two().max(16);
        let rings = VirtioBlkQueue::setup_queues(&mut *transport, queues.into(), entries);
        let rings = rings.map_err(ClientError::io("starting the queues"))?;
        let queue = |(number, mut ring): (usize, VirtioBlkQueue<'static, u16>)| {
            ring.set_used_notif_enabled(wait == Wait::Event);
            Queue {
                ring,
                kick: transport.get_submission_notifier(number),
                call: transport.get_completion_fd(number),
                busy: vec![false; slots.into()],
            }
        };
        let queues = rings.into_iter().enumerate().map(queue).collect();
        let features = transport.get_features();
        Ok(Client { queues, _transport: transport, memory, start, shape, capacity, features })
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Features that were negotiated.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Puts bytes at the beginning of a slot's buffer, as many as fit.
    ///
    /// # Errors
    /// No such slot.
    pub fn put(&self, queue: u16, slot: u16, bytes: &[u8]) -> Result<(), ClientError> {
        let (address, room) = self.buffer(queue, slot)?;
        let place = self.memory.guest().slice(address, room);
        place.ok_or(ClientError::Place { queue, slot })?.copy_from(bytes);
        Ok(())
    }

    /// Gets the bytes at the beginning of a slot's buffer, as many as it has.
    ///
    /// # Errors
    /// No such slot.
    pub fn get(&self, queue: u16, slot: u16, bytes: &mut [u8]) -> Result<(), ClientError> {
        let (address, room) = self.buffer(queue, slot)?;
        let place = self.memory.guest().slice(address, room);
        place.ok_or(ClientError::Place { queue, slot })?.copy_to(bytes);
        Ok(())
    }

    /// Makes a request available. The device is told by [`Client::kick`].
    ///
    /// # Errors
    /// No such slot, or its last request is in flight; the data does not fit into its buffer; the
    /// offset is none of a sector.
    pub fn submit(&mut self, queue: u16, slot: u16, request: Request) -> Result<(), ClientError> {
        let (address, room) = self.buffer(queue, slot)?;
        let place = || ClientError::Place { queue, slot };
        let Queue { ring, busy, .. } = self.queues.get_mut(usize::from(queue)).ok_or_else(place)?;
        let busy = busy.get_mut(usize::from(slot)).filter(|busy| !**busy).ok_or_else(place)?;
        if let Request::Read { len, .. } | Request::Write { len, .. } = request
            && len > room
        {
            return Err(place());
        }
        let data = std::ptr::without_provenance_mut::<u8>(address as usize);
        let submitted = match request {
            // SAFETY: the address is one of the memory shared with the device, and `len` bytes are
            // in the buffer; nothing in this process follows it.
            Request::Read { offset, len } => unsafe {
                ring.read_raw(offset, data, len as usize, slot)
            },
            // SAFETY: as above.
            Request::Write { offset, len } => unsafe {
                ring.write_raw(offset, data, len as usize, slot)
            },
            Request::Flush => ring.flush(slot),
        };
        submitted.map_err(ClientError::io("a request"))?;
        *busy = true;
        Ok(())
    }

    /// Tells the device of requests that are new in a queue, if it wants to know.
    ///
    /// # Errors
    /// No such queue, or the descriptor cannot be written.
    pub fn kick(&mut self, queue: u16) -> Result<(), ClientError> {
        let place = ClientError::Place { queue, slot: 0 };
        let Queue { ring, kick, .. } = self.queues.get_mut(usize::from(queue)).ok_or(place)?;
        if ring.avail_notif_needed() {
            kick.notify().map_err(ClientError::io("a kick"))?;
        }
        Ok(())
    }

    /// Takes the answers that are in a queue, without waiting; how many.
    pub fn answers(&mut self, queue: u16, mut each: impl FnMut(u16, Answer)) -> usize {
        let Some(Queue { ring, busy, .. }) = self.queues.get_mut(usize::from(queue)) else {
            return 0;
        };
        let mut taken = 0;
        for completion in ring.completions() {
            let answer = match -completion.ret {
                0 => Answer::Done,
                n if n == Errno::IO.raw_os_error() => Answer::IoError,
                n if n == Errno::NOTSUP.raw_os_error() => Answer::Unsupported,
                _ => Answer::Unknown,
            };
            if let Some(busy) = busy.get_mut(usize::from(completion.context)) {
                *busy = false;
            }
            each(completion.context, answer);
            taken += 1;
        }
        taken
    }

    /// Sleeps until the device notifies any queue, at most so long; for [`Wait::Event`]. Look for
    /// answers before: those that are there already need not be notified of again.
    ///
    /// # Errors
    /// poll(2) fails.
    pub fn sleep(&self, most: Duration) -> Result<(), ClientError> {
        let most = Timespec::try_from(most).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let fds = self.queues.iter().map(|queue| PollFd::new(&*queue.call, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        match poll(&mut fds, Some(&most)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(ClientError::io("waiting for the device")(error.into())),
        }
        let ready = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN));
        for (queue, _) in self.queues.iter().zip(ready).filter(|(_, ready)| *ready) {
            queue.call.read().map_err(ClientError::io("a call descriptor"))?;
        }
        Ok(())
    }

    /// Requests in flight in a queue; none where there is no such queue.
    #[must_use]
    pub fn in_flight(&self, queue: u16) -> usize {
        let queue = self.queues.get(usize::from(queue));
        queue.map_or(0, |queue| queue.busy.iter().filter(|busy| **busy).count())
    }

    /// Waits until nothing is in flight; answers are lost.
    ///
    /// # Errors
    /// [`ClientError::Silent`].
    pub fn drain(&mut self) -> Result<(), ClientError> {
        for queue in 0..self.shape.queues {
            while self.in_flight(queue) > 0 {
                self.wait(queue, |_, _| {})?;
            }
        }
        Ok(())
    }

    /// Reads from the disk and waits for it, with a queue's first slot, piece by piece.
    ///
    /// # Errors
    /// Also if the device refuses it.
    pub fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), ClientError> {
        let (mut at, piece) = (offset, self.shape.buffer as usize);
        for piece in bytes.chunks_mut(piece) {
            self.one(Request::Read { offset: at, len: piece.len() as u32 })?;
            self.get(0, 0, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes to the disk and waits for it, with a queue's first slot, piece by piece.
    ///
    /// # Errors
    /// Also if the device refuses it.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ClientError> {
        let mut at = offset;
        for piece in bytes.chunks(self.shape.buffer as usize) {
            self.put(0, 0, piece)?;
            self.one(Request::Write { offset: at, len: piece.len() as u32 })?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Makes everything stable and waits for it.
    ///
    /// # Errors
    /// Also if the device refuses it.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.one(Request::Flush)
    }

    /// A request with the first slot, and its answer.
    fn one(&mut self, request: Request) -> Result<(), ClientError> {
        self.submit(0, 0, request)?;
        self.kick(0)?;
        let mut answered = None;
        while answered.is_none() {
            self.wait(0, |slot, answer| answered = answered.or((slot == 0).then_some(answer)))?;
        }
        match answered {
            Some(Answer::Done) | None => Ok(()),
            Some(answer) => Err(ClientError::Refused { request, answer }),
        }
    }

    /// Waits for answers in a queue, if there is something in flight.
    fn wait(&mut self, queue: u16, mut each: impl FnMut(u16, Answer)) -> Result<(), ClientError> {
        let start = Instant::now();
        while self.in_flight(queue) > 0 && self.answers(queue, &mut each) == 0 {
            if start.elapsed() > PATIENCE {
                return Err(ClientError::Silent);
            }
            match self.shape.wait {
                Wait::Poll => std::hint::spin_loop(),
                Wait::Event => self.sleep(Duration::from_secs(1))?,
            }
        }
        Ok(())
    }

    /// A slot's buffer: guest address and bytes.
    fn buffer(&self, queue: u16, slot: u16) -> Result<(u64, u32), ClientError> {
        let Shape { queues, slots, buffer, .. } = self.shape;
        if queue >= queues || slot >= slots {
            return Err(ClientError::Place { queue, slot });
        }
        let number = u64::from(queue) * u64::from(slots) + u64::from(slot);
        Ok((self.start + number * u64::from(room(buffer)), buffer))
    }
}

/// A place for buffers in the guest's memory: near the rings, and where no mapping is.
fn place_of_buffers() -> u64 {
    let mapping = Vec::<u8>::with_capacity(MAPPING);
    (mapping.as_ptr().addr() as u64 & !(ROUND - 1)).saturating_sub(BELOW)
}

/// Bytes that a buffer takes.
fn room(buffer: u32) -> u32 {
    buffer.next_multiple_of(ALIGN)
}
