//! From values to text: tables, units, arguments for QEMU, XML for libvirt. Pure functions.

pub(crate) mod libvirt;
pub(crate) mod qemu;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod units;

pub(crate) use table::{Table, facts, port_table};
