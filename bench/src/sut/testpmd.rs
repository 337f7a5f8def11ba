//! dpdk-testpmd: the thinnest DPDK forwarder. What comes in at one port of a pair leaves by the other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::meter::Meter;
use super::process::{Process, Rank};
use super::{Running, SutError, Topology, directory};
use crate::place::Place;

pub(super) fn start(topology: &Topology, place: Place) -> Result<Running, SutError> {
    let dir = directory()?;
    let sockets: Vec<PathBuf> =
        (0..topology.ports).map(|port| dir.path().join(format!("{port}.sock"))).collect();
    let (guests, switch) = (place.guests, place.switch);
    let queues = topology.queues;
    let prefix = format!("hayate-bench-{}", std::process::id());
    // What it says is to be in the log at once.
    let mut command: Vec<String> = ["stdbuf", "-oL", "dpdk-testpmd", "--in-memory", "--no-pci"]
        .into_iter()
        .chain(["--no-telemetry", "-m", "512"])
        .map(str::to_owned)
        .collect();
    command.extend(["-l".into(), format!("{guests},{switch}")]);
    command.extend(["--main-lcore".into(), guests.to_string()]);
    command.extend(["--file-prefix".into(), prefix.clone(), "--log-level=*:error".into()]);
    let tso = u8::from(topology.offloads);
    for (port, socket) in sockets.iter().enumerate() {
        let device =
            format!("net_vhost{port},iface={},queues={queues},tso={tso}", socket.display());
        command.extend(["--vdev".into(), device]);
    }
    command.push("--".into());
    // A queue is served by the one forwarding thread whatever their number.
    command.extend(
        [
            "-i",
            "--nb-cores=1",
            "--forward-mode=io",
            "--auto-start",
            "--mbcache=256",
            "--no-lsc-interrupt",
            "--record-core-cycles",
        ]
        .map(str::to_owned),
    );
    let buffers = 8192 * u32::from(topology.ports * queues).div_ceil(4).max(1);
    command.extend([
        format!("--rxq={queues}"),
        format!("--txq={queues}"),
        "--rxd=1024".into(),
        "--txd=1024".into(),
        format!("--total-num-mbufs={buffers}"),
    ]);
    if let Some(mtu) = topology.mtu {
        let frame = u32::from(mtu) + 18;
        command.extend([format!("--max-pkt-len={frame}"), format!("--mbuf-size={}", frame + 512)]);
    }
    let log = dir.path().join("log");
    let mut process =
        Process::start("dpdk-testpmd", Rank::Urgent, &command, &[], &log, Some("quit"))?;
    let thread = process.wait_ready("rte-worker", &sockets)?;
    // The sockets are there a little before forwarding starts.
    std::thread::sleep(Duration::from_millis(300));
    let _ = std::fs::remove_dir_all(Path::new("/var/run/dpdk").join(prefix));
    Ok(Running {
        sockets,
        connects: false,
        thread,
        meter: Meter::Testpmd,
        processes: vec![process],
        _routers: Vec::new(),
        _stranger: None,
        _dir: dir,
    })
}
