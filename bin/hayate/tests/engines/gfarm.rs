//! A Gfarm file system of one metadata server, whose metadata is in its memory, and one node, as a user who is made up.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

use rustix::process::Signal;
use testkit::block::{Request, device};

use crate::common::{Daemon, Namespace, until};
use crate::lab::{
    LISTEN, Lab, Running, add, add_at, done, guest, pattern, there, write_more, writer,
};
use crate::measure::{line, measure};

/// Everything of Gfarm runs as this user, of whom only a file knows that is mounted over /etc/passwd.
const USER: u32 = 64321;
const GROUP: u32 = 65534;
/// What makes a command one of that user's.
const AS: [&str; 4] = ["unshare", "--mount", "sh", "as"];
/// The node's host, and another one.
const NEAR: &str = "10.2.0.1";
const FAR: &str = "10.2.0.2";
/// Where the one or the other store is.
const STORES: &str = "10.2.0.1:4420,10.2.0.2:4420";
/// What Gfarm keeps of an image.
const WRITER: &str = "user.hayate.writer";

/// A file system, ended when dropped: first the node, then who knows it.
struct FileSystem {
    far: Namespace,
    node: Running,
    server: Running,
    lab: Lab,
}

impl FileSystem {
    fn start() -> FileSystem {
        let lab = Lab::new();
        let dir = lab.dir.path().display().to_string();
        // A client on the node's own host is handed its files; one on another host asks for everything.
        let far = lab.other_host(NEAR, FAR);
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        let hosts = format!("127.0.0.1 localhost\n{NEAR} node\n{FAR} far\n");
        let user = format!("gfarm-test:x:{USER}:{GROUP}::{dir}/home:/bin/sh\n");
        let common = "metadb_server_host node\nmetadb_server_port 10601\n\
                      auth enable sharedsecret *\nsockopt keepalive\n";
        // A node comes in as _gfarmfs.
        let map = format!("local_user_map {dir}/users\n");
        let server = "admin_user gfarm-test\nmetadb_db_access_type none\n";
        let node = format!("spool {dir}/spool\n");
        for (file, text) in [
            ("passwd", passwd + &user),
            ("hosts", hosts),
            ("users", "_gfarmfs gfarm-test\n".to_owned()),
            ("gfarm2.conf", common.to_owned()),
            ("gfmd.conf", format!("{common}{map}{server}")),
            ("gfsd.conf", format!("{common}{map}{node}")),
            // Files are handed over by a socket in /tmp.
            (
                "as",
                format!(
                    "mount --bind passwd /etc/passwd && mount --bind hosts /etc/hosts && mount --bind tmp /tmp || exit 1\n\
                 export HOME={dir}/home USER=gfarm-test GFARM_CONFIG_FILE={dir}/gfarm2.conf\n\
                 exec setpriv --reuid {USER} --regid {GROUP} --clear-groups \"$@\"\n"
                ),
            ),
        ] {
            fs::write(lab.path(file), text).unwrap();
            chown(lab.path(file), Some(USER), Some(GROUP)).unwrap();
        }
        for file in ["home", "spool", "tmp", "store-run", ""] {
            let _ = fs::create_dir(lab.path(file));
            chown(lab.path(file), Some(USER), Some(GROUP)).unwrap();
        }
        let run = |words: &str| tool(&lab, words);
        run("gfkey -f -p 31536000");
        let daemon = |words: &str, log| lab.spawn(as_user(lab.command(AS), words), log);
        let server = daemon("gfmd -d -L notice -f gfmd.conf", "gfmd.log");
        until("the metadata server answers", || gfarm(&lab, "gfls /").status.success());
        run("gfhost -c -a x86_64-debian -p 10600 -n 2 node");
        let node = daemon("gfsd -d -L notice -f gfsd.conf -h node", "gfsd.log");
        until("there is a node", || !gfarm(&lab, "gfsched").stdout.is_empty());
        run("gfmkdir /vm");
        FileSystem { far, node, server, lab }
    }

    #[track_caller]
    fn run(&self, words: &str) -> String {
        tool(&self.lab, words)
    }

