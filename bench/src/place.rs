//! Which CPU does what, how far apart the two are at the moment, and whether they have their cores alone.
//!
//! On virtual machines the two CPUs move between cache complexes and sockets, within seconds, which
//! changes throughput more than any switch does. So a cache line is sent to and fro between them
//! before and after every window, and only windows of one [`Regime`] are compared.
//!
//! Where cores have two threads, the other one may be another virtual machine's, and halves what a
//! core does while it runs. So both CPUs also tell how long instructions take that wait for nothing
//! ([`sys::issue`]), beside the shortest time seen so far.
//!
//! **Threads.** A helper thread waits on the switch's CPU. It is put before all others (the switch
//! polls there) for the millisecond of a probe and no longer: it gives up by itself after
//! [`GIVE_UP`], so that a generator which is stopped in the middle cannot freeze the CPU.

use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sys::clock::{ticks, ticks_per_second};
use sys::issue;

/// How long the line goes to and fro.
const PROBE: Duration = Duration::from_millis(1);
/// How long the helper may take to get its CPU.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long the helper stays at most.
const GIVE_UP: Duration = Duration::from_millis(5);
/// How often each CPU tells what it has of its core for one look; the middle one counts.
const TOLD: usize = 15;
/// Looks before anything is measured, to know what cores do alone, and what is between two of them.
const LOOKS: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(10);
/// A core that takes so much longer than it does alone is not alone.
const CROWDED: f64 = 1.12;

/// The two CPUs of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The switch's polling thread, alone.
    pub switch: usize,
    /// The generator, and whatever else switches have to do.
    pub guests: usize,
}

/// How far apart two CPUs are, by the round trip of a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Below 35 ns: two threads of one core.
    Core,
    /// Below 200 ns: they share a cache.
    Near,
    /// Below 750 ns: one socket.
    Middle,
    /// More: different sockets.
    Far,
}

impl Distance {
    /// The distance of a round trip in nanoseconds.
    fn of(nanos: f64) -> Distance {
        match nanos {
            _ if nanos < 35.0 => Distance::Core,
            _ if nanos < 200.0 => Distance::Near,
            _ if nanos < 750.0 => Distance::Middle,
            _ => Distance::Far,
        }
    }
}

/// Whose core somebody else uses as well, by its other thread. It matters which: a switch is as fast
/// as ever while only the generator is slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crowded {
    /// Nobody's.
    Neither,
    /// The guests', which is the generator's.
    Guests,
    /// The switch's.
    Switch,
    /// Each one's.
    Both,
}

/// What is to be the same of windows that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "&str", try_from = "String")]
pub struct Regime {
    /// How far apart the CPUs are.
    pub distance: Distance,
    /// Whether they have their cores alone. Two threads of one core crowd each other: that is
    /// [`Crowded::Neither`].
    pub crowded: Crowded,
}

/// All regimes, the nearer and the less crowded last; the name in files and that in reports.
const REGIMES: [(Distance, Crowded, &str, &str); 13] = {
    use Crowded::{Both, Guests, Neither, Switch};
    use Distance::{Core, Far, Middle, Near};
    [
        (Far, Both, "far-both-crowded", "two sockets, both crowded"),
        (Far, Switch, "far-switch-crowded", "two sockets, switch crowded"),
        (Far, Guests, "far-guests-crowded", "two sockets, guests crowded"),
        (Middle, Both, "middle-both-crowded", "one socket, both crowded"),
        (Middle, Switch, "middle-switch-crowded", "one socket, switch crowded"),
        (Middle, Guests, "middle-guests-crowded", "one socket, guests crowded"),
        (Near, Both, "near-both-crowded", "shared cache, both crowded"),
        (Near, Switch, "near-switch-crowded", "shared cache, switch crowded"),
        (Near, Guests, "near-guests-crowded", "shared cache, guests crowded"),
        (Far, Neither, "far", "two sockets"),
        (Middle, Neither, "middle", "one socket"),
        (Near, Neither, "near", "shared cache"),
        (Core, Neither, "core", "one core"),
    ]
};

