//! Tables of pods, beside the paper's.

use std::fmt::Write;

use super::cell::{BULK, REFUSED, Task, Way};
use super::others::{LISTED, THRESHOLD};
use super::report::{
    DAEMON, GUEST, INTERRUPTS, KICKS, MAX, MBIT, P50, P99, P999, Pods, QUIET, UNDISTURBED, Value,
};
use super::undisturbed::{aside, disturbed, undisturbed, who};
use crate::report::tables::{median, spread};
use crate::stats::Summary;

/// The paper's figures, tables 2 to 5: Mbit/s that were sent and received, and the longest round trip in
/// microseconds.
const fn paper(way: Way, pods: u16) -> Option<[f64; 3]> {
    match (way, pods) {
        (Way::Port, 1) => Some([4029.0, 6079.2, 607.0]),
        (Way::Bridge, 1) => Some([957.9, 940.0, 15_400.0]),
        (Way::Vf, 1) => Some([2493.8, 2408.7, 4676.0]),
        (Way::Vf, 2) => Some([2461.9, 2414.5, 4694.0]),
        (Way::Vf, 4) => Some([2395.7, 2348.0, 4764.0]),
        _ => None,
    }
}

/// What one has to know to read the tables.
fn about(text: &mut String, pods: &Pods) -> std::fmt::Result {
    let [guest, host] = pods.rules;
    let version = pods.guest.as_deref().unwrap_or("none");
    let threshold = THRESHOLD / 1000;
    writeln!(
        text,
        "## Pods of a guest\n\n\
         A pod is a network namespace of a QEMU guest ({version}), with a process in it; outside is a process in \
         a namespace of the host, on a TAP port of hayate, with the kernel's stack. All three ways are in the same \
         guest at the same time, and take turns:\n\n\
         * *{}*: pods with veth on a bridge of the guest, which routes and filters: {guest} rules of iptables \
         (legacy), as kube-router and kube-proxy write them for this policy and 20 services, on one virtio-net port \
         of hayate.\n\
         * *{}*: a virtual VF for each pod, made by the guest (`sriov_numvfs`). The same policy is offloaded: {host} \
         lines for `hayate-agent flow`, enforced by hayate's switch. The guest filters nothing.\n\
         * *{}*: processes on one virtio-net port of hayate, without any policy.\n\n\
         The policy of each pod: established connections pass; new ones to UDP port 7000 from eight peers, and to \
         eight peers; nothing else.\n\n\
         **The guest is emulated (TCG) and has one virtual CPU**, on the guests' CPU with all of QEMU; daemon and \
         outside share the switch's. The figures themselves are small and say nothing of a machine that runs guests \
         in hardware: ratios count. As there is one virtual CPU, more pods do not get more together; the paper's \
         guests have one for each pod.\n\n\
         *Send*: pods send datagrams of {BULK} bytes as fast as it goes, and what arrives outside is counted for \
         0.7 s. *Receive*: outside sends at a fixed rate for 0.5 s; the highest rate at which none is lost is looked \
         for (within 4 %), with receive buffers of 1 MiB. *Receive, GRO*: the same, by programs that fetch what the \
         kernel has put together (`UDP_GRO`, as QUIC servers do), where *receive* has a call for each datagram. Mbit/s are of the datagrams' contents, of all pods \
         together. *Round trips*: requests of 64 bytes from outside for 3 s, one in flight for each pod. Figures are \
         medians over the rounds (smallest-largest, number), ratios are of the same round. A turn in which QEMU had less \
         than {QUIET} % of its CPU does not count: others of the machine ran there.\n\n\
         *Longest undisturbed* is the longest round trip of a round during which threads that have no part in the \
         measurement ran on its two CPUs for no more than {threshold} µs in sum. The kernel records when they run \
         (`sched_stat_runtime`), all but QEMU, the daemon, the program outside, the benchmark, and `ksoftirqd`; not \
         what interrupts take, nor the host of a virtual machine. *Set aside* are the trips that were longer, of all \
         the turn's: others ran in each of them. Of each turn the {LISTED} longest are looked at, *disturbed* is how \
         many of them others ran in; if that is all, there is no figure (*none*). A longer trip meets others more often by \
         chance, so the slower of two ways loses more of its long ones: the column errs in its favour.\n",
        Way::Bridge.as_str(),
        Way::Vf.as_str(),
        Way::Port.as_str(),
    )
}

