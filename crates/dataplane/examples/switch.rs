//! The smallest switch: one network, a vhost-user server socket per argument after the CPU.
//!
//! `cargo run --release -p dataplane --example switch -- 0 /tmp/a.sock /tmp/b.sock`

use std::time::Duration;

use dataplane::{
    Host, Moderation, NetworkSpec, Options, Policy, PortKind, PortSpec, SocketMode, VhostSpec,
    VlanMode,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let cpu = args.next().ok_or("usage: switch CPU SOCKET...")?.parse()?;
    let options = Options { cpus: Some(vec![cpu]), ..Options::default() };
    let host = Host::start(&options, tokio::runtime::Handle::current())?;
    let network = host.add_network(&NetworkSpec {
        name: "example".into(),
        mac_limit: 8192,
        mac_age: Duration::from_secs(300),
    })?;
    let mut ports = Vec::new();
    for (number, socket) in args.enumerate() {
        let kind = PortKind::Vhost(VhostSpec {
            socket: socket.into(),
            mode: SocketMode::Server,
            queues: 1,
            features_off: 0,
            moderation: Moderation::default(),
            rings: None,
        });
        let name = format!("port{number}");
        let (vlan, mac_limit, mtu, worker) = (VlanMode::None, None, None, None);
        let policy = Policy::default();
        let spec = PortSpec { name, network, vlan, mac_limit, policy, mtu, worker, kind };
        ports.push(host.add_port(spec).await?);
    }
    tokio::signal::ctrl_c().await?;
    for port in ports {
        eprintln!("{:#?}", host.port_status(port));
    }
    host.shutdown().await;
    Ok(())
}
