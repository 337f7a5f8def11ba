//! What the agent knows of the kernel: links, routes, neighbours, and what else is done to packets.
//!
//! Plain data without I/O. [`crate::kernel`] writes it, [`crate::plan`] reads it; what a change
//! touched is noted in [`Touched`], so that the plan looks at that only.

mod links;
mod routes;
mod targets;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use api::Mac;
use api::channel::{Flow, Prefix};

pub(crate) use links::{FamilyConf, Kind, Link};
use routes::Done;
pub(crate) use routes::{Change, ChangeKind, Table};
pub(crate) use targets::{Gateway, Target, TargetId, Targets};

/// Version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// That of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Bits of an address.
    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// Number of an interface in the kernel.
pub(crate) type Ifindex = u32;

/// A nexthop object (`ip nexthop`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    /// Where it leads.
    To(Target),
    /// Others with their weights.
    Group(Vec<(u32, u32)>),
}

/// Something besides routing that is done to packets: with it the router is not plain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Obstacle {
    /// Only packets of this version of IP.
    pub(crate) family: Option<Family>,
    /// What it is, for people.
    pub(crate) what: String,
}

impl Obstacle {
    /// For both versions of IP.
    pub(crate) fn all(what: impl Into<String>) -> Self {
        Self { family: None, what: what.into() }
    }

    /// For one version of IP.
    pub(crate) fn of(family: Family, what: impl Into<String>) -> Self {
        Self { family: Some(family), what: what.into() }
    }
}

/// Settings that hold for all interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `net.ipv4.conf.all.rp_filter`.
    pub(crate) rp_filter: u32,
    /// `net.ipv6.conf.all.forwarding`.
    pub(crate) forwarding_v6: bool,
}

/// That rules of nf_tables filter or translate packets, in such a way that those of established
/// connections pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stateful {
    /// Packets are translated.
    pub(crate) nat: bool,
}

/// The same by version of IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filters {
    v4: Option<Stateful>,
    v6: Option<Stateful>,
}

impl Filters {
    /// Whether there are any for a version of IP.
    pub(crate) fn of(self, family: Family) -> Option<Stateful> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// Sets those of a version of IP.
    pub(crate) fn set(&mut self, family: Family, stateful: Option<Stateful>) {
        match family {
            Family::V4 => self.v4 = stateful,
            Family::V6 => self.v6 = stateful,
        }
    }

    /// Whether there are any.
    pub(crate) fn any(self) -> bool {
        self != Self::default()
    }
}

/// What was touched since the plan looked last.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    /// Links, settings or obstacles: whatever is few and concerns much.
    pub(crate) frame: bool,
    /// Prefixes that may take another way.
    pub(crate) prefixes: Vec<Prefix>,
    /// Every prefix may.
    pub(crate) all: bool,
    /// Neighbours.
    pub(crate) neighbours: Vec<(Ifindex, IpAddr)>,
    /// Nexthop objects.
    pub(crate) objects: bool,
    /// Connections, by their original direction.
    pub(crate) connections: Vec<Flow>,
}

/// The kernel's state, as far as the way of packets depends on it.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Links by number.
    pub(crate) links: BTreeMap<Ifindex, Link>,
    pub(crate) settings: Settings,
    /// Table `local`.
    pub(crate) local: Table,
    /// Table `main`.
    pub(crate) main: Table,
    pub(crate) targets: Targets,
    objects: HashMap<u32, Object>,
    /// Usable neighbours, by address.
    neighbours: BTreeMap<(IpAddr, Ifindex), Mac>,
    /// By where it was found.
    obstacles: BTreeMap<&'static str, BTreeSet<Obstacle>>,
    filters: Filters,
    /// Established connections that may pass: the other direction by the original one.
    connections: BTreeMap<Flow, Flow>,
    /// So many of them are wanted at most.
    pub(crate) connections_max: usize,
    /// So often it has to be said which were used.
    pub(crate) connection_interval: Duration,
    touched: Touched,
}

impl State {
    /// What was touched since this was asked last.
    pub(crate) fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    /// A link, new or changed.
    pub(crate) fn set_link(&mut self, index: Ifindex, link: Link) {
        if self.links.get(&index) != Some(&link) {
            self.links.insert(index, link);
            self.touched.frame = true;
        }
    }

