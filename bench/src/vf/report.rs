//! What was found out about pods: samples and what comes of them, promises, figures.

use std::collections::BTreeMap;

use plotters::style::RGBColor;
use serde::{Deserialize, Serialize};

use super::cell::{BULK, Cell, Task, Way};
use super::others::Others;
use crate::report::figures::{Figure, Frame, Line, render};
use crate::report::promises::{Bound, Found, Measured, line};
use crate::stats::{Summary, summary};

/// Round trips of a turn, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trips {
    /// The median; of several pods, their mean.
    pub p50: f64,
    /// The 99th percentile, the same.
    pub p99: f64,
    /// The 99.9th percentile, the same.
    pub p999: f64,
    /// The longest of all.
    pub max: f64,
}

/// QEMU has its CPU for so much of a turn at least, in per cent, if nobody else runs there: one virtual CPU is what
/// limits in all cells.
pub(super) const QUIET: f64 = 70.0;

/// What a turn found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which round it was in, from 0.
    pub round: u32,
    /// Datagrams a second, of all pods together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Round trips.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trips: Option<Trips>,
    /// Datagrams, or round trips, of the whole turn; of [`Task::Receive`], of all rates that were tried.
    pub datagrams: u64,
    /// Of them, those that did not arrive; of [`Task::Receive`], at rates that were too high.
    pub lost: u64,
    /// CPU of QEMU with the guest in it, in per cent of one.
    pub guest: f64,
    /// CPU of the daemon.
    pub daemon: f64,
    /// Seconds it took.
    pub seconds: f64,
    /// Notifications from the guest.
    pub kicks: u64,
    /// Notifications to the guest.
    pub interrupts: u64,
    /// What others did meanwhile, of round trips.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Others>,
    /// Why that was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<String>,
}

/// All turns of a cell by one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The cell.
    pub cell: Cell,
    /// The way.
    pub way: Way,
    /// One for each round.
    pub samples: Vec<Sample>,
    /// Why there are none, or fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Everything about pods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pods {
    /// QEMU and the guest's kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Rules in the guest, and rules at the host.
    pub rules: [usize; 2],
    /// What was found, by cell, then way.
    pub outcomes: Vec<Outcome>,
}

/// A figure of a turn.
pub(super) type Value = fn(&Sample) -> Option<f64>;

pub(super) const MBIT: Value = |s| s.rate.map(|rate| rate * f64::from(BULK) * 8.0 / 1e6);
pub(super) const P50: Value = |s| s.trips.map(|trips| trips.p50);
pub(super) const P99: Value = |s| s.trips.map(|trips| trips.p99);
pub(super) const P999: Value = |s| s.trips.map(|trips| trips.p999);
pub(super) const MAX: Value = |s| s.trips.map(|trips| trips.max);
pub(super) const UNDISTURBED: Value = |s| s.others.as_ref()?.undisturbed;
pub(super) const GUEST: Value = |s| each(s, s.guest * s.seconds * 1e4);
pub(super) const DAEMON: Value = |s| each(s, s.daemon * s.seconds * 1e4);
pub(super) const KICKS: Value = |s| each(s, s.kicks as f64);
pub(super) const INTERRUPTS: Value = |s| each(s, s.interrupts as f64);

/// For each datagram.
fn each(sample: &Sample, sum: f64) -> Option<f64> {
    (sample.datagrams > 0).then(|| sum / sample.datagrams as f64)
}

impl Sample {
    /// Whether others left QEMU its CPU.
    pub(super) fn counts(&self) -> bool {
        self.guest >= QUIET
    }
}

impl Outcome {
    /// Adds what a turn found.
    pub(super) fn record(
        outcomes: &mut Vec<Outcome>,
        cell: Cell,
        way: Way,
        taken: Result<Sample, String>,
    ) {
        let at = outcomes.iter().position(|outcome| outcome.way == way).unwrap_or_else(|| {
            outcomes.push(Outcome { cell, way, samples: Vec::new(), problem: None });
            outcomes.len() - 1
        });
        let Some(outcome) = outcomes.get_mut(at) else { return };
        match taken {
            Ok(sample) => outcome.samples.push(sample),
            Err(problem) => outcome.problem = Some(problem),
        }
    }

