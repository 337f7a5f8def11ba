//! Four 64-bit keys that are compared at once.

#![expect(unsafe_code)]
// UNSAFETY: memory that another thread may write is read 16 bytes at a time, for which Rust has no
// atomic type.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

/// Half a cache line of keys. Each is 0 until it is [set](Quad::set), once, by one thread; any number
/// of threads look for keys meanwhile. The lower half of a key is not 0.
///
/// The halves of keys lie apart, as processors of the x86-64 baseline compare four 32-bit words at
/// once, but no 64-bit ones.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct Quad {
    low: [AtomicU32; 4],
    high: [AtomicU32; 4],
}

impl Quad {
    /// How many there are.
    pub const KEYS: usize = 4;

    /// The number of the first key that is this one: of 0, of the first that was not set. Who finds a key
    /// sees what was written before it was set.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, key: u64) -> Option<usize> {
        NonZeroU32::new(self.equal(key)).map(|found| found.trailing_zeros() as usize)
    }

    /// A bit for each that is this key.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn equal(&self, key: u64) -> u32 {
        use std::arch::x86_64::{
            __m128i, _mm_and_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_cvtsi64_si128,
            _mm_movemask_ps, _mm_shuffle_epi32,
        };
        let (high, low): (__m128i, __m128i);
        // SAFETY: reads the 32 bytes of self, which are aligned. Words of 32 bits are read in one
        // piece each, and the lower halves before the upper ones, like loads with Acquire order.
        unsafe {
            std::arch::asm!(
                "movdqa {low}, [{at}]",
                "movdqa {high}, [{at} + 16]",
                at = in(reg) self,
                high = out(xmm_reg) high,
                low = out(xmm_reg) low,
                options(readonly, nostack, preserves_flags),
            );
        }
        // SAFETY: instructions of SSE2, which all processors of this architecture have.
        unsafe {
            let key = _mm_cvtsi64_si128(key.cast_signed());
            let low = _mm_cmpeq_epi32(low, _mm_shuffle_epi32::<0b00_00_00_00>(key));
            let high = _mm_cmpeq_epi32(high, _mm_shuffle_epi32::<0b01_01_01_01>(key));
            _mm_movemask_ps(_mm_castsi128_ps(_mm_and_si128(high, low))) as u32
        }
    }

    /// A bit for each that is this key.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn equal(&self, key: u64) -> u32 {
        (0..Self::KEYS).map(|n| u32::from(self.get(n) == key) << n).sum()
    }

    /// A key; 0 also for a number that is too large.
    #[inline]
    #[must_use]
    pub fn get(&self, n: usize) -> u64 {
        let (Some(high), Some(low)) = (self.high.get(n), self.low.get(n)) else { return 0 };
        let low = low.load(Ordering::Acquire);
        u64::from(high.load(Ordering::Relaxed)) << 32 | u64::from(low)
    }

    /// Sets one that was not set. Nothing happens if there is no such number.
    pub fn set(&self, n: usize, key: u64) {
        if let (Some(high), Some(low)) = (self.high.get(n), self.low.get(n)) {
            high.store((key >> 32) as u32, Ordering::Relaxed);
            low.store(key as u32, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_what_a_search_one_by_one_finds(
            keys in prop::array::uniform4(prop_oneof![Just(0), Just(1), any::<u64>()]),
            other in prop_oneof![Just(0), Just(1), Just(1 << 32), Just(1 << 32 | 1), any::<u64>()],
        ) {
            let quad = Quad::default();
            (0..).zip(keys).for_each(|(n, key)| quad.set(n, key));
            for key in keys.into_iter().chain([other]) {
                prop_assert_eq!(quad.find(key), keys.iter().position(|found| *found == key));
            }
            prop_assert!((0..).zip(keys).all(|(n, key)| quad.get(n) == key));
        }
    }

    /// Keys in halves that another thread sets are found whole, with what was written before them.
    #[test]
    fn a_key_is_found_with_what_was_written_before_it() {
        for turn in 1..=2_000 {
            let (quad, value) = (Quad::default(), AtomicU32::new(0));
            let key = turn << 32 | 7;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    value.store(1, Ordering::Relaxed);
                    quad.set(2, key);
                });
                while quad.find(key).is_none() {
                    std::hint::spin_loop();
                }
                assert_eq!(value.load(Ordering::Relaxed), 1);
            });
        }
    }
}
