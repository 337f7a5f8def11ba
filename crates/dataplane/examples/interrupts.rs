//! What moderation does to a guest that sleeps between frames: interrupts per frame, and how long
//! frames take, with a stream at a given rate and with a ping-pong.
//!
//! `cargo run --release -p dataplane --example interrupts -- [SECONDS=1]`
//!
//! The guests are drivers of our own on one thread. The receiver takes an interrupt 5 us after it
//! was sent, then polls until there is nothing more and asks for the next one, as Linux does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails is over")]
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::frames::{BROADCAST, eth, mac};
use common::plane::Plane;
use common::vm::{Guest, Vm};
use dataplane::{Direction, Moderation, Options, PortId, Profile};

/// From the interrupt to the first look.
const WAKE: Duration = Duration::from_micros(5);
/// Between two looks whether there is an interrupt, which are system calls.
const LOOK: Duration = Duration::from_micros(1);

/// A guest that sleeps until it is interrupted.
struct Sleeper {
    vm: Vm,
    /// When it is awake; `None`: it sleeps.
    awake: Option<Instant>,
    looked: Instant,
}

impl Sleeper {
    fn new(mut vm: Vm) -> Self {
        vm.poll();
        assert!(!vm.rx[0].queue.enable_interrupts());
        Self { vm, awake: None, looked: Instant::now() }
    }

    /// Frames it has got to see by `now`.
    fn step(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let rx = &mut self.vm.rx[0];
        match self.awake {
            None if now - self.looked >= LOOK => {
                self.looked = now;
                if rx.fds.call.drain() {
                    rx.queue.disable_interrupts();
                    self.awake = Some(now + WAKE);
                }
            }
            Some(at) if at <= now => {
                self.vm.poll();
                if self.vm.inbox.is_empty() && !self.vm.rx[0].queue.enable_interrupts() {
                    self.awake = None;
                }
            }
            _ => {}
        }
        self.vm.inbox.drain(..).map(|received| received.frame).collect()
    }
}

struct Lab {
    plane: Plane,
    a: Sleeper,
    b: Sleeper,
    ports: [PortId; 2],
}

impl Lab {
    /// A worker on the first of these CPUs; the guests are on another.
    fn new(cpus: &[usize], polling: Profile, setting: Moderation) -> Self {
        let plane = Plane::with(&Options {
            polling,
            cpus: cpus.first().map(|cpu| vec![*cpu]),
            ..Options::default()
        });
        let guest = Guest {
            event_idx: true,
            ring: 1024,
            rx_buffers: 1024,
            tx_buffers: 1024,
            ..Guest::plain()
        };
        let ports =
            ["a", "b"].map(|name| plane.port_with(name, |_, vhost| vhost.moderation = setting));
        let [a, b] = ["a", "b"].map(|name| Sleeper::new(plane.connect(name, &guest)));
        Self { plane, a, b, ports }
    }

    fn interrupts(&self) -> u64 {
        self.ports.iter().map(|port| self.plane.interrupts(*port, Direction::Rx)).sum()
    }

    /// A stream from one guest to the other.
    fn stream(&mut self, per_second: u64, length: Duration) -> String {
        let before = self.interrupts();
        let gap = Duration::from_nanos(1_000_000_000 / per_second);
        let start = Instant::now();
        let (mut next, mut seen, mut late) = (start, 0u64, Vec::new());
        while start.elapsed() < length {
            let now = Instant::now();
            if now >= next {
                // What it could not send in time is not sent later.
                next = (next + gap).max(now.checked_sub(20 * gap).unwrap_or(now));
                let sent = (now - start).as_nanos() as u64;
                self.a.vm.send(&eth(BROADCAST, mac(0), &sent.to_be_bytes()));
            }
            for frame in self.b.step(now) {
                let sent = u64::from_be_bytes(frame[14..22].try_into().unwrap());
                late.push((now - start).as_nanos() as u64 - sent);
                seen += 1;
            }
        }
        late.sort_unstable();
        let interrupts = self.interrupts() - before;
        format!(
            "{:7.0}/s, 1 interrupt for {:5.1}, delay {:6.1} us, 99 % {:6.1}",
            seen as f64 / length.as_secs_f64(),
            seen as f64 / interrupts.max(1) as f64,
            late[late.len() / 2] as f64 / 1e3,
            late[late.len() * 99 / 100] as f64 / 1e3,
        )
    }

    /// `window` frames back and forth.
    fn ping_pong(&mut self, window: u64, length: Duration) -> String {
        let start = Instant::now();
        let mut rounds = Vec::new();
        while start.elapsed() < length {
            let begin = Instant::now();
            for way in 0..2 {
                let (from, to) =
                    if way == 0 { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
                for n in 0..window {
                    from.vm.send(&eth(BROADCAST, mac(way), &n.to_be_bytes()));
                }
                let mut missing = window as usize;
                while missing > 0 {
                    let now = Instant::now();
                    from.step(now);
                    missing -= to.step(now).len();
                    assert!(begin.elapsed() < common::PATIENCE, "{missing} frames never came");
                }
            }
            rounds.push(begin.elapsed().as_nanos() as u64);
        }
        rounds.sort_unstable();
        let at = |percent: usize| rounds[(rounds.len() - 1) * percent / 100] as f64 / 1e3;
        format!("round trip {:6.1} us, 99 % {:6.1}", at(50), at(99))
    }
}

/// On a thread of its own, on the last CPU.
fn apart(cpus: &[usize], run: impl FnOnce() -> String + Send) -> String {
    let pinned = || {
        sys::affinity::pin_current_thread(*cpus.last().unwrap()).unwrap();
        run()
    };
    std::thread::scope(|scope| scope.spawn(pinned).join().unwrap())
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(1.0, |word| word.parse().unwrap());
    let length = Duration::from_secs_f64(seconds);
    let cpus = sys::affinity::allowed_cpus().unwrap();
    let fixed = Moderation::Fixed { frames: 64, time: Duration::from_micros(200) };
    for polling in [Profile::Always, Profile::Balanced, Profile::Power] {
        for (name, setting) in
            [("off", Moderation::Off), ("adaptive", Moderation::Adaptive), ("64,200", fixed)]
        {
            let show =
                |what: String, result: String| println!("{polling:9} {name:9} {what:15} {result}");
            for rate in [20_000, 100_000, 200_000, 400_000] {
                let mut lab = Lab::new(&cpus, polling, setting);
                show(format!("{rate} frames/s"), apart(&cpus, || lab.stream(rate, length)));
            }
            for window in [1, 16] {
                let mut lab = Lab::new(&cpus, polling, setting);
                show(
                    format!("{window} to and fro"),
                    apart(&cpus, || lab.ping_pong(window, length)),
                );
            }
        }
    }
}
