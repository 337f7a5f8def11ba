//! From the kernel's state to what is delegated: which requests to send, in a safe order.
//!
//! Pure: [`State`] and answers go in, [`Call`]s come out, one at a time. What is told is always a
//! mixture of the plan before and the plan now, in which no address takes a way that neither of them
//! has for it:
//!
//! * A next hop is set before prefixes take it, and given up after the last one has left it.
//! * Prefixes are set from the longest to the shortest, then withdrawn from the shortest to the
//!   longest. So a prefix never uncovers a shorter one that is still of the plan before.
//! * Nothing leads over an interface any more when it goes away or becomes another.
//! * When the rules of netfilter become others, all is withdrawn first.
//!
//! A prefix is looked at when its turn has come, so a plan that changes meanwhile is followed at
//! once; next hops come before prefixes, so a neighbour that is lost waits for one request only.

mod connections;
mod interfaces;
mod numbers;
mod ways;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::net::IpAddr;

use api::Name;
use api::channel::{
    Connections as ConnectionsCall, Counted, CountedConnections, Flow, HopCount, Interface,
    Interfaces, LINE_MAX, Limits, NextHop, NextHops, Placed, Policy, Prefix, Refusal, Routes,
    Status, To, Via,
};

use crate::state::{Family, Ifindex, State, Stateful, Touched, host};
use connections::Connections;
use numbers::Numbers;

/// A request of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Interfaces(Interfaces),
    NextHops(NextHops),
    Routes(Routes),
    Connections(ConnectionsCall),
    Status(Status),
    Withdraw,
}

/// Bytes of a line that entries may fill; the rest is for the envelope.
const LINE_ROOM: usize = LINE_MAX - 1024;
/// Longest entries as they are written, bytes.
const V4_LEN: usize = "\"255.255.255.255/32\",".len();
const V6_LEN: usize = "\"0000:0000:0000:0000:0000:0000:0000:0000/128\",".len();
const VIA_LEN: usize = "{\"nexthop\":4294967295,\"prefixes\":[]},".len();
const HOP_LEN: usize = "{\"interface\":4294967295,\"mac\":\"00:00:00:00:00:00\"},".len();
const NEXTHOP_LEN: usize = "{\"id\":4294967295,\"to\":{\"via\":[]}},".len();

/// What is delegated now and in the future.
#[derive(Debug)]
pub(crate) struct Plan {
    limits: Limits,
    /// What the plan says of the router as a whole.
    frame: Frame,
    /// The interfaces that were told.
    interfaces: Option<Vec<Interface>>,
    places: Places,
    numbers: Numbers,
    /// Which prefix was told to take which next hop.
    told: BTreeMap<Prefix, u32>,
    /// Prefixes to look at, longest first.
    look_at: BTreeSet<(Reverse<u8>, Prefix)>,
    /// Prefixes to withdraw, shortest first.
    withdraw: BTreeSet<(u8, Prefix)>,
    connections: Connections,
    /// All that was told has to be withdrawn.
    void: bool,
    status: Option<Status>,
    /// Made already, to be sent before anything else.
    ready: VecDeque<Call>,
    /// What passed the router by before the next hops of now.
    passed: HopCount,
}

/// Where interfaces are.
#[derive(Debug, Default)]
struct Places {
    /// As the daemon said.
    placed: BTreeMap<Ifindex, Result<Name, Option<Refusal>>>,
    /// Those that nothing may lead over any more, because they are about to change.
    leaving: BTreeSet<Ifindex>,
}

/// The part of the plan that concerns the router as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Frame {
    interfaces: Vec<Interface>,
    v4: Mode,
    v6: Mode,
    reasons: Vec<String>,
}

/// What becomes of packets of one version of IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// They are not forwarded.
    #[default]
    Off,
    /// They are routed.
    Plain,
    /// Rules of netfilter let them pass, or translate them, by connection.
    Stateful(Stateful),
}

impl Frame {
    fn mode(&self, family: Family) -> Mode {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    fn forwards(&self, family: Family) -> bool {
        self.mode(family) != Mode::Off
    }
}

/// Numbers for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Next hops that are told.
    pub(crate) nexthops: usize,
    /// Prefixes that are told.
    pub(crate) prefixes: usize,
    /// Prefixes that are to be told or withdrawn.
    pub(crate) pending: usize,
    /// Connections that are told, each direction for itself.
    pub(crate) connections: usize,
    /// What passed the router by.
    pub(crate) passed: HopCount,
}

impl Plan {
    /// A plan of which nothing is told, for a daemon with these limits.
    pub(crate) fn new(limits: Limits, state: &State) -> Self {
        let mut plan = Self {
            limits,
            frame: Frame::default(),
            interfaces: None,
            places: Places::default(),
            numbers: Numbers::new(limits.nexthops),
            told: BTreeMap::new(),
            look_at: BTreeSet::new(),
            withdraw: BTreeSet::new(),
            connections: Connections::new(state),
            void: false,
            status: None,
            ready: VecDeque::new(),
            passed: HopCount::default(),
        };
        plan.reframe(state);
        plan.look_at_all(state);
        plan
    }

