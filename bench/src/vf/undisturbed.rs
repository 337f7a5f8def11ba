//! What the tables say of others: the longest round trip without them, how many were set aside for that, and who they
//! were.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::cell::{Task, Way};
use super::others::Others;
use super::report::{Outcome, Pods, Sample, UNDISTURBED};
use crate::report::tables::{median, spread};
use crate::stats::{Summary, summary};

/// Names that are said for each round.
const NAMES: usize = 3;

/// A row of a table: what is done, by how many pods, by which way.
type Row = (Task, u16, Way);

fn counting(pods: &Pods, (task, n, way): Row) -> impl Iterator<Item = &Sample> {
    pods.of(task, n, way).into_iter().flat_map(Outcome::counting)
}

fn others(pods: &Pods, row: Row) -> impl Iterator<Item = &Others> {
    counting(pods, row).filter_map(|sample| sample.others.as_ref())
}

/// The longest undisturbed, and in how many rounds there is none.
pub(super) fn undisturbed(
    pods: &Pods,
    row: Row,
    show: impl Fn(Option<Summary>) -> String,
) -> String {
    let found = summary(counting(pods, row).filter_map(UNDISTURBED));
    let none = others(pods, row).filter(|others| others.undisturbed.is_none()).count();
    let unrecorded = counting(pods, row).filter(|sample| sample.unrecorded.is_some()).count();
    match (found, none, unrecorded) {
        (None, 0, 0) => return "-".to_owned(),
        (None, 0, _) => return "not recorded".to_owned(),
        (None, ..) => return "none".to_owned(),
        _ => {}
    }
    let mut text = show(found);
    for (what, count) in [("none", none), ("not recorded", unrecorded)] {
        if count > 0 {
            text += &format!(", {what} in {count}");
        }
    }
    text
}

/// Trips that were set aside, and their share of all.
pub(super) fn aside(pods: &Pods, row: Row) -> String {
    let aside = summary(others(pods, row).map(|others| others.aside as f64));
    let share = summary(counting(pods, row).filter_map(|sample| {
        Some(100.0 * sample.others.as_ref()?.aside as f64 / sample.datagrams.max(1) as f64)
    }));
    match aside {
        None => "-".to_owned(),
        some => format!("{} = {}", spread(some, 0), median(share, 2, " %")),
    }
}

/// How many of the longest trips others disturbed.
pub(super) fn disturbed(pods: &Pods, row: Row) -> String {
    match summary(others(pods, row).map(|others| others.listed as f64)) {
        None => "-".to_owned(),
        listed => {
            let disturbed = summary(others(pods, row).map(|others| others.disturbed as f64));
            format!("{} of {}", median(disturbed, 0, ""), median(listed, 0, ""))
        }
    }
}

/// A line below the table of one pod: who the others were in each round, the mean of all ways; or why that is not known.
pub(super) fn who(text: &mut String, pods: &Pods, task: Task) -> std::fmt::Result {
    let samples = || Way::ALL.into_iter().flat_map(|way| counting(pods, (task, 1, way)));
    let mut rounds: BTreeMap<u32, Vec<&Others>> = BTreeMap::new();
    for sample in samples() {
        if let Some(others) = &sample.others {
            rounds.entry(sample.round).or_default().push(others);
        }
    }
    let of = |(round, turns): (&u32, &Vec<&Others>)| {
        let mean = |sum: f64| sum / turns.len() as f64;
        let mut names: BTreeMap<&str, f64> = BTreeMap::new();
        for (name, share) in turns.iter().flat_map(|others| &others.most) {
            *names.entry(name).or_default() += share;
        }
        let mut names: Vec<(&str, f64)> = names.into_iter().collect();
        names.sort_by(|one, other| other.1.total_cmp(&one.1));
        let say = |(name, sum): &(&str, f64)| format!("`{name}` {:.1}, ", mean(*sum));
        let most: String = names.iter().take(NAMES).map(say).collect();
        let all = mean(turns.iter().map(|others| others.all).sum());
        let unseen: Option<Vec<f64>> = turns.iter().map(|others| others.unseen).collect();
        let unseen = unseen.map(|unseen| format!(" and {:.1} unseen", mean(unseen.iter().sum())));
        format!("{}: {most}all {all:.1}{}", round + 1, unseen.unwrap_or_default())
    };
    let rounds: Vec<String> = rounds.iter().map(of).collect();
    if !rounds.is_empty() {
        let rounds = rounds.join("; ");
        writeln!(
            text,
            "\nOthers on the two CPUs, milliseconds a second, by rounds (*unseen*: by the kernel's \
             accounts, but not recorded): {rounds}."
        )?;
    }
    let reasons: BTreeSet<&str> =
        samples().filter_map(|sample| sample.unrecorded.as_deref()).collect();
    for reason in reasons {
        writeln!(text, "\nNot recorded: {reason}.")?;
    }
    writeln!(text)
}
