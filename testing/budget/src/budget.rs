//! The file with the budget, and what is over it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use e2e::{Context, Result};
use serde::Deserialize;

use crate::profile::{Cost, Profile};

/// How much more than its budget a cell may take, as a share.
pub const TOLERANCE: f64 = 0.03;
/// Places that take less than this share of their cell are not kept.
const KEPT: f64 = 0.002;
/// Places named in a message.
const NAMED: usize = 6;
/// How the file is made anew.
const UPDATE: &str = "`make budget`";

const HEADER: &str = "\
# What the data path may spend, in instructions: of a frame, or of a pass that finds nothing
# (*-empty). Counted by callgrind in the release build; below each, the places in the source that
# take most of it. Made by `make budget`; docs/performance.md says what is counted.
";

/// What one cell takes, on average of its frames or passes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Entry {
    /// Instructions.
    pub instructions: f64,
    /// Of these, by place in the source.
    pub places: BTreeMap<String, f64>,
}

impl Entry {
    /// What was counted, divided among so many frames or passes.
    pub fn of(profile: &Profile, among: u64) -> Self {
        let share = |(place, cost): (&String, &Cost)| {
            (place.clone(), cost.instructions as f64 / among as f64)
        };
        Self::of_places(profile.places.iter().map(share).collect())
    }

    fn of_places(places: BTreeMap<String, f64>) -> Self {
        Self { instructions: places.values().sum(), places }
    }

    /// How much more another takes, as a share; less is negative.
    fn rise(&self, now: &Entry) -> f64 {
        now.instructions / self.instructions - 1.0
    }

    /// The places that take more than they did, those first that grew most: place, before, now. One
    /// that was not kept took at most what need not be kept.
    fn grown<'e>(&'e self, before: &Entry) -> Vec<(&'e str, f64, f64)> {
        let least = KEPT * before.instructions;
        let mut grown: Vec<_> = self
            .places
            .iter()
            .map(|(place, now)| {
                (&**place, before.places.get(place).copied().unwrap_or(least), *now)
            })
            .filter(|(_, before, now)| *now - *before >= least / 2.0)
            .collect();
        grown.sort_by(|a, b| (b.2 - b.1).total_cmp(&(a.2 - a.1)));
        grown
    }
}

/// Every cell by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Budget(pub BTreeMap<String, Entry>);

/// The result of comparing.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What is over the budget: where, and by how much. Empty: nothing.
    pub over: String,
    /// What is so far below that the budget should follow.
    pub below: String,
}

impl Budget {
    /// Reads the committed one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn committed() -> Result<Self> {
        let text = fs::read_to_string(path()).context(|| path().display().to_string())?;
        toml::from_str(&text).context(|| path().display().to_string())
    }

    /// Writes the one to be committed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn commit(&self) -> Result<()> {
        fs::write(path(), self.to_string()).context(|| path().display().to_string())
    }

    /// Whether a cell takes no more than it may.
    pub fn allows(&self, name: &str, now: &Entry) -> bool {
        self.0.get(name).is_some_and(|before| before.rise(now) <= TOLERANCE)
    }

    /// Compares what was counted with this budget.
    pub fn judge(&self, counted: &Budget) -> Verdict {
        let mut verdict = Verdict::default();
        for (name, now) in &counted.0 {
            let Some(before) = self.0.get(name) else {
                let _ = writeln!(verdict.over, "{name} has no budget: {UPDATE}");
                continue;
            };
            let rise = before.rise(now);
            let text = format!(
                "{name}: {:.1} instructions, budget {:.1}: {:+.1} %\n",
                now.instructions,
                before.instructions,
                100.0 * rise
            );
            if rise > TOLERANCE {
                verdict.over += &text;
                for (place, before, now) in now.grown(before).iter().take(NAMED) {
                    let _ = writeln!(
                        verdict.over,
                        "    {:+8.1}  {place} ({before:.1} -> {now:.1})",
                        now - before
                    );
                }
            } else if rise < -TOLERANCE {
                verdict.below += &text;
            }
        }
        for name in self.0.keys().filter(|name| !counted.0.contains_key(*name)) {
            let _ = writeln!(verdict.over, "{name} is no longer counted: {UPDATE}");
        }
        if !verdict.over.is_empty() {
            verdict.over += &format!("Where that is worth it, {UPDATE} makes it the budget.\n");
        }
        if !verdict.below.is_empty() {
            verdict.below += &format!("That is a gain: {UPDATE} keeps it.\n");
        }
        verdict
    }
}

/// As it stands in the file: the dearest places of a cell first.
impl std::fmt::Display for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(HEADER)?;
        for (name, entry) in &self.0 {
            writeln!(f, "\n[{name}]\ninstructions = {:.1}\n\n[{name}.places]", entry.instructions)?;
            let mut places: Vec<_> = entry.places.iter().collect();
            places.retain(|(_, n)| **n >= KEPT * entry.instructions);
            places.sort_by(|a, b| b.1.total_cmp(a.1).then(a.0.cmp(b.0)));
            for (place, n) in places {
                writeln!(f, "{place:?} = {n:.1}")?;
            }
        }
        Ok(())
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(places: [f64; 3]) -> Budget {
        let places = ["a.rs f", "a.rs g", "b.rs h"].map(String::from).into_iter().zip(places);
        Budget(BTreeMap::from([("cell".into(), Entry::of_places(places.collect()))]))
    }

    #[test]
    fn a_rise_is_over_the_budget_and_says_where() {
        let before = budget([50.0, 40.0, 10.0]);
        let within = before.judge(&budget([52.9, 40.0, 10.0]));
        assert!(within.over.is_empty() && within.below.is_empty(), "{within:?}");
        assert!(before.allows("cell", &Entry { instructions: 102.9, ..Entry::default() }));
        assert!(!before.allows("cell", &Entry { instructions: 103.1, ..Entry::default() }));

        let over = before.judge(&budget([50.5, 39.0, 14.0])).over;
        let lines: Vec<&str> = over.lines().collect();
        assert_eq!(lines[0], "cell: 103.5 instructions, budget 100.0: +3.5 %");
        assert_eq!(lines[1].trim(), "+4.0  b.rs h (10.0 -> 14.0)");
        assert_eq!(lines[2].trim(), "+0.5  a.rs f (50.0 -> 50.5)");
        assert_eq!(lines.len(), 4, "{over}");
    }

    #[test]
    fn a_fall_asks_for_a_new_budget() {
        let verdict = budget([50.0, 40.0, 10.0]).judge(&budget([46.0, 40.0, 10.0]));
        assert!(verdict.over.is_empty());
        assert!(verdict.below.starts_with("cell: 96.0 instructions, budget 100.0: -4.0 %"));
    }

    #[test]
    fn every_cell_has_a_budget_and_every_budget_a_cell() {
        let (some, none) = (budget([1.0; 3]), Budget::default());
        assert!(none.judge(&some).over.starts_with("cell has no budget"));
        assert!(some.judge(&none).over.starts_with("cell is no longer counted"));
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let budget = budget([50.0, 49.9, 0.1]);
        let mut read: Budget = toml::from_str(&budget.to_string()).unwrap();
        let entry = read.0.get_mut("cell").unwrap();
        assert_eq!(entry.places.len(), 2, "the least is not kept");
        entry.places.insert("b.rs h".into(), 0.1);
        assert_eq!(read, budget);
    }
}
