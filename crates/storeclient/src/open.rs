//! Opening an image, by the best transport there is.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use fabric::{Fabric, Rights, State};
use line::rma;
use remote::control::{At, ImageName, Opened, Refused, Session, ToClient, ToStore, Transport, Why};
use remote::near::Guest;

use crate::link::{Line, Moved};
use crate::pool::Pool;
use crate::post::{FromPlace, Post, ToPlace};
use crate::ring::{self, Ring};
use crate::talk::{ANSWER, GO_ON, Talk, first};
use crate::{Error, Known};

/// Most requests under way, whatever a store allows.
const REQUESTS: u16 = 256;
/// Between two looks at a connection that is being made.
const PAUSE: Duration = Duration::from_millis(1);

/// A connection on which an image is open.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) line: Line,
    pub(crate) opened: Opened,
    /// Which start of the store's machine it is.
    pub(crate) boot: String,
    /// Where it leads.
    pub(crate) address: String,
}

/// Whether a store answers at one of the addresses, and can be reached as is wished.
pub(crate) fn greet(store: &Known) -> Result<(), Error> {
    first(store, &GO_ON, |address| {
        let talk = Talk::begin(address, store, &GO_ON)?;
        match store.transport {
            Transport::Shm => near(&talk).map(drop),
            Transport::Libfabric => fabrics(store, &talk).map(drop),
            Transport::Auto | Transport::Tcp => Ok(()),
        }
    })
}

/// Opens an image at the first address that answers, unless `give_up` is set meanwhile. Data goes through
/// the pool, which is renewed if the store reaches it.
pub(crate) fn open(
    store: &Known,
    image: &ImageName,
    write: bool,
    pool: &Arc<Pool>,
    give_up: &AtomicBool,
) -> Result<Connected, Error> {
    let wish = Wish { store, image, write, pool, give_up };
    first(store, give_up, |address| match wish.open_at(address, true) {
        Err(Error::NoFabric { why, .. }) if store.transport == Transport::Auto => {
            tracing::warn!(%image, address, "by TCP: {why}");
            wish.open_at(address, false)
        }
        opened => opened,
    })
}

/// What is to be opened.
struct Wish<'a> {
    store: &'a Known,
    image: &'a ImageName,
    write: bool,
    pool: &'a Arc<Pool>,
    give_up: &'a AtomicBool,
}

