//! A disk whose store reaches its guest's memory by RDMA: two QEMU guests as hosts, with soft-RoCE.
//!
//! One guest has images and a store, the other a daemon and a front end of vhost-user-blk that others
//! wrote (`blk`, for which see its top). Between them is a cable of QEMU's, so that neither this machine
//! nor its kernel needs anything of RDMA. All that is hayate's there is this machine's: binary, libfabric,
//! libibverbs and the driver of the device.
//!
//! Bytes are verified while either side is killed, the cable is pulled, and the whole peer is gone.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use api::Transport;
use e2e::guest::{Config, Guest};
use e2e::process::{pause, wait_for};
use e2e::suite::{Case, case, main as suite_main};
use e2e::{Context, Result, argv, assets, bail, ensure, hosted};

const STORE: &str = "10.0.0.1:4420";
const IMAGE: &str = "disk";
const IMAGE_FILE: &str = "/tmp/run/state/images/disk/image.raw";
const SOCKET: &str = "/tmp/run/disks/disk.sock";
/// MiB of the image.
const SIZE: u32 = 4;
/// What the writer that verifies leaves alone, 4 KiB each: the last of the image.
const BLOCKS: u32 = 64;
/// Requests for them, of 16 KiB each.
const REQUESTS: u32 = BLOCKS / 4;
const LEFT: u32 = (SIZE << 20) - BLOCKS * 4096;
/// The host with the disk has the system's libfabric, that of the store hayate's own where there is one: Debian 12's and a newer.
const SYSTEM: &str = "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu";
/// Longest time anything may take that has no limit of its own.
const LIMIT: Duration = Duration::from_secs(60);
/// What is looked at again and again is left alone for so long.
const NAP: Duration = Duration::from_millis(100);

/// A guest that is a host: what runs there, by the name of its log.
struct Machine {
    guest: Guest,
    /// What says which libfabric is loaded.
    environment: &'static str,
}

struct Lab {
    /// With the images.
    far: Machine,
    /// With the front end.
    near: Machine,
    _dir: tempfile::TempDir,
}

impl Machine {
    /// Starts a program, whose id and output are in files of that name.
    fn start(&mut self, name: &str, command: &str) -> Result<()> {
        self.guest.sh(&format!(
            "sh -c 'echo $$ >/tmp/{name}.pid; {} exec host {command}' >>/tmp/{name}.log 2>&1 </dev/null &",
            self.environment
        ))?;
        wait_for(name, LIMIT, || {
            let there = format!("test -s /tmp/{name}.pid");
            Ok((self.guest.try_sh(&there, LIMIT)?.0 == 0).then_some(()))
        })
    }

    fn signal(&mut self, name: &str, signal: &str) -> Result<()> {
        self.guest.sh(&format!("kill -{signal} $(cat /tmp/{name}.pid)")).map(drop)
    }

    /// SIGKILL; returns when it has gone.
    fn kill(&mut self, name: &str) -> Result<()> {
        self.signal(name, "KILL")?;
        self.gone(name)
    }

    fn gone(&mut self, name: &str) -> Result<()> {
        let gone = format!("! test -e /proc/$(cat /tmp/{name}.pid)");
        wait_for(&format!("the end of {name}"), LIMIT, || {
            Ok((self.guest.try_sh(&gone, LIMIT)?.0 == 0).then_some(()))
        })
        .context(|| self.log(name))?;
        self.guest.sh(&format!("rm /tmp/{name}.pid")).map(drop)
    }

    fn log(&mut self, name: &str) -> String {
        let tail = format!("tail -c 3000 /tmp/{name}.log; dmesg | tail -n 5");
        self.guest.try_sh(&tail, LIMIT).map_or_else(|error| error.to_string(), |(_, text)| text)
    }

    fn hayate(&mut self, words: &str) -> Result<String> {
        let environment = self.environment;
        self.guest.sh(&format!("{environment} host hayate --run-dir /tmp/run {words}"))
    }

    fn disk(&mut self, name: &str) -> Result<api::Disk> {
        let text = self.hayate(&format!("disk show {name} --json"))?;
        serde_json::from_str(&text).context(|| format!("disk show --json printed {text}"))
    }