    /// Puts a file into it with Gfarm's tools.
    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.lab.path("put"), bytes).unwrap();
        self.run(&format!("gfreg put /vm/{name}"));
    }

    /// What they read.
    fn bytes(&self, name: &str) -> Vec<u8> {
        let got = self.lab.path("got");
        let mut command = as_user(self.lab.command(AS), &format!("gfexport /vm/{name}"));
        // A pipe would get the beginning only.
        let status = command.stdout(fs::File::create(&got).unwrap()).status().unwrap();
        assert!(status.success());
        fs::read(got).unwrap()
    }

    /// A store on the node's host (`near`), at all of its addresses, or on another one (`far`).
    fn store(&self, how: &str) -> Running {
        match how {
            "near" => self.store_by(self.lab.command(AS), "0.0.0.0:4420"),
            _ => self.store_by(self.lab.command_in(&self.far, AS), &format!("{FAR}:4420")),
        }
    }

    fn store_by(&self, host: Command, listen: &str) -> Running {
        let conf = self.lab.path("gfarm2.conf").display().to_string();
        let place = ["--gfarm", "/vm", "--gfarm-conf", &conf];
        self.lab.store(&place, listen, host, "store.log")
    }
}

/// A command as the user of Gfarm.
fn as_user(mut host: Command, words: &str) -> Command {
    host.args(words.split_whitespace());
    host
}

fn gfarm(lab: &Lab, words: &str) -> std::process::Output {
    as_user(lab.command(AS), words).output().unwrap()
}

