//! A guest with pods of all three kinds, the daemon, and a machine outside.
//!
//! **Purpose.** What has to be there once for all turns. The guest is emulated (TCG) on every machine, has one virtual
//! CPU and runs on the guests' CPU; daemon and outside share the switch's. Outside is a network namespace with a TAP
//! port of hayate.
//!
//! **Owner.** [`Lab`] has processes, namespace and folder; they go with it, the guest first.
//!
//! **Failure.** What keeps the guest from booting, or a pod from answering, is why nothing was measured.

use std::path::PathBuf;
use std::time::Duration;

use e2e::accel::Accel;
use e2e::assets::{self, Assets, Extra};
use e2e::cpu;
use e2e::guest::{Config, Guest};
use e2e::netns::Netns;
use serde::Deserialize;
use tempfile::TempDir;

use super::cell::{BULK, Cell, PODS, REFUSED, TRIP, Task, Way};
use super::policy;
use super::recorder::Recorder;
use super::report::{Sample, Trips};
use crate::options::Options;
use crate::place::Place;
use crate::sut::process::{Process, Rank, run};
use crate::sut::{SutError, hayate};

const SCRIPT: &str = include_str!("guest.sh");
/// Longest time for something outside, which takes seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// How long pods may take to answer for the first time.
const FIRST: Duration = Duration::from_secs(20);
/// Milliseconds of a turn: of sending, of each rate that is tried, and of round trips.
const SENDING: u32 = 700;
const TRYING: u32 = 500;
const TRIPPING: u32 = 3_000;
/// Datagrams a second that are tried first.
const START: f64 = 12_000.0;

/// See the module's description.
pub(crate) struct Lab {
    guest: Guest,
    outside: Netns,
    daemon: Process,
    pump: PathBuf,
    place: Place,
    host: Host,
    /// Rules in the guest and at the host.
    pub(super) rules: [usize; 2],
    /// QEMU and the guest's kernel, by their versions.
    pub(super) about: String,
    _dir: TempDir,
}

/// The daemon's command.
struct Host {
    program: String,
    run_dir: String,
}

impl Host {
    fn hayate(&self, words: &str) -> Result<String, String> {
        let mut command = vec![self.program.as_str(), "--run-dir", &self.run_dir];
        command.extend(words.split_whitespace());
        run(&command, &[]).map_err(|error| error.to_string())
    }

    /// What QEMU needs for the VM.
    fn arguments(&self, assets: &Assets) -> Result<Vec<String>, String> {
        let version: Vec<&str> = assets.qemu_version.split('.').take(2).collect();
        let printed = self.hayate(&format!("vm qemu web --qemu-version {}", version.join(".")))?;
        Ok(printed.split_whitespace().map(str::to_owned).collect())
    }

    /// Notifications from and to the guest so far, of all its queues.
    fn notifications(&self) -> Result<[u64; 2], String> {
        #[derive(Deserialize)]
        struct Port {
            #[serde(default)]
            queues: Vec<Queue>,
        }
        #[derive(Deserialize)]
        struct Queue {
            kicks: u64,
            interrupts: u64,
        }
        let text = self.hayate("port list --json")?;
        let ports: Vec<Port> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let queues = || ports.iter().flat_map(|port| &port.queues);
        Ok([queues().map(|q| q.kicks).sum(), queues().map(|q| q.interrupts).sum()])
    }
}

/// What `pump` prints of bulk.
#[derive(Deserialize)]
struct Bulk {
    rates: Vec<f64>,
    sent: u64,
    received: u64,
    /// Of all that was tried.
    offered: Option<u64>,
    lost: Option<u64>,
}