    fn daemon(&mut self) -> Result<()> {
        self.daemon_under("")
    }

    /// Starts the daemon by a program.
    fn daemon_under(&mut self, program: &str) -> Result<()> {
        self.start("daemon", &format!("{program}/bin/hayate daemon --run-dir /tmp/run"))?;
        wait_for("an answer of the daemon", LIMIT, || {
            pause(NAP)?;
            Ok(self.hayate("disk list").ok())
        })
        .context(|| self.log("daemon"))
        .map(drop)
    }

    /// Waits until a log has this line, with whatever follows, after the first `from` bytes.
    fn says(&mut self, name: &str, line: &str) -> Result<String> {
        wait_for(&format!("{name} to say {line:?}"), LIMIT, || {
            let text = self.guest.sh(&format!("cat /tmp/{name}.log"))?;
            if let Some(bad) = text.lines().find(|said| said.starts_with("blk: ")) {
                bail!("{bad}");
            }
            let found = text.lines().find(|said| said.starts_with(line)).map(str::to_owned);
            if found.is_none() {
                pause(NAP)?;
            }
            Ok(found)
        })
        .context(|| self.log(name))
    }

    /// What soft-RoCE counts.
    fn packets(&mut self, counter: &str) -> Result<u64> {
        let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{counter}");
        Ok(self.guest.sh(&format!("cat {path}"))?.trim().parse()?)
    }
}

fn boot() -> Result<Lab> {
    let assets = assets::get()?;
    let ends = assets::integration_test("ends")?;
    let programs = [(assets::hayate()?, "hayate"), (assets::blk()?, "blk"), (ends, "ends")];
    let initrd = hosted::rdma_initrd(assets, &programs, "initrd-verbs")?;
    let dir = tempfile::Builder::new().prefix("hayate-e2e-").tempdir()?;
    let cable = dir.path().join("cable");
    let start = |name: &str, number: u8, end: &str, environment| -> Result<Machine> {
        let mut config = Config::new(name);
        config.kernel = Some(assets.rdma.0.clone());
        config.initrd = Some(initrd.clone());
        let path = cable.display();
        config.more = argv![
            "-netdev",
            format!("stream,id=cable,{end},addr.type=unix,addr.path={path}"),
            "-device",
            format!("virtio-net-pci,netdev=cable,mac=52:54:00:00:02:{number:02x}"),
        ];
        Ok(Machine { guest: Guest::start(assets, dir.path(), config)?, environment })
    };
    let far = start("far", 1, "server=on", "")?;
    let near = start("near", 2, "server=off,reconnect-ms=100", SYSTEM)?;
    let mut lab = Lab { far, near, _dir: dir };
    for (machine, number) in [(&mut lab.far, 1), (&mut lab.near, 2)] {
        machine.guest.wait_ready()?;
        machine.guest.sh(&format!(
            "ip link set eth0 mtu 4200 up && ip addr add 10.0.0.{number}/24 dev eth0 && \
             rdma link add rxe0 type rxe netdev eth0"
        ))?;
    }
    lab.far.daemon()?;
    lab.far.hayate(&format!("image create {IMAGE} --size {SIZE}M --format raw"))?;
    lab.store()?;
    lab.near.daemon()?;
    lab.add("")?;
    lab.connected()?;
    Ok(lab)
}

impl Lab {
    fn store(&mut self) -> Result<()> {
        self.store_under("")
    }

    /// Starts the store by a program.
    fn store_under(&mut self, program: &str) -> Result<()> {
        let serve = format!("store serve --dir /tmp/run/state/images --listen {STORE}");
        self.far.start("store", &format!("{program}/bin/hayate {serve}"))
    }

    fn add(&mut self, transport: &str) -> Result<()> {
        let add = format!("disk add disk --image store://{STORE}/{IMAGE} {transport}");
        wait_for("the store", LIMIT, || {
            pause(NAP)?;
            Ok(self.near.hayate(&add).ok())
        })
        .context(|| self.near.log("daemon"))
        .map(drop)
    }

    /// The store of the disk while it is connected. A daemon that starts before its store has none yet.
    fn reached(&mut self) -> Result<Option<api::DiskStore>> {
        Ok(self.near.disk("disk")?.store.filter(|store| store.connected))
    }

