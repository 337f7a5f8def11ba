//! QEMU guests: started, commanded over a virtio-serial port (no network needed), rebooted, killed.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::accel::{self, Accel};
use crate::assets::Assets;
use crate::process::{Process, interrupted, tail, wait_for};
use crate::{Context, Error, Result, bail, ensure};

/// Longest time a command in a guest may take unless said otherwise. Generous: guests are emulated
/// on machines that do other things too.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(90);
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// The kernel's. Measured to save about a second of an emulated boot.
const COMMAND_LINE: &str = include_str!("../guest/cmdline");

/// One virtio-net device on a vhost-user socket.
#[derive(Debug, Clone)]
pub struct Nic {
    /// The socket the switch listens on.
    pub socket: PathBuf,
    /// MAC address.
    pub mac: String,
    /// Queue pairs; more than 1 adds `mq=on`.
    pub queues: u16,
    /// More properties of `virtio-net-pci`, as on QEMU's command line.
    pub props: String,
}

impl Nic {
    /// A device with one queue pair and QEMU's defaults.
    pub fn new(socket: &Path, last_mac_byte: u8) -> Self {
        let mac = format!("52:54:00:00:01:{last_mac_byte:02x}");
        Self { socket: socket.into(), mac, queues: 1, props: String::new() }
    }

    fn args(&self, i: usize) -> Vec<String> {
        let q = self.queues;
        let mut netdev = format!("vhost-user,id=n{i},chardev=c{i}");
        let mut device = format!("virtio-net-pci,netdev=n{i},mac={}", self.mac);
        if q > 1 {
            let _ = write!(netdev, ",queues={q}");
            let _ = write!(device, ",mq=on,vectors={}", 2 * q + 2);
        }
        if !self.props.is_empty() {
            let _ = write!(device, ",{}", self.props);
        }
        let chardev = format!("socket,id=c{i},path={},reconnect-ms=200", self.socket.display());
        crate::argv!["-chardev", chardev, "-netdev", netdev, "-device", device]
    }
}

/// How to start a guest.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name, also its host name.
    pub name: String,
    /// Its network devices: `eth0`, `eth1`...
    pub nics: Vec<Nic>,
    /// More of QEMU's command line, its network devices before those of `nics`.
    pub more: Vec<String>,
    /// The kernel; `None`: that of all guests.
    pub kernel: Option<PathBuf>,
    /// The initramfs, for that kernel; `None`: that of all guests.
    pub initrd: Option<PathBuf>,
    /// What QEMU is started by, like `taskset -c 1`.
    pub under: Vec<String>,
    /// The firmware boots it from the first disk of `more`, a copy or clone of [`Assets::disk`].
    pub boots_from_disk: bool,
    /// Virtual CPUs.
    pub cpus: u16,
    /// Memory in MiB.
    pub memory: u32,
    /// The accelerator; `None`: whatever works here.
    pub accel: Option<Accel>,
    /// Longest time from start to the first answer.
    pub boot_limit: Duration,
    /// It may outlive this program.
    pub lasting: bool,
}

impl Config {
    /// One CPU, 512 MiB, no network.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            nics: Vec::new(),
            more: Vec::new(),
            kernel: None,
            initrd: None,
            under: Vec::new(),
            boots_from_disk: false,
            cpus: 1,
            memory: 512,
            accel: None,
            boot_limit: BOOT_LIMIT,
            lasting: false,
        }
    }

    /// The same with one more network device, and a CPU for each of its queues.
    #[must_use]
    pub fn nic(mut self, nic: Nic) -> Self {
        self.cpus = self.cpus.max(nic.queues);
        self.nics.push(nic);
        self
    }
}

/// A QEMU guest; killed when dropped.
#[derive(Debug)]
pub struct Guest {
    config: Config,
    process: Process,
    started: Instant,
    /// Seconds from the start of QEMU to the guest's first answer.
    pub boot_seconds: f64,
    /// QEMU's command line.
    pub argv: Vec<String>,
    dir: PathBuf,
    channel: Option<UnixStream>,
    buffer: Vec<u8>,
}

