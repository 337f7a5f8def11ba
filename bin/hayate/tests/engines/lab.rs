//! A host with an engine, a store in front of it, and a daemon with a guest: all in one network namespace.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Daemon, HAYATE, Namespace, until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use tempfile::TempDir;
use testkit::block::{BlockDriver, BlockError, Options, Request, Writer, status};
use testkit::frontend::Frontend;

/// Far longer than anything takes; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where the store listens.
pub(crate) const LISTEN: &str = "127.0.0.1:4420";
/// Sectors that a guest writes again and again.
const SECTORS: u64 = 1024;

/// A program that runs until it is dropped, with those it has started.
pub(crate) struct Running(pub(crate) Child, bool);

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// To those it has started, too.
    pub(crate) fn signal_all(&self, signal: Signal) {
        kill_process_group(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32).unwrap()
    }

    /// Ends it with no time to do anything about it.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Ends it in order.
    pub(crate) fn end(mut self) {
        self.signal(Signal::TERM);
        assert!(self.0.wait().unwrap().success());
        // Its number may be another's by now.
        self.1 = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.1 {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// The host.
pub(crate) struct Lab {
    host: Namespace,
    pub(crate) dir: TempDir,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        let host = Namespace::new();
        host.inside("ip link set lo up");
        Lab { host, dir: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program of the engine's, on the host.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        self.command_in(&self.host, words)
    }

    /// The same on another host.
    pub(crate) fn command_in<S: AsRef<OsStr>>(
        &self,
        host: &Namespace,
        words: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--net").arg("--target").arg(host.pid().to_string()).arg("--");
        command.args(words).stdin(Stdio::null()).current_dir(self.dir.path());
        command
    }

    /// Another host, with a cable between: this one is `near`, that one `far`.
    pub(crate) fn other_host(&self, near: &str, far: &str) -> Namespace {
        let other = Namespace::beside(self.host.pid());
        self.host
            .inside(&format!("ip link add near type veth peer name far netns {}", other.pid()));
        for (host, name, address) in [(&self.host, "near", near), (&other, "far", far)] {
            host.inside(&format!("ip address add {address}/24 dev {name}"));
            host.inside(&format!("ip link set {name} up"));
        }
        other.inside("ip link set lo up");
        other
    }

    /// Starts one that stays; what it says goes to a file.
    pub(crate) fn spawn(&self, mut command: Command, log: &str) -> Running {
        let log = File::options().create(true).append(true).open(self.path(log)).unwrap();
        let said = log.try_clone().unwrap();
        Running(command.stdout(said).stderr(log).process_group(0).spawn().unwrap(), false)
    }

    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A store with these arguments.
    pub(crate) fn store(&self, place: &[&str], listen: &str, more: Command, log: &str) -> Running {
        let mut command = more;
        command.arg(HAYATE).args(["store", "serve", "--listen", listen]);
        command.arg("--run-dir").arg(self.path("store-run")).args(place);
        self.spawn(command, log)
    }

    /// Names and sizes of the store's images, as it tells a client.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let host = File::open(self.host.path()).unwrap();
        // A thread goes to the host, and ends there.
        let asks = std::thread::spawn(move || {
            move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let mut stream = TcpStream::connect(LISTEN).unwrap();
            let hello = r#"{"say":"hello","version":1,"client":"a test"}"#;
            assert_eq!(ask(&mut stream, hello)["say"], "welcome");
            ask(&mut stream, r#"{"say":"list"}"#)
        });
        let said = asks.join().unwrap();
        let images = said["images"].as_array().unwrap().iter();
        let one = |image: &Value| {
            (image["image"].as_str().unwrap().to_owned(), image["size"].as_u64().unwrap())
        };
        images.map(one).collect()
    }

    /// A daemon of the same host.
    pub(crate) fn daemon(&self, name: &str) -> Daemon {
        let mut daemon = Daemon::spawn_in(&self.host, &self.path(name), &[]);
        daemon.wait_until_ready();
        daemon
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the store's log:\n{}", self.log("store.log"));
        }
    }
}

/// Says something to a store, and hears its answer (docs/store-protocol.md).
fn ask(stream: &mut TcpStream, text: &str) -> Value {
    let mut frame = (text.len() as u32).to_le_bytes().to_vec();
    frame.extend([1, 0, 0, 0]);
    frame.extend([0; 8]);
    frame.extend(text.bytes());
    stream.write_all(&frame).unwrap();
    let mut header = [0; 16];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; u32::from_le_bytes(*header.first_chunk().unwrap()) as usize];
    stream.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// A guest with a disk of a daemon.
pub(crate) fn guest(daemon: &Daemon, disk: &str) -> BlockDriver {
    let socket = daemon.run_dir.join(format!("disks/{disk}.sock"));
    let options = Options { queues: 2, ..Options::new(true) };
    BlockDriver::connect(socket, &options).unwrap()
}

/// One that writes and knows what must be there.
pub(crate) fn writer(daemon: &Daemon, disk: &str) -> Writer {
    Writer::new(guest(daemon, disk), SECTORS, 16, 5).unwrap()
}

/// Goes on writing until so many more writes have ended.
pub(crate) fn write_more(writer: &mut Writer, more: u64) {
    let wanted = writer.ended()[0] + more;
    let begin = Instant::now();
    while writer.ended()[0] < wanted {
        writer.step().unwrap();
        assert!(begin.elapsed() < PATIENCE, "nothing ends any more");
    }
}

/// Brings a guest to whoever listens at its socket by now.
pub(crate) fn reconnect(socket: &Path, writer: &mut Writer) {
    let begin = Instant::now();
    loop {
        let frontend = Frontend::connect_within(socket, PATIENCE).unwrap();
        match writer.driver.reconnect_over(frontend) {
            Ok(()) => return,
            // It was the socket of the one that was killed.
            Err(BlockError::Frontend(error)) => assert!(begin.elapsed() < PATIENCE, "{error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// One request that must succeed: what was read.
#[track_caller]
pub(crate) fn done(driver: &mut BlockDriver, request: &Request) -> Vec<u8> {
    let done = driver.run(request).unwrap();
    assert_eq!(done.status, Some(status::OK), "{request:?}");
    done.data
}

/// Bytes that nobody has by chance.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let bytes = (0..len.div_ceil(8)).flat_map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()
    });
    bytes.take(len).collect()
}

/// Whether all these programs are there.
pub(crate) fn there(programs: &[&str]) -> bool {
    let found = |program: &&str| {
        ["/usr/bin", "/usr/sbin", "/bin"].iter().any(|dir| Path::new(dir).join(program).exists())
    };
    let all = programs.iter().all(found);
    if !all {
        eprintln!("not tested: {programs:?} are not all installed (`make setup` does)");
    }
    all
}

/// Adds a disk, whenever the store answers.
pub(crate) fn add(daemon: &Daemon, disk: &str, image: &str, more: &str) {
    add_at(LISTEN, daemon, disk, image, more);
}

/// The same at one of these addresses.
pub(crate) fn add_at(addresses: &str, daemon: &Daemon, disk: &str, image: &str, more: &str) {
    let add = format!("disk add {disk} --image store://{addresses}/{image} --queues 2 {more}");
    let mut said = None;
    until("the store answers", || {
        let answer = daemon.cli(&add);
        let status = answer.status;
        said = Some(answer);
        // Anything but that nobody listens, or that an earlier disk is not closed yet, is an answer.
        let (err, earlier) = (&said.as_ref().unwrap().err, format!("in use by disk {disk} of "));
        status == 0 || !(err.contains("Connection refused") || err.contains(&earlier))
    });
    let said = said.unwrap();
    assert_eq!(said.status, 0, "{said:?}");
}
