//! Random conversations against a plain model of what must come of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use common::*;
use proptest::prelude::*;
use testkit::frontend::request::*;
use testkit::frontend::{NEED_REPLY, NO_FD, Region, VERSION, inflight_body, message, protocol};
use vhost_session::DeviceSpec;

/// Rings of the device under test, and an index that does not exist.
const RINGS: u32 = 4;

/// One message, described by small numbers so that sequences meet often.
#[derive(Clone, Debug)]
enum Op {
    Features(u64),
    Protocol(u64),
    Num(u32, u32),
    Base(u32, u32),
    Addr(u32, u32, u64),
    Kick(u32, Fd),
    Call(u32, Fd),
    Enable(u32, u32),
    GetBase(u32),
    /// Which of the two regions.
    Table(bool, bool),
    Add(usize),
    Remove(usize),
    Status(u64),
    Reset,
    /// Queues and their size.
    GetInflight(u16, u16),
    SetInflight(Area),
    /// Offset and length.
    GetConfig(u32, u32),
    SetConfig(u32, u32, u32),
    Backend(Fd),
    Get(u32),
    /// Any request with any body.
    Any(u32, Vec<u8>, bool),
}

/// What SET_INFLIGHT_FD says.
#[derive(Clone, Copy, Debug)]
struct Area {
    queues: u16,
    size: u16,
    offset: u64,
    /// Bytes said to be there.
    length: u64,
    /// A memfd of 4096 bytes, or a pipe.
    memfd: bool,
}

#[derive(Clone, Copy, Debug)]
enum Fd {
    Event,
    Pipe,
    Socket,
    None,
}

/// A device that has everything.
fn everything() -> DeviceSpec {
    DeviceSpec { config_size: 10, inflight: true, ..spec() }
}

/// What it offers.
const OFFERED: u64 = protocol::NET | protocol::BLOCK;

/// Two regions: rings 0 and 1 lie in the first, 2 and 3 in the second.
fn regions() -> &'static [Region; 2] {
    static REGIONS: OnceLock<[Region; 2]> = OnceLock::new();
    REGIONS.get_or_init(|| [region(BASE, SIZE), region(BASE + 4 * SIZE, SIZE)])
}

/// Where the model puts a ring: its own place, or (`where_to` 1) one that is in no region, or (2) a misaligned one.
fn place(queue: u32, where_to: u32) -> u64 {
    let offset = u64::from(queue % 2) * 0x1_0000 + if queue >= 2 { 4 * SIZE } else { 0 };
    user(offset) + [0, 2 * SIZE, 1][where_to as usize]
}

impl Op {
    fn request(&self) -> u32 {
        match self {
            Op::Features(_) => SET_FEATURES,
            Op::Protocol(_) => SET_PROTOCOL_FEATURES,
            Op::Num(..) => SET_VRING_NUM,
            Op::Base(..) => SET_VRING_BASE,
            Op::Addr(..) => SET_VRING_ADDR,
            Op::Kick(..) => SET_VRING_KICK,
            Op::Call(..) => SET_VRING_CALL,
            Op::Enable(..) => SET_VRING_ENABLE,
            Op::GetBase(_) => GET_VRING_BASE,
            Op::Table(..) => SET_MEM_TABLE,
            Op::Add(_) => ADD_MEM_REG,
            Op::Remove(_) => REM_MEM_REG,
            Op::Status(_) => SET_STATUS,
            Op::Reset => RESET_DEVICE,
            Op::GetInflight(..) => GET_INFLIGHT_FD,
            Op::SetInflight(_) => SET_INFLIGHT_FD,
            Op::GetConfig(..) => GET_CONFIG,
            Op::SetConfig(..) => SET_CONFIG,
            Op::Backend(_) => SET_BACKEND_REQ_FD,
            Op::Get(request) | Op::Any(request, ..) => *request,
        }
    }

