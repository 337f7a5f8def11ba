//! The data of a request: some of the bytes of a chain's buffers.

use guestmem::GuestSlice;

/// Guest memory of one direction, in order: at most as many pieces as a chain has buffers.
///
/// The guest may change it at any moment: what is read twice may differ.
#[derive(Clone, Copy, Debug)]
pub struct Data<'c, 'm> {
    slices: &'c [GuestSlice<'m>],
    /// Bytes at the front of the first slice that are not part of it.
    skip: usize,
    len: u64,
}

impl<'c, 'm> Data<'c, 'm> {
    /// `len` bytes from byte `skip` on, or as many as there are.
    pub(super) fn new(slices: &'c [GuestSlice<'m>], skip: usize, len: u32) -> Self {
        let (mut slices, mut skip) = (slices, skip);
        while let Some((first, rest)) = slices.split_first()
            && skip >= first.len()
        {
            skip -= first.len();
            slices = rest;
        }
        Self { slices, skip, len: len.into() }
    }

    /// Bytes, less than 4 GiB.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces of memory, in order, none of them empty.
    pub fn segments(&self) -> impl Iterator<Item = GuestSlice<'m>> + use<'c, 'm> {
        let mut skip = self.skip;
        let mut left = self.len;
        self.slices.iter().map_while(move |slice| {
            let segment = slice.skip(skip).take(usize::try_from(left).unwrap_or(usize::MAX));
            skip = 0;
            left -= segment.len() as u64;
            (!segment.is_empty()).then_some(segment)
        })
    }

    /// Copies the first bytes into `to`: as many as the shorter of the two has. Returns that
    /// number.
    pub fn read(&self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for segment in self.segments() {
            done += segment.copy_to(to.get_mut(done..).unwrap_or_default());
        }
        done
    }

    /// Copies `from` to the first bytes: as many as the shorter of the two has. Returns that
    /// number.
    pub fn write(&self, from: &[u8]) -> usize {
        let mut done = 0;
        for segment in self.segments() {
            done += segment.copy_from(from.get(done..).unwrap_or_default());
        }
        done
    }
}
