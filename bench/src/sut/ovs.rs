//! Open vSwitch with DPDK, as a MAC-learning switch: a database, a switch and a bridge of its own.

use std::path::{Path, PathBuf};

use super::meter::Meter;
use super::process::{Process, Rank, run};
use super::{Running, SutError, Topology, directory};
use crate::generator::frames::{gateway, mac};
use crate::place::Place;

/// Where Debian puts the daemon that has DPDK in it.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Starts database and switch. `sleep`: how long its polling thread may sleep, in microseconds.
pub(super) fn start(topology: &Topology, place: Place, sleep: u32) -> Result<Running, SutError> {
    let dir = directory()?;
    let at = dir.path();
    let env = [
        ("OVS_RUNDIR", at),
        ("OVS_LOGDIR", at),
        ("OVS_DBDIR", at),
        ("OVS_SYSCONFDIR", at),
        ("XDG_RUNTIME_DIR", at),
    ];
    let text = |path: PathBuf| path.display().to_string();
    let (file, socket) = (text(at.join("conf.db")), at.join("db.sock"));
    let (remote, passive) =
        (format!("unix:{}", socket.display()), format!("--remote=punix:{}", socket.display()));
    run(&["ovsdb-tool", "create", &file, SCHEMA], &env)?;

    let guests = place.guests.to_string();
    let pinned = ["taskset", "-c", guests.as_str()];
    let command = [pinned.as_slice(), &["ovsdb-server", &file, &passive]].concat();
    let mut database = Process::start(
        "ovsdb-server",
        Rank::Urgent,
        &owned(&command),
        &env,
        &at.join("db.log"),
        None,
    )?;
    database.wait_for(20, || socket.exists().then_some(()))?;

    let db = format!("--db={remote}");
    let vsctl = |arguments: &[&str]| {
        run(&[["ovs-vsctl", &db, "--timeout=30"].as_slice(), arguments].concat(), &env)
    };
    let masks = [place.switch, place.guests].map(|cpu| format!("{:#x}", 1_u128 << cpu));
    let [switch_mask, guest_mask] = masks;
    vsctl(&["--no-wait", "init"])?;
    vsctl(&[
        "--no-wait",
        "set",
        "Open_vSwitch",
        ".",
        "other_config:dpdk-init=true",
        &format!("other_config:userspace-tso-enable={}", topology.offloads),
        "other_config:dpdk-socket-mem=1024",
        &format!("other_config:pmd-cpu-mask={switch_mask}"),
        &format!("other_config:dpdk-lcore-mask={guest_mask}"),
        // The name since 3.2, and the one before.
        &format!("other_config:pmd-sleep-max={sleep}"),
        &format!("other_config:pmd-maxsleep={sleep}"),
        "other_config:dpdk-extra=--no-pci --in-memory --no-telemetry",
    ])?;
    let pid_file = format!("--pidfile={}", text(at.join("vswitchd.pid")));
    let control = text(at.join("vswitchd.ctl"));
    let control_at = format!("--unixctl={control}");
    // Interfaces it makes have names that another one would want as well.
    let alone = ["unshare", "--net"];
    let command = [alone.as_slice(), &pinned, &[SWITCH, &remote, &pid_file, &control_at]].concat();
    let mut switch = Process::start(
        "ovs-vswitchd",
        Rank::Urgent,
        &owned(&command),
        &env,
        &at.join("vswitchd.log"),
        None,
    )?;

    vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
    if topology.macs > 2048 {
        // A million is its limit.
        let size = format!("other_config:mac-table-size={}", topology.macs);
        vsctl(&["set", "bridge", "br0", &size])?;
    }
    // Only ports that connect have offloads.
    let connects = topology.offloads;
    let names: Vec<String> = (0..topology.ports).map(|port| format!("v{port}")).collect();
    let sockets: Vec<PathBuf> = names.iter().map(|name| at.join(name)).collect();
    let mtu = topology.mtu.map(|mtu| format!("mtu_request={mtu}"));
    let paths: Vec<String> = sockets
        .iter()
        .map(|socket| format!("options:vhost-server-path={}", socket.display()))
        .collect();
    // All in one go: the switch is configured anew after each.
    let mut add = Vec::new();
    for (name, path) in names.iter().zip(&paths) {
        add.extend(["--", "add-port", "br0", name, "--", "set", "Interface", name]);
        if connects {
            add.extend(["type=dpdkvhostuserclient", path]);
        } else {
            add.push("type=dpdkvhostuser");
        }
        add.extend(mtu.as_deref());
    }
    vsctl(&add)?;
    for rule in rules(topology) {
        run(&["ovs-ofctl", "add-flow", &bridge(at), &rule], &env)?;
    }
    let ready = if connects { &[] } else { sockets.as_slice() };
    let thread = switch.wait_ready("pmd", ready)?;
    let meter = Meter::Ovs { control };
    Ok(Running {
        sockets,
        connects,
        thread,
        meter,
        processes: vec![switch, database],
        _routers: Vec::new(),
        _stranger: None,
        _dir: dir,
    })
}

/// Where the bridge is spoken to.
fn bridge(dir: &Path) -> String {
    format!("unix:{}", dir.join("br0.mgmt").display())
}

/// What routers between the two ports would do, written down by hand: for each router and direction
/// a rule in a table of its own.
fn rules(topology: &Topology) -> Vec<String> {
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let last = topology.routers;
    let mut rules = Vec::new();
    for number in 1..=last {
        let next = if number == last { mac(1, 0) } else { gateway(number + 1, 0) };
        let previous = if number == 1 { mac(0, 0) } else { gateway(number - 1, 1) };
        // Ports of OpenFlow are numbered from 1.
        let ways = [(0, number - 1, 1, next), (1, last - number, 0, previous)];
        for (side, turn, to, destination) in ways {
            let (source, own) = (gateway(number, 1 - side), gateway(number, side));
            let on = if turn + 1 == last {
                format!("output:v{to}")
            } else {
                format!("resubmit(,{})", turn + 1)
            };
            rules.push(format!(
                "table={turn},priority=100,ip,dl_dst={},actions=mod_dl_src:{},mod_dl_dst:{},dec_ttl,{on}",
                text(own),
                text(source),
                text(destination)
            ));
        }
    }
    rules
}

fn owned(command: &[&str]) -> Vec<String> {
    command.iter().map(|&word| word.to_owned()).collect()
}

/// Whether the packages brought what is needed.
#[must_use]
pub fn present() -> bool {
    Path::new(SWITCH).exists() && Path::new(SCHEMA).exists()
}
