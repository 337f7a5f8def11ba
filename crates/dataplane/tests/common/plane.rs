//! A data plane under test.

use std::panic;
use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dataplane::{
    Direction, DropReason, Host, Moderation, NetworkId, NetworkSpec, Options, Policy, PortId,
    PortKind, PortSpec, PortState, PortStatus, SocketMode, Traffic, VhostSpec, VlanMode,
    WorkerState, WorkerStatus,
};
use pace::Vigil;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::vm::{Guest, Vm};
use super::wait;

/// Panics of threads that belong to the data plane.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics of workers and of the control runtime from now on.
fn watch_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let thread = thread::current();
            if thread.name().is_some_and(|name| name.starts_with("worker-") || name == "control") {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

pub(crate) fn panics() -> usize {
    PANICS.load(Ordering::SeqCst)
}

/// A host with one network, its control runtime on a thread of its own.
pub(crate) struct Plane {
    pub(crate) host: Host,
    pub(crate) network: NetworkId,
    /// Another network, without ports.
    aside: NetworkId,
    runtime: Handle,
    dir: TempDir,
    control: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Plane {
    /// With workers that are not pinned, of which tests use the first unless they say otherwise.
    pub(crate) fn new() -> Plane {
        Plane::with(&Options { cpus: None, ..Options::default() })
    }

    /// With so many workers, on as many CPUs as there are.
    pub(crate) fn with_workers(count: usize) -> Plane {
        let allowed = sys::affinity::allowed_cpus().unwrap();
        let cpus = allowed.iter().copied().cycle().take(count).collect();
        Plane::with(&Options { cpus: Some(cpus), ..Options::default() })
    }

    /// With workers that go on polling for ever.
    pub(crate) fn polling() -> Plane {
        Plane::with(&Options { polling: pace::Profile::Always, ..Options::default() })
    }

    pub(crate) fn with(options: &Options) -> Plane {
        watch_for_panics();
        let (runtime, control) = control_thread();
        let host = Host::start(options, runtime.clone()).unwrap();
        let network = host.add_network(&network("test")).unwrap();
        let aside = host.add_network(&self::network("aside")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        Plane { host, network, aside, runtime, dir, control: Some(control) }
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Runs something on the control thread.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(future));
    }

    /// Where the socket of a port is.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.sock"))
    }

    /// A server port with nothing special about it.
    pub(crate) fn port(&self, name: &str) -> PortId {
        self.port_with(name, |_, _| {})
    }

    /// A port after a change of what an ordinary one would be.
    pub(crate) fn port_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut PortSpec, &mut VhostSpec),
    ) -> PortId {
        let mut vhost = VhostSpec {
            socket: self.socket(name),
            mode: SocketMode::Server,
            queues: 4,
            features_off: 0,
            moderation: Moderation::default(),
            rings: None,
        };
        let mut spec = PortSpec {
            name: name.into(),
            network: self.network,
            vlan: VlanMode::None,
            mac_limit: None,
            policy: Policy::default(),
            mtu: None,
            worker: Some(0),
            kind: PortKind::Vhost(vhost.clone()),
        };
        change(&mut spec, &mut vhost);
        spec.kind = PortKind::Vhost(vhost);
        self.run(self.host.add_port(spec)).unwrap()
    }

    /// Connects a VM to a server port; returns once frames can pass both ways.
    pub(crate) fn connect(&self, name: &str, guest: &Guest) -> Vm {
        let vm = Vm::connect(&self.socket(name), guest);
        self.barrier();
        vm
    }

    /// A port and a VM on it.
    pub(crate) fn vm(&self, name: &str, guest: &Guest) -> (PortId, Vm) {
        let port = self.port(name);
        (port, self.connect(name, guest))
    }

    /// VMs on ports in these modes: `vm0`, `vm1` and so on.
    pub(crate) fn vms(&self, modes: &[VlanMode], guest: &Guest) -> (Vec<PortId>, Vec<Vm>) {
        let vm = |(n, mode): (usize, &VlanMode)| {
            let name = format!("vm{n}");
            let port = self.port_with(&name, |spec, _| spec.vlan = mode.clone());
            (port, self.connect(&name, guest))
        };
        modes.iter().enumerate().map(vm).unzip()
    }

    /// Returns once every worker has done what it was told before: a new port is known to all of
    /// them when it is made. It is of another network and connects to nobody.
    pub(crate) fn barrier(&self) {
        let port = self.port_with("nobody", |spec, vhost| {
            spec.network = self.aside;
            vhost.mode = SocketMode::Client;
        });
        self.run(self.host.remove_port(port)).unwrap();
    }

    pub(crate) fn status(&self, port: PortId) -> PortStatus {
        self.host.port_status(port).unwrap()
    }

    pub(crate) fn wait_state(&self, port: PortId, state: &PortState) {
        let what = || format!("{state:?} of {:#?}", self.status(port));
        wait(what, || self.status(port).state == *state);
    }

    /// Frames a port has dropped for this reason.
    pub(crate) fn dropped(&self, port: PortId, reason: DropReason) -> u64 {
        let drops = self.status(port).drops;
        drops.iter().find(|(other, _)| *other == reason).map_or(0, |(_, frames)| *frames)
    }

    /// Interrupts sent by a port's queues of one direction.
    pub(crate) fn interrupts(&self, port: PortId, dir: Direction) -> u64 {
        let queues = self.status(port).queues;
        queues.iter().filter(|queue| queue.dir == dir).map(|queue| queue.interrupts).sum()
    }

    /// Waits until all workers sleep: what they had to do is done, and they ask for kicks.
    pub(crate) fn wait_asleep(&self) {
        let asleep = |worker: &WorkerStatus| worker.state == WorkerState::Asleep;
        let workers = || self.host.workers();
        wait(|| format!("sleep of {:#?}", workers()), || workers().iter().all(asleep));
    }

    /// Waits until all workers sleep and do not look up any more, and sees that they do nothing at all for so
    /// long. That is no limit for anything: what the idle have done by then is nothing.
    pub(crate) fn assert_idle(&self, long: Duration) {
        self.wait_asleep();
        let sleeps = || self.host.workers().iter().map(|worker| worker.sleeps).collect::<Vec<_>>();
        wait(
            || format!("the end of sleeping: {:?}", sleeps()),
            || {
                let before = sleeps();
                thread::sleep(Duration::from_nanos(2 * Vigil::REST_MAX));
                before == sleeps()
            },
        );
        let before = self.host.workers();
        thread::sleep(long);
        for (before, now) in before.iter().zip(self.host.workers()) {
            assert_eq!((before.polls, before.sleeps), (now.polls, now.sleeps), "{now:?}");
            assert_eq!(now.state, WorkerState::Asleep);
            assert!(now.sleeps > 0);
        }
    }

    /// Waits until these ports have taken `frames` from their guests and all of them are
    /// accounted for.
    pub(crate) fn settle(&self, ports: &[PortId], frames: u64) -> Balance {
        let balance = || Balance::of(ports.iter().map(|port| self.status(*port)));
        let settled = |balance: &Balance| balance.from.frames == frames && balance.holds();
        wait(|| format!("{frames} frames in {:#?}", balance()), || settled(&balance()));
        balance()
    }

    /// Ends everything; no thread of the data plane has panicked.
    pub(crate) fn end(mut self) {
        self.shut_down();
        assert_eq!(panics(), 0, "a thread of the data plane panicked");
    }

    fn shut_down(&mut self) {
        if let Some((stop, thread)) = self.control.take() {
            let (host, runtime) = (self.host.clone(), self.runtime.clone());
            let end = thread::spawn(move || runtime.block_on(host.shutdown()));
            wait(|| "the end of the workers".into(), || end.is_finished());
            end.join().unwrap();
            let _ = stop.send(());
            thread.join().unwrap();
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        self.shut_down();
    }
}

