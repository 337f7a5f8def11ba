//! Traffic by ordinary programs, between guests or namespaces: ping, iperf3, files with a hash,
//! datagrams with a pattern.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::guest::Guest;
use crate::netns::Netns;
use crate::process::Process;
use crate::{Context, Result, bail, ensure};

/// Something with a shell and a network: a guest or a namespace.
pub trait Host {
    /// Its name, for messages.
    fn label(&self) -> String;

    /// Runs a shell command; exit status and output.
    ///
    /// # Errors
    /// When it takes longer than `limit`.
    fn try_sh(&mut self, command: &str, limit: Duration) -> Result<(i32, String)>;

    /// Starts a program that goes on until the value returned is dropped (a namespace) or the
    /// guest ends; its output goes to `log`, a path on that host.
    ///
    /// # Errors
    /// When it cannot be started.
    fn background(&mut self, command: &str, log: &str) -> Result<Option<Process>>;

    /// Where this host may put files.
    fn scratch(&self) -> PathBuf;

    /// How the test program `peer` is called here.
    fn peer(&self) -> String;

    /// Runs a shell command that must succeed.
    ///
    /// # Errors
    /// When its status is not 0, or it takes longer than 90 s.
    fn sh(&mut self, command: &str) -> Result<String> {
        let (status, out) = self.try_sh(command, crate::guest::COMMAND_LIMIT)?;
        ensure!(status == 0, "{}: {command}: status {status}\n{out}", self.label());
        Ok(out)
    }
}

impl Host for Guest {
    fn label(&self) -> String {
        format!("guest {}", self.name())
    }

    fn try_sh(&mut self, command: &str, limit: Duration) -> Result<(i32, String)> {
        Guest::try_sh(self, command, limit)
    }

    fn background(&mut self, command: &str, log: &str) -> Result<Option<Process>> {
        self.sh(&format!("({command}) >{log} 2>&1 </dev/null &"))?;
        Ok(None)
    }

    fn scratch(&self) -> PathBuf {
        "/tmp".into()
    }

    fn peer(&self) -> String {
        "peer".into()
    }
}

/// A namespace with a folder of the machine for its files.
#[derive(Debug)]
pub struct Place {
    /// The namespace.
    pub netns: Netns,
    dir: tempfile::TempDir,
}

impl Place {
    /// A new namespace.
    ///
    /// # Errors
    /// As [`Netns::new`].
    pub fn new() -> Result<Self> {
        Self::of(Netns::new()?)
    }

    /// A folder for this namespace.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn of(netns: Netns) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hayate-e2e-").tempdir()?;
        Ok(Self { netns, dir })
    }
}

impl Host for Place {
    fn label(&self) -> String {
        format!("namespace {}", self.netns.name())
    }

    fn try_sh(&mut self, command: &str, limit: Duration) -> Result<(i32, String)> {
        let o = self.netns.try_sh(command, limit)?;
        Ok((o.status.code().unwrap_or(-1), o.out + &o.err))
    }

    fn background(&mut self, command: &str, log: &str) -> Result<Option<Process>> {
        self.netns.start(command, std::path::Path::new(log)).map(Some)
    }

    fn scratch(&self) -> PathBuf {
        self.dir.path().into()
    }

    fn peer(&self) -> String {
        crate::assets::peer().map(|p| p.display().to_string()).unwrap_or_default()
    }
}

/// What ping saw.
#[derive(Debug, Clone, Copy)]
pub struct Ping {
    /// Requests sent.
    pub sent: u32,
    /// Answers received.
    pub received: u32,
    /// Round trip in milliseconds: least, average, most. Zero when nothing came back.
    pub rtt_ms: [f64; 3],
}

