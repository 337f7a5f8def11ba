//! Tables for people, in Markdown.

use std::fmt::Write;

use super::{Figure, Report, Row, figure, promises};
use crate::cell::{Cell, Kind, Method, Rings, Side};
use crate::stats::Summary;
use crate::sut::System;
use crate::vf::Pods;

/// The report; `figures` are names of files beside it.
pub(super) fn markdown(report: &Report, figures: &[String]) -> String {
    let mut text = String::from("# Measurements\n\n");
    // Writing to a string does not fail.
    let _ = head(&mut text, report);
    for name in figures {
        let _ = writeln!(text, "![{}]({name})\n", name.trim_end_matches(".svg"));
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
    if let Some(disks) = &report.disks {
        let _ = crate::disk::report::write(&mut text, disks);
    }
    if let Some(pods) = &report.pods {
        let _ = crate::vf::tables::write(&mut text, pods);
    }
    let _ = problems(&mut text, report);
    let _ = promises::write(&mut text, report, &rows);
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
         switch, CPU {guests} the guests, which touch {}{}.\n",
        machine.processor,
        machine.cpus,
        machine.memory,
        machine.kernel,
        machine.system,
        machine.ticks,
        report.touch.as_str(),
        if report.offloads { ", and have checksum and segmentation offload" } else { "" },
    )?;
    if let Some(wake) = report.wake {
        let polls = match wake.halt_poll {
            None => String::new(),
            Some(0) => "; the kernel gives idle CPUs back to the host at once".to_owned(),
            Some(ns) => format!("; the kernel keeps idle CPUs for {} us", ns / 1000),
        };
        writeln!(
            text,
            "A thread that sleeps there runs {:.1} us after it is woken, and 10 000 times a second \
             take {:.1} % of a CPU if it does nothing else{polls}.\n",
            wake.delay, wake.cpu
        )?;
    }
    writeln!(text, "```text\n{}\n```\n", report.command)?;
    if report.systems.is_empty() {
        return Ok(());
    }
    for version in report.systems.iter().filter(|version| !version.version.is_empty()) {
        writeln!(text, "* {}: {}", version.system.as_str(), version.version)?;
    }
    writeln!(
        text,
        "\nEach figure is the median over windows of one regime (smallest-largest, number of \
         windows), *crowded* only where there is little else: somebody else ran on the other thread of \
         the core of the switch, of the guests or of both then; the systems take turns in rounds, \
         with the same guest memory. A ratio is the system's figure divided by hayate's of the same round, median over the rounds; of all rounds \
         where those with windows of both have fewer than half of them. *Full* is \
         how often the generator found its TX ring full, *busy* the share of the time in which the \
         switch had frames to move, and cycles are those of that time: by the switch's own account, \
         without turns that found nothing. A figure with **†** is within 20 % of the \
         generator's own limit, or hayate's of a worker that had frames to move for less than \
         nine tenths of the time: a lower bound for the switch, whose cycles for each frame say \
         more.\n"
    )
}

pub(super) fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Throughput => "Throughput, one way",
        Kind::Touch => "Throughput between guests that write and read every byte",
        Kind::Rtt => "Round trips",
        Kind::Pings => "Round trips at a fixed rate",
        Kind::Cpu => "CPU of the switch at a fixed rate",
        Kind::Sides => "CPU of the sender's and of the receiver's side",
        Kind::SwitchLoopback => "Switch loopback: both ways",
        Kind::VmLoopback => "VM loopback: through a virtual machine that forwards",
        Kind::Pairs => "Pairs of guests on one worker",
        Kind::Flows => "Flows",
        Kind::Macs => "Machines at either side",
        Kind::Queues => "Queue pairs of a guest",
        Kind::Jumbo => "Frames of 9000 bytes",
        Kind::Tso => "TCP segments of 64 KiB",
        Kind::Routers => "Routers on the way",
        Kind::PolledRouters => "Routers with polling drivers on the way",
        Kind::Prefixes => "Prefixes of a router",
        Kind::Strangers => "Routers of others that misbehave",
    }
}

