//! Traffic between cards: the loops in which measurements happen.

mod machines;

use std::hint::spin_loop;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guestmem::GuestMemory;
use sys::clock::{ticks, ticks_per_second};
use testkit::frontend::SharedMemory;

use super::buffers::HEADER;
use super::card::{BURST, Card, CardQueue, CardSpec, Layout, Source};
use super::frames::{self, Flows, FrameSpec, Writer};
use super::ring::Ring;
use super::touch::{Touch, read, write};
use super::{GeneratorError, RingFault};

/// How long the first frame may take: some switches start a port's queues late.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which card sends to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// Of each pair of cards the first one sends to the second one.
    OneWay,
    /// Both of each pair send: switch loopback.
    BothWays,
    /// The first card sends to the second; what a virtual machine gets there it forwards out of the
    /// third, to the fourth: VM loopback.
    Forwarded,
    /// So many machines in a row that do this, routers: each counts the packet's hops down.
    Routed(u16),
}

impl Paths {
    /// Machines that forward.
    fn machines(self) -> usize {
        match self {
            Paths::OneWay | Paths::BothWays => 0,
            Paths::Forwarded => 1,
            Paths::Routed(machines) => machines.into(),
        }
    }
}

/// What traffic there is to be.
#[derive(Clone, Copy, Debug)]
pub struct TrafficSpec {
    /// How cards are made.
    pub card: CardSpec,
    /// Bytes of each frame, without virtio-net header and FCS.
    pub size: u32,
    /// Who sends to whom.
    pub paths: Paths,
    /// Different frames of each sender, in turn.
    pub flows: u32,
    /// What they differ in, and what guests write for each frame in any case.
    pub vary: Flows,
    /// Routers between the first card and the second.
    pub routers: u16,
    /// What guests do with frames.
    pub touch: Touch,
    /// Receivers give their buffers back, so that frames arrive. Without, the switch takes frames
    /// and can deliver none, but for the first ones.
    pub deliver: bool,
}

/// What happened, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames given to the switch.
    pub sent: u64,
    /// Of these, those whose buffers the switch gave back.
    pub taken: u64,
    /// Frames that arrived.
    pub received: u64,
    /// Frames that arrived with another length or content, of those looked at.
    pub bad: u64,
    /// Turns of TX queues, and those that found no free entry.
    pub turns: u64,
    /// See `turns`.
    pub full: u64,
    /// Turns of RX queues, and those that found no frame.
    pub looks: u64,
    /// See `looks`.
    pub empty: u64,
}

impl Counters {
    /// What happened since an earlier time.
    #[must_use]
    pub fn since(&self, then: &Counters) -> Counters {
        Counters {
            sent: self.sent - then.sent,
            taken: self.taken - then.taken,
            received: self.received - then.received,
            bad: self.bad - then.bad,
            turns: self.turns - then.turns,
            full: self.full - then.full,
            looks: self.looks - then.looks,
            empty: self.empty - then.empty,
        }
    }
}

/// Times of one round trip, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// From sending at one end to arrival at the other.
    pub there: u64,
    /// Until the answer arrived.
    pub total: u64,
}

/// Cards with traffic between them.
pub struct Traffic<R> {
    cards: Vec<Card<R>>,
    spec: TrafficSpec,
    mem: Arc<GuestMemory>,
    /// Cards that send, and cards that receive.
    senders: Vec<usize>,
    receivers: Vec<usize>,
    /// Bytes of a sent frame with its header, for guests that write all of it: of each sender.
    templates: Vec<Vec<u8>>,
    /// What frames differ in, of each card.
    writers: Vec<Writer>,
    scratch: Vec<u8>,
    counters: Counters,
    /// TX turns without progress in a row.
    stalled: u32,
}