/// Pings: `options` are ping's, as in `-s 8972 -M do`.
///
/// # Errors
/// When ping cannot run at all; lost packets are not an error here.
pub fn ping(from: &mut dyn Host, to: &str, count: u32, options: &str) -> Result<Ping> {
    let limit = Duration::from_secs(60);
    let (_, text) = from.try_sh(&format!("ping -c {count} -i 0.1 -W 2 {options} {to}"), limit)?;
    let summary = text
        .lines()
        .find(|l| l.contains("packets transmitted"))
        .context(|| format!("{}: ping {to}: {text}", from.label()))?;
    let number = |word: &str| {
        let at = summary.find(word)?;
        summary[..at].split([' ', ',']).rfind(|w| w.parse::<u32>().is_ok())?.parse().ok()
    };
    let mut rtt_ms = [0.0; 3];
    if let Some(l) = text.lines().find(|l| l.starts_with("rtt "))
        && let Some((_, values)) = l.split_once("= ")
    {
        for (to, value) in rtt_ms.iter_mut().zip(values.split(['/', ' '])) {
            *to = value.parse().unwrap_or(0.0);
        }
    }
    Ok(Ping {
        sent: number(" packets transmitted").context(|| text.clone())?,
        received: number(" received").context(|| text.clone())?,
        rtt_ms,
    })
}

/// Pings that must all be answered, after up to 5 s for links to come up and addresses to be
/// resolved.
///
/// # Errors
/// When one is not.
pub fn must_ping(from: &mut dyn Host, to: &str, count: u32, options: &str) -> Result<Ping> {
    for _ in 0..10 {
        if ping(from, to, 1, &format!("-W 0.5 {options}"))?.received == 1 {
            break;
        }
    }
    let p = ping(from, to, count, options)?;
    ensure!(
        p.received == p.sent && p.sent == count,
        "{}: ping {options} {to}: {} of {} answered",
        from.label(),
        p.received,
        p.sent
    );
    Ok(p)
}

/// Pings of which none may be answered.
///
/// # Errors
/// When one is.
pub fn must_not_ping(from: &mut dyn Host, to: &str) -> Result<()> {
    let p = ping(from, to, 3, "-W 1")?;
    ensure!(p.received == 0, "{}: {to} answers ({} of {})", from.label(), p.received, p.sent);
    Ok(())
}

/// What iperf3 measured.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// Bits per second that arrived.
    pub received: f64,
    /// Bits per second that were sent.
    pub sent: f64,
    /// Per cent of datagrams lost (UDP).
    pub lost_percent: f64,
    /// Datagrams sent (UDP).
    pub datagrams: u64,
    /// Segments sent again (TCP).
    pub retransmits: u64,
}

/// Waits until something listens on a TCP port of a host.
///
/// # Errors
/// When nothing does within 15 s.
pub fn wait_listening(host: &mut dyn Host, port: u16) -> Result<()> {
    host.sh(&format!(
        "for i in $(seq 150); do ss -Hltn 'sport = :{port}' | grep -q . && exit 0; sleep 0.1; done; \
         echo nothing listens; exit 1"
    ))
    .map(drop)
}

