//! The table of lies a driver can tell with its rings, and what becomes of each.

use testkit::driver::{RawDesc, flags};

use super::liar::{BIG, BIG_LEN, DATA, END, HOLE, N, Options, Ring, START, TABLE};
use crate::common::Rng;
use flags::{AVAIL, INDIRECT, NEXT, USED, WRITE};

/// What becomes of the liar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its session is ended under this name.
    Ends(&'static str),
    /// It harms nobody and can go on.
    Lives,
    /// One or the other: it depends on who is faster.
    Either,
}

/// Which rings can tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Split,
    Packed,
    Both,
}

/// Which queues can tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Tx,
    Rx,
    Any,
}

pub(crate) struct Lie {
    pub(crate) name: &'static str,
    pub(crate) on: On,
    pub(crate) by: By,
    pub(crate) fate: Fate,
    /// Changes what is negotiated.
    pub(crate) with: fn(&mut Options),
    /// Told before the queues are started.
    pub(crate) early: bool,
    pub(crate) tell: fn(&Ring),
}

const fn lie(name: &'static str, on: On, by: By, fate: Fate, tell: fn(&Ring)) -> Lie {
    Lie { name, on, by, fate, with: |_| {}, early: false, tell }
}

const fn fatal(name: &'static str, fault: &'static str, tell: fn(&Ring)) -> Lie {
    lie(name, On::Both, By::Any, Fate::Ends(fault), tell)
}

const fn split(name: &'static str, fault: &'static str, tell: fn(&Ring)) -> Lie {
    lie(name, On::Split, By::Any, Fate::Ends(fault), tell)
}

const fn packed(name: &'static str, fault: &'static str, tell: fn(&Ring)) -> Lie {
    lie(name, On::Packed, By::Any, Fate::Ends(fault), tell)
}

const fn harmless(name: &'static str, on: On, by: By, tell: fn(&Ring)) -> Lie {
    lie(name, on, by, Fate::Lives, tell)
}

const fn race(name: &'static str, on: On, by: By, tell: fn(&Ring)) -> Lie {
    lie(name, on, by, Fate::Either, tell)
}

/// Of a buffer to read behind one to write.
const MIXED: Fate = Fate::Ends("readable-after-writable");

