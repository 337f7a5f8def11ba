//! Images on another host: the protocol between a disk and a store, and what either side remembers.
//!
//! **Purpose.** [`frame`] is the protocol in bytes, [`control`] what is said before and beside the
//! requests. A [`Client`] keeps the requests of a disk until they are answered, through any number
//! of connections; a [`Server`] checks what a connection asks. docs/store-protocol.md describes all
//! of it.
//!
//! **Owner and threads.** No thread, clock or descriptor is here: bytes go in, requests and answers
//! come out. A [`Client`] belongs to the worker that serves the disk, a [`Server`] to the one that
//! serves the connection.
//!
//! **THE rule of replay.** A connection may end at any time, and then nobody knows which of the
//! requests that were not answered have been carried out. All of them are sent again on the next one.
//! That does no harm: a store opens an image for a new connection only when nothing of the former one
//! can touch it any more, and a client never has two requests under way that change the same bytes,
//! so what is done again is what was done last.
//!
//! **Failure.** Bytes that make no sense end the connection under a name ([`Malformed`]); a request
//! that makes none is answered with a [`Status`].

mod client;
pub mod control;
pub mod frame;
pub mod near;
mod server;

pub use client::{Client, Unanswered};
pub use frame::{Buffer, Buffers, Malformed, Operation, Request, Status};
pub use server::{Excess, Server};

/// Version of the protocol that is spoken here.
pub const VERSION: u16 = 1;
/// Offsets and lengths are multiples of this, in bytes.
pub const SECTOR: u64 = 512;
/// Most bytes a request moves.
pub const MAX_DATA: u32 = 1 << 20;
/// Most buffers of a request.
pub const MAX_BUFFERS: usize = 128;
/// Most bytes cleared by a request.
pub const MAX_CLEAR: u64 = 1 << 30;
/// Most bytes of a control message.
pub const MAX_CONTROL: u32 = 64 << 10;