    /// Follows the state after what was touched in it.
    pub(crate) fn update(&mut self, state: &mut State) {
        let touched = state.take_touched();
        self.follow(state, touched);
        let most = self.limits.connections as usize / 2;
        state.connections_max = if self.frame.reasons.is_empty() { most } else { 0 };
    }

    fn follow(&mut self, state: &State, touched: Touched) {
        for original in touched.connections {
            self.connections.changed(state, original);
        }
        if touched.frame || !touched.prefixes.is_empty() || touched.all {
            self.reframe(state);
        }
        if touched.all {
            self.look_at_all(state);
        }
        if touched.all || touched.objects {
            self.connections.look_at_all();
        }
        for prefix in touched.prefixes {
            self.look_at(prefix);
            self.connections.look_at(prefix);
            if prefix.length() < Family::of(prefix.address()).bits() {
                let hosts: Vec<_> = state.neighbours_in(prefix).filter_map(host).collect();
                hosts.into_iter().for_each(|host| self.look_at(host));
            }
        }
        if touched.objects {
            self.numbers.doubt_objects();
            // A nexthop object may be a link now, whose neighbours have prefixes of their own.
            let addresses: Vec<_> = state.neighbours_in_all().filter_map(host).collect();
            addresses.into_iter().for_each(|host| self.look_at(host));
        }
        if !touched.neighbours.is_empty() {
            let changed: HashSet<(Ifindex, IpAddr)> = touched.neighbours.into_iter().collect();
            self.numbers.doubt_neighbours(&changed);
            for host in changed.iter().filter_map(|(_, address)| host(*address)) {
                self.look_at(host);
                self.connections.look_at(host);
            }
            // By way of a gateway that is known now.
            self.connections.look_at_untold();
        }
    }

    /// The next request; none if all is told.
    pub(crate) fn next(&mut self, state: &State) -> Option<Call> {
        if !self.frame.reasons.is_empty() {
            self.ready.clear();
            if self.interfaces.is_some() {
                self.forget(state);
                return Some(Call::Withdraw);
            }
            return self.next_status();
        }
        if self.void {
            self.forget(state);
            return Some(Call::Withdraw);
        }
        if let Some(call) = self.ready.pop_front() {
            return Some(call);
        }
        if let Some(call) = self.next_interfaces() {
            return Some(call);
        }
        if let Some(set) = self.numbers.changed(|way| self.places.resolve(state, way)) {
            return Some(Call::NextHops(NextHops { set, del: Vec::new() }));
        }
        if let Some(call) = self.next_status() {
            return Some(call);
        }
        self.next_connections(state)
            .or_else(|| self.next_set(state))
            .or_else(|| self.next_withdrawal())
            .or_else(|| self.next_del(state))
    }

    /// Where the interfaces are: the answer to [`Call::Interfaces`], or news of it.
    pub(crate) fn placed(&mut self, placed: Placed) {
        self.places.placed = placed
            .interfaces
            .into_iter()
            .map(|one| (one.id, one.port.ok_or(one.refused)))
            .collect();
        self.numbers.doubt_all();
        self.connections.look_at_all();
    }

    /// What passed the router by: returns the neighbours it was sent to since the last time.
    pub(crate) fn counted(&mut self, counted: &Counted) -> Vec<(Ifindex, IpAddr)> {
        self.numbers.counted(counted)
    }

    /// The last [`Call::Connections`] was answered: returns those that pass the router by from now on.
    pub(crate) fn begun_connections(&mut self) -> BTreeSet<Flow> {
        self.connections.begun()
    }

    /// What passed the router by, by connection: returns those that were used since the last time.
    pub(crate) fn counted_connections(&mut self, counted: &CountedConnections) -> BTreeSet<Flow> {
        self.connections.counted(counted)
    }

    /// Whether next hops are told, which count what goes to them.
    pub(crate) fn has_nexthops(&self) -> bool {
        self.numbers.any_told()
    }

    /// Numbers for people.
    pub(crate) fn sizes(&self) -> Sizes {
        let now = self.numbers.passed();
        Sizes {
            nexthops: self.numbers.told(),
            prefixes: self.told.len(),
            pending: self.look_at.len() + self.withdraw.len() + self.connections.pending(),
            connections: self.connections.told(),
            passed: HopCount {
                packets: self.passed.packets + now.packets,
                bytes: self.passed.bytes + now.bytes,
            },
        }
    }

