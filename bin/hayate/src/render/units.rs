//! Numbers as people read them.

use api::{Origin, Port};
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
