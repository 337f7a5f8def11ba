//! What hayate promises beside its peers, and whether a run shows it.

use std::fmt::Write;

use super::{Figure, Outcome, Report, Row, Sample, common_regime, figure, ratio, ratios};
use crate::cell::{Cell, Kind, Rings, Side};
use crate::stats::Summary;
use crate::sut::System;

/// Windows that a figure needs, to be one.
pub(super) const WINDOWS: usize = 12;

/// A switch is saturated when the generator finds its TX ring full that often, in per cent.
const SATURATED: f64 = 90.0;

/// Which cells of a table, and which rows by what was measured.
type Cells = fn(&Cell) -> bool;
type Rows = fn(&Row<'_>) -> bool;

/// A promise about some cells of a table.
struct Promise {
    text: &'static str,
    kind: Kind,
    /// Of these rings; none: of either.
    rings: Option<Rings>,
    cells: Cells,
    /// Where it holds.
    when: Rows,
    measure: Measure,
    bound: Bound,
}

/// What is looked at.
enum Measure {
    /// A system's figure.
    Of(System, Figure),
    /// A system's figure divided by another's.
    Over(System, System, Figure),
    /// hayate's idle share at the rate that a system reaches at most, in per cent.
    IdleAt(System),
    /// hayate's figure divided by that of this cell of the same table.
    OverCell(Cells, Figure),
}

/// What it has to be.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// A ratio that is not below 1: it is 1 or more, or a tie ([`Measured::ties`]).
    NoLower,
}

impl Bound {
    fn holds(self, of: &Measured) -> bool {
        match self {
            Bound::AtLeast(bound) => of.value >= bound,
            Bound::AtMost(bound) => of.value <= bound,
            Bound::NoLower => of.value >= 1.0 || of.ties(),
        }
    }
}

/// What a ratio of two that are as fast as one another may lack of 1.
const TIE: f64 = 0.02;

/// How likely it must at least be that as many rounds as there are, or more, are below 1 by chance alone.
const CHANCE: f64 = 0.05;