/// The tables.
pub(crate) fn write(text: &mut String, pods: &Pods) -> std::fmt::Result {
    about(text, pods)?;
    if pods.outcomes.iter().all(|outcome| outcome.samples.is_empty()) {
        return Ok(());
    }
    one_pod(text, pods)?;
    more_pods(text, pods)?;
    refused(text, pods)?;
    costs(text, pods)
}

fn one_pod(text: &mut String, pods: &Pods) -> std::fmt::Result {
    writeln!(
        text,
        "### One pod: bulk (the paper's table 2)\n\n\
         | | send, Mbit/s | of before's | paper | of before's | receive, Mbit/s | of before's | paper | of before's | \
         receive, GRO, Mbit/s | of before's |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for way in Way::ALL {
        let theirs = |n: usize| {
            let (own, before) = (paper(way, 1), paper(Way::Bridge, 1));
            let at = |of: Option<[f64; 3]>| of.and_then(|of| of.get(n).copied());
            match (at(own), at(before)) {
                (Some(own), Some(before)) => format!("| {own:.1} | {:.2} ", own / before),
                _ => "| - | - ".to_owned(),
            }
        };
        let ours = |task| {
            let own = spread(pods.figure(task, 1, way, MBIT), 0);
            let ratio = pods.ratio(task, (1, way), (1, Way::Bridge), MBIT);
            format!("| {own} | {} ", times(ratio))
        };
        let (send, receive, gro) = (ours(Task::Send), ours(Task::Receive), ours(Task::Gro));
        writeln!(text, "| {} {send}{}{receive}{}{gro}|", way.as_str(), theirs(0), theirs(1))?;
    }
    writeln!(
        text,
        "\n### One pod: round trips (the paper's table 4)\n\n\
         | {TRIPS} | longest of all, µs | paper, µs | of before's |\n|---|{}---|---|---|",
        "---|".repeat(COLUMNS)
    )?;
    for way in Way::ALL {
        let longest = pods.figure(Task::Trips, 1, way, MAX);
        let longest = longest.map_or("-".to_owned(), |s| format!("{:.0}", s.max));
        let (theirs, part) = match (paper(way, 1), paper(Way::Bridge, 1)) {
            (Some([.., own]), Some([.., before])) => (own, own / before),
            _ => continue,
        };
        let ours = parts(pods, Task::Trips, way);
        writeln!(text, "| {} {ours}| {longest} | {theirs:.0} | {part:.2} |", way.as_str())?;
    }
    who(text, pods, Task::Trips)
}

/// What there is of round trips, and its heading.
const PARTS: [Value; 4] = [P50, P99, P999, MAX];
const TRIPS: &str = "| p50, µs | of before's | p99, µs | of before's | p99.9, µs | of before's | \
                     longest of a round, µs | of before's | longest undisturbed, µs | of before's | set aside | \
                     disturbed";
/// Columns of it.
const COLUMNS: usize = 2 * PARTS.len() + 4;

/// Round trips of one pod.
fn parts(pods: &Pods, task: Task, way: Way) -> String {
    let part = |value| {
        let own = spread(pods.figure(task, 1, way, value), 0);
        let ratio = pods.ratio(task, (1, way), (1, Way::Bridge), value);
        format!("| {own} | {} ", times(ratio))
    };
    let parts: String = PARTS.into_iter().map(part).collect();
    let own = undisturbed(pods, (task, 1, way), |summary| spread(summary, 0));
    let ratio = times(pods.ratio(task, (1, way), (1, Way::Bridge), UNDISTURBED));
    let (aside, disturbed) = (aside(pods, (task, 1, way)), disturbed(pods, (task, 1, way)));
    format!("{parts}| {own} | {ratio} | {aside} | {disturbed} ")
}

