//! Messages of the vhost-user protocol: framing, and bytes to typed requests and back.
//!
//! Pure functions.  A [`Message`] that exists has a body of the right length and a number of descriptors its request may
//! have; what its fields mean is for the session to judge.

use std::os::fd::OwnedFd;

use guestmem::RegionSpec;
use vhost::vhost_user::message::{
    BackendReq, FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE, VhostUserHeaderFlag,
};

use crate::SessionFault;

/// Length of a header in bytes.
pub(crate) const HEADER: usize = 12;
/// Most bytes a body may have.
pub(crate) const MAX_BODY: usize = MAX_MSG_SIZE;
/// Most descriptors a message may carry.
pub(crate) const MAX_FDS: usize = MAX_ATTACHED_FD_ENTRIES;
/// Most bytes of configuration space one message may carry (QEMU's VHOST_USER_MAX_CONFIG_SIZE).
pub(crate) const MAX_CONFIG: u32 = 256;

const VERSION: u32 = 1;
/// Bits 0 to 7 of the payload of SET_VRING_KICK, CALL and ERR.
const RING_INDEX_MASK: u64 = 0xff;
/// Bit 8 of it: no descriptor, poll instead.
const NO_FD: u64 = 0x100;

/// Header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Request number, as found.
    pub(crate) request: u32,
    /// Whether the front end wants an acknowledgement (if REPLY_ACK is negotiated).
    pub(crate) need_reply: bool,
    /// Length of the body, at most [`MAX_BODY`].
    pub(crate) size: usize,
}

impl Header {
    /// Checks version, flags and size.
    pub(crate) fn parse(bytes: [u8; HEADER]) -> Result<Header, SessionFault> {
        let mut reader = Reader(&bytes);
        let (request, flags, size) = (reader.u32(), reader.u32(), reader.u32());
        let (request, flags, size) =
            (request.unwrap_or(0), flags.unwrap_or(0), size.unwrap_or(u32::MAX));
        let version = flags & VhostUserHeaderFlag::VERSION.bits();
        if version != VERSION {
            return Err(SessionFault::BadVersion { request, version });
        }
        let need_reply = VhostUserHeaderFlag::NEED_REPLY.bits();
        if flags & !(VERSION | need_reply) != 0 {
            return Err(SessionFault::BadFlags { request, flags });
        }
        let range = match FrontendReq::try_from(request) {
            Ok(request) => Shape::of(request).size,
            Err(()) => (0, MAX_BODY),
        };
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        if length < range.0 || length > range.1 {
            return Err(SessionFault::BodySize { request, size });
        }
        Ok(Header { request, need_reply: flags & need_reply != 0, size: length })
    }
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With an acknowledgement if asked for.
    Ack,
    /// Always with a number that is non-zero on failure.
    Result,
    /// Always with a body of its own; an empty one on failure.
    BodyOrEmpty,
    /// Always with a body of its own that has no place for a failure.
    Body,
    /// With an acknowledgement if asked for; a failure that nobody wants to hear of changes nothing and is passed over,
    /// because it may be the guest's and not the front end's.
    AckOrSilence,
}

/// What a request looks like on the wire.
struct Shape {
    /// Least and greatest length of the body in bytes.
    size: (usize, usize),
    /// Least and greatest number of descriptors.
    fds: (usize, usize),
    answer: Answer,
}

