use std::collections::BTreeSet;

use packet::Mac;
use proptest::prelude::*;

use super::*;
use crate::{
    NetworkConfig, NextHop, PortConfig, Prefix, Route, RouterInterface, SourceCheck, Switch,
    VlanMode,
};

const NETWORKS: usize = 6;
const ROUTERS: usize = 4;

/// Networks with two ports each.
struct Lab {
    switch: Switch,
    ports: Vec<[PortId; 2]>,
}

impl Lab {
    fn new() -> Self {
        let switch = Switch::new();
        let network = |_| {
            let network = switch.add_network(NetworkConfig::default()).unwrap();
            let settings = PortConfig { network, vlan: VlanMode::Access(1), mac_limit: None };
            [(); 2].map(|()| {
                let port = switch.add_port(settings.clone()).unwrap();
                switch.set_link(port, true).unwrap();
                port
            })
        };
        let ports = (0..NETWORKS).map(network).collect();
        Self { switch, ports }
    }

    fn generation(&self, network: usize) -> u64 {
        self.switch.snapshot().domain(self.ports[network][0]).unwrap().generation()
    }

    fn generations(&self) -> Vec<u64> {
        (0..NETWORKS).map(|network| self.generation(network)).collect()
    }

    /// Those whose generation is another one afterwards.
    fn changed_by(&self, change: impl FnOnce()) -> Vec<usize> {
        let before = self.generations();
        change();
        let after = self.generations();
        (0..NETWORKS).filter(|&network| before[network] != after[network]).collect()
    }

    /// A router between two networks, at their first or second ports.
    fn router(&self, one: usize, other: usize, side: usize) -> RouterId {
        let id = self.switch.add_router().unwrap();
        let at = |network: usize| interface(self.ports[network][side]);
        self.switch.set_interfaces(id, vec![at(one), at(other)]).unwrap();
        id
    }
}

fn interface(port: PortId) -> RouterInterface {
    let mac = Mac([2, 0, 0, 0, 1, port.0 as u8]);
    let check = SourceCheck::Off;
    RouterInterface { port, vlan: None, mac, mtu: 1500, check, check_v6: check }
}

fn via(hops: &[usize]) -> Route {
    let hop = |&interface| NextHop { interface, mac: Mac([2, 0, 0, 0, 2, interface as u8]) };
    Route::Via(hops.iter().map(hop).collect())
}

/// A frame from `port`, from this machine.
fn frame(source: u8) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 3, source]);
    frame
}

#[test]
fn what_happens_elsewhere_costs_nothing() {
    let lab = Lab::new();
    let switch = &lab.switch;
    let (ours, theirs) = (lab.router(0, 1, 0), lab.router(2, 3, 0));
    let joined = lab.changed_by(|| {
        lab.router(1, 5, 1);
    });
    assert_eq!(joined, [0, 1, 5], "the domains are one now");
    let both = [(ours, vec![0, 1, 5]), (theirs, vec![2, 3])];
    for (router, domain) in both {
        let prefix = Prefix::new([10, 0, 0, 0].into(), 8).unwrap();
        let mut route = None;
        let changed = lab.changed_by(|| route = Some(switch.add_route(router, via(&[1])).unwrap()));
        assert_eq!(changed, domain);
        let route = route.unwrap();
        let changes: [(&str, &dyn Fn()); 5] = [
            ("delegate", &|| switch.delegate(router, prefix, route).unwrap()),
            ("change", &|| switch.change_route(router, route, via(&[1])).unwrap()),
            ("several ways", &|| switch.change_route(router, route, via(&[0, 1])).unwrap()),
            ("bypass", &|| switch.set_bypass(router, false).unwrap()),
            ("withdraw", &|| assert!(switch.withdraw(router, prefix).unwrap())),
        ];
        for (what, change) in changes {
            assert_eq!(lab.changed_by(change), domain, "{what}");
        }
    }
    // A machine that moves.
    let [here, there] = lab.ports[2];
    let snapshot = switch.snapshot();
    for (port, now) in [(here, 1_000), (there, 5_000)] {
        let moved = lab.changed_by(|| {
            snapshot.lookup(port, &frame(1), now);
        });
        assert_eq!(moved, if port == here { vec![] } else { vec![2, 3] });
    }
    assert_eq!(lab.changed_by(|| switch.set_link(lab.ports[4][0], false).unwrap()), [4]);
    assert_eq!(lab.changed_by(|| switch.remove_router(theirs).unwrap()), [2, 3]);
    assert_ne!(lab.generation(2), lab.generation(3), "they are apart again");
    assert_eq!(lab.changed_by(|| switch.remove_port(lab.ports[5][1]).unwrap()), [0, 1, 5]);
}

