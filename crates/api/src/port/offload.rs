//! Offloads and ring features that a vhost port can be told not to offer.

use serde::{Deserialize, Serialize};

/// Something a vhost port offers unless told not to. `tx-` is what the guest sends, `rx-` what it
/// receives; a name without either is both.
///
/// What a feature depends on goes with it (virtio 1.3, 5.1.3.1): without `tx-csum` there is no
/// `tx-tso4`, and so on.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Offload {
    /// Partial checksums, both directions.
    Csum,
    /// Partial checksums of what the guest sends.
    TxCsum,
    /// Partial checksums of what the guest receives.
    RxCsum,
    /// TCP segmentation over IPv4.
    Tso4,
    /// The same, of what the guest sends.
    TxTso4,
    /// The same, of what the guest receives.
    RxTso4,
    /// TCP segmentation over IPv6.
    Tso6,
    /// The same, of what the guest sends.
    TxTso6,
    /// The same, of what the guest receives.
    RxTso6,
    /// TCP segmentation with explicit congestion notification.
    Ecn,
    /// UDP segmentation.
    Uso,
    /// The same, of what the guest sends.
    TxUso,
    /// The same, of what the guest receives.
    RxUso,
    /// Received frames that span several buffers.
    MrgRxbuf,
    /// Packed rings.
    Packed,
    /// Notification by index.
    EventIdx,
    /// Indirect descriptors.
    Indirect,
    /// Buffers used in the order they were offered.
    InOrder,
    /// Several queue pairs.
    Mq,
}

const CSUM: u64 = 1 << 0;
const GUEST_CSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
const GUEST_USO: u64 = 1 << 54 | 1 << 55;
const HOST_USO: u64 = 1 << 56;

impl Offload {
    /// All of them, in the order of the declaration.
    pub const ALL: [Self; 19] = [
        Self::Csum,
        Self::TxCsum,
        Self::RxCsum,
        Self::Tso4,
        Self::TxTso4,
        Self::RxTso4,
        Self::Tso6,
        Self::TxTso6,
        Self::RxTso6,
        Self::Ecn,
        Self::Uso,
        Self::TxUso,
        Self::RxUso,
        Self::MrgRxbuf,
        Self::Packed,
        Self::EventIdx,
        Self::Indirect,
        Self::InOrder,
        Self::Mq,
    ];

    /// Its name, as written in requests and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Csum => "csum",
            Self::TxCsum => "tx-csum",
            Self::RxCsum => "rx-csum",
            Self::Tso4 => "tso4",
            Self::TxTso4 => "tx-tso4",
            Self::RxTso4 => "rx-tso4",
            Self::Tso6 => "tso6",
            Self::TxTso6 => "tx-tso6",
            Self::RxTso6 => "rx-tso6",
            Self::Ecn => "ecn",
            Self::Uso => "uso",
            Self::TxUso => "tx-uso",
            Self::RxUso => "rx-uso",
            Self::MrgRxbuf => "mrg-rxbuf",
            Self::Packed => "packed",
            Self::EventIdx => "event-idx",
            Self::Indirect => "indirect",
            Self::InOrder => "in-order",
            Self::Mq => "mq",
        }
    }

    /// The virtio feature bits it stands for.
    pub fn features(self) -> u64 {
        match self {
            Self::Csum => CSUM | GUEST_CSUM,
            Self::TxCsum => CSUM,
            Self::RxCsum => GUEST_CSUM,
            Self::Tso4 => HOST_TSO4 | GUEST_TSO4,
            Self::TxTso4 => HOST_TSO4,
            Self::RxTso4 => GUEST_TSO4,
            Self::Tso6 => HOST_TSO6 | GUEST_TSO6,
            Self::TxTso6 => HOST_TSO6,
            Self::RxTso6 => GUEST_TSO6,
            Self::Ecn => HOST_ECN | GUEST_ECN,
            Self::Uso => HOST_USO | GUEST_USO,
            Self::TxUso => HOST_USO,
            Self::RxUso => GUEST_USO,
            Self::MrgRxbuf => 1 << 15,
            Self::Packed => 1 << 34,
            Self::EventIdx => 1 << 29,
            Self::Indirect => 1 << 28,
            Self::InOrder => 1 << 35,
            Self::Mq => 1 << 22,
        }
    }

    /// The feature bits not to offer when `off` is not wanted, with all that depend on them.
    pub fn features_off(off: &[Self]) -> u64 {
        let mut bits = off.iter().fold(0, |bits, offload| bits | offload.features());
        if bits & CSUM != 0 {
            bits |= HOST_TSO4 | HOST_TSO6 | HOST_USO;
        }
        if bits & GUEST_CSUM != 0 {
            bits |= GUEST_TSO4 | GUEST_TSO6 | GUEST_USO;
        }
        if bits & HOST_TSO4 != 0 && bits & HOST_TSO6 != 0 {
            bits |= HOST_ECN;
        }
        if bits & GUEST_TSO4 != 0 && bits & GUEST_TSO6 != 0 {
            bits |= GUEST_ECN;
        }
        bits
    }
}

impl std::str::FromStr for Offload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|offload| offload.as_str() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|offload| offload.as_str()).collect();
            format!("allowed are {}", names.join(", "))
        })
    }
}
