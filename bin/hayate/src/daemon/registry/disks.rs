//! Disks come and go.

use super::checks::{exists, invalid, not_static};
use super::images::refusal;
use super::{Disk, Failure, OpenDisk, Registry, Tables, host, not_found};
use crate::plane::{DiskPlace, Source, disk};
use api::{
    DiskConfig, DiskLimits, Error, ErrorCode, ImageName, ImageSource, Name, Origin, PortState,
    SocketMode, feature,
};
use dataplane::StoreTarget;
use std::fs;
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Access, Cache, Owner, StoreError};
use tracing::{info, warn};

/// How long an image that is still in use is waited for at a start: what a predecessor that was
/// killed had given to the kernel ends first.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

impl Registry {
    /// Makes a disk and opens it; `false` if it was there already, made the same way.
    pub(crate) async fn add_disk(
        &self,
        name: &Name,
        config: DiskConfig,
    ) -> Result<(api::Disk, bool), Error> {
        let _changing = self.changing.lock().await;
        let same = self
            .tables
            .read()
            .disks
            .get(name)
            .map(|disk| self.same_disk(name, &disk.config, &config));
        match same {
            Some(true) => return Ok((self.disk(name)?, false)),
            Some(false) => return Err(exists("disk", name)),
            None => {}
        }
        self.check_disk(name, &config)?;
        self.forget_disk(name);
        let open = self.open_disk(name, &config, Duration::ZERO).await?;
        let disk = Disk { config, origin: Origin::Runtime, open: Ok(open) };
        self.tables.write().disks.insert(name.clone(), disk);
        if let Err(error) = self.save().await {
            let disk = self.tables.write().disks.remove(name);
            if let Some(Ok(open)) = disk.map(|disk| disk.open) {
                self.close_disk(name, open).await;
            }
            return Err(error);
        }
        info!("disk {name} added");
        Ok((self.disk(name)?, true))
    }

