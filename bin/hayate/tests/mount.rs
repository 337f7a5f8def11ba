//! `hayate image mount`, as it is typed: images of a store that `hayate store serve` serves.
//!
//! Mounts are made in a mount namespace of their own, and looked at through `/proc/PID/root`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, HAYATE, Said, unshare, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// A program that goes on until it is told to end, and what it logs. Dropping it kills it.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(mut command: Command, log: PathBuf) -> Running {
        let to = File::create(&log).unwrap();
        let child = command.stdin(Stdio::null()).stderr(to).spawn().unwrap();
        Running { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it is ready: where, as it says.
    #[track_caller]
    fn ready(&mut self) -> String {
        let mut place = None;
        until("it is ready", || {
            let log = self.log();
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {log}");
            let ready = log.split_once("ready at ").and_then(|(_, it)| it.split_once(": images"));
            place = ready.map(|(place, _)| place.to_owned());
            place.is_some()
        });
        place.unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Ends it in order.
    #[track_caller]
    fn stop(mut self) -> String {
        self.signal("TERM");
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.log());
        self.log()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.log());
        }
    }
}

/// A daemon with images, a store that serves them, and a place to mount at.
struct Rig {
    daemon: Daemon,
    store: Option<Running>,
    /// How it is started, beside what every store is.
    store_args: Vec<String>,
    address: String,
    /// Holds the mount namespace.
    namespace: Child,
    dir: PathBuf,
}

impl Rig {
    fn new() -> Rig {
        let daemon = Daemon::start(&[]);
        let dir = daemon.run_dir.join("mnt");
        fs::create_dir(&dir).unwrap();
        let namespace = unshare(&["--mount", "--"]).args(["sleep", "600"]).spawn().unwrap();
        let here = fs::read_link("/proc/self/ns/mnt").unwrap();
        let there = format!("/proc/{}/ns/mnt", namespace.id());
        until("the namespace is there", || fs::read_link(&there).is_ok_and(|it| it != here));
        let address = "127.0.0.1:0".into();
        let mut rig = Rig { daemon, store: None, store_args: Vec::new(), address, namespace, dir };
        rig.serve();
        rig
    }

    /// Starts a store, where the last one was.
    fn serve(&mut self) {
        let mut command = Command::new(HAYATE);
        command.args(["store", "serve", "--listen", &self.address, "--dir"]);
        command.arg(self.daemon.run_dir.join("state/images")).args(&self.store_args);
        let mut store = Running::start(command, self.daemon.run_dir.join("store.log"));
        self.address = store.ready();
        self.store = Some(store);
    }

    /// The same with other arguments.
    fn start_anew_with(&mut self, args: &[&str]) {
        drop(self.store.take());
        self.store_args = args.iter().map(|&arg| arg.to_owned()).collect();
        self.serve();
    }

    /// Leaves the store to a shell, which goes on starting it.
    fn start_again_and_again(&mut self) -> Again {
        const SCRIPT: &str = r#"cd "$1"; shift
while [ ! -e over ]; do
    "$@" 2>> stores.log & echo $! > pid.new; mv pid.new pid; wait $!
done"#;
        drop(self.store.take());
        let dir = self.daemon.run_dir.join("again");
        fs::create_dir(&dir).unwrap();
        File::create(dir.join("stores.log")).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(&dir).arg(HAYATE);
        command.args(["store", "serve", "--listen", &self.address, "--dir"]);
        command.arg(self.daemon.run_dir.join("state/images")).args(&self.store_args);
        let shell = command.stdin(Stdio::null()).spawn().unwrap();
        let again = Again { shell, dir };
        until("there is a store", || again.count() > 0);
        again
    }

    /// Certificates of a store and a host, and of a host that another authority knows.
    fn certify(&self) -> PathBuf {
        let pki = self.daemon.run_dir.join("pki");
        let (own, strange) = (pki.to_str().unwrap(), pki.join("strange"));
        let strange = strange.to_str().unwrap();
        let all = [(own, "store"), (own, "vm1"), (strange, "vm1")];
        for (dir, name) in all {
            let made = ["store", "cert", "--dir", dir, name, "--address", "127.0.0.1"];
            let said = common::hayate(made);
            assert_eq!(said.status, 0, "{said:?}");
        }
        pki
    }

