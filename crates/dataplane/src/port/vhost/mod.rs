//! The vhost port: a virtio-net device of a VM, over vhost-user.
//!
//! ```text
//! guest TX queue (2k+1) --> LiveTx, owned by one worker at a time
//! guest RX queue (2k)   <-- RxQueue, behind a lock any worker takes for one burst
//! ```
//!
//! The vhost-user session runs on the control runtime ([`config`]); it starts and stops queues by
//! commands to workers.

pub(crate) mod config;
pub(crate) mod rx;
pub(crate) mod tx;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pace::Moderation;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use virtqueue::GuestFault;

use crate::session::Info;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of the longest frame of which more than the first line is fetched early: of longer ones the
/// processor sees by itself how they go on.
const SHORT: usize = 1024;
/// Cache lines of what is waited for alone that are fetched early at most: an Ethernet frame of the usual largest size.
const LINES: usize = 24;

/// The shared part of a vhost port.
#[derive(Debug)]
pub(crate) struct VhostPort {
    /// Its RX queues, one for each queue pair it may have.
    pub(crate) rx: Box<[rx::RxQueue]>,
    /// Which of them run and are enabled: bit k is queue pair k.
    active: AtomicU64,
    /// Where the data plane reports a ring that lied or memory that vanished.
    faults: mpsc::UnboundedSender<String>,
    /// When its guest is interrupted for frames it received.
    pub(crate) moderation: Moderation,
    /// What the session told control.
    pub(crate) info: Mutex<Info>,
}

/// Whether no more than one bit is set. Counting takes a dozen instructions, this takes two.
#[inline(always)]
fn is_one(active: u64) -> bool {
    active & active.wrapping_sub(1) == 0
}

/// The queue of the only bit; 0 if none is set.
#[inline(always)]
fn the_one(active: u64) -> u16 {
    (active.trailing_zeros() % u64::BITS) as u16
}

impl VhostPort {
    /// A port of up to `pairs` queue pairs (1 to 32) that reports faults to `faults`.
    pub(crate) fn new(
        pairs: u16,
        moderation: Moderation,
        faults: mpsc::UnboundedSender<String>,
    ) -> Self {
        Self {
            rx: (0..pairs).map(|_| rx::RxQueue::default()).collect(),
            active: AtomicU64::new(0),
            faults,
            moderation,
            info: Mutex::new(Info::new(usize::from(pairs) * 2)),
        }
    }

    /// The RX queue that frames with this flow hash go to; the first if none runs.
    ///
    /// With one queue, which is the common case, the hash is not computed.
    #[inline(always)]
    pub(crate) fn choose(&self, hash: impl FnOnce() -> u32) -> u16 {
        let active = self.active.load(Relaxed);
        if is_one(active) { the_one(active) } else { spread(active, hash()) }
    }

    /// The RX queue to which all frames for it go; the first if none runs, `None` if several do.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<u16> {
        let active = self.active.load(Relaxed);
        is_one(active).then(|| the_one(active))
    }

    /// Has the session ended because a ring of it lied, or because the ring was in memory that
    /// vanished, whose zeroes then looked like a lie.
    #[cold]
    pub(crate) fn stop_for(&self, vanished: bool, fault: &GuestFault) {
        if vanished {
            return self.memory_vanished();
        }
        // Nobody listens only while the port is being removed.
        let _ = self.faults.send(format!("{}: {fault}", fault.name()));
    }

    /// Has the session ended because its memory was truncated.
    #[cold]
    pub(crate) fn memory_vanished(&self) {
        let why = "memory-vanished: guest memory was truncated under the running session";
        let _ = self.faults.send(why.into());
    }

    /// Marks RX queue `index` as one that takes frames, or not. Only the port's `rx_worker` calls this.
    pub(crate) fn set_active(&self, index: u16, on: bool) {
        let bit = 1u64.checked_shl(index.into()).unwrap_or(0);
        let now = self.active.load(Relaxed);
        self.active.store(if on { now | bit } else { now & !bit }, Relaxed);
    }
}

/// One of several queues, by a flow's hash.
#[inline(never)]
fn spread(active: u64, hash: u32) -> u16 {
    let share = |queues: u32| (u64::from(hash) * u64::from(queues)) >> 32;
    if active & active.wrapping_add(1) == 0 {
        // The first few, as nearly always: no branch that depends on the frame.
        return share(active.trailing_ones()) as u16;
    }
    let mut rest = active;
    for _ in 0..share(active.count_ones()) {
        rest &= rest - 1;
    }
    rest.trailing_zeros() as u16
}
