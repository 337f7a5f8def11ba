//! Numbers of Linux's headers (`include/uapi/linux`), under their names there.
//!
//! The crates have them for some families only, or as types of generated code.

// netlink.h
pub(super) const NLM_F_REPLACE: u16 = 0x100;
pub(super) const NLM_F_CREATE: u16 = 0x400;
pub(super) const NLM_F_APPEND: u16 = 0x800;

// socket.h
pub(super) const AF_UNSPEC: u8 = 0;
pub(super) const AF_INET: u8 = 2;
pub(super) const AF_INET6: u8 = 10;

// rtnetlink.h
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_GETROUTE: u16 = 26;
pub(super) const RTM_NEWNEIGH: u16 = 28;
pub(super) const RTM_DELNEIGH: u16 = 29;
pub(super) const RTM_GETNEIGH: u16 = 30;
pub(super) const RTM_NEWRULE: u16 = 32;
pub(super) const RTM_DELRULE: u16 = 33;
pub(super) const RTM_GETRULE: u16 = 34;
pub(super) const RTM_NEWQDISC: u16 = 36;
pub(super) const RTM_GETQDISC: u16 = 38;
pub(super) const RTM_NEWTFILTER: u16 = 44;
pub(super) const RTM_DELTFILTER: u16 = 45;
pub(super) const RTM_GETTFILTER: u16 = 46;
pub(super) const RTM_NEWNETCONF: u16 = 80;
pub(super) const RTM_DELNETCONF: u16 = 81;
pub(super) const RTM_NEWNEXTHOP: u16 = 104;
pub(super) const RTM_DELNEXTHOP: u16 = 105;
pub(super) const RTM_GETNEXTHOP: u16 = 106;
pub(super) const RTM_NEWCHAIN: u16 = 100;
pub(super) const RTM_DELCHAIN: u16 = 101;

/// Bits of the multicast groups (`RTNLGRP_*`), as `bind` takes them.
pub(super) const ROUTE_GROUPS: u32 = group(1) // LINK
    | group(3) // NEIGH
    | group(4) // TC
    | group(5) // IPV4_IFADDR
    | group(7) // IPV4_ROUTE
    | group(8) // IPV4_RULE
    | group(11) // IPV6_ROUTE
    | group(19) // IPV6_RULE
    | group(24) // IPV4_NETCONF
    | group(25) // IPV6_NETCONF
    | group(29) // MPLS_NETCONF
    | group(32); // NEXTHOP

pub(super) const fn group(number: u32) -> u32 {
    1 << (number - 1)
}

pub(super) const RTA_DST: u16 = 1;
pub(super) const RTA_SRC: u16 = 2;
pub(super) const RTA_OIF: u16 = 4;
pub(super) const RTA_GATEWAY: u16 = 5;
pub(super) const RTA_PRIORITY: u16 = 6;
pub(super) const RTA_PREFSRC: u16 = 7;
pub(super) const RTA_METRICS: u16 = 8;
pub(super) const RTA_MULTIPATH: u16 = 9;
pub(super) const RTA_CACHEINFO: u16 = 12;
pub(super) const RTA_TABLE: u16 = 15;
pub(super) const RTA_VIA: u16 = 18;
pub(super) const RTA_PREF: u16 = 20;
pub(super) const RTA_EXPIRES: u16 = 23;
pub(super) const RTA_PAD: u16 = 24;
pub(super) const RTA_NH_ID: u16 = 30;
pub(super) const RTAX_LOCK: u16 = 1;
pub(super) const RTAX_MTU: u16 = 2;
pub(super) const RTN_UNICAST: u8 = 1;
pub(super) const RTM_F_CLONED: u32 = 0x200;
pub(super) const RTNH_F_DEAD: u32 = 1;
pub(super) const RTNH_F_LINKDOWN: u32 = 16;
pub(super) const RTNH_F_UNRESOLVED: u32 = 32;
pub(super) const RT_TABLE_DEFAULT: u32 = 253;
pub(super) const RT_TABLE_MAIN: u32 = 254;
pub(super) const RT_TABLE_LOCAL: u32 = 255;