impl Shape {
    /// The specification as a table.
    fn of(request: FrontendReq) -> Shape {
        use Answer::{Ack, AckOrSilence, Body, BodyOrEmpty, Result};
        use FrontendReq as R;
        let shape = |size, fds, answer| Shape { size, fds, answer };
        let exact = |size: usize| (size, size);
        match request {
            R::GET_FEATURES
            | R::GET_PROTOCOL_FEATURES
            | R::GET_QUEUE_NUM
            | R::GET_MAX_MEM_SLOTS
            | R::GET_STATUS
            | R::GET_SHMEM_CONFIG
            | R::POSTCOPY_ADVISE => shape(exact(0), exact(0), Body),
            R::SET_OWNER | R::RESET_OWNER | R::RESET_DEVICE | R::POSTCOPY_LISTEN => {
                shape(exact(0), exact(0), Ack)
            }
            R::POSTCOPY_END | R::CHECK_DEVICE_STATE => shape(exact(0), exact(0), Result),
            R::SET_FEATURES
            | R::SET_PROTOCOL_FEATURES
            | R::SET_VRING_NUM
            | R::SET_VRING_BASE
            | R::SET_VRING_ENABLE
            | R::SET_VRING_ENDIAN
            | R::SEND_RARP
            | R::NET_SET_MTU
            | R::SET_STATUS
            | R::VRING_KICK
            | R::CLOSE_CRYPTO_SESSION => shape(exact(8), exact(0), Ack),
            R::SET_VRING_KICK | R::SET_VRING_CALL | R::SET_VRING_ERR => {
                shape(exact(8), (0, 1), Ack)
            }
            R::SET_VRING_ADDR => shape(exact(40), exact(0), Ack),
            R::GET_VRING_BASE => shape(exact(8), exact(0), Body),
            R::SET_MEM_TABLE => shape((8, 8 + 32 * MAX_FDS), (0, MAX_FDS), Ack),
            R::ADD_MEM_REG => shape(exact(40), exact(1), Ack),
            // A descriptor is superfluous but tolerated: the specification says so.
            R::REM_MEM_REG => shape(exact(40), (0, 1), Ack),
            // Answered with a body only where LOG_SHMFD is negotiated.
            R::SET_LOG_BASE => shape((8, 16), (0, 1), Ack),
            R::SET_LOG_FD => shape((0, 8), (0, 1), Ack),
            R::SET_BACKEND_REQ_FD | R::GPU_SET_SOCKET => shape(exact(0), exact(1), Ack),
            // struct vhost_iotlb_msg ends in padding that not everybody sends.
            R::IOTLB_MSG => shape((26, 32), exact(0), Result),
            R::GET_CONFIG => shape((12, 12 + MAX_CONFIG as usize), exact(0), BodyOrEmpty),
            R::SET_CONFIG => shape((12, 12 + MAX_CONFIG as usize), exact(0), AckOrSilence),
            R::CREATE_CRYPTO_SESSION => shape((0, MAX_BODY), exact(0), Body),
            // struct VhostUserInflight ends in padding that not everybody sends.
            R::GET_INFLIGHT_FD => shape((20, 24), exact(0), Body),
            R::SET_INFLIGHT_FD => shape((20, 24), exact(1), Ack),
            R::GET_SHARED_OBJECT => shape(exact(16), exact(0), Body),
            R::SET_DEVICE_STATE_FD => shape(exact(8), exact(1), Result),
        }
    }
}

/// How `request` is answered.
pub(crate) fn answer(request: FrontendReq) -> Answer {
    Shape::of(request).answer
}

/// A ring index and a number: `struct vhost_vring_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingState {
    pub(crate) index: u32,
    pub(crate) num: u32,
}

/// `struct vhost_vring_addr`: user addresses of the three areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingAddr {
    pub(crate) flags: u32,
    pub(crate) desc: u64,
    pub(crate) used: u64,
    pub(crate) avail: u64,
}

/// `struct VhostUserInflight`: where requests in flight are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InflightArea {
    /// Length and offset in its file, in bytes.
    pub(crate) mmap_size: u64,
    pub(crate) mmap_offset: u64,
    /// How many regions there are, and for rings of which size.
    pub(crate) queues: u16,
    pub(crate) queue_size: u16,
}

impl InflightArea {
    /// As in a message, with that many bytes of padding.
    pub(crate) fn bytes(self, padding: usize) -> Vec<u8> {
        let mut bytes = [self.mmap_size, self.mmap_offset].map(u64::to_ne_bytes).concat();
        bytes.extend([self.queues, self.queue_size].map(u16::to_ne_bytes).concat());
        bytes.resize(bytes.len() + padding, 0);
        bytes
    }
}

/// What GET_CONFIG and SET_CONFIG say of the bytes they are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConfigRange {
    pub(crate) offset: u32,
    pub(crate) size: u32,
    pub(crate) flags: u32,
}

