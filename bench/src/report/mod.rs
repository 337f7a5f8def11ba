//! What was found out: JSON with every window, tables for people, figures.

pub(crate) mod figures;
mod machine;
pub(crate) mod promises;
pub(crate) mod tables;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use machine::Machine;

use crate::cell::{Cell, Method};
use crate::disk::Disks;
use crate::generator::Touch;
use crate::options::Options;
use crate::place::Regime;
use crate::stats::{Summary, summary};
use crate::sut::{self, System};
use crate::vf::Pods;
use crate::wake::WakeUp;
use crate::window::Window;

/// From this share of its own limit on the generator is what limits.
const BOUND: f64 = 0.8;

/// A worker that has frames to move for less than this share of the time, in per cent, is not what
/// limits.
const BUSY: f64 = 90.0;

/// So many windows of each system are compared rather than more in which cores were shared: what a
/// promise asks for.
pub(crate) const ENOUGH: usize = promises::WINDOWS;

/// A figure of a window.
pub(crate) type Figure = fn(&Window) -> Option<f64>;

/// Figures that are compared.
pub(crate) mod figure {
    use super::{Figure, Window};

    /// Millions of frames a second.
    pub(crate) const RATE: Figure = |w| Some(w.mpps);
    /// Round trips in microseconds: the median and the 99th percentile.
    pub(crate) const P50: Figure = |w| w.round_trips.map(|t| t.p50 / 1e3);
    /// See [`P50`].
    pub(crate) const P99: Figure = |w| w.round_trips.map(|t| t.p99 / 1e3);
    /// CPU time in per cent of one CPU.
    pub(crate) const CPU: Figure = |w| Some(w.cpu);
    /// Frames that were sent and did not arrive, in per cent.
    pub(crate) const LOST: Figure = |w: &Window| match w.sent {
        0 => None,
        sent => Some(100.0 * sent.saturating_sub(w.received) as f64 / sent as f64),
    };
    /// Cycles of work for each frame.
    pub(crate) const CYCLES: Figure = |w| w.cycles;
    /// Share of the time without work, in per cent.
    pub(crate) const IDLE: Figure = |w| w.busy.map(|busy| 100.0 - busy);
}

/// A window, of whatever.
pub trait Sample {
    /// Whether it may be compared with others of its regime.
    fn counts(&self) -> bool;
    /// The regime, if it was the same before and after.
    fn regime(&self) -> Option<Regime>;

    /// Whether it is such as are looked for: it counts, and each CPU had its core alone.
    fn is_wanted(&self) -> bool {
        self.counts() && !self.regime().is_some_and(Regime::is_crowded)
    }
    /// Which round it was in, from 0.
    fn round(&self) -> u32;
}

impl Sample for Window {
    fn counts(&self) -> bool {
        Window::counts(self)
    }

    fn regime(&self) -> Option<Regime> {
        self.regime
    }

    fn round(&self) -> u32 {
        self.round
    }
}

/// All windows of a cell of a system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome<C = Cell, S = System, W = Window> {
    /// The cell.
    pub cell: C,
    /// The system.
    pub system: S,
    /// Its windows, those that do not count included.
    pub windows: Vec<W>,
    /// Why there are none, or fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl<C, S: PartialEq, W: Sample> Outcome<C, S, W> {
    /// Adds a turn's windows to what there is of its system.
    pub fn record(
        outcomes: &mut Vec<Outcome<C, S, W>>,
        cell: C,
        system: S,
        windows: Vec<W>,
        problem: Option<String>,
    ) {
        let at =
            outcomes.iter().position(|outcome| outcome.system == system).unwrap_or_else(|| {
                outcomes.push(Outcome { cell, system, windows: Vec::new(), problem: None });
                outcomes.len() - 1
            });
        let Some(outcome) = outcomes.get_mut(at) else { return };
        outcome.windows.extend(windows);
        outcome.problem = problem.or(outcome.problem.take());
    }

    /// A summary over the windows that count in a regime.
    pub(crate) fn summary(
        &self,
        regime: Regime,
        value: impl Fn(&W) -> Option<f64>,
    ) -> Option<Summary> {
        summary(self.counting(regime).filter_map(value))
    }

    pub(crate) fn counting(&self, regime: Regime) -> impl Iterator<Item = &W> {
        self.windows.iter().filter(move |w| w.counts() && w.regime() == Some(regime))
    }
}

/// A version of a system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version<S = System> {
    /// The system.
    pub system: S,
    /// Its version.
    pub version: String,
}

/// Everything about a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was typed.
    pub command: String,
    /// Where it ran.
    pub machine: Machine,
    /// What being woken takes there.
    #[serde(default)]
    pub wake: Option<WakeUp>,
    /// What was compared.
    pub systems: Vec<Version>,
    /// What the guests did with frames, but in the table for that.
    pub touch: Touch,
    /// They had checksum and segmentation offload in all tables.
    pub offloads: bool,
    /// What was found, by cell, then system.
    pub outcomes: Vec<Outcome>,
    /// What was found of disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disks: Option<Disks>,
    /// What was found of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<Pods>,
}

