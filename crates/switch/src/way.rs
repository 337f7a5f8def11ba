//! The way of a packet through routers that are bypassed.

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use packet::eth::{ETH_P_IP, Eth};
use packet::ip::Version;
use packet::route::{Macs, Packet, Unroutable};
use packet::tuple::Tuple;
use packet::{Checked, Mac, Tci, VlanEdit};

use crate::config::{Port, Snapshot};
use crate::domain::{Domain, Tells};
use crate::fdb::{self, Held};
use crate::lpm::Prefix;
use crate::memo::Arrival;
use crate::router::connection::Connection;
use crate::router::{RouteEntry, Router, RouterInterface, SourceCheck};
use crate::{DropReason, PortId, Route, RouteId, RouterId, Verdict};

/// What becomes of a packet that bypasses routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Routed {
    /// New addresses: from the last router to the next machine.
    pub macs: Macs,
    /// Where it goes.
    pub port: PortId,
    /// What to do with the tag of the frame as it came.
    pub edit: VlanEdit,
    /// So many routers were bypassed. A packet with no more hops than that goes to the first.
    pub routers: u8,
    /// Longest packet that all of them would have sent on: a longer one goes to the first. 0 if no
    /// router was bypassed.
    mtu: u32,
}

impl Default for Routed {
    /// To the router.
    fn default() -> Self {
        let macs = Macs::default();
        Self { macs, port: PortId(0), edit: VlanEdit::Keep, routers: 0, mtu: 0 }
    }
}

/// Why a packet goes to a router instead of past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotBypassed {
    /// Not a packet that a router forwards by its destination alone.
    #[error("{}", unroutable(*.0))]
    Packet(Unroutable),
    /// Switched off.
    #[error("its bypass is switched off")]
    Off,
    /// Its port lost its link.
    #[error("its port lost its link, and it has not said since that it is still the same")]
    Lost,
    /// Not for one of its interfaces.
    #[error("the frame is for none of the interfaces it told of")]
    Interface,
    /// Its reverse-path filter.
    #[error("the source fails its reverse-path filter, or is an address of its own")]
    Source,
    /// Not delegated.
    #[error("it has not delegated the destination")]
    NoRoute,
    /// Its own.
    #[error("the destination is an address of its own, or one that it keeps for itself")]
    Own,
    /// No neighbour.
    #[error("it has to find out the next hop's address, or deals with these packets itself")]
    NoNextHop,
    /// Out by where it came in.
    #[error("it would send the packet back by the interface it came by, and may tell the sender")]
    Redirect,
    /// What is enforced on the port it would leave by, or rules of that it comes by.
    #[error("a port of it has rules, or checks of what it sends, which look at every frame")]
    Guarded,
    /// What its frame would meet.
    #[error("its frame would not be forwarded: {}", .0.help())]
    Dropped(DropReason),
    /// Its frame would go everywhere.
    #[error("nobody has been seen with the next hop's address")]
    Unknown,
    /// No more hops.
    #[error("the packet may not pass that many routers: one of them has to answer")]
    Hops,
    /// Too long.
    #[error("the packet is longer than an MTU on its way")]
    Mtu,
    /// After so many it is enough.
    #[error("it is the last of the most routers that are bypassed at once")]
    TooMany,
}

fn unroutable(why: Unroutable) -> &'static str {
    match why {
        Unroutable::NotIp => "not an IP packet",
        Unroutable::Malformed => "its header is wrong",
        Unroutable::Options => "it has options that a router must look at",
        Unroutable::Address => "one of its addresses is never forwarded",
    }
}

/// What of a router a packet matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Its destination.
    Prefix(Prefix),
    /// Its destination and the machine that sent its frame: this address, from that one.
    Exact(IpAddr, Mac),
    /// All of it; its addresses and ports are these then.
    Connection(Tuple),
}

/// A step of a packet, as [`Snapshot::explain`] tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frame came in there, and the switch decided this.
    Switched(PortId, Verdict),
    /// It bypassed a router.
    Bypassed {
        /// The router.
        router: RouterId,
        /// Number of the interface it would have come to.
        ingress: usize,
        /// What was delegated.
        by: By,
        /// By which route.
        route: RouteId,
        /// Number of the hop of the route.
        hop: usize,
        /// Number of the interface the router would have sent it from.
        egress: usize,
        /// New source and destination address.
        addresses: (Mac, Mac),
        /// Where the frame is then.
        port: PortId,
    },
    /// It goes to this router.
    ToRouter(RouterId, NotBypassed),
    /// With these routers bypassed it leaves by this port.
    Leaves(PortId),
}

