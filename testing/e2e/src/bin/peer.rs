//! The test program that runs inside guests and namespaces: datagrams with a pattern, echoed and
//! compared byte by byte.
//!
//! ```text
//! peer udp-echo PORT                              sends every datagram back
//! peer udp-check ADDRESS PORT COUNT SIZE SEGMENT  sends COUNT datagrams of SIZE bytes, compares
//!                                                 what comes back; SEGMENT above 0: several
//!                                                 datagrams of SEGMENT bytes in one call
//! peer udp-quit PORT                              ends the echo on this host
//! ```
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};

/// Ends the echo.
const QUIT: &[u8] = b"quit";
/// Datagrams on the way at a time: fewer than a guest's receive queue has buffers, so that none is
/// lost for want of room.
const WINDOW: u32 = 16;
const WAIT: Duration = Duration::from_secs(1);
const TRIES: u32 = 6;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["udp-echo", port] => number(port).and_then(echo),
        ["udp-quit", port] => number(port).and_then(quit),
        ["udp-check", address, port, count, size, segment] => {
            check(address, port, count, size, segment)
        }
        _ => Err(bad("usage: see the top of peer.rs")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("peer: {e}");
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

fn echo(port: u16) -> io::Result<()> {
    // Dual stack: IPv4 arrives as mapped addresses.
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (n, from) = socket.recv_from(&mut buffer)?;
        if &buffer[..n] == QUIT {
            return Ok(());
        }
        socket.send_to(&buffer[..n], from)?;
    }
}

fn quit(port: u16) -> io::Result<()> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?.send_to(QUIT, (Ipv4Addr::LOCALHOST, port))?;
    Ok(())
}

/// Contents of datagram `n`: its number, then bytes that follow from it (xorshift).
fn contents(n: u32, size: usize) -> Vec<u8> {
    let mut bytes = n.to_be_bytes().to_vec();
    let mut state = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_be_bytes());
    }
    bytes.truncate(size.max(4));
    bytes
}

fn check(address: &str, port: &str, count: &str, size: &str, segment: &str) -> io::Result<()> {
    let to = SocketAddr::new(number::<IpAddr>(address)?, number(port)?);
    let (count, segment): (u32, u16) = (number(count)?, number(segment)?);
    let size = if segment > 0 { usize::from(segment) } else { number(size)? };
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    if segment > 0 {
        setsockopt(&socket, UdpGsoSegment, &i32::from(segment))?;
    }
    let mut again = 0;
    let mut first = 0;
    while first < count {
        let last = count.min(first + WINDOW);
        let mut missing: BTreeSet<u32> = (first..last).collect();
        for _ in 0..TRIES {
            send(&socket, &missing, size, segment > 0)?;
            collect(&socket, &mut missing, size)?;
            if missing.is_empty() {
                break;
            }
            again += missing.len();
        }
        if !missing.is_empty() {
            return Err(bad(format!("datagrams {missing:?} of {size} bytes never came back")));
        }
        first = last;
    }
    println!("{count} datagrams of {size} bytes intact, {again} sent again");
    Ok(())
}

fn send(socket: &UdpSocket, which: &BTreeSet<u32>, size: usize, together: bool) -> io::Result<()> {
    let all: Vec<Vec<u8>> = which.iter().map(|&n| contents(n, size)).collect();
    let calls = if together { vec![all.concat()] } else { all };
    for bytes in calls {
        // A refusal reported here (ICMP) belongs to an earlier datagram: the echo was not up yet.
        if let Err(e) = socket.send(&bytes)
            && e.kind() != io::ErrorKind::ConnectionRefused
        {
            return Err(e);
        }
    }
    Ok(())
}

fn collect(socket: &UdpSocket, missing: &mut BTreeSet<u32>, size: usize) -> io::Result<()> {
    let end = Instant::now() + WAIT;
    let mut buffer = vec![0; 1 << 16];
    while !missing.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let Ok(n) = socket.recv(&mut buffer) else {
            std::thread::sleep(Duration::from_millis(20).min(left));
            continue;
        };
        let got = &buffer[..n];
        let Some(&[a, b, c, d]) = got.first_chunk::<4>() else {
            return Err(bad(format!("a datagram of {n} bytes came back")));
        };
        let seq = u32::from_be_bytes([a, b, c, d]);
        if got != contents(seq, size) {
            return Err(bad(format!("datagram {seq}: came back changed ({n} bytes of {size})")));
        }
        missing.remove(&seq);
    }
    Ok(())
}
