//! Reads the kernel's routing into a [`State`], and keeps it so.
//!
//! **Purpose.** At the beginning, and when events were lost, all is read ([`Kernel::sync`]). After
//! that events change what they say. Where an event does not say it all, its table is read again:
//! Linux tells of no IPv4 routes that go with their interface or address, and of IPv6 routes with
//! several ways only which one came or went. What has no events is looked at each second, and more
//! seldom while nothing can be left to the switch.
//!
//! **Owner and threads.** One thread, which is in the network namespace that it reads.
//!
//! **Failure.** An error ends the agent: without the kernel it knows nothing. What cannot be read
//! of the things that make a router not plain is an [`Obstacle`].

mod checks;
mod conntrack;
mod read;
mod rules;
mod uapi;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink as protocol;

use crate::state::{Family, Ifindex, Obstacle, State, Table};
use api::channel::Flow;
use conntrack::Conntrack;
use netlink::{Events, Message, Socket, attribute};
use read::ReadRoute;
use uapi::*;

/// What has no events is looked at so often while packets can be left to the switch,
const LOOK: Duration = Duration::from_secs(1);
/// and so often while something is in the way, or nothing is forwarded: to look takes a small guest
/// some milliseconds.
const LOOK_IDLE: Duration = Duration::from_secs(10);
/// Between two readings of the routes: so long, or so many times as long as reading took.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_FACTOR: u32 = 3;

/// Sockets to the kernel, and what is to be read again.
#[derive(Debug)]
pub(crate) struct Kernel {
    events: Socket,
    route: Socket,
    /// Netfilter and IPsec, where the kernel has them: requests and events.
    netfilter: Option<(Socket, Socket)>,
    xfrm: Option<(Socket, Socket)>,
    /// While rules are such that connections may pass.
    conntrack: Option<Conntrack>,
    due: Due,
    /// When what has no events was looked at, and after how long it is again.
    looked: Instant,
    look: Duration,
    routes_not_before: Instant,
}

/// What is to be read again.
#[derive(Debug, Default)]
struct Due {
    all: bool,
    links: bool,
    routes_v4: bool,
    routes_v6: bool,
    objects: bool,
    rules: bool,
    settings: bool,
    qdiscs: bool,
    nftables: bool,
    xfrm: bool,
    /// What has no events.
    quiet: bool,
}

impl Kernel {
    /// Begins to listen; [`Kernel::settle`] reads all for the first time.
    ///
    /// # Errors
    /// A socket cannot be had.
    pub(crate) fn open() -> io::Result<Self> {
        let optional = |kind, groups| -> io::Result<Option<(Socket, Socket)>> {
            match Socket::requests(Some(kind)) {
                Ok(requests) => Ok(Some((requests, Socket::events(Some(kind), groups)?))),
                Err(error)
                    if error.raw_os_error() == Some(Errno::PROTONOSUPPORT.raw_os_error()) =>
                {
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        };
        let now = Instant::now();
        Ok(Self {
            events: Socket::events(None, ROUTE_GROUPS)?,
            route: Socket::requests(None)?,
            netfilter: optional(protocol::NETFILTER, NFNLGRP_NFTABLES)?,
            xfrm: optional(protocol::XFRM, XFRMNLGRP_POLICY)?,
            conntrack: None,
            due: Due { all: true, ..Due::default() },
            looked: now,
            look: LOOK,
            routes_not_before: now,
        })
    }

    /// Where events arrive.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let others = [&self.netfilter, &self.xfrm];
        let others = others.into_iter().flatten().map(|(_, events)| events.fd());
        let conntrack = self.conntrack.iter().map(Conntrack::fd);
        std::iter::once(self.events.fd()).chain(others).chain(conntrack)
    }

    /// When [`Kernel::settle`] has something to do without an event.
    pub(crate) fn deadline(&self) -> Instant {
        let look = self.looked + self.look;
        let routes = self.due.routes_v4 || self.due.routes_v6;
        if routes { look.min(self.routes_not_before) } else { look }
    }

    /// Reads the events there are, and again what they say too little of.
    ///
    /// # Errors
    /// The kernel cannot be read.
    pub(crate) fn settle(&mut self, state: &mut State) -> io::Result<()> {
        self.read_events(state)?;
        if self.due.all {
            self.sync(state)?;
            // What changed meanwhile.
            self.read_events(state)?;
        }
        self.read_due(state)?;
        // What an event has just made possible is not left to the switch before that look.
        self.look = if state.may_delegate() { LOOK } else { LOOK_IDLE };
        if self.looked.elapsed() >= self.look {
            self.due.quiet = true;
            self.read_due(state)?;
        }
        self.follow_connections(state)
    }

    fn follow_connections(&mut self, state: &mut State) -> io::Result<()> {
        if !state.filters().any() {
            self.conntrack = None;
            state.clear_connections();
            return Ok(());
        }
        if self.conntrack.is_none() {
            self.conntrack = Some(Conntrack::open()?);
        }
        self.conntrack.as_mut().map_or(Ok(()), |conntrack| conntrack.settle(state))
    }

    /// Packets of these connections pass the kernel by from now on.
    pub(crate) fn begun_connections<'a>(&mut self, begun: impl IntoIterator<Item = &'a Flow>) {
        let Some(conntrack) = &mut self.conntrack else { return };
        begun.into_iter().for_each(|original| conntrack.begun(original));
    }