/// Runs iperf3 from one host to another, for `seconds`; `options` are iperf3's (`-u -b 100M`,
/// `-R`, `-P 2`).
///
/// # Errors
/// When iperf3 fails or nothing arrives.
pub fn iperf(
    from: &mut dyn Host,
    to: &mut dyn Host,
    address: &str,
    seconds: u32,
    options: &str,
) -> Result<Rate> {
    let log = to.scratch().join("iperf3.log").display().to_string();
    let server = to.background("iperf3 -s -1", &log)?;
    wait_listening(to, 5201)?;
    let limit = Duration::from_secs(u64::from(seconds) + 60);
    let command = format!("iperf3 -J -c {address} -t {seconds} {options}");
    let (status, text) = from.try_sh(&command, limit)?;
    drop(server);
    let json = text.find('{').map_or("", |at| &text[at..]);
    let v: Value = serde_json::from_str(json)
        .context(|| format!("{}: {command}: status {status}: {text}", from.label()))?;
    if let Some(e) = v.get("error") {
        bail!("{}: {command}: {e}", from.label());
    }
    let end = &v["end"];
    let number = |o: &Value, k: &str| o[k].as_f64().unwrap_or(0.0);
    let sum = &end["sum"];
    let lost = number(sum, "lost_percent");
    let (sent, received) = if sum.is_object() {
        let sent = number(sum, "bits_per_second");
        let got = &end["sum_received"];
        let got = if got.is_object() { number(got, "bits_per_second") } else { 0.0 };
        (sent, if got > 0.0 { got } else { sent * (1.0 - lost / 100.0) })
    } else {
        let bits = "bits_per_second";
        (number(&end["sum_sent"], bits), number(&end["sum_received"], bits))
    };
    let rate = Rate {
        received,
        sent,
        lost_percent: lost,
        datagrams: sum["packets"].as_u64().unwrap_or(0),
        retransmits: end["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
    };
    ensure!(rate.received > 0.0, "{}: {command}: nothing arrived", from.label());
    Ok(rate)
}

/// Makes a file of random bytes on a host, unless it is there; its path and SHA-256.
///
/// # Errors
/// When there is no room.
pub fn random_file(host: &mut dyn Host, megabytes: u32) -> Result<(String, String)> {
    let path = host.scratch().join(format!("random-{megabytes}")).display().to_string();
    let bytes = u64::from(megabytes) << 20;
    host.sh(&format!("[ -e {path} ] || head -c {bytes} /dev/urandom >{path}"))?;
    let sum =
        host.sh(&format!("[ -e {path}.sum ] || sha256sum <{path} >{path}.sum; cat {path}.sum"))?;
    Ok((path, sum.trim().to_string()))
}

/// Sends a file of random bytes over one TCP connection and compares the hashes. An address with a
/// colon is IPv6.
///
/// # Errors
/// When the hashes differ or the transfer fails.
pub fn transfer(
    from: &mut dyn Host,
    to: &mut dyn Host,
    address: &str,
    megabytes: u32,
) -> Result<()> {
    const PORT: u16 = 7000;
    let (path, sent) = random_file(from, megabytes)?;
    let (listen, connect) = if address.contains(':') {
        (format!("TCP6-LISTEN:{PORT}"), format!("TCP6:[{address}]:{PORT}"))
    } else {
        (format!("TCP4-LISTEN:{PORT}"), format!("TCP4:{address}:{PORT}"))
    };
    let log = to.scratch().join("transfer.log").display().to_string();
    let file = to.scratch().join("received").display().to_string();
    let receiver =
        to.background(&format!("socat -u {listen},reuseaddr OPEN:{file},creat,trunc"), &log)?;
    wait_listening(to, PORT)?;
    from.sh(&format!("socat -u -b 262144 FILE:{path} {connect}"))
        .context(|| format!("sending {megabytes} MB to {address}"))?;
    // The receiver ends when it has seen the end of the stream.
    let done = format!(
        "for i in $(seq 300); do [ $(stat -c %s {file}) = {} ] && break; sleep 0.1; done; \
         sha256sum <{file}; rm -f {file}",
        u64::from(megabytes) << 20
    );
    let got = to.sh(&done)?;
    drop(receiver);
    ensure!(
        got.trim() == sent,
        "{megabytes} MB from {} to {} ({address}): sent {sent}, arrived {}",
        from.label(),
        to.label(),
        got.trim()
    );
    Ok(())
}

/// Sends datagrams to an echo on the other host and compares every byte that comes back; a lost
/// datagram is sent again a few times. `segment` above 0 hands several datagrams at once to the
/// kernel (`UDP_SEGMENT`), which leaves cutting them to the device (USO) when it can.
///
/// # Errors
/// When a datagram never comes back or comes back changed.
pub fn datagrams(
    from: &mut dyn Host,
    to: &mut dyn Host,
    address: &str,
    count: u32,
    size: u32,
    segment: u32,
) -> Result<String> {
    const PORT: u16 = 7001;
    let log = to.scratch().join("echo.log").display().to_string();
    let echo = format!("{} udp-echo {PORT}", to.peer());
    let server = to.background(&echo, &log)?;
    let send = format!("{} udp-check {address} {PORT} {count} {size} {segment}", from.peer());
    let result = from.sh(&send);
    drop(server);
    let _ = to.sh(&format!("{} udp-quit {PORT}", to.peer()));
    result.map(|t| t.trim().to_string()).context(|| {
        let said = to.sh(&format!("tail -5 {log}")).unwrap_or_default();
        format!("datagrams of {size} bytes (segment {segment}) to {address}; echo said {said:?}")
    })
}