    /// Waits until the disk reaches its store, which has to be by the device.
    fn connected(&mut self) -> Result<()> {
        wait_for("the disk to reach its store", LIMIT, || {
            pause(NAP)?;
            self.reached()
        })
        .context(|| self.logs())
        .and_then(|store| {
            ensure!(store.transport == Transport::Libfabric, "by {}", store.transport.as_str());
            ensure!(store.provider.as_deref() == Some("verbs"), "by {:?}", store.provider);
            Ok(())
        })
    }

    /// Waits until the disk reaches its store by TCP.
    fn by_tcp(&mut self) -> Result<()> {
        wait_for("the disk to reach its store by TCP", LIMIT, || {
            pause(NAP)?;
            let by_tcp = |store: &api::DiskStore| store.transport == Transport::Tcp;
            Ok(self.reached()?.filter(by_tcp).map(drop))
        })
        .context(|| self.logs())
    }

    /// Rounds of the writer that verifies.
    fn rounds(&mut self) -> Result<u64> {
        let last = self.near.guest.sh("cat /tmp/writer.log")?;
        if let Some(bad) = last.lines().find(|said| said.starts_with("blk: ")) {
            bail!("{bad}\n{}", self.logs());
        }
        let mut round = last.lines().filter_map(|line| line.strip_prefix("round ")?.parse().ok());
        Ok(round.next_back().unwrap_or(0))
    }

    /// Waits until the writer that verifies has gone on.
    fn goes_on(&mut self) -> Result<()> {
        let before = self.rounds()?;
        wait_for("rounds of the writer", LIMIT, || {
            pause(NAP)?;
            Ok((self.rounds()? >= before + 2).then_some(()))
        })
        .context(|| self.logs())
    }

    /// Stops the store and starts a program whose requests get to its memory all the same, to be looked at
    /// later; whether that connection is still in use.
    fn asked(&mut self, work: &str) -> Result<bool> {
        self.connected()?;
        let connections = |disk: &api::Disk| {
            disk.store.as_ref().filter(|store| store.connected).map(|store| store.connections)
        };
        let before = connections(&self.near.disk("disk")?);
        self.far.signal("store", "STOP")?;
        let mut last = self.far.packets("rdma_recvs")?;
        self.near.start("work", work)?;
        // A message has as many requests as it may: the last has come when no more do.
        wait_for("all requests to arrive", LIMIT, || {
            pause(NAP)?;
            let disk = self.near.disk("disk")?;
            let now = self.far.packets("rdma_recvs")?;
            let rest = now == std::mem::replace(&mut last, now);
            let there = before.is_some() && connections(&disk) == before;
            let all = rest && disk.in_flight == u64::from(REQUESTS);
            Ok((all || !there).then_some(there))
        })
        .context(|| self.logs())
    }

    /// Waits for the end of that program, which has to be a good one.
    fn work_ends(&mut self) -> Result<()> {
        self.near.says("work", "done")?;
        self.near.gone("work")?;
        self.near.guest.sh("rm /tmp/work.log").map(drop)
    }

    fn logs(&mut self) -> String {
        format!("{}--- store\n{}", self.near.log("daemon"), self.far.log("store"))
    }

    /// Puts the near end of the cable in or pulls it out.
    fn cable(&self, up: bool) -> Result<()> {
        let link = serde_json::json!({ "name": "cable", "up": up });
        self.near.guest.qmp("set_link", &link).map(drop)
    }

    fn writer(&mut self) -> Result<()> {
        self.near.start("writer", &format!("blk verify {SOCKET} /tmp/wanted"))?;
        self.goes_on()
    }

    /// What the blocks of a number are, and what those are that the writer leaves alone: checksums.
    fn pattern(&mut self, seed: u32) -> Result<String> {
        self.far.guest.sh(&format!("host blk pattern {BLOCKS} {seed} | sha256sum"))
    }

    fn left(&mut self) -> Result<String> {
        self.far.guest.sh(&format!("tail -c {} {IMAGE_FILE} | sha256sum", BLOCKS * 4096))
    }