    /// What is delegated, and why not more.
    pub(crate) fn policy(&self) -> Status {
        if !self.frame.reasons.is_empty() {
            return Status { policy: Policy::Nothing, reasons: self.frame.reasons.clone() };
        }
        let modes = [("IPv4", self.frame.v4), ("IPv6", self.frame.v6)];
        let why = |(ip, mode): (&str, Mode)| match mode {
            Mode::Stateful(Stateful { nat: true }) => {
                Some(format!("{ip} is filtered or translated by nf_tables"))
            }
            Mode::Stateful(_) => Some(format!("{ip} is filtered by nf_tables")),
            Mode::Off | Mode::Plain => None,
        };
        let reasons: Vec<String> = modes.into_iter().filter_map(why).collect();
        let policy = if reasons.is_empty() { Policy::Plain } else { Policy::Stateful };
        Status { policy, reasons }
    }

    /// Where a told interface is, or why it is nowhere.
    pub(crate) fn place(&self, index: Ifindex) -> Option<&Result<Name, Option<Refusal>>> {
        self.places.placed.get(&index)
    }

    /// Nothing is told any more.
    fn forget(&mut self, state: &State) {
        let passed = self.sizes().passed;
        let (frame, status) = (self.frame.clone(), self.status.take());
        *self = Self { frame, status, passed, ..Self::new(self.limits, state) };
    }

    fn next_status(&mut self) -> Option<Call> {
        let status = self.policy();
        if self.status.as_ref() == Some(&status) {
            return None;
        }
        self.status = Some(status.clone());
        Some(Call::Status(status))
    }

    fn look_at(&mut self, prefix: Prefix) {
        self.look_at.insert((Reverse(prefix.length()), prefix));
    }

    fn look_at_all(&mut self, state: &State) {
        let routes = state.local.prefixes().chain(state.main.prefixes());
        let hosts = state.neighbours_in_all().filter_map(host);
        let all = routes.chain(hosts).chain(self.told.keys().copied());
        self.look_at = all.map(|prefix| (Reverse(prefix.length()), prefix)).collect();
    }

    /// Prefixes that go elsewhere, with the next hops they need before them.
    fn next_set(&mut self, state: &State) -> Option<Call> {
        // In the order of lengths; within one length the order does not matter.
        let mut set: Vec<Via> = Vec::new();
        let mut places: BTreeMap<(Reverse<u8>, u32), usize> = BTreeMap::new();
        let mut room = LINE_ROOM;
        while room > VIA_LEN + V6_LEN {
            let Some((length, prefix)) = self.look_at.pop_first() else { break };
            let number = self.way(state, prefix).map(|way| self.numbers.of(way));
            let told = self.told.get(&prefix).copied();
            if number.is_some() {
                self.withdraw.remove(&(prefix.length(), prefix));
            }
            match number {
                None if told.is_some() => {
                    self.withdraw.insert((prefix.length(), prefix));
                }
                Some(number) if told != Some(number) => {
                    self.told.insert(prefix, number);
                    self.numbers.take(number);
                    if let Some(told) = told {
                        self.numbers.leave(told);
                    }
                    room -= prefix_len(prefix);
                    let place = *places.entry((length, number)).or_insert_with(|| {
                        room = room.saturating_sub(VIA_LEN);
                        set.push(Via { nexthop: number, prefixes: Vec::new() });
                        set.len() - 1
                    });
                    if let Some(via) = set.get_mut(place) {
                        via.prefixes.push(prefix.into());
                    }
                }
                _ => {}
            }
        }
        if set.is_empty() {
            return None;
        }
        while let Some(set) = self.numbers.changed(|way| self.places.resolve(state, way)) {
            self.ready.push_back(Call::NextHops(NextHops { set, del: Vec::new() }));
        }
        self.ready.push_back(Call::Routes(Routes { set, del: Vec::new() }));
        self.ready.pop_front()
    }

    /// Prefixes that are withdrawn.
    fn next_withdrawal(&mut self) -> Option<Call> {
        let mut del = Vec::new();
        let mut room = LINE_ROOM;
        while room > V6_LEN {
            let Some((_, prefix)) = self.withdraw.pop_first() else { break };
            if let Some(told) = self.told.remove(&prefix) {
                self.numbers.leave(told);
                room -= prefix_len(prefix);
                del.push(prefix.into());
            }
        }
        (!del.is_empty()).then(|| Call::Routes(Routes { set: Vec::new(), del }))
    }

    /// Next hops that are given up.
    fn next_del(&mut self, state: &State) -> Option<Call> {
        let del = self.numbers.unused();
        if !del.is_empty() && self.numbers.take_starved() {
            self.look_at_all(state);
        }
        (!del.is_empty()).then(|| Call::NextHops(NextHops { set: Vec::new(), del }))
    }
}

fn prefix_len(prefix: Prefix) -> usize {
    if prefix.address().is_ipv4() { V4_LEN } else { V6_LEN }
}

/// How long a next hop is as it is written, bytes, at most.
fn nexthop_len(next: &NextHop) -> usize {
    let hops = if let To::Via(hops) = &next.to { hops.len() } else { 0 };
    NEXTHOP_LEN + hops * HOP_LEN
}

#[cfg(test)]
mod tests;
