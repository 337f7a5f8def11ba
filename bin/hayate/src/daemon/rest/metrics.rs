//! Counters in the text form of Prometheus.

use crate::daemon::registry::RuleTotals;
use api::{Disk, DiskOperations, PortStats, Router, Stats, Traffic, Worker, WorkerState};
use std::fmt::Write;

/// One metric: its name below `hayate_`, its type, what it counts.
struct Family<'t> {
    text: &'t mut String,
    name: &'static str,
}

impl<'t> Family<'t> {
    fn new(text: &'t mut String, name: &'static str, kind: &str, help: &str) -> Self {
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, "# HELP hayate_{name} {help}\n# TYPE hayate_{name} {kind}\n");
        Self { text, name }
    }

    /// Names and values of labels are ours (names of ports, reasons): nothing to escape.
    fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.part("", labels, value);
    }

    /// A sample of a part of it: a histogram has several.
    fn part(&mut self, part: &str, labels: &[(&str, &str)], value: u64) {
        let texts: Vec<String> = labels.iter().map(|(key, v)| format!("{key}=\"{v}\"")).collect();
        let texts =
            if texts.is_empty() { String::new() } else { format!("{{{}}}", texts.join(",")) };
        let _ = writeln!(self.text, "hayate_{}{part}{texts} {value}", self.name);
    }
}

/// A counter of both directions of a port: name, help, value.
type Both = (&'static str, &'static str, fn(&Traffic) -> u64);

const BOTH: [Both; 6] = [
    ("port_frames_total", "Frames through a port, named from the switch's side.", |t| t.frames),
    ("port_bytes_total", "Bytes of these frames.", |t| t.bytes),
    ("port_gso_frames_total", "Frames passed on unsegmented.", |t| t.gso_frames),
    ("port_checksums_completed_total", "Checksums completed here.", |t| t.csum_completed),
    ("port_segmented_total", "Frames segmented here.", |t| t.segmented),
    ("port_segments_total", "Frames made by segmentation here.", |t| t.segments),
];

/// A counter of a port: name, help, value.
type OfPort = (&'static str, &'static str, fn(&PortStats) -> u64);

const OF_PORT: [OfPort; 3] = [
    ("port_flood_copies_total", "Additional copies of frames that went to several ports.", |p| {
        p.flood_copies
    }),
    ("port_interrupts_total", "Interrupts for frames the guest received.", |p| p.interrupts),
    ("port_deferred_interrupts_total", "Times such an interrupt was put off.", |p| p.deferred),
];

/// A counter of a worker: name, help, value.
type OfWorker = (&'static str, &'static str, fn(&Worker) -> u64);

const OF_WORKER: [OfWorker; 6] = [
    ("worker_polls_total", "Times a worker looked at its queues.", |w| w.polls),
    ("worker_busy_polls_total", "Of these, times it found something.", |w| w.busy_polls),
    ("worker_busy_microseconds_total", "Time a worker had something to do.", |w| w.busy_us),
    ("worker_naps_total", "Times a worker let frames gather.", |w| w.naps),
    ("worker_sleeps_total", "Times a worker went to sleep.", |w| w.sleeps),
    ("worker_frames_total", "Frames a worker took from ports.", |w| w.frames),
];

