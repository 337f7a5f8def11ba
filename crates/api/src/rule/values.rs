//! Values that a rule asks for.

use std::fmt;
use std::str::FromStr;

use crate::{Mac, VLAN_MAX};

/// A text that is no value of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct BadValue {
    text: String,
    what: &'static str,
}

fn bad(text: &str, what: &'static str) -> BadValue {
    BadValue { text: text.chars().take(64).collect(), what }
}

/// A decimal number without a sign or leading zeros.
pub(super) fn decimal<T: FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) {
        return None;
    }
    text.parse().ok()
}

/// Ports from one to another, like `8000-8080`, or one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// What an IP packet carries: `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, `gre`, `esp`, `ah`, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(pub u8);

/// `ipv4`, `ipv6`, `arp`, or a number like `0x88cc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtherType(pub u16);

/// The outermost tag of a frame: `untagged` (or one with a priority only), or a VLAN id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowVlan {
    /// There is none.
    Untagged,
    /// It has this id, 1 to 4094.
    Id(u16),
}

/// An address, in the bits of a mask: `02:00:5e:10:00:01`, or
/// `01:00:00:00:00:00/01:00:00:00:00:00` for all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacMask {
    mac: Mac,
    mask: Mac,
}

/// Flags of TCP that are set, and which of them count: `syn/syn,ack` is SYN without ACK, `rst` is RST
/// with any others, `none/syn` is no SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFlags {
    set: u8,
    mask: u8,
}

const PROTOCOLS: [(&str, u8); 8] = [
    ("icmp", 1),
    ("tcp", 6),
    ("udp", 17),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("sctp", 132),
];
const ETHERTYPES: [(&str, u16); 3] = [("ipv4", 0x0800), ("arp", 0x0806), ("ipv6", 0x86dd)];
const FLAGS: [(&str, u8); 8] = [
    ("fin", 1),
    ("syn", 2),
    ("rst", 4),
    ("psh", 8),
    ("ack", 16),
    ("urg", 32),
    ("ece", 64),
    ("cwr", 128),
];

impl PortRange {
    /// Ports from `first` to `last`. `None`: it ends before it begins.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// The lowest.
    pub fn first(self) -> u16 {
        self.first
    }

    /// The highest.
    pub fn last(self) -> u16 {
        self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { first.fmt(f) } else { write!(f, "{first}-{last}") }
    }
}

impl FromStr for PortRange {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = decimal(first).zip(decimal(last)).and_then(|(a, b)| Self::new(a, b));
        range.ok_or_else(|| bad(text, "a port (0 to 65535) or a range of them like 8000-8080"))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

impl FromStr for Protocol {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let named = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
        let what = "a protocol: icmp, icmpv6, tcp, udp, sctp, gre, esp, ah or a number to 255";
        named.or_else(|| decimal(text)).map(Self).ok_or_else(|| bad(text, what))
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ETHERTYPES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{:#06x}", self.0),
        }
    }
}

impl FromStr for EtherType {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let named = ETHERTYPES.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
        let hex = |text: &str| {
            let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 4)?;
            u16::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
        };
        let what = "an EtherType: ipv4, ipv6, arp or four hexadecimal digits like 0x88cc";
        named.or_else(|| hex(text)).map(Self).ok_or_else(|| bad(text, what))
    }
}

impl fmt::Display for FlowVlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untagged => f.write_str("untagged"),
            Self::Id(id) => id.fmt(f),
        }
    }
}

impl FromStr for FlowVlan {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if text == "untagged" {
            return Ok(Self::Untagged);
        }
        let id = decimal(text).filter(|id| (1..=VLAN_MAX).contains(id));
        id.map(Self::Id).ok_or_else(|| bad(text, "`untagged` or a VLAN id from 1 to 4094"))
    }
}

impl MacMask {
    /// An address in the bits of a mask; other bits of it are cleared.
    pub fn new(mac: Mac, mask: Mac) -> Self {
        let mut bits = mac.0;
        bits.iter_mut().zip(mask.0).for_each(|(bits, mask)| *bits &= mask);
        Self { mac: Mac(bits), mask }
    }

    /// The address.
    pub fn mac(self) -> Mac {
        self.mac
    }

    /// Its bits that count.
    pub fn mask(self) -> Mac {
        self.mask
    }
}

const ALL_BITS: Mac = Mac([0xff; 6]);

impl fmt::Display for MacMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mask == ALL_BITS {
            return self.mac.fmt(f);
        }
        write!(f, "{}/{}", self.mac, self.mask)
    }
}

