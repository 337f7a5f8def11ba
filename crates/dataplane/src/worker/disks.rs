//! The disks of a worker, and the ring their files are read and written by.

use guestmem::Transfer;
use sys::uring::Ring;
use tokio::runtime::Handle;

use super::Worker;
use super::sleep::{Bed, Token};
use crate::clock::Clock;
use crate::disk::link::Line;
use crate::disk::live::{LiveDisk, Tools};
use crate::disk::queue::Waker;
use crate::disk::request::{Job, Request};
use crate::disk::{DiskCommand, DiskId};
use crate::mailbox::Mailbox;

/// Requests the ring takes between two system calls.
const ENTRIES: u32 = 256;
/// Time between two offers of the CPU to others, in nanoseconds: to the kernel's own threads; and, by a
/// worker that has nothing else to do, to the other side of a connection.
const GIVE_WAY: u64 = 20_000;
const GIVE_WAY_IDLE: u64 = 1_000;
/// Whoever had the CPU for longer was not what was waited for, in nanoseconds; and how much longer it is
/// kept then.
const STOLEN: u64 = 500_000;
const DEAR: u64 = 20;

/// What a worker serves disks with.
pub(super) struct Disks {
    /// By number; those of other workers are missing.
    live: Vec<Option<Box<LiveDisk>>>,
    /// How many are here.
    count: usize,
    /// Made with the first disk, for the thread that serves it.
    ring: Option<Ring<Transfer<Request>>>,
    /// For what may wait.
    runtime: Handle,
    clock: Clock,
    /// What it said last; and whether that was just before this pass: when others had run, or when something ended in
    /// the last one.
    now: u64,
    back: bool,
    /// The CPU is not offered before, in nanoseconds.
    way_after: u64,
    rhythm: Rhythm,
}

/// How often steps of the ring end: of a device at its limit many together, again and again.
#[derive(Debug, Default)]
struct Rhythm {
    /// When the last one ended, in nanoseconds.
    last: u64,
    /// From one lot to the next, lately, in nanoseconds; 0 if that is not known.
    gap: u64,
}

impl Rhythm {
    /// What ends within so many nanoseconds is of one lot.
    const LOT: u64 = 50_000;
    /// What takes longer is no rhythm.
    const LONG: u64 = 1_000_000_000;

    fn ended(&mut self, now: u64) {
        let gap = now.saturating_sub(self.last);
        self.last = now;
        if (Self::LOT..Self::LONG).contains(&gap) {
            self.gap = if self.gap == 0 { gap } else { self.gap - self.gap / 4 + gap / 4 };
        }
    }

    /// How long it takes from one lot to the next, if the next one is to be expected at `now`.
    fn expected(&self, now: u64) -> Option<u64> {
        (now < self.last + self.gap / 2 * 3).then_some(self.gap)
    }
}

impl Disks {
    pub(super) fn new(runtime: Handle, clock: Clock) -> Self {
        Self {
            live: Vec::new(),
            count: 0,
            ring: None,
            runtime,
            clock,
            now: 0,
            back: false,
            way_after: 0,
            rhythm: Rhythm::default(),
        }
    }

    /// Whether there are no disks, and the kernel has let go of the files of those there were.
    #[inline]
    fn is_empty(&mut self) -> bool {
        self.count == 0 && !self.ring.as_mut().is_some_and(Ring::ready)
    }

    /// Whether there is something to do that no other host is waited for with.
    fn is_near(&mut self) -> bool {
        self.ring.as_mut().is_some_and(Ring::ready)
            || self.live.iter().flatten().any(|disk| disk.is_near())
    }

    /// For [`pace::Pace::idle`]: while requests wait for others to end, how long that takes, in nanoseconds.
    #[inline]
    pub(super) fn awaited(&self, now: u64) -> Option<u64> {
        let length = self.rhythm.expected(now)?;
        self.live.iter().flatten().any(|disk| disk.is_behind()).then_some(length)
    }

    /// The worker has rested: it is later now.
    pub(super) fn rested(&mut self) {
        self.back = false;
    }

    fn look_at_clock(&mut self) -> u64 {
        self.now = self.clock.now();
        self.now
    }

