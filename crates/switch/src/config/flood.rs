//! The ports of a flood.

use packet::{Mac, VlanEdit};

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
    dst: Mac,
    /// Ports that get no frames to this address, unless it is theirs; ascending.
    picky: &'s [(PortId, Mac)],
    narrow: std::slice::Iter<'s, (u16, PortId)>,
    wide: std::slice::Iter<'s, (PortId, VlanMode)>,
}

impl Iterator for FloodMembers<'_> {
    type Item = FloodMember;

    #[inline]
    fn next(&mut self) -> Option<FloodMember> {
        let Flood { in_port, class } = self.flood;
        let (picky, dst) = (self.picky, self.dst);
        let wanted = |port: PortId| {
            let place = picky.binary_search_by_key(&port, |(port, _)| *port);
            place.ok().and_then(|place| picky.get(place)).is_none_or(|(_, own)| *own == dst)
        };
        let narrow = self.narrow.by_ref().map(|(_, port)| (*port, vlan::untagged(class)));
        let wide = self.wide.by_ref().map(|(port, mode)| (*port, mode.egress(class)));
        narrow.chain(wide).find_map(|(port, egress)| match egress {
            Egress::Edit(edit) if port != in_port && wanted(port) => {
                Some(FloodMember { port, edit })
            }
            _ => None,
        })
    }
}

impl Snapshot {
    /// The ports of a flood of a frame to `dst`, with what to do to the tag for each. In no particular
    /// order.
    #[inline]
    pub fn flood(&self, flood: Flood, dst: Mac) -> FloodMembers<'_> {
        let Flood { in_port, class } = flood;
        let network = self.port(in_port).and_then(|port| self.network(port.network));
        let (narrow, wide) = network.map_or((&[][..], &[][..]), |n| (&n.narrow[..], &n.wide[..]));
        let from = narrow.partition_point(|(vid, _)| *vid < class.fid);
        let narrow = narrow.get(from..).unwrap_or_default();
        let to = narrow.partition_point(|(vid, _)| *vid == class.fid);
        let narrow = narrow.get(..to).unwrap_or_default();
        let picky = network.map_or(&[][..], |network| &network.picky[..]);
        let picky = if dst.is_multicast() { &[] } else { picky };
        FloodMembers { flood, dst, picky, narrow: narrow.iter(), wide: wide.iter() }
    }
}
