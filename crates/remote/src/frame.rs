//! The protocol in bytes.
//!
//! Both sides send frames: a header of [`HEADER`] bytes and a body. Numbers are little-endian.
//!
//! ```text
//! header   length of the body u32 | kind u8 | zero [u8; 3] | tag u64
//! request  operation u8 | flags u8 | buffers u16 | handle u32 | offset u64 | length u64
//!          { address u64 | key u64 | length u64 } for each buffer
//!          the bytes of a write without buffers
//! reply    status u32 | zero u32
//!          the bytes of a read without buffers
//! ```
//!
//! The body of a control message is JSON ([`super::control`]); those of a ping and a pong are empty.

use smallvec::SmallVec;

use super::{MAX_BUFFERS, MAX_CLEAR, MAX_CONTROL, MAX_DATA, SECTOR};

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of a request before its buffers.
pub const REQUEST: usize = 24;
/// Bytes of a reply before its data.
pub const REPLY: usize = 8;
/// Bytes of a buffer in a request.
pub const BUFFER: usize = 24;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A control message.
    Control = 1,
    /// Are you there?
    Ping = 2,
    /// I am: with the tag of the ping.
    Pong = 3,
    /// From the client.
    Request = 16,
    /// From the store, with the tag of the request.
    Reply = 17,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        let all = [Kind::Control, Kind::Ping, Kind::Pong, Kind::Request, Kind::Reply];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Bytes of the image into the client's memory.
    Read = 1,
    /// Bytes of the client's memory into the image.
    Write = 2,
    /// Everything that was answered before on stable storage. Offset and length are 0.
    Flush = 3,
    /// Nobody needs these bytes any more.
    Discard = 4,
    /// These bytes read as zeroes from now on.
    WriteZeroes = 5,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 5] = [
        Operation::Read,
        Operation::Write,
        Operation::Flush,
        Operation::Discard,
        Operation::WriteZeroes,
    ];

    /// Whether it changes the image.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(self, Operation::Write | Operation::Discard | Operation::WriteZeroes)
    }

    /// Whether it moves bytes between the image and the client.
    #[must_use]
    pub fn moves(self) -> bool {
        matches!(self, Operation::Read | Operation::Write)
    }
}

/// A piece of the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Where it begins, as the client's registration has it.
    pub address: u64,
    /// The registration.
    pub key: u64,
    /// Bytes.
    pub length: u64,
}

/// Pieces of the client's memory, in order; mostly there is one, for which no memory is taken.
pub type Buffers = SmallVec<[Buffer; 1]>;

/// A request, without the bytes of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub operation: Operation,
    /// On stable storage when it is answered.
    pub stable: bool,
    /// The space may be given back (write zeroes).
    pub unmap: bool,
    /// Of the open image.
    pub handle: u32,
    /// In bytes, a multiple of [`SECTOR`].
    pub offset: u64,
    /// In bytes, a multiple of [`SECTOR`].
    pub length: u64,
    /// The client's memory, for a store that reaches it; none: the bytes are in the frames.
    pub buffers: Buffers,
}

const STABLE: u8 = 1;
const UNMAP: u8 = 2;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// It was carried out.
    Ok = 0,
    /// The store could not: its log says why.
    Failed = 1,
    /// Outside the image, or longer than a request may be.
    OutOfRange = 2,
    /// The image is open for reading only.
    ReadOnly = 3,
    /// This image cannot do that.
    Unsupported = 4,
    /// No space is left.
    NoSpace = 5,
    /// Not the handle of the image that this connection opened.
    WrongHandle = 6,
    /// The client's memory could not be reached.
    Unreachable = 7,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 8] = [
        Status::Ok,
        Status::Failed,
        Status::OutOfRange,
        Status::ReadOnly,
        Status::Unsupported,
        Status::NoSpace,
        Status::WrongHandle,
        Status::Unreachable,
    ];
}

/// Bytes that are not of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No such kind of frame.
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    /// Longer or shorter than such a frame can be.
    #[error("a frame of kind {kind} cannot have {length} bytes")]
    Length {
        /// The kind, as it came.
        kind: u8,
        /// Of its body.
        length: u32,
    },
    /// Something that has to be zero is not.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// No such operation.
    #[error("unknown operation {0}")]
    Operation(u8),
    /// Flags that are unknown, or not of this operation.
    #[error("flags {flags:#x} do not belong to operation {operation}")]
    Flags {
        /// As they came.
        flags: u8,
        /// As it came.
        operation: u8,
    },
    /// Offset or length is not of whole sectors, or a flush has one.
    #[error("offset {offset} and length {length} are not of whole sectors")]
    Sectors {
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// Too many buffers, or some where there is nothing to move.
    #[error("a request cannot have {0} buffers")]
    Buffers(u16),
    /// The buffers have not as many bytes as the request.
    #[error("the buffers have not as many bytes as the request")]
    BufferLength,
    /// No such status.
    #[error("unknown status {0}")]
    Status(u32),
}

