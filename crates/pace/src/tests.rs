use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// What things cost a worker, in nanoseconds: about what they do on a virtual machine.
const PASS: u64 = 60;
const FRAME: u64 = 50;
const NAP_CPU: u64 = 3_000;
const NAP_LATE: u64 = 20_000;
const WAKE_CPU: u64 = 4_000;
const WAKE_LATE: u64 = 15_000;
const BURST: usize = 96;

/// Where frames come from.
enum Source {
    /// At these times.
    Open(Box<dyn Iterator<Item = u64>>),
    /// The next one so long after the one before was forwarded, in turns.
    Closed([u64; 2]),
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    /// CPU time of the worker, in percent.
    cpu: f64,
    /// From arrival to forwarding, in nanoseconds.
    delays: Vec<u64>,
    /// Most frames that waited at once.
    backlog: usize,
    naps: u64,
    sleeps: u64,
}

impl Outcome {
    fn delay(&self, percent: usize) -> u64 {
        let mut delays = self.delays.clone();
        delays.sort_unstable();
        delays[(delays.len() - 1) * percent / 100]
    }
}

/// Runs a worker for `length` nanoseconds of a made-up clock; judges the second half.
fn run(profile: Profile, source: Source, length: u64) -> Outcome {
    run_at(PASS, profile, source, length)
}

/// The same, where a pass with frames costs so many nanoseconds whatever it finds.
fn run_at(cost: u64, profile: Profile, source: Source, length: u64) -> Outcome {
    let mut pace = Pace::new(profile, 0);
    let mut due = VecDeque::new();
    let (mut open, mut closed) = match source {
        Source::Open(times) => (Some(times.peekable()), [0; 2].into_iter().cycle()),
        Source::Closed(after) => {
            due.push_back(0);
            (None, after.into_iter().cycle())
        }
    };
    let (mut now, mut idle_cpu) = (0, 0);
    let mut outcome = Outcome { cpu: 0.0, delays: vec![], backlog: 0, naps: 0, sleeps: 0 };
    let mut half = None;
    while now < length {
        if half.is_none() && now >= length / 2 {
            half = Some((now, idle_cpu));
            outcome = Outcome { delays: vec![], backlog: 0, naps: 0, sleeps: 0, ..outcome };
        }
        if let Some(open) = &mut open {
            while let Some(at) = open.next_if(|at| *at <= now) {
                due.push_back(at);
            }
        }
        let ready = due.iter().take_while(|at| **at <= now).count();
        outcome.backlog = outcome.backlog.max(ready);
        let taken = ready.min(BURST);
        if taken > 0 {
            now += cost + FRAME * taken as u64;
            for at in due.drain(..taken) {
                outcome.delays.push(now - at);
            }
            if open.is_none() {
                due.push_back(now + closed.next().unwrap());
            }
            pace.busy(taken);
            continue;
        }
        now += PASS;
        let next = || match &mut open {
            Some(open) => open.peek().copied(),
            None => due.front().copied(),
        };
        match pace.idle(now, None) {
            Idle::Poll => {}
            Idle::Nap(length) => {
                outcome.naps += 1;
                let slept = length.as_nanos() as u64 + NAP_LATE;
                idle_cpu += slept - NAP_CPU;
                now += slept;
                pace.woken(now);
            }
            Idle::Sleep => {
                outcome.sleeps += 1;
                let mut next = next;
                let woken = next().unwrap_or(length).max(now) + WAKE_LATE;
                idle_cpu += woken - now - WAKE_CPU;
                now = woken;
                pace.woken(now);
            }
        }
    }
    let (start, before) = half.unwrap_or_default();
    let wall = (now - start) as f64;
    outcome.cpu = 100.0 * (wall - (idle_cpu - before) as f64) / wall;
    outcome
}