/// Where a frame is: behind which port, with which tag, for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) port: PortId,
    pub(crate) tag: Option<u16>,
    /// Who sent its frame, and to whom.
    pub(crate) from: Mac,
    pub(crate) mac: Mac,
}

/// One hop of a route of a router: what is counted.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) router: RouterId,
    pub(crate) hop: u16,
    pub(crate) route: RouteId,
    /// It was of this connection.
    pub(crate) connection: Option<Arc<Connection>>,
}

/// What a way depends on, besides the frame: of a packet as it is after so many routers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) version: Version,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// If it may be of a connection, and there are any.
    pub(crate) tuple: Option<Tuple>,
    /// The same for all packets of a flow, if some router has several ways.
    pub(crate) hash: u32,
}

impl Flow {
    /// Of a packet as it came.
    #[inline]
    pub(crate) fn of(tells: Tells, head: &[u8], packet: Packet, offload: &Checked) -> Self {
        let (source, destination) = (packet.source(head), packet.destination(head));
        let version = packet.version();
        let tuple = if tells.connections { packet.tuple(head, offload) } else { None };
        let hash = if tells.flows { packet::flow_hash(head) } else { 0 };
        Self { version, source, destination, tuple, hash }
    }
}

/// A way through routers, as it was worked out.
pub(crate) struct Way {
    pub(crate) routed: Routed,
    /// What becomes of the packet's addresses and ports.
    pub(crate) translated: Option<Tuple>,
    pub(crate) path: Path,
}

/// All that were taken.
pub(crate) type Path = ArrayVec<Taken, { Snapshot::BYPASSED_MAX }>;

/// A router that was passed.
struct Pass<'a> {
    taken: Taken,
    /// It was delegated for this machine alone.
    exact: Option<Mac>,
    ingress: usize,
    egress: usize,
    interface: &'a RouterInterface,
    /// Where the packet is then.
    at: At,
    /// What it has become.
    flow: Flow,
}

impl Routed {
    /// Whether every router on the way would have sent the packet on.
    #[inline]
    pub(crate) fn takes(&self, packet: Packet) -> bool {
        packet.hops() > self.routers && packet.fits(self.mtu as usize)
    }
}

impl Router {
    fn route(&self, address: IpAddr) -> Option<(RouteId, &RouteEntry)> {
        let number = self.table(address.is_ipv4()).look_up(address);
        let entry = self.routes.get((number as usize).checked_sub(1)?)?;
        entry.as_deref().map(|entry| (RouteId(number), entry))
    }

    /// Whether it forwards packets from this source that came by this interface.
    fn takes(&self, source: IpAddr, number: usize, check: SourceCheck) -> bool {
        match (check, self.route(source).map(|(_, entry)| &entry.route)) {
            (SourceCheck::Closed, _) | (_, Some(Route::Own)) => false,
            (SourceCheck::Off, _) => true,
            (SourceCheck::Loose, route) => route.is_some(),
            (SourceCheck::Strict, Some(Route::Via(hops))) => {
                hops.iter().any(|hop| hop.interface == number)
            }
            (SourceCheck::Strict, None) => false,
        }
    }
}

impl Snapshot {
    /// The most routers that one packet bypasses at once.
    pub const BYPASSED_MAX: usize = 16;

    /// The way of a packet, and what it takes.
    pub(crate) fn way(&self, arrival: &Arrival<'_>, now_ms: u64, held: &mut Held) -> Way {
        let Arrival { to: (port, edit), head, packet, offload, tells, .. } = *arrival;
        let mut way = Way { routed: Routed::default(), translated: None, path: Path::new() };
        let Some((mac, from)) = addresses(head) else { return way };
        let tag = tag(head);
        let tagged = tag.is_some();
        let mut at = At { port, tag: after(edit, tag), from, mac };
        let mut flow = Flow::of(tells, head, packet, offload);
        let mut mtu = u32::MAX;
        while !way.path.is_full()
            && let Some(Ok(pass)) = self.pass(at, &flow, now_ms, held)
        {
            if pass.taken.connection.is_some() {
                way.translated = pass.flow.tuple;
            }
            way.path.push(pass.taken);
            mtu = mtu.min(pass.interface.mtu);
            (at, flow) = (pass.at, pass.flow);
            let edit = match (tagged, at.tag) {
                (false, None) => VlanEdit::Keep,
                (false, Some(vid)) => VlanEdit::Push(Tci(vid)),
                (true, None) => VlanEdit::Pop,
                (true, Some(vid)) => VlanEdit::Set(Tci(vid)),
            };
            let (source, destination) = (pass.interface.mac, at.mac);
            let routers = way.path.len() as u8;
            way.routed =
                Routed { macs: Macs::new(source, destination), port: at.port, edit, routers, mtu };
        }
        way
    }

