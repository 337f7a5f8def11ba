//! A daemon, a router with its agent, and hosts of our own on vhost ports, whose every frame we make
//! and see. The router is a network namespace with tap ports, or a stock Linux guest of QEMU.

use std::time::{Duration, Instant};

use e2e::endpoint::{Endpoint, OFFLOADS};
use e2e::guest::{Config, Guest};
use e2e::hayate::Hayate;
use e2e::netns::Netns;
use e2e::process::{Process, tail, wait_for};
use e2e::{Context, Result, assets, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::traffic::Traffic;

pub type Mac = [u8; 6];

/// Addresses of the hosts; the second one of B.
pub const A: Mac = [2, 0, 0, 0, 0, 0xa];
pub const B: Mac = [2, 0, 0, 0, 0, 0xb];
pub const C: Mac = [2, 0, 0, 0, 0, 0xc];
pub const B_TOO: Mac = [2, 0, 0, 0, 0, 0xbb];
const HOSTS: [&[Mac]; 3] = [&[A], &[B, B_TOO], &[C]];

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// See the module. Host n is on port `hn` of network `nn`, as is the router's interface `rn`.
pub struct Lab {
    pub hosts: Vec<Endpoint>,
    pub router: Router,
    pub hayate: Hayate,
    pub traffic: Traffic,
}

/// Where a router is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Namespace,
    Guest,
}

/// A router.
pub enum Machine {
    Namespace(Netns),
    Guest(Box<Guest>),
}

/// A router that is a VM of this name, its interfaces are the name and a number.
pub struct Router {
    pub name: String,
    /// In a namespace, that is.
    pub agent: Option<Process>,
    pub machine: Machine,
    /// Addresses of its interfaces.
    pub macs: Vec<Mac>,
}

pub fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Lines of a shell that run these commands of `ip`, one a line.
pub fn ip(lines: &str) -> String {
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| format!("ip {line}\n")).collect()
}

fn parse(mac: &str) -> Result<Mac> {
    let bytes: Vec<u8> = mac
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<std::result::Result<_, _>>()?;
    bytes.try_into().ok().context(|| format!("MAC address {mac}"))
}

impl Lab {
    /// A router between so many hosts that is set up by these lines of a shell, and its agent.
    pub fn new(kind: Kind, hosts: usize, setup: &str, agent: &str) -> Result<Self> {
        let hayate = Hayate::start(&[])?;
        let networks: Vec<String> = (0..hosts).map(|n| format!("n{n}")).collect();
        for network in &networks {
            hayate.network(network)?;
        }
        let networks: Vec<&str> = networks.iter().map(String::as_str).collect();
        let mut router = Router::new(&hayate, kind, "r", &networks)?;
        router.lines(setup)?;
        for n in 0..hosts {
            hayate.vhost(&format!("h{n}"), &format!("n{n}"), "")?;
        }
        let traffic = Traffic::default();
        let mut lab = Self { hosts: Vec::new(), router, hayate, traffic };
        lab.connect_hosts()?;
        lab.router.start_agent(&lab.hayate, agent)?;
        Ok(lab)
    }

    /// Connects the hosts, again. All get to know where they are: what would go everywhere does not
    /// go past a router.
    pub fn connect_hosts(&mut self) -> Result<()> {
        self.hosts.clear();
        for (n, (macs, router)) in HOSTS.iter().zip(&self.router.macs).enumerate() {
            let socket = self.hayate.dir().join(format!("h{n}.sock"));
            let mut host = Endpoint::connect(&socket, OFFLOADS)?;
            for mac in *macs {
                let hello = [&router[..], mac, &[0x88, 0xb5], &[0; 46]].concat();
                ensure!(host.put(&[0; 12], &hello)?, "no room for a frame");
            }
            host.flush()?;
            self.hosts.push(host);
        }
        Ok(())
    }

    /// Sends a frame of A.
    pub fn send(&mut self, header: &[u8; 12], frame: &[u8]) -> Result<()> {
        send(&mut self.hosts[0], header, frame)
    }

