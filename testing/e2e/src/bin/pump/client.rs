//! The side outside: asks the peers for what is measured, and says what came of it. A thread for each peer.

use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::bad;
use crate::message::{Kind, MAX, Message, socket};

/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// When what was not answered is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// At the beginning of each measurement, not counted.
pub(crate) const WARM: Duration = Duration::from_millis(150);
/// Nothing arrives any more.
const QUIET: Duration = Duration::from_millis(150);
/// How often a sender looks how many datagrams are due.
const TICK: Duration = Duration::from_micros(250);
/// A rate with loss and one without are so near to each other when the search ends.
const NEAR: f64 = 1.04;
/// Trials at most.
const TRIALS: usize = 16;

/// A number no run had before.
pub(crate) fn run() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64) << 8 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xff
}

/// A connection to a peer.
pub(crate) fn connect(peer: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = socket(0)?;
    socket.connect(peer)?;
    Ok(socket)
}

/// Receives one message of a kind and run; none within the time, or another.
fn hear(socket: &UdpSocket, time: Duration) -> io::Result<Option<Message>> {
    socket.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
    let mut buffer = [0; MAX];
    match socket.recv(&mut buffer) {
        Ok(n) => Ok(buffer.get(..n).and_then(Message::read)),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Ok(None)
        }
        // Of an earlier datagram: nobody listened yet.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
        Err(e) => Err(e),
    }
}

/// Asks until there is an answer.
pub(crate) fn ask(socket: &UdpSocket, message: Message) -> io::Result<Message> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        match socket.send(&message.bytes()) {
            Err(e) if e.kind() != io::ErrorKind::ConnectionRefused => return Err(e),
            _ => {}
        }
        let again = Instant::now() + AGAIN;
        while Instant::now() < again {
            let left = again.saturating_duration_since(Instant::now());
            match hear(socket, left)? {
                Some(heard) if heard.kind == message.kind && heard.run == message.run => {
                    return Ok(heard);
                }
                _ => {}
            }
        }
    }
    Err(bad(format!("{:?}: no answer to {:?}", socket.peer_addr(), message.kind)))
}

/// One thread for each peer; what they return, in order.
pub(crate) fn each<T: Send>(
    peers: &[SocketAddrV4],
    work: impl Fn(SocketAddrV4) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = peers.iter().map(|&peer| scope.spawn(move || work(peer))).collect();
        let ended = |thread: thread::ScopedJoinHandle<'_, io::Result<T>>| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // All of them end before the first error is reported.
        threads.into_iter().map(ended).collect::<Vec<_>>().into_iter().collect()
    })
}

pub(crate) fn say(found: &Value) {
    println!("{found}");
}

/// What a peer that sends has sent, and what of it arrived.
struct Arrived {
    sent: u64,
    received: u64,
    /// In the middle part, and how long that was.
    rate: f64,
}

/// Has all peers send at the same time.
pub(crate) fn send(size: usize, time: Duration, peers: &[SocketAddrV4]) -> io::Result<()> {
    let found = each(peers, |peer| arrives(size, time, peer))?;
    let rates: Vec<f64> = found.iter().map(|one| one.rate).collect();
    let sum = |of: fn(&Arrived) -> u64| found.iter().map(of).sum::<u64>();
    say(&json!({
        "rates": rates,
        "sent": sum(|one| one.sent),
        "received": sum(|one| one.received),
    }));
    Ok(())
}

fn arrives(size: usize, time: Duration, peer: SocketAddrV4) -> io::Result<Arrived> {
    // Unconnected: data comes by a connection of the peer's.
    let socket = socket(0)?;
    let run = run();
    let value = (time + 2 * WARM).as_millis() as u64;
    let message = Message { kind: Kind::Send, run, value, more: size as u64 };
    let (mut received, mut counted) = (0_u64, 0_u64);
    let (mut from, mut to) = (None, None);
    let start = Instant::now();
    let mut asked = start;
    socket.send_to(&message.bytes(), peer)?;
    let mut buffer = [0; MAX];
    socket.set_read_timeout(Some(QUIET))?;
    loop {
        let heard = match socket.recv(&mut buffer) {
            Ok(n) => buffer.get(..n).and_then(Message::read),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                None
            }
            Err(e) => return Err(e),
        };
        let now = Instant::now();
        match heard {
            Some(Message { kind: Kind::Data, run: of, .. }) if of == run => {
                received += 1;
                let from = *from.get_or_insert(now + WARM);
                if now >= from && now < from + time {
                    counted += 1;
                    to = Some(now);
                }
            }
            // Nothing came for a while: the run is over.
            None if from.is_some_and(|from| now > from + time) => break,
            None if from.is_none() && now > asked + AGAIN => {
                if now > start + PATIENCE {
                    return Err(bad(format!("{peer} does not send")));
                }
                asked = now;
                socket.send_to(&message.bytes(), peer)?;
            }
            _ if now > start + PATIENCE + 2 * time => {
                return Err(bad(format!("{peer} stopped sending")));
            }
            _ => {}
        }
    }
    let other = connect(peer)?;
    let sent = ask(&other, Message { kind: Kind::Sent, run, value: 0, more: 0 })?.value;
    let seconds = match (from, to) {
        (Some(from), Some(to)) if to > from => (to - from).as_secs_f64(),
        _ => return Err(bad(format!("{peer}: too little arrived"))),
    };
    Ok(Arrived { sent, received, rate: counted as f64 / seconds })
}

