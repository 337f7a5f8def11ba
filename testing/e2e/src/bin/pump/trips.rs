//! Requests that are answered: how long that takes, and when it took longest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::client::{WARM, ask, connect, each, run, say};
use crate::message::{Kind, LEN, MAX, Message};

/// Round trips that are listed for each peer: the longest.
const LISTED: usize = 256;
/// An answer that takes longer is lost.
const LOST: Duration = Duration::from_secs(1);

/// The longest round trips of one peer, those that took the least first to go.
#[derive(Default)]
struct Longest(BinaryHeap<Reverse<(u64, u64)>>);

impl Longest {
    /// One more: when it ended and how long it took, in nanoseconds.
    fn add(&mut self, end: u64, took: u64) {
        if self.0.len() < LISTED {
            self.0.push(Reverse((took, end)));
        } else if let Some(mut least) = self.0.peek_mut()
            && least.0.0 < took
        {
            *least = Reverse((took, end));
        }
    }

    /// End and duration of each, the longest first.
    fn list(self) -> Vec<[u64; 2]> {
        self.0.into_sorted_vec().into_iter().map(|Reverse((took, end))| [end, took]).collect()
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds: what the kernel's records can be compared with.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Requests, one in flight for each peer.
pub(crate) fn trips(size: usize, time: Duration, peers: &[SocketAddrV4]) -> io::Result<()> {
    say(&Value::Array(each(peers, |peer| of_peer(size, time, peer))?));
    Ok(())
}

fn of_peer(size: usize, time: Duration, peer: SocketAddrV4) -> io::Result<Value> {
    let socket = connect(peer)?;
    let run = run();
    ask(&socket, Message { kind: Kind::Trip, run, value: 0, more: 0 })?;
    let mut buffer = [0; MAX];
    let (mut times, mut longest): (Vec<u32>, Longest) = Default::default();
    let (start, mut value, mut lost) = (Instant::now(), 1, 0_u64);
    socket.set_read_timeout(Some(LOST))?;
    while start.elapsed() < WARM + time {
        let request = Message { kind: Kind::Trip, run, value, more: 0 };
        let datagram = buffer.get_mut(..size.max(LEN)).unwrap_or_default();
        request.write(datagram);
        let before = now();
        socket.send(datagram)?;
        loop {
            match socket.recv(&mut buffer) {
                Ok(n) if buffer.get(..n).and_then(Message::read) == Some(request) => {
                    let end = now();
                    let took = end.saturating_sub(before);
                    if start.elapsed() >= WARM {
                        times.push(took.min(u32::MAX.into()) as u32);
                        longest.add(end, took);
                    }
                    break;
                }
                // An answer that is late.
                Ok(_) => {}
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
                {
                    lost += 1;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        value += 1;
    }
    times.sort_unstable();
    let at = |share: f64| {
        let rank = ((times.len() as f64 * share).ceil() as usize).max(1) - 1;
        times.get(rank).map(|&time| f64::from(time) / 1e3)
    };
    Ok(json!({
        "n": times.len(), "lost": lost,
        "p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": at(1.0),
        "longest": longest.list(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_are_kept() {
        let mut longest = Longest::default();
        // All numbers below 1009, mixed up.
        for n in 0..1009_u64 {
            longest.add(n, n * 500 % 1009);
        }
        let listed = longest.list();
        let took: Vec<u64> = listed.iter().map(|[_, took]| *took).collect();
        assert_eq!(took, (1009 - LISTED as u64..1009).rev().collect::<Vec<_>>());
        assert!(listed.iter().all(|[end, took]| end * 500 % 1009 == *took));
    }

    #[test]
    fn the_clock_is_that_of_instants() {
        let (before, start) = (now(), Instant::now());
        while start.elapsed() < Duration::from_millis(2) {}
        assert!(now() - before >= 2_000_000);
    }
}
