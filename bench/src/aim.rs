//! What a turn is to find: windows of the regime in which the table can be finished soonest.
//!
//! On a host that is shared, regimes come and go, and windows are compared only with others of their
//! own. Turns that take whatever comes leave each system with some of every regime, and of none
//! enough. So all cells of a table aim at one regime: that in which the least is missing, for how
//! often it is seen. It may change while the run goes on.

use crate::place::Regime;
use crate::report::{ENOUGH, Outcome, Sample};
use crate::sut::System;

/// How much more a window is asked for in which nobody else uses a core.
const ALONE: f64 = 2.0;

/// Windows that a turn is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Of this regime; none: of any in which each CPU has its core alone.
    pub regime: Option<Regime>,
    /// How many.
    pub windows: usize,
}

impl Aim {
    /// Whether a window is one of those.
    pub fn is_at<W: Sample>(&self, window: &W) -> bool {
        match self.regime {
            Some(regime) => window.counts() && window.regime() == Some(regime),
            None => window.is_wanted(),
        }
    }
}

/// How many windows of each system a run of so many rounds, and windows in each of them, can have
/// been meant to find.
#[must_use]
pub fn goal(rounds: u32, windows: u32) -> usize {
    (rounds as usize * windows as usize).min(ENOUGH)
}

/// A table so far: each of its cells with the systems that have a turn in it, and what was found.
pub struct Table<'a> {
    /// Outcomes of a cell, and the systems that take part in it.
    pub cells: Vec<(&'a [Outcome], Vec<System>)>,
    /// Windows that each system is to have.
    pub goal: usize,
}

impl Table<'_> {
    /// The regime to aim at; none before there is any window.
    #[must_use]
    pub fn regime(&self) -> Option<Regime> {
        let windows = |regime| {
            let outcomes = self.cells.iter().flat_map(|(outcomes, _)| *outcomes);
            outcomes.map(|outcome| outcome.counting(regime).count()).sum::<usize>()
        };
        let cost = |&regime: &Regime| {
            let weight = if regime.is_crowded() { ALONE } else { 1.0 };
            let missing: usize = self.cells.iter().map(|cell| self.missing_of(cell, regime)).sum();
            weight * missing as f64 / windows(regime) as f64
        };
        let seen = Regime::all().filter(|&regime| windows(regime) > 0);
        // Of equals the last: the nearer and less crowded.
        seen.min_by(|one, other| cost(one).total_cmp(&cost(other)).then(other.cmp(one)))
    }

    fn missing_of(&self, (outcomes, systems): &(&[Outcome], Vec<System>), regime: Regime) -> usize {
        systems.iter().map(|&system| missing(outcomes, system, regime, self.goal)).sum()
    }
}

/// How many windows of a regime a system lacks in a cell. None if it cannot have any.
#[must_use]
pub fn missing(outcomes: &[Outcome], system: System, regime: Regime, goal: usize) -> usize {
    match outcomes.iter().find(|outcome| outcome.system == system) {
        Some(outcome) if outcome.windows.is_empty() && outcome.problem.is_some() => 0,
        Some(outcome) => goal.saturating_sub(outcome.counting(regime).count()),
        None => goal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{Crowded, Distance};
    use crate::report::tests::{outcome, window};

    const CROWDED: Regime = Regime { crowded: Crowded::Both, ..Regime::NEAR };
    const MIDDLE: Regime = Regime { distance: Distance::Middle, ..Regime::NEAR };

    fn of(system: System, windows: &[(usize, Regime)]) -> Outcome {
        let windows = windows.iter().flat_map(|&(n, regime)| vec![window(0, regime, 1.0); n]);
        outcome(system, windows.collect())
    }

    fn aim(outcomes: &[Outcome]) -> Option<Regime> {
        let cells = vec![(outcomes, vec![System::Hayate, System::Ovs])];
        Table { cells, goal: 12 }.regime()
    }

    #[test]
    fn others_follow_the_first() {
        assert_eq!(aim(&[]), None);
        assert_eq!(aim(&[of(System::Hayate, &[(5, MIDDLE), (1, Regime::NEAR)])]), Some(MIDDLE));
    }

    #[test]
    fn what_is_seen_more_often_is_aimed_at() {
        let some = |n| [of(System::Hayate, &[(10, CROWDED), (n, Regime::NEAR)])];
        assert_eq!(aim(&some(1)), Some(CROWDED));
        // With cores of one's own, somewhat less often will do.
        assert_eq!(aim(&some(7)), Some(Regime::NEAR));
    }

    #[test]
    fn what_is_found_is_kept() {
        let own = of(System::Hayate, &[(12, CROWDED), (20, Regime::NEAR)]);
        let its = of(System::Ovs, &[(12, CROWDED), (11, Regime::NEAR)]);
        assert_eq!(aim(&[own, its.clone()]), Some(CROWDED));
        assert_eq!(missing(std::slice::from_ref(&its), System::Ovs, Regime::NEAR, 12), 1);
        assert_eq!(missing(&[its], System::Hayate, Regime::NEAR, 12), 12);
    }

    #[test]
    fn who_cannot_take_part_lacks_nothing() {
        let its = Outcome { problem: Some("it has no such ports".into()), ..of(System::Ovs, &[]) };
        assert_eq!(missing(&[its], System::Ovs, Regime::NEAR, 12), 0);
    }

    #[test]
    fn a_run_is_asked_for_no_more_than_it_was_meant_to_find() {
        assert_eq!((goal(1, 5), goal(3, 5)), (5, ENOUGH));
    }

    #[test]
    fn an_aim_is_of_windows_that_count() {
        let moved = || crate::window::Window { quiet: false, ..window(0, CROWDED, 1.0) };
        let crowded = Aim { regime: Some(CROWDED), windows: 1 };
        let any = Aim { regime: None, windows: 1 };
        assert!(crowded.is_at(&window(0, CROWDED, 1.0)) && !crowded.is_at(&moved()));
        assert!(any.is_at(&window(0, MIDDLE, 1.0)) && !any.is_at(&window(0, CROWDED, 1.0)));
    }
}
