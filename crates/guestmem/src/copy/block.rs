//! Copies between guest memory and a local block of two cache lines: the beginnings of frames.
//!
//! Every frame's first bytes are copied into the worker's memory, looked at, and copied out again
//! a few nanoseconds later. A load can take its bytes from a store that is still on its way to the
//! cache only if **one** store holds all of them; otherwise it waits until that store and every
//! store before it, those to cold guest memory included, have reached the cache. The ordinary
//! short copy ends in stores that overlap, so reading back its result waits nearly always. Here a
//! block is written and read in halves of cache lines, and what lies behind the end is masked out on
//! the guest's side. (Measured: frames of 64 bytes, 10 against 16 million a second.) In halves, as of
//! a store of 64 bytes only the lower half is had early; and of that by loads that do not reach over
//! a multiple of 8 bytes, so who is in a hurry reads words where they begin. (Measured: 2 against 5.5
//! nanoseconds, and a router's work on a frame 30 against 12 cycles.) Without masked moves it is pieces of
//! 16 bytes ([`super::pieces`]).

#![expect(unsafe_code)]
// UNSAFETY: inline assembly that loads and stores through raw pointers; the caller answers for their ranges.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A block: [`super::SHORT`] bytes.
pub(crate) type Block = [u8; 128];

/// Copies `len` bytes from `src` to the front of `block`; the rest of the block is undefined but initialised.
///
/// # Safety
/// `src` must be readable for `len` bytes, at most 128. They may change meanwhile.
#[inline(always)]
pub(crate) unsafe fn load(block: &mut Block, src: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if masked() {
        // SAFETY: as promised by the caller; the processor has the instructions.
        unsafe { x86_64::load(block, src, len) };
    } else {
        // SAFETY: as promised by the caller.
        unsafe { super::pieces::load(block, src, len) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as promised by the caller.
    unsafe {
        super::copy(block.as_mut_ptr(), src, len);
    }
}

/// Copies the first `len` bytes of `block` to `dst`.
///
/// # Safety
/// `dst` must be writable for `len` bytes, at most 128.
#[inline(always)]
pub(crate) unsafe fn store(dst: *mut u8, block: &Block, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if masked() {
        // SAFETY: as promised by the caller; the processor has the instructions.
        unsafe { x86_64::store(dst, block, len) };
    } else {
        // SAFETY: as promised by the caller.
        unsafe { super::pieces::store(dst, block, len) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as promised by the caller.
    unsafe {
        super::copy(dst, block.as_ptr(), len);
    }
}

/// Whether the processor has masked byte moves (AVX-512BW), once that was [found out](prepare).
#[cfg(target_arch = "x86_64")]
static MASKED: AtomicBool = AtomicBool::new(false);

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn masked() -> bool {
    MASKED.load(Relaxed)
}

/// Finds out what the processor can do: for a frame to look at one byte, and not at what the standard library has
/// found out, or not yet.
pub(crate) fn prepare() {
    #[cfg(target_arch = "x86_64")]
    MASKED.store(std::arch::is_x86_feature_detected!("avx512bw"), Relaxed);
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::Block;
    use std::arch::asm;

    /// Masks of the bytes to move in the two lines.
    #[inline(always)]
    fn masks(len: usize) -> (u64, u64) {
        match len {
            0..=63 => ((1 << len) - 1, 0),
            64..=127 => (u64::MAX, (1 << (len - 64)) - 1),
            _ => (u64::MAX, u64::MAX),
        }
    }

    /// # Safety
    /// As for [`super::load`], on a processor with AVX-512BW.
    #[inline(always)]
    pub(super) unsafe fn load(block: &mut Block, src: *const u8, len: usize) {
        let (low, high) = masks(len);
        // SAFETY: masked bytes are neither read nor do they fault; the block holds two lines. Registers 16 and up, and
        // mask registers, are used by nothing that was not compiled for AVX-512.
        unsafe {
            asm!(
                "kmovq k1, {low}",
                "vmovdqu8 zmm16{{k1}}{{z}}, [{s}]",
                "vmovdqu64 [{t}], ymm16",
                "vextracti64x4 [{t} + 32], zmm16, 1",
                low = in(reg) low, s = in(reg) src, t = in(reg) block.as_mut_ptr(),
                out("k1") _, out("zmm16") _, options(nostack, preserves_flags)
            );
            if high != 0 {
                asm!(
                    "kmovq k1, {high}",
                    "vmovdqu8 zmm16{{k1}}{{z}}, [{s} + 64]",
                    "vmovdqu64 [{t} + 64], zmm16",
                    high = in(reg) high, s = in(reg) src, t = in(reg) block.as_mut_ptr(),
                    out("k1") _, out("zmm16") _, options(nostack, preserves_flags)
                );
            }
        }
    }

    /// # Safety
    /// As for [`super::store`], on a processor with AVX-512BW.
    #[inline(always)]
    pub(super) unsafe fn store(dst: *mut u8, block: &Block, len: usize) {
        let (low, high) = masks(len);
        // SAFETY: masked bytes are neither written nor do they fault; otherwise as in `load`.
        unsafe {
            asm!(
                "kmovq k1, {low}",
                "vmovdqu64 ymm16, [{s}]",
                "vinserti64x4 zmm16, zmm16, [{s} + 32], 1",
                "vmovdqu8 [{t}]{{k1}}, zmm16",
                low = in(reg) low, s = in(reg) block.as_ptr(), t = in(reg) dst,
                out("k1") _, out("zmm16") _, options(nostack, preserves_flags)
            );
            if high != 0 {
                asm!(
                    "kmovq k1, {high}",
                    "vmovdqu64 zmm16, [{s} + 64]",
                    "vmovdqu8 [{t} + 64]{{k1}}, zmm16",
                    high = in(reg) high, s = in(reg) block.as_ptr(), t = in(reg) dst,
                    out("k1") _, out("zmm16") _, options(nostack, preserves_flags)
                );
            }
        }
    }
}
