//! Serving images to other hosts: connections from their disks.
//!
//! Each connection has at most one image open, on which it is a disk of this data plane like that of
//! a guest, with the connection as its one queue. How one is opened, and served until it
//! ends, is in [`super::open`].

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use remote::VERSION;
use remote::control::{ImageName, Listed, Refused, Session, ToClient, ToStore, Why};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use vhost_session::socket::{Listener, SocketFile};

use super::fabrics::Doors;
use super::holders::Holders;
use super::open::{Running, Wish};
use super::resident::Arrival;
use super::talk::{Known, Silence, Talk};
use crate::disk::DiskImage;
use crate::host::Host;

/// How long a client may take for each message until an image is open.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections without an open image at once; more wait.
const STRANGERS: usize = 128;
/// How long each of them may take in all until it says which image it wants.
const MEETING: Duration = Duration::from_secs(30);
/// Characters of a client's name that are kept.
const NAME: usize = 64;

/// Who asks.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Who it says it is, and where from.
    pub name: String,
    /// Its certificate, in DER, which one of the authorities that are trusted has signed. `None`: nobody
    /// is asked for one.
    pub certificate: Option<Vec<u8>>,
}

/// The images that are served. Called on threads that may wait.
pub trait Images: Send + Sync + 'static {
    /// Whether this client may have an image at all; asked before anybody else notices.
    ///
    /// # Errors
    /// It may not.
    fn allow(&self, image: &ImageName, write: bool, client: &Peer) -> Result<(), Refused>;

    /// Opens one; `write`: for writing too.
    ///
    /// # Errors
    /// It cannot be opened by this client, or not now.
    fn open(&self, image: &ImageName, write: bool, client: &Peer) -> Result<OpenImage, Refused>;

    /// All there are.
    ///
    /// # Errors
    /// They cannot be looked at.
    fn list(&self, client: &Peer) -> Result<Vec<Listed>, Refused>;
}

/// An image that was opened. It is closed when this is dropped.
pub struct OpenImage {
    /// Where its bytes are.
    pub image: DiskImage,
    /// Bytes.
    pub size: u64,
    /// One more with each time it was opened for writing.
    pub epoch: u64,
    /// Kept as long as it is open.
    pub keep: Box<dyn Any + Send>,
}

impl fmt::Debug for OpenImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenImage").field("size", &self.size).finish_non_exhaustive()
    }
}

pub(super) struct Store {
    pub(super) host: Host,
    pub(super) images: Arc<dyn Images>,
    name: String,
    tls: Option<Arc<ServerConfig>>,
    boot: String,
    /// The Unix socket.
    pub(super) local: Option<PathBuf>,
    pub(super) open: parking_lot::Mutex<HashMap<ImageName, Holders>>,
    pub(super) handles: AtomicU32,
    /// Where clients connect by fabrics.
    pub(super) fabrics: Doors,
    /// Images that are open for who comes to the Unix socket and knows their secret.
    pub(super) places: parking_lot::Mutex<HashMap<Session, oneshot::Sender<Arrival>>>,
}

/// How images are served.
#[derive(Debug)]
pub struct Serving {
    /// Where clients connect.
    pub listener: TcpListener,
    /// Where daemons of this machine hand guests over, that are served with no connection at all then.
    pub local: Option<Listener>,
    /// This store's, for people.
    pub name: String,
    /// Clients have to be known, and everything is encrypted.
    pub tls: Option<Arc<ServerConfig>>,
}

/// Serves images to whoever connects, until `shutdown` ends; then all connections have ended when
/// this returns.
///
/// # Errors
/// The machine does not say which start of it this is.
pub async fn serve(
    host: &Host,
    serving: Serving,
    images: Arc<dyn Images>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Serving { listener, local, name, tls } = serving;
    let local = match local.map(Listener::into_parts) {
        Some((listener, file)) => Some((UnixListener::from_std(listener)?, file)),
        None => None,
    };
    let store = Arc::new(Store {
        host: host.clone(),
        images,
        name,
        tls,
        boot: line::boot()?,
        local: local.as_ref().map(|(_, file)| file.path().to_owned()),
        open: parking_lot::Mutex::default(),
        handles: AtomicU32::new(1),
        fabrics: Doors::default(),
        places: parking_lot::Mutex::default(),
    });
    let (end, ending) = watch::channel(false);
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted.map(|(stream, peer)| Came::Far(stream, peer)),
            accepted = visitor(local.as_ref()) => accepted.map(Came::Near),
        };
        let came = match accepted {
            Ok(came) => came,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (store, strangers) = (Arc::clone(&store), Arc::clone(&strangers));
        let mut ending = ending.clone();
        let (stream, peer) = match came {
            Came::Far(stream, peer) => (stream, peer),
            Came::Near(stream) => {
                connections.spawn(async move {
                    tokio::select! {
                        () = store.receive(stream, &strangers) => {}
                        _ = ending.wait_for(|end| *end) => {}
                    }
                });
                continue;
            }
        };
        connections.spawn(async move {
            let opened = tokio::select! {
                opened = store.meet(stream, peer, &strangers) => opened,
                _ = ending.wait_for(|end| *end) => None,
            };
            if let Some(opened) = opened {
                opened.run(ending).await;
            }
        });
    }
    let _ = end.send(true);
    while connections.join_next().await.is_some() {}
    store.fabrics.close().await;
    Ok(())
}

