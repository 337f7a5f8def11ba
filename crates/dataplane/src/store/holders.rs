//! Who has an image of the store open, and how they make room for one another.
//!
//! One lock for each image is the right to open it: who waits for others to end holds it meanwhile.

use std::sync::Arc;
use std::time::Duration;

use remote::control::Session;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, sleep};

/// How long an image that is in use is waited for: a disk that was removed has just hung up, and its image is still
/// being closed.
pub(super) const LEAVING: Duration = Duration::from_millis(500);
/// How often it is looked whether it is.
const GLANCE: Duration = Duration::from_millis(5);

/// Somebody who has an image open.
pub(super) struct Holder {
    pub(super) session: Session,
    /// Tells it to end.
    pub(super) stop: watch::Sender<bool>,
    /// Closed when it has.
    pub(super) gone: watch::Receiver<()>,
}

impl Holder {
    pub(super) fn is_there(&self) -> bool {
        self.gone.has_changed().is_ok()
    }
}

/// Those who have one image open, and the right to open it.
pub(super) type Holders = Arc<Mutex<Vec<Holder>>>;

/// Waits until all of this session have ended, and everybody if it is to be `fence`d; nobody else opens the image
/// as long as this is held.
pub(super) async fn alone(
    holders: &Mutex<Vec<Holder>>,
    session: Session,
    fence: bool,
) -> MutexGuard<'_, Vec<Holder>> {
    let mut holders = holders.lock().await;
    holders.retain(Holder::is_there);
    for holder in holders.iter() {
        if holder.session == session || fence {
            let _ = holder.stop.send(true);
            // An error is what is waited for: it has ended.
            while holder.gone.clone().changed().await.is_ok() {}
        }
    }
    holders
}

/// Waits until one of these has ended, not longer than until `end`: whether one has.
pub(super) async fn one_leaves(there: &[watch::Receiver<()>], end: Instant) -> bool {
    while !there.is_empty() && Instant::now() < end {
        if there.iter().any(|gone| gone.has_changed().is_err()) {
            return true;
        }
        sleep(GLANCE).await;
    }
    false
}