    /// Packets of these connections passed the kernel by: keeps them alive. With `all`, those that
    /// were not told are silent.
    pub(crate) fn used_connections<'a>(
        &mut self,
        state: &mut State,
        used: impl IntoIterator<Item = &'a Flow>,
        all: bool,
    ) {
        let Some(conntrack) = &mut self.conntrack else { return };
        used.into_iter().for_each(|original| conntrack.used(state, original));
        if all {
            conntrack.tick(state);
        }
    }

    fn read_events(&mut self, state: &mut State) -> io::Result<()> {
        let due = &mut self.due;
        if self.events.read(|message| event(state, due, message))? == Events::Lost {
            tracing::info!("events of the kernel were lost; all is read again");
            self.due.all = true;
        }
        if let Some((_, events)) = &mut self.netfilter {
            let due = &mut self.due.nftables;
            let mark = |_: &Message<'_>| {
                *due = true;
                Ok(())
            };
            let lost = events.read(mark)? == Events::Lost;
            self.due.nftables |= lost;
        }
        if let Some((_, events)) = &mut self.xfrm {
            let due = &mut self.due.xfrm;
            let mark = |_: &Message<'_>| {
                *due = true;
                Ok(())
            };
            let lost = events.read(mark)? == Events::Lost;
            self.due.xfrm |= lost;
        }
        Ok(())
    }

    fn sync(&mut self, state: &mut State) -> io::Result<()> {
        self.due = Due {
            links: true,
            routes_v4: true,
            routes_v6: true,
            objects: true,
            rules: true,
            settings: true,
            qdiscs: true,
            nftables: true,
            xfrm: true,
            quiet: true,
            all: false,
        };
        self.routes_not_before = Instant::now();
        self.read_due(state)?;
        self.read_neighbours(state)
    }

    fn read_due(&mut self, state: &mut State) -> io::Result<()> {
        let due = std::mem::take(&mut self.due);
        self.due.all = due.all;
        if due.quiet {
            self.looked = Instant::now();
        }
        if due.settings || due.quiet {
            let (settings, obstacles) = checks::sysctl();
            state.set_settings(settings);
            state.set_obstacles("sysctl", obstacles);
        }
        if due.links || due.quiet {
            self.read_links(state)?;
        }
        if due.rules {
            let (v4, v6) = (self.read_rules(Family::V4), self.read_rules(Family::V6));
            state.set_obstacles("rules", v4.into_iter().chain(v6).collect());
        }
        if due.qdiscs || due.links {
            let found = checks::traffic_control(&mut self.route, state);
            state.set_obstacles("tc", found);
        }
        if due.nftables {
            let socket = self.netfilter.as_mut().map(|(requests, _)| requests);
            let (filters, obstacles) = rules::read(socket);
            if let Some(conntrack) = self.conntrack.as_mut().filter(|_| filters != state.filters())
            {
                conntrack.doubt();
            }
            state.set_filters(filters);
            state.set_obstacles("nf_tables", obstacles);
        }
        if due.xfrm {
            let socket = self.xfrm.as_mut().map(|(requests, _)| requests);
            state.set_obstacles("xfrm", checks::xfrm(socket));
        }
        if due.quiet {
            state.set_obstacles("iptables", checks::iptables());
        }
        if due.quiet || due.links {
            state.set_obstacles("tcx", checks::programs(state));
        }
        if due.objects {
            self.read_objects(state)?;
        }
        if (due.routes_v4 || due.routes_v6) && Instant::now() < self.routes_not_before {
            self.due.routes_v4 = due.routes_v4;
            self.due.routes_v6 = due.routes_v6;
            return Ok(());
        }
        for (family, due) in [(Family::V4, due.routes_v4), (Family::V6, due.routes_v6)] {
            if due {
                let began = Instant::now();
                self.read_routes(state, family)?;
                let pause = PAUSE.max(began.elapsed() * PAUSE_FACTOR);
                self.routes_not_before = self.routes_not_before.max(Instant::now() + pause);
            }
        }
        Ok(())
    }

    fn read_links(&mut self, state: &mut State) -> io::Result<()> {
        let mut body = vec![0; 16];
        attribute(&mut body, IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let links = self.route.dump_into(RTM_GETLINK, &body, |links: &mut Vec<_>, message| {
            links.extend(read::link(message.body)?);
            Ok(())
        })?;
        let mut obstacles = BTreeSet::new();
        for one in &links {
            let name = &one.link.name;
            if one.xdp {
                obstacles.insert(Obstacle::all(format!("an XDP program is attached to {name}")));
            }
            if one.vrf {
                obstacles.insert(Obstacle::all(format!("there is a VRF, {name}")));
            }
        }
        state.set_obstacles("links", obstacles);
        let found: BTreeSet<Ifindex> = links.iter().map(|one| one.index).collect();
        let gone: Vec<Ifindex> =
            state.links.keys().filter(|index| !found.contains(index)).copied().collect();
        gone.into_iter().for_each(|index| state.remove_link(index));
        for one in links {
            state.set_link(one.index, one.link);
        }
        Ok(())
    }

    /// What is not plain in the policy rules of a version of IP.
    fn read_rules(&mut self, family: Family) -> BTreeSet<Obstacle> {
        let mut body = [0; 12];
        body[0] = af(family);
        let rules = self.route.dump_into(RTM_GETRULE, &body, |rules: &mut Vec<_>, message| {
            if message.kind == RTM_NEWRULE {
                rules.push(read::rule(message.body)?);
            }
            Ok(())
        });
        let ip = if family == Family::V4 { "IPv4" } else { "IPv6" };
        let rules = match rules.or_else(checks::not_there) {
            Ok(rules) => rules,
            Err(error) => {
                let what = format!("policy rules of {ip} cannot be read: {error}");
                return [Obstacle::of(family, what)].into();
            }
        };
        let standard = |rule: &(u32, Option<u32>)| match *rule {
            (0, Some(RT_TABLE_LOCAL)) | (32_766, Some(RT_TABLE_MAIN)) => true,
            (32_767, Some(RT_TABLE_DEFAULT)) => family == Family::V4,
            _ => false,
        };
        let mut obstacles: BTreeSet<Obstacle> = rules
            .iter()
            .filter(|rule| !standard(rule))
            .map(|(priority, _)| {
                Obstacle::of(family, format!("there is a policy rule {priority} of {ip}"))
            })
            .collect();
        // A kernel without policy rules has none; otherwise local and main have theirs.
        for (priority, table) in [(0, "local"), (32_766, "main")] {
            if !rules.is_empty() && !rules.iter().any(|rule| rule.0 == priority && standard(rule)) {
                let what = format!("the policy rule of {ip} for table {table} is not there");
                obstacles.insert(Obstacle::of(family, what));
            }
        }
        obstacles
    }

    fn read_objects(&mut self, state: &mut State) -> io::Result<()> {
        let objects =
            self.route.dump_into(RTM_GETNEXTHOP, &[0; 8], |found: &mut Vec<_>, message| {
                if message.kind == RTM_NEWNEXTHOP {
                    found.push(read::object(message.body)?);
                }
                Ok(())
            });
        // Before Linux 5.3 there were none.
        let objects = objects.or_else(checks::not_there)?;
        state.keep_objects(&objects.iter().map(|(id, _)| *id).collect());
        for (id, object) in objects {
            state.set_object(id, object);
        }
        Ok(())
    }

    fn read_routes(&mut self, state: &mut State, family: Family) -> io::Result<()> {
        let mut body = [0; 12];
        body[0] = af(family);
        let (mut local, mut main) = (Table::default(), Table::default());
        let mut obstacles = BTreeSet::new();
        let targets = &mut state.targets;
        for _ in 0..netlink::REPEATS {
            std::mem::take(&mut local).release(targets);
            std::mem::take(&mut main).release(targets);
            obstacles.clear();
            let mut obstacle = |what: &str| {
                obstacles.insert(Obstacle::of(family, what));
            };
            let whole = self.route.dump(RTM_GETROUTE, &body, |message| {
                match read::route(message)? {
                    Some(ReadRoute { from: true, .. }) => {
                        obstacle("there are routes for certain sources (IPv6 from)");
                    }
                    Some(ReadRoute { table: RT_TABLE_DEFAULT, .. }) => {
                        obstacle("there are routes in table default");
                    }
                    Some(ReadRoute { table: RT_TABLE_LOCAL, prefix, change, .. }) => {
                        local.push(targets, prefix, &change);
                    }
                    Some(ReadRoute { table: RT_TABLE_MAIN, prefix, change, .. }) => {
                        main.push(targets, prefix, &change);
                    }
                    _ => {}
                }
                Ok(())
            });
            // Without IPv6 in the kernel there are none.
            if whole.or_else(|error| checks::not_there(error).map(|()| true))? {
                break;
            }
        }
        let place = if family == Family::V4 { "routes of IPv4" } else { "routes of IPv6" };
        state.set_obstacles(place, obstacles);
        state.replace_routes(true, family, local);
        state.replace_routes(false, family, main);
        Ok(())
    }

    fn read_neighbours(&mut self, state: &mut State) -> io::Result<()> {
        let found =
            self.route.dump_into(RTM_GETNEIGH, &[0; 12], |found: &mut Vec<_>, message| {
                if message.kind == RTM_NEWNEIGH {
                    found.extend(read::neighbour(message)?);
                }
                Ok(())
            })?;
        state.keep_neighbours(&found.iter().map(|one| (one.address, one.index)).collect());
        for one in found {
            state.set_neighbour(one.index, one.address, one.mac);
        }
        Ok(())
    }

    /// Tells the kernel that packets go to a neighbour: if it was silent for long, it is asked
    /// whether it is there. One that was set for good stays so: in use, to Linux, means that it is
    /// learned.
    pub(crate) fn use_neighbour(&mut self, index: Ifindex, address: IpAddr) {
        let (family, bytes) = match address {
            IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
        };
        // struct ndmsg: family, padding, ifindex, state, flags, type
        let about = |flags| {
            let mut body = vec![family, 0, 0, 0];
            body.extend(index.to_ne_bytes());
            body.extend([0, 0, flags, 0]);
            attribute(&mut body, NDA_DST, &bytes);
            body
        };
        let mut learned = false;
        let asked = self.route.request(RTM_GETNEIGH, 0, &about(0), |message| {
            learned = read::is_learned(message)?;
            Ok(())
        });
        let told = asked.and_then(|()| match learned {
            true => self.route.request(RTM_NEWNEIGH, 0, &about(NTF_USE), |_| Ok(())),
            false => Ok(()),
        });
        if let Err(error) = told {
            // It is gone meanwhile, which an event says.
            tracing::debug!("neighbour {address}: {error}");
        }
    }
}

