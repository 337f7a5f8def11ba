//! Numbers as people read them.

use api::{Function, Name, Origin, Port};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// A count: exact to five digits, then `123k`, `1.23M`.
pub(crate) fn number(value: u64) -> String {
    if value < 100_000 {
        value.to_string()
    } else {
        scaled(value as f64, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
    }
}

/// An amount of bytes: `1.5 KiB`, `2 GiB`.
pub(crate) fn bytes(value: u64) -> String {
    let text =
        scaled(value as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"]);
    // Whole units have no fraction worth showing.
    text.replacen(".00 ", " ", 1).replacen(".0 ", " ", 1)
}

/// A rate: `1.23 Mbit/s`.
pub(crate) fn rate(value: f64, unit: &str) -> String {
    let space = if unit.starts_with('/') { "" } else { " " };
    format!(
        "{}{unit}",
        scaled(
            value,
            1000.0,
            &["", "k", "M", "G", "T", "P", "E"].map(|prefix| format!("{space}{prefix}"))
        )
    )
}

/// Three digits and a unit.
fn scaled<U: AsRef<str>>(value: f64, step: f64, units: &[U]) -> String {
    let mut value = value;
    let mut units = units.iter().map(AsRef::as_ref).peekable();
    let mut unit = units.next().unwrap_or_default();
    let mut whole = true;
    // What would be rounded to the next unit is shown in the next unit.
    while value.round() >= step && units.peek().is_some() {
        value /= step;
        whole = false;
        unit = units.next().unwrap_or_default();
    }
    let digits = match value {
        _ if whole => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

/// A time that passed, to two units: `45s`, `3m 20s`, `2d 5h`.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// A value that may be absent.
pub(crate) fn maybe(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Several values with spaces between.
pub(crate) fn list(values: &[impl Display]) -> String {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    texts.join(" ")
}

/// Names in order with spaces between; those that differ only in a number at the end, if there are
/// three or more in a row, as `pf0vf0..3`.
pub(crate) fn names(names: &[Name]) -> String {
    let split = |name: &Name| {
        let text = name.as_str();
        let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &text[stem.len()..];
        // Others would not be printed as they are.
        let number: Option<u64> = digits.parse().ok().filter(|n: &u64| n.to_string() == digits);
        (if number.is_some() { stem } else { text }.to_owned(), number)
    };
    let mut parts: Vec<(String, Option<u64>)> = names.iter().map(split).collect();
    parts.sort();
    let mut texts = Vec::new();
    let mut rest = parts.as_slice();
    while let Some((stem, number)) = rest.first() {
        let next = |n: usize| number.map(|first| first.saturating_add(n as u64));
        let run = (0..).zip(rest).take_while(|(n, part)| part.0 == *stem && part.1 == next(*n));
        let run = run.count().max(1);
        match (number, next(run - 1)) {
            (Some(first), Some(last)) if run > 2 => texts.push(format!("{stem}{first}..{last}")),
            (Some(first), Some(last)) => {
                texts.extend((*first..=last).map(|number| format!("{stem}{number}")));
            }
            _ => texts.push(stem.clone()),
        }
        rest = rest.get(run..).unwrap_or_default();
    }
    texts.join(" ")
}

/// Which function of which PF.
pub(crate) fn function(Function { pf, vf }: &Function) -> String {
    match vf {
        Some(vf) => format!("VF {vf} of {pf}"),
        None => "PF".to_owned(),
    }
}

/// `1 port`, `2 ports`.
pub(crate) fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Drops by reason.
pub(crate) fn drops(drops: &BTreeMap<String, u64>) -> String {
    let texts: Vec<String> =
        drops.iter().map(|(reason, count)| format!("{reason}:{}", number(*count))).collect();
    texts.join(" ")
}

/// How the port treats VLANs, to be put after its network's name.
pub(crate) fn vlans(port: &Port) -> String {
    match (&port.trunk, port.vlan, port.native) {
        (Some(trunk), _, Some(native)) => format!(" (trunk {trunk}, native {native})"),
        (Some(trunk), _, None) => format!(" (trunk {trunk})"),
        (None, Some(vlan), _) => format!(" (vlan {vlan})"),
        (None, None, _) => String::new(),
    }
}

/// Where something was declared.
pub(crate) fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Config => "in the configuration file",
        Origin::Runtime => "at run time",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_five_characters_and_a_unit() {
        let shown = [0, 99_999, 100_000, 999_499, 999_500, 1_234_567, 45_600_000_000].map(number);
        assert_eq!(shown, ["0", "99999", "100k", "999k", "1.00M", "1.23M", "45.6G"]);
        assert_eq!(number(u64::MAX), "18.4E");
    }

    #[test]
    fn names_that_are_numbered_are_shown_as_a_range() {
        let shown = |text: &str| {
            let all: Vec<Name> =
                text.split_whitespace().map(|name| name.parse().unwrap()).collect();
            names(&all)
        };
        assert_eq!(shown(""), "");
        assert_eq!(shown("a b0 b1 c"), "a b0 b1 c");
        let vfs: Vec<String> = (0..12).map(|n| format!("a-pf0vf{n}")).collect();
        assert_eq!(shown(&format!("web a-pf0 {}", vfs.join(" "))), "a-pf0 a-pf0vf0..11 web");
        assert_eq!(shown("x1 x2 x3 x5 x6"), "x1..3 x5 x6");
        assert_eq!(shown("x01 x02 x03 7 8 9"), "7..9 x01 x02 x03");
        assert_eq!(
            shown("x18446744073709551615 x99999999999999999999"),
            "x18446744073709551615 x99999999999999999999"
        );
    }

    #[test]
    fn bytes_are_binary() {
        let shown = [0, 1023, 1024, 1536, 1 << 20, 10 << 20, (1 << 30) + (1 << 29)].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.50 KiB", "1 MiB", "10 MiB", "1.50 GiB"]);
    }

    #[test]
    fn rates_and_ages() {
        assert_eq!(rate(0.0, "/s"), "0/s");
        assert_eq!(rate(1_234_567.0, "/s"), "1.23M/s");
        assert_eq!(rate(999.9, "bit/s"), "1.00 kbit/s");
        let shown = [0, 59, 200, 7320, 190_800].map(|s| age(Duration::from_secs(s)));
        assert_eq!(shown, ["0s", "59s", "3m 20s", "2h 2m", "2d 5h"]);
    }
}