// nexthop.h
pub(super) const NHA_ID: u16 = 1;
pub(super) const NHA_GROUP: u16 = 2;
pub(super) const NHA_GROUP_TYPE: u16 = 3;
pub(super) const NHA_BLACKHOLE: u16 = 4;
pub(super) const NHA_OIF: u16 = 5;
pub(super) const NHA_GATEWAY: u16 = 6;

// neighbour.h
pub(super) const NDA_DST: u16 = 1;
pub(super) const NDA_LLADDR: u16 = 2;
pub(super) const NTF_USE: u8 = 1;
pub(super) const NTF_PROXY: u8 = 8;
/// REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT.
pub(super) const NUD_USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// NOARP, PERMANENT.
pub(super) const NUD_LASTING: u16 = 0x40 | 0x80;

// fib_rules.h
pub(super) const FR_ACT_TO_TBL: u8 = 1;
pub(super) const FIB_RULE_PERMANENT: u32 = 1;
pub(super) const FRA_PRIORITY: u16 = 6;
pub(super) const FRA_SUPPRESS_IFGROUP: u16 = 13;
pub(super) const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub(super) const FRA_TABLE: u16 = 15;
pub(super) const FRA_PAD: u16 = 18;
pub(super) const FRA_PROTOCOL: u16 = 21;

// if_link.h, if.h, if_arp.h
pub(super) const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
pub(super) const IFLA_LINK: u16 = 5;
pub(super) const IFLA_MASTER: u16 = 10;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_AF_SPEC: u16 = 26;
pub(super) const IFLA_EXT_MASK: u16 = 29;
pub(super) const IFLA_LINK_NETNSID: u16 = 37;
pub(super) const IFLA_XDP: u16 = 43;
pub(super) const IFLA_PERM_ADDRESS: u16 = 54;
pub(super) const IFLA_INFO_KIND: u16 = 1;
pub(super) const IFLA_INFO_DATA: u16 = 2;
pub(super) const IFLA_VLAN_ID: u16 = 1;
pub(super) const IFLA_VLAN_EGRESS_QOS: u16 = 3;
pub(super) const IFLA_VLAN_PROTOCOL: u16 = 5;
pub(super) const IFLA_XDP_ATTACHED: u16 = 2;
pub(super) const IFLA_INET_CONF: u16 = 1;
pub(super) const IFLA_INET6_CONF: u16 = 2;
pub(super) const RTEXT_FILTER_SKIP_STATS: u32 = 8;
pub(super) const IFF_UP: u32 = 1;
pub(super) const IFF_NOARP: u32 = 0x80;
pub(super) const IFF_LOWER_UP: u32 = 0x1_0000;
pub(super) const ARPHRD_ETHER: u16 = 1;
pub(super) const ETH_P_8021Q: u16 = 0x8100;

// ip.h, ipv6.h: places in the arrays of IFLA_INET_CONF and IFLA_INET6_CONF
pub(super) const IPV4_FORWARDING: usize = 0;
pub(super) const IPV4_RP_FILTER: usize = 7;
pub(super) const IPV6_FORWARDING: usize = 0;
pub(super) const IPV6_MTU: usize = 2;
pub(super) const IPV6_DISABLED: usize = 26;

// pkt_sched.h
pub(super) const TCA_KIND: u16 = 1;
pub(super) const TCA_INGRESS_BLOCK: u16 = 13;
pub(super) const TCA_EGRESS_BLOCK: u16 = 14;
pub(super) const TC_H_ROOT: u32 = u32::MAX;
pub(super) const TC_H_CLSACT_INGRESS: u32 = 0xffff_fff2;
pub(super) const TC_H_CLSACT_EGRESS: u32 = 0xffff_fff3;

