//! A stock QEMU guest whose disks are in a store on another host: two network namespaces with a cable
//! between.
//!
//! By TCP; by libfabric, which reaches the guest's memory; and as if the two were one machine, whose store serves the guest itself: there the
//! cable is for the first words only.
//!
//! The guest boots from a thin clone in the store, fio writes two more images there and verifies by
//! crc32c while the store is killed, the cable is pulled, and the daemon is killed. Its kernel never
//! complains, and `hayate image check` finds the images whole.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::PortState;
use e2e::guest::{Config, Guest};
use e2e::hayate::Hayate;
use e2e::netns::Netns;
use e2e::process::{Process, pause, tail, wait_for};
use e2e::suite::{Suite, case, main as suite_main};
use e2e::traffic::Host;
use e2e::{Context, Result, assets, bail, ensure};

/// The guest's disks in order: `vda` is the one it boots from.
const DISKS: [&str; 3] = ["root", "raw", "thin"];
/// Those that fio writes, and their devices.
const WRITTEN: [(&str, &str); 2] = [("raw", "vdb"), ("thin", "vdc")];
const LISTEN: &str = "10.2.0.2:4420";
/// Longest time fio may take for one job.
const LIMIT: Duration = Duration::from_secs(180);

struct Lab {
    guest: Guest,
    /// The guest's host.
    near: Hayate,
    /// The daemon of the host with the images.
    far: Hayate,
    store: Process,
    hosts: [Netns; 2],
}

fn inside(host: &Netns) -> Vec<&str> {
    vec!["ip", "netns", "exec", host.name()]
}

fn store(host: &Netns, far: &Hayate) -> Result<Process> {
    let images: PathBuf = far.dir().join("state/images");
    let (binary, images) = (far.binary().display(), images.display());
    let command = format!("{binary} store serve --dir {images} --listen {LISTEN}");
    host.start(&command, &far.dir().join("store.log"))
}

fn boot(packed: bool, transport: &str) -> Result<Lab> {
    let assets = assets::get()?;
    let hosts = [Netns::new()?, Netns::new()?];
    let [near_host, far_host] = &hosts;
    near_host.sh(&format!("ip link add near type veth peer name far netns {}", far_host.name()))?;
    for (host, name, address) in [(near_host, "near", 1), (far_host, "far", 2)] {
        host.sh(&format!("ip addr add 10.2.0.{address}/24 dev {name} && ip link set {name} up"))?;
    }
    let far = Hayate::start_under(&inside(far_host), &[])?;
    far.cli(&format!("image import {} system --format raw", assets.disk.display()))?;
    far.cli("image clone system root")?;
    far.cli("image create base --size 256M --format qcow2")?;
    far.cli("image clone base thin")?;
    far.cli("image create raw --size 256M --format raw")?;
    let store = store(far_host, &far)?;
    let near = Hayate::start_under(&inside(near_host), &[])?;
    let mut config = Config::new("far-disks");
    config.cpus = 2;
    config.boots_from_disk = true;
    for disk in DISKS {
        let add = format!(
            "disk add {disk} --image store://{LISTEN}/{disk} --queues 2 --transport {transport}"
        );
        wait_for("the store", Duration::from_secs(20), || {
            pause(Duration::from_millis(40))?;
            Ok(near.cli(&add).ok())
        })?;
        let more = if packed { "--packed" } else { "" };
        config.more.extend(near.disk_qemu(assets, disk, more)?);
    }
    let mut guest = Guest::start(assets, near.dir(), config)?;
    guest.wait_ready()?;
    // From here on the kernel has nothing to complain of.
    guest.sh("dmesg -c >/dev/null")?;
    Ok(Lab { guest, near, far, store, hosts })
}

