//! Hints to the cache. They have no effect but on time: an address that is not mapped is ignored.

#![cfg_attr(target_arch = "x86_64", expect(unsafe_code))]
// UNSAFETY: the prefetch instruction is an unsafe intrinsic although it cannot fault.

/// The cache line at `at` will be read.
#[inline(always)]
pub(crate) fn prefetch_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT0 is a hint; it accesses nothing and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The cache line at `at` will be written.
#[inline(always)]
pub(crate) fn prefetch_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHW is a hint; it accesses nothing and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
