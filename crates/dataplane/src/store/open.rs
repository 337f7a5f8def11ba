//! An image that is opened for who asked for it, and served until that ends.
//!
//! **THE rule of fencing.** Before an image is opened for a session, every connection of the same
//! session has ended: nothing it asked for is under way any more, and nothing it asks for will be
//! begun. The same holds for all connections of an image that is taken by force. Whether others may
//! have it open at the same time is for the images themselves to say ([`Images::open`](super::accept::Images::open)).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use remote::control::{ImageName, Opened, Refused, Session, ToClient, Why};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::accept::{OpenImage, Peer, Store, blocking};
use super::fabrics::Berth;
use super::holders::{Holder, LEAVING, alone, one_leaves};
use super::resident::{Lodging, secret};
use super::talk::Talk;
use crate::disk::config;
use crate::disk::connection::Connection;
use crate::host::{Offer, Served};

/// What a client may have under way: requests, and bytes that they move.
const REQUESTS: u16 = 256;
const BYTES: u32 = 4 << 20;

/// What a client asks to open.
pub(super) struct Wish {
    pub(super) image: ImageName,
    pub(super) write: bool,
    pub(super) session: Session,
    pub(super) fence: bool,
    pub(super) in_place: bool,
    pub(super) fabrics: Vec<String>,
}

/// Who asks for what is in an image.
enum Asker {
    /// A client, on a connection.
    Far(Served),
    /// A client, by a fabric.
    Fabric(Box<Berth>),
    /// A guest of this machine.
    Near(Box<Lodging>),
}

impl Asker {
    /// Serves it until that cannot be gone on with: why.
    async fn serve(&mut self) -> String {
        match self {
            Asker::Far(served) => served.fault().await,
            Asker::Fabric(berth) => berth.serve().await,
            Asker::Near(lodging) => lodging.serve().await,
        }
    }

    /// Nothing it asked for is under way when this returns.
    async fn end(&mut self) {
        match self {
            Asker::Far(served) => served.end().await,
            Asker::Fabric(berth) => berth.end().await,
            Asker::Near(lodging) => lodging.end().await,
        }
    }
}

/// An image that is open on a connection.
pub(super) struct Running {
    store: Arc<Store>,
    image: ImageName,
    client: String,
    opened: OpenImage,
    asker: Asker,
    stop: watch::Receiver<bool>,
    /// Dropped at the end: who waits for it goes on.
    _gone: watch::Sender<()>,
}