    /// Waits for a frame at a host that `is` wants; all that came until then, and it.
    pub fn until(
        &mut self,
        what: &str,
        host: usize,
        is: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<([u8; 12], Vec<u8>)>> {
        let end = Instant::now() + PATIENCE;
        let mut came = Vec::new();
        let host = &mut self.hosts[host];
        loop {
            host.flush()?;
            while let Some(one) = host.take()? {
                let found = is(&one.1);
                came.push(one);
                if found {
                    return Ok(came);
                }
            }
            if Instant::now() > end {
                bail!("{what} did not come; {} other frames did", came.len());
            }
            std::thread::yield_now();
        }
    }
}

/// Sends a frame, once there is room for it.
pub fn send(host: &mut Endpoint, header: &[u8; 12], frame: &[u8]) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !host.put(header, frame)? {
        host.flush()?;
        ensure!(Instant::now() < end, "a host's frames are not taken");
    }
    Ok(())
}

impl Router {
    /// The VM, its ports on these networks, and the machine.
    pub fn new(hayate: &Hayate, kind: Kind, name: &str, networks: &[&str]) -> Result<Self> {
        hayate.cli(&format!("vm add {name} --channel {}", channel(hayate, name)))?;
        let name = name.to_owned();
        if kind == Kind::Namespace {
            let machine = Machine::Namespace(Netns::new()?);
            let mut router = Self { name, agent: None, machine, macs: Vec::new() };
            for (n, network) in networks.iter().enumerate() {
                router.add_tap(hayate, n, network)?;
                // Others than those of other routers.
                let own = router.name.bytes().last().unwrap_or_default();
                router.macs.push([2, 0, 0, own, 1, u8::try_from(n)?]);
                router.set_mac(n)?;
            }
            return Ok(router);
        }
        for (n, network) in networks.iter().enumerate() {
            hayate.vhost(&format!("{name}{n}"), network, &format!("--vm {name}"))?;
        }
        // As the operator starts it; its memory and CPUs are as those of the other guests.
        let printed = hayate.cli(&format!("vm qemu {name} --json --qemu-version 10.0"))?;
        let all: Vec<String> = serde_json::from_str(&printed).context(|| printed.clone())?;
        let mut config = Config::new(&name);
        for option in
            all.chunks(2).filter(|o| !["-m", "-smp", "-object", "-machine"].contains(&&*o[0]))
        {
            config.more.extend_from_slice(option);
        }
        let macs = all.iter().filter_map(|option| option.split_once(",mac="));
        let macs: Vec<Mac> = macs
            .map(|(_, mac)| parse(mac.split(',').next().unwrap_or(mac)))
            .collect::<Result<_>>()?;
        ensure!(macs.len() == networks.len(), "not a card for each port: {printed}");
        let assets = assets::get()?;
        config.initrd = Some(assets::with_agent(assets)?);
        let mut guest = Guest::start(assets, hayate.dir(), config)?;
        guest.wait_ready()?;
        let machine = Machine::Guest(Box::new(guest));
        let mut router = Self { name, agent: None, machine, macs };
        router.name_cards()?;
        Ok(router)
    }

    /// Adds the tap port of interface n.
    pub fn add_tap(&self, hayate: &Hayate, n: usize, network: &str) -> Result<()> {
        let Machine::Namespace(netns) = &self.machine else { bail!("a guest has no tap ports") };
        let Self { name, .. } = self;
        hayate.tap(&format!("{name}{n}"), network, netns.name(), &format!("--vm {name}"))
    }

    /// Sets the address of the tap of interface n.
    pub fn set_mac(&mut self, n: usize) -> Result<()> {
        let mac = text(self.macs[n]);
        self.sh(&format!("ip link set {}{n} address {mac}", self.name)).map(drop)
    }

    /// Calls the cards of a guest as the ports they are on.
    pub fn name_cards(&mut self) -> Result<()> {
        let name = self.name.clone();
        let count = self.macs.len();
        self.sh(&format!(
            "for i in $(seq 0 {}); do ip link set eth$i name {name}$i; done",
            count - 1
        ))
        .map(drop)
    }

    /// Runs a line of a shell that must succeed.
    pub fn sh(&mut self, command: &str) -> Result<String> {
        match &mut self.machine {
            Machine::Namespace(netns) => netns.sh(command),
            Machine::Guest(guest) => guest.sh(command),
        }
    }

