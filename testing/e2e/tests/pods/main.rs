//! A node: a guest with a virtual PF, the agent on its channel, and containers that get VFs of it by the CNI plugin.
//! What they set at the host by themselves is shown here to hold there.
//!
//! - `settings` (settings.rs): VLAN, address, check of addresses, rate and link of VFs, by hand and by the plugin.
//! - `policy` (policy.rs, cases.rs): who reaches whom under NetworkPolicy objects, by packets between pods.

mod cases;
mod lab;
mod policy;
mod settings;

use std::process::ExitCode;

use e2e::suite::{case, main as run};
use lab::Lab;

fn main() -> ExitCode {
    run(|suite| {
        suite.group(
            "node",
            Lab::boot,
            vec![
                case("VFs are set up by the guest", settings::by_hand),
                case("settings of the plugin", settings::by_the_plugin),
                case("network policies", policy::all),
                case("another boot", settings::another_boot),
            ],
            Lab::finish,
        );
    })
}
