//! Which packets are delegated: those to a prefix, or to one address from one machine.
//!
//! Both are written as text. A text that is none, or a prefix with bits behind its length, is refused where it
//! is read.

use std::net::IpAddr;

use crate::Mac;

/// Which packets: to a prefix, or to one address in frames from one machine, like
/// `10.0.7.9/32 from 02:00:5e:10:00:01`. The latter goes before all prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    prefix: Prefix,
    from: Option<Mac>,
}

/// Neither a prefix nor an address and a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSelector {
    /// The prefix.
    #[error(transparent)]
    Prefix(#[from] BadPrefix),
    /// Not one address.
    #[error("{0} is not one address; write 10.0.7.9/32 from 02:00:5e:10:00:01")]
    NotOne(Prefix),
    /// The machine's address.
    #[error(transparent)]
    Mac(#[from] crate::BadMac),
}

impl Selector {
    /// Packets to one address in frames from one machine. `None`: it is more than one address.
    pub fn exact(prefix: Prefix, from: Mac) -> Option<Self> {
        let longest = if prefix.address.is_ipv4() { 32 } else { 128 };
        (prefix.length == longest).then_some(Self { prefix, from: Some(from) })
    }

    /// All packets to a prefix.
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// Only those in frames from this machine, and it is one address.
    pub fn from(&self) -> Option<Mac> {
        self.from
    }
}

impl From<Prefix> for Selector {
    fn from(prefix: Prefix) -> Self {
        Self { prefix, from: None }
    }
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from {
            Some(from) => write!(f, "{} from {from}", self.prefix),
            None => self.prefix.fmt(f),
        }
    }
}

impl std::str::FromStr for Selector {
    type Err = BadSelector;

    fn from_str(text: &str) -> Result<Self, BadSelector> {
        let Some((prefix, from)) = text.split_once(" from ") else {
            return Ok(Self { prefix: text.parse()?, from: None });
        };
        let prefix: Prefix = prefix.parse()?;
        Self::exact(prefix, from.parse()?).ok_or(BadSelector::NotOne(prefix))
    }
}

crate::text::as_text!(
    Selector,
    pattern: "^[0-9a-fA-F.:]+/[0-9]{1,3}( from [0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5})?$",
    example: "10.1.0.0/16",
    what: "An IP prefix, or one address and the machine whose packets to it are meant"
);

/// A prefix like `10.1.0.0/16`, without bits behind its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a prefix; write one like 10.1.0.0/16 or 2001:db8::/32")]
pub struct BadPrefix(String);

impl Prefix {
    /// A prefix; bits of `address` behind `length` are cleared. `None` if it is too long.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(v4) if length <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                IpAddr::V4((v4.to_bits() & mask).into())
            }
            IpAddr::V6(v6) if length <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                IpAddr::V6((v6.to_bits() & mask).into())
            }
            _ => return None,
        };
        Some(Self { address, length })
    }

    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits that all its addresses share.
    pub fn length(&self) -> u8 {
        self.length
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl std::str::FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        let bad = || BadPrefix(text.chars().take(64).collect());
        let (address, length) = text.split_once('/').ok_or_else(bad)?;
        let address = address.parse().map_err(|_| bad())?;
        let length = length.parse().map_err(|_| bad())?;
        let prefix = Self::new(address, length).ok_or_else(bad)?;
        if prefix.address == address { Ok(prefix) } else { Err(bad()) }
    }
}

crate::text::as_text!(
    Prefix,
    pattern: "^[0-9a-fA-F.:]+/[0-9]{1,3}$",
    example: "10.1.0.0/16",
    what: "An IP prefix"
);
