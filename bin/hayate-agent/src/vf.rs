//! `hayate-agent vf`: the virtual functions of this VM, as the host sees them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use api::Mac;
use api::channel::{ChannelFunction, ListFunctions};

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
    let mut rows = vec![
        ["PF", "VF", "INTERFACE", "MAC", "CARRIER", "NETWORK", "SENT", "RECEIVED", "DROPPED"]
            .map(str::to_owned),
    ];
    rows.extend(functions.iter().map(|one| {
        [
            one.function.pf.to_string(),
            one.function.vf.map_or("-".to_owned(), |vf| vf.to_string()),
            here.get(&one.mac).map_or("-", String::as_str).to_owned(),
            one.mac.to_string(),
            if one.carrier { "yes" } else { "no" }.to_owned(),
            one.network.to_string(),
            one.sent.packets.to_string(),
            one.received.packets.to_string(),
            one.dropped.to_string(),
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
    fn a_table() {
        let function = |vf, n| ChannelFunction {
            function: Function { pf: "web-pf0".parse().unwrap(), vf },
            network: "lan".parse().unwrap(),
            mac: Mac([2, 0, 0, 0, 0, n]),
            carrier: n == 1,
            sent: HopCount { packets: 10, bytes: 640 },
            received: HopCount { packets: 2, bytes: 128 },
            dropped: 0,
        };
        let here = [(Mac([2, 0, 0, 0, 0, 1]), "eth0".to_owned())].into();
        assert_eq!(
            table(&[function(None, 1), function(Some(0), 2)], &here),
            "PF       VF  INTERFACE  MAC                CARRIER  NETWORK  SENT  RECEIVED  DROPPED\n\
             web-pf0  -   eth0       02:00:00:00:00:01  yes      lan      10    2         0\n\
             web-pf0  0   -          02:00:00:00:00:02  no       lan      10    2         0\n"
        );
    }
}
