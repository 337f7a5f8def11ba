//! Why a change of the configuration is refused.

use packet::Mac;

use crate::vlan::VID_MAX;
use crate::{Meter, NetworkId, Policy, PortId, RouterId, Switch};

/// A configuration that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// Unknown network.
    #[error("there is no network {0}")]
    NoSuchNetwork(NetworkId),
    /// Unknown port.
    #[error("there is no port {0}")]
    NoSuchPort(PortId),
    /// The network to remove has ports.
    #[error("network {0} still has ports; remove them first")]
    NetworkInUse(NetworkId),
    /// All port numbers are in use.
    #[error("there are {} ports already, which is the most there can be", Switch::PORTS_MAX)]
    TooManyPorts,
    /// All network numbers are in use.
    #[error("there are {} networks already, which is the most there can be", Switch::NETWORKS_MAX)]
    TooManyNetworks,
    /// Not a VLAN id.
    #[error("{0} is not a VLAN id; use 1 to {VID_MAX}")]
    BadVlan(u16),
    /// Group or zero address as a static entry, or as a port's own.
    #[error("{0} is not the address of one station")]
    NotUnicast(Mac),
    /// What is to be enforced hangs on the port's address.
    #[error("spoofchk, and a port without trust, need the address of the port")]
    NoAddress,
    /// More than are looked through for every frame.
    #[error("a port has at most {} prefixes of its own", Policy::ADDRESSES_MAX)]
    TooManyAddresses,
    /// Not a priority of a tag.
    #[error("a priority is 0 to 7")]
    BadPriority,
    /// Not a rate.
    #[error("a rate is 1 to {} Mbit/s", Meter::RATE_MAX)]
    BadRate,
    /// The static entries of the network are used up.
    #[error("network {0} has too many static addresses")]
    TooManyStatic(NetworkId),
    /// No such static entry.
    #[error("{0} is not a static address there")]
    NotStatic(Mac),
    /// Unknown router.
    #[error("there is no router {0}")]
    NoSuchRouter(RouterId),
    /// All router numbers are in use.
    #[error("there are {} routers already, which is the most there can be", Switch::ROUTERS_MAX)]
    TooManyRouters,
    /// More interfaces than a router may have.
    #[error("a router has at most {} interfaces", Switch::ROUTER_INTERFACES_MAX)]
    TooManyInterfaces,
    /// Of another router.
    #[error("port {0} belongs to another router")]
    PortOfRouter(PortId),
    /// The router's table is full.
    #[error("the router has too many routes")]
    TooManyRoutes,
    /// More hops than a route may have.
    #[error("a route has at most {} hops", Switch::HOPS_MAX)]
    TooManyHops,
    /// Unknown route.
    #[error("the router has no such route")]
    NoSuchRoute,
    /// The route to remove has prefixes or connections.
    #[error("prefixes or connections still take this route")]
    RouteInUse,
    /// A connection that would become one of another protocol.
    #[error("a connection stays one of its protocol and version of IP")]
    BadTranslation,
}