    pub(super) fn counting(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|sample| sample.counts())
    }

    pub(super) fn summary(&self, value: Value) -> Option<Summary> {
        summary(self.counting().filter_map(value))
    }
}

impl Pods {
    pub(super) fn of(&self, task: Task, pods: u16, way: Way) -> Option<&Outcome> {
        let cell = Cell { task, pods };
        self.outcomes.iter().find(|outcome| (outcome.cell, outcome.way) == (cell, way))
    }

    pub(super) fn figure(&self, task: Task, pods: u16, way: Way, value: Value) -> Option<Summary> {
        self.of(task, pods, way)?.summary(value)
    }

    /// One figure divided by another, in each round in which both are there.
    pub(super) fn ratio(
        &self,
        task: Task,
        one: (u16, Way),
        other: (u16, Way),
        value: Value,
    ) -> Option<Summary> {
        let rounds = |(pods, way)| {
            let samples = self.of(task, pods, way).into_iter().flat_map(Outcome::counting);
            let of = |sample: &Sample| Some((sample.round, value(sample)?));
            samples.filter_map(of).collect::<BTreeMap<u32, f64>>()
        };
        let (one, other) = (rounds(one), rounds(other));
        summary(one.iter().filter_map(|(round, one)| Some(one / other.get(round)?)))
    }

    /// Numbers of pods, in order.
    pub(super) fn pods(&self) -> Vec<u16> {
        let mut pods: Vec<u16> = self.outcomes.iter().map(|outcome| outcome.cell.pods).collect();
        pods.sort_unstable();
        pods.dedup();
        pods
    }

    /// What could not be measured, a line each.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.outcomes.iter().filter_map(|outcome| {
            let (cell, problem) = (&outcome.cell, outcome.problem.as_ref()?);
            let (way, task, label) = (outcome.way.as_str(), cell.task(), cell.label());
            Some(format!("* {way}, {task}, {label}: {problem}"))
        })
    }
}

/// What a turn found, in one line.
pub(super) fn one_line(sample: &Sample) -> String {
    let found = match (MBIT(sample), sample.trips) {
        (Some(mbit), _) => {
            format!("{mbit:7.1} Mbit/s, {} of {} lost", sample.lost, sample.datagrams)
        }
        (_, Some(Trips { p50, p99, p999, max })) => {
            let undisturbed = match &sample.others {
                Some(others) => {
                    others.undisturbed.map_or("none".into(), |us| format!("{us:.0} us"))
                }
                None => "not recorded".into(),
            };
            format!(
                "p50 {p50:5.0} us, p99 {p99:5.0} us, p99.9 {p999:5.0} us, longest {max:6.0} us, \
                 undisturbed {undisturbed}"
            )
        }
        _ => "nothing arrived".to_owned(),
    };
    let (guest, daemon) = (sample.guest, sample.daemon);
    let disturbed = if sample.counts() { "" } else { " (does not count: others had the CPU)" };
    format!("{found}, CPU {guest:3.0} % and {daemon:3.0} %{disturbed}")
}

/// What hayate promises of virtual functions, and what was found.
pub(crate) fn promises(text: &mut String, pods: &Pods) -> std::fmt::Result {
    let goals: [(&str, Task, Value, Bound); 6] = [
        ("after / before, Mbit/s", Task::Send, MBIT, Bound::AtLeast(2.5)),
        ("after / before, Mbit/s", Task::Receive, MBIT, Bound::AtLeast(2.5)),
        ("after / before, Mbit/s", Task::Gro, MBIT, Bound::AtLeast(2.5)),
        ("after / before, longest of a round", Task::Trips, MAX, Bound::AtMost(0.33)),
        ("after / before, longest undisturbed", Task::Trips, UNDISTURBED, Bound::AtMost(0.33)),
        ("after / before, longest undisturbed", Task::Refused, UNDISTURBED, Bound::AtMost(0.33)),
    ];
    for (what, task, value, bound) in goals {
        let found = |n: u16| {
            let cell = Cell { task, pods: n };
            let ratio = pods.ratio(task, (n, Way::Vf), (n, Way::Bridge), value);
            // Each is of many thousand datagrams: a round is as good as many windows.
            let of = |ratio| Measured { windows: usize::MAX, ..Measured::from(ratio) };
            Found { label: cell.label(), measured: ratio.map(of) }
        };
        // Not every task is one for several pods.
        let there = |n: &u16| pods.of(task, *n, Way::Vf).is_some();
        let all: Vec<Found> = pods.pods().into_iter().filter(there).map(found).collect();
        line(text, ("pods of a guest", Cell { task, pods: 1 }.task()), what, Some(&all), bound)?;
    }
    Ok(())
}

