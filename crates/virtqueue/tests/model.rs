//! Random work on both ends of a ring, against a plain model: contents, order, lengths, wrap,
//! rewind and restart, and no notification lost or sent for nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod common;

use common::{DATA, RING, World, bytes, config, fill};
use proptest::prelude::*;
use testkit::driver::{self, Buffer, RingSpec, Shape};
use virtqueue::{Chain, Next, Position, Queue, Used};

#[derive(Clone, Debug)]
enum Op {
    /// Driver: add a chain of buffers with these lengths.
    Add {
        readable: Vec<u16>,
        writable: Vec<u16>,
        shape: u8,
    },
    Expose,
    /// Driver: decide about a kick.
    Kick,
    Collect(u8),
    /// Driver: arm the interrupt for so many used, unless there is something already.
    DriverSleep(u8),
    DriverPoll,
    Pop(u8),
    /// Device: complete so many popped chains as one frame, filled in part.
    Complete {
        chains: u8,
        percent: u8,
    },
    Publish,
    /// Device: publish and decide about an interrupt.
    Notify,
    /// Device: give back so many popped chains.
    Rewind(u8),
    DeviceSleep,
    DevicePoll,
    /// A new device takes over where this one is.
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let lens = || prop::collection::vec(1u16..200, 0..5);
    let op = prop_oneof![
        8 => (lens(), lens(), 0u8..4)
            .prop_map(|(readable, writable, shape)| Op::Add { readable, writable, shape }),
        6 => Just(Op::Expose),
        3 => Just(Op::Kick),
        5 => (0u8..6).prop_map(Op::Collect),
        2 => (0u8..8).prop_map(Op::DriverSleep),
        1 => Just(Op::DriverPoll),
        8 => (1u8..5).prop_map(Op::Pop),
        6 => (1u8..4, 0u8..=100).prop_map(|(chains, percent)| Op::Complete { chains, percent }),
        3 => Just(Op::Publish),
        4 => Just(Op::Notify),
        1 => (1u8..4).prop_map(Op::Rewind),
        2 => Just(Op::DeviceSleep),
        1 => Just(Op::DevicePoll),
        1 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..250)
}

fn specs() -> impl Strategy<Value = RingSpec> {
    let ring =
        prop_oneof![
            (0u32..7, prop_oneof![Just(0u16), any::<u16>(), 65500u16..])
                .prop_map(|(order, start)| (false, 1u16 << order, start)),
            (1u16..40, any::<u16>(), any::<bool>()).prop_map(|(size, at, wrap)| (
                true,
                size,
                (at % size) | (u16::from(wrap) << 15)
            )),
        ];
    (ring, any::<bool>(), any::<bool>(), prop_oneof![Just(0u16), Just(16)]).prop_map(
        |((packed, size, start), event_idx, in_order, table_len)| RingSpec {
            event_idx,
            in_order,
            start,
            table_len,
            ..RingSpec::new(packed, size, RING)
        },
    )
}

/// One chain, as the model knows it.
struct Known {
    token: u16,
    /// What the readable buffers hold.
    sent: Vec<u8>,
    writable: Vec<Buffer>,
    /// Its place in the data area.
    slot: u64,
    /// Ring descriptors (split: avail entries) it takes.
    ring_descs: usize,
    /// Ring descriptors, once popped.
    descs: u16,
    /// What the device wrote, once completed.
    written: Vec<u8>,
}

/// What one side asked the other for.
#[derive(Clone, Copy, PartialEq)]
enum Wish {
    /// Asleep: a notification is due once more than this many units have passed.
    After(u32),
    /// Polling: no notification wanted, none expected.
    Never,
    /// It was notified, and has not asked again.
    Fulfilled,
    /// Anything goes.
    Whatever,
}

/// Chains in ring order, and how many of them (from the oldest) have come how far.
struct Model {
    world: World,
    chains: Vec<Known>,
    positions: Vec<Position>,
    published: usize,
    completed: usize,
    popped: usize,
    exposed: usize,
    slots: Vec<u64>,
    serial: u8,
    /// What the device wants of the driver, and whether the driver has to fulfil it.
    kick_wish: Wish,
    kick_due: bool,
    /// Chains exposed since the last kick decision.
    kick_late: usize,
    /// What the driver wants of the device, and units shown to it since.
    irq_wish: Wish,
    irq_units: u32,
    irq_shown: u32,
    /// Units shown since the last interrupt decision.
    undecided: u32,
    /// No interrupt decision yet since the start.
    fresh: bool,
}

