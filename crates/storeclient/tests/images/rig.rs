//! A store with one image in memory, `disk`, and `full`, to which nothing can be written.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dataplane::store_control::{ImageName, Listed, Refused, Why};
use dataplane::{DiskImage, Host, Images, OpenImage, Options, Peer, Serving, serve_store};
use remote::control::{self, ToClient, ToStore};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use storeclient::{RemoteImage, Session, Target, Transport};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use vhost_session::socket::Listener;

use crate::certs::Certificates;

/// Bytes of each image.
pub(crate) const SIZE: u64 = 4 << 20;

/// How many have it open for writing; for reading.
type Users = Arc<Mutex<(u32, u32)>>;

struct Shelf {
    disk: Arc<File>,
    full: Arc<File>,
    users: Users,
}

/// Says that an image is open.
struct Book(Users, bool);

impl Drop for Book {
    fn drop(&mut self) {
        let mut users = self.0.lock().unwrap();
        *(if self.1 { &mut users.0 } else { &mut users.1 }) -= 1;
    }
}

impl Images for Shelf {
    fn allow(&self, _: &ImageName, _: bool, _: &Peer) -> Result<(), Refused> {
        Ok(())
    }

    fn open(&self, image: &ImageName, write: bool, _: &Peer) -> Result<OpenImage, Refused> {
        let refuse = |why, message: &str| Refused { why, message: message.to_owned() };
        let file = match image.as_str() {
            "disk" => &self.disk,
            "full" => &self.full,
            _ => return Err(refuse(Why::NoSuchImage, "there is no such image")),
        };
        let mut users = self.users.lock().unwrap();
        if users.0 > 0 || (write && users.1 > 0) {
            return Err(refuse(Why::InUse, "the image is in use"));
        }
        *(if write { &mut users.0 } else { &mut users.1 }) += 1;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(OpenImage {
            image: DiskImage::File(Arc::new(
                File::options().read(true).write(true).open(path).unwrap(),
            )),
            size: SIZE,
            epoch: 1,
            keep: Box::new(Book(Arc::clone(&self.users), write)),
        })
    }

    fn list(&self, _: &Peer) -> Result<Vec<Listed>, Refused> {
        let one = |name: &str| Listed { image: name.parse().unwrap(), size: SIZE };
        Ok(["disk", "full"].map(one).into())
    }
}

/// A store that runs on a thread of its own.
pub(crate) struct Store {
    pub(crate) disk: Arc<File>,
    pub(crate) address: SocketAddr,
    users: Users,
    stop: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// Where its Unix socket is.
    _dir: TempDir,
}

impl Store {
    pub(crate) fn new() -> Store {
        Store::with(None, true)
    }

    /// With certificates, of clients too; `near`: and a Unix socket.
    pub(crate) fn with(certificates: Option<&Certificates>, near: bool) -> Store {
        let tls = certificates.map(Certificates::server);
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("near");
        let file = |seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = File::from(memfd_create("image", flags).unwrap());
            file.set_len(SIZE).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            Arc::new(file)
        };
        let disk = file(SealFlags::empty());
        let full = file(SealFlags::FUTURE_WRITE);
        let users = Users::default();
        let shelf = Shelf { disk: Arc::clone(&disk), full, users: Arc::clone(&users) };
        let (stop, stopping) = oneshot::channel::<()>();
        let (said, listens) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let options = Options { cpus: None, ..Options::default() };
                let host = Host::start(&options, tokio::runtime::Handle::current()).unwrap();
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                said.send(listener.local_addr().unwrap()).unwrap();
                let end = async { _ = stopping.await };
                let name = "test".to_owned();
                let local = near.then(|| Listener::bind(&socket).unwrap());
                let serving = Serving { listener, local, name, tls };
                serve_store(&host, serving, Arc::new(shelf), end).await.unwrap();
                host.shutdown().await;
            });
        });
        Store {
            disk,
            address: listens.recv().unwrap(),
            users,
            stop: Some((stop, thread)),
            _dir: dir,
        }
    }

    /// Ends the connection of whoever has the image, however it was made.
    pub(crate) fn fence(&self) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let client = "fence".to_owned();
        let hello = ToStore::Hello { version: remote::VERSION, client };
        let open = ToStore::Open {
            image: name("disk"),
            write: false,
            session: control::Session(7),
            fence: true,
            in_place: false,
            fabrics: Vec::new(),
        };
        let mut arrived = Vec::new();
        for message in [hello, open] {
            stream.write_all(&control::framed(&message)).unwrap();
            // Also one who comes too late has ended others.
            while control::take::<ToClient>(&mut arrived).unwrap().is_none() {
                let mut some = [0; 1024];
                let count = stream.read(&mut some).unwrap();
                assert!(count > 0);
                arrived.extend_from_slice(&some[..count]);
            }
        }
    }

    /// How many have an image open for writing, and how many for reading.
    pub(crate) fn users(&self) -> (u32, u32) {
        *self.users.lock().unwrap()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.stop.take() {
            let _ = stop.send(());
            thread.join().unwrap();
        }
    }
}

/// By TCP.
pub(crate) fn session(address: SocketAddr) -> Session {
    session_by(address, Transport::Tcp)
}

pub(crate) fn session_by(address: SocketAddr, transport: Transport) -> Session {
    Session::connect(target(address, transport)).unwrap()
}

pub(crate) fn target(address: SocketAddr, transport: Transport) -> Target {
    Target { transport, ..Target::new(vec![address.to_string()], "test") }
}

/// Whether there is a fabric to be tested.
pub(crate) fn has_fabric() -> bool {
    let there = fabric::providers()
        .iter()
        .any(|one| one.kind == fabric::Kind::Tcp && one.missing.is_none());
    if !there {
        eprintln!("not tested: there is no libfabric");
    }
    there
}

pub(crate) fn open(session: &Session, write: bool) -> RemoteImage {
    session.open(&name("disk"), write).unwrap()
}

pub(crate) fn name(name: &str) -> ImageName {
    name.parse().unwrap()
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
