//! The daemon under callgrind, and what it counts.
//!
//! Collection is on in `Worker::pass` only. Whenever the worker reads its mailbox
//! (`Worker::obey`), callgrind writes out what was counted and starts anew from zero; so a command
//! of control, carried out between bursts, cuts one measurement from the next. The worker polls
//! without end (`polling = "always"`): valgrind 3.19 knows no `epoll_pwait2`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use api::Worker;
use e2e::hayate::Hayate;
use e2e::process::wait_for;
use e2e::{Context, Result, ensure};
use tempfile::TempDir;

use crate::cell::{self, Cell};
use crate::guest::Guest;
use crate::profile::{PASS, Profile, Sources};

/// The function at which counting starts anew.
const OBEY: &str = "dataplane::worker::Worker::obey";
const NETWORK: &str = "budget";
/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The daemon.
pub struct Switch {
    hayate: Hayate,
    dir: TempDir,
}

/// What was counted of one kind of traffic.
#[derive(Debug)]
pub struct Count {
    /// Frames delivered.
    pub frames: u64,
    /// The passes that took them, a burst each.
    pub bursts: Profile,
    /// A pass that found nothing.
    pub empty: Profile,
}

impl Switch {
    /// Starts one, the `nth`: each has a CPU of its own as long as there are any.
    ///
    /// # Errors
    /// When it, or valgrind, is not there.
    pub fn start(nth: usize) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hayate-budget-").tempdir()?;
        let config = dir.path().join("hayate.toml");
        let cpus = sys::affinity::allowed_cpus()?;
        let cpu = cpus.iter().cycle().nth(nth).context(|| "no CPU to run on".into())?;
        // One worker, however many CPUs there are.
        fs::write(&config, format!("polling = \"always\"\ncpus = \"{cpu}\"\n"))?;
        let out = format!("--callgrind-out-file={}", dir.path().join("dump").display());
        let under = [
            "valgrind",
            "--quiet",
            "--tool=callgrind",
            // Or else control waits long for the polling worker.
            "--fair-sched=yes",
            // What other threads do while the worker is interrupted in a pass is not its own.
            "--separate-threads=yes",
            "--collect-bus=yes",
            "--compress-strings=no",
            "--compress-pos=no",
            &format!("--toggle-collect={PASS}"),
            &format!("--dump-before={OBEY}"),
            &out,
        ];
        let config = config.to_string_lossy();
        let hayate = Hayate::start_under(&under, &["--config", &config])?;
        hayate.cli(&format!("network add {NETWORK} --mac-limit 65536"))?;
        hayate.network("aside")?;
        hayate.vhost("nobody", "aside", "")?;
        Ok(Self { hayate, dir })
    }

    /// Counts one kind of traffic.
    ///
    /// # Errors
    /// When a frame gets lost.
    pub fn count(&self, cell: &Cell) -> Result<Count> {
        let [from, to] = cell.ports;
        let from = self.hayate.vhost("from", NETWORK, from)?;
        let to = self.hayate.vhost("to", NETWORK, to)?;
        let mut sender = Guest::connect(&from, cell.packed, &cell.from_sender())?;
        let mut receiver = Guest::connect(&to, cell.packed, &[cell.from_receiver()])?;
        let crowd = cell.learns().then(|| self.crowd()).transpose()?;
        let empty = self.during(|| Ok(()))?.1.one();
        // It becomes known where the receiver is.
        exchange(&mut receiver, &mut sender, 1)?;
        if cell.known {
            self.rounds(cell, &mut sender, &mut receiver)?;
        }
        let before = self.hayate.port("to")?.to_port.frames;
        let (bursts, all) = self.during(|| self.rounds(cell, &mut sender, &mut receiver))?;
        let frames = self.hayate.port("to")?.to_port.frames - before;
        let sent = (cell.frames * cell.rounds) as u64;
        ensure!(
            frames == sent,
            "{}: {frames} of {sent} frames arrived\n{}",
            cell.name,
            self.hayate.counters(NETWORK)?
        );
        for port in ["from", "to"].into_iter().chain(crowd.map(|_| "crowd")) {
            self.hayate.cli(&format!("port del {port}"))?;
        }
        let found_nothing = all.passes.saturating_sub(bursts);
        Ok(Count { frames, bursts: all.without(found_nothing, &empty), empty })
    }

    /// A guest with many addresses. Room for addresses grows ahead of need, by the daemon's housekeeping or, if
    /// that comes too late, by the worker that learns, whose instructions would be counted. As long as these
    /// are known there is room for those of a cell, and it is not given back.
    fn crowd(&self) -> Result<Guest> {
        let frames = cell::crowd();
        let mut crowd = Guest::connect(&self.hayate.vhost("crowd", NETWORK, "")?, false, &frames)?;
        crowd.send(frames.len())?;
        wait_for("the crowd to be known", PATIENCE, || Ok(crowd.all_sent()?.then_some(())))?;
        Ok(crowd)
    }

    /// Sends all frames of a cell and waits until they are counted, and with them the passes that took them.
    fn rounds(&self, cell: &Cell, from: &mut Guest, to: &mut Guest) -> Result<()> {
        let end = self.worker()?.frames + (cell.frames * cell.rounds) as u64;
        (0..cell.rounds).try_for_each(|_| exchange(from, to, cell.frames))?;
        wait_for("the frames to be counted", PATIENCE, || {
            Ok((self.worker()?.frames >= end).then_some(()))
        })
    }

    /// What was executed meanwhile, and how many of its passes took frames.
    fn during(&self, work: impl FnOnce() -> Result<()>) -> Result<(u64, Profile)> {
        self.cut()?;
        let (first, busy) = (self.dumps()?.len(), self.worker()?.busy_polls);
        work()?;
        let busy = self.worker()?.busy_polls - busy;
        self.cut()?;
        let (mut profile, mut sources) = (Profile::default(), Sources::default());
        for dump in self.dumps()?.values().skip(first) {
            // The last one may still be on its way to the disk.
            let whole = wait_for("the end of a dump", PATIENCE, || {
                Ok(Some(fs::read_to_string(dump)?).filter(|text| text.contains("\ntotals: ")))
            })?;
            profile.add(&whole, &mut sources)?;
        }
        Ok((busy, profile))
    }

    /// Has the worker read its mailbox.
    fn cut(&self) -> Result<()> {
        self.hayate.cli("port set nobody --link auto").map(drop)
    }

    /// What callgrind wrote out, `dump.NUMBER-THREAD`, in order.
    fn dumps(&self) -> Result<BTreeMap<usize, PathBuf>> {
        let mut dumps = BTreeMap::new();
        for entry in fs::read_dir(self.dir.path())? {
            let path = entry?.path();
            let number =
                path.extension().and_then(|end| end.to_str()?.split('-').next()?.parse().ok());
            dumps.extend(number.map(|number| (number, path)));
        }
        ensure!(!dumps.is_empty(), "callgrind wrote nothing: is there a function {OBEY}?");
        Ok(dumps)
    }

    fn worker(&self) -> Result<Worker> {
        let text = self.hayate.cli("worker list --json")?;
        let workers: Vec<Worker> = serde_json::from_str(&text)?;
        workers.into_iter().next().context(|| "no worker".into())
    }
}

/// Sends frames and waits until the device has taken them all.
fn exchange(from: &mut Guest, to: &mut Guest, frames: usize) -> Result<()> {
    to.refill()?;
    from.send(frames)?;
    wait_for("the frames to be taken", PATIENCE, || Ok(from.all_sent()?.then_some(())))
}