impl ConfigRange {
    /// As in a message.
    pub(crate) fn bytes(self) -> Vec<u8> {
        [self.offset, self.size, self.flags].map(u32::to_ne_bytes).concat()
    }
}

/// Which of a ring's descriptors a message sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingFdKind {
    Kick,
    Call,
    Err,
}

/// A request of a front end.
#[derive(Debug)]
pub(crate) enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<(RegionSpec, OwnedFd)>),
    SetRingNum(RingState),
    SetRingAddr {
        index: u32,
        addr: RingAddr,
    },
    SetRingBase(RingState),
    GetRingBase(RingState),
    SetRingFd {
        kind: RingFdKind,
        index: u32,
        fd: Option<OwnedFd>,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetRingEnable(RingState),
    SendRarp([u8; 6]),
    SetMtu(u64),
    GetConfig(ConfigRange),
    SetConfig(ConfigRange, Vec<u8>),
    SetBackendFd(OwnedFd),
    /// With the padding that its answer has too.
    GetInflight(InflightArea, usize),
    SetInflight(InflightArea, OwnedFd),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(RegionSpec, OwnedFd),
    RemMemReg(RegionSpec),
    SetStatus(u64),
    GetStatus,
    /// A request of the specification that belongs to a protocol feature this back end never offers.
    NeverOffered,
}

impl Message {
    /// Parses the body of `request`, whose length [`Header::parse`] has checked.
    pub(crate) fn parse(
        request: FrontendReq,
        body: &[u8],
        mut fds: Vec<OwnedFd>,
    ) -> Result<Message, SessionFault> {
        let number = u32::from(request);
        let count = fds.len();
        let takes = Shape::of(request).fds;
        if count < takes.0 || count > takes.1 {
            return Err(SessionFault::DescriptorCount { request: number, count });
        }
        let size = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let fault = SessionFault::BodySize { request: number, size };
        if request == FrontendReq::SET_MEM_TABLE {
            return mem_table(body, fds)?.map(Message::SetMemTable).ok_or(fault);
        }
        if let Some(kind) = ring_fd_kind(request) {
            return ring_fd(request, kind, Reader(body).u64().ok_or(fault)?, fds);
        }
        plain(request, &mut Reader(body), fds.pop()).ok_or(fault)
    }
}

/// Requests without further conditions on their form; `None` if the body ends too early.
fn plain(request: FrontendReq, body: &mut Reader<'_>, fd: Option<OwnedFd>) -> Option<Message> {
    use FrontendReq as R;
    Some(match request {
        R::GET_FEATURES => Message::GetFeatures,
        R::SET_FEATURES => Message::SetFeatures(body.u64()?),
        R::SET_OWNER => Message::SetOwner,
        R::RESET_OWNER => Message::ResetOwner,
        R::SET_VRING_NUM => Message::SetRingNum(body.ring_state()?),
        R::SET_VRING_ADDR => body.ring_addr()?,
        R::SET_VRING_BASE => Message::SetRingBase(body.ring_state()?),
        R::GET_VRING_BASE => Message::GetRingBase(body.ring_state()?),
        R::GET_PROTOCOL_FEATURES => Message::GetProtocolFeatures,
        R::SET_PROTOCOL_FEATURES => Message::SetProtocolFeatures(body.u64()?),
        R::GET_QUEUE_NUM => Message::GetQueueNum,
        R::SET_VRING_ENABLE => Message::SetRingEnable(body.ring_state()?),
        R::SEND_RARP => {
            let [a, b, c, d, e, f, ..] = body.u64()?.to_ne_bytes();
            Message::SendRarp([a, b, c, d, e, f])
        }
        R::NET_SET_MTU => Message::SetMtu(body.u64()?),
        R::GET_CONFIG => Message::GetConfig(body.config_range()?),
        R::SET_CONFIG => Message::SetConfig(body.config_range()?, body.0.to_vec()),
        R::SET_BACKEND_REQ_FD => Message::SetBackendFd(fd?),
        R::GET_INFLIGHT_FD => {
            let area = body.inflight_area()?;
            Message::GetInflight(area, body.0.len())
        }
        R::SET_INFLIGHT_FD => Message::SetInflight(body.inflight_area()?, fd?),
        R::RESET_DEVICE => Message::ResetDevice,
        R::GET_MAX_MEM_SLOTS => Message::GetMaxMemSlots,
        R::ADD_MEM_REG => {
            body.u64()?;
            Message::AddMemReg(body.region()?, fd?)
        }
        R::REM_MEM_REG => {
            body.u64()?;
            Message::RemMemReg(body.region()?)
        }
        R::SET_STATUS => Message::SetStatus(body.u64()?),
        R::GET_STATUS => Message::GetStatus,
        _ => Message::NeverOffered,
    })
}

