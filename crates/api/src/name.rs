//! Names of networks, ports and VMs.

use std::fmt;
use std::str::FromStr;

/// Longest name, in bytes.
const MAX: usize = 63;

/// Name of a network, a port or a VM: 1 to 63 of `a-z A-Z 0-9 . _ -`, not `.` or `..`.
///
/// It is safe as a file name, as a path component of the interface and inside a QEMU argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

/// A text that cannot be a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a name: 1 to 63 letters, digits, '.', '_' or '-' are allowed, and not \".\" or \"..\""
)]
pub struct BadName(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let good = (1..=MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && text != "."
            && text != "..";
        // A hostile text is not echoed at full length.
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadName(text.chars().take(MAX + 1).collect()))
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

crate::text::as_text!(
    Name,
    pattern: "^[a-zA-Z0-9._-]{1,63}$",
    example: "web0",
    what: "a name (1 to 63 of a-z, A-Z, 0-9, '.', '_', '-')"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_is_allowed_and_nothing_else() {
        for good in ["a", "web-0.eth_1", "..a", &"x".repeat(63)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", "a\n", &"x".repeat(64), &"x".repeat(1 << 20)]
        {
            let error = bad.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains("1 to 63"), "{error}");
            assert!(error.len() < 400, "the echo is bounded");
        }
    }

    #[test]
    fn is_a_string_in_json() {
        let name: Name = serde_json::from_str("\"lan\"").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"lan\"");
        let error = serde_json::from_str::<Name>("\"a b\"").unwrap_err().to_string();
        assert!(error.contains("letters, digits"), "{error}");
        assert!(serde_json::from_str::<Name>("7").is_err());
    }
}
