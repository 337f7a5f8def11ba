//! A real daemon in a directory of its own, and a network namespace of its own where interfaces
//! are made, so that tests run side by side and leave nothing behind.

#![allow(dead_code, reason = "each test binary uses a part")]

use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const HAYATE: &str = env!("CARGO_BIN_EXE_hayate");

/// Far longer than anything takes; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running daemon. Dropping it kills it.
pub(crate) struct Daemon {
    pub(crate) run_dir: PathBuf,
    child: Child,
    _directory: Option<TempDir>,
}

/// A network namespace, for as long as this lives.
pub(crate) struct Namespace {
    child: Child,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the command with these arguments, without a daemon of its own.
pub(crate) fn hayate<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Said {
    let mut command = clean(Command::new(HAYATE));
    said(command.args(args).output().unwrap())
}

fn clean(mut command: Command) -> Command {
    for variable in ["HAYATE_RUN_DIR", "HAYATE_LOG", "NOTIFY_SOCKET"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

fn said(output: Output) -> Said {
    Said {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// `unshare` with these namespaces; the user's own as root where that is needed.
pub(crate) fn unshare(namespaces: &[&str]) -> Command {
    let mut command = clean(Command::new("unshare"));
    if !is_root() {
        command.arg("--map-root-user");
    }
    command.args(namespaces);
    command
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Daemon {
    /// Starts one in a fresh directory, with more arguments.
    pub(crate) fn start(args: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut daemon = Self::start_in(directory.path(), args);
        daemon._directory = Some(directory);
        daemon
    }

    /// Starts one in a given directory and waits until it answers.
    pub(crate) fn start_in(run_dir: &Path, args: &[&str]) -> Self {
        let mut daemon = Self::spawn(run_dir, args, &[]);
        daemon.wait_until_ready();
        daemon
    }

    /// Starts one and does not wait.
    pub(crate) fn spawn(run_dir: &Path, args: &[&str], environment: &[(&str, &str)]) -> Self {
        // The namespace is left to the kernel when the daemon ends.
        Self::spawn_by(unshare(&["--net", "--"]), run_dir, args, environment)
    }

    /// The same in a namespace that others are in as well.
    pub(crate) fn spawn_in(namespace: &Namespace, run_dir: &Path, args: &[&str]) -> Self {
        Self::spawn_by(on_host(namespace.child.id()), run_dir, args, &[])
    }

    fn spawn_by(
        mut command: Command,
        run_dir: &Path,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        command.arg(HAYATE).arg("daemon").arg("--run-dir").arg(run_dir).args(args);
        command.envs(environment.iter().copied());
        std::fs::create_dir_all(run_dir.parent().unwrap()).unwrap();
        let log = std::fs::File::create(Self::log_of(run_dir)).unwrap();
        let child = command.stderr(log).spawn().unwrap();
        Self { run_dir: run_dir.to_owned(), child, _directory: None }
    }

    fn log_of(run_dir: &Path) -> PathBuf {
        // Beside the directory, not in it: what the daemon leaves there is looked at.
        run_dir.with_extension("log")
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(Self::log_of(&self.run_dir)).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn wait_until_ready(&mut self) {
        until("the daemon answers", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the daemon ended with {status}: {}", self.log());
            }
            UnixStream::connect(self.run_dir.join("api.sock")).is_ok()
        });
    }

    /// Runs a command against it: words with blanks between.
    pub(crate) fn cli(&self, words: &str) -> Said {
        let mut command = clean(Command::new(HAYATE));
        command.arg("--run-dir").arg(&self.run_dir).args(words.split_whitespace());
        said(command.output().unwrap())
    }

    /// The same; it must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, words: &str) -> String {
        let said = self.cli(words);
        assert_eq!(said.status, 0, "{words}: {}\nlog: {}", said.err, self.log());
        said.out
    }

    /// The same; it must print JSON.
    #[track_caller]
    pub(crate) fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.ok(words)).unwrap()
    }

    /// The same; it must fail with this status, and say this.
    #[track_caller]
    pub(crate) fn fails(&self, words: &str, status: i32, parts: &[&str]) {
        self.cli(words).fails(status, parts);
    }

    /// Runs a program in the daemon's network namespace.
    #[track_caller]
    pub(crate) fn inside(&self, words: &str) -> String {
        run_in(self.pid(), words)
    }

    /// Makes another network namespace beside the daemon's.
    pub(crate) fn namespace(&self) -> Namespace {
        Namespace::beside(self.pid())
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Ends it in order.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        self.signal("TERM");
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// One request to its interface: status and body.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        http(&self.run_dir.join("api.sock"), method, path, body)
    }
}

impl Namespace {
    /// A new one.
    pub(crate) fn new() -> Self {
        let mut command = unshare(&["--net", "--", "sleep", "600"]);
        Self::of(command.spawn().unwrap(), None)
    }

    /// Another one beside that of a process.
    pub(crate) fn beside(pid: u32) -> Self {
        let words = ["unshare", "--net", "--", "sleep", "600"];
        Self::of(enter(pid).args(words).spawn().unwrap(), Some(pid))
    }

    fn of(child: Child, other: Option<u32>) -> Self {
        let namespace = Self { child };
        let link = |path: &str| std::fs::read_link(path).ok();
        let other = other.and_then(|pid| link(&format!("/proc/{pid}/ns/net")));
        until("the namespace is there", || {
            let found = link(&namespace.path());
            found.is_some() && found != link("/proc/self/ns/net") && found != other
        });
        namespace
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Starts the command with these arguments in it, and does not wait; what it logs goes to a file.
    pub(crate) fn spawn_hayate(&self, args: &[&str], log: &Path) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        on_host(self.child.id()).arg(HAYATE).args(args).stderr(log).spawn().unwrap()
    }

    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.child.id())
    }

