use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicBool;
use std::thread;

use proptest::prelude::*;

use super::*;

/// What it must be like: all prefixes, looked through.
#[derive(Default)]
struct Model(BTreeMap<Prefix, u32>);

impl Model {
    fn look_up(&self, address: IpAddr) -> u32 {
        let found = self.0.iter().filter(|(prefix, _)| prefix.span.contains(bits(address)));
        found.max_by_key(|(prefix, _)| prefix.span.len).map_or(0, |(_, route)| *route)
    }
}

fn prefix(text: &str) -> Prefix {
    let (address, len) = text.split_once('/').unwrap();
    Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
}

#[test]
fn the_longest_prefix_counts() {
    let lpm = Lpm::default();
    for (n, text) in ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32"]
        .into_iter()
        .enumerate()
    {
        assert_eq!(lpm.insert(prefix(text), n as u32 + 1), Ok(None));
    }
    for (address, route) in
        [("11.0.0.1", 1), ("10.2.0.1", 2), ("10.1.9.9", 3), ("10.1.2.9", 4), ("10.1.2.3", 5)]
    {
        assert_eq!(lpm.look_up(address.parse().unwrap()), route, "{address}");
    }
    assert_eq!(lpm.remove(prefix("10.1.0.0/16")), Some(3));
    assert_eq!(lpm.look_up("10.1.9.9".parse().unwrap()), 2);
    assert_eq!(lpm.look_up("10.1.2.9".parse().unwrap()), 4);
    assert_eq!(lpm.remove(prefix("0.0.0.0/0")), Some(1));
    assert_eq!(lpm.look_up("11.0.0.1".parse().unwrap()), 0);
    assert_eq!(lpm.remove(prefix("0.0.0.0/0")), None);
}

#[test]
fn numbers_outside_are_refused() {
    let lpm = Lpm::default();
    assert_eq!(lpm.insert(prefix("10.0.0.0/8"), 0), Err(Full));
    assert_eq!(lpm.insert(prefix("10.0.0.0/8"), Lpm::ROUTES_MAX), Err(Full));
    assert!(lpm.insert(prefix("10.0.0.0/8"), Lpm::ROUTES_MAX - 1).is_ok());
    assert!(Prefix::new(Ipv4Addr::LOCALHOST.into(), 33).is_none());
}

#[test]
fn what_removals_leave_behind_goes() {
    let lpm = Lpm::default();
    for round in 0..3 {
        for n in 0..20_000u32 {
            let prefix = Prefix::new(Ipv4Addr::from_bits(n << 12).into(), 28).unwrap();
            lpm.insert(prefix, round * 3 + 1).unwrap();
            lpm.remove(prefix).unwrap();
        }
    }
    lpm.insert(prefix("10.0.0.0/8"), 7).unwrap();
    assert!(lpm.is_wasteful());
    let new = lpm.rebuilt().unwrap();
    assert!(!new.is_wasteful() && new.memory() < lpm.memory());
    assert_eq!(new.look_up("10.1.1.1".parse().unwrap()), 7);
}

#[test]
fn routes_that_change_leave_nothing_behind() {
    let lpm = Lpm::default();
    for route in 1..10_000 {
        lpm.insert(prefix("10.0.0.0/8"), route).unwrap();
        lpm.insert(prefix("10.1.2.0/24"), route + 1).unwrap();
        assert_eq!(lpm.look_up("10.1.2.3".parse().unwrap()), route + 1);
        assert_eq!(lpm.look_up("10.1.3.3".parse().unwrap()), route);
    }
    assert!(!lpm.is_wasteful());
}

/// Readers find what was true at some time during their look-up, whatever the writer does around
/// the address.
#[test]
fn readers_see_one_table_or_the_next() {
    let (lpm, end) = (Lpm::default(), AtomicBool::new(false));
    let address: IpAddr = "10.1.2.3".parse().unwrap();
    lpm.insert(prefix("10.0.0.0/8"), 1).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = [0u64; 6];
            while !end.load(Relaxed) {
                seen[lpm.look_up(address) as usize] += 1;
            }
            seen
        });
        let around = ["10.1.0.0/16", "10.1.2.0/24", "10.1.2.0/25", "10.1.2.3/32"];
        let beside = ["10.1.3.0/24", "10.1.2.128/25", "10.1.2.2/32", "10.2.0.0/16"];
        for _ in 0..5_000 {
            for (n, (around, beside)) in around.iter().zip(beside).enumerate() {
                lpm.insert(prefix(around), n as u32 + 2).unwrap();
                lpm.insert(prefix(beside), 1_000).unwrap();
            }
            for (around, beside) in around.iter().zip(beside) {
                lpm.remove(prefix(around)).unwrap();
                lpm.remove(prefix(beside)).unwrap();
            }
        }
        end.store(true, Relaxed);
        let seen = reader.join().expect("no other route was found");
        assert_eq!(seen[0], 0, "the address was in no prefix: {seen:?}");
    });
}

/// Addresses that agree in many bits, so that prefixes nest.
fn address() -> impl Strategy<Value = IpAddr> {
    let near = prop::sample::select(vec![0u8, 1, 2, 127, 128, 255]);
    prop_oneof![
        prop::array::uniform4(near.clone()).prop_map(|bytes| Ipv4Addr::from(bytes).into()),
        prop::array::uniform16(near).prop_map(|bytes| Ipv6Addr::from(bytes).into()),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Insert(IpAddr, u8, u32),
    Remove(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (address(), 0u8..=128, 1u32..Lpm::ROUTES_MAX)
            .prop_map(|(address, len, route)| Op::Insert(address, len, route)),
        1 => any::<usize>().prop_map(Op::Remove),
    ]
}

proptest! {
    /// IPv4 and IPv6 have tables of their own; here one version at a time.
    #[test]
    fn it_is_like_the_model(
        six in any::<bool>(),
        ops in prop::collection::vec(op(), 1..120),
        addresses in prop::collection::vec(address(), 1..60),
    ) {
        let (mut model, mut lpm) = (Model::default(), Lpm::default());
        for op in ops {
            match op {
                Op::Insert(address, len, route) if address.is_ipv6() == six => {
                    let len = if six { len } else { len % 33 };
                    let prefix = Prefix::new(address, len).unwrap();
                    let old = model.0.insert(prefix, route);
                    prop_assert_eq!(lpm.insert(prefix, route), Ok(old));
                }
                Op::Insert(..) => {}
                Op::Remove(which) => {
                    let nth = which % model.0.len().max(1);
                    if let Some(prefix) = model.0.keys().nth(nth).copied() {
                        let old = model.0.remove(&prefix);
                        prop_assert_eq!(lpm.remove(prefix), old);
                    }
                    if which.is_multiple_of(7) {
                        lpm = lpm.rebuilt().unwrap();
                    }
                }
            }
        }
        prop_assert_eq!(lpm.len(), model.0.len());
        let edges = model.0.keys().flat_map(|prefix| {
            let last = prefix.span.bits | !mask(prefix.span.len);
            [prefix.span.bits, last, prefix.span.bits.wrapping_sub(1 << 96), last.wrapping_add(1 << 96)]
        });
        let edges = edges.map(|bits| -> IpAddr {
            if six {
                Ipv6Addr::from_bits(bits).into()
            } else {
                Ipv4Addr::from_bits((bits >> 96) as u32).into()
            }
        });
        let asked = addresses.iter().copied().filter(|address| address.is_ipv6() == six);
        for address in asked.chain(edges) {
            prop_assert_eq!(lpm.look_up(address), model.look_up(address), "{}", address);
        }
    }
}
