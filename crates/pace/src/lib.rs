//! When a worker polls, naps and sleeps.
//!
//! A worker asks after each pass that found nothing, and is told one of three things ([`Idle`]):
//!
//! * **poll**: look again at once. The next frame is found at once, and a CPU is busy.
//! * **nap**: wait for a short time with kicks turned off. Frames gather meanwhile and are taken
//!   together; the guests spare their kicks.
//! * **sleep**: ask for kicks, look once more, wait until one comes.
//!
//! Which one is learned from the traffic, within the bounds of a [`Profile`]:
//!
//! * A worker that is busy for a quarter of the time or more polls: there is little to save. Unless it is
//!   busy only because it polls, and takes frames one by one at many times the cost: now and then it naps all
//!   the same for a window, and goes on if that leaves it less busy.
//! * If several frames are expected within a nap, it naps. Whether that pays shows in what a nap
//!   finds. Frames that wait for an answer to the one before, as in a ping-pong, do not gather, and
//!   a nap only delays them; then it does not nap for a while, twice as long each time.
//! * Otherwise it polls for a short or a longer time, about what being woken up costs, if that often
//!   finds something, and sleeps. Now and then it polls all the same, to find out whether that has
//!   changed.
//! * While more is asked of a device than it takes at a time, it polls for what the device does to end,
//!   if that is soon. A device that is done with all it had stands still until somebody is awake to
//!   give it more; being woken up would cost it that time, again and again.
//!
//! **Owner and threads.** One [`Pace`] belongs to one worker. Time comes in as nanoseconds since any
//! start, decisions go out; nothing here knows a clock, so it is tested with a made-up one.

mod moderation;
mod profile;
mod vigil;

use std::time::Duration;

pub use moderation::{End, Moderation, Moderator, Wait};
use profile::Limits;
pub use profile::{Profile, UnknownProfile};
pub use vigil::Vigil;

/// What an idle worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Look again.
    Poll,
    /// Wait for this long, without kicks.
    Nap(Duration),
    /// Arm kicks, look again, and wait for one.
    Sleep,
}

/// How long the traffic is watched before it is judged, in nanoseconds.
const WINDOW: u64 = 1_000_000;
/// Shares and chances are in this many parts.
const ONE: u32 = 1024;
/// Most frames a nap is expected to gather: a fraction of the usual ring, so that none overflows.
const GATHER_MAX: u64 = 64;
/// Fewest frames a nap has to be expected to gather.
const GATHER_MIN: u64 = 2;
/// A nap shorter than this saves nothing, in nanoseconds.
const NAP_MIN: u64 = 5_000;
/// Naps are taken for later than asked by no more than this, in nanoseconds.
const LATE_MAX: u64 = 100_000;
/// How long not to nap after naps did not pay, at first and at most, in nanoseconds.
const HOLD: (u64, u64) = (2_000_000, 128_000_000);
/// How long a busy worker polls before it tries whether naps leave it less busy, at first and at most, in
/// nanoseconds: each time that they do not, twice as long.
const TRY: (u64, u64) = (16_000_000, 512_000_000);
/// One idle period in so many is polled through, to learn.
/// Odd, as some traffic alternates.
const EXPLORE: u32 = 61;

/// The state of one worker.
#[derive(Debug, Clone)]
pub struct Pace {
    limits: Limits,
    window: Window,
    /// Frames a second, lately.
    rate: u64,
    /// Share of the time in which there was work, of [`ONE`].
    load: u32,
    /// Chance that polling after the last frame finds another one in the shorter and in the longer
    /// time of the profile, of [`ONE`].
    hits: [u32; 2],
    /// The idle period going on.
    idle: Option<Period>,
    /// Time with work up to the last idle period, in nanoseconds, and when that with none ended.
    busy_ns: u64,
    busy_since: u64,
    /// Idle periods so far.
    periods: u32,
    /// The nap taken.
    napped: Option<Nap>,
    /// How much later than asked naps end, lately, in nanoseconds.
    late: u64,
    /// No naps before this time.
    nap_after: u64,
    hold: u64,
    /// In this window it naps however busy it has been.
    trial: bool,
    /// No trials before this time.
    try_after: u64,
    patience: u64,
}

/// A nap.
#[derive(Debug, Clone, Copy)]
struct Nap {
    /// When it began and how long it was to be, in nanoseconds.
    start: u64,
    length: u64,
    /// How many frames it was expected to gather.
    expected: u64,
}

