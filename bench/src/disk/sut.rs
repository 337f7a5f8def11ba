//! Back ends under test: how each is started on one CPU with its images, and ended.

use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::cell::{Cell, Medium, QUEUES};
use super::load::Random;
use crate::sched;
use crate::sut::process::{Process, Rank, run};
use crate::sut::{SutError, hayate, install};

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
            System::FuseShm
            | System::FuseLibfabric
            | System::FuseTcp
            | System::Gfarm
            | System::Nbd => cell.remote,
        }
    }

    /// Whether its image is with another process, and in a cell's table with those of its kind.
    #[must_use]
    pub fn is_remote(self) -> bool {
        !matches!(self, System::Hayate | System::Qsd | System::Fio | System::Null)
    }

    /// Its version, in its own words.
    #[must_use]
    pub fn version(self) -> String {
        match self {
            System::Hayate | System::StoreShm | System::StoreLibfabric | System::StoreTcp => {
                env!("CARGO_PKG_VERSION").to_owned()
            }
            System::FuseShm | System::FuseLibfabric | System::FuseTcp => {
                env!("CARGO_PKG_VERSION").to_owned()
            }
            other => {
                install::version(other.packages()).unwrap_or_else(|| "not installed".to_owned())
            }
        }
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

fn write_random(path: &Path, size: u64) -> std::io::Result<()> {
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
    pub(super) process: Process,
    /// Who has the image, if that is another process. It ends after the one that asks it.
    pub(super) server: Option<Process>,
    /// Of the descendants of the process: who asks, and who has the image. None: see above.
    pub(super) roles: Option<[&'static [&'static str]; 2]>,
    /// Sockets, logs and what else it needs: removed after it ended.
    pub(super) _dir: TempDir,
}

impl Backend {
    /// The raw file behind the first disk or mount, at the moment.
    #[must_use]
    pub fn behind(&self) -> Option<PathBuf> {
        let file = self.file.as_ref()?;
        if file.is_dir() { super::mounts::largest(file) } else { Some(file.clone()) }
    }

    /// Whether it has not ended.
    pub fn alive(&mut self) -> bool {
        self.process.alive() && self.server.as_mut().is_none_or(Process::alive)
    }

