//! Proves that a router that is bypassed is not missed: a Linux router, its agent, and packets of
//! every kind.
//!
//! - `same` (same.rs): the same bytes arrive, and the same answers come back, with the bypass and
//!   without.
//! - `nat` (nat.rs): a router that translates and filters by connection; the established ones go past
//!   it.

#![allow(unreachable_pub, reason = "a test program")]

mod lab;
mod nat;
mod packets;
mod same;

use std::process::ExitCode;

use e2e::suite::{case, main as run};

fn main() -> ExitCode {
    run(|suite| {
        for (name, source_check) in
            [("same", 0), ("same, strict rp_filter", 1), ("same, loose rp_filter", 2)]
        {
            suite.group(
                name,
                move || same::set_up(source_check),
                vec![case("packets", same::packets)],
                |lab| {
                    lab.hayate.stop()?;
                    Ok("ended by SIGTERM with status 0, no panic in its log".into())
                },
            );
        }
        suite.group(
            "nat",
            nat::set_up,
            vec![
                case("a masqueraded TCP connection", nat::masqueraded),
                case("a filtered TCP connection of IPv6", nat::filtered_v6),
                case("a connection that is reset", nat::reset),
                case("UDP", nat::udp),
                case("a connection from outside", nat::from_outside),
                case("a new rule", nat::rule),
            ],
            |lab| {
                lab.hayate.stop()?;
                Ok("ended by SIGTERM with status 0, no panic in its log".into())
            },
        );
    })
}
