//! Frames of A with a number each, one a millisecond at most, while things happen; and which way each
//! of them took.
//!
//! Time is counted in frames: of two frames, a thousand numbers apart, the later was sent at least a
//! second after the other, however busy the machine was in between. Numbers go on from one event to
//! the next: the last frame of one often comes when the next has begun.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use e2e::endpoint::Endpoint;
use e2e::hayate::Hayate;
use e2e::process::wait_for;
use e2e::{Context, Error, Result, bail, ensure};

use crate::lab::{A, Lab, Mac, Router, send};
use crate::packets::{Link, number, numbered};

/// Between two frames, at least.
const PACE: Duration = Duration::from_millis(1);
/// Frames that take a second at least.
pub const SECOND: u32 = 1000;
/// The daemon's counters are up to date after so many frames, twice over.
const COUNTED: u32 = 200;
/// Frames that are looked at to say which way they go now.
const WINDOW: u32 = 300;
/// However slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The host where a frame arrived, and the address it was sent to there.
pub type Way = (usize, Mac);

/// What a laboratory has sent, and what came of it.
#[derive(Default)]
pub struct Traffic {
    next: AtomicU32,
    stop: AtomicBool,
    came: Mutex<Vec<Option<Way>>>,
}

/// Ends the sender, whatever happens to who waits for it.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Lab {
    /// Sends frames to these addresses in turn, each a flow, while `event` is carried out.
    pub fn with_traffic<T>(
        &mut self,
        to: &[[u8; 4]],
        event: impl FnOnce(&mut Router, &mut Hayate, &Traffic) -> Result<T>,
    ) -> Result<T> {
        let Self { hosts, router, hayate, traffic } = self;
        let link = Link { a: A, router: router.macs[0] };
        *traffic.stop.get_mut() = false;
        let traffic = &*traffic;
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let _stop = Stop(&traffic.stop);
                traffic.run(hosts, link, to)
            });
            let stop = Stop(&traffic.stop);
            let done = event(router, hayate, traffic);
            drop(stop);
            let sent = sender.join().map_err(|_| Error::new("the sender panicked"))?;
            // What the sender met explains why nothing came.
            sent.and(done)
        })
    }
}

impl Traffic {
    fn run(&self, hosts: &mut [Endpoint], link: Link, to: &[[u8; 4]]) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            let flow = n as usize % to.len();
            let frame = numbered(link, to[flow], u16::try_from(flow)?, n);
            send(&mut hosts[0], &[0; 12], &frame)?;
            for (host, endpoint) in hosts.iter_mut().enumerate() {
                endpoint.flush()?;
                while let Some((_, frame)) = endpoint.take()? {
                    let (Some(n), Some(mac)) = (number(&frame), frame.first_chunk()) else {
                        continue;
                    };
                    self.arrived(n, (host, *mac))?;
                }
            }
            std::thread::sleep(PACE.saturating_sub(began.elapsed()));
        }
        Ok(())
    }

    fn arrived(&self, n: u32, way: Way) -> Result<()> {
        ensure!(n < self.now(), "frame {n} came, which was not sent");
        let mut came = self.lock();
        let n = n as usize;
        let len = came.len().max(n + 1);
        came.resize(len, None);
        if let Some(other) = came[n].replace(way) {
            bail!("frame {n} came twice: by {other:02x?} and by {way:02x?}");
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Option<Way>>> {
        self.came.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The number of the next frame: it is not sent yet.
    pub fn now(&self) -> u32 {
        self.next.load(Ordering::SeqCst)
    }

    /// Waits until this frame was sent.
    pub fn wait(&self, n: u32) -> Result<()> {
        wait_for(&format!("frame {n}"), PATIENCE, || {
            ensure!(!self.stop.load(Ordering::Relaxed), "the sender ended");
            Ok((self.now() > n).then_some(()))
        })
    }

    /// The way of a frame; none if it did not arrive (yet).
    pub fn way(&self, n: u32) -> Option<Way> {
        self.lock().get(n as usize).copied().flatten()
    }

    /// The last frame sent since frame `from` that took a way which `is` so.
    pub fn last(&self, from: u32, is: impl Fn(u32, Way) -> bool) -> Option<u32> {
        (from..self.now()).rev().find(|n| self.way(*n).is_some_and(|way| is(*n, way)))
    }

    /// Waits until all frames of some time take ways that are so; the first of them.
    pub fn until(&self, what: &str, is: impl Fn(u32, Option<Way>) -> bool) -> Result<u32> {
        let mut wrong = String::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let from = self.now();
            self.wait(from + WINDOW + COUNTED)?;
            let bad = (from..from + WINDOW).rev().find(|n| !is(*n, self.way(*n)));
            let Some(bad) = bad else { return Ok(from) };
            wrong = format!("frame {bad} of {from} and on: {:02x?}", self.way(bad));
        }
        bail!("{what}: {wrong}")
    }

    /// After an event, which began with frame `begun` and is over now, packets move from one way to
    /// another: within a second, and all of them. How long it took, in words.
    pub fn moved(&self, begun: u32, old: Way, new: Way) -> Result<String> {
        let took = self.gone(begun, SECOND, old)?;
        self.until(&format!("frames by {new:02x?}"), |_, way| way == Some(new))?;
        Ok(took)
    }

    /// No frame takes a way that is sent so many frames later than now, when an event is over that
    /// began with frame `begun`.
    pub fn gone(&self, begun: u32, limit: u32, way: Way) -> Result<String> {
        let over = self.now();
        self.wait(over + limit + WINDOW)?;
        let last = self.last(begun, |_, one| one == way).map_or(begun, |n| n + 1);
        let late = last.saturating_sub(over);
        ensure!(late <= limit, "{late} frames after the event one was sent by {way:02x?}");
        Ok(format!("{} ms", last - begun))
    }

    /// Waits until packets go past the router.
    pub fn bypasses(&self, router: &mut Router, hayate: &Hayate) -> Result<()> {
        wait_for("packets that go past the router", PATIENCE, || {
            let before = router.bypassed(hayate)?;
            self.wait(self.now() + WINDOW + COUNTED)?;
            Ok((router.bypassed(hayate)? >= before + u64::from(WINDOW)).then_some(()))
        })
        .context(|| router.show(hayate).map(|shown| format!("{shown:#}")).unwrap_or_default())
    }

    /// All packets from now on go by way of the router: it received them, and the daemon counts none
    /// that went past it.
    pub fn by_the_router(&self, router: &mut Router, hayate: &Hayate) -> Result<()> {
        self.wait(self.now() + COUNTED)?;
        let (bypassed, received) = (router.bypassed(hayate)?, router.received()?);
        let from = self.now();
        self.wait(from + WINDOW)?;
        let to = self.now();
        self.wait(to + COUNTED)?;
        let went = router.bypassed(hayate)?.saturating_sub(bypassed);
        let came = router.received()? - received;
        ensure!(
            went == 0 && came >= u64::from(to - from),
            "of {} frames the router received {came}, and {went} went past it",
            to - from
        );
        Ok(())
    }
}
