//! What messages of rtnetlink say, in the terms of [`crate::state`].

use std::io;
use std::net::IpAddr;

use api::Mac;
use api::channel::Prefix;

use super::uapi::*;
use crate::state::{
    Change, ChangeKind, Family, FamilyConf, Gateway, Ifindex, Kind, Link, Object, Target,
};
use netlink::{Message, attributes, malformed, number, short, text};

/// A link, and what is in the way on it.
pub(super) struct ReadLink {
    pub(super) index: Ifindex,
    pub(super) link: Link,
    /// An XDP program sees its packets first.
    pub(super) xdp: bool,
    pub(super) vrf: bool,
}

/// A route.
pub(super) struct ReadRoute {
    pub(super) table: u32,
    pub(super) prefix: Prefix,
    pub(super) change: Change,
    /// It is for packets from certain addresses only.
    pub(super) from: bool,
}

/// A neighbour; with an address if it can be sent to.
pub(super) struct ReadNeighbour {
    pub(super) index: Ifindex,
    pub(super) address: IpAddr,
    pub(super) mac: Option<Mac>,
}

/// Links that leave the packets of the link below alone. Others take some of them, or may.
const HARMLESS_ABOVE: [&str; 11] = [
    "vlan",
    "veth",
    "gre",
    "gretap",
    "erspan",
    "ipip",
    "sit",
    "vti",
    "ip6tnl",
    "ip6gre",
    "ip6gretap",
];

/// Reads `RTM_NEWLINK`; nothing for what is not of this family.
pub(super) fn link(body: &[u8]) -> io::Result<Option<ReadLink>> {
    let [family, _, ..] = *body else { return Err(malformed()) };
    if family != AF_UNSPEC {
        // A bridge tells of its ports.
        return Ok(None);
    }
    let hardware = short(body, 2).ok_or_else(malformed)?;
    let index = number(body, 4).ok_or_else(malformed)?;
    let flags = number(body, 8).ok_or_else(malformed)?;
    let mut link = Link {
        name: String::new(),
        mac: None,
        permanent: None,
        mtu: 0,
        up: flags & IFF_UP != 0 && flags & IFF_LOWER_UP != 0,
        kind: Kind::Other,
        enslaved: false,
        priorities: false,
        noarp: flags & IFF_NOARP != 0,
        takes_from: None,
        v4: FamilyConf::default(),
        v6: FamilyConf::default(),
    };
    let (mut kind, mut vlan, mut below, mut elsewhere) = (String::new(), None, None, false);
    let mut xdp = false;
    for attribute in attributes(body, 16) {
        let (name, value) = attribute?;
        match name {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.mac = mac(value),
            IFLA_PERM_ADDRESS => link.permanent = mac(value),
            IFLA_MTU => link.mtu = number(value, 0).ok_or_else(malformed)?,
            IFLA_LINK => below = number(value, 0).filter(|index| *index != 0),
            IFLA_LINK_NETNSID => elsewhere = true,
            IFLA_MASTER => link.enslaved = number(value, 0) != Some(0),
            IFLA_LINKINFO => {
                for attribute in attributes(value, 0) {
                    match attribute? {
                        (IFLA_INFO_KIND, value) => kind = text(value),
                        (IFLA_INFO_DATA, value) => vlan = Some(value),
                        _ => {}
                    }
                }
            }
            IFLA_XDP => {
                for attribute in attributes(value, 0) {
                    if let (IFLA_XDP_ATTACHED, [mode, ..]) = attribute? {
                        xdp |= *mode != 0;
                    }
                }
            }
            IFLA_AF_SPEC => conf(value, &mut link)?,
            _ => {}
        }
    }
    // What is below may be in another namespace, where it is another's affair.
    let below = below.filter(|_| !elsewhere);
    if hardware == ARPHRD_ETHER {
        link.kind = match (kind.as_str(), below, vlan) {
            ("vlan", Some(parent), Some(data)) => vlan_of(parent, data, &mut link.priorities)?,
            ("" | "veth" | "tun", ..) => Kind::Ethernet,
            _ => Kind::Other,
        };
    }
    link.takes_from = below.filter(|_| !HARMLESS_ABOVE.contains(&kind.as_str()));
    Ok(Some(ReadLink { index, link, xdp, vrf: kind == "vrf" }))
}

