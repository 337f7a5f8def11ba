//! A daemon that is killed again and again under a guest that writes: nothing that was promised is
//! lost, nothing old comes back, no sector is torn.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use common::Daemon;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::block::{BlockDriver, BlockError, Options, Writer};
use testkit::frontend::Frontend;

const PATIENCE: Duration = Duration::from_secs(60);
/// Sectors the guest writes, again and again.
const SECTORS: u64 = 1024;

struct Case {
    /// Where the images are.
    dir: TempDir,
    format: &'static str,
    packed: bool,
    rounds: u64,
}

/// In memory.
fn memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// On a real file system: unlike the temporary folder, that of the build is seldom in memory.
fn real() -> TempDir {
    tempfile::tempdir_in(Path::new(common::HAYATE).parent().unwrap()).unwrap()
}

fn kill(daemon: &mut Daemon) {
    kill_process(Pid::from_raw(daemon.pid() as i32).unwrap(), Signal::KILL).unwrap();
    daemon.wait();
}

/// Starts a successor and brings the guest to it. In some rounds it is killed in the middle of that,
/// and another one is started.
fn succeed(run_dir: &Path, writer: &mut Writer) -> Daemon {
    let socket = run_dir.join("disks/disk.sock");
    loop {
        let daemon = Daemon::spawn(run_dir, &[], &[]);
        let (stop, stopped) = mpsc::channel::<()>();
        let doomed = (writer.below(4) == 0).then(|| Duration::from_micros(writer.below(40_000)));
        let pid = Pid::from_raw(daemon.pid() as i32).unwrap();
        let killer = doomed.map(|delay| {
            thread::spawn(move || {
                if stopped.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
                    kill_process(pid, Signal::KILL).unwrap();
                    return true;
                }
                false
            })
        });
        let patience = if doomed.is_some() { Duration::from_millis(100) } else { PATIENCE };
        let back = Frontend::connect_within(&socket, patience)
            .map_err(BlockError::from)
            .and_then(|frontend| writer.driver.reconnect_over(frontend));
        let _ = stop.send(());
        let killed = killer.is_some_and(|killer| killer.join().unwrap());
        match back {
            Ok(()) if !killed => return daemon,
            Err(BlockError::Frontend(_)) if doomed.is_some() => {}
            Ok(()) => {}
            Err(error) => panic!("{error}: {}", daemon.log()),
        }
        // It ends here if it has not already.
        drop(daemon);
    }
}

fn crash(case: &Case) {
    let run_dir = case.dir.path().join("run");
    let mut daemon = Daemon::start_in(&run_dir, &[]);
    daemon.ok(&format!("image create disk --size 4M --format {}", case.format));
    daemon.ok("disk add disk --image disk --queues 2");
    let options = Options { queues: 2, ..Options::new(case.packed) };
    let socket = run_dir.join("disks/disk.sock");
    let driver = BlockDriver::connect(&socket, &options).unwrap();
    let seed = case.rounds << 1 | u64::from(case.packed);
    let mut writer = Writer::new(driver, SECTORS, 16, seed).unwrap();
    // First without any harm.
    for _ in 0..10 {
        let mut ended = 0;
        while ended < 500 {
            ended += writer.step().unwrap();
        }
        writer.settle().unwrap();
    }
    let mut left = 0;
    for round in 0..case.rounds {
        let until = writer.below(400) as usize;
        let mut ended = 0;
        while ended < until {
            ended += writer.step().unwrap();
        }
        // Somewhere between two of what the guest sees.
        for _ in 0..writer.below(20_000) {
            std::hint::spin_loop();
        }
        kill(&mut daemon);
        left += u64::from(writer.in_flight() > 0);
        daemon = succeed(&run_dir, &mut writer);
        if round % 4 != 0 {
            writer.settle().unwrap();
        }
    }
    writer.settle().unwrap();
    let [writes, flushes] = writer.ended();
    assert!(left > case.rounds / 2, "{left} of {} kills had requests in flight", case.rounds);
    assert!(
        writes > case.rounds && flushes > case.rounds / 2,
        "{writes} writes, {flushes} flushes"
    );
    drop(writer);
    daemon.ok("disk del disk");
    daemon.ok("image check disk");
    daemon.stop();
}

#[test]
fn a_raw_image_survives_two_hundred_kills() {
    for packed in [false, true] {
        crash(&Case { dir: memory(), format: "raw", packed, rounds: 200 });
    }
}

#[test]
fn a_raw_image_past_the_cache_survives_kills() {
    for packed in [false, true] {
        crash(&Case { dir: real(), format: "raw", packed, rounds: 40 });
    }
}

#[test]
fn a_qcow2_image_survives_kills() {
    for packed in [false, true] {
        crash(&Case { dir: memory(), format: "qcow2", packed, rounds: 60 });
        crash(&Case { dir: real(), format: "qcow2", packed, rounds: 20 });
    }
}
