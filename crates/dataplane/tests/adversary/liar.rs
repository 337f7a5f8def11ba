//! A VM whose driver does not keep the rules.

use std::path::Path;
use std::time::Duration;

use guestmem::GuestMemory;
use testkit::driver::{self, Buffer, DriverQueue, Raw, RawDesc, RingSpec, Shape, flags};
use testkit::frontend::{
    Frontend, FrontendError, QueueFds, Region, SharedMemory, feature, protocol, request,
};

use crate::common::PATIENCE;
use crate::common::frames::{BROADCAST, Mac, eth};
use crate::common::vm::fds;

/// Entries of its rings.
pub(crate) const N: u16 = 128;
/// Memory: a small region with rings, tables and buffers, a hole, and a large region.
pub(crate) const START: u64 = 1 << 20;
pub(crate) const DATA: u64 = START + (1 << 20);
pub(crate) const TABLE: u64 = START + (1 << 19);
pub(crate) const HOLE: u64 = START + (2 << 20);
pub(crate) const BIG: u64 = 8 << 20;
pub(crate) const BIG_LEN: u32 = 64 << 20;
pub(crate) const END: u64 = BIG + BIG_LEN as u64;
/// Where the rings are at first, and where those of the second try are.
const RINGS: [u64; 2] = [START, START + (1 << 18)];

/// `VIRTIO_NET_F_MRG_RXBUF`.
const MRG_RXBUF: u64 = 1 << 15;

/// Which optional features a liar negotiates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) packed: bool,
    pub(crate) indirect: bool,
    pub(crate) event_idx: bool,
    pub(crate) mergeable: bool,
}

/// One of its queues, as a lie sees it.
pub(crate) struct Ring {
    pub(crate) queue: DriverQueue,
    pub(crate) fds: QueueFds,
    pub(crate) packed: bool,
    /// What an ordinary descriptor of this queue has: WRITE or nothing.
    pub(crate) write: u16,
    mem: std::sync::Arc<GuestMemory>,
}

impl Ring {
    fn new(memory: &SharedMemory, options: Options, index: u64, at: u64) -> Ring {
        let gpa = at + index * 0x1_0000;
        let spec =
            RingSpec { event_idx: options.event_idx, ..RingSpec::new(options.packed, N, gpa) };
        Ring {
            queue: DriverQueue::new(memory.guest(), &spec).unwrap(),
            fds: fds(),
            packed: options.packed,
            write: if index == 0 { flags::WRITE } else { 0 },
            mem: std::sync::Arc::clone(memory.guest()),
        }
    }

    pub(crate) fn raw(&self) -> &Raw {
        self.queue.raw()
    }

    pub(crate) fn write(&self, gpa: u64, bytes: &[u8]) {
        assert!(driver::write(&self.mem, gpa, bytes));
    }

    /// An ordinary buffer, with a frame in it on the TX side.
    pub(crate) fn good(&self, flags: u16, tag: u16) -> RawDesc {
        RawDesc { addr: DATA, len: 128, flags: flags | self.write, tag }
    }

    /// Puts descriptors in place from slot 0 and makes the first of them available.
    pub(crate) fn offer(&self, descs: &[RawDesc]) {
        self.place(descs);
        if !self.packed {
            self.raw().set_avail_entry(0, 0);
            self.raw().set_avail_idx(1);
        }
    }

    /// Puts descriptors in place; a packed ring shows them with it.
    pub(crate) fn place(&self, descs: &[RawDesc]) {
        for (slot, one) in descs.iter().enumerate().rev() {
            let mark = if self.packed { flags::AVAIL } else { 0 };
            self.raw().set_desc(slot as u16, &RawDesc { flags: one.flags | mark, ..*one });
        }
    }

    pub(crate) fn one(&self, addr: u64, len: u32, flags: u16, tag: u16) {
        self.offer(&[RawDesc { addr, len, flags, tag }]);
    }

    /// Writes an indirect table.
    pub(crate) fn write_table(&self, table: &[RawDesc]) {
        for (at, one) in (TABLE..).step_by(16).zip(table) {
            let halves = if self.packed { one.packed() } else { one.split() };
            self.write(at, &halves.map(u64::to_le_bytes).concat());
        }
    }