/// A connection.
enum Came {
    Far(TcpStream, SocketAddr),
    Near(UnixStream),
}

/// Waits for a connection to the Unix socket.
async fn visitor(local: Option<&(UnixListener, SocketFile)>) -> io::Result<UnixStream> {
    match local {
        Some((listener, _)) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}

fn refused(why: Why, message: impl Into<String>) -> Refused {
    Refused { why, message: message.into() }
}

impl Store {
    /// Hears what a client wants, and opens the image for it.
    async fn meet(
        self: &Arc<Store>,
        stream: TcpStream,
        peer: SocketAddr,
        strangers: &Semaphore,
    ) -> Option<Running> {
        let _stranger = strangers.acquire().await.ok()?;
        let known = self.tls.as_ref().map(Known::Client);
        let mut talk = match Talk::new(stream, PATIENCE, known).await {
            Ok(talk) => talk,
            Err(error) => {
                tracing::info!(%peer, "not let in: {error}");
                return None;
            }
        };
        let late = |_| Silence::Io(io::ErrorKind::TimedOut.into());
        let heard = timeout(MEETING, self.hear(&mut talk, peer)).await.map_err(late);
        match heard.flatten() {
            Ok(Some((client, wish))) => match self.open(&client, wish, talk).await {
                Ok(running) => return Some(running),
                Err(error) => tracing::info!(client = client.name, "cannot be served: {error}"),
            },
            Ok(None) => {}
            Err(Silence::Io(error)) => tracing::debug!(%peer, %error, "a client has gone"),
            Err(Silence::Strange(what)) => tracing::info!(%peer, "this is no client: {what}"),
        }
        None
    }

    /// Answers a client until it opens an image: who it is, and its wish. `None`: it was refused.
    async fn hear(
        &self,
        talk: &mut Talk,
        peer: SocketAddr,
    ) -> Result<Option<(Peer, Wish)>, Silence> {
        let ToStore::Hello { version, client } = talk.hear().await? else {
            let why = refused(Why::BadMessage, "the first message has to be hello");
            talk.say(&ToClient::Refused(why)).await?;
            return Ok(None);
        };
        if version < VERSION {
            let why = format!("this store speaks version {VERSION}, not {version}");
            talk.say(&ToClient::Refused(refused(Why::Version, why))).await?;
            return Ok(None);
        }
        let certificate = talk.certificate().map(|certificate| certificate.to_vec());
        // It goes into logs and files.
        let client: String = client.chars().filter(|c| !c.is_control()).take(NAME).collect();
        let client = Peer { name: format!("{client} ({peer})"), certificate };
        let (store, boot, local) = (self.name.clone(), self.boot.clone(), self.local.clone());
        talk.say(&ToClient::Welcome { version: VERSION, store, boot, local }).await?;
        loop {
            match talk.hear().await? {
                ToStore::Open { image, write, session, fence, in_place, fabrics } => {
                    let wish = Wish { image, write, session, fence, in_place, fabrics };
                    return Ok(Some((client, wish)));
                }
                ToStore::List => {
                    let (images, asks) = (Arc::clone(&self.images), client.clone());
                    let answer = match blocking(move || images.list(&asks)).await {
                        Ok(images) => ToClient::Images { images },
                        Err(why) => ToClient::Refused(why),
                    };
                    talk.say(&answer).await?;
                }
                ToStore::Hello { .. } => {
                    let why = refused(Why::BadMessage, "hello was said already");
                    talk.say(&ToClient::Refused(why)).await?;
                    return Ok(None);
                }
            }
        }
    }
}

/// Does something that may wait.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(refused(Why::Failed, "the store failed")))
}
