//! A virtual machine: a front end, memory, and a driver that lays buffers out in every way a
//! driver may.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use guestmem::GuestMemory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::EventFd;
use testkit::driver::{self, Buffer, Completed, DriverQueue, RingSpec, Shape};
use testkit::frontend::{Frontend, QueueFds, Region, SharedMemory, feature, protocol};

use super::frames::Vnet;
use super::{PATIENCE, Rng, wait};

/// `VIRTIO_NET_F_MRG_RXBUF` and `VIRTIO_NET_F_MQ`.
const MRG_RXBUF: u64 = 1 << 15;
const MQ: u64 = 1 << 22;
/// Every checksum and segmentation feature: CSUM, GUEST_CSUM, GUEST_TSO4, TSO6 and ECN, HOST_TSO4,
/// TSO6 and ECN, GUEST_USO4 and USO6, HOST_USO.
pub(crate) const ALL_OFFLOADS: u64 = 0b11 | 0b111 << 7 | 0b111 << 11 | 1 << 54 | 1 << 55 | 1 << 56;
/// What RX buffers hold before the device writes into them.
const BLANK: u8 = 0xa5;
/// Least distance of two memory regions that are not adjacent.
const HOLE: u64 = 1 << 20;
/// Bytes between two pieces of a buffer, at most.
const GAP: usize = 16;

/// What a guest negotiates, and how it makes its rings.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) packed: bool,
    pub(crate) event_idx: bool,
    pub(crate) in_order: bool,
    pub(crate) indirect: bool,
    pub(crate) mergeable: bool,
    /// `VIRTIO_F_VERSION_1`; without it, and without mergeable buffers, headers have 10 bytes.
    pub(crate) modern: bool,
    /// More feature bits.
    pub(crate) offloads: u64,
    /// Queue pairs.
    pub(crate) pairs: u16,
    /// Entries of each ring.
    pub(crate) ring: u16,
    /// Sizes of RX buffers, from and to, in bytes.
    pub(crate) rx_buffer: (usize, usize),
    /// RX buffers to have.
    pub(crate) rx_buffers: usize,
    /// Largest frame it can send, in bytes.
    pub(crate) tx_max: usize,
    /// TX buffers to have.
    pub(crate) tx_buffers: usize,
    /// Seed of random layouts; `None`: each buffer is one piece.
    pub(crate) layouts: Option<u64>,
}

impl Guest {
    /// Ordinary frames in ordinary buffers, as Linux with mergeable buffers has them.
    pub(crate) fn plain() -> Guest {
        Guest {
            packed: false,
            event_idx: false,
            in_order: false,
            indirect: false,
            mergeable: true,
            modern: true,
            offloads: 0,
            pairs: 1,
            ring: 256,
            rx_buffer: (1536, 1536),
            rx_buffers: 256,
            tx_max: 1514,
            tx_buffers: 256,
            layouts: None,
        }
    }

    /// Every format and layout at random, frames of any size.
    pub(crate) fn random(seed: u64) -> Guest {
        Guest { layouts: Some(seed), ..Guest::plain() }.for_any_size()
    }

    /// RX buffers for frames of any size, with or without merging them.
    pub(crate) fn for_any_size(self) -> Guest {
        let (rx_buffer, rx_buffers) =
            if self.mergeable { ((300, 4096), 200) } else { ((65_570, 66_000), 48) };
        Guest { rx_buffer, rx_buffers, tx_max: 65_600, tx_buffers: 48, ..self }
    }

    pub(crate) fn features(&self) -> u64 {
        let bits = [
            (self.packed, feature::RING_PACKED),
            (self.event_idx, feature::EVENT_IDX),
            (self.in_order, feature::IN_ORDER),
            (self.indirect, feature::INDIRECT_DESC),
            (self.mergeable, MRG_RXBUF),
            (self.modern, feature::VERSION_1),
            (self.pairs > 1, MQ),
        ];
        bits.iter().filter(|(on, _)| *on).fold(self.offloads, |sum, (_, bit)| sum | bit)
    }

    pub(crate) fn vnet_len(&self) -> usize {
        if self.modern || self.mergeable { 12 } else { 10 }
    }

    fn ring_spec(&self, gpa: u64, rng: &mut Rng) -> RingSpec {
        let start = match (self.layouts, self.packed) {
            (None, true) => 0x8000,
            (None, false) => 0,
            // Soon to wrap around.
            (Some(_), true) => 0x8000 | (self.ring - 1 - rng.below(20) as u16),
            (Some(_), false) => u16::MAX - rng.below(200) as u16,
        };
        RingSpec {
            size: self.ring,
            packed: self.packed,
            event_idx: self.event_idx,
            in_order: self.in_order,
            start,
            gpa,
            table_len: if self.indirect { 64 } else { 0 },
        }
    }

