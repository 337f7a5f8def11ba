//! When a guest is interrupted for the frames it was given.
//!
//! The owner of a receive queue asks when the guest wants an interrupt ([`Moderator::ask`]), and is
//! told to interrupt at once, or how long to wait for more frames ([`Wait`]). Two interrupts are a
//! set time apart, unless enough frames gather before; the first frame after silence is therefore
//! never delayed, and time for which frames gathered elsewhere, as in a worker's nap, counts.
//!
//! Adaptive moderation waits only if that gathers:
//!
//! * Several frames must be expected in the time.
//! * A wait ends early if frames stop coming: their sender may be waiting for the guest. If few
//!   came, waiting has not paid, and nothing waits for a while, twice as long each time.
//! * The same if frames come more slowly since it waits than they did before: they wait for answers
//!   to each other. To know how fast they come without, it does not wait now and then.
//!
//! **Owner and threads.** One [`Moderator`] belongs to one receive queue and is used under its
//! lock. As in the rest of this crate, time and counts come in and decisions go out.

use std::time::Duration;

use crate::{HOLD, ONE, WINDOW};

/// How the interrupts of a port's guest are moderated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Moderation {
    /// An interrupt whenever the guest wants one.
    Off,
    /// Learned from the traffic: up to 64 frames and 100 microseconds, or nothing.
    #[default]
    Adaptive,
    /// Until so many frames have gathered, but no longer than this since the last interrupt.
    Fixed {
        /// At least one; more than a quarter of the ring is taken for that.
        frames: u16,
        /// The time, for which also a worker that sleeps is woken up.
        time: Duration,
    },
}

/// How long an interrupt may wait: until the first of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// So many frames have been delivered in all.
    pub frames: u64,
    /// This time, in nanoseconds.
    pub until: u64,
    /// No frame came for so long, in nanoseconds. `None`: they need not keep coming.
    pub patience: Option<u64>,
}

/// How a [`Wait`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The frames have gathered, or there was no room for more.
    Gathered,
    /// The time is over.
    Due,
    /// No frame came for too long.
    Quiet,
    /// Whoever looks at the clock rests now.
    Rest,
}

/// Most frames adaptive moderation gathers, and for how long, in nanoseconds.
const GATHER_MAX: u64 = 64;
const TIME: u64 = 100_000;
/// Fewest frames that must be expected in that time.
const GATHER_MIN: u64 = 8;
/// Frames have stopped coming after so many times the usual gap, and at least so many nanoseconds.
const PATIENCE: (u64, u64) = (8, 5_000);
/// Of so many windows, one does not wait.
const EXPLORE: u32 = 256;
/// Frames come more slowly if there are fewer than this share of those before, of [`ONE`].
const SLOWER: u64 = ONE as u64 / 4 * 3;

/// The state of one receive queue.
#[derive(Debug, Clone)]
pub struct Moderator {
    setting: Moderation,
    /// Most frames that may gather.
    most: u64,
    /// When the guest was last interrupted; `None`: never.
    last: Option<u64>,
    /// Frames a second, lately, and lately without waiting.
    rate: u64,
    free: u64,
    /// When counting began, and the frames delivered until then.
    window: (u64, u64),
    /// Windows in which it waits; 0: it does not.
    waiting: u32,
    /// When the wait going on began, and the frames delivered until then.
    asked: (u64, u64),
    /// No waiting before this time.
    after: u64,
    hold: u64,
}

impl Moderator {
    /// A queue of `ring` entries that has delivered nothing.
    #[must_use]
    pub fn new(setting: Moderation, ring: u16) -> Self {
        let frames = match setting {
            Moderation::Off => 1,
            Moderation::Adaptive => GATHER_MAX,
            Moderation::Fixed { frames, .. } => frames.into(),
        };
        Self {
            setting,
            most: frames.min(Self::room(ring)),
            last: None,
            rate: 0,
            free: 0,
            window: (0, 0),
            waiting: 0,
            asked: (0, 0),
            after: 0,
            hold: HOLD.0,
        }
    }