    fn body(&self) -> Vec<u8> {
        match self {
            Op::Features(bits) | Op::Protocol(bits) | Op::Status(bits) => n(*bits).to_vec(),
            Op::Num(queue, value) | Op::Base(queue, value) | Op::Enable(queue, value) => {
                pair(*queue, *value).to_vec()
            }
            Op::Addr(queue, flags, where_to) => {
                let desc = place(*queue, *where_to as u32);
                addr(*queue, *flags, desc, desc + 0x1000, desc + 0x2000)
            }
            Op::Kick(queue, fd) | Op::Call(queue, fd) => {
                n(u64::from(*queue) | if matches!(fd, Fd::None) { NO_FD } else { 0 }).to_vec()
            }
            Op::GetBase(queue) => pair(*queue, 0).to_vec(),
            Op::Table(..) => table(&self.table()),
            Op::Add(which) | Op::Remove(which) => single(&regions()[*which]),
            Op::Reset | Op::Get(_) | Op::Backend(_) => vec![],
            Op::GetInflight(queues, size) => inflight_body(0, 0, *queues, *size),
            Op::SetInflight(Area { queues, size, offset, length, .. }) => {
                inflight_body(*length, *offset, *queues, *size)
            }
            Op::GetConfig(offset, size) => [*offset, *size, 0].map(u32::to_ne_bytes).concat(),
            Op::SetConfig(offset, size, flags) => {
                let head = [*offset, *size, *flags].map(u32::to_ne_bytes).concat();
                [head, vec![7; (*size).min(100) as usize]].concat()
            }
            Op::Any(_, body, _) => body.clone(),
        }
    }

    fn fds(&self) -> Vec<OwnedFd> {
        match self {
            Op::Kick(_, fd) | Op::Call(_, fd) | Op::Backend(fd) => match fd {
                Fd::Event => event(),
                Fd::Pipe => pipe(),
                Fd::Socket => vec![UnixStream::pair().unwrap().0.into()],
                Fd::None => vec![],
            },
            Op::Any(_, _, true) => event(),
            Op::SetInflight(Area { memfd: true, .. }) => {
                vec![sys::memfd("inflight", 4096, false).unwrap()]
            }
            Op::SetInflight(_) => pipe(),
            Op::Table(..) => fds(&self.table()),
            Op::Add(which) => fds(&[&regions()[*which]]),
            _ => vec![],
        }
    }

    fn table(&self) -> Vec<&'static Region> {
        let Op::Table(first, second) = self else { return vec![] };
        let [low, high] = regions();
        [(first, low), (second, high)].iter().filter(|(on, _)| **on).map(|(_, r)| *r).collect()
    }
}

fn ops() -> impl Strategy<Value = Op> {
    let queue = || prop_oneof![20 => 0..RINGS, 1 => Just(RINGS)];
    let fd = || prop_oneof![4 => Just(Fd::Event), 1 => Just(Fd::Pipe), 1 => Just(Fd::None)];
    let features = prop_oneof![
        4 => Just(SPLIT), 2 => Just(PACKED), 1 => Just(1 << 32), 1 => Just(1 << 50)
    ];
    let size = prop_oneof![6 => Just(16u32), 1 => Just(17), 1 => Just(0), 1 => Just(40000)];
    let base = prop_oneof![4 => Just(0u32), 1 => Just(0x8000), 1 => Just(0x1_0000)];
    prop_oneof![
        2 => features.prop_map(Op::Features),
        1 => prop_oneof![10 => Just(OFFERED), 1 => Just(0), 2 => Just(1 << 30)].prop_map(Op::Protocol),
        4 => (queue(), size).prop_map(|(q, v)| Op::Num(q, v)),
        2 => (queue(), base).prop_map(|(q, v)| Op::Base(q, v)),
        6 => (queue(), prop_oneof![9 => Just(0), 1 => Just(1)], prop_oneof![8 => Just(0), 1 => 0..3u64])
            .prop_map(|(q, f, w)| Op::Addr(q, f, w)),
        8 => (queue(), fd()).prop_map(|(q, f)| Op::Kick(q, f)),
        2 => (queue(), fd()).prop_map(|(q, f)| Op::Call(q, f)),
        2 => (queue(), 0..3u32).prop_map(|(q, v)| Op::Enable(q, v)),
        4 => queue().prop_map(Op::GetBase),
        4 => any::<(bool, bool)>().prop_map(|(a, b)| Op::Table(a, b)),
        3 => (0..2usize).prop_map(Op::Add),
        2 => (0..2usize).prop_map(Op::Remove),
        1 => prop_oneof![Just(0), Just(0xfu64), Just(0x100)].prop_map(Op::Status),
        1 => Just(Op::Reset),
        1 => (rings(), sizes()).prop_map(|(queues, size)| Op::GetInflight(queues, size)),
        5 => area().prop_map(Op::SetInflight),
        1 => (0..12u32, prop_oneof![6 => 0..12u32, 1 => Just(250), 1 => Just(u32::MAX)])
            .prop_map(|(o, s)| Op::GetConfig(o, s)),
        1 => (0..12u32, prop_oneof![6 => 0..4u32, 1 => Just(u32::MAX)], 0..3u32)
            .prop_map(|(o, s, f)| Op::SetConfig(o, s, f)),
        1 => prop_oneof![Just(Fd::Socket), Just(Fd::Event), Just(Fd::Pipe)].prop_map(Op::Backend),
        2 => prop_oneof![Just(GET_FEATURES), Just(GET_STATUS), Just(GET_MAX_MEM_SLOTS)]
            .prop_map(Op::Get),
        1 => (0..50u32, prop::collection::vec(any::<u8>(), 0..64), any::<bool>())
            .prop_map(|(r, b, f)| Op::Any(r, b, f)),
    ]
}