    /// Bytes of memory for one buffer of `len` bytes and the gaps in it.
    fn slot(len: usize) -> u64 {
        (len + 64 * GAP).next_multiple_of(64) as u64
    }
}

/// A frame as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) queue: u16,
    pub(crate) header: Vnet,
    pub(crate) frame: Vec<u8>,
}

/// Room for one buffer, in guest memory.
#[derive(Clone, Copy, Debug)]
struct Slot {
    gpa: u64,
    /// Most bytes of a buffer in it.
    len: usize,
}

/// A queue pair's half.
pub(crate) struct Side {
    pub(crate) queue: DriverQueue,
    pub(crate) fds: QueueFds,
    free: Vec<Slot>,
    /// What the device has, by token.
    busy: HashMap<u16, (Slot, Vec<Buffer>)>,
    /// Buffers the device gave back.
    pub(crate) completed: u64,
    /// Kicks sent, and kicks the device did not want.
    pub(crate) kicks: u64,
    pub(crate) spared: u64,
}

impl Side {
    /// Shows the device what was added, and kicks it if it asked for that.
    pub(crate) fn flush(&mut self) {
        self.queue.expose();
        if self.queue.kick_needed() {
            self.kicks += 1;
            self.fds.kick.signal().unwrap();
        } else {
            self.spared += 1;
        }
    }

    /// A new ring in the place of the old one; nothing is outstanding any more.
    pub(crate) fn renew(&mut self, mem: &Arc<GuestMemory>) {
        let spec = self.queue.spec().clone();
        self.queue = DriverQueue::new(mem, &spec).unwrap();
        self.free.extend(self.busy.drain().map(|(_, (slot, _))| slot));
    }

    fn collect(&mut self) -> Option<(Completed, Slot, Vec<Buffer>)> {
        let done = self.queue.collect().expect("the device keeps the rules")?;
        self.completed += 1;
        let (slot, buffers) = self.busy.remove(&done.token).expect("a buffer it had");
        Some((done, slot, buffers))
    }
}

/// A virtual machine.
pub(crate) struct Vm {
    pub(crate) frontend: Frontend,
    pub(crate) memory: SharedMemory,
    pub(crate) guest: Guest,
    pub(crate) rx: Vec<Side>,
    pub(crate) tx: Vec<Side>,
    /// Frames that arrived.
    pub(crate) inbox: VecDeque<Received>,
    /// Frames handed to the device.
    pub(crate) sent: u64,
    /// Whether used RX buffers are given to the device again.
    pub(crate) refilling: bool,
    rng: Rng,
    blank: Vec<u8>,
}

impl Vm {
    /// Connects to a server port and starts all queues.
    pub(crate) fn connect(socket: &Path, guest: &Guest) -> Vm {
        Vm::over(Frontend::connect_within(socket, PATIENCE).unwrap(), guest)
    }

    /// Waits for a client port and starts all queues.
    pub(crate) fn accept(listener: &UnixListener, guest: &Guest) -> Vm {
        Vm::over(Frontend::accept(listener).unwrap(), guest)
    }

    fn over(frontend: Frontend, guest: &Guest) -> Vm {
        let mut vm = Vm::stopped(frontend, guest);
        vm.negotiate();
        vm.start();
        vm
    }

