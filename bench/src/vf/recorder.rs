//! Records when others have a CPU of the measurement, with the kernel's trace events.
//!
//! **Purpose.** [`super::others`] has to know it to the microsecond. The event `sched_stat_runtime` says of a thread how
//! long it has had its CPU until now, when it leaves it and with every tick; it is recorded in a trace instance of our own
//! with `CLOCK_MONOTONIC` for its clock. The kernel leaves out threads with a part in the measurement, so that only some
//! hundred records a second are made, and recording does not change what is measured: this process and all that descend
//! from it (QEMU, the daemon, the program outside), and `ksoftirqd` of both CPUs, which moves the measurement's own frames.
//!
//! `sched_switch` would say who leaves a CPU and who gets it, but in the context of who leaves: on virtual machines where
//! the idle thread's records are missing, and there are such, nobody knows since when the next one has run.
//!
//! **Owner.** [`Recorder`] has that instance, one for who starts whom, and a mount of tracefs if there was none; they go
//! with it.
//!
//! **Failure.** Without tracefs, without the right to it, or in a PID namespace, where the kernel's records have other
//! ids, nothing is recorded, and [`Recorder::start`] says why. What threads had by the kernel's accounts and is not in the
//! records is said beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sys::clock::monotonic_ns;
use tempfile::TempDir;

use super::others::{Recording, adopt, parse};
use crate::place::Place;
use crate::sched;

/// Where it usually is.
const USUAL: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The PID namespace of the machine itself (`PROC_PID_INIT_INO` of the kernel).
const MACHINE: &str = "pid:[4026531836]";
/// What the names of our instances begin with.
const PREFIX: &str = "hayate-bench-";
/// KiB for records of a CPU: for a hundred thousand of them.
const ROOM: usize = 8192;
/// Threads that the kernel leaves out at most.
const LEFT_OUT: usize = 200;
/// The kernel's thread that all others of it descend from.
const KTHREADD: u32 = 2;

/// See the module's description.
pub(super) struct Recorder {
    /// Who had a CPU.
    running: Instance,
    /// Who started whom: what the measured programs start meanwhile is no other.
    forks: Instance,
    own: BTreeSet<u32>,
    from: u64,
    /// Time that each thread has had when it began, if all CPUs are the measurement's.
    accounts: Option<BTreeMap<u32, u64>>,
    _tracefs: Tracefs,
}

/// A trace instance of its own; it goes when dropped.
struct Instance(PathBuf);

impl Instance {
    fn new(tracefs: &Tracefs, name: &str) -> Result<Instance, String> {
        let path = tracefs.path.join(format!("instances/{PREFIX}{}-{name}", std::process::id()));
        // Of a process that was killed, and had our id.
        let _ = fs::remove_dir(&path);
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let instance = Instance(path);
        instance.set("trace_clock", "mono")?;
        Ok(instance)
    }

    /// Says something to the kernel, beside what has been said.
    fn set(&self, file: &str, what: &str) -> Result<(), String> {
        let opened = OpenOptions::new().append(true).open(self.0.join(file));
        let written = opened.and_then(|mut file| file.write_all(format!("{what}\n").as_bytes()));
        written.map_err(|error| format!("{file}: {error}"))
    }