fn vlan_of(parent: Ifindex, data: &[u8], priorities: &mut bool) -> io::Result<Kind> {
    let (mut vid, mut protocol) = (None, None);
    for attribute in attributes(data, 0) {
        match attribute? {
            (IFLA_VLAN_ID, value) => vid = short(value, 0),
            (IFLA_VLAN_PROTOCOL, value) => protocol = short(value, 0).map(u16::from_be),
            (IFLA_VLAN_EGRESS_QOS, value) => *priorities |= !value.is_empty(),
            _ => {}
        }
    }
    Ok(match (vid, protocol) {
        (Some(vid @ 1..=4094), Some(ETH_P_8021Q)) => Kind::Vlan { parent, vid },
        _ => Kind::Other,
    })
}

/// Settings of the versions of IP on a link.
fn conf(spec: &[u8], link: &mut Link) -> io::Result<()> {
    for attribute in attributes(spec, 0) {
        let (family, value) = attribute?;
        for attribute in attributes(value, 0) {
            let (name, array) = attribute?;
            let setting = |place: usize| number(array, place * 4);
            if family == u16::from(AF_INET) && name == IFLA_INET_CONF {
                link.v4.forwarding = setting(IPV4_FORWARDING).is_some_and(|value| value != 0);
                link.v4.rp_filter = setting(IPV4_RP_FILTER).ok_or_else(malformed)?;
            } else if family == u16::from(AF_INET6) && name == IFLA_INET6_CONF {
                let disabled = setting(IPV6_DISABLED).is_none_or(|value| value != 0);
                let forwarding = setting(IPV6_FORWARDING).is_some_and(|value| value != 0);
                link.v6.forwarding = forwarding && !disabled;
                // IPv6 may have a lower one: what is longer goes to the router.
                if let (true, Some(mtu)) = (link.v6.forwarding, setting(IPV6_MTU)) {
                    link.mtu = link.mtu.min(mtu);
                }
            }
        }
    }
    Ok(())
}

/// Reads `RTM_NEWROUTE` and `RTM_DELROUTE`; nothing for what is not a unicast routing table's.
pub(super) fn route(message: &Message<'_>) -> io::Result<Option<ReadRoute>> {
    let body = message.body;
    let [family, dst_len, src_len, tos, table, _, _, kind, ..] = *body else {
        return Err(malformed());
    };
    let flags = number(body, 8).ok_or_else(malformed)?;
    let family = match family {
        AF_INET => Family::V4,
        AF_INET6 => Family::V6,
        _ => return Ok(None),
    };
    if flags & RTM_F_CLONED != 0 {
        return Ok(None);
    }
    let (mut table, mut dst, mut metric) = (u32::from(table), None, 0);
    let (mut oif, mut gateway, mut multipath, mut object) = (None, None, None, None);
    let mut cannot = flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN | RTNH_F_UNRESOLVED) != 0;
    let mut from = src_len != 0;
    for attribute in attributes(body, 12) {
        let (name, value) = attribute?;
        match name {
            RTA_TABLE => table = number(value, 0).ok_or_else(malformed)?,
            RTA_DST => dst = Some(address(value).ok_or_else(malformed)?),
            RTA_SRC => from = true,
            RTA_PRIORITY => metric = number(value, 0).ok_or_else(malformed)?,
            RTA_OIF => oif = number(value, 0),
            RTA_GATEWAY => gateway = Some(address(value).ok_or_else(malformed)?),
            RTA_VIA => gateway = Some(via(value).ok_or_else(malformed)?),
            RTA_MULTIPATH => multipath = Some(value),
            RTA_NH_ID => object = number(value, 0).filter(|id| *id != 0),
            RTA_METRICS => cannot |= has_mtu(value)?,
            RTA_PREFSRC | RTA_CACHEINFO | RTA_PREF | RTA_EXPIRES | RTA_PAD => {}
            // Encapsulation, realms, whatever else there is.
            _ => cannot = true,
        }
    }
    let any = match family {
        Family::V4 => IpAddr::V4(0.into()),
        Family::V6 => IpAddr::V6(0.into()),
    };
    let dst = dst.unwrap_or(any);
    if Family::of(dst) != family {
        return Err(malformed());
    }
    let prefix = Prefix::new(dst, dst_len).ok_or_else(malformed)?;
    let target = if kind != RTN_UNICAST || table == RT_TABLE_LOCAL {
        Target::Own
    } else if cannot {
        Target::Router
    } else if let Some(id) = object {
        Target::Object(id)
    } else if let Some(hops) = multipath {
        gateways(hops)?.map_or(Target::Router, Target::Gateways)
    } else {
        match (oif, gateway) {
            (Some(interface), Some(address)) => {
                Target::Gateways([Gateway { interface, address, weight: 1 }].into())
            }
            (Some(interface), None) => Target::Link(interface),
            (None, _) => Target::Router,
        }
    };
    let change = match message.kind {
        RTM_DELROUTE => ChangeKind::Removed,
        _ if message.flags & NLM_F_REPLACE != 0 => ChangeKind::Replaced,
        _ if message.flags & NLM_F_APPEND != 0 => ChangeKind::Appended,
        _ => ChangeKind::Added,
    };
    Ok(Some(ReadRoute {
        table,
        prefix,
        change: Change { metric, tos, target, kind: change },
        from,
    }))
}