    /// A VM whose driver has not come up: nothing has been told to the device.
    pub(crate) fn stopped(frontend: Frontend, guest: &Guest) -> Vm {
        frontend.set_timeout(PATIENCE).unwrap();
        let mut rng = Rng::new(guest.layouts.unwrap_or(0));
        let pairs = u64::from(guest.pairs);
        let ring_bytes = guest.ring_spec(0, &mut rng.clone()).bytes().next_multiple_of(4096);
        let tx_slot = Guest::slot(guest.tx_max + 12);
        let rx_slot = Guest::slot(guest.rx_buffer.1);
        let rings = 2 * pairs * ring_bytes;
        let tx_bytes = pairs * guest.tx_buffers as u64 * tx_slot;
        let rx_bytes = (pairs * guest.rx_buffers as u64 * rx_slot).next_multiple_of(4096);
        // Two adjacent regions, with TX buffers across their border, and one behind a hole.
        let border = (rings + tx_bytes / 2).next_multiple_of(4096);
        let end = (rings + tx_bytes).next_multiple_of(4096).max(border + 4096);
        let far = (end + HOLE).next_multiple_of(4096);
        let layout = [(0, border), (border, end - border), (far, rx_bytes)];
        let memory =
            SharedMemory::of(layout.map(|(gpa, len)| Region::unsealed(gpa, len).unwrap()).into())
                .unwrap();

        let mut side = |index: u64, from: u64, slot: u64, count: usize, len: usize| {
            let spec = guest.ring_spec(index * ring_bytes, &mut rng);
            let slots = (0..count as u64).map(|n| Slot { gpa: from + n * slot, len });
            Side {
                queue: DriverQueue::new(memory.guest(), &spec).unwrap(),
                fds: fds(),
                free: slots.collect(),
                busy: HashMap::new(),
                completed: 0,
                kicks: 0,
                spared: 0,
            }
        };
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for pair in 0..pairs {
            let from = far + pair * guest.rx_buffers as u64 * rx_slot;
            rx.push(side(2 * pair, from, rx_slot, guest.rx_buffers, guest.rx_buffer.1));
            let from = rings + pair * guest.tx_buffers as u64 * tx_slot;
            tx.push(side(2 * pair + 1, from, tx_slot, guest.tx_buffers, guest.tx_max + 12));
        }
        let guest = guest.clone();
        let blank = vec![BLANK; rx_slot as usize];
        let inbox = VecDeque::new();
        Vm { frontend, memory, guest, rx, tx, inbox, sent: 0, refilling: true, rng, blank }
    }

    pub(crate) fn negotiate(&mut self) {
        let features = self.guest.features();
        self.frontend.negotiate(features, protocol::NET).unwrap();
        let got = self.frontend.features & !feature::PROTOCOL_FEATURES;
        assert_eq!(got, features, "all features are offered");
    }

    /// Shares the memory, fills the RX rings and starts all queues.
    pub(crate) fn start(&mut self) {
        self.frontend.set_mem_table(&self.memory).unwrap();
        self.refill();
        for queue in 0..2 * self.guest.pairs {
            self.start_queue(queue);
        }
    }

    /// Starts one virtqueue: 2k is RX, 2k + 1 is TX.
    pub(crate) fn start_queue(&mut self, index: u16) {
        let Vm { frontend, memory, rx, tx, .. } = self;
        let sides = if index.is_multiple_of(2) { rx } else { tx };
        let side = &sides[usize::from(index) / 2];
        frontend.start_queue_with(index, memory, &side.queue, &side.fds).unwrap();
    }

    /// Gives the device all free RX buffers.
    pub(crate) fn refill(&mut self) {
        let Vm { guest, memory, rx, rng, blank, .. } = self;
        for side in rx {
            let mut added = false;
            while let Some(slot) = side.free.pop() {
                let len = rng.range(guest.rx_buffer.0, guest.rx_buffer.1).min(slot.len);
                if !side.queue.has_room(guest) {
                    side.free.push(slot);
                    break;
                }
                driver::write(memory.guest(), slot.gpa, blank);
                let most = if guest.mergeable { 3 } else { 8 };
                let Some((token, buffers)) = put(side, guest, rng, slot, len, most, true) else {
                    side.free.push(slot);
                    break;
                };
                side.busy.insert(token, (slot, buffers));
                added = true;
            }
            if added {
                side.flush();
            }
        }
    }

    /// Puts a frame into TX queue `pair` without showing it yet; false if there is no room.
    pub(crate) fn add(&mut self, pair: usize, header: &Vnet, frame: &[u8]) -> bool {
        let vnet_len = self.guest.vnet_len();
        let mut bytes = header.to_bytes()[..vnet_len].to_vec();
        bytes.extend_from_slice(frame);
        self.add_raw(pair, &bytes)
    }

    /// The same with bytes that need not be a header and a frame.
    pub(crate) fn add_raw(&mut self, pair: usize, bytes: &[u8]) -> bool {
        let Vm { guest, memory, tx, rng, .. } = self;
        let side = &mut tx[pair];
        let Some(slot) = side.free.pop() else { return false };
        assert!(bytes.len() <= slot.len, "a frame of {} in {slot:?}", bytes.len());
        let Some((token, buffers)) = put(side, guest, rng, slot, bytes.len(), 48, false) else {
            side.free.push(slot);
            return false;
        };
        scatter(memory.guest(), &buffers, bytes);
        side.busy.insert(token, (slot, buffers));
        self.sent += 1;
        true
    }