    /// Through one router; `None`: there is none.
    fn pass(
        &self,
        at: At,
        flow: &Flow,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<Result<Pass<'_>, NotBypassed>> {
        let id = self.port(at.port)?.router?;
        let router = self.router(id)?;
        Some(self.pass_router((id, router), at, flow, now_ms, held))
    }

    fn pass_router<'a>(
        &'a self,
        (id, router): (RouterId, &'a Router),
        at: At,
        flow: &Flow,
        now_ms: u64,
        held: &mut Held,
    ) -> Result<Pass<'a>, NotBypassed> {
        if !router.bypass {
            return Err(NotBypassed::Off);
        }
        let ours = |interface: &RouterInterface| {
            interface.port == at.port && interface.vlan == at.tag && interface.mac == at.mac
        };
        let ingress = router.interfaces.iter().position(ours).ok_or(NotBypassed::Interface)?;
        if router.lost.contains(&at.port) {
            return Err(NotBypassed::Lost);
        }
        let mut flow = *flow;
        let mut exact = None;
        let connection = flow.tuple.and_then(|tuple| router.connection(&tuple, ingress));
        let (number, entry) = match &connection {
            Some(connection) => {
                let to = connection.to;
                flow = Flow {
                    source: to.source,
                    destination: to.destination,
                    tuple: Some(to),
                    ..flow
                };
                let entry = router.entry(connection.route).map(|entry| &**entry);
                (connection.route, entry.ok_or(NotBypassed::NoNextHop)?)
            }
            None if let Some(found) = router.exact_route(flow.destination, at.from) => {
                exact = Some(at.from);
                found
            }
            None => {
                let check = router.interfaces.get(ingress).map(|interface| match flow.version {
                    Version::V4 => interface.check,
                    Version::V6 => interface.check_v6,
                });
                if !router.takes(flow.source, ingress, check.unwrap_or_default()) {
                    return Err(NotBypassed::Source);
                }
                router.route(flow.destination).ok_or(NotBypassed::NoRoute)?
            }
        };
        let Route::Via(hops) = &entry.route else { return Err(NotBypassed::Own) };
        let chosen = (u64::from(flow.hash) * hops.len() as u64) >> 32;
        let hop = hops.get(chosen as usize).ok_or(NotBypassed::NoNextHop)?;
        // Back to where it came from: the router may want to tell the sender (ICMP redirect).
        if hop.interface == ingress {
            return Err(NotBypassed::Redirect);
        }
        let interface = router.interfaces.get(hop.interface).ok_or(NotBypassed::NoNextHop)?;

