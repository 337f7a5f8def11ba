//! Back ends under test: how each is started on one CPU with its images, and ended.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::cell::{Cell, Medium, QUEUES};
use super::gfarm::{self, Gfarm};
use super::load::Random;
use crate::sched;
use crate::sut::hayate::program;
use crate::sut::process::{Process, Rank};
use crate::sut::{SutError, install};

/// What can be measured.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    clap::ValueEnum,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// hayate, this program
    Hayate,
    /// qemu-storage-daemon's vhost-user-blk export, with one I/O thread
    Qsd,
    /// fio with io_uring on the bare file: the limit
    Fio,
    /// qemu-storage-daemon with a disk that does nothing (null-co): what client and rings can do
    Null,
    /// hayate, and its store, which has the guest's memory itself
    StoreShm,
    /// hayate, and its store, which reaches the guest's memory by libfabric's provider tcp
    StoreLibfabric,
    /// hayate, and its store by TCP
    StoreTcp,
    /// hayate, and its store, which has the guest's memory itself and its images in Gfarm
    StoreGfarmShm,
    /// the same by libfabric's provider tcp
    StoreGfarmLibfabric,
    /// the same by TCP
    StoreGfarmTcp,
    /// qemu-storage-daemon, and nbdkit by TCP
    QsdNbd,
    /// hayate image mount, and the store, which has the mount's memory itself
    FuseShm,
    /// hayate image mount, and the store, which reaches the mount's memory by libfabric's provider tcp
    FuseLibfabric,
    /// hayate image mount, and the store by TCP
    FuseTcp,
    /// fio as the client of nbdkit, by TCP: no device and no mount between
    Nbd,
    /// gfarm2fs, and Gfarm's gfmd and gfsd by TCP, behind a cable of their own
    Gfarm,
}

