//! Guest channels of VMs, and the routers behind them.

use super::guests::VmPorts;
use super::{Failure, RETRY, Registry, Vm, host, not_found};
use crate::daemon::channel::{Channel, Router};
use api::channel::{Flow, Limits, Refusal, Selector, To};
use api::{
    Error, ErrorCode, Name, Origin, RouterConnections, RouterDetail, RouterPrefixes, VmConfig,
};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tracing::{info, warn};

/// Interfaces of one router at most: so many the switch allows.
const INTERFACES_MAX: u32 = 256;
/// Prefixes, or connections, shown at once.
const SHOWN: usize = 10_000;

/// A VM's guest channel.
pub(super) struct GuestChannel {
    pub(super) router: Arc<Router>,
    open: Result<Channel, Failure>,
}

impl GuestChannel {
    pub(super) async fn close(self) {
        if let Ok(channel) = self.open {
            channel.close().await;
        }
    }
}

impl Registry {
    /// Opens the guest channel of a VM, if it is to have one.
    pub(super) fn open_channel(
        &self,
        name: &Name,
        config: &VmConfig,
        bypass: bool,
    ) -> Option<GuestChannel> {
        let path = config.channel.as_deref()?;
        let limits = Limits {
            interfaces: INTERFACES_MAX,
            nexthops: config.nexthops_max,
            prefixes: config.prefixes_max,
            connections: config.connections_max,
        };
        let (vm, plane) = (name.clone(), self.plane.clone());
        let ports = VmPorts {
            vm: vm.clone(),
            plane: plane.clone(),
            tables: self.tables.clone(),
            changing: self.changing.clone(),
            store: self.store.clone(),
            books: self.books.clone(),
        };
        let router = Arc::new(Router::new(vm, limits, bypass, plane, ports));
        let open = self.listen(name, path, &router).map_err(Failure::now);
        Some(GuestChannel { router, open })
    }

    fn listen(&self, name: &Name, path: &Path, router: &Arc<Router>) -> Result<Channel, String> {
        let channel =
            Channel::open(path, router.clone()).map_err(
                |error| match std::error::Error::source(&error) {
                    Some(cause) => format!("{error}: {cause}"),
                    None => error.to_string(),
                },
            )?;
        if let Some(group) = self.vhost_group
            && let Err(error) = super::ports::share(path, group)
        {
            warn!("vm {name}: the group cannot be given {}: {error}", path.display());
        }
        Ok(channel)
    }

    /// A guest channel for a new VM; it must open.
    pub(super) fn new_channel(
        &self,
        name: &Name,
        config: &VmConfig,
    ) -> Result<Option<GuestChannel>, Error> {
        let channel = self.open_channel(name, config, true);
        if let Some(GuestChannel { open: Err(failure), .. }) = &channel {
            return Err(Error::new(ErrorCode::Host, format!("channel: {}", failure.reason)));
        }
        Ok(channel)
    }

    /// Opens the channels of VMs that were there before; their ports are open by now.
    pub(super) fn restore_channels(&self, bypass_off: &BTreeSet<Name>) {
        let mut tables = self.tables.write();
        for (name, vm) in &mut tables.vms {
            vm.bypass = !bypass_off.contains(name);
            vm.channel = self.open_channel(name, &vm.config, vm.bypass);
            if let Some(GuestChannel { open: Err(failure), .. }) = &vm.channel {
                warn!(
                    "vm {name}: its channel cannot be opened and is tried again: {}",
                    failure.reason
                );
            }
        }
    }

