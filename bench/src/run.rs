//! A run: rounds in which every system has its turn, and more of them for what lacks windows.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use testkit::frontend::{Pages, SharedMemory};

use crate::aim::{self, Aim};
use crate::cell::{Cell, Kind, Method, Rings};
use crate::disk;
use crate::generator::null::NullDevice;
use crate::generator::tap::TapDevice;
use crate::generator::{CardSpec, GeneratorError, Packed, Ring, Split, Traffic, TrafficSpec};
use crate::hugepages::HugePages;
use crate::options::Options;
use crate::place::{Place, Probe};
use crate::report::{Outcome, Report};
use crate::sched::{Thread, Urgent};
use crate::sut::{self, Rig, SutError, System, Topology, install};
use crate::vf;
use crate::wake::WakeUp;
use crate::window::{Taken, Watch, Window};

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
    /// Nothing to do.
    #[error(
        "nothing to measure: none of the systems is in the tables chosen; see --cells, --systems, --disk-systems and \
         --disk-only"
    )]
    Nothing,
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
    #[error("interrupted; what was measured until then is in {}", out.display())]
    Interrupted {
        /// The directory of the report.
        out: PathBuf,
    },
}

impl BenchError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
        let what = what.into();
        move |source| BenchError::Io { what, source }
    }
}

/// Measures what was asked for and writes the report, after each round and at the end; the files
/// written.
///
/// `command` is what was typed, for the report.
///
/// # Errors
/// See [`BenchError`]; what was measured until then has been written. A system that cannot do a
/// cell is no error: the report says so.
pub fn run(options: &Options, command: &str) -> Result<Vec<PathBuf>, BenchError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(BenchError::io("signals cannot be caught"))?;
    }
    let mut run = Run::new(options, command, &interrupted)?;
    let measured = run.measure();
    let files = run.write();
    measured.and(files)
}

/// A run and what it has found so far.
struct Run<'a> {
    options: &'a Options,
    command: &'a str,
    interrupted: &'a AtomicBool,
    cells: Vec<Cell>,
    wake: Option<WakeUp>,
    outcomes: BTreeMap<Cell, Vec<Outcome>>,
    disks: disk::Run<'a>,
    pods: vf::Run<'a>,
    progress: Progress,
}