impl Store {
    /// Opens an image for a client once those who may not have it beside it have ended.
    pub(super) async fn open(
        self: &Arc<Store>,
        client: &Peer,
        wish: Wish,
        mut talk: Talk,
    ) -> io::Result<Running> {
        let (images, name, asks) = (Arc::clone(&self.images), wish.image.clone(), client.clone());
        let write = wish.write;
        // Who may not have it takes it from nobody.
        let allowed = blocking(move || images.allow(&name, write, &asks)).await;
        if let Err(why) = allowed {
            return refuse(&mut talk, why).await;
        }
        let holders = {
            let mut open = self.open.lock();
            // Of images that nobody has, and nobody is opening, nothing is kept.
            open.retain(|_, holders| {
                Arc::strong_count(holders) > 1
                    || holders.try_lock().is_ok_and(|all| all.iter().any(Holder::is_there))
            });
            Arc::clone(open.entry(wish.image.clone()).or_default())
        };
        let end = Instant::now() + LEAVING;
        let (mut holders, opened) = loop {
            // An image whose bytes are away may keep others waiting for long: who has gone meanwhile takes nobody's
            // place.
            let all = tokio::select! {
                all = alone(&holders, wish.session, wish.fence) => all,
                () = talk.closed() => return Err(io::Error::other("it has gone before it was its turn")),
            };
            let (images, name, asks) =
                (Arc::clone(&self.images), wish.image.clone(), client.clone());
            let why = match blocking(move || images.open(&name, write, &asks)).await {
                Ok(opened) => break (all, opened),
                Err(why) => why,
            };
            let there: Vec<_> = all.iter().map(|holder| holder.gone.clone()).collect();
            drop(all);
            if why.why != Why::InUse || !one_leaves(&there, end).await {
                return refuse(&mut talk, why).await;
            }
        };
        let client = client.name.clone();
        let answer = Opened {
            handle: self.handles.fetch_add(1, Relaxed),
            epoch: opened.epoch,
            size: opened.size,
            block_size: config::block_size(&opened.image)?,
            requests: REQUESTS,
            bytes: BYTES,
            discard: opened.image.can_discard(),
            durable: opened.image.outlives_this_machine(),
            place: None,
            fabric: None,
        };
        let (name, image) = (format!("{}@{client}", wish.image), opened.image.clone());
        let offer = Offer { name, image, size: opened.size, read_only: !write };
        let local = talk.local()?.ip().to_canonical();
        let asker = if wish.in_place && self.local.is_some() {
            Asker::Near(Box::new(self.lodge(offer, answer, talk).await?))
        } else if let Some((at, arrival)) = self.fabrics.offer(&wish.fabrics, local).await {
            let answer = Opened { fabric: Some(at), ..answer };
            talk.say(&ToClient::Opened(answer.clone())).await?;
            let (host, arrival) = (self.host.clone(), Some(arrival));
            Asker::Fabric(Box::new(Berth { host, offer, answer, arrival, talk, served: None }))
        } else {
            Asker::Far(self.connect(offer, answer, talk).await?)
        };
        let (stop, stopping) = watch::channel(false);
        let (gone, going) = watch::channel(());
        holders.push(Holder { session: wish.session, stop, gone: going });
        tracing::info!(client, image = %wish.image, write, "opened");
        Ok(Running {
            store: Arc::clone(self),
            image: wish.image,
            client,
            opened,
            asker,
            stop: stopping,
            _gone: gone,
        })
    }

    /// Serves a client on its connection.
    async fn connect(&self, offer: Offer, answer: Opened, mut talk: Talk) -> io::Result<Served> {
        let write = !offer.read_only;
        let served = self.host.serve_image(offer).map_err(io::Error::other)?;
        let said = talk.say(&ToClient::Opened(answer.clone())).await;
        let started = said.and_then(|()| talk.into_wire()).and_then(|wire| {
            served.start(Connection::new(wire, answer, write)?);
            Ok(())
        });
        if let Err(error) = started {
            served.end().await;
            return Err(error);
        }
        Ok(served)
    }

    /// Prepares for a guest of this machine.
    async fn lodge(&self, offer: Offer, answer: Opened, mut talk: Talk) -> io::Result<Lodging> {
        let place = secret()?;
        let (come, arrival) = oneshot::channel();
        {
            let mut places = self.places.lock();
            // Of those that nobody waits for any more, nothing is kept.
            places.retain(|_, come| !come.is_closed());
            places.insert(place, come);
        }
        talk.say(&ToClient::Opened(Opened { place: Some(place), ..answer })).await?;
        Ok(Lodging {
            host: self.host.clone(),
            offer,
            arrival: Some(arrival),
            talk: Some(talk),
            place: None,
        })
    }
}

/// Tells a client why it does not get what it asked for.
async fn refuse<T>(talk: &mut Talk, why: Refused) -> io::Result<T> {
    let text = why.message.clone();
    talk.say(&ToClient::Refused(why)).await?;
    Err(io::Error::other(text))
}

impl Running {
    /// Serves the connection until it ends.
    pub(super) async fn run(mut self, mut ending: watch::Receiver<bool>) {
        let why = tokio::select! {
            why = self.asker.serve() => why,
            _ = self.stop.wait_for(|stop| *stop) => "another connection has the image now".to_owned(),
            _ = ending.wait_for(|end| *end) => "this store ends".to_owned(),
        };
        // Nothing it asked for is under way after this.
        self.asker.end().await;
        let opened = self.opened;
        // Closing an image may wait until what was written is stable.
        let _ = tokio::task::spawn_blocking(move || drop(opened)).await;
        tracing::info!(client = %self.client, image = %self.image, "closed: {why}");
        drop(self.store);
    }
}
