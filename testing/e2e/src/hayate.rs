//! The daemon under test and its command.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::{Disk, Image, Port, PortState};
use tempfile::TempDir;

use crate::assets::Assets;
use crate::process::{Process, output, pause, tail, wait_for};
use crate::{Context, Result, argv, assets, bail, ensure};

/// A daemon with a run directory of its own; ended when dropped.
#[derive(Debug)]
pub struct Hayate {
    binary: PathBuf,
    dir: Dir,
    options: Vec<String>,
    /// A program that runs the daemon, with its arguments; empty: none.
    under: Vec<String>,
    process: Option<Process>,
    lasting: bool,
}

#[derive(Debug)]
enum Dir {
    Temporary(TempDir),
    Given(PathBuf),
}

/// Where counters stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Balance {
    /// Frames that entered the switch.
    pub entered: u64,
    /// Further copies of flooded frames.
    pub copies: u64,
    /// Frames that left the switch.
    pub left: u64,
    /// Frames added by segmentation (segments made less frames segmented).
    pub added: i64,
    /// Frames dropped, for any reason.
    pub dropped: u64,
}

impl Balance {
    /// Frames that are neither delivered nor counted as dropped; negative: delivered from nowhere.
    pub fn missing(&self) -> i64 {
        let n = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
        n(self.entered) + n(self.copies) + self.added - n(self.left) - n(self.dropped)
    }
}

impl Hayate {
    /// Starts a daemon in a temporary run directory; `options` go to `hayate daemon`.
    ///
    /// # Errors
    /// When there is no binary, or it does not answer within 20 s.
    pub fn start(options: &[&str]) -> Result<Self> {
        Self::start_under(&[], options)
    }

    /// As [`Hayate::start`], run by another program: `under` is its name and arguments (valgrind).
    ///
    /// # Errors
    /// As [`Hayate::start`].
    pub fn start_under(under: &[&str], options: &[&str]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hayate-e2e-").tempdir()?;
        Self::start_in(Dir::Temporary(dir), under, options, false)
    }

    /// Starts a daemon in this run directory that may outlive this program.
    ///
    /// # Errors
    /// As [`Hayate::start`].
    pub fn start_lasting(run_dir: &Path, options: &[&str]) -> Result<Self> {
        Self::start_in(Dir::Given(run_dir.into()), &[], options, true)
    }

    fn start_in(dir: Dir, under: &[&str], options: &[&str], lasting: bool) -> Result<Self> {
        let [under, options] =
            [under, options].map(|args| args.iter().map(|&s| s.into()).collect());
        let mut h = Self { binary: assets::hayate()?, dir, options, under, process: None, lasting };
        h.launch()?;
        Ok(h)
    }

    /// The run directory; tests put their sockets here too.
    pub fn dir(&self) -> &Path {
        match &self.dir {
            Dir::Temporary(d) => d.path(),
            Dir::Given(d) => d,
        }
    }

    /// The log: everything the daemon wrote since the first start.
    pub fn log(&self) -> PathBuf {
        self.dir().join("daemon.log")
    }

