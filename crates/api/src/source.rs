//! Where the bytes of a disk are: an image of this host, or one in a store.

use crate::{BadImageName, ImageName};
use std::fmt;
use std::str::FromStr;

/// How an image in a store begins.
const SCHEME: &str = "store://";
/// Most addresses of a store.
const ADDRESSES: usize = 8;

/// Where the bytes of a disk are: `IMAGE`, or `store://HOST:PORT/IMAGE`. Several addresses, separated
/// by commas, are stores with the same images: the first that answers is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageSource {
    /// An image of this host.
    Local(ImageName),
    /// An image in a store.
    Store {
        /// Host and port, at least one.
        addresses: Vec<String>,
        /// Its name there.
        image: ImageName,
    },
}

/// A text that cannot be an [`ImageSource`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadImageSource {
    /// The image.
    #[error(transparent)]
    Name(#[from] BadImageName),
    /// The store.
    #[error("{0} with the image behind it")]
    Address(#[from] BadStoreAddress),
}

impl ImageSource {
    /// The image's name, wherever it is.
    pub fn name(&self) -> &ImageName {
        match self {
            Self::Local(image) | Self::Store { image, .. } => image,
        }
    }

    /// The image's name if it is here.
    pub fn local(&self) -> Option<&ImageName> {
        match self {
            Self::Local(image) => Some(image),
            Self::Store { .. } => None,
        }
    }
}

impl FromStr for ImageSource {
    type Err = BadImageSource;

    fn from_str(text: &str) -> Result<Self, BadImageSource> {
        let Some(rest) = text.strip_prefix(SCHEME) else { return Ok(Self::Local(text.parse()?)) };
        let (places, image) = rest.split_once('/').ok_or_else(|| BadStoreAddress::of(text))?;
        let addresses = addresses(places).ok_or_else(|| BadStoreAddress::of(text))?;
        Ok(Self::Store { addresses, image: image.parse()? })
    }
}

/// Where a store is: `store://HOST:PORT/`. Several addresses, separated by commas, are stores with the
/// same images: the first that answers is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// Host and port, at least one.
    pub addresses: Vec<String>,
}

/// A text that does not say where a store is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not where a store is: HOST:PORT is, or up to 8 of these with commas between, like store://10.0.0.5:4420/"
)]
pub struct BadStoreAddress(String);

impl BadStoreAddress {
    /// A hostile text is not echoed at full length.
    fn of(text: &str) -> Self {
        Self(text.chars().take(64).collect())
    }
}

impl FromStr for StoreAddress {
    type Err = BadStoreAddress;

    fn from_str(text: &str) -> Result<Self, BadStoreAddress> {
        let places = text.strip_prefix(SCHEME).map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let addresses = places.and_then(addresses).ok_or_else(|| BadStoreAddress::of(text))?;
        Ok(Self { addresses })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{SCHEME}{}/", self.addresses.join(",")))
    }
}

/// Each `HOST:PORT` between commas; `None`: that is not what it is.
fn addresses(text: &str) -> Option<Vec<String>> {
    let all: Vec<String> = text.split(',').map(str::to_owned).collect();
    (all.len() <= ADDRESSES && all.iter().all(|address| is_address(address))).then_some(all)
}

/// Whether this is `HOST:PORT`, with an IPv6 address in brackets.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good = match inner {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
            (1..=253).contains(&host.len()) && host.bytes().all(letter)
        }
    };
    good && port.parse::<u16>().is_ok_and(|port| port > 0)
}

impl fmt::Display for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(image) => image.fmt(f),
            Self::Store { addresses, image } => {
                f.pad(&format!("{SCHEME}{}/{image}", addresses.join(",")))
            }
        }
    }
}

crate::text::as_text!(
    ImageSource,
    pattern: "^(store://[^/]+/)?[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}(@[A-Za-z0-9_-][A-Za-z0-9._-]{0,62})?$",
    example: "store://10.0.0.5:4420/web",
    what: "name of an image or snapshot, or where one is in a store"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_written_again() {
        for text in [
            "web",
            "web@before",
            "store://10.0.0.5:4420/web",
            "store://store.example:1,[::1]:65535/web@before",
        ] {
            let source: ImageSource = text.parse().unwrap();
            assert_eq!(source.to_string(), text);
            assert_eq!(source.local().is_some(), !text.starts_with("store:"));
            assert!(source.name().as_str().starts_with("web"));
        }
    }

    #[test]
    fn a_store_is_named_without_an_image() {
        for text in ["store://10.0.0.5:4420/", "store://store.example:1,[::1]:65535/"] {
            let store: StoreAddress = text.parse().unwrap();
            assert_eq!(store.to_string(), text);
            assert_eq!(text.trim_end_matches('/').parse(), Ok(store));
        }
        for text in ["10.0.0.5:4420", "store://", "store:///", "store://a:1/web", "store://a:1//"] {
            assert!(text.parse::<StoreAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "a/b",
            "store://",
            "store:///web",
            "store://host/web",
            "store://host:0/web",
            "store://host:99999/web",
            "store://:1/web",
            "store://a:1,/web",
            "store://::1:5/web",
            "store://[::g]:5/web",
            "store://a:1/../web",
            "store://a b:1/web",
            "store://a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1/web",
        ] {
            assert!(text.parse::<ImageSource>().is_err(), "{text}");
        }
    }
}
