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
//! ([`channel::Budget`]), so what is too much stays in the socket. What it sets on its virtual functions is
//! saved, which takes its time; a task of its own does that, and the channel waits for it only as long as
//! nothing else happens.

mod connection;

use crate::plane::{Gone, Plane, PlaneError, PlaneRouter, PortHandle};
use api::channel::{ChannelFunction, Failed, Flow, FlowCursor, Flows, HopCount, Limits, Refusal};
use api::{FunctionSettings, Name};
use channel::{Budget, FlowPf, Later, Lines, Session, Step, World};
use connection::Connection;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};
use vhost_session::socket::{Listener, SocketError, SocketFile};

/// What came of a change of the registry; of one without an answer of its own: nothing.
pub(super) type Changed = Result<Option<FunctionSettings>, Failed>;

/// What a saved change counts for besides the time of a change ([`Budget::CHANGE`]): it is written to
/// disk and synchronised there.
const SAVE: Duration = Duration::from_millis(15);

/// What a channel asks of the registry: the VM's ports.
pub(super) trait Ports: Send + Sync + 'static {
    /// All of them, by name.
    fn ports(&self) -> Vec<channel::Port<PortHandle>>;
    /// Its virtual functions, in order.
    fn functions(&self) -> Vec<ChannelFunction>;
    /// Which of these addresses were seen behind which of them.
    fn learned(&self, wanted: &BTreeSet<api::Mac>) -> Vec<(api::Mac, PortHandle)>;
    /// Its PF with this address.
    fn flow_pf(&self, mac: api::Mac) -> Option<FlowPf>;
    /// Flow rules of a PF of it, all of those behind a place.
    fn flows(&self, pf: &Name, after: Option<FlowCursor>) -> Flows;
    /// Whether there is something to do for it.
    fn concerns(&self, later: &Later) -> bool;
    /// Does it, whole or not at all.
    fn change(&self, later: Later) -> Pin<Box<dyn Future<Output = Changed> + Send>>;
}

/// What came of a line.
enum Came {
    /// This is the answer.
    Answer(Vec<u8>),
    /// It is when this was done.
    Later(Waiting),
}

/// A change that is being made, by a task that goes on whatever becomes of the connection.
struct Waiting {
    id: Option<u64>,
    /// Unless what came of it is.
    answer: Vec<u8>,
    taken: usize,
    change: JoinHandle<Changed>,
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
    async fn line(&self, lines: &mut Lines, input: &mut &[u8], budget: &mut Budget) -> Came {
        let before = input.len();
        let ((answer, gone, settle), id, later) = {
            let began = Instant::now();
            let mut state = self.state();
            let State { session, router, .. } = &mut *state;
            let view = View { ports: &*self.ports, counts: router };
            let step = match lines.next(input) {
                Some(channel::Line::Whole(line)) => session.line(line, began, &view),
                Some(channel::Line::TooLong) => session.too_long(),
                None => Step::nothing(),
            };
            let mut extra = if step.actions.is_empty() { Duration::ZERO } else { Budget::CHANGE };
            let (id, later) = (step.id, step.later.clone());
            let later = later.filter(|later| self.ports.concerns(later));
            if later.is_some() {
                extra += Budget::CHANGE + SAVE;
            }
            let done = self.carry_out(session, router, step);
            let now = Instant::now();
            budget.spend(now.saturating_duration_since(began) + extra, now);
            (done, id, later)
        };
        self.finish(gone, settle).await;
        match later {
            None => Came::Answer(answer),
            Some(later) => {
                let (taken, change) = (before - input.len(), self.ports.change(later));
                Came::Later(Waiting { id, answer, taken, change: tokio::spawn(change) })
            }
        }
    }