fn more_pods(text: &mut String, pods: &Pods) -> std::fmt::Result {
    writeln!(
        text,
        "### Several pods at the same time (the paper's tables 3 and 5)\n\n\
         Of ours, the sum over the pods and its share of one pod's; of the paper's, which has a CPU for each, what \
         each pod has, and its share.\n\n\
         | | pods | send, Mbit/s | of one's | of before's | paper | receive, Mbit/s | of one's | of before's | paper | \
         receive, GRO, Mbit/s | of one's | of before's | p50, µs | longest of a round, µs | of before's | paper, µs | \
         longest undisturbed, µs | of before's | set aside |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for way in Way::ALL {
        for n in pods.pods() {
            let theirs = |at: usize| {
                let of = |n| paper(way, n).and_then(|of| of.get(at).copied());
                match (of(n), of(1)) {
                    (Some(own), Some(one)) if n > 1 => format!("{own:.0} = {:.2}", own / one),
                    (Some(own), _) => format!("{own:.0}"),
                    _ => "-".to_owned(),
                }
            };
            let ours = |task| {
                let own = median(pods.figure(task, n, way, MBIT), 0, "");
                let part = pods.ratio(task, (n, way), (1, way), MBIT);
                let before = pods.ratio(task, (n, way), (n, Way::Bridge), MBIT);
                format!("{own} | {} | {}", short(part), short(before))
            };
            let (send, receive, gro) = (ours(Task::Send), ours(Task::Receive), ours(Task::Gro));
            let of = |value| median(pods.figure(Task::Trips, n, way, value), 0, "");
            let before = pods.ratio(Task::Trips, (n, way), (n, Way::Bridge), MAX);
            let calm = undisturbed(pods, (Task::Trips, n, way), |summary| median(summary, 0, ""));
            let calmer = pods.ratio(Task::Trips, (n, way), (n, Way::Bridge), UNDISTURBED);
            writeln!(
                text,
                "| {} | {n} | {send} | {} | {receive} | {} | {gro} | {} | {} | {} | {} | {calm} | {} | {} |",
                way.as_str(),
                theirs(0),
                theirs(1),
                of(P50),
                of(MAX),
                short(before),
                theirs(2),
                short(calmer),
                aside(pods, (Task::Trips, n, way))
            )?;
        }
    }
    writeln!(text)
}

fn refused(text: &mut String, pods: &Pods) -> std::fmt::Result {
    writeln!(
        text,
        "### Round trips of a pod while others are sent what the policy refuses\n\n\
         Not in the paper: at the same time outside sends {REFUSED} datagrams a second to a port of another pod that \
         the policy allows nobody. *Ideal* has no policy: they reach the guest, where nobody listens.\n\n\
         | {TRIPS} |\n|---|{}",
        "---|".repeat(COLUMNS)
    )?;
    for way in Way::ALL {
        writeln!(text, "| {} {}|", way.as_str(), parts(pods, Task::Refused, way))?;
    }
    who(text, pods, Task::Refused)
}

fn costs(text: &mut String, pods: &Pods) -> std::fmt::Result {
    writeln!(
        text,
        "### Where the time goes\n\n\
         For each datagram (for each round trip) of one pod: CPU time of QEMU with the guest in it and of the daemon, \
         and notifications either way. Of *receive* all rates that were tried count, those with loss, too.\n\n\
         | | | QEMU, µs | daemon, µs | kicks | interrupts |\n|---|---|---|---|---|---|"
    )?;
    for task in Task::ALL {
        for way in Way::ALL {
            let Some(outcome) = pods.of(task, 1, way) else { continue };
            let of = |value, digits| median(outcome.summary(value), digits, "");
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} |",
                outcome.cell.task(),
                way.as_str(),
                of(GUEST, 1),
                of(DAEMON, 1),
                of(KICKS, 2),
                of(INTERRUPTS, 2)
            )?;
        }
    }
    writeln!(text)
}

/// A ratio, and over which it spreads.
fn times(ratio: Option<Summary>) -> String {
    let Some(Summary { median, min, max, n }) = ratio else { return "-".to_owned() };
    if n == 1 { format!("**{median:.2}**") } else { format!("**{median:.2}** ({min:.2}-{max:.2})") }
}

fn short(ratio: Option<Summary>) -> String {
    median(ratio, 2, "")
}
