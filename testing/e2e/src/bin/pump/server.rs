//! The side in the guest. One thread; while it sends it does not receive.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::message::{Kind, MAX, Message, socket};

/// How often the clock is looked at while sending.
const LOOK: u64 = 8;

/// Serves until the process is ended.
pub(crate) fn serve(port: u16) -> io::Result<()> {
    let socket = socket(port)?;
    let mut buffer = [0; MAX];
    // Of the run that is going on: its number, and how many have arrived.
    let (mut run, mut count) = (0, 0_u64);
    // That of the last that was sent, and how many.
    let mut sent = (0, 0);
    loop {
        let (n, from) = socket.recv_from(&mut buffer)?;
        let Some(message) = buffer.get(..n).and_then(Message::read) else { continue };
        if message.kind == Kind::Data {
            if message.run != run {
                (run, count) = (message.run, 0);
            }
            count += 1;
            continue;
        }
        match message.kind {
            Kind::Trip => {}
            Kind::Count => {
                let value = if message.run == run { count } else { 0 };
                Message { value, ..message }.write(&mut buffer);
            }
            Kind::Send if message.run != sent.0 => {
                socket.send_to(buffer.get(..n).unwrap_or_default(), from)?;
                sent = (message.run, send(&message, from)?);
                continue;
            }
            Kind::Sent if message.run == sent.0 => {
                Message { value: sent.1, ..message }.write(&mut buffer);
            }
            // It was heard twice.
            _ => continue,
        }
        socket.send_to(buffer.get(..n).unwrap_or_default(), from)?;
    }
}

/// Sends data as fast as it goes, by a connection of its own to the port behind the one that asked.
fn send(what: &Message, to: SocketAddr) -> io::Result<u64> {
    let own = socket(0)?;
    own.connect((to.ip(), to.port()))?;
    let size = usize::try_from(what.more).unwrap_or(MAX).clamp(crate::message::LEN, MAX);
    let mut buffer = [0; MAX];
    let datagram = buffer.get_mut(..size).unwrap_or_default();
    let (start, time) = (Instant::now(), Duration::from_millis(what.value));
    let mut count = 0;
    while count % LOOK != 0 || start.elapsed() < time {
        Message { kind: Kind::Data, run: what.run, value: count, more: 0 }.write(datagram);
        match own.send(datagram) {
            Ok(_) => count += 1,
            // The queue of an interface without backpressure was full, or an answer to an earlier one.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(count)
}