/// What stands at the beginning of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'b> {
    /// A control message: JSON.
    Control(&'b [u8]),
    /// To be answered by a pong with this tag.
    Ping(u64),
    /// The answer to a ping.
    Pong(u64),
    /// A request. So many bytes of data follow in the stream.
    Request {
        /// For the reply.
        tag: u64,
        /// What is asked for.
        request: Request,
        /// Bytes that follow.
        data: u32,
    },
    /// A reply. So many bytes of data follow in the stream.
    Reply {
        /// That of the request.
        tag: u64,
        /// How it ended.
        status: Status,
        /// Bytes that follow.
        data: u32,
    },
}

/// What a store says once an image is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromStore {
    /// To be answered by a pong with this tag.
    Ping(u64),
    /// The answer to a ping.
    Pong,
    /// A reply. So many bytes of data follow in the stream.
    Reply {
        /// That of the request.
        tag: u64,
        /// How it ended.
        status: Status,
        /// Bytes that follow.
        data: u32,
    },
}

impl FromStore {
    /// The item, if a store may say it.
    #[must_use]
    pub fn of(item: &Item<'_>) -> Option<FromStore> {
        match *item {
            Item::Ping(tag) => Some(FromStore::Ping(tag)),
            Item::Pong(_) => Some(FromStore::Pong),
            Item::Reply { tag, status, data } => Some(FromStore::Reply { tag, status, data }),
            Item::Control(_) | Item::Request { .. } => None,
        }
    }
}

/// What the bytes begin with, and how many of them that is: without the data of a request or reply,
/// which follows. `None`: more bytes are needed, at most [`MAX_CONTROL`] + [`HEADER`] in all.
///
/// # Errors
/// They are not of this protocol.
pub fn parse(bytes: &[u8]) -> Result<Option<(Item<'_>, usize)>, Malformed> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let [a, b, c, d, kind_byte, zeroes @ .., _, _, _, _, _, _, _, _] = *header;
    let [.., e, f, g, h, i, j, k, l] = *header;
    let length = u32::from_le_bytes([a, b, c, d]);
    let tag = u64::from_le_bytes([e, f, g, h, i, j, k, l]);
    let kind = Kind::of(kind_byte).ok_or(Malformed::Kind(kind_byte))?;
    let wrong = Malformed::Length { kind: kind_byte, length };
    if zeroes != [0; 3] {
        return Err(Malformed::Reserved);
    }
    let size = length as usize;
    match kind {
        Kind::Control => {
            if length > MAX_CONTROL {
                return Err(wrong);
            }
            Ok(rest.get(..size).map(|body| (Item::Control(body), HEADER + size)))
        }
        Kind::Ping if size == 0 => Ok(Some((Item::Ping(tag), HEADER))),
        Kind::Pong if size == 0 => Ok(Some((Item::Pong(tag), HEADER))),
        Kind::Ping | Kind::Pong => Err(wrong),
        Kind::Request => {
            let most = REQUEST + MAX_BUFFERS * BUFFER + MAX_DATA as usize;
            if !(REQUEST..=most).contains(&size) {
                return Err(wrong);
            }
            let Some((fixed, rest)) = rest.split_first_chunk::<REQUEST>() else { return Ok(None) };
            let (mut request, count) = fixed_request(fixed)?;
            let list = usize::from(count) * BUFFER;
            let data = if request.operation == Operation::Write && count == 0 {
                request.length
            } else {
                0
            };
            if size as u64 != (REQUEST + list) as u64 + data {
                return Err(wrong);
            }
            let Some(list) = rest.get(..list) else { return Ok(None) };
            request.buffers = buffers(list, request.length)?;
            let used = HEADER + REQUEST + list.len();
            Ok(Some((Item::Request { tag, request, data: data as u32 }, used)))
        }
        Kind::Reply => {
            if !(REPLY..=REPLY + MAX_DATA as usize).contains(&size) {
                return Err(wrong);
            }
            let Some(&[a, b, c, d, zeroes @ ..]) = rest.first_chunk::<REPLY>() else {
                return Ok(None);
            };
            let number = u32::from_le_bytes([a, b, c, d]);
            let known = Status::ALL.into_iter().find(|status| *status as u32 == number);
            let status = known.ok_or(Malformed::Status(number))?;
            if zeroes != [0; 4] {
                return Err(Malformed::Reserved);
            }
            let data = length - REPLY as u32;
            Ok(Some((Item::Reply { tag, status, data }, HEADER + REPLY)))
        }
    }
}

