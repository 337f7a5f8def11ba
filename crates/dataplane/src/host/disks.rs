//! Disks made, changed and looked at.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use disk::SECTOR;
use disk::counters::Totals;
use remote::control::Opened;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use vhost_session::socket::{Endpoint, Handed};

use super::Host;
use crate::disk::config::{self, CacheMode, Door, Faults, Made};
use crate::disk::connection::Connection;
use crate::disk::link::Link;
use crate::disk::queue::LiveQueue;
use crate::disk::{Disk, DiskCommand, DiskId, DiskImage, Told};
use crate::error::HostError;
use crate::session::{QueueInfo, SessionTask};
use crate::spec::{DiskLimits, DiskSpec, SocketMode};
use crate::status::{DiskQueue, DiskStatus};
use crate::store::keeper::{self, Keeper, Kept, Wish};
use crate::store::place::{Ask, Front};
use crate::store::post::Guest;

/// A disk, and the task of its session.
#[derive(Debug)]
pub(super) struct Entry {
    disk: Arc<Disk>,
    /// None while it is being made or removed.
    task: Option<SessionTask>,
    /// Of an image in a store.
    keeper: Option<Keeper>,
    /// Of an image in a store: whoever meets its front ends.
    front: Option<mpsc::UnboundedSender<Ask>>,
}

/// Characters of a guest's disk's name that are kept.
const NAME: usize = 64;
/// How long the store that serves a guest may take to say how it is.
const STATUS: Duration = Duration::from_millis(300);

impl Host {
    /// Makes a disk and serves it to whoever connects to its socket. An image in a store is opened
    /// there first.
    ///
    /// # Errors
    ///
    /// The specification makes no sense, the socket could not be made, or no store opens the image.
    /// Nothing is left behind then.
    pub async fn add_disk(&self, spec: &DiskSpec) -> Result<DiskId, HostError> {
        if let Some(worker) = spec.worker {
            self.check_worker(worker)?;
        }
        let wish = Wish::of(spec);
        let far = match &spec.image {
            DiskImage::Store(target) => {
                Some((Arc::clone(target), keeper::open(target, Some(&wish), true).await?))
            }
            DiskImage::File(_) | DiskImage::Image(_) => None,
        };
        let (say, ends) = mpsc::unbounded_channel();
        let opened = far.as_ref().map(|(_, reached)| (Link::new(say.clone()), &reached.opened));
        let workers = &self.0.workers;
        let (disk, live, door) = self.enter(spec, opened, |made| {
            let Made { disk, live, faults } = made;
            let door = Door::open(spec, &disk, workers, faults)?;
            Ok((disk, live, door))
        })?;
        disk.command(workers, DiskCommand::Add(live));
        let runtime = &self.0.runtime;
        let (task, keeper, front) = match far {
            None => (door.spawn(runtime), None, None),
            Some((target, reached)) => {
                let (way, ways) = mpsc::unbounded_channel();
                let (ask, asks) = mpsc::unbounded_channel();
                let front = Front {
                    disk: Arc::clone(&disk),
                    socket: spec.socket.clone(),
                    mode: spec.mode,
                    limits: spec.limits,
                    cache_mode: CacheMode::of(spec),
                    ways,
                    ends: say,
                    asks,
                };
                let (disk, workers) = (Arc::clone(&disk), Arc::clone(workers));
                let kept = Kept { disk, workers, target, wish: Some(wish), way, ends };
                let keeper = Keeper::spawn(kept, reached, runtime);
                (door.spawn_front(front, runtime), Some(keeper), Some(ask))
            }
        };
        if let Some(entry) = self.0.tables.lock().disks.get_mut(&disk.id) {
            (entry.task, entry.keeper, entry.front) = (Some(task), keeper, front);
        }
        Ok(disk.id)
    }

    /// Gives a disk a number and a worker.
    fn enter<T>(
        &self,
        spec: &DiskSpec,
        far: Option<(Link, &Opened)>,
        finish: impl FnOnce(Made) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        let workers = &self.0.workers;
        let worker = spec.worker.unwrap_or_else(|| workers.choose(None, None));
        let now = self.0.clock.now();
        let mut tables = self.0.tables.lock();
        let free = (0..u16::MAX).map(DiskId).find(|id| !tables.disks.contains_key(id));
        let made = config::make(free.ok_or(HostError::TooManyDisks)?, spec, worker, now, far)?;
        let disk = Arc::clone(&made.disk);
        let finished = finish(made)?;
        if let Some(shared) = workers.get(worker) {
            shared.assigned.fetch_add(1, Relaxed);
        }
        tables.disks.insert(disk.id, Entry { disk, task: None, keeper: None, front: None });
        Ok(finished)
    }

