//! Longest-prefix match, compared: build time, memory, look-ups and updates a second of the
//! switch's table beside those of two crates, with tables like the internet's.
//!
//! `cargo run --release -p switch --example lpm -- [PREFIXES ...]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails is over")]
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

use std::alloc::System;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ip_network_table_deps_treebitmap::IpLookupTable;
use ipnet::{Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use switch::{Lpm, Prefix};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Look-ups and updates of one measurement, and how often it is repeated.
const LOOK_UPS: usize = 4_000_000;
const UPDATES: usize = 20_000;
const ROUNDS: usize = 5;

/// Share of the prefixes of each length, of a hundred: roughly the internet's.
const LENGTHS_V4: [(u8, u32); 8] =
    [(24, 60), (23, 10), (22, 12), (21, 5), (20, 5), (19, 3), (18, 2), (16, 3)];
const LENGTHS_V6: [(u8, u32); 6] = [(48, 50), (44, 14), (40, 12), (36, 6), (32, 15), (29, 3)];

/// Numbers that look random (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn length(&mut self, lengths: &[(u8, u32)]) -> u8 {
        let mut at =
            (self.next() >> 32) as u32 % lengths.iter().map(|(_, share)| share).sum::<u32>();
        for (length, share) in lengths {
            match at.checked_sub(*share) {
                Some(rest) => at = rest,
                None => return *length,
            }
        }
        0
    }

    /// Below 224.0.0.0, or in 2000::/3.
    fn address(&mut self, six: bool) -> IpAddr {
        let (high, low) = (self.next(), self.next());
        if six {
            let bits = u128::from(high >> 3 | 1 << 61) << 64 | u128::from(low);
            Ipv6Addr::from_bits(bits).into()
        } else {
            Ipv4Addr::from_bits((high >> 32) as u32 % (224 << 24)).into()
        }
    }
}

/// The address with all bits zero, of IPv4 and IPv6.
const NONE: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// The first `len` bits of one address and the others of another one.
fn joined(first: IpAddr, len: u8, rest: IpAddr) -> IpAddr {
    let len = u32::from(len);
    match (first, rest) {
        (IpAddr::V4(first), IpAddr::V4(rest)) => {
            let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
            Ipv4Addr::from_bits(first.to_bits() & mask | rest.to_bits() & !mask).into()
        }
        (IpAddr::V6(first), IpAddr::V6(rest)) => {
            let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
            Ipv6Addr::from_bits(first.to_bits() & mask | rest.to_bits() & !mask).into()
        }
        _ => first,
    }
}

/// A table that is measured.
trait Table: Sized {
    const NAME: &'static str;

    fn new() -> Self;
    fn insert(&mut self, address: IpAddr, len: u8, route: u32);
    fn remove(&mut self, address: IpAddr, len: u8);
    fn look_up(&self, address: IpAddr) -> u32;
}

impl Table for Lpm {
    const NAME: &'static str = "hayate (16-8-8, leaves)";

    fn new() -> Self {
        Lpm::default()
    }

    fn insert(&mut self, address: IpAddr, len: u8, route: u32) {
        Lpm::insert(self, Prefix::new(address, len).unwrap(), route).unwrap();
    }

    fn remove(&mut self, address: IpAddr, len: u8) {
        Lpm::remove(self, Prefix::new(address, len).unwrap()).unwrap();
    }

    fn look_up(&self, address: IpAddr) -> u32 {
        Lpm::look_up(self, address)
    }
}

/// The `prefix-trie` crate: a binary trie with path compression.
struct Trie(PrefixMap<Ipv4Net, u32>, PrefixMap<Ipv6Net, u32>);

impl Table for Trie {
    const NAME: &'static str = "prefix-trie (binary, compressed)";

    fn new() -> Self {
        Trie(PrefixMap::new(), PrefixMap::new())
    }

    fn insert(&mut self, address: IpAddr, len: u8, route: u32) {
        match address {
            IpAddr::V4(address) => drop(self.0.insert(Ipv4Net::new(address, len).unwrap(), route)),
            IpAddr::V6(address) => drop(self.1.insert(Ipv6Net::new(address, len).unwrap(), route)),
        }
    }

    fn remove(&mut self, address: IpAddr, len: u8) {
        match address {
            IpAddr::V4(address) => drop(self.0.remove(&Ipv4Net::new(address, len).unwrap())),
            IpAddr::V6(address) => drop(self.1.remove(&Ipv6Net::new(address, len).unwrap())),
        }
    }