impl System {
    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            System::Hayate => "hayate",
            System::Qsd => "qemu-storage-daemon",
            System::Fio => "fio io_uring, bare file",
            System::Null => "qemu-storage-daemon, null",
            System::StoreShm => "hayate, store by shm",
            System::StoreLibfabric => "hayate, store by libfabric (tcp)",
            System::StoreTcp => "hayate, store by tcp",
            System::StoreGfarmShm => "hayate, store by shm, on Gfarm",
            System::StoreGfarmLibfabric => "hayate, store by libfabric (tcp), on Gfarm",
            System::StoreGfarmTcp => "hayate, store by tcp, on Gfarm",
            System::QsdNbd => "qemu-storage-daemon, nbdkit by tcp",
            System::FuseShm => "hayate image mount, store by shm",
            System::FuseLibfabric => "hayate image mount, store by libfabric (tcp)",
            System::FuseTcp => "hayate image mount, store by tcp",
            System::Gfarm => "gfarm2fs, gfsd by tcp",
            System::Nbd => "fio, nbdkit by tcp",
        }
    }

    /// The Debian packages it comes in.
    #[must_use]
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            System::Hayate | System::StoreShm | System::StoreTcp => &[],
            System::FuseShm | System::FuseTcp => &[],
            System::StoreLibfabric | System::FuseLibfabric => &["libfabric1"],
            System::Gfarm => &["gfmd", "gfsd", "gfarm-client", "gfarm2fs"],
            System::StoreGfarmShm | System::StoreGfarmTcp => &["gfmd", "gfsd", "gfarm-client"],
            System::StoreGfarmLibfabric => &["gfmd", "gfsd", "gfarm-client", "libfabric1"],
            System::Nbd => &["fio", "nbdkit"],
            System::QsdNbd => &["qemu-system-common", "nbdkit"],
            System::Qsd | System::Null => &["qemu-system-common"],
            System::Fio => &["fio"],
        }
    }

    /// Whether it has a place in a cell's table.
    #[must_use]
    pub fn takes_part(self, cell: &Cell) -> bool {
        match self {
            System::Hayate | System::Qsd => !cell.remote,
            System::Fio => cell.job.is_some() && !cell.remote,
            System::Null => cell.job.is_some() && cell.medium == Medium::Tmpfs && !cell.remote,
            System::StoreShm | System::StoreLibfabric | System::StoreTcp | System::QsdNbd => {
                cell.remote
            }
            // A mount is no disk of a guest's.
            _ => cell.remote && !cell.guest,
        }
    }

    /// Whether its image is with another process, and in a cell's table with those of its kind.
    #[must_use]
    pub fn is_remote(self) -> bool {
        !matches!(self, System::Hayate | System::Qsd | System::Fio | System::Null)
    }

    /// How bytes come and go between hayate and its store, if it has one.
    #[must_use]
    pub fn transport(self) -> Option<&'static str> {
        match self {
            System::StoreShm | System::StoreGfarmShm | System::FuseShm => Some("shm"),
            System::StoreLibfabric | System::StoreGfarmLibfabric | System::FuseLibfabric => {
                Some("libfabric")
            }
            System::StoreTcp | System::StoreGfarmTcp | System::FuseTcp => Some("tcp"),
            _ => None,
        }
    }

    /// Whether its image is a copy in a Gfarm of its own.
    #[must_use]
    pub fn on_gfarm(self) -> bool {
        let stores = [System::StoreGfarmShm, System::StoreGfarmLibfabric, System::StoreGfarmTcp];
        self == System::Gfarm || stores.contains(&self)
    }

    /// Its version, in its own words.
    #[must_use]
    pub fn version(self) -> String {
        let hayate = self == System::Hayate || self.transport().is_some();
        let own = hayate.then(|| env!("CARGO_PKG_VERSION").to_owned());
        let fabric = (self.transport() == Some("libfabric")).then(|| {
            let loaded = program().ok().and_then(|program| install::libfabric(&program));
            format!("libfabric {}", loaded.as_deref().unwrap_or("not installed"))
        });
        // Which libfabric is loaded has been said.
        let others = self.packages().iter().copied().filter(|package| *package != "libfabric1");
        let others: Vec<&str> = others.collect();
        let others = (!others.is_empty())
            .then(|| install::version(&others).unwrap_or_else(|| "not installed".to_owned()));
        own.into_iter().chain(fabric).chain(others).collect::<Vec<_>>().join(", ")
    }
}

/// How qemu-storage-daemon reads and writes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// Threads of its own.
    Threads,
    /// io_uring.
    IoUring,
    /// Linux AIO, past the page cache only.
    Native,
}

impl Aio {
    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Aio::Threads => "threads",
            Aio::IoUring => "io_uring",
            Aio::Native => "native",
        }
    }

    /// Those that there are for a medium.
    #[must_use]
    pub fn of(medium: Medium) -> &'static [Aio] {
        match medium {
            Medium::Tmpfs => &[Aio::Threads, Aio::IoUring],
            Medium::Disk => &[Aio::Threads, Aio::IoUring, Aio::Native],
        }
    }
}

/// A directory for images on a medium, and the size of each; gone when dropped.
pub struct Images {
    dir: TempDir,
    medium: Medium,
    size: u64,
}

impl Images {
    /// A new one in a directory of that medium.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn new(parent: &Path, medium: Medium, size: u64) -> Result<Images, SutError> {
        let dir = tempfile::Builder::new().prefix("hayate-bench-").tempdir_in(parent);
        let dir = dir.map_err(SutError::io(format!("a directory in {}", parent.display())))?;
        Ok(Images { dir, medium, size })
    }

    /// Where they are.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its medium.
    #[must_use]
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Bytes of each image.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Raw image `number`; what is not there is made, with data at random in all of it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn file(&self, number: u16) -> Result<PathBuf, SutError> {
        let path = self.dir.path().join(format!("{number}.raw"));
        if !path.exists() {
            write_random(&path, self.size).map_err(SutError::io("an image cannot be written"))?;
        }
        Ok(path)
    }
}

