//! The daemon, a VM with a PF, another VM, and a namespace outside: all on one network.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use api::{FdbEntry, Pf};
use e2e::guest::{Config, Guest};
use e2e::hayate::Hayate;
use e2e::process::{Process, pause, wait_for};
use e2e::traffic::{Host, Place};
use e2e::{Context, Result, assets, ensure};

/// VFs of the PF: more than fit beside it into eight functions, so that some are reached by ARI.
pub(crate) const VFS: u16 = 9;
/// Where the guest says how many it wants. `device` is the virtio device, its parent the PCI one.
const NUMVFS: &str = "/sys/class/net/eth0/device/../sriov_numvfs";
/// How long the daemon may take for what a guest did.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const PF: &str = "10.9.0.1";
pub(crate) const PEER: &str = "10.9.0.2";
pub(crate) const OUTSIDE: &str = "10.9.0.3";

/// Address of a VF.
pub(crate) fn ip(vf: u16) -> String {
    format!("10.9.0.{}", 10 + vf)
}

/// See the module's description. Guests first: their sockets are in the daemon's folder.
pub(crate) struct Lab {
    pub(crate) web: RefCell<Guest>,
    pub(crate) peer: RefCell<Guest>,
    pub(crate) outside: RefCell<Place>,
    pub(crate) hayate: Hayate,
    options: String,
}

/// What the daemon holds for the functions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    descriptors: usize,
    mappings: usize,
    /// Addresses behind the VFs.
    addresses: usize,
    /// State of each function.
    states: Vec<String>,
}

/// A namespace of a guest, or the guest itself.
pub(crate) struct Spot<'a> {
    guest: &'a RefCell<Guest>,
    netns: Option<String>,
}

impl Lab {
    /// Boots both VMs with what `hayate vm qemu` prints; no VF is enabled. Each function has a queue pair
    /// for each virtual CPU.
    pub(crate) fn boot(vcpus: u16, options: &str) -> Result<Self> {
        Self::with(VFS, vcpus, options)
    }

    /// The same with a pool of another size.
    pub(crate) fn with(vfs: u16, vcpus: u16, options: &str) -> Result<Self> {
        let hayate = Hayate::start(&[])?;
        hayate.network("lan")?;
        for vm in ["web", "peer"] {
            let channel = hayate.dir().join(format!("{vm}.channel"));
            let channel = channel.display();
            hayate
                .cli(&format!("vm add {vm} --memory 512M --vcpus {vcpus} --channel {channel}"))?;
        }
        hayate.cli(&format!("vf create --vm web --vfs {vfs}"))?;
        hayate.cli("port add peer0 --network lan --kind vhost --vm peer")?;
        let outside = Place::new()?;
        hayate.tap("outside", "lan", outside.netns.name(), "")?;
        let [web, peer] = ["web", "peer"].map(|vm| start(&hayate, vm, options));
        let (mut web, mut peer) = (web?, peer?);
        web.wait_ready()?;
        peer.wait_ready()?;
        peer.sh(&format!(
            "ip addr add {PEER}/24 dev eth0; ip link set eth0 up; mkdir -p /tmp/eth0"
        ))?;
        let (web, peer) = (RefCell::new(web), RefCell::new(peer));
        let outside = RefCell::new(outside);
        let lab = Self { web, peer, outside, hayate, options: options.into() };
        lab.configure_pf()?;
        lab.configure_outside()?;
        Ok(lab)
    }

    /// A new daemon in the place of one that ended.
    pub(crate) fn launch(&mut self) -> Result<()> {
        self.hayate.launch()?;
        // Its interface is a new one too.
        self.configure_outside()
    }

    fn configure_outside(&self) -> Result<()> {
        let outside = self.outside.borrow();
        outside.netns.ip(&format!("address add {OUTSIDE}/24 dev outside")).map(drop)
    }

    /// A new QEMU in the place of one that ended.
    pub(crate) fn start_again(&self) -> Result<()> {
        let mut web = start(&self.hayate, "web", &self.options)?;
        web.wait_ready()?;
        *self.web.borrow_mut() = web;
        self.configure_pf()
    }

    /// The PF's address, after each boot.
    pub(crate) fn configure_pf(&self) -> Result<()> {
        self.guest(&format!("ip addr add {PF}/24 dev eth0; ip link set eth0 up")).map(drop)
    }

    /// Runs a command in the VM with the PF.
    pub(crate) fn guest(&self, command: &str) -> Result<String> {
        self.web.borrow_mut().sh(command)
    }

    pub(crate) fn pf(&self) -> Result<Pf> {
        let text = self.hayate.cli("vf show web-pf0 --json")?;
        serde_json::from_str(&text).context(|| format!("vf show --json printed {text}"))
    }

    /// Has the guest make so many VFs, and waits for the daemon to see it. More or fewer than none
    /// cannot be changed but by way of none.
    pub(crate) fn enable(&self, vfs: u16) -> Result<()> {
        self.guest(&format!("echo 0 > {NUMVFS}; echo {vfs} > {NUMVFS}"))?;
        self.wait_running(vfs)
    }

    /// Waits until the first so many VFs have carrier, and no others.
    pub(crate) fn wait_running(&self, vfs: u16) -> Result<()> {
        wait_for(&format!("carrier of {vfs} VFs"), PATIENCE, || {
            let carriers =
                self.pf()?.functions.into_iter().filter_map(|one| Some((one.vf?, one.carrier)));
            let right = carriers.into_iter().all(|(vf, carrier)| carrier == (vf < vfs));
            pause(Duration::from_millis(20))?;
            Ok(right.then_some(()))
        })
        .context(|| self.hayate.cli("vf show web-pf0").unwrap_or_default())
    }

