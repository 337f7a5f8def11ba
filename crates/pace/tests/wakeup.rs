//! No wake-up is lost: the protocol by which a worker falls asleep, under every order of events
//! that the memory model allows (loom).
//!
//! The three parties are a worker, a guest that adds a buffer and kicks if it was asked to, and
//! control that posts a command. The worker asks for kicks, looks at the ring and at its mailbox
//! once more, and waits: `Worker::sleep` in the data plane, on `Queue::enable_kicks` and
//! `Mailbox::pending`. Here the ring is an index and a flag, and what it waits on (epoll, with
//! every write to an eventfd an event) a condition that stays until it is seen.
//!
//! A model that left out a step must fail, or it would show nothing; that is tested too.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU32, fence};
use loom::thread;

/// The step that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The worker does not look at the ring again after it asked for kicks.
    SecondLook,
    /// The worker looks before its wish is visible.
    WorkerFence,
    /// The guest reads the wish before its buffer is visible.
    GuestFence,
    /// The worker does not look at its mailbox again.
    Mailbox,
}

/// What both sides see.
struct Shared {
    /// Buffers the guest has added.
    avail: AtomicU32,
    /// The worker asks for a kick.
    wanted: AtomicBool,
    /// A command was posted.
    pending: AtomicBool,
    /// The descriptors it waits on.
    events: Notify,
}

impl Shared {
    fn new() -> Arc<Self> {
        let (avail, wanted) = (AtomicU32::new(0), AtomicBool::new(false));
        let pending = AtomicBool::new(false);
        Arc::new(Self { avail, wanted, pending, events: Notify::new() })
    }
}

fn guest(shared: &Shared, without: Without) {
    shared.avail.store(1, Release);
    if without != Without::GuestFence {
        fence(SeqCst);
    }
    if shared.wanted.load(Relaxed) {
        shared.events.notify();
    }
}

fn control(shared: &Shared) {
    shared.pending.store(true, SeqCst);
    shared.events.notify();
}

/// Works until it has seen the buffer, or the command.
fn worker(shared: &Shared, without: Without, done: impl Fn(&Shared) -> bool) {
    while !done(shared) {
        shared.wanted.store(true, Relaxed);
        if without != Without::WorkerFence {
            fence(SeqCst);
        }
        let waiting = without != Without::SecondLook && shared.avail.load(Relaxed) != 0;
        if !waiting {
            shared.events.wait();
        }
        shared.wanted.store(false, Relaxed);
    }
}

fn kicked(without: Without) {
    loom::model(move || {
        let shared = Shared::new();
        let guest = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || guest(&shared, without))
        };
        worker(&shared, without, |shared| shared.avail.load(Acquire) != 0);
        guest.join().unwrap();
    });
}

/// The wake-up for the command may be eaten by a look at other descriptors before the worker falls
/// asleep; the flag is what stays.
fn commanded(without: Without) {
    loom::model(move || {
        let shared = Shared::new();
        let control = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || control(&shared))
        };
        if !shared.pending.load(SeqCst) {
            // The look at other descriptors, which may eat the wake-up.
            shared.events.wait();
            if without == Without::Mailbox || !shared.pending.load(SeqCst) {
                shared.events.wait();
            }
        }
        control.join().unwrap();
    });
}

#[test]
fn no_kick_is_lost() {
    kicked(Without::Nothing);
}

#[test]
fn no_command_is_lost() {
    commanded(Without::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_second_look_one_is() {
    kicked(Without::SecondLook);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_worker_s_fence_one_is() {
    kicked(Without::WorkerFence);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_guest_s_fence_one_is() {
    kicked(Without::GuestFence);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_look_at_the_mailbox_one_is() {
    commanded(Without::Mailbox);
}
