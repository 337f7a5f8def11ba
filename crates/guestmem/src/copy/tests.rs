use super::{Routine, block, copy, copy_in, copy_out, portable, routines};

/// Long enough for several rounds of the widest loop.
const ROOM: usize = 1200;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed * 31 + 1) as u8).collect()
}

/// Copies at the given places and looks at every byte of the destination.
#[expect(unsafe_code)]
fn check(name: &str, routine: Routine, from: usize, to: usize, len: usize) {
    let src = pattern(from + len + 64, 1);
    let before = pattern(to + len + 64, 2);
    let mut dst = before.clone();
    // SAFETY: both vectors have len bytes from these places on.
    unsafe { routine(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
    assert_eq!(dst[..to], before[..to], "{name}: {len} bytes, before the destination");
    assert_eq!(dst[to..to + len], src[from..from + len], "{name}: {len} bytes {from} -> {to}");
    assert_eq!(dst[to + len..], before[to + len..], "{name}: {len} bytes, behind the destination");
}

/// Those past the caches, too.
fn all() -> Vec<(&'static str, Routine)> {
    #[cfg(target_arch = "x86_64")]
    let past = super::x86_64::routines().into_iter().filter(|one| one.usable);
    #[cfg(target_arch = "x86_64")]
    let past = past.flat_map(|one| [(one.name, one.outward), (one.name, one.inward)]);
    #[cfg(not(target_arch = "x86_64"))]
    let past = std::iter::empty();
    routines().into_iter().chain(past).collect()
}

#[test]
fn every_length_and_alignment() {
    for len in 0..=ROOM {
        for shift in [0, 1, 12, 31, 52, 63] {
            check("copy", copy, (len * 5) % 67, shift, len);
            check("copy_in", copy_in, (len * 5) % 67, shift, len);
            check("copy_out", copy_out, (len * 5) % 67, shift, len);
            check("portable", portable::copy, (len * 5) % 67, shift, len);
            if len > 128 {
                for (name, routine) in all() {
                    check(name, routine, (len * 5) % 67, shift, len);
                }
            }
        }
    }
}

#[test]
fn big_ones() {
    for len in [4096, 9018, 65_535, 65_549, 1 << 20] {
        check("copy", copy, 3, 12, len);
        check("copy_in", copy_in, 3, 12, len);
        check("copy_out", copy_out, 3, 12, len);
        for (name, routine) in all() {
            check(name, routine, 12, 0, len);
        }
    }
}

/// A guest may send to itself: whatever comes out, nothing around it changes and nothing breaks.
#[test]
#[expect(unsafe_code)]
fn overlap_touches_nothing_else() {
    for len in (0..=ROOM).step_by(7) {
        for (from, to) in [(100, 100), (100, 101), (101, 100), (100, 164), (164, 100), (100, 400)] {
            let before = pattern(ROOM + 600, 3);
            let mut memory = before.clone();
            let base = memory.as_mut_ptr();
            // SAFETY: from and to plus len are inside.
            unsafe { copy(base.add(to), base.add(from), len) };
            assert_eq!(memory[..to], before[..to]);
            assert_eq!(memory[to + len..], before[to + len..]);
        }
    }
}

/// With masked moves, if the processor has them, and in pieces.
#[test]
#[expect(unsafe_code)]
fn blocks_of_every_length() {
    block::prepare();
    type Ways = [(
        unsafe fn(&mut block::Block, *const u8, usize),
        unsafe fn(*mut u8, &block::Block, usize),
    ); 2];
    #[cfg(target_arch = "x86_64")]
    let ways: Ways = [(block::load, block::store), (super::pieces::load, super::pieces::store)];
    #[cfg(not(target_arch = "x86_64"))]
    let ways: Ways = [(block::load, block::store); 2];
    for (load, store) in ways {
        for (len, shift) in (0..=128).flat_map(|len| [0, 1, 12, 63].map(|shift| (len, shift))) {
            let (src, before) = (pattern(shift + len, 1), pattern(shift + len + 64, 2));
            let (mut block, mut dst) = ([0xee; 128], before.clone());
            // SAFETY: both vectors have len bytes from this place on, the first one no more.
            unsafe {
                load(&mut block, src.as_ptr().add(shift), len);
                store(dst.as_mut_ptr().add(shift), &block, len);
            }
            assert_eq!(block[..len], src[shift..], "{len} bytes");
            assert_eq!(dst[..shift], before[..shift], "{len} bytes, before the destination");
            assert_eq!(dst[shift..shift + len], src[shift..], "{len} bytes");
            assert_eq!(dst[shift + len..], before[shift + len..], "{len} bytes, behind it");
        }
    }
}

#[test]
fn best_routine_comes_first() {
    let names: Vec<_> = routines().into_iter().map(|(name, _)| name).collect();
    let order = ["avx512", "avx2", "sse2", "portable"];
    let places: Vec<_> = names.iter().map(|n| order.iter().position(|o| o == n)).collect();
    assert!(places.is_sorted() && !places.is_empty(), "{names:?}");
}
