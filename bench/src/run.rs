//! A run: rounds in which every system has its turn.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use testkit::frontend::{Pages, SharedMemory};

use crate::cell::{Cell, Kind, Method, Rings};
use crate::generator::null::NullDevice;
use crate::generator::{GeneratorError, Packed, Ring, Split, Touch, Traffic};
use crate::hugepages::HugePages;
use crate::options::Options;
use crate::place::{Place, Probe};
use crate::report::{Outcome, Report};
use crate::sched::{Thread, Urgent};
use crate::sut::{self, Running, SutError, System, Topology, install};
use crate::window::{Watch, Window};

/// Where guest memory begins.
const GUEST_MEMORY: u64 = 1 << 30;
const HUGE_PAGE: u64 = 2 << 20;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Not root.
    #[error("bench needs root: for huge pages, real-time priority and the switches' packages")]
    Root,
    /// Too few CPUs.
    #[error(
        "CPUs {switch} and {guests} are needed for switch and guests, this process may use {allowed:?}; \
         name others with --cpus"
    )]
    Cpus {
        /// CPU of the switch.
        switch: usize,
        /// CPU of the guests.
        guests: usize,
        /// What there is.
        allowed: Vec<usize>,
    },
    /// Too little memory.
    #[error("huge pages: {source}; free memory, or reserve them when the machine starts")]
    HugePages {
        /// The reason.
        source: io::Error,
    },
    /// A switch.
    #[error(transparent)]
    Sut(#[from] SutError),
    /// Something of the system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
        let what = what.into();
        move |source| BenchError::Io { what, source }
    }
}

/// Measures what was asked for and writes the report; the files written.
///
/// `command` is what was typed, for the report.
///
/// # Errors
/// See [`BenchError`]. A system that cannot do a cell is no error: the report says so.
pub fn run(options: &Options, command: &str) -> Result<Vec<PathBuf>, BenchError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(BenchError::io("signals cannot be caught"))?;
    }
    let report = measure(options, command, &interrupted)?;
    report.write(&options.out).map_err(BenchError::io(format!("{}", options.out.display())))
}

fn measure(
    options: &Options,
    command: &str,
    interrupted: &AtomicBool,
) -> Result<Report, BenchError> {
    let place = options.cpus;
    check(place)?;
    let mut progress = Progress::new();
    for &system in &options.systems {
        install::install(system.packages(), &mut |text| progress.line(text))?;
    }
    let cells = options.chosen();
    let memory = memory_size(&cells);
    let mut pages = HugePages::new();
    let huge = |source| BenchError::HugePages { source };
    let _urgent = Urgent::new();
    let probe = Probe::new(place.switch).map_err(BenchError::io("the probe cannot be started"))?;

    let mut turns: BTreeMap<Cell, Vec<Outcome>> = BTreeMap::new();
    let touch = Touch::from(options.touch);
    for round in 0..options.rounds {
        // The same pages for all systems of a round.
        pages.ensure(memory / HUGE_PAGE).map_err(huge)?;
        let memory = guest_memory(memory)?;
        for (topology, cells) in by_topology(&cells) {
            for &system in &options.systems {
                if interrupted.load(Ordering::Relaxed) {
                    return Err(BenchError::Interrupted);
                }
                pages.ensure(system.hugepages()).map_err(huge)?;
                let running = sut::start(system, &topology, place);
                for cell in &cells {
                    let turn = Turn {
                        cell,
                        touch,
                        place,
                        memory: &memory,
                        probe: &probe,
                        wanted: options.windows as usize,
                        patience: Duration::from_secs(options.patience.into()),
                        round,
                        interrupted,
                    };
                    let taken = match &running {
                        Ok(running) => turn.take(running.as_ref()).map_err(|error| chain(&error)),
                        Err(error) => Err(chain(error)),
                    };
                    progress.cell(round, cell, system, &taken);
                    Outcome::record(turns.entry(*cell).or_default(), *cell, system, taken);
                }
            }
        }
    }
    if interrupted.load(Ordering::Relaxed) {
        return Err(BenchError::Interrupted);
    }
    let outcomes = cells.iter().filter_map(|cell| turns.remove(cell)).flatten().collect();
    Ok(Report::new(options, command, outcomes))
}

fn check(place: Place) -> Result<(), BenchError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BenchError::Root);
    }
    let allowed = sys::affinity::allowed_cpus().map_err(BenchError::io("CPUs"))?;
    let Place { switch, guests } = place;
    if !allowed.contains(&switch) || !allowed.contains(&guests) {
        return Err(BenchError::Cpus { switch, guests, allowed });
    }
    Ok(())
}

/// Guest memory in huge pages, all of them there.
fn guest_memory(bytes: u64) -> Result<SharedMemory, BenchError> {
    let memory = SharedMemory::new(&[(GUEST_MEMORY, bytes)], Pages::Huge)
        .map_err(BenchError::io("guest memory cannot be made"))?;
    for page in (GUEST_MEMORY..GUEST_MEMORY + bytes).step_by(HUGE_PAGE as usize) {
        if let Some(place) = memory.guest().slice(page, 8) {
            place.copy_from(&[0; 8]);
        }
    }
    if memory.guest().faulted() {
        let source = io::Error::new(io::ErrorKind::OutOfMemory, "others took them meanwhile");
        return Err(BenchError::HugePages { source });
    }
    Ok(memory)
}

