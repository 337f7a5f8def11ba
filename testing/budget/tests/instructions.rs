//! Counts what the release build executes for a frame: no more than `instructions.toml` allows,
//! and no lock.
//!
//! `UPDATE_BUDGET=1` writes the file anew; `make budget` builds and does that.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::io::Write;
use std::sync::LazyLock;
use std::thread;

use budget::budget::{Budget, Entry};
use budget::cell::{CELLS, Cell};
use budget::switch::{Count, Switch};

/// Most locked instructions (atomic read-modify-writes) in a pass that takes up to 96 frames. It
/// needs six.
const LOCKED_MAX: f64 = 16.0;

/// Every cell with what was counted: those of either ring by a daemon of its own, at the same time.
static COUNTS: LazyLock<Vec<(&str, Count)>> = LazyLock::new(|| {
    assert!(is_x86_feature_detected!("avx2"), "the budget is that of a processor with AVX2");
    let committed = Budget::committed().unwrap();
    thread::scope(|scope| {
        let daemons = [false, true].map(|packed| {
            let committed = &committed;
            scope.spawn(move || counts(packed, committed))
        });
        daemons.into_iter().flat_map(|counts| counts.join().expect("all are counted")).collect()
    })
});

/// The cells of a ring.
fn counts(packed: bool, committed: &Budget) -> Vec<(&'static str, Count)> {
    let switch = Switch::start(packed.into()).expect("valgrind, which `make setup` installs");
    let count = |cell: &'static Cell| {
        let mut least: Option<Count> = None;
        for _ in 0..cell.times() {
            let count = switch.count(cell).unwrap();
            let enough = !update() && committed.allows(cell.name, &of_a_frame(&count));
            let taken = |count: &Count| count.bursts.total().instructions;
            if least.as_ref().is_none_or(|least| taken(&count) < taken(least)) {
                least = Some(count);
            }
            if enough {
                break;
            }
        }
        (cell.name, least.expect("each is counted"))
    };
    CELLS.iter().filter(|cell| cell.packed == packed).map(count).collect()
}

/// Whether the budget is made anew.
fn update() -> bool {
    std::env::var_os("UPDATE_BUDGET").is_some()
}

fn of_a_frame(count: &Count) -> Entry {
    Entry::of(&count.bursts, count.frames)
}

#[test]
fn no_frame_takes_more_instructions_than_its_budget() {
    let frames = COUNTS.iter().map(|(name, count)| (name.to_string(), of_a_frame(count)));
    let empty = COUNTS
        .iter()
        .filter(|(name, _)| name.ends_with("-64"))
        .map(|(name, count)| (name.replace("-64", "-empty"), Entry::of(&count.empty, 1)));
    let counted = Budget(frames.chain(empty).collect());
    for (name, entry) in &counted.0 {
        println!("{name}: {:.1} instructions", entry.instructions);
    }
    if update() {
        counted.commit().unwrap();
    }
    let verdict = Budget::committed().unwrap().judge(&counted);
    // Also when the test passes, of which `eprint!` shows nothing.
    std::io::stderr().write_all(verdict.below.as_bytes()).unwrap();
    assert!(verdict.over.is_empty(), "\n{}", verdict.over);
}

#[test]
fn a_burst_takes_a_lock_and_a_frame_takes_none() {
    // To learn an address takes a lock of its own, and to note that it is still there an exchange:
    // with many sources frames are not only forwarded.
    let one_source =
        |(name, _): &&(&str, Count)| !name.ends_with("-flows") && !name.ends_with("-machines");
    for (name, count) in COUNTS.iter().filter(one_source) {
        let locked = count.bursts.total().locked as f64 / count.bursts.passes as f64;
        println!("{name}: {locked:.1} locked instructions a burst");
        assert!(locked >= 2.0, "{name}: a lock is taken and given back, which was not counted");
        assert!(locked <= LOCKED_MAX, "{name}: {locked:.1} locked instructions a burst");
    }
}