impl FromStr for MacMask {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (mac, mask) = match text.split_once('/') {
            Some((mac, mask)) => (mac.parse().ok(), mask.parse().ok()),
            None => (text.parse().ok(), Some(ALL_BITS)),
        };
        let what = "an Ethernet address like 02:00:5e:10:00:01, or one with a mask behind a slash \
                    that leaves nothing of it out";
        let read = mac.zip(mask).map(|(mac, mask)| (mac, Self::new(mac, mask)));
        let whole = read.filter(|(mac, read)| read.mac == *mac);
        whole.map(|(_, read)| read).ok_or_else(|| bad(text, what))
    }
}

impl TcpFlags {
    /// Those of `set` are set, and the others of `mask` are not. `None`: some of `set` are not in `mask`,
    /// or the mask is empty.
    pub fn new(set: u8, mask: u8) -> Option<Self> {
        (mask != 0 && set & !mask == 0).then_some(Self { set, mask })
    }

    /// Those that are set, as in the header (RFC 9293, 3.1: FIN is bit 0).
    pub fn set(self) -> u8 {
        self.set
    }

    /// Those that count.
    pub fn mask(self) -> u8 {
        self.mask
    }
}

fn write_flags(flags: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if flags == 0 {
        return f.write_str("none");
    }
    let set = FLAGS.iter().filter(|(_, bit)| flags & bit != 0);
    for (place, (name, _)) in set.enumerate() {
        f.write_str(if place == 0 { "" } else { "," })?;
        f.write_str(name)?;
    }
    Ok(())
}

fn read_flags(text: &str) -> Option<u8> {
    if text == "none" {
        return Some(0);
    }
    let bit = |name: &str| FLAGS.iter().find(|(known, _)| *known == name).map(|(_, bit)| *bit);
    text.split(',').try_fold(0, |flags, name| Some(flags | bit(name)?))
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_flags(self.set, f)?;
        if self.set == self.mask {
            return Ok(());
        }
        f.write_str("/")?;
        write_flags(self.mask, f)
    }
}

impl FromStr for TcpFlags {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (set, mask) = text.split_once('/').unwrap_or((text, text));
        let flags = read_flags(set).zip(read_flags(mask)).and_then(|(a, b)| Self::new(a, b));
        let what = "flags of TCP (fin, syn, rst, psh, ack, urg, ece, cwr) that are set, and behind a \
                    slash all that count, like syn/syn,ack or none/rst";
        flags.ok_or_else(|| bad(text, what))
    }
}

crate::text::as_text!(
    EtherType,
    pattern: "^(ipv4|ipv6|arp|0x[0-9a-fA-F]{4})$",
    example: "ipv4",
    what: "an EtherType: ipv4, ipv6, arp, or four hexadecimal digits like 0x88cc"
);
crate::text::as_text!(
    MacMask,
    pattern: "^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(/([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2})?$",
    example: "02:00:5e:10:00:01",
    what: "an Ethernet address, or one and a mask like 01:00:00:00:00:00/01:00:00:00:00:00"
);
crate::text::as_text!(
    TcpFlags,
    pattern: "^[a-z,]+(/[a-z,]+)?$",
    example: "syn/syn,ack",
    what: "flags of TCP that are set, and behind a slash all that count; without it those that are set"
);

/// Gives `$ty` (which has `FromStr` and `Display`) a serde form that is a number where its text is
/// one, and its text otherwise.
macro_rules! as_number_or_text {
    ($ty:ident, most: $most:expr, example: $example:expr, what: $what:expr) => {
        impl serde::Serialize for $ty {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                match decimal(&self.to_string()) {
                    Some(number) => to.serialize_u16(number),
                    None => to.collect_str(self),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $ty {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $ty;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$ty, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$ty, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$ty, E> {
                        number.to_string().parse().map_err(E::custom)
                    }
                }
                from.deserialize_any(Visitor)
            }
        }

        impl utoipa::PartialSchema for $ty {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
                OneOfBuilder::new()
                    .item(
                        ObjectBuilder::new()
                            .schema_type(Type::Integer)
                            .minimum(Some(0))
                            .maximum(Some($most)),
                    )
                    .item(
                        ObjectBuilder::new()
                            .schema_type(Type::String)
                            .examples([serde_json::Value::from($example)]),
                    )
                    .description(Some($what))
                    .into()
            }
        }

        impl utoipa::ToSchema for $ty {}

        impl schemars::JsonSchema for $ty {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($ty).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": ["integer", "string"],
                    "description": $what,
                    "examples": [$example],
                })
            }
            fn inline_schema() -> bool {
                true
            }
        }
    };
}

as_number_or_text!(
    PortRange,
    most: 65_535,
    example: "8000-8080",
    what: "a port, or a range of ports as a string like \"8000-8080\""
);
as_number_or_text!(
    Protocol,
    most: 255,
    example: "tcp",
    what: "a protocol: its number, or icmp, icmpv6, tcp, udp, sctp, gre, esp or ah"
);
as_number_or_text!(
    FlowVlan,
    most: 4094,
    example: "untagged",
    what: "a VLAN id, 1 to 4094, or \"untagged\""
);
