//! VLANs of a port: which a frame comes in with, and how it leaves.
//!
//! Inside the switch every frame belongs to a *filtering identifier* (FID): its VLAN id, or 0 for
//! the traffic of transparent ports that carries none. Address tables are kept per FID (independent
//! learning, 802.1Q 8.8.8).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use packet::eth::{Eth, is_tag_protocol};
use packet::{Tci, VlanEdit};
use serde::{Deserialize, Serialize};

/// Highest VLAN id a port may have; 0 means "no VLAN" in a tag and 4095 is reserved.
pub(crate) const VID_MAX: u16 = 4094;

/// How a port treats VLAN tags.
///
/// Serialised as `"none"`, `{"access": 10}`, `{"trunk": {"allowed": "10-20,30", "native": 10}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VlanMode {
    /// Transparent: frames pass as they are, tagged or not. Untagged frames, and frames of each
    /// VLAN, are switched apart from each other. Untagged frames reach transparent ports only.
    #[default]
    None,
    /// The guest sees no tags and is in this VLAN (1 to 4094). A tagged frame from it is dropped.
    Access(u16),
    /// The guest tags its frames.
    Trunk {
        /// The VLANs it may use.
        allowed: VlanSet,
        /// The VLAN of its untagged frames, if they are allowed; frames of it leave untagged.
        #[serde(default)]
        native: Option<u16>,
    },
}

/// How a frame carries its VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// And this priority, where it stands in a TCI, is that of the tag it gets.
    Untagged(u16),
    /// A tag with VLAN id 0: a priority only.
    Priority(Tci),
    /// A tag with the FID as its VLAN id.
    Tagged,
}

/// What the in-port made of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) fid: u16,
    pub(crate) form: Form,
    /// Behind the outermost tag is another one.
    pub(crate) stacked: bool,
}

impl Default for Form {
    fn default() -> Self {
        Self::Untagged(0)
    }
}

impl Class {
    /// The same from a port that gives its frames this priority.
    #[inline]
    pub(crate) fn with_priority(mut self, priority: Option<u16>) -> Self {
        let Some(priority) = priority else { return self };
        match &mut self.form {
            Form::Untagged(given) => *given = priority,
            Form::Priority(tci) => *tci = Tci(priority),
            Form::Tagged => {}
        }
        self
    }
}

/// What a port does with a frame of some class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Egress {
    /// The port is not in the VLAN.
    NotMember,
    /// The tag would have to go, and there is another behind it: never done, so that nobody can
    /// choose the VLAN his frame arrives in by hiding a second tag ("VLAN hopping").
    Uncovers,
    Edit(VlanEdit),
}

impl VlanMode {
    /// The VLAN ids it names are usable.
    pub(crate) fn check(&self) -> Result<(), u16> {
        match *self {
            Self::Access(vid) | Self::Trunk { native: Some(vid), .. }
                if !(1..=VID_MAX).contains(&vid) =>
            {
                Err(vid)
            }
            _ => Ok(()),
        }
    }

    /// Class of a frame that comes in; `None`: not allowed here.
    #[inline]
    pub(crate) fn classify(&self, eth: &Eth) -> Option<Class> {
        let stacked = eth.is_stacked();
        let transparent = matches!(self, Self::None);
        let Some(tci) = eth.tag else {
            // A service tag is not read, and on a port with VLANs it must not pass as payload.
            if !transparent && is_tag_protocol(eth.ethertype) {
                return None;
            }
            let fid = self.untagged_fid()?;
            return Some(Class { fid, form: Form::Untagged(0), stacked: false });
        };
        match tci.vid() {
            0 if stacked && !transparent => None,
            0 => {
                let fid = self.untagged_fid()?;
                Some(Class { fid, form: Form::Priority(tci), stacked })
            }
            vid if vid <= VID_MAX && self.takes_tagged(vid) => {
                Some(Class { fid: vid, form: Form::Tagged, stacked })
            }
            _ => None,
        }
    }

