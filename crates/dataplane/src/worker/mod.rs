//! Workers: the threads that move frames and serve disks.
//!
//! A worker owns what it works on: the TX queues of its ports, its look-up cache, its scratch
//! memory, its disks ([`disks`]). It makes passes over its queues; in each it takes up to a burst of frames from every
//! queue and forwards them. Between passes it reads its mailbox: queues start and stop there, so
//! control never meets a half-done burst, and a queue that was reported stopped is not touched
//! again. When passes find nothing it does as [`pace`] says: polls on, naps, or asks the guests to
//! kick, looks once more, and sleeps until a kick, a readable TAP queue or a command.
//!
//! Who calls in: nobody. Control posts commands ([`crate::mailbox`]) and reads counters. What may
//! be held: during a burst, the locks of the destinations opened in it ([`crate::egress`]);
//! between bursts, nothing. Failure: a ring that lies stops its own queue and is reported to its
//! session; errors of a TAP queue count as drops; nothing ends a worker but the exit command.

mod disks;
pub(crate) mod forward;
pub(crate) mod placement;
mod rules;
mod sleep;

use std::hint::spin_loop;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use pace::{Idle, Pace, Profile, Vigil};
use packet::{Head, Offloads, RawVirtioNetHdr};
use parking_lot::Mutex;
use switch::{Cache, Reader, Room, Spot, Switch};
use sys::EventFd;
use sys::wakeup::QuickWakeup;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::counters::Counter;
use crate::disk::{DiskCommand, DiskId};
use crate::egress::{Egress, Workshop};
use crate::frame::{Body, FRAME_MAX, fill_local};
use crate::mailbox::Mailbox;
use crate::port::tap::tx::TapTx;
use crate::port::vhost::rx::LiveRx;
use crate::port::vhost::tx::LiveTx;
use crate::port::{Kind, Port, PortMap};
use crate::status::WorkerState;
use disks::Disks;
use forward::{BURST, Forward, Lookup, Sender, TOGETHER};
use placement::{Arrivals, TxCommand, TxId};
use sleep::{Bed, Token};

/// Turns between two looks at the descriptors of TAP queues and connections: passes that found something, and looks at the
/// clock.
const HOUSEKEEPING: u32 = 32;

/// Looks at queues between two looks at the clock while there is nothing: the clock takes ten times
/// as long as a ring, and a frame that comes meanwhile waits for it.
const LOOKS: usize = 16;

/// How often routers are given the counts of what bypassed them, at least, milliseconds.
const SETTLE_MS: u64 = 100;

/// How long a worker sleeps at most while it serves a guest that cannot kick.
const SILENT_NAP: Duration = Duration::from_micros(100);

/// What control asks of a worker. Each is carried out between bursts, in the order posted.
#[derive(Debug)]
pub(crate) enum Command {
    /// The ports have changed; what was sent by the old snapshot has been sent.
    Ports(Arc<PortMap>, oneshot::Sender<Arc<PortMap>>),
    /// Answered when all frames taken up before have gone where they go.
    Settle(oneshot::Sender<()>),
    /// Something about a TX queue that is here or comes here.
    Tx(TxId, TxCommand),
    /// Deliver frames to this guest RX queue.
    StartRx(Arc<Port>, u16, Box<LiveRx>),
    /// Stop an RX queue and hand it back: it is quiet then.
    StopRx(Arc<Port>, u16, oneshot::Sender<Option<Box<LiveRx>>>),
    /// Interrupt the guest for an RX queue by this descriptor from now on.
    SetCall(Arc<Port>, u16, Option<Arc<EventFd>>),
    /// SET_VRING_ENABLE of an RX queue.
    SetEnabled(Arc<Port>, u16, bool),
    /// Something about a disk.
    Disk(DiskId, DiskCommand),
    /// Remember verdicts in this.
    Furnish(Room),
    /// End the thread.
    Exit,
}

/// What everybody may see of a worker.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: u16,
    pub(crate) cpu: Option<usize>,
    /// NUMA node of its CPU, if that is known.
    pub(crate) node: Option<u16>,
    pub(crate) mailbox: Mailbox,
    state: AtomicU8,
    pub(crate) polls: Counter,
    pub(crate) busy_polls: Counter,
    pub(crate) naps: Counter,
    pub(crate) sleeps: Counter,
    pub(crate) frames: Counter,
    /// Nanoseconds in which there was something to do.
    pub(crate) busy_ns: Counter,
    /// The queues it polls, kept up to date between bursts.
    pub(crate) queues: Mutex<Vec<TxId>>,
    /// Running queues that have their place here. Kept by control.
    pub(crate) assigned: AtomicU32,
    /// Its load lately, in parts of [`crate::balance::ONE`]. Kept by control.
    pub(crate) load: AtomicU32,
}