fn steady(per_second: u64) -> Source {
    Source::Open(Box::new((1u64..).map(move |n| n * 1_000_000_000 / per_second)))
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn silence_costs_nothing() {
    for profile in [Profile::Latency, Profile::Balanced, Profile::Power] {
        let outcome = run(profile, Source::Open(Box::new((0..5000u64).map(|n| n * 1000))), SECOND);
        // Of the whole second, the traffic at its beginning included.
        assert!(outcome.cpu < 1.0, "{profile}: {}", outcome.cpu);
        assert!(outcome.sleeps > 0, "{profile}");
    }
}

#[test]
fn balanced_keeps_within_its_share() {
    for (rate, cpu) in [(100, 0.5), (10_000, 8.0), (100_000, 30.0), (1_000_000, 50.0)] {
        let outcome = run(Profile::Balanced, steady(rate), SECOND / 2);
        assert!(outcome.cpu < cpu, "{rate}/s: {}", outcome.cpu);
        assert!(outcome.backlog <= 128, "{rate}/s: {}", outcome.backlog);
        assert!(outcome.delay(99) < 140_000, "{rate}/s: {}", outcome.delay(99));
    }
}

/// On a slow processor a pass for one frame takes half of the time to the next one, and a hundred frames together
/// less than a tenth: whoever polls is too busy to find that out by himself.
#[test]
fn polling_does_not_keep_itself_busy() {
    for profile in [Profile::Balanced, Profile::Power] {
        // It begins with as many frames as make it poll.
        let flood = (0..200_000u64).map(|n| n * 100);
        let then = (0..).map(|n| 20_000_000 + n * 2_000);
        let source = Source::Open(Box::new(flood.chain(then)));
        let outcome = run_at(900, profile, source, SECOND / 2);
        assert!(outcome.cpu < 25.0, "{profile}: {}", outcome.cpu);
        assert!(outcome.backlog <= 128, "{profile}: {}", outcome.backlog);
    }
}

/// Where naps save nothing, they are hardly tried.
#[test]
fn a_busy_worker_polls() {
    for rate in [6_000_000, 8_000_000] {
        let outcome = run_at(PASS, Profile::Balanced, steady(rate), SECOND);
        let polls = run_at(PASS, Profile::Always, steady(rate), SECOND);
        assert!(outcome.naps < 100, "{rate}/s: {} naps", outcome.naps);
        assert!(outcome.delay(95) < polls.delay(95) + 50, "{rate}/s: {}", outcome.delay(95));
    }
}

#[test]
fn no_rate_overflows_a_ring() {
    for profile in Profile::ALL {
        for rate in [2_000_000, 4_000_000, 8_000_000, 12_000_000, 16_000_000] {
            let outcome = run(profile, steady(rate), SECOND / 20);
            assert!(outcome.backlog < 200, "{profile}, {rate}/s: {}", outcome.backlog);
        }
    }
}

#[test]
fn a_rare_frame_wakes_at_once() {
    let outcome = run(Profile::Balanced, steady(10_000), SECOND / 2);
    assert!(outcome.delay(50) < WAKE_LATE + 1_000, "{}", outcome.delay(50));
}

#[test]
fn latency_is_always_there() {
    for rate in [10_000, 100_000, 1_000_000] {
        let outcome = run(Profile::Latency, steady(rate), SECOND / 10);
        assert!(outcome.delay(99) < 500, "{rate}/s: {}", outcome.delay(99));
        assert_eq!(outcome.naps + outcome.sleeps, 0);
    }
}

#[test]
fn always_means_always() {
    let outcome = run(Profile::Always, steady(100), SECOND / 10);
    assert_eq!(outcome.naps + outcome.sleeps, 0);
}

/// Frames that wait for an answer do not gather: naps would only make them slow.
#[test]
fn a_ping_pong_is_not_napped_through() {
    let outcome = run(Profile::Balanced, Source::Closed([1_000; 2]), SECOND);
    assert!(outcome.delay(50) < 500, "{}", outcome.delay(50));
    assert!(outcome.delay(95) < 500, "{}", outcome.delay(95));
    // Slower ones are woken for, not napped for.
    let outcome = run(Profile::Balanced, Source::Closed([30_000; 2]), SECOND);
    assert!(outcome.delay(50) < WAKE_LATE + 1_000, "{}", outcome.delay(50));
}

/// A request and its answer: the answer comes soon, the next request does not.
#[test]
fn an_answer_is_waited_for() {
    // Soon enough, and the next request is waited for as well.
    for pause in [6_000, 20_000] {
        let outcome = run(Profile::Balanced, Source::Closed([500, pause]), SECOND);
        assert!(outcome.delay(95) < 500, "{pause}: {}", outcome.delay(95));
    }
    for pause in [40_000, 100_000] {
        let outcome = run(Profile::Balanced, Source::Closed([1_000, pause]), SECOND);
        assert!(outcome.delay(45) < 500, "{pause}: {}", outcome.delay(45));
        assert!(outcome.delay(99) < WAKE_LATE + 1_000, "{pause}: {}", outcome.delay(99));
    }
}

/// Requests to disks come one by one and are awaited, however many they are.
#[test]
fn requests_are_not_napped_through() {
    let mut pace = Pace::new(Profile::Balanced, 0);
    for at in (0..SECOND).step_by(10_000) {
        pace.busy(0);
        let idle = (1..10).map(|us| pace.idle(at + us * 1_000, None));
        assert!(!idle.into_iter().any(|idle| matches!(idle, Idle::Nap(_))), "at {at} ns");
    }
}

/// A nap that a request ends early says nothing about frames.
#[test]
fn a_request_that_ends_a_nap_does_not_end_naps() {
    let mut pace = Pace::new(Profile::Balanced, 0);
    let mut naps = 0;
    for at in (0..SECOND).step_by(100_000) {
        // Ten frames in 100 us, and a request in the nap after them.
        pace.busy(10);
        let (mut now, end) = (at + 1_000, at + 100_000);
        while now < end {
            match pace.idle(now, None) {
                Idle::Poll => now += 1_000,
                Idle::Sleep => now = end,
                Idle::Nap(length) if now < at + 20_000 => {
                    naps += 1;
                    assert!(length.as_nanos() > 20_000);
                    now = at + 20_000;
                    pace.woken(now);
                    pace.busy(0);
                }
                Idle::Nap(length) => {
                    now = end.min(now + length.as_nanos() as u64);
                    pace.woken(now);
                }
            }
        }
    }
    assert!(naps > 9_900, "{naps} naps");
}

/// Few frames, each much work, as segments of 64 KiB by way of the kernel: worth polling for.
#[test]
fn heavy_frames_are_polled_for() {
    let mut pace = Pace::new(Profile::Balanced, 0);
    let mut polled = true;
    for n in 0..1000 {
        // 20 us of work, 30 us of waiting.
        pace.busy(1);
        let since = n * 50_000 + 20_000;
        for us in 0..30 {
            let idle = pace.idle(since + us * 1_000, None);
            polled &= n < 500 || idle == Idle::Poll;
        }
    }
    assert!(polled, "it rested between two frames");
}

#[test]
fn time_with_work_is_counted() {
    let mut pace = Pace::new(Profile::Balanced, 1_000);
    pace.busy(1);
    // 2 us of work, 3 us of looking, 5 us of work.
    let _ = pace.idle(3_000, None);
    assert_eq!(pace.busy_ns(4_000), 2_000);
    let _ = pace.idle(6_000, None);
    pace.busy(1);
    assert_eq!(pace.busy_ns(10_000), 6_000, "before it rests");
    let _ = pace.idle(11_000, None);
    assert_eq!(pace.busy_ns(11_000), 7_000);
    // A sleep is none.
    pace.woken(5_000_000);
    pace.busy(1);
    let _ = pace.idle(5_001_000, None);
    assert_eq!(pace.busy_ns(5_001_000), 8_000);
}

#[test]
fn power_saves_more() {
    // Above that both gather what a ring can bear.
    for rate in [20_000, 100_000, 300_000] {
        let power = run(Profile::Power, steady(rate), SECOND / 2);
        let balanced = run(Profile::Balanced, steady(rate), SECOND / 2);
        assert!(power.cpu < balanced.cpu * 0.9, "{rate}/s: {} {}", power.cpu, balanced.cpu);
    }
}

#[test]
fn profiles_have_names() {
    for profile in Profile::ALL {
        assert_eq!(profile.to_string().parse(), Ok(profile));
    }
    assert_eq!("fast".parse::<Profile>(), Err(UnknownProfile));
}

proptest! {
    /// Whatever the gaps: naps are within their bounds, time is never taken for negative, and when
    /// the frames end the worker sleeps soon.
    #[test]
    fn it_ends_asleep(
        gaps in prop::collection::vec((0u64..5_000_000, 1usize..300), 0..400),
        kind in 1usize..4,
    ) {
        let profile = Profile::ALL[kind];
        let mut pace = Pace::new(profile, 0);
        let mut now = 0u64;
        for (gap, frames) in gaps {
            let until = now + gap;
            while now < until {
                now += match pace.idle(now, None) {
                    Idle::Poll => 1_000,
                    Idle::Nap(length) => {
                        prop_assert!(length.as_nanos() as u64 <= profile.limits().nap);
                        prop_assert!(length.as_nanos() as u64 >= NAP_MIN);
                        length.as_nanos() as u64
                    }
                    Idle::Sleep => until - now,
                };
                pace.woken(now);
            }
            pace.busy(frames);
        }
        let end = now;
        while pace.idle(now, None) != Idle::Sleep {
            now += 1_000;
            prop_assert!(now - end < 2_000_000, "awake for two milliseconds");
        }
    }
}

/// A device that more waits for than it takes is polled for, if it is done soon; and that is no work.
#[test]
fn a_device_that_is_behind_is_polled_for() {
    for (profile, longest) in [
        (Profile::Always, u64::MAX),
        (Profile::Latency, 4_000_000),
        (Profile::Balanced, 4_000_000),
        (Profile::Power, 0),
    ] {
        let polls = |pace: &mut Pace, from: u64, awaited| {
            let idle = (1..3_000).map(|us| pace.idle(from + us * 1_000, awaited));
            idle.filter(|idle| *idle != Idle::Poll).count() == 0
        };
        for length in [1, longest, longest.saturating_add(1)] {
            let mut pace = Pace::new(profile, 0);
            for lot in 0..100 {
                let at = lot * 3_000_000;
                pace.busy(0);
                assert_eq!(
                    polls(&mut pace, at, Some(length)),
                    length <= longest,
                    "{profile}: {length}"
                );
            }
            // What is left are two microseconds between one idle period and the next.
            assert!(pace.busy_ns(300_000_000) <= 100 * 2_000, "{profile}: {length}");
            assert_eq!(
                polls(&mut pace, 300_000_000, None),
                profile == Profile::Always,
                "{profile}"
            );
        }
    }
}
