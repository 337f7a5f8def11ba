//! Points in time, as RFC 3339 text in UTC.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time to the second; its text is `2026-01-31T12:00:00Z` (RFC 3339).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(SystemTime);

/// A text that is not a [`Timestamp`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a time: RFC 3339 in UTC like 2026-01-31T12:00:00Z is allowed")]
pub struct BadTimestamp;

impl Timestamp {
    /// How long ago this was; nothing if the clock was set back meanwhile.
    pub fn age(self) -> Duration {
        SystemTime::now().duration_since(self.0).unwrap_or_default()
    }

    /// Seconds since 1970.
    pub fn unix(self) -> u64 {
        self.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        // RFC 3339 has four digits for the year; a clock beyond them is shown at the edge.
        let end = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        Self(time.clamp(UNIX_EPOCH, end))
    }
}

impl FromStr for Timestamp {
    type Err = BadTimestamp;

    fn from_str(text: &str) -> Result<Self, BadTimestamp> {
        humantime::parse_rfc3339(text).map(Self).map_err(|_| BadTimestamp)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", humantime::format_rfc3339_seconds(self.0))
    }
}

crate::text::as_text!(
    Timestamp,
    pattern: "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
    example: "2026-01-31T12:00:00Z",
    what: "a point in time (RFC 3339, UTC)"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let time = Timestamp::from(UNIX_EPOCH + Duration::from_secs(1_769_860_800));
        assert_eq!(time.to_string(), "2026-01-31T12:00:00Z");
        assert_eq!(time.to_string().parse::<Timestamp>().unwrap(), time);
        assert!("yesterday".parse::<Timestamp>().is_err());
        let far = Timestamp::from(UNIX_EPOCH + Duration::from_secs(u64::from(u32::MAX) * 1000));
        assert_eq!(far.to_string(), "9999-12-31T23:59:59Z");
    }
}