/// Lies about which the device cannot be mistaken.
const FATAL: &[Lie] = &[
    fatal("a buffer of no bytes", "zero-length", |r| r.one(DATA, 0, r.write, 0)),
    fatal("a buffer of no bytes behind another", "zero-length", |r| {
        r.offer(&[r.good(NEXT, 1), desc(DATA, 0, r.write)]);
    }),
    fatal("a buffer before memory", "buffer-outside", |r| r.one(START - 1, 64, r.write, 0)),
    fatal("a buffer at zero", "buffer-outside", |r| r.one(0, 64, r.write, 0)),
    fatal("a buffer behind memory", "buffer-outside", |r| r.one(END, 1, r.write, 0)),
    fatal("a buffer over the end of memory", "buffer-outside", |r| {
        r.one(END - 63, 64, r.write, 0);
    }),
    fatal("a buffer around the address space", "buffer-outside", |r| {
        r.one(u64::MAX - 15, 64, r.write, 0);
    }),
    fatal("a buffer of 4 GiB", "buffer-outside", |r| r.one(DATA, u32::MAX, r.write, 0)),
    fatal("a buffer in a hole", "buffer-outside", |r| r.one(HOLE + 4096, 64, r.write, 0)),
    fatal("a buffer into a hole", "buffer-outside", |r| r.one(HOLE - 32, 64, r.write, 0)),
    fatal("a buffer out of a hole", "buffer-outside", |r| r.one(BIG - 32, 64, r.write, 0)),
    fatal("a buffer across a hole", "buffer-outside", |r| {
        r.one(HOLE - 32, (BIG - HOLE) as u32 + 64, r.write, 0);
    }),
    fatal("a bad buffer behind a good one", "buffer-outside", |r| {
        r.offer(&[r.good(NEXT, 1), desc(HOLE, 64, r.write)]);
    }),
    fatal("a readable buffer behind a writable one", "readable-after-writable", |r| {
        r.offer(&[r.good(NEXT | WRITE, 1), desc(DATA, 64, 0)]);
    }),
    fatal("an indirect descriptor with a next", "indirect-with-next", |r| {
        r.one(TABLE, 16, INDIRECT | NEXT, 1);
    }),
    fatal("a table of no bytes", "indirect-length", |r| r.one(TABLE, 0, INDIRECT, 0)),
    fatal("a table of one and a half", "indirect-length", |r| r.one(TABLE, 24, INDIRECT, 0)),
    fatal("a table behind memory", "indirect-outside", |r| r.one(END, 16, INDIRECT, 0)),
    fatal("a table over the end of memory", "indirect-outside", |r| {
        r.one(END - 16, 32, INDIRECT, 0);
    }),
    fatal("a table around the address space", "indirect-outside", |r| {
        r.one(u64::MAX - 15, 32, INDIRECT, 0);
    }),
    fatal("a table of 4 GiB", "indirect-outside", |r| {
        r.one(TABLE, u32::MAX - 15, INDIRECT, 0);
    }),
    fatal("a table in a hole", "indirect-outside", |r| r.one(HOLE, 16, INDIRECT, 0)),
    fatal("a table into a hole", "indirect-outside", |r| r.one(HOLE - 16, 32, INDIRECT, 0)),
    fatal("an empty buffer in a table", "zero-length", |r| {
        r.offer_table(&[r.good(NEXT, 1), desc(DATA, 0, r.write)]);
    }),
    fatal("a bad buffer in a table", "buffer-outside", |r| {
        r.offer_table(&[r.good(NEXT, 1), desc(END, 1, r.write)]);
    }),
    lie("readable behind writable in a table", On::Both, By::Rx, MIXED, |r| {
        r.offer_table(&[r.good(NEXT | WRITE, 1), desc(DATA, 64, 0)]);
    }),
    lie("readable behind writable in a TX table", On::Split, By::Tx, MIXED, |r| {
        r.offer_table(&[r.good(NEXT | WRITE, 1), desc(DATA, 64, 0)]);
    }),
    fatal("1025 buffers in a table", "too-many-segments", |r| {
        let all: Vec<_> = (1..1026).map(|next| r.good(NEXT, next)).collect();
        r.offer_table(&all);
    }),
    fatal("a chain of 4 GiB", "chain-too-large", |r| {
        let parts = 1..=64u16;
        let one = |next: u16| big(r, if next < 64 { NEXT } else { 0 }, next);
        r.offer(&parts.map(one).collect::<Vec<_>>());
    }),
    fatal("a table of 4 GiB of buffers", "chain-too-large", |r| {
        let all: Vec<_> = (1..=65).map(|next| big(r, NEXT, next)).collect();
        r.offer_table(&all);
    }),
    Lie {
        with: |options| options.indirect = false,
        ..fatal("a table that was not agreed on", "indirect-not-negotiated", |r| {
            r.offer_table(&[r.good(0, 0)]);
        })
    },
    split("an avail index one too far", "avail-index", |r| r.raw().set_avail_idx(N + 1)),
    split("an avail index backwards", "avail-index", |r| r.raw().set_avail_idx(u16::MAX)),
    split("an avail index half around", "avail-index", |r| r.raw().set_avail_idx(1 << 15)),
    split("a head just outside", "head-index", |r| head(r, N)),
    split("a head far outside", "head-index", |r| head(r, u16::MAX)),
    split("a next just outside", "next-index", |r| r.offer(&[r.good(NEXT, N)])),
    split("a next far outside", "next-index", |r| r.offer(&[r.good(NEXT, u16::MAX)])),
    split("a loop of one", "chain-too-long", |r| r.offer(&[r.good(NEXT, 0)])),
    split("a loop of two", "chain-too-long", |r| {
        r.offer(&[r.good(NEXT, 1), r.good(NEXT, 0)]);
    }),
    split("a loop through the whole ring", "chain-too-long", |r| {
        r.offer(&(1..=N).map(|next| r.good(NEXT, next % N)).collect::<Vec<_>>());
    }),
    split("a loop that one enters from outside", "chain-too-long", |r| {
        r.offer(&[r.good(NEXT, 1), r.good(NEXT, 2), r.good(NEXT, 1)]);
    }),
    split("a table in a table", "indirect-nested", |r| {
        r.offer_table(&[r.good(NEXT, 1), desc(TABLE, 16, INDIRECT)]);
    }),
    split("a next outside the table", "indirect-next-index", |r| {
        r.offer_table(&[r.good(NEXT, 1), r.good(NEXT, 2)]);
    }),
    split("a loop in a table", "chain-too-long", |r| {
        r.offer_table(&[r.good(NEXT, 1), r.good(NEXT, 0)]);
    }),
    split("a table with what may not come there", "readable-after-writable", |r| {
        r.write_table(&[desc(DATA, 64, 0)]);
        r.offer(&[r.good(NEXT | WRITE, 1), desc(TABLE, 16, INDIRECT)]);
    }),
    Lie {
        early: true,
        ..split("a used index that never was", "avail-index", |r| r.raw().set_used_idx(500))
    },
    packed("a chain once around the ring", "chain-too-long", |r| {
        r.offer(&vec![r.good(NEXT, 0); N.into()]);
    }),
    packed("a chain into what is not available", "not-available", |r| {
        r.offer(&[r.good(NEXT, 0)]);
    }),
    packed("a chain into the lap before", "not-available", |r| {
        r.offer(&[r.good(NEXT, 0), r.good(USED, 0)]);
    }),
    packed("a table behind a direct buffer", "indirect-in-chain", |r| {
        r.offer(&[r.good(NEXT, 0), desc(TABLE, 16, INDIRECT)]);
    }),
];