    #[inline]
    fn untagged_fid(&self) -> Option<u16> {
        match *self {
            Self::None => Some(0),
            Self::Access(vid) => Some(vid),
            Self::Trunk { native, .. } => native,
        }
    }

    #[inline]
    fn takes_tagged(&self, vid: u16) -> bool {
        match self {
            Self::None => true,
            Self::Access(_) => false,
            Self::Trunk { allowed, native } => *native == Some(vid) || allowed.contains(vid),
        }
    }

    /// How a frame of this class leaves here.
    #[inline]
    pub(crate) fn egress(&self, class: Class) -> Egress {
        match self {
            Self::None if class.fid == 0 => Egress::Edit(VlanEdit::Keep),
            Self::None => tagged(class),
            Self::Access(vid) if *vid == class.fid => untagged(class),
            Self::Trunk { native: Some(vid), .. } if *vid == class.fid => untagged(class),
            Self::Trunk { allowed, .. } if allowed.contains(class.fid) => tagged(class),
            Self::Access(_) | Self::Trunk { .. } => Egress::NotMember,
        }
    }
}

#[inline]
pub(crate) fn untagged(class: Class) -> Egress {
    match class.form {
        Form::Untagged(_) => Egress::Edit(VlanEdit::Keep),
        _ if class.stacked => Egress::Uncovers,
        Form::Priority(_) | Form::Tagged => Egress::Edit(VlanEdit::Pop),
    }
}

#[inline]
fn tagged(class: Class) -> Egress {
    Egress::Edit(match class.form {
        Form::Untagged(priority) => VlanEdit::Push(Tci(class.fid | priority)),
        Form::Priority(tci) => VlanEdit::Set(tci.with_vid(class.fid)),
        Form::Tagged => VlanEdit::Keep,
    })
}

/// A set of VLAN ids from 1 to 4094, written like `1-10,20`. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Arc<[u64; 64]>);

impl Default for VlanSet {
    fn default() -> Self {
        Self(Arc::new([0; 64]))
    }
}

impl VlanSet {
    /// Every VLAN id.
    pub fn all() -> Self {
        (1..=VID_MAX).collect()
    }

    /// Is the id in the set? (0 and 4095 never are.)
    #[inline]
    pub fn contains(&self, vid: u16) -> bool {
        self.0.get(usize::from(vid / 64)).is_some_and(|word| word >> (vid % 64) & 1 == 1)
    }

    /// The ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (1..=VID_MAX).filter(|vid| self.contains(*vid))
    }

    /// No id at all.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// Ids outside 1 to 4094 are left out.
impl FromIterator<u16> for VlanSet {
    fn from_iter<I: IntoIterator<Item = u16>>(vids: I) -> Self {
        let mut words = [0; 64];
        for vid in vids.into_iter().filter(|vid| (1..=VID_MAX).contains(vid)) {
            if let Some(word) = words.get_mut(usize::from(vid / 64)) {
                *word |= 1u64 << (vid % 64);
            }
        }
        Self(Arc::new(words))
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut vids = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = vids.next() {
            let mut last = first;
            while let Some(next) = vids.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({self})")
    }
}

/// What [`VlanSet::from_str`] refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a VLAN id from 1 to {VID_MAX} or a range of them; write a set like 1-10,20,4094"
)]
pub struct VlanSetError(String);

impl FromStr for VlanSet {
    type Err = VlanSetError;

    fn from_str(text: &str) -> Result<Self, VlanSetError> {
        let mut vids = Vec::new();
        for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let vid = |number: &str| {
                let number = number.trim().parse().ok();
                number.filter(|vid| (1..=VID_MAX).contains(vid))
            };
            match (vid(first), vid(last)) {
                (Some(first), Some(last)) if first <= last => vids.extend(first..=last),
                _ => return Err(VlanSetError(part.to_owned())),
            }
        }
        Ok(vids.into_iter().collect())
    }
}

impl Serialize for VlanSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VlanSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
