//! `hayate store serve`: the images of a directory for disks on other hosts, in the foreground until
//! it is told to end.
//!
//! It is a data plane like that of the daemon, whose disks are asked over connections instead of
//! virtqueues ([`dataplane::serve_store`]). A daemon of the same host may use the same directory: who
//! has an image open is said by locks.

use crate::daemon::{any, log, notify, signals};
use crate::plane::image_bytes;
use crate::tls::{self, Rules, TlsError};
use api::{CpuList, DiskCache, ImageName};
use dataplane::store_control::{Listed, Refused, Why};
use dataplane::{Host, HostError, Images, Listener, OpenImage, Peer, Serving, serve_store};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Access, Cache, Catalog, Owner, StoreError};
use tokio::net::TcpListener;
use tracing::{error, info, warn};

/// What the command line said.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) dir: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) cpus: Option<CpuList>,
    pub(crate) cache: DiskCache,
    pub(crate) tls_dir: Option<PathBuf>,
    pub(crate) log: Option<String>,
}

/// Why the store did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("--log: {0}")]
    Log(String),
    #[error("the directory of images cannot be used: {0}")]
    Images(#[from] StoreError),
    #[error("--tls-dir: {0}")]
    Tls(#[from] TlsError),
    #[error("the workers cannot be started: {0}")]
    Workers(#[from] HostError),
    #[error("{address} cannot be listened at: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
}

/// Runs the store until a signal ends it.
pub(crate) fn run(options: &Options) -> Result<(), ServeError> {
    log::start(options.log.as_deref().unwrap_or("info")).map_err(ServeError::Log)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options))
}

async fn serve(options: &Options) -> Result<(), ServeError> {
    let mut ends = signals()?;
    let tls = options.tls_dir.as_deref().map(tls::server).transpose()?;
    let rules = options.tls_dir.as_deref().map(Rules::load).transpose()?.flatten();
    let catalog = Catalog::open(&options.dir)?;
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
    let cache = match options.cache {
        DiskCache::Direct => Cache::Direct,
        DiskCache::Host => Cache::PageCache,
    };
    info!("ready at {}: images of {}", listener.local_addr()?, options.dir.display());
    notify::tell("READY=1");
    let images = Arc::new(Directory { catalog, cache, rules });
    let end = async {
        let signal = any(&mut ends).await;
        info!("{signal}: ending");
        notify::tell("STOPPING=1");
    };
    let local = local(&options.dir, listener.local_addr()?.port());
    let serving = Serving { listener, local, name, tls };
    let served = serve_store(&host, serving, images, end).await;
    host.shutdown().await;
    info!("ended");
    Ok(served?)
}

/// Where daemons of this host hand guests over.
fn local(dir: &Path, port: u16) -> Option<Listener> {
    // No image has a name that begins with a dot.
    let path = std::path::absolute(dir.join(format!(".store-{port}.sock"))).ok()?;
    let bound = Listener::bind(&path);
    bound.inspect_err(|error| warn!("guests of this host are served over TCP, too: {error}")).ok()
}

/// The images of a directory.
struct Directory {
    catalog: Catalog,
    cache: Cache,
    /// None: every client may have every image.
    rules: Option<Rules>,
}

impl Directory {
    fn allows(&self, client: &Peer, image: &ImageName, write: bool) -> bool {
        let certificate = client.certificate.as_deref();
        self.rules.as_ref().is_none_or(|rules| rules.allow(certificate, image, write))
    }
}

impl Images for Directory {
    fn allow(&self, name: &ImageName, write: bool, client: &Peer) -> Result<(), Refused> {
        if self.allows(client, name, write) {
            return Ok(());
        }
        let what = if write { "write" } else { "read" };
        let message = format!("this host may not {what} image {name}");
        Err(Refused { why: Why::Forbidden, message })
    }

    fn open(&self, name: &ImageName, write: bool, client: &Peer) -> Result<OpenImage, Refused> {
        let owner = Owner::new(self.catalog.dir(), &client.name);
        let access = if write { Access::Write } else { Access::Read };
        let opened = self.catalog.open_image(name, access, &owner, self.cache);
        let image = Arc::new(opened.map_err(|error| refusal(name, &error))?);
        let epoch = self.catalog.epoch(name, write).map_err(|error| refusal(name, &error))?;
        Ok(OpenImage {
            image: image_bytes(&image),
            size: image.size(),
            epoch,
            keep: Box::new(image),
        })
    }

    fn list(&self, client: &Peer) -> Result<Vec<Listed>, Refused> {
        let all = self.catalog.list().map_err(|error| {
            error!("the images cannot be listed: {error}");
            Refused { why: Why::Failed, message: "the images cannot be listed".to_owned() }
        })?;
        let whole = |(image, found): (ImageName, Result<store::Summary, StoreError>)| {
            let summary = found.inspect_err(|error| warn!("{error}")).ok()?;
            let listed = Listed { image, size: summary.size };
            self.allows(client, &listed.image, false).then_some(listed)
        };
        Ok(all.into_iter().filter_map(whole).collect())
    }
}

/// What a client is told. What is the matter with this host, and where things are on it, is said in
/// the log only.
fn refusal(name: &ImageName, error: &StoreError) -> Refused {
    let why = match error {
        StoreError::InUse { owner: Some(owner), .. } => {
            let message = format!("image {name} is in use by {}", owner.disk);
            return Refused { why: Why::InUse, message };
        }
        StoreError::NotFound(_) => Why::NoSuchImage,
        StoreError::InUse { .. } | StoreError::HasClones { .. } => Why::InUse,
        StoreError::Snapshot(_) => Why::Forbidden,
        _ => {
            error!("image {name} cannot be opened: {error}");
            let message = format!("image {name} cannot be opened: the store's log says why");
            return Refused { why: Why::Failed, message };
        }
    };
    Refused { why, message: error.to_string() }
}
