//! `hayate-agent vf`: the virtual functions of this VM, as the host sees them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use api::channel::{ChannelFunction, ListFunctions, SetFunction};
use api::{FunctionSettings, GuestSettings, LinkState, Mac};

use crate::desk;

/// Where the kernel shows interfaces.
const INTERFACES: &str = "/sys/class/net";

/// What was asked for cannot be had: exit status, and why.
type Failure = (u8, String);

/// Functions of the PF that is this interface here, or all of the VM.
///
/// # Errors
/// There is no such interface, it is no PF, or nobody answers.
pub(crate) fn list(socket: &Path, pf: Option<&str>) -> Result<Vec<ChannelFunction>, Failure> {
    let pf =
        pf.map(|name| mac_of(Path::new(INTERFACES), name).map(|mac| (name, mac))).transpose()?;
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let list = ListFunctions { pf: pf.map(|(_, mac)| mac), after };
        let answered = desk::daemon(socket, &list)
            .map_err(|error| (3, format!("no agent answers at {}: {error}", socket.display())))?;
        let found = answered.map_err(|why| (1, why))?;
        after = found.functions.last().map(|one| one.function.clone());
        all.extend(found.functions);
        // Whoever says that there is more, and gives nothing, is not asked for ever.
        if !found.more || after.is_none() {
            break;
        }
    }
    match pf {
        Some((name, mac)) if all.is_empty() => {
            Err((1, format!("{name} is no PF: the host has none with its address {mac}")))
        }
        _ => Ok(all),
    }
}

/// Sets something on a VF of the PF that is this interface here; what holds then.
///
/// # Errors
/// There is no such interface or VF, the host does not allow it, or nobody answers.
pub(crate) fn set(
    socket: &Path,
    pf: &str,
    vf: u16,
    change: GuestSettings,
) -> Result<FunctionSettings, Failure> {
    let pf = mac_of(Path::new(INTERFACES), pf)?;
    let answered = desk::daemon(socket, &SetFunction { pf, vf, change })
        .map_err(|error| (3, format!("no agent answers at {}: {error}", socket.display())))?;
    answered.map_err(|why| (1, why))
}

/// What to set, in the words of `ip link set PF vf N`.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn change(words: &[String]) -> Result<GuestSettings, String> {
    let mut change = GuestSettings::default();
    for pair in words.chunks(2) {
        let [what, to] = pair else {
            let what = pair.first().map(String::as_str).unwrap_or_default();
            return Err(format!(
                "{what}: to what? `hayate-agent vf set --help` says what is possible"
            ));
        };
        let twice = match what.as_str() {
            "mac" => put(&mut change.mac, to.parse().ok()),
            "vlan" => put(&mut change.vlan, to.parse().ok().filter(|vlan| *vlan <= api::VLAN_MAX)),
            "qos" => put(&mut change.qos, to.parse().ok().filter(|qos| *qos <= 7)),
            "spoofchk" => put(&mut change.spoofchk, switch(to)),
            "trust" => put(&mut change.trust, switch(to)),
            "rate" | "max_tx_rate" => put(&mut change.rate, to.parse().ok()),
            "state" => put(&mut change.state, link(to)),
            "min_tx_rate" => {
                return Err("min_tx_rate: the switch gives no function a least rate; `rate` is \
                            the most it may send"
                    .to_owned());
            }
            other => {
                return Err(format!(
                    "{other}: mac, vlan, qos, spoofchk, trust, rate or state is possible"
                ));
            }
        };
        match twice {
            Some(false) => {}
            Some(true) => return Err(format!("{what}: only once")),
            None => return Err(format!("{what}: {to:?} is not possible; see `vf set --help`")),
        }
    }
    Ok(change)
}

/// Puts a value where it belongs; whether one was there already, or `None` if it is none.
fn put<T>(place: &mut Option<T>, value: Option<T>) -> Option<bool> {
    value.map(|value| place.replace(value).is_some())
}

fn switch(word: &str) -> Option<bool> {
    match word {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn link(word: &str) -> Option<LinkState> {
    let all = [LinkState::Auto, LinkState::Enable, LinkState::Disable];
    all.into_iter().find(|state| state.as_str() == word)
}

/// Address of an interface here.
///
/// # Errors
/// There is none of that name.
pub(crate) fn mac(name: &str) -> Result<Mac, Failure> {
    mac_of(Path::new(INTERFACES), name)
}

/// Address of an interface of this machine.
fn mac_of(interfaces: &Path, name: &str) -> Result<Mac, Failure> {
    let none = || (1, format!("there is no interface {name:?} with an Ethernet address"));
    if name.contains('/') || name.starts_with('.') {
        return Err(none());
    }
    let text = fs::read_to_string(interfaces.join(name).join("address")).map_err(|_| none())?;
    text.trim().parse().map_err(|_| none())
}

/// Interfaces of this network namespace, by address.
fn interfaces(root: &Path) -> BTreeMap<Mac, String> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| Some((mac_of(root, &name).ok()?, name))).collect()
}

