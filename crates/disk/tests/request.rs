//! Requests as a guest lays them out, and as it should not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::sync::Arc;

use disk::config::Rules;
use disk::request::{Data, Range, Ranges};
use disk::{Command, Operation, Parsed, Refusal, Status, parse};
use guestmem::GuestMemory;
use proptest::prelude::*;
use testkit::driver::{self, Buffer, DriverQueue, RingSpec, Shape};
use virtqueue::{Chain, Queue, QueueConfig};

const START: u64 = 0x10_0000;
const SIZE: u64 = 4 << 20;
const READABLE: u64 = START + (1 << 20);
const WRITABLE: u64 = START + (2 << 20);

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const RULES: Rules = Rules {
    capacity: 1000,
    read_only: false,
    writeback: true,
    size_max: u32::MAX,
    seg_max: u32::MAX,
    discard: Some((3, 100)),
    write_zeroes: Some((4, 200)),
};

/// A request as two rows of bytes, whatever the borders.
#[derive(Clone, Debug)]
struct Request {
    readable: Vec<u8>,
    /// Device-writable bytes, with the status.
    writable: u32,
}

impl Request {
    fn new(kind: u32, sector: u64, given: &[u8], taken: u32) -> Request {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        Request { readable: [&header, given].concat(), writable: taken + 1 }
    }
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// What came of a request, without the places in memory.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Read(u64, u64),
    Write(u64, Vec<u8>, bool),
    Flush,
    Discard(Vec<Range>),
    WriteZeroes(Vec<Range>, bool),
    GetId(u64),
    Refused(Refusal),
}

struct Guest {
    mem: Arc<GuestMemory>,
    driver: DriverQueue,
    device: Queue,
}

impl Guest {
    fn new(packed: bool) -> Guest {
        let spec = RingSpec { table_len: 256, ..RingSpec::new(packed, 256, START) };
        let mem = driver::memory(&[(START, SIZE)]).unwrap();
        let driver = DriverQueue::new(&mem, &spec).unwrap();
        let at = driver.addresses();
        let cfg = QueueConfig {
            size: spec.size,
            packed,
            event_idx: false,
            indirect: true,
            in_order: false,
            desc: at.desc,
            avail: at.driver,
            used: at.device,
            base: driver.base(),
        };
        let device = Queue::new(&mem, &cfg).unwrap();
        Guest { mem, driver, device }
    }

    /// Sends a request with borders after these bytes of each direction; checks everything that
    /// does not depend on the kind.
    fn send(&mut self, request: &Request, cuts: [&[u32]; 2], shape: Shape, rules: &Rules) -> Seen {
        let filler = vec![0xee; request.writable as usize];
        driver::write(&self.mem, READABLE, &request.readable);
        driver::write(&self.mem, WRITABLE, &filler);
        let readable = pieces(READABLE, request.readable.len() as u32, cuts[0]);
        let writable = pieces(WRITABLE, request.writable, cuts[1]);
        self.driver.add(&readable, &writable, shape).expect("room in the ring");
        self.driver.expose();
        let mut chain = Chain::new();
        assert!(self.device.pop(&self.mem, &mut chain).expect("a sound chain"));
        let (seen, completion, status) = match parse(&self.mem, &chain, rules, &mut Ranges::new()) {
            Parsed::Operation(Operation { command, completion }) => {
                (self.look(&command), completion, Status::Ok)
            }
            Parsed::Refused(refusal, completion) => {
                (Seen::Refused(refusal), completion, refusal.status())
            }
        };
        let untouched = driver::read(&self.mem, READABLE, request.readable.len() as u32);
        assert!(untouched.as_ref() == Some(&request.readable));
        let used = completion.finish(&self.mem, status);
        assert_eq!(used, request.writable);
        self.device.complete(&[chain.used(used)]);
        self.device.publish();
        while self.driver.collect().unwrap().is_some() {}
        if let Some(last) = request.writable.checked_sub(1) {
            let found = driver::read(&self.mem, WRITABLE + u64::from(last), 1).unwrap();
            assert_eq!(found, [status as u8]);
        }
        seen
    }

    fn look(&self, command: &Command<'_, '_>) -> Seen {
        match command {
            Command::Read { sector, data } => {
                self.is_all_writable(data);
                Seen::Read(*sector, data.len())
            }
            Command::Write { sector, data, stable } => {
                let mut bytes = vec![0; data.len() as usize];
                assert_eq!(data.read(&mut bytes), bytes.len());
                Seen::Write(*sector, bytes, *stable)
            }
            Command::Flush => Seen::Flush,
            Command::Discard { ranges } => Seen::Discard(ranges.to_vec()),
            Command::WriteZeroes { ranges, stable } => Seen::WriteZeroes(ranges.to_vec(), *stable),
            Command::GetId { data } => {
                self.is_all_writable(data);
                Seen::GetId(data.len())
            }
        }
    }

