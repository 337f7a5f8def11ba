//! A guest that shows its frames all at once and wants no interrupts.

use std::path::Path;

use e2e::{Context, Result};
use testkit::driver::{Buffer, DriverQueue, RingSpec, Shape, write};
use testkit::frontend::{Frontend, Pages, QueueFds, SharedMemory, feature, protocol};

use crate::switch::PATIENCE;

/// Entries of each ring.
pub const RING: u16 = 4096;
/// Bytes of an RX buffer, and most of one piece of a frame to be sent: a page.
pub const PIECE: usize = 4096;
/// `VIRTIO_NET_F_MRG_RXBUF`, and every checksum and TSO feature for IPv4: CSUM, GUEST_CSUM,
/// GUEST_TSO4, HOST_TSO4.
const NET: u64 = 1 << 15 | 0b11 | 1 << 7 | 1 << 11;

const RX_RING: u64 = 0;
const TX_RING: u64 = 0x10_0000;
const RX_BUFFERS: u64 = 0x20_0000;
const FRAMES: u64 = RX_BUFFERS + RING as u64 * PIECE as u64;
const MEMORY: u64 = FRAMES + 0x20_0000;

/// A front end with one queue pair.
pub struct Guest {
    rx: DriverQueue,
    tx: DriverQueue,
    /// Number of the RX buffer to be given next.
    next: u64,
    /// The frames it sends, each in pieces.
    frames: Vec<Vec<Buffer>>,
    /// Number of the one to be sent next.
    turn: usize,
    // Held: closing them would end the session.
    _fds: [QueueFds; 2],
    _frontend: Frontend,
}

impl Guest {
    /// Connects to a port's socket and starts both queues. `frames`, with their virtio-net headers,
    /// are what it will send.
    ///
    /// # Errors
    /// What the back end refuses.
    pub fn connect(socket: &Path, packed: bool, frames: &[Vec<u8>]) -> Result<Self> {
        let mut frontend = Frontend::connect(socket)?;
        frontend.set_timeout(PATIENCE)?;
        let format = if packed { feature::RING_PACKED } else { 0 };
        frontend.negotiate(feature::VERSION_1 | NET | format, protocol::REPLY_ACK)?;
        let memory = SharedMemory::new(&[(0, MEMORY)], Pages::Small)?;
        frontend.set_mem_table(&memory)?;
        let ring = |gpa| DriverQueue::new(memory.guest(), &RingSpec::new(packed, RING, gpa));
        let (mut rx, mut tx) = (ring(RX_RING)?, ring(TX_RING)?);
        rx.disable_interrupts();
        tx.disable_interrupts();
        let fds = [frontend.start_queue(0, &memory, &rx)?, frontend.start_queue(1, &memory, &tx)?];
        let frames = lay_out(&memory, frames)?;
        Ok(Self { rx, tx, next: 0, frames, turn: 0, _fds: fds, _frontend: frontend })
    }

    /// Takes used RX buffers back and gives the device as many as there is room for.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn refill(&mut self) -> Result<()> {
        while self.rx.collect()?.is_some() {}
        for _ in 0..self.rx.free() {
            let buffer = Buffer { gpa: RX_BUFFERS + self.next * PIECE as u64, len: PIECE as u32 };
            self.rx.add(&[], &[buffer], Shape::Direct);
            self.next = (self.next + 1) % u64::from(RING);
        }
        self.rx.expose();
        Ok(())
    }

    /// Sends `count` frames, its own over and over. The device sees none before it sees all.
    ///
    /// # Errors
    /// When there is no room for them.
    pub fn send(&mut self, count: usize) -> Result<()> {
        for frame in self.frames.iter().cycle().skip(self.turn).take(count) {
            let added = self.tx.add(frame, &[], Shape::Direct);
            added.context(|| "no room in the TX ring".into())?;
        }
        self.turn = (self.turn + count) % self.frames.len();
        self.tx.expose();
        Ok(())
    }

    /// Whether the device has taken everything.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn all_sent(&mut self) -> Result<bool> {
        while self.tx.collect()?.is_some() {}
        Ok(self.tx.outstanding() == 0)
    }
}

/// Writes frames to guest memory, one behind the other.
fn lay_out(memory: &SharedMemory, frames: &[Vec<u8>]) -> Result<Vec<Vec<Buffer>>> {
    let mut gpa = FRAMES;
    let mut all = Vec::new();
    for frame in frames {
        let written = write(memory.guest(), gpa, frame);
        written.then_some(()).context(|| "no room for the frames".into())?;
        let piece = |(n, piece): (usize, &[u8])| Buffer {
            gpa: gpa + (n * PIECE) as u64,
            len: piece.len() as u32,
        };
        all.push(frame.chunks(PIECE).enumerate().map(piece).collect());
        gpa += frame.len().next_multiple_of(64) as u64;
    }
    Ok(all)
}