    /// Most buffers of a ring of so many entries that may be full without the guest knowing: a
    /// quarter. The rest is for what comes while it wakes up.
    #[must_use]
    pub fn room(ring: u16) -> u64 {
        u64::from(ring / 4).max(1)
    }

    /// The guest wants an interrupt at `now` nanoseconds, with `frames` delivered in all and
    /// `undecided` of them unknown to it. `None`: it is to have it at once.
    #[inline]
    pub fn ask(&mut self, frames: u64, undecided: u64, now: u64) -> Option<Wait> {
        let (length, patience) = match self.setting {
            Moderation::Off => return None,
            Moderation::Fixed { time, .. } => (time.as_nanos() as u64, None),
            Moderation::Adaptive => {
                self.watch(frames, now);
                let (length, patience) = self.learned(frames, now)?;
                (length, Some(patience))
            }
        };
        let until = self.last? + length;
        let more = self.most.saturating_sub(undecided);
        if until <= now || more == 0 {
            return None;
        }
        self.asked = (now, frames);
        Some(Wait { frames: frames + more, until, patience })
    }

    /// The guest was interrupted.
    #[inline]
    pub fn interrupted(&mut self, now: u64) {
        self.last = Some(now);
    }

    /// The wait that was asked for ended at `now` with `frames` delivered.
    #[inline]
    pub fn ended(&mut self, end: End, frames: u64, now: u64) {
        if self.setting != Moderation::Adaptive {
            return;
        }
        let (since, before) = self.asked;
        let expected = in_time(self.rate, now.saturating_sub(since));
        // Fewer than a quarter of them, and not by chance.
        let few = frames.saturating_sub(before) * 4 + 4 < expected;
        if few && matches!(end, End::Due | End::Quiet) {
            self.give_up(frames, now);
        }
        self.watch(frames, now);
    }

    /// How long to wait, since the last interrupt and since the last frame.
    fn learned(&mut self, frames: u64, now: u64) -> Option<(u64, u64)> {
        if now < self.after || in_time(self.rate, TIME) < GATHER_MIN {
            return None;
        }
        if self.waiting == 0 {
            self.waiting = EXPLORE;
            self.window = (now, frames);
        }
        let gap = 1_000_000_000 / self.rate.max(1);
        let patience = (gap * PATIENCE.0).clamp(PATIENCE.1, TIME);
        Some((TIME.min(gap * self.most), patience))
    }

    /// Learns how fast frames come.
    fn watch(&mut self, frames: u64, now: u64) {
        let (start, before) = self.window;
        let length = now.saturating_sub(start);
        if length < WINDOW {
            return;
        }
        self.window = (now, frames);
        let count = u128::from(frames.saturating_sub(before));
        let rate = (count * 1_000_000_000 / u128::from(length)) as u64;
        self.rate = if length < 4 * WINDOW { self.rate.midpoint(rate) } else { rate };
        if self.waiting == 0 {
            // What has just begun is not underestimated.
            self.free = self.rate.max(rate);
        } else if rate < self.free / u64::from(ONE) * SLOWER {
            self.give_up(frames, now);
        } else {
            self.hold = HOLD.0;
            self.waiting -= 1;
            if self.waiting == 0 {
                self.after = now + WINDOW;
            }
        }
    }

    /// Waiting has not paid.
    fn give_up(&mut self, frames: u64, now: u64) {
        self.after = now + self.hold;
        self.hold = (self.hold * 2).min(HOLD.1);
        self.waiting = 0;
        self.rate = self.free;
        self.window = (now, frames);
    }
}

/// Frames in `time` nanoseconds at `rate` a second.
fn in_time(rate: u64, time: u64) -> u64 {
    rate.saturating_mul(time) / 1_000_000_000
}

#[cfg(test)]
mod tests;
