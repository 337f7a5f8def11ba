//! What is said before and beside the requests, as JSON.
//!
//! The client says [`Hello`](ToStore::Hello), then opens one image; everything is answered by one
//! message or refused. Unknown fields are ignored, so that newer versions can say more.

pub use api::{ImageName, Transport};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::frame::{self, Item};

/// From the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToStore {
    /// The first message.
    Hello {
        /// Highest version of the protocol it speaks.
        version: u16,
        /// Who it is, for people.
        client: String,
    },
    /// Opens an image. Everything that an earlier connection of the same session had under way has
    /// ended, or never will be done, when this is answered.
    Open {
        /// Its name in the store.
        image: ImageName,
        /// For writing, too: nobody else may have it open then.
        write: bool,
        /// The same through all connections of one disk, known to nobody else; 32 hexadecimal
        /// digits.
        session: Session,
        /// Takes it from whoever has it open: they can change nothing any more.
        #[serde(default)]
        fence: bool,
        /// The guest is to be served by the store itself, on the same machine.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_place: bool,
        /// Providers of libfabric by which the client can be reached, the best first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        fabrics: Vec<String>,
    },
    /// The images there are.
    List,
}

/// From the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToClient {
    /// The answer to hello.
    Welcome {
        /// The version that is spoken from now on.
        version: u16,
        /// Who it is, for people.
        store: String,
        /// Another one after the store's machine has started anew: what was not flushed may be gone.
        boot: String,
        /// The Unix socket at which guests of the same machine are handed over, if they can be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        local: Option<PathBuf>,
    },
    /// The image is open: requests may come.
    Opened(Opened),
    /// The images.
    Images {
        /// By name.
        images: Vec<Listed>,
    },
    /// It was not done.
    Refused(Refused),
}

/// An open image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// For requests; never that of an earlier connection.
    pub handle: u32,
    /// One more with each time it is opened for writing.
    pub epoch: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that are written together, at least 512.
    pub block_size: u32,
    /// Most requests that may be under way.
    pub requests: u16,
    /// Most bytes of reads and writes that may be under way.
    pub bytes: u32,
    /// Whether space can be given back.
    pub discard: bool,
    /// What was answered is still there when the store's machine starts anew, flushed or not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub durable: bool,
    /// The answer to `in_place`: what to say at the Unix socket, soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Session>,
    /// The answer to `fabrics`: where to connect, soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<At>,
}

/// Where a store listens on a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// One of those the client named.
    pub provider: String,
    /// The listener's.
    pub address: SocketAddr,
    /// What to greet it with: 16 bytes, the highest first.
    pub place: Session,
}

impl Opened {
    /// What a store says of an image, if requests can be made of it.
    ///
    /// # Errors
    /// They cannot: what is wrong.
    pub fn checked(self) -> Result<Opened, String> {
        let Opened { size, block_size, requests, .. } = self;
        if !size.is_multiple_of(crate::SECTOR) {
            return Err(format!("an image of {size} bytes"));
        }
        if !block_size.is_power_of_two() || !(512..=1 << 20).contains(&block_size) {
            return Err(format!("blocks of {block_size} bytes"));
        }
        if requests == 0 {
            return Err("no request allowed".to_owned());
        }
        Ok(self)
    }
}

/// An image there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its name.
    pub image: ImageName,
    /// Bytes.
    pub size: u64,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// For programs.
    pub why: Why,
    /// For people.
    pub message: String,
}

/// Why something was not done, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// No version that both speak.
    Version,
    /// There is no such image.
    NoSuchImage,
    /// This client may not have it.
    Forbidden,
    /// Somebody else has it open.
    InUse,
    /// The message was none, or came at the wrong time.
    BadMessage,
    /// The image cannot be opened: the store's log says why.
    Failed,
    /// Not now: try again.
    Later,
}

impl Why {
    /// Whether it may be different in a moment.
    #[must_use]
    pub fn passes(self) -> bool {
        matches!(self, Why::Failed | Why::Later)
    }
}

