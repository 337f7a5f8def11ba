//! The ports of a flood.

use packet::VlanEdit;

use super::Snapshot;
use crate::vlan::{self, Egress, VlanMode};
use crate::{Flood, PortId};

/// One port a flooded frame goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodMember {
    /// The port.
    pub port: PortId,
    /// What to do with the tag for it.
    pub edit: VlanEdit,
}

/// The ports of a flood: see [`Snapshot::flood`].
#[derive(Clone, Debug)]
pub struct FloodMembers<'s> {
    flood: Flood,
    narrow: std::slice::Iter<'s, (u16, PortId)>,
    wide: std::slice::Iter<'s, (PortId, VlanMode)>,
}

impl Iterator for FloodMembers<'_> {
    type Item = FloodMember;

    #[inline]
    fn next(&mut self) -> Option<FloodMember> {
        let Flood { in_port, class } = self.flood;
        let narrow = self.narrow.by_ref().map(|(_, port)| (*port, vlan::untagged(class)));
        let wide = self.wide.by_ref().map(|(port, mode)| (*port, mode.egress(class)));
        narrow.chain(wide).find_map(|(port, egress)| match egress {
            Egress::Edit(edit) if port != in_port => Some(FloodMember { port, edit }),
            _ => None,
        })
    }
}

impl Snapshot {
    /// The ports of a flood, with what to do to the tag for each. In no particular order.
    #[inline]
    pub fn flood(&self, flood: Flood) -> FloodMembers<'_> {
        let Flood { in_port, class } = flood;
        let network = self.port(in_port).and_then(|port| self.network(port.network));
        let (narrow, wide) = network.map_or((&[][..], &[][..]), |n| (&n.narrow[..], &n.wide[..]));
        let from = narrow.partition_point(|(vid, _)| *vid < class.fid);
        let narrow = narrow.get(from..).unwrap_or_default();
        let to = narrow.partition_point(|(vid, _)| *vid == class.fid);
        let narrow = narrow.get(..to).unwrap_or_default();
        FloodMembers { flood, narrow: narrow.iter(), wide: wide.iter() }
    }
}
