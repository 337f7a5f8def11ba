//! A store whose client says whatever the input says, and a disk whose store answers so.

use remote::control::{Opened, ToClient, ToStore, decode, encode};
use remote::frame::{self, Item};
use remote::{Client, MAX_DATA, Operation, Request, SECTOR, Server, Status};

use crate::bytes::Bytes;

const SIZE: u64 = 1 << 20;

/// The target: the first byte says which side's.
///
/// # Panics
/// When a side breaks a rule that its owner relies on.
pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((0, rest)) => store(rest),
        Some((_, rest)) => disk(rest),
        None => {}
    }
}

fn opened(requests: u16, bytes: u32) -> Opened {
    Opened {
        handle: 7,
        epoch: 1,
        size: SIZE,
        block_size: 512,
        requests,
        bytes,
        discard: true,
        durable: false,
        place: None,
        fabric: None,
    }
}

/// A stream of frames, of which the store ends the oldest request now and then.
fn store(mut stream: &[u8]) {
    let limits = opened(4, 1 << 16);
    let mut server = Server::new(limits.clone(), stream.len().is_multiple_of(2));
    let mut under_way: Vec<Request> = Vec::new();
    loop {
        let Ok(Some((item, used))) = frame::parse(stream) else { return };
        assert!(used <= stream.len());
        let (head, rest) = stream.split_at(used);
        stream = rest;
        let mut again = Vec::new();
        match item {
            Item::Control(json) => {
                // What is understood is said again in the same way.
                if let Ok(message) = decode::<ToStore>(json) {
                    assert_eq!(decode::<ToStore>(&encode(&message)), Ok(message));
                }
                if let Ok(message) = decode::<ToClient>(json) {
                    assert_eq!(decode::<ToClient>(&encode(&message)), Ok(message));
                }
                continue;
            }
            Item::Ping(tag) => frame::ping(&mut again, tag),
            Item::Pong(tag) => frame::pong(&mut again, tag),
            Item::Reply { tag, status, data } => {
                assert!(data <= MAX_DATA);
                frame::reply(&mut again, tag, status, data);
            }
            Item::Request { tag, request, data } => {
                frame::request(&mut again, tag, &request);
                assert!(u64::from(data) <= request.length);
                stream = stream.get(data as usize..).unwrap_or_default();
                if under_way.len() == usize::from(limits.requests) || tag.is_multiple_of(3) {
                    under_way.pop().iter().for_each(|request| server.ended(request));
                }
                match server.begins(&request) {
                    Ok(Ok(())) => {
                        let end = request.offset + request.length;
                        assert!(end <= SIZE && request.handle == limits.handle);
                        assert!(request.offset.is_multiple_of(SECTOR));
                        assert!(request.length.is_multiple_of(SECTOR));
                        under_way.push(request);
                    }
                    Ok(Err(_)) => server.ended(&request),
                    Err(_) => return,
                }
                assert_eq!(usize::from(server.under_way()), under_way.len());
                let moves = |request: &Request| request.operation.moves().then_some(request.length);
                let bytes: u64 = under_way.iter().filter_map(moves).sum();
                assert!(bytes <= u64::from(limits.bytes.max(MAX_DATA)));
            }
        }
        // What was read is what would be written.
        assert_eq!(again.get(..used), Some(head));
    }
}

/// Requests of a disk, answered in any order, more than once, or not at all.
fn disk(data: &[u8]) {
    let mut input = Bytes(data);
    let mut client: Client<u32> = Client::default();
    let (mut pushed, mut given_back) = (0, 0);
    let mut tag = 0;
    while !input.is_empty() {
        match input.u8() % 8 {
            0..=2 => {
                let operation = Operation::ALL[usize::from(input.u8()) % Operation::ALL.len()];
                let flush = operation == Operation::Flush;
                let (offset, sectors) = (u64::from(input.u8()), 1 + u64::from(input.u8()));
                let request = Request {
                    operation,
                    stable: input.u8() & 1 == 1,
                    unmap: false,
                    handle: 0,
                    offset: if flush { 0 } else { offset * SECTOR },
                    length: if flush { 0 } else { sectors * SECTOR },
                    buffers: remote::Buffers::new(),
                };
                client.push(request, pushed);
                pushed += 1;
            }
            3 | 4 => {
                if let Some((sent, handle, _)) = client.send() {
                    assert!(sent >= tag && handle == 7);
                    tag = sent + 1;
                }
            }
            5 => {
                let which = u64::from(input.u8());
                let status = Status::ALL[usize::from(input.u8()) % Status::ALL.len()];
                given_back += u32::from(client.answered(which, status).is_some());
            }
            6 => {
                client.disconnected();
                assert_eq!(client.under_way(), 0);
                if input.u8() & 1 == 1 {
                    let odd = u32::from(input.u8() & 1);
                    given_back += client.take_back(|job| job & 1 == odd).len() as u32;
                }
            }
            _ => {
                let (requests, bytes) = (input.u8(), u32::from(input.u8()) << 12);
                client.connected(&opened(requests.into(), bytes), &input.u8().to_string());
            }
        }
    }
    client.disconnected();
    given_back += client.take_back(|_| true).len() as u32;
    assert!(client.is_empty());
    assert_eq!(pushed, given_back, "each once");
}