        // As if it came from the router now.
        let down = NotBypassed::Dropped(DropReason::PortDown);
        let from = self.port(interface.port).filter(|port| port.up).ok_or(down)?;
        if router.lost.contains(&interface.port) {
            return Err(NotBypassed::Lost);
        }
        let (dst, src) = (hop.mac, interface.mac);
        let ruled = |port: &Port| port.rules.is_some();
        if ruled(from) || self.port(at.port).is_some_and(ruled) {
            return Err(NotBypassed::Guarded);
        }
        let checked = from.guard.as_ref().is_some_and(|guard| !guard.passes_all_from(src));
        if checked || from.priority().is_some() {
            return Err(NotBypassed::Guarded);
        }
        let tag = interface.vlan.map(Tci);
        let class = from.classify(&Eth { dst, src, tag, ethertype: ETH_P_IP });
        let class = class.ok_or(NotBypassed::Dropped(DropReason::VlanNotAllowed))?;
        let key = fdb::key(class.fid, src);
        let (table, _) = from.observe(interface.port, held, key, now_ms);
        let to = fdb::lookup(table, fdb::key(class.fid, dst)).ok_or(NotBypassed::Unknown)?;
        let (port, edit) = match self.unicast(interface.port, from, class, to) {
            Some(Verdict::Forward { port, edit } | Verdict::Router { port, edit }) => (port, edit),
            Some(Verdict::Drop(reason)) => return Err(NotBypassed::Dropped(reason)),
            Some(Verdict::Flood(_)) | None => return Err(NotBypassed::Unknown),
        };
        let tag = after(edit, interface.vlan);
        let taken = Taken { router: id, hop: chosen as u16, route: number, connection };
        let at = At { port, tag, from: src, mac: dst };
        Ok(Pass { taken, exact, ingress, egress: hop.interface, interface, at, flow })
    }

    /// What becomes of a frame from a port, step by step: `head` is its beginning, and `packet` what
    /// is in it. Nothing is learned from it.
    pub fn explain(
        &self,
        in_port: PortId,
        head: &[u8],
        packet: Result<Packet, Unroutable>,
        offload: &Checked,
    ) -> Vec<Step> {
        // Nothing is noted, and so no time.
        let (held, now_ms) = (&mut Held::to_ask(), 0);
        if let Some(Err(reason)) = self.guard(in_port).map(|guard| guard.check(head)) {
            return vec![Step::Switched(in_port, Verdict::Drop(reason))];
        }
        let verdict = self.decide(in_port, head, now_ms, held).verdict;
        let mut steps = vec![Step::Switched(in_port, verdict)];
        let Verdict::Router { port, edit } = verdict else { return steps };
        let Some((mac, from)) = addresses(head) else { return steps };
        let Some(first) = self.port(port).and_then(|port| port.router) else { return steps };
        let packet = match packet {
            Ok(packet) => packet,
            Err(why) => {
                steps.push(Step::ToRouter(first, NotBypassed::Packet(why)));
                return steps;
            }
        };
        let tells = self.domain(in_port).map(Domain::tells).unwrap_or_default();
        let mut flow = Flow::of(tells, head, packet, offload);
        let mut at = At { port, tag: after(edit, tag(head)), from, mac };
        let (mut routers, mut mtu) = (0, u32::MAX);
        loop {
            let pass = match self.pass(at, &flow, now_ms, held) {
                Some(Ok(pass)) => pass,
                Some(Err(why)) => {
                    let id = self.port(at.port).and_then(|port| port.router).unwrap_or(first);
                    steps.push(Step::ToRouter(id, why));
                    break;
                }
                None => break,
            };
            if routers == Self::BYPASSED_MAX {
                steps.push(Step::ToRouter(pass.taken.router, NotBypassed::TooMany));
                break;
            }
            routers += 1;
            mtu = mtu.min(pass.interface.mtu);
            at = pass.at;
            let by = match (&pass.taken.connection, pass.exact) {
                (Some(connection), _) => By::Connection(connection.to),
                (None, Some(from)) => By::Exact(flow.destination, from),
                (None, None) => {
                    let router = self.router(pass.taken.router);
                    let lpm = router.map(|router| router.table(flow.destination.is_ipv4()));
                    let Some((prefix, _)) = lpm.and_then(|lpm| lpm.find(flow.destination)) else {
                        break;
                    };
                    By::Prefix(prefix)
                }
            };
            flow = pass.flow;
            steps.push(Step::Bypassed {
                router: pass.taken.router,
                ingress: pass.ingress,
                by,
                route: pass.taken.route,
                hop: pass.taken.hop.into(),
                egress: pass.egress,
                addresses: (pass.interface.mac, at.mac),
                port: at.port,
            });
        }
        if routers > 0 {
            let all = if usize::from(packet.hops()) <= routers {
                Err(NotBypassed::Hops)
            } else if !packet.fits(mtu as usize) {
                Err(NotBypassed::Mtu)
            } else {
                Ok(Step::Leaves(at.port))
            };
            steps.push(all.unwrap_or_else(|why| Step::ToRouter(first, why)));
        }
        steps
    }
}

/// Whom a frame is for, and from whom.
fn addresses(head: &[u8]) -> Option<(Mac, Mac)> {
    let (to, rest) = head.split_first_chunk()?;
    Some((Mac(*to), Mac(*rest.first_chunk()?)))
}

/// The tag of a frame, if it has one.
pub(crate) fn tag(head: &[u8]) -> Option<u16> {
    packet::eth::vlan_tag(head).map(Tci::vid)
}

/// The tag after an edit.
pub(crate) fn after(edit: VlanEdit, tag: Option<u16>) -> Option<u16> {
    match edit {
        VlanEdit::Keep => tag,
        VlanEdit::Push(tci) | VlanEdit::Set(tci) => Some(tci.vid()),
        VlanEdit::Pop => None,
    }
}
