//! What of a rule a type cannot say.

use std::net::IpAddr;

use super::{EtherType, FlowAction, FlowMatch, FlowRewrite, FlowRule, FlowTag, Protocol};
use crate::{Mac, VLAN_MAX};

/// Highest rate of a meter, Mbit/s.
pub const METER_MAX: u32 = 1_000_000;

const TCP: Protocol = Protocol(6);
const UDP: Protocol = Protocol(17);
const SCTP: Protocol = Protocol(132);
const ICMP: [Protocol; 2] = [Protocol(1), Protocol(58)];
const IPV4: EtherType = EtherType(0x0800);
const IPV6: EtherType = EtherType(0x86dd);

impl FlowRule {
    /// Checks what needs several fields. Rules that could never match are refused too: somebody who
    /// writes one means something else.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        self.matches.check()?;
        self.rewrite.check()?;
        if matches!(self.tag, Some(FlowTag::Push(vlan)) if !(1..=VLAN_MAX).contains(&vlan)) {
            return Err(format!("tag: a VLAN id is 1 to {VLAN_MAX}"));
        }
        if self.meter.is_some_and(|rate| !(1..=METER_MAX).contains(&rate)) {
            return Err(format!("meter: 1 to {METER_MAX} Mbit/s are allowed"));
        }
        if self.action == FlowAction::Drop && (!self.rewrite.is_none() || self.tag.is_some()) {
            return Err("what is dropped cannot be changed".to_owned());
        }
        Ok(())
    }
}

impl FlowMatch {
    fn check(&self) -> Result<(), String> {
        let no = |text: &str| Err(text.to_owned());
        let version = [self.src, self.dst].map(|prefix| prefix.map(|one| one.address().is_ipv4()));
        if let [Some(src), Some(dst)] = version
            && src != dst
        {
            return no("src and dst are of two versions of IP");
        }
        let v4 = version.into_iter().flatten().next();
        if let (Some(v4), Some(ethertype)) = (v4, self.ethertype)
            && ethertype != if v4 { IPV4 } else { IPV6 }
        {
            return Err(format!("ethertype {ethertype} has no such addresses"));
        }
        let ports = self.src_port.is_some() || self.dst_port.is_some();
        if let Some(protocol) = self.protocol {
            if ports && ![TCP, UDP, SCTP].contains(&protocol) {
                return Err(format!("{protocol} has no ports; tcp, udp and sctp have"));
            }
            if self.icmp_type.is_some() && !ICMP.contains(&protocol) {
                return Err(format!("{protocol} has no icmp_type; icmp and icmpv6 have"));
            }
            if self.tcp_flags.is_some() && protocol != TCP {
                return Err(format!("{protocol} has no tcp_flags; tcp has"));
            }
        }
        if self.icmp_type.is_some() && (ports || self.tcp_flags.is_some()) {
            return no("a packet with an icmp_type has neither ports nor tcp_flags");
        }
        let transport = ports || self.icmp_type.is_some() || self.tcp_flags.is_some();
        if self.later_fragment == Some(true) && (transport || self.state.is_some()) {
            return no(
                "in a later_fragment neither ports, icmp_type, tcp_flags nor state are seen",
            );
        }
        Ok(())
    }
}

impl FlowRewrite {
    fn check(&self) -> Result<(), String> {
        let group = |mac: Mac| mac.0[0] & 1 == 1;
        if self.src_mac.is_some_and(group) {
            return Err("rewrite: src_mac is the address of one station".to_owned());
        }
        if [self.src_mac, self.dst_mac].into_iter().flatten().any(|mac| mac.0 == [0; 6]) {
            return Err("rewrite: 00:00:00:00:00:00 is no station's address".to_owned());
        }
        let version = |address: Option<IpAddr>| address.map(|address| address.is_ipv4());
        match (version(self.src), version(self.dst)) {
            (Some(src), Some(dst)) if src != dst => {
                Err("rewrite: src and dst are of two versions of IP".to_owned())
            }
            _ => Ok(()),
        }
    }
}