/// A value of a router: name, type, help, value.
type OfRouter = (&'static str, &'static str, &'static str, fn(&Router) -> u64);

const OF_ROUTER: [OfRouter; 9] = [
    ("router_connected", "gauge", "1 while somebody is connected to a guest channel.", |r| {
        r.connected.into()
    }),
    ("router_bypass", "gauge", "1 while the operator lets a router be bypassed.", |r| {
        r.bypass.into()
    }),
    ("router_lease_milliseconds", "gauge", "Time until a router's lease ends.", |r| {
        r.lease_ms.unwrap_or(0)
    }),
    ("router_interfaces", "gauge", "Interfaces of a router that are behind a port.", |r| {
        r.placed as u64
    }),
    ("router_nexthops", "gauge", "Next hops a router delegates.", |r| r.nexthops as u64),
    ("router_prefixes", "gauge", "Prefixes a router delegates.", |r| r.prefixes as u64),
    (
        "router_connections",
        "gauge",
        "Connections a router delegates, each direction for itself.",
        |r| r.connections as u64,
    ),
    ("router_bypassed_packets_total", "counter", "Packets that bypassed a router.", |r| r.packets),
    ("router_bypassed_bytes_total", "counter", "Bytes of these packets.", |r| r.bytes),
];

/// A value of a PF's flow rules: name, type, help, value.
type OfRules = (&'static str, &'static str, &'static str, fn(&RuleTotals) -> u64);

const OF_RULES: [OfRules; 3] = [
    ("pf_rules", "gauge", "Flow rules of a PF and its VFs.", |r| r.rules as u64),
    ("pf_rules_max", "gauge", "Flow rules that they may have.", |r| r.limits.rules.into()),
    ("pf_rule_updates_total", "counter", "Flow rules that a guest added or deleted.", |r| {
        r.updates
    }),
];

/// All counters as text.
pub(super) fn write(
    stats: &Stats,
    routers: &[Router],
    disks: &[Disk],
    rules: &[RuleTotals],
) -> String {
    let mut text = String::new();
    let mut uptime = Family::new(&mut text, "uptime_seconds", "gauge", "Age of the daemon.");
    uptime.sample(&[], stats.uptime_us / 1_000_000);
    write_ports(&mut text, &stats.ports);
    write_routers(&mut text, routers);
    write_disks(&mut text, disks);
    write_rules(&mut text, rules);
    for (name, help, value) in OF_WORKER {
        let mut family = Family::new(&mut text, name, "counter", help);
        for worker in &stats.workers {
            family.sample(&[("worker", &worker.id.to_string())], value(worker));
        }
    }
    let help = "Queues a worker takes frames from.";
    let mut queues = Family::new(&mut text, "worker_queues", "gauge", help);
    for worker in &stats.workers {
        queues.sample(&[("worker", &worker.id.to_string())], worker.queues.len() as u64);
    }
    let mut asleep = Family::new(&mut text, "worker_asleep", "gauge", "1 while a worker sleeps.");
    for worker in &stats.workers {
        let value = u64::from(worker.state == WorkerState::Asleep);
        asleep.sample(&[("worker", &worker.id.to_string())], value);
    }
    text
}

fn write_ports(text: &mut String, ports: &[PortStats]) {
    for (name, help, value) in BOTH {
        let mut family = Family::new(text, name, "counter", help);
        for port in ports {
            for (direction, traffic) in [("from", &port.from_port), ("to", &port.to_port)] {
                let labels = labels(port);
                family.sample(&[labels[0], labels[1], ("direction", direction)], value(traffic));
            }
        }
    }
    for (name, help, value) in OF_PORT {
        let mut family = Family::new(text, name, "counter", help);
        for port in ports {
            family.sample(&labels(port), value(port));
        }
    }
    let help = "Frames not delivered, by reason.";
    let mut drops = Family::new(text, "port_drops_total", "counter", help);
    for port in ports {
        for (reason, count) in &port.drops {
            let labels = labels(port);
            drops.sample(&[labels[0], labels[1], ("reason", reason)], *count);
        }
    }
    let help = "1 for the state a port is in.";
    let mut state = Family::new(text, "port_state", "gauge", help);
    for port in ports {
        let labels = labels(port);
        state.sample(&[labels[0], labels[1], ("state", port.state.as_str())], 1);
    }
}

/// A counter of one kind of operation of a disk: name, help, value.
type OfOperation = (&'static str, &'static str, fn(&DiskOperations) -> u64);

const OF_OPERATION: [OfOperation; 3] = [
    ("disk_operations_total", "Operations that ended, failed ones too.", |o| o.count),
    ("disk_bytes_total", "Bytes of those that succeeded.", |o| o.bytes),
    ("disk_failed_total", "Operations that the image could not carry out.", |o| o.failed),
];

/// A value of a disk: name, type, help, value.
type OfDisk = (&'static str, &'static str, &'static str, fn(&Disk) -> u64);

const OF_DISK: [OfDisk; 5] = [
    ("disk_size_bytes", "gauge", "Size of a disk.", |d| d.size),
    ("disk_in_flight", "gauge", "Requests being carried out.", |d| d.in_flight),
    ("disk_kicks_total", "counter", "Notifications from the guest.", |d| d.kicks),
    ("disk_interrupts_total", "counter", "Notifications to the guest.", |d| d.interrupts),
    ("disk_bounced_total", "counter", "Requests copied to be aligned.", |d| d.bounced),
];

fn write_disks(text: &mut String, disks: &[Disk]) {
    for (name, kind, help, value) in OF_DISK {
        let mut family = Family::new(text, name, kind, help);
        for disk in disks {
            family.sample(&[("disk", disk.name.as_str())], value(disk));
        }
    }
    for (name, help, value) in OF_OPERATION {
        let mut family = Family::new(text, name, "counter", help);
        for disk in disks {
            for (operation, all) in &disk.operations {
                let labels = [("disk", disk.name.as_str()), ("operation", operation)];
                family.sample(&labels, value(all));
            }
        }
    }
    let help = "Microseconds from a request to its end.";
    let name = "disk_latency_microseconds";
    let mut latency = Family::new(text, name, "histogram", help);
    for disk in disks {
        for (operation, all) in &disk.operations {
            let labels = [("disk", disk.name.as_str()), ("operation", operation.as_str())];
            let mut below = 0;
            for (bound, count) in &all.latency {
                below += count;
                let bound = bound.to_string();
                latency.part("_bucket", &[labels[0], labels[1], ("le", &bound)], below);
            }
            latency.part("_bucket", &[labels[0], labels[1], ("le", "+Inf")], all.count);
            latency.part("_sum", &labels, all.latency_us);
            latency.part("_count", &labels, all.count);
        }
    }
    let help = "Requests that made no sense, by reason.";
    let mut refused = Family::new(text, "disk_refused_total", "counter", help);
    for disk in disks {
        for (reason, count) in &disk.refused {
            refused.sample(&[("disk", disk.name.as_str()), ("reason", reason)], *count);
        }
    }
    let help = "1 for the state a disk is in.";
    let mut state = Family::new(text, "disk_state", "gauge", help);
    for disk in disks {
        state.sample(&[("disk", disk.name.as_str()), ("state", disk.state.as_str())], 1);
    }
}

fn write_routers(text: &mut String, routers: &[Router]) {
    for (name, kind, help, value) in OF_ROUTER {
        let mut family = Family::new(text, name, kind, help);
        for router in routers {
            family.sample(&[("vm", router.vm.as_str())], value(router));
        }
    }
    let help = "Requests of a router's agent that were refused, by reason.";
    let mut refusals = Family::new(text, "router_refusals_total", "counter", help);
    for router in routers {
        for (reason, count) in &router.refusals {
            refusals.sample(&[("vm", router.vm.as_str()), ("reason", reason)], *count);
        }
    }
}

fn write_rules(text: &mut String, rules: &[RuleTotals]) {
    for (name, kind, help, value) in OF_RULES {
        let mut family = Family::new(text, name, kind, help);
        for one in rules {
            family.sample(&[("pf", one.pf.as_str())], value(one));
        }
    }
    let help = "Frames that flow rules, or their default, decided on.";
    let mut frames = Family::new(text, "pf_rule_frames_total", "counter", help);
    for one in rules {
        for (verdict, count) in [("pass", one.passed), ("drop", one.dropped)] {
            frames.sample(&[("pf", one.pf.as_str()), ("verdict", verdict)], count);
        }
    }
    let help = "Changes of flow rules that were refused, by reason.";
    let mut refused = Family::new(text, "pf_rule_refusals_total", "counter", help);
    for one in rules {
        for (reason, count) in &one.refused {
            refused.sample(&[("pf", one.pf.as_str()), ("reason", reason.name())], *count);
        }
    }
}

fn labels(port: &PortStats) -> [(&'static str, &str); 2] {
    [("port", port.name.as_str()), ("network", port.network.as_str())]
}
