//! Numbers of the protocol, from its specification.

/// Version in the flags of every header.
pub const VERSION: u32 = 1;
/// Flag of a reply.
pub const REPLY: u32 = 4;
/// Flag of a request whose acknowledgement is wanted.
pub const NEED_REPLY: u32 = 8;
/// Flag in the payload of SET_VRING_KICK, CALL and ERR: no descriptor.
pub const NO_FD: u64 = 0x100;

/// The bytes of a message.
#[must_use]
pub fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(12 + body.len());
    for field in [request, flags, body.len() as u32] {
        bytes.extend_from_slice(&field.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Numbers with the names the specification has for them.
macro_rules! numbers {
    ($type:ty; $($name:ident = $value:expr),* $(,)?) => {
        $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: $type = $value;)*
    };
}

/// Request numbers.
pub mod request {
    numbers! { u32;
        GET_FEATURES = 1, SET_FEATURES = 2, SET_OWNER = 3, RESET_OWNER = 4, SET_MEM_TABLE = 5,
        SET_LOG_BASE = 6, SET_LOG_FD = 7, SET_VRING_NUM = 8, SET_VRING_ADDR = 9,
        SET_VRING_BASE = 10, GET_VRING_BASE = 11, SET_VRING_KICK = 12, SET_VRING_CALL = 13,
        SET_VRING_ERR = 14, GET_PROTOCOL_FEATURES = 15, SET_PROTOCOL_FEATURES = 16,
        GET_QUEUE_NUM = 17, SET_VRING_ENABLE = 18, SEND_RARP = 19, NET_SET_MTU = 20,
        SET_BACKEND_REQ_FD = 21, IOTLB_MSG = 22, SET_VRING_ENDIAN = 23, GET_CONFIG = 24,
        SET_CONFIG = 25, CREATE_CRYPTO_SESSION = 26, CLOSE_CRYPTO_SESSION = 27,
        POSTCOPY_ADVISE = 28, POSTCOPY_LISTEN = 29, POSTCOPY_END = 30, GET_INFLIGHT_FD = 31,
        SET_INFLIGHT_FD = 32, GPU_SET_SOCKET = 33, RESET_DEVICE = 34, VRING_KICK = 35,
        GET_MAX_MEM_SLOTS = 36, ADD_MEM_REG = 37, REM_MEM_REG = 38, SET_STATUS = 39,
        GET_STATUS = 40, GET_SHARED_OBJECT = 41, SET_DEVICE_STATE_FD = 42,
        CHECK_DEVICE_STATE = 43, GET_SHMEM_CONFIG = 44,
    }
}

/// Numbers of the requests a back end makes.
pub mod backend_request {
    numbers! { u32; CONFIG_CHANGE_MSG = 2 }
}

/// Protocol feature bits, as masks.
pub mod protocol {
    numbers! { u64;
        MQ = 1 << 0, LOG_SHMFD = 1 << 1, RARP = 1 << 2, REPLY_ACK = 1 << 3, MTU = 1 << 4,
        BACKEND_REQ = 1 << 5, CONFIG = 1 << 9, INFLIGHT_SHMFD = 1 << 12, RESET_DEVICE = 1 << 13,
        INBAND_NOTIFICATIONS = 1 << 14, CONFIGURE_MEM_SLOTS = 1 << 15, STATUS = 1 << 16,
    }
    /// What QEMU and DPDK ask a network back end for.
    pub const NET: u64 = MQ | RARP | REPLY_ACK | MTU | RESET_DEVICE | CONFIGURE_MEM_SLOTS | STATUS;
    /// What QEMU asks the back end of a disk for.
    pub const BLOCK: u64 = MQ
        | REPLY_ACK
        | BACKEND_REQ
        | CONFIG
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;
}

/// Feature bits that concern the transport, as masks.
pub mod feature {
    numbers! { u64;
        LOG_ALL = 1 << 26, INDIRECT_DESC = 1 << 28, EVENT_IDX = 1 << 29,
        PROTOCOL_FEATURES = 1 << 30, VERSION_1 = 1 << 32, ACCESS_PLATFORM = 1 << 33,
        RING_PACKED = 1 << 34, IN_ORDER = 1 << 35,
    }
}