/// The request without its buffers, and how many there are.
fn fixed_request(body: &[u8; REQUEST]) -> Result<(Request, u16), Malformed> {
    let [operation_byte, flags, n0, n1, h0, h1, h2, h3, numbers @ ..] = *body;
    let [offset, length] = [0, 8].map(|at| {
        let bytes = numbers.get(at..).and_then(|bytes: &[u8]| bytes.first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    });
    let count = u16::from_le_bytes([n0, n1]);
    let known = Operation::ALL.into_iter().find(|one| *one as u8 == operation_byte);
    let operation = known.ok_or(Malformed::Operation(operation_byte))?;
    let may = match operation {
        Operation::Write => STABLE,
        Operation::WriteZeroes => STABLE | UNMAP,
        Operation::Read | Operation::Flush | Operation::Discard => 0,
    };
    if flags & !may != 0 {
        return Err(Malformed::Flags { flags, operation: operation_byte });
    }
    let sectors = offset.is_multiple_of(SECTOR)
        && length.is_multiple_of(SECTOR)
        && match operation {
            Operation::Flush => offset == 0 && length == 0,
            Operation::Read | Operation::Write => (1..=u64::from(MAX_DATA)).contains(&length),
            Operation::Discard | Operation::WriteZeroes => (1..=MAX_CLEAR).contains(&length),
        };
    if !sectors {
        return Err(Malformed::Sectors { offset, length });
    }
    if usize::from(count) > MAX_BUFFERS || (count > 0 && !operation.moves()) {
        return Err(Malformed::Buffers(count));
    }
    let request = Request {
        operation,
        stable: flags & STABLE != 0,
        unmap: flags & UNMAP != 0,
        handle: u32::from_le_bytes([h0, h1, h2, h3]),
        offset,
        length,
        buffers: Buffers::new(),
    };
    Ok((request, count))
}

fn buffers(list: &[u8], length: u64) -> Result<Buffers, Malformed> {
    let mut all = Buffers::new();
    let mut sum = Some(0u64);
    let (list, _) = list.as_chunks::<8>();
    let (list, _) = list.as_chunks::<{ BUFFER / 8 }>();
    for numbers in list {
        let [address, key, length] = numbers.map(u64::from_le_bytes);
        let fits = address.checked_add(length).is_some();
        sum = sum.and_then(|sum| sum.checked_add(length)).filter(|_| fits);
        all.push(Buffer { address, key, length });
    }
    if !all.is_empty() && sum != Some(length) {
        return Err(Malformed::BufferLength);
    }
    Ok(all)
}

fn header(to: &mut Vec<u8>, kind: Kind, tag: u64, length: usize) {
    let [l0, l1, l2, l3] = (length as u32).to_le_bytes();
    let first = [l0, l1, l2, l3, kind as u8, 0, 0, 0];
    to.extend_from_slice([first, tag.to_le_bytes()].as_flattened());
}

/// Appends a control message.
pub fn control(to: &mut Vec<u8>, json: &[u8]) {
    header(to, Kind::Control, 0, json.len());
    to.extend_from_slice(json);
}

/// Appends a ping.
pub fn ping(to: &mut Vec<u8>, tag: u64) {
    header(to, Kind::Ping, tag, 0);
}

/// Appends the answer to a ping.
pub fn pong(to: &mut Vec<u8>, tag: u64) {
    header(to, Kind::Pong, tag, 0);
}

/// Appends a request; the data of a write without buffers is to follow.
pub fn request(to: &mut Vec<u8>, tag: u64, request: &Request) {
    let inline = request.operation == Operation::Write && request.buffers.is_empty();
    let data = if inline { request.length as usize } else { 0 };
    let count = request.buffers.len();
    header(to, Kind::Request, tag, REQUEST + count * BUFFER + data);
    let flags = if request.stable { STABLE } else { 0 } | if request.unmap { UNMAP } else { 0 };
    let ([n0, n1], [h0, h1, h2, h3]) = ((count as u16).to_le_bytes(), request.handle.to_le_bytes());
    let first = [request.operation as u8, flags, n0, n1, h0, h1, h2, h3];
    let (offset, length) = (request.offset.to_le_bytes(), request.length.to_le_bytes());
    to.extend_from_slice([first, offset, length].as_flattened());
    for &Buffer { address, key, length } in &request.buffers {
        to.extend_from_slice([address, key, length].map(u64::to_le_bytes).as_flattened());
    }
}

/// Appends a reply; so many bytes of data are to follow.
pub fn reply(to: &mut Vec<u8>, tag: u64, status: Status, data: u32) {
    header(to, Kind::Reply, tag, REPLY + data as usize);
    to.extend_from_slice(&(status as u32).to_le_bytes());
    to.extend_from_slice(&[0; 4]);
}

#[cfg(test)]
mod tests;