// netfilter/nfnetlink.h, netfilter/nf_tables.h, netfilter.h
pub(super) const NLA_F_NESTED: u16 = 1 << 15;
pub(super) const NFNLGRP_NFTABLES: u32 = group(7);
pub(super) const NFT_MSG_GETTABLE: u16 = 10 << 8 | 1;
pub(super) const NFT_MSG_GETCHAIN: u16 = 10 << 8 | 4;
pub(super) const NFT_MSG_GETRULE: u16 = 10 << 8 | 7;
pub(super) const NFT_MSG_GETSETELEM: u16 = 10 << 8 | 13;
pub(super) const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub(super) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(super) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(super) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(super) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(super) const NFTA_TABLE_FLAGS: u16 = 2;
pub(super) const NFT_TABLE_F_DORMANT: u32 = 1;
pub(super) const NFTA_CHAIN_TABLE: u16 = 1;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
pub(super) const NFTA_CHAIN_POLICY: u16 = 5;
pub(super) const NFTA_CHAIN_USE: u16 = 6;
pub(super) const NFTA_CHAIN_TYPE: u16 = 7;
pub(super) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(super) const NFTA_HOOK_PRIORITY: u16 = 2;
pub(super) const NFTA_RULE_TABLE: u16 = 1;
pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(super) const NFTA_EXPR_NAME: u16 = 1;
pub(super) const NFTA_EXPR_DATA: u16 = 2;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CODE: u16 = 1;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;
pub(super) const NFT_CONTINUE: i32 = -1;
pub(super) const NFT_BREAK: i32 = -2;
pub(super) const NFT_JUMP: i32 = -3;
pub(super) const NFT_GOTO: i32 = -4;
pub(super) const NFT_RETURN: i32 = -5;
pub(super) const NFT_REG_VERDICT: u32 = 0;
pub(super) const NFTA_CT_DREG: u16 = 1;
pub(super) const NFTA_CT_KEY: u16 = 2;
pub(super) const NFTA_CT_SREG: u16 = 4;
pub(super) const NFT_CT_STATE: u32 = 0;
pub(super) const NFT_CT_EVENTMASK: u32 = 18;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
pub(super) const CT_STATE_ESTABLISHED: u32 = 2;
pub(super) const NFTA_META_DREG: u16 = 1;
pub(super) const NFTA_META_KEY: u16 = 2;
pub(super) const NFT_META_NFPROTO: u32 = 15;
pub(super) const NFT_META_L4PROTO: u32 = 16;
pub(super) const NFTA_PAYLOAD_DREG: u16 = 1;
pub(super) const NFTA_PAYLOAD_BASE: u16 = 2;
pub(super) const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub(super) const NFTA_PAYLOAD_LEN: u16 = 4;
pub(super) const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
pub(super) const NFTA_FIB_DREG: u16 = 1;
pub(super) const NFTA_RT_DREG: u16 = 1;
pub(super) const NFTA_EXTHDR_DREG: u16 = 1;
pub(super) const NFTA_BYTEORDER_DREG: u16 = 2;
pub(super) const NFTA_BITWISE_SREG: u16 = 1;
pub(super) const NFTA_BITWISE_DREG: u16 = 2;
pub(super) const NFTA_BITWISE_MASK: u16 = 4;
pub(super) const NFTA_BITWISE_XOR: u16 = 5;
pub(super) const NFTA_BITWISE_OP: u16 = 6;
pub(super) const NFTA_CMP_SREG: u16 = 1;
pub(super) const NFTA_CMP_OP: u16 = 2;
pub(super) const NFTA_CMP_DATA: u16 = 3;
pub(super) const NFT_CMP_EQ: u32 = 0;
pub(super) const NFT_CMP_NEQ: u32 = 1;
pub(super) const NFTA_LOOKUP_SET: u16 = 1;
pub(super) const NFTA_LOOKUP_SREG: u16 = 2;
pub(super) const NFTA_LOOKUP_DREG: u16 = 3;
pub(super) const NFTA_LOOKUP_FLAGS: u16 = 5;
pub(super) const NFT_LOOKUP_F_INV: u32 = 1;
pub(super) const NFTA_IMMEDIATE_DREG: u16 = 1;
pub(super) const NFTA_IMMEDIATE_DATA: u16 = 2;
pub(super) const NFTA_OBJREF_IMM_TYPE: u16 = 1;
pub(super) const NFT_OBJECT_CT_TIMEOUT: u32 = 7;
pub(super) const NFTA_TARGET_NAME: u16 = 1;
pub(super) const NF_ACCEPT: u32 = 1;
pub(super) const NFPROTO_INET: u8 = 1;
pub(super) const NFPROTO_IPV4: u8 = 2;
pub(super) const NFPROTO_NETDEV: u8 = 5;
pub(super) const NFPROTO_IPV6: u8 = 10;
pub(super) const NF_INET_PRE_ROUTING: u32 = 0;
pub(super) const NF_INET_LOCAL_IN: u32 = 1;
pub(super) const NF_INET_LOCAL_OUT: u32 = 3;
pub(super) const NF_INET_INGRESS: u32 = 5;
pub(super) const NF_IP_PRI_CONNTRACK: i32 = -200;

