//! The runtime of a port's socket: one task that meets front ends, one after the other, for as long as the port lives.
//!
//! **Threads.** [`serve`] is one future for one task of the control runtime; it holds no lock and shares nothing.  It
//! never blocks but for mapping a memory table, which touches no guest memory.
//!
//! **One front end at a time.**  While one is connected, a second one in server mode is let in only to be turned away,
//! with a line in the log, so that it learns of its mistake at once.  If the first has hung up already (killed, say, and
//! its successor was quicker than this task) the second is kept and served as soon as the first session has been torn down.
//! The newcomer never pushes out one that lives: two VMs configured with one socket would take it from each other for ever.
//!
//! **Failure.**  What a front end does wrong ends its session and is logged; the port then waits for the next one.  A
//! front end that reconnects in a tight loop is slowed down to [`SESSIONS_PER_SECOND`], after a burst that no honest
//! restart comes near.  Log lines are limited in the same way.

mod changes;
mod connection;
mod listen;
mod outbox;
mod pace;

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::{Device, DeviceSpec, SessionEnd};
pub use listen::{Listener, SocketFile};
use pace::Bucket;

/// Sessions a port may have without any delay.
const SESSION_BURST: u32 = 64;
/// Sessions a second after that.
pub const SESSIONS_PER_SECOND: u32 = 50;
/// Log lines about front ends: so many at once, then one a second.
const LOG_BURST: u32 = 20;
/// First and longest pause between attempts to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Why a socket cannot be served.  Host errors: for the person who configured the path.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Longer than a Unix socket address can be.
    #[error("the path {path} is longer than the 107 bytes a Unix socket may have")]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// Another process serves it.
    #[error("another process is listening on {path}")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// There is something else, which will not be removed.
    #[error("{path} exists and is not a stream socket; remove it or choose another path")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot {what} {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

/// Where the front end is met.
#[derive(Debug)]
pub struct Endpoint {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Server(Listener),
    Client,
    Handed(mpsc::Receiver<Handed>),
}

/// A front end that another process has met.
#[derive(Debug)]
pub struct Handed {
    /// The connection to it.
    pub stream: UnixStream,
    /// Told when its session has ended: all queues have stopped, and its memory is not used any more.
    pub left: oneshot::Sender<Left>,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// For people.
    pub why: String,
    /// It was ended because something was wrong.
    pub fault: bool,
}

impl Endpoint {
    /// Server mode: binds the socket, with mode 0660, and listens.  Front ends may connect from now on; they are served
    /// once [`serve`] runs.  A socket file that a dead process left behind is replaced.
    ///
    /// # Errors
    /// The path is in use, is something else, or cannot be bound.
    pub fn server(path: impl Into<PathBuf>) -> Result<Endpoint, SocketError> {
        let path = path.into();
        let listener = Listener::bind(&path)?;
        Ok(Endpoint { path, kind: Kind::Server(listener) })
    }

    /// Client mode: [`serve`] connects to a front end that listens there, and tries again until it does.
    ///
    /// # Errors
    /// The path is too long.
    pub fn client(path: impl Into<PathBuf>) -> Result<Endpoint, SocketError> {
        let path = path.into();
        listen::check_length(&path)?;
        Ok(Endpoint { path, kind: Kind::Client })
    }

    /// Front ends that others meet, and hand over.  `path` is for the log.
    #[must_use]
    pub fn handed(path: impl Into<PathBuf>, front_ends: mpsc::Receiver<Handed>) -> Endpoint {
        Endpoint { path: path.into(), kind: Kind::Handed(front_ends) }
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Serves one port until `stop` resolves: any number of sessions, one after the other.
///
/// Returns the device, all its queues stopped.  A server's socket file is removed, unless it is another's by now.
/// Dropping the future instead leaves started queues running; let it end.
///
/// # Errors
/// The listening socket cannot be registered with the runtime.
pub async fn serve<D: Device>(
    endpoint: Endpoint,
    spec: DeviceSpec,
    mut device: D,
    stop: impl Future<Output = ()> + Send,
) -> Result<D, SocketError> {
    let mut stop = pin!(stop);
    let mut door = Door::open(endpoint)?;
    loop {
        let stream = tokio::select! {
            biased;
            () = &mut stop => break,
            stream = door.next() => stream,
        };
        door.log(|path| info!(socket = %path.display(), "front end connected"));
        let end = connection::run(stream, &spec, &mut device, &mut door, stop.as_mut()).await;
        device.disconnected(&end);
        door.left(&end);
        door.log(|path| {
            let (socket, name) = (path.display(), end.name());
            if end.is_fault() {
                warn!(%socket, fault = name, "session ended: {end}");
            } else {
                info!(%socket, reason = name, "session ended: {end}");
            }
        });
        if matches!(end, SessionEnd::Stopped) {
            break;
        }
    }
    Ok(device)
}

/// Where connections come from.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    way: Way,
    /// Who is to be told when the front end that is served has left.
    told: Option<oneshot::Sender<Left>>,
    /// A front end that came while the one before it was hanging up.
    kept: Option<UnixStream>,
    sessions: Bucket,
    lines: Bucket,
}

#[derive(Debug)]
enum Way {
    Server { listener: UnixListener, _file: listen::SocketFile },
    Client,
    Handed(mpsc::Receiver<Handed>),
}

impl Door {
    /// For who hands connections over to another process; [`serve`] opens its own.
    ///
    /// # Errors
    /// The listening socket cannot be registered with the runtime.
    pub fn open(endpoint: Endpoint) -> Result<Door, SocketError> {
        let Endpoint { path, kind } = endpoint;
        let way = match kind {
            Kind::Client => Way::Client,
            Kind::Handed(front_ends) => Way::Handed(front_ends),
            Kind::Server(listener) => {
                let (listener, file) = listener.into_parts();
                let io = |source| SocketError::Io { what: "serve", path: path.clone(), source };
                Way::Server { listener: UnixListener::from_std(listener).map_err(io)?, _file: file }
            }
        };
        let now = Instant::now();
        Ok(Door {
            path,
            way,
            told: None,
            kept: None,
            sessions: Bucket::new(SESSION_BURST, SESSIONS_PER_SECOND, now),
            lines: Bucket::new(LOG_BURST, 1, now),
        })
    }