    /// Offers one indirect descriptor with what is in its table.
    pub(crate) fn offer_table(&self, table: &[RawDesc]) {
        self.write_table(table);
        self.one(TABLE, 16 * table.len() as u32, flags::INDIRECT, 0);
    }

    pub(crate) fn kick(&self) {
        self.fds.kick.signal().unwrap();
    }
}

/// The VM.
pub(crate) struct Liar {
    pub(crate) frontend: Frontend,
    pub(crate) memory: SharedMemory,
    pub(crate) options: Options,
    pub(crate) mac: Mac,
    /// RX and TX.
    pub(crate) rings: [Ring; 2],
}

impl Liar {
    /// Connects and shares its memory; no queue runs yet.
    pub(crate) fn connect(socket: &Path, options: Options, mac: Mac) -> Liar {
        let mut frontend = Frontend::connect_within(socket, PATIENCE).unwrap();
        frontend.set_timeout(PATIENCE).unwrap();
        let bit = |on, bit| if on { bit } else { 0 };
        let features = feature::VERSION_1
            | bit(options.packed, feature::RING_PACKED)
            | bit(options.indirect, feature::INDIRECT_DESC)
            | bit(options.event_idx, feature::EVENT_IDX)
            | bit(options.mergeable, MRG_RXBUF);
        frontend.negotiate(features, protocol::NET).unwrap();
        let regions = [(START, HOLE - START), (BIG, BIG_LEN.into())];
        let regions = regions.map(|(gpa, len)| Region::unsealed(gpa, len).unwrap()).into();
        let memory = SharedMemory::of(regions).unwrap();
        frontend.set_mem_table(&memory).unwrap();
        let frame = [vec![0; 12], eth(BROADCAST, mac, &[0x11; 102])].concat();
        assert!(driver::write(memory.guest(), DATA, &frame));
        let rings = [0, 1].map(|index| Ring::new(&memory, options, index, RINGS[0]));
        Liar { frontend, memory, options, mac, rings }
    }

    /// Starts both queues, TX first.
    pub(crate) fn start(&mut self) -> Result<(), FrontendError> {
        for index in [1, 0] {
            let Ring { queue, fds, .. } = &self.rings[usize::from(index)];
            self.frontend.start_queue_with(index, &self.memory, queue, fds)?;
        }
        Ok(())
    }

    /// Stops both queues, makes new rings, and sends and receives like anybody else. `send` has
    /// somebody send a broadcast; the frame of the liar is the return.
    pub(crate) fn repent(&mut self, mut send: impl FnMut()) -> Result<Vec<u8>, FrontendError> {
        for index in [0, 1] {
            self.frontend.stop_queue(index)?;
        }
        self.rings = [0, 1].map(|index| Ring::new(&self.memory, self.options, index, RINGS[1]));
        self.start()?;
        let frame = eth(BROADCAST, self.mac, b"I am sorry for what I said");
        let bytes = [vec![0; 12], frame.clone()].concat();
        assert!(driver::write(self.memory.guest(), DATA, &bytes));
        let [rx, tx] = &mut self.rings;
        tx.queue.add(&[Buffer { gpa: DATA, len: bytes.len() as u32 }], &[], Shape::Direct);
        tx.queue.expose();
        tx.kick();
        rx.queue.add(&[], &[Buffer { gpa: DATA + 4096, len: 2048 }], Shape::Direct).unwrap();
        rx.queue.expose();
        let frontend = &mut self.frontend;
        let mut start = std::time::Instant::now();
        let patience = start + PATIENCE;
        // A frame sent before the worker has heard of the ring is not for it.
        while !(rx.queue.has_used() && tx.queue.has_used()) {
            if start.elapsed() > Duration::from_millis(5) {
                frontend.get_u64(request::GET_FEATURES)?;
                start = std::time::Instant::now();
            }
            send();
            std::thread::sleep(Duration::from_micros(100));
            assert!(start < patience, "the port does not live on");
        }
        Ok(frame)
    }
}
