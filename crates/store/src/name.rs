//! Names of images and snapshots.

use std::fmt;
use std::str::FromStr;

use api::Name;
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// Name of an image: `NAME`, or `NAME@SNAP` for its snapshot SNAP, which is read-only.
///
/// Both parts are as [`Name`] and do not begin with a dot, so it is a file name and hidden entries
/// of the directory are no images.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName(String);

impl ImageName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the name of a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.0.contains('@')
    }

    /// The name of this image's snapshot `snapshot`.
    ///
    /// # Errors
    /// [`StoreError::BadName`] if this is a snapshot itself, or `snapshot` is no name.
    pub fn snapshot(&self, snapshot: &str) -> Result<Self, StoreError> {
        format!("{self}@{snapshot}").parse()
    }
}

impl FromStr for ImageName {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let good = |part: &str| !part.starts_with('.') && part.parse::<Name>().is_ok();
        let (image, snapshot) = match text.split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (text, None),
        };
        if good(image) && snapshot.is_none_or(good) {
            Ok(Self(text.to_owned()))
        } else {
            // A hostile text is not echoed at full length.
            Err(StoreError::BadName { text: text.chars().take(64).collect() })
        }
    }
}

impl TryFrom<String> for ImageName {
    type Error = StoreError;

    fn try_from(text: String) -> Result<Self, StoreError> {
        text.parse()
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> String {
        name.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_or_two_names_without_a_leading_dot() {
        for good in ["web0", "web0@before-upgrade", "a.b", &"x".repeat(63)] {
            assert_eq!(good.parse::<ImageName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(1 << 20);
        for bad in ["", ".", "..", ".lock", "a/b", "a@", "@a", "a@b@c", "a@.b", "a b", "a\n", &long]
        {
            let error = bad.parse::<ImageName>().unwrap_err().to_string();
            assert!(error.len() < 500, "the echo is bounded: {error}");
        }
    }

    #[test]
    fn a_snapshot_has_none() {
        let image: ImageName = "web0".parse().unwrap();
        let snapshot = image.snapshot("s1").unwrap();
        assert_eq!(snapshot.as_str(), "web0@s1");
        assert!(snapshot.is_snapshot() && !image.is_snapshot());
        assert!(snapshot.snapshot("s2").is_err());
    }
}
