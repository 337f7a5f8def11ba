//! Interrupts of a Linux guest that receives, with each way to moderate them: from another guest,
//! and from the host, which sends as fast as the guest takes it.

use std::time::Instant;

use e2e::netns::Netns;
use e2e::suite::{Case, Suite, case};
use e2e::traffic::{Host, Place, iperf, must_ping};
use e2e::{Context, Result, ensure};

use super::{Lab, Link, ip};

/// The settings, by link.
const SETTINGS: [(&str, Link); 3] = [
    ("off", Link { port: "--moderation off", props: ["", ""], queues: 1 }),
    ("adaptive", Link { port: "--moderation adaptive", props: ["", ""], queues: 1 }),
    ("fixed", Link { port: "--moderation 64,10000", props: ["", ""], queues: 1 }),
];
/// Frames and milliseconds of the last one.
const FIXED: (u64, u64) = (64, 10);
/// How often each is measured, in turns, if [`ROUNDS_VARIABLE`] does not say.
const ROUNDS: usize = 1;
const ROUNDS_VARIABLE: &str = "E2E_MODERATION_ROUNDS";
/// Seconds of a stream.
const SECONDS: u32 = 2;

/// What sends.
#[derive(Clone, Copy)]
enum From {
    Guest,
    Host,
}

/// The guests, and the host's interface `t{i}` on each network, which is 10.0.i.3.
struct Both {
    lab: Lab,
    host: Place,
}

/// What a stream cost the receiving guest.
struct Seen {
    frames: u64,
    interrupts: u64,
    put_off: u64,
    /// Interrupts as the guest counted them.
    taken: u64,
    mbits: f64,
    milliseconds: u64,
}

impl Seen {
    fn frames_an_interrupt(&self) -> f64 {
        self.frames as f64 / self.interrupts.max(1) as f64
    }
}

/// What happens to each setting, in turns: all rounds' results, by setting. Each round has another
/// order, so that no setting always follows the same one.
fn in_turns<R>(mut one: impl FnMut(usize) -> Result<R>) -> Result<[Vec<R>; SETTINGS.len()]> {
    let rounds = match std::env::var(ROUNDS_VARIABLE) {
        Ok(number) => number.parse().ok().context(|| format!("{ROUNDS_VARIABLE}={number}"))?,
        Err(_) => ROUNDS,
    };
    ensure!(rounds > 0, "{ROUNDS_VARIABLE}={rounds}");
    let mut all = SETTINGS.map(|_| Vec::new());
    for round in 0..rounds {
        let mut order: [usize; SETTINGS.len()] = std::array::from_fn(|i| i);
        order.rotate_left(round % SETTINGS.len());
        if round / SETTINGS.len() % 2 == 1 {
            order.reverse();
        }
        for i in order {
            all[i].push(one(i)?);
        }
    }
    Ok(all)
}

/// The median, and between what all are if there are several. There is at least one.
fn spread(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    let median = f64::midpoint(values[last / 2], values[last.div_ceil(2)]);
    match last {
        0 => format!("{median:.digits$}"),
        _ => format!("{median:.digits$} ({:.digits$} to {:.digits$})", values[0], values[last]),
    }
}

/// A line for each setting.
fn lines<R>(all: &[Vec<R>], line: impl Fn(&[R]) -> String) -> String {
    let named = SETTINGS.iter().zip(all);
    named.map(|((name, _), seen)| format!("\n    {name:8}  {}", line(seen))).collect()
}

fn boot() -> Result<Both> {
    let host = Place::of(Netns::new()?)?;
    let lab = Lab::boot(&SETTINGS.map(|(_, link)| link), &|hayate| {
        for i in 0..SETTINGS.len() {
            hayate.tap(&format!("t{i}"), &format!("n{i}"), host.netns.name(), "")?;
            host.netns.ip(&format!("address add 10.0.{i}.3/24 dev t{i}"))?;
        }
        Ok([Vec::new(), Vec::new()])
    })?;
    Ok(Both { lab, host })
}

/// Interrupts of device `i`'s RX queue that the guest has taken.
fn taken(guest: &mut dyn Host, i: usize) -> Result<u64> {
    let text = guest.sh(&format!(
        "v=$(basename $(readlink /sys/class/net/eth{i}/device)); grep $v-input /proc/interrupts"
    ))?;
    let count = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    count.context(|| format!("no count of interrupts in {text}"))
}

/// Frames to the guest, interrupts and interrupts put off.
fn counted(lab: &Lab, i: usize) -> Result<[u64; 3]> {
    let port = lab.hayate.port(&format!("b{i}"))?;
    let rx = port.queues.iter().find(|queue| queue.dir == "rx");
    let rx = rx.context(|| format!("b{i} has no RX queue"))?;
    Ok([rx.frames, rx.interrupts, rx.deferred])
}