    /// Calls this for a disk, with what it needs.
    fn with<R>(
        &mut self,
        id: DiskId,
        mailbox: &Mailbox,
        call: impl FnOnce(&mut LiveDisk, &mut Tools<'_>) -> R,
    ) -> Option<R> {
        let now = self.look_at_clock();
        let Self { live, ring, runtime, clock, .. } = self;
        let disk = live.get_mut(usize::from(id.0))?.as_deref_mut()?;
        let mut tools = Tools { ring: ring.as_mut(), runtime, mailbox, clock: *clock, now };
        Some(call(disk, &mut tools))
    }

    /// One pass: what is there is popped, what has ended is given back. Returns how many requests
    /// that were, and whether the clock was looked at.
    fn pass(&mut self, mailbox: &Mailbox) -> (usize, bool) {
        let mut looked = std::mem::take(&mut self.back);
        let Self { live, ring, runtime, clock, now, back, .. } = self;
        let mut any = ring.as_mut().is_some_and(Ring::ready);
        let mut taken = 0;
        for disk in live.iter_mut().flatten() {
            let waiting = disk.waiting();
            let deadline = disk.deadline();
            if !waiting && deadline.is_none() {
                continue;
            }
            if !looked {
                *now = clock.now();
                looked = true;
            }
            if waiting || deadline.is_some_and(|at| at <= *now) {
                any = true;
                let (ring, clock) = (ring.as_mut(), *clock);
                let mut tools = Tools { ring, runtime, mailbox, clock, now: *now };
                taken += disk.pass(&mut tools);
                // When something ended is late enough for what is begun next.
                *back |= tools.now != *now;
                *now = tools.now;
            }
        }
        let ended = if any { self.reap(mailbox) } else { 0 };
        (taken + ended, looked)
    }

    /// Has the ring begin with what was pushed and let go of files, and takes what has ended: what comes of that is
    /// for the next pass.
    fn reap(&mut self, mailbox: &Mailbox) -> usize {
        let Some(ring) = self.ring.as_mut() else { return 0 };
        if let Err(error) = ring.submit() {
            tracing::debug!(%error, "the ring takes no more for now");
        }
        let mut ended = 0;
        while let Some((transfer, result)) = self.ring.as_mut().and_then(Ring::ended) {
            ended += 1;
            let Transfer { segments, owner: request, .. } = transfer;
            let (id, result) = (request.disk, result.map(u64::from));
            let job = Box::new(Job { segments, request });
            self.with(id, mailbox, |disk, tools| disk.ring_ended(job, result, tools));
        }
        if ended > 0 {
            self.rhythm.ended(self.clock.now());
            self.close();
        }
        ended
    }

    /// Lets others run that this worker waits for: threads of the kernel that work for the ring on this
    /// CPU (a flush, or the first write after a file's time has moved on), and, when there is nothing
    /// else to do, the other side of a connection to or from a store. They would wait for the end of
    /// this worker's time slice otherwise, milliseconds. Without such a thread it costs a system call.
    /// `looked`: at the clock, in this pass.
    fn give_way(&mut self, idle: bool, looked: bool) {
        let far = idle && self.live.iter().flatten().any(|disk| disk.is_far());
        if !far && self.ring.as_ref().is_none_or(|ring| ring.in_flight() == 0) {
            return;
        }
        // Who was away for long, but brought something, was who is waited for.
        let heard = self.live.iter_mut().flatten().fold(false, |any, disk| disk.heard() | any);
        let now = if looked { self.now } else { self.look_at_clock() };
        if now < self.way_after && !heard {
            return;
        }
        rustix::thread::sched_yield();
        let back = self.look_at_clock();
        self.back = true;
        let away = back - now;
        // Somebody who was not waited for took a whole time slice: it is not offered again so soon.
        self.way_after = back
            + match (away > STOLEN, far) {
                (true, _) => away * DEAR,
                (false, true) => GIVE_WAY_IDLE,
                (false, false) => GIVE_WAY,
            };
    }

    /// Shows guests what has ended.
    fn close(&mut self) {
        for disk in self.live.iter_mut().flatten() {
            disk.close_all();
        }
    }

    /// Something has happened at a queue.
    pub(super) fn kicked(&mut self, id: DiskId, index: u16) {
        if let Some(Some(disk)) = self.live.get_mut(usize::from(id.0)) {
            disk.kicked(index);
        }
    }

    /// The store of a disk may have answered.
    pub(super) fn link_ready(&mut self, id: DiskId) {
        if let Some(Some(disk)) = self.live.get_mut(usize::from(id.0)) {
            disk.link_ready();
        }
    }

    /// Has connections over fabrics looked at; whether there are others, whose sockets tell.
    pub(super) fn look_around(&mut self) -> bool {
        let mut streams = false;
        for disk in self.live.iter_mut().flatten() {
            streams |= disk.look_around();
        }
        streams
    }

    fn add(&mut self, disk: Box<LiveDisk>, bed: &Bed) {
        if self.ring.is_none() {
            match Ring::new(ENTRIES) {
                Ok(ring) => {
                    bed.add(ring.wake_fd(), Token::Ring);
                    self.ring = Some(ring);
                }
                Err(error) => {
                    tracing::warn!(%error, "no io_uring: disks are served by other threads, slower");
                }
            }
        }
        let place = usize::from(disk.id().0);
        if self.live.len() <= place {
            self.live.resize_with(place + 1, || None);
        }
        if let Some(slot) = self.live.get_mut(place) {
            *slot = Some(disk);
            self.count += 1;
        }
    }

    fn remove(&mut self, id: DiskId) {
        if let Some(slot) = self.live.get_mut(usize::from(id.0))
            && slot.take().is_some()
        {
            self.count -= 1;
        }
    }
}

impl Worker {
    /// One pass over the disks, after one over the ports that took so many frames; returns the requests
    /// taken and ended.
    #[inline]
    pub(super) fn pass_disks(&mut self, frames: usize) -> usize {
        if self.disks.is_empty() {
            return 0;
        }
        // Between others and this pass were frames.
        self.disks.back &= frames == 0;
        let (done, looked) = self.disks.pass(&self.shared.mailbox);
        let idle = frames == 0 && (done == 0 || !self.disks.is_near());
        self.disks.give_way(idle, looked);
        done
    }

