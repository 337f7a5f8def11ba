//! How interrupts are moderated.

use std::fmt;
use std::str::FromStr;

/// Most frames that may be set: a quarter of the largest ring.
const FRAMES_MAX: u16 = 8192;

/// The longest time that may be set, in microseconds.
const MICROS_MAX: u16 = 10_000;

/// When a guest is interrupted for the frames it received; its text is `off`, `adaptive` or
/// `FRAMES,MICROSECONDS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moderation {
    /// Whenever the guest wants it.
    Off,
    /// Learned from the traffic.
    #[default]
    Adaptive,
    /// Until the first of these.
    Fixed {
        /// So many frames have gathered, 1 to 8192.
        frames: u16,
        /// The last interrupt was so many microseconds ago, 1 to 10000.
        micros: u16,
    },
}

/// A text that is not a [`Moderation`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a way to moderate interrupts: off, adaptive, or FRAMES,MICROSECONDS from 1 to \
     {FRAMES_MAX} and from 1 to {MICROS_MAX} are allowed, like 32,100"
)]
pub struct BadModeration(String);

impl FromStr for Moderation {
    type Err = BadModeration;

    fn from_str(text: &str) -> Result<Self, BadModeration> {
        let number = |text: &str, most: u16| {
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            let number = text.parse().ok().filter(|_| digits)?;
            (1..=most).contains(&number).then_some(number)
        };
        let fixed = || {
            let (frames, micros) = text.split_once(',')?;
            let (frames, micros) = (number(frames, FRAMES_MAX)?, number(micros, MICROS_MAX)?);
            Some(Self::Fixed { frames, micros })
        };
        match text {
            "off" => Ok(Self::Off),
            "adaptive" => Ok(Self::Adaptive),
            _ => fixed().ok_or_else(|| BadModeration(text.chars().take(64).collect())),
        }
    }
}

impl fmt::Display for Moderation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Adaptive => f.write_str("adaptive"),
            Self::Fixed { frames, micros } => write!(f, "{frames},{micros}"),
        }
    }
}

crate::text::as_text!(
    Moderation,
    pattern: "^(off|adaptive|[0-9]+,[0-9]+)$",
    example: "adaptive",
    what: "off, adaptive, or FRAMES,MICROSECONDS (1 to 8192, 1 to 10000)"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in ["off", "adaptive", "1,1", "64,100", "8192,10000"] {
            assert_eq!(text.parse::<Moderation>().unwrap().to_string(), text);
        }
        let bad = ["", "on", "Off", "64", "64,", ",100", "0,100", "64,0", "8193,1", "1,10001"];
        for text in bad.into_iter().chain(["+1,+1", "64,100,1", " 64,100", "65537,1", "-1,5"]) {
            assert!(text.parse::<Moderation>().is_err(), "{text}");
        }
    }
}
