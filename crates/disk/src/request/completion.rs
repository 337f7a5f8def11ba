//! The end of a request.

use guestmem::GuestSlice;
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
#[derive(Debug)]
#[must_use = "a request that is not completed keeps its guest waiting"]
pub struct Completion<'m> {
    status: Option<GuestSlice<'m>>,
    used: u32,
}

impl<'m> Completion<'m> {
    pub(super) fn of(chain: &Chain<'m>) -> Self {
        let status = chain.writable().last().map(|last| last.skip(last.len() - 1));
        Self { status, used: chain.writable_len() }
    }

    /// Writes the status; the chain is then to be given back with the length that is returned.
    ///
    /// That is all of its writable bytes, the status being the last of them, whatever the status
    /// says: a driver must not look at bytes beyond it (2.7.8). 0 if there was no room for it.
    #[must_use]
    pub fn finish(self, status: Status) -> u32 {
        if let Some(place) = self.status {
            place.copy_from(&[status as u8]);
        }
        self.used
    }
}
