//! Guest channels: for each VM that has one, a socket on which its agent says what its router
//! delegates.
//!
//! A [`Router`] is what is known of such a VM, and a task of its own on the control thread serves its
//! socket, for as long as the VM exists: one connection at a time, the newest. The task alone changes
//! what is delegated; the interface looks, and says whether the router is bypassed. `state` is locked
//! for one request at most, never across an await, and before the registry's tables. What is delegated ends
//! with the connection, the lease or the VM, whatever the task waits for.
//!
//! A guest may send what it likes. A line is [`channel::Session`]'s business; here, reading waits
//! until the answer before is written, and until the VM's share of the control thread allows it
//! ([`channel::Budget`]), so what is too much stays in the socket.

mod connection;

use crate::plane::{Gone, Plane, PlaneError, PlaneRouter, PortHandle};
use api::Name;
use api::channel::{ChannelFunction, Flow, HopCount, Limits};
use channel::{Budget, Lines, Session, Step, World};
use connection::Connection;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};
use vhost_session::socket::{Listener, SocketError, SocketFile};

/// What a channel asks of the registry: the VM's ports.
pub(super) trait Ports: Send + Sync + 'static {
    /// All of them, by name.
    fn ports(&self) -> Vec<channel::Port<PortHandle>>;
    /// Its virtual functions, in order.
    fn functions(&self) -> Vec<ChannelFunction>;
    /// Which of these addresses were seen behind which of them.
    fn learned(&self, wanted: &BTreeSet<api::Mac>) -> Vec<(api::Mac, PortHandle)>;
}

/// The router of a VM, as it is now.
pub(super) struct Router {
    vm: Name,
    plane: Plane,
    ports: Box<dyn Ports>,
    state: Mutex<State>,
}

/// What the task changes and others look at.
pub(super) struct State {
    pub(super) session: Session<PortHandle>,
    pub(super) router: PlaneRouter,
    pub(super) connected: bool,
}

/// A channel under way.
pub(super) struct Channel {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Router {
    pub(super) fn new(
        vm: Name,
        limits: Limits,
        bypass: bool,
        plane: Plane,
        ports: impl Ports,
    ) -> Self {
        let daemon = format!("hayate {}", env!("CARGO_PKG_VERSION"));
        let state = State {
            session: Session::new(vm.clone(), daemon, limits),
            router: PlaneRouter::new(plane.clone(), bypass),
            connected: false,
        };
        Self { vm, plane, ports: Box::new(ports), state: Mutex::new(state) }
    }

    /// What is known now. Not to be held for longer than a look.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Lets it be bypassed or not; when this returns, no frame goes the old way.
    pub(super) async fn set_bypass(&self, bypass: bool) -> Result<(), PlaneError> {
        self.state().router.set_bypass(bypass)?;
        self.plane.settle().await
    }

    /// A line of the agent: the answer, after all it asks for was done.
    async fn line(&self, lines: &mut Lines, input: &mut &[u8], budget: &mut Budget) -> Vec<u8> {
        let (answer, gone, settle) = {
            let began = Instant::now();
            let mut state = self.state();
            let State { session, router, .. } = &mut *state;
            let view = View { ports: &*self.ports, counts: router };
            let step = match lines.next(input) {
                Some(channel::Line::Whole(line)) => session.line(line, began, &view),
                Some(channel::Line::TooLong) => session.too_long(),
                None => Step::nothing(),
            };
            let extra = if step.actions.is_empty() { Duration::ZERO } else { Budget::CHANGE };
            let done = self.carry_out(session, router, step);
            let now = Instant::now();
            budget.spend(now.saturating_duration_since(began) + extra, now);
            done
        };
        self.finish(gone, settle).await;
        answer
    }

    /// Does what a step asks for; if that fails, all that was delegated goes.
    fn carry_out(
        &self,
        session: &mut Session<PortHandle>,
        router: &mut PlaneRouter,
        step: Step<PortHandle>,
    ) -> (Vec<u8>, Option<Gone>, bool) {
        let Step { id, actions, settle, answer } = step;
        match router.carry_out(actions) {
            Ok(gone) => (answer, gone, settle),
            Err(error) => {
                warn!("router {}: what it delegated is given up: {error}", self.vm);
                let step = session.failed(id, &error.to_string());
                let gone = router.carry_out(step.actions).unwrap_or_else(|error| {
                    warn!("router {}: {error}", self.vm);
                    None
                });
                (step.answer, gone, step.settle)
            }
        }
    }

    /// Withdraws everything if the lease has ended.
    async fn expire(&self) {
        let gone = {
            let mut state = self.state();
            let State { session, router, .. } = &mut *state;
            if !session.expire(Instant::now()) {
                return;
            }
            info!("router {}: its agent is silent, the lease ended", self.vm);
            self.clear(router)
        };
        self.finish(gone, false).await;
    }

