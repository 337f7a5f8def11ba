//! The TAP port: an interface of the host, or of a container's network namespace.
//!
//! As with a guest, queues are named from the other side: what the host sends comes in by a TX
//! queue ([`tx`]), what it receives goes out by an RX queue ([`rx`]). Both are the same descriptor.

pub(crate) mod config;
pub(crate) mod rx;
pub(crate) mod tx;

use std::sync::Arc;

use sys::tap::Tap;

/// The shared part of a TAP port.
#[derive(Debug)]
pub(crate) struct TapPort {
    /// Its RX queues, at least one.
    pub(crate) rx: Box<[rx::RxQueue]>,
    /// The interface.
    pub(crate) interface: Option<Arc<Tap>>,
    /// Created at.
    pub(crate) since: std::time::SystemTime,
}

impl TapPort {
    /// The MAC address the interface has now.
    pub(crate) fn mac(&self) -> Option<[u8; 6]> {
        self.interface.as_ref()?.mac().ok()
    }

    /// The RX queue that frames with this flow hash go to.
    #[inline]
    pub(crate) fn choose(&self, hash: impl FnOnce() -> u32) -> usize {
        match self.rx.len() {
            1 => 0,
            n => ((u64::from(hash()) * n as u64) >> 32) as usize,
        }
    }
}
