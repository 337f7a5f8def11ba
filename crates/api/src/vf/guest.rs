//! What a guest sets on its own VFs, and how far it may go.
//!
//! The operator's settings of a function ([`PfConfig::port`]) are what the guest is given. By itself it may
//! take away from that, and give it back: be held to its address, leave all VLANs but one, send less. To
//! go beyond it needs a right ([`GuestRight`]). What it has set is kept apart, in the form in which it asks
//! for more ([`GuestSettings`]), and what it may no longer do does not count, so that an operator's change
//! always holds at once.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::PfConfig;
use crate::port::config::in_range;
use crate::{LinkState, Mac, Name, PortConfig, VLAN_MAX, Wrong};

/// Highest rate, Mbit/s.
const RATE_MAX: u32 = 1_000_000;

/// In which respect a guest may go beyond what the operator set.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum GuestRight {
    /// Give a VF another address, also where the VF is held to it, or where it is not to be learned elsewhere.
    Mac,
    /// Put a VF into any VLAN, also out of the one it is in, or the trunk's.
    Vlan,
    /// Switch the check of source addresses off.
    Spoofchk,
    /// Switch trust on.
    Trust,
    /// Send more, up to [`GuestLimits::max_rate`].
    Rate,
    /// Give a VF a link where the operator took it away.
    State,
}

impl GuestRight {
    /// All of them.
    pub const ALL: &'static [Self] =
        &[Self::Mac, Self::Vlan, Self::Spoofchk, Self::Trust, Self::Rate, Self::State];

    /// Its name, as written in requests and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mac => "mac",
            Self::Vlan => "vlan",
            Self::Spoofchk => "spoofchk",
            Self::Trust => "trust",
            Self::Rate => "rate",
            Self::State => "state",
        }
    }
}

/// How far a guest may go. Without anything said: no farther than the operator's own settings.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(deny_unknown_fields, default)]
pub struct GuestLimits {
    /// In these respects it may go beyond them: `mac`, `vlan`, `spoofchk`, `trust`, `rate`, `state`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub may: BTreeSet<GuestRight>,
    /// Mbit/s that a VF may be given at most, 1 to 1000000, where `may` has `rate`. Default: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_rate: Option<u32>,
}

impl GuestLimits {
    /// Whether nothing was said.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks what a type cannot say.
    ///
    /// # Errors
    /// The first field that is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), Wrong> {
        in_range("max_rate", self.max_rate, 1, RATE_MAX, "Mbit/s")?;
        if self.max_rate.is_some() && !self.may.contains(&GuestRight::Rate) {
            return Err(Wrong::new("max_rate", "goes with the right `rate`"));
        }
        Ok(())
    }
}

/// What a guest has set on a function, where that differs from what the operator did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuestSettings {
    /// Address of the card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// VLAN of its frames, 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Priority in that VLAN's tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<u8>,
    /// Frames from other addresses are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// Other addresses are learned behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// Mbit/s it may send, 0: all it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// When it has a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LinkState>,
}

/// What holds for a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FunctionSettings {
    /// Address of its card.
    pub mac: Mac,
    /// VLAN of its frames; 0: none, or those of a trunk.
    pub vlan: u16,
    /// Priority in that VLAN's tags; absent: that of the guest's own priority tag, or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<u8>,
    /// Frames from other addresses are dropped.
    pub spoofchk: bool,
    /// Any address is learned behind it, and it gets frames to unknown ones.
    pub trust: bool,
    /// Mbit/s that come from it at most; 0: all it can send.
    pub rate: u32,
    /// When it has a link.
    pub state: LinkState,
}

/// Why something is not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSet {
    /// A value makes no sense, whatever is allowed.
    Wrong(Wrong),
    /// Not the address of one station.
    NotUnicast,
    /// The operator did not allow it; which right it needs, or what the most is.
    NotAllowed(String),
}

impl GuestSettings {
    /// Whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn check(&self) -> Result<(), NotSet> {
        let vlan = in_range("vlan", self.vlan, 0, VLAN_MAX, "VLAN identifier");
        let qos = in_range("qos", self.qos, 0, 7, "priority");
        let rate = in_range("rate", self.rate, 0, RATE_MAX, "Mbit/s");
        vlan.and(qos).and(rate).map_err(NotSet::Wrong)?;
        match self.mac {
            Some(Mac(mac)) if mac[0] & 1 == 1 => Err(NotSet::NotUnicast),
            _ => Ok(()),
        }
    }
}

