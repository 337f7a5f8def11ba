//! Single accesses at any address: one instruction each where that is possible.

#![expect(unsafe_code)]
// UNSAFETY: loads and stores through raw pointers; the caller answers for their ranges.

macro_rules! word {
    ($int:ty, $load:ident, $store:ident, $class:ident, $mov_load:literal, $mov_store:literal) => {
        /// # Safety
        /// As many bytes as the type has must be readable at `at`. They may change meanwhile.
        #[inline(always)]
        pub(crate) unsafe fn $load(at: *const u8) -> $int {
            #[cfg(target_arch = "x86_64")]
            {
                let value: $int;
                // SAFETY: as promised by the caller; x86 loads from any address.
                unsafe {
                    std::arch::asm!($mov_load, v = out($class) value, p = in(reg) at,
                        options(nostack, preserves_flags, readonly));
                }
                value
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                let mut bytes = [0; size_of::<$int>()];
                for (i, byte) in bytes.iter_mut().enumerate() {
                    // SAFETY: as promised by the caller.
                    *byte = unsafe { at.add(i).read_volatile() };
                }
                <$int>::from_le_bytes(bytes)
            }
        }

        /// # Safety
        /// As many bytes as the type has must be writable at `at`.
        #[inline(always)]
        pub(crate) unsafe fn $store(at: *mut u8, value: $int) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as promised by the caller; x86 stores to any address.
            unsafe {
                std::arch::asm!($mov_store, v = in($class) value, p = in(reg) at,
                    options(nostack, preserves_flags));
            }
            #[cfg(not(target_arch = "x86_64"))]
            for (i, byte) in value.to_le_bytes().into_iter().enumerate() {
                // SAFETY: as promised by the caller.
                unsafe { at.add(i).write_volatile(byte) };
            }
        }
    };
}

word!(u64, load_u64, store_u64, reg, "mov {v:r}, [{p}]", "mov [{p}], {v:r}");
word!(u32, load_u32, store_u32, reg, "mov {v:e}, [{p}]", "mov [{p}], {v:e}");
word!(u8, load_u8, store_u8, reg_byte, "mov {v}, byte ptr [{p}]", "mov byte ptr [{p}], {v}");
word!(u16, load_u16, store_u16, reg, "movzx {v:e}, word ptr [{p}]", "mov [{p}], {v:x}");