fn rings() -> impl Strategy<Value = u16> {
    prop_oneof![4 => Just(4u16), 2 => 1..4u16, 1 => Just(0), 1 => Just(5)]
}

fn sizes() -> impl Strategy<Value = u16> {
    prop_oneof![4 => 16..18u16, 1 => Just(15), 1 => Just(0), 1 => Just(32769)]
}

fn area() -> impl Strategy<Value = Area> {
    let offset = prop_oneof![8 => Just(0u64), 2 => Just(8), 1 => Just(4), 1 => Just(1 << 20)];
    let off = prop_oneof![6 => Just(0i64), 2 => Just(-1), 1 => Just(i64::MAX)];
    (rings(), sizes(), offset, off, any::<bool>(), prop::bool::weighted(0.9)).prop_map(
        |(queues, size, offset, off, packed, memfd)| {
            let length = (u64::from(queues) * room(packed, size)).saturating_add_signed(off);
            Area { queues, size, offset, length, memfd }
        },
    )
}

/// Bytes of the region of one queue, from the specification: header, entries, in whole lines of 64 bytes.
fn room(packed: bool, size: u16) -> u64 {
    let (header, entry) = if packed { (32, 32) } else { (16, 16) };
    (header + entry * u64::from(size)).next_multiple_of(64)
}

/// What the model knows of a ring.
#[derive(Clone, Default)]
struct Ring {
    size: u32,
    place: Option<u64>,
    base: u32,
    kicked: bool,
}

/// The protocol as its specification tells it, without any of the machinery.
struct Model {
    reply_ack: bool,
    slots: bool,
    status: bool,
    features: u64,
    rings: Vec<Ring>,
    /// Whether each of the two regions is in the table.
    table: [bool; 2],
    disk: bool,
    /// Queues, their size, and how many bytes are mapped.
    inflight: Option<(u16, u16, u64)>,
}

impl Model {
    fn new() -> Model {
        Model {
            reply_ack: false,
            slots: false,
            status: false,
            features: 0,
            rings: vec![Ring::default(); RINGS as usize],
            table: [false; 2],
            disk: false,
            inflight: None,
        }
    }

    /// Whether the ring, which can run, has room for its requests in flight.
    fn roomy(&self, queue: usize) -> bool {
        let Some((queues, size, mapped)) = self.inflight else { return true };
        let end = (queue as u64 + 1) * room(self.packed(), size);
        queue < queues.into() && self.rings[queue].size <= size.into() && end <= mapped
    }

    fn packed(&self) -> bool {
        self.features >> 34 & 1 != 0
    }