    /// Runs a program in it.
    #[track_caller]
    pub(crate) fn inside(&self, words: &str) -> String {
        run_in(self.child.id(), words)
    }

    /// The same; it may fail.
    pub(crate) fn run(&self, words: &str) -> Said {
        said(enter(self.child.id()).args(words.split_whitespace()).output().unwrap())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `nsenter` into the network namespace of a process.
fn enter(pid: u32) -> Command {
    let mut command = clean(Command::new("nsenter"));
    if !is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.arg("--net").arg("--target").arg(pid.to_string()).arg("--");
    command
}

/// The same for a hayate. Where another libfabric is tested than the system's (`FABRIC_TEST_VERSION`), every second one
/// has the system's: whoever is started again and again meets both.
fn on_host(pid: u32) -> Command {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let mut command = enter(pid);
    let second = STARTED.fetch_add(1, Ordering::Relaxed) % 2 == 1;
    if second && std::env::var_os("FABRIC_TEST_VERSION").is_some() {
        command.env_remove("LD_LIBRARY_PATH");
    }
    command
}

#[track_caller]
fn run_in(pid: u32, words: &str) -> String {
    let said = said(enter(pid).args(words.split_whitespace()).output().unwrap());
    assert_eq!(said.status, 0, "{words}: {}", said.err);
    said.out
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(Self::log_of(&self.run_dir));
    }
}

impl Said {
    #[track_caller]
    pub(crate) fn fails(&self, status: i32, parts: &[&str]) {
        assert_eq!(self.status, status, "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in: {}", self.err);
        }
    }
}

/// One request over a Unix socket: status and body.
pub(crate) fn http(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    // A refusal may come before all of a large body is read.
    let _ = stream.write_all(body.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return (status, unchunked(body));
    }
    (status, body.to_owned())
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    text
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Compares a committed file with what the program makes; `UPDATE_DOCS=1` writes it anew.
#[track_caller]
pub(crate) fn committed(file: &str, made: &str) {
    let path = repository().join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "{file} is not what the program makes: UPDATE_DOCS=1 writes it anew");
}
