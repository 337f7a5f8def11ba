//! Networks and ports: what control changes and workers read as a snapshot.

mod flood;
mod port;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use packet::Mac;
use packet::eth::Eth;
use parking_lot::Mutex;

use crate::error::SwitchError;
use crate::fdb::{self, Fdb, FdbEntry, Held, NetworkStats, Observed, Watch};
use crate::router::{Router, RouterId};
use crate::rules::PortRules;
use crate::vlan::{Class, Egress, VID_MAX, VlanMode};
use crate::{DropReason, Flood, Guard, NetworkId, PortId, Verdict};
pub use flood::{FloodMember, FloodMembers};
pub(crate) use port::Port;

/// A network's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Addresses learned at most; frames from more are forwarded, and their sources not learned.
    pub mac_limit: usize,
    /// After this long without a frame an address is forgotten (to the second).
    pub mac_age: Duration,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self { mac_limit: 8192, mac_age: Duration::from_secs(300) }
    }
}

/// A port's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The network it belongs to, for good.
    pub network: NetworkId,
    /// How it treats tags.
    pub vlan: VlanMode,
    /// Addresses learned behind it at most; `None`: as many as the network's limit.
    pub mac_limit: Option<usize>,
}

/// The switch: see the crate.
#[derive(Debug)]
pub struct Switch {
    pub(crate) config: Arc<ArcSwap<Snapshot>>,
    generations: Arc<AtomicU64>,
    /// Version of the configuration in force.
    latest: Arc<AtomicU64>,
    pub(crate) control: Mutex<Control>,
}

/// Where numbers are handed out from next.
#[derive(Debug, Default)]
pub(crate) struct Control {
    next_port: usize,
    next_network: usize,
    pub(crate) next_router: usize,
}

/// The configuration at one time. A worker keeps to one for a burst.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    version: u64,
    latest: Arc<AtomicU64>,
    pub(crate) ports: Vec<Option<Port>>,
    pub(crate) networks: Vec<Option<Arc<Network>>>,
    pub(crate) routers: Vec<Option<Arc<Router>>>,
    /// Some port has rules for what is delivered to it.
    judges: bool,
}

#[derive(Debug)]
pub(crate) struct Network {
    /// Version of the configuration that made this one.
    version: u64,
    pub(crate) fdb: Arc<Fdb>,
    /// Ports in one VLAN only, as (VLAN, port), ascending; up.
    narrow: Box<[(u16, PortId)]>,
    /// The other ports, ascending; up.
    wide: Box<[(PortId, VlanMode)]>,
    /// Ports that get frames to their own address and to groups only, ascending.
    picky: Box<[(PortId, Mac)]>,
}

/// A worker's way to the configuration: costs a comparison while that stays the same.
#[derive(Debug)]
pub struct Reader(arc_swap::Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>);

impl Reader {
    /// The configuration now.
    #[inline]
    pub fn snapshot(&mut self) -> &Snapshot {
        self.0.load()
    }
}

/// A verdict, and whether and since when it may be remembered.
pub(crate) struct Decision {
    pub(crate) verdict: Verdict,
    /// Stamp of the source, if a worker may remember the verdict.
    pub(crate) remember: Option<u32>,
}

impl From<Verdict> for Decision {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, remember: None }
    }
}

impl Default for Switch {
    fn default() -> Self {
        Self::new()
    }
}

impl Switch {
    /// Port numbers are below this.
    pub const PORTS_MAX: usize = 4096;
    /// Network numbers are below this.
    pub const NETWORKS_MAX: usize = 4096;

    /// Without networks.
    pub fn new() -> Self {
        let first = Snapshot::default();
        Self {
            generations: Arc::default(),
            latest: Arc::clone(&first.latest),
            config: Arc::new(ArcSwap::from_pointee(first)),
            control: Mutex::default(),
        }
    }