    /// When that is for the first of them, in nanoseconds.
    pub(super) fn disk_deadline(&self) -> Option<u64> {
        self.disks.live.iter().flatten().filter_map(|disk| disk.deadline()).min()
    }

    /// Asks guests to kick; returns whether something is waiting already, and whether there is a
    /// guest that cannot kick.
    pub(super) fn arm_disks(&mut self) -> (bool, bool) {
        let (mut waiting, mut silent) = (false, false);
        for disk in self.disks.live.iter_mut().flatten() {
            waiting |= disk.arm();
            silent |= disk.is_silent();
        }
        (waiting || self.disks.ring.as_mut().is_some_and(Ring::ready), silent)
    }

    /// Carries out a command for a disk.
    pub(super) fn obey_disk(&mut self, id: DiskId, command: DiskCommand) {
        let Self { disks, bed, shared, .. } = self;
        let mailbox = &shared.mailbox;
        match command {
            DiskCommand::Add(disk) => disks.add(disk, bed),
            DiskCommand::Remove(done) => {
                disks.remove(id);
                let _ = done.send(());
            }
            DiskCommand::Start(index, queue) => {
                match queue.waker() {
                    Some(Waker::Kick(kick)) => bed.add(&*kick, Token::DiskKick(id, index)),
                    Some(Waker::Stream(socket)) => {
                        bed.add_stream(&*socket, Token::DiskKick(id, index));
                    }
                    Some(Waker::Fabric(ready)) => bed.add(&ready, Token::DiskKick(id, index)),
                    None => {}
                }
                disks.with(id, mailbox, |disk, _| disk.start(index, queue));
            }
            DiskCommand::Stop(index, done) => {
                let stop =
                    |disk: &mut LiveDisk, tools: &mut Tools<'_>| disk.stop(index, done, tools);
                match disks.with(id, mailbox, stop).flatten() {
                    Some(Waker::Kick(kick)) => bed.remove(&*kick),
                    Some(Waker::Stream(socket)) => bed.remove(&*socket),
                    // It went with the queue, or goes with it.
                    Some(Waker::Fabric(_)) => {}
                    None => {}
                }
            }
            DiskCommand::SetCall(index, call) => {
                disks.with(id, mailbox, |disk, _| disk.set_call(index, call));
            }
            DiskCommand::SetEnabled(index, on) => {
                disks.with(id, mailbox, |disk, _| disk.set_enabled(index, on));
            }
            DiskCommand::SetRules(rules, told) => {
                disks.with(id, mailbox, |disk, _| disk.set_rules(rules, told));
            }
            DiskCommand::SetLimits(limiter) => {
                disks.with(id, mailbox, |disk, tools| disk.set_limits(limiter, tools));
            }
            DiskCommand::Pause(done) => {
                disks.with(id, mailbox, |disk, _| disk.pause(done));
            }
            DiskCommand::Resume(image) => {
                disks.with(id, mailbox, |disk, tools| disk.resume(image, tools));
            }
            DiskCommand::Connected(connected) => {
                match &connected.line {
                    Line::Wire(wire) => bed.add_stream(&*wire.socket(), Token::Link(id)),
                    Line::Rma(rma) => bed.add(&**rma, Token::Link(id)),
                }
                disks.with(id, mailbox, |disk, tools| disk.connected(*connected, tools));
            }
            DiskCommand::LeaveMemory => {
                disks.with(id, mailbox, |disk, _| disk.leave_memory());
            }
            DiskCommand::CheckLink => {
                disks.with(id, mailbox, LiveDisk::check_link);
            }
            DiskCommand::FailLink => {
                disks.with(id, mailbox, LiveDisk::fail_link);
            }
            DiskCommand::Slow(job, result) => {
                disks.with(id, mailbox, |disk, tools| {
                    disk.slow_ended(job, result, tools);
                    disk.close_all();
                });
            }
        }
        // What was begun here may have to be told to the kernel.
        disks.reap(mailbox);
    }
}

#[cfg(test)]
mod tests {
    use super::Rhythm;

    #[test]
    fn a_rhythm_is_known_from_its_lots_and_ends_with_them() {
        let mut rhythm = Rhythm::default();
        rhythm.ended(10_000_000_000);
        assert_eq!(rhythm.expected(10_000_000_001), None, "one is no rhythm");
        let mut now = 10_000_000_000;
        for _ in 0..20 {
            now += 1_000_000;
            for step in 0..10 {
                rhythm.ended(now + step * 1_000);
            }
        }
        assert!((900_000..=1_000_000).contains(&rhythm.gap), "{rhythm:?}");
        assert_eq!(rhythm.expected(now + 1_000_000), Some(rhythm.gap));
        assert_eq!(rhythm.expected(now + 2_000_000), None, "it has ended");
    }
}
