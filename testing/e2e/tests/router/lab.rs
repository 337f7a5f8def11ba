//! A daemon, a router that is a network namespace with TAP ports, its agent, and two hosts of our own
//! on vhost ports, whose every frame we make and see.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use e2e::endpoint::{Endpoint, OFFLOADS};
use e2e::hayate::Hayate;
use e2e::netns::Netns;
use e2e::process::{Process, tail, wait_for};
use e2e::{Context, Result, assets, bail, ensure};
use serde_json::Value;

/// The router's addresses on A's and B's side.
pub const ROUTER: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];
pub const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
pub const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module. The router is the VM `r`, its ports are `r0` and `r1`.
pub struct Lab {
    pub a: Endpoint,
    pub b: Endpoint,
    pub agent: Option<Process>,
    pub router: Netns,
    pub hayate: Hayate,
    channel: PathBuf,
}

pub fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl Lab {
    /// With a router that is set up by these commands of `ip`, one a line, and of a shell.
    pub fn new(ip: &str, shell: &str) -> Result<Self> {
        let hayate = Hayate::start(&[])?;
        let router = Netns::new()?;
        let channel = hayate.dir().join("r.channel");
        hayate.cli(&format!("vm add r --channel {}", channel.display()))?;
        for (n, network) in ["left", "right"].iter().enumerate() {
            hayate.network(network)?;
            hayate.tap(&format!("r{n}"), network, router.name(), "--vm r")?;
            router.ip(&format!("link set r{n} address {}", text(ROUTER[n])))?;
        }
        router.sh(shell)?;
        for line in ip.lines().map(str::trim).filter(|line| !line.is_empty()) {
            router.ip(line)?;
        }
        let a = Endpoint::connect(&hayate.vhost("a", "left", "")?, OFFLOADS)?;
        let b = Endpoint::connect(&hayate.vhost("b", "right", "")?, OFFLOADS)?;
        let mut lab = Self { a, b, agent: None, router, hayate, channel };
        // It is known where both are: what would go everywhere does not go past a router.
        for (host, mac, router) in [(&mut lab.a, A, ROUTER[0]), (&mut lab.b, B, ROUTER[1])] {
            let hello = [&router[..], &mac, &[0x88, 0xb5], &[0; 46]].concat();
            ensure!(host.put(&[0; 12], &hello)?, "no room for a frame");
            host.flush()?;
        }
        lab.start_agent("")?;
        Ok(lab)
    }

    pub fn start_agent(&mut self, options: &str) -> Result<()> {
        let (agent, dir) = (assets::agent()?, self.hayate.dir());
        let command = format!(
            "{} run --channel {} --status-socket {} {options}",
            agent.display(),
            self.channel.display(),
            dir.join("agent.sock").display()
        );
        self.agent = Some(self.router.start(&command, &dir.join("agent.log"))?);
        Ok(())
    }

    /// What `hayate router show r --json` says.
    pub fn show(&self) -> Result<Value> {
        let text = self.hayate.cli("router show r --json")?;
        serde_json::from_str(&text).context(|| text.clone())
    }

    pub fn bypass(&self, on: bool) -> Result<()> {
        self.hayate.cli(&format!("router bypass r {}", if on { "on" } else { "off" })).map(drop)
    }

    /// Packets that went past the router.
    pub fn bypassed(&self) -> Result<u64> {
        let shown = self.show()?;
        shown["router"]["packets"].as_u64().context(|| format!("{shown}"))
    }

    /// Waits until what the router delegates is so.
    pub fn wait(&mut self, what: &str, mut is: impl FnMut(&Value) -> bool) -> Result<()> {
        let log = self.hayate.dir().join("agent.log");
        let mut last = Value::Null;
        wait_for(what, PATIENCE, || {
            if let Some(agent) = &mut self.agent {
                agent.check()?;
            }
            last = self.show()?;
            Ok(is(&last).then_some(()))
        })
        .context(|| format!("{last:#}\n--- agent's log\n{}", tail(&log, 3000)))
    }

    /// Sends a frame of A.
    pub fn send(&mut self, header: &[u8; 12], frame: &[u8]) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !self.a.put(header, frame)? {
            self.a.flush()?;
            ensure!(Instant::now() < end, "A's frames are not taken");
        }
        Ok(())
    }

    /// Waits for a frame at A (or B) that `is` wants; all that came until then, and it.
    pub fn until(
        &mut self,
        what: &str,
        at_a: bool,
        is: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<([u8; 12], Vec<u8>)>> {
        let end = Instant::now() + PATIENCE;
        let mut came = Vec::new();
        let host = if at_a { &mut self.a } else { &mut self.b };
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
