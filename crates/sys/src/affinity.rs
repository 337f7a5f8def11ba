//! Which CPUs a thread may run on.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps the calling thread on one CPU from now on.
///
/// # Errors
/// `InvalidInput` when there is no such CPU or this process may not use it.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Keeps the calling thread, and those it starts, off these CPUs from now on, if others are left to it;
/// whether that is so.
///
/// # Errors
/// As [`allowed_cpus`].
pub fn keep_current_thread_off(cpus: &[usize]) -> io::Result<bool> {
    let mut set = sched_getaffinity(None)?;
    for &cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.unset(cpu);
    }
    if set.count() == 0 {
        return Ok(false);
    }
    sched_setaffinity(None, &set)?;
    Ok(true)
}

/// The CPUs the calling thread may run on, ascending.
///
/// # Errors
/// What sched_getaffinity(2) reports: `InvalidInput` on a machine with more than 1024 CPUs.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Why a list of CPUs was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of CPUs like 0-3,8 (numbers below {max})", max = CpuSet::MAX_CPU)]
pub struct CpuListError(String);

/// Reads a list like `0-3,8`, as in `/sys/devices/system/cpu/online`: ascending and without
/// repetition in the result, in any order in the text. The empty list is not one.
///
/// # Errors
/// Quotes the part that was not understood.
pub fn parse_cpu_list(text: &str) -> Result<Vec<usize>, CpuListError> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (parse_cpu(first), parse_cpu(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => return Err(CpuListError(part.to_owned())),
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// Digits only: `str::parse` would take a sign.
fn parse_cpu(text: &str) -> Option<usize> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&cpu| digits && cpu < CpuSet::MAX_CPU)
}

#[cfg(test)]
mod tests;
