//! Proves that a router that is bypassed is not missed: a Linux router, its agent, and packets of
//! every kind.
//!
//! - `same` (same.rs): the same bytes arrive, and the same answers come back, with the bypass and
//!   without.
//! - `events` (events.rs): while numbered frames are sent all the time (traffic.rs), routes and
//!   neighbours change, links, ports, agents and daemons go and come back.
//! - `chain` (chain.rs): three routers in a row between two hosts, for ping, traceroute and TCP.
//! - `guest` (guest.rs): the same bytes, and what happens to a router that is a guest of QEMU.
//! - `nat` (nat.rs): a router that translates and filters by connection; the established ones go past
//!   it.

#![allow(unreachable_pub, reason = "a test program")]

mod chain;
mod events;
mod guest;
mod lab;
mod nat;
mod packets;
mod same;
mod traffic;

use std::process::ExitCode;

use e2e::Result;
use e2e::suite::{case, main as run};
use lab::{Kind, Lab};

fn main() -> ExitCode {
    run(|suite| {
        for (name, source_check) in
            [("same", 0), ("same, strict rp_filter", 1), ("same, loose rp_filter", 2)]
        {
            let set_up = move || same::set_up(Kind::Namespace, source_check);
            let packets = case("packets", |lab: &mut Lab| same::packets(lab, 48_000));
            suite.group(name, set_up, vec![packets], finish);
        }
        events::group(suite);
        chain::group(suite);
        guest::group(suite);
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

fn finish(lab: Lab) -> Result<String> {
    let Lab { hosts, router, hayate, .. } = lab;
    drop((hosts, router));
    hayate.stop()?;
    Ok("ended by SIGTERM with status 0, no panic in its log".into())
}
