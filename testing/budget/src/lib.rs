//! The instruction budget: what the daemon may spend on a frame, kept in `instructions.toml`.
//!
//! The release binary runs under callgrind (`valgrind --tool=callgrind`), which counts every
//! instruction. Two guests of ours ([`guest`]) are on its vhost ports, outside of valgrind; one
//! shows a burst of frames all at once. Only `Worker::pass`, and what it calls, is counted
//! ([`switch`]), so neither control nor start-up nor the polls around it matter. Counts are
//! exact, they do not depend on the load of the machine or its clock rate; [`budget`] says what is
//! kept of them and compares.
//!
//! Failure is an [`e2e::Error`]: a text for a person.

pub mod budget;
pub mod cell;
pub mod guest;
pub mod profile;
pub mod switch;
