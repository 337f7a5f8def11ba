//! Copies for x86-64: SSE2 for short ones; AVX-512, AVX2 or SSE2 for the rest.

#![expect(unsafe_code)]
// UNSAFETY: inline assembly that loads and stores through raw pointers; the caller answers for
// their ranges.

use std::arch::{asm, is_x86_feature_detected};
use std::mem::transmute;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Routine;

/// Longest copy that is done in the caller's code.
pub(crate) const SHORT: usize = 128;

/// Copies `len` bytes. Where the ranges overlap, some mixture of old and new bytes is the result.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes. Both may change meanwhile.
#[inline(always)]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    if len <= SHORT {
        // SAFETY: as promised by the caller.
        unsafe { short(dst, src, len) }
    } else {
        // SAFETY: as promised by the caller; len > SHORT.
        unsafe { long(dst, src, len) }
    }
}

/// # Safety
/// As for `copy`, with `len <= SHORT`.
#[inline]
unsafe fn short(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every branch reads and writes bytes 0..len and no others.
    unsafe {
        if len > 64 {
            asm!(
                "movups {a}, [{s}]",
                "movups {b}, [{s} + 16]",
                "movups {c}, [{s} + 32]",
                "movups {d}, [{s} + 48]",
                "movups {e}, [{s} + {n} - 64]",
                "movups {f}, [{s} + {n} - 48]",
                "movups {g}, [{s} + {n} - 32]",
                "movups {h}, [{s} + {n} - 16]",
                "movups [{t}], {a}",
                "movups [{t} + 16], {b}",
                "movups [{t} + 32], {c}",
                "movups [{t} + 48], {d}",
                "movups [{t} + {n} - 64], {e}",
                "movups [{t} + {n} - 48], {f}",
                "movups [{t} + {n} - 32], {g}",
                "movups [{t} + {n} - 16], {h}",
                s = in(reg) src, t = in(reg) dst, n = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                e = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        } else if len > 32 {
            asm!(
                "movups {a}, [{s}]",
                "movups {b}, [{s} + 16]",
                "movups {c}, [{s} + {n} - 32]",
                "movups {d}, [{s} + {n} - 16]",
                "movups [{t}], {a}",
                "movups [{t} + 16], {b}",
                "movups [{t} + {n} - 32], {c}",
                "movups [{t} + {n} - 16], {d}",
                s = in(reg) src, t = in(reg) dst, n = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        } else if len >= 16 {
            asm!(
                "movups {a}, [{s}]",
                "movups {b}, [{s} + {n} - 16]",
                "movups [{t}], {a}",
                "movups [{t} + {n} - 16], {b}",
                s = in(reg) src, t = in(reg) dst, n = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        } else {
            tiny(dst, src, len);
        }
    }
}

/// # Safety
/// As for `copy`, with `len < 16`.
#[inline]
unsafe fn tiny(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every branch reads and writes bytes 0..len and no others.
    unsafe {
        if len >= 8 {
            asm!(
                "mov {a}, [{s}]",
                "mov {b}, [{s} + {n} - 8]",
                "mov [{t}], {a}",
                "mov [{t} + {n} - 8], {b}",
                s = in(reg) src, t = in(reg) dst, n = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags)
            );
        } else if len >= 4 {
            asm!(
                "mov {a:e}, [{s}]",
                "mov {b:e}, [{s} + {n} - 4]",
                "mov [{t}], {a:e}",
                "mov [{t} + {n} - 4], {b:e}",
                s = in(reg) src, t = in(reg) dst, n = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags)
            );
        } else if len > 0 {
            // One to three bytes: the first, the middle one and the last.
            asm!(
                "mov {a}, byte ptr [{s}]",
                "mov {b}, byte ptr [{s} + {m}]",
                "mov {c}, byte ptr [{s} + {n} - 1]",
                "mov byte ptr [{t}], {a}",
                "mov byte ptr [{t} + {m}], {b}",
                "mov byte ptr [{t} + {n} - 1], {c}",
                s = in(reg) src, t = in(reg) dst, n = in(reg) len, m = in(reg) len / 2,
                a = out(reg_byte) _, b = out(reg_byte) _, c = out(reg_byte) _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// The routine for this processor; at first, the one that finds out which that is.
static LONG: AtomicPtr<()> = AtomicPtr::new(first_long as *mut ());

/// # Safety
/// As for `copy`, with `len > SHORT`.
#[inline(always)]
unsafe fn long(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: LONG only ever holds pointers to functions of this type. Relaxed will do: there is
    // nothing behind them.
    let routine: Routine = unsafe { transmute(LONG.load(Ordering::Relaxed)) };
    // SAFETY: as promised by the caller.
    unsafe { routine(dst, src, len) }
}

/// # Safety
/// As for `copy`, with `len > SHORT`.
#[cold]
unsafe fn first_long(dst: *mut u8, src: *const u8, len: usize) {
    let routine = best(len).map_or(long_sse2 as Routine, |routines| routines.long);
    LONG.store(routine as *mut (), Ordering::Relaxed);
    // SAFETY: as promised by the caller; the processor has the feature.
    unsafe { routine(dst, src, len) }
}

/// What there is for one kind of vectors.
pub(super) struct Routines {
    pub(super) name: &'static str,
    /// Whether this processor has them.
    pub(super) usable: bool,
    pub(super) long: Routine,
    /// [`copy_out`] and [`copy_in`].
    pub(super) outward: Routine,
    pub(super) inward: Routine,
}

/// All routines, the best first.
pub(super) fn routines() -> [Routines; 3] {
    // VBMI2 stands for the processors that do not slow down for wide vectors: Ice Lake, Zen 4 and
    // later.
    let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vbmi2");
    let avx2 = is_x86_feature_detected!("avx2");
    let of = |name, usable, [long, outward, inward]: [Routine; 3]| Routines {
        name,
        usable,
        long,
        outward,
        inward,
    };
    [
        of("avx512", avx512, [long_avx512, out_avx512, in_avx512]),
        of("avx2", avx2, [long_avx2, out_avx2, in_avx2]),
        of("sse2", true, [long_sse2, out_sse2, in_sse2]),
    ]
}

/// The best that this processor can run, for copies that are long.
fn best(len: usize) -> Option<Routines> {
    routines().into_iter().find(|routines| routines.usable && len > SHORT)
}

/// Copies `len` bytes to memory that nobody looks at soon: past the caches, in which nothing is fetched only to be
/// overwritten. When it returns, the stores are as if they had been ordinary ones.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn copy_out(dst: *mut u8, src: *const u8, len: usize) {
    let routine = best(len).map_or(copy as Routine, |routines| routines.outward);
    // SAFETY: as promised by the caller; the processor has the feature.
    unsafe { routine(dst, src, len) }
}

/// Copies `len` bytes from memory that nobody has looked at lately, nor will soon: it is fetched ahead, and does not
/// drive other things out of the caches.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn copy_in(dst: *mut u8, src: *const u8, len: usize) {
    let routine = best(len).map_or(copy as Routine, |routines| routines.inward);
    // SAFETY: as promised by the caller; the processor has the feature.
    unsafe { routine(dst, src, len) }
}

/// Bytes at either end of a long copy that are moved in pieces of 16. Also the alignment of the
/// middle.
const EDGE: usize = 64;

/// Copies 64 bytes in pieces of 16: few of those cross a cache line, and only crossing stores are
/// dear when another processor (the guest's) has had the destination last.
///
/// # Safety
/// `src` must be readable and `dst` writable for `EDGE` bytes.
#[inline(always)]
unsafe fn edge(dst: *mut u8, src: *const u8) {
    // SAFETY: as promised by the caller.
    unsafe {
        asm!(
            "movups {a}, [{s}]",
            "movups {b}, [{s} + 16]",
            "movups {c}, [{s} + 32]",
            "movups {d}, [{s} + 48]",
            "movups [{t}], {a}",
            "movups [{t} + 16], {b}",
            "movups [{t} + 32], {c}",
            "movups [{t} + 48], {d}",
            s = in(reg) src, t = in(reg) dst,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// One routine for vectors of `$width` bytes: the two ends in small pieces, then all whole cache
/// lines of the destination between them, four vectors at a time and one at a time. `$ahead` fetches
/// what comes later; `$finish` makes the vector registers fit for SSE again, and the stores like ordinary ones.
macro_rules! long_copy {
    ($name:ident, $feature:literal, $width:literal, $ahead:expr, $load:literal, $store:literal, $finish:expr,
        $a:tt, $b:tt, $c:tt, $d:tt) => {
        /// # Safety
        /// As for `copy`, with `len > SHORT`, on a processor that has the feature.
        #[target_feature(enable = $feature)]
        unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
            // SAFETY: len > SHORT >= 2 * EDGE, so both ends are inside, and so is the middle: it
            // begins at the first aligned address of the destination, less than EDGE from its
            // start, and ends less than EDGE before its end.
            unsafe {
                edge(dst, src);
                let (last_dst, last_src) = (dst.add(len - EDGE), src.add(len - EDGE));
                let skip = dst.addr().wrapping_neg() & (EDGE - 1);
                let (mut dst, mut src) = (dst.add(skip), src.add(skip));
                let mut left = (len - skip) & !(EDGE - 1);
                while left >= 4 * $width {
                    asm!(
                        $ahead,
                        concat!($load, " ", $a, ", [{s}]"),
                        concat!($load, " ", $b, ", [{s} + {w}]"),
                        concat!($load, " ", $c, ", [{s} + 2 * {w}]"),
                        concat!($load, " ", $d, ", [{s} + 3 * {w}]"),
                        concat!($store, " [{t}], ", $a),
                        concat!($store, " [{t} + {w}], ", $b),
                        concat!($store, " [{t} + 2 * {w}], ", $c),
                        concat!($store, " [{t} + 3 * {w}], ", $d),
                        s = in(reg) src, t = in(reg) dst, w = const $width,
                        out($a) _, out($b) _, out($c) _, out($d) _,
                        options(nostack, preserves_flags)
                    );
                    (dst, src) = (dst.add(4 * $width), src.add(4 * $width));
                    left -= 4 * $width;
                }
                while left > 0 {
                    asm!(
                        concat!($load, " ", $a, ", [{s}]"),
                        concat!($store, " [{t}], ", $a),
                        s = in(reg) src, t = in(reg) dst, out($a) _,
                        options(nostack, preserves_flags)
                    );
                    (dst, src) = (dst.add($width), src.add($width));
                    left -= $width;
                }
                asm!($finish, options(nostack, preserves_flags));
                edge(last_dst, last_src);
            }
        }
    };
}

/// The routines for one kind of vectors: an ordinary one, [`copy_out`]'s, whose stores `$past` the caches may overtake
/// others until the fence, and [`copy_in`]'s, which fetches the lines that are copied half a KiB later (of 256 bytes to
/// 4 KiB the best, or within the noise of it; where there are none that does nothing).
macro_rules! long_copies {
    ([$long:ident, $out:ident, $in:ident], $feature:literal, $width:literal, [$($line:literal),*],
        $load:literal, $store:literal, $past:literal, $clean:literal, $($register:tt),*) => {
        long_copy!($long, $feature, $width, "", $load, $store, $clean, $($register),*);
        long_copy!($out, $feature, $width, "", $load, $past, concat!($clean, "\nsfence"), $($register),*);
        long_copy!($in, $feature, $width, concat!($("prefetchnta [{s} + 512 + ", $line, "]\n"),*),
            $load, $store, $clean, $($register),*);
    };
}

// Registers 16 and up leave the upper halves of the lower ones clean, so no VZEROUPPER is due.
#[rustfmt::skip]
long_copies!(
    [long_avx512, out_avx512, in_avx512], "avx512f", 64, ["0", "64", "128", "192"],
    "vmovdqu64", "vmovdqa64", "vmovntdq", "", "zmm16", "zmm17", "zmm18", "zmm19"
);
#[rustfmt::skip]
long_copies!(
    [long_avx2, out_avx2, in_avx2], "avx2", 32, ["0", "64"],
    "vmovdqu", "vmovdqa", "vmovntdq", "vzeroupper", "ymm0", "ymm1", "ymm2", "ymm3"
);
#[rustfmt::skip]
long_copies!(
    [long_sse2, out_sse2, in_sse2], "sse2", 16, ["0"],
    "movups", "movaps", "movntdq", "", "xmm0", "xmm1", "xmm2", "xmm3"
);
