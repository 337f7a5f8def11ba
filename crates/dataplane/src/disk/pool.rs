//! Memory of a store's connection, through which the data of its requests goes.

use std::io;
use std::sync::Arc;

use guestmem::{GuestMemory, RegionFile, RegionSpec, Segments};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use smallvec::SmallVec;

/// What pieces begin and end at: any file can be read to and written from them.
const PAGE: u64 = 4096;

/// Memory, and what of it is free.
#[derive(Debug)]
pub(super) struct Pool {
    memory: Arc<GuestMemory>,
    /// Where free ranges begin, and their bytes: in order, no two of them touch. There are few.
    free: Vec<(u64, u64)>,
}

/// A part of the pool, to be given back.
#[derive(Debug, Default)]
pub(super) struct Loan(SmallVec<[(u64, u64); 1]>);

impl Pool {
    /// All of it.
    pub(super) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// So many bytes, of which the kernel gives as much as is used.
    pub(super) fn new(size: u64) -> io::Result<Pool> {
        let size = size.next_multiple_of(PAGE).max(PAGE);
        let file = memfd_create("hayate-store", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, size)?;
        let spec = RegionSpec { guest_addr: 0, size, user_addr: 0, mmap_offset: 0 };
        let memory = GuestMemory::map(&[(spec, RegionFile::from(file))]);
        let memory = memory.map_err(io::Error::other)?;
        Ok(Pool { memory: Arc::new(memory), free: vec![(0, size)] })
    }

    /// Memory for so many bytes, in as few pieces as there are; `None`: there is not as much.
    pub(super) fn take(&mut self, bytes: u64) -> Option<(Loan, Segments)> {
        if bytes == 0 {
            return Some((Loan::default(), Segments::new(&self.memory)));
        }
        let mut left = bytes.next_multiple_of(PAGE);
        let mut ranges = SmallVec::new();
        // The beginning of the first that is large enough, or else whatever there is.
        let whole = self.free.iter().position(|(_, size)| *size >= left);
        while left > 0 {
            let place = whole.or(self.free.len().checked_sub(1));
            let Some((start, size)) = place.and_then(|place| self.free.get_mut(place)) else {
                self.give_back(Loan(ranges));
                return None;
            };
            let some = left.min(*size);
            ranges.push((*start, some));
            (*start, *size) = (*start + some, *size - some);
            left -= some;
            if *size == 0 {
                place.map(|place| self.free.remove(place));
            }
        }
        let slices = ranges
            .iter()
            .filter_map(|&(start, size)| self.memory.slice(start, u32::try_from(size).ok()?));
        let mut segments = Segments::of(&self.memory, slices)?;
        if segments.len() > bytes {
            segments = segments.first(bytes);
        }
        Some((Loan(ranges), segments))
    }

    /// Gives memory back that nobody uses any more.
    pub(super) fn give_back(&mut self, loan: Loan) {
        for (start, size) in loan.0 {
            let place = self.free.partition_point(|(other, _)| *other < start);
            self.free.insert(place, (start, size));
            self.join(place);
            if let Some(before) = place.checked_sub(1) {
                self.join(before);
            }
        }
    }

    /// Makes one of a free range and the next one, if they touch.
    fn join(&mut self, place: usize) {
        if let Some(&[(start, size), (next, more)]) = self.free.get(place..place + 2)
            && start + size == next
        {
            self.free.remove(place + 1);
            if let Some((_, size)) = self.free.get_mut(place) {
                *size += more;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_lent_twice_and_everything_comes_back(
            steps in prop::collection::vec((any::<bool>(), 1u64..20_000, any::<usize>()), 1..100),
        ) {
            const SIZE: u64 = 1 << 16;
            let mut pool = Pool::new(SIZE).unwrap();
            let mut lent: Vec<(Loan, Segments, u8)> = Vec::new();
            let mut used = 0;
            for (number, (take, bytes, which)) in steps.into_iter().enumerate() {
                let pages = bytes.next_multiple_of(PAGE);
                if take {
                    let taken = pool.take(bytes);
                    prop_assert_eq!(taken.is_some(), used + pages <= SIZE);
                    if let Some((loan, segments)) = taken {
                        prop_assert_eq!(segments.len(), bytes);
                        segments.copy_from(&vec![number as u8; bytes as usize]);
                        used += pages;
                        lent.push((loan, segments, number as u8));
                    }
                } else if !lent.is_empty() {
                    let (loan, segments, mark) = lent.swap_remove(which % lent.len());
                    let mut bytes = vec![0; segments.len() as usize];
                    segments.copy_to(&mut bytes);
                    prop_assert!(bytes.iter().all(|byte| *byte == mark));
                    used -= segments.len().next_multiple_of(PAGE);
                    pool.give_back(loan);
                }
            }
            for (loan, ..) in lent {
                pool.give_back(loan);
            }
            prop_assert_eq!(pool.free, vec![(0, SIZE)]);
        }
    }
}
