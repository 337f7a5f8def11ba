//! Guests of this machine, served by the store itself.
//!
//! ```text
//! QEMU --socket--> daemon --hands it over--> store: a disk of its data plane, like any other
//! ```
//!
//! The daemon opens the image as always, is told a secret, and says it at the store's Unix socket
//! ([`Post`]). From then on that is the connection: the image is open as long as it is. The daemon meets
//! front ends and hands their sockets over; the store speaks vhost-user with them, serves their rings, and
//! reads and writes the guest's memory in place. What a front end sends is as little believed as anywhere.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use remote::control::{Refused, Session, Why};
use rustix::net::{AddressFamily, SocketType, sockopt};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use vhost_session::socket::{Handed, Left};

use super::accept::Store;
use super::post::{FromPlace, Guest, Post, ToPlace};
use super::talk::{Silence, Talk};
use crate::host::{Host, Offer, Resident};

/// How long a client may take to come to the Unix socket.
const PATIENCE: Duration = Duration::from_secs(5);

/// Somebody who came with the right secret.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) post: Post,
    pub(super) guest: Guest,
}

/// An image that is open for a guest of this machine.
pub(super) struct Lodging {
    pub(super) host: Host,
    pub(super) offer: Offer,
    pub(super) arrival: Option<oneshot::Receiver<Arrival>>,
    /// What it was said on.
    pub(super) talk: Option<Talk>,
    pub(super) place: Option<(Resident, Post)>,
}

impl Lodging {
    /// Serves the guest until its connection ends: why.
    pub(super) async fn serve(&mut self) -> String {
        if let Err(why) = self.settle().await {
            return why;
        }
        let Some((resident, post)) = &mut self.place else { return pending().await };
        match attend(resident, post).await {
            Silence::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "the client has gone".to_owned()
            }
            silence => silence.to_string(),
        }
    }

    /// Waits for who was told the secret, and makes the guest's disk.
    async fn settle(&mut self) -> Result<(), String> {
        let Some(arrival) = self.arrival.take() else { return Ok(()) };
        let arrived = timeout(PATIENCE, arrival).await;
        let Ok(Ok(Arrival { mut post, guest })) = arrived else {
            return Err("the client did not come to the Unix socket".to_owned());
        };
        self.talk = None;
        let made = self.host.serve_guest(self.offer.clone(), &guest);
        let said = match made {
            Ok(resident) => {
                let said = post.say(&FromPlace::Placed, None).await;
                self.place = Some((resident, post));
                said
            }
            Err(error) => {
                let refused = Refused { why: Why::Failed, message: error.to_string() };
                let _ = post.say(&FromPlace::Refused(refused), None).await;
                return Err(error.to_string());
            }
        };
        said.map_err(|error| error.to_string())
    }

    /// Ends it: the guest's memory and the image are not used any more when this returns.
    pub(super) async fn end(&mut self) {
        if let Some((resident, _post)) = self.place.take() {
            // The client is hung up on when that is so.
            resident.end().await;
        }
    }
}

/// Does what the client says until the connection is of no further use: why.
async fn attend(resident: &mut Resident, post: &mut Post) -> Silence {
    let mut leaving = None;
    loop {
        let done = tokio::select! {
            heard = post.hear::<ToPlace>() => match heard {
                Ok(ToPlace::Status) => {
                    post.say(&FromPlace::Status(Box::new(resident.status())), None).await
                }
                Ok(ToPlace::Limits(limits)) => {
                    resident.limit(&limits);
                    Ok(())
                }
                Ok(ToPlace::FrontEnd) => {
                    if leaving.is_some() {
                        return strange("a second front end");
                    }
                    let Some(socket) = post.descriptor() else { return strange("no descriptor") };
                    let stream = match front_end(socket) {
                        Ok(stream) => stream,
                        Err(error) => return Silence::Io(error),
                    };
                    let (left, leave) = oneshot::channel();
                    leaving = Some(leave);
                    resident.hand(Handed { stream, left });
                    Ok(())
                }
                Ok(ToPlace::Place { .. }) => return strange("a second place"),
                Err(silence) => return silence,
            },
            Left { why, fault } = gone(&mut leaving) => {
                post.say(&FromPlace::Left { why, fault }, None).await
            }
            writethrough = resident.cache_mode() => {
                post.say(&FromPlace::CacheMode { writethrough }, None).await
            }
        };
        if let Err(error) = done {
            return Silence::Io(error);
        }
    }
}

fn strange(what: &str) -> Silence {
    Silence::Strange(what.to_owned())
}

/// Waits until the front end that is there has left.
async fn gone(leaving: &mut Option<oneshot::Receiver<Left>>) -> Left {
    let Some(leave) = leaving else { return pending().await };
    let left = leave.await;
    *leaving = None;
    left.unwrap_or_else(|_| Left { why: "the store ends".to_owned(), fault: false })
}

/// The descriptor as what it has to be: a connected Unix socket.
fn front_end(socket: OwnedFd) -> io::Result<UnixStream> {
    let right = sockopt::socket_domain(&socket)? == AddressFamily::UNIX
        && sockopt::socket_type(&socket)? == SocketType::STREAM
        && !sockopt::socket_acceptconn(&socket)?;
    if !right {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a connection of a front end"));
    }
    let stream = StdUnixStream::from(socket);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

impl Store {
    /// Somebody has come to the Unix socket.
    pub(super) async fn receive(&self, stream: UnixStream, strangers: &Semaphore) {
        let Ok(_stranger) = strangers.acquire().await else { return };
        let mut post = Post::new(stream);
        let (place, guest) = match timeout(PATIENCE, post.hear()).await {
            Ok(Ok(ToPlace::Place { place, guest })) => (place, guest),
            Ok(Ok(_)) => {
                return tracing::info!("no client came in: it does not say for what place");
            }
            Ok(Err(silence)) => return tracing::info!("no client came in: {silence}"),
            Err(_) => return tracing::info!("no client came in: it says nothing"),
        };
        let awaited = self.places.lock().remove(&place);
        let unknown = match awaited {
            // Whoever waited for it may have given up.
            Some(awaited) => awaited.send(Arrival { post, guest }).err(),
            None => Some(Arrival { post, guest }),
        };
        if let Some(Arrival { mut post, .. }) = unknown {
            tracing::info!("a client came in for a place there is not");
            let message = "no image was opened for this place, or too long ago".to_owned();
            let refused = FromPlace::Refused(Refused { why: Why::Forbidden, message });
            let _ = post.say(&refused, None).await;
        }
    }
}

/// A secret nobody guesses.
pub(super) fn secret() -> io::Result<Session> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(Session(u128::from_ne_bytes(bytes)))
}
