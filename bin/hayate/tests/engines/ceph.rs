//! A Ceph cluster of one monitor and one OSD, without systemd.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use testkit::block::{Request, device, status};

use crate::common::{Daemon, until};
use crate::lab::{
    LISTEN, Lab, Running, add, done, guest, pattern, reconnect, there, write_more, writer,
};
use crate::measure::{line, measure};

/// The one pool.
const POOL: &str = "vms";

/// A cluster, ended when dropped: first who asks, then who answers.
struct Cluster {
    osd: Running,
    monitor: Running,
    lab: Lab,
}

impl Cluster {
    fn start() -> Cluster {
        let lab = Lab::new();
        let dir = lab.dir.path().display().to_string();
        let conf = format!(
            "[global]\n\
             fsid = 5d5e1a0e-7c6b-4a5e-9d0f-0123456789ab\n\
             mon_initial_members = a\n\
             mon_host = v2:127.0.0.1:3300\n\
             public_addr = 127.0.0.1\n\
             auth_cluster_required = none\n\
             auth_service_required = none\n\
             auth_client_required = none\n\
             osd_pool_default_size = 1\n\
             osd_pool_default_min_size = 1\n\
             osd_crush_chooseleaf_type = 0\n\
             osd_pool_default_pg_autoscale_mode = off\n\
             mon_allow_pool_size_one = true\n\
             mon_data_avail_crit = 1\n\
             mon_data_avail_warn = 1\n\
             mon_data = {dir}/mon\n\
             osd_data = {dir}/osd\n\
             run_dir = {dir}\n\
             log_file = {dir}/$name.log\n\
             admin_socket = {dir}/$name.$pid.asok\n\
             keyring = {dir}/keyring\n\
             bluestore_block_size = 2147483648\n\
             osd_memory_target = 939524096\n"
        );
        fs::write(lab.path("ceph.conf"), conf).unwrap();
        fs::create_dir(lab.path("osd")).unwrap();
        let run = |words: &str| tool(&lab, words);
        run("ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon allow*");
        run("monmaptool --create --addv a [v2:127.0.0.1:3300] \
             --fsid 5d5e1a0e-7c6b-4a5e-9d0f-0123456789ab monmap");
        run("ceph-mon -c ceph.conf --mkfs -i a --monmap monmap --keyring keyring");
        let daemon = |words: &str, log| lab.spawn(lab.command(words.split_whitespace()), log);
        let monitor = daemon("ceph-mon -c ceph.conf -f -i a", "mon.log");
        let uuid = "1f7c1d5e-0d0c-4b44-8a3c-0123456789ab";
        run(&format!("ceph -c ceph.conf osd new {uuid} 0"));
        run(&format!("ceph-osd -c ceph.conf -i 0 --mkfs --osd-uuid {uuid}"));
        let osd = daemon("ceph-osd -c ceph.conf -f -i 0", "osd.log");
        run(&format!("ceph -c ceph.conf osd pool create {POOL} 8"));
        run(&format!("ceph -c ceph.conf osd pool application enable {POOL} rbd"));
        Cluster { osd, monitor, lab }
    }

    /// A command of Ceph's: what it says.
    #[track_caller]
    fn rbd(&self, words: &str) -> String {
        tool(&self.lab, &format!("rbd -c ceph.conf {words}"))
    }

    fn store(&self) -> Running {
        self.store_at(LISTEN)
    }

    fn store_at(&self, listen: &str) -> Running {
        let conf = self.lab.path("ceph.conf").display().to_string();
        let place = ["--rbd", POOL, "--ceph-conf", &conf];
        self.lab.store(&place, listen, self.lab.command::<&str>([]), "store.log")
    }

    /// The bytes of an image, as Ceph's own tools read them.
    fn bytes(&self, image: &str) -> Vec<u8> {
        let words = ["rbd", "-c", "ceph.conf", "export", "--no-progress"];
        let mut command: Command = self.lab.command(words);
        let out = command.arg(format!("{POOL}/{image}")).arg("-").stderr(Stdio::inherit());
        let out = out.output().unwrap();
        assert!(out.status.success());
        out.stdout
    }
}