    /// A program in the mount namespace.
    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--mount").arg("--target").arg(self.namespace.id().to_string());
        command.arg("--").arg(program);
        command
    }

    fn mount_command(&self, options: &[&str]) -> Command {
        let mut command = self.inside(HAYATE);
        command.args(["image", "mount", &format!("store://{}/", self.address)]);
        command.arg(&self.dir).args(options);
        command
    }

    fn mount(&self, options: &[&str]) -> Running {
        let log = self.daemon.run_dir.join("mount.log");
        let mut mounted = Running::start(self.mount_command(options), log);
        assert_eq!(Path::new(&mounted.ready()), self.dir);
        mounted
    }

    /// Where a file of the mount is for everybody.
    fn path(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.namespace.id()));
        root.join(self.dir.strip_prefix("/").unwrap()).join(name)
    }

    fn open(&self, name: &str, write: bool) -> std::io::Result<File> {
        File::options().read(true).write(write).open(self.path(name))
    }

    /// What the daemon says is in an image that nobody writes.
    fn exported(&self, name: &str) -> Vec<u8> {
        let file = self.daemon.run_dir.join("exported");
        let command = format!("image export {name} {} --force", file.display());
        // A file that was closed is let go a moment later.
        let mut last = String::new();
        until("the image is free", || {
            let said = self.daemon.cli(&command);
            if last != said.err {
                eprint!("{}", said.err);
                last = said.err;
            }
            said.status == 0
        });
        fs::read(file).unwrap()
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", self.namespace.id())).unwrap();
        mounts.lines().any(|line| line.split(' ').nth(1) == self.dir.to_str())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}

/// Runs a program of the system.
fn run(program: &str, args: &[&str]) -> Said {
    let output = Command::new(program).args(args).env("LC_ALL", "C").output().unwrap();
    Said {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[track_caller]
fn ok(program: &str, args: &[&str]) {
    let said = run(program, args);
    assert_eq!(said.status, 0, "{program} {args:?}: {}", said.err);
}

fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at >> 9) as u8 ^ at as u8 ^ seed).collect()
}

const SIZE: usize = 8 << 20;
const LIBFABRIC: [&str; 2] = ["--transport", "libfabric"];

/// Whether there is a fabric to be tested.
fn has_fabric() -> bool {
    let list = common::hayate(["fabric", "list", "--json"]).out;
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let there = !list["libfabric"].is_null();
    if !there {
        eprintln!("not tested: there is no libfabric");
    }
    there
}