impl Lab {
    /// Starts daemon, guest and pods.
    ///
    /// # Errors
    /// `make setup` was not run, or something does not start.
    pub(super) fn start(options: &Options) -> Result<Lab, String> {
        let text = |error: SutError| error.to_string();
        let said = |error: e2e::Error| error.to_string();
        let assets = crate::disk::guest::prepared(&options.guest)?;
        let pump = assets::pump().map_err(|error| {
            format!("not measured: {error}; build it with `cargo build --release -p e2e --bins`")
        })?;
        e2e::process::catch_signals();
        let dir = crate::sut::directory().map_err(text)?;
        let outside = Netns::new().map_err(said)?;
        let (daemon, host) = daemon(&dir, options.cpus.switch)?;
        host.hayate("network add lan")?;
        let channel = dir.path().join("channel");
        host.hayate(&format!(
            "vm add web --memory 512M --vcpus 1 --channel {}",
            channel.display()
        ))?;
        for port in ["bridge", "port"] {
            host.hayate(&format!("port add {port} --network lan --kind vhost --vm web"))?;
        }
        host.hayate(&format!("vf create --vm web --vfs {PODS} --queues 1 --name pf"))?;
        let netns = outside.name();
        let port = "port add outside --network lan --kind tap --ifname outside";
        host.hayate(&format!("{port} --netns {netns}"))?;
        outside.ip("addr add 10.66.0.1/24 dev outside").map_err(said)?;
        outside.ip("link set outside up").map_err(said)?;
        outside.ip("route add 10.77.0.0/24 via 10.66.0.2").map_err(said)?;

        let mut config = Config::new("bench");
        config.more = host.arguments(&assets)?;
        let cards = cards(&config.more);
        let card = |port: &str| {
            let of = cards.iter().find(|(name, _)| name == port);
            of.map(|(_, mac)| mac.as_str()).ok_or_else(|| format!("QEMU is told of no port {port}"))
        };
        let rules = policy::iptables();
        let flows = policy::flows().join("\n") + "\n";
        let extras = [
            Extra { path: "bin/pods", mode: 0o755, data: SCRIPT.as_bytes() },
            Extra { path: "etc/pods.rules", mode: 0o644, data: rules.as_bytes() },
            Extra { path: "etc/pods.flows", mode: 0o644, data: flows.as_bytes() },
        ];
        let initrd = dir.path().join("initrd.cpio");
        config.initrd = Some(assets::with_pods(&assets, &extras, &initrd).map_err(said)?);
        config.accel = Some(Accel::Tcg);
        config.under =
            ["taskset", "-c", &options.cpus.guests.to_string()].map(str::to_owned).into();
        let mut guest = Guest::start(&assets, dir.path(), config).map_err(said)?;
        guest.wait_ready().map_err(said)?;
        let vfs: Vec<&str> =
            (0..PODS).map(|vf| card(&format!("pfvf{vf}"))).collect::<Result<_, _>>()?;
        let counted = guest.sh(&format!("pods bridge {} {PODS}", card("bridge")?)).map_err(said)?;
        let in_guest = counted.trim().parse().map_err(|_| format!("pods: {counted}"))?;
        guest.sh(&format!("pods vf {} {PODS} {}", card("pf")?, vfs.join(" "))).map_err(said)?;
        guest.sh(&format!("pods port {} {PODS}", card("port")?)).map_err(said)?;
        let Assets { qemu_version, kernel_version, .. } = assets;
        let mut lab = Lab {
            guest,
            outside,
            daemon,
            pump,
            place: options.cpus,
            host,
            rules: [in_guest, policy::flows().len()],
            about: format!("QEMU {qemu_version}, Linux {kernel_version}"),
            _dir: dir,
        };
        lab.check()?;
        Ok(lab)
    }

    /// All pods answer.
    fn check(&mut self) -> Result<(), String> {
        for way in Way::ALL {
            let end = std::time::Instant::now() + FIRST;
            loop {
                match self.pump(&format!("trips {TRIP} 0"), way, PODS) {
                    Ok(_) => break,
                    Err(error) if std::time::Instant::now() > end => return Err(error),
                    Err(_) => {}
                }
            }
        }
        for way in [Way::Bridge, Way::Vf] {
            let address = peer(way, 0);
            let address = address.split(':').next().unwrap_or_default();
            let what = format!("trips {TRIP} 0 {address}:{}", policy::REFUSED);
            if self.outside(&format!("timeout 1 {} {what}", self.pump_here())).is_ok() {
                return Err(format!("{}: the policy is not enforced", way.as_str()));
            }
        }
        Ok(())
    }

    /// Whether neither guest nor daemon has ended.
    pub(super) fn alive(&mut self) -> bool {
        self.guest.check().is_ok() && self.daemon.alive()
    }