fn stream(both: &mut Both, from: From, i: usize, options: &str) -> Result<Seen> {
    let Both { lab, host } = both;
    let start = Instant::now();
    let before = (counted(lab, i)?, taken(&mut lab.b, i)?);
    let rate = match from {
        From::Guest => iperf(&mut lab.a, &mut lab.b, &ip(i, 2), SECONDS, options)?,
        From::Host => iperf(host, &mut lab.b, &ip(i, 2), SECONDS, options)?,
    };
    let after = (counted(lab, i)?, taken(&mut lab.b, i)?);
    let milliseconds = start.elapsed().as_millis() as u64;
    let [frames, interrupts, put_off] = [0, 1, 2].map(|n| after.0[n] - before.0[n]);
    let (taken, mbits) = (after.1 - before.1, rate.received / 1e6);
    Ok(Seen { frames, interrupts, put_off, taken, mbits, milliseconds })
}

/// The stream with each setting: what was measured, and what must hold of it.
fn compare(both: &mut Both, from: From, options: &str) -> Result<String> {
    let all = in_turns(|i| {
        let setting = SETTINGS[i].0;
        let seen = stream(both, from, i, options)?;
        let Seen { frames, interrupts, put_off, milliseconds, .. } = seen;
        ensure!(frames > 0 && interrupts > 0, "{setting}: {frames} frames, {interrupts}");
        match setting {
            "off" => ensure!(put_off == 0, "{put_off} interrupts were put off"),
            // A frame of 64 KiB fills most of a quarter of the ring.
            "fixed" if options.contains("-l 64") => {
                let most = frames / FIXED.0 + milliseconds / FIXED.1 + 2;
                ensure!(interrupts <= most, "{interrupts} interrupts, at most {most}");
            }
            _ => {}
        }
        Ok(seen)
    })?;
    both.lab.hayate.conserved("n0")?;
    Ok(lines(&all, |seen| {
        let of = |value: &dyn Fn(&Seen) -> f64| spread(seen.iter().map(value), 0);
        format!(
            "{} Mbit/s, {} frames, {} interrupts ({} taken, {} put off): {} frames for one",
            of(&|seen| seen.mbits),
            of(&|seen| seen.frames as f64),
            of(&|seen| seen.interrupts as f64),
            of(&|seen| seen.taken as f64),
            of(&|seen| seen.put_off as f64),
            of(&Seen::frames_an_interrupt),
        )
    }))
}

/// A single request at a time: every frame is the first after silence, or a ping-pong.
fn ping(both: &mut Both) -> Result<String> {
    let all = in_turns(|i| {
        let apart = must_ping(&mut both.host, &ip(i, 2), 20, "")?;
        let flood = must_ping(&mut both.host, &ip(i, 2), 1000, "-f -i 0")?;
        Ok([apart, flood].map(|seen| [seen.rtt_ms[0], seen.rtt_ms[1]]))
    })?;
    let told = lines(&all, |seen| {
        let of = |way: usize, n: usize| spread(seen.iter().map(|seen| seen[way][n]), 3);
        format!("{} / {};  {} / {}", of(0, 0), of(0, 1), of(1, 0), of(1, 1))
    });
    Ok(format!("least / average ms, 0.1 s apart;  one after the other{told}"))
}

/// The guest cannot ask for moderation: QEMU has no way to.
fn not_from_the_guest(both: &mut Both) -> Result<String> {
    let (status, text) =
        both.lab.b.try_sh("ethtool -C eth1 rx-usecs 50 rx-frames 32", e2e::guest::COMMAND_LIMIT)?;
    ensure!(status != 0, "the guest was offered notification coalescing: {text}");
    Ok(text.trim().replace('\n', " "))
}

pub(crate) fn group(suite: &mut Suite) {
    let cases: Vec<Case<Both>> = vec![
        case("ping", ping),
        case("guest_to_guest::tcp", |b: &mut Both| compare(b, From::Guest, "")),
        case("guest_to_guest::udp", |b: &mut Both| compare(b, From::Guest, "-u -b 0 -l 64")),
        case("host_to_guest::tcp", |b: &mut Both| compare(b, From::Host, "")),
        case("host_to_guest::tcp_frames", |b: &mut Both| compare(b, From::Host, "-M 500")),
        case("host_to_guest::udp_slow", |b: &mut Both| compare(b, From::Host, "-u -b 5M -l 64")),
        case("host_to_guest::udp", |b: &mut Both| compare(b, From::Host, "-u -b 0 -l 64")),
        case("not_from_the_guest", not_from_the_guest),
    ];
    suite.group("moderation", boot, cases, |both| {
        let Both { lab: Lab { a, b, hayate }, host } = both;
        drop((a, b));
        hayate.stop()?;
        drop(host);
        Ok("no panic".into())
    });
}
