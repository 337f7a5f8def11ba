//! A guest's network card: one vhost-user connection and its queues.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guestmem::GuestMemory;
use testkit::driver::{DriverQueue, RingSpec};
use testkit::frontend::{Frontend, FrontendError, QueueFds, SharedMemory, feature, protocol};

use super::GeneratorError;
use super::buffers::{Buffers, HEADER};
use super::frames::{self, FrameSpec};
use super::ring::Ring;

/// Feature bits of the network device (virtio 1.3, 5.1.3).
mod net {
    pub(super) const CSUM: u64 = 1 << 0;
    pub(super) const GUEST_CSUM: u64 = 1 << 1;
    pub(super) const GUEST_TSO4: u64 = 1 << 7;
    pub(super) const HOST_TSO4: u64 = 1 << 11;
    pub(super) const MRG_RXBUF: u64 = 1 << 15;
    pub(super) const MQ: u64 = 1 << 22;
}

/// Buffers taken and given in one turn of a queue.
pub(super) const BURST: u16 = 64;

/// How long a switch may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How cards and their queues are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardSpec {
    /// Packed rings; otherwise split.
    pub packed: bool,
    /// `VIRTIO_F_IN_ORDER`, if the switch offers it.
    pub in_order: bool,
    /// Entries of each queue.
    pub entries: u16,
    /// Queue pairs.
    pub queues: u16,
    /// Checksums may be unfinished, and frames larger than the MTU pass in one piece.
    pub offloads: bool,
    /// The switch connects, rather than the card.
    pub listen: bool,
}

impl CardSpec {
    fn features(&self) -> u64 {
        let mut wanted = feature::VERSION_1 | net::MRG_RXBUF;
        for (bits, on) in [
            (feature::RING_PACKED, self.packed),
            (feature::IN_ORDER, self.in_order),
            (net::MQ, self.queues > 1),
            (net::CSUM | net::GUEST_CSUM | net::GUEST_TSO4 | net::HOST_TSO4, self.offloads),
        ] {
            if on {
                wanted |= bits;
            }
        }
        wanted
    }

    /// What must have been granted.
    fn needed(&self) -> u64 {
        self.features() & !feature::IN_ORDER & !net::MQ
    }
}

/// Hands out pieces of guest memory, one after the other.
#[derive(Debug)]
pub struct Layout {
    next: u64,
    end: u64,
}

impl Layout {
    /// The memory of a guest, all of it free.
    #[must_use]
    pub fn new(memory: &SharedMemory) -> Layout {
        let (mut next, mut end) = (u64::MAX, 0);
        for region in memory.regions() {
            next = next.min(region.spec.guest_addr);
            end = end.max(region.spec.guest_addr + region.spec.size);
        }
        Layout { next, end }
    }

    /// The next piece; pages are not shared between pieces.
    ///
    /// # Errors
    /// There is not enough left.
    pub fn take(&mut self, bytes: u64) -> Result<u64, GeneratorError> {
        let start = self.next;
        let end = (start + bytes).next_multiple_of(4096);
        if end > self.end {
            let missing = end - self.end;
            return Err(GeneratorError::Memory { missing });
        }
        self.next = end;
        Ok(start)
    }
}

/// A queue and what a kick of it is.
pub struct CardQueue<R> {
    /// The ring.
    pub ring: R,
    fds: QueueFds,
    /// Turns without a full burst.
    waited: u8,
}

impl<R: Ring> CardQueue<R> {
    /// Whether to take buffers back now: a burst has been used, or fewer for a while. Taking every
    /// one at once makes the two sides write to the same cache lines all the time, which no
    /// driver under load does.
    #[inline(always)]
    pub fn due(&mut self) -> bool {
        let due = self.waited >= 16 || self.ring.used(BURST / 2 - 1);
        self.waited = if due { 0 } else { self.waited + 1 };
        due
    }

    /// Kicks if the switch asks for it; certain to see that it does.
    #[inline(always)]
    pub fn kick(&self) {
        fence(Ordering::SeqCst);
        if self.ring.wants_kick() {
            self.wake();
        }
    }

    /// Kicks if the switch is already seen to ask for it, without waiting for a certain answer: for
    /// queues that are looked at again at once.
    #[inline(always)]
    pub fn kick_if_seen(&self) {
        if self.ring.wants_kick() {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // An eventfd that was made here does not refuse.
        let _ = self.fds.kick.signal();
    }
}

/// A guest's network card.
pub struct Card<R> {
    /// Transmit queues.
    pub tx: Vec<CardQueue<R>>,
    /// Receive queues.
    pub rx: Vec<CardQueue<R>>,
    frontend: Option<Frontend>,
}

/// What a card sends: frames of its own, or those it received.
#[derive(Clone, Debug)]
pub enum Source {
    /// Frames of its own.
    Own(FrameSpec),
    /// The buffers of another card's RX queues: a virtual machine that forwards.
    Received(Vec<Buffers>),
}

impl<R: Ring> Card<R> {
    /// Connects to a switch that listens at `socket` (or listens there for one), lays the queues out and starts them.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn connect(
        socket: &Path,
        spec: &CardSpec,
        memory: &SharedMemory,
        layout: &mut Layout,
        size: u32,
        source: &Source,
    ) -> Result<Self, GeneratorError> {
        let failed = |source| GeneratorError::Session { socket: PathBuf::from(socket), source };
        let frontend =
            if spec.listen { accept(socket) } else { Frontend::connect_within(socket, PATIENCE) };
        let mut frontend = frontend.map_err(failed)?;
        frontend.set_timeout(PATIENCE).map_err(failed)?;
        frontend.negotiate(spec.features(), protocol::MQ | protocol::REPLY_ACK).map_err(failed)?;
        let missing = spec.needed() & !frontend.features;
        if missing != 0 {
            return Err(GeneratorError::Features { missing });
        }
        let spec = CardSpec {
            in_order: spec.in_order && frontend.features & feature::IN_ORDER != 0,
            ..*spec
        };
        frontend.set_mem_table(memory).map_err(failed)?;
        let mut card =
            Card::lay_out(&spec, memory.guest(), layout, size, source, |queue, index| {
                frontend.start_queue(index, memory, queue).map_err(failed)
            })?;
        card.frontend = Some(frontend);
        for queue in card.rx.iter().chain(&card.tx) {
            queue.wake();
        }
        Ok(card)
    }