impl<R: Ring> Traffic<R> {
    /// Connects a card to each socket and lets the switch learn who is where.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn connect<S: AsRef<Path>>(
        sockets: &[S],
        spec: &TrafficSpec,
        memory: &SharedMemory,
    ) -> Result<Self, GeneratorError> {
        let mut layout = Layout::new(memory);
        let mut cards: Vec<Card<R>> = Vec::with_capacity(sockets.len());
        for (index, socket) in sockets.iter().enumerate() {
            let source = source(index, spec, &cards)?;
            cards.push(Card::connect(
                socket.as_ref(),
                &spec.card,
                memory,
                &mut layout,
                spec.size,
                &source,
            )?);
        }
        let mut traffic = Traffic::over(cards, spec, memory)?;
        traffic.learn()?;
        Ok(traffic)
    }

    /// Traffic between cards there are already.
    ///
    /// # Errors
    /// There are too few of them for the paths.
    pub(super) fn over(
        cards: Vec<Card<R>>,
        spec: &TrafficSpec,
        memory: &SharedMemory,
    ) -> Result<Self, GeneratorError> {
        let all = 0..cards.len();
        let (senders, receivers): (Vec<usize>, Vec<usize>) = match spec.paths {
            Paths::OneWay => (all.clone().step_by(2).collect(), all.skip(1).step_by(2).collect()),
            Paths::BothWays => (all.clone().collect(), all.collect()),
            Paths::Forwarded | Paths::Routed(_) => (vec![0], vec![2 * spec.paths.machines() + 1]),
        };
        let needed = 2 * spec.paths.machines() + 2;
        if cards.len() < needed || !cards.len().is_multiple_of(2) {
            return Err(GeneratorError::Pairing);
        }
        let template = |&card: &usize| frames::build(&frames_of(card, spec), 0);
        let writer = |card| Writer::new(&frames_of(card, spec), spec.flows);
        Ok(Traffic {
            templates: senders.iter().map(template).collect(),
            writers: (0..cards.len()).map(writer).collect(),
            scratch: vec![0; (HEADER + spec.size) as usize],
            mem: Arc::clone(memory.guest()),
            spec: *spec,
            cards,
            senders,
            receivers,
            counters: Counters::default(),
            stalled: 0,
        })
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sends as much as goes for a time.
    ///
    /// # Errors
    /// The switch broke a ring, or frames.
    pub fn flood(&mut self, time: Duration) -> Result<(), GeneratorError> {
        let end = ticks() + in_ticks(time);
        while ticks() < end {
            for _ in 0..8 {
                self.send(BURST);
                self.forward();
                self.receive(true);
            }
        }
        self.check()
    }

    /// Sends at a rate, in frames a second over all senders, for a time. Returns the longest time
    /// in which this thread looked at no queue.
    ///
    /// # Errors
    /// The switch broke a ring, or frames.
    pub fn pace(&mut self, time: Duration, rate: f64) -> Result<Duration, GeneratorError> {
        let (start, per_frame) = (ticks(), ticks_per_second() / rate);
        let end = start + in_ticks(time);
        let (mut sent, senders) = (0_u64, self.senders.len() as f64);
        let (mut last, mut away) = (start, 0);
        loop {
            let now = ticks();
            away = away.max(now - last);
            last = now;
            if now >= end {
                break;
            }
            let due = ((now - start) as f64 / per_frame) as u64;
            if due > sent {
                // What could not be sent in time is not made up for in a burst later.
                let each = ((due - sent) as f64 / senders).ceil() as u16;
                self.send(each.min(BURST));
                sent = due;
            } else {
                self.send(0);
            }
            self.forward();
            self.receive(false);
        }
        self.check()?;
        Ok(Duration::from_secs_f64(away as f64 / ticks_per_second()))
    }

    /// Receives what is still on its way, until nothing came for a time.
    pub fn drain(&mut self, quiet: Duration) {
        let mut last = Instant::now();
        while last.elapsed() < quiet {
            let before = (self.counters.received, self.counters.taken);
            self.send(0);
            self.forward();
            self.receive(false);
            if (self.counters.received, self.counters.taken) != before {
                last = Instant::now();
            }
        }
    }

    /// One frame from the first card to the second, and one back once it arrived.
    ///
    /// # Errors
    /// The switch broke a ring. A frame that is lost is no error: `None`.
    pub fn round_trip(&mut self) -> Result<Option<RoundTrip>, GeneratorError> {
        let [first, second, ..] = self.cards.as_mut_slice() else {
            return Err(GeneratorError::Pairing);
        };
        let patience = in_ticks(Duration::from_millis(100));
        let start = ticks();
        let Some(there) = hop(first, second, start + patience) else { return self.lost() };
        let Some(back) = hop(second, first, start + patience) else { return self.lost() };
        self.counters.sent += 2;
        self.counters.received += 2;
        self.counters.bad +=
            [there.1, back.1].iter().filter(|&&len| len != HEADER + self.spec.size).count() as u64;
        for card in &mut self.cards {
            settle(card);
        }
        Ok(Some(RoundTrip { there: there.0 - start, total: back.0 - start }))
    }

    fn lost(&mut self) -> Result<Option<RoundTrip>, GeneratorError> {
        self.drain(Duration::from_millis(5));
        self.check().map(|()| None)
    }

    /// A frame each way between all that are to find each other, until all arrived.
    ///
    /// # Errors
    /// The switch is late, or broke a ring.
    pub fn learn(&mut self) -> Result<(), GeneratorError> {
        let start = Instant::now();
        for pair in 0..self.cards.len() / 2 {
            let (left, right) = (2 * pair, 2 * pair + 1);
            if (1..=self.spec.paths.machines()).contains(&pair) {
                self.compose(pair);
            }
            for (from, to) in [(right, left), (left, right)] {
                loop {
                    let end = ticks() + in_ticks(Duration::from_millis(20));
                    let arrived = match two(&mut self.cards, from, to) {
                        Some((from, to)) => hop(from, to, end).is_some(),
                        None => return Err(GeneratorError::Pairing),
                    };
                    if arrived {
                        break;
                    }
                    if start.elapsed() > PATIENCE {
                        return Err(GeneratorError::Silent { patience: PATIENCE });
                    }
                }
            }
        }
        if self.spec.vary == Flows::Macs {
            self.introduce()?;
        }
        // Late copies of what was flooded.
        let quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(20) {
            self.cards.iter_mut().for_each(settle);
        }
        for machine in 1..=self.spec.paths.machines() {
            self.compose(machine);
            self.align(machine)?;
        }
        self.check()
    }

    /// Every machine behind every card sends two frames, as a switch may be busy with its table when it sees the first.
    /// One that is lost on its way is known all the same.
    fn introduce(&mut self) -> Result<(), GeneratorError> {
        let (start, patience) = (Instant::now(), PATIENCE);
        let each = (0..self.cards.len()).rev();
        for index in each.clone().chain(each) {
            let mut left = self.spec.flows;
            while left > 0 {
                if start.elapsed() > patience {
                    let known = self.spec.flows - left;
                    return Err(GeneratorError::Slow {
                        known,
                        machines: self.spec.flows,
                        patience,
                    });
                }
                let queue = self.cards.get_mut(index).and_then(|card| card.tx.first_mut());
                if let (Some(queue), Some(writer)) = (queue, self.writers.get_mut(index)) {
                    let count = left.min(queue.ring.free().into()).min(BURST.into());
                    write(&self.mem, &queue.ring, count as u16, &[], writer, Touch::None);
                    queue.ring.publish(count as u16);
                    queue.kick();
                    left -= count;
                }
                self.cards.iter_mut().for_each(settle);
            }
        }
        Ok(())
    }

    /// One turn of every TX queue, with at most `most` frames in all queues of a card.
    #[inline(always)]
    fn send(&mut self, most: u16) {
        let mut progress = false;
        for (at, &index) in self.senders.iter().enumerate() {
            let mut left = most;
            let Some(card) = self.cards.get_mut(index) else { continue };
            let Some(writer) = self.writers.get_mut(index) else { continue };
            for queue in &mut card.tx {
                if most < BURST || queue.due() {
                    self.counters.taken += u64::from(queue.ring.reap(BURST, |_, _| ()));
                }
                if most == 0 {
                    continue;
                }
                let count = queue.ring.free().min(left);
                self.counters.turns += 1;
                if count == 0 {
                    self.counters.full += u64::from(left > 0);
                    continue;
                }
                let TrafficSpec { touch, vary, .. } = self.spec;
                if touch != Touch::None || vary != Flows::One {
                    let template = self.templates.get(at).map_or(&[][..], Vec::as_slice);
                    write(&self.mem, &queue.ring, count, template, writer, touch);
                }
                queue.ring.publish(count);
                if most < BURST {
                    queue.kick();
                } else {
                    queue.kick_if_seen();
                }
                left -= count;
                progress = true;
                self.counters.sent += u64::from(count);
            }
        }
        if progress {
            self.stalled = 0;
        } else if most > 0 {
            self.stall();
        }
    }

    /// No queue could take a frame: the switch may be asleep and the sign of it just not seen.
    #[cold]
    fn stall(&mut self) {
        self.stalled = self.stalled.wrapping_add(1);
        if self.stalled.is_multiple_of(64) {
            for &index in &self.senders {
                if let Some(card) = self.cards.get(index) {
                    card.tx.iter().for_each(CardQueue::kick);
                }
            }
        }
    }

    /// One turn of every RX queue, for full bursts rather than single frames.
    #[inline(always)]
    fn receive(&mut self, bursts: bool) {
        let expected = HEADER + self.spec.size;
        let touch = self.spec.touch;
        for &index in &self.receivers {
            let Some(card) = self.cards.get_mut(index) else { continue };
            for queue in &mut card.rx {
                self.counters.looks += 1;
                if bursts && !queue.due() {
                    self.counters.empty += 1;
                    continue;
                }
                let buffers = *queue.ring.buffers();
                let (mem, scratch, mut bad) = (&self.mem, &mut self.scratch, 0);
                let count = queue.ring.reap(BURST, |slot, len| {
                    bad += u64::from(len != expected);
                    if touch != Touch::None || slot == 0 {
                        let address = buffers.address(slot.into());
                        bad += u64::from(!read(mem, address, expected, scratch, touch, slot == 0));
                    }
                });
                self.counters.bad += bad;
                if count == 0 {
                    self.counters.empty += 1;
                    continue;
                }
                self.counters.received += u64::from(count);
                if self.spec.deliver {
                    queue.ring.publish(count);
                    queue.kick_if_seen();
                }
            }
        }
    }

    fn check(&self) -> Result<(), GeneratorError> {
        let queues = self.cards.iter().flat_map(|card| card.tx.iter().chain(&card.rx));
        let fault: Option<RingFault> = queues.filter_map(|queue| queue.ring.fault()).next();
        match fault {
            Some(fault) => Err(fault.into()),
            None if self.counters.bad > 0 => Err(GeneratorError::Wrong { bad: self.counters.bad }),
            None => Ok(()),
        }
    }

    /// Stops all queues and ends all sessions.
    ///
    /// # Errors
    /// A switch did not answer.
    pub fn disconnect(self) -> Result<(), testkit::frontend::FrontendError> {
        self.cards.into_iter().try_for_each(Card::disconnect)
    }
}

