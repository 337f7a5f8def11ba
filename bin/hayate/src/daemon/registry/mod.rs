//! The registry: what exists under which name, and how it is changed.
//!
//! Names belong to the registry, handles to the data plane, and this is where one becomes the
//! other. Everything runs on the daemon's control thread. A change takes `changing` for its whole
//! length, so changes happen one after the other; `tables` is locked only for moments and never
//! across an await, so that looking never waits for a change. A change is saved before it is
//! answered; when saving fails it is undone and refused.
//!
//! A port or a disk that the host cannot open at start is kept: it is shown as `failed` with the reason
//! and tried again every [`RETRY`]. One that cannot be opened when it is added is refused.

mod changes;
mod checks;
mod disks;
mod flow;
mod guests;
mod images;
mod pfs;
mod ports;
mod restore;
mod routers;
mod rules;
mod views;

pub(crate) use guests::GuestPf;
pub(crate) use images::Tell;
pub(crate) use restore::RestoreError;
pub(crate) use rules::RuleTotals;

use crate::paths::Paths;
use crate::plane::{DiskHandle, NetworkHandle, Plane, PlaneError, PortHandle, Source};
use crate::state::{Books, State, StateFile};
use api::{
    DiskConfig, Error, ErrorCode, Function, Name, NetworkConfig, Origin, PfConfig, PortConfig,
    Timestamp, VmConfig,
};
use parking_lot::RwLock;
use routers::GuestChannel;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Mutex;

/// Time between two attempts to open a failed port.
const RETRY: Duration = Duration::from_secs(2);

/// What exists, by name.
#[derive(Default)]
struct Tables {
    networks: BTreeMap<Name, Network>,
    vms: BTreeMap<Name, Vm>,
    ports: BTreeMap<Name, Port>,
    pfs: BTreeMap<Name, Pf>,
    disks: BTreeMap<Name, Disk>,
}

struct Network {
    config: NetworkConfig,
    origin: Origin,
    handle: NetworkHandle,
}

struct Vm {
    config: VmConfig,
    origin: Origin,
    /// Whether its router may be bypassed.
    bypass: bool,
    channel: Option<GuestChannel>,
}

struct Port {
    /// What holds: of a function, what the guest has set too.
    config: PortConfig,
    origin: Origin,
    /// What it is of its PF, if it has one.
    function: Option<Function>,
    open: Result<PortHandle, Failure>,
}

struct Pf {
    config: PfConfig,
    origin: Origin,
    /// What its guest has set.
    guest: GuestPf,
    rules: rules::Rules,
}

struct Disk {
    config: DiskConfig,
    origin: Origin,
    open: Result<OpenDisk, Failure>,
}

/// A disk that is served, and its image, which it keeps locked.
struct OpenDisk {
    handle: DiskHandle,
    image: Source,
}

/// Why and since when a port or a disk is not open.
#[derive(Clone)]
struct Failure {
    reason: String,
    since: Timestamp,
}

/// See the module's description.
pub(crate) struct Registry {
    plane: Plane,
    paths: Paths,
    config_file: Option<PathBuf>,
    vhost_group: Option<rustix::fs::Gid>,
    store: StateFile,
    /// Flow rules that are kept.
    books: Books,
    catalog: store::Catalog,
    /// How stores are known, and know this host.
    tls: Option<Arc<rustls::ClientConfig>>,
    started: (SystemTime, Instant),
    changing: Arc<Mutex<()>>,
    tables: Arc<RwLock<Tables>>,
}

impl Registry {
    pub(crate) fn new(
        plane: Plane,
        paths: Paths,
        config_file: Option<PathBuf>,
        vhost_group: Option<rustix::fs::Gid>,
        catalog: store::Catalog,
        tls: Option<Arc<rustls::ClientConfig>>,
    ) -> Self {
        Self {
            store: StateFile::new(&paths.state),
            books: Books::new(&paths.state),
            catalog,
            tls,
            plane,
            paths,
            config_file,
            vhost_group,
            started: (SystemTime::now(), Instant::now()),
            changing: Arc::default(),
            tables: Arc::default(),
        }
    }

    async fn save(&self) -> Result<(), Error> {
        save(&self.tables, &self.store).await
    }

    /// Closes everything; nothing is changed in the saved state.
    pub(crate) async fn shutdown(&self) {
        let _changing = self.changing.lock().await;
        let mut channels = Vec::new();
        for vm in self.tables.write().vms.values_mut() {
            channels.extend(vm.channel.take());
        }
        for channel in channels {
            channel.close().await;
        }
        self.plane.shutdown().await;
        self.release_images().await;
    }
}

/// Saves what was declared at run time. The disk may be slow, and sessions run on this thread: it is done
/// on another.
async fn save(tables: &RwLock<Tables>, store: &StateFile) -> Result<(), Error> {
    let (state, store) = (tables.read().state(), store.clone());
    let saved = tokio::task::spawn_blocking(move || store.save(state)).await;
    match saved {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Error::new(ErrorCode::Host, error.to_string())),
        Err(error) => {
            Err(Error::new(ErrorCode::Host, format!("the state cannot be saved: {error}")))
        }
    }
}

impl Tables {
    fn state(&self) -> State {
        let mut state = State::default();
        let kept = |origin: Origin| origin == Origin::Runtime;
        for (name, network) in self.networks.iter().filter(|(_, network)| kept(network.origin)) {
            state.networks.insert(name.clone(), network.config.clone());
        }
        for (name, vm) in self.vms.iter().filter(|(_, vm)| kept(vm.origin)) {
            state.vms.insert(name.clone(), vm.config.clone());
        }
        let off = self.vms.iter().filter(|(_, vm)| !vm.bypass);
        state.bypass_off.extend(off.map(|(name, _)| name.clone()));
        // Functions are made from their PF.
        let kept_port = |port: &Port| kept(port.origin) && port.function.is_none();
        for (name, port) in self.ports.iter().filter(|(_, port)| kept_port(port)) {
            state.ports.insert(name.clone(), port.config.clone());
        }
        for (name, pf) in self.pfs.iter().filter(|(_, pf)| kept(pf.origin)) {
            state.pfs.insert(name.clone(), pf.config.clone());
        }
        for (name, pf) in self.pfs.iter().filter(|(_, pf)| !pf.guest.is_empty()) {
            state.guests.insert(name.clone(), pf.guest.clone());
        }
        for (name, disk) in self.disks.iter().filter(|(_, disk)| kept(disk.origin)) {
            state.disks.insert(name.clone(), disk.config.clone());
        }
        state
    }
}

impl Port {
    fn handle(&self) -> Option<PortHandle> {
        self.open.as_ref().ok().copied()
    }
}

impl Failure {
    fn now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), since: SystemTime::now().into() }
    }
}

impl From<PlaneError> for Failure {
    fn from(error: PlaneError) -> Self {
        Self::now(error.to_string())
    }
}

fn host(error: &PlaneError) -> Error {
    let refusal = Error::new(ErrorCode::Host, error.to_string());
    match error.hint {
        Some(hint) => refusal.hint(hint),
        None => refusal,
    }
}

fn not_found(kind: &str, name: &Name) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no {kind} named {name}"))
        .hint(format!("`hayate {kind} list` shows what there is"))
}
