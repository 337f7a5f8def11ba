//! `hayate vm`.

use super::args::{LibvirtArgs, Output, QemuArgs, VmAdd};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, facts, libvirt, qemu, units};
use api::{Disk, Name, Port, PortKind, Vm, VmConfig};
use std::path::Path;

pub(super) fn add(client: &Client, args: &VmAdd) -> Result<(), Failure> {
    // The daemon may run in another directory.
    let channel = args.channel.as_ref().map(std::path::absolute).transpose();
    let channel = channel.map_err(|error| Failure::usage(format!("--channel: {error}")))?;
    let defaults = VmConfig::default();
    let config = VmConfig {
        memory: args.memory.unwrap_or_default(),
        vcpus: args.vcpus.unwrap_or(1),
        channel,
        nexthops_max: args.nexthops_max.unwrap_or(defaults.nexthops_max),
        prefixes_max: args.prefixes_max.unwrap_or(defaults.prefixes_max),
        connections_max: args.connections_max.unwrap_or(defaults.connections_max),
    };
    config.check().map_err(|wrong| {
        Failure::usage(format!("--{}: {}", wrong.field.replace('_', "-"), wrong.message))
    })?;
    let vm: Vm = client.put(&format!("/v1/vms/{}", args.name), &config)?;
    if args.output.json { out::json(&vm) } else { Ok(()) }
}

pub(super) fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let vms: Vec<Vm> = client.get("/v1/vms")?;
    if output.json {
        return out::json(&vms);
    }
    let mut table = Table::new(["NAME", ">MEMORY", ">VCPUS", "PORTS"]);
    for vm in &vms {
        table.row([
            vm.name.to_string(),
            vm.memory.to_string(),
            vm.vcpus.to_string(),
            units::names(&vm.ports),
        ]);
    }
    out::text(&table.to_string())
}

pub(super) fn show(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let vm: Vm = client.get(&format!("/v1/vms/{name}"))?;
    if output.json {
        return out::json(&vm);
    }
    out::text(&facts(&[
        ("vm", vm.name.to_string()),
        ("memory", vm.memory.to_string()),
        ("vcpus", vm.vcpus.to_string()),
        ("channel", units::maybe(vm.channel.as_ref().map(|path| path.display()))),
        ("ports", units::names(&vm.ports)),
        ("declared", units::origin(vm.origin).to_owned()),
    ]))
}

/// A VM, its ports and its disks, in order.
fn with_all(client: &Client, name: &Name) -> Result<(Vm, Vec<Port>, Vec<Disk>), Failure> {
    let vm: Vm = client.get(&format!("/v1/vms/{name}"))?;
    let ports: Vec<Port> = client.get("/v1/ports")?;
    // An interface is no card of a VM, even if it belongs to one.
    let card = |port: &Port| port.vm.as_ref() == Some(name) && port.kind == PortKind::Vhost;
    let ports: Vec<Port> = ports.into_iter().filter(card).collect();
    let mut disks: Vec<Disk> = client.get("/v1/disks")?;
    disks.retain(|disk| disk.vm.as_ref() == Some(name));
    if ports.is_empty() {
        // Beside the output, so that a script can go on.
        out::note(&format!(
            "VM {name} has no ports, so no card: `hayate port add PORT --network NET --kind vhost \
             --vm {name}` makes one"
        ));
    }
    Ok((vm, ports, disks))
}

pub(super) fn qemu(client: &Client, args: &QemuArgs) -> Result<(), Failure> {
    let (vm, ports, disks) = with_all(client, &args.name)?;
    let version = args.form.version();
    if version < qemu::RELIABLE && !Path::new("/dev/kvm").exists() {
        // Beside the arguments, so that a script can go on.
        out::note(&format!(
            "QEMU {version} was seen to crash with vhost-user cards without KVM; QEMU {} does not",
            qemu::RELIABLE
        ));
    }
    if version < qemu::SRIOV && ports.iter().any(|port| port.function.is_some()) {
        out::note(&format!(
            "QEMU {version} has no virtual functions and will refuse these arguments; QEMU {} has",
            qemu::SRIOV
        ));
    }
    let arguments = qemu::arguments(&vm, &ports, &disks, version, args.form.packed);
    out::arguments(&arguments, &args.form)
}

pub(super) fn libvirt(client: &Client, args: &LibvirtArgs) -> Result<(), Failure> {
    let (vm, ports, disks) = with_all(client, &args.name)?;
    if ports.iter().any(|port| port.function.is_some()) {
        out::note(&format!("virtual functions need QEMU {} or later", qemu::SRIOV));
    }
    out::text(&libvirt::xml(&vm, &ports, &disks, args.packed))
}