impl Shared {
    pub(crate) fn new(id: u16, cpu: Option<usize>, node: Option<u16>) -> std::io::Result<Self> {
        Ok(Self {
            id,
            cpu,
            node,
            mailbox: Mailbox::new()?,
            state: AtomicU8::new(WorkerState::Polling as u8),
            polls: Counter::default(),
            busy_polls: Counter::default(),
            naps: Counter::default(),
            sleeps: Counter::default(),
            frames: Counter::default(),
            busy_ns: Counter::default(),
            queues: Mutex::new(Vec::new()),
            assigned: AtomicU32::new(0),
            load: AtomicU32::new(0),
        })
    }

    /// What it is doing.
    pub(crate) fn state(&self) -> WorkerState {
        let state = self.state.load(Relaxed);
        let all = [WorkerState::Napping, WorkerState::Asleep];
        all.into_iter().find(|one| *one as u8 == state).unwrap_or(WorkerState::Polling)
    }
}

/// One worker: everything its thread owns.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    switch: Reader,
    ports: Arc<PortMap>,
    tx: Vec<LiveTx>,
    taps: Vec<TapTx>,
    /// One of them may be readable.
    tapped: bool,
    arrivals: Arrivals,
    disks: Disks,
    runtime: Handle,
    cache: Cache,
    scratch: Scratch,
    pace: Pace,
    vigil: Vigil,
    /// Of the CPU it keeps to; none: it wakes up as it does.
    wakeup: Option<QuickWakeup>,
    bed: Bed,
    clock: Clock,
    now_ms: u64,
    /// When routers were given their counts.
    settled_ms: u64,
    exit: bool,
}

/// Memory a worker forwards in.
struct Scratch {
    heads: [[Head; TOGETHER]; 2],
    flood: Box<[u8]>,
    spare: Box<[u8]>,
    workshop: Workshop,
}

impl Worker {
    /// A worker with no queues. `clock` is that of all workers.
    pub(crate) fn new(
        shared: Arc<Shared>,
        switch: &Switch,
        polling: Profile,
        clock: Clock,
        runtime: Handle,
    ) -> std::io::Result<Self> {
        let bed = Bed::new(shared.mailbox.wake_fd())?;
        let now = clock.now();
        let cpu = shared.cpu.filter(|_| polling.wakes_quickly());
        Ok(Self {
            wakeup: cpu.and_then(quick_wakeup),
            shared,
            switch: switch.reader(),
            ports: Arc::default(),
            tx: Vec::new(),
            taps: Vec::new(),
            tapped: false,
            arrivals: Arrivals::default(),
            disks: Disks::new(runtime.clone(), clock),
            runtime,
            cache: Cache::default(),
            scratch: Scratch {
                heads: [const { [const { Head::new() }; _] }; 2],
                flood: vec![0; FRAME_MAX].into_boxed_slice(),
                spare: vec![0; FRAME_MAX].into_boxed_slice(),
                workshop: Workshop::new(clock),
            },
            pace: Pace::new(polling, now),
            vigil: Vigil::default(),
            bed,
            clock,
            now_ms: 0,
            settled_ms: 0,
            exit: false,
        })
    }

