//! Disks in front of a stock QEMU, a stock Linux and its virtio-blk driver.
//!
//! The guest's firmware boots it from a thin clone of an imported image; further disks are a raw
//! image, a thin clone with known bytes behind it, and that base itself, read-only. fio writes them
//! and verifies by crc32c; they are discarded, resized and written through while the guest runs, it
//! reboots, and the daemon is killed and stopped and snapshots are made under fio. At the end `hayate image check`,
//! `qemu-img check` and `qemu-img compare` agree on every image.
//!
//! All of it once with split rings past the host's page cache, once with packed rings through it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::PortState;
use e2e::guest::{Config, Guest};
use e2e::hayate::Hayate;
use e2e::process::{output, pause, run, tail, wait_for};
use e2e::suite::{Suite, case, main as suite_main};
use e2e::traffic::Host;
use e2e::{Context, Result, assets, bail, ensure};

/// The guest's disks in order: `vda` is the one it boots from.
const DISKS: [&str; 4] = ["root", "raw", "thin", "base"];
/// Those that fio writes.
const WRITTEN: [&str; 2] = ["raw", "thin"];
const MIB: u64 = 1 << 20;
/// Size of the disks but that of the root.
const SIZE: u64 = 256 * MIB;
/// Longest time fio may take for one job.
const LIMIT: Duration = Duration::from_secs(180);

struct Lab {
    guest: Guest,
    hayate: Hayate,
    /// The file that was imported as `base`.
    base: PathBuf,
    packed: bool,
}

/// The device of a disk in the guest.
fn device(disk: &str) -> String {
    let index = DISKS.iter().position(|&d| d == disk).unwrap_or_default();
    format!("vd{}", ["a", "b", "c", "d"][index])
}

/// Through the host's page cache or past it.
fn cache(packed: bool) -> &'static str {
    if packed { "host" } else { "direct" }
}

/// Serves an image as the disk of its name.
fn add(hayate: &Hayate, disk: &str, cache: &str) -> Result<()> {
    let readonly = if disk == "base" { "--readonly" } else { "" };
    let options = format!("--image {disk} --queues 2 --cache {cache} {readonly}");
    hayate.cli(&format!("disk add {disk} {options}")).map(drop)
}

fn boot(packed: bool) -> Result<Lab> {
    let assets = assets::get()?;
    let hayate = Hayate::start(&[])?;
    // Bytes that say where they are, so that no two sectors are the same.
    let base = hayate.dir().join("base.img");
    let bytes: Vec<u8> = (0..SIZE / 8).flat_map(u64::to_le_bytes).collect();
    fs::write(&base, bytes)?;
    hayate.cli(&format!("image import {} system --format raw", assets.disk.display()))?;
    hayate.cli(&format!("image import {} base --format raw --to qcow2", base.display()))?;
    hayate.cli("image clone system root")?;
    hayate.cli("image clone base thin")?;
    hayate.cli("image create raw --size 256M --format raw")?;
    let mut config = Config::new("disks");
    config.cpus = 2;
    config.boots_from_disk = true;
    for disk in DISKS {
        add(&hayate, disk, cache(packed))?;
        let more = if packed { "--packed" } else { "" };
        config.more.extend(hayate.disk_qemu(assets, disk, more)?);
    }
    let mut guest = Guest::start(assets, hayate.dir(), config)?;
    guest.wait_ready()?;
    // From here on the kernel has nothing to complain of.
    guest.sh("dmesg -c >/dev/null")?;
    Ok(Lab { guest, hayate, base, packed })
}

