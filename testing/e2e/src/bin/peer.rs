//! The test program that runs inside guests and namespaces: datagrams with a pattern, echoed and
//! compared byte by byte.
//!
//! ```text
//! peer udp-echo PORT                              sends every datagram back
//! peer udp-check ADDRESS PORT COUNT SIZE SEGMENT  sends COUNT datagrams of SIZE bytes, compares
//!                                                 what comes back; SEGMENT above 0: several
//!                                                 datagrams of SEGMENT bytes in one call
//! peer udp-quit PORT                              ends the echo on this host
//! peer serve PORT...                              answers on these ports, by TCP and UDP, until it is killed
//! peer probe +tcp/ADDRESS/PORT -udp/ADDRESS/PORT -big/ADDRESS/PORT ...
//!                                                 whether an answer comes, as it should with + and must not with -;
//!                                                 prints what is otherwise. `big` is a long datagram of UDP. All at once
//! ```
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
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
        ["serve", ports @ ..] => serve(ports),
        ["probe", all @ ..] => probe(all),
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

/// Whoever connects gets a byte, and whoever sends a datagram gets it back.
fn serve(ports: &[&str]) -> io::Result<()> {
    let mut threads = Vec::new();
    for port in ports {
        let port: u16 = number(port)?;
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
        threads.push(std::thread::spawn(move || {
            for stream in listener.incoming() {
                // Whoever is gone again does not want it.
                let _ = stream.and_then(|mut stream| stream.write_all(b"x"));
            }
            Ok(())
        }));
        threads.push(std::thread::spawn(move || echo(port)));
    }
    for thread in threads {
        thread.join().map_err(|_| bad("a thread panicked"))??;
    }
    Ok(())
}

/// What is expected takes so long at most, and what is not is waited for so long.
const EXPECTED: Duration = Duration::from_secs(15);
const UNEXPECTED: Duration = Duration::from_millis(400);
/// A datagram may be lost.
const AGAIN: Duration = Duration::from_millis(150);
/// More than a frame holds.
const LONG: usize = 4000;

fn probe(all: &[&str]) -> io::Result<()> {
    let tried = all.iter().map(|one| {
        let one = (*one).to_owned();
        std::thread::spawn(move || -> io::Result<Option<String>> {
            let wrong = || bad(format!("{one}: not understood"));
            let (sign, rest) = one.split_at_checked(1).ok_or_else(wrong)?;
            let parts: Vec<&str> = rest.split('/').collect();
            let &[protocol, address, port] = parts.as_slice() else { return Err(wrong()) };
            let to = SocketAddr::new(number(address)?, number(port)?);
            let patience = if sign == "+" { EXPECTED } else { UNEXPECTED };
            let answered = match protocol {
                "tcp" => connects(to, sign == "+", patience),
                "udp" => answers(to, 64, patience)?,
                "big" => answers(to, LONG, patience)?,
                _ => return Err(wrong()),
            };
            Ok((answered != (sign == "+")).then_some(one))
        })
    });
    let tried: Vec<_> = tried.collect();
    for one in tried {
        if let Some(wrong) = one.join().map_err(|_| bad("a thread panicked"))?? {
            println!("{wrong}");
        }
    }
    Ok(())
}

fn connects(to: SocketAddr, expected: bool, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let asked = || {
            let mut stream = TcpStream::connect_timeout(&to, patience)?;
            stream.set_read_timeout(Some(patience))?;
            stream.read_exact(&mut [0])
        };
        match asked() {
            Ok(()) => return true,
            // Nobody listens there yet; who should not be reached was.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && !expected => {
                return true;
            }
            Err(_) if Instant::now() >= until => return false,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn answers(to: SocketAddr, size: usize, patience: Duration) -> io::Result<bool> {
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(AGAIN))?;
    let (sent, mut buffer) = (contents(1, size), vec![0; 1 << 16]);
    let until = Instant::now() + patience;
    while Instant::now() < until {
        // What the switch drops may be said to be in the way of the next one.
        let _ = socket.send_to(&sent, to);
        if let Ok((n, from)) = socket.recv_from(&mut buffer)
            && from == to
            && buffer[..n] == sent
        {
            return Ok(true);
        }
    }
    Ok(false)
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
