//! No system call for a frame: the calls of a worker's thread are counted by strace while frames
//! pass between two VMs. The driver's side is this thread, which is not looked at.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use common::frames::{BROADCAST, Mac, Vnet, eth, mac};
use common::plane::Plane;
use common::process::alone;
use common::vm::{Guest, Vm};
use common::wheel::{self, Wheel};
use common::{PATIENCE, wait};
use dataplane::{Direction, PortId};
use rustix::process::{PTracer, Pid, Signal, kill_process, set_ptracer};
use tempfile::NamedTempFile;

/// Frames that may cost nothing.
const FRAMES: u64 = 1_000_000;
/// Times a worker is woken up.
const ROUNDS: u64 = 50;
/// Frames on the way at once. Many: there may be one CPU for both sides, to be handed over.
const BURST: u16 = 4096;

/// System calls by name.
type Calls = BTreeMap<String, u64>;

/// An strace(1) of one thread.
struct Strace {
    child: Child,
    summary: NamedTempFile,
}

impl Strace {
    /// Returns when every call of `thread` is counted.
    fn of(thread: &str) -> Strace {
        // Fails without Yama, which then forbids nothing.
        let _ = set_ptracer(PTracer::Any);
        let summary = NamedTempFile::new().unwrap();
        let mut command = Command::new("strace");
        command.args(["-q", "-c", "-U", "calls,name", "-p", thread, "-o"]).arg(summary.path());
        let mut child = command.spawn().expect("strace, which `make setup` installs");
        let status = format!("/proc/self/task/{thread}/status");
        let traced = || {
            assert!(child.try_wait().unwrap().is_none(), "strace cannot trace this process");
            !fs::read_to_string(&status).unwrap().contains("TracerPid:\t0\n")
        };
        wait(|| "strace".into(), traced);
        Strace { child, summary }
    }

    /// Lets the thread go.
    fn end(mut self) -> Calls {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        self.child.wait().unwrap();
        read(self.summary.path())
    }
}

/// Reads a summary: a line for each call between two lines of dashes, none if there were none.
fn read(summary: &Path) -> Calls {
    let text = fs::read_to_string(summary).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with('-')).skip(1);
    let one = |line: &str| {
        let (calls, name) = line.trim().split_once(' ').unwrap();
        (name.trim().to_owned(), calls.parse().unwrap())
    };
    lines.take_while(|line| !line.starts_with('-')).map(one).collect()
}

/// Two VMs, the worker between them, and drivers that keep it busy.
struct Belt {
    plane: Plane,
    vms: [Vm; 2],
    ports: [PortId; 2],
    tx: Wheel,
    rx: Wheel,
    /// Thread of the worker.
    thread: String,
}

impl Belt {
    /// Guests that want interrupts, or not.
    fn new(plane: Plane, guest: &Guest, interrupts: bool) -> Belt {
        let [(from, mut a), (to, mut b)] =
            ["a", "b"].map(|name| wheel::vm(&plane, name, &Guest { ring: BURST, ..guest.clone() }));
        if !interrupts {
            a.tx[0].queue.disable_interrupts();
            b.rx[0].queue.disable_interrupts();
        }
        let (tx, rx, mut known) = (Wheel::tx(&a), Wheel::rx(&b), Wheel::tx(&b));
        plane.barrier();
        // It becomes known where the receiver is.
        known.load(&b, &Vnet::default(), &eth(BROADCAST, mac(1), &[7; 46]));
        known.give(&b, 1);
        wait(|| "its frame to be taken".into(), || known.look(&b) == 1);
        let mut belt =
            Belt { plane, vms: [a, b], ports: [from, to], tx, rx, thread: thread("worker-0") };
        belt.aim(mac(1));
        // It has done with what control asked of it.
        belt.carry(BURST.into());
        belt
    }

    /// Where frames go from now on.
    fn aim(&mut self, dst: Mac) {
        self.tx.load(&self.vms[0], &Vnet::default(), &eth(dst, mac(0), &[7; 46]));
    }

