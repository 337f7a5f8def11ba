//! The copies of [`super::block`] for processors without masked moves: a block is written and read in pieces of
//! 16 bytes, and what is left in two words, so that each load finds all of its bytes in one store.

#![expect(unsafe_code)]
// UNSAFETY: loads and stores through raw pointers; the caller answers for their ranges.

use std::arch::asm;

use super::block::Block;
use super::word;

/// Bytes of a piece.
const PIECE: usize = 16;

/// # Safety
/// As for [`super::block::load`].
#[inline(always)]
pub(super) unsafe fn load(block: &mut Block, src: *const u8, len: usize) {
    let to = block.as_mut_ptr();
    // SAFETY: as promised by the caller; a block is so many whole pieces.
    unsafe {
        let done = whole(to, src, len);
        if done < len {
            let [low, high] = rest(src.add(done), len - done);
            word::store_u64(to.add(done), low);
            word::store_u64(to.add(done + 8), high);
        }
    }
}

/// # Safety
/// As for [`super::block::store`].
#[inline(always)]
pub(super) unsafe fn store(dst: *mut u8, block: &Block, len: usize) {
    let from = block.as_ptr();
    // SAFETY: as promised by the caller; a block is so many whole pieces.
    unsafe {
        let done = whole(dst, from, len);
        if done < len {
            let words = [word::load_u64(from.add(done)), word::load_u64(from.add(done + 8))];
            put_rest(dst.add(done), words, len - done);
        }
    }
}

/// Copies the whole pieces; returns the bytes of them. Without a loop, in which 60 bytes took up to twice as long where
/// another CPU had the memory in its cache.
///
/// # Safety
/// Both must be that long, at most 128 bytes.
#[inline(always)]
unsafe fn whole(dst: *mut u8, src: *const u8, len: usize) -> usize {
    let mut done = 0;
    // SAFETY: what is copied is a binary digit of len, of which those above it have been copied.
    unsafe {
        if len >= 4 * PIECE {
            four(dst, src);
            done = 4 * PIECE;
            if len == 8 * PIECE {
                four(dst.add(done), src.add(done));
                return len;
            }
        }
        if len & (2 * PIECE) != 0 {
            asm!(
                "movups {a}, [{s}]",
                "movups {b}, [{s} + 16]",
                "movups [{t}], {a}",
                "movups [{t} + 16], {b}",
                s = in(reg) src.add(done), t = in(reg) dst.add(done),
                a = out(xmm_reg) _, b = out(xmm_reg) _, options(nostack, preserves_flags)
            );
            done += 2 * PIECE;
        }
        if len & PIECE != 0 {
            asm!(
                "movups {a}, [{s}]",
                "movups [{t}], {a}",
                s = in(reg) src.add(done), t = in(reg) dst.add(done), a = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
            done += PIECE;
        }
    }
    done
}

/// # Safety
/// Both must be as long as four pieces.
#[inline(always)]
unsafe fn four(dst: *mut u8, src: *const u8) {
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

/// The `len` bytes there, each read once but for those in the middle.
///
/// # Safety
/// They must be readable: 1 to 15.
#[inline(always)]
unsafe fn rest(src: *const u8, len: usize) -> [u64; 2] {
    // Of a second word that reaches back over the first, what the first does not have.
    let behind = |word: u64, bytes: usize| word >> (8 * (2 * bytes - 1 - len)) >> 8;
    // SAFETY: every branch reads bytes 0..len and no others.
    unsafe {
        match len {
            8.. => [word::load_u64(src), behind(word::load_u64(src.add(len - 8)), 8)],
            4.. => {
                let last = behind(word::load_u32(src.add(len - 4)).into(), 4);
                [u64::from(word::load_u32(src)) | last << 32, 0]
            }
            2.. => {
                let last = behind(word::load_u16(src.add(len - 2)).into(), 2);
                [u64::from(word::load_u16(src)) | last << 16, 0]
            }
            _ => [word::load_u8(src).into(), 0],
        }
    }
}

/// Writes the first `len` bytes of two words.
///
/// # Safety
/// They must be writable: 1 to 15.
#[inline(always)]
unsafe fn put_rest(dst: *mut u8, [low, high]: [u64; 2], len: usize) {
    // SAFETY: every branch writes bytes 0..len and no others.
    unsafe {
        match len {
            8.. => {
                let both = u128::from(high) << 64 | u128::from(low);
                word::store_u64(dst, low);
                word::store_u64(dst.add(len - 8), (both >> (8 * (len - 8))) as u64);
            }
            4.. => {
                word::store_u32(dst, low as u32);
                word::store_u32(dst.add(len - 4), (low >> (8 * (len - 4))) as u32);
            }
            2.. => {
                word::store_u16(dst, low as u16);
                word::store_u16(dst.add(len - 2), (low >> (8 * (len - 2))) as u16);
            }
            _ => word::store_u8(dst, low as u8),
        }
    }
}
