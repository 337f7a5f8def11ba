//! The processor's own clock: what measurements count time in; and the kernel's, as numbers.

#![expect(unsafe_code)]
// UNSAFETY: reading the counter is an intrinsic, and clock_gettime(2) takes a pointer.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time stamp counter, or nanoseconds where there is none. Runs at a constant rate on every
/// processor of the last decade; compare only values of this machine.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the counter, and Linux lets everyone read it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Ticks in a second, measured once, in 20 ms.
#[must_use]
pub fn ticks_per_second() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (time, start) = (Instant::now(), ticks());
        std::thread::sleep(Duration::from_millis(20));
        // The two clocks are read next to each other, so an interruption costs little accuracy.
        let (passed, counted) = (time.elapsed(), ticks().wrapping_sub(start));
        counted as f64 / passed.as_secs_f64()
    })
}

/// `CLOCK_MONOTONIC` in nanoseconds: what the kernel's own records are stamped with.
///
/// By the C library: rustix looks for the kernel's fast way (vDSO) itself, at a place that valgrind has
/// taken away, under which the instructions for a frame are counted.
#[must_use]
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // It cannot fail: the clock is always there.
    debug_assert_eq!(done, 0);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
