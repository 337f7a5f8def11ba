//! Windows: a fifth of a second of requests, with what the machine did meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::cell::{Job, Medium};
use super::files::{self, FileLoad};
use super::fio;
use super::guest::Lab;
use super::load::{Load, LoadError};
use super::sut::{Backend, System};
use crate::place::{Look, Probe, Regime};
use crate::report::Sample;
use crate::sched::{Thread, stolen, strangers, used_since};
use crate::window::RoundTrips;

/// Requests before each window, and length of a window.
pub const SETTLE: Duration = Duration::from_millis(50);
/// See [`SETTLE`].
pub const LENGTH: Duration = Duration::from_millis(200);
/// Length of a window of idle disks.
const IDLE: Duration = Duration::from_secs(1);
/// Share of a window that other programs may have used of either CPU, and that the client may have
/// waited for its own. Where there is a real file system it also waits for threads of the kernel that
/// do what the requests ask for, so there only other programs count.
const WAITED: f64 = 0.02;
/// Share of a window that the host may have taken: all CPUs, in clock ticks of 10 ms.
const STOLEN: f64 = 0.2;
/// What a back end has left to do when the client ends: none of it is to fall into a probe.
const REST: Duration = Duration::from_millis(1);

/// What happened in a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Which round it was in, from 0.
    pub round: u32,
    /// Round trip of a cache line between the CPUs, before and after, in nanoseconds.
    pub line: [Option<f64>; 2],
    /// How much longer instructions took then on the back end's core and on the client's than on one
    /// that has nobody else: the longer of before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crowding: Option<[f64; 2]>,
    /// The regime, if it was the same before and after.
    pub regime: Option<Regime>,
    /// Whether client and back end had their CPUs.
    pub quiet: bool,
    /// How long the client waited for its CPU, in per cent of the window.
    pub waited: f64,
    /// CPU time of other programs, in per cent of one CPU.
    pub others: f64,
    /// Clock ticks of 10 ms the host took from this machine.
    pub stolen: u64,
    /// Length in seconds.
    pub seconds: f64,
    /// Requests a second.
    pub rate: f64,
    /// How long they took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<RoundTrips>,
    /// CPU time of the back end, all its threads, in per cent of one CPU.
    pub cpu: f64,
    /// The same of who has the image, if that is another process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<f64>,
    /// Looks of the client at its queues that found no answer, in per cent: near 0 it is the client
    /// that limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty: Option<f64>,
}

impl Sample for Window {
    fn counts(&self) -> bool {
        self.quiet && self.regime.is_some()
    }

    fn regime(&self) -> Option<Regime> {
        self.regime
    }

    fn round(&self) -> u32 {
        self.round
    }
}

impl Window {
    /// CPU time of the back end for a million requests, in seconds.
    #[must_use]
    pub fn cpu_for_a_million(&self) -> Option<f64> {
        (self.rate > 0.0).then(|| self.cpu / 100.0 / self.rate * 1e6)
    }

    /// The same of who has the image, if that is another process.
    #[must_use]
    pub fn server_for_a_million(&self) -> Option<f64> {
        let server = self.server.filter(|_| self.rate > 0.0)?;
        Some(server / 100.0 / self.rate * 1e6)
    }
}

/// What a turn came to: its windows, and what ended it early.
pub type Taken = (Vec<Window>, Option<LoadError>);

/// How windows are taken.
pub struct Watch<'a> {
    /// The probe between the CPUs.
    pub probe: &'a Probe,
    /// Windows that are wanted: that count, and in which each CPU has its core alone.
    pub wanted: usize,
    /// How long to go on for them.
    pub patience: Duration,
    /// Which round it is.
    pub round: u32,
    /// Where the images are.
    pub medium: Medium,
    /// Whose file the page cache is to forget before each window.
    pub forget: Option<&'a Backend>,
    /// Set when the person wants it to end.
    pub interrupted: &'a AtomicBool,
}

/// Who makes the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// This thread, or a program on another CPU: if it waits for its own, something disturbs it.
    Here,
    /// Threads beside it, on the same CPU.
    Elsewhere,
}

/// What was found in a window, beside what the machine did.
struct Measured {
    rate: f64,
    latency: Option<RoundTrips>,
    cpu: f64,
    server: Option<f64>,
    empty: Option<f64>,
}