    /// Works until told to end.
    pub(crate) fn run(mut self) {
        let (mut turns, mut looks, mut unlooked) = (0u32, 0, 0);
        loop {
            if self.shared.mailbox.pending() {
                self.obey();
                if self.exit {
                    return;
                }
            }
            if turns.is_multiple_of(HOUSEKEEPING) {
                self.tick(self.clock.now());
                self.look_around();
            }
            let frames = self.pass();
            let requests = self.pass_disks(frames);
            self.shared.polls.add(1);
            let found = frames + requests;
            if found == 0 {
                // A frame that comes alone is there sooner than without: see docs/performance.md.
                spin_loop();
                if looks > 0 {
                    looks -= 1;
                    continue;
                }
            }
            turns = turns.wrapping_add(1);
            if found > 0 {
                looks = 0;
                self.shared.busy_polls.add(1);
                self.shared.frames.add(found as u64);
                self.pace.busy(frames);
                if found == 1 {
                    // Its answer takes longer than that. See docs/performance.md, too.
                    spin_loop();
                }
                unlooked += found;
                if unlooked >= BURST {
                    unlooked = 0;
                    self.settle();
                }
                continue;
            }
            looks = LOOKS / (1 + self.tx.len());
            self.settle();
            let now = self.clock.now();
            let idle = self.pace.idle(now, self.disks.awaited(now));
            self.shared.busy_ns.set(self.pace.busy_ns(now));
            match idle {
                Idle::Poll => self.tx.iter().take(8).for_each(LiveTx::warm),
                Idle::Nap(length) => self.nap(length),
                Idle::Sleep => self.sleep(),
            }
        }
    }

    /// One pass over all queues; returns the frames taken. A function of its own, by which
    /// testing/budget counts instructions.
    #[inline(never)]
    fn pass(&mut self) -> usize {
        if !self.tapped && !self.tx.iter().any(LiveTx::waiting) {
            return 0;
        }
        let Self { switch, ports, tx, taps, tapped, cache, scratch, now_ms, .. } = self;
        let Scratch { heads, flood, spare, workshop } = scratch;
        let snapshot = switch.snapshot();
        let mut frames = 0;
        for queue in tx.iter_mut() {
            let lookup = Lookup { switch: snapshot, cache, now_ms: *now_ms, flood, spare };
            let egress = Egress::new(ports, workshop);
            frames += queue.burst(&mut Forward { lookup, heads, egress });
        }
        if *tapped {
            for tap in taps.iter_mut().filter(|tap| tap.ready) {
                let lookup = Lookup { switch: snapshot, cache, now_ms: *now_ms, flood, spare };
                let egress = Egress::new(ports, workshop);
                frames += tap.burst(&mut Forward { lookup, heads, egress });
            }
            *tapped = taps.iter().any(|tap| tap.ready);
        }
        cache.release();
        frames
    }

    fn tick(&mut self, now: u64) {
        self.now_ms = now / 1_000_000;
        // A worker that never rests is seen to be busy, too.
        self.shared.busy_ns.set(self.pace.busy_ns(now));
        if self.now_ms.wrapping_sub(self.settled_ms) >= SETTLE_MS {
            self.settled_ms = self.now_ms;
            self.cache.settle(self.switch.snapshot());
        }
        if let Some(verdicts) = self.cache.wish(self.now_ms) {
            // Megabytes that the kernel has to clear: no frame waits for that. Nor does a thread that is started
            // by one of the runtime keep to this worker's CPU.
            let mailbox = self.shared.mailbox.clone();
            self.runtime.spawn(async move {
                if let Ok(room) = tokio::task::spawn_blocking(move || Room::new(verdicts)).await {
                    mailbox.post(Command::Furnish(room));
                }
            });
        }
    }

    /// Looks, without waiting, at what only the kernel knows: which TAP queues are readable, and which
    /// connections to and from stores.
    fn look_around(&mut self) {
        let streams = self.disks.look_around();
        if streams || !self.taps.is_empty() {
            self.wait(Some(Duration::ZERO));
        }
    }

    /// Interrupts the guests for which it was put off until now.
    fn settle(&mut self) {
        let owed = &mut self.scratch.workshop.owed;
        if !owed.is_empty() {
            let now = owed.now();
            owed.settle(&self.ports, now);
        }
    }

    /// Before a rest of at most `limit`: nothing may fall due in it, or the rest is shorter.
    fn settle_for_rest(&mut self, limit: Option<Duration>) -> Option<Duration> {
        let owed = &mut self.scratch.workshop.owed;
        if owed.is_empty() {
            return limit;
        }
        let now = owed.now();
        let end = limit.map_or(u64::MAX, |limit| now.saturating_add(limit.as_nanos() as u64));
        let first = owed.settle_for_rest(&self.ports, now, end);
        if first == end { limit } else { Some(Duration::from_nanos(first.saturating_sub(now))) }
    }

