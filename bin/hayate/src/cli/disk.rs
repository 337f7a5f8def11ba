//! `hayate disk`.

use super::args::{DiskAdd, DiskCommand, DiskLimit, DiskQemu, Output};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, facts, libvirt, qemu, units};
use api::{Disk, DiskConfig, DiskLimits, DiskOperations, Name, Vm};

pub(super) fn command(client: &Client, command: DiskCommand) -> Result<(), Failure> {
    match command {
        DiskCommand::Add(args) => add(client, *args),
        DiskCommand::Del { name } => client.delete(&format!("/v1/disks/{name}")),
        DiskCommand::List(output) => list(client, output),
        DiskCommand::Show { name, output } => show(client, &name, output),
        DiskCommand::Limit { name, limits, output } => limit(client, &name, &limits, output),
        DiskCommand::Qemu(args) => print_qemu(client, &args),
        DiskCommand::Libvirt { name, packed } => {
            let (disk, vm) = with_vm(client, &name)?;
            out::text(&libvirt::disk(&disk, vm.as_ref(), packed))
        }
    }
}

fn limits(args: &DiskLimit) -> DiskLimits {
    DiskLimits {
        iops: args.iops,
        iops_burst: args.iops_burst,
        bandwidth: args.bandwidth,
        bandwidth_burst: args.bandwidth_burst,
    }
}

fn wrong(wrong: &api::Wrong) -> Failure {
    Failure::usage(format!("--{}: {}", wrong.field.replace('_', "-"), wrong.message))
}

fn add(client: &Client, args: DiskAdd) -> Result<(), Failure> {
    // The daemon may run in another directory.
    let socket = args.socket.map(std::path::absolute).transpose();
    let socket = socket.map_err(|error| Failure::usage(format!("--socket: {error}")))?;
    let config = DiskConfig {
        image: args.image,
        vm: args.vm,
        socket,
        mode: args.mode,
        queues: args.queues,
        readonly: args.readonly,
        cache: args.cache,
        worker: args.worker,
        transport: args.transport,
        store_timeout: args.store_timeout,
        limits: limits(&args.limits),
    };
    config.check().map_err(|error| wrong(&error))?;
    let disk: Disk = client.put(&format!("/v1/disks/{}", args.name), &config)?;
    if args.output.json { out::json(&disk) } else { Ok(()) }
}

fn limit(client: &Client, name: &Name, args: &DiskLimit, output: Output) -> Result<(), Failure> {
    let limits = limits(args);
    limits.check().map_err(|error| wrong(&error))?;
    let disk: Disk = client.put(&format!("/v1/disks/{name}/limits"), &limits)?;
    if output.json { out::json(&disk) } else { Ok(()) }
}

fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let disks: Vec<Disk> = client.get("/v1/disks")?;
    if output.json { out::json(&disks) } else { out::text(&table(&disks)) }
}

/// Disks, one a line.
pub(super) fn table(disks: &[Disk]) -> String {
    let mut table = Table::new([
        "DISK", "IMAGE", "VM", "STATE", ">SINCE", ">SIZE", ">READ", ">WRITTEN", ">FAILED",
    ]);
    for disk in disks {
        let bytes = |kind: &str| disk.operations.get(kind).map_or(0, |all| all.bytes);
        let failed: u64 = disk.operations.values().map(|all| all.failed).sum();
        table.row([
            disk.name.to_string(),
            disk.image.to_string(),
            units::maybe(disk.vm.as_ref()),
            disk.state.as_str().to_owned(),
            units::age(disk.since.age()),
            units::bytes(disk.size),
            units::bytes(bytes("read")),
            units::bytes(bytes("write")),
            failed.to_string(),
        ]);
    }
    table.to_string()
}

fn show(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let disk: Disk = client.get(&format!("/v1/disks/{name}"))?;
    if output.json {
        return out::json(&disk);
    }
    let mut text = facts(&summary(&disk));
    if !disk.operations.is_empty() {
        let mut table = Table::new([
            "OPERATION",
            ">COUNT",
            ">BYTES",
            ">FAILED",
            ">MEAN",
            ">P50",
            ">P99",
            ">P99.9",
        ]);
        for (kind, all) in &disk.operations {
            let mean = all.latency_us / all.count.max(1);
            let within = |share| units::maybe(within(all, share).map(|us| format!("{us} us")));
            table.row([
                kind.clone(),
                all.count.to_string(),
                units::bytes(all.bytes),
                all.failed.to_string(),
                format!("{mean} us"),
                within(0.5),
                within(0.99),
                within(0.999),
            ]);
        }
        text.push('\n');
        text.push_str(&table.to_string());
    }
    if !disk.refused.is_empty() {
        let mut table = Table::new(["REFUSED BECAUSE", ">REQUESTS"]);
        for (reason, count) in &disk.refused {
            table.row([reason.clone(), count.to_string()]);
        }
        text.push('\n');
        text.push_str(&table.to_string());
    }
    out::text(&text)
}