/// The gateways of a multipath route; none if one of them cannot be expressed.
fn gateways(mut bytes: &[u8]) -> io::Result<Option<Box<[Gateway]>>> {
    let mut gateways = Vec::new();
    while !bytes.is_empty() {
        let [l0, l1, flags, hops, ..] = *bytes else { return Err(malformed()) };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let interface = number(bytes, 4).ok_or_else(malformed)?;
        let hop = bytes.get(..length).filter(|_| length >= 8).ok_or_else(malformed)?;
        let mut gateway = None;
        for attribute in attributes(hop, 8) {
            match attribute? {
                (RTA_GATEWAY, value) => gateway = address(value),
                (RTA_VIA, value) => gateway = via(value),
                (RTA_PAD, _) => {}
                _ => return Ok(None),
            }
        }
        if u32::from(flags) & (RTNH_F_DEAD | RTNH_F_LINKDOWN | RTNH_F_UNRESOLVED) != 0 {
            return Ok(None);
        }
        let Some(address) = gateway else { return Ok(None) };
        gateways.push(Gateway { interface, address, weight: u32::from(hops) + 1 });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok((!gateways.is_empty()).then(|| gateways.into()))
}

/// Whether a route has an MTU of its own.
fn has_mtu(metrics: &[u8]) -> io::Result<bool> {
    for attribute in attributes(metrics, 0) {
        if matches!(attribute?.0, RTAX_MTU | RTAX_LOCK) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads `RTM_NEWNEIGH` and `RTM_DELNEIGH`; nothing for what is not a neighbour of IP.
pub(super) fn neighbour(message: &Message<'_>) -> io::Result<Option<ReadNeighbour>> {
    let body = message.body;
    let [family, ..] = *body else { return Err(malformed()) };
    let index = number(body, 4).ok_or_else(malformed)?;
    let state = short(body, 8).ok_or_else(malformed)?;
    let flags = *body.get(10).ok_or_else(malformed)?;
    if !matches!(family, AF_INET | AF_INET6) || flags & NTF_PROXY != 0 {
        return Ok(None);
    }
    let (mut dst, mut lladdr) = (None, None);
    for attribute in attributes(body, 12) {
        match attribute? {
            (NDA_DST, value) => dst = address(value),
            (NDA_LLADDR, value) => lladdr = mac(value),
            _ => {}
        }
    }
    let unicast = |mac: &Mac| mac.0 != [0; 6] && mac.0[0] & 1 == 0;
    let usable = message.kind == RTM_NEWNEIGH && state & NUD_USABLE != 0;
    let mac = lladdr.filter(unicast).filter(|_| usable);
    Ok(dst.map(|address| ReadNeighbour { index, address, mac }))
}

/// Whether a neighbour was learned, and may be forgotten again: not set for good.
pub(super) fn is_learned(message: &Message<'_>) -> io::Result<bool> {
    let state = short(message.body, 8).ok_or_else(malformed)?;
    Ok(state & NUD_USABLE != 0 && state & NUD_LASTING == 0)
}

/// Reads `RTM_NEWNEXTHOP` and `RTM_DELNEXTHOP`: its number, and what it is.
pub(super) fn object(body: &[u8]) -> io::Result<(u32, Object)> {
    let flags = number(body, 4).ok_or_else(malformed)?;
    let (mut id, mut oif, mut gateway, mut group) = (None, None, None, None);
    let (mut cannot, mut blackhole) =
        (flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN | RTNH_F_UNRESOLVED) != 0, false);
    for attribute in attributes(body, 8) {
        match attribute? {
            (NHA_ID, value) => id = number(value, 0),
            (NHA_OIF, value) => oif = number(value, 0),
            (NHA_GATEWAY, value) => gateway = address(value),
            (NHA_GROUP, value) => group = Some(value),
            (NHA_GROUP_TYPE, value) => cannot |= short(value, 0) != Some(0),
            (NHA_BLACKHOLE, _) => blackhole = true,
            _ => cannot = true,
        }
    }
    let object = match (group, oif, gateway) {
        _ if cannot => Object::To(Target::Router),
        (Some(group), ..) => Object::Group(members(group)),
        _ if blackhole => Object::To(Target::Own),
        (None, Some(interface), Some(address)) => {
            Object::To(Target::Gateways([Gateway { interface, address, weight: 1 }].into()))
        }
        (None, Some(interface), None) => Object::To(Target::Link(interface)),
        (None, None, _) => Object::To(Target::Router),
    };
    Ok((id.ok_or_else(malformed)?, object))
}

fn members(group: &[u8]) -> Vec<(u32, u32)> {
    let (members, _) = group.as_chunks::<8>();
    let member = |bytes: &[u8; 8]| {
        let [a, b, c, d, low, high, _, _] = *bytes;
        (u32::from_ne_bytes([a, b, c, d]), (u32::from(high) << 8 | u32::from(low)) + 1)
    };
    members.iter().map(member).collect()
}

/// A policy rule: its priority, and the table it leads to if it is of the plain kind.
pub(super) fn rule(body: &[u8]) -> io::Result<(u32, Option<u32>)> {
    let [_, dst_len, src_len, tos, table, _, _, action, ..] = *body else {
        return Err(malformed());
    };
    let flags = number(body, 8).ok_or_else(malformed)?;
    let mut plain = (dst_len, src_len, tos, action) == (0, 0, 0, FR_ACT_TO_TBL)
        && flags & !FIB_RULE_PERMANENT == 0;
    let (mut priority, mut table) = (0, u32::from(table));
    for attribute in attributes(body, 12) {
        match attribute? {
            (FRA_PRIORITY, value) => priority = number(value, 0).ok_or_else(malformed)?,
            (FRA_TABLE, value) => table = number(value, 0).ok_or_else(malformed)?,
            (FRA_SUPPRESS_PREFIXLEN | FRA_SUPPRESS_IFGROUP, value) => {
                plain &= number(value, 0) == Some(u32::MAX);
            }
            (FRA_PROTOCOL | FRA_PAD, _) => {}
            _ => plain = false,
        }
    }
    Ok((priority, plain.then_some(table)))
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match *bytes {
        [a, b, c, d] => Some([a, b, c, d].into()),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

/// `struct rtvia`: a version of IP and an address of it.
fn via(bytes: &[u8]) -> Option<IpAddr> {
    bytes.get(2..).and_then(address)
}