impl<'a> Run<'a> {
    fn new(
        options: &'a Options,
        command: &'a str,
        interrupted: &'a AtomicBool,
    ) -> Result<Run<'a>, BenchError> {
        check(options.cpus)?;
        let cells = options.chosen();
        let of = |cell: &Cell| options.systems.iter().filter(|s| s.takes_part(cell)).count();
        let turns = options.rounds as usize * cells.iter().map(of).sum::<usize>();
        let mut progress = Progress { start: Instant::now(), done: 0, turns };
        let disks = disk::Run::new(options, interrupted, &mut |text| progress.line(text))?;
        let pods = vf::Run::new(options, interrupted);
        progress.turns += disks.turns() + pods.turns();
        if progress.turns == 0 {
            return Err(BenchError::Nothing);
        }
        for system in options.systems.iter().filter(|s| cells.iter().any(|c| s.takes_part(c))) {
            install::install(system.packages(), &mut |text| progress.line(text))?;
        }
        let wake = WakeUp::measure(options.cpus);
        let outcomes = BTreeMap::new();
        Ok(Run { options, command, interrupted, cells, wake, outcomes, disks, pods, progress })
    }

    fn measure(&mut self) -> Result<(), BenchError> {
        let place = self.options.cpus;
        let size = memory_size(&self.cells);
        let mut pages = HugePages::new();
        let urgent = Urgent::new();
        let probe =
            Probe::new(place.switch).map_err(BenchError::io("the probe cannot be started"))?;
        let rounds = self.options.rounds;
        for round in 0..rounds + self.options.more_rounds {
            if round >= rounds {
                self.progress.turns += self.due(round).count();
            }
            if self.due(round).next().is_none() {
                break;
            }
            if round > 0 {
                self.write()?;
            }
            // The same pages for all systems of a round.
            pages.ensure(size / HUGE_PAGE).map_err(huge)?;
            let memory = guest_memory(size)?;
            for (topology, cells) in by_topology(&self.cells) {
                let turns = Turns { topology: &topology, memory: &memory, probe: &probe, round };
                self.turns(&turns, &cells, &mut pages)?;
            }
        }
        drop((pages, urgent));
        self.pods()?;
        if self.disks.any() {
            let mut bench = self.disks.bench()?;
            for round in 0..self.options.rounds {
                self.disks.round(&mut bench, (round, &probe), &mut self.progress)?;
                if round + 1 < self.options.rounds {
                    self.write()?;
                }
            }
        }
        Ok(())
    }

    /// Turns of a round: all, and in those that are added only of what lacks windows.
    fn due(&self, round: u32) -> impl Iterator<Item = (Cell, System)> {
        let all = self.cells.iter().flat_map(|cell| {
            let systems = self.options.systems.iter().filter(|system| system.takes_part(cell));
            systems.map(move |system| (*cell, *system))
        });
        all.filter(move |(cell, system)| {
            round < self.options.rounds || self.aim(cell, *system, round).windows > 0
        })
    }

    /// What a turn of a system is to find.
    fn aim(&self, cell: &Cell, system: System, round: u32) -> Aim {
        let Options { rounds, windows, .. } = *self.options;
        let goal = aim::goal(rounds, windows);
        let regime = self.table(cell, goal).regime();
        let windows = match regime {
            Some(regime) if round >= rounds => aim::missing(self.of(cell), system, regime, goal),
            _ => windows as usize,
        };
        Aim { regime, windows }
    }

    /// The table that a cell is in.
    fn table(&self, of: &Cell, goal: usize) -> aim::Table<'_> {
        let cells = self.cells.iter().filter(|cell| (cell.kind, cell.rings) == (of.kind, of.rings));
        let able =
            |cell: &Cell, system: &System| system.takes_part(cell) && system.cannot(cell).is_none();
        let systems =
            |cell| self.options.systems.iter().copied().filter(|s| able(cell, s)).collect();
        let cells = cells.map(|cell| (self.of(cell), systems(cell))).collect();
        aim::Table { cells, goal }
    }

    /// What was found of a cell.
    fn of(&self, cell: &Cell) -> &[Outcome] {
        self.outcomes.get(cell).map_or(&[], Vec::as_slice)
    }

    /// All of pods.
    fn pods(&mut self) -> Result<(), BenchError> {
        let mut lab = None;
        for round in 0..self.pods.rounds() {
            self.pods.round(&mut lab, round, &mut self.progress)?;
            self.write()?;
        }
        Ok(())
    }

    /// The turns in cells that need the same of a switch: those of a cell one right after the other,
    /// while the host is as it is. The other switches wait meanwhile, or are ended if they cannot.
    fn turns(
        &mut self,
        turns: &Turns<'_>,
        cells: &[Cell],
        pages: &mut HugePages,
    ) -> Result<(), BenchError> {
        let mut due: Vec<(Cell, System)> =
            self.due(turns.round).filter(|(cell, _)| cells.contains(cell)).collect();
        if !turns.topology.can_wait() {
            due.sort_by_key(|(_, system)| self.options.systems.iter().position(|s| s == system));
        }
        let mut rigs = Rigs::new();
        for (cell, system) in due {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted { out: self.options.out.clone() });
            }
            let aim = self.aim(&cell, system, turns.round);
            if aim.windows == 0 {
                // The table aims at another regime since this round began.
                self.progress.turns -= 1;
                continue;
            }
            // One that ended in its last turn is started again; one that could not be started is not.
            rigs.retain(|of, rig| {
                let waits = turns.topology.can_wait() || *of == system;
                waits && rig.as_mut().map_or(true, Rig::alive)
            });
            if !rigs.contains_key(&system) {
                pages.ensure(system.hugepages()).map_err(huge)?;
            }
            let (windows, problem) = match system.cannot(&cell) {
                Some(reason) => (Vec::new(), Some(reason.to_owned())),
                None => self.turn(turns, (&cell, system), aim, &mut rigs),
            };
            self.progress.cell((turns.round, system), &cell, &windows, problem.as_deref());
            let outcomes = self.outcomes.entry(cell).or_default();
            Outcome::record(outcomes, cell, system, windows, problem);
        }
        Ok(())
    }

    /// One of them.
    fn turn(
        &self,
        turns: &Turns<'_>,
        (cell, system): (&Cell, System),
        aim: Aim,
        rigs: &mut Rigs,
    ) -> (Vec<Window>, Option<String>) {
        let start = || sut::start(system, turns.topology, self.options.cpus).map_err(|e| chain(&e));
        let rig = match rigs.entry(system).or_insert_with(start) {
            Ok(rig) => rig,
            Err(problem) => return (Vec::new(), Some(problem.clone())),
        };
        let turn = Turn { cell, turns, aim, options: self.options, interrupted: self.interrupted };
        rig.go_on();
        let (windows, error) = turn.take(rig);
        rig.pause();
        let ended = || Some("it ended in the middle, and was started again".to_owned());
        let problem = if rig.alive() { error.map(|error| chain(&error)) } else { ended() };
        (windows, problem)
    }

    /// Writes what there is so far.
    fn write(&self) -> Result<Vec<PathBuf>, BenchError> {
        let outcomes = self.cells.iter().flat_map(|cell| self.of(cell)).cloned().collect();
        let out = &self.options.out;
        let report =
            Report::new(self.options, self.command, self.wake, outcomes, self.disks.found());
        let report = Report { pods: self.pods.found(), ..report };
        report.write(out).map_err(BenchError::io(format!("{}", out.display())))
    }
}

