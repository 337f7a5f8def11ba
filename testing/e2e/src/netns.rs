//! Network namespaces: hosts that cost nothing.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::process::{Output, Process, output, run};
use crate::{Result, argv};

static NEXT: AtomicU32 = AtomicU32::new(0);
const PREFIX: &str = "hayate-e2e-";

/// A named network namespace; removed when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
    keep: bool,
}

impl Netns {
    /// Makes one with a name nobody else has; its loopback is up.
    ///
    /// # Errors
    /// When `ip netns` fails (not root).
    pub fn new() -> Result<Self> {
        sweep();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("{PREFIX}{}-{n}", std::process::id()))
    }

    /// Makes one of this name, which must not exist; its loopback is up.
    ///
    /// # Errors
    /// When it exists, or as [`Netns::new`].
    pub fn named(name: &str) -> Result<Self> {
        run("ip", &["netns", "add", name])?;
        let ns = Self { name: name.into(), keep: false };
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// Its name under `/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `ip` inside it, with words separated by blanks.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn ip(&self, words: &str) -> Result<String> {
        let mut args = vec!["-n", &self.name];
        args.extend(words.split_whitespace());
        run("ip", &args)
    }

    /// Runs a shell command inside it that must succeed.
    ///
    /// # Errors
    /// When its status is not 0 or it takes longer than two minutes.
    pub fn sh(&self, command: &str) -> Result<String> {
        let o = self.try_sh(command, Duration::from_secs(120))?;
        crate::ensure!(o.status.success(), "{command}: {}\n{}{}", o.status, o.out, o.err);
        Ok(o.out)
    }

    /// Runs a shell command inside it, whatever its status.
    ///
    /// # Errors
    /// When it takes longer than `limit`.
    pub fn try_sh(&self, command: &str, limit: Duration) -> Result<Output> {
        output("ip", &["netns", "exec", &self.name, "sh", "-c", command], limit)
    }

    /// Starts a program inside it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, command: &str, log: &std::path::Path) -> Result<Process> {
        let mut args = argv!["ip", "netns", "exec", self.name];
        args.extend(command.split_whitespace().map(String::from));
        Process::start(command, &args, log, false)
    }

    /// Dropping this value will not remove it.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if !self.keep {
            delete(&self.name);
        }
    }
}

/// Removes a namespace; not by [`run`], which gives up after Ctrl-C.
fn delete(name: &str) {
    // There is nobody to report a failure to; the next run tries again (see `sweep`).
    let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
}

/// Removes namespaces of runs that were killed before they could.
fn sweep() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let Ok(names) = fs::read_dir("/run/netns") else { return };
        for name in names.flatten().filter_map(|e| e.file_name().into_string().ok()) {
            let pid = name.strip_prefix(PREFIX).and_then(|r| r.split('-').next());
            if pid.is_some_and(|p| {
                p.parse::<u32>().is_ok() && !fs::exists(format!("/proc/{p}")).unwrap_or(true)
            }) {
                delete(&name);
            }
        }
    });
}