    /// One turn. `before`: the rate found in the last round.
    pub(super) fn turn(
        &mut self,
        cell: &Cell,
        way: Way,
        round: u32,
        before: Option<f64>,
    ) -> Result<Sample, String> {
        let asking = matches!(cell.task, Task::Trips | Task::Refused);
        let recorder = asking.then(|| Recorder::start(self.place));
        let (used, notified) = (self.used()?, self.host.notifications()?);
        let start = std::time::Instant::now();
        let (mut sample, longest) = match cell.task {
            Task::Send => {
                (bulk(&self.pump(&format!("send {BULK} {SENDING}"), way, cell.pods)?)?, Vec::new())
            }
            Task::Receive | Task::Gro => {
                let start = before.unwrap_or(START);
                let how = if cell.task == Task::Gro { "gro" } else { "receive" };
                let what = format!("{how} {BULK} {TRYING} {start:.0}");
                (bulk(&self.pump(&what, way, cell.pods)?)?, Vec::new())
            }
            Task::Trips => {
                trips(&self.pump(&format!("trips {TRIP} {TRIPPING}"), way, cell.pods)?)?
            }
            Task::Refused => trips(&self.pump_refused(way, cell.pods)?)?,
        };
        let seconds = start.elapsed().as_secs_f64();
        let (after, now) = (self.used()?, self.host.notifications()?);
        let share = |n: usize| match (after.get(n), used.get(n)) {
            (Some(after), Some(used)) => 100.0 * (*after - *used).as_secs_f64() / seconds,
            _ => 0.0,
        };
        (sample.round, sample.seconds) = (round, seconds);
        (sample.guest, sample.daemon) = (share(0), share(1));
        sample.kicks = now[0].saturating_sub(notified[0]);
        sample.interrupts = now[1].saturating_sub(notified[1]);
        match recorder.map(|recorder| recorder.and_then(Recorder::finish)) {
            Some(Ok(recording)) => sample.others = Some(recording.judge(longest)),
            Some(Err(why)) => sample.unrecorded = Some(why),
            None => {}
        }
        Ok(sample)
    }

    /// CPU time of QEMU and of the daemon.
    fn used(&self) -> Result<[Duration; 2], String> {
        let of = |pid| cpu::used(pid).map_err(|error| error.to_string());
        Ok([of(self.guest.pid())?, of(self.daemon.pid())?])
    }

    /// Runs `pump` outside, for the first so many pods of a kind.
    fn pump(&mut self, what: &str, way: Way, pods: u16) -> Result<String, String> {
        let peers: Vec<String> = (0..pods).map(|pod| peer(way, pod)).collect();
        self.outside(&format!("exec {} {what} {}", self.pump_here(), peers.join(" ")))
    }

    /// Round trips, while another pod is sent what the policy refuses.
    fn pump_refused(&mut self, way: Way, pods: u16) -> Result<String, String> {
        let (pump, last) = (self.pump_here(), peer(way, PODS - 1));
        let refused = last.split(':').next().unwrap_or_default();
        let time = TRIPPING + 1_000;
        let flood = format!("{pump} flood {BULK} {time} {REFUSED} {refused}:{}", policy::REFUSED);
        let peers: Vec<String> = (0..pods).map(|pod| peer(way, pod)).collect();
        let trips = format!("{pump} trips {TRIP} {TRIPPING} {}", peers.join(" "));
        self.outside(&format!(
            "{flood} >/dev/null & sleep 0.5; {trips}; status=$?; wait; exit $status"
        ))
    }

    fn pump_here(&self) -> String {
        format!("taskset -c {} {}", self.place.switch, self.pump.display())
    }

    /// Runs a command outside.
    fn outside(&mut self, command: &str) -> Result<String, String> {
        let done = self.outside.try_sh(command, LIMIT).map_err(|error| error.to_string())?;
        match done.status.success() {
            true => Ok(done.out),
            false => Err(format!("{}{}", done.out, done.err).trim().to_owned()),
        }
    }
}

/// Where a pod serves.
fn peer(way: Way, pod: u16) -> String {
    match way {
        Way::Bridge => format!("{}:{}", policy::on_bridge(pod), policy::PORT),
        Way::Vf => format!("{}:{}", policy::on_vf(pod), policy::PORT),
        Way::Port => format!("10.66.0.3:{}", policy::PORT + pod),
    }
}