/// Switches that were started, or why they could not be.
type Rigs = BTreeMap<System, Result<Rig, String>>;

/// What the turns of a round have in common in which the same is needed of a switch.
struct Turns<'a> {
    topology: &'a Topology,
    memory: &'a SharedMemory,
    probe: &'a Probe,
    round: u32,
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

fn huge(source: io::Error) -> BenchError {
    BenchError::HugePages { source }
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
        let entries = 2 * u64::from(cell.entries);
        queues * (entries * frame + 64 * 1024)
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
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
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
    turns: &'a Turns<'a>,
    aim: Aim,
    options: &'a Options,
    interrupted: &'a AtomicBool,
}

impl Turn<'_> {
    /// Takes its windows, on a thread of its own on the guests' CPU.
    fn take(&self, rig: &mut Rig) -> Taken {
        thread::scope(|scope| {
            let work = || {
                // Without them the windows do not count, which shows.
                let _ = sys::affinity::pin_current_thread(self.options.cpus.guests);
                let _ = rustix::process::setpriority_process(None, -20);
                if self.cell.shares_cpu() {
                    // When it is the guests' turn nobody else has it; as above.
                    let thread = rustix::thread::gettid().to_string();
                    let _ = sut::process::run(&["chrt", "--fifo", "--pid", "1", &thread], &[]);
                }
                let taken = match self.cell.rings {
                    Rings::Packed => self.take_with::<Packed>(rig),
                    Rings::Split => self.take_with::<Split>(rig),
                };
                taken.unwrap_or_else(|error| (Vec::new(), Some(error)))
            };
            match scope.spawn(work).join() {
                Ok(taken) => taken,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    fn take_with<R: Ring>(&self, rig: &mut Rig) -> Result<Taken, GeneratorError> {
        let (spec, memory) = (self.cell.traffic(), self.turns.memory);
        let ports = usize::from(self.cell.topology().ports);
        match rig {
            Rig::Switch(switch) => {
                let sockets = switch.sockets.get(..ports).ok_or(GeneratorError::Pairing)?;
                let card = CardSpec { listen: switch.connects, ..spec.card };
                let spec = TrafficSpec { card, ..spec };
                let mut traffic = Traffic::<R>::connect(sockets, &spec, memory)?;
                let thread = switch.thread.clone();
                let taken = self.watch(&thread).take(&mut traffic, Some(switch));
                // A switch that does not answer any more is found out by the next cell.
                let _ = traffic.disconnect();
                Ok(taken)
            }
            Rig::Bridge(bridge) => {
                let taps = bridge.taps.get(..ports).ok_or(GeneratorError::Pairing)?;
                let (mut device, mut traffic) = TapDevice::traffic::<R>(taps, &spec, memory)?;
                self.beside(
                    move |stop| device.run(stop),
                    |thread| {
                        traffic.learn()?;
                        Ok(self.watch(thread).take(&mut traffic, None))
                    },
                )
            }
            Rig::Null => {
                let (mut device, mut traffic) = NullDevice::traffic::<R>(ports, &spec, memory)?;
                device.eager = self.cell.method() != Method::Flood;
                self.beside(
                    move |stop| device.run(stop),
                    |thread| Ok(self.watch(thread).take(&mut traffic, None)),
                )
            }
        }
    }

    /// Takes windows while a device of this program runs on the switch's CPU.
    fn beside(
        &self,
        device: impl FnOnce(&AtomicBool) + Send,
        take: impl FnOnce(&Thread) -> Result<Taken, GeneratorError>,
    ) -> Result<Taken, GeneratorError> {
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let (said, heard) = mpsc::channel();
            scope.spawn(move || {
                let _ = sys::affinity::pin_current_thread(self.options.cpus.switch);
                let _ = said.send(Thread::current());
                device(stop);
            });
            let taken = match heard.recv() {
                Ok(thread) => take(&thread),
                Err(_) => Ok((Vec::new(), None)),
            };
            stop.store(true, Ordering::Relaxed);
            taken
        })
    }

    fn watch<'w>(&'w self, thread: &'w Thread) -> Watch<'w> {
        Watch {
            probe: self.turns.probe,
            thread,
            cell: self.cell,
            aim: self.aim,
            patience: Duration::from_secs(self.options.patience.into()),
            round: self.turns.round,
            interrupted: self.interrupted,
        }
    }
}

/// What is said while it goes on, on standard error.
pub(crate) struct Progress {
    start: Instant,
    /// Turns so far, and in all.
    done: usize,
    turns: usize,
}

impl Progress {
    pub(crate) fn line(&mut self, text: &str) {
        let seconds = self.start.elapsed().as_secs();
        // Whoever closed standard error does not want to know.
        let _ = writeln!(io::stderr(), "{:>3}:{:02}  {text}", seconds / 60, seconds % 60);
    }

    /// One more turn, and what was found.
    pub(crate) fn turn(&mut self, text: &str) {
        self.done += 1;
        self.line(&format!("{:>4}/{}  {text}", self.done, self.turns));
    }

    fn cell(
        &mut self,
        (round, system): (u32, System),
        cell: &Cell,
        windows: &[Window],
        problem: Option<&str>,
    ) {
        let found = match problem {
            Some(problem) => problem.to_owned(),
            None => crate::report::one_line(cell, windows),
        };
        let (kind, rings, label) = (name(cell.kind), cell.rings.as_str(), cell.label());
        let (round, system) = (round + 1, system.as_str());
        self.turn(&format!(
            "round {round}  {kind:<15} {rings:<6} {label:<21} {system:<17} {found}"
        ));
    }
}

/// A table's name as it is typed.
pub(crate) fn name(kind: Kind) -> String {
    use clap::ValueEnum;
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
