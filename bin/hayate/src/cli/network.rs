//! `hayate network` and `hayate fdb`.

use super::args::{NetworkAdd, Output};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, facts, units};
use api::{FdbEntry, Name, Network, NetworkConfig};

pub(super) fn add(client: &Client, args: &NetworkAdd) -> Result<(), Failure> {
    let defaults = NetworkConfig::default();
    let config = NetworkConfig {
        mac_limit: args.mac_limit.unwrap_or(defaults.mac_limit),
        mac_age: args.mac_age.unwrap_or(defaults.mac_age),
    };
    let network: Network = client.put(&format!("/v1/networks/{}", args.name), &config)?;
    if args.output.json { out::json(&network) } else { Ok(()) }
}

pub(super) fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let networks: Vec<Network> = client.get("/v1/networks")?;
    if output.json {
        return out::json(&networks);
    }
    let mut table = Table::new(["NAME", ">MACS", ">LIMIT", ">AGE", "PORTS"]);
    for network in &networks {
        table.row([
            network.name.to_string(),
            network.macs.to_string(),
            network.mac_limit.to_string(),
            format!("{} s", network.mac_age),
            units::names(&network.ports),
        ]);
    }
    out::text(&table.to_string())
}

pub(super) fn show(client: &Client, name: &Name, output: Output) -> Result<(), Failure> {
    let network: Network = client.get(&format!("/v1/networks/{name}"))?;
    if output.json {
        return out::json(&network);
    }
    out::text(&facts(&[
        ("network", network.name.to_string()),
        ("addresses", format!("{} of at most {}", network.macs, network.mac_limit)),
        ("forgotten", format!("after {} s of silence", network.mac_age)),
        ("ports", units::names(&network.ports)),
        ("declared", units::origin(network.origin).to_owned()),
    ]))
}

pub(super) fn fdb(client: &Client, network: &Name, output: Output) -> Result<(), Failure> {
    let entries: Vec<FdbEntry> = client.get(&format!("/v1/networks/{network}/fdb"))?;
    if output.json {
        return out::json(&entries);
    }
    let mut table = Table::new(["MAC", "VLAN", "PORT", ">AGE"]);
    for entry in &entries {
        let age = if entry.fixed { "fixed".to_owned() } else { format!("{} s", entry.age) };
        table.row([entry.mac.to_string(), units::maybe(entry.vlan), entry.port.to_string(), age]);
    }
    out::text(&table.to_string())
}
