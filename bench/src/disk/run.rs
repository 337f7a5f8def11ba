//! Rounds in which every back end has its turn at each cell, right after one another.
//!
//! Nothing here is urgent to the scheduler: the kernel's threads that complete what is read and
//! written would have to wait for it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blkclient::{Client, ClientError, Shape, Wait};
use clap::ValueEnum;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::cell::{Access, Cell, IDLE, Job, Medium, QUEUES};
use super::client::{CHECKED, at_work, check};
use super::files::{self, FileLoad};
use super::fio::Target;
use super::guest::Lab;
use super::hayate;
use super::load::{Load, LoadError};
use super::mounts;
use super::report::{Disks, Outcome};
use super::sut::{self, Aio, Backend, Disks as Served, Images, System};
use super::window::{LENGTH, SETTLE, Taken, Watch};
use crate::options::Options;
use crate::place::Probe;
use crate::report::Version;
use crate::run::{BenchError, Progress, chain};
use crate::sut::{SutError, install};

/// Bytes of a disk that is to be idle.
const SMALL: u64 = 1 << 20;
/// Turns of each way in which qemu-storage-daemon can read and write files.
const TRIES: usize = 3;
/// How long idle disks are left alone before they are looked at.
const CALM: Duration = Duration::from_millis(500);

/// A network for all that is started from now on, in which TCP is what Linux makes it by default, whatever this machine
/// is set to: BBR waits for timers between segments, which within a machine is most of what takes time. A machine may
/// not allow CUBIC to a network; Reno, which within a machine does the same, it does.
fn own_network() -> Result<(), SutError> {
    const SET_UP: &str = "ip link set lo up &&
        cd /proc/sys/net/ipv4 &&
        { echo cubic >tcp_congestion_control || echo reno >tcp_congestion_control; } 2>/dev/null &&
        echo ready && read -r end";
    let failed = || SutError::io("a network namespace cannot be made");
    let mut maker = Command::new("unshare")
        .args(["--net", "--", "sh", "-c", SET_UP])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed())?;
    // When it has said something, or ended.
    let said = maker.stdout.take().map(BufReader::new).and_then(|output| output.lines().next());
    said.ok_or(ErrorKind::BrokenPipe.into()).flatten().map_err(failed())?;
    let network = File::open(format!("/proc/{}/ns/net", maker.id())).map_err(failed())?;
    let moved = move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network));
    drop(maker.stdin.take());
    maker.wait().map_err(failed())?;
    moved.map_err(|error| failed()(error.into()))
}

/// What is kept for all rounds.
pub(crate) struct Bench {
    /// Back ends that run, or why one does not. They end before their images go.
    rigs: BTreeMap<(System, Medium), Result<Backend, String>>,
    /// The guest, or why there is none.
    lab: Option<Result<Lab, String>>,
    images: BTreeMap<Medium, Images>,
}

/// What has been found so far of disks.
pub struct Run<'a> {
    options: &'a Options,
    interrupted: &'a AtomicBool,
    cells: Vec<Cell>,
    outcomes: BTreeMap<Cell, Vec<Outcome>>,
    /// How qemu-storage-daemon read and wrote, and other things that were chosen.
    notes: BTreeMap<Medium, Aio>,
    /// What the guest is.
    about_guest: Option<String>,
}

