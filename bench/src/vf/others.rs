//! What threads that have no part in the measurement did on its CPUs, and in which round trips.
//!
//! **Purpose.** The longest of ten thousand round trips is as long as what else the machine did meanwhile. So it is
//! recorded when others ran ([`super::recorder`]), and the longest round trip without them is told from the longest.
//!
//! **Failure.** Records that are not complete, or not understood, are an error: nothing is judged by half of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Nanoseconds that others may run during a round trip that counts as undisturbed, of both CPUs in sum. What the kernel
/// does now and then in a few microseconds is part of every trip; what is longer than that is not waiting for others.
pub const THRESHOLD: u64 = 10_000;
/// Round trips of a turn that are looked at: the longest.
pub const LISTED: usize = 256;
/// Bytes of a record at most: it has names three times, and little else.
const LONGEST: usize = 1024;
/// Names that are kept of those that ran.
const NAMES: usize = 8;

/// A thread of others ran on a CPU. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ran {
    id: u32,
    name: String,
    from: u64,
    to: u64,
}

/// What was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recording {
    ran: Vec<Ran>,
    /// All of them, those of the measurement's own threads, too.
    records: usize,
    /// Its length in nanoseconds.
    length: u64,
    /// Time that others had by the kernel's accounts and that is not among the records, if it is known.
    unseen: Option<u64>,
}

/// What others did during a turn of round trips.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Others {
    /// The longest round trip that they did not disturb, in microseconds; none: they disturbed all that are listed.
    pub undisturbed: Option<f64>,
    /// Round trips that were looked at, the longest: [`LISTED`], or all.
    pub listed: usize,
    /// Of them, those in which others ran for longer than [`THRESHOLD`].
    pub disturbed: usize,
    /// Of those, the ones before the longest undisturbed.
    pub aside: usize,
    /// How long they ran on both CPUs, in milliseconds a second.
    pub all: f64,
    /// The same of those that ran most, by the names of their threads.
    pub most: Vec<(String, f64)>,
    /// How long others ran by the kernel's accounts without being recorded, in milliseconds a second; none: not known.
    pub unseen: Option<f64>,
    /// Records a second: what recording had to do.
    pub records: f64,
}

/// The records of the text of `trace`, without its headings.
///
/// # Errors
/// The kernel had no room for all, or one is not understood.
fn records<T>(trace: &str, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let unknown = |text: &str| Err(format!("a record is not understood: {}", printable(text)));
    let (mut found, mut text) = (Vec::new(), String::new());
    for line in trace.lines() {
        if let Some(entries) = line.strip_prefix("# entries-in-buffer/entries-written: ") {
            let counts = entries.split_whitespace().next().and_then(|both| both.split_once('/'));
            if counts.is_none_or(|(kept, written)| kept != written) {
                return Err(format!("records were lost: {}", entries.trim()));
            }
        }
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        text += line;
        match read(&text) {
            Some(record) => {
                found.push(record);
                text.clear();
            }
            // Names may have ends of lines in them: it goes on in the next.
            None if text.contains(" [LOST ") || text.len() > LONGEST => return unknown(&text),
            None => text.push('\n'),
        }
    }
    if text.is_empty() { Ok(found) } else { unknown(&text) }
}

/// Adds to threads those that they started, and so on, by the text of `trace` with events `sched_process_fork`.
///
/// # Errors
/// Records are lost, or not understood.
pub(super) fn adopt(own: &mut BTreeSet<u32>, trace: &str) -> Result<(), String> {
    for (parent, child) in records(trace, fork)? {
        if own.contains(&parent) {
            own.insert(child);
        }
    }
    Ok(())
}

/// Understands the text of `trace` with events `sched_stat_runtime` between two times in nanoseconds. `own`: all threads
/// that have a part in the measurement, by their ids.
///
/// # Errors
/// Records are lost, or not understood.
pub(super) fn parse(
    trace: &str,
    own: &BTreeSet<u32>,
    (from, to): (u64, u64),
) -> Result<Recording, String> {
    let records = records(trace, Record::read)?;
    let number = records.len();
    let others = records.into_iter().filter(|record| !own.contains(&record.id));
    let ran = others.map(|Record { at, id, name, time }| {
        let start = at.saturating_sub(time).clamp(from, to);
        Ran { id, name, from: start, to: at.clamp(from, to) }
    });
    let ran = ran.collect();
    Ok(Recording { ran, records: number, length: to.saturating_sub(from), unseen: None })
}

/// Numbers that a text begins with, and what follows them.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, rest))
}