/// All of them.
fn promises() -> Vec<Promise> {
    use Bound::{AtLeast, AtMost};
    use Measure::{IdleAt, Of, Over, OverCell};
    use Rings::{Packed, Split};
    use System::{Hayate, HayateLatency, HayateRouted, Ovs, OvsSleep, Testpmd};
    use figure::{CPU, CYCLES, LOST, P50, P99, RATE};

    let of = |kind, rings, cells, text, measure, bound| Promise {
        text,
        kind,
        rings,
        cells,
        when: |_| true,
        measure,
        bound,
    };
    let small: Cells = |cell| cell.size <= 128;
    let large: Cells = |cell| cell.size >= 1024;
    let half: Cells = |cell| cell.size == 512;
    let ends: Cells = |cell| matches!(cell.size, 64 | 1518);
    let all: Cells = |_| true;
    let one: Cells = |cell| cell.flows == 1;
    let (packed, split) = (Some(Packed), Some(Split));
    let free: Rows = |row| !row.bound(System::Hayate);
    let bound: Rows = |row| row.bound(System::Hayate);
    let saturated: Rows =
        |row| row.figure(System::Testpmd, |w| Some(w.full)).is_some_and(|s| s.median >= SATURATED);

    let rate = |other| Over(Hayate, other, RATE);
    let table = Kind::Throughput;
    let mut promises = vec![
        Promise {
            when: free,
            ..of(table, packed, small, "up to 128 B: rate, of OVS-DPDK's", rate(Ovs), AtLeast(1.5))
        },
        of(table, packed, large, "from 1024 B: rate, of OVS-DPDK's", rate(Ovs), AtLeast(1.8)),
        of(table, packed, all, "rate, of testpmd's", rate(Testpmd), AtLeast(1.0)),
        of(table, packed, half, "512 B: rate, of testpmd's", rate(Testpmd), AtLeast(1.3)),
        of(table, packed, large, "from 1024 B: rate, of testpmd's", rate(Testpmd), AtLeast(1.5)),
        Promise {
            when: free,
            ..of(table, split, all, "rate, of OVS-DPDK's", rate(Ovs), AtLeast(1.4))
        },
        Promise {
            when: bound,
            ..of(
                table,
                None,
                all,
                "cycles/frame where the generator limits, of OVS-DPDK's",
                Over(Hayate, Ovs, CYCLES),
                AtMost(0.6),
            )
        },
        of(Kind::Touch, None, all, "rate, of testpmd's", rate(Testpmd), AtLeast(1.0)),
        Promise {
            when: saturated,
            ..of(
                Kind::Touch,
                None,
                all,
                "idle at the rate at which testpmd is saturated, %",
                IdleAt(Testpmd),
                AtLeast(20.0),
            )
        },
    ];
    let (thousand, million): (Cells, Cells) =
        (|cell| cell.flows == 1_000, |cell| cell.flows == 1_000_000);
    let rate = || OverCell(one, RATE);
    let (few, many) = ("1 k: rate, of that with one", "1 M: rate, of that with one");
    promises.extend([
        of(Kind::Flows, None, thousand, few, rate(), AtLeast(0.97)),
        Promise { when: free, ..of(Kind::Flows, None, million, many, rate(), AtLeast(0.70)) },
        Promise {
            when: bound,
            ..of(
                Kind::Flows,
                None,
                million,
                "1 M: cycles/frame where the generator limits, of that with one",
                OverCell(one, CYCLES),
                AtMost(1.42),
            )
        },
        of(
            Kind::Macs,
            None,
            |cell| cell.flows == 500_000,
            "1 M: rate, of that with two",
            rate(),
            AtLeast(0.70),
        ),
        of(
            Kind::Routers,
            None,
            |cell| cell.routers == 8,
            "8: rate, of that without",
            OverCell(|cell| cell.routers == 0, RATE),
            AtLeast(0.85),
        ),
        of(
            Kind::Routers,
            None,
            |cell| cell.routers == 1 && cell.size == 64,
            "1: rate, of that through it",
            Over(Hayate, HayateRouted, RATE),
            AtLeast(10.0),
        ),
        of(
            Kind::Prefixes,
            None,
            |cell| cell.prefixes == 1_000_000,
            "1 M: rate, of that with 10",
            OverCell(|cell| cell.prefixes == 10, RATE),
            AtLeast(0.75),
        ),
        of(
            Kind::Strangers,
            None,
            |cell| cell.mischief.is_some() && cell.routers == 0,
            "rate, of that without",
            OverCell(|cell| cell.mischief.is_none() && cell.routers == 0, RATE),
            AtLeast(0.95),
        ),
        of(
            Kind::Strangers,
            None,
            |cell| cell.mischief.is_some() && cell.routers > 0,
            "past a router: rate, of that without",
            OverCell(|cell| cell.mischief.is_none() && cell.routers > 0, RATE),
            AtLeast(0.95),
        ),
        of(
            Kind::Pairs,
            None,
            |cell| cell.pairs == 32,
            "32: rate, of that with one",
            OverCell(|cell| cell.pairs == 1, RATE),
            AtLeast(0.80),
        ),
    ]);
    let trips = |figure| Over(HayateLatency, Testpmd, figure);
    promises.extend([
        of(Kind::Rtt, packed, ends, "p50 with `latency`, of testpmd's", trips(P50), AtMost(0.6)),
        of(Kind::Rtt, split, ends, "p50 with `latency`, of testpmd's", trips(P50), AtMost(1.0)),
        of(Kind::Rtt, None, ends, "p99 with `latency`, of testpmd's", trips(P99), AtMost(1.0)),
    ]);
    let load =
        |text, cells: Cells, most| of(Kind::Cpu, None, cells, text, Of(Hayate, CPU), AtMost(most));
    promises.extend([
        load("quiet: CPU, %", |cell| cell.rate == Some(0) && cell.pairs == 1, 0.5),
        load("100 quiet pairs: CPU, %", |cell| cell.rate == Some(0) && cell.pairs == 100, 2.0),
        load("10 k: CPU, %", |cell| cell.rate == Some(10_000), 8.0),
        load("100 k: CPU, %", |cell| cell.rate == Some(100_000), 30.0),
        load("1 M: CPU, %", |cell| cell.rate == Some(1_000_000), 70.0),
        of(
            Kind::Cpu,
            None,
            |cell| cell.rate == Some(1_000_000),
            "1 M: frames lost, %",
            Of(Hayate, LOST),
            AtMost(0.0),
        ),
        of(Kind::Pings, None, all, "p50, µs", Of(Hayate, P50), AtMost(25.0)),
    ]);
    let side = |side: Cells, text, other| {
        of(Kind::Sides, None, side, text, Over(Hayate, other, CPU), AtMost(1.0))
    };
    let sending: Cells = |cell| cell.side == Side::Sending;
    let both: Cells = |cell| cell.side == Side::Both;
    promises.extend([
        side(sending, "sending: CPU, of testpmd's", Testpmd),
        side(sending, "sending: CPU, of OVS-DPDK's", Ovs),
        side(sending, "sending: CPU, of OVS-DPDK's that sleeps", OvsSleep),
        side(both, "both: CPU, of testpmd's", Testpmd),
        side(both, "both: CPU, of OVS-DPDK's", Ovs),
        side(both, "both: CPU, of OVS-DPDK's that sleeps", OvsSleep),
    ]);
    promises
}

