//! In network namespaces, against the kernel itself.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;
use crate::state::{Gateway, Target};

#[path = "../../tests/common/netns.rs"]
pub(super) mod netns;
use netns::Netns;

/// Runs something in a namespace, in a thread of its own.
pub(super) fn within<T: Send>(netns: &Netns, run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let file = File::open(format!("/run/netns/{}", netns.name)).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            run()
        });
        thread.join().unwrap()
    })
}

/// Reads events, and what is to be read again, until all is read.
fn settled(kernel: &mut Kernel, state: &mut State) {
    loop {
        kernel.settle(state).unwrap();
        if !kernel.due.routes_v4 && !kernel.due.routes_v6 {
            return;
        }
        thread::sleep(kernel.deadline().saturating_duration_since(Instant::now()));
    }
}

fn read() -> (Kernel, State) {
    let mut state = State::default();
    let mut kernel = Kernel::open().unwrap();
    settled(&mut kernel, &mut state);
    (kernel, state)
}

/// All that is in a state, as text.
fn shown(state: &State) -> String {
    let mut text = format!("{:?}\n", state.settings);
    for link in &state.links {
        writeln!(text, "{link:?}").unwrap();
    }
    for (name, table) in [("local", &state.local), ("main", &state.main)] {
        for prefix in table.prefixes() {
            write!(text, "{name} {prefix}").unwrap();
            // The order counts among the same metric only.
            let mut entries = table.entries(prefix).to_vec();
            entries.sort_by_key(|entry| (entry.metric, entry.tos));
            for entry in entries {
                let target = state.targets.get(entry.target).unwrap();
                write!(text, " {} {} {target:?}", entry.metric, entry.tos).unwrap();
                if let Target::Object(id) = target {
                    write!(text, " {:?}", state.object(*id)).unwrap();
                }
            }
            text.push('\n');
        }
    }
    for address in state.neighbours_in_all() {
        for index in state.links.keys() {
            if let Some(mac) = state.neighbour(*index, address) {
                writeln!(text, "{address} {index} {mac}").unwrap();
            }
        }
    }
    for obstacle in state.obstacles() {
        writeln!(text, "{obstacle:?}").unwrap();
    }
    text
}

fn target(state: &State, prefix: &str) -> Target {
    let entries = state.main.entries(prefix.parse().unwrap());
    let [entry] = entries else { panic!("{prefix}: {entries:?}") };
    state.targets.get(entry.target).unwrap().clone()
}