/// What the operator set on a function, and what the guest may make of it.
struct Bounds<'a> {
    limits: &'a GuestLimits,
    given: PortConfig,
    card: Mac,
}

impl Bounds<'_> {
    fn may(&self, right: GuestRight) -> bool {
        self.limits.may.contains(&right)
    }

    /// Needs a right, as `why`.
    fn needs(&self, right: GuestRight, why: &str) -> Result<(), NotSet> {
        if self.may(right) {
            return Ok(());
        }
        let name = right.as_str();
        Err(NotSet::NotAllowed(format!("{name}: the host's operator did not allow it: {why}")))
    }

    /// VLAN the operator put it into, 0 for none.
    fn vlan(&self) -> u16 {
        self.given.vlan.unwrap_or(0)
    }

    /// What is wrong with settings of a guest, one after the other.
    fn judge(&self, guest: &GuestSettings) -> [Result<(), NotSet>; 6] {
        let (policy, none) = (&self.given.policy, Ok(()));
        let mac = guest.mac.map_or(none.clone(), |_| {
            if policy.spoofchk || !policy.trust {
                self.needs(GuestRight::Mac, "this VF is held to its address")
            } else if guest.trust == Some(false) {
                // Else it could take another's address, and keep it.
                self.needs(GuestRight::Mac, "without trust, no VF has another address than its own")
            } else {
                Ok(())
            }
        });
        let vlan = guest.vlan.map_or(none.clone(), |vlan| match (&self.given.trunk, self.vlan()) {
            (None, 0) => Ok(()),
            (Some(trunk), _) if trunk.contains(vlan) => Ok(()),
            (Some(_), _) if self.given.native == Some(vlan) => Ok(()),
            (Some(trunk), _) => self.needs(GuestRight::Vlan, &format!("it has VLANs {trunk}")),
            (None, given) => self.needs(GuestRight::Vlan, &format!("it is in VLAN {given}")),
        });
        let spoofchk = match guest.spoofchk {
            Some(false) => self.needs(GuestRight::Spoofchk, "the check is to stay on"),
            _ => Ok(()),
        };
        let trust = match guest.trust {
            Some(true) => self.needs(GuestRight::Trust, "this VF is not trusted"),
            _ => Ok(()),
        };
        let more = |rate: u32, most: u32| rate == 0 || rate > most;
        let rate = match (guest.rate, policy.max_tx_rate, self.limits.max_rate) {
            (Some(rate), Some(most), _) if more(rate, most) && !self.may(GuestRight::Rate) => {
                self.needs(GuestRight::Rate, &format!("at most {most} Mbit/s"))
            }
            (Some(rate), _, Some(most)) if more(rate, most) => {
                Err(NotSet::NotAllowed(format!("rate: at most {most} Mbit/s are allowed")))
            }
            _ => Ok(()),
        };
        let state = match guest.state {
            Some(_) if policy.link == LinkState::Disable => {
                self.needs(GuestRight::State, "it is disabled")
            }
            _ => Ok(()),
        };
        [mac, vlan, spoofchk, trust, rate, state]
    }

    /// Of what a guest has set, what counts.
    fn counts(&self, guest: &GuestSettings) -> GuestSettings {
        let [mac, vlan, spoofchk, trust, rate, state] = self.judge(guest).map(|one| one.is_ok());
        GuestSettings {
            mac: guest.mac.filter(|_| mac),
            vlan: guest.vlan.filter(|_| vlan),
            qos: guest.qos.filter(|_| vlan),
            spoofchk: guest.spoofchk.filter(|_| spoofchk),
            trust: guest.trust.filter(|_| trust),
            rate: guest.rate.filter(|_| rate),
            state: guest.state.filter(|_| state),
        }
    }

    /// What is as the operator has it is nothing of the guest's.
    fn differing(&self, guest: GuestSettings) -> GuestSettings {
        let policy = &self.given.policy;
        let vlan = guest.vlan.filter(|vlan| *vlan != self.vlan() || guest.qos != policy.qos);
        GuestSettings {
            mac: guest.mac.filter(|mac| *mac != self.card && mac.0 != [0; 6]),
            vlan,
            qos: guest.qos.filter(|_| vlan.is_some_and(|vlan| vlan != 0)),
            spoofchk: guest.spoofchk.filter(|on| *on != policy.spoofchk),
            trust: guest.trust.filter(|on| *on != policy.trust),
            rate: guest.rate.filter(|rate| *rate != policy.max_tx_rate.unwrap_or(0)),
            state: guest.state.filter(|state| *state != policy.link),
        }
    }
}