/// What was found in a cell.
pub(crate) struct Found {
    pub(crate) label: String,
    pub(crate) measured: Option<Measured>,
}

/// A figure, the windows it is of, and, of a ratio, what it was in each round.
#[derive(Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) windows: usize,
    pub(crate) rounds: Vec<f64>,
}

impl From<Summary> for Measured {
    fn from(of: Summary) -> Measured {
        Measured { value: of.median, windows: of.n, rounds: Vec::new() }
    }
}

impl Measured {
    /// Rounds below 1, and those that are not 1.
    fn below(&self) -> (usize, usize) {
        let count = |is: fn(f64) -> bool| self.rounds.iter().filter(|&&ratio| is(ratio)).count();
        (count(|ratio| ratio < 1.0), count(|ratio| ratio != 1.0))
    }

    /// A ratio a little below 1, with no more rounds below 1 than there may be by chance (sign test,
    /// one-sided).
    fn ties(&self) -> bool {
        let (below, all) = self.below();
        (1.0 - TIE..1.0).contains(&self.value) && all > 0 && heads(below, all) > CHANCE
    }
}

/// How likely at least so many of so many coins show heads.
fn heads(least: usize, coins: usize) -> f64 {
    let mut likely = 0.5_f64.powi(coins as i32);
    let mut sum = 0.0;
    for n in 0..=coins {
        sum += if n >= least { likely } else { 0.0 };
        likely *= (coins - n) as f64 / (n + 1) as f64;
    }
    sum
}

/// What a run says about a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Met,
    NotMet,
    NotMeasured,
    /// Measured, but nowhere as it would have to be.
    NoCase,
}

impl Verdict {
    fn of(found: Option<&[Found]>, bound: Bound) -> Verdict {
        let Some(found) = found else { return Verdict::NotMeasured };
        let failed = |one: &Found| one.measured.as_ref().is_some_and(|of| !bound.holds(of));
        match found {
            [] => Verdict::NoCase,
            some if some.iter().any(failed) => Verdict::NotMet,
            some if some.iter().any(|one| one.measured.is_none()) => Verdict::NotMeasured,
            _ => Verdict::Met,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::NotMet => "**not met**",
            Verdict::NotMeasured => "not measured",
            Verdict::NoCase => "no such case",
        }
    }
}