    /// Its processes.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        let server = self.server.as_ref().map(Process::pid);
        let roles = self.roles.into_iter().flatten();
        let more = roles.flat_map(|names| sched::descendants(self.process.pid(), names));
        std::iter::once(self.process.pid()).chain(server).chain(more).collect()
    }

    fn time_of(&self, names: &[&str]) -> Duration {
        let all = sched::descendants(self.process.pid(), names);
        all.into_iter().map(sched::cpu_time).sum()
    }

    /// CPU time of all its threads so far, those of the kernel's io-wq too.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        match self.roles {
            None => sched::cpu_time(self.process.pid()),
            Some([asks, _]) => self.time_of(asks),
        }
    }

    /// The same of who has the image, if that is another process.
    #[must_use]
    pub fn server_time(&self) -> Option<Duration> {
        match self.roles {
            None => self.server.as_ref().map(|server| sched::cpu_time(server.pid())),
            Some([_, has]) => Some(self.time_of(has)),
        }
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
    Ok(Backend { sockets, file, path: None, uri: None, process, server, roles: None, _dir: dir })
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
        sockets: Vec::new(),
        file: Some(images.file(0)?),
        path: None,
        uri: Some(format!("nbd://127.0.0.1:{port}")),
        process,
        server: None,
        roles: None,
        _dir: crate::sut::directory()?,
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

/// Starts a daemon with one worker and so many disks, whose images are the same files as the others'
/// (another copy may be placed better or worse in memory, by as much as systems differ).
///
/// # Errors
/// This hayate has no disks, or it cannot be started.
pub fn hayate(images: &Images, count: u16, cpu: usize) -> Result<Backend, SutError> {
    hayate_with(images, count, None, cpu)
}

/// The same with a store on the same CPU that has the image of the one disk.
///
/// # Errors
/// As [`hayate`].
pub fn hayate_store(images: &Images, transport: &str, cpu: usize) -> Result<Backend, SutError> {
    hayate_with(images, 1, Some(transport), cpu)
}

fn hayate_with(
    images: &Images,
    count: u16,
    transport: Option<&str>,
    cpu: usize,
) -> Result<Backend, SutError> {
    let program = hayate::program()?;
    if run(&[&program, "disk", "--help"], &[]).is_err() {
        return Err(SutError::Lacks("this hayate has no `disk`"));
    }
    // Its images are below its run directory: on the medium.
    let dir = tempfile::Builder::new().prefix("hayate-").tempdir_in(images.dir.path());
    let dir = dir.map_err(SutError::io("a directory beside the images"))?;
    let (run_dir, cpu) = (dir.path().join("run"), cpu.to_string());
    let run_text = run_dir.display().to_string();
    let command = [&program, "daemon", "--run-dir", &run_text, "--cpus", &cpu, "--log", "warn"];
    let command = command.map(str::to_owned);
    let log = dir.path().join("log");
    let mut process = Process::start("hayate daemon", Rank::Ordinary, &command, &[], &log, None)?;
    let command = |words: &[&str]| {
        let start = [program.as_str(), "--run-dir", &run_text];
        run(&[start.as_slice(), words].concat(), &[])
    };
    process.wait_for(20, || command(&["disk", "list"]).ok())?;
    let (size, queues) = (format!("{}M", images.size() >> 20), QUEUES.to_string());
    // A store keeps what it reads in its page cache.
    let direct = images.medium().direct() && transport.is_none();
    let cache = if direct { "direct" } else { "host" };
    let (mut server, mut place) = (None, String::new());
    if transport.is_some() {
        let (store, at) =
            store(&program, &run_dir.join("state/images"), dir.path(), (&cpu, cache))?;
        server = Some(store);
        place = format!("store://{at}/");
    }
    let mut sockets = Vec::new();
    for number in 0..count {
        let name = format!("d{number}");
        let socket = dir.path().join(format!("{number}.sock"));
        command(&["image", "create", &name, "--size", &size, "--format", "raw"])?;
        let image = run_dir.join("state/images").join(&name).join("image.raw");
        let shared = images.file(number)?;
        let same = fs::remove_file(&image).and_then(|()| fs::hard_link(&shared, &image));
        same.map_err(SutError::io(format!("{} cannot be linked", image.display())))?;
        let socket_text = socket.display().to_string();
        let at = ["--socket", &socket_text, "--queues", &queues];
        let image = format!("{place}{name}");
        let how = transport.map_or(["--cache", cache], |transport| ["--transport", transport]);
        let add = ["disk", "add", &name, "--image", &image];
        let add: Vec<&str> = add.into_iter().chain(at).chain(how).collect();
        command(&add)?;
        sockets.push(socket);
    }
    process.wait_ready("worker-0", &sockets)?;
    let file = Some(images.file(0)?);
    Ok(Backend { sockets, file, path: None, uri: None, process, server, roles: None, _dir: dir })
}

/// Starts a store with the images of a directory; it, and where it is.
pub(super) fn store(
    program: &str,
    images: &Path,
    dir: &Path,
    (cpu, cache): (&str, &str),
) -> Result<(Process, String), SutError> {
    let (at, log) = (format!("127.0.0.1:{}", free_port()?), dir.join("store.log"));
    let images = images.display().to_string();
    let start = [program, "store", "serve", "--dir", &images, "--listen", &at];
    let how = ["--cpus", cpu, "--cache", cache, "--log", "warn"];
    let start: Vec<String> = start.iter().chain(&how).map(|&word| word.to_owned()).collect();
    let mut store = Process::start("hayate store", Rank::Ordinary, &start, &[], &log, None)?;
    store.wait_for(10, || TcpStream::connect(&at).ok())?;
    Ok((store, at))
}

#[cfg(test)]
mod tests {
    use super::*;

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
