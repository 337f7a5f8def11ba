//! A port with a device that really runs its rings: every buffer it is given comes back used.

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sys::EventFd;
use tokio::sync::{Notify, mpsc, oneshot};
use vhost_session::socket::{Endpoint, serve};
use vhost_session::{ConfigRefused, Device, DeviceFault, DeviceSpec, QueueSetup, SessionEnd};
use virtqueue::{Chain, Queue, TrackedQueue, Used};

/// How long anything may take before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What the device was told, one line each.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|other| *other == line).count()
    }

    /// Waits until a line has been written that often.
    pub(crate) fn wait_for(&self, line: &str, times: usize) {
        wait(|| self.count(line) >= times, || format!("{line:?} {times}x in {:#?}", self.lines()));
    }
}

/// Waits for something to come true.
pub(crate) fn wait(mut done: impl FnMut() -> bool, what: impl Fn() -> String) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "in vain: {}", what());
        thread::sleep(Duration::from_millis(1));
    }
}

struct Runner {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
    call: Arc<Mutex<Option<Arc<EventFd>>>>,
}

/// The device.
pub(crate) struct Echo {
    log: Log,
    runners: HashMap<u16, Runner>,
    faults: mpsc::UnboundedReceiver<DeviceFault>,
    /// How long a stop takes.
    pub(crate) slow: Duration,
    /// Refuse to start this ring.
    pub(crate) broken: Option<u16>,
    /// Keep requests for ever, if they can be written down.
    pub(crate) hold: bool,
    config: Arc<Mutex<Vec<u8>>>,
    changes: Arc<Notify>,
}

impl Device for Echo {
    fn connected(&mut self) {
        while self.faults.try_recv().is_ok() {}
        self.log.add("connected");
    }

    fn features(&mut self, negotiated: u64) {
        self.log.add(format!("features {negotiated:#x}"));
    }

    fn start(&mut self, mut setup: QueueSetup) -> Result<(), DeviceFault> {
        let index = setup.index;
        let fault = |reason: String| DeviceFault { queue: Some(index), reason };
        if self.broken == Some(index) {
            return Err(fault("this ring is broken".into()));
        }
        let region = setup.inflight.take();
        let queue = match region {
            None => Queue::new(&setup.mem, &setup.config).map(Ring::Plain),
            Some(_) => TrackedQueue::new(&setup.mem, &setup.config, region).map(Ring::Tracked),
        };
        let queue = queue.map_err(|err| fault(err.to_string()))?;
        self.log.add(format!("start {index}"));
        if setup.enabled {
            self.log.add(format!("enabled {index} true"));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let call = Arc::new(Mutex::new(setup.call.clone()));
        let (flag, target) = (Arc::clone(&stop), Arc::clone(&call));
        let hold = self.hold;
        let thread = thread::spawn(move || match queue {
            Ring::Plain(queue) => echo(queue, &setup, &flag, &target),
            Ring::Tracked(queue) => track(queue, &setup, &flag, &target, hold),
        });
        assert!(self.runners.insert(index, Runner { stop, thread, call }).is_none());
        Ok(())
    }

    fn stop(&mut self, queue: u16) -> impl Future<Output = u32> + Send {
        let runner = self.runners.remove(&queue).expect("a queue that runs");
        let (slow, log) = (self.slow, self.log.clone());
        async move {
            tokio::time::sleep(slow).await;
            runner.stop.store(true, Ordering::Relaxed);
            let base = runner.thread.join().expect("the queue's thread");
            log.add(format!("stop {queue}"));
            base
        }
    }

    fn set_call(&mut self, queue: u16, call: Option<Arc<EventFd>>) {
        self.log.add(format!("call {queue} {}", call.is_some()));
        *self.runners[&queue].call.lock().unwrap() = call;
    }

    fn set_enabled(&mut self, queue: u16, enabled: bool) {
        self.log.add(format!("enabled {queue} {enabled}"));
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.log.add(format!("mtu {mtu}"));
    }

    fn config(&mut self) -> Vec<u8> {
        self.config.lock().unwrap().clone()
    }

    async fn write_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ConfigRefused> {
        self.log.add(format!("write config {offset} {bytes:?}"));
        match (offset, bytes) {
            (0, [byte]) => self.config.lock().unwrap()[0] = *byte,
            _ => return Err(ConfigRefused { reason: "only the first byte".into() }),
        }
        Ok(())
    }

    fn changes(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.changes))
    }

    async fn fault(&mut self) -> DeviceFault {
        match self.faults.recv().await {
            Some(fault) => fault,
            None => std::future::pending().await,
        }
    }

    fn disconnected(&mut self, why: &SessionEnd) {
        assert!(self.runners.is_empty(), "every queue is stopped before the end");
        self.log.add(format!("disconnected {}", why.name()));
    }
}

