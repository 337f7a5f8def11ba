//! CPU time a process used, from the scheduler's own accounting.

use std::fs;
use std::time::{Duration, Instant};

use crate::process::pause;
use crate::{Context, Result};

/// CPU time all threads of a process have used so far.
///
/// Nanosecond accounting (`/proc/PID/task/*/schedstat`); clock ticks would hide an idle daemon's
/// use altogether.
///
/// # Errors
/// When the process is gone or the kernel has no such accounting.
pub fn used(pid: u32) -> Result<Duration> {
    schedstat(pid, 0)
}

/// Time all threads of a process have waited for a CPU while they could have run.
///
/// # Errors
/// As [`used`].
pub fn waited(pid: u32) -> Result<Duration> {
    schedstat(pid, 1)
}

/// Sum of a field (nanoseconds) over the threads of a process.
fn schedstat(pid: u32, field: usize) -> Result<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).context(|| format!("process {pid}"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let value = text.split_whitespace().nth(field).and_then(|n| n.parse::<u64>().ok());
        nanos += value.context(|| format!("schedstat of {pid}: {text:?}"))?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// A measurement that is going on.
#[derive(Debug)]
pub struct Window {
    pid: u32,
    start: Instant,
    used: Duration,
}

impl Window {
    /// Starts measuring a process.
    ///
    /// # Errors
    /// As [`used`].
    pub fn open(pid: u32) -> Result<Self> {
        Ok(Self { pid, start: Instant::now(), used: used(pid)? })
    }

    /// CPU used since the start in per cent of one core.
    ///
    /// # Errors
    /// As [`used`].
    pub fn percent(&self) -> Result<f64> {
        let cpu = used(self.pid)?.saturating_sub(self.used);
        Ok(100.0 * cpu.as_secs_f64() / self.start.elapsed().as_secs_f64())
    }
}

/// CPU used over a window of time, in per cent of one core.
///
/// # Errors
/// As [`used`], and on Ctrl-C.
pub fn percent_over(pid: u32, time: Duration) -> Result<f64> {
    let w = Window::open(pid)?;
    pause(time)?;
    w.percent()
}