    /// A link is gone.
    pub(crate) fn remove_link(&mut self, index: Ifindex) {
        self.touched.frame |= self.links.remove(&index).is_some();
    }

    /// Settings for all interfaces.
    pub(crate) fn set_settings(&mut self, settings: Settings) {
        self.touched.frame |= self.settings != settings;
        self.settings = settings;
    }

    /// What was found in one place, in place of what was found there before.
    pub(crate) fn set_obstacles(&mut self, place: &'static str, found: BTreeSet<Obstacle>) {
        if self.obstacles.get(place).is_none_or(|old| *old != found) {
            self.touched.frame = true;
            self.obstacles.insert(place, found);
        }
    }

    /// All that was found.
    pub(crate) fn obstacles(&self) -> impl Iterator<Item = &Obstacle> {
        self.obstacles.values().flatten()
    }

    /// Rules of nf_tables.
    pub(crate) fn set_filters(&mut self, filters: Filters) {
        self.touched.frame |= self.filters != filters;
        self.filters = filters;
    }

    /// Rules of nf_tables.
    pub(crate) fn filters(&self) -> Filters {
        self.filters
    }

    /// A connection that may pass, by its original direction, and the other one.
    pub(crate) fn set_connection(&mut self, original: Flow, reply: Flow) {
        if self.connections.insert(original, reply) != Some(reply) {
            self.touched.connections.push(original);
        }
    }

    /// A connection may not pass any more.
    pub(crate) fn remove_connection(&mut self, original: &Flow) {
        if self.connections.remove(original).is_some() {
            self.touched.connections.push(*original);
        }
    }

    /// No connection may pass any more.
    pub(crate) fn clear_connections(&mut self) {
        let gone = std::mem::take(&mut self.connections);
        self.touched.connections.extend(gone.into_keys());
    }

    /// The other direction of a connection that may pass.
    pub(crate) fn connection(&self, original: &Flow) -> Option<Flow> {
        self.connections.get(original).copied()
    }