/// What is counted to be judged at the end.
#[derive(Debug, Clone, Default)]
struct Window {
    start: u64,
    frames: u64,
    idle_ns: u64,
}

/// The time since the last frame.
#[derive(Debug, Clone, Copy)]
struct Period {
    since: u64,
    /// When it was last looked at.
    seen: u64,
    /// How long to poll, in nanoseconds: what is left, and what it was at the beginning.
    spin: u64,
    planned: u64,
    /// It was not waited through in another way than by polling, so its length is known.
    polled: bool,
}

impl Pace {
    /// A worker that begins now, at `now` nanoseconds.
    #[must_use]
    pub fn new(profile: Profile, now: u64) -> Self {
        Self {
            limits: profile.limits(),
            window: Window { start: now, ..Window::default() },
            rate: 0,
            load: 0,
            hits: [0; 2],
            idle: None,
            busy_ns: 0,
            busy_since: now,
            periods: 0,
            napped: None,
            late: 0,
            nap_after: now,
            hold: HOLD.0,
            trial: false,
            try_after: now + TRY.0,
            patience: TRY.0,
        }
    }

    /// Time with work up to `now`, in nanoseconds.
    #[must_use]
    pub fn busy_ns(&self, now: u64) -> u64 {
        match self.idle {
            Some(_) => self.busy_ns,
            None => self.busy_ns + now.saturating_sub(self.busy_since),
        }
    }

    /// A pass found something to do: so many frames, which gather while it naps, and whatever does not, as requests to
    /// disks, of which each is awaited.
    #[inline]
    pub fn busy(&mut self, frames: usize) {
        self.window.frames += frames as u64;
        if self.idle.is_some() {
            self.end_idle(frames as u64);
        }
    }

    /// A pass at `now` found nothing. If more waits for a device than that takes at a time, `awaited` is how long
    /// it takes for what it has, in nanoseconds.
    #[inline]
    pub fn idle(&mut self, now: u64, awaited: Option<u64>) -> Idle {
        if now.saturating_sub(self.window.start) >= WINDOW {
            self.judge(now);
        }
        let period = match &mut self.idle {
            Some(period) => {
                period.seen = now;
                *period
            }
            None => self.begin_idle(now),
        };
        if awaited.is_some_and(|length| length <= self.limits.device) {
            return Idle::Poll;
        }
        if let Some(nap) = self.napped.take() {
            // A nap that found nothing at all: the traffic has ended, or waits for us.
            self.pays(nap.expected, 0, now);
            return self.wait(Idle::Sleep);
        }
        if now - period.since < period.spin {
            return Idle::Poll;
        }
        match self.nap(now) {
            Some(nap) if nap.length == 0 => Idle::Poll,
            Some(nap) => {
                self.napped = Some(nap);
                self.wait(Idle::Nap(Duration::from_nanos(nap.length)))
            }
            None => self.wait(Idle::Sleep),
        }
    }

    /// A nap or a sleep ended at `now`.
    #[inline]
    pub fn woken(&mut self, now: u64) {
        if let Some(period) = &mut self.idle {
            period.seen = now;
        }
        if let Some(Nap { start, length, .. }) = self.napped {
            let late = now.saturating_sub(start + length).min(LATE_MAX);
            // Up slowly, down fast: what makes a nap very late is another thread on this CPU.
            let weight = if late < self.late { 4 } else { 16 };
            self.late = self.late - self.late / weight + late / weight;
        }
    }

    fn begin_idle(&mut self, now: u64) -> Period {
        self.periods = self.periods.wrapping_add(1);
        self.busy_ns += now.saturating_sub(self.busy_since);
        let Limits { spin: [short, long], spin_loaded, learns, .. } = self.limits;
        let [soon, later] = self.hits;
        let explores = !learns || self.periods.is_multiple_of(EXPLORE);
        let nap = self.nap(now);
        let spin = if self.load >= self.loaded_from()
            && !(self.trial && nap.is_some_and(|nap| nap.length > 0))
        {
            spin_loaded
        } else if nap.is_some() {
            0
        } else if explores || later.saturating_sub(soon) >= ONE / 4 {
            long
        } else if soon >= ONE / 4 {
            short
        } else {
            0
        };
        let period = Period { since: now, seen: now, spin, planned: spin, polled: true };
        self.idle = Some(period);
        period
    }