pub(super) fn write_random(path: &Path, size: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let (mut random, mut data) = (Random::new(size), vec![0; 1 << 20]);
    let mut left = size;
    while left > 0 {
        random.fill(&mut data);
        let some = data.get(..left.min(1 << 20) as usize).unwrap_or(&data);
        file.write_all(some)?;
        left -= some.len() as u64;
    }
    file.sync_all()
}

/// A back end that runs.
pub struct Backend {
    /// One vhost-user socket for each disk.
    pub sockets: Vec<PathBuf>,
    /// The raw file behind the first, or the directory that has it; none: it has no file.
    pub file: Option<PathBuf>,
    /// The image in a mount.
    pub path: Option<PathBuf>,
    /// Where its server is asked directly.
    pub uri: Option<String>,
    /// Who asks.
    pub(super) process: Option<Process>,
    /// Who has the image, if that is another process. It ends after the one that asks it.
    pub(super) server: Option<Process>,
    /// What keeps the images of that, or of a mount; it ends last.
    pub(super) gfarm: Option<Gfarm>,
    /// Sockets, logs and what else it needs: removed after it ended.
    pub(super) _dir: TempDir,
}

impl Backend {
    /// Nothing yet but its directory.
    pub(super) fn new(dir: TempDir) -> Backend {
        Backend {
            sockets: Vec::new(),
            file: None,
            path: None,
            uri: None,
            process: None,
            server: None,
            gfarm: None,
            _dir: dir,
        }
    }

    /// The raw file behind the first disk or mount, at the moment.
    #[must_use]
    pub fn behind(&self) -> Option<PathBuf> {
        let file = self.file.as_ref()?;
        if file.is_dir() { gfarm::largest(file) } else { Some(file.clone()) }
    }

    /// Whether it has not ended.
    pub fn alive(&mut self) -> bool {
        let alive = |process: &mut Option<Process>| process.as_mut().is_none_or(Process::alive);
        alive(&mut self.process)
            && alive(&mut self.server)
            && self.gfarm.as_mut().is_none_or(Gfarm::alive)
    }

    /// Its processes.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        let own = self.process.iter().chain(&self.server).map(Process::pid);
        own.chain(self.gfarm.iter().flat_map(Gfarm::pids)).collect()
    }

    /// CPU time of all its threads so far, those of the kernel's io-wq too.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let own = self.process.iter().map(|process| sched::cpu_time(process.pid()));
        own.chain(self.gfarm.iter().map(Gfarm::client_time)).sum()
    }

    /// The same of who has the image, if that is another process.
    #[must_use]
    pub fn server_time(&self) -> Option<Duration> {
        let server = self.server.iter().map(|server| sched::cpu_time(server.pid()));
        let times: Vec<Duration> = server.chain(self.gfarm.iter().map(Gfarm::time)).collect();
        (!times.is_empty()).then(|| times.into_iter().sum())
    }
}

/// Starts qemu-storage-daemon with so many disks on the images, one I/O thread for all; without
/// images, with one disk of `null` bytes that does nothing. It takes no locks: the others have the
/// same files, and their turns are others.
///
/// # Errors
/// It cannot be started, or an image cannot be made.
pub fn qsd(disks: Disks<'_>, aio: Aio, cpu: usize) -> Result<Backend, SutError> {
    let (nodes, file) = match disks {
        Disks::Null(size) => (vec![format!("driver=null-co,size={size},read-zeroes=off")], None),
        Disks::Files(images, count) => {
            let direct = if images.medium().direct() { "on" } else { "off" };
            let node = |number| {
                let (path, aio) = (images.file(number)?, aio.as_str());
                let path = path.display();
                let how = format!("aio={aio},cache.direct={direct},locking=off");
                Ok(format!("driver=file,filename={path},{how}"))
            };
            (Result::from_iter((0..count).map(node))?, Some(images.file(0)?))
        }
    };
    exports(&nodes, file, None, cpu)
}