impl<'a> Run<'a> {
    /// Nothing yet; what it needs is installed.
    ///
    /// # Errors
    /// A package cannot be installed.
    pub fn new(
        options: &'a Options,
        interrupted: &'a AtomicBool,
        say: &mut dyn FnMut(&str),
    ) -> Result<Run<'a>, SutError> {
        let cells = options.disk_cells();
        for system in options.disk_systems.iter().filter(|s| cells.iter().any(|c| s.takes_part(c)))
        {
            install::install(system.packages(), say)?;
        }
        let (outcomes, notes, about_guest) = (BTreeMap::new(), BTreeMap::new(), None);
        Ok(Run { options, interrupted, cells, outcomes, notes, about_guest })
    }

    /// Turns in all.
    #[must_use]
    pub fn turns(&self) -> usize {
        let of =
            |cell: &Cell| self.options.disk_systems.iter().filter(|s| s.takes_part(cell)).count();
        self.options.rounds as usize * self.cells.iter().map(of).sum::<usize>()
    }

    /// What there is so far; none: no such cell was chosen.
    #[must_use]
    pub fn found(&self) -> Option<Disks> {
        if self.cells.is_empty() {
            return None;
        }
        let of = |cell: &Cell| self.outcomes.get(cell).into_iter().flatten().cloned();
        let version = |&system: &System| Version { system, version: system.version() };
        Some(Disks {
            systems: self.options.disk_systems.iter().map(version).collect(),
            size: self.options.disk_size << 20,
            polls: self.options.disk_wait == Waiting::Poll,
            aio: self.notes.iter().map(|(&medium, aio)| (medium, aio.as_str().into())).collect(),
            guest: self.about_guest.clone(),
            outcomes: self.cells.iter().flat_map(of).collect(),
        })
    }

    /// Images for all rounds, and no back end yet; from now on this thread is in a network of its own.
    ///
    /// # Errors
    /// There is no such directory, or nothing can be written there.
    pub(crate) fn bench(&self) -> Result<Bench, SutError> {
        own_network()?;
        let mut images = BTreeMap::new();
        for medium in [Medium::Tmpfs, Medium::Disk] {
            let uses = |cell: &Cell| cell.job.is_some() && cell.medium == medium && !cell.guest;
            if self.cells.iter().any(uses) {
                images.insert(medium, self.images(medium, self.options.disk_size << 20)?);
            }
        }
        Ok(Bench { rigs: BTreeMap::new(), lab: None, images })
    }

    /// Whether there is anything to measure.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.cells.is_empty()
    }

    /// A round.
    ///
    /// # Errors
    /// It was interrupted.
    pub(crate) fn round(
        &mut self,
        bench: &mut Bench,
        (round, probe): (u32, &Probe),
        progress: &mut Progress,
    ) -> Result<(), BenchError> {
        let mut systems = self.options.disk_systems.clone();
        // Who comes after somebody else may find the disk, or the machine, otherwise than who comes first.
        if round % 2 == 1 {
            systems.reverse();
        }
        for cell in self.cells.clone() {
            for system in systems.iter().filter(|system| system.takes_part(&cell)) {
                if self.interrupted.load(Ordering::Relaxed) {
                    return Err(BenchError::Interrupted { out: self.options.out.clone() });
                }
                let watch = self.watch(probe, round, cell.medium);
                let taken = match cell.job {
                    Some(job) if cell.guest => {
                        self.guest(*system, (&cell, &job), bench, &watch, progress)
                    }
                    Some(job) => self.job(*system, (&cell, &job), bench, &watch, progress),
                    None => self.idle(*system, &watch),
                };
                let (windows, problem) = match taken {
                    Ok((windows, error)) => (windows, error.map(|error| chain(&error))),
                    Err(problem) => (Vec::new(), Some(problem)),
                };
                let found = match &problem {
                    Some(problem) => crate::sut::brief(problem),
                    None => super::report::one_line(&windows),
                };
                let (medium, label) = (cell.medium.as_str(), cell.label());
                progress.turn(&format!(
                    "round {}  {medium:<5} {label:<36} {:<26} {found}",
                    round + 1,
                    system.as_str()
                ));
                let outcomes = self.outcomes.entry(cell).or_default();
                Outcome::record(outcomes, cell, *system, windows, problem);
            }
        }
        Ok(())
    }

    fn watch<'w>(&self, probe: &'w Probe, round: u32, medium: Medium) -> Watch<'w>
    where
        'a: 'w,
    {
        Watch {
            probe,
            wanted: self.options.windows as usize,
            patience: Duration::from_secs(self.options.patience.into()),
            round,
            medium,
            forget: None,
            interrupted: self.interrupted,
        }
    }

    fn images(&self, medium: Medium, size: u64) -> Result<Images, SutError> {
        let dir = match medium {
            Medium::Tmpfs => &self.options.tmpfs_dir,
            Medium::Disk => &self.options.disk_dir,
        };
        Images::new(dir, medium, size)
    }

    /// A turn of requests.
    fn job(
        &mut self,
        system: System,
        (cell, job): (&Cell, &Job),
        bench: &mut Bench,
        watch: &Watch<'_>,
        progress: &mut Progress,
    ) -> Result<Taken, String> {
        let Bench { rigs, images, lab } = bench;
        // A guest that has nothing to do has a timer.
        *lab = None;
        let images = images.get(&cell.medium).ok_or("there are no images")?;
        let place = self.options.cpus;
        if system == System::Fio {
            let file = images.file(0).map_err(|error| chain(&error))?;
            let (target, log) = (Target::File(&file), file.with_extension("fio"));
            let size = images.size();
            return Ok(self.beside(|| watch.fio(job, target, &log, size, place.switch)));
        }
        let key = (system, images.medium());
        if cell.remote {
            // One disk writes an image: those that have the file open by a store make way.
            // Those on Gfarm have a file of their own.
            let apart = |system: System| !system.takes_part(cell) || system.on_gfarm();
            rigs.retain(|there, _| *there == key || apart(there.0));
        }
        if let Some(Ok(there)) = rigs.get_mut(&key)
            && !there.alive()
        {
            rigs.remove(&key);
        }
        let rig = match rigs.entry(key) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                progress.line(&format!("starting {} on {}", system.as_str(), key.1.as_str()));
                free.insert(self.start(system, images))
            }
        };
        let backend = rig.as_mut().map_err(|problem| problem.clone())?;
        let wait = self.options.disk_wait.into();
        let there = &*backend;
        let watch = &Watch { forget: cell.cold.then_some(there), ..*watch };
        if let Some(uri) = backend.uri.clone() {
            let server = backend.pids().first().copied().unwrap_or_default();
            let (target, log) = (Target::Nbd(&uri, server), images.dir().join("nbd.fio"));
            let size = images.size();
            let taken = self.beside(|| watch.fio(job, target, &log, size, place.guests));
            return if backend.alive() {
                Ok(taken)
            } else {
                Err("it ended in the middle".to_owned())
            };
        }
        if let Some(path) = backend.path.clone() {
            let size = images.size();
            let taken = self.beside(|| match FileLoad::new(&path, *job, size) {
                Ok(load) => watch.file(&load, there),
                Err(error) => (Vec::new(), Some(error)),
            });
            return if backend.alive() {
                Ok(taken)
            } else {
                Err("it ended in the middle".to_owned())
            };
        }
        let taken = self.beside(|| match at_work(there, job, images.size(), wait) {
            Ok(mut client) => match Load::new(&mut client, *job, images.size()) {
                Ok(mut load) => watch.load(&mut load, there),
                Err(error) => (Vec::new(), Some(error)),
            },
            Err(error) => (Vec::new(), Some(error)),
        });
        if backend.alive() { Ok(taken) } else { Err("it ended in the middle".to_owned()) }
    }

    /// A turn of requests in the guest.
    fn guest(
        &mut self,
        system: System,
        (cell, job): (&Cell, &Job),
        bench: &mut Bench,
        watch: &Watch<'_>,
        progress: &mut Progress,
    ) -> Result<Taken, String> {
        let Bench { rigs, lab, .. } = bench;
        rigs.clear();
        if lab.as_mut().is_some_and(|lab| lab.as_mut().is_ok_and(|lab| !lab.alive())) {
            *lab = None;
        }
        let lab = lab.get_or_insert_with(|| {
            progress.line("starting a guest with a disk of each system");
            let systems = self.options.disk_systems.iter().filter(|s| s.takes_part(cell));
            let systems: Vec<System> = systems.copied().collect();
            Lab::start(self.options, &systems, |system, images| self.start(system, images))
        });
        let lab = lab.as_mut().map_err(|problem| problem.clone())?;
        self.about_guest = Some(lab.about.clone());
        lab.ready(system)?;
        let taken = self.beside(|| watch.guest(job, lab, system));
        lab.ready(system).map(|()| taken)
    }

    /// Starts a back end and makes sure that it keeps what it is given.
    fn start(&mut self, system: System, images: &Images) -> Result<Backend, String> {
        let cpu = self.options.cpus.switch;
        let text = |error: SutError| chain(&error);
        let checked = |backend: Backend| match check(&backend, images.size()) {
            Ok(()) => Ok(backend),
            Err(error) => Err(chain(&error)),
        };
        let mounted = |backend: Backend| {
            let Some(path) = &backend.path else { return Err("it has no file".to_owned()) };
            match files::check(path, || backend.behind(), images.size().min(CHECKED)) {
                Ok(()) => Ok(backend),
                Err(error) => Err(chain(&error)),
            }
        };
        let transport = system.transport().unwrap_or_default();
        match system {
            System::Hayate => checked(hayate::daemon(images, 1, cpu).map_err(text)?),
            System::Qsd => {
                let medium = images.medium();
                let aio = match self.notes.get(&medium) {
                    Some(&aio) => aio,
                    None => self.best(images)?,
                };
                self.notes.insert(medium, aio);
                checked(sut::qsd(Served::Files(images, 1), aio, cpu).map_err(text)?)
            }
            System::StoreShm
            | System::StoreLibfabric
            | System::StoreTcp
            | System::StoreGfarmShm
            | System::StoreGfarmLibfabric
            | System::StoreGfarmTcp => {
                checked(hayate::store(images, transport, system.on_gfarm(), cpu).map_err(text)?)
            }
            System::FuseShm | System::FuseLibfabric | System::FuseTcp => {
                mounted(mounts::fuse(images, transport, cpu).map_err(text)?)
            }
            System::Gfarm => mounted(mounts::gfarm(images, cpu).map_err(text)?),
            System::Nbd => sut::nbd(images, cpu).map_err(text),
            System::QsdNbd => checked(sut::qsd_nbd(images, cpu).map_err(text)?),
            System::Null => sut::qsd(Served::Null(images.size()), Aio::Threads, cpu).map_err(text),
            System::Fio => Err("it is no back end".to_owned()),
        }
    }

    /// How qemu-storage-daemon is best: by the product of random reads and writes a second, 32 in
    /// flight, the best of three turns each: others on the machine only make it slower.
    fn best(&self, images: &Images) -> Result<Aio, String> {
        let mut best: Option<(f64, Aio)> = None;
        let ways = Aio::of(images.medium());
        for &aio in ways.iter().cycle().take(TRIES * ways.len()) {
            let started = sut::qsd(Served::Files(images, 1), aio, self.options.cpus.switch);
            let backend = started.map_err(|error| chain(&error))?;
            let score = self.beside(|| {
                let rate = |access| {
                    let job = Job { access, block: 4096, depth: 32, jobs: 1 };
                    let mut client = at_work(&backend, &job, images.size(), Wait::Poll)?;
                    let mut load = Load::new(&mut client, job, images.size())?;
                    load.run(SETTLE)?;
                    load.begin();
                    load.run(2 * LENGTH)?;
                    load.drain()?;
                    Ok::<f64, LoadError>(load.counts.requests as f64)
                };
                Ok::<f64, LoadError>(rate(Access::RandomRead)? * rate(Access::RandomWrite)?)
            });
            let score = score.map_err(|error| chain(&error))?;
            if best.is_none_or(|(before, _)| score > before) {
                best = Some((score, aio));
            }
        }
        best.map(|(_, aio)| aio).ok_or_else(|| "no way to read files".to_owned())
    }

    /// A turn of disks that do nothing: a back end of their own, with a client for each.
    fn idle(&self, system: System, watch: &Watch<'_>) -> Result<Taken, String> {
        let cpu = self.options.cpus.switch;
        let images = self.images(Medium::Tmpfs, SMALL).map_err(|error| chain(&error))?;
        let backend = match system {
            System::Hayate => hayate::daemon(&images, IDLE, cpu),
            _ => sut::qsd(Served::Files(&images, IDLE), Aio::Threads, cpu),
        };
        let mut backend = backend.map_err(|error| chain(&error))?;
        let shape = Shape { queues: QUEUES, slots: 1, buffer: 4096, wait: Wait::Event };
        let connect = |socket| {
            let mut client = Client::connect(socket, shape)?;
            // Once it has had something to do.
            client.read(0, &mut [0; 4096])?;
            Ok::<Client, ClientError>(client)
        };
        let clients: Result<Vec<Client>, ClientError> =
            backend.sockets.iter().map(|socket| connect(socket)).collect();
        let clients = clients.map_err(|error| chain(&error))?;
        std::thread::sleep(CALM);
        let taken = self.beside(|| watch.idle(&backend));
        drop(clients);
        if backend.alive() { Ok(taken) } else { Err("it ended in the middle".to_owned()) }
    }

    /// Does something on a thread of its own on the guests' CPU.
    fn beside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let work = || {
                // Without them the windows do not count, which shows.
                let _ = sys::affinity::pin_current_thread(self.options.cpus.guests);
                work()
            };
            match scope.spawn(work).join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// How the client waits, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Waiting {
    /// looks at the rings all the time
    Poll,
    /// sleeps until it is notified
    Event,
}

impl From<Waiting> for Wait {
    fn from(waiting: Waiting) -> Wait {
        match waiting {
            Waiting::Poll => Wait::Poll,
            Waiting::Event => Wait::Event,
        }
    }
}
