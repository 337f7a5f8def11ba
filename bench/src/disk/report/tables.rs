//! Tables of disks for people, in Markdown, and what is said of them.

use std::fmt::Write;

use super::{CPU, Disks, MILLION, P50, P99, P999, RATE, Row, SERVER, Value};
use crate::disk::cell::Medium;
use crate::disk::sut::System;
use crate::place::Regime;
use crate::report::Version;
use crate::report::tables::{median, spread};
use crate::stats::Summary;

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
gfarm2fs, is behind a cable in a network namespace of its own. TCP is as Linux has it by default (cubic, or \
Reno where a network may not have that), whatever the machine is set to. Requests go on for a fifth of a second over the \
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