/// qemu-storage-daemon with these block devices, one I/O thread for all.
fn exports(
    nodes: &[String],
    file: Option<PathBuf>,
    server: Option<Process>,
    cpu: usize,
) -> Result<Backend, SutError> {
    let dir = crate::sut::directory()?;
    let mut command: Vec<String> = ["taskset", "-c"].map(str::to_owned).into();
    command.extend([cpu.to_string(), "qemu-storage-daemon".into()]);
    command.extend(["--object".into(), "iothread,id=io".into()]);
    let mut sockets = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let socket = dir.path().join(format!("{number}.sock"));
        let export = format!(
            "type=vhost-user-blk,id=e{number},node-name=n{number},addr.type=unix,addr.path={},\
             writable=on,num-queues={QUEUES},iothread=io",
            socket.display()
        );
        command.extend(["--blockdev".into(), format!("node-name=n{number},{node}")]);
        command.extend(["--export".into(), export]);
        sockets.push(socket);
    }
    let log = dir.path().join("log");
    let mut process =
        Process::start("qemu-storage-daemon", Rank::Ordinary, &command, &[], &log, None)?;
    process.wait_for(30, || sockets.iter().all(|socket| socket.exists()).then_some(()))?;
    Ok(Backend { sockets, file, process: Some(process), server, ..Backend::new(dir) })
}

/// Starts nbdkit with an image on the same CPU as qemu-storage-daemon, which has it by TCP.
///
/// # Errors
/// One of them cannot be started, or the image cannot be made.
pub fn qsd_nbd(images: &Images, cpu: usize) -> Result<Backend, SutError> {
    let (server, port) = nbdkit(images, cpu)?;
    let node = format!("driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={port}");
    exports(&[node], Some(images.file(0)?), Some(server), cpu)
}

/// Starts nbdkit with an image, for clients to ask.
///
/// # Errors
/// It cannot be started, or the image cannot be made.
pub fn nbd(images: &Images, cpu: usize) -> Result<Backend, SutError> {
    let (process, port) = nbdkit(images, cpu)?;
    Ok(Backend {
        file: Some(images.file(0)?),
        uri: Some(format!("nbd://127.0.0.1:{port}")),
        process: Some(process),
        ..Backend::new(crate::sut::directory()?)
    })
}

fn nbdkit(images: &Images, cpu: usize) -> Result<(Process, u16), SutError> {
    let (file, port) = (images.file(0)?, free_port()?);
    let log = images.dir.path().join("nbdkit.log");
    let [cpu_text, port_text] = [cpu.to_string(), port.to_string()];
    let mut command: Vec<String> =
        ["taskset", "-c", &cpu_text, "nbdkit", "-f"].map(str::to_owned).into();
    command.extend(["-i", "127.0.0.1", "-p", &port_text, "file"].map(str::to_owned));
    command.push(file.display().to_string());
    let mut server = Process::start("nbdkit", Rank::Ordinary, &command, &[], &log, None)?;
    server.wait_for(10, || TcpStream::connect(("127.0.0.1", port)).ok())?;
    Ok((server, port))
}

/// A port nobody listens at.
pub(super) fn free_port() -> Result<u16, SutError> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(bound.map_err(SutError::io("no port is free"))?.port())
}

/// What a back end serves.
#[derive(Clone, Copy)]
pub enum Disks<'a> {
    /// So many of these images.
    Files(&'a Images, u16),
    /// One of so many bytes that does nothing.
    Null(u64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn images_are_full_and_are_found() {
        let parent = tempfile::tempdir().unwrap();
        let images = Images::new(parent.path(), Medium::Disk, (3 << 20) + 512).unwrap();
        let file = images.file(0).unwrap();
        let data = fs::read(&file).unwrap();
        assert_eq!(data.len() as u64, images.size());
        assert!(data.chunks(512).all(|sector| sector.iter().any(|byte| *byte != 0)));
        assert_eq!(images.file(0).unwrap(), file);
    }
}
