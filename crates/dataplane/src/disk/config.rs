//! A disk made from its specification, and the device its sessions serve.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use disk::config::{Config, DiscardLimits, Topology, ZeroLimits};
use disk::qos::Limiter;
use disk::request::{ID_BYTES, MAX_RANGES};
use disk::{DiskSpec as DeviceLook, SECTOR};
use parking_lot::Mutex;
use remote::control::{Opened, Transport};
use sys::EventFd;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use vhost_session::socket::Endpoint;
use vhost_session::{ConfigRefused, Device, DeviceFault, DeviceSpec, QueueSetup, SessionEnd};
use virtio_bindings::virtio_config::{VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtqueue::TrackedQueue;

use super::file::Manner;
use super::image::DiskImage;
use super::link::Link;
use super::live::LiveDisk;
use super::queue::LiveQueue;
use super::reach::Reach;
use super::ring::Ring;
use super::{Disk, DiskCommand, DiskId, MAX_QUEUES, QueueCounters, Told};
use crate::error::HostError;
use crate::homes::Workers;
use crate::session::{self, Info, QueueInfo, SessionTask};
use crate::spec::{DiskLimits, DiskSpec};
use crate::status::PortState;
use crate::store::place::Front;

/// Data segments of a request, as QEMU's own device has them.
const SEG_MAX: u32 = 126;
/// A request to a store names no more of them.
const _: () = assert!(SEG_MAX as usize <= remote::MAX_BUFFERS);
/// Most sectors of a range to be cleared: 1 GiB, so that no request takes for ever.
const CLEAR_SECTORS: u32 = (1 << 30) / SECTOR as u32;
/// What guests should align to, in bytes: pages and blocks of nearly everything.
const PHYSICAL_BLOCK: u32 = 4096;

/// Bits of rings that a disk offers. Requests end in any order: `VIRTIO_F_IN_ORDER` is not one.
fn ring_features() -> u64 {
    [VIRTIO_F_VERSION_1, VIRTIO_F_RING_PACKED, VIRTIO_RING_F_INDIRECT_DESC, VIRTIO_RING_F_EVENT_IDX]
        .into_iter()
        .fold(0, |bits, feature| bits | 1 << feature)
}

/// How the disk looks to a guest, if it reads and writes blocks of this size.
fn look(spec: &DiskSpec, block_size: u32) -> DeviceLook {
    let ranges = MAX_RANGES as u32;
    let alignment = PHYSICAL_BLOCK / SECTOR as u32;
    let discard = DiscardLimits { max_sectors: CLEAR_SECTORS, max_ranges: ranges, alignment };
    let zeroes = ZeroLimits { max_sectors: CLEAR_SECTORS, max_ranges: ranges, may_unmap: true };
    let physical = (PHYSICAL_BLOCK / block_size.min(PHYSICAL_BLOCK)).trailing_zeros();
    DeviceLook {
        capacity: spec.size / SECTOR,
        block_size,
        topology: Topology {
            physical_block_exp: physical as u8,
            min_io_size: 1 << physical,
            ..Topology::default()
        },
        queues: spec.queues,
        read_only: spec.read_only,
        size_max: 0,
        seg_max: SEG_MAX,
        discard: Some(discard).filter(|_| !spec.read_only),
        write_zeroes: Some(zeroes).filter(|_| !spec.read_only),
    }
}

/// Bytes that are written together, of an image that is here.
///
/// # Errors
///
/// The file does not say.
pub(crate) fn block_size(image: &DiskImage) -> io::Result<u32> {
    match image {
        DiskImage::File(file) => Ok(Manner::of(file)?.block_size()),
        DiskImage::Image(_) | DiskImage::Store(_) => Ok(SECTOR as u32),
    }
}

/// Limits that begin now.
pub(crate) fn limiter(limits: &DiskLimits, now: u64) -> Option<Limiter> {
    let DiskLimits { operations, bytes } = *limits;
    let limited = operations.is_some() || bytes.is_some();
    limited.then(|| Limiter::new(operations, bytes, now))
}

/// A disk, before its worker has it.
pub(crate) struct Made {
    pub(crate) disk: Arc<Disk>,
    pub(crate) live: Box<LiveDisk>,
    /// Where the worker reports queues that cannot be gone on with.
    pub(crate) faults: Faults,
}

/// Queues that cannot be gone on with, and why.
pub(crate) type Faults = mpsc::UnboundedReceiver<(u16, String)>;

/// Makes a disk. `far`: its image is in a store, which said this of it.
///
/// # Errors
///
/// The image or the specification cannot be a disk.
pub(crate) fn make(
    id: DiskId,
    spec: &DiskSpec,
    worker: u16,
    now: u64,
    far: Option<(Link, &Opened)>,
) -> Result<Made, HostError> {
    if !(1..=MAX_QUEUES).contains(&spec.queues) {
        return Err(HostError::DiskQueues { queues: spec.queues });
    }
    let name = spec.name.clone();
    let (link, opened) = far.unzip();
    let block_size = match opened {
        Some(opened) => Ok(opened.block_size),
        None => block_size(&spec.image),
    };
    let unusable = |source| HostError::DiskImage { disk: name.clone(), source };
    let mut look = look(spec, block_size.map_err(unusable)?);
    look.discard = look.discard.filter(|_| spec.image.can_discard());
    if let Some(opened) = opened {
        look.capacity = opened.size / SECTOR;
        look.discard = look.discard.filter(|_| opened.discard);
    }
    let impossible = |source| HostError::DiskLook { disk: name.clone(), source };
    let mut config = Config::new(look).map_err(impossible)?;
    if CacheMode::of(spec).writethrough() {
        config.keep_writethrough();
    }
    let mut id_bytes = [0; ID_BYTES];
    for (to, from) in id_bytes.iter_mut().zip(spec.name.as_bytes()) {
        *to = *from;
    }
    let (report, faults) = mpsc::unbounded_channel();
    let rules = config.rules();
    let automatic =
        matches!(&spec.image, DiskImage::Store(far) if far.transport == Transport::Auto);
    let disk = Arc::new(Disk {
        id,
        name,
        id_bytes,
        worker,
        counters: (0..spec.queues).map(|_| QueueCounters::default()).collect(),
        config: Mutex::new(config),
        changed: Arc::default(),
        info: Mutex::new(Info::new(spec.queues.into())),
        last_error: Mutex::default(),
        store: Mutex::default(),
        report: Mutex::default(),
        reach: Reach::new(automatic),
        logged: AtomicU64::new(0),
        faults: report,
    });
    let image = spec.image.clone();
    let limiter = limiter(&spec.limits, now);
    let live = Box::new(LiveDisk::new(Arc::clone(&disk), image, rules, limiter, link));
    // A guest that is there already may know another size than the image has by now.
    disk.changed.notify_one();
    Ok(Made { disk, live, faults })
}

/// A disk's socket, open; its session task is not started yet.
pub(crate) struct Door {
    endpoint: Endpoint,
    device: DiskDevice,
    spec: DeviceSpec,
}

impl Door {
    /// Opens the socket.
    ///
    /// # Errors
    ///
    /// The path cannot be bound.
    pub(crate) fn open(
        spec: &DiskSpec,
        disk: &Arc<Disk>,
        workers: &Arc<Workers>,
        faults: Faults,
    ) -> Result<Door, HostError> {
        let endpoint = session::endpoint(&spec.socket, spec.mode)?;
        let cache_mode = CacheMode::of(spec);
        Ok(Door::at(endpoint, spec, disk, workers, faults, cache_mode))
    }

    /// With front ends from here.
    pub(crate) fn at(
        endpoint: Endpoint,
        spec: &DiskSpec,
        disk: &Arc<Disk>,
        workers: &Arc<Workers>,
        faults: Faults,
        cache_mode: CacheMode,
    ) -> Door {
        let features = (ring_features() | disk.config.lock().features()) & !spec.features_off;
        let (disk, workers) = (Arc::clone(disk), Arc::clone(workers));
        let device = DiskDevice { disk, workers, faults, cache_mode };
        let spec = DeviceSpec::block(features, spec.queues, disk::config::CONFIG_SIZE as u16);
        Door { endpoint, device, spec }
    }

    /// Starts serving front ends; the worker has the disk.
    pub(crate) fn spawn(self, runtime: &Handle) -> SessionTask {
        let Self { endpoint, device, spec } = self;
        let name = device.disk.name.clone();
        SessionTask::spawn(name, endpoint, spec, device, runtime)
    }

    /// Starts serving front ends that a store may serve, too.
    pub(crate) fn spawn_front(self, front: Front, runtime: &Handle) -> SessionTask {
        let Self { endpoint, device, spec } = self;
        SessionTask::run(|stop| front.meet(endpoint, spec, device, stop), runtime)
    }
}

/// Where it is kept for a successor whether the guest asked for writethrough.
#[derive(Debug)]
pub(crate) enum CacheMode {
    /// Nowhere.
    Lost,
    /// By a file that is there if it did.
    File(PathBuf),
    /// By who listens.
    Told(watch::Sender<bool>),
}

impl CacheMode {
    /// Of a disk.
    pub(crate) fn of(spec: &DiskSpec) -> CacheMode {
        spec.writethrough.clone().map_or(CacheMode::Lost, CacheMode::File)
    }

    /// Whether it asked for writethrough before.
    pub(crate) fn writethrough(&self) -> bool {
        matches!(self, CacheMode::File(path) if path.exists())
    }

    /// Keeps it.
    pub(crate) fn keep(&self, disk: &Disk, writethrough: bool) {
        let kept = match self {
            CacheMode::Lost => Ok(()),
            CacheMode::File(path) if writethrough => std::fs::write(path, ""),
            CacheMode::File(path) => match std::fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
            CacheMode::Told(tell) => {
                tell.send_if_modified(|told| std::mem::replace(told, writethrough) != writethrough);
                Ok(())
            }
        };
        if let Err(error) = kept {
            let lost = "after a restart of this program writes may be cached that should not be";
            tracing::error!(disk = %disk.name, %error, "the cache mode is not kept: {lost}");
        }
    }
}

/// The device a session drives: it turns starts and stops into commands to the disk's worker.
struct DiskDevice {
    disk: Arc<Disk>,
    workers: Arc<Workers>,
    faults: Faults,
    cache_mode: CacheMode,
}

impl DiskDevice {
    fn command(&self, command: DiskCommand) {
        self.disk.command(&self.workers, command);
    }

    fn info(&self, change: impl FnOnce(&mut Info)) {
        change(&mut self.disk.info.lock());
    }

    /// Notes whether a queue runs, and what that makes of the disk.
    fn running(&self, queue: u16, running: Option<QueueInfo>) {
        self.info(|all| {
            if let Some(slot) = all.queues.get_mut(usize::from(queue)) {
                *slot = running;
            }
            let any = all.queues.iter().any(Option::is_some);
            all.enter(if any { PortState::Running } else { PortState::Connected });
        });
    }

    /// Judges requests as the configuration says by now, and says so once the worker does.
    fn rules(&self, told: Told) {
        // Locked until the worker's mailbox has them, as by `Disk::resize`.
        let config = self.disk.config.lock();
        self.command(DiskCommand::SetRules(config.rules(), told));
    }
}

impl Device for DiskDevice {
    fn connected(&mut self) {
        while self.faults.try_recv().is_ok() {}
        self.info(Info::connected);
    }

    fn features(&mut self, negotiated: u64) {
        self.disk.config.lock().negotiate(negotiated);
        self.rules(Told::Nobody);
        self.info(|info| info.features = negotiated);
    }

    fn start(&mut self, setup: QueueSetup) -> Result<(), DeviceFault> {
        let QueueSetup { index, mem, config, kick, call, enabled, inflight, .. } = setup;
        let region = inflight.as_ref().map(|area| Arc::clone(area.memory()));
        let queue = TrackedQueue::new(&mem, &config, inflight).map_err(|fault| DeviceFault {
            queue: Some(index),
            reason: format!("{}: {fault}", fault.name()),
        })?;
        let info = QueueInfo { size: config.size, packed: config.packed, enabled };
        self.info(|all| all.page_size = Some(mem.page_size()));
        if let Err(error) = self.disk.reach.add(&mem) {
            let reason = format!("memory-unreachable: the fabric refuses it: {error}");
            if !self.disk.reach.gave_up() {
                return Err(DeviceFault { queue: Some(index), reason });
            }
            tracing::warn!(disk = %self.disk.name, "{reason}");
        }
        let again = queue.in_flight();
        tracing::debug!(disk = %self.disk.name, index, size = info.size, again, "queue started");
        let ring = Ring::new(queue, mem, region, kick, call);
        let live = LiveQueue::ring(ring, enabled);
        self.command(DiskCommand::Start(index, Box::new(live)));
        self.running(index, Some(info));
        Ok(())
    }

    async fn stop(&mut self, index: u16) -> u32 {
        let (done, stopped) = oneshot::channel();
        self.command(DiskCommand::Stop(index, done));
        let base = stopped.await.ok();
        tracing::debug!(disk = %self.disk.name, index, base, "queue stopped");
        self.running(index, None);
        base.unwrap_or(0)
    }

    fn set_call(&mut self, index: u16, call: Option<Arc<EventFd>>) {
        self.command(DiskCommand::SetCall(index, call));
    }

    fn set_enabled(&mut self, index: u16, enabled: bool) {
        self.command(DiskCommand::SetEnabled(index, enabled));
        self.info(|info| info.set_enabled(index, enabled));
    }

    fn config(&mut self) -> Vec<u8> {
        self.disk.config.lock().bytes().to_vec()
    }

    async fn write_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ConfigRefused> {
        let written = self.disk.config.lock().write(offset, bytes);
        written.map_err(|refused| ConfigRefused { reason: refused.to_string() })?;
        let (told, obeyed) = oneshot::channel();
        self.rules(Told::Asker(told));
        let writethrough = self.disk.config.lock().asked_writethrough();
        self.cache_mode.keep(&self.disk, writethrough);
        // What the guest asks when it knows that this was written is judged by it.
        let _ = obeyed.await;
        Ok(())
    }

    fn changes(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.disk.changed))
    }

    async fn fault(&mut self) -> DeviceFault {
        match self.faults.recv().await {
            Some((queue, reason)) => DeviceFault { queue: Some(queue), reason },
            None => std::future::pending().await,
        }
    }

    fn disconnected(&mut self, why: &SessionEnd) {
        if self.disk.reach.clear() {
            self.command(DiskCommand::LeaveMemory);
        }
        self.info(|info| info.disconnected(why));
    }
}