    /// The next connection, as soon as there may be one more.
    pub async fn next(&mut self) -> UnixStream {
        self.admit().await;
        loop {
            if let Some(stream) = self.kept.take() {
                return stream;
            }
            let accepted = match &mut self.way {
                Way::Server { listener, .. } => listener.accept().await,
                Way::Client => return self.connect().await,
                Way::Handed(front_ends) => {
                    let Some(Handed { stream, left }) = front_ends.recv().await else {
                        // Nobody hands any over any more.
                        return std::future::pending().await;
                    };
                    self.told = Some(left);
                    return stream;
                }
            };
            match accepted {
                Ok((stream, _)) => return stream,
                Err(err) => self.cannot_accept(&err).await,
            }
        }
    }

    /// A session has ended.
    fn left(&mut self, end: &SessionEnd) {
        if let Some(told) = self.told.take() {
            // Who handed it over may be gone.
            let _ = told.send(Left { why: end.to_string(), fault: end.is_fault() });
        }
    }

    /// Out of descriptors, say.  The listener stays readable, so wait a little.
    async fn cannot_accept(&mut self, err: &io::Error) {
        self.log(|path| warn!(socket = %path.display(), "a front end cannot be let in: {err}"));
        sleep(RETRY.0).await;
    }

    /// Waits while sessions come too fast.
    async fn admit(&mut self) {
        while let Err(wait) = self.sessions.take(Instant::now()) {
            sleep(wait).await;
        }
    }

    async fn connect(&mut self) -> UnixStream {
        let (mut pause, longest) = RETRY;
        let mut told = false;
        loop {
            match UnixStream::connect(&self.path).await {
                Ok(stream) => return stream,
                Err(err) if !told => {
                    told = true;
                    self.log(|path| {
                        info!(socket = %path.display(), "waiting for the front end: {err}");
                    });
                }
                Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Meets whoever comes while `current` is connected: keeps it if `current` has hung up, else turns it away.
    /// Nothing is lost when this future is dropped.
    async fn meet(&mut self, current: &UnixStream) {
        let Way::Server { listener, .. } = &self.way else { return std::future::pending().await };
        if self.kept.is_some() {
            return std::future::pending().await;
        }
        if let Err(wait) = self.sessions.peek(Instant::now()) {
            return sleep(wait).await;
        }
        let visitor = match listener.accept().await {
            Ok((visitor, _)) => visitor,
            Err(err) => return self.cannot_accept(&err).await,
        };
        if hung_up(current) {
            self.kept = Some(visitor);
            return;
        }
        // The bucket had room a moment ago, and only this task takes from it.
        let _ = self.sessions.take(Instant::now());
        self.log(|path| {
            warn!(
                socket = %path.display(),
                "a second front end was turned away: the socket is for one at a time"
            );
        });
    }

    /// Logs, unless there has been too much of it lately.
    fn log(&mut self, line: impl FnOnce(&Path)) {
        if self.lines.take(Instant::now()).is_ok() {
            line(&self.path);
        } else {
            debug!(socket = %self.path.display(), "log lines are being left out");
        }
    }
}

/// Whether the other side has closed, even if there is still something to be read.
fn hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut fds, Some(&now)).is_ok() && fds.iter().any(|fd| fd.revents().intersects(gone))
}

#[cfg(test)]
mod tests;
