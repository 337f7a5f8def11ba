//! Images on other hosts: connections made and accepted, by control.
//!
//! ```text
//! disk of a guest --> Keeper ==== TCP ==== accept --> Opened image --> LiveDisk, as for a guest
//!   (LiveDisk, Link)                                  (LiveDisk, Connection)
//! ```
//!
//! What is said until an image is open ([`talk`]) runs on the control runtime; from then on the
//! connection belongs to a worker ([`crate::disk`]), which reads requests and answers between its
//! other work. [`keeper`] makes the connections of a disk, [`accept`] hears those of others, and [`open`]
//! opens images for them.
//!
//! On one machine there is less to do: the daemon hands the guest over ([`place`]), and the store serves
//! its virtqueues itself ([`resident`]).

pub(crate) mod accept;
mod fabrics;
mod holders;
pub(crate) mod keeper;
mod open;
pub(crate) mod place;
pub(crate) mod post;
mod resident;
mod talk;

use remote::control::Refused;

/// Why an image in a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nobody answers there.
    #[error("the store at {address} does not answer: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// The reason.
        source: std::io::Error,
    },
    /// What it says makes no sense.
    #[error("the store at {address} does not speak this protocol: {what}")]
    Protocol {
        /// Host and port.
        address: String,
        /// What is wrong.
        what: String,
    },
    /// It refuses.
    #[error("the store at {address} refuses: {source}")]
    Refused {
        /// Host and port.
        address: String,
        /// The reason.
        source: Refused,
    },
    /// The guest was to be served by the store itself, and cannot be.
    #[error("the store at {address} cannot serve a guest of this host itself (shm): {why}")]
    NotHere {
        /// Host and port.
        address: String,
        /// The reason.
        why: String,
    },
    /// The store was to reach the guest's memory, and cannot.
    #[error("the store at {address} and this host have no fabric in common (libfabric): {why}")]
    NoFabric {
        /// Host and port.
        address: String,
        /// The reason.
        why: String,
    },
    /// No address was given.
    #[error("no address of a store was given")]
    NoAddress,
}
