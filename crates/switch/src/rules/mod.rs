//! Flow rules: what becomes of the frames of one port, by what stands in them.
//!
//! *Purpose.* `(table, frame, time) -> ruling`. The rules of a port and direction are compiled to a
//! [`Table`], which is replaced as a whole: workers that hold the old one go on with it. Whoever is
//! the same in the new one goes on counting. *Owner*: whoever owns the port; what a table may need
//! is limited by arguments ([`Limits`]). *Threads*: any number look up; nothing here waits, but that
//! a set of the connection table is behind a lock for some nanoseconds. *Failure*: a rule that makes
//! no sense is a [`RuleError`], and then nothing changes; a frame is never an error.
//!
//! # Which rule
//!
//! Of the rules that match, the one with the highest priority counts, and of those with the same the
//! one with the lowest number. If none matches, [`Table`]'s default counts.
//!
//! A rule matches if all it says is so. What cannot be seen in a frame does not match: ports, ICMP
//! type and TCP flags are only those of a transport header that the packet begins with, whole, as far
//! as the packet goes. So a fragment that is not the first never matches a rule with any of them; nor
//! does a first one that is cut off within what is asked for. Behind extension headers that do not
//! end within the head of the frame not even the protocol is seen. [`Match::later_fragment`] says what
//! is to become of fragments that are not the first.
//!
//! # Connections
//!
//! If any rule asks for a state, frames that are let through are remembered by their addresses and
//! ports ([`Connections`]): those after them, in both directions, are [`State::Established`], all
//! others that could be are [`State::New`], and what has no ports (fragments, other protocols, ICMP
//! that is no echo) has no state and matches neither. A connection that is over by its FINs or an
//! RST is established for as long as frames of it come. Whether TCP is in its window is not looked at.
//!
//! # How it is looked up
//!
//! A frame becomes a key of eight words (`key::Key`), a rule a value and a mask of them. Rules with
//! the same mask are in one hash table (tuple space search); masks are tried in the order of their
//! best rule, until what was found is better than all that may follow. The rule for established
//! connections is usually the first, and then it is one look-up. Port ranges are checked one by one.

mod connections;
mod key;
mod port;
mod table;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use packet::rewrite::Rewrite;
use packet::{Mac, Tci};

use crate::lpm::Prefix;
use crate::{Meter, PortId};

pub use connections::{Connections, Timeouts};
pub use key::Frame;
pub use port::{PortRules, RuleSet};
pub use table::{Denied, RuleStats, Ruling, Table};

/// A rule's number: the owner's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which one.
    pub id: RuleId,
    /// The higher one counts.
    pub priority: u32,
    /// Which frames.
    pub matches: Match,
    /// What becomes of them.
    pub actions: Actions,
}

/// Which frames: all of what is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Destination of the frame, in the bits of the mask.
    pub dst: Option<(Mac, Mac)>,
    /// Source of the frame, in the bits of the mask.
    pub src: Option<(Mac, Mac)>,
    /// Its VLAN.
    pub vlan: Option<VlanMatch>,
    /// EtherType behind at most two tags.
    pub ethertype: Option<u16>,
    /// Source of the packet.
    pub source: Option<Prefix>,
    /// Destination of the packet.
    pub destination: Option<Prefix>,
    /// What the packet carries, behind extension headers.
    pub protocol: Option<u8>,
    /// Port of TCP, UDP or SCTP it comes from.
    pub source_port: Option<RangeInclusive<u16>>,
    /// Port of TCP, UDP or SCTP it goes to.
    pub destination_port: Option<RangeInclusive<u16>>,
    /// Type of ICMP or ICMPv6.
    pub icmp_type: Option<u8>,
    /// TCP flags, and which of them count.
    pub tcp_flags: Option<(u8, u8)>,
    /// Whether it is a fragment, and not the first: of an IP packet, if that can be seen.
    pub later_fragment: Option<bool>,
    /// Of which connection.
    pub state: Option<State>,
}

/// The outermost tag (0x8100).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanMatch {
    /// There is none, or it has a priority only.
    Untagged,
    /// It has this id, 1 to 4094.
    Id(u16),
}

/// Of a connection that is known, or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not yet.
    New,
    /// One of its frames was let through.
    Established,
}

