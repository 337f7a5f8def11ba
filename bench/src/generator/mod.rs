//! The generator: guests' network cards, all in one thread, faster than any switch.
//!
//! **Purpose.** Plays the guests of a switch under test: each [`Card`] is a vhost-user front end
//! with queues whose descriptors and frames are written once ([`ring`]). What is left to do for a
//! frame is to see its used entry, count it and publish the entry again, and to write its addresses
//! anew where frames are of many flows ([`frames`]). Its own limit is measured
//! against a device that does nothing ([`null`]); another one carries frames to TAP interfaces
//! ([`tap`]).
//!
//! **Owner and threads.** Whoever measures owns a [`Traffic`] and runs it on one pinned thread.
//! Guest memory is made outside and lent to one `Traffic` after another: other pages of the machine
//! alone change rates by a tenth, so all switches of a round get the same ones.
//!
//! **Failure.** [`GeneratorError`]. What a switch does to a ring is checked, and a frame of each
//! turn of a ring is looked at; a switch that delivers something else fails the measurement.

pub mod buffers;
pub mod card;
mod device;
pub mod frames;
pub mod null;
pub mod packed;
pub mod ring;
pub mod split;
pub mod tap;
pub mod touch;
pub mod traffic;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use testkit::driver::DriverError;
use testkit::frontend::FrontendError;

pub use card::{Card, CardSpec, Layout, Source};
pub use frames::{Flows, FrameSpec};
pub use packed::Packed;
pub use ring::{Ring, RingFault};
pub use split::Split;
pub use touch::Touch;
pub use traffic::{Counters, Paths, RoundTrip, Traffic, TrafficSpec};

/// Why traffic could not be made.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorError {
    /// The session with a switch could not be set up.
    #[error("the vhost-user session at {} failed", socket.display())]
    Session {
        /// The socket.
        socket: PathBuf,
        /// What happened.
        #[source]
        source: FrontendError,
    },
    /// The switch does not offer what is to be measured.
    #[error("the switch does not offer the feature bits {missing:#x}")]
    Features {
        /// Virtio feature bits.
        missing: u64,
    },
    /// Guest memory is too small for queues and frames.
    #[error("guest memory is {missing} bytes too small; measure fewer ports")]
    Memory {
        /// Bytes that are missing.
        missing: u64,
    },
    /// A ring could not be laid out.
    #[error("a ring could not be laid out")]
    Layout(#[from] DriverError),
    /// The switch broke a ring's rules.
    #[error(transparent)]
    Ring(#[from] RingFault),
    /// What arrived is not what was sent.
    #[error("{bad} of the frames that arrived are not those that were sent (length or content)")]
    Wrong {
        /// How many, of those that were looked at.
        bad: u64,
    },
    /// The first frames did not come through.
    #[error("the switch did not let all guests find each other within {}s of connecting", patience.as_secs())]
    Silent {
        /// How long it had.
        patience: Duration,
    },
    /// The switch took too long to learn who is where.
    #[error("the switch took frames of only {known} of {machines} machines within {}s", patience.as_secs())]
    Slow {
        /// Machines behind the port it was busy with.
        known: u32,
        /// How many there are.
        machines: u32,
        /// How long it had.
        patience: Duration,
    },
    /// A device of this program's own.
    #[error("{what}: {source}")]
    Device {
        /// What was tried.
        what: &'static str,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Cards and paths do not fit each other.
    #[error("a path needs a card or queue that there is not")]
    Pairing,
}
