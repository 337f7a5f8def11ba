//! hayate: this very program, as a daemon.

use std::fs;
use std::path::PathBuf;

use super::meter::Meter;
use super::process::{Process, run};
use super::{Running, SutError, Topology, directory};
use crate::place::Place;

/// Starts a daemon with one worker and one network for all ports; `polling` if it is not to be the
/// default.
pub(super) fn start(
    topology: &Topology,
    place: Place,
    polling: Option<&str>,
) -> Result<Running, SutError> {
    let dir = directory()?;
    let program = program()?;
    let run_dir = dir.path().join("run").display().to_string();
    let cpus = place.switch.to_string();
    let config = dir.path().join("hayate.toml");
    let text = polling.map_or(String::new(), |polling| format!("polling = \"{polling}\"\n"));
    fs::write(&config, text).map_err(SutError::io("the configuration cannot be written"))?;
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
    let mut daemon = Process::start("hayate daemon", &command.map(str::to_owned), &[], &log, None)?;
    let hayate = |arguments: &[&str]| {
        let mut command = vec![program.as_str(), "--run-dir", &run_dir];
        command.extend(arguments);
        run(&command, &[])
    };
    daemon.wait_for(20, || hayate(&["network", "list"]).ok())?;

    let macs = topology.macs.max(4096).to_string();
    hayate(&["network", "add", "bench", "--mac-limit", &macs])?;
    let queues = topology.queues.to_string();
    let mtu = topology.mtu.map(|mtu| mtu.to_string());
    let mut sockets: Vec<PathBuf> = Vec::new();
    for port in 0..topology.ports {
        let socket = dir.path().join(format!("{port}.sock"));
        let (name, path) = (format!("p{port}"), socket.display().to_string());
        let port = ["port", "add", &name, "--network", "bench", "--kind", "vhost"];
        let how = ["--socket", &path, "--queues", &queues];
        let large = mtu.as_deref().map(|mtu| ["--mtu", mtu]);
        hayate(&[port.as_slice(), &how, large.as_ref().map_or(&[][..], |l| l)].concat())?;
        sockets.push(socket);
    }
    let thread = daemon.wait_ready("worker-0", &sockets)?;
    let meter = Meter::Hayate { program, run_dir };
    Ok(Running { sockets, connects: false, thread, meter, processes: vec![daemon], _dir: dir })
}

/// This program; HAYATE_BIN names another one, for comparing two builds.
fn program() -> Result<String, SutError> {
    if let Ok(path) = std::env::var("HAYATE_BIN") {
        return Ok(path);
    }
    let path = std::env::current_exe();
    let path = path.map_err(SutError::io("this program's own path cannot be found"))?;
    Ok(path.display().to_string())
}
