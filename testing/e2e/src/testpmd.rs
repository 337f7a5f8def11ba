//! dpdk-testpmd, which we did not write: as a guest (virtio-user) that sends everything back, and
//! as a switch (vhost) to try the guests without hayate.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{Process, wait_for};
use crate::{Result, argv, ensure};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A running dpdk-testpmd; ended when dropped.
#[derive(Debug)]
pub struct Testpmd {
    process: Process,
    /// What DPDK makes for every process; it does not remove it.
    runtime: PathBuf,
    _dir: TempDir,
}

/// How testpmd presents itself as a guest's driver.
#[derive(Debug, Clone)]
pub struct VirtioUser {
    /// The vhost-user socket the switch listens on.
    pub socket: PathBuf,
    /// MAC address.
    pub mac: String,
    /// Queue pairs.
    pub queues: u16,
    /// Packed rings; otherwise split.
    pub packed: bool,
    /// `VIRTIO_NET_F_MRG_RXBUF`.
    pub mergeable: bool,
    /// `VIRTIO_F_IN_ORDER`.
    pub in_order: bool,
    /// Descriptors per queue.
    pub size: u16,
}

impl Testpmd {
    /// A guest that sends every frame back with its MAC addresses exchanged.
    ///
    /// # Errors
    /// When testpmd does not come up.
    pub fn reflector(v: &VirtioUser) -> Result<Self> {
        let q = v.queues;
        let device = format!(
            "net_virtio_user0,path={},mac={},queues={q},queue_size={},packed_vq={},mrg_rxbuf={},in_order={}",
            v.socket.display(),
            v.mac,
            v.size,
            u8::from(v.packed),
            u8::from(v.mergeable),
            u8::from(v.in_order),
        );
        // A frame of 9000 bytes arrives in one buffer where buffers cannot be merged.
        let buffer = if v.mergeable { 2176 } else { 9728 };
        let mut options = argv![
            "--forward-mode=macswap",
            format!("--rxq={q}"),
            format!("--txq={q}"),
            format!("--rxd={}", v.size),
            format!("--txd={}", v.size),
            format!("--mbuf-size={buffer}"),
            "--max-pkt-len=9018",
            "--total-num-mbufs=8192",
        ];
        if v.mergeable {
            options.push("--enable-scatter".into());
        }
        Self::start(&[device], &options, 256)
    }

    /// A vhost-user switch that forwards between pairs of sockets, on which it listens.
    ///
    /// # Errors
    /// When testpmd does not come up.
    pub fn switch(sockets: &[&Path], queues: u16) -> Result<Self> {
        let devices: Vec<String> = sockets
            .iter()
            .enumerate()
            .map(|(i, s)| format!("net_vhost{i},iface={},queues={queues},client=0", s.display()))
            .collect();
        let options =
            argv![format!("--rxq={queues}"), format!("--txq={queues}"), "--total-num-mbufs=8192",];
        Self::start(&devices, &options, 256)
    }

    fn start(devices: &[String], options: &[String], megabytes: u32) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hayate-e2e-").tempdir()?;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("hayate-{}-{n}", std::process::id());
        // Nothing of the machine's configuration is changed: no huge pages, no shared state.
        let mut argv = argv![
            // Line by line, or what it says would stay in its buffer.
            "stdbuf",
            "-oL",
            "dpdk-testpmd",
            "--no-huge",
            "--no-shconf",
            "-m",
            megabytes,
            "--no-pci",
            "--no-telemetry",
            "--file-prefix",
            prefix,
            "-l",
            "0,1",
        ];
        for d in devices {
            argv.extend(argv!["--vdev", d]);
        }
        argv.extend(argv!["--", "-i", "--nb-cores=1"]);
        argv.extend(options.iter().cloned());
        let log = dir.path().join("testpmd.log");
        let process = Process::start("dpdk-testpmd", &argv, &log, true)?;
        let runtime = Path::new("/var/run/dpdk").join(prefix);
        let mut t = Self { process, runtime, _dir: dir };
        t.until("testpmd>", 0)?;
        let said = t.command("start", "testpmd>")?;
        ensure!(!said.contains("Not all ports"), "dpdk-testpmd: {}", t.process.log_text());
        Ok(t)
    }

    /// Frames it received and sent so far, in its own words.
    ///
    /// # Errors
    /// When it has ended or does not answer within 30 s.
    pub fn statistics(&mut self) -> Result<String> {
        let text = self.command("show port stats all", "Tx-bps")?;
        let lines = text.lines().filter(|l| l.contains("packets:") || l.contains("errors:"));
        Ok(lines
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("; "))
    }

    /// Gives it a command and waits until it said `mark`; what it said.
    fn command(&mut self, line: &str, mark: &str) -> Result<String> {
        let before = self.process.log_text().len();
        self.process.write(&format!("{line}\n"))?;
        self.until(mark, before)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn until(&mut self, mark: &str, from: usize) -> Result<String> {
        let process = &mut self.process;
        wait_for("an answer of dpdk-testpmd", Duration::from_secs(30), || {
            process.check()?;
            let text = process.log_text();
            let new = text.get(from..).unwrap_or_default();
            Ok(new.contains(mark).then(|| new.to_string()))
        })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // Asked to, it closes its sockets in order; otherwise it is ended like any process.
        if self.process.write("quit\n").is_ok() {
            let _ = self.process.wait(Duration::from_secs(5));
        }
        let _ = std::fs::remove_dir_all(&self.runtime);
    }
}
