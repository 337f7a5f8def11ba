//! Hints that a cache line will be needed: they wait for nothing and cannot fail, whatever is or is
//! not at the address.

#![expect(unsafe_code)]
// UNSAFETY: an instruction that Rust has no stable name for.

/// Asks for the cache line at `at`, to be written: it arrives while other work goes on, where a
/// store that misses holds up all stores after it. Measured in docs/performance.md.
#[inline(always)]
pub fn write<T>(at: *const T) {
    // SAFETY: a prefetch changes nothing and faults on no address; processors that know none take
    // it for a no-operation.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Asks for the cache line at `at`, to be read.
#[inline(always)]
pub fn read<T>(at: *const T) {
    // SAFETY: a prefetch changes nothing and faults on no address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
