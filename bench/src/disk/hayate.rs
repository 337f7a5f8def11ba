//! hayate under test: a daemon with disks, and its store, whose images are files or in Gfarm.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::cell::QUEUES;
use super::gfarm::Gfarm;
use super::sut::{Backend, Images, free_port};
use crate::sut::process::{Process, Rank, run};
use crate::sut::{SutError, hayate};

/// Where a daemon has its images, below its run directory.
const IMAGES: &str = "state/images";

/// Where hayate's programs run, all on one CPU: a directory on the images' medium, and what starts them there.
pub(super) struct Host {
    pub(super) program: String,
    pub(super) dir: TempDir,
    run_dir: String,
    pub(super) cpu: String,
    under: Vec<String>,
}

impl Host {
    /// With nothing running yet.
    ///
    /// # Errors
    /// This hayate has no disks, or nothing can be written beside the images.
    pub(super) fn new(images: &Images, cpu: usize) -> Result<Host, SutError> {
        let program = hayate::program()?;
        if run(&[&program, "disk", "--help"], &[]).is_err() {
            return Err(SutError::Lacks("this hayate has no `disk`"));
        }
        let dir = tempfile::Builder::new().prefix("hayate-").tempdir_in(images.dir());
        let dir = dir.map_err(SutError::io("a directory beside the images"))?;
        let run_dir = dir.path().join("run").display().to_string();
        Ok(Host { program, dir, run_dir, cpu: cpu.to_string(), under: Vec::new() })
    }

    /// Starts one of its programs, whose output goes to a file of that name.
    pub(super) fn start(&self, name: &str, words: &[&str]) -> Result<Process, SutError> {
        let own = words.iter().map(|&word| word.to_owned());
        let command: Vec<String> = self.under.iter().cloned().chain(own).collect();
        let log = self.dir.path().join(format!("{name}.log"));
        Process::start(name, Rank::Ordinary, &command, &[], &log, None)
    }

    /// Starts a daemon with one worker.
    pub(super) fn daemon(&self) -> Result<Process, SutError> {
        let start = [&self.program, "daemon", "--run-dir", &self.run_dir, "--cpus", &self.cpu];
        let mut process =
            self.start("hayate daemon", &[&start[..], &["--log", "warn"]].concat())?;
        process.wait_for(20, || self.command(&["disk", "list"]).ok())?;
        Ok(process)
    }

    /// A command to the daemon.
    fn command(&self, words: &[&str]) -> Result<String, SutError> {
        run(&[&[self.program.as_str(), "--run-dir", &self.run_dir], words].concat(), &[])
    }

    /// What tells a store that its images are the daemon's: it keeps what it reads in its page cache.
    pub(super) fn place(&self) -> [String; 4] {
        let dir = format!("{}/{IMAGES}", self.run_dir);
        ["--dir".to_owned(), dir, "--cache".to_owned(), "host".to_owned()]
    }

    /// Has the daemon make an image, whose file is then the same as the others': another copy may be placed
    /// better or worse in memory, by as much as systems differ.
    pub(super) fn image(&self, images: &Images, number: u16) -> Result<String, SutError> {
        let (name, size) = (format!("d{number}"), format!("{}M", images.size() >> 20));
        self.command(&["image", "create", &name, "--size", &size, "--format", "raw"])?;
        let image = Path::new(&self.run_dir).join(IMAGES).join(&name).join("image.raw");
        let shared = images.file(number)?;
        let same = fs::remove_file(&image).and_then(|()| fs::hard_link(&shared, &image));
        same.map_err(SutError::io(format!("{} cannot be linked", image.display())))?;
        Ok(name)
    }

    /// Starts a store with the images of a place; it, and where it is.
    pub(super) fn store(&self, place: &[String]) -> Result<(Process, String), SutError> {
        let port = free_port()?;
        let (at, run_dir) = (format!("127.0.0.1:{port}"), format!("{}-store", self.run_dir));
        let start = [&self.program, "store", "serve", "--listen", &at, "--run-dir", &run_dir];
        let how = ["--cpus", &self.cpu, "--log", "warn"];
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        let mut store = self.start("hayate store", &[&start[..], &place, &how].concat())?;
        let pid = store.pid();
        store.wait_for(20, || listens(pid, port).then_some(()))?;
        Ok((store, at))
    }

    /// Serves an image as a disk; its socket.
    fn disk(&self, name: &str, image: &str, how: [&str; 2]) -> Result<PathBuf, SutError> {
        let socket = self.dir.path().join(format!("{name}.sock"));
        let (at, queues) = (socket.display().to_string(), QUEUES.to_string());
        let add = ["disk", "add", name, "--image", image, "--socket", &at, "--queues", &queues];
        self.command(&[&add[..], &how].concat())?;
        Ok(socket)
    }

    /// The back end, with everything that was started.
    fn backend(
        self,
        mut process: Process,
        server: Option<Process>,
        sockets: Vec<PathBuf>,
    ) -> Result<Backend, SutError> {
        process.wait_ready("worker-0", &sockets)?;
        Ok(Backend { sockets, process: Some(process), server, ..Backend::new(self.dir) })
    }
}

/// Starts a daemon with one worker and so many disks.
///
/// # Errors
/// This hayate has no disks, or it cannot be started.
pub(super) fn daemon(images: &Images, count: u16, cpu: usize) -> Result<Backend, SutError> {
    let host = Host::new(images, cpu)?;
    let process = host.daemon()?;
    let cache = if images.medium().direct() { "direct" } else { "host" };
    let disk = |number| {
        let name = host.image(images, number)?;
        host.disk(&name, &name, ["--cache", cache])
    };
    let sockets = (0..count).map(disk).collect::<Result<_, _>>()?;
    let file = Some(images.file(0)?);
    Ok(Backend { file, ..host.backend(process, None, sockets)? })
}

/// The same with one disk, and a store on the same CPU that has its image: a file, or in a Gfarm of its own.
///
/// # Errors
/// As [`daemon`].
pub(super) fn store(
    images: &Images,
    transport: &str,
    on_gfarm: bool,
    cpu: usize,
) -> Result<Backend, SutError> {
    let gfarm = on_gfarm.then(|| Gfarm::start(images, false, cpu)).transpose()?;
    let mut host = Host::new(images, cpu)?;
    if let Some(gfarm) = &gfarm {
        host.under = gfarm.client_host(cpu)?;
    }
    let process = host.daemon()?;
    let (place, file) = match &gfarm {
        Some(gfarm) => (gfarm.place().to_vec(), gfarm.spool()),
        None => {
            host.image(images, 0)?;
            (host.place().to_vec(), images.file(0)?)
        }
    };
    let (server, at) = host.store(&place)?;
    let socket = host.disk("d0", &format!("store://{at}/d0"), ["--transport", transport])?;
    let backend = host.backend(process, Some(server), vec![socket])?;
    Ok(Backend { file: Some(file), gfarm, ..backend })
}

/// Whether a process listens at a port of its host.
fn listens(pid: u32, port: u16) -> bool {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    // Its number, the address, whom it is connected with, and the state, of which 0A is to listen.
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let own = fields.next().is_some_and(|own| own.ends_with(&format!(":{port:04X}")));
        own && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn who_listens_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(std::process::id(), port));
        drop(listener);
        assert!(!listens(std::process::id(), port));
    }
}
