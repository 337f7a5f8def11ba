//! What was found out about disks: tables and figures.

use std::collections::BTreeMap;
use std::fmt::Write;

use plotters::style::RGBColor;
use serde::{Deserialize, Serialize};

use super::cell::{Access, Cell, Job, Medium};
use super::sut::System;
use super::window::Window;
use crate::place::Regime;
use crate::report::figures::{Figure, Frame, Line, render};
use crate::report::tables::{median, spread};
use crate::report::{self, Sample, Version, common_regime};
use crate::stats::{Summary, summary};

/// All windows of a cell of a system.
pub type Outcome = report::Outcome<Cell, System, Window>;

/// Everything about disks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disks {
    /// What was compared.
    pub systems: Vec<Version<System>>,
    /// Bytes of the disk that had requests.
    pub size: u64,
    /// The client polled; otherwise it slept until it was notified.
    pub polls: bool,
    /// How qemu-storage-daemon read and wrote files on a medium: what was best there.
    pub aio: BTreeMap<Medium, String>,
    /// QEMU and the kernel of the guest in which requests were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// What was found, by cell, then system.
    pub outcomes: Vec<Outcome>,
}

/// Figures that are compared.
pub(super) type Value = fn(&Window) -> Option<f64>;
pub(super) const RATE: Value = |w| (w.rate > 0.0).then_some(w.rate);
pub(super) const P50: Value = |w| w.latency.map(|times| times.p50 / 1e3);
const P99: Value = |w| w.latency.map(|times| times.p99 / 1e3);
const P999: Value = |w| w.latency.map(|times| times.p999 / 1e3);
pub(super) const CPU: Value = |w| Some(w.cpu);
const MILLION: Value = Window::cpu_for_a_million;
const SERVER: Value = Window::server_for_a_million;

/// A cell with all its systems, and the regime in which they are compared.
pub(super) struct Row<'a> {
    pub(super) cell: Cell,
    regime: Option<Regime>,
    outcomes: Vec<&'a Outcome>,
}

impl Row<'_> {
    pub(super) fn of(&self, system: System) -> Option<&Outcome> {
        self.outcomes.iter().copied().find(|outcome| outcome.system == system)
    }

    pub(super) fn figure(&self, system: System, value: Value) -> Option<Summary> {
        self.of(system)?.summary(self.regime?, value)
    }

    /// One system's figure divided by another's, in each round in which both have one.
    fn between(&self, one: System, other: System, value: Value) -> Option<Summary> {
        report::ratio(self.of(one)?, self.of(other)?, self.regime?, value)
    }
}

