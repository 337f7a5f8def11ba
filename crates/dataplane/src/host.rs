//! The control side: networks, ports and workers created, changed and looked at.
//!
//! Any thread may call. The tables here are behind one lock that only control takes; what workers
//! see are snapshots posted to them. A port is removed in this order: its session or interface
//! stops, the workers acknowledge a port map without it, the switch forgets it; so no frame is
//! forwarded to it afterwards, and its memory is unmapped here and not on a worker.

mod disks;
mod load;
mod routers;
mod rules;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pace::Profile;
use parking_lot::Mutex;
use rustix::thread::set_current_timer_slack;
use switch::rules::RuleSet;
use switch::{NetworkConfig, NetworkId, Policy, PortConfig, PortId, Switch, VlanMode};
use sys::numa::Topology;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use crate::balance::{Balancer, Move};
use crate::clock::Clock;
use crate::disk::DiskId;
use crate::error::HostError;
use crate::homes::{Homes, Workers};
use crate::port::{PortMap, tap, vhost};
use crate::session::SessionTask;
use crate::spec::{NetworkSpec, Options, PortKind, PortSpec};
use crate::worker::placement::{TxId, TxQueue};
use crate::worker::{Command, Shared, Worker};
pub(crate) use disks::{Offer, Resident, Served};
use load::Gauges;

/// How often MAC addresses age and the workers' load is looked at.
const MAINTENANCE: Duration = Duration::from_secs(1);
/// CPUs per worker when no list of CPUs is given.
const CPUS_PER_WORKER: usize = 8;

/// The data plane. A cheap handle: clones are the same data plane.
#[derive(Debug, Clone)]
pub struct Host(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    switch: Arc<Switch>,
    runtime: Handle,
    workers: Arc<Workers>,
    /// Queues move by themselves.
    balance: bool,
    gauges: Mutex<Gauges>,
    clock: Clock,
    tables: Mutex<Tables>,
    /// Changes of the port map go to the workers one at a time.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Tables {
    ports: PortMap,
    sessions: HashMap<PortId, SessionTask>,
    disks: BTreeMap<DiskId, disks::Entry>,
    threads: Vec<JoinHandle<()>>,
}

impl Inner {
    /// The clock of the switch: milliseconds since the data plane started.
    fn now_ms(&self) -> u64 {
        self.clock.now() / 1_000_000
    }

    /// Reads all counters, and moves a queue if that helps.
    fn look(&self, balancer: &mut Balancer) {
        let ports = self.tables.lock().ports.clone();
        let loads = self.gauges.lock().look(Instant::now(), &self.workers, &ports);
        let Some(loads) = loads.filter(|_| self.balance) else { return };
        let Some(Move { id, from, to }) = balancer.look(&loads) else { return };
        if let (Some(port), Ok(worker)) = (ports.get(id.port), u16::try_from(to))
            && port.homes.move_to(&self.workers, id, worker)
        {
            let (port, queue) = (&port.name, id.index);
            tracing::info!(%port, queue, from, to, "moved a queue: its worker had too much to do");
        }
    }
}