/// What card `index` sends.
pub(super) fn source<R: Ring>(
    index: usize,
    spec: &TrafficSpec,
    before: &[Card<R>],
) -> Result<Source, GeneratorError> {
    if index > 0 && index.is_multiple_of(2) && index <= 2 * spec.paths.machines() {
        let inside = before.get(index - 1).ok_or(GeneratorError::Pairing)?;
        return Ok(Source::Received(inside.rx.iter().map(|queue| *queue.ring.buffers()).collect()));
    }
    Ok(Source::Own(frames_of(index, spec)))
}

/// The frames of card `index`: to its neighbour.
pub(super) fn frames_of(index: usize, spec: &TrafficSpec) -> FrameSpec {
    let from = index as u16;
    let gateway = (spec.routers > 0).then(|| match from % 2 {
        0 => frames::gateway(1, 0),
        _ => frames::gateway(spec.routers, 1),
    });
    FrameSpec { size: spec.size, from, to: from ^ 1, flows: spec.vary, gateway }
}

/// Sends a frame and waits for its arrival: when that was, and the length with header. The frame's
/// buffers are left to [`settle`].
#[inline(always)]
fn hop<R: Ring>(from: &mut Card<R>, to: &mut Card<R>, deadline: u64) -> Option<(u64, u32)> {
    let queue = from.tx.first_mut()?;
    queue.ring.reap(BURST, |_, _| ());
    if queue.ring.free() == 0 {
        return None;
    }
    queue.ring.publish(1);
    queue.kick();
    let mut length = 0;
    loop {
        for queue in &mut to.rx {
            if queue.ring.reap(1, |_, len| length = len) == 1 {
                return Some((ticks(), length));
            }
        }
        if ticks() > deadline {
            return None;
        }
        spin_loop();
    }
}

/// Takes back what was sent, and gives back what was received.
fn settle<R: Ring>(card: &mut Card<R>) {
    for queue in &mut card.tx {
        queue.ring.reap(BURST, |_, _| ());
    }
    for queue in &mut card.rx {
        queue.ring.reap(BURST, |_, _| ());
        let free = queue.ring.free();
        if free > 0 {
            queue.ring.publish(free);
            queue.kick_if_seen();
        }
    }
}

/// Two different cards.
fn two<R>(cards: &mut [Card<R>], one: usize, other: usize) -> Option<(&mut Card<R>, &mut Card<R>)> {
    let [one, other] = cards.get_disjoint_mut([one, other]).ok()?;
    Some((one, other))
}

/// A time in ticks.
fn in_ticks(time: Duration) -> u64 {
    (time.as_secs_f64() * ticks_per_second()) as u64
}