    /// The configuration now.
    #[inline]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.config.load_full()
    }

    /// The same for a worker, which asks again and again.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(arc_swap::Cache::new(Arc::clone(&self.config)))
    }

    /// A new network without ports.
    pub fn add_network(&self, settings: NetworkConfig) -> Result<NetworkId, SwitchError> {
        let mut control = self.control.lock();
        let mut config = self.next_config();
        let index = free_place(&mut config.networks, &mut control.next_network, Self::NETWORKS_MAX)
            .ok_or(SwitchError::TooManyNetworks)?;
        let fdb = Fdb::new(&self.generations, settings.mac_limit, millis(settings.mac_age));
        let network = Network {
            version: config.version,
            fdb: Arc::new(fdb),
            narrow: Box::default(),
            wide: Box::default(),
            picky: Box::default(),
        };
        if let Some(place) = config.networks.get_mut(index) {
            *place = Some(Arc::new(network));
        }
        self.put_into_force(config);
        Ok(NetworkId(index as u16))
    }

    /// Other settings for a network. A lower limit removes nothing.
    pub fn set_network(&self, id: NetworkId, settings: NetworkConfig) -> Result<(), SwitchError> {
        let _control = self.control.lock();
        let fdb = self.fdb_of(id)?;
        fdb.set_limits(settings.mac_limit, millis(settings.mac_age));
        Ok(())
    }

    /// Removes a network that has no ports.
    pub fn remove_network(&self, id: NetworkId) -> Result<(), SwitchError> {
        let _control = self.control.lock();
        let mut config = self.next_config();
        if config.ports.iter().flatten().any(|port| port.network == id) {
            return Err(SwitchError::NetworkInUse(id));
        }
        let place = config.networks.get_mut(usize::from(id.0));
        place.and_then(Option::take).ok_or(SwitchError::NoSuchNetwork(id))?;
        self.put_into_force(config);
        Ok(())
    }

    /// Pins an address (in a VLAN, or untagged) to a port: never aged, moved or counted against a
    /// limit. A learned entry is replaced. While the port is down frames to it are dropped.
    pub fn add_static(&self, mac: Mac, vlan: Option<u16>, port: PortId) -> Result<(), SwitchError> {
        if mac.is_multicast() || mac.is_zero() {
            return Err(SwitchError::NotUnicast(mac));
        }
        let _control = self.control.lock();
        let config = self.config.load();
        let to = config.port(port).ok_or(SwitchError::NoSuchPort(port))?;
        let pinned = to.fdb.pin(fdb::key(fid(vlan)?, mac), port);
        pinned.then_some(()).ok_or(SwitchError::TooManyStatic(to.network))
    }

    /// Releases a pinned address.
    pub fn remove_static(
        &self,
        network: NetworkId,
        mac: Mac,
        vlan: Option<u16>,
    ) -> Result<(), SwitchError> {
        let _control = self.control.lock();
        let released = self.fdb_of(network)?.unpin(fdb::key(fid(vlan)?, mac));
        released.then_some(()).ok_or(SwitchError::NotStatic(mac))
    }

    /// Forgets what was learned behind a port; returns how many addresses that were.
    pub fn flush_port(&self, id: PortId) -> Result<u64, SwitchError> {
        let _control = self.control.lock();
        let config = self.config.load();
        let port = config.port(id).ok_or(SwitchError::NoSuchPort(id))?;
        Ok(port.fdb.flush(Some(id)))
    }

    /// Forgets everything that was learned in a network; returns how many addresses that were.
    pub fn flush_network(&self, id: NetworkId) -> Result<u64, SwitchError> {
        let _control = self.control.lock();
        Ok(self.fdb_of(id)?.flush(None))
    }

    /// Ages all MAC tables and keeps them tidy; call it about once a second. Returns how many
    /// addresses were aged out.
    pub fn maintain(&self, now_ms: u64) -> u64 {
        let config = self.config.load_full();
        config.networks.iter().flatten().map(|network| network.fdb.maintain(now_ms)).sum()
    }

    /// The MAC table of a network, by VLAN and address.
    pub fn fdb(&self, id: NetworkId, now_ms: u64) -> Result<Vec<FdbEntry>, SwitchError> {
        Ok(self.fdb_of(id)?.entries(now_ms))
    }

    /// What happened to the MAC table of a network.
    pub fn network_stats(&self, id: NetworkId) -> Result<NetworkStats, SwitchError> {
        Ok(self.fdb_of(id)?.stats())
    }

    fn fdb_of(&self, id: NetworkId) -> Result<Arc<Fdb>, SwitchError> {
        let config = self.config.load();
        let network = config.network(id).ok_or(SwitchError::NoSuchNetwork(id))?;
        Ok(Arc::clone(&network.fdb))
    }

    pub(crate) fn next_config(&self) -> Snapshot {
        let mut config = Snapshot::clone(&self.config.load());
        config.version += 1;
        config
    }

    /// First step of every change of the configuration. What was worked out by the one before is not
    /// remembered from here on; what is remembered of it counts until the generation changes.
    pub(crate) fn put_into_force(&self, config: Snapshot) {
        let version = config.version;
        self.config.store(Arc::new(config));
        self.latest.store(version, Ordering::Release);
    }

    /// Puts it into force with another router of this number: networks in which a port became a
    /// router's, or no longer is one, forget their verdicts, and what is remembered of ways that it
    /// has a part in counts no more.
    pub(crate) fn put_router_into_force(&self, mut config: Snapshot, id: RouterId) {
        let changed = config.own_ports();
        let before = self.config.load_full();
        let over = config.part(|| self.number());
        let version = config.version;
        for (id, fdb) in &changed {
            config.rebuild(*id, fdb);
        }
        self.put_into_force(config);
        for (_, fdb) in &changed {
            fdb.reconfigured(version);
        }
        for domain in over {
            domain.renew(self.number());
        }
        self.forget_ways(&before, id);
        self.forget_ways(&self.config.load(), id);
    }

    /// What is remembered of ways that a router has a part in counts no more.
    pub(crate) fn forget_ways(&self, config: &Snapshot, id: RouterId) {
        if let Some(domain) = config.domain_of(id) {
            domain.renew(self.number());
        }
    }

    /// One that no generation had before.
    fn number(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Snapshot {
    /// Is this the configuration in force? Asked after something is worked out with it.
    #[inline]
    pub(crate) fn is_latest(&self) -> bool {
        self.latest.load(Ordering::Acquire) == self.version
    }

    #[inline]
    pub(crate) fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(id.index())?.as_ref()
    }

    /// For [`Cache::destination`](crate::Cache::destination) of announced frames. `None`: there is no such port.
    #[inline]
    pub fn watch(&self, id: PortId) -> Option<Watch<'_>> {
        Some(self.port(id)?.fdb.watch())
    }

    fn network(&self, id: NetworkId) -> Option<&Network> {
        self.networks.get(usize::from(id.0))?.as_deref()
    }

    /// Computes what floods need to know of a network.
    fn rebuild(&mut self, id: NetworkId, fdb: &Arc<Fdb>) {
        let mut narrow = Vec::new();
        let mut wide = Vec::new();
        let mut picky = Vec::new();
        let ports = self.ports.iter().enumerate();
        for (index, port) in ports.filter_map(|(index, port)| Some((index, port.as_ref()?))) {
            let number = PortId(index as u16);
            if port.network == id
                && let Some(only) = port.only
            {
                picky.push((number, only));
            }
            match &port.vlan {
                _ if port.network != id || !port.up => {}
                VlanMode::Access(vid) => narrow.push((*vid, number)),
                other => wide.push((number, other.clone())),
            }
        }
        narrow.sort_unstable();
        let network = Network {
            version: self.version,
            fdb: Arc::clone(fdb),
            narrow: narrow.into(),
            wide: wide.into(),
            picky: picky.into(),
        };
        if let Some(place) = self.networks.get_mut(usize::from(id.0)) {
            *place = Some(Arc::new(network));
        }
    }

    /// What every frame from a port has to pass before it is looked up, if the port's owner
    /// enforces anything of the sort ([`Switch::set_policy`]).
    #[inline]
    pub fn guard(&self, port: PortId) -> Option<&Guard> {
        self.port(port)?.guard.as_deref()
    }

    /// All there is to know about who sends: the port's [guard](Self::guard), its [rules](Self::rules) and its
    /// [watch](Self::watch).
    #[inline]
    pub fn sender(&self, port: PortId) -> (Option<&Guard>, Option<&PortRules>, Option<Watch<'_>>) {
        match self.port(port) {
            Some(port) => (port.guard.as_deref(), port.rules.as_deref(), Some(port.fdb.watch())),
            None => (None, None, None),
        }
    }

    /// Whether a port is there and up.
    pub fn is_up(&self, port: PortId) -> bool {
        self.port(port).is_some_and(|port| port.up)
    }

    /// The rules of a port, if it has any.
    #[inline]
    pub fn rules(&self, port: PortId) -> Option<&PortRules> {
        self.port(port)?.rules.as_deref()
    }

    /// Whether any port has rules: only then frames are to be judged before they are delivered.
    #[inline(always)]
    pub fn has_rules(&self) -> bool {
        self.judges
    }

    /// The verdict on a frame, worked out in full; learns its source. What [`crate::Cache`] does
    /// when it does not remember.
    pub fn lookup(&self, in_port: PortId, head: &[u8], now_ms: u64) -> Verdict {
        self.decide(in_port, head, now_ms, &mut Held::default()).verdict
    }

    pub(crate) fn decide(
        &self,
        in_port: PortId,
        head: &[u8],
        now_ms: u64,
        held: &mut Held,
    ) -> Decision {
        let drop = |reason| Decision::from(Verdict::Drop(reason));
        let Some(port) = self.port(in_port).filter(|port| port.up) else {
            return drop(DropReason::PortDown);
        };
        let Some(eth) = Eth::parse(head) else { return drop(DropReason::Runt) };
        if eth.src.is_multicast() || eth.src.is_zero() {
            return drop(DropReason::SrcMacInvalid);
        }
        if eth.dst.is_reserved() {
            return drop(DropReason::ReservedMulticast);
        }
        let Some(class) = port.classify(&eth) else {
            return drop(DropReason::VlanNotAllowed);
        };
        let key = fdb::key(class.fid, eth.src);
        let (table, observed) = port.observe(in_port, held, key, now_ms);
        let destination = match observed {
            // It may have been learned just now, and into a newer table.
            Observed::Known(_) if eth.dst == eth.src => Some(in_port),
            _ if eth.dst.is_multicast() => None,
            _ => fdb::lookup(table, fdb::key(class.fid, eth.dst)),
        };
        if let Some(to) = destination
            && let Some(verdict) = self.unicast(in_port, port, class, to)
        {
            let remember = match observed {
                Observed::Known(stamp) => Some(stamp),
                Observed::Refused => Some(now_ms as u32),
                Observed::Again => None,
            };
            let latest = self.network(port.network).is_some_and(|n| port.fdb.is_latest(n.version));
            return Decision { verdict, remember: remember.filter(|_| latest) };
        }
        let flood = Flood { in_port, class };
        if self.flood(flood, eth.dst).next().is_none() {
            return drop(DropReason::NoDestination);
        }
        Verdict::Flood(flood).into()
    }

    /// The verdict if the destination is behind port `number`; `None` if that cannot be.
    #[inline(always)]
    pub(crate) fn unicast(
        &self,
        in_port: PortId,
        from: &Port,
        class: Class,
        number: PortId,
    ) -> Option<Verdict> {
        if number == in_port {
            return Some(Verdict::Drop(DropReason::SamePort));
        }
        // The table may be newer than this snapshot: the port may be none, or another's by now.
        let to = self.port(number).filter(|to| Arc::ptr_eq(&to.fdb, &from.fdb))?;
        match to.vlan.egress(class) {
            Egress::NotMember => None,
            Egress::Uncovers => Some(Verdict::Drop(DropReason::VlanNotAllowed)),
            Egress::Edit(_) if !to.up => Some(Verdict::Drop(DropReason::PortDown)),
            Egress::Edit(edit) if to.router.is_some() => {
                Some(Verdict::Router { port: number, edit })
            }
            Egress::Edit(edit) => Some(Verdict::Forward { port: number, edit }),
        }
    }
}

/// The first free place from `next` on, around; makes one if there is none.
pub(crate) fn free_place<T>(
    places: &mut Vec<Option<T>>,
    next: &mut usize,
    max: usize,
) -> Option<usize> {
    let index = (0..max)
        .map(|step| (*next + step) % max)
        .find(|index| places.get(*index).is_none_or(Option::is_none))?;
    if index >= places.len() {
        places.resize_with(index + 1, || None);
    }
    *next = (index + 1) % max;
    Some(index)
}

/// FID of an optional VLAN id.
fn fid(vlan: Option<u16>) -> Result<u16, SwitchError> {
    match vlan {
        None => Ok(0),
        Some(vid) if (1..=VID_MAX).contains(&vid) => Ok(vid),
        Some(vid) => Err(SwitchError::BadVlan(vid)),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
