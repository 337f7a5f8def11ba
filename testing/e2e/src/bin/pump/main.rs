//! Datagrams as netperf makes them, between a process in a guest and one outside: bulk one way with what was lost
//! counted by sequence numbers, and requests that are answered. `hayate bench --cells vf` runs it on both sides.
//!
//! ```text
//! pump serve PORT                                   in the guest: does what the other side asks for
//! pump send SIZE MILLISECONDS PEER...               has the peers send as much as goes
//! pump receive SIZE MILLISECONDS START PEER...      the highest rate at which the peers receive all, looked for from
//!                                                   START datagrams a second on
//! pump gro SIZE MILLISECONDS START PEER...          the same; the peers fetch what the kernel has put together (UDP_GRO)
//! pump trips SIZE MILLISECONDS PEER...              requests, one at a time for each peer
//! pump flood SIZE MILLISECONDS RATE PEER...         sends so many a second, whether anybody receives them or not
//! ```
//!
//! PEER is ADDRESS:PORT. What was found is printed as one line of JSON. `trips` lists the longest round trips of each peer,
//! too, the longest first: when they ended (`CLOCK_MONOTONIC`) and how long they took, in nanoseconds.
//!
//! Datagrams are sent and (but for `gro`) received one a call, with blocking sockets. Everything is lost at times but data is asked for
//! again; a peer that does not answer for five seconds is an error.
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

mod client;
mod message;
mod server;
mod trips;

use std::io;
use std::net::SocketAddrV4;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result =
        match args.as_slice() {
            ["serve", port] => number(port).and_then(server::serve),
            ["send", size, time, peers @ ..] => load(size, time, peers)
                .and_then(|(size, time, peers)| client::send(size, time, &peers)),
            [how @ ("receive" | "gro"), size, time, start, peers @ ..] => load(size, time, peers)
                .and_then(|(size, time, peers)| {
                    client::receive(size, time, number(start)?, *how == "gro", &peers)
                }),
            ["flood", size, time, rate, peers @ ..] => load(size, time, peers)
                .and_then(|(size, time, peers)| client::flood(size, time, number(rate)?, &peers)),
            ["trips", size, time, peers @ ..] => load(size, time, peers)
                .and_then(|(size, time, peers)| trips::trips(size, time, &peers)),
            _ => Err(bad("usage: see the top of pump/main.rs")),
        };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("pump: {e}");
            ExitCode::FAILURE
        }
    }
}

fn bad(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

fn number<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| bad(format!("{text}: not a number")))
}

fn load(
    size: &str,
    time: &str,
    peers: &[&str],
) -> io::Result<(usize, Duration, Vec<SocketAddrV4>)> {
    let size = number(size)?;
    if !(message::LEN..=message::MAX).contains(&size) || peers.is_empty() {
        return Err(bad(format!("{size} bytes to {} peers", peers.len())));
    }
    let peers = peers.iter().map(|peer| number(peer)).collect::<io::Result<_>>()?;
    Ok((size, Duration::from_millis(number(time)?), peers))
}