    /// Whether the ring is described in full and the table is there.
    fn complete(&self, queue: usize) -> bool {
        let ring = &self.rings[queue];
        ring.size > 0 && ring.place.is_some() && self.table != [false; 2]
    }

    fn covered(&self, queue: usize, table: [bool; 2]) -> bool {
        table[queue / 2] && self.rings[queue].place == Some(0)
    }

    /// Whether size and position are those of a ring that can run.
    fn sound(&self, queue: usize) -> bool {
        let ring = &self.rings[queue];
        let aligned = ring.place != Some(2);
        let size = self.packed() || ring.size.is_power_of_two();
        let base = if self.packed() {
            (ring.base & 0x7fff) < ring.size && (ring.base >> 16 & 0x7fff) < ring.size
        } else {
            ring.base < 0x1_0000
        };
        size && base && aligned
    }

    fn running(&self, queue: usize) -> bool {
        self.rings[queue].kicked && self.complete(queue) && self.covered(queue, self.table)
    }

    fn any_running(&self) -> bool {
        (0..self.rings.len()).any(|queue| self.running(queue))
    }

    /// A ring that has been described further: whether it can go on, kicked or not.
    fn settle(&mut self, queue: usize) -> bool {
        let fine = !self.rings[queue].kicked
            || !self.complete(queue)
            || (self.sound(queue) && self.covered(queue, self.table) && self.roomy(queue));
        if !fine {
            self.rings[queue].kicked = false;
        }
        fine
    }

    /// Applies a message; whether it must be granted.
    fn apply(&mut self, op: &Op) -> bool {
        let index = match op {
            Op::Num(q, _) | Op::Base(q, _) | Op::Addr(q, ..) | Op::Kick(q, _) => Some(*q),
            Op::Call(q, _) | Op::Enable(q, _) | Op::GetBase(q) => Some(*q),
            _ => None,
        };
        if index.is_some_and(|index| index >= RINGS) {
            return false;
        }
        let queue = index.unwrap_or(0) as usize;
        match op {
            Op::Features(bits) => {
                let offered = everything().features | 1 << 30;
                let fine = bits & !offered == 0 && (!self.any_running() || *bits == self.features);
                if fine {
                    self.features = *bits;
                }
                fine
            }
            Op::Protocol(bits) => {
                let fine = bits & !OFFERED == 0;
                if fine {
                    self.reply_ack = bits & protocol::REPLY_ACK != 0;
                    self.slots = bits & protocol::CONFIGURE_MEM_SLOTS != 0;
                    self.status = bits & protocol::STATUS != 0;
                    self.disk = bits & protocol::CONFIG != 0;
                }
                fine
            }
            Op::Num(_, size) => {
                if *size > 32768 || self.running(queue) && self.rings[queue].size != *size {
                    return false;
                }
                self.rings[queue].size = *size;
                self.settle(queue)
            }
            Op::Base(_, base) => {
                if self.running(queue) {
                    return false;
                }
                self.rings[queue].base = *base;
                self.settle(queue)
            }
            Op::Addr(_, flags, place) => {
                let same = self.rings[queue].place == Some(*place);
                if *flags != 0 || self.running(queue) && !same {
                    return false;
                }
                self.rings[queue].place = Some(*place);
                self.settle(queue)
            }
            Op::Kick(_, Fd::Pipe | Fd::Socket) | Op::Call(_, Fd::Pipe | Fd::Socket) => false,
            Op::Kick(..) => {
                if self.running(queue) {
                    self.rings[queue].base = STOPPED_AT;
                }
                self.rings[queue].kicked = true;
                self.settle(queue)
            }
            Op::Call(..) => true,
            Op::Enable(_, value) => *value < 2,
            Op::GetBase(_) => {
                if self.running(queue) {
                    self.rings[queue].base = STOPPED_AT;
                }
                self.rings[queue].kicked = false;
                true
            }
            Op::Table(first, second) => {
                let table = [*first, *second];
                let fits = (0..self.rings.len()).all(|queue| {
                    let ring = &self.rings[queue];
                    let described = ring.size > 0 && ring.place.is_some();
                    !ring.kicked || !described || (self.covered(queue, table) && self.sound(queue))
                });
                let fine = table != [false; 2] && fits;
                fine && self.change(table)
            }
            Op::Add(which) => {
                let mut table = self.table;
                let fine = self.slots && !table[*which];
                table[*which] = true;
                fine && self.change(table)
            }
            Op::Remove(which) => {
                let mut table = self.table;
                let fine = self.slots && table[*which];
                table[*which] = false;
                fine && self.change(table)
            }
            Op::Status(status) => {
                let fine = self.status && *status < 0x100;
                if fine && *status == 0 {
                    self.reset();
                }
                fine
            }
            Op::Reset => {
                self.reset();
                true
            }
            Op::GetInflight(queues, size) => self.disk && sane(*queues, *size),
            Op::SetInflight(Area { queues, size, offset, length, memfd }) => {
                let needed = u64::from(*queues) * room(self.packed(), *size);
                let fits = *memfd && offset + needed <= 4096;
                let said = *length >= needed && offset % 8 == 0;
                let fine = self.disk && !self.any_running() && sane(*queues, *size) && said && fits;
                if fine {
                    self.inflight = Some((*queues, *size, needed));
                }
                fine
            }
            Op::GetConfig(offset, size) => {
                self.disk && *size > 0 && u64::from(*offset) + u64::from(*size) <= 256
            }
            Op::SetConfig(offset, size, flags) => {
                self.disk && *flags < 2 && (*offset, *size) == (0, 1)
            }
            Op::Backend(fd) => self.disk && matches!(fd, Fd::Socket),
            Op::Get(GET_STATUS) => self.status,
            Op::Get(GET_MAX_MEM_SLOTS) => self.slots,
            Op::Get(_) => true,
            Op::Any(..) => unreachable!(),
        }
    }

