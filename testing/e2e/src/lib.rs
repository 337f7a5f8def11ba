//! Runs hayate with programs we did not write: QEMU and Linux guests, dpdk-testpmd, iperf3.
//!
//! Owner of every process, namespace and folder it makes: each is a value, and dropping the value
//! ends the process by its id or removes the namespace or folder, also when a test fails or panics
//! or is interrupted. A child whose parent is killed dies with it (`PR_SET_PDEATHSIG`).
//!
//! Everything runs on the main thread of the test program; parallel work (two guests booting) is
//! started first and waited for afterwards. Waiting always has a limit and ends early on Ctrl-C.
//!
//! Failure is an [`Error`]: one text that says what was expected, with the end of the logs that
//! matter.

pub mod accel;
pub mod assets;
pub mod cpio;
pub mod cpu;
pub mod endpoint;
mod error;
pub mod guest;
pub mod hayate;
pub mod hosted;
pub mod netns;
pub mod process;
pub mod suite;
pub mod testpmd;
pub mod traffic;

pub use error::{Context, Error, Result};