/// Starts the daemon with one worker.
fn daemon(dir: &TempDir, cpu: usize) -> Result<(Process, Host), String> {
    let text = |error: SutError| error.to_string();
    let run_dir = dir.path().join("run").display().to_string();
    let host = Host { program: hayate::program().map_err(text)?, run_dir };
    let command = format!(
        "taskset -c {cpu} {} daemon --run-dir {} --cpus {cpu} --log warn",
        host.program, host.run_dir
    );
    let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    let log = dir.path().join("daemon.log");
    let mut daemon =
        Process::start("hayate daemon", Rank::Ordinary, &words, &[], &log, None).map_err(text)?;
    daemon.wait_for(20, || host.hayate("network list").ok()).map_err(text)?;
    Ok((daemon, host))
}

/// Ports and their addresses in QEMU's arguments.
fn cards(arguments: &[String]) -> Vec<(String, String)> {
    let of = |argument: &String| {
        let mut words = argument.split(',').filter_map(|word| word.split_once('='));
        let port = words.clone().find(|(key, _)| *key == "netdev")?.1.strip_prefix("net-")?;
        Some((port.to_owned(), words.find(|(key, _)| *key == "mac")?.1.to_owned()))
    };
    arguments.iter().filter_map(of).collect()
}

fn bulk(text: &str) -> Result<Sample, String> {
    let Bulk { rates, sent, received, offered, lost } =
        serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}"))?;
    let rate = rates.iter().sum::<f64>();
    let (datagrams, lost) =
        (offered.unwrap_or(sent), lost.unwrap_or(sent.saturating_sub(received)));
    Ok(Sample { rate: Some(rate), datagrams, lost, ..Sample::default() })
}

/// What `pump` prints of round trips, and end and duration of the longest, in nanoseconds.
fn trips(text: &str) -> Result<(Sample, Vec<[u64; 2]>), String> {
    #[derive(Deserialize)]
    struct One {
        n: u64,
        lost: u64,
        p50: Option<f64>,
        p99: Option<f64>,
        p999: Option<f64>,
        max: Option<f64>,
        longest: Vec<[u64; 2]>,
    }
    let pods: Vec<One> =
        serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}"))?;
    let (n, lost) = (pods.iter().map(|pod| pod.n).sum(), pods.iter().map(|pod| pod.lost).sum());
    let mean = |of: fn(&One) -> Option<f64>| {
        let all: Option<Vec<f64>> = pods.iter().map(of).collect();
        let all = all?;
        Some(all.iter().sum::<f64>() / all.len() as f64)
    };
    let found = match (mean(|pod| pod.p50), mean(|pod| pod.p99), mean(|pod| pod.p999)) {
        (Some(p50), Some(p99), Some(p999)) => {
            let max = pods.iter().filter_map(|pod| pod.max).fold(0.0, f64::max);
            Some(Trips { p50, p99, p999, max })
        }
        _ => None,
    };
    let longest = pods.into_iter().flat_map(|pod| pod.longest).collect();
    Ok((Sample { datagrams: n, lost, trips: found, ..Sample::default() }, longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_understood() {
        let sample = bulk(r#"{"rates":[10.5,20.0],"sent":40,"received":38,"trials":3}"#).unwrap();
        assert_eq!((sample.rate, sample.lost), (Some(30.5), 2));
        let sample =
            bulk(r#"{"rates":[9.0],"sent":4,"received":4,"offered":40,"lost":3}"#).unwrap();
        assert_eq!((sample.datagrams, sample.lost), (40, 3));
        let two = r#"[{"n":3,"lost":1,"p50":1.0,"p99":4.0,"p999":5.0,"max":9.0,"longest":[[70,9000],[50,4000]]},{"n":2,"lost":0,"p50":3.0,"p99":6.0,"p999":7.0,"max":8.0,"longest":[[60,8000]]}]"#;
        let (sample, longest) = trips(two).unwrap();
        assert_eq!(longest, [[70, 9000], [50, 4000], [60, 8000]]);
        assert_eq!(sample.trips, Some(Trips { p50: 2.0, p99: 5.0, p999: 6.0, max: 9.0 }));
        assert_eq!((sample.datagrams, sample.lost), (5, 1));
        assert!(trips("pump: no").unwrap_err().contains("pump: no"));
    }

    #[test]
    fn cards_are_told_apart() {
        let words = [
            "-netdev",
            "x,id=net-pf",
            "virtio-net-pci,netdev=net-pfvf0,mac=02:00:00:00:00:01,addr=0x0.0x1",
        ];
        let found = cards(&words.map(str::to_owned));
        assert_eq!(found, [("pfvf0".to_owned(), "02:00:00:00:00:01".to_owned())]);
    }
}
