//! What is said at a store's Unix socket, by who has had an image opened in place, on the same machine.
//!
//! The frames are those of a connection, each with a control message. A descriptor comes with the first
//! byte of the message that it belongs to.

use serde::{Deserialize, Serialize};

use crate::control::{Refused, Session};

/// A disk as its guest sees it, but for its image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Guest {
    /// The name it is told.
    pub disk: String,
    /// Virtqueues it may have.
    pub queues: u16,
    /// Ring features it is not offered.
    pub features_off: u64,
    /// It asked for writethrough before.
    pub writethrough: bool,
}

/// From who has the guest. `L`: what limits of a disk are.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToPlace<L> {
    /// The first message: what the store said when the image was opened, and who will come.
    Place {
        /// What the store said.
        place: Session,
        /// The disk.
        guest: Guest,
    },
    /// A front end has come; with its socket.
    FrontEnd,
    /// To be kept to from now on.
    Limits(L),
    /// How it is.
    Status,
}

/// From the store. `S`: what is told of a disk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum FromPlace<S> {
    /// Front ends may be handed over, one after the other.
    Placed,
    /// They may not.
    Refused(Refused),
    /// The front end is gone, or was hung up on.
    Left {
        /// For people.
        why: String,
        /// Something was wrong.
        fault: bool,
    },
    /// The guest asked for another cache mode, for the next place to know.
    CacheMode {
        /// What has been written is stable.
        writethrough: bool,
    },
    /// How it is.
    Status(Box<S>),
}
