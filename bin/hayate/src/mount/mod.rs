//! `hayate image mount`: the images of a store as files, in the foreground until it is told to end or
//! somebody unmounts them.
//!
//! ```text
//! program --> kernel --FUSE--> threads ([`fuse`]) --> [`files`] --> storeclient ==== store
//! ```
//!
//! Each of [`THREADS`] threads carries out one request of the kernel at a time, and waits for the
//! store. An image is open at the store while a file is open here. What is known of other images is
//! at most a second old.

mod files;
mod fuse;

use crate::daemon::{any, log, notify, signals};
use crate::tls::{self, TlsError};
use api::StoreAddress;
use files::Files;
use fuse::Fuse;
use fuser::{MountOption, SessionUnmounter};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{getegid, geteuid};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use storeclient::{Session, Target, Transport};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{info, warn};

/// Requests of the kernel that are carried out at once.
const THREADS: usize = 16;
/// How long the end waits for what was written to be stable, if somebody still has files open.
const LAST: Duration = Duration::from_secs(10);

/// What the command line said.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) store: StoreAddress,
    pub(crate) dir: PathBuf,
    pub(crate) readonly: bool,
    /// The kernel may cache what was read.
    pub(crate) cache: bool,
    /// How long a program waits for a store that is away; `None`: until it is back.
    pub(crate) patience: Option<Duration>,
    pub(crate) transport: Transport,
    /// Certificates.
    pub(crate) tls_dir: Option<PathBuf>,
    pub(crate) log: Option<String>,
}

/// Why nothing was mounted, or it ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    #[error("--log: {0}")]
    Log(String),
    #[error("--tls-dir: {0}")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Store(#[from] storeclient::Error),
    #[error("{dir} cannot be mounted at: {source}")]
    Mount { dir: PathBuf, source: io::Error },
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
}

/// Shows the images until a signal ends it, or somebody unmounts them.
pub(crate) fn run(options: &Options) -> Result<(), MountError> {
    // Of what the kernel asks in vain, nobody wants to know.
    let words = options.log.as_deref().unwrap_or("info,fuser=error");
    log::start(words).map_err(MountError::Log)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(mount(options))
}

async fn mount(options: &Options) -> Result<(), MountError> {
    let mut ends = signals()?;
    let client = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let tls = options.tls_dir.as_deref().map(tls::client).transpose()?;
    let session = Session::connect(Target {
        addresses: options.store.addresses.clone(),
        client,
        patience: options.patience,
        transport: options.transport,
        tls,
    })?;
    let files = Arc::new(Files::new(session, options.readonly));
    let fuse = Fuse {
        files: Arc::clone(&files),
        cache: options.cache,
        owner: (geteuid().as_raw(), getegid().as_raw()),
        since: SystemTime::now(),
    };
    let dir = &options.dir;
    let failed = |source| MountError::Mount { dir: dir.clone(), source };
    let mut mounted = fuser::Session::new(fuse, dir, &config(options)).map_err(failed)?;
    // Whatever becomes of the way to it.
    let place = std::path::absolute(dir)?;
    let unmounter = mounted.unmount_callable();
    let (ended, mut end) = oneshot::channel();
    thread::Builder::new().name("fuse".to_owned()).spawn(move || {
        // Nobody listens any more if it ends late.
        let _ = ended.send(mounted.run());
    })?;
    info!("ready at {}: images of {}", dir.display(), options.store);
    notify::tell("READY=1");
    let signal = tokio::select! {
        signal = any(&mut ends) => signal,
        end = &mut end => {
            info!("unmounted: ended");
            return ended_with(end);
        }
    };
    info!("{signal}: ending");
    notify::tell("STOPPING=1");
    if unmounted(unmounter, &place) {
        ended_with(end.await)?;
    } else {
        let left = files.in_use();
        warn!("{left} images are in use: programs that have them open get errors from now on");
        // The store may be away.
        let flushing = Arc::clone(&files);
        let flushed = tokio::task::spawn_blocking(move || flushing.flush_all());
        if timeout(LAST, flushed).await.is_err() {
            warn!("the store is away: what was written last may be lost");
        }
        files.give_up();
    }
    info!("ended");
    Ok(())
}

fn ended_with(end: Result<io::Result<()>, oneshot::error::RecvError>) -> Result<(), MountError> {
    let gone = |_| io::Error::other("the thread of the file system failed");
    Ok(end.map_err(gone)??)
}

fn config(options: &Options) -> fuser::Config {
    let mut config = fuser::Config::default();
    let source = options.store.addresses.first().map_or("store", String::as_str);
    config.mount_options = vec![
        MountOption::FSName(format!("store://{source}/")),
        MountOption::Subtype("hayate".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
    ];
    if options.readonly {
        config.mount_options.push(MountOption::RO);
    }
    config.n_threads = Some(THREADS);
    config
}

/// Unmounts; whether that was all: if files are in use, only the way to them is gone.
fn unmounted(mut mounted: SessionUnmounter, dir: &Path) -> bool {
    let Err(error) = mounted.unmount() else { return true };
    if let Err(other) = unmount(dir, UnmountFlags::DETACH) {
        warn!("{} cannot be unmounted: {error}, {other}", dir.display());
    }
    false
}
