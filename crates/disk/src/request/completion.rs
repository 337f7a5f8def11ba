//! The end of a request.

use guestmem::GuestMemory;
use virtio_bindings::virtio_blk as blk;
use virtqueue::Chain;

/// What a guest is told about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// `VIRTIO_BLK_S_OK`.
    Ok = blk::VIRTIO_BLK_S_OK as u8,
    /// `VIRTIO_BLK_S_IOERR`.
    IoError = blk::VIRTIO_BLK_S_IOERR as u8,
    /// `VIRTIO_BLK_S_UNSUPP`.
    Unsupported = blk::VIRTIO_BLK_S_UNSUPP as u8,
}

/// What is left to do when a request has been carried out, or refused: once.
///
/// It borrows nothing, so an engine may keep it with what it submitted.
#[derive(Debug)]
#[must_use = "a request that is not completed keeps its guest waiting"]
pub struct Completion {
    /// Guest physical address of the status byte.
    status: Option<u64>,
    used: u32,
}

impl Completion {
    pub(super) fn of(mem: &GuestMemory, chain: &Chain<'_>) -> Self {
        let last = chain.writable().last().map(|last| last.skip(last.len() - 1));
        let status = last.and_then(|status| mem.address(status));
        Self { status, used: chain.writable_len() }
    }

    /// Writes the status; the chain is then to be given back with the length that is returned.
    /// `mem` is the memory the chain was popped from.
    ///
    /// That is all of its writable bytes, the status being the last of them, whatever the status
    /// says: a driver must not look at bytes beyond it (2.7.8). 0 if there was no room for it.
    #[must_use]
    pub fn finish(self, mem: &GuestMemory, status: Status) -> u32 {
        let Some(place) = self.status.and_then(|gpa| mem.slice(gpa, 1)) else { return 0 };
        place.copy_from(&[status as u8]);
        self.used
    }
}
