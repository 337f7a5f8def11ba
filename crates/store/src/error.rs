//! Why an operation on images was refused or failed.

use std::io;
use std::path::{Path, PathBuf};

use crate::{ImageName, Owner};

/// Why an operation on images was refused or failed: a sentence a person can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The text cannot name an image.
    #[error(transparent)]
    BadName(#[from] api::BadImageName),
    /// No such image.
    #[error("there is no image {0}")]
    NotFound(ImageName),
    /// The name is taken.
    #[error("there is an image {0} already")]
    Exists(ImageName),
    /// The size is not one an image can have.
    #[error("{0} bytes is not a size of an image: a multiple of 512 from 512 to 64 TiB is")]
    BadSize(u64),
    /// Somebody has it open in a way that excludes what was asked.
    #[error("image {name} is in use{}", of(.owner.as_deref()))]
    InUse {
        /// The image.
        name: ImageName,
        /// Who has it open for writing, as far as it says so.
        owner: Option<Box<Owner>>,
    },
    /// Other images are made of this one.
    #[error("image {name} is the base of {}: it must not change", list(clones))]
    HasClones {
        /// The image.
        name: ImageName,
        /// The images whose backing file it is.
        clones: Vec<ImageName>,
    },
    /// A snapshot is never written.
    #[error("{0} is a snapshot and read-only; make a clone of it to write")]
    Snapshot(ImageName),
    /// One more image on top would be too many.
    #[error(
        "image {0} stands on too many others already; export it and import the copy to shorten the \
         chain"
    )]
    TooDeep(ImageName),
    /// A smaller size was asked for without saying that the end may be lost.
    #[error("image {name} has {from} bytes; making it {to} would cut off its end")]
    Shrink {
        /// The image.
        name: ImageName,
        /// Its size in bytes.
        from: u64,
        /// The size asked for.
        to: u64,
    },
    /// A file to import cannot be taken as it is.
    #[error("{}: {what}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it has, and what to do about it.
        what: String,
    },
    /// An image of the catalog is not as it was left.
    #[error("image {name} is damaged: {what}")]
    Damaged {
        /// The image.
        name: ImageName,
        /// What was found.
        what: String,
    },
    /// The content is not what was expected.
    #[error("{}: its SHA-256 is {found}, not {expected}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// What was expected, in hexadecimal.
        expected: String,
        /// What it has.
        found: String,
    },
    /// The caller said to stop.
    #[error("cancelled")]
    Cancelled,
    /// The file to write exists.
    #[error("{} exists already", .0.display())]
    FileExists(PathBuf),
    /// The host refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

fn of(owner: Option<&Owner>) -> String {
    owner.map(|owner| format!(" by {owner}")).unwrap_or_default()
}

fn list(names: &[ImageName]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<_> = names.iter().take(SHOWN).map(ImageName::as_str).collect();
    let more = format!("{} more", names.len().saturating_sub(SHOWN));
    if names.len() > SHOWN {
        text.push(&more);
    }
    text.join(", ")
}

/// Says what was tried when the host refuses.
pub(crate) trait Context<T> {
    /// `what` is "verb object", as in "cannot open".
    fn on(self, what: &str, path: &Path) -> Result<T, StoreError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn on(self, what: &str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|error| StoreError::Io {
            what: format!("cannot {what} {}", path.display()),
            source: error.into(),
        })
    }
}