    /// The load from which on there is little to save.
    fn loaded_from(&self) -> u32 {
        // Frames that come fast gather well, and are worth a nap for longer.
        let gathers = self.rate.saturating_mul(self.limits.nap) / 1_000_000_000 >= GATHER_MAX;
        if gathers { ONE / 2 } else { ONE / 4 }
    }

    fn end_idle(&mut self, frames: u64) {
        let Some(period) = self.idle.take() else { return };
        self.window.idle_ns += period.seen - period.since;
        self.busy_since = period.seen;
        // A nap that was ended by something else was too short to be judged.
        if let Some(nap) = self.napped.take().filter(|_| frames > 0) {
            self.pays(nap.expected, frames, period.seen);
        }
        if period.polled {
            self.learn(period.planned, Some(period.seen - period.since));
        }
    }

    /// Notes that this period was not polled through to its end.
    fn wait(&mut self, how: Idle) -> Idle {
        if let Some(period) = &mut self.idle
            && std::mem::take(&mut period.polled)
        {
            let planned = period.planned;
            self.learn(planned, None);
        }
        how
    }

    /// A frame came after `gap` nanoseconds of polling, or none in the time that was planned.
    fn learn(&mut self, planned: u64, gap: Option<u64>) {
        for (hits, limit) in self.hits.iter_mut().zip(self.limits.spin) {
            if planned >= limit && limit > 0 {
                // Frames that come just in time will come just too late as well.
                let hit = if gap.is_some_and(|gap| gap < limit - limit / 8) { ONE } else { 0 };
                // Over some eight periods of those that were polled.
                *hits = *hits - *hits / 8 + hit / 8;
            }
        }
    }

    /// The nap that could be taken (of length 0: too short to be one, poll instead); `None` if there
    /// is nothing to gather.
    fn nap(&self, now: u64) -> Option<Nap> {
        let longest = self.limits.nap;
        let gathered = |length: u64| self.rate.saturating_mul(length) / 1_000_000_000;
        if now < self.nap_after || gathered(longest) < GATHER_MIN {
            return None;
        }
        let whole = longest.min(GATHER_MAX * 1_000_000_000 / self.rate.max(1));
        let length = whole.saturating_sub(self.late).max(NAP_MIN);
        let expected = gathered(length + self.late);
        let length = if expected > 2 * GATHER_MAX { 0 } else { length };
        Some(Nap { start: now, length, expected })
    }

    /// What a nap found, against what it should have found.
    fn pays(&mut self, expected: u64, found: u64, now: u64) {
        if found * 4 >= expected && found >= GATHER_MIN {
            self.hold = HOLD.0;
        } else {
            self.nap_after = now + self.hold;
            self.hold = (self.hold * 2).min(HOLD.1);
        }
    }

    /// At the end of a window with this load: the end of a trial, or the beginning of one.
    fn try_naps(&mut self, now: u64, load: u32) {
        if std::mem::take(&mut self.trial) {
            if load < self.loaded_from() {
                self.load = load;
            } else {
                self.patience = (self.patience * 2).min(TRY.1);
                self.try_after = now + self.patience;
            }
        } else if self.load < self.loaded_from() {
            (self.patience, self.try_after) = (TRY.0, now + TRY.0);
        } else {
            self.trial = now >= self.try_after;
        }
    }

    /// The end of a window.
    fn judge(&mut self, now: u64) {
        let Window { start, frames, mut idle_ns } = self.window;
        let length = now - start;
        // The part of a period going on that lies in this window.
        if let Some(period) = &self.idle {
            idle_ns += now - period.since.max(start);
        }
        let rate = (u128::from(frames) * 1_000_000_000 / u128::from(length.max(1))) as u64;
        let busy = length.saturating_sub(idle_ns);
        let load = (u128::from(busy) * u128::from(ONE) / u128::from(length.max(1))) as u32;
        if length < 4 * WINDOW {
            self.rate = self.rate.midpoint(rate);
            self.load = self.load.midpoint(load);
        } else {
            (self.rate, self.load) = (rate, load);
        }
        self.try_naps(now, load);
        self.window = Window { start: now, ..Window::default() };
        if let Some(period) = &mut self.idle {
            // What was counted is not counted again.
            let polled = now - period.since;
            period.spin = period.spin.saturating_sub(polled);
            period.since = now;
            period.seen = now;
        }
    }
}

#[cfg(test)]
mod tests;