impl Host {
    /// Starts the workers. Sessions run on `runtime`.
    ///
    /// # Errors
    ///
    /// Threads or descriptors could not be made, or a CPU of the list may not be used.
    pub fn start(options: &Options, runtime: Handle) -> Result<Self, HostError> {
        let cpus: Vec<Option<usize>> = match &options.cpus {
            Some(cpus) if !cpus.is_empty() => cpus.iter().copied().map(Some).collect(),
            _ => {
                let allowed = sys::affinity::allowed_cpus().map_or(1, |cpus| cpus.len());
                vec![None; allowed.div_ceil(CPUS_PER_WORKER).max(1)]
            }
        };
        let switch = Arc::new(Switch::new());
        let clock = Clock::start();
        let topology = topology(&options.topology);
        let mut workers = Vec::new();
        let mut threads = Vec::new();
        for (id, cpu) in (0u16..).zip(cpus) {
            let failed = |source| HostError::StartWorker { worker: id, source };
            let node = cpu.and_then(|cpu| topology.as_ref()?.node_of(cpu));
            let shared = Arc::new(Shared::new(id, cpu, node).map_err(failed)?);
            let (shared_too, switch, runtime) =
                (Arc::clone(&shared), Arc::clone(&switch), runtime.clone());
            let thread = spawn(shared_too, switch, options.polling, clock, runtime);
            threads.push(thread.map_err(failed)?);
            workers.push(shared);
        }
        let workers = Arc::new(Workers::new(workers));
        let (balance, gauges) = (options.balance, Mutex::new(Gauges::new(Instant::now())));
        let tables = Mutex::new(Tables { threads, ..Tables::default() });
        let changing = tokio::sync::Mutex::default();
        let inner =
            Arc::new(Inner { switch, runtime, workers, balance, gauges, clock, tables, changing });
        inner.runtime.spawn(maintain(Arc::downgrade(&inner)));
        Ok(Self(inner))
    }

    /// Adds a network.
    ///
    /// # Errors
    ///
    /// There are too many networks.
    pub fn add_network(&self, spec: &NetworkSpec) -> Result<NetworkId, HostError> {
        let config = NetworkConfig { mac_limit: spec.mac_limit, mac_age: spec.mac_age };
        Ok(self.0.switch.add_network(config)?)
    }

    /// Removes a network.
    ///
    /// # Errors
    ///
    /// It does not exist or has ports.
    pub fn remove_network(&self, id: NetworkId) -> Result<(), HostError> {
        Ok(self.0.switch.remove_network(id)?)
    }

    /// Creates a port and waits until frames can pass.
    ///
    /// # Errors
    ///
    /// The specification names something that does not exist, or the socket or interface could
    /// not be made. Nothing is left behind then.
    pub async fn add_port(&self, spec: PortSpec) -> Result<PortId, HostError> {
        self.add_port_with(spec, None).await
    }

    /// [`Host::add_port`] of one whose flow rules hold for its first frame.
    ///
    /// # Errors
    ///
    /// Those of [`Host::add_port`], or a rule makes no sense or is too much.
    pub async fn add_port_with(
        &self,
        spec: PortSpec,
        rules: Option<RuleSet>,
    ) -> Result<PortId, HostError> {
        let rules = rules::compile(rules, None)?;
        if let Some(worker) = spec.worker {
            self.check_worker(worker)?;
        }
        let config = PortConfig {
            network: spec.network,
            vlan: spec.vlan.clone(),
            mac_limit: spec.mac_limit,
        };
        let id = self.0.switch.add_port(config)?;
        let enforced = self.0.switch.set_policy(id, &spec.policy);
        let made = match enforced.and_then(|()| self.0.switch.set_rules(id, rules)) {
            Ok(()) => self.make_port(id, &spec).await,
            Err(error) => Err(error.into()),
        };
        if made.is_err() {
            let _ = self.0.switch.remove_port(id);
        }
        made.map(|()| id)
    }

    async fn make_port(&self, id: PortId, spec: &PortSpec) -> Result<(), HostError> {
        let queues = match &spec.kind {
            PortKind::Vhost(vhost) => vhost.queues,
            PortKind::Tap(tap) => tap.queues,
        };
        if !(1..=vhost::config::MAX_PAIRS).contains(&queues) {
            return Err(HostError::Queues { queues });
        }
        let workers = &self.0.workers;
        let homes = Homes::new(workers, queues.into(), spec.worker);
        match &spec.kind {
            PortKind::Vhost(config) => {
                let wiring = vhost::config::Wiring {
                    switch: Arc::clone(&self.0.switch),
                    workers: Arc::clone(workers),
                    numa: workers.iter().any(|worker| worker.node.is_some()),
                };
                let (port, listener) = vhost::config::create(id, spec, config, homes)?;
                self.publish(|ports| ports.insert(Arc::clone(&port))).await?;
                let task = listener.spawn(port, wiring, &self.0.runtime);
                self.0.tables.lock().sessions.insert(id, task);
            }
            PortKind::Tap(config) => {
                let failed = |source| HostError::Tap { ifname: config.ifname.clone(), source };
                let (port, queues) =
                    tap::config::create(id, spec, config, homes).map_err(failed)?;
                self.publish(|ports| ports.insert(Arc::clone(&port))).await?;
                for queue in queues {
                    let (id, queue) = (queue.id(), TxQueue::Tap(Box::new(queue)));
                    port.homes.start(workers, id, queue, None);
                }
                self.0.switch.set_link(id, true)?;
            }
        }
        Ok(())
    }

