//! How busy a switch was, by its own account: time in which it had frames to move.
//!
//! A polling thread uses its whole CPU whatever it does, so CPU time says nothing about what is
//! left. All of these count the turns in which they found frames, and only those.

use serde::Deserialize;
use sys::clock::ticks_per_second;

use super::process::{Process, run};

/// Where a switch says it.
#[derive(Clone, Debug)]
pub(super) enum Meter {
    /// `hayate worker list`.
    Hayate {
        /// The program.
        program: String,
        /// Its run directory.
        run_dir: String,
    },
    /// `pmd-stats-show`.
    Ovs {
        /// Its control socket.
        control: String,
    },
    /// `show fwd stats all`, at its prompt.
    Testpmd,
}

/// What is read of a worker.
#[derive(Deserialize)]
struct Worker {
    busy_us: u64,
}

impl Meter {
    /// Seconds since the switch started.
    pub(super) fn read(&self, process: &mut Process) -> Option<f64> {
        match self {
            Meter::Hayate { program, run_dir } => {
                let command = [program, "--run-dir", run_dir, "worker", "list", "--json"];
                let workers: Vec<Worker> = serde_json::from_str(&run(&command, &[]).ok()?).ok()?;
                Some(workers.first()?.busy_us as f64 / 1e6)
            }
            Meter::Ovs { control } => {
                let command = ["ovs-appctl", "-t", control, "dpif-netdev/pmd-stats-show"];
                let cycles = number_behind(&run(&command, &[]).ok()?, "processing cycles: ")?;
                Some(cycles / ticks_per_second())
            }
            Meter::Testpmd => {
                let cycles = process.ask("show fwd stats all", |said| {
                    // The number is whole once something stands behind it.
                    said.contains(" MHz Clock").then(|| number_behind(said, "total cycles="))?
                });
                Some(cycles? / ticks_per_second())
            }
        }
    }
}

/// The number behind these words.
fn number_behind(text: &str, words: &str) -> Option<f64> {
    let (_, rest) = text.split_once(words)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found() {
        let pmd = "pmd thread numa_id 0 core_id 0:\n  idle cycles: 77 (1.00%)\n  \
                   processing cycles: 1234 (99.00%)\n";
        assert_eq!(number_behind(pmd, "processing cycles: "), Some(1234.0));
        let forwarded = "  CPU cycles/packet=63.55 (total cycles=40 / total RX packets=2)\n";
        assert_eq!(number_behind(forwarded, "total cycles="), Some(40.0));
        assert_eq!(number_behind("", "total cycles="), None);
        assert_eq!(number_behind("total cycles=", "total cycles="), None);
    }
}
