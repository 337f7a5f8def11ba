//! The journal of a packed ring: where the device stands, kept outside of the process.
//!
//! A split ring has its position in guest memory, the used index. That of a packed ring is known
//! to the device alone, so a device that dies takes it along. It is therefore written down here,
//! in words that outlive the process, before the driver can see it:
//!
//! 1. each used descriptor, when a chain is completed ([`Journal::note`]);
//! 2. when they are to be shown, a [`Step`]: from where to where, and what the ring looks like
//!    there ([`Journal::commit`]);
//! 3. the used descriptors go into the ring, that of the first chain last; where one stands for all, it has taken the
//!    place of the first before 2;
//! 4. the step is marked as done ([`Journal::done`]).
//!
//! A device that ends before 2 has shown nothing: its successor takes the same chains again. From
//! 2 on the successor writes the same used descriptors once more, unless the driver has seen the
//! first of them already. `packed::resume` decides that.
//!
//! **Cost.** One store for each chain, which a device that shows them in batches has anyway, and
//! six for each batch. **Trust.** Whoever can write the words, or the ring, may make a successor
//! begin at a wrong place of this one ring, and no more: everything read is checked there.

use std::sync::atomic::Ordering::{Relaxed, Release};

use sys::Words;

use crate::QueueConfig;

/// Most chains that one call of [`Queue::complete`](crate::Queue::complete) shows together; more
/// of them the driver of a packed ring may see in parts.
pub const MAX_TOGETHER: usize = Journal::WORDS - NOTES;

/// Word 0 of a journal in use; the last digit is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"hayate-1");
/// Words 1 to 4: size and the base the front end knows, then the addresses of the three areas.
const RING: usize = 1;
/// Two steps, used in turns: while one is being written the other one holds.
const STEPS: [usize; 2] = [8, 16];
/// Used descriptors not shown yet.
const NOTES: usize = 24;

/// The position of one packed ring, and the used descriptors about to be shown, in words that may
/// outlive the process: for [`Queue::resume`](crate::Queue::resume).
#[derive(Debug)]
pub struct Journal {
    words: Words,
    /// Steps so far; its lowest bit is the place of the latest.
    turn: u64,
}

/// Some used descriptors to be shown together. Positions have the wrap counter in bit 15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Position of the first of them.
    pub(crate) before: u16,
    /// Position behind the last.
    pub(crate) after: u16,
    /// A slot by which the ring is known when all of them are shown.
    pub(crate) witness: u16,
    /// How many; 0: they have been shown.
    pub(crate) count: u16,
    /// The descriptor at `before`, as the driver made it available.
    pub(crate) head: [u64; 2],
    /// The descriptor at `witness`, when all of them are shown.
    pub(crate) tail: [u64; 2],
}

/// A used descriptor to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) position: u16,
    pub(crate) id: u16,
    pub(crate) len: u32,
}

impl Note {
    fn word(self) -> u64 {
        u64::from(self.position) << 48 | u64::from(self.id) << 32 | u64::from(self.len)
    }

    fn of(word: u64) -> Self {
        Self { position: (word >> 48) as u16, id: (word >> 32) as u16, len: word as u32 }
    }
}

impl Journal {
    /// Words it takes: a page.
    pub const WORDS: usize = 512;

    /// A journal in these words, whatever they hold; `None` if there are fewer than
    /// [`Journal::WORDS`].
    #[must_use]
    pub fn new(words: &Words) -> Option<Journal> {
        Some(Journal { words: words.part(0, Self::WORDS)?, turn: 0 })
    }

    /// A journal that ends with this process.
    #[must_use]
    pub fn private() -> Journal {
        Journal { words: Words::private(Self::WORDS), turn: 0 }
    }

    /// Makes the journal void: nobody shall go on from it. For when the front end knows the
    /// position, or the ring is gone.
    pub fn forget(&self) {
        self.store(0, 0);
    }