impl Model {
    fn new(spec: &RingSpec) -> Model {
        Model {
            world: World::new(spec),
            chains: Vec::new(),
            positions: Vec::new(),
            published: 0,
            completed: 0,
            popped: 0,
            exposed: 0,
            slots: (0..=u64::from(spec.size) * 2).collect(),
            serial: 0,
            kick_wish: Wish::After(0),
            kick_due: false,
            kick_late: 0,
            // A new packed ring wants all interrupts, by flag.
            irq_wish: if spec.packed { Wish::Whatever } else { Wish::After(0) },
            irq_units: 0,
            irq_shown: 0,
            undecided: 0,
            fresh: true,
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Add { ref readable, ref writable, shape } => self.add(readable, writable, shape),
            Op::Expose => self.expose(),
            Op::Kick => self.kick(),
            Op::Collect(n) => (0..n).for_each(|_| self.collect()),
            Op::DriverSleep(skip) => self.driver_sleep(skip),
            Op::DriverPoll => {
                self.world.driver.disable_interrupts();
                self.irq_wish = Wish::Never;
            }
            Op::Pop(n) => self.pop(n.into()),
            Op::Complete { chains, percent } => self.complete(chains.into(), percent.into()),
            Op::Publish => self.publish(),
            Op::Notify => self.notify(),
            Op::Rewind(n) => self.rewind(n.into()),
            Op::DeviceSleep => self.device_sleep(),
            Op::DevicePoll => {
                self.world.device.disable_kicks();
                self.wish_kick(Wish::Never);
            }
            Op::Restart => self.restart(),
        }
        assert_eq!(self.world.driver.outstanding(), self.chains.len());
    }

    fn add(&mut self, readable: &[u16], writable: &[u16], shape: u8) {
        let packed = self.world.driver.spec().packed;
        let shape = match shape {
            0 | 1 => Shape::Direct,
            3 if !packed && !readable.is_empty() => Shape::Mixed(1),
            _ => Shape::Indirect,
        };
        let Some(&slot) = self.slots.last() else { return };
        let mut gpa = DATA + slot * 2048;
        let mut place = |lens: &[u16]| {
            let lay = |&len: &u16| {
                let buffer = Buffer { gpa, len: len.into() };
                gpa += u64::from(len);
                buffer
            };
            lens.iter().map(lay).collect::<Vec<_>>()
        };
        let (readable, writable) = (place(readable), place(writable));
        let indirect = shape == Shape::Indirect;
        let ring_descs = if !packed || indirect { 1 } else { readable.len() + writable.len() };
        let Some(token) = self.world.driver.add(&readable, &writable, shape) else { return };
        self.slots.pop();
        let mut sent = Vec::new();
        for buffer in &readable {
            self.serial = self.serial.wrapping_add(1);
            let data: Vec<u8> = (0..buffer.len as u8).map(|i| i ^ self.serial).collect();
            assert!(driver::write(&self.world.mem, buffer.gpa, &data));
            sent.extend(data);
        }
        self.chains.push(Known {
            token,
            sent,
            writable,
            slot,
            ring_descs,
            descs: 0,
            written: vec![],
        });
    }

    fn expose(&mut self) {
        self.world.driver.expose();
        if self.exposed < self.chains.len() && matches!(self.kick_wish, Wish::After(_)) {
            // A wish by index is fulfilled once, a wish by flag stands.
            self.wish_kick(Wish::Whatever);
            self.kick_due = true;
        }
        let late = self.chains[self.exposed..].iter().map(|known| known.ring_descs);
        self.kick_late += late.sum::<usize>();
        self.exposed = self.chains.len();
    }

    fn wish_kick(&mut self, wish: Wish) {
        self.kick_wish = wish;
        self.kick_due = false;
    }

    fn kick(&mut self) {
        let kick = self.world.driver.kick_needed();
        assert!(kick || !self.kick_due, "the device sleeps and the driver does not kick");
        // A driver that decides for more than a lap at once may take any index for passed.
        let excused = self.kick_late >= usize::from(self.world.driver.spec().size);
        let polls = self.kick_wish == Wish::Never;
        assert!(!kick || !polls || excused, "the device polls and the driver kicks");
        self.kick_due = false;
        self.kick_late = 0;
    }

