//! `hayate store serve`: images for disks on other hosts, in the foreground until it is told to end.
//!
//! It is a data plane like that of the daemon, whose disks are asked over connections instead of
//! virtqueues ([`dataplane::serve_store`]). Where the images are is a [`Backend`]: a directory ([`dir`]), or
//! an engine of many machines ([`engine`]). Who may have which is decided here, for all alike ([`Gate`]).

mod dir;
mod engine;

use crate::daemon::{any, log, notify, signals};
use crate::tls::{self, Rules, TlsError};
use api::{CpuList, DiskCache, ImageName};
use dataplane::store_control::{Listed, Refused, Why};
use dataplane::{Host, HostError, Images, Listener, OpenImage, Peer, Serving, serve_store};
use dir::Directory;
use engine::Engine;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use store::StoreError;
use tokio::net::TcpListener;
use tracing::{info, warn};

/// What the command line said.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) place: Place,
    pub(crate) listen: SocketAddr,
    pub(crate) cpus: Option<CpuList>,
    pub(crate) tls_dir: Option<PathBuf>,
    pub(crate) log: Option<String>,
}

/// Where the images are.
#[derive(Debug)]
pub(crate) enum Place {
    /// Files of a directory of this host.
    Directory { dir: PathBuf, cache: DiskCache },
    /// Images of a Ceph cluster's pool.
    Ceph { options: engines::ceph::Options, run: PathBuf },
    /// Files of a directory in Gfarm.
    Gfarm { options: engines::gfarm::Options, run: PathBuf },
}

/// Why the store did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("--log: {0}")]
    Log(String),
    #[error("the directory of images cannot be used: {0}")]
    Images(#[from] StoreError),
    #[error("the images cannot be reached: {0}")]
    Engine(#[from] engines::Error),
    #[error("--tls-dir: {0}")]
    Tls(#[from] TlsError),
    #[error("the workers cannot be started: {0}")]
    Workers(#[from] HostError),
    #[error("{address} cannot be listened at: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
}

/// Most threads that wait for an image. A request to an engine that is away keeps one until it is back, and
/// other disks of the store are not to wait for that.
const THREADS: usize = 8192;

/// Runs the store until a signal ends it.
pub(crate) fn run(options: &Options) -> Result<(), ServeError> {
    log::start(options.log.as_deref().unwrap_or("info")).map_err(ServeError::Log)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(THREADS).build()?;
    runtime.block_on(serve(options))
}

async fn serve(options: &Options) -> Result<(), ServeError> {
    let mut ends = signals()?;
    let tls = options.tls_dir.as_deref().map(tls::server).transpose()?;
    let rules = options.tls_dir.as_deref().map(Rules::load).transpose()?.flatten();
    let backend: Box<dyn Backend> = match &options.place {
        Place::Directory { dir, cache } => Box::new(Directory::open(dir, *cache)?),
        Place::Ceph { options, run } => Box::new(Engine::ceph(options, run)?),
        Place::Gfarm { options, run } => Box::new(Engine::gfarm(options, run)?),
    };
    let cpus = options.cpus.as_ref().map(CpuList::cpus);
    let of = dataplane::Options { cpus: cpus.clone(), ..dataplane::Options::default() };
    let host = Host::start(&of, tokio::runtime::Handle::current())?;
    // Whatever is asked of this thread, workers with CPUs of their own keep them.
    if let Some(cpus) = &cpus
        && let Err(error) = sys::affinity::keep_current_thread_off(cpus)
    {
        warn!("the control thread may take time of workers: {error}");
    }
    let address = options.listen;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    info!("ready at {}: images of {}", listener.local_addr()?, backend.name());
    notify::tell("READY=1");
    let local = local(&backend.local(listener.local_addr()?.port()));
    let images = Arc::new(Gate { backend, rules });
    let end = async {
        let signal = any(&mut ends).await;
        info!("{signal}: ending");
        notify::tell("STOPPING=1");
    };
    let serving = Serving { listener, local, name, tls };
    let served = serve_store(&host, serving, images, end).await;
    host.shutdown().await;
    info!("ended");
    Ok(served?)
}

/// Where daemons of this host hand guests over.
fn local(path: &std::path::Path) -> Option<Listener> {
    let path = std::path::absolute(path).ok()?;
    let bound = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let bound = bound.and_then(|()| Listener::bind(&path).map_err(io::Error::other));
    bound.inspect_err(|error| warn!("guests of this host are served over TCP, too: {error}")).ok()
}

/// A place with images. Called on threads that may wait.
trait Backend: Send + Sync + 'static {
    /// For people.
    fn name(&self) -> String;

    /// Where the Unix socket is that daemons of this host hand guests over at.
    fn local(&self, port: u16) -> PathBuf;

    /// Opens an image.
    fn open(&self, name: &ImageName, write: bool, client: &Peer) -> Result<OpenImage, Refused>;

    /// All there are.
    fn list(&self) -> Result<Vec<Listed>, Refused>;
}

/// A backend behind the rules of who may have what.
struct Gate {
    backend: Box<dyn Backend>,
    /// None: every client may have every image.
    rules: Option<Rules>,
}

impl Gate {
    fn allows(&self, client: &Peer, image: &ImageName, write: bool) -> bool {
        let certificate = client.certificate.as_deref();
        self.rules.as_ref().is_none_or(|rules| rules.allow(certificate, image, write))
    }
}

impl Images for Gate {
    fn allow(&self, name: &ImageName, write: bool, client: &Peer) -> Result<(), Refused> {
        if self.allows(client, name, write) {
            return Ok(());
        }
        let what = if write { "write" } else { "read" };
        let message = format!("this host may not {what} image {name}");
        Err(Refused { why: Why::Forbidden, message })
    }

    fn open(&self, name: &ImageName, write: bool, client: &Peer) -> Result<OpenImage, Refused> {
        self.backend.open(name, write, client)
    }

    fn list(&self, client: &Peer) -> Result<Vec<Listed>, Refused> {
        let mut all = self.backend.list()?;
        all.retain(|listed| self.allows(client, &listed.image, false));
        Ok(all)
    }
}

/// A failure that is told to the client without what is the matter with this host, and where things are on it: that
/// is said in the log only.
fn failed(name: &ImageName, error: &dyn std::error::Error) -> Refused {
    tracing::error!("image {name} cannot be opened: {error}");
    let message = format!("image {name} cannot be opened: the store's log says why");
    Refused { why: Why::Failed, message }
}