    /// Runs lines of a shell that must all succeed.
    pub fn lines(&mut self, lines: &str) -> Result<()> {
        let lines: Vec<&str> =
            lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        self.sh(&lines.join(" && ")).map(drop)
    }

    /// Starts the agent, with these options.
    pub fn start_agent(&mut self, hayate: &Hayate, options: &str) -> Result<()> {
        let Self { name, .. } = self;
        match &mut self.machine {
            Machine::Namespace(netns) => {
                let (agent, dir) = (assets::agent()?, hayate.dir());
                let command = format!(
                    "{} run --channel {} --status-socket {} {options}",
                    agent.display(),
                    channel(hayate, name),
                    dir.join(format!("{name}.agent")).display(),
                );
                self.agent = Some(netns.start(&command, &dir.join(format!("{name}.agent.log")))?);
            }
            // The name of the port is a link to it where there is a udev.
            Machine::Guest(guest) => drop(guest.sh(&format!(
                "mkdir -p /dev/virtio-ports; for d in /sys/class/virtio-ports/*; do \
                 [ \"$(cat $d/name)\" != org.hayate.0 ] || \
                 ln -sf /dev/${{d##*/}} /dev/virtio-ports/org.hayate.0; done; \
                 (hayate-agent run --channel /dev/virtio-ports/org.hayate.0 {options} \
                 >>/tmp/agent.log 2>&1 </dev/null &)"
            ))?),
        }
        Ok(())
    }

    /// Kills the agent, by SIGKILL.
    pub fn kill_agent(&mut self) -> Result<()> {
        match &mut self.machine {
            Machine::Namespace(_) => {
                self.agent.take().context(|| "no agent".into())?.kill();
                Ok(())
            }
            Machine::Guest(guest) => guest.sh("killall -9 hayate-agent").map(drop),
        }
    }

    /// Sends a signal to the agent, which is in a namespace.
    pub fn signal_agent(&self, signal: Signal) -> Result<()> {
        self.agent.as_ref().context(|| "no agent".into())?.signal(signal);
        Ok(())
    }

    /// What `hayate router show --json` says.
    pub fn show(&self, hayate: &Hayate) -> Result<Value> {
        let text = hayate.cli(&format!("router show {} --json", self.name))?;
        serde_json::from_str(&text).context(|| text.clone())
    }

    pub fn bypass(&self, hayate: &Hayate, on: bool) -> Result<()> {
        let to = if on { "on" } else { "off" };
        hayate.cli(&format!("router bypass {} {to}", self.name)).map(drop)
    }

    /// Packets that went past the router.
    pub fn bypassed(&self, hayate: &Hayate) -> Result<u64> {
        let shown = self.show(hayate)?;
        shown["router"]["packets"].as_u64().context(|| format!("{shown}"))
    }

    /// Packets that interface 0 of the router received, as its own kernel counts them.
    pub fn received(&mut self) -> Result<u64> {
        let command = format!("cat /sys/class/net/{}0/statistics/rx_packets", self.name);
        Ok(self.sh(&command)?.trim().parse()?)
    }

    /// Waits until what the router delegates is so.
    pub fn wait(
        &mut self,
        hayate: &Hayate,
        what: &str,
        mut is: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = Value::Null;
        let waited = wait_for(what, PATIENCE, || {
            if let Some(agent) = &mut self.agent {
                agent.check()?;
            }
            last = self.show(hayate)?;
            Ok(is(&last).then_some(()))
        });
        waited.context(|| {
            let log = match &mut self.machine {
                Machine::Namespace(_) => {
                    tail(&hayate.dir().join(format!("{}.agent.log", self.name)), 3000)
                }
                Machine::Guest(guest) => guest.sh("tail -50 /tmp/agent.log").unwrap_or_default(),
            };
            format!("{last:#}\n--- agent's log\n{log}")
        })?;
        Ok(last)
    }
}

/// The socket of a VM's guest channel.
fn channel(hayate: &Hayate, vm: &str) -> String {
    hayate.dir().join(format!("{vm}.channel")).display().to_string()
}
