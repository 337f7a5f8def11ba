//! What the agent shows of itself: a Unix socket on which whoever connects reads a report.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::channel::{HopCount, Policy, Refusal};
use api::{Mac, Name};
use serde::{Deserialize, Serialize};

/// A report that comes from elsewhere is not longer, bytes.
const REPORT_MAX: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(2);

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

/// The socket, which goes with this value.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens; what is left of an agent that died is removed.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens there"));
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Tells everybody who waits.
    pub(crate) fn serve(&self, report: impl Fn() -> Report) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            // It fits into the socket's buffer; whoever has a smaller one gets less.
            let told = stream
                .set_nonblocking(true)
                .and_then(|()| Ok(serde_json::to_vec(&report())?))
                .and_then(|json| stream.write_all(&json));
            if let Err(error) = told {
                tracing::debug!("status: {error}");
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If somebody else removed it, all the better.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The report of the agent that listens there.
pub(crate) fn fetch(path: &Path) -> io::Result<Report> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut json = Vec::new();
    stream.take(REPORT_MAX).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
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
