//! Types of the REST interface and of the guest channel ([`channel`]): what daemon, command, scripts
//! and agents agree on.
//!
//! One set of types serves four places: the request bodies of the interface, its answers, the
//! tables of `hayate.toml` and the saved state. Therefore every type here has one text form, one
//! JSON form and one schema, and a value that exists is a valid one: names, sizes and VLAN sets
//! are checked while they are read, and what needs several fields is checked by
//! [`PortConfig::check`].
//!
//! Nothing here does I/O or owns a thread. All functions are total: bad input is an error value
//! that says what is allowed.

pub mod channel;
mod cpus;
mod disk;
mod error;
pub mod feature;
mod flow;
mod image;
mod mac;
mod name;
mod network;
mod port;
mod ranges;
mod router;
pub mod rule;
mod size;
mod source;
mod text;
mod time;
mod vf;
mod vlan;
mod vm;
mod worker;

pub use cpus::{BadCpuList, CpuList};
pub use disk::{
    DEFAULT_DISK_QUEUES, Disk, DiskCache, DiskConfig, DiskLimits, DiskOperations, DiskQueue,
    DiskStore, MAX_DISK_QUEUES, Transport,
};
pub use error::{Error, ErrorBody, ErrorCode};
pub use flow::{Flow, PACKET_SIZE, Step, Why};
pub use image::{
    BadImageFormat, BadImageName, Export, Image, ImageCheck, ImageConfig, ImageFormat, ImageName,
    Import, Progress, Resize, Snapshot,
};
pub use mac::{BadMac, Mac};
pub use name::{BadName, Name};
pub use network::{FdbEntry, Network, NetworkConfig};
pub use port::{
    BadModeration, DEFAULT_QUEUES, LinkState, MAX_QUEUES, Moderation, Offload, Origin, Port,
    PortConfig, PortKind, PortPolicy, PortState, PortStats, Queue, SocketMode, Traffic, Wrong,
};
pub use router::{
    Bypass, Router, RouterConnection, RouterConnections, RouterDetail, RouterHop, RouterInterface,
    RouterNextHop, RouterPrefix, RouterPrefixes,
};
pub use size::{BadSize, MemorySize};
pub use source::{BadImageSource, BadStoreAddress, ImageSource, StoreAddress};
pub use time::{BadTimestamp, Timestamp};
pub use vf::{
    Function, FunctionSettings, GuestLimits, GuestRight, GuestSettings, MAX_VFS, NotSet, Pf,
    PfConfig, PfFunction,
};
pub use vlan::{BadVlanSet, VLAN_MAX, VlanSet};
pub use vm::{Vm, VmConfig};
pub use worker::{Health, Placement, Stats, Version, Worker, WorkerQueue, WorkerState};

/// First component of every path of the interface. A change that an old client would not
/// understand gets a new one.
pub const API_VERSION: &str = "v1";

/// Where the daemon keeps its sockets unless told otherwise.
pub const DEFAULT_RUN_DIR: &str = "/run/hayate";

/// Where the daemon keeps what survives a restart, when neither directory was given.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/hayate";

/// File name of the interface's socket, inside the run directory.
pub const API_SOCKET: &str = "api.sock";

/// Longest path of a Unix socket in bytes: `sockaddr_un` less its terminating NUL.
pub const SOCKET_PATH_MAX: usize = 107;