    /// Tries channels again that could not be opened, forever.
    pub(crate) async fn retry_channels(&self) {
        loop {
            tokio::time::sleep(RETRY).await;
            let _changing = self.changing.lock().await;
            let mut tables = self.tables.write();
            for (name, vm) in &mut tables.vms {
                let (Some(path), Some(channel)) = (&vm.config.channel, &mut vm.channel) else {
                    continue;
                };
                let Err(failure) = &channel.open else { continue };
                match self.listen(name, path, &channel.router) {
                    Ok(open) => {
                        info!("vm {name}: its channel is open");
                        channel.open = Ok(open);
                    }
                    // The same reason is not newer.
                    Err(reason) if reason == failure.reason => {}
                    Err(reason) => channel.open = Err(Failure::now(reason)),
                }
            }
        }
    }

    /// Lets a router be bypassed or not, over restarts too.
    pub(crate) async fn set_bypass(&self, name: &Name, bypass: bool) -> Result<api::Router, Error> {
        let _changing = self.changing.lock().await;
        let (_, router, before) = self.router_of(name)?;
        self.note_bypass(name, bypass);
        if let Err(error) = self.save().await {
            self.note_bypass(name, before);
            return Err(error);
        }
        router.set_bypass(bypass).await.map_err(|error| host(&error))?;
        info!("router {name}: bypass {}", if bypass { "on" } else { "off" });
        Ok(self.router(name)?.router)
    }

    fn note_bypass(&self, name: &Name, bypass: bool) {
        if let Some(vm) = self.tables.write().vms.get_mut(name) {
            vm.bypass = bypass;
        }
    }

    /// The view that needs no look at the router, the router, and whether it may be bypassed.
    fn router_of(&self, name: &Name) -> Result<(Socket, Arc<Router>, bool), Error> {
        let tables = self.tables.read();
        let vm = tables.vms.get(name).ok_or_else(|| not_found("vm", name))?;
        let (socket, router) = vm.router().ok_or_else(|| {
            Error::new(ErrorCode::NotFound, format!("vm {name} has no guest channel"))
                .hint("`hayate vm add NAME --channel PATH` makes a VM with one")
        })?;
        Ok((socket, router, vm.bypass))
    }

    /// The routers of all VMs that have one. A channel's task looks at the tables while it holds its
    /// router, so nobody may do it the other way round.
    pub(super) fn router_handles(&self) -> Vec<(Name, Arc<Router>)> {
        let tables = self.tables.read();
        let vms = tables.vms.iter();
        vms.filter_map(|(name, vm)| Some((name.clone(), vm.channel.as_ref()?.router.clone())))
            .collect()
    }

    /// All routers, by VM.
    pub(crate) fn routers(&self) -> Vec<api::Router> {
        let tables = self.tables.read();
        let routers = tables.vms.iter();
        let routers = routers.filter_map(|(name, vm)| Some((name.clone(), vm.router()?)));
        let routers: Vec<_> = routers.collect();
        // A channel's task looks at the tables while it holds its router.
        drop(tables);
        routers.iter().map(|(name, (socket, router))| view(name, socket, router)).collect()
    }

    pub(crate) fn router(&self, name: &Name) -> Result<RouterDetail, Error> {
        let (socket, router, _) = self.router_of(name)?;
        Ok(detail(view(name, &socket, &router), &router))
    }

    /// Prefixes of a router, those behind `after`.
    pub(crate) fn prefixes(
        &self,
        name: &Name,
        after: Option<Selector>,
    ) -> Result<RouterPrefixes, Error> {
        let (_, router, _) = self.router_of(name)?;
        let state = router.state();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = state.session.delegation().prefixes().range((from, Bound::Unbounded));
        let some = rest.by_ref().take(SHOWN);
        let prefixes =
            some.map(|(prefix, nexthop)| api::RouterPrefix { prefix: *prefix, nexthop: *nexthop });
        let prefixes = prefixes.collect();
        Ok(RouterPrefixes { prefixes, more: rest.next().is_some() })
    }