    /// Withdraws everything; `connected`: for the next one is there already.
    async fn begin(&self, connected: bool) {
        let gone = {
            let mut state = self.state();
            state.session.disconnected();
            state.connected = connected;
            self.clear(&mut state.router)
        };
        self.finish(gone, false).await;
    }

    fn clear(&self, router: &mut PlaneRouter) -> Option<Gone> {
        router.carry_out(vec![channel::Action::Clear]).unwrap_or_else(|error| {
            warn!("router {}: {error}", self.vm);
            None
        })
    }

    async fn finish(&self, gone: Option<Gone>, settle: bool) {
        let done = match (gone, settle) {
            (Some(gone), _) => self.plane.remove_router(gone).await,
            (None, true) => self.plane.settle().await.map(|()| HopCount::default()),
            (None, false) => return,
        };
        match done {
            Ok(late) => self.state().router.late(late),
            Err(error) => warn!("router {}: {error}", self.vm),
        }
    }
}

/// What a session sees of the host.
struct View<'v> {
    ports: &'v dyn Ports,
    counts: &'v PlaneRouter,
}

impl World for View<'_> {
    type Port = PortHandle;

    fn ports(&self) -> Vec<channel::Port<PortHandle>> {
        self.ports.ports()
    }

    fn functions(&self) -> Vec<ChannelFunction> {
        self.ports.functions()
    }

    fn learned(&self, wanted: &BTreeSet<api::Mac>) -> Vec<(api::Mac, PortHandle)> {
        self.ports.learned(wanted)
    }

    fn counts(&self) -> BTreeMap<u32, Vec<HopCount>> {
        self.counts.counts()
    }

    fn connection_count(&self, flow: &Flow) -> HopCount {
        self.counts.connection_count(flow)
    }
}

impl Channel {
    /// Listens, for as long as this is kept.
    pub(super) fn open(path: &Path, router: Arc<Router>) -> Result<Self, SocketError> {
        let (listener, file) = Listener::bind(path)?.into_parts();
        let io = |source| SocketError::Io { what: "serve", path: path.to_owned(), source };
        let listener = UnixListener::from_std(listener).map_err(io)?;
        let (stop, stopped) = oneshot::channel();
        let task = Task { listener, _file: file, router, connection: None };
        Ok(Self { stop, task: tokio::spawn(task.run(stopped)) })
    }

    /// Ends it, and withdraws all that was delegated.
    pub(super) async fn close(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            warn!("a guest channel ended early: {error}");
        }
    }
}

/// Serves one channel.
struct Task {
    listener: UnixListener,
    _file: SocketFile,
    router: Arc<Router>,
    connection: Option<Connection>,
}

enum Event {
    Stop,
    Came(std::io::Result<UnixStream>),
    Expired,
    Input,
    Left,
}

impl Task {
    async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut budget = Budget::new(Instant::now());
        loop {
            match self.next(&mut stop, budget.ready()).await {
                Event::Stop => break,
                Event::Came(came) => {
                    let began = Instant::now();
                    self.came(came).await;
                    let now = Instant::now();
                    budget.spend(now.saturating_duration_since(began), now);
                }
                Event::Expired => self.router.expire().await,
                Event::Input => self.input(&mut budget).await,
                Event::Left => {
                    debug!("router {}: its agent hung up", self.router.vm);
                    self.connection = None;
                    self.router.begin(false).await;
                }
            }
            // Others have their turn, however much is to be read.
            tokio::task::yield_now().await;
        }
        self.router.begin(false).await;
    }

    async fn next(&mut self, stop: &mut oneshot::Receiver<()>, ready: Instant) -> Event {
        let deadline = self.router.state().session.deadline();
        let (listener, connection) = (&self.listener, &mut self.connection);
        tokio::select! {
            biased;
            _ = stop => Event::Stop,
            () = until(deadline) => Event::Expired,
            came = async { until(Some(ready)).await; listener.accept().await } => {
                Event::Came(came.map(|(stream, _)| stream))
            }
            there = async {
                match connection {
                    Some(connection) => connection.next(ready).await,
                    None => std::future::pending().await,
                }
            } => if there { Event::Input } else { Event::Left },
        }
    }

    async fn came(&mut self, came: std::io::Result<UnixStream>) {
        match came {
            Ok(stream) => {
                debug!("router {}: an agent connected", self.router.vm);
                self.connection = Some(Connection::new(stream));
                self.router.begin(true).await;
            }
            Err(error) => {
                // Out of descriptors, say. The listener stays ready, so wait a little.
                warn!("router {}: an agent cannot be let in: {error}", self.router.vm);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    async fn input(&mut self, budget: &mut Budget) {
        let Some(connection) = &mut self.connection else { return };
        let (lines, mut input) = connection.input();
        let before = input.len();
        let answer = self.router.line(lines, &mut input, budget).await;
        let taken = before - input.len();
        connection.answer(taken, answer);
    }
}

async fn until(time: Option<Instant>) {
    match time {
        // A timer that is due still takes a millisecond.
        Some(time) if time <= Instant::now() => {}
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