/// What breaks the rules and nothing else, and what is odd and within them.
const HARMLESS: &[Lie] = &[
    harmless("a TX buffer to write into", On::Both, By::Tx, |r| r.one(DATA, 128, WRITE, 0)),
    harmless("an RX buffer to read from", On::Both, By::Rx, |r| r.one(DATA, 128, 0, 0)),
    harmless("a buffer to read and one to write", On::Both, By::Any, |r| {
        r.offer(&[desc(DATA, 128, NEXT).tagged(1), desc(DATA + 4096, 2048, WRITE)]);
    }),
    harmless("flags that mean nothing", On::Both, By::Any, |r| {
        r.offer(&[r.good(0x1f08 & !AVAIL, 0)]);
    }),
    harmless("a table to write into", On::Both, By::Any, |r| {
        r.write_table(&[r.good(0, 0)]);
        r.one(TABLE, 16, INDIRECT | WRITE, 0);
    }),
    // DPDK leaves the flags in such a table as they were.
    harmless("any flags in a packed TX table", On::Packed, By::Tx, |r| {
        r.offer_table(&[r.good(NEXT | WRITE, 1), desc(DATA, 64, u16::MAX)]);
    }),
    harmless("a table at an odd address", On::Both, By::Any, |r| {
        let halves = if r.packed { r.good(0, 0).packed() } else { r.good(0, 0).split() };
        r.write(TABLE + 3, &halves.map(u64::to_le_bytes).concat());
        r.one(TABLE + 3, 16, INDIRECT, 0);
    }),
    harmless("a frame of one byte", On::Both, By::Tx, |r| r.one(DATA, 1, 0, 0)),
    harmless("a header that is cut short", On::Both, By::Tx, |r| r.one(DATA, 11, 0, 0)),
    harmless("a header without a frame", On::Both, By::Tx, |r| r.one(DATA, 12, 0, 0)),
    harmless("a frame of 64 MiB", On::Both, By::Tx, |r| r.one(BIG, BIG_LEN, 0, 0)),
    harmless("a frame of 1024 pieces", On::Split, By::Tx, |r| {
        let last = 1023;
        let part = |next| desc(DATA, 1, if next > last { 0 } else { NEXT }).tagged(next);
        r.offer_table(&(1..=1024).map(part).collect::<Vec<_>>());
    }),
    harmless("a buffer of 64 MiB", On::Both, By::Rx, |r| r.one(BIG, BIG_LEN, WRITE, 0)),
    harmless("buffers of one byte", On::Both, By::Rx, |r| {
        r.place(&(0..N).map(|id| desc(DATA, 1, WRITE).tagged(id)).collect::<Vec<_>>());
        heads(r, 0..N);
    }),
    Lie {
        with: |options| options.mergeable = false,
        ..harmless("a buffer too small for a header", On::Both, By::Rx, |r| {
            r.one(DATA, 11, WRITE, 0);
        })
    },
    harmless("all buffers at one place", On::Both, By::Any, |r| {
        r.place(&(0..N).map(|id| r.good(0, id)).collect::<Vec<_>>());
        heads(r, 0..N);
    }),
    harmless("one buffer many times", On::Split, By::Any, |r| {
        r.place(&[r.good(0, 0)]);
        heads(r, (0..N).map(|_| 0));
    }),
    harmless("an id that is none", On::Packed, By::Any, |r| r.offer(&[r.good(0, 0xfffe)])),
    harmless("a ring full of ones", On::Packed, By::Any, |r| {
        for slot in 0..N {
            r.raw().set_desc(slot, &desc(u64::MAX, u32::MAX, u16::MAX).tagged(u16::MAX));
        }
    }),
    harmless("a descriptor of the other lap", On::Packed, By::Any, |r| {
        r.raw().set_desc(0, &r.good(USED, 0));
    }),
    harmless("a second descriptor without a first", On::Packed, By::Any, |r| {
        r.raw().set_desc(1, &r.good(AVAIL, 0));
    }),
    harmless("heads behind the index", On::Split, By::Any, |r| {
        (0..N).for_each(|slot| r.raw().set_avail_entry(slot, u16::MAX));
    }),
    harmless("flags of the avail ring", On::Split, By::Any, |r| {
        r.raw().set_avail_flags(u16::MAX);
        r.offer(&[r.good(0, 0)]);
    }),
    Lie {
        with: |options| options.event_idx = true,
        ..harmless("events that never come", On::Both, By::Any, |r| {
            if r.packed {
                r.raw().set_driver_event(u16::MAX, 2);
            } else {
                r.raw().set_used_event(0x7777);
                r.raw().set_avail_flags(u16::MAX);
            }
            r.offer(&[r.good(0, 0)]);
        })
    },
    Lie {
        with: |options| options.event_idx = true,
        ..harmless("events that mean nothing", On::Packed, By::Any, |r| {
            r.raw().set_driver_event(0x1234, u16::MAX);
            r.offer(&[r.good(0, 0)]);
        })
    },
    harmless("the device's area overwritten", On::Both, By::Any, |r| {
        scribble_device(r);
        r.offer(&[r.good(0, 0)]);
        r.kick();
        scribble_device(r);
    }),
    harmless("what was used is unused", On::Packed, By::Tx, |r| {
        r.offer(&[r.good(0, 0)]);
        r.kick();
        for _ in 0..1000 {
            r.raw().set_desc_flags(0, 0);
        }
    }),
    harmless("the ring itself as a frame", On::Both, By::Tx, |r| {
        r.one(r.queue.addresses().desc, 2048, 0, 0);
    }),
    harmless("another ring as a frame", On::Both, By::Tx, |r| r.one(START, 2048, 0, 0)),
    harmless("a storm of kicks", On::Both, By::Any, |r| (0..1000).for_each(|_| r.kick())),
    harmless("a full count of kicks", On::Both, By::Any, |r| {
        fill(&r.fds.kick);
        r.offer(&[r.good(0, 0)]);
    }),
    harmless("a full count of interrupts", On::Both, By::Any, |r| {
        fill(&r.fds.call);
        r.offer(&[r.good(0, 0)]);
    }),
];

