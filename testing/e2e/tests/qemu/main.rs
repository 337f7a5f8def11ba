//! Proves the main job with guests we did not write: stock QEMU, stock Linux, stock virtio-net.
//!
//! - `pair` (pair.rs): two guests on split, packed and multi-queue rings, VLANs, jumbo frames, TSO
//!   that passes in one piece, and a daemon that sleeps when they are quiet.
//! - `offload` (offload.rs): every offload switched off on one side, by the guest and by the
//!   device, with hashes of what arrives.
//! - `moderation` (moderation.rs): interrupts of a guest that receives, with each setting.
//! - `life` (life.rs): guests that reboot, QEMU killed, the daemon killed under a TCP connection.
//!
//! Two guests are booted per group, with one network device for each thing to be tried: a boot
//! costs more than a device.

mod life;
mod moderation;
mod offload;
mod pair;

use std::process::ExitCode;

use e2e::guest::{Config, Guest, Nic};
use e2e::hayate::Hayate;
use e2e::suite::main as run;
use e2e::{Result, assets};

/// The daemon and the guests. Device `i` of a guest `a` is on port `a{i}`.
struct Lab {
    // Guests first: their sockets are in the daemon's folder.
    a: Guest,
    b: Guest,
    hayate: Hayate,
}

/// One device of each guest, on a network of their own: `n{i}`.
struct Link {
    /// Options of `port add`, for both.
    port: &'static str,
    /// Properties of the devices.
    props: [&'static str; 2],
    queues: u16,
}

impl Link {
    const fn new(a: &'static str, b: &'static str) -> Self {
        Self { port: "", props: [a, b], queues: 1 }
    }
}

impl Lab {
    /// Starts the daemon and boots the guests; on link `i`, guest a is 10.0.i.1 and fd00:i::1, b
    /// is 10.0.i.2 and fd00:i::2.
    fn boot(links: &[Link], more: &dyn Fn(&Hayate) -> Result<[Vec<Nic>; 2]>) -> Result<Self> {
        let assets = assets::get()?;
        let hayate = Hayate::start(&[])?;
        let mut configs = [Config::new("a"), Config::new("b")];
        for (i, link) in links.iter().enumerate() {
            hayate.network(&format!("n{i}"))?;
            for (side, config) in configs.iter_mut().enumerate() {
                let port = format!("{}{i}", config.name);
                let socket = hayate.vhost(&port, &format!("n{i}"), link.port)?;
                let mut nic = Nic::new(&socket, 0);
                nic.mac = mac(side, i);
                nic.queues = link.queues;
                nic.props = link.props[side].into();
                *config = config.clone().nic(nic);
            }
        }
        for (config, nics) in configs.iter_mut().zip(more(&hayate)?) {
            for nic in nics {
                *config = config.clone().nic(nic);
            }
        }
        let [a, b] = configs.map(|c| Guest::start(assets, hayate.dir(), c));
        let (mut a, mut b) = (a?, b?);
        a.wait_ready()?;
        b.wait_ready()?;
        for i in 0..links.len() {
            up(&mut a, i, 1)?;
            up(&mut b, i, 2)?;
        }
        Ok(Self { a, b, hayate })
    }
}

/// MAC address of device `i` of a guest.
fn mac(side: usize, i: usize) -> String {
    format!("52:54:00:00:{:02x}:{:02x}", side + 1, i)
}

/// Gives device `i` of a guest its addresses.
fn up(guest: &mut Guest, i: usize, n: u8) -> Result<()> {
    guest
        .sh(&format!(
            "ip addr add 10.0.{i}.{n}/24 dev eth{i}; ip addr add fd00:{i}::{n}/64 dev eth{i} nodad; \
             ip link set eth{i} up"
        ))
        .map(drop)
}

/// IPv4 address of guest 1 or 2 on link `i`.
fn ip(i: usize, n: u8) -> String {
    format!("10.0.{i}.{n}")
}

/// IPv6 address of guest 1 or 2 on link `i`.
fn ip6(i: usize, n: u8) -> String {
    format!("fd00:{i}::{n}")
}

fn main() -> ExitCode {
    run(|suite| {
        pair::group(suite);
        offload::group(suite);
        life::group(suite);
        moderation::group(suite);
    })
}