impl Wish<'_> {
    /// `fabric`: one may be used.
    fn open_at(&self, address: &str, fabric: bool) -> Result<Connected, Error> {
        let transport = self.store.transport;
        let mut talk = Talk::begin(address, self.store, self.give_up)?;
        let post = match transport {
            Transport::Auto => near(&talk).ok(),
            Transport::Shm => Some(near(&talk)?),
            Transport::Libfabric | Transport::Tcp => None,
        };
        let fabrics = match (&post, transport) {
            (None, Transport::Libfabric) => fabrics(self.store, &talk)?,
            (None, Transport::Auto) if fabric => fabrics(self.store, &talk).unwrap_or_default(),
            _ => Vec::new(),
        };
        talk.say(&ToStore::Open {
            image: self.image.clone(),
            write: self.write,
            session: self.store.session,
            fence: false,
            in_place: post.is_some(),
            fabrics: fabrics.iter().map(|fabric| fabric.kind().name().to_owned()).collect(),
        })?;
        let ToClient::Opened(opened) = talk.hear()? else {
            return Err(talk.strange("its answer is none"));
        };
        let mut opened = opened.checked().map_err(|what| talk.strange(what))?;
        opened.requests = opened.requests.min(REQUESTS);
        let boot = std::mem::take(&mut talk.welcome.boot);
        let line = match (post, opened.place, &opened.fabric) {
            (Some(post), Some(place), _) => {
                opened.requests = opened.requests.min(ring::REQUESTS);
                self.settle(&talk, post, place)?
            }
            (_, _, Some(at)) => self.reach(talk, &fabrics, at, opened.requests)?,
            _ if transport == Transport::Libfabric => {
                let why = "the store has none of this one's".to_owned();
                return Err(Error::NoFabric { address: address.to_owned(), why });
            }
            _ if transport == Transport::Shm => {
                let why = "the store does not share memory".to_owned();
                return Err(Error::NotHere { address: address.to_owned(), why });
            }
            _ => {
                let failed = |source| Error::Connect { address: address.to_owned(), source };
                Line::Wire(Box::new(talk.into_wire().map_err(failed)?))
            }
        };
        Ok(Connected { line, opened, boot, address: address.to_owned() })
    }

    /// Has the store serve a queue in memory of this program.
    fn settle(&self, talk: &Talk<'_>, mut post: Post, place: Session) -> Result<Line, Error> {
        let disk = self.image.as_str().to_owned();
        let guest = Guest { disk, queues: 1, features_off: 0, writethrough: false };
        post.say(&ToPlace::Place { place, guest }, None).map_err(|error| talk.failed(error))?;
        match post.hear(ANSWER, self.give_up).map_err(|error| talk.failed(error))? {
            FromPlace::Placed => {}
            FromPlace::Refused(source) => {
                return Err(Error::Refused { address: talk.address.to_owned(), source });
            }
            _ => return Err(talk.strange("its answer is none")),
        }
        let shown = self.pool.renew()?;
        let ring = Ring::new(post, shown).map_err(|error| {
            let message = format!("no queue runs: {error}");
            let source = Refused { why: Why::Failed, message };
            Error::Refused { address: talk.address.to_owned(), source }
        })?;
        Ok(Line::Ring(Box::new(ring)))
    }

    /// Has the store reach memory of this program over a fabric.
    fn reach(
        &self,
        talk: Talk<'_>,
        fabrics: &[Fabric],
        at: &At,
        requests: u16,
    ) -> Result<Line, Error> {
        let address = talk.address.to_owned();
        let broken = |why: String| Error::NoFabric { address: address.clone(), why };
        let rma = rma::dial(fabrics, at, requests, talk.into_lifeline());
        let mut rma = rma.map_err(|error| broken(error.to_string()))?;
        let until = Instant::now() + ANSWER;
        loop {
            rma.poll().map_err(|error| broken(error.to_string()))?;
            if *rma.state() == State::Connected {
                break;
            }
            if Instant::now() >= until {
                return Err(broken("it takes too long".to_owned()));
            }
            thread::sleep(PAUSE);
        }
        let memory = self.pool.renew()?.memory;
        let registered = rma.fabric().register(&memory, Rights::RemoteReadWrite);
        let registration = registered.map_err(|error| broken(error.to_string()))?;
        Ok(Line::Rma(Box::new(Moved { rma, registration })))
    }
}

/// Connects to the Unix socket of a store of this machine.
fn near(talk: &Talk<'_>) -> Result<Post, Error> {
    let connected = match &talk.welcome.local {
        None => Err("it has no Unix socket".to_owned()),
        Some(_) if !line::boot().is_ok_and(|own| own == talk.welcome.boot) => {
            Err("it is on another machine".to_owned())
        }
        Some(local) => {
            Post::connect(local).map_err(|error| format!("{}: {error}", local.display()))
        }
    };
    connected.map_err(|why| Error::NotHere { address: talk.address.to_owned(), why })
}

/// Fabrics by which the store is to reach memory of this program.
fn fabrics(store: &Known, talk: &Talk<'_>) -> Result<Vec<Fabric>, Error> {
    let kinds = rma::providers(store.transport, store.tls.is_some());
    if kinds.is_empty() {
        return Ok(Vec::new());
    }
    rma::open(kinds, talk.local()?)
        .map_err(|why| Error::NoFabric { address: talk.address.to_owned(), why })
}
