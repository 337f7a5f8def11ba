//! Windows: a tenth of a second of traffic, with what the machine did meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sys::clock::ticks_per_second;

use crate::cell::Method;
use crate::generator::{GeneratorError, Ring, Traffic};
use crate::place::{Probe, Regime};
use crate::sched::{Thread, stolen};
use crate::stats::percentile;

/// Traffic before the first window, and at the beginning of each.
const WARM_UP: Duration = Duration::from_millis(250);
const SETTLE: Duration = Duration::from_millis(5);
/// Length of a window, and of one at a rate: a switch that sleeps now and then needs longer to show.
const FLOOD: Duration = Duration::from_millis(100);
const PACED: Duration = Duration::from_millis(500);
/// Round trips in a window, unless they take longer than this.
const ROUND_TRIPS: usize = 4_000;
const ROUND_TRIPS_END: Duration = Duration::from_millis(400);
/// Between two round trips.
const GAP: Duration = Duration::from_micros(5);
/// Share of a window that either thread may have waited for its CPU.
const WAITED: f64 = 0.02;
/// Ticks of the clock (10 ms of one CPU) that the host may have taken.
const STOLEN: u64 = 2;

/// Round trips of one window, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// How many.
    pub n: usize,
    /// Half of them were quicker.
    pub p50: f64,
    /// 99 % were.
    pub p99: f64,
    /// 99.9 % were.
    pub p999: f64,
}

/// What happened in a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Which round it was in, from 0.
    pub round: u32,
    /// Round trip of a cache line between the CPUs, before and after, in nanoseconds.
    pub line: [Option<f64>; 2],
    /// The regime, if it was the same before and after.
    pub regime: Option<Regime>,
    /// Whether both threads had their CPUs.
    pub quiet: bool,
    /// Whether anything arrived that was to.
    pub alive: bool,
    /// The longer of the times either of them waited for its CPU, in per cent of the window.
    pub waited: f64,
    /// Clock ticks of 10 ms the host took from this machine.
    pub stolen: u64,
    /// Length in seconds.
    pub seconds: f64,
    /// Frames sent and received.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
    /// Millions of frames received in a second.
    pub mpps: f64,
    /// How often the generator found its TX ring full, in per cent: near 100 the switch is the limit.
    pub full: f64,
    /// CPU time of the switch's data thread, in per cent of one CPU.
    pub cpu: f64,
    /// Cycles (of the time stamp counter) of that thread for each frame received.
    pub cycles: Option<f64>,
    /// Round trips, if it was those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trips: Option<RoundTrips>,
}

impl Window {
    /// Whether it may be compared with others of its regime.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.quiet && self.alive && self.regime.is_some()
    }
}

/// How windows are taken.
pub struct Watch<'a> {
    /// The probe between the CPUs.
    pub probe: &'a Probe,
    /// The switch's data thread.
    pub switch: &'a Thread,
    /// Windows that count that are wanted.
    pub wanted: usize,
    /// How long to go on for them.
    pub patience: Duration,
    /// Which round it is.
    pub round: u32,
    /// Set when the person wants it to end.
    pub interrupted: &'a AtomicBool,
}

