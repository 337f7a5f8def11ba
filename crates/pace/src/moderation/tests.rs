use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// What things take, in nanoseconds: about what they do on a virtual machine.
const STEP: u64 = 100;
const WAKE: u64 = 5_000;
const FRAME: u64 = 200;
const SECOND: u64 = 1_000_000_000;

/// Where frames come from.
enum Source {
    /// At these times.
    Open(Box<dyn Iterator<Item = u64>>),
    /// So many at a time; the next ones so long after the guest has seen the last of these.
    Closed { window: usize, after: u64 },
}

/// What came of it.
#[derive(Debug, Default)]
struct Outcome {
    frames: u64,
    interrupts: u64,
    /// Interrupts put off.
    waits: u64,
    /// Longest time from delivery to the decision, and all of them together, in nanoseconds.
    longest: u64,
    total: u64,
}

/// A guest that polls from an interrupt until there is no more, like Linux with NAPI.
#[derive(Clone, Copy)]
enum Guest {
    Asleep,
    Waking(u64),
    Busy(u64),
}

/// Runs a queue of 256 entries for `length` nanoseconds of a made-up clock, served by a worker that
/// looks every [`STEP`].
fn run(setting: Moderation, mut source: Source, length: u64) -> Outcome {
    let mut moderator = Moderator::new(setting, 256);
    let mut outcome = Outcome::default();
    let mut due = VecDeque::new();
    if let Source::Closed { window, .. } = source {
        due.extend(std::iter::repeat_n(0, window));
    }
    // Delivered at these times and not decided about; delivered and not seen by the guest.
    let (mut undecided, mut unseen) = (VecDeque::new(), 0u64);
    let (mut guest, mut seen, mut came) = (Guest::Asleep, 0u64, 0);
    let mut waiting: Option<Wait> = None;
    let mut next = None;
    for now in (0..length).step_by(STEP as usize) {
        if let Source::Open(times) = &mut source {
            while *next.get_or_insert_with(|| times.next().unwrap_or(u64::MAX)) <= now {
                due.extend(next.take());
            }
        }
        while due.front().is_some_and(|at| *at <= now) {
            due.pop_front();
            undecided.push_back(now);
            (unseen, outcome.frames, came) = (unseen + 1, outcome.frames + 1, now);
        }
        guest = match guest {
            Guest::Waking(at) if at <= now => Guest::Busy(now + FRAME),
            Guest::Busy(at) if at <= now && unseen > 0 => {
                unseen -= 1;
                seen += 1;
                if let Source::Closed { window, after } = source
                    && seen.is_multiple_of(window as u64)
                {
                    due.extend(std::iter::repeat_n(now + after, window));
                }
                Guest::Busy(now + FRAME)
            }
            Guest::Busy(at) if at <= now => Guest::Asleep,
            guest => guest,
        };
        let armed = matches!(guest, Guest::Asleep) && unseen > 0;
        let mut decide = !armed && waiting.is_none();
        if let Some(wait) = waiting {
            let quiet = wait.patience.is_some_and(|patience| now >= came + patience);
            let end = if outcome.frames >= wait.frames {
                Some(End::Gathered)
            } else if now >= wait.until {
                Some(End::Due)
            } else {
                quiet.then_some(End::Quiet)
            };
            if let Some(end) = end {
                moderator.ended(end, outcome.frames, now);
                decide = true;
            }
        } else if armed {
            waiting = moderator.ask(outcome.frames, undecided.len() as u64, now);
            outcome.waits += u64::from(waiting.is_some());
            decide = waiting.is_none();
        }
        if decide {
            waiting = None;
            if armed {
                moderator.interrupted(now);
                outcome.interrupts += 1;
                guest = Guest::Waking(now + WAKE);
            }
            for at in undecided.drain(..) {
                outcome.longest = outcome.longest.max(now - at);
                outcome.total += now - at;
            }
        }
    }
    outcome
}

fn steady(per_second: u64) -> Source {
    Source::Open(Box::new((1u64..).map(move |n| n * SECOND / per_second)))
}

fn fixed(frames: u16, micros: u64) -> Moderation {
    Moderation::Fixed { frames, time: Duration::from_micros(micros) }
}

#[test]
fn under_a_steady_stream_there_are_few_interrupts() {
    for per_second in [400_000, 1_000_000, 2_500_000] {
        let off = run(Moderation::Off, steady(per_second), SECOND);
        let on = run(Moderation::Adaptive, steady(per_second), SECOND);
        assert!(off.interrupts * 32 > off.frames, "it does not matter here: {off:?}");
        assert!(on.interrupts * 32 <= on.frames, "{per_second}: {on:?}");
        assert!(on.longest <= TIME + STEP, "{on:?}");
    }
}

#[test]
fn a_thin_stream_is_not_delayed() {
    for per_second in [1, 1_000, 20_000, 70_000] {
        let on = run(Moderation::Adaptive, steady(per_second), SECOND);
        assert_eq!((on.waits, on.longest), (0, 0), "{per_second}");
    }
}