    /// Another memory table; whether every ring that is to run now can.
    fn change(&mut self, table: [bool; 2]) -> bool {
        for queue in 0..self.rings.len() {
            if self.running(queue) {
                self.rings[queue].base = STOPPED_AT;
            }
        }
        self.table = table;
        let mut fine = true;
        for queue in 0..self.rings.len() {
            let kicked = self.rings[queue].kicked && self.complete(queue);
            // Misalignment, size and descriptor area come before coverage, which is only a reason to wait.
            let runs = self.sound(queue) && self.covered(queue, self.table);
            let wrong = !self.sound(queue) && self.blames(queue) || runs && !self.roomy(queue);
            if kicked && wrong {
                self.rings[queue].kicked = false;
                fine = false;
            }
        }
        fine
    }

    /// Whether an unsound ring is found unsound before it is found uncovered.
    fn blames(&self, queue: usize) -> bool {
        let ring = &self.rings[queue];
        let size = !self.packed() && !ring.size.is_power_of_two();
        size || ring.place == Some(2) || self.covered(queue, self.table)
    }

    fn reset(&mut self) {
        self.rings.fill(Ring::default());
        self.inflight = None;
    }
}

/// Whether a device of four rings may have so many, of this size.
fn sane(queues: u16, size: u16) -> bool {
    (1..=4).contains(&queues) && (1..=32768).contains(&size)
}