    /// The data is all writable memory but the status: filled, it shows there and nowhere else.
    fn is_all_writable(&self, data: &Data<'_, '_>) {
        let bytes: Vec<u8> = (0..data.len()).map(|n| (n ^ n >> 8) as u8).collect();
        assert_eq!(data.write(&bytes), bytes.len());
        let found = driver::read(&self.mem, WRITABLE, bytes.len() as u32 + 1).unwrap();
        assert_eq!(found, [&bytes[..], &[0xee]].concat());
    }
}

/// `len` bytes from `gpa` on, cut at these places.
fn pieces(gpa: u64, len: u32, cuts: &[u32]) -> Vec<Buffer> {
    let mut at: Vec<u32> = cuts.iter().map(|cut| cut % (len + 1)).chain([0, len]).collect();
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|w| Buffer { gpa: gpa + u64::from(w[0]), len: w[1] - w[0] }).collect()
}

fn once(request: &Request, rules: &Rules) -> Seen {
    Guest::new(false).send(request, [&[16], &[request.writable - 1]], Shape::Direct, rules)
}

fn requests() -> impl Strategy<Value = Request> {
    let sectors = 0u64..1100;
    let one = || (0u64..1100, 0u32..220, 0u32..3).prop_map(|(s, n, flags)| range(s, n, flags));
    let ranges = prop::collection::vec(one(), 0..6).prop_map(|ranges| ranges.concat());
    let kinds = prop::sample::select(vec![IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES, 2, 14]);
    let bytes = prop::collection::vec(any::<u8>(), 0..1600);
    prop_oneof![
        (sectors.clone(), 1u32..5).prop_map(|(s, n)| Request::new(IN, s, &[], n * 512)),
        (sectors.clone(), 1usize..5, any::<u8>()).prop_map(|(s, n, fill)| Request::new(
            OUT,
            s,
            &vec![fill; n * 512],
            0
        )),
        (prop::bool::ANY, ranges).prop_map(|(zeroes, ranges)| {
            Request::new(if zeroes { WRITE_ZEROES } else { DISCARD }, 0, &ranges, 0)
        }),
        Just(Request::new(GET_ID, 0, &[], 20)),
        Just(Request::new(FLUSH, 0, &[], 0)),
        (kinds, sectors, bytes, 0u32..1100)
            .prop_map(|(kind, sector, given, taken)| Request::new(kind, sector, &given, taken)),
    ]
}

proptest! {
    /// Where the borders are means nothing.
    #[test]
    fn any_layout_is_the_same_request(
        request in requests(),
        cuts in prop::collection::vec(any::<u32>(), 0..20),
        more in prop::collection::vec(any::<u32>(), 0..20),
        packed in any::<bool>(),
        indirect in any::<bool>(),
        read_only in any::<bool>(),
        writeback in any::<bool>(),
    ) {
        let rules = Rules { read_only, writeback, ..RULES };
        let expected = once(&request, &rules);
        let shape = if indirect { Shape::Indirect } else { Shape::Direct };
        let seen = Guest::new(packed).send(&request, [&cuts, &more], shape, &rules);
        prop_assert_eq!(seen, expected);
    }
}

#[test]
fn each_type_becomes_its_operation() {
    let data: Vec<u8> = (0..1024u32).map(|n| n as u8).collect();
    let given = [range(1, 2, 0), range(990, 10, 0)].concat();
    let ranges = |unmap| {
        vec![
            Range { sector: 1, sectors: 2, unmap },
            Range { sector: 990, sectors: 10, unmap: false },
        ]
    };
    let unmap = [range(1, 2, 1), range(990, 10, 0)].concat();
    let through = Rules { writeback: false, ..RULES };
    let table = [
        (Request::new(IN, 998, &[], 1024), Seen::Read(998, 1024)),
        (Request::new(OUT, 998, &data, 0), Seen::Write(998, data.clone(), false)),
        (Request::new(FLUSH, 0, &[], 0), Seen::Flush),
        (Request::new(FLUSH, 77, &data, 512), Seen::Flush),
        (Request::new(GET_ID, 0, &[], 20), Seen::GetId(20)),
        (Request::new(DISCARD, 0, &given, 0), Seen::Discard(ranges(false))),
        (Request::new(WRITE_ZEROES, 0, &unmap, 0), Seen::WriteZeroes(ranges(true), false)),
    ];
    for (request, expected) in table {
        assert_eq!(once(&request, &RULES), expected);
    }
    assert_eq!(once(&Request::new(OUT, 0, &data, 0), &through), Seen::Write(0, data, true));
    assert_eq!(
        once(&Request::new(WRITE_ZEROES, 0, &unmap, 0), &through),
        Seen::WriteZeroes(ranges(true), true)
    );
}

