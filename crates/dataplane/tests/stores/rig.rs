//! A store, and disks whose images are there.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use dataplane::store_control::{ImageName, Listed, Refused, Transport, Why};
use dataplane::{
    DiskId, DiskImage, DiskLimits, DiskSpec, Host, HostError, Images, Listener, OpenImage, Peer,
    Serving, SocketMode, StoreTarget, serve_store,
};
use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use testkit::block::{BlockDriver, Options};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::common::plane::Plane;

/// Bytes of each image.
pub(crate) const SIZE: u64 = 4 << 20;

/// One image, `disk`, of which there may be one writer, or any number of readers.
pub(crate) struct Shelf {
    pub(crate) file: File,
    direct: bool,
    /// Open for writing; for reading.
    open: Mutex<(u32, u32)>,
    epoch: AtomicU64,
    /// The image `stuck` is not opened as long as this is held.
    pub(crate) stuck: Mutex<()>,
    /// It is not closed before somebody has been refused.
    pub(crate) slow: AtomicBool,
    /// How often somebody was, because of others.
    refused: AtomicU64,
}

/// Says that an image is open.
struct Book(Arc<Shelf>, bool);

impl Drop for Book {
    fn drop(&mut self) {
        while self.0.slow.load(SeqCst) && self.0.refused.load(SeqCst) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut open = self.0.open.lock().unwrap();
        *(if self.1 { &mut open.0 } else { &mut open.1 }) -= 1;
    }
}

impl Shelf {
    fn new(direct: bool) -> Arc<Shelf> {
        let file = if direct {
            tempfile::tempfile_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
        } else {
            File::from(
                memfd_create("image", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap(),
            )
        };
        file.set_len(SIZE).unwrap();
        Arc::new(Shelf {
            file,
            direct,
            open: Mutex::default(),
            epoch: AtomicU64::new(0),
            stuck: Mutex::default(),
            slow: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        })
    }

    pub(crate) fn writers(&self) -> u32 {
        self.open.lock().unwrap().0
    }
}

/// The same for the store's side.
struct Shelves(Arc<Shelf>);

impl Images for Shelves {
    fn allow(&self, _: &ImageName, _: bool, client: &Peer) -> Result<(), Refused> {
        let message = "you may not".to_owned();
        let may = !client.name.starts_with("banned");
        if may { Ok(()) } else { Err(Refused { why: Why::Forbidden, message }) }
    }

    fn open(&self, image: &ImageName, write: bool, _: &Peer) -> Result<OpenImage, Refused> {
        let refuse = |why, message: &str| Refused { why, message: message.to_owned() };
        if image.as_str() == "stuck" {
            drop(self.0.stuck.lock().unwrap());
        }
        if image.as_str() != "disk" {
            return Err(refuse(Why::NoSuchImage, "there is no such image"));
        }
        let shelf = &self.0;
        {
            let mut open = shelf.open.lock().unwrap();
            if open.0 > 0 || (write && open.1 > 0) {
                shelf.refused.fetch_add(1, SeqCst);
                return Err(refuse(Why::InUse, "the image is in use"));
            }
            *(if write { &mut open.0 } else { &mut open.1 }) += 1;
        }
        let epoch = shelf.epoch.fetch_add(u64::from(write), SeqCst) + u64::from(write);
        let flags = if shelf.direct { OFlags::DIRECT } else { OFlags::empty() };
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&shelf.file));
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags.bits() as i32);
        Ok(OpenImage {
            image: DiskImage::File(Arc::new(options.open(path).unwrap())),
            size: SIZE,
            epoch,
            keep: Box::new(Book(Arc::clone(shelf), write)),
        })
    }

    fn list(&self, _: &Peer) -> Result<Vec<Listed>, Refused> {
        Ok(vec![Listed { image: "disk".parse().unwrap(), size: SIZE }])
    }
}

/// A store that runs.
pub(crate) struct Store {
    pub(crate) plane: Plane,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    stopped: Option<oneshot::Receiver<()>>,
}

impl Store {
    pub(crate) fn new(direct: bool) -> Store {
        Store::of(Shelf::new(direct))
    }

    /// Another process, as it were, with the same images.
    pub(crate) fn of(shelf: Arc<Shelf>) -> Store {
        Store::on(Plane::new(), shelf)
    }

    /// One whose worker goes on polling for ever.
    pub(crate) fn polling() -> Store {
        Store::on(Plane::polling(), Shelf::new(false))
    }

    fn on(plane: Plane, shelf: Arc<Shelf>) -> Store {
        let listener = plane.run(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let local = Listener::bind(&plane.socket("store")).unwrap();
        let (stop, stopping) = oneshot::channel::<()>();
        let (done, stopped) = oneshot::channel();
        let (host, images) = (plane.host.clone(), Arc::new(Shelves(Arc::clone(&shelf))));
        plane.spawn(async move {
            let end = async { _ = stopping.await };
            let serving =
                Serving { listener, local: Some(local), name: "test".to_owned(), tls: None };
            serve_store(&host, serving, images, end).await.unwrap();
            let _ = done.send(());
        });
        Store { plane, shelf, address, stop: Some(stop), stopped: Some(stopped) }
    }

    /// Ends it, as a command would.
    pub(crate) fn stop(&mut self) {
        if let (Some(stop), Some(stopped)) = (self.stop.take(), self.stopped.take()) {
            let _ = stop.send(());
            self.plane.run(stopped).unwrap();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) fn target(address: SocketAddr, session: u128) -> StoreTarget {
    StoreTarget {
        addresses: vec![address.to_string()],
        image: "disk".parse().unwrap(),
        session,
        client: "test".to_owned(),
        write: true,
        patience: None,
        transport: Transport::Tcp,
        tls: None,
    }
}

/// A disk with its image in a store.
pub(crate) fn add(plane: &Plane, name: &str, target: StoreTarget) -> Result<DiskId, HostError> {
    plane.run(plane.host.add_disk(&spec(plane, name, target)))
}

/// The same before it is made.
pub(crate) fn spec(plane: &Plane, name: &str, target: StoreTarget) -> DiskSpec {
    let read_only = !target.write;
    DiskSpec {
        name: name.into(),
        socket: plane.socket(name),
        mode: SocketMode::Server,
        queues: 4,
        image: DiskImage::Store(Arc::new(target)),
        size: 0,
        read_only,
        writethrough: None,
        limits: DiskLimits::default(),
        features_off: 0,
        worker: Some(0),
    }
}

pub(crate) fn connect(plane: &Plane, name: &str, packed: bool) -> BlockDriver {
    BlockDriver::connect(plane.socket(name), &Options::new(packed)).unwrap()
}

/// Why the store of a disk is away, if it is.
pub(crate) fn away(host: &Host, id: DiskId) -> Option<String> {
    host.disk_status(id).unwrap().store.unwrap().away
}

/// Connections so far.
pub(crate) fn connections(host: &Host, id: DiskId) -> u64 {
    host.disk_status(id).unwrap().store.map_or(0, |store| store.connections)
}