impl Promise {
    /// What there is in these rows, of one ring format; none: no such cell was measured.
    fn find(&self, rows: &[Row<'_>], rings: Rings) -> Option<Vec<Found>> {
        let table =
            || rows.iter().filter(move |row| (row.cell.kind, row.cell.rings) == (self.kind, rings));
        let mut any = false;
        let mut found = Vec::new();
        for row in table().filter(|row| (self.cells)(&row.cell)) {
            any = true;
            if (self.when)(row) {
                let measured = match self.measure {
                    Measure::Of(system, figure) => row.figure(system, figure).map(Measured::from),
                    Measure::IdleAt(system) => idle_at(row, system),
                    Measure::Over(one, other, figure) => over(row.of(one), row.of(other), figure),
                    Measure::OverCell(base, figure) => {
                        let base = table().find(|row| base(&row.cell));
                        let base = base.and_then(|row| row.of(System::Hayate));
                        over(row.of(System::Hayate), base, figure)
                    }
                };
                found.push(Found { label: row.cell.label(), measured });
            }
        }
        any.then_some(found)
    }
}

/// hayate's idle share at a system's rate: its work for each frame stays as it is when there are
/// fewer.
fn idle_at(row: &Row<'_>, system: System) -> Option<Measured> {
    let (its, own) = (row.of(system)?, row.of(System::Hayate)?);
    let rate = over(Some(its), Some(own), figure::RATE)?;
    let idle = own.summary(common_regime(&[its, own])?, figure::IDLE)?.median;
    let value = 100.0 - (100.0 - idle) * rate.value;
    Some(Measured { value, windows: rate.windows, rounds: Vec::new() })
}

/// One outcome's figure divided by another's, with the windows of the one with fewer.
pub(crate) fn over<C, S: PartialEq, W: Sample>(
    one: Option<&Outcome<C, S, W>>,
    other: Option<&Outcome<C, S, W>>,
    figure: impl Fn(&W) -> Option<f64>,
) -> Option<Measured> {
    let (one, other) = (one?, other?);
    let regime = common_regime(&[one, other])?;
    let windows = one.counting(regime).count().min(other.counting(regime).count());
    let rounds = ratios(one, other, regime, &figure);
    let value = ratio(one, other, regime, figure)?.median;
    Some(Measured { value, windows, rounds })
}

/// The section about them; only those of what was measured at all.
pub(super) fn write(text: &mut String, report: &Report, rows: &[Row<'_>]) -> std::fmt::Result {
    let mut of_disks = String::new();
    if let Some(disks) = &report.disks {
        crate::disk::promises::promises(&mut of_disks, disks)?;
    }
    let mut of_pods = String::new();
    if let Some(pods) = &report.pods {
        crate::vf::report::promises(&mut of_pods, pods)?;
    }
    if rows.is_empty() && of_disks.is_empty() && of_pods.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "## Promises\n\nRatios are those of the tables, in the regime in which both sides have the \
         most windows. A figure of fewer than {WINDOWS} windows is marked with their number. *No lower than \
         1* is a median of 1 or more, or a tie: at least {:.2}, and below 1 in no more rounds than there may be \
         by chance (sign test, one-sided, {} %).\n",
        1.0 - TIE,
        100.0 * CHANCE
    )?;
    if !rows.is_empty() {
        writeln!(text, "| table | rings | what | promised | measured | |\n{LINE}")?;
    }
    for promise in promises().iter().filter(|_| !rows.is_empty()) {
        for rings in [Rings::Packed, Rings::Split] {
            if promise.rings.is_some_and(|only| only != rings) {
                continue;
            }
            let found = promise.find(rows, rings);
            let place = (super::tables::title(promise.kind), rings.as_str());
            line(text, place, promise.text, found.as_deref(), promise.bound)?;
        }
    }
    if !of_disks.is_empty() {
        let between = if rows.is_empty() { "" } else { "\n" };
        writeln!(text, "{between}| table | image on | what | promised | measured | |\n{LINE}")?;
        text.push_str(&of_disks);
    }
    if !of_pods.is_empty() {
        let between = if rows.is_empty() && of_disks.is_empty() { "" } else { "\n" };
        writeln!(text, "{between}| table | which | what | promised | measured | |\n{LINE}")?;
        text.push_str(&of_pods);
    }
    Ok(())
}

const LINE: &str = "|---|---|---|---|---|---|";

/// The line of a promise: its table and where there, what it is about, and what was found.
pub(crate) fn line(
    text: &mut String,
    (table, place): (&str, &str),
    what: &str,
    found: Option<&[Found]>,
    bound: Bound,
) -> std::fmt::Result {
    let verdict = Verdict::of(found, bound);
    let mut measured: Vec<String> =
        found.unwrap_or_default().iter().map(|one| one.shown(bound)).collect();
    if found.is_none() {
        measured.push("-".to_owned());
    }
    let promised = match bound {
        Bound::AtLeast(bound) => format!("≥ {bound}"),
        Bound::AtMost(bound) => format!("≤ {bound}"),
        Bound::NoLower => "no lower than 1".to_owned(),
    };
    let (measured, verdict) = (measured.join(", "), verdict.as_str());
    writeln!(text, "| {table} | {place} | {what} | {promised} | {measured} | {verdict} |")
}

impl Found {
    /// As the table shows it.
    fn shown(&self, bound: Bound) -> String {
        let Some(measured) = &self.measured else { return format!("{}: -", self.label) };
        let Measured { value, windows, .. } = *measured;
        let mut text = format!("{}: {value:.2}", self.label);
        if windows < WINDOWS {
            text += &format!(" (n={windows})");
        }
        if matches!(bound, Bound::NoLower) && value < 1.0 {
            let (below, all) = measured.below();
            text += &format!(" (below 1 in {below} of {all} rounds)");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(values: &[Option<f64>]) -> Vec<Found> {
        let measured = |value| Measured { value, windows: 12, rounds: Vec::new() };
        let one =
            |value: &Option<f64>| Found { label: "64 B".into(), measured: value.map(measured) };
        values.iter().map(one).collect()
    }

    #[test]
    fn one_cell_that_fails_is_enough() {
        let of = |values: &[Option<f64>]| Verdict::of(Some(&found(values)), Bound::AtLeast(1.5));
        assert_eq!(of(&[Some(1.5), Some(2.0)]), Verdict::Met);
        assert_eq!(of(&[Some(1.49), Some(2.0)]), Verdict::NotMet);
        assert_eq!(of(&[None, Some(1.0)]), Verdict::NotMet);
        assert_eq!(of(&[None, Some(2.0)]), Verdict::NotMeasured);
        assert_eq!(of(&[]), Verdict::NoCase);
        assert_eq!(Verdict::of(None, Bound::AtMost(1.0)), Verdict::NotMeasured);
        assert_eq!(Verdict::of(Some(&found(&[Some(1.1)])), Bound::AtMost(1.0)), Verdict::NotMet);
    }

    /// A ratio of twelve rounds, so many of them below 1.
    fn rounds(value: f64, below: usize) -> Measured {
        let one = |round| if round < below { 0.97 } else { 1.02 };
        Measured { value, windows: 24, rounds: (0..12).map(one).collect() }
    }

    #[test]
    fn no_lower_is_no_less_or_a_tie() {
        let holds = |value, below| Bound::NoLower.holds(&rounds(value, below));
        assert!(holds(1.0, 12), "the median decides where it is not below 1");
        assert!(holds(0.99, 9), "P(at least 9 of 12) is 7.3 %");
        assert!(!holds(0.99, 10), "P(at least 10 of 12) is 1.9 %");
        assert!(!holds(0.97, 6), "no tie so far from 1");
        let unknown = Measured { value: 0.99, windows: 24, rounds: Vec::new() };
        assert!(!Bound::NoLower.holds(&unknown), "without rounds there is no tie");
    }

    #[test]
    fn a_tie_tells_how_many_rounds_are_below() {
        let shown = |value, below| {
            Found { label: "read".into(), measured: Some(rounds(value, below)) }
                .shown(Bound::NoLower)
        };
        assert_eq!(shown(0.99, 7), "read: 0.99 (below 1 in 7 of 12 rounds)");
        assert_eq!(shown(1.1, 3), "read: 1.10");
    }

    #[test]
    fn heads_of_coins() {
        assert_eq!(heads(0, 3), 1.0);
        assert_eq!(heads(2, 3), 0.5);
        assert_eq!(heads(3, 3), 0.125);
        assert!((heads(9, 12) - 299.0 / 4096.0).abs() < 1e-12);
    }
}