    fn look_up(&self, address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(address) => self.0.get_lpm(&address.into()).map_or(0, |(_, route)| *route),
            IpAddr::V6(address) => self.1.get_lpm(&address.into()).map_or(0, |(_, route)| *route),
        }
    }
}

/// The `treebitmap` crate: a trie of four bits a node, with bitmaps.
struct Bitmap(IpLookupTable<Ipv4Addr, u32>, IpLookupTable<Ipv6Addr, u32>);

impl Table for Bitmap {
    const NAME: &'static str = "treebitmap (4 bits a node)";

    fn new() -> Self {
        Bitmap(IpLookupTable::new(), IpLookupTable::new())
    }

    fn insert(&mut self, address: IpAddr, len: u8, route: u32) {
        match address {
            IpAddr::V4(address) => drop(self.0.insert(address, len.into(), route)),
            IpAddr::V6(address) => drop(self.1.insert(address, len.into(), route)),
        }
    }

    fn remove(&mut self, address: IpAddr, len: u8) {
        match address {
            IpAddr::V4(address) => drop(self.0.remove(address, len.into())),
            IpAddr::V6(address) => drop(self.1.remove(address, len.into())),
        }
    }

    fn look_up(&self, address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(address) => self.0.longest_match(address).map_or(0, |(_, _, route)| *route),
            IpAddr::V6(address) => self.1.longest_match(address).map_or(0, |(_, _, route)| *route),
        }
    }
}

/// The median of several measurements.
fn median(mut measure: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| measure()).collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

fn measure<T: Table>(prefixes: &[(IpAddr, u8)], addresses: &[IpAddr]) -> u64 {
    let region = Region::new(COUNTED);
    let start = Instant::now();
    let mut table = T::new();
    for (n, (address, len)) in prefixes.iter().enumerate() {
        table.insert(*address, *len, 1 + n as u32 % 64);
    }
    let built = start.elapsed();
    let change = region.change();
    let memory = change.bytes_allocated - change.bytes_deallocated;
    let mut sum = 0u64;
    let found = median(|| {
        let start = Instant::now();
        sum = addresses.iter().map(|address| u64::from(table.look_up(*address))).sum();
        black_box(sum);
        start.elapsed()
    });
    // Away and there again.
    let some = &prefixes[..prefixes.len().min(UPDATES / 2)];
    let updated = median(|| {
        let start = Instant::now();
        for (address, len) in some {
            table.remove(*address, *len);
        }
        for (n, (address, len)) in some.iter().enumerate() {
            table.insert(*address, *len, 1 + n as u32 % 64);
        }
        start.elapsed()
    });
    println!(
        "| {} | {:.0} ms | {:.1} MB | {:.1} M/s | {:.2} M/s |",
        T::NAME,
        built.as_secs_f64() * 1e3,
        memory as f64 / 1e6,
        addresses.len() as f64 / found.as_secs_f64() / 1e6,
        2.0 * some.len() as f64 / updated.as_secs_f64() / 1e6,
    );
    sum
}

fn main() {
    let mut sizes: Vec<usize> =
        std::env::args().skip(1).map(|size| size.parse().unwrap()).collect();
    if sizes.is_empty() {
        sizes = vec![1_000, 100_000, 1_000_000];
    }
    for six in [false, true] {
        for &size in &sizes {
            let mut random = Random(0x9e37_79b9_7f4a_7c15);
            let lengths: &[(u8, u32)] = if six { &LENGTHS_V6 } else { &LENGTHS_V4 };
            let mut prefixes: Vec<(IpAddr, u8)> = Vec::with_capacity(size);
            let mut seen = std::collections::HashSet::new();
            while prefixes.len() < size {
                let (address, len) = (random.address(six), random.length(lengths));
                let address = joined(address, len, NONE[usize::from(six)]);
                if seen.insert(Prefix::new(address, len).unwrap()) {
                    prefixes.push((address, len));
                }
            }
            // Into prefixes at random.
            let addresses: Vec<IpAddr> = (0..LOOK_UPS)
                .map(|_| {
                    let (prefix, len) = prefixes[random.next() as usize % size];
                    joined(prefix, len, random.address(six))
                })
                .collect();
            println!(
                "\n{} prefixes of IPv{}, look-ups at random:\n",
                size,
                if six { 6 } else { 4 }
            );
            println!("| table | built in | memory | look-ups | updates |\n|---|---|---|---|---|");
            let sums = [
                measure::<Lpm>(&prefixes, &addresses),
                measure::<Trie>(&prefixes, &addresses),
                measure::<Bitmap>(&prefixes, &addresses),
            ];
            assert!(sums.iter().all(|sum| *sum == sums[0]), "they do not agree: {sums:?}");
        }
    }
}
