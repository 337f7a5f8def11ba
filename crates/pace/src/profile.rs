//! What may be traded for what.

use std::fmt;
use std::str::FromStr;

/// What a worker is set to save: time or CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Profile {
    /// Polls and never waits: for a CPU that has nothing else to do.
    Always,
    /// Answers at once: polls for a millisecond after the last frame and never naps.
    Latency,
    /// Naps of at most 100 microseconds while frames come steadily; polls while they come densely.
    #[default]
    Balanced,
    /// Naps of at most 250 microseconds, hardly ever polls.
    Power,
}

/// The bounds of a profile, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long to poll after the last frame, shorter and longer.
    pub(crate) spin: [u64; 2],
    /// The same while there is work for a quarter of the time or more.
    pub(crate) spin_loaded: u64,
    /// Whether to poll only if that has been of use.
    pub(crate) learns: bool,
    /// The longest nap.
    pub(crate) nap: u64,
    /// How long at most a device is polled for that more waits for.
    pub(crate) device: u64,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 4] = [Self::Always, Self::Latency, Self::Balanced, Self::Power];

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Latency => "latency",
            Self::Balanced => "balanced",
            Self::Power => "power",
        }
    }

    /// Whether CPUs are kept from sleeping deeply while frames come ([`crate::Vigil`]).
    #[must_use]
    pub fn wakes_quickly(self) -> bool {
        self != Self::Power
    }

    pub(crate) fn limits(self) -> Limits {
        const US: u64 = 1_000;
        match self {
            Self::Always => Limits {
                spin: [u64::MAX; 2],
                spin_loaded: u64::MAX,
                learns: false,
                nap: 0,
                device: u64::MAX,
            },
            Self::Latency => Limits {
                spin: [1_000 * US; 2],
                spin_loaded: 1_000 * US,
                learns: false,
                nap: 0,
                device: 4_000 * US,
            },
            Self::Balanced => Limits {
                spin: [5 * US, 25 * US],
                spin_loaded: 50 * US,
                learns: true,
                nap: 100 * US,
                device: 4_000 * US,
            },
            Self::Power => {
                Limits { spin: [0; 2], spin_loaded: 5 * US, learns: true, nap: 250 * US, device: 0 }
            }
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownProfile;

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not one of always, latency, balanced and power")
    }
}

impl std::error::Error for UnknownProfile {}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL.into_iter().find(|profile| profile.name() == name).ok_or(UnknownProfile)
    }
}