impl Regime {
    /// CPUs that share a cache and nothing else.
    pub const NEAR: Regime = Regime { distance: Distance::Near, crowded: Crowded::Neither };

    /// All of them, the nearer and the less crowded last.
    pub fn all() -> impl Iterator<Item = Regime> {
        REGIMES.iter().map(|&(distance, crowded, ..)| Regime { distance, crowded })
    }

    /// Its names: in files and in reports.
    fn names(self) -> (&'static str, &'static str) {
        let mut named = Regime::all().zip(REGIMES);
        named.find(|&(regime, _)| regime == self).map_or(("", ""), |(_, (.., a, b))| (a, b))
    }

    /// Its name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.names().1
    }

    /// Whether somebody else runs on the core of one of them.
    #[must_use]
    pub fn is_crowded(self) -> bool {
        self.crowded != Crowded::Neither
    }
}

impl From<Regime> for &'static str {
    fn from(regime: Regime) -> &'static str {
        regime.names().0
    }
}

impl TryFrom<String> for Regime {
    type Error = String;

    fn try_from(name: String) -> Result<Regime, String> {
        let regime = Regime::all().find(|regime| regime.names().0 == name);
        regime.ok_or_else(|| format!("{name:?} is no regime"))
    }
}

/// What a look at the two CPUs found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Round trip of a cache line in nanoseconds. None when the switch's CPU was not to be had.
    pub line: Option<f64>,
    /// How much longer instructions took on the switch's core and on the guests' than on one that
    /// has nobody else: 1 or somewhat more if each CPU has its core alone.
    pub crowding: [f64; 2],
}

impl Look {
    /// The regime of what is between two looks, if it was one.
    #[must_use]
    pub fn regime(before: &Look, after: &Look) -> Option<Regime> {
        let (first, last) = (before.now()?, after.now()?);
        (first == last).then_some(first)
    }

    /// The worse of two looks, for each CPU.
    #[must_use]
    pub fn crowding(before: &Look, after: &Look) -> [f64; 2] {
        [0, 1].map(|cpu| before.crowding[cpu].max(after.crowding[cpu]))
    }

    fn now(&self) -> Option<Regime> {
        let distance = Distance::of(self.line?);
        let crowded = match self.crowding.map(|crowding| crowding > CROWDED) {
            _ if distance == Distance::Core => Crowded::Neither,
            [false, false] => Crowded::Neither,
            [false, true] => Crowded::Guests,
            [true, false] => Crowded::Switch,
            [true, true] => Crowded::Both,
        };
        Some(Regime { distance, crowded })
    }
}

/// No probe is going on.
const IDLE: u64 = 0;
/// The helper is to come.
const WANTED: u64 = 1;
/// The helper is there.
const READY: u64 = 2;
/// The helper is to end.
const OVER: u64 = 3;

/// A cache line of its own (two: they are fetched in pairs).
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Default)]
struct Shared {
    line: Line,
    state: Line,
    error: AtomicU32,
    /// What the switch's CPU has of its core, in the last look: the bits of the number.
    told: AtomicU64,
}

impl Shared {
    fn state(&self) -> u64 {
        self.state.0.load(Ordering::Acquire)
    }

    fn set_state(&self, state: u64) {
        self.state.0.store(state, Ordering::Release);
    }
}

/// The probe; ends its helper when dropped.
pub struct Probe {
    shared: Arc<Shared>,
    /// The least that either CPU told so far.
    least: [Least; 2],
    helper: Thread,
    join: Option<JoinHandle<()>>,
}

