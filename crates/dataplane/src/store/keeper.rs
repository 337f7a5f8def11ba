//! The connections of a disk to its store, one after the other.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{Fabric, Kind};
use line::{Rma, Wire};
use remote::VERSION;
use remote::control::{Opened, Session, ToClient, ToStore, Transport};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::place::{Placed, Way};
use super::post::{FromPlace, Guest, Post, ToPlace, guest_of};
use super::talk::{Known, Silence, Talk};
use super::{StoreError, fabrics};
use crate::disk::config::CacheMode;
use crate::disk::link::{Connected, Line};
use crate::disk::{Disk, DiskCommand, StoreTarget};
use crate::homes::Workers;
use crate::spec::DiskSpec;

/// How long a store may take to accept a connection, and for each answer before the image is open.
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// Most requests under way, whatever a store allows.
const REQUESTS: u16 = 1024;
/// How often a silent store is asked for a sign.
const CHECK: Duration = Duration::from_secs(1);

/// Opens the image at the first address that answers; `fabric`: one may be used.
///
/// # Errors
/// None does: the last reason.
pub(crate) async fn open(
    target: &StoreTarget,
    wish: Option<&Wish>,
    fabric: bool,
) -> Result<Reached, StoreError> {
    let mut error = StoreError::NoAddress;
    for address in &target.addresses {
        let mut opened = open_at(target, address, wish, fabric).await;
        if let (Err(StoreError::NoFabric { why, .. }), Transport::Auto) =
            (&opened, target.transport)
        {
            tracing::warn!(address, "served over TCP: {why}");
            opened = open_at(target, address, wish, false).await;
        }
        match opened {
            Ok(reached) => return Ok(reached),
            Err(why) => error = why,
        }
    }
    Err(error)
}

/// What a store has to know to serve the guest itself, and where the rest of it is.
#[derive(Debug)]
pub(crate) struct Wish {
    guest: Guest,
    cache_mode: CacheMode,
}

impl Wish {
    pub(crate) fn of(spec: &DiskSpec) -> Wish {
        Wish { guest: guest_of(spec), cache_mode: CacheMode::of(spec) }
    }

    /// As it is by now.
    fn guest(&self) -> Guest {
        Guest { writethrough: self.cache_mode.writethrough(), ..self.guest.clone() }
    }
}

/// An image that is open.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) opened: Opened,
    /// Where it is.
    address: String,
    by: By,
}

/// How it is reached.
#[derive(Debug)]
enum By {
    /// Requests can be made; and which start of the store's machine it is.
    Wire(Box<Wire>, String),
    /// The same, without their data.
    Rma(Box<Rma>, String),
    /// Front ends can be handed over.
    Place(Placed),
}

impl Reached {
    fn way(&self) -> (Transport, Option<Kind>) {
        match &self.by {
            By::Wire(..) => (Transport::Tcp, None),
            By::Rma(rma, _) => (Transport::Libfabric, Some(rma.fabric().kind())),
            By::Place(_) => (Transport::Shm, None),
        }
    }
}

/// `fabric`: one may be used.
async fn open_at(
    target: &StoreTarget,
    address: &str,
    wish: Option<&Wish>,
    fabric: bool,
) -> Result<Reached, StoreError> {
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
    let (boot, local) = match talk.hear().await.map_err(silent)? {
        ToClient::Welcome { version: VERSION, boot, local, .. } => (boot, local),
        ToClient::Refused(why) => return Err(refused(why)),
        _ => return Err(strange("its welcome is none".to_owned())),
    };
    let may_be_near = matches!(target.transport, Transport::Auto | Transport::Shm);
    let near = match wish {
        Some(wish) if may_be_near => match near(&boot, local).await {
            Ok(post) => Some((post, wish)),
            Err(why) if target.transport == Transport::Shm => {
                return Err(StoreError::NotHere { address: address.to_owned(), why });
            }
            Err(why) => {
                tracing::debug!(address, "served over TCP: {why}");
                None
            }
        },
        _ => None,
    };
    let fabrics = match near {
        Some(_) => Vec::new(),
        None if !fabric => Vec::new(),
        None => match fabrics_of(target, talk.local().map_err(unreachable)?.ip()).await {
            Ok(fabrics) => fabrics,
            Err(why) if target.transport == Transport::Libfabric => {
                return Err(StoreError::NoFabric { address: address.to_owned(), why });
            }
            Err(_) => Vec::new(),
        },
    };
    let open = ToStore::Open {
        image: target.image.clone(),
        write: target.write,
        session: Session(target.session),
        fence: false,
        in_place: near.is_some(),
        fabrics: fabrics.iter().map(|fabric| fabric.kind().name().to_owned()).collect(),
    };
    talk.say(&open).await.map_err(unreachable)?;
    let opened = match talk.hear().await.map_err(silent)? {
        ToClient::Opened(opened) => opened.checked().map_err(strange)?,
        ToClient::Refused(why) => return Err(refused(why)),
        _ => return Err(strange("its answer is none".to_owned())),
    };
    let opened = Opened { requests: opened.requests.min(REQUESTS), ..opened };
    let by = match (near, opened.place, &opened.fabric) {
        (None, _, Some(at)) => {
            let lifeline = talk.into_lifeline().map_err(unreachable)?;
            let line = fabrics::connect(&fabrics, at, opened.requests, lifeline).await;
            let broken = |error: io::Error| StoreError::NoFabric {
                address: address.to_owned(),
                why: error.to_string(),
            };
            By::Rma(Box::new(line.map_err(broken)?), boot)
        }
        (None, _, None) if target.transport == Transport::Libfabric => {
            let why = "the store has none of this one's".to_owned();
            return Err(StoreError::NoFabric { address: address.to_owned(), why });
        }
        (Some((mut post, wish)), Some(place), _) => {
            let come = ToPlace::Place { place, guest: wish.guest() };
            post.say(&come, None).await.map_err(unreachable)?;
            match timeout(ANSWER, post.hear()).await.map_err(late)?.map_err(silent)? {
                FromPlace::Placed => {}
                FromPlace::Refused(why) => return Err(refused(why)),
                _ => return Err(strange("its answer is none".to_owned())),
            }
            By::Place(Placed { post })
        }
        _ => By::Wire(Box::new(talk.into_wire().map_err(unreachable)?), boot),
    };
    Ok(Reached { opened, address: address.to_owned(), by })
}