/// Requests that are answered without being asked to acknowledge.
fn answers_itself(request: u32) -> bool {
    [
        GET_FEATURES,
        GET_PROTOCOL_FEATURES,
        GET_QUEUE_NUM,
        GET_VRING_BASE,
        GET_CONFIG,
        GET_INFLIGHT_FD,
        GET_MAX_MEM_SLOTS,
        GET_STATUS,
        IOTLB_MSG,
        POSTCOPY_END,
        SET_DEVICE_STATE_FD,
        CHECK_DEVICE_STATE,
    ]
    .contains(&request)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Rings run exactly when they should, requests are granted exactly when they should be, and every request has
    /// exactly the answers it may have.
    #[test]
    fn conversations_follow_the_model(
        start in prop_oneof![Just(SPLIT), Just(PACKED)],
        ops in prop::collection::vec((ops(), prop::bool::weighted(0.97)), 1..80),
    ) {
        let mut host = Host::with(everything());
        host.negotiate_with(start, OFFERED);
        let mut model = Model::new();
        model.features = start;
        (model.reply_ack, model.slots, model.status, model.disk) = (true, true, true, true);
        for (op, need_reply) in ops {
            if matches!(op, Op::Any(..)) {
                continue;
            }
            let request = op.request();
            let flags = VERSION | if need_reply { NEED_REPLY } else { 0 };
            let log = host.give(&message(request, flags, &op.body()), op.fds());
            let granted = model.apply(&op);
            let sent: Vec<&String> = log.iter().filter(|line| line.starts_with("send")).collect();
            let acked = need_reply && model.reply_ack;
            if request == GET_CONFIG {
                prop_assert_eq!(sent.len(), 1);
                prop_assert_eq!(granted, sent[0] != "send 24 []", "{:?} {:?}", op, log);
            } else if answers_itself(request) {
                prop_assert_eq!(granted, sent.len() == 1, "{:?} {:?}", op, log);
            } else if granted {
                let expect: Vec<String> =
                    if acked { vec![format!("send {request} 0")] } else { vec![] };
                prop_assert_eq!(sent, expect.iter().collect::<Vec<_>>(), "{:?} {:?}", op, log);
            } else if acked {
                prop_assert_eq!(sent, [&format!("send {request} 1")], "{:?} {:?}", op, log);
            }
            // Refusals for which the guest may be to blame cost it nothing.
            let ends = ![GET_CONFIG, SET_CONFIG].contains(&request);
            let cannot_say = answers_itself(request) || !acked;
            prop_assert_eq!(host.closed, !granted && cannot_say && ends, "{:?} {:?}", op, log);
            if host.closed {
                prop_assert!(host.session.poll().is_none());
                prop_assert_eq!(host.session.wanted(), 0);
                break;
            }
            let running: Vec<u16> = host.session.running().collect();
            let expect: Vec<u16> = (0..4).filter(|q| model.running(usize::from(*q))).collect();
            prop_assert_eq!(running, expect, "{:?} {:?}", op, log);
            let tells = model.disk && model.any_running();
            prop_assert_eq!(host.session.tells_changes(), tells, "{:?} {:?}", op, log);
            if let Some(setup) = host.last_start.take() {
                let told = setup.inflight.map(|area| area.len() as u64);
                let known = model.inflight.map(|(_, size, _)| room(model.packed(), size));
                prop_assert_eq!(told, known, "{:?} {:?}", op, log);
            }
        }
    }

    /// However the bytes are cut, the same comes of them; whatever they are, nothing panics.
    #[test]
    fn pieces_do_not_matter(
        ops in prop::collection::vec((ops(), prop::bool::weighted(0.9)), 1..20),
        cuts in prop::collection::vec(1..40usize, 1..20),
    ) {
        let mut whole = Host::with(everything());
        let mut cut = Host::with(everything());
        for host in [&mut whole, &mut cut] {
            host.negotiate_with(SPLIT, OFFERED);
        }
        let mut cuts = cuts.iter().cycle();
        for (op, need_reply) in ops {
            let flags = VERSION | if need_reply { NEED_REPLY } else { 0 };
            let bytes = message(op.request(), flags, &op.body());
            whole.give(&bytes, op.fds());
            let mut rest = bytes.as_slice();
            let mut descriptors = op.fds();
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                cut.give(piece, std::mem::take(&mut descriptors));
                rest = more;
            }
            prop_assert_eq!(&whole.log, &cut.log);
        }
    }

    /// Bytes without any sense.
    #[test]
    fn noise_ends_in_a_named_fault(
        noise in prop::collection::vec(any::<u8>(), 12..4096),
        with_fds in 0..4usize,
    ) {
        let mut host = Host::new();
        host.session.input(&noise, (0..with_fds).flat_map(|_| pipe()).collect());
        host.run();
        prop_assert!(host.closed || host.session.is_mid_message());
    }
}