/// Carries out an event, or notes what is to be read again.
fn event(state: &mut State, due: &mut Due, message: &Message<'_>) -> io::Result<()> {
    match message.kind {
        RTM_NEWLINK | RTM_DELLINK => {
            let Some(one) = read::link(message.body)? else { return Ok(()) };
            due.links = true;
            let known = state.links.get(&one.index);
            if message.kind == RTM_DELLINK || known.is_none_or(|link| link.up != one.link.up) {
                // With an interface that goes down IPv4 routes go without a word.
                due.routes_v4 = true;
                due.routes_v6 = true;
            }
        }
        RTM_DELADDR => due.routes_v4 = true,
        RTM_NEWROUTE | RTM_DELROUTE => {
            let Some(route) = read::route(message)? else { return Ok(()) };
            let clear = match route.table {
                _ if route.from => false,
                RT_TABLE_LOCAL => state.change_route(true, route.prefix, &route.change),
                RT_TABLE_MAIN => state.change_route(false, route.prefix, &route.change),
                RT_TABLE_DEFAULT => false,
                _ => true,
            };
            if !clear {
                match Family::of(route.prefix.address()) {
                    Family::V4 => due.routes_v4 = true,
                    Family::V6 => due.routes_v6 = true,
                }
            }
        }
        RTM_NEWNEIGH | RTM_DELNEIGH => {
            if let Some(one) = read::neighbour(message)? {
                state.set_neighbour(one.index, one.address, one.mac);
            }
        }
        RTM_NEWNEXTHOP => {
            let (id, object) = read::object(message.body)?;
            state.set_object(id, object);
        }
        RTM_DELNEXTHOP => {
            let (id, _) = read::object(message.body)?;
            state.remove_object(id);
            // Its routes go with it, and groups lose a member.
            due.objects = true;
            due.routes_v4 = true;
            due.routes_v6 = true;
        }
        RTM_NEWRULE | RTM_DELRULE => due.rules = true,
        RTM_NEWNETCONF | RTM_DELNETCONF => {
            due.settings = true;
            due.links = true;
        }
        RTM_NEWQDISC..=RTM_DELTFILTER | RTM_NEWCHAIN | RTM_DELCHAIN => due.qdiscs = true,
        _ => {}
    }
    Ok(())
}

fn af(family: Family) -> u8 {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

#[cfg(test)]
mod tests;
