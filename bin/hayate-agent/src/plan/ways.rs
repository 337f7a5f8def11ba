//! Which way a prefix takes, and to whom a way leads.

use std::net::IpAddr;

use api::channel::{Hop, Prefix, To};

use super::{Mode, Places, Plan};
use crate::state::{Family, Gateway, Ifindex, State, Target};

/// Hops of a next hop at most, with those that are repeated for their weight.
pub(super) const HOPS_MAX: usize = 64;

/// What a number stands for: what it leads to is worked out from the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way<'a> {
    /// Where a route leads.
    To(&'a Target),
    /// The same, kept.
    Owned(Target),
    /// A neighbour on a link.
    Neighbour(Ifindex, IpAddr),
}

/// To whom a way leads now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) to: To,
    /// The neighbour of each hop.
    pub(super) neighbours: Vec<(Ifindex, IpAddr)>,
}

impl Way<'_> {
    pub(super) fn into_owned(self) -> Way<'static> {
        match self {
            Way::To(target) => Way::Owned(target.clone()),
            Way::Owned(target) => Way::Owned(target),
            Way::Neighbour(interface, address) => Way::Neighbour(interface, address),
        }
    }
}

impl Resolved {
    fn own() -> Self {
        Self { to: To::Own, neighbours: Vec::new() }
    }

    fn router() -> Self {
        Self { to: To::Via(Vec::new()), neighbours: Vec::new() }
    }
}

impl Plan {
    /// The way of a prefix; none if it is not told.
    pub(super) fn way<'a>(&self, state: &'a State, prefix: Prefix) -> Option<Way<'a>> {
        let family = Family::of(prefix.address());
        if self.frame.mode(family) != Mode::Plain {
            return None;
        }
        if !state.local.entries(prefix).is_empty() {
            return Some(Way::To(&Target::Own));
        }
        let address = prefix.address();
        let shorter = prefix.length().checked_sub(1);
        let host = prefix.length() == family.bits();
        // What table `local` has is before all of table `main`.
        let shadowed = shorter.is_some_and(|most| state.local.covering(address, most).is_some());
        let route = best(state, prefix);
        if shadowed {
            return route.map(|_| Way::To(&Target::Own));
        }
        match (route, shorter) {
            (Some(target), _) => {
                let index = link(state, target).filter(|_| host);
                let index = index.filter(|index| state.neighbour(*index, address).is_some());
                Some(match (index, target) {
                    (Some(index), _) => Way::Neighbour(index, address),
                    (None, Target::Link(_)) => Way::To(&Target::Router),
                    // A nexthop object may lead elsewhere tomorrow, also if it is a link today.
                    (None, target) => Way::To(target),
                })
            }
            (None, Some(most)) if host => {
                let covering = state.main.covering(address, most)?;
                let index = link(state, best(state, covering)?)?;
                state.neighbour(index, address).map(|_| Way::Neighbour(index, address))
            }
            (None, _) => None,
        }
    }

    /// The way of packets to an address; none if it is the router's own, or not known.
    pub(super) fn way_to<'a>(&self, state: &'a State, address: IpAddr) -> Option<Way<'a>> {
        if state.is_own(address) {
            return None;
        }
        let covering = state.main.covering(address, Family::of(address).bits())?;
        let target = best(state, covering)?;
        match link(state, target) {
            Some(index) => Some(Way::Neighbour(index, address)),
            None => Some(Way::To(target)),
        }
    }
}

impl Places {
    /// To whom a way leads.
    pub(super) fn resolve(&self, state: &State, way: &Way<'_>) -> Resolved {
        let target = match way {
            Way::To(target) => *target,
            Way::Owned(target) => target,
            Way::Neighbour(interface, address) => {
                let gateway = Gateway { interface: *interface, address: *address, weight: 1 };
                return self.through(state, &[gateway]);
            }
        };
        match target {
            Target::Own => Resolved::own(),
            Target::Router | Target::Link(_) => Resolved::router(),
            Target::Gateways(gateways) => self.through(state, gateways),
            Target::Object(id) => match state.object(*id).as_deref() {
                Some([(Target::Own, _)]) => Resolved::own(),
                Some(targets) => {
                    let gateways: Option<Vec<Gateway>> = targets
                        .iter()
                        .map(|(target, weight)| match target {
                            Target::Gateways(gateways) => match **gateways {
                                [one] => Some(Gateway { weight: *weight, ..one }),
                                _ => None,
                            },
                            _ => None,
                        })
                        .collect();
                    gateways.map_or_else(Resolved::router, |all| self.through(state, &all))
                }
                None => Resolved::router(),
            },
        }
    }

    /// By gateways. If one of them cannot be sent to, all goes to the router: it has to find out,
    /// and it alone knows what becomes of the packets until then.
    fn through(&self, state: &State, gateways: &[Gateway]) -> Resolved {
        let hop = |gateway: &Gateway| {
            let interface = gateway.interface;
            self.usable(interface).then_some(())?;
            let mac = state.neighbour(interface, gateway.address)?;
            Some((Hop { interface, mac }, (interface, gateway.address)))
        };
        let hops: Option<Vec<_>> = gateways.iter().map(hop).collect();
        let weights: Vec<u32> = gateways.iter().map(|gateway| gateway.weight).collect();
        let (Some(hops), Some(times)) = (hops, repetitions(&weights)) else {
            return Resolved::router();
        };
        let repeated =
            hops.into_iter().zip(times).flat_map(|(hop, times)| std::iter::repeat_n(hop, times));
        let (hops, neighbours) = repeated.unzip();
        Resolved { to: To::Via(hops), neighbours }
    }

    /// Whether packets may be sent from there.
    fn usable(&self, interface: Ifindex) -> bool {
        !self.leaving.contains(&interface) && matches!(self.placed.get(&interface), Some(Ok(_)))
    }
}

/// The link whose neighbours a target is.
fn link(state: &State, target: &Target) -> Option<Ifindex> {
    match target {
        Target::Link(index) => Some(*index),
        Target::Object(id) => match *state.object(*id)? {
            [(Target::Link(index), _)] => Some(*index),
            _ => None,
        },
        _ => None,
    }
}

/// Where the best of a prefix's routes leads.
fn best(state: &State, prefix: Prefix) -> Option<&Target> {
    let entries = state.main.entries(prefix);
    let best = entries.iter().min_by_key(|entry| entry.metric)?;
    let alike = entries.iter().filter(|entry| entry.metric == best.metric).count();
    let v6 = prefix.address().is_ipv6();
    // Only the kernel looks at the type of service, and chooses among equal routes of IPv6.
    if entries.iter().any(|entry| entry.tos != 0) || (v6 && alike > 1) {
        return Some(&Target::Router);
    }
    state.targets.get(best.target)
}

/// How often each hop stands in the list for its weight; none if there are too many.
pub(super) fn repetitions(weights: &[u32]) -> Option<Vec<usize>> {
    let (sum, count) = (weights.iter().map(|w| u64::from(*w)).sum::<u64>(), weights.len() as u64);
    if weights.is_empty() || count > HOPS_MAX as u64 || weights.contains(&0) {
        return None;
    }
    let divisor = weights.iter().fold(0, |a, b| gcd(a, *b));
    let exact = sum / u64::from(divisor);
    if exact <= HOPS_MAX as u64 {
        return Some(weights.iter().map(|weight| (weight / divisor) as usize).collect());
    }
    // One for each, the rest by weight.
    let rest = HOPS_MAX as u64 - count;
    Some(weights.iter().map(|weight| 1 + (u64::from(*weight) * rest / sum) as usize).collect())
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