/// All figures there is data for.
pub(crate) fn draw(pods: &Pods) -> Vec<Figure> {
    let plots: [(&str, &str, &str, Task, Value); 5] = [
        ("send", "Pods send, all together", "Mbit/s", Task::Send, MBIT),
        ("receive", "Pods receive without loss, all together", "Mbit/s", Task::Receive, MBIT),
        ("receive-gro", "The same, with UDP_GRO", "Mbit/s", Task::Gro, MBIT),
        ("trip", "Round trips, median", "µs", Task::Trips, P50),
        ("trip-longest", "Round trips, longest of a round", "µs", Task::Trips, MAX),
    ];
    let numbers = pods.pods();
    let labels: Vec<String> = numbers.iter().map(u16::to_string).collect();
    let mut figures = Vec::new();
    for (file, title, up, task, value) in plots {
        let of = |way| {
            let points = numbers
                .iter()
                .enumerate()
                .filter_map(|(at, &n)| Some((at as f64, pods.figure(task, n, way, value)?.median)));
            let points: Vec<(f64, f64)> = points.collect();
            let line = Line { name: way.as_str(), color: color(way), limit: false, points };
            (!line.points.is_empty()).then_some(line)
        };
        let lines: Vec<Line> = Way::ALL.into_iter().filter_map(of).collect();
        if labels.len() < 2 || lines.is_empty() {
            continue;
        }
        let frame = Frame { title, across: "pods", up };
        // Only a drawing that fails is left out; a string takes everything.
        if let Ok(svg) = render(&frame, &labels, &lines) {
            figures.push(Figure { name: format!("vf-{file}.svg"), svg });
        }
    }
    figures
}

