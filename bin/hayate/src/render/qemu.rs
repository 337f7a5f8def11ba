//! Arguments for QEMU: shared memory, a card for each vhost port of a VM, its virtual functions, and its
//! disks.
//!
//! Only what connects the VM to hayate is said; machine, console and other disks are the user's.

use api::channel::PORT_NAME;
use api::{DEFAULT_QUEUES, Disk, Function, Name, Port, SocketMode, Vm};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// Version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32);

/// The newest QEMU whose arguments are known.
pub(crate) const NEWEST: Version = Version(11, 1);

/// From here on no crash was seen with vhost-user cards under emulation (TCG).
pub(crate) const RELIABLE: Version = Version(10, 0);

/// From here on a reconnection is timed in milliseconds, `reconnect-ms`; before, in seconds,
/// `reconnect`.
const RECONNECT_MS: Version = Version(9, 2);

/// From here on a virtio-net card may be a virtual function of another (`sriov-pf`).
pub(crate) const SRIOV: Version = Version(10, 1);

/// Time until QEMU tries to connect again, when the daemon went away.
const RECONNECT: (&str, &str) = ("reconnect-ms=300", "reconnect=1");

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split('.');
        let major = parts.next().and_then(|part| part.parse().ok());
        let minor = parts.next().map_or(Some(0), |part| part.parse().ok());
        match (major, minor) {
            (Some(major), Some(minor)) => Ok(Self(major, minor)),
            _ => Err("a version like 9.2 is allowed".to_owned()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Version of the QEMU that is installed for this machine's kind of CPU.
pub(crate) fn installed() -> Option<Version> {
    let program = format!("qemu-system-{}", std::env::consts::ARCH);
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    version_in(&String::from_utf8_lossy(&output.stdout))
}

/// The version in `QEMU emulator version 9.2.1 (Debian ...)`.
fn version_in(text: &str) -> Option<Version> {
    text.split_once("version ")?.1.split_whitespace().next()?.parse().ok()
}

/// Number of the chassis that root ports of PFs are said to be in.
const CHASSIS: u8 = 64;

/// Functions whose memory fits into what firmware leaves room for.
const FEW: usize = 32;

/// What firmware is asked to leave for 255 VFs, of 16 KiB and 4 KiB each.
const ROOM: &str = ",mem-reserve=8M,pref64-reserve=16M";

/// One option and its value.
pub(crate) type Argument = [String; 2];

/// All arguments. `ports` and `disks` are the VM's.
pub(crate) fn arguments(
    vm: &Vm,
    ports: &[Port],
    disks: &[Disk],
    version: Version,
    packed: bool,
) -> Vec<Argument> {
    let mut arguments = vec![
        argument("-m", vm.memory.to_string()),
        argument("-smp", vm.vcpus.to_string()),
        argument(
            "-object",
            format!("memory-backend-memfd,id=hayate-memory,size={},share=on", vm.memory),
        ),
        argument("-machine", "memory-backend=hayate-memory".to_owned()),
    ];
    for port in ports.iter().filter(|port| port.function.is_none()) {
        arguments.extend(backend(vm, port, version));
        arguments.push(argument("-device", card(vm, port, packed)));
    }
    arguments.extend(pf_arguments(vm, ports, version, packed));
    for disk in disks {
        arguments.extend(disk_arguments(disk, Some(vm), version, packed));
    }
    if let Some(channel) = &vm.channel {
        arguments.extend(channel_arguments(channel, version));
    }
    arguments
}

fn argument(option: &str, value: String) -> Argument {
    [option.to_owned(), value]
}

/// The guest channel: a virtio-serial port, which the guest finds by its name.
fn channel_arguments(socket: &Path, version: Version) -> [Argument; 3] {
    let (socket, reconnect) = (in_list(socket), reconnect(version));
    [
        argument("-device", "virtio-serial-pci,id=hayate-serial".to_owned()),
        argument("-chardev", format!("socket,id=hayate-channel,path={socket},{reconnect}")),
        argument(
            "-device",
            format!("virtserialport,bus=hayate-serial.0,chardev=hayate-channel,name={PORT_NAME}"),
        ),
    ]
}

/// How QEMU comes back to a socket of a daemon that went away.
fn reconnect(version: Version) -> &'static str {
    if version >= RECONNECT_MS { RECONNECT.0 } else { RECONNECT.1 }
}

/// A path in one of QEMU's lists, where a comma is written twice.
fn in_list(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// The PFs among the ports: for each a root port, the VFs, and the PF, which QEMU wants last.
pub(super) fn pf_arguments(
    vm: &Vm,
    ports: &[Port],
    version: Version,
    packed: bool,
) -> Vec<Argument> {
    let mut pfs: BTreeMap<&Name, Vec<(Option<u16>, &Port)>> = BTreeMap::new();
    for port in ports {
        if let Some(Function { pf, vf }) = &port.function {
            pfs.entry(pf).or_default().push((*vf, port));
        }
    }
    let mut arguments = Vec::new();
    for (slot, (pf, mut functions)) in pfs.into_iter().enumerate() {
        // The PF, without a number, is the last.
        functions.sort_by_key(|(vf, _)| (vf.is_none(), *vf));
        arguments.push(argument("-device", root_port(pf, slot, functions.len())));
        for (vf, port) in functions {
            let role = match vf {
                Some(_) => format!("sriov-pf=pf-{pf}"),
                None => format!("id=pf-{pf}"),
            };
            // The PF is function 0. What does not fit into eight functions is reached by ARI.
            let number = vf.map_or(0, |vf| vf.saturating_add(1));
            let place = format!("bus=root-{pf},addr=0x{:x}.0x{:x}", number >> 3, number & 7);
            arguments.extend(backend(vm, port, version));
            arguments
                .push(argument("-device", format!("{},{place},{role}", card(vm, port, packed))));
        }
    }
    arguments
}

/// A place on PCI Express of a PF's own.
fn root_port(pf: &Name, slot: usize, functions: usize) -> String {
    // Numbers that a user's own root ports hardly have.
    let mut port = format!("pcie-root-port,id=root-{pf},bus=pcie.0,chassis={CHASSIS},slot={slot}");
    if functions > FEW {
        // Firmware leaves room for the functions it sees, and VFs are seen later.
        port.push_str(ROOM);
    }
    port
}

/// How a port is reached: the socket, and the queues behind it.
fn backend(vm: &Vm, port: &Port, version: Version) -> [Argument; 2] {
    let name = &port.name;
    let socket = port.socket.as_deref().map(in_list).unwrap_or_default();
    let role = match port.mode.unwrap_or_default() {
        SocketMode::Server => reconnect(version),
        SocketMode::Client => "server=on,wait=off",
    };
    let pairs = queue_pairs(vm, port);
    let queues = if pairs > 1 { format!(",queues={pairs}") } else { String::new() };
    [
        argument("-chardev", format!("socket,id=char-{name},path={socket},{role}")),
        argument("-netdev", format!("vhost-user,id=net-{name},chardev=char-{name}{queues}")),
    ]
}

/// The card that a guest sees of a port.
fn card(vm: &Vm, port: &Port, packed: bool) -> String {
    let (name, pairs) = (&port.name, queue_pairs(vm, port));
    let mut device = format!("virtio-net-pci,netdev=net-{name},mac={}", super::card(vm, port));
    if pairs > 1 {
        // One vector for each queue, one for the configuration, one for the control queue.
        device.push_str(&format!(",mq=on,vectors={}", 2 * pairs + 2));
    }
    device.push_str(",rx_queue_size=1024,tx_queue_size=1024");
    if let Some(mtu) = port.config.mtu {
        device.push_str(&format!(",host_mtu={mtu}"));
    }
    if packed {
        device.push_str(",packed=on");
    }
    device
}

/// A disk; `vm` is the one it belongs to.
pub(crate) fn disk_arguments(
    disk: &Disk,
    vm: Option<&Vm>,
    version: Version,
    packed: bool,
) -> [Argument; 2] {
    let name = &disk.name;
    let socket = in_list(&disk.socket);
    let role = match disk.mode {
        SocketMode::Server => reconnect(version),
        SocketMode::Client => "server=on,wait=off",
    };
    let queues = disk_queues(vm, disk);
    let mut device = format!(
        "vhost-user-blk-pci,chardev=disk-{name},id={name},num-queues={queues},queue-size=256"
    );
    if packed {
        device.push_str(",packed=on");
    }
    [
        argument("-chardev", format!("socket,id=disk-{name},path={socket},{role}")),
        argument("-device", device),
    ]
}

/// Queues to ask for: as told, else one for each virtual CPU that is known of.
pub(super) fn disk_queues(vm: Option<&Vm>, disk: &Disk) -> u16 {
    let vcpus = vm.map_or(1, |vm| vm.vcpus);
    disk.config.queues.unwrap_or(vcpus.clamp(1, disk.config.queues()))
}

/// Queue pairs to ask for: as told, else one for each virtual CPU.
pub(super) fn queue_pairs(vm: &Vm, port: &Port) -> u16 {
    port.config.queues.unwrap_or(vm.vcpus.clamp(1, DEFAULT_QUEUES))
}

/// One option a line, for `$(hayate vm qemu NAME)`: a shell splits it at blanks.
pub(crate) fn plain(arguments: &[Argument]) -> String {
    arguments.iter().map(|argument| format!("{}\n", argument.join(" "))).collect()
}

/// Quoted, with a backslash at the end of each line but the last, to be pasted.
pub(crate) fn for_shell(arguments: &[Argument]) -> String {
    let lines: Vec<String> =
        arguments.iter().map(|[option, value]| format!("{option} {}", quoted(value))).collect();
    format!("{}\n", lines.join(" \\\n"))
}

fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_=,./:+@%".contains(&b);
    if word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
