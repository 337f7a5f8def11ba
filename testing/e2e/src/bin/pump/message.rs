//! What the two sides say to each other.

use std::io;
use std::net::UdpSocket;

use nix::sys::socket::{setsockopt, sockopt};

/// Bytes of a message; data has more behind it.
pub(crate) const LEN: usize = 32;
/// The largest datagram: more would be cut into fragments.
pub(crate) const MAX: usize = 1472;
/// Room for datagrams that were not fetched yet, as the kernel counts them.
const ROOM: usize = 1 << 20;
const MAGIC: u32 = 0x7075_6d70;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of many; `value` is its number.
    Data = 1,
    /// How many of a run have arrived? Answered by the same with `value`.
    Count = 2,
    /// Send it back.
    Trip = 3,
    /// Send data of `more` bytes for `value` milliseconds. Answered by the same, at once.
    Send = 4,
    /// So many were sent: `value`.
    Sent = 5,
    /// Fetch datagrams that the kernel has put together (`UDP_GRO`), if `value` is 1, or each by itself, if it is 0.
    /// Answered by the same.
    Together = 6,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    /// What it belongs to; no two runs have the same.
    pub(crate) run: u64,
    pub(crate) value: u64,
    pub(crate) more: u64,
}

impl Message {
    /// What it says, if it is one.
    pub(crate) fn read(bytes: &[u8]) -> Option<Message> {
        let mut words = bytes.get(..LEN)?.chunks_exact(8);
        let mut word = || Some(u64::from_be_bytes(words.next()?.try_into().ok()?));
        let first = word()?;
        if first >> 32 != u64::from(MAGIC) {
            return None;
        }
        let kind = match first & 0xffff_ffff {
            1 => Kind::Data,
            2 => Kind::Count,
            3 => Kind::Trip,
            4 => Kind::Send,
            5 => Kind::Sent,
            6 => Kind::Together,
            _ => return None,
        };
        Some(Message { kind, run: word()?, value: word()?, more: word()? })
    }

    /// Writes it to the beginning of a datagram of at least [`LEN`] bytes.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let first = u64::from(MAGIC) << 32 | self.kind as u64;
        let words = [first, self.run, self.value, self.more];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
    }

    /// The datagram.
    pub(crate) fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.write(&mut bytes);
        bytes
    }
}

/// A socket with the same room everywhere.
pub(crate) fn socket(port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, port))?;
    // The kernel doubles what it is told.
    setsockopt(&socket, sockopt::RcvBuf, &(ROOM / 2))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        for kind in [Kind::Data, Kind::Count, Kind::Trip, Kind::Send, Kind::Sent, Kind::Together] {
            let message = Message { kind, run: u64::MAX - 1, value: 7, more: 1 << 40 };
            assert_eq!(Message::read(&message.bytes()), Some(message));
        }
        assert_eq!(Message::read(&[0; LEN]), None);
        assert_eq!(Message::read(&[0x70, 0x75, 0x6d, 0x70]), None);
    }
}