/// Whoever holds an old configuration finds nothing that was remembered under its domain, when that
/// is over.
#[test]
fn a_domain_that_is_over_is_renewed() {
    let lab = Lab::new();
    let port = lab.ports[0][0];
    let old = lab.switch.snapshot();
    let before = old.domain(port).unwrap().generation();
    lab.router(0, 1, 0);
    let after = old.domain(port).unwrap().generation();
    let new = lab.generation(0);
    assert!(before != after && before != new && after != new);
}

proptest! {
    #[test]
    fn domains_are_what_routers_connect(
        steps in prop::collection::vec(
            (0..ROUTERS, prop::collection::btree_set(0..NETWORKS, 0..4), 1usize..3),
            1..12,
        ),
    ) {
        let lab = Lab::new();
        // A port is one router's: each has its own in every network.
        let ports: Vec<Vec<PortId>> = (0..ROUTERS)
            .map(|_| {
                let port = |[first, _]: &[PortId; 2]| {
                    let network = lab.switch.snapshot().port(*first).unwrap().network;
                    let vlan = VlanMode::Access(1);
                    lab.switch.add_port(PortConfig { network, vlan, mac_limit: None }).unwrap()
                };
                lab.ports.iter().map(port).collect()
            })
            .collect();
        let ids: Vec<RouterId> = (0..ROUTERS).map(|_| lab.switch.add_router().unwrap()).collect();
        let mut routers = vec![(BTreeSet::new(), 0); ROUTERS];
        let mut seen = BTreeSet::new();
        for (router, networks, hops) in steps {
            let interfaces = networks.iter().map(|&network| interface(ports[router][network]));
            lab.switch.set_interfaces(ids[router], interfaces.collect()).unwrap();
            lab.switch.add_route(ids[router], via(&vec![0; hops])).unwrap();
            routers[router] = (networks, routers[router].1.max(hops));
            // From each network as far as routers lead.
            let snapshot = lab.switch.snapshot();
            for network in 0..NETWORKS {
                let mut reached = BTreeSet::from([network]);
                for _ in 0..ROUTERS {
                    for (links, _) in &routers {
                        if !links.is_disjoint(&reached) {
                            reached.extend(links);
                        }
                    }
                }
                let domain = snapshot.domain(lab.ports[network][0]).unwrap();
                for other in 0..NETWORKS {
                    let same = std::ptr::eq(domain, snapshot.domain(lab.ports[other][1]).unwrap());
                    prop_assert_eq!(same, reached.contains(&other));
                }
                let several = |(links, hops): &(BTreeSet<usize>, usize)| {
                    !links.is_disjoint(&reached) && *hops > 1
                };
                prop_assert_eq!(domain.tells().flows, routers.iter().any(several));
                seen.insert(domain.generation());
            }
            let now = lab.generations();
            lab.switch.set_bypass(ids[router], true).unwrap();
            let networks = &routers[router].0;
            for (network, (before, after)) in now.iter().zip(lab.generations()).enumerate() {
                prop_assert!(*before == after || !seen.contains(&after), "used before");
                prop_assert!(*before != after || !networks.contains(&network));
            }
        }
    }
}