/// SET_MEM_TABLE: as many regions as announced, as many descriptors as regions.
fn mem_table(
    body: &[u8],
    fds: Vec<OwnedFd>,
) -> Result<Option<Vec<(RegionSpec, OwnedFd)>>, SessionFault> {
    let mut reader = Reader(body);
    let (Some(announced), Some(_padding)) = (reader.u32(), reader.u32()) else { return Ok(None) };
    let count = usize::try_from(announced).unwrap_or(usize::MAX);
    if count.checked_mul(32) != Some(reader.0.len()) {
        return Ok(None);
    }
    let regions: Vec<RegionSpec> = std::iter::from_fn(|| reader.region()).collect();
    if regions.len() != fds.len() {
        let request = FrontendReq::SET_MEM_TABLE.into();
        return Err(SessionFault::DescriptorCount { request, count: fds.len() });
    }
    Ok(Some(regions.into_iter().zip(fds).collect()))
}

fn ring_fd_kind(request: FrontendReq) -> Option<RingFdKind> {
    match request {
        FrontendReq::SET_VRING_KICK => Some(RingFdKind::Kick),
        FrontendReq::SET_VRING_CALL => Some(RingFdKind::Call),
        FrontendReq::SET_VRING_ERR => Some(RingFdKind::Err),
        _ => None,
    }
}

/// SET_VRING_KICK, CALL and ERR: exactly one of a descriptor and the flag that there is none.
fn ring_fd(
    request: FrontendReq,
    kind: RingFdKind,
    payload: u64,
    mut fds: Vec<OwnedFd>,
) -> Result<Message, SessionFault> {
    let count = fds.len();
    let fd = fds.pop();
    let known = payload & !(RING_INDEX_MASK | NO_FD) == 0;
    if !known || (payload & NO_FD != 0) == fd.is_some() {
        return Err(SessionFault::BadRingDescriptor { request, payload, count });
    }
    Ok(Message::SetRingFd { kind, index: (payload & RING_INDEX_MASK) as u32, fd })
}

/// A reply to `request` with this body.
pub(crate) fn reply(request: u32, body: &[u8]) -> Vec<u8> {
    message(request, VhostUserHeaderFlag::REPLY.bits(), body)
}

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, which is not to be answered.
pub(crate) fn config_change() -> Vec<u8> {
    message(BackendReq::CONFIG_CHANGE_MSG.into(), 0, &[])
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    for field in [request, VERSION | flags, size] {
        bytes.extend_from_slice(&field.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Takes native-endian numbers from the front of a body.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn ring_state(&mut self) -> Option<RingState> {
        Some(RingState { index: self.u32()?, num: self.u32()? })
    }

    fn ring_addr(&mut self) -> Option<Message> {
        let (index, flags) = (self.u32()?, self.u32()?);
        let addr = RingAddr { flags, desc: self.u64()?, used: self.u64()?, avail: self.u64()? };
        Some(Message::SetRingAddr { index, addr })
    }

    fn config_range(&mut self) -> Option<ConfigRange> {
        Some(ConfigRange { offset: self.u32()?, size: self.u32()?, flags: self.u32()? })
    }

    fn inflight_area(&mut self) -> Option<InflightArea> {
        Some(InflightArea {
            mmap_size: self.u64()?,
            mmap_offset: self.u64()?,
            queues: self.u16()?,
            queue_size: self.u16()?,
        })
    }

    fn region(&mut self) -> Option<RegionSpec> {
        Some(RegionSpec {
            guest_addr: self.u64()?,
            size: self.u64()?,
            user_addr: self.u64()?,
            mmap_offset: self.u64()?,
        })
    }
}