#[test]
fn images_are_copied_in_and_out() {
    let rig = Rig::new();
    let daemon = &rig.daemon;
    daemon.ok("image create web --size 8M");
    daemon.ok("image create thin --size 8M --format qcow2");
    daemon.ok("image create old --size 1M");
    daemon.ok("image snapshot old s");
    let ways = [&["--transport", "tcp"][..], &["--cache", "--transport", "shm"]];
    for options in ways.into_iter().chain(has_fabric().then_some(&LIBFABRIC[..])) {
        let mounted = rig.mount(options);
        let mut names: Vec<_> = fs::read_dir(rig.path("")).unwrap().collect();
        names.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
        let names: Vec<_> = names.into_iter().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["old", "old@s", "thin", "web"]);
        let of = |name: &str| fs::metadata(rig.path(name)).unwrap();
        assert_eq!((of("web").len(), of("web").mode() & 0o7777), (SIZE as u64, 0o600));
        assert_eq!((of("old@s").len(), of("old@s").mode() & 0o7777), (1 << 20, 0o400));

        let (from, to) = (daemon.run_dir.join("from"), daemon.run_dir.join("to"));
        for (name, seed) in [("web", 1), ("thin", 2)] {
            let path = rig.path(name);
            let (path, from, to) =
                (path.to_str().unwrap(), from.to_str().unwrap(), to.to_str().unwrap());
            let (input, output) = (format!("if={from}"), format!("of={path}"));
            let mut whole = content(SIZE, seed);
            fs::write(from, &whole).unwrap();
            ok("dd", &[&input, &output, "bs=1M", "conv=notrunc,fsync"]);
            ok("cp", &[path, to]);
            assert!(fs::read(to).unwrap() == whole);
            assert!(rig.exported(name) == whole);
            // Pieces that are not of whole sectors, in the middle.
            let piece = content(70_007, seed ^ 0x55);
            fs::write(from, &piece).unwrap();
            ok("dd", &[&input, &output, "bs=1001", "seek=3", "conv=notrunc"]);
            whole[3003..3003 + piece.len()].copy_from_slice(&piece);
            assert!(fs::read(path).unwrap() == whole);
            assert!(rig.exported(name) == whole);
            // What is emptied and written is followed by zeroes.
            ok("cp", &[from, path]);
            whole.fill(0);
            whole[..piece.len()].copy_from_slice(&piece);
            assert!(fs::read(path).unwrap() == whole);
            assert!(rig.exported(name) == whole);
            ok("fallocate", &["--punch-hole", "-o", "1000", "-l", "30000", path]);
            whole[1000..31000].fill(0);
            assert!(rig.exported(name) == whole);
            assert_eq!(of(name).len(), SIZE as u64);
            // An image has the size it has.
            let large = ["if=/dev/zero", &output, "bs=1M", "seek=7", "count=2", "conv=notrunc"];
            run("dd", &large).fails(1, &["No space left on device"]);
            run("truncate", &["-s", "1M", path]).fails(1, &["Operation not permitted"]);
        }
        let new = rig.path("new");
        run("touch", &[new.to_str().unwrap()]).fails(1, &["Operation not permitted"]);
        let web = rig.path("web");
        run("rm", &["-f", web.to_str().unwrap()]).fails(1, &["Operation not permitted"]);
        assert_eq!(rig.open("none", false).unwrap_err().kind(), ErrorKind::NotFound);
        let snapshot = rig.open("old@s", true).unwrap_err();
        assert_eq!(snapshot.kind(), ErrorKind::ReadOnlyFilesystem);
        assert!(fs::read(rig.path("old@s")).unwrap() == vec![0; 1 << 20]);
        let (by, log) = (options.last().unwrap(), mounted.stop());
        assert!(log.contains(&format!("transport=\"{by}\"")), "{log}");
        assert!(!rig.is_mounted());
    }
}

#[test]
fn an_image_has_one_user_who_writes() {
    let rig = Rig::new();
    rig.daemon.ok("image create web --size 8M");
    let mounted = rig.mount(&[]);
    rig.daemon.ok("disk add d --image web");
    for write in [false, true] {
        let error = rig.open("web", write).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    }
    rig.daemon.ok("disk del d");
    let mut reader = rig.open("web", false).unwrap();
    assert_eq!(reader.read(&mut [0; 100]).unwrap(), 100);
    // The first who writes makes it his, and those who read go on.
    let mut writer = rig.open("web", true).unwrap();
    rig.daemon.fails("disk add d --image web", 5, &["web is in use"]);
    writer.write_all(&[7; 333]).unwrap();
    reader.seek(SeekFrom::Start(100)).unwrap();
    let mut back = [0; 300];
    reader.read_exact(&mut back).unwrap();
    assert_eq!(back[..233], [7; 233]);
    assert_eq!(back[233..], [0; 67]);
    drop((reader, writer));
    until("it is free again", || rig.daemon.cli("disk add d --image web").status == 0);
    mounted.stop();
}