    /// Sends so many frames in bursts, and sees each of them arrive. Returns how many.
    fn carry(&mut self, frames: u64) -> u64 {
        let Belt { vms: [a, b], tx, rx, .. } = self;
        let mut carried = 0;
        while carried < frames {
            rx.fill(b);
            tx.give(a, BURST);
            let (mut back, mut missing) = (BURST, BURST);
            let start = std::time::Instant::now();
            while back > 0 || missing > 0 {
                back -= tx.look(a);
                missing -= rx.look(b);
                std::thread::yield_now();
                assert!(start.elapsed() < PATIENCE, "{back} to go, {missing} to come");
            }
            carried += u64::from(BURST);
        }
        carried
    }

    /// Reasons to wait: a sleep, a nap, and a kick that came when kicks had been turned off, as it
    /// interrupts a nap.
    fn rests(&self) -> u64 {
        let worker = &self.plane.host.workers()[0];
        let queues = self.ports.iter().flat_map(|port| self.plane.status(*port).queues);
        worker.sleeps + worker.naps + queues.map(|queue| queue.kicks).sum::<u64>()
    }

    fn interrupts(&self) -> u64 {
        let [from, to] = self.ports;
        self.plane.interrupts(from, Direction::Tx) + self.plane.interrupts(to, Direction::Rx)
    }
}

/// The number of the thread that has this name: of the last one, should a failed test have left
/// another.
fn thread(name: &str) -> String {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
    let is = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let number = |task: fs::DirEntry| task.file_name().to_str()?.parse::<u32>().ok();
    tasks.filter(is).filter_map(number).max().expect("the worker's thread").to_string()
}

/// While it polls, and the guests do as well, a worker makes no call at all, for frames to one
/// receiver and for flooded ones.
#[test]
fn a_million_frames_take_no_system_call() {
    let _alone = alone();
    for guest in Guest::formats() {
        let mut belt = Belt::new(Plane::polling(), &guest, false);
        let strace = Strace::of(&belt.thread);
        let mut frames = belt.carry(FRAMES / 2);
        belt.aim(BROADCAST);
        frames += belt.carry(FRAMES / 2);
        let calls = strace.end();
        println!("packed: {}: {frames} frames, {calls:?}", guest.packed);
        assert_eq!(calls, Calls::new(), "calls for {frames} frames");
        belt.plane.end();
    }
}

/// A worker that rests and interrupts makes one call for each of these, and no other: none for a
/// frame, none to see that it was kicked.
#[test]
fn calls_are_rests_and_interrupts() {
    let _alone = alone();
    for (guest, interrupts) in
        Guest::formats().iter().flat_map(|guest| [(guest, false), (guest, true)])
    {
        let mut belt = Belt::new(Plane::new(), guest, interrupts);
        belt.plane.wait_asleep();
        let (rests, interrupted) = (belt.rests(), belt.interrupts());
        let strace = Strace::of(&belt.thread);
        let mut frames = 0;
        for _ in 0..ROUNDS {
            belt.plane.wait_asleep();
            frames += belt.carry(BURST.into());
        }
        // Interrupts have been sent when it sleeps again.
        belt.plane.wait_asleep();
        let calls = strace.end();
        let (rests, interrupted) = (belt.rests() - rests, belt.interrupts() - interrupted);
        println!(
            "packed: {}: {frames} frames, {rests} rests, {interrupted} interrupts, {calls:?}",
            guest.packed
        );
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        let waits: u64 =
            calls.iter().filter(|(name, _)| name.starts_with("epoll_")).map(|(_, n)| n).sum();
        // It may have been in the first one when counting began.
        assert!((ROUNDS / 2..=rests + 1).contains(&waits), "{waits} waits: {calls:?}");
        assert_eq!(of("write"), interrupted, "{calls:?}");
        assert_eq!(interrupted > 0, interrupts);
        assert_eq!(calls.values().sum::<u64>(), waits + of("write"), "others: {calls:?}");
        belt.plane.end();
    }
}
