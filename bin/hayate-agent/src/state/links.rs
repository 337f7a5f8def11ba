//! Links: which of them the switch can stand in for.

use api::Mac;

use super::Ifindex;

/// What a link is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A card, a TAP device, an end of a veth pair.
    Ethernet,
    /// A VLAN on another link.
    Vlan {
        /// The link it is on.
        parent: Ifindex,
        /// VLAN id.
        vid: u16,
    },
    /// Anything else.
    Other,
}

/// What one version of IP does on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FamilyConf {
    /// Packets that come in are forwarded.
    pub(crate) forwarding: bool,
    /// `rp_filter` of the link alone.
    pub(crate) rp_filter: u32,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) mac: Option<Mac>,
    /// Address that its card was made with.
    pub(crate) permanent: Option<Mac>,
    /// Longest packet that both versions of IP send as it is, bytes.
    pub(crate) mtu: u32,
    /// It is switched on and has a carrier.
    pub(crate) up: bool,
    pub(crate) kind: Kind,
    /// It belongs to a bridge, a bond, a VRF.
    pub(crate) enslaved: bool,
    /// It sets priorities in VLAN tags.
    pub(crate) priorities: bool,
    /// It resolves no addresses.
    pub(crate) noarp: bool,
    /// A link below of which it takes packets, like macvlan.
    pub(crate) takes_from: Option<Ifindex>,
    pub(crate) v4: FamilyConf,
    pub(crate) v6: FamilyConf,
}

impl Link {
    /// A card for tests, up and forwarding: `eth1` with the address 02:00:00:00:00:01 is number 1.
    #[cfg(test)]
    pub(crate) fn plain(index: u8) -> Self {
        let conf = FamilyConf { forwarding: true, rp_filter: 0 };
        Self {
            name: format!("eth{index}"),
            mac: Some(Mac([2, 0, 0, 0, 0, index])),
            permanent: None,
            mtu: 1500,
            up: true,
            kind: Kind::Ethernet,
            enslaved: false,
            priorities: false,
            noarp: false,
            takes_from: None,
            v4: conf,
            v6: conf,
        }
    }

    /// Why the switch cannot stand in for it, looking at it alone.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        if self.kind == Kind::Other {
            return Some("is neither an Ethernet interface nor a VLAN on one");
        }
        let unicast = |mac: Mac| mac.0 != [0; 6] && mac.0[0] & 1 == 0;
        if !self.mac.is_some_and(unicast) {
            return Some("has no Ethernet address");
        }
        if !self.up {
            return Some("is down");
        }
        if self.enslaved {
            return Some("belongs to a bridge, bond or VRF");
        }
        if self.priorities {
            return Some("maps priorities into VLAN tags");
        }
        if self.noarp {
            return Some("resolves no addresses");
        }
        None
    }
}