impl Guest {
    /// Starts QEMU; sockets and logs go to `dir`. Returns at once: see [`Guest::wait_ready`].
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn start(assets: &Assets, dir: &Path, config: Config) -> Result<Self> {
        let accel = match config.accel {
            Some(a) => a,
            None => accel::detect(assets)?,
        };
        let name = &config.name;
        let at = |suffix: &str| dir.join(format!("{name}.{suffix}")).display().to_string();
        // Sockets of an earlier guest of this name would be taken for its own.
        for s in ["cmd", "shell", "qmp", "console"] {
            let _ = std::fs::remove_file(at(s));
        }
        let memory = config.memory;
        let mut argv = config.under.clone();
        argv.extend(crate::argv![assets.qemu.display(), "-M", "q35,memory-backend=mem0"]);
        argv.extend(accel.args().map(String::from));
        argv.extend(crate::argv![
            "-smp",
            config.cpus,
            "-m",
            memory,
            "-object",
            format!("memory-backend-memfd,id=mem0,size={memory}M,share=on"),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-chardev",
            format!("file,id=con,path={}", at("console")),
            "-serial",
            "chardev:con",
            "-qmp",
            format!("unix:{},server=on,wait=off", at("qmp")),
            "-device",
            "virtio-serial-pci,id=vs0",
            "-chardev",
            format!("socket,id=cmd,path={},server=on,wait=off", at("cmd")),
            "-device",
            "virtserialport,bus=vs0.0,chardev=cmd,name=cmd",
            "-chardev",
            format!("socket,id=shell,path={},server=on,wait=off", at("shell")),
            "-device",
            // A console, which is a terminal to the guest: a person logs in here.
            "virtconsole,bus=vs0.0,chardev=shell",
            "-device",
            "virtio-rng-pci",
            "-smbios",
            format!("type=1,serial={name}"),
        ]);
        if !config.boots_from_disk {
            let initrd = config.initrd.as_ref().unwrap_or(&assets.initrd).display();
            let kernel = config.kernel.as_ref().unwrap_or(&assets.kernel).display();
            argv.extend(crate::argv!["-kernel", kernel, "-initrd", initrd]);
            argv.extend(crate::argv!["-append", COMMAND_LINE.trim_end()]);
        }
        argv.extend(config.more.iter().cloned());
        for (i, nic) in config.nics.iter().enumerate() {
            argv.extend(nic.args(i));
        }
        let log = dir.join(format!("{name}.qemu.log"));
        let label = format!("QEMU of guest {name}");
        let process = if config.lasting {
            Process::start_lasting(&label, &argv, &log)?
        } else {
            Process::start(&label, &argv, &log, false)?
        };
        Ok(Self {
            config,
            process,
            started: Instant::now(),
            boot_seconds: 0.0,
            argv,
            dir: dir.into(),
            channel: None,
            buffer: Vec::new(),
        })
    }

