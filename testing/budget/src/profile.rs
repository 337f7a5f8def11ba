//! What callgrind counted, by place in the source.
//!
//! The compiler makes one function of nearly the whole data path, so functions of the binary say
//! little. Its line table still says of each instruction which line it came from, whatever was
//! inlined where: counts are kept by file and by the function that line stands in.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use e2e::Result;

/// The function that is counted.
pub const PASS: &str = "dataplane::worker::Worker::pass";

/// What was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Instructions.
    pub instructions: u64,
    /// Of these, those that lock the bus: atomic read-modify-writes. Nobody takes a lock without.
    pub locked: u64,
}

/// Costs by place.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Passes of the worker.
    pub passes: u64,
    /// Costs by file and function.
    pub places: BTreeMap<String, Cost>,
}

impl Profile {
    /// Of everything.
    pub fn total(&self) -> Cost {
        self.places.values().fold(Cost::default(), |sum, cost| sum + *cost)
    }

    /// One of these passes, which are all alike. What control's commands cause once in thousands
    /// of passes is rounded away.
    pub fn one(&self) -> Profile {
        let passes = self.passes.max(1);
        let one = |cost: &Cost| Cost {
            instructions: cost.instructions / passes,
            locked: cost.locked / passes,
        };
        let places = self.places.iter().map(|(place, cost)| (place.clone(), one(cost)));
        Profile { passes: 1, places: places.collect() }
    }

    /// All but `passes` of them, each of which was like `one`.
    pub fn without(mut self, passes: u64, one: &Profile) -> Profile {
        self.passes -= passes;
        for (place, cost) in &mut self.places {
            let one = one.places.get(place).copied().unwrap_or_default();
            cost.instructions = cost.instructions.saturating_sub(passes * one.instructions);
            cost.locked = cost.locked.saturating_sub(passes * one.locked);
        }
        self
    }

    /// Adds what a dump of callgrind's says, names and positions uncompressed, with the events `Ir`
    /// and `Ge`.
    ///
    /// # Errors
    /// When there is something else for a number.
    pub fn add(&mut self, dump: &str, sources: &mut Sources) -> Result<()> {
        let mut file = "";
        // The line behind `calls=` is what the called function cost, which is counted there.
        let (mut inclusive, mut called) = (false, "");
        for line in dump.lines() {
            if let Some((key, value)) = line.split_once('=') {
                match key {
                    "fl" | "fi" | "fe" => file = value,
                    "cfn" => called = value,
                    "calls" => {
                        inclusive = true;
                        if called.ends_with(PASS) {
                            let calls = value.split(' ').next().unwrap_or_default();
                            self.passes += calls.parse::<u64>()?;
                        }
                    }
                    _ => {}
                }
            } else if line.starts_with(|c: char| c.is_ascii_digit()) {
                if std::mem::take(&mut inclusive) {
                    continue;
                }
                let mut numbers = line.split(' ').map(str::parse::<u64>);
                let mut next = || numbers.next().unwrap_or(Ok(0));
                let (line, instructions, locked) = (next()?, next()?, next()?);
                let place = sources.place(file, line as usize);
                let cost = self.places.entry(place).or_default();
                *cost = *cost + Cost { instructions, locked };
            }
        }
        Ok(())
    }
}

impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, more: Cost) -> Cost {
        Cost {
            instructions: self.instructions + more.instructions,
            locked: self.locked + more.locked,
        }
    }
}

/// Source files, to find out which function a line is in.
#[derive(Debug, Default)]
pub struct Sources {
    functions: HashMap<String, Vec<(usize, String)>>,
}

impl Sources {
    /// `FILE function`, or only `FILE` when its source is not at hand.
    fn place(&mut self, file: &str, line: usize) -> String {
        let known = self.functions.entry(file.to_owned());
        let functions = known.or_insert_with(|| functions(Path::new(file)));
        let begun = functions.partition_point(|(start, _)| *start <= line);
        match begun.checked_sub(1).and_then(|last| functions.get(last)) {
            Some((_, function)) => format!("{} {function}", short(file)),
            None => short(file).to_owned(),
        }
    }
}

/// The name of a file as in the repository; of others' from their crate on, or from `library/` on.
fn short(file: &str) -> &str {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    if let Some(inside) = root.and_then(|root| Path::new(file).strip_prefix(root).ok()?.to_str()) {
        inside
    } else if let Some((_, registry)) = file.split_once("/registry/src/") {
        registry.split_once('/').map_or(registry, |(_, inside)| inside)
    } else {
        file.find("/library/").map_or(file, |at| &file[at + 1..])
    }
}

/// Where each function of a source file begins: line and name, in order.
fn functions(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let name = |line: &str| {
        let (before, after) = line.split_once("fn ")?;
        let code = before.is_empty() || before.ends_with(' ') && !before.contains("//");
        let end = after.find(['(', '<'])?;
        code.then(|| after[..end].to_owned())
    };
    (1..).zip(text.lines()).filter_map(|(n, line)| Some((n, name(line)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_lines_and_not_of_calls() {
        let dump = "\
events: Ir Ge
fl=/rustc/0123/library/core/src/mem/mod.rs
fn=run
cfi=/x/mod.rs
cfn=dataplane::worker::Worker::pass
calls=7 190
12 900 9
fn=dataplane::worker::Worker::pass
fi=/home/x/.cargo/registry/src/index.crates.io-1/some-1.2.3/src/lib.rs
190 40 2
fe=/rustc/0123/library/core/src/mem/mod.rs
200 2
";
        let (mut profile, mut sources) = (Profile::default(), Sources::default());
        profile.add(dump, &mut sources).unwrap();
        profile.add(dump, &mut sources).unwrap();
        assert_eq!(profile.passes, 14);
        let cost = |instructions, locked| Cost { instructions, locked };
        let expected = [
            ("library/core/src/mem/mod.rs".into(), cost(4, 0)),
            ("some-1.2.3/src/lib.rs".into(), cost(80, 4)),
        ];
        assert_eq!(profile.places, BTreeMap::from(expected));
        assert_eq!(profile.total(), cost(84, 4));
    }

    #[test]
    fn empty_passes_are_taken_away() {
        let of = |passes, instructions, locked| Profile {
            passes,
            places: BTreeMap::from([("a.rs".into(), Cost { instructions, locked })]),
        };
        // Three instructions were executed once.
        let empty = of(100, 2_003, 200).one();
        assert_eq!(empty.total(), Cost { instructions: 20, locked: 2 });
        let bursts = of(50, 49 * 20 + 777, 49 * 2 + 6).without(49, &empty);
        assert_eq!(bursts.passes, 1);
        assert_eq!(bursts.total(), Cost { instructions: 777, locked: 6 });
    }

    #[test]
    fn a_place_has_the_name_of_its_function() {
        let line = line!() as usize;
        let place = Sources::default().place(&here(), line);
        assert_eq!(place, "testing/budget/src/profile.rs a_place_has_the_name_of_its_function");
        assert_eq!(Sources::default().place(&here(), 1), "testing/budget/src/profile.rs");
    }

    /// This file, as the compiler knows it.
    fn here() -> String {
        format!("{}/src/profile.rs", env!("CARGO_MANIFEST_DIR"))
    }
}