/// Frames that wait for an answer come as often as without moderation, but for what it takes to
/// find out, which is seldom.
#[test]
fn closed_loops_are_not_slowed_down() {
    for window in [1, 2, 4, 8, 10, 16, 32, 48] {
        for after in [1_000, 5_000, 20_000, 50_000, 200_000] {
            let source = || Source::Closed { window, after };
            let off = run(Moderation::Off, source(), SECOND);
            let on = run(Moderation::Adaptive, source(), SECOND);
            assert!(
                on.frames * 100 >= off.frames * 97,
                "window {window}, {after} ns: {} of {} frames, {on:?}",
                on.frames,
                off.frames,
            );
        }
    }
}

/// A ping-pong is put off once, and then not for as long as that is held against it.
#[test]
fn a_fast_ping_pong_is_tried_once_in_a_while() {
    let on = run(Moderation::Adaptive, Source::Closed { window: 1, after: 1_000 }, SECOND);
    let mut tries = 0;
    let (mut time, mut hold) = (0, HOLD.0);
    while time < SECOND {
        (time, hold) = (time + hold, (hold * 2).min(HOLD.1));
        tries += 1;
    }
    assert!(on.waits <= tries, "{on:?}, {tries} tries");
}

#[test]
fn the_first_frame_after_silence_is_not_delayed() {
    // A dense stream, silence, and one frame.
    let dense = (0..500_000u64).map(|n| n * 1_000);
    let late = SECOND / 2 + 300_000;
    for setting in [Moderation::Adaptive, fixed(64, 200)] {
        let with = |last: Option<u64>| {
            Source::Open(Box::new(dense.clone().chain(last).chain(std::iter::repeat(u64::MAX))))
        };
        let before = run(setting, with(None), SECOND);
        let after = run(setting, with(Some(late)), SECOND);
        assert_eq!(after.interrupts, before.interrupts + 1);
        assert_eq!((after.waits, after.total), (before.waits, before.total), "{setting:?}");
    }
}

#[test]
fn off_never_waits() {
    for source in [steady(1_000_000), Source::Closed { window: 32, after: 20_000 }] {
        let off = run(Moderation::Off, source, SECOND / 10);
        assert_eq!((off.waits, off.longest), (0, 0));
    }
}

#[test]
fn fixed_moderation_keeps_to_its_numbers() {
    // By time: fewer than the frames come in it.
    let on = run(fixed(1000, 500), steady(20_000), SECOND);
    assert!(on.interrupts.abs_diff(2_000) <= 20, "{on:?}");
    // By frames.
    let on = run(fixed(32, 10_000), steady(100_000), SECOND);
    assert!(on.interrupts.abs_diff(100_000 / 33) <= 100, "{on:?}");
    // Never more than a quarter of the ring.
    let on = run(fixed(8192, 10_000), steady(1_000_000), SECOND / 10);
    assert!(on.longest <= 64_000 + STEP, "{on:?}");
}

fn settings() -> impl Strategy<Value = Moderation> {
    prop_oneof![
        Just(Moderation::Off),
        Just(Moderation::Adaptive),
        (1u16..200, 1u64..2_000).prop_map(|(frames, micros)| fixed(frames, micros)),
    ]
}

proptest! {
    /// Whatever comes, no frame waits for a decision longer than the setting allows, and every
    /// frame is decided about.
    #[test]
    fn no_frame_is_forgotten(
        setting in settings(),
        gaps in prop::collection::vec(
            prop_oneof![0u64..2_000, 0u64..50_000, Just(1u64), 0u64..3_000_000],
            1..2_000,
        ),
    ) {
        let times: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
        let limit = match setting {
            Moderation::Off => 0,
            Moderation::Adaptive => TIME,
            Moderation::Fixed { time, .. } => time.as_nanos() as u64,
        };
        let length = times[times.len() - 1] + limit + 10 * STEP;
        let frames = times.len() as u64;
        let all = Source::Open(Box::new(times.into_iter().chain(std::iter::repeat(u64::MAX))));
        let outcome = run(setting, all, length);
        prop_assert_eq!(outcome.frames, frames);
        prop_assert!(outcome.longest <= limit + STEP, "{:?}", outcome);
    }

    /// A wait that is answered is in the future and within the limits, whatever came before.
    #[test]
    fn answers_are_within_bounds(
        setting in settings(),
        ring in 1u16..=32768,
        asked in prop::collection::vec((0u64..1_000, 0u64..5_000_000, 0u64..300, 0u8..6), 1..300),
    ) {
        let mut moderator = Moderator::new(setting, ring);
        let (mut frames, mut now) = (0, 0);
        let room = Moderator::room(ring);
        for (more, later, undecided, what) in asked {
            (frames, now) = (frames + more, now + later);
            match what {
                0 => moderator.interrupted(now),
                1 => moderator.ended(End::Due, frames, now),
                2 => moderator.ended(End::Quiet, frames, now),
                _ => {
                    if let Some(wait) = moderator.ask(frames, undecided, now) {
                        prop_assert!(wait.until > now);
                        prop_assert!(wait.until - now <= 2_000_000.max(TIME));
                        prop_assert!(wait.frames > frames);
                        prop_assert!(wait.frames - frames + undecided <= room);
                    }
                }
            }
        }
    }
}