    /// Removes a disk: its session ends when what is in flight has ended. Its image is no longer
    /// used when this returns.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub async fn remove_disk(&self, id: DiskId) -> Result<(), HostError> {
        let (disk, task, keeper) = {
            let mut tables = self.0.tables.lock();
            let entry = tables.disks.get_mut(&id).ok_or(HostError::NoSuchDisk)?;
            (Arc::clone(&entry.disk), entry.task.take(), entry.keeper.take())
        };
        if let Some(task) = task {
            task.stop().await;
        }
        if let Some(keeper) = keeper {
            keeper.stop().await;
        }
        self.leave(&disk).await;
        Ok(())
    }

    /// Takes a disk from its worker; its queues have stopped.
    async fn leave(&self, disk: &Disk) {
        let (done, removed) = oneshot::channel();
        disk.command(&self.0.workers, DiskCommand::Remove(done));
        let _ = removed.await;
        if let Some(shared) = self.0.workers.get(disk.worker) {
            shared.assigned.fetch_sub(1, Relaxed);
        }
        self.0.tables.lock().disks.remove(&disk.id);
    }

    /// Makes a disk for another host.
    pub(crate) fn serve_image(&self, offer: Offer) -> Result<Served, HostError> {
        let spec = offer.spec();
        let Made { disk, live, faults } = self.enter(&spec, None, Ok)?;
        disk.command(&self.0.workers, DiskCommand::Add(live));
        Ok(Served { host: self.clone(), disk, faults })
    }

    /// Makes a disk for a guest of this machine whose front ends another process meets.
    pub(crate) fn serve_guest(&self, offer: Offer, guest: &Guest) -> Result<Resident, HostError> {
        let Guest { disk, queues, features_off, writethrough } = guest;
        // It goes into logs.
        let disk = disk.chars().filter(|c| !c.is_control()).take(NAME).collect();
        let name = offer.name.clone();
        let (queues, features_off) = (*queues, *features_off);
        let spec = DiskSpec { name: disk, queues, features_off, ..offer.spec() };
        let workers = &self.0.workers;
        let (tell, cache_mode) = watch::channel(*writethrough);
        let (hand, handed) = mpsc::channel(1);
        let (disk, live, door) = self.enter(&spec, None, |made| {
            let Made { disk, live, faults } = made;
            let (endpoint, told) = (Endpoint::handed(name, handed), CacheMode::Told(tell));
            let door = Door::at(endpoint, &spec, &disk, workers, faults, told);
            Ok((disk, live, door))
        })?;
        disk.command(workers, DiskCommand::Add(live));
        if *writethrough {
            let mut config = disk.config.lock();
            config.keep_writethrough();
            disk.command(workers, DiskCommand::SetRules(config.rules(), Told::Nobody));
        }
        let task = door.spawn(&self.0.runtime);
        Ok(Resident { host: self.clone(), disk, task, hand, cache_mode })
    }

    /// Keeps a disk to these limits from now on.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub fn limit_disk(&self, id: DiskId, limits: &DiskLimits) -> Result<(), HostError> {
        let now = self.0.clock.now();
        let limiter = config::limiter(limits, now);
        if let Some(front) = self.front(id) {
            // Nobody listens once this process serves the guest.
            let _ = front.send(Ask::Limits(*limits));
        }
        self.disk(id)?.command(&self.0.workers, DiskCommand::SetLimits(limiter));
        Ok(())
    }

    /// Has a disk begin nothing more until [`Host::resume_disk`]; its guest waits. When this returns,
    /// its image is not used any more.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub async fn pause_disk(&self, id: DiskId) -> Result<(), HostError> {
        let (done, paused) = oneshot::channel();
        self.disk(id)?.command(&self.0.workers, DiskCommand::Pause(done));
        paused.await.map_err(|_| HostError::NoSuchDisk)
    }

    /// Has a disk that was paused go on, with this image.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub fn resume_disk(&self, id: DiskId, image: DiskImage) -> Result<(), HostError> {
        self.disk(id)?.command(&self.0.workers, DiskCommand::Resume(image));
        Ok(())
    }

    /// Tells the guest of a disk, and whoever judges its requests, that its image has another size
    /// by now, in bytes.
    ///
    /// # Errors
    ///
    /// It does not exist, or no disk can be so large.
    pub fn resize_disk(&self, id: DiskId, size: u64) -> Result<(), HostError> {
        let disk = self.disk(id)?;
        let look = |source| HostError::DiskLook { disk: disk.name.clone(), source };
        disk.resize(&self.0.workers, size).map_err(look)
    }

    /// Asks stores that serve guests of this host themselves how those are, for [`Host::disk_status`].
    /// One that does not answer at once is not waited for.
    pub async fn ask_stores(&self) {
        let asked: Vec<_> = {
            let tables = self.0.tables.lock();
            let fronts = tables.disks.values().filter_map(|entry| entry.front.as_ref());
            let ask = |front: &mpsc::UnboundedSender<Ask>| {
                let (ask, answered) = oneshot::channel();
                front.send(Ask::Status(ask)).is_ok().then_some(answered)
            };
            fronts.filter_map(ask).collect()
        };
        let answers = async {
            for answered in asked {
                // It is closed when there is an answer, or nobody to ask.
                let _ = answered.await;
            }
        };
        let _ = timeout(STATUS, answers).await;
    }

    fn front(&self, id: DiskId) -> Option<mpsc::UnboundedSender<Ask>> {
        self.0.tables.lock().disks.get(&id)?.front.clone()
    }

    /// State and counters of a disk.
    #[must_use]
    pub fn disk_status(&self, id: DiskId) -> Option<DiskStatus> {
        Some(status(&*self.disk(id).ok()?))
    }

    fn disk(&self, id: DiskId) -> Result<Arc<Disk>, HostError> {
        let tables = self.0.tables.lock();
        tables.disks.get(&id).map(|entry| Arc::clone(&entry.disk)).ok_or(HostError::NoSuchDisk)
    }
}

