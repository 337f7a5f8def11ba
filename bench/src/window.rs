//! Windows: a tenth of a second of traffic, with what the machine did meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sys::clock::ticks_per_second;

use crate::aim::Aim;
use crate::cell::{Cell, Method, Side};
use crate::generator::{Counters, GeneratorError, Ring, Traffic};
use crate::place::{Look, Probe, Regime};
use crate::sched::{Thread, stolen};
use crate::stats::percentile;
use crate::sut::Running;

/// Traffic before the first window, and at the beginning of each.
const WARM_UP: Duration = Duration::from_millis(100);
const SETTLE: Duration = Duration::from_millis(5);
/// Where guests share their CPU: how long they have it, and then do not have it.
const SLICE: Duration = Duration::from_millis(10);
/// Length of a window, and of one at a rate: a switch that sleeps now and then needs longer to show.
const FLOOD: Duration = Duration::from_millis(60);
const PACED: Duration = Duration::from_millis(100);
/// Round trips in a window, unless they take longer than this.
const ROUND_TRIPS: usize = 4_000;
const ROUND_TRIPS_END: Duration = Duration::from_millis(200);
/// Between two round trips.
const GAP: Duration = Duration::from_micros(5);
/// What the switch has left to do when the generator ends: none of it is to fall into a probe.
const REST: Duration = Duration::from_micros(200);
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
    /// How much longer instructions took then on the switch's core and on the guests' than on one
    /// that has nobody else: the longer of before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crowding: Option<[f64; 2]>,
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
    /// Frames sent and received; where none can arrive, frames that the switch took.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
    /// Millions of frames received in a second.
    pub mpps: f64,
    /// The longest time in which the generator looked at no queue, in microseconds, for frames at a
    /// rate: what was lost meanwhile was not lost by the switch.
    pub away: f64,
    /// How often the generator found its TX ring full, in per cent: near 100 the switch is the limit.
    pub full: f64,
    /// CPU time of the switch, all its threads, in per cent of one CPU.
    pub cpu: f64,
    /// Share of the time in which the switch had frames to move, in per cent, by its own account.
    pub busy: Option<f64>,
    /// Cycles (of the time stamp counter) for each frame received, of that time.
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
    pub thread: &'a Thread,
    /// What is measured.
    pub cell: &'a Cell,
    /// Windows that are wanted.
    pub aim: Aim,
    /// How long to go on for them.
    pub patience: Duration,
    /// Which round it is.
    pub round: u32,
    /// Set when the person wants it to end.
    pub interrupted: &'a AtomicBool,
}

/// What a turn came to: its windows, and what ended it early.
pub type Taken = (Vec<Window>, Option<GeneratorError>);

