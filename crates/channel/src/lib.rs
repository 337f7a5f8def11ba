//! The guest channel, the host's side: what an agent asks, checked, and what follows from it.
//!
//! *Purpose.* A [`Session`] takes lines of one VM and gives back [`Step`]s: an answer, and before it
//! is sent, [`Action`]s on the VM's router. It keeps what the VM delegated ([`Delegation`]), within
//! its quota, and ends it when the lease does. [`Lines`] cuts a stream into lines, [`Budget`] says
//! how much time a VM may take. *Owner*: the task of the VM's channel. No I/O, no clock, no thread:
//! time is an argument, and what the host knows of ports comes from a [`World`].
//!
//! *Failure.* All input is hostile. A request is checked as a whole before anything of it is done;
//! what is wrong with it is answered as a [`Refusal`](api::channel::Refusal) and counted. Memory is
//! bounded by the quota and by one line.

mod budget;
mod delegation;
mod flows;
mod lines;
mod pages;
mod session;

pub use budget::Budget;
pub use delegation::{Delegation, KnownConnection, KnownInterface, KnownNextHop};
pub use flows::{Changed, FlowBook, FlowChange, FlowPace, FlowPf};
pub use lines::{Line, Lines};
pub use session::{Session, Step};

use std::collections::{BTreeMap, BTreeSet};

use api::channel::{
    ChannelFunction, Ends, Flow, FlowCursor, Flows, HopCount, Selector, SourceCheck,
};
use api::{Function, GuestSettings, Mac, Name};

/// What the host knows.
pub trait World {
    /// The host's handle of an open port.
    type Port: Copy + Eq + std::fmt::Debug;
    /// The VM's ports, by name.
    fn ports(&self) -> Vec<Port<Self::Port>>;
    /// The VM's virtual functions, in order.
    fn functions(&self) -> Vec<ChannelFunction>;
    /// Which of these addresses were seen behind which of the VM's ports.
    fn learned(&self, wanted: &BTreeSet<Mac>) -> Vec<(Mac, Self::Port)>;
    /// What was sent by each next hop, by its number.
    fn counts(&self) -> BTreeMap<u32, Vec<HopCount>>;
    /// What was sent of one direction of a connection, since it was last set.
    fn connection_count(&self, flow: &Flow) -> HopCount;
    /// The VM's PF that has this address. By default there is none.
    fn flow_pf(&self, _mac: Mac) -> Option<FlowPf> {
        None
    }
    /// Flow rules of a PF, all of those behind a place, and what is allowed. By default there are none.
    fn flows(&self, _pf: &Name, _after: Option<FlowCursor>) -> Flows {
        Flows::default()
    }
}

/// A port of the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port<P> {
    /// Its name.
    pub name: Name,
    /// The network it is in.
    pub network: Name,
    /// The address its card has, if that is known.
    pub mac: Option<Mac>,
    /// `None` while it is not open.
    pub handle: Option<P>,
}

/// What the host does that takes its time. Nothing more of the channel is looked at meanwhile; what came of
/// it is the answer then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Later {
    /// This boot of the machine is the one that is there now: what another one has set on the VM's functions
    /// ends. The step's answer waits for it.
    Booted(String),
    /// Sets something on a VF of this VM: [`Session::set`] makes an answer of what came of it.
    Set {
        /// Which.
        function: Function,
        /// What is asked for; it may be wrong, or not allowed.
        change: GuestSettings,
        /// The boot in which it is asked for, if the agent says that.
        boot: Option<String>,
    },
    /// Changes the flow rules of a PF of this VM: [`Session::done`] makes an answer of what came of it.
    Flows {
        /// The PF.
        pf: Name,
        /// What is asked for; it may be more than the PF may have.
        change: FlowChange,
        /// The boot in which it is asked for, if the agent says that.
        boot: Option<String>,
    },
}

/// What the host does to the VM's router, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<P> {
    /// Removes it, if there is one: nothing is delegated any more.
    Clear,
    /// It is still there: ports of it that lost their link count again.
    Confirm,
    /// Its interfaces, in place of those before; next hops name them by their place here. Nothing may
    /// bypass the router until the rest of the step is done: meanwhile places are those of before.
    Interfaces(Vec<PlacedInterface<P>>),
    /// A next hop, new or another under the same number.
    NextHop {
        /// The agent's number.
        number: u32,
        /// Where to.
        to: Target,
    },
    /// No prefix and no connection takes it any more.
    RemoveNextHop(u32),
    /// A prefix, or an address for one machine, takes this next hop from now on.
    Delegate {
        /// Which packets.
        prefix: Selector,
        /// Number of a next hop.
        nexthop: u32,
    },
    /// These packets are the router's business again.
    Withdraw(Selector),
    /// One direction of a connection passes from now on, or goes elsewhere.
    Connect {
        /// Its packets, as they come. Both ends are of one version of IP, without a scope.
        flow: Flow,
        /// Place of the interface that they come by.
        interface: usize,
        /// What becomes of their addresses and ports. Of the same version.
        to: Ends,
        /// Number of a next hop.
        nexthop: u32,
    },
    /// It is the router's business again.
    Disconnect(Flow),
}

/// An interface that is behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedInterface<P> {
    /// The port.
    pub port: P,
    /// Its address.
    pub mac: Mac,
    /// Tag of its frames.
    pub vlan: Option<u16>,
    /// Longest packet, bytes.
    pub mtu: u32,
    /// What it asks of the sources of IPv4 packets.
    pub source_check: SourceCheck,
    /// What it asks of the sources of IPv6 packets.
    pub source_check_v6: SourceCheck,
}

/// Where a next hop leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the router, and so do packets from there.
    Own,
    /// To one of these: place of the interface, and the neighbour's address. With none: to the router.
    Via(Vec<(usize, Mac)>),
}

#[cfg(test)]
mod tests;