    /// Connections that may pass: original direction, and the other one.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (&Flow, &Flow)> {
        self.connections.iter()
    }

    /// Whether an address is the router's own affair.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.local.covering(address, Family::of(address).bits()).is_some()
    }

    /// A nexthop object, new or changed.
    pub(crate) fn set_object(&mut self, id: u32, object: Object) {
        if self.objects.get(&id) != Some(&object) {
            self.objects.insert(id, object);
            self.touched.objects = true;
        }
    }

    /// A nexthop object is gone.
    pub(crate) fn remove_object(&mut self, id: u32) {
        self.touched.objects |= self.objects.remove(&id).is_some();
    }

    /// Forgets the nexthop objects that are not among these.
    pub(crate) fn keep_objects(&mut self, ids: &BTreeSet<u32>) {
        let before = self.objects.len();
        self.objects.retain(|id, _| ids.contains(id));
        self.touched.objects |= self.objects.len() != before;
    }

    /// A neighbour that can be sent to (`Some`), or no longer.
    pub(crate) fn set_neighbour(&mut self, index: Ifindex, address: IpAddr, mac: Option<Mac>) {
        let key = (address, index);
        let old = match mac {
            Some(mac) => self.neighbours.insert(key, mac),
            None => self.neighbours.remove(&key),
        };
        if old != mac {
            self.touched.neighbours.push((index, address));
        }
    }

    /// Forgets the neighbours that are not among these.
    pub(crate) fn keep_neighbours(&mut self, found: &BTreeSet<(IpAddr, Ifindex)>) {
        let gone: Vec<_> =
            self.neighbours.keys().filter(|key| !found.contains(key)).copied().collect();
        for (address, index) in gone {
            self.set_neighbour(index, address, None);
        }
    }

    /// The address of a neighbour that can be sent to.
    pub(crate) fn neighbour(&self, index: Ifindex, address: IpAddr) -> Option<Mac> {
        self.neighbours.get(&(address, index)).copied()
    }

    /// Addresses of neighbours within a prefix.
    pub(crate) fn neighbours_in(&self, prefix: Prefix) -> impl Iterator<Item = IpAddr> {
        let range = (prefix.address(), 0)..=(last(prefix), Ifindex::MAX);
        self.neighbours.range(range).map(|((address, _), _)| *address)
    }

    /// Addresses of all neighbours.
    pub(crate) fn neighbours_in_all(&self) -> impl Iterator<Item = IpAddr> {
        self.neighbours.keys().map(|(address, _)| *address)
    }

    /// How many neighbours there are.
    pub(crate) fn neighbour_count(&self) -> usize {
        self.neighbours.len()
    }

    /// Changes a route of table `main`, or of `local` (`local`).
    ///
    /// Returns false if it cannot be told from the change what is there now: the table has to be
    /// read again. Until then the prefix goes to the router.
    pub(crate) fn change_route(&mut self, local: bool, prefix: Prefix, change: &Change) -> bool {
        let table = if local { &mut self.local } else { &mut self.main };
        let done = table.change(&mut self.targets, prefix, change);
        if matches!(done, Done::Changed | Done::Unclear) {
            self.touch_route(local, prefix);
        }
        matches!(done, Done::Changed | Done::Nothing)
    }

    /// Puts a table that was read anew in place of the old one, for one version of IP.
    pub(crate) fn replace_routes(&mut self, local: bool, family: Family, new: Table) {
        let table = if local { &mut self.local } else { &mut self.main };
        for prefix in table.replace(&mut self.targets, family, new) {
            self.touch_route(local, prefix);
        }
    }

    fn touch_route(&mut self, local: bool, prefix: Prefix) {
        let host = Family::of(prefix.address()).bits() == prefix.length();
        if local && !host {
            // It is before all of table `main`.
            self.touched.all = true;
        } else {
            self.touched.prefixes.push(prefix);
        }
    }

    /// Whether a link takes part in forwarding, and why not.
    pub(crate) fn link_refusal(&self, index: Ifindex) -> Option<&'static str> {
        let Some(link) = self.links.get(&index) else { return Some("is gone") };
        if let Some(why) = link.refusal() {
            return Some(why);
        }
        if self.stolen(index) {
            return Some("has other interfaces on top that take its packets");
        }
        if let Kind::Vlan { parent, .. } = link.kind {
            let Some(parent_link) = self.links.get(&parent) else {
                return Some("is on an interface that is not here");
            };
            if !matches!(parent_link.kind, Kind::Ethernet) || parent_link.refusal().is_some() {
                return Some("is on an interface that is not a plain Ethernet one");
            }
            if self.stolen(parent) {
                return Some("is on an interface that others take packets of");
            }
        }
        None
    }

    /// Whether links above take some of its packets before routing sees them.
    fn stolen(&self, index: Ifindex) -> bool {
        self.links.values().any(|above| above.takes_from == Some(index))
    }

    /// Where a nexthop object leads, its groups resolved: each target with its weight.
    pub(crate) fn object(&self, id: u32) -> Option<Vec<(&Target, u32)>> {
        match self.objects.get(&id)? {
            Object::To(target) => Some(vec![(target, 1)]),
            Object::Group(members) => members
                .iter()
                .map(|(id, weight)| match self.objects.get(id)? {
                    Object::To(target) => Some((target, *weight)),
                    // The kernel has no groups of groups.
                    Object::Group(_) => None,
                })
                .collect(),
        }
    }

    /// Whether packets of a version of IP are forwarded between links that the switch can stand in
    /// for, and nothing is in the way.
    pub(crate) fn may_delegate(&self) -> bool {
        [Family::V4, Family::V6].into_iter().any(|family| {
            self.obstacles().all(|obstacle| obstacle.family.is_some_and(|other| other != family))
                && self.links.iter().any(|(index, link)| {
                    self.forwards(link, family) && self.link_refusal(*index).is_none()
                })
        })
    }

    /// Whether packets of this version that come in there are forwarded.
    pub(crate) fn forwards(&self, link: &Link, family: Family) -> bool {
        match family {
            Family::V4 => link.v4.forwarding,
            Family::V6 => self.settings.forwarding_v6 && link.v6.forwarding,
        }
    }
}

/// Last address of a prefix.
pub(crate) fn last(prefix: Prefix) -> IpAddr {
    match prefix.address() {
        IpAddr::V4(v4) => {
            let free = u32::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
            IpAddr::V4((v4.to_bits() | free).into())
        }
        IpAddr::V6(v6) => {
            let free = u128::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
            IpAddr::V6((v6.to_bits() | free).into())
        }
    }
}

/// The prefix that is one address.
pub(crate) fn host(address: IpAddr) -> Option<Prefix> {
    Prefix::new(address, Family::of(address).bits())
}