// in.h, tcp.h
pub(super) const IPPROTO_TCP: u8 = 6;
pub(super) const IPPROTO_UDP: u8 = 17;
/// Offset of the flags in the header of TCP; FIN, SYN and RST of them.
pub(super) const TCP_FLAGS: u32 = 13;
pub(super) const TCP_BEGIN_OR_END: u8 = 0b111;

// netfilter/nfnetlink_conntrack.h, netfilter/nf_conntrack_common.h, nf_conntrack_tcp.h
pub(super) const CONNTRACK_GROUPS: u32 = group(1) | group(2) | group(3);
pub(super) const IPCTNL_MSG_CT_NEW: u16 = 1 << 8;
pub(super) const IPCTNL_MSG_CT_GET: u16 = 1 << 8 | 1;
pub(super) const IPCTNL_MSG_CT_DELETE: u16 = 1 << 8 | 2;
pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
pub(super) const CTA_STATUS: u16 = 3;
pub(super) const CTA_PROTOINFO: u16 = 4;
pub(super) const CTA_HELP: u16 = 5;
pub(super) const CTA_TIMEOUT: u16 = 7;
pub(super) const CTA_TUPLE_MASTER: u16 = 14;
pub(super) const CTA_SEQ_ADJ_ORIG: u16 = 15;
pub(super) const CTA_SEQ_ADJ_REPLY: u16 = 16;
pub(super) const CTA_ZONE: u16 = 18;
pub(super) const CTA_SYNPROXY: u16 = 24;
pub(super) const CTA_TUPLE_IP: u16 = 1;
pub(super) const CTA_TUPLE_PROTO: u16 = 2;
pub(super) const CTA_TUPLE_ZONE: u16 = 3;
pub(super) const CTA_IP_V4_SRC: u16 = 1;
pub(super) const CTA_IP_V4_DST: u16 = 2;
pub(super) const CTA_IP_V6_SRC: u16 = 3;
pub(super) const CTA_IP_V6_DST: u16 = 4;
pub(super) const CTA_PROTO_NUM: u16 = 1;
pub(super) const CTA_PROTO_SRC_PORT: u16 = 2;
pub(super) const CTA_PROTO_DST_PORT: u16 = 3;
pub(super) const CTA_PROTOINFO_TCP: u16 = 1;
pub(super) const CTA_PROTOINFO_TCP_STATE: u16 = 1;
pub(super) const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
pub(super) const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;
pub(super) const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
pub(super) const IP_CT_TCP_FLAG_BE_LIBERAL: u8 = 0x08;
pub(super) const IP_CT_TCP_FLAG_MAXACK_SET: u8 = 0x20;
/// SEEN_REPLY, ASSURED, CONFIRMED.
pub(super) const IPS_NEEDED: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// EXPECTED, SEQ_ADJUST, DYING, FIXED_TIMEOUT, TEMPLATE, NAT_CLASH, HELPER, OFFLOAD, HW_OFFLOAD.
pub(super) const IPS_UNFIT: u32 =
    1 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15;

// xfrm.h
pub(super) const XFRMNLGRP_POLICY: u32 = group(4);
pub(super) const XFRM_MSG_NEWPOLICY: u16 = 0x13;
pub(super) const XFRM_MSG_GETPOLICY: u16 = 0x15;
pub(super) const XFRM_MSG_GETDEFAULT: u16 = 0x28;
pub(super) const XFRM_USERPOLICY_BLOCK: u8 = 1;
