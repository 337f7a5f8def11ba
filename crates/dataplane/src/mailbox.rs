//! How control reaches a worker.
//!
//! Any control thread posts commands; the one worker takes them between bursts. Posting never
//! waits for the worker. A busy worker notices the flag on its next pass, a sleeping one is woken
//! by the eventfd, which is one of the descriptors it sleeps on. The flag is set before the
//! eventfd is signalled and cleared before the commands are taken, so that none is left behind.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sys::EventFd;

use crate::worker::Command;

#[derive(Debug)]
struct Shared {
    commands: Mutex<Vec<Command>>,
    pending: AtomicBool,
    wake: EventFd,
}

/// The posting end.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox(Arc<Shared>);

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            commands: Mutex::new(Vec::new()),
            pending: AtomicBool::new(false),
            wake: EventFd::new()?,
        })))
    }

    /// Posts one command.
    pub(crate) fn post(&self, command: Command) {
        self.0.commands.lock().push(command);
        self.0.pending.store(true, Ordering::Release);
        // Cannot fail: the worker drains it, and a full count would wake it as well.
        let _ = self.0.wake.signal();
    }

    /// Whether commands wait. Cheap: the worker asks on every pass.
    #[inline]
    pub(crate) fn pending(&self) -> bool {
        self.0.pending.load(Ordering::Relaxed)
    }

    /// Takes all waiting commands, in the order they were posted.
    pub(crate) fn take(&self) -> Vec<Command> {
        self.0.wake.drain();
        self.0.pending.store(false, Ordering::Release);
        std::mem::take(&mut *self.0.commands.lock())
    }

    /// The descriptor a sleeping worker waits on.
    pub(crate) fn wake_fd(&self) -> &EventFd {
        &self.0.wake
    }
}