    /// What is enforced on a port. Returns when it holds for every frame.
    ///
    /// # Errors
    ///
    /// It does not exist, or the policy makes no sense.
    pub async fn set_policy(&self, id: PortId, policy: &Policy) -> Result<(), HostError> {
        self.0.switch.set_policy(id, policy)?;
        self.settle().await
    }

    /// How a port treats VLAN tags; what was learned behind it is forgotten. Returns when it holds for
    /// every frame.
    ///
    /// # Errors
    ///
    /// It does not exist, or a VLAN id is none.
    pub async fn set_vlan(&self, id: PortId, vlan: VlanMode) -> Result<(), HostError> {
        self.0.switch.set_vlan(id, vlan)?;
        self.settle().await
    }

    /// Removes a port: its session ends, its interface disappears.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub async fn remove_port(&self, id: PortId) -> Result<(), HostError> {
        let (port, session) = {
            let mut tables = self.0.tables.lock();
            let port = tables.ports.get_arc(id).cloned().ok_or(HostError::NoSuchPort(id))?;
            (port, tables.sessions.remove(&id))
        };
        self.0.switch.set_link(id, false)?;
        if let Some(session) = session {
            session.stop().await;
        }
        // Afterwards no queue of it runs or is on its way between workers.
        port.homes.close();
        let ids = (0u16..).zip(&port.incoming).map(|(index, _)| TxId { port: id, index });
        let stopped: Vec<_> = ids.map(|id| port.homes.stop(&self.0.workers, id)).collect();
        for queue in stopped {
            drop(queue.await);
        }
        self.publish(|ports| {
            ports.remove(id);
        })
        .await?;
        Ok(self.0.switch.remove_port(id)?)
    }

    /// Has `worker` serve a port's TX queue, or all of them (`queue`: `None`), from now on and until
    /// told otherwise; `worker` of `None` takes that back: the queues are placed by load again.
    /// Frames flow on meanwhile, and keep their order. Returns once the queues are there.
    ///
    /// # Errors
    ///
    /// There is no such port, queue or worker.
    pub async fn move_port(
        &self,
        id: PortId,
        queue: Option<u16>,
        worker: Option<u16>,
    ) -> Result<(), HostError> {
        let port = self.0.tables.lock().ports.get_arc(id).cloned();
        let port = port.ok_or(HostError::NoSuchPort(id))?;
        if let Some(worker) = worker {
            self.check_worker(worker)?;
        }
        let queues = port.incoming.len();
        let indices = match queue {
            Some(queue) if usize::from(queue) >= queues => {
                return Err(HostError::NoSuchQueue { queue, queues });
            }
            Some(queue) => queue..queue.saturating_add(1),
            None => 0..queues as u16,
        };
        let workers = &self.0.workers;
        let pin = |index| port.homes.pin(workers, TxId { port: id, index }, worker);
        for settled in indices.map(pin).collect::<Vec<_>>() {
            // Nobody answers if the port is removed meanwhile: then there is nothing to wait for.
            let _ = settled.await;
        }
        Ok(())
    }

    /// Removes all ports and disks and ends the workers.
    pub async fn shutdown(&self) {
        let disks: Vec<_> = self.0.tables.lock().disks.keys().copied().collect();
        for id in disks {
            if let Err(error) = self.remove_disk(id).await {
                tracing::debug!(%error, "disk was gone already");
            }
        }
        let ids: Vec<_> = self.0.tables.lock().ports.iter().map(|port| port.id).collect();
        for id in ids {
            if let Err(error) = self.remove_port(id).await {
                tracing::debug!(%error, "port was gone already");
            }
        }
        for worker in self.0.workers.iter() {
            worker.mailbox.post(Command::Exit);
        }
        for thread in std::mem::take(&mut self.0.tables.lock().threads) {
            if thread.join().is_err() {
                tracing::error!("a worker ended by a panic");
            }
        }
    }

    fn check_worker(&self, worker: u16) -> Result<(), HostError> {
        let workers = self.0.workers.len();
        if usize::from(worker) < workers {
            return Ok(());
        }
        Err(HostError::NoSuchWorker { worker, workers })
    }

    /// Changes the port map and waits until every worker uses the new one.
    async fn publish(&self, change: impl FnOnce(&mut PortMap)) -> Result<(), HostError> {
        let _one_at_a_time = self.0.changing.lock().await;
        let ports = {
            let mut tables = self.0.tables.lock();
            change(&mut tables.ports);
            Arc::new(tables.ports.clone())
        };
        let mut seen = Vec::new();
        for worker in self.0.workers.iter() {
            let (done, old) = oneshot::channel();
            worker.mailbox.post(Command::Ports(Arc::clone(&ports), done));
            seen.push(old);
        }
        for old in seen {
            drop(old.await.map_err(|_| HostError::ShuttingDown)?);
        }
        Ok(())
    }
}