impl Watch<'_> {
    /// Takes windows until there are enough of them, or until patience is at its end. `switch`, if it is a
    /// process of its own.
    ///
    /// Windows before the switch broke a ring, or frames, are kept.
    pub fn take<R: Ring>(
        &self,
        traffic: &mut Traffic<R>,
        mut switch: Option<&mut Running>,
    ) -> Taken {
        let mut windows: Vec<Window> = Vec::new();
        if let Err(error) = self.send(traffic, WARM_UP, usize::MAX) {
            return (windows, Some(error));
        }
        traffic.drain(REST);
        let start = Instant::now();
        let mut busy = switch.as_deref_mut().and_then(Running::busy);
        while (windows.len() < self.aim.windows || start.elapsed() < self.patience)
            && windows.iter().filter(|window| self.aim.is_at(*window)).count() < self.aim.windows
            && !self.interrupted.load(Ordering::Relaxed)
            && switch.as_deref_mut().is_none_or(Running::alive)
        {
            match self.window(traffic, switch.as_deref_mut(), &mut busy) {
                Ok(window) => windows.push(window),
                Err(error) => return (windows, Some(error)),
            }
        }
        (windows, None)
    }

    fn window<R: Ring>(
        &self,
        traffic: &mut Traffic<R>,
        switch: Option<&mut Running>,
        busy: &mut Option<f64>,
    ) -> Result<Window, GeneratorError> {
        let ran = |switch: &Option<&mut Running>| match switch {
            Some(switch) => switch.cpu_time(),
            None => self.thread.times().ran,
        };
        let before = self.probe.look();
        let (begin, all) = (Instant::now(), traffic.counters());
        self.send(traffic, SETTLE, usize::MAX)?;
        if matches!(self.cell.method(), Method::Rate(_)) {
            traffic.drain(SETTLE);
        }
        let me = Thread::current();
        let (mine, its, taken) = (me.times(), self.thread.times(), stolen());
        let cpu = ran(&switch);
        let (counted, start) = (traffic.counters(), Instant::now());
        let Sent { mut samples, away, paused } = self.send(traffic, self.length(), ROUND_TRIPS)?;
        let seconds = start.elapsed().as_secs_f64();
        let (my_end, its_end, taken) = (me.times(), self.thread.times(), stolen() - taken);
        let cpu = ran(&switch).saturating_sub(cpu).as_secs_f64();
        let drained = if matches!(self.cell.method(), Method::Rate(_)) { SETTLE } else { REST };
        let flooded = traffic.counters().since(&counted);
        traffic.drain(drained);
        let active = begin.elapsed().as_secs_f64();
        // At a rate what arrives late is not lost; of a flood, it is not part of the time.
        let delta = match self.cell.method() {
            Method::Rate(_) => traffic.counters().since(&counted),
            Method::Flood | Method::RoundTrips(_) => flooded,
        };
        let after = self.probe.look();

        let waited = my_end.kept_waiting(&mine).max(its_end.kept_waiting(&its));
        let waited = waited.as_secs_f64() / seconds;
        let now = switch.and_then(Running::busy);
        let work = std::mem::replace(busy, now).and_then(|then| Some((*busy)? - then));
        let all = self.frames_of(&traffic.counters().since(&all));
        let received = self.frames_of(&delta);
        samples.sort_unstable();
        Ok(Window {
            round: self.round,
            line: [before.line, after.line],
            crowding: Some(Look::crowding(&before, &after)),
            regime: Look::regime(&before, &after),
            quiet: waited <= WAITED
                && taken <= STOLEN
                && self.probe.sound()
                && self.attentive(away),
            alive: match self.cell.method() {
                Method::RoundTrips(_) => !samples.is_empty(),
                Method::Rate(0) => true,
                Method::Flood | Method::Rate(_) => received > 0,
            },
            waited: 100.0 * waited,
            stolen: taken,
            seconds,
            sent: delta.sent,
            received,
            mpps: received as f64 / (seconds - paused.as_secs_f64()) / 1e6,
            away: away.as_secs_f64() * 1e6,
            full: 100.0 * delta.full as f64 / (delta.turns.max(1)) as f64,
            cpu: 100.0 * cpu / seconds,
            busy: work.map(|work| (100.0 * work / active).min(100.0)),
            cycles: work.filter(|_| all > 0).map(|w| w * ticks_per_second() / all as f64),
            round_trips: summarize(&samples),
        })
    }

    /// Frames that came as far as they can.
    fn frames_of(&self, counters: &Counters) -> u64 {
        match self.cell.side {
            Side::Both => counters.received,
            Side::Sending => counters.taken,
        }
    }

    fn length(&self) -> Duration {
        match self.cell.method() {
            Method::Flood => FLOOD,
            Method::RoundTrips(_) => ROUND_TRIPS_END,
            Method::Rate(_) => PACED,
        }
    }

    /// Whether the generator came back before half a receiving ring was full.
    fn attentive(&self, away: Duration) -> bool {
        match self.cell.method() {
            Method::Rate(rate) => {
                away.as_secs_f64() * f64::from(rate) <= f64::from(self.cell.entries) / 2.0
            }
            Method::Flood | Method::RoundTrips(_) => true,
        }
    }

    /// Traffic for a time; at most `most` round trips.
    fn send<R: Ring>(
        &self,
        traffic: &mut Traffic<R>,
        time: Duration,
        most: usize,
    ) -> Result<Sent, GeneratorError> {
        let mut sent = Sent::default();
        match self.cell.method() {
            Method::Flood if self.cell.shares_cpu() => {
                let start = Instant::now();
                while start.elapsed() < time {
                    traffic.flood(SLICE)?;
                    let pause = Instant::now();
                    std::thread::sleep(SLICE);
                    sent.paused += pause.elapsed();
                }
            }
            Method::Flood => traffic.flood(time)?,
            Method::RoundTrips(rate) => sent.samples = round_trips(traffic, time, most, rate)?,
            // Guests that sleep.
            Method::Rate(0) => std::thread::sleep(time),
            Method::Rate(rate) => sent.away = traffic.pace(time, rate.into())?,
        }
        Ok(sent)
    }
}

/// What sending came to.
#[derive(Default)]
struct Sent {
    /// Round trips in nanoseconds.
    samples: Vec<u32>,
    /// See [`Window::away`].
    away: Duration,
    /// How long the guests left their CPU to others.
    paused: Duration,
}

/// Percentiles of sorted round trips.
#[must_use]
pub fn summarize(sorted: &[u32]) -> Option<RoundTrips> {
    let at = |share| percentile(sorted, share).map(f64::from);
    Some(RoundTrips { n: sorted.len(), p50: at(0.5)?, p99: at(0.99)?, p999: at(0.999)? })
}

/// Round trips in nanoseconds, one soon after the other or so many a second.
fn round_trips<R: Ring>(
    traffic: &mut Traffic<R>,
    time: Duration,
    most: usize,
    rate: Option<u32>,
) -> Result<Vec<u32>, GeneratorError> {
    let (start, nanos) = (Instant::now(), 1e9 / ticks_per_second());
    let mut samples = Vec::with_capacity(most.min(ROUND_TRIPS));
    let mut next = start;
    while samples.len() < most && start.elapsed() < time {
        if let Some(trip) = traffic.round_trip()? {
            samples.push((trip.total as f64 * nanos) as u32);
        }
        next = match rate {
            Some(rate) => (next + Duration::from_secs(1) / rate.max(1)).max(Instant::now()),
            None => Instant::now() + GAP,
        };
        while Instant::now() < next {
            std::hint::spin_loop();
        }
    }
    Ok(samples)
}