    /// Starts anew for this ring, with nothing to be shown.
    pub(crate) fn begin(&mut self, ring: &QueueConfig, known_base: u32, step: &Step) {
        self.forget();
        for (index, word) in (RING..).zip(identity(ring, known_base)) {
            self.store(index, word);
        }
        // The other step is never the later one.
        self.turn = 0;
        self.store(STEPS[1], place(step, 15));
        self.write(STEPS[0], step);
        self.store(0, MAGIC);
    }

    /// The latest step, if the journal is one of this ring.
    pub(crate) fn latest(&mut self, ring: &QueueConfig, known_base: u32) -> Option<Step> {
        if self.load(0) != MAGIC {
            return None;
        }
        let same = |(index, word)| self.load(index) == word;
        if !(RING..).zip(identity(ring, known_base)).all(same) {
            return None;
        }
        let [even, odd] = STEPS.map(|at| self.load(at) >> 60);
        self.turn = match odd.wrapping_sub(even) & 15 {
            1 => odd,
            15 => even,
            _ => return None,
        };
        Some(self.read(self.at()))
    }

    /// Writes down a used descriptor of the next step.
    #[inline(always)]
    pub(crate) fn note(&self, index: usize, note: Note) {
        self.store(NOTES + index, note.word());
    }

    /// What was written down.
    #[inline(always)]
    pub(crate) fn noted(&self, index: usize) -> Note {
        Note::of(self.load(NOTES + index))
    }

    /// The next step: from here on a successor finishes it.
    #[inline]
    pub(crate) fn commit(&mut self, step: &Step) {
        self.turn = self.turn.wrapping_add(1);
        self.write(self.at(), step);
    }

    /// The latest step, which was this one, has been shown.
    #[inline]
    pub(crate) fn done(&self, step: &Step) {
        self.store(self.at(), place(&Step { count: 0, ..*step }, self.turn));
    }

    /// Where the latest step is.
    #[inline]
    fn at(&self) -> usize {
        STEPS[usize::from(self.turn & 1 != 0)]
    }

    /// Its first word last: that makes it the latest.
    #[inline]
    fn write(&self, at: usize, step: &Step) {
        let [addr, word] = step.head;
        self.store(at + 1, addr);
        self.store(at + 2, word);
        let [addr, word] = step.tail;
        self.store(at + 3, addr);
        self.store(at + 4, word);
        self.store(at, place(step, self.turn));
    }

    fn read(&self, at: usize) -> Step {
        let place = self.load(at);
        Step {
            before: place as u16,
            after: (place >> 16) as u16,
            witness: (place >> 32) as u16,
            count: (place >> 48) as u16 & 0xfff,
            head: [self.load(at + 1), self.load(at + 2)],
            tail: [self.load(at + 3), self.load(at + 4)],
        }
    }

    /// Stores are seen in the order they are written here, also by one who comes after a kill.
    #[inline(always)]
    fn store(&self, index: usize, value: u64) {
        #[cfg(test)]
        if fuse::blown() {
            return;
        }
        if let Some(word) = self.words.get(index) {
            word.store(value, Release);
        }
    }

    /// Nobody else stores while this device lives.
    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| word.load(Relaxed))
    }
}

/// What tells one ring from another.
fn identity(ring: &QueueConfig, known_base: u32) -> [u64; 4] {
    [u64::from(ring.size) << 32 | u64::from(known_base), ring.desc, ring.avail, ring.used]
}

/// First word of a step: four bits of its turn, twelve of the count, and the positions.
#[inline]
fn place(step: &Step, turn: u64) -> u64 {
    let Step { before, after, witness, count, .. } = *step;
    let positions = u64::from(witness) << 32 | u64::from(after) << 16 | u64::from(before);
    turn << 60 | u64::from(count) << 48 | positions
}

/// Ends the device after so many stores, as a kill would: what follows does not happen.
#[cfg(test)]
pub(crate) mod fuse {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// So many stores from now on; `None`: no end.
    pub(crate) fn set(stores: Option<u32>) {
        LEFT.set(stores);
    }

    /// Asked before each store.
    pub(crate) fn blown() -> bool {
        match LEFT.get() {
            None => false,
            Some(0) => true,
            Some(left) => {
                LEFT.set(Some(left - 1));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
