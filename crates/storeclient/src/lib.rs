//! Images in a store, for ordinary threads.
//!
//! **Purpose.** A [`Session`] with a store lists its images and opens them; any number of threads
//! read and write a [`RemoteImage`] at once, at any offset and in any length. It is to programs what
//! `dataplane` is to guests, without worker, runtime or guest memory, and both are the same to a
//! store: requests are kept by a [`remote::Client`] until they are answered.
//!
//! **Owner and threads.** Each open image has one connection and one thread that does everything with
//! it ([`engine`]); who asks for something waits until that thread says how it ended. What is asked
//! for at once is under way at once, as far as the store allows. A connection that is lost is made
//! again, and requests wait meanwhile.
//!
//! **THE rule of whole sectors.** A store writes whole sectors. To write less, a sector is read, and
//! written with the change; so whoever writes holds the sectors it touches ([`ranges`]), and two who
//! change one sector do it one after the other. That is enough, because nobody but this session
//! writes to an image that it has open for writing.
//!
//! **Failure.** Calls return an [`Error`]; one that concerns a single request leaves the image as it
//! is. Without a limit of patience a store that is away is waited for.

mod engine;
mod image;
mod link;
mod open;
mod pool;
mod post;
mod ranges;
mod ring;
mod talk;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use remote::control::{self, Listed, Refused};
use rustix::rand::{GetRandomFlags, getrandom};
use rustls::ClientConfig;

pub use image::RemoteImage;
pub use remote::control::{ImageName, Transport, Why};
pub use remote::{MAX_DATA, Status};

/// Why something with a store or an image there failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers there.
    #[error("the store at {address} does not answer: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// What it says makes no sense.
    #[error("the store at {address} does not speak this protocol: {what}")]
    Protocol {
        /// Host and port.
        address: String,
        /// What is wrong.
        what: String,
    },
    /// It refuses.
    #[error("the store at {address} refuses: {source}")]
    Refused {
        /// Host and port.
        address: String,
        /// The reason.
        source: Refused,
    },
    /// The store was to serve requests in memory of this program, and cannot.
    #[error("the store at {address} cannot share memory with this program (shm): {why}")]
    NotHere {
        /// Host and port.
        address: String,
        /// The reason.
        why: String,
    },
    /// The store was to reach memory of this program, and cannot.
    #[error("the store at {address} and this host have no fabric in common (libfabric): {why}")]
    NoFabric {
        /// Host and port.
        address: String,
        /// The reason.
        why: String,
    },
    /// No address was given.
    #[error("no address of a store was given")]
    NoAddress,
    /// This session has the image open already.
    #[error("image {0} is open already")]
    Open(ImageName),
    /// The store could not do what was asked for.
    #[error("the store says: {0:?}")]
    Failed(Status),
    /// The store was away for longer than was to be waited.
    #[error("the store is away")]
    Away,
    /// The image was closed.
    #[error("the image was closed")]
    Closed,
    /// The system refuses a thread or a descriptor.
    #[error("the system refuses: {0}")]
    System(io::Error),
}

/// Which store, and how it is reached.
#[derive(Clone, Debug)]
pub struct Target {
    /// `HOST:PORT`, tried in this order.
    pub addresses: Vec<String>,
    /// This program's name, for people.
    pub client: String,
    /// How long requests wait for a store that is away; `None`: for ever.
    pub patience: Option<Duration>,
    /// How bytes come and go.
    pub transport: Transport,
    /// The store has to be known by a certificate, and this program shows one.
    pub tls: Option<Arc<ClientConfig>>,
}

impl Target {
    /// Reached by the best transport there is, without certificates, and waited for.
    #[must_use]
    pub fn new(addresses: Vec<String>, client: &str) -> Target {
        let (client, transport) = (client.to_owned(), Transport::Auto);
        Target { addresses, client, patience: None, transport, tls: None }
    }
}

/// What somebody is to a store: all that its images have in common.
///
/// A store that is asked for an image by a session that had it open ends the former connection first;
/// so an image that was just closed can be opened again at once.
#[derive(Debug)]
pub struct Session {
    known: Arc<Known>,
}

/// What every connection of a session needs.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) addresses: Vec<String>,
    pub(crate) client: String,
    /// How long requests wait for a store that is away; `None`: for ever.
    pub(crate) patience: Option<Duration>,
    pub(crate) transport: Transport,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) session: control::Session,
    /// The images that are open: each once, as two connections would take it from each other.
    pub(crate) open: Mutex<BTreeSet<ImageName>>,
}

impl Session {
    /// Looks whether a store answers at one of the addresses, and can be reached as is wished.
    ///
    /// # Errors
    /// None does: what the last one said.
    pub fn connect(target: Target) -> Result<Session, Error> {
        let Target { addresses, client, patience, transport, tls } = target;
        let mut number = [0; 16];
        let random = getrandom(&mut number, GetRandomFlags::empty());
        random.map_err(|errno| Error::System(errno.into()))?;
        let session = control::Session(u128::from_ne_bytes(number));
        let open = Mutex::default();
        let known = Known { addresses, client, patience, transport, tls, session, open };
        open::greet(&known)?;
        Ok(Session { known: Arc::new(known) })
    }

    /// The images of the store, and their sizes in bytes.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn list(&self) -> Result<Vec<(ImageName, u64)>, Error> {
        let images = talk::list(&self.known)?;
        Ok(images.into_iter().map(|Listed { image, size }| (image, size)).collect())
    }

    /// Opens an image; `write`: for writing too, which nobody else may have it for then.
    ///
    /// # Errors
    /// The store does not answer or refuses; the session has the image open.
    pub fn open(&self, image: &ImageName, write: bool) -> Result<RemoteImage, Error> {
        RemoteImage::open(&self.known, image, write)
    }
}
