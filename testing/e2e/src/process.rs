//! Child processes: started with a log file, waited for with a limit, ended by their id.
//!
//! Each child is the leader of a process group of its own, so that Ctrl-C reaches this program
//! only, which then ends its children in order. It also dies when this program dies.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Context, Error, Result, bail};

/// How often a condition is looked at while waiting for it.
const STEP: Duration = Duration::from_millis(10);

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on Ctrl-C, SIGTERM and SIGHUP end every wait with an error instead of ending the
/// program, so that what was started is cleaned up.
pub fn catch_signals() {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Registration fails only for signals that cannot be caught at all.
        let _ = signal_hook::flag::register(signal, Arc::clone(flag));
    }
    let _ = signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(flag));
}

/// Whether a signal asked this program to end.
pub fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|f| f.load(Ordering::Relaxed))
}

/// Waits until `done` returns something, at most `limit`; `what` is for the error.
///
/// # Errors
/// When the limit passes, when `done` fails, or on Ctrl-C.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = done()? {
            return Ok(value);
        }
        if interrupted() {
            bail!("interrupted while waiting for {what}");
        }
        if Instant::now() > end {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        std::thread::sleep(STEP);
    }
}

/// Sleeps, ended early by Ctrl-C.
///
/// # Errors
/// On Ctrl-C.
pub fn pause(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if interrupted() {
            bail!("interrupted");
        }
        std::thread::sleep(STEP.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// What a command left.
#[derive(Debug)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Everything it wrote to standard output.
    pub out: String,
    /// Everything it wrote to standard error.
    pub err: String,
}

/// Runs a command to its end, at most `limit`.
///
/// # Errors
/// When it cannot be started, does not end in time, or on Ctrl-C. A non-zero exit status is not an
/// error here.
pub fn output(program: &str, args: &[&str], limit: Duration) -> Result<Output> {
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = dying_with_us(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .spawn()
        .context(|| format!("cannot start {program}"))?;
    let status =
        wait_for(&format!("{program} {}", args.join(" ")), limit, || Ok(child.try_wait()?));
    let status = match status {
        Ok(status) => status,
        Err(e) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::new(format!("{e}\n{}{}", text_of(&mut out), text_of(&mut err))));
        }
    };
    Ok(Output { status, out: text_of(&mut out), err: text_of(&mut err) })
}

/// Runs a command that must succeed within a minute; its standard output.
///
/// # Errors
/// As [`output`], and when the exit status is not 0.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    run_for(Duration::from_secs(60), program, args)
}

/// [`run`] with another limit.
///
/// # Errors
/// As [`run`].
pub fn run_for(limit: Duration, program: &str, args: &[&str]) -> Result<String> {
    let o = output(program, args, limit)?;
    if !o.status.success() {
        bail!("{program} {}: {}\n{}{}", args.join(" "), o.status, o.out, o.err);
    }
    Ok(o.out)
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind();
    let _ = file.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A command that `setpriv` turns into `program` after asking the kernel to kill it together with
/// the thread that started it.
fn dying_with_us(program: &str) -> Command {
    let mut c = Command::new("setpriv");
    c.args(["--pdeathsig", "KILL", "--", program]).process_group(0);
    c
}

/// The end of a log file, for messages.
pub fn tail(path: &Path, bytes: usize) -> String {
    let text = fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let start = text.len().saturating_sub(bytes);
    let start = (start..=text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    text[start..].to_string()
}

/// A program that runs in the background.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    detached: bool,
}

impl Process {
    /// Starts it; standard output and error go to `log` (appended), standard input is a pipe when
    /// `input` is set.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(name: &str, argv: &[String], log: &Path, input: bool) -> Result<Self> {
        Self::spawn(name, argv, log, input, false)
    }

    /// As [`Process::start`], but it may outlive this program (see [`Process::leave_running`]).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_lasting(name: &str, argv: &[String], log: &Path) -> Result<Self> {
        Self::spawn(name, argv, log, false, true)
    }

    fn spawn(name: &str, argv: &[String], log: &Path, input: bool, lasting: bool) -> Result<Self> {
        let (program, args) = argv.split_first().context(|| format!("{name}: empty command"))?;
        let out = File::options().create(true).append(true).open(log)?;
        let mut command = if lasting {
            let mut c = Command::new(program);
            c.process_group(0);
            c
        } else {
            dying_with_us(program)
        };
        let child = command
            .args(args)
            .stdin(if input { Stdio::piped() } else { Stdio::null() })
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .context(|| format!("cannot start {name} ({program})"))?;
        Ok(Self { name: name.into(), child, log: log.into(), detached: false })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Everything it wrote so far.
    pub fn log_text(&self) -> String {
        tail(&self.log, usize::MAX)
    }

    /// Fails, with the end of its log, when it has ended.
    ///
    /// # Errors
    /// It has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended: {status}\n{}", self.name, tail(&self.log, 3000));
        }
        Ok(())
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// When it has none or closed it.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context(|| "no standard input".into())?;
        input.write_all(text.as_bytes())?;
        Ok(input.flush()?)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended; it is not reaped before `wait`, so the id cannot be another's.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end within the limit.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        wait_for(&what, limit, || Ok(self.child.try_wait()?))
            .map_err(|e| Error::new(format!("{e}\n{}", tail(&self.log, 3000))))
    }

    /// SIGTERM, then waits for its end.
    ///
    /// # Errors
    /// When it does not end within the limit.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM);
        self.wait(limit)
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Dropping this value will not end the program.
    pub fn leave_running(&mut self) {
        self.detached = true;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.detached || matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // A chance to clean up after itself; no limit can be reported from here.
        self.signal(Signal::TERM);
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(STEP);
        }
        self.kill();
    }
}

/// Arguments as owned strings.
#[macro_export]
macro_rules! argv {
    ($($a:expr),* $(,)?) => { vec![$(::std::string::ToString::to_string(&$a)),*] };
}
