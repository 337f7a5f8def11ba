//! What else is done to packets than routing them: iptables, traffic control, IPsec, MPLS.
//!
//! Each check looks in one place and says what it found. What cannot be read counts as found.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use rustix::io::Errno;

use super::uapi::*;
use crate::state::{Family, Ifindex, Kind, Obstacle, Settings, State};
use netlink::{Socket, attributes, malformed, number, text};

/// Disciplines that only queue. `clsact` and `ingress` do nothing but hold filters.
const PLAIN_QDISCS: [&str; 9] =
    ["noqueue", "mq", "fq_codel", "fq", "pfifo_fast", "pfifo", "bfifo", "clsact", "ingress"];

/// Of the thread's own namespace, where `/proc/net` would be the process's.
const PROC_NET: &str = "/proc/thread-self/net";

/// Tables of the older iptables. They are there once something asked for them.
pub(super) fn iptables() -> BTreeSet<Obstacle> {
    let mut found = BTreeSet::new();
    let files = [(Family::V4, "ip_tables_names"), (Family::V6, "ip6_tables_names")];
    for (family, file) in files {
        let tables = match fs::read_to_string(format!("{PROC_NET}/{file}")) {
            Ok(tables) => tables,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                found.insert(Obstacle::of(family, format!("{file} cannot be read: {error}")));
                continue;
            }
        };
        for table in tables.lines() {
            let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
            let what = format!("{program}-legacy has a table {table}");
            found.insert(Obstacle::of(family, what));
        }
    }
    found
}

/// IPsec policies.
pub(super) fn xfrm(socket: Option<&mut Socket>) -> BTreeSet<Obstacle> {
    let Some(socket) = socket else { return BTreeSet::new() };
    let policies = socket.dump_into(XFRM_MSG_GETPOLICY, &[], |found, message| {
        if message.kind == XFRM_MSG_NEWPOLICY {
            BTreeSet::insert(found, Obstacle::all("IPsec has policies"));
        }
        Ok(())
    });
    let mut obstacles = found("IPsec", policies);
    let mut blocks = false;
    let asked = socket.request(XFRM_MSG_GETDEFAULT, 0, &[0; 4], |message| {
        // struct xfrm_userpolicy_default: in, fwd, out
        blocks |= message.body.iter().take(3).any(|one| *one == XFRM_USERPOLICY_BLOCK);
        Ok(())
    });
    if blocks {
        obstacles.insert(Obstacle::all("IPsec blocks by its default policy"));
    }
    // Before Linux 5.14 there was none.
    if let Err(error) = asked.or_else(not_there) {
        obstacles.insert(Obstacle::all(format!("IPsec cannot be read: {error}")));
    }
    obstacles
}

/// Traffic control on links that could be delegated.
pub(super) fn traffic_control(socket: &mut Socket, state: &State) -> BTreeSet<Obstacle> {
    let concerned = |index: Ifindex| {
        state.links.get(&index).filter(|link| link.kind != Kind::Other).map(|link| &link.name)
    };
    // Where filters may be: of which link, below which parent.
    type Found = (BTreeSet<Obstacle>, BTreeSet<(Ifindex, u32)>);
    let qdiscs = socket.dump_into(RTM_GETQDISC, &[0; 20], |found: &mut Found, message| {
        let (obstacles, holders) = found;
        if message.kind != RTM_NEWQDISC {
            return Ok(());
        }
        let index = number(message.body, 4).ok_or_else(malformed)?;
        let handle = number(message.body, 8).ok_or_else(malformed)?;
        let parent = number(message.body, 12).ok_or_else(malformed)?;
        let Some(name) = concerned(index) else { return Ok(()) };
        let mut kind = String::new();
        for attribute in attributes(message.body, 20) {
            match attribute? {
                (TCA_KIND, value) => kind = text(value),
                (TCA_INGRESS_BLOCK | TCA_EGRESS_BLOCK, _) => {
                    obstacles.insert(Obstacle::all(format!("tc on {name}: a shared block")));
                }
                _ => {}
            }
        }
        match kind.as_str() {
            "clsact" => {
                holders.extend([(index, TC_H_CLSACT_INGRESS), (index, TC_H_CLSACT_EGRESS)]);
            }
            "ingress" => drop(holders.insert((index, handle))),
            "fq_codel" if handle != 0 || parent == TC_H_ROOT => {
                holders.insert((index, handle));
            }
            kind if PLAIN_QDISCS.contains(&kind) => {}
            kind => {
                obstacles.insert(Obstacle::all(format!("tc on {name}: qdisc {kind}")));
            }
        }
        Ok(())
    });
    let (obstacles, holders) = match qdiscs {
        Ok((obstacles, holders)) => (Ok(obstacles), holders),
        Err(error) => (Err(error), BTreeSet::new()),
    };
    let mut obstacles = found("tc", obstacles);
    for (index, parent) in holders {
        let mut body = vec![0; 20];
        for (at, value) in [(4, index), (12, parent)] {
            if let Some(place) = body.get_mut(at..at + 4) {
                place.copy_from_slice(&value.to_ne_bytes());
            }
        }
        let mut filters = false;
        let asked = socket.dump(RTM_GETTFILTER, &body, |message| {
            filters |= message.kind == RTM_NEWTFILTER;
            Ok(())
        });
        let name = concerned(index).cloned().unwrap_or_default();
        if let Err(error) = asked {
            let what = format!("tc filters on {name} cannot be read: {error}");
            obstacles.insert(Obstacle::all(what));
        }
        if filters {
            obstacles.insert(Obstacle::all(format!("tc on {name}: filters")));
        }
    }
    obstacles
}