    /// Sends a frame that lies in memory of the guest's which is not `self.memory`.
    pub(crate) fn send_from(&mut self, other: &SharedMemory, gpa: u64, frame: &[u8]) {
        let bytes = [vec![0; self.guest.vnet_len()], frame.to_vec()].concat();
        assert!(driver::write(other.guest(), gpa, &bytes));
        let buffer = Buffer { gpa, len: bytes.len() as u32 };
        let side = &mut self.tx[0];
        let slot = side.free.pop().expect("a free TX buffer");
        let token = side.queue.add(&[buffer], &[], Shape::Direct).expect("room in the TX ring");
        side.busy.insert(token, (slot, vec![buffer]));
        self.sent += 1;
        side.flush();
    }

    /// Shows TX queue `pair` what was added.
    pub(crate) fn flush(&mut self, pair: usize) {
        self.tx[pair].flush();
    }

    /// Sends one frame by queue pair 0, as soon as there is room.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.send_on(0, &Vnet::default(), frame);
    }

    /// Sends one frame with its header by any queue pair, as soon as there is room.
    pub(crate) fn send_on(&mut self, pair: usize, header: &Vnet, frame: &[u8]) {
        if !self.add(pair, header, frame) {
            self.flush(pair);
            wait(
                || "room in the TX ring".into(),
                || {
                    self.poll();
                    self.add(pair, header, frame)
                },
            );
        }
        self.flush(pair);
    }

    /// Sends frames by queue pair 0, which are shown to the device all at once: there has to be room.
    pub(crate) fn send_at_once(&mut self, frames: &[Vec<u8>]) {
        self.poll();
        for frame in frames {
            assert!(self.add(0, &Vnet::default(), frame), "no room in the TX ring");
        }
        self.flush(0);
    }

    /// Takes back what the device is done with, and gives it fresh RX buffers.
    pub(crate) fn poll(&mut self) {
        for side in &mut self.tx {
            while let Some((done, slot, _)) = side.collect() {
                assert_eq!(done.len, 0, "nothing is written into a TX buffer");
                side.free.push(slot);
            }
        }
        let mut freed = false;
        for pair in 0..self.rx.len() {
            while let Some(received) = self.receive(pair) {
                self.inbox.push_back(received);
                freed = true;
            }
        }
        if freed && self.refilling {
            self.refill();
        }
    }

    /// The next frame of RX queue `pair`.
    fn receive(&mut self, pair: usize) -> Option<Received> {
        let Vm { guest, memory, rx, .. } = self;
        let (mem, side) = (memory.guest(), &mut rx[pair]);
        let vnet_len = guest.vnet_len();
        let (done, slot, buffers) = side.collect()?;
        let mut bytes = gather(mem, slot, &buffers, done.len as usize);
        side.free.push(slot);
        assert!(bytes.len() >= vnet_len, "a used buffer of {} bytes", bytes.len());
        let mut header = Vnet::parse(&bytes[..vnet_len]);
        for _ in 1..header.num_buffers {
            assert!(guest.mergeable, "{header:?} without VIRTIO_NET_F_MRG_RXBUF");
            let (done, slot, buffers) = side.collect().expect("all buffers of a frame at once");
            bytes.extend(gather(mem, slot, &buffers, done.len as usize));
            side.free.push(slot);
        }
        if vnet_len == 12 {
            assert!(header.num_buffers >= 1, "num_buffers of 0");
        }
        header.num_buffers = 0;
        let frame = bytes.split_off(vnet_len);
        Some(Received { queue: pair as u16, header, frame })
    }

    /// Waits until `count` frames are in the inbox, and takes them.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Received> {
        let seen = Cell::new(0);
        wait(
            || format!("{count} frames, of which {} came", seen.get()),
            || {
                self.poll();
                seen.set(self.inbox.len());
                seen.get() >= count
            },
        );
        self.inbox.drain(..count).collect()
    }

    /// Waits for this frame, whatever else comes.
    pub(crate) fn hear(&mut self, frame: &[u8]) {
        wait(
            || format!("{frame:x?}"),
            || {
                self.poll();
                self.inbox.drain(..).any(|received| received.frame == frame)
            },
        );
    }

    /// Waits until the device has given back every frame that was sent.
    pub(crate) fn drain(&mut self) {
        wait(
            || "all sent frames come back".into(),
            || {
                self.poll();
                self.tx.iter().all(|side| side.queue.outstanding() == 0)
            },
        );
    }

    /// RX buffers the device has.
    pub(crate) fn posted(&self, pair: usize) -> usize {
        self.rx[pair].busy.len()
    }

    /// Closes the connection.
    pub(crate) fn leave(self) {}
}