impl Watch<'_> {
    /// Windows of requests to a back end.
    pub fn load(&self, load: &mut Load<'_>, backend: &Backend) -> Taken {
        self.windows(&backend.pids(), Waits::Here, || {
            load.run(SETTLE)?;
            load.begin();
            let (start, used, served) = (Instant::now(), backend.cpu_time(), backend.server_time());
            load.run(LENGTH)?;
            let (seconds, used) = (start.elapsed(), backend.cpu_time().saturating_sub(used));
            let served =
                backend.server_time().zip(served).map(|(now, then)| now.saturating_sub(then));
            let counts = load.counts.clone();
            load.drain()?;
            let seconds = seconds.as_secs_f64();
            Ok(Measured {
                rate: counts.requests as f64 / seconds,
                latency: counts.latencies.summary(),
                cpu: 100.0 * used.as_secs_f64() / seconds,
                server: served.map(|served| 100.0 * served.as_secs_f64() / seconds),
                empty: Some(100.0 * counts.empty as f64 / counts.looks.max(1) as f64),
            })
        })
    }

    /// Windows of requests to a file.
    pub fn file(&self, load: &FileLoad<'_>, backend: &Backend) -> Taken {
        self.windows(&backend.pids(), Waits::Elsewhere, || {
            let times = || (backend.cpu_time(), backend.server_time().unwrap_or_default());
            let mut used = [Duration::ZERO; 2];
            let done = load.window(times, |(back, server)| {
                let now = times();
                used = [now.0.saturating_sub(back), now.1.saturating_sub(server)];
            })?;
            let share = |used: Duration| 100.0 * used.as_secs_f64() / done.seconds;
            let rate = done.requests as f64 / done.seconds;
            let [cpu, server] = used.map(share);
            Ok(Measured { rate, latency: done.latency, cpu, server: Some(server), empty: None })
        })
    }

    /// Windows of a back end whose disks have nothing to do.
    pub fn idle(&self, backend: &Backend) -> Taken {
        self.windows(&backend.pids(), Waits::Here, || {
            let (start, used) = (Instant::now(), backend.cpu_time());
            std::thread::sleep(IDLE);
            let used = backend.cpu_time().saturating_sub(used).as_secs_f64();
            let cpu = 100.0 * used / start.elapsed().as_secs_f64();
            Ok(Measured { rate: 0.0, latency: None, cpu, server: None, empty: None })
        })
    }

    /// Windows of fio: each is a run of it.
    pub fn fio(
        &self,
        job: &Job,
        target: fio::Target<'_>,
        log: &Path,
        size: u64,
        cpu: usize,
    ) -> Taken {
        let (own, waits) = match target {
            fio::Target::File(_) => (Vec::new(), Waits::Here),
            fio::Target::Nbd(_, server) => (vec![server], Waits::Elsewhere),
        };
        self.windows(&own, waits, || {
            let found = fio::run(job, (target, log), size, self.medium, cpu)?;
            let (rate, latency) = (found.rate, Some(found.latency));
            let server = found.server.map(|share| 100.0 * share);
            Ok(Measured { rate, latency, cpu: 100.0 * found.cpu, server, empty: None })
        })
    }

    /// Windows of fio in a guest, on the disk of a system: each is a run of it.
    pub(super) fn guest(&self, job: &Job, lab: &mut Lab, system: System) -> Taken {
        self.windows(&lab.pids(), Waits::Elsewhere, || {
            let before = lab.times(system);
            let (rate, latency) = lab.fio(system, job)?;
            let now = lab.times(system);
            // All that was used, for all that was done.
            let seconds = latency.n as f64 / rate;
            let share = |now: Duration, then: Duration| {
                100.0 * now.saturating_sub(then).as_secs_f64() / seconds
            };
            let [cpu, server] = [share(now[0], before[0]), share(now[1], before[1])];
            let (latency, server) = (Some(latency), Some(server));
            Ok(Measured { rate, latency, cpu, server, empty: None })
        })
    }

    fn windows(
        &self,
        own: &[u32],
        waits: Waits,
        mut measure: impl FnMut() -> Result<Measured, LoadError>,
    ) -> Taken {
        let own = [own, &[std::process::id()]].concat();
        let mut windows: Vec<Window> = Vec::new();
        let start = Instant::now();
        while (windows.len() < self.wanted || start.elapsed() < self.patience)
            && windows.iter().filter(|window| window.is_wanted()).count() < self.wanted
            && !self.interrupted.load(Ordering::Relaxed)
        {
            match self.window(&own, waits, &mut measure) {
                Ok(window) => windows.push(window),
                Err(error) => return (windows, Some(error)),
            }
        }
        (windows, None)
    }

    fn window(
        &self,
        own: &[u32],
        waits: Waits,
        measure: &mut impl FnMut() -> Result<Measured, LoadError>,
    ) -> Result<Window, LoadError> {
        if let Some(backend) = self.forget {
            files::forget(|| backend.behind())?;
        }
        let before = self.probe.look();
        let (me, others, taken) = (Thread::current(), strangers(own), stolen());
        let (mine, start) = (me.times(), Instant::now());
        let Measured { rate, latency, cpu, server, empty } = measure()?;
        let seconds = start.elapsed().as_secs_f64();
        let waited = me.times().kept_waiting(&mine).as_secs_f64() / seconds;
        let taken = stolen() - taken;
        let others = used_since(&strangers(own), &others).as_secs_f64() / seconds;
        std::thread::sleep(REST);
        let after = self.probe.look();
        let quiet = others <= WAITED
            && (waited <= WAITED || self.medium == Medium::Disk || waits == Waits::Elsewhere)
            && taken as f64 <= (STOLEN * seconds * 100.0).max(2.0)
            && self.probe.sound();
        Ok(Window {
            round: self.round,
            line: [before.line, after.line],
            crowding: Some(Look::crowding(&before, &after)),
            regime: Look::regime(&before, &after),
            quiet,
            waited: 100.0 * waited,
            others: 100.0 * others,
            stolen: taken,
            seconds,
            rate,
            latency,
            cpu,
            server,
            empty,
        })
    }
}
