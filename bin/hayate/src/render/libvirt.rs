//! XML for libvirt: shared memory, an interface for each vhost port of a VM, and its disks.

use super::qemu::{NEWEST, disk_queues, pf_arguments, queue_pairs};
use api::channel::PORT_NAME;
use api::{Disk, Port, SocketMode, Vm};
use std::fmt::Write;

/// The parts of a domain's XML that connect it to hayate; `ports` are the VM's.
pub(crate) fn xml(vm: &Vm, ports: &[Port], disks: &[Disk], packed: bool) -> String {
    // Without <currentMemory>, an old and smaller one would stay and the guest would get no more.
    let mut xml = format!(
        "\
<!-- in <domain>, in place of what is there -->
<memory unit='KiB'>{memory}</memory>
<currentMemory unit='KiB'>{memory}</currentMemory>
<vcpu>{vcpus}</vcpu>
<memoryBacking>
  <source type='memfd'/>
  <access mode='shared'/>
</memoryBacking>
",
        memory = vm.memory.bytes() / 1024,
        vcpus = vm.vcpus
    );
    let cards: Vec<&Port> = ports.iter().filter(|port| port.function.is_none()).collect();
    if !cards.is_empty() || !disks.is_empty() || vm.channel.is_some() {
        xml.push_str("\n<!-- in <devices> -->\n");
    }
    for port in cards {
        interface(&mut xml, vm, port, packed);
    }
    for each in disks {
        xml.push_str(&disk(each, Some(vm), packed));
    }
    if let Some(channel) = &vm.channel {
        let socket = escaped(&channel.display().to_string());
        // Writing to a String cannot fail.
        let _ = write!(
            xml,
            "\
<channel type='unix'>
  <source mode='connect' path='{socket}'>
    <reconnect enabled='yes' timeout='1'/>
  </source>
  <target type='virtio' name='{PORT_NAME}'/>
</channel>
"
        );
    }
    xml.push_str(&virtual_functions(vm, ports, packed));
    xml
}

/// Virtual functions, for which libvirt has no elements: arguments that it passes on to QEMU, in the
/// order of this text and after its own.
fn virtual_functions(vm: &Vm, ports: &[Port], packed: bool) -> String {
    let arguments = pf_arguments(vm, ports, NEWEST, packed);
    if arguments.is_empty() {
        return String::new();
    }
    let lines = arguments.iter().flatten();
    let lines = lines.map(|word| format!("  <qemu:arg value='{}'/>\n", escaped(word)));
    format!(
        "
<!-- in <domain>, after <devices>; QEMU 10.1 or later, machine q35 -->
<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
{}</qemu:commandline>
",
        lines.collect::<String>()
    )
}

fn interface(xml: &mut String, vm: &Vm, port: &Port, packed: bool) {
    let mac = super::card(vm, port);
    let socket = port.socket.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
    let socket = escaped(&socket);
    // libvirt says who QEMU is, hayate who the daemon is.
    let source = match port.mode.unwrap_or_default() {
        SocketMode::Server => format!(
            "<source type='unix' path='{socket}' mode='client'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  </source>"
        ),
        SocketMode::Client => format!("<source type='unix' path='{socket}' mode='server'/>"),
    };
    let packed = if packed { " packed='on'" } else { "" };
    let queues = queue_pairs(vm, port);
    // Writing to a String cannot fail.
    let _ = write!(
        xml,
        "\
<interface type='vhostuser'>
  <mac address='{mac}'/>
  {source}
  <model type='virtio'/>
  <driver queues='{queues}' rx_queue_size='1024' tx_queue_size='1024'{packed}/>
"
    );
    if let Some(mtu) = port.config.mtu {
        let _ = writeln!(xml, "  <mtu size='{mtu}'/>");
    }
    xml.push_str("</interface>\n");
}

/// A disk; `vm` is the one it belongs to.
pub(crate) fn disk(disk: &Disk, vm: Option<&Vm>, packed: bool) -> String {
    let socket = escaped(&disk.socket.display().to_string());
    // libvirt says who QEMU is, hayate who the daemon is.
    let source = match disk.mode {
        SocketMode::Server => format!(
            "<source type='unix' path='{socket}' mode='client'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  </source>"
        ),
        SocketMode::Client => format!("<source type='unix' path='{socket}' mode='server'/>"),
    };
    let packed = if packed { " packed='on'" } else { "" };
    let queues = disk_queues(vm, disk);
    let target = format!("vd{}", letters(disk.name.as_str()));
    format!(
        "\
<disk type='vhostuser' device='disk'>
  <driver name='qemu' type='raw' queues='{queues}' queue_size='256'{packed}/>
  {source}
  <target dev='{target}' bus='virtio'/>
</disk>
"
    )
}

/// Two letters made of a name: libvirt wants its disks told apart.
fn letters(name: &str) -> String {
    let sum = name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let letter = |n: u32| char::from(b'a' + (n % 26) as u8);
    [letter(sum), letter(sum / 26)].into_iter().collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}
