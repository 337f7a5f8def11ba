//! Where a packed queue starts: at the base it is given, or where the journal says the device that
//! died was.
//!
//! A front end that lost its back end knows an old base only, that of the last start. The journal
//! knows better, but what it says may be of another ring: one that a guest, booted meanwhile, laid
//! out at the same place. So the ring is asked. In a new ring, all zero before the driver's first
//! lap, a slot is empty (both marks 0) or available in lap 1 (AVAIL 1, USED 0), whereas in a ring
//! that goes on
//!
//! * the slot at the position has not been used in the position's lap, and
//! * the last used descriptor before it, the witness, is as the device left it. If the driver was
//!   there again, then it is available for the next lap, and, as the driver goes in order, the slot
//!   at the position is available too.
//!
//! A new ring fails in one of them, unless the position is its beginning, where it starts anyway.
//! The marks alone would not tell if the witness and the position were of different laps, as after
//! a chain that goes over the end of the ring; then the last slot of that chain is the witness.

use std::sync::atomic::{Ordering, fence};

use super::{Cursor, FLAGS, MARKS, PackedQueue, WORD, used_word};
use crate::QueueConfig;
use crate::journal::Step;

impl PackedQueue {
    /// Puts the cursors where the ring goes on. `base` is the position in `cfg`.
    pub(super) fn start(&mut self, cfg: &QueueConfig, known_base: u32, base: Cursor) {
        // A base that the front end does not know is of this process, and exact.
        let exact = cfg.base != known_base;
        let found = self.journal.latest(cfg, known_base).and_then(|step| self.recover(&step));
        let start = found.filter(|found| !exact || *found == base);
        if start.is_none() {
            let witness = base.preceding(self.size);
            let tail = self.ring.load_desc(witness.offset());
            let (at, witness) = (base.bits(), witness.bits());
            let step = Step { before: at, after: at, witness, tail, ..Step::default() };
            self.journal.begin(cfg, known_base, &step);
        }
        self.used = start.unwrap_or(base);
        self.avail = self.used;
    }

    /// Where the ring stands after the latest step, which is finished if need be; `None` if the
    /// ring is another one.
    fn recover(&self, step: &Step) -> Option<Cursor> {
        let before = self.cursor(step.before)?;
        let after = self.cursor(step.after)?;
        let witness = self.cursor(step.witness)?;
        if step.count != 0 && self.ring.load_desc(before.offset()) == step.head {
            return self.finish(before, step.count.into()).then_some(after);
        }
        self.stands(after, witness, step.tail).then_some(after)
    }

    fn cursor(&self, bits: u16) -> Option<Cursor> {
        Some(Cursor::from_bits(bits)).filter(|cursor| cursor.index() < self.size)
    }

    /// Shows what a predecessor could not show in full: its chains are this device's, as the driver
    /// still waits for the first of them. False, and nothing done, if the ring does not fit.
    fn finish(&self, before: Cursor, count: usize) -> bool {
        let fits = |index| {
            let note = self.journal.noted(index);
            let Some(at) = self.cursor(note.position) else { return false };
            let word = self.ring.load_u64(at.offset() + WORD);
            word == used_word(&note) || at.is_available((word >> 48) as u16)
        };
        let fits = self.journal.noted(0).position == before.bits() && (0..count).all(fits);
        if fits {
            self.show(count);
        }
        fits
    }

    /// Whether `at` can be the position of this ring, given how the witness was left.
    fn stands(&self, at: Cursor, witness: Cursor, tail: [u64; 2]) -> bool {
        let marks = |cursor: Cursor| self.ring.load_u16(cursor.offset() + FLAGS) & MARKS;
        if marks(at) == at.used_flags() {
            return false;
        }
        if self.ring.load_desc(witness.offset()) == tail {
            return true;
        }
        let again = marks(witness);
        // A driver that is at work was at `at` before it was at the witness.
        fence(Ordering::Acquire);
        // Still used, but not as it was left: it is being written this very moment.
        let went_on = again == witness.used_flags() || again == witness.mark() ^ MARKS;
        went_on && at.is_available(marks(at))
    }
}
