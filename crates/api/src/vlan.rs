//! Sets of VLANs, for trunk ports.

use std::fmt;
use std::str::FromStr;

/// Highest VLAN identifier (IEEE 802.1Q: 0 is priority only, 4095 is reserved).
pub const VLAN_MAX: u16 = 4094;

/// A set of VLAN identifiers, 1 to 4094; its text is `10,20-30`.
///
/// Kept as sorted ranges that neither touch nor overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanSet(Vec<(u16, u16)>);

/// A text that is not a [`VlanSet`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a set of VLANs: numbers and ranges from 1 to 4094 are allowed, like 10,20-30"
)]
pub struct BadVlanSet(String);

impl VlanSet {
    /// The ranges, in ascending order, both ends included.
    pub fn ranges(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.0.iter().copied()
    }

    /// Every identifier of the set, in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = u16> + '_ {
        self.ranges().flat_map(|(first, last)| first..=last)
    }

    /// Whether `vlan` is in the set.
    pub fn contains(&self, vlan: u16) -> bool {
        self.ranges().any(|(first, last)| (first..=last).contains(&vlan))
    }
}

impl FromStr for VlanSet {
    type Err = BadVlanSet;

    fn from_str(text: &str) -> Result<Self, BadVlanSet> {
        let ranges = crate::ranges::parse(text, 1, VLAN_MAX);
        ranges.map(Self).ok_or_else(|| BadVlanSet(text.chars().take(64).collect()))
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::ranges::write(&self.0, f)
    }
}

crate::text::as_text!(
    VlanSet,
    pattern: "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$",
    example: "10,20-30",
    what: "a set of VLANs (1 to 4094)"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for (text, shown, count) in [
            ("10", "10", 1),
            ("10,20-30", "10,20-30", 12),
            ("30-40, 20-31,10,11", "10-11,20-40", 23),
            ("1-4094", "1-4094", 4094),
        ] {
            let set: VlanSet = text.parse().unwrap();
            assert_eq!((set.to_string().as_str(), set.ids().count()), (shown, count));
            assert!(set.ids().all(|vlan| set.contains(vlan)));
        }
        assert!(!"10,20-30".parse::<VlanSet>().unwrap().contains(11));
        for bad in ["", "0", "4095", "30-20", "10,,20", "a", "10-", "-10", "70000"] {
            assert!(bad.parse::<VlanSet>().is_err(), "{bad}");
        }
    }
}