/// Guest memory for the largest of the cells.
fn memory_size(cells: &[Cell]) -> u64 {
    let needed = cells.iter().map(|cell| {
        let topology = cell.topology();
        let frame = u64::from(cell.size.max(1518)) + 256;
        let queues = u64::from(topology.ports) * u64::from(topology.queues);
        let sent = u64::from(cell.flows) * (u64::from(cell.size) + 256);
        queues * (2 * 256 * frame + 64 * 1024) + queues * sent
    });
    (needed.max().unwrap_or(0) + (8 << 20)).next_multiple_of(32 << 20)
}

/// Cells by the switch they need, in their order.
fn by_topology(cells: &[Cell]) -> Vec<(Topology, Vec<Cell>)> {
    let mut groups: Vec<(Topology, Vec<Cell>)> = Vec::new();
    for cell in cells {
        let topology = cell.topology();
        match groups.iter_mut().find(|(of, _)| *of == topology) {
            Some((_, group)) => group.push(*cell),
            None => groups.push((topology, vec![*cell])),
        }
    }
    groups
}

/// An error and its causes, as one sentence.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// One cell of one system in one round.
struct Turn<'a> {
    cell: &'a Cell,
    touch: Touch,
    place: Place,
    memory: &'a SharedMemory,
    probe: &'a Probe,
    wanted: usize,
    patience: Duration,
    round: u32,
    interrupted: &'a AtomicBool,
}

impl Turn<'_> {
    /// Takes its windows, on a thread of its own on the guests' CPU.
    fn take(&self, running: Option<&Running>) -> Result<Vec<Window>, GeneratorError> {
        thread::scope(|scope| {
            let work = || {
                // Without them the windows do not count, which shows.
                let _ = sys::affinity::pin_current_thread(self.place.guests);
                let _ = rustix::process::setpriority_process(None, -20);
                match self.cell.rings {
                    Rings::Packed => self.take_with::<Packed>(running),
                    Rings::Split => self.take_with::<Split>(running),
                }
            };
            match scope.spawn(work).join() {
                Ok(taken) => taken,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    fn take_with<R: Ring>(&self, running: Option<&Running>) -> Result<Vec<Window>, GeneratorError> {
        let spec = self.cell.traffic(self.touch);
        let Some(running) = running else { return self.take_limit::<R>() };
        let ports = usize::from(self.cell.topology().ports);
        let sockets = running.sockets.get(..ports).ok_or(GeneratorError::Pairing)?;
        let mut traffic = Traffic::<R>::connect(sockets, &spec, self.memory)?;
        let windows = self.watch(&running.thread).take(&mut traffic, self.cell.method());
        // A switch that does not answer any more is found out by the next cell.
        let _ = traffic.disconnect();
        windows
    }

    /// Against a device that does nothing, on the switch's CPU.
    fn take_limit<R: Ring>(&self) -> Result<Vec<Window>, GeneratorError> {
        if self.cell.kind == Kind::VmLoopback {
            // What is forwarded there is nobody's frame.
            return Ok(Vec::new());
        }
        let spec = self.cell.traffic(self.touch);
        let ports = usize::from(self.cell.topology().ports);
        let (mut device, mut traffic) = NullDevice::traffic::<R>(ports, &spec, self.memory)?;
        device.eager = self.cell.method() != Method::Flood;
        let stop = AtomicBool::new(false);
        let (device, stop) = (&mut device, &stop);
        thread::scope(|scope| {
            let (said, heard) = mpsc::channel();
            scope.spawn(move || {
                let _ = sys::affinity::pin_current_thread(self.place.switch);
                let _ = said.send(Thread::current());
                device.run(stop);
            });
            let windows = match heard.recv() {
                Ok(thread) => self.watch(&thread).take(&mut traffic, self.cell.method()),
                Err(_) => Ok(Vec::new()),
            };
            stop.store(true, Ordering::Relaxed);
            windows
        })
    }

    fn watch<'w>(&'w self, switch: &'w Thread) -> Watch<'w> {
        Watch {
            probe: self.probe,
            switch,
            wanted: self.wanted,
            patience: self.patience,
            round: self.round,
            interrupted: self.interrupted,
        }
    }
}

/// What is said while it goes on, on standard error.
struct Progress {
    start: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress { start: Instant::now() }
    }

    fn line(&mut self, text: &str) {
        let seconds = self.start.elapsed().as_secs();
        // Whoever closed standard error does not want to know.
        let _ = writeln!(io::stderr(), "{:>3}:{:02}  {text}", seconds / 60, seconds % 60);
    }

    fn cell(
        &mut self,
        round: u32,
        cell: &Cell,
        system: System,
        taken: &Result<Vec<Window>, String>,
    ) {
        let found = match taken {
            Ok(windows) => crate::report::one_line(cell, windows),
            Err(problem) => problem.clone(),
        };
        let (kind, rings, label) = (name(cell.kind), cell.rings.as_str(), cell.label());
        let (round, system) = (round + 1, system.as_str());
        self.line(&format!(
            "round {round}  {kind:<15} {rings:<6} {label:<14} {system:<17} {found}"
        ));
    }
}

/// A table's name as it is typed.
pub(crate) fn name(kind: Kind) -> String {
    use clap::ValueEnum;
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