    /// Connections of a router, those behind `after`.
    pub(crate) fn connections(
        &self,
        name: &Name,
        after: Option<Flow>,
    ) -> Result<RouterConnections, Error> {
        let (_, router, _) = self.router_of(name)?;
        let state = router.state();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = state.session.delegation().connections().range((from, Bound::Unbounded));
        let some = rest.by_ref().take(SHOWN).map(|(flow, known)| api::RouterConnection {
            flow: *flow,
            interface: known.interface,
            to: known.to,
            nexthop: known.nexthop,
            count: state.router.connection_count(flow),
        });
        let connections = some.collect();
        Ok(RouterConnections { connections, more: rest.next().is_some() })
    }
}

/// Where a channel is, and why not, if it is not.
struct Socket(std::path::PathBuf, Option<String>);

impl Vm {
    /// One whose channel, if it has one, is not open yet.
    pub(super) fn closed(config: &VmConfig, origin: Origin) -> Self {
        Self { config: config.clone(), origin, bypass: true, channel: None }
    }

    fn router(&self) -> Option<(Socket, Arc<Router>)> {
        let (path, channel) = (self.config.channel.clone()?, self.channel.as_ref()?);
        let failure = channel.open.as_ref().err().map(|failure| failure.reason.clone());
        Some((Socket(path, failure), channel.router.clone()))
    }
}

fn view(vm: &Name, Socket(socket, failure): &Socket, router: &Router) -> api::Router {
    let state = router.state();
    let (session, delegation) = (&state.session, state.session.delegation());
    let left = session.deadline().map(|end| end.saturating_duration_since(Instant::now()));
    let total = state.router.total();
    let refusals = session.refusals().map(|(reason, n)| (reason.name().to_owned(), n));
    api::Router {
        vm: vm.clone(),
        socket: socket.clone(),
        failure: failure.clone(),
        connected: state.connected,
        agent: session.agent().map(str::to_owned),
        policy: session.status().map(|status| status.policy).unwrap_or_default(),
        bypass: state.router.bypass(),
        lease_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        interfaces: delegation.interfaces().len(),
        placed: delegation.interfaces().iter().filter(|known| known.port.is_some()).count(),
        nexthops: delegation.nexthops().len(),
        prefixes: delegation.prefixes().len(),
        connections: delegation.connections().len(),
        limits: session.limits(),
        packets: total.packets,
        bytes: total.bytes,
        refusals: refusals.collect(),
    }
}

fn detail(view: api::Router, router: &Router) -> RouterDetail {
    let state = router.state();
    let delegation = state.session.delegation();
    let interfaces = delegation.interfaces().iter().map(|known| {
        let api::channel::Interface { id, name, mac, card, vlan, mtu, .. } =
            known.interface.clone();
        let (source_check, source_check_v6) =
            (known.interface.source_check, known.interface.source_check_v6);
        let port = known.port.as_ref().map(|(_, name)| name.clone());
        let refused = port.is_none().then_some(Refusal::NotYourPort);
        api::RouterInterface {
            id,
            name,
            mac,
            card,
            vlan,
            mtu,
            source_check,
            source_check_v6,
            port,
            refused,
        }
    });
    let counts = state.router.counts();
    let nexthops = delegation.nexthops().iter().map(|(id, known)| {
        let counts = counts.get(id).map(Vec::as_slice).unwrap_or_default();
        let hops = match &known.to {
            To::Own => &[][..],
            To::Via(hops) => hops,
        };
        let hops = hops.iter().enumerate().map(|(place, hop)| {
            let count = counts.get(place).copied().unwrap_or_default();
            let api::channel::HopCount { packets, bytes } = count;
            api::RouterHop { interface: hop.interface, mac: hop.mac, packets, bytes }
        });
        let (own, hops) = (known.to == To::Own, hops.collect());
        let (prefixes, connections) = (known.prefixes, known.connections);
        api::RouterNextHop { id: *id, own, hops, prefixes, connections }
    });
    let reasons = state.session.status().map(|status| status.reasons.clone()).unwrap_or_default();
    RouterDetail {
        router: view,
        reasons,
        interfaces: interfaces.collect(),
        nexthops: nexthops.collect(),
    }
}
