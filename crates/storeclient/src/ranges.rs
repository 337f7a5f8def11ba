//! Which bytes of an image are being changed by whom.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::{Condvar, Mutex};

/// Ranges that are being changed, or are waited for. Those that overlap have their turn in the order
/// in which they were asked for, so nobody waits for ever, and nobody for himself.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    all: Mutex<Asked>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    next: u64,
    /// By the order in which they were asked for.
    ranges: BTreeMap<u64, Range<u64>>,
}

/// A range that nobody else has. It is freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    ranges: &'a Ranges,
    number: u64,
}

impl Ranges {
    /// Waits until nobody who asked before has any of these bytes.
    pub(crate) fn hold(&self, range: Range<u64>) -> Held<'_> {
        let mut all = self.all.lock();
        let number = all.next;
        all.next += 1;
        all.ranges.insert(number, range.clone());
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        while all.ranges.range(..number).any(|(_, other)| overlaps(other)) {
            self.freed.wait(&mut all);
        }
        Held { ranges: self, number }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.ranges.all.lock().ranges.remove(&self.number);
        self.ranges.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Counters that are read, and written back later, by many: none is lost where they exclude each
    /// other, and only there could one be.
    #[test]
    fn those_that_overlap_exclude_each_other() {
        let (ranges, sums) = (Ranges::default(), Mutex::new([0u64; 8]));
        thread::scope(|scope| {
            for number in 0..4usize {
                let (ranges, sums) = (&ranges, &sums);
                scope.spawn(move || {
                    for round in 0..500 {
                        let first = (number * 3 + round) % 7;
                        let both = first..first + 2;
                        let _held = ranges.hold(both.start as u64..both.end as u64);
                        let before = *sums.lock();
                        thread::yield_now();
                        for at in both {
                            sums.lock()[at] = before[at] + 1;
                        }
                    }
                });
            }
        });
        assert_eq!(sums.lock().iter().sum::<u64>(), 4 * 500 * 2);
        assert!(ranges.all.lock().ranges.is_empty());
    }

    #[test]
    fn others_do_not_wait() {
        let ranges = Ranges::default();
        let _first = ranges.hold(0..512);
        let _second = ranges.hold(512..1024);
    }
}
