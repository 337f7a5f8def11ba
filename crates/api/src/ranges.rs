//! Sets of small numbers as text: `10,20-30`.

use std::fmt;

/// Reads numbers and ranges from `low` to `high`; the result is sorted, its ranges neither touch
/// nor overlap. `None` if the text is anything else.
pub(crate) fn parse(text: &str, low: u16, high: u16) -> Option<Vec<(u16, u16)>> {
    let number = |part: &str| {
        let part = part.trim();
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let number = if digits { part.parse().ok()? } else { return None };
        (low..=high).contains(&number).then_some(number)
    };
    let mut ranges = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        ranges.push((first, last));
    }
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    Some(merged)
}

/// Writes what [`parse`] reads.
pub(crate) fn write(ranges: &[(u16, u16)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, (first, last)) in ranges.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        if first == last {
            write!(f, "{comma}{first}")?;
        } else {
            write!(f, "{comma}{first}-{last}")?;
        }
    }
    Ok(())
}
