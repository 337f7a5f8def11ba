//! Tables for people, in Markdown.

use std::fmt::Write;

use super::{Report, Row};
use crate::cell::{Kind, Method, Rings};
use crate::stats::Summary;
use crate::sut::System;
use crate::window::Window;

/// The report; `figures` are names of files beside it.
pub(super) fn markdown(report: &Report, figures: &[String]) -> String {
    let mut text = String::from("# Measurements\n\n");
    // Writing to a string does not fail.
    let _ = head(&mut text, report);
    for figure in figures {
        let _ = writeln!(text, "![{}]({figure})\n", figure.trim_end_matches(".svg"));
    }
    let rows = report.rows();
    let mut at = 0;
    while let Some(first) = rows.get(at) {
        let table =
            |row: &&Row<'_>| (row.cell.kind, row.cell.rings) == (first.cell.kind, first.cell.rings);
        let some: Vec<&Row<'_>> =
            rows.get(at..).unwrap_or_default().iter().take_while(table).collect();
        at += some.len().max(1);
        let _ = write_table(&mut text, report, &some);
    }
    let _ = problems(&mut text, report);
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn head(text: &mut String, report: &Report) -> std::fmt::Result {
    let machine = &report.machine;
    let [switch, guests] = machine.place;
    writeln!(
        text,
        "{} ({} CPUs, {} GiB), Linux {}, {}; time stamp counter {:.2} GHz. CPU {switch} runs the \
         switch, CPU {guests} the guests, which touch {}.\n",
        machine.processor,
        machine.cpus,
        machine.memory,
        machine.kernel,
        machine.system,
        machine.ticks,
        report.touch,
    )?;
    writeln!(text, "```text\n{}\n```\n", report.command)?;
    for version in report.systems.iter().filter(|version| !version.version.is_empty()) {
        writeln!(text, "* {}: {}", version.system.as_str(), version.version)?;
    }
    writeln!(
        text,
        "\nEach figure is the median over windows of one regime (smallest-largest, number of \
         windows); the systems take turns in rounds, with the same guest memory. A ratio is the \
         system's figure divided by hayate's of the same round, median over the rounds. *Full* is \
         how often the generator found its TX ring full. A figure with **†** is within 20 % of the \
         generator's own limit: a lower bound for the switch, whose cycles for each frame say \
         more.\n"
    )
}

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Throughput => "Throughput, one way",
        Kind::Rtt => "Round trips",
        Kind::Cpu => "CPU of the switch at a fixed rate",
        Kind::SwitchLoopback => "Switch loopback: both ways",
        Kind::VmLoopback => "VM loopback: through a virtual machine that forwards",
        Kind::Pairs => "Pairs of guests on one worker",
        Kind::Flows => "Flows",
        Kind::Macs => "Machines at either side",
        Kind::Queues => "Queue pairs of a guest",
        Kind::Jumbo => "Frames of 9000 bytes",
        Kind::Tso => "TCP segments of 64 KiB",
    }
}

fn write_table(text: &mut String, report: &Report, rows: &[&Row<'_>]) -> std::fmt::Result {
    let Some(first) = rows.first() else { return Ok(()) };
    let rings = match first.cell.rings {
        Rings::Packed => "packed rings",
        Rings::Split => "split rings",
    };
    writeln!(text, "## {}, {rings}\n", title(first.cell.kind))?;
    let (columns, line) = match first.cell.method() {
        Method::Flood => (
            "| | system | Mpps | Gbit/s | ratio | full | cycles/frame | regime |",
            "|---|---|---|---|---|---|---|---|",
        ),
        Method::RoundTrips => (
            "| | system | p50, µs | p99, µs | p99.9, µs | ratio of p50 | regime |",
            "|---|---|---|---|---|---|---|",
        ),
        Method::Rate(_) => (
            "| | system | CPU, % | ratio | delivered, Mpps | lost, % | regime |",
            "|---|---|---|---|---|---|---|",
        ),
    };
    writeln!(text, "{columns}\n{line}")?;
    for row in rows {
        for version in &report.systems {
            if row.of(version.system).is_some() {
                writeln!(text, "{}", line_of(row, version.system))?;
            }
        }
    }
    writeln!(text)
}

fn line_of(row: &Row<'_>, system: System) -> String {
    let regime = row.regime.map_or("-", crate::place::Regime::as_str);
    let label = row.cell.label();
    let name = system.as_str();
    let figure = |value: fn(&Window) -> Option<f64>| row.figure(system, value);
    let ratio = |value: fn(&Window) -> Option<f64>| match system {
        System::Hayate => "1".to_owned(),
        _ => row.ratio(system, value).map_or("-".to_owned(), |s| format!("{:.2}", s.median)),
    };
    match row.cell.method() {
        Method::Flood => {
            let mpps = figure(|w| Some(w.mpps));
            let bits = mpps.map(|s| s.median * f64::from(row.cell.size) * 8.0 / 1e3);
            let mark = if row.bound(system) { " †" } else { "" };
            format!(
                "| {label} | {name} | {}{mark} | {} | {} | {} | {} | {regime} |",
                spread(mpps, 2),
                bits.map_or("-".into(), |bits| format!("{bits:.1}")),
                ratio(|w| Some(w.mpps)),
                median(figure(|w| Some(w.full)), 0, " %"),
                median(figure(|w| w.cycles), 0, ""),
            )
        }
        Method::RoundTrips => {
            let p50 = |w: &Window| w.round_trips.map(|t| t.p50 / 1e3);
            format!(
                "| {label} | {name} | {} | {} | {} | {} | {regime} |",
                spread(figure(p50), 2),
                median(figure(|w| w.round_trips.map(|t| t.p99 / 1e3)), 2, ""),
                median(figure(|w| w.round_trips.map(|t| t.p999 / 1e3)), 2, ""),
                ratio(p50),
            )
        }
        Method::Rate(_) => {
            let lost = |w: &Window| match w.sent {
                0 => None,
                sent => Some(100.0 * sent.saturating_sub(w.received) as f64 / sent as f64),
            };
            format!(
                "| {label} | {name} | {} | {} | {} | {} | {regime} |",
                spread(figure(|w| Some(w.cpu)), 2),
                ratio(|w| Some(w.cpu)),
                median(figure(|w| Some(w.mpps)), 3, ""),
                median(figure(lost), 3, ""),
            )
        }
    }
}

/// Median (smallest-largest, number).
fn spread(summary: Option<Summary>, digits: usize) -> String {
    summary.map_or("-".into(), |s| {
        let Summary { median, min, max, n } = s;
        format!("**{median:.digits$}** ({min:.digits$}-{max:.digits$}, {n})")
    })
}

fn median(summary: Option<Summary>, digits: usize, unit: &str) -> String {
    summary.map_or("-".into(), |s| format!("{:.digits$}{unit}", s.median))
}

/// What could not be measured, and why.
fn problems(text: &mut String, report: &Report) -> std::fmt::Result {
    let all = report.outcomes.iter().filter_map(|o| Some((o, o.problem.as_ref()?)));
    let mut any = false;
    for (outcome, problem) in all {
        if !any {
            writeln!(text, "## Not measured, or not in every round\n")?;
            any = true;
        }
        let (cell, system) = (&outcome.cell, outcome.system.as_str());
        let kind = title(cell.kind);
        let (rings, label) = (cell.rings.as_str(), cell.label());
        writeln!(text, "* {system}, {kind}, {rings}, {label}: {problem}")?;
    }
    Ok(())
}
