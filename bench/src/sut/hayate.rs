//! hayate: this very program, as a daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::meter::Meter;
use super::process::{Process, Rank, run};
use super::router::Namespace;
use super::stranger::Stranger;
use super::{Running, SutError, Topology, directory};
use crate::cell::Mischief;
use crate::place::Place;

/// How long routers may take to delegate a million prefixes, seconds.
const DELEGATED: u64 = 120;
/// A router that delegated nothing more for so long has delegated all.
const SETTLED: Duration = Duration::from_millis(200);

/// Starts a daemon with one worker, and a network for all ports, or for each link between guests and
/// routers; `bypass`: the routers are.
pub(super) fn start(
    topology: &Topology,
    place: Place,
    polling: &str,
    bypass: bool,
) -> Result<Running, SutError> {
    let dir = directory()?;
    let program = program()?;
    let run_dir = dir.path().join("run").display().to_string();
    let cpus = place.switch.to_string();
    let config = dir.path().join("hayate.toml");
    fs::write(&config, format!("polling = \"{polling}\"\n"))
        .map_err(SutError::io("the configuration cannot be written"))?;
    let config = config.display().to_string();
    let command = [
        &program,
        "daemon",
        "--run-dir",
        &run_dir,
        "--config",
        &config,
        "--cpus",
        &cpus,
        "--log",
        "warn",
    ];
    let log = dir.path().join("log");
    let mut daemon = Process::start(
        "hayate daemon",
        Rank::Urgent,
        &command.map(str::to_owned),
        &[],
        &log,
        None,
    )?;
    let hayate = |words: &[&str]| {
        let mut command = vec![program.as_str(), "--run-dir", &run_dir];
        command.extend(words);
        run(&command, &[])
    };
    daemon.wait_for(20, || hayate(&["network", "list"]).ok())?;

    let macs = topology.macs.max(4096).to_string();
    for link in 0..=topology.routers {
        hayate(&["network", "add", &network(link), "--mac-limit", &macs])?;
    }
    let queues = topology.queues.to_string();
    let mtu = topology.mtu.map(|mtu| mtu.to_string());
    let mut sockets: Vec<PathBuf> = Vec::new();
    for port in 0..topology.ports {
        let socket = dir.path().join(format!("{port}.sock"));
        let (name, path) = (format!("p{port}"), socket.display().to_string());
        // Routers are between the first two.
        let network = network(if port % 2 == 1 { topology.routers } else { 0 });
        let port = ["port", "add", &name, "--network", &network, "--kind", "vhost"];
        let how = ["--socket", &path, "--queues", &queues];
        let large = mtu.as_deref().map(|mtu| ["--mtu", mtu]);
        hayate(&[port.as_slice(), &how, large.as_ref().map_or(&[][..], |l| l)].concat())?;
        sockets.push(socket);
    }
    let thread = daemon.wait_ready("worker-0", &sockets)?;
    let (mut processes, mut routers) = (vec![daemon], Vec::new());
    for number in 1..=topology.routers {
        let router = Namespace::new(number)?;
        let vm = format!("r{number}");
        let channel = dir.path().join(format!("{vm}.channel")).display().to_string();
        let most = (topology.prefixes + 1000).to_string();
        hayate(&["vm", "add", &vm, "--channel", &channel, "--prefixes-max", &most])?;
        let (left, right) = (format!("{vm}l"), format!("{vm}r"));
        for (port, link) in [(&left, number - 1), (&right, number)] {
            let tap = ["--kind", "tap", "--ifname", port, "--netns", &router.name, "--vm", &vm];
            let add = ["port", "add", port, "--network", &network(link), "--mtu", "9000"];
            hayate(&[add.as_slice(), &tap].concat())?;
        }
        let count = (number, topology.routers);
        router.set_up(count, (&left, &right), topology.prefixes, dir.path())?;
        processes.push(agent(&program, &router, &channel, dir.path(), place)?);
        routers.push(router);
    }
    for number in 1..=topology.routers {
        let vm = format!("r{number}");
        let agent = processes.get_mut(usize::from(number));
        // Those, two for the guests' networks, and what else it has: until there come no more.
        let mut before = 0;
        let delegated = || {
            let shown = hayate(&["router", "show", &vm, "--json"]).ok()?;
            let shown: serde_json::Value = serde_json::from_str(&shown).ok()?;
            let now = shown["router"]["prefixes"].as_u64()?;
            let last = std::mem::replace(&mut before, now);
            std::thread::sleep(SETTLED);
            (now >= u64::from(topology.prefixes) + 2 && now == last).then_some(())
        };
        agent.map_or(Ok(()), |agent| agent.wait_for(DELEGATED, delegated))?;
        hayate(&["router", "bypass", &vm, if bypass { "on" } else { "off" }])?;
    }
    let _stranger = match topology.mischief {
        Some(mischief) => Some(stranger(mischief, topology, place, dir.path(), &hayate)?),
        None => None,
    };
    let meter = Meter::Hayate { program, run_dir };
    let (connects, _routers, _dir) = (false, routers, dir);
    Ok(Running { sockets, connects, thread, meter, processes, _routers, _stranger, _dir })
}

/// A router VM in the networks of the guests, which never starts but for its agent.
fn stranger(
    mischief: Mischief,
    topology: &Topology,
    place: Place,
    dir: &Path,
    hayate: &impl Fn(&[&str]) -> Result<String, SutError>,
) -> Result<Stranger, SutError> {
    let channel = dir.join("stranger.channel");
    hayate(&["vm", "add", "stranger", "--channel", &channel.display().to_string()])?;
    for (name, link) in [("strange0", 0), ("strange1", topology.routers)] {
        let card = ["--kind", "vhost", "--vm", "stranger"];
        hayate(&[["port", "add", name, "--network", &network(link)].as_slice(), &card].concat())?;
    }
    Stranger::start(mischief, channel, place.guests)
}

fn network(link: u16) -> String {
    format!("bench{link}")
}

/// A router's agent: the program beside this one, or HAYATE_AGENT_BIN.
fn agent(
    program: &str,
    router: &Namespace,
    channel: &str,
    dir: &Path,
    place: Place,
) -> Result<Process, SutError> {
    let beside = || Path::new(program).with_file_name("hayate-agent").display().to_string();
    let agent = std::env::var("HAYATE_AGENT_BIN").unwrap_or_else(|_| beside());
    let file = |kind: &str| dir.join(format!("{}.{kind}", router.name)).display().to_string();
    let (status, guests) = (file("status"), place.guests.to_string());
    let inside = ["ip", "netns", "exec", &router.name, "taskset", "-c", &guests];
    let run = [&agent, "run", "--channel", channel, "--status-socket", &status];
    let command: Vec<String> = inside.iter().chain(&run).map(|&word| word.to_owned()).collect();
    Process::start("hayate-agent", Rank::Urgent, &command, &[], &dir.join(file("log")), None)
}

/// This program; HAYATE_BIN names another one, for comparing two builds.
pub(crate) fn program() -> Result<String, SutError> {
    if let Ok(path) = std::env::var("HAYATE_BIN") {
        return Ok(path);
    }
    let path = std::env::current_exe();
    let path = path.map_err(SutError::io("this program's own path cannot be found"))?;
    Ok(path.display().to_string())
}
