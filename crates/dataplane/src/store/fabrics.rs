//! Endpoints of fabrics, for images that are open.
//!
//! The image is opened over TCP; store and client agree on a provider that both have, and the client
//! connects to the store's listener of it with the secret it was told. The first connection goes on as a
//! lifeline: when it ends, so does the other.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fabric::{Fabric, Kind, Listener, Request, State};
use line::rma::{self, Rma};
use parking_lot::Mutex;
use remote::control::{At, Opened, Session};
use rustix::event::{PollFd, PollFlags, poll};
use sys::EventFd;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::resident::secret;
use super::talk::Talk;
use crate::disk::connection::Connection;
use crate::host::{Host, Offer, Served};

/// How long a client may take to connect.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at a connection that is being made.
const PAUSE: Duration = Duration::from_millis(1);

/// Who is waited for, by what it will say.
type Awaited = Arc<Mutex<HashMap<Session, oneshot::Sender<Request>>>>;

/// Listeners, opened when the first client wants one.
#[derive(Default)]
pub(super) struct Doors {
    open: tokio::sync::Mutex<HashMap<(Kind, IpAddr), Door>>,
    awaited: Awaited,
}

struct Door {
    fabric: Fabric,
    address: SocketAddr,
    /// Signalled to end the thread that lets clients in.
    end: Arc<EventFd>,
}

impl Drop for Door {
    fn drop(&mut self) {
        // Cannot fail: it is an eventfd of this program.
        let _ = self.end.signal();
    }
}

impl Doors {
    /// Somewhere to connect to, by the first of these providers that is there; and who waits for that.
    pub(super) async fn offer(&self, wanted: &[String], local: IpAddr) -> Option<(At, Arrival)> {
        for kind in wanted.iter().filter_map(|name| name.parse::<Kind>().ok()) {
            let (fabric, address) = match self.door(kind, local).await {
                Ok(door) => door,
                Err(error) => {
                    tracing::debug!(%kind, %local, "no fabric: {error}");
                    continue;
                }
            };
            let place = secret().ok()?;
            let (come, request) = oneshot::channel();
            {
                let mut awaited = self.awaited.lock();
                // Of those that nobody waits for any more, nothing is kept.
                awaited.retain(|_, come| !come.is_closed());
                awaited.insert(place, come);
            }
            let at = At { provider: kind.name().to_owned(), address, place };
            return Some((at, Arrival { fabric, request }));
        }
        None
    }

    async fn door(&self, kind: Kind, local: IpAddr) -> io::Result<(Fabric, SocketAddr)> {
        let mut open = self.open.lock().await;
        if let Some(door) = open.get(&(kind, local)) {
            return Ok((door.fabric.clone(), door.address));
        }
        let opening = spawn_blocking(move || {
            let fabric = Fabric::open(kind, local)?;
            let listener = fabric.listen(0)?;
            Ok((fabric, listener))
        });
        let (fabric, listener) =
            opening.await.unwrap_or(Err(fabric::Error::Ended)).map_err(io::Error::other)?;
        let address = listener.address();
        let end = Arc::new(EventFd::new()?);
        let door = Door { fabric: fabric.clone(), address, end: Arc::clone(&end) };
        let awaited = Arc::clone(&self.awaited);
        let thread = std::thread::Builder::new().name(format!("fabric-{kind}"));
        thread.spawn(move || attend(&listener, &end, &awaited))?;
        open.insert((kind, local), door);
        tracing::info!(%address, "clients may connect by {kind}");
        Ok((fabric, address))
    }

    /// Nobody is let in any more.
    pub(super) async fn close(&self) {
        self.open.lock().await.clear();
    }
}

/// Lets those in who are waited for, until the end.
fn attend(listener: &Listener, end: &EventFd, awaited: &Awaited) {
    loop {
        match listener.poll() {
            Ok(Some(request)) => {
                let said = request.greeting().first_chunk().copied().map(u128::from_be_bytes);
                let come = said.and_then(|place| awaited.lock().remove(&Session(place)));
                match come {
                    // Whoever waited may have given up: it is refused.
                    Some(come) => drop(come.send(request)),
                    None => tracing::info!(peer = ?request.peer(), "nobody waits for a client"),
                }
                continue;
            }
            Ok(None) => {}
            Err(error) => tracing::info!("a client could not connect: {error}"),
        }
        if !listener.may_sleep() {
            continue;
        }
        let mut both = [PollFd::new(listener, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        let _ = poll(&mut both, None);
        if both.last().is_some_and(|end| !end.revents().is_empty()) {
            return;
        }
    }
}

/// A client that will come.
pub(super) struct Arrival {
    fabric: Fabric,
    request: oneshot::Receiver<Request>,
}

/// An image that is open for a client that comes by a fabric.
pub(super) struct Berth {
    pub(super) host: Host,
    pub(super) offer: Offer,
    pub(super) answer: Opened,
    pub(super) arrival: Option<Arrival>,
    pub(super) talk: Talk,
    pub(super) served: Option<Served>,
}

impl Berth {
    /// Serves the client until one of its connections ends: why.
    pub(super) async fn serve(&mut self) -> String {
        if let Some(Arrival { fabric, request }) = self.arrival.take() {
            let request = tokio::select! {
                request = timeout(PATIENCE, request) => match request {
                    Ok(Ok(request)) => request,
                    _ => return "the client did not connect by the fabric".to_owned(),
                },
                () = self.talk.closed() => return "the client has gone".to_owned(),
            };
            if let Err(error) = self.begin(&fabric, request) {
                return error.to_string();
            }
        }
        let Some(served) = &mut self.served else { return std::future::pending().await };
        tokio::select! {
            why = served.fault() => why,
            () = self.talk.closed() => "the client has gone".to_owned(),
        }
    }

    fn begin(&mut self, fabric: &Fabric, request: Request) -> io::Result<()> {
        let (answer, write) = (self.answer.clone(), !self.offer.read_only);
        let near = request.peer().is_some_and(|peer| peer.ip() == fabric.local());
        let accept = |depth| rma::accept(request, depth);
        let connection = Connection::rma(fabric, accept, answer, write, near)?;
        let served = self.host.serve_image(self.offer.clone()).map_err(io::Error::other)?;
        served.start(connection);
        self.served = Some(served);
        Ok(())
    }

    /// Nothing that was asked for is under way when this returns.
    pub(super) async fn end(&mut self) {
        if let Some(served) = self.served.take() {
            served.end().await;
        }
    }
}

/// Those of these providers that can be used at this address, in their order; or why there are none.
pub(super) async fn open(kinds: &'static [Kind], local: IpAddr) -> Result<Vec<Fabric>, String> {
    spawn_blocking(move || rma::open(kinds, local))
        .await
        .unwrap_or_else(|error| Err(error.to_string()))
}

/// Connects to a store that said where.
pub(super) async fn connect(
    fabrics: &[Fabric],
    at: &At,
    requests: u16,
    lifeline: std::net::TcpStream,
) -> io::Result<Rma> {
    let mut line = rma::dial(fabrics, at, requests, lifeline)?;
    let made = async {
        loop {
            line.poll().map_err(|error| io::Error::other(error.to_string()))?;
            if *line.state() == State::Connected {
                return Ok::<(), io::Error>(());
            }
            sleep(PAUSE).await;
        }
    };
    timeout(PATIENCE, made).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(line)
}