/// A kick, a call and an error descriptor.
pub(crate) fn fds() -> QueueFds {
    let event = || EventFd::new().unwrap();
    QueueFds { kick: event(), call: event(), err: event() }
}

/// Sleeps until the descriptor is signalled; false if it never is.
pub(crate) fn sleep_on(event: &EventFd) -> bool {
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&patience)).unwrap() == 1 && event.drain()
}

/// Room for at least one more buffer, whatever its layout.
trait Room {
    fn has_room(&self, guest: &Guest) -> bool;
}

impl Room for DriverQueue {
    fn has_room(&self, guest: &Guest) -> bool {
        self.free() > if guest.layouts.is_some() { 8 } else { 0 }
    }
}

/// Adds a buffer of `len` bytes in `slot`, in a random layout of at most `most` pieces.
fn put(
    side: &mut Side,
    guest: &Guest,
    rng: &mut Rng,
    slot: Slot,
    len: usize,
    most: usize,
    writable: bool,
) -> Option<(u16, Vec<Buffer>)> {
    let (buffers, shape) = match guest.layouts {
        None => (vec![Buffer { gpa: slot.gpa, len: len as u32 }], Shape::Direct),
        Some(_) => {
            let buffers = cut(rng, slot.gpa, len, most);
            let shape = match rng.below(3) {
                1 if guest.indirect => Shape::Indirect,
                2 if guest.indirect && !guest.packed => {
                    Shape::Mixed(rng.range(0, buffers.len() - 1))
                }
                _ => Shape::Direct,
            };
            (buffers, shape)
        }
    };
    let (readable, written): (&[Buffer], &[Buffer]) =
        if writable { (&[], &buffers) } else { (&buffers, &[]) };
    let token = side.queue.add(readable, written, shape)?;
    Some((token, buffers))
}

/// Cuts `len` bytes into up to `most` pieces with gaps between them: at random places, at places
/// where the device's own parts end, or one byte after the other.
fn cut(rng: &mut Rng, gpa: u64, len: usize, most: usize) -> Vec<Buffer> {
    let pieces = if rng.one_in(3) { 1 } else { rng.range(1, most.min(len)) };
    let mut ends: Vec<usize> = Vec::new();
    while ends.len() + 1 < pieces {
        ends.push(match rng.below(4) {
            0 => rng.range(1, len.min(30)),
            1 => rng.pick(&[10, 12, 13, 24, 26, 138, 140, 141, len - 1, len / 2]).clamp(1, len),
            _ => rng.range(1, len),
        });
    }
    ends.push(len);
    ends.sort_unstable();
    ends.dedup();
    let (mut at, mut start) = (gpa, 0);
    let mut buffers = Vec::new();
    for end in ends {
        buffers.push(Buffer { gpa: at, len: (end - start) as u32 });
        at += (end - start + rng.range(0, GAP)) as u64;
        start = end;
    }
    buffers
}

/// Writes bytes into pieces that hold just as many.
pub(crate) fn scatter(mem: &GuestMemory, buffers: &[Buffer], bytes: &[u8]) {
    let mut rest = bytes;
    for buffer in buffers {
        let (piece, more) = rest.split_at(buffer.len as usize);
        assert!(driver::write(mem, buffer.gpa, piece));
        rest = more;
    }
    assert!(rest.is_empty());
}

/// The first `len` bytes of a buffer; nothing else in its slot was written.
fn gather(mem: &GuestMemory, slot: Slot, buffers: &[Buffer], len: usize) -> Vec<u8> {
    let end = buffers.last().map_or(slot.gpa, |last| last.gpa + u64::from(last.len));
    let all = driver::read(mem, slot.gpa, (end - slot.gpa) as u32 + GAP as u32).unwrap();
    let mut bytes = Vec::with_capacity(len);
    let mut at = 0;
    for buffer in buffers {
        let from = (buffer.gpa - slot.gpa) as usize;
        assert!(all[at..from].iter().all(|byte| *byte == BLANK), "written between two pieces");
        let n = (len - bytes.len()).min(buffer.len as usize);
        bytes.extend_from_slice(&all[from..from + n]);
        at = from + n;
    }
    assert_eq!(bytes.len(), len, "a used length beyond the buffer");
    let tail = &all[at..all.len().min(at + 64)];
    assert!(tail.iter().all(|byte| *byte == BLANK), "written behind the used length");
    bytes
}