/// What one has to know to read a table.
fn about(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Touch => Some(
            "The guests write each frame before it is sent and read it when it arrived, on one CPU \
             for both. What a switch gains shows as time it is not busy once they are the limit.",
        ),
        Kind::Rtt => Some(
            "One frame in flight, 5 µs between one round trip and the next. `hayate` polls as it does \
             by default (`balanced`), `hayate, latency` and `hayate, power` with these settings of \
             `polling`.",
        ),
        Kind::Pings => Some("A frame there and back every 100 µs, as a ping does: 10 k a second."),
        Kind::Cpu => Some(
            "CPU time of all threads of the switch. Guests at 0 frames a second are connected and \
             idle. Frames that arrive late are not lost.",
        ),
        Kind::Sides => Some(
            "At 500 k frames a second. With one copy and one worker on one machine the sending and \
             the receiving hypervisor are the same thread, so the sides are told apart by what is \
             left out. *Sending*: the switch takes the frames and decides where they go, but the \
             receiver has no buffers, so it can give them to nobody. *Both*: the same frames are \
             delivered. *Receiving* is the difference: finding the receiver's buffers, copying, and \
             notifying (a switch with two copies does its first one while sending). CPU time of a \
             thread that always polls is 100 % on either side and its difference says nothing; \
             cycles for each frame count only turns that found frames, for all systems.",
        ),
        Kind::VmLoopback => Some(
            "Generator, switch, virtual machine, switch, generator. The virtual machine swaps the MAC \
             addresses and sends each frame out of its other card. Frames and cycles are those of the \
             whole way: a switch moves each frame twice.",
        ),
        Kind::SwitchLoopback => Some("Both guests send and receive; frames of both ways together."),
        Kind::Routers => Some(
            "From guest to guest through Linux routers (network namespaces with TAP ports, \
             `hayate-agent` in each). `hayate` forwards past them what they delegated, `hayate, no \
             bypass` hands the same frames to each of them (`hayate router bypass NAME off`), OVS-DPDK \
             has the rewrites of all routers as OpenFlow rules, written by hand.",
        ),
        Kind::PolledRouters => Some(
            "From guest to guest through routers that are virtual machines themselves and poll, as with \
             DPDK: each counts a packet's hops down and sends it on to the next. Nothing is delegated; \
             frames and cycles are those of the whole way. All the machines share the generator's CPU.",
        ),
        Kind::Prefixes => Some(
            "1 M destinations at random, past one Linux router that delegated so many prefixes. No \
             two frames in a row have anything in common. The sender writes their addresses anew.",
        ),
        Kind::Strangers => Some(
            "From guest to guest in one network, and to 100 destinations past a router, while another \
             VM that is a router in the same networks does its worst on its guest channel: requests that \
             are refused, changes of a next hop, connections that end in the middle of a message, each as \
             fast as it can. It and the daemon's control thread run on the guests' CPU, which the guests \
             leave to them for 10 ms after every 10 ms: rates are of the time in which the guests run.",
        ),
        Kind::Flows => Some(
            "From one machine to another. The sender writes addresses, ports and checksum of each frame \
             anew, with one flow as well, into as many buffers as its ring has entries.",
        ),
        Kind::Macs => Some(
            "Half of them at either side, each known to the switch, all in turn. The sender writes the \
             addresses of each frame anew, with two machines as well, into as many buffers as its ring \
             has entries.",
        ),
        Kind::Queues => Some("Each queue of the sender has frames; the switch has one worker."),
        _ => None,
    }
}