fn color(way: Way) -> RGBColor {
    match way {
        Way::Bridge => RGBColor(0x00, 0x72, 0xb2),
        Way::Vf => RGBColor(0xd5, 0x5e, 0x00),
        Way::Port => RGBColor(0x99, 0x99, 0x99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vf::cell::{self, Table};
    use crate::vf::tables;

    /// What others did, made up: they are in all trips of the third round of the bridge that refuses.
    fn others(time: f64, task: Task, way: Way, round: u32) -> Others {
        let all = (task, way, round) == (Task::Refused, Way::Bridge, 2);
        Others {
            undisturbed: (!all).then_some(time / 1.25),
            listed: 256,
            disturbed: if all { 256 } else { 50 + round as usize },
            aside: if all { 256 } else { 20 + round as usize },
            all: 6.5,
            most: vec![("kdamond.0".into(), 4.0), ("rcu_preempt".into(), 1.0 + f64::from(round))],
            unseen: Some(0.5),
            records: 300.0,
        }
    }

    /// Everything once, made up: VFs are three times as fast, and a third of the time.
    fn everything() -> Pods {
        let mut outcomes = Vec::new();
        for cell in cell::cells(&[Table::Vf], false) {
            for way in Way::ALL {
                let times = if way == Way::Bridge { 1.0 } else { 3.0 };
                let sample = |round: u32| {
                    let scale = 1.0 + f64::from(round) / 10.0;
                    let time = f64::from(cell.pods) * (900.0 + 90.0 * f64::from(round)) / times;
                    let (p50, p99, p999) = (time / 10.0, time / 2.0, time / 1.5);
                    let trips = Trips { p50, p99, p999, max: time };
                    let bulk = !matches!(cell.task, Task::Trips | Task::Refused);
                    Sample {
                        round,
                        rate: bulk.then_some(10_000.0 * times * scale),
                        trips: (!bulk).then_some(trips),
                        datagrams: 20_000,
                        lost: 0,
                        guest: 90.0,
                        daemon: 10.0,
                        seconds: 1.0,
                        kicks: 2_000,
                        interrupts: 5_000,
                        others: (!bulk).then(|| others(time, cell.task, way, round)),
                        unrecorded: None,
                    }
                };
                let samples = (0..5).map(sample).collect();
                outcomes.push(Outcome { cell, way, samples, problem: None });
            }
        }
        if let Some(last) = outcomes.last_mut() {
            last.samples.clear();
            last.problem = Some("the guest ended".into());
        }
        Pods { guest: Some("QEMU 11, Linux 6.12".into()), rules: [350, 88], outcomes }
    }

    #[test]
    fn the_tables_look_as_they_should() {
        let golden = include_str!("golden.md");
        let mut text = String::new();
        tables::write(&mut text, &everything()).unwrap();
        promises(&mut text, &everything()).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/vf/golden.md");
            std::fs::write(path, &text).unwrap();
        }
        assert!(text == golden, "not as in golden.md:\n{text}");
    }

    #[test]
    fn json_comes_back_as_it_was() {
        let text = serde_json::to_string(&everything()).unwrap();
        assert_eq!(serde_json::from_str::<Pods>(&text).unwrap(), everything());
    }

    #[test]
    fn reports_of_before_can_be_read() {
        let mut pods = everything();
        let text = serde_json::to_string(&pods).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for sample in pods.outcomes.iter_mut().flat_map(|outcome| &mut outcome.samples) {
            sample.others = None;
        }
        for outcome in json["outcomes"].as_array_mut().unwrap() {
            for sample in outcome["samples"].as_array_mut().unwrap() {
                sample.as_object_mut().unwrap().remove("others");
            }
        }
        assert_eq!(serde_json::from_value::<Pods>(json).unwrap(), pods);
        let mut text = String::new();
        tables::write(&mut text, &pods).unwrap();
        assert!(!text.contains("`kdamond.0`"), "{text}");
    }

    #[test]
    fn without_records_the_tables_say_so() {
        let mut pods = everything();
        for sample in pods.outcomes.iter_mut().flat_map(|outcome| &mut outcome.samples) {
            sample.others = None;
            sample.unrecorded = sample.trips.map(|_| "no tracefs".into());
        }
        let mut text = String::new();
        tables::write(&mut text, &pods).unwrap();
        assert_eq!(text.matches("Not recorded: no tracefs.").count(), 2, "{text}");
        // Three ways and two that refuse; the last one's turns failed.
        assert_eq!(text.matches("| not recorded | - | - | - |").count(), 5, "{text}");
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut pods = everything();
        let of = |outcome: &&mut Outcome| outcome.cell == Cell { task: Task::Send, pods: 1 };
        for outcome in pods.outcomes.iter_mut().filter(of).filter(|o| o.way == Way::Vf) {
            outcome.samples.truncate(1);
            outcome.samples[0].round = 4;
        }
        let ratio = pods.ratio(Task::Send, (1, Way::Vf), (1, Way::Bridge), MBIT).unwrap();
        assert_eq!(ratio.n, 1);
        assert!((ratio.median - 3.0 / 1.4).abs() < 1e-9, "{ratio:?}");
    }

    #[test]
    fn turns_that_others_disturbed_do_not_count() {
        let mut pods = everything();
        let before = pods.figure(Task::Send, 1, Way::Vf, MBIT).unwrap();
        let first = pods.outcomes.iter_mut().find(|outcome| outcome.way == Way::Vf).unwrap();
        let disturbed = Sample { rate: Some(1.0), guest: 20.0, ..first.samples[0].clone() };
        assert!(one_line(&disturbed).contains("does not count"));
        first.samples.push(disturbed);
        assert_eq!(pods.figure(Task::Send, 1, Way::Vf, MBIT), Some(before));
    }

    #[test]
    fn figures_are_over_the_number_of_pods() {
        let names: Vec<String> = draw(&everything()).into_iter().map(|f| f.name).collect();
        let all = ["send", "receive", "receive-gro", "trip", "trip-longest"];
        assert_eq!(names, all.map(|name| format!("vf-{name}.svg")));
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let said: Vec<String> = everything().problems().collect();
        assert_eq!(said, ["* ideal: a card, trips, refusing, 1 pod: the guest ended"]);
        let none = Pods { guest: None, rules: [0; 2], outcomes: Vec::new() };
        let mut text = String::new();
        tables::write(&mut text, &none).unwrap();
        assert!(!text.contains("###"), "{text}");
    }
}