#[test]
fn nothing_is_written_where_it_may_only_be_read() {
    let rig = Rig::new();
    rig.daemon.ok("image create web --size 8M");
    let mounted = rig.mount(&["--readonly", "--cache"]);
    assert_eq!(fs::metadata(rig.path("web")).unwrap().mode() & 0o7777, 0o400);
    let error = rig.open("web", true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    // Many may read: a disk too.
    rig.daemon.ok("disk add d --image web --readonly");
    assert!(fs::read(rig.path("web")).unwrap() == vec![0; SIZE]);
    mounted.stop();
}

/// A store that ends and comes back is waited for, and nothing is lost.
#[test]
fn a_store_that_starts_anew_is_waited_for() {
    let mut rig = Rig::new();
    rig.daemon.ok("image create web --size 8M");
    let mounted = rig.mount(&[]);
    let file = rig.open("web", true).unwrap();
    file.write_all_at(&[1; 5000], 10).unwrap();
    for round in 2..5u8 {
        let store = rig.store.take().unwrap();
        store.signal(if round % 2 == 0 { "KILL" } else { "TERM" });
        drop(store);
        let there = file.try_clone().unwrap();
        let writing = thread::spawn(move || {
            there.write_all_at(&[round; 5000], u64::from(round) * 4000)?;
            there.sync_all()
        });
        thread::sleep(Duration::from_millis(200));
        assert!(!writing.is_finished());
        rig.serve();
        writing.join().unwrap().unwrap();
        let mut back = vec![0; 5000];
        file.read_exact_at(&mut back, u64::from(round) * 4000).unwrap();
        assert_eq!(back, vec![round; 5000]);
    }
    drop(file);
    let whole = rig.exported("web");
    assert_eq!(whole[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
    assert_eq!((whole[8000], whole[12000], whole[16000], whole[20999]), (2, 3, 4, 4));
    mounted.stop();
}

/// A store that a shell starts anew whenever it has ended. No program is started here meanwhile: it would
/// close this one's files of the mount before it begins, and wait for the store with them.
struct Again {
    shell: Child,
    dir: PathBuf,
}

impl Again {
    /// Those that were ready so far.
    fn count(&self) -> usize {
        fs::read_to_string(self.dir.join("stores.log")).unwrap().matches("ready at").count()
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(fs::read_to_string(self.dir.join("pid")).ok()?.trim().parse().ok()?)
    }

    /// Ends it, and waits for the next one.
    fn kill(&self, signal: Signal) {
        let before = self.count();
        kill_process(self.pid().unwrap(), signal).unwrap();
        until("there is another store", || self.count() > before);
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        let _ = File::create(self.dir.join("over"));
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.shell.wait();
    }
}

/// Says so when dropped.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A store is killed again and again under threads that write and look whether it is there: by every
/// transport, nothing is lost and nothing is done twice in the wrong order.
#[test]
fn a_store_that_is_killed_loses_nothing() {
    dies_under_writers("tcp", false);
    dies_under_writers("shm", true);
    if has_fabric() {
        dies_under_writers("libfabric", false);
    }
}

fn dies_under_writers(transport: &str, tls: bool) {
    const WRITERS: usize = 6;
    const EACH: usize = SIZE / WRITERS / 8192 * 8192;
    let mut rig = Rig::new();
    rig.daemon.ok("image create web --size 8M");
    let pki = rig.certify();
    let mut options = vec!["--transport", transport];
    let own = pki.join("vm1");
    if tls {
        rig.start_anew_with(&["--tls-dir", pki.join("store").to_str().unwrap()]);
        options.extend(["--tls-dir", own.to_str().unwrap()]);
    }
    let mounted = rig.mount(&options);
    let again = rig.start_again_and_again();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let file = rig.open("web", true).unwrap();
    let last = thread::scope(|scope| {
        let writers = (0..WRITERS).map(|number| {
            let (file, stop, rounds) = (&file, &stop, &rounds);
            scope.spawn(move || {
                let mut model = vec![0; EACH];
                let mut chance = 7 + number as u64;
                while !stop.load(SeqCst) {
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (chance >> 33) as usize % EACH;
                    let length = ((chance >> 20) as usize % 9000).min(EACH - at);
                    let data = content(length, chance as u8 ^ (chance >> 40) as u8);
                    let place = (number * EACH + at) as u64;
                    file.write_all_at(&data, place).unwrap();
                    model[at..at + length].copy_from_slice(&data);
                    let mut back = vec![0; length.min(4096)];
                    file.read_exact_at(&mut back, place).unwrap();
                    assert!(back == data[..back.len()]);
                    if chance >> 60 == 0 {
                        file.sync_data().unwrap();
                    }
                    rounds.fetch_add(1, SeqCst);
                }
                model
            })
        });
        let writers: Vec<_> = writers.collect();
        // They end whatever becomes of this thread.
        let ending = Ending(&stop);
        for round in 0..12 {
            let before = rounds.load(SeqCst);
            until("they write", || rounds.load(SeqCst) > before + 20);
            again.kill(if round % 4 == 3 { Signal::TERM } else { Signal::KILL });
        }
        drop(ending);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<u8>>()
    });
    let mut back = vec![0; last.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == last, "{transport}");
    file.sync_all().unwrap();
    drop(file);
    // The daemon opens the image as soon as nobody has it.
    assert!(rig.exported("web")[..last.len()] == last, "{transport}");
    let log = mounted.stop();
    assert!(log.matches("connected again").count() >= 12, "{log}");
}

/// A store that asks for certificates, and who has none, the wrong one, or may not have an image.
#[test]
fn certificates_are_shown_and_looked_at() {
    let mut rig = Rig::new();
    rig.daemon.ok("image create web --size 8M");
    rig.daemon.ok("image create other --size 8M");
    let pki = rig.certify();
    let rules = "[clients.vm1]\nwrite = [\"web\"]\n";
    fs::write(pki.join("store/clients.toml"), rules).unwrap();
    rig.start_anew_with(&["--tls-dir", pki.join("store").to_str().unwrap()]);
    let fails = |options: &[&str], status, part: &str| {
        let output = rig.mount_command(options).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(status) && text.contains(part), "{text}");
    };
    fails(&[], 3, "does not answer");
    let strange = pki.join("strange/vm1");
    fails(&["--tls-dir", strange.to_str().unwrap()], 3, "certificate");
    fails(&["--tls-dir", "/nowhere"], 2, "--tls-dir: /nowhere/ca.pem");
    let own = pki.join("vm1");
    for transport in ["tcp", "auto"] {
        let options = ["--tls-dir", own.to_str().unwrap(), "--transport", transport];
        let mounted = rig.mount(&options);
        let file = rig.open("web", true).unwrap();
        file.write_all_at(&content(SIZE, 9), 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert!(fs::read(rig.path("web")).unwrap() == content(SIZE, 9));
        // What this host may not have it is not shown.
        let other = rig.open("other", false).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::NotFound);
        let log = mounted.stop();
        assert!(log.contains(if transport == "tcp" { "\"tcp\"" } else { "\"shm\"" }), "{log}");
    }
}

/// A store that is not on this machine shares no memory: here, as its socket is not to be seen.
#[test]
fn a_transport_that_is_not_there_is_refused() {
    let rig = Rig::new();
    let images = rig.daemon.run_dir.join("state/images");
    let socket = fs::read_dir(images).unwrap().map(|entry| entry.unwrap().path());
    let socket = socket.filter(|path| path.extension().is_some_and(|it| it == "sock"));
    socket.for_each(|path| fs::remove_file(path).unwrap());
    let output = rig.mount_command(&["--transport", "shm"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("(shm)"), "{text}");
    rig.daemon.ok("image create web --size 8M");
    let mounted = rig.mount(&[]);
    assert_eq!(fs::read(rig.path("web")).unwrap().len(), SIZE);
    let log = mounted.stop();
    assert!(log.contains("transport=\"tcp\""), "{log}");
}

#[test]
fn it_ends_in_every_way() {
    let mut rig = Rig::new();
    rig.daemon.ok("image create web --size 8M");
    // While a file is open.
    let mounted = rig.mount(&[]);
    let file = rig.open("web", true).unwrap();
    file.write_all_at(&[3; 700], 0).unwrap();
    let log = mounted.stop();
    assert!(log.contains("1 images are in use"), "{log}");
    assert!(!rig.is_mounted());
    assert!(file.read_at(&mut [0; 10], 0).is_err());
    drop(file);
    assert_eq!(rig.exported("web")[..700], [3; 700]);
    // Somebody unmounts it.
    let mut mounted = rig.mount(&[]);
    assert!(rig.inside("umount").arg(&rig.dir).status().unwrap().success());
    assert!(mounted.wait().success(), "{}", mounted.log());
    // It is killed: the next one says what to do.
    let mut mounted = rig.mount(&[]);
    mounted.signal("KILL");
    mounted.wait();
    assert!(rig.is_mounted());
    let output = rig.mount_command(&[]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("umount"), "{text}");
    assert!(rig.inside("umount").arg(&rig.dir).status().unwrap().success());
    // While the store is away, and somebody waits for it.
    let mounted = rig.mount(&[]);
    let file = rig.open("web", true).unwrap();
    drop(rig.store.take());
    let waiting = thread::spawn(move || file.write_all_at(&[4; 700], 0).is_err());
    thread::sleep(Duration::from_millis(200));
    assert!(!waiting.is_finished());
    mounted.stop();
    assert!(waiting.join().unwrap());
    assert!(!rig.is_mounted());
    // Nobody is there at all.
    let output = rig.mount_command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
}