    fn text(&self) -> Result<String, String> {
        let text = fs::read(self.0.join("trace")).map_err(|error| format!("trace: {error}"))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The kernel stops recording first. Nobody is there to be told of a failure.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A mounted tracefs.
struct Tracefs {
    path: PathBuf,
    /// Mounted by us, there.
    _mount: Option<Mount>,
}

struct Mount(TempDir);

impl Drop for Mount {
    fn drop(&mut self) {
        // Nobody is there to be told; an empty folder stays.
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

impl Tracefs {
    fn find() -> Result<Tracefs, String> {
        let usual = USUAL.iter().map(PathBuf::from).find(|path| path.join("instances").is_dir());
        if let Some(path) = usual {
            return Ok(Tracefs { path, _mount: None });
        }
        let dir = tempfile::Builder::new().prefix("hayate-tracefs-").tempdir();
        let dir = dir.map_err(|error| format!("tracefs: {error}"))?;
        mount("hayate", dir.path(), "tracefs", MountFlags::empty(), None)
            .map_err(|error| format!("tracefs cannot be mounted: {error}"))?;
        Ok(Tracefs { path: dir.path().to_owned(), _mount: Some(Mount(dir)) })
    }
}

/// CPUs as a file of the kernel takes them: groups of 32 in hexadecimal, the last first.
fn mask(cpus: [usize; 2]) -> String {
    let last = cpus.into_iter().max().unwrap_or(0) / 32;
    let of = |group: usize| {
        let bits = cpus.into_iter().filter(|cpu| cpu / 32 == group);
        format!("{:08x}", bits.fold(0_u32, |mask, cpu| mask | 1 << (cpu % 32)))
    };
    (0..=last).rev().map(of).collect::<Vec<_>>().join(",")
}

/// All threads of some processes and of what descends from them.
fn threads(of: &[u32]) -> impl Iterator<Item = u32> {
    of.iter().flat_map(|pid| sched::family(*pid)).flat_map(sched::ids)
}

/// Leaves out these threads, and those of the program outside, which come and go. The kernel takes a page of text; who is
/// not left out is told from others afterwards.
fn filter(own: &BTreeSet<u32>) -> String {
    let ids = own.iter().take(LEFT_OUT).map(|id| format!(" && pid != {id}"));
    format!("comm != \"pump\"{}", ids.collect::<String>())
}

/// Whether the machine has no other CPUs.
fn all_of_them(cpus: [usize; 2]) -> bool {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = online.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.is_some_and(|last| (0..=last).all(|cpu| cpus.contains(&cpu)))
}

impl Recorder {
    /// Starts recording for this process.
    ///
    /// # Errors
    /// Why that is not possible, in a few words.
    pub(super) fn start(place: Place) -> Result<Recorder, String> {
        Recorder::of(&[std::process::id()], place)
    }

    /// The same for some processes and their descendants.
    fn of(processes: &[u32], place: Place) -> Result<Recorder, String> {
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        if namespace != Path::new(MACHINE) {
            return Err("the kernel's records have other ids than this PID namespace".into());
        }
        let tracefs = Tracefs::find()?;
        let cpus = [place.switch, place.guests];
        let forks = Instance::new(&tracefs, "forks")?;
        let running = Instance::new(&tracefs, "running")?;
        running.set("tracing_cpumask", &mask(cpus))?;
        for cpu in cpus {
            running.set(&format!("per_cpu/cpu{cpu}/buffer_size_kb"), &ROOM.to_string())?;
        }
        // What is started from here on is known; what was started before may be missed the first time.
        forks.set("events/sched/sched_process_fork/enable", "1")?;
        let soft = cpus.map(|cpu| format!("ksoftirqd/{cpu}"));
        let soft = sched::descendants(KTHREADD, &soft.each_ref().map(String::as_str));
        let mut own = BTreeSet::new();
        own.extend(soft);
        loop {
            let known = own.len();
            own.extend(threads(processes));
            if own.len() == known {
                break;
            }
        }
        running.set("events/sched/sched_stat_runtime/filter", &filter(&own))?;
        let from = monotonic_ns();
        running.set("events/sched/sched_stat_runtime/enable", "1")?;
        let accounts = all_of_them(cpus).then(sched::all_threads);
        Ok(Recorder { running, forks, own, from, accounts, _tracefs: tracefs })
    }

    /// Ends recording.
    ///
    /// # Errors
    /// The records cannot be read, or not relied upon.
    pub(super) fn finish(mut self) -> Result<Recording, String> {
        let accounts = self.accounts.take().map(|before| (before, sched::all_threads()));
        self.running.set("tracing_on", "0")?;
        let to = monotonic_ns();
        adopt(&mut self.own, &self.forks.text()?)?;
        let mut recording = parse(&self.running.text()?, &self.own, (self.from, to))?;
        if let Some((before, now)) = accounts {
            // Of those that came or went it is not known.
            let had = |(id, time): (&u32, &u64)| Some((*id, time.saturating_sub(*before.get(id)?)));
            let others = now.iter().filter(|(id, _)| !self.own.contains(id));
            recording.compare(&others.filter_map(had).collect());
        }
        Ok(recording)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const PLACE: Place = Place { switch: 0, guests: 1 };
    /// One recorder at a time: its instance has the name of the process.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn cpus_are_groups_of_bits() {
        assert_eq!(mask([0, 1]), "00000003");
        assert_eq!(mask([3, 3]), "00000008");
        assert_eq!(mask([1, 64]), "00000001,00000000,00000002");
    }

    #[test]
    fn the_kernel_is_told_whom_to_leave_out() {
        let text = filter(&BTreeSet::from([7, 12]));
        assert_eq!(text, "comm != \"pump\" && pid != 7 && pid != 12");
        assert!(filter(&(0..10_000).collect()).len() < 4096);
    }

    /// Runs a shell of this name on one of the CPUs, which counts.
    fn busy(name: &str) {
        let script = format!(
            "printf {name} >/proc/self/comm || exit; n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done"
        );
        let status = Command::new("taskset").args(["-c", "0", "sh", "-c", &script]).status();
        assert!(status.unwrap().success());
    }

    /// Whether it can be recorded here; the benchmark does without, too.
    fn possible() -> bool {
        let machine = fs::read_link("/proc/self/ns/pid").unwrap() == Path::new(MACHINE);
        if !machine || !rustix::process::geteuid().is_root() {
            eprintln!("not tested: this needs root of the machine");
            return false;
        }
        true
    }

    fn instances() -> usize {
        let tracefs = Tracefs::find().unwrap();
        let name = format!("{PREFIX}{}", std::process::id());
        let all = fs::read_dir(tracefs.path.join("instances")).unwrap();
        all.filter(|one| one.as_ref().unwrap().file_name().to_str().unwrap().starts_with(&name))
            .count()
    }

    #[test]
    fn others_are_recorded_and_ones_own_are_not() {
        let _one = ONE.lock().unwrap();
        if !possible() {
            return;
        }
        let of = |processes: &[u32]| {
            let recorder = Recorder::of(processes, PLACE).unwrap();
            assert_eq!(instances(), 2);
            busy("hayate-busy");
            let recording = recorder.finish().unwrap();
            assert_eq!(instances(), 0);
            recording.named("hayate-busy")
        };
        // To a recorder for nobody this process and its child are others.
        assert!(of(&[]) > 0);
        assert_eq!(of(&[std::process::id()]), 0);
    }

    #[test]
    fn nothing_stays_when_it_cannot_start() {
        let _one = ONE.lock().unwrap();
        if !possible() {
            return;
        }
        // No machine has so many CPUs.
        let nowhere = Place { switch: 0, guests: 100_000 };
        assert!(Recorder::of(&[], nowhere).is_err());
        assert_eq!(instances(), 0);
    }
}