    /// Path of the binary.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Process id of the daemon.
    ///
    /// # Errors
    /// When it is not running.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.process.as_ref().context(|| "the daemon is not running".into())?.pid())
    }

    /// Starts the daemon (again) and waits until it answers.
    ///
    /// # Errors
    /// When it does not within 20 s.
    pub fn launch(&mut self) -> Result<()> {
        let mut argv = self.under.clone();
        argv.extend(argv![self.binary.display(), "daemon", "--run-dir", self.dir().display()]);
        argv.extend(self.options.iter().cloned());
        let mut process = if self.lasting {
            Process::start_lasting("hayate daemon", &argv, &self.log())?
        } else {
            Process::start("hayate daemon", &argv, &self.log(), false)?
        };
        wait_for("an answer of the daemon", Duration::from_secs(20), || {
            process.check()?;
            let o = self.output(&["port", "list", "--json"])?;
            Ok(o.status.success().then_some(()))
        })
        .context(|| format!("--- daemon's log\n{}\n---", tail(&self.log(), 3000)))?;
        self.process = Some(process);
        Ok(())
    }

    /// SIGKILL.
    pub fn kill9(&mut self) {
        if let Some(mut p) = self.process.take() {
            p.kill();
        }
    }

    /// SIGTERM; the daemon must end by itself with status 0 and an unobjectionable log.
    ///
    /// # Errors
    /// When it does not end, or ends with another status, or panicked.
    pub fn stop(mut self) -> Result<()> {
        self.terminate()
    }

    /// As [`Hayate::stop`], to be started again with [`Hayate::launch`].
    ///
    /// # Errors
    /// As [`Hayate::stop`].
    pub fn terminate(&mut self) -> Result<()> {
        self.check()?;
        if let Some(mut p) = self.process.take() {
            let status = p.terminate(Duration::from_secs(10))?;
            ensure!(status.success(), "daemon ended with {status}\n{}", tail(&self.log(), 3000));
        }
        self.check_log()
    }

    /// Fails when the daemon has ended or panicked.
    ///
    /// # Errors
    /// It has.
    pub fn check(&mut self) -> Result<()> {
        if let Some(p) = &mut self.process {
            p.check()?;
        }
        self.check_log()
    }

    fn check_log(&self) -> Result<()> {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        if let Some(at) = log.find("panicked at") {
            let start = log[..at].rfind('\n').map_or(0, |n| n + 1);
            let text: String = log[start..].chars().take(2000).collect();
            bail!("the daemon panicked:\n{text}");
        }
        Ok(())
    }

    fn output(&self, args: &[&str]) -> Result<crate::process::Output> {
        let dir = self.dir().to_string_lossy();
        let mut all = vec!["--run-dir", &dir];
        all.extend(args);
        output(&self.binary.to_string_lossy(), &all, Duration::from_secs(30))
    }

    /// `hayate --run-dir DIR words...`; its standard output.
    ///
    /// # Errors
    /// When its status is not 0.
    pub fn cli(&self, words: &str) -> Result<String> {
        let args: Vec<&str> = words.split_whitespace().collect();
        let o = self.output(&args)?;
        ensure!(
            o.status.success(),
            "hayate {words}: {}\n{}{}--- daemon's log\n{}",
            o.status,
            o.out,
            o.err,
            tail(&self.log(), 2000)
        );
        Ok(o.out)
    }

    /// Adds a network.
    ///
    /// # Errors
    /// When the command fails.
    pub fn network(&self, name: &str) -> Result<()> {
        self.cli(&format!("network add {name}")).map(drop)
    }

    /// Adds a vhost port on a socket in the run directory, whose path is returned; `more` are
    /// further options of `port add`.
    ///
    /// # Errors
    /// When the command fails.
    pub fn vhost(&self, name: &str, network: &str, more: &str) -> Result<PathBuf> {
        let socket = self.dir().join(format!("{name}.sock"));
        let path = socket.display();
        self.cli(&format!(
            "port add {name} --network {network} --kind vhost --socket {path} {more}"
        ))?;
        Ok(socket)
    }

    /// Adds a TAP port; `more` are further options of `port add`.
    ///
    /// # Errors
    /// When the command fails.
    pub fn tap(&self, name: &str, network: &str, netns: &str, more: &str) -> Result<()> {
        let tap = format!("--kind tap --ifname {name} --netns {netns}");
        self.cli(&format!("port add {name} --network {network} {tap} {more}")).map(drop)
    }

    /// All ports.
    ///
    /// # Errors
    /// When the command fails or prints something else than the published type.
    pub fn ports(&self) -> Result<Vec<Port>> {
        let text = self.cli("port list --json")?;
        serde_json::from_str(&text).context(|| format!("port list --json printed {text}"))
    }

    /// One port.
    ///
    /// # Errors
    /// As [`Hayate::ports`], or when there is no such port.
    pub fn port(&self, name: &str) -> Result<Port> {
        let mut all = self.ports()?;
        let at = all.iter().position(|p| p.name.as_str() == name);
        Ok(all.swap_remove(at.context(|| format!("no port {name}"))?))
    }

    /// One disk.
    ///
    /// # Errors
    /// When the command fails or prints something else than the published type.
    pub fn disk(&self, name: &str) -> Result<Disk> {
        let text = self.cli(&format!("disk show {name} --json"))?;
        serde_json::from_str(&text).context(|| format!("disk show --json printed {text}"))
    }

    /// One image.
    ///
    /// # Errors
    /// As [`Hayate::disk`].
    pub fn image(&self, name: &str) -> Result<Image> {
        let text = self.cli(&format!("image show {name} --json"))?;
        serde_json::from_str(&text).context(|| format!("image show --json printed {text}"))
    }

    /// What QEMU, that of the tests, needs for a disk; `more` are further options.
    ///
    /// # Errors
    /// When the command fails.
    pub fn disk_qemu(&self, assets: &Assets, name: &str, more: &str) -> Result<Vec<String>> {
        let version: Vec<&str> = assets.qemu_version.split('.').take(2).collect();
        let version = version.join(".");
        let text = self.cli(&format!("disk qemu {name} --qemu-version {version} {more}"))?;
        Ok(text.split_whitespace().map(String::from).collect())
    }

    /// Waits until a port is in this state.
    ///
    /// # Errors
    /// When it is not within 30 s.
    pub fn wait_state(&self, name: &str, state: PortState) -> Result<Port> {
        let mut last = String::new();
        let what = format!("port {name} in state {}", state.as_str());
        wait_for(&what, Duration::from_secs(30), || {
            let p = self.port(name)?;
            last =
                format!("{} (failure {:?}, last {:?})", p.state.as_str(), p.failure, p.last_fault);
            pause(Duration::from_millis(40))?;
            Ok((p.state == state).then_some(p))
        })
        .map_err(|e| crate::Error::new(format!("{e}; it is {last}\n{}", tail(&self.log(), 2000))))
    }

    /// Sum of the counters over the ports of a network.
    ///
    /// # Errors
    /// As [`Hayate::ports`].
    pub fn balance(&self, network: &str) -> Result<Balance> {
        let mut b = Balance::default();
        for p in self.ports()?.iter().filter(|p| p.network.as_str() == network) {
            b.entered += p.from_port.frames;
            b.copies += p.flood_copies;
            b.left += p.to_port.frames;
            b.dropped += p.dropped();
            let n = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
            b.added += n(p.to_port.segments) - n(p.to_port.segmented);
        }
        Ok(b)
    }

    /// Every frame that entered a network left it or was dropped for a counted reason, and none
    /// came from nowhere. Waits up to 5 s for frames in flight and counters being updated.
    ///
    /// # Errors
    /// When the counters disagree; the text shows all of them.
    pub fn conserved(&self, network: &str) -> Result<Balance> {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let b = self.balance(network)?;
            if b.missing() == 0 {
                return Ok(b);
            }
            if Instant::now() > end {
                bail!(
                    "network {network}: {} frames not accounted for: {b:?}\n{}",
                    b.missing(),
                    self.counters(network)?
                );
            }
            pause(Duration::from_millis(100))?;
        }
    }

    /// Frames dropped in a network by reason, in words: `none`, or like `rx-queue-full 12`.
    ///
    /// # Errors
    /// As [`Hayate::ports`].
    pub fn drops(&self, network: &str) -> Result<String> {
        let mut sum = std::collections::BTreeMap::new();
        for p in self.ports()?.iter().filter(|p| p.network.as_str() == network) {
            for (reason, n) in &p.drops {
                *sum.entry(reason.clone()).or_insert(0) += n;
            }
        }
        let words: Vec<String> = sum.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        Ok(if words.is_empty() { "none".into() } else { words.join(", ") })
    }

    /// Counters of the ports of a network, for messages.
    ///
    /// # Errors
    /// As [`Hayate::ports`].
    pub fn counters(&self, network: &str) -> Result<String> {
        let mut text = String::new();
        for p in self.ports()?.iter().filter(|p| p.network.as_str() == network) {
            let _ = writeln!(
                text,
                "  {} {} {}: from {:?}\n    to {:?}\n    copies {} drops {:?}",
                p.name,
                p.state.as_str(),
                p.failure.as_deref().or(p.last_fault.as_deref()).unwrap_or_default(),
                p.from_port,
                p.to_port,
                p.flood_copies,
                p.drops
            );
        }
        Ok(text)
    }

    /// Dropping this value will not end the daemon.
    pub fn leave_running(&mut self) {
        if let Some(p) = &mut self.process {
            p.leave_running();
        }
    }
}

impl Drop for Hayate {
    fn drop(&mut self) {
        // A test that fails shows what the daemon said last.
        if std::thread::panicking() {
            eprintln!("--- daemon's log\n{}", tail(&self.log(), 4000));
        }
    }
}