/// Runs a program that must succeed.
#[track_caller]
fn tool(lab: &Lab, words: &str) -> String {
    let out = gfarm(lab, words);
    assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn disks_have_their_images_in_gfarm() {
    if !there(&["gfmd", "gfsd", "gfreg", "gfxattr"]) {
        return;
    }
    let gfarm = FileSystem::start();
    let lab = &gfarm.lab;
    let made = pattern(1, 3 << 20);
    gfarm.put("made", &made);
    gfarm.put("disk", &vec![0; 1 << 20]);
    gfarm.put("other", &pattern(2, 1 << 20));
    gfarm.put(".hidden", &[1; 512]);
    gfarm.run("gfmkdir /vm/directory");

    let store = gfarm.store("near");
    let daemon = lab.daemon("daemon");
    add_at(STORES, &daemon, "disk", "disk", "--transport tcp");
    let sizes = [("disk", 1 << 20), ("made", made.len() as u64), ("other", 1 << 20)];
    assert_eq!(lab.list(), sizes.map(|(name, size)| (name.to_owned(), size)));
    refusals(&gfarm, &daemon);
    images_of_others(&daemon, &made);
    let store = lives(&gfarm, &daemon, store);
    everything_a_disk_does(&gfarm, &daemon);
    daemon.stop();
    store.end();
}

fn refusals(gfarm: &FileSystem, daemon: &Daemon) {
    let add =
        |image: &str, more: &str| format!("disk add b --image store://{LISTEN}/{image} {more}");
    let wrong = |image: &str, more: &str, parts: &[&str]| daemon.fails(&add(image, more), 1, parts);
    wrong("none", "", &["there is no image none"]);
    wrong("directory", "", &["there is no image directory"]);
    wrong("made@first", "--readonly", &["there is no image made@first"]);
    wrong("disk", "", &["disk is in use by disk disk"]);
    wrong("disk", "--readonly", &["disk is in use by disk disk"]);
    // Another store with the same images, and one that is not known to be dead.
    let far = "127.0.0.1:4421";
    let second = gfarm.store_by(gfarm.lab.command(AS), far);
    let elsewhere = |image: &str, more: &str| {
        daemon.cli(&format!("disk add b --image store://{far}/{image} {more}"))
    };
    until("the other store answers", || !elsewhere("disk", "").err.contains("Connection refused"));
    for more in ["", "--readonly"] {
        elsewhere("disk", more).fails(1, &["disk is in use by a store on ", "gfxattr -r /vm/disk"]);
    }
    second.end();
    fs::write(gfarm.lab.path("lease"), "1 elsewhere another-boot 1 2 3").unwrap();
    gfarm.run(&format!("gfxattr -s -f lease /vm/other {WRITER}"));
    wrong("other", "", &["other is in use by a store on elsewhere (process 2)"]);
    gfarm.run(&format!("gfxattr -r /vm/other {WRITER}"));
}

/// What was made by Gfarm's tools is read as it is.
fn images_of_others(daemon: &Daemon, made: &[u8]) {
    for (disk, more) in [("first", ""), ("second", "--readonly")] {
        add(daemon, disk, "made", &format!("--transport tcp {more}"));
        let mut driver = guest(daemon, disk);
        for chunk in [0, 1, 5, 46, 47] {
            let read = done(&mut driver, &Request::read(chunk * 128, 1 << 16));
            assert!(read == made[(chunk as usize) << 16..][..1 << 16], "{disk}: {chunk}");
        }
        drop(driver);
        daemon.ok(&format!("disk del {disk}"));
    }
}

/// The store is killed again and again, the node does nothing for a while; nothing is lost.
fn lives(gfarm: &FileSystem, daemon: &Daemon, mut store: Running) -> Running {
    let mut writer = writer(daemon, "disk");
    for how in ["near", "far", "near", "far"] {
        // The next one is of the same machine, and sees that this one has ended.
        write_more(&mut writer, 300);
        store.kill();
        writer.step().unwrap();
        store = gfarm.store(how);
        write_more(&mut writer, 100);
        writer.settle().unwrap();
    }
    gfarm.node.signal_all(Signal::STOP);
    let begin = std::time::Instant::now();
    while begin.elapsed().as_secs() < 2 {
        writer.step().unwrap();
    }
    daemon.ok("disk show disk");
    gfarm.node.signal_all(Signal::CONT);
    write_more(&mut writer, 100);
    writer.settle().unwrap();
    drop(writer);
    daemon.ok("disk del disk");
    // Given back with the disk.
    store.end();
    let store = gfarm.store("near");
    until("the lease is gone", || {
        !crate::gfarm::gfarm(&gfarm.lab, &format!("gfxattr -g /vm/disk {WRITER}")).status.success()
    });
    assert_eq!(gfarm.run("gfxattr -g /vm/disk user.hayate.epoch").trim(), "5");
    store
}

/// Every kind of request; what was written is there for Gfarm's own tools.
fn everything_a_disk_does(gfarm: &FileSystem, daemon: &Daemon) {
    add(daemon, "other", "other", "--transport tcp");
    let mut driver = guest(daemon, "other");
    // It cannot, and does not say that it can.
    assert_eq!(driver.features() & device::DISCARD, 0);
    assert!(driver.features() & device::WRITE_ZEROES != 0);
    assert!(gfarm.lab.log("store.log").contains("no discard"));
    let mut wanted = pattern(3, 1 << 20);
    for (chunk, part) in wanted.chunks(1 << 16).enumerate() {
        done(&mut driver, &Request::write(chunk as u64 * 128, part));
    }
    for (sector, sectors, unmap) in [(8, 8, false), (1024, 512, true)] {
        done(&mut driver, &Request::write_zeroes(sector, sectors, unmap));
        wanted[(sector as usize) << 9..][..(sectors as usize) << 9].fill(0);
    }
    done(&mut driver, &Request::flush());
    let read = done(&mut driver, &Request::read(1024 - 64, 1 << 16));
    assert!(read == wanted[(1024 - 64) << 9..][..1 << 16]);
    drop(driver);
    daemon.ok("disk del other");
    until("the image is closed", || gfarm.bytes("other") == wanted);
}

#[test]
#[ignore = "it measures"]
fn what_a_disk_in_gfarm_does_a_second() {
    let gfarm = FileSystem::start();
    gfarm.put("disk", &vec![0; 256 << 20]);
    let daemon = gfarm.lab.daemon("daemon");
    for how in ["near", "far"] {
        let store = gfarm.store(how);
        add_at(STORES, &daemon, "disk", "disk", "--transport tcp");
        measure(&format!("Gfarm, {how}"), &daemon, "disk", &store, 256 << 20);
        daemon.ok("disk del disk");
        store.end();
    }
    for (name, daemon) in [("gfmd", &gfarm.server), ("gfsd", &gfarm.node)] {
        println!("{name}: {}", line(daemon.0.id(), "VmRSS"));
    }
}
