//! What the scheduler did to a thread, from its own accounting.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A thread, of this process or another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread(PathBuf);

/// Time since the thread's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// On a CPU.
    pub ran: Duration,
    /// Ready to run, but waiting for a CPU.
    pub waited: Duration,
    /// How often it was given one.
    pub turns: u32,
}

/// What being woken up may take before it counts as waiting.
const WAKE_UP: Duration = Duration::from_micros(20);

impl Times {
    /// Time since then that it was kept waiting, beyond what it takes to wake up.
    #[must_use]
    pub fn kept_waiting(&self, then: &Times) -> Duration {
        let woken = WAKE_UP * self.turns.saturating_sub(then.turns);
        self.waited.saturating_sub(then.waited).saturating_sub(woken)
    }
}

impl Thread {
    /// The calling thread.
    #[must_use]
    pub fn current() -> Thread {
        // The link names the thread that resolves it.
        let link = fs::read_link("/proc/thread-self").unwrap_or_default();
        Thread(Path::new("/proc").join(link))
    }

    /// The first thread of a process whose name begins so.
    #[must_use]
    pub fn named(pid: u32, name: &str) -> Option<Thread> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let mut found: Vec<PathBuf> = tasks
            .filter_map(|task| Some(task.ok()?.path()))
            .filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|n| n.starts_with(name)))
            .collect();
        found.sort();
        found.into_iter().next().map(Thread)
    }

    /// Its times; zero when it is gone or the kernel does not keep them.
    #[must_use]
    pub fn times(&self) -> Times {
        fs::read_to_string(self.0.join("schedstat"))
            .map_or_else(|_| Times::default(), |t| parse(&t))
    }
}

/// CPU time of all threads of a process that are there.
#[must_use]
pub fn cpu_time(pid: u32) -> Duration {
    threads(pid).map(|thread| thread.times().ran).sum()
}

/// The same without the one that was there first.
#[must_use]
pub fn cpu_time_of_threads(pid: u32) -> Duration {
    let first = pid.to_string();
    let later = threads(pid).filter(|thread| !thread.0.ends_with(&first));
    later.map(|thread| thread.times().ran).sum()
}

/// The processes that descend from one, those with one of these names.
#[must_use]
pub fn descendants(of: u32, names: &[&str]) -> Vec<u32> {
    let processes = processes();
    let named = processes.iter().filter(|(_, (_, name))| names.contains(&name.as_str()));
    named.map(|(pid, _)| *pid).filter(|pid| descends(&processes, *pid, of)).collect()
}

/// A process and all that descend from it.
#[must_use]
pub fn family(of: u32) -> Vec<u32> {
    let processes = processes();
    processes.keys().copied().filter(|pid| descends(&processes, *pid, of)).collect()
}

/// Parent and name of each process.
fn processes() -> BTreeMap<u32, (u32, String)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok) {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name is in parentheses, and may have some.
        let fields = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
        if let (Some(pid), Some((name, rest))) = (pid, fields) {
            let parent = rest.split_whitespace().nth(1).and_then(|text| text.parse::<u32>().ok());
            found.insert(pid, (parent.unwrap_or(0), name.to_owned()));
        }
    }
    found
}

fn descends(processes: &BTreeMap<u32, (u32, String)>, pid: u32, of: u32) -> bool {
    let up = |pid: &u32| processes.get(pid).map(|(parent, _)| *parent);
    // No process has so many above it.
    std::iter::successors(Some(pid), up).take(64).any(|above| above == of)
}

/// The ids of all threads of a process.
pub fn ids(pid: u32) -> impl Iterator<Item = u32> {
    threads(pid).filter_map(|thread| thread.0.file_name()?.to_str()?.parse().ok())
}

fn threads(pid: u32) -> impl Iterator<Item = Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().filter_map(|task| Some(Thread(task.ok()?.path())))
}

/// CPU time of each thread of the machine, by its id, in nanoseconds.
#[must_use]
pub fn all_threads() -> BTreeMap<u32, u64> {
    let pids = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all = pids.flat_map(|pid| ids(pid).map(move |id| (pid, id)));
    let ran = |(pid, id)| {
        let times = Thread(PathBuf::from(format!("/proc/{pid}/task/{id}"))).times();
        (id, u64::try_from(times.ran.as_nanos()).unwrap_or(u64::MAX))
    };
    all.map(ran).collect()
}

/// CPU time of each thread that is not the kernel's nor of these processes.
#[must_use]
pub fn strangers(but: &[u32]) -> BTreeMap<PathBuf, Duration> {
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let processes = entries(Path::new("/proc")).map(|entry| entry.path());
    let strange = processes.filter(|path| number(path).is_some_and(|pid| !but.contains(&pid)));
    // Only threads of the kernel have no program.
    let strange = strange.filter(|path| fs::read_link(path.join("exe")).is_ok());
    let threads = strange.flat_map(|path| entries(&path.join("task")).map(|task| task.path()));
    threads.map(|thread| (thread.clone(), Thread(thread).times().ran)).collect()
}