    /// The writer is told what is in the blocks that it leaves alone.
    fn wanted(&mut self, seed: u32) -> Result<()> {
        let file = "/tmp/wanted";
        let place = format!("of={file} bs=4096 seek={} conv=notrunc", LEFT / 4096);
        self.near.guest.sh(&format!(
            "[ -e {file} ] || truncate -s {SIZE}M {file}; \
             host blk pattern {BLOCKS} {seed} | dd {place} 2>/dev/null"
        ))?;
        Ok(())
    }

    /// Ends the writer; the image file has what it wrote.
    fn writer_ends(&mut self) -> Result<String> {
        self.near.signal("writer", "TERM")?;
        self.near.gone("writer")?;
        let said = self.near.guest.sh("tail -n 1 /tmp/writer.log; rm /tmp/writer.log")?;
        let wanted = self.near.guest.sh("sha256sum </tmp/wanted")?;
        let there = self.far.guest.sh(&format!("sha256sum <{IMAGE_FILE}"))?;
        ensure!(wanted == there, "the image has other bytes: {said}");
        Ok(said.trim().to_owned())
    }
}

/// Each side says what it has.
fn devices_are_listed(lab: &mut Lab) -> Result<String> {
    let mut versions = Vec::new();
    for (machine, address) in [(&mut lab.far, "10.0.0.1"), (&mut lab.near, "10.0.0.2")] {
        let list = machine.hayate("fabric list")?;
        versions.push(list.lines().next().unwrap_or_default().to_owned());
        let line = list.lines().find(|line| line.starts_with("verbs") && line.contains(address));
        ensure!(line.is_some_and(|line| line.contains("rxe0")), "no device:\n{list}");
    }
    Ok(format!("verbs at rxe0: {}", versions.join(", ")))
}

/// Nothing was said of the transport: where there is a device, it is taken.
fn auto_takes_it_and_bytes_arrive(lab: &mut Lab) -> Result<String> {
    lab.connected()?;
    lab.writer()?;
    lab.writer_ends()
}

/// What moves bytes is the store and the two devices: the daemon that has the guest's memory is stopped
/// meanwhile.
fn the_daemon_moves_nothing(lab: &mut Lab) -> Result<String> {
    let (mut seed, mut tries) = (100, 0);
    for work in ["write", "read"] {
        // Other bytes each time they are written.
        seed += u32::from(work == "write");
        while !lab.asked(&format!("blk {work} {SOCKET} {LEFT} {BLOCKS} {seed}"))? {
            // Such a machine is slow: the daemon gave the store up before it could be stopped itself.
            tries += 1;
            seed += u32::from(work == "write");
            ensure!(tries < 8, "the daemon is never in time\n{}", lab.near.log("daemon"));
            lab.far.signal("store", "CONT")?;
            lab.work_ends()?;
        }
        lab.near.signal("daemon", "STOP")?;
        if work == "write" {
            let wanted = lab.pattern(seed)?;
            ensure!(lab.left()? != wanted, "the bytes were there already");
            lab.far.signal("store", "CONT")?;
            wait_for("the bytes in the image", LIMIT, || {
                pause(NAP)?;
                Ok((lab.left()? == wanted).then_some(()))
            })?;
        } else {
            lab.far.signal("store", "CONT")?;
            let there = lab.near.says("work", "there");
            let there = there.context(|| lab.logs())?;
            ensure!(there == "there, 0 answered", "the daemon was stopped, and {there}");
        }
        let state = lab.near.guest.sh("grep State: /proc/$(cat /tmp/daemon.pid)/status")?;
        ensure!(state.contains('T'), "the daemon was not stopped: {state}");
        lab.near.signal("daemon", "CONT")?;
        lab.work_ends()?;
    }
    lab.connected()?;
    lab.wanted(seed)?;
    let again = if tries > 0 { format!(", {tries} times in vain") } else { String::new() };
    Ok(format!("{REQUESTS} requests of either kind were done while it was stopped{again}"))
}

fn store_killed(lab: &mut Lab) -> Result<String> {
    lab.writer()?;
    for _ in 0..2 {
        lab.far.kill("store")?;
        lab.store()?;
        lab.connected()?;
        lab.goes_on()?;
    }
    lab.writer_ends()
}