/// Fabrics by which a store is to reach guests' memory.
async fn fabrics_of(target: &StoreTarget, local: IpAddr) -> Result<Vec<Fabric>, String> {
    match line::rma::providers(target.transport, target.tls.is_some()) {
        [] => Ok(Vec::new()),
        kinds => fabrics::open(kinds, local.to_canonical()).await,
    }
}

/// Connects to the Unix socket of a store of this machine. Why there is none, for people.
async fn near(boot: &str, local: Option<PathBuf>) -> Result<Post, String> {
    let Some(local) = local else { return Err("it has no Unix socket".to_owned()) };
    let own = line::boot().map_err(|error| error.to_string())?;
    if own != boot {
        return Err("it is on another machine".to_owned());
    }
    let connecting = timeout(CONNECT, Post::connect(&local)).await;
    let connected = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    connected.map_err(|error| format!("{}: {error}", local.display()))
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
    /// What a store has to know to serve the guest itself; none once this process does.
    pub(crate) wish: Option<Wish>,
    /// Where it is said who serves the guest.
    pub(crate) way: mpsc::UnboundedSender<Way>,
    /// Where the worker says that a connection has ended, and why.
    pub(crate) ends: mpsc::UnboundedReceiver<String>,
}

impl Keeper {
    /// Keeps the disk connected, at first by this connection.
    pub(crate) fn spawn(kept: Kept, first: Reached, runtime: &Handle) -> Keeper {
        let (stop, stopped) = oneshot::channel();
        kept.reached(&first.address, first.way());
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
    async fn keep(mut self, first: Reached) {
        let (mut reached, mut again) = (first, false);
        loop {
            self.resized(reached.opened.size);
            let way = reached.way();
            let Reached { opened, address, by } = reached;
            match by {
                By::Wire(wire, boot) => {
                    self.reach(None).await;
                    self.serve_here();
                    let connected = Connected { line: Line::Wire(wire), opened, boot };
                    self.command(DiskCommand::Connected(Box::new(connected)));
                }
                By::Rma(rma, boot) => {
                    self.reach(Some(rma.fabric().clone())).await;
                    self.serve_here();
                    let connected = Connected { line: Line::Rma(rma), opened, boot };
                    self.command(DiskCommand::Connected(Box::new(connected)));
                }
                // Nobody listens only while the disk is being removed.
                By::Place(placed) => _ = self.way.send(Way::Place(placed)),
            }
            if again {
                self.reached(&address, way);
                let (disk, transport) = (&self.disk.name, way.0.as_str());
                tracing::info!(%disk, store = %address, transport, "connected again");
            }
            again = true;
            let Some(why) = self.lost().await else { return };
            let disk = &self.disk.name;
            tracing::warn!(%disk, "the connection to its store is lost, its guest waits: {why}");
            self.disk.store_state(Err(why));
            reached = self.connect().await;
        }
    }

    fn reached(&self, address: &str, (transport, kind): (Transport, Option<Kind>)) {
        self.disk.store_state(Ok((address.to_owned(), transport, kind)));
    }

    /// Has the guest's memory be reached by this fabric from now on. That may take a while.
    async fn reach(&self, fabric: Option<Fabric>) {
        let disk = Arc::clone(&self.disk);
        let set = move || disk.reach.set(fabric.as_ref());
        let done = tokio::task::spawn_blocking(set).await;
        if let Ok(Err(error)) = done {
            // Requests say so, one by one, or end the connection for one by TCP.
            tracing::error!(disk = %self.disk.name, "the fabric refuses the guest's memory: {error}");
        }
    }

    /// Has this process serve the guest from now on, if it does not already.
    fn serve_here(&mut self) {
        if self.wish.take().is_some() {
            let _ = self.way.send(Way::Here);
        }
    }

    /// Waits until the connection is lost: why. `None`: the disk is gone.
    async fn lost(&mut self) -> Option<String> {
        let mut checks = interval(CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                why = self.ends.recv() => return why,
                _ = checks.tick(), if self.wish.is_none() => self.command(DiskCommand::CheckLink),
            }
        }
    }

    /// Connects again, however long it takes.
    async fn connect(&mut self) -> Reached {
        let (mut said, away) = (String::new(), Instant::now());
        let mut patience = self.target.patience;
        loop {
            if let Some(most) = patience
                && away.elapsed() >= most
            {
                let disk = &self.disk.name;
                tracing::error!(%disk, "its store is away for too long: requests fail");
                self.serve_here();
                self.command(DiskCommand::FailLink);
                patience = None;
            }
            let fabric = !self.disk.reach.gave_up();
            match open(&self.target, self.wish.as_ref(), fabric).await {
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
