//! From values to text: tables, units, arguments for QEMU, XML for libvirt. Pure functions.

pub(crate) mod libvirt;
pub(crate) mod qemu;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod units;

pub(crate) use table::{Table, facts, port_table};

use api::{Mac, Port, Vm};

/// Address of a VM's card.
fn card(vm: &Vm, port: &Port) -> Mac {
    let said = port.config.card(&port.name);
    said.unwrap_or_else(|| Mac::of_port(vm.name.as_str(), port.name.as_str()))
}