impl PfConfig {
    fn bounds(&self, port: &Name) -> Bounds<'_> {
        let given = self.port(port);
        // A vhost port of a VM always has one.
        let card = given.card(port).unwrap_or(Mac([0; 6]));
        Bounds { limits: &self.guest, given, card }
    }

    /// What holds for the port of a function on which the guest has set this.
    pub fn port_with(&self, port: &Name, guest: &GuestSettings) -> PortConfig {
        let bounds = self.bounds(port);
        let guest = bounds.counts(guest);
        let mut config = bounds.given;
        if let Some(vlan) = guest.vlan {
            config.vlan = Some(vlan).filter(|vlan| *vlan != 0);
            (config.trunk, config.native) = (None, None);
            config.policy.qos = guest.qos;
        }
        let policy = &mut config.policy;
        policy.mac = guest.mac.or(policy.mac);
        policy.spoofchk = guest.spoofchk.unwrap_or(policy.spoofchk);
        policy.trust = guest.trust.unwrap_or(policy.trust);
        policy.link = guest.state.unwrap_or(policy.link);
        if let Some(rate) = guest.rate {
            policy.max_tx_rate = Some(rate).filter(|rate| *rate != 0);
        }
        config
    }

    /// What holds for a function, in the words of guests.
    pub fn settings(&self, port: &Name, guest: &GuestSettings) -> FunctionSettings {
        let config = self.port_with(port, guest);
        let policy = &config.policy;
        FunctionSettings {
            mac: config.card(port).unwrap_or(Mac([0; 6])),
            vlan: config.vlan.unwrap_or(0),
            qos: policy.qos,
            spoofchk: policy.spoofchk,
            trust: policy.trust,
            rate: policy.max_tx_rate.unwrap_or(0),
            state: policy.link,
        }
    }

    /// What the guest has set on a function, after `asked`: all of that holds then, and what is absent there
    /// stays. The address zero is the card's own; another VLAN has no priority of before.
    ///
    /// # Errors
    /// Why nothing of it is set.
    pub fn ask(
        &self,
        port: &Name,
        guest: &GuestSettings,
        asked: &GuestSettings,
    ) -> Result<GuestSettings, NotSet> {
        asked.check()?;
        let bounds = self.bounds(port);
        // What no longer counted is not in the way of anything.
        let mut guest = bounds.counts(guest);
        guest.mac = asked.mac.or(guest.mac);
        if let Some(vlan) = asked.vlan {
            (guest.vlan, guest.qos) = (Some(vlan), asked.qos);
            if vlan == bounds.vlan() && asked.qos.is_none() {
                guest.qos = bounds.given.policy.qos;
            }
        } else if let Some(qos) = asked.qos {
            guest.vlan = guest.vlan.or(bounds.given.vlan);
            guest.qos = Some(qos);
        }
        if asked.qos.is_some() && guest.vlan.unwrap_or(0) == 0 {
            let why = "goes with vlan: it is the priority of that tag";
            return Err(NotSet::Wrong(Wrong::new("qos", why)));
        }
        guest.spoofchk = asked.spoofchk.or(guest.spoofchk);
        guest.trust = asked.trust.or(guest.trust);
        guest.rate = asked.rate.or(guest.rate);
        guest.state = asked.state.or(guest.state);
        let guest = bounds.differing(guest);
        bounds.judge(&guest).into_iter().collect::<Result<(), _>>()?;
        Ok(guest)
    }
}

#[cfg(test)]
mod tests;
