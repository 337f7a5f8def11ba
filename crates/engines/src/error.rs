//! What can go wrong, in the engine's words.

use std::io;

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine's library was not there when this program was built.
    #[error(
        "built without {engine}: install its headers (Debian: apt-get install {packages}) and build again"
    )]
    Missing {
        /// The engine, or its library.
        engine: &'static str,
        /// Debian's packages.
        packages: &'static str,
    },
    /// Its library is not there now.
    #[error("{engine} cannot be used here: {why} (Debian: apt-get install {packages})")]
    NotLoaded {
        /// The engine, or its library.
        engine: &'static str,
        /// What the loader says.
        why: String,
        /// Debian's packages.
        packages: &'static str,
    },
    /// There is no such image.
    #[error("there is no image {0}")]
    NotFound(String),
    /// Somebody else writes it.
    #[error("{image} is in use by {owner}")]
    InUse {
        /// The image.
        image: String,
        /// Who, as far as that is known.
        owner: String,
    },
    /// It cannot be opened like this.
    #[error("{0}")]
    Unsuitable(String),
    /// The engine refused, or failed.
    #[error("{what}: {text}")]
    Engine {
        /// The call.
        what: &'static str,
        /// What the engine says.
        text: String,
        /// What kind of error it is.
        kind: io::ErrorKind,
    },
    /// The image was closed.
    #[error("the image is closed")]
    Closed,
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Engine { kind, .. } => *kind,
            Error::NotFound(_) => io::ErrorKind::NotFound,
            Error::InUse { .. } => io::ErrorKind::ResourceBusy,
            Error::Closed => io::ErrorKind::NotConnected,
            _ => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}