/// Changes while the device looks.
const RACES: &[Lie] = &[
    race("the ring as a buffer", On::Both, By::Rx, |r| {
        r.one(r.queue.addresses().desc, 2048, WRITE, 0);
    }),
    race("the driver's area as a buffer", On::Both, By::Rx, |r| {
        r.one(r.queue.addresses().driver, 2048, WRITE, 0);
    }),
    race("the device's area as a buffer", On::Both, By::Rx, |r| {
        r.one(r.queue.addresses().device, 2048, WRITE, 0);
    }),
    race("a table that describes itself", On::Both, By::Rx, |r| {
        r.offer_table(&[desc(TABLE, 2048, WRITE)]);
    }),
    race("descriptors that change", On::Both, By::Any, |r| {
        r.place(&(0..N).map(|id| r.good(0, id)).collect::<Vec<_>>());
        heads(r, 0..N);
        churn(r, |r, random| {
            let [low, high] = [random as u32, (random >> 32) as u32];
            let addr = DATA + u64::from(low % 4096);
            let wild = desc(addr, high % 3000, random as u16 & (NEXT | WRITE | AVAIL | USED));
            r.raw().set_desc(low as u16 % N, &wild.tagged(high as u16 % (N + 1)));
        });
    }),
    race("an index that jumps about", On::Split, By::Any, |r| {
        r.place(&(0..N).map(|_| r.good(0, 0)).collect::<Vec<_>>());
        churn(r, |r, random| {
            r.raw().set_avail_entry(random as u16 % N, (random >> 16) as u16 % N);
            r.raw().set_avail_idx((random >> 32) as u16 % (N + 2));
        });
    }),
    race("marks that change", On::Packed, By::Any, |r| {
        r.place(&(0..N).map(|id| r.good(0, id)).collect::<Vec<_>>());
        churn(r, |r, random| {
            r.raw().set_desc_flags(random as u16 % N, (random >> 16) as u16 & !INDIRECT);
        });
    }),
    race("a table that changes", On::Both, By::Any, |r| {
        r.offer_table(&(1..=64).map(|next| r.good(NEXT, next % 64)).collect::<Vec<_>>());
        churn(r, |r, random| {
            let at = TABLE + 8 * (random % 128);
            r.write(at, &(random >> 20).to_le_bytes());
            if random.is_multiple_of(16) {
                r.one(TABLE, 1024, INDIRECT, 0);
            }
        });
    }),
    race("a whole ring of noise", On::Both, By::Any, |r| {
        churn(r, |r, random| {
            let areas = r.queue.addresses();
            let area = [areas.desc, areas.driver, areas.device][random as usize % 3];
            r.write(area + (random >> 8) % 2048, &random.to_le_bytes());
        });
    }),
    lie("a frame that changes", On::Both, By::Tx, Fate::Lives, |r| {
        r.place(&(0..N).map(|id| r.good(0, id)).collect::<Vec<_>>());
        heads(r, 0..N);
        // Not its source: an address of another's would be believed.
        churn(r, |r, random| {
            let at = match random % 64 {
                12..24 => 24,
                at => at,
            };
            r.write(DATA + at, &random.to_le_bytes()[..1]);
        });
    }),
];

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Lie> {
    FATAL.iter().chain(HARMLESS).chain(RACES)
}