fn daemon_killed(lab: &mut Lab) -> Result<String> {
    lab.writer()?;
    for _ in 0..2 {
        lab.near.kill("daemon")?;
        lab.near.daemon()?;
        lab.connected()?;
        lab.goes_on()?;
    }
    lab.writer_ends()
}

/// Hosts where so little memory may be pinned that the guest's, or the store's own, is not taken: bytes go
/// by TCP, and nobody is told of an error.
fn memory_is_not_pinned(lab: &mut Lab) -> Result<String> {
    lab.near.kill("daemon")?;
    // Enough for the messages of a connection.
    lab.near.daemon_under("blk limited 10000000 ")?;
    lab.connected()?;
    lab.writer()?;
    lab.by_tcp()?;
    lab.writer_ends()?;
    lab.near.kill("daemon")?;
    lab.far.kill("store")?;
    lab.store_under("blk limited 10000000 ")?;
    lab.near.daemon()?;
    lab.by_tcp()?;
    lab.writer()?;
    lab.writer_ends()?;
    lab.far.kill("store")?;
    lab.store()?;
    lab.connected()?;
    Ok("by TCP then".into())
}

/// The near end of the cable is out until the daemon has noticed. The far end hears nothing of it, and
/// what it was moving never ends: the image is opened again all the same.
fn cable_pulled(lab: &mut Lab) -> Result<String> {
    lab.writer()?;
    lab.cable(false)?;
    wait_for("the daemon to notice", LIMIT, || {
        pause(NAP)?;
        let store = lab.near.disk("disk")?.store.context(|| "no store".into())?;
        Ok((!store.connected).then_some(()))
    })?;
    lab.cable(true)?;
    lab.connected()?;
    lab.goes_on()?;
    lab.writer_ends()
}

/// The host with the front end is gone without a word. Somebody else gets the image when the store has
/// noticed, with all that was flushed. Meanwhile the tests of what is below hayate are run on the device.
fn peer_gone(lab: &mut Lab) -> Result<String> {
    const SEED: u32 = 78;
    lab.near.guest.sh(&format!("host blk write {SOCKET} {LEFT} {BLOCKS} {SEED}"))?;
    lab.wanted(SEED)?;
    lab.writer()?;
    lab.near.guest.kill9();
    let start = Instant::now();
    let add = format!("disk add other --image store://{STORE}/{IMAGE} --transport tcp");
    let (status, text) =
        lab.far.guest.try_sh(&format!("host hayate --run-dir /tmp/run {add}"), LIMIT)?;
    ensure!(
        status != 0 && text.contains("in use by disk disk of near"),
        "it was not in use: {text}"
    );
    lab.far.start("ends", "ends --test-threads 1")?;
    wait_for("the image to be free", LIMIT, || {
        pause(Duration::from_millis(500))?;
        Ok(lab.far.hayate(&add).ok())
    })
    .context(|| lab.far.log("store"))?;
    let seconds = start.elapsed().as_secs_f64();
    lab.far.guest.sh(&format!("host blk read /tmp/run/disks/other.sock {LEFT} {BLOCKS} {SEED}"))?;
    ensure!(lab.left()? == lab.pattern(SEED)?, "what was flushed is not in the image");
    let tests = lab.far.says("ends", "test result: ")?;
    ensure!(tests.starts_with("test result: ok"), "{}", lab.far.log("ends"));
    Ok(format!(
        "free after {seconds:.1} s; of the fabric's own tests, {}",
        &tests["test result: ".len()..]
    ))
}

fn cases() -> Vec<Case<Lab>> {
    vec![
        case("devices_are_listed", devices_are_listed),
        case("auto_takes_it_and_bytes_arrive", auto_takes_it_and_bytes_arrive),
        case("the_daemon_moves_nothing", the_daemon_moves_nothing),
        case("store_killed", store_killed),
        case("daemon_killed", daemon_killed),
        case("cable_pulled", cable_pulled),
        case("memory_is_not_pinned", memory_is_not_pinned),
        case("peer_gone", peer_gone),
    ]
}

fn main() -> ExitCode {
    suite_main(|suite| suite.group("verbs", boot, cases(), |_| Ok(String::new())))
}
