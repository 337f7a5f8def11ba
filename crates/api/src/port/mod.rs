//! Ports: where frames enter and leave the switch.

pub(crate) mod config;
mod moderation;
mod offload;
mod policy;
mod status;
#[cfg(test)]
mod tests;

pub use config::{DEFAULT_QUEUES, MAX_QUEUES, PortConfig, PortKind, SocketMode, Wrong};
pub use moderation::{BadModeration, Moderation};
pub use offload::Offload;
pub use policy::{LinkState, PortPolicy};
pub use status::{Origin, Port, PortState, PortStats, Queue, Traffic};
