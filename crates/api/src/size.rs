//! Sizes of memory.

use std::fmt;
use std::str::FromStr;

const UNITS: [(char, u64); 4] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];

/// A size in bytes, a multiple of 1 KiB; its text is a number and one of `K`, `M`, `G`, `T`
/// (powers of 1024, as QEMU reads them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemorySize(u64);

/// A text that is not a [`MemorySize`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a size: a number from 1 and one of K, M, G, T are allowed, up to 64T, like 512M or 4G"
)]
pub struct BadSize(String);

impl MemorySize {
    /// What a VM gets when nothing was said.
    pub const DEFAULT: Self = Self(1 << 30);
    const MAX: u64 = 64 << 40;

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl Default for MemorySize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl FromStr for MemorySize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.chars().take(32).collect());
        let unit = text.chars().next_back().ok_or_else(bad)?.to_ascii_uppercase();
        let (_, factor) = UNITS.iter().find(|(letter, _)| *letter == unit).ok_or_else(bad)?;
        let digits = text.get(..text.len() - 1).ok_or_else(bad)?;
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let number: u64 = digits.parse().map_err(|_| bad())?;
        match number.checked_mul(*factor) {
            Some(bytes @ 1..=Self::MAX) => Ok(Self(bytes)),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().rev().find(|(_, factor)| self.0.is_multiple_of(*factor));
        let (letter, factor) = whole.unwrap_or(&UNITS[0]);
        f.pad(&format!("{}{letter}", self.0 / factor))
    }
}

crate::text::as_text!(
    MemorySize,
    pattern: "^[0-9]+[KMGTkmgt]$",
    example: "512M",
    what: "a size in powers of 1024"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for (text, bytes, shown) in [
            ("1G", 1u64 << 30, "1G"),
            ("1024M", 1 << 30, "1G"),
            ("1536m", 1536 << 20, "1536M"),
            ("4k", 4096, "4K"),
            ("64T", 64 << 40, "64T"),
        ] {
            let size: MemorySize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown));
        }
        for bad in
            ["", "G", "1", "0G", "-1G", "+1G", "1.5G", "65T", "99999999999999999999G", "1Gé", "é"]
        {
            assert!(bad.parse::<MemorySize>().is_err(), "{bad}");
        }
    }
}
