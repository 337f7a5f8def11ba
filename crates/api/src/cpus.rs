//! Sets of CPUs.

use std::fmt;
use std::str::FromStr;

/// Highest CPU number accepted.
const CPU_MAX: u16 = 4095;

/// A set of CPUs; its text is `0,2-3`, as in `/sys/devices/system/cpu/online`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<(u16, u16)>);

/// A text that is not a [`CpuList`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of CPUs: numbers and ranges are allowed, like 0,2-3")]
pub struct BadCpuList(String);

impl CpuList {
    /// Every CPU of the set, in ascending order.
    pub fn cpus(&self) -> Vec<usize> {
        self.0.iter().flat_map(|(first, last)| *first..=*last).map(usize::from).collect()
    }
}

impl FromStr for CpuList {
    type Err = BadCpuList;

    fn from_str(text: &str) -> Result<Self, BadCpuList> {
        let ranges = crate::ranges::parse(text, 0, CPU_MAX);
        ranges.map(Self).ok_or_else(|| BadCpuList(text.chars().take(64).collect()))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::ranges::write(&self.0, f)
    }
}

crate::text::as_text!(
    CpuList,
    pattern: "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$",
    example: "0,2-3",
    what: "a set of CPUs"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let list: CpuList = "3,0-1".parse().unwrap();
        assert_eq!((list.to_string().as_str(), list.cpus()), ("0-1,3", vec![0, 1, 3]));
        for bad in ["", "a", "1-", "2-1", "4096", "+1", "1,,2"] {
            assert!(bad.parse::<CpuList>().is_err(), "{bad}");
        }
    }
}
