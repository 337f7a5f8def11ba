//! Virtio-blk requests in chains of any shape, compared with a plain reading of the specification.

#![allow(clippy::expect_used, reason = "a fuzz target fails by panicking")]

use disk::config::{Config, DiscardLimits, DiskSpec, FLUSH, Topology, ZeroLimits};
use disk::request::{Range, Ranges};
use disk::{Command, Operation, Parsed, Refusal, Status, parse};
use testkit::driver::{self, Buffer, DriverQueue, RingSpec, Shape};
use virtqueue::{Chain, Queue, QueueConfig};

use crate::bytes::Bytes;

const START: u64 = 0x10_0000;
const SIZE: u64 = 0x4_0000;
const READABLE: u64 = START + 0x1_0000;
const WRITABLE: u64 = START + 0x2_0000;
/// Most buffers of one direction.
const PIECES: usize = 24;

/// What the device is to do: positions in bytes of the two directions, not in memory.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Read(u64, usize),
    Write(u64, Vec<u8>, bool),
    Flush,
    Discard(Vec<Range>),
    WriteZeroes(Vec<Range>, bool),
    GetId,
    Refused(Status),
}

/// The target.
///
/// # Panics
/// When the request is judged in another way than the specification says.
pub fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let Ok(mem) = driver::memory(&[(START, SIZE)]) else {
        return; // Out of memory or descriptors: nothing to be learnt.
    };
    let bits = input.u8();
    let spec = RingSpec { table_len: 64, ..RingSpec::new(bits & 1 != 0, 64, START) };
    let mut guest = DriverQueue::new(&mem, &spec).expect("the ring is inside");
    let mut disk = Config::new(disk_spec(&mut input, bits)).expect("a sound disk");
    disk.negotiate(if bits & 8 != 0 { FLUSH } else { 0 });
    let readable = pieces(&mut input, READABLE);
    let writable = pieces(&mut input, WRITABLE);
    let given: Vec<u8> = (0..total(&readable)).map(|_| input.u8()).collect();
    let room = total(&writable);
    driver::write(&mem, READABLE, &given);
    driver::write(&mem, WRITABLE, &vec![0xee; room]);

    let shape = if bits & 2 != 0 { Shape::Indirect } else { Shape::Direct };
    if guest.add(&readable, &writable, shape).is_none() {
        return; // No buffers at all.
    }
    guest.expose();
    let at = guest.addresses();
    let cfg = QueueConfig {
        size: spec.size,
        packed: spec.packed,
        event_idx: false,
        indirect: true,
        in_order: false,
        desc: at.desc,
        avail: at.driver,
        used: at.device,
        base: guest.base(),
    };
    let mut device = Queue::new(&mem, &cfg).expect("a sound ring");
    let mut chain = Chain::new();
    assert!(device.pop(&mem, &mut chain).expect("a sound chain"));

    let mut ranges = Ranges::new();
    let expected = reference(&given, [&readable, &writable], &disk);
    let (found, completion) = match parse(&mem, &chain, &disk.rules(), &mut ranges) {
        Parsed::Operation(Operation { command, completion }) => (seen(&command), completion),
        Parsed::Refused(refusal, completion) => {
            assert_eq!(refusal == Refusal::NoStatus, room == 0);
            (Expected::Refused(refusal.status()), completion)
        }
    };
    assert_eq!(found, expected);
    let status = if let Expected::Refused(status) = found { status } else { Status::Ok };
    assert_eq!(completion.finish(&mem, status) as usize, room);
    if let Some(last) = room.checked_sub(1) {
        let bytes = driver::read(&mem, WRITABLE, room as u32).expect("it is inside");
        assert_eq!(bytes[last], status as u8);
        let data = &bytes[..last];
        let filled = matches!(found, Expected::Read(..) | Expected::GetId);
        assert!(data.iter().all(|byte| *byte == if filled { 0x77 } else { 0xee }));
    }
}

fn disk_spec(input: &mut Bytes<'_>, bits: u8) -> DiskSpec {
    let on = |bit: u8| bits & bit != 0;
    let (seg_max, size_max) = (u32::from(input.u8()), 512 * u32::from(input.u8()));
    let (max_sectors, max_ranges) = (1 + u32::from(input.u8()), 1 + u32::from(input.u8() % 4));
    DiskSpec {
        capacity: input.u16().into(),
        block_size: 512,
        topology: Topology::default(),
        queues: 1,
        read_only: on(4),
        size_max,
        seg_max,
        discard: on(16).then_some(DiscardLimits { max_sectors, max_ranges, alignment: 1 }),
        write_zeroes: on(32).then_some(ZeroLimits { max_sectors, max_ranges, may_unmap: true }),
    }
}

/// Buffers that lie behind each other, each at least a byte.
fn pieces(input: &mut Bytes<'_>, start: u64) -> Vec<Buffer> {
    let count = usize::from(input.u8()) % (PIECES + 1);
    let mut gpa = start;
    let mut piece = || {
        let (kind, small) = (input.u8(), u32::from(input.u8()));
        let len = match kind % 4 {
            0 => 1 + small,
            1 => 16,
            2 => 512 * (1 + small % 3),
            _ => 1,
        };
        gpa += u64::from(len);
        Buffer { gpa: gpa - u64::from(len), len }
    };
    (0..count).map(|_| piece()).collect()
}

