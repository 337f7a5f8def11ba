//! Where a queue's buffers are: many of one size, at equal distances.

/// A frame's virtio-net header with `VIRTIO_F_VERSION_1`.
pub const HEADER: u32 = 12;

/// Where in a cache line the header begins: the frame behind it is then aligned to a line, as
/// DPDK's driver has it, and Linux's for what it receives.
const HEADER_AT: u64 = 64 - HEADER as u64;

/// Buffers of one length in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Guest physical address of the first one.
    first: u64,
    /// Bytes from one to the next.
    stride: u64,
    /// Bytes of each, virtio-net header included.
    pub len: u32,
    /// How many there are.
    pub count: u32,
    /// The device writes them; otherwise it reads them.
    pub writable: bool,
}

impl Buffers {
    /// `count` buffers of `len` bytes from `gpa` on, a multiple of 64.
    #[must_use]
    pub fn new(gpa: u64, count: u32, len: u32, writable: bool) -> Buffers {
        Buffers { first: gpa + HEADER_AT, stride: stride(len), len, count, writable }
    }

    /// The same buffers for sending what was received into them, with this length.
    #[must_use]
    pub fn to_send(self, len: u32) -> Buffers {
        Buffers { len, writable: false, ..self }
    }

    /// Guest memory they need.
    #[must_use]
    pub fn bytes(count: u32, len: u32) -> u64 {
        u64::from(count) * stride(len)
    }

    /// Guest physical address of buffer `index`.
    #[inline(always)]
    #[must_use]
    pub fn address(&self, index: u32) -> u64 {
        self.first + u64::from(index) * self.stride
    }
}

/// An odd number of cache lines: a power of two would put every buffer into the same few sets of
/// the cache, which no driver does.
fn stride(len: u32) -> u64 {
    let lines = (HEADER_AT + u64::from(len)).div_ceil(64);
    (lines | 1) * 64
}
