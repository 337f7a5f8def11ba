//! `hayate daemon`: in the foreground until it is told to end.
//!
//! One control thread runs everything here (a current-thread tokio runtime): the REST interface,
//! the vhost-user sessions of the data plane, and the retries of failed ports. Frames are moved
//! by the data plane's own threads, which never wait for this one.
//!
//! Start: lock the directories, read configuration and state, start the workers, open the ports,
//! then the interface's socket; whoever can connect to it finds everything in place. End (SIGTERM,
//! SIGINT, SIGHUP): the interface, the ports, the workers, in this order.

mod channel;
mod frame;
mod group;
mod lock;
pub(crate) mod log;
pub(crate) mod notify;
mod registry;
mod rest;
mod server;

pub(crate) use lock::LockError;
pub(crate) use log::check_log;
pub(crate) use registry::GuestPf;
pub(crate) use rest::openapi;

use crate::config::{self, Config, ConfigError};
use crate::paths::Paths;
use crate::plane::{Plane, PlaneError};
use crate::tls;
use api::CpuList;
use registry::{Registry, RestoreError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

/// What the command line said.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) paths: Paths,
    pub(crate) config: Option<PathBuf>,
    pub(crate) cpus: Option<CpuList>,
    pub(crate) tls_dir: Option<PathBuf>,
    pub(crate) log: Option<String>,
}

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("--log: {0}")]
    Log(String),
    #[error("tls_dir: {0}")]
    Tls(#[from] tls::TlsError),
    #[error("vhost_group: {0}")]
    Group(#[from] group::GroupError),
    #[error(transparent)]
    Lock(#[from] lock::LockError),
    #[error("{path} cannot be made: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("the workers cannot be started: {0}")]
    Plane(#[from] PlaneError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error("the directory of images cannot be used: {0}")]
    Images(#[from] store::StoreError),
    #[error(transparent)]
    Server(#[from] server::ServerError),
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
}

impl DaemonError {
    /// Whether a directory is somebody else's.
    pub(crate) fn is_denied(&self) -> bool {
        let (Self::Directory { source, .. } | Self::Lock(LockError::Use { source, .. })) = self
        else {
            return false;
        };
        source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// Runs the daemon until a signal ends it.
pub(crate) fn run(options: &Options) -> Result<(), DaemonError> {
    let config = match &options.config {
        Some(file) => config::load(file)?,
        None => Config::default(),
    };
    let words = options.log.as_deref().or(config.log.as_deref()).unwrap_or("info");
    log::start(words).map_err(DaemonError::Log)?;
    allow_descriptors();
    let group = config.vhost_group.as_deref().map(group::find).transpose()?;
    let paths = &options.paths;
    make_directory(&paths.run, 0o755)?;
    let _locks = lock::take(paths)?;
    make_directory(&paths.ports(), 0o755)?;
    make_directory(&paths.rings(), 0o700)?;
    make_directory(&paths.disks(), 0o755)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options, &config, group))
}

async fn serve(
    options: &Options,
    config: &Config,
    group: Option<rustix::fs::Gid>,
) -> Result<(), DaemonError> {
    // Signals from here on end the daemon in order, also while ports are being opened.
    let mut ends = signals()?;
    let cpus = options.cpus.as_ref().or(config.cpus.as_ref()).map(CpuList::cpus);
    let plane = Plane::start(cpus.clone(), config.polling.into(), config.balance)?;
    // Whatever is asked of this thread, workers with CPUs of their own keep them.
    if let Some(cpus) = &cpus
        && let Err(error) = sys::affinity::keep_current_thread_off(cpus)
    {
        warn!("the control thread may take time of workers: {error}");
    }
    let (paths, file) = (options.paths.clone(), options.config.clone());
    let tls_dir = options.tls_dir.as_deref().or(config.tls_dir.as_deref());
    let tls = tls_dir.map(tls::client).transpose()?;
    let images = config.images.clone().unwrap_or_else(|| paths.images());
    let catalog = store::Catalog::open(images)?;
    let registry = Arc::new(Registry::new(plane, paths.clone(), file, group, catalog, tls));
    let served = async {
        registry.restore(config).await?;
        let server = server::Server::start(&paths.api_socket(), rest::router(registry.clone()))?;
        let retries = tokio::spawn({
            let registry = registry.clone();
            async move { tokio::join!(registry.retry_failed(), registry.retry_channels()) }
        });
        info!("ready at {}", paths.api_socket().display());
        notify::tell("READY=1");
        let signal = any(&mut ends).await;
        info!("{signal}: ending");
        notify::tell("STOPPING=1");
        retries.abort();
        server.stop().await;
        Ok(())
    };
    let result = served.await;
    registry.shutdown().await;
    if let Err(error) = fs::remove_file(paths.pid_file()) {
        warn!("{} cannot be removed: {error}", paths.pid_file().display());
    }
    info!("ended");
    result
}

/// Allows this process all the descriptors it may have: each port of a VM takes some, and the limit that
/// most programs start with, for the sake of select(2), is 1024.
fn allow_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        warn!("there may be too few descriptors for many ports: {error}");
    }
}

/// The signals that end a program in order, from now on.
pub(crate) fn signals() -> io::Result<Vec<Signal>> {
    let ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    ends.into_iter().map(signal).collect()
}

/// The first of the [`signals`] to arrive, by name.
pub(crate) async fn any(signals: &mut [Signal]) -> &'static str {
    let names = ["SIGTERM", "SIGINT", "SIGHUP"];
    std::future::poll_fn(|context| {
        for (signal, name) in signals.iter_mut().zip(names) {
            if signal.poll_recv(context).is_ready() {
                return std::task::Poll::Ready(name);
            }
        }
        std::task::Poll::Pending
    })
    .await
}

fn make_directory(path: &Path, mode: u32) -> Result<(), DaemonError> {
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|source| DaemonError::Directory { path: path.to_owned(), source })
}