/// Runs a program that must succeed.
#[track_caller]
fn tool(lab: &Lab, words: &str) -> String {
    // One word has a blank in it.
    let words = words.split_whitespace().map(|word| word.replace("allow*", "allow *"));
    let out = lab.command(words.clone()).output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{:?}: {err}", words.collect::<Vec<_>>());
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn disks_have_their_images_in_a_ceph_cluster() {
    if !there(&["ceph-mon", "ceph-osd", "ceph", "rbd"]) {
        return;
    }
    let cluster = Cluster::start();
    let lab = &cluster.lab;
    cluster.rbd(&format!("create {POOL}/disk --size 16M"));
    cluster.rbd(&format!("create {POOL}/other --size 8M"));
    cluster.rbd(&format!("create {POOL}/plain --size 8M --image-feature layering"));
    cluster.rbd(&format!("create {POOL}/un+sayable --size 8M"));
    let made = pattern(1, 3 << 20);
    fs::write(lab.path("made"), &made).unwrap();
    cluster.rbd(&format!("import --no-progress made {POOL}/made"));
    cluster.rbd(&format!("snap create --no-progress {POOL}/made@first"));

    let store = cluster.store();
    let daemon = lab.daemon("near");
    add(&daemon, "disk", "disk", "--transport tcp");
    refusals(&cluster, &daemon);
    images_of_others(&daemon, &made);
    let (mib, made) = (1 << 20, made.len() as u64);
    let list = [
        ("disk", 16 * mib),
        ("made", made),
        ("made@first", made),
        ("other", 8 * mib),
        ("plain", 8 * mib),
    ];
    assert_eq!(lab.list(), list.map(|(name, size)| (name.to_owned(), size)));
    everything_a_disk_does(&cluster, &daemon);
    let mut store = lives(&cluster, &daemon, store);
    store = shut_out(&cluster, &daemon, store);
    daemon.stop();
    store.end();
}

fn refusals(cluster: &Cluster, daemon: &Daemon) {
    let add =
        |image: &str, more: &str| format!("disk add b --image store://{LISTEN}/{image} {more}");
    let wrong = |image: &str, more: &str, parts: &[&str]| daemon.fails(&add(image, more), 1, parts);
    wrong("none", "", &["there is no image none"]);
    wrong("made@none", "--readonly", &["there is no image made@none"]);
    wrong("disk", "", &["disk is in use by disk disk"]);
    wrong("disk", "--readonly", &["disk is in use by disk disk"]);
    daemon.fails(&add("made@first", ""), 2, &["a snapshot cannot be written"]);
    wrong("plain", "", &["has no exclusive lock", "rbd feature enable"]);
    // Another store with the same images.
    let far = "127.0.0.1:4421";
    let second = cluster.store_at(far);
    let elsewhere =
        |more: &str| daemon.cli(&format!("disk add b --image store://{far}/disk {more}"));
    until("the other store answers", || !elsewhere("").err.contains("Connection refused"));
    elsewhere("").fails(1, &["disk is in use by a store on ", "of the cluster"]);
    elsewhere("--readonly").fails(1, &["disk is in use by a store on "]);
    second.end();
}

/// What was made by Ceph's tools is read as it is.
fn images_of_others(daemon: &Daemon, made: &[u8]) {
    add(daemon, "first", "made@first", "--readonly --transport tcp");
    add(daemon, "second", "made@first", "--readonly --transport shm");
    for disk in ["first", "second"] {
        let mut driver = guest(daemon, disk);
        for chunk in [0, 1, 5, 46, 47] {
            let read = done(&mut driver, &Request::read(chunk * 128, 1 << 16));
            assert!(read == made[(chunk as usize) << 16..][..1 << 16], "{disk}: {chunk}");
        }
        drop(driver);
        daemon.ok(&format!("disk del {disk}"));
    }
}

/// Every kind of request; what was written is there for Ceph's own tools.
fn everything_a_disk_does(cluster: &Cluster, daemon: &Daemon) {
    add(daemon, "other", "other", "--transport tcp");
    let mut driver = guest(daemon, "other");
    assert!(driver.features() & device::DISCARD != 0);
    let bytes = pattern(2, 8 << 20);
    for (chunk, part) in bytes.chunks(1 << 16).enumerate() {
        done(&mut driver, &Request::write(chunk as u64 * 128, part));
    }
    let mut wanted = bytes;
    for (sector, sectors, request) in [
        (8, 8, Request::write_zeroes(8, 8, false)),
        (4096, 2048, Request::write_zeroes(4096, 2048, true)),
        (8192, 8192, Request::discard(8192, 8192)),
    ] {
        done(&mut driver, &request);
        wanted[sector << 9..][..sectors << 9].fill(0);
    }
    done(&mut driver, &Request::flush());
    let read = done(&mut driver, &Request::read(4096 - 64, 1 << 16));
    assert!(read == wanted[(4096 - 64) << 9..][..1 << 16]);
    drop(driver);
    daemon.ok("disk del other");
    assert!(cluster.bytes("other") == wanted);
    let shown = cluster.rbd(&format!("image-meta get {POOL}/other hayate.epoch"));
    assert_eq!(shown.trim(), "1");
}

/// The store is killed again and again, the engine is away for a while; nothing is lost.
fn lives(cluster: &Cluster, daemon: &Daemon, mut store: Running) -> Running {
    let socket = daemon.run_dir.join("disks/disk.sock");
    for transport in ["tcp", "shm"] {
        if transport == "shm" {
            daemon.ok("disk del disk");
            // Its guest begins with a disk of zeroes.
            cluster.rbd(&format!("rm --no-progress {POOL}/disk"));
            cluster.rbd(&format!("create {POOL}/disk --size 16M"));
            add(daemon, "disk", "disk", "--transport shm");
        }
        let mut writer = writer(daemon, "disk");
        for _ in 0..3 {
            write_more(&mut writer, 300);
            store.kill();
            writer.step().unwrap();
            store = cluster.store();
            if transport == "shm" {
                reconnect(&socket, &mut writer);
            }
            write_more(&mut writer, 100);
            writer.settle().unwrap();
        }
        // The cluster says nothing for a while: everybody else goes on, and so does the disk afterwards.
        cluster.osd.signal(Signal::STOP);
        let begin = std::time::Instant::now();
        while begin.elapsed().as_secs() < 3 {
            writer.step().unwrap();
        }
        daemon.ok("disk show disk");
        cluster.osd.signal(Signal::CONT);
        write_more(&mut writer, 100);
        writer.settle().unwrap();
        drop(writer);
    }
    daemon.ok("disk del disk");
    store
}

/// Who has lost its lock writes nothing more, and other images of the store are not concerned.
fn shut_out(cluster: &Cluster, daemon: &Daemon, store: Running) -> Running {
    add(daemon, "other", "other", "--transport tcp");
    add(daemon, "disk", "disk", "--transport tcp");
    let before = cluster.bytes("other");
    let (mut fenced, mut others) = (guest(daemon, "other"), guest(daemon, "disk"));
    let lock = cluster.rbd(&format!("lock ls {POOL}/other --format json"));
    let lock: serde_json::Value = serde_json::from_str(&lock).unwrap();
    let (id, locker) = (lock[0]["id"].as_str().unwrap(), lock[0]["locker"].as_str().unwrap());
    let words = ["rbd", "-c", "ceph.conf", "lock", "rm"];
    let mut remove = cluster.lab.command(words);
    let removed = remove.arg(format!("{POOL}/other")).args([id, locker]).status().unwrap();
    assert!(removed.success());
    let written = fenced.run(&Request::write(0, &[7; 4096])).unwrap();
    assert_eq!(written.status, Some(status::IOERR));
    done(&mut others, &Request::write(0, &[8; 4096]));
    assert!(cluster.lab.log("store.log").contains("shut out of the cluster"));
    drop((fenced, others));
    daemon.ok("disk del other");
    daemon.ok("disk del disk");
    assert!(cluster.bytes("other") == before);
    assert_eq!(cluster.bytes("disk")[..4096], [8; 4096]);
    store
}

#[test]
#[ignore = "it measures"]
fn what_a_disk_in_ceph_does_a_second() {
    let cluster = Cluster::start();
    cluster.rbd(&format!("create {POOL}/disk --size 256M"));
    let (store, daemon) = (cluster.store(), cluster.lab.daemon("near"));
    for transport in ["shm", "tcp"] {
        add(&daemon, "disk", "disk", &format!("--transport {transport}"));
        measure(&format!("Ceph, {transport}"), &daemon, "disk", &store, 256 << 20);
        daemon.ok("disk del disk");
    }
    for kind in ["read", "write"] {
        for depth in [1, 32] {
            let bench = cluster.rbd(&format!(
                "bench --io-type {kind} --io-pattern rand --io-size 4K --io-threads {depth} \
                 --io-total 100M --rbd-cache=false {POOL}/disk"
            ));
            let last = bench.lines().last().unwrap_or_default();
            println!("rbd bench, {kind}, {depth} at a time: {last}");
        }
    }
    for (name, daemon) in [("mon", &cluster.monitor), ("osd", &cluster.osd)] {
        println!("{name}: {}", line(daemon.0.id(), "VmRSS"));
    }
}