    /// Moves a VF that is enabled into a namespace of its own and gives it its address.
    pub(crate) fn place(&self, vf: u16) -> Result<Spot<'_>> {
        let pf = self.pf()?;
        let function = pf.functions.into_iter().find(|one| one.vf == Some(vf));
        let mac = function.context(|| format!("no VF {vf}"))?.mac;
        let (netns, ip) = (format!("v{vf}"), ip(vf));
        // The driver takes its time, the namespace may be there from before.
        self.guest(&format!(
            "ip netns add {netns} 2>/dev/null; mkdir -p /tmp/{netns}; \
             for i in $(seq 100); do \
             d=$(grep -l {mac} /sys/class/net/*/address | cut -d/ -f5); [ -n \"$d\" ] && break; sleep 0.1; done; \
             ip link set $d netns {netns} name card && ip -n {netns} addr add {ip}/24 dev card && \
             ip -n {netns} link set card up"
        ))?;
        Ok(Spot { guest: &self.web, netns: Some(netns) })
    }

    /// The VM with the PF, by its PF.
    pub(crate) fn pf_spot(&self) -> Result<Spot<'_>> {
        self.guest("mkdir -p /tmp/eth0")?;
        Ok(Spot { guest: &self.web, netns: None })
    }

    pub(crate) fn peer_spot(&self) -> Spot<'_> {
        Spot { guest: &self.peer, netns: None }
    }

    /// What the daemon has now.
    pub(crate) fn holdings(&self) -> Result<Holdings> {
        let pid = self.hayate.pid()?;
        let fdb = self.hayate.cli("fdb lan --json")?;
        let fdb: Vec<FdbEntry> = serde_json::from_str(&fdb)?;
        let behind_vf = |entry: &&FdbEntry| entry.port.as_str().starts_with("web-pf0vf");
        Ok(Holdings {
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            mappings: fs::read_to_string(format!("/proc/{pid}/maps"))?.lines().count(),
            addresses: fdb.iter().filter(behind_vf).count(),
            states: self.pf()?.functions.iter().map(|one| one.state.as_str().into()).collect(),
        })
    }

    /// What the daemon has while nothing is enabled, after all of it was.
    pub(crate) fn base(&self) -> Result<Holdings> {
        self.enable(VFS)?;
        self.enable(0)?;
        self.settled()
    }

    /// What it has, when two looks agree.
    fn settled(&self) -> Result<Holdings> {
        let mut last = self.holdings()?;
        wait_for("what the daemon holds to settle", PATIENCE, || {
            pause(Duration::from_millis(300))?;
            let now = self.holdings()?;
            let same = now == last;
            last = now;
            Ok(same.then_some(()))
        })?;
        Ok(last)
    }

    /// Disables all VFs; nothing of what they did is left.
    pub(crate) fn must_hold(&self, base: &Holdings) -> Result<()> {
        self.enable(0)?;
        let mut now = self.holdings()?;
        // The heap of a process may be one mapping more or two.
        let same = |now: &Holdings| {
            now.descriptors == base.descriptors
                && now.mappings <= base.mappings + 2
                && (now.addresses, &now.states) == (0, &base.states)
        };
        let waited = wait_for("what the daemon held before", PATIENCE, || {
            now = self.holdings()?;
            pause(Duration::from_millis(100))?;
            Ok(same(&now).then_some(()))
        });
        ensure!(waited.is_ok(), "before: {base:?}\nnow: {now:?}");
        Ok(())
    }
}

impl std::fmt::Display for Holdings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} descriptors, {} mappings", self.descriptors, self.mappings)
    }
}

/// Starts QEMU with what is printed for a VM of the daemon.
fn start(hayate: &Hayate, vm: &str, options: &str) -> Result<Guest> {
    let assets = assets::get()?;
    let version: Vec<&str> = assets.qemu_version.split('.').take(2).collect();
    let printed =
        hayate.cli(&format!("vm qemu {vm} --qemu-version {} {options}", version.join(".")))?;
    let mut config = Config::new(vm);
    config.initrd = Some(assets::with_agent(assets)?);
    config.more = printed.split_whitespace().map(String::from).collect();
    Guest::start(assets, hayate.dir(), config)
}

impl Spot<'_> {
    fn inside(&self, command: &str) -> String {
        match &self.netns {
            Some(netns) => {
                format!("ip netns exec {netns} sh -c '{}'", command.replace('\'', r"'\''"))
            }
            None => command.to_owned(),
        }
    }
}

impl Host for Spot<'_> {
    fn label(&self) -> String {
        let guest = self.guest.borrow();
        format!("{} of guest {}", self.netns.as_deref().unwrap_or("eth0"), guest.name())
    }

    fn try_sh(&mut self, command: &str, limit: Duration) -> Result<(i32, String)> {
        self.guest.borrow_mut().try_sh(&self.inside(command), limit)
    }

    fn background(&mut self, command: &str, log: &str) -> Result<Option<Process>> {
        let command = self.inside(command);
        self.guest.borrow_mut().background(&command, log)
    }

    fn scratch(&self) -> PathBuf {
        format!("/tmp/{}", self.netns.as_deref().unwrap_or("eth0")).into()
    }

    fn peer(&self) -> String {
        "peer".into()
    }
}