    /// Arms notifications, looks once more, sleeps until something happens.
    fn sleep(&mut self) {
        let (mut waiting, mut silent) = (false, false);
        for queue in &mut self.tx {
            waiting |= queue.arm();
            silent |= queue.kick.is_none();
        }
        let (disk_waiting, disk_silent) = self.arm_disks();
        waiting |= disk_waiting;
        silent |= disk_silent;
        // The wake-up for a command may have been seen already, when descriptors were looked at.
        if waiting || self.shared.mailbox.pending() {
            return;
        }
        let limit = self.limit_for_disks(silent.then_some(SILENT_NAP));
        let limit = self.settle_for_rest(limit);
        self.cache.settle(self.switch.snapshot());
        self.shared.sleeps.add(1);
        self.rest(WorkerState::Asleep, limit);
        // What comes while it polls needs no kick, which would end the next sleep for nothing.
        self.tx.iter_mut().for_each(LiveTx::disarm);
    }

    /// Lets frames gather. Kicks are off, but a command or a readable TAP queue ends it.
    fn nap(&mut self, length: Duration) {
        if self.shared.mailbox.pending() {
            return;
        }
        self.shared.naps.add(1);
        let end = self.clock.now() + length.as_nanos() as u64;
        let mut left = length;
        while !left.is_zero() {
            let limit = self.limit_for_disks(Some(left));
            let limit = self.settle_for_rest(limit);
            // A kick that was on its way when kicks were turned off does not end a nap.
            if !self.rest(WorkerState::Napping, limit) {
                return;
            }
            left = Duration::from_nanos(end.saturating_sub(self.clock.now()));
        }
    }

    /// A rest of at most `limit`, in which no request to a disk falls due.
    fn limit_for_disks(&self, limit: Option<Duration>) -> Option<Duration> {
        let due = self.disk_deadline();
        let due = due.map(|at| Duration::from_nanos(at.saturating_sub(self.clock.now())));
        [limit, due].into_iter().flatten().min()
    }

    /// Asks for a quick wake-up from a rest of at most `limit`, or no longer does. Returns how long
    /// to rest at most.
    fn keep_vigil(&mut self, limit: Option<Duration>) -> Option<Duration> {
        let now = self.clock.now();
        let Some(wakeup) = &mut self.wakeup else { return limit };
        let quick = self.vigil.rest(now);
        if let Err(error) = wakeup.ask(quick) {
            tracing::warn!(%error, "cannot ask for quick wake-ups");
            self.wakeup = None;
        }
        let most = quick.then_some(Duration::from_nanos(Vigil::REST_MAX));
        [limit, most].into_iter().flatten().min()
    }

    /// Waits in this state; returns whether nothing but kicks ended it.
    fn rest(&mut self, state: WorkerState, limit: Option<Duration>) -> bool {
        let limit = self.keep_vigil(limit);
        self.shared.state.store(state as u8, Relaxed);
        let only_kicks = self.wait(limit);
        self.shared.state.store(WorkerState::Polling as u8, Relaxed);
        let now = self.clock.now();
        self.tick(now);
        self.disks.rested();
        self.pace.woken(now);
        only_kicks
    }

    /// Waits for descriptors, at most `limit`, and notes what happened. Returns whether that was
    /// kicks only, or nothing.
    fn wait(&mut self, limit: Option<Duration>) -> bool {
        let mut only_kicks = true;
        let Self { bed, tx, taps, tapped, disks, .. } = self;
        for token in bed.wait(limit) {
            match token {
                Token::Mailbox | Token::Ring => only_kicks = false,
                Token::Link(disk) => {
                    only_kicks = false;
                    disks.link_ready(disk);
                }
                Token::DiskKick(disk, index) => {
                    // Requests do not gather as frames do: mostly there is one, and it is awaited.
                    only_kicks = false;
                    disks.kicked(disk, index);
                }
                Token::Kick(port, index) => {
                    let queue = tx.iter().find(|tx| tx.port.id == port && tx.index == index);
                    if let Some(queue) = queue
                        && let Some(counters) = queue.port.incoming.get(usize::from(index))
                    {
                        counters.kicks.add(1);
                    }
                }
                Token::Tap(port, index) => {
                    only_kicks = false;
                    let tap = taps.iter_mut().find(|t| t.port.id == port && t.index == index);
                    if let Some(tap) = tap {
                        tap.ready = true;
                        *tapped = true;
                    }
                }
            }
        }
        only_kicks
    }