/// A network with nothing special about it.
pub(crate) fn network(name: &str) -> NetworkSpec {
    NetworkSpec { name: name.into(), mac_limit: 8192, mac_age: Duration::from_secs(300) }
}

fn control_thread() -> (Handle, (oneshot::Sender<()>, JoinHandle<()>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel();
    let control = thread::Builder::new().name("control".into());
    let thread = control.spawn(move || {
        let _ = runtime.block_on(stopped);
    });
    (handle, (stop, thread.unwrap()))
}

/// What came in and what became of it, over several ports.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    pub(crate) from: Traffic,
    pub(crate) to: Traffic,
    pub(crate) flood_copies: u64,
    pub(crate) drops: Vec<(DropReason, u64)>,
}

impl Balance {
    pub(crate) fn of(ports: impl Iterator<Item = PortStatus>) -> Balance {
        let mut sum = Balance::default();
        for port in ports {
            add(&mut sum.from, &port.from_port);
            add(&mut sum.to, &port.to_port);
            sum.flood_copies += port.flood_copies;
            sum.drops.extend(port.drops);
        }
        sum
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.drops.iter().map(|(_, frames)| frames).sum()
    }

    /// The formula of [`PortStatus::flood_copies`].
    pub(crate) fn holds(&self) -> bool {
        let Balance { from, to, flood_copies, .. } = self;
        (from.frames + flood_copies + to.segments).checked_sub(to.segmented)
            == Some(to.frames + self.dropped())
    }
}

fn add(sum: &mut Traffic, more: &Traffic) {
    sum.frames += more.frames;
    sum.bytes += more.bytes;
    sum.gso_frames += more.gso_frames;
    sum.csum_completed += more.csum_completed;
    sum.segmented += more.segmented;
    sum.segments += more.segments;
}
