//! Ethernet and 802.1Q: addresses, tags, the header view, and what may be done to a tag.

use std::fmt;
use std::str::FromStr;

use crate::be16;

/// Length of an untagged Ethernet header, bytes.
pub const ETH_HLEN: usize = 14;
/// Length of one 802.1Q tag, bytes.
pub const VLAN_HLEN: usize = 4;
/// Offset of the EtherType (or of the outermost tag) in a frame.
pub const ETHERTYPE_OFFSET: usize = 12;

/// EtherType of IPv4.
pub const ETH_P_IP: u16 = 0x0800;
/// EtherType of ARP.
pub const ETH_P_ARP: u16 = 0x0806;
/// EtherType of RARP (RFC 903).
pub const ETH_P_RARP: u16 = 0x8035;
/// EtherType of IPv6.
pub const ETH_P_IPV6: u16 = 0x86dd;
/// Tag protocol of a customer tag (802.1Q): the only tag the switch reads.
pub const ETH_P_8021Q: u16 = 0x8100;
/// Tag protocol of a service tag (802.1ad).
pub const ETH_P_8021AD: u16 = 0x88a8;
/// Tag protocol of service tags before 802.1ad was written.
pub const ETH_P_QINQ1: u16 = 0x9100;

/// Is this EtherType the protocol of some VLAN tag, customer or service?
pub const fn is_tag_protocol(ethertype: u16) -> bool {
    matches!(ethertype, ETH_P_8021Q | ETH_P_8021AD | ETH_P_QINQ1)
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `ff:ff:ff:ff:ff:ff`
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// `00:00:00:00:00:00`
    pub const ZERO: Self = Self([0; 6]);

    /// Group bit set: multicast or broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// All zeros.
    pub const fn is_zero(self) -> bool {
        self.to_u64() == 0
    }

    /// `01:80:c2:00:00:00` to `0f`: link-local protocols a bridge never forwards
    /// (802.1Q table 8-1).
    pub const fn is_reserved(self) -> bool {
        self.to_u64() & !0xf == 0x0180_c200_0000
    }

    /// The address as a number, first byte most significant.
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// Inverse of [`Mac::to_u64`]; the upper 16 bits are ignored.
    pub const fn from_u64(value: u64) -> Self {
        let [_, _, a, b, c, d, e, f] = value.to_be_bytes();
        Self([a, b, c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// What [`Mac::from_str`] refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a MAC address is written as six two-digit hexadecimal numbers, like 52:54:00:12:34:56")]
pub struct MacParseError;

impl FromStr for Mac {
    type Err = MacParseError;

    fn from_str(text: &str) -> Result<Self, MacParseError> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or(MacParseError)?;
            // `from_str_radix` would take a sign.
            if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(MacParseError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacParseError)?;
        }
        if parts.next().is_some() { Err(MacParseError) } else { Ok(Self(bytes)) }
    }
}

/// Tag control information of an 802.1Q tag: priority (3 bits), drop eligible (1), VLAN id (12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tci(pub u16);

impl Tci {
    /// The VLAN id, 0 to 4095; 0 means the tag carries a priority only.
    pub const fn vid(self) -> u16 {
        self.0 & 0x0fff
    }

    /// The same priority with another VLAN id (its low 12 bits).
    pub const fn with_vid(self, vid: u16) -> Self {
        Self((self.0 & 0xf000) | (vid & 0x0fff))
    }
}

/// What to do with the outermost 802.1Q tag of a frame on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VlanEdit {
    /// Leave the frame as it came.
    #[default]
    Keep,
    /// Put this tag in front.
    Push(Tci),
    /// Remove the outermost tag.
    Pop,
    /// Overwrite the outermost tag's TCI (a priority tag gets its VLAN).
    Set(Tci),
}

impl VlanEdit {
    /// By how many bytes the frame, and every offset behind the MAC addresses, grows: 4, 0 or -4.
    pub const fn growth(self) -> i16 {
        match self {
            Self::Push(_) => VLAN_HLEN as i16,
            Self::Pop => -(VLAN_HLEN as i16),
            Self::Keep | Self::Set(_) => 0,
        }
    }
}

/// The Ethernet header of a frame, tags skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eth {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// The outermost tag if it is a customer tag (0x8100).
    pub tag: Option<Tci>,
    /// EtherType behind that tag (which may be that of another tag), or the frame's own.
    pub ethertype: u16,
}

impl Eth {
    /// Reads the header; `None` if the frame is shorter than 14 bytes, or than 18 with a tag.
    #[inline]
    pub fn parse(head: &[u8]) -> Option<Self> {
        let first: &[u8; ETH_HLEN] = head.first_chunk()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *first;
        let outer = u16::from_be_bytes([t0, t1]);
        let (tag, ethertype) = if outer == ETH_P_8021Q {
            (Some(Tci(be16(head, 14)?)), be16(head, 16)?)
        } else {
            (None, outer)
        };
        Some(Self {
            dst: Mac([d0, d1, d2, d3, d4, d5]),
            src: Mac([s0, s1, s2, s3, s4, s5]),
            tag,
            ethertype,
        })
    }

    /// Would removing the outermost tag uncover another one?
    pub const fn is_stacked(&self) -> bool {
        is_tag_protocol(self.ethertype)
    }
}

/// The outermost customer tag (0x8100), if the frame has one.
#[inline]
pub fn vlan_tag(head: &[u8]) -> Option<Tci> {
    (be16(head, ETHERTYPE_OFFSET)? == ETH_P_8021Q).then(|| be16(head, 14)).flatten().map(Tci)
}

/// EtherType and offset of what the frame carries, behind at most two tags of any kind.
///
/// With more tags than that, the EtherType returned is that of the third tag.
#[inline]
pub fn network_layer(head: &[u8]) -> Option<(u16, usize)> {
    let mut at = ETHERTYPE_OFFSET;
    let mut ethertype = be16(head, at)?;
    for _ in 0..2 {
        if !is_tag_protocol(ethertype) {
            break;
        }
        at += VLAN_HLEN;
        ethertype = be16(head, at)?;
    }
    Some((ethertype, at + 2))
}

#[cfg(test)]
mod tests;