impl Probe {
    /// Starts the helper on the switch's CPU.
    ///
    /// # Errors
    /// That CPU may not be used, or threads may not be put before others.
    pub fn new(switch_cpu: usize) -> io::Result<Probe> {
        let shared = Arc::new(Shared::default());
        shared.told.store(f64::INFINITY.to_bits(), Ordering::Relaxed);
        let mine = Arc::clone(&shared);
        let (said, heard) = std::sync::mpsc::channel();
        let join = std::thread::Builder::new().name("probe".into()).spawn(move || {
            let able = sys::affinity::pin_current_thread(switch_cpu)
                .and_then(|()| sys::priority::realtime())
                .and_then(|()| sys::priority::ordinary());
            let go = able.is_ok();
            // The other end waits for this.
            let _ = said.send(able);
            if go {
                helper(&mine);
            }
        })?;
        heard.recv().map_err(io::Error::other)??;
        let least = [Least::default(), Least::default()];
        let probe = Probe { shared, least, helper: join.thread().clone(), join: Some(join) };
        for _ in 0..LOOKS {
            probe.look();
            std::thread::sleep(BETWEEN);
        }
        Ok(probe)
    }

    /// Looks at the caller's CPU and the switch's.
    pub fn look(&self) -> Look {
        let (line, mine) = (self.round_trip(), told());
        let its = f64::from_bits(self.shared.told.load(Ordering::Relaxed));
        let [my_least, its_least] = &self.least;
        Look { line, crowding: [its_least.ratio(its), my_least.ratio(mine)] }
    }

    /// Round trip of a cache line between the two CPUs, in nanoseconds.
    fn round_trip(&self) -> Option<f64> {
        let shared = &*self.shared;
        shared.line.0.store(0, Ordering::Relaxed);
        shared.set_state(WANTED);
        self.helper.unpark();
        let late = ticks() + in_ticks(PATIENCE);
        while shared.state() != READY {
            if ticks() > late {
                // It may come all the same, and will find that it is not wanted.
                shared.set_state(IDLE);
                return None;
            }
            spin_loop();
        }
        let start = ticks();
        let (end, late) = (start + in_ticks(PROBE), start + in_ticks(GIVE_UP));
        let (mut at, mut turns, mut spins) = (0_u64, 0_u32, 0_u32);
        let mut now = start;
        while now < end {
            for _ in 0..50 {
                shared.line.0.store(at + 1, Ordering::Release);
                while shared.line.0.load(Ordering::Acquire) != at + 2 {
                    // The clock costs as much as the line: only when it is long overdue.
                    spins = spins.wrapping_add(1);
                    if spins % 1024 == 0 && ticks() > late {
                        shared.set_state(IDLE);
                        return None;
                    }
                }
                at += 2;
                turns += 1;
            }
            now = ticks();
        }
        shared.set_state(IDLE);
        Some((now - start) as f64 / f64::from(turns) / ticks_per_second() * 1e9)
    }

    /// Whether the helper could always be put before others.
    #[must_use]
    pub fn sound(&self) -> bool {
        self.shared.error.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.shared.set_state(OVER);
        self.helper.unpark();
        if let Some(join) = self.join.take() {
            // It cannot panic, and there would be nothing to do about it.
            let _ = join.join();
        }
    }
}