impl Disks {
    /// Cells in their order, each with the regime in which most can be compared.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = Vec::new();
        for outcome in &self.outcomes {
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
}

/// The tables.
pub(crate) fn write(text: &mut String, disks: &Disks) -> std::fmt::Result {
    let (remote, rows): (Vec<Row<'_>>, Vec<Row<'_>>) =
        disks.rows().into_iter().partition(|row| row.cell.remote);
    let load: Vec<&Row<'_>> = rows.iter().filter(|row| row.cell.job.is_some()).collect();
    let idle: Vec<&Row<'_>> = rows.iter().filter(|row| row.cell.job.is_none()).collect();
    writeln!(text, "## Disks\n")?;
    about(text, disks)?;
    for medium in [Medium::Tmpfs, Medium::Disk] {
        let mine: Vec<_> = load.iter().filter(|row| row.cell.medium == medium).collect();
        if mine.is_empty() {
            continue;
        }
        let how = if medium.direct() { "O_DIRECT" } else { "page cache" };
        writeln!(text, "### Requests, image on {} ({how})\n", medium.as_str())?;
        writeln!(
            text,
            "| | system | IOPS | MB/s | hayate's, of it | p50, µs | p99, µs | p99.9, µs | CPU, s/M | \
             CPU, % | regime |\n|---|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for row in mine {
            requests(text, disks, row)?;
        }
        writeln!(text)?;
    }
    if !idle.is_empty() {
        writeln!(text, "### Disks whose guests do nothing\n")?;
        writeln!(text, "| | system | CPU, % | hayate's, of it |\n|---|---|---|---|")?;
        for row in idle {
            for Version { system, .. } in &disks.systems {
                let Some(outcome) = row.of(*system) else { continue };
                let cpu = match (outcome.windows.is_empty(), &outcome.problem) {
                    (true, Some(problem)) => first_line(problem).to_owned(),
                    _ => spread(row.figure(*system, CPU), 2),
                };
                let ratio = ratio(row, *system, CPU);
                writeln!(text, "| {} | {} | {cpu} | {ratio} |", row.cell.label(), system.as_str())?;
            }
        }
        writeln!(text)?;
    }
    let (guest, remote): (Vec<Row<'_>>, Vec<Row<'_>>) =
        remote.into_iter().partition(|row| row.cell.guest);
    if !remote.is_empty() {
        writeln!(text, "### Requests, image of a server\n\n{REMOTE}\n")?;
        remotes(text, disks, &remote)?;
    }
    if !guest.is_empty() {
        let version = disks.guest.as_deref().unwrap_or("none");
        writeln!(text, "### Requests of a guest, image of a server\n\n{GUEST} ({version}.)\n")?;
        remotes(text, disks, &guest)?;
    }
    Ok(())
}

/// What is said of requests to disks and mounts whose image a server has.
const REMOTE: &str = "\
Three processes: the client on the guests' CPU; the back end or the mount, and the server that has the image, on \
the switch's CPU together. The image is on tmpfs; in the cells that are *cold* it is on a real file system, and \
not in the server's page cache when a window begins. To a mount, requests at random are made with O_DIRECT by a \
thread for each in flight; those one after the other as dd makes them, so that the kernel reads ahead, and what \
it has cached is forgotten before each window. *Back end* and *server* are CPU seconds for 10⁹ bytes, without \
what the kernel does for the client itself; of fio, which asks nbdkit with nothing between, *back end* is all that \
it uses. Of those on Gfarm, gfmd and gfsd are part of the server; whoever asks them, a store with its daemon or \
gfarm2fs, is behind a cable in a network namespace of its own. TCP is as Linux has it by default (cubic), \
whatever the machine is set to. Requests go on for a fifth of a second over the \
whole image: of --disk-size 4096 it is the 4 GiB of the paper.";

/// What is said of those that are made in a guest.
const GUEST: &str = "\
**The guest is emulated (QEMU's TCG): its kernel and fio take most of a request's time, so that the figures \
themselves are small, and say nothing of a machine that runs guests in hardware. Ratios count, not figures; an \
interrupt costs far more here than there, so that answers which come one by one cost more than those that come many \
at a time.** One virtual CPU on the guests' CPU, and a virtio-blk disk of each system, with a queue of 256, of \
which one has requests at a time; back ends and servers have the switch's CPU. The images are on tmpfs. fio makes \
requests for a second, with libaio and O_DIRECT; 4 KiB one after the other it reads as dd does, 64 MiB at most, \
through the guest's page cache, which has nothing of it when it begins. *Back end* and *server* are CPU seconds for \
10⁹ bytes, of all that was used while fio ran; latencies are what fio saw.";

/// Requests to disks whose image a server has.
fn remotes(text: &mut String, disks: &Disks, rows: &[Row<'_>]) -> std::fmt::Result {
    writeln!(
        text,
        "| | system | IOPS | MB/s | of NBD's | p50, µs | p99, µs | back end, s/GB | server, s/GB | regime |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    )?;
    for row in rows {
        let block = f64::from(row.cell.job.map_or(0, |job| job.block));
        for Version { system, .. } in &disks.systems {
            let Some(outcome) = row.of(*system) else { continue };
            write!(text, "| {} | {} | ", row.cell.label(), system.as_str())?;
            if let (true, Some(problem)) = (outcome.windows.is_empty(), &outcome.problem) {
                writeln!(text, "{} {}|", first_line(problem), "| ".repeat(7))?;
                continue;
            }
            let figure = |value| row.figure(*system, value);
            let bytes = figure(RATE).map(|s| s.median * block / 1e6);
            // For a million requests, so many million bytes.
            let for_bytes = |value: Value| {
                figure(value).map_or("-".to_owned(), |s| format!("{:.3}", s.median / block * 1e3))
            };
            let of = match row.between(*system, System::QsdNbd, RATE) {
                _ if *system == System::QsdNbd => "1".to_owned(),
                ratio => ratio.map_or("-".to_owned(), times),
            };
            let values = [
                spread(figure(RATE), 0),
                bytes.map_or("-".into(), |bytes| format!("{bytes:.0}")),
                of,
                median(figure(P50), 1, ""),
                median(figure(P99), 1, ""),
                for_bytes(MILLION),
                for_bytes(SERVER),
            ];
            let regime = row.regime.map_or("-", Regime::as_str);
            writeln!(text, "{} | {regime} |", values.join(" | "))?;
        }
    }
    writeln!(text)
}

/// A ratio, and over which it spreads.
fn times(ratio: Summary) -> String {
    match ratio.n {
        1 => format!("{:.2}", ratio.median),
        _ => format!("{:.2} ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max),
    }
}

fn about(text: &mut String, disks: &Disks) -> std::fmt::Result {
    for Version { system, version } in &disks.systems {
        let aio = disks.aio.iter().map(|(medium, aio)| format!("{aio} on {}", medium.as_str()));
        let aio: Vec<String> = aio.collect();
        let how = match system {
            System::Qsd if !aio.is_empty() => format!(", aio={}", aio.join(", ")),
            _ => String::new(),
        };
        writeln!(text, "* {}: {version}{how}", system.as_str())?;
    }
    if disks.outcomes.iter().all(|outcome| outcome.cell.guest) {
        return writeln!(
            text,
            "\nRaw images of {} MiB, written over in full before. {UNITS}\n",
            disks.size >> 20
        );
    }
    let waits =
        if disks.polls { "polls for answers" } else { "sleeps until it is notified of answers" };
    writeln!(
        text,
        "\nRaw images of {} MiB, written over in full before. The client is the front end of the crate \
         virtio-driver, alone on the guests' CPU, with a queue for each job and as many requests in \
         flight in each as QD says; it {waits}. The back end has the switch's CPU, and one thread for \
         all queues; fio has the same CPU, its files and buffers registered, and no device between. \
         qemu-storage-daemon reads and writes files in the way that was best on the medium. *CPU* is \
         that of all threads of the back end, those of io_uring in the kernel too: for a million \
         requests in seconds, and in per cent of one CPU. A latency is from making the request \
         available to finding its answer. {UNITS}\n",
        disks.size >> 20
    )
}

/// What is said of all figures.
const UNITS: &str = "\
MB are 10⁶ bytes. Figures are medians over windows of one regime (smallest-largest, number of windows), ratios \
medians over the rounds (smallest-largest).";

fn requests(text: &mut String, disks: &Disks, row: &Row<'_>) -> std::fmt::Result {
    let block = row.cell.job.map_or(0, |job| job.block);
    for Version { system, .. } in &disks.systems {
        let Some(outcome) = row.of(*system) else { continue };
        write!(text, "| {} | {} | ", row.cell.label(), system.as_str())?;
        if let (true, Some(problem)) = (outcome.windows.is_empty(), &outcome.problem) {
            writeln!(text, "{} {}|", first_line(problem), "| ".repeat(8))?;
            continue;
        }
        let figure = |value| row.figure(*system, value);
        let bytes = figure(RATE).map(|s| s.median * f64::from(block) / 1e6);
        let values = [
            spread(figure(RATE), 0),
            bytes.map_or("-".into(), |bytes| format!("{bytes:.0}")),
            ratio(row, *system, RATE),
            median(figure(P50), 1, ""),
            median(figure(P99), 1, ""),
            median(figure(P999), 1, ""),
            median(figure(MILLION), 2, ""),
            median(figure(CPU), 0, ""),
        ];
        let regime = row.regime.map_or("-", Regime::as_str);
        writeln!(text, "{} | {regime} |", values.join(" | "))?;
    }
    Ok(())
}

fn first_line(problem: &str) -> &str {
    problem.lines().next().unwrap_or_default()
}

/// hayate's figure divided by a system's.
fn ratio(row: &Row<'_>, system: System, value: Value) -> String {
    match system {
        System::Hayate if row.figure(system, value).is_some() => "1".to_owned(),
        System::Hayate => "-".to_owned(),
        _ => row.between(System::Hayate, system, value).map_or("-".to_owned(), times),
    }
}

/// What a turn found, in one line.
pub(super) fn one_line(windows: &[Window]) -> String {
    let good = || windows.iter().filter(|window| window.counts());
    let of = |value: Value| summary(good().filter_map(value)).map(|s| s.median);
    let Some(regime) = good().next().and_then(|window| window.regime) else {
        let of = |value: Value| summary(windows.iter().filter_map(value)).map_or(0.0, |s| s.median);
        let moved = windows.iter().filter(|window| window.regime.is_none()).count();
        return format!(
            "no window counts (of {}): waited {:.0} % for a CPU, others used {:.0} %, host took {:.0} \
             ticks, CPUs moved in {moved}",
            windows.len(),
            of(|w| Some(w.waited)),
            of(|w| Some(w.others)),
            of(|w| Some(w.stolen as f64)),
        );
    };
    let (cpu, n) = (of(CPU).unwrap_or(0.0), good().count());
    let rate = match (of(RATE), of(P50), of(P99)) {
        (Some(rate), Some(p50), Some(p99)) => {
            let empty =
                of(|w| w.empty).map_or(String::new(), |e| format!(", {e:.0} % looks empty"));
            format!("{:7.1} k IOPS, p50 {p50:6.1} us, p99 {p99:7.1} us{empty}, ", rate / 1e3)
        }
        _ => String::new(),
    };
    format!("{rate}CPU {cpu:5.1} %  ({}, n={n})", regime.as_str())
}

/// What a figure shows of the requests of 4 KiB at random.
struct Plot {
    file: &'static str,
    title: &'static str,
    up: &'static str,
    access: Access,
    value: Value,
}

const PLOTS: [Plot; 4] = [
    Plot {
        file: "read",
        title: "4 KiB random reads",
        up: "1000 IOPS",
        access: Access::RandomRead,
        value: |w| RATE(w).map(|rate| rate / 1e3),
    },
    Plot {
        file: "read-p99",
        title: "4 KiB random reads, 99th percentile",
        up: "µs",
        access: Access::RandomRead,
        value: P99,
    },
    Plot {
        file: "write",
        title: "4 KiB random writes",
        up: "1000 IOPS",
        access: Access::RandomWrite,
        value: |w| RATE(w).map(|rate| rate / 1e3),
    },
    Plot {
        file: "write-p99",
        title: "4 KiB random writes, 99th percentile",
        up: "µs",
        access: Access::RandomWrite,
        value: P99,
    },
];

/// All figures there is data for.
pub(crate) fn draw(disks: &Disks) -> Vec<Figure> {
    let rows = disks.rows();
    let mut figures = Vec::new();
    for medium in [Medium::Tmpfs, Medium::Disk] {
        for plot in &PLOTS {
            let job = |row: &Row<'_>| row.cell.job.filter(|job| job.access == plot.access);
            let mine: Vec<(&Row<'_>, Job)> = rows
                .iter()
                .filter(|row| row.cell.medium == medium && !row.cell.remote)
                .filter_map(|row| Some((row, job(row)?)))
                .collect();
            let line = |version: &Version<System>| {
                let system = version.system;
                let value = |(at, (row, _)): (usize, &(&Row<'_>, Job))| {
                    Some((at as f64, row.figure(system, plot.value)?.median))
                };
                let points: Vec<(f64, f64)> = mine.iter().enumerate().filter_map(value).collect();
                let (name, color, limit) = (system.as_str(), color(system), system == System::Null);
                (!points.is_empty()).then_some(Line { name, color, limit, points })
            };
            let lines: Vec<Line> = disks.systems.iter().filter_map(line).collect();
            let label = |&(_, job): &(&Row<'_>, Job)| match job.jobs {
                1 => format!("{}", job.depth),
                jobs => format!("{jobs} x {}", job.depth),
            };
            let labels: Vec<String> = mine.iter().map(label).collect();
            if mine.len() < 2 || lines.is_empty() {
                continue;
            }
            let title = format!("{}, image on {}", plot.title, medium.as_str());
            let frame = Frame { title: &title, across: "jobs x requests in flight", up: plot.up };
            // Only a drawing that fails is left out; a string takes everything.
            if let Ok(svg) = render(&frame, &labels, &lines) {
                let name = format!("disk-{}-{}.svg", plot.file, medium.as_str());
                figures.push(Figure { name, svg });
            }
        }
    }
    figures
}

fn color(system: System) -> RGBColor {
    match system {
        System::Qsd => RGBColor(0x00, 0x72, 0xb2),
        System::Fio => RGBColor(0x00, 0x9e, 0x73),
        System::FuseShm | System::FuseLibfabric | System::FuseTcp => RGBColor(0xe6, 0x9f, 0x00),
        System::Null | System::QsdNbd | System::Nbd | System::Gfarm => RGBColor(0x99, 0x99, 0x99),
        _ => RGBColor(0xd5, 0x5e, 0x00),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Table;
    use crate::disk::cell;
    use crate::disk::promises::promises;
    use crate::window::RoundTrips;

    fn window(round: u32, rate: f64, p50: f64) -> Window {
        let latency = RoundTrips { n: 1_000, p50, p99: 2.0 * p50, p999: 3.0 * p50 };
        Window {
            round,
            line: [Some(100.0); 2],
            regime: Some(Regime::Near),
            quiet: true,
            waited: 0.0,
            others: 0.0,
            stolen: 0,
            seconds: 0.3,
            rate,
            latency: Some(latency),
            cpu: 50.0,
            server: None,
            empty: Some(90.0),
        }
    }

    const SYSTEMS: [System; 8] = [
        System::Hayate,
        System::Qsd,
        System::Fio,
        System::StoreShm,
        System::StoreGfarmTcp,
        System::FuseTcp,
        System::Gfarm,
        System::QsdNbd,
    ];

    /// Everything once, made up: hayate is faster by half, and waits for QD 1 a little longer.
    fn everything() -> Disks {
        let tables = [Table::Disk, Table::Store, Table::StoreGuest, Table::DiskIdle];
        let cells = cell::cells(&tables, &[Medium::Tmpfs, Medium::Disk], false);
        let few = |job: Job| match job.access {
            Access::RandomRead => job.jobs == 1 && job.depth < 128,
            Access::Write => job.block == 1 << 20,
            _ => false,
        };
        let short = |cell: &&Cell| cell.job.is_none_or(few);
        let mut outcomes = Vec::new();
        for &cell in cells.iter().filter(short) {
            for system in SYSTEMS {
                if !system.takes_part(&cell) {
                    continue;
                }
                let depth = cell.job.map_or(0, |job| job.depth);
                let (rate, p50) = match system {
                    System::Hayate | System::StoreShm => (15_000.0, 11_000.0),
                    _ => (10_000.0, 10_000.0),
                };
                let rate = rate * f64::from(depth);
                let server = cell.remote.then_some(25.0);
                let one = |round| Window { cpu: 0.25, server, ..window(round, rate, p50) };
                let mut windows = vec![one(0), one(1)];
                if cell.job.is_some() {
                    windows.iter_mut().for_each(|window| window.cpu = 50.0);
                }
                outcomes.push(Outcome { cell, system, windows, problem: None });
            }
        }
        if let Some(last) = outcomes.last_mut() {
            last.windows.clear();
            last.problem = Some("it ended in the middle\nfor some reason".into());
        }
        let version = |system| Version { system, version: "1.0".into() };
        Disks {
            systems: SYSTEMS.map(version).into(),
            size: 1 << 30,
            polls: true,
            guest: Some("QEMU 11, Linux 6.12".into()),
            aio: [(Medium::Tmpfs, "io_uring".into()), (Medium::Disk, "native".into())].into(),
            outcomes,
        }
    }

    #[test]
    fn the_tables_look_as_they_should() {
        let golden = include_str!("golden.md");
        let mut text = String::new();
        write(&mut text, &everything()).unwrap();
        promises(&mut text, &everything()).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/disk/golden.md");
            std::fs::write(path, &text).unwrap();
        }
        assert!(text == golden, "not as in golden.md:\n{text}");
    }

    #[test]
    fn json_comes_back_as_it_was() {
        let text = serde_json::to_string(&everything()).unwrap();
        assert_eq!(serde_json::from_str::<Disks>(&text).unwrap(), everything());
    }

    #[test]
    fn figures_are_of_a_medium() {
        let names: Vec<String> = draw(&everything()).into_iter().map(|f| f.name).collect();
        // Of the writes there is one point, which is no line.
        assert_eq!(names.len(), 2 * 2);
        assert!(names.contains(&"disk-read-tmpfs.svg".to_owned()), "{names:?}");
    }

    #[test]
    fn windows_that_others_disturbed_do_not_count() {
        let disturbed = Window { quiet: false, ..window(0, 1.0, 1.0) };
        assert!(!disturbed.counts() && window(0, 1.0, 1.0).counts());
        assert!(one_line(&[disturbed]).starts_with("no window counts (of 1)"));
        assert!(one_line(&[window(0, 2_000.0, 1_000.0)]).contains("2.0 k IOPS"));
        assert_eq!(window(0, 1e6, 1.0).cpu_for_a_million(), Some(0.5));
        assert_eq!(window(0, 0.0, 1.0).cpu_for_a_million(), None);
    }
}
