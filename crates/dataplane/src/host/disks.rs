//! Disks made, changed and looked at.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use disk::SECTOR;
use disk::counters::Totals;
use tokio::sync::oneshot;

use super::Host;
use crate::disk::{Disk, DiskCommand, DiskId, DiskImage, config};
use crate::error::HostError;
use crate::spec::{DiskLimits, DiskSpec};
use crate::status::{DiskQueue, DiskStatus};
use crate::worker::Command;

/// A disk, and the task of its session.
#[derive(Debug)]
pub(super) struct Entry {
    disk: Arc<Disk>,
    /// None while it is being made or removed.
    task: Option<config::DiskTask>,
}

impl Host {
    /// Makes a disk and serves it to whoever connects to its socket.
    ///
    /// # Errors
    ///
    /// The specification makes no sense, or the socket could not be made. Nothing is left behind
    /// then.
    pub async fn add_disk(&self, spec: &DiskSpec) -> Result<DiskId, HostError> {
        let workers = &self.0.workers;
        let worker = match spec.worker {
            Some(worker) => {
                self.check_worker(worker)?;
                worker
            }
            None => workers.choose(None, None),
        };
        let now = self.0.epoch.elapsed().as_nanos() as u64;
        let (disk, live, made) = {
            let mut tables = self.0.tables.lock();
            let free = (0..u16::MAX).map(DiskId).find(|id| !tables.disks.contains_key(id));
            let id = free.ok_or(HostError::TooManyDisks)?;
            let (disk, live, made) = config::create(id, spec, worker, workers, now)?;
            tables.disks.insert(id, Entry { disk: Arc::clone(&disk), task: None });
            (disk, live, made)
        };
        if let Some(shared) = workers.get(worker) {
            shared.assigned.fetch_add(1, Relaxed);
        }
        disk.command(workers, DiskCommand::Add(live));
        let task = made.spawn(&self.0.runtime);
        if let Some(entry) = self.0.tables.lock().disks.get_mut(&disk.id) {
            entry.task = Some(task);
        }
        Ok(disk.id)
    }

    /// Removes a disk: its session ends when what is in flight has ended. Its image is no longer
    /// used when this returns.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub async fn remove_disk(&self, id: DiskId) -> Result<(), HostError> {
        let (disk, task) = {
            let mut tables = self.0.tables.lock();
            let entry = tables.disks.get_mut(&id).ok_or(HostError::NoSuchDisk)?;
            (Arc::clone(&entry.disk), entry.task.take())
        };
        if let Some(task) = task {
            task.stop().await;
        }
        let (done, removed) = oneshot::channel();
        disk.command(&self.0.workers, DiskCommand::Remove(done));
        let _ = removed.await;
        if let Some(shared) = self.0.workers.get(disk.worker) {
            shared.assigned.fetch_sub(1, Relaxed);
        }
        self.0.tables.lock().disks.remove(&id);
        Ok(())
    }

    /// Keeps a disk to these limits from now on.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub fn limit_disk(&self, id: DiskId, limits: &DiskLimits) -> Result<(), HostError> {
        let now = self.0.epoch.elapsed().as_nanos() as u64;
        let limiter = config::limiter(limits, now);
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
        // Locked until the worker's mailbox has them: rules must arrive in the order they were made.
        let mut config = disk.config.lock();
        let look = |source| HostError::DiskLook { disk: disk.name.clone(), source };
        if config.resize(size / SECTOR).map_err(look)? {
            disk.command(&self.0.workers, DiskCommand::SetRules(config.rules()));
            disk.changed.notify_one();
        }
        Ok(())
    }

    /// State and counters of a disk.
    #[must_use]
    pub fn disk_status(&self, id: DiskId) -> Option<DiskStatus> {
        let disk = self.disk(id).ok()?;
        let mut operations = Totals::default();
        let (mut interrupts, mut kicks, mut bounced) = (0, 0, 0);
        for counters in &disk.counters {
            counters.operations.add_to(&mut operations);
            interrupts += counters.interrupts.get();
            kicks += counters.kicks.get();
            bounced += counters.bounced.get();
        }
        let info = disk.info.lock();
        let queue = |(index, info): (u16, &Option<crate::port::vhost::QueueInfo>)| {
            let info = info.as_ref()?;
            Some(DiskQueue { index, size: info.size, packed: info.packed, enabled: info.enabled })
        };
        let config = disk.config.lock();
        Some(DiskStatus {
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
        })
    }

    fn disk(&self, id: DiskId) -> Result<Arc<Disk>, HostError> {
        let tables = self.0.tables.lock();
        tables.disks.get(&id).map(|entry| Arc::clone(&entry.disk)).ok_or(HostError::NoSuchDisk)
    }
}

impl Disk {
    /// Posts a command to the worker that serves the disk.
    pub(crate) fn command(&self, workers: &crate::homes::Workers, command: DiskCommand) {
        workers.post(self.worker, Command::Disk(self.id, command));
    }
}
