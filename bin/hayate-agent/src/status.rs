//! What the agent shows of itself.

use std::fmt::Write as _;

use api::channel::{HopCount, Policy, Refusal};
use api::{Mac, Name};
use serde::{Deserialize, Serialize};

/// What the agent does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Its version.
    pub(crate) agent: String,
    /// Whom it is connected to.
    pub(crate) daemon: Option<Connected>,
    /// Why it is not connected.
    pub(crate) disconnected: Option<String>,
    pub(crate) policy: Policy,
    /// Why not more is delegated.
    pub(crate) reasons: Vec<String>,
    pub(crate) interfaces: Vec<ReportInterface>,
    /// What the kernel has.
    pub(crate) routes: usize,
    pub(crate) neighbours: usize,
    /// What is delegated, and what of it is still to be told.
    pub(crate) nexthops: usize,
    pub(crate) prefixes: usize,
    /// Each direction for itself.
    pub(crate) connections: usize,
    pub(crate) pending: usize,
    /// What passed the router by in this session.
    pub(crate) bypassed: HopCount,
}

/// A daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Connected {
    pub(crate) version: String,
    pub(crate) vm: Name,
    pub(crate) lease_ms: u64,
}

/// An interface that could be delegated.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReportInterface {
    pub(crate) name: String,
    pub(crate) mac: Option<Mac>,
    pub(crate) vlan: Option<u16>,
    /// The port it is behind.
    pub(crate) port: Option<Name>,
    /// What the daemon says to it.
    pub(crate) refused: Option<Refusal>,
    /// Why it is not delegated.
    pub(crate) why: Option<String>,
}

/// The report for people.
pub(crate) fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<12}{value}");
    };
    match (&report.daemon, &report.disconnected) {
        (Some(daemon), _) => {
            let Connected { version, vm, lease_ms } = daemon;
            line("connected", format!("to {version}, as {vm}, lease {lease_ms} ms"));
        }
        (None, why) => line("connected", format!("no: {}", why.as_deref().unwrap_or("soon"))),
    }
    let policy = match report.policy {
        Policy::Plain => "plain: all that is routed",
        Policy::Stateful => "stateful: established connections",
        Policy::Nothing => "nothing",
    };
    line("delegates", policy.to_owned());
    for reason in &report.reasons {
        line("because", reason.clone());
    }
    let Report { routes, neighbours, nexthops, prefixes, connections, pending, bypassed, .. } =
        report;
    line("kernel", format!("{routes} routes, {neighbours} neighbours"));
    let told = format!("{prefixes} prefixes, {connections} connections, {nexthops} next hops");
    line("told", format!("{told}, {pending} pending"));
    line("bypassed", format!("{} packets, {} bytes", bypassed.packets, bypassed.bytes));
    for interface in &report.interfaces {
        let ReportInterface { name, port, refused, why, .. } = interface;
        let place = match (port, refused, why) {
            (Some(port), ..) => format!("port {port}"),
            (None, Some(refused), _) => format!("refused: {}", refused.name()),
            (None, None, Some(why)) => format!("not delegated: {why}"),
            (None, None, None) => "not told".to_owned(),
        };
        line("interface", format!("{name}  {place}"));
    }
    text
}