/// Lets MAC addresses age and looks at the workers' load, for as long as the data plane lives.
async fn maintain(inner: Weak<Inner>) {
    let mut interval = tokio::time::interval(MAINTENANCE);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut balancer = Balancer::default();
    let mut tidying: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        interval.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        inner.switch.maintain(inner.now_ms());
        // Takes seconds for the largest tables.
        if tidying.as_ref().is_none_or(tokio::task::JoinHandle::is_finished)
            && inner.switch.is_untidy()
        {
            let switch = Arc::clone(&inner.switch);
            tidying = Some(inner.runtime.spawn_blocking(move || switch.tidy_routers()));
        }
        inner.look(&mut balancer);
    }
}

/// The machine's NUMA nodes, if it has several.
fn topology(root: &Path) -> Option<Topology> {
    match Topology::read(root) {
        Ok(topology) => Some(topology).filter(Topology::has_choice),
        Err(error) => {
            tracing::debug!(root = %root.display(), %error, "cannot read the NUMA nodes");
            None
        }
    }
}

/// Starts a worker's thread.
fn spawn(
    shared: Arc<Shared>,
    switch: Arc<Switch>,
    polling: Profile,
    clock: Clock,
    runtime: Handle,
) -> io::Result<JoinHandle<()>> {
    if let Some(cpu) = shared.cpu {
        let allowed = sys::affinity::allowed_cpus()?;
        if !allowed.contains(&cpu) {
            let why = format!("CPU {cpu} may not be used by this process; allowed: {allowed:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
    }
    let (done, made) = std::sync::mpsc::sync_channel(1);
    let name = format!("worker-{}", shared.id);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        if let Some(cpu) = shared.cpu
            && let Err(error) = sys::affinity::pin_current_thread(cpu)
        {
            tracing::error!(cpu, %error, "cannot pin a worker");
        }
        sys::rseq::leave();
        // Naps are shorter than the 50 us by which the kernel may prolong them otherwise.
        if let Err(error) = set_current_timer_slack(NonZeroU64::new(1)) {
            tracing::warn!(%error, "naps may take longer than they should");
        }
        // Made here, so that its memory is of the node it runs on: what is touched first is.
        let (worker, result) = match Worker::new(shared, &switch, polling, clock, runtime) {
            Ok(worker) => (Some(worker), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // Whoever waits for this waits until it comes.
        let _ = done.send(result);
        if let Some(worker) = worker {
            worker.run();
        }
    })?;
    match made.recv() {
        Ok(made) => made.map(|()| thread),
        Err(_) => Err(io::Error::other("its thread ended at once")),
    }
}
