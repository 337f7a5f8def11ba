//! Requests as rows of bytes, from the virtio specification (1.3, 5.2.6).

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes of the header of a request.
pub const HEADER: usize = 16;

/// Types of requests.
pub mod kind {
    /// `VIRTIO_BLK_T_IN`
    pub const IN: u32 = 0;
    /// `VIRTIO_BLK_T_OUT`
    pub const OUT: u32 = 1;
    /// `VIRTIO_BLK_T_FLUSH`
    pub const FLUSH: u32 = 4;
    /// `VIRTIO_BLK_T_GET_ID`
    pub const GET_ID: u32 = 8;
    /// `VIRTIO_BLK_T_DISCARD`
    pub const DISCARD: u32 = 11;
    /// `VIRTIO_BLK_T_WRITE_ZEROES`
    pub const WRITE_ZEROES: u32 = 13;
}

/// Values of the status byte.
pub mod status {
    /// `VIRTIO_BLK_S_OK`
    pub const OK: u8 = 0;
    /// `VIRTIO_BLK_S_IOERR`
    pub const IOERR: u8 = 1;
    /// `VIRTIO_BLK_S_UNSUPP`
    pub const UNSUPP: u8 = 2;
}

/// Feature bits of the device, as masks.
pub mod device {
    /// `VIRTIO_BLK_F_RO`
    pub const RO: u64 = 1 << 5;
    /// `VIRTIO_BLK_F_BLK_SIZE`
    pub const BLK_SIZE: u64 = 1 << 6;
    /// `VIRTIO_BLK_F_FLUSH`
    pub const FLUSH: u64 = 1 << 9;
    /// `VIRTIO_BLK_F_CONFIG_WCE`
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// `VIRTIO_BLK_F_MQ`
    pub const MQ: u64 = 1 << 12;
    /// `VIRTIO_BLK_F_DISCARD`
    pub const DISCARD: u64 = 1 << 13;
    /// `VIRTIO_BLK_F_WRITE_ZEROES`
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// All a driver of today knows, zones and lifetimes apart.
    pub const ALL: u64 = 0x7fff;
    /// Where the capacity is in the configuration space, in bytes.
    pub const CONFIG_CAPACITY: usize = 0;
    /// Where the block size is.
    pub const CONFIG_BLK_SIZE: usize = 20;
    /// Where the cache mode is.
    pub const CONFIG_WRITEBACK: u32 = 32;
}

/// A request as two rows of bytes, whatever the borders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the device reads: header and data.
    pub readable: Vec<u8>,
    /// How many bytes the device may write, with the status.
    pub writable: u32,
}

impl Request {
    /// A request with so many bytes to be given and to be taken.
    #[must_use]
    pub fn new(kind: u32, sector: u64, given: &[u8], taken: u32) -> Request {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        Request { readable: [&header, given].concat(), writable: taken + 1 }
    }

    /// Reads so many bytes.
    #[must_use]
    pub fn read(sector: u64, bytes: u32) -> Request {
        Request::new(kind::IN, sector, &[], bytes)
    }

    /// Writes these bytes.
    #[must_use]
    pub fn write(sector: u64, bytes: &[u8]) -> Request {
        Request::new(kind::OUT, sector, bytes, 0)
    }

    /// Makes what was written stable.
    #[must_use]
    pub fn flush() -> Request {
        Request::new(kind::FLUSH, 0, &[], 0)
    }

    /// Asks for the name.
    #[must_use]
    pub fn get_id() -> Request {
        Request::new(kind::GET_ID, 0, &[], 20)
    }

    /// Discards a range.
    #[must_use]
    pub fn discard(sector: u64, sectors: u32) -> Request {
        Request::new(kind::DISCARD, 0, &range(sector, sectors, 0), 0)
    }

    /// Clears a range; with `unmap` its space may be given back.
    #[must_use]
    pub fn write_zeroes(sector: u64, sectors: u32, unmap: bool) -> Request {
        Request::new(kind::WRITE_ZEROES, 0, &range(sector, sectors, unmap.into()), 0)
    }
}

/// A range of DISCARD and WRITE_ZEROES.
#[must_use]
pub fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}
