//! Everything a front end can get wrong, by name.

use std::io;

use guestmem::MapError;
use thiserror::Error;
use vhost::vhost_user::message::FrontendReq;

use crate::device::ConfigRefused;

/// What a front end did wrong.  A fault that still leaves the byte stream intact is told to the front end as a non-zero
/// acknowledgement when it asked for one; otherwise (see [`is_fatal`](Self::is_fatal)) it ends the session.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionFault {
    /// The version field of a header is not 1.
    #[error("the header of {} has protocol version {version}, not 1", name_of(*request))]
    BadVersion {
        /// Request number of the header.
        request: u32,
        /// Version found.
        version: u32,
    },
    /// A header with the reply flag, or flags nobody has defined.
    #[error("the header of {} has flags {flags:#x}, which no request has", name_of(*request))]
    BadFlags {
        /// Request number of the header.
        request: u32,
        /// All flags of the header.
        flags: u32,
    },
    /// The body is not as long as this request's body is.
    #[error("a body of {size} bytes is not that of {}", name_of(*request))]
    BodySize {
        /// Request number of the header.
        request: u32,
        /// Body length announced.
        size: u32,
    },
    /// Descriptors arrived in the middle of a message.
    #[error("{count} descriptors arrived in the middle of a message")]
    StrayDescriptors {
        /// How many.
        count: usize,
    },
    /// More or fewer descriptors than this request takes.
    #[error("{} came with {count} descriptors", name_of(*request))]
    DescriptorCount {
        /// Request number.
        request: u32,
        /// How many came.
        count: usize,
    },
    /// The kernel dropped descriptors on the way.
    #[error(
        "descriptors were lost: more than one message may carry, or this process has none left"
    )]
    DescriptorsLost,
    /// More input than a session holds while it waits for an answer.  A host that reads only
    /// [`wanted`](crate::Session::wanted) bytes never sees it.
    #[error("more input than a session holds while it waits for an answer")]
    InputOverflow,
    /// A request number the specification does not have.
    #[error("request {request} is not in the specification")]
    UnknownRequest {
        /// The number.
        request: u32,
    },
    /// A request whose protocol feature has not been negotiated.
    #[error("{request:?} needs a protocol feature that was not negotiated")]
    NotNegotiated {
        /// The request.
        request: FrontendReq,
    },
    /// SET_FEATURES with bits that were not offered.
    #[error("features {bits:#x} were not offered")]
    FeaturesNotOffered {
        /// The bits in excess.
        bits: u64,
    },
    /// SET_PROTOCOL_FEATURES with bits that were not offered.
    #[error("protocol features {bits:#x} were not offered")]
    ProtocolFeaturesNotOffered {
        /// The bits in excess.
        bits: u64,
    },
    /// A change that a running ring does not allow.
    #[error("{request:?} cannot change ring {queue} while it runs")]
    RingRunning {
        /// The request.
        request: FrontendReq,
        /// The ring.
        queue: u16,
    },
    /// A ring index past the last ring.
    #[error("there is no ring {queue}; this device has {max}")]
    NoSuchRing {
        /// Index asked for.
        queue: u32,
        /// How many rings there are.
        max: u16,
    },
    /// A ring size that is no ring size: above 32768, or for a split ring not a power of two.
    #[error("{size} is not a size for ring {queue}")]
    BadRingSize {
        /// The ring.
        queue: u16,
        /// Size asked for.
        size: u32,
    },
    /// A position outside the ring.
    #[error("{base:#x} is not a position in ring {queue}")]
    BadRingBase {
        /// The ring.
        queue: u16,
        /// Position asked for.
        base: u32,
    },
    /// Flags of SET_VRING_ADDR that nothing was negotiated for.
    #[error("ring {queue} has address flags {flags:#x}, which were not negotiated")]
    BadRingFlags {
        /// The ring.
        queue: u16,
        /// The flags.
        flags: u32,
    },
    /// A ring area at an address its alignment forbids.
    #[error("the {area} of ring {queue} at {addr:#x} is not aligned")]
    RingMisaligned {
        /// The ring.
        queue: u16,
        /// Which of its three areas.
        area: &'static str,
        /// User address given.
        addr: u64,
    },
    /// A ring area that is not wholly inside the memory table.
    #[error("the {area} of ring {queue} at {addr:#x} is outside the memory table")]
    RingOutsideMemory {
        /// The ring.
        queue: u16,
        /// Which of its three areas.
        area: &'static str,
        /// User address given.
        addr: u64,
    },
    /// SET_VRING_ENABLE with something that is neither 0 nor 1.
    #[error("ring {queue} cannot be enabled to {value}")]
    BadEnable {
        /// The ring.
        queue: u16,
        /// Value given.
        value: u32,
    },
    /// The payload of SET_VRING_KICK, CALL or ERR contradicts the descriptors that came with it.
    #[error("{request:?} with payload {payload:#x} came with {count} descriptors")]
    BadRingDescriptor {
        /// The request.
        request: FrontendReq,
        /// Its payload.
        payload: u64,
        /// How many descriptors came.
        count: usize,
    },
    /// A descriptor that must be an eventfd is something else.
    #[error("the descriptor of {request:?} for ring {queue} is not an eventfd")]
    NotAnEventFd {
        /// The request.
        request: FrontendReq,
        /// The ring.
        queue: u16,
    },
    /// A memory table with a number of regions that none may have.
    #[error("a memory table of {count} regions")]
    RegionCount {
        /// How many.
        count: usize,
    },
    /// REM_MEM_REG for a region that is not there.
    #[error("there is no region at guest address {guest_addr:#x} to remove")]
    NoSuchRegion {
        /// Guest address asked for.
        guest_addr: u64,
    },
    /// The memory table is not one that can be mapped.
    #[error("the memory table was refused: {0}")]
    Memory(#[from] MapError),
    /// An MTU outside what this device takes.
    #[error("an MTU of {mtu} is not one this device takes")]
    BadMtu {
        /// MTU asked for.
        mtu: u64,
    },
    /// A device status that is not one byte.
    #[error("{status:#x} is not a device status")]
    BadStatus {
        /// Status given.
        status: u64,
    },
    /// An access outside the configuration space, or a length that contradicts the message.
    #[error("{size} bytes at {offset} are not in the configuration space")]
    BadConfig {
        /// First byte.
        offset: u32,
        /// Length in bytes.
        size: u32,
    },
    /// SET_CONFIG that is for neither the guest nor a migration.
    #[error("{flags:#x} are not flags of a write to the configuration space")]
    BadConfigFlags {
        /// The flags.
        flags: u32,
    },
    /// SET_CONFIG: the device does not take it.
    #[error(transparent)]
    ConfigRefused(#[from] ConfigRefused),
    /// SET_BACKEND_REQ_FD with something on which nothing can be sent.
    #[error("the descriptor of SET_BACKEND_REQ_FD is not a connected Unix stream socket")]
    NotASocket,
    /// GET_INFLIGHT_FD or SET_INFLIGHT_FD for rings this device has not, or an area in which they have no room.
    #[error(
        "{mmap_size} bytes at {mmap_offset:#x} do not hold the requests in flight of {queues} rings of {queue_size}"
    )]
    BadInflight {
        /// Length in bytes.
        mmap_size: u64,
        /// Offset in the file.
        mmap_offset: u64,
        /// How many rings.
        queues: u16,
        /// Size of each.
        queue_size: u16,
    },
    /// SET_INFLIGHT_FD: the area is not one that can be mapped.
    #[error("the area for requests in flight was refused: {0}")]
    Inflight(#[source] MapError),
    /// GET_INFLIGHT_FD: this host has no memory to give.
    #[error("no memory for requests in flight: {0}")]
    InflightNotMade(#[source] io::Error),
    /// A ring for which the area of SET_INFLIGHT_FD has no region, or a smaller one.
    #[error("ring {queue} of size {size} has no region for its requests in flight")]
    RingOutsideInflight {
        /// The ring.
        queue: u16,
        /// Its size.
        size: u16,
    },
}

impl SessionFault {
    /// A stable kebab-case name for logs, status and tests.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::BadVersion { .. } => "bad-version",
            Self::BadFlags { .. } => "bad-flags",
            Self::BodySize { .. } => "body-size",
            Self::StrayDescriptors { .. } => "stray-descriptors",
            Self::DescriptorCount { .. } => "descriptor-count",
            Self::DescriptorsLost => "descriptors-lost",
            Self::InputOverflow => "input-overflow",
            Self::UnknownRequest { .. } => "unknown-request",
            Self::NotNegotiated { .. } => "not-negotiated",
            Self::FeaturesNotOffered { .. } => "features-not-offered",
            Self::ProtocolFeaturesNotOffered { .. } => "protocol-features-not-offered",
            Self::RingRunning { .. } => "ring-running",
            Self::NoSuchRing { .. } => "no-such-ring",
            Self::BadRingSize { .. } => "bad-ring-size",
            Self::BadRingBase { .. } => "bad-ring-base",
            Self::BadRingFlags { .. } => "bad-ring-flags",
            Self::RingMisaligned { .. } => "ring-misaligned",
            Self::RingOutsideMemory { .. } => "ring-outside-memory",
            Self::BadEnable { .. } => "bad-enable",
            Self::BadRingDescriptor { .. } => "bad-ring-descriptor",
            Self::NotAnEventFd { .. } => "not-an-eventfd",
            Self::RegionCount { .. } => "region-count",
            Self::NoSuchRegion { .. } => "no-such-region",
            Self::Memory(_) => "memory-not-mapped",
            Self::BadMtu { .. } => "bad-mtu",
            Self::BadStatus { .. } => "bad-status",
            Self::BadConfig { .. } => "bad-config",
            Self::BadConfigFlags { .. } => "bad-config-flags",
            Self::ConfigRefused(_) => "config-refused",
            Self::NotASocket => "not-a-socket",
            Self::BadInflight { .. } => "bad-inflight",
            Self::Inflight(_) => "inflight-not-mapped",
            Self::InflightNotMade(_) => "inflight-not-made",
            Self::RingOutsideInflight { .. } => "ring-outside-inflight",
        }
    }

    /// Whether the fault is in the framing itself: what follows in the stream cannot be trusted, so the session ends
    /// whether or not the front end asked for an acknowledgement.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::BadVersion { .. }
                | Self::BadFlags { .. }
                | Self::BodySize { .. }
                | Self::StrayDescriptors { .. }
                | Self::DescriptorCount { .. }
                | Self::DescriptorsLost
                | Self::InputOverflow
        )
    }
}

/// The name of a request, if it has one.
fn name_of(request: u32) -> String {
    match FrontendReq::try_from(request) {
        Ok(known) => format!("{known:?}"),
        Err(()) => format!("request {request}"),
    }
}
