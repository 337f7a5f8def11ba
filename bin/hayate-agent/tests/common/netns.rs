//! A network namespace that routes: links whose other ends are in a second one.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A namespace, which goes with this value.
#[derive(Debug)]
pub(crate) struct Netns {
    pub(crate) name: String,
}

impl Netns {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let netns = Self { name: format!("hayate-agent-{}-{number}", std::process::id()) };
        run(&format!("ip netns add {}", netns.name));
        netns.ip("link set lo up");
        netns
    }

    /// `ip ...` within it.
    pub(crate) fn ip(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.name));
    }

    /// A command line of the shell within it.
    pub(crate) fn sh(&self, line: &str) -> Output {
        let script = format!("ip netns exec {} sh -ec '{line}'", self.name);
        run(&script)
    }

    /// A link `name` with an address and forwarding, whose other end is in `far`.
    pub(crate) fn link(&self, name: &str, addresses: &[&str], far: &Self) {
        self.ip(&format!("link add {name} type veth peer name {name} netns {}", far.name));
        // No address comes and goes by itself.
        self.ip(&format!("link set {name} up addrgenmode none"));
        far.ip(&format!("link set {name} up addrgenmode none"));
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            self.ip(&format!("address add {address} dev {name} {nodad}"));
        }
    }

    /// A router: two links `eth1` and `eth2`, and forwarding of both versions of IP.
    pub(crate) fn router(far: &Self) -> Self {
        let router = Self::new();
        router.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        router.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0");
        router.link("eth1", &["10.1.1.1/24", "2001:db8:1::1/64"], far);
        router.link("eth2", &["10.1.2.1/24", "2001:db8:2::1/64"], far);
        router
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Runs a command line, which has to succeed.
pub(crate) fn run(line: &str) -> Output {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    output
}