impl Lab {
    /// Waits until all disks run.
    fn running(&self) -> Result<()> {
        for disk in DISKS {
            wait_for(&format!("disk {disk} to run"), Duration::from_secs(30), || {
                let d = self.hayate.disk(disk)?;
                pause(Duration::from_millis(40))?;
                ensure!(d.state != PortState::Faulted, "disk {disk}: {:?}", d.failure);
                Ok((d.state == PortState::Running).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Fails when the guest's kernel said anything about its disks, or a disk failed or refused a
    /// request.
    fn unharmed(&mut self) -> Result<()> {
        let said = self.guest.sh("dmesg")?;
        let bad = ["error", "fail", "timeout", "blocked for", "corrupt", "WARNING", "BUG"];
        let lines: Vec<&str> =
            said.lines().filter(|line| bad.iter().any(|word| line.contains(word))).collect();
        ensure!(lines.is_empty(), "the guest's kernel says:\n{}", lines.join("\n"));
        for disk in DISKS {
            let d = self.hayate.disk(disk)?;
            ensure!(d.refused.is_empty(), "disk {disk} refused: {:?}", d.refused);
            ensure!(d.last_error.is_none(), "disk {disk}: {:?}", d.last_error);
            ensure!(d.last_fault.is_none(), "disk {disk}: {:?}", d.last_fault);
        }
        self.hayate.check()
    }

    /// Runs fio on each of the disks `WRITTEN` at once.
    fn fio(&mut self, options: &str) -> Result<()> {
        self.guest.sh_for(LIMIT, &fio(options))?;
        self.unharmed()
    }

    /// Writes that a disk has carried out since the daemon started.
    fn writes(&self, disk: &str) -> Result<u64> {
        Ok(self.hayate.disk(disk)?.operations.get("write").map_or(0, |all| all.count))
    }
}

/// The command: random writes that are read again and verified.
fn fio(options: &str) -> String {
    let mut command = format!(
        "cd /tmp && fio --thread --direct=1 --rw=randwrite --verify=crc32c --verify_fatal=1 \
         --verify_state_save=0 --randrepeat=0 --minimal {options}"
    );
    for disk in WRITTEN {
        command.push_str(&format!(" --name={disk} --filename=/dev/{}", device(disk)));
    }
    command
}

/// It stands on what it booted from, and has the queues and rings that were asked for.
fn boots_from_its_disk(lab: &mut Lab) -> Result<String> {
    let mounts = lab.guest.sh("cat /proc/mounts")?;
    ensure!(mounts.contains("/dev/vda1 / ext4 rw"), "the root is elsewhere:\n{mounts}");
    for disk in DISKS {
        let block = format!("/sys/block/{}", device(disk));
        let serial = lab.guest.sh(&format!("cat {block}/serial"))?;
        ensure!(serial.trim() == disk, "{block} is {serial:?}, not {disk}");
        let queues = lab.guest.sh(&format!("ls {block}/mq | wc -l"))?;
        ensure!(queues.trim() == "2", "{block} has {queues} queues");
        let d = lab.hayate.disk(disk)?;
        ensure!(d.queues.len() == 2, "disk {disk}: {:?}", d.queues);
        ensure!(d.queues.iter().all(|q| q.packed == lab.packed), "disk {disk}: {:?}", d.queues);
    }
    let [system, root] = ["system", "root"].map(|name| lab.hayate.image(name));
    let (system, root) = (system?.allocated, root?.allocated);
    ensure!(root < system / 4, "the clone takes {root} bytes, its base {system}");
    lab.unharmed()?;
    Ok(format!(
        "in {:.1} s; the clone takes {} KiB of {} MiB",
        lab.guest.boot_seconds,
        root >> 10,
        system / MIB
    ))
}

/// Both CPUs send requests by queues of their own, of every size, and find all of it again.
fn fio_verifies(lab: &mut Lab) -> Result<String> {
    let jobs = [
        "--ioengine=libaio --iodepth=32 --bs=4k --size=24M --offset=0",
        "--ioengine=libaio --iodepth=16 --bsrange=512-128k --bs_unaligned=0 --blockalign=512 --size=48M --offset=32M",
        "--ioengine=libaio --iodepth=4 --bs=1M --size=64M --offset=96M",
        "--ioengine=psync --fsync=16 --bs=16k --size=8M --offset=200M",
    ];
    for job in jobs {
        lab.fio(job)?;
    }
    Ok(format!("{} jobs of two disks each, no byte was wrong", jobs.len()))
}

/// Where nothing was written to a clone, it is its base; and the base is as it was imported.
fn clone_shows_its_base(lab: &mut Lab) -> Result<String> {
    let (thin, base) = (device("thin"), device("base"));
    // fio wrote nothing from 208 MiB on.
    lab.guest.sh(&format!(
        "for d in {thin} {base}; do dd if=/dev/$d bs=1M skip=216 count=40 iflag=direct 2>/dev/null | \
         sha256sum; done | uniq | wc -l | grep -qx 1"
    ))?;
    let there = lab.guest.sh(&format!("sha256sum </dev/{base}"))?;
    let here = run("sha256sum", &[&lab.base.to_string_lossy()])?;
    let sum = |text: &str| text.split_whitespace().next().map(String::from);
    ensure!(sum(&there) == sum(&here), "the guest reads {there}, imported was {here}");
    lab.unharmed()?;
    Ok("bytes of the base under the clone and on the disk of its own".into())
}

/// A read-only disk says so and takes no write.
fn readonly_is_refused(lab: &mut Lab) -> Result<String> {
    let base = device("base");
    lab.guest.sh(&format!("grep -qx 1 /sys/block/{base}/ro"))?;
    let (status, said) =
        lab.guest.try_sh(&format!("dd if=/dev/zero of=/dev/{base} bs=4k count=1"), LIMIT)?;
    ensure!(status != 0, "a write to it succeeded: {said}");
    let written = lab.writes("base")?;
    ensure!(written == 0, "{written} writes arrived");
    Ok("the guest knows; no write arrived".into())
}

/// What the guest discards takes no space on the host any more.
fn discard_frees_space(lab: &mut Lab) -> Result<String> {
    let mut freed = Vec::new();
    for disk in WRITTEN {
        let device = device(disk);
        lab.guest.sh(&format!(
            "dd if=/dev/urandom of=/dev/{device} bs=1M count=64 oflag=direct conv=fsync 2>/dev/null"
        ))?;
        let before = lab.hayate.image(disk)?.allocated;
        lab.guest.sh(&format!("blkdiscard -o 0 -l {} /dev/{device}", 64 * MIB))?;
        let after = lab.hayate.image(disk)?.allocated;
        ensure!(
            after + 60 * MIB < before,
            "{disk}: {before} bytes on the host before, {after} after a discard of 64 MiB"
        );
        freed.push(format!("{disk} {} MiB", (before - after) / MIB));
    }
    // A file system does so by itself.
    lab.guest.sh("dd if=/dev/urandom of=/root/big bs=1M count=48 conv=fsync 2>/dev/null")?;
    let before = lab.hayate.image("root")?.allocated;
    lab.guest.sh("rm /root/big && sync && fstrim /")?;
    let after = lab.hayate.image("root")?.allocated;
    ensure!(after + 40 * MIB < before, "root: {before} bytes before, {after} after fstrim");
    freed.push(format!("root {} MiB by fstrim", (before - after) / MIB));
    lab.unharmed()?;
    Ok(freed.join(", "))
}

/// The guest sees another size without a reboot, and can use what was added.
fn grows_under_the_guest(lab: &mut Lab) -> Result<String> {
    for disk in WRITTEN {
        let device = device(disk);
        lab.hayate.cli(&format!("image resize {disk} 320M"))?;
        let sectors = 320 * MIB / 512;
        wait_for("the guest to see the new size", Duration::from_secs(30), || {
            let size = lab.guest.sh(&format!("cat /sys/block/{device}/size"))?;
            Ok((size.trim() == sectors.to_string()).then_some(()))
        })?;
    }
    lab.fio("--ioengine=libaio --iodepth=8 --bs=64k --size=64M --offset=256M")?;
    Ok("320 MiB seen at once, the last 64 written and verified".into())
}

/// What the guest says of its write cache, the daemon heeds.
fn write_through(lab: &mut Lab) -> Result<String> {
    let set = |lab: &mut Lab, mode: &str, writeback: bool| {
        for disk in WRITTEN {
            let file = format!("/sys/block/{}/cache_type", device(disk));
            lab.guest.sh(&format!("echo {mode} >{file} && grep -qx '{mode}' {file}"))?;
            let d = lab.hayate.disk(disk)?;
            ensure!(d.writeback == writeback, "{disk}: {mode}, but writeback is {}", d.writeback);
        }
        Ok(())
    };
    set(lab, "write through", false)?;
    lab.fio("--ioengine=libaio --iodepth=8 --bs=8k --size=8M --offset=128M")?;
    set(lab, "write back", true)?;
    Ok("and back".into())
}

/// A file outlives a reboot, and the guest boots from what it wrote.
fn file_survives_a_reboot(lab: &mut Lab) -> Result<String> {
    let sum = lab.guest.sh(
        "dd if=/dev/urandom of=/root/file bs=1M count=8 2>/dev/null; sync; sha256sum /root/file",
    )?;
    let seconds = lab.guest.reboot()?;
    let again = lab.guest.sh("sha256sum /root/file")?;
    ensure!(sum == again, "before {sum}, after {again}");
    lab.guest.sh("dmesg -c >/dev/null")?;
    lab.running()?;
    lab.unharmed()?;
    Ok(format!("back after {seconds:.1} s, with its file"))
}

/// The disks, or the daemon with them, go away under fio, three times, and come back: fio notices
/// nothing. In round `n` first `go(n)` is done and then `come(n)`.
fn goes_and_comes(
    lab: &mut Lab,
    go: impl Fn(&mut Hayate, u32) -> Result<()>,
    come: impl Fn(&mut Hayate, u32) -> Result<()>,
) -> Result<String> {
    const LOG: &str = "/tmp/fio.log";
    let job = fio("--ioengine=libaio --iodepth=16 --bs=4k --size=64M --offset=64M");
    lab.guest.sh("rm -f /tmp/fio.end")?;
    lab.guest.background(&format!("{job}; echo $? >/tmp/fio.end"), LOG)?;
    let mut in_flight = 0;
    for round in 0..3 {
        for disk in WRITTEN {
            let before = lab.writes(disk)?;
            wait_for(&format!("writes of {disk}"), LIMIT, || {
                Ok((lab.writes(disk)? > before + 200).then_some(()))
            })?;
        }
        for disk in WRITTEN {
            in_flight += lab.hayate.disk(disk)?.in_flight;
        }
        go(&mut lab.hayate, round)?;
        let (ended, _) = lab.guest.try_sh("test -e /tmp/fio.end", LIMIT)?;
        ensure!(ended != 0, "fio had ended before: {}", lab.guest.sh(&format!("cat {LOG}"))?);
        come(&mut lab.hayate, round)?;
        lab.running()?;
    }
    wait_for("the end of fio", LIMIT, || {
        pause(Duration::from_millis(100))?;
        Ok((lab.guest.try_sh("test -e /tmp/fio.end", LIMIT)?.0 == 0).then_some(()))
    })
    .context(|| tail(&lab.hayate.log(), 2000))?;
    let status = lab.guest.sh("cat /tmp/fio.end")?;
    if status.trim() != "0" {
        bail!("fio ended with {status}{}", lab.guest.sh(&format!("cat {LOG}; dmesg"))?);
    }
    lab.unharmed()?;
    Ok(format!("three times; {in_flight} requests were seen in flight; all bytes verified"))
}

/// Snapshots are made while fio writes.
fn snapshots_under_fio(lab: &mut Lab) -> Result<String> {
    let snapshot = |hayate: &mut Hayate, round| {
        for disk in WRITTEN {
            hayate.cli(&format!("image snapshot {disk} s{round}"))?;
        }
        Ok(())
    };
    let said = goes_and_comes(lab, snapshot, |_, _| Ok(()))?;
    for disk in WRITTEN {
        let chain = lab.hayate.image(disk)?.chain.unwrap_or_default();
        ensure!(chain.len() >= 3, "{disk} stands on {chain:?}");
    }
    Ok(said)
}

/// Disks are deleted and added again: their guest waits.
fn disks_removed_under_fio(lab: &mut Lab) -> Result<String> {
    let cache = cache(lab.packed);
    let remove = |hayate: &mut Hayate, _| {
        WRITTEN.iter().try_for_each(|disk| hayate.cli(&format!("disk del {disk}")).map(drop))
    };
    let add = |hayate: &mut Hayate, _| WRITTEN.iter().try_for_each(|disk| add(hayate, disk, cache));
    goes_and_comes(lab, remove, add)
}

/// The guest ends; who else knows these formats finds the images whole.
fn qemu_img_agrees(lab: Lab) -> Result<String> {
    let Lab { mut guest, mut hayate, base, .. } = lab;
    guest.sh("sync")?;
    drop(guest);
    hayate.check()?;
    for disk in DISKS {
        hayate.cli(&format!("disk del {disk}"))?;
    }
    let images = hayate.dir().join("state/images");
    let (mut compared, mut leaked) = (0, 0);
    for name in ["system", "root", "raw", "thin", "base"] {
        let format = hayate.image(name)?.format;
        let file = images.join(name).join(format!("image.{format}")).display().to_string();
        if format == api::ImageFormat::Qcow2 {
            leaked += whole(&hayate, name, &file)?;
        }
        for to in ["raw", "qcow2"] {
            let out = hayate.dir().join(format!("{name}.{to}")).display().to_string();
            hayate.cli(&format!("image export {name} {out} --format {to}"))?;
            run("qemu-img", &["compare", "-f", format.as_str(), "-F", to, &file, &out])?;
            if to == "qcow2" {
                run("qemu-img", &["check", "-f", "qcow2", &out])?;
            }
            compared += 1;
        }
    }
    let exported = hayate.dir().join("base.raw").display().to_string();
    run("cmp", &[&base.to_string_lossy(), &exported])?;
    hayate.terminate()?;
    Ok(format!("{compared} exports are what qemu-img reads; {leaked} clusters lost by the kills"))
}

/// No error in a qcow2 image by hayate's and by QEMU's judgement. Clusters that nothing refers to,
/// which is all that a killed daemon may leave, are the same for both; how many.
fn whole(hayate: &Hayate, name: &str, file: &str) -> Result<u64> {
    let ours = hayate.cli(&format!("image check {name} --json"))?;
    let ours: api::ImageCheck = serde_json::from_str(&ours)?;
    ensure!(ours.sound, "image check {name}: {:?}", ours.errors);
    let args = ["check", "-f", "qcow2", "--output=json", file];
    let said = output("qemu-img", &args, LIMIT)?;
    let theirs: serde_json::Value = serde_json::from_str(&said.out)
        .context(|| format!("qemu-img check {name}: {}", said.err))?;
    let count = |key: &str| theirs[key].as_u64().unwrap_or(0);
    ensure!(count("corruptions") + count("check-errors") == 0, "qemu-img check {name}: {theirs}");
    ensure!(count("leaks") == ours.leaked_clusters, "{name}: {ours:?}, but qemu-img: {theirs}");
    Ok(count("leaks"))
}

fn group(suite: &mut Suite, name: &str, packed: bool) {
    let cases = vec![
        case("boots_from_its_disk", boots_from_its_disk),
        case("fio_verifies", fio_verifies),
        case("clone_shows_its_base", clone_shows_its_base),
        case("readonly_is_refused", readonly_is_refused),
        case("discard_frees_space", discard_frees_space),
        case("grows_under_the_guest", grows_under_the_guest),
        case("write_through", write_through),
        case("file_survives_a_reboot", file_survives_a_reboot),
        case("daemon_killed_under_fio", |lab: &mut Lab| {
            let kill = |hayate: &mut Hayate, _| {
                hayate.kill9();
                Ok(())
            };
            goes_and_comes(lab, kill, |hayate, _| hayate.launch())
        }),
        case("daemon_stopped_under_fio", |lab: &mut Lab| {
            goes_and_comes(lab, |hayate, _| hayate.terminate(), |hayate, _| hayate.launch())
        }),
        case("snapshots_under_fio", snapshots_under_fio),
        case("disks_removed_under_fio", disks_removed_under_fio),
    ];
    suite.group(name, move || boot(packed), cases, qemu_img_agrees);
}

fn main() -> ExitCode {
    suite_main(|suite| {
        group(suite, "split", false);
        group(suite, "packed", true);
    })
}
