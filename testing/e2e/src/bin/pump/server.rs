//! The side in the guest. One thread; while it sends it does not receive.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};

use crate::message::{Kind, MAX, Message, socket};

/// How often the clock is looked at while sending.
const LOOK: u64 = 8;

/// Bytes of what is fetched at once: datagrams of one sender that the kernel has put together.
const TOGETHER: usize = 1 << 16;

/// Serves until the process is ended.
pub(crate) fn serve(port: u16) -> io::Result<()> {
    let mut server = Server { socket: socket(port)?, run: 0, count: 0, sent: (0, 0) };
    let mut buffer = vec![0; TOGETHER];
    loop {
        let (n, size, from) = fetch(&server.socket, &mut buffer)?;
        let fetched = buffer.get_mut(..n).unwrap_or_default();
        for datagram in fetched.chunks_mut(size.clamp(1, TOGETHER)) {
            server.hear(datagram, from)?;
        }
    }
}

/// Waits for datagrams: how many bytes, of how many each, and from whom.
fn fetch(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, usize, SocketAddr)> {
    let mut room = nix::cmsg_space!(i32);
    let mut to = [IoSliceMut::new(buffer)];
    let fd = socket.as_raw_fd();
    let heard = recvmsg::<SockaddrIn>(fd, &mut to, Some(&mut room), MsgFlags::empty())?;
    let n = heard.bytes;
    let size = heard.cmsgs()?.find_map(|said| match said {
        ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
        _ => None,
    });
    let from = heard.address.ok_or_else(|| io::Error::other("a datagram of nobody"))?;
    Ok((n, size.unwrap_or(n), SocketAddrV4::from(from).into()))
}

struct Server {
    socket: UdpSocket,
    /// The run that is going on, and how much of it has arrived.
    run: u64,
    count: u64,
    /// The run that was sent last, and how much.
    sent: (u64, u64),
}

impl Server {
    /// Does what a datagram asks for.
    fn hear(&mut self, datagram: &mut [u8], from: SocketAddr) -> io::Result<()> {
        let Some(message) = Message::read(datagram) else { return Ok(()) };
        match message.kind {
            Kind::Data => {
                if message.run != self.run {
                    (self.run, self.count) = (message.run, 0);
                }
                self.count += 1;
                return Ok(());
            }
            Kind::Trip => {}
            Kind::Count => {
                let value = if message.run == self.run { self.count } else { 0 };
                Message { value, ..message }.write(datagram);
            }
            Kind::Together => {
                setsockopt(&self.socket, sockopt::UdpGroSegment, &(message.value == 1))?;
            }
            Kind::Send if message.run != self.sent.0 => {
                self.socket.send_to(datagram, from)?;
                self.sent = (message.run, send(&message, from)?);
                return Ok(());
            }
            Kind::Sent if message.run == self.sent.0 => {
                Message { value: self.sent.1, ..message }.write(datagram);
            }
            // It was heard twice.
            _ => return Ok(()),
        }
        self.socket.send_to(datagram, from)?;
        Ok(())
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