/// An image that is served for others.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// For the log.
    pub(crate) name: String,
    pub(crate) image: DiskImage,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
}

impl Offer {
    /// A disk of it without anything that belongs to a guest.
    fn spec(self) -> DiskSpec {
        let Offer { name, image, size, read_only } = self;
        DiskSpec {
            name,
            socket: PathBuf::new(),
            mode: SocketMode::Server,
            queues: 1,
            image,
            size,
            read_only,
            limits: DiskLimits::default(),
            features_off: 0,
            writethrough: None,
            worker: None,
        }
    }
}

/// State and counters of a disk.
fn status(disk: &Disk) -> DiskStatus {
    let store = disk.store.lock().clone();
    let info = disk.info.lock();
    if let Some(report) = &*disk.report.lock() {
        // It is served elsewhere.
        let (last_fault, worker) = (info.last_fault.clone(), disk.worker);
        return DiskStatus { last_fault, worker, store, ..DiskStatus::clone(report) };
    }
    let mut operations = Totals::default();
    let (mut interrupts, mut kicks, mut bounced) = (0, 0, 0);
    for counters in &disk.counters {
        counters.operations.add_to(&mut operations);
        interrupts += counters.interrupts.get();
        kicks += counters.kicks.get();
        bounced += counters.bounced.get();
    }
    let queue = |(index, info): (u16, &Option<QueueInfo>)| {
        let info = info.as_ref()?;
        Some(DiskQueue { index, size: info.size, packed: info.packed, enabled: info.enabled })
    };
    let config = disk.config.lock();
    DiskStatus {
        state: info.state.clone(),
        since: info.since,
        sessions: info.sessions,
        last_fault: info.last_fault.clone(),
        last_error: disk.last_error.lock().clone(),
        features: info.features,
        size: config.spec().capacity * SECTOR,
        block_size: config.spec().block_size,
        writeback: config.rules().writeback,
        worker: disk.worker,
        in_flight: disk.counters.iter().map(|counters| counters.in_flight.get()).sum(),
        operations,
        kicks,
        interrupts,
        bounced,
        queues: (0u16..).zip(&info.queues).filter_map(queue).collect(),
        store,
    }
}

/// A disk of another host.
pub(crate) struct Served {
    host: Host,
    disk: Arc<Disk>,
    faults: Faults,
}

impl Served {
    /// Serves this connection.
    pub(crate) fn start(&self, connection: Connection) {
        let queue = Box::new(LiveQueue::connection(connection));
        self.disk.command(&self.host.0.workers, DiskCommand::Start(0, queue));
    }

    /// Waits until the connection cannot be gone on with: why.
    pub(crate) async fn fault(&mut self) -> String {
        match self.faults.recv().await {
            Some((_, why)) => why,
            None => std::future::pending().await,
        }
    }

    /// Ends the connection: nothing it asked for is under way when this returns.
    pub(crate) async fn end(&self) {
        let (done, stopped) = oneshot::channel();
        self.disk.command(&self.host.0.workers, DiskCommand::Stop(0, done));
        // An error means that it was never started.
        let _ = stopped.await;
        self.host.leave(&self.disk).await;
    }
}

/// A disk of a guest of this machine whose front ends another process meets.
#[derive(Debug)]
pub(crate) struct Resident {
    host: Host,
    disk: Arc<Disk>,
    task: SessionTask,
    hand: mpsc::Sender<Handed>,
    cache_mode: watch::Receiver<bool>,
}

impl Resident {
    /// Serves this front end; the one before it has left.
    pub(crate) fn hand(&self, front_end: Handed) {
        // There is room for one. If it is not taken, who handed it over learns that it has left.
        let _ = self.hand.try_send(front_end);
    }

    /// Keeps to these limits from now on.
    pub(crate) fn limit(&self, limits: &DiskLimits) {
        let _ = self.host.limit_disk(self.disk.id, limits);
    }

    /// State and counters.
    pub(crate) fn status(&self) -> DiskStatus {
        status(&self.disk)
    }

    /// Waits until its guest asks for another cache mode: whether that is writethrough.
    pub(crate) async fn cache_mode(&mut self) -> bool {
        match self.cache_mode.changed().await {
            Ok(()) => *self.cache_mode.borrow_and_update(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends it: neither the image nor the guest's memory is used any more when this returns.
    pub(crate) async fn end(self) {
        self.task.stop().await;
        self.host.leave(&self.disk).await;
    }
}