fn write_table(text: &mut String, report: &Report, rows: &[&Row<'_>]) -> std::fmt::Result {
    let Some(first) = rows.first() else { return Ok(()) };
    let rings = match first.cell.rings {
        Rings::Packed => "packed rings",
        Rings::Split => "split rings",
    };
    writeln!(text, "## {}, {rings}\n", title(first.cell.kind))?;
    if let Some(about) = about(first.cell.kind) {
        writeln!(text, "{about}\n")?;
    }
    let columns: &[&str] = match (first.cell.kind, first.cell.method()) {
        (Kind::Sides, _) => &[
            "CPU sending, %",
            "both, %",
            "receiving, %",
            "ratio of both",
            "cycles/frame sending",
            "both",
            "receiving",
            "lost, %",
        ],
        (_, Method::Flood) => &["Mpps", "Gbit/s", "ratio", "full", "busy", "cycles/frame"],
        (_, Method::RoundTrips(_)) => {
            &["p50, µs", "p99, µs", "p99.9, µs", "ratio of p50", "CPU, %"]
        }
        (_, Method::Rate(_)) => &["CPU, %", "ratio", "delivered, Mpps", "lost, %", "cycles/frame"],
    };
    writeln!(text, "| | system | {} | regime |", columns.join(" | "))?;
    writeln!(text, "|---|---|{}---|", "---|".repeat(columns.len()))?;
    // The line of both sides has the other one in it.
    for row in rows.iter().filter(|row| row.cell.side == Side::Both) {
        let sending = Cell { side: Side::Sending, ..row.cell };
        let sending = rows.iter().find(|row| row.cell == sending);
        for version in &report.systems {
            let system = version.system;
            let Some(outcome) = row.of(system) else { continue };
            write!(text, "| {} | {} | ", row.cell.label(), system.as_str())?;
            if let (true, Some(problem)) = (outcome.windows.is_empty(), &outcome.problem) {
                let problem = crate::sut::brief(problem);
                writeln!(text, "{problem} {}|", "| ".repeat(columns.len()))?;
                continue;
            }
            let values = match (first.cell.kind, row.cell.method()) {
                (Kind::Sides, _) => sides(row, sending.copied(), system),
                (_, Method::Flood) => flood(row, system),
                (_, Method::RoundTrips(_)) => round_trips(row, system),
                (_, Method::Rate(_)) => rate(row, system),
            };
            let regime = row.regime.map_or("-", crate::place::Regime::as_str);
            writeln!(text, "{} | {regime} |", values.join(" | "))?;
        }
    }
    writeln!(text)
}

/// A system's figure divided by hayate's.
fn ratio(row: &Row<'_>, system: System, figure: Figure) -> String {
    match system {
        System::Hayate => "1".to_owned(),
        _ => row.ratio(system, figure).map_or("-".to_owned(), |s| format!("{:.2}", s.median)),
    }
}

fn flood(row: &Row<'_>, system: System) -> Vec<String> {
    let mpps = row.figure(system, figure::RATE);
    let bits = mpps.map(|s| s.median * f64::from(row.cell.size) * 8.0 / 1e3);
    let mark = if row.bound(system) { " †" } else { "" };
    vec![
        format!("{}{mark}", spread(mpps, 2)),
        bits.map_or("-".into(), |bits| format!("{bits:.1}")),
        ratio(row, system, figure::RATE),
        median(row.figure(system, |w| Some(w.full)), 0, " %"),
        median(row.figure(system, |w| w.busy), 0, " %"),
        median(row.figure(system, figure::CYCLES), 0, ""),
    ]
}

fn round_trips(row: &Row<'_>, system: System) -> Vec<String> {
    vec![
        spread(row.figure(system, figure::P50), 2),
        median(row.figure(system, figure::P99), 2, ""),
        median(row.figure(system, |w| w.round_trips.map(|t| t.p999 / 1e3)), 2, ""),
        ratio(row, system, figure::P50),
        median(row.figure(system, figure::CPU), 1, ""),
    ]
}

fn rate(row: &Row<'_>, system: System) -> Vec<String> {
    vec![
        spread(row.figure(system, figure::CPU), 2),
        ratio(row, system, figure::CPU),
        median(row.figure(system, figure::RATE), 3, ""),
        median(row.figure(system, figure::LOST), 3, ""),
        median(row.figure(system, figure::CYCLES), 0, ""),
    ]
}

fn sides(row: &Row<'_>, sending: Option<&Row<'_>>, system: System) -> Vec<String> {
    let figures = |figure: Figure| {
        [sending.and_then(|row| row.figure(system, figure)), row.figure(system, figure)]
    };
    let difference = |of: [Option<Summary>; 2], digits: usize| match of {
        [Some(sending), Some(both)] => format!("{:.digits$}", both.median - sending.median),
        _ => "-".to_owned(),
    };
    let (cpu, cycles) = (figures(figure::CPU), figures(figure::CYCLES));
    vec![
        median(cpu[0], 1, ""),
        spread(cpu[1], 1),
        difference(cpu, 1),
        ratio(row, system, figure::CPU),
        median(cycles[0], 0, ""),
        median(cycles[1], 0, ""),
        difference(cycles, 0),
        median(row.figure(system, figure::LOST), 3, ""),
    ]
}

/// Median (smallest-largest, number).
pub(crate) fn spread(summary: Option<Summary>, digits: usize) -> String {
    summary.map_or("-".into(), |s| {
        let Summary { median, min, max, n } = s;
        format!("**{median:.digits$}** ({min:.digits$}-{max:.digits$}, {n})")
    })
}

pub(crate) fn median(summary: Option<Summary>, digits: usize, unit: &str) -> String {
    summary.map_or("-".into(), |s| format!("{:.digits$}{unit}", s.median))
}

/// What could not be measured, and why.
fn problems(text: &mut String, report: &Report) -> std::fmt::Result {
    let of_frames = report.outcomes.iter().filter_map(|outcome| {
        let (cell, problem) = (&outcome.cell, outcome.problem.as_ref()?);
        let (kind, rings, label) = (title(cell.kind), cell.rings.as_str(), cell.label());
        Some(format!("* {}, {kind}, {rings}, {label}: {problem}", outcome.system.as_str()))
    });
    let disks = report.disks.iter().flat_map(|disks| &disks.outcomes);
    let of_disks = disks.filter_map(|outcome| {
        let (cell, problem) = (&outcome.cell, outcome.problem.as_ref()?);
        let (medium, label) = (cell.medium.as_str(), cell.label());
        Some(format!("* {}, {medium}, {label}: {problem}", outcome.system.as_str()))
    });
    let of_pods = report.pods.iter().flat_map(Pods::problems);
    let all: Vec<String> = of_frames.chain(of_disks).chain(of_pods).collect();
    if !all.is_empty() {
        writeln!(text, "## Not measured, or not in every round\n\n{}\n", all.join("\n"))?;
    }
    Ok(())
}
