//! What a disk does a second, for docs/store.md. Not run unless asked for:
//! `cargo test -p hayate --test engines -- --ignored --nocapture --test-threads 1`.

use std::time::{Duration, Instant};

use testkit::block::{BlockDriver, Layout, Request, status};

use crate::common::Daemon;
use crate::lab::{Running, guest};

/// How long each is measured.
const WINDOW: Duration = Duration::from_secs(3);
/// Bytes of a request.
const BLOCK: usize = 4096;

/// Random requests of 4 KiB in the first `bytes` of a disk, so many at a time: how many end a second.
fn rate(driver: &mut BlockDriver, bytes: u64, depth: usize, write: bool) -> f64 {
    let (mut state, mut ended) = (7u64, 0u64);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let sector = (state >> 33) % (bytes / BLOCK as u64) * 8;
        match write {
            true => Request::write(sector, &[state as u8; BLOCK]),
            false => Request::read(sector, BLOCK as u32),
        }
    };
    let begin = Instant::now();
    while begin.elapsed() < WINDOW {
        while driver.outstanding(0) < depth {
            let request = next();
            driver.submit(0, &request, &Layout::usual(&request)).unwrap();
        }
        driver.kick(0);
        let done = driver.wait(0).unwrap();
        assert_eq!(done.status, Some(status::OK));
        ended += 1;
        while driver.poll(0).unwrap().is_some() {
            ended += 1;
        }
    }
    let rate = ended as f64 / begin.elapsed().as_secs_f64();
    driver.drain().unwrap();
    rate
}

/// A line of `/proc/PID/status`.
pub(crate) fn line(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

/// Prints what a disk of 64 MiB does, and what its store takes.
pub(crate) fn measure(what: &str, daemon: &Daemon, disk: &str, store: &Running, bytes: u64) {
    let mut driver = guest(daemon, disk);
    // Everything is there: it was written.
    let filler = [5; 1 << 16];
    for chunk in 0..bytes >> 16 {
        let request = Request::write(chunk * 128, &filler);
        assert_eq!(driver.run(&request).unwrap().status, Some(status::OK));
    }
    for (name, write) in [("read", false), ("write", true)] {
        for depth in [1, 32] {
            let rate = rate(&mut driver, bytes, depth, write);
            println!("{what}: random {name} 4 KiB, {depth} at a time: {rate:.0} a second");
        }
    }
    let pid = store.0.id();
    println!("{what}: store {} resident, {} threads", line(pid, "VmRSS"), line(pid, "Threads"));
}
