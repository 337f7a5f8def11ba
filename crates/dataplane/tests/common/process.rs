//! What this process holds: descriptors, threads, mappings, memory.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::wait;

/// What the process holds can only be counted by one test at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts that must be back where they were when everything is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) mappings: usize,
    /// KiB of memory in use (VmRSS).
    pub(crate) resident: usize,
}

impl Holdings {
    pub(crate) fn now() -> Holdings {
        let count = |dir: &str| fs::read_dir(dir).unwrap().count();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse().ok()
        });
        Holdings {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            mappings: fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
            resident: resident.unwrap(),
        }
    }

    /// Waits until there are as many descriptors and threads as then.
    pub(crate) fn wait_for_same(&self) {
        let same = || {
            let now = Holdings::now();
            now.descriptors == self.descriptors && now.threads == self.threads
        };
        wait(|| format!("{:?} to be {self:?} again", Holdings::now()), same);
    }
}