fn desc(addr: u64, len: u32, flags: u16) -> RawDesc {
    RawDesc { addr, len, flags, tag: 0 }
}

trait Tagged {
    fn tagged(self, tag: u16) -> Self;
}

impl Tagged for RawDesc {
    fn tagged(self, tag: u16) -> RawDesc {
        RawDesc { tag, ..self }
    }
}

/// A buffer of 64 MiB.
fn big(r: &Ring, flags: u16, tag: u16) -> RawDesc {
    desc(BIG, BIG_LEN, flags | r.write).tagged(tag)
}

/// One chain available, which starts there.
fn head(r: &Ring, head: u16) {
    r.raw().set_avail_entry(0, head);
    r.raw().set_avail_idx(1);
}

/// Makes chains available; on a packed ring they are already.
fn heads(r: &Ring, heads: impl Iterator<Item = u16>) {
    if !r.packed {
        let mut count = 0;
        for head in heads {
            r.raw().set_avail_entry(count, head);
            count += 1;
        }
        r.raw().set_avail_idx(count);
    }
}

/// Overwrites what only the device may write.
fn scribble_device(r: &Ring) {
    let at = r.queue.addresses().device;
    r.write(at, &[0xff; 4]);
    if !r.packed {
        r.write(at, &vec![0xee; 6 + 8 * usize::from(N)]);
    }
}

/// Makes the count of an event as large as it can be.
fn fill(event: &sys::EventFd) {
    event.drain();
    rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
}

/// Changes something many times, kicking now and then.
fn churn(r: &Ring, change: fn(&Ring, u64)) {
    let mut rng = Rng::new(u64::from(r.write) + 2 * u64::from(r.packed));
    for n in 0..3000 {
        change(r, rng.next());
        if n % 100 == 0 {
            r.kick();
            std::thread::yield_now();
        }
    }
    r.kick();
}
