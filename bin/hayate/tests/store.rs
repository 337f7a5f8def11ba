//! Disks whose images are in a store on another host: two network namespaces with a cable between.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Daemon, Namespace, until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::block::{BlockDriver, BlockError, Layout, Options, Request, Writer};
use testkit::frontend::Frontend;

const PATIENCE: Duration = Duration::from_secs(60);
const LISTEN: &str = "10.1.0.2:4420";
const IMAGE: &str = "store://10.1.0.2:4420/disk";
/// Sectors the guest writes, again and again.
const SECTORS: u64 = 1024;

/// Two hosts.
struct Hosts {
    near: Namespace,
    far: Namespace,
    dir: TempDir,
    /// Whether both have to be known.
    tls: bool,
    /// How bytes come and go. For `shm` the two are one machine, as they are here.
    transport: &'static str,
}

/// A store that runs; killed when dropped.
struct Store(Child);

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Whether a process is stopped, with all its threads.
fn hangs(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().all(|task| {
        let about = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        about.contains(") T ")
    })
}

impl Hosts {
    /// With an image `disk` on the far one.
    fn new(format: &str, tls: bool) -> Hosts {
        let near = Namespace::new();
        let far = Namespace::beside(near.pid());
        near.inside(&format!("ip link add near type veth peer name far netns {}", far.pid()));
        for (host, name, address) in [(&near, "near", "10.1.0.1"), (&far, "far", "10.1.0.2")] {
            host.inside(&format!("ip address add {address}/24 dev {name}"));
            host.inside(&format!("ip link set {name} up"));
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let maker = Daemon::start_in(&dir.path().join("far"), &[]);
        maker.ok(&format!("image create disk --size 4M --format {format}"));
        maker.ok("image create other --size 4M");
        maker.stop();
        let hosts = Hosts { near, far, dir, tls, transport: "tcp" };
        hosts.certify("far", &["--address", "10.1.0.2"]);
        hosts.certify("near", &[]);
        hosts
    }

    fn images(&self) -> PathBuf {
        self.dir.path().join("far/state/images")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("store.log")
    }

    /// Makes certificates; where they are.
    fn certify(&self, name: &str, more: &[&str]) -> PathBuf {
        let dir = self.dir.path().join("pki");
        let args = ["store", "cert", "--dir", dir.to_str().unwrap(), name];
        let said = common::hayate(args.iter().chain(more));
        assert_eq!(said.status, 0, "{said:?}");
        PathBuf::from(said.out.trim())
    }

    /// Arguments by which a host has certificates, if it is to have some.
    fn known(&self, name: &str) -> Vec<String> {
        let dir = self.dir.path().join("pki").join(name);
        if self.tls { vec!["--tls-dir".to_owned(), dir.display().to_string()] } else { Vec::new() }
    }

    fn store(&self) -> Store {
        self.store_as("far")
    }

    fn store_as(&self, name: &str) -> Store {
        let (images, known) = (self.images(), self.known(name));
        let mut args =
            vec!["store", "serve", "--dir", images.to_str().unwrap(), "--listen", LISTEN];
        args.extend(known.iter().map(String::as_str));
        Store(self.far.spawn_hayate(&args, &self.log()))
    }

    /// A daemon of the near host, not waited for.
    fn spawn(&self) -> Daemon {
        self.spawn_as("near")
    }

    fn spawn_as(&self, name: &str) -> Daemon {
        let known = self.known(name);
        let args: Vec<&str> = known.iter().map(String::as_str).collect();
        Daemon::spawn_in(&self.near, &self.run_dir(), &args)
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("near")
    }

    fn daemon(&self) -> Daemon {
        let mut daemon = self.spawn();
        daemon.wait_until_ready();
        daemon
    }

    /// A daemon with the disk, which waits for the store to be there.
    fn daemon_with_disk(&self) -> Daemon {
        let daemon = self.daemon();
        let add =
            format!("disk add disk --image {IMAGE} --queues 2 --transport {}", self.transport);
        until("the store answers", || daemon.cli(&add).status == 0);
        daemon
    }
}

fn guest(run_dir: &Path, packed: bool) -> Writer {
    let options = Options { queues: 2, ..Options::new(packed) };
    let driver = BlockDriver::connect(run_dir.join("disks/disk.sock"), &options).unwrap();
    Writer::new(driver, SECTORS, 16, 5).unwrap()
}

/// Goes on writing until so many more writes have ended.
fn write_more(writer: &mut Writer, more: u64) {
    let wanted = writer.ended()[0] + more;
    let begin = Instant::now();
    while writer.ended()[0] < wanted {
        writer.step().unwrap();
        assert!(begin.elapsed() < PATIENCE, "nothing ends any more");
    }
}

/// Brings the guest to a daemon that was started anew.
fn reconnect(run_dir: &Path, writer: &mut Writer) {
    let socket = run_dir.join("disks/disk.sock");
    let begin = Instant::now();
    loop {
        let frontend = Frontend::connect_within(&socket, PATIENCE).unwrap();
        match writer.driver.reconnect_over(frontend) {
            Ok(()) => return,
            // It was the socket of the one that was killed.
            Err(BlockError::Frontend(error)) => assert!(begin.elapsed() < PATIENCE, "{error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_disk_has_its_image_elsewhere() {
    let hosts = Hosts::new("raw", false);
    let daemon = hosts.daemon();
    let add = format!("disk add disk --image {IMAGE} --transport tcp");
    daemon.fails(&add, 1, &["10.1.0.2:4420 does not answer", "Connection refused"]);
    let store = hosts.store();
    until("the store answers", || daemon.cli(&add).status == 0);
    let wrong = |words: &str, status, parts: &[&str]| daemon.fails(words, status, parts);
    wrong(&format!("disk add b --image {IMAGE}"), 1, &["refuses", "disk is in use by disk disk"]);
    wrong("disk add b --image store://10.1.0.2:4420/none", 1, &["there is no image none"]);
    wrong("disk add b --image store://10.1.0.2/none", 2, &["HOST:PORT"]);
    wrong(&format!("disk add b --image {IMAGE} --cache host"), 2, &["--cache"]);
    wrong("disk add b --image disk --transport tcp", 2, &["--transport"]);
    wrong("image show disk", 4, &["no image"]);
    daemon.ok("disk add b --image store://10.1.0.2:4420/other --transport tcp --store-timeout 60");
    let shown = daemon.json("disk show b --json");
    assert_eq!(shown["image"], "store://10.1.0.2:4420/other");
    assert_eq!(shown["size"], 4 << 20);
    assert_eq!(shown["store"]["connected"], true);
    assert_eq!(shown["config"]["store_timeout"], 60);
    assert!(daemon.ok("disk show disk").contains("10.1.0.2:4420 by tcp, connected for"));
    let mut writer = guest(&hosts.run_dir(), false);
    write_more(&mut writer, 500);
    drop(store);
    let away = || daemon.json("disk show disk --json")["store"]["away"].as_str().is_some();
    until("the store is away", away);
    writer.step().unwrap();
    let _store = hosts.store();
    until("the store is back", || !away());
    write_more(&mut writer, 500);
    writer.settle().unwrap();
    // A disk that is gone lets go of its image.
    daemon.ok("disk del b");
    until("it is free", || {
        daemon.cli("disk add c --image store://10.1.0.2:4420/other").status == 0
    });
    drop(writer);
    daemon.stop();
}

#[test]
fn a_hundred_ends_lose_nothing() {
    ends("raw", false, 60, false, "tcp");
    ends("qcow2", true, 40, true, "tcp");
}

fn fabric_is_there() -> bool {
    let list = common::hayate(["fabric", "list", "--json"]).out;
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let there = !list["libfabric"].is_null();
    if !there {
        eprintln!("not tested: there is no libfabric");
    }
    there
}

/// The same with a store that reaches the guest's memory.
#[test]
fn a_hundred_ends_with_a_fabric_lose_nothing() {
    if !fabric_is_there() {
        return;
    }
    if std::env::var_os("FABRIC_TEST_VERSION").is_some() {
        // What differs is who meets whom (`common::on_host`).
        ends("qcow2", true, 24, false, "libfabric");
        return;
    }
    ends("raw", false, 60, false, "libfabric");
    ends("qcow2", true, 40, true, "libfabric");
}

/// The same on one machine, where the store serves the guest itself.
#[test]
fn a_hundred_ends_of_neighbours_lose_nothing() {
    ends("raw", true, 60, false, "shm");
    ends("qcow2", false, 40, true, "shm");
}

/// The store, the daemon or both are killed, ended in order, or held for a while.
fn ends(format: &str, packed: bool, rounds: u64, tls: bool, transport: &'static str) {
    let hosts = Hosts { transport, ..Hosts::new(format, tls) };
    let (mut store, mut daemon) = (hosts.store(), hosts.daemon_with_disk());
    let mut writer = guest(&hosts.run_dir(), packed);
    for round in 0..rounds {
        let some = writer.below(200);
        write_more(&mut writer, some);
        let end = if writer.below(4) == 0 { Signal::TERM } else { Signal::KILL };
        match writer.below(5) {
            0 | 1 => {
                signal(store.0.id(), end);
                writer.step().unwrap();
                store.0.wait().unwrap();
                store = hosts.store();
                if transport == "shm" {
                    reconnect(&hosts.run_dir(), &mut writer);
                }
            }
            2 | 3 => {
                signal(daemon.pid(), end);
                daemon.wait();
                daemon = hosts.spawn();
                reconnect(&hosts.run_dir(), &mut writer);
            }
            _ => {
                signal(store.0.id(), Signal::KILL);
                signal(daemon.pid(), Signal::KILL);
                (_, _) = (store.0.wait().unwrap(), daemon.wait());
                store = hosts.store();
                daemon = hosts.spawn();
                reconnect(&hosts.run_dir(), &mut writer);
            }
        }
        if round % 25 == 24 {
            // It is there, and does nothing.
            signal(store.0.id(), Signal::STOP);
            if transport == "shm" {
                // Nobody notices but the guest.
                writer.step().unwrap();
                signal(store.0.id(), Signal::CONT);
                write_more(&mut writer, 10);
                continue;
            }
            let before = daemon.json("disk show disk --json")["store"]["connections"].clone();
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(5) {
                writer.step().unwrap();
            }
            signal(store.0.id(), Signal::CONT);
            write_more(&mut writer, 10);
            let after = daemon.json("disk show disk --json")["store"]["connections"].clone();
            assert_ne!(before, after);
        }
        if round % 4 == 0 {
            writer.settle().unwrap();
        }
    }
    writer.settle().unwrap();
    let [writes, flushes] = writer.ended();
    assert!(writes > rounds && flushes > rounds / 2, "{writes} writes, {flushes} flushes");
    drop(writer);
    daemon.ok("disk del disk");
    daemon.stop();
    drop(store);
    let checker = Daemon::start_in(&hosts.dir.path().join("far"), &[]);
    checker.ok("image check disk");
    checker.stop();
}

/// A disk can be removed, and others go on, while the store that serves its guest does nothing.
#[test]
fn a_neighbour_that_hangs_is_left() {
    let hosts = Hosts { transport: "shm", ..Hosts::new("raw", false) };
    let (store, daemon) = (hosts.store(), hosts.daemon_with_disk());
    let mut writer = guest(&hosts.run_dir(), false);
    write_more(&mut writer, 100);
    signal(store.0.id(), Signal::STOP);
    daemon.ok("disk show disk");
    daemon.ok("disk del disk");
    signal(store.0.id(), Signal::CONT);
    daemon.stop();
}

/// A guest whose store, by TCP, hangs when it has been sent all of a write.
struct Hung {
    hosts: Hosts,
    store: Store,
    daemon: Daemon,
    driver: BlockDriver,
}

/// What is written, over this.
const WRITTEN: u8 = 2;
const BEFORE: u8 = 1;
/// What is in the guest's memory later.
const LATER: u8 = 0xee;

impl Hung {
    const BYTES: usize = 64 << 10;

    fn new() -> Hung {
        let hosts = Hosts::new("raw", false);
        let (store, daemon) = (hosts.store(), hosts.daemon());
        let add = format!("disk add disk --image {IMAGE} --transport tcp --store-timeout 1");
        until("the store answers", || daemon.cli(&add).status == 0);
        let options = Options { size: 8, data: 1 << 20, ..Options::new(false) };
        let socket = hosts.run_dir().join("disks/disk.sock");
        let mut driver = BlockDriver::connect(socket, &options).unwrap();
        // So that the socket of the store has room for all of it.
        for _ in 0..64 {
            let done = driver.run(&Request::write(0, &[BEFORE; 16 * Self::BYTES])).unwrap();
            assert_eq!(done.status, Some(0));
        }
        signal(store.0.id(), Signal::STOP);
        until("the store hangs", || hangs(store.0.id()));
        let write = Request::write(0, &[WRITTEN; Self::BYTES]);
        driver.submit(0, &write, &Layout::usual(&write)).unwrap();
        driver.kick(0);
        Hung { hosts, store, daemon, driver }
    }

    /// The guest uses the memory of the write for something else.
    fn reuse(&self) {
        let data = &self.driver.memory.regions()[1].spec;
        let memory = self.driver.memory.guest().slice(data.guest_addr, data.size as u32).unwrap();
        memory.copy_from(&vec![LATER; data.size as usize]);
    }

    /// The store goes on, and is done with the connection when `opened` has the image open. The write is in it, or nothing.
    fn go_on(&self, opened: impl FnOnce()) {
        signal(self.store.0.id(), Signal::CONT);
        opened();
        let mut found = vec![0; Self::BYTES];
        let image = self.hosts.images().join("disk/image.raw");
        File::open(image).unwrap().read_exact(&mut found).unwrap();
        assert!(!found.contains(&LATER), "what was in memory later is in the image");
        assert!(found.iter().all(|byte| [BEFORE, WRITTEN].contains(byte)));
    }
}

/// A store that is silent is left after seconds, and the write fails after another one.
#[test]
fn a_store_that_hangs_writes_nothing_that_was_not_written() {
    let mut hung = Hung::new();
    assert_ne!(hung.driver.wait(0).unwrap().status, Some(0));
    hung.reuse();
    hung.go_on(|| {
        let shown = || hung.daemon.json("disk show disk --json");
        until("the store is back", || shown()["store"]["connected"] == true);
    });
    let done = hung.driver.run(&Request::write(0, &[WRITTEN; Hung::BYTES])).unwrap();
    assert_eq!(done.status, Some(0));
    hung.daemon.stop();
}

/// The same if the disk is removed, or the daemon ends, before that.
#[test]
fn a_store_that_hangs_writes_nothing_for_a_disk_that_is_gone() {
    let hung = Hung::new();
    // What was kicked is sent by then, or never.
    sleep(Duration::from_millis(100));
    hung.daemon.ok("disk del disk");
    hung.reuse();
    hung.go_on(|| {
        let add = format!("disk add again --image {IMAGE} --transport tcp");
        until("the image is free", || hung.daemon.cli(&add).status == 0);
    });
    hung.daemon.stop();

    let mut hung = Hung::new();
    sleep(Duration::from_millis(100));
    hung.daemon.signal("TERM");
    assert!(hung.daemon.wait().success());
    hung.reuse();
    hung.go_on(|| {
        // It remembers the disk.
        let daemon = hung.hosts.daemon();
        let shown = || daemon.json("disk show disk --json");
        until("the store is back", || shown()["store"]["connected"] == true);
        daemon.stop();
    });
}

/// The cable is pulled for a moment, and for longer than anybody waits for an answer; with
/// `HAYATE_LONG` in the environment for half a minute and five minutes, too.
#[test]
fn a_link_that_was_down_is_used_again() {
    down_and_up("tcp");
}

/// The same with a store that reaches the guest's memory.
#[test]
fn a_link_that_was_down_is_used_by_a_fabric_again() {
    if fabric_is_there() {
        down_and_up("libfabric");
    }
}

fn down_and_up(transport: &'static str) {
    let hosts = Hosts { transport, ..Hosts::new("raw", false) };
    let (_store, daemon) = (hosts.store(), hosts.daemon_with_disk());
    let mut writer = guest(&hosts.run_dir(), false);
    let long: &[u64] = if std::env::var_os("HAYATE_LONG").is_some() { &[30, 300] } else { &[] };
    for seconds in [1, 6].iter().chain(long) {
        write_more(&mut writer, 200);
        hosts.far.inside("ip link set far down");
        let down = Instant::now();
        while down.elapsed() < Duration::from_secs(*seconds) {
            writer.step().unwrap();
        }
        hosts.far.inside("ip link set far up");
        let up = Instant::now();
        write_more(&mut writer, 20);
        eprintln!(
            "{transport}: down for {seconds} s, first writes {:?} after it was up",
            up.elapsed()
        );
        writer.settle().unwrap();
    }
    drop(writer);
    daemon.stop();
}

/// Whoever shows no certificate, one that is too old or by another authority, or has no right to an
/// image, is refused, with a reason; and nobody else notices.
#[test]
fn only_the_known_are_served() {
    let hosts = Hosts::new("raw", true);
    let store = hosts.store();
    let mut daemon = hosts.daemon_with_disk();
    let mut writer = guest(&hosts.run_dir(), false);
    write_more(&mut writer, 500);
    let add = "disk add other --image store://10.1.0.2:4420/other";
    let mut with = |change: &dyn Fn(), parts: &[&str]| {
        signal(daemon.pid(), Signal::TERM);
        daemon.wait();
        change();
        let mut stranger = hosts.spawn_as("stranger");
        stranger.wait_until_ready();
        stranger.fails(add, 1, parts);
        stranger.stop();
        daemon = hosts.spawn();
        reconnect(&hosts.run_dir(), &mut writer);
        write_more(&mut writer, 10);
    };
    let stranger = hosts.dir.path().join("pki/stranger");
    with(&|| drop(hosts.certify("stranger", &["--days", "0"])), &["CertificateExpired"]);
    with(
        &|| {
            let elsewhere = hosts.dir.path().join("elsewhere");
            let args = ["store", "cert", "--dir", elsewhere.to_str().unwrap(), "stranger"];
            assert_eq!(common::hayate(args).status, 0);
            // It trusts the store's authority, but the store does not trust its.
            for file in ["cert.pem", "key.pem"] {
                std::fs::copy(elsewhere.join("stranger").join(file), stranger.join(file)).unwrap();
            }
        },
        &["10.1.0.2:4420", "fatal alert"],
    );
    // Somebody without any certificate.
    let mut plain = Daemon::spawn_in(&hosts.near, &hosts.dir.path().join("plain"), &[]);
    plain.wait_until_ready();
    plain.fails(add, 1, &["10.1.0.2:4420"]);
    plain.stop();
    // A host that is known, but has rights to some images only.
    drop(store);
    let rules = "[clients.near]\nwrite = [\"disk\"]\nread = [\"oth*\"]\n";
    std::fs::write(hosts.dir.path().join("pki/far/clients.toml"), rules).unwrap();
    let store = hosts.store();
    write_more(&mut writer, 100);
    daemon.fails(add, 1, &["may not write image other"]);
    daemon.ok(&format!("{add} --readonly"));
    // Something else than what it says it is.
    drop(store);
    hosts.certify("unnamed", &[]);
    let store = hosts.store_as("unnamed");
    let away = || daemon.json("disk show disk --json")["store"]["away"].to_string();
    until("the disk says why", || away().contains("not valid for name"));
    drop(store);
    let _store = hosts.store();
    write_more(&mut writer, 100);
    writer.settle().unwrap();
    drop(writer);
    daemon.stop();
}
