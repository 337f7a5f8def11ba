//! Linux routers in a row, each a network namespace with two TAP ports of a switch.
//!
//! Link `n` is between router `n` and router `n + 1`, counted from 1: link 0 is that of the first
//! guest, and the last one that of the second. On a link the machine on the left has the address
//! 10.200.n.2, that on the right 10.200.n.1. Everybody's MAC address is known, so that nobody asks.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::SutError;
use super::process::run;
use crate::generator::frames::{PREFIXES, gateway, mac};

/// Longest packet: what a guest sends in frames of 1518 bytes without FCS, and more.
const MTU: &str = "9000";

/// A router; goes when dropped.
pub(super) struct Namespace {
    pub(super) name: String,
}

impl Namespace {
    /// Makes it, with nothing in it.
    pub(super) fn new(number: u16) -> Result<Namespace, SutError> {
        let name = format!("hayate-bench-{}-r{number}", std::process::id());
        if Path::new("/run/netns").join(&name).exists() {
            run(&["ip", "netns", "del", &name], &[])?;
        }
        run(&["ip", "netns", "add", &name], &[])?;
        let namespace = Namespace { name };
        let off = "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 \
                   net.ipv4.conf.default.rp_filter=0 net.ipv6.conf.default.disable_ipv6=1";
        run(&["ip", "netns", "exec", &namespace.name, "sh", "-c", off], &[])?;
        Ok(namespace)
    }

    /// Sets up router `number` of so many, whose interfaces `left` and `right` are there, with routes
    /// to the guests, and so many prefixes to the second one. `dir`: for a file of commands.
    pub(super) fn set_up(
        &self,
        (number, routers): (u16, u16),
        (left, right): (&str, &str),
        prefixes: u32,
        dir: &Path,
    ) -> Result<(), SutError> {
        let (before, after) = (number - 1, number);
        let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let previous = if before == 0 { mac(0, 0) } else { gateway(before, 1) };
        let next = if after == routers { mac(1, 0) } else { gateway(after + 1, 0) };
        let mut commands = format!(
            "link set {left} address {} mtu {MTU} up\n\
             link set {right} address {} mtu {MTU} up\n\
             addr add 10.200.{before}.1/24 dev {left}\n\
             addr add 10.200.{after}.2/24 dev {right}\n\
             neigh add 10.200.{before}.2 lladdr {} dev {left} nud permanent\n\
             neigh add 10.200.{after}.1 lladdr {} dev {right} nud permanent\n\
             route add 10.1.0.0/16 via 10.200.{before}.2\n\
             route add 10.2.0.0/16 via 10.200.{after}.1\n",
            text(gateway(number, 0)),
            text(gateway(number, 1)),
            text(previous),
            text(next),
        );
        for (address, length) in split(prefixes) {
            // Writing to a string does not fail.
            let _ = writeln!(commands, "route add {address}/{length} via 10.200.{after}.1");
        }
        let file = dir.join(format!("r{number}.ip"));
        let failed = || SutError::io("the routers' commands cannot be written");
        fs::write(&file, commands).map_err(failed())?;
        run(&["ip", "-n", &self.name, "-batch", &file.display().to_string()], &[]).map(drop)
    }
}

/// So many prefixes that cover all destinations: all but the last of one length, and one for the rest.
fn split(count: u32) -> impl Iterator<Item = (std::net::Ipv4Addr, u32)> {
    let (first, length) = PREFIXES;
    let longer = length + count.max(1).next_power_of_two().ilog2();
    let small = (0..count.saturating_sub(1)).map(move |n| (first + (n << (32 - longer)), longer));
    let rest = (count > 0).then_some((first, length));
    small.chain(rest).map(|(address, length)| (address.into(), length))
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // One that cannot be removed is replaced by the next.
        let _ = run(&["ip", "netns", "del", &self.name], &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn prefixes_cover_all_and_are_as_many_as_asked_for() {
        for count in [0, 1, 10, 1_000, 1_000_000] {
            let all: std::collections::HashSet<_> = split(count).collect();
            assert_eq!(all.len(), count as usize);
            assert_eq!(all.contains(&([32, 0, 0, 0].into(), 4)), count > 0);
            assert!(
                all.iter()
                    .all(|(address, length)| { *length <= 24 && address.octets()[0] & 0xf0 == 32 })
            );
        }
    }
}