    /// Waits for the guest's first answer.
    ///
    /// # Errors
    /// When it does not answer in time; the text has the end of its console.
    pub fn wait_ready(&mut self) -> Result<()> {
        let path = self.path("cmd");
        let limit = self.config.boot_limit;
        let qmp = self.path("qmp");
        let process = &mut self.process;
        let stream = wait_for("QEMU's command socket", limit, || {
            process.check()?;
            Ok(UnixStream::connect(&path).ok())
        })?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        self.channel = Some(stream);
        let end = self.started + limit;
        // KVM that fails inside stops the guest without a word: ask from time to time.
        let mut ask = Instant::now() + Duration::from_secs(2);
        loop {
            let piece = end.min(ask).saturating_duration_since(Instant::now());
            match self.until("@@HELLO ", piece, "boot") {
                Ok(_) => break,
                Err(e) if Instant::now() >= end || interrupted() => return Err(e),
                Err(_) => self.process.check()?,
            }
            let status = qmp_on(&qmp, "query-status", &json!({}))?;
            if status["return"]["status"] == "internal-error" {
                return Err(self.with_logs("the guest stopped with an internal error of KVM"));
            }
            ask = Instant::now() + Duration::from_secs(1);
        }
        self.boot_seconds = self.started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// One of its files: `cmd` and `shell` (sockets of the command channel and of a login shell),
    /// `qmp`, `console`, `qemu.log`.
    pub fn path(&self, suffix: &str) -> PathBuf {
        self.dir.join(format!("{}.{suffix}", self.config.name))
    }

    /// Runs a shell command in the guest (one line); its exit status and output, both streams.
    ///
    /// # Errors
    /// When it takes longer than `limit` or the guest dies.
    pub fn try_sh(&mut self, command: &str, limit: Duration) -> Result<(i32, String)> {
        ensure!(!command.contains('\n'), "more than one line for a guest: {command:?}");
        self.send(command)?;
        let (out, rest) = self.until("@@RC ", limit, command)?;
        Ok((rest.trim().parse().unwrap_or(-1), out.replace("\r\n", "\n")))
    }

    /// Runs a shell command in the guest that must succeed; its output.
    ///
    /// # Errors
    /// As [`Guest::try_sh`], and when its status is not 0.
    pub fn sh(&mut self, command: &str) -> Result<String> {
        self.sh_for(COMMAND_LIMIT, command)
    }

    /// [`Guest::sh`] with another limit.
    ///
    /// # Errors
    /// As [`Guest::sh`].
    pub fn sh_for(&mut self, limit: Duration, command: &str) -> Result<String> {
        let (status, out) = self.try_sh(command, limit)?;
        ensure!(status == 0, "guest {}: {command}: status {status}\n{out}", self.config.name);
        Ok(out)
    }

    /// Reboots the guest (QEMU stays) and waits until it answers again; seconds it took.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn reboot(&mut self) -> Result<f64> {
        let start = Instant::now();
        self.send("reboot -f")?;
        self.until("@@HELLO ", BOOT_LIMIT, "reboot")?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// A command of QEMU's machine protocol; the answer's `return`.
    ///
    /// # Errors
    /// When QEMU answers with an error or not at all.
    pub fn qmp(&self, command: &str, arguments: &Value) -> Result<Value> {
        let mut answer = qmp_on(&self.path("qmp"), command, arguments)?;
        if let Some(e) = answer.get("error") {
            bail!("QMP {command}: {e}");
        }
        Ok(answer["return"].take())
    }

    /// Sends SIGKILL to QEMU and waits until it is gone.
    pub fn kill9(&mut self) {
        self.process.kill();
    }

    /// Fails when QEMU has ended.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Dropping this value will not end QEMU.
    pub fn leave_running(&mut self) {
        self.process.leave_running();
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let name = self.config.name.clone();
        let channel = self.channel.as_mut().context(|| format!("guest {name} is not up"))?;
        Ok(channel.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Reads up to the line that starts with `mark`: the text before it, and the rest of the line.
    fn until(&mut self, mark: &str, limit: Duration, what: &str) -> Result<(String, String)> {
        let end = Instant::now() + limit;
        let mut chunk = vec![0; 1 << 16];
        loop {
            let text = String::from_utf8_lossy(&self.buffer).into_owned();
            if let Some(at) = text.find(mark)
                && let Some(len) = text[at..].find('\n')
            {
                let rest = text[at + mark.len()..at + len].to_string();
                self.buffer = text.as_bytes()[at + len + 1..].to_vec();
                return Ok((text[..at].to_string(), rest));
            }
            self.process.check().map_err(|e| self.with_logs(&format!("{what}: {e}")))?;
            if interrupted() {
                bail!("interrupted");
            }
            if Instant::now() > end {
                let seconds = limit.as_secs();
                let so_far = &text[text.len().saturating_sub(600).min(text.len())..];
                let said = format!("{what}: no answer in {seconds} s; so far {so_far:?}");
                return Err(self.with_logs(&said));
            }
            let channel = self.channel.as_mut().context(|| "guest is not up".into())?;
            match channel.read(&mut chunk) {
                Ok(0) => std::thread::sleep(Duration::from_millis(20)),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.with_logs(&format!("{what}: {e}"))),
            }
        }
    }

    fn with_logs(&self, what: &str) -> Error {
        Error::new(format!(
            "guest {}: {what}\n--- console\n{}\n--- QEMU\n{}",
            self.config.name,
            tail(&self.path("console"), 1500),
            tail(&self.path("qemu.log"), 1500)
        ))
    }
}

fn qmp_on(socket: &Path, command: &str, arguments: &Value) -> Result<Value> {
    let mut s = UnixStream::connect(socket).context(|| "QMP".into())?;
    s.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(s.try_clone()?));
    let mut answer = || -> Result<Value> {
        loop {
            let line = lines.next().context(|| "QMP closed".into())??;
            let v: Value = serde_json::from_str(&line)?;
            // Everything else is an event.
            if ["return", "error", "QMP"].iter().any(|k| v.get(k).is_some()) {
                return Ok(v);
            }
        }
    };
    answer()?;
    writeln!(s, "{}", json!({ "execute": "qmp_capabilities" }))?;
    answer()?;
    writeln!(s, "{}", json!({ "execute": command, "arguments": arguments }))?;
    answer()
}