/// BPF programs on links that could be delegated, of which netlink says nothing.
pub(super) fn programs(state: &State) -> BTreeSet<Obstacle> {
    let links = state.links.iter().filter(|(_, link)| link.kind != Kind::Other);
    let found = links.filter_map(|(index, link)| match sys::bpf::tcx_attached(*index) {
        Ok(false) => None,
        Ok(true) => Some(format!("a BPF program is attached to {} (tcx)", link.name)),
        Err(error) => Some(format!("BPF programs on {} cannot be read: {error}", link.name)),
    });
    found.map(Obstacle::all).collect()
}

/// Settings of `/proc/sys/net`: what holds for all interfaces, and what is in the way.
pub(super) fn sysctl() -> (Settings, BTreeSet<Obstacle>) {
    let mut obstacles = BTreeSet::new();
    let mut setting = |family: Option<Family>, name: &str| {
        let path = format!("/proc/sys/net/{name}");
        match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().unwrap_or(0),
            // Without IPv6 in the kernel.
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => {
                let what = format!("{path} cannot be read: {error}");
                obstacles.insert(Obstacle { family, what });
                0
            }
        }
    };
    let settings = Settings {
        rp_filter: setting(Some(Family::V4), "ipv4/conf/all/rp_filter"),
        forwarding_v6: setting(None, "ipv6/conf/all/forwarding") != 0,
    };
    if setting(Some(Family::V4), "ipv4/ip_forward_use_pmtu") != 0 {
        let what = "net.ipv4.ip_forward_use_pmtu is on";
        obstacles.insert(Obstacle::of(Family::V4, what));
    }
    let mpls = fs::read_dir("/proc/sys/net/mpls/conf").into_iter().flatten().flatten();
    for entry in mpls {
        let link = entry.file_name().to_string_lossy().into_owned();
        let input = fs::read_to_string(entry.path().join("input")).unwrap_or_default();
        if input.trim() != "0" {
            obstacles.insert(Obstacle::all(format!("MPLS input is on for {link}")));
        }
    }
    (settings, obstacles)
}

/// What was found, or that it could not be read.
pub(super) fn found(place: &str, result: io::Result<BTreeSet<Obstacle>>) -> BTreeSet<Obstacle> {
    match result.or_else(not_there) {
        Ok(found) => found,
        Err(error) => [Obstacle::all(format!("{place} cannot be read: {error}"))].into(),
    }
}

/// The kernel does not have it: nothing is there.
pub(super) fn not_there<T: Default>(error: io::Error) -> io::Result<T> {
    let missing = [Errno::OPNOTSUPP, Errno::AFNOSUPPORT, Errno::INVAL, Errno::NOENT];
    match error.raw_os_error() {
        Some(code) if missing.iter().any(|one| one.raw_os_error() == code) => Ok(T::default()),
        _ => Err(error),
    }
}
