//! Proves that a guest makes virtual functions by itself: stock QEMU, a stock Linux kernel, and
//! `sriov_numvfs`. What is printed by `hayate vm qemu` is what QEMU is started with.
//!
//! - `pass` (pass.rs): VFs in namespaces of the guest, and what they talk to: each other, their PF,
//!   another VM, a TAP outside.
//! - `flows` (flows.rs): flow rules that the guest sets, with `hayate-agent` in it.
//! - `churn` (churn.rs): VFs that come and go under traffic, guests that reboot, a QEMU and a daemon
//!   that are killed; and what is left of it in the daemon.

mod churn;
mod flows;
mod lab;
mod pass;

use std::process::ExitCode;

use e2e::suite::{Case, case, main as run};
use lab::Lab;

fn main() -> ExitCode {
    run(|suite| {
        for (group, vcpus, options) in [("split", 1, ""), ("packed", 2, "--packed")] {
            let mut cases: Vec<Case<Lab>> = vec![
                case("four_vfs_in_namespaces", pass::four_vfs),
                case("daemon_killed", churn::daemon_killed),
            ];
            if group == "split" {
                cases.push(case("flow_rules", flows::rules));
                cases.push(case("all_nine", pass::all));
                cases.push(case("writes_under_traffic", churn::writes));
                cases.push(case("guest_reboots", churn::reboots));
                cases.push(case("qemu_killed", churn::qemu_killed));
            }
            suite.group(
                group,
                || Lab::boot(vcpus, options),
                cases,
                |lab| {
                    lab.hayate.stop()?;
                    Ok("ended by SIGTERM with status 0, no panic in its log".into())
                },
            );
        }
        suite.group("pool", pass::pool, vec![case("of_255", pass::of_255)], |lab| {
            lab.hayate.stop()?;
            Ok("no panic".into())
        });
    })
}