#[test]
fn what_makes_no_sense_is_refused_under_its_name() {
    let ranges = |count: usize| vec![range(0, 1, 0); count].concat();
    let sector = [0; 512];
    let table = [
        // No such request.
        (Request::new(2, 0, &[], 0), Refusal::UnknownType),
        (Request::new(10, 0, &[], 6), Refusal::UnknownType),
        (Request::new(14, 0, &ranges(1), 0), Refusal::UnknownType),
        (Request::new(16, 0, &[], 512), Refusal::UnknownType),
        (Request::new(u32::MAX, 0, &[], 0), Refusal::UnknownType),
        (Request::new(1 << 31, 0, &[], 0), Refusal::UnknownType),
        // Beyond the end.
        (Request::new(IN, 1000, &[], 512), Refusal::BeyondEnd),
        (Request::new(IN, 999, &[], 1024), Refusal::BeyondEnd),
        (Request::new(IN, u64::MAX, &[], 512), Refusal::BeyondEnd),
        (Request::new(IN, u64::MAX / 512 + 1, &[], 512), Refusal::BeyondEnd),
        (Request::new(OUT, u64::MAX - 1, &sector, 0), Refusal::BeyondEnd),
        (Request::new(DISCARD, 0, &range(999, 2, 0), 0), Refusal::BeyondEnd),
        (Request::new(WRITE_ZEROES, 0, &range(u64::MAX, 1, 0), 0), Refusal::BeyondEnd),
        // Lengths.
        (Request::new(IN, 0, &[], 0), Refusal::Length),
        (Request::new(IN, 0, &[], 511), Refusal::Length),
        (Request::new(IN, 0, &[], 513), Refusal::Length),
        (Request::new(OUT, 0, &[], 0), Refusal::Length),
        (Request::new(OUT, 0, &[0; 100], 0), Refusal::Length),
        (Request::new(GET_ID, 0, &[], 19), Refusal::Length),
        (Request::new(GET_ID, 0, &[], 21), Refusal::Length),
        (Request::new(DISCARD, 0, &[], 0), Refusal::Length),
        (Request::new(DISCARD, 0, &[0; 15], 0), Refusal::Length),
        (Request::new(WRITE_ZEROES, 0, &[0; 17], 0), Refusal::Length),
        (Request::new(DISCARD, 0, &range(0, 0, 0), 0), Refusal::Length),
        // Limits of ranges.
        (Request::new(DISCARD, 0, &ranges(4), 0), Refusal::SegmentCount),
        (Request::new(WRITE_ZEROES, 0, &ranges(5), 0), Refusal::SegmentCount),
        (Request::new(WRITE_ZEROES, 0, &ranges(60_000), 0), Refusal::SegmentCount),
        (Request::new(DISCARD, 0, &range(0, 101, 0), 0), Refusal::SegmentSize),
        (Request::new(WRITE_ZEROES, 0, &range(0, u32::MAX, 0), 0), Refusal::SegmentSize),
        // Flags: before anything else about the ranges.
        (Request::new(DISCARD, 0, &range(0, 1, 1), 0), Refusal::UnknownFlag),
        (Request::new(DISCARD, 0, &range(0, 1, 2), 0), Refusal::UnknownFlag),
        (Request::new(WRITE_ZEROES, 0, &range(0, 1, 2), 0), Refusal::UnknownFlag),
        (Request::new(WRITE_ZEROES, 0, &range(0, 1, 1 << 31), 0), Refusal::UnknownFlag),
        (
            Request::new(DISCARD, 0, &[range(5000, 1, 0), range(0, 1, 8)].concat(), 0),
            Refusal::UnknownFlag,
        ),
        // The wrong direction.
        (Request::new(IN, 0, &sector, 0), Refusal::Direction),
        (Request::new(IN, 0, &sector, 512), Refusal::Direction),
        (Request::new(OUT, 0, &[], 512), Refusal::Direction),
        (Request::new(DISCARD, 0, &ranges(1), 1), Refusal::Direction),
        // Cut off.
        (Request { readable: vec![0; 15], writable: 513 }, Refusal::NoHeader),
        (Request { readable: vec![], writable: 1 }, Refusal::NoHeader),
    ];
    for (request, expected) in table {
        let row = (request.readable.len(), request.writable, expected);
        assert_eq!(once(&request, &RULES), Seen::Refused(expected), "{row:?}");
    }
}

