//! `hayate stats`.

use super::args::StatsArgs;
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, units};
use api::{PortStats, Stats};
use std::io::IsTerminal;
use std::time::Duration;

pub(super) fn stats(client: &Client, args: &StatsArgs) -> Result<(), Failure> {
    if args.prometheus {
        return out::text(&client.get_text("/v1/metrics")?);
    }
    let first: Stats = client.get("/v1/stats")?;
    match (args.watch, args.output.json) {
        (false, true) => out::json(&first),
        (false, false) => out::text(&totals(&first)),
        (true, _) => watch(client, args, first),
    }
}

/// Again and again, until the count is reached or a signal ends the command.
fn watch(client: &Client, args: &StatsArgs, first: Stats) -> Result<(), Failure> {
    let mut before = first;
    let terminal = std::io::stdout().is_terminal();
    let mut lines = 0;
    for look in 0.. {
        if args.count.is_some_and(|count| look >= count) {
            break;
        }
        std::thread::sleep(Duration::from_secs(args.interval.into()));
        let now: Stats = client.get("/v1/stats")?;
        if args.output.json {
            out::json_line(&now)?;
        } else {
            let table = rates(&before, &now);
            if terminal {
                out::text(&in_place(&table, lines))?;
                lines = table.lines().count();
            } else {
                out::text(&table)?;
            }
        }
        before = now;
    }
    Ok(())
}

/// A table over the one of `lines` lines before it; what is above them stays. The terminal cuts
/// long lines meanwhile, so that each takes one.
fn in_place(table: &str, lines: usize) -> String {
    let up = if lines > 0 { format!("\x1b[{lines}A") } else { String::new() };
    format!("{up}\x1b[J\x1b[?7l{}\x1b[?7h\n", table.trim_end())
}

fn totals(stats: &Stats) -> String {
    let mut table = Table::new([
        "PORT",
        "NETWORK",
        "STATE",
        ">FROM PORT",
        ">BYTES",
        ">TO PORT",
        ">BYTES",
        ">UNSEGMENTED",
        ">CSUM",
        ">SEGMENTED",
        "DROPS",
    ]);
    for port in &stats.ports {
        let (from, to) = (&port.from_port, &port.to_port);
        table.row([
            port.name.to_string(),
            port.network.to_string(),
            port.state.as_str().to_owned(),
            units::number(from.frames),
            units::bytes(from.bytes),
            units::number(to.frames),
            units::bytes(to.bytes),
            units::number(to.gso_frames),
            units::number(to.csum_completed),
            units::number(to.segmented),
            units::drops(&port.drops),
        ]);
    }
    table.to_string()
}

fn rates(before: &Stats, now: &Stats) -> String {
    let seconds = now.uptime_us.saturating_sub(before.uptime_us).max(1) as f64 / 1e6;
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let mut table =
        Table::new(["PORT", "STATE", ">FROM PORT", ">BITS", ">TO PORT", ">BITS", ">DROPS"]);
    for port in &now.ports {
        let Some(old) = before.ports.iter().find(|old| old.name == port.name) else { continue };
        let dropped = |port: &PortStats| port.drops.values().sum::<u64>();
        table.row([
            port.name.to_string(),
            port.state.as_str().to_owned(),
            units::rate(rate(port.from_port.frames, old.from_port.frames), "/s"),
            units::rate(rate(port.from_port.bytes, old.from_port.bytes) * 8.0, "bit/s"),
            units::rate(rate(port.to_port.frames, old.to_port.frames), "/s"),
            units::rate(rate(port.to_port.bytes, old.to_port.bytes) * 8.0, "bit/s"),
            units::rate(rate(dropped(port), dropped(old)), "/s"),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::in_place;

    #[test]
    fn a_table_takes_the_place_of_the_last_one_only() {
        assert_eq!(in_place("a\nb\n", 0), "\x1b[J\x1b[?7la\nb\x1b[?7h\n");
        assert_eq!(in_place("a\n", 2), "\x1b[2A\x1b[J\x1b[?7la\x1b[?7h\n");
    }
}
