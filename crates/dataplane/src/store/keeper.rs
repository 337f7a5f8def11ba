//! The connections of a disk to its store, one after the other.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remote::VERSION;
use remote::control::{Session, ToClient, ToStore};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::StoreError;
use super::talk::{Known, Silence, Talk};
use crate::disk::link::Connected;
use crate::disk::{Disk, DiskCommand, StoreTarget};
use crate::homes::Workers;

/// How long a store may take to accept a connection, and for each answer before the image is open.
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// How often a silent store is asked for a sign.
const CHECK: Duration = Duration::from_secs(1);

/// Opens the image at the first address that answers.
///
/// # Errors
/// None does: the last reason.
pub(crate) async fn open(target: &StoreTarget) -> Result<Connected, StoreError> {
    let mut error = StoreError::NoAddress;
    for address in &target.addresses {
        match open_at(target, address).await {
            Ok(connected) => return Ok(connected),
            Err(why) => error = why,
        }
    }
    Err(error)
}

async fn open_at(target: &StoreTarget, address: &str) -> Result<Connected, StoreError> {
    let unreachable =
        |source: io::Error| StoreError::Connect { address: address.to_owned(), source };
    let strange = |what: String| StoreError::Protocol { address: address.to_owned(), what };
    let silent = |silence: Silence| match silence {
        Silence::Io(source) => unreachable(source),
        Silence::Strange(what) => strange(what),
    };
    let late = |_| unreachable(io::ErrorKind::TimedOut.into());
    let stream = timeout(CONNECT, TcpStream::connect(address)).await.map_err(late)?;
    let known = match &target.tls {
        None => None,
        Some(tls) => Some(Known::Store(tls, name_of(address).map_err(strange)?)),
    };
    let stream = stream.map_err(unreachable)?;
    let mut talk = Talk::new(stream, ANSWER, known).await.map_err(unreachable)?;
    let hello = ToStore::Hello { version: VERSION, client: target.client.clone() };
    talk.say(&hello).await.map_err(unreachable)?;
    let refused = |source| StoreError::Refused { address: address.to_owned(), source };
    let boot = match talk.hear().await.map_err(silent)? {
        ToClient::Welcome { version: VERSION, boot, .. } => boot,
        ToClient::Refused(why) => return Err(refused(why)),
        _ => return Err(strange("its welcome is none".to_owned())),
    };
    let open = ToStore::Open {
        image: target.image.clone(),
        write: target.write,
        session: Session(target.session),
        fence: false,
    };
    talk.say(&open).await.map_err(unreachable)?;
    let opened = match talk.hear().await.map_err(silent)? {
        ToClient::Opened(opened) => opened.checked().map_err(strange)?,
        ToClient::Refused(why) => return Err(refused(why)),
        _ => return Err(strange("its answer is none".to_owned())),
    };
    let wire = talk.into_wire().map_err(unreachable)?;
    Ok(Connected { wire, opened, boot, address: address.to_owned() })
}

/// The name by which a certificate knows the host of an address.
fn name_of(address: &str) -> Result<ServerName<'static>, String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|error| format!("{host}: {error}"))
}

/// The task that keeps a disk connected.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// What it needs.
pub(crate) struct Kept {
    pub(crate) disk: Arc<Disk>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) target: Arc<StoreTarget>,
    /// Where the worker says that a connection has ended, and why.
    pub(crate) ends: mpsc::UnboundedReceiver<String>,
}

impl Keeper {
    /// Keeps the disk connected, at first by this connection.
    pub(crate) fn spawn(kept: Kept, first: Connected, runtime: &Handle) -> Keeper {
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(async move {
            tokio::select! {
                () = kept.keep(first) => {}
                // An error means that its owner is gone: stop as well.
                _ = stopped => {}
            }
        });
        Keeper { stop, task }
    }

    /// Makes no more connections.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "a task of a store's connections failed");
        }
    }
}

impl Kept {
    async fn keep(mut self, first: Connected) {
        let mut connected = first;
        loop {
            self.disk.store_state(Ok(connected.address.clone()));
            self.resized(connected.opened.size);
            self.command(DiskCommand::Connected(Box::new(connected)));
            let Some(why) = self.lost().await else { return };
            let disk = &self.disk.name;
            tracing::warn!(%disk, "the connection to its store is lost, its guest waits: {why}");
            self.disk.store_state(Err(why));
            connected = self.connect().await;
            tracing::info!(disk = %self.disk.name, store = %connected.address, "connected again");
        }
    }

    /// Waits until the connection is lost: why. `None`: the disk is gone.
    async fn lost(&mut self) -> Option<String> {
        let mut checks = interval(CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                why = self.ends.recv() => return why,
                _ = checks.tick() => self.command(DiskCommand::CheckLink),
            }
        }
    }

    /// Connects again, however long it takes.
    async fn connect(&self) -> Connected {
        let (mut said, away) = (String::new(), Instant::now());
        let mut patience = self.target.patience;
        loop {
            if let Some(most) = patience
                && away.elapsed() >= most
            {
                let disk = &self.disk.name;
                tracing::error!(%disk, "its store is away for too long: requests fail");
                self.command(DiskCommand::FailLink);
                patience = None;
            }
            match open(&self.target).await {
                Ok(connected) => return connected,
                Err(error) => {
                    let text = error.to_string();
                    if text != said {
                        tracing::warn!(disk = %self.disk.name, "{text}");
                        self.disk.store_state(Err(text.clone()));
                        said = text;
                    }
                }
            }
            sleep(PAUSE).await;
        }
    }

    fn resized(&self, size: u64) {
        if let Err(error) = self.disk.resize(&self.workers, size) {
            tracing::error!(disk = %self.disk.name, size, %error, "its new size is not possible");
        }
    }

    fn command(&self, command: DiskCommand) {
        self.disk.command(&self.workers, command);
    }
}
