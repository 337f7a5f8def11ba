//! A disk whose guest is served by the store of its image, on the same machine, while this process
//! meets its front ends and hands them over.

use std::future::Future;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use vhost_session::socket::{Door, Endpoint, serve};
use vhost_session::{Device, DeviceSpec};

use super::post::{FromPlace, Post, ToPlace};
use crate::disk::Disk;
use crate::disk::config::CacheMode;
use crate::session;
use crate::spec::{DiskLimits, SocketMode};

/// How long a second front end is kept in case that the first has left.
const SECOND: Duration = Duration::from_secs(1);

/// A place in a store.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(super) post: Post,
}

/// Who serves the guest.
#[derive(Debug)]
pub(crate) enum Way {
    /// This process, from now on.
    Here,
    /// The store, until the connection ends.
    Place(Placed),
}

/// What is asked of the task beside its work.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Have [`Disk::report`] say how it is; closed when it does.
    Status(oneshot::Sender<()>),
    /// Keep to these limits from now on.
    Limits(DiskLimits),
}

/// The front ends of a disk.
pub(crate) struct Front {
    pub(crate) disk: Arc<Disk>,
    pub(crate) socket: PathBuf,
    pub(crate) mode: SocketMode,
    pub(crate) limits: DiskLimits,
    pub(crate) cache_mode: CacheMode,
    /// Who serves them.
    pub(crate) ways: mpsc::UnboundedReceiver<Way>,
    /// Where it is said that a place has been lost, and why.
    pub(crate) ends: mpsc::UnboundedSender<String>,
    pub(crate) asks: mpsc::UnboundedReceiver<Ask>,
}

/// Why a place is left.
enum Leave {
    /// It is lost.
    Lost(String),
    /// The disk ends.
    Stopped,
}

impl Front {
    /// Meets front ends until `stop` resolves. `endpoint` is where, at first; it is closed while nobody serves
    /// the guest, so that who tries to connect fails at once instead of waiting for an answer.
    pub(crate) async fn meet(
        mut self,
        endpoint: Endpoint,
        spec: DeviceSpec,
        device: impl Device,
        stop: impl Future<Output = ()> + Send,
    ) {
        let mut stop = pin!(stop);
        let mut first = Some(endpoint);
        loop {
            let way = tokio::select! {
                biased;
                () = &mut stop => return,
                way = self.ways.recv() => way,
                Some(ask) = self.asks.recv() => {
                    if let Ask::Limits(limits) = ask {
                        self.limits = limits;
                    }
                    continue;
                }
            };
            let Some(way) = way else { return stop.await };
            let open = || session::endpoint(&self.socket, self.mode);
            let endpoint = match first.take().map_or_else(open, Ok) {
                Ok(endpoint) => endpoint,
                Err(error) => {
                    tracing::error!(disk = %self.disk.name, "cannot serve: {error}");
                    // It is tried again at the next place, which is not so soon.
                    sleep(SECOND).await;
                    let _ = self.ends.send(error.to_string());
                    continue;
                }
            };
            let served = match way {
                Way::Here => {
                    // The worker is asked from now on.
                    self.asks.close();
                    serve(endpoint, spec, device, stop).await.map(|_| ())
                }
                Way::Place(Placed { mut post }) => {
                    let left = self.hand_over(endpoint, &mut post, stop.as_mut()).await;
                    *self.disk.report.lock() = None;
                    match left {
                        Leave::Stopped => {
                            post.close().await;
                            Ok(())
                        }
                        Leave::Lost(why) => {
                            let _ = self.ends.send(why);
                            continue;
                        }
                    }
                }
            };
            if let Err(error) = served {
                tracing::error!(disk = %self.disk.name, "cannot serve: {error}");
            }
            return;
        }
    }

    /// Hands front ends over, one after the other.
    async fn hand_over(
        &mut self,
        endpoint: Endpoint,
        post: &mut Post,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Leave {
        let lost = |error: &dyn std::fmt::Display| Leave::Lost(error.to_string());
        let door = match Door::open(endpoint) {
            Ok(door) => door,
            Err(error) => return lost(&error),
        };
        if let Err(error) = post.say(&ToPlace::Limits(self.limits), None).await {
            return lost(&error);
        }
        let mut asking: Vec<oneshot::Sender<()>> = Vec::new();
        let mut inside = false;
        let mut visitor: Option<UnixStream> = None;
        let mut next = Box::pin(next(door));
        loop {
            if !inside && let Some(stream) = visitor.take() {
                if let Err(error) = post.say(&ToPlace::FrontEnd, Some(stream.as_fd())).await {
                    return lost(&error);
                }
                // Closed here: it hears of the store's end.
                drop(stream);
                inside = true;
                tracing::debug!(disk = %self.disk.name, "a front end was handed over");
            }
            let said = tokio::select! {
                biased;
                () = stop.as_mut() => return Leave::Stopped,
                heard = post.hear() => match heard {
                    Ok(FromPlace::Left { why, fault }) => {
                        inside = false;
                        self.left(why, fault);
                        Ok(())
                    }
                    Ok(FromPlace::Status(status)) => {
                        *self.disk.report.lock() = Some(status);
                        asking.clear();
                        Ok(())
                    }
                    Ok(FromPlace::CacheMode { writethrough }) => {
                        self.cache_mode.keep(&self.disk, writethrough);
                        Ok(())
                    }
                    Ok(FromPlace::Placed | FromPlace::Refused(_)) => {
                        return lost(&"what it says makes no sense");
                    }
                    Err(silence) => return lost(&silence),
                },
                Some(ask) = self.asks.recv() => match ask {
                    Ask::Limits(limits) => {
                        self.limits = limits;
                        post.say(&ToPlace::Limits(limits), None).await
                    }
                    Ask::Status(asks) => {
                        asking.push(asks);
                        // One answer is for all who have asked meanwhile.
                        if asking.len() > 1 { Ok(()) } else { post.say(&ToPlace::Status, None).await }
                    }
                },
                (back, stream) = &mut next, if visitor.is_none() => {
                    visitor = Some(stream);
                    next.set(self::next(back));
                    Ok(())
                }
                () = sleep(SECOND), if inside && visitor.is_some() => {
                    visitor = None;
                    let disk = &self.disk.name;
                    tracing::warn!(%disk, "a second front end was turned away");
                    Ok(())
                }
            };
            if let Err(error) = said {
                return lost(&error);
            }
        }
    }

    /// A front end has left.
    fn left(&self, why: String, fault: bool) {
        let disk = &self.disk.name;
        if fault {
            tracing::warn!(%disk, "session ended: {why}");
            self.disk.info.lock().last_fault = Some(why);
        } else {
            tracing::info!(%disk, "session ended: {why}");
        }
    }
}

/// The next front end. Unlike [`Door::next`], it may be dropped half-way with nothing said twice.
async fn next(mut door: Door) -> (Door, UnixStream) {
    let stream = door.next().await;
    (door, stream)
}