fn helper(shared: &Shared) {
    // Measured before it matters.
    let give_up = in_ticks(GIVE_UP);
    loop {
        match shared.state() {
            OVER => return,
            WANTED => {
                if sys::priority::realtime().is_err() {
                    shared.error.store(1, Ordering::Relaxed);
                }
                shared.told.store(told().to_bits(), Ordering::Relaxed);
                let wanted = shared
                    .state
                    .0
                    .compare_exchange(WANTED, READY, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
                if wanted {
                    answer(shared, ticks() + give_up);
                }
                if sys::priority::ordinary().is_err() {
                    shared.error.store(1, Ordering::Relaxed);
                    return;
                }
            }
            // Also wakes for no reason, which is harmless.
            _ => std::thread::park(),
        }
    }
}

/// What the caller's CPU has of its core.
fn told() -> f64 {
    let mut all = [0.0; TOLD];
    all.fill_with(issue::pressure);
    all.sort_by(f64::total_cmp);
    all[TOLD / 2]
}

/// The least of some numbers, none of which is negative.
#[derive(Debug)]
struct Least(AtomicU64);

impl Default for Least {
    fn default() -> Self {
        Least(AtomicU64::new(f64::INFINITY.to_bits()))
    }
}

impl Least {
    /// One more number, divided by the least, which may be it.
    fn ratio(&self, number: f64) -> f64 {
        // Bits of such numbers are in the numbers' order.
        let before = f64::from_bits(self.0.fetch_min(number.to_bits(), Ordering::Relaxed));
        number / before.min(number)
    }
}

/// Sends the line back whenever it comes.
fn answer(shared: &Shared, late: u64) {
    let mut expected = 1;
    while shared.state() == READY && ticks() < late {
        // A look at the state and the clock only now and then: they cost as much as the line.
        for _ in 0..256 {
            if shared.line.0.load(Ordering::Acquire) == expected {
                shared.line.0.store(expected + 1, Ordering::Release);
                expected += 2;
            }
        }
    }
}

fn in_ticks(time: Duration) -> u64 {
    (time.as_secs_f64() * ticks_per_second()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_ranges() {
        let of = [20.0, 55.0, 199.0, 350.0, 1100.0].map(Distance::of);
        use Distance::*;
        assert_eq!(of, [Core, Near, Near, Middle, Far]);
    }

    #[test]
    fn who_shares_a_core_is_part_of_the_regime() {
        let look = |line, switch, guests| Look { line, crowding: [switch, guests] };
        let (near, middle) = (Some(100.0), Some(400.0));
        let regime = |before, after| {
            let regime = Look::regime(&before, &after)?;
            Some((regime.distance, regime.crowded))
        };
        use Crowded::*;
        use Distance::*;
        for (switch, guests, crowded) in
            [(1.0, 1.1, Neither), (1.5, 1.0, Switch), (1.0, 1.5, Guests), (1.8, 1.5, Both)]
        {
            let (one, other) = (look(near, switch, guests), look(middle, switch, guests));
            assert_eq!(regime(one, one), Some((Near, crowded)));
            assert_eq!(regime(other, other), Some((Middle, crowded)));
            assert_eq!(regime(one, other), None);
            let core = look(Some(20.0), switch, guests);
            assert_eq!(regime(core, core), Some((Core, Neither)));
        }
        // Somebody came meanwhile, or went from one's core to the other's.
        assert_eq!(regime(look(near, 1.0, 1.0), look(near, 1.0, 1.5)), None);
        assert_eq!(regime(look(near, 1.5, 1.0), look(near, 1.0, 1.5)), None);
        assert_eq!(regime(look(None, 1.0, 1.0), look(near, 1.0, 1.0)), None);
    }

    #[test]
    fn regimes_have_names_that_are_read_again() {
        for regime in Regime::all() {
            let text = serde_json::to_string(&regime).unwrap();
            assert_eq!(serde_json::from_str::<Regime>(&text).unwrap(), regime);
            assert!(!regime.as_str().is_empty());
        }
        assert_eq!(serde_json::to_string(&Regime::NEAR).unwrap(), "\"near\"");
        assert!(serde_json::from_str::<Regime>("\"nearby\"").is_err());
    }

    #[test]
    fn a_line_goes_to_and_fro() {
        let cpus = sys::affinity::allowed_cpus().unwrap();
        let (Some(&first), Some(&last)) = (cpus.first(), cpus.last()) else { return };
        if first == last {
            return;
        }
        let Ok(probe) = Probe::new(first) else { return };
        std::thread::spawn(move || {
            sys::affinity::pin_current_thread(last).unwrap();
            // A busy machine may refuse some of them.
            let looks: Vec<Look> = (0..20).map(|_| probe.look()).collect();
            assert!(
                looks.iter().all(|look| look.line.is_none_or(|nanos| nanos > 1.0)),
                "{looks:?}"
            );
            assert!(
                looks.iter().flat_map(|look| look.crowding).all(|crowding| crowding >= 1.0),
                "{looks:?}"
            );
            assert!(probe.sound());
        })
        .join()
        .unwrap();
    }
}
