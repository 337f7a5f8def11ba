//! Remote memory access between hosts, by libfabric.
//!
//! **Purpose.** A [`Fabric`] is a provider of libfabric at a local address: `tcp`, which is everywhere, or
//! `verbs`, where a network card moves the bytes. Guest memory is registered with it
//! ([`Registration`]), so that a peer which is told a [`Remote`] can read or write it, as its
//! [`Rights`] allow. An [`Endpoint`] is a connection to one peer, opened by [`Fabric::connect`] or taken
//! from a [`Listener`], on which messages are sent and received and the peer's memory is read and written.
//! [`providers`] says what there is on this machine.
//!
//! **Owner.** Operations own the memory they are about, and give it back when they have ended
//! ([`Endpoint::ended`], [`Endpoint::close`]); registrations keep guest memory mapped. So neither a peer
//! nor the library ever touches memory that was unmapped, in whatever order things are dropped. A pool of
//! this program's own memory is a `GuestMemory` too: of a memfd.
//!
//! **Threads.** An [`Endpoint`] and a [`Listener`] belong to one thread at a time, which polls them and may
//! sleep on their descriptors; nothing here blocks but [`Fabric::open`], [`Fabric::register`],
//! [`providers`], and closing. Everything else any thread may use. With `tcp` a peer's accesses to
//! registered memory are carried out while the endpoint is polled.
//!
//! **The environment.** Before `main`, `FI_MR_CACHE_MONITOR` and `FI_MR_CACHE_MAX_COUNT` are set so that libfabric
//! does without its cache of registrations. With it, `verbs` grants every right on all memory that is
//! registered, and goes on when it no longer is.
//!
//! **Failure.** What libfabric says, by name ([`Error`]). A peer that goes away ends the connection
//! ([`State::Ended`]); one that breaks a rule does too, or has its operation refused. A network that is cut
//! is not noticed by every provider: callers need a time limit of their own. If libfabric was not there when
//! this was built, [`Error::Missing`].

mod address;
mod cut;
mod endpoint;
mod error;
mod fabric;
mod ffi;
mod listener;
mod memory;
mod work;

pub use endpoint::{Depth, Endpoint, State};
pub use error::Error;
pub use fabric::{Fabric, Kind, MAX_GREETING, Place, Provider, library, providers, version};
pub use listener::{Listener, Request};
pub use memory::{Local, Registration, Remote, Remotes, Rights};
pub use work::Ended;