impl Lab {
    /// Fails when the guest's kernel said anything about its disks, or a disk failed or refused a
    /// request.
    fn unharmed(&mut self) -> Result<()> {
        let said = self.guest.sh("dmesg")?;
        let bad = ["error", "fail", "timeout", "blocked for", "corrupt", "WARNING", "BUG"];
        let lines: Vec<&str> =
            said.lines().filter(|line| bad.iter().any(|word| line.contains(word))).collect();
        ensure!(lines.is_empty(), "the guest's kernel says:\n{}", lines.join("\n"));
        for disk in DISKS {
            let d = self.near.disk(disk)?;
            ensure!(d.refused.is_empty(), "disk {disk} refused: {:?}", d.refused);
            ensure!(d.last_error.is_none(), "disk {disk}: {:?}", d.last_error);
            ensure!(d.last_fault.is_none(), "disk {disk}: {:?}", d.last_fault);
        }
        self.near.check()
    }

    /// Waits until all disks run and reach their store.
    fn running(&self) -> Result<()> {
        for disk in DISKS {
            wait_for(&format!("disk {disk} to run"), Duration::from_secs(30), || {
                let d = self.near.disk(disk)?;
                pause(Duration::from_millis(40))?;
                let connected = d.store.is_some_and(|store| store.connected);
                Ok((d.state == PortState::Running && connected).then_some(()))
            })?;
        }
        Ok(())
    }

    fn writes(&self, disk: &str) -> Result<u64> {
        Ok(self.near.disk(disk)?.operations.get("write").map_or(0, |all| all.count))
    }
}

/// The command: random writes that are read again and verified.
fn fio(options: &str) -> String {
    let mut command = format!(
        "cd /tmp && fio --thread --direct=1 --rw=randwrite --verify=crc32c --verify_fatal=1 \
         --verify_state_save=0 --randrepeat=0 --minimal {options}"
    );
    for (disk, device) in WRITTEN {
        command.push_str(&format!(" --name={disk} --filename=/dev/{device}"));
    }
    command
}

fn boots_from_the_store(lab: &mut Lab) -> Result<String> {
    let mounts = lab.guest.sh("cat /proc/mounts")?;
    ensure!(mounts.contains("/dev/vda1 / ext4 rw"), "the root is elsewhere:\n{mounts}");
    let d = lab.near.disk("root")?;
    ensure!(d.store.is_some_and(|store| store.connected), "the root is not in the store");
    // The host with the images knows who has them.
    let used = lab.far.image("root")?.used.unwrap_or_default();
    ensure!(used.contains("disk root of"), "the image is used {used:?}");
    lab.unharmed()?;
    Ok(format!("in {:.1} s", lab.guest.boot_seconds))
}

/// A libfabric in the program's own directory of libraries goes before the system's.
fn loads_its_own_libfabric(lab: &mut Lab) -> Result<String> {
    let all: serde_json::Value = serde_json::from_str(&lab.near.cli("fabric list --json")?)?;
    let (version, loaded) = (&all["libfabric"], all["library"].as_str());
    let own = lab.near.binary().canonicalize()?.with_file_name("../lib/hayate/libfabric.so.1");
    let loaded = PathBuf::from(loaded.context(|| format!("none was loaded: {all}"))?);
    if let Ok(own) = own.canonicalize() {
        ensure!(loaded == own, "{} was loaded, not {}", loaded.display(), own.display());
    }
    Ok(format!("{version}, {}", loaded.display()))
}

/// Requests of every size, all of which are found again; what is discarded takes no space there.
fn fio_verifies(lab: &mut Lab) -> Result<String> {
    let jobs = [
        "--ioengine=libaio --iodepth=32 --bs=4k --size=16M --offset=0",
        "--ioengine=libaio --iodepth=16 --bsrange=512-128k --bs_unaligned=0 --blockalign=512 --size=32M --offset=32M",
        "--ioengine=libaio --iodepth=4 --bs=2M --size=48M --offset=96M",
        "--ioengine=psync --fsync=16 --bs=16k --size=4M --offset=200M",
    ];
    for job in jobs {
        lab.guest.sh_for(LIMIT, &fio(job))?;
        lab.unharmed()?;
    }
    for (disk, device) in WRITTEN {
        let before = lab.far.image(disk)?.allocated;
        lab.guest.sh(&format!("blkdiscard /dev/{device}"))?;
        let after = lab.far.image(disk)?.allocated;
        ensure!(after + (64 << 20) < before, "{disk}: {before} bytes before, {after} after");
    }
    lab.unharmed()?;
    Ok(format!("{} jobs of two disks each, no byte was wrong", jobs.len()))
}