/// Which disk it is, through all of its connections: 128 bits nobody guesses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Session(pub u128);

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Who knows it may take the image.
        f.write_str("Session")
    }
}

impl From<Session> for String {
    fn from(session: Session) -> String {
        format!("{:032x}", session.0)
    }
}

impl TryFrom<String> for Session {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Session, &'static str> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.map(Session).ok_or("a session is 32 hexadecimal digits")
    }
}

/// A message as it is sent, in a frame of its own.
#[must_use]
pub fn framed(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::control(&mut bytes, &encode(message));
    bytes
}

/// Takes the message that `arrived` begins with. `None`: more bytes of it are needed. It is limited, and so
/// is what has to be kept of one.
///
/// # Errors
/// What has arrived is no message: what is wrong with it.
pub fn take<M: DeserializeOwned>(arrived: &mut Vec<u8>) -> Result<Option<M>, String> {
    match frame::parse(arrived).map_err(|error| error.to_string())? {
        Some((Item::Control(json), used)) => {
            let message = decode(json);
            arrived.drain(..used);
            message.map(Some)
        }
        Some(_) => Err("a message was expected".to_owned()),
        None => Ok(None),
    }
}

/// The body of a message.
#[must_use]
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // These types are always JSON.
    serde_json::to_vec(message).unwrap_or_default()
}

/// The message of a body that came.
///
/// # Errors
/// It is none: what is wrong with it.
pub fn decode<'b, M: Deserialize<'b>>(json: &'b [u8]) -> Result<M, String> {
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_one_by_one() {
        let mut arrived = framed(&ToStore::List);
        arrived.extend(framed(&ToStore::List));
        let last = arrived.pop().unwrap();
        assert_eq!(take(&mut arrived), Ok(Some(ToStore::List)));
        assert_eq!(take::<ToStore>(&mut arrived), Ok(None));
        arrived.push(last);
        assert_eq!((take(&mut arrived), arrived), (Ok(Some(ToStore::List)), Vec::new()));
        let mut ping = Vec::new();
        frame::ping(&mut ping, 1);
        for mut strange in [ping, framed(&"nothing"), vec![0xff; frame::HEADER]] {
            assert!(take::<ToStore>(&mut strange).is_err(), "{strange:?}");
        }
    }

    /// What the description of the protocol shows.
    #[test]
    fn messages_are_written_like_this() {
        let open = ToStore::Open {
            image: "web".parse().unwrap(),
            write: true,
            session: Session(0xf),
            fence: false,
            in_place: false,
            fabrics: Vec::new(),
        };
        let text = r#"{"say":"open","image":"web","write":true,"session":"0000000000000000000000000000000f","fence":false}"#;
        assert_eq!(String::from_utf8(encode(&open)).unwrap(), text);
        assert_eq!(decode::<ToStore>(text.as_bytes()), Ok(open));
        let refused =
            ToClient::Refused(Refused { why: Why::InUse, message: "it is in use".to_owned() });
        let text = r#"{"say":"refused","why":"in-use","message":"it is in use"}"#;
        assert_eq!(String::from_utf8(encode(&refused)).unwrap(), text);
        assert_eq!(decode::<ToClient>(text.as_bytes()), Ok(refused));
        let text = r#"{"say":"hello","version":1,"client":"a","more":"than is known"}"#;
        let hello = ToStore::Hello { version: 1, client: "a".to_owned() };
        assert_eq!(decode::<ToStore>(text.as_bytes()), Ok(hello));
    }

    #[test]
    fn a_session_is_digits() {
        let wrong =
            ["", "f", "+0000000000000000000000000000000", "000000000000000000000000000000000"];
        for text in wrong {
            assert!(Session::try_from(text.to_owned()).is_err(), "{text}");
        }
        let session = Session(u128::MAX - 5);
        assert_eq!(Session::try_from(String::from(session)), Ok(session));
        assert!(!format!("{session:?}").contains("fff"));
    }
}