    /// A card whose queues are told to the device by `start`, with their index.
    pub(super) fn lay_out(
        spec: &CardSpec,
        mem: &Arc<GuestMemory>,
        layout: &mut Layout,
        size: u32,
        source: &Source,
        mut start: impl FnMut(&DriverQueue, u16) -> Result<QueueFds, GeneratorError>,
    ) -> Result<Self, GeneratorError> {
        let len = HEADER + size;
        let (mut tx, mut rx) = (Vec::new(), Vec::new());
        for pair in 0..spec.queues {
            // Room for an ordinary frame at least, as drivers have it.
            let room = len.max(HEADER + 1518);
            let count = u32::from(spec.entries);
            let first = layout.take(Buffers::bytes(count, room))?;
            let buffers = Buffers::new(first, count, room, true);
            let (mut ring, queue) = lay_out::<R>(mem, spec, layout, buffers)?;
            ring.publish(spec.entries);
            rx.push(CardQueue { ring, fds: start(&queue, 2 * pair)?, waited: 0 });

            let buffers = match source {
                Source::Own(frames) => {
                    let first = layout.take(Buffers::bytes(count, len))?;
                    let buffers = Buffers::new(first, count, len, false);
                    fill(mem, &buffers, frames);
                    buffers
                }
                Source::Received(buffers) => {
                    let of = buffers.get(usize::from(pair)).ok_or(GeneratorError::Pairing)?;
                    of.to_send(len)
                }
            };
            let (ring, queue) = lay_out::<R>(mem, spec, layout, buffers)?;
            tx.push(CardQueue { ring, fds: start(&queue, 2 * pair + 1)?, waited: 0 });
        }
        Ok(Card { tx, rx, frontend: None })
    }

    /// Puts a frame into every receive buffer, for a device that writes none.
    pub(super) fn prefill(&self, mem: &GuestMemory, spec: &FrameSpec) {
        for queue in &self.rx {
            let buffers = queue.ring.buffers();
            for index in 0..buffers.count {
                let mut bytes = frames::build(spec, index);
                // num_buffers
                bytes[10] = 1;
                if let Some(place) = mem.slice(buffers.address(index), buffers.len) {
                    place.copy_from(&bytes);
                }
            }
        }
    }

    /// Stops all queues and ends the session.
    ///
    /// # Errors
    /// The switch did not answer.
    pub fn disconnect(mut self) -> Result<(), testkit::frontend::FrontendError> {
        if let Some(frontend) = &mut self.frontend {
            for index in 0..2 * self.rx.len() as u16 {
                frontend.stop_queue(index)?;
            }
        }
        Ok(())
    }
}

/// Waits for a switch that connects.
fn accept(socket: &Path) -> Result<Frontend, FrontendError> {
    // What the connection before left.
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Frontend::over(stream);
            }
            Err(error) if start.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => sleep(Duration::from_millis(2)),
        }
    }
}

/// A ring in fresh memory, and the same as a front end describes it.
fn lay_out<R: Ring>(
    mem: &Arc<GuestMemory>,
    spec: &CardSpec,
    layout: &mut Layout,
    buffers: Buffers,
) -> Result<(R, DriverQueue), GeneratorError> {
    let mut ring = RingSpec::new(spec.packed, spec.entries, 0);
    ring.in_order = spec.in_order;
    ring.gpa = layout.take(ring.bytes())?;
    zero(mem, ring.gpa, ring.bytes());
    let queue = DriverQueue::new(mem, &ring)?;
    Ok((R::new(mem, &ring, buffers)?, queue))
}

/// Writes frames into all buffers.
fn fill(mem: &GuestMemory, buffers: &Buffers, spec: &FrameSpec) {
    let bytes = frames::build(spec, 0);
    for index in 0..buffers.count {
        if let Some(place) = mem.slice(buffers.address(index), buffers.len) {
            place.copy_from(&bytes);
        }
    }
}

fn zero(mem: &GuestMemory, gpa: u64, bytes: u64) {
    if let Some(place) = mem.slice(gpa, bytes as u32) {
        place.copy_from(&vec![0; bytes as usize]);
    }
}
