//! Processes that end with what started them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::SutError;
use crate::sched::Thread;

/// How long a process may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a program is to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Before others.
    Urgent,
    /// One like any: the kernel's own threads, which complete what is read and written, are not
    /// kept from their work by who waits for it.
    Ordinary,
}

/// A process; ended when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Said to it before it is asked to end.
    farewell: Option<&'static str>,
}

impl Process {
    /// Starts a program with its output in a file. Standard input stays open if it has a `farewell`,
    /// to be written there at the end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        name: &str,
        rank: Rank,
        command: &[String],
        env: &[(&str, &Path)],
        log: &Path,
        farewell: Option<&'static str>,
    ) -> Result<Process, SutError> {
        let what = || SutError::io(format!("{name} cannot be started"));
        let out = File::create(log).map_err(what())?;
        let err = out.try_clone().map_err(what())?;
        let stdin = if farewell.is_some() { Stdio::piped() } else { Stdio::null() };
        // Should this program be killed, the switch goes too.
        let mut start = Command::new("setpriv");
        let nice = if rank == Rank::Urgent { "-20" } else { "0" };
        start
            .args(["--pdeathsig", "TERM", "nice", "-n", nice])
            .args(command)
            .envs(env.iter().copied());
        // A group of its own: Ctrl-C is for this program, which then ends the others in order.
        let child = start.stdin(stdin).stdout(out).stderr(err).process_group(0).spawn();
        let child = child.map_err(what())?;
        Ok(Process { name: name.to_owned(), child, log: log.to_owned(), farewell })
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Keeps it from running, all its threads, until [`Process::go_on`].
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// Lets it run again.
    pub fn go_on(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Not to one that is gone: its id may be another's.
    fn signal(&mut self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).filter(|_| self.alive());
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Says a line to it and waits for what that makes it write to its log: the first that `find`
    /// finds there.
    pub fn ask<T>(&mut self, line: &str, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let log = self.log.clone();
        let before = fs::metadata(&log).ok()?.len() as usize;
        writeln!(self.child.stdin.as_mut()?, "{line}").ok()?;
        self.wait_for(5, || find(fs::read_to_string(&log).ok()?.get(before..)?)).ok()
    }

    /// Waits until something is there.
    ///
    /// # Errors
    /// It ended, or it is late.
    pub fn wait_for<T>(
        &mut self,
        seconds: u64,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, SutError> {
        let start = Instant::now();
        loop {
            if let Some(value) = ready() {
                return Ok(value);
            }
            let said = || tail(&self.log);
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Err(SutError::Failed { what: self.name.clone(), said: said() });
            }
            if start.elapsed() > Duration::from_secs(seconds) {
                return Err(SutError::Late { what: self.name.clone(), seconds, said: said() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for a thread and for sockets.
    ///
    /// # Errors
    /// See [`Process::wait_for`].
    pub fn wait_ready(&mut self, thread: &str, sockets: &[PathBuf]) -> Result<Thread, SutError> {
        let pid = self.pid();
        // DPDK takes a second for some ports.
        self.wait_for(30 + sockets.len() as u64, || {
            let all = sockets.iter().all(|socket| socket.exists());
            Thread::named(pid, thread).filter(|_| all)
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let (Some(farewell), Some(mut stdin)) = (self.farewell, self.child.stdin.take()) {
            // One that is gone does not listen.
            let _ = writeln!(stdin, "{farewell}");
        } else {
            self.signal(Signal::TERM);
        }
        // One that is paused does neither.
        self.go_on();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be started, or fails.
pub fn run(command: &[&str], env: &[(&str, &Path)]) -> Result<String, SutError> {
    let what = command.join(" ");
    let Some((program, arguments)) = command.split_first() else { return Ok(String::new()) };
    let output = Command::new(program)
        .args(arguments)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .map_err(SutError::io(format!("`{what}` cannot be run")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
        return Err(SutError::Failed { what, said: said.trim().to_owned() });
    }
    Ok(text(&output.stdout))
}

/// The end of a log.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(15)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_paused_goes_on_and_ends_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let script = "trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.05; done";
        let command = ["sh", "-c", script].map(str::to_owned);
        let mut process = Process::start("sh", Rank::Ordinary, &command, &[], &log, None).unwrap();
        let said = |what: &str| fs::read_to_string(&log).unwrap().contains(what);
        process.wait_for(20, || said("ready").then_some(())).unwrap();
        let stat = format!("/proc/{}/stat", process.pid());
        let stopped = || fs::read_to_string(&stat).unwrap().contains(") T ").then_some(());
        process.pause();
        process.wait_for(20, stopped).unwrap();
        process.go_on();
        process.wait_for(20, || stopped().is_none().then_some(())).unwrap();
        process.pause();
        process.wait_for(20, stopped).unwrap();
        drop(process);
        assert!(said("bye"), "it was killed instead");
    }
}
