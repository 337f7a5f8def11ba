//! What it takes on this machine to sleep and be woken, whatever for.
//!
//! A switch that uses no CPU between frames sleeps, and pays this for each frame that comes alone:
//! on virtual machines, where a CPU without work is given back to the host, a multiple of what the
//! frame itself costs. So the tables say it beside their figures.

use std::fs;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sys::clock::{ticks, ticks_per_second};

use crate::place::Place;
use crate::sched::Thread;

/// How often a second the thread is woken: the rate of the tables' slowest traffic.
const RATE: f64 = 10_000.0;
/// How long.
const TIME: Duration = Duration::from_secs(1);

/// What being woken takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WakeUp {
    /// Until the woken thread runs: median, in microseconds.
    pub delay: f64,
    /// CPU time of a thread that is woken 10 000 times a second and does nothing, in per cent of one
    /// CPU.
    pub cpu: f64,
    /// How long the kernel polls before it gives an idle virtual CPU back to the host, in
    /// nanoseconds: `guest_halt_poll_ns` of the haltpoll module.
    pub halt_poll: Option<u64>,
}

impl WakeUp {
    /// Wakes a thread on the switch's CPU from the guests' CPU; `None` if it could not be placed.
    #[must_use]
    pub fn measure(place: Place) -> Option<WakeUp> {
        let (end, called) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let sleeper = {
            let (end, called) = (Arc::clone(&end), Arc::clone(&called));
            thread::spawn(move || {
                sys::affinity::pin_current_thread(place.switch).ok()?;
                let mut delays = Vec::new();
                while !end.load(Ordering::Acquire) {
                    thread::park();
                    // Without a call the thread woke for nothing.
                    if let Some(at) = Some(called.swap(0, Ordering::AcqRel)).filter(|&at| at > 0) {
                        delays.push(ticks().saturating_sub(at));
                    }
                }
                Some((delays, Thread::current().times().ran))
            })
        };
        let caller = thread::spawn(move || {
            let pinned = sys::affinity::pin_current_thread(place.guests);
            let step = (ticks_per_second() / RATE) as u64;
            let start = ticks();
            let mut next = start;
            let length = (ticks_per_second() * TIME.as_secs_f64()) as u64;
            while pinned.is_ok() && next - start < length {
                next += step;
                while ticks() < next {
                    spin_loop();
                }
                called.store(ticks(), Ordering::Release);
                sleeper.thread().unpark();
            }
            end.store(true, Ordering::Release);
            sleeper.thread().unpark();
            sleeper.join().ok().flatten()
        });
        let (mut delays, ran) = caller.join().ok().flatten()?;
        delays.sort_unstable();
        let median = *delays.get(delays.len() / 2)?;
        let halt_poll = fs::read_to_string("/sys/module/haltpoll/parameters/guest_halt_poll_ns");
        Some(WakeUp {
            delay: median as f64 * 1e6 / ticks_per_second(),
            cpu: 100.0 * ran.as_secs_f64() / TIME.as_secs_f64(),
            halt_poll: halt_poll.ok().and_then(|text| text.trim().parse().ok()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_woken() {
        let woken = WakeUp::measure(Place { switch: 0, guests: 1 }).unwrap();
        assert!(woken.delay > 0.0 && woken.cpu > 0.0, "{woken:?}");
    }
}