/// For people.
pub(crate) fn text(functions: &[ChannelFunction]) -> String {
    table(functions, &interfaces(Path::new(INTERFACES)))
}

fn table(functions: &[ChannelFunction], here: &BTreeMap<Mac, String>) -> String {
    // It may have been given the address that was set, or not yet.
    let name = |one: &ChannelFunction| {
        let found = here.get(&one.settings.mac).or_else(|| here.get(&one.mac));
        found.map_or("-", String::as_str).to_owned()
    };
    let mut rows = vec![
        [
            "PF",
            "VF",
            "INTERFACE",
            "MAC",
            "CARRIER",
            "NETWORK",
            "SENT",
            "RECEIVED",
            "DROPPED",
            "SETTINGS",
        ]
        .map(str::to_owned),
    ];
    rows.extend(functions.iter().map(|one| {
        [
            one.function.pf.to_string(),
            one.function.vf.map_or("-".to_owned(), |vf| vf.to_string()),
            name(one),
            one.settings.mac.to_string(),
            if one.carrier { "yes" } else { "no" }.to_owned(),
            one.network.to_string(),
            one.sent.packets.to_string(),
            one.received.packets.to_string(),
            one.dropped.to_string(),
            settings(&one.settings),
        ]
    }));
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().filter_map(|row| row.get(column)).map(String::len).max();
            // Writing to a string does not fail.
            let _ = write!(line, "{cell:width$}  ", width = width.unwrap_or_default());
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// What is not as it is by default.
fn settings(settings: &FunctionSettings) -> String {
    let FunctionSettings { mac: _, vlan, qos, spoofchk, trust, rate, state } = *settings;
    let words = [
        (vlan != 0).then(|| format!("vlan {vlan}")),
        qos.map(|qos| format!("qos {qos}")),
        spoofchk.then(|| "spoofchk on".to_owned()),
        (!trust).then(|| "trust off".to_owned()),
        (rate != 0).then(|| format!("rate {rate}")),
        (state != LinkState::Auto).then(|| format!("state {}", state.as_str())),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() { "-".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Function;
    use api::channel::HopCount;

    #[test]
    fn interfaces_are_found_by_their_address() {
        let root = tempfile::tempdir().unwrap();
        for (name, address) in [("eth0", "02:00:00:00:00:01\n"), ("lo", "loop"), ("none", "")] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("address"), address).unwrap();
        }
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        assert_eq!(mac_of(root.path(), "eth0").unwrap(), mac);
        for bad in ["eth1", "lo", "none", "../eth0", "eth0/../eth0", ".", ""] {
            assert!(mac_of(root.path(), bad).unwrap_err().1.contains("no interface"), "{bad}");
        }
        assert_eq!(interfaces(root.path()), [(mac, "eth0".to_owned())].into());
    }

    #[test]
    fn words_are_what_ip_link_knows() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let all = "mac 02:00:00:00:00:09 vlan 4094 qos 7 spoofchk on trust off rate 1 state enable";
        let expected = GuestSettings {
            mac: Some(Mac([2, 0, 0, 0, 0, 9])),
            vlan: Some(4094),
            qos: Some(7),
            spoofchk: Some(true),
            trust: Some(false),
            rate: Some(1),
            state: Some(LinkState::Enable),
        };
        assert_eq!(change(&words(all)), Ok(expected));
        for bad in ["vlan", "vlan 1 qos", "mac 1", "trust yes", "state up", "rate -1", "mac off"] {
            assert!(change(&words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_table() {
        let function = |vf, n| ChannelFunction {
            function: Function { pf: "web-pf0".parse().unwrap(), vf },
            network: "lan".parse().unwrap(),
            mac: Mac([2, 0, 0, 0, 0, n]),
            carrier: n == 1,
            settings: FunctionSettings {
                mac: Mac([2, 0, 0, 0, 0, n]),
                vlan: if n == 2 { 10 } else { 0 },
                qos: Some(3).filter(|_| n == 2),
                spoofchk: n == 2,
                trust: n == 1,
                rate: if n == 2 { 1000 } else { 0 },
                state: if n == 2 { LinkState::Disable } else { LinkState::Auto },
            },
            sent: HopCount { packets: 10, bytes: 640 },
            received: HopCount { packets: 2, bytes: 128 },
            dropped: 0,
        };
        let here = [(Mac([2, 0, 0, 0, 0, 1]), "eth0".to_owned())].into();
        assert_eq!(
            table(&[function(None, 1), function(Some(0), 2)], &here),
            "PF       VF  INTERFACE  MAC                CARRIER  NETWORK  SENT  RECEIVED  DROPPED  \
             SETTINGS\n\
             web-pf0  -   eth0       02:00:00:00:00:01  yes      lan      10    2         0        \
             -\n\
             web-pf0  0   -          02:00:00:00:00:02  no       lan      10    2         0        \
             vlan 10 qos 3 spoofchk on trust off rate 1000 state disable\n"
        );
    }
}