#[test]
fn without_a_status_byte_the_chain_goes_back_with_length_zero() {
    for kind in [IN, OUT, FLUSH, 99] {
        let request = Request { writable: 0, ..Request::new(kind, 0, &[0; 512], 0) };
        // `send` checks the length.
        let seen = Guest::new(true).send(&request, [&[], &[]], Shape::Direct, &RULES);
        assert_eq!(seen, Seen::Refused(Refusal::NoStatus));
    }
}

#[test]
fn a_read_only_disk_is_not_written() {
    let rules = Rules { read_only: true, discard: None, write_zeroes: None, ..RULES };
    for kind in [OUT, DISCARD, WRITE_ZEROES] {
        let request = Request::new(kind, 0, &[0; 512], 0);
        assert_eq!(once(&request, &rules), Seen::Refused(Refusal::ReadOnly));
    }
    assert_eq!(Refusal::ReadOnly.status(), Status::IoError);
    assert_eq!(once(&Request::new(IN, 0, &[], 512), &rules), Seen::Read(0, 512));
    assert_eq!(once(&Request::new(FLUSH, 0, &[], 0), &rules), Seen::Flush);
}

#[test]
fn what_is_not_offered_is_unsupported() {
    let rules = Rules { discard: None, write_zeroes: None, ..RULES };
    for kind in [DISCARD, WRITE_ZEROES] {
        let request = Request::new(kind, 0, &range(0, 1, 0), 0);
        assert_eq!(once(&request, &rules), Seen::Refused(Refusal::UnknownType));
    }
    assert_eq!(Refusal::UnknownType.status(), Status::Unsupported);
    assert_eq!(Refusal::UnknownFlag.status(), Status::Unsupported);
}

#[test]
fn segments_are_limited_in_number_and_size() {
    let rules = Rules { seg_max: 2, size_max: 512, ..RULES };
    let read = Request::new(IN, 0, &[], 1024);
    let mut guest = Guest::new(false);
    // Borders of header and status do not count.
    let seen = guest.send(&read, [&[1, 5], &[512, 1024]], Shape::Direct, &rules);
    assert_eq!(seen, Seen::Read(0, 1024));
    let seen = guest.send(&read, [&[], &[512]], Shape::Direct, &rules);
    assert_eq!(seen, Seen::Read(0, 1024));
    let seen = guest.send(&read, [&[], &[300, 700]], Shape::Direct, &rules);
    assert_eq!(seen, Seen::Refused(Refusal::SegmentCount));
    let seen = guest.send(&read, [&[], &[511]], Shape::Direct, &rules);
    assert_eq!(seen, Seen::Refused(Refusal::SegmentSize));
    let write = Request::new(OUT, 0, &[0; 1024], 0);
    let seen = guest.send(&write, [&[528], &[]], Shape::Direct, &rules);
    assert_eq!(seen, Seen::Write(0, vec![0; 1024], false));
    let seen = guest.send(&write, [&[16, 400, 700], &[]], Shape::Direct, &rules);
    assert_eq!(seen, Seen::Refused(Refusal::SegmentCount));
}

/// What a guest changes after the request was judged changes nothing.
#[test]
fn ranges_are_read_once() {
    let mut guest = Guest::new(false);
    let request = Request::new(DISCARD, 0, &range(7, 3, 0), 0);
    driver::write(&guest.mem, READABLE, &request.readable);
    let readable = pieces(READABLE, 32, &[]);
    guest.driver.add(&readable, &pieces(WRITABLE, 1, &[]), Shape::Direct).unwrap();
    guest.driver.expose();
    let mut chain = Chain::new();
    assert!(guest.device.pop(&guest.mem, &mut chain).unwrap());
    let mut ranges = Ranges::new();
    let Parsed::Operation(operation) = parse(&guest.mem, &chain, &RULES, &mut ranges) else {
        panic!("refused")
    };
    driver::write(&guest.mem, READABLE, &[0xff; 32]);
    let seen = guest.look(&operation.command);
    assert_eq!(seen, Seen::Discard(vec![Range { sector: 7, sectors: 3, unmap: false }]));
}