#[test]
fn events_lead_to_what_is_read() {
    let far = Netns::new();
    let router = Netns::router(&far);
    let steps = [
        "route add 192.0.2.0/24 via 10.1.1.5",
        "route append 192.0.2.0/24 via 10.1.2.5",
        "route prepend 192.0.2.0/24 via 10.1.2.6",
        "route change 192.0.2.0/24 via 10.1.1.7",
        "route replace 192.0.2.0/24 via 10.1.1.8",
        "route del 192.0.2.0/24",
        "route add 192.0.2.0/24 via 10.1.1.5 metric 5",
        "route add 192.0.2.0/24 tos 0x10 via 10.1.1.5",
        "route add 198.51.100.0/24 nexthop via 10.1.1.5 nexthop via 10.1.2.5 weight 3",
        "route replace 198.51.100.0/24 via 10.1.2.5 mtu 1400",
        "route add unreachable 203.0.113.0/24",
        "route add throw 203.0.113.0/25",
        "route add 203.0.113.128/25 via 10.1.1.5 onlink dev eth1",
        "route add 10.9.0.0/16 dev eth1",
        "route add local 10.10.0.0/16 dev lo",
        "route add 172.16.0.0/12 via 10.1.1.5 src 10.1.2.1",
        "-6 route add 2001:db8:a::/48 via 2001:db8:1::5",
        "-6 route append 2001:db8:a::/48 via 2001:db8:2::5",
        "-6 route append 2001:db8:a::/48 via 2001:db8:2::6",
        "-6 route del 2001:db8:a::/48 via 2001:db8:2::5",
        "-6 route replace 2001:db8:a::/48 nexthop via 2001:db8:1::7 nexthop via 2001:db8:2::7",
        "-6 route add 2001:db8:a::/48 via 2001:db8:1::8 metric 99",
        "-6 route del 2001:db8:a::/48 metric 99",
        "-6 route add blackhole 2001:db8:b::/48",
        "-6 route add 2001:db8:c::/48 from 2001:db8:d::/48 via 2001:db8:1::5",
        "-6 route flush 2001:db8:c::/48",
        "nexthop add id 1 via 10.1.1.5 dev eth1",
        "nexthop add id 2 via 10.1.2.5 dev eth2",
        "nexthop add id 3 group 1,2/2,3",
        "nexthop add id 4 dev eth1",
        "nexthop add id 5 blackhole",
        "route add 198.18.0.0/16 nhid 3",
        "route add 198.19.0.0/16 nhid 4",
        "route add 198.20.0.0/16 nhid 5",
        "nexthop replace id 1 via 10.1.1.9 dev eth1",
        "nexthop del id 2",
        "neigh add 10.1.1.5 dev eth1 lladdr 02:00:00:00:00:15 nud permanent",
        "neigh add 10.1.1.6 dev eth1 lladdr 02:00:00:00:00:16 nud stale",
        "neigh add 10.1.1.7 dev eth1 nud none",
        "neigh add proxy 10.1.1.8 dev eth1",
        "neigh add 2001:db8:1::5 dev eth1 lladdr 02:00:00:00:00:25 nud reachable",
        "neigh change 10.1.1.5 dev eth1 lladdr 02:00:00:00:00:35 nud noarp",
        "neigh del 10.1.1.6 dev eth1",
        "rule add from 10.3.0.0/16 table 7",
        "rule del from 10.3.0.0/16 table 7",
        "address del 10.1.2.1/24 dev eth2",
        "address add 10.1.2.1/24 dev eth2",
        "link set eth2 mtu 1400",
        "link set eth2 down",
        "link set eth2 name eth9",
        "link set eth9 up",
        "link set eth9 address 02:00:00:00:00:99",
        "link del eth9",
        "route flush table main",
    ];
    within(&router, || {
        let (mut kernel, mut state) = read();
        for step in steps {
            // Some of them do not exist in every kernel or iproute2.
            let done = Command::new("ip").args(step.split(' ')).stderr(Stdio::null()).status();
            if !done.unwrap().success() {
                println!("not here: {step}");
                continue;
            }
            settled(&mut kernel, &mut state);
            assert_eq!(shown(&state), shown(&read().1), "after {step}");
        }
        // In the end not much is left.
        assert_eq!(state.links.len(), 2);
    });
}