    fn device_sleep(&mut self) {
        let available = self.world.device.enable_kicks();
        assert_eq!(available, self.exposed > self.popped);
        assert_eq!(available, self.world.device.has_available());
        self.wish_kick(if available { Wish::Whatever } else { Wish::After(0) });
    }

    /// Several at once are what they are one by one, and are given back again; all but the last may be taken.
    fn pop_few(&mut self, count: usize) {
        let World { device, mem, .. } = &mut self.world;
        let (before, mut few) = (device.position(), Vec::new());
        let end = device.next_few(mem, count as u16, |buffer, id, writable| {
            let takes = few.len() + 1 < count;
            if takes {
                few.push((buffer.len(), id, writable));
            }
            takes
        });
        let (after, end) = (device.position(), end.expect("the driver is honest"));
        device.rewind(before);
        for one in &few {
            let Ok(Next::One { buffer, id, writable }) = device.next(mem) else {
                panic!("{one:?} is not there by itself");
            };
            assert_eq!((buffer.len(), id, writable), *one);
        }
        assert_eq!(device.position(), after);
        match end {
            Next::One { .. } => assert_eq!(few.len() + 1, count),
            // Perhaps more are known of after another look; but not before the first.
            Next::Empty | Next::Chain if count > 1 && few.is_empty() => {
                assert!(!matches!(device.next(mem), Ok(Next::One { .. })));
            }
            Next::Empty | Next::Chain => {}
        }
        device.rewind(before);
    }

    fn pop(&mut self, count: usize) {
        self.pop_few(count);
        for _ in 0..count {
            let mem = &self.world.mem;
            let before = self.world.device.position();
            if let Ok(Next::One { .. }) = self.world.device.next(mem) {
                self.world.device.put_back();
                assert_eq!(self.world.device.position(), before);
            }
            let mut chain = Chain::new();
            let found = self.world.device.pop(mem, &mut chain).expect("the driver is honest");
            assert_eq!(found, self.popped < self.exposed);
            if !found {
                return;
            }
            let known = &mut self.chains[self.popped];
            assert_eq!(chain.id, known.token);
            assert_eq!(bytes(chain.readable()), known.sent);
            assert_eq!(chain.readable_len() as usize, known.sent.len());
            let lens = |all: &[Buffer]| all.iter().map(|b| b.len as usize).collect::<Vec<_>>();
            let got: Vec<_> = chain.writable().iter().map(guestmem::GuestSlice::len).collect();
            assert_eq!(got, lens(&known.writable));
            assert_eq!(chain.writable_len() as usize, got.iter().sum::<usize>());
            known.descs = chain.descs;
            self.positions.push(before);
            self.popped += 1;
        }
    }

    fn rewind(&mut self, count: usize) {
        let count = count.min(self.popped - self.completed);
        let keep = self.positions.len() - count;
        if let Some(&to) = self.positions.get(keep) {
            self.world.device.rewind(to);
            self.positions.truncate(keep);
            self.popped -= count;
        }
    }

    fn complete(&mut self, count: usize, percent: usize) {
        let count = count.min(self.popped - self.completed);
        // To write into chains popped earlier, look at them again.
        let resume = self.world.device.position();
        if let Some(&first) = self.positions.first() {
            self.world.device.rewind(first);
        }
        let mut used = Vec::new();
        for known in &mut self.chains[self.completed..self.completed + count] {
            let mut chain = Chain::new();
            assert!(self.world.device.pop(&self.world.mem, &mut chain).unwrap());
            let len = chain.writable_len() as usize * percent / 100;
            self.serial = self.serial.wrapping_add(1);
            known.written = (0..len).map(|i| i as u8 ^ self.serial).collect();
            assert_eq!(fill(&chain, &known.written) as usize, len);
            used.push(Used { id: known.token, descs: known.descs, len: len as u32 });
            assert_eq!(chain.used(len as u32), *used.last().unwrap());
        }
        self.world.device.rewind(resume);
        self.positions.drain(..count);
        if percent % 2 == 1 && used.iter().all(|one| one.descs == 1) {
            self.world.device.complete_each(used.iter().map(|one| (one.id, one.len)));
        } else {
            self.world.device.complete(&used);
        }
        self.completed += count;
    }

    /// Completed chains, up to that many, become visible to the driver.
    fn show(&mut self, until: usize) {
        for known in &self.chains[self.published..until] {
            self.irq_shown += 1;
            let packed = self.world.driver.spec().packed;
            let units = if packed { known.descs.into() } else { 1 };
            self.irq_units += units;
            self.undecided += units;
        }
        self.published = until;
    }