/// The bound in microseconds under which this share of all operations ended; `None`: above all.
fn within(all: &DiskOperations, share: f64) -> Option<u64> {
    let wanted = (all.count as f64 * share).ceil() as u64;
    let mut seen = 0;
    all.latency.iter().find_map(|(bound, count)| {
        seen += count;
        (seen >= wanted).then_some(*bound)
    })
}

fn summary(disk: &Disk) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("disk", disk.name.to_string()),
        ("image", disk.image.to_string()),
        ("state", format!("{} for {}", disk.state.as_str(), units::age(disk.since.age()))),
    ];
    let store = disk.store.as_ref().map(|store| {
        let times = store.connections;
        let address = units::maybe(store.address.as_ref());
        let age = units::age(store.since.age());
        match &store.away {
            None => {
                let provider = store.provider.as_ref().map(|provider| format!(" ({provider})"));
                let transport = store.transport.as_str().to_owned() + &provider.unwrap_or_default();
                format!("{address} by {transport}, connected for {age}, {times} so far")
            }
            Some(why) => format!("away for {age}, the guest waits: {why}"),
        }
    });
    let optional = [
        ("store", store),
        ("because", disk.failure.clone()),
        ("last fault", disk.last_fault.clone()),
        ("last error", disk.last_error.clone()),
        ("VM", disk.vm.as_ref().map(Name::to_string)),
        ("worker", disk.worker.map(|worker| worker.to_string())),
    ];
    lines.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let access = match (disk.readonly, disk.writeback) {
        (true, _) => "read-only",
        (false, true) => "read and write, stable when the guest flushes",
        (false, false) => "read and write, each write stable when it ends",
    };
    let cache = match disk.image.local() {
        Some(_) => disk.config.cache.unwrap_or_default().as_str(),
        None => "as the store has it",
    };
    let queues: Vec<String> = disk
        .queues
        .iter()
        .map(|queue| format!("{} ({})", queue.size, if queue.packed { "packed" } else { "split" }))
        .collect();
    lines.extend([
        ("socket", disk.socket.display().to_string()),
        ("mode", disk.mode.as_str().to_owned()),
        ("size", format!("{} ({} bytes)", units::bytes(disk.size), disk.size)),
        ("block size", units::bytes(disk.block_size.into())),
        ("access", access.to_owned()),
        ("cache", cache.to_owned()),
        ("limits", shown(&disk.config.limits)),
        ("sessions", disk.sessions.to_string()),
        ("features", disk.features.join(" ")),
        ("queues", queues.join(", ")),
        ("in flight", disk.in_flight.to_string()),
        ("kicks, interrupts", format!("{}, {}", disk.kicks, disk.interrupts)),
        ("copied to align", disk.bounced.to_string()),
        ("declared", units::origin(disk.origin).to_owned()),
    ]);
    lines
}

fn shown(limits: &DiskLimits) -> String {
    let mut texts = Vec::new();
    if let Some(iops) = limits.iops {
        texts.push(format!("{iops} operations/s (burst {})", limits.iops_burst.unwrap_or(iops)));
    }
    if let Some(bandwidth) = limits.bandwidth {
        let burst = limits.bandwidth_burst.unwrap_or(bandwidth);
        texts.push(format!("{bandwidth}/s (burst {burst})"));
    }
    texts.join(", ")
}

/// A disk, and the VM it belongs to.
fn with_vm(client: &Client, name: &Name) -> Result<(Disk, Option<Vm>), Failure> {
    let disk: Disk = client.get(&format!("/v1/disks/{name}"))?;
    let vm = disk.vm.as_ref().map(|vm| client.get(&format!("/v1/vms/{vm}"))).transpose()?;
    Ok((disk, vm))
}

fn print_qemu(client: &Client, args: &DiskQemu) -> Result<(), Failure> {
    let (disk, vm) = with_vm(client, &args.name)?;
    let (version, packed) = (args.form.version(), args.form.packed);
    out::arguments(&qemu::disk_arguments(&disk, vm.as_ref(), version, packed), &args.form)
}
