//! The thread that has the connection of an image.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use line::WireError;
use parking_lot::Mutex;
use remote::control::{ImageName, Transport};
use remote::{Client, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::EventFd;

use crate::link::{Job, Link};
use crate::open::{self, Connected};
use crate::pool::Pool;
use crate::{Error, Known};

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(300);

/// What the thread and those who ask have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    asked: Mutex<Asked>,
    /// Wakes the thread up.
    wake: EventFd,
    closed: AtomicBool,
    /// Bytes of the image.
    pub(crate) size: AtomicU64,
    pub(crate) writable: AtomicBool,
    /// Connections so far.
    pub(crate) connections: AtomicU64,
    /// How the last one was made.
    pub(crate) transport: Mutex<Transport>,
    /// Where data goes through.
    pub(crate) pool: Arc<Pool>,
}

#[derive(Debug, Default)]
struct Asked {
    closed: bool,
    jobs: Vec<(Request, Job)>,
    /// Somebody wants to write.
    upgrade: Option<SyncSender<Result<(), Error>>>,
}

impl Shared {
    pub(crate) fn new() -> Result<Shared, Error> {
        Ok(Shared {
            asked: Mutex::default(),
            wake: EventFd::new().map_err(Error::System)?,
            closed: AtomicBool::new(false),
            size: AtomicU64::new(0),
            writable: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            transport: Mutex::new(Transport::Auto),
            pool: Arc::new(Pool::new()?),
        })
    }

    fn ask(&self, what: impl FnOnce(&mut Asked)) -> Result<(), Error> {
        let mut asked = self.asked.lock();
        if asked.closed {
            return Err(Error::Closed);
        }
        // Who finds something there knows that the thread was woken up for it.
        let first = asked.jobs.is_empty() && asked.upgrade.is_none();
        what(&mut asked);
        drop(asked);
        if first { self.wake.signal().map_err(Error::System) } else { Ok(()) }
    }

    /// Has requests carried out.
    pub(crate) fn push(&self, jobs: impl Iterator<Item = (Request, Job)>) -> Result<(), Error> {
        self.ask(|asked| asked.jobs.extend(jobs))
    }

    /// Has the image opened for writing; one at a time may ask.
    pub(crate) fn upgrade(&self, done: SyncSender<Result<(), Error>>) -> Result<(), Error> {
        self.ask(|asked| asked.upgrade = Some(done))
    }

    /// Everything that is asked for and was not answered ends without an answer.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
        *self.asked.lock() = Asked { closed: true, ..Asked::default() };
        // It looks by itself soon.
        let _ = self.wake.signal();
    }
}

/// What the thread does its work with.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Arc<Known>,
    pub(crate) image: ImageName,
    write: bool,
    client: Client<Job>,
    link: Option<Link>,
}

/// Why the thread stops serving its connection.
enum End {
    Closed,
    Lost(WireError),
}

impl From<WireError> for End {
    fn from(error: WireError) -> End {
        End::Lost(error)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // However it ends, nobody waits for it.
        self.shared.close();
    }
}

impl Engine {
    /// For an image that is not open yet.
    pub(crate) fn new(
        shared: Arc<Shared>,
        store: Arc<Known>,
        image: ImageName,
        write: bool,
    ) -> Engine {
        Engine { shared, store, image, write, client: Client::default(), link: None }
    }

    /// Opens the image, once.
    pub(crate) fn open(&mut self) -> Result<(), Error> {
        let closed = &self.shared.closed;
        let connected =
            open::open(&self.store, &self.image, self.write, &self.shared.pool, closed)?;
        let Connected { line, opened, boot, address } = connected;
        let by = line.transport();
        self.client.connected(&opened, &boot);
        self.shared.size.store(opened.size, Relaxed);
        self.shared.writable.store(self.write, Relaxed);
        let before = self.shared.connections.fetch_add(1, Relaxed);
        *self.shared.transport.lock() = by;
        let said = if before > 0 { "connected again" } else { "opened" };
        tracing::info!(image = %self.image, store = %address, transport = by.as_str(), "{said}");
        self.link = Some(Link::new(line, self.write));
        Ok(())
    }

    /// Carries out what is asked for, until the image is closed.
    pub(crate) fn run(mut self) {
        loop {
            match self.serve() {
                End::Closed => return,
                End::Lost(why) => {
                    tracing::warn!(image = %self.image, "the connection to its store is lost: {why}");
                }
            }
            if !self.disconnect() || !self.connect() {
                return;
            }
        }
    }

    /// Whether there is memory to go on with.
    fn disconnect(&mut self) -> bool {
        self.client.disconnected();
        let shown = self.link.take().is_some_and(|link| link.shows_memory());
        if shown && let Err(error) = self.shared.pool.renew() {
            tracing::error!(image = %self.image, "no more is done: {error}");
            return false;
        }
        true
    }

    /// Takes what was asked for. `None`: the image is closed.
    fn take(&mut self) -> Option<Option<SyncSender<Result<(), Error>>>> {
        self.shared.wake.drain();
        let Asked { closed, jobs, upgrade } = {
            let mut asked = self.shared.asked.lock();
            let fresh = Asked { closed: asked.closed, ..Asked::default() };
            std::mem::replace(&mut *asked, fresh)
        };
        for (request, job) in jobs {
            self.client.push(request, job);
        }
        (!closed).then_some(upgrade)
    }

    /// Connects again, however long it takes; whether it did: not if the image is closed.
    fn connect(&mut self) -> bool {
        let (mut said, away) = (String::new(), Instant::now());
        loop {
            let error = match self.open() {
                Ok(()) => return true,
                Err(error) => error,
            };
            let text = error.to_string();
            if text != said {
                tracing::warn!(image = %self.image, "{text}");
                said = text;
            }
            let Some(upgrade) = self.take() else { return false };
            if let Some(done) = upgrade {
                let _ = done.send(Err(error));
            }
            if self.store.patience.is_some_and(|most| away.elapsed() >= most) {
                for request in self.client.take_back(|_| true) {
                    let _ = request.job.done.send(Err(Error::Away));
                }
            }
            thread::sleep(PAUSE);
        }
    }

    /// Serves the connection until it ends.
    fn serve(&mut self) -> End {
        loop {
            match self.take() {
                None => return End::Closed,
                Some(Some(done)) => {
                    let _ = done.send(self.upgrade());
                }
                Some(None) => {}
            }
            if let Err(end) = self.step() {
                return end;
            }
        }
    }

    /// Opens the image again, for writing too. If that is not possible it is to be opened as before.
    fn upgrade(&mut self) -> Result<(), Error> {
        if self.write {
            return Ok(());
        }
        if !self.disconnect() {
            return Err(Error::Closed);
        }
        self.write = true;
        self.open().inspect_err(|_| self.write = false)
    }

    /// Sends and takes what there is, then waits for more.
    fn step(&mut self) -> Result<(), End> {
        let Some(link) = &mut self.link else {
            return Err(End::Lost(WireError::Closed));
        };
        link.pump(&mut self.client)?;
        let now = Instant::now();
        if now >= link.check {
            link.check(now)?;
        }
        if !link.may_sleep() {
            return Ok(());
        }
        let wait = link.check.saturating_duration_since(now);
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let mut on = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        on.extend(link.descriptors().polled());
        let ready = match poll(&mut on, Some(&wait)) {
            Ok(_) => [1, 2].map(|at| on.get(at).is_some_and(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => [false; 2],
            Err(error) => return Err(End::Lost(WireError::Io(error.into()))),
        };
        drop(on);
        Ok(link.woken(ready[0], ready[1])?)
    }
}