/// What becomes of a frame; it is counted in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Where it goes.
    pub verdict: RuleVerdict,
    /// What is changed in it before it goes there.
    pub rewrite: Rewrite,
    /// What is done to its tag.
    pub tag: Option<TagAction>,
    /// Mbit/s that pass; what is over it is dropped.
    pub meter: Option<u32>,
    /// Where a copy goes, as the frame came.
    pub mirror: Option<PortId>,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// On its way.
    Accept,
    /// Nowhere.
    Drop,
    /// To this port, and not where it was to go.
    Forward(PortId),
}

/// What is done to a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagAction {
    /// One is put in front.
    Push(Tci),
    /// The outermost goes; there is one.
    Pop,
}

impl Actions {
    /// Only this.
    #[must_use]
    pub fn only(verdict: RuleVerdict) -> Self {
        Self { verdict, rewrite: Rewrite::default(), tag: None, meter: None, mirror: None }
    }
}

/// How much a table may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rules.
    pub rules: usize,
    /// Different kinds of rules, by what they look at: each costs a look-up.
    pub shapes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rules: 1024, shapes: 64 }
    }
}

/// Why rules are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// More than allowed.
    #[error("there may be {0} rules at most")]
    TooMany(usize),
    /// More kinds than allowed.
    #[error("rule {id}: there may be {most} kinds of rules at most, by what they look at")]
    TooManyShapes {
        /// The first that is too many.
        id: RuleId,
        /// As many as that.
        most: usize,
    },
    /// Twice the same number.
    #[error("there are two rules {0}")]
    Twice(RuleId),
    /// One that says what cannot be.
    #[error("rule {0}: {1}")]
    Nonsense(RuleId, &'static str),
    /// Forward or mirror to a port that is not the owner's.
    #[error("rule {0}: port {1} is not one of yours")]
    NotOwn(RuleId, PortId),
}

impl Rule {
    /// Whether it makes sense; its owner has the ports of `own`.
    pub(crate) fn check(&self, own: &[PortId]) -> Result<(), RuleError> {
        let nonsense = |why| Err(RuleError::Nonsense(self.id, why));
        let Match { source, destination, source_port, destination_port, .. } = &self.matches;
        let Actions { verdict, rewrite, tag, meter, mirror } = &self.actions;
        if let (Some(source), Some(destination)) = (source, destination)
            && source.is_ipv4() != destination.is_ipv4()
        {
            return nonsense("source and destination are of two versions of IP");
        }
        if [source_port, destination_port].into_iter().flatten().any(RangeInclusive::is_empty) {
            return nonsense("a range of ports ends before it begins");
        }
        if matches!(self.matches.vlan, Some(VlanMatch::Id(id)) if !(1..=4094).contains(&id)) {
            return nonsense("a VLAN id is 1 to 4094");
        }
        if matches!(tag, Some(TagAction::Push(tci)) if !(1..=4094).contains(&tci.vid())) {
            return nonsense("a VLAN id is 1 to 4094");
        }
        if meter.is_some_and(|rate| !(1..=Meter::RATE_MAX).contains(&rate)) {
            return nonsense("a meter's rate is 1 to 1000000 Mbit/s");
        }
        let groups = [rewrite.src, rewrite.dst].into_iter().flatten();
        if rewrite.src.is_some_and(Mac::is_multicast) || groups.into_iter().any(Mac::is_zero) {
            return nonsense("an address to write is of one station");
        }
        let version = |address: Option<IpAddr>| address.map(|address| address.is_ipv4());
        if let (Some(one), Some(two)) = (version(rewrite.source), version(rewrite.destination))
            && one != two
        {
            return nonsense("addresses to write are of two versions of IP");
        }
        if *verdict == RuleVerdict::Drop && (!rewrite.is_none() || tag.is_some()) {
            return nonsense("what is dropped is not changed");
        }
        let forward = match verdict {
            RuleVerdict::Forward(port) => Some(*port),
            RuleVerdict::Accept | RuleVerdict::Drop => None,
        };
        match [forward, *mirror].into_iter().flatten().find(|port| !own.contains(port)) {
            Some(port) => Err(RuleError::NotOwn(self.id, port)),
            None => Ok(()),
        }
    }
}
