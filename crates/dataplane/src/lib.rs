//! The data plane: workers that move frames, and the ports they move them between.
//!
//! A [`Host`] owns the workers (one thread each, [`worker`]) and the ports ([`port`]). Control
//! calls come in on any thread; each becomes a command in a worker's mailbox, which the worker
//! reads between bursts, so that nothing on the data path is shared with control but counters and
//! read-only snapshots.
//!
//! ```text
//!            Host (control, any thread)
//!              |  commands, acknowledged             counters, snapshots
//!              v                                          ^
//!   mailbox -> Worker: TX queue -> switch -> RX queue of the destination, one copy
//!                      TAP queue -^            `-> TAP queue
//! ```

mod balance;
mod clock;
mod counters;
mod disk;
mod egress;
mod error;
mod frame;
mod homes;
mod host;
mod mailbox;
mod owed;
mod port;
mod session;
mod spec;
mod status;
mod store;
mod worker;

pub use ::disk::counters::{
    Kind as OperationKind, KindTotals, LATENCY_BOUNDS_US, Totals as OperationTotals,
};
pub use ::disk::qos::Rate;
pub use ::disk::request::Refusal;
pub use disk::{DiskId, DiskImage, Extent, Image, StoreTarget};
pub use error::HostError;
pub use host::Host;
pub use pace::{Moderation, Profile};
pub use packet::Tci;
pub use packet::rewrite::Rewrite;
pub use packet::tuple::Tuple;
pub use remote::control as store_control;
pub use spec::{
    DiskLimits, DiskSpec, NetworkSpec, Options, PortKind, PortSpec, SocketMode, TapSpec, VhostSpec,
};
pub use status::{
    Direction, DiskQueue, DiskStatus, FdbEntry, PortState, PortStatus, QueueStatus, RuleCount,
    RulesStatus, StoreStatus, Traffic, WorkerQueue, WorkerState, WorkerStatus,
};
pub use store::StoreError;
pub use store::accept::{Images, OpenImage, Peer, Serving, serve as serve_store};
pub use switch::rules;
pub use switch::{
    By, DropReason, HopCount, LinkState, Mac, Meter, NetworkId, NextHop, NotBypassed, Policy,
    PortId, Prefix, Route, RouteCounts, RouteId, RouterId, RouterInterface, SourceCheck, Step,
    Verdict, VlanMode,
};
pub use vhost_session::socket::Listener;