#[test]
fn routes_are_read_as_they_are() {
    let far = Netns::new();
    let router = Netns::router(&far);
    for route in [
        "route add 192.0.2.0/24 via 10.1.1.5",
        "route add 198.51.100.0/24 nexthop via 10.1.1.5 nexthop via 10.1.2.5 weight 3",
        "route add 203.0.113.0/24 via inet6 2001:db8:1::5 dev eth1",
        "route add blackhole 172.16.0.0/12",
        "route add 172.17.0.0/16 via 10.1.1.5 mtu 1400",
        "route add 172.18.0.0/16 via 10.1.1.5 realm 4",
        "-6 route add 2001:db8:a::/48 via 2001:db8:1::5",
        "-6 route add 2001:db8:b::/48 encap seg6 mode encap segs 2001:db8:1::9 dev eth1",
    ] {
        router.ip(route);
    }
    within(&router, || {
        let (_, state) = read();
        let index = |name: &str| *state.links.iter().find(|one| one.1.name == name).unwrap().0;
        let to = |link: &str, address: &str, weight| Gateway {
            interface: index(link),
            address: address.parse().unwrap(),
            weight,
        };
        let via = |gateways: &[Gateway]| Target::Gateways(gateways.into());
        assert_eq!(target(&state, "10.1.1.0/24"), Target::Link(index("eth1")));
        assert_eq!(target(&state, "192.0.2.0/24"), via(&[to("eth1", "10.1.1.5", 1)]));
        let several = via(&[to("eth1", "10.1.1.5", 1), to("eth2", "10.1.2.5", 3)]);
        assert_eq!(target(&state, "198.51.100.0/24"), several);
        assert_eq!(target(&state, "203.0.113.0/24"), via(&[to("eth1", "2001:db8:1::5", 1)]));
        assert_eq!(target(&state, "172.16.0.0/12"), Target::Own);
        assert_eq!(target(&state, "172.17.0.0/16"), Target::Router);
        assert_eq!(target(&state, "172.18.0.0/16"), Target::Router);
        assert_eq!(target(&state, "2001:db8:a::/48"), via(&[to("eth1", "2001:db8:1::5", 1)]));
        assert_eq!(target(&state, "2001:db8:b::/48"), Target::Router);
        for own in ["10.1.1.1/32", "10.1.1.255/32", "2001:db8:1::1/128", "127.0.0.0/8"] {
            assert_eq!(state.local.entries(own.parse().unwrap()).len(), 1, "{own}");
        }
        let eth1 = &state.links[&index("eth1")];
        assert!(eth1.up && eth1.v4.forwarding && eth1.v6.forwarding);
        assert_eq!((eth1.mtu, state.obstacles().count()), (1500, 0));
        assert_eq!(state.link_refusal(index("eth1")), None);
        assert!(state.link_refusal(index("lo")).is_some());
    });
}

#[test]
fn settings_of_links_are_read() {
    let far = Netns::new();
    let router = Netns::router(&far);
    within(&router, || {
        let (mut kernel, mut state) = read();
        let find = |state: &State, name: &str| {
            state.links.values().find(|one| one.name == name).cloned().unwrap()
        };
        router.sh("sysctl -qw net.ipv4.conf.eth1.rp_filter=2 net.ipv4.conf.eth1.forwarding=0");
        router.sh("sysctl -qw net.ipv6.conf.eth2.disable_ipv6=1 net.ipv4.conf.all.rp_filter=1");
        router.sh("sysctl -qw net.ipv6.conf.eth1.mtu=1300");
        // Not all of it has events.
        kernel.due.quiet = true;
        settled(&mut kernel, &mut state);
        let (eth1, eth2) = (find(&state, "eth1"), find(&state, "eth2"));
        assert_eq!(eth1.v4, crate::state::FamilyConf { forwarding: false, rp_filter: 2 });
        assert_eq!((eth1.mtu, eth2.v6.forwarding, eth2.v4.forwarding), (1300, false, true));
        assert_eq!(state.settings.rp_filter, 1);
        // A link on top that takes packets of the one below.
        router.ip("link add link eth2 name over type macvlan");
        settled(&mut kernel, &mut state);
        let index = *state.links.iter().find(|one| one.1.name == "eth2").unwrap().0;
        assert!(state.link_refusal(index).unwrap().contains("on top"));
    });
}

#[test]
fn what_has_no_events_is_looked_at_before_forwarding_counts() {
    let far = Netns::new();
    let router = Netns::router(&far);
    within(&router, || {
        router.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
        let (mut kernel, mut state) = read();
        assert!(!state.may_delegate());
        assert_eq!(kernel.deadline(), kernel.looked + LOOK_IDLE);
        // No event tells of it.
        router.sh("sysctl -qw net.ipv4.ip_forward_use_pmtu=1");
        kernel.looked -= LOOK;
        settled(&mut kernel, &mut state);
        assert_eq!(state.obstacles().count(), 0);
        router.sh("sysctl -qw net.ipv4.ip_forward=1");
        settled(&mut kernel, &mut state);
        assert_eq!(state.obstacles().count(), 1);
        assert!(!state.may_delegate(), "of IPv4 something is in the way");
        router.sh("sysctl -qw net.ipv6.conf.all.forwarding=1");
        settled(&mut kernel, &mut state);
        assert!(state.may_delegate());
        assert_eq!(kernel.deadline(), kernel.looked + LOOK);
    });
}

