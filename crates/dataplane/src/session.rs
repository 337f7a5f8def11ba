//! What ports and disks have in common: a vhost-user socket, a task that serves front ends on it,
//! and what the status says of the session.
//!
//! **Threads.** The task is one of the control runtime; it drives a [`Device`], which speaks to
//! workers. [`Info`] is the device's to write, behind the owner's lock.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::SystemTime;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vhost_session::socket::{Endpoint, SocketError};
use vhost_session::{Device, DeviceSpec, SessionEnd};

use crate::spec::SocketMode;
use crate::status::PortState;

/// Where front ends are met.
///
/// # Errors
///
/// The path cannot be bound, or another process listens there.
pub(crate) fn endpoint(socket: &Path, mode: SocketMode) -> Result<Endpoint, SocketError> {
    match mode {
        SocketMode::Server => Endpoint::server(socket),
        SocketMode::Client => Endpoint::client(socket),
    }
}

/// Resolves when a task has to end.
pub(crate) type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The running task of a socket.
#[derive(Debug)]
pub(crate) struct SessionTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl SessionTask {
    /// Serves front ends, one after the other; `name` is for the log.
    pub(crate) fn spawn(
        name: String,
        endpoint: Endpoint,
        spec: DeviceSpec,
        device: impl Device,
        runtime: &Handle,
    ) -> SessionTask {
        let serve = |stop| async move {
            let served = vhost_session::socket::serve(endpoint, spec, device, stop).await;
            if let Err(error) = served {
                tracing::error!(%name, "cannot serve: {error}");
            }
        };
        SessionTask::run(serve, runtime)
    }

    /// Runs what ends when the future that it is given does.
    pub(crate) fn run<F: Future<Output = ()> + Send + 'static>(
        work: impl FnOnce(Stop) -> F,
        runtime: &Handle,
    ) -> SessionTask {
        let (stop, stopped) = oneshot::channel();
        let stop_when: Stop = Box::pin(async {
            // An error means that its owner is gone: stop as well.
            let _ = stopped.await;
        });
        SessionTask { stop, task: runtime.spawn(work(stop_when)) }
    }

    /// Ends the session and waits until its queues have stopped and the socket is gone.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "a session task failed");
        }
    }
}

/// State of the session, for the status.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) state: PortState,
    pub(crate) since: SystemTime,
    pub(crate) sessions: u64,
    pub(crate) last_fault: Option<String>,
    pub(crate) features: u64,
    pub(crate) page_size: Option<usize>,
    /// Running queues by virtqueue index: layout and size.
    pub(crate) queues: Vec<Option<QueueInfo>>,
}

/// A running queue, for the status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueInfo {
    pub(crate) size: u16,
    pub(crate) packed: bool,
    pub(crate) enabled: bool,
}

impl Info {
    pub(crate) fn new(queues: usize) -> Self {
        Self {
            state: PortState::Waiting,
            since: SystemTime::now(),
            sessions: 0,
            last_fault: None,
            features: 0,
            page_size: None,
            queues: vec![None; queues],
        }
    }

    /// Enters `state`, noting the time if it is another one.
    pub(crate) fn enter(&mut self, state: PortState) {
        if self.state != state {
            self.state = state;
            self.since = SystemTime::now();
        }
    }

    /// A front end is there.
    pub(crate) fn connected(&mut self) {
        self.sessions += 1;
        self.enter(PortState::Connected);
    }

    /// The session is over.
    pub(crate) fn disconnected(&mut self, why: &SessionEnd) {
        let state = if why.is_fault() {
            let reason = why.to_string();
            self.last_fault = Some(format!("{}: {reason}", why.name()));
            PortState::Faulted { reason }
        } else {
            PortState::Waiting
        };
        self.features = 0;
        self.page_size = None;
        self.since = SystemTime::now();
        self.enter(state);
    }

    /// SET_VRING_ENABLE of a running queue.
    pub(crate) fn set_enabled(&mut self, queue: u16, enabled: bool) {
        if let Some(Some(queue)) = self.queues.get_mut(usize::from(queue)) {
            queue.enabled = enabled;
        }
    }
}
