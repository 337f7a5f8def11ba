//! Rounds in which every way has its turn at each cell, right after one another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cell::{Cell, Way};
use super::lab::Lab;
use super::report::{Outcome, Pods, Sample, one_line};
use crate::options::Options;
use crate::run::{BenchError, Progress};

/// How often a turn is taken that others disturb.
const TRIES: u32 = 3;

/// What has been found so far of pods.
pub struct Run<'a> {
    options: &'a Options,
    interrupted: &'a AtomicBool,
    cells: Vec<Cell>,
    outcomes: BTreeMap<Cell, Vec<Outcome>>,
    /// Rules in the guest and at the host.
    rules: [usize; 2],
    /// What the guest is.
    about: Option<String>,
}

impl<'a> Run<'a> {
    /// Nothing yet.
    #[must_use]
    pub fn new(options: &'a Options, interrupted: &'a AtomicBool) -> Run<'a> {
        let (cells, outcomes) = (options.pod_cells(), BTreeMap::new());
        Run { options, interrupted, cells, outcomes, rules: [0; 2], about: None }
    }

    /// Turns in all.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.options.rounds as usize * self.cells.len() * Way::ALL.len()
    }

    /// What there is so far; none: no such cell was chosen.
    #[must_use]
    pub fn found(&self) -> Option<Pods> {
        if self.cells.is_empty() {
            return None;
        }
        let of = |cell: &Cell| self.outcomes.get(cell).into_iter().flatten().cloned();
        Some(Pods {
            guest: self.about.clone(),
            rules: self.rules,
            outcomes: self.cells.iter().flat_map(of).collect(),
        })
    }

    /// Rounds there are.
    pub(crate) fn rounds(&self) -> u32 {
        if self.cells.is_empty() { 0 } else { self.options.rounds }
    }

    /// A round; the guest is started in the first one, and kept in `lab`.
    ///
    /// # Errors
    /// It was interrupted.
    pub(crate) fn round(
        &mut self,
        lab: &mut Option<Result<Lab, String>>,
        round: u32,
        progress: &mut Progress,
    ) -> Result<(), BenchError> {
        for cell in self.cells.clone() {
            // Whoever is first has not always the same neighbour.
            let shift = round as usize % Way::ALL.len();
            for way in Way::ALL.into_iter().cycle().skip(shift).take(Way::ALL.len()) {
                if self.stopped() {
                    return Err(BenchError::Interrupted { out: self.options.out.clone() });
                }
                let mut taken = self.turn(lab, (&cell, way), round, progress);
                for _ in 1..TRIES {
                    if taken.as_ref().is_ok_and(Sample::counts) || self.stopped() {
                        break;
                    }
                    taken = self.turn(lab, (&cell, way), round, progress);
                }
                let found = match &taken {
                    Ok(sample) => one_line(sample),
                    Err(problem) => crate::sut::brief(problem),
                };
                let (task, label, way_name) = (cell.task(), cell.label(), way.as_str());
                progress.turn(&format!(
                    "round {}  {task:<13} {label:<7} {way_name:<18} {found}",
                    round + 1
                ));
                let outcomes = self.outcomes.entry(cell).or_default();
                Outcome::record(outcomes, cell, way, taken);
            }
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn turn(
        &mut self,
        lab: &mut Option<Result<Lab, String>>,
        (cell, way): (&Cell, Way),
        round: u32,
        progress: &mut Progress,
    ) -> Result<Sample, String> {
        if let Some(Ok(there)) = lab
            && !there.alive()
        {
            *lab = None;
        }
        let lab = lab.get_or_insert_with(|| {
            progress.line("starting a guest with pods");
            Lab::start(self.options)
        });
        let lab = lab.as_mut().map_err(|problem| problem.clone())?;
        (self.rules, self.about) = (lab.rules, Some(lab.about.clone()));
        let outcomes = self.outcomes.get(cell).into_iter().flatten();
        let mut mine = outcomes.filter(|outcome| outcome.way == way);
        let counting =
            |outcome: &Outcome| outcome.samples.iter().rfind(|sample| sample.counts())?.rate;
        let before = mine.next().and_then(counting);
        lab.turn(cell, way, round, before)
    }
}
