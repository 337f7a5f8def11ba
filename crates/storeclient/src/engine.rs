//! The thread that has the connection of an image.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use remote::control::ImageName;
use remote::frame::{self, FromStore};
use remote::{Client, Request, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::EventFd;

use crate::talk::{self, Connected};
use crate::wire::{Wire, WireError};
use crate::{Error, Known};

/// How often a store is asked for a sign; it is dead when nothing was heard for so long after that.
const CHECK: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(300);

/// A request, and who waits for it.
#[derive(Debug)]
pub(crate) struct Job {
    /// What is written.
    pub(crate) data: Option<Arc<[u8]>>,
    /// Is told the end, with what was read. Dropped without a word: the image was closed.
    pub(crate) done: SyncSender<Result<Vec<u8>, Error>>,
}

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

/// A connection.
struct Link {
    wire: Wire,
    arriving: Option<Arriving>,
    /// When the store was asked for a sign and was not heard since.
    asked: Option<Instant>,
    /// When it is to be asked next.
    check: Instant,
}

/// A reply whose data is arriving.
struct Arriving {
    tag: u64,
    data: Vec<u8>,
    filled: usize,
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
        let connected = talk::open(&self.store, &self.image, self.write, closed)?;
        let Connected { wire, opened, boot, address } = connected;
        self.client.connected(&opened, &boot);
        self.shared.size.store(opened.size, Relaxed);
        self.shared.writable.store(self.write, Relaxed);
        let before = self.shared.connections.fetch_add(1, Relaxed);
        if before > 0 {
            tracing::info!(image = %self.image, store = %address, "connected again");
        }
        let check = Instant::now() + CHECK;
        self.link = Some(Link { wire, arriving: None, asked: None, check });
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
            self.disconnect();
            if !self.connect() {
                return;
            }
        }
    }

    fn disconnect(&mut self) {
        self.client.disconnected();
        self.link = None;
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
        self.disconnect();
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
        let flags = if link.wire.is_behind() { PollFlags::OUT } else { PollFlags::empty() };
        let wait = link.check.saturating_duration_since(now);
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let mut on = [
            PollFd::new(&self.shared.wake, PollFlags::IN),
            PollFd::new(&link.wire, PollFlags::IN | flags),
        ];
        match poll(&mut on, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(End::Lost(WireError::Io(error.into()))),
        }
    }
}

impl Link {
    /// Sends what may be sent, and takes what has arrived.
    fn pump(&mut self, client: &mut Client<Job>) -> Result<(), WireError> {
        loop {
            while let Some((tag, handle, sent)) = client.send() {
                let request = Request { handle, ..sent.request.clone() };
                self.wire.frame(|bytes| frame::request(bytes, tag, &request));
                if let Some(data) = &sent.job.data {
                    self.wire.push(Arc::clone(data));
                }
            }
            self.wire.flush()?;
            let mut answered = false;
            while self.arrive(client, &mut answered)? {
                self.asked = None;
            }
            // Answers make room for what waits.
            if !answered {
                return Ok(());
            }
        }
    }

    /// Takes the next thing that has arrived; whether there was one.
    fn arrive(&mut self, client: &mut Client<Job>, answered: &mut bool) -> Result<bool, WireError> {
        if let Some(Arriving { tag, mut data, mut filled }) = self.arriving.take() {
            let before = filled;
            let whole = self.wire.data(&mut data, &mut filled)?;
            if filled > before {
                self.asked = None;
            }
            if whole {
                *answered = true;
                end(client, tag, Status::Ok, data);
                return Ok(true);
            }
            self.arriving = Some(Arriving { tag, data, filled });
            return Ok(false);
        }
        let Some(next) = self.wire.item(|item| FromStore::of(&item))? else { return Ok(false) };
        match next.ok_or(WireError::Unexpected("neither reply nor ping"))? {
            FromStore::Pong => {}
            FromStore::Ping(tag) => self.wire.frame(|bytes| frame::pong(bytes, tag)),
            FromStore::Reply { tag, status, data } => {
                client.reply(tag, status, data).map_err(WireError::Unexpected)?;
                if data > 0 {
                    let data = vec![0; data as usize];
                    self.arriving = Some(Arriving { tag, data, filled: 0 });
                } else {
                    *answered = true;
                    end(client, tag, status, Vec::new());
                }
            }
        }
        Ok(true)
    }

    /// Asks the store for a sign if it was silent for a while, and gives the connection up if it was
    /// asked long ago.
    fn check(&mut self, now: Instant) -> Result<(), WireError> {
        self.check = now + CHECK;
        match self.asked {
            Some(at) if now.saturating_duration_since(at) >= SILENCE => {
                Err(WireError::Io(std::io::ErrorKind::TimedOut.into()))
            }
            Some(_) => Ok(()),
            None => {
                self.asked = Some(now);
                self.wire.frame(|bytes| frame::ping(bytes, 0));
                self.wire.flush()
            }
        }
    }
}

/// Tells whoever waits for a request how it ended.
fn end(client: &mut Client<Job>, tag: u64, status: Status, data: Vec<u8>) {
    if let Some((answered, status)) = client.answered(tag, status) {
        let result = if status == Status::Ok { Ok(data) } else { Err(Error::Failed(status)) };
        // Who does not wait any more does not want to know.
        let _ = answered.job.done.send(result);
    }
}
