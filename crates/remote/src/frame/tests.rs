use proptest::prelude::*;

use super::*;

fn any_request() -> impl Strategy<Value = Request> {
    let operation = proptest::sample::select(Operation::ALL.to_vec());
    let lengths = proptest::collection::vec(1u64..=8, 0..=4);
    (operation, any::<[bool; 2]>(), any::<u32>(), 0u64..1 << 40, 1u64..=64, lengths).prop_map(
        |(operation, [stable, unmap], handle, sector, sectors, pieces)| {
            let buffer = |(at, length): (usize, &u64)| Buffer {
                address: at as u64 * 4096,
                key: at as u64,
                length: length * SECTOR,
            };
            let moves = operation.moves();
            let buffers: Buffers =
                pieces.iter().enumerate().map(buffer).filter(|_| moves).collect();
            let sum: u64 = buffers.iter().map(|buffer| buffer.length).sum();
            let length = if sum > 0 { sum } else { sectors * SECTOR };
            let place = operation != Operation::Flush;
            Request {
                operation,
                stable: stable && matches!(operation, Operation::Write | Operation::WriteZeroes),
                unmap: unmap && operation == Operation::WriteZeroes,
                handle,
                offset: if place { sector * SECTOR } else { 0 },
                length: if place { length } else { 0 },
                buffers,
            }
        },
    )
}

fn bytes_of(tag: u64, asked: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    request(&mut bytes, tag, asked);
    bytes
}

fn write() -> Request {
    Request {
        operation: Operation::Write,
        stable: false,
        unmap: false,
        handle: 0x0403_0201,
        offset: 0x1000,
        length: 0x200,
        buffers: Buffers::new(),
    }
}

proptest! {
    #[test]
    fn a_request_arrives_as_it_was_sent(tag: u64, asked in any_request()) {
        let bytes = bytes_of(tag, &asked);
        let inline = asked.operation == Operation::Write && asked.buffers.is_empty();
        let wanted = if inline { asked.length as u32 } else { 0 };
        let (item, used) = parse(&bytes).unwrap().unwrap();
        prop_assert_eq!(used, bytes.len());
        prop_assert_eq!(item, Item::Request { tag, request: asked, data: wanted });
        // Less of it is not enough.
        for less in 0..bytes.len() {
            prop_assert_eq!(parse(&bytes[..less]).unwrap(), None);
        }
    }

    #[test]
    fn a_reply_arrives_as_it_was_sent(tag: u64, at in 0..Status::ALL.len(), data in 0..=MAX_DATA) {
        let mut bytes = Vec::new();
        let status = Status::ALL[at];
        reply(&mut bytes, tag, status, data);
        prop_assert_eq!(parse(&bytes), Ok(Some((Item::Reply { tag, status, data }, bytes.len()))));
    }

    #[test]
    fn no_bytes_are_taken_for_more_than_there_are(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some((_, used))) = parse(&bytes) {
            prop_assert!(used <= bytes.len());
        }
    }
}

/// What the description of the protocol shows.
#[test]
fn the_layout() {
    let mut bytes = bytes_of(0x1817_1615_1413_1211, &write());
    assert_eq!(
        bytes,
        [
            0x18, 0x02, 0, 0, 16, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
            0x18, // header
            2, 0, 0, 0, 1, 2, 3, 4, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0,
        ]
    );
    bytes.clear();
    let buffer = Buffer { address: 1, key: 2, length: 0x200 };
    request(&mut bytes, 7, &Request { buffers: Buffers::from([buffer]), stable: true, ..write() });
    assert_eq!(bytes[..4], [48, 0, 0, 0]);
    assert_eq!(bytes[16..20], [2, 1, 1, 0]);
    assert_eq!(
        bytes[40..],
        [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    );
    bytes.clear();
    reply(&mut bytes, 7, Status::NoSpace, 0);
    assert_eq!(bytes, [8, 0, 0, 0, 17, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    bytes.clear();
    ping(&mut bytes, 1);
    pong(&mut bytes, 1);
    control(&mut bytes, b"{}");
    assert_eq!(bytes[..16], [0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..32], [0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[32..], [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']);
    assert_eq!(parse(&bytes), Ok(Some((Item::Ping(1), 16))));
    assert_eq!(parse(&bytes[16..]), Ok(Some((Item::Pong(1), 16))));
    assert_eq!(parse(&bytes[32..]), Ok(Some((Item::Control(b"{}"), 18))));
}

/// Each of these, alone, makes a frame that is refused.
#[test]
fn what_is_refused() {
    let good = bytes_of(1, &write());
    let with = |changes: &[(usize, u8)]| {
        let mut bytes = good.clone();
        for (at, byte) in changes {
            bytes[*at] = *byte;
        }
        parse(&bytes).unwrap_err()
    };
    let length = |length| Malformed::Length { kind: 16, length };
    assert_eq!(with(&[(4, 0)]), Malformed::Kind(0));
    assert_eq!(with(&[(4, 99)]), Malformed::Kind(99));
    assert_eq!(with(&[(5, 1)]), Malformed::Reserved);
    assert_eq!(with(&[(0, 23), (1, 0)]), length(23));
    assert_eq!(with(&[(3, 1)]), length(0x0100_0218));
    assert_eq!(with(&[(0, 0x19)]), length(0x0219));
    assert_eq!(with(&[(16, 0)]), Malformed::Operation(0));
    assert_eq!(with(&[(17, 4)]), Malformed::Flags { flags: 4, operation: 2 });
    assert_eq!(with(&[(16, 1), (17, 1)]), Malformed::Flags { flags: 1, operation: 1 });
    assert_eq!(with(&[(24, 1)]), Malformed::Sectors { offset: 0x1001, length: 0x200 });
    assert_eq!(with(&[(33, 0)]), Malformed::Sectors { offset: 0x1000, length: 0 });
    let long = Malformed::Sectors { offset: 0x1000, length: 0x10_0200 };
    assert_eq!(with(&[(34, 0x10)]), long);
    assert_eq!(with(&[(18, 129)]), Malformed::Buffers(129));
    assert_eq!(with(&[(16, 4), (18, 1)]), Malformed::Buffers(1));
    let buffer = Buffer { address: u64::MAX - 0x1fe, key: 0, length: 0x200 };
    let past = bytes_of(1, &Request { buffers: Buffers::from([buffer]), ..write() });
    assert_eq!(parse(&past), Err(Malformed::BufferLength));
    let short = Buffer { address: 0, key: 0, length: 0x100 };
    let short = bytes_of(1, &Request { buffers: Buffers::from([short]), ..write() });
    assert_eq!(parse(&short), Err(Malformed::BufferLength));

    let mut answer = Vec::new();
    reply(&mut answer, 1, Status::Ok, 0);
    let with = |at: usize, byte| {
        let mut bytes = answer.clone();
        bytes[at] = byte;
        parse(&bytes).unwrap_err()
    };
    assert_eq!(with(16, 8), Malformed::Status(8));
    assert_eq!(with(20, 1), Malformed::Reserved);
    assert_eq!(with(0, 7), Malformed::Length { kind: 17, length: 7 });
    let mut question = Vec::new();
    ping(&mut question, 1);
    question[0] = 1;
    assert_eq!(parse(&question), Err(Malformed::Length { kind: 2, length: 1 }));
    let mut message = Vec::new();
    control(&mut message, &vec![b' '; MAX_CONTROL as usize + 1]);
    assert!(matches!(parse(&message), Err(Malformed::Length { kind: 1, .. })));
}
