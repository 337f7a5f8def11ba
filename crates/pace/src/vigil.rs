//! When it matters how fast a worker's CPU wakes up.

/// Rests a second from which on it does, and below which it no longer does.
const OFTEN: u64 = 1_000;
const SELDOM: u64 = 500;
/// How long that is watched before it does, and before it no longer does, in nanoseconds.
const WATCHED: (u64, u64) = (10_000_000, 100_000_000);

/// Whether a worker rests so often that its CPU should not sleep deeply.
///
/// A CPU that sleeps saves power and takes long to wake up: a worker that is woken up ten thousand
/// times a second by frames finds each of them late. A worker that is hardly ever woken up does not
/// keep its CPU from sleeping. Time comes in, as everywhere in this crate.
#[derive(Debug, Clone, Default)]
pub struct Vigil {
    on: bool,
    start: u64,
    rests: u64,
}

impl Vigil {
    /// The longest rest that may be taken while it is kept, in nanoseconds: afterwards it is to be
    /// asked again.
    pub const REST_MAX: u64 = WATCHED.1;

    /// A rest begins at `now` nanoseconds. Returns whether the CPU should wake up quickly from it.
    #[inline]
    pub fn rest(&mut self, now: u64) -> bool {
        let length = now.saturating_sub(self.start);
        if length >= if self.on { WATCHED.1 } else { WATCHED.0 } {
            let rate = self.rests.saturating_mul(1_000_000_000) / length;
            self.on = rate >= if self.on { SELDOM } else { OFTEN };
            (self.start, self.rests) = (now, 0);
        }
        self.rests += 1;
        self.on
    }
}

#[cfg(test)]
mod tests;
