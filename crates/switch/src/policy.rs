//! What the owner of a port enforces on it: as the driver of an SR-IOV card does on a VF.
//!
//! A [`Policy`] is what is asked for. Compiled, what has to be looked at in every frame is a
//! [`Guard`], which a port without such rules has not; the rest is part of what a look-up does
//! anyway.

use std::net::{IpAddr, Ipv6Addr};

use packet::Mac;
use packet::claim::Claims;
use packet::eth::Eth;

use crate::lpm::Prefix;
use crate::{DropReason, Meter, SwitchError};

/// What is enforced on a port. By default nothing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Address of the card behind the port.
    pub mac: Option<Mac>,
    /// Frames from the port have that source address, or are dropped (`spoofed-mac`).
    pub spoofchk: bool,
    /// If not empty: packets from the port are from these addresses, and nothing but IPv4, IPv6, ARP
    /// and RARP comes from it, or it is dropped (`spoofed-ip`). With an IPv6 prefix the link-local
    /// address that is made of [`Policy::mac`] (RFC 4291) counts as one of them.
    pub addresses: Vec<Prefix>,
    /// Any address may be learned behind the port, and it gets frames to unknown addresses. Otherwise
    /// no address but [`Policy::mac`] is learned, and it gets frames to that address and to groups.
    pub trust: bool,
    /// Access ports: priority (0 to 7) of the tag that frames from the port get where they are tagged;
    /// a priority tag of the guest's own has no say then.
    pub qos: Option<u8>,
    /// Mbit/s (1 to [`Meter::RATE_MAX`]) that come from the port at most; what is over it is dropped
    /// (`rate-exceeded`).
    pub max_tx_rate: Option<u32>,
    /// Whether the port has a link.
    pub link: LinkState,
}

/// When a port is up, as `ip link set PF vf N state` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// While its guest is there.
    #[default]
    Auto,
    /// Always: what is learned behind it stays, and frames to it while the guest is away are dropped
    /// there.
    Enable,
    /// Never: nothing comes from it or goes to it.
    Disable,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mac: None,
            spoofchk: false,
            addresses: Vec::new(),
            trust: true,
            qos: None,
            max_tx_rate: None,
            link: LinkState::Auto,
        }
    }
}

impl Policy {
    /// Most prefixes of [`Policy::addresses`]: they are looked through one by one.
    pub const ADDRESSES_MAX: usize = 64;

    /// Whether it makes sense.
    pub(crate) fn check(&self) -> Result<(), SwitchError> {
        match self.mac {
            None if self.spoofchk || !self.trust => return Err(SwitchError::NoAddress),
            Some(mac) if mac.is_multicast() || mac.is_zero() => {
                return Err(SwitchError::NotUnicast(mac));
            }
            _ => {}
        }
        if self.addresses.len() > Self::ADDRESSES_MAX {
            return Err(SwitchError::TooManyAddresses);
        }
        if self.qos.is_some_and(|qos| qos > 7) {
            return Err(SwitchError::BadPriority);
        }
        if self.max_tx_rate.is_some_and(|rate| !(1..=Meter::RATE_MAX).contains(&rate)) {
            return Err(SwitchError::BadRate);
        }
        Ok(())
    }

    /// The address that is not to be learned elsewhere, and no other here.
    pub(crate) fn only(&self) -> Option<Mac> {
        self.mac.filter(|_| !self.trust)
    }

    /// What has to be looked at in every frame from the port, if anything has.
    pub(crate) fn guard(&self) -> Option<Guard> {
        let station = self.mac.filter(|_| self.spoofchk);
        let mut addresses = self.addresses.clone();
        if addresses.iter().any(|prefix| !prefix.is_ipv4())
            && let Some(own) = self.mac.and_then(|mac| Prefix::new(link_local(mac).into(), 128))
        {
            addresses.push(own);
        }
        let meter = self.max_tx_rate.map(Meter::new);
        let needed = station.is_some() || !addresses.is_empty() || meter.is_some();
        needed.then(|| Guard { station, addresses: addresses.into(), meter })
    }
}

/// Checks of every frame from a port.
#[derive(Debug)]
pub struct Guard {
    station: Option<Mac>,
    addresses: Box<[Prefix]>,
    meter: Option<Meter>,
}

impl Guard {
    /// Whether the frame that begins with `head` may come from the port, as far as that can be seen
    /// in it.
    ///
    /// # Errors
    /// Under which name it is dropped.
    pub fn check(&self, head: &[u8]) -> Result<(), DropReason> {
        let source = Eth::parse(head).ok_or(DropReason::Runt)?.src;
        if self.station.is_some_and(|station| station != source) {
            return Err(DropReason::SpoofedMac);
        }
        if self.addresses.is_empty() {
            return Ok(());
        }
        let claims = Claims::read(head).map_err(|_| DropReason::SpoofedIp)?;
        if [claims.source, claims.target].into_iter().flatten().any(|one| !self.owns(one)) {
            return Err(DropReason::SpoofedIp);
        }
        match (self.station, claims.station) {
            (Some(own), Some(claimed)) if own != claimed => Err(DropReason::SpoofedMac),
            _ => Ok(()),
        }
    }

    /// Whether what comes is limited: then the time is needed.
    pub fn is_metered(&self) -> bool {
        self.meter.is_some()
    }

    /// Whether a frame of `len` bytes may come now; it is on the account then.
    ///
    /// # Errors
    /// Under which name it is dropped.
    pub fn meter(&self, len: usize, now_ns: u64) -> Result<(), DropReason> {
        match &self.meter {
            Some(meter) if !meter.take(len, now_ns) => Err(DropReason::RateExceeded),
            _ => Ok(()),
        }
    }

    fn owns(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|prefix| prefix.contains(address))
    }

    /// Whether a router behind the port that sends packets of others from this address would be
    /// let through unseen.
    pub(crate) fn passes_all_from(&self, station: Mac) -> bool {
        self.meter.is_none()
            && self.addresses.is_empty()
            && self.station.is_none_or(|own| own == station)
    }
}

/// The link-local address made of an Ethernet address (RFC 4291, appendix A).
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests;