fn total(buffers: &[Buffer]) -> usize {
    buffers.iter().map(|buffer| buffer.len as usize).sum()
}

/// What was made of it; data to be filled is filled with 0x77.
fn seen(command: &Command<'_, '_>) -> Expected {
    match command {
        Command::Read { sector, data } => {
            let len = data.len() as usize;
            assert_eq!(data.write(&vec![0x77; len + 1]), len);
            Expected::Read(*sector, len)
        }
        Command::Write { sector, data, stable } => {
            let mut bytes = vec![0; data.len() as usize];
            assert_eq!(data.read(&mut bytes), bytes.len());
            Expected::Write(*sector, bytes, *stable)
        }
        Command::Flush => Expected::Flush,
        Command::Discard { ranges } => Expected::Discard(ranges.to_vec()),
        Command::WriteZeroes { ranges, stable } => Expected::WriteZeroes(ranges.to_vec(), *stable),
        Command::GetId { data } => {
            assert_eq!(data.write(&[0x77; 21]), 20);
            Expected::GetId
        }
    }
}

/// The request in these bytes, in and with room in these buffers, of a disk.
fn reference(given: &[u8], [readable, writable]: [&[Buffer]; 2], disk: &Config) -> Expected {
    let refused = Expected::Refused;
    let room = total(writable);
    let (Some(taken), Some((header, data))) = (room.checked_sub(1), given.split_at_checked(16))
    else {
        return refused(Status::IoError);
    };
    let kind = u32::from_le_bytes(header[..4].try_into().expect("four"));
    let sector = u64::from_le_bytes(header[8..].try_into().expect("eight"));
    let spec = disk.spec();
    let (capacity, stable) = (u128::from(spec.capacity), !disk.rules().writeback);
    let fits = |sector: u64, bytes: usize| {
        bytes != 0
            && bytes.is_multiple_of(512)
            && u128::from(sector) + bytes as u128 / 512 <= capacity
    };
    let limited = |buffers: &[Buffer], from: usize, to: usize| {
        let segments = segments(buffers, from, to);
        let any = |limit: u32| if limit == 0 { usize::MAX } else { limit as usize };
        segments.len() <= any(spec.seg_max) && segments.iter().all(|len| *len <= any(spec.size_max))
    };
    match kind {
        0 if data.is_empty() && fits(sector, taken) && limited(writable, 0, taken) => {
            Expected::Read(sector, taken)
        }
        1 if taken == 0
            && !spec.read_only
            && fits(sector, data.len())
            && limited(readable, 16, given.len()) =>
        {
            Expected::Write(sector, data.to_vec(), stable)
        }
        4 => Expected::Flush,
        8 if taken == 20 && data.is_empty() => Expected::GetId,
        11 | 13 if spec.read_only => refused(Status::IoError),
        11 => match spec.discard {
            None => refused(Status::Unsupported),
            Some(limits) => ranges(data, taken, 0, limits.max_ranges, limits.max_sectors, capacity)
                .map_or_else(refused, Expected::Discard),
        },
        13 => match spec.write_zeroes {
            None => refused(Status::Unsupported),
            Some(limits) => ranges(data, taken, 1, limits.max_ranges, limits.max_sectors, capacity)
                .map_or_else(refused, |ranges| Expected::WriteZeroes(ranges, stable)),
        },
        0 | 1 | 8 => refused(Status::IoError),
        _ => refused(Status::Unsupported),
    }
}

/// Lengths of the parts of buffers that lie in `from..to`, counted over all of them.
fn segments(buffers: &[Buffer], from: usize, to: usize) -> Vec<usize> {
    let mut at = 0;
    let mut part = |buffer: &Buffer| {
        let (start, end) = (at, at + buffer.len as usize);
        at = end;
        end.min(to).saturating_sub(start.max(from))
    };
    buffers.iter().map(&mut part).filter(|len| *len != 0).collect()
}

fn ranges(
    data: &[u8],
    taken: usize,
    known_flags: u32,
    max_ranges: u32,
    max_sectors: u32,
    capacity: u128,
) -> Result<Vec<Range>, Status> {
    let (all, rest) = data.as_chunks::<16>();
    if taken != 0 || !rest.is_empty() || all.is_empty() || all.len() > max_ranges as usize {
        return Err(Status::IoError);
    }
    let number = |range: &[u8; 16], at: usize| {
        u32::from_le_bytes(range[at..at + 4].try_into().expect("four"))
    };
    if all.iter().any(|range| number(range, 12) & !known_flags != 0) {
        return Err(Status::Unsupported);
    }
    all.iter()
        .map(|range| {
            let sector = u64::from_le_bytes(range[..8].try_into().expect("eight"));
            let (sectors, unmap) = (number(range, 8), number(range, 12) == 1);
            let inside = u128::from(sector) + u128::from(sectors) <= capacity;
            let good = inside && (1..=max_sectors).contains(&sectors);
            good.then_some(Range { sector, sectors, unmap }).ok_or(Status::IoError)
        })
        .collect()
}