    /// The answer, now that a change was made, or was not.
    fn changed(&self, id: Option<u64>, answer: Vec<u8>, changed: Changed) -> Vec<u8> {
        match changed {
            Ok(Some(settings)) => self.state().session.set(id, Ok(settings)),
            Ok(None) if answer.is_empty() => self.state().session.done(id, Ok(())),
            Ok(None) => answer,
            // Nothing was asked; the next time it may work.
            Err(failed) if !answer.is_empty() => {
                warn!("vm {}: {}", self.vm, failed.message);
                answer
            }
            Err(failed) => self.state().session.set(id, Err(failed)),
        }
    }

    /// Does what a step asks for; if that fails, all that was delegated goes.
    fn carry_out(
        &self,
        session: &mut Session<PortHandle>,
        router: &mut PlaneRouter,
        step: Step<PortHandle>,
    ) -> (Vec<u8>, Option<Gone>, bool) {
        let Step { id, actions, settle, answer, later: _ } = step;
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

    fn flow_pf(&self, mac: api::Mac) -> Option<FlowPf> {
        self.ports.flow_pf(mac)
    }

    fn flows(&self, pf: &Name, after: Option<FlowCursor>) -> Flows {
        self.ports.flows(pf, after)
    }
}

impl Channel {
    /// Listens, for as long as this is kept.
    pub(super) fn open(path: &Path, router: Arc<Router>) -> Result<Self, SocketError> {
        let (listener, file) = Listener::bind(path)?.into_parts();
        let io = |source| SocketError::Io { what: "serve", path: path.to_owned(), source };
        let listener = UnixListener::from_std(listener).map_err(io)?;
        let (stop, stopped) = oneshot::channel();
        let task = Task { listener, _file: file, router, connection: None, waiting: None };
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
    /// What the connection waits for.
    waiting: Option<Waiting>,
}

enum Event {
    Stop,
    Came(std::io::Result<UnixStream>),
    Expired,
    Input,
    Left,
    Changed(Changed),
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
                Event::Changed(changed) => self.changed(changed),
            }
            // Others have their turn, however much is to be read.
            tokio::task::yield_now().await;
        }
        self.router.begin(false).await;
    }

    async fn next(&mut self, stop: &mut oneshot::Receiver<()>, ready: Instant) -> Event {
        let deadline = self.router.state().session.deadline();
        let (listener, connection) = (&self.listener, &mut self.connection);
        let waiting = self.waiting.as_mut();
        tokio::select! {
            biased;
            _ = stop => Event::Stop,
            () = until(deadline) => Event::Expired,
            came = async { until(Some(ready)).await; listener.accept().await } => {
                Event::Came(came.map(|(stream, _)| stream))
            }
            event = async {
                match (waiting, connection) {
                    (Some(waiting), _) => Event::Changed(join((&mut waiting.change).await)),
                    (None, Some(connection)) => match connection.next(ready).await {
                        true => Event::Input,
                        false => Event::Left,
                    },
                    (None, None) => std::future::pending().await,
                }
            } => event,
        }
    }

    async fn came(&mut self, came: std::io::Result<UnixStream>) {
        match came {
            Ok(stream) => {
                debug!("router {}: an agent connected", self.router.vm);
                // Whoever waited for an answer is gone.
                self.waiting = None;
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
        match self.router.line(lines, &mut input, budget).await {
            Came::Answer(answer) => {
                let taken = before - input.len();
                connection.answer(taken, answer);
            }
            Came::Later(waiting) => self.waiting = Some(waiting),
        }
    }

    fn changed(&mut self, changed: Changed) {
        let Some(Waiting { id, answer, taken, change: _ }) = self.waiting.take() else { return };
        let answer = self.router.changed(id, answer, changed);
        if let Some(connection) = &mut self.connection {
            connection.answer(taken, answer);
        }
    }
}

/// What came of a task; if it broke off, nothing is known to be done.
fn join(joined: Result<Changed, tokio::task::JoinError>) -> Changed {
    joined.unwrap_or_else(|error| Err(Failed::new(Refusal::NotDone, error.to_string())))
}

async fn until(time: Option<Instant>) {
    match time {
        // A timer that is due still takes a millisecond.
        Some(time) if time <= Instant::now() => {}
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
