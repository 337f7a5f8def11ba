//! The switch: networks, ports, VLANs, MAC tables, and the verdict on a frame.
//!
//! *Purpose.* `(tables, in port, header, time) -> verdict`: where a frame goes, with which tag, or
//! under which name it is dropped. *Owner*: the [`Switch`] is shared by everybody; each worker owns
//! a [`Cache`]. *Failure*: a frame is never an error, it is a [`Verdict`]; a configuration that
//! makes no sense is a [`SwitchError`]. No I/O, no clock, no thread: time is an argument, in
//! milliseconds of any monotonic clock all callers share.
//!
//! # Order of evaluation
//!
//! what the port's owner enforces ([`Guard`]) -> the port's flow rules ([`rules`]) -> in-port is up ->
//! header whole -> source address is one -> not a link-local protocol -> VLAN of the in-port -> learn
//! the source, if the port may have it -> destination known: forward, or drop if it is behind the
//! in-port -> otherwise flood the VLAN within the network -> flow rules of each port it goes to.
//!
//! A look-up is what is between the rules; a caller asks for the rest by [`Snapshot::guard`] and
//! [`Snapshot::rules`], which few ports have.
//!
//! # Threads
//!
//! *Workers* take a [`Snapshot`] per burst and call [`Cache::destination`] per frame. *Control* (one
//! caller at a time, a mutex sees to it) changes the configuration and calls [`Switch::maintain`]
//! about once a second. Three kinds of state are shared:
//!
//! 1. **Configuration** (`Config`): immutable, replaced as a whole (RCU by `ArcSwap`). A worker
//!    sees a change with its next snapshot. While it works with an old one it may still send to a
//!    port that was removed: the caller waits for every worker to have passed a burst before it
//!    frees what belonged to the port. Port numbers are handed out round-robin, so a number does
//!    not come back at once.
//! 2. **MAC tables**, one per network (modules `fdb` and `table`): read without locks, written
//!    under a mutex that workers only ever *try* to take. A worker that finds it taken forwards
//!    the frame without learning and tries again with the next one. What keeps readers safe is
//!    that a slot of a table never changes its key: a removed address leaves its key behind, and a
//!    table that is too full of those is replaced by a new one as a whole. So an entry is two
//!    parts, the key (written once, in two halves, the lower one last and after the value) and the value
//!    (one atomic word, always about that key), and no reader can put one address's key together with another's port; a third, when
//!    it was heard of last, is any worker's to write, and decides about its age only. Replacing
//!    is [`Switch::maintain`]'s work; a worker does it only if addresses come faster than that,
//!    which is the one allocation on its path, once per doubling. A worker holds the table it uses
//!    for a pass ([`Cache::release`] ends that) and sees by its number when it was replaced; the one before is
//!    kept until the next [`Switch::maintain`], so that control frees it.
//! 3. **Generations**, one number per network, drawn from one counter so that none is ever used
//!    twice. Everything that can make a remembered unicast verdict wrong (ports and VLANs
//!    changed, an address moved, aged, flushed or pinned) takes effect *first* and changes the
//!    number *after*. A cached verdict counts only while the number it was computed under, read
//!    *before* computing, is still the number. A change of the configuration needs one more step,
//!    because a worker may be holding an old snapshot when it reads the new number: a verdict is
//!    remembered only if the network's configuration in the snapshot is the latest. Learning a
//!    new address changes nothing that is remembered, since floods are not. Frames with the same beginning
//!    that follow each other in one pass are one look-up ([`Cache::as_before`]): what changes meanwhile
//!    counts from the next one on. To announce a frame ([`Places::spot`]) says where to look, and nothing about
//!    what is found there; several that are asked about at once ([`Cache::known`]) go by what counts at that moment.
//!
//! # Routers
//!
//! A frame for a router's port ([`Verdict::Router`]) goes on without the router where that delegated
//! ([`Switch::delegate`], [`Cache::route`]): rewritten as the router would have done, and looked up
//! again as if the router had sent it. Routers and their interfaces are configuration; prefixes are
//! in tables that change in place ([`Lpm`]) and count for the frames looked up after the change.
//! A way through routers is remembered under the generation of its domain, which is all networks and
//! routers that are connected with each other (module `domain`), by the same rules as a verdict (3,
//! above), and looked at with each packet: none takes what was withdrawn.
//!
//! Lock order: control, then a table's writer. Workers hold at most the latter, for one entry
//! (or, when a table has to grow, for one copy of it).

mod cache;
mod config;
mod domain;
mod error;
mod fdb;
mod key;
mod lpm;
mod memo;
mod meter;
mod pairs;
mod policy;
mod reason;
mod router;
pub mod rules;
mod table;
mod vlan;
mod way;
mod worth;

pub use cache::{Cache, Known, Places};
pub use config::{FloodMember, FloodMembers, NetworkConfig, PortConfig, Reader, Snapshot, Switch};
pub use error::SwitchError;
pub use fdb::{FdbEntry, NetworkStats, Watch};
pub use lpm::{Full, Lpm, Prefix};
pub use meter::Meter;
pub use packet::{Mac, Tci, VlanEdit};
pub use pairs::{Room, Spot};
pub use policy::{Guard, LinkState, Policy};
pub use reason::{DropReason, Drops};
pub use router::{
    HopCount, NextHop, Route, RouteCounts, RouteId, RouterId, RouterInterface, SourceCheck,
};
pub use vlan::{VlanMode, VlanSet, VlanSetError};
pub use way::{By, NotBypassed, Routed, Step};

use std::fmt;

/// A port of the switch, unique over all networks.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct PortId(pub u16);

/// An isolated layer-2 segment.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct NetworkId(pub u16);

impl PortId {
    /// The number as an index: ports are below [`Switch::PORTS_MAX`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NetworkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To one port.
    Forward {
        /// Where to.
        port: PortId,
        /// What to do with the tag.
        edit: VlanEdit,
    },
    /// To one port of a router, unless the packet bypasses it: see [`Cache::route`].
    Router {
        /// Where to.
        port: PortId,
        /// What to do with the tag.
        edit: VlanEdit,
    },
    /// To every other port of the VLAN; [`Snapshot::flood`] names them, at least one.
    Flood(Flood),
    /// To nobody, for a reason that is counted.
    Drop(DropReason),
}

/// A flood, to be expanded with the snapshot it was decided with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood {
    in_port: PortId,
    class: vlan::Class,
}