/// A cell with all its systems, and the regime in which they are compared.
pub(crate) struct Row<'a, C = Cell, S = System, W = Window> {
    pub(crate) cell: C,
    pub(crate) regime: Option<Regime>,
    pub(crate) outcomes: Vec<&'a Outcome<C, S, W>>,
}

impl<C, S: Copy + PartialEq, W: Sample> Row<'_, C, S, W> {
    pub(crate) fn of(&self, system: S) -> Option<&Outcome<C, S, W>> {
        self.outcomes.iter().copied().find(|outcome| outcome.system == system)
    }

    /// A figure of a system.
    pub(crate) fn figure(&self, system: S, value: impl Fn(&W) -> Option<f64>) -> Option<Summary> {
        self.of(system)?.summary(self.regime?, value)
    }

    /// One system's figure divided by another's: see [`ratio`].
    pub(crate) fn between(
        &self,
        one: S,
        other: S,
        value: impl Fn(&W) -> Option<f64>,
    ) -> Option<Summary> {
        ratio(self.of(one)?, self.of(other)?, self.regime?, value)
    }
}

impl Row<'_> {
    /// A system's figure divided by hayate's: see [`ratio`].
    pub(crate) fn ratio(
        &self,
        system: System,
        value: impl Fn(&Window) -> Option<f64>,
    ) -> Option<Summary> {
        self.between(system, System::Hayate, value)
    }

    /// Whether a system came so near to the generator's limit, or hayate had so little to do, that the
    /// generator is what limits. (What others count as busy is not everything they do for frames.)
    pub(crate) fn bound(&self, system: System) -> bool {
        if system == System::Limit || self.cell.method() != Method::Flood {
            return false;
        }
        let busy = || self.figure(system, |window| window.busy);
        if system == System::Hayate && busy().is_some_and(|busy| busy.median < BUSY) {
            return true;
        }
        let rate = |system| self.figure(system, |window| Some(window.mpps));
        match (rate(system), rate(System::Limit)) {
            (Some(rate), Some(limit)) => rate.median >= BOUND * limit.median,
            _ => false,
        }
    }
}

impl Report {
    /// The report of a run.
    #[must_use]
    pub fn new(
        options: &Options,
        command: &str,
        wake: Option<WakeUp>,
        outcomes: Vec<Outcome>,
        disks: Option<Disks>,
    ) -> Report {
        let version = |&system: &System| Version { system, version: sut::version(system) };
        let some: &[System] = if outcomes.is_empty() { &[] } else { &options.systems };
        Report {
            command: command.to_owned(),
            machine: Machine::this(options.cpus),
            wake,
            systems: some.iter().map(version).collect(),
            touch: options.touch,
            offloads: options.offloads,
            outcomes,
            disks,
            pods: None,
        }
    }

    /// Cells in their order, each with the regime in which most can be compared.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        rows(&self.outcomes)
    }

    /// Writes all files into a directory, which is made if need be; their paths.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn write(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        fs::create_dir_all(directory)?;
        let figures = figures::draw(self);
        let names: Vec<String> = figures.iter().map(|figure| figure.name.clone()).collect();
        let mut files = vec![
            ("figures.json".to_owned(), serde_json::to_string(self)? + "\n"),
            ("README.md".to_owned(), tables::markdown(self, &names)),
        ];
        files.extend(figures.into_iter().map(|figure| (figure.name, figure.svg)));
        let mut paths = Vec::new();
        for (name, text) in files {
            let path = directory.join(name);
            fs::write(&path, text)?;
            paths.push(path);
        }
        Ok(paths)
    }

    /// The tables, as they are written.
    #[must_use]
    pub fn markdown(&self) -> String {
        tables::markdown(self, &[])
    }
}

/// Cells in their order, each with the regime in which most can be compared.
pub(crate) fn rows<C: Copy + PartialEq, S: PartialEq, W: Sample>(
    outcomes: &[Outcome<C, S, W>],
) -> Vec<Row<'_, C, S, W>> {
    let mut rows: Vec<Row<'_, C, S, W>> = Vec::new();
    for outcome in outcomes {
        match rows.last_mut().filter(|row| row.cell == outcome.cell) {
            Some(row) => row.outcomes.push(outcome),
            None => {
                let (cell, outcomes) = (outcome.cell, vec![outcome]);
                rows.push(Row { cell, regime: None, outcomes });
            }
        }
    }
    for row in &mut rows {
        row.regime = common_regime(&row.outcomes);
    }
    rows
}

/// One outcome's figure divided by another's, in each round in which both have one. Where such rounds
/// have fewer than half of the windows, of all rounds: on a host whose cores are shared the regime
/// changes from turn to turn, and changes more than the memory which a round has in common.
pub(crate) fn ratio<C, S: PartialEq, W: Sample>(
    one: &Outcome<C, S, W>,
    other: &Outcome<C, S, W>,
    regime: Regime,
    value: impl Fn(&W) -> Option<f64>,
) -> Option<Summary> {
    let rounds = summary(ratios(one, other, regime, &value));
    rounds.or_else(|| {
        let all = one.summary(regime, &value)?.median / other.summary(regime, &value)?.median;
        summary([all])
    })
}