    /// Carries out what control asked. A function of its own, at which testing/budget starts anew.
    #[inline(never)]
    fn obey(&mut self) {
        for command in self.shared.mailbox.take() {
            match command {
                Command::Ports(ports, done) => {
                    let old = std::mem::replace(&mut self.ports, ports);
                    let _ = done.send(old);
                }
                Command::Settle(done) => {
                    self.cache.settle(self.switch.snapshot());
                    let _ = done.send(());
                }
                Command::Tx(id, command) => self.obey_tx(id, command),
                Command::StartRx(port, index, queue) => start_rx(&port, index, queue),
                Command::StopRx(port, index, done) => {
                    let _ = done.send(stop_rx(&port, index));
                }
                Command::SetCall(port, index, call) => set_call(&port, index, call),
                Command::SetEnabled(port, index, on) => set_enabled(&port, index, on),
                Command::Disk(id, command) => self.obey_disk(id, command),
                Command::Furnish(room) => {
                    let old = self.cache.furnish(room);
                    self.runtime.spawn(async move { drop(old) });
                }
                Command::Exit => self.exit = true,
            }
        }
        let tx = self.tx.iter().map(LiveTx::id);
        let taps = self.taps.iter().map(TapTx::id);
        *self.shared.queues.lock() = tx.chain(taps).collect();
    }

    fn inject(&mut self, port: &Port, bytes: &[u8]) {
        let Some(counters) = port.incoming.first() else { return };
        let snapshot = self.switch.snapshot();
        let Scratch { heads: [[head, ..], _], flood, spare, workshop } = &mut self.scratch;
        let cache = &mut self.cache;
        let mut lookup = Lookup { switch: snapshot, cache, now_ms: self.now_ms, flood, spare };
        let skip = fill_local(head, bytes, 0);
        let body = Body::Local(bytes.get(skip..).unwrap_or_default());
        counters.frames.add(1);
        counters.bytes.add(bytes.len() as u64);
        let mut egress = Egress::new(&self.ports, workshop);
        let sender = Sender::new(port, counters, Offloads::NONE, &lookup, &egress);
        let header = RawVirtioNetHdr::default();
        lookup.forward::<true>(
            &sender,
            header,
            (head, &Spot::NONE),
            body,
            bytes.len(),
            &mut egress,
        );
        lookup.cache.release();
    }
}

/// Opens an RX queue to all workers, and interrupts the guest once: whatever it waited for while
/// nobody served the ring, it looks now.
fn start_rx(port: &Port, index: u16, mut queue: Box<LiveRx>) {
    let Kind::Vhost(vhost) = &port.kind else { return };
    let Some(slot) = vhost.rx.get(usize::from(index)) else { return };
    let mut live = slot.live.lock();
    vhost.set_active(index, queue.enabled);
    // Nothing waits for buffers: a frame that finds none is dropped.
    queue.queue.disable_kicks();
    queue.interrupt(&slot.counters);
    *live = Some(queue);
}

/// The way to keep a CPU from sleeping deeply, if there is one.
fn quick_wakeup(cpu: usize) -> Option<QuickWakeup> {
    QuickWakeup::of(Path::new(QuickWakeup::ROOT), cpu)
        .inspect_err(|error| tracing::debug!(cpu, %error, "this CPU wakes up as it does"))
        .ok()
}

/// Takes an RX queue away from all workers.
fn stop_rx(port: &Port, index: u16) -> Option<Box<LiveRx>> {
    let Kind::Vhost(vhost) = &port.kind else { return None };
    let slot = vhost.rx.get(usize::from(index))?;
    let mut live = slot.live.lock();
    vhost.set_active(index, false);
    let mut queue = live.take()?;
    queue.stop(&slot.counters);
    Some(queue)
}

/// What was used while there was no descriptor, or another one, may not have been noticed: the new
/// one is signalled once.
fn set_call(port: &Port, index: u16, call: Option<Arc<EventFd>>) {
    if let Kind::Vhost(vhost) = &port.kind
        && let Some(queue) = vhost.rx.get(usize::from(index))
        && let Some(live) = queue.live.lock().as_mut()
    {
        live.call = call;
        live.interrupt(&queue.counters);
    }
}

fn set_enabled(port: &Port, index: u16, on: bool) {
    if let Kind::Vhost(vhost) = &port.kind
        && let Some(queue) = vhost.rx.get(usize::from(index))
        && let Some(live) = queue.live.lock().as_mut()
    {
        live.enabled = on;
        vhost.set_active(index, on);
    }
}