/// One rate that was tried.
struct Trial {
    /// Datagrams a second that were really sent, to all peers.
    rate: f64,
    sent: u64,
    received: u64,
}

/// Looks for the highest rate without loss. `together`: peers fetch what their kernel has put together.
pub(crate) fn receive(
    size: usize,
    time: Duration,
    start: f64,
    together: bool,
    peers: &[SocketAddrV4],
) -> io::Result<()> {
    each(peers, |peer| {
        let value = together.into();
        ask(&connect(peer)?, Message { kind: Kind::Together, run: run(), value, more: 0 })
    })?;
    let (mut good, mut bad_rate): (Option<Trial>, Option<f64>) = (None, None);
    let mut rate = start;
    let (mut trials, mut offered, mut lost) = (0, 0, 0);
    while trials < TRIALS {
        let trial = try_rate(size, time, rate, peers)?;
        trials += 1;
        offered += trial.sent;
        lost += trial.sent - trial.received.min(trial.sent);
        if trial.received >= trial.sent {
            if good.as_ref().is_none_or(|good| trial.rate > good.rate) {
                good = Some(trial);
            }
        } else {
            bad_rate = Some(bad_rate.map_or(rate, |before| before.min(rate)));
        }
        rate = match (good.as_ref().map(|good| good.rate), bad_rate) {
            (Some(good), None) => good * 1.25,
            (None, Some(worse)) => worse * 0.75,
            (Some(good), Some(worse)) if worse > good * NEAR => (good * worse).sqrt(),
            _ => break,
        };
    }
    let Some(best) = good else {
        return Err(bad(format!("some are lost at {rate:.0} a second, too")));
    };
    say(&json!({
        "rates": [best.rate], "sent": best.sent, "received": best.received,
        "trials": trials, "offered": offered, "lost": lost,
    }));
    Ok(())
}

/// Sends at a rate to all peers together, and asks what arrived.
fn try_rate(size: usize, time: Duration, rate: f64, peers: &[SocketAddrV4]) -> io::Result<Trial> {
    let share = rate / peers.len() as f64;
    let found = each(peers, |peer| {
        let socket = connect(peer)?;
        let run = run();
        ask(&socket, Message { kind: Kind::Trip, run, value: 0, more: 0 })?;
        let start = Instant::now();
        let sent = paced(&socket, size, time, (share, run))?;
        let rate = sent as f64 / start.elapsed().as_secs_f64();
        // What is still in queues arrives before the answer.
        let received = ask(&socket, Message { kind: Kind::Count, run, value: 0, more: 0 })?.value;
        Ok((sent, received, rate))
    })?;
    Ok(Trial {
        sent: found.iter().map(|one| one.0).sum(),
        received: found.iter().map(|one| one.1).sum(),
        rate: found.iter().map(|one| one.2).sum(),
    })
}

/// Sends at a rate; how many were sent.
fn paced(
    socket: &UdpSocket,
    size: usize,
    time: Duration,
    (rate, run): (f64, u64),
) -> io::Result<u64> {
    let mut buffer = [0; MAX];
    let datagram = buffer.get_mut(..size).unwrap_or_default();
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time {
        let due = (rate * start.elapsed().as_secs_f64()) as u64;
        while sent < due {
            Message { kind: Kind::Data, run, value: sent, more: 0 }.write(datagram);
            match socket.send(datagram) {
                // That nobody listens is no matter.
                Err(e) if e.kind() != io::ErrorKind::ConnectionRefused => return Err(e),
                _ => sent += 1,
            }
        }
        thread::sleep(TICK);
    }
    Ok(sent)
}

/// Sends at a rate to all peers together.
pub(crate) fn flood(
    size: usize,
    time: Duration,
    rate: f64,
    peers: &[SocketAddrV4],
) -> io::Result<()> {
    let share = rate / peers.len() as f64;
    let sent = each(peers, |peer| paced(&connect(peer)?, size, time, (share, run())))?;
    say(&json!({ "sent": sent.iter().sum::<u64>() }));
    Ok(())
}