/// What [`ratio`] summarises, in the order of rounds; empty where it is of all rounds.
pub(crate) fn ratios<C, S: PartialEq, W: Sample>(
    one: &Outcome<C, S, W>,
    other: &Outcome<C, S, W>,
    regime: Regime,
    value: impl Fn(&W) -> Option<f64>,
) -> Vec<f64> {
    let rounds = |outcome: &Outcome<C, S, W>| {
        let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for window in outcome.counting(regime) {
            rounds.entry(window.round()).or_default().extend(value(window));
        }
        rounds
    };
    let all = [rounds(one), rounds(other)];
    let common: Vec<[&Vec<f64>; 2]> =
        all[0].iter().filter_map(|(round, one)| Some([one, all[1].get(round)?])).collect();
    let fewest = |of: &dyn Fn(usize) -> usize| of(0).min(of(1));
    let in_common = fewest(&|which| common.iter().map(|both| both[which].len()).sum());
    if 2 * in_common < fewest(&|which| all[which].values().map(Vec::len).sum()) {
        return Vec::new();
    }
    let median = |values: &Vec<f64>| Some(summary(values.iter().copied())?.median);
    common.into_iter().filter_map(|[one, other]| Some(median(one)? / median(other)?)).collect()
}

/// The regime in which the system with the fewest windows has the most; the nearer and less crowded
/// one of two. One in which cores are shared only if no other has [`ENOUGH`].
pub(crate) fn common_regime<C, S: PartialEq, W: Sample>(
    outcomes: &[&Outcome<C, S, W>],
) -> Option<Regime> {
    let measured: Vec<&&Outcome<C, S, W>> =
        outcomes.iter().filter(|outcome| outcome.windows.iter().any(W::counts)).collect();
    let fewest = |regime: Regime| {
        let counts = measured.iter().map(|outcome| outcome.counting(regime).count());
        (counts.clone().min().unwrap_or(0), counts.sum::<usize>())
    };
    let (shared, alone): (Vec<_>, Vec<_>) = Regime::all().partition(|r| r.is_crowded());
    let best = alone.into_iter().max_by_key(|&regime| fewest(regime))?;
    let crowded = shared.into_iter().max_by_key(|&regime| fewest(regime))?;
    let is_better = fewest(best).0 < ENOUGH && fewest(crowded) > fewest(best);
    let best = if is_better { crowded } else { best };
    (fewest(best).1 > 0).then_some(best)
}

/// What a turn found, in one line.
#[must_use]
pub fn one_line(cell: &Cell, windows: &[Window]) -> String {
    let good = || windows.iter().filter(|window| window.counts());
    let n = good().count();
    let of = |value: fn(&Window) -> Option<f64>| summary(good().filter_map(value));
    let regime = match good().next().and_then(|window| window.regime) {
        Some(regime) => regime.as_str(),
        None => return no_window(windows),
    };
    let trips = |get: fn(&crate::window::RoundTrips) -> f64| {
        let values = good().filter_map(|w| w.round_trips.as_ref().map(get));
        summary(values).map_or(0.0, |s| s.median / 1e3)
    };
    let what = match cell.method() {
        Method::RoundTrips(_) => {
            let (p50, p99) = (trips(|t| t.p50), trips(|t| t.p99));
            format!("p50 {p50:6.2} us, p99 {p99:6.2} us")
        }
        Method::Flood | Method::Rate(_) => {
            let median = |s: Option<Summary>| s.map_or(0.0, |s| s.median);
            let mpps = median(of(|w| Some(w.mpps)));
            let (full, cpu) = (median(of(|w| Some(w.full))), median(of(|w| Some(w.cpu))));
            let (busy, cycles) = (median(of(|w| w.busy)), median(of(figure::CYCLES)));
            format!(
                "{mpps:7.3} Mpps, ring full {full:3.0} %, CPU {cpu:3.0} %, busy {busy:3.0} %, \
                 {cycles:4.0} cycles"
            )
        }
    };
    format!("{what}  ({regime}, n={n})")
}

/// Why none counts.
fn no_window(windows: &[Window]) -> String {
    let median =
        |value: fn(&Window) -> f64| summary(windows.iter().map(value)).map_or(0.0, |s| s.median);
    let (waited, stolen) = (median(|w| w.waited), median(|w| w.stolen as f64));
    if windows.iter().all(|window| !window.alive) {
        return "no frame arrived: the switch does not run any more, or was stopped".to_owned();
    }
    let moved = windows.iter().filter(|window| window.regime.is_none()).count();
    format!(
        "no window counts (of {}): waited {waited:.0} % for a CPU, host took {stolen:.0} ticks, CPUs \
         moved in {moved}",
        windows.len()
    )
}

#[cfg(test)]
pub(crate) mod tests;
