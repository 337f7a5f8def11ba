//! Where a run took place.

use std::fs;

use serde::{Deserialize, Serialize};
use sys::clock::ticks_per_second;

use crate::place::Place;

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor.
    pub processor: String,
    /// CPUs this system has.
    pub cpus: usize,
    /// Memory in GiB.
    pub memory: u64,
    /// Kernel.
    pub kernel: String,
    /// Distribution.
    pub system: String,
    /// Rate of the time stamp counter in GHz.
    pub ticks: f64,
    /// CPU of the switch and CPU of the guests.
    pub place: [usize; 2],
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn this(place: Place) -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let value = |text: &str, key: &str, between: char| {
            let line = text.lines().find(|line| line.starts_with(key));
            let value = line.and_then(|line| Some(line.split_once(between)?.1));
            value.unwrap_or("unknown").trim().trim_matches('"').to_owned()
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal", ':');
        let kib: u64 = memory.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Machine {
            processor: value(&cpuinfo, "model name", ':'),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory: (kib + (1 << 19)) >> 20,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: value(&read("/etc/os-release"), "PRETTY_NAME", '='),
            ticks: (ticks_per_second() / 1e7).round() / 100.0,
            place: [place.switch, place.guests],
        }
    }
}

/// What is not there is empty.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
