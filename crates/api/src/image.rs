//! Images: what disks are made of.

use crate::{MemorySize, Name, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Name of an image: `NAME`, or `NAME@SNAP` for its snapshot SNAP, which is read-only.
///
/// Both parts are as [`Name`] and do not begin with a dot, so it is a file name and hidden entries
/// of a directory are no images.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageName(String);

/// A text that cannot be an [`ImageName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the name of an image: 1 to 63 letters, digits, '.', '_' or '-' that do not begin with '.' are allowed, or two of these with '@' between for a snapshot"
)]
pub struct BadImageName(String);

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
    /// This is a snapshot itself, or `snapshot` is no name.
    pub fn snapshot(&self, snapshot: &str) -> Result<Self, BadImageName> {
        format!("{self}@{snapshot}").parse()
    }
}

impl FromStr for ImageName {
    type Err = BadImageName;

    fn from_str(text: &str) -> Result<Self, BadImageName> {
        let good = |part: &str| !part.starts_with('.') && part.parse::<Name>().is_ok();
        let (image, snapshot) = match text.split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (text, None),
        };
        if good(image) && snapshot.is_none_or(good) {
            Ok(Self(text.to_owned()))
        } else {
            // A hostile text is not echoed at full length.
            Err(BadImageName(text.chars().take(64).collect()))
        }
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

crate::text::as_text!(
    ImageName,
    pattern: "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}(@[A-Za-z0-9_-][A-Za-z0-9._-]{0,62})?$",
    example: "web@before-upgrade",
    what: "name of an image, or of a snapshot of one"
);

/// How the bytes of a disk are laid out in its file.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ImageFormat {
    /// As they are.
    Raw,
    /// Clusters behind two levels of tables, where what was never written takes no space.
    Qcow2,
}

impl ImageFormat {
    /// Its name, as in QEMU: `raw` or `qcow2`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for ImageFormat {
    type Err = BadImageFormat;

    fn from_str(text: &str) -> Result<Self, BadImageFormat> {
        match text {
            "raw" => Ok(Self::Raw),
            "qcow2" => Ok(Self::Qcow2),
            _ => Err(BadImageFormat),
        }
    }
}

/// A text that is not an [`ImageFormat`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a format: raw or qcow2 is")]
pub struct BadImageFormat;

/// An image as the daemon shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Image {
    /// Its name.
    pub name: ImageName,
    /// How its bytes are laid out.
    pub format: ImageFormat,
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes that its own file takes on the host.
    pub allocated: u64,
    /// The image that holds what was not written to this one.
    pub backing: Option<ImageName>,
    /// When it was made.
    pub created: Timestamp,
    /// SHA-256 of the file that was imported, in hexadecimal, if that was asked for.
    pub sha256: Option<String>,
    /// The images behind it, nearest first. Only where one image was asked for, as what follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Vec<ImageName>>,
    /// The images that are clones or later states of it, and need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clones: Option<Vec<ImageName>>,
    /// Who has it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
}

/// What an image is made from: an empty one has a size and a format, a clone a base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// Size of an empty disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<MemorySize>,
    /// Format of an empty image. Default: `raw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// The image or snapshot of which it is a clone: it takes only the space of what is written to
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<ImageName>,
}

/// A snapshot to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Its own name; the image it becomes is `NAME@SNAPSHOT`.
    pub snapshot: Name,
}

/// Another size for an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The size.
    pub size: MemorySize,
    /// It may be smaller than now: what is behind the new end is lost.
    #[serde(default)]
    pub shrink: bool,
}

/// A file to make an image from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The file, by an absolute path.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Its format. It is never guessed.
    pub format: ImageFormat,
    /// Format of the image. Default: that of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_format: Option<ImageFormat>,
    /// What the SHA-256 of the file has to be, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Work out the SHA-256 of the file, and keep it with the image.
    #[serde(default)]
    pub checksum: bool,
}

/// A file to be made from an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The file, by an absolute path.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Its format. Default: `raw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// Replace a file that is there.
    #[serde(default)]
    pub force: bool,
}

/// A line of the answer while something long is done: how far it is, and at last what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// Bytes done, and all there are to do.
    Bytes(u64, u64),
    /// It was done.
    Done(Image),
    /// It was not, and nothing is left of it.
    Failed(crate::Error),
}

/// What a look at an image found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ImageCheck {
    /// Whether it can be used: no errors. Clusters that nothing refers to only waste space.
    pub sound: bool,
    /// What is wrong.
    pub errors: Vec<String>,
    /// How many clusters nothing refers to.
    pub leaked_clusters: u64,
    /// Bytes of data it has.
    pub allocated: u64,
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