/// Something happens under fio, three times, and fio notices nothing.
fn under_fio(lab: &mut Lab, harm: impl Fn(&mut Lab) -> Result<()>) -> Result<String> {
    const LOG: &str = "/tmp/fio.log";
    let job = fio("--ioengine=libaio --iodepth=16 --bs=4k --size=48M --offset=64M");
    lab.guest.sh("rm -f /tmp/fio.end")?;
    lab.guest.background(&format!("{job}; echo $? >/tmp/fio.end"), LOG)?;
    for _ in 0..3 {
        for (disk, _) in WRITTEN {
            let before = lab.writes(disk)?;
            wait_for(&format!("writes of {disk}"), LIMIT, || {
                Ok((lab.writes(disk)? > before + 200).then_some(()))
            })?;
        }
        harm(lab)?;
        lab.running()?;
    }
    wait_for("the end of fio", LIMIT, || {
        pause(Duration::from_millis(100))?;
        Ok((lab.guest.try_sh("test -e /tmp/fio.end", LIMIT)?.0 == 0).then_some(()))
    })
    .context(|| tail(&lab.near.log(), 2000))?;
    let status = lab.guest.sh("cat /tmp/fio.end")?;
    if status.trim() != "0" {
        bail!("fio ended with {status}{}", lab.guest.sh(&format!("cat {LOG}; dmesg"))?);
    }
    lab.unharmed()?;
    Ok("three times; all bytes verified".into())
}

fn store_killed_under_fio(lab: &mut Lab) -> Result<String> {
    under_fio(lab, |lab| {
        lab.store.kill();
        pause(Duration::from_millis(500))?;
        lab.store = store(&lab.hosts[1], &lab.far)?;
        Ok(())
    })
}

fn cable_pulled_under_fio(lab: &mut Lab) -> Result<String> {
    under_fio(lab, |lab| {
        lab.hosts[1].sh("ip link set far down")?;
        pause(Duration::from_secs(1))?;
        lab.hosts[1].sh("ip link set far up")?;
        Ok(())
    })
}

fn daemon_killed_under_fio(lab: &mut Lab) -> Result<String> {
    under_fio(lab, |lab| {
        lab.near.kill9();
        lab.near.launch()
    })
}

/// The guest ends; the images are whole.
fn images_are_whole(lab: Lab) -> Result<String> {
    let Lab { mut guest, mut near, far, mut store, hosts } = lab;
    guest.sh("sync")?;
    drop(guest);
    near.check()?;
    near.terminate()?;
    store.terminate(Duration::from_secs(20))?;
    for disk in DISKS {
        let check: api::ImageCheck =
            serde_json::from_str(&far.cli(&format!("image check {disk} --json"))?)?;
        ensure!(check.sound, "image check {disk}: {:?}", check.errors);
    }
    far.stop()?;
    drop(hosts);
    Ok(format!("{} of them", DISKS.len()))
}

fn group(suite: &mut Suite, packed: bool, transport: &'static str) {
    let mut cases = vec![
        case("boots_from_the_store", boots_from_the_store),
        case("fio_verifies", fio_verifies),
        case("store_killed_under_fio", store_killed_under_fio),
        case("daemon_killed_under_fio", daemon_killed_under_fio),
    ];
    if transport != "shm" {
        cases.push(case("cable_pulled_under_fio", cable_pulled_under_fio));
    }
    if transport == "libfabric" {
        cases.insert(0, case("loads_its_own_libfabric", loads_its_own_libfabric));
    }
    suite.group(transport, move || boot(packed, transport), cases, images_are_whole);
}

fn main() -> ExitCode {
    suite_main(|suite| {
        group(suite, true, "tcp");
        group(suite, true, "libfabric");
        group(suite, false, "shm");
    })
}