/// CPU time that all of these threads used since then; of those that ended it is not known.
#[must_use]
pub fn used_since(
    now: &BTreeMap<PathBuf, Duration>,
    then: &BTreeMap<PathBuf, Duration>,
) -> Duration {
    let before = |thread| then.get(thread).copied().unwrap_or_default();
    now.iter().map(|(thread, ran)| ran.saturating_sub(before(thread))).sum()
}

/// This session before others, until dropped.
///
/// With automatic groups (sched(7)) the nice value of a process counts only within its session;
/// between sessions that of the group does.
#[derive(Debug)]
pub struct Urgent {
    before: Option<String>,
}

const GROUP: &str = "/proc/self/autogroup";

impl Urgent {
    /// Makes the session as urgent as can be. Without groups, or without the rights, nothing
    /// changes, and other work shows as windows that do not count.
    #[must_use]
    pub fn new() -> Urgent {
        let text = fs::read_to_string(GROUP).unwrap_or_default();
        let before = text.trim().rsplit_once("nice ").map(|(_, nice)| nice.to_owned());
        let set = before.is_some() && fs::write(GROUP, "-20").is_ok();
        Urgent { before: before.filter(|_| set) }
    }
}

impl Default for Urgent {
    fn default() -> Urgent {
        Urgent::new()
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // What it was allowed to change it may change back.
            let _ = fs::write(GROUP, before);
        }
    }
}

fn parse(text: &str) -> Times {
    let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or(0));
    let mut next = || fields.next().unwrap_or(0);
    let [ran, waited] = [next(), next()].map(Duration::from_nanos);
    Times { ran, waited, turns: next() as u32 }
}

/// Time the host took from this machine's CPUs, in clock ticks, since it started.
#[must_use]
pub fn stolen() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    text.split_whitespace().nth(8).and_then(|field| field.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounting_is_read() {
        let times = parse("1500 20 3\n");
        assert_eq!(times.ran, Duration::from_nanos(1500));
        assert_eq!(times.waited, Duration::from_nanos(20));
        assert_eq!(times.turns, 3);
        assert_eq!(parse(""), Times::default());
    }

    #[test]
    fn waking_up_is_not_waiting() {
        let then = Times::default();
        let now = Times { ran: Duration::ZERO, waited: Duration::from_millis(1), turns: 100 };
        assert_eq!(now.kept_waiting(&then), Duration::ZERO);
        let now = Times { turns: 1, ..now };
        assert_eq!(now.kept_waiting(&then), Duration::from_micros(980));
    }

    #[test]
    fn others_are_told_from_ones_own() {
        let me = std::process::id();
        let mine = |threads: &BTreeMap<PathBuf, Duration>| {
            threads.keys().any(|path| path.starts_with(format!("/proc/{me}/task")))
        };
        assert!(mine(&strangers(&[])));
        assert!(!mine(&strangers(&[me])));
        let of = |list: &[(&str, u64)]| {
            list.iter().map(|(path, ms)| (path.into(), Duration::from_millis(*ms))).collect()
        };
        let (then, now) = (of(&[("a", 5), ("b", 7)]), of(&[("a", 9), ("c", 2)]));
        assert_eq!(used_since(&now, &then), Duration::from_millis(6));
    }

    #[test]
    fn the_first_thread_is_left_out() {
        // This test runs in another one than the first.
        let of = || cpu_time_of_threads(std::process::id());
        let before = of();
        let mut sum = 0_u64;
        while of() <= before {
            sum = std::hint::black_box(sum + 1);
        }
        // This one has no other.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        while cpu_time(child.id()).is_zero() {}
        assert_eq!(cpu_time_of_threads(child.id()), Duration::ZERO);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_child_descends_from_this_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let me = std::process::id();
        // Its name is that of this program for a moment.
        while !descendants(me, &["sleep"]).contains(&child.id()) {}
        assert!(!descendants(me, &["other"]).contains(&child.id()));
        assert!(descendants(child.id(), &["sleep"]) == [child.id()]);
        assert_eq!(family(child.id()), [child.id()]);
        assert!(family(me).contains(&me) && family(me).contains(&child.id()));
        assert_eq!(ids(child.id()).collect::<Vec<_>>(), [child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn this_thread_runs() {
        let thread = Thread::current();
        let before = thread.times().ran;
        let mut sum = 0_u64;
        while thread.times().ran <= before {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