    /// Closes a disk and forgets it; its image stays.
    pub(crate) async fn remove_disk(&self, name: &Name) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let disk = {
            let mut tables = self.tables.write();
            let disk = tables.disks.get(name).ok_or_else(|| not_found("disk", name))?;
            not_static(self, "disk", name, disk.origin)?;
            tables.disks.remove(name).ok_or_else(|| not_found("disk", name))?
        };
        if let Err(error) = self.save().await {
            self.tables.write().disks.insert(name.clone(), disk);
            return Err(error);
        }
        if let Ok(open) = disk.open {
            self.close_disk(name, open).await;
        }
        self.forget_disk(name);
        info!("disk {name} removed");
        Ok(())
    }

    /// Keeps a disk to other limits from now on.
    pub(crate) async fn limit_disk(
        &self,
        name: &Name,
        limits: DiskLimits,
    ) -> Result<api::Disk, Error> {
        limits.check().map_err(|wrong| invalid(&wrong))?;
        let _changing = self.changing.lock().await;
        let (handle, before) = {
            let mut tables = self.tables.write();
            let disk = tables.disks.get_mut(name).ok_or_else(|| not_found("disk", name))?;
            not_static(self, "disk", name, disk.origin)?;
            let before = std::mem::replace(&mut disk.config.limits, limits.clone());
            (disk.open.as_ref().ok().map(|open| open.handle), before)
        };
        if let Err(error) = self.save().await {
            if let Some(disk) = self.tables.write().disks.get_mut(name) {
                disk.config.limits = before;
            }
            return Err(error);
        }
        if let Some(handle) = handle {
            self.plane.limit_disk(handle, &limits).map_err(|error| host(&error))?;
        }
        info!("disk {name} has other limits");
        self.disk(name)
    }

    /// Opens a disk: its image, and then its socket. An image that is in use is waited for.
    pub(super) async fn open_disk(
        &self,
        name: &Name,
        config: &DiskConfig,
        patience: Duration,
    ) -> Result<OpenDisk, Error> {
        let image = match &config.image {
            ImageSource::Local(image) => {
                Source::Local(self.open_image(name, image, config, patience).await?)
            }
            ImageSource::Store { addresses, image } => {
                Source::Store(Arc::new(self.target(name, config, addresses, image)?))
            }
        };
        let place = DiskPlace {
            socket: self.paths.disk_socket(name, config),
            writethrough: self.paths.writethrough(name),
        };
        let socket = place.socket.clone();
        let handle = self.plane.open_disk(name, config, &image, place).await;
        let handle = handle.map_err(|error| host(&error))?;
        if let Some(group) = self.vhost_group
            && config.mode.unwrap_or_default() == SocketMode::Server
            && let Err(error) = super::ports::share(&socket, group)
        {
            warn!("disk {name}: the group cannot be given {}: {error}", socket.display());
        }
        Ok(OpenDisk { handle, image })
    }

    /// Opens the image of a disk. One that is in use is waited for.
    async fn open_image(
        &self,
        name: &Name,
        image: &ImageName,
        config: &DiskConfig,
        patience: Duration,
    ) -> Result<Arc<store::Image>, Error> {
        let owner = Owner::new(&self.paths.run, format!("disk {name}"));
        let access = if config.readonly { Access::Read } else { Access::Write };
        let cache = match config.cache.unwrap_or_default() {
            api::DiskCache::Direct => Cache::Direct,
            api::DiskCache::Host => Cache::PageCache,
        };
        let (catalog, image) = (self.catalog.clone(), image.clone());
        let opened = tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            loop {
                match catalog.open_image(&image, access, &owner, cache) {
                    Err(StoreError::InUse { .. }) if begin.elapsed() < patience => {
                        std::thread::sleep(PAUSE);
                    }
                    result => return result,
                }
            }
        });
        match opened.await {
            Ok(image) => Ok(Arc::new(image.map_err(|error| refusal(&error))?)),
            Err(error) => Err(Error::new(ErrorCode::Host, error.to_string())),
        }
    }

    /// What a store is asked for.
    fn target(
        &self,
        name: &Name,
        config: &DiskConfig,
        addresses: &[String],
        image: &ImageName,
    ) -> Result<StoreTarget, Error> {
        let path = self.paths.session(name);
        let session = session(&path).map_err(|error| {
            Error::new(ErrorCode::Host, format!("{} cannot be used: {error}", path.display()))
        })?;
        let host = rustix::system::uname();
        Ok(StoreTarget {
            addresses: addresses.to_vec(),
            image: image.clone(),
            session,
            client: format!("disk {name} of {}", host.nodename().to_string_lossy()),
            write: !config.readonly,
            patience: config.store_timeout.map(Duration::from_secs),
            transport: config.transport.unwrap_or_default(),
            tls: self.tls.clone(),
        })
    }

    /// Does something with the image of a disk while the disk has let go of it; the guest waits
    /// meanwhile.
    pub(super) async fn without_image<T>(
        &self,
        name: &Name,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let (config, handle) = {
            let tables = self.tables.read();
            let disk = tables.disks.get(name).ok_or_else(|| not_found("disk", name))?;
            let open = disk.open.as_ref().map_err(|failure| {
                Error::new(ErrorCode::Host, format!("disk {name} failed: {}", failure.reason))
            })?;
            (disk.config.clone(), open.handle)
        };
        self.plane.pause_disk(handle).await.map_err(|error| host(&error))?;
        let failure = || Err(Failure::now("its image is being changed"));
        let open = match self.tables.write().disks.get_mut(name) {
            Some(disk) => std::mem::replace(&mut disk.open, failure()),
            None => failure(),
        };
        // Closing an image may wait until what was written is stable.
        let _ = tokio::task::spawn_blocking(move || drop(open)).await;
        let done = work.await;
        let image = config.image.name();
        let open = match self.open_image(name, image, &config, PATIENCE).await {
            Ok(image) => {
                let resumed = self.plane.resume_disk(handle, &image);
                let image = Source::Local(image);
                resumed.map(|()| OpenDisk { handle, image }).map_err(Failure::from)
            }
            Err(error) => {
                // Its guest waits on: it is opened anew as soon as it can be.
                warn!("disk {name} cannot be opened and is tried again: {}", error.message);
                if let Err(error) = self.plane.close_disk(handle).await {
                    warn!("disk {name} cannot be closed: {error}");
                }
                Err(Failure::now(error.message))
            }
        };
        if let Some(disk) = self.tables.write().disks.get_mut(name) {
            disk.open = open;
        }
        done
    }

    /// Opens a disk that was there before.
    pub(super) async fn restore_disk(&self, name: &Name, config: &DiskConfig, origin: Origin) {
        if self.tables.read().disks.contains_key(name) {
            warn!("disk {name} is declared in the configuration file; the saved one is dropped");
            return;
        }
        let open = match self.check_disk(name, config) {
            Ok(()) => self.open_disk(name, config, PATIENCE).await,
            Err(error) => Err(error),
        };
        let open = open.map_err(|error| {
            warn!("disk {name} cannot be opened and is tried again: {}", error.message);
            Failure::now(error.message)
        });
        let disk = Disk { config: config.clone(), origin, open };
        self.tables.write().disks.insert(name.clone(), disk);
    }

    /// Tries a disk again that could not be opened.
    pub(super) async fn retry_disk(&self, name: &Name) {
        let _changing = self.changing.lock().await;
        let failed = match self.tables.read().disks.get(name) {
            Some(Disk { config, open: Err(failure), .. }) => (config.clone(), failure.clone()),
            _ => return,
        };
        let (config, failure) = failed;
        let open = match self.open_disk(name, &config, Duration::ZERO).await {
            Ok(open) => {
                info!("disk {name} is open");
                Ok(open)
            }
            // The same reason is neither logged again nor newer.
            Err(error) if error.message == failure.reason => Err(failure),
            Err(error) => {
                warn!("disk {name} cannot be opened: {}", error.message);
                Err(Failure::now(error.message))
            }
        };
        if let Some(disk) = self.tables.write().disks.get_mut(name) {
            disk.open = open;
        }
    }

    pub(super) fn failed_disks(&self) -> Vec<Name> {
        let tables = self.tables.read();
        let failed = tables.disks.iter().filter(|(_, disk)| disk.open.is_err());
        failed.map(|(name, _)| name.clone()).collect()
    }

    async fn close_disk(&self, name: &Name, open: OpenDisk) {
        if let Err(error) = self.plane.close_disk(open.handle).await {
            warn!("disk {name} cannot be closed: {error}");
        }
        // Closing an image may wait until what was written is stable.
        let _ = tokio::task::spawn_blocking(move || drop(open.image)).await;
    }

    /// Takes all images away from disks that are closed.
    pub(super) async fn release_images(&self) {
        let disks = std::mem::take(&mut self.tables.write().disks);
        let _ = tokio::task::spawn_blocking(move || drop(disks)).await;
    }

    fn forget_disk(&self, name: &Name) {
        for kept in [self.paths.writethrough(name), self.paths.session(name)] {
            match std::fs::remove_file(&kept) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    warn!("{} cannot be removed: {error}", kept.display());
                }
                _ => {}
            }
        }
    }

    /// Whether two descriptions of a disk mean the same: a default that is said is still one.
    fn same_disk(&self, name: &Name, one: &DiskConfig, two: &DiskConfig) -> bool {
        let full = |config: &DiskConfig| DiskConfig {
            socket: Some(self.paths.disk_socket(name, config)),
            mode: Some(config.mode.unwrap_or_default()),
            queues: Some(config.queues()),
            cache: config.image.local().map(|_| config.cache.unwrap_or_default()),
            transport: config.image.local().is_none().then(|| config.transport.unwrap_or_default()),
            ..config.clone()
        };
        full(one) == full(two)
    }

    /// Has stores that serve guests themselves say how those are.
    pub(crate) async fn ask_stores(&self) {
        self.plane.ask_stores().await;
    }

    /// All disks, by name.
    pub(crate) fn disks(&self) -> Vec<api::Disk> {
        let tables = self.tables.read();
        tables.disks.iter().map(|(name, disk)| self.view_disk(name, disk)).collect()
    }

    /// One disk.
    pub(crate) fn disk(&self, name: &Name) -> Result<api::Disk, Error> {
        let tables = self.tables.read();
        let disk = tables.disks.get(name).ok_or_else(|| not_found("disk", name))?;
        Ok(self.view_disk(name, disk))
    }

    fn view_disk(&self, name: &Name, disk: &Disk) -> api::Disk {
        let Disk { config, origin, open } = disk;
        let mut view = api::Disk {
            name: name.clone(),
            image: config.image.clone(),
            vm: config.vm.clone(),
            state: PortState::Failed,
            since: self.started.0.into(),
            failure: None,
            last_fault: None,
            last_error: None,
            socket: self.paths.disk_socket(name, config),
            mode: config.mode.unwrap_or_default(),
            size: 0,
            block_size: 0,
            readonly: config.readonly,
            writeback: false,
            worker: None,
            sessions: 0,
            features: Vec::new(),
            in_flight: 0,
            operations: Default::default(),
            refused: Default::default(),
            kicks: 0,
            interrupts: 0,
            bounced: 0,
            store: None,
            queues: Vec::new(),
            config: config.clone(),
            origin: *origin,
        };
        let handle = match open {
            Ok(open) => open.handle,
            Err(failure) => {
                view.since = failure.since;
                view.failure = Some(failure.reason.clone());
                return view;
            }
        };
        let Some(status) = self.plane.disk(handle) else { return view };
        let transport = status.store.as_ref().map(|store| store.transport);
        let elsewhere = transport == Some(api::Transport::Shm);
        let (state, failure) = disk::state(&status.state);
        let queue = |queue: &dataplane::DiskQueue| api::DiskQueue {
            index: queue.index,
            size: queue.size,
            packed: queue.packed,
            enabled: queue.enabled,
        };
        api::Disk {
            state,
            since: status.since.into(),
            failure,
            operations: disk::operations(&status),
            refused: disk::refused(&status),
            last_fault: status.last_fault,
            last_error: status.last_error,
            size: status.size,
            block_size: status.block_size,
            writeback: status.writeback,
            worker: Some(status.worker).filter(|_| !elsewhere),
            sessions: status.sessions,
            features: feature::disk_names(status.features),
            in_flight: status.in_flight,
            kicks: status.kicks,
            interrupts: status.interrupts,
            bounced: status.bounced,
            store: status.store.map(|store| api::DiskStore {
                address: store.address,
                connected: store.away.is_none(),
                away: store.away,
                since: store.since.into(),
                connections: store.connections,
                transport: store.transport,
                provider: store.provider,
            }),
            queues: status.queues.iter().map(queue).collect(),
            ..view
        }
    }
}

/// The number by which a store knows a disk again, after a restart too: made at first, and shown to
/// nobody else.
fn session(path: &Path) -> io::Result<u128> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        text => Some(text?),
    };
    let known = text.and_then(|text| u128::from_str_radix(text.trim(), 16).ok());
    if let Some(session) = known {
        return Ok(session);
    }
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let session = u128::from_ne_bytes(bytes);
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let mut file =
        fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(format!("{session:032x}\n").as_bytes())?;
    file.sync_all()?;
    Ok(session)
}

impl Tables {
    /// A disk that belongs to this VM.
    pub(super) fn disk_of_vm(&self, vm: &Name) -> Option<&Name> {
        self.disks
            .iter()
            .find(|(_, disk)| disk.config.vm.as_ref() == Some(vm))
            .map(|(name, _)| name)
    }
}
