//! Copying between memory that may change underneath: the hottest code of the product.
//!
//! Written in assembly so that the compiler can neither assume that two reads of guest memory agree
//! nor repeat or split one of its own accord. Ordinary stores only to guests: non-temporal stores and `rep
//! movsb` look cheap here and make the receiving guest pay four times. Large pieces of mapped
//! files, which nobody looks at soon, go past the caches, both ways (`copy_out`, `copy_in`).
//!
//! Short copies (up to 128 bytes: headers, small frames) are overlapping loads, then overlapping
//! stores, in the caller's code. Longer ones go to a routine with the widest vectors the processor
//! has, found out once. The measurements behind this can be repeated with `cargo run --release -p
//! guestmem --example copy`.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{copy, copy_in, copy_out};

pub(crate) mod block;
#[cfg(target_arch = "x86_64")]
mod pieces;
pub(crate) mod word;

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use portable::{copy, copy as copy_in, copy as copy_out};

/// A routine for copies of more than 128 bytes: `src` must be readable and `dst` writable for `len`.
pub type Routine = unsafe fn(dst: *mut u8, src: *const u8, len: usize);

/// The routines for long copies that this processor can run, by name, the one in use first. For
/// benchmarks.
#[must_use]
pub fn routines() -> Vec<(&'static str, Routine)> {
    #[cfg(target_arch = "x86_64")]
    let all = x86_64::routines().into_iter().filter(|one| one.usable);
    #[cfg(target_arch = "x86_64")]
    let all = all.map(|one| (one.name, one.long));
    #[cfg(not(target_arch = "x86_64"))]
    let all = [("portable", copy as Routine)].into_iter();
    all.collect()
}

#[cfg(test)]
mod tests;
