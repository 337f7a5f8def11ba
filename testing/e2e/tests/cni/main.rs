//! The CNI plugin where it is meant to be: in a guest with a virtual PF and virtual VFs, each an ordinary vhost
//! port of hayate. QEMU composes the functions, the guest's kernel is Debian's, and `host-local`, which manages
//! addresses, is of those who wrote the specification.
//!
//! What only real functions show is shown here: interfaces that come back by themselves when a namespace ends,
//! under whatever name is free, and VFs that go away under a container.
//!
//! - `protocol` (protocol.rs): the plugin alone, asked what a runtime would ask it.
//! - `cnitool` (cnitool.rs): the same by the program with which the CNI project runs plugins.

mod cnitool;
mod lab;
mod protocol;

use std::process::ExitCode;

use e2e::suite::{case, main as suite_main};
use e2e::{Result, assets};
use lab::Lab;

/// A case that needs `cnitool`.
fn by_cnitool(run: fn(&mut Lab) -> Result<String>) -> impl Fn(&mut Lab) -> Result<String> {
    move |lab| match assets::get()?.cnitool {
        Some(_) => run(lab),
        None => Ok("left out: there is no cnitool, setup.sh says why".into()),
    }
}

fn main() -> ExitCode {
    suite_main(|suite| {
        suite.group(
            "cni",
            lab::boot,
            vec![
                case("two pods talk", protocol::two_pods),
                case("errors", protocol::errors),
                case("a namespace ends", protocol::namespace_ends),
                case("DEL before the kernel is done", protocol::del_before_the_kernel),
                case("a late DEL", protocol::late_del),
                case("GC", protocol::stale),
                case("sixteen at once", protocol::sixteen_at_once),
                case("killed halfway", protocol::killed),
                case("functions go away", protocol::functions_go_away),
                case("cnitool: two pods talk", by_cnitool(cnitool::two_pods)),
                case("cnitool: errors", by_cnitool(cnitool::errors)),
                case("cnitool: a late DEL", by_cnitool(cnitool::late_del)),
                case("cnitool: GC", by_cnitool(cnitool::stale)),
                case("cnitool: killed halfway", by_cnitool(cnitool::killed)),
                case("cnitool: sixteen at once", by_cnitool(cnitool::sixteen_at_once)),
            ],
            |lab| {
                let Lab { guest, hayate, .. } = lab;
                let balance = hayate.conserved("pods")?;
                drop(guest);
                hayate.stop()?;
                Ok(format!("every frame is accounted for: {balance:?}"))
            },
        );
    })
}
