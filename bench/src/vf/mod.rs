//! Pods of a guest: behind the guest's own bridge and rules, with virtual VFs, and on a port of their own.
//!
//! **Purpose.** What a guest gains by enabling virtual functions for its containers: the same traffic between pods and
//! a machine outside, in the same guest, by three ways that take turns. *Before*, Linux in the guest forwards and
//! filters for its pods; *after*, each pod has a virtual VF, and the same policy is offloaded to the host; *ideal* is a
//! process on a card, without any policy.
//!
//! **Owner and threads.** [`Run`] keeps the guest, the daemon and the namespace outside ([`lab`]) for all rounds. The
//! traffic is made by a program of its own on both sides (`pump`, of the package `e2e`), the pods by a script in the
//! guest (`guest.sh`), their rules are compiled from one policy ([`policy`]). While round trips are
//! measured it is recorded when others have the CPUs ([`others`]).
//!
//! **Failure.** Without `make setup` nothing is measured, which the report says. A turn that fails is noted; the
//! guest is started anew if it ended.

pub mod cell;
mod lab;
pub mod others;
pub mod policy;
mod recorder;
pub(crate) mod report;
pub mod run;
pub(crate) mod tables;
mod undisturbed;

pub use cell::{Cell, Table, Task, Way};
pub use report::Pods;
pub use run::Run;