impl Watch<'_> {
    /// Takes windows until enough count, or until patience is at its end.
    ///
    /// # Errors
    /// The switch broke a ring, or frames.
    pub fn take<R: Ring>(
        &self,
        traffic: &mut Traffic<R>,
        method: Method,
    ) -> Result<Vec<Window>, GeneratorError> {
        match method {
            Method::Flood => traffic.flood(WARM_UP)?,
            Method::RoundTrips => drop(round_trips(traffic, WARM_UP, usize::MAX)?),
            Method::Rate(rate) => send(traffic, WARM_UP, rate)?,
        }
        let mut windows: Vec<Window> = Vec::new();
        let start = Instant::now();
        while (windows.len() < self.wanted || start.elapsed() < self.patience)
            && windows.iter().filter(|window| window.counts()).count() < self.wanted
            && !self.interrupted.load(Ordering::Relaxed)
        {
            windows.push(self.window(traffic, method)?);
        }
        Ok(windows)
    }

    fn window<R: Ring>(
        &self,
        traffic: &mut Traffic<R>,
        method: Method,
    ) -> Result<Window, GeneratorError> {
        let before = self.probe.round_trip();
        match method {
            Method::Flood => traffic.flood(SETTLE)?,
            Method::RoundTrips => drop(round_trips(traffic, SETTLE, usize::MAX)?),
            Method::Rate(rate) => {
                send(traffic, SETTLE, rate)?;
                traffic.drain(SETTLE);
            }
        }
        let me = Thread::current();
        let (mine, its, taken) = (me.times(), self.switch.times(), stolen());
        let (counted, start) = (traffic.counters(), Instant::now());
        let mut samples = Vec::new();
        match method {
            Method::Flood => traffic.flood(FLOOD)?,
            Method::RoundTrips => samples = round_trips(traffic, ROUND_TRIPS_END, ROUND_TRIPS)?,
            Method::Rate(rate) => send(traffic, PACED, rate)?,
        }
        let seconds = start.elapsed().as_secs_f64();
        let (my_end, its_end, taken) = (me.times(), self.switch.times(), stolen() - taken);
        if matches!(method, Method::Rate(_)) {
            traffic.drain(SETTLE);
        }
        let delta = traffic.counters().since(&counted);
        let after = self.probe.round_trip();

        let regime = match (before.map(Regime::of), after.map(Regime::of)) {
            (Some(before), Some(after)) if before == after => Some(before),
            _ => None,
        };
        let share = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() / seconds;
        let waited = share(mine.waited, my_end.waited).max(share(its.waited, its_end.waited));
        let ran = share(its.ran, its_end.ran);
        let per_frame = ran * seconds * ticks_per_second() / delta.received as f64;
        samples.sort_unstable();
        Ok(Window {
            round: self.round,
            line: [before, after],
            regime,
            quiet: waited <= WAITED && taken <= STOLEN && self.probe.sound(),
            alive: match method {
                Method::RoundTrips => !samples.is_empty(),
                Method::Rate(0) => true,
                Method::Flood | Method::Rate(_) => delta.received > 0,
            },
            waited: 100.0 * waited,
            stolen: taken,
            seconds,
            sent: delta.sent,
            received: delta.received,
            mpps: delta.received as f64 / seconds / 1e6,
            full: 100.0 * delta.full as f64 / (delta.turns.max(1)) as f64,
            cpu: 100.0 * ran,
            cycles: (delta.received > 0).then_some(per_frame),
            round_trips: summarize(&samples),
        })
    }
}

/// Percentiles of sorted round trips.
#[must_use]
pub fn summarize(sorted: &[u32]) -> Option<RoundTrips> {
    let at = |share| percentile(sorted, share).map(f64::from);
    Some(RoundTrips { n: sorted.len(), p50: at(0.5)?, p99: at(0.99)?, p999: at(0.999)? })
}

/// Traffic at a rate; a rate of zero is a guest that sleeps.
fn send<R: Ring>(
    traffic: &mut Traffic<R>,
    time: Duration,
    rate: u32,
) -> Result<(), GeneratorError> {
    if rate == 0 {
        std::thread::sleep(time);
        return Ok(());
    }
    traffic.pace(time, rate.into())
}

/// Round trips, one after the other, in nanoseconds.
fn round_trips<R: Ring>(
    traffic: &mut Traffic<R>,
    time: Duration,
    most: usize,
) -> Result<Vec<u32>, GeneratorError> {
    let start = Instant::now();
    let nanos = 1e9 / ticks_per_second();
    let mut samples = Vec::with_capacity(most.min(ROUND_TRIPS));
    while samples.len() < most && start.elapsed() < time {
        if let Some(trip) = traffic.round_trip()? {
            samples.push((trip.total as f64 * nanos) as u32);
        }
        let pause = Instant::now();
        while pause.elapsed() < GAP {
            std::hint::spin_loop();
        }
    }
    Ok(samples)
}
