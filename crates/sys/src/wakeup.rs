//! How long a CPU may take to wake up: the kernel's PM QoS, for one CPU.
//!
//! A CPU with nothing to do is put to sleep, and the deeper it sleeps the longer it takes to wake up.
//! That of a virtual machine goes back to the hypervisor for it, and takes tens of microseconds to
//! return. (Linux, Documentation/admin-guide/pm/cpuidle.rst; virt/guest-halt-polling.rst.)

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What is asked for: microseconds in which a CPU shall be awake. Real ones take less from their
/// first two levels of sleep.
const QUICK: &str = "20";
/// No time at all, which is the only request that a virtual machine's CPU heeds: it waits without
/// going back to the hypervisor, and gives way to any thread.
const AT_ONCE: &str = "n/a";
/// As long as it takes.
const ANY: &str = "0";

/// The request for one CPU. Withdrawn when dropped.
#[derive(Debug)]
pub struct QuickWakeup {
    request: File,
    usual: String,
    quick: &'static str,
    on: bool,
}

impl QuickWakeup {
    /// Where the kernel shows its CPUs.
    pub const ROOT: &str = "/sys/devices/system/cpu";

    /// For this CPU of those below `root`; nothing is asked for yet.
    ///
    /// # Errors
    /// `NotFound` if the kernel does not manage idle CPUs (`cpuidle`), or has no such CPU;
    /// `PermissionDenied` if only others may ask; `ResourceBusy` if somebody asks for more already.
    pub fn of(root: &Path, cpu: usize) -> io::Result<QuickWakeup> {
        let driver = fs::read_to_string(root.join("cpuidle/current_driver"))?;
        let quick = match driver.trim() {
            "none" => return Err(io::ErrorKind::NotFound.into()),
            "haltpoll" => AT_ONCE,
            _ => QUICK,
        };
        let path = root.join(format!("cpu{cpu}/power/pm_qos_resume_latency_us"));
        let usual = match fs::read_to_string(&path)?.trim() {
            // Left by a process that was killed.
            left if left == quick => ANY.to_owned(),
            usual if strictness(usual) < strictness(quick) => {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            usual => usual.to_owned(),
        };
        let request = OpenOptions::new().write(true).open(path)?;
        Ok(QuickWakeup { request, usual, quick, on: false })
    }

    /// Asks for a quick wake-up from now on, or for no more than before. A system call only when
    /// that changes.
    ///
    /// # Errors
    /// None is to be expected.
    pub fn ask(&mut self, on: bool) -> io::Result<()> {
        if on != self.on {
            self.on = on;
            let text = if on { self.quick } else { &self.usual };
            self.request.write_all_at(text.as_bytes(), 0)?;
        }
        Ok(())
    }
}

impl Drop for QuickWakeup {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.ask(false);
    }
}

/// Microseconds that a request allows.
fn strictness(request: &str) -> u32 {
    match request {
        AT_ONCE => 0,
        ANY => u32::MAX,
        number => number.parse().unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests;