/// Parent and child of a line as
///
/// ```text
///    sh-812   [001] ..... 67760.129449: sched_process_fork: comm=sh pid=812 child_comm=sh child_pid=813
/// ```
fn fork(line: &str) -> Option<(u32, u32)> {
    let (_, event) = line.split_once(": sched_process_fork: comm=")?;
    let (event, child) = event.rsplit_once(" child_pid=")?;
    let parent = |(at, _): (usize, &str)| {
        let (parent, rest) = number(event.get(at..)?.strip_prefix(" pid=")?)?;
        rest.starts_with(" child_comm=").then_some(parent)
    };
    Some((event.match_indices(" pid=").find_map(parent)?, child.trim_end().parse().ok()?))
}

/// A thread has had its CPU for a time, in nanoseconds, until then.
struct Record {
    at: u64,
    id: u32,
    name: String,
    time: u64,
}

impl Record {
    /// Understands a line as
    ///
    /// ```text
    ///   bash-312   [001] d..2. 69731.079262: sched_stat_runtime: comm=bash pid=312 runtime=893628 [ns]
    /// ```
    ///
    /// Threads have names of at most fifteen bytes that say what they like, too short to say all of what is looked for.
    fn read(line: &str) -> Option<Record> {
        let (head, event) = line.split_once(": sched_stat_runtime: comm=")?;
        let (seconds, micros) = head.rsplit(' ').next()?.split_once('.')?;
        let fraction = (micros.len() == 6).then(|| micros.parse::<u64>().ok())??;
        let at = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(fraction)?;
        let said = |(end, _): (usize, &str)| {
            let (name, rest) = event.split_at_checked(end)?;
            let (id, rest) = number(rest.strip_prefix(" pid=")?)?;
            // Older kernels say more behind it.
            let (time, _) = rest.strip_prefix(" runtime=")?.split_once(" [ns]")?;
            Some((id, name, time.parse().ok()?))
        };
        let (id, name, time) = event.match_indices(" pid=").find_map(said)?;
        Some(Record { at: at.checked_mul(1000)?, id, name: printable(name), time })
    }
}

/// A name as it can stand in a table.
fn printable(name: &str) -> String {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '|' | '`');
    name.chars().map(|c| if plain(c) { c } else { '?' }).collect()
}

impl Recording {
    /// Compares with the time in nanoseconds that each thread of others had by the kernel's accounts.
    pub(super) fn compare(&mut self, accounts: &BTreeMap<u32, u64>) {
        let mut recorded: BTreeMap<u32, u64> = BTreeMap::new();
        for ran in &self.ran {
            *recorded.entry(ran.id).or_default() += ran.to - ran.from;
        }
        let seen = |id| recorded.get(id).copied().unwrap_or(0);
        self.unseen = Some(accounts.iter().map(|(id, time)| time.saturating_sub(seen(id))).sum());
    }

    /// How long threads of a name ran.
    #[cfg(test)]
    pub(super) fn named(&self, name: &str) -> u64 {
        self.ran.iter().filter(|ran| ran.name == name).map(|ran| ran.to - ran.from).sum()
    }

    /// How long others ran between two times, nanoseconds of both CPUs in sum.
    fn during(&self, from: u64, to: u64) -> u64 {
        let within = |ran: &Ran| ran.to.min(to).saturating_sub(ran.from.max(from));
        self.ran.iter().map(within).sum()
    }

    /// What others did to round trips: end and duration of each, of those that took longest.
    pub(super) fn judge(&self, mut trips: Vec<[u64; 2]>) -> Others {
        trips.sort_unstable_by_key(|[_, took]| std::cmp::Reverse(*took));
        trips.truncate(LISTED);
        let alone =
            |[end, took]: &[u64; 2]| self.during(end.saturating_sub(*took), *end) <= THRESHOLD;
        let first = trips.iter().position(alone);
        let undisturbed = first.and_then(|at| trips.get(at)).map(|[_, took]| *took as f64 / 1e3);
        let mut names: BTreeMap<&str, u64> = BTreeMap::new();
        for ran in &self.ran {
            *names.entry(&ran.name).or_default() += ran.to - ran.from;
        }
        // Milliseconds a second.
        let share = |nanos: u64| 1e3 * nanos as f64 / self.length.max(1) as f64;
        let mut most: Vec<(String, f64)> =
            names.iter().map(|(name, nanos)| ((*name).to_owned(), share(*nanos))).collect();
        most.sort_by(|one, other| other.1.total_cmp(&one.1));
        most.truncate(NAMES);
        Others {
            undisturbed,
            listed: trips.len(),
            disturbed: trips.iter().filter(|trip| !alone(trip)).count(),
            aside: first.unwrap_or(trips.len()),
            all: share(names.values().sum()),
            most,
            unseen: self.unseen.map(share),
            records: 1e9 * self.records as f64 / self.length.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests;