    fn publish(&mut self) {
        self.world.device.publish();
        self.show(self.completed);
    }

    fn notify(&mut self) {
        self.publish();
        let irq = self.world.device.should_notify();
        let RingSpec { event_idx, size, packed, .. } = *self.world.driver.spec();
        let unique = if packed { 2 * u32::from(size) } else { 65536 };
        match self.irq_wish {
            Wish::After(skip) => {
                let skip = if event_idx { skip } else { 0 };
                let due = self.irq_shown > 0 && self.irq_units > skip;
                // A flag cannot tell old from new. An index can, unless one as far ahead as it may
                // be looks like one passed long before.
                let known = if event_idx { unique - u32::from(size) } else { 0 };
                let excused = self.fresh || self.undecided > known;
                assert!(irq || !due, "the driver sleeps and gets no interrupt");
                assert!(!irq || due || excused, "an interrupt for nothing");
                if irq && due {
                    // A wish by index is fulfilled once, a wish by flag stands.
                    self.irq_wish = if event_idx { Wish::Fulfilled } else { Wish::Whatever };
                }
            }
            // With a split ring and event-idx "never" is an index far away, one lap and more.
            Wish::Never => {
                let excused = self.fresh || self.undecided > size.into();
                assert!(!irq || excused, "an interrupt for a driver that polls");
            }
            Wish::Fulfilled => {
                let excused = self.fresh || self.irq_units > unique;
                assert!(!irq || excused, "a second interrupt for one wish");
            }
            Wish::Whatever => {}
        }
        self.fresh = false;
        self.undecided = 0;
    }

    fn driver_sleep(&mut self, skip: u8) {
        let skip = u16::from(skip).min(self.world.driver.spec().size - 1);
        let pending = self.world.driver.enable_interrupts_after(skip);
        assert!(self.may_be_seen(pending));
        self.irq_wish = if pending { Wish::Whatever } else { Wish::After(skip.into()) };
        self.irq_units = 0;
        self.irq_shown = 0;
    }

    /// What was published is seen; a packed ring may show what was completed before that.
    fn may_be_seen(&self, seen: bool) -> bool {
        let packed = self.world.driver.spec().packed;
        seen == (self.published > 0) || seen && packed && self.completed > 0
    }

    fn collect(&mut self) {
        let got = self.world.driver.collect().expect("the device is honest");
        assert!(self.may_be_seen(got.is_some()));
        let Some(got) = got else { return };
        self.show(self.published.max(1));
        let known = self.chains.remove(0);
        assert_eq!(got.token, known.token);
        assert_eq!(got.len as usize, known.written.len());
        let read = |b: &Buffer| driver::read(&self.world.mem, b.gpa, b.len).unwrap();
        let all: Vec<u8> = known.writable.iter().flat_map(read).collect();
        assert_eq!(all[..known.written.len()], known.written[..]);
        self.slots.push(known.slot);
        self.published -= 1;
        self.completed -= 1;
        self.popped -= 1;
        self.exposed -= 1;
    }

    fn restart(&mut self) {
        self.publish();
        // The one packed position that a front end cannot tell from "none given" (used slot 0 with
        // counter 0) needs the chains given back; with all others the base says it.
        if self.world.device.base() >> 16 == 0 {
            self.rewind(usize::MAX);
        }
        let cfg =
            virtqueue::QueueConfig { base: self.world.device.base(), ..config(&self.world.driver) };
        self.world.device = Queue::new(&self.world.mem, &cfg).unwrap();
        // What was popped and not completed is done again.
        self.popped = self.completed;
        self.positions.clear();
        self.fresh = true;
        self.undecided = 0;
        // The new device has armed kicks, but may have come too late for the last of them.
        let late = self.exposed > self.popped;
        self.wish_kick(if late { Wish::Whatever } else { Wish::After(0) });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_ends_agree_with_the_model(spec in specs(), ops in ops()) {
        let mut model = Model::new(&spec);
        for op in &ops {
            model.run(op);
        }
        // Whatever is still on its way arrives.
        model.expose();
        while model.popped < model.exposed {
            model.pop(64);
        }
        model.complete(usize::MAX, 50);
        model.publish();
        while !model.chains.is_empty() {
            model.collect();
        }
        prop_assert_eq!(model.world.driver.free(), spec.size);
    }
}