/// Gives every buffer back, polling.
fn echo(
    mut queue: Queue,
    setup: &QueueSetup,
    stop: &AtomicBool,
    call: &Mutex<Option<Arc<EventFd>>>,
) -> u32 {
    let mut chain = Chain::new();
    while !stop.load(Ordering::Relaxed) {
        let mut any = false;
        while matches!(queue.pop(&setup.mem, &mut chain), Ok(true)) {
            queue.complete(&[Used { id: chain.id, descs: chain.descs, len: 0 }]);
            any = true;
        }
        if any {
            queue.publish();
            if queue.should_notify()
                && let Some(call) = &*call.lock().unwrap()
            {
                call.signal().unwrap();
            }
        } else {
            thread::sleep(Duration::from_micros(200));
        }
    }
    queue.base()
}

enum Ring {
    Plain(Queue),
    Tracked(TrackedQueue),
}

/// The same for requests that are written down; or keeps them, as a device does that dies meanwhile.
fn track(
    mut queue: TrackedQueue,
    setup: &QueueSetup,
    stop: &AtomicBool,
    call: &Mutex<Option<Arc<EventFd>>>,
    hold: bool,
) -> u32 {
    let mut chain = Chain::new();
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut any = false;
        while let Ok(Some(ticket)) = queue.pop(&setup.mem, &mut chain) {
            if hold {
                held.push(ticket);
            } else {
                queue.complete(ticket, 0);
                any = true;
            }
        }
        queue.publish();
        if any
            && queue.queue().should_notify()
            && let Some(call) = &*call.lock().unwrap()
        {
            call.signal().unwrap();
        }
        thread::sleep(Duration::from_micros(200));
    }
    queue.queue().base()
}

/// A port that is being served.
pub(crate) struct Port {
    pub(crate) log: Log,
    pub(crate) faults: mpsc::UnboundedSender<DeviceFault>,
    pub(crate) config: Arc<Mutex<Vec<u8>>>,
    pub(crate) changes: Arc<Notify>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    pub(crate) fn server(path: &Path) -> Port {
        Port::serve(Endpoint::server(path).unwrap(), |_| {})
    }

    pub(crate) fn client(path: &Path) -> Port {
        Port::serve(Endpoint::client(path).unwrap(), |_| {})
    }

    /// A disk of two queues with ten bytes of configuration space.
    pub(crate) fn disk(path: &Path, adjust: impl FnOnce(&mut Echo)) -> Port {
        let spec = DeviceSpec::block(1 << 28 | 1 << 29 | 1 << 32 | 1 << 34, 2, 10);
        Port::serve_as(Endpoint::server(path).unwrap(), spec, adjust)
    }

    pub(crate) fn serve(endpoint: Endpoint, adjust: impl FnOnce(&mut Echo)) -> Port {
        Port::serve_as(endpoint, spec(), adjust)
    }

    pub(crate) fn serve_as(
        endpoint: Endpoint,
        spec: DeviceSpec,
        adjust: impl FnOnce(&mut Echo),
    ) -> Port {
        let log = Log::default();
        let (faults, receiver) = mpsc::unbounded_channel();
        let config = Arc::new(Mutex::new((1..=10).collect()));
        let changes = Arc::new(Notify::new());
        let mut device = Echo {
            log: log.clone(),
            runners: HashMap::new(),
            faults: receiver,
            slow: Duration::ZERO,
            broken: None,
            hold: false,
            config: Arc::clone(&config),
            changes: Arc::clone(&changes),
        };
        adjust(&mut device);
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let stop = async move {
                let _ = stopped.await;
            };
            let served = serve(endpoint, spec, device, stop);
            let device = runtime.unwrap().block_on(served).expect("the socket is served");
            assert!(device.runners.is_empty());
        });
        Port { log, faults, config, changes, stop: Some(stop), thread: Some(thread) }
    }

    /// Closes the port and waits for it.
    pub(crate) fn close(mut self) -> Vec<String> {
        self.end();
        self.log.lines()
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the port's task panicked");
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn spec() -> DeviceSpec {
    DeviceSpec::net(1 << 22 | 1 << 28 | 1 << 29 | 1 << 32 | 1 << 34 | 1 << 35, 2)
}

/// Keeps tests that count this process's descriptors from running beside others that open some.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Descriptors of this process.
pub(crate) fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
