//! The guest channel, the agent's side: bytes ([`Connection`]) and what they say ([`Session`]).

mod connection;
mod session;

pub(crate) use connection::Connection;
pub(crate) use session::{End, Session};