#[test]
fn lost_events_are_made_up_for() {
    let far = Netns::new();
    let router = Netns::router(&far);
    within(&router, || {
        let (mut kernel, mut state) = read();
        set_socket_recv_buffer_size_force(kernel.events.fd(), 4096).unwrap();
        let mut ip =
            Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut batch = ip.stdin.take().unwrap();
        for n in 0..2000 {
            writeln!(batch, "route add 172.16.{}.{}/32 via 10.1.1.5", n / 250, n % 250).unwrap();
        }
        drop(batch);
        assert!(ip.wait().unwrap().success());
        settled(&mut kernel, &mut state);
        assert_eq!(shown(&state), shown(&read().1));
        assert!(state.main.len() > 2000);
    });
}

/// A message of a VLAN link, as the kernel writes it.
fn vlan_message(vid: u16, protocol: u16, egress: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    attribute(&mut data, IFLA_VLAN_PROTOCOL, &protocol.to_be_bytes());
    attribute(&mut data, IFLA_VLAN_ID, &vid.to_ne_bytes());
    if !egress.is_empty() {
        attribute(&mut data, IFLA_VLAN_EGRESS_QOS, egress);
    }
    let mut info = Vec::new();
    attribute(&mut info, IFLA_INFO_KIND, b"vlan\0");
    attribute(&mut info, IFLA_INFO_DATA, &data);
    let mut body = vec![0; 16];
    body[2..4].copy_from_slice(&ARPHRD_ETHER.to_ne_bytes());
    body[4..8].copy_from_slice(&9_u32.to_ne_bytes());
    body[8..12].copy_from_slice(&(IFF_UP | IFF_LOWER_UP).to_ne_bytes());
    attribute(&mut body, IFLA_IFNAME, b"eth0.10\0");
    attribute(&mut body, IFLA_LINK, &2_u32.to_ne_bytes());
    attribute(&mut body, IFLA_LINKINFO, &info);
    body
}

// The kernel that runs the tests may have no VLANs.
#[test]
fn vlans_are_read() {
    use crate::state::Kind;
    let link = |vid, protocol, egress: &[u8]| {
        read::link(&vlan_message(vid, protocol, egress)).unwrap().unwrap().link
    };
    let plain = link(10, 0x8100, &[]);
    assert_eq!(plain.kind, Kind::Vlan { parent: 2, vid: 10 });
    assert_eq!((plain.name.as_str(), plain.takes_from, plain.priorities), ("eth0.10", None, false));
    assert_eq!(link(10, 0x88a8, &[]).kind, Kind::Other);
    assert_eq!(link(0, 0x8100, &[]).kind, Kind::Other);
    assert!(link(10, 0x8100, &[0; 8]).priorities);
}

#[test]
fn messages_that_are_cut_are_errors_and_no_panics() {
    let whole = vlan_message(10, 0x8100, &[]);
    for len in 0..whole.len() {
        let cut = &whole[..len];
        // Cut between two attributes it is a message as well.
        let _ = read::link(cut);
        let _ = read::object(cut);
        let _ = read::rule(cut);
        for kind in [RTM_NEWROUTE, RTM_NEWNEIGH] {
            let message = Message { kind, flags: 0, body: cut };
            let _ = read::route(&message);
            let _ = read::neighbour(&message);
        }
    }
    assert!(read::link(&whole[..11]).is_err() && read::link(&whole[..18]).is_err());
}
